package postgres

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgerrcode"
	"github.com/jackc/pgx/v5/pgconn"

	"spectral/internal/core/events"
)

// disposition says what a failure means for the handler's retries.
type disposition int

const (
	transient disposition = iota // counted, retried by the handler's policy
	free                         // retried, not counted, up to maxFree in a row
	terminal                     // parked at once
)

// maxFree is how many failures in a row cost no attempt before they count after all.
const maxFree = 20

// deadlockClass is the class of 40P01.
const deadlockClass = "DeadlockError"

// timeoutClass is the class of whatever took longer than it may, by the client's or the server's clock.
const timeoutClass = "TimeoutError"

// orphanTries is how often a missing parent row (23503) is retried: order is not promised, it may
// still come.
const orphanTries = 2

// maxErrorBytes is what core.outbox.last_error holds.
const maxErrorBytes = 8192

// Where an error comes from decides what it means.
var (
	errJournal        = errors.New("note the claim in core.claim_journal") // before any handler ran
	errKey            = errors.New("claim the dedup key")                  // before its handler ran
	errCompletion     = errors.New("completion")                           // and not of the statements around it
	errCommit         = errors.New("commit")                               // what was deferred to it, or a lost answer
	errConnectionLost = errors.New("the connection was lost")              // by the network, while a handler ran
)

// failure is one handler's failed run.
type failure struct {
	class       string // the first word of last_error, by which operators group
	disposition disposition
	message     string
}

// handlerFailure is a handler's record in core.outbox.handler_failures, for the current cycle.
type handlerFailure struct {
	Failures int    `json:"failures"`         // counted ones
	Free     int    `json:"free,omitempty"`   // uncounted ones in a row
	Parked   bool   `json:"parked,omitempty"` // terminal or exhausted: not run again in this cycle
	Class    string `json:"class"`
	Error    string `json:"error"`
}

// classify interprets an error of a handler, or of a statement run for it. Earlier is how often
// the handler failed before in this cycle.
func classify(err error, earlier int) failure {
	f := failure{class: "HandlerError", disposition: transient, message: cleanText(err.Error(), maxErrorBytes/2)}
	var (
		pg       *pgconn.PgError
		term     *events.TerminalError
		payload  *events.PayloadError
		panicked *events.PanicError
		refused  *events.Refusal
		network  net.Error
		file     *fs.PathError
		link     *os.LinkError
	)
	switch {
	case errors.Is(err, errConnectionLost):
		f = lostConnection(err)
	case errors.Is(err, errKey):
		f.class, f.disposition = "DedupKeyError", free
	case errors.As(err, &term):
		f.class, f.disposition = "TerminalError", terminal
	case errors.As(err, &payload):
		f.class, f.disposition = "PayloadError", terminal
	case errors.As(err, &refused):
		f.class, f.disposition = "RefusedEvent", terminal
		if refused.Code == events.CodeGeneration {
			f.disposition = transient
		}
	case errors.Is(err, events.ErrNoHandler):
		f.class, f.disposition = "NoHandler", terminal
	case errors.As(err, &panicked):
		f.class = "PanicError"
	case errors.Is(err, errAbandoned), errors.Is(err, context.DeadlineExceeded):
		f.class = timeoutClass
	case errors.Is(err, errCommit) && !answered(err):
		f.class, f.disposition = "ConnectionError", free
	case errors.As(err, &pg):
		f.class, f.disposition = classifyPostgres(pg, earlier)
	case errors.As(err, &file), errors.As(err, &link): // their cause is a net.Error, too
		f.class = "FileError"
	case errors.As(err, &network), errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, io.EOF), errors.Is(err, net.ErrClosed):
		f.class = "ConnectionError"
	}
	return f
}

// lostConnection is the failure of a handler during which the connection went.
func lostConnection(err error) failure {
	f := failure{class: "ConnectionError", disposition: free, message: errConnectionLost.Error()}
	if err != nil {
		f.message = cleanText(err.Error(), maxErrorBytes/2)
	}
	return f
}

