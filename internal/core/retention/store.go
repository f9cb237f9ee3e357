package retention

import (
	"context"
	"errors"
	"time"

	"github.com/google/uuid"
)

// Step of a sweep.
type Step string

// The steps. Undone is a tombstone of a key whose event has come back.
const (
	Deleted    Step = "deleted"
	Undone     Step = "undone"
	Tombstoned Step = "tombstoned"
)

// Count is what one step came to for one subject.
type Count struct {
	Subject Subject `json:"subject"`
	Step    Step    `json:"step"`
	Rows    int64   `json:"rows"`
	// More is left, or may be.
	More bool `json:"more"`
}

// Batch is one transaction's part of a run.
type Batch struct {
	Run        uuid.UUID
	By         string // who or which worker; empty: the login
	MaxRows    int    // from 1 to 10,000
	MaxSeconds float64
	// WalkEvery is how long after its beginning a walk through a table begins anew; zero: in every run.
	WalkEvery time.Duration
}

// ErrNotLeading is returned while somebody else sweeps.
var ErrNotLeading = errors.New("somebody else is sweeping")

// Run is one sweep, of many transactions.
type Run struct {
	ID        uuid.UUID        `json:"run_id"`
	By        string           `json:"swept_by"`
	ByHand    bool             `json:"by_hand"`
	StartedAt time.Time        `json:"started_at"`
	UpdatedAt time.Time        `json:"updated_at"`   // its latest transaction
	EndedAt   *time.Time       `json:"ended_at"`     // nil: under way, or cut short
	Steps     map[string]int64 `json:"rows_by_step"` // rows by "subject.step"
}

// Status of retention.
type Status struct {
	// PolicyFault says what is wrong with the stored policies, empty for nothing: then nothing is swept.
	PolicyFault string
	// FailedExpiring counts the failed, not discarded events that will be tombstoned within [WarnDays], the first of
	// them at FailedExpireFirst, unless they are replayed before.
	FailedExpiring    int64
	FailedExpireFirst time.Time
	Latest            *Run // nil: none yet
}

// WarnDays is how many days ahead failed events that are about to expire are reported.
const WarnDays = 7

// Store is what a sweeper does on the database. Safe for concurrent use.
type Store interface {
	// Sweep sweeps one batch in a transaction of its own. [ErrNotLeading], or the database's error.
	Sweep(context.Context, Batch) ([]Count, error)
	// DueIn is how long it is until the next run of workers that sweep so often is due; zero: now.
	DueIn(ctx context.Context, interval time.Duration) (time.Duration, error)
	Status(context.Context) (Status, error)
}
