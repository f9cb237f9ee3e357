package dispatch

import (
	"fmt"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/google/uuid"

	"spectral/internal/core/events/infrastructure/postgres/pgtx"
)

func TestErrorGroupLeavesOutWhatVaries(t *testing.T) {
	t.Parallel()
	for message, want := range map[string]string{
		"card 01a22e89-1d05-70a0-b9ed-40de2eca8e39 has version 7, not 8": "card # has version #, not #",
		`no card "The Harbour of Veyra" in 'box 12'`:                     "no card # in #",
		"can't reach the user's server at 10.0.0.7:5432":                 "can't reach the user's server at #",
		"2026-11-30T22:13:00.123Z: timeout after 1.5s":                   "# timeout after #",
		"ids [1, 2, 3,4] and (17)":                                       "ids [#] and (#)",
		"hash deadbeefcafe of commit 3fa9c15":                            "hash # of commit #",
		"one\n\ttwo   three":                                             "one two three",
		"a cut \"quotation with 1":                                       "a cut #",
		"an unpaired ' stays":                                            "an unpaired ' stays",
		"no «Veyra», no “card”, no ‘box’, no 'it\\'s'":                   "no #, no #, no #, no #",
		"résumé №٣ of żółć":                                              "résumé №# of żółć",
		"":                                                               "",
	} {
		if _, got := errorGroup("platform.a", "E", message); got != want {
			t.Errorf("%q becomes %q, want %q", message, got, want)
		}
	}
	id, _ := errorGroup("platform.a", "E", "x")
	for _, other := range [][3]string{{"platform.b", "E", "x"}, {"platform.a", "F", "x"}, {"platform.a", "E", "y"}} {
		if same, _ := errorGroup(other[0], other[1], other[2]); same == id {
			t.Errorf("%q is in the same group", other)
		}
	}
	if _, long := errorGroup("platform.a", "E", strings.Repeat("é\x00\xff", 1<<20)); !utf8.ValidString(long) ||
		len(long) > maxGroupBytes {
		t.Errorf("a hostile message becomes %d bytes", len(long))
	}
}

func TestFailuresOfThreeCausesMakeThreeGroups(t *testing.T) {
	t.Parallel()
	groups := make(map[string]bool)
	for n := range 6000 {
		message := []string{
			fmt.Sprintf("card %s is at version %d, want %d", uuid.New(), n, n+1),
			fmt.Sprintf(`user "anna %d" not found in workspace %s`, n, uuid.New()),
			fmt.Sprintf("dial tcp 10.0.%d.%d:%d: connection refused", n%7, n%250, n),
		}[n%3]
		id, _ := errorGroup("platform.mailer", "HandlerError", message)
		groups[id] = true
	}
	if len(groups) != 3 {
		t.Errorf("%d groups", len(groups))
	}
}

// In an outage no attempts are kept, but those of handlers that act outside: a replay must know that they had begun.
func TestAttemptsInAnOutage(t *testing.T) {
	t.Parallel()
	all := handlers("platform.plain", "platform.mailer")
	all[1].ActsOutside = "sends mail"
	d := decide(nil, all, map[string]Failure{
		"platform.plain":  {disposition: free, outage: true},
		"platform.mailer": {disposition: free, outage: true},
	}, half)
	if len(d.attempts) != 1 || d.attempts[0].HandlerName != "platform.mailer" {
		t.Errorf("kept: %+v", d.attempts)
	}
}

// Errors of data neither open a breaker nor keep it open: the dependency was reached.
func TestErrorsOfDataAreNoneOfADependency(t *testing.T) {
	t.Parallel()
	for class, fails := range map[string]bool{pgtx.ClassIntegrity: false, pgtx.ClassTimeout: true} {
		f, p, b := Failure{Class: class, disposition: transient}, Probed{}, breakers{}
		p.Note(&f)
		trips := false
		for range tripsAt {
			trips = b.failedWith("platform.mailer", uuid.New(), f)
		}
		if p.Failed != fails || trips != fails {
			t.Errorf("%s: the probe failed %t, the breaker trips %t", class, p.Failed, trips)
		}
	}
}
