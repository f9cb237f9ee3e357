package app

import (
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"spectral/internal/core/events/infrastructure/postgres/notify"
)

// A loop that stands still for a minute is a fault of the process while the database answers, and only then.
func TestHealthChecks(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		state       notify.State
		after       time.Duration // since the last poll, and the begin of a step of the reaper
		unreachable bool
		standing    string
		ready       bool
	}{
		"listening":                      {notify.Listening, time.Second, false, "", true},
		"stands still":                   {notify.Listening, 2 * loopLimit, false, "notifier, reaper", true},
		"an outage":                      {notify.Reconnecting, 2 * loopLimit, true, "", false},
		"polling":                        {notify.Polling, time.Second, false, "", true},
		"polling, but without an answer": {notify.Polling, 2 * pollWithin, true, "", false},
		"stopping":                       {notify.Stopping, 2 * loopLimit, false, "reaper", false},
		"refused":                        {notify.Refused, 2 * loopLimit, false, "reaper", false},
		"starting":                       {notify.Starting, time.Second, false, "", false},
		"starting, which may wait":       {"", 2 * loopLimit, false, "reaper", false},
	} {
		synctest.Test(t, func(t *testing.T) {
			health := notify.NewHealth()
			if c.state != "" {
				health.Set(c.state, "")
				health.BeginPoll()
			}
			end := health.Step("reaper")
			health.Step("retention")() // is over
			<-time.After(c.after)      // of the bubble's clock
			standing := ""
			if err := checkLoops(health, func() bool { return !c.unreachable }); err != nil {
				_, standing, _ = strings.Cut(err.Error(), "answers: ")
			}
			if standing != c.standing {
				t.Errorf("%s: /healthz says that %q stand still", name, standing)
			}
			if err := checkReady(health); (err == nil) != c.ready {
				t.Errorf("%s: /readyz: %v", name, err)
			}
			end()
			if loops := health.Stuck(loopLimit); slices.Contains(loops, "reaper") {
				t.Errorf("%s: once its step has ended, the reaper stands still", name)
			}
		})
	}
}
