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
		f := e.found(h.state, "%s is %s", s.Name, h.harm)
		_, given := e.inspector.RuntimeParams()[s.Name]
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
		case given:
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
