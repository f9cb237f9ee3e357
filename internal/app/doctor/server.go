package doctor

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"spectral/internal/app"
	"spectral/internal/core/events/infrastructure/postgres/operator"
)

// Limits of the checks in this file.
const (
	maxClockDifference = time.Second     // how far apart the clocks of synchronised hosts may be
	notifyWait         = 3 * time.Second // how long a notification may take to arrive
)

// fixedIn has the first minor version of each major one without the faults of [serverFaults]: those of February 2026.
var fixedIn = map[int]int{15: 16, 16: 12, 17: 8, 18: 2}

// serverFaults are known faults of LISTEN and of row locks, each with what to do besides an update.
var serverFaults = []struct{ fault, workaround string }{
	// PostgreSQL commit "Fix bug where we truncated CLOG that was still needed by LISTEN/NOTIFY" of November 2025;
	// users met it as PostgREST issue 3147
	{`VACUUM can remove what LISTEN still needs; LISTEN then fails with "could not access status of transaction"`,
		"; once LISTEN fails, `select pg_notification_queue_usage();` skips what is left in the queue"},
	// PostgreSQL commit "Fix bug in following update chain when locking a heap tuple" of December 2025
	{"locking a row that an undone transaction had updated can lock another row instead", ""},
}

// isFaulty reports whether a version, as server_version_num has it, has the faults.
func isFaulty(version int) bool {
	fixed, known := fixedIn[version/10000]
	return known && version%10000 < fixed
}

func server(ctx context.Context, e *examination) (string, error) {
	s, err := e.facts.Server(ctx)
	if err != nil {
		return "", err
	}
	if s.Standby {
		e.found(Critical, "DATABASE_URL leads to a standby server, which is read-only").
			fix("point DATABASE_URL at the primary, or name all hosts in it with target_session_attrs=read-write")
	}
	if isFaulty(int(s.Version)) {
		major := int(s.Version) / 10000
		for _, f := range serverFaults {
			e.found(Warning, "PostgreSQL %s has a known fault: %s", s.VersionText, f.fault).
				fix("update Postgres to %d.%d or later%s", major, fixedIn[major], f.workaround)
		}
	}
	return fmt.Sprintf("PostgreSQL %s, up for %s", s.VersionText, span(s.UpSeconds)), nil
}

// harmfulSettings are settings that make Postgres lose or withhold what it confirmed. Workers set for themselves how
// they write and how long statements may take: such a default hurts publishers and operators.
var harmfulSettings = []struct {
	name    string
	harmful string // values, joined by commas
	state   State
	harm    string
}{
	{"autovacuum", "false", Warning, "off: dead rows pile up and claims slow down"},
	{"default_transaction_isolation", "serializable,repeatable read", Warning,
		"above read committed: publishers get 40001 and must try again, and sweeping and retiring from SQL are refused " +
			"(SP053, SP043)"},
	{"default_transaction_read_only", "true", Critical,
		"on: SQL producers and operators are refused (25006); a provider may set it when the disk is full"},
	{"enable_indexonlyscan", "false", Warning, "off: claims, sweeps and polls read whole tables"},
	{"enable_indexscan", "false", Warning, "off: claims, sweeps and polls read whole tables"},
	{"fsync", "false", Critical, "off: a crash of the server may lose events or damage the database"},
	{"full_page_writes", "false", Critical, "off: a crash of the server may lose events or damage the database"},
	{"role", "spectral_owner", Warning, "spectral_owner from the first statement: it may rewrite and erase events"},
	{"session_replication_role", "replica", Critical, "replica: inserts fire no trigger, and workers are not " +
		"notified"},
	{"synchronous_commit", "off,false,no,0", Warning,
		"off: a crash of the server may lose events whose publisher was told that they are committed"},
	{"track_activities", "false", Warning, "off: Postgres hides which sessions hold locks, snapshots or the queue"},
	{"track_counts", "false", Warning, "off: dead rows pile up and claims slow down"},
}

// settings finds harmful settings of roles and of this database, and those that this session began with.
func settings(ctx context.Context, e *examination) (string, error) {
	var names []string
	for _, s := range harmfulSettings {
		names = append(names, s.name)
	}
	found, err := e.facts.Settings(ctx, names)
	for _, s := range found {
		h := harmfulSettings[slices.Index(names, s.Name)]
		if !slices.Contains(strings.Split(h.harmful, ","), s.Value) {
			continue
		}
		f := e.found(h.state, "%s is %s", s.Name, h.harm)
		switch {
		case s.Scope != "":
			who := "a superuser"
			if s.Owner != "" {
				who = s.Owner + " or a superuser"
			}
			reset := "alter " + s.Scope + " reset " + s.Name + ";"
			switch s.Name { // these would refuse the statement that removes them
			case "default_transaction_read_only":
				reset = "begin read write; " + reset + " commit;"
			case "role":
				reset = "set role none; " + reset
			}
			f.Problem += ", in the sessions of " + s.Scope
			f.fix("as %s, run `%s`; it holds from the next connection on", who, reset)
		case givenAsOption(e.inspector.Options(), s.Name):
			f.Problem += ", in the sessions that connect as this one does"
			f.fix("remove %s from DATABASE_URL or PGOPTIONS", s.Name)
		default:
			f.Problem += ", for the whole server"
			f.fix("as a superuser, run `alter system reset %s; select pg_reload_conf();`; it may also be in the configuration "+
				"file, on the server's command line, or set by your provider", s.Name)
		}
	}
	return "commits reach the disk, triggers fire, autovacuum runs", err
}

