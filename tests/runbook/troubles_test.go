package runbook_test

import (
	"fmt"
	"strings"

	"spectral/tests/pgtest"
)

// trouble brings a database into a situation of the page, and checks it after the blocks were executed.
type trouble struct {
	// prepare brings it about, and returns what to look at afterwards.
	prepare func(*scene) (over func())
	one     bool // the page has SQL or commands only
	own     bool // in a database without another situation's statistics
}

const card = "worlds.world_model_card.published"

// pending makes n due events in a generation.
func (s *scene) pending(n, generation int) {
	s.Helper()
	s.exec(fmt.Sprintf("select core.generation_announce(%d)", generation))
	s.publish(fmt.Sprintf("waiting-%d", generation), n, fmt.Sprintf(", p_generation => %d", generation))
}

// acts counts the rows of an action, each by the operator that the page names.
func (s *scene) acts(action, want string) {
	s.Helper()
	s.want("select count(*) from core.operator_actions where action = '"+action+"' and acted_by = 'ana'", want)
}

var troubles = map[string]trouble{
	"What became of the events?": {prepare: func(s *scene) func() {
		s.failures(3)
		return func() { s.shown("failed"); s.shown("IntegrityError"); s.shown(card) }
	}},
	"Events failed": {prepare: func(s *scene) func() {
		s.failures(2)
		return func() { s.shown(s.values["event-id"]); s.shown("broken"); s.shown("poison-1") }
	}},
	"The cause is fixed, and an event should run again": {prepare: func(s *scene) func() {
		s.failures(2)
		s.registered(1)
		return func() {
			s.shown(projector)
			s.want("select (failure_history -> 0 ->> 'replayed_by') || ' ' || (failure_history -> 0 ->> 'cycle') from "+
				"core.outbox where id = '"+s.values["event-id"]+"'", "ana 1")
			s.want("select string_agg(status, ' ' order by status) from core.outbox", "failed pending")
			s.acts("replay", "1")
		}
	}},
	"What a handler needs is down": {prepare: func(s *scene) func() {
		s.registered(1)
		return func() { s.want("select count(*) from core.breakers", "0"); s.acts("handler_close", "1") }
	}},
	"Thousands failed for one reason": {prepare: func(s *scene) func() {
		s.failures(40)
		return func() {
			s.want("select count(*) from core.outbox where status = 'pending' and failure_history @? '$[*].replayed_at'", "40")
			s.acts("replay", "1")
		}
	}},
	"A failed event must never run": {prepare: func(s *scene) func() {
		s.failures(1)
		return func() {
			s.want("select status || ' ' || (deleted_at is not null) from core.outbox", "failed true")
			s.acts("discard", "1")
			s.want("select details ->> 'reason' from core.operator_actions where action = 'discard'",
				"the card was withdrawn")
		}
	}},
	"The wrong event was discarded": {prepare: func(s *scene) func() {
		s.failures(1)
		s.exec("select core.outbox_discard('" + s.values["event-id"] + "', 'ben')")
		return func() {
			s.shown(s.values["event-id"])
			s.want("select status || ' ' || (deleted_at is null) from core.outbox", "failed true")
			s.acts("undiscard", "1")
		}
	}},
	"Events wait for a retry, and the cause is fixed": {prepare: func(s *scene) func() {
		s.pending(1, 1)
		s.exec("update core.outbox set available_at = now() + interval '5 minutes', attempts = 3, last_error = 'Timeout: " +
			"platform.x: late'")
		s.values["event-id"] = s.value("select id from core.outbox")
		return func() {
			s.shown(s.values["event-id"])
			s.want("select status || ' ' || (available_at <= now()) from core.outbox", "pending true")
			s.acts("retry_now", "1")
		}
	}},
	"A handler does damage": {prepare: func(s *scene) func() {
		return func() {
			s.want("select event_type || ' ' || generation from core.paused_types", card+" 1")
			s.acts("pause", "1")
			s.shown("it writes nonsense")
		}
	}},
	"A paused type should go on": {prepare: func(s *scene) func() {
		s.exec("select core.event_type_pause('" + card + "', 1, 'ben')")
		return func() {
			s.want("select count(*) from core.paused_types", "0")
			s.acts("resume", "1")
		}
	}},
	"Who did that?": {prepare: func(s *scene) func() {
		s.failures(1)
		s.exec("select core.outbox_discard('" + s.values["event-id"] + "', 'the culprit', 'a whim')")
		s.values["you"] = "the culprit"
		return func() { s.shown("the culprit"); s.shown("a whim") }
	}},
	"An event has not run": {one: true, prepare: func(s *scene) func() {
		s.pending(1, 1)
		s.exec("select core.event_type_pause('" + card + "', 1, 'ben')")
		s.values["event-id"] = s.value("select id from core.outbox")
		return func() {
			s.shown("no live worker of generation 1")
			s.shown("is paused in generation 1 since")
			s.shown("due events: 1, ")
		}
	}},
	"Events arrive late, or not at all": {prepare: func(s *scene) func() {
		s.pending(7, 1)
		s.exec("update core.outbox set available_at = now() - interval '10 minutes'")
		return func() {
			s.shown("outbox_gen_1 |     7 |", "7 events due of type "+card+" in generation 1 (live)")
		}
	}},
	"A handler hangs behind a lock": {prepare: func(s *scene) func() {
		blocker := s.login()
		s.exec("grant spectral_platform to " + blocker.name)
		pgtest.Workers(s.T, s.at)
		s.publish("locked", 1, "")
		s.await("select count(*) from core.outbox where status = 'delivered'", "1")
		conn := pgtest.Conn(s.T, blocker.url)
		if _, err := conn.Exec(s.ctx, "set role spectral_platform; begin; select from platform.system_cards where "+
			"card_id = 'locked-1' for update"); err != nil {
			s.Fatal(err)
		}
		s.exec("grant pg_signal_backend to " + loginOf(s.operator)) // who may end that session
		s.publish("locked", 1, "")                                  // the same card
		s.await("select count(*) > 0 from pg_stat_activity a where cardinality(pg_blocking_pids(a.pid)) > 0 and "+
			"a.datname = current_database()", "t")
		s.values["blocked-by"] = s.value("select pid from pg_stat_activity where usename = '" + blocker.name + "'")
		event := s.value("select id from core.outbox where status = 'pending'")
		// and one that has waited for longer
		s.exec(`insert into core.outbox (event_type, event_version, source, content_class, channel, generation, payload,
				idempotency_key, available_at)
			values ('worlds.world_model_card.published', 1, 'worlds', 'operational', 'outbox_gen_1', 1,
				'{"card_id": "locked-1", "version": 1, "title": "t"}', 'late', clock_timestamp() - interval '10 minutes')`)
		return func() {
			if strings.Contains(s.output, "blocked_by") {
				s.shown(blocker.name)
				s.shown("select from platform.system_cards")
				s.shown(event)
				s.await("select status from core.outbox where id = '"+event+"'", "delivered")
				return
			}
			s.shown("`workers doctor transactions` names locks")
		}
	}},
	"Events are in flight for too long": {prepare: func(s *scene) func() {
		s.pending(1, 1)
		s.exec("update core.outbox set status = 'in_flight', claim_token = gen_random_uuid(), claimed_at = now() - " +
			"interval '10 minutes', claimed_by = 'a dead worker', available_at = now() - interval '10 minutes'")
		return func() { s.shown("a dead worker") }
	}},
	"Relayed events are not handled": {prepare: func(s *scene) func() {
		s.pending(2, 1)
		s.exec("update core.outbox set status = 'relayed', relayed_at = now() - interval '10 minutes'")
		return func() {
			if s.value("select count(*) from core.outbox where status = 'relayed'") == "2" { // the SQL changes nothing
				s.shown("     2 |")
				return
			}
			s.want("select count(*) from core.outbox where status = 'pending'", "2")
		}
	}},
	"No worker of a generation lives, and it has events": {prepare: func(s *scene) func() {
		s.pending(4, 3)
		s.exec("delete from core.deployments where generation = 3")
		s.values["generation"] = "3"
		return func() {
			s.want("select status from core.deployments where generation = 3", "draining")
			if s.value("select count(*) from core.outbox where status = 'pending'") == "4" { // the SQL runs nothing
				s.shown("unknown")
				return
			}
			s.want("select count(*) from core.outbox where status = 'delivered'", "4")
		}
	}},
	"A generation's events should be handled by another one": {prepare: func(s *scene) func() {
		s.pending(4, 3)
		s.registered(4)
		s.values["old-generation"], s.values["generation"] = "3", "4"
		return func() {
			s.shown(card)
			s.want("select count(*) from core.outbox where generation = 4 and channel = 'outbox_gen_4'", "4")
			s.acts("adopt", "1")
		}
	}},
	"Is it safe to stop a generation?": {prepare: func(s *scene) func() {
		s.pending(4, 3)
		s.values["old-generation"] = "3"
		return func() {
			s.shown("3 | live   |   4 |", "SAFE TO STOP")
			s.want("select due from core.generation_status(3)", "4")
		}
	}},
	"A generation is over": {prepare: func(s *scene) func() {
		s.exec("select core.generation_announce(3), core.generation_announce(4)")
		s.values["old-generation"] = "3"
		return func() {
			s.await("select core.generation_retire(3, 'ana')", "retired") // beside others' transactions it takes more calls
			s.acts("generation_drain", "1")
		}
	}},
	"A new generation is broken, and the last one has to come back": {prepare: func(s *scene) func() {
		s.exec("select core.generation_announce(4)")
		s.pending(2, 5)
		s.exec("select core.generation_drain(4, 'ben')")
		s.values["old-generation"], s.values["generation"] = "4", "5"
		return func() {
			s.want("select string_agg(generation || ' ' || status, ', ' order by generation) from core.deployments where "+
				"generation > 1", "4 live, 5 draining")
		}
	}},
	"Failed events are about to expire": {prepare: func(s *scene) func() {
		s.failures(2)
		s.exec("update core.outbox set occurred_at = now() - interval '40 days', created_at = now() - interval '40 " +
			"days', claimed_at = now() - interval '40 days', first_failed_at = now() - interval '40 days'")
		return func() {
			s.shown("               2 | ", "failed events about to expire: 2,")
			s.shown(s.values["event-id"])
		}
	}},
	"The outbox grows": {prepare: func(s *scene) func() {
		s.pending(5, 1)
		s.exec("update core.outbox set status = 'delivered', occurred_at = now() - interval '50 days', created_at = " +
			"now() - interval '50 days', delivered_at = now() - interval '50 days'")
		return func() { s.want("select count(*) from core.outbox where deleted_at is not null", "5") }
	}},
	"The retention policies contradict each other": {prepare: func(s *scene) func() {
		s.exec("alter table core.retention_policies disable trigger all; update core.retention_policies set " +
			"active_ttl_days = 20 where subject = 'event_handled'; alter table core.retention_policies enable trigger all")
		return func() {
			if strings.Contains(s.output, "critical  retention") { // the command shows the statement
				s.shown("begin; insert into core.retention_policies")
				return
			}
			s.shown("event_handled is kept for 20 days")
			s.want("select active_ttl_days || ' ' || (core.retention_policies_check() is null) from core.retention_policies "+
				"where subject = 'event_handled'", "60 true")
		}
	}},
	"The database is read-only": {prepare: func(s *scene) func() {
		s.values["database"] = s.value("select current_database()")
		s.exec("alter database " + s.values["database"] + " set default_transaction_read_only = on")
		return func() {
			if strings.Contains(s.output, "critical  settings") { // the command shows the statement
				s.shown("begin read write; alter database " + s.values["database"])
				return
			}
			if _, err := pgtest.Conn(s.T, s.at).Exec(s.ctx, "create table public.written ()"); err != nil {
				s.Error(err)
			}
		}
	}},
	// the tests' server prepares none: tests/doctor has its own
	"A transaction is prepared and not committed": {prepare: func(s *scene) func() {
		return func() { s.shown("(0 rows)", "fine      transactions") }
	}},
	"The clocks differ": {prepare: func(s *scene) func() {
		return func() { s.shown("clock_timestamp", "this host's, plus or minus") }
	}},
	"This version of Postgres has a fault": {prepare: func(s *scene) func() {
		return func() { s.shown("pg_notification_queue_usage", "PostgreSQL") }
	}},
	"Notifications do not arrive": {prepare: func(s *scene) func() {
		return func() {
			s.shown(`Asynchronous notification "spectral_try" with payload "arrived" received`,
				"a notification to itself arrived")
		}
	}},
	"Workers do not start, or get no connection": {prepare: func(s *scene) func() {
		login := s.login()
		s.exec("alter role " + login.name + " connection limit 7")
		for range 5 {
			pgtest.Conn(s.T, login.url)
		}
		return func() { s.shown(login.name+" |                  |     5", "in use") }
	}},
	"The notification queue fills": {prepare: func(s *scene) func() {
		login := s.login()
		conn := pgtest.Conn(s.T, login.url)
		if _, err := conn.Exec(s.ctx, "listen outbox_gen_1; begin; select 1"); err != nil {
			s.Fatal(err)
		}
		return func() { s.shown("pg_notification_queue_usage", "% full") }
	}},
	"Claims get slower": {own: true, prepare: func(s *scene) func() {
		login := s.login()
		conn := pgtest.Conn(s.T, login.url)
		if _, err := conn.Exec(s.ctx, "begin isolation level repeatable read; select 1"); err != nil {
			s.Fatal(err)
		}
		s.pending(10, 1)
		s.await("select n_live_tup from pg_stat_user_tables where relid = 'core.outbox'::regclass",
			"10") // a session tells of what it did a little later
		return func() {
			if strings.Contains(s.output, "n_dead_tup") {
				s.shown(login.name)
				s.shown("|         10 |") // live rows of the outbox
				return
			}
			s.shown("the oldest is")
		}
	}},
	"The queue, locks or dead rows cost an incident": {own: true, prepare: func(s *scene) func() {
		s.exec("alter table core.outbox set (autovacuum_enabled = off)")
		s.exec("begin")
		s.pending(10_001, 1)
		s.exec("rollback")
		s.exec("select pg_stat_force_next_flush()")
		return func() {
			if strings.Contains(s.output, "last_autovacuum") {
				s.shown("| 10001 |")
				return
			}
			s.shown("trigger bloat: core.outbox has 10001 dead rows now")
			s.shown("workers relay switch")
		}
	}},
	"Is it time for partitions, or for another relay?": {prepare: func(s *scene) func() {
		s.exec("insert into core.delivery_latencies values (date_trunc('hour', now()), 750, 4321, now()); update " +
			"pg_catalog.pg_class set reltuples = 1234567 where oid = 'core.outbox'::regclass")
		return func() {
			s.shown("1234567")
			s.shown("750")
		}
	}},
	"An index is invalid or missing": {one: true, prepare: func(s *scene) func() {
		s.exec("update pg_catalog.pg_index set indisvalid = false where indexrelid = 'core.outbox_crashed'::regclass")
		return func() {
			s.want("select indisvalid from pg_index where indexrelid = 'core.outbox_crashed'::regclass", "t")
		}
	}},
	"The schema or the privileges were altered": {one: true, prepare: func(s *scene) func() {
		s.exec("alter table core.outbox disable trigger outbox_notify; revoke execute on function " +
			"core.outbox_barrier(text) from spectral_worker")
		return func() {
			s.want("select tgenabled::text || has_function_privilege('spectral_worker', 'core.outbox_barrier(text)', "+
				"'execute') from pg_trigger where tgname = 'outbox_notify'", "Otrue")
		}
	}},
}
