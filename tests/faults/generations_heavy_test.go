//go:build heavy

package faults_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"spectral/internal/app"
	platformevents "spectral/internal/platform/infrastructure/events"
	"spectral/tests/faults/process"
	"spectral/tests/pgtest"
)

// nextProjector is the handler of cards in the next generation's build.
const nextProjector = "platform.next_card_projector"

// nextBuild is the build of the generation after this tree's: another handler of cards, and an additive migration.
func nextBuild(tree string) error {
	source := filepath.Join(tree, "internal/platform/infrastructure/events/world_model_card_projector.go")
	content, err := os.ReadFile(source)
	if err != nil {
		return err
	}
	altered := strings.Replace(string(content), strconv.Quote(platformevents.WorldModelCardProjectorName), strconv.Quote(nextProjector), 1)
	if altered == string(content) {
		return fmt.Errorf("%s has no name to alter", source)
	}
	return errors.Join(
		os.WriteFile(source, []byte(altered), 0o600),
		os.WriteFile(filepath.Join(tree, "db/migrations/99999_platform_next.sql"), []byte(`-- +goose Up
set local lock_timeout = '500ms';
alter table platform.system_cards add column reviewed boolean not null default false;
create table platform.next_notes (card_id text not null, note text not null);
alter table core.outbox add column next_hint text null;

-- +goose Down
select 1;
`), 0o600))
}

// side is one of two builds, each with a generation of its own.
type side struct {
	*bundle
	path       string
	generation int
	handler    string
}

// command runs the build as a worker's login; operators' commands are given the superuser's.
func (s side) command(url string, args ...string) process.Command {
	return process.Command{Path: s.path, Args: args, Env: []string{
		app.EnvDatabaseURL + "=" + url, app.EnvGeneration + "=" + strconv.Itoa(s.generation), app.EnvBriefingsDir + "=" + s.TempDir(),
	}}
}

func (s side) start() *process.Process {
	s.Helper()
	p := process.Start(s.T, s.command(s.worker, "run"))
	p.Await(s.T, listening, 1, patience)
	return p
}

// does runs a command, which must exit with a code.
func (s side) does(code int, args ...string) {
	s.Helper()
	p := process.Start(s.T, s.command(s.direct(), args...))
	if have := p.AwaitExit(s.T, 2*patience); have != code {
		s.Fatalf("workers %s exits with %d, want %d: %v", strings.Join(args, " "), have, code, p.Entries())
	}
}

// publish publishes n cards of one prefix into a generation, "null" for the default.
func (b *bundle) publishCards(prefix string, n int, generation string) {
	b.Helper()
	conn := pgtest.Conn(b.T, b.publisher)
	for i := range n {
		key := fmt.Sprintf("%s-%d", prefix, i)
		_, err := conn.Exec(b.Context(), fmt.Sprintf(`select core.outbox_publish('worlds.world_model_card.published', 'worlds',
			jsonb_build_object('card_id', $1::text, 'version', 1, 'title', $1::text), p_generation => %s)`, generation), key)
		must(b.T, err)
	}
}

// settled waits until all n cards of a prefix are delivered, and wants them handled by one handler.
func (b *bundle) settled(prefix string, n int, handler string) {
	b.Helper()
	b.eventually(prefix+" is delivered", patience, func() bool {
		return one[int](b, "select count(*) from core.outbox where payload ->> 'card_id' like $1 || '-%' and status = 'delivered'", prefix) == n
	})
	if have := one[[]string](b, `select array_agg(distinct h.handler_name) from core.event_handled h join core.outbox o on o.idempotency_key = h.idempotency_key
		where o.payload ->> 'card_id' like $1 || '-%'`, prefix); len(have) != 1 || have[0] != handler {
		b.Errorf("%s is handled by %v, want %s", prefix, have, handler)
	}
}

