package runbook_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"spectral/tests/faults/process"
	"spectral/tests/pgtest"
)

const (
	runbook     = "runbook.md"
	deployment  = "deployment.md"
	testTimeout = time.Minute
)

func pathOf(page string) string { return filepath.Join("../../docs", page) }

var binary process.Binary

func TestMain(m *testing.M) {
	code := pgtest.Run(m)
	if err := binary.Remove(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

// block is a code block of the page.
type block struct {
	language string // sql or sh
	text     string
	page     string
	line     int
}

// situation is a section of the page.
type situation struct {
	title  string
	blocks []block
}

var fence = regexp.MustCompile("^ *```(\\w*)$") // in a list, too

// situations returns the second-level sections of a page that have blocks.
func situations(t *testing.T, page string) (found []situation) {
	t.Helper()
	text, err := os.ReadFile(pathOf(page))
	if err != nil {
		t.Fatal(err)
	}
	var inside *block
	n := 0
	for line := range strings.Lines(string(text)) {
		n++
		marks := fence.FindStringSubmatch(strings.TrimRight(line, "\n"))
		switch {
		case inside != nil && marks != nil:
			if inside.language != "text" {
				last := &found[len(found)-1]
				last.blocks = append(last.blocks, *inside)
			}
			inside = nil
		case inside != nil:
			inside.text += line
		case marks != nil:
			if !slices.Contains([]string{"sql", "sh", "text"}, marks[1]) || marks[1] != "text" && len(found) == 0 {
				t.Fatalf("%s, line %d: a block of %q: write sql, sh, or text for what is not executed, below a heading",
					page, n, marks[1])
			}
			inside = &block{language: marks[1], page: page, line: n + 1}
		case strings.HasPrefix(line, "## "):
			found = append(found, situation{title: strings.TrimSpace(strings.TrimPrefix(line, "## "))})
		}
	}
	if inside != nil {
		t.Fatalf("%s, line %d: a block that does not end", page, inside.line)
	}
	return slices.DeleteFunc(found, func(s situation) bool { return len(s.blocks) == 0 })
}

// scene is a database in a situation, with the values of the page's placeholders.
type scene struct {
	*testing.T
	ctx      context.Context
	admin    *pgx.Conn
	at       string // as the superuser
	operator string
	worker   string // URLs of logins
	values   map[string]string
	instead  map[string]string // what is written without a placeholder, to what stands for it
	dir      string            // where commands run
	// output of what was executed, errors included
	output string
}

func newScene(t *testing.T) *scene {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 10*testTimeout)
	t.Cleanup(cancel)
	at := pgtest.New(t)
	return &scene{T: t, ctx: ctx, at: at, admin: pgtest.Conn(t, at),
		operator: pgtest.Login(t, at, "spectral_operator", "pg_read_all_stats"),
		worker:   pgtest.Login(t, at, "spectral_worker")}
}

// of returns the scene for one situation, without the rows of the one before.
func (s scene) of(t *testing.T) *scene {
	t.Helper()
	s.T, s.dir = t, t.TempDir()
	s.values = map[string]string{"generation": "1", "you": "ana", "began-at": "infinity"}
	s.exec(`truncate core.outbox, core.event_handled, core.operator_actions, core.paused_types, core.workers,
		core.claim_journal, core.delivery_latencies, platform.system_cards cascade;
		delete from core.deployments; select core.generation_announce(1)`)
	return &s
}

// login returns the URL of a new login for the scene.
type login struct{ name, url string }

func (s *scene) login() login {
	s.Helper()
	at := pgtest.Login(s.T, s.at)
	u, err := url.Parse(at)
	if err != nil {
		s.Fatal(err)
	}
	return login{u.User.Username(), at}
}

// exec changes the database as its superuser.
func (s *scene) exec(sql string) {
	s.Helper()
	if _, err := s.admin.Exec(s.ctx, sql); err != nil {
		s.Fatalf("%s: %v", sql, err)
	}
}

// value returns the one value of a query, as text.
func (s *scene) value(sql string) string {
	s.Helper()
	results, err := s.admin.PgConn().Exec(s.ctx, sql).ReadAll()
	if err != nil {
		s.Fatalf("%s: %v", sql, err)
	}
	if len(results[0].Rows) == 0 {
		return ""
	}
	return string(results[0].Rows[0][0])
}

// want fails the test unless a statement returns that answer.
func (s *scene) want(sql, want string) {
	s.Helper()
	if have := s.value(sql); have != want {
		s.Errorf("%s answers %q, not %q; what was executed printed:\n%s", sql, have, want, s.output)
	}
}

// await waits until a statement returns that answer.
func (s *scene) await(sql, want string) {
	s.Helper()
	deadline := time.NewTimer(testTimeout)
	defer deadline.Stop()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		have := s.value(sql)
		if have == want {
			return
		}
		select {
		case <-tick.C:
		case <-deadline.C:
			s.Fatalf("%s answers %q, not %q; what was executed printed:\n%s", sql, have, want, s.output)
		}
	}
}

