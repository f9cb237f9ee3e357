package demo

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"

	jsonv2 "github.com/go-json-experiment/json"
	jsonv1 "github.com/go-json-experiment/json/v1"

	"spectral/internal/core/events"
	"spectral/internal/worlds/domain"
)

// card is a card to publish, or the reason why a line of the input is not a card.
type card struct {
	domain.WorldModelCard
	line int // of the input, from 1
	err  error
}

// madeUp returns an endless sequence of cards.
func madeUp() iter.Seq[card] {
	subjects := []string{
		"Harbour", "Observatory", "Salt Road", "Orchard", "Tide Mill", "Archive", "Glassworks", "Ferry",
	}
	places := []string{"Veyra", "Old Karst", "Lumen Bay", "the Upper Reach", "Saint Orrin", "the Delta"}
	return func(yield func(card) bool) {
		for i := 0; ; i++ {
			title := fmt.Sprintf("The %s of %s", subjects[i%len(subjects)], places[i/len(subjects)%len(places)])
			c, err := domain.NewWorldModelCard(fmt.Sprintf("card-%06d", i+1), title,
				"What the world model knows about "+title+".",
				json.RawMessage(fmt.Sprintf(`{"confidence": %.2f, "sources": %d}`, 0.5+float64(i%50)/100, 1+i%7)))
			if !yield(card{WorldModelCard: c, err: err}) {
				return
			}
		}
	}
}

// maxLineBytes bounds a line of the input. The payload has a tighter bound.
const maxLineBytes = 2 * events.MaxPayloadBytes

// read returns the cards of NDJSON input, one per line, and skips blank lines. A line that is not a card is returned
// with its error. A read error, or a line longer than maxLineBytes, ends the sequence.
func read(input io.Reader) iter.Seq[card] {
	return func(yield func(card) bool) {
		lines, n := bufio.NewScanner(input), 1
		lines.Buffer(nil, maxLineBytes)
		for ; lines.Scan(); n++ {
			line := lines.Bytes()
			if len(bytes.TrimSpace(line)) == 0 {
				continue
			}
			if c, err := parse(line); !yield(card{WorldModelCard: c, line: n, err: err}) {
				return
			}
		}
		if err := lines.Err(); err != nil {
			if errors.Is(err, bufio.ErrTooLong) {
				err = fmt.Errorf("is longer than %d bytes, and what follows it was not read", maxLineBytes)
			}
			yield(card{line: n, err: err})
		}
	}
}

func parse(line []byte) (domain.WorldModelCard, error) {
	// Validate before decoding, which would replace characters that cannot be stored.
	if err := events.ValidatePayload(line); err != nil {
		if refusal, ok := errors.AsType[*events.Refusal](err); ok {
			err = errors.New(refusal.Problem())
		}
		return domain.WorldModelCard{}, err
	}
	var fields struct {
		CardID     string          `json:"card_id"`
		Title      string          `json:"title"`
		Summary    string          `json:"summary"`
		Attributes json.RawMessage `json:"attributes"`
	}
	if err := events.Unmarshal(line, &fields, jsonv2.RejectUnknownMembers(true)); err != nil {
		if mistyped, ok := errors.AsType[*jsonv1.UnmarshalTypeError](err); ok {
			err = fmt.Errorf("%s must be a %s, not a %s", mistyped.Field, mistyped.Type, mistyped.Value)
		} else {
			err = fmt.Errorf("%w (a line is {\"card_id\", \"title\", \"summary\", \"attributes\"})", err)
		}
		return domain.WorldModelCard{}, err
	}
	return domain.NewWorldModelCard(fields.CardID, fields.Title, fields.Summary, fields.Attributes)
}
