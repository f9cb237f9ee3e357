package console

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"spectral/internal/core/events"
	"spectral/internal/core/events/infrastructure/postgres/operator"
)

var (
	topologyPages = []page{
		{Path: "/topology", Title: "Topology", Template: "topology", Load: loadTopology, Live: true},
		{Path: "/handlers", Title: "Handlers", Template: "handlers", Load: loadHandlers, Live: true},
		{Path: "/generations", Title: "Generations", Template: "generations", Load: loadGenerations, Live: true},
		{Path: "/generations/compare", Title: "Compare generations", Template: "compare", Load: loadCompare},
	}
	topologyActs = []act{
		{Path: "/types/pause", Do: pauseType}, {Path: "/types/resume", Do: resumeType},
		{Path: "/handlers/trip", Do: tripHandler}, {Path: "/handlers/close", Do: closeHandler},
	}
)

// topologyPage is what the page of the topology shows.
type topologyPage struct {
	operator.Live
	Generation events.Generation
	Graph      topology
	Sources    map[string]string
	Problem    string
}

func loadTopology(ctx context.Context, v *visit) (any, error) {
	l, err := v.Live(ctx)
	if err != nil {
		return nil, err
	}
	p := topologyPage{Live: l, Sources: v.Sources}
	for _, g := range l.Generations {
		if g.Status == "live" || p.Generation == 0 {
			p.Generation = g.Generation
		}
	}
	if text := v.Query.Get("generation"); text != "" {
		g, wrong := events.ParseGeneration(text)
		if p.Problem = saidOf(wrong); wrong == nil {
			p.Generation = g
		}
	}
	p.Types = slices.DeleteFunc(p.Types, func(t operator.LiveType) bool { return t.Generation != p.Generation })
	p.Graph = topologyOf(l, p.Generation, v.Sources)
	return p, nil
}

// OfType returns the handlers of a type in the generation that is shown.
func (p topologyPage) OfType(eventType string) (all []operator.LiveHandler) {
	for _, h := range p.Handlers {
		if h.EventType == eventType && h.Generation == p.Generation {
			all = append(all, h)
		}
	}
	return all
}

// handlersPage is what the page of handlers shows.
type handlersPage struct {
	Handlers []operator.Handler
	Only     string // the handler that is shown alone
	Released string // after a breaker was closed: how many events that made due
}

func loadHandlers(ctx context.Context, v *visit) (any, error) {
	all, err := v.Client.Handlers(ctx)
	p := handlersPage{Handlers: all, Only: v.Query.Get("handler")}
	if p.Only != "" {
		p.Handlers = slices.DeleteFunc(p.Handlers, func(h operator.Handler) bool { return h.Handler != p.Only })
	}
	return p, err
}

// laneOf reads the generation of a form, and where the browser goes next.
func laneOf(v *visit, back string) (g events.Generation, next string, err error) {
	if g, err = events.ParseGeneration(v.Form.Get("generation")); err != nil {
		return 0, "", badRequest(err)
	}
	return g, query(back, "generation", g), nil
}

func pauseType(ctx context.Context, v *visit) (string, error) {
	g, next, err := laneOf(v, "/topology")
	if err == nil {
		err = v.Client.Pause(ctx, v.Form.Get("type"), g, v.Person.Name, strings.TrimSpace(v.Form.Get("reason")))
	}
	return next, err
}

func resumeType(ctx context.Context, v *visit) (string, error) {
	g, next, err := laneOf(v, "/topology")
	if err == nil {
		err = v.Client.Resume(ctx, v.Form.Get("type"), g, v.Person.Name)
	}
	return next, err
}

func tripHandler(ctx context.Context, v *visit) (string, error) {
	g, _, err := laneOf(v, "")
	if err == nil {
		err = v.Client.TripHandler(ctx, g, v.Form.Get("handler"), v.Person.Name, strings.TrimSpace(v.Form.Get("reason")))
	}
	return "/handlers", err
}

func closeHandler(ctx context.Context, v *visit) (string, error) {
	g, _, err := laneOf(v, "")
	if err == nil {
		_, err = v.Client.CloseHandler(ctx, g, v.Form.Get("handler"), v.Person.Name)
	}
	return "/handlers", err
}

// generationView is a generation, and why its workers may be stopped or not.
type generationView struct {
	operator.Generation
	Because, Command string
}

func loadGenerations(ctx context.Context, v *visit) (any, error) {
	all, err := v.Client.Generations(ctx, nil)
	var views []generationView
	for _, g := range all {
		view := generationView{Generation: g, Command: fmt.Sprintf("workers generation status %d", g.Generation)}
		left := []string{}
		for _, of := range []struct {
			n    int64
			what string
		}{{g.Due, "due"}, {g.Scheduled, "scheduled"}, {g.InFlight, "in flight"}} {
			if of.n > 0 {
				left = append(left, count(of.n)+" "+of.what)
			}
		}
		switch {
		case g.Status == "live":
			view.Because, view.Command = "it is live: drain it first", fmt.Sprintf("workers generation drain %d", g.Generation)
		case len(left) > 0:
			view.Because = "it still has events: " + strings.Join(left, ", ")
		default:
			view.Because = "it has no event that its workers would handle"
		}
		views = append(views, view)
	}
	slices.Reverse(views)
	return views, err
}

// comparePage is what the page of a comparison shows.
type comparePage struct {
	operator.Comparison
	A, B, Since      string
	Compared         bool
	Problem, Command string
}

func loadCompare(ctx context.Context, v *visit) (any, error) {
	p := comparePage{A: v.Query.Get("a"), B: v.Query.Get("b"), Since: cmp.Or(v.Query.Get("since"), "24h")}
	if p.A == "" && p.B == "" {
		return p, nil
	}
	a, errA := events.ParseGeneration(p.A)
	b, errB := events.ParseGeneration(p.B)
	since, errSince := operator.ParseAge(p.Since)
	err := errors.Join(errA, errB, errSince)
	switch {
	case err == nil && a == b:
		err = errors.New("a generation cannot be compared with itself: name two")
	case since > operator.MaxTimeline:
		err = errors.New("statistics are kept for 8d")
	}
	if err == nil {
		p.Command = fmt.Sprintf("workers generation compare %d %d --since %s", a, b, p.Since)
		p.Comparison, err = v.Client.Compare(ctx, a, b, since)
	}
	p.Compared = err == nil
	p.Problem = saidOf(err)
	return p, nil
}
