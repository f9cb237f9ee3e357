package console

import (
	"context"
	"errors"
	"strings"
	"time"

	"spectral/internal/core/events/infrastructure/postgres/operator"
)

var (
	failurePages = []page{
		{Path: "/failures", Title: "Failures", Template: "failures", Load: loadFailures},
		{Path: "/failures/{group}", Title: "Failure", Template: "failure", Load: loadFailure},
	}
	failureActs = []act{{Path: "/failures/note", Do: noteFailure}, {Path: "/failures/mute", Do: muteFailure}}
)

// failuresPage is what the page of failures shows.
type failuresPage struct {
	operator.ErrorGroups
	ShowsMuted       bool
	Problem, Command string
}

func loadFailures(ctx context.Context, v *visit) (any, error) {
	p := failuresPage{ShowsMuted: v.Query.Get("muted") != "", Command: "workers events groups"}
	filter, form := filterOf(v.Query)
	err := form.Problem
	if err == nil {
		p.Command = strings.Join(append([]string{p.Command}, form.Flags...), " ")
		p.ErrorGroups, err = v.Client.ErrorGroups(ctx, operator.GroupFilter{Events: filter, Muted: p.ShowsMuted,
			Limit: operator.DefaultPageSize}, searchTimeout)
	}
	p.Problem = saidOf(err)
	return p, nil
}

// failurePage is what the page of one group of errors shows.
type failurePage struct {
	ID               string
	Group            *operator.ErrorGroup // nil: no event fails so now
	Found            operator.EventPage
	Samples          []sample
	Problem, Command string
}

// sample is an event of a group.
type sample struct {
	operator.Detail
	Problem string
}

func loadFailure(ctx context.Context, v *visit) (any, error) {
	p := failurePage{ID: v.Path["group"]}
	p.Command = "workers events list --group " + operator.ShellWord(p.ID)
	filter := operator.Filter{Groups: []string{p.ID}}
	found, err := v.Client.ErrorGroups(ctx, operator.GroupFilter{Events: filter, Muted: true, Limit: operator.MaxPageSize},
		searchTimeout)
	for _, g := range found.Groups { // an event that has failed so may have failed otherwise too
		if g.GroupID == p.ID {
			p.Group = &g
		}
	}
	if err == nil {
		filter.Statuses = []operator.Status{operator.Failed, operator.Due, operator.Scheduled, operator.InFlight}
		p.Found, err = v.Client.Find(ctx, filter, operator.Page{Limit: 20, Timeout: searchTimeout})
	}
	p.Problem = saidOf(err)
	if p.Group == nil {
		return p, nil
	}
	for _, id := range p.Group.Samples {
		details, err := v.Client.Show(ctx, id)
		s := sample{Problem: saidOf(err)}
		s.ID = id
		for _, d := range details {
			s.Detail = d
		}
		p.Samples = append(p.Samples, s)
	}
	return p, nil
}

func noteFailure(ctx context.Context, v *visit) (next string, err error) {
	group := v.Form.Get("group")
	return link("/failures", group), v.Client.NoteGroup(ctx, group, strings.TrimSpace(v.Form.Get("note")), v.Person.Name)
}

func muteFailure(ctx context.Context, v *visit) (next string, err error) {
	group, length := v.Form.Get("group"), time.Duration(0)
	if v.Form.Get("unmute") == "" {
		length, err = operator.ParseAge(strings.TrimSpace(v.Form.Get("for")))
		if err == nil && length > 366*24*time.Hour {
			err = errors.New("for: at most 366d")
		}
		if err != nil {
			return "", badRequest(err)
		}
	}
	return link("/failures", group), v.Client.MuteGroup(ctx, group, length, v.Person.Name)
}
