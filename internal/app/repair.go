package app

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"regexp"
	"slices"
	"strings"

	"github.com/jackc/pgerrcode"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"spectral/db"
	"spectral/internal/core/events/infrastructure/postgres/operator"
)

// Differences compares the database with this build. It refuses one that is not migrated to the newest step of this
// build.
func (m *Migrator) Differences(ctx context.Context) ([]Difference, error) {
	newest, err := m.Newest(ctx)
	if err != nil {
		return nil, err
	}
	if newest == nil || newest.Version != LatestMigration() {
		return nil, errors.New("the database is not migrated to this build's newest step: run `workers migrate up`")
	}
	schema, privileges, err := m.Compare(ctx)
	return slices.Concat(schema, privileges), err
}

// Repair makes functions, triggers, policies, row security, owners and privileges what this build's sources say, and
// drops those that are not in them, in one transaction. It returns what it repaired, and what is left with what to do
// about it. It waits for locks as Up does.
func (m *Migrator) Repair(ctx context.Context) (repaired, left []Difference, err error) {
	err = m.retryLocked(ctx, func() error {
		conn, err := pgx.ConnectConfig(ctx, m.config)
		if err != nil {
			return connectCause(err)
		}
		defer func() { _ = conn.Close(context.WithoutCancel(ctx)) }()
		repaired, left, err = repairOn(ctx, conn)
		return err
	})
	return repaired, left, err
}

func repairOn(ctx context.Context, conn *pgx.Conn) (repaired, left []Difference, err error) {
	tx, err := conn.BeginTx(ctx, pgx.TxOptions{BeginQuery: "begin isolation level read committed read write; " +
		operator.FixedSettings + "; set local lock_timeout = '500ms'; set local statement_timeout = 0; set local " +
		"check_function_bodies = off"})
	if err != nil {
		return nil, nil, fmt.Errorf("begin: %w", err)
	}
	defer func() { _ = tx.Rollback(context.WithoutCancel(ctx)) }()
	// no migrator runs at the same time, and no other repair
	if _, err := tx.Exec(ctx, "select pg_advisory_xact_lock($1)", int64(lockID)); err != nil {
		return nil, nil, err
	}
	var mayAct bool
	const isMember = "select coalesce((select pg_has_role(r.oid, 'member') from pg_roles r where r.rolname = $1), true)"
	if err := tx.QueryRow(ctx, isMember, ownerRole).Scan(&mayAct); err != nil {
		return nil, nil, err
	}
	if !mayAct {
		return nil, nil, fmt.Errorf("login %s may not act as %s: repair as the login that migrates",
			conn.Config().User, ownerRole)
	}
	r := repair{ctx: ctx, tx: tx, faults: make(map[string]string)}
	before := r.differences()
	for differences, p := before, access; p <= grant; p++ {
		if p == revoke {
			differences = r.differences() // new objects have no privileges yet
		}
		for _, d := range differences {
			r.do(p, d)
		}
	}
	after := r.differences()
	if r.err != nil {
		return nil, nil, r.err
	}
	for _, d := range before {
		if !slices.ContainsFunc(after, func(a Difference) bool { return a.Subject == d.Subject }) {
			repaired = append(repaired, d)
		}
	}
	for i, d := range after {
		after[i].Do = r.advice(d)
	}
	if err := tx.Commit(ctx); err != nil {
		return nil, nil, fmt.Errorf("commit: %w", err)
	}
	return repaired, after, nil
}

// ownerRole owns our schemas and what is in them.
const ownerRole = "spectral_owner"

type repair struct {
	ctx    context.Context
	tx     pgx.Tx
	faults map[string]string // why a statement for a subject was refused
	err    error             // ends the repair
}

// try executes a statement for a subject as the owner of our objects, or as the login and, if that is refused, as the
// owner. It returns the SQLSTATE of a refusal, whose statement is undone.
func (r *repair) try(subject, statement string, asLogin bool) (refused string) {
	if r.err != nil || statement == "" {
		return ""
	}
	err := pgx.BeginFunc(r.ctx, r.tx, func(tx pgx.Tx) error { // a savepoint
		if !asLogin {
			if _, err := tx.Exec(r.ctx, "set local role "+ownerRole); err != nil {
				return err
			}
		}
		if _, err := tx.Exec(r.ctx, statement); err != nil {
			return err
		}
		_, err := tx.Exec(r.ctx, "set local role none")
		return err
	})
	pg, ok := errors.AsType[*pgconn.PgError](err)
	switch {
	case err == nil:
		delete(r.faults, subject)
		return ""
	case !ok || pg.Code == pgerrcode.LockNotAvailable || pg.Code == pgerrcode.DeadlockDetected:
		r.err = err
		return ""
	case asLogin && pg.Code == pgerrcode.InsufficientPrivilege:
		return r.try(subject, statement, false)
	}
	r.faults[subject] = withEventTriggers(r.ctx, r.tx.QueryRow, err).Error()
	return pg.Code
}

