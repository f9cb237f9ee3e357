package doctor_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"spectral/internal/app/cli"
	"spectral/internal/app/doctor"
	"spectral/tests/faults/proxy"
	"spectral/tests/pgtest"
)

func TestMain(m *testing.M) { os.Exit(pgtest.Run(m)) }

// testTimeout is how long a test may take on a loaded machine.
const testTimeout = 8 * time.Minute

// fixture is a database of the test's own.
type fixture struct {
	*testing.T
	ctx   context.Context
	url   string // as an operator who sees what others do
	admin *pgx.Conn
	// name of the database
	name string
}

func setup(t *testing.T) *fixture {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), testTimeout)
	t.Cleanup(cancel)
	at := pgtest.New(t)
	admin := pgtest.Conn(t, at)
	return &fixture{T: t, ctx: ctx, url: pgtest.Login(t, at, "spectral_operator", "pg_read_all_stats"), admin: admin,
		name: admin.Config().Database}
}

func (p *fixture) exec(sql string, arguments ...any) {
	p.Helper()
	if _, err := p.admin.Exec(p.ctx, sql, arguments...); err != nil {
		p.Fatalf("%s: %v", sql, err)
	}
}

// quoted matches a command or SQL between backticks.
var quoted = regexp.MustCompile("`([^`]+)`")

// paste runs the SQL of fixes in psql, unchanged.
func (p *fixture) paste(fixes ...string) {
	p.Helper()
	var statements strings.Builder
	for _, fix := range fixes {
		for _, part := range quoted.FindAllStringSubmatch(fix, -1) {
			if !strings.HasPrefix(part[1], "workers ") && !strings.HasPrefix(part[1], "SPECTRAL_") {
				statements.WriteString(part[1] + "\n")
			}
			if strings.Contains(part[1], "alter database") {
				statements.WriteString("\\connect\n") // it holds from the next session on
			}
		}
	}
	cmd := exec.CommandContext(p.ctx, "psql", "--no-psqlrc", "--quiet", "--set=ON_ERROR_STOP=1",
		"--dbname="+p.admin.Config().ConnString())
	cmd.Stdin = strings.NewReader(statements.String())
	if out, err := cmd.CombinedOutput(); err != nil {
		p.Fatalf("the fixes %s: %v: %s", statements.String(), err, out)
	}
}

// inTime fails the test once its time is over.
func (p *fixture) inTime() {
	p.Helper()
	if err := p.ctx.Err(); err != nil {
		p.Fatal(err)
	}
}

// until waits until a condition is true.
func (p *fixture) until(condition string, arguments ...any) {
	p.Helper()
	for reached := false; !reached; p.inTime() {
		if err := p.admin.QueryRow(p.ctx, "select "+condition, arguments...).Scan(&reached); err != nil {
			p.Fatal(err)
		}
	}
}

// start executes SQL in another session, and does not wait for its end.
func (p *fixture) start(sql string) (session *pgx.Conn, over chan error) {
	p.Helper()
	session, over = pgtest.Conn(p.T, p.admin.Config().ConnString()), make(chan error, 1)
	go func() {
		_, err := session.Exec(p.ctx, sql)
		over <- err
	}()
	return session, over
}

// pass returns the report of a pass. Its URL and clock are those of the test, unless they are given.
func (p *fixture) pass(config doctor.Config) doctor.Report {
	p.Helper()
	config.URL = p.url
	if config.Now == nil {
		config.Now = time.Now
	}
	report, err := doctor.Examine(p.ctx, config)
	if err != nil {
		p.Fatal(err)
	}
	return report
}

// examine returns the result of one check.
func (p *fixture) examine(check string, config doctor.Config) doctor.Result {
	p.Helper()
	config.Checks = []string{check}
	return p.pass(config).Results[0]
}

// insert returns SQL that inserts a pending event, due for 10 minutes.
func insert(eventType string, generation int, channel string) string {
	return fmt.Sprintf(`insert into core.outbox (event_type, event_version, source, content_class, channel, generation,
		payload, idempotency_key, available_at) values ('%s', 1, 'worlds', 'operational', '%s', %d, '{}',
		gen_random_uuid()::text, clock_timestamp() - interval '10 minutes')`, eventType, channel, generation)
}

// dead returns SQL that leaves n dead rows in the outbox, of events that occurred at a time.
func dead(n int, at string) string {
	return fmt.Sprintf(`begin; insert into core.outbox (occurred_at, event_type, event_version, source, content_class,
		channel, generation, payload, idempotency_key) select %s, 'a.dead', 1, 'worlds', 'operational', 'outbox_gen_1', 1,
		'{}', i from generate_series(1, %d) i; rollback; select pg_stat_force_next_flush()`, at, n)
}

// relayStep is the fix of the triggers of the second step.
const relayStep = "step 2, the relay: `workers run --relay jetstream` on the workers, then `workers relay compare` " +
	"and `workers relay switch`"

