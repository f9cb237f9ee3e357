package integration_test

import (
	"context"
	"fmt"
	"net/url"
	"strings"
	"time"

	"github.com/google/uuid"

	"spectral/internal/core/events"
	"spectral/internal/core/events/infrastructure/postgres/dispatch"
)

// onOneConnection starts a worker with a pool of one connection, so that each event meets the session state of the
// one before.
func (b *bundle) onOneConnection(s events.Subscription) *testWorker {
	b.Helper()
	b.poolURL += "&pool_max_conns=1"
	s.Concurrency = 1
	return b.startWorker(noPoll, s)
}

// wantLogin checks that the pooled connection has its login's role and no workspace.
func (l *testWorker) wantLogin(after string) {
	l.Helper()
	ctx, cancel := context.WithTimeout(l.ctx, testTimeout)
	defer cancel()
	var is, login, role, workspace string
	must(l.T, l.workers.QueryRow(ctx, `select current_user, session_user, current_setting('role'),
		coalesce(current_setting('spectral.workspace_id', true), '')`).Scan(&is, &login, &role, &workspace))
	if is != login || role != "none" || workspace != "" {
		l.Errorf("after %s the connection of %s has the user %s, role %s and workspace %q", after, login, is, role, workspace)
	}
}

func payloadN(e events.Envelope) int {
	p, err := events.Decode[happened](e)
	if err != nil {
		return -1
	}
	return p.N
}

func eachEventSeesItsWorkspaceOnly(b *bundle) {
	first, second := uuid.New(), uuid.New()
	a, none, c := uuid.NullUUID{UUID: first, Valid: true}, uuid.NullUUID{}, uuid.NullUUID{UUID: second, Valid: true}
	order := []uuid.NullUUID{a, none, c, none, a, c}
	want := map[uuid.UUID]string{first: "1,2", uuid.Nil: "", second: "3,4,5"}
	b.exec("insert into platform.owned values ($1, 1), ($1, 2), ($2, 3), ($2, 4), ($2, 5), (null, 6)", first, second)
	for name, c := range map[string]struct{ batch, failures int }{"single": {1, 1}, "batch": {10, 2}} {
		b.run(name, func(b *bundle) {
			var published []events.Envelope
			for n, workspace := range order {
				e := event(n)
				e.WorkspaceID = workspace
				published = append(published, e)
			}
			pids := make(map[int]bool)
			tries := make(map[uuid.UUID]int)
			read := func(ctx context.Context, tx events.Tx, e events.Envelope) error {
				var pid int
				var saw string
				const owned = "select pg_backend_pid(), coalesce(string_agg(n::text, ',' order by n), '') from platform.owned"
				if err := tx.QueryRow(ctx, owned).Scan(&pid, &saw); err != nil {
					return err
				}
				pids[pid] = true
				if saw != want[e.WorkspaceID.UUID] {
					b.Errorf("event %d of workspace %s saw %q", payloadN(e), e.WorkspaceID.UUID, saw)
				}
				if tries[e.EventID]++; tries[e.EventID] <= c.failures && payloadN(e)%2 == 0 {
					return errOnPurpose
				}
				return nil
			}
			b.publish(published...)
			s := subscription(handler("platform.read", read), effectHandler("worlds.two"))
			s.BatchSize = c.batch
			l := b.onOneConnection(s)
			l.awaitSettled(len(published), 0)
			l.wantLogin("all events")
			l.stop()
			if len(pids) != 1 {
				b.Errorf("%d connections were used, want 1", len(pids))
			}
		})
	}
}

// The connection has its login's role after each outcome. The names of roles are quoted.
func theConnectionIsReset(b *bundle) {
	odd := fmt.Sprintf(`Odd "login"; reset role --%s`, uuid.NewString()[:8])
	quoted := `"` + strings.ReplaceAll(odd, `"`, `""`) + `"`
	b.exec("create role " + quoted + " login password 'test' in role spectral_worker")
	b.Cleanup(func() { b.exec("drop role " + quoted) })
	u, err := url.Parse(b.url)
	must(b.T, err)
	u.User = url.UserPassword(odd, "test")
	b.directURL, b.poolURL = u.String(), u.String()
	does := []func(context.Context, events.Tx) error{
		func(context.Context, events.Tx) error { return nil },
		func(context.Context, events.Tx) error { return events.Terminal(errOnPurpose) },
		func(context.Context, events.Tx) error { panic(errOnPurpose) },
		func(ctx context.Context, tx events.Tx) error { _, _ = tx.Exec(ctx, "select 1/0"); return nil },
		func(ctx context.Context, tx events.Tx) error {
			_, err := tx.Exec(ctx, "select 1", rewrittenToRollback{})
			return err
		},
	}
	h := handler("platform.one", func(ctx context.Context, tx events.Tx, e events.Envelope) error {
		got := one[string](b, "select usename::text from pg_stat_activity where pid = $1", backendPID(ctx, tx))
		if got != odd {
			return events.Terminal(fmt.Errorf("the login is %s", got))
		}
		return does[payloadN(e)](ctx, tx)
	})
	h.Retry = noRetry
	l := b.onOneConnection(subscription(h))
	for n := range does {
		e := event(n)
		e.WorkspaceID = uuid.NullUUID{UUID: uuid.New(), Valid: true}
		b.publish(e)
		if s := l.nextSettlement(); s.Outcome == dispatch.Retried {
			l.nextSettlement()
		} else if n == 0 {
			wantDelivered(b.T, s)
		}
		l.wantLogin(fmt.Sprintf("event %d", n))
	}
}

var noRetry = &events.RetryPolicy{MaxRetries: 0, Base: time.Millisecond, Multiplier: 1, Cap: time.Millisecond}

func backendPID(ctx context.Context, tx events.Tx) (pid int) {
	_ = tx.QueryRow(ctx, "select pg_backend_pid()").Scan(&pid)
	return pid
}
