package doctor

import (
	"fmt"

	"spectral/internal/core/events"
	"spectral/internal/core/events/infrastructure/postgres/operator"
)

// countUpTo bounds how many rows of a kind are counted.
const countUpTo = 10000

// startsWithin is how long, in seconds, a worker may take to start or to be restarted: until then it is a warning that nobody handles what is due.
const startsWithin = 30

// unhandled finds due rows that no live worker has a handler for, and processing classes that nobody runs beside live workers. Those of retired generations, which have no workers, generations finds.
func unhandled(v *visit) string {
	kinds := all[struct {
		Generation int64
		EventType  string
		Rows       int64
		Oldest     float64
		Workers    int64
		Status     string
		Registered bool   // the type, by some build
		Away       string // SQL that makes them dead letters
	}](v, `
select k.generation, k.event_type,
  (select count(*) from (select from core.outbox o where o.generation = k.generation and o.event_type = k.event_type
     and o.status = 'pending' and o.deleted_at is null and o.available_at <= statement_timestamp() limit $1) l),
  extract(epoch from statement_timestamp() - d.available_at)::double precision,
  (select count(*) from core.live_workers w where w.generation = k.generation),
  coalesce((select p.status from core.deployments p where p.generation = k.generation), 'unknown'),
  exists (select from core.event_types t where t.event_type = k.event_type),
  format('update core.outbox set status = ''failed'', claimed_at = now(), last_error = ''UnknownEventType: no build knows it'' where event_type = %L and generation = %s and status = ''pending'' and deleted_at is null;', k.event_type, k.generation)
from `+operator.PendingKinds+`,
  lateral (select o.available_at from core.outbox o where o.generation = k.generation and o.event_type = k.event_type
     and o.status = 'pending' and o.deleted_at is null order by o.available_at limit 1) d
where d.available_at <= statement_timestamp()
  and not exists (select from core.live_workers w where w.generation = k.generation and w.handlers ? k.event_type)
  and not exists (select from core.paused_types p where p.generation = k.generation and p.event_type = k.event_type)
  and not exists (select from core.deployments r where r.generation = k.generation and r.status = 'retired')
order by k.generation, k.event_type`, countUpTo)
	for _, k := range kinds {
		rows := fmt.Sprintf("%d", k.Rows)
		if k.Rows >= countUpTo {
			rows = fmt.Sprintf("%d or more", countUpTo)
		}
		state := Critical
		if k.Oldest < startsWithin {
			state = Warning
		}
		seen := fmt.Sprintf("%s due events %s of generation %d (%s) wait, the oldest for %s", rows, k.EventType, k.Generation, k.Status, span(k.Oldest))
		var cure string
		if k.Workers == 0 {
			seen += ", and no worker of that generation lives"
			first, drain := "", " --drain"
			switch k.Status {
			case "live":
				drain = ""
			case "unknown": // which a worker would make live
				first = fmt.Sprintf("workers generation drain %d; then ", k.Generation)
			}
			cure = fmt.Sprintf("%srun that generation's own build: SPECTRAL_GENERATION=%d workers run%s; or move them: workers generation adopt %[2]d TO", first, k.Generation, drain)
		} else {
			seen += fmt.Sprintf(": of its %d live workers none handles that type", k.Workers)
			cure = fmt.Sprintf("run a worker with the class of that type (workers run --classes), or move them to a generation that handles it: workers generation adopt %d TO", k.Generation)
		}
		if !k.Registered { // and so another worker, or generation, of this build does not handle them either
			seen += "; no build has registered that type"
			cure = fmt.Sprintf("start workers of the build that knows it; if there is none, give them up, as spectral_owner: %s and as an operator: workers events discard --type %s --generation %d --error UnknownEventType", k.Away, k.EventType, k.Generation)
		}
		v.found(state, seen, cure)
	}
	v.list(`
select 'warning', format('no live worker of generation %s runs processing class %s: events %s will wait', d.generation, coalesce(t.class, $1), string_agg(t.event_type, ', ' order by t.event_type)),
  format('SPECTRAL_GENERATION=%s workers run --classes %s; or start one without --classes, which runs all', d.generation, coalesce(t.class, $1))
from core.deployments d, (select distinct t.event_type, t.class, t.consumed_in from core.event_types t) t
where d.status = 'live' and coalesce((t.consumed_in ->> d.generation::text)::boolean, false)
  and exists (select from core.live_workers w where w.generation = d.generation)
group by d.generation, t.class
having not exists (select from core.live_workers w where w.generation = d.generation and w.handlers ?| array_agg(t.event_type))
order by d.generation, coalesce(t.class, $1)`, events.DefaultClass)
	return "every type with due events, and every processing class, has a live worker that handles it"
}

