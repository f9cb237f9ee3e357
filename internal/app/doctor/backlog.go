package doctor

import (
	"context"
	"fmt"
	"time"

	"spectral/internal/app"
	"spectral/internal/core/events"
	"spectral/internal/core/events/infrastructure/postgres/operator"
)

// countUpTo bounds how many rows of a kind are counted.
const countUpTo = 10_000

// startsWithin is how many seconds a worker may take to start: until then events without a worker are only a warning.
const startsWithin = 30

// upTo prints a number that was counted up to countUpTo.
func upTo(n int, name string) string {
	if n >= countUpTo {
		return fmt.Sprintf("%d or more %ss", countUpTo, name)
	}
	return app.Counted(n, name)
}

// adopt says how to move the events of a generation to another, if there is one.
func adopt(before string, from, to events.Generation) string {
	if to == 0 || to == from {
		return ""
	}
	return fmt.Sprintf("%s`workers generation adopt %d %d` moves them to generation %d", before, from, to, to)
}

// unhandled finds due events that no live worker handles, and processing classes that no live worker runs. The check of
// generations has the events of retired generations, which have no workers.
func unhandled(ctx context.Context, e *examination) (string, error) {
	pending, err := e.facts.PendingTypes(ctx, countUpTo)
	for _, t := range pending {
		if t.Handlers == "" && !t.Paused && t.Status != "retired" {
			e.unhandledType(t)
		}
	}
	if err != nil {
		return "", err
	}
	idle, err := e.facts.IdleClasses(ctx)
	for _, c := range idle {
		e.found(Warning, fmt.Sprintf("no live worker of generation %d runs processing class %s: events of type %s will "+
			"wait",
			c.Generation, c.Class, c.EventTypes), fmt.Sprintf("run `SPECTRAL_GENERATION=%d workers run --classes "+
			"%s`, or start a "+
			"worker without --classes, which runs all", c.Generation, c.Class))
	}
	return "each type with due events, and each processing class, has a live worker", err
}

func (e *examination) unhandledType(t operator.PendingType) {
	state := Critical
	if t.Seconds < startsWithin {
		state = Warning
	}
	problem := fmt.Sprintf("%s of type %s in generation %d (%s), the oldest for %s, and ", upTo(t.Due, "event")+" wait",
		t.EventType, t.Generation, t.Status, span(t.Seconds))
	if t.Due == 1 {
		problem = fmt.Sprintf("1 event of type %s in generation %d (%s) has waited for %s, and ", t.EventType,
			t.Generation, t.Status, span(t.Seconds))
	}
	fix := fmt.Sprintf("`SPECTRAL_GENERATION=%d workers run --classes %s`, with the build of that generation, runs "+
		"them", t.Generation,
		t.Class)
	switch {
	case t.Live > 0:
		problem += fmt.Sprintf("none of its %s handles that type", app.Counted(t.Live, "live worker"))
	default:
		problem += "no worker of that generation lives"
		run := fmt.Sprintf("`SPECTRAL_GENERATION=%d workers run", t.Generation)
		switch t.Status {
		case "live":
			fix = run + "`, with the build of that generation, runs them"
		case "unknown": // a worker would make it live
			fix = fmt.Sprintf("`workers generation drain %d`, and then %s --drain`, with the build of that generation, runs "+
				"them",
				t.Generation, run)
		default:
			fix = run + " --drain`, with the build of that generation, runs them"
		}
	}
	fix += adopt("; or ", t.Generation, t.Adopter)
	if !t.Registered { // no worker of this build handles them either
		problem += "; no build has registered that type"
		fix = fmt.Sprintf("start workers of a build that knows the type; if there is none, give the events up: as "+
			"spectral_owner, run `update core.outbox set status = 'failed', claimed_at = now(), last_error = "+
			"'UnknownEventType: no build knows it' where event_type = %s and generation = %d and status = 'pending' and "+
			"deleted_at is null;`, then `workers events discard --type %s --generation %d --error "+
			"UnknownEventType`", literal(t.EventType), t.Generation, t.EventType, t.Generation)
	}
	e.found(state, problem, fix)
}

