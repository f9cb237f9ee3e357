package sql_test

import (
	"os"
	"regexp"
	"strings"
	"testing"
)

// The SQL of docs/leased-work.md runs as it stands there.
func TestLeasedWorkBySQL(t *testing.T) {
	t.Parallel()
	d := setup(t)
	text, err := os.ReadFile("../../docs/leased-work.md")
	must(t, err)
	blocks := regexp.MustCompile("(?ms)^```sql\n(.*?)^```$").FindAllStringSubmatch(string(text), -1)
	if len(blocks) != 4 {
		t.Fatalf("%d blocks of SQL", len(blocks))
	}
	inFlight, unserved, claimKey := blocks[0][1], blocks[1][1], blocks[3][1]
	calls := strings.Split(strings.TrimSpace(blocks[2][1]), ";\n")
	for i, want := range []string{"delivered 1", "pending 1", "failed 1", "pending 0"} {
		d.rows(t, 1, "")
		d.run(t, line{"worker", calls[0], "{1} *"})
		if have, _ := d.ask(t, "operator", strings.SplitAfter(inFlight, ";")[0]); !strings.Contains(have, "loader on host7") {
			t.Errorf("in flight: %s", have)
		}
		fill := func(sql string) string {
			for _, column := range []string{"occurred_at", "event_type", "idempotency_key", "content_class"} {
				sql = strings.ReplaceAll(sql, "<"+column+">", value[string](t, d.admin, "select "+column+"::text from core.outbox"))
			}
			token := value[string](t, d.admin, "select claim_token::text from core.outbox")
			return strings.NewReplacer("<id>", key(1).String(), "<token>", token).Replace(sql)
		}
		if i == 0 {
			d.run(t, line{"worker", fill(claimKey) + "; select count(*) from core.event_handled", "1"})
		}
		if have, _ := d.ask(t, "worker", fill(calls[1])); !strings.HasSuffix(have, " t") {
			t.Errorf("the heartbeat answers %s", have)
		}
		d.run(t, line{"worker", fill(calls[2+i]), ""}, line{"", "select status, attempts from core.outbox", want})
	}
	d.run(t, line{"worker", calls[0], "{1} *"}, line{"", "update core.outbox set claimed_at = now() - interval '1 hour'",
		""}, line{"worker", "select reaped from core.outbox_reap()", "t"},
		line{"", "update core.outbox set available_at = now() - interval '2 minutes'", ""},
		line{"operator", unserved, "outbox_gen_1 1 {card} 1"})
	if have, _ := d.ask(t, "operator", inFlight); !strings.Contains(have, "the lease of 60 s ran out") {
		t.Errorf("reaped: %s", have)
	}
	d.run(t, line{"worker", "select core.worker_register(gen_random_uuid(), 1, 'w', '{\"{card}\": [\"a.b\"]}')", ""},
		line{"operator", "select count(*) from (" + strings.TrimSuffix(strings.TrimSpace(unserved), ";") + ") q", "0"})
}
