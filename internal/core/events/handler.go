package events

import (
	"cmp"
	"context"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"
)

// EventHandler handles one event. Built for a transaction, it makes its effects through it, and they commit exactly
// when the event is recorded as handled. It may run again after a failure, and an event may come in any order. An error
// undoes this handler's writes and is retried by its policy unless it is terminal (see [Terminal]).
//
// A handler must not end its transaction, set its role or search_path, run SET CONSTRAINTS ALL IMMEDIATE, or use the Tx
// after returning. It stops when ctx is done. What it sets for its transaction (SET LOCAL) does not reach other
// handlers. What it sets for its session costs a new connection.
type EventHandler func(ctx context.Context, e Envelope) error

// BatchHandler handles several events of one workspace in one transaction, all or none. It is
// given a batch of one when it runs for a single event. The rules of [EventHandler] hold.
//
// A batch may hold several events with one EffectKey value. They are next to each other and in no promised order. An
// INSERT ... ON CONFLICT DO UPDATE that names a row twice fails (SQLSTATE 21000), so fold them first: sort the batch by
// key and the latest version first, and keep the first of each key by [slices.CompactFunc].
type BatchHandler interface {
	HandleBatch(ctx context.Context, batch []Envelope) error
}

// HandlerOf returns a handler that decodes an event's payload into T, lets read turn it into D, and passes that to
// handle with the event's workspace. An error of read becomes a [*PayloadError].
func HandlerOf[T, D any](read func(Envelope, T) (D, error),
	handle func(context.Context, uuid.NullUUID, D) error) EventHandler {
	return func(ctx context.Context, e Envelope) error {
		d, err := readPayload(e, read)
		if err != nil {
			return err
		}
		return handle(ctx, e.WorkspaceID, d)
	}
}

// BatchHandlerOf is [HandlerOf] for a batch. It reads all events before it handles any.
func BatchHandlerOf[T, D any](read func(Envelope, T) (D, error),
	handle func(context.Context, uuid.NullUUID, []D) error) BatchHandler {
	return batchFunc(func(ctx context.Context, batch []Envelope) (err error) {
		all := make([]D, len(batch))
		for i, e := range batch {
			if all[i], err = readPayload(e, read); err != nil {
				return err
			}
		}
		return handle(ctx, batch[0].WorkspaceID, all)
	})
}

type batchFunc func(context.Context, []Envelope) error

// HandleBatch implements [BatchHandler].
func (f batchFunc) HandleBatch(ctx context.Context, batch []Envelope) error { return f(ctx, batch) }

func readPayload[T, D any](e Envelope, read func(Envelope, T) (D, error)) (d D, err error) {
	payload, err := Decode[T](e)
	if err != nil {
		return d, err
	}
	if d, err = read(e, payload); err != nil {
		err = &PayloadError{EventType: e.EventType, Err: err}
	}
	return d, err
}

// Executor does leased work, which is too slow for a transaction. Execute runs outside any transaction and returns the
// function that writes the result when the event is settled, or nil for no result. It may run more than once for an
// event, and twice at the same time when a lease is lost.
//
// It stops when ctx is done. [context.Cause] returns the reason: [ErrLeaseLost], [ErrStopping], or
// [context.DeadlineExceeded] for the handler's own timeout. The worker waits 5 s for it and then goes on without it.
// An error is retried by the handler's policy unless it is terminal. Safe for concurrent use.
type Executor interface {
	Execute(ctx context.Context, e Envelope) (Completion, error)
}

// ExecutorFunc makes a function an Executor.
type ExecutorFunc func(ctx context.Context, e Envelope) (Completion, error)

// Execute implements [Executor].
func (f ExecutorFunc) Execute(ctx context.Context, e Envelope) (Completion, error) { return f(ctx, e) }

// Completion writes the outcome of leased work in the transaction that settles the event, together with its dedup row.
// Of several executions only one is completed. It has the handler's Timeout, a quarter of the lease or 30 s, whichever
// is shortest; the COMMIT, with what is deferred to it, has 10 s. It may be called several times, because its
// transaction may be shared with other events and rolled back. So it must not use up what it closes over. An error is a
// failure of the handler, and the retry executes everything again. The rules of [EventHandler] hold.
type Completion func(ctx context.Context, tx Tx) error

// Mode says how a consumer's events are held while its handlers run.
type Mode string

const (
	// RowLocked holds the row under a lock, in the one transaction that claims, handles and
	// settles it. For short projections.
	RowLocked Mode = "row_locked"
	// Leased marks the row in_flight under a claim token and renews it. For anything slow.
	Leased Mode = "leased"
)

