package integration_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"spectral/internal/core/events"
	"spectral/internal/core/events/infrastructure/postgres/dispatch"
	"spectral/internal/core/events/infrastructure/postgres/pgtx"
)

// whatIsLeft is what the handlers of this file look for. Of statement_timeout, none is the row-locked mode's own, 2 s
// and a quarter of the lease are the completer's.
const whatIsLeft = `select concat_ws(' ', nullif(current_setting('app.tenant', true), ''), nullif(current_setting('app.user', true), ''),
	current_setting('TimeZone'), current_setting('work_mem'), current_setting('transaction_read_only'),
	case when current_setting('statement_timeout') not in ('0', '2s', '15s') then current_setting('statement_timeout') end,
	current_setting('row_security'), current_setting('client_encoding'), (select count(*) from pg_locks where pid = pg_backend_pid() and locktype = 'advisory'),
	(select count(*) from pg_cursors where name = 'c'), to_regclass('pg_temp.left_behind'), (select count(*) from pg_prepared_statements where name = 'p'))`

// sessionStatements are session state, written in the ways that handlers may.
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

// lookingAround is a handler body that notes what is left by others, before its effect.
func lookingAround(name string) func(context.Context, events.Tx, events.Envelope) error {
	return func(ctx context.Context, tx events.Tx, e events.Envelope) error {
		if _, err := tx.Exec(ctx, "insert into public.saw select $1, ("+whatIsLeft+")", payloadN(e)); err != nil {
			return err
		}
		return effect(name)(ctx, tx, e)
	}
}

// However a handler sets something for its transaction or session, no other handler or event finds it, and none fails. A batch
// with session state is rolled back and its rows run alone.
func sessionStateDoesNotLeakBetweenHandlers(b *bundle) {
	leave := func(ctx context.Context, tx events.Tx, e events.Envelope) error {
		if err := lookingAround("platform.one")(ctx, tx, e); err != nil {
			return err
		}
		_, err := tx.Exec(ctx, sessionStatements[payloadN(e)])
		return err
	}
	for name, s := range map[string]func(b *bundle) events.Subscription{
		"in a batch": func(*bundle) events.Subscription {
			s := subscription(handler("platform.one", leave), handler("worlds.two", lookingAround("worlds.two")), handler("platform.three", lookingAround("platform.three")))
			s.BatchSize, s.Concurrency = len(sessionStatements), 1
			return s
		},
		"leased": func(b *bundle) events.Subscription {
			g := b.newGate()
			done := func(name string, do func(context.Context, events.Tx, events.Envelope) error) events.Registration {
				return executor(name, func(ctx context.Context, e events.Envelope) (events.Completion, error) {
					if g.entered <- struct{}{}; len(g.entered) == len(sessionStatements) {
						g.letOn() // so that they are completed together
					}
					select {
					case <-g.open:
					case <-ctx.Done():
						return nil, ctx.Err()
					}
					return func(ctx context.Context, tx events.Tx) error { return do(ctx, tx, e) }, nil
				})
			}
			s := leasing(time.Minute, done("platform.one", leave), done("worlds.two", lookingAround("worlds.two")), done("platform.three", lookingAround("platform.three")))
			s.Concurrency = len(sessionStatements)
			return s
		},
	} {
		b.run(name, func(b *bundle) {
			b.exec("truncate public.saw, platform.effects, worlds.effects")
			b.exec("insert into public.saw values (-1, (" + whatIsLeft + "))")
			b.poolURL += "&pool_max_conns=6"
			consumer := s(b)
			for _, r := range append([]*events.Registration{&consumer.Primary}, pointers(consumer.CoHandlers)...) {
				r.Retry = once
			}
			all := b.publishMany(len(sessionStatements))
			l := b.listen(noPoll, consumer)
			for range all {
				if s := l.next(); s.Outcome != dispatch.Delivered || s.Attempts != 1 {
					b.Errorf("%s: %s after %d attempts: %s", sessionStatements[payloadN(s.Envelope)], s.Outcome, s.Attempts, s.LastError)
				}
			}
			n := len(sessionStatements)
			b.wantEffects(map[string]int{"platform.one": n, "worlds.two": n, "platform.three": n})
			found := one[[]string](b, `select coalesce(array_agg(distinct what || ' (event ' || n || ')'), '{}') from public.saw
				where what <> (select what from public.saw where n = -1)`)
			if len(found) > 0 {
				b.Errorf("they found %s, not %s", strings.Join(found, "; "), one[string](b, "select what from public.saw where n = -1"))
			}
		})
	}
}

