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

	"spectral/internal/core/events/infrastructure/postgres/operator"
	"spectral/internal/core/events/infrastructure/postgres/pgtx"
)

const (
	// partitionNotice is the least time before the first month with its own partition. Until the change ends, a
	// constraint refuses events of that month, and producers may date events a day ahead.
	partitionNotice = 14 * 24 * time.Hour
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
	// FirstMonth is the first that will have its own partition; null once core.outbox is partitioned.
	FirstMonth *time.Time `json:"first_month"`
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

// partitioner works on one session, which acts as the owner of our tables.
type partitioner struct {
	*Migrator
	conn   *pgx.Conn
	schema []Difference // to this build's
}

// withPartitioner calls do while no migrator and no other partitioner works.
func (m *Migrator) withPartitioner(ctx context.Context, do func(context.Context, *partitioner) error) error {
	schema, _, err := m.Compare(ctx)
	if err != nil {
		return err
	}
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
		"set idle_session_timeout = 0; %sset lock_timeout = '5s'; select pg_advisory_lock(%d); set lock_timeout = 0",
		ownerRole, pgtx.NoTransactionTimeout("set", conn.PgConn()), lockID)); err != nil {
		if pg, ok := errors.AsType[*pgconn.PgError](err); ok && pg.Code == pgerrcode.LockNotAvailable {
			return errors.New("a migration, or another change of core.outbox, is running: wait for its end")
		}
		return err
	}
	return do(ctx, &partitioner{m, conn, schema})
}

// DescribePartitions returns the form of core.outbox, and what changing it takes.
func (m *Migrator) DescribePartitions(ctx context.Context) (d Partitioning, err error) {
	err = m.withPartitioner(ctx, func(ctx context.Context, p *partitioner) error {
		d, err = p.describe(ctx)
		return err
	})
	return d, err
}

// Partition makes core.outbox a table of monthly partitions, while producers and workers go on. It asks begin whether
// to, and reports how it goes. Then, or if that is done, it makes months that are missing. It may be called again after
// an interruption.
func (m *Migrator) Partition(ctx context.Context, begin func(Partitioning) error,
	report func(format string, a ...any)) error {
	return m.withPartitioner(ctx, func(ctx context.Context, p *partitioner) error {
		d, err := p.describe(ctx)
		if err == nil && !d.Partitioned {
			if len(d.Obstacles) > 0 {
				return errors.New(strings.Join(d.Obstacles, "; "))
			}
			if err = begin(d); err == nil {
				err = p.convert(ctx, *d.FirstMonth, report)
			}
		}
		if err != nil {
			return err
		}
		return p.makeAhead(ctx, report)
	})
}

const partitionsSQL = `select c.relname, pg_get_expr(c.relpartbound, c.oid), greatest(c.reltuples, 0),
  pg_total_relation_size(c.oid)
from pg_inherits i join pg_class c on c.oid = i.inhrelid where i.inhparent = 'core.outbox'::regclass
order by c.relname = 'outbox_rest', right(c.relname, 7), c.relname desc`

// dependsSQL lists what is bound to the table by OID: after the change it would still refer to what is then a part.
const dependsSQL = `select distinct case d.classid when 'pg_rewrite'::regclass
    then (select format('view %s reads it', r.ev_class::regclass) from pg_rewrite r where r.oid = d.objid)
  when 'pg_proc'::regclass then format('function %s is bound to it', d.objid::regprocedure)
  when 'pg_policy'::regclass then (select format('policy %I of %s reads it', p.polname, p.polrelid::regclass)
    from pg_policy p where p.oid = d.objid)
  when 'pg_class'::regclass then format('table %s has a column of its type', d.objid::regclass)
  when 'pg_constraint'::regclass then (select format('foreign key %I of %s refers to it', k.conname,
    k.conrelid::regclass) from pg_constraint k where k.oid = d.objid and k.conrelid <> 'core.outbox'::regclass)
  end as obstacle
from pg_depend d where d.deptype = 'n' and (
  d.refclassid = 'pg_class'::regclass and d.refobjid = 'core.outbox'::regclass
    or d.refclassid = 'pg_type'::regclass and d.refobjid in (select unnest(array[t.oid, t.typarray]) from pg_type t
      where t.typrelid = 'core.outbox'::regclass))
union
select format('publication %I has it', p.pubname) from pg_publication_tables t
  join pg_publication p on p.pubname = t.pubname
  where t.schemaname = 'core' and t.tablename ~ '^outbox(_until_|_rest|_[0-9]|$)' and (not p.pubviaroot
    or exists (select from pg_publication_rel r where r.prpubid = p.oid and r.prrelid = 'core.outbox'::regclass))
union
select format('table %s inherits from it', i.inhrelid::regclass) from pg_inherits i
  join pg_class c on c.oid = i.inhrelid where i.inhparent = 'core.outbox'::regclass and not c.relispartition
union
select 'its replica identity is not the default' from pg_class c
  where c.oid = 'core.outbox'::regclass and c.relreplident <> 'd'
order by 1`

