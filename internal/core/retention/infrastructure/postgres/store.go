// Package postgres implements [retention.Store] with the SQL functions of retention. Only internal/app and tests import
// it.
package postgres

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"spectral/internal/core/events/infrastructure/postgres/coredb"
	"spectral/internal/core/events/infrastructure/postgres/pgtx"
	"spectral/internal/core/retention"
)

// pageTimeout bounds each call.
const pageTimeout = 30 * time.Second

// Store calls the functions as a database role. Its pool may use a transaction pooler. Safe for concurrent use.
type Store struct {
	pool *pgxpool.Pool
	role string
}

var _ retention.Store = (*Store)(nil)

// New returns a Store on pool. The login must be a member of role: spectral_worker, spectral_operator or
// spectral_retention.
func New(pool *pgxpool.Pool, role string) *Store { return &Store{pool: pool, role: role} }

// inTx runs work in one transaction. A refusal of the database is a [*pgtx.RefusedError].
func (s *Store) inTx(ctx context.Context, work func(*coredb.Queries) error) error {
	err := pgtx.RunAs(ctx, s.pool, s.role, func(tx pgx.Tx) error { return work(coredb.New(tx)) })
	return pgtx.AsRefused(err)
}

// Sweep implements [retention.Store].
func (s *Store) Sweep(ctx context.Context, p retention.Page) (rows int64, next []string, err error) {
	ctx, cancel := context.WithTimeout(ctx, pageTimeout)
	defer cancel()
	var pages []coredb.RetentionSweepRow
	err = s.inTx(ctx, func(q *coredb.Queries) (err error) {
		pages, err = q.RetentionSweep(ctx, coredb.RetentionSweepParams{
			Step: p.Step.Function, After: p.After, RunID: p.Run, SweptBy: p.By,
			PageRows: int32(p.Rows), //nolint:gosec // the database refuses what is out of range
		})
		return err
	})
	switch {
	case err != nil:
		return 0, nil, fmt.Errorf("retention sweep: %w", err)
	case len(pages) == 0:
		return 0, nil, retention.ErrNotLeading
	case len(pages[0].Next) > 0:
		next = pages[0].Next
	}
	return pages[0].Rows, next, nil
}

// Begin implements [retention.Store].
func (s *Store) Begin(ctx context.Context, interval time.Duration) (due time.Duration, err error) {
	ctx, cancel := context.WithTimeout(ctx, pageTimeout)
	defer cancel()
	err = s.inTx(ctx, func(q *coredb.Queries) error {
		seconds, err := q.RetentionBegin(ctx, interval.Seconds())
		due = time.Duration(seconds * float64(time.Second))
		return err
	})
	if err != nil {
		return 0, fmt.Errorf("begin a retention sweep: %w", err)
	}
	return due, nil
}

// Status implements [retention.Store].
func (s *Store) Status(ctx context.Context) (status retention.Status, err error) {
	ctx, cancel := context.WithTimeout(ctx, pageTimeout)
	defer cancel()
	err = s.inTx(ctx, func(q *coredb.Queries) error {
		row, err := q.RetentionStatus(ctx, retention.WarnDays)
		if err != nil {
			return err
		}
		status = retention.Status{
			PolicyFault: row.PolicyFault, FailedExpiring: row.FailedExpiring,
			FailedExpireFirst: pgtx.Present(row.FailedExpireFirstAt), SweptAt: pgtx.Present(row.SweptAt),
		}
		return nil
	})
	if err != nil {
		return retention.Status{}, fmt.Errorf("status of retention: %w", err)
	}
	return status, nil
}

// Policies returns the stored policies with the rows that are past them. It reads up to 100,000 rows of each table.
func (s *Store) Policies(ctx context.Context) (policies []retention.StoredPolicy, err error) {
	ctx, cancel := context.WithTimeout(ctx, pageTimeout)
	defer cancel()
	err = s.inTx(ctx, func(q *coredb.Queries) error {
		rows, err := q.RetentionPolicies(ctx)
		for _, r := range rows {
			policies = append(policies, retention.StoredPolicy{
				Policy: retention.Policy{
					Subject: retention.Subject(r.Subject), ContentClass: r.ContentClass, ActiveTTLDays: int(r.ActiveTtlDays),
					TombstonedGraceDays: int(r.TombstonedGraceDays), Disposal: retention.Disposal(r.Disposal),
				},
				ToTombstone: r.ToTombstone, ToDelete: r.ToDelete, Estimated: r.Estimated,
			})
		}
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("read the retention policies: %w", err)
	}
	return policies, nil
}
