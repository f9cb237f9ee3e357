package contracts_test

import (
	"bytes"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"spectral/internal/core/events"
	"spectral/internal/core/events/infrastructure/postgres/publish"
	"spectral/tests/pgtest"
)

type noted struct {
	Note string `json:"note"`
}

const (
	oldType = "worlds.note.taken"
	newType = "worlds.note.taken.v2"
)

// deprecated are two contracts, the first deprecated until deadline.
func deprecated(t testing.TB, deadline time.Time) *events.Contracts {
	t.Helper()
	old := events.Contract{
		Type: oldType, Version: 1, Source: events.Worlds, Payload: noted{Note: "n"}, ContentClass: events.Operational,
		Deprecation: &events.Deprecation{Deadline: deadline, Successor: newType},
	}
	successor := old
	successor.Type, successor.Deprecation = newType, nil
	contracts, err := events.NewContracts(old, successor)
	must(t, err)
	return contracts
}

// producing publishes an event of the old type in a transaction of worlds.
func producing(t *testing.T, pool *pgxpool.Pool, contracts *events.Contracts, log *slog.Logger, times int) error {
	t.Helper()
	uow := &publish.UnitOfWork{Pool: pool, Publishing: publish.Publishing{
		Contracts: contracts, Generation: pgtest.Generation, Log: log,
	}}
	contract, _ := contracts.Lookup(oldType, 1)
	return uow.Do(background(t), events.Worlds, uuid.NullUUID{},
		func(_ events.Tx, publisherFor events.PublisherFor) error {
			all := make([]events.Envelope, times)
			for i := range all {
				e, err := events.NewEnvelope(contract, noted{Note: "n"})
				must(t, err)
				all[i] = e
			}
			return publisherFor().Publish(background(t), all...)
		})
}

func TestADeprecatedTypeWarnsUntilItsDeadline(t *testing.T) {
	t.Parallel()
	ctx := background(t)
	deadline := time.Now().Add(time.Hour).UTC().Truncate(time.Second)
	contracts := deprecated(t, deadline)
	at := pgtest.New(t)
	pool := pgtest.Pool(t, at)
	must(t, publish.Register(ctx, pool, pgtest.Generation, contracts))

	var log bytes.Buffer
	must(t, producing(t, pool, contracts, slog.New(slog.NewTextHandler(&log,
		&slog.HandlerOptions{Level: slog.LevelWarn})), 3))
	want := "level=WARN msg=\"a deprecated event type was published: it will be refused from its deadline " +
		"on\" event_type=" + oldType +
		" deadline=" + deadline.Format("2006-01-02T15:04:05.000Z") + " successor=" + newType + "\n"
	if _, line, _ := strings.Cut(log.String(), " "); line != want {
		t.Fatalf("the log says %q, want %q once", line, want)
	}

	config, err := pgx.ParseConfig(at)
	must(t, err)
	var warnings []string
	config.OnNotice = func(_ *pgconn.PgConn, n *pgconn.Notice) {
		warnings = append(warnings, n.Severity+" "+n.Message+"; "+n.Hint)
	}
	conn, err := pgx.ConnectConfig(ctx, config)
	must(t, err)
	defer func() { _ = conn.Close(ctx) }()
	_, err = conn.Exec(ctx,
		"begin; set local timezone = 'UTC'; select core.outbox_publish('"+oldType+"', 'worlds', '{\"note\": \"n\"}') "+
			"from generate_series(1, 3); commit")
	must(t, err)
	if want := "WARNING event_type: " + oldType + " is deprecated and will be refused from " +
		deadline.Format("2006-01-02 15:04:05+00") + " on; publish " + newType; len(warnings) != 1 || warnings[0] != want {
		t.Fatalf("SQL warns %q, want %q once for the transaction", warnings, want)
	}
	_, err = conn.Exec(ctx, "select core.outbox_publish('"+newType+"', 'worlds', '{\"note\": \"n\"}')")
	must(t, err)
	if len(warnings) != 1 {
		t.Fatalf("the successor warns as well: %q", warnings)
	}
}

