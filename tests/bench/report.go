package main

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"html/template"
	"maps"
	"math"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"time"
)

// report collects what was measured. It is written as JSON too.
type report struct {
	Runs    []*origin // the last one is this run
	Results []*result
}

// origin is a run of this command, with the workloads whose figures are from it, and what they measure.
type origin struct {
	Command, Date, Took, Machine, Postgres, Go string
	Versions                                   []string
	Workloads                                  map[string]string
}

// result is a metric of one system in one workload, with a value for each round.
type result struct {
	Workload, System, Metric, Unit string
	LowerIsBetter                  bool
	Axis                           string `json:",omitempty"` // of a curve
	X                              int    `json:",omitempty"`
	Values                         []float64
}

func (r *result) median() float64 { return median(r.Values) }

func median(values []float64) float64 {
	sorted := slices.Sorted(slices.Values(values))
	n := len(sorted)
	if n == 0 {
		return math.NaN()
	}
	return (sorted[(n-1)/2] + sorted[n/2]) / 2
}

// begin adds this run, which has no figures yet.
func (r *report) begin(ctx context.Context, b *bench, o options) *origin {
	run := &origin{Date: time.Now().UTC().Format("2006-01-02"), Go: runtime.Version(), Command: "go -C tests/bench run .",
		Postgres: "unknown", Workloads: make(map[string]string)}
	if o.long {
		run.Command += " -long"
	}
	for _, flag := range [][2]string{{"workload", o.workload}, {"system", o.system}} {
		if flag[1] != "" {
			run.Command += fmt.Sprintf(" -%s %q", flag[0], flag[1])
		}
	}
	run.Command += fmt.Sprintf(" -rounds %d", o.rounds)
	run.Machine = fmt.Sprintf("%d cores (%s), %s, %s/%s", runtime.NumCPU(), procField("/proc/cpuinfo", "model name"),
		memory(), runtime.GOOS, runtime.GOARCH)
	if pool, err := openPool(ctx, b.server.URL("postgres"), 1); err == nil {
		_ = pool.QueryRow(ctx, "show server_version").Scan(&run.Postgres)
		pool.Close()
	}
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, module := range info.Deps {
			if slices.Contains([]string{"github.com/riverqueue/river", "github.com/vgarvardt/gue/v5",
				"github.com/ThreeDotsLabs/watermill-sql/v4", "github.com/jackc/pgx/v5"}, module.Path) {
				run.Versions = append(run.Versions, strings.TrimPrefix(module.Path, "github.com/")+" "+module.Version)
			}
		}
	}
	run.Versions = append(run.Versions, nodeVersions()...)
	r.Runs = append(r.Runs, run)
	return run
}

// procField returns the first value of a name in a file of /proc, or "unknown".
func procField(file, name string) string {
	f, err := os.Open(file)
	if err != nil {
		return "unknown"
	}
	defer func() { _ = f.Close() }()
	for lines := bufio.NewScanner(f); lines.Scan(); {
		if key, value, _ := strings.Cut(lines.Text(), ":"); strings.TrimSpace(key) == name {
			return strings.TrimSpace(value)
		}
	}
	return "unknown"
}

func memory() string {
	var kb float64
	if _, err := fmt.Sscan(procField("/proc/meminfo", "MemTotal"), &kb); err != nil {
		return "unknown memory"
	}
	return fmt.Sprintf("%.0f GiB", kb/(1<<20))
}

// add adds a value. The first one of a workload in this run replaces what an earlier run measured of it.
func (r *report) add(w workload, system string, m metric) {
	run := r.Runs[len(r.Runs)-1]
	if _, ok := run.Workloads[w.name]; !ok {
		for _, earlier := range r.Runs {
			delete(earlier.Workloads, w.name)
		}
		run.Workloads[w.name] = w.about
		r.Runs = slices.DeleteFunc(r.Runs, func(o *origin) bool { return len(o.Workloads) == 0 })
		r.Results = slices.DeleteFunc(r.Results, func(old *result) bool { return old.Workload == w.name })
	}
	found := r.find(w.name, system, m.name)
	if found == nil {
		found = &result{Workload: w.name, System: system, Metric: m.name, Unit: m.unit, LowerIsBetter: m.lower,
			Axis: w.axis, X: w.x}
		r.Results = append(r.Results, found)
	}
	found.Values = append(found.Values, m.value)
}

