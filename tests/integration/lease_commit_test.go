package integration_test

import (
	"context"
	"testing"
	"time"

	"spectral/internal/core/events"
	"spectral/internal/core/events/infrastructure/postgres"
	"spectral/tests/pgtest"
)

// holdNumbers makes a table whose numbers are unique as of COMMIT, which waits where somebody else has put in the same and not
// ended yet: for those below n somebody has.
func (b *bundle) holdNumbers(n int) (end func()) {
	b.Helper()
	b.exec("create table platform.numbers (n int unique deferrable initially deferred); grant all on platform.numbers to spectral_platform")
	holder := pgtest.Conn(b.T, b.url)
	_, err := holder.Exec(b.ctx, "begin")
	must(b.T, err)
	_, err = holder.Exec(b.ctx, "insert into platform.numbers select generate_series(0, $1::int - 1)", n)
	must(b.T, err)
	return func() {
		b.Helper()
		_, err := holder.Exec(b.ctx, "rollback")
		must(b.T, err)
	}
}

// numbering leaves its effect, and a number that COMMIT looks at.
func numbering(ctx context.Context, tx events.Tx, e events.Envelope) error {
	if _, err := tx.Exec(ctx, "insert into platform.numbers values ($1)", payloadN(e)); err != nil {
		return err
	}
	return effect(worker1)(ctx, tx, e)
}

// soon awaits n deliveries, which are over in less than limit: what held them up would have taken longer.
func (l *listening) soon(n int, limit time.Duration) {
	l.Helper()
	began := time.Now()
	l.delivered(n)
	if took := time.Since(began); took > limit {
		l.Errorf("they took %s", took)
	}
}

// A COMMIT that waits for somebody costs those that it is to settle, too, neither their leases nor another execution.
func TestSlowCommitsHoldUpNoOtherLeases(t *testing.T) {
	b := setup(t)
	const all = 10
	end := b.holdNumbers(1)
	g := newGate()
	t.Cleanup(g.letOn)
	s := leasing(3*time.Second, executor(worker1, func(ctx context.Context, e events.Envelope) (events.Completion, error) {
		return func(ctx context.Context, tx events.Tx) error { return numbering(ctx, tx, e) }, g.pass(ctx)
	}))
	s.Concurrency = all
	l := b.listen(time.Second, s)
	b.publishMany(all)
	g.awaitAll(t, all)
	g.letOn()
	delivered := 0
	for delivered < all-1 {
		switch s := l.next(); {
		case s.Outcome == postgres.Delivered:
			delivered++
		case payloadN(s.Envelope) != 0:
			t.Fatalf("%+v", s)
		}
	}
	if n := one[int](b, "select count(*) from core.outbox where status = 'delivered' and attempts = 1 and crashes = 0"); n != all-1 {
		t.Errorf("%d of %d kept their leases", n, all-1)
	}
	end()
	l.until(postgres.Delivered)
	b.wantEffects(map[string]int{worker1: all})
}

// In a row-locked batch likewise: it is over when others have waited for three seconds.
func TestSlowCommitsHoldUpNoBatch(t *testing.T) {
	b := setup(t)
	const all = 10
	end := b.holdNumbers(1)
	b.publishMany(all)
	l := b.listen(never, subscription(handler(worker1, numbering)))
	l.soon(all-1, 9*time.Second)
	end()
	l.until(postgres.Delivered)
	b.wantEffects(map[string]int{worker1: all})
}
