package dispatch

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/jackc/pgx/v5/pgconn"

	"spectral/internal/core/events"
	"spectral/internal/core/events/infrastructure/postgres/pgtx"
)

func handlers(names ...string) (all []events.Registration) {
	for _, name := range names {
		all = append(all, events.Registration{Name: name})
	}
	return all
}

func half() float64 { return 0.5 }

func TestDecideCountsEachHandlerByItself(t *testing.T) {
	t.Parallel()
	record := map[string]HandlerFailure{"platform.a": {Failures: 2, Class: "HandlerError", Error: "again"}}
	d := decide(record, handlers("platform.a", "platform.b", "platform.c"), map[string]Failure{
		"platform.a": {Class: "HandlerError", message: "again"},
		"platform.b": {Class: "TerminalError", disposition: terminal, message: "no"},
	}, half)
	if d.Failed || !d.Counted {
		t.Errorf("failed %t, counted %t: c has not had its turn", d.Failed, d.Counted)
	}
	if d.Delay != 2*time.Second { // half of the third failure's 4 s; a's own, not b's
		t.Errorf("delay %s", d.Delay)
	}
	a, b := d.Failures["platform.a"], d.Failures["platform.b"]
	if a.Failures != 3 || a.Parked || b.Failures != 1 || !b.Parked {
		t.Errorf("%+v", d.Failures)
	}
	if _, ok := d.Failures["platform.c"]; ok {
		t.Error("a handler that did not fail has a record")
	}
	if want := "HandlerError: platform.a: again\nTerminalError: platform.b: no"; d.LastError != want {
		t.Errorf("last_error %q", d.LastError)
	}
}

func TestDecideFailsARowOnceEveryUnhandledHandlerIsParked(t *testing.T) {
	t.Parallel()
	record := map[string]HandlerFailure{
		"platform.a": {Failures: 5, Class: "HandlerError", Error: "again"},
		"platform.b": {Failures: 1, Parked: true, Class: "TerminalError", Error: "no"},
	}
	d := decide(record, handlers("platform.a", "platform.b"), map[string]Failure{
		"platform.a": {Class: "HandlerError", message: "again"},
	}, half)
	if !d.Failed || !strings.Contains(d.LastError, "platform.a") || !strings.Contains(d.LastError, "platform.b") {
		t.Errorf("%+v", d)
	}
}

// Free failures count once there were too many in a row, until another outcome comes.
func TestDecideCountsFreeFailuresPastTheCap(t *testing.T) {
	t.Parallel()
	record := map[string]HandlerFailure{"platform.a": {Free: maxFree - 1}}
	busy := map[string]Failure{"platform.a": {Class: "DeadlockError", disposition: free}}
	d := decide(record, handlers("platform.a"), busy, half)
	if h := d.Failures["platform.a"]; d.Counted || h.Free != maxFree || h.Failures != 0 {
		t.Fatalf("the %dth in a row: %+v", maxFree, h)
	}
	d = decide(d.Failures, handlers("platform.a"), busy, half)
	if h := d.Failures["platform.a"]; !d.Counted || h.Free != maxFree || h.Failures != 1 {
		t.Fatalf("the next: %+v", h)
	}
	d = decide(d.Failures, handlers("platform.a"), busy, half)
	if h := d.Failures["platform.a"]; !d.Counted || h.Failures != 2 {
		t.Fatalf("the one after: %+v", h)
	}
	d = decide(record, handlers("platform.a"), map[string]Failure{"platform.a": {Class: "HandlerError"}}, half)
	if h := d.Failures["platform.a"]; h.Free != 0 || h.Failures != 1 {
		t.Fatalf("another failure in between: %+v", h)
	}
}