func (r *report) find(workload, system, metric string) *result {
	for _, result := range r.Results {
		if result.Workload == workload && result.System == system && result.Metric == metric {
			return result
		}
	}
	return nil
}

// number prints a value with three digits, and thousands in full.
func number(v float64) string {
	switch {
	case math.IsNaN(v):
		return "-"
	case v >= 100:
		return whole(int(math.RoundToEven(v)))
	case v >= 10:
		return fmt.Sprintf("%.1f", v)
	default:
		return fmt.Sprintf("%.2f", v)
	}
}

// whole prints a number in full.
func whole(n int) string {
	text := strconv.Itoa(n)
	for i := len(text) - 3; i > 0; i -= 3 {
		text = text[:i] + "," + text[i:]
	}
	return text
}

// ratio names two results to divide, and what the project wants of the quotient. Without to it is a value by itself.
type ratio struct{ text, workload, metric, of, to, goal string }

// bestPeer stands for the peer with the best value.
const bestPeer = "best peer"

var ratios = []ratio{
	{"publishing from Go, 32 connections", "publish 32x1", "commits", "spectral", "river", ">= 1.2"},
	{"`core.outbox_publish`, time per call", "call", "time per call", "spectral-sql", "floor", "<= 2"},
	{"1,000 events in one call of SQL, rate", "publish 1x1000", "events", "spectral-sql", "floor", ">= 0.67"},
	{"commits with the trigger", "commits with trigger", "commits", "with trigger", "no trigger", ">= 0.85"},
	{"pickup at 50/s, p50", "pickup at 50/s", "p50", "spectral", "river", "< 1"},
	{"pickup at 50/s, p99", "pickup at 50/s", "p99", "spectral", "river", "< 1"},
	{"drain", "drain", "drain", "spectral", "river", ">= 2"},
	{"drain", "drain", "drain", "spectral", "floor", ">= 0.85"},
	{"drain, effects in batches", "effects in batches", "drain", "spectral", bestPeer, ">= 2"},
	{"drain, 500 hot rows against distinct ones", "effects in batches on hot rows", "drain", "spectral",
		"effects in batches", ">= 0.7"},
	{"drain with a snapshot held, against without", "drain with snapshot", "drain", "spectral", "drain", ">= 0.9"},
	{"drain, log as by default against none", "drain with log", "drain", "spectral with log", "spectral", ">= 0.8"},
	{"drain, partitions against one table", "drain with partitions", "drain", "spectral in partitions", "spectral",
		">= 0.9"},
	{"relay of small events, events/s", "relay", "drain", "relay", "", ">= 20000"},
	{"first publish on a connection, ms", "first publish", "first publish", "spectral", "", "<= 10"},
	{"statements for each event, alone", "pickup at 50/s", "statements", "spectral", "", "<= 8"},
	{"statements for each event, in batches", "statements", "statements", "spectral", "", "<= 0.2"},
	{"idle, transactions/s", "idle", "idle", "spectral", "", "<= 0.5"},
}

// ratioOf returns the quotients of the rounds, after that of the medians, and what they are against. A ratio to a name
// of a workload compares one system with itself.
func (r *report) ratioOf(q ratio) (values []float64, against string) {
	of := r.find(q.workload, q.of, q.metric)
	if of == nil {
		return nil, ""
	}
	if q.to == "" {
		return append([]float64{of.median()}, of.Values...), ""
	}
	to := r.find(q.workload, q.to, q.metric)
	if q.to == bestPeer {
		for _, other := range r.Results {
			if other.Workload == q.workload && other.Metric == q.metric && other.System != "floor" &&
				other.System != q.of && (to == nil || other.median() > to.median() != other.LowerIsBetter) {
				to = other
			}
		}
	}
	against = q.to
	if same := r.find(q.to, q.of, q.metric); to == nil && same != nil {
		to = same
	} else if to != nil {
		against = to.System
	}
	if to == nil {
		return nil, ""
	}
	values = []float64{of.median() / to.median()}
	for i := range min(len(of.Values), len(to.Values)) {
		values = append(values, of.Values[i]/to.Values[i])
	}
	return values, against
}

const (
	met     = "yes"
	missed  = "no"
	unclear = "unclear"
)