// shown fails the test unless the executed block printed one of the texts: SQL prints another than a command.
func (s *scene) shown(texts ...string) {
	s.Helper()
	if !slices.ContainsFunc(texts, func(text string) bool { return strings.Contains(s.output, text) }) {
		s.Errorf("none of %q is in what was printed:\n%s", texts, s.output)
	}
}

// publish publishes n cards, named by a name and a number.
func (s *scene) publish(name string, n int, further string) {
	s.Helper()
	s.exec(fmt.Sprintf(`select core.outbox_publish('worlds.world_model_card.published', 'worlds',
		jsonb_build_object('card_id', '%s-' || i, 'version', 1, 'title', 't')%s) from generate_series(1, %d) i`,
		name, further, n))
}

// registered registers a generation and an idle worker of it, which lives until the test ends.
func (s *scene) registered(generation int) {
	s.Helper()
	s.exec(fmt.Sprintf("select core.generation_announce(%d)", generation))
	if _, err := pgtest.Conn(s.T, s.at).Exec(s.ctx, "select core.worker_register(gen_random_uuid(), $1, 'w', $2)",
		generation, `{"`+card+`": ["`+projector+`"]}`); err != nil {
		s.Fatal(err)
	}
}

const projector = "platform.world_model_card_projector"

// failures makes n failed events.
func (s *scene) failures(n int) {
	s.Helper()
	s.publish("poison", n, "")
	s.exec(`update core.outbox set status = 'failed', attempts = 6, claimed_at = now(), first_failed_at = now(),
		last_error = 'IntegrityError: ` + projector + `: check constraint "broken"',
		handler_failures = '{"` + projector + `":
			{"failures": 6, "parked": true, "class": "IntegrityError", "error": "broken"}}'`)
	s.values["event-id"] = s.value("select id from core.outbox where status = 'failed' order by id limit 1")
}

var placeholder = regexp.MustCompile(`<([a-z][a-z-]*)>`)

// run executes a block as an operator would: SQL by psql, commands by a shell.
func (s *scene) run(b block) {
	s.Helper()
	text := placeholder.ReplaceAllStringFunc(b.text, func(found string) string {
		value, known := s.values[strings.Trim(found, "<>")]
		if !known {
			s.Fatalf("docs/%s, line %d: the test does not know what %s stands for", b.page, b.line, found)
		}
		return value
	})
	for written, stands := range s.instead {
		text = strings.ReplaceAll(text, written, stands)
	}
	var cmd *exec.Cmd
	u, err := url.Parse(s.operator)
	if err != nil {
		s.Fatal(err)
	}
	if as := regexp.MustCompile(`(?m)^ *(-- |# )as the (owner|worker)\b`).FindStringSubmatch(text); as != nil {
		if u, err = url.Parse(map[string]string{"owner": s.at, "worker": s.worker}[as[2]]); err != nil {
			s.Fatal(err)
		}
	}
	codes := []string{"0"}
	if b.language == "sql" {
		cmd = exec.CommandContext(s.ctx, "psql", "--no-psqlrc", "--set=ON_ERROR_STOP=1", "--dbname="+u.String())
	} else {
		cmd = exec.CommandContext(s.ctx, "bash", "-euo", "pipefail", "-s")
		if exits := regexp.MustCompile(`(?m)# exits ([0-9])`).FindStringSubmatch(text); exits != nil {
			codes = []string{exits[1]}
		}
	}
	cmd.Stdin, cmd.Dir = strings.NewReader(text), s.dir
	path := os.Getenv("PATH")
	if b.language == "sh" {
		path = filepath.Dir(binary.Path(s)) + ":" + path
	}
	cmd.Env = []string{
		"COLUMNS=200", "PATH=" + path, "HOME=" + s.TempDir(), "USER=ana", "PAGER=", "DATABASE_URL=" + u.String(),
		"SPECTRAL_GENERATION=" + s.values["generation"], "SPECTRAL_BRIEFINGS_DIR=" + s.TempDir(),
	}
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	err = cmd.Run()
	s.output += out.String()
	code := "0"
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		code = strconv.Itoa(exit.ExitCode())
	} else if err != nil {
		s.Fatal(err)
	}
	if !slices.Contains(codes, code) {
		s.Fatalf("docs/%s, line %d: it exits with %s:\n%s\n%s", b.page, b.line, code, text, out.String())
	}
}

