package cli

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"go.uber.org/fx"

	"spectral/internal/app"
	"spectral/internal/app/demo"
	"spectral/internal/core/events/infrastructure/postgres/worker"
)

// demoGeneration is the demo's generation, unless SPECTRAL_GENERATION is set.
const demoGeneration = "1"

func demoCommand(p Process) *cobra.Command {
	var options demo.Options
	var input string
	var fresh bool
	cmd := &cobra.Command{
		Use: "demo", Short: "Publish cards and watch them arrive, on its own Postgres",
		Args: cobra.NoArgs,
		Long: `Start an embedded Postgres (unless DATABASE_URL is set), migrate it, run workers, publish cards, and show them
arriving, until interrupted or --count is reached. Exits 1 if a card did not arrive or a line was refused.

With DATABASE_URL the login must own the database, and be a member of spectral_worker and spectral_operator.

A line of the input is {"card_id": "c1", "title": "Harbour", "summary": "...", "attributes": {}};
card_id and title are required.`,
		Example: `  workers demo
  workers demo --input cards.ndjson
  generate | workers demo --input -`,
		RunE: func(cmd *cobra.Command, _ []string) (err error) {
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
			return runDemo(cmd, p, fresh, func(ctx context.Context, d demo.Demo) error { return d.Run(ctx, options) })
		},
	}
	cmd.AddCommand(demoFlowsCommand(p, &fresh))
	oneFlag(cmd.Flags(), &options.Count, "count", "stop after so many cards (0: until interrupted)",
		between(strconv.Atoi, 0, 1e9))
	options.Rate = 100
	oneFlag(cmd.Flags(), &options.Rate, "rate", "cards a second (0: as fast as one producer can; the default with "+
		"--input)", between(parseFloat, 0, 1e6))
	cmd.Flags().StringVar(&input, "input", "", "publish the cards of this NDJSON file, or of standard input with -")
	_ = cmd.MarkFlagFilename("input")
	cmd.PersistentFlags().BoolVar(&fresh, "fresh", false, "delete the embedded Postgres's data first")
	return cmd
}

func demoFlowsCommand(p Process, fresh *bool) *cobra.Command {
	var list strings.Builder
	var names []cobra.Completion
	for _, flow := range demo.Flows() {
		about := strings.ReplaceAll(wrap(flow.About, 64), "\n", "\n"+strings.Repeat(" ", 15))
		_, _ = fmt.Fprintf(&list, "\n  %-12s %s", flow.Name, about)
		names = append(names, cobra.CompletionWithDesc(flow.Name, flow.About))
	}
	return &cobra.Command{
		Use: "flows [name...]", Short: "Show every flow of events once, step by step, or the named ones",
		Long: `Start what ` + "`workers demo`" + ` starts, and show each flow: what was written and published, which handlers
handled the event, and what they stored. Exits 1 at the first flow that does not end as it should.

Flows:` + list.String(),
		Example: `  workers demo flows`,
		Args:    cobra.OnlyValidArgs, ValidArgs: names,
		RunE: func(cmd *cobra.Command, args []string) error {
			return runDemo(cmd, p, *fresh, func(ctx context.Context, d demo.Demo) error { return d.RunFlows(ctx, args) })
		},
	}
}

func runDemo(cmd *cobra.Command, p Process, fresh bool, show func(context.Context, demo.Demo) error) (err error) {
	ctx, embedded := cmd.Context(), p.Getenv(app.EnvDatabaseURL) == ""
	if fresh && !embedded {
		return usagef("--fresh deletes the embedded Postgres's data, but %s is set", app.EnvDatabaseURL)
	}
	env := p.Getenv
	settings, err := app.ReadSettings(func(name string) string {
		if value := env(name); value != "" || name != app.EnvGeneration {
			return value
		}
		return demoGeneration
	}, embedded)
	if err != nil {
		return err
	}
	if !cmd.Flags().Changed("log-level") {
		_ = cmd.Flags().Set("log-level", "warn")
	}
	log, err := logger(cmd, p, settings.Generation)
	if err != nil {
		return err
	}
	if embedded {
		server, err := startMigrated(ctx, p, fresh, &settings, log)
		if err != nil {
			return err
		}
		defer stopEmbedded(server, &err)
	} else {
		p.notef("using the database of %s, %s: migrating it and running generation %d's workers on it", app.EnvDatabaseURL,
			app.DescribeURL(settings.DatabaseURL), settings.Generation)
		settings.PoolURL = settings.DatabaseURL
		if err := migrateUp(ctx, settings, log); err != nil {
			return err
		}
	}
	if err := app.CheckDatabase(ctx, &settings, "spectral_operator"); err != nil {
		return err
	}
	d := demo.Demo{Out: p.Stdout, Err: p.Stderr}
	return withWorker(ctx, settings, log, func(running context.Context, _ *worker.Worker) error {
		return show(running, d) // nothing handles what is published beside a refused worker
	}, fx.Populate(&d.Publish, &d.UnitOfWork, &d.Pool))
}
