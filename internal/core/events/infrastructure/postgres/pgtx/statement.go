package pgtx

import (
	"cmp"
	"regexp"
	"strings"
)

// StatementKind says how a handler's statement is treated, the strictest last.
type StatementKind int

// The kinds of statements.
const (
	Plain              StatementKind = iota
	LocalSetting                     // SET LOCAL: it ends with the transaction
	SessionState                     // it may outlive the transaction, so the connection is closed afterwards
	TransactionControl               // refused: it would begin or end a transaction
)

// readStatement decides by the first words of a statement, and by a few names in the rest. It does not see what a
// function does. A text holds one statement: the extended protocol takes no more (docs/decisions/0010).
func readStatement(sql string) StatementKind {
	first, rest := nextWord(sql)
	second, rest := nextWord(rest)
	switch first {
	case "begin", "start", "commit", "end", "abort":
		return TransactionControl
	case "rollback":
		if second == "work" || second == "transaction" {
			second, _ = nextWord(rest)
		}
		if second != "to" { // a savepoint
			return TransactionControl
		}
		return Plain
	case "prepare":
		if second == "transaction" {
			return TransactionControl
		}
		return SessionState
	case "set":
		if second == "local" {
			return LocalSetting
		}
		return SessionState
	case "reset", "discard", "listen", "deallocate", "declare", "load", "do", "call":
		return SessionState
	}
	text := strings.ToLower(sql)
	for _, name := range []string{"set_config", "advisory_lock", "pg_settings", "pg_temp", `u&"`} { // u& hides a name
		if strings.Contains(text, name) {
			return SessionState
		}
	}
	if strings.Contains(text, "temp") && temporary.MatchString(text) {
		return SessionState
	}
	return Plain
}

// temporary finds CREATE TEMP, CREATE OR REPLACE TEMPORARY, SELECT INTO TEMP and the like.
var temporary = regexp.MustCompile(`(?s)\b(create|replace|local|global|into)(\s|--[^\r\n]*|/\*.*?\*/)+temp(orary)?\b`)

// nextWord skips blanks, comments, which nest, and empty statements, and returns the word behind them in lower case.
func nextWord(sql string) (word, rest string) {
	for depth := 0; sql != ""; {
		switch {
		case strings.HasPrefix(sql, "/*"):
			depth, sql = depth+1, sql[2:]
		case depth > 0 && strings.HasPrefix(sql, "*/"):
			depth, sql = depth-1, sql[2:]
		case depth > 0 || strings.ContainsAny(sql[:1], " \t\r\n\f\v;"):
			sql = sql[1:]
		case strings.HasPrefix(sql, "--"):
			sql = sql[cmp.Or(strings.IndexAny(sql, "\r\n")+1, len(sql)):]
		default:
			rest = strings.TrimLeftFunc(sql, func(r rune) bool { return 'a' <= r|0x20 && r|0x20 <= 'z' })
			return strings.ToLower(strings.TrimSuffix(sql, rest)), rest
		}
	}
	return "", ""
}
