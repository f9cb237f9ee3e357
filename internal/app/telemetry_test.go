package app

import (
	"errors"
	"testing"
)

// What a collector answers may repeat a header, and a URL may have a password.
func TestReasonsOfExportersAreQuiet(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"traces export: OTLP partial success: canary (3 spans rejected)": "traces export: OTLP partial success",
		"rpc error: code = Unauthenticated desc = canary":                "rpc error: code = Unauthenticated",
		"failed to send: 500 (body: canary)":                             "failed to send: 500",
		`Post "http://user:canary@host/v1/traces": refused`:              `Post "http://host/v1/traces": refused`,
	} {
		if have := quietReason(errors.New(text)); have != want {
			t.Errorf("%q became %q, want %q", text, have, want)
		}
	}
}

func TestStatementsAreNamedWithoutTheirText(t *testing.T) {
	t.Parallel()
	for sql, want := range map[string]string{
		"-- name: SaveCard :exec\ninsert into x": "SaveCard", " select\n'secret'\nfrom x": "SELECT", "begin": "BEGIN", "": "",
	} {
		if have := statementName(sql); have != want {
			t.Errorf("%q is called %q, want %q", sql, have, want)
		}
	}
}
