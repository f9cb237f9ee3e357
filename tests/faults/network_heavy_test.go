//go:build heavy

package faults_test

import (
	"testing"

	"spectral/tests/faults/proxy"
)

func TestConnectionLostAroundCommit(t *testing.T) {
	batch := []string{neighbour(1), neighbour(2), neighbour(3), neighbour(4)}
	for name, c := range map[string]struct {
		verdict proxy.Verdict
		keys    []string
	}{
		"before it arrives":                {proxy.Cutoff, batch},
		"in the middle of it":              {proxy.Tear, batch},
		"after that of one event":          {proxy.ForwardThenCut, batch[:1]},
		"without a word, for 10 s or more": {proxy.Hush, batch},
	} {
		t.Run(name, func(t *testing.T) { losesCommit(t, c.verdict, c.keys, testTimeout) })
	}
}
