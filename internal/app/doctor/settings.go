package doctor

import (
	"fmt"
	"strings"
)

// Conditions on the text of a setting's value, as Postgres reads it.
const (
	off = "not value::boolean"
	// a step of a sweep may take 10 s (core.retention_sweep)
	short = "(case when value ~ '^[0-9.]+$' then value || 'ms' else value end)::interval between '1 us' and '9999 ms'"
)

// harmfulSettings are settings that make Postgres lose or withhold what it confirmed. Workers set for themselves how they
// write and how long statements may take: such a default hurts publishers and operators.
var harmfulSettings = []struct {
	name, when string
	state      State
	harm       string
}{
	{"autovacuum", off, Warning, "off: dead rows pile up and claims slow down"},
	{"default_transaction_isolation", "lower(value) in ('serializable', 'repeatable read')", Warning,
		"above read committed: publishers get 40001 and must try again, and sweeping and retiring from SQL are refused (SP053, SP043)"},
	{"default_transaction_read_only", "value::boolean", Critical,
		"on: SQL producers and operators are refused (25006); a provider may set it when the disk is full"},
	{"enable_indexonlyscan", off, Warning, "off: claims, sweeps and polls read whole tables"},
	{"enable_indexscan", off, Warning, "off: claims, sweeps and polls read whole tables"},
	{"fsync", off, Critical, "off: after a crash of the server events may be lost, or the database damaged"},
	{"full_page_writes", off, Critical, "off: after a crash of the server events may be lost, or the database damaged"},
	{"role", "value = 'spectral_owner'", Warning, "spectral_owner from the first statement: it may rewrite and erase events"},
	{"session_replication_role", "lower(value) = 'replica'", Critical, "replica: inserts fire no trigger, and workers are not notified"},
	{"statement_timeout", short, Note, "short: migrations and what operators do from SQL may be cancelled"},
	{"synchronous_commit", "lower(value) in ('off', 'false', 'no', '0')", Warning,
		"off: events whose publisher was told that they are committed may be lost when the server crashes"},
	{"track_activities", off, Warning, "off: which sessions hold locks, snapshots or the notification queue is not shown"},
	{"track_counts", off, Warning, "off: dead rows pile up and claims slow down"},
	{"transaction_timeout", short, Note, "short: migrations and what operators do from SQL may be cancelled"},
}

// settings finds harmful settings of roles and of this database, and those that this session began with.
func settings(v *visit) string {
	var harmful strings.Builder
	for _, s := range harmfulSettings {
		fmt.Fprintf(&harmful, " when '%s' then %s", s.name, s.when)
	}
	found := all[struct{ Name, Whose, Owner string }](v, `
with stored as (
  select split_part(c, '=', 1) as name, substr(c, strpos(c, '=') + 1) as value, s.setrole in (0, (select u.oid from pg_roles u where u.rolname = session_user)) as mine,
    coalesce(nullif(concat_ws(' in ', 'role ' || quote_ident(r.rolname), 'database ' || quote_ident(d.datname)), ''), 'role all') as whose,
    case when p.context = 'superuser' or r.rolname is null and d.datname is null then 'a superuser'
      when r.rolname is null then format('%I, which owns the database, or a superuser', pg_get_userbyid(d.datdba))
      else format('%I itself, or a superuser', r.rolname) end as owner
  from pg_db_role_setting s left join pg_roles r on r.oid = s.setrole left join pg_database d on d.oid = s.setdatabase,
    unnest(s.setconfig) as c left join pg_settings p on p.name = split_part(c, '=', 1)
  where s.setdatabase in (0, (select oid from pg_database where datname = current_database()))),
known as (
  select name, value, whose, owner from stored
  union all
  select p.name, p.reset_val, '', '' from pg_settings p where p.name not in (select name from stored where mine))
select name, whose, owner from known where case name`+harmful.String()+` else false end order by whose desc, name`)
	given := fmt.Sprint(v.conn.Config().RuntimeParams)
	for _, s := range found {
		for _, h := range harmfulSettings {
			if h.name == s.Name {
				where, cure := placed(s.Name, s.Whose, s.Owner, strings.Contains(given, h.name))
				v.found(h.state, h.name+" is "+h.harm+where, cure)
			}
		}
	}
	return "what is confirmed is on disk, triggers fire, autovacuum runs"
}

// placed says where a setting is set, and how to remove it there. Without whose, it is the session's own or the server's.
func placed(name, whose, owner string, given bool) (where, cure string) {
	switch {
	case whose != "":
		cure = "alter " + whose + " reset " + name + ";"
		switch name { // these would refuse the statement that removes them
		case "default_transaction_read_only":
			cure = "begin read write; " + cure + " commit;"
		case "role":
			cure = "set role none; " + cure
		}
		return ", in the sessions of " + whose, "as " + owner + ": " + cure + " and connect again"
	case given:
		return ", in the sessions that connect as this one does", "remove it from DATABASE_URL, or from PGOPTIONS"
	default:
		return ", for the whole server", "as a superuser: alter system reset " + name + "; select pg_reload_conf(); (it may be in the " +
			"configuration file, on the server's command line, or set by your provider)"
	}
}