// givenAsOption reports whether a session's command-line options, as of PGOPTIONS, set name.
func givenAsOption(options, name string) bool {
	return slices.ContainsFunc([]string{"-c ", "-c", "--"}, func(before string) bool {
		return strings.Contains(options, before+name+"=")
	})
}

// clock compares this host's clock with the database's. Claims and leases use the database's clock only; logs and the
// times that producers set use the clocks of their hosts.
func clock(ctx context.Context, e *examination) (string, error) {
	var difference, roundTrip time.Duration
	for i := range 3 { // the shortest round trip is the most exact
		before := e.Now()
		there, err := e.facts.Now(ctx)
		if err != nil {
			return "", err
		}
		if trip := e.Now().Sub(before); i == 0 || trip < roundTrip {
			roundTrip, difference = trip, there.Sub(before.Add(trip/2))
		}
	}
	direction := "ahead of"
	if difference < 0 {
		direction = "behind"
	}
	detail := fmt.Sprintf("the database's clock is %s %s this host's, plus or minus %s",
		difference.Abs().Round(time.Millisecond), direction, (roundTrip / 2).Round(time.Millisecond))
	if difference.Abs()-roundTrip/2 > maxClockDifference {
		e.found(Warning, "%s: logs do not line up, and times that producers set are off; no event is lost", detail).
			fix("set both clocks by NTP; on each host `timedatectl` shows whether that is done")
	}
	return detail, nil
}

func connections(ctx context.Context, e *examination) (string, error) {
	c, err := e.facts.Connections(ctx)
	if err != nil {
		return "", err
	}
	worker, err := app.WorkerConnections()
	if err != nil {
		return "", err
	}
	usable := c.MaxConnections - c.Reserved
	free := usable - c.Used
	if c.DatabaseLimit >= 0 {
		free = min(free, c.DatabaseLimit-c.UsedInDatabase)
	}
	if int(free) < worker {
		e.found(Warning, "only %s left, and a worker of this build takes up to %d: one that starts now may not get them all",
			operator.Counted(max(free, 0), "connection"), worker).fix("find who has them, with `select usename, " +
			"application_name, count(*) from pg_stat_activity group by 1, 2 order by 3 desc;`; then raise max_connections or " +
			"the database's connection limit, point SPECTRAL_POOL_URL at a pooler, or lower pool_max_conns in the URL")
	}
	return fmt.Sprintf("%d of %d in use; a worker of this build takes up to %d", c.Used, usable, worker), nil
}

// notifications sends a notification to itself, as a worker's self-test does.
func notifications(ctx context.Context, e *examination) (string, error) {
	sent := e.Now()
	n, err := e.inspector.Notify(ctx, notifyWait)
	switch {
	case err != nil:
		return "", err
	case n.Pooled:
		e.found(Critical, "DATABASE_URL leads through a transaction pooler, behind which LISTEN gets nothing: events wait "+
			"for the poll, up to 5 s").fix("point DATABASE_URL straight at Postgres (port 5432 in most setups), and only " +
			"SPECTRAL_POOL_URL at the pooler; then restart the workers")
	case !n.Arrived:
		e.found(Critical, "a notification that the doctor sent to itself did not arrive within %s: events wait for the "+
			"poll, up to 5 s", notifyWait).fix("look for a pooler or proxy between this host and Postgres; then run `workers " +
			"doctor queue`, because a full queue looks the same")
	}
	return fmt.Sprintf("a notification to itself arrived after %s", e.Now().Sub(sent).Round(time.Millisecond)), nil
}

// queueState judges a notification queue of which that share is used.
func queueState(share float64) State {
	switch {
	case share >= 0.50:
		return Critical
	case share >= 0.25:
		return Warning
	default:
		return Fine
	}
}

func notificationQueue(ctx context.Context, e *examination) (string, error) {
	share, err := e.facts.NotificationQueue(ctx)
	detail := fmt.Sprintf("%.1f %% full", 100*share)
	if state := queueState(share); state != Fine {
		e.found(state, "the notification queue is %s: once it is full, each commit that notifies fails, and publishing with "+
			"it", detail).fix("run `workers doctor transactions`, which names the session that holds it up: one that listens " +
			"and idles in a transaction; end that session")
	}
	return detail, err
}
