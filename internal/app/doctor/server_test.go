package doctor

import (
	"strings"
	"testing"
)

func TestFaultsOfVersions(t *testing.T) {
	t.Parallel()
	for version, want := range map[int]int{150015: 2, 150016: 0, 160011: 2, 160013: 0, 170007: 2, 170008: 0, 180001: 2, 180002: 0, 190000: 0} {
		if have := len(faultsOf(version)); have != want {
			t.Errorf("version %d has %d faults, want %d", version, have, want)
		}
	}
}

func TestQueueFill(t *testing.T) {
	t.Parallel()
	for usage, want := range map[float64]State{0: Fine, 0.249: Fine, 0.25: Warning, 0.49: Warning, 0.5: Critical, 1: Critical} {
		_, findings, err := queueState(usage)
		have := Fine
		if len(findings) > 0 {
			have = findings[0].State
		}
		if err != nil || have != want {
			t.Errorf("a queue %v full is %s, want %s (%v)", usage, have, want, err)
		}
	}
}

func TestWhereThingsAreDefined(t *testing.T) {
	t.Parallel()
	for subject, want := range map[string]string{
		"index core.outbox_due":                                          "00007_core_outbox.sql",
		"constraint outbox_lease_seconds_range of core.outbox":           "00031_core_outbox_lease_columns.sql",
		"column core.outbox.crashes":                                     "00024_core_outbox_crashes.sql",
		"function core.outbox_deliver(uuid[], timestamp[])":              "core_lease_settlement.sql",
		"policy world_model_cards_workspace of worlds.world_model_cards": "migrations",
		"nonsense": "db/migrations",
	} {
		if have := definedIn(subject); !strings.Contains(have, want) {
			t.Errorf("%s is defined in %s, want %s", subject, have, want)
		}
	}
}
