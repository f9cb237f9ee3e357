package admin

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"spectral/internal/core/events"
)

// Action is what an operator did: a row of core.operator_actions.
type Action struct {
	ID         uuid.UUID          `json:"action_id"`
	ActedAt    time.Time          `json:"acted_at"`
	Action     string             `json:"action"`
	ActedBy    string             `json:"acted_by"`
	Login      string             `json:"login"`
	Generation *events.Generation `json:"generation"`
	Events     int                `json:"event_count"` // acted on by the same call
	// EventIDs are those events, if they were asked for.
	EventIDs []uuid.UUID     `json:"event_ids,omitempty"`
	Details  json.RawMessage `json:"details"`
}

// ActionNames are the words for what operators do, as the SQL functions write them.
func ActionNames() []string {
	return []string{"replay", "discard", "undiscard", "retry_now", "pause", "resume", "generation_register", "generation_drain",
		"generation_close", "generation_reopen", "generation_retire", "adopt", "sweep"}
}

// ActionFilter says which actions are meant: those that fit all of its fields, of each of which any value will do. The zero
// ActionFilter is every action that is not past its retention.
type ActionFilter struct {
	Events      []uuid.UUID // of which one was acted on
	By          []string    // who acted: as they said, or their login
	Actions     []string    // the words of core.operator_actions
	Generations []events.Generation
	// OlderThan and NewerThan bound the age by the database clock. Zero: no bound.
	OlderThan, NewerThan time.Duration
}

// maxActedByBytes is the longest name that core.operator_actions takes.
const maxActedByBytes = 256

var actionForm = regexp.MustCompile(`^[a-z][a-z_]{0,39}$`)

// Validate refuses what can match nothing, or was not meant, naming the field.
func (f ActionFilter) Validate() error {
	var problems []error
	refuse := func(format string, args ...any) { problems = append(problems, fmt.Errorf(format, args...)) }
	for _, who := range f.By {
		if who == "" || len(who) > maxActedByBytes || !utf8.ValidString(who) || strings.Contains(who, "\x00") {
			refuse("by %.40q: must be 1 to %d bytes of UTF-8 without NUL", who, maxActedByBytes)
		}
	}
	for _, action := range f.Actions {
		if !actionForm.MatchString(action) {
			refuse("action %.60q: must be lower-case words joined by underscores, like replay or generation_drain", action)
		}
	}
	for _, given := range []struct {
		name string
		n    int
	}{{"events", len(f.Events)}, {"names", len(f.By)}, {"actions", len(f.Actions)}} {
		if given.n > maxFilterValues {
			refuse("%d %s: at most %d", given.n, given.name, maxFilterValues)
		}
	}
	problems = append(problems, Filter{Generations: f.Generations, OlderThan: f.OlderThan, NewerThan: f.NewerThan}.Validate())
	return errors.Join(problems...)
}

func (f ActionFilter) where() where {
	w := where{first: 1, conditions: []string{"a.deleted_at is null"}}
	if len(f.By) > 0 {
		w.and("(a.acted_by = any (?::text[]) or a.login = any (?::text[]))", f.By, f.By)
	}
	if len(f.Actions) > 0 {
		w.and("a.action = any (?::text[])", f.Actions)
	}
	if len(f.Generations) > 0 {
		w.and("a.generation = any (?::bigint[])", f.Generations)
	}
	if f.OlderThan > 0 {
		w.and("a.acted_at <= statement_timestamp() - make_interval(secs => ?)", f.OlderThan.Seconds())
	}
	if f.NewerThan > 0 {
		w.and("a.acted_at > statement_timestamp() - make_interval(secs => ?)", f.NewerThan.Seconds())
	}
	return w
}

// ActionPage asks for a part of the actions that a filter matches.
type ActionPage struct {
	Limit int // from 1 to MaxPageSize
	// After is the cursor that the page before ended with; empty for the first page.
	After string
	// EventIDs says that the ids of the events are wanted, too: up to a thousand for each action.
	EventIDs bool
	// Timeout bounds the statement; zero means [DefaultSearchTimeout].
	Timeout time.Duration
}

