package console

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/google/uuid"

	"spectral/internal/core/events"
	"spectral/internal/core/events/infrastructure/postgres/operator"
)

var (
	planPages = []page{
		{Path: "/plan", Title: "Plan", Template: "plan", Load: loadPlan},
		{Path: "/plan/result", Title: "Result", Template: "result", Load: loadResult},
	}
	planActs = []act{{Path: "/plan/confirm", Do: confirmPlan}}
)

// typeAbove is the number of events above which it must be typed.
const typeAbove = 1000

// verb is something that a plan does to events.
type verb struct {
	Name, Label, Done string // Name is that of the command, with an underscore
	takes             []operator.Status
}

var verbs = []verb{
	{"replay", "Replay", "replayed", []operator.Status{operator.Failed}},
	{"discard", "Discard", "discarded", []operator.Status{operator.Failed}},
	{"undiscard", "Undo the discard of", "undiscarded", []operator.Status{operator.Discarded}},
	{"retry_now", "Retry", "made due", []operator.Status{operator.Scheduled, operator.Quarantined}},
}

// order is what is to be done to which events, as a query or a form says it.
type order struct {
	verb
	IDs    []uuid.UUID
	form   filterForm
	filter operator.Filter
	To     events.Generation
	Choice operator.Choice
	Force  bool
	Course operator.Course
	Reason string
	values url.Values
}

// fields of an order besides its filter.
var orderFields = []string{"what", "id", "to", "choice", "force", "rate", "canary", "go-on", "max-failed"}

// orderOf reads an order.
func orderOf(q url.Values) (o order, err error) {
	o.filter, o.form = filterOf(q)
	err = o.form.Problem
	o.values = url.Values{}
	for _, name := range orderFields {
		if values := slices.DeleteFunc(slices.Clone(q[name]), func(s string) bool { return s == "" }); len(values) > 0 {
			o.values[name] = values
		}
	}
	i := slices.IndexFunc(verbs, func(v verb) bool { return v.Name == q.Get("what") })
	if i < 0 {
		return o, fmt.Errorf("what: %.40q: want replay, discard, undiscard or retry_now", q.Get("what"))
	}
	o.verb = verbs[i]
	for _, text := range o.values["id"] {
		id, wrong := operator.ParseID(text)
		o.IDs, err = append(o.IDs, id), errors.Join(err, wrong)
	}
	slices.SortFunc(o.IDs, func(a, b uuid.UUID) int { return bytes.Compare(a[:], b[:]) })
	o.IDs = slices.Compact(o.IDs)
	if len(o.IDs) > maxNamed {
		err = errors.Join(err, fmt.Errorf("%d events are named: at most %d; a filter selects more", len(o.IDs), maxNamed))
	}
	if len(o.IDs) == 0 && q.Has("selected") {
		err = errors.Join(err, errors.New("no event is selected: select some in the list of events"))
	}
	if len(o.IDs) > 0 && o.form.Set {
		err = errors.Join(err, errors.New("events are named by id, and a filter is given too: leave one of them out"))
	}
	if to := q.Get("to"); to != "" {
		generation, wrong := events.ParseGeneration(to)
		o.To, err = generation, errors.Join(err, wrong)
	}
	for _, choice := range o.values["choice"] {
		if name, runs := strings.CutPrefix(choice, "run:"); runs {
			o.Choice.Run = append(o.Choice.Run, name)
		} else if name, skips := strings.CutPrefix(choice, "skip:"); skips {
			o.Choice.Skip = append(o.Choice.Skip, name)
		}
	}
	o.Force, o.Course.GoesOn, o.Reason = q.Get("force") != "", q.Get("go-on") != "", strings.TrimSpace(q.Get("reason"))
	for _, wrong := range []error{
		into(&o.Course.Rate)(number(q, "rate", operator.DefaultRate, 1e-6, 1e9)),
		into(&o.Course.Canary)(whole(q, "canary", 0, 1_000_000)),
		into(&o.Course.MaxFailed)(number(q, "max-failed", 1, 0, 1)),
	} {
		err = errors.Join(err, wrong)
	}
	return o, errors.Join(err, o.suits())
}

// into returns a function that keeps a value and returns the error.
func into[T any](kept *T) func(T, error) error {
	return func(v T, err error) error { *kept = v; return err }
}

