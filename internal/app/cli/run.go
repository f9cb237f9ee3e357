package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.uber.org/fx"

	"spectral/internal/app"
	"spectral/internal/app/demo"
	"spectral/internal/app/embeddedpg"
	"spectral/internal/core/events"
	"spectral/internal/core/events/infrastructure/postgres/worker"
)

func runCommand(p Process) *cobra.Command {
	var embedded, drain bool
	share := 1.0
	var classes []string
	var relay relayFlag
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
  SPECTRAL_BRIEFINGS_DIR  optional: the folder that agents deliver briefings to
  SPECTRAL_HTTP_ADDR      optional: where /healthz, /readyz and /metrics are, or
                          off; by default 127.0.0.1, on 8017 or the next free
                          port
  SPECTRAL_CONSOLE_URL    optional: database login of the console, which is then
                          served there too; see ` + "`workers console --help`" + `
  SPECTRAL_NATS_URL       with --relay jetstream: nats://host:4222 or tls://...;
                          SPECTRAL_NATS_CREDS, _CA, _CERT and _KEY are files,
                          and _STREAM is the stream, by default spectral
  OTEL_*, SENTRY_DSN      optional: where traces, metrics and failures go`,
		Example: `  SPECTRAL_GENERATION=1 DATABASE_URL=postgres://worker@db/app workers run
  SPECTRAL_GENERATION=1 workers run --embedded
  SPECTRAL_GENERATION=1 workers run --drain`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return run(cmd, p, relay, embedded, drain, classes, share)
		},
	}
	wordsFlag(cmd, &classes, "classes", "processing classes to run, joined by commas; "+events.DefaultClass+" is the one "+
		"without a name; all of them if left out", knownClasses())
	cmd.Flags().BoolVar(&embedded, "embedded", false, "start an embedded Postgres and migrate it, instead of using "+
		"DATABASE_URL")
	oneFlag(cmd.Flags(), &share, "log-events", "share of the events, from 0 to 1, whose publishing and handling is "+
		"logged; failures always are", between(parseFloat, 0, 1))
	cmd.Flags().BoolVar(&drain, "drain", false, "end when no event of the generation is left")
	relay.add(cmd.Flags())
	return cmd
}

func run(cmd *cobra.Command, p Process, relay relayFlag, embedded, drain bool, classes []string, share float64) error {
	if embedded && p.Getenv(app.EnvDatabaseURL) != "" {
		return usagef("--embedded and %s are both given: unset one of them", app.EnvDatabaseURL)
	}
	settings, err := app.ReadSettings(p.Getenv, embedded, classes)
	settings.LogShare = share
	ownBroker := embedded && p.Getenv(app.EnvNatsURL) == ""
	err = errors.Join(err, relay.broker(p, &settings, ownBroker))
	if err == nil {
		err = settings.MakeBriefingsDir(p.Getenv)
	}
	if err != nil {
		return err
	}
	log, flush, err := logger(cmd, p, settings.Generation)
	if err != nil {
		return err
	}
	defer flush()
	work := func(ctx context.Context, settings app.Settings) error {
		if err := app.CheckDatabase(ctx, &settings); err != nil {
			return err
		}
		if drain {
			if err := app.CheckDrainable(ctx, settings); err != nil {
				return err
			}
		}
		return withWorker(ctx, settings, log, func(running context.Context, w *worker.Worker) (err error) {
			if drain {
				err = w.Drain(running, len(classes) > 0)
			} else {
				<-running.Done()
			}
			switch {
			case running.Err() != nil:
				err = nil
			case err == nil && w.Err() == nil:
				log.InfoContext(ctx, "drained: nothing is left")
			}
			log.InfoContext(ctx, "stopping: waiting for running handlers")
			if drain && cmd.Context().Err() != nil {
				err = fmt.Errorf("interrupted: `workers generation status %d` shows what is left; repeat the command to go on",
					settings.Generation)
			}
			return err
		})
	}
	switch {
	case relay.on() && ownBroker:
		work = withOwnBroker(p, switching(work))
	case relay.on():
		p.notef("events go through NATS once `workers relay switch` says so")
	}
	if embedded {
		return withEmbedded(cmd.Context(), p, false, settings, log, work)
	}
	return work(cmd.Context(), settings)
}

// withWorker starts a worker, calls work, and stops the worker when work returns. The context of work also ends when
// the worker ends by itself.
func withWorker(ctx context.Context, s app.Settings, log *slog.Logger,
	work func(context.Context, *worker.Worker) error, options ...fx.Option) error {
	var started *worker.Worker
	container := fx.New(app.Worker(s, log), fx.Populate(&started), fx.Options(options...))
	if wrong, ok := errors.AsType[*app.SettingsError](container.Err()); ok {
		return wrong // without what the container was building
	}
	if err := container.Start(ctx); err != nil {
		return err
	}
	log.InfoContext(ctx, "workers running")
	running, end := context.WithCancel(ctx)
	defer end()
	go func() {
		select {
		case <-started.Done():
			end()
		case <-running.Done():
		}
	}()
	err := work(running, started)
	end()
	stopping, cancel := context.WithTimeout(context.WithoutCancel(ctx), container.StopTimeout())
	defer cancel()
	if failed := errors.Join(container.Stop(stopping), started.Err()); failed != nil {
		return errors.Join(err, failed)
	}
	log.InfoContext(ctx, "stopped")
	return err
}

// withEmbedded starts and migrates the embedded Postgres, calls work with its URL, and stops it. It recreates a
// database of another edition. The context of work also ends when the server ends by itself.
func withEmbedded(ctx context.Context, p Process, fresh bool, settings app.Settings, log *slog.Logger,
	work func(context.Context, app.Settings) error) error {
	server, err := embeddedpg.Start(ctx, embeddedpg.Config{Fresh: fresh, BinDir: p.Getenv(app.EnvPostgresBin), Log: log})
	if err != nil {
		return err
	}
	p.notef("%s", server.Describe())
	settings.DatabaseURL = server.URL("postgres")
	settings.PoolURL = settings.DatabaseURL
	running, end := context.WithCancel(ctx)
	defer end()
	go func() {
		<-server.Done()
		end()
	}()
	if err = migrateUp(ctx, settings, log); err == nil {
		err = work(running, settings)
	}
	stopping, cancel := context.WithTimeout(context.WithoutCancel(ctx), app.ShutdownGrace)
	defer cancel()
	if stopErr := server.Stop(stopping); err == nil {
		err = stopErr
	}
	if !fresh && errors.Is(err, app.ErrOtherEdition) {
		p.notef("another edition of the migrations made the embedded database: deleting it and starting again")
		return withEmbedded(ctx, p, true, settings, log, work)
	}
	return err
}

func migrateUp(ctx context.Context, s app.Settings, log *slog.Logger) error {
	return withMigrator(ctx, s.DatabaseURL, log, func(m *app.Migrator) error {
		_, err := m.Up(ctx, s.Generation)
		return err
	})
}

// demoGeneration is the demo's generation, unless SPECTRAL_GENERATION is set.
const demoGeneration = "1"

func demoCommand(p Process) *cobra.Command {
	var options demo.Options
	var input string
	var fresh, telemetry bool
	var relay relayFlag
	cmd := &cobra.Command{
		Use: "demo", Short: "Publish cards and watch them arrive, on its own Postgres",
		Args: cobra.NoArgs,
		Long: `Start an embedded Postgres (unless DATABASE_URL is set), migrate it, run workers, publish cards, and show them
arriving, until interrupted or --count is reached. Exits 1 if a card did not arrive or a line was refused.

With DATABASE_URL the login must own the database, and be a member of spectral_worker and spectral_operator; the
console is then served only if SPECTRAL_CONSOLE_URL is set.

A line of the input is {"card_id": "c1", "title": "Harbour", "summary": "...", "attributes": {}};
card_id and title are required.`,
		Example: `  workers demo
  workers demo --input cards.ndjson
  workers demo --telemetry
  generate | workers demo --input -`,
		RunE: func(cmd *cobra.Command, _ []string) (err error) {
			if telemetry {
				show := func(ctx context.Context, d demo.Demo) error { return d.RunTelemetry(ctx) }
				return runDemo(cmd, p, relay, fresh, true, show)
			}
			if input != "" && !cmd.Flags().Changed("rate") {
				options.Rate = 0
			}
			switch input {
			case "":
			case "-":
				options.Input = p.Stdin
			default:
				file, err := os.Open(input)
				if err != nil {
					return usagef("--input: %w", err)
				}
				defer func() { _ = file.Close() }()
				options.Input = file
			}
			if options.Count == 0 && options.Input == nil {
				_, _ = fmt.Fprintln(p.Stderr, "publishing until interrupted (ctrl-C)")
			}
			return runDemo(cmd, p, relay, fresh, false,
				func(ctx context.Context, d demo.Demo) error { return d.Run(ctx, options) })
		},
	}
	cmd.AddCommand(demoFlowsCommand(p, &fresh, &relay))
	oneFlag(cmd.Flags(), &options.Count, "count", "stop after so many cards (0: until interrupted)",
		between(strconv.Atoi, 0, 1e9))
	options.Rate = 100
	oneFlag(cmd.Flags(), &options.Rate, "rate", "cards a second (0: as fast as one producer can; the default with "+
		"--input)", between(parseFloat, 0, 1e6))
	cmd.Flags().StringVar(&input, "input", "", "publish the cards of this NDJSON file, or of standard input with -")
	_ = cmd.MarkFlagFilename("input")
	cmd.Flags().BoolVar(&telemetry, "telemetry", false, "publish one card, and show its trace and the metrics")
	for _, other := range []string{"count", "rate", "input"} {
		cmd.MarkFlagsMutuallyExclusive("telemetry", other)
	}
	relay.add(cmd.PersistentFlags())
	cmd.PersistentFlags().BoolVar(&fresh, "fresh", false, "delete the embedded Postgres's data first")
	return cmd
}

func demoFlowsCommand(p Process, fresh *bool, relay *relayFlag) *cobra.Command {
	var names []string
	for _, flow := range demo.Flows() {
		names = append(names, cobra.CompletionWithDesc(flow.Name, flow.About))
	}
	return &cobra.Command{
		Use: "flows [name...]", Short: "Show every flow of events once, step by step, or the named ones",
		Long: `Start what ` + "`workers demo`" + ` starts, and show each flow: what was written and published, which handlers
handled the event, and what they stored. Exits 1 at the first flow that does not end as it should.

The flows are:

` + strings.ReplaceAll(strings.Join(names, "\n\n"), "\t", ": "),
		Example: `  workers demo flows`,
		Args:    cobra.OnlyValidArgs, ValidArgs: names,
		RunE: func(cmd *cobra.Command, args []string) error {
			return runDemo(cmd, p, *relay, *fresh, false,
				func(ctx context.Context, d demo.Demo) error { return d.RunFlows(ctx, args) })
		},
	}
}

func runDemo(cmd *cobra.Command, p Process, relay relayFlag, fresh, telemetry bool,
	show func(context.Context, demo.Demo) error) error {
	ctx, embedded := cmd.Context(), p.Getenv(app.EnvDatabaseURL) == ""
	if fresh && !embedded {
		return usagef("--fresh deletes the embedded Postgres's data, but %s is set", app.EnvDatabaseURL)
	}
	env := p.Getenv
	settings, err := app.ReadSettings(func(name string) string {
		if name == app.EnvGeneration {
			return cmp.Or(env(name), demoGeneration)
		}
		return env(name)
	}, embedded, nil)
	ownBroker := p.Getenv(app.EnvNatsURL) == ""
	err = errors.Join(err, relay.broker(p, &settings, ownBroker))
	if err == nil {
		err = settings.MakeBriefingsDir(p.Getenv)
	}
	if err != nil {
		return err
	}
	if !cmd.Flags().Changed("log-level") {
		_ = cmd.Flags().Set("log-level", "warn")
	}
	log, flush, err := logger(cmd, p, settings.Generation)
	if err != nil {
		return err
	}
	defer flush()
	work := func(ctx context.Context, settings app.Settings) error {
		if embedded && settings.HTTPAddr != app.HTTPOff {
			made, err := app.DemoConsole(ctx, settings.DatabaseURL)
			if err != nil {
				p.notef("there is no console: %v", err)
			}
			settings.Console = made
		}
		if err := app.CheckDatabase(ctx, &settings, "spectral_operator"); err != nil {
			return err
		}
		d := demo.Demo{Out: p.Stdout, Err: p.Stderr}
		if telemetry {
			d.Spans = tracetest.NewSpanRecorder()
			settings.Spans = d.Spans
		}
		var server *app.HTTPServer
		return withWorker(ctx, settings, log, func(running context.Context, _ *worker.Worker) error {
			if url := server.URL(); url != "" {
				p.notef("health and metrics are served at %s/readyz and %s/metrics", url, url)
			}
			if url := server.ConsoleURL(); url != "" {
				p.notef("the console is at %s", url)
			}
			return show(running, d) // nothing handles what is published beside a refused worker
		}, fx.Populate(&d.Publish, &d.UnitOfWork, &d.Pool, &d.Metrics, &server))
	}
	if relay.on() {
		if work = switching(work); ownBroker {
			work = withOwnBroker(p, work)
		}
	}
	if embedded {
		return withEmbedded(ctx, p, fresh, settings, log, work)
	}
	p.notef("using the database of %s, %s: migrating it and running generation %d's workers on it", app.EnvDatabaseURL,
		app.DescribeURL(settings.DatabaseURL), settings.Generation)
	settings.PoolURL = settings.DatabaseURL
	if err := migrateUp(ctx, settings, log); err != nil {
		return err
	}
	return work(ctx, settings)
}
