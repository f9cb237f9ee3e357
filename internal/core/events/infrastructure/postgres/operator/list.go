package operator

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgerrcode"
	"github.com/jackc/pgx/v5/pgtype"

	"spectral/internal/core/events"
	"spectral/internal/core/events/infrastructure/postgres/pgtx"
)

// The size of a page, and the limit of a statement that searches events.
const (
	DefaultPageSize      = 50
	MaxPageSize          = 1000
	DefaultSearchTimeout = 30 * time.Second
)

// TooBroadError says that a search was cancelled, because it read too much.
type TooBroadError struct{ After time.Duration }

func (e *TooBroadError) Error() string {
	return fmt.Sprintf("the search was given up after %s: it reads too many events; ask for fewer statuses (delivered "+
		"events are the many), or for a type and generation, or give it more time", e.After)
}

// ErrCursor says that a cursor is not one of this filter.
var ErrCursor = errors.New("the cursor is not one of this filter: pass what the page before ended with, and the same " +
	"filter")

// Event is a row of core.outbox without its payload.
type Event struct {
	ID           uuid.UUID         `json:"event_id"`
	EventType    string            `json:"event_type"`
	EventVersion int               `json:"event_version"`
	OccurredAt   time.Time         `json:"occurred_at"`
	Source       events.Scope      `json:"source"`
	Target       *events.Scope     `json:"target"` // null: every context
	WorkspaceID  uuid.NullUUID     `json:"workspace_id"`
	Status       Status            `json:"status"`
	Generation   events.Generation `json:"generation"`
	Channel      string            `json:"channel"`
	Attempts     int               `json:"attempts"` // in the current cycle
	Crashes      int               `json:"crashes"`
	// PriorReplays is the number of cycles before the current one.
	PriorReplays  int        `json:"prior_replays"`
	LastError     *string    `json:"last_error"`
	FirstFailedAt *time.Time `json:"first_failed_at"` // in the current cycle
	CreatedAt     time.Time  `json:"created_at"`
	AvailableAt   time.Time  `json:"available_at"`
	WaitingFor    *string    `json:"waiting_for"` // the handler whose breaker a pending event waits for
	ClaimedAt     *time.Time `json:"claimed_at"`  // of a lease
	RelayedAt     *time.Time `json:"relayed_at"`  // when a broker took it
	FailedAt      *time.Time `json:"failed_at"`
	DeliveredAt   *time.Time `json:"delivered_at"`
	DeletedAt     *time.Time `json:"deleted_at"` // of a tombstone
}

// displayed has the columns of Event; o is the row. A time that was written by hand may be infinite, which Go cannot
// represent: it is shown as null.
const displayed = `o.id, o.event_type, o.event_version, o.occurred_at, o.source, o.target, o.workspace_id,
  ` + status + ` as status,
  o.generation, o.channel, o.attempts, o.crashes,
  core.prior_replays(o.failure_history) as prior_replays,
  ` + lastError + ` as last_error,
  case when isfinite(o.first_failed_at) then o.first_failed_at end as first_failed_at,
  o.created_at, o.available_at - case when o.waiting_for is null then interval '0' else interval '1000 years' end
    as available_at, case when o.status = 'pending' then o.waiting_for end as waiting_for,
  case when o.status = 'in_flight' and isfinite(o.claimed_at) then o.claimed_at end as claimed_at,
  case when isfinite(o.relayed_at) then o.relayed_at end as relayed_at,
  case when o.status = 'failed' and isfinite(o.claimed_at) then o.claimed_at end as failed_at,
  case when isfinite(o.delivered_at) then o.delivered_at end as delivered_at,
  case when isfinite(o.deleted_at) then o.deleted_at end as deleted_at`

// unmasked has the columns of core.outbox that every role may read: all but the payload.
const unmasked = `o.id, o.event_type, o.event_version, o.occurred_at, o.source, o.target, o.workspace_id, o.status,
  o.generation, o.channel, o.attempts, o.crashes, o.failure_history, o.last_error, o.handler_failures,
  o.first_failed_at, o.created_at, o.available_at, o.waiting_for, o.claimed_at, o.relayed_at, o.delivered_at,
  o.discarded_at, o.undiscarded_at, o.deleted_at, o.cause_id, o.corrects`

