package console

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"html/template"
	"io/fs"
	"maps"
	"net/http"
	"net/netip"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/jackc/pgerrcode"
	"github.com/jackc/pgx/v5/pgconn"
	"golang.org/x/sync/singleflight"

	"spectral/internal/core/events/infrastructure/postgres/operator"
)

const (
	// StatementTimeout bounds each statement of the console. The pool that it is given sets it.
	StatementTimeout = 2 * time.Second
	// pageTimeout bounds the statements of a page together, and the wait until they may begin.
	pageTimeout = 5 * time.Second
	actTimeout  = 10 * time.Second
	// maxReads is how many pages are read at once in a process.
	maxReads = 4

	maxBody   = 1 << 20
	maxQuery  = 8 << 10 // bytes
	maxValue  = 2 << 10 // bytes of a path's or query's value
	maxValues = 100
	maxLimit  = 500 // of the parameter limit
)

const policy = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; " +
	"form-action 'self'; frame-ancestors 'none'; base-uri 'none'"

// Keys of log entries.
const (
	logPath   = "path"
	logReason = "reason"
	logStatus = "status"
)

// server is a console.
type server struct {
	Deps
	prefix    string
	hosts     []string
	trusted   []netip.Prefix
	identity  func(*http.Request) (Person, error)
	assets    assets
	templates map[string]*template.Template // by the name of a page's template: with it as "content"
	mux       *http.ServeMux
	routes    *http.ServeMux // of pages alone: finds the page of a path
	origins   *http.CrossOriginProtection
	reads     chan struct{}
	shared    singleflight.Group
	live      *broadcaster
}

// newServer returns a console of these pages, whose templates and assets are in a tree. It panics if these do not fit
// together, which a test of the same tree finds.
func newServer(deps Deps, pages []page, acts []act, tree fs.FS, options ...Option) *server {
	files, err := newAssets(tree)
	if err != nil {
		panic(err)
	}
	anyone := &Identities{Header: "X-Forwarded-User", Loopback: operator.Viewer}
	anyone.readAt = time.Now()
	s := &server{Deps: deps, identity: anyone.Person, assets: files, mux: http.NewServeMux(), routes: http.NewServeMux(),
		origins: http.NewCrossOriginProtection(), reads: make(chan struct{}, maxReads)}
	for _, set := range options {
		set(s)
	}
	if s.prefix == "/" {
		s.prefix = ""
	}
	s.live = newBroadcaster(func(ctx context.Context) (operator.Live, error) {
		return s.Client.As(operator.Viewer).Live(ctx)
	})
	s.templates = parse(tree, s.assets, pages)
	for _, p := range pages {
		pattern := "GET " + p.Path
		if strings.HasSuffix(p.Path, "/") {
			pattern += "{$}"
		}
		s.routes.Handle(pattern, found{p})
	}
	for _, a := range acts {
		s.mux.HandleFunc("POST "+a.Path, func(w http.ResponseWriter, r *http.Request) { s.serveAct(w, r, a) })
	}
	s.mux.HandleFunc("GET /live", s.serveLive)
	s.mux.HandleFunc("/", s.servePage)
	return s
}

// parse returns the templates of a tree for each template of a page, and for errors.
func parse(tree fs.FS, files assets, pages []page) map[string]*template.Template {
	all := maps.Clone(functions)
	if all == nil {
		all = make(template.FuncMap)
	}
	all["asset"] = files.path
	base := template.Must(template.New("").Funcs(all).ParseFS(tree, "templates/*.html"))
	parsed := make(map[string]*template.Template)
	for _, p := range append(slices.Clone(pages), errorPage) {
		t := template.Must(base.Clone())
		parsed[p.Template] = template.Must(t.AddParseTree("content", t.Lookup(p.Template).Tree))
	}
	return parsed
}

// errorPage shows what went wrong.
var errorPage = page{Title: "Error", Template: "error"}

// personKey is the key of a request's person in its context.
type personKey struct{}

