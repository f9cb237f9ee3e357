package top

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"

	"spectral/internal/core/events"
	"spectral/internal/core/events/infrastructure/postgres/operator"
)

// views are the names of the views, by their keys from 1 on.
var views = []string{"types", "handlers", "workers", "errors", "generations", "operations", "tail", "locks"}

// inScope reports whether an event type is one of those that are shown.
func (o Options) inScope(eventType string) bool {
	of, _, _ := strings.Cut(eventType, ".")
	if o.ContextOf != nil {
		of = cmp.Or(o.ContextOf(eventType), of)
	}
	return (o.Type == "" || eventType == o.Type) && (o.Context == "" || of == o.Context)
}

// Scoped leaves out event types and handlers that are not to be shown. A handler counts as its own context's.
func (o Options) Scoped(l operator.Live) operator.Live {
	l.Types = slices.DeleteFunc(slices.Clone(l.Types), func(t operator.LiveType) bool { return !o.inScope(t.EventType) })
	l.Handlers = slices.DeleteFunc(slices.Clone(l.Handlers), func(h operator.LiveHandler) bool {
		of, _, _ := strings.Cut(h.Handler, ".")
		return o.Type != "" && h.EventType != o.Type || o.Context != "" && of != o.Context
	})
	return l
}

// scopedFilter selects the events that are shown.
func (o Options) scopedFilter() (f operator.Filter) {
	if o.Type != "" {
		f.EventTypes = []string{o.Type}
	}
	if o.Context != "" {
		f.Sources = []events.Scope{events.Scope(o.Context)}
	}
	return f
}

// opened is an event and what is known of it.
type opened struct {
	detail       operator.Detail
	explanations []operator.Explanation
}

// query reads what a page shows beside the live figures.
func (o Options) query(ctx context.Context, c Client, p page) (any, error) {
	switch p.kind {
	case groups:
		return c.ErrorGroups(ctx, operator.GroupFilter{Events: o.scopedFilter(), Limit: listed}, readTimeout)
	case generations:
		return c.Generations(ctx, nil)
	case operations:
		return c.Operations(ctx, listed)
	case outcome:
		return c.OperationRows(ctx, p.id, "", listed)
	case locks:
		return c.Sessions(ctx, listed)
	case oneEvent:
		all, err := c.Show(ctx, p.id)
		if err != nil {
			return nil, err
		}
		explanations, err := c.Explain(ctx, p.id)
		return opened{all[0], explanations}, err
	case tail:
		p.filter = o.scopedFilter()
	default: // a listing
	}
	return c.Find(ctx, p.filter, operator.Page{Limit: listed, Timeout: readTimeout})
}

func count[N int | int64](n N) number {
	if n == 0 {
		return number{"0", 0}
	}
	return number{counted(int(n)), float64(n)}
}

func generation(g events.Generation) number { return number{fmt.Sprint(g), -float64(g)} }

func ratio(f float64) number { return number{decimals(f), f} }

// since is the age of a time; nil: there is none.
func since(t *time.Time, now time.Time) number {
	if t == nil {
		return number{"-", -1}
	}
	return number{age(now.Sub(*t)), now.Sub(*t).Seconds()}
}

func latency(of operator.Percentiles, seconds *float64) number {
	by := value(seconds)
	if seconds == nil && of.Count > 0 {
		by = operator.LongestMeasured().Seconds() + 1
	}
	return number{millis(of, seconds), by}
}

// table returns what the page shows, sorted and filtered.
func (m *Model) table() (t table) {
	p := m.page()
	switch own := m.own.(type) {
	case nil:
		if p.ownQuery() {
			t.note = "reading ..."
		} else if m.live != nil {
			t = m.liveTable(p.kind)
		}
	case error:
		if t.note = m.safe(firstLine(own.Error())); slow(own) {
			t.note = "slow: not read within " + readTimeout.String() + "; it is tried again"
		}
	case operator.ErrorGroups:
		t = m.groupTable(own)
	case []operator.Generation:
		t = m.generationTable(own)
	case []operator.Operation:
		t = m.operationTable(own)
	case []operator.OperationRow:
		t = m.outcomeTable(own)
	case []operator.Session:
		t = m.sessionTable(own)
	case operator.EventPage:
		t = m.eventTable(own)
	}
	all := len(t.rows)
	if t.filtered(m.filter); m.filter != "" {
		t.note = fmt.Sprintf("%d of %d match %s", len(t.rows), all, m.safe(m.filter))
	} else if all == 0 && t.note == "" && m.live != nil {
		t.note = "nothing to show"
	}
	if p.sort >= 0 && p.sort < len(t.columns) {
		t.sorted(p.sort, p.reversed)
		t.columns[p.sort].title += map[bool]string{false: "v", true: "^"}[p.reversed]
	} else if p.reversed {
		slices.Reverse(t.rows)
	}
	return t
}