// isMet says whether values meet a goal: unclear if only some do.
func isMet(values []float64, goal string) string {
	var operator string
	var limit float64
	if _, err := fmt.Sscan(goal, &operator, &limit); err != nil {
		panic(err)
	}
	all := ""
	for _, v := range values {
		this := missed
		if operator == ">=" && v >= limit || operator == "<=" && v <= limit || operator == "<" && v < limit {
			this = met
		}
		if all = cmp.Or(all, this); all != this {
			return unclear
		}
	}
	return all
}

// goals returns the table of the ratios that were measured.
func (r *report) goals() string {
	var b strings.Builder
	counts := make(map[string]int)
	for _, q := range ratios {
		if values, against := r.ratioOf(q); len(values) > 0 {
			result := isMet(values, q.goal)
			counts[result]++
			fmt.Fprintf(&b, "| %s | %s | %s | %s | %s-%s | %s | %s |\n", q.text, q.of, against, number(values[0]),
				number(slices.Min(values)), number(slices.Max(values)), q.goal, result)
		}
	}
	if b.Len() == 0 {
		return ""
	}
	return "| Goal | of | to | measured | range | wanted | met |\n|---|---|---|---:|---:|---:|---|\n" + b.String() + "\n" +
		wrap(fmt.Sprintf("Of these goals the figures meet %d and miss %d; unclear are %d, where the goal lies within the "+
			"range of the rounds.", counts[met], counts[missed], counts[unclear])) + "\n"
}

// markdown returns the tables, with links to the charts if there are files of them.
func (r *report) markdown(charts bool) string {
	var b strings.Builder
	about := make(map[string]string)
	for _, run := range r.Runs {
		maps.Copy(about, run.Workloads)
		which := ""
		if len(r.Runs) > 1 {
			which = ": " + strings.Join(slices.Sorted(maps.Keys(run.Workloads)), ", ")
		}
		fmt.Fprintf(&b, "%s\n\n", wrap(fmt.Sprintf("Measured on %s with `%s`, which took %s%s. Machine: %s. "+
			"PostgreSQL %s, fsync and synchronous_commit on; %s; %s.", run.Date, run.Command, cmp.Or(run.Took, "?"), which,
			run.Machine, run.Postgres, run.Go, strings.Join(run.Versions, ", "))))
	}
	b.WriteString("Values are medians, with the least and the greatest of the rounds.\n\n")
	b.WriteString(r.goals())
	last := ""
	for _, result := range r.Results {
		if w := result.Workload; w != last {
			last = w
			fmt.Fprintf(&b, "\n### %s%s\n\n%s\n\n", strings.ToUpper(w[:1]), w[1:], wrap(about[w]))
			if charts {
				fmt.Fprintf(&b, "![%s](performance/%s)\n\n", w, chartFile(w))
			}
			b.WriteString("| System | Metric | Unit | Median | Range | spectral / it |\n|---|---|---|---:|---:|---:|\n")
			for _, other := range r.Results {
				if other.Workload == w {
					b.WriteString(r.row(other))
				}
			}
		}
	}
	return b.String()
}

func (r *report) row(result *result) string {
	against := ""
	own := cmp.Or(r.find(result.Workload, "spectral", result.Metric),
		r.find(result.Workload, "spectral-sql", result.Metric))
	if own != nil && own != result && result.median() > 0 {
		against = number(own.median()/result.median()) + "x"
	}
	return fmt.Sprintf("| %s | %s | %s | %s | %s-%s | %s |\n", result.System, result.Metric, result.Unit,
		number(result.median()), number(slices.Min(result.Values)), number(slices.Max(result.Values)), against)
}

// wrap breaks prose into lines of at most 120 characters.
func wrap(text string) string {
	var b strings.Builder
	length := 0
	for i, word := range strings.Fields(text) {
		if length+1+len(word) > 120 {
			b.WriteByte('\n')
			length = 0
		} else if i > 0 {
			b.WriteByte(' ')
			length++
		}
		b.WriteString(word)
		length += len(word)
	}
	return b.String()
}

func chartFile(workload string) string {
	name := strings.Map(func(c rune) rune {
		if c >= 'a' && c <= 'z' || c >= '0' && c <= '9' {
			return c
		}
		return '-'
	}, strings.ToLower(workload))
	return name + ".svg"
}

