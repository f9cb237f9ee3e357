package cli

import (
	"fmt"
	"strings"
	"unicode"
	"unicode/utf16"
	"unicode/utf8"
)

// visible is text of somebody else's making that is safe to print: what is not a letter, mark, number, punctuation,
// symbol or blank, such as escape sequences, line ends and marks that turn the direction of writing, is written as Go
// writes it in a string.
func visible(s string) string { return visibleBut(s, "") }

// visibleBut is visible, but for the given characters.
func visibleBut(s, kept string) string {
	var b strings.Builder
	for i, r := range s {
		switch {
		case r == utf8.RuneError && !strings.HasPrefix(s[i:], "\uFFFD"):
			_, _ = fmt.Fprintf(&b, `\x%02x`, s[i])
		case harmless(r) || strings.ContainsRune(kept, r):
			_, _ = b.WriteRune(r)
		default:
			quoted := fmt.Sprintf("%+q", r)
			_, _ = b.WriteString(quoted[1 : len(quoted)-1])
		}
	}
	return b.String()
}

// harmless reports whether a terminal only prints r.
func harmless(r rune) bool { return r == ' ' || unicode.IsGraphic(r) && !unicode.Is(unicode.Zs, r) }

// escapedJSON is encoded JSON whose strings have escapes for what is not harmless. Outside of strings there is none but
// line ends.
func escapedJSON(s string) string {
	var b strings.Builder
	for _, r := range s {
		switch {
		case r == '\n' || harmless(r):
			_, _ = b.WriteRune(r)
		case r > 0xffff:
			high, low := utf16.EncodeRune(r)
			_, _ = fmt.Fprintf(&b, `\u%04x\u%04x`, high, low)
		default:
			_, _ = fmt.Fprintf(&b, `\u%04x`, r)
		}
	}
	return b.String()
}

// maxLine is how much of an error one line of a table shows.
const maxLine = 120

// firstLine is the beginning of a text that may have many lines, on one.
func firstLine(s *string) string {
	if s == nil {
		return ""
	}
	line, _, more := strings.Cut(strings.TrimSpace(*s), "\n")
	line = visible(strings.TrimRight(line, "\r"))
	if runes := []rune(line); len(runes) > maxLine {
		line, more = string(runes[:maxLine]), true
	}
	if more {
		line += " ..."
	}
	return line
}
