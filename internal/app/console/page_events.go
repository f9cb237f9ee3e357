package console

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"

	"spectral/internal/core/events"
	"spectral/internal/core/events/infrastructure/postgres/operator"
)

var eventPages = []page{
	{Path: "/events", Title: "Events", Template: "events", Load: loadEvents},
	{Path: "/events/{id}", Title: "Event", Template: "event", Load: loadEvent},
}

// searchTimeout bounds a statement that searches events for a page.
const searchTimeout = 2 * time.Second

const (
	maxListed = 200 // events on a page
	maxNamed  = 80  // events that a plan names: each is a parameter
)

// field is a part of a filter, named like the flag of the command line.
type field struct {
	Name, Label, Value, Hint string
	Options                  []string
}

// filterForm is a filter as a form, a query and a command show it.
type filterForm struct {
	Fields  []field
	Query   url.Values // its fields that are set
	Flags   []string   // of the command line
	Set     bool
	Problem error // what is wrong with a value
}

// commonFields is how many fields of a filter are always seen.
const commonFields = 6

// Common returns the fields that are always seen.
func (f filterForm) Common() []field { return f.Fields[:min(commonFields, len(f.Fields))] }

// Rare returns the other fields.
func (f filterForm) Rare() []field { return f.Fields[min(commonFields, len(f.Fields)):] }

// RareSet reports whether one of those has a value.
func (f filterForm) RareSet() bool {
	return slices.ContainsFunc(f.Rare(), func(of field) bool { return of.Value != "" })
}

// read reads a field into a list. Several values are joined by commas, as flags are.
func read[T any](f *filterForm, q url.Values, of field, parse func(string) (T, error)) (all []T) {
	for _, text := range q[of.Name] {
		for part := range strings.SplitSeq(text, ",") {
			if part = strings.TrimSpace(part); part == "" {
				continue
			}
			v, err := parse(part)
			if err != nil {
				f.Problem = errors.Join(f.Problem, fmt.Errorf("%s: %w", of.Name, err))
				continue
			}
			all = append(all, v)
		}
	}
	f.add(q, of)
	return all
}

// add adds a field to the form, the query and the command.
func (f *filterForm) add(q url.Values, of field) {
	of.Value = strings.Join(slices.DeleteFunc(slices.Clone(q[of.Name]), func(s string) bool { return s == "" }), ",")
	if of.Value != "" {
		f.Set = true
		f.Query.Set(of.Name, of.Value)
		f.Flags = append(f.Flags, "--"+of.Name, operator.ShellWord(of.Value))
	}
	f.Fields = append(f.Fields, of)
}

// age reads a field that is a time span.
func (f *filterForm) age(q url.Values, name, label string) (d time.Duration) {
	of := field{Name: name, Label: label, Hint: "90m or 3d"}
	if all := read(f, q, of, operator.ParseAge); len(all) > 0 {
		d = all[len(all)-1]
	}
	return d
}

func word[S ~string](s string) (S, error) { return S(s), nil }

// number reads a number of a query within bounds; other is what stands for none.
func number(q url.Values, name string, other, least, most float64) (float64, error) {
	text := strings.TrimSpace(q.Get(name))
	if text == "" {
		return other, nil
	}
	n, err := strconv.ParseFloat(text, 64)
	if err != nil || !(n >= least && n <= most) {
		return other, fmt.Errorf("%s: %.40q: want a number from %v to %v", name, text, least, most)
	}
	return n, nil
}

// whole is number for whole numbers from 1.
func whole(q url.Values, name string, other, most int) (int, error) {
	n, err := number(q, name, float64(other), 1, float64(most))
	if err == nil && n != float64(int(n)) {
		err = fmt.Errorf("%s: %.40q: want a whole number", name, q.Get(name))
	}
	return int(n), err
}

// parseWorkspace reads the id of a workspace, or none.
func parseWorkspace(s string) (uuid.NullUUID, error) {
	if s == "none" {
		return uuid.NullUUID{}, nil
	}
	id, err := operator.ParseID(s)
	return uuid.NullUUID{UUID: id, Valid: true}, err
}

