package admin

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/google/uuid"

	"spectral/internal/core/events"
)

// Status is what an event is to the people who look after it. Core.outbox has pending for [Due] and [Scheduled], and
// failed with a discarded_at for [Discarded].
type Status string

// The statuses.
const (
	Due       Status = "due"       // pending, and its time has come
	Scheduled Status = "scheduled" // pending until its time comes: published for later, or waiting for a retry
	InFlight  Status = "in_flight"
	Delivered Status = "delivered"
	Failed    Status = "failed"    // a dead letter that nobody has discarded
	Discarded Status = "discarded" // a dead letter that an operator has discarded
	// Expired is a delivered or failed event that retention has made a tombstone of. No filter matches it.
	Expired Status = "expired"
)

// Statuses are those that a [Filter] knows.
func Statuses() []Status {
	return []Status{Due, Scheduled, InFlight, Delivered, Failed, Discarded}
}

// The longest that a filter takes.
const (
	maxFilterValues = 1000
	maxFilterBytes  = 8192 // last_error has no more
)

// Filter says which events are meant: those that fit all of its fields, of each of which any value will do. The zero
// Filter is every event but tombstones.
type Filter struct {
	Statuses    []Status // none: all but [Discarded]
	EventTypes  []string
	Sources     []events.Scope
	Targets     []events.Scope // the empty one: events that are for every context
	Handlers    []string       // of which one has failed, in the current cycle, and has not handled the event since
	Workspaces  []uuid.NullUUID
	Generations []events.Generation
	Channels    []string
	// OlderThan and NewerThan bound the age by the database clock: since an event failed if it has, else since it was
	// published. Zero: no bound.
	OlderThan, NewerThan time.Duration
	ErrorClasses         []string // the text before the first colon of last_error
	ErrorContains        string   // a part of last_error, as it is written there
	// Tried asks for what a handler has tried, or for what none has, such as events that were published for later; nil: for both.
	Tried *bool
}

var eventTypeForm = regexp.MustCompile(`^[a-z][a-z0-9_]*(\.[a-z][a-z0-9_]*)+$`)

// Validate refuses what can match nothing, or was not meant, naming the field.
func (f Filter) Validate() error {
	var problems []error
	refuse := func(format string, args ...any) { problems = append(problems, fmt.Errorf(format, args...)) }
	for _, s := range f.Statuses {
		if !slices.Contains(Statuses(), s) {
			refuse("status %.40q: must be one of %s", s, Joined(Statuses()))
		}
	}
	for _, t := range f.EventTypes {
		if len(t) > events.MaxEventTypeBytes || !eventTypeForm.MatchString(t) {
			refuse("event type %.140q: must be lower-case words joined by dots, at most %d bytes", t, events.MaxEventTypeBytes)
		}
	}
	for _, s := range f.Sources {
		if !s.Known() {
			refuse("source %.40q: must be core, platform or worlds", s)
		}
	}
	for _, s := range f.Targets {
		if s != "" && !s.Known() {
			refuse("target %.40q: must be core, platform, worlds, or none", s)
		}
	}
	for _, g := range f.Generations {
		if g < 1 || g > events.MaxGeneration {
			refuse("generation %d: must be from 1 to %d", g, events.MaxGeneration)
		}
	}
	for _, c := range f.Channels {
		if !events.ValidChannel(c) {
			refuse("channel %.80q: must be a lower-case identifier of at most %d bytes", c, events.MaxChannelBytes)
		}
	}
	for name, age := range map[string]time.Duration{"older than": f.OlderThan, "newer than": f.NewerThan} {
		if age < 0 {
			refuse("%s %s: an age is not negative", name, age)
		}
	}
	if f.OlderThan > 0 && f.NewerThan > 0 && f.OlderThan >= f.NewerThan {
		refuse("older than %s and newer than %s: no event is both", f.OlderThan, f.NewerThan)
	}
	for _, c := range f.ErrorClasses {
		if c == "" || strings.Contains(c, ":") {
			refuse("error class %.40q: must be the text before the first colon of last_error", c)
		}
	}
	for name, n := range map[string]int{"statuses": len(f.Statuses), "event types": len(f.EventTypes), "sources": len(f.Sources),
		"targets": len(f.Targets), "handlers": len(f.Handlers), "workspaces": len(f.Workspaces), "generations": len(f.Generations),
		"channels": len(f.Channels), "error classes": len(f.ErrorClasses)} {
		if n > maxFilterValues {
			refuse("%d %s: at most %d", n, name, maxFilterValues)
		}
	}
	for _, text := range slices.Concat(f.Handlers, f.ErrorClasses, []string{f.ErrorContains}) {
		if len(text) > maxFilterBytes || !utf8.ValidString(text) || strings.Contains(text, "\x00") {
			refuse("%.40q: must be at most %d bytes of UTF-8 without NUL", text, maxFilterBytes)
		}
	}
	return errors.Join(problems...)
}

