package doctor_test

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"spectral/internal/app/doctor"
	"spectral/tests/faults/proxy"
	"spectral/tests/pgtest"
)

func TestMain(m *testing.M) { os.Exit(pgtest.Run(m)) }

// testTimeout is how long a test may take on a loaded machine.
const testTimeout = 8 * time.Minute

// patient is a database of the test's own.
type patient struct {
	*testing.T
	ctx   context.Context
	url   string // as an operator who sees what others do
	admin *pgx.Conn
	// name of the database
	name string
}

func admit(t *testing.T) *patient {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), testTimeout)
	t.Cleanup(cancel)
	at := pgtest.New(t)
	admin := pgtest.Conn(t, at)
	return &patient{T: t, ctx: ctx, url: pgtest.Login(t, at, "spectral_operator", "pg_read_all_stats"), admin: admin,
		name: admin.Config().Database}
}

func (p *patient) exec(sql string, arguments ...any) {
	p.Helper()
	if _, err := p.admin.Exec(p.ctx, sql, arguments...); err != nil {
		p.Fatalf("%s: %v", sql, err)
	}
}

// cured is the SQL of a cure.
var cured = regexp.MustCompile(`(?s)^(?:(?:.*[;,] )?as [^:;]*: )?(.*;)`)

// paste executes a cure in psql as it stands.
func (p *patient) paste(cure string) {
	p.Helper()
	statements := cure
	if sql := cured.FindStringSubmatch(cure); sql != nil {
		statements = sql[1]
	}
	cmd := exec.CommandContext(p.ctx, "psql", "--no-psqlrc", "--quiet", "--set=ON_ERROR_STOP=1",
		"--dbname="+p.admin.Config().ConnString())
	cmd.Stdin = strings.NewReader(statements)
	if out, err := cmd.CombinedOutput(); err != nil {
		p.Fatalf("the cure %s: %v: %s", cure, err, out)
	}
}

// inTime fails when what is waited for has not come in time.
func (p *patient) inTime() {
	p.Helper()
	if err := p.ctx.Err(); err != nil {
		p.Fatal(err)
	}
}

// until waits for what a statement says.
func (p *patient) until(condition string, arguments ...any) {
	p.Helper()
	for reached := false; !reached; p.inTime() {
		if err := p.admin.QueryRow(p.ctx, "select "+condition, arguments...).Scan(&reached); err != nil {
			p.Fatal(err)
		}
	}
}

// examine returns the result of one check.
func (p *patient) examine(check string, with func(*doctor.Config)) doctor.Result {
	p.Helper()
	config := doctor.Config{URL: p.url, Now: time.Now, Checks: []string{check}}
	if with != nil {
		with(&config)
	}
	report, err := doctor.Examine(p.ctx, config)
	if err != nil {
		p.Fatal(err)
	}
	for _, result := range report.Results {
		if result.Check == check {
			return result
		}
	}
	p.Fatalf("there is no check %q", check)
	return doctor.Result{}
}

// mustBeFine fails unless a check finds nothing.
func (p *patient) mustBeFine(check string, when string) {
	p.Helper()
	if result := p.examine(check, nil); result.State != doctor.Fine {
		p.Errorf("%s: the check of %s says %+v", when, check, result)
	}
}

// insert makes a pending event that has been due for a time.
func insert(eventType, generation, channel, due string) string {
	return fmt.Sprintf(`insert into core.outbox (event_type, event_version, source, content_class, channel, generation,
		payload, idempotency_key, available_at) values ('%s', 1, 'worlds', 'operational', '%s', %s, '{}',
		gen_random_uuid()::text, clock_timestamp() - interval '%s')`, eventType, channel, generation, due)
}

const cards = "worlds.world_model_card.published"

// due is an event that is due, and lapsed claims it by a lease that is over.
var due = insert(cards, "1", "outbox_gen_1", "10 minutes")

const lapsed = "; update core.outbox set status = 'in_flight', claim_token = gen_random_uuid(), " +
	"claimed_at = now() - interval '10 minutes', claimed_by = 'somebody'"

// damage is what SQL can do, and what is to be found of it.
type damage struct {
	check      string
	state      doctor.State
	session    string // what another session has done and keeps open
	with       func(*doctor.Config)
	others     bool   // there are other findings beside it
	damage     string // statements in simple protocol
	seen, cure string // parts of them
	undo       string // empty: the cure, as it stands; -: there is none
}

