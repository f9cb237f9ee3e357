package console

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"spectral/internal/core/events/infrastructure/postgres/operator"
)

func TestPayloadsStayExact(t *testing.T) {
	t.Parallel()
	for _, exact := range []string{"9007199254740993", "-0", "1e400", "0.1000000000000000055511151231257827", "1.50",
		`"\u003cb\u003e"`, `"1"`} {
		if got := pretty(json.RawMessage(`{"n":` + exact + `}`)); got != "{\n  \"n\": "+exact+"\n}" {
			t.Errorf("%s became %s", exact, got)
		}
	}
	if got := pretty(json.RawMessage("not JSON \u202e\x00")); got != `not JSON \u202e\u0000` {
		t.Errorf("text became %q", got)
	}
	long := pretty(json.RawMessage(`"` + strings.Repeat("ä", maxPayload) + `"`))
	if len(long) > maxPayload+200 || !strings.Contains(long, "more than 256 KiB") {
		t.Errorf("a long payload has %d bytes", len(long))
	}
}

func TestNumbersAndTimes(t *testing.T) {
	t.Parallel()
	now, small, zero := fixtureNow, 0.0014, time.Time{}
	for want, got := range map[string]string{
		"0": count(0), "999": count(999), "1,000": count(1000), "−1,234,567": count(-1234567),
		"9,223,372,036,854,775,807": count(int64(9223372036854775807)),
		"10,000+":                   bounded(operator.MaxWaiting + 1), "9,999": bounded(9999), "1 event": counted(1, "event"),
		"10,000+ crashes": counted(10_001, "crash"), "0.02": rateText(0.017),
		"12.3": rateText(12.34), "1,204": rateText(1204.4),
		"33.3 %": percent(1, 3), "0 %": percent(1, 0), "1.4 ms": secondsText(operator.Percentiles{Count: 1}, &small),
		"–": secondsText(operator.Percentiles{}, nil), "0 s": durationText(-5), "41 s": durationText(41),
		"12 min": durationText(12*60 + 59), "3 h 5 min": durationText(3*3600 + 5*60), "2 d 1 h": durationText(49 * 3600),
		"empty": until(0, 5, 0), "grows": until(1, 5, 2), "empties in about 4 min": until(720, 1, 4),
		"stands still": until(7, 0, 0), "stays as large": until(7, 2, 2),
		`<time datetime="2026-12-01T11:59:00Z" title="2026-12-01 11:59:00.000 UTC">1 min ago</time>`: string(when(now,
			now.Add(-time.Minute))),
		`<time datetime="2026-12-01T12:00:30Z" title="2026-12-01 12:00:30.000 UTC">in 30 s</time>`: string(when(now,
			now.Add(30*time.Second))),
		"– ": string(when(now, &zero)) + " ", "–  ": string(when(now, (*time.Time)(nil))) + "  ",
		`a\u0007\u202eb`: visible("a\a\u202eb"), "one …": firstLine("one\ntwo"), "in flight": words(operator.InFlight),
		`<code class="id" title="0198c5d4-9a52-7c11-8f0e-3b7a4d2f6e10" data-copy="0198c5d4-9a52-7c11-8f0e-3b7a4d2f6e10">` +
			"0198c5d4…2f6e10</code>": string(shortID("0198c5d4-9a52-7c11-8f0e-3b7a4d2f6e10")),
		"": operationOf(json.RawMessage(`{"operation": "javascript:x"}`)),
		"0198c5d4-9a52-7c11-8f0e-3b7a4d2f6e10": operationOf(json.RawMessage(
			`{"operation": "0198c5d4-9a52-7c11-8f0e-3b7a4d2f6e10"}`)),
	} {
		if got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}
