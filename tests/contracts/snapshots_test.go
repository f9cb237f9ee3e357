package contracts_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/invopop/jsonschema"

	"spectral/internal/core/events"
)

// Every version of a payload that was ever published has its schema here, and an example that its consumers must be
// able to read for as long as there is one in the outbox.
const snapshots = "testdata"

func snapshotFile(eventType string, version int, kind string) string {
	return filepath.Join(snapshots, eventType, fmt.Sprintf("v%d.%s.json", version, kind))
}

// snapshotVersions are those with a schema, in order.
func snapshotVersions(t testing.TB, eventType string) (versions []int) {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(snapshots, eventType, "v*.schema.json"))
	must(t, err)
	for _, file := range files {
		var version int
		if _, err := fmt.Sscanf(filepath.Base(file), "v%d.schema.json", &version); err != nil {
			t.Fatalf("%s is no snapshot: call it v<event_version>.schema.json", file)
		}
		versions = append(versions, version)
	}
	slices.Sort(versions)
	return versions
}

// TestSnapshots compares every contract with what was published under its type before.
func TestSnapshots(t *testing.T) {
	t.Parallel()
	all := shipped(t)
	for _, c := range all {
		before := make(map[int]*jsonschema.Schema)
		for _, version := range snapshotVersions(t, c.Type) {
			text, err := os.ReadFile(snapshotFile(c.Type, version, "schema"))
			must(t, err)
			before[version] = new(jsonschema.Schema)
			must(t, json.Unmarshal(text, before[version]))
		}
		problems := drift(c, before)
		for _, problem := range problems {
			t.Error(problem)
		}
		if before[c.Version] == nil && len(problems) == 0 { // a snapshot of what breaks the ones before would make it right
			keep(t, snapshotFile(c.Type, c.Version, "schema"), c.Schema())
		}
		example, err := json.Marshal(c.Payload)
		must(t, err)
		if misfit := misfit(t, c, example); misfit != nil {
			t.Errorf("contract %s version %d: its example Payload breaks its own rules, change one of them: %v", c.Type,
				c.Version, misfit)
			continue
		}
		keep(t, snapshotFile(c.Type, c.Version, "example"), c.Payload)
		for _, empty := range emptyFields(reflect.ValueOf(c.Payload), "") {
			t.Errorf("contract %s version %d: %s of its example Payload is empty: give it a value, for the catalog shows it "+
				"and consumers are tried with it", c.Type, c.Version, empty)
		}
	}
	folders, err := os.ReadDir(snapshots)
	must(t, err)
	for _, folder := range folders {
		if !slices.ContainsFunc(all, func(c events.Contract) bool { return c.Type == folder.Name() }) {
			t.Errorf("%s was published once and has no contract any more: the outbox may hold some. Deprecate it "+
				"(events.Deprecation); once none is left anywhere, delete tests/contracts/testdata/%[1]s and "+
				"docs/events/%[1]s.md", folder.Name())
		}
	}
}

// keep compares a golden file with v, or writes it.
func keep(t *testing.T, file string, v any) {
	t.Helper()
	got := pretty(t, v)
	if *update {
		must(t, os.MkdirAll(filepath.Dir(file), 0o755))
		must(t, os.WriteFile(file, []byte(got), 0o644))
	}
	want, err := os.ReadFile(file)
	if errors.Is(err, fs.ErrNotExist) {
		t.Errorf("tests/contracts/%s is missing: run `make generate`", file)
		return
	}
	must(t, err)
	if got != string(want) {
		t.Errorf("tests/contracts/%s is not what the code says: run `make generate` and read the diff. It is now:\n%s", file,
			got)
	}
}

