package console

import (
	"cmp"
	"fmt"
	"html/template"
	"math"
	"slices"
	"strings"
	"time"

	"spectral/internal/core/events"
	"spectral/internal/core/events/infrastructure/postgres/operator"
)

// drawing is an SVG that is being drawn. Sizes are numbers, texts are escaped, looks are classes of the style sheet.
type drawing struct{ strings.Builder }

func draw(attributes, title string, width, height int) *drawing {
	d := &drawing{}
	d.add(`<svg %s role="img" width="%d" height="%d" viewBox="0 0 %[2]d %[3]d"><title>%[4]s</title>`, attributes, width,
		height, template.HTMLEscapeString(visible(title)))
	return d
}

func (d *drawing) add(format string, arguments ...any) { fmt.Fprintf(d, format+"\n", arguments...) }

// text writes a text of at most so many characters; the whole of a longer one is its title.
func (d *drawing) text(class string, x, y float64, s string, most int) {
	s = visible(s)
	title, short := "", []rune(s)
	if len(short) > most {
		title = "<title>" + template.HTMLEscapeString(s) + "</title>"
		short = slices.Concat(short[:most/2], []rune("…"), short[len(short)-most/2+1:])
	}
	d.add(`<text class="%s" x="%.1f" y="%.1f">%s%s</text>`, class, x, y, title, template.HTMLEscapeString(string(short)))
}

// mark draws a shape with a title.
func (d *drawing) mark(shape, title string) {
	d.add("<g><title>%s</title>%s</g>", template.HTMLEscapeString(visible(title)), shape)
}

func (d *drawing) done() template.HTML {
	d.add("</svg>")
	return template.HTML(d.String()) // of numbers, own words and escaped texts
}

// sparkline draws counts over time: the first as an area, a second one as a line. Both have one scale.
func sparkline(title string, series ...[]int64) template.HTML {
	const width, height = 120, 28
	most := int64(1)
	for _, s := range series {
		most = max(most, slices.Max(append(s, 1)))
	}
	d := draw(`class="spark"`, title, width, height)
	for i, s := range series {
		var points []string
		for x, n := range s {
			points = append(points, fmt.Sprintf("%.1f,%.1f", float64(x)*width/float64(max(len(s)-1, 1)),
				height-1-float64(max(n, 0))*(height-2)/float64(most)))
		}
		if i == 0 {
			d.add(`<polygon class="area" points="0,%d %s %d,%[1]d"/>`, height, strings.Join(points, " "), width)
		} else {
			d.add(`<polyline class="line" points="%s"/>`, strings.Join(points, " "))
		}
	}
	return d.done()
}

// bar draws parts of a whole, each a class and a number in turn.
func bar(title string, whole int, parts ...any) template.HTML {
	const width, height = 320, 10
	d := draw(`class="bar" preserveAspectRatio="none"`, title, width, height)
	d.add(`<rect class="rest" width="%d" height="%d" rx="3"/>`, width, height)
	x := 0.0
	for i := 0; i+1 < len(parts); i += 2 {
		n, _ := parts[i+1].(int)
		w := min(float64(max(n, 0))*width/float64(max(whole, 1)), width-x)
		if w > 0 {
			d.add(`<rect class="%s" x="%.1f" width="%.1f" height="%d"/>`, parts[i], x, w, height)
		}
		x += w
	}
	return d.done()
}

