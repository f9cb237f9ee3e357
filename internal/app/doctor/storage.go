package doctor

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"spectral/internal/core/events/infrastructure/postgres/doctordb"
	"spectral/internal/core/events/infrastructure/postgres/operator"
	"spectral/internal/core/events/infrastructure/postgres/pgtx"
)

// Limits of the checks in this file; docs/scale.md says what they are for.
const (
	maxListed      = 20        // things of one kind are named, where there may be very many
	oldSnapshotIDs = 1_000_000 // a snapshot of that age in transactions is old, however short a time it has been held
	fewDead        = 10_000    // so many dead rows slow down nothing
	partitionRows  = 5_000_000
	relayRows      = 20_000_000
	relayP99       = 500 * time.Millisecond // exceeded for a week, or now by a commit that waits to notify
	hoursOfAWeek   = 7 * 24 / 2             // hours with figures that count as a week: hours without events have none
	eventsAnHour   = 100                    // make a p99 meaningful
	maxMonths      = 12                     // retention needs three or four
	minDaysAhead   = 14                     // how far ahead partitions are at least, while workers make them
)

// The steps beyond one table, each with its commands.
const (
	partitionStep = "step 1, partitions: `workers outbox partition --dry-run` (docs/scale.md)"
	relayStep     = "step 2, the relay: `workers run --relay jetstream` on the workers, then `workers relay compare` " +
		"and `workers relay switch` (docs/scale.md)"
	relayed = "events take the relay already: docs/scale.md, Nodes, says what is the limit next"
)

func terminate(pid int32, login string) string {
	return fmt.Sprintf("as %s, a member of pg_signal_backend or a superuser, run `select pg_terminate_backend(%d);`",
		cmp.Or(login, "its login"), pid)
}

// snapshots finds what keeps dead rows from being removed: claims then read them all.
func snapshots(ctx context.Context, e *examination) (string, error) {
	held, err := e.facts.Snapshots(ctx)
	if err == nil {
		err = e.unseen(ctx, true)
	}
	if err != nil || len(held) == 0 {
		return "no snapshot is held", err
	}
	for _, s := range held[:min(len(held), maxListed)] {
		if s.Ids >= oldSnapshotIDs || s.Seconds >= e.SnapshotAfter.Seconds() {
			since := ""
			if s.Seconds > 0 {
				since = " for " + span(s.Seconds)
			}
			e.found(Warning, "%s has held a snapshot%s, %s old: rows that died since cannot be removed, and claims slow down",
				s.Holder, since, operator.Counted(s.Ids, "transaction")).fix("%s", s.Fix)
		}
	}
	return fmt.Sprintf("the oldest is %s old: %s", operator.Counted(held[0].Ids, "transaction"), held[0].Holder), nil
}

// unseen finds sessions whose state is not known: of those that hold a snapshot, or else of this database.
func (e *examination) unseen(ctx context.Context, snapshots bool) error {
	s, err := e.facts.Sessions(ctx, snapshots)
	if s.Hidden > 0 {
		e.found(Unknown, "this login may not see what %s of other logins do", operator.Counted(s.Hidden, "session")).
			fix("as a superuser, run `grant pg_read_all_stats to %s;`", e.inspector.Login())
	}
	if s.Untracked > 0 {
		e.found(Unknown, "the state of %s is not known: track_activities is off there",
			operator.Counted(s.Untracked, "session")).
			fix("run `workers doctor settings`, which finds where it is set; the sessions keep it until they reconnect: " +
				"`select pid, usename, application_name from pg_stat_activity where state = 'disabled';`")
	}
	return err
}