// filterOf reads the filter of a query.
func filterOf(q url.Values) (f operator.Filter, form filterForm) {
	form.Query = url.Values{}
	pending := operator.Status("pending") // stands for the statuses due and scheduled
	statuses := append(operator.Statuses(), pending)
	f.Statuses = read(&form, q, field{Name: "status", Label: "Status", Options: operator.Strings(statuses)},
		operator.OneOf(statuses...))
	if i := slices.Index(f.Statuses, pending); i >= 0 {
		f.Statuses = slices.Replace(f.Statuses, i, i+1, operator.Due, operator.Scheduled)
	}
	f.EventTypes = read(&form, q, field{Name: "type", Label: "Type"}, word[string])
	f.Handlers = read(&form, q, field{Name: "handler", Label: "Handler", Hint: "that failed"}, word[string])
	f.ErrorClasses = read(&form, q, field{Name: "error", Label: "Error class"}, word[string])
	f.ErrorContains = q.Get("error-contains")
	form.add(url.Values{"error-contains": {f.ErrorContains}}, field{Name: "error-contains", Label: "Error contains"})
	f.Groups = read(&form, q, field{Name: "group", Label: "Error group"}, word[string])
	f.Workspaces = read(&form, q, field{Name: "workspace", Label: "Workspace", Hint: "id or none"}, parseWorkspace)
	f.Generations = read(&form, q, field{Name: "generation", Label: "Generation"}, events.ParseGeneration)
	scopes := []events.Scope{events.Core, events.Platform, events.Worlds}
	f.Sources = read(&form, q, field{Name: "source", Label: "Context", Options: operator.Strings(scopes)},
		operator.OneOf(scopes...))
	f.Targets = read(&form, q, field{Name: "target", Label: "For context", Options: append(operator.Strings(scopes),
		"none")}, func(s string) (events.Scope, error) {
		if s == "none" {
			return "", nil
		}
		return operator.OneOf(scopes...)(s)
	})
	f.Channels = read(&form, q, field{Name: "channel", Label: "Channel"}, word[string])
	f.OlderThan = form.age(q, "older-than", "Older than")
	f.NewerThan = form.age(q, "newer-than", "Newer than")
	return f, form
}

// badRequest returns an error that is told to the person.
func badRequest(err error) error { return badRequestError{http.StatusBadRequest, err.Error()} }

// allButDiscarded are the statuses of events that a filter without one selects.
func allButDiscarded() []operator.Status {
	return slices.DeleteFunc(operator.Statuses(), func(s operator.Status) bool { return s == operator.Discarded })
}

// saidOf returns what a page says of an error in one of its parts; empty for none.
func saidOf(err error) string {
	switch refused, broad := (*operator.RefusedError)(nil), (*operator.TooBroadError)(nil); {
	case err == nil:
		return ""
	case errors.As(err, &broad):
		return broad.Error()
	case errors.As(err, &refused):
		return refused.Error()
	case operator.IsDenied(err):
		return "this part is not for your role: " + err.Error()
	case operator.IsTimeout(err):
		return "this part took too long and was given up: " + err.Error()
	default:
		return err.Error()
	}
}

// searched is the query of a filter for what was typed into the search field.
func searched(q url.Values, sources map[string]string) url.Values {
	text := strings.TrimSpace(q.Get("q"))
	if text == "" {
		return q
	}
	if _, isType := sources[text]; isType {
		return url.Values{"type": {text}}
	}
	return url.Values{"error-contains": {text}}
}

// eventsPage is what the page of events shows.
type eventsPage struct {
	Form    filterForm
	Open    string // the id that was searched for
	Limit   int
	Found   operator.EventPage
	Total   int64
	About   bool // the total is an estimate
	Problem string
	Uncounted, Command, Next, Newest,
	Oldest string
	Paused []operator.Pause
	Acts   []planLink
}

// planLink leads to a plan for all that a filter selects.
type planLink struct{ What, Label, Link string }

func loadEvents(ctx context.Context, v *visit) (any, error) {
	p := eventsPage{}
	if id, err := operator.ParseID(strings.TrimSpace(v.Query.Get("q"))); err == nil {
		p.Open = id.String()
	}
	filter, form := filterOf(searched(v.Query, v.Sources))
	p.Form = form
	limit, err := whole(v.Query, "limit", operator.DefaultPageSize, maxListed)
	p.Limit = limit
	if p.Problem = saidOf(errors.Join(form.Problem, err)); p.Problem != "" {
		return p, nil
	}
	flags := form.Flags
	if len(filter.Statuses) == 0 {
		filter.Statuses = allButDiscarded()
		flags = append([]string{"--status", strings.Join(operator.Strings(filter.Statuses), ",")}, flags...)
	}
	p.Command = strings.Join(append([]string{"workers events list"}, flags...), " ")
	p.Newest = "/events" + suffix(form.Query)
	for what, label := range map[string]string{"replay": "Replay", "discard": "Discard", "retry_now": "Retry now"} {
		q := maps.Clone(form.Query)
		q.Set("what", what)
		p.Acts = append(p.Acts, planLink{what, label, "/plan?" + q.Encode()})
	}
	slices.SortFunc(p.Acts, func(a, b planLink) int { return -strings.Compare(a.What, b.What) })
	p.Found, err = v.Client.Find(ctx, filter, operator.Page{Limit: limit, After: v.Query.Get("after"),
		Timeout: searchTimeout})
	p.Problem = saidOf(err)
	if p.Found.Next != "" {
		p.Next = nextPage("/events", form.Query, p.Found.Next, v.Query.Get("limit"))
	}
	counts, err := v.Client.Count(ctx, filter, operator.Count{By: []operator.Dimension{operator.ByStatus},
		Limit: operator.MaxPageSize, Most: operator.MaxWaiting, Timeout: searchTimeout})
	p.Uncounted = saidOf(err)
	for _, g := range counts.Groups {
		p.Total += g.Count
		p.About = p.About || g.Estimated
	}
	p.Paused, _ = v.Client.Pauses(ctx) // a note beside the page
	return p, nil
}