func classifyPostgres(pg *pgconn.PgError, earlier int) (string, disposition) {
	switch {
	case pg.Code == pgerrcode.ForeignKeyViolation && earlier < orphanTries:
		return "IntegrityError", transient
	case pgerrcode.IsIntegrityConstraintViolation(pg.Code):
		return "IntegrityError", terminal
	case pg.Code == pgerrcode.SerializationFailure:
		return "SerializationError", free
	case pg.Code == pgerrcode.DeadlockDetected:
		return deadlockClass, free
	case pg.Code == pgerrcode.AdminShutdown, pg.Code == pgerrcode.CrashShutdown, pg.Code == pgerrcode.CannotConnectNow,
		pgerrcode.IsConnectionException(pg.Code):
		return "ConnectionError", free
	case pg.Code == pgerrcode.FeatureNotSupported && pg.Routine == "RevalidateCachedQuery":
		return "SchemaChangedError", free // a migration; the driver prepares the statement anew
	case pg.Code == pgerrcode.QueryCanceled, pg.Code == pgerrcode.LockNotAvailable:
		return timeoutClass, transient
	case pg.Code == pgerrcode.InFailedSQLTransaction:
		return "AbortedTransaction", transient
	default:
		return "DatabaseError", transient
	}
}

// verdict is what becomes of a row one or more of whose handlers did not succeed.
type verdict struct {
	failed    bool          // a dead letter; otherwise retried after delay
	delay     time.Duration // the longest that one of the failed handlers asks for
	counted   bool
	lastError string
	failures  map[string]handlerFailure
	classes   map[string]string // of the handlers that failed in this dispatch
}

// judge adds this dispatch's failures to the row's record. Unhandled are the handlers that have
// not handled the row yet, the ones failing now included.
func judge(record map[string]handlerFailure, unhandled []events.Registration, now map[string]failure, random func() float64) verdict {
	v := verdict{failed: true, failures: make(map[string]handlerFailure, len(record)+len(now)), classes: make(map[string]string, len(now))}
	for name, f := range now {
		v.classes[name] = f.class
	}
	var lines []string
	for _, r := range unhandled {
		h := record[r.Name]
		if f, ok := now[r.Name]; ok {
			h.Class, h.Error = f.class, f.message
			policy := r.RetryPolicy()
			if f.disposition == free && h.Free < maxFree {
				h.Free++
				v.delay = max(v.delay, policy.Delay(1, random()))
			} else {
				if f.disposition != free {
					h.Free = 0
				}
				h.Failures++
				v.counted = true
				h.Parked = f.disposition == terminal || policy.Exhausted(h.Failures)
				if !h.Parked {
					v.delay = max(v.delay, policy.Delay(h.Failures, random()))
				}
			}
		}
		if h != (handlerFailure{}) {
			v.failures[r.Name] = h
			lines = append(lines, fmt.Sprintf("%s: %s: %s", h.Class, r.Name, h.Error))
		}
		v.failed = v.failed && h.Parked
	}
	for name, f := range now { // a failure of no handler: a target context without one
		if !slices.ContainsFunc(unhandled, func(r events.Registration) bool { return r.Name == name }) {
			v.failures[name] = handlerFailure{Failures: 1, Parked: true, Class: f.class, Error: f.message}
			lines = append(lines, fmt.Sprintf("%s: %s: %s", f.class, name, f.message))
			v.counted = true
		}
	}
	v.lastError = cleanText(joinWithin(lines, maxErrorBytes), maxErrorBytes)
	return v
}

func (v verdict) settlement(row claimed) Settlement {
	s := Settlement{Envelope: row.envelope, Outcome: Retried, Attempts: row.attempts, LastError: v.lastError, Delay: v.delay, classes: v.classes}
	if v.counted {
		s.Attempts++
	}
	if v.failed {
		s.Outcome, s.Delay = Failed, 0
	}
	return s
}

// joinWithin joins lines, cutting each to its share so that every handler is still named.
func joinWithin(lines []string, limit int) string {
	share := limit / max(len(lines), 1)
	for i, line := range lines {
		if len(line) >= share {
			lines[i] = line[:share-1]
		}
	}
	return strings.Join(lines, "\n")
}

// cleanText makes s storable: no NUL, valid UTF-8, at most limit bytes.
func cleanText(s string, limit int) string {
	s = strings.ToValidUTF8(strings.ReplaceAll(s, "\x00", "\uFFFD"), "\uFFFD")
	if len(s) > limit {
		s = strings.ToValidUTF8(s[:limit], "") // half a rune at the cut
	}
	return s
}
