package doctor

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"spectral/internal/app"
	"spectral/internal/core/events"
	"spectral/internal/core/events/infrastructure/postgres/doctordb"
	"spectral/internal/core/events/infrastructure/postgres/publish"
)

// literal quotes a text as SQL.
func literal(s string) string { return "'" + strings.ReplaceAll(s, "'", "''") + "'" }

// migrations says how far the schema is migrated, and finds what makes the next migration fail: a step that is not
// recorded, and a record that the migrating login does not own.
func migrations(ctx context.Context, e *examination) (string, error) {
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

// newer returns a detail if the database is newer than this build, which then cannot judge its schema.
func (e *examination) newer(ctx context.Context) (detail string, err error) {
	r, err := e.inspector.Migrations(ctx, nil)
	if err == nil && r.Newest > app.LatestMigration() {
		detail = "not compared: the database is newer than this build; use the doctor of the newer build"
	}
	return detail, err
}

// schema compares the objects in the database with those that this build's migrations make.
func schema(ctx context.Context, e *examination) (string, error) {
	if detail, err := e.newer(ctx); detail != "" || err != nil {
		return detail, err
	}
	differences, _, err := app.Compare(ctx, e.inspector.Conn(ctx))
	e.differences(differences)
	return "as this build's migrations make it", err
}

// privileges compares the rights of each role with db/privileges.txt.
func privileges(ctx context.Context, e *examination) (string, error) {
	if detail, err := e.newer(ctx); detail != "" || err != nil {
		return detail, err
	}
	_, differences, err := app.Compare(ctx, e.inspector.Conn(ctx))
	e.differences(differences)
	return "each role is, owns and may do what db/privileges.txt says", err
}

// differences adds differences, the worst first.
func (e *examination) differences(all []app.Difference) {
	const repair = "`workers migrate repair`"
	for _, d := range all {
		state := Critical
		kind, _, _ := strings.Cut(d.Subject, " ")
		// an unexpected trigger may swallow rows, and functions act with the rights of their owner
		if d.Want == "" && !slices.Contains([]string{"trigger", "owner", "revoked"}, kind) {
			state = Warning
		}
		e.found(state, "%s", d).fix(repair)
	}
	slices.SortStableFunc(e.findings, func(a, b Finding) int { return ranks[b.State] - ranks[a.State] })
	if more := len(e.findings) - maxListed; more > 0 {
		e.findings = e.findings[:maxListed]
		e.found(e.findings[0].State, "and %s more", app.Counted(more, "difference")).fix(repair)
	}
}

// tables finds what changes how statements on our tables behave, and event types that are not registered as this build
// has them.
func tables(ctx context.Context, e *examination) (string, error) {
	found, err := e.facts.Tables(ctx)
	if err != nil {
		return "", err
	}
	for _, t := range found {
		switch t.Kind {
		case "rule":
			e.found(Critical, "rule %s on %s rewrites statements: events may be lost, or never settle", t.Object, t.TableName).
				fix("as spectral_owner, run `drop rule %s on %s;`; then restart the workers, whose sessions keep old plans",
					t.Object, t.TableName)
		case "unlogged":
			e.found(Critical, "%s is unlogged: a crash of the server empties it", t.TableName).
				fix("as spectral_owner, run `alter table %s set logged;`", t.TableName)
		case "reference":
			e.found(Critical, "foreign key %s of %s refers to %s: rows past their retention cannot be deleted", t.Detail,
				t.Object, t.TableName).fix("as %s, run `alter table %s drop constraint %s;`", t.Owner, t.Object, t.Detail)
		case "unenforced":
			e.found(Critical, "foreign keys of %s are not enforced, because their triggers are disabled: %s", t.TableName,
				t.Detail).fix("as a superuser, run `alter table %s enable trigger all;`; then look for rows that the foreign "+
				"keys would have refused", t.TableName)
		case "event trigger":
			when := t.Detail
			if when == "login" {
				when = "each login, that of workers too"
			}
			e.found(Note, "event trigger %s of %s runs %s at %s: it may refuse or alter migrations and repairs", t.Object,
				t.Owner, t.TableName, when).fix("read what the function does; to migrate without it, as a superuser, run `alter "+
				"event trigger %s disable;`", t.Object)
		case "replica identity":
			e.found(Critical, "%s is published (%s) but has no replica identity: each update of it fails, so no event settles",
				t.TableName, t.Object).
				fix("as spectral_owner, run `alter table %s replica identity %s;`", t.TableName, t.Detail)
		}
	}
	return "statements behave as written, rows are kept, and event types are registered as in this build",
		e.eventTypes(ctx)
}

// eventTypes finds registered event types and publishers that differ from this build or from a live worker.
func (e *examination) eventTypes(ctx context.Context) error {
	contracts, err := app.Contracts()
	if err != nil {
		return err
	}
	types, err := publish.EventTypes(contracts)
	if err != nil {
		return err
	}
	const register = "`workers migrate up`, or the start of a worker, registers the event types of its build"
	again := fmt.Sprintf("`SPECTRAL_GENERATION=%d workers migrate up`, with this build, or the start of one of its "+
		"workers, registers them again", e.Generation)
	found, err := e.facts.EventTypes(ctx, doctordb.EventTypesParams{Types: types, Generation: int64(e.Generation),
		DefaultClass: events.DefaultClass, Roles: app.Roles()})
	for _, t := range found {
		switch t.Kind {
		case "none":
			e.found(Critical, "no event type is registered: all publishing is refused (SP016)").fix(register)
		case "missing":
			e.found(Critical, "%s is in this build but not registered: publishing it is refused (SP016)", t.Subject).
				fix(register)
		case "ignored":
			e.found(Critical, "%s is registered as not consumed in generation %d, although live workers of it handle the type: "+
				"what is published settles unhandled and is lost", t.Subject, t.Generation).fix("as spectral_owner, run `update "+
				"core.event_types set consumed = true, consumed_in = consumed_in || jsonb_build_object('%d', true) where "+
				"event_type = %s;`", t.Generation, literal(t.Subject))
		case "dropped":
			fix := again
			if e.Generation == 0 {
				fix = "as spectral_owner, run `update core.event_types set consumed = true where event_type = " +
					literal(t.Subject) + ";`; then restart the workers"
			}
			e.found(Critical, "%s is registered as not consumed, although this build handles the type: what is published "+
				"settles unhandled and is lost", t.Subject).fix("%s", fix)
		case "refused", "different":
			state := Warning
			if t.Kind == "refused" {
				state = Critical
			}
			e.found(state, "%s is not registered as this build, of generation %d, has it: %s", t.Subject, e.Generation,
				t.Detail).fix("%s; if the difference comes back, another build runs as this generation: give one of them another "+
				"number", again)
		case "unsure":
			by := "no generation"
			if t.Generation > 0 {
				by = fmt.Sprintf("generation %d", t.Generation)
			}
			e.found(Note, "%s is not registered as this build has it: %s; it was registered by %s", t.Subject, t.Detail, by).
				fix("to learn whether that is right, put this build's generation for N in `SPECTRAL_GENERATION=N workers " +
					"doctor tables`")
		case "unknown generation":
			e.found(Note, "%s: registered by generation %d, which does not exist; no lower generation replaces that",
				t.Subject, t.Generation).fix("if generation %d will not be started: as spectral_owner, run `update "+
				"core.event_types set registered_by = 0 where registered_by = %[1]d;`, then `workers migrate up` with the "+
				"build that runs", t.Generation)
		case "no source":
			e.found(Critical, "%s may not publish as %s: its events are refused (SP017)", t.Subject, t.Source).fix(
				"as spectral_owner, run `insert into core.publisher_sources (role_name, source) values (%s, %s);`",
				literal(t.Subject), literal(t.Source))
		case "extra source", "stale source":
			state, further := Warning, ""
			if t.Kind == "stale source" {
				state, further = Note, "; the role does not exist, but one of that name could publish"
			}
			e.found(state, "%s may publish as %s, which this build does not give it%s", t.Subject, t.Source, further).fix(
				"as spectral_owner, run `delete from core.publisher_sources where role_name = %s and source = %s;`",
				literal(t.Subject), literal(t.Source))
		}
	}
	return err
}

// logins finds logins that may do more than their group does.
func logins(ctx context.Context, e *examination) (string, error) {
	if detail, err := e.newer(ctx); detail != "" || err != nil {
		return detail, err
	}
	found, err := e.facts.Logins(ctx, doctordb.LoginsParams{Roles: app.Roles(), AtMost: maxListed})
	for _, l := range found {
		switch l.Kind {
		case "own privilege":
			e.found(Warning, "role %s has %s on %s by itself, not through its group", l.Role, l.Privileges, l.Object).fix(
				"as spectral_owner, run `revoke %s from %s cascade;`; then grant it the group that it needs", l.Revoke, l.Role)
		case "member":
			above, who := l.Above, "as the login that migrates"
			if l.Migrates {
				above += ", which migrates"
			}
			if l.Object != "" {
				above += ", through " + l.Object
			}
			if l.Grantor != "" {
				who = "as a superuser"
			}
			if l.Grantor != "" && l.Grantor != "*" {
				who += " or " + l.Grantor
			}
			e.found(Warning, "login %s is a member of %s: it may rewrite and erase events", l.Role, above).
				fix("%s, run `%s`", who, l.Revoke)
		case "superuser":
			e.found(Warning, "login %s, a member of %s, is a superuser: nothing is protected from it", l.Role, l.Above).
				fix("as a superuser, run `alter role %s nosuperuser;`", l.Role)
		}
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
	return app.Counted(len(found), "valid index"), err
}
