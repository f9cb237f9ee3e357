package cli

import (
	"encoding/json"
	"strings"
	"testing"
	"time"
)

func TestVisible(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"plain text, ünïcödé, 日本語, 🙂, n\u0303": "plain text, ünïcödé, 日本語, 🙂, n\u0303",
		"\x1b[2J\x1b]0;title\x07":              `\x1b[2J\x1b]0;title\a`,
		"a\nb\r\tc\x00":                        `a\nb\r\tc\x00`,
		"\u009b31m\u0085":                      `\u009b31m\u0085`,
		"\u202egnp.exe\u2066\u200f\u200b":      `\u202egnp.exe\u2066\u200f\u200b`,
		"\u2028\u2029\u00a0\ufeff":             `\u2028\u2029\u00a0\ufeff`,
		"\U000e0041":                           `\U000e0041`,
		"\xff\xfe\uFFFD":                       `\xff\xfe` + "\uFFFD",
	} {
		if have := visible(text); have != want {
			t.Errorf("%+q is printed as %+q, want %+q", text, have, want)
		}
		encoded, err := json.Marshal(strings.ToValidUTF8(text, "?"))
		if err != nil {
			t.Fatal(err)
		}
		escaped := escapedJSON(string(encoded))
		if visible(escaped) != escaped {
			t.Errorf("%+q is printed as JSON %+q", text, escaped)
		}
		var back string
		if err := json.Unmarshal([]byte(escaped), &back); err != nil || back != strings.ToValidUTF8(text, "?") {
			t.Errorf("%+q comes back from JSON %s as %+q, %v", text, escaped, back, err)
		}
	}
	if have := visibleBut("a\nb\x1b", "\n"); have != "a\nb\\x1b" {
		t.Errorf("lines are kept as %q", have)
	}
}

func TestFirstLine(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"":                        "",
		"one\r\n":                 "one",
		"one\ntwo":                "one ...",
		"\x1b\r\ntwo":             `\x1b ...`,
		strings.Repeat("ä", 121):  strings.Repeat("ä", 120) + " ...",
		strings.Repeat("ä", 120):  strings.Repeat("ä", 120),
		strings.Repeat("\a", 300): strings.Repeat(`\a`, 60) + " ...",
	} {
		if have := firstLine(&text); have != want {
			t.Errorf("the first line of %q is %q, want %q", text, have, want)
		}
	}
	if firstLine(nil) != "" {
		t.Error("nothing has a first line")
	}
}

func TestAges(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]time.Duration{"30s": 30 * time.Second, "90m": 90 * time.Minute, "7d": 7 * 24 * time.Hour, "1h30m": 90 * time.Minute, "65535d": 65535 * 24 * time.Hour} {
		if have, err := parseAge(text); err != nil || have != want {
			t.Errorf("%s is %s, %v", text, have, err)
		}
	}
	for _, text := range []string{"", "d", "0d", "-1d", "-1h", "0s", "1.5d", "65536d", "soon", "1d12h"} {
		if have, err := parseAge(text); err == nil {
			t.Errorf("%q is %s", text, have)
		}
	}
	for d, want := range map[time.Duration]string{-time.Hour: "0s", 59 * time.Second: "59s", 59*time.Minute + 59*time.Second: "59m", 61 * time.Minute: "1h01m", 26 * time.Hour: "1d02h"} {
		if have := age(d); have != want {
			t.Errorf("%s is written %s, want %s", d, have, want)
		}
	}
}
