package app

import (
	"cmp"
	"context"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"
)

// PrivilegeDifference is something that one of our roles is, owns or may do otherwise than db/privileges.txt says.
type PrivilegeDifference struct {
	// Missing is a line of db/privileges.txt that the database does not have, Unexpected one that it has beyond; both: the same thing in two ways.
	Missing, Unexpected string
	// By is who may make up for it.
	By string
	// Cure is what makes up for it: SQL, or, if it begins with "workers ", a command.
	Cure string
}

// Who may execute a cure.
const (
	byOwner    = "spectral_owner"
	byMigrator = "the login that migrates"
	bySuper    = "a superuser"
)

// membership is how a role is a member of another one by one grantor.
type membership struct {
	Group, Member, Grantor string
	Inherit, Set, Admin    bool
}

// privilegeCures knows the database that is to be cured.
type privilegeCures struct {
	version     int // of the server
	database    string
	memberships []membership
}

// firstGranted is the version from which a membership has options, and grantors, of its own.
const firstGranted = 160000

// DiffPrivileges is [ComparePrivileges] with what to do about each difference, in the order in which it is to be done.
func DiffPrivileges(ctx context.Context, conn *pgx.Conn) ([]PrivilegeDifference, error) {
	effective, err := EffectivePrivileges(ctx, conn)
	if err != nil {
		return nil, err
	}
	declared := declaredPrivileges()
	renamed, effective, err := undoRenames(ctx, conn, declared, effective)
	if err != nil {
		return nil, err
	}
	missing, unexpected := without(declared, effective), without(effective, declared)
	if len(missing)+len(unexpected) == 0 {
		return renamed, nil
	}
	var c privilegeCures
	err = conn.QueryRow(ctx, "select pg_catalog.current_setting('server_version_num')::pg_catalog.int4, pg_catalog.quote_ident(pg_catalog.current_database())").Scan(&c.version, &c.database)
	if err != nil {
		return nil, fmt.Errorf("read privileges: %w", oneLine(err))
	}
	rows, err := conn.Query(ctx, `select pg_catalog.pg_get_userbyid(m.roleid)::pg_catalog.text, pg_catalog.pg_get_userbyid(m.member)::pg_catalog.text, pg_catalog.quote_ident(pg_catalog.pg_get_userbyid(m.grantor)),
		coalesce((pg_catalog.to_jsonb(m) ->> 'inherit_option')::pg_catalog.bool, r.rolinherit), coalesce((pg_catalog.to_jsonb(m) ->> 'set_option')::pg_catalog.bool, true), m.admin_option
		from pg_catalog.pg_auth_members m join pg_catalog.pg_roles r on r.oid = m.member order by 1, 2, 3`)
	if err != nil {
		return nil, fmt.Errorf("read memberships: %w", oneLine(err))
	}
	if c.memberships, err = pgx.CollectRows(rows, pgx.RowToStructByPos[membership]); err != nil {
		return nil, fmt.Errorf("read memberships: %w", oneLine(err))
	}
	return append(renamed, c.of(missing, unexpected)...), nil
}