// channels finds pending rows that are announced where nobody of their generation listens.
func channels(v *visit) string {
	v.list(`
select 'warning', format('%s pending events %s of generation %s are announced on %s, but their workers listen on %s: they wait for the poll',
    count(*), k.event_type, k.generation, o.channel, x.expected),
  'publish through core.outbox_publish without p_class, which composes the channel; those that wait are found by the poll'
from `+operator.PendingKinds+`,
  lateral (select 'outbox_gen_' || k.generation || coalesce('_' || max(t.class), '') as expected from core.event_types t where t.event_type = k.event_type) x,
  lateral (select o.channel from core.outbox o where o.generation = k.generation and o.event_type = k.event_type
     and o.status = 'pending' and o.deleted_at is null order by o.available_at limit $1) o
where o.channel <> x.expected
group by k.generation, k.event_type, o.channel, x.expected order by k.generation, k.event_type, o.channel`, countUpTo)
	return "pending events are announced where their workers listen"
}

// lateAfter is how long a due event may wait for a live worker that handles it.
const lateAfter = "1 minute"

// listeners finds types whose live workers do not get on with what is due.
func listeners(v *visit) string {
	live := one[struct{ Workers, Gone int64 }](v, `select (select count(*) from core.live_workers),
		(select count(*) from core.workers w where w.gone_at < statement_timestamp() - interval '5 minutes')`)
	late := all[struct {
		Generation         int64
		EventType, Workers string
		Oldest             float64
	}](v, `
select k.generation, k.event_type,
  (select string_agg(w.name, ', ' order by w.name) from core.live_workers w where w.generation = k.generation and w.handlers ? k.event_type),
  extract(epoch from statement_timestamp() - d.available_at)::double precision
from `+operator.PendingKinds+`,
  lateral (select o.available_at from core.outbox o where o.generation = k.generation and o.event_type = k.event_type
     and o.status = 'pending' and o.deleted_at is null order by o.available_at limit 1) d
where d.available_at <= statement_timestamp() - interval '`+lateAfter+`'
  and exists (select from core.live_workers w where w.generation = k.generation and w.handlers ? k.event_type)
  and not exists (select from core.paused_types p where p.generation = k.generation and p.event_type = k.event_type)
order by 1, 2`)
	for _, l := range late {
		v.found(Warning,
			fmt.Sprintf("the oldest due event %s of generation %d has waited for %s, though %s handles that type: too much at once, a slow handler, or a worker that is stuck", l.EventType, l.Generation, span(l.Oldest), l.Workers),
			"look whether the number goes down (workers events stats), what workers hold (core.claim_journal) and what waits for locks: select pid, pg_blocking_pids(pid), query from pg_stat_activity where wait_event_type = 'Lock'; add workers, or restart one whose log says nothing")
	}
	if live.Gone > 0 {
		v.found(Warning, fmt.Sprintf("%d workers have been dead for more than 5 minutes, and no live worker has taken up what they held", live.Gone),
			"run a worker of their generation: it looks what they died of")
	}
	return fmt.Sprintf("%d live workers, none behind", live.Workers)
}

// overdueAfter is how long after its end the reaper may take to notice a lease.
const overdueAfter = 30

