package operator

import (
	"fmt"
	"slices"
	"strings"
	"time"

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
	Relayed   Status = "relayed" // sent to a broker, which has it for its handlers
	// Quarantined is a pending or in-flight event that no worker claims, because its row cannot be written.
	Quarantined Status = "quarantined"
	Delivered   Status = "delivered"
	Failed      Status = "failed"    // a dead letter that no operator has discarded
	Discarded   Status = "discarded" // a dead letter that an operator has discarded
	// retrying is a pending or in-flight event that has failed before. No filter of operators has it.
	retrying Status = "retrying"
	// Expired is a delivered or failed event that retention made a tombstone. No filter matches it.
	Expired Status = "expired"
)

// Statuses returns the statuses that a [Filter] knows.
func Statuses() []Status {
	return []Status{Due, Scheduled, InFlight, Relayed, Quarantined, Delivered, Failed, Discarded}
}

// Filter selects events: those that match each field that is set. A list matches any of its values. The zero Filter
// selects every event except tombstones.
type Filter struct {
	Statuses    []Status // none: all but [Discarded]
	EventTypes  []string
	Sources     []events.Scope
	Targets     []events.Scope // the empty one: events for every context
	Handlers    []string       // at least one failed in the current cycle and has not handled the event since
	Workspaces  []uuid.NullUUID
	Generations []events.Generation
	Channels    []string
	// OlderThan and NewerThan bound the age by the database clock: the time since the event failed, or else since it
	// was published. Zero is no bound.
	OlderThan, NewerThan time.Duration
	ErrorClasses         []string // the text before the first colon of last_error
	ErrorContains        string   // a part of last_error, verbatim
	Groups               []string // of errors: a failure of the current cycle belongs to one of them
	// Tried selects events that a handler has tried, or that are quarantined, or, if false, those that none has, such as
	// events published for a later time; nil selects both.
	Tried *bool
	// AsOf, if set, selects events that have failed or were delivered, and not changed since: as they were at that time.
	AsOf time.Time `json:"-"`
}

// Where returns f as a condition on rows o of core.outbox, and its arguments, of which the first is $n. The condition
// names each status as the partial indexes do. Times are those of the statement.
func (f Filter) Where(n int) (condition string, arguments []any) {
	w := where{first: n}
	f.conditions(&w)
	return w.all(), w.arguments
}

func (f Filter) statuses() []Status {
	if len(f.Statuses) > 0 {
		return f.Statuses
	}
	return slices.DeleteFunc(Statuses(), func(s Status) bool { return s == Discarded })
}

// Conditions of events that workers pass over, and of the others.
const (
	quarantined    = "exists (select from core.quarantined_events q where q.id = o.id and q.occurred_at = o.occurred_at)"
	notQuarantined = " and not " + quarantined
)

// condition returns SQL that is true for a row o of core.outbox in that status.
func (s Status) condition() string {
	switch s {
	case Due:
		return "o.status = 'pending' and o.deleted_at is null and o.available_at <= statement_timestamp()" + notQuarantined
	case Scheduled:
		return "o.status = 'pending' and o.deleted_at is null and o.available_at > statement_timestamp()" + notQuarantined
	case Quarantined:
		return "o.id = any (array(select q.id from core.quarantined_events q)) and " + quarantined +
			" and o.status in ('pending', 'in_flight') and o.deleted_at is null"
	case Discarded:
		return "o.status = 'failed' and o.deleted_at is not null and o.discarded_at is not null"
	case retrying:
		return "o.status in ('pending', 'in_flight') and o.deleted_at is null and o.first_failed_at is not null"
	case InFlight:
		return "o.status = 'in_flight' and o.deleted_at is null" + notQuarantined
	case Relayed, Delivered, Failed:
		return "o.status = '" + string(s) + "' and o.deleted_at is null"
	default:
		return "false"
	}
}

// where collects conditions that must all hold.
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

// when adds a condition if it is asked for.
func (w *where) when(asked bool, condition string, argument any) {
	if asked {
		w.and(condition, argument)
	}
}

// all returns the conditions joined by and.
func (w *where) all() string { return strings.Join(w.conditions, " and ") }

// errorClass is what operators group failures by.
const errorClass = "split_part(" + lastError + ", ':', 1)"

// since returns the column from which an event's age is counted. If the statuses allow it, that is a plain column,
// because an index has it.
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

func (f Filter) conditions(w *where) {
	var alternatives []string
	for _, s := range slices.Compact(slices.Sorted(slices.Values(f.statuses()))) {
		alternatives = append(alternatives, "("+s.condition()+")")
	}
	w.and("(" + strings.Join(alternatives, " or ") + ")")
	w.when(f.Tried != nil, "(core.tried(o.attempts, o.last_error) or "+Quarantined.condition()+") = ?", f.Tried)
	w.when(len(f.EventTypes) > 0, "o.event_type = any (?::text[])", f.EventTypes)
	w.when(len(f.Sources) > 0, "o.source = any (?::text[])", Strings(f.Sources))
	w.when(len(f.Targets) > 0, "coalesce(o.target, '') = any (?::text[])", Strings(f.Targets))
	w.when(len(f.Handlers) > 0, "jsonb_exists_any(o.handler_failures, ?::text[])", f.Handlers)
	// it also finds a null
	w.when(len(f.Workspaces) > 0, "array_position(?::uuid[], o.workspace_id) is not null", f.Workspaces)
	w.when(len(f.Generations) > 0, "o.generation = any (?::bigint[])", f.Generations)
	w.when(len(f.Channels) > 0, "o.channel = any (?::text[])", f.Channels)
	f.age(w, f.OlderThan, olderThan)
	f.age(w, f.NewerThan, newerThan)
	if !f.AsOf.IsZero() {
		w.and("case when o.status = 'failed' then o.claimed_at else o.delivered_at end < ?::timestamptz", f.AsOf)
		w.and("coalesce(o.undiscarded_at < ?::timestamptz, true)", f.AsOf)
	}
	w.when(len(f.ErrorClasses) > 0, errorClass+" = any (?::text[])", f.ErrorClasses)
	w.when(len(f.Groups) > 0, "exists (select from jsonb_each(o.handler_failures) as h "+
		"where h.value ->> 'group' = any (?::text[]))", f.Groups)
	w.when(f.ErrorContains != "", "strpos("+lastError+", ?) > 0", f.ErrorContains)
}

// age adds the bound of an age, if there is one.
func (f Filter) age(w *where, age time.Duration, bound string) {
	switch {
	case age <= 0:
	case f.AsOf.IsZero():
		w.and(f.since()+bound, age.Seconds())
	default:
		w.and(f.since()+strings.Replace(bound, "statement_timestamp()", "?::timestamptz", 1), f.AsOf, age.Seconds())
	}
}

// Bounds of an age, to be appended to the time that it is counted from.
const (
	olderThan = " <= statement_timestamp() - make_interval(secs => ?)"
	newerThan = " > statement_timestamp() - make_interval(secs => ?)"
)

// Strings returns words as plain strings.
func Strings[S ~string](all []S) []string {
	out := make([]string, len(all))
	for i, s := range all {
		out[i] = string(s)
	}
	return out
}

// Joined returns words in one line, separated by commas.
func Joined[S ~string](all []S) string { return strings.Join(Strings(all), ", ") }
