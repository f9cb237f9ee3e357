package publish

import (
	"encoding/json"
	"fmt"
	"strings"

	"github.com/invopop/jsonschema"
)

// payloadRule is a rule that core.outbox_insert checks a payload by.
type payloadRule struct {
	// At is the place as a JSON pointer, with * for the elements of an array; empty for the payload itself.
	At string `json:"at"`
	// Fault is an SQL/JSON path that finds what breaks the rule.
	Fault string `json:"fault"`
	// Says is what the value should be.
	Says string `json:"says"`
	// Whole is the path of an integer, which must be written without a fraction, even .0: Go does not decode that.
	Whole string `json:"whole,omitempty"`
}

const (
	uuidForm = `^[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}$`
	// RFC 3339 but for the length of February in a common year
	timeForm = `^[0-9]{4}-((0[1-9]|1[0-2])-(0[1-9]|1[0-9]|2[0-9])|(0[13-9]|1[0-2])-30|(0[13578]|1[02])-31)` +
		`T([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9]([.][0-9]+)?(Z|[+-]([01][0-9]|2[0-3]):[0-5][0-9])$`
)

// payloadRules returns the rules of a payload's schema, by which SQL producers get the same refusals as Go code. Paths
// are lax, so a missing value breaks only the rule that requires it, and a value of the wrong type only that of its
// type.
func payloadRules(schema *jsonschema.Schema) []payloadRule { return rulesAt("", "$", schema) }

func rulesAt(at, path string, s *jsonschema.Schema) []payloadRule {
	var rules []payloadRule
	add := func(says, condition string) {
		rules = append(rules, payloadRule{At: at, Says: says, Fault: path + " ? (" + condition + ")"})
	}
	kind := s.Type
	if kind == "integer" {
		kind = "number"
	}
	rules = append(rules, payloadRule{
		At: at, Says: "must be " + article(s.Type), Fault: fmt.Sprintf("%s.type() ? (@ != %q)", path, kind),
	})
	if s.Type == "integer" {
		add("must be a whole number within 64 bits", "@.floor() != @ || @ > 9223372036854775807 || @ < -9223372036854775808")
		rules[len(rules)-1].Whole = path
	}
	for _, name := range s.Required {
		rules = append(rules, payloadRule{
			At: at + "/" + name, Says: "is missing",
			Fault: fmt.Sprintf("%s ? (@.type() == \"object\" && !exists(@.%s))", path, quoted(name)),
		})
	}
	if len(s.Enum) > 0 {
		var allowed, others []string
		for _, value := range s.Enum {
			allowed = append(allowed, fmt.Sprint(value))
			others = append(others, "@ != "+quoted(value))
		}
		add("must be one of "+strings.Join(allowed, ", "), strings.Join(others, " && "))
	}
	if s.Minimum != "" {
		add("must be at least "+s.Minimum.String(), "@ < "+s.Minimum.String())
	}
	if s.Maximum != "" {
		add("must be at most "+s.Maximum.String(), "@ > "+s.Maximum.String())
	}
	if s.MinLength != nil {
		add("must not be empty", `@ == ""`)
	}
	if s.MaxLength != nil {
		add(fmt.Sprintf("must have at most %d characters", *s.MaxLength),
			fmt.Sprintf(`@ like_regex "^.{%d}." flag "s"`, *s.MaxLength))
	}
	size := func(says string, items *uint64, operator string) {
		if items != nil {
			fault := fmt.Sprintf("%s.size() ? (@ %s %d)", path, operator, *items)
			rules = append(rules, payloadRule{At: at, Says: fmt.Sprintf(says, *items), Fault: fault})
		}
	}
	size("must have at least %d elements", s.MinItems, "<")
	size("must have at most %d elements", s.MaxItems, ">")
	switch s.Format {
	case "uuid":
		add("must be a UUID", "!(@ like_regex "+quoted(uuidForm)+")")
	case "date-time":
		add("must be a time as in RFC 3339, with a zone", "!(@ like_regex "+quoted(timeForm)+")")
	}
	if s.Items != nil {
		rules = append(rules, rulesAt(at+"/*", path+"[*]", s.Items)...)
	}
	for p := s.Properties.Oldest(); p != nil; p = p.Next() {
		rules = append(rules, rulesAt(at+"/"+p.Key, path+"."+quoted(p.Key), p.Value)...)
	}
	return rules
}

// anyFault returns one path that finds something if any of the rules is broken.
func anyFault(rules []payloadRule) string {
	broken := make([]string, len(rules))
	for i, rule := range rules {
		broken[i] = "exists(" + rule.Fault + ")"
	}
	return "$ ? (" + strings.Join(broken, " || ") + ")"
}

// quoted returns a string or number as an SQL/JSON path writes it, which is as JSON does.
func quoted(value any) string {
	encoded, err := json.Marshal(value)
	if err != nil {
		panic(err) // impossible for a value from a JSON schema
	}
	return string(encoded)
}

func article(kind string) string {
	switch kind {
	case "boolean":
		return "true or false"
	case "array", "integer", "object":
		return "an " + kind
	default:
		return "a " + kind
	}
}
