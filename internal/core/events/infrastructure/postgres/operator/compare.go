package operator

import (
	"context"
	"fmt"
	"math"
	"slices"
	"time"

	"spectral/internal/core/events"
	"spectral/internal/core/events/infrastructure/postgres/pgtx"
	"spectral/internal/core/telemetry"
)

// EnoughAttempts is how many attempts of a handler each of two generations needs for a verdict.
const EnoughAttempts = 100

// Limits from which on a handler is worse in B: three for the failure rate, which exceeds all, and three for p95.
const (
	worseRate   = 0.01 // difference of the failure rates
	worseRatio  = 1.5
	worseErrors = 2  // standard errors of a two-proportion test
	enoughCalls = 20 // measured: of fewer, p95 is the longest
	slowerRatio = 2
	slowerLeast = 0.01 // seconds
)

// Verdicts of a comparison and of its handlers. Handlers and contracts that only one generation has are added or gone.
const (
	Fine      = "fine"
	Worse     = "worse"
	NotEnough = "not enough"
	Added     = "added"
	Gone      = "gone"
)

// Comparison says how generation B did beside generation A.
type Comparison struct {
	A        events.Generation   `json:"generation_a"`
	B        events.Generation   `json:"generation_b"`
	From     time.Time           `json:"from"` // by the database clock
	Verdict  string              `json:"verdict"`
	Reasons  []string            `json:"reasons"` // why B is worse
	Handlers []HandlerComparison `json:"handlers"`
	Groups   []NewGroup          `json:"new_groups"` // first seen in B, seen in that time, and not muted
	// Contracts that only one of the two has; null if one is retired, because its contracts are not known any more.
	Contracts []ContractDifference `json:"contracts"`
}

// HandlerComparison is a handler that either generation has registered.
type HandlerComparison struct {
	EventType string              `json:"event_type"`
	Handler   string              `json:"handler"`
	Verdict   string              `json:"verdict"`
	InA       HandlerFigures      `json:"in_a"`
	InB       HandlerFigures      `json:"in_b"`
	Pending   []events.Generation `json:"pending"` // of the two, those with pending events of the type
}

// HandlerFigures is what the workers of a generation counted of a handler.
type HandlerFigures struct {
	Attempts    int64       `json:"attempts"`
	Failures    int64       `json:"failures"` // of the attempts
	FailureRate float64     `json:"failure_rate"`
	Took        Percentiles `json:"took"`
}

// NewGroup is a group of errors that was first seen in a generation.
type NewGroup struct {
	GroupID    string    `json:"group_id"`
	Handler    string    `json:"handler"`
	ErrorClass string    `json:"error_class"`
	Message    string    `json:"message"`
	FirstSeen  time.Time `json:"first_seen"`
}

// ContractDifference is a contract that only one of two generations has declared. A new version of a type that A
// declared does not show: core.event_types keeps generations by type. A version that B no longer declares does.
type ContractDifference struct {
	EventType string              `json:"event_type"`
	Version   int                 `json:"event_version"`
	Change    string              `json:"change"`
	Pending   []events.Generation `json:"pending"` // of the two, those with pending events of the type
}

const pendingOf = `array(select p.generation from pending p where p.event_type = t.event_type
  order by p.generation) as pending `

const withPending = "with pending as materialized (select * from core.pending_types() where generation in ($1, $2)) "

// Compare compares what generations a and b did in the last time, at most [MaxTimeline].
func (c *Client) Compare(ctx context.Context, a, b events.Generation, since time.Duration) (r Comparison, err error) {
	r = Comparison{A: a, B: b, Reasons: []string{}}
	err = c.inTx(ctx, "compare generations", func(tx *pgtx.Tx) error {
		known, err := rows[struct {
			Generation events.Generation
			Retired    bool
		}](ctx, tx, "select generation, status = 'retired' as retired from core.deployments order by generation")
		if err != nil {
			return err
		}
		var names []string
		retired := false
		for _, k := range known {
			names = append(names, fmt.Sprint(k.Generation))
			retired = retired || k.Retired && (k.Generation == a || k.Generation == b)
		}
		for _, g := range []events.Generation{a, b} {
			if !slices.Contains(names, fmt.Sprint(g)) {
				return fmt.Errorf("generation %d is not registered; these are: %s", g, Joined(names))
			}
		}
		r.Handlers, err = rows[HandlerComparison](ctx, tx, withPending+`
select t.event_type, t.handler_name as handler,
  case when bool_and(t.generation = $1) then 'gone' when bool_and(t.generation = $2) then 'added' else '' end
    as verdict,
  `+pendingOf+`
from core.handlers t where t.generation in ($1, $2)
group by t.event_type, t.handler_name order by t.handler_name, t.event_type`, a, b)
		if err != nil {
			return err
		}
		if all := r.Handlers; !slices.ContainsFunc(all, func(h HandlerComparison) bool { return h.Verdict != Gone }) {
			return fmt.Errorf("no worker of generation %d has registered its handlers: start one, then compare", b)
		}
		r.Groups, err = rows[NewGroup](ctx, tx, `
select group_id, handler_name as handler, error_class, message, first_seen from core.error_groups
where first_generation = $1 and not coalesce(muted_until > clock_timestamp(), false)
  and last_seen > clock_timestamp() - make_interval(secs => $2) order by first_seen, group_id`, b, since.Seconds())
		if err != nil || retired {
			return err
		}
		// a build that registers its contracts also takes over the rows that a lower generation wrote
		r.Contracts, err = rows[ContractDifference](ctx, tx, withPending+`
select t.event_type, t.event_version as version, case when t.in_b then 'added' else 'gone' end as change, `+pendingOf+`
from (select e.event_type, e.event_version,
    e.consumed_in ? $1::bigint::text and e.registered_by >= $1 as in_a,
    e.consumed_in ? $2::bigint::text and e.registered_by >= $2 as in_b from core.event_types e) t
where t.in_a <> t.in_b order by t.event_type, t.event_version`, a, b)
		return err
	})
	if err != nil {
		return r, err
	}
	inB, err := c.Timeline(ctx, since, Filter{Generations: []events.Generation{b}})
	if err != nil {
		return r, err
	}
	inA, err := c.Timeline(ctx, since, Filter{Generations: []events.Generation{a}})
	r.From = inA.From
	for i := range r.Handlers {
		h := &r.Handlers[i]
		h.InA, h.InB = figuresOf(inA, h), figuresOf(inB, h)
	}
	r.conclude()
	return r, err
}