// lanes draws what happened to an event: a lane for the event, and one for each handler, on one axis of time.
func lanes(e operator.Detail) template.HTML {
	const left, width, lane = 210, 960, 26
	from, to := e.CreatedAt, e.CreatedAt
	see := func(all ...*time.Time) {
		for _, t := range all {
			if t != nil && t.Before(from) {
				from = *t
			}
			if t != nil && t.After(to) {
				to = *t
			}
		}
	}
	see(e.FailedAt, e.DeliveredAt, e.ClaimedAt, e.RelayedAt, e.FirstFailedAt)
	names := []string{}
	for _, h := range e.Handlers {
		see(h.HandledAt)
		names = append(names, h.Handler)
	}
	for _, a := range e.FailedAttempts {
		end := a.StartedAt.Add(time.Duration(a.DurationMs) * time.Millisecond)
		see(&a.StartedAt, &end)
		if !slices.Contains(names, a.Handler) {
			names = append(names, a.Handler)
		}
	}
	span := max(to.Sub(from).Seconds(), 0.001)
	unit := time.Millisecond
	if span > 10 {
		unit = time.Second
	}
	place := func(t time.Time) float64 { return left + t.Sub(from).Seconds()/span*(width-left-20) }
	height := (len(names)+1)*lane + 24
	d := draw(`class="lanes"`, "What happened to the event, by handler", width, height)
	for i := range 5 {
		x := left + float64(i)*(width-left-20)/4
		d.add(`<line class="grid" x1="%.1f" x2="%[1]f" y1="0" y2="%d"/>`, x, height-20)
		d.text([]string{"tick", "tick middle", "tick middle", "tick middle", "tick end"}[i], x, float64(height-6),
			"+"+time.Duration(span*float64(i)/4*float64(time.Second)).Round(unit).String(), 20)
	}
	point := func(row int, class string, t *time.Time, says string) {
		if t != nil {
			d.mark(fmt.Sprintf(`<circle class="%s" cx="%.1f" cy="%d" r="5"/>`, class, place(*t), row*lane+13),
				says+" "+t.UTC().Format(time.RFC3339Nano))
		}
	}
	d.text("name", 0, 17, "the event", 30)
	point(0, "begin", &e.CreatedAt, "published")
	point(0, "leased", e.ClaimedAt, "leased")
	point(0, "leased", e.RelayedAt, "taken by a broker")
	point(0, "failed", e.FailedAt, "failed")
	point(0, "handled", e.DeliveredAt, "delivered")
	for row, name := range names {
		d.text("name", 0, float64((row+1)*lane+17), name, 30)
		d.add(`<line class="lane" x1="%d" x2="%d" y1="%d" y2="%[3]d"/>`, left, width-20, (row+1)*lane+13)
		for _, a := range e.FailedAttempts {
			if a.Handler == name {
				x := place(a.StartedAt)
				w := max(float64(a.DurationMs)/1000/span*(width-left-20), 4)
				d.mark(fmt.Sprintf(`<rect class="failed" x="%.1f" y="%d" width="%.1f" height="12" rx="2"/>`, x, (row+1)*lane+7, w),
					fmt.Sprintf("attempt %d failed after %s: %s", a.Attempt, durationText(float64(a.DurationMs)/1000), a.ErrorClass))
			}
		}
		for _, h := range e.Handlers {
			if h.Handler == name {
				point(row+1, "handled", h.HandledAt, words(h.Stage))
			}
		}
	}
	return d.done()
}

// node is a context, an event type or a handler in a topology.
type node struct {
	Name, Class, Title string
	place              float64 // of its neighbours
}

// edge joins nodes of neighbouring columns.
type edge struct {
	From, To      string
	Rate          float64
	Class, Weight string // what it looks like; how it is said
}

// topology is three columns, and what joins each to the next.
type topology struct {
	Columns [3][]node
	Edges   [2][]edge
}

