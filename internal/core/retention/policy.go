package retention

// Subject is a kind of row that has a policy.
type Subject string

// The subjects, in the order in which they are swept.
const (
	// OutboxRow is a settled event in core.outbox.
	OutboxRow Subject = "outbox_row"
	// EventHandled is a row of core.event_handled: a handler has handled a key.
	EventHandled Subject = "event_handled"
	// OperatorAction is a row of core.operator_actions.
	OperatorAction Subject = "operator_action"
)

// Disposal is what happens to a tombstoned row after the grace.
type Disposal string

// Policy says how long rows of a subject are kept. Days have 24 hours, by the clock of the database.
type Policy struct {
	Subject      Subject `json:"subject"`
	ContentClass string  `json:"content_class"`
	// ActiveTTLDays is how many days a row is kept before it is tombstoned. They count, for an event, from the later of
	// occurred_at and settling; for a key, from its handling; for an action, from its time.
	ActiveTTLDays int `json:"active_ttl_days"`
	// TombstonedGraceDays is how many days a tombstoned row is kept.
	TombstonedGraceDays int      `json:"tombstoned_grace_days"`
	Disposal            Disposal `json:"disposal"`
}
