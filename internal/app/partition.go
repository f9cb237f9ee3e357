package app

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgerrcode"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

const (
	// partitionNotice is how far ahead the first month with a separate partition is at least. A row of that month is
	// refused while the change is not finished; producers may be a day ahead.
	partitionNotice = 14 * 24 * time.Hour
	// monthsAhead is how many months have a partition when it is finished; core.outbox_partitions_ahead makes more.
	monthsAhead = 2
	// movePage is how many rows one statement moves.
	movePage = 5000
	// samplePages is how many pages of 8 KiB are read to estimate how long reading all takes.
	samplePages = 4096
)

// Partitioning is the form of core.outbox, and what changing it takes.
type Partitioning struct {
	Partitioned bool        `json:"partitioned"`
	Partitions  []Partition `json:"partitions"` // in the order of their time; the one of all other times is the last
	Rows        float64     `json:"rows"`       // as the planner estimates
	Bytes       int64       `json:"bytes"`
	// Until is the first month that gets a separate partition.
	Until time.Time `json:"until"`
	// ScanSeconds is how long the check of all rows is estimated to take, beside producers and workers.
	ScanSeconds float64 `json:"scan_seconds"`
	// Obstacles are why the change is refused, and what to do; they are empty if it is not.
	Obstacles []string `json:"obstacles"`
}

// Partition is a partition of core.outbox.
type Partition struct {
	Name  string  `json:"name"`
	Bound string  `json:"bound"`
	Rows  float64 `json:"rows"`
	Bytes int64   `json:"bytes"`
}

// partitioner works on one session.
type partitioner struct {
	*Migrator
	conn *pgx.Conn
	say  func(format string, a ...any)
}

// withPartitioner calls do as the owner of our tables, while no migrator and no other partitioner works.
func (m *Migrator) withPartitioner(ctx context.Context, say func(string, ...any),
	do func(context.Context, *partitioner) error) error {
	conn, err := pgx.ConnectConfig(ctx, m.config)
	if err != nil {
		return connectCause(err)
	}
	defer func() { _ = conn.Close(context.WithoutCancel(ctx)) }()
	var may bool
	if err := conn.QueryRow(ctx, "select pg_has_role($1, 'member')", ownerRole).Scan(&may); err != nil {
		return err
	}
	if !may {
		return fmt.Errorf("login %s may not act as %s: use the login that migrates", conn.Config().User, ownerRole)
	}
	if _, err := conn.Exec(ctx, fmt.Sprintf("set role %s; set timezone = 'UTC'; set statement_timeout = 0; "+
		"set idle_session_timeout = 0; set lock_timeout = '5s'; select pg_advisory_lock(%d); set lock_timeout = 0",
		ownerRole, lockID)); err != nil {
		if pg, ok := errors.AsType[*pgconn.PgError](err); ok && pg.Code == pgerrcode.LockNotAvailable {
			return errors.New("a migration, or another change of core.outbox, is running: wait for its end")
		}
		return err
	}
	return do(ctx, &partitioner{m, conn, say})
}

// DescribePartitions returns the form of core.outbox, and what changing it takes.
func (m *Migrator) DescribePartitions(ctx context.Context) (d Partitioning, err error) {
	schema, _, err := m.Compare(ctx)
	if err != nil {
		return d, err
	}
	err = m.withPartitioner(ctx, nil, func(ctx context.Context, p *partitioner) error {
		d, err = p.describe(ctx, schema)
		return err
	})
	return d, err
}

// Partition makes core.outbox a table of monthly partitions, while producers and workers go on; say tells how it goes.
// It goes on where an earlier call ended. If that is done, it makes the partitions that are missing.
func (m *Migrator) Partition(ctx context.Context, say func(string, ...any)) error {
	schema, _, err := m.Compare(ctx)
	if err != nil {
		return err
	}
	return m.withPartitioner(ctx, say, func(ctx context.Context, p *partitioner) error {
		d, err := p.describe(ctx, schema)
		switch {
		case err != nil:
			return err
		case len(d.Obstacles) > 0:
			return errors.New(strings.Join(d.Obstacles, "; "))
		case d.Partitioned:
			return p.makeAhead(ctx)
		default:
			return p.convert(ctx, d.Until)
		}
	})
}

