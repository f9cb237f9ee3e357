package app

import (
	"cmp"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"runtime/debug"
	"slices"
	"strings"

	sdktrace "go.opentelemetry.io/otel/sdk/trace"

	"spectral/internal/core/events"
	"spectral/internal/core/events/infrastructure/jetstream"
	"spectral/internal/core/events/infrastructure/postgres/pgtx"
	platform "spectral/internal/platform/contracts/events"
	"spectral/internal/platform/infrastructure/files"
)

// Environment variables; docs/configuration.md lists them.
const (
	EnvDatabaseURL = "DATABASE_URL"
	EnvPoolURL     = "SPECTRAL_POOL_URL"
	EnvGeneration  = "SPECTRAL_GENERATION"
	EnvPostgresBin = "SPECTRAL_POSTGRES_BIN"
	// EnvHTTPAddr is where health and metrics are served: a host, with or without a port, or off.
	EnvHTTPAddr = "SPECTRAL_HTTP_ADDR"
	// EnvSentryDSN is the project that failed events are reported to.
	EnvSentryDSN = "SENTRY_DSN"
	// EnvNatsURL is the NATS server of the relay; the others say how to reach it, and which stream to use.
	EnvNatsURL    = "SPECTRAL_NATS_URL"
	EnvNatsStream = "SPECTRAL_NATS_STREAM"
	EnvNatsCreds  = "SPECTRAL_NATS_CREDS"
	EnvNatsCA     = "SPECTRAL_NATS_CA"
	EnvNatsCert   = "SPECTRAL_NATS_CERT"
	EnvNatsKey    = "SPECTRAL_NATS_KEY"
	// EnvBriefingsDir is the folder for agents' briefings.
	EnvBriefingsDir = "SPECTRAL_BRIEFINGS_DIR"
)

// Settings of a worker.
type Settings struct {
	// DatabaseURL leads straight to Postgres: migrations and LISTEN need a session.
	DatabaseURL string
	// PoolURL is for transactions; it may lead through a pooler. By default it is DatabaseURL.
	PoolURL string
	// Pooled says that PoolURL leads through a pooler; [CheckDatabase] sets it.
	Pooled     bool
	Generation events.Generation
	// Classes are the processing classes whose consumers run; empty means all.
	Classes []string
	// HTTPAddr is where health and metrics are served: a host and port, or a host alone; empty means the default host.
	// Without a port, 8017 or the next free one is taken.
	HTTPAddr string
	// SentryDSN is where failed events are reported; empty means nowhere.
	SentryDSN string
	// LogShare is the share of the events, from 0 to 1, whose publishing and handling is logged.
	LogShare float64
	// Spans receives every span as it ends, besides what OTEL_* says. It may be nil.
	Spans sdktrace.SpanProcessor
	// Relay is the broker that events may go through; nil: none.
	Relay *jetstream.Config
	// Console is served beside health and metrics; nil: there is none.
	Console *Console
	// BriefingsDir is the absolute path of a private folder.
	BriefingsDir string
}

// Version returns the version of this program, which names its revision unless it is that of a release.
func Version() string {
	if info, ok := debug.ReadBuildInfo(); ok {
		return info.Main.Version
	}
	return "(devel)"
}

// HTTPOff is the HTTPAddr for no HTTP server.
const HTTPOff = "off"

// SettingsError is a missing or malformed setting. Its text says what to set.
type SettingsError struct{ error }

// Unwrap returns the cause.
func (e *SettingsError) Unwrap() error { return e.error }

func settingsError(format string, args ...any) error {
	return &SettingsError{fmt.Errorf(format, args...)}
}

// ReadSettings reads the environment for a worker of these classes, without the URLs for an embedded server. No classes
// means all. The error joins a [*SettingsError] for every problem.
func ReadSettings(getenv func(string) string, embedded bool, classes []string) (s Settings, err error) {
	s.Classes = classes
	var noURL, noPool, noGeneration, noFolder error
	if !embedded {
		s.DatabaseURL, noURL = ReadDatabaseURL(getenv)
		if s.PoolURL = cmp.Or(getenv(EnvPoolURL), s.DatabaseURL); s.PoolURL != s.DatabaseURL {
			noPool = checkURL(EnvPoolURL, s.PoolURL)
		}
	}
	s.Generation, noGeneration = ReadGeneration(getenv)
	s.BriefingsDir, noFolder = ReadBriefingsDir(getenv)
	s.LogShare, s.SentryDSN = 1, getenv(EnvSentryDSN)
	var noAddress error
	if s.HTTPAddr = getenv(EnvHTTPAddr); s.HTTPAddr != "" && s.HTTPAddr != HTTPOff {
		_, port, err := net.SplitHostPort(s.HTTPAddr)
		if alone := net.ParseIP(strings.Trim(s.HTTPAddr, "[]")) != nil; !alone && (err != nil || port == "") {
			noAddress = settingsError("%s: %.200q is not an address: set it to an IP address, with or without a port, like "+
				"127.0.0.1:8017, or to %s", EnvHTTPAddr, s.HTTPAddr, HTTPOff)
		}
	}
	var noConsole error
	if s.Console, noConsole = ReadConsole(getenv); s.Console != nil && s.HTTPAddr == HTTPOff {
		noConsole = settingsError("%s is set, but %s is %s: set it to an address, or unset the former", EnvConsoleURL,
			EnvHTTPAddr, HTTPOff)
	}
	return s, errors.Join(noURL, noPool, noGeneration, noFolder, noAddress, noConsole)
}

