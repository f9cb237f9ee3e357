package integration_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"

	"spectral/internal/app"
	"spectral/internal/core/events"
	"spectral/internal/core/events/infrastructure/postgres"
	"spectral/internal/platform/application"
	platform "spectral/internal/platform/contracts/events"
	"spectral/internal/platform/domain"
	platformevents "spectral/internal/platform/infrastructure/events"
	platformpg "spectral/internal/platform/infrastructure/postgres"
	"spectral/tests/pgtest"
)

// tasks is a bundle with agent tasks of one workspace, whose workers and use cases are logins that may only work.
type tasks struct {
	*bundle
	workspace uuid.NullUUID
	dir       string // of the briefings
	uow       *postgres.UnitOfWork
	dispatch  *application.DispatchTask
	control   *application.ControlTask
}

func setupTasks(t *testing.T) *tasks {
	t.Helper()
	b := setup(t)
	b.poolURL = pgtest.Login(t, b.url, "spectral_worker")
	b.directURL = b.poolURL
	uow := &postgres.UnitOfWork{Pool: pgtest.Pool(t, b.poolURL), Publishing: b.publishing}
	catalog := app.TaskCatalog()
	catalog[scriptName] = func(json.RawMessage) error { return nil }
	return &tasks{
		bundle: b, workspace: uuid.NullUUID{UUID: uuid.New(), Valid: true}, dir: filepath.Join(t.TempDir(), "briefings"), uow: uow,
		dispatch: app.NewDispatchTask(uow, catalog), control: app.NewControlTask(uow),
	}
}

// run runs a subtest that shares b's database with the others.
func (b *tasks) run(name string, do func(*tasks)) {
	b.Helper()
	b.bundle.run(name, func(shared *bundle) {
		c := *b
		c.bundle = shared
		do(&c)
	})
}

// consumer is the product's own, of the given executors or of those that ship, with quick retries.
func (b *tasks) consumer(executors application.Executors) events.Subscription {
	parts := app.Parts{Generation: pgtest.Generation, UnitOfWork: b.uow, BriefingsDir: b.dir}
	if executors == nil {
		executors = app.TaskExecutors(parts)
	}
	s := app.AgentTaskConsumer(parts, executors)
	s.Primary.Retry.Base, s.Primary.Retry.Cap = quickly.Base, quickly.Cap
	return s
}

// worker starts a listener on tasks.
func (b *tasks) worker(executors application.Executors, adjust ...func(*events.Subscription)) *listening {
	b.Helper()
	s := b.consumer(executors)
	for _, f := range adjust {
		f(&s)
	}
	return b.listen(time.Second, s)
}

func (b *tasks) dispatched(request application.TaskRequest) domain.AgentTask {
	b.Helper()
	if request.Executor == "" {
		request.Executor = scriptName
	}
	if request.Input == nil {
		request.Input = json.RawMessage("{}")
	}
	task, err := b.dispatch.Dispatch(b.ctx, b.workspace, request)
	must(b.T, err)
	return task
}

func (b *tasks) briefing(cardID string) domain.AgentTask {
	b.Helper()
	return b.dispatched(application.TaskRequest{
		Executor: application.CardBriefingExecutor, Input: json.RawMessage(fmt.Sprintf(`{"card_id": %q}`, cardID)),
	})
}

func (b *tasks) find(id uuid.UUID) domain.AgentTask {
	b.Helper()
	task, err := b.control.Find(b.ctx, b.workspace, id)
	must(b.T, err)
	return task
}

// await awaits a status, from which the task does not go on by itself.
func (b *tasks) await(id uuid.UUID, status domain.TaskStatus) (task domain.AgentTask) {
	b.Helper()
	b.eventually("the task is "+string(status), func() bool {
		task = b.find(id)
		if task.Status.Finished() && task.Status != status {
			b.Fatalf("the task is %s, not %s: %s", task.Status, status, task.FailureReason)
		}
		return task.Status == status
	})
	return task
}

// wantSteps compares the steps that are recorded.
func (b *tasks) wantSteps(task domain.AgentTask, want ...string) {
	b.Helper()
	var got []string
	for _, s := range task.Steps {
		got = append(got, s.Name)
	}
	if !slices.Equal(got, want) {
		b.Fatalf("steps %v are recorded, want %v", got, want)
	}
}

// dispatches are the ids of a task's events, in the order they were published.
func (b *tasks) dispatches(id uuid.UUID) []uuid.UUID {
	b.Helper()
	return one[[]uuid.UUID](b.bundle, `select coalesce(array_agg(id order by created_at), '{}') from core.outbox
		where event_type = $1 and payload = jsonb_build_object('agent_task_id', $2::uuid)`, platform.AgentTaskDispatchedType, id)
}

// wantDispatches awaits that a task has had n events, and that they are delivered.
func (b *tasks) wantDispatches(id uuid.UUID, n int) {
	b.Helper()
	var all []uuid.UUID
	b.eventually("the events of the task are delivered", func() bool {
		all = b.dispatches(id)
		return one[int](b.bundle, "select count(*) from core.outbox where id = any ($1) and status = 'delivered'", all) == len(all)
	})
	if len(all) != n {
		b.Fatalf("the task was dispatched %d times, want %d", len(all), n)
	}
}