const cards = "worlds.world_model_card.published"

// claimed is SQL that makes events in flight; the time of the claim follows it.
const claimed = "; update core.outbox set status = 'in_flight', claim_token = gen_random_uuid(), claimed_by = 'w', " +
	"claimed_at = "

// damage is a change that SQL makes to a database or its events, and the finding that doctor must have.
type damage struct {
	check        string
	state        doctor.State
	damage       string // statements in simple protocol
	problem, fix string // parts of them
	pasted       bool   // the fix is SQL: after it the damage must not be found
}

// workers returns SQL that registers workers, which live as long as the session. They run both processing classes.
func workers(generations string) string {
	return `select core.worker_register(gen_random_uuid(), g, 'w', '{"` + cards +
		`": ["a.b"], "agent.task.dispatched": ["a.b"], "worlds.scan.completed": ["a.b"]}') from unnest(array[` +
		generations + `]) g`
}

// rounds are damages that are made in one database at once.
var rounds = []struct {
	name     string
	config   doctor.Config
	sessions []string // what other sessions do and keep open
	damages  []damage
}{{name: "no damage", sessions: []string{workers("1")}}, {
	name: "before the first worker", damages: []damage{{"generations", doctor.Note, "delete from core.deployments",
		"no generation is registered yet, as is normal", "`SPECTRAL_GENERATION=1 workers run` registers it", false}},
}, {
	name:   "schema and server",
	config: doctor.Config{Now: func() time.Time { return time.Now().Add(time.Hour + time.Minute/2) }},
	damages: []damage{
		{check: "vacuum", state: doctor.Warning, damage: "alter table core.outbox set (autovacuum_enabled = off)",
			problem: "autovacuum is off for core.outbox", fix: "alter table core.outbox reset (autovacuum_enabled);",
			pasted: true},
		{check: "scale", state: doctor.Warning, damage: dead(10001, "now()"),
			problem: "trigger bloat: core.outbox has 10001 dead rows now, and 0 live ones", fix: relayStep},
		{check: "indexes", state: doctor.Critical,
			damage:  "update pg_catalog.pg_index set indisvalid = false where indexrelid = 'core.outbox_crashed'::regclass",
			problem: "index core.outbox_crashed is invalid", fix: "reindex index concurrently core.outbox_crashed",
			pasted: true},
		{check: "indexes", state: doctor.Critical,
			damage: "create index mine on core.paused_types (event_type); update pg_catalog.pg_index set indisvalid = false " +
				"where indexrelid = 'core.mine'::regclass", problem: "index core.mine is invalid",
			fix: "drop index concurrently core.mine;", pasted: true},
		{check: "tables", state: doctor.Note,
			damage: "create function public.look() returns event_trigger language plpgsql as 'begin end'; create event " +
				"trigger looks on ddl_command_start when tag in ('CREATE INDEX') execute function public.look()",
			problem: "event trigger looks of postgres runs public.look at ddl_command_start of CREATE INDEX",
			fix:     "alter event trigger looks disable;", pasted: true},
		{check: "tables", state: doctor.Critical,
			damage:  "create rule vanish as on insert to core.outbox do instead nothing",
			problem: "rule vanish on core.outbox rewrites statements", fix: "drop rule vanish on core.outbox", pasted: true},
		{check: "tables", state: doctor.Critical, damage: "alter table core.event_handled set unlogged",
			problem: "core.event_handled is unlogged", fix: "alter table core.event_handled set logged;", pasted: true},
		{check: "tables", state: doctor.Critical,
			damage: "create table public.mine (id uuid, at timestamptz, constraint to_outbox foreign key (id, at) " +
				"references core.outbox)", problem: "foreign key to_outbox of public.mine refers to core.outbox",
			fix: "alter table public.mine drop constraint to_outbox;", pasted: true},
		{check: "tables", state: doctor.Critical, damage: "alter table platform.agent_tasks disable trigger all",
			problem: "foreign keys of platform.agent_tasks are not enforced, because their triggers are disabled: ",
			fix:     "as a superuser, run `alter table platform.agent_tasks enable trigger all;`", pasted: true},
		{check: "tables", state: doctor.Critical, damage: "delete from core.publisher_sources where source = 'worlds'",
			problem: "spectral_worlds may not publish as worlds",
			fix:     "insert into core.publisher_sources (role_name, source) values ('spectral_worlds', 'worlds');",
			pasted:  true},
		{check: "tables", state: doctor.Warning,
			damage:  "insert into core.publisher_sources values ('spectral_platform', 'worlds')",
			problem: "spectral_platform may publish as worlds, which this build does not give it",
			fix:     "delete from core.publisher_sources where role_name = 'spectral_platform' and source = 'worlds';",
			pasted:  true},
		{check: "tables", state: doctor.Critical,
			damage: "create publication everything for table core.outbox, platform.decisions; alter table " +
				"platform.decisions replica identity full; alter table core.outbox replica identity nothing",
			problem: "core.outbox is published (everything) but has no replica identity",
			fix:     "alter table core.outbox replica identity default;", pasted: true},
		{check: "tables", state: doctor.Critical,
			damage:  "update core.event_types set consumed = false, consumed_in = '{}' where event_type = '" + cards + "'",
			problem: cards + " is registered as not consumed, although this build handles the type",
			fix:     "update core.event_types set consumed = true where event_type = '" + cards + "';", pasted: true},
		{check: "logins", state: doctor.Warning, damage: "grant delete on core.outbox to %login",
			problem: "role %login has delete on core.outbox by itself",
			fix:     "revoke delete on table core.outbox from %login cascade;", pasted: true},
		{check: "logins", state: doctor.Warning,
			damage:  "create role %login_chain; grant spectral_owner to %login_chain; grant %login_chain to %login",
			problem: "login %login is a member of spectral_owner, through %login_chain",
			fix:     "revoke spectral_owner from %login_chain", pasted: true},
		{check: "migrations", state: doctor.Warning,
			damage:  "delete from spectral_goose.goose_db_version where version_id = 6",
			problem: "migration 6 is not recorded as applied, but later ones are: `workers migrate up` is refused",
			fix:     "insert into spectral_goose.goose_db_version (version_id, is_applied) values (6, true);", pasted: true},
		{check: "migrations", state: doctor.Warning,
			damage: "alter database %database owner to spectral_platform; alter table spectral_goose.goose_db_version owner " +
				"to spectral_worlds",
			problem: "spectral_goose.goose_db_version, the record of migrations, belongs to spectral_worlds, but the " +
				"database to spectral_platform",
			fix: "as a superuser, run `alter table spectral_goose.goose_db_version owner to spectral_platform;", pasted: true},
		{check: "retention", state: doctor.Critical,
			damage: "alter table core.retention_policies disable trigger all; update core.retention_policies set " +
				"active_ttl_days = 20 where subject = 'event_handled'; alter table core.retention_policies enable trigger all",
			problem: "contradict each other", fix: "update core.retention_policies h", pasted: true},
		{check: "vacuum", state: doctor.Warning,
			damage: `alter table core.event_handled set (autovacuum_vacuum_threshold = 2147483647); insert into ` +
				`core.event_handled (handler_name, idempotency_key, event_id, event_type, content_class) select 'a.b', i, ` +
				`gen_random_uuid(), 'a.b', 'workspace' from generate_series(1, 10001) i; delete from core.event_handled; alter ` +
				`table core.event_handled set (autovacuum_vacuum_threshold = 50); select pg_stat_force_next_flush()`,
			problem: "core.event_handled has 10001 dead rows", fix: "vacuum (analyze) core.event_handled;"},
		{check: "scale", state: doctor.Warning,
			damage:  "update pg_catalog.pg_class set reltuples = 6000000 where oid = 'core.outbox'::regclass",
			problem: "trigger rows: core.outbox has about 6000000, more than 5000000",
			fix:     "step 1, partitions: `workers outbox partition --dry-run`"},
		{check: "scale", state: doctor.Warning,
			damage: "insert into core.delivery_latencies select date_trunc('hour', now()) - i * interval '1 hour', 750, " +
				"200, now() from generate_series(1, 167) i",
			problem: "trigger latency: for a week 1 % of events took longer than 500ms", fix: relayStep},
		{check: "queue", state: doctor.Warning, damage: "create or replace function pg_catalog." +
			"pg_notification_queue_usage() returns double precision language sql as 'select 0.3::double precision'",
			problem: "the notification queue is 30.0 % full", fix: "workers doctor transactions"},
		{check: "scale", state: doctor.Warning, problem: "trigger notification queue: it is 30.0 % full now",
			fix: relayStep},
		{check: "partitions", state: doctor.Critical,
			damage:  "alter table core.outbox add constraint outbox_before check (occurred_at < '2099-01-01') not valid",
			problem: "a change of core.outbox to partitions did not end", fix: "workers outbox partition"},
		{check: "partitions", state: doctor.Warning, damage: "create table core.outbox_partitioned ()",
			problem: "events of its partitions are not moved yet", fix: "workers outbox partition --undo"},
		{check: "clock", state: doctor.Warning, problem: "the database's clock is 1h0m", fix: "NTP"},
		{check: "connections", state: doctor.Warning, damage: "alter database %database connection limit 30",
			problem: "left, and a worker of this build takes up to", fix: "SPECTRAL_POOL_URL"},
	}}, {
	name:   "events and workers",
	config: doctor.Config{IdleAfter: time.Nanosecond, SnapshotAfter: time.Nanosecond},
	sessions: []string{workers("1, 11, 12, 13"), "begin isolation level repeatable read; select 1",
		"select pg_advisory_lock(5583017264419803127)"},
	damages: []damage{
		{"tables", doctor.Critical, `update core.event_types set consumed_in = '{"1": false}' where event_type = '` +
			cards + "'",
			cards + " is registered as not consumed in generation 1, although live workers of it handle the type",
			"as spectral_owner, run `update core.event_types", true},
		{"relay", doctor.Critical, insert("a.b", 1, "outbox_gen_1") + "; " + insert(cards, 1, "outbox_gen_1") +
			"; update core.outbox set status = 'relayed', relayed_at = now() - interval '10 minutes' where generation = 1",
			"1 event of type a.b in generation 1 sent to the broker, the first 10m", "`workers relay back`", false},
		{"relay", doctor.Warning, "", "1 event of type " + cards + " in generation 1 sent to the broker, the first 10m",
			"`workers relay back`", false},
		{"relay", doctor.Note, "update core.relay set path = 'both', switched_at = now() - interval '2 hours'",
			"a comparison did not end", "`workers relay switch`", false},
		{"generations", doctor.Warning, "select core.generation_announce(44)",
			"goes to generation 44, which has no live worker", "workers generation drain 44", false},
		{"generations", doctor.Critical, "", "generation 13 has 1 live worker but is not registered",
			"workers generation register 13", false},
		{"generations", doctor.Critical, insert(cards, 8, "outbox_gen_8") + "; insert into core.deployments (generation, " +
			"status, retired_at) values (8, 'retired', now())", "generation 8 is retired and has 1 event left",
			"`workers generation adopt 8 44` moves them",
			false},
		{"generations", doctor.Critical, insert(cards, 77, "outbox_gen_77"),
			"generation 77 has 1 event, but no worker of it has ever registered", "`workers generation drain 77`, and then " +
				"`SPECTRAL_GENERATION=77 workers run --drain`, with the build of that generation, runs them; or `workers " +
				"generation adopt 77 44`", false},
		{"generations", doctor.Warning, "insert into core.deployments (generation, status, draining_at, closed_at) values " +
			"(9, 'draining', now(), now() - interval '1 hour')", "generation 9 has been closing for 1h0m",
			"workers generation retire 9",
			false},
		{"generations", doctor.Warning, "insert into core.deployments (generation, status, draining_at) values (10, " +
			"'draining', now() - interval '3 days')", "generation 10 has been draining for 3 days and has nothing left to do",
			"workers generation retire 10", false},
		{"generations", doctor.Note, "insert into core.deployments (generation, status, draining_at) values (11, " +
			"'draining', now())",
			"generation 11 is draining, has nothing left to do, and still has 1 live worker", "workers generation retire 11",
			false},
		{"generations", doctor.Warning, "insert into core.deployments (generation, status, retired_at) values (12, " +
			"'retired', now())",
			"generation 12 is retired and still has 1 live worker", "stop them", false},
		{"unhandled", doctor.Critical, insert(cards, 44, "outbox_gen_44"),
			"1 event due of type " + cards + " in generation 44 (live), the oldest for 10m", "`SPECTRAL_GENERATION=44 workers " +
				"run`, with the build of that generation, runs them; or `workers generation adopt 44 1`", false},
		{"unhandled", doctor.Critical, "", "generation 77 (unknown)", "`workers generation drain 77`, and then " +
			"`SPECTRAL_GENERATION=77 workers run --drain`, with the build of that generation, runs them; or", false},
		{"unhandled", doctor.Warning, "update core.workers set handlers = handlers - 'agent.task.dispatched' where " +
			"generation = 1",
			"no live worker of generation 1 runs processing class agents: events of type agent.task.dispatched will wait",
			"SPECTRAL_GENERATION=1 workers run --classes agents", false},
		{"unhandled", doctor.Critical, insert("worlds.other.happened", 1, "outbox_gen_1"),
			"none of its 1 live worker handles that type; no build has registered that type",
			"give the events up: as spectral_owner, run `update " +
				"core.outbox set status = 'failed', claimed_at = now(), last_error = 'UnknownEventType: no build knows it' " +
				"where event_type = 'worlds.other.happened' and generation = 1 and status = 'pending' and deleted_at is " +
				"null;`, then `workers events discard --type worlds.other.happened --generation 1 --error UnknownEventType", false},
		{"unhandled", doctor.Critical, insert("decision.recorded", 1, "outbox_gen_1"),
			"decision.recorded in generation 1 (live), the oldest for 10m", "--classes", false},
		{"channels", doctor.Warning, insert(cards, 1, "outbox_default"),
			"published on channel outbox_default, but workers listen on outbox_gen_1", "without p_class", false},
		{"listeners", doctor.Warning, "update core.outbox set last_error = E'ServerError: a.b: full\nE: c.d: x' " +
			"where status = 'pending'", "a worker hangs; its last error is ServerError: a.b: full", "restart", false},
		{"listeners", doctor.Warning, "insert into core.workers (worker_id, session_id, generation, name, handlers, " +
			"gone_at, stopping) select gen_random_uuid(), gen_random_uuid(), 1, 'gone', '{}', now() - interval '10 minutes', " +
			"stopping from (values (false), (true)) v(stopping)",
			"1 worker died more than 5 minutes ago", "run a worker", false},
		{"leases", doctor.Critical, insert("a.lapsed", 1, "outbox_gen_1") + claimed + "now() - interval '10 minutes' " +
			"where event_type = 'a.lapsed'",
			"1 event in flight past the end of the lease, the longest by 5m", "outbox_reap", false},
		{"leases", doctor.Critical, "", " of postgres (unnamed) keeps the advisory lock of reaping",
			"as postgres, a member of pg_signal_backend or a superuser, run `select pg_terminate_backend(", true},
		{"leases", doctor.Warning, insert("a.ahead", 1, "outbox_gen_1") + claimed + "now() + interval '10 days' where " +
			"event_type = 'a.ahead'",
			"1 event in flight with a claim in the future", "update core.outbox set claimed_at", true},
		{"leases", doctor.Warning, insert("a.stamped", 1, "outbox_gen_1") + "; update core.outbox set created_at = now() + " +
			"interval '3 days', available_at = now() + interval '3 days 2 hours', id = '" + stampedID + "' where event_type = " +
			"'a.stamped'", "1 pending event of type a.stamped (first: " + stampedID + ") created up to 2 days after the " +
			"database's present time", "update core.outbox set created_at", true},
		{"paused", doctor.Warning, "select core.event_type_pause('decision.recorded', 44, 'ana', 'a moment'); update " +
			"core.paused_types set paused_at = now() - interval '3 days'",
			"paused for 3 days: decision.recorded in generation 44 by ana: a moment",
			"workers events resume decision.recorded --generation 44", false},
		{"failures", doctor.Warning, insert("a.failed", 1, "outbox_gen_1") + "; update core.outbox set status = " +
			"'failed', claimed_at = now(), last_error = 'IntegrityError: a.b: no' where event_type = 'a.failed'",
			"1 event failed in the last hour; the most common failure is a.failed, IntegrityError",
			"workers events stats", false},
		{"breakers", doctor.Warning, "select core.breaker_open(44, 'platform.mailer', 'a.b', 'E: no mail', 'w')",
			", opened by w, and 0 events wait for it: E: no mail", "workers handlers list", false},
		{"operations", doctor.Note, "insert into core.operations (name, created_by, filter, plan, as_of, rate, batch, " +
			"max_failed, state, state_by, why, total) values ('discard', 'ana', '{}', '', now(), 1, 1, 1, 'paused', 'x', " +
			"'too many', 7)", "discard of 7 events by ana is paused: too many", "workers operations show", false},
		// of these three events the last has the payload of the first, which was handled
		{"failures", doctor.Warning, strings.Repeat(insert("a.reused", 1, "outbox_gen_1")+"; ", 3) + "with numbered as " +
			"(select id, row_number() over (order by id) as n from core.outbox where event_type = 'a.reused') update " +
			"core.outbox o set status = 'delivered', idempotency_key = 'k', payload = jsonb_build_object('n', n % 2) from " +
			"numbered r where r.id = o.id; insert into core.event_handled select h, 'k', (array_agg(id order by " +
			"id))[i], t, null, 'operational' from core.outbox, (values ('worlds.reused', 'a.reused', 1), ('worlds.other', " +
			"'a.other', 2)) v(h, t, i) where event_type = 'a.reused' group by h, t, i",
			"1 event of type a.reused had nothing to do in the last day", "`workers events show ", false},
		{"retention", doctor.Warning, insert("a.expires", 1, "outbox_gen_1") + "; update core.outbox set status = " +
			"'failed', claimed_at = now() - interval '25 days', occurred_at = now() - interval '25 days' where event_type = " +
			"'a.expires'; update core.retention_policies set active_ttl_days = 30 where subject = 'outbox_row'",
			"1 failed event will be deleted unread within 7 days", "`workers events list --older-than 23d` shows them", false},
		{"retention", doctor.Warning, insert("a.hidden", 1, "outbox_gen_1") + "; update core.outbox set deleted_at = " +
			"now() where event_type = 'a.hidden'", "1 event pending or in flight, but marked as deleted",
			"update core.outbox set deleted_at = null where deleted_at is not null and status in ('pending', " +
				"'in_flight');", true},
		{"retention", doctor.Warning, "update core.workers set registered_at = now() - interval '25 hours'",
			"no worker has swept", "workers retention sweep", false},
		{"transactions", doctor.Warning, "", "idle in a transaction for", "pg_terminate_backend", false},
		{"snapshots", doctor.Warning, "", "has held a snapshot", "pg_terminate_backend", false},
	}}, {
	name: "settings",
	damages: []damage{
		{"settings", doctor.Critical, "alter database %database set default_transaction_read_only = on",
			"default_transaction_read_only is on",
			"begin read write; alter database %database reset default_transaction_read_only; commit;", true},
		{"settings", doctor.Warning, "grant spectral_owner to %login; alter role %login set role = spectral_owner",
			"role is spectral_owner from the first statement", "set role none; alter role %login reset role;", true},
		{"tables", doctor.Critical, "delete from core.event_types", "no event type is registered",
			"workers migrate up", false},
		{"generations", doctor.Warning, "update core.deployments set status = 'draining', draining_at = now()",
			"no generation is live", "`workers generation register 1`", false},
	}}}