// Two builds of generations 1 and 2 on one database: a cutover with an additive migration in between, a rollback with work in
// flight, and the end of generation 2 while somebody publishes into it slowly.
func TestTwoBuildsSideBySide(t *testing.T) {
	b := setup(t)
	next := process.Binary{Alter: nextBuild}
	t.Cleanup(func() { must(t, next.Remove()) })
	old := side{b, workers.Path(t), pgtest.Generation, platformevents.WorldModelCardProjectorName}
	young := side{b, next.Path(t), pgtest.Generation + 1, nextProjector}
	running := old.start()
	b.publishCards("before", 50, "null")

	// cutover: migrate with the next build, start its workers, drain the old generation
	young.does(0, "migrate", "up")
	if !one[bool](b, "select exists (select from pg_attribute where attrelid = 'platform.system_cards'::regclass and attname = 'reviewed')") {
		t.Fatal("the next build's migration is not applied")
	}
	nextRunning := young.start()
	b.publishCards("old", 200, "1") // producers of the old generation run on
	b.publishCards("young", 200, "null")
	old.does(0, "generation", "drain", "1")
	b.publishCards("draining", 50, "1")
	b.settled("before", 50, old.handler)
	b.settled("old", 200, old.handler)
	b.settled("young", 200, young.handler)
	b.settled("draining", 50, old.handler)
	young.does(0, "generation", "status", "1", "--wait", "30s")

	// rollback: the next generation is stopped with work in flight, and the old one is live again
	held := b.hold("held-0")
	b.publishCards("held", 1, "2")
	held.awaitEntered()
	nextRunning.Kill()
	nextRunning.AwaitExit(t, grace)
	b.publishCards("stranded", 100, "2")
	old.does(0, "generation", "register", "1")
	old.does(0, "generation", "drain", "2")
	b.publishCards("again", 50, "null")
	b.settled("again", 50, old.handler)
	old.does(3, "generation", "status", "2")
	old.does(1, "generation", "retire", "2", "--timeout", "0s")
	held.letGo()
	drain := process.Start(t, young.command(young.worker, "run", "--drain"))
	if code := drain.AwaitExit(t, patience); code != 0 {
		t.Fatalf("run --drain exits with %d: %v", code, drain.Entries())
	}
	b.settled("held", 1, young.handler)
	b.settled("stranded", 100, young.handler)
	old.does(0, "generation", "status", "2")

	// the end of generation 2 races a slow publisher: what it leaves is seen, and handled by its own build
	slow, err := pgtest.Conn(t, b.publisher).Begin(t.Context())
	must(t, err)
	_, err = slow.Exec(t.Context(), `select core.outbox_publish('worlds.world_model_card.published', 'worlds',
		'{"card_id": "slow-0", "version": 1, "title": "slow-0"}', p_generation => 2)`)
	must(t, err)
	retiring := process.Start(t, old.command(b.direct(), "generation", "retire", "2", "--timeout", "1m"))
	b.eventually("it is closed", patience, func() bool {
		return one[bool](b, "select closed_mark is not null from core.deployments where generation = 2")
	})
	must(t, slow.Commit(t.Context()))
	b.eventually("it is open again", patience, func() bool {
		return one[bool](b, "select closed_at is null from core.deployments where generation = 2")
	})
	drain = process.Start(t, young.command(young.worker, "run", "--drain"))
	if code := drain.AwaitExit(t, patience); code != 0 {
		t.Fatalf("run --drain exits with %d: %v", code, drain.Entries())
	}
	b.settled("slow", 1, young.handler)
	if code := retiring.AwaitExit(t, 2*patience); code != 0 {
		t.Fatalf("retire exits with %d: %v", code, retiring.Entries())
	}
	young.does(1, "run", "--drain") // a retired generation is refused
	if n := one[int](b, "select count(*) from core.outbox where status <> 'delivered'"); n != 0 {
		t.Errorf("%d events are stranded", n)
	}
	wantRunning(t, []*process.Process{running})
}