// row is the whole task as text.
func (b *tasks) text(id uuid.UUID) string {
	b.Helper()
	return one[string](b.bundle, "select t::text from platform.agent_tasks t where agent_task_id = $1", id)
}

// briefings are the files that were delivered, and what was left of others.
func (b *tasks) briefings() map[string]string {
	b.Helper()
	files := make(map[string]string)
	entries, err := os.ReadDir(b.dir)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		b.Fatal(err)
	}
	for _, e := range entries {
		content, err := os.ReadFile(filepath.Join(b.dir, e.Name()))
		must(b.T, err)
		files[e.Name()] = string(content)
	}
	return files
}

func newTasks(tx events.Tx) application.Tasks { return platformpg.NewAgentTasks(tx) }

const scriptName = "script"

// The steps of a script; a person has to approve before the third.
const stepOne, stepTwo, gateGo, stepThree = "one", "two", "go", "three"

// script is an executor that says what it does. What a step does beside, if anything, is the test's.
type script struct {
	in func(ctx context.Context, step string) error

	mu  sync.Mutex
	ran []string
}

func (s *script) executors() application.Executors { return application.Executors{scriptName: s} }

func (s *script) Advance(ctx context.Context, work application.Work) (application.Advance, error) {
	for _, step := range []string{stepOne, stepTwo, gateGo, stepThree} {
		if step == gateGo {
			if !work.Approved(gateGo) {
				return application.NeedsApproval(gateGo, "Go on?"), s.note(ctx, gateGo)
			}
			continue
		}
		if _, done := work.Result(step); !done {
			return application.StepDone(step, json.RawMessage(fmt.Sprintf(`{"run": %d}`, work.Run))), s.note(ctx, step)
		}
	}
	return application.TaskDone(json.RawMessage(fmt.Sprintf(`{"run": %d}`, work.Run))), s.note(ctx, "done")
}

func (s *script) note(ctx context.Context, step string) error {
	s.mu.Lock()
	s.ran = append(s.ran, step)
	in := s.in
	s.mu.Unlock()
	if in == nil {
		return nil
	}
	return in(ctx, step)
}

// begin forgets the steps that ran, for another task.
func (s *script) begin(in func(ctx context.Context, step string) error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.in, s.ran = in, nil
}

// steps are those that ran so far, in order.
func (s *script) steps() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return strings.Join(s.ran, " ")
}

// standing is a script whose first run of a step stands at g, whatever its context says.
func standing(at string, g *gate) *script {
	var once sync.Once
	return &script{in: func(_ context.Context, step string) error {
		if step == at {
			once.Do(func() {
				g.entered <- struct{}{}
				<-g.open
			})
		}
		return nil
	}}
}

// The whole life of a task that ships, with an approval.
func TestABriefingIsDeliveredOnceItIsApproved(t *testing.T) {
	b := setupTasks(t)
	_, err := app.NewPublishCard(b.uow).Publish(b.ctx, b.workspace, card(t, "harbour", "The Harbour of Veyra"))
	must(t, err)
	b.worker(nil)
	task := b.briefing("harbour")
	if task.Status != domain.TaskQueued {
		t.Fatalf("it is %s", task.Status)
	}
	task = b.await(task.ID, domain.TaskAwaitingApproval)
	b.wantSteps(task, application.BriefingLookUp, application.BriefingDraft)
	if q := task.Approval.Question; !strings.HasPrefix(q, `Deliver the briefing on "The Harbour of Veyra" (card harbour, version 1, `) {
		t.Fatalf("it asks %q", q)
	}
	if files := b.briefings(); len(files) > 0 {
		t.Fatalf("delivered without approval: %v", files)
	}
	b.wantDispatches(task.ID, 1)
	_, err = app.NewPublishCard(b.uow).Publish(b.ctx, b.workspace, card(t, "harbour", "Another")) // after the draft
	must(t, err)
	task, err = b.control.Approve(b.ctx, b.workspace, task.ID, "ada", "fine")
	must(t, err)
	if task.Status != domain.TaskQueued {
		t.Fatalf("it is %s", task.Status)
	}
	task = b.await(task.ID, domain.TaskSucceeded)
	b.wantSteps(task, application.BriefingLookUp, application.BriefingDraft, application.BriefingDeliver)
	b.wantDispatches(task.ID, 2)
	files := b.briefings()
	text := files[task.ID.String()+".md"]
	for _, want := range []string{"# The Harbour of Veyra\n\nCard harbour, version 1.\n", "\n- z: 1\n", "\nIdempotency key: " + task.ID.String() + "/deliver\n"} {
		if !strings.Contains(text, want) {
			t.Errorf("%q is missing in\n%s", want, text)
		}
	}
	if len(files) != 1 {
		t.Errorf("files %v", files)
	}
	var result struct {
		CardID      string `json:"card_id"`
		CardVersion int64  `json:"card_version"`
		DeliveredTo string `json:"delivered_to"`
	}
	must(t, json.Unmarshal(task.Result, &result))
	if result.CardID != "harbour" || result.CardVersion != 1 || result.DeliveredTo != filepath.Join(b.dir, task.ID.String()+".md") {
		t.Errorf("result %s", task.Result)
	}
	if kind := one[string](b.bundle, `select kind || coalesce(trigger_event_id::text, '') from platform.conversations
		where conversation_id = $1 and workspace_id = $2`, task.Conversation, b.workspace); kind != "reactive" {
		t.Errorf("the conversation is %s", kind)
	}
	// each transition that needs a worker is an event of its own
	if n := one[int](b.bundle, `select count(distinct idempotency_key) from core.outbox where event_type = $1
		and idempotency_key = id::text and channel = 'outbox_gen_1_agents' and source = 'platform' and workspace_id = $2`,
		platform.AgentTaskDispatchedType, b.workspace); n != 2 {
		t.Errorf("%d keys of 2 events", n)
	}
	if days := one[int](b.bundle, "select extract(day from retain_until - created_at)::int from platform.agent_tasks"); days != 90 {
		t.Errorf("it is kept for %d days", days)
	}
}

