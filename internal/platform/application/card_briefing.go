package application

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"

	jsonv2 "github.com/go-json-experiment/json"
	"github.com/google/uuid"

	"spectral/internal/core/events"
)

// CardBriefingExecutor is the name of [CardBriefing] in tasks.
const CardBriefingExecutor = "card_briefing"

// The steps and the gate of a card briefing, in order.
const (
	BriefingLookUp  = "look_up_card"
	BriefingDraft   = "draft"
	BriefingGate    = "delivery"
	BriefingDeliver = "deliver"
)

// ErrNoCard means that there is no such card.
var ErrNoCard = errors.New("there is no such card in this workspace")

// BriefedCard is a version of a card as its owner returns it.
type BriefedCard struct {
	CardID  string `json:"card_id"`
	Version int64  `json:"version"`
	Title   string `json:"title"`
	Summary string `json:"summary"`
}

// Briefing is a document to deliver.
type Briefing struct {
	Task uuid.UUID
	Text string // contains the idempotency key
}

// Briefings delivers briefings outside the database. A second delivery replaces the first.
type Briefings interface {
	// Deliver returns where the briefing is.
	Deliver(ctx context.Context, briefing Briefing) (place string, err error)
}

// CardBriefing is an [Executor] that reads a card, drafts a briefing about it, and delivers it when a person has
// approved.
type CardBriefing struct {
	// Card returns the current version of a card from the context that owns it, or [ErrNoCard].
	Card      func(ctx context.Context, workspace uuid.NullUUID, cardID string) (BriefedCard, error)
	Briefings Briefings
}

// drafted and briefed are the results of the last two steps; the last is that of the task.
type (
	drafted struct {
		Text string `json:"text"`
	}
	briefed struct {
		CardVersion int64  `json:"card_version"`
		DeliveredTo string `json:"delivered_to"`
	}
)

// CheckCardBriefing checks the input of a card briefing: {"card_id": "..."}.
func CheckCardBriefing(input json.RawMessage) error {
	_, err := parseCardBriefing(input)
	return err
}

// parseCardBriefing returns the card's id.
func parseCardBriefing(input json.RawMessage) (cardID string, err error) {
	var parsed struct {
		CardID string `json:"card_id"`
	}
	err = events.Unmarshal(input, &parsed, jsonv2.RejectUnknownMembers(true))
	if err == nil && parsed.CardID == "" {
		err = errors.New("card_id is missing")
	}
	if err != nil {
		return "", fmt.Errorf("a card briefing takes {\"card_id\": \"...\"}: %w", err)
	}
	return parsed.CardID, nil
}

// Advance implements [Executor].
func (b *CardBriefing) Advance(ctx context.Context, work Work) (Advance, error) {
	var card BriefedCard
	var draft drafted
	cardID, err := parseCardBriefing(work.Input)
	isFound, findErr := read(work, BriefingLookUp, &card)
	isDrafted, draftErr := read(work, BriefingDraft, &draft)
	delivered, isDelivered := work.Result(BriefingDeliver)
	if err := errors.Join(err, findErr, draftErr); err != nil {
		return Advance{}, events.Terminal(err)
	}
	switch {
	case !isFound:
		// recorded, so the briefing is about one version even if the card changes before the approval
		card, err := b.Card(ctx, work.Workspace, cardID)
		if errors.Is(err, ErrNoCard) {
			err = events.Terminal(fmt.Errorf("%w: publish it, then dispatch the task again", err))
		}
		if err != nil {
			return Advance{}, fmt.Errorf("look up card %s: %w", cardID, err)
		}
		return stepDone(BriefingLookUp, card)
	case !isDrafted:
		return stepDone(BriefingDraft, drafted{Text: write(card, work.Key(BriefingDeliver))})
	case !work.Approved(BriefingGate):
		return NeedsApproval(BriefingGate, fmt.Sprintf("Deliver the briefing on %q (card %s, version %d, %d bytes)?",
			card.Title, card.CardID, card.Version, len(draft.Text))), nil
	case !isDelivered:
		place, err := b.Briefings.Deliver(ctx, Briefing{Task: work.Task, Text: draft.Text})
		if err != nil {
			return Advance{}, fmt.Errorf("deliver the briefing: %w", err)
		}
		return stepDone(BriefingDeliver, briefed{card.Version, place})
	}
	return TaskDone(delivered), nil
}

// write drafts the text. The same card gives the same text, so a second delivery changes nothing.
func write(card BriefedCard, key string) string {
	return fmt.Sprintf("# %s\n\nCard %s, version %d.\n\n%s\n\nIdempotency key: %s\n", card.Title, card.CardID,
		card.Version, card.Summary, key)
}

// read decodes the result of a finished step.
func read(work Work, step string, result any) (done bool, err error) {
	text, done := work.Result(step)
	if !done {
		return false, nil
	}
	if err := events.Unmarshal(text, result); err != nil {
		return false, fmt.Errorf("result of step %s: %w", step, err)
	}
	return true, nil
}

func stepDone(step string, result any) (Advance, error) {
	var text bytes.Buffer
	encoder := json.NewEncoder(&text)
	encoder.SetEscapeHTML(false)
	if err := encoder.Encode(result); err != nil {
		return Advance{}, events.Terminal(fmt.Errorf("encode a result: %w", err))
	}
	return StepDone(step, bytes.TrimSpace(text.Bytes())), nil
}