const stampedID = "01890000-0000-7000-8000-000000000001"

// Doctor finds each damage and nothing else. After a fix that is SQL it does not find the damage any more.
func TestDamageIsFound(t *testing.T) {
	t.Parallel()
	for _, round := range rounds { // one after the other: logins are the server's
		t.Run(round.name, func(t *testing.T) {
			p := setup(t)
			login, err := pgx.ParseConfig(p.url)
			if err != nil {
				t.Fatal(err)
			}
			in := strings.NewReplacer("%database", p.name, "%login", login.User)
			for _, sql := range round.sessions {
				if _, err := pgtest.Conn(t, p.admin.Config().ConnString()).Exec(p.ctx, sql); err != nil {
					t.Fatal(err)
				}
			}
			for _, d := range round.damages {
				p.exec(in.Replace(d.damage))
				if !slices.Contains(round.config.Checks, d.check) {
					round.config.Checks = append(round.config.Checks, d.check)
				}
			}
			findings, fixes := p.all(round.config), []string{}
			for _, f := range findings {
				commandsExist(t, f.Problem+f.Fix)
			}
			for _, d := range round.damages {
				problem, fix := in.Replace(d.problem), in.Replace(d.fix)
				i := slices.IndexFunc(findings, func(f doctor.Finding) bool {
					return strings.Contains(f.Problem, problem) && strings.Contains(f.Fix, fix) && f.State == d.state
				})
				if i < 0 {
					t.Errorf("%s: not found: %s: %s; fix: %s", d.check, d.state, problem, fix)
					continue
				}
				if d.pasted {
					fixes = append(fixes, findings[i].Fix)
				}
				findings = slices.Delete(findings, i, i+1)
			}
			for _, f := range findings {
				if !slices.ContainsFunc(elsewhere, func(part string) bool { return strings.Contains(f.Problem, part) }) {
					t.Errorf("besides, it says %+v", f)
				}
			}
			p.paste(fixes...)
			var early bool // what a producer has scheduled
			if err := p.admin.QueryRow(p.ctx, "select exists (select from core.outbox where event_type = 'a.stamped' and "+
				"available_at < now() + interval '1 hour')").Scan(&early); err != nil || early {
				t.Errorf("a fix makes a scheduled event due: %t, %v", early, err)
			}
			findings = p.all(round.config)
			for _, d := range round.damages {
				problem := in.Replace(d.problem)
				if d.pasted && slices.ContainsFunc(findings, func(f doctor.Finding) bool {
					return strings.Contains(f.Problem, problem)
				}) {
					t.Errorf("after its fix it is still found: %s", problem)
				}
			}
			p.exec(in.Replace("drop role if exists %login_chain"))
		})
	}
}

