package retention

import (
	"errors"
	"fmt"
	"slices"
)

// Subject is a kind of row that has a policy.
type Subject string

// The subjects, in the order in which they are swept.
const (
	// OutboxRow is an event in core.outbox, once it is settled.
	OutboxRow Subject = "outbox_row"
	// EventHandled is a row of core.event_handled: that a handler has handled a key.
	EventHandled Subject = "event_handled"
	// OperatorAction is a row of core.operator_actions.
	OperatorAction Subject = "operator_action"
)

// Disposal is what becomes of a tombstoned row after the grace.
type Disposal string

// HardDelete deletes the row.
const HardDelete Disposal = "HARD_DELETE"

// AnyContentClass is the content class of a policy for all of them.
const AnyContentClass = "*"

// Policy says how long rows of a subject are kept. Days have 24 hours, by the clock of the database.
type Policy struct {
	Subject      Subject `json:"subject"`
	ContentClass string  `json:"content_class"`
	// ActiveTTLDays is how many days a row is kept before it is tombstoned: an event from when it occurred and was
	// settled, whichever was later; a key from when it was handled; an action from when it was done.
	ActiveTTLDays int `json:"active_ttl_days"`
	// TombstonedGraceDays is how many days it then stays before it is disposed of.
	TombstonedGraceDays int      `json:"tombstoned_grace_days"`
	Disposal            Disposal `json:"disposal"`
}

// Policies is the registry that a new database starts with. Outbox rows and handled keys are the seed's (D13), for all content
// classes alike.
func Policies() []Policy {
	return []Policy{
		// 45 days of runway for whoever looks into what happened, without an archive
		{OutboxRow, AnyContentClass, 45, 7, HardDelete},
		// above the 52 days that an event may be in the outbox, by 8
		{EventHandled, AnyContentClass, 60, 7, HardDelete},
		// a year of who did what; not of the seed
		{OperatorAction, AnyContentClass, 365, 7, HardDelete},
	}
}

// ErrDedupWindow is a set of policies that would forget what was handled while its event may still come back.
var ErrDedupWindow = errors.New("event_handled must be kept for longer than an outbox row with its grace (seed D13)")

// Check reports what is wrong with a set of policies: event_handled.active_ttl > outbox.active_ttl + outbox.grace, and nothing is out of
// range. The database refuses the same.
func Check(policies []Policy) error {
	var outbox, handled *Policy
	for i, p := range policies {
		if p.ActiveTTLDays < 1 || p.TombstonedGraceDays < 1 || p.Disposal != HardDelete || p.ContentClass != AnyContentClass {
			return fmt.Errorf("policy of %s is out of range: %+v", p.Subject, p)
		}
		if slices.ContainsFunc(policies[:i], func(o Policy) bool { return o.Subject == p.Subject }) {
			return fmt.Errorf("two policies of %s", p.Subject)
		}
		switch p.Subject {
		case OutboxRow:
			outbox = &policies[i]
		case EventHandled:
			handled = &policies[i]
		case OperatorAction: // depends on no other
		}
	}
	if outbox == nil || handled == nil || handled.ActiveTTLDays <= outbox.ActiveTTLDays+outbox.TombstonedGraceDays {
		return ErrDedupWindow
	}
	return nil
}