var damages = []damage{
	{check: "indexes", state: doctor.Critical,
		damage: "update pg_catalog.pg_index set indisvalid = false where indexrelid = 'core.outbox_crashed'::regclass",
		seen:   "index core.outbox_crashed is invalid", cure: "reindex index concurrently core.outbox_crashed"},
	{check: "indexes", state: doctor.Critical,
		damage: "create index mine on core.paused_types (event_type); update pg_catalog.pg_index set indisvalid = false " +
			"where indexrelid = 'core.mine'::regclass", seen: "index core.mine is invalid",
		cure: "drop index concurrently core.mine;"},
	{check: "settings", state: doctor.Critical, others: true,
		damage: "alter database %database set default_transaction_read_only = on",
		seen:   "default_transaction_read_only is on",
		cure:   "begin read write; alter database %database reset default_transaction_read_only; commit;"},
	{check: "settings", state: doctor.Warning, others: true,
		damage: "grant spectral_owner to %login; alter role %login set role = spectral_owner",
		seen:   "role is spectral_owner from the first statement", cure: "set role none; alter role %login reset role;"},
	{check: "tables", state: doctor.Note,
		damage: "create function public.look() returns event_trigger language plpgsql as 'begin end'; create event " +
			"trigger looks on ddl_command_start when tag in ('CREATE INDEX') execute function public.look()",
		seen: "event trigger looks of postgres runs public.look at ddl_command_start of CREATE INDEX",
		cure: "alter event trigger looks disable;", undo: "drop event trigger looks; drop function public.look()"},
	{check: "tables", state: doctor.Critical,
		damage: "revoke execute on function pg_catalog.pg_notify(text, text) from public",
		seen: "pg_notify(text,text) may not be executed by spectral_operator, spectral_owner, spectral_platform, " +
			"spectral_publisher, spectral_worker, spectral_worlds, and core.",
		cure: "grant execute on function pg_notify(text,text) to public;"},
	{check: "tables", state: doctor.Critical,
		damage: "create rule vanish as on insert to core.outbox do instead nothing",
		seen:   "rule vanish of core.outbox rewrites statements", cure: "drop rule vanish on core.outbox",
		undo: "drop rule vanish on core.outbox"},
	{check: "tables", state: doctor.Critical, damage: "alter table core.event_handled set unlogged",
		seen: "core.event_handled is unlogged", cure: "alter table core.event_handled set logged;"},
	{check: "tables", state: doctor.Critical,
		damage: "create table public.mine (id uuid, at timestamptz, constraint to_outbox foreign key (id, at) " +
			"references core.outbox)", seen: "public.mine refers to core.outbox by foreign key to_outbox",
		cure: "alter table public.mine drop constraint to_outbox;"},
	{check: "tables", state: doctor.Critical, damage: "alter table platform.agent_tasks disable trigger all",
		seen: "foreign keys of platform.agent_tasks are not enforced, their triggers are disabled: ",
		cure: "as a superuser: alter table platform.agent_tasks enable trigger all;"},
	{check: "tables", state: doctor.Warning, damage: "create table public.more () inherits (core.outbox)",
		seen: "more inherits from core.outbox", cure: "no inherit core.outbox", undo: "drop table public.more"},
	{check: "tables", state: doctor.Critical,
		damage: "create table public.kept as table core.event_types; delete from core.event_types",
		seen:   "no event type is registered", cure: "workers migrate up",
		undo: "insert into core.event_types select * from public.kept"},
	{check: "tables", state: doctor.Critical, damage: "delete from core.publisher_sources where source = 'worlds'",
		seen: "spectral_worlds may not publish as worlds",
		cure: "insert into core.publisher_sources (role_name, source) values ('spectral_worlds', 'worlds');"},
	{check: "logins", state: doctor.Warning, damage: "grant delete on core.outbox to %login",
		seen: "role %login has delete on core.outbox by itself",
		cure: "revoke delete on table core.outbox from %login cascade;"},
	{check: "logins", state: doctor.Warning, damage: "grant spectral_owner to %login",
		seen: "login %login is a member of spectral_owner", cure: "revoke spectral_owner from %login"},
	{check: "migrations", state: doctor.Warning,
		damage: "delete from spectral_goose.goose_db_version where version_id = 6",
		seen:   "step 6 is not recorded as applied, and later ones are: migrate up is refused",
		cure:   "insert into spectral_goose.goose_db_version (version_id, is_applied) values (6, true);"},
	{check: "migrations", state: doctor.Warning,
		damage: "alter database %database owner to spectral_platform; alter table spectral_goose.goose_db_version owner " +
			"to spectral_worlds",
		seen: "spectral_goose.goose_db_version, which records what is applied, belongs to spectral_worlds, and the " +
			"database to spectral_platform",
		cure: "as a superuser: alter table spectral_goose.goose_db_version owner to spectral_platform;"},
	{check: "logins", state: doctor.Warning,
		damage: "create role %login_chain; grant spectral_owner to %login_chain; grant %login_chain to %login",
		seen:   "login %login is a member of spectral_owner through %login_chain",
		cure:   "revoke spectral_owner from %login_chain"},
	{check: "tables", state: doctor.Warning, damage: "create cast (text as uuid) with inout as implicit",
		seen: "an implicit cast of somebody's own makes text into uuid", cure: "drop cast (text as uuid);"},
	{check: "tables", state: doctor.Warning,
		damage: "create function public.same(text, uuid) returns boolean language sql as 'select $1 = $2::text'; create " +
			"operator core.= (leftarg = text, rightarg = uuid, function = public.same)",
		seen: "operator core.=(text,uuid) is not of our migrations", cure: "drop operator core.=(text,uuid);"},
	{check: "tables", state: doctor.Critical,
		damage: "create publication everything for table core.outbox, platform.decisions; alter table " +
			"platform.decisions replica identity full; alter table core.outbox replica identity nothing",
		seen: "core.outbox is published (everything), and has no replica identity",
		cure: "alter table core.outbox replica identity default;"},
	{check: "tables", state: doctor.Critical,
		damage: "update core.event_types set consumed = false, consumed_in = '{}' where event_type = '" + cards + "'",
		seen:   cards + " is registered without a handler, though this build handles it",
		cure:   "update core.event_types set consumed = true where event_type = '" + cards + "';"},
	{check: "tables", state: doctor.Critical, session: worker(1, cards),
		damage: `update core.event_types set consumed_in = '{"1": false}' where event_type = '` + cards + "'",
		seen:   cards + " is registered without a handler in generation 1, though its live workers handle it",
		cure:   "as spectral_owner: update core.event_types"},
	{check: "tables", state: doctor.Warning,
		damage: "insert into core.publisher_sources values ('spectral_platform', 'worlds')",
		seen:   "spectral_platform may publish as worlds, which nobody decided",
		cure:   "delete from core.publisher_sources where role_name = 'spectral_platform' and source = 'worlds';"},
	{check: "generations", state: doctor.Critical, others: true, damage: "delete from core.deployments",
		seen: "1 live workers are of generation 1, which is not registered", cure: "workers generation register 1",
		undo: "select core.generation_announce(1)"},
	{check: "leases", state: doctor.Warning,
		damage: due + "; update core.outbox set status = 'in_flight', claim_token = gen_random_uuid(), claimed_at = " +
			"now() + interval '10 days', claimed_by = 'somebody'", seen: "1 events in flight were claimed in the future",
		cure: "update core.outbox set claimed_at",
		undo: "update core.outbox set claimed_at = clock_timestamp() where status = 'in_flight' and claimed_at > " +
			"clock_timestamp()"},
	{check: "retention", state: doctor.Warning, damage: due + "; update core.outbox set deleted_at = now()",
		seen: "1 are on events that are pending or in flight",
		cure: "update core.outbox set deleted_at = null where deleted_at is not null and status in ('pending', " +
			"'in_flight');",
		undo: "update core.outbox set deleted_at = null where deleted_at is not null and status in ('pending', " +
			"'in_flight')"},
	{check: "retention", state: doctor.Warning,
		damage: "delete from core.retention_policies where subject = 'operator_action'", seen: "has no retention policy",
		cure: "insert into core.retention_policies"},
	{check: "generations", state: doctor.Warning, session: worker(1, cards),
		damage: "select core.generation_announce(44)", seen: "goes to 44, and no worker of it lives",
		cure: "workers generation drain 44", undo: "delete from core.deployments where generation = 44"},
	{check: "unhandled", state: doctor.Critical, damage: due,
		seen: "1 due events " + cards + " of generation 1 (live) wait, the oldest for 10m",
		cure: "SPECTRAL_GENERATION=1 workers run; or", undo: "delete from core.outbox"},
	{check: "unhandled", state: doctor.Warning, session: worker(1, cards),
		damage: "update core.workers set handlers = handlers - 'agent.task.dispatched'",
		seen:   "no live worker of generation 1 runs processing class agents: events agent.task.dispatched will wait",
		cure:   "SPECTRAL_GENERATION=1 workers run --classes agents",
		undo:   `update core.workers set handlers = handlers || '{"agent.task.dispatched": ["a.b"]}'`},
	{check: "unhandled", state: doctor.Critical, damage: insert(cards, "77", "outbox_gen_77", "10 minutes"),
		seen: "generation 77 (unknown)",
		cure: "workers generation drain 77; then run that generation's own build: SPECTRAL_GENERATION=77 workers run " +
			"--drain; or", undo: "delete from core.outbox"},
	{check: "unhandled", state: doctor.Critical, session: worker(1, cards),
		damage: insert("decision.recorded", "1", "outbox_gen_1", "10 minutes"),
		seen:   "of its 1 live workers none handles that type", cure: "--classes", undo: "delete from core.outbox"},
	{check: "unhandled", state: doctor.Critical, session: worker(1, cards),
		damage: insert("worlds.other.happened", "1", "outbox_gen_1", "10 minutes"),
		seen:   "of its 1 live workers none handles that type; no build has registered that type",
		cure: "give them up, as spectral_owner: update core.outbox set status = 'failed', claimed_at = now(), " +
			"last_error = 'UnknownEventType: no build knows it' where event_type = 'worlds.other.happened' and generation " +
			"= 1 and status = 'pending' and deleted_at is null; and as an operator: workers events discard --type " +
			"worlds.other.happened --generation 1 --error UnknownEventType",
		undo: "update core.outbox set status = 'failed', claimed_at = now(), last_error = 'UnknownEventType: no build " +
			"knows it' where event_type = 'worlds.other.happened' and generation = 1 and status = 'pending' and deleted_at " +
			"is null; select core.outbox_discard(id, 'ana') from core.outbox"},
	{check: "channels", state: doctor.Warning, damage: insert(cards, "1", "outbox_default", "10 minutes"),
		seen: "announced on outbox_default, but their workers listen on outbox_gen_1", cure: "without p_class",
		undo: "delete from core.outbox"},
	{check: "listeners", state: doctor.Warning, session: worker(1, cards), damage: due,
		seen: "has waited for 10m", cure: "restart", undo: "delete from core.outbox"},
	{check: "listeners", state: doctor.Warning,
		damage: "insert into core.workers (worker_id, session_id, generation, name, handlers, gone_at) values " +
			"(gen_random_uuid(), gen_random_uuid(), 1, 'dead', '{}', now() - interval '10 minutes')",
		seen: "1 workers have been dead", cure: "run a worker", undo: "delete from core.workers"},
	{check: "leases", state: doctor.Critical, damage: due + lapsed,
		seen: "1 events are in flight past their lease, the longest by 5m", cure: "outbox_reap",
		undo: "delete from core.outbox"},
	{check: "paused", state: doctor.Warning,
		damage: "select core.event_type_pause('" + cards + "', 1, 'ana', 'a moment'); update core.paused_types set " +
			"paused_at = now() - interval '3 days'",
		seen: cards + " of generation 1 has been paused for 3 days by ana: a moment",
		cure: "workers events resume " + cards + " --generation 1",
		undo: "select core.event_type_resume('" + cards + "', 1, 'ana')"},
	{check: "generations", state: doctor.Critical,
		damage: insert(cards, "8", "outbox_gen_8", "10 minutes") + "; insert into core.deployments (generation, status, " +
			"retired_at) values (8, 'retired', now())", seen: "generation 8 is retired and has 1 events",
		cure: "workers generation adopt 8", undo: "delete from core.outbox"},
	{check: "generations", state: doctor.Critical, damage: insert(cards, "77", "outbox_gen_77", "10 minutes"),
		seen: "generation 77 is unknown and has 1 events: no worker of it has ever registered",
		cure: "workers generation adopt 77 TO; or workers generation drain 77, and then, with its own build: " +
			"SPECTRAL_GENERATION=77 workers run --drain", undo: "delete from core.outbox"},
	{check: "generations", state: doctor.Warning,
		damage: "insert into core.deployments (generation, status, draining_at, closed_at) values (8, 'draining', " +
			"now(), now() - interval '1 hour')", seen: "generation 8 has been closed for 1h0m",
		cure: "workers generation retire 8", undo: "delete from core.deployments where generation = 8"},
	{check: "generations", state: doctor.Warning,
		damage: "insert into core.deployments (generation, status, draining_at) values (8, 'draining', now() - interval " +
			"'3 days')", seen: "generation 8 has been draining for 3 days and has nothing left",
		cure: "workers generation retire 8", undo: "delete from core.deployments where generation = 8"},
	{check: "generations", state: doctor.Warning, others: true,
		damage: "update core.deployments set status = 'draining', draining_at = now()", seen: "no generation is live",
		cure: "register", undo: "update core.deployments set status = 'live', draining_at = null"},
	{check: "failures", state: doctor.Warning,
		damage: due + "; update core.outbox set status = 'failed', claimed_at = now(), last_error = 'IntegrityError: " +
			"a.b: no'", seen: "1 events failed in the last hour, most of them " + cards + ", IntegrityError",
		cure: "workers events stats", undo: "select core.outbox_discard(id, 'ana') from core.outbox"},
	{check: "retention", state: doctor.Warning,
		damage: due + "; update core.outbox set status = 'failed', claimed_at = now() - interval '25 days', " +
			"occurred_at = now() - interval '25 days'; " + "update core.retention_policies set active_ttl_days = 30 where " +
			"subject = 'outbox_row'", seen: "1 failed events expire within 7 days",
		cure: "replay or discard them: workers events list --older-than 23d",
		undo: "update core.retention_policies set active_ttl_days = 45 where subject = 'outbox_row'; select " +
			"core.outbox_replay(id, 1, 'ana') from core.outbox"},
	{check: "retention", state: doctor.Warning, session: worker(1, cards),
		damage: "update core.workers set registered_at = now() - interval '25 hours'", seen: "none has swept",
		cure: "workers retention sweep", undo: "select core.retention_sweep('core.retention_delete_outbox')"},
	{check: "retention", state: doctor.Critical,
		damage: "alter table core.retention_policies disable trigger all; update core.retention_policies set " +
			"active_ttl_days = 20 where subject = 'event_handled'; alter table core.retention_policies enable trigger all",
		seen: "contradict each other", cure: "update core.retention_policies h"},
	{check: "vacuum", state: doctor.Warning, damage: "alter table core.outbox set (autovacuum_enabled = off)",
		seen: "autovacuum is off for core.outbox", cure: "alter table core.outbox reset (autovacuum_enabled);"},
	{check: "vacuum", state: doctor.Warning,
		damage: `alter table core.event_handled set (autovacuum_vacuum_threshold = 2147483647); insert into ` +
			`core.event_handled (handler_name, idempotency_key, event_id, event_type, content_class) select 'a.b', i, ` +
			`gen_random_uuid(), 'a.b', 'workspace' from generate_series(1, 10001) i; delete from core.event_handled; alter ` +
			`table core.event_handled set (autovacuum_vacuum_threshold = 50); select pg_stat_force_next_flush()`,
		seen: "core.event_handled has 10001 dead rows", cure: "vacuum (analyze) core.event_handled;", undo: "-"},
	{check: "scale", state: doctor.Warning,
		damage: "update pg_catalog.pg_class set reltuples = 6000000 where oid = 'core.outbox'::regclass",
		seen:   "about 6000000 rows: more than the 5000000 from which to partition", cure: "partition by month", undo: "-"},
	{check: "scale", state: doctor.Warning,
		damage: "insert into core.ack_latencies select date_trunc('hour', now()) - i * interval '1 hour', 750, 200, " +
			"now() from generate_series(1, 167) i", seen: "for a week 1 % of events took longer than 500 ms",
		cure: "slow handlers",
		undo: "update core.ack_latencies set up_to_ms = 500 where hour = (select max(hour) from core.ack_latencies)"},
	{check: "transactions", state: doctor.Warning, session: "begin; select 1",
		with: func(c *doctor.Config) { c.IdleAfter = time.Nanosecond }, others: true, seen: "idle in a transaction for",
		cure: "pg_terminate_backend", undo: "-"},
	{check: "snapshots", state: doctor.Warning, session: "begin isolation level repeatable read; select 1",
		with: func(c *doctor.Config) { c.SnapshotAfter = time.Nanosecond }, others: true, seen: "holds a snapshot",
		cure: "pg_terminate_backend", undo: "-"},
	{check: "clock", state: doctor.Warning,
		with: func(c *doctor.Config) { c.Now = func() time.Time { return time.Now().Add(time.Hour + time.Minute/2) } },
		seen: "the database's is 1h0m", cure: "NTP"},
	{check: "connections", state: doctor.Warning, damage: "alter database %database connection limit 30",
		seen: "connections are free, and a worker of this build takes up to", cure: "SPECTRAL_POOL_URL",
		undo: "alter database %database connection limit -1"},
	{check: "connections", state: doctor.Warning,
		damage: "create role %login_worker login connection limit 0 in role spectral_worker",
		seen:   `login "%login_worker": 0 of 0 connections are in use`,
		cure:   "as a superuser: alter role %login_worker connection limit "},
	{check: "connections", state: doctor.Warning,
		damage: "create role %login_late login valid until '2020-01-01' in role spectral_worker",
		seen:   `the password of login "%login_late" is over`,
		cure:   "as a superuser: alter role %login_late valid until 'infinity';"},
	{check: "connections", state: doctor.Warning, session: "select 1", others: true,
		damage: "alter role %login connection limit 2", seen: "login", cure: "alter role"},
}

