package faults_test

import (
	"encoding/json"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"spectral/internal/app"
	"spectral/internal/core/events/infrastructure/postgres"
	"spectral/internal/platform/application"
	"spectral/internal/platform/domain"
	worlds "spectral/internal/worlds/domain"
	"spectral/tests/faults/process"
	"spectral/tests/pgtest"
)

// standSQL lets whoever writes a task stand before it does, where a test holds the lock that is named by what it writes.
const standSQL = `
create function faults.stand() returns trigger language plpgsql as $$
begin
  perform pg_catalog.pg_advisory_xact_lock_shared(7301, pg_catalog.hashtext(pg_catalog.concat_ws(' ', new.status, pg_catalog.jsonb_array_length(new.steps))));
  return new;
end $$;
create trigger stand before update on platform.agent_tasks for each row execute function faults.stand()`

// tasks is a bundle with one agent task, run by real workers.
type tasks struct {
	*bundle
	dir       string // of the briefings
	workspace uuid.NullUUID
	uow       *postgres.UnitOfWork
	id        uuid.UUID
}

// briefing dispatches the briefing of a card.
func (b *bundle) briefing() *tasks {
	b.Helper()
	admin := pgtest.Conn(b.T, b.direct())
	_, err := admin.Exec(b.Context(), standSQL)
	must(b.T, err)
	contracts, err := app.Contracts()
	must(b.T, err)
	must(b.T, postgres.Register(b.Context(), admin, pgtest.Generation, contracts))
	t := &tasks{
		bundle: b, dir: filepath.Join(b.TempDir(), "briefings"), workspace: uuid.NullUUID{UUID: uuid.New(), Valid: true},
		uow: &postgres.UnitOfWork{Pool: pgtest.Pool(b.T, b.worker), Publishing: postgres.Publishing{
			Contracts: contracts, Generation: pgtest.Generation, Log: slog.New(slog.DiscardHandler), Now: time.Now, NewID: uuid.NewV7,
		}},
	}
	card, err := worlds.NewWorldModelCard("harbour", "The Harbour of Veyra", "What is known of it.", nil)
	must(b.T, err)
	_, err = app.NewPublishCard(t.uow).Publish(b.Context(), t.workspace, card)
	must(b.T, err)
	task, err := app.NewDispatchTask(t.uow, app.TaskCatalog()).Dispatch(b.Context(), t.workspace, application.TaskRequest{
		Executor: application.CardBriefingExecutor, Input: json.RawMessage(`{"card_id": "harbour"}`),
	})
	must(b.T, err)
	t.id = task.ID
	return t
}

// run starts a worker for agents and returns when it listens.
func (t *tasks) run() *process.Process {
	t.Helper()
	c := t.command(t.worker, "")
	c.Args = append(c.Args, "--classes", "agents")
	c.Env = append(c.Env, app.EnvBriefingsDir+"="+t.dir)
	p := process.Start(t.T, c)
	p.Await(t.T, listening, 1, patience)
	return p
}

func (t *tasks) task() domain.AgentTask {
	t.Helper()
	task, err := app.NewControlTask(t.uow).Find(t.Context(), t.workspace, t.id)
	must(t.T, err)
	return task
}

func (t *tasks) await(status domain.TaskStatus) (task domain.AgentTask) {
	t.Helper()
	t.eventually("the task is "+string(status), patience, func() bool {
		task = t.task()
		if task.Status.Finished() && task.Status != status {
			t.Fatalf("the task is %s: %s", task.Status, task.FailureReason)
		}
		return task.Status == status
	})
	return task
}

// hidden is where a run writes its briefing before it is whole.
func (t *tasks) hidden(run int64) string {
	return filepath.Join(t.dir, "."+t.id.String()+"."+strconv.FormatInt(run, 10)+".tmp")
}

// death is where a worker dies: stand makes it stand there, and returns what lets others pass.
type death struct {
	at    string
	stand func(*tasks, *pgx.Conn) (stands func() bool, pass func())
}

// writing is a death before what is named is written: the work is done, but not recorded.
func writing(what string) death {
	return death{"before it writes " + what, func(t *tasks, conn *pgx.Conn) (func() bool, func()) {
		exec(t, conn, "select pg_advisory_lock(7301, hashtext($1))", what)
		return func() bool {
				return one[bool](t.bundle, `select exists (select from pg_locks where locktype = 'advisory' and classid = 7301 and not granted
				and database = (select oid from pg_database where datname = current_database()))`)
			}, func() {
				exec(t, conn, "select pg_advisory_unlock(7301, hashtext($1))", what)
			}
	}}
}

