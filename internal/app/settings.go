package app

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"

	"spectral/internal/core/events"
	"spectral/internal/core/events/infrastructure/postgres"
)

// Environment variables (DESIGN section 9).
const (
	EnvDatabaseURL = "DATABASE_URL"
	EnvPoolURL     = "SPECTRAL_POOL_URL"
	EnvGeneration  = "SPECTRAL_GENERATION"
	EnvPostgresBin = "SPECTRAL_POSTGRES_BIN"
	// EnvBriefingsDir is the folder that agents deliver their briefings to.
	EnvBriefingsDir = "SPECTRAL_BRIEFINGS_DIR"
)

// Settings of a worker.
type Settings struct {
	// DatabaseURL leads straight to Postgres: migrations and LISTEN need a session of their own.
	DatabaseURL string
	// PoolURL is where transactions run. DatabaseURL unless set.
	PoolURL string
	// Pooled: PoolURL leads through a pooler, as [CheckDatabase] found.
	Pooled     bool
	Generation events.Generation
	// Classes are the processing classes whose consumers run; none: all of them.
	Classes []string
	// BriefingsDir is an absolute path. The folder is made when it is first needed.
	BriefingsDir string
}

// SettingsError is a missing or malformed setting. Its text says what to set.
type SettingsError struct{ Problems []error }

func (e *SettingsError) Error() string {
	lines := make([]string, len(e.Problems))
	for i, p := range e.Problems {
		lines[i] = p.Error()
	}
	return strings.Join(lines, "; ")
}

// ReadDatabaseURL reads DATABASE_URL alone, for what needs no more.
func ReadDatabaseURL(getenv func(string) string) (string, error) {
	url := getenv(EnvDatabaseURL)
	if err := checkURL(EnvDatabaseURL, url); err != nil {
		return "", &SettingsError{[]error{err}}
	}
	return url, nil
}

// ReadSettings reads the environment. The error is a [*SettingsError] that lists every problem.
func ReadSettings(getenv func(string) string) (Settings, error) {
	s := Settings{DatabaseURL: getenv(EnvDatabaseURL), PoolURL: getenv(EnvPoolURL)}
	var problems []error
	if err := checkURL(EnvDatabaseURL, s.DatabaseURL); err != nil {
		problems = append(problems, err)
	}
	if s.PoolURL == "" {
		s.PoolURL = s.DatabaseURL
	} else if err := checkURL(EnvPoolURL, s.PoolURL); err != nil {
		problems = append(problems, err)
	}
	var err error
	if s.Generation, err = generation(getenv); err != nil {
		problems = append(problems, err)
	}
	if s.BriefingsDir, err = briefingsDir(getenv); err != nil {
		problems = append(problems, err)
	}
	if len(problems) > 0 {
		return Settings{}, &SettingsError{problems}
	}
	return s, nil
}

// ReadGeneration reads SPECTRAL_GENERATION alone. The error is a [*SettingsError].
func ReadGeneration(getenv func(string) string) (events.Generation, error) {
	g, err := generation(getenv)
	if err != nil {
		return 0, &SettingsError{[]error{err}}
	}
	return g, nil
}

// ReadBriefingsDir reads SPECTRAL_BRIEFINGS_DIR alone. The error is a [*SettingsError].
func ReadBriefingsDir(getenv func(string) string) (string, error) {
	dir, err := briefingsDir(getenv)
	if err != nil {
		return "", &SettingsError{[]error{err}}
	}
	return dir, nil
}

// briefingsDir defaults to the user's cache folder, or, for a user without a home, to the system's temporary folder. A relative
// path is refused: it would depend on where a worker happens to be started.
func briefingsDir(getenv func(string) string) (string, error) {
	dir := getenv(EnvBriefingsDir)
	if dir == "" {
		cache, err := os.UserCacheDir()
		if err != nil {
			return filepath.Join(os.TempDir(), "spectral-briefings"), nil //nolint:nilerr // no home is no fault
		}
		return filepath.Join(cache, "spectral", "briefings"), nil
	}
	if !filepath.IsAbs(dir) {
		return "", fmt.Errorf("%s: %.200q is a relative path: set it to the absolute path of a folder", EnvBriefingsDir, dir)
	}
	if info, err := os.Stat(dir); err == nil && !info.IsDir() {
		return "", fmt.Errorf("%s: %.200q is no folder: set it to one that workers may write to, or that they can make", EnvBriefingsDir, dir)
	}
	return filepath.Clean(dir), nil
}

// generation has no default: two deployments that both ran as generation 1 by accident would take
// each other's events.
func generation(getenv func(string) string) (events.Generation, error) {
	value := getenv(EnvGeneration)
	if value == "" {
		return 0, fmt.Errorf("%s is not set: set it to this deployment's generation, a whole number from 1", EnvGeneration)
	}
	g, err := events.ParseGeneration(value)
	if err != nil {
		return 0, fmt.Errorf("%s: %w", EnvGeneration, err)
	}
	return g, nil
}

// urlForm is what the driver takes: a URL, or libpq's keywords and values.
var urlForm = regexp.MustCompile(`^(?:[a-z]+://|\s*[a-z_]+\s*=)`)

func checkURL(name, url string) error {
	if url == "" {
		return fmt.Errorf("%s is not set: set it to postgres://user:password@host:5432/database", name)
	}
	if !urlForm.MatchString(url) { // the driver would take whatever has a = for parameters
		return fmt.Errorf("%s: it is no URL: want postgres://user:password@host:5432/database", name)
	}
	if _, err := postgres.DirectConfig(url); err != nil {
		return fmt.Errorf("%s: %w: want postgres://user:password@host:5432/database", name, oneLine(err))
	}
	return nil
}

// oneLine makes an error fit for one line of output.
func oneLine(err error) error { return flattened{err} }

// flattened is an error whose text is one line.
type flattened struct{ error }

func (f flattened) Error() string { return strings.Join(strings.Fields(f.error.Error()), " ") }
func (f flattened) Unwrap() error { return f.error }
