package app

import (
	"cmp"
	"fmt"
	"io/fs"
	"regexp"
	"slices"
	"strings"
	"sync"

	"spectral/db"
)

// SchemaObjects are the subjects of all objects of this build's schema, sorted.
func SchemaObjects() []string {
	var subjects []string
	for _, o := range declaredSchema() {
		subjects = append(subjects, o.Subject)
	}
	slices.Sort(subjects)
	return subjects
}

// declared are the objects of this build's schema by subject.
var declared = sync.OnceValue(func() map[string]definition {
	all := make(map[string]definition)
	for _, o := range declaredSchema() {
		if d, ok := parse(o); ok {
			all[o.Subject] = d
		}
	}
	return all
})

// definition is an object of this build's schema with the parts of its subject.
type definition struct {
	SchemaObject
	kind, name, arguments, table string
}

// parse takes the subject of an object apart.
func parse(o SchemaObject) (definition, bool) {
	words := subjectForm.FindStringSubmatch(o.Subject)
	if words == nil {
		return definition{SchemaObject: o}, false
	}
	return definition{o, words[1], words[2], words[4], words[6]}, true
}

// SchemaStatements returns the SQL that makes an object of this build's schema as the migrations have it, whether it is missing or
// altered: as db/schema.txt has it, with the grants of db/privileges.txt that go with an object. It is
// for psql, by a login that is a member of spectral_owner.
//
// What it cannot bring back are rows: those of a table that is gone, but for what migrations put in, and the values of a column. A column's
// type is said in a comment. Where what is there is in the way, it refuses before anything is changed.
func SchemaStatements(subject string) (string, error) {
	d, found := declared()[subject]
	if !found {
		return "", fmt.Errorf("this build's schema has no object %.200q; `workers migrate show` without one lists them", subject)
	}
	switch d.kind {
	case "function":
		object := "function " + d.name + "(" + d.arguments + ")"
		return transaction(append([]string{d.another(), d.Definition, d.comment(object), "revoke all on " + object + " from public"}, grants(object)...)...), nil
	case "trigger":
		// a constraint trigger that was renamed still has its constraint by the first name
		drop := fmt.Sprintf("do $cure$ declare v_trigger text; begin\n  for v_trigger in select g.tgname from pg_catalog.pg_trigger g left join pg_catalog.pg_constraint k on k.oid = g.tgconstraint\n"+
			"      where g.tgrelid = '%[1]s'::pg_catalog.regclass and not g.tgisinternal and '%[2]s' in (g.tgname, k.conname) loop\n    execute pg_catalog.format('drop trigger %%I on %[1]s', v_trigger);\n  end loop;\nend $cure$", d.table, d.name)
		return transaction(drop, d.Definition, d.newComment("trigger "+d.name+" on "+d.table)), nil
	case "policy":
		return transaction(fmt.Sprintf("drop policy if exists %s on %s", d.name, d.table), d.Definition, d.newComment("policy "+d.name+" on "+d.table)), nil
	case "index":
		return d.index()
	case "constraint":
		return d.constraint(), nil
	case "query of view":
		return d.view(d.name), nil
	case "table":
		return d.wholeTable()
	case "column":
		return d.column(), nil
	default: // a schema
		return "-- a schema that is gone has taken its rows with it: restore it from a backup\n" +
			"create schema if not exists " + d.name + " authorization spectral_owner;\n" + transaction(append([]string{d.comment("schema " + d.name)}, grants("schema "+d.name)...)...), nil
	}
}

// another drops what has the name of a function and cannot be made into it: a procedure or an aggregate, or one that returns something else or whose
// parameters are named otherwise.
func (d definition) another() string {
	head, _, _ := strings.Cut(d.Definition, "\n LANGUAGE ")
	return fmt.Sprintf("do $cure$ begin\n  if exists (select from pg_catalog.pg_proc p where p.oid = pg_catalog.to_regprocedure('%[1]s')\n"+
		"      and case when p.prokind in ('f', 'p') then pg_catalog.split_part(pg_catalog.pg_get_functiondef(p.oid), e'\\n LANGUAGE ', 1) <> $head$%[2]s$head$ else true end) then\n"+
		"    drop routine %[1]s;\n  end if;\nend $cure$", d.name+"("+d.arguments+")", head)
}

