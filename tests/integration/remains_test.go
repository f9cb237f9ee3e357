package integration_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"spectral/internal/core/events"
	"spectral/internal/core/events/infrastructure/postgres"
)

// whatIsLeft is what the handlers of this file look for.
const whatIsLeft = `select concat_ws(' ', nullif(current_setting('app.tenant', true), ''), nullif(current_setting('app.user', true), ''),
	current_setting('TimeZone'), current_setting('work_mem'), current_setting('transaction_read_only'), current_setting('statement_timeout'),
	current_setting('row_security'), current_setting('client_encoding'), (select count(*) from pg_locks where pid = pg_backend_pid() and locktype = 'advisory'),
	(select count(*) from pg_cursors where name = 'c'), to_regclass('pg_temp.left_behind'), (select count(*) from pg_prepared_statements where name = 'p'))`

// whatHandlersLeave is what the others must neither meet nor suffer from.
var whatHandlersLeave = []string{
	// names that SQL cannot say
	"select set_config('app.user', 'x', true)", "select set_config('app.order', 'x', true), set_config('app.user', 'x', true)", `set local "app"."user" = 'x'`, "select set_config('App.Current_User', 'x', true)",
	// what the server does not take back, since some version or never
	"set local seed = 0.5", "set local transaction_isolation = 'read committed'", "set local transaction_read_only = on", "set transaction read only",
	`savepoint s; set local app."user" = 'x'`, "set constraints all immediate",
	// written as one would not
	"select SET_CONFIG('app.tenant', 'x', true)", "select Set_Config('app.tenant', 'x', false)", "select PG_ADVISORY_LOCK(42)", "select set_config(E'app.tenant', 'x', true)",
	"select set_config('app.user', '1', true), set_config('app.tenant', 'x', false)", "select set_config('app.tenant', 'x', false), coalesce(false, true)",
	"set/**/local app.tenant = 'x'", "SET SESSION app.tenant = 'x'", "set--\napp.tenant to 'x'",
	// behind something
	"select 1; set app.tenant = 'x'", "select ';'; set local app.tenant = 'x'", "update platform.effects set n = n where set_config('app.tenant', 'x', true) is null",
	"do $$ begin perform set_config('app.tenant', 'x', false); end $$", "do $$ begin set local statement_timeout = 1; end $$", "do 'begin execute ''set local app.tenant = 1''; end'",
	"set local client_encoding = 'LATIN1'; set local row_security = off", "set local names 'LATIN1'",
	"update pg_catalog.pg_settings set setting = '77MB' where name = 'work_mem'",
	// no settings at all
	"do $$ declare c refcursor = 'c'; begin open c for select 1; end $$",
	"declare c cursor for select 1", "declare c cursor with hold for select 1", "select 1 as n into temp left_behind", "create temp table left_behind (n int) on commit drop", "prepare p as select 1",
}

// lookingAround is a handler body that notes what is left by others, before its effect.
func lookingAround(name string) func(context.Context, events.Tx, events.Envelope) error {
	return func(ctx context.Context, tx events.Tx, e events.Envelope) error {
		if _, err := tx.Exec(ctx, "insert into public.saw select $1, ("+whatIsLeft+")", payloadN(e)); err != nil {
			return err
		}
		if _, err := tx.Exec(ctx, "declare c cursor for select 1; close c"); err != nil {
			return err
		}
		return effect(name)(ctx, tx, e)
	}
}

