package sql_test

import (
	"context"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"spectral/tests/pgtest"
)

// line is one of a table: a session runs SQL and is answered.
//
// as is the login's role without spectral_, with a number for a second session of that role, or "" for the superuser.
// {1} in sql is the id of event 1, {card} its type. want has the rows of the last statement: columns divided by a
// space, rows by "; ", null as "-". "*" at its end stands for any rest. A refusal is its SQLSTATE and its column, and
// behind " ~ " what its message, detail or hint contain. An empty want stands for any rows.
type line struct{ as, sql, want string }

var eventNumber = regexp.MustCompile(`\{(\d+)\}`)

// ask answers as line says; says is what a refusal contains.
func (d *database) ask(t testing.TB, as, sql string) (answer, says string) {
	t.Helper()
	return answerTo(deadline(t), t, d.session(t, as), sql)
}

func answerTo(ctx context.Context, t testing.TB, conn *pgx.Conn, sql string) (answer, says string) {
	t.Helper()
	sql = filled(sql)
	results, err := conn.PgConn().Exec(ctx, sql).ReadAll()
	if err != nil {
		code := sqlstate(t, err)
		pg := err.(*pgconn.PgError) //nolint:errorlint // sqlstate has seen that it is one
		if code >= "SP040" && code < "SP050" && pg.Hint == "" {
			t.Errorf("%s: the refusal has no hint", sql)
		}
		return strings.TrimSpace(code + " " + pg.ColumnName), fmt.Sprint(pg.Message, " ", pg.Detail, " ", pg.Hint)
	}
	var rows []string
	for _, row := range results[len(results)-1].Rows {
		columns := make([]string, len(row))
		for i, v := range row {
			if columns[i] = string(v); v == nil {
				columns[i] = "-"
			}
		}
		rows = append(rows, strings.Join(columns, " "))
	}
	return strings.Join(rows, "; "), ""
}

func filled(text string) string {
	return eventNumber.ReplaceAllStringFunc(strings.ReplaceAll(text, "{card}", cardType), func(n string) string {
		number, _ := strconv.Atoi(strings.Trim(n, "{}"))
		return key(number).String()
	})
}

func fits(want, answer, says string) bool {
	want, contained, _ := strings.Cut(want, " ~ ")
	if start, prefix := strings.CutSuffix(want, "*"); prefix {
		return strings.HasPrefix(answer, start)
	}
	return answer == want && strings.Contains(says, contained)
}

func (d *database) run(t testing.TB, lines ...line) {
	t.Helper()
	for _, l := range lines {
		answer, says := d.ask(t, l.as, l.sql)
		l.want = filled(l.want)
		if l.want == "" && says == "" {
			continue
		}
		if !fits(l.want, answer, says) {
			t.Errorf("%s: %s\nanswers %s %s\n   want %s", l.as, l.sql, answer, says, l.want)
		}
	}
}

// same runs several statements that are all answered alike.
func (d *database) same(t testing.TB, as, want string, statements ...string) {
	t.Helper()
	for _, sql := range statements {
		d.run(t, line{as, sql, want})
	}
}

func (d *database) session(t testing.TB, as string) *pgx.Conn {
	t.Helper()
	if as == "" {
		return d.admin
	}
	if s := d.sessions[as]; s != nil && !s.IsClosed() {
		return s
	}
	at := d.at
	if role, _, _ := strings.Cut(as, " "); role != "superuser" {
		at = pgtest.Login(d.owner, at, "spectral_"+role)
	}
	d.sessions[as] = pgtest.Conn(d.owner, at)
	return d.sessions[as]
}

// later runs SQL that has to wait for another session, and returns when it does; answer is what it is told in the end.
func (d *database) later(t *testing.T, as, sql string) (answer func() string) {
	t.Helper()
	conn, ctx, answered := d.session(t, as), deadline(t), make(chan string, 1)
	go func() {
		have, _ := answerTo(ctx, t, conn, sql)
		answered <- have
	}()
	waitFor(t, d.admin, fmt.Sprintf("select cardinality(pg_blocking_pids(%d)) > 0", conn.PgConn().PID()))
	return func() string { return <-answered }
}

// leave ends a session, and returns when the server knows.
func (d *database) leave(t *testing.T, as string) {
	t.Helper()
	pid := d.sessions[as].PgConn().PID()
	must(t, d.sessions[as].Close(deadline(t)))
	delete(d.sessions, as)
	waitFor(t, d.admin, fmt.Sprintf("select not exists (select from pg_stat_activity where pid = %d)", pid))
}
