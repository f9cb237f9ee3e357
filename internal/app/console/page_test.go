package console

import (
	"context"
	"encoding/json"
	"fmt"
	"html"
	"net/url"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"spectral/internal/core/events/infrastructure/postgres/operator"
)

// hostile is a text that breaks pages which do not escape it.
var hostile = "</title><script>alert(1)</script>\"' onload=alert(2) style=x javascript:alert(3) \u202e/../.?&#%2f" +
	"{{.}}" + strings.Repeat("long", 100)

var fixtureNow = time.Date(2026, 12, 1, 12, 0, 0, 0, time.UTC)

// fill sets all that a value consists of: texts to s, lists to two entries, pointers to something.
func fill(v reflect.Value, s string) {
	switch v.Type() {
	case reflect.TypeFor[time.Time]():
		v.Set(reflect.ValueOf(fixtureNow.Add(-time.Hour)))
		return
	case reflect.TypeFor[uuid.UUID]():
		v.Set(reflect.ValueOf(uuid.MustParse("0198c5d4-9a52-7c11-8f0e-3b7a4d2f6e10")))
		return
	case reflect.TypeFor[json.RawMessage]():
		text, _ := json.Marshal(map[string]string{"text": s})
		v.Set(reflect.ValueOf(json.RawMessage(text)))
		return
	}
	switch v.Kind() {
	case reflect.String:
		v.SetString(s)
	case reflect.Bool:
		v.SetBool(true)
	case reflect.Int, reflect.Int64:
		v.SetInt(12345)
	case reflect.Float64:
		v.SetFloat(0.5)
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		fill(v.Elem(), s)
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 2, 2))
		for i := range 2 {
			fill(v.Index(i), s)
		}
	case reflect.Struct:
		for i := range v.NumField() {
			if f := v.Field(i); f.CanSet() || v.Type().Field(i).Anonymous && f.Kind() == reflect.Struct {
				fill(f, s)
				if name := v.Type().Field(i).Name; name == "Link" || name == "Next" || name == "Newest" {
					f.SetString("/events?made=here")
				}
			}
		}
	default: // stays zero
	}
}

// shown are the data of each template.
func shown() map[string]any {
	return map[string]any{
		"overview": &overview{}, "flow": &flowPage{}, "health": &healthPage{}, "events": &eventsPage{}, "event": &eventPage{},
		"failures": &failuresPage{}, "failure": &failurePage{}, "plan": &planPage{}, "result": &resultPage{},
		"operations": &[]operator.Operation{}, "operation": &operationPage{}, "topology": &topologyPage{},
		"handlers": &handlersPage{}, "generations": &[]generationView{}, "compare": &comparePage{},
		"activity": &activityPage{}, "error": &errorView{},
	}
}

// fixtures calls use with each page as a person sees it: empty, and full of a text.
func fixtures(t *testing.T, use func(name, text string)) {
	t.Helper()
	s := newServer(Deps{Version: "v1"}, pages, acts, files, Prefix("/ops/events"))
	all := append(slices.Clone(pages), errorPage)
	for _, p := range all {
		for _, what := range []string{"", "failed", "replay", "closed", "paused", hostile} {
			for _, role := range []string{operator.Viewer, operator.Corrector} {
				data := reflect.ValueOf(shown()[p.Template])
				if !data.IsValid() {
					t.Fatalf("there is no fixture for %s", p.Template)
				}
				if what != "" {
					fill(data.Elem(), what)
				}
				switch d := data.Interface().(type) {
				case *planPage:
					d.Problem, d.Order.Name = "", what
				case *eventsPage:
					if what != hostile {
						d.Problem = ""
					}
				case *failuresPage:
					d.Problem = ""
				}
				v := &visit{Person: Person{Name: what, Role: role}, Prefix: "/ops/events"}
				text, err := s.execute("layout", p, v, data.Elem().Interface())
				if err != nil {
					t.Errorf("%s of %.10q: %v", p.Template, what, err)
				}
				use(fmt.Sprintf("%s of %.10q for %s", p.Template, what, role), string(text))
			}
		}
	}
}

var (
	tags       = regexp.MustCompile(`<[a-z][^>]*>`)
	forbidden  = regexp.MustCompile(`(?i)\s(style|on[a-z]+)=`)
	links      = regexp.MustCompile(`\s(?:href|src|action)="([^"]*)"`)
	outside    = regexp.MustCompile(`(?s)<textarea.*?</textarea>|<[^>]*>`) // of what is seen
	quotedText = regexp.MustCompile(`"[^"]*"`)
)

