package publish

import (
	"encoding/json"
	"fmt"
	"strings"

	"github.com/invopop/jsonschema"
)

// payloadRule is one condition of a contract's JSON Schema as core.payload_violations checks it (decision 12). Paths
// are lax, so a missing value breaks only the rule that requires it, and a value of the wrong type only that of its
// type.
type payloadRule struct {
	// At is the place as a JSON pointer, with * for the elements of an array.
	At string `json:"at"`
	// Says is what is wrong with a value there.
	Says string `json:"says"`
	// Fault is an SQL/JSON path that finds something in a payload that breaks the rule.
	Fault string `json:"fault"`
	// Whole is the path of an integer, which must be written without a fraction, even .0: Go does not decode that.
	Whole string `json:"whole,omitempty"`
	// Shows says how a refusal repeats what was received: as the value, or "type", "fields", "elements" or "characters".
	Shows string `json:"shows,omitempty"`
	// Value is the path of the values whose JSON type must be Kind.
	Value string `json:"value,omitempty"`
	Kind  string `json:"kind,omitempty"`
}

const (
	uuidForm = `^[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}$`
	// RFC 3339 except for the length of February in a common year
	timeForm = `^[0-9]{4}-((0[1-9]|1[0-2])-(0[1-9]|1[0-9]|2[0-9])|(0[13-9]|1[0-2])-30|(0[13578]|1[02])-31)` +
		`T([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9]([.][0-9]+)?(Z|[+-]([01][0-9]|2[0-3]):[0-5][0-9])$`
)

// payloadRules returns what a schema demands of the value at a place, of which path is the SQL/JSON path: the rules of
// an object before those of its fields.
func payloadRules(at, path string, s *jsonschema.Schema) []payloadRule {
	kind := s.Type
	if kind == "integer" {
		kind = "number"
	}
	rules := []payloadRule{{
		At: at, Says: "must be " + withArticle(s.Type), Shows: "type", Value: path, Kind: kind,
		Fault: fmt.Sprintf("%s.type() ? (@ != %s)", path, quoted(kind)),
	}}
	add := func(fault, says string) *payloadRule {
		rules = append(rules, payloadRule{At: at, Says: says, Fault: path + fault})
		return &rules[len(rules)-1]
	}
	if s.Type == "integer" {
		add(" ? (@.floor() != @ || @ > 9223372036854775807 || @ < -9223372036854775808)",
			"must be a whole number within 64 bits").Whole = path
	}
	for _, name := range s.Required {
		r := add(` ? (@.type() == "object" && !exists(@.`+quoted(name)+"))", "is missing")
		r.At, r.Shows = at+"/"+name, "fields"
	}
	if len(s.Enum) > 0 {
		allowed, others := make([]string, len(s.Enum)), make([]string, len(s.Enum))
		for i, value := range s.Enum {
			allowed[i], others[i] = fmt.Sprint(value), "@ != "+quoted(value)
		}
		add(" ? ("+strings.Join(others, " && ")+")", "must be one of "+strings.Join(allowed, ", "))
	}
	if s.Minimum != "" {
		add(" ? (@ < "+s.Minimum.String()+")", "must be at least "+s.Minimum.String())
	}
	if s.Maximum != "" {
		add(" ? (@ > "+s.Maximum.String()+")", "must be at most "+s.Maximum.String())
	}
	if s.MinLength != nil { // which is 1: see events.Contract.Validate
		add(` ? (@ == "")`, "must not be empty")
	}
	if n := s.MaxLength; n != nil {
		add(fmt.Sprintf(` ? (@ like_regex "^.{%d}." flag "s")`, *n), "must have at most "+count(*n, "character")).
			Shows = "characters"
	}
	if n := s.MinItems; n != nil {
		add(fmt.Sprintf(".size() ? (@ < %d)", *n), "must have at least "+count(*n, "element")).Shows = "elements"
	}
	if n := s.MaxItems; n != nil {
		add(fmt.Sprintf(".size() ? (@ > %d)", *n), "must have at most "+count(*n, "element")).Shows = "elements"
	}
	switch s.Format {
	case "uuid":
		add(" ? (!(@ like_regex "+quoted(uuidForm)+"))", "must be a UUID")
	case "date-time":
		add(" ? (!(@ like_regex "+quoted(timeForm)+"))", "must be a time as in RFC 3339, with a zone")
	}
	if s.Items != nil {
		rules = append(rules, payloadRules(at+"/*", path+"[*]", s.Items)...)
	}
	for p := s.Properties.Oldest(); p != nil; p = p.Next() {
		rules = append(rules, payloadRules(at+"/"+p.Key, path+"."+quoted(p.Key), p.Value)...)
	}
	return rules
}

// anyFault returns one path that finds something if any of the rules is broken.
func anyFault(rules []payloadRule) string {
	broken := make([]string, len(rules))
	for i, rule := range rules {
		broken[i] = "exists(" + rule.Fault + ")"
		if rule.Kind != "" { // says the same, faster
			broken[i] = rule.Value + ".type() != " + quoted(rule.Kind)
		}
	}
	return "$ ? (" + strings.Join(broken, " || ") + ")"
}

func withArticle(kind string) string {
	switch kind {
	case "boolean":
		return "true or false"
	case "array", "object", "integer":
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

// quoted returns a string or number as an SQL/JSON path writes it, which is as JSON does.
func quoted(value any) string {
	encoded, err := json.Marshal(value)
	if err != nil {
		panic(err) // it came out of a JSON schema
	}
	return string(encoded)
}
