package integration_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"spectral/internal/core/events"
	"spectral/internal/core/events/infrastructure/postgres/dispatch"
	"spectral/internal/core/events/infrastructure/postgres/pgtx"
)

// sessionStateSQL is a query for the session state that handlers can leave. It ignores statement_timeout 0, which
// dispatch sets, and 2 s and a quarter of the lease, which the completer sets.
const sessionStateSQL = `select concat_ws(' ', nullif(current_setting('app.tenant', true), ''),
	nullif(current_setting('app.user', true), ''),
	current_setting('TimeZone'), current_setting('work_mem'), current_setting('transaction_read_only'),
	case when current_setting('statement_timeout') not in ('0', '2s', '15s') then current_setting('statement_timeout') end,
	current_setting('row_security'), current_setting('client_encoding'),
	(select count(*) from pg_locks where pid = pg_backend_pid() and locktype = 'advisory'),
	(select count(*) from pg_cursors where name = 'c'), to_regclass('pg_temp.left_behind'),
	(select count(*) from pg_prepared_statements where name = 'p'))`

// sessionStatements set session state in the ways that a handler may use.
var sessionStatements = []string{
	"set local app.tenant = 'x'", `set local "app"."user" = 'x'`,
	"set local transaction_read_only = on",
	"set local row_security = off", "set local role spectral_worlds",
	"set app.tenant = 'x'", "set client_encoding = 'LATIN1'", "reset role", "set constraints all immediate",
	"set statement_timeout = '77s'", "reset all",
	"select set_config('app.user', 'x', true)",
	`select U&"set\005fconfig"('app.tenant', 'x', true)`,
	"update pg_catalog.pg_settings set setting = '77MB' where name = 'work_mem'",
	"do $$ begin perform set_config('app.tenant', 'x', false); end $$",
	"select pg_advisory_lock(42)", "declare c cursor with hold for select 1",
	"do $$ declare c refcursor = 'c'; begin open c for select 1; end $$",
	"select 1 as n into temp left_behind", "create temp table left_behind (n int) on commit drop",
	"prepare p as select 1", "listen anything",
}

// recordSessionState is a handler that records the session state it finds, and writes its effect.
func recordSessionState(name string) func(context.Context, events.Tx, events.Envelope) error {
	return func(ctx context.Context, tx events.Tx, e events.Envelope) error {
		if _, err := tx.Exec(ctx, "insert into public.observed select $1, ("+sessionStateSQL+")", payloadN(e)); err != nil {
			return err
		}
		return writeEffect(name)(ctx, tx, e)
	}
}