func (m *Model) liveTable(k kind) (t table) {
	l := m.live
	switch k {
	case types:
		minutes := min(max(m.width/10, 5), operator.LiveMinutes)
		t.columns = []column{{"TYPE", 0}, {"GEN", 4}, {"RATE/s", 1}, {fmt.Sprintf("%dm", minutes), 6}, {"BACKLOG", 0},
			{"OLDEST", 2}, {"p95 ms", 7}, {"RETRY", 3}, {"FAILED", 1}, {"WORKERS", 8}, {"PAUSED BY", 9}}
		for _, x := range l.Types {
			handled := x.Handled[max(len(x.Handled)-minutes, 0):]
			g := []events.Generation{x.Generation}
			t.rows = append(t.rows, row{key: fmt.Sprint(x.EventType, x.Generation), subject: x,
				concern: x.Failed > 0 || x.PausedAt != nil || x.Waiting > 0 || x.Workers == 0 && x.Due > 0,
				opens: &page{kind: listing, title: "events of " + x.EventType,
					filter: operator.Filter{EventTypes: []string{x.EventType}, Generations: g}},
				cells: []any{m.safe(x.EventType), generation(x.Generation), ratio(x.HandledPerSecond), drawn(m.bars(handled)),
					count(x.Due + x.Waiting), since(x.OldestDue, l.At), latency(x.UntilClaimed, x.UntilClaimed.P95),
					count(x.Retrying), count(x.Failed), count(x.Workers), m.safe(value(x.PausedBy))}})
		}
	case handlers:
		t.columns = []column{{"HANDLER", 0}, {"TYPE", 6}, {"GEN", 4}, {"BREAKER", 1}, {"WAITING", 2}, {"RATE/s", 1},
			{"p95 ms", 3}, {"FAILED %", 2}, {"WORKERS", 7}, {"OUTSIDE", 9}, {"CAUSE", 8}}
		for _, x := range l.Handlers {
			share := float64(x.FailedCalls) / float64(max(x.Calls, 1)) * 100
			t.rows = append(t.rows, row{key: fmt.Sprint(x.Handler, x.EventType, x.Generation), subject: x,
				concern: x.Breaker != "closed" || share >= 50,
				opens: &page{kind: listing, title: "events that failed in " + x.Handler,
					filter: operator.Filter{Handlers: []string{x.Handler}, Generations: []events.Generation{x.Generation}}},
				cells: []any{m.safe(x.Handler), m.safe(x.EventType), generation(x.Generation), m.safe(x.Breaker),
					count(x.Waiting), ratio(x.HandledPerSecond), latency(x.Took, x.Took.P95), ratio(share), count(x.Workers),
					m.safe(x.ActsOutside), m.safe(firstLine(value(x.Cause)))}})
		}
	default: // workers
		t.columns = []column{{"WORKER", 0}, {"GEN", 1}, {"UP", 2}, {"TYPES", 4}, {"RUNNING", 3}, {"LEASED", 3}}
		for _, x := range l.Workers {
			t.rows = append(t.rows, row{key: fmt.Sprint(x.Name, x.RegisteredAt), cells: []any{m.safe(x.Name),
				generation(x.Generation), since(&x.RegisteredAt, l.At), count(x.Types), count(x.Running), count(x.Leased)}})
		}
	}
	return t
}

func (m *Model) groupTable(found operator.ErrorGroups) table {
	t := table{columns: []column{{"HANDLER", 0}, {"FAILED", 0}, {"RETRY", 2}, {"MARK", 3}, {"LATEST", 1}, {"OLDEST", 5},
		{"GEN", 6}, {"ERROR", 0}, {"GROUP", 7}}}
	for _, g := range found.Groups {
		mark := ""
		switch {
		case g.CameBack > 0:
			mark = counted(g.CameBack) + " came back"
		case g.New:
			mark = "new"
		}
		filter := m.scopedFilter()
		filter.Groups = []string{g.GroupID}
		t.rows = append(t.rows, row{key: g.GroupID, id: g.GroupID, subject: g, concern: g.New || g.CameBack > 0,
			opens: &page{kind: listing, title: "events of group " + g.GroupID, filter: filter},
			cells: []any{m.safe(g.Handler), count(g.Failed), count(g.Retrying), mark, since(&g.LastSeen, found.AsOf),
				since(&g.FirstSeen, found.AsOf), generation(g.FirstGeneration),
				m.safe(g.ErrorClass + ": " + firstLine(g.Message)), m.safe(g.GroupID)}})
	}
	if found.Muted > 0 {
		t.note = fmt.Sprintf("%d muted: workers events groups --muted", found.Muted)
	}
	return t
}