// leases finds events in flight whose lease is over and that no worker reaps.
func leases(v *visit) string {
	s := one[struct {
		InFlight, Overdue int64
		Ahead             int64
		Longest           float64
		Whose             string
	}](v, `
select count(*), count(*) filter (where l.over > $1), count(*) filter (where l.over < -l.lease - $1), coalesce(max(l.over), 0), coalesce(string_agg(distinct l.claimed_by, ', ') filter (where l.over > $1), '')
from (select extract(epoch from statement_timestamp() - coalesce(o.claimed_at, o.created_at))::double precision - o.lease_seconds as over, o.claimed_by, o.lease_seconds as lease
      from core.outbox o where o.status = 'in_flight' and o.deleted_at is null) l`, overdueAfter)
	if s.Overdue > 0 {
		v.found(Critical,
			fmt.Sprintf("%d events are in flight past their lease, the longest by %s, and no worker reaps them; held by %s", s.Overdue, span(s.Longest), s.Whose),
			"run a worker, each reaps; or: set role spectral_worker; select * from core.outbox_reap(); which says why a row cannot be re-pended")
		// our own function holds its lock for a moment
		v.list(`
select 'critical', format('session %s of %s (%s) holds the advisory lock of reaping, and keeps it: no worker can reap', l.pid, coalesce(a.usename, 'unknown'), coalesce(nullif(a.application_name, ''), 'unnamed')),
  format('if workers run and nothing is reaped all the same, end it, as a superuser, a member of pg_signal_backend or its own login: select pg_terminate_backend(%s);', l.pid)
from pg_locks l join pg_stat_activity a on a.pid = l.pid
where l.locktype = 'advisory' and l.objsubid = 1 and l.granted and (l.classid::bigint << 32 | l.objid::bigint) = 5583017264419803127
  and l.database = (select d.oid from pg_database d where d.datname = current_database())
  and (a.state like 'idle%' or a.xact_start < statement_timestamp() - make_interval(secs => $1))
group by l.pid, a.usename, a.application_name order by l.pid`, overdueAfter)
	}
	if s.Ahead > 0 {
		v.found(Warning, fmt.Sprintf("%d events in flight were claimed in the future, by the database's clock: until then no worker reaps them", s.Ahead),
			"set the database's clock; then, as spectral_owner: update core.outbox set claimed_at = clock_timestamp() where status = 'in_flight' and claimed_at > clock_timestamp();")
	}
	return fmt.Sprintf("%d in flight, %d past their lease", s.InFlight, s.Overdue)
}

