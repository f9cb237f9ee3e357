//go:build heavy

package sql_test

import "testing"

// Calls read no more when a million events were delivered over half a year and 200,000 wait, none of which autovacuum
// has seen: with plans from when the tables were empty, with plans by the statistics of then, and by those of now.
func TestCallsReadWhatTheyAreAboutOfAgedTables(t *testing.T) {
	t.Parallel()
	d := planned(t, false)
	filling := d.session(t, "superuser 2")
	exec(t, filling, "set session_replication_role = replica; set synchronous_commit = off")
	// two types in two generations; every 10th has its own key, every 20th of the older ones is deleted
	exec(t, filling, `insert into core.outbox (id, event_type, event_version, source, content_class, channel, generation,
			payload, idempotency_key, status, attempts, occurred_at, created_at, available_at, delivered_at, deleted_at,
			claimed_at, claim_token, lease_seconds)
		select k.id, case when i % 4 > 0 then 'worlds.world_model_card.published' else 'platform.thing.happened' end, 1,
			case when i % 4 > 0 then 'worlds' else 'platform' end, 'operational', 'outbox_gen_' || g, g,
			jsonb_build_object('n', i), case when i % 10 = 0 then 'worlds:-:' || i else k.id::text end, s, 1, at, at, at,
			case when s = 'delivered' then at end,
			case when s = 'delivered' and i % 20 = 0 and i < 600000 then at + interval '90 days' end,
			case when s in ('failed', 'in_flight') then now() end, case when s = 'in_flight' then k.id end, 3600
		from generate_series(1, 1300000) i, lateral (select now() - (1300001 - i) * interval '12 s' as at,
			case when i > 1000000 then 'pending' when i % 10000 = 1 then 'failed' when i % 10000 = 2 then 'in_flight'
				else 'delivered' end as s,
			case when i > 1000000 or i % 2 = 0 then 3 else 1 end as g) r, lateral
			(select (lpad(to_hex((extract(epoch from at) * 1000)::bigint), 12, '0') || '7' || lpad(to_hex(i & 4095), 3, '0') ||
				'8' || lpad(to_hex(i), 15, '0'))::uuid as id) k`)
	exec(t, filling, `insert into core.event_handled (handler_name, idempotency_key, event_id, event_type, content_class,
			handled_at)
		select 'a.b', idempotency_key, id, event_type, 'operational', occurred_at from core.outbox
			where status = 'delivered' on conflict do nothing`)
	// the versions that delivery and tombstones leave behind
	exec(t, filling, `update core.outbox set status = 'delivered', delivered_at = now() where id in (select id
			from core.outbox where generation = 3 and status = 'pending' order by available_at limit 100000);
		update core.event_handled set deleted_at = now() - interval '8 days' where handled_at < now() - interval '170 days'`)
	d.wantFew(t, "made when the tables were empty", d.empty)
	later := d.session(t, "superuser 3")
	d.wantFew(t, "by statistics of the empty tables", later)
	exec(t, filling, "analyze core.outbox; analyze core.event_handled")
	d.wantFew(t, "made when the tables were empty, and again", d.empty)
	d.wantFew(t, "by fresh statistics", later)
}