// TableOf is the table that an object of this build's schema is or belongs to; empty: none.
func TableOf(subject string) string {
	d := declared()[subject]
	switch d.kind {
	case "table", "query of view":
		return d.name
	case "column":
		return d.name[:strings.LastIndex(d.name, ".")]
	case "index":
		if form := indexForm.FindStringSubmatch(d.Definition); form != nil {
			return form[2]
		}
		return ""
	default:
		return d.table
	}
}

// GrantStatement is the SQL of a line of db/privileges.txt that begins with grant.
func GrantStatement(line string) string {
	for _, attribute := range []string{" inherit", " noinherit", " set", " noset"} {
		line = strings.Replace(line, attribute, "", 1)
	}
	return strings.Replace(line, " on view ", " on table ", 1) + ";"
}

var subjectForm = regexp.MustCompile(`^(schema|table|query of view|column|constraint|index|trigger|policy|function) ("?[A-Za-z0-9_."]+)((?:\(([^()]*)\))?)( of ([A-Za-z0-9_."]+))?$`)

const asOwner = "set local lock_timeout = '5s';\nset local check_function_bodies = off;\nset local role spectral_owner;\n"

// transaction is statements as the owner, all or none.
func transaction(statements ...string) string {
	var text strings.Builder
	for _, s := range statements {
		if s != "" {
			s = strings.TrimSuffix(s, ";")
			if strings.Contains(s[strings.LastIndex(s, "\n")+1:], "--") {
				s += "\n"
			}
			text.WriteString(s + ";\n")
		}
	}
	return "begin;\n" + asOwner + text.String() + "commit;\n"
}

// comment is the statement that comments on something, or takes away whatever does.
func (d definition) comment(on string) string {
	if d.Comment == "" {
		return "comment on " + on + " is null"
	}
	return d.newComment(on)
}

// newComment is comment on what has just been made.
func (d definition) newComment(on string) string {
	if d.Comment == "" {
		return ""
	}
	return "comment on " + on + " is '" + strings.ReplaceAll(d.Comment, "'", "''") + "'"
}

// grants are what db/privileges.txt allows others to do with an object that is made anew.
func grants(object string) (statements []string) {
	for _, line := range declaredPrivileges() {
		if strings.HasPrefix(line, "grant ") && strings.Contains(line, " on "+object+" to ") {
			statements = append(statements, GrantStatement(line))
		}
	}
	return statements
}

// columns are those of a table or view, in their order.
func columns(table string) (of []definition) {
	for _, o := range declaredSchema() {
		if d := declared()[o.Subject]; d.kind == "column" && TableOf(o.Subject) == table {
			of = append(of, d)
		}
	}
	return of
}

func (d definition) view(name string) string {
	view := declared()["table "+name]
	statements := []string{"drop view if exists " + name, "create view " + name + " as\n" + declared()["query of view "+name].Definition, view.comment("view " + name)}
	for _, column := range columns(name) {
		statements = append(statements, column.comment("column "+column.name))
	}
	return transaction(append(statements, grants("view "+name)...)...)
}

// IsView says whether a subject is a view of this build's schema, or a column of one.
func IsView(subject string) bool { return isView(TableOf(subject)) }

func isView(table string) bool {
	return strings.HasPrefix(declared()["table "+table].Definition, "view")
}

var (
	indexForm   = regexp.MustCompile(`(?s)^CREATE (UNIQUE )?INDEX \S+ ON (\S+) (.*)$`)
	uniqueIndex = regexp.MustCompile(`(?s)^USING btree \(([^()]*)\)(?: NULLS NOT DISTINCT)?( WHERE .*)?$`)
	keyForm     = regexp.MustCompile(`^(PRIMARY KEY|UNIQUE)( NULLS NOT DISTINCT)? \(([^()]*)\)$`)
)