// commandsExist fails the test unless the command line accepts each command in a text; without a database they then
// end.
func commandsExist(t *testing.T, text string) {
	t.Helper()
	for _, part := range quoted.FindAllStringSubmatch(text, -1) {
		setting, command, isCommand := strings.Cut(part[1], "workers ")
		if !isCommand || setting != "" && !strings.HasPrefix(setting, "SPECTRAL_") {
			continue
		}
		var stderr bytes.Buffer
		cli.Main(context.Background(), cli.Process{Stdin: strings.NewReader(""), Stdout: io.Discard, Stderr: &stderr,
			Getenv: func(name string) string {
				value, _ := strings.CutPrefix(strings.TrimSpace(setting), name+"=")
				return map[bool]string{true: value}[name == "SPECTRAL_GENERATION"]
			}}, strings.Fields(command))
		if !strings.Contains(stderr.String(), "DATABASE_URL is not set") {
			t.Errorf("it suggests %s, which says: %s", part[0], stderr.String())
		}
	}
}

// elsewhere are findings about the tests' server, which is not durable, and about the sessions of other tests.
var elsewhere = []string{"fsync is off", "full_page_writes is off", "synchronous_commit is off", "has held a snapshot",
	"idle in a transaction"}

// all returns the findings of a pass.
func (p *fixture) all(config doctor.Config) (findings []doctor.Finding) {
	p.Helper()
	for _, result := range p.pass(config).Results {
		findings = append(findings, result.Findings...)
	}
	return findings
}