// refused wants a transition to be refused and nothing to change.
func (b *tasks) refused(do func() (domain.AgentTask, error)) {
	b.Helper()
	rows := one[string](b.bundle, "select (select string_agg(t::text, '') from platform.agent_tasks t) || count(*) from core.outbox")
	_, err := do()
	if _, ok := errors.AsType[*domain.TransitionError](err); !ok {
		b.Fatalf("not refused: %v", err)
	}
	if now := one[string](b.bundle, "select (select string_agg(t::text, '') from platform.agent_tasks t) || count(*) from core.outbox"); now != rows {
		b.Fatalf("refused, but changed: %s", now)
	}
}

func TestACancelledTask(t *testing.T) {
	b := setupTasks(t)
	b.run("rejected", func(b *tasks) {
		s := &script{}
		b.worker(s.executors())
		task := b.dispatched(application.TaskRequest{})
		b.await(task.ID, domain.TaskAwaitingApproval)
		rejected, err := b.control.Reject(b.ctx, b.workspace, task.ID, "ada", "not this one")
		must(b.T, err)
		if rejected.Status != domain.TaskCancelled || rejected.Approval.Comment != "not this one" {
			b.Fatalf("%+v", rejected)
		}
		b.wantDispatches(task.ID, 1)
		b.refused(func() (domain.AgentTask, error) { return b.control.Approve(b.ctx, b.workspace, task.ID, "bob", "") })
		if ran := s.steps(); ran != "one two go" {
			b.Errorf("ran %s", ran)
		}
	})
	b.run("queued", func(b *tasks) {
		task := b.dispatched(application.TaskRequest{})
		cancelled, err := b.control.Cancel(b.ctx, b.workspace, task.ID, "ada")
		must(b.T, err)
		if cancelled.Status != domain.TaskCancelled {
			b.Fatalf("it is %s", cancelled.Status)
		}
		s := &script{}
		b.worker(s.executors()).delivered(1) // its event has nothing to do any more
		if s.steps() != "" || b.find(task.ID).Status != domain.TaskCancelled {
			b.Errorf("ran %s, it is %s", s.steps(), b.find(task.ID).Status)
		}
	})
	b.run("awaiting approval", func(b *tasks) {
		b.worker((&script{}).executors())
		task := b.dispatched(application.TaskRequest{})
		b.await(task.ID, domain.TaskAwaitingApproval)
		cancelled, err := b.control.Cancel(b.ctx, b.workspace, task.ID, "ada")
		must(b.T, err)
		if cancelled.Status != domain.TaskCancelled {
			b.Fatalf("it is %s", cancelled.Status)
		}
		b.refused(func() (domain.AgentTask, error) { return b.control.Approve(b.ctx, b.workspace, task.ID, "bob", "") })
		b.refused(func() (domain.AgentTask, error) { return b.control.Cancel(b.ctx, b.workspace, task.ID, "bob") })
		b.wantDispatches(task.ID, 1)
	})
	for at, recorded := range map[string][]string{stepOne: {stepOne}, gateGo: {stepOne, stepTwo}} {
		b.run("running, in "+at, func(b *tasks) {
			g := newGate()
			b.Cleanup(g.letOn)
			s := standing(at, g)
			b.worker(s.executors())
			task := b.dispatched(application.TaskRequest{})
			g.awaitEntered(t)
			asked, err := b.control.Cancel(b.ctx, b.workspace, task.ID, "ada")
			must(b.T, err)
			if asked.Status != domain.TaskRunning || asked.Cancellation.RequestedBy != "ada" {
				b.Fatalf("%+v", asked)
			}
			g.letOn()
			b.wantSteps(b.await(task.ID, domain.TaskCancelled), recorded...)
			b.wantDispatches(task.ID, 1)
			if got := s.steps(); !strings.HasSuffix(got, at) {
				b.Errorf("it went on: %s", got)
			}
		})
	}
	b.run("finished", func(b *tasks) {
		task := b.succeeded()
		b.refused(func() (domain.AgentTask, error) { return b.control.Cancel(b.ctx, b.workspace, task.ID, "ada") })
		b.refused(func() (domain.AgentTask, error) { return b.control.Retry(b.ctx, b.workspace, task.ID) })
		b.refused(func() (domain.AgentTask, error) { return b.control.Redispatch(b.ctx, b.workspace, task.ID) })
	})
}

