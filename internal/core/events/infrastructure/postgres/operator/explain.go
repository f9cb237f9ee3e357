package operator

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"

	"spectral/internal/core/events"
	"spectral/internal/core/events/infrastructure/postgres/pgtx"
)

// Cause is one reason why an event has not run, or what became of it.
type Cause struct {
	Code    string `json:"code"`    // a stable word
	Fact    string `json:"fact"`    // for people, with times, names and counts
	Command string `json:"command"` // shows more, or ends the cause
}

// Explanation has the causes of one event, or of an event type in one generation. What alone keeps an event from
// running comes first.
type Explanation struct {
	EventID    *uuid.UUID        `json:"event_id,omitempty"` // nil: of a type
	OccurredAt *time.Time        `json:"occurred_at,omitempty"`
	EventType  string            `json:"event_type"`
	Generation events.Generation `json:"generation"`
	Status     string            `json:"status"` // of the event, or of the generation
	Causes     []Cause           `json:"causes"`
}

// lane is an event type in a generation: what its events share.
type lane struct {
	EventType        string
	Generation       events.Generation
	GenerationStatus *string
	HighestLive      *int64
	Workers          int // live ones with a handler of the type
	PausedAt         *time.Time
	PausedBy, Reason *string
	PerSecond        *float64 // delivered, in the last ten complete minutes
	Older            int      // due events: before the event, or all of the type
	OldestDue        *time.Time
	now              time.Time
}

// subject is an event with what explains it.
type subject struct {
	Detail
	lane
	LockedBy, Runner                 *string
	Locked, Unconsumed, Unregistered bool
	RetainedTo                       *time.Time // by retention, of a failed event
}

// The columns and joins of a lane; o has its generation and event_type.
const (
	laneColumns = `d.status as generation_status, p.paused_at, p.paused_by, p.reason,
  (select max(l.generation) from core.deployments l where l.status = 'live') as highest_live,
  (select count(*)::int from core.live_workers w where w.generation = o.generation
    and w.handlers ? o.event_type) as workers,
  (select sum(s.handled)::double precision / 600 from core.event_stats s where not s.hourly
    and s.at >= date_trunc('minute', statement_timestamp(), 'UTC') - interval '10 minutes'
    and s.at < date_trunc('minute', statement_timestamp(), 'UTC')
    and s.generation = o.generation and s.event_type = o.event_type and s.handler_name = '') as per_second`
	laneJoins = `
left join core.deployments d on d.generation = o.generation
left join core.paused_types p on p.generation = o.generation and p.event_type = o.event_type`
	dueOf = `from core.outbox x where x.generation = o.generation and x.event_type = o.event_type
    and x.status = 'pending' and x.deleted_at is null and x.available_at <= statement_timestamp()`
)

// Explain returns why the event of that id has not run, or of each, if several share it. It waits for no lock. If there
// is none it returns a [*RefusedError] (SP031).
func (c *Client) Explain(ctx context.Context, id uuid.UUID) (all []Explanation, err error) {
	err = c.search(ctx, "explain event", 0, func(tx *pgtx.Tx, now time.Time) error {
		if _, err := tx.Exec(ctx, byIndex); err != nil {
			return err
		}
		found, err := rows[subject](ctx, tx, "select "+displayed+", "+laneColumns+`, o.claimed_by,
  case when o.status = 'in_flight' and isfinite(o.claimed_at)
    then o.claimed_at + make_interval(secs => o.lease_seconds) end as lease_expires_at,
  core.unconsumed(o.event_type, o.event_version, o.generation) as unconsumed,
  not exists (select from core.event_types t where t.event_type = o.event_type
    and t.event_version = o.event_version) as unregistered,
  case when o.status = 'failed' and o.deleted_at is null and isfinite(o.claimed_at) then
    (select greatest(o.occurred_at, o.claimed_at) + make_interval(hours => r.active_ttl_days * 24)
     from core.retention_policies r where r.subject = 'outbox_row' and r.content_class = '*') end as retained_to,
  (select string_agg(w.name, ', ') from core.claim_journal j join core.live_workers w using (worker_id)
   where o.id = any (j.ids) and o.available_at <= j.claimed_at) as runner,
  k.pids is not null as locked,
  (select string_agg(concat_ws(', ', 'pid ' || n.pid || coalesce(' of ' || a.usename, ''),
     nullif(a.application_name, ''), a.state, 'since ' || a.xact_start), '; ')
   from unnest(k.pids) as n(pid) left join pg_stat_activity a on a.pid = n.pid) as locked_by,
  case when o.status = 'pending' then (select count(*)::int from (select `+dueOf+`
    and x.available_at < o.available_at order by x.available_at limit $2 + 1) x) else 0 end as older
from core.outbox o`+laneJoins+`
cross join lateral (select case when o.status = 'pending' and o.deleted_at is null
  then core.outbox_locked_by(o.id, o.occurred_at) end as pids offset 0) k
where o.id = $1 order by o.occurred_at`, id, MaxWaiting)
		if err == nil && len(found) == 0 {
			err = unknownEvent(id)
		}
		for _, s := range found {
			s.now = now
			if err == nil {
				s.Handlers, err = rows[HandlerState](ctx, tx, handlerStates, id, s.OccurredAt)
			}
			var breakers []Cause
			if err == nil {
				breakers, err = s.breakers(ctx, tx, textOr(s.WaitingFor, ""), s.toRun())
			}
			all = append(all, Explanation{
				EventID: &id, OccurredAt: &s.OccurredAt, EventType: s.EventType, Generation: s.Generation,
				Status: string(s.Status), Causes: s.causes(breakers),
			})
		}
		return err
	})
	return all, err
}

