package integration_test

import (
	"context"
	"fmt"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"spectral/internal/core/events"
	"spectral/internal/core/events/infrastructure/postgres"
	"spectral/tests/pgtest"
)

// onOneConnection lets a listener dispatch on one pooled connection, so that what one event leaves
// there meets the next.
func (b *bundle) onOneConnection(s events.Subscription) *listening {
	b.Helper()
	b.poolURL += "&pool_max_conns=1"
	s.Concurrency = 1
	return b.listen(never, s)
}

// wantLogin checks that the pooled connection is its login's again.
func (l *listening) wantLogin(after string) {
	l.Helper()
	ctx, cancel := context.WithTimeout(l.ctx, patience)
	defer cancel()
	var is, login, role, workspace string
	must(l.T, l.workers.QueryRow(ctx, `select current_user, session_user, current_setting('role'),
		coalesce(current_setting('spectral.workspace_id', true), '')`).Scan(&is, &login, &role, &workspace))
	if is != login || role != "none" || workspace != "" {
		l.Errorf("after %s the connection of %s is %s's (role %s) and sees workspace %q", after, login, is, role, workspace)
	}
}

func payloadN(e events.Envelope) int {
	p, err := events.Decode[happened](e)
	if err != nil {
		return -1
	}
	return p.N
}

// A handler has its own context's rights: the other's table is refused, at its own row's cost.
func TestAnotherContextsTableIsRefused(t *testing.T) {
	b := setup(t)
	batch := []events.Envelope{event(0), event(1), event(2), event(3)}
	b.publish(batch...)
	astray := handler("platform.astray", func(ctx context.Context, tx events.Tx, e events.Envelope) error {
		if payloadN(e) == 2 {
			_, err := tx.Exec(ctx, "update worlds.effects set n = 0")
			return err
		}
		return effect("platform.astray")(ctx, tx, e)
	})
	l := b.listen(never, subscription(astray, leaving("worlds.two")))
	outcomes := make(map[postgres.Outcome]int)
	for outcomes[postgres.Delivered]+outcomes[postgres.Failed] < len(batch) {
		outcomes[l.next().Outcome]++
	}
	for n, e := range batch {
		if n != 2 {
			b.wantRow(e.EventID, "delivered", 1)
			continue
		}
		r := b.wantRow(e.EventID, "failed", 6)
		if !strings.HasPrefix(r.LastError, "DatabaseError: platform.astray: ") || !strings.Contains(r.LastError, "42501") || strings.Contains(r.LastError, "worlds.two") {
			t.Errorf("last_error %q", r.LastError)
		}
	}
	b.wantEffects(map[string]int{"platform.astray": 3, "worlds.two": 4})
}

// Each event sees the rows of its workspace, or none, whatever came before it on the connection.
func TestEachEventSeesItsWorkspaceOnly(t *testing.T) {
	first, second := uuid.New(), uuid.New()
	order := []uuid.NullUUID{{UUID: first, Valid: true}, {}, {UUID: second, Valid: true}, {}, {UUID: first, Valid: true}, {UUID: second, Valid: true}}
	want := map[uuid.UUID]string{first: "1,2", uuid.Nil: "", second: "3,4,5"}
	for name, c := range map[string]struct{ batch, failures int }{
		"single":          {1, 0},
		"single, failing": {1, 1},
		"batch":           {10, 0},
		"batch, failing":  {10, 2},
	} {
		t.Run(name, func(t *testing.T) {
			b := setup(t)
			b.exec(`create table platform.owned (workspace_id uuid, n int); alter table platform.owned enable row level security;
				create policy own on platform.owned using (workspace_id = nullif(current_setting('spectral.workspace_id', true), '')::uuid);
				grant all on platform.owned to spectral_platform`)
			b.exec("insert into platform.owned values ($1, 1), ($1, 2), ($2, 3), ($2, 4), ($2, 5), (null, 6)", first, second)
			var published []events.Envelope
			for n, workspace := range order {
				e := event(n)
				e.WorkspaceID = workspace
				published = append(published, e)
			}
			pids := make(map[int]bool)
			tries := make(map[uuid.UUID]int)
			look := func(ctx context.Context, tx events.Tx, e events.Envelope) error {
				var pid int
				var saw string
				if err := tx.QueryRow(ctx, "select pg_backend_pid(), coalesce(string_agg(n::text, ',' order by n), '') from platform.owned").Scan(&pid, &saw); err != nil {
					return err
				}
				pids[pid] = true
				if saw != want[e.WorkspaceID.UUID] {
					t.Errorf("event %d of workspace %s saw %q", payloadN(e), e.WorkspaceID.UUID, saw)
				}
				if tries[e.EventID]++; tries[e.EventID] <= c.failures && payloadN(e)%2 == 0 {
					return errRefusing
				}
				return nil
			}
			b.publish(published...)
			s := subscription(handler("platform.look", look), leaving("worlds.two"))
			s.BatchSize = c.batch
			l := b.onOneConnection(s)
			for delivered := 0; delivered < len(published); {
				switch s := l.next(); s.Outcome {
				case postgres.Delivered:
					delivered++
				case postgres.Retried:
				case postgres.Failed, postgres.Released:
					t.Fatal(s.LastError)
				}
			}
			l.wantLogin("all of them")
			l.stop()
			if len(pids) != 1 {
				t.Errorf("%d connections: this shows nothing", len(pids))
			}
		})
	}
}