// status is the Status of the row o.
const status = "case when " + quarantinedFor + ` is not null then 'quarantined'
       when o.status = 'pending' and o.deleted_at is null
            then case when o.available_at <= statement_timestamp() then 'due' else 'scheduled' end
       when o.discarded_at is not null then 'discarded'
       when o.deleted_at is not null then 'expired' else o.status end`

// quarantinedFor is why an event is quarantined, or null.
const quarantinedFor = "(select q.reason from core.quarantined_events q where q.id = o.id " +
	"and q.occurred_at = o.occurred_at and o.status in ('pending', 'in_flight') and o.deleted_at is null)"

// lastError is the latest failure; of a quarantined event, why it is quarantined.
const lastError = "coalesce('RowFault: outbox: ' || " + quarantinedFor + ", o.last_error)"

// Page asks for one page of what a filter selects, of at most Limit events or actions.
type Page struct {
	Limit int // from 1 to MaxPageSize
	// After is the Next of the page before; empty for the first page.
	After string
	// Timeout bounds each statement; zero means [DefaultSearchTimeout].
	Timeout time.Duration
	// EventIDs asks for the ids of the events of each action, up to a thousand each.
	EventIDs bool
}

// EventPage is one page of events.
type EventPage struct {
	AsOf   time.Time `json:"as_of"` // by the database clock
	Events []Event   `json:"events"`
	// Next is the cursor of the next page; empty after the last one.
	Next string `json:"next,omitempty"`
}

// Find returns a page of the events that filter selects, the latest first: failed, pending and relayed events by the
// time they failed, are due or were sent, others by their ids, which are ordered by time. A page costs the same however
// many events there are. An event that is published or fails while a caller reads the pages is not in a later page. No
// event is in two pages, unless it failed or became pending again in between. It returns a [*TooBroadError] if it takes
// too long, [ErrCursor] for the cursor of another filter.
func (c *Client) Find(ctx context.Context, filter Filter, page Page) (EventPage, error) {
	places := make(map[string]position)
	if page.After != "" {
		if err := fromCursor(page.After, filter, &places); err != nil {
			return EventPage{}, err
		}
	}
	w := where{first: 1}
	var parts []string
	for _, b := range branches {
		if part := b.query(&w, filter, places, page.Limit+1); part != "" {
			parts = append(parts, part)
		}
	}
	found := EventPage{Events: []Event{}}
	err := c.search(ctx, "find events", page.Timeout, func(tx *pgtx.Tx, asOf time.Time) error {
		if _, err := tx.Exec(ctx, byIndex); err != nil {
			return err
		}
		all, err := rows[placed](ctx, tx, "select * from ("+strings.Join(parts, " union all ")+
			") e order by e.place desc, e.id desc, e.occurred_at desc limit "+strconv.Itoa(page.Limit+1), w.arguments...)
		more := len(all) > page.Limit
		for _, e := range all[:min(len(all), page.Limit)] {
			found.Events = append(found.Events, e.Event)
			places[e.Branch] = position{e.Key, e.ID, e.OccurredAt}
		}
		if found.AsOf = asOf; err == nil && more {
			found.Next, err = toCursor(filter, places)
		}
		return err
	})
	return found, err
}

// byIndex makes the server read rows in the order of an index, whatever its statistics say.
const byIndex = "set local enable_sort = off; set local enable_seqscan = off; set local enable_bitmapscan = off"

// search is [Client.inTx] with a timeout for each statement. It passes the database's time at the beginning.
func (c *Client) search(ctx context.Context, what string, timeout time.Duration,
	work func(*pgtx.Tx, time.Time) error) error {
	if timeout <= 0 {
		timeout = DefaultSearchTimeout
	}
	err := c.inTx(ctx, what, func(tx *pgtx.Tx) error {
		if _, err := tx.Exec(ctx, fmt.Sprintf(
			// positions are times as text: read them as they were written, whatever the login's defaults
			"set local statement_timeout = %d; set local jit = off; set local datestyle = 'ISO'; set local timezone = 'UTC'",
			max(timeout.Milliseconds(), 1))); err != nil {
			return err
		}
		var now time.Time
		if err := tx.QueryRow(ctx, "select clock_timestamp()").Scan(&now); err != nil {
			return err
		}
		return work(tx, now.UTC())
	})
	if hasCode(err, pgerrcode.QueryCanceled) && ctx.Err() == nil {
		return fmt.Errorf("%s: %w", what, &TooBroadError{After: timeout})
	}
	return err
}

