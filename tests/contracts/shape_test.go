package contracts_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"maps"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	validation "github.com/santhosh-tekuri/jsonschema/v6"

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
			ID: earlier, At: at, Name: "name", Kind: `b "c"`, Count: -5, Version: 3, Size: 7, Share: 0.5,
			Raw:  json.RawMessage(`{"a": 1.0}`),
			Tags: []string{"t", "u"}, Parts: []part{{Kind: "p", N: 1, At: &at}, {Kind: "q"}}, One: part{Kind: "o"},
			Note: &note, Earlier: &earlier, Optional: &part{Kind: "x", N: 2},
		},
	}
}

// values are what a field may be mistaken for, as JSON. Integers with an exponent are left out: Postgres writes
// them out, and Go wants that of the producer.
var values = []string{
	`null`, `""`, `"x"`, `"0192f0c0-0000-7000-8000-000000000001"`, `"2026-02-28T00:00:00Z"`, `"2026-02-28 00:00:00"`,
	`"2026-13-01T00:00:00Z"`,
	`"2026-02-28T00:00:00+01:00"`, `"2026-02-28T00:00:00"`, `"a\nb"`, `"twenty characters, 20"`,
	`"twenty-one characters"`, `0`, `1`, `-1`, `1.0`, `1.5`, `-0.0`, `1000`, `1001`,
	`9223372036854775807`, `9223372036854775808`, `-9223372036854775809`, `1e30`, `true`, `false`, `{}`, `[]`, `[null]`,
	`["x"]`, `[1]`, `[[]]`, `[{}]`,
	`{"kind": "x", "n": 1}`, `[{"kind": "x", "n": 1.0}]`, `[{"kind": "", "n": 1}]`,
	`[{"kind": "x", "n": 1, "more": null}, {"kind": "x"}]`,
	`{"kind": "x", "n": 1, "at": "today"}`, `[{"kind": "x", "n": 1}, {"kind": "x", "n": 1}]`,
	`[{"kind": "x", "n": 1}, {"kind": "x", "n": 1}, {"kind": "x", "n": 1}]`,
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
	fold := strings.NewReplacer("s", "\u017f", "k", "\u212a")
	with(func(m map[string]json.RawMessage) { // what differs in case, or folds to the same letter, is another name
		for name := range fields {
			m[strings.ToUpper(name)] = json.RawMessage(`[1.0]`)
			if other := fold.Replace(name); other != name {
				m[other] = json.RawMessage(`{}`)
			}
		}
	})
	for _, name := range slices.Sorted(maps.Keys(fields)) {
		with(func(m map[string]json.RawMessage) { delete(m, name) })
		for _, value := range values {
			with(func(m map[string]json.RawMessage) { m[name] = json.RawMessage(value) })
		}
	}
	return append(all, json.RawMessage(`{}`))
}

// TestPayloadRulesAgreeWithTheSchemaAndWithGo publishes hundreds of almost right payloads. What the rules let through
// fits the JSON Schema, as another program reads it, and Go decodes it; what they refuse one of the two refuses.
func TestPayloadRulesAgreeWithTheSchemaAndWithGo(t *testing.T) {
	t.Parallel()
	ctx := background(t)
	contracts, err := pgtest.Contracts(everythingContract())
	must(t, err)
	conn := registered(ctx, t, pgtest.New(t), contracts)
	accepted, refused := 0, 0
	for _, c := range contracts.All() {
		example, err := events.NewEnvelope(c, c.Payload)
		must(t, err)
		try := values
		if c.Type != everythingContract().Type {
			try = values[:1] // no kind of field is left that the first contract does not have
		}
		for i, payload := range mutations(t, example.Payload, try) {
			refusal := publishBySQL(ctx, t, conn, c, payload)
			misfit := misfit(t, c, payload)
			switch {
			case (misfit == nil) != (refusal == nil):
				t.Errorf("%s %s\nJSON Schema and Go: %v\nSQL: %v", c.Type, payload, misfit, refusal)
			case refusal == nil:
				accepted++
			case i < 2:
				t.Errorf("the example of %s is refused: %v", c.Type, refusal)
			case refusal.Code != string(events.CodePayloadShape) || refusal.ColumnName != "payload":
				t.Errorf("%s: refused as %v", payload, refusal)
			default:
				refused++
			}
		}
	}
	if accepted < 70 || refused < 600 {
		t.Fatalf("%d payloads were accepted and %d refused: that is too few to mean anything", accepted, refused)
	}
}

