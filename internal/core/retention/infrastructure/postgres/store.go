// Package postgres implements [retention.Store] with the SQL functions of retention. Only internal/app and tests import
// it.
package postgres

import (
	"context"
	"fmt"
	"time"

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
	// Step is called when a transaction begins, and what it returns when that ends. Nil: nothing is called.
	Step func() (end func())
}

var _ retention.Store = (*Store)(nil)

// New returns a Store on pool. The login must be a member of role: spectral_worker, spectral_operator or
// spectral_retention.
func New(pool *pgxpool.Pool, role string) *Store { return &Store{pool: pool, role: role} }

// inTx runs work, which what names, in one transaction. A refusal of the database is a [*pgtx.RefusedError].
func (s *Store) inTx(ctx context.Context, what string, work func(context.Context, *coredb.Queries) error) error {
	if s.Step != nil {
		defer s.Step()()
	}
	ctx, cancel := context.WithTimeout(ctx, pageTimeout)
	defer cancel()
	err := pgtx.RunAs(ctx, s.pool, s.role, func(tx *pgtx.Tx) error { return work(ctx, coredb.New(tx)) })
	if err != nil {
		return fmt.Errorf("%s: %w", what, pgtx.AsRefused(err))
	}
	return nil
}

// Sweep implements [retention.Store].
func (s *Store) Sweep(ctx context.Context, p retention.Page) (rows int64, next []string, err error) {
	var pages []coredb.RetentionSweepRow
	err = s.inTx(ctx, "retention sweep", func(ctx context.Context, q *coredb.Queries) (err error) {
		pages, err = q.RetentionSweep(ctx, coredb.RetentionSweepParams{
			Step: p.Step.Function, After: p.After, RunID: p.Run, SweptBy: p.By,
			PageRows: int32(p.Rows), //nolint:gosec // the database refuses what is out of range
		})
		return err
	})
	switch {
	case err != nil:
		return 0, nil, err
	case len(pages) == 0:
		return 0, nil, retention.ErrNotLeading
	case len(pages[0].Next) > 0:
		next = pages[0].Next
	}
	return pages[0].Rows, next, nil
}

// Begin implements [retention.Store].
func (s *Store) Begin(ctx context.Context, interval time.Duration) (due time.Duration, err error) {
	err = s.inTx(ctx, "begin a retention sweep", func(ctx context.Context, q *coredb.Queries) error {
		seconds, err := q.RetentionBegin(ctx, interval.Seconds())
		due = pgtx.Seconds(seconds)
		return err
	})
	return due, err
}

// Status implements [retention.Store].
func (s *Store) Status(ctx context.Context) (status retention.Status, err error) {
	err = s.inTx(ctx, "status of retention", func(ctx context.Context, q *coredb.Queries) error {
		row, err := q.RetentionStatus(ctx, retention.WarnDays)
		status = retention.Status{
			PolicyFault: row.PolicyFault, FailedExpiring: row.FailedExpiring,
			FailedExpireFirst: pgtx.Present(row.FailedExpireFirstAt), SweptAt: pgtx.Present(row.SweptAt),
		}
		return err
	})
	return status, err
}

// Policies returns the stored policies with the rows that are past them. It reads up to 100,000 rows of each table.
func (s *Store) Policies(ctx context.Context) (policies []retention.Policy, err error) {
	err = s.inTx(ctx, "read the retention policies", func(ctx context.Context, q *coredb.Queries) error {
		rows, err := q.RetentionPolicies(ctx)
		for _, r := range rows {
			policies = append(policies, retention.Policy{
				Subject: r.Subject, ContentClass: r.ContentClass, ActiveTTLDays: int(r.ActiveTtlDays),
				TombstonedGraceDays: int(r.TombstonedGraceDays), Disposal: r.Disposal,
				ToTombstone: r.ToTombstone, ToDelete: r.ToDelete, Estimated: r.Estimated,
			})
		}
		return err
	})
	return policies, err
}
