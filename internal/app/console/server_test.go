package console

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"testing"
	"testing/fstest"
	"testing/synctest"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"spectral/internal/core/events/infrastructure/postgres/operator"
)

// tree has the least templates and assets.
var tree = fstest.MapFS{
	"templates/all.html": {Data: []byte(`{{define "layout"}}<title>{{.Page.Title}}</title><a href="{{.Prefix}}/x">x</a>
{{.Person.Name}}{{if .Can.operate}} operates{{end}} {{template "content" .}}{{end}}{{define "content"}}{{end}}
{{define "error"}}{{.Data}} <a href="{{.Data.Back}}">back</a>{{end}}{{define "home"}}<p>{{.Data}}</p>{{end}}`)},
	"assets/htmx.min.js":     {Data: []byte("//h")},
	"assets/htmx-sse.min.js": {Data: []byte("//s")},
	"assets/console.js":      {Data: []byte("//c")},
	"assets/style.css":       {Data: []byte("a{}")},
}

// always identifies each visitor as one person.
func always(role string) Option {
	return Identity(func(*http.Request) (Person, error) { return Person{"ann", role}, nil })
}

// shows returns a page at / with this data.
func shows(load func(context.Context, *visit) (any, error)) []page {
	return []page{{Path: "/", Title: "Home", Template: "home", Load: load, Live: true}}
}

func text(data any) func(context.Context, *visit) (any, error) {
	return func(context.Context, *visit) (any, error) { return data, nil }
}

func newTestServer(pages []page, acts []act, options ...Option) *server {
	deps := Deps{Client: operator.New(nil), Version: "v1", Log: slog.New(slog.DiscardHandler)}
	return newServer(deps, pages, acts, tree, options...)
}

