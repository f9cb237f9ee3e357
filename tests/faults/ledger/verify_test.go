package ledger

import (
	"strings"
	"testing"
)

func TestDifferencesAreReported(t *testing.T) {
	t.Parallel()
	const handler = "platform.h"
	consistent := func() state {
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
	transactions := []transaction{
		{[]string{"a", "b"}, Committed}, {[]string{"c"}, Committed}, {[]string{"d", "e"}, Aborted},
		{[]string{"f", "g"}, Unknown},
	}
	delivered := func(id, key string, s *state) {
		s.byKey[key] = append(s.byKey[key], event{ID: id, Key: key, Status: "delivered", Attempts: 1})
		s.effects[handlerKey{handler, key}]++
		s.handled[handlerKey{handler, id}]++
	}
	cases := []struct {
		name   string
		change func(*state)
		want   []string
	}{
		{"nothing", func(*state) {}, nil},
		{"an unknown transaction that committed", func(s *state) { delivered("4", "f", s); delivered("5", "g", s) }, nil},
		{"an event is gone", func(s *state) { delete(s.byKey, "a") }, []string{"lost: 1 of the 2",
			"effect without event: 1 of platform.h", "handled without event: event 1"}},
		{"an aborted transaction committed", func(s *state) { delivered("4", "d", s) }, []string{"visible: 1 of the 2"}},
		{"half of an unknown transaction is there", func(s *state) { delivered("4", "g", s) },
			[]string{"partial: 1 of the 2"}},
		{"an event that was not published", func(s *state) { delivered("4", "z", s) },
			[]string{`unexpected: 1 rows of key "z"`}},
		{"an event twice", func(s *state) { delivered("4", "a", s) }, []string{`unexpected: 2 rows of key "a"`,
			"wrote its effect 2 times, want 1", "wrote its effect 2 times, want 1"}},
		{"an effect twice", func(s *state) { s.effects[handlerKey{handler, "a"}]++ }, []string{
			"wrote its effect 2 times, want 1",
		}},
		{"no effect", func(s *state) { delete(s.effects, handlerKey{handler, "a"}) }, []string{
			"wrote its effect 0 times, want 1",
		}},
		{"an effect of a failed event", func(s *state) { s.effects[handlerKey{handler, "c"}]++ }, []string{
			"wrote its effect 1 times, want 0",
		}},
		{"no row in core.event_handled", func(s *state) { delete(s.handled, handlerKey{handler, "2"}) }, []string{
			"has 0 rows of platform.h, want 1",
		}},
		{"failed, but expected to be delivered", func(s *state) { s.byKey["a"][0].Status = "failed" },
			[]string{"failed, want delivered"}},
		{"delivered, but expected to fail", func(s *state) { s.byKey["c"][0].Status = "delivered" }, []string{
			"delivered, want failed",
		}},
		{"an attempt too many", func(s *state) { s.byKey["a"][0].Attempts = 2 }, []string{"2 attempts, want 1 to 1"}},
		{"a retry too few", func(s *state) { s.byKey["c"][0].Attempts = 5 }, []string{"failed after 5 attempts, want 6"}},
		{"stale content", func(s *state) { s.staleContent = []string{"b"} }, []string{`stale: the projection of "b"`}},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			l := New(Kind{Handlers: []string{handler}})
			l.transactions = transactions
			s := consistent()
			c.change(&s)
			got := l.compare(s, Expect{Failed: map[string]DeadLetter{"c": {Attempts: 6}}})
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