// undoRenames finds roles of ours that are missing and whose privileges another role has, most of them at least: somebody has renamed them. It returns these, and
// the lines as they are once that is taken back.
func undoRenames(ctx context.Context, conn *pgx.Conn, declared, effective []string) (renamed []PrivilegeDifference, lines []string, err error) {
	role := func(name string, lines []string) string {
		i := slices.IndexFunc(lines, func(line string) bool { return strings.HasPrefix(line, "role "+name+" ") })
		if i < 0 {
			return ""
		}
		return lines[i]
	}
	missing := slices.DeleteFunc(Roles(), func(name string) bool { return role(name, effective) != "" })
	if len(missing) == 0 {
		return nil, effective, nil
	}
	rows, err := conn.Query(ctx, `select r.rolname from pg_catalog.pg_roles r where not r.rolcanlogin and r.rolname <> all ($1) and exists (select from pg_catalog.pg_shdepend d
		where d.refclassid = 'pg_catalog.pg_authid'::pg_catalog.regclass and d.refobjid = r.oid and d.dbid = (select b.oid from pg_catalog.pg_database b where b.datname = pg_catalog.current_database())) order by 1 limit 50`, Roles())
	if err != nil {
		return nil, nil, fmt.Errorf("read roles: %w", oneLine(err))
	}
	others, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		return nil, nil, fmt.Errorf("read roles: %w", oneLine(err))
	}
	for _, name := range missing {
		should := slices.DeleteFunc(slices.Clone(declared), func(line string) bool {
			return !slices.Contains(strings.Fields(line), name) || strings.HasPrefix(line, "role ")
		})
		for _, other := range others {
			with, err := privilegesOf(ctx, conn, other)
			if err != nil {
				return nil, nil, err
			}
			was := role(other, with)
			for i, line := range with {
				with[i] = rename(line, other, name)
			}
			if 2*len(without(should, with)) >= len(should) {
				continue
			}
			renamed = append(renamed, PrivilegeDifference{Missing: role(name, declared), Unexpected: was, By: byMigrator,
				Cure: "alter role " + pgx.Identifier{other}.Sanitize() + " rename to " + name + ";"})
			effective = without(effective, []string{was})
			for i, line := range effective {
				effective[i] = rename(line, other, name)
			}
			for _, line := range with {
				if slices.Contains(strings.Fields(line), name) && !slices.Contains(effective, line) {
					effective = append(effective, line)
				}
			}
			break
		}
	}
	return renamed, slices.DeleteFunc(effective, func(line string) bool { return strings.HasPrefix(line, "owner spectral_owner of ") }), nil
}

// rename makes a line about one role that about another one.
func rename(line, from, to string) string {
	words := strings.Split(line, " ")
	for i, word := range words {
		if name := strings.TrimRight(word, ",:"); name == from {
			words[i] = to + word[len(name):]
		}
	}
	return strings.Join(words, " ")
}

// of pairs lines that speak of the same thing, and cures them.
func (c privilegeCures) of(missing, unexpected []string) (differences []PrivilegeDifference) {
	rest := slices.DeleteFunc(slices.Clone(unexpected), ofStranger)
	for _, line := range missing {
		d := PrivilegeDifference{Missing: line}
		if i := slices.IndexFunc(rest, func(other string) bool { return privilegeSubject(other) == privilegeSubject(line) }); i >= 0 {
			d.Unexpected = rest[i]
			rest = slices.Delete(rest, i, i+1)
		}
		differences = append(differences, d)
	}
	for _, line := range rest {
		differences = append(differences, PrivilegeDifference{Unexpected: line})
	}
	kinds := []string{"role", "member", "schema", "owner", "revoked", "default", "grant", "row", "policy"}
	rank := func(d PrivilegeDifference) int {
		if kind := privilegeKind(d.line()); kind != "revoked" || !strings.Contains(d.line(), " on schema ") {
			return 2*slices.Index(kinds, kind) + 1
		}
		return 2 * slices.Index(kinds, "revoked") // without which nothing in it is found
	}
	slices.SortStableFunc(differences, func(a, b PrivilegeDifference) int { // what others stand on first
		return cmp.Or(rank(a)-rank(b), cmp.Compare(a.line(), b.line()))
	})
	cured := differences[:0]
	for _, d := range differences {
		if d.By, d.Cure = c.cure(d); d.Cure != "" {
			cured = append(cured, d)
		}
	}
	return cured
}

// objectLine is of a line about an object that may be one of our schemas' own.
var objectLine = regexp.MustCompile(` (?:on|of) (table|view|materialized view|sequence|function) ([a-z]+\..*?)(?: to \S+(?: with grant option)?| from its owner .*)?$`)

// ofStranger says whether a line is about an object that is not of this build's schema: the cure of that is to take it away.
func ofStranger(line string) bool {
	words := objectLine.FindStringSubmatch(line)
	if words == nil {
		return false
	}
	kind := words[1]
	if kind == "view" || kind == "materialized view" || kind == "sequence" {
		kind = "table"
	}
	return !slices.Contains(SchemaObjects(), kind+" "+words[2])
}

func (d PrivilegeDifference) line() string { return cmp.Or(d.Missing, d.Unexpected) }