// colors of the systems. Other variants of the floor have its color.
var colors = map[string]string{"spectral": "#2f6fb3", "spectral-sql": "#7fabdb", "spectral with log": "#1b4777",
	"spectral in partitions": "#4f8f8b", "relay": "#7a4fa3", "relay consumers": "#c98bb9",
	"relay and consumers": "#a3396b", "floor": "#9aa7b4", "river": "#c2703d", "watermill": "#4f9d69", "gue": "#8a6bb1",
	"graphile-worker": "#c9a227", "pg-boss": "#b5495b"}

func color(system string) string { return cmp.Or(colors[system], colors["floor"]) }

// chart is a bar for each system, with a line from the least to the greatest value.
var chart = template.Must(template.New("chart").Parse(`<svg xmlns="http://www.w3.org/2000/svg" width="720"
	height="{{.Height}}" font-family="sans-serif" font-size="13">
<rect width="100%" height="100%" fill="#fff"/>
<text x="8" y="20" font-weight="bold">{{.Title}}</text>
{{range .Bars}}<text x="152" y="{{.Text}}" text-anchor="end">{{.Name}}</text>
<rect x="160" y="{{.Y}}" width="{{.Width}}" height="16" fill="{{.Color}}"/>
<line x1="{{.Low}}" x2="{{.High}}" y1="{{.Middle}}" y2="{{.Middle}}" stroke="#000"/>
<text x="{{.End}}" y="{{.Text}}">{{.Value}}</text>
{{end}}</svg>
`))

type bar struct {
	Name, Value, Color                     string
	Y, Text, Middle, Width, Low, High, End int
}

// curves is a line for each system through the medians of its points, with strokes from the least to the greatest
// value.
var curves = template.Must(template.New("curves").Parse(`<svg xmlns="http://www.w3.org/2000/svg" width="720"
	height="300" font-family="sans-serif" font-size="13">
<rect width="100%" height="100%" fill="#fff"/>
<text x="8" y="20" font-weight="bold">{{.Title}}</text>
{{range .Grid}}<line x1="70" x2="600" y1="{{.Y}}" y2="{{.Y}}" stroke="#ddd"/>
<text x="62" y="{{.Y}}" text-anchor="end" dominant-baseline="middle">{{.Name}}</text>
{{end}}{{range .Ticks}}<text x="{{.X}}" y="266" text-anchor="middle">{{.Name}}</text>
{{end}}<text x="335" y="288" text-anchor="middle">{{.Axis}}</text>
{{range .Lines}}<polyline points="{{.Points}}" fill="none" stroke="{{.Color}}" stroke-width="2"/>
<path d="{{.Strokes}}" stroke="{{.Color}}"/>
<path d="{{.Dots}}" stroke="{{.Color}}" stroke-width="7" stroke-linecap="round"/>
<text x="616" y="{{.Y}}" fill="{{.Color}}">{{.Name}}</text>
{{end}}</svg>
`))

// mark is a line, or a number on an axis.
type mark struct {
	Name, Color, Points, Strokes, Dots string
	X, Y                               int
}

// line draws a curve. Its points are equally far apart: each should be so many times the one before, and zero stands
// where the next smaller one would.
func (r *report) line(points []*result) ([]byte, error) {
	var xs []int
	var grid, ticks, lines []mark
	top := 1.0
	for _, p := range points {
		xs, top = append(xs, p.X), max(top, slices.Max(p.Values))
	}
	unit := 4 * math.Pow(10, math.Floor(math.Log10(top))-1)
	top = math.Ceil(top/unit) * unit
	slices.Sort(xs)
	xs = slices.Compact(xs)
	up := func(v float64) int { return 246 - int(200*v/top) }
	for v := 0.0; v <= top; v += top / 4 {
		grid = append(grid, mark{Name: whole(int(v)), Y: up(v)})
	}
	for i, x := range xs {
		ticks = append(ticks, mark{Name: whole(x), X: 90 + 490*i/max(len(xs)-1, 1)})
	}
	for _, p := range points {
		i := slices.IndexFunc(lines, func(l mark) bool { return l.Name == p.System })
		if i < 0 {
			i = len(lines)
			lines = append(lines, mark{Name: p.System, Color: color(p.System), Y: 50 + 20*i})
		}
		x, y := ticks[slices.Index(xs, p.X)].X, up(p.median())
		lines[i].Points += fmt.Sprintf("%d,%d ", x, y)
		lines[i].Dots += fmt.Sprintf("M%d %dh0", x, y)
		lines[i].Strokes += fmt.Sprintf("M%d %dV%d", x, up(slices.Min(p.Values)), up(slices.Max(p.Values)))
	}
	var out bytes.Buffer
	err := curves.Execute(&out, map[string]any{"Title": points[0].Workload + ": " + points[0].Unit,
		"Axis": points[0].Axis, "Grid": grid, "Ticks": ticks, "Lines": lines})
	return out.Bytes(), err
}

