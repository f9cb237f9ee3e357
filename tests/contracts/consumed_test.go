package contracts_test

import (
	"testing"

	"spectral/internal/core/events"
	"spectral/internal/core/events/infrastructure/postgres/publish"
	"spectral/tests/pgtest"
)

// Two generations live side by side, and only one of them handles a type: its events must not settle unhandled because
// the other's build says so, nor the other's wait for ever, whichever version they are of.
func TestWhetherATypeIsConsumedIsTheGenerations(t *testing.T) {
	t.Parallel()
	ctx := background(t)
	pool := pgtest.Pool(t, pgtest.New(t))
	register := func(g events.Generation, version int, unconsumed bool) {
		t.Helper()
		contracts, err := events.NewContracts(events.Contract{
			Type: oldType, Version: version, Source: events.Worlds, Payload: noted{Note: "n"}, ContentClass: events.Operational,
			Unconsumed: unconsumed,
		})
		must(t, err)
		must(t, publish.Register(ctx, pool, g, contracts))
	}
	status := func(g events.Generation, version int) (got string) {
		t.Helper()
		var id string
		must(t, pool.QueryRow(ctx,
			`select core.outbox_publish($1, 'worlds', '{"note": "n"}', p_event_version => $2, p_generation => $3)::text`,
			oldType, version, g).Scan(&id))
		must(t, pool.QueryRow(ctx, "select status from core.outbox where id = $1", id).Scan(&got))
		return got
	}
	register(1, 1, true)
	register(2, 2, false)
	register(3, 2, true)
	for _, c := range []struct {
		generation events.Generation
		version    int
		want       string
	}{{1, 1, "delivered"}, {2, 1, "pending"}, {2, 2, "pending"}, {3, 1, "delivered"}, {3, 2, "delivered"},
		{1, 2, "delivered"}} {
		if got := status(c.generation, c.version); got != c.want {
			t.Errorf("version %d in generation %d is %s, want %s", c.version, c.generation, got, c.want)
		}
	}
	register(3, 2, false) // another build of the same generation
	if got := status(3, 1); got != "pending" {
		t.Errorf("the event is %s", got)
	}
}