func exec(t *tasks, conn *pgx.Conn, sql string, args ...any) {
	t.Helper()
	_, err := conn.Exec(t.Context(), sql, args...)
	must(t.T, err)
}

// A worker that is killed in each step of a task, and between them: the task succeeds, each step is recorded once, and
// there is one briefing.
func TestATaskOutlivesItsWorkers(t *testing.T) {
	b := setup(t).briefing()
	conn := pgtest.Conn(t, b.direct())
	die := func(d death) {
		t.Helper()
		stands, pass := d.stand(b, conn)
		worker := b.run()
		b.eventually("a worker stands "+d.at, patience, stands)
		worker.Kill()
		worker.AwaitExit(t, grace)
		pass()
		b.eventually("nobody is in the way", patience, func() bool {
			return one[int](b.bundle, "select count(*) from pg_stat_activity where datname = current_database() and state = 'active' and query ~ 'agent_tasks' and pid <> pg_backend_pid()") == 0
		})
		exec(b, conn, "update core.outbox set lease_seconds = 1e-6 where status = 'in_flight'")
	}
	for _, d := range []death{
		writing("running 0"),
		{"in the middle of looking the card up", func(t *tasks, conn *pgx.Conn) (func() bool, func()) {
			exec(t, conn, "begin; lock table worlds.world_model_cards in access exclusive mode")
			return func() bool {
				return one[bool](t.bundle, "select exists (select from pg_locks where database = (select oid from pg_database where datname = current_database()) and relation = 'worlds.world_model_cards'::regclass and not granted)")
			}, func() { exec(t, conn, "rollback") }
		}},
		writing("running 1"),
		writing("running 2"),
		writing("awaiting_approval 2"),
	} {
		die(d)
	}
	worker := b.run()
	asked := b.await(domain.TaskAwaitingApproval)
	b.eventually("its event is delivered", patience, func() bool {
		return one[int](b.bundle, "select count(*) from core.outbox where event_type = 'agent.task.dispatched' and status = 'delivered'") == 1
	})
	worker.Kill() // nobody is at work
	worker.AwaitExit(t, grace)
	if _, err := os.Stat(b.dir); err == nil {
		t.Error("something was delivered without approval")
	}
	_, err := app.NewControlTask(b.uow).Approve(t.Context(), b.workspace, b.id, "ada", "")
	must(t, err)
	for _, d := range []death{
		writing("running 2"), // begins again after two steps
		{"in the middle of delivering", func(t *tasks, _ *pgx.Conn) (func() bool, func()) {
			must(t.T, os.MkdirAll(t.dir, 0o700))
			run := t.task().Run + 1
			must(t.T, syscall.Mkfifo(t.hidden(run), 0o600)) // which nobody reads
			return func() bool { task := t.task(); return task.Run == run && task.Status == domain.TaskRunning }, func() {}
		}},
		writing("running 3"),
		writing("succeeded 3"),
	} {
		die(d)
	}
	b.run()
	task := b.await(domain.TaskSucceeded)
	var steps []string
	for _, s := range task.Steps {
		steps = append(steps, s.Name)
	}
	if strings.Join(steps, " ") != "look_up_card draft deliver" || task.Steps[0].Run != asked.Steps[0].Run || task.Steps[1].Run != asked.Steps[1].Run {
		t.Errorf("steps %+v, and when it asked %+v", task.Steps, asked.Steps)
	}
	b.eventually("its events are delivered", patience, func() bool {
		return one[int](b.bundle, "select count(*) from core.outbox where event_type = 'agent.task.dispatched' and status = 'delivered'") == 2
	})
	files, err := os.ReadDir(b.dir)
	must(t, err)
	if len(files) != 1 || files[0].Name() != b.id.String()+".md" {
		t.Errorf("the folder has %v", files)
	}
	content, err := os.ReadFile(filepath.Join(b.dir, b.id.String()+".md"))
	must(t, err)
	if text := string(content); strings.Count(text, "Idempotency key: "+b.id.String()+"/deliver\n") != 1 || !strings.HasPrefix(text, "# The Harbour of Veyra\n") {
		t.Errorf("it says %s", text)
	}
}