func TestPagesEscapeAllThatTheyShow(t *testing.T) {
	t.Parallel()
	fixtures(t, func(name, text string) {
		if strings.Contains(text, "<script>") || strings.Contains(text, "ZgotmplZ") {
			t.Errorf("%s has a raw text", name)
		}
		if i := strings.IndexRune(outside.ReplaceAllString(text, ""), '\u202e'); i >= 0 {
			t.Errorf("%s turns the direction of text: %.200s", name, outside.ReplaceAllString(text, "")[max(i-150, 0):])
		}
		for _, tag := range tags.FindAllString(text, -1) {
			if forbidden.MatchString(quotedText.ReplaceAllString(tag, "")) || forbidden.MatchString(tag) &&
				!strings.Contains(tag, "alert(2)") {
				t.Errorf("%s has an inline style or script: %.200s", name, tag)
			}
		}
		for _, link := range links.FindAllStringSubmatch(text, -1) {
			to := html.UnescapeString(link[1])
			u, err := url.Parse(to)
			within := to == "/ops/events" || strings.HasPrefix(to, "/ops/events/") || strings.HasPrefix(to, "#")
			if err != nil || u.Host != "" || !within && !strings.HasPrefix(name, "error") {
				t.Errorf("%s leads to %.200q (%v)", name, to, err)
			}
		}
		for _, tag := range []string{"main", "table", "tr", "td", "th", "form", "section", "ul", "ol", "svg",
			"details", "div", "p"} {
			open := len(regexp.MustCompile(`<`+tag+`[\s>]`).FindAllString(text, -1))
			if closed := strings.Count(text, "</"+tag+">"); open != closed {
				t.Errorf("%s opens %d and closes %d of %s", name, open, closed, tag)
			}
		}
		if strings.Count(text, "<h1") < 1 && !strings.HasPrefix(name, `event of ""`) {
			t.Errorf("%s has no heading", name)
		}
	})
}

func TestViewersSeeNoForm(t *testing.T) {
	t.Parallel()
	fixtures(t, func(name, text string) {
		if strings.HasSuffix(name, operator.Viewer) && strings.Contains(text, `method="post"`) {
			t.Errorf("%s has a form that acts", name)
		}
		if strings.HasSuffix(name, operator.Viewer) && strings.Contains(text, `class="payload"`) {
			t.Errorf("%s has a payload", name)
		}
	})
}

func TestLinksHaveEachElementEscaped(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"a/b", "a.b", "a b", "%2f", "?x=1#y", hostile} {
		u, err := url.Parse(link("/ops/failures", name))
		if err != nil {
			t.Fatal(err)
		}
		if path, is := strings.CutPrefix(u.EscapedPath(), "/ops/failures/"); !is || strings.Contains(path, "/") {
			t.Errorf("%q has more than one element", u.EscapedPath())
		}
		if u.Path != "/ops/failures/"+name || u.RawQuery != "" {
			t.Errorf("%q became %q", name, u.Path)
		}
		u, err = url.Parse(query("/events", "type", name, "status", ""))
		if err != nil || u.Query().Get("type") != name || u.Query().Has("status") {
			t.Errorf("%q became %q", name, u.RawQuery)
		}
	}
}

func TestFiltersAreFormsQueriesAndCommands(t *testing.T) {
	t.Parallel()
	q := url.Values{"status": {"failed", "pending"}, "type": {"a.b,c.d"}, "error-contains": {"it's, so"},
		"newer-than": {"3d"}, "workspace": {"none"}, "target": {"none,worlds"}, "generation": {"8"}, "handler": {""}}
	filter, form := filterOf(q)
	if form.Problem != nil {
		t.Fatal(form.Problem)
	}
	if want := []operator.Status{operator.Failed, operator.Due, operator.Scheduled}; !slices.Equal(filter.Statuses, want) {
		t.Errorf("statuses are %v, want %v", filter.Statuses, want)
	}
	again, _ := filterOf(form.Query)
	if !reflect.DeepEqual(filter, again) {
		t.Errorf("%+v became %+v", filter, again)
	}
	want := `--status failed,pending --type a.b,c.d --error-contains 'it'\''s, so' --workspace none --generation 8 ` +
		"--target none,worlds --newer-than 3d"
	if got := strings.Join(form.Flags, " "); got != want {
		t.Errorf("flags are\n%s, want\n%s", got, want)
	}
	for name, value := range map[string]string{"status": "gone", "generation": "-1", "workspace": "x", "older-than": "-3h",
		"newer-than": "9999999d", "source": "moon"} {
		if _, form := filterOf(url.Values{name: {value}}); form.Problem == nil {
			t.Errorf("%s=%s is taken", name, value)
		}
	}
}

