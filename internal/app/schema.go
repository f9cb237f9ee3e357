package app

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"sync"

	"github.com/jackc/pgx/v5"

	"spectral/db"
)

// SchemaObject is an object of our schemas, as read from the catalogs.
type SchemaObject struct {
	Subject    string // its kind and name, to be used in SQL: "trigger outbox_notify on core.outbox"
	Definition string // in one line; the hash of a function
}

// FixedSettings are the settings under which every server prints definitions alike, whatever the database or the login
// has set. Only types of pg_catalog are printed without a schema.
const FixedSettings = `set local search_path = pg_catalog; set local timezone = 'UTC'; set local datestyle = 'ISO, MDY';
set local intervalstyle = 'postgres'; set local bytea_output = 'hex'; set local extra_float_digits = 1;
set local quote_all_identifiers = off; set local standard_conforming_strings = on`

// inCatalogs calls read with one snapshot of the catalogs. The connection may be any login's, and must not be in a
// transaction.
func inCatalogs[T any](ctx context.Context, conn *pgx.Conn, read func(context.Context, pgx.Tx) (T, error)) (found T, err error) {
	tx, err := conn.BeginTx(ctx, pgx.TxOptions{BeginQuery: "begin isolation level repeatable read read only; " + FixedSettings})
	if err == nil {
		defer func() { _ = tx.Rollback(context.WithoutCancel(ctx)) }()
		found, err = read(ctx, tx)
	}
	if err != nil {
		return found, fmt.Errorf("read catalogs: %w", oneLine(err))
	}
	return found, nil
}

// ReadSchema reads our schemas from the catalogs, in a fixed order.
func ReadSchema(ctx context.Context, conn *pgx.Conn) ([]SchemaObject, error) {
	return inCatalogs(ctx, conn, readSchema)
}

func readSchema(ctx context.Context, tx pgx.Tx) ([]SchemaObject, error) {
	schemas, _ := privilegeScope(declaredPrivileges())
	rows, err := tx.Query(ctx, effectiveSchema, schemas)
	if err != nil {
		return nil, err
	}
	objects, err := pgx.CollectRows(rows, pgx.RowToStructByPos[SchemaObject])
	for i, o := range objects {
		if strings.HasPrefix(o.Subject, "function ") {
			objects[i].Definition = hashOf(o.Definition)
		}
	}
	return objects, err
}

// hashOf returns the hash of a function's definition. It sorts the SET clauses, of which Postgres keeps the order.
func hashOf(definition string) string {
	head, body, _ := strings.Cut(definition, "\nAS $")
	lines := strings.Split(head, "\n")
	slices.SortStableFunc(lines, func(a, b string) int {
		if !strings.HasPrefix(a, " SET ") || !strings.HasPrefix(b, " SET ") {
			return 0
		}
		return strings.Compare(a, b)
	})
	sum := sha256.Sum256([]byte(strings.Join(lines, "\n") + "\nAS $" + body))
	return hex.EncodeToString(sum[:8])
}

// WriteSchema returns a schema as db/schema.txt has it, below its head.
func WriteSchema(objects []SchemaObject) string {
	var text strings.Builder
	for _, o := range objects {
		text.WriteString(o.Subject + ": " + o.Definition + "\n")
	}
	return text.String()
}

// declaredSchema returns the schema of this build, by subject.
var declaredSchema = sync.OnceValue(func() map[string]string {
	declared := make(map[string]string)
	for line := range strings.Lines(db.Schema) {
		if subject, definition, found := strings.Cut(strings.TrimSpace(line), ": "); found && line[0] != '#' {
			declared[subject] = definition
		}
	}
	return declared
})

// InSchema reports whether an object is part of this build's schema.
func InSchema(subject string) bool {
	_, is := declaredSchema()[subject]
	return is
}

// Difference is a difference between a database and this build.
type Difference struct {
	Subject  string // an object of db/schema.txt, or a line of db/privileges.txt
	Is, Want string // definitions; Is is empty if it is missing, Want if it is unexpected
}

// String returns what differs.
func (d Difference) String() string {
	switch {
	case d.Is == "":
		return d.Subject + " is missing"
	case d.Want == "":
		return d.Subject + " is unexpected"
	case strings.HasPrefix(d.Subject, "function "):
		return d.Subject + " is altered"
	default:
		return fmt.Sprintf("%s is altered: it is %s, and should be %s", d.Subject, d.Is, d.Want)
	}
}