func pointers(registrations []events.Registration) (all []*events.Registration) {
	for i := range registrations {
		all = append(all, &registrations[i])
	}
	return all
}

// TestSessionState runs cases that share a database.
func TestSessionState(t *testing.T) {
	setup(t).cases(map[string]func(*bundle){
		"session state does not leak between handlers": sessionStateDoesNotLeakBetweenHandlers,
		"a row is settled under the workers settings":  aRowIsSettledUnderTheWorkersSettings,
		"the connection is its logins again":           theConnectionIsItsLoginsAgain,
		"each event sees its workspace only":           eachEventSeesItsWorkspaceOnly,
		"only session state closes the connection":     onlySessionStateClosesTheConnection,
		"a failures session state harms no other":      aFailuresSessionStateHarmsNoOther,
		"nothing runs after a hidden end":              nothingRunsAfterAHiddenEnd,
		"a transactions end is refused":                aTransactionsEndIsRefused,
	})
}

// SET LOCAL ends with its transaction; after other session state the connection is closed.
func onlySessionStateClosesTheConnection(b *bundle) {
	statements := []string{"select 1", "set local app.tenant = 'x'", "select 1", "set app.tenant = 'x'", "select 1"}
	pids := make([]int, len(statements))
	s := subscription(handler("platform.one", func(ctx context.Context, tx events.Tx, e events.Envelope) error {
		n := payloadN(e)
		pids[n] = backend(ctx, tx)
		_, err := tx.Exec(ctx, statements[n])
		return err
	}))
	s.BatchSize = 1
	l := b.onOneConnection(s)
	for n := range statements {
		b.publish(event(n))
		l.delivered(1)
	}
	if pids[0] != pids[1] || pids[0] != pids[2] || pids[0] != pids[3] || pids[0] == pids[4] {
		b.Errorf("they ran in the backends %d", pids)
	}
}

// A handler that fails after leaving session state does not make the others of its event fail.
func aFailuresSessionStateHarmsNoOther(b *bundle) {
	fails := []string{ // each is followed by an error
		"set local nosuchparameter = 1", "set local statement_timeout = 1", "set app.tenant = 'x'",
		"set transaction read only", "set local client_encoding = 'LATIN1'",
		"deallocate all", "select pg_advisory_lock(1)", "commit", "select 1; commit",
		"do $$ begin perform set_config('statement_timeout', '1', false); end $$",
		"create temp table left_behind (n int)", "set constraints all immediate", "set local role spectral_worlds", "discard temp",
	}
	h := handler("platform.one", func(ctx context.Context, tx events.Tx, e events.Envelope) error {
		if _, err := tx.Exec(ctx, fails[payloadN(e)]); err != nil {
			return err
		}
		return errRefusing
	})
	h.Retry = once
	two, three := leaving("worlds.two"), leaving("platform.three")
	two.Retry, three.Retry = once, once
	s := subscription(h, two, three)
	s.BatchSize = 1
	l := b.onOneConnection(s)
	for n, sql := range fails {
		b.publish(event(n))
		if got := l.next(); got.Outcome != dispatch.Failed || got.Attempts != 1 || strings.Contains(got.LastError, "two") || strings.Contains(got.LastError, "three") {
			b.Errorf("%s: %s after %d attempts: %s", sql, got.Outcome, got.Attempts, got.LastError)
		}
	}
	b.wantEffects(map[string]int{"worlds.two": len(fails), "platform.three": len(fails)})
}