// index is built beside who writes, and so in no transaction. That of a key is its constraint's.
// One that is there is read until the other one is; the two change names, which keeps nobody waiting, before it is dropped: that makes it
// invalid at once, and lasts as long as the oldest snapshot.
func (d definition) index() (string, error) {
	form := indexForm.FindStringSubmatch(d.Definition)
	if form == nil {
		return "", fmt.Errorf("%s: db/schema.txt has no statement for it", d.Subject)
	}
	unique, table, rest, warning := strings.ToLower(form[1]), form[2], form[3], ""
	schema, name, _ := strings.Cut(d.name, ".")
	if key, found := declared()["constraint "+name+" of "+table]; found {
		return key.constraint(), nil
	}
	anew, former, named := name+"_anew", schema+"."+name+"_former", ""
	if columns := uniqueIndex.FindStringSubmatch(rest); columns != nil && unique != "" {
		warning = duplicates(table, columns[1], columns[2])
		if columns[2] == "" {
			named = identity(table, name, fmt.Sprintf("exists (select from pg_catalog.pg_index i where i.indexrelid = pg_catalog.to_regclass('%s') and i.indisreplident)", former))
		}
	}
	text := warning + aside(table, d.name, schema+"."+anew, former) + built(schema+"."+anew, "create "+unique+"index concurrently "+anew+" on "+table+" "+rest) +
		transaction(valid(schema+"."+anew), ours(table, d.name), "alter index if exists "+d.name+" rename to "+name+"_former", "alter index "+schema+"."+anew+" rename to "+name, named) +
		"drop index concurrently if exists " + former + ";\n"
	if comment := d.newComment("index " + d.name); comment != "" {
		text += comment + ";\n"
	}
	return text + "reset role;\n", nil
}

// aside begins what builds an index of a table beside who writes; what an earlier attempt has left is dropped.
func aside(table, index string, leftovers ...string) string {
	text := "set role spectral_owner;\nset lock_timeout = 0;\nset statement_timeout = 0;\n" + ours(table, index) + ";\n"
	for _, leftover := range leftovers {
		text += ours(table, leftover) + ";\ndrop index concurrently if exists " + leftover + ";\n"
	}
	return text
}

// ours refuses to go on where the name of an index is that of something else: Postgres renames a view as willingly.
func ours(table, index string) string {
	return fmt.Sprintf("do $cure$ begin\n  if exists (select from pg_catalog.pg_class c where c.oid = pg_catalog.to_regclass('%[2]s')\n"+
		"      and not exists (select from pg_catalog.pg_index i where i.indexrelid = c.oid and i.indrelid = '%[1]s'::pg_catalog.regclass)) then\n"+
		"    raise exception '%[2]s is no index of %[1]s: whoever made it has to rename it first';\n  end if;\nend $cure$", table, index)
}

// built builds an index. One that could not be built is dropped: it refuses, as if it were there, to write to rows that are there twice.
func built(index, statement string) string {
	return "\\unset ON_ERROR_STOP\n" + statement + ";\n\\set ON_ERROR_STOP on\n" +
		fmt.Sprintf("select not i.indisvalid as left_over from pg_catalog.pg_index i where i.indexrelid = pg_catalog.to_regclass('%[1]s') \\gset\n\\if :left_over\ndrop index concurrently %[1]s;\n"+
			"do $cure$ begin raise exception '%[1]s could not be built'; end $cure$;\n\\endif\n", index)
}

// valid refuses to go on with an index that could not be built.
func valid(index string) string {
	return fmt.Sprintf("do $$ begin if not (select i.indisvalid from pg_catalog.pg_index i where i.indexrelid = '%[1]s'::pg_catalog.regclass) then raise exception '%[1]s could not be built'; end if; end $$", index)
}

// duplicates says what to do if a unique index cannot be made.
func duplicates(table, columns, where string) string {
	return fmt.Sprintf("-- \"could not create unique index\": rows have come in twice. Find them, see which of each is meant, delete the others, and begin anew:\n"+
		"--   select %[2]s, count(*), array_agg(ctid) from %[1]s%[3]s group by %[2]s having count(*) > 1;\n", table, columns, strings.Join(append([]string{""}, strings.Fields(where)...), " "))
}

// constraint is added first and then checked, so that nobody waits meanwhile. It is not added while rows are in its way: whatever
// writes to such a row would be refused from then on, and an event could not be settled.
func (d definition) constraint() string {
	if key := keyForm.FindStringSubmatch(d.Definition); key != nil {
		return d.key(key[1], key[2], key[3])
	}
	definition, stays := strings.CutSuffix(d.Definition, " NOT VALID")
	find, none := inTheWay(d.table, violated(definition))
	alter := "alter table " + d.table
	text := find + transaction(none, alter+" drop constraint if exists "+d.name, alter+" add constraint "+d.name+" "+definition+" not valid", d.newComment("constraint "+d.name+" on "+d.table))
	if stays {
		return text
	}
	return text + validated(d.table, d.name)
}

// validated checks what has been added; what rows that came in meanwhile are in the way of is taken away again.
func validated(table, constraint string) string {
	return transaction(fmt.Sprintf("do $cure$ begin\n  alter table %[1]s validate constraint %[2]s;\n"+
		"exception when check_violation then\n  alter table %[1]s drop constraint %[2]s;\n  raise warning 'rows have come in that are in the way of %[2]s: begin anew';\nend $cure$", table, constraint))
}