// worker registers one on a session of its own, which is its life. It runs both processing classes.
func worker(generation int, eventType string) string {
	return fmt.Sprintf(`select core.worker_register(gen_random_uuid(), %d, 'somebody',
		'{%q: ["a.b"], "agent.task.dispatched": ["a.b"]}')`, generation, eventType)
}

// Each damage is found, and its cure, pasted as it stands, leaves nothing of it. Those of one check are done to the same
// database, but for those that are not undone.
func TestDamageIsFound(t *testing.T) {
	t.Parallel()
	groups := map[string][]damage{}
	for i, d := range damages {
		group := d.check
		if d.undo == "-" {
			group = fmt.Sprint(d.check, i)
		}
		groups[group] = append(groups[group], d)
	}
	var members sync.Mutex // logins are the server's, of all databases
	for group, damages := range groups {
		t.Run(group, func(t *testing.T) {
			t.Parallel()
			if slices.ContainsFunc(damages, func(d damage) bool { return strings.Contains(d.damage, "%login") }) {
				members.Lock()
				defer members.Unlock()
			}
			p := admit(t)
			if group != "settings" && group != "generations" { // tests' servers are not durable; no worker lives
				p.mustBeFine(damages[0].check, "before")
			}
			for _, d := range damages {
				t.Run(d.seen, func(t *testing.T) {
					on := *p
					on.T = t
					on.find(d)
					p.exec("delete from core.outbox; delete from core.deployments where generation > 1")
				})
				if t.Failed() {
					return
				}
			}
		})
	}
}