// drift says what is wrong with a contract, given the schemas of all versions published before.
func drift(c events.Contract, before map[int]*jsonschema.Schema) (problems []string) {
	fail := func(format string, args ...any) {
		problems = append(problems, fmt.Sprintf("contract %s version %d: ", c.Type, c.Version)+fmt.Sprintf(format, args...))
	}
	var latest int
	for version := range before {
		latest = max(latest, version)
	}
	if c.Version < latest {
		fail("version %d was published already: versions only go up", latest)
		return problems
	}
	changed := false
	for _, version := range slices.Sorted(maps.Keys(before)) {
		breaking, differs := compare("", before[version], c.Schema())
		for _, b := range breaking {
			fail("%s since version %d. Consumers of events published before would break: leave it as it was, or publish a "+
				"new event type %s and deprecate this one (docs/adding-an-event.md); or, if version %[2]d was never deployed "+
				"anywhere, delete tests/contracts/testdata/%[4]s/v%[2]d.schema.json and run `make generate`", b, version,
				successorOf(c.Type), c.Type)
		}
		if len(breaking) > 0 {
			return problems // of later versions it would be said again
		}
		changed = version == c.Version && differs
	}
	if changed {
		fail("the payload changed, and its event_version did not: raise the constant ...Version to %d, then `make "+
			"generate`; "+
			"or, if version %d was never deployed anywhere, delete tests/contracts/testdata/%s/v%[2]d.schema.json first",
			c.Version+1, c.Version, c.Type)
	}
	return problems
}

// successorOf returns the type that a breaking change of eventType has.
func successorOf(eventType string) string {
	base, version, ok := strings.Cut(eventType, ".v")
	n := 1
	if ok {
		if _, err := fmt.Sscanf(version, "%d", &n); err != nil {
			return eventType + ".v2"
		}
	}
	return fmt.Sprintf("%s.v%d", base, n+1)
}

// compare lists what would break a consumer of old, and reports whether anything differs. Only an
// optional field may be added.
func compare(at string, old, now *jsonschema.Schema) (breaking []string, changed bool) {
	fail := func(format string, args ...any) { breaking = append(breaking, fmt.Sprintf(format, args...)) }
	place := at
	if place == "" {
		place = "the payload"
	}
	plain := func(s *jsonschema.Schema) string {
		c := *s
		c.Properties, c.Items, c.Required, c.Version = nil, nil, nil, ""
		encoded, err := json.Marshal(&c)
		if err != nil {
			return err.Error()
		}
		return string(encoded)
	}
	if was, is := plain(old), plain(now); was != is {
		fail("%s was %s and is %s", place, was, is)
	}
	if (old.Items == nil) != (now.Items == nil) {
		fail("%s differs in its elements", place)
	} else if old.Items != nil {
		inner, differs := compare(at+"/*", old.Items, now.Items)
		breaking, changed = append(breaking, inner...), changed || differs
	}
	for p := old.Properties.Oldest(); p != nil; p = p.Next() {
		field := at + "/" + p.Key
		successor, ok := now.Properties.Get(p.Key)
		if !ok {
			fail("%s was removed", field)
			continue
		}
		inner, differs := compare(field, p.Value, successor)
		breaking, changed = append(breaking, inner...), changed || differs
		was, is := slices.Contains(old.Required, p.Key), slices.Contains(now.Required, p.Key)
		if was && !is {
			fail("%s was always there and is optional now", field)
		}
		if !was && is {
			fail("%s was optional and is required now", field)
		}
	}
	for p := now.Properties.Oldest(); p != nil; p = p.Next() {
		if _, ok := old.Properties.Get(p.Key); ok {
			continue
		}
		changed = true
		if slices.Contains(now.Required, p.Key) {
			fail("%s is new and required: mark it omitempty", at+"/"+p.Key)
		}
	}
	return breaking, changed || len(breaking) > 0
}

// emptyFields are the fields of an example that say nothing; a bool may be false.
func emptyFields(v reflect.Value, at string) (empty []string) {
	switch v.Kind() {
	case reflect.Pointer:
		if v.IsNil() {
			return []string{at}
		}
		return emptyFields(v.Elem(), at)
	case reflect.Slice:
		if v.Len() == 0 {
			return []string{at}
		}
		if v.Type().Elem().Kind() == reflect.Uint8 {
			return nil
		}
		for i := range v.Len() {
			empty = append(empty, emptyFields(v.Index(i), at+"/*")...)
		}
		return empty
	case reflect.Struct:
		if v.Type().PkgPath() == "time" {
			break
		}
		for i := range v.NumField() {
			name, _, _ := strings.Cut(v.Type().Field(i).Tag.Get("json"), ",")
			empty = append(empty, emptyFields(v.Field(i), at+"/"+name)...)
		}
		return empty
	case reflect.Bool:
		return nil
	default:
	}
	if v.IsZero() {
		return []string{at}
	}
	return nil
}

