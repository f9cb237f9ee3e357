package ledger

import (
	"strings"
	"testing"
	"time"
)

func TestUnexplainedRepeatsAreReported(t *testing.T) {
	t.Parallel()
	const handler = "platform.h"
	at := func(second int) time.Time { return time.Unix(int64(second), 0) }
	consistent := func() leasedState {
		return leasedState{
			leases: []lease{
				{EventID: "1", Worker: "w1", LeasedAt: at(1), Ends: 1, Ended: reaped, OverBy: 0.5},
				{EventID: "1", Worker: "w2", LeasedAt: at(10), Ends: 1, Ended: released, OverBy: -1, Refunded: true},
				{EventID: "1", Worker: "w1", LeasedAt: at(20), Ends: 1, Ended: delivered, OverBy: -1},
				{EventID: "2", Worker: "w2", LeasedAt: at(1), Ends: 1, Ended: failed, OverBy: -1},
			},
			rows: []leasedRow{
				{ID: "1", Key: "a", Status: delivered, Attempts: 2, Crashes: 1, ReapedOf: []string{"w1"}},
				{ID: "2", Key: "b", Status: failed, Attempts: 1},
			},
			executions: []Execution{
				{Worker: "w1", Handler: handler, EventID: "1", Key: "a", Started: at(2)},
				{Worker: "w2", Handler: handler, EventID: "2", Key: "b", Started: at(2)},
				{Worker: "w2", Handler: handler, EventID: "1", Key: "a", Started: at(11)},
				{Worker: "w1", Handler: handler, EventID: "1", Key: "a", Started: at(21)},
			},
			handled: map[handlerKey]time.Time{{handler, "1"}: at(22)},
		}
	}
	cases := []struct {
		name   string
		change func(*leasedState)
		want   []string
	}{
		{"nothing", func(*leasedState) {}, nil},
		{"an execution that started late", func(s *leasedState) {
			s.executions[0].Started = at(15)
			s.executions[0], s.executions[2] = s.executions[2], s.executions[0]
		}, nil},
		{"a lease without execution", func(s *leasedState) { s.executions = s.executions[1:] }, nil},
		{"executed twice under one lease", func(s *leasedState) {
			s.executions = append(s.executions, s.executions[1])
		}, []string{"key b: platform.h was executed by worker w2 (0) without its own lease"}},
		{"executed by another worker", func(s *leasedState) { s.executions[1].Worker = "w3" },
			[]string{"without its own lease"}},
		{"executed before it was leased", func(s *leasedState) { s.executions[1].Started = at(0) },
			[]string{"without its own lease"}},
		{"executed after it was handled", func(s *leasedState) { s.handled[handlerKey{handler, "1"}] = at(15) }, []string{
			"given after it had handled",
		}},
		{"reaped too early", func(s *leasedState) { s.leases[0].OverBy = -0.1 }, []string{"reaped 100ms before it expired"}},
		{"settled too late", func(s *leasedState) { s.leases[2].OverBy = 1 }, []string{"delivered 1s after it expired"}},
		{"ended twice", func(s *leasedState) { s.leases[2].Ends = 2 }, []string{"ended 2 times"}},
		{"not ended", func(s *leasedState) { s.leases[1].Ends, s.leases[1].Ended = 0, "" }, []string{"ended 0 times"}},
		{"stolen", func(s *leasedState) { s.leases[1].Ended = "stolen" }, []string{"w2 was stolen"}},
		{"delivered twice", func(s *leasedState) { s.leases[1].Ended = delivered }, []string{
			"lease 2 of 3 was delivered", "it is delivered, and so are 2 of its leases",
			"executed again after a lease that was delivered"}},
		{"an attempt too many", func(s *leasedState) { s.rows[0].Attempts = 3 }, []string{"it has 3 attempts, and 2 leases"}},
		{"a reap that failure_history does not have", func(s *leasedState) { s.rows[0].ReapedOf = nil }, []string{
			"reaped from [w1], its failure_history says from []",
		}},
		{"a crash too many", func(s *leasedState) { s.rows[1].Crashes = 1 }, []string{"it has 1 crashes"}},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			s := consistent()
			c.change(&s)
			totals, got := s.check()
			if len(got) != len(c.want) {
				t.Fatalf("reported %d problems, want %d:\n%s", len(got), len(c.want), strings.Join(got, "\n"))
			}
			for i, problem := range got {
				if !strings.Contains(problem, c.want[i]) {
					t.Errorf("reported %q\nwhich does not say %q", problem, c.want[i])
				}
			}
			repeats := totals.RepeatsAfter
			if c.name == "nothing" &&
				(totals.Executions != 4 || totals.Repeats != 2 || repeats[reaped] != 1 || repeats[released] != 1) {
				t.Error(totals)
			}
		})
	}
}
