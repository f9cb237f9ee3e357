package app

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/netip"
	"net/url"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"spectral/internal/app/console"
	"spectral/internal/core/events/infrastructure/postgres/operator"
	"spectral/internal/core/events/infrastructure/postgres/pgtx"
)

// Environment variables of the console.
const (
	// EnvConsoleURL is the database login of the console; without it there is none.
	EnvConsoleURL = "SPECTRAL_CONSOLE_URL"
	// EnvConsoleHosts are host names that the console answers to, besides the loopback ones.
	EnvConsoleHosts = "SPECTRAL_CONSOLE_HOSTS"
	// EnvConsoleTrusted are the addresses of proxies that sign persons in.
	EnvConsoleTrusted = "SPECTRAL_CONSOLE_TRUSTED"
	// EnvConsoleUserHeader is the header that such a proxy names the person in.
	EnvConsoleUserHeader = "SPECTRAL_CONSOLE_USER_HEADER"
	// EnvConsoleRoles and EnvConsoleTokens are files that say who may do what.
	EnvConsoleRoles  = "SPECTRAL_CONSOLE_ROLES"
	EnvConsoleTokens = "SPECTRAL_CONSOLE_TOKENS"
)

// ConsoleAddr is where `workers console` serves by default.
const ConsoleAddr = "127.0.0.1:8018"

const (
	consolePath        = "/console"
	consoleConnections = 8 // four pages at once, the live figures, and acts
)

// Console is the operators' console, and what it needs.
type Console struct {
	URL     string
	Hosts   []string
	Trusted []netip.Prefix
	Persons *console.Identities
}

// ReadConsole reads SPECTRAL_CONSOLE_*. It returns nil if SPECTRAL_CONSOLE_URL is not set. The error joins a
// [*SettingsError] for every problem.
func ReadConsole(getenv func(string) string) (*Console, error) {
	c := &Console{URL: getenv(EnvConsoleURL)}
	if c.URL == "" {
		return nil, nil //nolint:nilnil // there is no console
	}
	err := checkURL(EnvConsoleURL, c.URL)
	if worker := getenv(EnvDatabaseURL); err == nil && worker != "" && userOf(c.URL) == userOf(worker) {
		err = settingsError("%s: %s is the login of %s too: make a separate login for the console (docs/console.md)",
			EnvConsoleURL, userOf(c.URL), EnvDatabaseURL)
	}
	for _, host := range list(getenv(EnvConsoleHosts)) {
		if strings.ContainsAny(host, "/:*") {
			err = errors.Join(err, settingsError("%s: %.100q is not a host name: want names without scheme and port, joined "+
				"by commas", EnvConsoleHosts, host))
		}
		c.Hosts = append(c.Hosts, host)
	}
	for _, text := range list(getenv(EnvConsoleTrusted)) {
		prefix, wrong := netip.ParsePrefix(text)
		if address, noAddress := netip.ParseAddr(text); wrong != nil && noAddress == nil {
			prefix, wrong = netip.PrefixFrom(address, address.BitLen()), nil
		}
		if wrong != nil {
			err = errors.Join(err, settingsError("%s: %.100q is not an address: want addresses or CIDRs like 10.0.0.0/8, "+
				"joined by commas", EnvConsoleTrusted, text))
		}
		c.Trusted = append(c.Trusted, prefix)
	}
	persons, wrong := console.NewIdentities(getenv(EnvConsoleRoles), getenv(EnvConsoleTokens))
	if wrong != nil {
		err = errors.Join(err, settingsError("%s, %s: %w", EnvConsoleRoles, EnvConsoleTokens, wrong))
	}
	persons.Trusted = c.Trusted
	persons.Header = cmp.Or(getenv(EnvConsoleUserHeader), persons.Header)
	c.Persons = persons
	return c, err
}

// list returns the parts of a text that commas separate.
func list(text string) (parts []string) {
	for part := range strings.SplitSeq(text, ",") {
		if part = strings.TrimSpace(part); part != "" {
			parts = append(parts, part)
		}
	}
	return parts
}

func userOf(url string) string {
	config, err := pgtx.DirectConfig(url)
	if err != nil {
		return ""
	}
	return config.User
}