// Partitions are no damage.
func TestPartitionsAreFine(t *testing.T) {
	t.Parallel()
	p := setup(t)
	if err := pgtest.Partition(p.ctx, p.admin.Config().ConnString()); err != nil {
		t.Fatal(err)
	}
	for _, r := range p.pass(doctor.Config{Checks: []string{
		"schema", "tables", "indexes", "privileges", "unhandled", "retention", "vacuum", "scale", "partitions",
	}}).Results {
		if r.State != doctor.Fine {
			t.Errorf("%+v", r)
		}
	}
	for year := range 2 {
		for month := 1; month <= 12; month++ {
			p.exec(fmt.Sprintf("set role spectral_owner; select core.outbox_partition_table('outbox_%d_%02d'); alter table "+
				"core.outbox attach partition core.outbox_%[1]d_%02[2]d for values from ('%[1]d-%02[2]d-02') to "+
				"('%[1]d-%02[2]d-03'); reset role", 2040+year, month))
		}
	}
	if r := p.examine("partitions", doctor.Config{}); !strings.Contains(r.Findings[0].Problem, "each claim locks all") {
		t.Errorf("many months: %+v", r)
	}
	for _, at := range []string{"now()", "'2040-01-02'", "'2040-02-02'"} {
		p.exec(dead(4000, at)) // too few in each partition for autovacuum
	}
	p.exec("update pg_catalog.pg_class set reltuples = 21000000 where oid = 'core.outbox_rest'::regclass")
	r := p.examine("scale", doctor.Config{})
	for i, problem := range []string{
		"trigger bloat: core.outbox has 12000 dead", "trigger rows: core.outbox has about 21000000, more than 20000000",
	} {
		if len(r.Findings) != 2 || !strings.Contains(r.Findings[i].Problem, problem) ||
			!strings.Contains(r.Findings[i].Fix, relayStep) {
			t.Errorf("with partitions: %+v; want %s", r, problem)
		}
	}
}