// ServeHTTP answers a request, all of which get the same headers.
func (s *server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	header := w.Header()
	header.Set("Content-Security-Policy", policy)
	header.Set("X-Content-Type-Options", "nosniff")
	header.Set("Referrer-Policy", "same-origin") // with no-referrer, browsers would send forms with the origin null
	header.Set("Cache-Control", "no-store")
	host := hostOf(r)
	isHost := func(name string) bool { return strings.EqualFold(name, host) }
	if !isLoopbackName(host) && !slices.ContainsFunc(s.hosts, isHost) {
		s.plain(w, r, http.StatusMisdirectedRequest, fmt.Sprintf("%.100q is not a name of this console: add it to "+
			"SPECTRAL_CONSOLE_HOSTS", host))
		return
	}
	if err := s.origins.Check(r); err != nil {
		s.plain(w, r, http.StatusForbidden, "this form is of another site: nothing was done")
		return
	}
	path, inside := strings.CutPrefix(r.URL.Path, s.prefix)
	if !inside || path != "" && path[0] != '/' {
		s.plain(w, r, http.StatusNotFound, "the console is at "+s.prefix+"/")
		return
	}
	if path == "" {
		http.Redirect(w, r, s.base(r)+"/", http.StatusMovedPermanently)
		return
	}
	r = within(r, s.prefix)
	if name, isAsset := strings.CutPrefix(r.URL.Path, "/assets/"); isAsset && isRead(r) {
		if !s.assets.serve(w, r, name) {
			s.plain(w, r, http.StatusNotFound, "there is no such file in this version")
		}
		return
	}
	person, err := s.identity(r)
	if err == nil && !slices.Contains(Roles(), person.Role) {
		err = denied{http.StatusForbidden, fmt.Sprintf("%q is not a role", person.Role)}
	}
	if err != nil {
		status := http.StatusUnauthorized
		if refusal, ok := errors.AsType[denied](err); ok {
			status = refusal.status
		}
		if status == http.StatusUnauthorized {
			header.Set("WWW-Authenticate", "Bearer")
		}
		s.plain(w, r, status, err.Error())
		return
	}
	r = r.WithContext(context.WithValue(r.Context(), personKey{}, person))
	if err := checkValues(r.URL); err != nil {
		s.fail(w, r, err)
		return
	}
	s.mux.ServeHTTP(w, r)
}

// within returns a request whose path is without the prefix.
func within(r *http.Request, prefix string) *http.Request {
	inner := r.Clone(r.Context())
	inner.URL.Path = strings.TrimPrefix(r.URL.Path, prefix)
	inner.URL.RawPath = strings.TrimPrefix(r.URL.RawPath, prefix)
	return inner
}

func isRead(r *http.Request) bool { return r.Method == http.MethodGet || r.Method == http.MethodHead }

// plain answers with one line.
func (s *server) plain(w http.ResponseWriter, r *http.Request, status int, line string) {
	if status >= http.StatusInternalServerError {
		s.Log.WarnContext(r.Context(), "the console did not answer", logPath, r.URL.Path, logReason, line)
	}
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.WriteHeader(status)
	_, _ = fmt.Fprintln(w, line)
}

// forwardedPrefix matches what is honoured of X-Forwarded-Prefix.
var forwardedPrefix = regexp.MustCompile(`^(/[A-Za-z0-9._~-]+)+$`)

// base returns the prefix of all links of an answer: the console's, after that of a trusted proxy.
func (s *server) base(r *http.Request) string {
	before := strings.TrimSuffix(r.Header.Get("X-Forwarded-Prefix"), "/")
	if len(before) > maxName || !forwardedPrefix.MatchString(before) || !isTrusted(r, s.trusted) {
		before = ""
	}
	return before + s.prefix
}

// badRequestError says what is wrong with a request's values.
type badRequestError struct {
	status int
	text   string
}

func (e badRequestError) Error() string { return e.text }

// checkValues bounds the path and the parameters, which all reach the database.
func checkValues(u *url.URL) error {
	if len(u.RawQuery) > maxQuery {
		return badRequestError{http.StatusRequestURITooLong, fmt.Sprintf("the query is longer than %d bytes", maxQuery)}
	}
	query, err := url.ParseQuery(u.RawQuery)
	if err != nil {
		return badRequestError{http.StatusBadRequest, "the query is malformed"}
	}
	texts := []string{u.Path}
	for name, values := range query {
		texts = append(append(texts, name), values...)
	}
	if len(texts) > maxValues {
		return badRequestError{http.StatusBadRequest, "there are too many parameters"}
	}
	for _, text := range texts {
		if len(text) > maxValue || !utf8.ValidString(text) || strings.ContainsRune(text, 0) {
			return badRequestError{http.StatusBadRequest, fmt.Sprintf("the path or a parameter is not text, or is longer than "+
				"%d bytes", maxValue)}
		}
	}
	limit, err := strconv.Atoi(query.Get("limit"))
	if query.Has("limit") && (err != nil || limit < 1 || limit > maxLimit) {
		return badRequestError{http.StatusBadRequest, fmt.Sprintf("limit is a whole number from 1 to %d", maxLimit)}
	}
	return nil
}