// ask returns the answer to a request, whose headers are pairs. A header Host sets the host, and From the peer.
func ask(h http.Handler, method, target string, body io.Reader, headers ...string) *httptest.ResponseRecorder {
	r := httptest.NewRequest(method, target, body)
	r.Host, r.RemoteAddr = "localhost:8018", "127.0.0.1:5000"
	if body != nil {
		r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	}
	for i := 0; i < len(headers); i += 2 {
		switch value := headers[i+1]; headers[i] {
		case "Host":
			r.Host = value
		case "From":
			r.RemoteAddr = net.JoinHostPort(value, "5000")
		default:
			r.Header.Add(headers[i], value)
		}
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w
}

func expect(t *testing.T, w *httptest.ResponseRecorder, status int, parts ...string) {
	t.Helper()
	if w.Code != status {
		t.Errorf("status %d, want %d: %s", w.Code, status, w.Body)
	}
	for _, part := range parts {
		if !strings.Contains(w.Body.String(), part) {
			t.Errorf("the answer has no %q: %s", part, w.Body)
		}
	}
	for name, value := range map[string]string{"Content-Security-Policy": policy, "X-Content-Type-Options": "nosniff",
		"Referrer-Policy": "same-origin"} {
		if have := w.Header().Get(name); have != value {
			t.Errorf("header %s is %q", name, have)
		}
	}
	if cached := w.Header().Get("Cache-Control"); cached != "no-store" && status != http.StatusOK {
		t.Errorf("Cache-Control is %q", cached)
	}
}

func TestRequestsAreBounded(t *testing.T) {
	t.Parallel()
	acted := false
	do := func(context.Context, *visit) (string, error) {
		acted = true
		return "/done", nil
	}
	s := newTestServer(shows(text("all well")), []act{{"/do", do}}, always(operator.Role), Hosts("OPS.example"))
	form := func(n int) io.Reader { return strings.NewReader("a=" + strings.Repeat("b", n)) }
	for name, c := range map[string]struct {
		method, target string
		body           io.Reader
		headers        []string
		status         int
		part           string
	}{
		"a page":                  {"GET", "/", nil, nil, 200, "all well"},
		"HEAD":                    {"HEAD", "/", nil, nil, 200, ""},
		"an allowed host":         {"GET", "/", nil, []string{"Host", "ops.Example:443"}, 200, "all well"},
		"loopback by IPv6":        {"GET", "/", nil, []string{"Host", "[::1]:8018"}, 200, "all well"},
		"a foreign host":          {"GET", "/", nil, []string{"Host", "evil.example"}, 421, "SPECTRAL_CONSOLE_HOSTS"},
		"a foreign host, asset":   {"GET", "/assets/style.css", nil, []string{"Host", "evil.example"}, 421, ""},
		"unknown page":            {"GET", "/none", nil, nil, 404, "no such thing"},
		"unknown asset":           {"GET", "/assets/none.css", nil, nil, 404, ""},
		"a form":                  {"POST", "/do", form(9), []string{"Origin", "http://localhost:8018"}, 303, ""},
		"a foreign origin":        {"POST", "/do", form(9), []string{"Origin", "http://evil.example"}, 403, "another site"},
		"a form of another site":  {"POST", "/do", form(9), []string{"Sec-Fetch-Site", "cross-site"}, 403, "another site"},
		"a form without origin":   {"POST", "/do", form(9), []string{"Origin", "null"}, 403, "another site"},
		"a form that is too long": {"POST", "/do", form(maxBody), nil, 413, "larger than 1048576 bytes"},
		"nothing to do":           {"POST", "/", form(9), nil, 405, "nothing to do"},
		"a limit":                 {"GET", "/?limit=500", nil, nil, 200, "all well"},
		"a huge limit":            {"GET", "/?limit=1000000000", nil, nil, 400, "from 1 to 500"},
		"a limit in science":      {"GET", "/?limit=1e9", nil, nil, 400, "from 1 to 500"},
		"a negative limit":        {"GET", "/?limit=-1", nil, nil, 400, "from 1 to 500"},
		"a limit of words":        {"GET", "/?limit=", nil, nil, 400, "from 1 to 500"},
		"a zero byte":             {"GET", "/?q=%00", nil, nil, 400, "not text"},
		"a zero byte in the path": {"GET", "/a%00", nil, nil, 400, "not text"},
		"no text":                 {"GET", "/?q=%ff", nil, nil, 400, "not text"},
		"a long parameter":        {"GET", "/?q=" + strings.Repeat("q", maxValue+1), nil, nil, 400, "longer than"},
		"a long query":            {"GET", "/?q=" + strings.Repeat("q", maxQuery), nil, nil, 414, "longer than"},
		"many parameters":         {"GET", "/?" + strings.Repeat("q&", maxValues), nil, nil, 400, "too many"},
		"a malformed query":       {"GET", "/?q=%zz", nil, nil, 400, "malformed"},
	} {
		t.Run(name, func(t *testing.T) {
			acted = false
			w := ask(s, c.method, c.target, c.body, c.headers...)
			expect(t, w, c.status, c.part)
			if acted != (c.status == http.StatusSeeOther) {
				t.Errorf("the act ran: %v", acted)
			}
		})
	}
}

func TestAConsoleIsMountedUnderAnyPrefix(t *testing.T) {
	t.Parallel()
	next := func(context.Context, *visit) (string, error) { return "/done?a=b", nil }
	proxy := netip.MustParsePrefix("10.0.0.0/8")
	s := newTestServer(shows(text("all well")), []act{{"/do", next}}, always(operator.Viewer), Prefix("ops/events/"),
		Trusted(proxy))
	mux := http.NewServeMux()
	mux.Handle("/ops/events/", s)
	for name, c := range map[string]struct {
		target, from, forwarded string
		status                  int
		part                    string
	}{
		"direct":                      {"/ops/events/", "127.0.0.1", "", 200, `href="/ops/events/x"`},
		"a trusted proxy":             {"/ops/events/", "10.1.1.1", "/eu/", 200, `href="/eu/ops/events/x"`},
		"an address that is not one":  {"/ops/events/", "11.1.1.1", "/eu", 200, `href="/ops/events/x"`},
		"a prefix to another host":    {"/ops/events/", "10.1.1.1", "//evil.example", 200, `href="/ops/events/x"`},
		"a prefix that ends a string": {"/ops/events/", "10.1.1.1", `/"><script>`, 200, `href="/ops/events/x"`},
		"an asset":                    {"/ops/events" + s.assets.path("style.css"), "127.0.0.1", "", 200, "a{}"},
		"not in the console":          {"/elsewhere", "127.0.0.1", "", 404, ""},
	} {
		w := ask(mux, "GET", c.target, nil, "From", c.from, "X-Forwarded-Prefix", c.forwarded)
		if w.Code != c.status || !strings.Contains(w.Body.String(), c.part) {
			t.Errorf("%s: %d, %s", name, w.Code, w.Body)
		}
	}
	w := ask(mux, "POST", "/ops/events/do", strings.NewReader(""), "From", "10.1.1.1", "X-Forwarded-Prefix", "/eu")
	if to := w.Header().Get("Location"); to != "/eu/ops/events/done?a=b" {
		t.Errorf("an act leads to %s", to)
	}
	expect(t, ask(s, "GET", "/ops/eventsx", nil), http.StatusNotFound)
	if w := ask(s, "GET", "/ops/events", nil); w.Header().Get("Location") != "/ops/events/" {
		t.Errorf("without the last slash: %d, %s", w.Code, w.Header().Get("Location"))
	}
}

func TestAssetsAreKeptByTheirHash(t *testing.T) {
	t.Parallel()
	s := newTestServer(nil, nil, always(operator.Viewer))
	hashed := s.assets.path("console.js")
	w := ask(s, "GET", hashed, nil)
	if w.Body.String() != "//h\n//s\n//c\n" || !strings.Contains(w.Header().Get("Cache-Control"), "immutable") ||
		!strings.HasPrefix(w.Header().Get("Content-Type"), "text/javascript") {
		t.Errorf("%s: %v, %s", hashed, w.Header(), w.Body)
	}
	w = ask(s, "GET", "/assets/console.js", nil)
	if w.Header().Get("Cache-Control") != "no-cache" {
		t.Errorf("without the hash: %v", w.Header())
	}
	if w = ask(s, "GET", "/assets/console.js", nil, "If-None-Match", w.Header().Get("Etag")); w.Code != 304 {
		t.Errorf("the same file is sent again: %d", w.Code)
	}
}

func TestErrorsArePages(t *testing.T) {
	t.Parallel()
	postgres := func(code, message string) error {
		return fmt.Errorf("read: %w", &pgconn.PgError{Code: code, Message: message, Severity: "ERROR"})
	}
	for name, c := range map[string]struct {
		err    error
		status int
		parts  []string
	}{
		"not found": {fmt.Errorf("event: %w", errNotFound), 404, []string{"no such thing"}},
		"a right is missing": {postgres("42501", "permission denied for function replay"), 403,
			[]string{"function replay", "ann is spectral_viewer", "spectral_operator"}},
		"refused": {&operator.RefusedError{Reason: "not draining", Hint: "drain it"}, 409,
			[]string{"not draining", "drain it"}},
		"cancelled":     {postgres("57014", "canceling statement"), 504, []string{"statement_timeout 2s"}},
		"a long search": {&operator.TooBroadError{After: time.Second}, 504, []string{"Narrow the filter"}},
		"a deadline":    {context.DeadlineExceeded, 504, nil},
		"no connection": {&net.OpError{Op: "dial", Err: errors.New("refused")}, 503, []string{"cannot be reached"}},
		"shutting down": {postgres("57P01", "terminating connection"), 503, []string{"cannot be reached"}},
		"a bad cursor":  {operator.ErrCursor, 400, []string{"cursor"}},
		"anything else": {errors.New("secret"), 500, []string{"The console failed"}},
	} {
		fails := func(context.Context, *visit) (any, error) { return nil, c.err }
		refuses := func(context.Context, *visit) (string, error) { return "", c.err }
		s := newTestServer(shows(fails), []act{{"/do", refuses}}, always(operator.Viewer))
		t.Run(name, func(t *testing.T) {
			w := ask(s, "GET", "/", nil)
			expect(t, w, c.status, c.parts...)
			if strings.Contains(w.Body.String(), "secret") || (c.status == 503) != (w.Header().Get("Retry-After") != "") {
				t.Errorf("%v, %s", w.Header(), w.Body)
			}
			w = ask(s, "POST", "/do", strings.NewReader(""), "Referer", "http://localhost:8018/plan?a=b")
			if expect(t, w, c.status, `href="/plan?a=b"`); w.Header().Get("Content-Type") != "text/html; charset=utf-8" {
				t.Errorf("an act's error is no page: %v", w.Header())
			}
			w = ask(s, "POST", "/do", strings.NewReader(""), "Referer", "http://evil.example/plan")
			expect(t, w, c.status, `href="/"`)
		})
	}
	panics := func(context.Context, *visit) (any, error) { panic("oh") }
	expect(t, ask(newTestServer(shows(panics), nil, always(operator.Viewer)), "GET", "/", nil),
		http.StatusInternalServerError)
}

// Equal requests share what is loaded, others do not, and only maxReads load at once.
func TestReadsAreSharedAndBounded(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		began, finish := make(chan string, 100), make(chan struct{})
		load := func(_ context.Context, v *visit) (any, error) {
			began <- v.Person.Name + v.Query.Get("q")
			<-finish
			return "all well", nil
		}
		s := newTestServer(shows(load), nil, always(operator.Viewer))
		answers := make(chan int, 100)
		get := func(target string) { answers <- ask(s, "GET", target, nil).Code }
		for range 3 {
			go get("/?q=0")
		}
		for n := range maxReads + 1 {
			go get(fmt.Sprintf("/?q=%d", n))
		}
		synctest.Wait()
		if now := len(began); now != maxReads {
			t.Errorf("%d pages are read at once", now)
		}
		for range maxReads {
			if first := <-began; strings.Contains(first, "ann") {
				t.Errorf("what all persons of a role share is read for %s", first)
			}
		}
		close(finish)
		synctest.Wait()
		if all := len(began); all != 1 {
			t.Errorf("%d further reads of one further page", all)
		}
		for range 3 + maxReads + 1 {
			if status := <-answers; status != http.StatusOK {
				t.Errorf("status %d", status)
			}
		}
	})
}