// succeeded is a task that has.
func (b *tasks) succeeded() domain.AgentTask {
	b.Helper()
	b.worker((&script{}).executors())
	task := b.dispatched(application.TaskRequest{})
	b.await(task.ID, domain.TaskAwaitingApproval)
	_, err := b.control.Approve(b.ctx, b.workspace, task.ID, "ada", "")
	must(b.T, err)
	task = b.await(task.ID, domain.TaskSucceeded)
	b.wantDispatches(task.ID, 2)
	return task
}

// A worker whose lease is taken from it in a step is followed by another, which does that step again and none before
// it; what the first brings then changes nothing.
func TestATaskOutlivesItsWorkerInEachStep(t *testing.T) {
	b := setupTasks(t)
	for at, c := range map[string]struct{ first, second string }{
		stepTwo: {"one two", "two go three done"},
		gateGo:  {"one two go", "go three done"},
		"done":  {"one two go three done", "done"},
	} {
		b.run(at, func(b *tasks) {
			g := newGate()
			b.Cleanup(g.letOn)
			alone := func(s *events.Subscription) { s.Concurrency = 1 }
			zombie := standing(at, g)
			first := b.worker(zombie.executors(), alone)
			task := b.dispatched(application.TaskRequest{})
			if at == "done" {
				b.await(task.ID, domain.TaskAwaitingApproval)
				_, err := b.control.Approve(b.ctx, b.workspace, task.ID, "ada", "")
				must(b.T, err)
			}
			g.awaitEntered(t)
			published := b.dispatches(task.ID)
			next := &script{}
			b.worker(next.executors(), alone)
			b.expire(published[len(published)-1])
			if at != "done" {
				b.await(task.ID, domain.TaskAwaitingApproval)
				_, err := b.control.Approve(b.ctx, b.workspace, task.ID, "ada", "")
				must(b.T, err)
			}
			b.wantSteps(b.await(task.ID, domain.TaskSucceeded), stepOne, stepTwo, stepThree)
			b.wantDispatches(task.ID, 2)
			settled := b.text(task.ID)
			g.letOn()
			first.stop()
			if now := b.text(task.ID); now != settled {
				b.Errorf("the zombie changed\n%s to\n%s", settled, now)
			}
			if zombie.steps() != c.first || next.steps() != c.second {
				b.Errorf("the first did %q, the second %q, want %q and %q", zombie.steps(), next.steps(), c.first, c.second)
			}
		})
	}
}

// runTask runs a task as a worker does that took its event.
func (b *tasks) runTask(id, dispatch uuid.UUID, s *script) error {
	conclude, err := app.NewRunTask(b.uow, s.executors(), time.Minute).Run(b.ctx, b.workspace, id, dispatch)
	if err != nil || conclude == nil {
		return err
	}
	return b.uow.Do(b.ctx, events.Platform, b.workspace, func(tx events.Tx, _ events.PublisherFor) error {
		return conclude(b.ctx, newTasks(tx))
	})
}

// A run that does not know that another has followed it: its number tells, whatever it writes.
func TestAZombieThatKnowsNothingWritesNothing(t *testing.T) {
	b := setupTasks(t)
	for at, fails := range map[string]error{ // what it ends with instead
		stepOne:   nil,
		gateGo:    nil,
		stepTwo:   errRefusing,
		stepThree: events.Terminal(errRefusing),
		"done":    nil,
	} {
		b.run(at, func(b *tasks) {
			task := b.dispatched(application.TaskRequest{})
			dispatch := b.dispatches(task.ID)[0]
			run := func(s *script) error { return b.runTask(task.ID, dispatch, s) }
			late := at == stepThree || at == "done"
			if late {
				must(b.T, run(&script{}))
				_, err := b.control.Approve(b.ctx, b.workspace, task.ID, "ada", "")
				must(b.T, err)
			}
			g := newGate()
			b.Cleanup(g.letOn)
			zombie := standing(at, g)
			stand := zombie.in
			zombie.in = func(ctx context.Context, step string) error {
				err := stand(ctx, step)
				if step == at {
					err = fails
				}
				return err
			}
			over, followed := make(chan error, 1), make(chan error, 1)
			go func() { over <- run(zombie) }()
			g.awaitEntered(t)
			held := newGate()
			b.Cleanup(held.letOn)
			next := standing(at, held)
			go func() { followed <- run(next) }()
			held.awaitEntered(t)
			before := b.text(task.ID)
			g.letOn()
			if err := within(t, over); err != nil {
				b.Errorf("the zombie is told %v: its event would be tried again", err)
			}
			if now := b.text(task.ID); now != before {
				b.Errorf("it changed\n%s to\n%s", before, now)
			}
			held.letOn()
			must(b.T, within(t, followed))
			want := domain.TaskAwaitingApproval
			if late {
				want = domain.TaskSucceeded
			}
			if got := b.find(task.ID).Status; got != want {
				b.Fatalf("it is %s, want %s", got, want)
			}
		})
	}
}

