package publish

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/invopop/jsonschema"

	"spectral/internal/core/events"
	"spectral/internal/core/events/infrastructure/postgres/coredb"
	"spectral/internal/core/events/infrastructure/postgres/pgtx"
)

// Register makes a generation and the contracts of this build known to the database, which refuses to publish without
// either. It is idempotent. A starting worker calls it.
func Register(ctx context.Context, db coredb.DBTX, generation events.Generation, contracts *events.Contracts) error {
	queries := coredb.New(db)
	if _, err := queries.RegisterGeneration(ctx, int64(generation)); err != nil {
		return fmt.Errorf("register generation %d: %w", generation, pgtx.AsRefused(err))
	}
	return RegisterContracts(ctx, db, generation, contracts)
}

// RegisterContracts writes the contracts of this build to core.event_types, and leaves those of a higher generation as
// they are. A migration calls it too.
func RegisterContracts(ctx context.Context, db coredb.DBTX, generation events.Generation,
	contracts *events.Contracts) error {
	types, err := EventTypes(contracts)
	if err != nil {
		return fmt.Errorf("register event types: %w", err)
	}
	params := coredb.RegisterEventTypesParams{Generation: int64(generation), Types: types}
	if _, err := coredb.New(db).RegisterEventTypes(ctx, params); err != nil {
		return fmt.Errorf("register event types: %w", err)
	}
	return nil
}

// EventTypes returns the contracts as core.event_types_register takes them: a JSON array, an object for each row.
func EventTypes(contracts *events.Contracts) ([]byte, error) {
	type eventType struct {
		EventType    string              `json:"event_type"`
		EventVersion int                 `json:"event_version"`
		Source       events.Scope        `json:"source"`
		Class        *string             `json:"class"`
		ContentClass events.ContentClass `json:"content_class"`
		Consumed     bool                `json:"consumed"`
		Schema       *jsonschema.Schema  `json:"payload_schema"`
		Rules        []payloadRule       `json:"payload_rules"`
		Fault        string              `json:"payload_fault"`
		Deadline     *time.Time          `json:"deadline"`
		Successor    *string             `json:"successor"`
		Sensitive    []string            `json:"sensitive"`
	}
	types := make([]eventType, 0)
	for _, c := range withOlderVersions(contracts.All()) {
		t := eventType{
			EventType: c.Type, EventVersion: c.Version, Source: c.Source, ContentClass: c.ContentClass,
			Consumed: !c.Unconsumed, Schema: c.Schema(), Sensitive: append([]string{}, c.Sensitive...),
		}
		t.Rules = payloadRules("", "$", t.Schema)
		t.Fault = anyFault(t.Rules)
		if c.Class != "" {
			t.Class = &c.Class
		}
		if d := c.Deprecation; d != nil {
			t.Deadline, t.Successor = &d.Deadline, &d.Successor
		}
		types = append(types, t)
	}
	return json.Marshal(types)
}

// olderVersions is how many versions before a declared one are registered with it.
const olderVersions = 100

// withOlderVersions adds the versions before the declared ones, so that producers of those can go on: a new version
// only adds optional fields, so a payload of an older version fits the next.
func withOlderVersions(declared []events.Contract) (all []events.Contract) {
	last := events.Contract{} // declared before, in order
	for _, c := range declared {
		from := max(1, c.Version-olderVersions)
		if last.Type == c.Type {
			from = max(from, last.Version+1)
		}
		for version := from; version < c.Version; version++ {
			older := c
			older.Version = version
			all = append(all, older)
		}
		all = append(all, c)
		last = c
	}
	return all
}
