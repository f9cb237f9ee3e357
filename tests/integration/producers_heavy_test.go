//go:build heavy

package integration_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"spectral/internal/core/events"
)

// Producers by the dozen, in bursts with silence between them: in a steady stream the next one's
// ring would hide that an event was left behind. The poll is out of reach unless a test says
// otherwise, and pickups are timed from the return of the producer's commit.

const (
	crowd = 32
	// soon is how long a pickup may take.
	soon = time.Second
)

// publication is one transaction of a producer.
type publication struct {
	id          string
	began, over time.Time // of the commit, or of what became of it
	aborted     bool      // or perhaps
}

// producing is one transaction on conn; an error is a fault of the test's.
type producing func(ctx context.Context, conn *pgx.Conn) (publication, error)

// publishing commits at once.
func publishing(ctx context.Context, conn *pgx.Conn) (publication, error) {
	return transact(ctx, conn, publishSQL)
}

// transact runs SQL around the id of a new event, and tells a refusal of the server's from success.
func transact(ctx context.Context, conn *pgx.Conn, sql string) (publication, error) {
	p := publication{id: event(1).EventID.String(), began: time.Now()}
	_, err := conn.Exec(ctx, fmt.Sprintf(sql, p.id))
	p.over = time.Now()
	if pg, ok := errors.AsType[*pgconn.PgError](err); ok {
		p.aborted = true
		if conn.PgConn().TxStatus() != 'I' && !conn.IsClosed() {
			_, err = conn.Exec(ctx, "rollback")
			return p, err
		}
		if pg.Code == "57P01" || slices.Contains([]string{"23505", "40001"}, pg.Code) {
			return p, nil
		}
	}
	return p, err
}

// crowding is what a crowd of producers is to be seen to do.
type crowding struct {
	producers []producing // taking turns
	lasting   time.Duration
	// excused may stay behind until the next ring: those silent beside a notifier that aborts
	excused bool
	within  time.Duration
	each    int // transactions of a producer in one burst, at most
}

// crowds lets producers commit in bursts and awaits every event of each before the next.
func (b *bundle) crowds(p *pickups, c crowding) {
	b.Helper()
	conns := make([]*pgx.Conn, crowd)
	connect := func(n int) (err error) {
		conns[n], err = pgx.Connect(b.ctx, b.url+"&application_name=producer")
		return err
	}
	for n := range conns {
		must(b.T, connect(n))
		b.Cleanup(func() { _ = conns[n].Close(context.WithoutCancel(b.ctx)) })
	}
	bursts, published, aborted, behind := 0, 0, 0, 0
	for until := time.Now().Add(c.lasting); time.Now().Before(until); bursts++ {
		each := 1 + rand.IntN(c.each)
		made := make([][]publication, crowd)
		faults := make([]error, crowd)
		var producers sync.WaitGroup
		for n := range crowd {
			producers.Go(func() {
				for range each {
					if conns[n].IsClosed() {
						if faults[n] = connect(n); faults[n] != nil {
							return
						}
					}
					m, err := c.producers[n%len(c.producers)](b.ctx, conns[n])
					if err != nil {
						faults[n] = err
						return
					}
					made[n] = append(made[n], m)
				}
			})
		}
		producers.Wait()
		must(b.T, errors.Join(faults...))
		all := slices.Concat(made...)
		var unsure []string
		for _, m := range all {
			if m.aborted {
				unsure = append(unsure, m.id)
			}
		}
		committed := one[[]string](b, "select coalesce(array_agg(id::text), '{}') from core.outbox where id = any ($1::uuid[])", unsure)
		var left []string
		for _, m := range all {
			if m.aborted && !slices.Contains(committed, m.id) {
				aborted++
				continue
			}
			published++
			if len(p.missing(m.over.Add(c.within), m.id)) == 0 {
				if took := p.after(m.over, m.id); took > c.within {
					b.Errorf("event %s was picked up after %s", m.id, took)
				}
				continue
			}
			if !c.excused || !slices.ContainsFunc(all, func(o publication) bool {
				return o.aborted && o.id != m.id && o.began.Before(m.over) && m.began.Before(o.over)
			}) {
				b.Fatalf("burst %d: event %s was not picked up within %s of its commit", bursts, m.id, c.within)
			}
			left = append(left, m.id)
		}
		if len(left) > 0 {
			behind += len(left)
			ring := event(1)
			b.publish(ring)
			if still := p.missing(time.Now().Add(soon), append(left, ring.EventID.String())...); len(still) > 0 {
				b.Fatalf("the next ring left %d of %d behind", len(still), len(left)+1)
			}
		}
	}
	b.eventually("all are delivered", func() bool {
		return !one[bool](b, "select exists (select from core.outbox where status <> 'delivered')")
	})
	b.Logf("%d bursts: %d published, %d aborted, %d left to the next ring; the longest pickup took %s",
		bursts, published, aborted, behind, p.longest)
	if published == 0 || c.excused && aborted == 0 {
		b.Fatal("this shows nothing")
	}
}

