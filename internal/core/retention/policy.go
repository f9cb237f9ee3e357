package retention

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