// find does a damage, and wants what is said of it, and that it can be undone.
func (p *patient) find(d damage) {
	p.Helper()
	config, err := pgx.ParseConfig(p.url)
	if err != nil {
		p.Fatal(err)
	}
	in := strings.NewReplacer("%database", p.name, "%login", config.User)
	seen, cure := in.Replace(d.seen), in.Replace(d.cure)
	registers := strings.Contains(d.session, "worker_register")
	if d.check == "generations" && d.session == "" {
		d.session, registers = worker(1, cards), true
	}
	if d.session != "" {
		at := p.url
		if registers {
			at = p.admin.Config().ConnString()
		}
		session := pgtest.Conn(p.T, at)
		defer p.ended(session)
		if _, err := session.Exec(p.ctx, d.session); err != nil {
			p.Fatal(err)
		}
		if !registers {
			p.until("count(*) = 1 from pg_stat_activity where usename = $1", config.User) // the others of the login are closed
			defer func() {
				if d.undo != "-" {
					p.ended(session)
					p.notFound(d, seen)
				}
			}()
		}
	}
	p.exec(in.Replace(d.damage))
	result := p.examine(d.check, d.with)
	var found *doctor.Finding
	for _, f := range result.Findings {
		if strings.Contains(f.Seen, seen) && strings.Contains(f.Cure, cure) && f.State == d.state {
			found = &f
		} else if !d.others {
			p.Errorf("besides, it says %+v", f)
		}
	}
	switch {
	case found == nil:
		p.Fatalf("the check says %+v; want %s: %s; cure: %s", result, d.state, d.seen, d.cure)
	case d.undo == "-":
		return
	case d.undo != "":
		p.exec(in.Replace(d.undo))
	case d.with == nil:
		p.paste(found.Cure)
	}
	if d.session == "" || registers {
		p.notFound(d, seen)
	}
}

