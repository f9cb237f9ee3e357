package telemetry

import (
	"cmp"
	"maps"
	"slices"
	"sync"
)

// Line is what was counted of an event type, or of one of its handlers, since the last TakeStats.
type Line struct {
	EventType string    `json:"event_type"`
	Handler   string    `json:"handler_name,omitempty"`
	Handled   int64     `json:"handled,omitempty"` // of a type: delivered
	Retried   int64     `json:"retried,omitempty"`
	Failed    int64     `json:"failed,omitempty"` // of a handler: calls
	Pickup    Histogram `json:"pickup,omitempty"`
	Handling  Histogram `json:"handling,omitempty"`
}

// Histogram counts durations: one number for each bound of [Bounds], how many were up to it and above the one before,
// and another for the rest.
type Histogram []int64

// Bounds returns the bounds of histograms, in seconds.
func Bounds() []float64 { return slices.Clone(seconds) }

func (h *Histogram) add(durations ...float64) {
	if *h == nil {
		*h = make(Histogram, len(seconds)+1)
	}
	for _, d := range durations {
		place, _ := slices.BinarySearch(seconds, d)
		(*h)[place]++
	}
}

func (h *Histogram) merge(other Histogram) {
	if *h == nil {
		*h = other
		return
	}
	for i, n := range other {
		(*h)[i] += n
	}
}

// stats counts by event type and handler.
type stats struct {
	off   bool // nothing is counted
	mu    sync.Mutex
	lines map[[2]string]*Line
}

func (s *stats) add(eventType, handler string, count func(*Line)) {
	if s.off {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.lines == nil {
		s.lines = make(map[[2]string]*Line)
	}
	key := [2]string{eventType, handler}
	line, ok := s.lines[key]
	if !ok {
		line = &Line{EventType: eventType, Handler: handler}
		s.lines[key] = line
	}
	count(line)
}

// HasStats reports whether anything was counted since the last TakeStats.
func (t *Telemetry) HasStats() bool {
	t.stats.mu.Lock()
	defer t.stats.mu.Unlock()
	return len(t.stats.lines) > 0
}

// TakeStats returns what was counted since the last time, in order of type and handler. It is never nil.
func (t *Telemetry) TakeStats() []Line {
	t.stats.mu.Lock()
	defer t.stats.mu.Unlock()
	lines := make([]Line, 0, len(t.stats.lines))
	for line := range maps.Values(t.stats.lines) {
		lines = append(lines, *line)
	}
	t.stats.lines = nil
	slices.SortFunc(lines, func(a, b Line) int {
		return cmp.Or(cmp.Compare(a.EventType, b.EventType), cmp.Compare(a.Handler, b.Handler))
	})
	return lines
}

// AddStats gives back lines that could not be written.
func (t *Telemetry) AddStats(lines []Line) {
	for _, l := range lines {
		t.stats.add(l.EventType, l.Handler, func(to *Line) {
			to.Handled += l.Handled
			to.Retried += l.Retried
			to.Failed += l.Failed
			to.Pickup.merge(l.Pickup)
			to.Handling.merge(l.Handling)
		})
	}
}