// differences returns those that are left.
func (r *repair) differences() (found []Difference) {
	if r.err == nil {
		objects, lines, err := readCatalogs(r.ctx, r.tx)
		r.err = err
		found = slices.Concat(compare(objects, lines))
	}
	return found
}

// A phase of a repair is tried for all differences before the next begins.
type phase int

const (
	access      phase = iota // give objects back to their owner, and the owner its privileges
	dropAltered              // drop triggers and policies that differ
	functions                // replace functions that differ
	tables                   // create views, triggers and policies, set row security and defaults
	dropUnknown              // drop functions that are not in the sources: triggers do not call them any more
	revoke                   // what is not declared
	grant
)

// do tries what a phase does about a difference. A function whose result or parameter names differ is dropped first.
func (r *repair) do(p phase, d Difference) {
	statement, asLogin := fix(p, d), p == access || p == revoke || p == grant
	refused := r.try(d.Subject, statement, asLogin)
	if refused == pgerrcode.InvalidFunctionDefinition || refused == pgerrcode.WrongObjectType {
		if r.try(d.Subject, "drop routine if exists "+strings.TrimPrefix(d.Subject, "function "), asLogin) == "" {
			r.try(d.Subject, statement, asLogin)
		}
	}
}

// fix returns the statement of a phase for a difference, empty for none.
func fix(p phase, d Difference) string {
	kind, name, _ := strings.Cut(d.Subject, " ")
	is, _, _ := strings.Cut(d.Is, " default ")
	want, value, _ := strings.Cut(d.Want, " default ")
	rule := kind == "trigger" || kind == "policy"
	switch {
	case p == access && slices.Contains([]string{"schema", "owner", "revoked", "role"}, kind),
		p == revoke && d.Want == "", p == grant && d.Want != "":
		return privilegeFix(d)
	case p == dropAltered && kind == "trigger" && strings.Contains(d.Is, " enabled "):
		trigger, _, _ := strings.Cut(name, " on ")
		return "alter table " + d.Table() + " enable trigger " + trigger
	case p == dropAltered && rule && d.Is != "":
		return "drop " + kind + " if exists " + name
	case p == functions && kind == "function" && d.Want != "":
		name, _, _ = strings.Cut(name, "(")
		return functionSource(name)
	case p == tables && rule:
		return d.Want
	case p == tables && kind == "view" && d.Want != "":
		return "create or replace view " + name + strings.TrimPrefix(d.Want, "view")
	case p == tables && kind == "table" && d.Is != "" && d.Want != "" && rowSecurity(d.Is) != rowSecurity(d.Want):
		return "alter table " + name + rowSecurity(d.Want)
	case p == tables && kind == "column" && is == want && value != "":
		return "alter table " + d.Table() + " alter column " + name[len(d.Table())+1:] + " set default " + value
	case p == dropUnknown && kind == "function" && d.Want == "":
		return "drop routine " + name
	}
	return ""
}

func rowSecurity(definition string) string {
	enable, force := "disable", "no force"
	if strings.Contains(definition, " row security") {
		enable = "enable"
	}
	if strings.HasSuffix(definition, " forced") {
		force = "force"
	}
	return " " + enable + " row level security, " + force + " row level security"
}

