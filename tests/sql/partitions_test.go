package sql_test

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"time"

	"spectral/internal/app"
	"spectral/tests/pgtest"
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
		return m.Partition(ctx, func(app.Partitioning) error { return nil }, t.Logf)
	})
}

func (d *database) undo(t *testing.T) error {
	t.Helper()
	return d.partitioning(t, func(ctx context.Context, m *app.Migrator) error { return m.UndoPartition(ctx, t.Logf) })
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

// elsewhere makes events of a later month, and of a time that has no month: of each, one waits, one is delivered, and
// one discarded.
const elsewhere = `insert into core.outbox (event_type, event_version, source, content_class, channel, generation,
		payload, idempotency_key, occurred_at, status, claimed_at, deleted_at)
	select '{card}', 1, 'worlds', 'operational', 'outbox_gen_1', 1, '{}', gen_random_uuid()::text,
		now() + i * interval '45 days', status, now(), case when status = 'failed' then now() end
	from generate_series(1, 20, 19) i, unnest(array['pending', 'delivered', 'failed']) status`

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
		line{"", "select count(*) >= 3, count(*) filter (where relname ~ '^outbox_until_') from pg_inherits join pg_class " +
			"on oid = inhrelid where inhparent = 'core.outbox'::regclass", "t 1"})
	d.wantAsBuilt(t)
	must(t, d.partition(t)) // nothing is missing
	// what a partition has besides is found, and a trigger that is off there is turned on
	exec(t, d.admin, `alter table core.outbox_rest disable trigger outbox_notify;
		alter table core.outbox_rest alter target set not null; create index extra on core.outbox_rest (source)`)
	schema, _, err := app.Compare(deadline(t), d.admin)
	must(t, err)
	var subjects []string
	for _, difference := range schema {
		subjects = append(subjects, difference.Subject)
	}
	if have := strings.Join(subjects, ", "); have != "column core.outbox_rest.target, index extra on core.outbox_rest, "+
		"trigger outbox_notify on core.outbox_rest" {
		t.Errorf("of a partition these differ: %s", have)
	}
	must(t, d.partitioning(t, func(ctx context.Context, m *app.Migrator) error {
		_, _, err := m.Repair(ctx)
		return err
	}))
	exec(t, d.admin, "alter table core.outbox_rest alter target drop not null; drop index core.extra")
	d.wantAsBuilt(t)
	exec(t, d.admin, filled(elsewhere))
	d.run(t, line{"", "select string_agg(distinct left(tableoid::regclass::text, 14), ' ') from core.outbox where " +
		"occurred_at > now() + interval '1 day'", "core.outbox_20 core.outbox_re"},
		line{"worlds", publishInto(1), ""},
		line{"worker", "begin; select count(*) from core.outbox_claim(1, '{card}', 10, '-infinity', gen_random_uuid(), " +
			"false)", "6"},
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
	exec(t, d.admin, `alter table core.outbox add constraint outbox_before check (occurred_at < '2099-01-01') not valid`)
	must(t, d.partition(t))
	d.wantAsBuilt(t)
	exec(t, d.admin, filled(elsewhere))
	before, _ := d.ask(t, "", content)
	exec(t, d.admin, "set role spectral_owner; select core.outbox_make_plain(); reset role")
	if err := d.partition(t); err == nil || !strings.Contains(err.Error(), "the way back from partitions has not ended") {
		t.Errorf("while the way back has not ended: %v", err)
	}
	d.run(t, line{"", "select count(*) from core.outbox_partitioned", "4"})
	// one of them is published again in this time, by its id: it is handled by its key, so that nothing happens twice
	exec(t, d.admin, "insert into core.outbox select * from core.outbox_partitioned limit 1")
	must(t, d.undo(t))
	d.run(t, line{"", content, before})
	d.wantAsBuilt(t)
	if err := d.partition(t); err == nil || !strings.Contains(err.Error(), "or later: wait for that month") {
		t.Errorf("with events of the first month: %v", err)
	}
	d.wantAsBuilt(t)
	exec(t, d.admin, "truncate core.outbox")
	// what waits has to move while the table is locked: refused if that would take long
	must(t, d.partition(t))
	exec(t, d.admin, `insert into core.outbox (event_type, event_version, source, content_class, channel, generation,
			payload, idempotency_key, occurred_at, status, claimed_at)
		select 'a.b', 1, 'worlds', 'operational', 'outbox_gen_1', 1, '{}', n::text, now() + d * interval '1 year',
			case when d = 0 then 'delivered' else 'failed' end, now()
		from generate_series(1, 10001) n, generate_series(0, 1) d`)
	if err := d.undo(t); err == nil || !strings.Contains(err.Error(), "more than 10000 events that wait or have failed") {
		t.Errorf("with many events that have failed: %v", err)
	}
	d.wantAsBuilt(t)
}

