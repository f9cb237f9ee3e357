package integration_test

import (
	"errors"
	"log/slog"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"

	"spectral/internal/core/events/infrastructure/postgres"
	"spectral/internal/core/retention"
	retentionpg "spectral/internal/core/retention/infrastructure/postgres"
)

// sweeper starts a worker's sweeper that does not wait between its steps, and stops it at the end.
func (b *bundle) sweeper(name string) (*retention.Sweeper, *logged) {
	b.Helper()
	config, err := pgxpool.ParseConfig(b.url)
	must(b.T, err)
	config.ConnConfig.RuntimeParams["application_name"] = name
	pool, err := pgxpool.NewWithConfig(b.ctx, config)
	must(b.T, err)
	b.Cleanup(pool.Close)
	log := &logged{}
	sweeper, err := retention.NewSweeper(retentionpg.New(pool, "spectral_worker"), retention.Config{
		Interval: time.Hour, Pause: time.Millisecond, BatchRows: 5, FirstRun: time.Millisecond,
		By: name, Log: slog.New(slog.NewTextHandler(log, nil)), NewID: uuid.NewV7, Now: time.Now, Random: rand.Float64,
	})
	must(b.T, err)
	must(b.T, sweeper.Start(b.ctx))
	b.Cleanup(func() { must(b.T, sweeper.Stop(b.ctx)) })
	return sweeper, log
}

type logged struct {
	mu   sync.Mutex
	text []byte
}

func (l *logged) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.text = append(l.text, p...)
	return len(p), nil
}

func (l *logged) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return string(l.text)
}

// old leaves n delivered events that are due to be tombstoned.
func (b *bundle) old(n int) {
	b.Helper()
	b.exec(`insert into core.outbox (event_type, event_version, source, content_class, channel, generation, payload, idempotency_key, status,
			occurred_at, delivered_at)
		select 'worlds.test.happened', 1, 'worlds', 'operational', 'outbox_gen_1', 1, '{}', gen_random_uuid()::text, 'delivered', t, t
		from (select clock_timestamp() - interval '50 days' as t from generate_series(1, $1)) i`, n)
}

const tombstoned = "select count(*)::int from core.outbox where deleted_at is not null"

// A sweep whose backend is ended in the middle is gone on with, by another worker, and beside it no more is swept than once.
func TestAKilledSweepIsTakenUp(t *testing.T) {
	b := setup(t)
	b.old(60)
	// a sweep that stands still in its third batch, until it is killed
	b.exec(`create sequence public.seen; grant usage on public.seen to public;
		create function core.stand_still() returns trigger language plpgsql as $f$
		begin
			if nextval('public.seen') = 12 then perform pg_advisory_xact_lock_shared(77); end if;
			return new;
		end $f$;
		create trigger stand_still before update on core.outbox for each row execute function core.stand_still()`)
	holder, err := b.pool.Acquire(b.ctx)
	must(t, err)
	defer holder.Release()
	_, err = holder.Exec(b.ctx, "select pg_advisory_lock(77)")
	must(t, err)
	first, log := b.sweeper("first")
	stands := "select count(*) from pg_locks where database = (select oid from pg_database where datname = current_database()) and locktype = 'advisory' and objid = 77 and not granted"
	b.eventually("the sweep is in the middle", func() bool { return one[int](b, stands) == 1 })
	second := retentionpg.New(b.pool, "spectral_worker")
	if _, err := second.Sweep(b.ctx, retention.Batch{Run: uuid.New(), By: "second", MaxRows: 5, MaxSeconds: 1}); err != retention.ErrNotLeading { //nolint:errorlint // the very error
		t.Fatalf("beside a sweep, another one sweeps: %v", err)
	}
	if n := one[int](b, tombstoned); n != 10 {
		t.Fatalf("%d events are tombstoned by two batches, want 10", n)
	}
	b.exec("select pg_terminate_backend(pid) from pg_locks where database = (select oid from pg_database where datname = current_database()) and locktype = 'advisory' and objid = 77 and not granted")
	b.eventually("the lost connection is logged", func() bool { return log.String() != "" })
	must(t, first.Stop(b.ctx))
	if n := one[int](b, tombstoned); n != 10 {
		t.Fatalf("the batch that was killed has tombstoned %d events", n-10)
	}
	// its run was cut short: another worker need not wait for an hour, but for a minute
	b.exec("update core.retention_runs set updated_at = updated_at - interval '1 minute'")
	b.sweeper("second")
	b.eventually("the other one has swept the rest", func() bool { return one[int](b, tombstoned) == 60 })
	b.eventually("its run has an end", func() bool {
		return one[int](b, "select count(*) from core.retention_runs where swept_by = 'second' and ended_at is not null") == 1
	})
	if n := one[int](b, "select (steps ->> 'outbox_row.tombstoned')::int from core.retention_runs where swept_by = 'first'"); n != 10 {
		t.Errorf("the first run has noted %d tombstones, want 10", n)
	}
}

// Of many workers' sweepers, one makes each run.
func TestManySweepersMakeOneRun(t *testing.T) {
	b := setup(t)
	b.old(100)
	for _, name := range []string{"a", "b", "c", "d"} {
		b.sweeper(name)
	}
	b.eventually("all is swept, and the run has an end", func() bool {
		return one[int](b, tombstoned) == 100 && one[bool](b, "select bool_or(ended_at is not null) from core.retention_runs")
	})
	if n := one[int](b, "select sum((steps ->> 'outbox_row.tombstoned')::int)::int from core.retention_runs"); n != 100 {
		t.Errorf("the runs have noted %d tombstones, want 100", n)
	}
	if n := one[int](b, "select count(*) from core.operator_actions"); n != 0 {
		t.Errorf("%d actions of operators are noted", n)
	}
}

// What has been handled is remembered for as long as its event can come back, through a real worker: an event that was paused for
// longer than keys are kept, after one of its two handlers, runs the other one alone.
func TestAPausedEventIsNotHandledTwice(t *testing.T) {
	b := setup(t)
	b.publish(event(1))
	b.exec(`insert into core.event_handled (handler_name, idempotency_key, event_id, event_type, content_class)
		select 'platform.one', idempotency_key, id, event_type, content_class from core.outbox`)
	age := func(days int) {
		b.exec("update core.outbox set occurred_at = occurred_at - make_interval(days => $1), created_at = created_at - make_interval(days => $1), deleted_at = deleted_at - make_interval(days => $1)", days)
		b.exec("update core.event_handled set handled_at = handled_at - make_interval(days => $1), deleted_at = deleted_at - make_interval(days => $1)", days)
	}
	store := retentionpg.New(b.pool, "spectral_worker")
	for range 10 {
		age(10)
		_, err := store.Sweep(b.ctx, retention.Batch{Run: uuid.New(), MaxRows: 100, MaxSeconds: 1, By: "test"})
		must(t, err)
	}
	l := b.listen(never, subscription(leaving("platform.one"), leaving("worlds.two")))
	l.delivered(1)
	b.wantEffects(map[string]int{"worlds.two": 1})
}

// A refusal of a sweep tells the parameter, as that of any operator's act does.
func TestASweepIsRefusedWithItsField(t *testing.T) {
	b := setup(t)
	store := retentionpg.New(b.pool, "spectral_worker")
	_, err := store.Sweep(b.ctx, retention.Batch{Run: uuid.New(), By: "anna", MaxRows: 0, MaxSeconds: 1})
	if refused, ok := errors.AsType[*postgres.RefusedError](err); !ok || refused.Code != "SP051" || refused.Field != "max_rows" || refused.Hint == "" {
		t.Errorf("no rows: %#v", err)
	}
}
