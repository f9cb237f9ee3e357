package console_test

import (
	"context"
	"fmt"
	"html"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"spectral/internal/app/console"
	"spectral/internal/core/events/infrastructure/postgres/operator"
	"spectral/internal/core/events/infrastructure/postgres/publish"
	"spectral/internal/core/telemetry"
	"spectral/tests/pgtest"
)

// browser is a person at the console of a system that testdata/system.sql describes.
type browser struct {
	*testing.T
	handler http.Handler
	admin   *pgx.Conn
}

func open(t *testing.T, role string) *browser {
	t.Helper()
	at := pgtest.New(t)
	b := &browser{T: t, admin: pgtest.Conn(t, at)}
	contracts, err := pgtest.Contracts()
	if err == nil {
		err = publish.RegisterContracts(t.Context(), b.admin, 8, contracts)
	}
	b.must(err)
	system, err := os.ReadFile("testdata/system.sql")
	b.must(err)
	b.exec(strings.ReplaceAll(string(system), "$$buckets$$", fmt.Sprint(len(telemetry.Bounds())+1)))
	worker := pgtest.Conn(t, at)
	_, err = worker.Exec(t.Context(), `set role spectral_worker; select core.worker_register(gen_random_uuid(), 8,
		'host-1/4711', '{"worlds.world_model_card.published": ["platform.mailer", "worlds.indexer"],
		"decision.recorded": ["worlds.rule_health_recorder"]}', '{"platform.mailer": {"effect": "sends mail",
		"on_replay": "ask"}}')`)
	b.must(err)
	login, err := url.Parse(pgtest.Login(t, at, role))
	b.must(err)
	settings := login.Query()
	settings.Set("jit", "off") // as the console's own pool has it
	login.RawQuery = settings.Encode()
	b.handler = console.Handler(console.Deps{
		Client: operator.New(pgtest.Pool(t, login.String())), Version: "test",
		Log: slog.New(slog.NewTextHandler(t.Output(), nil)), Sources: map[string]string{"decision.recorded": "platform"},
	}, console.Identity(func(*http.Request) (console.Person, error) {
		return console.Person{Name: "anna", Role: role}, nil
	}))
	return b
}

func (b *browser) must(err error) {
	b.Helper()
	if err != nil {
		b.Fatal(err)
	}
}

func (b *browser) exec(sql string, arguments ...any) {
	b.Helper()
	_, err := b.admin.Exec(b.Context(), sql, arguments...)
	b.must(err)
}

func (b *browser) value(sql string) (text string) {
	b.Helper()
	b.must(b.admin.QueryRow(b.Context(), sql).Scan(&text))
	return text
}

// see loads a page, which must have these parts, and returns it.
func (b *browser) see(path string, parts ...string) string {
	b.Helper()
	w := b.ask(http.MethodGet, path, nil)
	text := strings.Join(strings.Fields(html.UnescapeString(w.Body.String())), " ")
	if w.Code != http.StatusOK {
		b.Errorf("%s answers %d: %s", path, w.Code, text)
	}
	for _, part := range parts {
		if !strings.Contains(text, part) {
			b.Errorf("%s has no %q: %s", path, part, text)
		}
	}
	return text
}

func (b *browser) ask(method, path string, form url.Values) *httptest.ResponseRecorder {
	r := httptest.NewRequestWithContext(context.WithoutCancel(b.Context()), method, "http://localhost"+path,
		strings.NewReader(form.Encode()))
	r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	w := httptest.NewRecorder()
	b.handler.ServeHTTP(w, r)
	return w
}

// post sends a form and returns where it leads.
func (b *browser) post(path string, form url.Values) (next string) {
	b.Helper()
	w := b.ask(http.MethodPost, path, form)
	if w.Code != http.StatusSeeOther {
		b.Fatalf("%s answers %d: %s", path, w.Code, w.Body)
	}
	return w.Header().Get("Location")
}

var (
	formOf  = regexp.MustCompile(`(?s)action="/plan/confirm">(.*?)</form>`)
	inputOf = regexp.MustCompile(`type="hidden" name="([^"]*)" value="([^"]*)"`)
)

// plan returns the form that confirms the plan at a path.
func (b *browser) plan(path string, parts ...string) url.Values {
	b.Helper()
	form := formOf.FindStringSubmatch(b.see(path, parts...))
	if form == nil {
		b.Fatalf("%s has no form", path)
	}
	values := url.Values{}
	for _, input := range inputOf.FindAllStringSubmatch(form[1], -1) {
		values.Add(input[1], input[2])
	}
	return values
}

