package operator

import (
	"slices"
	"testing"

	"spectral/internal/core/events"
)

// figures returns what a handler did whose calls all took as long; p95 0 stands for longer than all bounds.
func figures(attempts, failures int64, p95 float64) HandlerFigures {
	f := HandlerFigures{
		Attempts: attempts, Failures: failures, FailureRate: float64(failures) / float64(max(attempts, 1)),
		Took: Percentiles{Count: attempts},
	}
	if p95 > 0 {
		f.Took.P95 = &p95
	}
	return f
}

func TestAHandlerIsWorseIfItClearlyFailsMoreOrIsMuchSlower(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name    string
		a, b    HandlerFigures
		verdict string
		reasons []string
	}{
		{"too few in A", figures(99, 0, .01), figures(1000, 500, 10), NotEnough, nil},
		{"too few in B", figures(1000, 0, .01), figures(99, 99, 10), NotEnough, nil},
		{"enough", figures(100, 0, .01), figures(100, 0, .01), Fine, nil},
		{"better", figures(1000, 100, 1), figures(1000, 0, .01), Fine, nil},
		{"fails more", figures(1000, 10, .01), figures(1000, 40, .01), Worse,
			[]string{"4.0% of attempts fail, before 1.0%"}},
		{"fails at last", figures(1000, 0, .01), figures(1000, 20, .01), Worse,
			[]string{"2.0% of attempts fail, before 0.0%"}},
		{"not by more than a point", figures(100_000, 0, .01), figures(100_000, 1000, .01), Fine, nil},
		{"not half as much again", figures(100_000, 10_000, .01), figures(100_000, 14_900, .01), Fine, nil},
		{"within chance", figures(100, 2, .01), figures(100, 6, .01), Fine, nil},
		{"slower", figures(1000, 0, .01), figures(1000, 0, .05), Worse, []string{"p95 is 50ms, before 10ms"}},
		{"slower by one bucket", figures(1000, 0, .02), figures(1000, 0, .05), Fine, nil},
		{"slower by two buckets, twice", figures(1000, 0, 30), figures(1000, 0, 60), Fine, nil},
		{"slower than what is short", figures(1000, 0, .001), figures(1000, 0, .005), Fine, nil},
		{"beyond the last bound", figures(1000, 0, 60), figures(1000, 0, 0), Worse,
			[]string{"p95 is above 5m0s, before 1m0s"}},
		{"both beyond the last bound", figures(1000, 0, 0), figures(1000, 0, 0), Fine, nil},
		{"no calls were measured", figures(1000, 0, .001), HandlerFigures{Attempts: 1000}, Fine, nil},
		{"both", figures(1000, 0, .01), figures(1000, 1000, 1), Worse,
			[]string{"100.0% of attempts fail, before 0.0%", "p95 is 1s, before 10ms"}},
	} {
		if verdict, reasons := compareFigures(c.a, c.b); verdict != c.verdict || !slices.Equal(reasons, c.reasons) {
			t.Errorf("%s: %s %q, want %s %q", c.name, verdict, reasons, c.verdict, c.reasons)
		}
	}
}

func TestAGenerationIsWorseForAnyReason(t *testing.T) {
	t.Parallel()
	fine := HandlerComparison{Handler: "a.b", EventType: "a.x", InA: figures(100, 0, .01), InB: figures(100, 0, .01)}
	few := HandlerComparison{Handler: "a.c", EventType: "a.x"}
	gone, added := fine, fine
	gone.Verdict, added.Verdict = Gone, Added
	pending := gone
	pending.Pending = []events.Generation{7}
	for _, c := range []struct {
		name       string
		comparison Comparison
		verdict    string
		reasons    []string
	}{
		{"nothing", Comparison{}, NotEnough, nil},
		{"too few", Comparison{Handlers: []HandlerComparison{few}}, NotEnough, nil},
		{"fine", Comparison{Handlers: []HandlerComparison{few, fine}}, Fine, nil},
		{"added and gone", Comparison{Handlers: []HandlerComparison{fine, gone, added}}, Fine, nil},
		{"only added and gone", Comparison{Handlers: []HandlerComparison{gone, added}}, NotEnough, nil},
		{"gone, with events", Comparison{Handlers: []HandlerComparison{fine, pending}}, Worse,
			[]string{"handler a.b of a.x is gone, and events of the type are pending in generation 7"}},
		{"a group", Comparison{Groups: []NewGroup{{GroupID: "g", Handler: "a.b", ErrorClass: "E"}}}, Worse,
			[]string{"new error group g of a.b: E"}},
		{"a contract", Comparison{Contracts: []ContractDifference{{EventType: "a.x", Version: 2, Change: Gone},
			{EventType: "a.y", Version: 2, Change: Gone, Pending: []events.Generation{7, 8}},
			{EventType: "a.z", Version: 2, Change: Added, Pending: []events.Generation{8}}}}, Worse,
			[]string{"contract a.y version 2 is gone, and events of the type are pending in generation 7"}},
	} {
		c.comparison.conclude()
		if c.comparison.Verdict != c.verdict || !slices.Equal(c.comparison.Reasons, c.reasons) {
			t.Errorf("%s: %s %q, want %s %q", c.name, c.comparison.Verdict, c.comparison.Reasons, c.verdict, c.reasons)
		}
	}
}
