package domain

import (
	"fmt"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/google/uuid"
)

// MaxPersonBytes bounds the name of a person, a system or an agent.
const MaxPersonBytes = 200

// MaxClockLead is how far the time of a fact may be ahead of the checking clock.
const MaxClockLead = 5 * time.Minute

// textWithin checks the size of a text, in bytes, and that Postgres can store it.
func textWithin(field, s string, shortest, longest int) error {
	switch {
	case shortest > 0 && strings.TrimSpace(s) == "":
		return fmt.Errorf("%s is missing", field)
	case len(s) > longest:
		return fmt.Errorf("%s has %d bytes, the limit is %d", field, len(s), longest)
	case !utf8.ValidString(s) || strings.ContainsRune(s, 0):
		return fmt.Errorf("%s is not valid UTF-8, or has a NUL character", field)
	}
	return nil
}

// checkLine checks that s is one line of text and not blank.
func checkLine(field, s string, longest int) error {
	err := textWithin(field, s, 1, longest)
	if err == nil && strings.ContainsFunc(s, unicode.IsControl) {
		err = fmt.Errorf("%s has control characters", field)
	}
	return err
}

// checkPerson checks the name of a person, a system or an agent.
func checkPerson(field, by string) error { return checkLine(field, by, MaxPersonBytes) }

// storable returns s without characters that Postgres cannot store, cut to MaxTaskReasonBytes.
func storable(s string) string {
	s = strings.TrimSpace(strings.ToValidUTF8(strings.ReplaceAll(s, "\x00", "\uFFFD"), "\uFFFD"))
	if len(s) > MaxTaskReasonBytes {
		s = strings.ToValidUTF8(s[:MaxTaskReasonBytes], "")
	}
	return s
}

// checkTime checks that t is set and not in the future.
func checkTime(field string, t, now time.Time) error {
	switch {
	case t.IsZero():
		return fmt.Errorf("%s is missing", field)
	case t.After(now.Add(MaxClockLead)):
		return fmt.Errorf("%s is %s, which is in the future", field, t.Format(time.RFC3339))
	}
	return nil
}

func checkID(field string, id uuid.UUID) error {
	if id == uuid.Nil {
		return fmt.Errorf("%s is missing", field)
	}
	return nil
}