const grantable = " with grant option"

// privilegeKind is what a line speaks of: its first word, but for memberships.
func privilegeKind(line string) string {
	kind, rest, _ := strings.Cut(line, " ")
	if words := strings.Fields(rest); kind == "grant" && words[1] == "to" {
		return "member"
	}
	return kind
}

// privilegeSubject is the same of two lines that cannot both hold.
func privilegeSubject(line string) string {
	words := strings.Fields(line)
	switch privilegeKind(line) {
	case "role", "schema":
		return strings.Join(words[:2], " ")
	case "member", "row", "policy":
		return strings.Join(words[:4], " ")
	case "owner":
		_, object, _ := strings.Cut(line, " of ")
		return "owner of " + object
	default:
		return strings.TrimSuffix(line, grantable)
	}
}

// cure is empty of what the cure of something else cures.
func (c privilegeCures) cure(d PrivilegeDifference) (by, sql string) {
	words := strings.Fields(d.line())
	switch privilegeKind(d.line()) {
	case "role":
		return roleCure(d, words[1])
	case "member":
		return c.memberCure(d, words[1], words[3])
	case "schema":
		switch {
		case d.Missing == "":
			return byOwner, "alter schema " + words[1] + " owner to session_user;"
		case d.Unexpected == "":
			return byMigrator, "workers migrate show 'schema " + words[1] + `' | psql --set=ON_ERROR_STOP=1 "$DATABASE_URL"`
		}
		return bySuper, "alter schema " + words[1] + " owner to " + words[3] + ";"
	case "owner":
		owner := "spectral_owner"
		if d.Missing != "" {
			owner = words[1]
		}
		return bySuper, "alter " + strings.Join(words[3:], " ") + " owner to " + owner + ";"
	case "revoked":
		what, owner, _ := strings.Cut(strings.TrimPrefix(d.Unexpected, "revoked "), " from its owner ")
		return owner, c.onObject("grant " + what + " to " + owner + ";")
	case "default":
		return defaultCure(d)
	case "row":
		table, _, _ := strings.Cut(strings.Join(words[3:], " "), " ")
		switch {
		case d.Missing == "":
			return byOwner, "alter table " + table + " disable row level security, no force row level security;"
		case strings.HasSuffix(d.Missing, " forced"):
			return byOwner, "alter table " + table + " enable row level security, force row level security;"
		}
		return byOwner, "alter table " + table + " enable row level security, no force row level security;"
	case "policy":
		if d.Missing == "" {
			return byOwner, "drop policy " + words[1] + " on " + words[3] + ";"
		}
		return "the owner", "workers migrate show 'policy " + words[1] + " of " + words[3] + `' | psql --set=ON_ERROR_STOP=1 "$DATABASE_URL"`
	default:
		return c.grantCure(d)
	}
}

// roleCure gives a role back what it is declared to be.
func roleCure(d PrivilegeDifference, role string) (by, sql string) {
	attributes := func(line string) []string {
		if line == "" {
			return nil
		}
		return strings.Fields(line)[2:]
	}
	declared, effective := attributes(d.Missing), attributes(d.Unexpected)
	switch {
	case d.Unexpected == "":
		return byMigrator, "create role " + role + " " + strings.Join(declared, " ") + ";"
	case d.Missing == "": // the name is ours, what it may do may be meant
		return byMigrator, "alter role " + role + " rename to formerly_" + role + ";"
	}
	by = byMigrator
	change := without(declared, effective)
	for _, attribute := range without(effective, declared) {
		switch attribute {
		case "login", "nologin", "inherit", "noinherit": // declared is the other one
		default:
			change = append(change, "no"+attribute)
			if attribute != "createrole" && attribute != "createdb" {
				by = bySuper
			}
		}
	}
	return by, "alter role " + role + " " + strings.Join(change, " ") + ";"
}

