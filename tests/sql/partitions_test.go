package sql_test

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"

	"spectral/internal/app"
)

// partitioning calls do with what changes the form of core.outbox.
func (d *database) partitioning(t *testing.T, do func(context.Context, *app.Migrator) error) error {
	t.Helper()
	migrator, err := app.NewMigrator(deadline(t), d.at, slog.New(slog.DiscardHandler))
	must(t, err)
	return errors.Join(do(deadline(t), migrator), migrator.Close())
}

func (d *database) partition(t *testing.T) error {
	t.Helper()
	return d.partitioning(t, func(ctx context.Context, m *app.Migrator) error {
		return m.Partition(ctx, func(format string, a ...any) { t.Logf(format, a...) })
	})
}

func (d *database) undo(t *testing.T) error {
	t.Helper()
	return d.partitioning(t, func(ctx context.Context, m *app.Migrator) error {
		return m.UndoPartition(ctx, func(format string, a ...any) { t.Logf(format, a...) })
	})
}

// wantAsBuilt fails the test if the schema or the privileges differ from this build's.
func (d *database) wantAsBuilt(t *testing.T) {
	t.Helper()
	schema, privileges, err := app.Compare(deadline(t), d.admin)
	if err != nil || len(schema)+len(privileges) > 0 {
		t.Errorf("the schema differs: %v %v %v", schema, privileges, err)
	}
}

const content = "select md5(string_agg(o::text, ',' order by o.id)) from core.outbox o"

// Partitions and back: no row changes, and what is published goes where it belongs.
func TestPartitionsAndBack(t *testing.T) {
	t.Parallel()
	d := setup(t)
	d.rows(t, 6, "")
	d.alter(t, 1, "status = 'in_flight', claim_token = id, claimed_at = clock_timestamp()")
	d.alter(t, 2, "status = 'failed', claimed_at = clock_timestamp(), attempts = 6")
	d.alter(t, 3, "status = 'delivered', delivered_at = clock_timestamp(), occurred_at = '2026-01-01'")
	before, _ := d.ask(t, "", content)
	must(t, d.partition(t))
	d.run(t, line{"", content, before},
		line{"", "select count(*), count(*) filter (where relname ~ '^outbox_until_') from pg_inherits join pg_class on " +
			"oid = inhrelid where inhparent = 'core.outbox'::regclass", "4 1"})
	d.wantAsBuilt(t)
	must(t, d.partition(t)) // nothing is missing
	// a month ahead, and a time that has no month
	d.run(t, line{"", `insert into core.outbox (event_type, event_version, source, content_class, channel, generation,
			payload, idempotency_key, occurred_at) select '{card}', 1, 'worlds', 'operational', 'outbox_gen_1', 1, '{}',
			gen_random_uuid()::text, now() + i * interval '45 days' from generate_series(1, 20, 19) i`, ""},
		line{"", "select string_agg(left(tableoid::regclass::text, 14), ' ' order by occurred_at) from core.outbox where " +
			"occurred_at > now() + interval '1 day'", "core.outbox_20 core.outbox_re"},
		line{"worlds", publishInto(1), ""},
		line{"worker", "begin; select count(*) from core.outbox_claim(1, '{card}', 10, '-infinity', gen_random_uuid(), " +
			"false)", "6"},
		// the command waits for claims, and gives up before producers notice; here they end
		line{"worker", "rollback", ""})
	before, _ = d.ask(t, "", content)
	must(t, d.undo(t))
	d.run(t, line{"", content, before},
		line{"", "select relkind, to_regclass('core.outbox_partitioned') from pg_class where oid = 'core.outbox'::regclass",
			"r -"})
	d.wantAsBuilt(t)
	must(t, d.undo(t))
}

// A command that was killed leaves what the next one goes on with.
func TestPartitioningGoesOn(t *testing.T) {
	t.Parallel()
	d := setup(t)
	d.rows(t, 3, "")
	exec(t, d.admin, `set role spectral_owner;
		alter table core.outbox add constraint outbox_before check (occurred_at < now() + interval '40 days') not valid;
		select core.outbox_partition_table('outbox_rest'); reset role`)
	must(t, d.partition(t))
	d.wantAsBuilt(t)
	exec(t, d.admin, "set role spectral_owner; select core.outbox_make_plain(); reset role")
	must(t, d.undo(t))
	d.wantAsBuilt(t)
	exec(t, d.admin, "set role spectral_owner; create table core.outbox_rest (n integer); insert into core.outbox_rest "+
		"values (1); reset role")
	if err := d.partition(t); err == nil || !strings.Contains(err.Error(), "core.outbox_rest is there and has rows") {
		t.Errorf("a table with rows is in the way: %v", err)
	}
}

