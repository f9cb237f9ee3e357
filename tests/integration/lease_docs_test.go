package integration_test

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"spectral/tests/pgtest"
)

// sqlOf returns the blocks of SQL of a page of the documentation.
func sqlOf(t *testing.T, page string) (blocks []string) {
	t.Helper()
	text, err := os.ReadFile("../../docs/" + page)
	must(t, err)
	for i, block := range strings.Split(string(text), "```") {
		if i%2 == 1 && (strings.HasPrefix(block, "\n--") || strings.HasPrefix(block, "\nselect")) {
			blocks = append(blocks, strings.TrimSpace(block))
		}
	}
	return blocks
}

// Everything that the page says can be asked and done by SQL.
func TestLeasedWorkBySQL(t *testing.T) {
	b := setup(t)
	blocks := sqlOf(t, "leased-work.md")
	if len(blocks) != 2 {
		t.Fatalf("%d blocks", len(blocks))
	}
	operator := pgtest.Conn(t, pgtest.Login(t, b.url, "spectral_operator"))
	ask := func() (answers []string) {
		for statement := range strings.SplitSeq(blocks[0], ";") {
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
	statements := strings.Split(blocks[1], ";")
	lease, others := statements[0], statements[1:]

	worker := pgtest.Conn(t, pgtest.Login(t, b.url, "spectral_worker"))
	b.exec(`select core.outbox_publish('worlds.world_model_card.published', 'worlds', '{"card_id": "c", "version": 1, "title": "T"}')
		from generate_series(1, 2)`)
	for n, last := range []string{others[1], others[2]} {
		var id, token uuid.UUID
		var occurredAt time.Time
		var payload string
		var attempts int
		must(t, worker.QueryRow(b.ctx, lease).Scan(&id, &occurredAt, &token, &payload, &attempts))
		if answers := ask(); len(answers) != 1 || attempts != 1 {
			t.Fatalf("in flight, attempt %d: %v", attempts, answers)
		}
		for i, statement := range []string{others[0], last} {
			statement = strings.NewReplacer("<id>", id.String(), "<token>", token.String(),
				"<occurred_at>", occurredAt.Format(time.RFC3339Nano)).Replace(statement)
			tag, err := worker.Exec(b.ctx, statement)
			must(t, err)
			if tag.RowsAffected() != 1 {
				t.Fatalf("statement %d of %d answered %s", i, n, tag)
			}
		}
		b.wantRow(id, []string{"delivered", "pending"}[n], []int{1, 0}[n])
	}
	b.exec("select core.outbox_lease(1, 'worlds.world_model_card.published'); update core.outbox set claimed_at = now() - interval '1 hour' where status = 'in_flight'")
	if n := one[int](b, "select count(*) from core.outbox_reap() where reaped"); n != 1 {
		t.Fatalf("%d reaped", n)
	}
	if answers := ask(); len(answers) != 1 || !strings.Contains(answers[0], "the lease of 300 s ran out") {
		t.Fatalf("reaped: %v", answers)
	}
}