// ExplainType returns what keeps the events of a type from running, in each generation that has pending ones or a live
// worker for it. It returns a [*RefusedError] (SP030) for a type that is not registered.
func (c *Client) ExplainType(ctx context.Context, eventType string) (all []Explanation, err error) {
	err = c.search(ctx, "explain type", 0, func(tx *pgtx.Tx, now time.Time) error {
		if _, err := tx.Exec(ctx, byIndex); err != nil {
			return err
		}
		known := false
		if err := tx.QueryRow(ctx, "select exists (select from core.event_types t where t.event_type = $1)",
			eventType).Scan(&known); err != nil {
			return err
		}
		lanes, err := rows[lane](ctx, tx, "select o.event_type, o.generation, "+laneColumns+`,
  (select count(*)::int from (select `+dueOf+` order by x.available_at limit $2 + 1) x) as older,
  (select x.available_at `+dueOf+` order by x.available_at limit 1) as oldest_due
from (select t.generation, t.event_type from core.pending_types() t where t.event_type = $1
  union select w.generation, $1 from core.live_workers w where w.handlers ? $1) o`+laneJoins+`
order by o.generation`, eventType, MaxWaiting)
		if err == nil && len(lanes) == 0 && !known {
			err = &RefusedError{Code: events.CodeArgument, Field: "event_type",
				Reason: fmt.Sprintf("event_type: %.200q is not registered", eventType),
				Hint: "`workers events stats --by type` lists types that have events; `workers migrate up` registers " +
					"those of a build"}
		}
		for _, l := range lanes {
			l.now = now
			var breakers []Cause
			if err == nil {
				breakers, err = l.breakers(ctx, tx, "", nil)
			}
			all = append(all, Explanation{EventType: l.EventType, Generation: l.Generation,
				Status: textOr(l.GenerationStatus, "unknown"),
				Causes: slices.Concat(l.unhandled(), l.paused(), breakers, l.due(len(breakers) > 0))})
		}
		return err
	})
	return all, err
}

