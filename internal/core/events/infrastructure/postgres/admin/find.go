package admin

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgerrcode"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"spectral/internal/core/events"
)

// The bounds of one page of events.
const (
	DefaultPageSize = 50
	MaxPageSize     = 1000
)

// DefaultSearchTimeout bounds a statement that looks for events.
const DefaultSearchTimeout = 30 * time.Second

// TooBroadError is a search that was given up: it would have read too much.
type TooBroadError struct{ After time.Duration }

func (e *TooBroadError) Error() string {
	return fmt.Sprintf("the search was given up after %s: it reads too many events; ask for fewer statuses (delivered events are the many), "+
		"or for a type and generation, or give it more time", e.After)
}

// ErrCursor is a cursor that no page of this filter ended with.
var ErrCursor = errors.New("the cursor is not one of this filter: pass what the page before ended with, and the same filter")

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
	// PriorReplays are the cycles before the current one.
	PriorReplays  int        `json:"prior_replays"`
	LastError     *string    `json:"last_error"`
	FirstFailedAt *time.Time `json:"first_failed_at"` // in the current cycle
	CreatedAt     time.Time  `json:"created_at"`
	AvailableAt   time.Time  `json:"available_at"`
	ClaimedAt     *time.Time `json:"claimed_at"` // of a lease
	FailedAt      *time.Time `json:"failed_at"`
	DeliveredAt   *time.Time `json:"delivered_at"`
	DeletedAt     *time.Time `json:"deleted_at"` // of a tombstone
}

// Since is the time that the event's age is counted from; zero if nobody knows.
func (e Event) Since() time.Time {
	if e.Status != Failed && e.Status != Discarded {
		return e.CreatedAt
	}
	if e.FailedAt == nil {
		return time.Time{}
	}
	return *e.FailedAt
}

// place is the time by which the event has its place among others.
func (e Event) place() time.Time {
	if e.Status == Due || e.Status == Scheduled {
		return e.AvailableAt
	}
	return e.Since()
}

// displayed is the expression of each field of Event, in their order; o is the row. Times that were written by hand
// may be infinite, which no program can take.
const displayed = `o.id, o.event_type, o.event_version, o.occurred_at, o.source, o.target, o.workspace_id,
  case when o.status = 'pending' and o.deleted_at is null
            then case when o.available_at <= statement_timestamp() then 'due' else 'scheduled' end
       when o.discarded_at is not null then 'discarded'
       when o.deleted_at is not null then 'expired' else o.status end,
  o.generation, o.channel, o.attempts, o.crashes,
  core.prior_replays(o.failure_history),
  o.last_error, case when isfinite(o.first_failed_at) then o.first_failed_at end, o.created_at, o.available_at,
  case when o.status = 'in_flight' and isfinite(o.claimed_at) then o.claimed_at end,
  case when o.status = 'failed' and isfinite(o.claimed_at) then o.claimed_at end,
  case when isfinite(o.delivered_at) then o.delivered_at end, case when isfinite(o.deleted_at) then o.deleted_at end`

func (e *Event) fields() []any {
	return []any{&e.ID, &e.EventType, &e.EventVersion, &e.OccurredAt, &e.Source, &e.Target, &e.WorkspaceID, &e.Status,
		&e.Generation, &e.Channel, &e.Attempts, &e.Crashes, &e.PriorReplays, &e.LastError, &e.FirstFailedAt, &e.CreatedAt, &e.AvailableAt,
		&e.ClaimedAt, &e.FailedAt, &e.DeliveredAt, &e.DeletedAt}
}

func (e *Event) utc() {
	for _, t := range []*time.Time{&e.OccurredAt, &e.CreatedAt, &e.AvailableAt, e.FirstFailedAt, e.ClaimedAt, e.FailedAt, e.DeliveredAt, e.DeletedAt} {
		if t != nil {
			*t = t.UTC()
		}
	}
}

// Page asks for a part of what a filter matches.
type Page struct {
	Limit int // from 1 to MaxPageSize
	// After is the cursor that the page before ended with; empty for the first page.
	After string
	// Timeout bounds each statement; zero means [DefaultSearchTimeout].
	Timeout time.Duration
}

// Found is a page of events.
type Found struct {
	AsOf   time.Time `json:"as_of"` // by the database clock
	Events []Event   `json:"events"`
	// Next is the cursor for the next page; empty: there is none.
	Next string `json:"next,omitempty"`
}

