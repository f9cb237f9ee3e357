package dispatch

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgerrcode"
	"github.com/jackc/pgx/v5/pgconn"

	"spectral/internal/core/events"
	"spectral/internal/core/events/infrastructure/postgres/journal"
	"spectral/internal/core/events/infrastructure/postgres/pgtx"
)

// This file alone decides what becomes of an event whose handlers failed: which failures count, and whether the event
// is retried, when, or failed.

const (
	// maxFree is how many failures in a row cost no attempt.
	maxFree = 20
	// raceRetries is how often a missing parent row (23503) is retried, because order is not promised, and a duplicate
	// (23505, 23P01), because a check before the insert finds the other row the second time.
	raceRetries = 2
	// classPanic is the class of a handler that panicked or ended its goroutine.
	classPanic = "PanicError"
)

// Where an error comes from decides what it means. The first three are in the chain of errors of this package's Tx.
var (
	errKey            = errors.New("claim the dedup key")     // before its handler ran
	errCommit         = errors.New("commit")                  // of a deferred constraint, or a lost answer
	errConnectionLost = errors.New("the connection was lost") // by the network, while a handler ran
	// ErrCompletion is in the chain of an error of a completion itself.
	ErrCompletion = errors.New("completion")
)

// disposition is what a failure means for the retries of its handler.
type disposition int

const (
	transient disposition = iota // counted, and retried by the handler's policy
	free                         // retried and not counted, up to maxFree in a row
	terminal                     // not retried
)

// Failure is one failed call of a handler.
type Failure struct {
	Class       string // the first word of last_error, by which operators group failures
	disposition disposition
	message     string
	outage      bool          // a free one that is not limited either
	delay       time.Duration // of the event, at least
	stack       []byte        // of a panic
	started     time.Time     // zero: no handler was called
	took        time.Duration
}

// began returns the failure of a call that began then and has just ended.
func (f Failure) began(started time.Time) Failure { return f.Took(started, time.Since(started)) }

// Took returns the failure of a call that began then and took so long.
func (f Failure) Took(started time.Time, took time.Duration) Failure {
	f.started, f.took = started, took
	return f
}

// Free reports whether the failure costs no attempt.
func (f Failure) Free() bool { return f.disposition == free }

// Transient reports whether the failure counts, and its handler is retried by its policy.
func (f Failure) Transient() bool { return f.disposition == transient }

// ClassifyAndNote is [Classify], and takes in an error of the server's state, which may begin an outage.
func (c *Consumer) ClassifyAndNote(ctx context.Context, err error, earlier int) Failure {
	f := Classify(err, earlier)
	if f.disposition == free && pgtx.ServerState(err) {
		f.delay, f.outage = c.serverFailed(ctx, err)
	}
	return f
}

// Classify interprets an error of a handler, or of a statement for it. Earlier is how often the handler failed before
// in this cycle.
func Classify(err error, earlier int) Failure {
	f := Failure{Class: pgtx.ErrorClass(err), message: pgtx.CleanText(err.Error(), pgtx.MaxErrorBytes/2)}
	var (
		pg       *pgconn.PgError
		term     *events.TerminalError
		payload  *events.PayloadError
		panicked *events.PanicError
		refused  *events.Refusal
	)
	switch {
	case errors.Is(err, errConnectionLost):
		f.Class, f.disposition = pgtx.ClassConnection, free
	case errors.Is(err, errKey):
		f.Class, f.disposition = "DedupKeyError", free
	case errors.As(err, &term):
		f.Class, f.disposition = "TerminalError", terminal
	case errors.As(err, &payload):
		f.Class, f.disposition = "PayloadError", terminal
	case errors.As(err, &refused):
		f.Class = "RefusedEvent"
		if refused.Code != events.CodeGeneration {
			f.disposition = terminal
		}
	case errors.Is(err, events.ErrNoHandler):
		f.Class, f.disposition = "NoHandler", terminal
	case errors.As(err, &panicked):
		f.Class, f.stack = classPanic, panicked.Stack
	case errors.Is(err, errAbandoned):
		f.Class = pgtx.ClassTimeout
	case errors.Is(err, context.DeadlineExceeded):
	case errors.Is(err, errCommit) && !pgtx.Answered(err):
		f.Class, f.disposition = pgtx.ClassConnection, free
	case errors.As(err, &pg):
		f.disposition = postgresDisposition(pg, f.Class, earlier)
		if pgtx.ServerState(pg) {
			f.disposition = free
		}
	}
	return f
}

func postgresDisposition(pg *pgconn.PgError, class string, earlier int) disposition {
	switch class {
	case pgtx.ClassIntegrity:
		switch pg.Code {
		case pgerrcode.ForeignKeyViolation, pgerrcode.UniqueViolation, pgerrcode.ExclusionViolation:
			if earlier < raceRetries {
				return transient
			}
		}
		return terminal
	case pgtx.ClassSerialization, pgtx.ClassDeadlock, pgtx.ClassConnection, pgtx.ClassSchemaChanged:
		return free
	default:
		return transient
	}
}

// connectionLost marks the error of a handler, if it has one, as that of a connection that was lost.
func connectionLost(err error) error {
	if err == nil {
		return errConnectionLost
	}
	return fmt.Errorf("%w: %w", errConnectionLost, err)
}

