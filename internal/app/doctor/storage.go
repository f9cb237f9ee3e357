package doctor

import (
	"fmt"

	"github.com/jackc/pgx/v5"
)

// oldSnapshotIDs is the age in transactions from which a snapshot is old, however young in time.
const oldSnapshotIDs = 1_000_000

// snapshots finds who keeps dead rows from being removed: claims then wade through them.
func snapshots(v *visit) string {
	holders := all[struct {
		Holder  string
		IDs     int64
		Seconds float64
		Cure    string
	}](v, `
select h.holder, h.ids, coalesce(h.seconds, 0)::double precision, h.cure from (
  select format('session %s of %s (%s, %s)', a.pid, a.usename, coalesce(nullif(a.application_name, ''), 'no application name'), coalesce(a.state, 'state not visible')) as holder,
    age(a.backend_xmin)::bigint as ids, extract(epoch from clock_timestamp() - a.xact_start) as seconds, format('select pg_terminate_backend(%s); as %s, a member of pg_signal_backend, or a superuser', a.pid, a.usename) as cure
  from pg_stat_activity a where a.backend_xmin is not null and a.pid <> pg_backend_pid() and coalesce(a.backend_type, '') not in ('walsender', 'autovacuum worker')
  union all
  select format('prepared transaction %L of %s', p.gid, p.owner), age(p.transaction)::bigint, extract(epoch from clock_timestamp() - p.prepared), format('as %I, or a superuser, in database %I: rollback prepared %L;', p.owner, p.database, p.gid)
  from pg_prepared_xacts p
  union all
  select format('replication slot %L', s.slot_name), greatest(age(s.xmin), age(s.catalog_xmin))::bigint, null, format('bring its consumer back; or, as a login with REPLICATION or a superuser: select pg_drop_replication_slot(%L);', s.slot_name)
  from pg_replication_slots s where s.xmin is not null or s.catalog_xmin is not null
  union all
  select format('standby %s by hot_standby_feedback', r.application_name), age(r.backend_xmin)::bigint, null, 'end the long query on the standby'
  from pg_stat_replication r where r.backend_xmin is not null) h
order by h.ids desc, h.seconds desc nulls last`)
	if len(holders) == 0 {
		return "none is held"
	}
	oldest := holders[0]
	seen := fmt.Sprintf("the oldest is %d transactions back: %s", oldest.IDs, oldest.Holder)
	for _, h := range holders[:min(len(holders), maxListed)] {
		if h.IDs >= oldSnapshotIDs || h.Seconds >= v.SnapshotAfter.Seconds() {
			when := ""
			if h.Seconds > 0 {
				when = ", for " + span(h.Seconds)
			}
			v.found(Warning, fmt.Sprintf("%s holds a snapshot %d transactions back%s: no row that died since can be removed, and claims slow down", h.Holder, h.IDs, when), h.Cure)
		}
	}
	v.unseen("a.backend_xmin is not null")
	return seen
}

// unseen says of how many sessions, of those that a condition is of, it is not known what they do and since when.
func (v *visit) unseen(which string) {
	s := one[struct{ Hidden, Untracked int64 }](v, `select count(*) filter (where a.query = '<insufficient privilege>'), count(*) filter (where a.state = 'disabled')
		from pg_stat_activity a where a.usesysid is not null and a.pid <> pg_backend_pid() and `+which)
	if s.Hidden > 0 {
		v.found(Unknown, fmt.Sprintf("what %d sessions of other logins are doing is not visible to this one", s.Hidden), "grant pg_read_all_stats to "+pgx.Identifier{v.conn.Config().User}.Sanitize()+"; (pg_monitor has it)")
	}
	if s.Untracked > 0 {
		v.found(Unknown, fmt.Sprintf("what %d sessions are doing is not tracked: track_activities is off for them", s.Untracked),
			"see the check of settings for who has set it; those sessions keep it until they connect again: select pid, usename, application_name from pg_stat_activity where state = 'disabled';")
	}
}