// obstacles returns why the form of core.outbox cannot change.
func (p *partitioner) obstacles(ctx context.Context) (obstacles []string, err error) {
	for _, d := range p.schema {
		switch {
		case d.Subject == "table core.outbox_partitioned":
			obstacles = append(obstacles, "the way back from partitions has not ended: run `workers outbox partition --undo`")
		case d.Subject == "table core.outbox",
			d.Table() == "core.outbox" && d.Subject != "constraint outbox_before on core.outbox":
			obstacles = append(obstacles, fmt.Sprintf("%s: %s", d, d.Fix()))
		}
	}
	rows, _ := p.conn.Query(ctx, dependsSQL) // collecting returns the error
	bound, err := pgx.CollectRows(rows, pgx.RowTo[*string])
	for _, b := range bound {
		if b != nil {
			obstacles = append(obstacles, *b+": remove that, and make it again afterwards")
		}
	}
	return obstacles, err
}

func (p *partitioner) describe(ctx context.Context) (d Partitioning, err error) {
	d = Partitioning{Partitions: []Partition{}, Obstacles: []string{}}
	var now time.Time
	var pages int64
	if err := p.conn.QueryRow(ctx, `select c.relkind = 'p', clock_timestamp(), sum(greatest(t.reltuples, 0)),
  sum(pg_total_relation_size(t.oid))::bigint, pg_relation_size(c.oid) / 8192
from pg_class c join pg_class t on t.oid = c.oid or t.oid in
  (select i.inhrelid from pg_inherits i where i.inhparent = c.oid)
where c.oid = 'core.outbox'::regclass group by c.oid, c.relkind`).Scan(&d.Partitioned, &now, &d.Rows, &d.Bytes,
		&pages); err != nil {
		return d, err
	}
	if d.Partitioned {
		rows, _ := p.conn.Query(ctx, partitionsSQL) // collecting returns the error
		d.Partitions, err = pgx.CollectRows(rows, pgx.RowToStructByPos[Partition])
		return d, err
	}
	obstacles, err := p.obstacles(ctx)
	if err != nil {
		return d, err
	}
	d.Obstacles = append(d.Obstacles, obstacles...)
	first := monthFrom(now.Add(partitionNotice))
	d.FirstMonth = &first
	share := min(100, 100*float64(samplePages)/float64(max(pages, 1)))
	started := time.Now()
	_, err = p.conn.Exec(ctx, fmt.Sprintf("select count(occurred_at) from core.outbox tablesample system (%.6f)", share))
	d.ScanSeconds = time.Since(started).Seconds() * 100 / share
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

// convert makes core.outbox a partitioned table.
func (p *partitioner) convert(ctx context.Context, first time.Time, report func(string, ...any)) error {
	at, month := first.Format(time.RFC3339), first.Format("2006-01")
	if err := p.locked(ctx, "alter table core.outbox drop constraint if exists outbox_before",
		"alter table core.outbox add constraint outbox_before check (occurred_at < '"+at+"') not valid"); err != nil {
		return err
	}
	report("checking that all events are from before %s, beside producers and workers", month)
	_, err := p.conn.Exec(ctx, "alter table core.outbox validate constraint outbox_before")
	if pg, ok := errors.AsType[*pgconn.PgError](err); ok && pg.Code == pgerrcode.CheckViolation {
		return errors.Join(fmt.Errorf("core.outbox has events of %s or later: wait for that month, or correct their "+
			"occurred_at", month), p.locked(ctx, "alter table core.outbox drop constraint outbox_before"))
	}
	if err == nil {
		err = p.locked(ctx, "select core.outbox_make_partitioned('"+at+"')")
	}
	if err != nil {
		return fmt.Errorf("%w; run the command again, or with --undo, before %s: from then on a constraint that it left "+
			"refuses events", err, month)
	}
	report("core.outbox is partitioned: events before %s are in one partition", month)
	return nil
}

// locked runs statements in one transaction. It gives up after half a second without a lock, because producers and
// workers wait behind it, and tries again.
func (p *partitioner) locked(ctx context.Context, statements ...string) error {
	return p.retryLocked(ctx, func() error {
		return pgx.BeginFunc(ctx, p.conn, func(tx pgx.Tx) error {
			for _, statement := range append([]string{
				// this lock is in no one's way, and ends autovacuum, which would keep the table from the other
				"set local lock_timeout = '5s'; lock table core.outbox in share update exclusive mode; " +
					"set local lock_timeout = '500ms'"}, statements...) {
				if _, err := tx.Exec(ctx, statement); err != nil {
					return err
				}
			}
			return nil
		})
	})
}

// makeAhead makes the partitions that are missing.
func (p *partitioner) makeAhead(ctx context.Context, report func(string, ...any)) error {
	return p.retryLocked(ctx, func() error {
		var made []string
		err := p.conn.QueryRow(ctx, "select core.outbox_partitions_ahead()").Scan(&made)
		if err == nil && len(made) == 0 {
			report("no partition is missing")
		}
		for _, name := range made {
			report("made core.%s", name)
		}
		return err
	})
}

// DropPartitions detaches and drops the partitions of months that are over and have no row any more, and calls dropped
// with the name of each. Retention deletes rows, and only those that are past it.
func (m *Migrator) DropPartitions(ctx context.Context, dropped func(name string)) error {
	return m.withPartitioner(ctx, func(ctx context.Context, p *partitioner) error {
		rows, _ := p.conn.Query(ctx, `select m.name::text from core.outbox_months() m
where m.ends_at <= clock_timestamp() - interval '1 day' order by m.ends_at`)
		names, err := pgx.CollectRows(rows, pgx.RowTo[string])
		if err != nil {
			return err
		}
		for _, name := range names {
			var filled bool
			if err := p.conn.QueryRow(ctx, "select exists (select from core."+name+")").Scan(&filled); err != nil {
				return err
			}
			if filled {
				continue
			}
			// again, for a row of that time may have come; in an unvacuumed table that may take long
			if err := p.locked(ctx, "set local statement_timeout = '500ms'",
				"alter table core.outbox detach partition core."+name, fmt.Sprintf(`do $$ begin
  if exists (select from core.%[1]s) then raise exception 'core.%[1]s has a new event'; end if;
end $$`, name), "drop table core."+name); err != nil {
				return err
			}
			dropped(name)
		}
		return nil
	})
}

// UndoPartition makes core.outbox one table again, while producers and workers go on, and reports how it goes. It may
// be called again after an interruption.
func (m *Migrator) UndoPartition(ctx context.Context, report func(string, ...any)) error {
	return m.withPartitioner(ctx, func(ctx context.Context, p *partitioner) error {
		var partitioned, begun bool
		if err := p.conn.QueryRow(ctx, `select c.relkind = 'p', to_regclass('core.outbox_partitioned') is not null
from pg_class c where c.oid = 'core.outbox'::regclass`).Scan(&partitioned, &begun); err != nil {
			return err
		}
		switch {
		case partitioned:
			obstacles, err := p.obstacles(ctx)
			if err == nil && len(obstacles) > 0 {
				err = errors.New(strings.Join(obstacles, "; "))
			}
			if err == nil {
				err = p.locked(ctx, "select core.outbox_make_plain()")
			}
			if err != nil {
				return err
			}
			report("core.outbox is one table; moving delivered events from the other partitions")
		case !begun:
			report("core.outbox is one table already")
			return p.locked(ctx, "alter table core.outbox drop constraint if exists outbox_before")
		}
		return p.moveBack(ctx, report)
	})
}

// moveBack moves what core.outbox_partitioned has left to core.outbox, and drops it.
func (p *partitioner) moveBack(ctx context.Context, report func(string, ...any)) error {
	rows, _ := p.conn.Query(ctx, `select c.relname from pg_inherits i join pg_class c on c.oid = i.inhrelid
where i.inhparent = 'core.outbox_partitioned'::regclass order by c.relname`)
	names, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		return err
	}
	moved := int64(0)
	for _, name := range names {
		for {
			var n int64 // an event that was published again in this time has the place of the old one
			if err := p.conn.QueryRow(ctx, fmt.Sprintf(`with moved as (delete from core.%[1]s where ctid = any (array(
  select ctid from core.%[1]s limit %d)) returning *), placed as (insert into core.outbox select * from moved
  on conflict (id, occurred_at) do nothing) select count(*) from moved`, name, movePage)).Scan(&n); err != nil {
				return err
			}
			if n == 0 {
				break
			}
			moved += n
		}
	}
	report("moved %s", operator.Counted(int(moved), "event"))
	_, err = p.conn.Exec(ctx, "drop table core.outbox_partitioned")
	return err
}