// A session that waits for the outbox is a trigger, seen without pg_read_all_stats; one that waits elsewhere, in a
// transaction that has read the outbox, is none.
func TestSessionsThatWaitForTheOutboxAreATrigger(t *testing.T) {
	t.Parallel()
	p := setup(t)
	p.url = pgtest.Login(t, p.admin.Config().ConnString(), "spectral_operator")
	if err := pgtest.Partition(p.ctx, p.admin.Config().ConnString()); err != nil {
		t.Fatal(err)
	}
	p.exec(insert(cards, 1, "outbox_gen_1"))
	p.exec("create table public.rows as select 1 as id; insert into core.event_handled (handler_name, idempotency_key, " +
		"event_id, event_type, content_class) values ('a.b', 'k', gen_random_uuid(), 'a.b', 'workspace')")
	const deliver, retry = "update core.event_handled set event_type = 'a.c'", "update core.outbox set attempts = 1"
	for _, c := range []struct {
		holds, waits string
		want         []string // parts of the problems
	}{
		{"lock table core.outbox in exclusive mode", "select from core.outbox for update", []string{"trigger lock waits"}},
		{"lock table core.outbox", "select from core.outbox", []string{"trigger lock waits", "lock timeout"}},
		{deliver, deliver, []string{"trigger lock waits"}},
		{retry, retry, []string{"trigger lock waits"}},
		{"update public.rows set id = 2", "begin; select from core.outbox for update; update public.rows set id = 3", nil},
	} {
		holder, _ := p.start("begin; " + c.holds)
		p.until("exists (select from pg_stat_activity a where a.pid = $1 and a.state = 'idle in transaction')",
			holder.PgConn().PID())
		waiter, over := p.start(c.waits)
		p.until("exists (select from pg_locks l where l.pid = $1 and not l.granted and l.waitstart is not null)",
			waiter.PgConn().PID())
		r := p.examine("scale", doctor.Config{IdleAfter: time.Nanosecond})
		if len(r.Findings) != len(c.want) {
			t.Fatalf("beside %s it says %+v", c.holds, r)
		}
		for i, problem := range c.want {
			if !strings.Contains(r.Findings[i].Problem, problem) || i == 0 && !strings.Contains(r.Findings[i].Fix, relayStep) {
				t.Errorf("beside %s it says %+v; want %s", c.holds, r, problem)
			}
		}
		if r := p.examine("scale", doctor.Config{IdleAfter: testTimeout}); len(r.Findings) != max(0, len(c.want)-1) {
			t.Errorf("of a short wait beside %s it says %+v", c.holds, r)
		}
		if err := holder.Close(p.ctx); err != nil {
			t.Fatal(err)
		}
		if err := <-over; err != nil {
			t.Errorf("who waited: %v", err)
		}
	}
}

