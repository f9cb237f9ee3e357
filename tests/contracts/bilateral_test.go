package contracts_test

import (
	"encoding/json"
	"fmt"
	"go/ast"
	"io/fs"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/invopop/jsonschema"

	"spectral/internal/core/events"
)

// TestConsumersReadWhatProducersPublish feeds every snapshot's example, with fields that no consumer knows added
// everywhere, to the struct of every handler of the type.
func TestConsumersReadWhatProducersPublish(t *testing.T) {
	t.Parallel()
	for eventType, s := range consumers() {
		for _, version := range snapshotVersions(t, eventType) {
			example, err := os.ReadFile(snapshotFile(eventType, version, "example"))
			must(t, err)
			for _, h := range s.Handlers() {
				if h.Reads == nil {
					t.Errorf("handler %s: Registration.Reads is not set: name the struct it decodes payloads of %s into", h.Name,
						eventType)
					continue
				}
				newest := version == slices.Max(snapshotVersions(t, eventType))
				for _, problem := range misread(example, h.Reads, newest) {
					t.Errorf("handler %s: %T %s in version %d of %s", h.Name, h.Reads, problem, version, eventType)
				}
			}
		}
	}
}

// misread says what a consumer's struct makes wrong of an example. Only the newest one has all the fields that it may
// read.
func misread(example json.RawMessage, reads any, newest bool) []string {
	var published any
	if err := json.Unmarshal(example, &published); err != nil {
		return []string{err.Error()}
	}
	encoded, err := json.Marshal(extended(published))
	if err != nil {
		return []string{err.Error()}
	}
	read := reflect.New(reflect.TypeOf(reads))
	if err := json.Unmarshal(encoded, read.Interface()); err != nil {
		return []string{"does not fit: " + err.Error()}
	}
	again, err := json.Marshal(read.Interface())
	if err != nil {
		return []string{err.Error()}
	}
	var got any
	if err := json.Unmarshal(again, &got); err != nil {
		return []string{err.Error()}
	}
	problems := append(beyond("", got, published), narrower("", reflect.TypeOf(reads))...)
	if newest {
		problems = append(problems, unpublished("", events.Contract{Payload: reads}.Schema(), published)...)
	}
	return problems
}

// narrower are the fields of a consumer's struct that cannot hold all that a producer may send, though the example
// fits.
func narrower(at string, t reflect.Type) (problems []string) {
	for t.Kind() == reflect.Pointer || t.Kind() == reflect.Slice {
		t = t.Elem()
	}
	switch kind := t.Kind(); {
	case t.PkgPath() == "time", t.PkgPath() == "github.com/google/uuid":
	case kind >= reflect.Int8 && kind <= reflect.Int32, kind >= reflect.Uint && kind <= reflect.Uint64:
		problems = append(problems, fmt.Sprintf("reads %s as %s: make it an int64, a producer may send more", at, t))
	case kind == reflect.Array, kind == reflect.Float32:
		problems = append(problems, fmt.Sprintf("reads %s as %s, which cannot hold all that may come", at, t))
	case kind == reflect.Struct:
		for field := range t.Fields() {
			name, _, _ := strings.Cut(field.Tag.Get("json"), ",")
			if field.Type == reflect.TypeFor[json.RawMessage]() {
				continue
			}
			problems = append(problems, narrower(at+"/"+name, field.Type)...)
		}
	}
	return problems
}

// unpublished are the fields of a consumer's struct that an example, which has all, lacks.
func unpublished(at string, reads *jsonschema.Schema, published any) (problems []string) {
	switch published := published.(type) {
	case map[string]any:
		for p := reads.Properties.Oldest(); p != nil; p = p.Next() {
			value, ok := published[p.Key]
			if !ok {
				problems = append(problems, fmt.Sprintf("reads %s/%s, which is not", at, p.Key))
				continue
			}
			problems = append(problems, unpublished(at+"/"+p.Key, p.Value, value)...)
		}
	case []any:
		if reads.Items != nil {
			problems = append(problems, unpublished(at+"/*", reads.Items, published[0])...)
		}
	}
	return problems
}

// extended adds a field to every object.
func extended(v any) any {
	switch v := v.(type) {
	case map[string]any:
		more := map[string]any{"a_field_of_a_later_version": map[string]any{"of": []any{"any", 1, nil}}}
		for name, value := range v {
			more[name] = extended(value)
		}
		return more
	case []any:
		more := make([]any, len(v))
		for i, value := range v {
			more[i] = extended(value)
		}
		return more
	default:
		return v
	}
}

