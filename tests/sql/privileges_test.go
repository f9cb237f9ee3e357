package sql_test

import (
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"spectral/db"
	"spectral/internal/app"
	"spectral/tests/pgtest"
)

func TestPrivileges(t *testing.T) {
	conn := pgtest.Conn(t, pgtest.New(t))
	if *update {
		rewritePrivileges(t, conn)
		return
	}
	wantPrivileges(t, conn, nil, nil)
}

// rewritePrivileges keeps the head of the file.
func rewritePrivileges(t *testing.T, conn *pgx.Conn) {
	t.Helper()
	lines, err := app.EffectivePrivileges(deadline(t), conn)
	if err != nil {
		t.Fatal(err)
	}
	head, _, found := strings.Cut(db.Privileges, "\n\n")
	if !found {
		t.Fatal("db/privileges.txt has no head")
	}
	if err := os.WriteFile("../../db/privileges.txt", []byte(head+"\n\n"+strings.Join(lines, "\n")+"\n"), 0o644); err != nil {
		t.Fatal(err)
	}
}

func wantPrivileges(t *testing.T, conn *pgx.Conn, missing, unexpected []string) {
	t.Helper()
	haveMissing, haveUnexpected, err := app.ComparePrivileges(deadline(t), conn)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		what       string
		want, have []string
	}{{"missing", missing, haveMissing}, {"unexpected", unexpected, haveUnexpected}} {
		slices.Sort(c.want)
		if !slices.Equal(c.want, c.have) {
			t.Errorf("%s privileges are\n  %s\nwant\n  %s\nif db/privileges.txt is to change: `make generate`, and read the diff",
				c.what, strings.Join(c.have, "\n  "), strings.Join(c.want, "\n  "))
		}
	}
}

// drift is a migration and the difference it must show up as. In a wanted line the table worlds.*
// stands for each table of that schema.
type drift struct {
	name, migration     string
	missing, unexpected []string
}

func (d drift) run(t *testing.T) {
	t.Helper()
	url := pgtest.New(t)
	migrateMore(t, url, d.migration)
	conn := pgtest.Conn(t, url)
	var unexpected []string
	for _, line := range d.unexpected {
		if !strings.Contains(line, "worlds.*") {
			unexpected = append(unexpected, line)
			continue
		}
		for _, table := range values[string](t, conn, "select tablename::text from pg_tables where schemaname = 'worlds'") {
			unexpected = append(unexpected, strings.ReplaceAll(line, "worlds.*", "worlds."+table))
		}
	}
	wantPrivileges(t, conn, d.missing, unexpected)
}

const asOwner = "set local role spectral_owner;\n"