// nextPage returns the link to the page after a cursor.
func nextPage(path string, filter url.Values, after, limit string) string {
	q := maps.Clone(filter)
	q.Set("after", after)
	if limit != "" {
		q.Set("limit", limit)
	}
	return path + "?" + q.Encode()
}

// suffix returns a query with its question mark, or nothing.
func suffix(q url.Values) string {
	if len(q) == 0 {
		return ""
	}
	return "?" + q.Encode()
}

// eventPage is what the page of an event shows: several events may share an id.
type eventPage struct {
	ID       uuid.UUID
	Events   []eventView
	Problem  string // of what explains them
	Commands []string
}

// eventView is one event.
type eventView struct {
	operator.Detail
	Why    []operator.Cause
	Says   string // of its status
	Tree   []treeLine
	Acts   []planLink
	Traces map[string][]operator.FailedAttempt
}

// treeLine is an event among those that caused it, and that it caused.
type treeLine struct {
	operator.Relative
	This  bool
	Place int
}

func loadEvent(ctx context.Context, v *visit) (any, error) {
	id, err := operator.ParseID(v.Path["id"])
	if err != nil {
		return nil, badRequest(err)
	}
	details, err := v.Client.Show(ctx, id)
	if err != nil {
		return nil, err
	}
	explained, err := v.Client.Explain(ctx, id)
	p := eventPage{ID: id, Problem: saidOf(err), Commands: []string{"workers events show " + id.String()}}
	for _, d := range details {
		e := eventView{Detail: d, Says: status(d)}
		for _, x := range explained {
			if x.OccurredAt != nil && x.OccurredAt.Equal(d.OccurredAt) {
				e.Why = x.Causes
			}
		}
		for _, r := range slices.Concat(d.Causes, []operator.Relative{{EventID: id, EventType: d.EventType,
			Status: d.Status}}, d.Effects) {
			e.Tree = append(e.Tree, treeLine{r, r.Depth == 0, min(r.Depth+len(d.Causes), 12)})
		}
		acts := map[operator.Status][][2]string{operator.Failed: {{"replay", "Replay"}, {"discard", "Discard"}},
			operator.Scheduled: {{"retry_now", "Retry now"}}, operator.Quarantined: {{"retry_now", "Retry now"}},
			operator.Discarded: {{"undiscard", "Undo the discard"}}, operator.Delivered: {{"replay", "Replay again"}}}
		for _, act := range acts[d.Status] {
			force := ""
			if d.Status == operator.Delivered {
				force = "1"
			}
			e.Acts = append(e.Acts, planLink{act[0], act[1], query("/plan", "what", act[0], "id", id, "force", force)})
		}
		p.Events = append(p.Events, e)
	}
	return p, nil
}

// status says in words what an event is.
func status(d operator.Detail) string {
	open, parked := 0, 0
	for _, h := range d.Handlers {
		switch h.Stage {
		case "parked":
			parked++
		case "failing", "to_run":
			open++
		}
	}
	of := func(n int) string { return fmt.Sprintf("%d of %s", n, operator.Counted(len(d.Handlers), "handler")) }
	switch {
	case d.Status == operator.Failed && parked > 0:
		return "failed: " + of(parked) + " gave up"
	case d.WaitingFor != nil:
		return "waits for the breaker of " + *d.WaitingFor
	case d.Status == operator.Scheduled && d.FirstFailedAt != nil:
		return "waits for a retry: " + of(open) + " to run"
	case d.Status == operator.Due, d.Status == operator.Scheduled, d.Status == operator.InFlight:
		return words(d.Status) + ": " + of(open) + " to run"
	default:
		return words(d.Status)
	}
}