// found is the handler of a page in [server.routes]: it passes its page to a match.
type found struct{ page }

func (f found) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	m := w.(*match)
	m.page, m.values = &f.page, make(map[string]string)
	for _, name := range pathNames.FindAllStringSubmatch(f.Path, -1) {
		m.values[name[1]] = r.PathValue(name[1])
	}
}

var pathNames = regexp.MustCompile(`\{(\w+)(?:\.\.\.)?\}`)

// match is a page that was found by its path, with the values of the path.
type match struct {
	http.ResponseWriter
	page   *page
	values map[string]string
}

// find returns the page at a URL, or nil. The answers of [http.ServeMux], such as 404, go nowhere.
func (s *server) find(u *url.URL) *match {
	m := &match{ResponseWriter: nowhere{}}
	s.routes.ServeHTTP(m, &http.Request{Method: http.MethodGet, URL: u, Host: "console"})
	if m.page == nil {
		return nil
	}
	return m
}

type nowhere struct{}

func (nowhere) Header() http.Header         { return make(http.Header) }
func (nowhere) Write(p []byte) (int, error) { return len(p), nil }
func (nowhere) WriteHeader(int)             {}

// visit returns what a page or an act gets.
func (s *server) visit(r *http.Request, values map[string]string) *visit {
	person, _ := r.Context().Value(personKey{}).(Person)
	return &visit{Person: person, Client: s.Client.As(person.Role), Live: s.live.figures, Prefix: s.base(r), Path: values,
		Query: r.URL.Query(), Sources: s.Sources}
}

func (s *server) servePage(w http.ResponseWriter, r *http.Request) {
	if !isRead(r) {
		s.fail(w, r, badRequestError{http.StatusMethodNotAllowed, "there is nothing to do at this path"})
		return
	}
	m := s.find(r.URL)
	if m == nil {
		s.fail(w, r, errNotFound)
		return
	}
	v := s.visit(r, m.values)
	data, err := s.load(r.Context(), m.page, v, r.URL)
	if err == nil {
		err = s.render(w, http.StatusOK, *m.page, v, data)
	}
	if err != nil {
		s.fail(w, r, err)
	}
}

