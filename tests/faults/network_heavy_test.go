//go:build heavy

package faults_test

import (
	"testing"

	"spectral/tests/faults/proxy"
)

// The socket stays open, so that only the worker's own testTimeout (10 s) tells.
func TestAnswerToCommitNeverComes(t *testing.T) {
	losesCommit(t, proxy.Hush, []string{neighbour(1), neighbour(2), neighbour(3)}, testTimeout)
}

func TestConnectionLostAtCommitOfOneEvent(t *testing.T) {
	losesCommit(t, proxy.ForwardThenCut, []string{neighbour(1)}, testTimeout)
}
