package operator

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"spectral/internal/core/events/infrastructure/postgres/pgtx"
)

// Dimension is a property by which events are counted.
type Dimension string

// The dimensions. With [ByHandler] an event counts once for each handler that failed and has not handled it since.
const (
	ByStatus     Dimension = "status"
	ByChannel    Dimension = "channel"
	ByGeneration Dimension = "generation"
	ByType       Dimension = "type"
	BySource     Dimension = "source"
	ByTarget     Dimension = "target"
	ByWorkspace  Dimension = "workspace"
	ByHandler    Dimension = "handler"
	ByError      Dimension = "error" // the error class
)

// Dimensions returns all dimensions.
func Dimensions() []Dimension {
	return []Dimension{ByStatus, ByChannel, ByGeneration, ByType, BySource, ByTarget, ByWorkspace, ByHandler, ByError}
}

// expressions are SQL for the dimensions of a row o whose value is not the column of that name; f is a handler that
// failed.
var expressions = map[Dimension]string{
	ByType: "o.event_type", ByWorkspace: "o.workspace_id", ByHandler: "f.handler", ByError: errorClass,
}

// Count says how to count events.
type Count struct {
	By    []Dimension // at least one, none twice
	Limit int         // of groups, from 1 to MaxPageSize; the largest are returned
	// Exactly counts delivered events one by one, however many there are; see [Client.Count].
	Exactly bool
	// Most is how many events of each status are counted; zero means all. One more stands for more.
	Most int
	// Timeout bounds each statement; zero means [DefaultSearchTimeout].
	Timeout time.Duration
}

// Group is the events with the same values.
type Group struct {
	// Values by dimension; null is no target, workspace, error or handler.
	Values map[Dimension]*string `json:"values"`
	Count  int64                 `json:"count"`
	// Estimated says that the count is the planner's estimate.
	Estimated bool `json:"estimated"`
	// Oldest and Latest are the times at which failed and discarded events failed, pending events are due, events in
	// flight were leased, and others were published; null for an estimate and for no events.
	Oldest *time.Time `json:"oldest"`
	Latest *time.Time `json:"latest"`
}

// Counts has the numbers of events.
type Counts struct {
	AsOf   time.Time   `json:"as_of"` // by the database clock
	By     []Dimension `json:"by"`
	Groups []Group     `json:"groups"` // the largest first; by status alone: each status of the filter, in order
	More   bool        `json:"more"`   // there are more groups than the limit
	// DeliveredLeftOut says that delivered events, which are very many, were not counted: the filter named no status.
	DeliveredLeftOut bool `json:"delivered_left_out"`
}

// exactUpTo is the number of delivered events up to which they are counted one by one.
const exactUpTo = 100_000

// Count counts the events that filter selects, in groups. Pending, failed, discarded and in-flight events are few and
// have indexes: they are counted one by one. Delivered events are very many: from 100,000 on their number by status is
// an estimate, and by other dimensions they are counted only if the filter names their status. It returns a
// [*TooBroadError] if it takes too long.
func (c *Client) Count(ctx context.Context, filter Filter, count Count) (Counts, error) {
	counted := Counts{By: count.By, Groups: []Group{}}
	byStatus := len(count.By) == 1 && count.By[0] == ByStatus
	named := len(filter.Statuses) > 0
	if !named {
		filter.Statuses = Statuses()
	}
	estimate := byStatus && !count.Exactly && slices.Contains(filter.Statuses, Delivered)
	one := filter // counted one by one
	if estimate || !named && !byStatus && !count.Exactly {
		one.Statuses = slices.DeleteFunc(slices.Clone(filter.Statuses), func(s Status) bool { return s == Delivered })
		counted.DeliveredLeftOut = !estimate
	}
	err := c.search(ctx, "count events", count.Timeout, func(tx *pgtx.Tx, asOf time.Time) (err error) {
		counted.AsOf = asOf
		if len(one.Statuses) > 0 {
			if counted.Groups, err = groups(ctx, tx, one, count); err != nil {
				return err
			}
		}
		if estimate {
			delivered, err := countDelivered(ctx, tx, filter)
			counted.Groups = append(counted.Groups, delivered)
			return err
		}
		return nil
	})
	if err != nil {
		return Counts{}, err
	}
	if byStatus {
		counted.fillStatuses(filter.Statuses)
	}
	if counted.More = len(counted.Groups) > count.Limit; counted.More {
		counted.Groups = counted.Groups[:count.Limit]
	}
	return counted, nil
}