// memberCure goes by grantor from PostgreSQL 16 on: what one has granted another one does not take back. Before, whether a member
// inherits is its own attribute, whose line has a cure of its own.
func (c privilegeCures) memberCure(d PrivilegeDifference, group, member string) (by, sql string) {
	options := strings.Fields(d.Missing)
	has := func(option string) bool { return slices.Contains(options, option) }
	what, to := "grant "+group, " to "+member
	if c.version >= firstGranted {
		to += fmt.Sprintf(" with inherit %t, set %t", has("inherit"), has("set"))
	}
	if d.Unexpected == "" {
		return byMigrator, what + to + ";"
	}
	var statements, grantors []string
	for _, m := range c.memberships {
		if m.Group != group || m.Member != member {
			continue
		}
		granted := ""
		if c.version >= firstGranted {
			granted = " granted by " + m.Grantor
		}
		before := len(statements)
		switch {
		case d.Missing == "":
			statements = append(statements, "revoke "+group+" from "+member+granted+" cascade;")
		case m.Admin && !has("admin"):
			statements = append(statements, "revoke admin option for "+group+" from "+member+granted+" cascade;")
		}
		if d.Missing != "" && c.version >= firstGranted && (m.Inherit != has("inherit") || m.Set != has("set")) {
			statements = append(statements, what+to+granted+";")
		}
		if len(statements) > before && !slices.Contains(grantors, m.Grantor) {
			grantors = append(grantors, m.Grantor)
		}
	}
	if c.version >= firstGranted && len(grantors) == 1 {
		return "a superuser, or as " + grantors[0], strings.Join(statements, " ")
	} else if c.version >= firstGranted {
		return bySuper, strings.Join(statements, " ")
	}
	return byMigrator, strings.Join(statements, " ")
}

// defaultCure is of a line "default of R [in schema S]: grant P on K to T [with grant option]", or "default of R: revoke P on K from its owner".
func defaultCure(d PrivilegeDifference) (by, sql string) {
	head, grant, _ := strings.Cut(strings.TrimPrefix(d.line(), "default of "), ": ")
	role, schema, _ := strings.Cut(head, " in schema ")
	if schema != "" {
		schema = " in schema " + schema
	}
	change := strings.Replace(grant, " to PUBLIC", " to public", 1) // and its option, if it is to have that
	if what, revoked := strings.CutPrefix(grant, "revoke "); revoked {
		change = "grant " + strings.TrimSuffix(what, " from its owner") + " to " + role
	} else if d.Unexpected != "" {
		change = revocation(grant, d.Missing != "")
	}
	return role, "alter default privileges for role " + role + schema + " " + change + ";"
}

// grantCure is of what is granted on objects.
func (c privilegeCures) grantCure(d PrivilegeDifference) (by, sql string) {
	by = byOwner
	line := d.line()
	if strings.Contains(line, " on the database to ") || strings.Contains(line, " on table spectral_goose.goose_db_version to ") {
		by = "its owner, " + byMigrator
	}
	if d.Unexpected == "" || d.Missing != "" && strings.HasSuffix(d.Missing, grantable) {
		return by, c.onObject(GrantStatement(d.Missing))
	}
	return by, c.onObject(revocation(d.Unexpected, d.Missing != "") + ";")
}

// onObject names an object that a line speaks of as SQL does.
func (c privilegeCures) onObject(sql string) string {
	for object, name := range map[string]string{
		" on the database ": " on database " + c.database + " ",
		" on view ":         " on table ", " on materialized view ": " on table ",
	} {
		sql = strings.Replace(sql, object, name, 1)
	}
	return sql
}

// revocation takes back a grant, or only that it may be granted further; and what was granted by that.
func revocation(grant string, optionOnly bool) string {
	what, option := strings.CutSuffix(strings.TrimPrefix(grant, "grant "), grantable)
	revoke := "revoke "
	if optionOnly {
		revoke += "grant option for "
	}
	at := strings.LastIndex(what, " to ")
	grantee := what[at+len(" to "):]
	if grantee == "PUBLIC" {
		grantee = "public"
	}
	revoke += what[:at] + " from " + grantee
	if option {
		revoke += " cascade"
	}
	return revoke
}

// Roles are the names of our roles, as db/privileges.txt has them.
func Roles() []string {
	_, roles := privilegeScope(declaredPrivileges())
	return roles
}
