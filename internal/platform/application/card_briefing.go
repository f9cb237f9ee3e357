package application

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

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

// Bounds of a briefing.
const (
	maxBriefedSummary    = 4000 // bytes
	maxBriefedAttributes = 50
	maxBriefedName       = 100 // bytes of an attribute's name
	maxBriefedValue      = 200 // and of its value
)

// ErrNoCard means that there is no such card.
var ErrNoCard = errors.New("there is no such card in this workspace")

// BriefedCard is a card as its owner returns it.
type BriefedCard struct {
	CardID     string
	Version    int64
	Title      string
	Summary    string
	Attributes json.RawMessage // a JSON object
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

// cardBriefingInput is the input of a task.
type cardBriefingInput struct {
	CardID string `json:"card_id"`
}

// lookedUp, drafted and briefed are the results of the steps; the last is that of the task.
type (
	lookedUp struct {
		CardID  string `json:"card_id"`
		Version int64  `json:"version"`
		Title   string `json:"title"`
		Summary string `json:"summary"`
		Facts   []fact `json:"facts"`
	}
	fact struct {
		Name  string `json:"name"`
		Value string `json:"value"` // as JSON
	}
	drafted struct {
		Text string `json:"text"`
	}
	briefed struct {
		CardID      string `json:"card_id"`
		CardVersion int64  `json:"card_version"`
		DeliveredTo string `json:"delivered_to"`
		Key         string `json:"key"`
	}
)

// CheckCardBriefing checks the input of a card briefing: {"card_id": "..."}.
func CheckCardBriefing(input json.RawMessage) error {
	_, err := parseCardBriefing(input)
	return err
}

func parseCardBriefing(input json.RawMessage) (cardBriefingInput, error) {
	var parsed cardBriefingInput
	decoder := json.NewDecoder(bytes.NewReader(input))
	decoder.DisallowUnknownFields()
	err := decoder.Decode(&parsed)
	if err == nil && parsed.CardID == "" {
		err = errors.New("card_id is missing")
	}
	if err != nil {
		return parsed, fmt.Errorf("a card briefing takes {\"card_id\": \"...\"}: %w", err)
	}
	return parsed, nil
}

// Advance implements [Executor].
func (b *CardBriefing) Advance(ctx context.Context, work Work) (Advance, error) {
	var card lookedUp
	var draft drafted
	input, err := parseCardBriefing(work.Input)
	isFound, findErr := read(work, BriefingLookUp, &card)
	isDrafted, draftErr := read(work, BriefingDraft, &draft)
	delivered, isDelivered := work.Result(BriefingDeliver)
	if err := errors.Join(err, findErr, draftErr); err != nil {
		return Advance{}, events.Terminal(err)
	}
	switch {
	case !isFound:
		return b.lookUp(ctx, work, input.CardID)
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
		return stepDone(BriefingDeliver, briefed{CardID: card.CardID, CardVersion: card.Version, DeliveredTo: place,
			Key: work.Key(BriefingDeliver)})
	}
	return TaskDone(delivered), nil
}

// lookUp records what the briefing needs of the card, so the briefing is about one version even if the card changes
// before the approval.
func (b *CardBriefing) lookUp(ctx context.Context, work Work, cardID string) (Advance, error) {
	card, err := b.Card(ctx, work.Workspace, cardID)
	if errors.Is(err, ErrNoCard) {
		return Advance{}, events.Terminal(fmt.Errorf("card %s: %w: publish it, then dispatch the task again", cardID, err))
	}
	if err != nil {
		return Advance{}, fmt.Errorf("look up card %s: %w", cardID, err)
	}
	var attributes map[string]json.RawMessage
	if err := json.Unmarshal(card.Attributes, &attributes); err != nil && len(card.Attributes) > 0 {
		return Advance{}, events.Terminal(fmt.Errorf("attributes of card %s: %w", cardID, err))
	}
	found := lookedUp{
		CardID: card.CardID, Version: card.Version, Title: card.Title, Summary: clip(card.Summary, maxBriefedSummary),
		Facts: []fact{},
	}
	for _, name := range slices.Sorted(maps.Keys(attributes)) {
		if len(found.Facts) == maxBriefedAttributes {
			break
		}
		found.Facts = append(found.Facts, fact{Name: clip(name, maxBriefedName),
			Value: clip(string(attributes[name]), maxBriefedValue)})
	}
	return stepDone(BriefingLookUp, found)
}

// write drafts the text. The same card gives the same text, so a second delivery changes nothing.
func write(card lookedUp, key string) string {
	var text strings.Builder
	fmt.Fprintf(&text, "# %s\n\nCard %s, version %d.\n", card.Title, card.CardID, card.Version)
	if card.Summary != "" {
		fmt.Fprintf(&text, "\n%s\n", card.Summary)
	}
	if len(card.Facts) > 0 {
		text.WriteString("\n")
	}
	for _, f := range card.Facts {
		fmt.Fprintf(&text, "- %s: %s\n", f.Name, f.Value)
	}
	fmt.Fprintf(&text, "\nIdempotency key: %s\n", key)
	return text.String()
}

// read decodes the result of a finished step.
func read(work Work, step string, result any) (done bool, err error) {
	text, done := work.Result(step)
	if !done {
		return false, nil
	}
	if err := json.Unmarshal(text, result); err != nil {
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

// clip cuts s to limit bytes, between runes.
func clip(s string, limit int) string {
	if len(s) <= limit {
		return s
	}
	return strings.ToValidUTF8(s[:limit], "") + "…"
}
