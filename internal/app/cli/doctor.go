package cli

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"spectral/internal/app"
	"spectral/internal/app/doctor"
)

func doctorCommand(p Process) *cobra.Command {
	var names []string
	return printing(p, &cobra.Command{
		Use: "doctor [check...]", Short: "Find what is wrong, and say what to do",
		Args: positional(cobra.OnlyValidArgs, &names, word), ValidArgs: doctor.Names(),
		Long: `Check the database that carries events, and say for each finding what to do. Nothing is changed. Exits 3 if
anything needs attention or could not be checked.

Checks: ` + strings.Join(doctor.Names(), ", ") + `.

DATABASE_URL must be the one with which workers LISTEN, with a login that is a member of spectral_operator, and better
of pg_read_all_stats too. Set SPECTRAL_GENERATION to the generation of this build to compare its event types.`,
		Example: `  DATABASE_URL=postgres://operator@db/app workers doctor
  workers doctor --json | jq '.checks[] | select(.state != "fine")'`,
	}, func(cmd *cobra.Command, p Process) error {
		url, err := app.ReadDatabaseURL(p.Getenv)
		if err != nil {
			return err
		}
		err = app.CheckOperator(cmd.Context(), url)
		notMigrated := errors.Is(err, app.ErrNotMigrated)
		if err != nil && !notMigrated {
			return err
		}
		config := doctor.Config{Now: time.Now, Checks: names, URL: url, NotMigrated: notMigrated}
		if config.Generation, err = app.ReadGenerationOr(p.Getenv, 0); err != nil {
			return err
		}
		report, err := doctor.Examine(cmd.Context(), config)
		if err != nil {
			return err
		}
		if err := p.print(report, func() { printReport(p, report) }); err != nil {
			return err
		}
		if report.Worst() != doctor.Fine {
			return exitError{errors.New("something needs attention: see above"), exitAttention}
		}
		return nil
	})
}

func printReport(p Process, report doctor.Report) {
	for _, result := range report.Results {
		detail := visible(result.Detail)
		state := paint(p, string(result.State), fmt.Sprintf("%-8s", result.State))
		line := fmt.Sprintf("%s  %-13s %s", state, result.Check, detail)
		_, _ = fmt.Fprintln(p.Stdout, strings.TrimRight(line, " "))
		for _, f := range result.Findings {
			_, _ = fmt.Fprintf(p.Stdout, "          %s %s\n            fix: %s\n", paint(p, string(f.State), "-"),
				visible(f.Problem), visible(f.Fix))
		}
	}
}