// What would go on using the first partition alone is named, and nothing is done.
func TestPartitioningIsRefused(t *testing.T) {
	t.Parallel()
	d := setup(t)
	for _, c := range []struct{ obstacle, want, remove string }{
		{"create view public.latest as select * from core.outbox", "view public.latest reads it", "drop view public.latest"},
		{"create function public.f(o core.outbox) returns int language sql as 'select 1'",
			"function public.f(core.outbox) has its row type", "drop function public.f"},
		{"create publication p for table core.outbox", "publication p has it", "drop publication p"},
		{"alter table core.outbox replica identity full", "its replica identity is not the default",
			"alter table core.outbox replica identity default"},
		{"create index extra on core.outbox (source)", "index extra on core.outbox is unexpected", "drop index core.extra"},
		{"create table public.child () inherits (core.outbox)", "table public.child inherits from it",
			"drop table public.child"},
	} {
		exec(t, d.admin, c.obstacle)
		if err := d.partition(t); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v", c.obstacle, err)
		}
		exec(t, d.admin, c.remove)
	}
	d.wantAsBuilt(t)
}

// Workers make the months that are missing, but none whose events are in core.outbox_rest.
func TestPartitionsAreMadeAhead(t *testing.T) {
	t.Parallel()
	d := setup(t)
	const ahead = "select core.outbox_partitions_ahead()"
	d.run(t, line{"worker", "set role spectral_worker; " + ahead, "{}"})
	must(t, d.partition(t))
	const months = "select count(*) from pg_inherits join pg_class on oid = inhrelid where inhparent = " +
		"'core.outbox'::regclass and relname ~ '^outbox_[0-9]'"
	d.run(t, line{"worker", ahead, "{}"})
	exec(t, d.admin, `do $$ declare v name; begin
			for v in select relname from pg_inherits join pg_class on oid = inhrelid
				where inhparent = 'core.outbox'::regclass and relname ~ '^outbox_[0-9]' loop
				execute format('drop table core.%I', v);
			end loop;
		end $$;
		alter table core.outbox rename to x; alter table core.x rename to outbox`)
	made, _ := d.ask(t, "worker", "select cardinality(core.outbox_partitions_ahead()) between 1 and 3")
	if made != "t" {
		t.Errorf("missing months are not made: %s", made)
	}
	d.wantAsBuilt(t)
	before, _ := d.ask(t, "", months)
	exec(t, d.admin, `do $$ declare v name; begin
			select max(relname) into v from pg_inherits join pg_class on oid = inhrelid
				where inhparent = 'core.outbox'::regclass and relname ~ '^outbox_[0-9]';
			execute format('drop table core.%I', v);
			insert into core.outbox (event_type, event_version, source, content_class, channel, generation, payload,
				idempotency_key, occurred_at) values ('a.b', 1, 'worlds', 'operational', 'outbox_gen_1', 1, '{}', 'k',
				to_timestamp(right(v, 7), 'YYYY_MM') + interval '3 days');
		end $$`)
	d.run(t, line{"worker", ahead, "{}"})
	exec(t, d.admin, "delete from core.outbox")
	d.run(t, line{"worker", "select cardinality(core.outbox_partitions_ahead())", "1"}, line{"", months, before})
}

// A partition is detached once no event in it is needed, and not before.
func TestOldPartitionsAreDetached(t *testing.T) {
	t.Parallel()
	d := setup(t)
	d.rows(t, 2, "occurred_at = '2026-01-05'")
	d.alter(t, 1, "status = 'delivered', delivered_at = '2026-01-05'")
	must(t, d.partition(t))
	// the first partition is that of a month long ago
	exec(t, d.admin, `do $$ declare v name; begin
			select relname into v from pg_inherits join pg_class on oid = inhrelid
				where inhparent = 'core.outbox'::regclass and relname ~ '^outbox_until';
			execute format('alter table core.outbox detach partition core.%I', v);
			execute format('alter table core.%I rename to outbox_until_2026_02', v);
			alter table core.outbox attach partition core.outbox_until_2026_02 for values from (minvalue) to ('2026-02-01');
		end $$`)
	detach := func() (names []string) {
		must(t, d.partitioning(t, func(ctx context.Context, m *app.Migrator) (err error) {
			names, err = m.DetachPartitions(ctx)
			return err
		}))
		return names
	}
	if names := detach(); len(names) > 0 {
		t.Errorf("with an event that waits, %v are detached", names)
	}
	exec(t, d.admin, "update core.outbox set status = 'failed', claimed_at = '2026-01-06' where status = 'pending'")
	if names := detach(); len(names) != 1 || names[0] != "outbox_until_2026_02" {
		t.Errorf("%v are detached", names)
	}
	d.wantAsBuilt(t)
	if names := detach(); len(names) > 0 {
		t.Errorf("%v are detached again", names)
	}
}
