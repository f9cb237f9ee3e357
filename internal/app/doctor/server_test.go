package doctor

import "testing"

func TestMinorVersionsBeforeTheFixAreFaulty(t *testing.T) {
	t.Parallel()
	for version, want := range map[int]bool{
		150015: true, 150016: false, 160011: true, 160013: false, 170007: true, 170008: false, 180001: true,
		180002: false, 190000: false,
	} {
		if have := isFaulty(version); have != want {
			t.Errorf("version %d is faulty: %t, want %t", version, have, want)
		}
	}
}

func TestAQueueIsCriticalFromHalfFull(t *testing.T) {
	t.Parallel()
	for usage, want := range map[float64]State{0: Fine, 0.249: Fine, 0.25: Warning, 0.49: Warning, 0.5: Critical,
		1: Critical} {
		if have := queueState(usage); have != want {
			t.Errorf("a queue %v full is %s, want %s", usage, have, want)
		}
	}
}

func TestAnOptionIsFoundByItsWholeName(t *testing.T) {
	t.Parallel()
	for options, want := range map[string]bool{
		"-c role=x": true, "-crole=x": true, "--role=x": true, "-c jit=off -c role=x": true,
		"": false, "-c session_replication_role=replica": false, "-c application_name=role": false,
	} {
		if have := givenAsOption(options, "role"); have != want {
			t.Errorf("in %q role is set: %t, want %t", options, have, want)
		}
	}
}
