//go:build heavy

package doctor_test

import (
	"slices"
	"strings"
	"testing"

	"spectral/internal/app/doctor"
	"spectral/tests/pgtest"
)

// A well configured server with a worker is fine. Faults that concern the whole server are found.
func TestFaultsOfAWholeServerAreFound(t *testing.T) {
	p := ownServer(t, map[string]string{"max_prepared_transactions": "5", "wal_level": "logical"})
	p.exec(workers("1"))
	for range 50 {
		p.exec("select core.outbox_publish('" + cards + `', 'worlds', '{"card_id": "c", "version": 1, "title": "t"}')`)
	}
	examine := func() doctor.Report { return p.pass(doctor.Config{}) }
	if report := examine(); report.Worst() != doctor.Fine {
		t.Errorf("a healthy system is said to be %+v", report)
	}
	p.exec("select pg_create_logical_replication_slot('abandoned', 'pgoutput')") // which waits for whatever is prepared
	p.exec("begin; insert into core.publisher_sources values ('someone', 'worlds'); prepare transaction 'forgotten'")
	report := examine()
	result := func(check string) doctor.Result {
		t.Helper()
		i := slices.IndexFunc(report.Results, func(r doctor.Result) bool { return r.Check == check })
		return report.Results[i]
	}
	if r := result("transactions"); r.State != doctor.Warning ||
		!strings.Contains(r.Findings[0].Problem, `'forgotten' is prepared`) {
		t.Errorf("beside a prepared transaction: %+v", r)
	}
	if r := result("snapshots"); !strings.Contains(r.Detail, "abandoned") && !strings.Contains(r.Detail, "forgotten") {
		t.Errorf("what holds the oldest snapshot: %+v", r)
	}
	p.paste(result("transactions").Findings[0].Fix)
	p.exec("select pg_drop_replication_slot('abandoned')")
	if report := examine(); report.Worst() != doctor.Fine {
		t.Errorf("after the fix: %+v", report)
	}
	other := pgtest.Conn(t, p.url)
	const untracked = "set track_activities = off; begin isolation level repeatable read; select 1"
	if _, err := other.Exec(p.ctx, untracked); err != nil {
		t.Fatal(err)
	}
	report = examine()
	if r := result("snapshots"); r.State != doctor.Unknown ||
		!strings.Contains(r.Findings[0].Problem, "the state of 1 session is not known") {
		t.Errorf("of a snapshot whose age is not tracked it says %+v", r)
	}
}

// A commit that waits for its standby keeps the lock under which all others notify.
func TestCommitsThatWaitToNotifyAreATrigger(t *testing.T) {
	p := ownServer(t, nil)
	p.exec("alter system set synchronous_standby_names = 'missing'")
	p.exec("select pg_reload_conf()")
	for range 2 {
		session := pgtest.Conn(t, p.url)
		go func() { // the server may take a while to read its configuration
			for err := error(nil); err == nil; {
				_, err = session.Exec(p.ctx, "set synchronous_commit = on; notify spectral_try")
			}
		}()
	}
	for {
		r := p.examine("scale", doctor.Config{}) // until the wait is longer than 500 ms
		if len(r.Findings) == 1 && strings.Contains(r.Findings[0].Problem, "trigger lock waits: 1 session now held up by "+
			"the lock of all commits that notify") && strings.Contains(r.Findings[0].Fix, relayStep) {
			return
		}
		if len(r.Findings) > 0 {
			t.Fatalf("it says %+v", r)
		}
		p.inTime()
	}
}
