package console

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"spectral/internal/core/events"
	"spectral/internal/core/events/infrastructure/postgres/operator"
)

var overviewPages = []page{
	{Path: "/", Title: "Overview", Template: "overview", Load: loadOverview, Live: true},
	{Path: "/flow", Title: "Flow", Template: "flow", Load: loadFlow},
	{Path: "/health", Title: "Health", Template: "health", Load: loadHealth, Live: true},
}

const (
	maxAttention = 7
	// lateAfter is how long an event may be due until that needs attention.
	lateAfter = time.Minute
	// oldSnapshot is the age from which on a transaction holds vacuum up too long.
	oldSnapshot = 10 * time.Minute
	// fullQueue is how full the queue of notifications may be.
	fullQueue = 0.5
)

// need is something that needs an operator.
type need struct {
	Fact, Blocks, Link, To string // Link leads to the fix, which To names
	Since                  *time.Time
	weight                 int // the worst has most
}

// needs returns what needs attention, the worst first.
func needs(l operator.Live) (all []need) {
	add := func(weight int, since *time.Time, link, to, blocks, fact string, arguments ...any) {
		all = append(all, need{fmt.Sprintf(fact, arguments...), blocks, link, to, since, weight})
	}
	if l.QueueUsage >= fullQueue {
		add(100, nil, "/health", "Health", "publishing fails when it is full", "the queue of notifications is %s full",
			percent(l.QueueUsage, 1))
	}
	if l.Quarantined > 0 {
		add(90, nil, "/events?status=quarantined", "Events", "no worker claims them", "%s",
			counted(l.Quarantined, "quarantined event"))
	}
	for _, h := range l.Handlers {
		if h.Breaker != "closed" {
			add(80, h.OpenedAt, query("/handlers", "handler", h.Handler), "Handlers", bounded(h.Waiting)+" waiting",
				"%s, generation %d: breaker %s", h.Handler, h.Generation, h.Breaker)
		}
	}
	for _, t := range l.Types {
		events := query("/events", "type", t.EventType, "generation", t.Generation, "status", "due")
		switch late := t.OldestDue != nil && l.At.Sub(*t.OldestDue) > lateAfter; {
		case t.PausedAt != nil && t.Due > 0:
			add(60, t.PausedAt, query("/topology", "generation", t.Generation), "Topology", bounded(t.Due)+" due",
				"%s, generation %d: paused by %s", t.EventType, t.Generation, textOf(t.PausedBy))
		case t.Workers == 0 && t.Due > 0:
			add(70, t.OldestDue, "/generations", "Generations", bounded(t.Due)+" due",
				"%s, generation %d: no live worker handles it", t.EventType, t.Generation)
		case late:
			add(50, t.OldestDue, events, "Events", bounded(t.Due)+" due, "+
				until(t.Due, t.PublishedPerSecond, t.HandledPerSecond), "%s, generation %d: the oldest due event is late",
				t.EventType, t.Generation)
		}
	}
	for _, o := range l.Operations {
		if o.State == string(operator.OperationPaused) {
			add(40, nil, link("/operations", o.ID), "Operation", counted(o.Total-o.Acted-o.Skipped, "event")+" not reached",
				"%s of %s is paused: %s", o.Name, counted(o.Total, "event"), cmp.Or(textOf(o.Why), "by an operator"))
		}
	}
	if l.Failed > 0 {
		add(30, nil, "/failures", "Failures", "nothing runs them again unless you replay them", "%s",
			counted(l.Failed, "failed event"))
	}
	if l.OldestSnapshot != nil && *l.OldestSnapshot > oldSnapshot.Seconds() {
		add(20, nil, "/health", "Health", "vacuum waits for it", "a transaction has been open for %s",
			durationText(*l.OldestSnapshot))
	}
	slices.SortStableFunc(all, func(a, b need) int { return b.weight - a.weight })
	return all
}

// overview is what the first page shows.
type overview struct {
	operator.Live
	Needs []need
	More  int // that are left out
}

func loadOverview(ctx context.Context, v *visit) (any, error) {
	l, err := v.Live(ctx)
	o := overview{Live: l, Needs: needs(l)}
	if o.More = len(o.Needs) - maxAttention; o.More > 0 {
		o.Needs = o.Needs[:maxAttention]
	}
	return o, err
}

// OfGeneration returns the types of a generation in sum.
func (o overview) OfGeneration(g events.Generation) (sum struct {
	Due, Failed    int
	Handled, Calls int64
	FailedCalls    int64
	PerSecond      float64
}) {
	for _, t := range o.Types {
		if t.Generation == g {
			sum.Due += t.Due
			sum.Failed += t.Failed
			sum.PerSecond += t.HandledPerSecond
		}
	}
	for _, h := range o.Handlers {
		if h.Generation == g {
			sum.Calls += h.Calls
			sum.FailedCalls += h.FailedCalls
		}
	}
	return sum
}

// flowPage is what the page of the flow shows.
type flowPage struct {
	operator.Timeline
	Since, Command string
	Choices        []string
	Problem        string
}

func loadFlow(ctx context.Context, v *visit) (any, error) {
	p := flowPage{Since: cmp.Or(v.Query.Get("since"), "24h"), Choices: []string{"1h", "6h", "24h", "3d", "8d"}}
	since, err := operator.ParseAge(p.Since)
	if err == nil && since > operator.MaxTimeline {
		err = fmt.Errorf("since: %.20q is too long ago: statistics are kept for 8d", p.Since)
	}
	filter, form := filterOf(v.Query)
	if err = cmp.Or(err, form.Problem); err == nil {
		p.Command = "workers events stats --since " + operator.ShellWord(p.Since)
		p.Timeline, err = v.Client.Timeline(ctx, since, filter)
	}
	p.Problem = saidOf(err)
	return p, nil
}

// healthPage is what the page of health shows.
type healthPage struct {
	operator.Live
	Relay   operator.Relay
	Problem string
}

func loadHealth(ctx context.Context, v *visit) (any, error) {
	l, err := v.Live(ctx)
	if err != nil {
		return nil, err
	}
	p := healthPage{Live: l}
	p.Relay, err = v.Client.Relay(ctx)
	p.Problem = saidOf(err)
	return p, nil
}
