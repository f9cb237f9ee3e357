package pgtest

import (
	"log/slog"
	"testing"

	"spectral/internal/app"
	"spectral/internal/core/events/eventstest"
	"spectral/internal/core/events/infrastructure/postgres/publish"
)

// Workers runs every consumer of the product at url until the test ends, put together as in a worker process, and
// returns the unit of work that its use cases are made of. Briefings go to a folder of the test's own. Warnings, a failed handler among them, are in the test's output.
func Workers(t testing.TB, url string) *publish.UnitOfWork {
	t.Helper()
	log := slog.New(slog.NewTextHandler(t.Output(), &slog.HandlerOptions{Level: slog.LevelWarn}))
	worker, unitOfWork := app.NewWorker(app.Settings{DatabaseURL: url, PoolURL: url, Generation: Generation, BriefingsDir: t.TempDir()}, log)
	eventstest.Start(t, worker)
	return unitOfWork
}