// load returns what a page shows. Equal requests of one person at the same time share it, and those of a live page by
// all persons of a role.
func (s *server) load(ctx context.Context, p *page, v *visit, u *url.URL) (any, error) {
	if p.Load == nil {
		return struct{}{}, nil
	}
	shared := *v
	if p.Live {
		shared.Person.Name = ""
	}
	key := fmt.Sprintf("%q %q %s?%s", shared.Person, v.Prefix, u.EscapedPath(), v.Query.Encode())
	loading := s.shared.DoChan(key, func() (data any, err error) {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), pageTimeout) // not that of the first who asks
		defer cancel()
		select {
		case s.reads <- struct{}{}:
			defer func() { <-s.reads }()
		case <-ctx.Done():
			return nil, errBusy
		}
		defer func() {
			if fault := recover(); fault != nil { // would end the process
				err = fmt.Errorf("page %s: %v", p.Path, fault)
			}
		}()
		return p.Load(ctx, &shared)
	})
	select {
	case result := <-loading:
		return result.Val, result.Err
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

var errBusy = errors.New("too many pages are being read")

// execute returns a page as HTML: its template "layout", or the part "content" of it.
func (s *server) execute(name string, p page, v *visit, data any) ([]byte, error) {
	can := make(map[string]bool)
	for i, what := range []string{"view", "read", "operate", "correct"} {
		can[what] = i <= slices.Index(Roles(), v.Person.Role)
	}
	var text bytes.Buffer
	err := s.templates[p.Template].ExecuteTemplate(&text, name, view{Page: p, Person: v.Person, Can: can,
		Prefix: v.Prefix, Version: s.Version, Data: data, Now: time.Now().UTC()})
	return text.Bytes(), err
}

func (s *server) render(w http.ResponseWriter, status int, p page, v *visit, data any) error {
	text, err := s.execute("layout", p, v, data)
	if err != nil {
		return fmt.Errorf("page %s: %w", p.Path, err)
	}
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	w.WriteHeader(status)
	_, _ = w.Write(text)
	return nil
}

// serveAct does what a form says, and sends the browser on.
func (s *server) serveAct(w http.ResponseWriter, r *http.Request, a act) {
	r.Body = http.MaxBytesReader(w, r.Body, maxBody)
	ctx, cancel := context.WithTimeout(r.Context(), actTimeout)
	defer cancel()
	if err := r.ParseForm(); err != nil {
		status, text := http.StatusBadRequest, "the form is malformed"
		if errors.As(err, new(*http.MaxBytesError)) {
			status, text = http.StatusRequestEntityTooLarge, fmt.Sprintf("the form is larger than %d bytes", maxBody)
		}
		s.fail(w, r, badRequestError{status, text})
		return
	}
	values := make(map[string]string)
	for _, name := range pathNames.FindAllStringSubmatch(a.Path, -1) {
		values[name[1]] = r.PathValue(name[1])
	}
	v := s.visit(r, values)
	v.Form = r.PostForm
	next, err := a.Do(ctx, v)
	if err != nil {
		s.fail(w, r, err)
		return
	}
	http.Redirect(w, r, v.Prefix+"/"+strings.TrimLeft(next, "/"), http.StatusSeeOther)
}

// fail answers with a page that says what went wrong.
func (s *server) fail(w http.ResponseWriter, r *http.Request, err error) {
	v := s.visit(r, nil)
	shown := explain(err, v.Person)
	shown.Back = v.Prefix + "/"
	if from, err := url.Parse(r.Referer()); err == nil && from.Host == r.Host {
		shown.Back = from.RequestURI()
	}
	if shown.Status >= http.StatusInternalServerError {
		s.Log.WarnContext(r.Context(), "a page of the console failed", logPath, r.URL.Path, logStatus, shown.Status,
			logReason, err.Error())
	}
	if shown.Status == http.StatusServiceUnavailable {
		w.Header().Set("Retry-After", "5")
	}
	p := errorPage
	p.Title = http.StatusText(shown.Status)
	if err := s.render(w, shown.Status, p, v, shown); err != nil {
		s.plain(w, r, http.StatusInternalServerError, err.Error())
	}
}

// explain returns what a person is told of an error.
func explain(err error, person Person) errorView {
	bad, isBad := errors.AsType[badRequestError](err)
	refused, isRefused := errors.AsType[*operator.RefusedError](err)
	pg, _ := errors.AsType[*pgconn.PgError](err)
	isConnecting := errors.As(err, new(*pgconn.ConnectError))
	switch {
	case isBad:
		return errorView{Status: bad.status, Message: bad.text}
	case errors.Is(err, errNotFound):
		return errorView{Status: http.StatusNotFound, Message: err.Error()}
	case isRefused:
		return errorView{Status: http.StatusConflict, Message: refused.Reason,
			Hint: strings.TrimSpace(refused.Detail + " " + refused.Hint)}
	case errors.Is(err, operator.ErrCursor):
		return errorView{Status: http.StatusBadRequest, Message: err.Error()}
	case pg != nil && pg.Code == pgerrcode.InsufficientPrivilege && !isConnecting:
		return missingRight(pg, person)
	case errors.Is(err, errBusy):
		return errorView{Status: http.StatusServiceUnavailable, Message: err.Error(), Hint: "Try again in a moment."}
	case operator.IsTimeout(err), errors.As(err, new(*operator.TooBroadError)):
		return errorView{Status: http.StatusGatewayTimeout,
			Message: fmt.Sprintf("The database took longer than the console lets a statement run (statement_timeout %s).",
				StatementTimeout), Hint: "Narrow the filter, or use the command line, which has no such limit."}
	case operator.IsUnavailable(err), isConnecting:
		return errorView{Status: http.StatusServiceUnavailable, Message: "The database cannot be reached.",
			Hint: "Try again in a moment; the console's log has the reason."}
	default:
		return errorView{Status: http.StatusInternalServerError, Message: "The console failed.",
			Hint: "Its log has the reason."}
	}
}

// missingRight says which right a person lacks, and which roles may have it.
func missingRight(pg *pgconn.PgError, person Person) errorView {
	above := Roles()[slices.Index(Roles(), person.Role)+1:]
	hint := fmt.Sprintf("%s is %s. Ask for a role that has the right", cmp.Or(person.Name, "This person"), person.Role)
	if len(above) > 0 {
		hint += ": " + strings.Join(above, ", or ")
	}
	return errorView{Status: http.StatusForbidden, Message: "The database refused: " + pg.Message + ".", Hint: hint + "."}
}
