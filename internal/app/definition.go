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
	for line := range strings.Lines(db.SchemaSum) {
		if _, subject, found := strings.Cut(strings.TrimSpace(line), " "); found {
			subjects = append(subjects, subject)
		}
	}
	slices.Sort(subjects)
	return subjects
}

// SchemaStatements returns the SQL that makes an object of this build's schema as the migrations have it, whether it is missing or
// altered: from the newest step that defines it, with the grants of db/privileges.txt that go with an object. It is
// for psql, by a login that is a member of spectral_owner.
//
// What it cannot bring back are rows: those of a table that is gone, but for what migrations put in, and the values of a column. A column's
// type is said in a comment.
func SchemaStatements(subject string) (string, error) {
	words := subjectForm.FindStringSubmatch(subject)
	if words == nil || !slices.Contains(SchemaObjects(), subject) {
		return "", fmt.Errorf("this build's schema has no object %.200q; `workers migrate show` without one lists them", subject)
	}
	steps, err := migrationStatements()
	if err != nil {
		return "", err
	}
	d := definitions{steps: steps, kind: words[1], name: words[2], arguments: words[4], table: words[6]}
	statements, err := d.of(subject)
	if err != nil {
		return "", fmt.Errorf("%s: %w", subject, err)
	}
	return statements, nil
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
	words := subjectForm.FindStringSubmatch(subject)
	if words == nil {
		return ""
	}
	switch kind, name := words[1], words[2]; kind {
	case "table":
		return name
	case "column":
		return name[:strings.LastIndex(name, ".")]
	case "index":
		steps, err := migrationStatements()
		if err != nil {
			return ""
		}
		return definitions{steps: steps, name: name}.indexed()
	default:
		return words[6]
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

// migrationStatements are the statements of all steps upwards, in their order, without the comments before them.
var migrationStatements = sync.OnceValues(func() (all []string, err error) {
	files, err := fs.Glob(db.Migrations, "migrations/*.sql")
	if err != nil {
		return nil, err
	}
	slices.Sort(files)
	for _, file := range files {
		text, err := fs.ReadFile(db.Migrations, file)
		if err != nil {
			return nil, err
		}
		up, _, _ := strings.Cut(string(text), "-- +goose Down")
		for up != "" { // what goose is told to be one statement may have semicolons within
			many, rest, _ := strings.Cut(up, "-- +goose StatementBegin\n")
			all = append(all, splitStatements(many)...)
			single, rest, _ := strings.Cut(rest, "-- +goose StatementEnd\n")
			if single = strings.TrimSpace(leadingComments.ReplaceAllString(single, "")); single != "" {
				all = append(all, strings.TrimSuffix(single, ";"))
			}
			up = rest
		}
	}
	return all, nil
})

var leadingComments = regexp.MustCompile(`^(\s*--[^\n]*\n)+`)

// skip returns where what begins at i ends, if that is a comment or quoted; else i.
func skip(sql string, i int) int {
	rest := sql[i:]
	end := func(from int, closing string) int {
		if at := strings.Index(rest[from:], closing); at >= 0 {
			return i + from + at + len(closing)
		}
		return len(sql)
	}
	switch {
	case strings.HasPrefix(rest, "--"):
		return end(0, "\n")
	case strings.HasPrefix(rest, "'"), strings.HasPrefix(rest, `"`):
		return end(1, rest[:1])
	case strings.HasPrefix(rest, "$"):
		if tag := dollarTag.FindString(rest); tag != "" {
			return end(len(tag), tag)
		}
	}
	return i
}

var dollarTag = regexp.MustCompile(`^\$[a-z_]*\$`)

// splitStatements splits at semicolons that are neither quoted nor in a comment.
func splitStatements(sql string) (statements []string) {
	begin := -1
	for i := 0; i < len(sql); {
		if next := skip(sql, i); next > i {
			if begin < 0 && !strings.HasPrefix(sql[i:], "--") {
				begin = i
			}
			i = next
			continue
		}
		switch c := sql[i]; {
		case c == ';':
			if begin >= 0 {
				statements = append(statements, sql[begin:i])
			}
			begin = -1
		case begin < 0 && !strings.ContainsRune(" \t\r\n", rune(c)):
			begin = i
		}
		i++
	}
	return statements
}

// part returns sql from i to the comma or parenthesis that ends it, without comments, on one line.
func part(sql string, i int) string {
	var text strings.Builder
	for depth := 0; i < len(sql); {
		if next := skip(sql, i); next > i {
			if strings.HasPrefix(sql[i:], "--") {
				text.WriteByte(' ')
			} else {
				text.WriteString(sql[i:next])
			}
			i = next
			continue
		}
		switch sql[i] {
		case '(':
			depth++
		case ')':
			depth--
		}
		if depth < 0 || depth == 0 && sql[i] == ',' {
			break
		}
		text.WriteByte(sql[i])
		i++
	}
	return strings.Join(strings.Fields(text.String()), " ")
}

// definitions looks for what defines an object.
type definitions struct {
	steps                        []string
	kind, name, arguments, table string
}

// newest is the last statement that a pattern fits and that passes, or -1, and where in it the pattern ends.
func (d definitions) newest(pattern string, passes func(statement string, end int) bool) (at, end int) {
	form := regexp.MustCompile(`(?s)^` + pattern)
	for at, statement := range slices.Backward(d.steps) {
		for _, found := range form.FindAllStringIndex(statement, -1) {
			if passes == nil || passes(statement, found[1]) {
				return at, found[1]
			}
		}
	}
	return -1, 0
}

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

func (d definitions) of(subject string) (string, error) {
	quoted := regexp.QuoteMeta(d.name)
	switch d.kind {
	case "function":
		return d.function(subject)
	case "trigger", "policy":
		at, _ := d.newest(`create (constraint )?`+d.kind+` `+quoted+`\b.*?\bon `+regexp.QuoteMeta(d.table)+`\b`, nil)
		if at < 0 {
			return "", errNoDefinition
		}
		return transaction(append([]string{fmt.Sprintf("drop %s if exists %s on %s", d.kind, d.name, d.table), d.steps[at]},
			d.newComments(d.kind+" "+d.name+" on "+d.table)...)...), nil
	case "index":
		return d.index()
	case "constraint":
		return d.constraint(d.table, d.name)
	case "query of view":
		return d.view(d.name)
	case "table":
		if at, _ := d.newest(`create (or replace )?view `+quoted+`\b`, nil); at >= 0 {
			return d.view(d.name)
		}
		return d.wholeTable()
	case "column":
		return d.column()
	default: // a schema
		return "-- a schema that is gone has taken its rows with it: restore it from a backup\n" + transaction(d.comments("schema "+d.name)...), nil
	}
}

var errNoDefinition = fmt.Errorf("no step defines it by a statement of its own")

// comments is the newest statement that comments on something, or one that takes away whatever does.
func (d definitions) comments(on string) []string {
	at, _ := d.newest(`comment on `+regexp.QuoteMeta(on)+`\s+is\s`, nil)
	if at < 0 {
		return []string{"comment on " + on + " is null"}
	}
	return []string{d.steps[at]}
}

// newComments is comments on what has just been made.
func (d definitions) newComments(on string) []string {
	if found := d.comments(on); !strings.HasSuffix(found[0], " is null") {
		return found
	}
	return nil
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

var (
	argumentDefault = regexp.MustCompile(`(?s)\s(default\s|=).*$`)
	argumentName    = regexp.MustCompile(`^(in |inout |variadic )?[a-z_][a-z0-9_]* (.+)$`)
)

// argumentTypes writes the types of a list of arguments as Postgres does; i is behind its parenthesis.
func argumentTypes(statement string, i int) string {
	var types []string
	for {
		argument := part(statement, i)
		for depth := 0; i < len(statement); i++ {
			switch statement[i] {
			case '(':
				depth++
			case ')':
				depth--
			}
			if depth < 0 || depth == 0 && statement[i] == ',' {
				break
			}
		}
		argument = argumentDefault.ReplaceAllString(argument, "")
		if named := argumentName.FindStringSubmatch(argument); named != nil && named[1]+named[2] != "precision" {
			argument = named[2]
		}
		argument = strings.ReplaceAll(argument, "timestamptz", "timestamp with time zone")
		if argument != "" {
			types = append(types, strings.TrimPrefix(argument, "core."))
		}
		if i >= len(statement) || statement[i] != ',' {
			return strings.Join(types, ", ")
		}
		i++
	}
}

// definedAt is which of the steps' statements is the newest that defines a function, or -1.
func (d definitions) definedAt() int {
	at, _ := d.newest(`create (or replace )?function `+regexp.QuoteMeta(d.name)+`\(`, func(statement string, end int) bool {
		return argumentTypes(statement, end) == strings.ReplaceAll(d.arguments, "core.", "")
	})
	return at
}

func (d definitions) function(subject string) (string, error) {
	ours := func(statement string, end int) bool {
		return argumentTypes(statement, end) == strings.ReplaceAll(d.arguments, "core.", "")
	}
	quoted := regexp.QuoteMeta(d.name)
	at := d.definedAt()
	if at < 0 {
		return "", errNoDefinition
	}
	statements := []string{regexp.MustCompile(`^create function`).ReplaceAllString(d.steps[at], "create or replace function")}
	altered := regexp.MustCompile(`(?s)^alter function ` + quoted + `\(`)
	for _, later := range d.steps[at+1:] {
		if found := altered.FindStringIndex(later); found != nil && ours(later, found[1]) {
			statements = append(statements, later)
		}
	}
	object := "function " + d.name + "(" + d.arguments + ")"
	statements = append(statements, d.comments(object)...)
	statements = append(append(statements, "revoke all on "+object+" from public"), grants(object)...)
	return "-- if it is refused because what it returns is another: drop " + subject + "; first\n" + transaction(statements...), nil
}

func (d definitions) view(name string) (string, error) {
	at, _ := d.newest(`create (or replace )?view `+regexp.QuoteMeta(name)+`\b`, nil)
	if at < 0 {
		return "", errNoDefinition
	}
	statements := append([]string{"drop view if exists " + name, d.steps[at]}, d.comments("view "+name)...)
	for _, subject := range SchemaObjects() {
		if column, found := strings.CutPrefix(subject, "column "+name+"."); found {
			statements = append(statements, d.comments("column "+name+"."+column)...)
		}
	}
	return transaction(append(statements, grants("view "+name)...)...), nil
}

// indexed is the table of an index.
func (d definitions) indexed() string {
	schema, name, _ := strings.Cut(d.name, ".")
	at, end := d.newest(`create (unique )?index (concurrently )?`+regexp.QuoteMeta(name)+` on (only )?`+schema+`\.[a-z_]+`, nil)
	if at >= 0 {
		statement := d.steps[at][:end]
		return statement[strings.LastIndex(statement, " ")+1:]
	}
	for _, subject := range SchemaObjects() {
		if table, found := strings.CutPrefix(subject, "constraint "+name+" of "); found {
			return table
		}
	}
	return ""
}

// index is built beside who writes, and so in no transaction. That of a key is its constraint's.
// One that is there is read until the other one is; the two change names, which keeps nobody waiting, before it is dropped: that makes it
// invalid at once, and lasts as long as the oldest snapshot.
func (d definitions) index() (string, error) {
	schema, name, _ := strings.Cut(d.name, ".")
	at, end := d.newest(`create (unique )?index (concurrently )?`+regexp.QuoteMeta(name)+` on (only )?`+schema+`\.`, nil)
	if at < 0 {
		for _, subject := range SchemaObjects() {
			if table, found := strings.CutPrefix(subject, "constraint "+name+" of "); found {
				return d.constraint(table, name)
			}
		}
		return "", errNoDefinition
	}
	unique, warning := "", ""
	_, rest, _ := strings.Cut(d.steps[at], " on ")
	if strings.HasPrefix(d.steps[at][:end], "create unique ") {
		unique = "unique "
		if form := uniqueIndex.FindStringSubmatch(rest); form != nil {
			warning = duplicates(form[1], form[2], form[3])
		}
	}
	anew, former := name+"_anew", schema+"."+name+"_former"
	text := warning + aside(schema+"."+anew, former) + "create " + unique + "index concurrently " + anew + " on " + rest + ";\n" +
		transaction(valid(schema+"."+anew), "alter index if exists "+d.name+" rename to "+name+"_former", "alter index "+schema+"."+anew+" rename to "+name) +
		"drop index concurrently if exists " + former + ";\n"
	for _, c := range d.newComments("index " + d.name) {
		text += c + ";\n"
	}
	return text + "reset role;\n", nil
}

var (
	uniqueIndex = regexp.MustCompile(`(?s)^(\S+) \(([^()]*)\)(?: nulls not distinct)?(\s+where .*)?$`)
	keyForm     = regexp.MustCompile(`^constraint \S+ (primary key|unique)( nulls not distinct)? \(([^()]*)\)$`)
)

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
func (d definitions) constraint(table, name string) (string, error) {
	text := d.constraintText(table, name)
	if text == "" {
		return "", errNoDefinition
	}
	drop := "alter table " + table + " drop constraint if exists " + name
	add := "alter table " + table + " add " + text
	comments := d.newComments("constraint " + name + " on " + table)
	if strings.Contains(text, " check ") || strings.Contains(text, " foreign key ") {
		if strings.HasSuffix(text, " not valid") { // and stays so
			return transaction(append([]string{drop, add}, comments...)...), nil
		}
		return transaction(append([]string{drop, add + " not valid"}, comments...)...) +
			transaction("alter table "+table+" validate constraint "+name), nil
	}
	schema, _, _ := strings.Cut(table, ".")
	before, validated := "", ""
	statements := []string{drop}
	if key := keyForm.FindStringSubmatch(text); key != nil {
		before = duplicates(table, key[3], "") + aside(schema+"."+name+"_anew") +
			fmt.Sprintf("create unique index concurrently %s_anew on %s (%s)%s;\nreset role;\n", name, table, key[3], key[2]) +
			"-- if this is refused because it waited too long for somebody, it alone can be repeated\n"
		statements = append(statements, "drop index if exists "+schema+"."+name)
		add = fmt.Sprintf("alter table %s add constraint %s %s using index %[2]s_anew", table, name, key[1])
	}
	statements = append(append(statements, add), comments...)
	for _, subject := range SchemaObjects() {
		words := subjectForm.FindStringSubmatch(subject)
		if words == nil || words[1] != "constraint" {
			continue
		}
		if refers := d.constraintText(words[6], words[2]); strings.Contains(refers, " references "+table+" ") { // which may be missing, too
			alter := "alter table if exists " + words[6]
			statements = append(append([]string{alter + " drop constraint if exists " + words[2]}, statements...), alter+" add "+refers+" not valid")
			validated += transaction(alter + " validate constraint " + words[2])
		}
	}
	return before + transaction(statements...) + validated, nil
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

// constraintText is what the newest step says of a constraint; empty: none says anything.
func (d definitions) constraintText(table, name string) string {
	named := regexp.MustCompile(`\bconstraint ` + regexp.QuoteMeta(name) + `\s`)
	for _, statement := range slices.Backward(d.steps) {
		if !strings.HasPrefix(statement, "create table "+table+" ") && !strings.HasPrefix(statement, "alter table "+table) {
			continue
		}
		for _, found := range slices.Backward(named.FindAllStringIndex(statement, -1)) {
			text := part(statement, found[0])
			if !strings.HasPrefix(text, "constraint "+name+" ") { // it is dropped there
				continue
			}
			return text
		}
	}
	return ""
}

// column gives it back its form, and a default for its values.
func (d definitions) column() (string, error) {
	dot := strings.LastIndex(d.name, ".")
	table, name := d.name[:dot], d.name[dot+1:]
	if at, _ := d.newest(`create (or replace )?view `+regexp.QuoteMeta(table)+`\b`, nil); at >= 0 {
		return d.view(table)
	}
	definition := d.columnText(table, name)
	if definition == "" {
		return "", errNoDefinition
	}
	alter := "alter table " + table + " alter column " + name
	kind, attributes := definition, ""
	if at := columnAttribute.FindStringIndex(definition); at != nil {
		kind, attributes = definition[:at[0]], definition[at[0]:]
	}
	null := alter + " drop not null"
	if strings.Contains(attributes, " not null") {
		null = alter + " set not null"
	}
	value := alter + " drop default"
	if given := columnDefault.FindStringSubmatch(attributes); given != nil {
		value = alter + " set default " + given[1]
	}
	if strings.Contains(attributes, " generated ") {
		null, value = "", ""
	}
	return "-- its type is " + kind + "; a missing column is made anew, and what it held is lost\n" +
		transaction(append([]string{"alter table " + table + " add column if not exists " + name + " " + definition, value, null},
			d.comments("column "+table+"."+name)...)...), nil
}

// columnText is what the newest step says of a column; empty: none says anything.
func (d definitions) columnText(table, name string) string {
	form := regexp.MustCompile(`^(?:create table ` + regexp.QuoteMeta(table) + ` \(|alter table ` + regexp.QuoteMeta(table) + `\s)`)
	line := regexp.MustCompile(`(?m)(?:^  |add column (?:if not exists )?)` + regexp.QuoteMeta(name) + ` `)
	for _, statement := range slices.Backward(d.steps) {
		if !form.MatchString(statement) {
			continue
		}
		if found := line.FindStringIndex(statement); found != nil {
			return part(statement, found[1])
		}
	}
	return ""
}

var (
	columnAttribute = regexp.MustCompile(` (not null|null|default|generated|constraint|check|references|primary key)\b.*$`)
	columnDefault   = regexp.MustCompile(` default (.*?)( not null| null| constraint .*)?$`)
)

var storage = regexp.MustCompile(`(?s)\)\s*with \((.*)\)\s*$`)

// wholeTable gives it back its options, and a missing one its columns and the rows that steps have put in: one that is there may have
// been relieved of them.
func (d definitions) wholeTable() (string, error) {
	quoted := regexp.QuoteMeta(d.name)
	at, _ := d.newest(`create table `+quoted+` \(`, nil)
	if at < 0 {
		return "", errNoDefinition
	}
	statements := []string{strings.Replace(d.steps[at], "create table", "create table if not exists", 1),
		fmt.Sprintf("do $$ declare v_option text; begin for v_option in select pg_catalog.split_part(o, '=', 1) from pg_catalog.pg_class c, pg_catalog.unnest(c.reloptions) as o where c.oid = '%[1]s'::pg_catalog.regclass "+
			"loop execute pg_catalog.format('alter table %[1]s reset (%%s)', v_option); end loop; end $$", d.name)}
	if options := storage.FindStringSubmatch(d.steps[at]); options != nil {
		statements = append(statements, "alter table "+d.name+" set ("+strings.Join(strings.Fields(part("("+options[1]+")", 0)), " ")[1:])
	}
	secured := "alter table " + d.name + " disable row level security, no force row level security"
	for _, later := range d.steps[at+1:] {
		if strings.HasPrefix(later, "alter table "+d.name+" ") && (strings.Contains(later, " set (") || strings.Contains(later, " row level security")) {
			statements = append(statements, later)
			if strings.Contains(later, "enable row level security") {
				secured = "alter table " + d.name + " no force row level security"
			}
		}
	}
	seeds := ""
	for _, later := range d.steps[at+1:] {
		if strings.HasPrefix(later, "insert into "+d.name+" ") {
			seeds += later + ";\n"
		}
	}
	if seeds != "" {
		statements[0] = fmt.Sprintf("select pg_catalog.to_regclass('%s') is null as made_anew \\gset\n", d.name) + statements[0]
		secured = "\\if :made_anew\n" + seeds + "\\endif\n" + secured
	}
	statements = append(append(statements, secured), d.comments("table "+d.name)...)
	return "-- a missing table is made anew, and what it held is lost: restore that from a backup\n" + transaction(append(statements, grants("table "+d.name)...)...), nil
}

// SortForCreation puts subjects into the order in which [SchemaStatements] brings them back: what others stand on comes first.
func SortForCreation(subjects []string) {
	steps, err := migrationStatements()
	if err != nil {
		return
	}
	type place struct {
		kind, at int
		needs    string // what has to be there is named in it
	}
	kinds := []string{"schema", "type", "table", "column", "function", "constraint", "index", "query", "trigger", "policy"}
	places := make(map[string]place, len(subjects))
	called := make(map[string][]string) // subjects by how SQL names them; a table stands for its columns
	for _, subject := range subjects {
		kind, _, _ := strings.Cut(subject, " ")
		p := place{kind: slices.Index(kinds, kind)}
		words := subjectForm.FindStringSubmatch(subject)
		if words == nil {
			places[subject] = p
			continue
		}
		name := words[2]
		d := definitions{steps: steps, name: name, arguments: words[4]}
		switch kind {
		case "function":
			p.at = d.definedAt()
			if p.at >= 0 {
				p.needs = parsedAtOnce(steps[p.at])
			}
			called[name+"("] = append(called[name+"("], subject)
		case "table", "column", "query":
			column := ""
			if dot := strings.LastIndex(name, "."); kind == "column" {
				name, column = name[:dot], name[dot+1:]
			}
			if at, _ := d.newest(`create (or replace )?view `+regexp.QuoteMeta(name)+`\b`, nil); at >= 0 {
				p = place{kind: slices.Index(kinds, "query"), at: at, needs: steps[at]}
			} else if column != "" {
				p.needs = name + " " + d.columnText(name, column)
			} else if p.at, _ = d.newest(`create table `+regexp.QuoteMeta(name)+` \(`, nil); p.at >= 0 {
				p.needs = steps[p.at]
			}
			called[name] = append(called[name], subject)
		case "constraint":
			if strings.Contains(d.constraintText(words[6], name), " foreign key ") {
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
