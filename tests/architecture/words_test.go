package architecture_test

import (
	"fmt"
	"go/ast"
	"go/parser"
	"io/fs"
	"path"
	"regexp"
	"slices"
	"strings"
	"testing"
	"testing/fstest"
	"unicode/utf8"
)

// maxLine is the length of the longest line in characters. A tab is one character.
const maxLine = 120

// bannedWord is a word or phrase that code, SQL and pages do not use.
type bannedWord struct {
	word string // a regular expression of whole words, in lower case; a space is any blank, line end or comment mark
	use  string // what to write instead
}

// bannedWords are matched in comments, string literals, identifiers, SQL and prose. The parts of an identifier count as
// words: doorbellState and doorbell_state hold "doorbell".
var bannedWords = []bannedWord{
	{"whoever", `"who" after a noun that names them: the worker that, the caller who`},
	{"nobody", `"no" and a noun: no worker, no session, no role`},
	{"somebody", `a noun: another session, an operator, another worker`},
	{"anew", `"again", or the verb alone`},
	{"mend(s|ed|ing)?", "fix, repair"},
	{"in hand", "held"},
	{"at work", "running"},
	{"meanwhile", `"in that time", or a sentence that says when`},
	{"of (its|his|their|our|your|my) own", `"its own X", "a separate X"`},
	{"came of", "result, outcome, became"},
	{"comes to", "reaches, becomes, is"},
	{"is to be had", "is available"},
	{"the seeds?", "a decision in docs/decisions: cite no document that is not in the repository"},
	{"seeds? d ?\\d+", "a decision in docs/decisions: cite no document that is not in the repository"},

	{"doorbells?", "notifier, listen connection"},
	{"ring(s|ing)?", "notify"},
	{"rang", "notified"},
	{"rung", "notified"},
	{"outbox look", "outbox_poll"},
	{"outbox quiet", "outbox_barrier"},
	{"deaf", "notifications lost, self-test received"},
	{"loners?", "single results"},
	{"patience", "lock timeout, statement timeout, flush timeout; in tests testTimeout"},
	{"lent", "withHandlerTx, passed to"},
	{"lend(s|ing)?", "withHandlerTx, pass to"},
	{"cut off", "closed, forced stop, cancelled"},
	{"throttl(e|es|ed|ing)", "batch sizer"},
	{"doubt(s|ed|ful)?", "recheck after disconnect"},
	{"twins?", "duplicate, duplicate key"},
	{"waking", "wake signal"},
	{"enroll?(s|ed|ing|ment)?", "register"},
	{"deaths?", "dead workers, crashes"},
	{"died of", "dead workers, crashes"},
	{"cure[sd]?", "fix"},
	{"strangers?", "unmanaged object"},
	{"errands?", "job"},
	{"escorts?", "second handler"},
	{"diary", "execution log"},
	{"hogs?", "hold connection"},
	{"balks?", "fail once"},
	{"crowds?", "burst"},
}

// bannedNames are identifiers whose words are honest English elsewhere. They are matched as written.
var bannedNames = []bannedWord{
	{"ackMeter", "sampler"},
	{"actAgain", "reset"},
	{"prepareAnew", "reset"},
	{"DESIGN", "a decision in docs/decisions: cite no document that is not in the repository"},
	{"keepFor", "flushTimeout"},
	{"leftOut", "skipped"},
	{"LeftOut", "Skipped"},
	{"noteCut", "forcedStop"},
	{"wasCut", "wasClosed"},
	{"cutOff", "cancel"},
	{"takeBack", "revoke"},
}

// allowedWords are words that mean something else in some files. An empty word is every word.
var allowedWords = []struct{ file, word, reason string }{
	{"tests/architecture/words_test.go", "", "the list itself"},
	{"internal/app/embeddedpg/", "nobody", "the name of a Unix user"},
	{"tests/pgbouncer/", "nobody", "the name of a Unix user"},
	{"tests/pgtest/", "nobody", "the name of a Unix user"},
}

