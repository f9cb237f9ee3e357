//go:build heavy

package faults_test

import (
	"testing"

	"spectral/tests/faults/proxy"
)

func TestConnectionLostAroundCommitRepeatsNothing(t *testing.T) {
	batch := plainKeys(1, 4)
	for name, c := range map[string]struct {
		action proxy.Action
		keys   []string
	}{
		"before it arrives":    {proxy.Reset, batch},
		"after a single event": {proxy.ForwardThenReset, batch[:1]},
		"no reply, no reset":   {proxy.DropReplies, batch},
	} {
		t.Run(name, func(t *testing.T) { loseCommit(t, c.action, c.keys) })
	}
}
