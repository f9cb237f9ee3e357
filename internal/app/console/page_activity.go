package console

import (
	"context"
	"errors"
	"net/url"
	"strings"

	"spectral/internal/core/events"
	"spectral/internal/core/events/infrastructure/postgres/operator"
)

var activityPages = []page{{Path: "/activity", Title: "Activity", Template: "activity", Load: loadActivity}}

// activityPage is what the page of actions shows.
type activityPage struct {
	Form                   filterForm
	Found                  operator.ActionPage
	Problem, Command, Next string
}

func loadActivity(ctx context.Context, v *visit) (any, error) {
	p := activityPage{Form: filterForm{Query: url.Values{}}}
	f := &p.Form
	filter := operator.ActionFilter{
		By: read(f, v.Query, field{Name: "by", Label: "By", Hint: "name or login"}, word[string]),
		Actions: read(f, v.Query, field{Name: "action", Label: "Action", Options: operator.ActionNames()},
			operator.OneOf(operator.ActionNames()...)),
		Events:      read(f, v.Query, field{Name: "event", Label: "Event", Hint: "id"}, operator.ParseID),
		Generations: read(f, v.Query, field{Name: "generation", Label: "Generation"}, events.ParseGeneration),
		OlderThan:   f.age(v.Query, "older-than", "Older than"),
		NewerThan:   f.age(v.Query, "newer-than", "Newer than"),
	}
	limit, err := whole(v.Query, "limit", operator.DefaultPageSize, maxListed)
	if err = errors.Join(f.Problem, err); err == nil {
		p.Command = strings.Join(append([]string{"workers actions list"}, f.Flags...), " ")
		p.Found, err = v.Client.Actions(ctx, filter, operator.Page{Limit: limit, After: v.Query.Get("after"),
			Timeout: searchTimeout})
	}
	if p.Problem = saidOf(err); p.Found.Next != "" {
		p.Next = nextPage("/activity", f.Query, p.Found.Next, v.Query.Get("limit"))
	}
	return p, nil
}