// Table returns the table that the object is part of, empty for none.
func (d Difference) Table() string {
	if column, is := strings.CutPrefix(d.Subject, "column "); is {
		return column[:strings.LastIndex(column, ".")]
	}
	if part := partForm.FindStringSubmatch(d.Subject); part != nil {
		return part[1]
	}
	return ""
}

var partForm = regexp.MustCompile(`^(?:constraint|index|trigger|policy) .* on (\S+)$`)

// Compare compares a database with this build's db/schema.txt and db/privileges.txt. It leaves out what follows from
// another difference: parts of a table that is missing or unexpected, and privileges on such objects. The connection
// must not be in a transaction.
func Compare(ctx context.Context, conn *pgx.Conn) (schema, privileges []Difference, err error) {
	d, err := inCatalogs(ctx, conn, compare)
	return d.schema, d.privileges, err
}

// differences are those between a database and this build.
type differences struct{ schema, privileges []Difference }

// all returns both kinds.
func (d differences) all() []Difference { return slices.Concat(d.schema, d.privileges) }

func compare(ctx context.Context, tx pgx.Tx) (differences, error) {
	objects, err := readSchema(ctx, tx)
	if err != nil {
		return differences{}, err
	}
	lines, err := readPrivileges(ctx, tx)
	if err != nil {
		return differences{}, err
	}
	effective := make(map[string]string, len(objects))
	for _, o := range objects {
		effective[o.Subject] = o.Definition
	}
	declared := declaredSchema()
	all := maps.Clone(declared)
	maps.Copy(all, effective)
	var found differences
	wrong := make(map[string]bool) // objects that are missing or unexpected
	for _, subject := range slices.Sorted(maps.Keys(all)) {
		d := Difference{Subject: subject, Is: effective[subject], Want: declared[subject]}
		if sameDefinition(d.Is) != sameDefinition(d.Want) {
			found.schema = append(found.schema, d)
			wrong[subject] = d.Is == "" || d.Want == ""
		}
	}
	found.schema = slices.DeleteFunc(found.schema, func(d Difference) bool { return wrong["table "+d.Table()] })
	for _, line := range without(declaredPrivileges(), lines) {
		found.privileges = append(found.privileges, Difference{Subject: line, Want: line})
	}
	for _, line := range without(lines, declaredPrivileges()) {
		found.privileges = append(found.privileges, Difference{Subject: line, Is: line})
	}
	found.privileges = slices.DeleteFunc(found.privileges, func(d Difference) bool {
		o := objectForm.FindStringSubmatch(d.Subject)
		return o != nil && (wrong[o[2]+" "+o[3]] || wrong["table "+o[3]] || wrong["column "+o[3]+"."+o[1]])
	})
	return found, nil
}

// objectForm matches the object of a privilege: its column, kind and name.
var objectForm = regexp.MustCompile(`^(?:.*? \((\S+)\) on |.*? on |owner \S+ of |)(table|view|sequence|schema|function) (\S+\(.*\)|\S+)( |$)`)

var qualifier = regexp.MustCompile(`\b[a-z0-9_]+\.`)

// sameDefinition returns a definition without what differs between versions of Postgres, and after a dump and restore:
// parentheses, and the qualifiers in the queries of views. It is not SQL.
func sameDefinition(definition string) string {
	if strings.HasPrefix(definition, "view ") {
		definition = qualifier.ReplaceAllString(definition, "")
	}
	return strings.NewReplacer("(", "", ")", "").Replace(definition)
}