// causes returns why s has not run, or what became of it.
func (s *subject) causes(breakers []Cause) (all []Cause) {
	add := func(when bool, code, command, fact string, args ...any) {
		if when {
			all = append(all, Cause{code, fmt.Sprintf(fact, args...), command})
		}
	}
	id, is := s.ID.String(), func(status Status) bool { return s.Status == status }
	replay := "workers generation status" // a replay needs a live generation
	if s.HighestLive != nil {
		replay = fmt.Sprintf("workers events replay %s --to %d --dry-run", id, *s.HighestLive)
	}
	lastError, _, _ := strings.Cut(textOr(s.LastError, "for no known reason"), "\n")
	pending := is(Due) || is(Scheduled)
	open := pending || is(InFlight) || is(Relayed)
	waits := s.WaitingFor != nil && len(breakers) > 0
	running := pending && s.Locked && s.Runner != nil
	contexts := map[bool]int{} // handlers of the target, and others
	for _, h := range s.Handlers {
		contexts[h.Stage != "not_target"]++
	}

	add(is(Delivered), "delivered", "workers events show "+id, "was delivered at %s%s", s.at(s.DeliveredAt), s.handled())
	add(is(Failed), "failed", replay, "failed at %s: %s", s.at(s.FailedAt), lastError)
	add(is(Discarded), "discarded", "workers events undiscard "+id, "an operator discarded it at %s", s.at(s.DeletedAt))
	add(is(Expired), "expired", "workers retention status", "is past its retention since %s", s.at(s.DeletedAt))
	add(is(Quarantined), "quarantined", "workers events retry-now "+id,
		"is quarantined, no worker claims it until its row can be written: %s", lastError)
	add(running, "running", "workers doctor transactions", "worker %s handles it now", textOr(s.Runner, ""))
	if open || is(Quarantined) {
		add(s.Unconsumed, "no_consumer", s.adopt(), "generation %d has no consumer of %s", s.Generation,
			s.EventType)
		all = append(all, s.unhandled()...)
		add(s.lane.Workers > 0 && s.Target != nil && contexts[true] == 0, "no_handler", "workers handlers list",
			"its target %s has no handler of %s in generation %d", textOr(s.Target, ""), s.EventType, s.Generation)
	}
	add(is(InFlight), "leased", "workers doctor leases transactions", "worker %s has it until %s",
		textOr(s.ClaimedBy, "unknown"), s.at(s.LeaseExpiresAt))
	add(is(Relayed), "relayed", "workers doctor relay", "a broker has it for its handlers since %s", s.at(s.RelayedAt))
	if open {
		all = append(all, s.paused()...)
		all = append(all, breakers...)
	}
	retrying := s.FirstFailedAt != nil
	add(is(Scheduled) && !waits && retrying, "backing_off", "workers events retry-now "+id,
		"waits after failed attempt %d until %s: %s", s.Attempts, s.at(&s.AvailableAt), lastError)
	add(is(Scheduled) && !waits && !retrying, "not_due", "workers events retry-now "+id, "is not due until %s",
		s.at(&s.AvailableAt))
	add(pending && s.Locked && !running, "locked", "workers doctor transactions", "its row is locked by %s",
		textOr(s.LockedBy, "a session that is not known"))
	add(is(Due) && !running && s.Older > 0, "behind", "workers events stats --since 1h --type "+s.EventType,
		"older events of its type that come first: %s%s", s.count(), s.until())
	add(len(all) == 0, "due_now", "workers doctor unhandled listeners transactions",
		"is due since %s, and a live worker should take it", s.at(&s.AvailableAt))
	add(open && s.Unregistered, "no_version", "workers migrate up", "no build has registered version %d of %s",
		s.EventVersion, s.EventType)
	for _, h := range s.Handlers {
		if h.HandledAs != nil {
			add(true, "duplicate", "workers events show "+h.HandledAs.String(), "%s has handled event %s of the same key",
				h.Handler, h.HandledAs)
		}
	}
	add(s.RetainedTo != nil && s.RetainedTo.Before(s.now.Add(7*24*time.Hour)), "expiring", "workers retention status",
		"its payload is deleted by retention at %s", s.at(s.RetainedTo))
	return all
}

// toRun returns the handlers of s that may still have to run.
func (s *subject) toRun() []string {
	names := []string{}
	for _, h := range s.Handlers {
		if h.Stage == "to_run" || h.Stage == "failing" {
			names = append(names, h.Handler)
		}
	}
	return names
}

// handled returns which handlers have handled s, and when.
func (s *subject) handled() string {
	var by []string
	for _, h := range s.Handlers {
		if h.HandledAt != nil {
			by = append(by, fmt.Sprintf("%s %s at %s", h.Handler, h.Stage, h.HandledAt.UTC().Format(time.RFC3339)))
		}
	}
	if len(by) == 0 {
		return "; no handler ran"
	}
	return ": " + strings.Join(by, ", ")
}

// unhandled returns why the generation handles no event of the type.
func (l *lane) unhandled() []Cause {
	switch {
	case textOr(l.GenerationStatus, "") == "retired":
		return []Cause{{"retired", fmt.Sprintf("generation %d is retired: no worker handles it", l.Generation), l.adopt()}}
	case l.Workers == 0:
		return []Cause{{"no_worker", fmt.Sprintf("no live worker of generation %d handles %s", l.Generation, l.EventType),
			l.adopt()}}
	}
	return nil
}

