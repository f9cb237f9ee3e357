package doctor

import (
	"context"
	"errors"
	"fmt"

	"spectral/internal/core/events"
	"spectral/internal/core/events/infrastructure/postgres/doctordb"
	"spectral/internal/core/events/infrastructure/postgres/operator"
)

// Limits of the checks in this file. Times are in seconds.
const (
	countUpTo    = 10_000 // how many rows of a kind are counted
	startsWithin = 30     // a worker may take so long to start: until then events without a worker are only a warning
	lateSeconds  = 60     // how long a due event may wait for a live worker that handles it
	reapGrace    = 30     // how long after its end a lease may be noticed by the reaper
	closingFor   = 10 * 60
	drainingFor  = 24 * 60 * 60 // with nothing left
	pausedFor    = 24 * 60 * 60 // how long a pause is expected to last
	sweptWithin  = 24 * 60 * 60 // between two sweeps: workers begin one every six hours
	expiringDays = 7            // within which failed events must expire to be warned about
	// Among 5 M rows it takes 0.03 s to read so many of the latest tombstones as sweeps leave them, and 0.6 s where each
	// is on another page.
	tombstonesRead = 100_000
)

// adopt says how to move the events of a generation to another, if there is one.
func adopt(before string, from, to int64) string {
	if to == 0 || to == from {
		return ""
	}
	return fmt.Sprintf("%s`workers generation adopt %d %d` moves them to generation %[3]d", before, from, to)
}

func (e *examination) pendingTypes(ctx context.Context) ([]doctordb.PendingTypesRow, error) {
	return e.facts.PendingTypes(ctx, doctordb.PendingTypesParams{CountUpTo: countUpTo, DefaultClass: events.DefaultClass})
}

// unhandled finds due events that no live worker handles, and processing classes that no live worker runs. The check of
// generations has the events of retired generations, which have no workers.
func unhandled(ctx context.Context, e *examination) (string, error) {
	pending, err := e.pendingTypes(ctx)
	if err != nil {
		return "", err
	}
	for _, t := range pending {
		if t.Handlers == "" && !t.Paused && t.Status != "retired" {
			e.unhandledType(t)
		}
	}
	idle, err := e.facts.IdleClasses(ctx, events.DefaultClass)
	for _, c := range idle {
		e.found(Warning, "no live worker of generation %d runs processing class %s: events of type %s will wait",
			c.Generation, c.Class, c.EventTypes).fix("run `SPECTRAL_GENERATION=%d workers run --classes %s`, or start a "+
			"worker without --classes, which runs all", c.Generation, c.Class)
	}
	return "each type with due events that is not paused, and each processing class, has a live worker", err
}

func (e *examination) unhandledType(t doctordb.PendingTypesRow) {
	state := Critical
	if t.Seconds < startsWithin {
		state = Warning
	}
	due := operator.Counted(t.Due, "event")
	if t.Due >= countUpTo {
		due = "at least " + due
	}
	due += fmt.Sprintf(" due of type %s in generation %d (%s), the oldest for %s", t.EventType, t.Generation, t.Status,
		span(t.Seconds))
	why, run := "no worker of that generation lives", fmt.Sprintf("`SPECTRAL_GENERATION=%d workers run", t.Generation)
	switch {
	case t.Live > 0:
		why = fmt.Sprintf("none of its %s handles that type", operator.Counted(t.Live, "live worker"))
		run += " --classes " + t.Class
	case t.Status == "unknown": // a worker would make it live
		run = fmt.Sprintf("`workers generation drain %d`, and then %s --drain", t.Generation, run)
	case t.Status != "live":
		run += " --drain"
	}
	if t.Registered {
		e.found(state, "%s, and %s", due, why).fix(
			"%s`, with the build of that generation, runs them%s", run, adopt("; or ", t.Generation, t.Adopter))
		return
	}
	// no worker of this build handles them either
	e.found(state, "%s, and %s; no build has registered that type", due, why).fix("start workers of a "+
		"build that knows the type; if there is none, give the events up: as spectral_owner, run `update core.outbox set "+
		"status = 'failed', claimed_at = now(), last_error = 'UnknownEventType: no build knows it' where event_type = %s "+
		"and generation = %d and status = 'pending' and deleted_at is null;`, then `workers events discard --type %s "+
		"--generation %[2]d --error UnknownEventType`", literal(t.EventType), t.Generation, t.EventType)
}

