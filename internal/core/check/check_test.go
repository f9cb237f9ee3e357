package check_test

import (
	"math"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"spectral/internal/core/check"
)

func TestChecksNameTheField(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	for _, c := range []struct {
		err  error
		want string // empty: valid
	}{
		{check.Text("f", "", false, 0), ""},
		{check.Text("f", strings.Repeat("é", 5), true, 10), ""},
		{check.Text("f", strings.Repeat("é", 5), true, 9), "f has 10 bytes, the limit is 9"},
		{check.Text("f", " \n", true, 9), "f is missing"},
		{check.Text("f", "\xff", true, 9), "f is not valid UTF-8, or has a NUL character"},
		{check.Text("f", "a\x00", false, 9), "f is not valid UTF-8, or has a NUL character"},
		{check.Line("f", "", 9), "f is missing"}, {check.Line("f", "a\nb", 9), "f has control characters"},
		{check.Prose("f", "a\n\tb", 9), ""}, {check.Prose("f", "a\rb", 9), "f has control characters"},
		{check.Time("f", time.Time{}, now), "f is missing"}, {check.Time("f", now.Add(check.MaxClockLead), now), ""},
		{check.Time("f", now.Add(check.MaxClockLead+1), now), "f is 2026-03-01T12:05:00Z, which is in the future"},
		{check.ID("f", uuid.Nil), "f is missing"}, {check.Range("f", 2, 1, 2), ""},
		{check.Range("f", 3, 1, 2), "f is 3, must be from 1 to 2"}, {check.AtLeast("f", math.MaxInt64, 1), ""},
		{check.AtLeast("f", 0, 1), "f is 0, must be at least 1"}, {check.OneOf("f", "b", "a", "b"), ""},
		{check.OneOf("f", "c", "a", "b"), `f is "c", must be a or b`},
	} {
		if c.want == "" && c.err != nil || c.want != "" && (c.err == nil || c.err.Error() != c.want) {
			t.Errorf("%v, want %q", c.err, c.want)
		}
	}
}
