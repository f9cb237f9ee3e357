package console

import (
	"context"
	"errors"
	"fmt"
	"strconv"

	"github.com/google/uuid"

	"spectral/internal/core/events/infrastructure/postgres/operator"
)

var (
	operationPages = []page{
		{Path: "/operations", Title: "Operations", Template: "operations", Load: loadOperations, Live: true},
		{Path: "/operations/{id}", Title: "Operation", Template: "operation", Load: loadOperation, Live: true},
	}
	operationActs = []act{
		{Path: "/operations/pause", Do: setOperation((*operator.Client).PauseOperation)},
		{Path: "/operations/abort", Do: setOperation((*operator.Client).AbortOperation)},
		{Path: "/operations/resume", Do: resumeOperation},
	}
)

func loadOperations(ctx context.Context, v *visit) (any, error) {
	return v.Client.Operations(ctx, operator.DefaultPageSize)
}

// operationPage is what the page of an operation shows.
type operationPage struct {
	operator.Operation
	Outcomes []outcome
	Outcome  string // that is chosen
	Rows     []operator.OperationRow
	More     bool // there are more rows
	Changed  int  // events of the plan that were left out
	Problem  string
	Command  string
}

// outcome is how many events of an operation have an outcome; below zero: it is not counted.
type outcome struct {
	Name  string
	Count int
}

func loadOperation(ctx context.Context, v *visit) (any, error) {
	id, err := operator.ParseID(v.Path["id"])
	if err != nil {
		return nil, badRequest(err)
	}
	o, err := v.Client.Operation(ctx, id)
	if err != nil {
		return nil, err
	}
	p := operationPage{Operation: o, Outcome: v.Query.Get("outcome"), Command: "workers operations show " + id.String()}
	p.Changed, _ = strconv.Atoi(v.Query.Get("changed"))
	p.Outcomes = []outcome{{"", o.Total}, {"not_reached", o.Total - o.Acted - o.Skipped}, {"acted", -1},
		{"delivered", o.Delivered}, {"failed", o.Failed}, {"skipped", o.Skipped}}
	if o.Name == "discard" {
		p.Outcomes = []outcome{{"", o.Total}, {"not_reached", o.Total - o.Acted - o.Skipped}, {"discarded", o.Acted},
			{"skipped", o.Skipped}}
	} else {
		p.Outcomes[2].Count = waiting(o.Acted, o.Delivered, o.Failed)
	}
	p.Rows, err = v.Client.OperationRows(ctx, id, p.Outcome, maxListed+1)
	if p.More = len(p.Rows) > maxListed; p.More {
		p.Rows = p.Rows[:maxListed]
	}
	p.Problem = saidOf(err)
	return p, nil
}

// setOperation returns what a form does that changes the state of an operation.
func setOperation(set func(_ *operator.Client, _ context.Context, id uuid.UUID, by string) error) func(context.Context,
	*visit) (string, error) {
	return func(ctx context.Context, v *visit) (string, error) {
		id, err := operator.ParseID(v.Form.Get("id"))
		if err != nil {
			return "", badRequest(err)
		}
		return link("/operations", id), set(v.Client, ctx, id, v.Person.Name)
	}
}

func resumeOperation(ctx context.Context, v *visit) (string, error) {
	id, err := operator.ParseID(v.Form.Get("id"))
	course := operator.Course{GoesOn: v.Form.Get("go-on") != ""}
	err = errors.Join(err,
		into(&course.Canary)(whole(v.Form, "canary", 0, 1_000_000)),
		into(&course.Rate)(number(v.Form, "rate", 0, 1e-6, 1e9)),
		into(&course.MaxFailed)(number(v.Form, "max-failed", -1, 0, 1)))
	if err != nil {
		return "", badRequest(fmt.Errorf("resume: %w", err))
	}
	return link("/operations", id), v.Client.ResumeOperation(ctx, id, v.Person.Name, course, operator.Choice{})
}