// generations finds those that are neither running nor over.
func generations(v *visit) string {
	known := all[struct {
		Generation         int64
		Status             string
		Left, Failed       int64
		Workers            int64
		PublishingDefault  bool
		DrainingFor, Since float64
	}](v, `select s.generation, s.status, s.due + s.scheduled + s.in_flight, s.failed, s.workers, s.publishing_default,
		coalesce(extract(epoch from statement_timestamp() - s.draining_at), 0)::double precision,
		coalesce(extract(epoch from statement_timestamp() - s.closed_at), 0)::double precision
		from core.generation_status() s order by s.generation`)
	seen, live := "none is known", 0
	for _, g := range known {
		if g.PublishingDefault {
			seen = fmt.Sprintf("publishing goes to %d", g.Generation)
			if g.Workers == 0 {
				v.found(Warning, fmt.Sprintf("publishing that names no generation goes to %d, and no worker of it lives", g.Generation),
					fmt.Sprintf("start its workers; or, if it is not deployed, let it end: workers generation drain %d", g.Generation))
			}
		}
		if g.Status == "live" {
			live++
		}
		switch {
		case g.Left > 0 && g.Status == "retired":
			v.found(Critical, fmt.Sprintf("generation %d is retired and has %d events that no worker may handle", g.Generation, g.Left),
				fmt.Sprintf("move them: workers generation adopt %d TO", g.Generation))
		case g.Left > 0 && g.Status == "unknown":
			v.found(Critical, fmt.Sprintf("generation %d is unknown and has %d events: no worker of it has ever registered", g.Generation, g.Left),
				fmt.Sprintf("move them: workers generation adopt %d TO; or workers generation drain %[1]d, and then, with its own build: SPECTRAL_GENERATION=%[1]d workers run --drain", g.Generation))
		case g.Status == "closing" && g.Since > 600:
			v.found(Warning, fmt.Sprintf("generation %d has been closed for %s and is not retired: publishing into it is refused", g.Generation, span(g.Since)),
				fmt.Sprintf("go on: workers generation retire %d; or take it back: workers generation register %[1]d", g.Generation))
		case g.Workers > 0 && g.Status == "retired":
			v.found(Warning, fmt.Sprintf("%d live workers are of generation %d, which is retired: there is nothing that they may do", g.Workers, g.Generation),
				fmt.Sprintf("stop them: select name from core.live_workers where generation = %d;", g.Generation))
		case g.Workers > 0 && g.Left == 0 && g.Status == "draining" && g.DrainingFor <= 86400:
			v.found(Note, fmt.Sprintf("%d live workers are of generation %d, which is draining and has nothing left", g.Workers, g.Generation),
				fmt.Sprintf("once its producers are gone, stop them and retire it: workers generation retire %d", g.Generation))
		case g.Status == "draining" && g.DrainingFor > 86400 && g.Left == 0:
			v.found(Warning, fmt.Sprintf("generation %d has been draining for %s and has nothing left", g.Generation, span(g.DrainingFor)),
				fmt.Sprintf("stop its workers and retire it: workers generation retire %d", g.Generation))
		}
	}
	if live == 0 {
		v.found(Warning, "no generation is live: publishing that names none is refused (SP019)", "start a worker, or: workers generation register N")
	}
	v.list(`select 'critical', format('%s live workers are of generation %s, which is not registered: publishing into it is refused (SP019)', count(*), w.generation),
		format('workers generation register %s', w.generation)
		from core.live_workers w where not exists (select from core.deployments d where d.generation = w.generation) group by w.generation order by w.generation`)
	return fmt.Sprintf("%d known, %d live, %s", len(known), live, seen)
}

// pausedLong is for how long a pause is thought to be meant.
const pausedLong = 86400

// paused finds pauses that somebody may have forgotten.
func paused(v *visit) string {
	pauses := all[struct {
		EventType  string
		Generation int64
		By         string
		Seconds    float64
	}](v, `select p.event_type, p.generation, p.paused_by || coalesce(': ' || p.reason, ''), extract(epoch from statement_timestamp() - p.paused_at)::double precision
		from core.paused_types p order by p.paused_at`)
	if len(pauses) == 0 {
		return "nothing is paused"
	}
	for _, p := range pauses {
		if p.Seconds > pausedLong {
			v.found(Warning, fmt.Sprintf("%s of generation %d has been paused for %s by %s: its events wait", p.EventType, p.Generation, span(p.Seconds), p.By),
				fmt.Sprintf("workers events resume %s --generation %d", p.EventType, p.Generation))
		}
	}
	return fmt.Sprintf("%d types, the first %s of generation %d by %s", len(pauses), pauses[0].EventType, pauses[0].Generation, pauses[0].By)
}

// failures says how many dead letters there are, and finds those that came just now: something is going wrong.
func failures(v *visit) string {
	s := one[struct {
		All, Fresh int64
		What       string
	}](v, `select count(*), count(*) filter (where o.claimed_at > statement_timestamp() - interval '1 hour'),
		coalesce(mode() within group (order by o.event_type || ', ' || split_part(o.last_error, ':', 1)) filter (where o.claimed_at > statement_timestamp() - interval '1 hour'), '')
		from core.outbox o where o.status = 'failed' and o.deleted_at is null`)
	seen := fmt.Sprintf("%d failed events wait for a decision", s.All)
	if s.Fresh > 0 {
		v.found(Warning, fmt.Sprintf("%d events failed in the last hour, most of them %s", s.Fresh, s.What), "workers events stats --status failed; workers events list --newer-than 1h")
	}
	return seen
}

