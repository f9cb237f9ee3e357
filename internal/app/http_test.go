package app

import (
	"testing"
	"testing/synctest"
	"time"

	"spectral/internal/core/events/infrastructure/postgres/notify"
)

// A minute without a poll is a fault of the process while the database answers, and only then.
func TestHealthChecks(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		state       notify.State
		after       time.Duration // since the last poll
		unreachable bool
		live, ready bool
	}{
		"listening":                      {notify.Listening, time.Second, false, true, true},
		"stands still":                   {notify.Listening, 2 * loopLimit, false, false, true},
		"an outage":                      {notify.Reconnecting, 2 * loopLimit, true, true, false},
		"polling":                        {notify.Polling, time.Second, false, true, true},
		"polling, but without an answer": {notify.Polling, 2 * pollWithin, true, true, false},
		"stopping":                       {notify.Stopping, 2 * loopLimit, false, true, false},
		"refused":                        {notify.Refused, 2 * loopLimit, false, true, false},
		"starting":                       {notify.Starting, time.Second, false, true, false},
	} {
		synctest.Test(t, func(t *testing.T) {
			health := notify.NewHealth()
			health.Set(c.state, "")
			<-time.After(c.after) // of the bubble's clock
			if err := checkLoop(health, func() bool { return !c.unreachable }); (err == nil) != c.live {
				t.Errorf("%s: /healthz: %v", name, err)
			}
			if err := checkReady(health); (err == nil) != c.ready {
				t.Errorf("%s: /readyz: %v", name, err)
			}
		})
	}
}