func (m *Model) generationTable(all []operator.Generation) table {
	t := table{columns: []column{{"GEN", 0}, {"STATUS", 0}, {"UP", 5}, {"WORKERS", 1}, {"DUE", 1}, {"OLDEST", 4},
		{"LATER", 3}, {"RUNNING", 3}, {"FAILED", 2}, {"SAFE TO STOP", 1}}}
	for _, g := range all {
		if g.Status == "retired" {
			continue
		}
		stop := "no"
		switch {
		case g.SafeToStop:
			stop = "yes"
		case g.Status == "live":
			stop = "no: live"
		case g.Due+g.Scheduled+g.InFlight > 0:
			stop = "no: events are left"
		}
		t.rows = append(t.rows, row{key: fmt.Sprint(g.Generation), concern: g.Workers == 0 && g.Due > 0,
			opens: &page{kind: listing, title: fmt.Sprintf("events of generation %d", g.Generation),
				filter: operator.Filter{Generations: []events.Generation{g.Generation}}},
			cells: []any{generation(g.Generation), m.safe(g.Status), since(g.RegisteredAt, m.live.At), count(g.Workers),
				count(g.Due), since(g.OldestDue, m.live.At), count(g.Scheduled), count(g.InFlight), count(g.Failed), stop}})
	}
	return t
}

func (m *Model) operationTable(all []operator.Operation) table {
	t := table{columns: []column{{"OPERATION", 0}, {"STATE", 0}, {"TOTAL", 1}, {"ACTED", 2}, {"DELIVERED", 3},
		{"FAILED", 2}, {"SKIPPED", 4}, {"AGE", 3}, {"BY", 5}, {"NOTE", 6}, {"ID", 7}}}
	for _, o := range all {
		t.rows = append(t.rows, row{key: o.ID.String(), id: o.ID.String(), concern: o.State == operator.OperationPaused,
			opens: &page{kind: outcome, title: "events of operation " + o.ID.String(), id: o.ID},
			cells: []any{m.safe(o.Name), m.safe(string(o.State)), count(o.Total), count(o.Acted), count(o.Delivered),
				count(o.Failed), count(o.Skipped), since(&o.CreatedAt, m.live.At), m.safe(o.CreatedBy),
				m.safe(value(o.Why)), m.middle(o.ID.String())}})
	}
	return t
}

func (m *Model) outcomeTable(all []operator.OperationRow) table {
	t := table{columns: []column{{"EVENT", 0}, {"OUTCOME", 0}, {"NOTE", 1}}}
	for _, r := range all {
		t.rows = append(t.rows, row{key: r.EventID.String(), id: r.EventID.String(), opens: eventPage(r.EventID),
			cells: []any{r.EventID.String(), m.safe(r.Outcome), m.safe(value(r.Note))}})
	}
	return t
}

func (m *Model) sessionTable(all []operator.Session) table {
	t := table{columns: []column{{"PID", 0}, {"LOGIN", 3}, {"AGE", 0}, {"SNAPSHOT", 1}, {"STATE", 2}, {"WAITS FOR", 2},
		{"BLOCKED BY", 1}, {"APPLICATION", 5}, {"STATEMENT", 4}}}
	for _, s := range all {
		snapshot := "-"
		if s.HasSnapshot {
			snapshot = "yes"
		}
		blocked := strings.Trim(fmt.Sprint(s.BlockedBy), "[]")
		t.rows = append(t.rows, row{key: fmt.Sprint(s.PID, s.StartedAt), concern: blocked != "",
			cells: []any{number{fmt.Sprint(s.PID), float64(s.PID)}, m.safe(s.Login), since(&s.StartedAt, m.live.At), snapshot,
				m.safe(s.State), m.safe(s.Wait), cmp.Or(blocked, "-"), m.safe(s.Application), m.safe(firstLine(s.Query))}})
	}
	t.note = "open transactions; those of other logins need pg_read_all_stats"
	return t
}

func eventPage(id uuid.UUID) *page {
	return &page{kind: oneEvent, title: "event " + id.String(), id: id}
}

func (m *Model) eventTable(found operator.EventPage) table {
	t := table{columns: []column{{"AGE", 0}, {"STATUS", 0}, {"TYPE", 0}, {"GEN", 3}, {"TRIES", 2}, {"ERROR", 1},
		{"EVENT", 4}}}
	for _, e := range found.Events {
		t.rows = append(t.rows, row{key: e.ID.String() + e.OccurredAt.String(), id: e.ID.String(), subject: e,
			concern: e.Status == operator.Failed || e.Status == operator.Quarantined, opens: eventPage(e.ID),
			cells: []any{since(&e.CreatedAt, found.AsOf), m.safe(string(e.Status)), m.safe(e.EventType),
				generation(e.Generation), count(e.Attempts), m.safe(firstLine(value(e.LastError))), m.middle(e.ID.String())}})
	}
	if found.Next != "" {
		t.note = fmt.Sprintf("the latest %d", len(found.Events))
	}
	return t
}