// channels finds pending events whose notification went to a channel on which no worker of theirs listens.
func channels(ctx context.Context, e *examination) (string, error) {
	all, err := e.facts.Misrouted(ctx, countUpTo)
	for _, m := range all {
		e.found(Warning, fmt.Sprintf("%s of type %s in generation %d: published on channel %s, but workers listen on %s: "+
			"each waits for the poll, up to 5 s", app.Counted(m.Events, "pending event"), m.EventType, m.Generation, m.Channel,
			m.Expected),
			"call core.outbox_publish without p_class: it then chooses the channel; the poll finds the events that wait")
	}
	return "pending events are on the channels that their workers listen on", err
}

// lateSeconds is how long a due event may wait for a live worker that handles it.
const lateSeconds = 60

// listeners finds types whose live workers do not keep up, and dead workers whose events no worker has recovered.
func listeners(ctx context.Context, e *examination) (string, error) {
	workers, err := e.facts.Workers(ctx)
	if err != nil {
		return "", err
	}
	pending, err := e.facts.PendingTypes(ctx, countUpTo)
	for _, t := range pending {
		if t.Handlers != "" && !t.Paused && t.Seconds >= lateSeconds {
			e.found(Warning, fmt.Sprintf("the oldest due event of type %s in generation %d has waited for %s, although "+
				"workers handle the type (%s): there is too much work, a handler is slow, or a worker hangs", t.EventType,
				t.Generation,
				span(t.Seconds), t.Handlers), fmt.Sprintf("`workers events stats --status due --type %s` shows whether the "+
				"number falls; `workers doctor transactions` names locks; then add workers, or restart one whose log is silent",
				t.EventType))
		}
	}
	if workers.Dead > 0 {
		e.found(Warning, fmt.Sprintf("%s died more than 5 minutes ago, and no live worker has recovered what it held",
			app.Counted(workers.Dead, "worker")), "run a worker of the same generation: it recovers the events within a "+
			"minute")
	}
	return app.Counted(workers.Live, "live worker") + ", no type is late", err
}

// reapGrace is how long after its end a lease may be noticed by the reaper.
const reapGrace = 30 * time.Second

// leases finds events in flight whose lease is over and that no worker reaps.
func leases(ctx context.Context, e *examination) (string, error) {
	l, err := e.facts.Leases(ctx, reapGrace)
	if err != nil {
		return "", err
	}
	if l.Overdue > 0 {
		e.found(Critical, fmt.Sprintf("%s in flight past the end of the lease, the longest by %s; held by %s: no worker "+
			"reaps",
			app.Counted(l.Overdue, "event"), span(l.LongestSeconds), l.HeldBy),
			"run a worker: each reaps; or, as spectral_worker, run `set role spectral_worker; select * from "+
				"core.outbox_reap();`, which says why a row cannot be written")
		var locks []operator.ReapLock
		locks, err = e.facts.ReapLocks(ctx, reapGrace)
		for _, k := range locks {
			e.found(Critical, fmt.Sprintf("session %d of %s (%s) keeps the advisory lock of reaping: no worker can "+
				"reap", k.Pid, k.Login,
				k.Application), "if workers run and do not reap: "+terminate(fmt.Sprint(k.Pid), k.Login))
		}
	}
	if l.Ahead > 0 {
		e.found(Warning, fmt.Sprintf("%s in flight with a claim in the future, by the database's clock: no worker reaps "+
			"before that",
			app.Counted(l.Ahead, "event")), "set the database's clock; then, as spectral_owner, run `update core.outbox set "+
			"claimed_at = clock_timestamp() where status = 'in_flight' and claimed_at > clock_timestamp();`")
	}
	return fmt.Sprintf("%d in flight, %d past the end of the lease", l.InFlight, l.Overdue), err
}

// A closing generation is retired within closingFor, a drained one within drainingFor.
const (
	closingFor  = 10 * time.Minute
	drainingFor = 24 * time.Hour
)