// MakeBriefingsDir makes the folder of the briefings if their consumer runs, and writes a file to it and removes it. It
// returns a [*SettingsError] if briefings cannot be delivered to it.
func (s Settings) MakeBriefingsDir(getenv func(string) string) error {
	if len(s.Classes) > 0 && !slices.Contains(s.Classes, platform.AgentTaskDispatchedClass) {
		return nil
	}
	if cause := (files.Briefings{Dir: s.BriefingsDir}).Check(); cause != nil {
		what := "it"
		if getenv(EnvBriefingsDir) == "" { // the files of an embedded Postgres are there as well
			what = "XDG_CACHE_HOME, or for the briefings alone this variable,"
		}
		return settingsError("%s: %w: set %s to a folder that this user owns, and to which only this user may write",
			EnvBriefingsDir, cause, what)
	}
	return nil
}

// ReadDatabaseURL reads DATABASE_URL only.
func ReadDatabaseURL(getenv func(string) string) (string, error) {
	url := getenv(EnvDatabaseURL)
	return url, checkURL(EnvDatabaseURL, url)
}

// ReadBriefingsDir reads SPECTRAL_BRIEFINGS_DIR. It defaults to the user's cache folder, or to the system's temporary
// folder for a user without a home. It refuses a relative path, which would depend on where the worker is started.
func ReadBriefingsDir(getenv func(string) string) (string, error) {
	dir := getenv(EnvBriefingsDir)
	if dir == "" {
		cache, err := os.UserCacheDir()
		if err != nil {
			own := fmt.Sprintf("spectral-briefings-%d", os.Geteuid())
			return filepath.Join(os.TempDir(), own), nil //nolint:nilerr // a user may have no home
		}
		return filepath.Join(cache, "spectral", "briefings"), nil
	}
	if !filepath.IsAbs(dir) {
		return "", settingsError("%s: %.200q is a relative path: set it to the absolute path of a folder",
			EnvBriefingsDir, dir)
	}
	return filepath.Clean(dir), nil
}

// ReadRelay reads SPECTRAL_NATS_*. The error joins a [*SettingsError] for every problem.
func ReadRelay(getenv func(string) string) (*jetstream.Config, error) {
	c := jetstream.Config{
		URL: getenv(EnvNatsURL), Stream: cmp.Or(getenv(EnvNatsStream), jetstream.DefaultStream),
		Credentials: getenv(EnvNatsCreds), CA: getenv(EnvNatsCA), Cert: getenv(EnvNatsCert), Key: getenv(EnvNatsKey),
	}
	var err error
	if c.URL == "" {
		err = settingsError("%s is not set: set it to nats://host:4222 or tls://host:4222", EnvNatsURL)
	}
	if (c.Cert == "") != (c.Key == "") {
		err = errors.Join(err, settingsError("%s and %s belong together: set both or none", EnvNatsCert, EnvNatsKey))
	}
	if invalid := c.Validate(); invalid != nil {
		err = errors.Join(err, settingsError("%w", invalid))
	}
	return &c, err
}

// ReadGeneration reads SPECTRAL_GENERATION. It has no default: two deployments that both run as generation 1 by
// accident would handle each other's events.
func ReadGeneration(getenv func(string) string) (events.Generation, error) {
	value := getenv(EnvGeneration)
	if value == "" {
		return 0, settingsError("%s is not set: set it to this deployment's generation, a whole number from 1", EnvGeneration)
	}
	g, err := events.ParseGeneration(value)
	if err != nil {
		return 0, settingsError("%s: %w", EnvGeneration, err)
	}
	return g, nil
}

// ReadGenerationOr reads SPECTRAL_GENERATION, and returns otherwise if it is not set.
func ReadGenerationOr(getenv func(string) string, otherwise events.Generation) (events.Generation, error) {
	if getenv(EnvGeneration) == "" {
		return otherwise, nil
	}
	return ReadGeneration(getenv)
}

// urlForm matches what the driver takes: a URL, or libpq's keywords and values.
var urlForm = regexp.MustCompile(`^(?:[a-z]+://|\s*[a-z_]+\s*=)`)

func checkURL(name, url string) error {
	if url == "" {
		return settingsError("%s is not set: set it to postgres://user:password@host:5432/database", name)
	}
	if !urlForm.MatchString(url) { // the driver would read any text with a = as parameters
		return settingsError("%s: it is not a URL: want postgres://user:password@host:5432/database", name)
	}
	_, err := pgtx.DirectConfig(url)
	if err == nil {
		_, err = pgtx.PoolConfig(url, 0, false)
	}
	if err != nil {
		return settingsError("%s: %w", name, err)
	}
	return nil
}
