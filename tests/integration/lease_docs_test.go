package integration_test

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"spectral/tests/pgtest"
)

// sqlOf returns the blocks of SQL of a page of the documentation.
func sqlOf(t *testing.T, page string) (blocks []string) {
	t.Helper()
	text, err := os.ReadFile("../../docs/" + page)
	must(t, err)
	for i, block := range strings.Split(string(text), "```") {
		if i%2 == 1 && (strings.HasPrefix(block, "\n--") || strings.HasPrefix(block, "\nselect") || strings.HasPrefix(block, "\ninsert")) {
			blocks = append(blocks, strings.TrimSpace(block))
		}
	}
	return blocks
}

// Everything that the page says can be asked and done by SQL.
func TestLeasedWorkBySQL(t *testing.T) {
	b := setup(t)
	blocks := sqlOf(t, "leased-work.md")
	if len(blocks) != 4 {
		t.Fatalf("%d blocks", len(blocks))
	}
	operator := pgtest.Conn(t, pgtest.Login(t, b.url, "spectral_operator"))
	ask := func(block string) (answers []string) {
		for statement := range strings.SplitSeq(block, ";") {
			if statement = strings.TrimSpace(statement); statement == "" {
				continue
			}
			rows, err := operator.Query(b.ctx, statement)
			must(t, err)
			for rows.Next() {
				values, err := rows.Values()
				must(t, err)
				answers = append(answers, fmt.Sprint(values))
			}
			must(t, rows.Err())
		}
		return answers
	}
	statements := strings.Split(strings.TrimSuffix(blocks[2], ";"), ";")
	if len(statements) != 6 {
		t.Fatalf("%d statements", len(statements))
	}
	lease, heartbeat, claimKey := statements[0], statements[1], blocks[3]
	worker := pgtest.Conn(t, pgtest.Login(t, b.url, "spectral_worker"))
	for i, want := range []string{"delivered 1", "pending 1", "failed 1", "pending 0"} {
		b.exec(`delete from core.outbox`)
		b.exec(`select core.outbox_publish('worlds.world_model_card.published', 'worlds', '{"card_id": "c", "version": 1, "title": "T"}')`)
		rows, err := worker.Query(b.ctx, lease)
		must(t, err)
		leased, err := pgx.CollectExactlyOneRow(rows, pgx.RowToMap)
		must(t, err)
		if answers := ask(blocks[0]); len(answers) != 1 || !strings.Contains(answers[0], "loader on host7") {
			t.Fatalf("in flight: %v", answers)
		}
		id := uuid.UUID(leased["event_id"].([16]byte))
		fill := strings.NewReplacer("<id>", id.String(), "<token>", uuid.UUID(leased["claim_token"].([16]byte)).String(),
			"<occurred_at>", leased["occurred_at"].(time.Time).Format(time.RFC3339Nano), "<event_type>", leased["event_type"].(string),
			"<idempotency_key>", leased["idempotency_key"].(string), "<content_class>", leased["content_class"].(string))
		for _, statement := range []string{heartbeat, statements[2+i], claimKey} {
			var answer any
			if statement == claimKey {
				if i > 0 {
					break // only who delivers claims the key
				}
				tag, err := worker.Exec(b.ctx, fill.Replace(claimKey))
				must(t, err)
				answer = tag.RowsAffected() == 1
			} else {
				rows, err := worker.Query(b.ctx, fill.Replace(statement))
				must(t, err)
				answer, err = pgx.CollectExactlyOneRow(rows, func(row pgx.CollectableRow) (any, error) {
					values, err := row.Values()
					return values[len(values)-1], err
				})
				must(t, err)
			}
			if no, is := answer.(bool); is && !no {
				t.Errorf("%s: false", statement)
			}
		}
		if got := one[string](b, "select status || ' ' || attempts from core.outbox where id = $1", id); got != want {
			t.Errorf("%s: the event is %s, want %s", statements[2+i], got, want)
		}
	}
	b.exec("select core.outbox_lease(1, 'worlds.world_model_card.published'); update core.outbox set claimed_at = now() - interval '1 hour' where status = 'in_flight'")
	if n := one[int](b, "select count(*) from core.outbox_reap() where reaped"); n != 1 {
		t.Fatalf("%d reaped", n)
	}
	if answers := ask(blocks[0]); len(answers) != 1 || !strings.Contains(answers[0], "the lease of 300 s ran out") {
		t.Fatalf("reaped: %v", answers)
	}
	// nobody's: due for a while, and no worker of its type
	b.exec("update core.outbox set available_at = now() - interval '2 minutes'")
	if answers := ask(blocks[1]); len(answers) != 1 || !strings.Contains(answers[0], "outbox_gen_1") {
		t.Fatalf("without a worker: %v", answers)
	}
	// the class's worker was killed, and nobody is there to note that it is gone
	alive := uuid.New()
	b.exec(`insert into core.workers (worker_id, session_id, generation, name, handlers)
		values ($1, $1, 1, 'w', '{"worlds.world_model_card.published": ["a.b"]}')`, alive)
	if answers := ask(blocks[1]); len(answers) != 1 {
		t.Fatalf("with a dead worker: %v", answers)
	}
	_, err := pgtest.Conn(t, b.url).Exec(b.ctx, "select pg_advisory_lock(core.worker_lock($1))", alive)
	must(t, err)
	if answers := ask(blocks[1]); len(answers) != 0 {
		t.Fatalf("with a worker: %v", answers)
	}
	b.exec("update core.workers set generation = 2")
	b.exec("insert into core.paused_types (generation, event_type, paused_by) values (1, 'worlds.world_model_card.published', 'somebody')")
	if answers := ask(blocks[1]); len(answers) != 0 {
		t.Fatalf("paused: %v", answers)
	}
}