// branch is a group of statuses whose events are read in the order of one index: by key, then by id and occurred_at.
type branch struct {
	name     string
	key      string // the first column of the order; empty: it is the id
	statuses []Status
}

var branches = []branch{
	{"pending", "o.available_at", []Status{Due, Scheduled}}, {"failed", "o.claimed_at", []Status{Failed}},
	{"discarded", "o.claimed_at", []Status{Discarded}}, {"in_flight", "", []Status{InFlight}},
	{"relayed", "o.relayed_at", []Status{Relayed}},
	{"quarantined", "", []Status{Quarantined}},
	{"delivered", "", []Status{Delivered}},
}

// position of an event in the order of its branch.
type position struct {
	Key        string    `json:"k"` // as Postgres prints it; empty for null
	ID         uuid.UUID `json:"i"`
	OccurredAt time.Time `json:"o"`
}

// placed is a row of a branch's query.
type placed struct {
	Event
	Branch, Key string
	Place       pgtype.Timestamptz // may be infinite
}

// query returns SQL for the next events of b that f selects, at most limit; empty if f selects none of b's statuses.
func (b branch) query(w *where, f Filter, places map[string]position, limit int) string {
	asked := f.statuses()
	f.Statuses = nil
	for _, s := range b.statuses {
		if slices.Contains(asked, s) {
			f.Statuses = append(f.Statuses, s)
		}
	}
	if len(f.Statuses) == 0 {
		return ""
	}
	w.conditions = nil
	f.conditions(w)
	// ids are only roughly in the order of time: the earliest time so far is in order, and close to each
	order := "o.id desc, o.occurred_at desc"
	key, place := "''", "min(o.created_at) over (order by "+order+")"
	if b.key != "" {
		key, place, order = "coalesce("+b.key+"::text, '')", b.key, b.key+" desc, "+order
	}
	switch after, begun := places[b.name]; {
	case !begun:
	case b.key == "":
		w.and("(o.id, o.occurred_at) < (?::uuid, ?::timestamptz)", after.ID, after.OccurredAt)
	case after.Key == "":
		w.and("("+b.key+" is not null or (o.id, o.occurred_at) < (?::uuid, ?::timestamptz))", after.ID,
			after.OccurredAt)
	default:
		w.and("("+b.key+", o.id, o.occurred_at) < (?::timestamptz, ?::uuid, ?::timestamptz)",
			after.Key, after.ID, after.OccurredAt)
	}
	ordered := fmt.Sprintf(" order by %s limit %d", order, limit)
	from := "core.outbox o where " + w.all() + ordered
	if b.name == "pending" || b.name == "relayed" { // the index is in order only within a generation and type
		from = "core." + b.name + "_types() k cross join lateral (select " + unmasked + " from core.outbox o where " +
			"o.generation = k.generation and o.event_type = k.event_type and " + w.all() + ordered + ") o" + ordered
	}
	return "(select " + displayed + ", '" + b.name + "' as branch, " + key + " as key, " + place +
		" as place from (select " + unmasked + " from " + from + ") o)"
}

// fingerprint returns a short text that differs between filters.
func fingerprint(filter any) string {
	text, _ := json.Marshal(filter)
	return fmt.Sprintf("%x", sha256.Sum256(text))[:12]
}

// toCursor returns a position in the pages of a filter as text.
func toCursor(filter, place any) (string, error) {
	text, err := json.Marshal([]any{fingerprint(filter), place})
	return base64.RawURLEncoding.EncodeToString(text), err
}

// fromCursor reads the position that a cursor has; [ErrCursor] if it is the cursor of another filter.
func fromCursor(text string, filter, place any) error {
	of := ""
	parts := []any{&of, place}
	decoded, err := base64.RawURLEncoding.DecodeString(text)
	if err != nil || json.Unmarshal(decoded, &parts) != nil || of != fingerprint(filter) {
		return ErrCursor
	}
	return nil
}