func TestADeprecatedTypeIsRefusedFromItsDeadlineOn(t *testing.T) {
	t.Parallel()
	ctx := background(t)
	contracts := deprecated(t, time.Now().Add(-time.Second))
	pool := pgtest.Pool(t, pgtest.New(t))
	must(t, publish.Register(ctx, pool, pgtest.Generation, contracts))

	err := producing(t, pool, contracts, slog.New(slog.DiscardHandler), 2)
	refusal, ok := errors.AsType[*events.Refusal](err)
	if !ok || refusal.Code != events.CodeDeprecated || refusal.Field != "event_type" ||
		refusal.Hint != "publish "+newType ||
		!strings.Contains(err.Error(), "event 1 of 2") {
		t.Fatalf("refused as %v", err)
	}
	for _, sql := range []string{
		"select core.outbox_publish('" + oldType + "', 'worlds', '{\"note\": \"n\"}')",
		"select core.outbox_publish_many('[{\"event_type\": \"" + oldType +
			"\", \"source\": \"worlds\", \"payload\": {\"note\": \"n\"}}]')",
	} {
		_, err := pool.Exec(ctx, sql)
		pg, ok := errors.AsType[*pgconn.PgError](err)
		if !ok || pg.Code != "SP024" || pg.ColumnName != "event_type" || pg.Hint != "publish "+newType ||
			!strings.Contains(pg.Message, oldType+" is deprecated and has been refused since ") {
			t.Errorf("%s: %v", sql, err)
		}
	}
	var rows int
	must(t, pool.QueryRow(ctx, "select count(*) from core.outbox").Scan(&rows))
	if rows != 0 {
		t.Fatalf("%d events were published", rows)
	}
	// an older build that knows of no deprecation does not undo it, and a newer one may put the deadline off
	undeprecated := deprecated(t, time.Now().Add(time.Hour)).All()
	for i := range undeprecated {
		undeprecated[i].Deprecation = nil
	}
	older, err := events.NewContracts(undeprecated...)
	must(t, err)
	must(t, publish.RegisterContracts(ctx, pool, 0, older))
	if err := producing(t, pool, older, slog.New(slog.DiscardHandler), 1); err == nil {
		t.Fatal("an older build publishes past the deadline")
	}
	must(t, publish.RegisterContracts(ctx, pool, pgtest.Generation+1, deprecated(t, time.Now().Add(time.Hour))))
	must(t, producing(t, pool, older, slog.New(slog.DiscardHandler), 1))
}

// Who publishes an older version, which fits the newest, goes on, on a new database too; and a deprecation is of all
// versions.
func TestOlderVersionsAreRegisteredAndDeprecatedWithTheNewest(t *testing.T) {
	t.Parallel()
	ctx := background(t)
	pool := pgtest.Pool(t, pgtest.New(t))
	register := func(g events.Generation, version int, d *events.Deprecation) {
		t.Helper()
		successor := events.Contract{Type: newType, Version: 1, Source: events.Worlds, Payload: noted{Note: "n"},
			ContentClass: events.Operational}
		old := successor
		old.Type, old.Version, old.Deprecation = oldType, version, d
		contracts, err := events.NewContracts(old, successor)
		must(t, err)
		must(t, publish.RegisterContracts(ctx, pool, g, contracts))
	}
	publish := func(version int) error {
		_, err := pool.Exec(ctx, "select core.outbox_publish($1, 'worlds', '{\"note\": \"n\"}', p_event_version => $2)",
			oldType, version)
		return err
	}
	register(pgtest.Generation, 3, nil)
	for version := 1; version <= 3; version++ {
		must(t, publish(version))
	}
	if pg, ok := errors.AsType[*pgconn.PgError](publish(4)); !ok || pg.Code != "SP016" {
		t.Fatalf("version 4: %v", pg)
	}
	// by a build that declares version 150 only: version 1 is too far behind to be declared with it
	register(pgtest.Generation, 150, &events.Deprecation{Deadline: time.Now().Add(-time.Second), Successor: newType})
	for _, version := range []int{1, 3, 60, 150} {
		if pg, ok := errors.AsType[*pgconn.PgError](publish(version)); !ok || pg.Code != "SP024" {
			t.Errorf("version %d: %v", version, pg)
		}
	}
	register(pgtest.Generation, 150, nil)
	must(t, publish(1))
}
