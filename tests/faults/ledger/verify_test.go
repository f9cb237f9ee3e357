package ledger

import (
	"strings"
	"testing"
)

// Whatever the database could have done wrong must be reported, and nothing else.
func TestDifferencesAreReported(t *testing.T) {
	t.Parallel()
	const handler = "platform.h"
	fine := func() state {
		return state{
			byKey: map[string][]event{
				"a": {{ID: "1", Key: "a", Status: "delivered", Attempts: 1}},
				"b": {{ID: "2", Key: "b", Status: "delivered", Attempts: 1}},
				"c": {{ID: "3", Key: "c", Status: "failed", Attempts: 6}},
			},
			effects: map[handlerKey]int{{handler, "a"}: 1, {handler, "b"}: 1},
			handled: map[handlerKey]int{{handler, "1"}: 1, {handler, "2"}: 1, {"worlds.other", "9"}: 1},
		}
	}
	record := []transaction{
		{[]string{"a", "b"}, Committed}, {[]string{"c"}, Committed}, {[]string{"d", "e"}, Aborted}, {[]string{"f", "g"}, Unknown},
	}
	delivered := func(id, key string, s *state) {
		s.byKey[key] = append(s.byKey[key], event{ID: id, Key: key, Status: "delivered", Attempts: 1})
		s.effects[handlerKey{handler, key}]++
		s.handled[handlerKey{handler, id}]++
	}
	cases := []struct {
		name  string
		spoil func(*state)
		want  []string
	}{
		{"nothing", func(*state) {}, nil},
		{"an unknown one that committed", func(s *state) { delivered("4", "f", s); delivered("5", "g", s) }, nil},
		{"an event is gone", func(s *state) { delete(s.byKey, "a") }, []string{
			"lost: 1 of the 2", "an effect of nothing: 1 of platform.h", "handled, but not there: event 1",
		}},
		{"an aborted one is there", func(s *state) { delivered("4", "d", s) }, []string{"visible: 1 of the 2"}},
		{"half of an unknown one is there", func(s *state) { delivered("4", "g", s) }, []string{"torn: 1 of the 2"}},
		{"somebody else's event", func(s *state) { delivered("4", "z", s) }, []string{`unasked for: 1 rows of key "z"`}},
		{"an event twice", func(s *state) { delivered("4", "a", s) }, []string{
			`unasked for: 2 rows of key "a"`, "left its effect 2 times, want 1", "left its effect 2 times, want 1",
		}},
		{"an effect twice", func(s *state) { s.effects[handlerKey{handler, "a"}]++ }, []string{"left its effect 2 times, want 1"}},
		{"no effect", func(s *state) { delete(s.effects, handlerKey{handler, "a"}) }, []string{"left its effect 0 times, want 1"}},
		{"an effect of a failed one", func(s *state) { s.effects[handlerKey{handler, "c"}]++ }, []string{"left its effect 1 times, want 0"}},
		{"not noted as handled", func(s *state) { delete(s.handled, handlerKey{handler, "2"}) }, []string{"has 0 rows of platform.h, want 1"}},
		{"failed", func(s *state) { s.byKey["a"][0].Status = "failed" }, []string{"failed, want delivered"}},
		{"delivered against expectation", func(s *state) { s.byKey["c"][0].Status = "delivered" }, []string{"delivered, want failed"}},
		{"an attempt too many", func(s *state) { s.byKey["a"][0].Attempts = 2 }, []string{"2 attempts, want 1 to 1"}},
		{"a retry too few", func(s *state) { s.byKey["c"][0].Attempts = 5 }, []string{"failed after 5 attempts, want 6"}},
		{"astray", func(s *state) { s.astray = []string{"b"} }, []string{`astray: the lasting content of "b"`}},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			l := New(Kind{Handlers: []string{handler}})
			l.transactions = record
			s := fine()
			c.spoil(&s)
			got := l.compare(s, Expect{Failed: map[string]Dead{"c": {Attempts: 6}}})
			if len(got) != len(c.want) {
				t.Fatalf("reported %d problems, want %d:\n%s", len(got), len(c.want), strings.Join(got, "\n"))
			}
			for i, problem := range got {
				if !strings.Contains(problem, c.want[i]) {
					t.Errorf("reported %q\nwhich does not say %q", problem, c.want[i])
				}
			}
		})
	}
}
