package events

import (
	"encoding"
	"encoding/json"
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

const maxLengthChecked = 255 // the longest maxLength that Postgres' regular expressions check

var fieldForm = regexp.MustCompile(`^[a-z][a-z0-9_]*$`)

// checkSchema refuses what SQL producers could not be held to: see the publishing adapter.
func checkSchema(at string, s *jsonschema.Schema) (f faults) {
	known := jsonschema.Schema{
		Version: s.Version, Type: s.Type, Properties: s.Properties, Required: s.Required, Items: s.Items, Enum: s.Enum,
		Minimum: s.Minimum, Maximum: s.Maximum, MinLength: s.MinLength, MaxLength: s.MaxLength,
		MinItems: s.MinItems, MaxItems: s.MaxItems, Format: s.Format, Description: s.Description,
	}
	f.require(reflect.DeepEqual(*s, known),
		"payload%s: its type or a jsonschema tag asks for more than publishing checks: see events.Contract.Schema", at)
	f.require(slices.Contains([]string{"object", "array", "string", "integer", "number", "boolean"}, s.Type),
		"payload%s: its type has no JSON form of one kind", at)
	f.require(slices.Contains([]string{"", "uuid", "date-time"}, s.Format), "payload%s: format %s is not checked", at,
		s.Format)
	f.require(s.MinLength == nil || *s.MinLength == 1, "payload%s: minLength can only be 1", at)
	f.require(s.MaxLength == nil || *s.MaxLength <= maxLengthChecked,
		"payload%s: maxLength is at most %d; leave more to the domain", at, maxLengthChecked)
	if s.Items != nil {
		f = append(f, checkSchema(at+"/*", s.Items)...)
	}
	for p := s.Properties.Oldest(); p != nil; p = p.Next() {
		f.require(fieldForm.MatchString(p.Key),
			"payload%s: field %q must have a json tag with a lower-case name: words joined by underscores", at, p.Key)
		f = append(f, checkSchema(at+"/"+p.Key, p.Value)...)
	}
	return f
}

// checkTypes refuses fields whose JSON is not what their schema says, or that other languages would write otherwise.
func checkTypes(at string, t reflect.Type) (f faults) {
	for t.Kind() == reflect.Pointer || t.Kind() == reflect.Slice && t != reflect.TypeFor[json.RawMessage]() {
		t = t.Elem()
	}
	switch t {
	case reflect.TypeFor[time.Time](), reflect.TypeFor[uuid.UUID](), reflect.TypeFor[json.RawMessage]():
		return nil
	}
	kind := t.Kind()
	ownForm := kind == reflect.Float32 || kind == reflect.Array || t == reflect.TypeFor[json.Number]() ||
		t.Implements(reflect.TypeFor[json.Marshaler]()) || t.Implements(reflect.TypeFor[encoding.TextMarshaler]())
	f.require(t != reflect.TypeFor[time.Duration](),
		"payload%s: is a time.Duration, which is nanoseconds in JSON: use an int64 whose name has the unit", at)
	f.require(!ownForm, "payload%s: %s has its own JSON form, or cannot hold what others send", at, t)
	f.require(ownForm || kind != reflect.Map && kind != reflect.Interface,
		"payload%s: is a %s: use a struct, or json.RawMessage for any JSON object", at, kind)
	f.require(ownForm || kind != reflect.Uint8,
		"payload%s: is bytes, which other languages write otherwise: use a string, or a larger integer", at)
	if ownForm || kind != reflect.Struct {
		return f
	}
	for field := range t.Fields() {
		name, options, _ := strings.Cut(field.Tag.Get("json"), ",")
		f.require(!strings.Contains(options, "string"), "payload%s/%s: its json tag says string", at, name)
		f = append(f, checkTypes(at+"/"+name, field.Type)...)
	}
	return f
}