// Names of roles are quoted, and whatever became of an event, the connection is its login's again.
func TestTheConnectionIsItsLoginsAgain(t *testing.T) {
	b := setup(t)
	odd := fmt.Sprintf(`Odd "login"; reset role --%s`, uuid.NewString()[:8])
	quoted := `"` + strings.ReplaceAll(odd, `"`, `""`) + `"`
	b.exec("create role " + quoted + " login password 'test' in role spectral_worker")
	t.Cleanup(func() { b.exec("drop role " + quoted) })
	u, err := url.Parse(b.url)
	must(t, err)
	u.User = url.UserPassword(odd, "test")
	b.directURL, b.poolURL = u.String(), u.String()
	does := []func(context.Context, events.Tx) error{
		func(context.Context, events.Tx) error { return nil },
		func(context.Context, events.Tx) error { return events.Terminal(errRefusing) },
		func(context.Context, events.Tx) error { panic(errRefusing) },
		func(ctx context.Context, tx events.Tx) error { _, _ = tx.Exec(ctx, "select 1/0"); return nil },
		func(ctx context.Context, tx events.Tx) error {
			_, err := tx.Exec(ctx, "select 1", rollsBack{})
			return err
		},
	}
	h := handler("platform.one", func(ctx context.Context, tx events.Tx, e events.Envelope) error {
		if got := one[string](b, "select usename::text from pg_stat_activity where pid = $1", backend(ctx, tx)); got != odd {
			return events.Terminal(fmt.Errorf("the login is %s", got))
		}
		return does[payloadN(e)](ctx, tx)
	})
	h.Retry = once
	l := b.onOneConnection(subscription(h))
	for n := range does {
		e := event(n)
		e.WorkspaceID = uuid.NullUUID{UUID: uuid.New(), Valid: true}
		b.publish(e)
		if s := l.next(); s.Outcome == postgres.Retried {
			l.next()
		} else if n == 0 {
			wantDelivered(t, s)
		}
		l.wantLogin(fmt.Sprintf("event %d", n))
	}
}

// once retries nothing.
var once = &events.RetryPolicy{MaxRetries: 0, Base: time.Millisecond, Multiplier: 1, Cap: time.Millisecond}

func backend(ctx context.Context, tx events.Tx) (pid int) {
	_ = tx.QueryRow(ctx, "select pg_backend_pid()").Scan(&pid)
	return pid
}

// sessionState is what a statement may have changed for those that come after it.
const sessionState = `select concat_ws(' ', current_user, session_user, current_setting('role'), current_setting('search_path'),
	current_setting('spectral.workspace_id', true), current_setting('client_encoding'), current_setting('TimeZone'), current_setting('DateStyle'),
	current_setting('statement_timeout'), current_setting('lock_timeout'), current_setting('idle_in_transaction_session_timeout'),
	current_setting('row_security'), current_setting('transaction_isolation'), current_setting('transaction_read_only'),
	current_setting('work_mem'), current_setting('synchronous_commit'), current_setting('session_replication_role'),
	current_setting('standard_conforming_strings'), to_regclass('pg_temp.left_behind'),
	(select count(*) from pg_locks where pid = pg_backend_pid() and locktype = 'advisory'), (select count(*) from pg_listening_channels()))`

