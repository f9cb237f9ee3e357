package retention

import (
	"context"
	"errors"
	"time"

	"github.com/google/uuid"
)

// Subject is a kind of row that has a policy.
type Subject string

// The subjects, in the order in which they are swept.
const (
	OutboxRow      Subject = "outbox_row"      // a settled event in core.outbox
	EventHandled   Subject = "event_handled"   // a row of core.event_handled: a handler has handled a key
	OperatorAction Subject = "operator_action" // a row of core.operator_actions
)

// Action is what a step does to rows.
type Action string

// The actions of a sweep.
const (
	Deleted    Action = "deleted"
	Tombstoned Action = "tombstoned"
)

// Step is one action on one table.
type Step struct {
	Subject  Subject
	Action   Action
	Function string // the SQL function, with its schema
}

// Steps returns the steps for the tables of core, in the order in which they run. Contexts add steps for their own
// tables.
func Steps() []Step {
	return []Step{
		{OutboxRow, Deleted, "core.retention_delete_outbox"},
		{OutboxRow, Tombstoned, "core.retention_tombstone_outbox"},
		{EventHandled, Deleted, "core.retention_delete_event_handled"},
		{EventHandled, Tombstoned, "core.retention_tombstone_event_handled"},
		{OperatorAction, Deleted, "core.retention_delete_operator_actions"},
		{OperatorAction, Tombstoned, "core.retention_tombstone_operator_actions"},
	}
}

// Count is the number of rows of one step.
type Count struct {
	Subject Subject `json:"subject"`
	Action  Action  `json:"step"`
	Rows    int64   `json:"rows"`
	More    bool    `json:"more"` // the sweep ended before the end of the table
}

// Page is one transaction of a sweep.
type Page struct {
	Step  Step
	After []string // the end of the page before; nil: the first page
	Rows  int      // from 1 to 10,000
	Run   uuid.UUID
	By    string // the person who sweeps; empty: the login
}

// ErrNotLeading is returned while another transaction is sweeping.
var ErrNotLeading = errors.New("another sweep is running")

// Policy says how long rows of a subject are kept, and how many are past it. Days have 24 hours, by the clock of the
// database.
type Policy struct {
	Subject      Subject `json:"subject"`
	ContentClass string  `json:"content_class"`
	// ActiveTTLDays is how many days a row is kept before it is tombstoned. They count, for an event, from the later of
	// occurred_at and settling; for a key, from its handling; for an action, from its time.
	ActiveTTLDays int `json:"active_ttl_days"`
	// TombstonedGraceDays is how many days a tombstoned row is kept, before Disposal.
	TombstonedGraceDays int    `json:"tombstoned_grace_days"`
	Disposal            string `json:"disposal"`
	ToTombstone         int64  `json:"to_tombstone"`
	ToDelete            int64  `json:"to_delete"`
	Estimated           bool   `json:"estimated"` // from a sample of the table
}

// Status is the state of retention.
type Status struct {
	// PolicyFault says what is wrong with the stored policies; empty: they are valid. With a fault nothing is swept.
	PolicyFault string     `json:"policy_fault,omitempty"`
	SweptAt     *time.Time `json:"swept_at"` // when a sweep last began; nil: never
	// FailedExpiring counts the failed events that will be tombstoned within [WarnDays] unless they are replayed. The
	// first one will be at FailedExpireFirst. Discarded events do not count.
	FailedExpiring    int64      `json:"failed_expiring"`
	FailedExpireFirst *time.Time `json:"failed_expire_first_at"`
}

// WarnDays is how many days ahead expiring failed events are reported.
const WarnDays = 7

// Store is what a sweep needs of the database. Safe for concurrent use.
type Store interface {
	// Sweep runs one page in its own transaction. It returns how many rows it wrote and where the next page begins, nil
	// after the last. The error is [ErrNotLeading], or the database's.
	Sweep(context.Context, Page) (rows int64, next []string, err error)
	// Begin returns the time until the next sweep is due, for workers that sweep at this interval. Zero means that it is
	// due and the caller must run it.
	Begin(ctx context.Context, interval time.Duration) (time.Duration, error)
	Status(context.Context) (Status, error)
}
