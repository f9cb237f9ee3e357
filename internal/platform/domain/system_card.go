package domain

import (
	"encoding/json"
	"errors"
	"fmt"
)

// SystemCard is platform's view of a card that another context owns: one version of it, with the
// document as it was published. Of two versions the higher one stands, whichever came first.
type SystemCard struct {
	CardID   string
	Version  int64 // from 1
	Title    string
	Snapshot json.RawMessage
}

// Validate reports what a system card lacks.
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