// Whatever a handler sets, the next event finds the connection as the first one did: also in the
// same batch, and also when the login may do anything.
func TestWhatAHandlerSetsIsItsOwn(t *testing.T) {
	another := uuid.NewString()
	statements := []string{
		"set role spectral_worlds", "set role spectral_worker", "SET SESSION ROLE spectral_worlds", "reset role", "set role none",
		"set session authorization spectral_worlds", "reset session authorization", "set search_path = public", "reset search_path",
		"select set_config('spectral.workspace_id', '" + another + "', false)", "set spectral.workspace_id = '" + another + "'",
		"select set_config('spectral.workspace_id', '" + another + "', true)", "set local role spectral_worlds", "set local search_path = public",
		"set local TimeZone = 'Asia/Tokyo'", "set local lock_timeout = '1ms'", "select set_config('work_mem', '64kB', true)",
		"set session characteristics as transaction isolation level serializable read only",
		"set default_transaction_isolation = 'serializable'", "set default_transaction_read_only = on",
		"set statement_timeout = 1000", "set lock_timeout = 1000", "set idle_in_transaction_session_timeout = 1000", "set row_security = off",
		"set client_encoding = 'LATIN1'", "set TimeZone = 'Asia/Kolkata'", "set DateStyle = 'German'", "set work_mem = '64kB'",
		"set synchronous_commit = off", "set session_replication_role = replica", "set standard_conforming_strings = off", "reset all",
		"create temp table left_behind (n int)", "select pg_advisory_lock(1)", "listen anything", "deallocate all",
	}
	for name, c := range map[string]struct {
		super bool
		batch int
	}{
		"superuser, batch": {true, 10}, "worker": {false, 1},
	} {
		t.Run(name, func(t *testing.T) {
			b := setup(t)
			if !c.super {
				b.poolURL = pgtest.Login(t, b.url, "spectral_worker")
			}
			var sql, saw string
			h := handler("platform.one", func(ctx context.Context, tx events.Tx, e events.Envelope) error {
				if payloadN(e) == 0 {
					_, err := tx.Exec(ctx, sql)
					return err
				}
				return tx.QueryRow(ctx, sessionState).Scan(&saw)
			})
			h.Retry = once
			s := subscription(h)
			s.BatchSize = c.batch
			l := b.onOneConnection(s)
			b.publish(event(1))
			l.delivered(1)
			clean := saw
			for _, sql = range statements {
				saw = ""
				culprit, next := event(0), event(1)
				if c.batch > 1 {
					b.publish(culprit, next)
				} else {
					b.publish(culprit)
					b.publish(next)
				}
				for range 2 {
					if s := l.next(); s.Envelope.EventID == next.EventID {
						wantDelivered(t, s)
					} else if s.Outcome != postgres.Delivered && !strings.Contains(s.LastError, "42501") {
						t.Errorf("%s: %s %s", sql, s.Outcome, s.LastError)
					}
				}
				l.wantLogin(sql)
				if saw != clean {
					t.Errorf("after %s the next event found\n%s, not\n%s", sql, saw, clean)
				}
			}
		})
	}
}

// A handler that has set something, and broken a constraint that shows at COMMIT alone, fails by itself: those after it run.
func TestLocalSettingsBeforeADeferredError(t *testing.T) {
	b := setup(t)
	b.exec(`create table worlds.deferring (n int unique deferrable initially deferred); grant all on worlds.deferring to spectral_worlds;
		insert into worlds.deferring values (4)`)
	l := b.listen(never, subscription(handler("worlds.deferring", func(ctx context.Context, tx events.Tx, e events.Envelope) error {
		if _, err := tx.Exec(ctx, "set local timezone = 'Asia/Tokyo'"); err != nil {
			return err
		}
		_, err := tx.Exec(ctx, "insert into worlds.deferring values ($1)", payloadN(e))
		return err
	}), leaving("platform.one")))
	e := event(4)
	b.publish(e)
	l.until(postgres.Failed)
	if r := b.wantRow(e.EventID, "failed", 1); !strings.HasPrefix(r.LastError, "IntegrityError: worlds.deferring: ") {
		t.Errorf("last_error %q", r.LastError)
	}
	b.wantEffects(map[string]int{"platform.one": 1})
}
