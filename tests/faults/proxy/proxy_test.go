package proxy_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"spectral/tests/faults/proxy"
	"spectral/tests/pgtest"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

const (
	patience = 30 * time.Second
	// moment is long enough for what would happen on this machine, if it did.
	moment = 300 * time.Millisecond
)

type bundle struct {
	*testing.T
	direct string
	proxy  *proxy.Proxy
	conn   *pgx.Conn // through it
	past   *pgx.Conn // and past it
}

func setup(t *testing.T) *bundle {
	t.Helper()
	t.Parallel()
	direct := pgtest.NewEmpty(t)
	p := proxy.InFrontOf(t, direct)
	b := &bundle{T: t, direct: direct, proxy: p, past: pgtest.Conn(t, direct)}
	b.conn = pgtest.Conn(t, p.URL(t, direct))
	b.must(b.exec("create table t (n int)", patience))
	return b
}

func (b *bundle) must(err error) {
	b.Helper()
	if err != nil {
		b.Fatal(err)
	}
}

func (b *bundle) exec(sql string, within time.Duration) error {
	ctx, cancel := context.WithTimeout(context.Background(), within)
	defer cancel()
	_, err := b.conn.Exec(ctx, sql)
	return err
}

// rows counts, past the proxy, what is in table t.
func (b *bundle) rows() (n int) {
	b.Helper()
	b.must(b.past.QueryRow(b.Context(), "select count(*) from t").Scan(&n))
	return n
}

// eventually awaits rows: of what was cut off, nobody says when it has arrived.
func (b *bundle) eventually(n int) {
	b.Helper()
	deadline := time.NewTimer(patience)
	defer deadline.Stop()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for b.rows() != n {
		select {
		case <-tick.C:
		case <-deadline.C:
			b.Fatalf("%d rows, want %d", b.rows(), n)
		}
	}
}

func (b *bundle) wantLost(err error) {
	b.Helper()
	if err == nil || errors.Is(err, context.DeadlineExceeded) || !b.conn.IsClosed() {
		b.Errorf("%v; want a lost connection", err)
	}
}

func (b *bundle) wantSilence(err error) {
	b.Helper()
	if !errors.Is(err, context.DeadlineExceeded) {
		b.Errorf("%v; want no answer", err)
	}
}

const insert = "insert into t values (1)"

func TestVerdicts(t *testing.T) {
	cases := []struct {
		name    string
		verdict proxy.Verdict
		silent  bool // the connection stays open
		rows    int
	}{
		{"cut off before it", proxy.Cutoff, false, 0},
		{"torn", proxy.Tear, false, 0},
		{"cut off after it", proxy.ForwardThenCut, false, 1},
		{"discarded", proxy.Discard, true, 0},
		{"frozen", proxy.Freeze, true, 0},
		{"hushed", proxy.Hush, true, 1},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			b := setup(t)
			filter, hit := proxy.Nth(2, c.verdict, func(m proxy.Message) bool { return strings.HasPrefix(m.Query(), "insert") })
			b.proxy.Filter(filter)
			b.must(b.exec(insert, patience))
			if c.silent {
				b.wantSilence(b.exec(insert, moment))
			} else {
				b.wantLost(b.exec(insert, patience))
			}
			<-hit
			b.eventually(1 + c.rows)
		})
	}
}

// Whichever transaction runs the statement, when it is prepared and when it was long before.
func TestCommitOf(t *testing.T) {
	b := setup(t)
	commits := 0 // they come one after the other
	meant := proxy.CommitOf("into t")
	b.proxy.Filter(func(m proxy.Message) proxy.Verdict {
		if meant(m) {
			commits++
		}
		return proxy.Forward
	})
	conn := pgtest.Conn(t, b.proxy.URL(t, b.direct))
	transact := func(commit bool, sql string, args ...any) {
		t.Helper()
		tx, err := conn.Begin(t.Context())
		b.must(err)
		_, err = tx.Exec(t.Context(), sql, args...)
		b.must(err)
		_, err = tx.Exec(t.Context(), "set local role none")
		b.must(err)
		if commit {
			b.must(tx.Commit(t.Context()))
		} else {
			b.must(tx.Rollback(t.Context()))
		}
	}
	const prepared = "insert into t values ($1)"
	for i, c := range []struct {
		commit bool
		sql    string
		args   []any
		want   int
	}{
		{true, prepared, []any{1}, 1},
		{true, "select $1::int", []any{1}, 1},
		{true, prepared, []any{1}, 2},
		{false, prepared, []any{1}, 2},
		{true, "select 1", nil, 2},
		{true, insert, nil, 3},
	} {
		if transact(c.commit, c.sql, c.args...); commits != c.want {
			t.Errorf("transaction %d: %d commits, want %d", i, commits, c.want)
		}
	}
}
