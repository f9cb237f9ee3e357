package ledger

import (
	"context"
	"encoding/json"
	"fmt"
	"testing"

	"github.com/jackc/pgx/v5"

	platformevents "spectral/internal/platform/infrastructure/events"
	worlds "spectral/internal/worlds/contracts/events"
)

// Kind is the events that a ledger publishes, and how their effects show.
type Kind struct {
	EventType string
	Handlers  []string // their names: each leaves a row (handler, key) in faults.effects
	KeyField  string   // of the payload
	// Payload of the n-th event, which carries key.
	Payload func(n int, key string) any
	// Astray is SQL that lists the keys of delivered events whose lasting content is not what it
	// should be. Empty if there is none.
	Astray string
}

// Cards are world model cards, handled by the real projector; the key is the title. A card id
// of many events makes hot rows; nil gives each event a card of its own.
func Cards(cardID func(n int) string) Kind {
	if cardID == nil {
		cardID = func(n int) string { return fmt.Sprintf("card-%06d", n) }
	}
	return Kind{
		EventType: worlds.WorldModelCardPublishedType,
		Handlers:  []string{platformevents.WorldModelCardProjectorName},
		KeyField:  "title",
		Payload: func(n int, key string) any {
			return worlds.WorldModelCardPublished{
				CardID: cardID(n), Version: int64(n), Title: key, Summary: "of a ledger", Attributes: json.RawMessage(`{}`),
			}
		},
		Astray: `select e.payload ->> 'title' from (
			select distinct on (workspace_id, payload ->> 'card_id') workspace_id, payload from core.outbox
			where event_type = 'worlds.world_model_card.published' and status = 'delivered'
			order by workspace_id, payload ->> 'card_id', (payload ->> 'version')::bigint desc) e
			left join platform.system_cards c on c.card_id = e.payload ->> 'card_id' and c.workspace_id is not distinct from e.workspace_id
			where c.snapshot is distinct from e.payload`,
	}
}

// Prefixes of keys of cards on which the real projector's effect does not simply happen.
const (
	// Held keeps the projector waiting for an advisory lock (HeldClass, hashtext(key)) that the
	// test may hold.
	Held = "held-"
)

// HeldClass is the first half of the advisory locks of held cards.
const HeldClass = 7701

// Prepare creates schema faults in the database at url, as its superuser: the effects that
// handlers of test events write themselves, and a trigger on platform.system_cards that writes them
// for the projector, on every execution, even one that changes nothing.
func Prepare(t testing.TB, url string) {
	t.Helper()
	install(t, url, fmt.Sprintf(`
create schema faults;
grant usage on schema faults to public;
create table faults.effects (handler text not null, key text not null, at timestamptz not null default clock_timestamp());
grant insert, select on faults.effects to public;
create function faults.watch() returns trigger
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
begin
  if new.title like '%[1]s%%' then
    perform pg_advisory_xact_lock_shared(%[2]d, hashtext(new.title));
  end if;
  insert into faults.effects (handler, key) values ('%[3]s', new.title);
  return new;
end
$$;
create trigger watch before insert on platform.system_cards for each row execute function faults.watch()`,
		Held, HeldClass, platformevents.WorldModelCardProjectorName))
}

// install runs SQL in the database at url.
func install(t testing.TB, url, sql string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), statementTimeout)
	defer cancel()
	conn, err := pgx.Connect(ctx, url)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close(ctx) }()
	_, err = conn.Exec(ctx, sql)
	if err != nil {
		t.Fatal(err)
	}
}
