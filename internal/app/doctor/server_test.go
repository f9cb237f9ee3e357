package doctor

import "testing"

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
		if have := queueState(usage); have != want {
			t.Errorf("a queue %v full is %s, want %s", usage, have, want)
		}
	}
}
