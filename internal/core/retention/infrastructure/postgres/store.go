// Package postgres is the adapter of package retention: it calls the SQL functions that sweep and report. Only package
// internal/app and tests import it.
package postgres

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	eventspg "spectral/internal/core/events/infrastructure/postgres"
	"spectral/internal/core/events/infrastructure/postgres/coredb"
	"spectral/internal/core/retention"
)

// batchTimeout bounds a call that the database does not answer. A batch is over after a second or so.
const batchTimeout = 30 * time.Second

// Store sweeps in the name of a database role, through a pool that may lead through a transaction pooler. Safe for concurrent use.
type Store struct {
	pool *pgxpool.Pool
	role string
}

var _ retention.Store = (*Store)(nil)

// New returns a Store on pool, whose logins are members of role: spectral_worker, spectral_operator or spectral_retention.
func New(pool *pgxpool.Pool, role string) *Store { return &Store{pool: pool, role: role} }

// inTx runs work in one transaction. What the database refuses is a [*eventspg.RefusedError].
func (s *Store) inTx(ctx context.Context, work func(*coredb.Queries) error) error {
	err := eventspg.ActAs(ctx, s.pool, s.role, func(tx pgx.Tx) error { return work(coredb.New(tx)) })
	return eventspg.AsRefused(err)
}

// Sweep implements [retention.Store].
func (s *Store) Sweep(ctx context.Context, b retention.Batch) (counts []retention.Count, err error) {
	ctx, cancel := context.WithTimeout(ctx, batchTimeout)
	defer cancel()
	err = s.inTx(ctx, func(q *coredb.Queries) error {
		lines, err := q.RetentionSweep(ctx, coredb.RetentionSweepParams{
			MaxRows: int32(b.MaxRows), MaxSeconds: b.MaxSeconds, RunID: b.Run, SweptBy: b.By, WalkEverySeconds: b.WalkEvery.Seconds(), //nolint:gosec // the database refuses what is out of range
		})
		for _, l := range lines {
			counts = append(counts, retention.Count{Subject: retention.Subject(l.Subject), Step: retention.Step(l.Step), Rows: l.Rows, More: l.More})
		}
		return err
	})
	switch {
	case err != nil:
		return nil, fmt.Errorf("retention sweep: %w", err)
	case len(counts) == 0:
		return nil, retention.ErrNotLeading
	default:
		return counts, nil
	}
}

// Preview counts what sweeping would do now, up to so many rows in each step and about so many seconds in all. Ctx bounds it.
func (s *Store) Preview(ctx context.Context, maxRows int64, maxTime time.Duration) (counts []retention.Count, err error) {
	err = s.inTx(ctx, func(q *coredb.Queries) error {
		lines, err := q.RetentionPreview(ctx, coredb.RetentionPreviewParams{MaxRows: maxRows, MaxSeconds: maxTime.Seconds()})
		for _, l := range lines {
			counts = append(counts, retention.Count{Subject: retention.Subject(l.Subject), Step: retention.Step(l.Step), Rows: l.Rows, More: l.More})
		}
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("preview of retention: %w", err)
	}
	return counts, nil
}

// DueIn implements [retention.Store].
func (s *Store) DueIn(ctx context.Context, interval time.Duration) (due time.Duration, err error) {
	ctx, cancel := context.WithTimeout(ctx, batchTimeout)
	defer cancel()
	err = s.inTx(ctx, func(q *coredb.Queries) error {
		seconds, err := q.RetentionDueIn(ctx, interval.Seconds())
		due = time.Duration(seconds * float64(time.Second))
		return err
	})
	if err != nil {
		return 0, fmt.Errorf("ask when to sweep: %w", err)
	}
	return due, nil
}

// Status implements [retention.Store].
func (s *Store) Status(ctx context.Context) (status retention.Status, err error) {
	ctx, cancel := context.WithTimeout(ctx, batchTimeout)
	defer cancel()
	err = s.inTx(ctx, func(q *coredb.Queries) error {
		row, err := q.RetentionStatus(ctx, retention.WarnDays)
		if err != nil {
			return err
		}
		status = retention.Status{PolicyFault: row.PolicyFault, FailedExpiring: row.FailedExpiring, FailedExpireFirst: row.FailedExpireFirstAt}
		if row.RunID == uuid.Nil {
			return nil
		}
		run := &retention.Run{ID: row.RunID, By: row.RunBy, ByHand: row.RunByHand, StartedAt: row.RunStartedAt.UTC(), UpdatedAt: row.RunUpdatedAt.UTC()}
		run.EndedAt = eventspg.Present(row.RunEndedAt)
		status.Latest = run
		return json.Unmarshal(row.RunSteps, &run.Steps)
	})
	if err != nil {
		return retention.Status{}, fmt.Errorf("status of retention: %w", err)
	}
	return status, nil
}

// Policies are those that are stored, which decide, in the order of [retention.Policies].
func (s *Store) Policies(ctx context.Context) (policies []retention.Policy, err error) {
	ctx, cancel := context.WithTimeout(ctx, batchTimeout)
	defer cancel()
	err = s.inTx(ctx, func(q *coredb.Queries) error {
		rows, err := q.RetentionPolicies(ctx)
		for _, r := range rows {
			policies = append(policies, retention.Policy{
				Subject: retention.Subject(r.Subject), ContentClass: r.ContentClass, ActiveTTLDays: int(r.ActiveTtlDays),
				TombstonedGraceDays: int(r.TombstonedGraceDays), Disposal: retention.Disposal(r.Disposal),
			})
		}
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("read the retention policies: %w", err)
	}
	place := func(p retention.Policy) int {
		return slices.IndexFunc(retention.Policies(), func(known retention.Policy) bool { return known.Subject == p.Subject })
	}
	slices.SortFunc(policies, func(a, b retention.Policy) int { return place(a) - place(b) })
	return policies, nil
}