// transactions finds what idles in a transaction, which holds locks, and the notification queue if it listens; whoever else keeps sessions
// waiting for a lock, as workers' are whose handler hangs; and prepared ones, which the doorbell does not support.
func transactions(v *visit) string {
	sessions := all[struct {
		PID           int32
		Who, State    string
		Idle          float64
		Waiting       int64
		LongestWaited float64
	}](v, `
with waiting as (
  select l.pid, max(extract(epoch from clock_timestamp() - l.waitstart))::double precision as seconds from pg_locks l join pg_stat_activity a on a.pid = l.pid
  where not l.granted and l.waitstart < clock_timestamp() - make_interval(secs => $1) and a.datname = current_database() group by l.pid),
-- who waits for nobody himself
blocking as (
  select b.pid, count(*) as sessions, max(w.seconds) as longest from waiting w, unnest(pg_blocking_pids(w.pid)) as b(pid)
  where b.pid <> 0 and cardinality(pg_blocking_pids(b.pid)) = 0 group by b.pid)
select a.pid, format('%s (%s)', coalesce(a.usename::text, a.backend_type), coalesce(nullif(a.application_name, ''), 'no application name')), coalesce(a.state, 'doing what is not visible'),
  case when a.state like 'idle in transaction%' then extract(epoch from clock_timestamp() - a.state_change) else 0 end::double precision, coalesce(b.sessions, 0), coalesce(b.longest, 0)
from pg_stat_activity a left join blocking b on b.pid = a.pid
where b.pid is not null or a.datname = current_database() and a.state like 'idle in transaction%' and a.state_change < clock_timestamp() - make_interval(secs => $1)
order by 6 desc, 4 desc limit $2`, v.IdleAfter.Seconds(), maxListed)
	for _, o := range sessions {
		seen := fmt.Sprintf("session %d of %s", o.PID, o.Who)
		cure := fmt.Sprintf("select pg_terminate_backend(%d); as that login, a member of pg_signal_backend, or a superuser", o.PID)
		if o.Idle > 0 {
			seen += fmt.Sprintf(" has been idle in a transaction for %s: it holds its locks, and if it listens the notification queue of all", span(o.Idle))
		} else {
			seen += fmt.Sprintf(" (%s) holds a lock", o.State)
			cure += ", if it does not end by itself"
		}
		if o.Waiting > 0 {
			seen += fmt.Sprintf("; %d sessions have been waiting for it, the longest for %s", o.Waiting, span(o.LongestWaited))
		}
		v.found(Warning, seen, cure)
	}
	v.list(`
select 'warning', format('transaction %s is prepared and not committed: it holds its locks, and the doorbell does not support two-phase commit', to_json(gid)),
  format('as the login that prepared it, or a superuser: rollback prepared %L; or commit prepared, if its coordinator has committed elsewhere', gid)
from pg_prepared_xacts where database = current_database() order by prepared limit $1`, maxListed)
	v.unseen("a.datname = current_database()")
	return "nothing idles in a transaction, or keeps others waiting for a lock"
}