// adopt returns the command that moves pending events to the highest live generation; the one that shows generations if
// that is theirs.
func (l *lane) adopt() string {
	if l.HighestLive == nil || events.Generation(*l.HighestLive) == l.Generation {
		return "workers doctor unhandled listeners"
	}
	return fmt.Sprintf("workers generation adopt %d %d --type %s --dry-run", l.Generation, *l.HighestLive, l.EventType)
}

func (l *lane) paused() []Cause {
	if l.PausedAt == nil {
		return nil
	}
	fact := fmt.Sprintf("%s is paused in generation %d since %s by %s", l.EventType, l.Generation, l.at(l.PausedAt),
		textOr(l.PausedBy, "unknown"))
	if l.Reason != nil {
		fact += ": " + *l.Reason
	}
	return []Cause{{"paused", fact, fmt.Sprintf("workers events resume %s --generation %d", l.EventType, l.Generation)}}
}

// breakers returns the open breakers of the type: of the handler that an event waits for, and of those that have still
// to run; nil: of all.
func (l *lane) breakers(ctx context.Context, tx *pgtx.Tx, waitingFor string, toRun []string) (all []Cause, err error) {
	found, err := rows[struct {
		HandlerName, OpenedBy, Cause string
		OpenedAt                     time.Time
		Forced                       bool
		Waiting                      int
	}](ctx, tx, `
select b.handler_name, b.opened_by, b.cause, b.opened_at, b.forced,
  (select count(*)::int from (select from core.outbox o where o.generation = b.generation
    and o.waiting_for = b.handler_name and o.status = 'pending' and o.deleted_at is null limit $5) w) as waiting
from core.breakers b
where b.generation = $1 and b.event_type = $2 and not b.closing
  and (b.handler_name = $3 or coalesce(b.handler_name = any ($4), true))
order by b.handler_name <> $3, b.handler_name`, l.Generation, l.EventType, waitingFor, toRun, MaxWaiting)
	for _, b := range found {
		command := "workers handlers list"
		if b.Forced {
			command = fmt.Sprintf("workers handlers close %s --generation %d", b.HandlerName, l.Generation)
		}
		all = append(all, Cause{"breaker", fmt.Sprintf("the breaker of %s is open since %s by %s: %s; %d events wait for "+
			"it", b.HandlerName, l.at(&b.OpenedAt), b.OpenedBy, b.Cause, b.Waiting), command})
	}
	return all, err
}

// due returns how many events of the type are due, and when they are done; nothing if none is, and others wait.
func (l *lane) due(wait bool) []Cause {
	if l.Older == 0 && wait {
		return nil
	}
	if l.Older == 0 {
		return []Cause{{"none_due", "no event is due", "workers events list --status pending --type " + l.EventType}}
	}
	fact := fmt.Sprintf("due events: %s, the oldest since %s%s", l.count(), l.at(l.OldestDue), l.until())
	return []Cause{{"due", fact, "workers events stats --since 1h --type " + l.EventType}}
}

func (l *lane) count() string {
	if l.Older > MaxWaiting {
		return "10,000+"
	}
	return fmt.Sprint(l.Older)
}

// until says when the older events are done, by the rate of the last ten minutes.
func (l *lane) until() string {
	if l.PerSecond == nil || *l.PerSecond <= 0 {
		return "; no rate is known: none was delivered in the last 10 minutes"
	}
	about, least := pgtx.Seconds(float64(l.Older) / *l.PerSecond).Round(time.Second), ""
	if l.Older > MaxWaiting {
		least = "at least "
	}
	return fmt.Sprintf("; done in about %s%s, at %.3g a second", least, about, *l.PerSecond)
}

// at returns a time, and how far it is from now.
func (l *lane) at(t *time.Time) string {
	if t == nil {
		return "an unknown time"
	}
	distance := t.Sub(l.now).Round(time.Second)
	if distance < 0 {
		return fmt.Sprintf("%s (%s ago)", t.UTC().Format(time.RFC3339), -distance)
	}
	return fmt.Sprintf("%s (in %s)", t.UTC().Format(time.RFC3339), distance)
}

func textOr[S ~string](text *S, other string) string {
	if text == nil {
		return other
	}
	return cmp.Or(string(*text), other)
}