// TestWords enforces the word list, and the length of lines in Go, SQL and Markdown.
func TestWords(t *testing.T) {
	t.Parallel()
	report(t, checkWords(t, tree()))
}

// checkWords returns a line for each banned word and each line that is too long, in the order of the files.
// It reads Go, SQL, Markdown and the files of wordsOnly. Hidden folders and other test data
// are left to their owners.
func checkWords(t *testing.T, tree fs.FS) (problems []string) {
	t.Helper()
	must(t, fs.WalkDir(tree, ".", func(name string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		base := entry.Name()
		if entry.IsDir() {
			if name != "." && name != ".ci" && strings.HasPrefix(base, ".") || base == "node_modules" {
				return fs.SkipDir
			}
			return nil
		}
		prose := slices.Contains([]string{".go", ".sql", ".md"}, path.Ext(name)) && !strings.Contains(name, "testdata/")
		if !prose && !wordsOnly.MatchString(name) {
			return nil
		}
		text, err := fs.ReadFile(tree, name)
		if err != nil || generated.Match(text) {
			return err
		}
		problems = append(problems, wordProblems(name, string(text))...)
		if prose {
			problems = append(problems, longLines(name, string(text))...)
		}
		return err
	}))
	return problems
}

var (
	wordsOnly = regexp.MustCompile(`(\.(txtar|tmpl|pml|ya?ml|service|timer)|Makefile|^\.ci/run)$`)
	generated = regexp.MustCompile(`(?m)^(//|--) Code generated .* DO NOT EDIT\.$`)
	camelCase = regexp.MustCompile(`([a-z0-9])([A-Z])`)
	links     = regexp.MustCompile(`https?://\S+|\]\([^)]*\)`)
)

// finder finds the words of a list.
type finder struct {
	words []bannedWord
	each  []*regexp.Regexp
}

// newFinder returns a finder of whole words, across line ends and comment marks. Each expression begins with its word's
// letters, which package regexp finds fast.
func newFinder(words []bannedWord) finder {
	f := finder{words: words}
	for _, w := range words {
		f.each = append(f.each, regexp.MustCompile(strings.ReplaceAll(w.word, " ", `[\s/*>_-]+`)+`\b`))
	}
	return f
}

var (
	wordFinder = newFinder(bannedWords)
	nameFinder = newFinder(bannedNames)
	inWord     = regexp.MustCompile(`\w$`)
)

// wordProblems returns a line for each banned word and name in a file. For words, an identifier is read as its parts.
func wordProblems(name, text string) []string {
	var problems []string
	search := func(text string, f finder) {
		for i, expression := range f.each {
			for _, at := range expression.FindAllStringIndex(text, -1) {
				found := text[at[0]:at[1]]
				if at[0] > 0 && inWord.MatchString(text[at[0]-1:at[0]]) || isAllowed(name, found) {
					continue
				}
				problems = append(problems, fmt.Sprintf("%s:%d: %q: write %s", name, 1+strings.Count(text[:at[0]], "\n"),
					strings.Join(strings.Fields(found), " "), f.words[i].use))
			}
		}
	}
	split := camelCase.ReplaceAllString(strings.ReplaceAll(text, "_", " "), "$1 $2")
	search(strings.ToLower(split), wordFinder)
	search(text, nameFinder)
	return problems
}

func isAllowed(name, word string) bool {
	for _, a := range allowedWords {
		if strings.HasPrefix(name, a.file) && (a.word == "" || strings.EqualFold(a.word, word)) {
			return true
		}
	}
	return false
}

// writtenBelow ends the part of a page that `make generate` writes.
const writtenBelow = "Write below. -->"