// Neither in batches nor among completions does a handler find another's session state. A batch with session state is
// rolled back, and its rows run one by one.
func sessionStateDoesNotLeakBetweenHandlers(b *bundle) {
	leave := func(ctx context.Context, tx events.Tx, e events.Envelope) error {
		if err := recordSessionState("platform.one")(ctx, tx, e); err != nil {
			return err
		}
		_, err := tx.Exec(ctx, sessionStatements[payloadN(e)])
		return err
	}
	for name, s := range map[string]func(b *bundle) events.Subscription{
		"in a batch": func(*bundle) events.Subscription {
			s := subscription(handlerOnce("platform.one", leave), handlerOnce("worlds.two", recordSessionState("worlds.two")),
				handlerOnce("platform.three", recordSessionState("platform.three")))
			s.BatchSize = len(sessionStatements)
			return s
		},
		"leased": func(b *bundle) events.Subscription {
			g := b.newGate()
			done := func(name string, do func(context.Context, events.Tx, events.Envelope) error) events.Registration {
				return once(executor(name, func(ctx context.Context, e events.Envelope) (events.Completion, error) {
					if g.entered <- struct{}{}; len(g.entered) == len(sessionStatements) {
						g.release() // all completions are settled together
					}
					select {
					case <-g.open:
					case <-ctx.Done():
						return nil, ctx.Err()
					}
					return func(ctx context.Context, tx events.Tx) error { return do(ctx, tx, e) }, nil
				}))
			}
			s := leasedSubscription(time.Minute, done("platform.one", leave),
				done("worlds.two", recordSessionState("worlds.two")),
				done("platform.three", recordSessionState("platform.three")))
			s.Concurrency = len(sessionStatements)
			return s
		},
	} {
		b.run(name, func(b *bundle) {
			b.exec("truncate public.observed, platform.effects, worlds.effects")
			b.exec("insert into public.observed values (-1, (" + sessionStateSQL + "))")
			b.poolURL += "&pool_max_conns=6"
			all := b.publishMany(len(sessionStatements))
			l := b.startWorker(noPoll, s(b))
			for range all {
				if s := l.nextSettlement(); s.Outcome != dispatch.Delivered || s.Attempts != 1 {
					sql := sessionStatements[payloadN(*s.Envelope)]
					b.Errorf("%s: %s after %d attempts: %s", sql, s.Outcome, s.Attempts, s.LastError)
				}
			}
			n := len(sessionStatements)
			b.wantEffects(map[string]int{"platform.one": n, "worlds.two": n, "platform.three": n})
			found := one[[]string](b, `select coalesce(array_agg(distinct what || ' (event ' || n || ')'), '{}')
				from public.observed
				where what <> (select what from public.observed where n = -1)`)
			if len(found) > 0 {
				want := one[string](b, "select what from public.observed where n = -1")
				b.Errorf("handlers found %s, want %s", strings.Join(found, "; "), want)
			}
		})
	}
}

// A lock does not keep a duty's connection for longer than a statement may take.
func TestTransactionsOfTheAdapterAreBounded(t *testing.T) {
	b := setup(t)
	must(t, pgtx.InTx(b.ctx, b.pool, pgtx.WorkerRole, func(ctx context.Context, _ *pgtx.Tx) error {
		if deadline, ok := ctx.Deadline(); !ok || time.Until(deadline) > pgtx.StatementTimeout {
			t.Errorf("its context ends at %s", deadline)
		}
		return nil
	}))
}

func once(r events.Registration) events.Registration {
	r.Retry = &events.RetryPolicy{MaxRetries: 0, Base: time.Millisecond, Multiplier: 1, Cap: time.Millisecond}
	return r
}

func handlerOnce(name string, do func(context.Context, events.Tx, events.Envelope) error) events.Registration {
	return once(handler(name, do))
}

func TestSessionState(t *testing.T) {
	setup(t).cases(aRowIsSettledUnderTheWorkersSettings, eachEventSeesItsWorkspaceOnly,
		whatAFunctionSetsDoesNotReachTheNextHandler, aChangedColumnCostsNoRetry, aFunctionThatDeallocatesFailsItsOwnEventOnly,
		nothingRunsAfterTheTransactionHasEnded, onlySessionStateClosesTheConnection, sessionStateDoesNotLeakBetweenHandlers,
		sessionStateOfAFailedHandlerDoesNotAffectOthers, theConnectionIsReset, transactionControlIsRefused)
}

// SET LOCAL ends with its transaction. After other session state the connection is closed.
func onlySessionStateClosesTheConnection(b *bundle) {
	statements := []string{"select 1", "set local app.tenant = 'x'", "select 1", "set app.tenant = 'x'", "select 1"}
	pids := make([]int, len(statements))
	s := subscription(handler("platform.one", func(ctx context.Context, tx events.Tx, e events.Envelope) error {
		n := payloadN(e)
		pids[n] = backendPID(ctx, tx)
		_, err := tx.Exec(ctx, statements[n])
		return err
	}))
	s.BatchSize = 1
	l := b.onOneConnection(s)
	for n := range statements {
		b.publish(event(n))
		l.awaitDelivered(1)
	}
	if pids[0] != pids[1] || pids[0] != pids[2] || pids[0] != pids[3] || pids[0] == pids[4] {
		b.Errorf("they ran in the backends %d", pids)
	}
}