// An error of the server's state costs nothing while it hits every event of the type; then it has the limit of any free
// failure.
func TestAnOutageCostsNoAttempt(t *testing.T) {
	t.Parallel()
	var o outage
	now, failures := time.Now(), map[string]HandlerFailure{}
	for try := range 100 {
		delay, alone, begins := o.failed(now)
		if !alone || begins != (try == 0) || delay <= 0 || delay > 30*time.Second {
			t.Fatalf("try %d: delay %s, alone %t, begins %t", try, delay, alone, begins)
		}
		if pause := o.next.Sub(now); pause <= 0 || pause > pgtx.MaxOutagePause {
			t.Fatalf("try %d: no claim for %s", try, pause)
		}
		d := decide(failures, handlers("platform.a"), map[string]Failure{
			"platform.a": {disposition: free, outage: alone, delay: delay}}, half)
		if failures = d.Failures; d.Counted || d.Failed || d.Delay < delay || failures["platform.a"].Free > 0 {
			t.Fatalf("try %d: %+v", try, d)
		}
		if again, _, _ := o.failed(now); again != delay { // another event fails at the same time
			t.Fatalf("try %d: another event waits %s, not %s", try, again, delay)
		}
		now = o.next
	}
	now = now.Add(time.Hour)
	if delay, _, begins := o.failed(now); !begins || delay > pgtx.FirstBackoff {
		t.Errorf("after an hour without events it begins %t, with a delay of %s", begins, delay)
	}
	if !o.succeeded() || o.succeeded() {
		t.Error("want it to end once")
	}
	if _, alone, _ := o.failed(now); alone || !o.next.IsZero() {
		t.Error("an error of one event among others is taken for an outage")
	}
}

// Every handler is named, however long the errors are and however many.
func TestLastErrorNamesEveryHandlerWithinItsBound(t *testing.T) {
	t.Parallel()
	var names []string
	now := make(map[string]Failure)
	for i := range 40 {
		name := fmt.Sprintf("platform.handler_%02d", i)
		names = append(names, name)
		now[name] = Classify(events.Terminal(errors.New(strings.Repeat("é\x00\xff🦊", 5000))), 0)
	}
	d := decide(nil, handlers(names...), now, half)
	if len(d.LastError) > pgtx.MaxErrorBytes || !utf8.ValidString(d.LastError) || strings.ContainsRune(d.LastError, 0) {
		t.Errorf("%d bytes, valid %t", len(d.LastError), utf8.ValidString(d.LastError))
	}
	for _, name := range names {
		if !strings.Contains(d.LastError, "TerminalError: "+name+": ") {
			t.Errorf("%s is not named", name)
		}
	}
	got := pgtx.CleanText(strings.Repeat("a\xff", pgtx.MaxErrorBytes), pgtx.MaxErrorBytes)
	if len(got) > pgtx.MaxErrorBytes {
		t.Errorf("cleaned text has %d bytes", len(got))
	}
}

func TestPostgresErrorsAreClassified(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		code    string
		earlier int
		class   string
		means   disposition
	}{
		{"23505", 1, "IntegrityError", transient}, {"23505", 2, "IntegrityError", terminal},
		{"23P01", 1, "IntegrityError", transient}, {"23514", 0, "IntegrityError", terminal},
		{"23503", 0, "IntegrityError", transient},
		{"23503", 1, "IntegrityError", transient}, {"23503", 2, "IntegrityError", terminal},
		{"40001", 0, "SerializationError", free}, {"40P01", 0, "DeadlockError", free},
		{"57P01", 0, "ConnectionError", free}, {"08006", 0, "ConnectionError", free},
		{"57014", 0, "TimeoutError", transient}, {"25P02", 0, "AbortedTransaction", transient},
		{"53100", 0, "ServerError", free}, {"53200", 9, "ServerError", free}, {"53400", 0, "DatabaseError", transient},
		{"58030", 0, "ServerError", free}, {"58P01", 0, "ServerError", free}, {"25006", 0, "ServerError", free},
		{"57P02", 0, "ConnectionError", free}, {"57P04", 0, "ServerError", free},
		{"42501", 0, "DatabaseError", transient}, {"22012", 0, "DatabaseError", transient},
	} {
		f := Classify(fmt.Errorf("wrapped: %w", &pgconn.PgError{Code: c.code, Message: "m"}), c.earlier)
		if f.Class != c.class || f.disposition != c.means {
			t.Errorf("%s after %d failures: %s %d, want %s %d", c.code, c.earlier, f.Class, f.disposition, c.class, c.means)
		}
	}
}

// The cause of a file's error is a net.Error to the standard library.
func TestErrorsOfFilesAreNoConnectionErrors(t *testing.T) {
	t.Parallel()
	_, missing := os.Open(filepath.Join(t.TempDir(), "missing"))
	moved := os.Rename(filepath.Join(t.TempDir(), "missing"), filepath.Join(t.TempDir(), "elsewhere"))
	for _, err := range []error{missing, moved} {
		if f := Classify(fmt.Errorf("wrapped: %w", err), 0); f.Class != "FileError" || f.disposition != transient {
			t.Errorf("%d: %s %d", err, f.Class, f.disposition)
		}
	}
}