// groups counts the events that filter selects. It reads each status by itself, because most have an index.
func groups(ctx context.Context, tx *pgtx.Tx, filter Filter, count Count) ([]Group, error) {
	limit := "all"
	if count.Most > 0 {
		limit = strconv.Itoa(count.Most + 1)
	}
	var branches, names, values []string
	for i, d := range count.By {
		names = append(names, fmt.Sprintf("r.d%d", i))
		values = append(values, fmt.Sprintf("'%s', r.d%d", d, i))
	}
	var arguments []any
	for _, status := range slices.Compact(slices.Sorted(slices.Values(filter.Statuses))) {
		of, from := filter, "core.outbox o"
		of.Statuses = []Status{status}
		condition, more := of.Where(len(arguments) + 1)
		arguments = append(arguments, more...)
		var columns []string
		for i, d := range count.By {
			expression := cmp.Or(expressions[d], "o."+string(d))
			if d == ByStatus {
				expression = "'" + string(status) + "'"
			}
			if d == ByHandler {
				from += " left join lateral jsonb_object_keys(o.handler_failures) as f(handler) on true"
			}
			columns = append(columns, fmt.Sprintf("%s::text as d%d", expression, i))
		}
		branches = append(branches, fmt.Sprintf("(select %s, %s as at from %s where %s limit %s)",
			strings.Join(columns, ", "), status.moment(), from, condition, limit))
	}
	group := strings.Join(names, ", ")
	return rows[Group](ctx, tx, fmt.Sprintf(`
select jsonb_build_object(%s) as values, count(*) as count, min(r.at) filter (where isfinite(r.at)) as oldest,
  max(r.at) filter (where isfinite(r.at)) as latest
from (%s) r group by %s order by count(*) desc, %[3]s limit %d`, strings.Join(values, ", "),
		strings.Join(branches, " union all "), group, count.Limit+1), arguments...)
}

// moment returns the column of the time that matters most for an event in that status.
func (s Status) moment() string {
	switch s {
	case Due, Scheduled:
		return "case when o.waiting_for is null then o.available_at else o.created_at end"
	case Relayed:
		return "o.relayed_at"
	case InFlight, Failed, Discarded:
		return "o.claimed_at"
	default:
		return "o.created_at"
	}
}

// countDelivered counts the delivered events that filter selects; if the planner expects very many, it returns that
// estimate.
func countDelivered(ctx context.Context, tx *pgtx.Tx, filter Filter) (Group, error) {
	filter.Statuses = []Status{Delivered}
	condition, arguments := filter.Where(1)
	var plans []struct {
		Plan struct {
			Rows float64 `json:"Plan Rows"`
		} `json:"Plan"`
	}
	if err := tx.QueryRow(ctx, "explain (format json) select from core.outbox o where "+condition,
		arguments...).Scan(&plans); err != nil {
		return Group{}, fmt.Errorf("read the plan: %w", err)
	}
	g := groupOf(Delivered)
	if expected := int64(plans[0].Plan.Rows); expected > exactUpTo {
		g.Count, g.Estimated = expected, true
		return g, nil
	}
	err := tx.QueryRow(ctx, "select count(*), min(o.created_at), max(o.created_at) from core.outbox o where "+condition,
		arguments...).Scan(&g.Count, &g.Oldest, &g.Latest)
	return g, err
}

// groupOf returns an empty group.
func groupOf(s Status) Group {
	status := string(s)
	return Group{Values: map[Dimension]*string{ByStatus: &status}}
}

// fillStatuses orders the groups as [Statuses] does, and adds an empty one for each status without events.
func (c *Counts) fillStatuses(asked []Status) {
	groups := c.Groups
	c.Groups = []Group{}
	for _, s := range Statuses() {
		if i := slices.IndexFunc(groups, func(g Group) bool { return *g.Values[ByStatus] == string(s) }); i >= 0 {
			c.Groups = append(c.Groups, groups[i])
		} else if slices.Contains(asked, s) {
			c.Groups = append(c.Groups, groupOf(s))
		}
	}
}
