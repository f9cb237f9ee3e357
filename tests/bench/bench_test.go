package main

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

func TestMain(m *testing.M) {
	beProcess()
	os.Exit(m.Run())
}

var tiny = sizes{publish: 20 * time.Millisecond, runs: [][2]int{{1, 1}, {4, 3}},
	calls: 20 * time.Millisecond, firsts: 1, drain: 100, effects: 100,
	latency: 100 * time.Millisecond, idle: 100 * time.Millisecond, million: 100, failing: 10, leased: 20,
	backlogs: []int{10, 100}, histories: []int{0, 200}, workers: []int{1, 2}}

// TestEachWorkloadRuns runs each workload once, with tiny sizes, for this project and the floor.
func TestEachWorkloadRuns(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	b, err := start(ctx, tiny)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := b.stop(); err != nil {
			t.Error(err)
		}
	}()
	r := new(report)
	r.begin(ctx, b, options{rounds: 1, long: true})
	for _, w := range workloads(tiny) {
		w.systems = slices.DeleteFunc(w.systems, func(s system) bool { return slices.Contains(peers, s) })
		if err := b.measure(ctx, w, 1, r); err != nil {
			t.Fatalf("%s: %v", w.name, err)
		}
		idle := strings.HasPrefix(w.name, "idle") // in a tenth of a second there may be no transaction
		if !slices.ContainsFunc(r.Results, func(r *result) bool {
			return r.Workload == w.name && (r.Values[0] > 0 || idle)
		}) {
			t.Errorf("%s measured nothing", w.name)
		}
	}

	dir := t.TempDir()
	page := filepath.Join(dir, "performance.md")
	if err := os.WriteFile(page, []byte("before\n"+beginMark+"\nold\n"+endMark+"\nafter\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := r.write(dir); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"before\n", "\nafter\n", "| drain | spectral | floor |", "Of these goals",
		"performance/drain.svg"} {
		if !strings.Contains(string(text), want) {
			t.Errorf("the page lacks %q", want)
		}
	}
	if strings.Contains(string(text), "\nold\n") {
		t.Error("the page has its old text")
	}
	for file, want := range map[string]string{"drain.svg": "<rect", "curve-of-backlog.svg": "<polyline",
		"curve-of-history.svg": "delivered events"} {
		if chart, err := os.ReadFile(filepath.Join(dir, "performance", file)); !strings.Contains(string(chart), want) {
			t.Errorf("%s lacks %q: %v", file, want, err)
		}
	}
}

func TestWorkloadsThatDoNotRunKeepTheirFigures(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "made")
	for _, run := range []struct {
		date  string
		value float64
		names []string
	}{{"first day", 11, []string{"idle", "drain", "call"}}, {"second day", 22, []string{"drain"}}} {
		r, err := readReport(dir)
		if err != nil {
			t.Fatal(err)
		}
		r.Runs = append(r.Runs, &origin{Date: run.date, Workloads: make(map[string]string)})
		for _, name := range run.names {
			r.add(workload{name: name, about: "About " + name + "."}, "spectral", metric{name: name, value: run.value})
			if err := r.write(dir); err != nil { // after each, as if the next one were interrupted
				t.Fatal(err)
			}
		}
	}
	data, err := os.ReadFile(filepath.Join(dir, "performance.md"))
	if err != nil {
		t.Fatal(err)
	}
	rest := string(data)
	for _, want := range []string{"# Performance\n", beginMark, "on first day", ": call, idle.", "on second day",
		": drain.", "### Call\n\nAbout call.", "| 11.0 |", "### Drain", "| 22.0 |", "### Idle", "| 11.0 |", endMark} {
		_, after, ok := strings.Cut(rest, want)
		if !ok {
			t.Fatalf("the page lacks %q here:\n%s", want, rest)
		}
		rest = after
	}
	if _, err := os.Stat(filepath.Join(dir, "performance", "idle.svg")); err != nil {
		t.Error(err)
	}
}

func TestRatiosCompareWithTheBestPeerOrAnotherWorkload(t *testing.T) {
	t.Parallel()
	r := report{Runs: []*origin{{Workloads: make(map[string]string)}}}
	for _, v := range []struct {
		workload, system string
		value            float64
	}{{"a", "spectral", 8}, {"a", "river", 2}, {"a", "gue", 4}, {"a", "floor", 16}, {"b", "spectral", 4}} {
		r.add(workload{name: v.workload}, v.system, metric{name: "m", value: v.value})
	}
	for to, want := range map[string]float64{bestPeer: 2, "floor": 0.5, "river": 4} {
		v, _ := r.ratioOf(ratio{workload: "a", metric: "m", of: "spectral", to: to})
		if len(v) != 2 || v[0] != want || v[1] != want {
			t.Errorf("against %s: %v, want %v", to, v, want)
		}
	}
	if v, _ := r.ratioOf(ratio{workload: "b", metric: "m", of: "spectral", to: "river"}); len(v) > 0 {
		t.Error("a ratio to a system that was not measured")
	}
}

func TestFlagsThatCannotBeMetAreRefused(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		options options
		args    []string
		want    string // in the error
	}{
		{options: options{rounds: 1, workload: "drain,nothing"}, want: "Workloads: call, first publish"},
		{options: options{rounds: 1, workload: "drain,"}, want: `no workload that runs has ""`},
		{options: options{rounds: 1, workload: "leased"}, want: "With -long also: "},
		{options: options{rounds: 1, system: "rivers"}, want: "Systems: empty statement, floor"},
		{options: options{rounds: 1, workload: "call", system: "gue"}, want: "none of the workloads"},
		{options: options{}, want: "-rounds 0"},
		{options: options{rounds: 1}, args: []string{"drain"}, want: `unexpected argument "drain"`},
	} {
		if _, err := c.options.choose(c.args); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%+v %q: %v, want %q", c.options, c.args, err, c.want)
		}
	}
}

func TestWorkloadsAreChosenByNameBeforeParts(t *testing.T) {
	t.Parallel()
	for part, want := range map[string]string{
		"drain": "drain", "hot rows,call": "call,effects in batches on hot rows", "of ha": "curve of handlers",
		"drain,drain with": "drain,drain with snapshot,drain with log,drain with partitions",
	} {
		chosen, err := options{rounds: 1, workload: part}.choose(nil)
		var names []string
		for _, w := range chosen {
			names = append(names, w.name)
		}
		if got := strings.Join(names, ","); err != nil || got != want {
			t.Errorf("%s chooses %s, want %s: %v", part, got, want, err)
		}
	}
	for _, w := range workloads(long) {
		if strings.Contains(w.name, ",") {
			t.Errorf("%s cannot be named in a list with commas", w.name)
		}
	}
}

func TestAGoalWithinTheRangeIsUnclear(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		values []float64
		goal   string
		want   string
	}{
		{[]float64{2, 2, 3}, ">= 2", met}, {[]float64{2, 1.9, 3}, ">= 2", unclear}, {[]float64{1}, ">= 2", missed},
		{[]float64{2, 1}, "<= 2", met}, {[]float64{1, 0.9}, "< 1", unclear}, {[]float64{1, 1.2}, "< 1", missed},
	} {
		if got := isMet(c.values, c.goal); got != c.want {
			t.Errorf("%v %s: %s, want %s", c.values, c.goal, got, c.want)
		}
	}
}
