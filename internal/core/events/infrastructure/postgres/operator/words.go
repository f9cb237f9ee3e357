package operator

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"
)

// Counted returns a number with its noun: 1 event, 2 events, 2 crashes.
func Counted[N int | int32 | int64](n N, name string) string {
	if n == 1 {
		return "1 " + name
	}
	if strings.HasSuffix(name, "sh") || strings.HasSuffix(name, "x") {
		name += "e"
	}
	return fmt.Sprintf("%d %ss", n, name)
}

// ShellWord quotes a word of a command for a shell, where that is needed.
func ShellWord(s string) string {
	if s != "" && strings.Trim(s, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.,:/@%+=-") == "" {
		return s
	}
	return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'"
}

// OneOf returns a parser that accepts one of the words.
func OneOf[S ~string](known ...S) func(string) (S, error) {
	return func(s string) (S, error) {
		if !slices.Contains(known, S(s)) {
			return "", fmt.Errorf("%.60q: want one of %s", s, Joined(known))
		}
		return S(s), nil
	}
}

// ParseID reads an id as it is printed.
func ParseID(s string) (uuid.UUID, error) {
	id, err := uuid.Parse(s)
	if err != nil || len(s) != len(id.String()) {
		return uuid.Nil, fmt.Errorf("%.60q: want an id like 0198c5d4-9a52-7c11-8f0e-3b7a4d2f6e10", s)
	}
	return id, nil
}

// ParseAge reads a time span in Go's notation or in whole days.
func ParseAge(s string) (time.Duration, error) {
	days, isDays := strings.CutSuffix(s, "d")
	if n, err := strconv.ParseUint(days, 10, 16); isDays && err == nil && n > 0 {
		return time.Duration(n) * 24 * time.Hour, nil
	}
	age, err := time.ParseDuration(s)
	if err != nil || age <= 0 {
		return 0, fmt.Errorf("%.40q is not an age: want a time span above 0, like 30s, 90m, 12h or 7d", s)
	}
	return age, nil
}