// Acts is a page of actions.
type Acts struct {
	AsOf    time.Time `json:"as_of"` // by the database clock
	Actions []Action  `json:"actions"`
	// Next is the cursor for the next page; empty: there is none.
	Next string `json:"next,omitempty"`
}

// actionPlace is where a page ended.
type actionPlace struct {
	ActedAt string    `json:"t"` // as Postgres prints it
	ID      uuid.UUID `json:"i"`
}

// Actions returns a page of what operators did, the latest first. What they do while somebody goes through the pages is not in a
// later one, and nothing is in two.
//
// The error is a [*TooBroadError] if it takes too long, [ErrCursor] for a cursor of another filter.
func (a *Admin) Actions(ctx context.Context, filter ActionFilter, page ActionPage) (Acts, error) {
	if page.Limit < 1 || page.Limit > MaxPageSize {
		return Acts{}, fmt.Errorf("limit %d: must be from 1 to %d", page.Limit, MaxPageSize)
	}
	if err := filter.Validate(); err != nil {
		return Acts{}, err
	}
	w := filter.where()
	if page.After != "" {
		var after actionPlace
		if err := fromCursor(page.After, filter, &after); err != nil {
			return Acts{}, err
		}
		w.and("(a.acted_at, a.id) < (?::timestamptz, ?::uuid)", after.ActedAt, after.ID)
	}
	found := Acts{Actions: []Action{}}
	err := a.search(ctx, page.Timeout, func(tx pgx.Tx) error {
		if len(filter.Events) == 0 { // in the order of the index, whatever number of actions the server believes in
			if _, err := tx.Exec(ctx, "set local enable_sort = off; set local enable_seqscan = off; set local enable_bitmapscan = off"); err != nil {
				return err
			}
		}
		places, all, err := actions(ctx, tx, filter.Events, w, page.Limit+1, page.EventIDs)
		if err != nil {
			return err
		}
		if len(all) > page.Limit {
			all = all[:page.Limit]
			if found.Next, err = toCursor(filter, actionPlace{places[page.Limit-1], all[page.Limit-1].ID}); err != nil {
				return err
			}
		}
		found.Actions = append(found.Actions, all...)
		if err := tx.QueryRow(ctx, "select clock_timestamp()").Scan(&found.AsOf); err != nil {
			return err
		}
		found.AsOf = found.AsOf.UTC()
		return nil
	})
	if err != nil {
		return Acts{}, fmt.Errorf("list actions: %w", err)
	}
	return found, nil
}

// actions are what operators did, the latest first, and the time of each as Postgres prints it; of any of the events, unless none
// are given. Those of an event are few and found by the index of event_ids, whatever order is asked for: first they are looked up, then sorted.
func actions(ctx context.Context, tx pgx.Tx, ofEvents []uuid.UUID, w where, limit int, withIDs bool) (places []string, all []Action, err error) {
	from := "core.operator_actions a"
	if len(ofEvents) > 0 {
		w.arguments = append(w.arguments, ofEvents)
		from = fmt.Sprintf("(select a.* from core.operator_actions a where a.event_ids && $%d::uuid[] offset 0) a", w.first+len(w.arguments)-1)
	}
	ids := "'{}'::uuid[]"
	if withIDs {
		ids = "a.event_ids"
	}
	rows, err := tx.Query(ctx, fmt.Sprintf(`select a.acted_at::text, a.id, a.acted_at, a.action, a.acted_by, a.login, a.generation, cardinality(a.event_ids), %s, a.details::text
		from %s where %s order by a.acted_at desc, a.id desc limit %d`, ids, from, strings.Join(w.conditions, " and "), limit), w.arguments...)
	if err != nil {
		return nil, nil, err
	}
	defer rows.Close()
	for rows.Next() {
		var a Action
		var place, details string
		if err := rows.Scan(&place, &a.ID, &a.ActedAt, &a.Action, &a.ActedBy, &a.Login, &a.Generation, &a.Events, &a.EventIDs, &details); err != nil {
			return nil, nil, err
		}
		a.ActedAt, a.Details = a.ActedAt.UTC(), json.RawMessage(details)
		places, all = append(places, place), append(all, a)
	}
	return places, all, rows.Err()
}
