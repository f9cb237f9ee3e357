package retention

import (
	"context"
	"errors"
	"time"

	"github.com/google/uuid"
)

// The actions of a sweep.
const (
	Deleted    = "deleted"
	Tombstoned = "tombstoned"
)

// Step is one action on one table.
type Step struct {
	Subject  string // the kind of row, which has a policy
	Action   string
	Function string // the SQL function, with its schema
}

// Steps returns the steps for the tables of core, in the order in which they run. Contexts add steps for their own
// tables.
func Steps() []Step {
	return []Step{
		{"outbox_row", Deleted, "core.retention_delete_outbox"},
		{"outbox_row", Tombstoned, "core.retention_tombstone_outbox"},
		{"event_handled", Deleted, "core.retention_delete_event_handled"},
		{"event_handled", Tombstoned, "core.retention_tombstone_event_handled"},
		{"operator_action", Deleted, "core.retention_delete_operator_actions"},
		{"operator_action", Tombstoned, "core.retention_tombstone_operator_actions"},
	}
}

// Count is the number of rows of one step.
type Count struct {
	Subject string `json:"subject"`
	Action  string `json:"step"`
	Rows    int64  `json:"rows"`
	More    bool   `json:"more"` // the sweep ended before the end of the table
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
	Subject      string `json:"subject"`
	ContentClass string `json:"content_class"`
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