// suits restricts the filter to the statuses of events that the order takes; the first of them if it names none.
func (o *order) suits() error {
	takes := o.takes
	if o.Name == "replay" && o.Force {
		takes = append(slices.Clone(takes), operator.Delivered)
	}
	if o.Name == "retry_now" {
		tried := true
		o.filter.Tried = &tried
	}
	if len(o.filter.Statuses) == 0 {
		o.filter.Statuses = takes[:1]
		return nil
	}
	o.filter.Statuses = slices.DeleteFunc(slices.Clone(o.filter.Statuses), func(s operator.Status) bool {
		return !slices.Contains(takes, s)
	})
	if len(o.filter.Statuses) == 0 {
		return fmt.Errorf("%s takes events that are %s, and the filter selects others", words(o.Name), operator.Joined(takes))
	}
	return nil
}

func (o *order) change(by string) operator.Change {
	switch o.Name {
	case "replay":
		return operator.Replay(o.To, by, o.Force, o.Choice)
	case "discard":
		return operator.Discard(by, o.Reason)
	case "undiscard":
		return operator.Undiscard(by)
	default:
		return operator.RetryNow(by)
	}
}

// Filtered reports whether workers carry the order on, as an operation.
func (o order) Filtered() bool {
	return len(o.IDs) == 0 && (o.Name == "replay" || o.Name == "discard")
}

// command returns the command line that does the same.
func (o *order) command(plan string) string {
	line := []string{"workers events", strings.ReplaceAll(o.Name, "_", "-")}
	add := func(when bool, flag, value string) {
		if when {
			line = append(line, strings.TrimSpace("--"+flag+" "+value))
		}
	}
	for _, id := range o.IDs {
		line = append(line, id.String())
	}
	if len(o.IDs) == 0 {
		flags := o.form.Flags
		if !slices.Contains(flags, "--status") {
			flags = append([]string{"--status", string(o.filter.Statuses[0])}, flags...)
		} else {
			flags[slices.Index(flags, "--status")+1] = strings.Join(operator.Strings(o.filter.Statuses), ",")
		}
		line = append(line, flags...)
	}
	if o.Name == "replay" {
		add(o.To > 0, "to", fmt.Sprint(o.To))
		add(o.Force, "force", "")
		add(len(o.Choice.Run) > 0, "run", operator.ShellWord(strings.Join(o.Choice.Run, ",")))
		add(len(o.Choice.Skip) > 0, "skip", operator.ShellWord(strings.Join(o.Choice.Skip, ",")))
	}
	add(o.Reason != "" && o.Name == "discard", "reason", operator.ShellWord(o.Reason))
	add(o.Course.Rate != operator.DefaultRate, "rate", strconv.FormatFloat(o.Course.Rate, 'f', -1, 64))
	if o.Filtered() {
		add(o.Course.Canary > 0, "canary", strconv.Itoa(o.Course.Canary))
		add(o.Course.GoesOn, "go-on", "")
		add(o.Course.MaxFailed != 1, "max-failed", strconv.FormatFloat(o.Course.MaxFailed, 'f', -1, 64))
		add(plan != "", "plan", plan)
	}
	return strings.Join(line, " ")
}

// hidden is a field of a form that is not seen.
type hidden struct{ Name, Value string }

// hiddenOf returns what an order consists of, without some fields.
func (o *order) hiddenOf(without ...string) (all []hidden) {
	for _, values := range []url.Values{o.form.Query, o.values} {
		for name, texts := range values {
			for _, text := range texts {
				if !slices.Contains(without, name) {
					all = append(all, hidden{name, text})
				}
			}
		}
	}
	slices.SortFunc(all, func(a, b hidden) int { return strings.Compare(a.Name+"\n"+a.Value, b.Name+"\n"+b.Value) })
	return all
}

