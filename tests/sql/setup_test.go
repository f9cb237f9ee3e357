package sql_test

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"spectral/internal/core/events"
	"spectral/internal/core/events/infrastructure/postgres/publish"
	"spectral/tests/pgtest"
)

// The event types of these tests beside those of the program.
var (
	cardType       = "worlds.world_model_card.published"
	platformType   = "platform.thing.happened"
	unconsumedType = "worlds.thing.ignored"
	classType      = "worlds.thing.slow" // class slow
	longestType    = "worlds." + strings.Repeat("a", events.MaxEventTypeBytes-len("worlds."))
)

func contracts(t testing.TB) *events.Contracts {
	t.Helper()
	contract := func(eventType string, source events.Scope, class string, unconsumed bool) events.Contract {
		return events.Contract{
			Type: eventType, Version: 1, Source: source, Payload: struct{}{}, Class: class,
			ContentClass: events.Operational, Unconsumed: unconsumed,
		}
	}
	set, err := events.NewContracts(contract(cardType, events.Worlds, "", false),
		contract(platformType, events.Platform, "", false), contract(unconsumedType, events.Worlds, "", true),
		contract(classType, events.Worlds, "slow", false), contract(longestType, events.Worlds, "", false))
	must(t, err)
	return set
}

// database is a migrated database with generations 1 live and 2 retired, and the types above.
type database struct {
	at       string
	admin    *pgx.Conn
	set      *events.Contracts
	sessions map[string]*pgx.Conn // by role, and by role and number
	logins   map[string]int       // how many sessions of a role login has given to the test
	owner    *owner
	shape    string
	emptying string
}

// setup returns a database with the rows that are said above, and no other. The test may change what it likes.
func setup(t testing.TB) *database {
	t.Helper()
	return setupAs(t, "", func(*database) {})
}

// setupAs is setup with databases of another kind, which prepare makes of one.
func setupAs(t testing.TB, kind string, prepare func(*database)) *database {
	t.Helper()
	d := pooled(t, kind, func(o *owner) *database {
		d := &database{at: pgtest.New(o), set: contracts(t), sessions: map[string]*pgx.Conn{}, owner: o}
		d.admin = pgtest.Conn(o, d.at)
		exec(t, d.admin, "select core.generation_announce(1), core.generation_announce(2)")
		exec(t, d.admin, "update core.deployments set status = 'retired', retired_at = now() where generation = 2")
		// a generation above the program's own, so that its contract of the card gives way
		must(t, publish.RegisterContracts(deadline(t), d.admin, 1, d.set))
		prepare(d)
		return d
	})
	d.logins = map[string]int{}
	return d
}

// setupNew is setup with a database that no test has written to, for those that count what the server reads.
func setupNew(t testing.TB) *database {
	t.Helper()
	return setupAs(t, "new", func(*database) {})
}

// login returns a session of the test's as a login with a role.
func (d *database) login(t testing.TB, role string) *pgx.Conn {
	t.Helper()
	d.logins[role]++
	return d.session(t, fmt.Sprintf("%s login %d", strings.TrimPrefix(role, "spectral_"), d.logins[role]))
}

func (d *database) publishing(generation events.Generation) publish.Publishing {
	return publish.Publishing{Contracts: d.set, Generation: generation, Log: slog.New(slog.DiscardHandler)}
}

func (d *database) count(t testing.TB) int {
	t.Helper()
	return value[int](t, d.admin, "select count(*) from core.outbox")
}

func card(payload string) events.Envelope {
	return events.Envelope{EventType: cardType, EventVersion: 1, Source: events.Worlds, Payload: json.RawMessage(payload)}
}

func inTx(t testing.TB, conn *pgx.Conn, work func(ctx context.Context, tx pgx.Tx) error) error {
	t.Helper()
	ctx := deadline(t)
	return pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error { return work(ctx, tx) })
}

// A test finds neither rows, settings nor schema of the one before.
func TestSetupFindsNothingOfTheTestBefore(t *testing.T) {
	const state = `select concat_ws(' ', (select count(*) from core.outbox), (select tgenabled from pg_trigger
		where tgname = 'outbox_notify'),
		(select string_agg(generation || status, ' ' order by generation) from core.deployments), current_user,
			to_regclass('kept'))`
	for _, change := range []string{
		"insert into core.deployments values (7); set role spectral_worker; create temp table kept ()",
		"begin; delete from core.deployments; alter table core.outbox disable trigger outbox_notify"} {
		for _, sql := range []string{change, "select"} {
			t.Run(sql, func(t *testing.T) {
				d := setup(t)
				if have := value[string](t, d.admin, state); have != "0 O 1live 2retired postgres" {
					t.Errorf("the test finds %s", have)
				}
				exec(t, d.admin, sql)
			})
		}
	}
}
