package console

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"time"

	"spectral/internal/core/events/infrastructure/postgres/operator"
)

// Roles returns the roles of persons, the least one first.
func Roles() []string {
	return []string{operator.Viewer, operator.PayloadReader, operator.Role, operator.Corrector}
}

// Deps is what a console needs.
type Deps struct {
	Client  *operator.Client // on the console's own login, a member of the roles of persons
	Version string           // of the build: an open page of another one is told to reload
	Log     *slog.Logger
	// Sources are the contexts that publish each event type; of others the context is not known.
	Sources map[string]string
}

// Person is who makes a request.
type Person struct {
	Name string
	Role string // the database role that is set for each of the person's transactions
}

// visit is one request.
type visit struct {
	// Person is who asks. In the Load of a live page it has no Name: persons of one role share what is loaded.
	Person Person
	Client *operator.Client // acts as the person's role
	// Live returns the live figures, which are the same for all.
	Live   func(context.Context) (operator.Live, error)
	Prefix string // of all paths; empty, or like /ops/events
	Path   map[string]string
	Query  url.Values
	Form   url.Values // of an act
	// Sources are those of [Deps].
	Sources map[string]string
}

// page is what is shown at a path.
type page struct {
	Path     string // like /events/{id}
	Title    string
	Template string // in templates/
	// Load returns what the template shows. ctx ends when statements may take no longer.
	Load func(ctx context.Context, v *visit) (data any, err error)
	// Live says that the page's fragment is sent again when the live figures change.
	Live bool
}

// act is what a form does. It returns where the browser goes next, without the prefix.
type act struct {
	Path string // like /plan/confirm
	Do   func(ctx context.Context, v *visit) (next string, err error)
}

// view is what templates get. The template "layout" includes the page's template as "content".
type view struct {
	Page    page
	Person  Person
	Can     map[string]bool // view, read (payloads), operate, correct: what the person's role allows
	Prefix  string
	Version string
	Data    any
	Now     time.Time
}

// errorView is the Data of the template "error".
type errorView struct {
	Status  int
	Message string
	Hint    string // what to do; may be empty
	Back    string // a link, with the prefix; may be empty
}

// String returns what a template without own words for an error shows.
func (e errorView) String() string { return strings.TrimSpace(e.Message + " " + e.Hint) }

// errNotFound is what a Load returns for something that is not there.
var errNotFound = errors.New("there is no such thing, or not any more")

// pages and acts are all that the console serves, besides assets and streams.
var (
	pages = slices.Concat(overviewPages, eventPages, failurePages, planPages, operationPages, topologyPages,
		activityPages)
	acts = slices.Concat(failureActs, planActs, operationActs, topologyActs)
)

// Option is an option of [Handler].
type Option func(*server)

// Prefix says at which path of its server the console is, like /ops/events.
func Prefix(path string) Option {
	return func(s *server) { s.prefix = "/" + strings.Trim(path, "/") }
}

// Identity says who makes a request. An error is the answer, with status 401. Without this option a loopback visitor is
// a viewer, and all others are refused.
func Identity(of func(*http.Request) (Person, error)) Option {
	return func(s *server) { s.identity = of }
}

// Hosts allows host names besides the loopback ones. Requests to others are refused: a foreign page may have made a
// name lead here.
func Hosts(names ...string) Option {
	return func(s *server) { s.hosts = slices.Concat(s.hosts, names) }
}

// Trusted says from which addresses X-Forwarded-Prefix is honoured.
func Trusted(addresses ...netip.Prefix) Option {
	return func(s *server) { s.trusted = slices.Concat(s.trusted, addresses) }
}

// Handler returns the console. It may be mounted in any server whose write timeout can be extended by request, and
// holds nothing but memory: statements run only while a page is asked for or watched.
func Handler(deps Deps, options ...Option) http.Handler {
	return newServer(deps, pages, acts, files, options...)
}
