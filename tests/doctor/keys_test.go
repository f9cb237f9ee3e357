package doctor_test

import "testing"

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
