package doctor

import (
	"context"
	"slices"
	"strconv"
)

// harmfulSettings are settings that make Postgres lose or withhold what it confirmed. Workers set for themselves how
// they write and how long statements may take: such a default hurts publishers and operators.
var harmfulSettings = []struct {
	name    string
	harmful func(value string) bool
	state   State
	harm    string
}{
	{"autovacuum", off, Warning, "off: dead rows pile up and claims slow down"},
	{"default_transaction_isolation", is("serializable", "repeatable read"), Warning,
		"above read committed: publishers get 40001 and must try again, and sweeping and retiring from SQL are refused " +
			"(SP053, SP043)"},
	{"default_transaction_read_only", is("true"), Critical,
		"on: SQL producers and operators are refused (25006); a provider may set it when the disk is full"},
	{"enable_indexonlyscan", off, Warning, "off: claims, sweeps and polls read whole tables"},
	{"enable_indexscan", off, Warning, "off: claims, sweeps and polls read whole tables"},
	{"fsync", off, Critical, "off: a crash of the server may lose events or damage the database"},
	{"full_page_writes", off, Critical, "off: a crash of the server may lose events or damage the database"},
	{"role", is("spectral_owner"), Warning, "spectral_owner from the first statement: it may rewrite and erase events"},
	{"session_replication_role", is("replica"), Critical, "replica: inserts fire no trigger, and workers are not " +
		"notified"},
	{"statement_timeout", short, Note, "short: migrations and what operators do from SQL may be cancelled"},
	{"synchronous_commit", is("off", "false", "no", "0"), Warning,
		"off: a crash of the server may lose events whose publisher was told that they are committed"},
	{"track_activities", off, Warning, "off: Postgres does not show which sessions hold locks, snapshots or the queue"},
	{"track_counts", off, Warning, "off: dead rows pile up and claims slow down"},
	{"transaction_timeout", short, Note, "short: migrations and what operators do from SQL may be cancelled"},
}

func is(values ...string) func(string) bool {
	return func(value string) bool { return slices.Contains(values, value) }
}

func off(value string) bool { return value == "false" }

// short reports whether a step of a sweep, which may take 10 s (core.retention_sweep), takes longer than these
// milliseconds.
func short(value string) bool {
	ms, err := strconv.Atoi(value)
	return err == nil && ms > 0 && ms < 10_000
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
		if !h.harmful(s.Value) {
			continue
		}
		_, given := e.facts.RuntimeParams()[s.Name]
		where, fix := settingFix(s.Name, s.Scope, s.Owner, given)
		e.found(h.state, s.Name+" is "+h.harm+where, fix)
	}
	return "commits reach the disk, triggers fire, autovacuum runs", err
}

// settingFix says where a setting is made, and how to remove it there. An empty scope is the session's own or the
// server's; an empty owner a superuser.
func settingFix(name, scope, owner string, given bool) (where, fix string) {
	switch {
	case scope != "":
		who := "a superuser"
		if owner != "" {
			who = owner + " or a superuser"
		}
		reset := "alter " + scope + " reset " + name + ";"
		switch name { // these would refuse the statement that removes them
		case "default_transaction_read_only":
			reset = "begin read write; " + reset + " commit;"
		case "role":
			reset = "set role none; " + reset
		}
		return ", in the sessions of " + scope, "as " + who + ", run `" + reset +
			"`; it holds from the next connection on"
	case given:
		return ", in the sessions that connect as this one does", "remove " + name + " from DATABASE_URL or PGOPTIONS"
	default:
		return ", for the whole server", "as a superuser, run `alter system reset " + name +
			"; select pg_reload_conf();`; it may " +
			"also be in the configuration file, on the server's command line, or set by your provider"
	}
}
