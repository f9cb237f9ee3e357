package domain

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Bounds of a card, in bytes.
const (
	MaxCardIDBytes  = 200
	MaxTitleBytes   = 500
	MaxSummaryBytes = 20_000
)

// WorldModelCard describes one subject of a world model. Make it with [NewWorldModelCard].
type WorldModelCard struct {
	id         string
	title      string
	summary    string
	attributes json.RawMessage
}

// NewWorldModelCard checks a card. Attributes is a JSON object; empty means none.
func NewWorldModelCard(id, title, summary string, attributes json.RawMessage) (WorldModelCard, error) {
	if len(attributes) == 0 || string(attributes) == "null" {
		attributes = json.RawMessage("{}")
	}
	err := errors.Join(
		checkText("card_id", id, 1, MaxCardIDBytes),
		checkText("title", title, 1, MaxTitleBytes),
		checkText("summary", summary, 0, MaxSummaryBytes),
	)
	if trimmed := bytes.TrimSpace(attributes); !json.Valid(attributes) || len(trimmed) == 0 || trimmed[0] != '{' {
		err = errors.Join(err, errors.New("attributes must be a JSON object"))
	}
	if err != nil {
		return WorldModelCard{}, err
	}
	return WorldModelCard{id: id, title: title, summary: summary, attributes: attributes}, nil
}

// ID identifies the card within its workspace.
func (c WorldModelCard) ID() string { return c.id }

// Title is one line.
func (c WorldModelCard) Title() string { return c.title }

// Summary is prose, possibly empty.
func (c WorldModelCard) Summary() string { return c.summary }

// Attributes is a JSON object.
func (c WorldModelCard) Attributes() json.RawMessage { return c.attributes }

func checkText(field, s string, shortest, longest int) error {
	switch {
	case len(s) < shortest || (shortest > 0 && strings.TrimSpace(s) == ""):
		return fmt.Errorf("%s is missing", field)
	case len(s) > longest:
		return fmt.Errorf("%s has %d bytes, the limit is %d", field, len(s), longest)
	case !utf8.ValidString(s):
		return fmt.Errorf("%s is not valid UTF-8", field)
	case strings.ContainsFunc(s, func(r rune) bool { return unicode.IsControl(r) && (r != '\n' && r != '\t' || shortest > 0) }):
		return fmt.Errorf("%s has control characters", field)
	}
	return nil
}