// generations finds generations that neither run nor are over.
func generations(ctx context.Context, e *examination) (string, error) {
	all, unregistered, now, err := e.facts.Generations(ctx)
	if err != nil {
		return "", err
	}
	since := func(t *time.Time) time.Duration {
		if t == nil {
			return 0
		}
		return now.Sub(*t)
	}
	var publishing, newest events.Generation // newest: that could be live
	live := 0
	for _, g := range all {
		if g.Status == "draining" || g.Status == "closing" {
			newest = max(newest, g.Generation)
		}
		if g.Status == "live" {
			live++
		}
		if g.PublishingDefault {
			publishing = g.Generation
		}
	}
	for _, g := range all {
		n, left := g.Generation, g.Due+g.Scheduled+g.InFlight
		retire := fmt.Sprintf("`workers generation retire %d`", n)
		run := fmt.Sprintf("`workers generation drain %d`, and then `SPECTRAL_GENERATION=%d workers run --drain`, with "+
			"the build of that generation, runs them", n, n)
		if n == publishing && g.Workers == 0 {
			fix := fmt.Sprintf("start its workers with `SPECTRAL_GENERATION=%d workers run`", n)
			if live > 1 { // draining the only live one is refused
				fix += fmt.Sprintf("; if it is not deployed, `workers generation drain %d` lets publishing go to the next one", n)
			}
			e.found(Warning, fmt.Sprintf("publishing that names no generation goes to generation %d, which has no live "+
				"worker", n), fix)
		}
		switch drained := g.Status == "draining" && left == 0; {
		case left > 0 && g.Status == "retired":
			fix := adopt("", n, publishing)
			if fix == "" {
				fix = "start the workers of a live generation; then move the events there with `workers generation " +
					"adopt --help`"
			}
			e.found(Critical, fmt.Sprintf("generation %d is retired and has %s left, which no worker may handle", n,
				app.Counted(left, "event")), fix)
		case left > 0 && g.Status == "unknown":
			e.found(Critical, fmt.Sprintf("generation %d has %s, but no worker of it has ever registered", n,
				app.Counted(left, "event")),
				run+adopt("; or ", n, publishing))
		case g.Status == "closing" && since(g.ClosedAt) > closingFor:
			e.found(Warning, fmt.Sprintf("generation %d has been closing for %s: publishing into it is refused, and it is "+
				"not retired", n,
				span(since(g.ClosedAt).Seconds())), fmt.Sprintf("%s goes on; `workers generation register %d` makes it live "+
				"again", retire, n))
		case g.Workers > 0 && g.Status == "retired":
			e.found(Warning, fmt.Sprintf("generation %d is retired and still has %s, which may do nothing", n,
				app.Counted(g.Workers, "live worker")), fmt.Sprintf("stop them; `select name from core.live_workers where "+
				"generation = %d;` names them", n))
		case drained && since(g.DrainingAt) > drainingFor:
			e.found(Warning, fmt.Sprintf("generation %d has been draining for %s and has nothing left to do", n,
				span(since(g.DrainingAt).Seconds())), "stop its workers; then run "+retire)
		case drained && g.Workers > 0:
			e.found(Note, fmt.Sprintf("generation %d is draining, has nothing left to do, and still has %s", n,
				app.Counted(g.Workers, "live worker")), "once its producers are gone, stop its workers; then run "+retire)
		}
	}
	if live == 0 {
		fix := "start the workers of a new generation: the first makes it live"
		if newest > 0 {
			fix = fmt.Sprintf("`workers generation register %d` makes the newest generation live again; or %s", newest,
				fix)
		}
		e.found(Warning, "no generation is live: publishing that names no generation is refused (SP019)", fix)
	}
	for _, u := range unregistered {
		e.found(Critical, fmt.Sprintf("generation %d has %s but is not registered: publishing into it is refused "+
			"(SP019)", u.Generation,
			app.Counted(u.Workers, "live worker")), fmt.Sprintf("`workers generation register %d`", u.Generation))
	}
	detail := fmt.Sprintf("%d known, %d live", len(all), live)
	if publishing > 0 {
		detail += fmt.Sprintf(", publishing goes to %d", publishing)
	}
	return detail, nil
}

// pausedFor is how long a pause is expected to last.
const pausedFor = 24 * time.Hour

// paused finds pauses that operators may have forgotten.
func paused(ctx context.Context, e *examination) (string, error) {
	pauses, now, err := e.facts.Pauses(ctx)
	if err != nil || len(pauses) == 0 {
		return "nothing is paused", err
	}
	describe := func(p operator.Pause) string {
		by := p.PausedBy
		if p.Reason != nil {
			by += ": " + *p.Reason
		}
		return fmt.Sprintf("%s in generation %d by %s", p.EventType, p.Generation, by)
	}
	for _, p := range pauses {
		if since := now.Sub(p.PausedAt); since > pausedFor {
			e.found(Warning, fmt.Sprintf("paused for %s: %s; its events wait", span(since.Seconds()), describe(p)),
				fmt.Sprintf("`workers events resume %s --generation %d`", p.EventType, p.Generation))
		}
	}
	return app.Counted(len(pauses), "pause") + ", the first of " + describe(pauses[0]), nil
}