// A run whose write is committed, but does not hear of it, writes again: that changes nothing, costs no try, and strands
// no task.
func TestAnAnswerIsLost(t *testing.T) {
	b := setupTasks(t)
	for name, c := range map[string]struct {
		at    string // where the run ends with errRefusing
		lost  int    // the write whose answer is lost, from 1
		tries int
		cause error // the work has to stop at that, in place of errRefusing
	}{
		"of the start":    {at: stepOne, lost: 1, tries: 1},
		"of handing back": {at: stepOne, lost: 2, tries: 1},
		"of a step":       {at: stepTwo, lost: 2, tries: 1},
		"of handing back, after a step, and it stops": {at: stepTwo, lost: 3, cause: events.ErrStopping},
	} {
		b.run(name, func(b *tasks) {
			task := b.dispatched(application.TaskRequest{})
			dispatch := b.dispatches(task.ID)[0]
			writes := 0
			forgetful := func(ctx context.Context, workspace uuid.NullUUID, work func(application.Tasks, events.EventPublisher) error) error {
				err := b.uow.Do(ctx, events.Platform, workspace, func(tx events.Tx, publisherFor events.PublisherFor) error {
					return work(newTasks(tx), publisherFor())
				})
				if writes++; err == nil && writes == c.lost {
					err = errors.New("the connection is gone")
				}
				return err
			}
			ctx, stop := context.WithCancelCause(b.ctx)
			defer stop(nil)
			s := &script{in: func(_ context.Context, step string) error {
				if step != c.at {
					return nil
				}
				if c.cause != nil {
					stop(c.cause)
				}
				return errRefusing
			}}
			conclude, err := application.NewRunTask(forgetful, s.executors(), time.Minute, time.Now).Run(ctx, b.workspace, task.ID, dispatch)
			want := c.cause
			if want == nil {
				want = errRefusing
			}
			// of an executor's error only the text is kept
			if conclude != nil || err == nil || !strings.Contains(err.Error(), want.Error()) {
				b.Fatalf("it comes to %t, %v: the event would be delivered", conclude != nil, err)
			}
			task = b.find(task.ID)
			if task.Status != domain.TaskQueued || task.Tries != c.tries || writes <= c.lost {
				b.Errorf("after %d writes it is %s with %d tries, want %d", writes, task.Status, task.Tries, c.tries)
			}
			must(b.T, b.runTask(task.ID, dispatch, &script{}))
			task = b.find(task.ID)
			b.wantSteps(task, stepOne, stepTwo)
			if task.Status != domain.TaskAwaitingApproval || len(b.dispatches(task.ID)) != 1 {
				b.Errorf("run again it is %s", task.Status)
			}
		})
	}
}

// A step that is done is progress: the tries count from there, so that a task whose every step fails a few times gets on.
func TestEveryStepHasItsTries(t *testing.T) {
	b := setupTasks(t)
	failures := make(map[string]int)
	s := &script{in: func(_ context.Context, step string) error {
		if failures[step]++; failures[step] < domain.MaxTaskTries {
			return errRefusing
		}
		return nil
	}}
	b.worker(s.executors())
	task := b.dispatched(application.TaskRequest{})
	b.wantSteps(b.await(task.ID, domain.TaskAwaitingApproval), stepOne, stepTwo)
	b.wantRow(b.dispatches(task.ID)[0], "delivered", 3*(domain.MaxTaskTries-1)+1)
}

// A worker that stops hands the task back at no cost, and keeps the step that was just done.
func TestStoppingHandsATaskBack(t *testing.T) {
	b := setupTasks(t)
	g := newGate()
	s := &script{in: func(ctx context.Context, step string) error {
		if step != stepTwo {
			return nil
		}
		g.entered <- struct{}{}
		<-ctx.Done()
		return nil // done at the last moment
	}}
	l := b.worker(s.executors())
	task := b.dispatched(application.TaskRequest{})
	g.awaitEntered(t)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := l.Stop(ctx); err == nil {
		t.Fatal("nothing is said of what was cut off")
	}
	task = b.find(task.ID)
	b.wantSteps(task, stepOne, stepTwo)
	if task.Status != domain.TaskQueued || task.Tries != 0 {
		t.Fatalf("it is %s after %d tries", task.Status, task.Tries)
	}
	b.wantRow(b.dispatches(task.ID)[0], "pending", 0)
	next := &script{}
	b.worker(next.executors())
	b.await(task.ID, domain.TaskAwaitingApproval)
	if next.steps() != "go" {
		t.Errorf("the second did %s", next.steps())
	}
}

