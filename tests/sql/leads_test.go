package sql_test

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"

	"spectral/tests/pgtest"
)

// One session at a time reaps or samples, until its transaction ends; another gets nothing and does not wait.
func TestOneActsAtATime(t *testing.T) {
	t.Parallel()
	d := setupReap(t)
	second := d.login(t, "spectral_worker")
	exec(t, second, "set statement_timeout = '5s'")
	for name, sql := range map[string]string{
		"reap":   "select count(*) from core.outbox_reap() where reaped",
		"sample": "select count(core.ack_measure())",
	} {
		d.rows(t, 1, expired)
		first := begin(t, pgtest.Conn(t, d.at))
		if n := value[int](t, first, sql); n != 1 {
			t.Errorf("%s: the first does not act", name)
		}
		if n := value[int](t, second, sql); n != 0 {
			t.Errorf("%s: two act at once", name)
		}
		if err := first.Rollback(deadline(t)); err != nil {
			t.Fatal(err)
		}
		if n := value[int](t, second, sql); n != 1 {
			t.Errorf("%s: the second does not act after the first", name)
		}
	}
}

// Workers register one after the other, so that the second sees the first.
func TestTurns(t *testing.T) {
	t.Parallel()
	for name, turn := range map[string]struct {
		role, first, second string
		says                string
	}{
		"workers": {
			role:   "spectral_worker",
			first:  `select core.worker_register(gen_random_uuid(), 1, 'first', '{"worlds.x": ["a.b"]}')`,
			second: `select core.worker_register(gen_random_uuid(), 1, 'second', '{"worlds.x": ["a.c"]}')`,
			says:   "worker first is live and handles worlds.x",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := setup(t)
			first, second := pgtest.Conn(t, d.at), pgtest.Conn(t, d.at)
			exec(t, first, "set role "+turn.role)
			exec(t, second, "set role "+turn.role+"; set application_name = 'second'")
			tx := begin(t, first)
			exec(t, tx, turn.first)
			ctx, said := deadline(t), make(chan string, 1)
			go func(ctx context.Context) {
				var text *string
				err := second.QueryRow(ctx, turn.second).Scan(&text)
				switch pg, refused := errors.AsType[*pgconn.PgError](err); {
				case refused:
					said <- pg.Code + " " + pg.Message
				case err != nil:
					said <- err.Error()
				case text == nil:
					said <- "null"
				default:
					said <- *text
				}
			}(ctx)
			waitFor(t, d.admin, "select exists (select from pg_stat_activity where datname = current_database() and application_name = 'second' and wait_event_type = 'Lock')")
			if err := tx.Commit(deadline(t)); err != nil {
				t.Fatal(err)
			}
			if text := <-said; !strings.Contains(text, turn.says) {
				t.Errorf("the second is told %q, not %q", text, turn.says)
			}
		})
	}
}
