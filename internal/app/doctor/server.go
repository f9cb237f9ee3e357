package doctor

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"

	"spectral/internal/app"
)

// faultless has the first minor version of each major one without the faults of [serverFaults]: those of February 2026.
var faultless = map[int]int{15: 16, 16: 12, 17: 8, 18: 2}

// serverFaults are known faults of LISTEN and of row locks, each with what to do besides an update.
var serverFaults = []struct{ what, cure string }{
	// PostgreSQL commit "Fix bug where we truncated CLOG that was still needed by LISTEN/NOTIFY" of November 2025; met in the
	// field as PostgREST issue 3147
	{`VACUUM can remove what LISTEN still needs: it then fails with "could not access status of transaction" until the notification queue is empty`,
		"; when it has happened: select pg_notification_queue_usage(); which skips what is left in the queue"},
	// PostgreSQL commit "Fix bug in following update chain when locking a heap tuple" of December 2025
	{"locking a row that an undone transaction had updated can lock another row instead", ""},
}

// isFaulty reports whether a version, as server_version_num has it, has the faults.
func isFaulty(version int) bool {
	fixed, known := faultless[version/10000]
	return known && version%10000 < fixed
}

func server(v *visit) string {
	s := one[struct {
		Version  int
		Text     string
		Recovery bool
		Since    float64
	}](v, `select current_setting('server_version_num')::integer, current_setting('server_version'), pg_is_in_recovery(),
		extract(epoch from clock_timestamp() - pg_postmaster_start_time())::double precision`)
	seen := fmt.Sprintf("PostgreSQL %s, up for %s", s.Text, span(s.Since))
	if s.Recovery {
		v.found(Critical, "this server is a standby and read-only", "let DATABASE_URL lead to the primary, or name all hosts in it")
	}
	if isFaulty(s.Version) {
		major := s.Version / 10000
		for _, f := range serverFaults {
			v.found(Warning, "this version of Postgres has a known fault: "+f.what,
				fmt.Sprintf("update to %d.%d or later%s", major, faultless[major], f.cure))
		}
	}
	return seen
}

// maxClockDifference is what the clocks of hosts that keep time may be apart.
const maxClockDifference = time.Second

// clock compares this host's clock with the database's. Claims and leases go by the database's alone; logs, and the times that
// producers set, go by their hosts'.
func clock(v *visit) string {
	var difference, roundTrip time.Duration
	for i := range 3 { // the shortest round trip says it best
		before := v.Now()
		there := one[struct{ Time time.Time }](v, "select clock_timestamp()").Time
		if trip := v.Now().Sub(before); i == 0 || trip < roundTrip {
			roundTrip, difference = trip, there.Sub(before.Add(trip/2))
		}
	}
	direction := "ahead of"
	if difference < 0 {
		direction = "behind"
	}
	seen := fmt.Sprintf("the database's is %s %s this host's, give or take %s",
		difference.Abs().Round(time.Millisecond), direction, (roundTrip / 2).Round(time.Millisecond))
	if difference.Abs()-roundTrip/2 > maxClockDifference {
		v.found(Warning, "the clocks differ: "+seen,
			"set both by NTP (timedatectl). Events are claimed by the database's clock, so nothing is lost; logs do not line up, and times that producers set are off")
	}
	return seen
}

// minFreeShare of the connections is what has to be left for another deployment.
const minFreeShare = 10

