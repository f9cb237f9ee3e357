package contracts_test

import (
	"context"
	"encoding/json"
	"errors"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"spectral/internal/core/events"
	"spectral/internal/core/events/infrastructure/postgres/publish"
	"spectral/tests/pgtest"
)

// testTimeout is how long a test waits for what must happen.
const testTimeout = 30 * time.Second

func background(t testing.TB) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 4*testTimeout)
	t.Cleanup(cancel)
	return ctx
}

// everything has all that a payload may have.
type everything struct {
	ID       uuid.UUID       `json:"id"`
	At       time.Time       `json:"at"`
	Name     string          `json:"name" jsonschema:"minLength=1,maxLength=20"`
	Kind     string          `json:"kind" jsonschema:"enum=a,enum=b \"c\""`
	Count    int64           `json:"count"`
	Version  int             `json:"version" jsonschema:"minimum=1,maximum=1000"`
	Size     uint32          `json:"size"`
	Share    float64         `json:"share" jsonschema:"minimum=0,maximum=1"`
	Yes      bool            `json:"yes"`
	Raw      json.RawMessage `json:"raw"`
	Tags     []string        `json:"tags"`
	Parts    []part          `json:"parts" jsonschema:"minItems=1,maxItems=2"`
	One      part            `json:"one"`
	Note     *string         `json:"note,omitempty"`
	Earlier  *uuid.UUID      `json:"earlier,omitempty"`
	Optional *part           `json:"optional,omitempty"`
}

type part struct {
	Kind string     `json:"kind" jsonschema:"minLength=1"`
	N    int        `json:"n"`
	At   *time.Time `json:"at,omitempty"`
}

func everythingContract() events.Contract {
	at := time.Date(2026, 2, 28, 23, 59, 59, 123456000, time.FixedZone("", 3600))
	note, earlier := "n", uuid.MustParse("0192f0c0-0000-7000-8000-00000000000A")
	return events.Contract{
		Type: "worlds.test.everything", Version: 1, Source: events.Worlds, ContentClass: events.Operational,
		Payload: everything{
			ID: earlier, At: at, Name: "name", Kind: `b "c"`, Count: -5, Version: 3, Size: 7, Share: 0.5, Raw: json.RawMessage(`{"a": 1.0}`),
			Tags: []string{"t", "u"}, Parts: []part{{Kind: "p", N: 1, At: &at}, {Kind: "q"}}, One: part{Kind: "o"},
			Note: &note, Earlier: &earlier, Optional: &part{Kind: "x", N: 2},
		},
	}
}

// values are what a field may be mistaken for, as JSON. Integers with an exponent are left out: Postgres writes
// them out, and Go wants that of the producer.
var values = []string{
	`null`, `""`, `"x"`, `"0192f0c0-0000-7000-8000-000000000001"`, `"2026-02-28T00:00:00Z"`, `"2026-02-28 00:00:00"`, `"2026-13-01T00:00:00Z"`,
	`"2026-02-28T00:00:00+01:00"`, `"2026-02-28T00:00:00"`, `"a\nb"`, `"twenty characters, 20"`, `"twenty-one characters"`, `0`, `1`, `-1`, `1.0`, `1.5`, `-0.0`, `1000`, `1001`,
	`9223372036854775807`, `9223372036854775808`, `-9223372036854775809`, `1e30`, `true`, `false`, `{}`, `[]`, `[null]`, `["x"]`, `[1]`, `[[]]`, `[{}]`,
	`{"kind": "x", "n": 1}`, `[{"kind": "x", "n": 1.0}]`, `[{"kind": "", "n": 1}]`, `[{"kind": "x", "n": 1, "more": null}, {"kind": "x"}]`,
	`{"kind": "x", "n": 1, "at": "today"}`, `[{"kind": "x", "n": 1}, {"kind": "x", "n": 1}]`, `[{"kind": "x", "n": 1}, {"kind": "x", "n": 1}, {"kind": "x", "n": 1}]`,
}

