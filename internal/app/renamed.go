package app

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"
)

// Renamed is an object of this build's schema that is missing while another one, of the same form, is where it may have gone.
type Renamed struct {
	Subject string
	As      []string // subjects of what there is; several: nobody knows which
	// Statement gives it its name back; empty with several.
	Statement string
	// By is who may execute it.
	By string
	// Whole: it is a schema, a table or a column, without which what else differs says nothing.
	Whole bool
}

// renames are how an object gets its name back: of a table, its arguments, the name that it has and its own.
var renames = map[string]string{
	"column":     "alter table %[1]s rename column %[3]s to %[4]s;",
	"constraint": "alter table %[1]s rename constraint %[3]s to %[4]s;",
	"trigger":    "alter trigger %[3]s on %[1]s rename to %[4]s;",
	"policy":     "alter policy %[3]s on %[1]s rename to %[4]s;",
	"index":      "alter index %[3]s rename to %[4]s;",
	"function":   "alter function %[3]s(%[2]s) rename to %[4]s;",
}

// renamed finds what is missing and seems to be there under another name. It takes objects as [SameEverywhere] has them.
func renamed(missing, unexpected []SchemaObject) (found []Renamed) {
	form := func(o SchemaObject) (d definition, form string) {
		d, ok := parse(o)
		if _, renamed := renames[d.kind]; !ok || !renamed {
			return d, ""
		}
		in, named := d.table, " "+d.short()+" "
		switch d.kind {
		case "column", "constraint": // whose definitions do not name them
			named = ""
		case "function":
			named = "." + d.short()
		}
		if in == "" { // a column's table, or a schema
			in = d.name[:strings.LastIndex(d.name, ".")]
		}
		return d, strings.Join([]string{d.kind, in, d.arguments, strings.Replace(o.Definition, named, "", 1), o.Comment}, "\n")
	}
	there, wanted := make(map[string][]definition), make(map[string]int)
	for _, o := range unexpected {
		d, f := form(o)
		there[f] = append(there[f], d)
	}
	for _, o := range missing {
		_, f := form(o)
		wanted[f]++
	}
	for _, o := range missing {
		d, f := form(o)
		if f == "" || len(there[f]) == 0 {
			continue
		}
		r := Renamed{Subject: o.Subject, Whole: d.kind == "column", By: byOwner}
		for _, other := range there[f] {
			r.As = append(r.As, other.Subject)
		}
		if len(there[f]) == 1 && wanted[f] == 1 {
			other := there[f][0]
			from := other.short()
			if d.kind == "index" || d.kind == "function" {
				from = other.name
			}
			r.Statement = fmt.Sprintf(renames[d.kind], cmp.Or(d.table, TableOf(o.Subject)), d.arguments, from, d.short())
		}
		found = append(found, r)
	}
	return found
}

// moved finds where schemas and tables that are missing may have gone: a table that has all columns of one, and a key of its name, which no copy has;
// a schema that has most tables of one.
func moved(ctx context.Context, conn *pgx.Conn, missing []string) (found []Renamed, err error) {
	type gone struct {
		Subject string   `json:"subject"`
		Has     []string `json:"has"`
	}
	var schemas, tables []gone
	var names []string
	for _, o := range declaredSchema() {
		d := declared()[o.Subject]
		if d.kind == "table" {
			names = append(names, d.name)
		}
		if !slices.Contains(missing, o.Subject) || isView(d.name) {
			continue
		}
		g := gone{Subject: o.Subject}
		for _, part := range declaredSchema() {
			p := declared()[part.Subject]
			switch {
			case d.kind == "schema" && p.kind == "table" && strings.HasPrefix(p.name, d.name+"."):
				g.Has = append(g.Has, p.short())
			case d.kind == "table" && p.kind == "column" && TableOf(part.Subject) == d.name:
				g.Has = append(g.Has, p.short())
			case d.kind == "table" && p.kind == "constraint" && p.table == d.name && keyForm.MatchString(p.Definition):
				g.Has = append(g.Has, "key "+p.name)
			}
		}
		switch d.kind {
		case "schema":
			schemas = append(schemas, g)
		case "table":
			tables = append(tables, g)
		}
	}
	look := func(query string, of []gone) error {
		if len(of) == 0 {
			return nil
		}
		what, err := json.Marshal(of)
		if err != nil {
			return err
		}
		rows, err := conn.Query(ctx, query, string(what), names)
		if err != nil {
			return fmt.Errorf("read catalogs: %w", oneLine(err))
		}
		candidates, err := pgx.CollectRows(rows, pgx.RowToStructByPos[struct {
			Subject, Schema, Name string
		}])
		if err != nil {
			return fmt.Errorf("read catalogs: %w", oneLine(err))
		}
		for _, c := range candidates {
			d := declared()[c.Subject]
			r := Renamed{Subject: c.Subject, Whole: true, By: byMigrator}
			if d.kind == "schema" {
				r.As = []string{"schema " + c.Name}
				r.Statement = fmt.Sprintf("alter schema %s rename to %s;", c.Name, d.name)
			} else {
				r.As = []string{"table " + c.Schema + "." + c.Name}
				schema, name, _ := strings.Cut(d.name, ".")
				if c.Name != name {
					r.Statement = fmt.Sprintf("alter table %s.%s rename to %s; ", c.Schema, c.Name, name)
				}
				if r.By = byOwner; c.Schema != schema {
					r.By = bySuper
					r.Statement += fmt.Sprintf("alter table %s.%s set schema %s;", c.Schema, name, schema)
				}
				r.Statement = strings.TrimSpace(r.Statement)
			}
			if last := len(found) - 1; last >= 0 && found[last].Subject == c.Subject {
				found[last].As, found[last].Statement = append(found[last].As, r.As...), ""
				continue
			}
			found = append(found, r)
		}
		return nil
	}
	if err := look(movedSchemas, schemas); err != nil || len(found) > 0 {
		return found, err
	}
	return found, look(movedTables, tables)
}

const (
	movedSchemas = `
select g.subject, '', pg_catalog.quote_ident(n.nspname)
from pg_catalog.jsonb_to_recordset($1::pg_catalog.jsonb) as g(subject pg_catalog.text, has pg_catalog.text[])
join pg_catalog.pg_namespace n on not exists (select from pg_catalog.unnest($2::pg_catalog.text[]) as t(name) where pg_catalog.split_part(t.name, '.', 1) = n.nspname)
  and 2 * (select pg_catalog.count(*) from pg_catalog.pg_class c where c.relnamespace = n.oid and c.relkind in ('r', 'p') and c.relname = any (g.has)) > pg_catalog.cardinality(g.has)
order by 1, 3`
	movedTables = `
select g.subject, pg_catalog.quote_ident(n.nspname), pg_catalog.quote_ident(c.relname)
from pg_catalog.jsonb_to_recordset($1::pg_catalog.jsonb) as g(subject pg_catalog.text, has pg_catalog.text[])
join pg_catalog.pg_class c on c.relkind in ('r', 'p') and c.relpersistence <> 't'
join pg_catalog.pg_namespace n on n.oid = c.relnamespace and n.nspname || '.' || c.relname <> all ($2::pg_catalog.text[])
where g.has <@ ((select pg_catalog.array_agg(a.attname::pg_catalog.text) from pg_catalog.pg_attribute a where a.attrelid = c.oid and a.attnum > 0 and not a.attisdropped)
  || (select pg_catalog.array_agg('key ' || k.conname) from pg_catalog.pg_constraint k where k.conrelid = c.oid))
order by 1, 2, 3`
)
