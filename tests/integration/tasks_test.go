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
	"spectral/internal/core/events/infrastructure/postgres/dispatch"
	"spectral/internal/core/events/infrastructure/postgres/publish"
	"spectral/internal/platform/application"
	platform "spectral/internal/platform/contracts/events"
	"spectral/internal/platform/domain"
	platformevents "spectral/internal/platform/infrastructure/events"
	platformpg "spectral/internal/platform/infrastructure/postgres"
	"spectral/tests/pgtest"
)

// tasks is a bundle with agent tasks of one workspace. Its workers and use cases have the role spectral_worker only.
type tasks struct {
	*bundle
	workspace uuid.NullUUID
	dir       string // the directory of the briefings
	uow       *publish.UnitOfWork
	dispatch  *application.DispatchTask
	control   *application.ControlTask
}

func setupTasks(t *testing.T) *tasks {
	t.Helper()
	b := setup(t)
	b.poolURL = pgtest.Login(t, b.url, "spectral_worker") + "&pool_max_conns=8"
	b.directURL = b.poolURL
	uow := &publish.UnitOfWork{Pool: b.workersPool(), Publishing: b.publishing}
	catalog := app.TaskCatalog()
	catalog[scriptName] = func(json.RawMessage) error { return nil }
	return &tasks{
		bundle: b, workspace: newWorkspace(), dir: filepath.Join(t.TempDir(), "briefings"), uow: uow,
		dispatch: app.NewDispatchTask(uow, catalog), control: app.NewControlTask(uow),
	}
}

// run runs a subtest on the shared database, without the events and tasks of earlier ones.
func (b *tasks) run(name string, do func(*tasks)) {
	b.Helper()
	b.bundle.run(name, func(shared *bundle) {
		shared.exec("truncate core.outbox, core.event_handled, platform.agent_tasks, platform.conversations cascade")
		c := *b
		c.bundle = shared
		do(&c)
	})
}

// worker starts the product's consumer of tasks with the executor s and fast retries, and further consumers.
func (b *tasks) worker(s *script, more ...events.Subscription) *testWorker {
	b.Helper()
	deps := app.Deps{Generation: pgtest.Generation, UnitOfWork: b.uow, BriefingsDir: b.dir}
	executors := app.TaskExecutors(deps)
	executors[scriptName] = s
	consumer := app.AgentTaskConsumer(deps, executors)
	consumer.Primary.Retry.Base, consumer.Primary.Retry.Cap = fastRetry.Base, fastRetry.Cap
	return b.startWorker(noPoll, consumer, more...)
}

func (b *tasks) dispatched(request application.TaskRequest) *domain.AgentTask {
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

func (b *tasks) wantStatus(id uuid.UUID, status domain.TaskStatus) *domain.AgentTask {
	b.Helper()
	task, err := b.control.Find(b.ctx, b.workspace, id)
	must(b.T, err)
	if task.Status != status {
		b.Fatalf("the task is %s, not %s: %s", task.Status, status, task.FailureReason)
	}
	return task
}

func (b *tasks) wantSteps(task *domain.AgentTask, want ...string) {
	b.Helper()
	var got []string
	for _, s := range task.Steps {
		got = append(got, s.Name)
	}
	if !slices.Equal(got, want) {
		b.Fatalf("steps %v are recorded, want %v", got, want)
	}
}

// dispatches returns the ids of a task's events in the order in which they were published.
func (b *tasks) dispatches(id uuid.UUID) []uuid.UUID {
	b.Helper()
	return one[[]uuid.UUID](b.bundle, `select coalesce(array_agg(id order by created_at), '{}') from core.outbox
		where event_type = $1 and payload = jsonb_build_object('agent_task_id', $2::uuid)`,
		platform.AgentTaskDispatchedType, id)
}

func (b *tasks) wantDispatches(id uuid.UUID, n int) {
	b.Helper()
	if all := b.dispatches(id); len(all) != n {
		b.Fatalf("the task was dispatched %d times, want %d", len(all), n)
	}
}

func (b *tasks) text(id uuid.UUID) string {
	b.Helper()
	return one[string](b.bundle, "select t::text from platform.agent_tasks t where agent_task_id = $1", id)
}

// briefings returns the files in the briefings directory by name, including unfinished ones.
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

// The steps of a script. A person has to approve before the third.
const stepOne, stepTwo, gateGo, stepThree = "one", "two", "go", "three"

// script is an executor with three steps. in is called in each step; it may be nil.
type script struct {
	in func(ctx context.Context, step string) error

	mu  sync.Mutex
	ran []string
}

func (s *script) Advance(ctx context.Context, work application.Work) (application.Advance, error) {
	for _, step := range []string{stepOne, stepTwo, gateGo, stepThree} {
		if step == gateGo {
			if !work.Approved(gateGo) {
				return application.NeedsApproval(gateGo, "Go on?"), s.run(ctx, gateGo)
			}
			continue
		}
		if _, done := work.Result(step); !done {
			return application.StepDone(step, json.RawMessage(fmt.Sprintf(`{"run": %d}`, work.Run))), s.run(ctx, step)
		}
	}
	return application.TaskDone(json.RawMessage(fmt.Sprintf(`{"run": %d}`, work.Run))), s.run(ctx, "done")
}

func (s *script) run(ctx context.Context, step string) error {
	s.mu.Lock()
	s.ran = append(s.ran, step)
	in := s.in
	s.mu.Unlock()
	if in == nil {
		return nil
	}
	return in(ctx, step)
}

// reset forgets the steps that ran and sets what the next task does in each step.
func (s *script) reset(in func(ctx context.Context, step string) error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.in, s.ran = in, nil
}

func (s *script) steps() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return strings.Join(s.ran, " ")
}

