package main

import (
	"bytes"
	"embed"
	"errors"
	"fmt"
	"go/format"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"text/template"
)

//go:embed templates
var templates embed.FS

// files are what an event consists of: each template, the path that it is written to, itself a template, and what the
// doc.go beside it says of the file.
var files = []struct{ template, path, about string }{
	{"contract.go.tmpl", "internal/{{.Source}}/contracts/events/{{.Noun}}.go", "{{.Type}}"},
	{"publish.go.tmpl", "internal/{{.Source}}/application/{{.Noun}}.go", "publishes {{.Type}}"},
	{"domain.go.tmpl", "internal/{{.Target}}/domain/{{.Noun}}.go", "what is recorded of {{.Type}}"},
	{"handler.go.tmpl", "internal/{{.Target}}/infrastructure/events/{{.Noun}}_recorder.go", "records {{.Type}}"},
	{"repository.go.tmpl", "internal/{{.Target}}/infrastructure/postgres/{{.Noun}}.go", "stores what is recorded"},
	{"query.sql.tmpl", "db/queries/{{.Target}}/{{.Noun}}.sql", ""},
	{"migration.sql.tmpl", "db/migrations/{{.Number}}_{{.Target}}_{{.Noun}}.sql", ""},
	{"arrives_test.go.tmpl", "tests/integration/{{.Noun}}_test.go", ""},
}

// insertion is a line that goes into a file that exists: before the first end after start, or at the end of the file.
type insertion struct{ path, start, end, line string }

// insertions returns the lines that an event adds.
func insertions() []insertion {
	all := slices.Clone(wiring)
	for _, f := range files {
		if f.about != "" {
			line := "//   - " + path.Base(f.path) + ": " + f.about
			all = append(all, insertion{path.Dir(f.path) + "/doc.go", "// Package ", "\npackage ", line})
		}
	}
	return all
}

var wiring = []insertion{
	{"internal/app/contracts.go", "events.NewContracts(", "\n\t)", "\t\t{{.Source}}.{{.Name}}Contract(),"},
	{"internal/app/consumers.go", "return []ConsumerBuilder{", "\n\t}", "\t\tbuild{{.Name}}Consumer,"},
	{"internal/app/consumers.go", "", "", `
func build{{.Name}}Consumer(deps Deps) events.Subscription {
	return deps.consumer({{.Source}}.{{.Name}}Contract(), events.Registration{
		Name: {{.Target}}events.{{.Name}}RecorderName, Reads: {{.Target}}events.{{.Name}}Event{},
		Handler: func(tx events.Tx) events.EventHandler {
			return {{.Target}}events.{{.Name}}Recorder({{.Target}}pg.New{{.Name}}Records(tx))
		},
	})
}`},
}

// event is what the templates are filled with.
type event struct {
	Type, Source, Target string
	Noun, Name           string // memory_retired, MemoryRetired
	Number               string // of the migration
	Fields               []field
	// of two events about one thing, the one with the higher value stays; nil if the first stays
	Newer *field
}

// field is one field of the payload, and a column of the recorder's table.
type field struct {
	JSON, Name          string // memory_id, MemoryID
	Go, SQL             string // types
	Tag, Check, Example string
}

// kinds are the kinds of fields, without their names. In Check, %s is the column.
var kinds = map[string]field{
	"uuid": {Go: "uuid.UUID", SQL: "uuid", Example: `uuid.MustParse("01936e5c-7d00-7000-8000-0000000000a1")`},
	"text": {Go: "string", SQL: "text", Tag: "minLength=1,maxLength=200", Check: "octet_length(%s) between 1 and 800",
		Example: `"an example"`},
	"int":    {Go: "int64", SQL: "bigint", Tag: "minimum=0", Check: "%s >= 0", Example: "1"},
	"number": {Go: "float64", SQL: "double precision", Example: "0.5"},
	"bool":   {Go: "bool", SQL: "boolean", Example: "true"},
	"time":   {Go: "time.Time", SQL: "timestamptz", Example: "time.Date(2026, 3, 5, 8, 0, 0, 0, time.UTC)"},
}

var (
	contexts  = []string{"platform", "worlds"}
	typeForm  = regexp.MustCompile(`^([a-z]+)((\.[a-z][a-z0-9_]*)+)$`)
	fieldForm = regexp.MustCompile(`^([a-z][a-z0-9_]*):([a-z]+)$`)
)