func TestPrivilegeDrift(t *testing.T) {
	t.Parallel()
	for _, d := range []drift{
		{
			name:      "a grant on several tables",
			migration: asOwner + "grant insert, update on core.outbox, core.event_handled to spectral_worlds",
			unexpected: []string{
				"grant insert on table core.event_handled to spectral_worlds", "grant update on table core.event_handled to spectral_worlds",
				"grant insert on table core.outbox to spectral_worlds", "grant update on table core.outbox to spectral_worlds",
			},
		},
		{
			name:       "a grant on all tables in a schema",
			migration:  asOwner + "grant delete on all tables in schema worlds to spectral_platform",
			unexpected: []string{"grant delete on table worlds.* to spectral_platform"},
		},
		{
			name:       "default privileges in a schema",
			migration:  "alter default privileges in schema worlds grant select on tables to spectral_platform",
			unexpected: []string{"default of postgres in schema worlds: grant select on tables to spectral_platform"},
		},
		{
			name:       "default privileges in a schema, for PUBLIC",
			migration:  asOwner + "alter default privileges in schema core grant execute on functions to public",
			unexpected: []string{"default of spectral_owner in schema core: grant execute on functions to PUBLIC"},
		},
		{
			name:      "default privileges everywhere",
			migration: "alter default privileges for role spectral_owner grant select on tables to spectral_operator, public; alter default privileges grant usage on sequences to spectral_worker",
			unexpected: []string{
				"default of postgres: grant usage on sequences to spectral_worker",
				"default of spectral_owner: grant select on tables to PUBLIC",
				"default of spectral_owner: grant select on tables to spectral_operator",
			},
		},
		{
			name:       "the default default of functions",
			migration:  "alter default privileges for role spectral_owner grant execute on functions to public",
			unexpected: []string{"default of spectral_owner: grant execute on functions to PUBLIC"},
		},
		{
			name:       "a grant on a column",
			migration:  asOwner + "grant select (payload), update (status) on core.outbox to spectral_worlds",
			unexpected: []string{"grant select (payload) on table core.outbox to spectral_worlds", "grant update (status) on table core.outbox to spectral_worlds"},
		},
		{
			name:      "a grant to PUBLIC",
			migration: asOwner + "grant select on core.outbox to public; grant usage on schema worlds to public; grant execute on function core.outbox_publish_many(jsonb) to public",
			unexpected: []string{
				"grant execute on function core.outbox_publish_many(jsonb) to PUBLIC", "grant select on table core.outbox to PUBLIC",
				"grant usage on schema worlds to PUBLIC",
			},
		},
		{
			name:       "a grant option",
			migration:  asOwner + "grant select on core.outbox to spectral_operator with grant option",
			missing:    []string{"grant select on table core.outbox to spectral_operator"},
			unexpected: []string{"grant select on table core.outbox to spectral_operator with grant option"},
		},
		{
			name:      "a revoked grant",
			migration: asOwner + "revoke select on core.outbox from spectral_operator; revoke usage on schema worlds from spectral_worlds",
			missing:   []string{"grant select on table core.outbox to spectral_operator", "grant usage on schema worlds to spectral_worlds"},
		},
		{
			name:      "new objects of another owner",
			migration: "create function core.f(a integer, b text[]) returns integer language sql return 1; create sequence platform.s; grant usage on sequence platform.s to spectral_worlds",
			unexpected: []string{
				"grant execute on function core.f(integer, text[]) to PUBLIC", "grant usage on sequence platform.s to spectral_worlds",
				"owner postgres of function core.f(integer, text[])", "owner postgres of sequence platform.s",
			},
		},
		{
			name:       "a view",
			migration:  asOwner + "create view core.v as select 1 as one; grant select on core.v to spectral_publisher",
			unexpected: []string{"grant select on view core.v to spectral_publisher"},
		},
		{
			name:       "a schema of the owner's",
			migration:  "create schema agents authorization spectral_owner; " + asOwner + "create table agents.t (); grant select on agents.t to public",
			unexpected: []string{"grant select on table agents.t to PUBLIC", "schema agents owner spectral_owner"},
		},
		{
			name:       "goose's table and the database",
			migration:  "grant insert on spectral_goose.goose_db_version to spectral_worker; do $$ begin execute format('grant create on database %I to spectral_worlds', current_database()); end $$",
			unexpected: []string{"grant create on the database to spectral_worlds", "grant insert on table spectral_goose.goose_db_version to spectral_worker"},
		},
		{
			name:       "a changed owner",
			migration:  "alter table core.outbox owner to postgres; alter function core.uuid_v7() owner to postgres",
			unexpected: []string{"owner postgres of function core.uuid_v7()", "owner postgres of table core.outbox"},
		},
		{
			name:       "a changed owner of a schema",
			migration:  "alter schema platform owner to postgres",
			missing:    []string{"schema platform owner spectral_owner"},
			unexpected: []string{"schema platform owner postgres"},
		},
	} {
		t.Run(d.name, func(t *testing.T) {
			t.Parallel()
			d.run(t)
		})
	}
}

// Roles belong to the cluster, so this test runs beside no other: it is not parallel, and undoes
// each step.
func TestPrivilegeDriftOfRoles(t *testing.T) {
	for _, d := range []struct {
		drift
		undo string
	}{
		{drift{
			name: "a group becomes a member", migration: "grant spectral_owner to spectral_worker",
			unexpected: []string{"grant spectral_owner to spectral_worker noinherit set"},
		}, "revoke spectral_owner from spectral_worker"},
		{drift{
			name: "a context joins the other, as its administrator", migration: "grant spectral_worlds to spectral_platform with admin option",
			unexpected: []string{"grant spectral_worlds to spectral_platform inherit set admin"},
		}, "revoke spectral_worlds from spectral_platform"},
		{drift{
			name: "a group joins a role that is not ours", migration: "grant pg_read_all_data to spectral_worlds",
			unexpected: []string{"grant pg_read_all_data to spectral_worlds inherit set"},
		}, "revoke pg_read_all_data from spectral_worlds"},
		{drift{
			name: "a lost membership", migration: "revoke spectral_publisher from spectral_worlds",
			missing: []string{"grant spectral_publisher to spectral_worlds inherit set"},
		}, "grant spectral_publisher to spectral_worlds"},
		{drift{
			name:       "attributes",
			migration:  "alter role spectral_retention login superuser createrole createdb replication bypassrls",
			missing:    []string{"role spectral_retention nologin inherit"},
			unexpected: []string{"role spectral_retention login inherit superuser createrole createdb replication bypassrls"},
		}, "alter role spectral_retention nologin nosuperuser nocreaterole nocreatedb noreplication nobypassrls"},
		{drift{
			name: "a new group", migration: "create role spectral_new; grant select on core.outbox to spectral_new",
			unexpected: []string{"grant select on table core.outbox to spectral_new", "role spectral_new nologin inherit"},
		}, "revoke all on core.outbox from spectral_new; drop role spectral_new"},
		{drift{
			name: "a login of the operator's", migration: "create role spectral_app login in role spectral_worker",
		}, "drop role spectral_app"},
	} {
		t.Run(d.name, func(t *testing.T) {
			url := pgtest.New(t)
			conn := pgtest.Conn(t, url)
			defer exec(t, conn, d.undo)
			migrateMore(t, url, d.migration)
			wantPrivileges(t, conn, d.missing, d.unexpected)
		})
	}
}
