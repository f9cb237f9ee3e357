package events

import (
	"cmp"
	"fmt"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
)

// ContentClass says what a payload may contain. The database has the same list as a CHECK.
type ContentClass string

// The content classes.
const (
	Operational      ContentClass = "operational" // about the system, no workspace content
	WorkspaceContent ContentClass = "workspace"   // content of a workspace
)

// Contract declares one version of one event type. The producing context owns it, in
// <producer>/contracts/events, beside the payload struct.
type Contract struct {
	Type    string
	Version int // raised whenever the payload's shape changes
	Source  Scope
	// Payload is an example of the payload struct with every field set: the catalog shows it, and tests decode it as each
	// consumer does.
	Payload any
	// Class is the processing class, the suffix of the channel; empty for the generation's own. Workers can
	// be run for some classes only.
	Class        string
	ContentClass ContentClass
	// Target is the only context that is meant; empty means every context. [NewEnvelope] sets it.
	Target Scope
	// Unconsumed declares that no handler is for the event: it settles when it is published.
	Unconsumed bool
	// Sensitive are fields of the payload that viewers of events do not see: names, joined by dots within objects. A
	// sensitive part of an array makes the array sensitive.
	Sensitive []string
	// Deprecation of the type; nil while producers may rely on it.
	Deprecation *Deprecation
}

// Deprecation says until when a type may still be published. Its events are consumed for as long as there are any.
type Deprecation struct {
	// Deadline after which publishing is refused, by the clock of the database. Until then it warns.
	Deadline time.Time
	// Successor is the event type to publish instead.
	Successor string
}

var classForm = regexp.MustCompile(`^[a-z][a-z0-9_]{0,29}$`)

// Validate reports what is wrong with a contract.
func (c Contract) Validate() error {
	var f faults
	f.require(eventTypeForm.MatchString(c.Type) && len(c.Type) <= MaxEventTypeBytes,
		"type must be lower-case words joined by dots, at most %d bytes", MaxEventTypeBytes)
	f.require(c.Version >= 1 && c.Version <= MaxEventVersion, "version is %d, must be from 1 to %d", c.Version,
		MaxEventVersion)
	f.require(c.Source.Known(), "source is %q, must be platform, worlds or core", c.Source)
	f.require(c.Target == "" || c.Target.Known(),
		"target is %q, must be platform, worlds, core or empty for every context", c.Target)
	f.require(c.Class == "" || classForm.MatchString(c.Class),
		"class is %q, must be a lower-case identifier of at most 30 bytes", c.Class)
	f.require(c.Class != DefaultClass, "class %s is what the class without a name is called: leave it empty", c.Class)
	f.require(c.ContentClass == Operational || c.ContentClass == WorkspaceContent,
		"content class is %q, must be operational or workspace", c.ContentClass)
	f.require(c.Payload != nil && reflect.TypeOf(c.Payload).Kind() == reflect.Struct, "payload must be a struct value")
	if d := c.Deprecation; d != nil {
		f.require(!d.Deadline.IsZero(), "deprecation has no deadline")
		f.require(eventTypeForm.MatchString(d.Successor) && d.Successor != c.Type,
			"deprecation names %q as successor, must be another event type", d.Successor)
	}
	if len(f) == 0 {
		f = checkTypes("", reflect.TypeOf(c.Payload))
	}
	if len(f) == 0 {
		f = checkSchema("", c.Schema())
	}
	if len(f) == 0 {
		f = c.checkSensitive()
	}
	return f.of("contract %q version %d", c.Type, c.Version)
}

// checkSensitive reports marks of fields that the payload does not have.
func (c Contract) checkSensitive() (f faults) {
	for _, path := range c.Sensitive {
		at := c.Schema()
		for name := range strings.SplitSeq(path, ".") {
			if at.Properties == nil {
				at = nil
			} else {
				at, _ = at.Properties.Get(name)
			}
			if at == nil {
				break
			}
		}
		f.require(at != nil, "sensitive names %q, which is no field of the payload", path)
	}
	return f
}

// Contracts is the set of contracts of one build. Immutable; safe for concurrent use.
type Contracts struct{ all []Contract } // by type, then version

func byTypeAndVersion(a, b Contract) int {
	return cmp.Or(strings.Compare(a.Type, b.Type), cmp.Compare(a.Version, b.Version))
}

// NewContracts refuses an invalid contract, two contracts of one type and version, versions of a type that disagree on
// source, class, target or deprecation, which belong to the type, and a successor that is not among them.
func NewContracts(contracts ...Contract) (*Contracts, error) {
	set := &Contracts{all: slices.SortedFunc(slices.Values(contracts), byTypeAndVersion)}
	for i, c := range set.all {
		if err := c.Validate(); err != nil {
			return nil, err
		}
		if d := c.Deprecation; d != nil && len(set.OfType(d.Successor)) == 0 {
			return nil, fmt.Errorf("contract %s: its successor %s has no contract", c.Type, d.Successor)
		}
		if i == 0 || set.all[i-1].Type != c.Type {
			continue
		}
		other := set.all[i-1]
		if other.Version == c.Version {
			return nil, fmt.Errorf("contract %s version %d is declared twice", c.Type, c.Version)
		}
		if other.Source != c.Source || other.Class != c.Class || other.Target != c.Target ||
			!reflect.DeepEqual(other.Deprecation, c.Deprecation) {
			return nil, fmt.Errorf("contract %s: versions %d and %d differ in source, class, target or deprecation",
				c.Type, other.Version, c.Version)
		}
	}
	return set, nil
}

// Lookup returns the contract of a type and version.
func (s *Contracts) Lookup(eventType string, version int) (Contract, bool) {
	i, ok := slices.BinarySearchFunc(s.all, Contract{Type: eventType, Version: version}, byTypeAndVersion)
	if !ok {
		return Contract{}, false
	}
	return s.all[i], true
}

// All returns the contracts by type, then version.
func (s *Contracts) All() []Contract { return slices.Clone(s.all) }

// OfType returns the contracts of one type, by version; none if the type is unknown.
func (s *Contracts) OfType(eventType string) []Contract {
	return slices.DeleteFunc(s.All(), func(c Contract) bool { return c.Type != eventType })
}

// Check refuses an envelope without a contract, or from another source than its contract says, and returns the contract
// of any other. Whether the payload keeps the contract's rules, and a deprecation its deadline, the database checks
// alone.
func (s *Contracts) Check(e Envelope) (Contract, error) {
	c, ok := s.Lookup(e.EventType, e.EventVersion)
	if !ok {
		var registered []string
		for _, c := range s.OfType(e.EventType) {
			registered = append(registered, strconv.Itoa(c.Version))
		}
		return Contract{}, &Refusal{
			Code: CodeUnregistered, Field: "event_type", EventType: e.EventType,
			Reason:   fmt.Sprintf("version %d of %s is not registered", e.EventVersion, e.EventType),
			Received: fmt.Sprintf("version %d; registered: %s", e.EventVersion, cmp.Or(strings.Join(registered, ", "), "none")),
			Hint: "core.event_types lists what is registered; `workers migrate up` and a starting worker register their " +
				"contracts",
		}
	}
	if c.Source != e.Source {
		return Contract{}, &Refusal{
			Code: CodeSourceMismatch, Field: "source", EventType: e.EventType,
			Reason:   fmt.Sprintf("must be %s, which %s belongs to", c.Source, e.EventType),
			Received: shown(string(e.Source)), Hint: "publish an event type of the context that you publish as",
		}
	}
	return c, nil
}