// However a handler says it, and whether it can be taken back or not: what it sets for its transaction or session meets nobody else,
// and is a failure of nobody.
func TestWhatHandlersLeaveIsNobodysFailure(t *testing.T) {
	leave := func(ctx context.Context, tx events.Tx, e events.Envelope) error {
		if err := lookingAround("platform.one")(ctx, tx, e); err != nil {
			return err
		}
		_, err := tx.Exec(ctx, whatHandlersLeave[payloadN(e)])
		return err
	}
	for name, s := range map[string]func(t *testing.T) events.Subscription{
		"alone": func(*testing.T) events.Subscription {
			s := subscription(handler("platform.one", leave), handler("worlds.two", lookingAround("worlds.two")), handler("platform.three", lookingAround("platform.three")))
			s.BatchSize = 1
			return s
		},
		"in a batch": func(*testing.T) events.Subscription {
			s := subscription(handler("platform.one", leave), handler("worlds.two", lookingAround("worlds.two")), handler("platform.three", lookingAround("platform.three")))
			s.BatchSize, s.Concurrency = len(whatHandlersLeave), 1
			return s
		},
		"leased": func(t *testing.T) events.Subscription {
			t.Helper()
			g := newGate()
			t.Cleanup(g.letOn)
			done := func(name string, do func(context.Context, events.Tx, events.Envelope) error) events.Registration {
				return executor(name, func(ctx context.Context, e events.Envelope) (events.Completion, error) {
					if g.entered <- struct{}{}; len(g.entered) == len(whatHandlersLeave) {
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
			s.Concurrency = len(whatHandlersLeave)
			return s
		},
	} {
		t.Run(name, func(t *testing.T) {
			b := setup(t)
			b.exec(`create table public.saw (n int, what text); grant all on public.saw to public; grant usage on schema public to public;
				insert into public.saw values (-1, (` + whatIsLeft + `))`)
			b.poolURL += "&pool_max_conns=6"
			consumer := s(t)
			for _, r := range append([]*events.Registration{&consumer.Primary}, pointers(consumer.CoHandlers)...) {
				r.Retry = once
			}
			all := b.publishMany(len(whatHandlersLeave))
			l := b.listen(never, consumer)
			for range all {
				if s := l.next(); s.Outcome != postgres.Delivered || s.Attempts != 1 {
					t.Errorf("%s: %s after %d attempts: %s", whatHandlersLeave[payloadN(s.Envelope)], s.Outcome, s.Attempts, s.LastError)
				}
			}
			n := len(whatHandlersLeave)
			b.wantEffects(map[string]int{"platform.one": n, "worlds.two": n, "platform.three": n})
			found := one[[]string](b, `select coalesce(array_agg(distinct what || ' (event ' || n || ')'), '{}') from public.saw
				where what <> (select what from public.saw where n = -1)`)
			if len(found) > 0 {
				t.Errorf("they found %s, not %s", strings.Join(found, "; "), one[string](b, "select what from public.saw where n = -1"))
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

// Whatever a handler has done before it fails, those beside it do not fail with it.
func TestAFailureTakesNoneAlong(t *testing.T) {
	b := setup(t)
	fails := []string{ // each is followed by an error
		"select set_config('app.user', 'x', true)", "set local seed = 0.5", "set local session_replication_role = replica", "set local nosuchparameter = 1",
		"set local statement_timeout = 1", "set app.tenant = 'x'", "set transaction read only", "set local client_encoding = 'LATIN1'", "declare c cursor for select 1",
		"deallocate all", "select pg_advisory_lock(1)", "select 1; commit", "select 1; rollback; begin", "do $$ begin perform set_config('statement_timeout', '1', false); end $$",
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
		e := event(n)
		b.publish(e)
		if got := l.next(); got.Outcome != postgres.Failed || got.Attempts != 1 || strings.Contains(got.LastError, "two") || strings.Contains(got.LastError, "three") {
			t.Errorf("%s: %s after %d attempts: %s", sql, got.Outcome, got.Attempts, got.LastError)
		}
	}
	b.wantEffects(map[string]int{"worlds.two": len(fails), "platform.three": len(fails)})
}

// A refused setting that its handler has got over is no failure, of nobody, and nothing is run again and again for it.
func TestAProbedSettingIsNoFailure(t *testing.T) {
	for name, batch := range map[string]int{"alone": 1, "in a batch": 10} {
		t.Run(name, func(t *testing.T) {
			b := setup(t)
			probing := handler("platform.one", func(ctx context.Context, tx events.Tx, e events.Envelope) error {
				for _, sql := range []string{"savepoint mine", "set local nosuchparameter = 1", "rollback to savepoint mine", `set local app."user" = 'x'`} {
					if _, err := tx.Exec(ctx, sql); (err != nil) != strings.Contains(sql, "nosuch") {
						return fmt.Errorf("%s: %w", sql, err)
					}
				}
				return effect("platform.one")(ctx, tx, e)
			})
			probing.Retry = once
			two := handler("worlds.two", func(ctx context.Context, tx events.Tx, e events.Envelope) error {
				var user string
				if err := tx.QueryRow(ctx, "select coalesce(current_setting('app.user', true), '')").Scan(&user); err != nil || user != "" {
					return errors.Join(err, fmt.Errorf("it found %q", user))
				}
				return effect("worlds.two")(ctx, tx, e)
			})
			two.Retry = once
			s := subscription(probing, two)
			s.BatchSize, s.Concurrency = batch, 1
			b.publishMany(5)
			l := b.listen(never, s)
			l.delivered(5)
			b.wantEffects(map[string]int{"platform.one": 5, "worlds.two": 5})
		})
	}
}

// A statement that ends the transaction, wherever it stands, is refused, and costs nobody else anything: not in a batch, and not
// among completions.
func TestAHiddenEndIsRefused(t *testing.T) {
	for _, sql := range []string{"select 1; rollback", "select 1; commit", "select 1; rollback; begin", "select ';' /* ; */; -- \n commit and chain",
		"select E'a' -- it's\n'x\\''; rollback; begin; select '1'"} {
		t.Run(sql, func(t *testing.T) {
			hidden := func(name string, refused *int) func(context.Context, events.Tx, events.Envelope) error {
				return func(ctx context.Context, tx events.Tx, e events.Envelope) error {
					if payloadN(e) == 3 {
						if _, err := tx.Exec(ctx, sql); errors.Is(err, postgres.ErrTxControl) {
							*refused++
						}
					}
					return effect(name)(ctx, tx, e)
				}
			}
			b := setup(t)
			var batched, completed int
			s := subscription(handler("platform.one", hidden("platform.one", &batched)))
			s.Concurrency = 1
			b.publishMany(10)
			l := b.listen(never, s)
			l.delivered(10)
			l.stop()
			b.publishMany(10)
			leased := leasing(time.Minute, executor(worker2, func(_ context.Context, e events.Envelope) (events.Completion, error) {
				return func(ctx context.Context, tx events.Tx) error { return hidden(worker2, &completed)(ctx, tx, e) }, nil
			}))
			l = b.listen(never, leased)
			l.delivered(10)
			b.wantEffects(map[string]int{"platform.one": 10, worker2: 10})
			if batched != 1 || completed != 1 {
				t.Errorf("it was refused %d and %d times", batched, completed)
			}
		})
	}
}

// endsOutOfSight is a ROLLBACK that is none to whoever does not know the settings of the session.
const endsOutOfSight = `select 'a\''; rollback --'`

// Once a transaction is ended after all, nothing of its handler's is executed any more: it would be committed by itself.
func TestNothingRunsAfterAHiddenEnd(t *testing.T) {
	after := func(name string) func(context.Context, events.Tx, events.Envelope) error {
		return func(ctx context.Context, tx events.Tx, e events.Envelope) error {
			if payloadN(e) == 3 {
				if _, err := tx.Exec(ctx, "set local standard_conforming_strings = off"); err != nil {
					return err
				}
				_, _ = tx.Exec(ctx, endsOutOfSight)
			}
			return effect(name)(ctx, tx, e)
		}
	}
	b := setup(t)
	h := handler("platform.one", after("platform.one"))
	h.Retry = once
	s := subscription(h, leaving("worlds.two"))
	s.Concurrency = 1
	all := b.publishMany(10)
	l := b.listen(never, s)
	failed := 0
	for range all {
		got := l.next()
		for got.Outcome == postgres.Retried { // the other handler's work was undone with it
			got = l.next()
		}
		if got.Outcome != postgres.Failed {
			continue
		}
		if failed++; got.Envelope.EventID != all[3].EventID || !strings.Contains(got.LastError, "ended the transaction") {
			t.Errorf("event %d: %s", payloadN(got.Envelope), got.LastError)
		}
	}
	if failed != 1 {
		t.Errorf("%d failed", failed)
	}
	b.wantEffects(map[string]int{"platform.one": 9, "worlds.two": 10})
	l.stop()
	err := b.uow.Do(b.ctx, events.Platform, uuid.NullUUID{}, func(tx events.Tx, _ events.PublisherFor) error {
		_ = after("platform.unit")(b.ctx, tx, all[3])
		return nil
	})
	if err == nil || !strings.Contains(err.Error(), "ended the transaction") {
		t.Errorf("a unit of work: %v", err)
	}
	b.wantEffects(map[string]int{"platform.one": 9, "worlds.two": 10})
}

// What becomes of a row is written under the worker's own settings, whatever its last handler has left.
func TestARowIsSettledUnderTheWorkersSettings(t *testing.T) {
	b := setup(t)
	b.exec(`create function public.linger() returns trigger language plpgsql as 'begin perform pg_catalog.pg_sleep(0.02); return new; end';
		create trigger linger before update on core.outbox for each row execute function public.linger()`)
	refusing := handler("worlds.two", func(context.Context, events.Tx, events.Envelope) error {
		return events.Terminal(errors.New("die Größe"))
	})
	b.publishMany(1)
	l := b.listen(never, subscription(refusing, handler("platform.one", func(ctx context.Context, tx events.Tx, _ events.Envelope) error {
		_, err := tx.Exec(ctx, "do $$ begin perform set_config('statement_timeout', '1', true), set_config('client_encoding', 'LATIN1', true); end $$")
		return err
	})))
	s := l.next()
	if r := b.wantRow(s.Envelope.EventID, "failed", 1); r.LastError != "TerminalError: worlds.two: die Größe" {
		t.Errorf("last_error %q", r.LastError)
	}
}