// Registration is a handler as a consumer registers it. Exactly one of Handler, Batch and Executor is set.
type Registration struct {
	// Name is scope-qualified and unique for ever, like platform.world_model_card_projector: it is
	// half of the dedup key. Its scope is the context whose database role the handler runs as.
	Name string
	// Reads is a zero value of the consumer's own struct that the handler decodes payloads into. Only contract tests
	// use it: they decode every producer's examples into it.
	Reads any
	// Handler builds the handler for a transaction.
	Handler func(Tx) EventHandler
	// Batch builds the batch handler for a transaction.
	Batch func(Tx) BatchHandler
	// Executor does leased work.
	Executor Executor
	// Retry overrides the default policy; nil means [DefaultRetryPolicy].
	Retry *RetryPolicy
	// Timeout of one call; zero means [DefaultHandlerTimeout], or [DefaultExecutionTimeout] for an Executor, which is
	// cancelled then even if its lease is renewed.
	Timeout time.Duration
	// EffectKey names the top-level payload field that identifies the row that the handler writes, such as card_id.
	// Batches are then handled in the order of workspace and key in every process, so that no two lock these rows in
	// opposite orders. It promises no order of events. If Reads is a struct, it must have the field.
	EffectKey string
	// ActsOutside says what the handler does outside its transaction, as in "sends mail"; empty: nothing. A rolled back
	// batch would repeat it, so such a handler is never batched.
	ActsOutside string
	// OnReplay says what a replay does with the handler. One that acts outside must say it.
	OnReplay ReplayPolicy
}

// ReplayPolicy says whether a replay runs a handler again that had begun, and had not handled the event: it may have
// acted outside its transaction before it failed. A handler that never began, or has no policy, always runs.
type ReplayPolicy string

// The policies.
const (
	ReplayAllow ReplayPolicy = "allow" // run it
	ReplaySkip  ReplayPolicy = "skip"  // do not run it: the event counts as handled, with the outcome skipped
	ReplayAsk   ReplayPolicy = "ask"   // the operator says which, by --run or --skip
)

// maxEffectBytes bounds ActsOutside, which tables show.
const maxEffectBytes = 80

// Bounds of a registration.
const (
	DefaultHandlerTimeout   = 30 * time.Second // of one call of a handler without a Timeout
	DefaultExecutionTimeout = 15 * time.Minute // of one call of an Executor without a Timeout
	maxHandlerNameBytes     = 128              // what core.event_handled takes
)

var handlerNameForm = regexp.MustCompile(`^[a-z][a-z0-9_]*\.[a-z][a-z0-9_]*$`)

// Scope is the context the handler belongs to, from its name.
func (r Registration) Scope() Scope {
	scope, _, _ := strings.Cut(r.Name, ".")
	return Scope(scope)
}

// RetryPolicy is the handler's own policy, or the default.
func (r Registration) RetryPolicy() RetryPolicy {
	if r.Retry != nil {
		return *r.Retry
	}
	return DefaultRetryPolicy
}

// CallTimeout is the handler's own timeout, or the default.
func (r Registration) CallTimeout() time.Duration {
	switch {
	case r.Timeout > 0:
		return r.Timeout
	case r.Executor != nil:
		return DefaultExecutionTimeout
	default:
		return DefaultHandlerTimeout
	}
}

// Validate reports what is wrong with a registration in a consumer of the given mode.
func (r Registration) Validate(mode Mode) error {
	var f faults
	f.require(handlerNameForm.MatchString(r.Name) && len(r.Name) <= maxHandlerNameBytes,
		"name must be scope-qualified like platform.decision_recorded_aggregator, at most %d bytes", maxHandlerNameBytes)
	f.require(len(f) > 0 || r.Scope() == Platform || r.Scope() == Worlds,
		"scope %q is not a bounded context: name it platform.* or worlds.*", r.Scope())
	kinds := 0
	for _, set := range []bool{r.Handler != nil, r.Batch != nil, r.Executor != nil} {
		if set {
			kinds++
		}
	}
	f.require(kinds == 1, "exactly one of Handler, Batch and Executor must be set, %d are", kinds)
	if kinds == 1 {
		f.require(mode != Leased || r.Executor != nil, "a leased consumer takes an Executor")
		f.require(mode != RowLocked || r.Executor == nil, "an Executor needs a leased consumer")
		f.require(r.EffectKey == "" || r.Executor == nil, "EffectKey is for row-locked handlers")
	}
	fields := jsonFields(r.Reads)
	f.require(r.EffectKey == "" || fields == nil || slices.Contains(fields, r.EffectKey),
		"EffectKey is %q, must be a top-level field of Reads: %s", r.EffectKey, strings.Join(fields, ", "))
	f.require(r.Timeout >= 0, "timeout is negative")
	f.require(len(r.ActsOutside) <= maxEffectBytes, "ActsOutside has %d bytes, at most %d", len(r.ActsOutside),
		maxEffectBytes)
	f.require(r.OnReplay == "" || slices.Contains([]ReplayPolicy{ReplayAllow, ReplaySkip, ReplayAsk}, r.OnReplay),
		"OnReplay is %q, must be allow, skip or ask", r.OnReplay)
	f.require(r.ActsOutside == "" || r.OnReplay != "", "ActsOutside is %q, so OnReplay must say what a replay does: "+
		"allow, skip or ask", r.ActsOutside)
	if err := r.RetryPolicy().Validate(); err != nil {
		f = append(f, err)
	}
	return f.of("handler %q", r.Name)
}

// jsonFields returns the names of the top-level fields that v, a struct, is decoded from, and nil for any other value.
func jsonFields(v any) []string {
	t := reflect.TypeOf(v)
	if t == nil || t.Kind() != reflect.Struct {
		return nil
	}
	names := make([]string, 0, t.NumField())
	for _, field := range reflect.VisibleFields(t) {
		name, _, _ := strings.Cut(field.Tag.Get("json"), ",")
		if field.IsExported() && name != "-" && (!field.Anonymous || name != "") {
			names = append(names, cmp.Or(name, field.Name))
		}
	}
	return names
}
