package check

import (
	"cmp"
	"fmt"
	"io/fs"
	"os"
	"strings"
	"syscall"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/google/uuid"
)

// MaxClockLead is how far the time of a fact may be ahead of the checking clock.
const MaxClockLead = 5 * time.Minute

// Text checks that s has at most longest bytes, that Postgres can store it, and that a required text is not blank.
func Text(field, s string, required bool, longest int) error {
	switch {
	case required && strings.TrimSpace(s) == "":
		return fmt.Errorf("%s is missing", field)
	case len(s) > longest:
		return fmt.Errorf("%s has %d bytes, the limit is %d", field, len(s), longest)
	case !utf8.ValidString(s) || strings.ContainsRune(s, 0):
		return fmt.Errorf("%s is not valid UTF-8, or has a NUL character", field)
	}
	return nil
}

// Line checks that s is one line of text and not blank.
func Line(field, s string, longest int) error {
	return cmp.Or(Text(field, s, true, longest), printable(field, s, ""))
}

// Prose checks a text of any number of lines, which may be empty.
func Prose(field, s string, longest int) error {
	return cmp.Or(Text(field, s, false, longest), printable(field, s, "\n\t"))
}

func printable(field, s, except string) error {
	isControl := func(r rune) bool { return unicode.IsControl(r) && !strings.ContainsRune(except, r) }
	if strings.ContainsFunc(s, isControl) {
		return fmt.Errorf("%s has control characters", field)
	}
	return nil
}

// Time checks that t is set and not in the future.
func Time(field string, t, now time.Time) error {
	switch {
	case t.IsZero():
		return fmt.Errorf("%s is missing", field)
	case t.After(now.Add(MaxClockLead)):
		return fmt.Errorf("%s is %s, which is in the future", field, t.Format(time.RFC3339))
	}
	return nil
}

// ID checks that id is set.
func ID(field string, id uuid.UUID) error {
	if id == uuid.Nil {
		return fmt.Errorf("%s is missing", field)
	}
	return nil
}

// Range checks that n is from low to high.
func Range(field string, n, low, high int64) error {
	if n < low || n > high {
		return fmt.Errorf("%s is %d, must be from %d to %d", field, n, low, high)
	}
	return nil
}

// AtLeast checks that n is at least low.
func AtLeast(field string, n, low int64) error {
	if n < low {
		return fmt.Errorf("%s is %d, must be at least %d", field, n, low)
	}
	return nil
}

// OneOf checks that s is one of two values.
func OneOf[S ~string](field string, s, one, other S) error {
	if s != one && s != other {
		return fmt.Errorf("%s is %.40q, must be %s or %s", field, s, one, other)
	}
	return nil
}

// PrivateFolder returns why a folder is not private: info, from Lstat, is of a link, of no folder, of another user's,
// or of one that others may write to.
func PrivateFolder(path string, info fs.FileInfo) error {
	owner, known := info.Sys().(*syscall.Stat_t)
	switch {
	case info.Mode().Type() == fs.ModeSymlink:
		return fmt.Errorf("%s is a link, which may lead to the files of others", path)
	case !info.IsDir():
		return fmt.Errorf("%s is not a folder", path)
	case known && int(owner.Uid) != os.Geteuid():
		return fmt.Errorf("%s belongs to user %d, and this is user %d", path, owner.Uid, os.Geteuid())
	case info.Mode().Perm()&0o022 != 0:
		return fmt.Errorf("other users may write to %s, which has mode %#o", path, info.Mode().Perm())
	}
	return nil
}