// newEvent reads the arguments of `make event`. The error names the argument and what it must be.
func newEvent(eventType, target, fields string) (event, error) {
	parts := typeForm.FindStringSubmatch(eventType)
	if parts == nil || !slices.Contains(contexts, parts[1]) {
		return event{}, fmt.Errorf("NAME=%s: must be lower-case words joined by dots, the first of them the context that "+
			"publishes", eventType)
	}
	if !slices.Contains(contexts, target) {
		return event{}, fmt.Errorf("TO=%s: must be the context that handles the event, platform or worlds", target)
	}
	noun := strings.ReplaceAll(parts[2][1:], ".", "_")
	e := event{Type: eventType, Source: parts[1], Target: target, Noun: noun, Name: goName(noun)}
	seen := map[string]bool{"id": true, "workspace_id": true}
	for text := range strings.FieldsSeq(fields) {
		parts := fieldForm.FindStringSubmatch(text)
		if parts == nil {
			return event{}, fmt.Errorf("FIELDS: %s must be NAME:KIND", text)
		}
		f, known := kinds[parts[2]]
		switch {
		case !known:
			return event{}, fmt.Errorf("FIELDS: %s is no kind of field", text)
		case seen[parts[1]]:
			return event{}, fmt.Errorf("FIELDS: %s is taken, by another field or by a column of the table", parts[1])
		}
		seen[parts[1]] = true
		f.JSON, f.Name = parts[1], goName(parts[1])
		if f.Check != "" {
			f.Check = fmt.Sprintf(f.Check, f.JSON)
		}
		e.Fields = append(e.Fields, f)
	}
	if len(e.Fields) == 0 {
		return event{}, errors.New("FIELDS: must have at least the field that identifies what the event is about")
	}
	for _, f := range e.Fields[1:] {
		if f.JSON == "version" && f.Go == "int64" {
			e.Newer = &f
		}
	}
	return e, nil
}

// goName turns memory_id into MemoryID, as sqlc does.
func goName(name string) string {
	var b strings.Builder
	for word := range strings.SplitSeq(name, "_") {
		if word == "id" {
			word = "ID"
		}
		if word != "" {
			b.WriteString(strings.ToUpper(word[:1]) + word[1:])
		}
	}
	return b.String()
}

// Key is the field that identifies what the event is about.
func (e event) Key() field { return e.Fields[0] }

// Rest is the fields after Key.
func (e event) Rest() []field { return e.Fields[1:] }

// Uses reports whether a field has the Go type.
func (e event) Uses(goType string) bool {
	return slices.ContainsFunc(e.Fields, func(f field) bool { return f.Go == goType })
}

// Columns lists the columns of the fields, each behind prefix.
func (e event) Columns(prefix string) string {
	names := make([]string, len(e.Fields))
	for i, f := range e.Fields {
		names[i] = prefix + f.JSON
	}
	return strings.Join(names, ", ")
}

// write writes the files of the event below root and returns their paths. It writes none if one exists already.
func (e event) write(root string) (paths []string, err error) {
	migrations, err := filepath.Glob(filepath.Join(root, "db/migrations/*.sql"))
	if err != nil {
		return nil, err
	}
	e.Number = fmt.Sprintf("%05d", len(migrations)+1) // they are numbered from 1 without gaps
	contents := make(map[string][]byte)
	for _, f := range files {
		path := e.fill(f.path)
		if _, err := os.Stat(filepath.Join(root, path)); !errors.Is(err, fs.ErrNotExist) {
			return nil, fmt.Errorf("%s exists already, and nothing was written: take another NAME, or delete it", path)
		}
		text, err := templates.ReadFile("templates/" + f.template)
		if err != nil {
			return nil, err
		}
		contents[path], paths = []byte(e.fill(string(text))), append(paths, path)
	}
	for _, i := range insertions() {
		path := e.fill(i.path)
		text, known := contents[path]
		if !known {
			if text, err = os.ReadFile(filepath.Join(root, path)); err != nil {
				return nil, err
			}
			paths = append(paths, path)
		}
		if contents[path], err = insert(text, i.start, i.end, e.fill(i.line)); err != nil {
			return nil, fmt.Errorf("%s: %w", path, err)
		}
	}
	for _, path := range paths {
		text := contents[path]
		if strings.HasSuffix(path, ".go") {
			if text, err = format.Source(text); err != nil {
				return nil, fmt.Errorf("%s: %w", path, err)
			}
		}
		if err := os.WriteFile(filepath.Join(root, path), text, 0o644); err != nil {
			return nil, err
		}
	}
	return paths, nil
}

// fill fills a template of this package. It panics if the template is wrong.
func (e event) fill(text string) string {
	var b strings.Builder
	if err := template.Must(template.New("").Parse(text)).Execute(&b, e); err != nil {
		panic(err)
	}
	return b.String()
}

func insert(text []byte, start, end, line string) ([]byte, error) {
	at := len(bytes.TrimRight(text, "\n"))
	if start != "" {
		_, list, _ := bytes.Cut(text, []byte(start))
		length := bytes.Index(list, []byte(end))
		if length < 0 {
			return nil, fmt.Errorf("has no list between %q and %q, where the event is listed", start, end)
		}
		at = len(text) - len(list) + length
	}
	return slices.Concat(text[:at], []byte("\n"+line), text[at:]), nil
}