// A value that cannot be is said on the page, before the database is asked.
func TestWrongValuesAreSaid(t *testing.T) {
	t.Parallel()
	for at, loads := range map[string]struct {
		load func(context.Context, *visit) (any, error)
		want string
	}{
		"/events?limit=-1":                   {loadEvents, "want a number from 1"},
		"/events?limit=1e300":                {loadEvents, "want a number from 1"},
		"/events?limit=NaN":                  {loadEvents, "want a number from 1"},
		"/events?limit=1.5":                  {loadEvents, "want a whole number"},
		"/events?generation=0":               {loadEvents, "not a deployment generation"},
		"/activity?limit=0":                  {loadActivity, "want a number from 1"},
		"/flow?since=9d":                     {loadFlow, "8d"},
		"/generations/compare?a=1&b=1":       {loadCompare, "itself"},
		"/plan?what=delete":                  {loadPlan, "want replay"},
		"/plan?what=replay&selected=1":       {loadPlan, "no event is selected"},
		"/plan?what=replay&rate=-1":          {loadPlan, "rate"},
		"/plan?what=replay&canary=-1":        {loadPlan, "canary"},
		"/plan?what=replay&id=1":             {loadPlan, "want an id"},
		"/plan?what=replay&status=delivered": {loadPlan, "selects others"},
		"/plan?what=discard&type=a&id=0198c5d4-9a52-7c11-8f0e-3b7a4d2f6e10": {loadPlan, "leave one of them out"},
	} {
		u, _ := url.Parse(at)
		data, err := loads.load(t.Context(), &visit{Query: u.Query()})
		if err != nil {
			t.Errorf("%s: %v", at, err)
		} else if p := reflect.ValueOf(data).FieldByName("Problem").String(); !strings.Contains(p, loads.want) {
			t.Errorf("%s says %q, want %q", at, p, loads.want)
		}
	}
}

func TestNeedsHaveTheWorstFirst(t *testing.T) {
	t.Parallel()
	at, old, fresh := fixtureNow, fixtureNow.Add(-time.Hour), fixtureNow.Add(-time.Second)
	l := operator.Live{
		At: at, QueueUsage: 0.6, Quarantined: 1, Failed: 3, OldestSnapshot: func() *float64 { f := 4000.0; return &f }(),
		Handlers: []operator.LiveHandler{{Handler: "a.b", Breaker: "open", OpenedAt: &old, Waiting: 4102},
			{Breaker: "closed"}},
		Types: []operator.LiveType{{EventType: "p", PausedAt: &old, Due: 1, Workers: 1},
			{EventType: "w", Due: 2, OldestDue: &old},
			{EventType: "l", Due: 3, OldestDue: &old, Workers: 1}, {EventType: "fine", Due: 3, OldestDue: &fresh, Workers: 1}},
		Operations: []operator.LiveOperation{{Name: "replay", State: "paused", Total: 9, Acted: 2}, {State: "running"}},
	}
	var got []string
	for _, n := range needs(l) {
		got = append(got, n.Fact+" ("+n.Blocks+")")
	}
	want := []string{"the queue of notifications is 60 % full (publishing fails when it is full)",
		"1 quarantined event (no worker claims them)", "a.b, generation 0: breaker open (4,102 waiting)",
		"w, generation 0: no live worker handles it (2 due)", "p, generation 0: paused by  (1 due)",
		"l, generation 0: the oldest due event is late (3 due, stands still)",
		"replay of 9 events is paused: by an operator (7 events not reached)",
		"3 failed events (nothing runs them again unless you replay them)",
		"a transaction has been open for 1 h 6 min (vacuum waits for it)"}
	if !slices.Equal(got, want) {
		t.Errorf("needs are\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	if calm := needs(operator.Live{At: at}); len(calm) > 0 {
		t.Errorf("an idle database needs %v", calm)
	}
}
