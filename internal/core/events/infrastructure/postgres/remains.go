package postgres

import (
	"slices"
	"strings"
)

// remains is what a text of SQL leaves behind on its connection beside what it writes, as far as the text tells: what a
// function does is not seen.
type remains struct {
	control string   // its statement that would end the transaction, by the first word
	kept    bool     // something that outlives the transaction
	forgot  bool     // prepared statements are gone, the driver's too
	opaque  bool     // something that undo does not take back
	undo    []string // SQL that takes the rest back
}

// remainsOf reads a text of one statement or more. Whatever it cannot make out counts as the worst it may be.
func remainsOf(sql string) (r remains) {
	if leavesNothing(sql) {
		return remains{}
	}
	var room [64]lexeme
	all := lexemesOf(room[:0], sql)
	start, depth, body := 0, 0, false
	for i := range len(all) + 1 {
		if i < len(all) {
			switch all[i].text {
			case "(":
				depth++
			case ")":
				depth--
			}
			if all[i].text != ";" || depth > 0 { // a rule has statements in brackets
				continue
			}
		}
		s := statement(all[start:i])
		start = i + 1
		switch {
		case body:
			body = !s.is(0, "end")
		default:
			r.add(s)
			body = s.is(0, "create") && s.hasBoth("begin", "atomic") && !s.hasBoth("atomic", "end") // up to its END it is a function's
		}
	}
	return r
}

// leavesNothing finds most texts that leave nothing behind, for less than reading them: one statement of the usual kind, without a part of
// any word that would tell, wherever.
func leavesNothing(sql string) bool {
	kind, n := blank, 0
	for ; kind == blank; sql = sql[n:] {
		if sql == "" {
			return true
		}
		if kind, n = nextLexeme(sql); kind != blank && !(statement{{kind, sql[:n]}}).is(0, "select", "insert", "update", "delete", "with") {
			return false
		}
	}
	sql = strings.TrimRight(sql, "; \t\r\n")
	for i := range len(sql) {
		switch sql[i] {
		case ';', '&':
			return false
		case 'f', 'F': // of set_config
			if i >= 3 && i+3 <= len(sql) && strings.EqualFold(sql[i-3:i+3], "config") {
				return false
			}
		case 'v', 'V': // of pg_advisory_lock
			if i >= 2 && i+2 <= len(sql) && strings.EqualFold(sql[i-2:i+2], "advi") {
				return false
			}
		case 'p', 'P': // of temporary, or pg_temp
			if i >= 3 && strings.EqualFold(sql[i-3:i+1], "temp") {
				return false
			}
			if i+5 <= len(sql) && strings.EqualFold(sql[i:i+5], "pg_se") { // of pg_settings
				return false
			}
		}
	}
	return true
}

// add adds what one statement leaves behind.
func (r *remains) add(s statement) {
	switch {
	case s.is(0, "begin", "commit", "end", "abort"), s.is(0, "start", "prepare") && s.is(1, "transaction"),
		s.is(0, "rollback") && !s.has("to"):
		r.control = s[0].text
	case s.is(0, "set") && s.is(1, "local"):
		r.setLocally(s.settingAt(2))
	case s.is(0, "set") && s.is(1, "constraints", "transaction"):
		r.opaque = true
	case s.is(0, "set", "reset", "discard", "listen", "prepare", "deallocate", "load"):
		r.forgot = r.forgot || s.is(0, "deallocate")
		r.keep()
	case s.is(0, "declare") && s.has("hold"):
		r.keep()
	case s.is(0, "declare"):
		r.takeBack("close all; ")
	case s.is(0, "do"):
		r.addCode(s)
	}
	if s.updatesSettings() {
		r.keep()
	}
	for i, t := range s {
		switch {
		case t.kind == oddName:
			r.keep()
		case t.kind != word && t.kind != quotedName:
		case r.kept: // no more to find
			return
		case s.setsAt(i):
			local, name := s.configAt(i + 1)
			if local {
				r.setLocally(name)
			} else {
				r.keep()
			}
		case s.locksAt(i), s.temporaryAt(i):
			r.keep()
		}
	}
}

func (r *remains) keep() { r.kept, r.opaque = true, true }