// A transaction that lasts makes the command wait, and not producers.
func TestPartitioningWaitsWithoutBlockingProducers(t *testing.T) {
	t.Parallel()
	d := setup(t)
	d.run(t, line{"superuser", "begin; " + publishInto(1), ""},
		line{"worlds", "set statement_timeout = '5s'; set lock_timeout = '2s'", ""})
	done := make(chan error, 1)
	go func() {
		done <- d.partitioning(t, func(ctx context.Context, m *app.Migrator) error {
			return m.Partition(ctx, func(app.Partitioning) error { return nil }, func(string, ...any) {})
		})
	}()
	waiting := func() bool {
		return value[bool](t, d.admin, `select exists (select from pg_locks where relation = 'core.outbox'::regclass
			and not granted and mode = 'AccessExclusiveLock')`)
	}
	for range 2 { // it asks, gives up, and asks again
		if !pgtest.Eventually(time.Minute, waiting) {
			t.Fatal("the command does not ask for the lock")
		}
		d.run(t, line{"worlds", publishInto(1), ""}) // behind it
	}
	d.run(t, line{"superuser", "commit", ""})
	must(t, <-done)
	d.wantAsBuilt(t)
	d.run(t, line{"", "select count(*) from core.outbox", "3"})
}

// What would go on using the first partition alone is named, and nothing is done.
func TestPartitioningIsRefused(t *testing.T) {
	t.Parallel()
	d := setup(t)
	for _, c := range []struct{ obstacle, want, remove string }{
		{"create view public.latest as select * from core.outbox", "view public.latest reads it", "drop view public.latest"},
		{"create function public.f(o core.outbox) returns int language sql as 'select 1'",
			"function public.f(core.outbox) is bound to it", "drop function public.f"},
		{"create function public.g() returns bigint begin atomic select count(*) from core.outbox; end",
			"function public.g() is bound to it", "drop function public.g"},
		{"create table public.t (); create policy p on public.t using (exists (select from core.outbox))",
			"policy p of public.t reads it", "drop table public.t"},
		{"create publication every for all tables", "publication every has it", "drop publication every"},
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
	exec(t, d.admin, "create publication every for all tables with (publish_via_partition_root)")
	must(t, d.partition(t))
	d.wantAsBuilt(t)
	exec(t, d.admin, "create view public.latest as select * from core.outbox")
	if err := d.undo(t); err == nil || !strings.Contains(err.Error(), "view public.latest reads it") {
		t.Errorf("the way back with a view: %v", err)
	}
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
		end $$`)
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

// A month is dropped once it is over and retention has deleted its events, and not before.
func TestOldPartitionsAreDropped(t *testing.T) {
	t.Parallel()
	d := setup(t)
	d.rows(t, 1, "occurred_at = '2026-01-05', status = 'delivered', delivered_at = '2026-01-05'")
	must(t, d.partition(t))
	// the first partition is that of months long ago
	exec(t, d.admin, `do $$ declare v name; begin
			select relname into v from pg_inherits join pg_class on oid = inhrelid
				where inhparent = 'core.outbox'::regclass and relname ~ '^outbox_until';
			execute format('alter table core.outbox detach partition core.%I', v);
			execute format('alter table core.%I rename to outbox_until_2026_02', v);
			alter table core.outbox attach partition core.outbox_until_2026_02 for values from (minvalue) to ('2026-02-01');
		end $$`)
	drop := func() (names []string) {
		must(t, d.partitioning(t, func(ctx context.Context, m *app.Migrator) error {
			return m.DropPartitions(ctx, func(name string) { names = append(names, name) })
		}))
		return names
	}
	if names := drop(); len(names) > 0 {
		t.Errorf("with an event, %v are dropped", names)
	}
	exec(t, d.admin, "delete from core.outbox")
	if names := drop(); len(names) != 1 || names[0] != "outbox_until_2026_02" {
		t.Errorf("%v are dropped", names)
	}
	d.wantAsBuilt(t)
	if names := drop(); len(names) > 0 {
		t.Errorf("%v are dropped, though they are not over", names)
	}
	// without a month left, they begin with the current one
	exec(t, d.admin, `do $$ declare v name; begin
			for v in select m.name from core.outbox_months() m loop execute format('drop table core.%I', v); end loop;
		end $$`)
	d.run(t, line{"worker", "set role spectral_worker; select cardinality(core.outbox_partitions_ahead())", "3"})
}