func TestTwoApprovalsAtTheSameTime(t *testing.T) {
	b := setupTasks(t)
	b.worker((&script{}).executors())
	task := b.dispatched(application.TaskRequest{})
	b.await(task.ID, domain.TaskAwaitingApproval)
	const n = 8
	errs := make(chan error, n)
	for i := range n {
		go func() {
			_, err := b.control.Approve(b.ctx, b.workspace, task.ID, fmt.Sprint("person ", i), "")
			errs <- err
		}()
	}
	approved := 0
	for range n {
		err := <-errs
		if _, refused := errors.AsType[*domain.TransitionError](err); err == nil {
			approved++
		} else if !refused {
			t.Error(err)
		}
	}
	if approved != 1 {
		t.Errorf("%d people approved", approved)
	}
	b.await(task.ID, domain.TaskSucceeded)
	b.wantDispatches(task.ID, 2)
}

// publishDispatch publishes by SQL what says that a task awaits a worker, as a login of platform.
func (b *tasks) publishDispatch(payload string, workspace uuid.NullUUID) (id uuid.UUID) {
	b.Helper()
	conn := pgtest.Conn(b.T, pgtest.Login(b.T, b.url, "spectral_platform"))
	must(b.T, conn.QueryRow(b.ctx, `select core.outbox_publish('agent.task.dispatched', 'platform', $1::text::jsonb, p_workspace_id => $2)`,
		payload, workspace).Scan(&id))
	return id
}

func dispatchOf(id uuid.UUID) string { return fmt.Sprintf(`{"agent_task_id": %q, "unknown": 1}`, id) }

// However many events say so, and whenever they come: a task is run once.
func TestDuplicateAndOldDispatchesDoNothing(t *testing.T) {
	b := setupTasks(t)
	g := newGate()
	t.Cleanup(g.letOn)
	s := standing(stepTwo, g)
	task := b.dispatched(application.TaskRequest{})
	b.exec("update core.outbox set available_at = now() + interval '1 hour' where id = $1", b.dispatches(task.ID)[0])
	const duplicates = 5
	for range duplicates {
		b.publishDispatch(dispatchOf(task.ID), b.workspace)
	}
	l := b.worker(s.executors())
	g.awaitEntered(t)
	l.delivered(duplicates - 1) // while the one runs
	g.letOn()
	l.delivered(1)
	b.await(task.ID, domain.TaskAwaitingApproval)
	b.publishDispatch(dispatchOf(task.ID), b.workspace) // without an approval
	l.delivered(1)
	if got := b.find(task.ID).Status; got != domain.TaskAwaitingApproval {
		t.Fatalf("it is %s", got)
	}
	_, err := b.control.Approve(b.ctx, b.workspace, task.ID, "ada", "")
	must(t, err)
	b.await(task.ID, domain.TaskSucceeded)
	l.delivered(1)
	settled := b.text(task.ID)
	b.exec("update core.outbox set available_at = now() where status = 'pending'") // the first of all comes at last
	b.publishDispatch(dispatchOf(task.ID), b.workspace)
	l.delivered(2)
	if now := b.text(task.ID); now != settled || s.steps() != "one two go three done" {
		t.Errorf("ran %s, changed to %s", s.steps(), now)
	}
}

func TestADispatchWithoutTaskFails(t *testing.T) {
	b := setupTasks(t)
	b.publishUnchecked()
	task := b.dispatched(application.TaskRequest{}).ID
	b.exec("update core.outbox set available_at = now() + interval '1 hour'") // for what is published by hand
	l := b.worker((&script{}).executors())
	for name, c := range map[string]struct {
		payload   string
		workspace uuid.NullUUID
		says      string
	}{
		"unknown":           {dispatchOf(someEvent), b.workspace, "TerminalError: platform.agent_task_runner: agent task " + someEvent.String() + ", workspace " + b.workspace.UUID.String() + ": there is no such agent task in this workspace"},
		"another workspace": {dispatchOf(task), uuid.NullUUID{UUID: uuid.New(), Valid: true}, "publish the event with p_workspace_id of its task"},
		"no workspace":      {dispatchOf(task), uuid.NullUUID{}, "agent task " + task.String() + ", no workspace: there is no such"},
		"misspelt":          {`{"agent_task": "x"}`, b.workspace, "PayloadError: platform.agent_task_runner: payload of agent.task.dispatched: agent_task_id is missing"},
		"no id":             {`{"agent_task_id": "x"}`, b.workspace, "PayloadError: "},
	} {
		id := b.publishDispatch(c.payload, c.workspace)
		if s := l.next(); s.Outcome != postgres.Failed || s.Envelope.EventID != id || s.Attempts != 1 || !strings.Contains(s.LastError, c.says) {
			t.Errorf("%s: %s after %d attempts: %s", name, s.Outcome, s.Attempts, s.LastError)
		}
	}
}

var someEvent = uuid.MustParse("11111111-1111-4111-8111-111111111111")

