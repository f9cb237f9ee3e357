package cli

import (
	"context"
	"errors"
	"fmt"
	"log/slog"

	"github.com/spf13/cobra"
	"go.uber.org/fx"

	"spectral/internal/app"
	"spectral/internal/app/embeddedpg"
	"spectral/internal/core/events"
	"spectral/internal/core/events/infrastructure/postgres/worker"
)

func runCommand(p Process) *cobra.Command {
	var embedded, drain bool
	var classes []string
	cmd := &cobra.Command{
		Use: "run", Short: "Run the workers of this deployment generation", Args: cobra.NoArgs,
		Long: `Run the workers until SIGINT or SIGTERM; running handlers then have ` + app.ShutdownGrace.String() + ` to
finish.

With --drain they end once nothing of the generation is left; with --classes only event types of those classes count.
Exits 1 if it is interrupted first, or if no live worker handles what is left.

Settings:
  DATABASE_URL            straight to Postgres (not a transaction pooler)
  SPECTRAL_POOL_URL       optional: where transactions run, if elsewhere
  SPECTRAL_GENERATION     this deployment's generation, a whole number from 1
  SPECTRAL_BRIEFINGS_DIR  optional: the folder that agents deliver briefings to`,
		Example: `  SPECTRAL_GENERATION=1 DATABASE_URL=postgres://worker@db/app workers run
  SPECTRAL_GENERATION=1 workers run --embedded
  SPECTRAL_GENERATION=1 workers run --drain`,
		RunE: func(cmd *cobra.Command, _ []string) error { return run(cmd, p, embedded, drain, classes) },
	}
	wordsFlag(cmd, &classes, "classes", "processing classes to run, joined by commas; "+events.DefaultClass+" is the one "+
		"without a name; all of them if left out", knownClasses())
	cmd.Flags().BoolVar(&embedded, "embedded", false, "start an embedded Postgres and migrate it, instead of using "+
		"DATABASE_URL")
	cmd.Flags().BoolVar(&drain, "drain", false, "end when no event of the generation is left")
	return cmd
}

func run(cmd *cobra.Command, p Process, embedded, drain bool, classes []string) (err error) {
	ctx := cmd.Context()
	if embedded && p.Getenv(app.EnvDatabaseURL) != "" {
		return usagef("--embedded and %s are both given: unset one of them", app.EnvDatabaseURL)
	}
	settings, err := app.ReadSettings(p.Getenv, embedded)
	if err != nil {
		return err
	}
	settings.Classes = classes
	log, err := logger(cmd, p, settings.Generation)
	if err != nil {
		return err
	}
	var gone <-chan struct{} // the embedded server's end
	if embedded {
		server, err := startMigrated(ctx, p, false, &settings, log)
		if err != nil {
			return err
		}
		defer stopEmbedded(server, &err)
		gone = server.Done()
	}
	if err := app.CheckDatabase(ctx, &settings); err != nil {
		return err
	}
	if drain {
		if err := app.CheckDrainable(ctx, settings); err != nil {
			return err
		}
	}
	return withWorker(ctx, settings, log, func(running context.Context, listener *worker.Worker) error {
		var drained chan error // nil unless draining
		if drain {
			drained = make(chan error, 1)
			go func() { drained <- listener.Drain(running, len(classes) > 0) }()
		}
		var stranded error
		select {
		case <-running.Done():
		case <-gone: // the reason is what stopping it will say
		case stranded = <-drained:
			if running.Err() == nil && stranded == nil && listener.Err() == nil {
				log.InfoContext(ctx, "drained: nothing is left")
			}
		}
		log.InfoContext(ctx, "stopping: waiting for running handlers")
		if drain && ctx.Err() != nil {
			return fmt.Errorf("interrupted: `workers generation status %d` shows what is left; repeat the command to go on",
				settings.Generation)
		}
		return stranded
	})
}

// withWorker starts a worker, calls beside, and stops the worker when beside returns. The context of beside ends with
// the worker, too.
func withWorker(ctx context.Context, s app.Settings, log *slog.Logger,
	beside func(context.Context, *worker.Worker) error, options ...fx.Option) error {
	var listener *worker.Worker
	worker := fx.New(app.Worker(s, log), fx.Populate(&listener), fx.Options(options...))
	if err := worker.Start(ctx); err != nil {
		return err
	}
	log.InfoContext(ctx, "workers running")
	running, end := context.WithCancel(ctx)
	defer end()
	go func() {
		select {
		case <-listener.Done():
			end()
		case <-running.Done():
		}
	}()
	err := beside(running, listener)
	end()
	stopping, cancel := context.WithTimeout(context.WithoutCancel(ctx), worker.StopTimeout())
	defer cancel()
	if failed := errors.Join(worker.Stop(stopping), listener.Err()); failed != nil {
		return errors.Join(err, failed)
	}
	log.InfoContext(ctx, "stopped")
	return err
}

// stopEmbedded stops server, even if the command's context has ended.
func stopEmbedded(server *embeddedpg.Server, err *error) {
	ctx, cancel := context.WithTimeout(context.Background(), app.ShutdownGrace)
	defer cancel()
	if stopErr := server.Stop(ctx); *err == nil {
		*err = stopErr
	}
}

// startMigrated starts and migrates the embedded Postgres, and sets its URL. It recreates a database of another
// edition.
func startMigrated(ctx context.Context, p Process, fresh bool, settings *app.Settings,
	log *slog.Logger) (*embeddedpg.Server, error) {
	server, err := embeddedpg.Start(ctx, embeddedpg.Config{Fresh: fresh, BinDir: p.Getenv(app.EnvPostgresBin),
		Log: log})
	if err != nil {
		return nil, err
	}
	_, _ = fmt.Fprintln(p.Stderr, server.Describe())
	settings.DatabaseURL = server.URL("postgres")
	settings.PoolURL = settings.DatabaseURL
	err = migrateUp(ctx, *settings, log)
	if err == nil {
		return server, nil
	}
	stopEmbedded(server, &err)
	if !fresh && errors.Is(err, app.ErrOtherEdition) {
		_, _ = fmt.Fprintln(p.Stderr, "another edition of the migrations made the embedded database: deleting it and "+
			"starting again")
		return startMigrated(ctx, p, true, settings, log)
	}
	return nil, err
}

func migrateUp(ctx context.Context, s app.Settings, log *slog.Logger) error {
	return withMigrator(ctx, s.DatabaseURL, log, func(m *app.Migrator) error {
		_, err := m.Up(ctx, s.Generation)
		return err
	})
}