// Check returns in one line why the console cannot be served, and what to do: the database cannot be reached or is not
// migrated, or the login may not act as persons, or may act as a worker.
func (c *Console) Check(ctx context.Context) error {
	return inspect(ctx, EnvConsoleURL, c.URL, func(ctx context.Context, conn *pgx.Conn) error {
		var isWorker bool
		err := conn.QueryRow(ctx, "select coalesce(pg_catalog.pg_has_role(session_user, r.oid, 'member'), false) "+
			"from pg_catalog.pg_roles r where r.rolname = $1", pgtx.WorkerRole).Scan(&isWorker)
		switch {
		case errors.Is(err, pgx.ErrNoRows):
			return ErrNotMigrated
		case err != nil:
			return fmt.Errorf("ask for the roles of the login: %w", err)
		case isWorker:
			return fmt.Errorf("login %s may act as %s: make a login for the console that may not (docs/console.md)",
				conn.Config().User, pgtx.WorkerRole)
		}
		for _, role := range c.roles() {
			if err := actAs(ctx, conn, role); err != nil {
				return err
			}
			if _, err := conn.Exec(ctx, "reset role"); err != nil {
				return fmt.Errorf("reset the role: %w", err)
			}
		}
		return nil
	})
}

// roles returns the roles that persons may have.
func (c *Console) roles() []string { return append(c.Persons.Roles(), operator.Viewer) }

// Open returns the handler of the console, below /console/ and with a redirect to it, and what closes its connections.
// The database need not answer yet.
func (c *Console) Open(ctx context.Context, log *slog.Logger) (http.Handler, func(), error) {
	config, err := pgtx.PoolConfig(c.URL, 0, false)
	if err != nil {
		return nil, nil, settingsError("%s: %w", EnvConsoleURL, err)
	}
	config.MaxConns, config.MinConns = consoleConnections, 0
	config.ConnConfig.RuntimeParams["application_name"] = "spectral-console"
	set := config.ConnConfig.AfterConnect
	limit := fmt.Sprintf("set statement_timeout = %d; set lock_timeout = %[1]d; set jit = off", // jit took seconds
		console.StatementTimeout.Milliseconds())
	config.ConnConfig.AfterConnect = func(ctx context.Context, conn *pgconn.PgConn) error {
		if err := set(ctx, conn); err != nil {
			return err
		}
		return conn.Exec(ctx, limit).Close()
	}
	contracts, err := Contracts()
	if err != nil {
		return nil, nil, err
	}
	pool, err := pgxpool.NewWithConfig(ctx, config)
	if err != nil {
		return nil, nil, fmt.Errorf("connection pool: %w", err)
	}
	deps := console.Deps{Client: operator.New(pool), Version: Version(), Log: log, Sources: make(map[string]string)}
	for _, contract := range contracts.All() {
		deps.Sources[contract.Type] = string(contract.Source)
	}
	mux := http.NewServeMux()
	mux.Handle(consolePath+"/", console.Handler(deps, console.Prefix(consolePath), console.Identity(c.Persons.Person),
		console.Hosts(c.Hosts...), console.Trusted(c.Trusted...)))
	mux.Handle("GET /{$}", http.RedirectHandler(consolePath+"/", http.StatusFound))
	return mux, func() { pgtx.ClosePool(pool) }, nil
}

// demoLogin is the login of the demo's console.
const demoLogin = "spectral_console"

// DemoConsole makes the login of a console in an embedded database, and returns the console, in which a visitor on the
// same host is an operator.
func DemoConsole(ctx context.Context, databaseURL string) (*Console, error) {
	persons, err := console.NewIdentities("", "")
	if err != nil {
		return nil, err
	}
	persons.Loopback = operator.Role
	u, err := url.Parse(databaseURL)
	if err != nil {
		return nil, fmt.Errorf("the URL of the embedded database: %w", err)
	}
	password := rand.Text()
	config, err := pgtx.DirectConfig(databaseURL)
	if err != nil {
		return nil, err
	}
	err = withConnection(ctx, config, func(ctx context.Context, conn *pgx.Conn) error {
		_, err := conn.Exec(ctx, fmt.Sprintf("do $$ begin create role %[1]s; exception when duplicate_object then null; "+
			"end $$; alter role %[1]s login noinherit password '%[2]s'; grant %[3]s to %[1]s", demoLogin, password,
			strings.Join(console.Roles(), ", ")))
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("make the login of the console: %w", err)
	}
	u.User = url.UserPassword(demoLogin, password)
	return &Console{URL: u.String(), Persons: persons}, nil
}