// A step that fails is tried again by itself; what retrying cannot fix fails the task, and the event is delivered: that
// is an outcome.
func TestTasksThatFail(t *testing.T) {
	b := setupTasks(t)
	s := &script{}
	run := app.NewRunTask(b.uow, s.executors(), 100*time.Millisecond)
	l := b.worker(nil, func(sub *events.Subscription) { sub.Primary.Executor = platformevents.AgentTaskRunner(run, newTasks) })
	for name, c := range map[string]struct {
		in       func(ctx context.Context, tries int) error
		status   domain.TaskStatus
		reason   string
		attempts int // of the event
	}{
		"twice": {in: func(_ context.Context, tries int) error {
			if tries <= 2 {
				return errRefusing
			}
			return nil
		}, status: domain.TaskAwaitingApproval, attempts: 3},
		"for good":   {in: func(context.Context, int) error { return events.Terminal(errRefusing) }, status: domain.TaskFailed, reason: "refusing", attempts: 1},
		"always":     {in: func(context.Context, int) error { return errRefusing }, status: domain.TaskFailed, reason: "refusing", attempts: domain.MaxTaskTries},
		"by panic":   {in: func(context.Context, int) error { panic("no") }, status: domain.TaskFailed, reason: "given up after 5 tries; its workers died or were cut off: see event ", attempts: domain.MaxTaskTries + 1},
		"by silence": {in: func(ctx context.Context, _ int) error { <-ctx.Done(); return ctx.Err() }, status: domain.TaskFailed, reason: "the step did not end within 100ms: context deadline exceeded", attempts: domain.MaxTaskTries},
	} {
		t.Log("a step fails " + name)
		tries := 0 // of one task, one after the other
		s.begin(func(ctx context.Context, step string) error {
			if step != stepTwo {
				return nil
			}
			tries++
			return c.in(ctx, tries)
		})
		task := b.dispatched(application.TaskRequest{})
		l.until(postgres.Delivered)
		b.wantRow(b.dispatches(task.ID)[0], "delivered", c.attempts)
		task = b.await(task.ID, c.status)
		if !strings.Contains(task.FailureReason, c.reason) {
			t.Errorf("%s: it failed because %q, want %q", name, task.FailureReason, c.reason)
		}
		if c.status != domain.TaskFailed {
			continue
		}
		b.wantSteps(task, stepOne)
		retried, err := b.control.Retry(b.ctx, b.workspace, task.ID)
		must(t, err)
		if retried.Status != domain.TaskQueued || retried.FailureReason != "" {
			t.Errorf("%s: %+v", name, retried)
		}
		l.until(postgres.Delivered)
		b.wantDispatches(task.ID, 2)
		if ran := strings.Count(s.steps(), stepOne); b.find(task.ID).Status != domain.TaskFailed || ran != 1 {
			t.Errorf("%s: step one ran %d times", name, ran)
		}
	}
}

func TestATaskThatFailsForWantOfACardIsRetried(t *testing.T) {
	b := setupTasks(t)
	b.worker(nil)
	task := b.briefing("nowhere")
	task = b.await(task.ID, domain.TaskFailed)
	if want := "card nowhere: there is no such card in this workspace: publish it, then retry the task"; task.FailureReason != want {
		t.Errorf("it failed because %q", task.FailureReason)
	}
	_, err := app.NewPublishCard(b.uow).Publish(b.ctx, b.workspace, card(t, "nowhere", "Nowhere"))
	must(t, err)
	_, err = b.control.Retry(b.ctx, b.workspace, task.ID)
	must(t, err)
	b.await(task.ID, domain.TaskAwaitingApproval)
}

// A task whose event was lost to it goes on once an operator says so; whatever run there was may write no more.
func TestARedispatchedTask(t *testing.T) {
	b := setupTasks(t)
	g := newGate()
	t.Cleanup(g.letOn)
	zombie := standing(stepTwo, g)
	task := b.dispatched(application.TaskRequest{})
	lost := b.dispatches(task.ID)[0]
	b.exec("update core.outbox set status = 'failed', last_error = 'lost' where id = $1", lost)
	over := make(chan error, 1)
	go func() {
		conclude, err := app.NewRunTask(b.uow, zombie.executors(), time.Minute).Run(b.ctx, b.workspace, task.ID, lost)
		if conclude != nil {
			err = errors.New("it has something to write")
		}
		over <- err
	}()
	g.awaitEntered(t)
	again, err := b.control.Redispatch(b.ctx, b.workspace, task.ID)
	must(t, err)
	if again.Status != domain.TaskQueued {
		t.Fatalf("it is %s", again.Status)
	}
	s := &script{}
	b.worker(s.executors())
	b.await(task.ID, domain.TaskAwaitingApproval)
	g.letOn()
	must(t, within(t, over))
	if n := len(b.dispatches(task.ID)); n != 2 || s.steps() != "two go" {
		t.Errorf("%d events, the second run did %s", n, s.steps())
	}
}

// dispatching is a handler of platform that dispatches a task because of an event.
const dispatching = "platform.test_dispatcher"