// selected returns the events of an order, those of a filter as of a time if it is set, and for each named event that
// cannot be changed so, why not.
func (o *order) selected(ctx context.Context, c *operator.Client, by string) (s operator.Selection, refused []string,
	err error) {
	if len(o.IDs) == 0 {
		s, err = c.Select(ctx, o.filter, searchTimeout)
		return s, nil, err
	}
	s, err = c.SelectNamed(ctx, o.IDs, o.change(by))
	joined, several := err.(interface{ Unwrap() []error })
	if !several {
		return s, nil, err
	}
	for _, one := range joined.Unwrap() {
		if _, isRefusal := errors.AsType[*operator.RefusedError](one); !isRefusal {
			return s, nil, err
		}
		refused = append(refused, one.Error())
	}
	return s, refused, nil
}

// planPage is what the page of a plan shows.
type planPage struct {
	Order          order
	Problem        string
	Denied         bool // the person may not act
	Events         int
	Refused        []string
	Shown          []operator.Event
	Preview        operator.Preview
	Previewed      bool
	Unpreviewed    string // why there is no preview
	Generations    []operator.Generation
	Choices        []handlerChoice
	Seconds        float64
	Name           string
	Command        string
	Type           bool // the number must be typed
	Confirm        bool // nothing is missing
	Hidden, Adjust []hidden
}

// handlerChoice is a handler that had begun with events, acts outside its transaction, and whether it runs again.
type handlerChoice struct{ Handler, Outside, Chosen string }

func loadPlan(ctx context.Context, v *visit) (any, error) {
	p, err := planOf(ctx, v, v.Query)
	if p.Denied = operator.IsDenied(err); err != nil && !p.Denied {
		p.Problem = saidOf(err)
	}
	return p, nil
}

func planOf(ctx context.Context, v *visit, q url.Values) (p planPage, err error) {
	p.Order, err = orderOf(q)
	o := &p.Order
	if err != nil {
		return p, err
	}
	p.Generations, err = v.Client.Generations(ctx, nil)
	if err != nil {
		return p, err
	}
	p.Generations = slices.DeleteFunc(p.Generations, func(g operator.Generation) bool { return g.Status != "live" })
	if o.Name == "replay" && o.To == 0 {
		for _, g := range p.Generations {
			if g.PublishingDefault {
				o.To = g.Generation
				o.values.Set("to", fmt.Sprint(o.To))
			}
		}
		if o.To == 0 {
			return p, errors.New("no generation is live: a replay needs one")
		}
	}
	p.Command, p.Events = o.command(""), len(o.IDs)
	p.Hidden, p.Adjust = o.hiddenOf(), o.hiddenOf("to", "choice", "rate", "canary", "go-on", "max-failed")
	s, refused, err := o.selected(ctx, v.Client, v.Person.Name)
	if err != nil {
		return p, err
	}
	// only settled events are found again as of a time: others are named
	if s.Len() > 0 && (len(refused) > 0 || len(o.IDs) == 0 && !o.Filtered()) {
		p, err = p.named(ctx, v, s)
		p.Refused = refused
		return p, err
	}
	p.Refused, p.Events = refused, s.Len()
	name := operator.Plan(s, o.change(v.Person.Name), o.filter)
	p.Name, p.Command, p.Seconds = name.String(), o.command(name.String()), float64(s.Len())/o.Course.Rate
	if p.Shown, err = v.Client.Shown(ctx, s, 20); err != nil {
		return p, err
	}
	p.Type, p.Confirm = p.Events > typeAbove, p.Events > 0
	if o.Name != "replay" || p.Events == 0 {
		return p, nil
	}
	p.Preview, err = v.Client.PreviewReplay(ctx, s, o.To, o.Choice, false)
	if operator.IsDenied(err) {
		return p, err
	}
	p.Unpreviewed, p.Previewed = saidOf(err), err == nil
	asking := p.Preview.Asking()
	p.Confirm = p.Previewed && len(asking) == 0
	for _, h := range p.Preview.Handlers {
		p.Type = p.Type || h.WouldRun > 0 && h.Outside != ""
		chosen := ""
		if slices.Contains(o.Choice.Run, h.Handler) {
			chosen = "run:"
		} else if slices.Contains(o.Choice.Skip, h.Handler) {
			chosen = "skip:"
		}
		if h.Asks > 0 || chosen != "" {
			p.Choices = append(p.Choices, handlerChoice{h.Handler, h.Outside, chosen})
		}
	}
	return p, nil
}