// Find returns a page of the events that filter matches, the latest first: by the time they failed, were or will be due, or
// were published if in flight, and delivered ones by their ids, which are time-ordered. So any page costs what it has, however many
// events are pending or delivered. What is published or fails while somebody goes through the pages is not in a
// later one, and nothing is in two, unless it has failed, or become pending, anew.
//
// The error is a [*TooBroadError] if it takes too long, [ErrCursor] for a cursor of another filter.
func (a *Admin) Find(ctx context.Context, filter Filter, page Page) (Found, error) {
	if page.Limit < 1 || page.Limit > MaxPageSize {
		return Found{}, fmt.Errorf("limit %d: must be from 1 to %d", page.Limit, MaxPageSize)
	}
	if err := filter.Validate(); err != nil {
		return Found{}, err
	}
	branches, err := filter.branches(page.After)
	if err != nil {
		return Found{}, err
	}
	var found Found
	err = a.search(ctx, page.Timeout, func(tx pgx.Tx) error {
		for _, b := range branches {
			if err := b.read(ctx, tx, page.Limit+1); err != nil {
				return err
			}
		}
		found = merge(branches, page.Limit)
		if err := tx.QueryRow(ctx, "select clock_timestamp()").Scan(&found.AsOf); err != nil {
			return err
		}
		found.AsOf = found.AsOf.UTC()
		found.Next, err = cursor(filter, branches)
		return err
	})
	if err != nil {
		return Found{}, fmt.Errorf("find events: %w", err)
	}
	return found, nil
}

// search runs work in a transaction whose statements are bounded.
func (a *Admin) search(ctx context.Context, timeout time.Duration, work func(pgx.Tx) error) error {
	if timeout <= 0 {
		timeout = DefaultSearchTimeout
	}
	err := a.inTx(ctx, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, fmt.Sprintf(
			// positions are times as text: whatever the login's defaults, they are read as they were written
			"set local statement_timeout = %d; set local jit = off; set local datestyle = 'ISO'; set local timezone = 'UTC'",
			max(timeout.Milliseconds(), 1))); err != nil {
			return err
		}
		return work(tx)
	})
	if pg, ok := errors.AsType[*pgconn.PgError](err); ok && pg.Code == pgerrcode.QueryCanceled && ctx.Err() == nil {
		return &TooBroadError{After: timeout}
	}
	return err
}

// branch is the events of one status that have one order: what an index has in that order is found without reading the rest.
type branch struct {
	name   string
	filter Filter
	kinds  bool   // read kind by kind: the index has the order within a generation and type only
	key    string // the first column of the order, descending; then come id and occurred_at
	after  *position
	over   bool // nothing is left
	events []Event
	places []position
}

// position of an event in the order of its branch.
type position struct {
	Key        string    `json:"k"` // as Postgres prints it; empty for null
	ID         uuid.UUID `json:"i"`
	OccurredAt string    `json:"o"`
}

// branches are what filter asks for, from a cursor on.
func (f Filter) branches(after string) ([]*branch, error) {
	statuses := f.Statuses
	if len(statuses) == 0 {
		statuses = slices.DeleteFunc(Statuses(), func(s Status) bool { return s == Discarded })
	}
	var all []*branch
	add := func(name, key string, of ...Status) {
		of = slices.DeleteFunc(of, func(s Status) bool { return !slices.Contains(statuses, s) })
		if len(of) > 0 {
			b := &branch{name: name, key: key, filter: f, kinds: name == "pending"}
			b.filter.Statuses = of
			all = append(all, b)
		}
	}
	add("pending", "o.available_at", Due, Scheduled)
	add("in_flight", "o.created_at", InFlight)
	add("delivered", "", Delivered)
	add("failed", "o.claimed_at", Failed)
	add("discarded", "o.claimed_at", Discarded)
	if after == "" {
		return all, nil
	}
	var places map[string]*position
	if err := fromCursor(after, f, &places); err != nil {
		return nil, err
	}
	for _, b := range all {
		place, begun := places[b.name]
		b.after, b.over = place, !begun
	}
	return all, nil
}

// cursor is where the page ended: a branch that is over has no place, one that has not begun has null.
func cursor(f Filter, branches []*branch) (string, error) {
	places := make(map[string]*position)
	for _, b := range branches {
		if !b.over {
			places[b.name] = b.after
		}
	}
	if len(places) == 0 {
		return "", nil
	}
	return toCursor(f, places)
}

// savedCursor is the content of a cursor: a place, and a hash of the filter that it belongs to.
type savedCursor struct {
	Filter []byte          `json:"f"`
	Place  json.RawMessage `json:"p"`
}

func fingerprint(filter any) ([]byte, error) {
	text, err := json.Marshal(filter)
	sum := sha256.Sum256(text)
	return sum[:6], err
}