// notFound wants the check to say nothing of a damage that was undone, nor anything else unless others are expected.
func (p *patient) notFound(d damage, seen string) {
	p.Helper()
	if !d.others {
		p.mustBeFine(d.check, "after the cure")
		return
	}
	for _, f := range p.examine(d.check, d.with).Findings {
		if strings.Contains(f.Seen, seen) {
			p.Errorf("after the cure it still says %+v", f)
		}
	}
}

// ended closes a session, and returns when the server has, and knows no worker of it.
func (p *patient) ended(session *pgx.Conn) {
	p.Helper()
	pid := session.PgConn().PID()
	if err := session.Close(p.ctx); err != nil {
		p.Error(err)
	}
	p.until("not exists (select from pg_stat_activity where pid = $1)", pid)
	p.exec("delete from core.workers")
}

// A session that holds the lock of reaping is named, and how to end it: no worker can say why nothing is reaped.
func TestWhoKeepsTheLockOfReapingIsNamed(t *testing.T) {
	t.Parallel()
	p := admit(t)
	p.exec(due + lapsed)
	keeper := pgtest.Conn(t, p.admin.Config().ConnString())
	if _, err := keeper.Exec(p.ctx, "select pg_advisory_lock(5583017264419803127)"); err != nil {
		t.Fatal(err)
	}
	elsewhere := pgtest.Conn(t, pgtest.New(t)) // where the lock has the same number
	if _, err := elsewhere.Exec(p.ctx, "select pg_advisory_lock(5583017264419803127)"); err != nil {
		t.Fatal(err)
	}
	who := fmt.Sprintf("session %d of postgres", keeper.PgConn().PID())
	result := p.examine("leases", nil)
	if len(result.Findings) != 2 || !strings.Contains(result.Findings[1].Seen, who) {
		t.Fatalf("it says %+v; want %s second", result, who)
	}
	_, cure, _ := strings.Cut(result.Findings[1].Cure, ": ")
	p.exec(cure)
	for result = p.examine("leases", nil); len(result.Findings) != 1; { // until its session is gone
		result = p.examine("leases", nil)
	}
	if !strings.Contains(result.Findings[0].Cure, "outbox_reap") {
		t.Errorf("after the cure it says %+v", result)
	}
}

