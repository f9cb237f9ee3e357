package integration_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"spectral/internal/core/events"
	"spectral/internal/core/events/infrastructure/postgres"
	"spectral/tests/pgtest"
)

// leftInFlight is what the log says, once, of an event that is left in flight.
const leftInFlight = `"msg":"left in flight: `

// lockRows locks n rows that are in flight, those of their heartbeats excepted, and returns who does.
func (b *bundle) lockRows(n int) *pgx.Conn {
	b.Helper()
	locking := pgtest.Conn(b.T, b.url)
	b.eventually("rows can be locked", func() (held bool) {
		_, err := locking.Exec(b.ctx, "rollback; begin")
		must(b.T, err)
		must(b.T, locking.QueryRow(b.ctx, `select count(*) = $1 from
			(select from core.outbox where status = 'in_flight' limit $1 for update skip locked) as l`, n).Scan(&held))
		return held
	})
	return locking
}

// What a stop cuts off is given back, but for what somebody has locked, which holds up no others, and is said.
func TestStoppingGivesBackBesideLockedRows(t *testing.T) {
	b := setup(t)
	log := new(notes)
	b.log = logTo(log)
	const all, locked = 100, 20
	g := newGate()
	t.Cleanup(g.letOn)
	s := leasing(time.Minute, gated(worker1, g))
	s.Concurrency = all
	l := b.newListener(never, pgtest.Generation, s)
	l.start()
	b.publishMany(all)
	g.awaitAll(t, all)
	b.lockRows(locked)
	l.stopNow()
	b.wantGivenBack(all - locked)
	if n := log.count(leftInFlight); n != locked {
		t.Errorf("of %d it is said that they are left, of %d", n, locked)
	}
}

// Failures are recorded beside rows that somebody has locked without waiting for them.
func TestFailuresOfLeasesAreRecordedBesideLockedRows(t *testing.T) {
	b := setup(t)
	const all, locked = 100, 20
	g := newGate()
	t.Cleanup(g.letOn)
	s := leasing(time.Minute, executor(worker1, func(ctx context.Context, _ events.Envelope) (events.Completion, error) {
		return nil, errors.Join(g.pass(ctx), events.Terminal(errRefusing))
	}))
	s.Concurrency = all
	l := b.listen(never, s)
	b.publishMany(all)
	g.awaitAll(t, all)
	locking := b.lockRows(locked)
	began := time.Now()
	g.letOn()
	for n := range all {
		if n == all-locked {
			if took := time.Since(began); took > 6*time.Second {
				t.Errorf("the others took %s", took)
			}
			_, err := locking.Exec(b.ctx, "rollback")
			must(t, err)
		}
		if s := l.next(); s.Outcome != postgres.Failed {
			t.Fatalf("%+v", s)
		}
	}
}

// A stop that has nothing to cut off is as it should be, however little time it has.
func TestStoppingWithNothingAtHand(t *testing.T) {
	for name, s := range map[string]events.Subscription{
		"leased": leasing(time.Minute, completing(worker1)), "row-locked": subscription(leaving(worker1)),
	} {
		t.Run(name, func(t *testing.T) {
			b := setup(t)
			l := b.newListener(never, pgtest.Generation, s)
			l.start()
			b.publish(event(1))
			l.delivered(1)
			b.eventually("it is at rest", l.quiet)
			ctx, cancel := context.WithCancel(b.ctx)
			cancel()
			must(t, l.Stop(ctx))
		})
	}
}