var referenceForm = regexp.MustCompile(`^FOREIGN KEY (\([^()]*\)) REFERENCES ([^ (]+)\(([^()]*)\)`)

// violated is the condition of the rows that a constraint does not bear.
func violated(definition string) string {
	if refers := referenceForm.FindStringSubmatch(definition); refers != nil {
		return fmt.Sprintf("%s not in (select %s from %s)", refers[1], refers[3], refers[2])
	}
	return "not " + strings.TrimPrefix(definition, "CHECK ")
}

// inTheWay says how to find rows of a table, and refuses to go on while there are any.
func inTheWay(table, where string) (find, none string) {
	query := "select ctid, * from " + table + " where " + where + " limit 20;"
	return "-- \"rows are in the way\": find them, correct them, and begin anew:\n--   " + query + "\n",
		fmt.Sprintf("do $cure$ begin\n  if exists (select from %[1]s where %[2]s) then\n    raise exception 'rows are in the way' using hint = $hint$%[3]s$hint$;\n  end if;\nend $cure$", table, where, query)
}

// key is added when its index has been built. It takes those that refer to it with it, and another primary key of the table.
func (d definition) key(kind, nulls, columns string) string {
	alter := "alter table " + d.table
	schema, _, _ := strings.Cut(d.table, ".")
	before := duplicates(d.table, columns, "") + aside(d.table, schema+"."+d.name, schema+"."+d.name+"_anew") +
		built(schema+"."+d.name+"_anew", fmt.Sprintf("create unique index concurrently %s_anew on %s (%s)%s", d.name, d.table, columns, nulls)) + "reset role;\n" +
		"-- if this is refused because it waited too long for somebody, it alone can be repeated\n"
	statements := []string{alter + " drop constraint if exists " + d.name, "drop index if exists " + schema + "." + d.name,
		fmt.Sprintf("%s add constraint %s %s using index %[2]s_anew", alter, d.name, kind), d.newComment("constraint " + d.name + " on " + d.table)}
	if kind == "PRIMARY KEY" {
		other := fmt.Sprintf("do $cure$ declare v_key text; begin\n  for v_key in select k.conname from pg_catalog.pg_constraint k where k.conrelid = '%[1]s'::pg_catalog.regclass and k.contype = 'p' loop\n"+
			"    execute pg_catalog.format('alter table %[1]s drop constraint %%I', v_key);\n  end loop;\nend $cure$", d.table)
		statements = append(append([]string{other}, statements...), identity(d.table, d.name, fmt.Sprintf(
			"exists (select from pg_catalog.pg_class c where c.oid = '%[1]s'::pg_catalog.regclass and c.relreplident = 'i' and not exists (select from pg_catalog.pg_index i where i.indrelid = c.oid and i.indisreplident))", d.table)))
	}
	after := ""
	for _, o := range declaredSchema() {
		refers := declared()[o.Subject]
		if refers.kind == "constraint" && strings.Contains(refers.Definition, " REFERENCES "+d.table+"(") { // which may be missing, too
			alter := "alter table if exists " + refers.table
			statements = append(append([]string{alter + " drop constraint if exists " + refers.name}, statements...), alter+" add constraint "+refers.name+" "+refers.Definition+" not valid")
			after += transaction(alter + " validate constraint " + refers.name)
		}
	}
	return before + transaction(statements...) + after
}

// identity makes an index what a publication names rows by, where the one in whose place it comes was that: updates would be refused otherwise.
func identity(table, index, was string) string {
	return fmt.Sprintf("do $cure$ begin\n  if %s then\n    alter table %s replica identity using index %s;\n  end if;\nend $cure$", was, table, index)
}

// WithoutKeyIndexes leaves out the indexes of constraints that are among the subjects: what gives back those gives back these.
func WithoutKeyIndexes(subjects []string) []string {
	keys := make(map[string]bool)
	for _, subject := range subjects {
		if words := subjectForm.FindStringSubmatch(subject); words != nil && words[1] == "constraint" {
			schema, _, _ := strings.Cut(words[6], ".")
			keys["index "+schema+"."+words[2]] = true
		}
	}
	return slices.DeleteFunc(slices.Clone(subjects), func(subject string) bool { return keys[subject] })
}