// sweptAfter is how many seconds may pass between two sweeps: workers begin one every six hours.
const sweptAfter = 24 * 3600

// expiringWithin is within how many days failed events expire that are warned of.
const expiringWithin = 7

// tombstonesLookedAt bounds how many are, the latest first: no index has those that should not be. Among 5 M rows that takes 0.03 s as sweeps leave
// them, and 0.6 s where each is on another page.
const tombstonesLookedAt = 100000

// retention finds sweeps that do not happen, and dead letters that will soon be gone.
func retention(v *visit) string {
	s := one[struct {
		Fault    string
		Expiring int64
		FirstIn  float64
		Age      int64 // in days, from which on an event is one of them; the stored policy says it
		Swept    bool
		Since    float64
		Workers  int64
		NoteKept bool
	}](v, `select coalesce(s.policy_fault, ''), s.failed_expiring,
		coalesce(extract(epoch from s.failed_expire_first_at - statement_timestamp()), 0)::double precision,
		greatest((select p.active_ttl_days from core.retention_policies p where p.subject = 'outbox_row' and p.content_class = '*') - $1, 0)::bigint,
		s.swept_at is not null, coalesce(extract(epoch from statement_timestamp() - s.swept_at), 0)::double precision,
		(select count(*) from core.live_workers w where w.registered_at < statement_timestamp() - make_interval(secs => $2)),
		not exists (select from core.retention_policies p where p.subject = 'operator_action')
		from core.retention_status($1) s`, expiringWithin, sweptAfter)
	seen := "nothing was swept yet"
	if s.Swept {
		seen = "last swept " + span(s.Since) + " ago"
	}
	if s.Fault != "" {
		v.found(Critical, "the retention policies contradict each other, and nothing is swept: "+s.Fault,
			// what is remembered is kept for longer: nothing is lost by that
			"as spectral_owner: begin; insert into core.retention_policies (subject, active_ttl_days, tombstoned_grace_days) values ('outbox_row', 45, 7), ('event_handled', 60, 7) on conflict do nothing; "+
				"update core.retention_policies h set active_ttl_days = o.active_ttl_days + o.tombstoned_grace_days + 8 from core.retention_policies o "+
				"where h.subject = 'event_handled' and o.subject = 'outbox_row' and h.active_ttl_days <= o.active_ttl_days + o.tombstoned_grace_days; commit;")
	}
	hidden := one[struct{ Rows int64 }](v, `select count(*) from (select o.status from core.outbox o where o.deleted_at is not null order by o.deleted_at desc limit $1) t
		where t.status in ('pending', 'in_flight')`, tombstonesLookedAt)
	if hidden.Rows > 0 {
		v.found(Warning, fmt.Sprintf("of the latest %d tombstones %d are on events that are pending or in flight: no handler runs for them, and nothing deletes them", tombstonesLookedAt, hidden.Rows),
			"so that they are handled, as spectral_owner: update core.outbox set deleted_at = null where deleted_at is not null and status in ('pending', 'in_flight');")
	}
	if s.NoteKept {
		v.found(Warning, "what operators did (core.operator_actions) has no retention policy, and is kept for ever",
			"as spectral_owner: insert into core.retention_policies (subject, active_ttl_days, tombstoned_grace_days) values ('operator_action', 365, 7);")
	}
	if s.Expiring > 0 {
		which := "workers events list"
		if s.Age > 0 {
			which += fmt.Sprintf(" --older-than %dd", s.Age)
		}
		v.found(Warning, fmt.Sprintf("%d failed events expire within %d days, the first in %s", s.Expiring, expiringWithin, span(max(s.FirstIn, 0))), "replay or discard them: "+which)
	}
	if s.Workers > 0 && (!s.Swept || s.Since > sweptAfter) {
		v.found(Warning, fmt.Sprintf("workers have been running for longer than %s, and none has swept for as long", span(sweptAfter)), "look for \"sweep\" in their logs; by hand: workers retention sweep")
	}
	return seen
}