const (
	failed   = "00000000-0000-7000-8000-000000000015" // of platform.mailer, which acts outside
	rejected = "00000000-0000-7000-8000-00000000001d" // of worlds.indexer
	retrying = "00000000-0000-7000-8000-000000000023"
)

func TestEveryPageShowsASystem(t *testing.T) {
	t.Parallel()
	b := open(t, operator.Role)
	b.see("/", "platform.mailer, generation 8: breaker open", "14", "no live worker handles it", `class="spark"`)
	b.see("/flow", "worlds.indexer", "generation 8", "workers events stats --since 24h")
	b.see("/flow?since=3d")
	b.see("/health", "host-1/4711", "workers doctor")
	all := b.see("/events?limit=20", "<small>60</small>", "Older", "workers events list --status due,")
	next := regexp.MustCompile(`href="([^"]*)" rel="next"`)
	seen := strings.Count(all, `name="id"`)
	for range 2 {
		all = b.see(next.FindStringSubmatch(all)[1])
		seen += strings.Count(all, `name="id"`)
	}
	if seen != 60 || !strings.Contains(all, "These are all.") {
		t.Errorf("the pages have %d events", seen)
	}
	b.see("/events?status=failed&group=91ab04c2d7e6", "<small>6</small>", "no such card", "--group 91ab04c2d7e6")
	b.see("/events?type=a'b", "No event matches.", `--type 'a'\''b'`)
	b.see("/events?q=decision.recorded", "<small>20</small>")
	b.see("/events?q="+failed, "open it")
	b.see("/events?after=wrong", "the cursor is not one of this filter")
	b.see("/events?generation=x", "not a deployment generation")
	b.see("/events/"+failed, "failed: 1 of 2 handlers gave up", "9007199254740993", "0.1000000000000000055511151231257827",
		"4bf92f3577b34da6a3ce929d0e0e4736", "goroutine 1", "this event", `class="lanes"`,
		"workers events replay "+failed+" --to 8")
	b.see("/events/00000000-0000-7000-8000-000000000002", "Cause and effects", "this event", "failed")
	b.see("/failures", "TimeoutError", "new in generation 8", "no such card *")
	b.see("/failures/3fa9c15b2e7d", "platform.mailer", "Samples", "9007199254740993")
	b.see("/failures/none", "No event fails in this way now.")
	b.see("/operations", "There is none")
	b.see("/topology", "decision.recorded", "platform.mailer", `class="edge paused"`, "unknown")
	b.see("/topology?generation=7", "worlds.world_model_card.published", "paused")
	b.see("/handlers", "sends mail", "open", "i/o timeout")
	b.see("/generations", "it is live: drain it first", "it still has events: 5 due")
	b.see("/generations/compare?a=7&b=8", "not enough", "platform.mailer")
	b.see("/activity", "Nothing was done.")
	for path, status := range map[string]int{"/events/x": http.StatusBadRequest,
		"/events/0198c5d4-9a52-7c11-8f0e-3b7a4d2f6e10":     409,
		"/operations/0198c5d4-9a52-7c11-8f0e-3b7a4d2f6e10": 409, "/none": http.StatusNotFound} {
		if w := b.ask(http.MethodGet, path, nil); w.Code != status {
			t.Errorf("%s answers %d", path, w.Code)
		}
	}
}

func TestPagesOfAnEmptySystem(t *testing.T) {
	t.Parallel()
	b := open(t, operator.Role)
	for _, table := range []string{"outbox", "deployments", "error_groups", "event_stats", "breakers", "paused_types",
		"workers", "handlers", "failed_attempts"} {
		b.exec("delete from core." + table)
	}
	b.see("/", "Nothing needs you.")
	for _, path := range []string{"/flow", "/health", "/events", "/failures", "/operations", "/topology", "/handlers",
		"/generations", "/generations/compare", "/activity"} {
		b.see(path)
	}
	b.see("/plan?what=replay", "no generation is live")
}

