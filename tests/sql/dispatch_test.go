package sql_test

import (
	"fmt"
	"strings"
	"testing"
)

// Workers register one after the other, so that the second sees the first.
func TestWorkersRegisterOneAfterTheOther(t *testing.T) {
	t.Parallel()
	d := setup(t)
	const register = `select core.worker_register(gen_random_uuid(), 1, '%s', '{"worlds.x": ["a.%[1]s"]}')`
	d.run(t, line{"worker", "begin; " + fmt.Sprintf(register, "first"), ""})
	second := d.later(t, "worker 2", fmt.Sprintf(register, "second"))
	d.run(t, line{"worker", "commit", ""})
	if have := second(); !strings.Contains(have, "worker first is live and handles worlds.x") {
		t.Errorf("the second is answered with %q", have)
	}
}

// A failure that is recorded in its own transaction waits for the lost one to release the row, and is recorded once.
func TestAFailureIsRecordedOnceForItsAttempt(t *testing.T) {
	t.Parallel()
	d := setup(t)
	for _, call := range []string{"select core.outbox_fail('{1}', '2026-01-01', '2026-01-02', 'C: h: m', '{}')",
		"select core.outbox_retry('{1}', '2026-01-01', '2026-01-02', 0, 'C: h: m', '{}', true)"} {
		d.rows(t, 1, "occurred_at = '2026-01-01', available_at = '2026-01-02'")
		d.run(t, line{"superuser", "begin; select from core.outbox for update", ""})
		answer := d.later(t, "worker", call)
		d.run(t, line{"superuser", "rollback", ""})
		if have := answer(); have != "t" {
			t.Errorf("%s: %s", call, have)
		}
		d.run(t, line{"worker", call, "f"}, line{"", "select attempts from core.outbox", "1"})
	}
}

// A sample's id is above every transaction id given out before its time, including those that no snapshot has yet.
func TestAWatermarkSampleIsAboveEveryEarlierTransaction(t *testing.T) {
	t.Parallel()
	d := setup(t)
	d.run(t, line{"superuser", "begin; select pg_current_xact_id()", ""},
		line{"superuser 2", "begin; " + publishInto(1), ""})
	stamped, _ := d.ask(t, "superuser 2", "select available_at from core.outbox")
	lowest, _ := d.ask(t, "superuser", "select pg_current_xact_id()")
	highest, _ := d.ask(t, "superuser 2", "select pg_current_xact_id()")
	d.run(t, line{"worker", fmt.Sprintf("begin; select sampled_at >= '%s', sample_id > %s, lowest_running <= %s from "+
		"core.outbox_watermark(1, '{card}', '-infinity')", stamped, highest, lowest), "t t t"},
		line{"worker", "select core.outbox_watermark(1, '{card}', '-infinity')", "55000"})
}
