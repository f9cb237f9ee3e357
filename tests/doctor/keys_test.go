package doctor_test

import "testing"

// A key that is gone is named once: what gives back the constraint gives back its index.
func TestAKeyIsNamedOnce(t *testing.T) {
	t.Parallel()
	p := admit(t)
	p.exec("alter table core.event_handled drop constraint event_handled_pk")
	found := p.examine("schema", nil).Findings
	const subject = "constraint event_handled_pk of core.event_handled"
	if len(found) != 1 || found[0].Seen != subject+" is missing" {
		t.Fatalf("it says %+v", found)
	}
	p.cure(subject)
	p.mustBeFine("schema", "after the cure")
	p.exec("alter index core.event_handled_pk set (fillfactor = 51)")
	if found := p.examine("schema", nil).Findings; len(found) != 1 {
		t.Errorf("of the index alone it says %+v", found)
	}
	p.cure("index core.event_handled_pk")
	p.mustBeFine("schema", "after the cure of the index")
}