// registered returns a connection to a database at url that has the contracts.
func registered(ctx context.Context, t *testing.T, url string, contracts *events.Contracts) *pgx.Conn {
	t.Helper()
	conn := pgtest.Conn(t, url)
	must(t, publish.Register(ctx, conn, pgtest.Generation, contracts))
	return conn
}

// misfit returns what a payload breaks of the JSON Schema that producers are shown, as another program reads it, and
// why Go does not decode it. It is nil if the payload fits.
func misfit(t *testing.T, c events.Contract, payload []byte) error {
	t.Helper()
	encoded, err := json.Marshal(c.Schema())
	must(t, err)
	resource, err := validation.UnmarshalJSON(bytes.NewReader(encoded))
	must(t, err)
	compiler := validation.NewCompiler()
	compiler.AssertFormat()
	must(t, compiler.AddResource("payload", resource))
	schema, err := compiler.Compile("payload")
	must(t, err)
	document, err := validation.UnmarshalJSON(bytes.NewReader(payload))
	must(t, err)
	return errors.Join(schema.Validate(document),
		events.Unmarshal(payload, reflect.New(reflect.TypeOf(c.Payload)).Interface()))
}

// publishBySQL returns what refuses the event, or nil.
func publishBySQL(ctx context.Context, t testing.TB, conn *pgx.Conn, c events.Contract,
	payload json.RawMessage) *pgconn.PgError {
	t.Helper()
	_, err := conn.Exec(ctx, "select core.outbox_publish($1, $2, $3, p_event_version => $4)", c.Type, c.Source, payload,
		c.Version)
	refusal, ok := errors.AsType[*pgconn.PgError](err)
	if !ok {
		must(t, err)
	}
	return refusal
}