func connections(v *visit) string {
	s := one[struct{ Max, Reserved, Used, Database, InDatabase int }](v, `select current_setting('max_connections')::integer,
		current_setting('superuser_reserved_connections')::integer + coalesce(current_setting('reserved_connections', true)::integer, 0),
		count(*) filter (where a.usesysid is not null)::integer,
		(select datconnlimit from pg_database where datname = current_database()),
		count(*) filter (where a.usesysid is not null and a.datname = current_database())::integer
		from pg_stat_activity a`)
	worker, err := app.WorkerConnections()
	v.fail(err)
	usable := s.Max - s.Reserved
	seen := fmt.Sprintf("%d of %d in use; a worker of this build takes up to %d", s.Used, usable, worker)
	free := usable - s.Used
	if s.Database >= 0 {
		free = min(free, s.Database-s.InDatabase)
	}
	if free < worker {
		v.found(Warning, fmt.Sprintf("%d connections are free, and a worker of this build takes up to %d: one that starts now may not get all of them", max(free, 0), worker),
			"raise max_connections (or the database's connection limit), or lead SPECTRAL_POOL_URL through a pooler, or bound its pools (pool_max_conns in the URL)")
	}
	report := func(what string, used, limit int, cure string) {
		if limit >= 0 && (limit-used)*100 <= limit*minFreeShare {
			v.found(Warning, fmt.Sprintf("%s: %d of %d connections are in use, and workers that start or reconnect may get none", what, used, limit), cure)
		}
	}
	report("the server", s.Used, usable, "see who has them: select usename, application_name, count(*) from pg_stat_activity group by 1, 2 order by 3 desc; raise max_connections, or lead SPECTRAL_POOL_URL through a pooler")
	report("database "+strconv.Quote(v.conn.Config().Database), s.InDatabase, s.Database,
		fmt.Sprintf("as its owner: alter database %s connection limit %d;", pgx.Identifier{v.conn.Config().Database}.Sanitize(), 2*max(s.Database, worker)))
	logins := all[struct {
		Name, Quoted string
		Limit, Used  int
		Over         bool // its password
	}](v, `
select r.rolname, quote_ident(r.rolname), r.rolconnlimit, (select count(*) from pg_stat_activity a where a.usesysid = r.oid)::integer, coalesce(r.rolvaliduntil < now(), false)
from pg_roles r
where r.rolcanlogin and not r.rolsuper and r.rolname <> all ($1) and (r.rolconnlimit >= 0 or r.rolvaliduntil < now())
  and exists (select from pg_roles g where g.rolname = any ($1) and pg_has_role(r.oid, g.oid, 'member'))
order by r.rolname limit $2`, app.Roles(), maxListed)
	for _, l := range logins {
		report("login "+strconv.Quote(l.Name), l.Used, l.Limit, fmt.Sprintf("as a superuser: alter role %s connection limit %d;", l.Quoted, 2*max(l.Limit, worker)))
		if l.Over {
			v.found(Warning, fmt.Sprintf("the password of login %q is over: who logs in by it gets no connection", l.Name), fmt.Sprintf("as a superuser: alter role %s valid until 'infinity';", l.Quoted))
		}
	}
	return seen
}

// notifyWait is how long a notification may take to arrive.
const notifyWait = 3 * time.Second

// notifications listens and sends on a channel of its own, as a worker tests itself.
func notifications(v *visit) string {
	var pid uint32
	if err := v.conn.QueryRow(v.ctx, "select pg_catalog.pg_backend_pid()").Scan(&pid); err != nil {
		return v.fail(err)
	}
	if pid != v.conn.PgConn().PID() {
		v.found(Critical, "DATABASE_URL leads through a transaction pooler: LISTEN is silently dead behind one, and events wait for the poll",
			"let DATABASE_URL lead straight to Postgres (port 5432, as a rule), and SPECTRAL_POOL_URL through the pooler")
		return ""
	}
	sender, err := pgx.ConnectConfig(v.ctx, v.conn.Config())
	if err != nil {
		return v.fail(fmt.Errorf("connect a second time: %w", err))
	}
	defer func() { _ = sender.Close(context.WithoutCancel(v.ctx)) }()
	channel := fmt.Sprintf("spectral_doctor_%d", pid)
	if _, err := v.conn.Exec(v.ctx, "listen "+channel); err != nil {
		return v.fail(err)
	}
	defer func() { _, _ = v.conn.Exec(context.WithoutCancel(v.ctx), "unlisten "+channel) }()
	sent := v.Now()
	if _, err := sender.Exec(v.ctx, "select pg_catalog.pg_notify($1, '')", channel); err != nil {
		return v.fail(err)
	}
	wait, cancel := context.WithTimeout(v.ctx, notifyWait)
	defer cancel()
	_, err = v.conn.WaitForNotification(wait)
	if err != nil && v.ctx.Err() == nil && errors.Is(wait.Err(), context.DeadlineExceeded) {
		v.found(Critical, fmt.Sprintf("a notification of one's own did not arrive within %s: events wait for the poll", notifyWait),
			"look for a pooler or proxy between here and Postgres, and for a full queue: select pg_notification_queue_usage();")
		return ""
	}
	v.fail(err)
	return fmt.Sprintf("one of our own arrived after %s", v.Now().Sub(sent).Round(time.Millisecond))
}

// queueState is the state of a notification queue that is full to that share.
func queueState(usage float64) State {
	switch {
	case usage >= 0.50:
		return Critical
	case usage >= 0.25:
		return Warning
	default:
		return Fine
	}
}

func notifyQueue(v *visit) string {
	usage := one[struct{ Share float64 }](v, "select pg_notification_queue_usage()").Share
	seen := fmt.Sprintf("%.1f %% full", 100*usage)
	if state := queueState(usage); state != Fine {
		v.found(state, "the notification queue is "+seen+": when it is, every commit that notifies fails, publishing included",
			"a session that listens is held up, as a rule idle in a transaction: select pid, usename, application_name, state, xact_start from pg_stat_activity where xact_start < now() - interval '1 minute' order by xact_start; then select pg_terminate_backend(pid)")
	}
	return seen
}