// Where is f as a condition on rows of core.outbox by the alias o, and its arguments, of which the first is $n. The
// condition names each status as the partial indexes do. The times are the statement's.
func (f Filter) Where(n int) (condition string, arguments []any) {
	w := where{first: n}
	statuses := f.Statuses
	if len(statuses) == 0 {
		statuses = slices.DeleteFunc(Statuses(), func(s Status) bool { return s == Discarded })
	}
	var alternatives []string
	for _, s := range slices.Compact(slices.Sorted(slices.Values(statuses))) {
		alternatives = append(alternatives, "("+s.condition()+")")
	}
	w.and("(" + strings.Join(alternatives, " or ") + ")")
	f.whereButStatus(&w)
	return strings.Join(w.conditions, " and "), w.arguments
}

// condition on a row of core.outbox o.
func (s Status) condition() string {
	switch s {
	case Due:
		return "o.status = 'pending' and o.deleted_at is null and o.available_at <= statement_timestamp()"
	case Scheduled:
		return "o.status = 'pending' and o.deleted_at is null and o.available_at > statement_timestamp()"
	case Discarded:
		return "o.status = 'failed' and o.deleted_at is not null and o.discarded_at is not null"
	default:
		return "o.status = '" + string(s) + "' and o.deleted_at is null"
	}
}

// where collects conditions that all hold.
type where struct {
	first      int
	conditions []string
	arguments  []any
}

// and adds a condition, in which each ? stands for the next argument.
func (w *where) and(condition string, arguments ...any) {
	for _, argument := range arguments {
		condition = strings.Replace(condition, "?", fmt.Sprintf("$%d", w.first+len(w.arguments)), 1)
		w.arguments = append(w.arguments, argument)
	}
	w.conditions = append(w.conditions, condition)
}

// errorClass is what operators group failures by.
const errorClass = "split_part(o.last_error, ':', 1)"

// since is the time that an event's age is counted from, as plainly as the statuses allow: then an index has it.
func (f Filter) since() string {
	failed := 0
	for _, s := range f.Statuses {
		if s == Failed || s == Discarded {
			failed++
		}
	}
	switch {
	case len(f.Statuses) > 0 && failed == len(f.Statuses):
		return "o.claimed_at"
	case len(f.Statuses) > 0 && failed == 0:
		return "o.created_at"
	default:
		return "case when o.status = 'failed' then o.claimed_at else o.created_at end"
	}
}

func (f Filter) whereButStatus(w *where) {
	if f.Tried != nil {
		w.and("core.tried(o.attempts, o.last_error) = ?", *f.Tried)
	}
	if len(f.EventTypes) > 0 {
		w.and("o.event_type = any (?::text[])", f.EventTypes)
	}
	if len(f.Sources) > 0 {
		w.and("o.source = any (?::text[])", Texts(f.Sources))
	}
	if len(f.Targets) > 0 {
		w.and("coalesce(o.target, '') = any (?::text[])", Texts(f.Targets))
	}
	if len(f.Handlers) > 0 {
		w.and("jsonb_exists_any(o.handler_failures, ?::text[])", f.Handlers)
	}
	if len(f.Workspaces) > 0 {
		var named []uuid.UUID
		none := false
		for _, workspace := range f.Workspaces {
			if workspace.Valid {
				named = append(named, workspace.UUID)
			} else {
				none = true
			}
		}
		switch {
		case !none:
			w.and("o.workspace_id = any (?::uuid[])", named)
		case len(named) == 0:
			w.and("o.workspace_id is null")
		default:
			w.and("(o.workspace_id is null or o.workspace_id = any (?::uuid[]))", named)
		}
	}
	if len(f.Generations) > 0 {
		w.and("o.generation = any (?::bigint[])", f.Generations)
	}
	if len(f.Channels) > 0 {
		w.and("o.channel = any (?::text[])", f.Channels)
	}
	since := f.since()
	if f.OlderThan > 0 {
		w.and(since+" <= statement_timestamp() - make_interval(secs => ?)", f.OlderThan.Seconds())
	}
	if f.NewerThan > 0 {
		w.and(since+" > statement_timestamp() - make_interval(secs => ?)", f.NewerThan.Seconds())
	}
	if len(f.ErrorClasses) > 0 {
		w.and(errorClass+" = any (?::text[])", f.ErrorClasses)
	}
	if f.ErrorContains != "" {
		w.and("strpos(o.last_error, ?) > 0", f.ErrorContains)
	}
}

// Texts are words as plain strings.
func Texts[S ~string](all []S) []string {
	out := make([]string, len(all))
	for i, s := range all {
		out[i] = string(s)
	}
	return out
}

// Joined are words in one line, for people.
func Joined[S ~string](all []S) string { return strings.Join(Texts(all), ", ") }