// What the login may not see is never called fine.
func TestWhatIsNotSeenIsUnknown(t *testing.T) {
	t.Parallel()
	p := admit(t)
	p.url = pgtest.Login(t, p.admin.Config().ConnString(), "spectral_operator")
	other := pgtest.Conn(t, p.admin.Config().ConnString())
	if _, err := other.Exec(p.ctx, "begin"); err != nil {
		t.Fatal(err)
	}
	result := p.examine("transactions", nil)
	if result.State != doctor.Unknown || !strings.Contains(result.Findings[0].Cure, "pg_read_all_stats") {
		t.Errorf("a login that does not see the other sessions is told %+v", result)
	}
	p.url = pgtest.Login(t, p.admin.Config().ConnString(), "spectral_operator", "pg_read_all_stats")
	p.mustBeFine("transactions", "with nothing to see")
	if _, err := other.Exec(p.ctx, "rollback; set track_activities = off; begin"); err != nil {
		t.Fatal(err)
	}
	result = p.examine("transactions", nil)
	const untracked = "what 1 sessions are doing is not tracked: track_activities is off"
	if result.State != doctor.Unknown || len(result.Findings) != 1 ||
		!strings.Contains(result.Findings[0].Seen, untracked) {
		t.Errorf("of a session that is not tracked it says %+v", result)
	}
	p.exec("revoke select on core.outbox from spectral_operator")
	result = p.examine("unhandled", nil)
	if result.State != doctor.Unknown || !strings.Contains(result.Findings[0].Seen, "permission denied") {
		t.Errorf("a login that may not read is told %+v", result)
	}
}

