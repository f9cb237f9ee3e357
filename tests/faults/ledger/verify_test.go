package ledger

import (
	"strings"
	"testing"
)

// wantProblems compares problems with what each must contain, divided by " | ".
func wantProblems(t *testing.T, got []string, want string) {
	t.Helper()
	var contained []string
	if want != "" {
		contained = strings.Split(want, " | ")
	}
	if len(got) != len(contained) {
		t.Errorf("%d problems, want %q:\n%s", len(got), contained, strings.Join(got, "\n"))
		return
	}
	for i, problem := range got {
		if !strings.Contains(problem, contained[i]) {
			t.Errorf("reported %q\nwhich does not say %q", problem, contained[i])
		}
	}
}

func TestDifferencesAreReported(t *testing.T) {
	t.Parallel()
	const handler = "platform.h"
	a := handlerKey{handler, "a"}
	transactions := []transaction{
		{[]string{"a", "b"}, Committed}, {[]string{"c"}, Committed}, {[]string{"d", "e"}, Aborted},
		{[]string{"f", "g"}, Unknown},
	}
	delivered := func(id, key string, s *state) {
		s.byKey[key] = append(s.byKey[key], event{ID: id, Key: key, Status: "delivered", Attempts: 1})
		s.effects[handlerKey{handler, key}]++
		s.handled[handlerKey{handler, id}]++
	}
	for _, c := range []struct {
		change func(*state)
		want   string
	}{
		{func(*state) {}, ""},
		{func(s *state) { delivered("4", "f", s); delivered("5", "g", s) }, ""}, // the unknown transaction committed
		{func(s *state) { delete(s.byKey, "a") },
			"lost: 1 of the 2 | effect without event: 1 of platform.h | handled without event: event 1"},
		{func(s *state) { delivered("4", "d", s) }, "visible: 1 of the 2"},
		{func(s *state) { delivered("4", "g", s) }, "partial: 1 of the 2"},
		{func(s *state) { delivered("4", "z", s) }, `unexpected: 1 rows of key "z"`},
		{func(s *state) { delivered("4", "a", s) },
			`unexpected: 2 rows of key "a" | its effect 2 times, want 1 | its effect 2 times, want 1`},
		{func(s *state) { s.effects[a]++ }, "wrote its effect 2 times, want 1"},
		{func(s *state) { delete(s.effects, a) }, "wrote its effect 0 times, want 1"},
		{func(s *state) { s.effects[handlerKey{handler, "c"}]++ }, "wrote its effect 1 times, want 0"},
		{func(s *state) { delete(s.handled, handlerKey{handler, "2"}) }, "has 0 rows of platform.h, want 1"},
		{func(s *state) { s.byKey["a"][0].Status = "failed" }, "failed, want delivered"},
		{func(s *state) { s.byKey["c"][0].Status = "delivered" }, "delivered, want failed"},
		{func(s *state) { s.byKey["a"][0].Attempts = 2 }, "2 attempts, want 1 to 1"},
		{func(s *state) { s.byKey["c"][0].Attempts = 5 }, "failed after 5 attempts, want 6"},
		{func(s *state) { s.staleContent = []string{"b"} }, `stale: the projection of "b"`},
	} {
		l := New(Kind{Handlers: []string{handler}})
		l.transactions = transactions
		s := state{byKey: make(map[string][]event), effects: make(map[handlerKey]int), handled: make(map[handlerKey]int)}
		delivered("1", "a", &s)
		delivered("2", "b", &s)
		s.byKey["c"] = []event{{ID: "3", Key: "c", Status: "failed", Attempts: 6}}
		s.handled[handlerKey{"worlds.other", "9"}] = 1
		c.change(&s)
		wantProblems(t, l.compare(s, Expect{Failed: map[string]int{"c": 6}}), c.want)
	}
}
