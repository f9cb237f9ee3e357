package pgtest

import (
	"log/slog"
	"testing"

	"spectral/internal/app"
	"spectral/internal/core/events/eventstest"
	"spectral/internal/core/events/infrastructure/postgres/publish"
)

// Workers runs every consumer of the product until the test ends, as a worker process does, and returns a unit of
// work for use cases. Briefings go to a temporary folder. Warnings go to the test's output.
func Workers(t testing.TB, url string) *publish.UnitOfWork {
	t.Helper()
	log := slog.New(slog.NewTextHandler(t.Output(), &slog.HandlerOptions{Level: slog.LevelWarn}))
	settings := app.Settings{
		DatabaseURL: url, PoolURL: url, Generation: Generation, BriefingsDir: t.TempDir(), HTTPAddr: app.HTTPOff,
	}
	worker, unitOfWork := app.NewWorker(settings, log)
	eventstest.Start(t, worker)
	return unitOfWork
}