const partitionsSQL = `select c.relname, pg_get_expr(c.relpartbound, c.oid), greatest(c.reltuples, 0),
  pg_total_relation_size(c.oid)
from pg_inherits i join pg_class c on c.oid = i.inhrelid where i.inhparent = 'core.outbox'::regclass
order by c.relname = 'outbox_rest', right(c.relname, 7), c.relname desc`

// dependsSQL names what would go on using the first partition instead of the whole table.
const dependsSQL = `select format('view %s reads it', r.ev_class::regclass) from pg_depend d
  join pg_rewrite r on r.oid = d.objid
  where d.classid = 'pg_rewrite'::regclass and d.refclassid = 'pg_class'::regclass and d.refobjid = $1::regclass
    and r.ev_class <> $1::regclass
union
select format('function %s has its row type', d.objid::regprocedure) from pg_depend d
  join pg_type t on t.oid = d.refobjid and t.typrelid = $1::regclass
  where d.classid = 'pg_proc'::regclass and d.refclassid = 'pg_type'::regclass
union
select format('foreign key %s of %s refers to it', quote_ident(k.conname), k.conrelid::regclass) from pg_constraint k
  where k.confrelid = $1::regclass
union
select format('publication %s has it', quote_ident(p.pubname)) from pg_publication_rel r
  join pg_publication p on p.oid = r.prpubid where r.prrelid = $1::regclass
union
select format('table %s inherits from it', i.inhrelid::regclass) from pg_inherits i
  where i.inhparent = $1::regclass and not (select c.relispartition from pg_class c where c.oid = i.inhrelid)
union
select format('its replica identity is not the default') from pg_class c
  where c.oid = $1::regclass and c.relreplident <> 'd'
order by 1`

func (p *partitioner) describe(ctx context.Context, schema []Difference) (d Partitioning, err error) {
	for _, difference := range schema {
		if difference.Table() == "core.outbox" && difference.Subject != "constraint outbox_before on core.outbox" ||
			difference.Subject == "table core.outbox" {
			d.Obstacles = append(d.Obstacles, fmt.Sprintf("%s: %s", difference, difference.Fix()))
		}
	}
	var now time.Time
	var begun *string
	var pages int64
	if err := p.conn.QueryRow(ctx, `select c.relkind = 'p', clock_timestamp(),
  (select sum(greatest(t.reltuples, 0)) from pg_class t where t.oid = c.oid or t.oid in
    (select i.inhrelid from pg_inherits i where i.inhparent = c.oid)),
  (select sum(pg_total_relation_size(t.oid))::bigint from pg_class t where t.oid = c.oid or t.oid in
    (select i.inhrelid from pg_inherits i where i.inhparent = c.oid)),
  (select pg_get_constraintdef(k.oid) from pg_constraint k where k.conrelid = c.oid and k.conname = 'outbox_before'),
  pg_relation_size(c.oid) / 8192
from pg_class c where c.oid = 'core.outbox'::regclass`).Scan(&d.Partitioned, &now, &d.Rows, &d.Bytes, &begun,
		&pages); err != nil {
		return d, err
	}
	if d.Partitioned {
		rows, _ := p.conn.Query(ctx, partitionsSQL) // collecting returns the error
		d.Partitions, err = pgx.CollectRows(rows, pgx.RowToStructByPos[Partition])
		return d, err
	}
	rows, _ := p.conn.Query(ctx, dependsSQL, "core.outbox")
	obstacles, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		return d, err
	}
	for _, o := range obstacles {
		d.Obstacles = append(d.Obstacles, o+": remove it, and make it again afterwards")
	}
	d.Until = monthFrom(now.Add(partitionNotice))
	if begun != nil { // by an earlier call; unless that was long ago
		if until, err := time.Parse("2006-01-02", dateIn(*begun)); err == nil && until.After(now.Add(partitionNotice/2)) {
			d.Until = until
		}
	}
	d.ScanSeconds, err = p.estimateScan(ctx, pages)
	return d, err
}

