package events

import (
	"errors"
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
	// Deprecation of the type; nil while producers may rely on it.
	Deprecation *Deprecation
}

// Deprecation says until when a type may still be published. Its events are consumed for as long as there
// are any.
type Deprecation struct {
	// Deadline after which publishing is refused, by the clock of the database. Until then it warns.
	Deadline time.Time
	// Successor is the event type to publish instead.
	Successor string
}

var classForm = regexp.MustCompile(`^[a-z][a-z0-9_]{0,29}$`)

// Validate reports what is wrong with a contract.
func (c Contract) Validate() error {
	var faults []error
	fail := func(format string, args ...any) { faults = append(faults, fmt.Errorf(format, args...)) }
	if !eventTypeForm.MatchString(c.Type) || len(c.Type) > MaxEventTypeBytes {
		fail("type must be lower-case words joined by dots, at most %d bytes", MaxEventTypeBytes)
	}
	if c.Version < 1 || c.Version > MaxEventVersion {
		fail("version is %d, must be from 1 to %d", c.Version, MaxEventVersion)
	}
	if !c.Source.Known() {
		fail("source is %q, must be platform, worlds or core", c.Source)
	}
	if c.Target != "" && !c.Target.Known() {
		fail("target is %q, must be platform, worlds, core or empty for every context", c.Target)
	}
	if c.Class != "" && !classForm.MatchString(c.Class) {
		fail("class is %q, must be a lower-case identifier of at most 30 bytes", c.Class)
	}
	if c.Class == DefaultClass {
		fail("class %s is what the class without a name is called: leave it empty", c.Class)
	}
	if c.ContentClass != Operational && c.ContentClass != WorkspaceContent {
		fail("content class is %q, must be operational or workspace", c.ContentClass)
	}
	if c.Payload == nil || reflect.TypeOf(c.Payload).Kind() != reflect.Struct {
		fail("payload must be a struct value")
	}
	if d := c.Deprecation; d != nil {
		if d.Deadline.IsZero() {
			fail("deprecation has no deadline")
		}
		if !eventTypeForm.MatchString(d.Successor) || d.Successor == c.Type {
			fail("deprecation names %q as successor, must be another event type", d.Successor)
		}
	}
	if len(faults) == 0 {
		if faults = checkTypes("", reflect.TypeOf(c.Payload)); len(faults) == 0 {
			faults = checkSchema("", c.Schema())
		}
	}
	if len(faults) > 0 {
		return fmt.Errorf("contract %q version %d: %w", c.Type, c.Version, errors.Join(faults...))
	}
	return nil
}

// contractKey identifies a contract.
type contractKey struct {
	Type    string
	Version int
}

// Contracts is the set of contracts of one build. Immutable; safe for concurrent use.
type Contracts struct{ byKey map[contractKey]Contract }

// NewContracts refuses an invalid contract, two contracts of one type and version, versions of a
// type that disagree on source, class, target or deprecation, which belong to the type, and a successor that is not
// among them.
func NewContracts(contracts ...Contract) (*Contracts, error) {
	set := &Contracts{byKey: make(map[contractKey]Contract, len(contracts))}
	byType := make(map[string]Contract)
	for _, c := range contracts {
		if err := c.Validate(); err != nil {
			return nil, err
		}
		key := contractKey{c.Type, c.Version}
		if _, taken := set.byKey[key]; taken {
			return nil, fmt.Errorf("contract %s version %d is declared twice", c.Type, c.Version)
		}
		if other, ok := byType[c.Type]; ok &&
			(other.Source != c.Source || other.Class != c.Class || other.Target != c.Target ||
				!reflect.DeepEqual(other.Deprecation, c.Deprecation)) {
			return nil, fmt.Errorf("contract %s: versions %d and %d differ in source, class, target or deprecation",
				c.Type, other.Version, c.Version)
		}
		set.byKey[key], byType[c.Type] = c, c
	}
	for _, c := range byType {
		if c.Deprecation == nil {
			continue
		}
		if _, ok := byType[c.Deprecation.Successor]; !ok {
			return nil, fmt.Errorf("contract %s: its successor %s has no contract", c.Type, c.Deprecation.Successor)
		}
	}
	return set, nil
}

// Lookup returns the contract of a type and version.
func (s *Contracts) Lookup(eventType string, version int) (Contract, bool) {
	c, ok := s.byKey[contractKey{eventType, version}]
	return c, ok
}

// All returns the contracts by type, then version.
func (s *Contracts) All() []Contract {
	all := make([]Contract, 0, len(s.byKey))
	for _, c := range s.byKey {
		all = append(all, c)
	}
	slices.SortFunc(all, func(a, b Contract) int {
		if n := strings.Compare(a.Type, b.Type); n != 0 {
			return n
		}
		return a.Version - b.Version
	})
	return all
}

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
		registered := "none"
		if of := s.OfType(e.EventType); len(of) > 0 {
			versions := make([]string, len(of))
			for i, c := range of {
				versions[i] = strconv.Itoa(c.Version)
			}
			registered = strings.Join(versions, ", ")
		}
		return Contract{}, &Refusal{
			Code: CodeUnregistered, Field: "event_type", EventType: e.EventType,
			Reason:   fmt.Sprintf("version %d of %s is not registered", e.EventVersion, e.EventType),
			Received: fmt.Sprintf("version %d; registered: %s", e.EventVersion, registered),
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