// column gives it back its form, and a default for its values.
func (d definition) column() string {
	table := TableOf(d.Subject)
	if isView(table) {
		return d.view(table)
	}
	alter := "alter table " + table + " alter column " + d.short()
	kind := ColumnType(d.Definition)
	attributes, value, set := strings.Cut(d.Definition[len(kind):], " default ")
	if set {
		value = alter + " set default " + value
	} else {
		value = alter + " drop default"
	}
	null, before, after := alter+" drop not null", "", ""
	if strings.HasPrefix(attributes, " not null") {
		null = alter + " set not null"
		before, after = given(table, d.short())
	}
	return "-- a missing column is made anew, and what it held is lost\n" +
		"-- if its type is another: alter table " + table + " alter column " + d.short() + " type " + kind + "; is yours to do, when nobody writes: it rewrites the table, and views are in its way\n" +
		before + transaction("alter table "+table+" add column if not exists "+d.short()+" "+d.Definition, alter+" set statistics -1", alter+" reset (n_distinct, n_distinct_inherited)",
		alter+" drop identity if exists", alter+" drop expression if exists", value, null, after, d.comment("column "+d.name))
}

// given finds the rows in which a column is null, and has that checked before it is made not null: it would be looked through under a lock that
// nobody gets past. After it the constraint can go.
func given(table, column string) (before, after string) {
	find, none := inTheWay(table, column+" is null")
	checked := column + "_is_given"
	after = "alter table " + table + " drop constraint if exists " + checked
	return find + fmt.Sprintf("select exists (select from pg_catalog.pg_attribute a where a.attrelid = pg_catalog.to_regclass('%s') and a.attname = '%s' and (not a.attnotnull "+
		"or exists (select from pg_catalog.pg_constraint k where k.conrelid = a.attrelid and k.contype = 'n' and k.conkey = array[a.attnum] and not k.convalidated))) as nullable \\gset\n\\if :nullable\n", table, column) +
		transaction(none, after, "alter table "+table+" add constraint "+checked+" check ("+column+" is not null) not valid") + validated(table, checked) + "\\endif\n", after
}

// ColumnType is the type of a column, with its collation, of its definition.
func ColumnType(definition string) string {
	if at := columnAttribute.FindStringIndex(definition); at != nil {
		return definition[:at[0]]
	}
	return definition
}

// short is a name without that of its table or schema.
func (d definition) short() string { return d.name[strings.LastIndex(d.name, ".")+1:] }

var columnAttribute = regexp.MustCompile(` (not null|default|generated)\b`)

var storage = regexp.MustCompile(` with (\(.*\))$`)

// wholeTable gives it back its options, and a missing one its columns and the rows that steps have put in: one that is there may have
// been relieved of them.
func (d definition) wholeTable() (string, error) {
	if isView(d.name) {
		return d.view(d.name), nil
	}
	var lines []string
	for _, column := range columns(d.name) {
		lines = append(lines, "  "+column.short()+" "+column.Definition)
	}
	statements := []string{"create table if not exists " + d.name + " (\n" + strings.Join(lines, ",\n") + "\n)",
		fmt.Sprintf("do $$ declare v_option text; begin for v_option in select pg_catalog.split_part(o, '=', 1) from pg_catalog.pg_class c, pg_catalog.unnest(c.reloptions) as o where c.oid = '%[1]s'::pg_catalog.regclass "+
			"loop execute pg_catalog.format('alter table %[1]s reset (%%s)', v_option); end loop; end $$", d.name)}
	if options := storage.FindStringSubmatch(d.Definition); options != nil {
		statements = append(statements, "alter table "+d.name+" set "+options[1])
	}
	secured := " disable row level security, no force row level security"
	if strings.Contains(d.Definition, " row security") {
		secured = " enable row level security, no force row level security"
	}
	seeds, err := seeds(d.name)
	if err != nil {
		return "", err
	}
	secured = "alter table " + d.name + secured
	if seeds != "" {
		statements[0] = fmt.Sprintf("select pg_catalog.to_regclass('%s') is null as made_anew \\gset\n", d.name) + statements[0]
		secured = "\\if :made_anew\n" + seeds + "\\endif\n" + secured
	}
	statements = append(statements, secured, d.comment("table "+d.name))
	return "-- a missing table is made anew, and what it held is lost: restore that from a backup\n" + transaction(append(statements, grants("table "+d.name)...)...), nil
}

