package domain

import (
	"encoding/json"
	"errors"
	"fmt"
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
	var err error
	if c.CardID == "" {
		err = errors.Join(err, errors.New("card_id is missing"))
	}
	if c.Version < 1 {
		err = errors.Join(err, fmt.Errorf("version is %d, must be at least 1", c.Version))
	}
	if c.Title == "" {
		err = errors.Join(err, errors.New("title is missing"))
	}
	return err
}