// channels finds pending events whose notification went to a channel on which no worker of theirs listens.
func channels(ctx context.Context, e *examination) (string, error) {
	all, err := e.facts.Misrouted(ctx, countUpTo)
	for _, m := range all {
		e.found(Warning, "%s of type %s in generation %d: published on channel %s, but workers listen on %s: each waits for "+
			"the poll, up to 5 s",
			operator.Counted(m.Events, "pending event"), m.EventType, m.Generation, m.Channel, m.Expected).
			fix("call core.outbox_publish without p_class: it then chooses the channel; the poll finds the events that wait")
	}
	return "pending events are on the channels that their workers listen on", err
}

// listeners finds types whose live workers do not keep up, and dead workers whose events no worker has recovered.
func listeners(ctx context.Context, e *examination) (string, error) {
	workers, err := e.facts.Workers(ctx)
	if err != nil {
		return "", err
	}
	pending, err := e.pendingTypes(ctx)
	for _, t := range pending {
		if t.Handlers != "" && !t.Paused && t.Seconds >= lateSeconds {
			last := "it has no error"
			if t.Error != "" {
				last = "its last error is " + t.Error
			}
			e.found(Warning, "the oldest due event of type %s in generation %d, %s, has waited for %s, although workers handle "+
				"the type (%s): there is too much work, a handler is slow, or a worker hangs; %s", t.EventType, t.Generation,
				t.Oldest, span(t.Seconds), t.Handlers, last).fix("`workers events stats --status due --type %s` shows whether "+
				"the number falls; `workers doctor transactions` names locks; then add workers, or restart one whose log is silent",
				t.EventType)
		}
	}
	if workers.Dead > 0 {
		e.found(Warning, "%s died more than 5 minutes ago, and no live worker has recovered what it held",
			operator.Counted(workers.Dead, "worker")).
			fix("run a worker of the same generation: it recovers the events within a minute")
	}
	return operator.Counted(workers.Live, "live worker") + ", no type is late", err
}

// leases finds events in flight whose lease is over and that no worker reaps, and those that a wrong clock keeps back.
func leases(ctx context.Context, e *examination) (string, error) {
	l, err := e.facts.Leases(ctx, reapGrace)
	if err != nil {
		return "", err
	}
	if l.Overdue > 0 {
		e.found(Critical, "%s in flight past the end of the lease, the longest by %s; held by %s: no worker reaps",
			operator.Counted(l.Overdue, "event"), span(l.LongestSeconds), l.HeldBy).fix("run a worker: each reaps; or, as " +
			"spectral_worker, run `set role spectral_worker; select * from core.outbox_reap();`, which says why a row " +
			"cannot be written")
		var locks []doctordb.ReapLocksRow
		locks, err = e.facts.ReapLocks(ctx, reapGrace)
		for _, k := range locks {
			e.found(Critical, "session %d of %s (%s) keeps the advisory lock of reaping: no worker can reap", k.Pid, k.Login,
				k.Application).fix("if workers run and do not reap: %s", terminate(k.Pid, k.Login))
		}
	}
	if l.Ahead > 0 {
		e.found(Warning, "%s in flight with a claim in the future, by the database's clock: no worker reaps before that",
			operator.Counted(l.Ahead, "event")).fix(
			"set the database's clock; then, as spectral_owner, run `update core.outbox " +
				"set claimed_at = clock_timestamp() where status = 'in_flight' and claimed_at > clock_timestamp();`")
	}
	ahead, aheadErr := e.facts.StampedAhead(ctx, countUpTo)
	for _, t := range ahead {
		e.found(Warning, "%s of type %s (first: %s) created up to %s after the database's present time: no worker claims "+
			"them before that", operator.Counted(t.Events, "pending event"), t.EventType, t.FirstID, span(t.Seconds)).
			fix("set the database's clock; then, as spectral_owner, run `update core.outbox set created_at = " +
				"clock_timestamp(), available_at = clock_timestamp() + (available_at - created_at) where status = 'pending' and " +
				"created_at > clock_timestamp();`")
	}
	return fmt.Sprintf("%d in flight, %d past the end of the lease", l.InFlight, l.Overdue), errors.Join(err, aheadErr)
}

