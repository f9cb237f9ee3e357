package operator

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/google/uuid"

	"spectral/internal/core/events"
	"spectral/internal/core/events/infrastructure/postgres/pgtx"
)

// Action is a change that an operator made: a row of core.operator_actions.
type Action struct {
	ID         uuid.UUID          `json:"action_id"`
	ActedAt    time.Time          `json:"acted_at"`
	Action     string             `json:"action"`
	ActedBy    string             `json:"acted_by"`
	Login      string             `json:"login"`
	Role       string             `json:"role"` // that was set, or else the login
	Tool       string             `json:"tool"` // the application_name of the connection
	Generation *events.Generation `json:"generation"`
	Events     int                `json:"event_count"` // changed by the same call
	// EventIDs has those events, if the page asked for them.
	EventIDs []uuid.UUID     `json:"event_ids,omitempty"`
	Details  json.RawMessage `json:"details"`
}

// ActionNames returns the names of actions, as the SQL functions write them.
func ActionNames() []string {
	return []string{"replay", "discard", "undiscard", "retry_now", "pause", "resume", "generation_register",
		"generation_drain", "generation_close", "generation_reopen", "generation_retire", "adopt", "sweep", "relay_switch",
		"group_note", "group_mute", "group_unmute", "operation_create", "operation_pause", "operation_resume",
		"operation_abort", "handler_trip", "handler_close", "correct"}
}

// ActionFilter selects actions: those that match each field that is set. A list matches any of its values. The zero
// ActionFilter selects every action that is not past its retention.
type ActionFilter struct {
	Events      []uuid.UUID // of which at least one was changed
	By          []string    // the name that the operator gave, or the login
	Actions     []string    // names of actions
	Generations []events.Generation
	// OlderThan and NewerThan bound the age by the database clock; zero is no bound.
	OlderThan, NewerThan time.Duration
}

func (f ActionFilter) where() where {
	w := where{first: 1, conditions: []string{"a.deleted_at is null"}}
	w.when(len(f.By) > 0, "array[a.acted_by, a.login] && ?::text[]", f.By)
	w.when(len(f.Actions) > 0, "a.action = any (?::text[])", f.Actions)
	w.when(len(f.Generations) > 0, "a.generation = any (?::bigint[])", f.Generations)
	w.when(f.OlderThan > 0, "a.acted_at"+olderThan, f.OlderThan.Seconds())
	w.when(f.NewerThan > 0, "a.acted_at"+newerThan, f.NewerThan.Seconds())
	return w
}

// ActionPage is one page of actions.
type ActionPage struct {
	AsOf    time.Time `json:"as_of"` // by the database clock
	Actions []Action  `json:"actions"`
	// Next is the cursor of the next page; empty after the last one.
	Next string `json:"next,omitempty"`
}

// actionPlace is the position at which a page ended.
type actionPlace struct {
	ActedAt time.Time `json:"t"`
	ID      uuid.UUID `json:"i"`
}

// Actions returns a page of actions, the latest first. An action that is made while a caller reads the pages is not in
// a later page, and no action is in two pages. It returns a [*TooBroadError] if it takes too long, [ErrCursor] for the
// cursor of another filter.
func (c *Client) Actions(ctx context.Context, filter ActionFilter, page Page) (ActionPage, error) {
	w := filter.where()
	if page.After != "" {
		var after actionPlace
		if err := fromCursor(page.After, filter, &after); err != nil {
			return ActionPage{}, err
		}
		w.and("(a.acted_at, a.id) < (?::timestamptz, ?::uuid)", after.ActedAt, after.ID)
	}
	found := ActionPage{}
	err := c.search(ctx, "list actions", page.Timeout, func(tx *pgtx.Tx, asOf time.Time) error {
		if len(filter.Events) == 0 {
			if _, err := tx.Exec(ctx, byIndex); err != nil {
				return err
			}
		}
		all, err := actions(ctx, tx, filter.Events, w, page.Limit+1, page.EventIDs)
		if len(all) > page.Limit {
			all = all[:page.Limit]
			last := all[page.Limit-1]
			found.Next, err = toCursor(filter, actionPlace{last.ActedAt, last.ID})
		}
		found.AsOf, found.Actions = asOf, all
		return err
	})
	return found, err
}

// actions returns actions, the latest first: those on any of the events, or all if no events are given. The actions on
// an event are few: the index of event_ids finds them, and then they are sorted.
func actions(ctx context.Context, tx *pgtx.Tx, ofEvents []uuid.UUID, w where, limit int,
	withIDs bool) ([]Action, error) {
	from := "core.operator_actions a"
	if len(ofEvents) > 0 {
		w.arguments = append(w.arguments, ofEvents)
		from = fmt.Sprintf("(select a.* from core.operator_actions a where a.event_ids && $%d::uuid[] offset 0) a",
			len(w.arguments))
	}
	ids := "'{}'::uuid[]"
	if withIDs {
		ids = "a.event_ids"
	}
	return rows[Action](ctx, tx, fmt.Sprintf(`select a.id, a.acted_at, a.action, a.acted_by, a.login, a.role, a.tool,
		  a.generation,
		  cardinality(a.event_ids) as events, %s as event_ids, a.details::text
		from %s where %s order by a.acted_at desc, a.id desc limit %d`, ids, from, w.all(), limit), w.arguments...)
}
