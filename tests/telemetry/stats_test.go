package telemetry_test

import "testing"

// What a worker has counted is written when it stops at the latest.
func TestStatsAreWrittenAtTheEnd(t *testing.T) {
	t.Parallel()
	p := start(t, nil)
	p.work()
	p.shutdown()
	for _, c := range []struct {
		handler, columns string
		want             []int64
	}{
		{"", "sum(handled), sum(failed), sum((select sum(n) from unnest(pickup) n))::bigint", []int64{2, 1, 3}},
		{"platform.world_model_card_projector",
			"sum(handled), sum(failed), sum((select sum(n) from unnest(handling) n))::bigint", []int64{2, 1, 3}},
	} {
		have := make([]int64, 3)
		must(t, p.admin.QueryRow(p.ctx, "select "+c.columns+" from core.event_stats where hourly and handler_name = $1 and "+
			"event_type = 'worlds.world_model_card.published'", c.handler).Scan(&have[0], &have[1], &have[2]))
		for i, want := range c.want {
			if have[i] < want {
				t.Errorf("of %q it wrote %v, want at least %v", c.handler, have, c.want)
				break
			}
		}
	}
}