// topologyOf returns the topology of a generation.
func topologyOf(l operator.Live, g events.Generation, sources map[string]string) (t topology) {
	context := func(eventType string) string { return cmp.Or(sources[eventType], "unknown") }
	rates := map[string]float64{}
	for _, y := range l.Types {
		if y.Generation != g {
			continue
		}
		class, says := "", fmt.Sprintf("%s/s published, %s due", rateText(y.PublishedPerSecond), bounded(y.Due))
		switch {
		case y.PausedAt != nil:
			class, says = "paused", "paused, "+says
		case slices.Max(append(slices.Concat(y.Published, y.Handled), 0)) == 0:
			class, says = "silent", "silent for 30 minutes, "+says
		}
		t.Columns[1] = append(t.Columns[1], node{Name: y.EventType, Class: class, Title: says})
		t.Edges[0] = append(t.Edges[0], edge{context(y.EventType), y.EventType, y.PublishedPerSecond, class, says})
		rates[context(y.EventType)] += y.PublishedPerSecond
	}
	for name, perSecond := range rates {
		t.Columns[0] = append(t.Columns[0], node{Name: name, Title: rateText(perSecond) + "/s published"})
	}
	for _, h := range l.Handlers {
		if h.Generation != g {
			continue
		}
		if !slices.ContainsFunc(t.Columns[1], func(n node) bool { return n.Name == h.EventType }) {
			continue
		}
		class, says := "", fmt.Sprintf("%s/s handled, %s of calls fail", rateText(h.HandledPerSecond),
			percent(h.FailedCalls, h.Calls))
		switch {
		case h.Breaker != "closed":
			class, says = "paused", "breaker "+h.Breaker+", "+says
		case h.Calls > 0 && h.FailedCalls*20 >= h.Calls:
			class = "failing"
		case h.Calls == 0:
			class = "silent"
		}
		name := h.Handler
		if i := slices.IndexFunc(t.Columns[2], func(n node) bool { return n.Name == name }); i < 0 {
			t.Columns[2] = append(t.Columns[2], node{Name: name, Class: class, Title: says})
		} else if t.Columns[2][i].Class == "silent" {
			t.Columns[2][i].Class = class
		}
		t.Edges[1] = append(t.Edges[1], edge{h.EventType, name, h.HandledPerSecond, class, says})
	}
	t.order()
	return t
}

// order sorts the columns: the first by name, each further one by the mean place of its neighbours, then by name. It
// depends on names alone, so that nothing moves when rates change.
func (t *topology) order() {
	for c := range t.Columns {
		for i := range t.Columns[c] {
			n, sum, of := &t.Columns[c][i], 0, 0
			for _, e := range t.Edges[max(c-1, 0)] {
				if c > 0 && e.To == n.Name {
					sum += slices.IndexFunc(t.Columns[c-1], func(n node) bool { return n.Name == e.From })
					of++
				}
			}
			n.place = float64(sum) / float64(max(of, 1))
		}
		slices.SortFunc(t.Columns[c], func(a, b node) int {
			return cmp.Or(cmp.Compare(a.place, b.place), cmp.Compare(a.Name, b.Name))
		})
	}
}

// topologyChart draws a topology.
func topologyChart(t topology) template.HTML {
	const row, box, top = 34, 24, 30
	left, widths := [3]int{0, 250, 640}, [3]int{110, 300, 320}
	rows := max(len(t.Columns[0]), len(t.Columns[1]), len(t.Columns[2]), 1)
	d := draw(`class="topology"`, "Contexts, event types and handlers", 960, rows*row+top)
	place := func(column int, name string) float64 {
		all := t.Columns[column]
		i := slices.IndexFunc(all, func(n node) bool { return n.Name == name })
		step := float64(rows*row) / float64(max(len(all), 1)) // a shorter column is spread over the whole height
		return top + step*(float64(i)+.5)
	}
	for c, title := range []string{"Context", "Event type", "Handler"} {
		d.text("head", float64(left[c]), 16, title, 40)
	}
	for c, edges := range t.Edges {
		for _, e := range edges {
			x1, x2 := left[c]+widths[c], left[c+1]
			y1, y2, mid := place(c, e.From), place(c+1, e.To), (x1+x2)/2
			width := 1.5 + min(math.Log2(1+max(e.Rate, 0)), 8)
			d.mark(fmt.Sprintf(`<path class="edge %s" stroke-width="%.1f" d="M%d,%.1f C%d,%[4]f %[5]d,%[6]f %[7]d,%[6]f"/>`,
				e.Class, width, x1, y1, mid, y2, x2), e.From+" → "+e.To+": "+e.Weight)
		}
	}
	for c, nodes := range t.Columns {
		for _, n := range nodes {
			y := place(c, n.Name)
			d.add(`<g class="node %s"><title>%s</title><rect x="%d" y="%.1f" width="%d" height="%d" rx="5"/>`, n.Class,
				template.HTMLEscapeString(visible(n.Name+": "+n.Title)), left[c], y-box/2, widths[c], box)
			d.text("name", float64(left[c]+10), y+4, n.Name, widths[c]/8)
			d.add("</g>")
		}
	}
	return d.done()
}
