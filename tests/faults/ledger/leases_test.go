package ledger

import (
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
	if totals, _ := consistent().check(); totals.Executions != 4 || totals.Repeats != 2 ||
		totals.RepeatsAfter[reaped] != 1 || totals.RepeatsAfter[released] != 1 {
		t.Error(totals)
	}
	for _, c := range []struct {
		change func(*leasedState)
		want   string
	}{
		{func(*leasedState) {}, ""},
		{func(s *leasedState) { // an execution that started late
			s.executions[0].Started = at(15)
			s.executions[0], s.executions[2] = s.executions[2], s.executions[0]
		}, ""},
		{func(s *leasedState) { s.executions = s.executions[1:] }, ""}, // a lease without execution
		{func(s *leasedState) { s.executions = append(s.executions, s.executions[1]) },
			"key b: platform.h was executed by worker w2 (0) without its own lease"},
		{func(s *leasedState) { s.executions[1].Worker = "w3" }, "without its own lease"},
		{func(s *leasedState) { s.executions[1].Started = at(0) }, "without its own lease"},
		{func(s *leasedState) { s.handled[handlerKey{handler, "1"}] = at(15) }, "given after it had handled"},
		{func(s *leasedState) { s.leases[0].OverBy = -0.1 }, "reaped 100ms before it expired"},
		{func(s *leasedState) { s.leases[2].OverBy = 1 }, "delivered 1s after it expired"},
		{func(s *leasedState) { s.leases[2].Ends = 2 }, "ended 2 times"},
		{func(s *leasedState) { s.leases[1].Ends, s.leases[1].Ended = 0, "" }, "ended 0 times"},
		{func(s *leasedState) { s.leases[1].Ended = "stolen" }, "w2 was stolen"},
		{func(s *leasedState) { s.leases[1].Ended = delivered }, "lease 2 of 3 was delivered | " +
			"it is delivered, and so are 2 of its leases | executed again after a lease that was delivered"},
		{func(s *leasedState) { s.rows[0].Attempts = 3 }, "it has 3 attempts, and 2 leases"},
		{func(s *leasedState) { s.rows[0].ReapedOf = nil }, "reaped from [w1], its failure_history says from []"},
		{func(s *leasedState) { s.rows[1].Crashes = 1 }, "it has 1 crashes"},
	} {
		s := consistent()
		c.change(&s)
		_, got := s.check()
		wantProblems(t, got, c.want)
	}
}