// A table that somebody has locked is unknown in bounded time, and the checks after it are made.
func TestALockKeepsNobodyWaiting(t *testing.T) {
	t.Parallel()
	p := admit(t)
	other := pgtest.Conn(t, p.admin.Config().ConnString())
	if _, err := other.Exec(p.ctx, "begin; lock table core.workers"); err != nil {
		t.Fatal(err)
	}
	p.exec(due)
	report, err := doctor.Examine(p.ctx, doctor.Config{URL: p.url, Now: time.Now, Checks: []string{"unhandled", "scale"}})
	if err != nil || len(report.Results) != 2 || report.Results[0].State != doctor.Unknown ||
		!strings.Contains(report.Results[0].Findings[0].Cure, "lock") || report.Results[1].State != doctor.Fine {
		t.Errorf("beside a lock: %+v, %v", report, err)
	}
}

// Something in between drops notifications and passes on all else.
func TestNotificationsThatDoNotArrive(t *testing.T) {
	t.Parallel()
	p := admit(t)
	p.mustBeFine("notifications", "without anything in between")
	between := proxy.InFrontOf(t, p.url)
	between.Filter(func(m proxy.Message) proxy.Verdict {
		if m.From == proxy.Server && m.Type == 'A' {
			return proxy.Discard
		}
		return proxy.Forward
	})
	p.url = between.URL(t, p.url)
	result := p.examine("notifications", nil)
	if result.State != doctor.Critical || !strings.Contains(result.Findings[0].Seen, "did not arrive") {
		t.Errorf("without notifications it says %+v", result)
	}
}

// An older build's doctor works on the schema of a newer one, and does not call it damaged.
func TestANewerSchemaIsNotDamage(t *testing.T) {
	t.Parallel()
	p := admit(t)
	p.exec("insert into spectral_goose.goose_db_version (version_id, is_applied) values (99999, true); " +
		"create table core.of_the_future (id uuid)")
	for _, check := range []string{"schema", "privileges", "migrations"} {
		result := p.examine(check, nil)
		if result.State != doctor.Fine || !strings.Contains(result.Seen, "newer") && !strings.Contains(result.Seen, "older") {
			t.Errorf("on a newer schema the check of %s says %+v", check, result)
		}
	}
}

