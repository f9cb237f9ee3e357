package sql_test

import (
	"context"
	"encoding/json"
	"errors"
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

func contracts() (*events.Contracts, error) {
	contract := func(eventType string, source events.Scope, class string, unconsumed bool) events.Contract {
		return events.Contract{
			Type: eventType, Version: 1, Source: source, Payload: struct{}{}, Class: class,
			ContentClass: events.Operational, Unconsumed: unconsumed,
		}
	}
	return events.NewContracts(contract(cardType, events.Worlds, "", false),
		contract(platformType, events.Platform, "", false), contract(unconsumedType, events.Worlds, "", true),
		contract(classType, events.Worlds, "slow", false), contract(longestType, events.Worlds, "", false))
}

// addFixtures gives every database the types above and a retired generation 2.
func addFixtures(ctx context.Context, url string) error {
	set, err := contracts()
	if err != nil {
		return err
	}
	conn, err := pgx.Connect(ctx, url)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close(ctx) }()
	_, err = conn.Exec(ctx, "insert into core.deployments (generation, status, retired_at) values (2, 'retired', now())")
	// a generation above the program's own, so that its contract of the card gives way
	return errors.Join(err, publish.RegisterContracts(ctx, conn, 1, set))
}

// database is a migrated database with generations 1 live and 2 retired, and the types above.
type database struct {
	at       string
	admin    *pgx.Conn
	set      *events.Contracts
	sessions map[string]*pgx.Conn // by role, and by role and number
	logins   map[string]int       // how many sessions of a role login has given to the test
	owner    testing.TB           // closes the sessions
}

// setup returns a database with the rows that are said above, and no other. The test may change what it likes.
func setup(t testing.TB) *database {
	t.Helper()
	set, err := contracts()
	must(t, err)
	at := pgtest.New(t)
	return &database{at: at, admin: pgtest.Conn(t, at), set: set, sessions: map[string]*pgx.Conn{},
		logins: map[string]int{}, owner: t}
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
