package app

import "testing"

func TestAdviceOnWhatRepairLeaves(t *testing.T) {
	t.Parallel()
	const superuser = "run `workers migrate repair` as a superuser"
	for subject, c := range map[string]struct{ fault, want string }{
		"role spectral_operator login inherit superuser": {"", superuser},
		"schema worlds owner postgres":                   {"", superuser},
		"owner postgres of table core.outbox": {"ERROR: must be owner of table outbox",
			"ERROR: must be owner of table outbox: " + superuser},
		"role spectral_unknown login": {"", "names that begin with spectral_ are ours: rename that role, or drop it"},
		"function core.f()":           {"ERROR: others depend on it", "refused: ERROR: others depend on it"},
	} {
		r := repair{faults: map[string]string{subject: c.fault}}
		if have := r.advice(Difference{Subject: subject, Is: subject}); have != c.want {
			t.Errorf("%s: %q, want %q", subject, have, c.want)
		}
	}
}
