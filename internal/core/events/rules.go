package events

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"math/big"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/invopop/jsonschema"
)

// RuleKind is what a [PayloadRule] checks.
type RuleKind string

// The kinds of rules, by what Limit holds.
const (
	RuleType     RuleKind = "type"     // a JSON type: "object", "array", "string", "number" or "boolean"
	RuleWhole    RuleKind = "whole"    // nothing: the number is whole and within 64 bits
	RuleRequired RuleKind = "required" // the name of a field that the object must have
	RuleEnum     RuleKind = "enum"     // the allowed values, []any
	RuleMinimum  RuleKind = "minimum"  // a number, as text
	RuleMaximum  RuleKind = "maximum"  // a number, as text
	RuleNotEmpty RuleKind = "notEmpty" // nothing: the string is not empty
	RuleLength   RuleKind = "length"   // the most characters, uint64
	RuleLeast    RuleKind = "least"    // the fewest elements, uint64
	RuleMost     RuleKind = "most"     // the most elements, uint64
	RulePattern  RuleKind = "pattern"  // a regular expression, which Go and Postgres read alike
)

// PayloadRule is one condition on the payloads of a contract. Go and SQL check the same rules, and refuse with their
// words.
type PayloadRule struct {
	// Path leads to the values that the rule is about: names of fields, * for the elements of an array.
	Path  []string
	Kind  RuleKind
	Limit any
	// At names the place as a JSON pointer, and Says is what is wrong with it.
	At, Says string
}

const (
	uuidForm = `^[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}$`
	// RFC 3339 except for the length of February in a common year
	timeForm = `^[0-9]{4}-((0[1-9]|1[0-2])-(0[1-9]|1[0-9]|2[0-9])|(0[13-9]|1[0-2])-30|(0[13578]|1[02])-31)` +
		`T([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9]([.][0-9]+)?(Z|[+-]([01][0-9]|2[0-3]):[0-5][0-9])$`
)

// PayloadRules returns what the contract's schema demands, the rules of an object before those of its fields.
func (c Contract) PayloadRules() []PayloadRule { return rulesAt(nil, c.Schema()) }

func rulesAt(path []string, s *jsonschema.Schema) []PayloadRule {
	at := pointer(path)
	var rules []PayloadRule
	add := func(kind RuleKind, limit any, says string, args ...any) {
		rules = append(rules, PayloadRule{Path: path, Kind: kind, Limit: limit, At: at, Says: fmt.Sprintf(says, args...)})
	}
	if s.Type == "integer" {
		add(RuleType, "number", "must be an integer")
		add(RuleWhole, nil, "must be a whole number within 64 bits")
	} else {
		add(RuleType, s.Type, "must be %s", withArticle(s.Type))
	}
	for _, name := range s.Required {
		add(RuleRequired, name, "is missing")
		rules[len(rules)-1].At += "/" + name
	}
	if len(s.Enum) > 0 {
		allowed := strings.TrimSuffix(strings.Repeat("%v, ", len(s.Enum)), ", ")
		add(RuleEnum, s.Enum, "must be one of "+allowed, s.Enum...)
	}
	if s.Minimum != "" {
		add(RuleMinimum, s.Minimum.String(), "must be at least %s", s.Minimum)
	}
	if s.Maximum != "" {
		add(RuleMaximum, s.Maximum.String(), "must be at most %s", s.Maximum)
	}
	if s.MinLength != nil {
		add(RuleNotEmpty, nil, "must not be empty")
	}
	if s.MaxLength != nil {
		add(RuleLength, *s.MaxLength, "must have at most %s", count(*s.MaxLength, "character"))
	}
	if s.MinItems != nil {
		add(RuleLeast, *s.MinItems, "must have at least %s", count(*s.MinItems, "element"))
	}
	if s.MaxItems != nil {
		add(RuleMost, *s.MaxItems, "must have at most %s", count(*s.MaxItems, "element"))
	}
	switch s.Format {
	case "uuid":
		add(RulePattern, uuidForm, "must be a UUID")
	case "date-time":
		add(RulePattern, timeForm, "must be a time as in RFC 3339, with a zone")
	}
	if s.Items != nil {
		rules = append(rules, rulesAt(append(slices.Clone(path), "*"), s.Items)...)
	}
	for p := s.Properties.Oldest(); p != nil; p = p.Next() {
		rules = append(rules, rulesAt(append(slices.Clone(path), p.Key), p.Value)...)
	}
	return rules
}