// A function may change role, workspace and search_path without a statement that says so. The next handler has its own,
// even if its first statement is cancelled before it is sent.
func whatAFunctionSetsDoesNotReachTheNextHandler(b *bundle) {
	b.exec(`create or replace function platform.act_for(local boolean) returns void language plpgsql as $$ begin
			perform set_config('spectral.workspace_id', gen_random_uuid()::text, local),
				set_config('search_path', 'platform', local);
		end $$; grant execute on function platform.act_for to spectral_platform`)
	s := subscription(handler("platform.one", func(ctx context.Context, tx events.Tx, e events.Envelope) error {
		_, err := tx.Exec(ctx, "select platform.act_for($1)", payloadN(e)%2 == 0)
		return err
	}), handler("worlds.two", func(ctx context.Context, tx events.Tx, e events.Envelope) error {
		over, cancel := context.WithCancel(ctx)
		cancel()
		if _, err := tx.Exec(over, "select 1"); !errors.Is(err, context.Canceled) {
			b.Errorf("a cancelled statement: %v", err)
		}
		var has string
		err := tx.QueryRow(ctx, `select concat_ws(' ', current_user, current_setting('spectral.workspace_id'),
			current_setting('search_path'))`).Scan(&has)
		if want := strings.TrimSpace("spectral_worlds " + pgtx.WorkspaceText(e.WorkspaceID)); strings.TrimSpace(has) != want {
			b.Errorf("event %d is handled as %q, want %q", payloadN(e), has, want)
		}
		return err
	}))
	l := b.onOneConnection(s)
	for n := range 6 {
		e := event(n)
		e.WorkspaceID = uuid.NullUUID{UUID: uuid.New(), Valid: n%3 == 0}
		b.publish(e)
		l.awaitDelivered(1)
	}
}

// The dispatcher's statements stay prepared, and must survive a migration that changes a column's type.
func aChangedColumnCostsNoRetry(b *bundle) {
	l := b.onOneConnection(subscription(effectHandler("platform.one")))
	for n, sql := range []string{"select 1", "select 1", "select 1",
		"alter table core.event_handled alter column handler_name type varchar(200)",
		"alter table core.outbox alter column attempts type bigint", "select 1"} {
		b.exec(sql)
		b.publish(event(n))
		l.awaitDelivered(1)
	}
}

// It takes the dispatcher's statements. The event is tried on another connection, as after any error of its handler.
func aFunctionThatDeallocatesFailsItsOwnEventOnly(b *bundle) {
	b.ofRowLocks()
	b.exec(`create or replace function platform.deallocate() returns void language plpgsql
			as $$ begin execute 'deallocate all'; end $$;
		grant execute on function platform.deallocate to spectral_platform`)
	calls := 0
	s := subscription(handler("platform.one", func(ctx context.Context, tx events.Tx, e events.Envelope) error {
		if payloadN(e) != 2 {
			return writeEffect("platform.one")(ctx, tx, e)
		}
		if calls++; calls == 3 {
			return nil
		}
		_, err := tx.Exec(ctx, "select platform.deallocate()")
		if calls == 2 {
			err = errOnPurpose
		}
		return err
	}))
	s.BatchSize = 1
	l := b.onOneConnection(s)
	for n := range 5 {
		b.publish(event(n))
		if n != 2 {
			l.awaitDelivered(1)
			continue
		}
		for _, want := range []string{"DatabaseError: platform.one: ", "HandlerError: platform.one: "} {
			if got := l.nextSettlement(); got.Outcome != dispatch.Retried || !strings.HasPrefix(got.LastError, want) {
				b.Fatalf("%s after %d attempts: %s", got.Outcome, got.Attempts, got.LastError)
			}
		}
		l.awaitDelivered(1)
	}
}

