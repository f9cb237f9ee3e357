package sql_test

import (
	"log/slog"
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
		_, lines, err := app.ReadCatalogs(deadline(t), conn)
		must(t, err)
		rewrite(t, "privileges.txt", db.Privileges, strings.Join(lines, "\n")+"\n")
		return
	}
	wantPrivileges(t, conn, nil, nil)
}

// rewrite writes what a file of db has behind its head.
func rewrite(t *testing.T, file, old, rest string) {
	t.Helper()
	head, _, found := strings.Cut(old, "\n\n")
	if !found {
		t.Fatalf("db/%s has no head", file)
	}
	must(t, os.WriteFile("../../db/"+file, []byte(head+"\n\n"+rest), 0o644))
}

func wantPrivileges(t *testing.T, conn *pgx.Conn, missing, unexpected []string) {
	t.Helper()
	_, effective, err := app.ReadCatalogs(deadline(t), conn)
	if err != nil {
		t.Fatal(err)
	}
	_, lines, _ := strings.Cut(db.Privileges, "\n\n")
	declared := strings.Split(strings.TrimSpace(lines), "\n")
	without := func(lines, others []string) []string {
		return slices.DeleteFunc(slices.Clone(lines), func(line string) bool { return slices.Contains(others, line) })
	}
	haveMissing, haveUnexpected := without(declared, effective), without(effective, declared)
	for _, c := range []struct {
		what       string
		want, have []string
	}{{"missing", missing, haveMissing}, {"unexpected", unexpected, haveUnexpected}} {
		slices.Sort(c.want)
		if !slices.Equal(c.want, c.have) {
			t.Errorf("%s privileges are\n  %s\nwant\n  %s\nif db/privileges.txt is to change: `make generate`, and read the "+
				"diff",
				c.what, strings.Join(c.have, "\n  "), strings.Join(c.want, "\n  "))
		}
	}
}

const asOwner = "set local role spectral_owner;\n"

// What migrations grant, own or make a default beyond db/privileges.txt is named, and what they lack.
func TestPrivilegeDrift(t *testing.T) {
	t.Parallel()
	at := pgtest.New(t)
	m := migrator(t, at, steps(t, map[string]string{"99999_core_more.sql": strings.Join([]string{
		"-- +goose Up\n-- +goose StatementBegin\nreset role",
		asOwner + "grant select (payload), update (status) on core.outbox to spectral_worlds; grant select on core.outbox " +
			"to public",
		asOwner + "grant select on core.event_handled to spectral_operator with grant option",
		asOwner + "revoke select on core.outbox from spectral_operator; revoke usage on schema worlds from spectral_worlds",
		"grant insert on spectral_goose.goose_db_version to spectral_worker",
		"do $$ begin execute format('grant create on database %I to spectral_worlds', current_database()); end $$",
		"create function core.f(a integer, b text[]) returns integer language sql return 1",
		"create sequence platform.s; grant usage on sequence platform.s to spectral_worlds",
		"create schema agents authorization spectral_owner; alter schema platform owner to postgres",
		"alter default privileges in schema worlds grant select on tables to spectral_platform",
		asOwner + "alter default privileges in schema core grant execute on functions to public",
		"-- +goose StatementEnd\n-- +goose Down\nselect 1;",
	}, ";\nreset role;\n")}), slog.New(slog.DiscardHandler))
	if _, err := m.Up(deadline(t), pgtest.Generation); err != nil {
		t.Fatal(err)
	}
	wantPrivileges(t, pgtest.Conn(t, at), []string{"grant select on table core.event_handled to spectral_operator",
		"grant select on table core.outbox to spectral_operator", "grant usage on schema worlds to spectral_worlds",
		"schema platform owner spectral_owner"}, []string{
		"default of postgres in schema worlds: grant select on tables to spectral_platform",
		"default of spectral_owner in schema core: grant execute on functions to PUBLIC",
		"grant create on the database to spectral_worlds", "grant execute on function core.f(integer, text[]) to PUBLIC",
		"grant insert on table spectral_goose.goose_db_version to spectral_worker",
		"grant select (payload) on table core.outbox to spectral_worlds",
		"grant select on table core.event_handled to spectral_operator with grant option",
		"grant select on table core.outbox to PUBLIC", "grant update (status) on table core.outbox to spectral_worlds",
		"grant usage on sequence platform.s to spectral_worlds", "owner postgres of function core.f(integer, text[])",
		"owner postgres of sequence platform.s", "schema agents owner spectral_owner", "schema platform owner postgres",
	})
}

// Roles belong to the cluster: this test runs beside no other, and undoes what it does. A login of the operator's is no
// drift.
func TestPrivilegeDriftOfRoles(t *testing.T) {
	conn := pgtest.Conn(t, pgtest.New(t))
	defer exec(t, conn, `revoke spectral_owner from spectral_worker; revoke spectral_worlds from spectral_platform;
		revoke pg_read_all_data from spectral_worlds; grant spectral_publisher to spectral_worlds;
		alter role spectral_retention nologin nosuperuser nocreaterole nocreatedb noreplication nobypassrls;
		revoke all on core.outbox from spectral_new; drop role spectral_new, spectral_app`)
	exec(t, conn, `grant spectral_owner to spectral_worker; grant spectral_worlds to spectral_platform with admin option;
		grant pg_read_all_data to spectral_worlds; revoke spectral_publisher from spectral_worlds;
		alter role spectral_retention login superuser createrole createdb replication bypassrls;
		create role spectral_new; grant select on core.outbox to spectral_new;
		create role spectral_app login in role spectral_worker`)
	wantPrivileges(t, conn,
		[]string{"grant spectral_publisher to spectral_worlds inherit set", "role spectral_retention nologin inherit"},
		[]string{"grant pg_read_all_data to spectral_worlds inherit set",
			"grant select on table core.outbox to spectral_new",
			"grant spectral_owner to spectral_worker noinherit set",
			"grant spectral_worlds to spectral_platform inherit set admin", "role spectral_new nologin inherit",
			"role spectral_retention login inherit superuser createrole createdb replication bypassrls"})
}