// alone sets up a listener that nothing but a notification, or a poll so often, tells of events.
func alone(t *testing.T, poll time.Duration) (*bundle, *pickups) {
	t.Helper()
	b := setupAlone(t, 4*patience)
	p := newPickups()
	b.exec(`create table worlds.linger (refuse boolean, seconds float8 default 0.01 * random());
		create function worlds.linger() returns trigger language plpgsql as $$ begin
			perform pg_catalog.pg_sleep(new.seconds);
			if new.refuse then raise unique_violation using message = 'on purpose'; end if;
			return null;
		end $$;
		create constraint trigger linger after insert on worlds.linger deferrable initially deferred for each row execute function worlds.linger();
		create table worlds.skew (n int primary key, v int); insert into worlds.skew select i, 0 from generate_series(0, 9) i`)
	l := b.listen(poll, p.subscription())
	go func() { // there may be more than it holds
		for {
			select {
			case <-l.settlements:
			case <-b.ctx.Done():
				return
			}
		}
	}()
	return b, p
}

func TestACrowdOfProducersStrandsNothing(t *testing.T) {
	b, p := alone(t, never)
	b.crowds(p, crowding{producers: []producing{publishing, lingering("begin", false)}, lasting: time.Minute, within: soon, each: 8})
}

// Work between the insert and the commit.
func TestACrowdThatCommitsLateStrandsNothing(t *testing.T) {
	b, p := alone(t, never)
	late := func(ctx context.Context, conn *pgx.Conn) (publication, error) {
		if _, err := conn.Exec(ctx, "begin"); err != nil {
			return publication{}, err
		}
		made, err := transact(ctx, conn, publishSQL)
		if err != nil {
			return made, err
		}
		if _, err := conn.Exec(ctx, fmt.Sprintf("select pg_sleep(%f)", 0.05+0.45*rand.Float64())); err != nil {
			return made, err
		}
		made.began = time.Now()
		_, err = conn.Exec(ctx, "insert into worlds.linger values (false); commit")
		made.over = time.Now()
		return made, err
	}
	b.crowds(p, crowding{producers: []producing{late}, lasting: 20 * time.Second, within: soon, each: 3})
}

func TestACrowdOfSerializableProducersStrandsNothing(t *testing.T) {
	b, p := alone(t, never)
	const begin = "begin isolation level serializable"
	b.crowds(p, crowding{producers: []producing{lingering(begin, false)}, lasting: 15 * time.Second, within: soon, each: 5})
}

// lingering stays in its commit for some milliseconds after its decision, as on a slow disk, where
// others find it. With refuse it aborts then.
func lingering(begin string, refuse bool) producing {
	return func(ctx context.Context, conn *pgx.Conn) (publication, error) {
		return transact(ctx, conn, begin+"; "+publishSQL+fmt.Sprintf("; insert into worlds.linger values (%t); commit", refuse))
	}
}

// aborting is a crowd of whom some abort after their decision, once in so many times, each in another way.
func aborting(onceIn int) []producing {
	lingers := lingering("begin", false)
	nowAndThen := func(sql string) producing {
		return func(ctx context.Context, conn *pgx.Conn) (publication, error) {
			if rand.IntN(onceIn) > 0 {
				return lingers(ctx, conn)
			}
			p, err := transact(ctx, conn, sql)
			p.aborted = true // or perhaps not
			return p, err
		}
	}
	rolledBack := nowAndThen("begin; " + publishSQL + "; set constraints all immediate; select pg_sleep(0.005); rollback")
	refused := nowAndThen("begin; " + publishSQL + "; insert into worlds.linger values (true); commit")
	skewed := nowAndThen("begin isolation level serializable; " + publishSQL + "; insert into worlds.linger values (false); " +
		"select sum(v) from worlds.skew; update worlds.skew set v = v + 1 where n = (random() * 9)::int; commit")
	return []producing{
		publishing, lingers, rolledBack, publishing, lingers, publishing, lingers, refused,
		publishing, lingers, skewed, publishing, lingers, publishing, lingers, skewed,
	}
}

