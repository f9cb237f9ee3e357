package faults_test

import (
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"github.com/google/uuid"

	"spectral/internal/core/events"
	"spectral/tests/faults/ledger"
)

// jobsVariable holds the jobConfig of a worker as JSON.
const jobsVariable = "SPECTRAL_FAULTS_JOBS"

const (
	jobType         = "worlds.test.job"
	jobClass        = "slow"
	primaryExecutor = "platform.faults_primary_executor"
	secondExecutor  = "worlds.faults_second_executor"
)

// job is the payload of all test events. In leased mode its executor writes to the execution log and then works for a
// while.
type job struct {
	Key string `json:"key"`
	Do  string `json:"do"`
	// TakesMicros is how long the primary executor works.
	TakesMicros int64 `json:"takes_us"`
}

func (j job) takes() time.Duration { return time.Duration(j.TakesMicros) * time.Microsecond }

// What the primary executor may be told to do, besides doExit and doKill. Each is also a prefix of the event's key.
const (
	doAwait    = "await"    // waits until the test opens its gate
	doFailOnce = "failonce" // fails once
)

type jobConfig struct {
	Dir            string // holds the execution log and the gates
	Lease          time.Duration
	Concurrency    int
	SecondExecutor bool // registers a second executor
	Retries        int
	Grace          time.Duration
}

func (r jobConfig) executionLog() ledger.ExecutionLog {
	return ledger.ExecutionLog(filepath.Join(r.Dir, "executions"))
}

// gate returns the file that lets a waiting job go on: in any process, or in the one with the given pid.
func (r jobConfig) gate(key string, pid int) string {
	if pid != 0 {
		key += "." + strconv.Itoa(pid)
	}
	return filepath.Join(r.Dir, "gate-"+key)
}

// What a test writes to a gate to make the job fail.
const (
	gateError    = "error"
	gateTerminal = "terminal error"
)

// environment returns r as a variable for a worker process.
func (r jobConfig) environment() (string, error) {
	text, err := json.Marshal(r)
	return jobsVariable + "=" + string(text), err
}

func readJobConfig() (r jobConfig, err error) {
	err = json.Unmarshal([]byte(os.Getenv(jobsVariable)), &r)
	return r, err
}

func (r jobConfig) subscription(g events.Generation, worker uuid.UUID) events.Subscription {
	retry := &events.RetryPolicy{MaxRetries: r.Retries, Base: time.Millisecond, Multiplier: 1, Cap: time.Millisecond}
	register := func(name string) events.Registration {
		x := &executor{jobConfig: r, name: name, worker: worker}
		return events.Registration{Name: name, Retry: retry, Executor: x}
	}
	s := events.Subscription{
		Channel: events.ChannelName(g, jobClass), EventType: jobType, Mode: events.Leased, Lease: r.Lease,
		Concurrency: r.Concurrency, BatchSize: r.Concurrency, Primary: register(primaryExecutor),
	}
	if r.SecondExecutor {
		s.CoHandlers = []events.Registration{register(secondExecutor)}
	}
	return s.WithDefaults()
}

type executor struct {
	jobConfig
	name   string
	worker uuid.UUID
}

var (
	errGate       = errors.New("failed, as the test said")
	errFailedOnce = errors.New("failed once, as the test said")
)

// Execute appends to the execution log before and after it does what the job says. The completion writes the effect.
func (x *executor) Execute(ctx context.Context, e events.Envelope) (events.Completion, error) {
	j, err := events.Decode[job](e)
	if err != nil {
		return nil, err
	}
	execution := ledger.Execution{
		ID: uuid.NewString(), Worker: x.worker.String(), PID: os.Getpid(), Handler: x.name, EventID: e.EventID.String(),
		Key: j.Key, Started: time.Now(),
	}
	if err := x.executionLog().Append(execution); err != nil {
		return nil, err
	}
	err = x.run(ctx, j)
	execution.Result = ledger.Done
	if err != nil {
		execution.Result = err.Error()
	}
	if err := errors.Join(err, x.executionLog().Append(execution)); err != nil {
		return nil, err
	}
	return func(ctx context.Context, tx events.Tx) error {
		_, err := tx.Exec(ctx, "insert into faults.effects (handler, key) values ($1, $2)", x.name, j.Key)
		return err
	}, nil
}

func (x *executor) run(ctx context.Context, j job) error {
	if x.name == secondExecutor {
		return wait(ctx, j.takes()/4)
	}
	endProcess(j.Do)
	switch j.Do {
	case doAwait:
		return x.await(ctx, j.Key)
	case doFailOnce:
		marker, err := os.OpenFile(filepath.Join(x.Dir, "failed-"+j.Key), os.O_CREATE|os.O_EXCL, 0o600)
		if err == nil {
			return errors.Join(errFailedOnce, marker.Close())
		}
		return wait(ctx, j.takes())
	default:
		return wait(ctx, j.takes())
	}
}

func wait(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// await waits for a gate. It uses files, since this must work without the database.
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
			case string(text) == gateError:
				return errGate
			case string(text) == gateTerminal:
				return events.Terminal(errGate)
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
