package console

import (
	"context"
	"log/slog"
	"net/http"
	"net/url"

	"spectral/internal/core/events/infrastructure/postgres/operator"
)

// Deps is what a console needs.
type Deps struct {
	Client  *operator.Client // on the console's own login, a member of the roles of persons
	Version string           // of the build: an open page of another one is told to reload
	Log     *slog.Logger
}

// Person is who makes a request.
type Person struct {
	Name string
	Role string // the database role that is set for each of the person's transactions
}

// visit is one request.
type visit struct {
	Person Person
	Client *operator.Client // acts as the person's role
	Prefix string           // of all paths; empty, or like /ops/events
	Path   map[string]string
	Query  url.Values
	Form   url.Values // of an act
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

// pages and acts are all that the console serves, besides assets and streams.
var (
	pages []page
	acts  []act
)

// Handler returns the console.
func Handler(_ Deps) http.Handler { return http.NewServeMux() }
