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
		if words := subjectForm.FindStringSubmatch(o.Subject); words != nil {
			all[o.Subject] = definition{o, words[1], words[2], words[4], words[6]}
		}
	}
	return all
})

// definition is an object of this build's schema with the parts of its subject.
type definition struct {
	SchemaObject
	kind, name, arguments, table string
}

// SchemaStatements returns the SQL that makes an object of this build's schema as the migrations have it, whether it is missing or
// altered: as db/schema.txt has it, with the grants of db/privileges.txt that go with an object. It is
// for psql, by a login that is a member of spectral_owner.
//
// What it cannot bring back are rows: those of a table that is gone, but for what migrations put in, and the values of a column. A column's
// type is said in a comment.
func SchemaStatements(subject string) (string, error) {
	d, found := declared()[subject]
	if !found {
		return "", fmt.Errorf("this build's schema has no object %.200q; `workers migrate show` without one lists them", subject)
	}
	switch d.kind {
	case "function":
		object := "function " + d.name + "(" + d.arguments + ")"
		return "-- if it is refused because what it returns is another: drop " + subject + "; first\n" +
			transaction(append([]string{d.Definition, d.comment(object), "revoke all on " + object + " from public"}, grants(object)...)...), nil
	case "trigger", "policy":
		return transaction(fmt.Sprintf("drop %s if exists %s on %s", d.kind, d.name, d.table), d.Definition, d.newComment(d.kind+" "+d.name+" on "+d.table)), nil
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
		return "-- a schema that is gone has taken its rows with it: restore it from a backup\n" + transaction(d.comment("schema "+d.name)), nil
	}
}

// SchemaDropStatement drops an object that is not of this build's schema; empty: no statement should be recommended.
func SchemaDropStatement(subject string) string {
	words := subjectForm.FindStringSubmatch(subject)
	if words == nil {
		return ""
	}
	kind, name, arguments, table := words[1], words[2], words[3], words[6]
	switch kind {
	case "function", "index":
		return fmt.Sprintf("drop %s %s%s;", kind, name, arguments)
	case "trigger", "policy":
		return fmt.Sprintf("drop %s %s on %s;", kind, name, table)
	case "constraint":
		return fmt.Sprintf("alter table %s drop constraint %s;", table, name)
	default: // it may hold rows
		return ""
	}
}

// TableOf is the table that an object of this build's schema is or belongs to; empty: none.
func TableOf(subject string) string {
	d := declared()[subject]
	switch d.kind {
	case "table":
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

// isView says whether a table is one.
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
	if columns := uniqueIndex.FindStringSubmatch(rest); columns != nil && unique != "" {
		warning = duplicates(table, columns[1], columns[2])
	}
	anew, former := name+"_anew", schema+"."+name+"_former"
	text := warning + aside(schema+"."+anew, former) + "create " + unique + "index concurrently " + anew + " on " + table + " " + rest + ";\n" +
		transaction(valid(schema+"."+anew), "alter index if exists "+d.name+" rename to "+name+"_former", "alter index "+schema+"."+anew+" rename to "+name) +
		"drop index concurrently if exists " + former + ";\n"
	if comment := d.newComment("index " + d.name); comment != "" {
		text += comment + ";\n"
	}
	return text + "reset role;\n", nil
}

// aside begins what builds an index beside who writes; what an earlier attempt has left is dropped.
func aside(leftovers ...string) string {
	text := "set role spectral_owner;\nset lock_timeout = 0;\nset statement_timeout = 0;\n"
	for _, index := range leftovers {
		text += "drop index concurrently if exists " + index + ";\n"
	}
	return text
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

// constraint is added first and then checked, so that nobody waits meanwhile; a key is added when its index has been built. It takes
// those that refer to it with it.
func (d definition) constraint() string {
	alter := "alter table " + d.table
	drop, add := alter+" drop constraint if exists "+d.name, alter+" add constraint "+d.name+" "+d.Definition
	comment := d.newComment("constraint " + d.name + " on " + d.table)
	key := keyForm.FindStringSubmatch(d.Definition)
	switch {
	case key != nil:
	case strings.HasSuffix(d.Definition, " NOT VALID"): // and stays so
		return transaction(drop, add, comment)
	default:
		return transaction(drop, add+" not valid", comment) + transaction(alter+" validate constraint "+d.name)
	}
	schema, _, _ := strings.Cut(d.table, ".")
	before := duplicates(d.table, key[3], "") + aside(schema+"."+d.name+"_anew") +
		fmt.Sprintf("create unique index concurrently %s_anew on %s (%s)%s;\nreset role;\n", d.name, d.table, key[3], key[2]) +
		"-- if this is refused because it waited too long for somebody, it alone can be repeated\n"
	statements := []string{drop, "drop index if exists " + schema + "." + d.name, fmt.Sprintf("%s add constraint %s %s using index %[2]s_anew", alter, d.name, key[1]), comment}
	validated := ""
	for _, o := range declaredSchema() {
		refers := declared()[o.Subject]
		if refers.kind == "constraint" && strings.Contains(refers.Definition, " REFERENCES "+d.table+"(") { // which may be missing, too
			alter := "alter table if exists " + refers.table
			statements = append(append([]string{alter + " drop constraint if exists " + refers.name}, statements...), alter+" add constraint "+refers.name+" "+refers.Definition+" not valid")
			validated += transaction(alter + " validate constraint " + refers.name)
		}
	}
	return before + transaction(statements...) + validated
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
	kind, attributes := d.Definition, ""
	if at := columnAttribute.FindStringIndex(kind); at != nil {
		kind, attributes = kind[:at[0]], kind[at[0]:]
	}
	attributes, value, set := strings.Cut(attributes, " default ")
	if set {
		value = alter + " set default " + value
	} else {
		value = alter + " drop default"
	}
	null := alter + " drop not null"
	if strings.HasPrefix(attributes, " not null") {
		null = alter + " set not null"
	}
	if strings.Contains(attributes, " generated ") {
		null, value = "", ""
	}
	return "-- its type is " + kind + "; a missing column is made anew, and what it held is lost\n" +
		transaction("alter table "+table+" add column if not exists "+d.short()+" "+d.Definition, value, null, d.comment("column "+d.name))
}

// short is the name of a column without its table's.
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