// privilegeFixes have the SQL that grants a missing line of db/privileges.txt, or revokes an unexpected one, by the
// form of the line. The first form that matches holds; where the SQL is empty, another line has the fix, or there is
// none.
var privilegeFixes = []struct {
	form          *regexp.Regexp
	grant, revoke string
}{
	{regexp.MustCompile(`^owner \S+ of function (.*)$`), "", "alter routine $1 owner to " + ownerRole},
	{regexp.MustCompile(`^owner \S+ of (.*)$`), "", "alter $1 owner to " + ownerRole},
	// no name of ours has these characters, and another's must not end a literal or a statement
	{regexp.MustCompile(`^.*['$;].*$`), "", ""},
	{regexp.MustCompile(`^schema (\S+) owner (\S+)$`), "alter schema $1 owner to $2", ""},
	{regexp.MustCompile(`^default of (\S+): revoke (\w+) on (\w+) from its owner$`), "",
		"alter default privileges for role $1 grant $2 on $3 to $1"},
	{regexp.MustCompile(`^default of (.*): grant (\w+) on (\w+) to (\S+)( with grant option)?$`),
		"alter default privileges for role $1 grant $2 on $3 to $4$5",
		"alter default privileges for role $1 revoke $2 on $3 from $4 cascade"},
	{regexp.MustCompile(`^revoked (.*) on (?:view )?(.*) from its owner (\S+)$`), "", "grant $1 on $2 to $3"},
	{regexp.MustCompile(`^grant (\w+) on the database to (\S+)( with grant option)?$`),
		"do 'begin execute format(''grant $1 on database %I to $2$3'', current_database()); end'",
		"do 'begin execute format(''revoke $1 on database %I from $2 cascade'', current_database()); end'"},
	{regexp.MustCompile(`^grant (.*) on (?:view )?(.*) to (\S+)( with grant option)?$`), "grant $1 on $2 to $3$4",
		"revoke $1 on $2 from $3 cascade"},
	{regexp.MustCompile(`^grant (\S+) to (\S+) (inherit|noinherit) (set|noset)( admin)?$`), `do '
begin execute ''grant $1 to $2'' || case when current_setting(''server_version_num'')::integer >= 160000
  then '' with inherit '' || (''$3'' = ''inherit'') || '', set '' || (''$4'' = ''set'') else '''' end; end'`, `do '
declare v record; begin -- only a grantor can revoke its grant
for v in select m.grantor::regrole::text as grantor from pg_auth_members m
         where m.roleid = ''$1''::regrole and m.member = ''$2''::regrole loop
  execute ''revoke $1 from $2'' || case when current_setting(''server_version_num'')::integer >= 160000
    then '' granted by '' || v.grantor else '''' end || '' cascade'';
end loop; end'`},
	{regexp.MustCompile(`^role (\S+) (.*)$`), `do '
declare v text := ''$2''; begin
if to_regrole(''$1'') is null then create role $1; end if;
select v || coalesce(string_agg('' no'' || w.attribute, ''''), '''') into v from pg_roles r,
  lateral (values (''superuser'', r.rolsuper), (''createrole'', r.rolcreaterole), (''createdb'', r.rolcreatedb),
    (''replication'', r.rolreplication), (''bypassrls'', r.rolbypassrls)) as w(attribute, has)
  where r.rolname = ''$1'' and w.has;
execute ''alter role $1 '' || v; end'`, ""},
}

func privilegeFix(d Difference) string {
	for _, f := range privilegeFixes {
		if f.form.MatchString(d.Subject) {
			if d.Want == "" {
				return f.form.ReplaceAllString(d.Subject, f.revoke)
			}
			return f.form.ReplaceAllString(d.Subject, f.grant)
		}
	}
	return ""
}

// Fix says what to do about a difference: repair the schema, or what a repair cannot do.
func (d Difference) Fix() string {
	for p := access; p <= grant; p++ {
		if fix(p, d) != "" {
			return "`workers migrate repair`"
		}
	}
	return (&repair{}).advice(d)
}

var functionForm = regexp.MustCompile(`(?s)^create function (\w+\.\w+)(\(.*?\bas \$\$.*?\n\$\$);`)

// functionSource returns the statement that creates or replaces a function of db/functions.
func functionSource(name string) string {
	_, file, _ := strings.Cut(name, ".")
	text, _ := fs.ReadFile(db.Functions, "functions/"+file+".sql")
	if form := functionForm.FindStringSubmatch(db.WithoutComments(string(text))); form != nil && form[1] == name {
		return "create or replace function " + form[1] + form[2]
	}
	return ""
}

// advice returns what to do about a difference that is left.
func (r *repair) advice(d Difference) string {
	fault := r.faults[d.Subject]
	kind, name, _ := strings.Cut(d.Subject, " ")
	object, _, _ := strings.Cut(name, " ")
	schemas, roles := privilegeScope()
	switch {
	case kind == "role" && slices.Contains(roles, object), kind == "schema" && slices.Contains(schemas, object),
		strings.Contains(fault, "must be "):
		return strings.TrimPrefix(fault+": ", ": ") + "run `workers migrate repair` as a superuser"
	case fault != "":
		return "refused: " + fault
	case kind == "role" && d.Want == "":
		return "names that begin with spectral_ are ours: rename that role, or drop it"
	case slices.Contains([]string{"grant", "default", "revoked", "owner"}, kind):
		return "it has to be undone by the role that did it, or a superuser"
	case d.Want == "":
		return "if it is ours under another name, rename it back; otherwise move it to another schema: it may slow down " +
			"or refuse what events need"
	case d.Is == "" && slices.Contains([]string{"schema", "table", "column"}, kind):
		return "what it held is gone: restore the database from a backup"
	default:
		return "as " + ownerRole + ", give it the form that it has in db/migrations"
	}
}