// mutations are payloads that differ from the example in one field: left out, or another value.
func mutations(t testing.TB, example json.RawMessage, values []string) (all []json.RawMessage) {
	t.Helper()
	var fields map[string]json.RawMessage
	must(t, json.Unmarshal(example, &fields))
	with := func(change func(map[string]json.RawMessage)) {
		mutant := maps.Clone(fields)
		change(mutant)
		encoded, err := json.Marshal(mutant)
		must(t, err)
		all = append(all, encoded)
	}
	with(func(map[string]json.RawMessage) {})
	with(func(m map[string]json.RawMessage) { m["unknown"] = json.RawMessage(`[1.0]`) })
	for _, name := range slices.Sorted(maps.Keys(fields)) {
		with(func(m map[string]json.RawMessage) { delete(m, name) })
		for _, value := range values {
			with(func(m map[string]json.RawMessage) { m[name] = json.RawMessage(value) })
		}
	}
	return append(all, json.RawMessage(`{}`))
}

// TestGoAndSQLRefuseTheSamePayloads publishes hundreds of almost right payloads both ways.
func TestGoAndSQLRefuseTheSamePayloads(t *testing.T) {
	t.Parallel()
	ctx := background(t)
	contracts, err := events.NewContracts(append(pgtest.Contracts(t), everythingContract())...)
	must(t, err)
	conn := pgtest.Conn(t, pgtest.New(t))
	must(t, publish.Register(ctx, conn, pgtest.Generation, contracts))
	_, err = conn.Exec(ctx, triesToPublish)
	must(t, err)
	accepted, refused := 0, 0
	for _, c := range contracts.All() {
		example, err := events.NewEnvelope(c, c.Payload)
		must(t, err)
		try := values
		if c.Type != everythingContract().Type {
			try = values[:1] // no kind of field is left that the first contract does not have
		}
		for i, payload := range mutations(t, example.Payload, try) {
			_, goErr := contracts.Check(events.Envelope{EventType: c.Type, EventVersion: c.Version, Source: c.Source, Payload: payload})
			sqlErr := publishBySQL(ctx, t, conn, c, payload)
			if (goErr == nil) != (sqlErr == nil) {
				t.Errorf("%s %s\nGo:  %v\nSQL: %v", c.Type, payload, goErr, sqlErr)
				continue
			}
			if i < 2 && goErr != nil {
				t.Errorf("the example of %s is refused: %v", c.Type, goErr)
			}
			if goErr == nil {
				accepted++
				continue
			}
			refused++
			refusal, ok := errors.AsType[*events.Refusal](goErr)
			if !ok || refusal.Code != events.CodePayloadShape || refusal.Field != "payload" {
				t.Errorf("%s: refused as %v", payload, goErr)
			}
			if pg := sqlErr; pg.Code != string(events.CodePayloadShape) || pg.ColumnName != "payload" || !strings.HasPrefix(pg.Message, "payload: /") {
				t.Errorf("%s: refused by SQL as %v", payload, sqlErr)
			}
		}
	}
	if accepted < 70 || refused < 600 {
		t.Fatalf("%d payloads were accepted and %d refused: that is too few to mean anything", accepted, refused)
	}
}

// triesToPublish makes a function that publishes and returns what refuses that, in one round trip.
const triesToPublish = `create function pg_temp.refusal(p_type text, p_source text, p_payload jsonb, p_version integer, out code text, out field text, out message text,
	out hint text) language plpgsql as $$ begin
	perform core.outbox_publish(p_type, p_source, p_payload, p_event_version => p_version);
exception when others then
	get stacked diagnostics code = returned_sqlstate, field = column_name, message = message_text, hint = pg_exception_hint;
end $$`

// publishBySQL returns a *pgconn.PgError, or nil.
func publishBySQL(ctx context.Context, t testing.TB, conn *pgx.Conn, c events.Contract, payload json.RawMessage) *pgconn.PgError {
	t.Helper()
	var refusal pgconn.PgError
	var code, field, message, hint *string
	must(t, conn.QueryRow(ctx, "select * from pg_temp.refusal($1, $2, $3, $4)", c.Type, c.Source, payload, c.Version).Scan(&code, &field, &message, &hint))
	if code == nil {
		return nil
	}
	refusal.Code, refusal.ColumnName, refusal.Message, refusal.Hint = *code, *field, *message, *hint
	return &refusal
}

