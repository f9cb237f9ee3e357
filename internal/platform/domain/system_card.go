package domain

import (
	"encoding/json"
	"errors"

	"spectral/internal/core/check"
)

// SystemCard is platform's copy of one version of a card that another context owns, with the published document. Of two
// versions the higher one counts, in any order.
type SystemCard struct {
	CardID   string
	Version  int64 // from 1
	Title    string
	Snapshot json.RawMessage
}

// Validate returns an error for an invalid card.
func (c SystemCard) Validate() error {
	return errors.Join(check.AtLeast("length of card_id", int64(len(c.CardID)), 1),
		check.AtLeast("version", c.Version, 1), check.AtLeast("length of title", int64(len(c.Title)), 1))
}