// generations finds generations that neither run nor are over.
func generations(ctx context.Context, e *examination) (string, error) {
	all, err := e.facts.Generations(ctx)
	if err != nil {
		return "", err
	}
	var publishing, newest int64 // newest: that could be live
	live := 0
	for _, g := range all {
		switch g.Status {
		case "draining", "closing":
			newest = max(newest, g.Generation)
		case "live":
			live++
		}
		if g.PublishingDefault {
			publishing = g.Generation
		}
	}
	for _, g := range all {
		n, left, workers := g.Generation, operator.Counted(g.Events, "event"), operator.Counted(g.Workers, "live worker")
		if n == publishing && g.Workers == 0 {
			f := e.found(Warning, "publishing that names no generation goes to generation %d, which has no live worker", n)
			f.fix("start its workers with `SPECTRAL_GENERATION=%d workers run`", n)
			if live > 1 { // draining the only live one is refused
				f.Fix += fmt.Sprintf("; if it is not deployed, `workers generation drain %d` lets publishing go to the next one",
					n)
			}
		}
		switch drained := g.Status == "draining" && g.Events == 0; {
		case g.Events > 0 && g.Status == "retired":
			f := e.found(Critical, "generation %d is retired and has %s left, which no worker may handle", n, left)
			if f.Fix = adopt("", n, publishing); f.Fix == "" {
				f.fix(
					"start the workers of a live generation; then move the events there with `workers generation adopt --help`")
			}
		case g.Events > 0 && g.Status == "unknown":
			e.found(Critical, "generation %d has %s, but no worker of it has ever registered", n, left).fix(
				"`workers generation drain %d`, and then `SPECTRAL_GENERATION=%[1]d workers run --drain`, with the build of "+
					"that generation, runs them%s", n, adopt("; or ", n, publishing))
		case g.Status == "closing" && g.ClosingSeconds > closingFor:
			e.found(Warning, "generation %d has been closing for %s: publishing into it is refused, and it is not retired", n,
				span(g.ClosingSeconds)).fix(
				"`workers generation retire %d` goes on; `workers generation register %[1]d` makes "+
					"it live again", n)
		case g.Workers > 0 && g.Status == "retired":
			e.found(Warning, "generation %d is retired and still has %s, which may do nothing", n, workers).
				fix("stop them; `select name from core.live_workers where generation = %d;` names them", n)
		case drained && g.DrainingSeconds > drainingFor:
			e.found(Warning, "generation %d has been draining for %s and has nothing left to do", n, span(g.DrainingSeconds)).
				fix("stop its workers; then run `workers generation retire %d`", n)
		case drained && g.Workers > 0:
			e.found(Note, "generation %d is draining, has nothing left to do, and still has %s", n, workers).
				fix("once its producers are gone, stop its workers; then run `workers generation retire %d`", n)
		}
	}
	switch {
	case len(all) == 0:
		e.found(Note, "no generation is registered yet, as is normal until the first worker starts: until then publishing "+
			"is refused (SP019)").fix("`SPECTRAL_GENERATION=%d workers run` registers it", max(e.Generation, 1))
	case live == 0:
		again := ""
		if newest > 0 {
			again = fmt.Sprintf("`workers generation register %d` makes the newest generation live again; or ", newest)
		}
		e.found(Warning, "no generation is live: publishing that names no generation is refused (SP019)").
			fix("%sstart the workers of a new generation: the first makes it live", again)
	}
	unregistered, err := e.facts.UnregisteredGenerations(ctx)
	for _, u := range unregistered {
		e.found(Critical, "generation %d has %s but is not registered: publishing into it is refused (SP019)", u.Generation,
			operator.Counted(u.Workers, "live worker")).fix("`workers generation register %d`", u.Generation)
	}
	detail := fmt.Sprintf("%d known, %d live", len(all), live)
	if publishing > 0 {
		detail += fmt.Sprintf(", publishing goes to %d", publishing)
	}
	return detail, err
}

// paused finds pauses that operators may have forgotten.
func paused(ctx context.Context, e *examination) (string, error) {
	pauses, err := e.facts.Pauses(ctx)
	if err != nil || len(pauses) == 0 {
		return "nothing is paused", err
	}
	for _, p := range pauses {
		if p.Seconds > pausedFor {
			e.found(Warning, "paused for %s: %s in generation %d by %s; its events wait", span(p.Seconds), p.EventType,
				p.Generation, p.PausedBy).fix("`workers events resume %s --generation %d`", p.EventType, p.Generation)
		}
	}
	return fmt.Sprintf("%s, the first of %s in generation %d by %s", operator.Counted(len(pauses), "pause"),
		pauses[0].EventType, pauses[0].Generation, pauses[0].PausedBy), nil
}

// breakers finds handlers that are not called.
func breakers(ctx context.Context, e *examination) (string, error) {
	open, err := e.facts.OpenBreakers(ctx, countUpTo)
	for _, b := range open {
		fix := "bring back what it needs; `workers handlers list` says when it is probed next"
		if b.Forced {
			fix = fmt.Sprintf("`workers handlers close %s --generation %d`", b.HandlerName, b.Generation)
		}
		e.found(Warning, "handler %s of generation %d has not been called for %s, opened by %s, and %s for it: %s",
			b.HandlerName, b.Generation, span(b.Seconds), b.OpenedBy, waits(int(b.Waiting)), b.Cause).fix("%s", fix)
	}
	return operator.Counted(len(open), "open breaker"), err
}

// waits returns how many events wait.
func waits(n int) string {
	if n == 1 {
		return "1 event waits"
	}
	return operator.Counted(n, "event") + " wait"
}