// pointer writes a path as a JSON pointer.
func pointer(path []string) string {
	if len(path) == 0 {
		return ""
	}
	return "/" + strings.Join(path, "/")
}

func withArticle(kind string) string {
	switch kind {
	case "boolean":
		return "true or false"
	case "array", "object":
		return "an " + kind
	default:
		return "a " + kind
	}
}

// count writes a number with its noun in the singular or plural.
func count(n uint64, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return fmt.Sprintf("%d %ss", n, noun)
}

// maxViolations is how many violations one refusal lists.
const maxViolations = 10

// shape checks payloads of one contract. Immutable.
type shape struct {
	payload reflect.Type
	rules   []shapeRule
}

// shapeRule is a rule whose limit is ready to compare with.
type shapeRule struct {
	PayloadRule
	number  *big.Rat
	pattern *regexp.Regexp
}

func (c Contract) shape() *shape {
	s := &shape{payload: reflect.TypeOf(c.Payload)}
	for _, rule := range c.PayloadRules() {
		ready := shapeRule{PayloadRule: rule}
		switch rule.Kind {
		case RuleMinimum, RuleMaximum:
			ready.number, _ = new(big.Rat).SetString(rule.Limit.(string)) // a JSON number
		case RulePattern:
			ready.pattern = regexp.MustCompile(rule.Limit.(string))
		default: // compared as it is
		}
		s.rules = append(s.rules, ready)
	}
	return s
}

// check returns which rules payload, a valid JSON object, breaks, and what was received; empty if it breaks none.
func (s *shape) check(payload json.RawMessage) (reason, received string) {
	var document any
	decoder := json.NewDecoder(bytes.NewReader(payload))
	decoder.UseNumber()
	if err := decoder.Decode(&document); err != nil {
		return "must be valid JSON", err.Error()
	}
	var says, values, mistyped []string
	for _, rule := range s.rules {
		// below a value of the wrong type nothing is checked
		if slices.ContainsFunc(mistyped, func(at string) bool { return strings.HasPrefix(rule.At+"/", at+"/") }) {
			continue
		}
		value, broken := rule.broken(document, rule.Path)
		if !broken {
			continue
		}
		if rule.Kind == RuleType {
			mistyped = append(mistyped, rule.At)
		}
		says = append(says, rule.At+" "+rule.Says)
		values = append(values, rule.At+" "+rule.received(value))
	}
	if more := len(says) - maxViolations; more > 0 {
		says, values = append(says[:maxViolations], fmt.Sprintf("and %d more", more)), values[:maxViolations]
	}
	if len(says) > 0 {
		return strings.Join(says, "; "), strings.Join(values, "; ")
	}
	// what the rules let through and Go does not read: a field whose name differs in case alone
	if err := json.Unmarshal(payload, reflect.New(s.payload).Interface()); err != nil {
		if mistyped, ok := errors.AsType[*json.UnmarshalTypeError](err); ok {
			return pointer(strings.Split(mistyped.Field, ".")) + " must be readable as " + mistyped.Type.String(), mistyped.Value
		}
		return "must be readable", err.Error()
	}
	return "", ""
}

// broken returns the first value at path below value that breaks the rule.
func (r shapeRule) broken(value any, path []string) (any, bool) {
	switch {
	case len(path) == 0:
		return value, r.breaks(value)
	case path[0] == "*":
		elements, _ := value.([]any)
		for _, element := range elements {
			if found, broken := r.broken(element, path[1:]); broken {
				return found, true
			}
		}
	default:
		fields, _ := value.(map[string]any)
		if field, ok := fields[path[0]]; ok {
			return r.broken(field, path[1:])
		}
	}
	return nil, false
}