// A statement that ends the transaction, or two statements in one text, are refused and cost no other event anything:
// neither in a batch nor among completions.
func aTransactionsEndIsRefused(b *bundle) {
	const hidden = "select 1; commit; begin"
	statements := []string{" ;commit", "/* ; */ -- \n commit and chain", hidden}
	ends := func(name string) func(context.Context, events.Tx, events.Envelope) error {
		return func(ctx context.Context, tx events.Tx, e events.Envelope) error {
			if err := effect(name)(ctx, tx, e); err != nil || payloadN(e) >= len(statements) {
				return err
			}
			sql := statements[payloadN(e)]
			_, err := tx.Exec(ctx, sql)
			if err == nil || errors.Is(err, pgtx.ErrTxControl) == (sql == hidden) || sql == hidden && !strings.Contains(err.Error(), "multiple commands") {
				b.Errorf("%q answers %v", sql, err)
			}
			return err
		}
	}
	h := handler("platform.one", ends("platform.one"))
	h.Retry = once
	s := subscription(h)
	s.Concurrency = 1
	b.publishMany(10)
	l := b.listen(noPoll, s)
	l.settled(7, 3)
	l.stop()
	leased := executor(worker2, func(_ context.Context, e events.Envelope) (events.Completion, error) {
		return func(ctx context.Context, tx events.Tx) error { return ends(worker2)(ctx, tx, e) }, nil
	})
	leased.Retry = once
	b.publishMany(10)
	b.listen(noPoll, leasing(time.Minute, leased)).settled(7, 3)
	b.wantEffects(map[string]int{"platform.one": 7, worker2: 7})
}

// rollsBack is a statement that ends the transaction out of sight: the driver rewrites it after it was read.
type rollsBack struct{}

func (rollsBack) RewriteQuery(context.Context, *pgx.Conn, string, []any) (string, []any, error) {
	return "rollback", nil, nil
}

// Once a transaction has ended after all, nothing more of its handler is executed: it would be committed by itself.
func nothingRunsAfterAHiddenEnd(b *bundle) {
	after := func(name string) func(context.Context, events.Tx, events.Envelope) error {
		return func(ctx context.Context, tx events.Tx, e events.Envelope) error {
			if payloadN(e) == 3 {
				_, _ = tx.Exec(ctx, "select 1", rollsBack{})
			}
			return effect(name)(ctx, tx, e)
		}
	}
	h := handler("platform.one", after("platform.one"))
	h.Retry = once
	s := subscription(h, leaving("worlds.two"))
	s.Concurrency = 1
	all := b.publishMany(10)
	l := b.listen(noPoll, s)
	for _, s := range l.settled(9, 1) {
		if s.Outcome == dispatch.Failed && (s.Envelope.EventID != all[3].EventID || !strings.Contains(s.LastError, "ended the transaction")) {
			b.Errorf("event %d: %s", payloadN(s.Envelope), s.LastError)
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

// settled waits until so many events are delivered and so many failed.
func (l *listening) settled(delivered, failed int) (all []dispatch.Settlement) {
	l.Helper()
	for delivered+failed > 0 {
		s := l.next()
		all = append(all, s)
		switch s.Outcome {
		case dispatch.Delivered:
			delivered--
		case dispatch.Failed:
			failed--
		case dispatch.Retried, dispatch.Released:
		}
		if delivered < 0 || failed < 0 {
			l.Fatalf("event %d is %s: %s", payloadN(s.Envelope), s.Outcome, s.LastError)
		}
	}
	return all
}

// What becomes of a row is written under the worker's own settings, whatever its last handler has left.
func aRowIsSettledUnderTheWorkersSettings(b *bundle) {
	b.exec(`create function public.linger() returns trigger language plpgsql as 'begin perform pg_catalog.pg_sleep(0.02); return new; end';
		create trigger linger before update on core.outbox for each row execute function public.linger()`)
	refusing := handler("worlds.two", func(context.Context, events.Tx, events.Envelope) error {
		return events.Terminal(errors.New("die Größe"))
	})
	b.publishMany(1)
	l := b.listen(noPoll, subscription(refusing, handler("platform.one", func(ctx context.Context, tx events.Tx, _ events.Envelope) error {
		_, err := tx.Exec(ctx, "do $$ begin perform set_config('statement_timeout', '1', true), set_config('client_encoding', 'LATIN1', true); end $$")
		return err
	})))
	s := l.next()
	if r := b.wantRow(s.Envelope.EventID, "failed", 1); r.LastError != "TerminalError: worlds.two: die Größe" {
		b.Errorf("last_error %q", r.LastError)
	}
}