// failures counts the dead letters, and finds recent ones: something is going wrong now.
func failures(ctx context.Context, e *examination) (string, error) {
	f, err := e.facts.Failures(ctx)
	if f.Recent > 0 {
		e.found(Warning, fmt.Sprintf("%s failed in the last hour; the most common failure is %s",
			app.Counted(f.Recent, "event"), f.Most),
			"`workers events stats --status failed` counts them by type and error; `workers events list --newer-than "+
				"1h` lists them")
	}
	return app.Counted(f.Failed, "failed event") + " to replay or discard", err
}

// sweptWithin is how much time may pass between two sweeps: workers begin one every six hours.
const sweptWithin = 24 * time.Hour

// expiringDays is within how many days failed events must expire to be warned about.
const expiringDays = 7

// tombstonesRead bounds how many of the latest tombstones are read. Among 5 M rows that takes 0.03 s as sweeps leave
// them, and 0.6 s where each is on another page.
const tombstonesRead = 100_000

// retention finds sweeps that do not happen, and dead letters that will soon be deleted.
func retention(ctx context.Context, e *examination) (string, error) {
	r, err := e.facts.Retention(ctx, operator.RetentionLimits{LeastSeconds: int32(sweptWithin.Seconds()),
		Tombstones: tombstonesRead,
		WarnDays:   expiringDays})
	if err != nil {
		return "", err
	}
	if r.PolicyFault != "" {
		e.found(Critical, "the retention policies contradict each other, and nothing is swept: "+r.PolicyFault,
			// keeping rows for longer loses nothing
			"as spectral_owner, run `begin; insert into core.retention_policies (subject, active_ttl_days, "+
				"tombstoned_grace_days) values ('outbox_row', 45, 7), ('event_handled', 60, 7) on conflict do nothing; update "+
				"core.retention_policies h set active_ttl_days = o.active_ttl_days + o.tombstoned_grace_days + 8 from "+
				"core.retention_policies o where h.subject = 'event_handled' and o.subject = 'outbox_row' and "+
				"h.active_ttl_days <= o.active_ttl_days + o.tombstoned_grace_days; commit;`")
	}
	if r.Hidden > 0 {
		e.found(Warning, fmt.Sprintf("%s pending or in flight, but marked as deleted: no handler runs, and retention "+
			"does not delete the "+
			"row", app.Counted(r.Hidden, "event")), "as spectral_owner, run `update core.outbox set deleted_at = null where "+
			"deleted_at is not null and status in ('pending', 'in_flight');`, and workers handle them")
	}
	if !r.ActionsExpire {
		e.found(Warning, "core.operator_actions has no retention policy, and keeps its rows for ever", "as spectral_owner, "+
			"run `insert "+
			"into core.retention_policies (subject, active_ttl_days, tombstoned_grace_days) values ('operator_action', 365, "+
			"7);`")
	}
	if r.FailedExpiring > 0 {
		list := "workers events list"
		if days := r.OutboxDays - expiringDays; days > 0 {
			list += fmt.Sprintf(" --older-than %dd", days)
		}
		e.found(Warning, fmt.Sprintf("%s will be deleted unread within %d days, the first in %s",
			app.Counted(r.FailedExpiring, "failed event"), expiringDays, span(max(r.ExpireFirstSeconds, 0))),
			"`"+list+"` shows them; replay or discard each")
	}
	if r.Workers > 0 && (r.SweptSeconds < 0 || r.SweptSeconds > sweptWithin.Seconds()) {
		e.found(Warning, fmt.Sprintf("no worker has swept for %s, although workers run", span(sweptWithin.Seconds())),
			"`workers retention sweep` does it now; entries with \"sweep\" in the workers' logs say why they do not")
	}
	if r.SweptSeconds < 0 {
		return "never swept", nil
	}
	return "last swept " + span(r.SweptSeconds) + " ago", nil
}