// A check whose facts are hidden or locked is unknown, never fine, and the checks after it are made.
func TestHiddenOrLockedFactsAreUnknown(t *testing.T) {
	t.Parallel()
	p := setup(t)
	unknown := func(check, problem, fix string) {
		t.Helper()
		if r := p.examine(check, doctor.Config{}); r.State != doctor.Unknown ||
			!strings.Contains(r.Findings[0].Problem, problem) || !strings.Contains(r.Findings[0].Fix, fix) {
			t.Errorf("%s says %+v; want %s; fix: %s", check, r, problem, fix)
		}
	}
	other := pgtest.Conn(t, p.admin.Config().ConnString())
	if _, err := other.Exec(p.ctx, "set track_activities = off; begin; lock table core.workers"); err != nil {
		t.Fatal(err)
	}
	unknown("transactions", "the state of 1 session is not known: track_activities is off", "")
	p.exec(insert(cards, 1, "outbox_gen_1"))
	results := p.pass(doctor.Config{Checks: []string{"unhandled", "scale"}}).Results
	if len(results) != 2 || results[0].State != doctor.Unknown || !strings.Contains(results[0].Findings[0].Fix, "lock") ||
		results[1].State != doctor.Fine {
		t.Errorf("beside a lock: %+v", results)
	}
	if _, err := other.Exec(p.ctx, "rollback"); err != nil {
		t.Fatal(err)
	}
	p.exec("revoke select on core.outbox from spectral_operator, spectral_viewer")
	unknown("unhandled", "permission denied", "")
	p.exec("revoke select on core.delivery_latency_hours from spectral_operator, spectral_viewer")
	unknown("scale", "permission denied", "`workers doctor privileges` shows")
	p.url = pgtest.Login(t, p.admin.Config().ConnString(), "spectral_operator")
	unknown("transactions", "", "pg_read_all_stats")
}