// vacuum finds tables that autovacuum does not keep up with.
func vacuum(v *visit) string {
	// autovacuum has not come by yet where a sweep was a moment ago
	v.list(`
with tables as (
  select s.schemaname || '.' || s.relname as name, s.n_dead_tup as dead,
    coalesce((select split_part(o, '=', 2)::double precision from unnest(c.reloptions) as o where o like 'autovacuum_vacuum_threshold=%'), current_setting('autovacuum_vacuum_threshold')::double precision)
      + greatest(c.reltuples, 0) * coalesce((select split_part(o, '=', 2)::double precision from unnest(c.reloptions) as o where o like 'autovacuum_vacuum_scale_factor=%'), current_setting('autovacuum_vacuum_scale_factor')::double precision) as threshold,
    (select o.name from (values ('autovacuum_enabled', c.reloptions), ('toast.autovacuum_enabled', (select t.reloptions from pg_class t where t.oid = c.reltoastrelid))) as o(name, options),
        unnest(o.options) as option
      where split_part(option, '=', 1) = 'autovacuum_enabled' and not split_part(option, '=', 2)::boolean order by 1 limit 1) as off,
    age(c.relfrozenxid)::bigint as age, current_setting('autovacuum_freeze_max_age')::bigint as max_age,
    s.schemaname = 'core' and exists (select from core.retention_policies r where r.swept_at > statement_timestamp() - interval '1 hour') as swept
  from pg_stat_user_tables s join pg_class c on c.oid = s.relid
  where s.schemaname in ('core', 'platform', 'worlds'))
select 'warning', format('autovacuum is off for %s (%s): dead rows pile up and claims slow down', name, off), format('as spectral_owner: alter table %s reset (%s);', name, off)
from tables where off is not null
union all
select 'warning', format('%s has %s dead rows, and autovacuum begins at %s: it does not keep up', name, dead, round(threshold)),
  format('see the checks of snapshots and transactions; then, as spectral_owner, vacuum (analyze) %s; and give autovacuum more workers or a higher autovacuum_vacuum_cost_limit', name)
from tables where off is null and dead > 10000 and dead > 3 * threshold and not swept
union all
select 'critical', format('%s was last frozen %s transactions ago, beyond autovacuum_freeze_max_age (%s): the server stops taking writes before 2 billion', name, age, max_age),
  format('as spectral_owner: vacuum (freeze, verbose) %s;', name)
from tables where age * 10 > max_age * 12
order by 2`)
	dead := one[struct{ Rows int64 }](v, "select coalesce(sum(n_dead_tup), 0)::bigint from pg_stat_user_tables where (schemaname, relname) = ('core', 'outbox')")
	return fmt.Sprintf("%d dead rows in core.outbox", dead.Rows)
}

// The triggers of the decision record (seed D15).
const (
	partitionRows = 5_000_000
	relayRows     = 20_000_000
	relayP99      = 500 // ms, for a week
	// hoursOfAWeek with figures make it a week: hours without events have none.
	hoursOfAWeek = 7 * 24 / 2
	// eventsAnHour make a p99 worth something.
	eventsAnHour = 100
)

// scale gives the figures by which to decide on partitions and on another relay.
func scale(v *visit) string {
	s := one[struct {
		Rows            float64
		Size            string
		LastP99         int64
		WorstP99        int64
		Hours, SlowOnes int64
	}](v, `
select greatest(c.reltuples, 0)::double precision, pg_size_pretty(pg_total_relation_size(c.oid)),
  coalesce((select h.p99_ms from core.delivery_latency_hours h order by h.hour desc limit 1), 0)::bigint,
  coalesce((select max(h.p99_ms) from core.delivery_latency_hours h where h.events >= $1 and h.hour > now() - interval '7 days'), 0)::bigint,
  (select count(*) from core.delivery_latency_hours h where h.events >= $1 and h.hour > now() - interval '7 days'),
  (select count(*) from core.delivery_latency_hours h where h.events >= $1 and h.hour > now() - interval '7 days' and h.p99_ms > $2)
from pg_class c where c.oid = 'core.outbox'::regclass`, eventsAnHour, relayP99)
	seen := fmt.Sprintf("about %.0f rows in core.outbox (%s)", s.Rows, s.Size)
	if s.Hours > 0 {
		seen += fmt.Sprintf("; 99 %% of events settled within %d ms in the latest hour, within %d ms in the worst of the week", s.LastP99, s.WorstP99)
	} else {
		seen += "; no hour with enough events to say how long they take"
	}
	switch {
	case s.Rows > relayRows:
		v.found(Warning, fmt.Sprintf("core.outbox has about %.0f rows: more than the %d from which another relay is due", s.Rows, relayRows), "see that retention sweeps (workers retention status); if it does, the decision record's second step: NATS JetStream or Redis Streams as the relay")
	case s.Rows > partitionRows:
		v.found(Warning, fmt.Sprintf("core.outbox has about %.0f rows: more than the %d from which to partition it", s.Rows, partitionRows), "see that retention sweeps (workers retention status); if it does, partition by month on occurred_at (the decision record's first step)")
	}
	if s.Hours >= hoursOfAWeek && s.SlowOnes == s.Hours {
		v.found(Warning, fmt.Sprintf("for a week 1 %% of events took longer than %d ms to settle, in each of %d hours", relayP99, s.Hours),
			"look first for slow handlers and too few workers (check listeners); if it is the relay, the decision record's second step")
	}
	return seen
}