// operations finds replays and discards that have paused.
func operations(ctx context.Context, e *examination) (string, error) {
	all, err := e.facts.Operations(ctx)
	paused := 0
	for _, o := range all {
		if o.State == "paused" {
			paused++
			e.found(Note, "%s of %s by %s is paused: %s", o.Name,
				operator.Counted(int(o.Total), "event"), o.CreatedBy, o.Why).
				fix("`workers operations show %s`, then resume or abort it", o.ID)
		}
	}
	return fmt.Sprintf("%s, %d paused", operator.Counted(len(all), "unfinished operation"), paused), err
}

// failures counts the dead letters, and finds quarantined events, recent failures, and events without effect.
func failures(ctx context.Context, e *examination) (string, error) {
	quarantined, err := e.facts.Quarantined(ctx)
	if err != nil {
		return "", err
	}
	for _, q := range quarantined {
		e.found(Critical, "%s of type %s in generation %d, which no worker claims; the first is %s: %s",
			operator.Counted(q.Events, "quarantined event"), q.EventType, q.Generation, q.ID, q.Reason).
			fix("remove what rejects the change of the row: `workers doctor schema` names foreign triggers and constraints; "+
				"then `workers events retry-now --status quarantined --type %s`", q.EventType)
	}
	f, err := e.facts.Failures(ctx)
	if f.Recent > 0 {
		e.found(Warning, "%s failed in the last hour; the most common failure is %s",
			operator.Counted(f.Recent, "event"), f.Most).
			fix("`workers events stats --status failed` counts them by type and error; `workers events list --newer-than 1h` " +
				"lists them")
	}
	reused, reusedErr := e.facts.ReusedKeys(ctx, countUpTo)
	for _, r := range reused {
		e.found(Warning, "%s of type %s had nothing to do in the last day, because another payload was handled under the "+
			"same key",
			operator.Counted(int(r.Events), "event"), r.EventType).fix("`workers events show %s` names the event that "+
			"was handled instead of the latest; let the key name the change, not the thing that changed (docs/producers.md)",
			r.Latest)
	}
	return operator.Counted(f.Failed, "failed event") + " to replay or discard", errors.Join(err, reusedErr)
}

// retention finds sweeps that do not happen, and dead letters that will soon be deleted.
func retention(ctx context.Context, e *examination) (string, error) {
	r, err := e.facts.Retention(ctx, doctordb.RetentionParams{LeastSeconds: sweptWithin, Tombstones: tombstonesRead,
		WarnDays: expiringDays})
	if err != nil {
		return "", err
	}
	if r.PolicyFault != "" {
		// keeping rows for longer loses nothing
		e.found(Critical, "the retention policies contradict each other, and nothing is swept: %s", r.PolicyFault).fix(
			"as spectral_owner, run `begin; insert into core.retention_policies (subject, active_ttl_days, " +
				"tombstoned_grace_days) values ('outbox_row', 45, 7), ('event_handled', 60, 7) on conflict do nothing; update " +
				"core.retention_policies h set active_ttl_days = o.active_ttl_days + o.tombstoned_grace_days + 8 from " +
				"core.retention_policies o where h.subject = 'event_handled' and o.subject = 'outbox_row' and " +
				"h.active_ttl_days <= o.active_ttl_days + o.tombstoned_grace_days; commit;`")
	}
	if r.Hidden > 0 {
		e.found(Warning, "%s pending or in flight, but marked as deleted: no handler runs, and retention does not delete "+
			"the row",
			operator.Counted(r.Hidden, "event")).fix("as spectral_owner, run `update core.outbox set deleted_at = null " +
			"where deleted_at is not null and status in ('pending', 'in_flight');`, and workers handle them")
	}
	if r.FailedExpiring > 0 {
		older := ""
		if days := r.OutboxDays - expiringDays; days > 0 {
			older = fmt.Sprintf(" --older-than %dd", days)
		}
		e.found(Warning, "%s will be deleted unread within %d days, the first in %s",
			operator.Counted(r.FailedExpiring, "failed event"), expiringDays, span(max(r.ExpireFirstSeconds, 0))).
			fix("`workers events list%s` shows them; replay or discard each", older)
	}
	if r.Workers > 0 && (r.SweptSeconds < 0 || r.SweptSeconds > sweptWithin) {
		e.found(Warning, "no worker has swept for %s, although workers run", span(sweptWithin)).
			fix("`workers retention sweep` does it now; entries with \"sweep\" in the workers' logs say why they do not")
	}
	if r.SweptSeconds < 0 {
		return "never swept", nil
	}
	return "last swept " + span(r.SweptSeconds) + " ago", nil
}
