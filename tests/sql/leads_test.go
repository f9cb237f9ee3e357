package sql_test

import (
	"strings"
	"testing"
)

// Workers register one after the other, so that the second sees the first.
func TestWorkersRegisterOneAfterTheOther(t *testing.T) {
	t.Parallel()
	d := setup(t)
	d.run(t, line{"worker", `begin; select core.worker_register(gen_random_uuid(), 1, 'first', '{"worlds.x": ["a.b"]}')`,
		""})
	second := d.later(t, "worker 2",
		`select core.worker_register(gen_random_uuid(), 1, 'second', '{"worlds.x": ["a.c"]}')`)
	d.run(t, line{"worker", "commit", ""})
	if have := second(); !strings.Contains(have, "worker first is live and handles worlds.x") {
		t.Errorf("the second is answered with %q", have)
	}
}