// seeds are the statements by which steps put rows into a table.
func seeds(table string) (statements string, err error) {
	files, err := fs.Glob(db.Migrations, "migrations/*.sql")
	if err != nil {
		return "", err
	}
	slices.Sort(files)
	insert := regexp.MustCompile(`(?ms)^insert into ` + regexp.QuoteMeta(table) + ` .*?;\n`) // in a function it is indented
	for _, file := range files {
		text, err := fs.ReadFile(db.Migrations, file)
		if err != nil {
			return "", err
		}
		up, _, _ := strings.Cut(string(text), "-- +goose Down")
		statements += strings.Join(insert.FindAllString(up, -1), "")
	}
	return statements, nil
}

// SortForCreation puts subjects into the order in which [SchemaStatements] brings them back: what others stand on comes first.
func SortForCreation(subjects []string) {
	type place struct {
		kind, at int
		needs    string // what has to be there is named in it
	}
	kinds := []string{"schema", "type", "table", "column", "function", "constraint", "index", "query", "trigger", "policy"}
	places := make(map[string]place, len(subjects))
	called := make(map[string][]string) // subjects by how SQL names them; a table stands for its columns
	for _, subject := range subjects {
		kind, _, _ := strings.Cut(subject, " ")
		p, d := place{kind: slices.Index(kinds, kind)}, declared()[subject]
		switch kind {
		case "function":
			p.needs = parsedAtOnce(d.Definition)
			called[d.name+"("] = append(called[d.name+"("], subject)
		case "table", "column", "query":
			table := cmp.Or(TableOf(subject), d.name)
			switch {
			case isView(table):
				p = place{kind: slices.Index(kinds, "query"), needs: declared()["query of view "+table].Definition}
			case kind == "column":
				p.needs = table + " " + d.Definition
			default:
				for _, column := range columns(table) {
					p.needs += column.Definition + "\n"
				}
			}
			called[table] = append(called[table], subject)
		case "constraint":
			if strings.HasPrefix(d.Definition, "FOREIGN KEY ") { // to a key
				p.at = 1
			}
		}
		places[subject] = p
	}
	slices.SortStableFunc(subjects, func(a, b string) int {
		return cmp.Or(places[a].kind-places[b].kind, places[a].at-places[b].at)
	})
	sorted := make([]string, 0, len(subjects))
	visited := make(map[string]bool, len(subjects))
	var visit func(subject string)
	visit = func(subject string) {
		if visited[subject] {
			return
		}
		visited[subject] = true
		own := strings.TrimPrefix(subject, "table ")
		for _, needed := range qualifiedName.FindAllString(comment.ReplaceAllString(places[subject].needs, ""), -1) {
			if needed == own { // whose columns are its own
				continue
			}
			for _, other := range slices.Concat(called[needed], called[strings.TrimSuffix(needed, "(")]) {
				visit(other)
			}
		}
		sorted = append(sorted, subject)
	}
	for _, subject := range subjects {
		visit(subject)
	}
	copy(subjects, sorted)
}

// CalledBy are those of the functions without which the subjects cannot be brought back, and those without which these cannot.
func CalledBy(subjects, functions []string) (called []string, err error) {
	if len(functions) == 0 {
		return nil, nil
	}
	named := make(map[string][]string) // by how SQL calls them
	for _, subject := range functions {
		if words := subjectForm.FindStringSubmatch(subject); words != nil {
			named[words[2]+"("] = append(named[words[2]+"("], subject)
		}
	}
	for pending := slices.Clone(subjects); len(pending) > 0; pending = pending[1:] {
		text, err := SchemaStatements(pending[0])
		if err != nil {
			return nil, err
		}
		if strings.HasPrefix(pending[0], "function ") {
			text = parsedAtOnce(text)
		}
		for _, name := range qualifiedName.FindAllString(comment.ReplaceAllString(text, ""), -1) {
			for _, subject := range named[name] {
				if !slices.Contains(called, subject) && !slices.Contains(subjects, subject) {
					called, pending = append(called, subject), append(pending, subject)
				}
			}
		}
	}
	return called, nil
}

var (
	qualifiedName = regexp.MustCompile(`\b[a-z_]+\.[a-z0-9_]+\b\(?`)
	comment       = regexp.MustCompile(`--[^\n]*`)
)

// parsedAtOnce is what Postgres looks up in the definition of a function when that is made: all but a body that is a string.
func parsedAtOnce(statement string) string {
	head, _, found := strings.Cut(statement, "$")
	if !found {
		return statement
	}
	return head
}