func TestRunbookSQL(t *testing.T) {
	t.Parallel()
	executed(t, runbook, troubles, "sql")
}

func TestDeploymentSQL(t *testing.T) {
	t.Parallel()
	executed(t, deployment, deployments, "sql")
}

// executed brings one database into each situation of a page in turn, and executes the blocks of one language.
func executed(t *testing.T, page string, known map[string]trouble, language string) {
	t.Helper()
	written, shared := situations(t, page), newScene(t)
	for title := range known {
		if !slices.ContainsFunc(written, func(s situation) bool { return s.title == title }) {
			t.Errorf("docs/%s has no situation %q any more", page, title)
		}
	}
	for _, w := range written {
		trouble, known := known[w.title]
		if !known {
			t.Errorf("docs/%s: nothing tries %q: add it", page, w.title)
			continue
		}
		if !slices.ContainsFunc(w.blocks, func(b block) bool { return b.language == language }) {
			if !trouble.one {
				t.Errorf("docs/%s: %q has no block of %s", page, w.title, language)
			}
			continue
		}
		t.Run(w.title, func(t *testing.T) {
			s := shared.of(t)
			if trouble.own {
				s = newScene(t).of(t)
			}
			over := trouble.prepare(s)
			for _, b := range w.blocks {
				if b.language == language {
					s.run(b)
				}
			}
			over()
		})
	}
}

// The page's table has each refusal that operator functions raise, and no other. So has package events.
func TestRefusalsAreListed(t *testing.T) {
	t.Parallel()
	codes := func(pattern string, files ...string) (found []string) {
		for _, file := range files {
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			for _, code := range regexp.MustCompile(pattern).FindAllStringSubmatch(string(text), -1) {
				found = append(found, code[1])
			}
		}
		slices.Sort(found)
		return slices.Compact(found)
	}
	functions, err := filepath.Glob("../../db/functions/*.sql")
	if err != nil {
		t.Fatal(err)
	}
	raised := codes(`errcode = '(SP019|SP0[3-9][0-9])'`, functions...)
	if len(raised) < 10 {
		t.Fatalf("only %q were found", raised)
	}
	if listed := codes(`(?m)^\| (SP0[0-9][0-9]) \|`, pathOf(runbook)); !slices.Equal(listed, raised) {
		t.Errorf("docs/runbook.md has %q, want %q", listed, raised)
	}
	if named := codes(`= "(SP019|SP0[3-9][0-9])"`, "../../internal/core/events/refusal.go"); !slices.Equal(named, raised) {
		t.Errorf("package events has constants for %q, want %q", named, raised)
	}
	// once: what other pages had beside it would grow old
	if codes(`(?m)^\| (SP0)`, pathOf(deployment)) != nil ||
		codes(`(runbook.md#what-functions-refuse)`, pathOf(deployment)) == nil ||
		codes(`\n(## What functions refuse)\n`, pathOf(runbook)) == nil {
		t.Error("docs/deployment.md has its own table of refusals, or no link to the runbook's")
	}
}
