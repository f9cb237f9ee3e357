package events

import (
	"encoding"
	"encoding/json"
	"fmt"
	"math"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/invopop/jsonschema"
)

// Schema is the JSON Schema of the payload (draft 2020-12), made from its struct: fields without omitempty are
// required, unknown ones allowed, json.RawMessage is any object, and jsonschema tags add enum, minimum, maximum,
// minLength, maxLength, minItems and maxItems.
func (c Contract) Schema() *jsonschema.Schema {
	reflector := jsonschema.Reflector{
		Anonymous: true, DoNotReference: true, ExpandedStruct: true, AllowAdditionalProperties: true,
		Mapper: func(t reflect.Type) *jsonschema.Schema {
			switch {
			case t == reflect.TypeFor[json.RawMessage]():
				return &jsonschema.Schema{Type: "object"}
			case t == reflect.TypeFor[uuid.UUID]():
				return &jsonschema.Schema{Type: "string", Format: "uuid"}
			case t.Kind() >= reflect.Int8 && t.Kind() <= reflect.Int32:
				return integers(int64(math.MinInt64)>>(64-t.Bits()), uint64(math.MaxInt64)>>(64-t.Bits()))
			case t.Kind() >= reflect.Uint && t.Kind() <= reflect.Uint64:
				return integers(0, min(uint64(math.MaxUint64)>>(64-t.Bits()), math.MaxInt64))
			default:
				return nil
			}
		},
	}
	return reflector.ReflectFromType(reflect.TypeOf(c.Payload))
}

func integers(least int64, most uint64) *jsonschema.Schema {
	return &jsonschema.Schema{
		Type:    "integer",
		Minimum: json.Number(strconv.FormatInt(least, 10)),
		Maximum: json.Number(strconv.FormatUint(most, 10)),
	}
}

// maxLengthChecked is the longest maxLength that Postgres' regular expressions check.
const maxLengthChecked = 255

var fieldForm = regexp.MustCompile(`^[a-z][a-z0-9_]*$`)

// checkSchema refuses what SQL producers could not be held to: see the publishing adapter.
func checkSchema(at string, s *jsonschema.Schema) (faults []error) {
	fail := func(format string, args ...any) {
		faults = append(faults, fmt.Errorf("payload%s: "+format, append([]any{at}, args...)...))
	}
	known := jsonschema.Schema{
		Version: s.Version, Type: s.Type, Properties: s.Properties, Required: s.Required, Items: s.Items, Enum: s.Enum,
		Minimum: s.Minimum, Maximum: s.Maximum, MinLength: s.MinLength, MaxLength: s.MaxLength,
		MinItems: s.MinItems, MaxItems: s.MaxItems, Format: s.Format, Description: s.Description,
	}
	if !reflect.DeepEqual(*s, known) {
		fail("its type or a jsonschema tag asks for more than publishing checks: see events.Contract.Schema")
	}
	if !slices.Contains([]string{"object", "array", "string", "integer", "number", "boolean"}, s.Type) {
		fail("its type has no JSON form of one kind")
	}
	if s.Format != "" && s.Format != "uuid" && s.Format != "date-time" {
		fail("format %s is not checked", s.Format)
	}
	if s.MinLength != nil && *s.MinLength != 1 {
		fail("minLength can only be 1")
	}
	if s.MaxLength != nil && *s.MaxLength > maxLengthChecked {
		fail("maxLength is at most %d; leave more to the domain", maxLengthChecked)
	}
	if s.Items != nil {
		faults = append(faults, checkSchema(at+"/*", s.Items)...)
	}
	for p := s.Properties.Oldest(); p != nil; p = p.Next() {
		if !fieldForm.MatchString(p.Key) {
			fail("field %q must have a json tag with a lower-case name: words joined by underscores", p.Key)
		}
		faults = append(faults, checkSchema(at+"/"+p.Key, p.Value)...)
	}
	return faults
}

// checkTypes refuses fields whose JSON is not what their schema says, or that other languages would write otherwise.
func checkTypes(at string, t reflect.Type) (faults []error) {
	for t.Kind() == reflect.Pointer || t.Kind() == reflect.Slice && t != reflect.TypeFor[json.RawMessage]() {
		t = t.Elem()
	}
	switch t {
	case reflect.TypeFor[time.Time](), reflect.TypeFor[uuid.UUID](), reflect.TypeFor[json.RawMessage]():
		return nil
	}
	if t == reflect.TypeFor[time.Duration]() {
		return []error{
			fmt.Errorf("payload%s: is a time.Duration, which is nanoseconds in JSON: use an int64 whose name has the unit", at),
		}
	}
	customForm := t.Implements(reflect.TypeFor[json.Marshaler]()) ||
		t.Implements(reflect.TypeFor[encoding.TextMarshaler]()) ||
		t == reflect.TypeFor[json.Number]()
	switch kind := t.Kind(); {
	case customForm, kind == reflect.Float32, kind == reflect.Array:
		return []error{fmt.Errorf("payload%s: %s has its own JSON form, or cannot hold what others send", at, t)}
	case kind == reflect.Map, kind == reflect.Interface:
		return []error{fmt.Errorf("payload%s: is a %s: use a struct, or json.RawMessage for any JSON object", at, kind)}
	case kind == reflect.Uint8:
		return []error{
			fmt.Errorf("payload%s: is bytes, which other languages write otherwise: use a string, or a larger integer", at),
		}
	case kind == reflect.Struct:
		for field := range t.Fields() {
			name, options, _ := strings.Cut(field.Tag.Get("json"), ",")
			if strings.Contains(options, "string") {
				faults = append(faults, fmt.Errorf("payload%s/%s: its json tag says string", at, name))
			}
			faults = append(faults, checkTypes(at+"/"+name, field.Type)...)
		}
	}
	return faults
}
