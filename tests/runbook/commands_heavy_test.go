//go:build heavy

package runbook_test

import "testing"

func TestRunbookCommands(t *testing.T) {
	t.Parallel()
	executed(t, runbook, troubles, "sh")
}

func TestDeploymentCommands(t *testing.T) {
	t.Parallel()
	executed(t, deployment, deployments, "sh")
}