func sessionStateOfAFailedHandlerDoesNotAffectOthers(b *bundle) {
	fails := []string{ // each is followed by an error
		"set local nosuchparameter = 1", "set local statement_timeout = 1", "set app.tenant = 'x'",
		"set transaction read only", "set local client_encoding = 'LATIN1'",
		"deallocate all", "select pg_advisory_lock(1)", "commit", "select 1; commit",
		"do $$ begin perform set_config('statement_timeout', '1', false); end $$",
		"create temp table left_behind (n int)", "set constraints all immediate", "set local role spectral_worlds",
		"discard temp",
	}
	s := subscription(handlerOnce("platform.one", func(ctx context.Context, tx events.Tx, e events.Envelope) error {
		_, err := tx.Exec(ctx, fails[payloadN(e)])
		return events.Terminal(cmp.Or(err, errOnPurpose)) // so many others would open its breaker
	}), once(effectHandler("worlds.two")), once(effectHandler("platform.three")))
	s.BatchSize = 1
	l := b.onOneConnection(s)
	for n, sql := range fails {
		b.publish(event(n))
		if got := l.nextSettlement(); got.Outcome != dispatch.Failed || got.Attempts != 1 ||
			strings.Contains(got.LastError, "two") || strings.Contains(got.LastError, "three") {
			b.Errorf("%s: %s after %d attempts: %s", sql, got.Outcome, got.Attempts, got.LastError)
		}
	}
	b.wantEffects(map[string]int{"worlds.two": len(fails), "platform.three": len(fails)})
}

// Transaction control, or several statements in one text, fail their own event only, in a batch and among
// completions.
func transactionControlIsRefused(b *bundle) {
	const several = "select 1; commit; begin"
	statements := []string{" ;commit", "/* ; */ -- \n commit and chain", several}
	ends := func(name string) func(context.Context, events.Tx, events.Envelope) error {
		return func(ctx context.Context, tx events.Tx, e events.Envelope) error {
			if err := writeEffect(name)(ctx, tx, e); err != nil || payloadN(e) >= len(statements) {
				return err
			}
			sql := statements[payloadN(e)]
			_, err := tx.Exec(ctx, sql)
			if err == nil || errors.Is(err, pgtx.ErrTxControl) == (sql == several) ||
				sql == several && !strings.Contains(err.Error(), "multiple commands") {
				b.Errorf("%q returns %v", sql, err)
			}
			return err
		}
	}
	leased := once(executor(executor2, func(_ context.Context, e events.Envelope) (events.Completion, error) {
		return func(ctx context.Context, tx events.Tx) error { return ends(executor2)(ctx, tx, e) }, nil
	}))
	for _, s := range []events.Subscription{subscription(handlerOnce("platform.one", ends("platform.one"))),
		leasedSubscription(time.Minute, leased)} {
		b.publishMany(10)
		l := b.startWorker(noPoll, s)
		l.awaitSettled(7, 3)
		l.stop()
	}
	b.wantEffects(map[string]int{"platform.one": 7, executor2: 7})
}

// rewrittenToRollback makes the driver send a ROLLBACK instead of the statement that was checked.
type rewrittenToRollback struct{}

func (rewrittenToRollback) RewriteQuery(context.Context, *pgx.Conn, string, []any) (string, []any, error) {
	return "rollback", nil, nil
}

// Statements after the end of the transaction would each be committed at once.
func nothingRunsAfterTheTransactionHasEnded(b *bundle) {
	after := func(name string) func(context.Context, events.Tx, events.Envelope) error {
		return func(ctx context.Context, tx events.Tx, e events.Envelope) error {
			if payloadN(e) == 3 {
				_, _ = tx.Exec(ctx, "select 1", rewrittenToRollback{})
			}
			return writeEffect(name)(ctx, tx, e)
		}
	}
	all := b.publishMany(10)
	l := b.startWorker(noPoll, subscription(handlerOnce("platform.one", after("platform.one")),
		effectHandler("worlds.two")))
	for _, s := range l.awaitSettled(9, 1) {
		expected := s.Envelope.EventID == all[3].EventID && strings.Contains(s.LastError, "ended the transaction")
		if s.Outcome == dispatch.Failed && !expected {
			b.Errorf("event %d: %s", payloadN(*s.Envelope), s.LastError)
		}
	}
	l.stop()
	err := b.uow.Do(b.ctx, events.Platform, uuid.NullUUID{}, func(tx events.Tx, _ events.PublisherFor) error {
		_ = after("platform.unit")(b.ctx, tx, all[3])
		return nil
	})
	if err == nil || !strings.Contains(err.Error(), "ended the transaction") {
		b.Errorf("a unit of work: %v", err)
	}
	b.wantEffects(map[string]int{"platform.one": 9, "worlds.two": 10})
}

