package publish

import (
	"encoding/json"
	"fmt"
	"strings"

	"spectral/internal/core/events"
)

// payloadRule is an [events.PayloadRule] as core.payload_violations reads it. Paths are lax, so a missing value breaks
// only the rule that requires it, and a value of the wrong type only that of its type.
type payloadRule struct {
	At   string `json:"at"`
	Says string `json:"says"`
	// Fault is an SQL/JSON path that finds something in a payload that breaks the rule.
	Fault string `json:"fault"`
	// Whole is the path of an integer, which must be written without a fraction, even .0: Go does not decode that.
	Whole string `json:"whole,omitempty"`
	// Shows says how a refusal repeats what was received: as the value, or "type", "fields", "elements" or
	// "characters".
	Shows string `json:"shows,omitempty"`
	// Value is the path of the values whose JSON type must be Kind.
	Value string `json:"value,omitempty"`
	Kind  string `json:"kind,omitempty"`
}

// payloadRules translates the rules of a contract for SQL producers, who get the same refusals as Go code.
func payloadRules(rules []events.PayloadRule) []payloadRule {
	translated := make([]payloadRule, len(rules))
	for i, rule := range rules {
		translated[i] = translate(rule)
	}
	return translated
}

func translate(rule events.PayloadRule) payloadRule {
	path := "$"
	for _, name := range rule.Path {
		if name == "*" {
			path += "[*]"
		} else {
			path += "." + quoted(name)
		}
	}
	r := payloadRule{At: rule.At, Says: rule.Says}
	where := func(condition string) { r.Fault = path + " ? (" + condition + ")" }
	switch limit := rule.Limit; rule.Kind {
	case events.RuleType:
		r.Fault, r.Shows = fmt.Sprintf("%s.type() ? (@ != %s)", path, quoted(limit)), "type"
		r.Value, r.Kind = path, limit.(string)
	case events.RuleWhole:
		where("@.floor() != @ || @ > 9223372036854775807 || @ < -9223372036854775808")
		r.Whole = path
	case events.RuleRequired:
		where(`@.type() == "object" && !exists(@.` + quoted(limit) + ")")
		r.Shows = "fields"
	case events.RuleEnum:
		var others []string
		for _, value := range limit.([]any) {
			others = append(others, "@ != "+quoted(value))
		}
		where(strings.Join(others, " && "))
	case events.RuleMinimum:
		where("@ < " + limit.(string))
	case events.RuleMaximum:
		where("@ > " + limit.(string))
	case events.RuleNotEmpty:
		where(`@ == ""`)
	case events.RuleLength:
		where(fmt.Sprintf(`@ like_regex "^.{%d}." flag "s"`, limit))
		r.Shows = "characters"
	case events.RuleLeast:
		r.Fault, r.Shows = fmt.Sprintf("%s.size() ? (@ < %d)", path, limit), "elements"
	case events.RuleMost:
		r.Fault, r.Shows = fmt.Sprintf("%s.size() ? (@ > %d)", path, limit), "elements"
	case events.RulePattern:
		where("!(@ like_regex " + quoted(limit) + ")")
	}
	return r
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
		panic(err) // it came out of a JSON schema
	}
	return string(encoded)
}