// transactions finds sessions that idle in a transaction, which hold locks, and the notification queue if they listen;
// sessions that keep others waiting for a lock, such as a worker whose handler hangs; and prepared transactions, which
// notifications do not support.
func transactions(ctx context.Context, e *examination) (string, error) {
	blockers, err := e.facts.Blockers(ctx, doctordb.BlockersParams{IdleSeconds: e.IdleAfter.Seconds(), AtMost: maxListed})
	if err != nil {
		return "", err
	}
	for _, b := range blockers {
		doing, condition := " is "+b.State+" and holds a lock", "if it does not end by itself: "
		switch {
		case b.IdleSeconds > 0:
			doing, condition = fmt.Sprintf(" has been idle in a transaction for %s: it holds its locks, and the notification "+
				"queue if it listens", span(b.IdleSeconds)), ""
		case b.State == "":
			doing = " holds a lock"
		}
		if b.Waiting > 0 {
			doing += fmt.Sprintf("; it keeps %s waiting, the longest for %s", operator.Counted(b.Waiting, "session"),
				span(b.LongestSeconds))
		}
		e.found(Warning, "session %d of %s (%s)%s", b.Pid, b.Login, b.Application, doing).
			fix("%s%s", condition, terminate(b.Pid, b.Login))
	}
	prepared, err := e.facts.Prepared(ctx, maxListed)
	if err != nil {
		return "", err
	}
	for _, id := range prepared {
		e.found(Warning, "transaction %s is prepared and not committed: it holds its locks, and events that it published "+
			"would wake no worker", id).fix("as the login that prepared it or a superuser, run `rollback prepared %s;`; or "+
			"commit it, if its coordinator committed elsewhere", id)
	}
	return "no session idles in a transaction or keeps others waiting for a lock", e.unseen(ctx, false)
}

// isOutbox reports whether a table is core.outbox or a partition of it.
func isOutbox(table string) bool {
	return table == "core.outbox" || strings.HasPrefix(table, "core.outbox_")
}

// vacuum finds tables that autovacuum does not keep up with.
func vacuum(ctx context.Context, e *examination) (string, error) {
	all, err := e.facts.Vacuum(ctx)
	var dead int64
	for _, t := range all {
		if isOutbox(t.Name) {
			dead += t.Dead
		}
		switch {
		case t.Off != "":
			e.found(Warning, "autovacuum is off for %s (%s): dead rows pile up and claims slow down", t.Name, t.Off).
				fix("as spectral_owner, run `alter table %s reset (%s);`", t.Name, t.Off)
		// after a sweep autovacuum needs a while
		case t.Dead > fewDead && float64(t.Dead) > 3*t.Threshold && !t.SweptLately:
			e.found(Warning, "%s has %d dead rows, and autovacuum should have begun at %.0f: it does not keep up", t.Name,
				t.Dead, t.Threshold).fix(
				"run `workers doctor snapshots transactions`, which names what holds dead rows; then, "+
					"as spectral_owner, run `vacuum (analyze) %s;`, and give autovacuum more workers or a higher "+
					"autovacuum_vacuum_cost_limit", t.Name)
		}
		if t.Age*10 > t.MaxAge*12 {
			e.found(Critical, "%s was last frozen %d transactions ago, beyond autovacuum_freeze_max_age (%d): the server stops "+
				"taking writes before 2 billion", t.Name, t.Age, t.MaxAge).
				fix("as spectral_owner, run `vacuum (freeze, verbose) %s;`", t.Name)
		}
	}
	return operator.Counted(dead, "dead row") + " in core.outbox", err
}