// monthFrom returns the first month that begins at t or later.
func monthFrom(t time.Time) time.Time {
	t = t.UTC()
	first := time.Date(t.Year(), t.Month(), 1, 0, 0, 0, 0, time.UTC)
	if first.Before(t) {
		first = first.AddDate(0, 1, 0)
	}
	return first
}

// dateIn returns the date in the definition of the constraint outbox_before.
func dateIn(definition string) string {
	_, date, _ := strings.Cut(definition, "'")
	return date[:min(len(date), len("2006-01-02"))]
}

// estimateScan reads a sample of the table's pages.
func (p *partitioner) estimateScan(ctx context.Context, pages int64) (seconds float64, err error) {
	share := min(100, 100*float64(samplePages)/float64(max(pages, 1)))
	started := time.Now()
	_, err = p.conn.Exec(ctx, "select count(occurred_at) from core.outbox tablesample system ("+
		fmt.Sprintf("%.6f", share)+")")
	return time.Since(started).Seconds() * 100 / share, err
}

// convert makes core.outbox a partitioned table.
func (p *partitioner) convert(ctx context.Context, until time.Time) error {
	at := until.Format(time.RFC3339)
	err := p.locked(ctx, "alter table core.outbox drop constraint if exists outbox_before",
		"alter table core.outbox add constraint outbox_before check (occurred_at < '"+at+"') not valid")
	if err != nil {
		return err
	}
	p.say("checking that all events are from before %s, beside producers and workers", until.Format("2006-01"))
	if _, err := p.conn.Exec(ctx, "alter table core.outbox validate constraint outbox_before"); err != nil {
		return errors.Join(err, p.locked(context.WithoutCancel(ctx), "alter table core.outbox drop constraint outbox_before"))
	}
	names := []string{"outbox_rest"}
	for n := range monthsAhead {
		names = append(names, until.AddDate(0, n, 0).Format("outbox_2006_01"))
	}
	for _, name := range names {
		if err := p.emptyTable(ctx, name); err != nil {
			return err
		}
	}
	if err := p.locked(ctx, "select core.outbox_make_partitioned('"+at+"')"); err != nil {
		return err
	}
	p.say("core.outbox is partitioned: events before %s are in one partition, and each month from then on has its own",
		until.Format("2006-01"))
	return nil
}

// emptyTable makes the table of a partition. One that an earlier call left is dropped if it is empty.
func (p *partitioner) emptyTable(ctx context.Context, name string) error {
	var there, filled bool
	if err := p.conn.QueryRow(ctx, "select to_regclass('core."+name+"') is not null").Scan(&there); err != nil {
		return err
	}
	if there {
		if err := p.conn.QueryRow(ctx, "select exists (select from core."+name+")").Scan(&filled); err != nil {
			return err
		}
		if filled {
			return fmt.Errorf("core.%s is there and has rows: move it to another schema, or drop it", name)
		}
		if _, err := p.conn.Exec(ctx, "drop table core."+name); err != nil {
			return err
		}
	}
	_, err := p.conn.Exec(ctx, "select core.outbox_partition_table('"+name+"')")
	return err
}

// locked runs statements in one transaction. It gives up after half a second without a lock, because producers and
// workers wait behind it, and tries again.
func (p *partitioner) locked(ctx context.Context, statements ...string) error {
	return p.retryLocked(ctx, func() error {
		return pgx.BeginFunc(ctx, p.conn, func(tx pgx.Tx) error {
			if _, err := tx.Exec(ctx, "set local lock_timeout = '500ms'"); err != nil {
				return err
			}
			for _, statement := range statements {
				if _, err := tx.Exec(ctx, statement); err != nil {
					return err
				}
			}
			return nil
		})
	})
}

// makeAhead makes the partitions that are missing.
func (p *partitioner) makeAhead(ctx context.Context) error {
	return p.retryLocked(ctx, func() error {
		var made []string
		err := p.conn.QueryRow(ctx, "select core.outbox_partitions_ahead()").Scan(&made)
		if err == nil && len(made) == 0 {
			p.say("core.outbox is partitioned, and no partition is missing")
		}
		for _, name := range made {
			p.say("made core.%s", name)
		}
		return err
	})
}