// What both say names the place.
func TestRefusedPayloadsAreToldWhere(t *testing.T) {
	t.Parallel()
	ctx := background(t)
	contract := everythingContract()
	contracts, err := events.NewContracts(contract)
	must(t, err)
	conn := pgtest.Conn(t, pgtest.New(t))
	must(t, publish.Register(ctx, conn, pgtest.Generation, contracts))
	_, err = conn.Exec(ctx, triesToPublish)
	must(t, err)
	example, err := events.NewEnvelope(contract, contract.Payload)
	must(t, err)
	for _, c := range []struct{ field, value, inGo, inSQL string }{
		{"name", "", "missing property 'name'", "payload: /name is missing"},
		{"name", `1`, "/name: got number, want string", "payload: /name must be a string"},
		{"name", `""`, "/name: minLength: got 0, want 1", "payload: /name must not be empty"},
		{"name", `"twenty-one characters"`, "/name: maxLength: got 21, want 20", "payload: /name must have at most 20 characters"},
		{"kind", `"d"`, `/kind: value must be one of 'a', 'b "c"'`, `payload: /kind must be one of a, b "c"`},
		{"version", `0`, "/version: minimum: got 0, want 1", "payload: /version must be at least 1"},
		{"version", `1.0`, "/version: got number 1.0, want int", "payload: /version must be a whole number within 64 bits"},
		{"share", `1.5`, "/share: maximum: got 1.5, want 1", "payload: /share must be at most 1"},
		{"yes", `"no"`, "/yes: got string, want boolean", "payload: /yes must be true or false"},
		{"tags", `null`, "/tags: got null, want array", "payload: /tags must be an array"},
		{"tags", `["a", 1]`, "/tags/*: got number, want string", "payload: /tags/* must be a string"},
		{"parts", `[{"kind": "k", "n": 1}, {"kind": "k"}]`, "/parts/*: missing property 'n'", "payload: /parts/*/n is missing"},
		{"parts", `[]`, "/parts: minItems: got 0, want 1", "payload: /parts must have at least 1 elements"},
		{"one", `{"kind": "k", "n": "1"}`, "/one/n: got string, want integer", "payload: /one/n must be an integer"},
		{"id", `"1"`, "/id: '1' is not valid uuid", "payload: /id must be a UUID"},
		{"at", `"today"`, "/at: 'today' is not valid date-time", "payload: /at must be a time as in RFC 3339, with a zone"},
	} {
		var fields map[string]json.RawMessage
		must(t, json.Unmarshal(example.Payload, &fields))
		if fields[c.field] = json.RawMessage(c.value); c.value == "" {
			delete(fields, c.field)
		}
		payload, err := json.Marshal(fields)
		must(t, err)
		e := events.Envelope{EventType: contract.Type, EventVersion: 1, Source: events.Worlds, Payload: payload}
		if _, err := contracts.Check(e); err == nil || !strings.Contains(err.Error(), c.inGo) || !strings.Contains(err.Error(), "docs/events/worlds.test.everything.md") {
			t.Errorf("%s = %s: in Go %v, want %s", c.field, c.value, err, c.inGo)
		}
		if pg := publishBySQL(ctx, t, conn, contract, payload); pg == nil || pg.Message != c.inSQL || !strings.Contains(pg.Hint, "docs/events/worlds.test.everything.md") {
			t.Errorf("%s = %s: in SQL %v, want %s", c.field, c.value, pg, c.inSQL)
		}
	}
}

func TestContractsRefusePayloadsThatSQLCannotCheck(t *testing.T) {
	t.Parallel()
	type named struct {
		A any `json:"a"`
	}
	for _, c := range []struct {
		field any
		tag   string
	}{
		{map[string]int{}, `json:"a"`}, {named{}, `json:"a"`}, {"", `json:"a" jsonschema:"pattern=^a$"`}, {"", `json:"a" jsonschema:"maxLength=256"`},
		{"", `json:"a" jsonschema:"minLength=2"`}, {"", `json:"a" jsonschema:"format=email"`}, {[]byte{}, `json:"a"`}, {time.Second, `json:"a"`},
		{map[string]any{"b": 1}, `json:"a"`}, {float32(0), `json:"a"`}, {json.Number(""), `json:"a"`}, {0, `json:"a,string"`},
		{[]struct {
			B netip.Addr `json:"b"`
		}{}, `json:"a"`}, {"", ""}, {"", `json:"a b"`}, {[]map[string]int{}, `json:"a"`},
	} {
		contract := events.Contract{Type: "worlds.a.b", Version: 1, Source: events.Worlds, Payload: withField(c.field, c.tag), ContentClass: events.Operational}
		if err := contract.Validate(); err == nil || !strings.Contains(err.Error(), ": payload") {
			t.Errorf("%T %s: %v", c.field, c.tag, err)
		}
	}
}
