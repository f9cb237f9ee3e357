package ledger

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// Outcome is what a publisher knows about its transaction.
type Outcome string

// What is known after a transaction.
const (
	Committed Outcome = "committed"
	Aborted   Outcome = "aborted"
	Unknown   Outcome = "unknown" // the reply to COMMIT was lost
)

const applicationName = "faults_publisher"

const (
	statementTimeout = 10 * time.Second
	reconnectPause   = 100 * time.Millisecond
	// abortOneIn is how many transactions there are for one that is rolled back on purpose.
	abortOneIn = 10
)

type transaction struct {
	keys    []string
	outcome Outcome
}

// Ledger records the transactions of one test. It is safe for concurrent use.
type Ledger struct {
	kind     Kind
	sequence atomic.Int64

	mu           sync.Mutex
	transactions []transaction
	errs         []error       // why transactions of a load ended that were not rolled back on purpose
	longest      time.Duration // of them
}

// New returns an empty ledger of events of one kind.
func New(kind Kind) *Ledger { return &Ledger{kind: kind} }

// Counts returns how many transactions ended with each outcome.
func (l *Ledger) Counts() map[Outcome]int {
	l.mu.Lock()
	defer l.mu.Unlock()
	counts := make(map[Outcome]int)
	for _, tx := range l.transactions {
		counts[tx.outcome]++
	}
	return counts
}

// Events returns how many events are in transactions that committed.
func (l *Ledger) Events() (n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, tx := range l.transactions {
		if tx.outcome == Committed {
			n += len(tx.keys)
		}
	}
	return n
}

func (l *Ledger) record(keys []string, o Outcome) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.transactions = append(l.transactions, transaction{keys, o})
}

// Errors returns why transactions of a load failed.
func (l *Ledger) Errors() []error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.errs
}

// Longest returns how long the longest transaction of a load took.
func (l *Ledger) Longest() time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.longest
}

// Publish publishes one event for each key in one transaction, and fails the test unless it commits.
func (l *Ledger) Publish(t testing.TB, url string, keys ...string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 3*statementTimeout)
	defer cancel()
	conn, err := connect(ctx, url)
	must(t, err)
	defer func() { _ = conn.Close(ctx) }()
	outcome, err := l.transact(ctx, conn, keys, true)
	l.record(keys, outcome)
	if outcome != Committed {
		t.Fatalf("publish: %s: %v", outcome, err)
	}
}

// Load says how publishers publish.
type Load struct {
	URL        string
	Publishers int // each with its own connection
	// Rate is each publisher's transactions in a second.
	Rate float64
	// PerTx is the largest number of events in a transaction; the smallest is one.
	PerTx int
	Seed  uint64
}

// Publishing is a running load.
type Publishing struct {
	stop context.CancelFunc
	wait sync.WaitGroup
}

// Stop ends the publishers, each after its current transaction.
func (p *Publishing) Stop() {
	p.stop()
	p.wait.Wait()
}

// Start starts publishers. They reconnect when they have to, and go on until they are stopped, or
// the test ends.
func (l *Ledger) Start(t testing.TB, load Load) *Publishing {
	t.Helper()
	ctx, stop := context.WithCancel(context.Background())
	p := &Publishing{stop: stop}
	for i := range load.Publishers {
		random := rand.New(rand.NewPCG(load.Seed, uint64(i)))
		p.wait.Go(func() { l.publish(ctx, load, random) })
	}
	t.Cleanup(p.Stop)
	return p
}

// publish is one publisher. It ends with ctx, after the transaction that runs.
func (l *Ledger) publish(ctx context.Context, load Load, random *rand.Rand) {
	pace := time.NewTicker(time.Duration(float64(time.Second) / load.Rate))
	defer pace.Stop()
	alive := context.WithoutCancel(ctx)
	var conn *pgx.Conn
	defer func() {
		if conn != nil {
			closing, cancel := context.WithTimeout(alive, statementTimeout)
			defer cancel()
			_ = conn.Close(closing)
		}
	}()
	for {
		select {
		case <-pace.C:
		case <-ctx.Done():
			return
		}
		if conn == nil || conn.IsClosed() {
			var err error
			if conn, err = connect(alive, load.URL); err != nil {
				again := time.NewTimer(reconnectPause)
				select {
				case <-again.C:
				case <-ctx.Done():
				}
				again.Stop()
				continue
			}
		}
		keys := make([]string, 1+random.IntN(load.PerTx))
		for i := range keys {
			keys[i] = fmt.Sprintf("k%06d", l.sequence.Add(1))
		}
		started := time.Now()
		outcome, err := l.transact(alive, conn, keys, random.IntN(abortOneIn) > 0)
		l.record(keys, outcome)
		l.mu.Lock()
		l.longest = max(l.longest, time.Since(started))
		if err != nil {
			l.errs = append(l.errs, err)
		}
		l.mu.Unlock()
	}
}

func connect(ctx context.Context, url string) (*pgx.Conn, error) {
	config, err := pgx.ParseConfig(url)
	if err != nil {
		return nil, err
	}
	config.RuntimeParams["application_name"] = applicationName
	// This mode works through a transaction pooler too.
	config.DefaultQueryExecMode = pgx.QueryExecModeExec
	ctx, cancel := context.WithTimeout(ctx, statementTimeout)
	defer cancel()
	return pgx.ConnectConfig(ctx, config)
}

// transact publishes the events in one transaction, and commits it or rolls it back.
func (l *Ledger) transact(ctx context.Context, conn *pgx.Conn, keys []string, commit bool) (Outcome, error) {
	ctx, cancel := context.WithTimeout(ctx, statementTimeout)
	defer cancel()
	tx, err := conn.Begin(ctx)
	if err != nil {
		return Aborted, err
	}
	rollBack := func() {
		// ctx may have ended, and without a rollback the connection would stay in the transaction.
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), statementTimeout)
		defer cancel()
		_ = tx.Rollback(ctx)
	}
	for _, key := range keys {
		payload, err := json.Marshal(l.kind.Payload(l.number(key), key))
		if err == nil {
			_, err = tx.Exec(ctx, "select core.outbox_publish($1, 'worlds', $2::text::jsonb)", l.kind.EventType, string(payload))
		}
		if err != nil {
			rollBack()
			return Aborted, err
		}
	}
	if !commit {
		rollBack()
		return Aborted, nil
	}
	err = tx.Commit(ctx)
	var pgErr *pgconn.PgError
	switch {
	case err == nil:
		return Committed, nil
	case errors.Is(err, pgx.ErrTxCommitRollback):
		return Aborted, err
	case errors.As(err, &pgErr) && pgErr.Severity == "ERROR":
		return Aborted, err
	default: // after a lost connection or a FATAL error, the commit may have taken effect
		return Unknown, err
	}
}

// chosenFrom is the first number of events whose key a test chose.
const chosenFrom = 1_000_000

// number returns the number in a publisher's key, or a new one for a key that a test chose.
func (l *Ledger) number(key string) int {
	var n int
	if _, err := fmt.Sscanf(key, "k%06d", &n); err == nil {
		return n
	}
	return chosenFrom + int(l.sequence.Add(1))
}
