package app_test

import (
	"log/slog"
	"testing"

	"go.uber.org/fx"

	"spectral/internal/app"
	"spectral/internal/core/events/infrastructure/postgres/publish"
	"spectral/internal/worlds/application"
)

// TestWorkerGraph builds the graph of a worker, without running any of it: nothing is missing that
// a worker or a command asks for.
func TestWorkerGraph(t *testing.T) {
	t.Parallel()
	settings := app.Settings{
		DatabaseURL: "postgres://worker@localhost/spectral",
		PoolURL:     "postgres://worker@localhost/spectral",
		Generation:  1,
	}
	err := fx.ValidateApp(
		app.Worker(settings, slog.New(slog.DiscardHandler)),
		// What commands take out of the graph: fx looks only at what is asked for.
		fx.Invoke(func(*application.PublishCard, *publish.UnitOfWork) {}),
	)
	if err != nil {
		t.Error(err)
	}
}