// What nobody may handle any more is found once, with the one cure that works.
func TestARetiredGenerationIsNotToBeRun(t *testing.T) {
	t.Parallel()
	p := admit(t)
	living := pgtest.Conn(t, p.admin.Config().ConnString())
	if _, err := living.Exec(p.ctx, worker(1, cards)); err != nil {
		t.Fatal(err)
	}
	p.exec(insert(cards, "8", "outbox_gen_8", "10 minutes") +
		"; insert into core.deployments (generation, status, retired_at) values (8, 'retired', now())")
	if result := p.examine("unhandled", nil); len(result.Findings) != 0 {
		t.Errorf("unhandled says %+v", result.Findings)
	}
	result := p.examine("generations", nil)
	if len(result.Findings) != 1 || strings.Contains(result.Findings[0].Cure, "run") ||
		!strings.Contains(result.Findings[0].Cure, "workers generation adopt 8 TO") {
		t.Errorf("generations says %+v", result.Findings)
	}
}

// A worker that may do nothing, or has nothing to do, is named.
func TestWorkersOfNoUseAreFound(t *testing.T) {
	t.Parallel()
	p := admit(t)
	for _, generation := range []int{1, 8} {
		living := pgtest.Conn(t, p.admin.Config().ConnString())
		if _, err := living.Exec(p.ctx, worker(generation, cards)); err != nil {
			t.Fatal(err)
		}
	}
	p.exec("insert into core.deployments (generation, status, draining_at) values (8, 'draining', now())")
	result := p.examine("generations", nil)
	if result.State != doctor.Fine || len(result.Findings) != 1 || result.Findings[0].State != doctor.Note ||
		!strings.Contains(result.Findings[0].Seen, "of generation 8, which is draining and has nothing left") ||
		!strings.Contains(result.Findings[0].Cure, "workers generation retire 8") {
		t.Errorf("of a drained generation it says %+v", result)
	}
	p.exec(insert(cards, "8", "outbox_gen_8", "1 minute"))
	p.mustBeFine("generations", "with something left")
	if result := p.examine("generations", nil); len(result.Findings) > 0 {
		t.Errorf("with something left it says %+v", result)
	}
	p.exec("delete from core.outbox; " +
		"update core.deployments set status = 'retired', retired_at = now() where generation = 8")
	result = p.examine("generations", nil)
	if len(result.Findings) != 1 || result.State != doctor.Warning ||
		!strings.Contains(result.Findings[0].Cure, "stop them") {
		t.Errorf("of a retired generation it says %+v", result)
	}
}

// Who keeps others waiting for a lock is named once, whatever its session is doing.
func TestWhoHoldsALockIsNamed(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ working, seen string }{
		"idle":   {"select 1", " has been idle in a transaction for "},
		"active": {"select pg_sleep(60)", " (active) holds a lock"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := admit(t)
			p.exec("create table public.rows as select 1 as id")
			start := func(sql string) (session *pgx.Conn, over chan error) {
				session, over = pgtest.Conn(t, p.admin.Config().ConnString()), make(chan error, 1)
				go func() {
					_, err := session.Exec(p.ctx, sql)
					over <- err
				}()
				return session, over
			}
			holder, _ := start("begin; lock table public.rows; " + c.working)
			p.until("exists (select from pg_locks l where l.pid = $1 and l.relation = 'public.rows'::regclass and l.granted)",
				holder.PgConn().PID())
			waiter, over := start("update public.rows set id = 2")
			p.until("exists (select from pg_locks l where l.pid = $1 and not l.granted and l.waitstart is not null)",
				waiter.PgConn().PID())
			soon := func(c *doctor.Config) { c.IdleAfter = time.Nanosecond }
			result := p.examine("transactions", soon)
			if len(result.Findings) != 1 || result.State != doctor.Warning ||
				!strings.Contains(result.Findings[0].Seen, c.seen) ||
				!strings.Contains(result.Findings[0].Seen, "; 1 sessions have been waiting for it, the longest for ") {
				t.Fatalf("it says %+v", result)
			}
			p.paste(result.Findings[0].Cure)
			if err := <-over; err != nil {
				t.Errorf("who waited: %v", err)
			}
			if result := p.examine("transactions", soon); result.State != doctor.Fine {
				t.Errorf("after the cure it says %+v", result)
			}
		})
	}
}