// scale finds the triggers of the steps beyond one table, and names the step. Rows are the planner's estimate, latency
// is that of a week; lock waits, the queue and dead rows are what they are at this moment.
func scale(ctx context.Context, e *examination) (string, error) {
	path, err := e.facts.RelayPath(ctx)
	if err != nil {
		return "", err
	}
	step2 := relayStep
	if path.Path == pgtx.PathJetStream {
		step2 = relayed
	}
	waits, err := e.facts.OutboxWaits(ctx, doctordb.OutboxWaitsParams{ // first: the size waits for a lock, too
		LockSeconds: e.IdleAfter.Seconds(), NotifySeconds: relayP99.Seconds()})
	if err != nil {
		return "", err
	}
	for _, w := range waits {
		lock := "a lock of core.outbox or core.event_handled"
		if w.Notify {
			lock = "the lock of all commits that notify"
		}
		e.found(Warning, "trigger lock waits: %s now held up by %s, the longest for %s",
			operator.Counted(w.Sessions, "session"),
			lock, span(w.LongestSeconds)).fix("run `workers doctor transactions`, which names the session that holds locks; "+
			"if this has cost an incident, %s", step2)
	}
	share, err := e.facts.NotificationQueue(ctx)
	if err != nil {
		return "", err
	}
	if queueState(share) != Fine {
		e.found(Warning, "trigger notification queue: it is %.1f %% full now", 100*share).
			fix("run `workers doctor queue`, which says what to do now; if this has cost an incident, %s", step2)
	}
	tables, err := e.facts.Vacuum(ctx)
	if err != nil {
		return "", err
	}
	var live, dead int64
	swept := false
	for _, t := range tables {
		if isOutbox(t.Name) {
			live, dead, swept = live+t.Live, dead+t.Dead, swept || t.SweptLately
		}
	}
	// autovacuum begins at 5,000 and 1 %: at half of all rows it does not run, or something holds them
	if dead > fewDead && dead > live && !swept {
		e.found(Warning, "trigger bloat: core.outbox has %d dead rows now, and %d live ones", dead, live).
			fix("run `workers doctor vacuum snapshots`, which names what keeps them; if this has cost an incident, %s",
				step2)
	}
	s, err := e.facts.Scale(ctx, doctordb.ScaleParams{SlowMs: relayP99.Milliseconds(), LeastEvents: eventsAnHour})
	limit, step := partitionRows, partitionStep
	if s.Partitioned {
		limit, step = relayRows, step2
	}
	if s.Rows > float64(limit) {
		e.found(Warning, "trigger rows: core.outbox has about %.0f, more than %d", s.Rows, limit).
			fix("run `workers retention status`, which shows whether retention sweeps; if it does, %s", step)
	}
	times := "no hour had enough events to say how long they take"
	if s.Hours > 0 {
		within := func(ms int64) string {
			if ms == math.MaxInt32 { // the last bucket
				return "more than 60000"
			}
			return strconv.FormatInt(ms, 10)
		}
		times = fmt.Sprintf("99 %% of events settled within %s ms in the latest hour, within %s ms in the worst of the week",
			within(s.LastP99), within(s.WorstP99))
	}
	if s.Hours >= hoursOfAWeek && s.SlowHours == s.Hours {
		e.found(Warning, "trigger latency: for a week 1 %% of events took longer than %s to settle, in each of %s with "+
			"figures", relayP99,
			operator.Counted(s.Hours, "hour")).fix("run `workers doctor listeners`, which finds slow handlers "+
			"and too few workers; if it finds none, %s", step2)
	}
	return fmt.Sprintf("about %.0f rows in core.outbox (%s), %d dead; %s; the notification queue is %.1f %% full, no "+
		"session waits", s.Rows, s.Size, dead, times, 100*share), err
}

// partitions finds changes of core.outbox that did not end, and months without a partition.
func partitions(ctx context.Context, e *examination) (string, error) {
	p, err := e.facts.Partitions(ctx)
	detail := "core.outbox is one table"
	if p.DaysAhead >= 0 {
		detail = fmt.Sprintf("core.outbox has monthly partitions; the last one ends in %.0f days", p.DaysAhead)
	}
	if p.Begun != "" {
		e.found(Critical, "a change of core.outbox to partitions did not end: later events will be refused: %s", p.Begun).
			fix("as the login that migrates, run `workers outbox partition`")
	}
	if p.UndoPending {
		e.found(Warning, "core.outbox was made one table again, and events of its partitions are not moved yet").
			fix("as the login that migrates, run `workers outbox partition --undo`")
	}
	if p.DaysAhead >= 0 && p.DaysAhead < minDaysAhead {
		e.found(Warning, "the last partition of core.outbox ends in %.0f days: workers should make others", p.DaysAhead).
			fix("as the login that migrates, run `workers outbox partition`; events go to core.outbox_rest until then")
	}
	if p.Months > maxMonths {
		e.found(Warning, "core.outbox has %d months: each claim locks all of them, and the server's locks run out", p.Months).
			fix("as the login that migrates, run `workers outbox partition --detach`, which drops months that are over")
	}
	if p.Rest > 0 {
		e.found(Note, "about %d events are in core.outbox_rest, because their month had no partition: they are handled as "+
			"any", p.Rest).fix("none is needed: retention takes them")
	}
	return detail, err
}