// Each case is a contract as it is, after one whose schema was another: edits lead back to it.
func TestDrift(t *testing.T) {
	t.Parallel()
	type payload struct {
		ID    string  `json:"id"`
		Count int     `json:"count"`
		Note  *string `json:"note,omitempty"`
		Parts []noted `json:"parts"`
	}
	contract := func(version int) events.Contract {
		return events.Contract{Type: "worlds.a.happened", Version: version, Source: events.Worlds, Payload: payload{},
			ContentClass: events.Operational}
	}
	now, err := json.Marshal(contract(1).Schema())
	must(t, err)
	was := func(edits ...string) *jsonschema.Schema {
		text := string(now)
		for i := 0; i < len(edits); i += 2 {
			if !strings.Contains(text, edits[i]) {
				t.Fatalf("the schema %s has no %s", text, edits[i])
			}
			text = strings.ReplaceAll(text, edits[i], edits[i+1])
		}
		schema := new(jsonschema.Schema)
		must(t, json.Unmarshal([]byte(text), schema))
		return schema
	}
	type versions = map[int]*jsonschema.Schema
	const count, note = `"count":{"type":"integer"},`, `"note":{"type":"string"},`
	more := was(count, count+`"gone":{"type":"string"},`)
	for name, c := range map[string]struct {
		version int
		before  versions
		want    string // none: it may be published
	}{
		"unchanged":                              {1, versions{1: was()}, ""},
		"the same under a higher version":        {2, versions{1: was()}, ""},
		"a lower version":                        {1, versions{2: was()}, "version 2 was published already"},
		"a field removed":                        {2, versions{1: more}, "/gone was removed"},
		"a snapshot that was written by mistake": {2, versions{1: more, 2: was()}, "/gone was removed since version 1"},
		"a field retyped": {2, versions{1: was(count, `"count":{"type":"string"},`)},
			`/count was {"type":"string"} and is {"type":"integer"}`},
		"a field without its values": {2, versions{1: was(note, `"note":{"type":"string","enum":["a"]},`)},
			"/note was "},
		"a new field that is required": {2, versions{1: was(count, "", `"count",`, "")},
			"/count is new and required: mark it omitempty"},
		"an optional field that is required": {2, versions{1: was(`"count",`, "")},
			"/count was optional and is required now"},
		"a required field that is optional": {2, versions{1: was(`"count",`, `"count","note",`)},
			"/note was always there and is optional now"},
		"a new optional field, version not raised": {1, versions{1: was(note, "")}, "raise the constant ...Version to 2"},
		"a new optional field":                     {2, versions{1: was(note, "")}, ""},
		"a field renamed inside": {2,
			versions{1: was(`{"note":{"type":"string"}}`, `{"text":{"type":"string"}}`)}, "/parts/*/text was removed"},
	} {
		got := strings.Join(drift(contract(c.version), c.before), "; ")
		if c.want == "" && got != "" || !strings.Contains(got, c.want) {
			t.Errorf("%s: found %q, want %q", name, got, c.want)
		}
	}
	for eventType, want := range map[string]string{"a.b": "a.b.v2", "a.b.v2": "a.b.v3", "a.b.v10": "a.b.v11"} {
		if got := successorOf(eventType); got != want {
			t.Errorf("the successor of %s is %s, want %s", eventType, got, want)
		}
	}
}

func TestEmptyFieldsOfExamples(t *testing.T) {
	t.Parallel()
	type part struct {
		N int `json:"n"`
	}
	type example struct {
		Text  string          `json:"text"`
		Note  *string         `json:"note,omitempty"`
		Parts []part          `json:"parts"`
		None  []part          `json:"none"`
		Raw   json.RawMessage `json:"raw"`
		Yes   bool            `json:"yes"`
	}
	got := emptyFields(reflect.ValueOf(example{Text: "t", Parts: []part{{}}}), "")
	if want := []string{"/note", "/parts/*/n", "/none", "/raw"}; !slices.Equal(got, want) {
		t.Fatalf("found %v, want %v", got, want)
	}
}