// svg draws the first metric of a workload, or its curve.
func (r *report) svg(workload string) ([]byte, error) {
	var all []*result
	greatest := 0.0
	for _, result := range r.Results {
		if result.Workload == workload && (len(all) == 0 || result.Metric == all[0].Metric || result.Axis != "") {
			all = append(all, result)
			greatest = max(greatest, slices.Max(result.Values))
		}
	}
	if all[0].Axis != "" {
		return r.line(all)
	}
	scale := func(v float64) int { return int(440 * v / max(greatest, 1e-9)) }
	bars := make([]bar, len(all))
	for i, result := range all {
		y, high := 34+24*i, 160+scale(slices.Max(result.Values))
		bars[i] = bar{Name: result.System, Value: number(result.median()), Color: color(result.System), Y: y, Text: y + 13,
			Middle: y + 8, Width: scale(result.median()), Low: 160 + scale(slices.Min(result.Values)), High: high, End: high + 8}
	}
	title := fmt.Sprintf("%s: %s, %s", workload, all[0].Metric, all[0].Unit)
	var out bytes.Buffer
	err := chart.Execute(&out, map[string]any{"Title": title, "Height": 42 + 24*len(bars), "Bars": bars})
	return out.Bytes(), err
}

const (
	beginMark = "<!-- Written by tests/bench. -->"
	endMark   = "<!-- End of what tests/bench writes. -->"
)

// readReport returns the report that write wrote in this folder, or an empty one.
func readReport(dir string) (*report, error) {
	r := new(report)
	file := filepath.Join(dir, "performance", "results.json")
	data, err := os.ReadFile(file)
	if errors.Is(err, os.ErrNotExist) {
		return r, nil
	}
	if err == nil {
		err = json.Unmarshal(data, r)
	}
	if err == nil && len(r.Runs) == 0 && len(r.Results) > 0 {
		err = fmt.Errorf("%s does not say from which run its figures are: move it away", file)
	}
	return r, err
}

// write replaces what lies between the marks in performance.md, and writes performance/ beside it.
func (r *report) write(dir string) error {
	var order []string
	for _, w := range workloads(long) {
		order = append(order, w.name)
	}
	place := func(r *result) uint { return uint(slices.Index(order, r.Workload)) } // unknown ones are last
	slices.SortStableFunc(r.Results, func(a, b *result) int { return cmp.Compare(place(a), place(b)) })
	page, folder := filepath.Join(dir, "performance.md"), filepath.Join(dir, "performance")
	if err := os.MkdirAll(folder, 0o755); err != nil {
		return err
	}
	text, err := os.ReadFile(page)
	if errors.Is(err, os.ErrNotExist) {
		text, err = []byte("# Performance\n\n"+beginMark+"\n"+endMark+"\n"), nil
	}
	if err != nil {
		return err
	}
	before, rest, begun := strings.Cut(string(text), beginMark)
	_, after, ended := strings.Cut(rest, endMark)
	if !begun || !ended {
		return fmt.Errorf("%s lacks the lines %q and %q", page, beginMark, endMark)
	}
	data, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return err
	}
	files := map[string][]byte{filepath.Join(folder, "results.json"): append(data, '\n'),
		page: []byte(before + beginMark + "\n\n" + r.markdown(true) + "\n" + endMark + after)}
	for _, result := range r.Results {
		name := filepath.Join(folder, chartFile(result.Workload))
		if files[name], err = r.svg(result.Workload); err != nil {
			return err
		}
	}
	for name, data := range files {
		if err := os.WriteFile(name, data, 0o644); err != nil {
			return err
		}
	}
	charts, err := filepath.Glob(filepath.Join(folder, "*.svg"))
	for _, name := range charts {
		if files[name] == nil { // of a workload that was renamed or removed
			err = errors.Join(err, os.Remove(name))
		}
	}
	return err
}
