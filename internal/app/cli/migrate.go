package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path"
	"time"

	"github.com/pressly/goose/v3"
	"github.com/spf13/cobra"

	"spectral/internal/app"
	"spectral/internal/core/events"
	"spectral/internal/core/events/infrastructure/postgres/operator"
)

// nextDoctor names the login, because the one that migrates need not be an operator.
const nextDoctor = "as a login in spectral_operator, workers doctor migrations schema privileges"

func migrateCommand(p Process) *cobra.Command {
	return group(&cobra.Command{
		Use: "migrate", Short: "Bring the database's schema up to this build, or back",
		Long: `Run the migrations of db/migrations on DATABASE_URL. Hosts that do so at once take turns.`,
	}, migrateUpCommand(p), migrateDownCommand(p), migrateStatusCommand(p), migrateRepairCommand(p))
}

func migrateUpCommand(p Process) *cobra.Command {
	return migrating(p, &cobra.Command{
		Use: "up", Short: "Apply the missing steps, and register the event types",
		Long: `Apply the missing steps, register the event types of this build, and compare the privileges with
db/privileges.txt. A step that waits for a lock gives up after half a second, and is retried for ten minutes.`,
		Example: `  DATABASE_URL=postgres://owner@db/app SPECTRAL_GENERATION=7 workers migrate up`,
	}, func(ctx context.Context, m *app.Migrator, g events.Generation) error {
		results, err := m.Up(ctx, g)
		for _, r := range results {
			printStep(p, "applied", r)
		}
		if err != nil {
			return err
		}
		if len(results) == 0 {
			p.printf("nothing to apply: the database is up to date\n")
		}
		_, privileges, err := m.Compare(ctx)
		for _, d := range privileges {
			p.notef("%s", d)
		}
		if len(privileges) > 0 {
			p.notef("privileges differ from this build: `workers migrate repair` corrects them")
		}
		p.next(nextDoctor)
		return err
	})
}

func migrateDownCommand(p Process) *cobra.Command {
	cmd := &cobra.Command{
		Use: "down", Short: "Undo the newest step; refused where it would lose data",
		Long: `Undo the newest step. It is refused if rows would be lost. A rollback of a deployment does not need it: an
older build works with a newer schema.`,
		Example: `  workers migrate down`,
	}
	yes := yesFlag(cmd)
	return migrating(p, cmd, func(ctx context.Context, m *app.Migrator, _ events.Generation) error {
		newest, err := m.Newest(ctx)
		if err != nil {
			return err
		}
		if newest == nil {
			p.printf("nothing to undo\n")
			return nil
		}
		if err := consent(ctx, p, *yes, "Undo "+path.Base(newest.Path)+"?"); err != nil {
			return err
		}
		result, err := m.Down(ctx, newest.Version)
		if err == nil {
			printStep(p, "undone", result)
		}
		return err
	})
}

func migrateRepairCommand(p Process) *cobra.Command {
	cmd := &cobra.Command{
		Use: "repair", Short: "Make functions, triggers and privileges as in this build",
		Long: `Compare the database with this build, list what differs, ask, and re-create the functions, triggers, policies
and privileges that differ, in one transaction. Exits 3 if it cannot repair something, which it names.`,
		Example: `  DATABASE_URL=postgres://owner@db/app workers migrate repair`,
	}
	yes := yesFlag(cmd)
	return migrating(p, cmd, func(ctx context.Context, m *app.Migrator, _ events.Generation) error {
		differences, err := m.Differences(ctx)
		if err != nil {
			return err
		}
		if len(differences) == 0 {
			p.printf("nothing to repair: the schema and the privileges are as in this build\n")
			return nil
		}
		for _, d := range differences {
			p.printf("%s\n", d)
		}
		question := fmt.Sprintf("Repair %s?", operator.Counted(len(differences), "difference"))
		if err := consent(ctx, p, *yes, question); err != nil {
			return err
		}
		repaired, left, err := m.Repair(ctx)
		if err != nil {
			return err
		}
		p.printf("repaired %s\n", operator.Counted(len(repaired), "difference"))
		for _, l := range left {
			p.printf("left: %s\n      %s\n", l, l.Do)
		}
		if len(left) > 0 {
			return exitError{fmt.Errorf("%s left, which repair cannot change: see above",
				operator.Counted(len(left), "difference")), exitAttention}
		}
		return nil
	})
}

func migrateStatusCommand(p Process) *cobra.Command {
	cmd := &cobra.Command{
		Use: "status", Short: "List every step, with the time it was applied",
		Example: `  workers migrate status`,
	}
	jsonFlag(cmd, &p)
	return migrating(p, cmd, func(ctx context.Context, m *app.Migrator, _ events.Generation) error {
		found, err := m.Status(ctx)
		if err != nil {
			return err
		}
		type step struct {
			Migration string     `json:"migration"`
			AppliedAt *time.Time `json:"applied_at"` // null: pending
		}
		steps, next := make([]step, len(found)), nextDoctor
		for i, s := range found {
			steps[i].Migration = path.Base(s.Source.Path)
			if s.State == goose.StateApplied {
				at := s.AppliedAt.UTC()
				steps[i].AppliedAt = &at
			} else {
				next = "workers migrate up"
			}
		}
		return p.print(map[string]any{"migrations": steps}, func() {
			printTable(p, steps, func(s step) []any {
				return []any{s.Migration, cmp.Or(timestamp(s.AppliedAt), "pending")}
			}, "MIGRATION", "APPLIED")
			p.next("%s", next)
		})
	})
}

func printStep(p Process, done string, r *goose.MigrationResult) {
	p.printf("%s %s (%s)\n", done, path.Base(r.Source.Path), r.Duration.Round(time.Millisecond))
}

// migrating gives cmd a run function that gets a migrator for DATABASE_URL. It returns cmd.
func migrating(p Process, cmd *cobra.Command,
	do func(context.Context, *app.Migrator, events.Generation) error) *cobra.Command {
	cmd.Args = cobra.NoArgs
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		url, err := app.ReadDatabaseURL(p.Getenv)
		if err != nil {
			return err
		}
		generation, err := app.ReadGenerationOr(p.Getenv, 0) // it only says whose contracts win
		if err != nil {
			return err
		}
		log, flush, err := logger(cmd, p, generation)
		if err != nil {
			return err
		}
		defer flush()
		return withMigrator(cmd.Context(), url, log, func(m *app.Migrator) error {
			return do(cmd.Context(), m, generation)
		})
	}
	return cmd
}

func withMigrator(ctx context.Context, url string, log *slog.Logger, do func(*app.Migrator) error) error {
	migrator, err := app.NewMigrator(ctx, url, log)
	if err != nil {
		return err
	}
	return errors.Join(do(migrator), migrator.Close())
}
