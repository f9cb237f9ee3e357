package ledger

import (
	"encoding/json"
	"fmt"
	"testing"

	platformevents "spectral/internal/platform/infrastructure/events"
	worlds "spectral/internal/worlds/contracts/events"
	"spectral/tests/pgtest"
)

// Kind describes the events that a ledger publishes, and where their effects show.
type Kind struct {
	EventType string
	Handlers  []string // each writes a row (handler, key) to faults.effects
	KeyField  string   // the field of the payload that holds the key
	// Payload returns the payload of the n-th event, with the given key.
	Payload func(n int, key string) any
	// StaleContent is SQL for the keys of delivered events whose projection does not have their content. It may be
	// empty.
	StaleContent string
}

// Cards describes world model cards, which the real projector handles. The key is the title. Each event has its own
// card.
func Cards() Kind {
	return Kind{
		EventType: worlds.WorldModelCardPublishedType,
		Handlers:  []string{platformevents.WorldModelCardProjectorName},
		KeyField:  "title",
		Payload: func(n int, key string) any {
			return worlds.WorldModelCardPublished{
				CardID: fmt.Sprintf("card-%06d", n), Version: int64(n), Title: key, Summary: "of a ledger",
				Attributes: json.RawMessage(`{}`),
			}
		},
		StaleContent: `select e.payload ->> 'title' from (
			select distinct on (workspace_id, payload ->> 'card_id') workspace_id, payload from core.outbox
			where event_type = 'worlds.world_model_card.published' and status = 'delivered'
			order by workspace_id, payload ->> 'card_id', (payload ->> 'version')::bigint desc) e
			left join platform.system_cards c on c.card_id = e.payload ->> 'card_id'
				and c.workspace_id is not distinct from e.workspace_id
			where c.snapshot is distinct from e.payload`,
	}
}

// The projector of a card whose key begins with LockedPrefix waits for the advisory lock (LockClass, hashtext(key)),
// which a test may hold.
const (
	LockedPrefix = "held-"
	LockClass    = 7701
)

// Prepare creates the schema faults in the database at url, a superuser's. Handlers of test events write their
// effects there; a trigger on platform.system_cards writes them for the projector, each time it runs.
func Prepare(t testing.TB, url string) {
	t.Helper()
	install(t, url, fmt.Sprintf(`
create schema faults;
grant usage on schema faults to public;
create table faults.effects (handler text not null, key text not null, at timestamptz not null default
	clock_timestamp());
grant insert, select on faults.effects to public;
create function faults.record_effect() returns trigger
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
create trigger record_effect before insert on platform.system_cards for each row execute function
	faults.record_effect()`,
		LockedPrefix, LockClass, platformevents.WorldModelCardProjectorName))
}

func install(t testing.TB, url, sql string) {
	t.Helper()
	_, err := pgtest.Conn(t, url).Exec(t.Context(), sql)
	must(t, err)
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