// An event may be the reason for a task: it, its proactive conversation and its event are there exactly when the
// event is recorded as handled.
func TestAProactiveConversationKnowsItsTrigger(t *testing.T) {
	b := setupTasks(t)
	failures := 2
	l := b.listen(noPoll, subscription(handler(dispatching, func(ctx context.Context, tx events.Tx, e events.Envelope) error {
		catalog := application.TaskCatalog{scriptName: func(json.RawMessage) error { return nil }}
		_, err := app.NewDispatchTaskIn(tx, b.publishing.Publisher(tx), catalog).Dispatch(ctx, e.WorkspaceID, application.TaskRequest{
			Executor: scriptName, Input: json.RawMessage("{}"), Trigger: uuid.NullUUID{UUID: e.EventID, Valid: true},
		})
		if failures--; err == nil && failures >= 0 {
			return errRefusing
		}
		return err
	})))
	e := event(1)
	e.WorkspaceID = b.workspace
	b.publish(e)
	l.until(postgres.Delivered)
	if got := one[string](b.bundle, `select string_agg(concat_ws(' ', kind, trigger_event_id, status), ', ') from platform.agent_tasks
		join platform.conversations using (conversation_id)`); got != "proactive "+e.EventID.String()+" queued" {
		t.Fatalf("tasks: %s", got)
	}
	task := one[uuid.UUID](b.bundle, "select agent_task_id from platform.agent_tasks")
	b.worker((&script{}).executors())
	b.await(task, domain.TaskAwaitingApproval)
	b.wantDispatches(task, 1)
}

func TestDispatchingATask(t *testing.T) {
	b := setupTasks(t)
	first := b.dispatched(application.TaskRequest{ID: someEvent})
	again, err := b.dispatch.Dispatch(b.ctx, b.workspace, application.TaskRequest{ID: someEvent, Executor: scriptName, Input: json.RawMessage(`{"other": 1}`)})
	must(t, err)
	if again.Conversation != first.Conversation || len(b.dispatches(someEvent)) != 1 {
		t.Errorf("twice: %+v", again)
	}
	next := b.dispatched(application.TaskRequest{Conversation: first.Conversation, Retention: 24 * time.Hour})
	if next.Conversation != first.Conversation || next.ID == first.ID || !next.RetainUntil.Equal(next.CreatedAt.Add(24*time.Hour)) {
		t.Errorf("%+v", next)
	}
	proactive := b.dispatched(application.TaskRequest{Proactive: true})
	if kind := one[string](b.bundle, "select kind from platform.conversations where conversation_id = $1", proactive.Conversation); kind != "proactive" {
		t.Errorf("it is %s", kind)
	}
	elsewhere := uuid.NullUUID{UUID: uuid.New(), Valid: true}
	before := one[int](b.bundle, "select (select count(*) from core.outbox) + (select count(*) from platform.conversations)")
	for name, c := range map[string]struct {
		workspace uuid.NullUUID
		request   application.TaskRequest
		says      string
	}{
		"unknown executor":            {b.workspace, application.TaskRequest{Executor: "scrip"}, `there is no executor "scrip": choose among card_briefing, script`},
		"input that does not fit":     {b.workspace, application.TaskRequest{Executor: application.CardBriefingExecutor, Input: json.RawMessage(`{"card": "x"}`)}, `a card briefing takes {"card_id": "..."}: json: unknown field "card"`},
		"input without card":          {b.workspace, application.TaskRequest{Executor: application.CardBriefingExecutor, Input: json.RawMessage(`{}`)}, "card_id is missing"},
		"input that cannot be stored": {b.workspace, application.TaskRequest{Executor: scriptName, Input: json.RawMessage(`{"a": "\u0000"}`)}, "input: "},
		"no such conversation":        {b.workspace, application.TaskRequest{Executor: scriptName, Input: json.RawMessage("{}"), Conversation: someEvent}, "there is no such conversation in this workspace"},
		"a foreign conversation":      {elsewhere, application.TaskRequest{Executor: scriptName, Input: json.RawMessage("{}"), Conversation: first.Conversation}, "there is no such conversation in this workspace"},
		"a foreign id":                {elsewhere, application.TaskRequest{Executor: scriptName, Input: json.RawMessage("{}"), ID: someEvent}, "there is an agent task of this id"},
		"a trigger that comes late":   {b.workspace, application.TaskRequest{Executor: scriptName, Input: json.RawMessage("{}"), Conversation: first.Conversation, Trigger: uuid.NullUUID{UUID: someEvent, Valid: true}}, "was begun already"},
	} {
		if _, err := b.dispatch.Dispatch(b.ctx, c.workspace, c.request); err == nil || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if now := one[int](b.bundle, "select (select count(*) from core.outbox) + (select count(*) from platform.conversations)"); now != before {
		t.Errorf("refused, but %d rows were written", now-before)
	}
	if _, err := b.control.Find(b.ctx, elsewhere, someEvent); !errors.Is(err, application.ErrNoTask) {
		t.Errorf("another workspace finds the task: %v", err)
	}
	if _, err := b.control.Cancel(b.ctx, elsewhere, someEvent, "eve"); !errors.Is(err, application.ErrNoTask) {
		t.Errorf("another workspace cancels the task: %v", err)
	}
}