// named returns the plan of the same act for the events of a selection, which it names.
func (p planPage) named(ctx context.Context, v *visit, s operator.Selection) (planPage, error) {
	if s.Len() > maxNamed {
		return p, fmt.Errorf("%s match, and a plan names at most %d: use the command line, or a narrower filter",
			counted(s.Len(), "event"), maxNamed)
	}
	all, err := v.Client.Shown(ctx, s, maxNamed)
	if err != nil {
		return p, err
	}
	q := maps.Clone(p.Order.values)
	q.Del("id")
	for _, e := range all {
		q.Add("id", e.ID.String())
	}
	return planOf(ctx, v, q)
}

// confirmPlan does what a plan says to the events that have not changed since.
func confirmPlan(ctx context.Context, v *visit) (next string, err error) {
	o, err := orderOf(v.Form)
	if err != nil {
		return "", badRequest(err)
	}
	planned, err := operator.ParsePlanName(v.Form.Get("plan"))
	if err != nil {
		return "", badRequest(err)
	}
	if o.Filtered() {
		o.filter.AsOf = planned.AsOf
	}
	s, _, err := o.selected(ctx, v.Client, v.Person.Name)
	if err != nil {
		return "", err
	}
	change := o.change(v.Person.Name)
	changed, err := planned.Check(operator.Plan(s, change, o.filter))
	if err != nil {
		return "", badRequest(errors.New("the events or the act are not those of the plan any more: look at the plan " +
			"again, then confirm it"))
	}
	if s.Len() == 0 {
		return "", badRequest(fmt.Errorf("all %s of the plan changed since: nothing is left to do",
			counted(planned.Events, "event")))
	}
	typed := planned.Events > typeAbove
	if o.Name == "replay" {
		preview, err := v.Client.PreviewReplay(ctx, s, o.To, o.Choice, false)
		if err != nil {
			return "", err
		}
		if asking := preview.Asking(); len(asking) > 0 {
			return "", badRequest(fmt.Errorf("had begun, and act outside their transaction: %s: choose for each whether it "+
				"runs again", strings.Join(asking, ", ")))
		}
		for _, h := range preview.Handlers {
			typed = typed || h.WouldRun > 0 && h.Outside != ""
		}
	}
	said := strings.NewReplacer(",", "", " ", "").Replace(v.Form.Get("typed"))
	if typed && said != strconv.Itoa(planned.Events) {
		return "", badRequest(fmt.Errorf("type the number of events of the plan, %d, to confirm it", planned.Events))
	}
	if o.Filtered() {
		id, err := v.Client.BeginOperation(ctx, s, change, o.command(""), planned.String(), o.Course)
		if err != nil {
			return "", err
		}
		return query(link("/operations", id), "changed", nonZero(changed)), nil
	}
	result, err := v.Client.Apply(ctx, s, change, operator.Pace{Rate: o.Course.Rate})
	if err != nil {
		return "", fmt.Errorf("%s of %s: %w", operator.Counted(result.Done, "event"), o.Done, err)
	}
	q := url.Values{"what": {o.Name}, "done": {strconv.Itoa(result.Done)}, "changed": {nonZero(changed + result.Skipped)}}
	for _, id := range o.IDs {
		q.Add("id", id.String())
	}
	return "/plan/result?" + q.Encode(), nil
}

// nonZero returns a number, or nothing for zero.
func nonZero(n int) string {
	if n == 0 {
		return ""
	}
	return strconv.Itoa(n)
}

// resultPage is what became of a plan for named events.
type resultPage struct {
	verb
	Count, Changed int
	IDs            []uuid.UUID
	Actions        []operator.Action
	Problem        string
}

func loadResult(ctx context.Context, v *visit) (any, error) {
	o, err := orderOf(v.Query)
	if err != nil {
		return nil, badRequest(err)
	}
	p := resultPage{verb: o.verb, IDs: o.IDs}
	p.Count, _ = strconv.Atoi(v.Query.Get("done"))
	p.Changed, _ = strconv.Atoi(v.Query.Get("changed"))
	if len(o.IDs) > 0 {
		found, err := v.Client.Actions(ctx, operator.ActionFilter{Events: o.IDs},
			operator.Page{Limit: 10, Timeout: searchTimeout})
		p.Actions, p.Problem = found.Actions, saidOf(err)
	}
	return p, nil
}
