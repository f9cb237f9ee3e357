package doctor

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"

	"spectral/internal/app"
)

// keepYours is how not to have an object among ours.
const keepYours = "keep what is yours in a schema of your own: it may slow down or refuse what events need"

// strange are objects that are not of our migrations, each once: what goes with another one, as a table's columns do, is left out, and so are
// policies, which privileges finds. In the order in which they can be taken away: what may hold rows is not dropped.
const strange = `
with schemas as (select n.oid, n.nspname from pg_namespace n where pg_get_userbyid(n.nspowner) = 'spectral_owner'),
relations as (select c.oid, c.relkind, s.nspname || '.' || c.relname as name, format('%I.%I', s.nspname, c.relname) as quoted
  from pg_class c join schemas s on s.oid = c.relnamespace where c.relkind in ('r', 'p', 'v', 'm', 'f', 'S')),
-- what a publication names rows by
identities as (select i.indexrelid as oid from pg_index i join pg_class c on c.oid = i.indrelid join pg_publication_tables p on p.schemaname = c.relnamespace::regnamespace::text and p.tablename = c.relname
  where i.indisreplident or i.indisprimary and c.relreplident = 'd'),
objects (rank, subject, whole, identity, cure) as (
  select 1, 'trigger ' || t.tgname || ' of ' || r.name, 'table ' || r.name, false, format('as the owner: set lock_timeout = ''5s''; drop trigger %I on %s;', t.tgname, r.quoted)
  from pg_trigger t join relations r on r.oid = t.tgrelid where not t.tgisinternal
  union all
  select 2, 'constraint ' || k.conname || ' of ' || r.name, 'table ' || r.name, k.conindid in (select i.oid from identities i), format('as the owner: set lock_timeout = ''5s''; alter table %s drop constraint %I;', r.quoted, k.conname)
  from pg_constraint k join relations r on r.oid = k.conrelid where k.contype not in ('n', 't')
  union all
  select 3, 'index ' || i.indexrelid::regclass, 'table ' || r.name, i.indexrelid in (select d.oid from identities d), format('as the owner: drop index concurrently %s;', i.indexrelid::regclass)
  from pg_index i join relations r on r.oid = i.indrelid
  where not exists (select from pg_constraint k where k.conindid = i.indexrelid and k.contype in ('p', 'u', 'x'))
  union all
  select 4, 'table ' || r.name, '', false, format('as the owner: drop view %s;', r.quoted) from relations r where r.relkind = 'v'
  union all
  select 5, 'function ' || s.nspname || '.' || p.proname || '(' || oidvectortypes(p.proargtypes) || ')', '', false,
    format('as the owner: drop %s %s;', case p.prokind when 'p' then 'procedure' else 'function' end, p.oid::regprocedure)
  from pg_proc p join schemas s on s.oid = p.pronamespace where p.prokind in ('f', 'p')
  union all
  select 6, 'table ' || r.name, '', false, format('as a superuser: alter table %s set schema public;', r.quoted)
  from relations r where r.relkind <> 'v'
    and not exists (select from pg_depend d where d.classid = 'pg_class'::regclass and d.objid = r.oid and d.refclassid = 'pg_class'::regclass and d.deptype in ('a', 'i'))
  union all
  select 7, 'column ' || r.name || '.' || a.attname, 'table ' || r.name, false, format('as the owner, and with what it holds: set lock_timeout = ''5s''; alter table %s drop column %I;', r.quoted, a.attname)
  from pg_attribute a join relations r on r.oid = a.attrelid where a.attnum > 0 and not a.attisdropped and r.relkind in ('r', 'p')
  union all
  select 8, 'type ' || s.nspname || '.' || t.typname, '', false, format('as a superuser: alter type %I.%I set schema public;', s.nspname, t.typname)
  from pg_type t join schemas s on s.oid = t.typnamespace where t.typtype in ('e', 'd', 'r'))
select o.subject, o.identity, o.whole, o.cure from objects o where o.subject = any ($1) and o.whole <> all ($1) order by o.rank, o.subject`

// unexpected says of objects that are not of our migrations what they may do, and how to be rid of them: but for those that are
// known under another name.
func unexpected(ctx context.Context, v *visit, d app.SchemaDifference, known map[string]bool) ([]Finding, error) {
	tx, err := v.conn.BeginTx(ctx, pgx.TxOptions{BeginQuery: "begin read only; " + app.FixedSettings})
	if err != nil {
		return nil, fmt.Errorf("begin: %w", err)
	}
	defer func() { _ = tx.Rollback(context.WithoutCancel(ctx)) }()
	rows, err := tx.Query(ctx, strange, d.Unexpected)
	if err != nil {
		return nil, err
	}
	type stranger struct {
		Subject     string
		Identity    bool
		Whole, Cure string
	}
	found, err := pgx.CollectRows(rows, pgx.RowToStructByPos[stranger])
	if err != nil {
		return nil, err
	}
	damaged := make(map[string]bool) // the tables that something is missing of, or altered
	for _, subject := range slices.Concat(d.Missing, d.Altered) {
		damaged["table "+app.TableOf(subject)] = true
	}
	found = slices.DeleteFunc(found, func(o stranger) bool { return known[o.Subject] })
	var findings []Finding
	for _, o := range found[:min(len(found), maxListed)] {
		f := Finding{Warning, o.Subject + " is not of our migrations", keepYours + "; " + o.Cure}
		if strings.HasPrefix(o.Subject, "trigger ") {
			f.State = Critical
			f.Seen += ": it may change, refuse or swallow rows, or lose what was confirmed"
		}
		switch {
		case damaged[o.Whole], o.Whole == "" && len(damaged) > 0:
			f.Cure = "bring back first what is missing or altered, in whose place it may stand, and look again"
		case o.Identity:
			f.Cure = "a publication names rows by it: see first what else may be the replica identity of its table"
		}
		findings = append(findings, f)
	}
	if more := len(found) - len(findings); more > 0 {
		findings = append(findings, Finding{Warning, fmt.Sprintf("and %d more that are not of our migrations", more), "cure these in their order and look again"})
	}
	return findings, nil
}
