package domain

import (
	"bytes"
	"encoding/json"
	"errors"

	"spectral/internal/core/check"
)

// Bounds of a card, in bytes.
const (
	MaxCardIDBytes  = 200
	MaxTitleBytes   = 500
	MaxSummaryBytes = 20_000
)

// WorldModelCard describes one subject of a world model. Make it with [NewWorldModelCard].
type WorldModelCard struct {
	ID         string          // within its workspace
	Title      string          // one line
	Summary    string          // prose, possibly empty
	Attributes json.RawMessage // a JSON object
}

// NewWorldModelCard checks a card. Attributes is a JSON object; empty means none.
func NewWorldModelCard(id, title, summary string, attributes json.RawMessage) (WorldModelCard, error) {
	if len(attributes) == 0 || string(attributes) == "null" {
		attributes = json.RawMessage("{}")
	}
	err := errors.Join(check.Line("card_id", id, MaxCardIDBytes), check.Line("title", title, MaxTitleBytes),
		check.Prose("summary", summary, MaxSummaryBytes))
	if trimmed := bytes.TrimSpace(attributes); !json.Valid(attributes) || len(trimmed) == 0 || trimmed[0] != '{' {
		err = errors.Join(err, errors.New("attributes must be a JSON object"))
	}
	if err != nil {
		return WorldModelCard{}, err
	}
	return WorldModelCard{ID: id, Title: title, Summary: summary, Attributes: attributes}, nil
}
