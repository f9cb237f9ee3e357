package database_test

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"

	"spectral/tests/pgtest"
)

// Nobody but those who do the work can keep others from reaping, sweeping and measuring: the advisory locks by which that was once
// decided are anybody's to hold, and the rows by which it is are nobody's.
func TestNobodyElseCanLead(t *testing.T) {
	t.Parallel()
	d := setup(t)
	stranger := d.login(t)
	exec(t, stranger, `select pg_advisory_lock(5583017264419803127), pg_advisory_lock(2958103347719062245), pg_advisory_lock(6650971338417249007),
		pg_advisory_lock(7021385519400276351), pg_advisory_lock(5318420967713304281)`)
	for _, role := range []string{"spectral_worker", "spectral_operator", "spectral_publisher", "spectral_retention", "spectral_platform"} {
		login := d.login(t, role)
		exec(t, login, "set role "+role)
		for _, sql := range []string{"select from core.leads for update", "select from core.leads for key share", "do 'begin lock table core.leads in access share mode; end'", "select core.lead('reap')", "select core.turn('register')"} {
			_, err := login.Exec(deadline(t), sql)
			if pg, ok := errors.AsType[*pgconn.PgError](err); !ok || pg.Code != "42501" {
				t.Errorf("%s: %s: %v", role, sql, err)
			}
		}
	}
	worker := d.login(t, "spectral_worker")
	exec(t, worker, "set role spectral_worker")
	d.rows(t, 1, "status = 'in_flight', claim_token = gen_random_uuid(), claimed_at = now() - interval '1 hour'")
	if n := value[int](t, worker, "select count(*) from core.outbox_reap() where reaped"); n != 1 {
		t.Errorf("%d leases were reaped", n)
	}
	if n := value[*int](t, worker, "select core.ack_measure()"); n == nil {
		t.Error("nobody measures")
	}
	if difference := value[*string](t, worker, "select core.worker_register(gen_random_uuid(), 1, 'w', '{}')"); difference != nil {
		t.Errorf("no worker starts: %s", *difference)
	}
}

// One leads at a time, in each duty, until its transaction ends; a duty whose row is gone is taken up again, and asking when nothing is to be measured costs no
// transaction id.
func TestOneLeadsAtATime(t *testing.T) {
	t.Parallel()
	d := setup(t)
	exec(t, d.admin, "delete from core.leads where duty <> 'register'")
	lead := func(q querier, duty string) bool {
		t.Helper()
		return value[bool](t, q, "select core.lead($1)", duty)
	}
	if !lead(d.admin, "reap") {
		t.Error("a duty without a row is nobody's")
	}
	first := begin(t, pgtest.Conn(t, d.at))
	if !lead(first, "reap") || !lead(first, "sweep") || !lead(first, "reap") {
		t.Error("the first does not lead")
	}
	if lead(d.admin, "reap") || lead(d.admin, "sweep") {
		t.Error("two lead at once")
	}
	if err := first.Rollback(deadline(t)); err != nil {
		t.Fatal(err)
	}
	if !lead(d.admin, "reap") || !lead(d.admin, "sweep") {
		t.Error("nobody leads after the first")
	}
	exec(t, d.admin, "insert into core.ack_latencies (hour, up_to_ms, events, measured_at) values (date_trunc('hour', now()), 5, 1, clock_timestamp())")
	idle := begin(t, pgtest.Conn(t, d.at))
	exec(t, idle, "select core.ack_measure()")
	if taken := value[bool](t, idle, "select pg_current_xact_id_if_assigned() is not null"); taken {
		t.Error("to find that somebody has just measured takes a transaction id")
	}
}

// Who cannot lead at once says so, also where the row of a duty is missing and somebody is putting it there.
func TestNobodyWaitsToLead(t *testing.T) {
	t.Parallel()
	d := setup(t)
	exec(t, d.admin, "delete from core.leads")
	second := pgtest.Conn(t, d.at)
	exec(t, second, "set statement_timeout = '5s'")
	lead := func(q querier, duty string) bool {
		t.Helper()
		return value[bool](t, q, "select core.lead($1)", duty)
	}
	first := begin(t, pgtest.Conn(t, d.at))
	for range 2 {
		if !lead(first, "reap") {
			t.Error("the first does not lead")
		}
	}
	if lead(second, "reap") {
		t.Error("two lead at once")
	}
	if err := first.Commit(deadline(t)); err != nil {
		t.Fatal(err)
	}
	if !lead(second, "reap") || !lead(second, "sweep") {
		t.Error("nobody leads after the first")
	}
	// whoever leads locks nothing that others need: neither where the row is there, nor when it has just been put there
	other := begin(t, pgtest.Conn(t, d.at))
	if !lead(other, "reap") || !lead(second, "sweep") || lead(second, "reap") {
		t.Error("one duty is in the way of another")
	}
}

// Workers register one after the other, so that the second sees the first. A row that is missing is put back.
func TestTurns(t *testing.T) {
	t.Parallel()
	for name, turn := range map[string]struct {
		role, first, second string
		says                string
	}{
		"workers": {
			role:   "spectral_worker",
			first:  `select core.worker_register(gen_random_uuid(), 1, 'first', '{"worlds.x": ["a.b"]}')`,
			second: `select core.worker_register(gen_random_uuid(), 1, 'second', '{"worlds.x": ["a.c"]}')`,
			says:   "worker first is live and handles worlds.x",
		},
	} {
		for _, missing := range []bool{false, true} {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				d := setup(t)
				if missing {
					exec(t, d.admin, "delete from core.leads")
				}
				first, second := pgtest.Conn(t, d.at), pgtest.Conn(t, d.at)
				exec(t, first, "set role "+turn.role)
				exec(t, second, "set role "+turn.role+"; set application_name = 'second'")
				tx := begin(t, first)
				exec(t, tx, turn.first)
				ctx, said := deadline(t), make(chan string, 1)
				go func(ctx context.Context) {
					var text *string
					err := second.QueryRow(ctx, turn.second).Scan(&text)
					switch pg, refused := errors.AsType[*pgconn.PgError](err); {
					case refused:
						said <- pg.Code + " " + pg.Message
					case err != nil:
						said <- err.Error()
					case text == nil:
						said <- "null"
					default:
						said <- *text
					}
				}(ctx)
				waitFor(t, d.admin, "select exists (select from pg_stat_activity where datname = current_database() and application_name = 'second' and wait_event_type = 'Lock')")
				if err := tx.Commit(deadline(t)); err != nil {
					t.Fatal(err)
				}
				if text := <-said; !strings.Contains(text, turn.says) {
					t.Errorf("the second is told %q, not %q", text, turn.says)
				}
			})
		}
	}
}