// A notifier that aborts after its decision leaves those who were silent beside it, and no others,
// to the next ring.
func TestANotifierThatAbortsLeavesOnlyTheSilentBesideIt(t *testing.T) {
	b, p := alone(t, never)
	b.crowds(p, crowding{producers: aborting(8), lasting: 10 * time.Second, within: soon, each: 3, excused: true})
	b.crowds(p, crowding{producers: aborting(1), lasting: 10 * time.Second, within: soon, each: 3, excused: true})
}

// Or to the poll.
func TestThePollFindsWhatAnAbortedNotifierLeft(t *testing.T) {
	b, p := alone(t, 5*time.Second)
	b.crowds(p, crowding{producers: aborting(1), lasting: 20 * time.Second, within: 5*time.Second + soon, each: 3})
	if p.longest < soon {
		t.Log("none was left to the poll this time; TestWhatASilentProducersNotifierLeavesIsPolled forces it")
	}
}

// Producers that are killed at any moment are aborting ones, and some have committed after all.
func TestKilledProducersStrandOnlyTheSilentBesideThem(t *testing.T) {
	b, p := alone(t, never)
	ctx, cancel := context.WithCancel(b.ctx)
	var killing sync.WaitGroup
	killing.Go(func() {
		for ctx.Err() == nil {
			_, _ = b.pool.Exec(ctx, `select pg_terminate_backend(pid), pg_sleep(0.05 * random()) from pg_stat_activity
				where application_name = 'producer' and datname = current_database() and state <> 'idle' order by random() limit 1`)
		}
	})
	defer killing.Wait()
	defer cancel()
	b.crowds(p, crowding{producers: []producing{publishing, lingering("begin", false)}, lasting: 15 * time.Second, within: soon, each: 5, excused: true})
}

// One transaction of very many events keeps nobody waiting, neither as it inserts nor as it commits,
// and rings for itself.
func TestABulkPublicationRingsForItselfAndHoldsUpNobody(t *testing.T) {
	b, p := alone(t, never)
	const bulk = 100_000
	conn, err := pgx.Connect(b.ctx, b.url)
	must(t, err)
	b.Cleanup(func() { _ = conn.Close(context.WithoutCancel(b.ctx)) })
	inserted := make(chan error, 1)
	go func() {
		_, err := conn.Exec(b.ctx, "begin")
		for n := 0; err == nil && n < bulk; n += 1000 {
			_, err = conn.Exec(b.ctx, `select cardinality(core.outbox_publish_many(jsonb_agg(jsonb_build_object(
				'event_type', 'worlds.test.happened', 'source', 'worlds', 'payload', jsonb_build_object('n', i)))))
				from generate_series(1, 1000) i`)
		}
		inserted <- err
	}()
	small := func() {
		e := event(1)
		b.publish(e)
		p.within(t, soon, time.Now(), e.EventID.String())
	}
	for beside := 0; ; beside++ {
		select {
		case err := <-inserted:
			must(t, err)
			if beside == 0 {
				t.Fatal("nothing was published beside it")
			}
		default:
			small()
			continue
		}
		break
	}
	b.waiting() // what had it look again and again would hide that nobody rings
	committing := make(chan error, 1)
	go func() {
		_, err := conn.Exec(b.ctx, "insert into worlds.linger values (false, 5); commit")
		committing <- err
	}()
	b.eventually("it lingers in its commit", func() bool {
		return one[bool](b, "select exists (select from pg_stat_activity where pid = $1 and wait_event = 'PgSleep')", conn.PgConn().PID())
	})
	b.waiting()
	for range 10 {
		small()
	}
	b.waiting() // so that none of them rings for it
	select {
	case err := <-committing:
		t.Fatalf("its commit did not take long: this shows nothing (%v)", err)
	default:
	}
	must(t, <-committing)
	committed := time.Now()
	p.mu.Lock()
	before := len(p.at)
	p.mu.Unlock()
	b.eventually("the first are picked up", func() bool {
		p.mu.Lock()
		defer p.mu.Unlock()
		return len(p.at) > before
	})
	if took := time.Since(committed); took > soon {
		t.Errorf("it was picked up after %s", took)
	}
	b.eventually("all are delivered", func() bool {
		return !one[bool](b, "select exists (select from core.outbox where status <> 'delivered')")
	})
	t.Logf("delivered after %s; the longest pickup took %s", time.Since(committed), p.longest)
	small()
}

var _ events.BatchHandler = (*pickups)(nil)
