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
	testTimeout = 30 * time.Second
	// silence is how long a test waits for a reply that must not come.
	silence = 300 * time.Millisecond
)

type bundle struct {
	*testing.T
	direct string
	proxy  *proxy.Proxy
	conn   *pgx.Conn // through the proxy
	server *pgx.Conn // past the proxy
}

func setup(t *testing.T) *bundle {
	t.Helper()
	t.Parallel()
	direct := pgtest.NewEmpty(t)
	p := proxy.InFrontOf(t, direct)
	b := &bundle{T: t, direct: direct, proxy: p, server: pgtest.Conn(t, direct)}
	b.conn = pgtest.Conn(t, p.URL(t, direct))
	b.must(b.exec("create table t (n int)", testTimeout))
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

// rows counts the rows of table t, past the proxy.
func (b *bundle) rows() (n int) {
	b.Helper()
	b.must(b.server.QueryRow(b.Context(), "select count(*) from t").Scan(&n))
	return n
}

// eventually waits until table t has n rows. There is no signal for the arrival of a statement whose connection was
// lost.
func (b *bundle) eventually(n int) {
	b.Helper()
	if !pgtest.Eventually(testTimeout, func() bool { return b.rows() == n }) {
		b.Fatalf("%d rows, want %d", b.rows(), n)
	}
}

func (b *bundle) wantLost(err error) {
	b.Helper()
	if err == nil || errors.Is(err, context.DeadlineExceeded) || !b.conn.IsClosed() {
		b.Errorf("%v; want a lost connection", err)
	}
}

func (b *bundle) wantNoReply(err error) {
	b.Helper()
	if !errors.Is(err, context.DeadlineExceeded) {
		b.Errorf("%v; want no answer", err)
	}
}

const insert = "insert into t values (1)"

func TestActionsLoseTheMessageOrTheReply(t *testing.T) {
	cases := []struct {
		name   string
		action proxy.Action
		silent bool // the connection stays open
		rows   int
	}{
		{"reset before it", proxy.Reset, false, 0},
		{"reset after it", proxy.ForwardThenReset, false, 1},
		{"discarded", proxy.Discard, true, 0}, {"frozen", proxy.Freeze, true, 0},
		{"replies dropped", proxy.DropReplies, true, 1},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			b := setup(t)
			filter, hit := proxy.Nth(2, c.action, func(m proxy.Message) bool { return strings.HasPrefix(m.Query(), "insert") })
			b.proxy.Filter(func(m proxy.Message) proxy.Action {
				if m.Conn > 1 { // the driver cancels the statement of a connection that it lost
					return proxy.Reset
				}
				return filter(m)
			})
			b.must(b.exec(insert, testTimeout))
			if c.silent {
				b.wantNoReply(b.exec(insert, silence))
			} else {
				b.wantLost(b.exec(insert, testTimeout))
			}
			<-hit
			b.eventually(1 + c.rows)
		})
	}
}

func TestCommitOfFindsTheTransactionOfAStatement(t *testing.T) {
	b := setup(t)
	commits := 0 // they come one after the other
	matches := proxy.CommitOf("into t")
	b.proxy.Filter(func(m proxy.Message) proxy.Action {
		if matches(m) {
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
		{true, prepared, []any{1}, 1}, {true, "select $1::int", []any{1}, 1}, {true, prepared, []any{1}, 2},
		{false, prepared, []any{1}, 2}, {true, "select 1", nil, 2}, {true, insert, nil, 3},
	} {
		if transact(c.commit, c.sql, c.args...); commits != c.want {
			t.Errorf("transaction %d: %d commits, want %d", i, commits, c.want)
		}
	}
}