func TestAPlanIsConfirmedAndBinds(t *testing.T) {
	t.Parallel()
	b := open(t, operator.Role)
	// named events: the result is shown
	form := b.plan("/plan?what=replay&id="+rejected+"&id="+retrying, "is pending, not failed", "sends mail", "1 event",
		"workers events replay "+rejected+" --to 8")
	form.Set("typed", "1")
	next := b.post("/plan/confirm", form)
	b.see(next, "1 event replayed", "anna")
	status := b.value("select status || ' ' || generation from core.outbox where id = '" + rejected + "'")
	if status != "pending 8" {
		t.Errorf("the event is %s", status)
	}
	// a filter: what changed since is left out, the workers carry it on
	form = b.plan("/plan?what=discard&group=91ab04c2d7e6", "5 events", "--plan ")
	b.exec("update core.outbox set status = 'delivered', delivered_at = clock_timestamp() where id = " +
		"'00000000-0000-7000-8000-00000000001e'")
	form.Set("reason", "gone")
	next = b.post("/plan/confirm", form)
	b.see(next, "discard of 4 events", "1 event changed since the plan", "--reason gone", "not reached")
	id, _, _ := strings.Cut(strings.TrimPrefix(next, "/operations/"), "?")
	b.see("/operations", "discard", "anna")
	b.see("/operations/"+id+"?outcome=not_reached", "0000000")
	b.see("/", "discard of 4 events")
	b.post("/operations/pause", url.Values{"id": {id}})
	b.see("/operations/"+id, "Resume")
	b.post("/operations/resume", url.Values{"id": {id}, "rate": {"10"}, "max-failed": {"1"}})
	b.post("/operations/abort", url.Values{"id": {id}})
	b.see("/operations/"+id, "aborted")
	b.see("/activity?action=replay,discard,operation_create&by=anna", "replay", "operation create")
	// what acts outside asks, and the number must be typed
	b.see("/plan?what=replay&group=3fa9c15b2e7d", "⚠ sends mail", "Say for each handler")
	form = b.plan("/plan?what=replay&group=3fa9c15b2e7d&choice=run:platform.mailer&canary=2&rate=5&max-failed=0.5",
		"Type the number", "--run platform.mailer", "--canary 2", "--rate 5")
	if w := b.ask(http.MethodPost, "/plan/confirm", form); w.Code != http.StatusBadRequest {
		t.Errorf("a number that is not typed: %d", w.Code)
	}
	form.Set("typed", "8")
	b.see(b.post("/plan/confirm", form), "replay of 8 events", "canary of 2")
	// the same form again has lost its events only when the workers have acted; another act is refused
	form.Set("what", "discard")
	if w := b.ask(http.MethodPost, "/plan/confirm", form); w.Code != http.StatusBadRequest {
		t.Errorf("another act: %d %s", w.Code, w.Body)
	}
	form = b.plan("/plan?what=retry_now", "4 events", "Retry")
	b.see(b.post("/plan/confirm", form), "4 events made due")
	if due := b.value("select count(*)::text from core.outbox where id between '" + retrying + "' and " +
		"'00000000-0000-7000-8000-000000000026' and available_at <= clock_timestamp()"); due != "4" {
		t.Errorf("%s are due", due)
	}
}

func TestOperatorsActOnGroupsTypesAndHandlers(t *testing.T) {
	t.Parallel()
	b := open(t, operator.Role)
	group := url.Values{"group": {"3fa9c15b2e7d"}, "note": {"mail server, ticket 4711"}, "for": {"3d"}}
	b.see(b.post("/failures/note", group), "ticket 4711")
	b.see(b.post("/failures/mute", group), "End the mute")
	b.see("/failures", "1 muted group left out")
	b.see("/failures?muted=1", "ticket 4711", "muted")
	group.Set("unmute", "1")
	b.post("/failures/mute", group)
	b.see("/failures", "ticket 4711")
	lane := url.Values{"type": {"decision.recorded"}, "generation": {"8"}, "reason": {"slow"}}
	b.see(b.post("/types/pause", lane), "by anna")
	b.see("/events", "decision.recorded is paused in generation 8", "slow")
	b.post("/types/resume", lane)
	handler := url.Values{"handler": {"worlds.indexer"}, "generation": {"8"}}
	b.see(b.post("/handlers/trip", handler), "forced")
	b.post("/handlers/close", handler)
	const stillOpen = "select count(*)::text from core.breakers where handler_name = 'worlds.indexer' and not closing"
	if n := b.value(stillOpen); n != "0" {
		t.Errorf("%s breakers are open", n)
	}
	for path, form := range map[string]url.Values{"/types/pause": {"type": {"x"}, "generation": {"-8"}},
		"/failures/mute": {"group": {"3fa9c15b2e7d"}, "for": {"999999d"}}, "/operations/pause": {"id": {"1"}},
		"/operations/resume": {"id": {failed}, "canary": {"-1"}}, "/plan/confirm": {"what": {"replay"}, "plan": {"x"}}} {
		if w := b.ask(http.MethodPost, path, form); w.Code != http.StatusBadRequest {
			t.Errorf("%s answers %d", path, w.Code)
		}
	}
}
