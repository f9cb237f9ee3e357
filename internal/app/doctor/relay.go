package doctor

import (
	"context"
	"fmt"
	"time"

	"spectral/internal/core/events/infrastructure/postgres/operator"
	"spectral/internal/core/events/infrastructure/postgres/pgtx"
)

// Limits of the check of the relay.
const (
	relayedTooLong = time.Minute // a message is handled or given back sooner, unless there is a backlog
	comparedFor    = time.Hour   // the longest comparison
)

// relay finds events that a broker has and no handler gets, and a comparison that did not end.
func relay(ctx context.Context, e *examination) (string, error) {
	path, err := e.facts.RelayPath(ctx)
	if err != nil {
		return "", err
	}
	if path.Path == pgtx.PathBoth && path.Seconds > comparedFor.Seconds() {
		e.found(Note, "events have taken both paths for %s: a comparison did not end", span(path.Seconds)).
			fix("run `workers relay back`, or `workers relay switch`")
	}
	all, err := e.facts.RelayedTypes(ctx, countUpTo)
	relayed, oldest := int32(0), 0.0
	for _, t := range all {
		relayed, oldest = relayed+t.Events, max(oldest, t.Seconds)
		switch {
		case t.Seconds < relayedTooLong.Seconds():
		case t.Workers == 0:
			e.found(Critical, "%s of type %s in generation %d sent to the broker, the first %s ago, and no live worker of the "+
				"generation handles the type", operator.Counted(t.Events, "event"), t.EventType, t.Generation, span(t.Seconds)).
				fix("run workers of generation %d with --relay jetstream that handle it; or run `workers relay back`, which gives "+
					"all relayed events back to Postgres", t.Generation)
		default:
			e.found(Warning, "%s of type %s in generation %d sent to the broker, the first %s ago, and not handled yet",
				operator.Counted(t.Events, "event"), t.EventType, t.Generation, span(t.Seconds)).
				fix("see in the log of the workers whether the broker is ready, and whether they run with --relay jetstream; " +
					"if it cannot work soon, run `workers relay back`, which gives all relayed events back to Postgres")
		}
	}
	return fmt.Sprintf("events take the path %s; %d relayed, the first %s ago", path.Path, relayed, span(oldest)), err
}