// toCursor is a place in the pages of a filter as text.
func toCursor(filter, place any) (string, error) {
	of, err := fingerprint(filter)
	at, placeErr := json.Marshal(place)
	text, textErr := json.Marshal(savedCursor{of, at})
	return base64.RawURLEncoding.EncodeToString(text), errors.Join(err, placeErr, textErr)
}

// fromCursor reads the place in the pages of a filter that a cursor says; [ErrCursor] if it is of another one.
func fromCursor(text string, filter, place any) error {
	of, err := fingerprint(filter)
	if err != nil {
		return err
	}
	var c savedCursor
	decoded, err := base64.RawURLEncoding.DecodeString(text)
	if err != nil || json.Unmarshal(decoded, &c) != nil || !bytes.Equal(c.Filter, of) || json.Unmarshal(c.Place, place) != nil {
		return ErrCursor
	}
	return nil
}

// pendingKinds are the generations and types that have pending events, each found by one look into the index of those.
const pendingKinds = `(with recursive kind(generation, event_type) as (
    (select o.generation, o.event_type from core.outbox o where o.status = 'pending' and o.deleted_at is null
     order by o.generation, o.event_type limit 1)
    union all
    select n.generation, n.event_type from kind k cross join lateral
      (select o.generation, o.event_type from core.outbox o
       where o.status = 'pending' and o.deleted_at is null and (o.generation, o.event_type) > (k.generation, k.event_type)
       order by o.generation, o.event_type limit 1) n)
  select generation, event_type from kind) k`

// read reads the next of b, at most limit.
func (b *branch) read(ctx context.Context, tx pgx.Tx, limit int) (err error) {
	if b.over {
		return nil
	}
	condition, arguments := b.filter.Where(1)
	w := where{first: 1, conditions: []string{condition}, arguments: arguments}
	key, order := "''", "o.id desc, o.occurred_at desc"
	if b.key != "" {
		key, order = "coalesce("+b.key+"::text, '')", b.key+" desc, "+order
	}
	switch {
	case b.after == nil:
	case b.key == "":
		w.and("(o.id, o.occurred_at) < (?::uuid, ?::timestamptz)", b.after.ID, b.after.OccurredAt)
	case b.after.Key == "":
		w.and("("+b.key+" is not null or (o.id, o.occurred_at) < (?::uuid, ?::timestamptz))", b.after.ID, b.after.OccurredAt)
	default:
		w.and("("+b.key+", o.id, o.occurred_at) < (?::timestamptz, ?::uuid, ?::timestamptz)", b.after.Key, b.after.ID, b.after.OccurredAt)
	}
	from, ordered := "core.outbox o where "+strings.Join(w.conditions, " and "), fmt.Sprintf(" order by %s limit %d", order, limit)
	if b.kinds {
		from = pendingKinds + " cross join lateral (select o.* from core.outbox o where o.generation = k.generation and o.event_type = k.event_type and " +
			strings.Join(w.conditions, " and ") + ordered + ") o"
		// in the order of the index, whatever number of events the server believes in
		if _, err := tx.Exec(ctx, "set local enable_sort = off; set local enable_seqscan = off; set local enable_bitmapscan = off"); err != nil {
			return err
		}
		defer func() {
			if err == nil {
				_, err = tx.Exec(ctx, "set local enable_sort to default; set local enable_seqscan to default; set local enable_bitmapscan to default")
			}
		}()
	}
	rows, err := tx.Query(ctx, "select "+displayed+", "+key+", o.occurred_at::text from "+from+ordered, w.arguments...)
	if err != nil {
		return err
	}
	defer rows.Close()
	for rows.Next() {
		var e Event
		var p position
		if err := rows.Scan(append(e.fields(), &p.Key, &p.OccurredAt)...); err != nil {
			return err
		}
		e.utc()
		p.ID = e.ID
		b.events, b.places = append(b.events, e), append(b.places, p)
	}
	return rows.Err()
}

// merge takes the latest of all branches, at most limit, and leaves each where the next page begins.
func merge(branches []*branch, limit int) Found {
	found := Found{Events: []Event{}}
	taken := make(map[*branch]int)
	for len(found.Events) < limit {
		var latest *branch
		var at time.Time
		for _, b := range branches {
			if n := taken[b]; n < len(b.events) {
				if since := b.events[n].place(); latest == nil || since.IsZero() || !at.IsZero() && since.After(at) {
					latest, at = b, since
				}
			}
		}
		if latest == nil {
			break
		}
		n := taken[latest]
		found.Events = append(found.Events, latest.events[n])
		latest.after = &latest.places[n]
		taken[latest]++
	}
	for _, b := range branches {
		b.over = taken[b] == len(b.events) // one more was asked for than a page has
	}
	return found
}