// awaitSettled waits until the given numbers of events are delivered and failed.
func (l *testWorker) awaitSettled(delivered, failed int) (all []dispatch.Settlement) {
	l.Helper()
	for delivered+failed > 0 {
		s := l.nextSettlement()
		all = append(all, s)
		switch s.Outcome {
		case dispatch.Delivered:
			delivered--
		case dispatch.Failed:
			failed--
		case dispatch.Retried, dispatch.Released, dispatch.Quarantined:
		}
		if delivered < 0 || failed < 0 {
			l.Fatalf("event %d is %s: %s", payloadN(*s.Envelope), s.Outcome, s.LastError)
		}
	}
	return all
}

func aRowIsSettledUnderTheWorkersSettings(b *bundle) {
	b.exec(`create function public.linger() returns trigger language plpgsql
			as 'begin perform pg_catalog.pg_sleep(0.02); return new; end';
		create trigger linger before update on core.outbox for each row execute function public.linger()`)
	refusing := handler("worlds.two", func(context.Context, events.Tx, events.Envelope) error {
		return events.Terminal(errors.New("die Größe"))
	})
	b.publishMany(1)
	l := b.startWorker(noPoll, subscription(refusing,
		handler("platform.one", func(ctx context.Context, tx events.Tx, _ events.Envelope) error {
			_, err := tx.Exec(ctx, `do $$ begin perform set_config('statement_timeout', '1', true),
			set_config('client_encoding', 'LATIN1', true); end $$`)
			return err
		})))
	s := l.nextSettlement()
	if r := b.wantRow(s.Envelope.EventID, "failed", 1); r.LastError != "TerminalError: worlds.two: die Größe" {
		b.Errorf("last_error %q", r.LastError)
	}
}

// onOneConnection starts a worker with a pool of one connection, so that each event meets the session state of the
// one before.
func (b *bundle) onOneConnection(s events.Subscription) *testWorker {
	b.Helper()
	b.poolURL += "&pool_max_conns=1"
	return b.startWorker(noPoll, s)
}

// wantLogin checks that the pooled connection has its login's role and no workspace.
func (l *testWorker) wantLogin(after string) {
	l.Helper()
	ctx, cancel := context.WithTimeout(l.ctx, testTimeout)
	defer cancel()
	var is, login, role, workspace string
	must(l.T, l.workers.QueryRow(ctx, `select current_user, session_user, current_setting('role'),
		coalesce(current_setting('spectral.workspace_id', true), '')`).Scan(&is, &login, &role, &workspace))
	if is != login || role != "none" || workspace != "" {
		l.Errorf("after %s the connection of %s has the user %s, role %s and workspace %q", after, login, is, role, workspace)
	}
}

func payloadN(e events.Envelope) int {
	p, err := events.Decode[happened](e)
	if err != nil {
		return -1
	}
	return p.N
}