// breaks reports whether value breaks the rule. A value of another type than the rule is about breaks the type's alone.
func (r shapeRule) breaks(value any) bool {
	if r.Kind == RuleType {
		return kindOf(value) != r.Limit
	}
	if r.Kind == RuleEnum {
		return !slices.ContainsFunc(r.Limit.([]any),
			func(allowed any) bool { return fmt.Sprint(allowed) == fmt.Sprint(value) })
	}
	switch value := value.(type) {
	case string:
		switch r.Kind {
		case RuleNotEmpty:
			return value == ""
		case RuleLength:
			return uint64(utf8.RuneCountInString(value)) > r.Limit.(uint64)
		case RulePattern:
			if !r.pattern.MatchString(value) {
				return true
			}
			_, err := time.Parse(time.RFC3339, value)
			return r.Limit == timeForm && err != nil
		default: // not about strings
		}
	case json.Number:
		switch r.Kind {
		case RuleWhole:
			_, err := strconv.ParseInt(value.String(), 10, 64)
			return err != nil
		case RuleMinimum, RuleMaximum:
			number, ok := new(big.Rat).SetString(value.String())
			if !ok {
				return true
			}
			order := number.Cmp(r.number)
			return r.Kind == RuleMinimum && order < 0 || r.Kind == RuleMaximum && order > 0
		default: // not about numbers
		}
	case []any:
		switch r.Kind {
		case RuleLeast:
			return uint64(len(value)) < r.Limit.(uint64)
		case RuleMost:
			return uint64(len(value)) > r.Limit.(uint64)
		default: // not about arrays
		}
	case map[string]any:
		if r.Kind == RuleRequired {
			_, has := value[r.Limit.(string)]
			return !has
		}
	}
	return false
}

// received says what the rule found instead.
func (r shapeRule) received(value any) string {
	switch value := value.(type) {
	case string:
		if r.Kind == RuleLength {
			return count(uint64(utf8.RuneCountInString(value)), "character")
		}
	case []any:
		if r.Kind != RuleType {
			return count(uint64(len(value)), "element")
		}
	case map[string]any:
		if r.Kind == RuleRequired {
			names := make([]string, 0, len(value))
			for name := range value {
				names = append(names, name)
			}
			slices.Sort(names)
			return fmt.Sprintf("{%.200s}", strings.Join(names, ", "))
		}
	}
	return shown(value)
}

// kindOf returns the JSON type of a decoded value.
func kindOf(value any) string {
	switch value.(type) {
	case map[string]any:
		return "object"
	case []any:
		return "array"
	case string:
		return "string"
	case json.Number:
		return "number"
	case bool:
		return "boolean"
	default:
		return "null"
	}
}

// maxShown is how many characters of a value a refusal repeats.
const maxShown = 60

// shown writes a decoded value as a refusal repeats it. The SQL function core.shown does the same.
func shown(value any) string {
	switch value := value.(type) {
	case map[string]any, []any:
		return withArticle(kindOf(value))
	case json.Number:
		if text := value.String(); len(text) > maxShown {
			return fmt.Sprintf("%s... (%d characters)", text[:maxShown], len(text))
		}
		return value.String()
	case string:
		var clean strings.Builder
		characters := 0
		for _, r := range value { // what is not UTF-8 becomes U+FFFD
			if characters++; characters > maxShown {
				return fmt.Sprintf(`"%s..." (%d bytes)`, clean.String(), len(value))
			}
			if r < ' ' || r == 0x7f {
				r = ' '
			}
			clean.WriteRune(r)
		}
		return `"` + clean.String() + `"`
	case nil:
		return "null"
	default:
		return fmt.Sprint(value)
	}
}
