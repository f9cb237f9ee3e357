package faults_test

import (
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"

	"spectral/internal/core/events"
	"spectral/tests/faults/ledger"
)

// errandsVariable says how a leasing worker runs errands.
const errandsVariable = "SPECTRAL_FAULTS_ERRANDS"

const (
	errandType  = "worlds.test.errand"
	errandClass = "slow"
	runner      = "platform.faults_runner"
	escort      = "worlds.faults_escort"
)

// errand is an event whose work acts outside the database, in a diary, and then takes its time.
type errand struct {
	Key string `json:"key"`
	Do  string `json:"do"`
	// Takes so many microseconds.
	Takes int64 `json:"takes_us"`
}

func (e errand) time() time.Duration { return time.Duration(e.Takes) * time.Microsecond }

// What the runner may be told to do beside, or instead of, taking its time; each is also a prefix of the key.
// Exit and kill are those of a deed.
const (
	doAwait = "await" // goes on when the test opens its gate
	doBalk  = "balk"  // fails once
)

func errandContract() events.Contract {
	return events.Contract{
		Type: errandType, Version: 1, Source: events.Worlds, Payload: errand{}, Class: errandClass, ContentClass: events.Operational,
	}
}

// errands is how a worker runs them, and where.
type errands struct {
	Dir         string // of the diary and the gates
	Lease       time.Duration
	Concurrency int
	Escorted    bool // a second executor rides along
	Timeout     time.Duration
	Retries     int
	Grace       time.Duration
}

func (r errands) diary() ledger.Diary { return ledger.Diary(filepath.Join(r.Dir, "diary")) }

// gate is what the test writes for an errand that awaits it: for any execution, or for that of one process.
func (r errands) gate(key string, pid int) string {
	if pid != 0 {
		key += "." + strconv.Itoa(pid)
	}
	return filepath.Join(r.Dir, "gate-"+key)
}

// What, written to a gate, lets the errand fail.
const (
	refuse        = "refuse"
	refuseForGood = "refuse for good"
)

// environment is r for a worker process.
func (r errands) environment() (string, error) {
	text, err := json.Marshal(r)
	return errandsVariable + "=" + string(text), err
}

func readErrands() (r errands, err error) {
	err = json.Unmarshal([]byte(os.Getenv(errandsVariable)), &r)
	return r, err
}

func (r errands) subscription(g events.Generation, worker uuid.UUID) events.Subscription {
	retry := &events.RetryPolicy{MaxRetries: r.Retries, Base: time.Millisecond, Multiplier: 1, Cap: time.Millisecond}
	register := func(name string) events.Registration {
		x := &executor{errands: r, name: name, worker: worker}
		return events.Registration{Name: name, Retry: retry, Timeout: r.Timeout, Executor: x}
	}
	s := events.Subscription{
		Channel: events.ChannelName(g, errandClass), EventType: errandType, Mode: events.Leased, Lease: r.Lease,
		Concurrency: r.Concurrency, BatchSize: r.Concurrency, Primary: register(runner),
	}
	if r.Escorted {
		s.CoHandlers = []events.Registration{register(escort)}
	}
	return s.WithDefaults()
}

// executor does errands.
type executor struct {
	errands
	name   string
	worker uuid.UUID
}

var (
	errRefused = errors.New("refused by the test")
	errBalked  = errors.New("balked")
)

// Execute leaves a line in the diary, does what it is told and leaves another.
func (x *executor) Execute(ctx context.Context, e events.Envelope) (events.Completion, error) {
	d, err := events.Decode[errand](e)
	if err != nil {
		return nil, err
	}
	note := ledger.Execution{
		ID: uuid.NewString(), Worker: x.worker.String(), PID: os.Getpid(), Handler: x.name, EventID: e.EventID.String(), Key: d.Key, Begun: time.Now(),
	}
	if err := x.diary().Note(note); err != nil {
		return nil, err
	}
	err = x.run(ctx, d)
	note.Ended = ledger.Done
	if err != nil {
		note.Ended = err.Error()
	}
	if err := errors.Join(err, x.diary().Note(note)); err != nil {
		return nil, err
	}
	return func(ctx context.Context, tx events.Tx) error {
		_, err := tx.Exec(ctx, "insert into faults.effects (handler, key) values ($1, $2)", x.name, d.Key)
		return err
	}, nil
}

func (x *executor) run(ctx context.Context, d errand) error {
	if x.name == escort {
		return take(ctx, d.time()/4)
	}
	misbehave(d.Do)
	switch d.Do {
	case doAwait:
		return x.await(ctx, d.Key)
	case doBalk:
		balked, err := os.OpenFile(filepath.Join(x.Dir, "balked-"+d.Key), os.O_CREATE|os.O_EXCL, 0o600)
		if err == nil {
			return errors.Join(errBalked, balked.Close())
		}
		return take(ctx, d.time())
	default:
		return take(ctx, d.time())
	}
}

// take takes time.
func take(ctx context.Context, d time.Duration) error {
	over := time.NewTimer(d)
	defer over.Stop()
	select {
	case <-over.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// await waits for a gate. Not through the database, with which this is to have nothing to do.
func (x *executor) await(ctx context.Context, key string) error {
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for {
		for _, gate := range []string{x.gate(key, 0), x.gate(key, os.Getpid())} {
			text, err := os.ReadFile(gate)
			switch {
			case errors.Is(err, fs.ErrNotExist):
			case err != nil:
				return err
			case string(text) == refuse:
				return errRefused
			case string(text) == refuseForGood:
				return events.Terminal(errRefused)
			default:
				return nil
			}
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// errandKind is errands for a ledger: a key like await-1 says what is to be done.
func errandKind(r errands, takes func(n int) time.Duration) ledger.Kind {
	handlers := []string{runner}
	if r.Escorted {
		handlers = append(handlers, escort)
	}
	return ledger.Kind{
		EventType: errandType, Handlers: handlers, KeyField: "key",
		Payload: func(n int, key string) any {
			do, _, dashed := strings.Cut(key, "-")
			if !dashed {
				do = ""
			}
			return errand{Key: key, Do: do, Takes: takes(n).Microseconds()}
		},
	}
}