// journalFailed reports whether err is that no journal entry could be written: then no handler was called.
func journalFailed(err error) bool { return errors.Is(err, journal.ErrWrite) }

// HandlerFailure is what core.outbox.handler_failures says of a handler in the current cycle.
type HandlerFailure struct {
	Failures int    `json:"failures"`         // counted ones
	Free     int    `json:"free,omitempty"`   // uncounted ones in a row
	Parked   bool   `json:"parked,omitempty"` // terminal or exhausted: not run again in this cycle
	Class    string `json:"class"`
	Error    string `json:"error"`
	Group    string `json:"group,omitempty"` // of core.error_groups
}

// Decision is what becomes of a row whose handlers did not all succeed.
type Decision struct {
	Failed    bool          // otherwise it is retried after Delay
	Delay     time.Duration // the longest that a failed handler asks for
	Counted   bool
	LastError string
	Failures  map[string]HandlerFailure
	Classes   map[string]string // of the handlers that failed in this dispatch
	waiting   bool              // for the end of an outage
	attempts  []failedAttempt   // of this dispatch
}

// Decide adds the failures of this dispatch to the record of the row's failures. Unhandled are the handlers that have
// not handled the row yet, those that failed now included.
func Decide(record map[string]HandlerFailure, unhandled []events.Registration, now map[string]Failure) Decision {
	return decide(record, unhandled, now, rand.Float64)
}

func decide(record map[string]HandlerFailure, unhandled []events.Registration, now map[string]Failure,
	random func() float64) Decision {
	d := Decision{Failed: true, Failures: make(map[string]HandlerFailure), Classes: make(map[string]string)}
	for name, f := range now {
		d.Classes[name] = f.Class
		// in an outage nothing is kept, but that a handler which acts outside had begun
		if !f.outage || slices.ContainsFunc(unhandled, func(r events.Registration) bool {
			return r.Name == name && r.ActsOutside != ""
		}) {
			d.attempts = append(d.attempts, newFailedAttempt(name, f))
		}
	}
	var lines []string
	for _, r := range unhandled {
		h := record[r.Name]
		if f, ok := now[r.Name]; ok {
			h = d.count(h, f, r.RetryPolicy(), random())
			h.Group, _ = errorGroup(r.Name, f.Class, f.message)
		}
		if h != (HandlerFailure{}) {
			d.Failures[r.Name] = h
			lines = append(lines, fmt.Sprintf("%s: %s: %s", h.Class, r.Name, h.Error))
		}
		d.Failed = d.Failed && h.Parked
	}
	for name, f := range now { // failures of the row itself, which belong to no handler
		if !slices.ContainsFunc(unhandled, func(r events.Registration) bool { return r.Name == name }) {
			group, _ := errorGroup(name, f.Class, f.message)
			d.Failures[name] = HandlerFailure{Failures: 1, Parked: true, Class: f.Class, Error: f.message, Group: group}
			lines = append(lines, fmt.Sprintf("%s: %s: %s", f.Class, name, f.message))
			d.Counted = true
		}
	}
	if d.Failed && len(now) == 0 { // a relayed row, of which the last handler has succeeded
		for name, h := range d.Failures {
			d.Classes[name] = h.Class
		}
	}
	d.LastError = pgtx.CleanText(joinWithin(lines, pgtx.MaxErrorBytes), pgtx.MaxErrorBytes)
	return d
}

// count adds a failure to a handler's record.
func (d *Decision) count(h HandlerFailure, f Failure, policy events.RetryPolicy, random float64) HandlerFailure {
	h.Class, h.Error = f.Class, f.message
	if f.disposition == free && (f.outage || h.Free < maxFree) {
		if !f.outage {
			h.Free++
		}
		d.waiting = d.waiting || f.outage
		d.Delay = max(d.Delay, f.delay, policy.Delay(1, random))
		return h
	}
	if f.disposition != free {
		h.Free = 0
	}
	h.Failures++
	d.Counted = true
	h.Parked = f.disposition == terminal || policy.Exhausted(h.Failures)
	if !h.Parked {
		d.Delay = max(d.Delay, policy.Delay(h.Failures, random))
	}
	return h
}

// settlement returns what is reported of row.
func (d *Decision) settlement(row Row) Settlement {
	s := Settlement{
		Envelope: &row.Envelope, Outcome: Retried, Attempts: row.Attempts, LastError: d.LastError, Delay: d.Delay,
		classes: d.Classes, waiting: d.waiting && !d.Counted,
	}
	if d.Counted {
		s.Attempts++
	}
	if d.Failed {
		s.Outcome, s.Delay = Failed, 0
	}
	return s
}

// joinWithin joins lines, and cuts each to its share, so that every handler is still named.
func joinWithin(lines []string, limit int) string {
	share := limit / max(len(lines), 1)
	for i, line := range lines {
		if len(line) >= share {
			lines[i] = line[:share-1]
		}
	}
	return strings.Join(lines, "\n")
}

// CompletionFailed marks err as the error of a completion in t. It costs no attempt if the network took the connection.
func CompletionFailed(ctx context.Context, t *Tx, err error) error {
	if t.LostByNetwork() && ctx.Err() == nil {
		err = connectionLost(err)
	}
	return fmt.Errorf("%w: %w", ErrCompletion, err)
}
