package cli_test

import (
	"context"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"spectral/tests/faults/proxy"
	"spectral/tests/pgtest"
)

// terminal is a terminal of 80 columns and 24 lines in which tmux runs a command.
type terminal struct {
	*testing.T
	socket string
}

// tmux runs a command of tmux, and returns what it prints.
func (t terminal) tmux(args ...string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), testTimeout)
	defer cancel()
	//nolint:gosec // the test chooses the command
	out, err := exec.CommandContext(ctx, "tmux", append([]string{"-u", "-S", t.socket, "-f", "/dev/null"}, args...)...).
		CombinedOutput()
	if err != nil {
		t.Fatalf("tmux %s: %v: %s", strings.Join(args, " "), err, out)
	}
	return string(out)
}

// press sends keys, by the names that tmux has for them.
func (t terminal) press(keys ...string) {
	t.Helper()
	t.tmux(append([]string{"send-keys"}, keys...)...)
}

// shows waits until the screen has all of the texts, and returns it.
func (t terminal) shows(texts ...string) (screen string) {
	t.Helper()
	missing := ""
	if !pgtest.Eventually(testTimeout, func() bool {
		screen = t.tmux("capture-pane", "-p")
		missing = ""
		for _, text := range texts {
			if !strings.Contains(screen, text) {
				missing = text
			}
		}
		return missing == ""
	}) {
		t.Fatalf("the screen never shows %q:\n%s", missing, screen)
	}
	return screen
}

// topInTerminal starts workers top in a terminal, below a shell that remains when it ends.
func topInTerminal(t *testing.T, database string, env ...string) terminal {
	t.Helper()
	if _, err := exec.LookPath("tmux"); err != nil {
		t.Skip("tmux is not installed")
	}
	workers, err := exec.LookPath("workers") // this test's binary, see TestMain
	if err != nil {
		t.Fatal(err)
	}
	in := terminal{t, filepath.Join(t.TempDir(), "tmux")}
	in.tmux("new-session", "-d", "-x", "80", "-y", "24", "env PS1=ready: LANG=C.UTF-8 LC_ALL= DATABASE_URL='"+database+
		"' USER=anna "+strings.Join(env, " ")+" sh -i")
	t.Cleanup(func() { in.tmux("kill-server") })
	in.shows("ready:")
	in.press(workers+" top --every 250ms", "Enter")
	return in
}

// failures makes a database with failed events of a group, which a live worker could handle.
func failures(t *testing.T) (admin, operator string) {
	t.Helper()
	admin = pgtest.New(t)
	conn := pgtest.Conn(t, admin)
	for _, statement := range []string{
		`select core.generation_announce(8)`,
		`select core.worker_register(gen_random_uuid(), 8, 'w',
			'{"worlds.world_model_card.published": ["platform.cards"]}')`,
		`insert into core.outbox (id, occurred_at, event_type, event_version, source, content_class, channel, generation,
			payload, idempotency_key, status, attempts, last_error, first_failed_at, claimed_at, handler_failures)
		select ('00000000-0000-7000-8000-' || lpad(i::text, 12, '0'))::uuid, '2026-01-01',
			'worlds.world_model_card.published', 1, 'worlds', 'operational', 'outbox_gen_1', 1, '{"title": "a card"}',
			'k' || i, 'failed', 6, 'E: no card', now(), now(), jsonb_build_object('platform.cards', jsonb_build_object(
			'failures', 6, 'parked', true, 'class', 'E', 'error', 'no card', 'group', 'aaa'))
		from generate_series(1, 3) i`,
		`insert into core.error_groups (group_id, handler_name, error_class, message, first_generation)
			values ('aaa', 'platform.cards', 'E', 'no card', 1)`,
	} {
		if _, err := conn.Exec(t.Context(), statement); err != nil {
			t.Fatal(err)
		}
	}
	return admin, pgtest.Login(t, admin, "spectral_operator")
}

// A person watches in a real terminal, opens a group and an event, and replays by a plan.
func TestTopInATerminal(t *testing.T) {
	t.Parallel()
	admin, operator := failures(t)
	in := topInTerminal(t, operator)
	in.shows("SPECTRAL", "gen 1 live, 8 live", ">1 types", "worlds.world_model_card.published", "! 3 failed")
	in.press("5")
	in.shows(">5 generations", "no: live")
	in.press("8")
	in.shows(">8 locks", "open transactions")
	in.press("4")
	in.shows(">4 errors", "platform.cards", "E: no card")
	in.press("Enter")
	in.shows(">events of group aaa", "000003")
	in.press("Enter")
	in.shows(">event 00000000-0000-7000-8000-", "HANDLERS", "platform.cards", "parked", "PAYLOAD")
	in.press("Enter")
	in.shows(`"title": "a card"`)

	// the size changes
	in.tmux("resize-window", "-x", "40", "-y", "10")
	in.shows(">event 00000000")
	in.tmux("resize-window", "-x", "80", "-y", "24")
	in.shows("HANDLERS")

	// one event, by its number
	in.press("r")
	in.shows("PLAN replay 1 event into generation 8", "platform.cards: 1 would run", "workers events replay 00000000-")
	in.press("2", "Enter")
	in.shows("type 1 and enter")
	in.press("Escape")
	in.shows("nothing was done")
	in.press("r")
	in.shows("PLAN replay 1 event")
	in.press("1", "Enter")
	in.shows("replay: 1 event done")

	// the rest of the group, as an operation that the command line would plan likewise
	in.press("4")
	in.shows("platform.cards")
	in.press("d")
	in.shows("PLAN discard 2 events", "--plan")
	in.press("2", "Enter")
	in.shows("has begun", ">6 operations", "discard", "running")
	var by string
	if err := pgtest.Conn(t, admin).QueryRow(t.Context(), `select created_by from core.operations where total = 2 and
		filter ->> 'command' = 'workers events discard --group aaa'`).Scan(&by); err != nil || by != "anna" {
		t.Errorf("the operation was made by %q, %v", by, err)
	}

	// ^Z and back
	in.press("1", "C-z")
	in.shows("ready:")
	in.press("fg", "Enter")
	in.shows(">1 types", "worlds.world_model_card.published")
	in.press("q")
	in.shows("ready:")
}

// A lost database leaves the last figures on the screen, with their age, and so does one that does not answer. The view
// finds the database when it is back.
func TestTopSurvivesALostDatabase(t *testing.T) {
	t.Parallel()
	_, operator := failures(t)
	way := proxy.InFrontOf(t, operator)
	in := topInTerminal(t, way.URL(t, operator), "NO_COLOR=1", "LANG=C")
	in.shows("worlds.world_model_card.published", "every 250ms")
	way.Set(proxy.Refuse)
	way.ResetAll()
	in.shows("! NO DATABASE", " old", "worlds.world_model_card.published")
	way.Set(proxy.Pass)
	in.shows("every 250ms", "worlds.world_model_card.published")
	way.Set(proxy.Stall)
	in.shows("! SLOW: no answer within 2s", " old", "worlds.world_model_card.published")
	way.Set(proxy.Pass)
	in.shows("every 250ms")
	in.press("q")
	in.shows("ready:")
}
