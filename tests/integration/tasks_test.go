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

// tasks is a bundle with agent tasks of one workspace, whose workers and use cases are logins that may only work.
type tasks struct {
	*bundle
	workspace uuid.NullUUID
	dir       string // of the briefings
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
		bundle: b, workspace: aWorkspace(), dir: filepath.Join(t.TempDir(), "briefings"), uow: uow,
		dispatch: app.NewDispatchTask(uow, catalog), control: app.NewControlTask(uow),
	}
}

// run runs a subtest that shares b's database with the others, which finds no event of theirs.
func (b *tasks) run(name string, do func(*tasks)) {
	b.Helper()
	b.exec("truncate core.outbox, core.event_handled, platform.agent_tasks, platform.conversations cascade")
	b.bundle.run(name, func(shared *bundle) {
		c := *b
		c.bundle = shared
		do(&c)
	})
}

// worker starts a worker on tasks with the product's own consumer, s beside its executors, and quick retries.
func (b *tasks) worker(s *script, more ...events.Subscription) *listening {
	b.Helper()
	parts := app.Deps{Generation: pgtest.Generation, UnitOfWork: b.uow, BriefingsDir: b.dir}
	executors := app.TaskExecutors(parts)
	executors[scriptName] = s
	consumer := app.AgentTaskConsumer(parts, executors)
	consumer.Primary.Retry.Base, consumer.Primary.Retry.Cap = quickly.Base, quickly.Cap
	l := b.newWorker(noPoll, pgtest.Generation, consumer)
	for _, other := range more {
		must(b.T, l.Listen(b.ctx, other))
	}
	l.start()
	return l
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

func (b *tasks) find(id uuid.UUID) domain.AgentTask {
	b.Helper()
	task, err := b.control.Find(b.ctx, b.workspace, id)
	must(b.T, err)
	return task
}

// wantStatus finds the task in a status.
func (b *tasks) wantStatus(id uuid.UUID, status domain.TaskStatus) domain.AgentTask {
	b.Helper()
	task := b.find(id)
	if task.Status != status {
		b.Fatalf("the task is %s, not %s: %s", task.Status, status, task.FailureReason)
	}
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

// wantDispatches wants a task to have had n events.
func (b *tasks) wantDispatches(id uuid.UUID, n int) {
	b.Helper()
	if all := b.dispatches(id); len(all) != n {
		b.Fatalf("the task was dispatched %d times, want %d", len(all), n)
	}
}

// text is the whole task.
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

// runTask runs a task as a worker does that took the event dispatch.
func (b *tasks) runTask(id, dispatch uuid.UUID, s *script) error {
	conclude, err := app.NewRunTask(b.uow, application.Executors{scriptName: s}, time.Minute).Run(b.ctx, b.workspace, id, dispatch)
	if err != nil || conclude == nil {
		return err
	}
	return b.uow.Do(b.ctx, events.Platform, b.workspace, func(tx events.Tx, _ events.PublisherFor) error {
		return conclude(b.ctx, newTasks(tx))
	})
}

// advance dispatches a task and runs it until it has the status, which must be one in which it rests.
func (b *tasks) advance(status domain.TaskStatus) domain.AgentTask {
	b.Helper()
	task := b.dispatched(application.TaskRequest{})
	run := func(in func(context.Context, string) error) {
		b.Helper()
		all := b.dispatches(task.ID)
		must(b.T, b.runTask(task.ID, all[len(all)-1], &script{in: in}))
	}
	switch status {
	case domain.TaskFailed:
		run(func(context.Context, string) error { return events.Terminal(errRefusing) })
	case domain.TaskAwaitingApproval:
		run(nil)
	case domain.TaskSucceeded:
		run(nil)
		_, err := b.control.Approve(b.ctx, b.workspace, task.ID, "ada", "")
		must(b.T, err)
		run(nil)
	case domain.TaskQueued, domain.TaskRunning, domain.TaskCancelled:
	}
	return b.wantStatus(task.ID, status)
}

// TestAgentTasks runs cases that share a database, without a worker: runs are called as a worker calls them.
func TestAgentTasks(t *testing.T) {
	b := setupTasks(t)
	for name, test := range map[string]func(*tasks){
		"each change that needs a worker is an event":        eachChangeThatNeedsAWorkerIsAnEvent,
		"one of two approvals counts":                        oneOfTwoApprovalsCounts,
		"duplicate and old events do nothing":                duplicateAndOldEventsDoNothing,
		"an earlier run writes nothing":                      anEarlierRunWritesNothing,
		"a run goes on after a lost answer":                  aRunGoesOnAfterALostAnswer,
		"a cancelled task stops after its step":              aCancelledTaskStopsAfterItsStep,
		"a step ends at its limit":                           aStepEndsAtItsLimit,
		"an event without its task is a dead letter":         anEventWithoutItsTaskIsADeadLetter,
		"a task is dispatched once and in its own workspace": aTaskIsDispatchedOnceAndInItsOwnWorkspace,
	} {
		b.run(name, test)
	}
}

// What a person does with a task publishes an event where it needs a worker; what is refused changes nothing.
func eachChangeThatNeedsAWorkerIsAnEvent(b *tasks) {
	do := map[string]func(uuid.UUID) (domain.AgentTask, error){
		"approve": func(id uuid.UUID) (domain.AgentTask, error) {
			return b.control.Approve(b.ctx, b.workspace, id, "ada", "")
		},
		"reject": func(id uuid.UUID) (domain.AgentTask, error) {
			return b.control.Reject(b.ctx, b.workspace, id, "ada", "no")
		},
		"cancel":     func(id uuid.UUID) (domain.AgentTask, error) { return b.control.Cancel(b.ctx, b.workspace, id, "ada") },
		"retry":      func(id uuid.UUID) (domain.AgentTask, error) { return b.control.Retry(b.ctx, b.workspace, id) },
		"redispatch": func(id uuid.UUID) (domain.AgentTask, error) { return b.control.Redispatch(b.ctx, b.workspace, id) },
	}
	for _, c := range []struct {
		from   domain.TaskStatus
		change string
		to     domain.TaskStatus // empty if it is refused
		events int               // published by the change
	}{
		{domain.TaskQueued, "cancel", domain.TaskCancelled, 0},
		{domain.TaskQueued, "redispatch", domain.TaskQueued, 1},
		{domain.TaskAwaitingApproval, "approve", domain.TaskQueued, 1},
		{domain.TaskAwaitingApproval, "reject", domain.TaskCancelled, 0},
		{domain.TaskAwaitingApproval, "cancel", domain.TaskCancelled, 0},
		{domain.TaskAwaitingApproval, "retry", "", 0},
		{domain.TaskFailed, "retry", domain.TaskQueued, 1},
		{domain.TaskSucceeded, "cancel", "", 0},
		{domain.TaskSucceeded, "retry", "", 0},
		{domain.TaskSucceeded, "redispatch", "", 0},
	} {
		task := b.advance(c.from)
		before, published := b.text(task.ID), len(b.dispatches(task.ID))
		changed, err := do[c.change](task.ID)
		_, refused := errors.AsType[*domain.TransitionError](err)
		switch {
		case c.to == "" && (!refused || b.text(task.ID) != before):
			b.Errorf("%s when %s: not refused (%v), or it changed", c.change, c.from, err)
		case c.to != "" && (err != nil || changed.Status != c.to):
			b.Errorf("%s when %s: it is %s, %v", c.change, c.from, changed.Status, err)
		}
		if n := len(b.dispatches(task.ID)) - published; n != c.events {
			b.Errorf("%s when %s: %d events were published", c.change, c.from, n)
		}
	}
}

func oneOfTwoApprovalsCounts(b *tasks) {
	task := b.advance(domain.TaskAwaitingApproval)
	if n := countOf(b.T, 4, func() (bool, error) {
		_, err := b.control.Approve(b.ctx, b.workspace, task.ID, "ada", "")
		if _, refused := errors.AsType[*domain.TransitionError](err); refused {
			return false, nil
		}
		return true, err
	}); n != 1 {
		b.Errorf("%d people approved", n)
	}
	b.wantDispatches(task.ID, 2)
}

// However many events say so, and whenever they come: a task is run once.
func duplicateAndOldEventsDoNothing(b *tasks) {
	task := b.dispatched(application.TaskRequest{})
	duplicate := func(when string, dispatch uuid.UUID) {
		b.Helper()
		before, s := b.text(task.ID), new(script)
		if err := b.runTask(task.ID, dispatch, s); err != nil || s.steps() != "" || b.text(task.ID) != before {
			b.Errorf("%s a duplicate did %q: %v", when, s.steps(), err)
		}
	}
	first := b.dispatches(task.ID)[0]
	s := &script{in: func(_ context.Context, step string) error {
		duplicate("while it runs, at "+step+",", uuid.New())
		return nil
	}}
	must(b.T, b.runTask(task.ID, first, s))
	duplicate("before the approval", first)
	_, err := b.control.Approve(b.ctx, b.workspace, task.ID, "ada", "")
	must(b.T, err)
	b.wantDispatches(task.ID, 2)
	must(b.T, b.runTask(task.ID, b.dispatches(task.ID)[1], s))
	duplicate("at the end", first)
	duplicate("at the end", uuid.New())
	if b.wantStatus(task.ID, domain.TaskSucceeded); s.steps() != "one two go three done" {
		b.Errorf("ran %s", s.steps())
	}
}

// A run that does not know that another of its event has followed it: its number tells, whatever it writes. The other
// does that step again and none before it.
func anEarlierRunWritesNothing(b *tasks) {
	for at, c := range map[string]struct {
		ends error // the earlier run, with that instead
		next string
	}{
		stepOne: {nil, "one two go"},
		stepTwo: {errRefusing, "two go"},
		gateGo:  {nil, "go"},
	} {
		task := b.dispatched(application.TaskRequest{})
		dispatch := b.dispatches(task.ID)[0]
		g, held := b.newGate(), b.newGate()
		zombie, next := standing(at, g), standing(at, held)
		stand := zombie.in
		zombie.in = func(ctx context.Context, step string) error {
			if err := stand(ctx, step); step != at {
				return err
			}
			return c.ends
		}
		over, followed := make(chan error, 1), make(chan error, 1)
		go func() { over <- b.runTask(task.ID, dispatch, zombie) }()
		g.awaitEntered(b.T)
		go func() { followed <- b.runTask(task.ID, dispatch, next) }()
		held.awaitEntered(b.T)
		before := b.text(task.ID)
		g.letOn()
		if err := within(b.T, over); err != nil {
			b.Errorf("at %s the earlier run is told %v: its event would be tried again", at, err)
		}
		if now := b.text(task.ID); now != before {
			b.Errorf("at %s it changed\n%s to\n%s", at, before, now)
		}
		held.letOn()
		must(b.T, within(b.T, followed))
		if b.wantStatus(task.ID, domain.TaskAwaitingApproval); next.steps() != c.next {
			b.Errorf("at %s the other did %q, want %q", at, next.steps(), c.next)
		}
	}
}

// A run whose write is committed, but does not hear of it, writes again: that changes nothing, costs no try, and strands
// no task.
func aRunGoesOnAfterALostAnswer(b *tasks) {
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
		s := &script{in: func(_ context.Context, step string) error {
			if step != c.at {
				return nil
			}
			if c.cause != nil {
				stop(c.cause)
			}
			return errRefusing
		}}
		conclude, err := application.NewRunTask(forgetful, application.Executors{scriptName: s}, time.Minute, time.Now).Run(ctx, b.workspace, task.ID, dispatch)
		stop(nil)
		want := c.cause
		if want == nil {
			want = errRefusing
		}
		// of an executor's error only the text is kept
		if conclude != nil || err == nil || !strings.Contains(err.Error(), want.Error()) {
			b.Fatalf("%s: it ends with %t, %v: the event would be delivered", name, conclude != nil, err)
		}
		if task = b.wantStatus(task.ID, domain.TaskQueued); task.Tries != c.tries || writes <= c.lost {
			b.Errorf("%s: after %d writes it has %d tries, want %d", name, writes, task.Tries, c.tries)
		}
		must(b.T, b.runTask(task.ID, dispatch, &script{}))
		b.wantSteps(b.wantStatus(task.ID, domain.TaskAwaitingApproval), stepOne, stepTwo)
		b.wantDispatches(task.ID, 1)
	}
}

func aCancelledTaskStopsAfterItsStep(b *tasks) {
	for at, recorded := range map[string][]string{stepOne: {stepOne}, gateGo: {stepOne, stepTwo}} {
		task := b.dispatched(application.TaskRequest{})
		s := &script{in: func(_ context.Context, step string) error {
			if step == at {
				asked, err := b.control.Cancel(b.ctx, b.workspace, task.ID, "ada")
				if err != nil || asked.Status != domain.TaskRunning || asked.Cancellation.RequestedBy != "ada" {
					b.Errorf("%+v, %v", asked, err)
				}
			}
			return nil
		}}
		must(b.T, b.runTask(task.ID, b.dispatches(task.ID)[0], s))
		b.wantSteps(b.wantStatus(task.ID, domain.TaskCancelled), recorded...)
		if got := s.steps(); !strings.HasSuffix(got, at) {
			b.Errorf("it went on: %s", got)
		}
	}
}

func aStepEndsAtItsLimit(b *tasks) {
	task := b.dispatched(application.TaskRequest{})
	s := &script{in: func(ctx context.Context, _ string) error { <-ctx.Done(); return ctx.Err() }}
	_, err := app.NewRunTask(b.uow, application.Executors{scriptName: s}, time.Millisecond).Run(b.ctx, b.workspace, task.ID, b.dispatches(task.ID)[0])
	if err == nil || !strings.Contains(err.Error(), "the step did not end within 1ms: ") || b.wantStatus(task.ID, domain.TaskQueued).Tries != 1 {
		b.Errorf("it ended with %v", err)
	}
}

func anEventWithoutItsTaskIsADeadLetter(b *tasks) {
	task := b.dispatched(application.TaskRequest{}).ID
	dispatchOf := func(id uuid.UUID) string { return fmt.Sprintf(`{"agent_task_id": %q, "unknown": 1}`, id) }
	runner := platformevents.AgentTaskRunner(app.NewRunTask(b.uow, nil, time.Minute), newTasks)
	for name, c := range map[string]struct {
		payload   string
		workspace uuid.NullUUID
		says      string
	}{
		"unknown":           {dispatchOf(someEvent), b.workspace, "agent task " + someEvent.String() + ", workspace " + b.workspace.UUID.String() + ": there is no such agent task in this workspace"},
		"another workspace": {dispatchOf(task), aWorkspace(), "publish the event with p_workspace_id of its task"},
		"no workspace":      {dispatchOf(task), uuid.NullUUID{}, "agent task " + task.String() + ", no workspace: there is no such"},
		"misspelt":          {`{"agent_task": "x"}`, b.workspace, "payload of agent.task.dispatched: agent_task_id is missing"},
		"no id":             {`{"agent_task_id": "x"}`, b.workspace, "payload of agent.task.dispatched"},
	} {
		_, err := runner.Execute(b.ctx, events.Envelope{EventType: platform.AgentTaskDispatchedType, WorkspaceID: c.workspace, Payload: json.RawMessage(c.payload)})
		_, terminal := errors.AsType[*events.TerminalError](err)
		_, payload := errors.AsType[*events.PayloadError](err)
		if err == nil || !terminal && !payload || !strings.Contains(err.Error(), c.says) {
			b.Errorf("%s: %v", name, err)
		}
	}
}

var someEvent = uuid.MustParse("11111111-1111-4111-8111-111111111111")

func aTaskIsDispatchedOnceAndInItsOwnWorkspace(b *tasks) {
	first := b.dispatched(application.TaskRequest{ID: someEvent})
	again, err := b.dispatch.Dispatch(b.ctx, b.workspace, application.TaskRequest{ID: someEvent, Executor: scriptName, Input: json.RawMessage(`{"other": 1}`)})
	must(b.T, err)
	if again.Conversation != first.Conversation || len(b.dispatches(someEvent)) != 1 {
		b.Errorf("twice: %+v", again)
	}
	next := b.dispatched(application.TaskRequest{Conversation: first.Conversation, Retention: 24 * time.Hour})
	if next.Conversation != first.Conversation || next.ID == first.ID || !next.RetainUntil.Equal(next.CreatedAt.Add(24*time.Hour)) {
		b.Errorf("%+v", next)
	}
	proactive := b.dispatched(application.TaskRequest{Proactive: true})
	if kind := one[string](b.bundle, "select kind from platform.conversations where conversation_id = $1", proactive.Conversation); kind != "proactive" {
		b.Errorf("it is %s", kind)
	}
	elsewhere := aWorkspace()
	before := one[int](b.bundle, "select (select count(*) from core.outbox) + (select count(*) from platform.conversations)")
	input := json.RawMessage("{}")
	for name, c := range map[string]struct {
		workspace uuid.NullUUID
		request   application.TaskRequest
		says      string
	}{
		"unknown executor":            {b.workspace, application.TaskRequest{Executor: "scrip"}, `there is no executor "scrip": choose among card_briefing, script`},
		"input that does not fit":     {b.workspace, application.TaskRequest{Executor: application.CardBriefingExecutor, Input: json.RawMessage(`{"card": "x"}`)}, `a card briefing takes {"card_id": "..."}: json: unknown field "card"`},
		"input without card":          {b.workspace, application.TaskRequest{Executor: application.CardBriefingExecutor, Input: json.RawMessage(`{}`)}, "card_id is missing"},
		"input that cannot be stored": {b.workspace, application.TaskRequest{Executor: scriptName, Input: json.RawMessage(`{"a": "\u0000"}`)}, "input: "},
		"no such conversation":        {b.workspace, application.TaskRequest{Executor: scriptName, Input: input, Conversation: someEvent}, "there is no such conversation in this workspace"},
		"a foreign conversation":      {elsewhere, application.TaskRequest{Executor: scriptName, Input: input, Conversation: first.Conversation}, "there is no such conversation in this workspace"},
		"a foreign id":                {elsewhere, application.TaskRequest{Executor: scriptName, Input: input, ID: someEvent}, "the id is taken"},
		"a trigger that comes late":   {b.workspace, application.TaskRequest{Executor: scriptName, Input: input, Conversation: first.Conversation, Trigger: uuid.NullUUID{UUID: someEvent, Valid: true}}, "only a new conversation is proactive"},
	} {
		if _, err := b.dispatch.Dispatch(b.ctx, c.workspace, c.request); err == nil || !strings.Contains(err.Error(), c.says) {
			b.Errorf("%s: %v", name, err)
		}
	}
	if now := one[int](b.bundle, "select (select count(*) from core.outbox) + (select count(*) from platform.conversations)"); now != before {
		b.Errorf("refused, but %d rows were written", now-before)
	}
	if _, err := b.control.Find(b.ctx, elsewhere, someEvent); !errors.Is(err, application.ErrNoTask) {
		b.Errorf("another workspace finds the task: %v", err)
	}
	if _, err := b.control.Cancel(b.ctx, elsewhere, someEvent, "eve"); !errors.Is(err, application.ErrNoTask) {
		b.Errorf("another workspace cancels the task: %v", err)
	}
}

// TestAgentTaskWorker runs cases that share a worker.
func TestAgentTaskWorker(t *testing.T) {
	b := setupTasks(t)
	s := &script{}
	// dispatches a task because of an event
	failures := 2
	dispatcher := handler("platform.test_dispatcher", func(ctx context.Context, tx events.Tx, e events.Envelope) error {
		catalog := application.TaskCatalog{scriptName: func(json.RawMessage) error { return nil }}
		_, err := app.NewDispatchTaskIn(tx, b.publishing.Publisher(tx), catalog).Dispatch(ctx, e.WorkspaceID, application.TaskRequest{
			Executor: scriptName, Input: json.RawMessage("{}"), Trigger: uuid.NullUUID{UUID: e.EventID, Valid: true},
		})
		if failures--; err == nil && failures >= 0 {
			return errRefusing
		}
		return err
	})
	l := b.worker(s, subscription(dispatcher))
	for _, c := range []struct {
		name string
		test func(*tasks, *listening, *script)
	}{
		{"a briefing is delivered once it is approved", aBriefingIsDeliveredOnceItIsApproved},
		{"what retrying cannot fix fails the task and not its event", whatRetryingCannotFixFailsTheTask},
		{"a proactive conversation knows its trigger", aProactiveConversationKnowsItsTrigger},
		{"a stop hands a task back", aStopHandsATaskBack}, // the last one: of the worker
	} {
		s.begin(nil)
		b.run(c.name, func(b *tasks) { c.test(b, l.in(b.bundle), s) })
	}
}

// The whole life of a task that ships, with an approval.
func aBriefingIsDeliveredOnceItIsApproved(b *tasks, l *listening, _ *script) {
	_, err := app.NewPublishCard(b.uow).Publish(b.ctx, b.workspace, card(b.T, "harbour", "The Harbour of Veyra"))
	must(b.T, err)
	task := b.dispatched(application.TaskRequest{
		Executor: application.CardBriefingExecutor, Input: json.RawMessage(`{"card_id": "harbour"}`),
	})
	if task.Status != domain.TaskQueued {
		b.Fatalf("it is %s", task.Status)
	}
	l.delivered(1)
	task = b.wantStatus(task.ID, domain.TaskAwaitingApproval)
	b.wantSteps(task, application.BriefingLookUp, application.BriefingDraft)
	if q := task.Approval.Question; !strings.HasPrefix(q, `Deliver the briefing on "The Harbour of Veyra" (card harbour, version 1, `) {
		b.Fatalf("it asks %q", q)
	}
	if files := b.briefings(); len(files) > 0 {
		b.Fatalf("delivered without approval: %v", files)
	}
	_, err = app.NewPublishCard(b.uow).Publish(b.ctx, b.workspace, card(b.T, "harbour", "Another")) // after the draft
	must(b.T, err)
	task, err = b.control.Approve(b.ctx, b.workspace, task.ID, "ada", "fine")
	must(b.T, err)
	if task.Status != domain.TaskQueued {
		b.Fatalf("it is %s", task.Status)
	}
	l.delivered(1)
	task = b.wantStatus(task.ID, domain.TaskSucceeded)
	b.wantSteps(task, application.BriefingLookUp, application.BriefingDraft, application.BriefingDeliver)
	b.wantDispatches(task.ID, 2)
	files := b.briefings()
	text := files[task.ID.String()+".md"]
	for _, want := range []string{"# The Harbour of Veyra\n\nCard harbour, version 1.\n", "\n- z: 1\n", "\nIdempotency key: " + task.ID.String() + "/deliver\n"} {
		if !strings.Contains(text, want) {
			b.Errorf("%q is missing in\n%s", want, text)
		}
	}
	if len(files) != 1 {
		b.Errorf("files %v", files)
	}
	var result struct {
		CardID      string `json:"card_id"`
		CardVersion int64  `json:"card_version"`
		DeliveredTo string `json:"delivered_to"`
	}
	must(b.T, json.Unmarshal(task.Result, &result))
	if result.CardID != "harbour" || result.CardVersion != 1 || result.DeliveredTo != filepath.Join(b.dir, task.ID.String()+".md") {
		b.Errorf("result %s", task.Result)
	}
	if kind := one[string](b.bundle, `select kind || coalesce(trigger_event_id::text, '') from platform.conversations
		where conversation_id = $1 and workspace_id = $2`, task.Conversation, b.workspace); kind != "reactive" {
		b.Errorf("the conversation is %s", kind)
	}
	// each transition that needs a worker is an event of its own
	if n := one[int](b.bundle, `select count(distinct idempotency_key) from core.outbox where event_type = $1
		and idempotency_key = id::text and channel = 'outbox_gen_1_agents' and source = 'platform' and workspace_id = $2`,
		platform.AgentTaskDispatchedType, b.workspace); n != 2 {
		b.Errorf("%d keys of 2 events", n)
	}
}

// A step that fails is tried again by itself; what retrying cannot fix fails the task, and the event is delivered: that
// is an outcome.
func whatRetryingCannotFixFailsTheTask(b *tasks, l *listening, s *script) {
	for name, c := range map[string]struct {
		in       func(tries int) error
		status   domain.TaskStatus
		reason   string
		attempts int // of the event
	}{
		"twice": {in: func(tries int) error {
			if tries <= 2 {
				return errRefusing
			}
			return nil
		}, status: domain.TaskAwaitingApproval, attempts: 3},
		"for good": {in: func(int) error { return events.Terminal(errRefusing) }, status: domain.TaskFailed, reason: "refusing", attempts: 1},
		"always":   {in: func(int) error { return errRefusing }, status: domain.TaskFailed, reason: "refusing", attempts: domain.MaxTaskTries},
		"by panic": {in: func(int) error { panic("no") }, status: domain.TaskFailed,
			reason: "given up after 5 tries; its workers died or were stopped: see event ", attempts: domain.MaxTaskTries + 1},
	} {
		tries := 0 // of one task, one after the other
		s.begin(func(_ context.Context, step string) error {
			if step != stepTwo {
				return nil
			}
			tries++
			return c.in(tries)
		})
		task := b.dispatched(application.TaskRequest{})
		l.until(dispatch.Delivered)
		b.wantRow(b.dispatches(task.ID)[0], "delivered", c.attempts)
		if task = b.wantStatus(task.ID, c.status); !strings.Contains(task.FailureReason, c.reason) {
			b.Errorf("%s: it failed because %q, want %q", name, task.FailureReason, c.reason)
		}
		if c.attempts != 1 {
			continue
		}
		_, err := b.control.Retry(b.ctx, b.workspace, task.ID)
		must(b.T, err)
		l.until(dispatch.Delivered)
		if ran := strings.Count(s.steps(), stepOne); b.find(task.ID).Status != domain.TaskFailed || ran != 1 {
			b.Errorf("%s: step one ran %d times", name, ran)
		}
	}
}

// An event may be the reason for a task: it, its proactive conversation and its event are there exactly when the
// event is recorded as handled.
func aProactiveConversationKnowsItsTrigger(b *tasks, l *listening, _ *script) {
	e := event(1)
	e.WorkspaceID = b.workspace
	b.publish(e)
	l.until(dispatch.Delivered)
	l.delivered(1)
	if got := one[string](b.bundle, `select string_agg(concat_ws(' ', kind, trigger_event_id, status), ', ') from platform.agent_tasks
		join platform.conversations using (conversation_id)`); got != "proactive "+e.EventID.String()+" awaiting_approval" {
		b.Fatalf("tasks: %s", got)
	}
}

// A worker that stops hands the task back at no cost, and keeps the step that was just done.
func aStopHandsATaskBack(b *tasks, l *listening, s *script) {
	g := b.newGate()
	s.begin(func(ctx context.Context, step string) error {
		if step != stepTwo {
			return nil
		}
		g.entered <- struct{}{}
		<-ctx.Done()
		return nil // done at the last moment
	})
	task := b.dispatched(application.TaskRequest{})
	g.awaitEntered(b.T)
	l.stopNow()
	task = b.wantStatus(task.ID, domain.TaskQueued)
	b.wantSteps(task, stepOne, stepTwo)
	if task.Tries != 0 {
		b.Fatalf("it has %d tries", task.Tries)
	}
	b.wantRow(b.dispatches(task.ID)[0], "pending", 0)
	next := &script{}
	must(b.T, b.runTask(task.ID, b.dispatches(task.ID)[0], next))
	if next.steps() != "go" {
		b.Errorf("the second did %s", next.steps())
	}
}