// A page that waits for its turn too long says so, and one whose first visitor has left is still shown to others.
func TestWaitsForAPageEnd(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		finish := make(chan struct{})
		load := func(ctx context.Context, _ *visit) (any, error) {
			select {
			case <-finish:
				return "all well", ctx.Err()
			case <-ctx.Done():
				return nil, ctx.Err()
			}
		}
		s := newTestServer(shows(load), nil, always(operator.Viewer))
		answers := make(chan *httptest.ResponseRecorder, 2)
		leaving, leave := context.WithCancel(t.Context())
		for _, ctx := range []context.Context{leaving, t.Context()} {
			go func() {
				r := httptest.NewRequest(http.MethodGet, "/", nil).WithContext(ctx)
				r.Host = "localhost"
				w := httptest.NewRecorder()
				s.ServeHTTP(w, r)
				answers <- w
			}()
			synctest.Wait()
		}
		leave()
		<-answers
		close(finish)
		expect(t, <-answers, http.StatusOK, "all well")
		finish = nil
		for range maxReads {
			s.reads <- struct{}{}
		}
		expect(t, ask(s, "GET", "/", nil), http.StatusServiceUnavailable, "too many pages")
		<-s.reads
		expect(t, ask(s, "GET", "/", nil), http.StatusGatewayTimeout)
	})
}