// effectiveSchema reads SchemaObjects. Names are quoted where SQL needs it. The index of a key belongs to its
// constraint.
const effectiveSchema = `
with
schemas as (
  select n.oid, n.nspname from pg_namespace n
  where n.nspname = any ($1) or n.nspowner = (select oid from pg_roles where rolname = 'spectral_owner')
),
relations as (
  select c.*, format('%I.%I', s.nspname, c.relname) as name from pg_class c join schemas s on s.oid = c.relnamespace
),
lines (object, kind, name, subject, line) as (
  select nspname::text, 0, '', format('schema %I', nspname), 'schema' from schemas
  union all
  select name, 0, '', 'table ' || name,
    case relkind when 'r' then 'table' when 'p' then 'partitioned table' when 'm' then 'materialized view' when 'S' then 'sequence'
      when 'v' then 'view as ' || pg_get_viewdef(oid) else 'relation ' || relkind::text end
    || case relpersistence when 'p' then '' else ' persistence ' || relpersistence::text end
    || coalesce(' partition by ' || pg_get_partkeydef(oid), '') || coalesce(' ' || pg_get_expr(relpartbound, oid), '')
    || coalesce(' with (' || (select string_agg(o, ', ' order by o) from unnest(reloptions) as o) || ')', '')
    || case when relrowsecurity then ' row security' else '' end || case when relforcerowsecurity then ' forced' else '' end
  from relations where relkind not in ('i', 'I', 't', 'c')
  union all
  select r.name, 1, to_char(a.attnum, '0000'), format('column %s.%I', r.name, a.attname),
    format_type(a.atttypid, a.atttypmod)
    || case when a.attcollation in (0, ty.typcollation) then '' else ' collate ' || a.attcollation::regcollation end
    || case when a.attnotnull then ' not null' else '' end
    || case when exists (select from pg_constraint k where k.conrelid = a.attrelid and k.contype = 'n'
         and k.conkey = array[a.attnum] and not k.convalidated) then ' not valid' else '' end
    || case a.attidentity when '' then '' when 'a' then ' generated always as identity' else ' generated by default as identity' end
    || case when d.adbin is null then '' when a.attgenerated = '' then ' default ' || pg_get_expr(d.adbin, d.adrelid)
      else ' generated always as (' || pg_get_expr(d.adbin, d.adrelid) || ') ' || a.attgenerated::text end
  from relations r
  join pg_attribute a on a.attrelid = r.oid and a.attnum > 0 and not a.attisdropped
  join pg_type ty on ty.oid = a.atttypid
  left join pg_attrdef d on d.adrelid = r.oid and d.adnum = a.attnum
  where r.relkind in ('r', 'p')
  union all
  select r.name, 2, c.conname, format('constraint %I on %s', c.conname, r.name), pg_get_constraintdef(c.oid)
  from relations r join pg_constraint c on c.conrelid = r.oid and c.contype not in ('n', 't')
  union all
  select r.name, 3, x.relname, format('index %I on %s', x.relname, r.name), pg_get_indexdef(i.indexrelid)
  from relations r join pg_index i on i.indrelid = r.oid join pg_class x on x.oid = i.indexrelid
  where r.relkind <> 't' and not exists (select from pg_constraint k where k.conindid = i.indexrelid and k.contype in ('p', 'u', 'x'))
  union all
  select r.name, 4, g.tgname, format('trigger %I on %s', g.tgname, r.name),
    pg_get_triggerdef(g.oid) || case g.tgenabled when 'O' then '' else ' enabled ' || g.tgenabled::text end
  from relations r join pg_trigger g on g.tgrelid = r.oid and not g.tgisinternal
  union all
  select r.name, 5, p.polname, format('policy %I on %s', p.polname, r.name),
    format('create policy %I on %s', p.polname, r.name) || case when p.polpermissive then '' else ' as restrictive' end
    || ' for ' || case p.polcmd when 'r' then 'select' when 'a' then 'insert' when 'w' then 'update' when 'd' then 'delete' else 'all' end
    || ' to ' || (select string_agg(coalesce(nullif(o, 0)::regrole::text, 'public'), ', ') from unnest(p.polroles) as o)
    || coalesce(' using (' || pg_get_expr(p.polqual, r.oid) || ')', '')
    || coalesce(' with check (' || pg_get_expr(p.polwithcheck, r.oid) || ')', '')
  from relations r join pg_policy p on p.polrelid = r.oid
  union all
  select format('%I.%I', s.nspname, ty.typname), 0, '', format('type %I.%I', s.nspname, ty.typname), 'type ' || ty.typtype::text
  from schemas s join pg_type ty on ty.typnamespace = s.oid and ty.typtype not in ('b', 'c')
  union all
  select format('%I.%I', s.nspname, p.proname), 6, oidvectortypes(p.proargtypes),
    format('function %I.%I(%s)', s.nspname, p.proname, oidvectortypes(p.proargtypes)),
    case p.prokind when 'a' then 'aggregate' else pg_get_functiondef(p.oid) end
  from schemas s join pg_proc p on p.pronamespace = s.oid
)
select subject, case kind when 6 then line else btrim(regexp_replace(line, '\s+', ' ', 'g'), ' ;') end
from lines order by object collate "C", kind, name collate "C"`