// DetachPartitions detaches the partitions all of whose events are past their retention, and returns their names. They
// are tables then, to be archived or dropped.
func (m *Migrator) DetachPartitions(ctx context.Context) (detached []string, err error) {
	err = m.withPartitioner(ctx, nil, func(ctx context.Context, p *partitioner) error {
		var names []string
		rows, _ := p.conn.Query(ctx, `select c.relname from pg_inherits i join pg_class c on c.oid = i.inhrelid
where i.inhparent = 'core.outbox'::regclass and c.relname ~ '^outbox_(until_)?[0-9]{4}_[0-9]{2}$'
order by right(c.relname, 7), c.relname desc`)
		if names, err = pgx.CollectRows(rows, pgx.RowTo[string]); err != nil {
			return err
		}
		for _, name := range names {
			done, err := p.detach(ctx, name)
			if err != nil {
				return err
			}
			if done {
				detached = append(detached, name)
			}
		}
		return nil
	})
	return detached, err
}

// detach detaches a partition whose time is over, if no event in it is needed any more.
func (p *partitioner) detach(ctx context.Context, name string) (done bool, err error) {
	const needed = `select exists (select from core.%[1]s o
  where coalesce(core.outbox_retained_from(o.status, o.occurred_at, o.delivered_at, o.claimed_at), 'infinity')
    > (core.retention_window('outbox_row')).gone)
  or to_date(right('%[1]s', 7), 'YYYY_MM')
    + case when '%[1]s' like 'outbox\_until%%' then interval '0' else '1 month' end
    > (core.retention_window('outbox_row')).gone`
	var keep bool
	if err := p.conn.QueryRow(ctx, fmt.Sprintf(needed, name)).Scan(&keep); err != nil || keep {
		return false, err
	}
	err = p.locked(ctx, "alter table core.outbox detach partition core."+name, fmt.Sprintf(`do $$ begin
  if exists (select from core.%[1]s o where o.status = 'pending' and o.deleted_at is null)
    or exists (select from core.%[1]s o where o.status = 'in_flight' and o.deleted_at is null) then
    raise exception 'core.%[1]s has got another event';
  end if;
end $$`, name))
	return err == nil, err
}

// UndoPartition makes core.outbox one table again, while producers and workers go on; say tells how it goes. It goes on
// where an earlier call ended.
func (m *Migrator) UndoPartition(ctx context.Context, say func(string, ...any)) error {
	return m.withPartitioner(ctx, say, func(ctx context.Context, p *partitioner) error {
		var partitioned, begun bool
		if err := p.conn.QueryRow(ctx, `select c.relkind = 'p', to_regclass('core.outbox_partitioned') is not null
from pg_class c where c.oid = 'core.outbox'::regclass`).Scan(&partitioned, &begun); err != nil {
			return err
		}
		switch {
		case partitioned:
			if err := p.locked(ctx, "select core.outbox_make_plain()"); err != nil {
				return err
			}
			say("core.outbox is one table; moving delivered events from the other partitions")
		case !begun:
			say("core.outbox is one table already")
			return nil
		}
		rows, _ := p.conn.Query(ctx, `select c.relname from pg_inherits i join pg_class c on c.oid = i.inhrelid
where i.inhparent = 'core.outbox_partitioned'::regclass order by c.relname`)
		names, err := pgx.CollectRows(rows, pgx.RowTo[string])
		if err != nil {
			return err
		}
		moved := int64(0)
		for _, name := range names {
			for {
				tag, err := p.conn.Exec(ctx, fmt.Sprintf(`with moved as (delete from core.%[1]s where ctid = any (array(
  select ctid from core.%[1]s limit %d)) returning *) insert into core.outbox select * from moved`, name, movePage))
				if err != nil {
					return err
				}
				if tag.RowsAffected() == 0 {
					break
				}
				moved += tag.RowsAffected()
			}
		}
		say("moved %s", Counted(int(moved), "event"))
		_, err = p.conn.Exec(ctx, "drop table core.outbox_partitioned")
		return err
	})
}
