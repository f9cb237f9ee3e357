package operator

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"spectral/internal/core/events"
	"spectral/internal/core/events/infrastructure/postgres/pgtx"
)

// Operation is a replay or discard of many events, which workers carry on: a row of core.operations.
type Operation struct {
	ID         uuid.UUID          `json:"operation_id"`
	Name       string             `json:"name"` // replay or discard
	CreatedAt  time.Time          `json:"created_at"`
	CreatedBy  string             `json:"created_by"`
	Reason     *string            `json:"reason"`
	Command    string             `json:"command"` // that began it
	Plan       string             `json:"plan"`
	Generation *events.Generation `json:"generation"`
	Rate       float64            `json:"rate"` // events per second at most
	Canary     *int               `json:"canary"`
	MaxFailed  float64            `json:"max_failed"`
	State      OperationState     `json:"state"`
	StateAt    time.Time          `json:"state_at"`
	StateBy    string             `json:"state_by"`
	Why        *string            `json:"why"` // of a pause
	Total      int                `json:"total"`
	Acted      int                `json:"acted"` // were replayed or discarded
	Delivered  int                `json:"delivered"`
	Failed     int                `json:"failed"` // again
	Skipped    int                `json:"skipped"`
}

// OperationState is whether an operation goes on.
type OperationState string

// The states. Only running and paused ones can be changed.
const (
	OperationRunning OperationState = "running"
	OperationPaused  OperationState = "paused"
	OperationAborted OperationState = "aborted"
	OperationDone    OperationState = "done"
)

// OperationRow is an event of an operation, and what became of it.
type OperationRow struct {
	EventID    uuid.UUID `json:"event_id"`
	OccurredAt time.Time `json:"occurred_at"`
	// Outcome is not_reached, acted (replayed, and not settled since), delivered, failed, discarded, skipped or gone.
	Outcome string  `json:"outcome"`
	Note    *string `json:"note"` // of a skipped one: its state
}

// Course says how an operation goes on.
type Course struct {
	Rate      float64 // events per second at most; zero means DefaultRate, below zero no limit
	Canary    int     // so many events first, after which it pauses; 0: none
	GoesOn    bool    // it does not pause if none of the canary fails again
	Batch     int     // events in a transaction; zero means DefaultBatch
	MaxFailed float64 // it pauses when a larger share of ten events, or of all of a smaller canary or total, fails again
}

// BeginOperation makes an operation of a confirmed plan. Workers carry it on, and [Client.Step].
func (c *Client) BeginOperation(ctx context.Context, s Selection, change Change, command, plan string,
	course Course) (id uuid.UUID, err error) {
	if course.Rate == 0 {
		course.Rate = DefaultRate
	} else if course.Rate < 0 {
		course.Rate = 1e9
	}
	arguments := pgx.NamedArgs{"run": []string{}, "skip": []string{}, "to": nil, "force": false, "reason": ""}
	maps.Copy(arguments, change.arguments)
	maps.Copy(arguments, pgx.NamedArgs{"name": change.name, "ids": s.ids, "times": s.times, "as_of": s.AsOf,
		"command": command, "plan": plan, "rate": course.Rate, "canary": course.Canary,
		"batch": cmp.Or(course.Batch, DefaultBatch), "goes_on": course.GoesOn,
		"max_failed": course.MaxFailed})
	return value[uuid.UUID](ctx, c, "begin the operation", `select core.operation_create(@name, nullif(@by, ''), @ids,
		@times, @as_of, jsonb_build_object('command', @command::text), @plan, @to::bigint, @force, @run, @skip,
		nullif(@reason, ''), @rate,
		nullif(@canary::integer, 0), @goes_on, @max_failed, @batch)`, arguments)
}

// Step carries an operation on, unless another session does, and returns when the next step is of use; negative: it
// does not go on.
func (c *Client) Step(ctx context.Context, id uuid.UUID) (next time.Duration, err error) {
	type step struct{ NextIn float64 }
	steps, err := list[step](ctx, c, "carry on the operation",
		"select coalesce(s.next_in, -1) as next_in from core.operation_step($1) s", id)
	switch {
	case err != nil:
		return 0, err
	case len(steps) == 0: // another session carries it on, or it is over
		return time.Second, nil
	default:
		return pgtx.Seconds(steps[0].NextIn), nil
	}
}

// operationColumns has the columns of Operation.
const operationColumns = `o.id, o.name, o.created_at, o.created_by, o.reason, o.plan, o.generation,
  coalesce(o.filter ->> 'command', '') as command,
  o.rate, o.canary, o.max_failed, o.state, o.state_at, o.state_by, o.why, o.total, o.acted, o.delivered, o.failed,
  o.skipped`

// Operations returns operations, the latest first.
func (c *Client) Operations(ctx context.Context, limit int) (all []Operation, err error) {
	return list[Operation](ctx, c, "list operations",
		"select "+operationColumns+" from core.operations o order by o.id desc limit $1", limit)
}

// Operation returns one operation. It returns a [*RefusedError] (SP031) if there is none.
func (c *Client) Operation(ctx context.Context, id uuid.UUID) (Operation, error) {
	all, err := list[Operation](ctx, c, "show the operation",
		"select "+operationColumns+" from core.operations o where o.id = $1", id)
	if err == nil && len(all) == 0 {
		err = &RefusedError{Code: events.CodeUnknownEvent, Field: "operation",
			Reason: fmt.Sprintf("operation: %s is not in core.operations", id), Hint: "`workers operations list` lists them"}
	}
	if err != nil {
		return Operation{}, err
	}
	return all[0], nil
}

// OperationRows returns the events of an operation, those of an outcome if one is given.
func (c *Client) OperationRows(ctx context.Context, id uuid.UUID, outcome string, limit int) ([]OperationRow, error) {
	return list[OperationRow](ctx, c, "show the operation", `
select r.event_id, r.occurred_at, coalesce(r.outcome, 'not_reached') as outcome, r.note from core.operation_rows r
where r.operation_id = $1 and (coalesce(r.outcome, 'not_reached') = $2 or $2 = '') order by r.n limit $3`, id, outcome,
		limit)
}

// PauseOperation acts on no further event until [Client.ResumeOperation]. It returns a [*RefusedError] if that cannot
// be, as the next two do.
func (c *Client) PauseOperation(ctx context.Context, id uuid.UUID, by string) error {
	return c.exec(ctx, "pause the operation", "select core.operation_set($1, 'paused', nullif($2, ''))", id, by)
}

// AbortOperation ends an operation: what it has not reached stays as it is.
func (c *Client) AbortOperation(ctx context.Context, id uuid.UUID, by string) error {
	return c.exec(ctx, "abort the operation", "select core.operation_set($1, 'aborted', nullif($2, ''))", id, by)
}

// ResumeOperation goes on with a paused operation. What is zero in course and choice stays as it was, but for the
// canary: there is none, unless the last one has not settled.
func (c *Client) ResumeOperation(ctx context.Context, id uuid.UUID, by string, course Course, choice Choice) error {
	return c.exec(ctx, "resume the operation", `select core.operation_set($1, 'running', nullif($2, ''),
		nullif($3::integer, 0), nullif($4::double precision, -1), nullif($5::double precision, 0), $6, $7,
		case when $3::integer > 0 or $8::boolean then $8 end)`,
		id, by, course.Canary, course.MaxFailed, course.Rate, choice.Run, choice.Skip, course.GoesOn)
}