// setLocally notes that a setting was made for the transaction; no name: of whichever parameter.
func (r *remains) setLocally(name string) {
	if name == "" || strings.ContainsAny(name, `'"\`) {
		r.opaque = true
		return
	}
	// not SET: any name is a string, but not every name may stand in a statement
	r.takeBack("select pg_catalog.set_config('" + strings.ToLower(name) + "', null, true); ")
}

// A text may be long, and reading it may not take long: so many settings are taken back, and so many lexemes read of a name or
// of the arguments of set_config.
const (
	maxUndo      = 100
	maxArguments = 1000
)

func (r *remains) takeBack(sql string) {
	switch {
	case slices.Contains(r.undo, sql):
	case len(r.undo) < maxUndo:
		r.undo = append(r.undo, sql)
	default:
		r.opaque = true
	}
}

// also adds what another text leaves behind.
func (r *remains) also(other remains) {
	r.kept, r.opaque, r.forgot = r.kept || other.kept, r.opaque || other.opaque, r.forgot || other.forgot
	for _, sql := range other.undo {
		r.takeBack(sql)
	}
}

// statement is one statement, without comments.
type statement []lexeme

// is reports whether the lexeme at i is one of these words.
func (s statement) is(i int, words ...string) bool {
	if i < 0 || i >= len(s) || s[i].kind != word {
		return false
	}
	for _, w := range words {
		if len(w) == len(s[i].text) && strings.EqualFold(w, s[i].text) {
			return true
		}
	}
	return false
}

func (s statement) isSign(i int, m string) bool {
	return i >= 0 && i < len(s) && s[i].kind == sign && s[i].text == m
}

func (s statement) has(w string) bool {
	for i := range s {
		if s.is(i, w) {
			return true
		}
	}
	return false
}

// hasBoth reports whether there are two words side by side.
func (s statement) hasBoth(first, second string) bool {
	for i := range s {
		if s.is(i, first) && s.is(i+1, second) {
			return true
		}
	}
	return false
}

// maxName is how many bytes of a name in SQL the server regards.
const maxName = 63

// settingAt is the name of the parameter that SET names at i, "" if there is no plain name.
func (s statement) settingAt(i int) string {
	if s.is(i, "time") && s.is(i+1, "zone") {
		return "timezone"
	}
	name := ""
	for end := min(len(s), i+maxArguments); i < end && (s[i].kind == word || s[i].kind == quotedName) && len(s[i].content()) <= maxName; i += 2 {
		name += s[i].content()
		if s.isSign(i+1, "=") || s.is(i+1, "to") {
			return name
		}
		if !s.isSign(i+1, ".") {
			return ""
		}
		name += "."
	}
	return ""
}

// updatesSettings reports whether there is an update and the view that makes a setting of one.
func (s statement) updatesSettings() bool {
	return s.has("update") && slices.ContainsFunc(s, func(t lexeme) bool { return t.names("pg_settings") })
}

// setsAt reports whether the lexeme at i is a call of set_config.
func (s statement) setsAt(i int) bool { return s[i].names("set_config") && s.isSign(i+1, "(") }

// locksAt reports whether the lexeme at i is a call that takes a session's advisory lock.
func (s statement) locksAt(i int) bool {
	t := s[i]
	return (t.kind == word || t.kind == quotedName) && s.isSign(i+1, "(") && strings.Contains(strings.ToLower(t.text), "advisory_lock")
}

// configAt reads the arguments of set_config from the bracket at i on: whether it sets for the transaction only, and which
// parameter, "" if it is not named plainly.
func (s statement) configAt(i int) (local bool, name string) {
	if i+2 < len(s) && s[i+1].kind == plainString && s.isSign(i+2, ",") {
		name = s[i+1].content()
	}
	commas, depth, third := 0, 0, 0
	end := min(len(s), i+maxArguments)
	for i++; i < end; i++ {
		switch {
		case s.isSign(i, "(") || s.isSign(i, "["):
			depth++
		case (s.isSign(i, ")") || s.isSign(i, "]")) && depth > 0:
			depth--
		case s.isSign(i, ")"):
			return commas == 2 && s[third:i].isTrue(), name
		case s.isSign(i, ",") && depth == 0:
			commas, third = commas+1, i+1
		}
	}
	return false, ""
}

// isTrue reports whether it is plainly true, or 't', or either as a boolean.
func (s statement) isTrue() bool {
	if len(s) == 4 && s.isSign(1, ":") && s.isSign(2, ":") && s.is(3, "bool", "boolean") {
		s = s[:1]
	}
	return len(s) == 1 && (s.is(0, "true") || s[0].text == "'t'" || s[0].text == "'true'")
}

// temporaryAt reports whether the lexeme at i is of something temporary that is created.
func (s statement) temporaryAt(i int) bool {
	switch {
	case s[i].names("pg_temp"):
		return true
	case !s.is(i, "temp", "temporary"):
		return false
	case s.is(i-1, "into"):
		return !s.is(i-2, "insert", "merge") // a table of that name
	default:
		return s.is(i-1, "create", "replace", "local", "global")
	}
}

// addCode adds what the blocks of code in a statement may leave behind: they have a word for it.
func (r *remains) addCode(s statement) {
	for _, t := range s {
		if t.kind != plainString && t.kind != constant {
			continue
		}
		text, known := t.value()
		if !known {
			r.keep()
			return
		}
		var room [64]lexeme
		code := statement(lexemesOf(room[:0], text))
		if code.updatesSettings() {
			r.keep()
		}
		for i := range code {
			switch {
			case code.leavesAt(i):
				r.keep()
				return
			case code.is(i, "cursor"), code.is(i, "open") && code.beginsAt(i):
				r.takeBack("close all; ")
			}
		}
	}
}

// leavesAt reports whether the lexeme at i of a block of code is a word that leaves something behind. There are none for what
// code cannot execute but by EXECUTE.
func (s statement) leavesAt(i int) bool {
	switch t := s[i]; {
	case t.kind == oddName, s.setsAt(i), s.locksAt(i), s.temporaryAt(i):
		return true
	case t.names("execute"): // but not a trigger's
		return !s.is(i+1, "function", "procedure") || s.beginsAt(i) || s.is(i-1, "query", "in", "for")
	default:
		return s.is(i, "set", "reset", "discard", "listen", "load") && s.beginsAt(i)
	}
}

// beginsAt reports whether a statement of a block of code can begin at i.
func (s statement) beginsAt(i int) bool {
	return i == 0 || s.isSign(i-1, ";") || s.isSign(i-1, ">") || s.is(i-1, "begin", "then", "else", "loop")
}

// lexeme is a part of a text of SQL.
type lexeme struct {
	kind lexemeKind
	text string // as it is written
}

type lexemeKind int

const (
	blank       lexemeKind = iota // and comments
	word                          // a keyword or a name
	quotedName                    // a name in quotes
	oddName                       // a name in another spelling: U&"..."
	plainString                   // in quotes, in one piece and without any in it
	constant                      // another constant
	sign                          // one other character
)

// content is a name or a plain string without its quotes.
func (t lexeme) content() string {
	if t.kind == word {
		return t.text
	}
	return strings.Trim(t.text, `'"`)
}

// value is what a constant stands for, if it is not spelled with escapes or in pieces.
func (t lexeme) value() (string, bool) {
	switch t.text[0] {
	case '\'':
		text := strings.Trim(t.text, "'")
		return strings.ReplaceAll(text, "''", "'"), !strings.Contains(strings.ReplaceAll(text, "''", ""), "'")
	case '$':
		tag := t.text[:strings.IndexByte(t.text[1:], '$')+2]
		return strings.TrimSuffix(t.text[len(tag):], tag), true
	default:
		return "", isDigit(t.text[0])
	}
}

// names reports whether a lexeme is this name.
func (t lexeme) names(what string) bool {
	return len(t.text) >= len(what) && (t.kind == word || t.kind == quotedName) && strings.EqualFold(t.content(), what)
}

// lexemesOf appends the lexemes of a text, without blanks and comments.
func lexemesOf(to []lexeme, sql string) []lexeme {
	for sql != "" {
		kind, n := nextLexeme(sql)
		if kind != blank {
			to = append(to, lexeme{kind, sql[:n]})
		}
		sql = sql[n:]
	}
	return to
}

// nextLexeme is the kind and the length of the lexeme that a text begins with, by the server's rules. What never ends goes on
// to the end, and the server refuses it.
func nextLexeme(sql string) (lexemeKind, int) {
	switch c := sql[0]; {
	case isBlank(c):
		return blank, 1
	case strings.HasPrefix(sql, "--"):
		return blank, lineLength(sql)
	case strings.HasPrefix(sql, "/*"):
		return blank, commentLength(sql)
	case c == '\'':
		n := stringLength(sql, false)
		if strings.Contains(strings.Trim(sql[:n], "'"), "'") {
			return constant, n
		}
		return plainString, n
	case c == '"':
		return quotedName, quotedLength(sql, false)
	case c == '$':
		if n := dollarLength(sql); n > 0 {
			return constant, n
		}
		return sign, 1
	case isDigit(c):
		return constant, wordLength(sql)
	case wordLength(sql) == 0:
		return sign, 1
	}
	n := wordLength(sql)
	first, rest := sql[:n], sql[n:]
	switch {
	case strings.EqualFold(first, "e") && strings.HasPrefix(rest, "'"):
		return constant, n + stringLength(rest, true)
	case strings.EqualFold(first, "u") && strings.HasPrefix(rest, "&'"):
		return constant, n + 1 + stringLength(rest[1:], false)
	case strings.EqualFold(first, "u") && strings.HasPrefix(rest, `&"`):
		return oddName, n + 1 + quotedLength(rest[1:], false)
	}
	return word, n
}

func isBlank(c byte) bool { return strings.IndexByte(" \t\r\n\f\v", c) >= 0 }

func isDigit(c byte) bool { return '0' <= c && c <= '9' }

// lineLength is how much of sql stands before the end of its line.
func lineLength(sql string) int {
	if n := strings.IndexAny(sql, "\r\n"); n >= 0 {
		return n
	}
	return len(sql)
}

// wordLength is how much of sql is a word, or a number.
func wordLength(sql string) int {
	n := 0
	for n < len(sql) {
		c := sql[n]
		letter := 'a' <= c|0x20 && c|0x20 <= 'z' || c == '_' || c >= 0x80
		if !letter && !isDigit(c) && (c != '$' || n == 0) {
			break
		}
		n++
	}
	return n
}

// stringLength is the length of a constant in quotes with what continues it: more of it after blanks with a newline.
func stringLength(sql string, escapes bool) int {
	n := quotedLength(sql, escapes)
	for next := n; next < len(sql); {
		switch {
		case isBlank(sql[next]):
			next++
		case strings.HasPrefix(sql[next:], "--"):
			next += lineLength(sql[next:])
		case sql[next] == '\'' && strings.ContainsAny(sql[n:next], "\r\n"):
			n = next + quotedLength(sql[next:], escapes)
			next = n
		default:
			return n
		}
	}
	return n
}

// quotedLength is the length of what stands in quotes; two quotes are one. Escapes: so is one after a backslash.
func quotedLength(sql string, escapes bool) int {
	for i := 1; i < len(sql); i++ {
		switch {
		case escapes && sql[i] == '\\':
			i++
		case sql[i] == sql[0] && i+1 < len(sql) && sql[i+1] == sql[0]:
			i++
		case sql[i] == sql[0]:
			return i + 1
		}
	}
	return len(sql)
}

// dollarLength is the length of what stands between $$ or two $tag$; 0: it is no such thing.
func dollarLength(sql string) int {
	n := wordLength(sql[1:])
	if i := strings.IndexByte(sql[1:], '$'); i >= 0 && i < n {
		n = i
	}
	if n+1 >= len(sql) || sql[n+1] != '$' || isDigit(sql[1]) {
		return 0
	}
	tag := sql[:n+2]
	if end := strings.Index(sql[len(tag):], tag); end >= 0 {
		return end + 2*len(tag)
	}
	return len(sql)
}

// commentLength is the length of a comment; they nest.
func commentLength(sql string) int {
	depth := 0
	for i := 0; i < len(sql); {
		switch {
		case strings.HasPrefix(sql[i:], "/*"):
			depth, i = depth+1, i+2
		case strings.HasPrefix(sql[i:], "*/"):
			depth, i = depth-1, i+2
		default:
			i++
		}
		if depth == 0 {
			return i
		}
	}
	return len(sql)
}
