package application

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"spectral/internal/core/events"
	"spectral/internal/platform/domain"
)

// cards returns one card, or an error.
func cards(card BriefedCard, err error) func(context.Context, uuid.NullUUID, string) (BriefedCard, error) {
	return func(context.Context, uuid.NullUUID, string) (BriefedCard, error) { return card, err }
}

// shelf records delivered briefings.
type shelf struct{ briefings []Briefing }

func (s *shelf) Deliver(_ context.Context, b Briefing) (string, error) {
	s.briefings = append(s.briefings, b)
	return "the shelf", nil
}

// advance does one step of a task, and records it if it is done.
func advance(t *testing.T, executor Executor, task *domain.AgentTask) Advance {
	t.Helper()
	a, err := executor.Advance(t.Context(), Work{Task: task.ID, Input: task.Input, Run: task.Run, task: task})
	if err != nil {
		t.Fatal(err)
	}
	if a.step != "" {
		err := errors.Join(events.ValidatePayload(a.result), task.RecordStep(task.Run, a.step, a.result, time.Now()))
		if err != nil {
			t.Fatalf("step %s: %v", a.step, err)
		}
	}
	return a
}

func briefingTask(t *testing.T) *domain.AgentTask {
	t.Helper()
	task, err := domain.NewAgentTask(uuid.New(), uuid.New(), CardBriefingExecutor, json.RawMessage(`{"card_id": "c"}`),
		time.Now())
	if err != nil {
		t.Fatal(err)
	}
	task.Start(uuid.New(), time.Now())
	return task
}

// TestBriefingOfTheLargestCardCanBeDelivered also compares two drafts of it.
func TestBriefingOfTheLargestCardCanBeDelivered(t *testing.T) {
	t.Parallel()
	card := BriefedCard{CardID: "c", Version: 7, Title: strings.Repeat("\"", 500), Summary: strings.Repeat("\n<\"é", 4000)}
	var texts []string
	for range 2 {
		out := &shelf{}
		executor := &CardBriefing{cards(card, nil), out}
		task := briefingTask(t)
		task.ID = uuid.MustParse("11111111-1111-4111-8111-111111111111")
		advance(t, executor, task)
		advance(t, executor, task)
		if a := advance(t, executor, task); a.gate != BriefingGate || len(out.briefings) > 0 {
			t.Fatalf("after the draft: %+v", a)
		}
		task.Approval = &domain.Approval{Gate: BriefingGate, ApprovedBy: "ada"}
		advance(t, executor, task)
		const place = `"delivered_to":"the shelf"`
		if a := advance(t, executor, task); a.step+a.gate != "" || !strings.Contains(string(a.result), place) {
			t.Fatalf("at the end: %+v", a)
		}
		texts = append(texts, out.briefings[0].Text)
	}
	if texts[0] != texts[1] || !strings.Contains(texts[0], card.Summary) {
		t.Errorf("the first says\n%.500s\nthe second\n%.500s", texts[0], texts[1])
	}
}

func TestBriefingWithoutCardFails(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		err      error
		terminal bool
	}{
		"no card":   {ErrNoCard, true},
		"no answer": {context.DeadlineExceeded, false},
	} {
		task := briefingTask(t)
		executor := &CardBriefing{cards(BriefedCard{}, c.err), &shelf{}}
		_, err := executor.Advance(t.Context(), Work{Task: task.ID, Input: task.Input, task: task})
		if err == nil || terminal(err) != c.terminal {
			t.Errorf("%s: %v", name, err)
		}
	}
	for input, fits := range map[string]bool{`{"card_id": "c"}`: true, `{"card_id": ""}`: false, `{}`: false,
		`{"card_id": "c", "x": 1}`: false, `{"card_id": 1}`: false} {
		if err := CheckCardBriefing(json.RawMessage(input)); (err == nil) != fits {
			t.Errorf("%s: %v", input, err)
		}
	}
}