func figuresOf(t Timeline, h *HandlerComparison) (f HandlerFigures) {
	for _, l := range t.Lines {
		if l.EventType == h.EventType && l.HandlerName == h.Handler {
			f = HandlerFigures{
				Attempts: l.Handled + l.Retried + l.FailedCalls, Failures: l.Retried + l.FailedCalls, Took: l.Took,
			}
			f.FailureRate = float64(f.Failures) / float64(max(f.Attempts, 1))
		}
	}
	return f
}

// conclude sets the verdicts and the reasons.
func (r *Comparison) conclude() {
	r.Verdict = NotEnough
	for i := range r.Handlers {
		h := &r.Handlers[i]
		if h.Verdict == Gone {
			r.gone("handler "+h.Handler+" of "+h.EventType, h.Pending)
		}
		if h.Verdict != "" {
			continue
		}
		var reasons []string
		h.Verdict, reasons = compareFigures(h.InA, h.InB)
		for _, reason := range reasons {
			r.Reasons = append(r.Reasons, "handler "+h.Handler+" of "+h.EventType+": "+reason)
		}
		if h.Verdict != NotEnough {
			r.Verdict = Fine
		}
	}
	for _, g := range r.Groups {
		r.Reasons = append(r.Reasons, fmt.Sprintf("new error group %s of %s: %s", g.GroupID, g.Handler, g.ErrorClass))
	}
	for _, c := range r.Contracts {
		if c.Change == Gone {
			r.gone(fmt.Sprintf("contract %s version %d", c.EventType, c.Version), c.Pending)
		}
	}
	if len(r.Reasons) > 0 {
		r.Verdict = Worse
	}
}

func (r *Comparison) gone(what string, pending []events.Generation) {
	if len(pending) > 0 {
		r.Reasons = append(r.Reasons, fmt.Sprintf("%s is gone, and events of the type are pending in generation %d", what,
			pending[0]))
	}
}

// compareFigures returns the verdict of a handler, and why b is worse.
func compareFigures(a, b HandlerFigures) (verdict string, reasons []string) {
	if min(a.Attempts, b.Attempts) < EnoughAttempts {
		return NotEnough, nil
	}
	inA, inB := float64(a.Attempts), float64(b.Attempts)
	both := float64(a.Failures+b.Failures) / (inA + inB)
	standardError := math.Sqrt(both * (1 - both) * (1/inA + 1/inB))
	if more := b.FailureRate - a.FailureRate; more > worseRate && b.FailureRate >= worseRatio*a.FailureRate &&
		more > worseErrors*standardError {
		reasons = append(reasons, fmt.Sprintf("%.1f%% of attempts fail, before %.1f%%", b.FailureRate*100,
			a.FailureRate*100))
	}
	was, is := atMost(a.Took.P95), atMost(b.Took.P95)
	if min(a.Took.Count, b.Took.Count) >= enoughCalls && is >= slowerLeast && is > slowerRatio*was &&
		bucket(is) > bucket(was)+1 {
		reasons = append(reasons, "p95 is "+secondsText(is)+", before "+secondsText(was))
	}
	if len(reasons) > 0 {
		return Worse, reasons
	}
	return Fine, nil
}

// atMost returns a percentile in seconds; it is infinite beyond the last bound.
func atMost(percentile *float64) float64 {
	if percentile == nil {
		return math.Inf(1)
	}
	return *percentile
}

// bucket returns the place of a bucket by its upper bound.
func bucket(bound float64) int {
	place, _ := slices.BinarySearch(telemetry.Bounds(), bound)
	return place
}

func secondsText(s float64) string {
	if math.IsInf(s, 1) {
		return "above " + LongestMeasured().String()
	}
	return pgtx.Seconds(s).String()
}
