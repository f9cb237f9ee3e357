package operator

import (
	"context"
	"time"

	"spectral/internal/core/events"
	"spectral/internal/core/events/infrastructure/postgres/pgtx"
	"spectral/internal/core/telemetry"
)

// MaxTimeline is how far back a timeline may begin: core.event_stats keeps hours for so long.
const MaxTimeline = 8 * 24 * time.Hour

// timelineSlots is how many parts a timeline has at most.
const timelineSlots = 48

// Timeline is what workers counted since a time: by the minute within 24 hours, otherwise by the hour.
type Timeline struct {
	From time.Time `json:"from"` // by the database clock
	To   time.Time `json:"to"`
	// SlotSeconds is the length of a part of the time: whole minutes, or hours where hours are counted.
	SlotSeconds int            `json:"slot_seconds"`
	Lines       []TimelineLine `json:"lines"`   // by event type; the type itself, then its handlers
	Deploys     []Deploy       `json:"deploys"` // generations that were registered within this time, in order
}

// TimelineLine is one event type, or one of its handlers.
type TimelineLine struct {
	EventType string `json:"event_type"`
	// HandlerName is empty for the type itself.
	HandlerName string `json:"handler_name"`
	Published   int64  `json:"published"` // of a type
	Handled     int64  `json:"handled"`   // of a type: delivered
	Retried     int64  `json:"retried"`   // of a type
	Failed      int64  `json:"failed"`    // of a type
	FailedCalls int64  `json:"failed_calls"`
	// UntilClaimed is how long events of a type were due until then, Took how long calls of a handler took.
	UntilClaimed Percentiles `json:"until_claimed"`
	Took         Percentiles `json:"took"`
	// Slots has the handled events of each part of the time.
	Slots []int64 `json:"slots"`
}

// Percentiles of durations, in seconds: the upper bound of their buckets, as [telemetry.Bounds] has them. It is null
// where nothing was measured, and beyond the last bound.
type Percentiles struct {
	Count int64    `json:"count"`
	P50   *float64 `json:"p50_seconds"`
	P95   *float64 `json:"p95_seconds"`
	P99   *float64 `json:"p99_seconds"`
}

// LongestMeasured is the last bound of durations: longer ones are not told apart.
func LongestMeasured() time.Duration {
	bounds := telemetry.Bounds()
	return pgtx.Seconds(bounds[len(bounds)-1])
}

// Deploy is a generation that was registered.
type Deploy struct {
	Generation   events.Generation `json:"generation"`
	RegisteredAt time.Time         `json:"registered_at"`
}

const statsSince = `core.event_stats s
where s.hourly = ($1::timestamptz < statement_timestamp() - interval '24 hours 1 minute') and s.at >= $1
  and (cardinality($2::text[]) = 0 or s.event_type = any ($2))
  and (cardinality($3::bigint[]) = 0 or s.generation = any ($3))`

// Timeline returns what workers counted in the last time, at most MaxTimeline, of the event types and generations of
// filter, whose other fields do not count.
func (c *Client) Timeline(ctx context.Context, since time.Duration, filter Filter) (t Timeline, err error) {
	types, generations := append([]string{}, filter.EventTypes...), []int64{}
	for _, g := range filter.Generations {
		generations = append(generations, int64(g))
	}
	t.Lines = []TimelineLine{}
	type key struct{ eventType, handler string }
	places := make(map[key]int)
	err = c.inTx(ctx, "statistics of events", func(tx *pgtx.Tx) error {
		if err := tx.QueryRow(ctx, "select clock_timestamp()").Scan(&t.To); err != nil {
			return err
		}
		unit := time.Minute
		if since > 24*time.Hour {
			unit = time.Hour
		}
		slot := max((since/timelineSlots + unit - 1).Truncate(unit), unit)
		slots := int((since + slot - 1) / slot)
		t.SlotSeconds = int(slot.Seconds())
		t.From = t.To.Add(-since)
		end := t.From.Add(time.Duration(slots) * slot)
		counts, err := rows[struct {
			EventType, HandlerName              string
			Slot                                int
			Published, Handled, Retried, Failed int64
		}](ctx, tx, `
select s.event_type, s.handler_name,
  least(width_bucket(extract(epoch from s.at), extract(epoch from $1::timestamptz), extract(epoch from $4::timestamptz),
    $5), $5) as slot,
  sum(s.published)::bigint as published, sum(s.handled)::bigint as handled, sum(s.retried)::bigint as retried,
  sum(s.failed)::bigint as failed
from `+statsSince+` group by 1, 2, 3 order by 1, 2, 3`, t.From, types, generations, end, slots)
		if err != nil {
			return err
		}
		for _, row := range counts {
			k := key{row.EventType, row.HandlerName}
			place, ok := places[k]
			if !ok {
				place = len(t.Lines)
				places[k] = place
				t.Lines = append(t.Lines, TimelineLine{
					EventType: row.EventType, HandlerName: row.HandlerName, Slots: make([]int64, slots),
				})
			}
			l := &t.Lines[place]
			l.Published += row.Published
			l.Handled += row.Handled
			l.Retried += row.Retried
			if row.HandlerName == "" {
				l.Failed += row.Failed
			} else {
				l.FailedCalls += row.Failed
			}
			l.Slots[max(row.Slot, 1)-1] += row.Handled
		}
		took, err := rows[struct {
			EventType, HandlerName string
			Counts                 []int64
		}](ctx, tx, `
select b.event_type, b.handler_name, array_agg(b.n order by b.place)::bigint[] as counts
from (
  select s.event_type, s.handler_name, h.place, sum(h.n)::bigint as n
  from (select * from `+statsSince+`) s
    cross join unnest(case s.handler_name when '' then s.pickup else s.handling end) with ordinality as h(n, place)
  group by 1, 2, 3) b group by 1, 2`, t.From, types, generations)
		if err != nil {
			return err
		}
		for _, row := range took {
			switch place, ok := places[key{row.EventType, row.HandlerName}]; {
			case !ok: // it was counted in between
			case row.HandlerName == "":
				t.Lines[place].UntilClaimed = percentiles(row.Counts)
			default:
				t.Lines[place].Took = percentiles(row.Counts)
			}
		}
		t.Deploys, err = rows[Deploy](ctx, tx, "select generation, registered_at from core.deployments where "+
			"registered_at >= $1 order by registered_at", t.From)
		return err
	})
	return t, err
}

func percentiles(counts []int64) Percentiles {
	total := int64(0)
	for _, n := range counts {
		total += n
	}
	bounds := telemetry.Bounds()
	of := func(share float64) *float64 {
		sum := int64(0)
		for i, n := range counts {
			if sum += n; n > 0 && float64(sum) >= share*float64(total) && i < len(bounds) {
				return &bounds[i]
			}
		}
		return nil
	}
	return Percentiles{Count: total, P50: of(0.5), P95: of(0.95), P99: of(0.99)}
}