// blockingScript is a script that waits at g in its first run of a step, and ignores its context.
func blockingScript(at string, g *gate) *script {
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

// runTask runs a task as a worker does for the event with the id dispatch.
func (b *tasks) runTask(id, dispatch uuid.UUID, s *script) error {
	run := app.NewRunTask(b.uow, application.Executors{scriptName: s}, time.Minute)
	conclude, err := run.Run(b.ctx, b.workspace, id, dispatch)
	if err != nil || conclude == nil {
		return err
	}
	return b.uow.Do(b.ctx, events.Platform, b.workspace, func(tx events.Tx, _ events.PublisherFor) error {
		return conclude(b.ctx, newTasks(tx))
	})
}

// advance dispatches a task and runs it until it has a status in which it waits or has ended.
func (b *tasks) advance(status domain.TaskStatus) *domain.AgentTask {
	b.Helper()
	task := b.dispatched(application.TaskRequest{})
	run := func(in func(context.Context, string) error) {
		b.Helper()
		all := b.dispatches(task.ID)
		must(b.T, b.runTask(task.ID, all[len(all)-1], &script{in: in}))
	}
	switch status {
	case domain.TaskFailed:
		run(func(context.Context, string) error { return events.Terminal(errOnPurpose) })
	case domain.TaskAwaitingApproval:
		run(nil)
	case domain.TaskSucceeded:
		run(nil)
		_, err := b.control.Approve(b.ctx, b.workspace, task.ID, "ada")
		must(b.T, err)
		run(nil)
	case domain.TaskQueued, domain.TaskRunning, domain.TaskCancelled:
	}
	return b.wantStatus(task.ID, status)
}

func TestAgentTasks(t *testing.T) {
	b := setupTasks(t)
	for _, test := range []func(*tasks){eachChangeThatNeedsAWorkerIsAnEvent, oneOfTwoApprovalsCounts,
		duplicateAndOldEventsDoNothing, anEarlierRunWritesNothing, aCancelledTaskStopsAfterItsStep,
		aStepEndsAtItsLimit, anEventWithoutItsTaskIsADeadLetter, aTaskBelongsToItsWorkspace} {
		b.run(nameOf(test), test)
	}
}

// A change by a person publishes an event if a worker has to act. A refused change has no effect.
func eachChangeThatNeedsAWorkerIsAnEvent(b *tasks) {
	approve := func(id uuid.UUID) (*domain.AgentTask, error) { return b.control.Approve(b.ctx, b.workspace, id, "ada") }
	cancel := func(id uuid.UUID) (*domain.AgentTask, error) { return b.control.Cancel(b.ctx, b.workspace, id, "ada") }
	for _, c := range []struct {
		from   domain.TaskStatus
		change func(uuid.UUID) (*domain.AgentTask, error)
		to     domain.TaskStatus // empty if the change is refused
		events int               // published by the change
	}{
		{domain.TaskQueued, cancel, domain.TaskCancelled, 0}, {domain.TaskQueued, approve, "", 0},
		{domain.TaskAwaitingApproval, approve, domain.TaskQueued, 1},
		{domain.TaskAwaitingApproval, cancel, domain.TaskCancelled, 0}, {domain.TaskFailed, cancel, "", 0},
		{domain.TaskSucceeded, cancel, "", 0},
	} {
		task := b.advance(c.from)
		before, published := b.text(task.ID), len(b.dispatches(task.ID))
		changed, err := c.change(task.ID)
		refused := errors.Is(err, domain.ErrTaskStatus)
		if c.to == "" && (!refused || b.text(task.ID) != before) || c.to != "" && (err != nil || changed.Status != c.to) {
			b.Errorf("from %s, want %q: the task is %+v, %v", c.from, c.to, changed, err)
		}
		if n := len(b.dispatches(task.ID)) - published; n != c.events {
			b.Errorf("from %s to %q: %d events were published", c.from, c.to, n)
		}
	}
}

func oneOfTwoApprovalsCounts(b *tasks) {
	task := b.advance(domain.TaskAwaitingApproval)
	if n := countOf(b.T, 4, func() (bool, error) {
		_, err := b.control.Approve(b.ctx, b.workspace, task.ID, "ada")
		if errors.Is(err, domain.ErrTaskStatus) {
			return false, nil
		}
		return true, err
	}); n != 1 {
		b.Errorf("%d people approved", n)
	}
	b.wantDispatches(task.ID, 2)
}

// A task runs once, however many events it has.
func duplicateAndOldEventsDoNothing(b *tasks) {
	task := b.dispatched(application.TaskRequest{})
	duplicate := func(when string, dispatch uuid.UUID) {
		b.Helper()
		before, s := b.text(task.ID), new(script)
		if err := b.runTask(task.ID, dispatch, s); err != nil || s.steps() != "" || b.text(task.ID) != before {
			b.Errorf("%s a duplicate ran %q: %v", when, s.steps(), err)
		}
	}
	first := b.dispatches(task.ID)[0]
	s := &script{in: func(_ context.Context, step string) error {
		duplicate("while it runs, at "+step+",", uuid.New())
		return nil
	}}
	must(b.T, b.runTask(task.ID, first, s))
	duplicate("before the approval", first)
	_, err := b.control.Approve(b.ctx, b.workspace, task.ID, "ada")
	must(b.T, err)
	b.wantDispatches(task.ID, 2)
	must(b.T, b.runTask(task.ID, b.dispatches(task.ID)[1], s))
	duplicate("at the end", first)
	duplicate("at the end", uuid.New())
	if b.wantStatus(task.ID, domain.TaskSucceeded); s.steps() != "one two go three done" {
		b.Errorf("the steps are %s", s.steps())
	}
}

// An earlier run of the same event goes on after a later run began. The run's number keeps it from writing. The later
// run repeats that step and none before it.
func anEarlierRunWritesNothing(b *tasks) {
	for at, c := range map[string]struct {
		ends error // what the earlier run returns
		next string
	}{
		stepOne: {nil, "one two go"},
		stepTwo: {errOnPurpose, "two go"},
		gateGo:  {nil, "go"},
	} {
		task := b.dispatched(application.TaskRequest{})
		dispatch := b.dispatches(task.ID)[0]
		g, held := b.newGate(), b.newGate()
		earlier, next := blockingScript(at, g), blockingScript(at, held)
		block := earlier.in
		earlier.in = func(ctx context.Context, step string) error {
			if err := block(ctx, step); step != at {
				return err
			}
			return c.ends
		}
		earlierEnded, nextEnded := make(chan error, 1), make(chan error, 1)
		go func() { earlierEnded <- b.runTask(task.ID, dispatch, earlier) }()
		g.awaitEntered(b.T)
		go func() { nextEnded <- b.runTask(task.ID, dispatch, next) }()
		held.awaitEntered(b.T)
		before := b.text(task.ID)
		g.release()
		if err := receive(b.T, earlierEnded); err != nil {
			b.Errorf("at %s the earlier run returns %v: its event would be retried", at, err)
		}
		if now := b.text(task.ID); now != before {
			b.Errorf("at %s the task changed from\n%s to\n%s", at, before, now)
		}
		held.release()
		must(b.T, receive(b.T, nextEnded))
		if b.wantStatus(task.ID, domain.TaskAwaitingApproval); next.steps() != c.next {
			b.Errorf("at %s the later run did %q, want %q", at, next.steps(), c.next)
		}
	}
}

func aCancelledTaskStopsAfterItsStep(b *tasks) {
	for at, recorded := range map[string][]string{stepOne: {stepOne}, gateGo: {stepOne, stepTwo}} {
		task := b.dispatched(application.TaskRequest{})
		s := &script{in: func(_ context.Context, step string) error {
			if step == at {
				requested, err := b.control.Cancel(b.ctx, b.workspace, task.ID, "ada")
				if err != nil || requested.Status != domain.TaskRunning || requested.Cancellation.RequestedBy != "ada" {
					b.Errorf("%+v, %v", requested, err)
				}
			}
			return nil
		}}
		must(b.T, b.runTask(task.ID, b.dispatches(task.ID)[0], s))
		b.wantSteps(b.wantStatus(task.ID, domain.TaskCancelled), recorded...)
		if got := s.steps(); !strings.HasSuffix(got, at) {
			b.Errorf("it ran %s", got)
		}
	}
}

func aStepEndsAtItsLimit(b *tasks) {
	task := b.dispatched(application.TaskRequest{})
	s := &script{in: func(ctx context.Context, _ string) error { <-ctx.Done(); return ctx.Err() }}
	run := app.NewRunTask(b.uow, application.Executors{scriptName: s}, time.Millisecond)
	_, err := run.Run(b.ctx, b.workspace, task.ID, b.dispatches(task.ID)[0])
	if err == nil || !strings.Contains(err.Error(), "the step did not end within 1ms: ") ||
		b.wantStatus(task.ID, domain.TaskQueued).Tries != 1 {
		b.Errorf("it ended with %v", err)
	}
}

func anEventWithoutItsTaskIsADeadLetter(b *tasks) {
	task := b.dispatched(application.TaskRequest{}).ID
	dispatchOf := func(id uuid.UUID) string { return fmt.Sprintf(`{"agent_task_id": %q, "unknown": 1}`, id) }
	runner := platformevents.AgentTaskRunner(app.NewRunTask(b.uow, nil, time.Minute), newTasks)
	for want, c := range map[string]struct {
		payload   string
		workspace uuid.NullUUID
	}{
		"agent task " + fixedID.String() +
			": there is no such agent task in this workspace": {dispatchOf(fixedID), b.workspace},
		"publish the event with p_workspace_id of its task":          {dispatchOf(task), newWorkspace()},
		"agent task " + task.String() + ": there is no such":         {dispatchOf(task), uuid.NullUUID{}},
		"payload of agent.task.dispatched: agent_task_id is missing": {`{"agent_task": "x"}`, b.workspace},
	} {
		_, err := runner.Execute(b.ctx, events.Envelope{
			EventType: platform.AgentTaskDispatchedType, WorkspaceID: c.workspace, Payload: json.RawMessage(c.payload),
		})
		_, terminal := errors.AsType[*events.TerminalError](err)
		_, payload := errors.AsType[*events.PayloadError](err)
		if err == nil || !terminal && !payload || !strings.Contains(err.Error(), want) {
			b.Errorf("%v, want %s", err, want)
		}
	}
}

var fixedID = uuid.MustParse("11111111-1111-4111-8111-111111111111")

func aTaskBelongsToItsWorkspace(b *tasks) {
	first := b.dispatched(application.TaskRequest{})
	next := b.dispatched(application.TaskRequest{Conversation: first.Conversation})
	if next.Conversation != first.Conversation || next.ID == first.ID {
		b.Errorf("%+v", next)
	}
	elsewhere := newWorkspace()
	const rows = "select (select count(*) from core.outbox) + (select count(*) from platform.conversations)"
	before := one[int](b.bundle, rows)
	input := json.RawMessage("{}")
	for want, c := range map[string]struct {
		workspace uuid.NullUUID
		request   application.TaskRequest
	}{
		`there is no executor "scrip": choose among card_briefing, script`: {b.workspace,
			application.TaskRequest{Executor: "scrip"}},
		"card_id is missing": {b.workspace,
			application.TaskRequest{Executor: application.CardBriefingExecutor, Input: input}},
		"input: ": {b.workspace,
			application.TaskRequest{Executor: scriptName, Input: json.RawMessage(`{"a": "\u0000"}`)}},
		"there is no such conversation in this workspace": {elsewhere,
			application.TaskRequest{Executor: scriptName, Input: input, Conversation: first.Conversation}},
		"only a new conversation has a trigger event": {b.workspace,
			application.TaskRequest{Executor: scriptName, Input: input, Conversation: first.Conversation,
				Trigger: uuid.NullUUID{UUID: fixedID, Valid: true}}},
	} {
		if _, err := b.dispatch.Dispatch(b.ctx, c.workspace, c.request); err == nil || !strings.Contains(err.Error(), want) {
			b.Errorf("%v, want %s", err, want)
		}
	}
	if now := one[int](b.bundle, rows); now != before {
		b.Errorf("refused, but %d rows were written", now-before)
	}
	if _, err := b.control.Cancel(b.ctx, elsewhere, first.ID, "eve"); !errors.Is(err, application.ErrNoTask) {
		b.Errorf("another workspace cancels the task: %v", err)
	}
}

func TestAgentTaskWorker(t *testing.T) {
	b := setupTasks(t)
	s := &script{}
	// The dispatcher dispatches a task in reaction to an event, and fails twice after that.
	failures := 2
	dispatcher := handler("platform.test_dispatcher", func(ctx context.Context, tx events.Tx, e events.Envelope) error {
		catalog := application.TaskCatalog{scriptName: func(json.RawMessage) error { return nil }}
		_, err := app.NewDispatchTaskIn(tx, b.publishing.Publisher(tx), catalog).Dispatch(ctx, e.WorkspaceID,
			application.TaskRequest{
				Executor: scriptName, Input: json.RawMessage("{}"), Trigger: uuid.NullUUID{UUID: e.EventID, Valid: true},
			})
		if failures--; err == nil && failures >= 0 {
			return errOnPurpose
		}
		return err
	})
	l := b.worker(s, subscription(dispatcher))
	for _, test := range []func(*tasks, *testWorker, *script){aBriefingIsDeliveredOnceItIsApproved,
		anErrorThatRetryingCannotFixFailsTheTaskAndNotItsEvent, aProactiveConversationKnowsItsTrigger,
		aStopReleasesATask} { // it stops the worker
		s.reset(nil)
		b.run(nameOf(test), func(b *tasks) { test(b, l.in(b.bundle), s) })
	}
}

func aBriefingIsDeliveredOnceItIsApproved(b *tasks, l *testWorker, _ *script) {
	_, err := app.NewPublishCard(b.uow).Publish(b.ctx, b.workspace, card(b.T, "harbour", "The Harbour of Veyra"))
	must(b.T, err)
	task := b.dispatched(application.TaskRequest{
		Executor: application.CardBriefingExecutor, Input: json.RawMessage(`{"card_id": "harbour"}`),
	})
	l.awaitDelivered(1)
	task = b.wantStatus(task.ID, domain.TaskAwaitingApproval)
	b.wantSteps(task, application.BriefingLookUp, application.BriefingDraft)
	const question = `Deliver the briefing on "The Harbour of Veyra" (card harbour, version 1, `
	if q := task.Approval.Question; !strings.HasPrefix(q, question) {
		b.Fatalf("the question is %q", q)
	}
	if files := b.briefings(); len(files) > 0 {
		b.Fatalf("delivered without approval: %v", files)
	}
	_, err = app.NewPublishCard(b.uow).Publish(b.ctx, b.workspace, card(b.T, "harbour", "Another")) // after the draft
	must(b.T, err)
	_, err = b.control.Approve(b.ctx, b.workspace, task.ID, "ada")
	must(b.T, err)
	l.awaitDelivered(1)
	task = b.wantStatus(task.ID, domain.TaskSucceeded)
	b.wantSteps(task, application.BriefingLookUp, application.BriefingDraft, application.BriefingDeliver)
	b.wantDispatches(task.ID, 2)
	files := b.briefings()
	text := files[task.ID.String()+".md"]
	for _, want := range []string{"# The Harbour of Veyra\n\nCard harbour, version 1.\n",
		"\nIdempotency key: " + task.ID.String() + "/deliver\n"} {
		if !strings.Contains(text, want) {
			b.Errorf("%q is missing in\n%s", want, text)
		}
	}
	if len(files) != 1 {
		b.Errorf("files %v", files)
	}
	if !strings.Contains(string(task.Result), `"card_version": 1`) {
		b.Errorf("result %s", task.Result)
	}
	// Each dispatch has its own event.
	if n := one[int](b.bundle, `select count(distinct idempotency_key) from core.outbox where event_type = $1
		and idempotency_key = id::text and channel = 'outbox_gen_1_agents' and source = 'platform' and workspace_id = $2`,
		platform.AgentTaskDispatchedType, b.workspace); n != 2 {
		b.Errorf("%d keys of 2 events", n)
	}
}

// A failing step is retried. After an error that retrying cannot fix, the task has failed and the event is delivered.
func anErrorThatRetryingCannotFixFailsTheTaskAndNotItsEvent(b *tasks, l *testWorker, s *script) {
	for name, c := range map[string]struct {
		in       func(tries int) error
		status   domain.TaskStatus
		reason   string
		attempts int // of the event
	}{
		"twice": {in: func(tries int) error {
			if tries <= 2 {
				return errOnPurpose
			}
			return nil
		}, status: domain.TaskAwaitingApproval, attempts: 3},
		"terminal": {in: func(int) error { return events.Terminal(errOnPurpose) },
			status: domain.TaskFailed, reason: "failed on purpose", attempts: 1},
		"always": {in: func(int) error { return errOnPurpose },
			status: domain.TaskFailed, reason: "failed on purpose", attempts: domain.MaxTaskTries},
		"panic": {in: func(int) error { panic("no") }, status: domain.TaskFailed,
			reason: "given up after 5 tries; its workers died or were stopped: see event ", attempts: domain.MaxTaskTries + 1},
	} {
		tries := 0 // of this task
		s.reset(func(_ context.Context, step string) error {
			if step != stepTwo {
				return nil
			}
			tries++
			return c.in(tries)
		})
		task := b.dispatched(application.TaskRequest{})
		l.awaitOutcome(dispatch.Delivered)
		b.wantRow(b.dispatches(task.ID)[0], "delivered", c.attempts)
		if task = b.wantStatus(task.ID, c.status); !strings.Contains(task.FailureReason, c.reason) {
			b.Errorf("%s: the failure reason is %q, want %q", name, task.FailureReason, c.reason)
		}
	}
}

// The task, its conversation and its event are committed only with the trigger's dedup key.
func aProactiveConversationKnowsItsTrigger(b *tasks, l *testWorker, _ *script) {
	e := event(1)
	e.WorkspaceID = b.workspace
	b.publish(e)
	l.awaitOutcome(dispatch.Delivered)
	l.awaitDelivered(1)
	if got := one[string](b.bundle, `select string_agg(concat_ws(' ', trigger_event_id, status), ', ')
		from platform.agent_tasks
		join platform.conversations using (conversation_id)`); got != e.EventID.String()+" awaiting_approval" {
		b.Fatalf("tasks: %s", got)
	}
}

// The step that has just ended is recorded, and the stop costs no try.
func aStopReleasesATask(b *tasks, l *testWorker, s *script) {
	g := b.newGate()
	s.reset(func(ctx context.Context, step string) error {
		if step != stepTwo {
			return nil
		}
		g.entered <- struct{}{}
		<-ctx.Done()
		return nil // the step succeeds after the cancellation
	})
	task := b.dispatched(application.TaskRequest{})
	g.awaitEntered(b.T)
	l.stopWithoutGrace()
	task = b.wantStatus(task.ID, domain.TaskQueued)
	b.wantSteps(task, stepOne, stepTwo)
	if task.Tries != 0 {
		b.Fatalf("the task has %d tries", task.Tries)
	}
	b.wantRow(b.dispatches(task.ID)[0], "pending", 0)
	next := &script{}
	must(b.T, b.runTask(task.ID, b.dispatches(task.ID)[0], next))
	if next.steps() != "go" {
		b.Errorf("the second run did %s", next.steps())
	}
}
