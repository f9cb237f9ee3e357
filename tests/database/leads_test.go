package database_test

import (
	"errors"
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
	exec(t, stranger, "select pg_advisory_lock(5583017264419803127), pg_advisory_lock(2958103347719062245), pg_advisory_lock(6650971338417249007)")
	for _, role := range []string{"spectral_worker", "spectral_operator", "spectral_publisher", "spectral_retention", "spectral_platform"} {
		login := d.login(t, role)
		exec(t, login, "set role "+role)
		for _, sql := range []string{"select from core.leads for update", "select from core.leads for key share", "do 'begin lock table core.leads in access share mode; end'", "select core.lead('reap')"} {
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
	if _, _, led := sweepOnce(t, worker, ""); !led {
		t.Error("nobody sweeps")
	}
	if n := value[*int](t, worker, "select core.ack_measure()"); n == nil {
		t.Error("nobody measures")
	}
}

// One leads at a time, in each duty, until its transaction ends; a duty whose row is gone is taken up again, and asking when nothing is to be measured costs no
// transaction id.
func TestOneLeadsAtATime(t *testing.T) {
	t.Parallel()
	d := setup(t)
	exec(t, d.admin, "delete from core.leads where duty <> 'sweep'")
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
	if _, _, led := sweepOnce(t, d.admin, ""); led {
		t.Error("two sweep at once")
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