func eachEventSeesItsWorkspaceOnly(b *bundle) {
	first, second := uuid.New(), uuid.New()
	a, none, c := uuid.NullUUID{UUID: first, Valid: true}, uuid.NullUUID{}, uuid.NullUUID{UUID: second, Valid: true}
	order := []uuid.NullUUID{a, none, c, none, a, c}
	want := map[uuid.UUID]string{first: "1,2", uuid.Nil: "", second: "3,4,5"}
	b.exec("insert into platform.owned values ($1, 1), ($1, 2), ($2, 3), ($2, 4), ($2, 5), (null, 6)", first, second)
	for name, c := range map[string]struct{ batch, failures int }{"single": {1, 1}, "batch": {10, 2}} {
		b.run(name, func(b *bundle) {
			var published []events.Envelope
			for n, workspace := range order {
				e := event(n)
				e.WorkspaceID = workspace
				published = append(published, e)
			}
			pids := make(map[int]bool)
			tries := make(map[uuid.UUID]int)
			read := func(ctx context.Context, tx events.Tx, e events.Envelope) error {
				var pid int
				var saw string
				const owned = "select pg_backend_pid(), coalesce(string_agg(n::text, ',' order by n), '') from platform.owned"
				if err := tx.QueryRow(ctx, owned).Scan(&pid, &saw); err != nil {
					return err
				}
				pids[pid] = true
				if saw != want[e.WorkspaceID.UUID] {
					b.Errorf("event %d of workspace %s saw %q", payloadN(e), e.WorkspaceID.UUID, saw)
				}
				if tries[e.EventID]++; tries[e.EventID] <= c.failures && payloadN(e)%2 == 0 {
					return errOnPurpose
				}
				return nil
			}
			b.publish(published...)
			s := subscription(handler("platform.read", read), effectHandler("worlds.two"))
			s.BatchSize = c.batch
			l := b.onOneConnection(s)
			l.awaitSettled(len(published), 0)
			l.wantLogin("all events")
			l.stop()
			if len(pids) != 1 {
				b.Errorf("%d connections were used, want 1", len(pids))
			}
		})
	}
}

// The connection has its login's role after each outcome. The names of roles are quoted.
func theConnectionIsReset(b *bundle) {
	odd := fmt.Sprintf(`Odd "login"; reset role --%s`, uuid.NewString()[:8])
	quoted := `"` + strings.ReplaceAll(odd, `"`, `""`) + `"`
	b.exec("create role " + quoted + " login password 'test' in role spectral_worker")
	b.Cleanup(func() { b.exec("drop role " + quoted) })
	u, err := url.Parse(b.url)
	must(b.T, err)
	u.User = url.UserPassword(odd, "test")
	b.directURL, b.poolURL = u.String(), u.String()
	does := []func(context.Context, events.Tx) error{
		func(context.Context, events.Tx) error { return nil },
		func(context.Context, events.Tx) error { return events.Terminal(errOnPurpose) },
		func(context.Context, events.Tx) error { panic(errOnPurpose) },
		func(ctx context.Context, tx events.Tx) error { _, _ = tx.Exec(ctx, "select 1/0"); return nil },
		func(ctx context.Context, tx events.Tx) error {
			_, err := tx.Exec(ctx, "select 1", rewrittenToRollback{})
			return err
		},
	}
	h := handlerOnce("platform.one", func(ctx context.Context, tx events.Tx, e events.Envelope) error {
		got := one[string](b, "select usename::text from pg_stat_activity where pid = $1", backendPID(ctx, tx))
		if got != odd {
			return events.Terminal(fmt.Errorf("the login is %s", got))
		}
		return does[payloadN(e)](ctx, tx)
	})
	l := b.onOneConnection(subscription(h))
	for n := range does {
		e := event(n)
		e.WorkspaceID = uuid.NullUUID{UUID: uuid.New(), Valid: true}
		b.publish(e)
		if s := l.nextSettlement(); s.Outcome == dispatch.Retried {
			l.nextSettlement()
		} else if n == 0 && s.Outcome != dispatch.Delivered {
			b.Errorf("%s: %s", s.Outcome, s.LastError)
		}
		l.wantLogin(fmt.Sprintf("event %d", n))
	}
}

func backendPID(ctx context.Context, tx events.Tx) (pid int) {
	_ = tx.QueryRow(ctx, "select pg_backend_pid()").Scan(&pid)
	return pid
}
