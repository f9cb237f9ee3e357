package telemetry

import (
	"cmp"
	"maps"
	"slices"
	"sync"
	"time"
)

// Line is what was counted of an event type, or of one of its handlers, in a minute.
type Line struct {
	Minute    time.Time `json:"-"` // when it began
	EventType string    `json:"event_type"`
	Handler   string    `json:"handler_name,omitempty"`
	Handled   int64     `json:"handled,omitempty"` // of a type: delivered
	Retried   int64     `json:"retried,omitempty"`
	Failed    int64     `json:"failed,omitempty"` // of a handler: calls
	Pickup    Histogram `json:"pickup,omitempty"`
	Handling  Histogram `json:"handling,omitempty"`
}

// Middle returns the middle of the minute.
func (l Line) Middle() time.Time { return l.Minute.Add(time.Minute / 2) }

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
	lines map[lineKey]*Line
}

type lineKey struct {
	minute             time.Time
	eventType, handler string
}

func (s *stats) add(eventType, handler string, count func(*Line)) {
	if !s.off {
		s.addTo(time.Now().Truncate(time.Minute), eventType, handler, count)
	}
}

func (s *stats) addTo(minute time.Time, eventType, handler string, count func(*Line)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.lines == nil {
		s.lines = make(map[lineKey]*Line)
	}
	key := lineKey{minute, eventType, handler}
	line, ok := s.lines[key]
	if !ok {
		line = &Line{Minute: minute, EventType: eventType, Handler: handler}
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

// TakeStats returns what was counted since the last time, in order of minute, type and handler.
func (t *Telemetry) TakeStats() []Line {
	t.stats.mu.Lock()
	defer t.stats.mu.Unlock()
	lines := make([]Line, 0, len(t.stats.lines))
	for line := range maps.Values(t.stats.lines) {
		lines = append(lines, *line)
	}
	t.stats.lines = nil
	slices.SortFunc(lines, func(a, b Line) int {
		return cmp.Or(a.Minute.Compare(b.Minute), cmp.Compare(a.EventType, b.EventType), cmp.Compare(a.Handler, b.Handler))
	})
	return lines
}

// keptMinutes is how many minutes are kept apart while they cannot be written.
const keptMinutes = 10

// AddStats gives back lines that could not be written. Those of long ago count in a later minute, so that there are
// few.
func (t *Telemetry) AddStats(lines []Line) {
	oldest := time.Now().Truncate(time.Minute).Add(-keptMinutes * time.Minute)
	for _, l := range lines {
		minute := l.Minute
		if minute.Before(oldest) {
			minute = oldest
		}
		t.stats.addTo(minute, l.EventType, l.Handler, func(to *Line) {
			to.Handled += l.Handled
			to.Retried += l.Retried
			to.Failed += l.Failed
			to.Pickup.merge(l.Pickup)
			to.Handling.merge(l.Handling)
		})
	}
}