func TestRefusalsNameAllViolationsAndWhatWasReceived(t *testing.T) {
	t.Parallel()
	ctx := background(t)
	contract := everythingContract()
	contracts, err := events.NewContracts(contract)
	must(t, err)
	url := pgtest.New(t)
	conn := registered(ctx, t, url, contracts)
	uow := &publish.UnitOfWork{Pool: pgtest.Pool(t, url), Publishing: publish.Publishing{
		Contracts: contracts, Generation: pgtest.Generation, Log: slog.New(slog.DiscardHandler),
	}}
	example, err := events.NewEnvelope(contract, contract.Payload)
	must(t, err)
	none := map[string]string{}
	for _, name := range []string{"id", "at", "name", "kind", "count", "version", "size", "share", "yes", "raw", "tags"} {
		none[name] = `null`
	}
	for _, c := range []struct {
		fields           map[string]string
		reason, received string
	}{
		{map[string]string{"one": `{"kind": "k", "m": 1}`}, "/one/n is missing", "/one/n {kind, m}"},
		{map[string]string{"one": `{}`}, "/one/kind is missing; /one/n is missing", "/one/kind {}; /one/n {}"},
		{map[string]string{"name": `1`}, "/name must be a string", "/name 1"},
		{map[string]string{"name": `""`}, "/name must not be empty", `/name ""`},
		{map[string]string{"name": `"twenty-one characters"`}, "/name must have at most 20 characters",
			"/name 21 characters"},
		{map[string]string{"kind": `"d"`}, `/kind must be one of a, b "c"`, `/kind "d"`},
		{map[string]string{"version": `0`}, "/version must be at least 1", "/version 0"},
		{map[string]string{"version": `1.0`}, "/version must be a whole number within 64 bits", "/version 1.0"},
		{map[string]string{"share": `1.5`}, "/share must be at most 1", "/share 1.5"},
		{map[string]string{"yes": `"no"`}, "/yes must be true or false", `/yes "no"`},
		{map[string]string{"tags": `null`}, "/tags must be an array", "/tags null"},
		{map[string]string{"tags": `["a", 1, {}]`}, "/tags/* must be a string", "/tags/* 1"},
		{map[string]string{"parts": `[{"kind": "k", "n": 1}, {"kind": "k"}]`}, "/parts/*/n is missing", "/parts/*/n {kind}"},
		{map[string]string{"parts": `[]`}, "/parts must have at least 1 element", "/parts 0 elements"},
		{map[string]string{"one": `[{"kind": ""}]`}, "/one must be an object", "/one an array"},
		{map[string]string{"one": `{"kind": "", "n": "1"}`}, "/one/kind must not be empty; /one/n must be an integer",
			`/one/kind ""; /one/n "1"`},
		{map[string]string{"id": `"a\tb"`}, "/id must be a UUID", `/id "a b"`},
		{map[string]string{"at": `"` + strings.Repeat("é", 70) + `"`},
			"/at must be a time as in RFC 3339, with a zone", `/at "` + strings.Repeat("é", 60) + `..." (140 bytes)`},
		{
			none, "/id must be a string; /at must be a string; /name must be a string; /kind must be a string; /count must be " +
				"an integer; /version must be an integer; /size must be an integer; /share must be a number; /yes must be true " +
				"or false; /raw must be an object; and 1 more",
			"/id null; /at null; /name null; /kind null; /count null; /version null; /size null; /share null; /yes null; /raw " +
				"null",
		},
	} {
		var fields map[string]json.RawMessage
		must(t, json.Unmarshal(example.Payload, &fields))
		for name, value := range c.fields {
			fields[name] = json.RawMessage(value)
		}
		payload, err := json.Marshal(fields)
		must(t, err)
		want := events.Refusal{
			Code: events.CodePayloadShape, Field: "payload", EventType: contract.Type, Reason: c.reason, Received: c.received,
			Hint: "select payload_schema from core.event_types where event_type = '" + contract.Type +
				"' and event_version = 1;",
		}
		if pg := publishBySQL(ctx, t, conn, contract, payload); pg == nil || pg.Message != "payload: "+want.Reason ||
			pg.Detail != "received "+want.Received || pg.Hint != want.Hint {
			t.Errorf("SQL refuses %v\nas   %+v\nwant %v", c.fields, pg, &want)
		}
		bad := example
		bad.Payload = payload
		err = uow.Do(ctx, events.Worlds, uuid.NullUUID{}, func(_ events.Tx, publisherFor events.PublisherFor) error {
			return publisherFor().Publish(ctx, bad)
		})
		if refusal, ok := errors.AsType[*events.Refusal](err); !ok || *refusal != want {
			t.Errorf("Go refuses %v\nas   %v\nwant %v", c.fields, err, &want)
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
		{map[string]int{}, `json:"a"`}, {named{}, `json:"a"`}, {"", `json:"a" jsonschema:"pattern=^a$"`},
		{"", `json:"a" jsonschema:"maxLength=256"`},
		{"", `json:"a" jsonschema:"minLength=2"`}, {"", `json:"a" jsonschema:"format=email"`}, {[]byte{}, `json:"a"`},
		{time.Second, `json:"a"`},
		{map[string]any{"b": 1}, `json:"a"`}, {float32(0), `json:"a"`}, {json.Number(""), `json:"a"`}, {0, `json:"a,string"`},
		{[]struct {
			B netip.Addr `json:"b"`
		}{}, `json:"a"`}, {"", ""}, {"", `json:"a b"`}, {[]map[string]int{}, `json:"a"`},
	} {
		contract := events.Contract{Type: "worlds.a.b", Version: 1, Source: events.Worlds,
			Payload: withField(c.field, c.tag), ContentClass: events.Operational}
		if err := contract.Validate(); err == nil || !strings.Contains(err.Error(), ": payload") {
			t.Errorf("%T %s: %v", c.field, c.tag, err)
		}
	}
}
