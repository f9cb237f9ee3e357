package cli

import (
	"fmt"

	"github.com/spf13/cobra"

	"spectral/internal/app"
)

func migrateShowCommand(p Process) *cobra.Command {
	return &cobra.Command{
		Use: "show [object...]", Short: "Print the SQL that makes objects of the schema as this build has them",
		Long: `Print the SQL that makes objects of the schema as the migrations of this build have them, whether they are missing or
altered: as Postgres itself writes them, with the grants that go with them. It is to be piped into psql,
as the owner. An object is named as doctor names it; without one the objects are listed. No database is asked.

What rows there were, no statement brings back: a table or column that is gone is made anew, empty but for the rows that
migrations put in. Indexes, and those of keys, are built beside whoever writes: what is there serves until then. What rows or
other objects are in the way of is refused before anything is changed.`,
		Example: `  workers migrate show 'function core.outbox_quiet(text)' | psql --set=ON_ERROR_STOP=1 "$DATABASE_URL"
  workers migrate show | grep ^index`,
		ValidArgsFunction: func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
			return app.SchemaObjects(), cobra.ShellCompDirectiveNoFileComp
		},
		RunE: func(_ *cobra.Command, subjects []string) error {
			if len(subjects) == 0 {
				for _, subject := range app.SchemaObjects() {
					_, _ = fmt.Fprintln(p.Stdout, subject)
				}
				return nil
			}
			statements := make([]string, len(subjects))
			for i, subject := range subjects {
				var err error
				if statements[i], err = app.SchemaStatements(subject); err != nil {
					return usageError{err}
				}
			}
			for i, subject := range subjects {
				_, _ = fmt.Fprintf(p.Stdout, "-- %s\n%s", subject, statements[i])
			}
			return nil
		},
	}
}