// beyond says what was read otherwise than it was published.
func beyond(at string, read, published any) (problems []string) {
	switch read := read.(type) {
	case map[string]any:
		object, ok := published.(map[string]any)
		if !ok {
			return []string{fmt.Sprintf("reads %s as an object, which is %v", at, published)}
		}
		for name, value := range read {
			if name == "a_field_of_a_later_version" {
				continue // json.RawMessage keeps it
			}
			field := at + "/" + name
			if original, ok := object[name]; ok {
				problems = append(problems, beyond(field, value, original)...)
			}
		}
	case []any:
		array, ok := published.([]any)
		if !ok || len(array) != len(read) {
			return []string{fmt.Sprintf("reads %s as %v, which is %v", at, read, published)}
		}
		for i, value := range read {
			problems = append(problems, beyond(at+"/*", value, array[i])...)
		}
	default:
		if !reflect.DeepEqual(read, published) {
			problems = append(problems, fmt.Sprintf("reads %s as %v, which is %v", at, read, published))
		}
	}
	return problems
}

func TestMisreadingsAreFound(t *testing.T) {
	t.Parallel()
	example := json.RawMessage(`{"id": "a", "count": 3, "parts": [{"kind": "k", "n": 1}], "raw": {"x": 1}}`)
	type kind struct {
		Kind string `json:"kind"`
	}
	if got := misread(example, withField("", `json:"more,omitempty"`), false); len(got) > 0 {
		t.Errorf("a field that came later: found %q", got)
	}
	for _, c := range []struct {
		field     any
		tag, want string
	}{
		{"", `json:"id"`, ""}, {[]kind{}, `json:"parts"`, ""}, {json.RawMessage{}, `json:"raw"`, ""},
		{"", `json:"idd"`, "reads /idd, which is not"}, {new(string), `json:"idd"`, "reads /idd, which is not"},
		{"", `json:"idd,omitempty"`, "reads /idd, which is not"},
		{[]noted{}, `json:"parts"`, "reads /parts/*/note, which is not"}, {"", `json:"count"`, "does not fit"},
		{int32(0), `json:"count"`, "reads /count as int32"},
		{uint8(0), `json:"count"`, "reads /count as uint8"},
		{[1]kind{}, `json:"parts"`, "reads /parts as [1]contracts_test.kind"}, {"", "", "reads /Field, which is not"},
	} {
		got := strings.Join(misread(example, withField(c.field, c.tag), true), "; ")
		if c.want == "" && got != "" || !strings.Contains(got, c.want) {
			t.Errorf("%T %s: found %q, want %q", c.field, c.tag, got, c.want)
		}
	}
}

// withField is a struct with one field of that type and tag.
func withField(v any, tag string) any {
	field := reflect.StructField{Name: "Field", Type: reflect.TypeOf(v), Tag: reflect.StructTag(tag)}
	return reflect.New(reflect.StructOf([]reflect.StructField{field})).Elem().Interface()
}

// TestReadsIsWhatIsDecoded compares the types that the contexts' handlers decode with those that
// their registrations name.
func TestReadsIsWhatIsDecoded(t *testing.T) {
	t.Parallel()
	named := make(map[string]bool)
	for _, s := range consumers() {
		for _, h := range s.Handlers() {
			if h.Reads != nil {
				named[typeName(h.Reads)] = true
			}
		}
	}
	decoded := make(map[string]bool)
	for _, scope := range []events.Scope{events.Platform, events.Worlds} {
		folder := "internal/" + string(scope) + "/infrastructure/events"
		for _, name := range decodedIn(t, os.DirFS("../.."), folder) {
			decoded["spectral/"+folder+"."+name] = true
		}
	}
	for name := range decoded {
		if !named[name] {
			t.Errorf("a handler decodes payloads into %s, which no registration names: set Registration.Reads to it", name)
		}
	}
	for name := range named {
		if !decoded[name] {
			t.Errorf("a registration says that it reads %s, which no handler decodes", name)
		}
	}
}

func typeName(v any) string { return reflect.TypeOf(v).PkgPath() + "." + reflect.TypeOf(v).Name() }

// decodedIn are the types that the handlers in a folder have decoded, by events.Decode, HandlerOf or BatchHandlerOf.
func decodedIn(t *testing.T, tree fs.FS, folder string) (names []string) {
	t.Helper()
	for _, file := range parsed(t, tree, folder+"/*.go") {
		ast.Inspect(file, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.IndexExpr:
				called, ok := n.X.(*ast.SelectorExpr)
				argument, isName := n.Index.(*ast.Ident)
				if ok && isName && called.Sel.Name == "Decode" {
					names = append(names, argument.Name)
				}
			case *ast.CallExpr: // of HandlerOf or BatchHandlerOf, whose first argument takes an envelope and what is decoded
				called, ok := n.Fun.(*ast.SelectorExpr)
				if !ok || !strings.HasSuffix(called.Sel.Name, "HandlerOf") {
					return true
				}
				if read, ok := n.Args[0].(*ast.FuncLit); ok {
					names = append(names, read.Type.Params.List[1].Type.(*ast.Ident).Name)
				}
			}
			return true
		})
	}
	return names
}
