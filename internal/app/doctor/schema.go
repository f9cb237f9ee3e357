package doctor

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"spectral/internal/app"
	"spectral/internal/core/events"
	"spectral/internal/core/events/infrastructure/postgres/doctordb"
	"spectral/internal/core/events/infrastructure/postgres/operator"
	"spectral/internal/core/events/infrastructure/postgres/publish"
)

func literal(s string) string { return "'" + strings.ReplaceAll(s, "'", "''") + "'" }

// migrations says how far the schema is migrated, and finds what makes the next migration fail: a step that is not
// recorded, and a record that the migrating login does not own.
func migrations(ctx context.Context, e *examination) (string, error) {
	if e.NotMigrated {
		e.found(Critical, "the database is not migrated").fix("`workers migrate up`, as a login that owns the database")
		return "nothing is applied", nil
	}
	r, err := e.inspector.Migrations(ctx, app.Migrations())
	if err != nil {
		return "", err
	}
	for _, step := range r.Missing {
		e.found(Warning, "migration %d is not recorded as applied, but later ones are: `workers migrate up` is refused",
			step).fix("run `workers doctor schema`; if it finds what migration %d makes, apply that by hand; then, as %s, run "+
			"`insert into spectral_goose.goose_db_version (version_id, is_applied) values (%[1]d, true);`", step, r.Owner)
	}
	if !r.DatabaseOwnerMayRecord {
		state := Warning
		if r.OwnerIsSuperuser {
			state = Note
		}
		e.found(state, "spectral_goose.goose_db_version, the record of migrations, belongs to %s, but the database to %s: "+
			"`workers migrate up` is refused, except to a superuser", r.Owner, r.DatabaseOwner).
			fix("as a superuser, run `alter table spectral_goose.goose_db_version owner to %s;`", r.DatabaseOwner)
	}
	if latest := app.LatestMigration(); r.Newest > latest {
		return fmt.Sprintf("at %d; this build, at %d, is older and works with it", r.Newest, latest), nil
	}
	return fmt.Sprintf("at %d, as this build", r.Newest), nil
}

// ofThisBuild returns a check that is not made on a database that is newer than this build, which then cannot judge it.
func ofThisBuild(run check) check {
	return func(ctx context.Context, e *examination) (string, error) {
		r, err := e.inspector.Migrations(ctx, nil)
		if err == nil && r.Newest > app.LatestMigration() {
			return "not compared: the database is newer than this build; use the doctor of the newer build", nil
		} else if err != nil {
			return "", err
		}
		return run(ctx, e)
	}
}

// schema compares the objects in the database with those that this build's migrations make.
func schema(ctx context.Context, e *examination) (string, error) {
	differences, _, err := app.Compare(ctx, e.inspector.Conn(ctx))
	e.differences(differences)
	return "as this build's migrations make it", err
}

// privileges compares the rights of each role with db/privileges.txt.
func privileges(ctx context.Context, e *examination) (string, error) {
	_, differences, err := app.Compare(ctx, e.inspector.Conn(ctx))
	e.differences(differences)
	return "roles, owners and grants are as in db/privileges.txt", err
}

// differences adds differences, the worst first.
func (e *examination) differences(all []app.Difference) {
	for _, d := range all {
		state := Critical
		kind, _, _ := strings.Cut(d.Subject, " ")
		// an unexpected trigger may swallow rows, and functions act with the rights of their owner
		if d.Want == "" && !slices.Contains([]string{"trigger", "owner", "revoked"}, kind) {
			state = Warning
		}
		e.found(state, "%s", d).fix("%s", d.Fix())
	}
	slices.SortStableFunc(e.findings, func(a, b Finding) int { return ranks[b.State] - ranks[a.State] })
	if more := len(e.findings) - maxListed; more > 0 {
		e.findings = e.findings[:maxListed]
		e.found(e.findings[0].State, "and %s more", operator.Counted(more, "difference")).
			fix("`workers migrate repair` lists them")
	}
}

// tables finds what changes how statements on our tables behave, and event types and publishers that differ from this
// build or from a live worker.
func tables(ctx context.Context, e *examination) (string, error) {
	found, err := e.facts.Tables(ctx)
	if err != nil {
		return "", err
	}
	for _, f := range found {
		e.findings = append(e.findings, Finding{State(f.State), f.Problem, f.Fix})
	}
	contracts, err := app.Contracts()
	if err != nil {
		return "", err
	}
	types, err := publish.EventTypes(contracts)
	if err != nil {
		return "", err
	}
	differences, err := e.facts.EventTypes(ctx, doctordb.EventTypesParams{
		Types: types, Generation: int64(e.Generation), DefaultClass: events.DefaultClass, Roles: app.Roles(),
		Register: "`workers migrate up`, or the start of a worker, registers the event types of its build",
		Again: fmt.Sprintf("`SPECTRAL_GENERATION=%d workers migrate up`, with this build, or the start of one of its "+
			"workers, registers them again", e.Generation),
	})
	for _, f := range differences {
		e.findings = append(e.findings, Finding{State(f.State), f.Problem, f.Fix})
	}
	return "statements behave as written, rows are kept, and event types are registered as in this build", err
}

// logins finds logins that may do more than their group does.
func logins(ctx context.Context, e *examination) (string, error) {
	found, err := e.facts.Logins(ctx, doctordb.LoginsParams{Roles: app.Roles(), AtMost: maxListed})
	for _, f := range found {
		e.findings = append(e.findings, Finding{Warning, f.Problem, f.Fix})
	}
	return "each may do what its group may", err
}

// indexes finds those that Postgres does not use, such as what a build that was interrupted leaves.
func indexes(ctx context.Context, e *examination) (string, error) {
	found, err := e.facts.Indexes(ctx)
	for _, i := range found {
		if !i.Valid {
			statement := "reindex"
			if !i.OfConstraint && !app.InSchema(i.Subject) { // what an interrupted build has left
				statement = "drop"
			}
			e.found(Critical, "index %s is invalid: Postgres writes it but does not read it", i.Name).
				fix("as spectral_owner, run `%s index concurrently %s;`", statement, i.Name)
		}
	}
	return operator.Counted(len(found), "valid index"), err
}