// A proxy drops notifications and passes on everything else.
func TestLostNotificationsAreFound(t *testing.T) {
	t.Parallel()
	p := setup(t)
	between := proxy.InFrontOf(t, p.url)
	between.Filter(func(m proxy.Message) proxy.Action {
		if m.From == proxy.Server && m.Type == 'A' {
			return proxy.Discard
		}
		return proxy.Forward
	})
	p.url = between.URL(t, p.url)
	result := p.examine("notifications", doctor.Config{})
	if result.State != doctor.Critical || !strings.Contains(result.Findings[0].Problem, "did not arrive") {
		t.Errorf("without notifications it says %+v", result)
	}
}

// The doctor of an older build works on a newer schema, and does not compare it.
func TestANewerSchemaIsNotDamage(t *testing.T) {
	t.Parallel()
	p := setup(t)
	p.exec("insert into spectral_goose.goose_db_version (version_id, is_applied) values (99999, true); create table " +
		"core.of_the_future (id uuid)")
	for _, check := range []string{"schema", "privileges", "migrations"} {
		result := p.examine(check, doctor.Config{})
		if result.State != doctor.Fine ||
			!strings.Contains(result.Detail, "newer") && !strings.Contains(result.Detail, "older") {
			t.Errorf("on a newer schema the check of %s says %+v", check, result)
		}
	}
}

// Doctor names a session that keeps others waiting for a lock once, whatever it does.
func TestTheSessionThatHoldsALockIsNamed(t *testing.T) {
	t.Parallel()
	p := setup(t)
	p.exec("create table public.rows as select 1 as id")
	for working, problem := range map[string]string{
		"select 1":            " has been idle in a transaction for ",
		"select pg_sleep(60)": " is active and holds a lock",
	} {
		holder, _ := p.start("begin; lock table public.rows; " + working)
		p.until("exists (select from pg_locks l where l.pid = $1 and l.relation = 'public.rows'::regclass and l.granted)",
			holder.PgConn().PID())
		waiter, over := p.start("update public.rows set id = 2")
		p.until("exists (select from pg_locks l where l.pid = $1 and not l.granted and l.waitstart is not null)",
			waiter.PgConn().PID())
		result := p.examine("transactions", doctor.Config{IdleAfter: time.Nanosecond})
		if len(result.Findings) != 1 || result.State != doctor.Warning ||
			!strings.Contains(result.Findings[0].Problem, problem) ||
			!strings.Contains(result.Findings[0].Problem, "; it keeps 1 session waiting, the longest for ") {
			t.Fatalf("it says %+v", result)
		}
		p.paste(result.Findings[0].Fix)
		if err := <-over; err != nil {
			t.Errorf("who waited: %v", err)
		}
	}
}
