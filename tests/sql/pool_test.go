package sql_test

import (
	"context"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
)

// idle are the databases of setup that no test uses, by kind. Their sessions are open and have made their plans, which
// costs more than most tests.
var idle = struct {
	sync.Mutex
	databases map[string][]*database
}{databases: map[string][]*database{}}

// owner is the TB of what outlives a test: it collects clean-ups until end runs them.
type owner struct {
	testing.TB
	cleanups []func()
}

func (o *owner) Cleanup(f func()) { o.cleanups = append(o.cleanups, f) }

func (o *owner) end() {
	for len(o.cleanups) > 0 {
		last := len(o.cleanups) - 1
		f := o.cleanups[last]
		o.cleanups = o.cleanups[:last]
		f()
	}
}

// pooled returns an idle database of a kind, or one that create makes. The test's end empties it for the next test, or
// drops it if the test changed more than rows and settings of sessions.
func pooled(t testing.TB, kind string, create func(*owner) *database) *database {
	t.Helper()
	idle.Lock()
	var d *database
	if last := len(idle.databases[kind]) - 1; last >= 0 {
		d, idle.databases[kind] = idle.databases[kind][last], idle.databases[kind][:last]
	}
	idle.Unlock()
	if d == nil {
		d = create(&owner{TB: t})
		d.readSeeds(t)
	}
	d.owner.TB = t
	t.Cleanup(func() {
		if t.Failed() || !d.reset() {
			d.owner.end()
			return
		}
		idle.Lock()
		defer idle.Unlock()
		idle.databases[kind] = append(idle.databases[kind], d)
	})
	return d
}

// shape changes with the schema, the privileges, the settings of the database, and what the planner knows.
const shape = `select concat_ws(' ', (select concat(count(*), ' ', max(xmin::text::bigint), ' ', sum(reltuples))
	from pg_class where relpersistence <> 't'),
	(select concat(count(*), ' ', max(xmin::text::bigint)) from pg_proc), (select concat(count(*), ' ',
		max(xmin::text::bigint)) from pg_trigger),
	(select concat(count(*), ' ', max(a.xmin::text::bigint)) from pg_attribute a join pg_class c on c.oid = a.attrelid
		and c.relpersistence <> 't'),
	(select concat(count(*), ' ', max(xmin::text::bigint)) from pg_constraint), (select concat(count(*), ' ',
		max(xmin::text::bigint)) from pg_namespace
		where nspname !~ '^pg_(toast_)?temp'),
	(select concat(count(*), ' ', max(xmin::text::bigint)) from pg_policy), (select count(*) from pg_publication),
		(select count(*) from pg_default_acl),
	(select count(*) from pg_db_role_setting s join pg_database d on d.oid = s.setdatabase
		where datname = current_database()))`

// readSeeds remembers what a test finds, and how to bring it back.
func (d *database) readSeeds(t testing.TB) {
	t.Helper()
	d.shape = value[string](t, d.admin, shape)
	emptying := []string{"set session_replication_role = replica"}
	for _, table := range values[string](t, d.admin,
		`select format('%I.%I', relnamespace::regnamespace, relname) from pg_class
		where relkind = 'r' and relnamespace = any ('{core,platform,worlds}'::regnamespace[])`) {
		emptying = append(emptying, "delete from "+table)
		emptying = append(emptying,
			values[string](t, d.admin, "select format('insert into %s overriding system value select * from "+
				"unnest(%L::%1$s[])', $1::text, array_agg(t)) from "+table+" t having count(*) > 0", table)...)
	}
	d.emptying = strings.Join(append(emptying, "reset session_replication_role"), ";")
}

// reset leaves the database as setup made it, and says whether it could.
func (d *database) reset() bool {
	ctx, cancel := context.WithTimeout(context.Background(), testTimeout)
	defer cancel()
	var have string
	if !resetSession(ctx, d.admin) || d.admin.QueryRow(ctx, shape).Scan(&have) != nil || have != d.shape {
		return false
	}
	for role, session := range d.sessions {
		if !resetSession(ctx, session) {
			delete(d.sessions, role)
		}
	}
	_, err := d.admin.Exec(ctx, d.emptying)
	return err == nil
}

// resetSession ends what a session has begun and set; it closes one that is of no more use.
func resetSession(ctx context.Context, session *pgx.Conn) bool {
	_, err := session.Exec(ctx,
		"rollback; set session authorization default; reset all; unlisten *; select pg_advisory_unlock_all(); discard temp")
	if err != nil {
		_ = session.Close(ctx)
	}
	return err == nil
}

// waitTick is how often a test asks for what it waits for.
const waitTick = 5 * time.Millisecond
