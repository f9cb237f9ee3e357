package doctor_test

import (
	"strings"
	"testing"
)

// A key that is gone is named once: what gives back the constraint gives back its index.
func TestAKeyIsNamedOnce(t *testing.T) {
	t.Parallel()
	p := admit(t)
	p.exec("alter table core.event_handled drop constraint event_handled_pk")
	found := p.examine("schema", nil).Findings
	const subject, index = "constraint event_handled_pk of core.event_handled", "index core.event_handled_pk is altered"
	if len(found) != 1 || found[0].Seen != subject+" is missing" {
		t.Fatalf("it says %+v", found)
	}
	p.exec("alter table core.event_handled add constraint event_handled_pk primary key (handler_name, idempotency_key)")
	p.mustBeFine("schema", "with it")
	p.exec("alter index core.event_handled_pk set (fillfactor = 51)")
	if found := p.examine("schema", nil).Findings; len(found) != 1 || found[0].Seen[:len(index)] != index {
		t.Errorf("of the index alone it says %+v", found)
	}
}

// A table comes back by one paste, with what its triggers, defaults and checks call, if that is gone, too.
func TestATableIsCuredAtOnce(t *testing.T) {
	t.Parallel()
	for table, damage := range map[string]string{
		"core.outbox":             "drop function core.outbox_notify() cascade; drop function core.uuid_v7() cascade; drop table core.outbox cascade",
		"core.retention_policies": "drop function core.retention_policies_keep() cascade; drop table core.retention_policies cascade",
	} {
		t.Run(table, func(t *testing.T) {
			t.Parallel()
			p := admit(t)
			p.exec(damage)
			cured := false
			for _, f := range p.examine("schema", nil).Findings {
				if strings.HasPrefix(f.Seen, "table "+table+" is missing") {
					p.paste(f.Cure)
					cured = true
				}
			}
			if !cured {
				t.Fatalf("it says %+v", p.examine("schema", nil))
			}
			for _, f := range p.examine("schema", nil).Findings { // the functions that read it, and columns whose default was the same function
				if strings.Contains(f.Seen, " of "+table) || strings.HasPrefix(f.Seen, "table ") {
					t.Errorf("after the cure it says %+v", f)
				}
				p.paste(f.Cure)
			}
			p.mustBeFine("schema", "after all cures")
		})
	}
}
