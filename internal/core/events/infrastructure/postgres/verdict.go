package postgres

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/jackc/pgerrcode"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"spectral/internal/core/events"
	"spectral/internal/core/events/infrastructure/postgres/coredb"
)

const (
	// deathGrace is how long a worker must be without its session before it counts as dead: one that
	// only lost its connection has it back by then.
	deathGrace = 2 * time.Second
	// outageGrace is how long this process gives no verdict after it lost a connection itself: others
	// may have lost theirs with it, and take longer to come back.
	outageGrace = maxBackoff + 5*time.Second
	// probeEvery is how often a process finds out which others are gone.
	probeEvery = 5 * time.Second
)

// deaths finds out which workers are gone and gives the verdicts that are due, has leases reaped that ran
// out, and says when to ask again. Called by the doorbell after a look.
func (l *Listener) deaths(ctx context.Context, line *line) (time.Duration, error) {
	now := l.config.Now()
	if now.Before(l.probeAt) {
		return l.probeAt.Sub(now), nil
	}
	var probe coredb.ProbeWorkersRow
	err := line.ask(ctx, "find out which workers are gone", func(ctx context.Context) (err error) {
		probe, err = line.queries.ProbeWorkers(ctx, coredb.ProbeWorkersParams{Worker: l.journal.worker, GraceSeconds: deathGrace.Seconds()})
		return err
	})
	next := probeEvery
	if pg, refused := errors.AsType[*pgconn.PgError](err); refused && pg.Code != pgerrcode.ReadOnlySQLTransaction {
		l.config.Log.WarnContext(ctx, "could not find out which workers are gone", logReason, err.Error())
	} else if err != nil {
		return 0, err
	} else {
		next = min(next, l.reaper.expiry(probe.ExpiryIn))
		if probe.VerdictIn >= 0 {
			due := max(time.Duration(probe.VerdictIn*float64(time.Second)), l.journal.judgesFrom.Sub(now))
			if due > 0 {
				next = min(next, due+time.Millisecond)
			} else if l.verdict(ctx, deathGrace) {
				next = 0
			}
		}
	}
	l.probeAt = now.Add(next)
	return next, nil
}

// deathsThroughPool is deaths without a LISTEN connection: workers that cannot listen must not wait for
// one that can to free what the dead had in hand. Who has lost theirs together with ours is given
// time to have it back. Called after a poll.
func (l *Listener) deathsThroughPool(ctx context.Context) {
	now := l.config.Now()
	if now.Before(l.probeAt) {
		return
	}
	l.probeAt = now.Add(probeEvery)
	var probe coredb.ProbeWorkersRow
	err := inTx(ctx, l.config.Pool, workerRole, func(tx pgx.Tx) (err error) {
		probe, err = coredb.New(tx).ProbeWorkers(ctx, coredb.ProbeWorkersParams{Worker: l.journal.worker, GraceSeconds: outageGrace.Seconds()})
		return err
	})
	if err != nil {
		return
	}
	l.reaper.expiry(probe.ExpiryIn)
	for probe.VerdictIn == 0 && ctx.Err() == nil && l.verdict(ctx, outageGrace) { // -1: nobody is gone
	}
}

// verdict decides what becomes of rows that workers had in hand when they died, which is when they
// have been without a session for grace; core.claim_verdict says how. It reports whether there may
// be more. Its error is logged: the next probe tries again.
func (l *Listener) verdict(ctx context.Context, grace time.Duration) (more bool) {
	eventTypes := slices.Sorted(maps.Keys(l.consumers))
	if len(eventTypes) == 0 {
		return false
	}
	d := &dispatchTx{consumer: l.consumers[eventTypes[0]]}
	more, err := d.countDeath(ctx, eventTypes, l.consumers, grace)
	d.end()
	d.report(ctx)
	if err != nil {
		l.config.Log.WarnContext(ctx, "verdict on dead workers interrupted", logReason, err.Error())
	}
	return more && err == nil
}

// countDeath counts one row's, and reports whether there was one.
func (d *dispatchTx) countDeath(ctx context.Context, eventTypes []string, consumers map[string]*consumer, grace time.Duration) (bool, error) {
	if err := d.begin(ctx); err != nil {
		return false, err
	}
	ctx, cancel := context.WithTimeout(ctx, statementTimeout)
	defer cancel()
	lost, err := d.queries.WorkersLost(ctx, grace.Seconds())
	if err != nil {
		return false, fmt.Errorf("read which workers are gone: %w", err)
	}
	for _, w := range lost {
		if !d.journal.told[w.WorkerID] {
			d.journal.told[w.WorkerID] = true
			d.log.WarnContext(ctx, "a worker is gone: killed, out of memory, frozen or cut off", logWorker, w.WorkerID,
				logName, w.Name, logGoneAt, w.GoneAt, logInHand, w.InHand)
		}
	}
	rows, err := d.queries.Verdict(ctx, coredb.VerdictParams{
		Generation: int64(d.generation), EventTypes: eventTypes, GraceSeconds: grace.Seconds(),
	})
	if err != nil {
		return false, fmt.Errorf("take up what dead workers had in hand: %w", err)
	}
	for _, r := range rows {
		d.consumer = consumers[r.EventType]
		row := claimedRow(coredb.ClaimRow{
			EventID: r.EventID, EventType: r.EventType, EventVersion: r.EventVersion, OccurredAt: r.OccurredAt, Source: r.Source,
			Target: r.Target, ContentClass: r.ContentClass, WorkspaceID: r.WorkspaceID, Payload: r.Payload,
			IdempotencyKey: r.IdempotencyKey, TraceContext: r.TraceContext, Attempts: r.Attempts, AvailableAt: r.AvailableAt,
			HandlerFailures: r.HandlerFailures, Crashes: r.Crashes,
		})
		unhandled, err := d.unhandled(ctx, row)
		if err != nil {
			return false, err
		}
		failures := make(map[string]failure)
		for _, h := range unhandled {
			if (r.Handler == "" || r.Handler == h.Name) && !row.record[h.Name].Parked {
				failures[h.Name] = workerDied(r.Restarted)
			}
		}
		if len(failures) == 0 {
			continue // its handler has handled it meanwhile, or is another build's
		}
		if err := d.record(ctx, row, judge(row.record, unhandled, failures, d.random)); err != nil {
			return false, err
		}
	}
	return len(rows) > 0, d.commit(ctx)
}

// unhandled are the handlers that an event is meant for and has no dedup row of.
func (d *dispatchTx) unhandled(ctx context.Context, row claimed) ([]events.Registration, error) {
	meant := d.handlersOf(row.envelope)
	names := make([]string, len(meant))
	for i, r := range meant {
		names[i] = r.Name
	}
	handled, err := d.queries.HandledBy(ctx, coredb.HandledByParams{IdempotencyKey: row.envelope.IdempotencyKey, HandlerNames: names})
	if err != nil {
		return nil, fmt.Errorf("read which handlers have handled %s: %w", row.envelope.EventID, err)
	}
	return slices.DeleteFunc(slices.Clone(meant), func(r events.Registration) bool { return slices.Contains(handled, r.Name) }), nil
}

// workerDied is the failure of a handler whose worker ended while it ran. A server that has
// started since explains that as well.
func workerDied(serverRestarted bool) failure {
	if serverRestarted {
		return lostConnection(nil)
	}
	return failure{class: "WorkerDied", disposition: transient,
		message: "the worker process ended, froze or was cut off while it had this event in hand, alone or as the one that a worker had died of before (killed, out of memory, exit)"}
}
