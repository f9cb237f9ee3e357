package sql_test

import (
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/google/uuid"

	"spectral/internal/core/events"
	"spectral/internal/core/events/infrastructure/postgres/operator"
)

// acts writes n actions by hand, seven in each second, each on another event.
func (d *database) acts(t testing.TB, n int) {
	t.Helper()
	exec(t, d.admin, `insert into core.operator_actions (acted_at, action, acted_by, login, event_ids, generation)
		select now() - make_interval(secs => i / 7), case i % 2 when 0 then 'replay' else 'discard' end, 'ann', 'shared',
			array[lpad(to_hex(i), 32, '0')::uuid], 1 + i % 3
		from generate_series(1, $1) i`, n)
}

// Through all pages each action comes once, the latest first, also of those of one moment; and a cursor goes with its
// filter.
func TestPagesOfActions(t *testing.T) {
	t.Parallel()
	d := setup(t)
	d.acts(t, 60)
	client := d.client(t)
	filter := operator.ActionFilter{Actions: []string{"replay"}, By: []string{"shared"}}
	seen, last, after := make(map[uuid.UUID]bool), time.Time{}, ""
	for {
		found, err := client.Actions(deadline(t), filter, operator.Page{Limit: 4, After: after, EventIDs: true})
		if err != nil || len(found.Actions) == 0 {
			t.Fatalf("%d actions after %d: %v", len(found.Actions), len(seen), err)
		}
		for _, a := range found.Actions {
			if seen[a.ID] || a.Action != "replay" || len(a.EventIDs) != 1 || a.Events != 1 || !last.IsZero() &&
				a.ActedAt.After(last) {
				t.Errorf("behind %s: %+v", last, a)
			}
			seen[a.ID], last = true, a.ActedAt
		}
		if after = found.Next; after == "" {
			break
		}
		filter.Generations = []events.Generation{1}
		if _, err := client.Actions(deadline(t), filter, operator.Page{Limit: 4, After: after}); !errors.Is(err,
			operator.ErrCursor) {
			t.Errorf("a cursor of another filter: %v", err)
		}
		filter.Generations = nil
	}
	if len(seen) != 30 {
		t.Errorf("%d actions, want 30", len(seen))
	}
}

// The words that a command completes with are those that the functions write.
func TestActionNames(t *testing.T) {
	t.Parallel()
	written := values[string](t, setup(t).admin, `select distinct m[1] from pg_proc,
		regexp_matches(prosrc, 'operator_action\(''([a-z_]+)''', 'g') m where pronamespace = 'core'::regnamespace`)
	slices.Sort(written)
	if have := slices.Sorted(slices.Values(operator.ActionNames())); !slices.Equal(have, slices.Compact(written)) {
		t.Errorf("%q, but the functions write %q", have, written)
	}
}