// longLines returns a line for each line over maxLine. In Markdown it skips tables, code blocks and generated parts,
// and links do not count.
func longLines(name, text string) []string {
	var problems []string
	code, written := false, strings.Contains(text, writtenBelow)
	for i, line := range strings.Split(text, "\n") {
		if path.Ext(name) == ".md" {
			if strings.HasPrefix(strings.TrimSpace(line), "```") {
				code = !code
			}
			if strings.HasSuffix(line, writtenBelow) {
				written = false
			}
			if code || written || strings.HasPrefix(line, "|") {
				continue
			}
		}
		if n := utf8.RuneCountInString(links.ReplaceAllString(line, "")); n > maxLine {
			problems = append(problems, fmt.Sprintf("%s:%d: %d characters: break the line at %d", name, i+1, n, maxLine))
		}
	}
	return problems
}

func TestWordProblemsAreReported(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("long ", 24) + "l"
	word := bannedWords[0].word // whoever
	upper := []byte(strings.ToUpper(word) + ".\n")
	small := fstest.MapFS{
		"a.go": {Data: []byte("package a\n\n// f waits for whoever\n// is at\n// work.\n" +
			"func ringDoorbell() { print(\"mended\", keepFor) }\n")},
		"b.sql":            {Data: []byte("-- fine\nselect core.outbox_look(1); -- in\n-- hand\n")},
		"c.md":             {Data: []byte(string(upper) + "| " + long + " |\n```\n" + long + "\n```\n" + long + "\n[](" + long + ")\n")},
		"d.go":             {Data: []byte("// Code generated by x. DO NOT EDIT.\n\npackage a // " + word + "\n")},
		"e.go":             {Data: []byte("package a\n\n// The amendment was stringent; a recent comment. " + long + "\n")},
		"testdata/f.md":    {Data: upper},
		"g.txt":            {Data: upper},
		".git/Makefile":    {Data: upper},
		"h.md":             {Data: []byte(long + "\n```\n" + long + "\n```\n<!-- Write below. -->\n" + long + "\n")},
		"testdata/i.txtar": {Data: []byte("# " + word + " " + long)},
		".ci/run":          {Data: []byte("# " + word + "\n")},
	}
	expect(t, checkWords(t, small), []string{
		`.ci/run:1: "whoever"`,
		`a.go:3: "whoever": write "who" after a noun`,
		`a.go:6: "mended": write fix, repair`,
		`a.go:4: "at // work": write running`,
		`a.go:6: "doorbell": write notifier`,
		`a.go:6: "ring": write notify`,
		`a.go:6: "keepFor": write flushTimeout`,
		`b.sql:2: "in -- hand": write held`,
		`b.sql:2: "outbox look": write outbox_poll`,
		`c.md:1: "whoever": write "who"`,
		`c.md:6: 121 characters: break the line at 120`,
		`e.go:3: 171 characters`,
		`h.md:6: 121 characters`,
		`testdata/i.txtar:1: "whoever"`,
	})
}

// TestPagesNameTestsThatExist finds a page that names a test that was renamed or deleted.
func TestPagesNameTestsThatExist(t *testing.T) {
	t.Parallel()
	exist := map[string]bool{"TestMemoryRetiredArrives": true} // the scaffold of docs/adding-an-event.md writes it
	for _, file := range goFiles(t, tree(), "", parser.SkipObjectResolution) {
		for _, declaration := range file.Decls {
			if function, ok := declaration.(*ast.FuncDecl); ok {
				exist[function.Name.Name] = true
			}
		}
	}
	test := regexp.MustCompile(`\bTest[A-Z]\w+`)
	must(t, fs.WalkDir(tree(), ".", func(name string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() || path.Ext(name) != ".md" && !wordsOnly.MatchString(name) {
			return err
		}
		text, err := fs.ReadFile(tree(), name)
		for _, named := range test.FindAllString(string(text), -1) {
			if !exist[named] {
				t.Errorf("%s names %s, which is no test", name, named)
			}
		}
		return err
	}))
}
