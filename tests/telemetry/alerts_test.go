package telemetry_test

import (
	"encoding/json"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"testing"
)

const deploy = "../../deploy/"

// promtool runs the alerts against incidents made by hand.
func TestAlerts(t *testing.T) {
	t.Parallel()
	promtool, err := exec.LookPath("promtool")
	if err != nil {
		t.Skip("promtool is not installed: it is in the package prometheus of Debian")
	}
	for _, arguments := range [][]string{{"check", "rules", "rules.yaml"}, {"test", "rules", "rules_test.yaml"}} {
		cmd := exec.CommandContext(background(t), promtool, arguments...) //nolint:gosec // of this test
		cmd.Dir = deploy + "prometheus"
		if output, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("promtool %v: %v\n%s", arguments, err, output)
		}
	}
}

// Alerts and dashboard ask for metrics that exist, and alerts have a section of the docs.
func TestAlertsAndDashboardAskForWhatThereIs(t *testing.T) {
	t.Parallel()
	have := documentedMetrics(t)
	for _, file := range []string{"prometheus/rules.yaml", "grafana/spectral.json"} {
		text, err := os.ReadFile(deploy + file)
		must(t, err)
		if strings.HasSuffix(file, ".json") && !json.Valid(text) {
			t.Errorf("%s is no JSON", file)
		}
		asked := regexp.MustCompile(`\b(?:spectral|messaging|pgxpool)_[a-z0-9_]+`).FindAllString(string(text), -1)
		labels := []string{"messaging_destination_name", "messaging_consumer_group_name", "spectral_status",
			"spectral_state", "spectral_outcome", "spectral_generation", "spectral_event_generation",
			"spectral_subject", "spectral_action"}
		for _, name := range asked {
			metric := strings.TrimSuffix(strings.TrimSuffix(name, "_bucket"), "_count")
			if !slices.Contains(labels, name) && !slices.Contains(have, metric) {
				t.Errorf("%s asks for %s, which docs/telemetry.md does not have", file, name)
			}
		}
		for _, link := range regexp.MustCompile(`runbook_url: (\S+)#(\S+)`).FindAllStringSubmatch(string(text), -1) {
			page, err := os.ReadFile("../../" + link[1])
			must(t, err)
			found := false
			for line := range strings.Lines(string(page)) {
				heading := strings.ToLower(strings.TrimSpace(strings.TrimLeft(line, "#")))
				heading = regexp.MustCompile(`[^a-z0-9 -]`).ReplaceAllString(heading, "")
				found = found || strings.HasPrefix(line, "#") && strings.ReplaceAll(heading, " ", "-") == link[2]
			}
			if !found {
				t.Errorf("%s has no section %s", link[1], link[2])
			}
		}
	}
}
