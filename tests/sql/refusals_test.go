package sql_test

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"spectral/internal/core/events"
	"spectral/tests/pgtest"
)

// fields are the parameters of core.outbox_publish without p_, and event_id and occurred_at, in
// SQL's spelling; one that is left out takes its default, null is SQL's.
type fields map[string]string

const null = "\x00null"

var parameterTypes = map[string]string{
	"event_id": "uuid", "event_type": "text", "event_version": "integer", "occurred_at": "timestamptz", "source": "text",
	"target": "text", "workspace_id": "uuid", "payload": "jsonb", "idempotency_key": "text", "trace_context": "text",
	"available_at": "timestamptz", "generation": "bigint", "class": "text", "content_class": "text",
}

// complete is an event without faults, but for these fields.
func (f fields) complete() fields {
	whole := fields{"event_type": cardType, "source": "worlds", "payload": `{"a":1}`}
	maps.Copy(whole, f)
	return whole
}

// call is core.outbox_publish with these fields by name.
func (f fields) call() (sql string, arguments []any) {
	var list []string
	for _, name := range slices.Sorted(maps.Keys(f)) {
		if f[name] == null {
			list = append(list, "p_"+name+" => null")
			continue
		}
		arguments = append(arguments, f[name])
		list = append(list, fmt.Sprintf("p_%s => $%d::text::%s", name, len(arguments), parameterTypes[name]))
	}
	return "select core.outbox_publish(" + strings.Join(list, ", ") + ")", arguments
}

// element is the event in the argument of core.outbox_publish_many.
func (f fields) element() string {
	var list []string
	for _, name := range slices.Sorted(maps.Keys(f)) {
		v := f[name]
		switch parameterTypes[name] {
		case "integer", "bigint", "jsonb":
		default:
			if utf8.ValidString(v) {
				encoded, _ := json.Marshal(v) // of a string: never fails
				v = string(encoded)
			} else { // json.Marshal would replace what is invalid
				v = `"` + v + `"`
			}
		}
		if f[name] == null {
			v = "null"
		}
		list = append(list, `"`+name+`":`+v)
	}
	return "{" + strings.Join(list, ",") + "}"
}

// envelope is the same event for Go, if Go can express it.
func (f fields) envelope() (e events.Envelope, options []events.PublishOption, generation events.Generation, ok bool) {
	e = events.Envelope{EventVersion: 1}
	generation = pgtest.Generation
	var err error
	for name, v := range f {
		if v == null || (v == "" && name != "payload" && name != "event_type" && name != "source") {
			return e, nil, 0, false // Go's zero value stands for "none" and cannot be wrong
		}
		var at time.Time
		switch name {
		case "event_id":
			e.EventID, err = uuid.Parse(v)
		case "event_type":
			e.EventType = v
		case "event_version":
			e.EventVersion, err = strconv.Atoi(v)
		case "occurred_at":
			e.OccurredAt, err = time.Parse(time.RFC3339Nano, v)
		case "source":
			e.Source = events.Scope(v)
		case "target":
			e.Target = events.Scope(v)
		case "workspace_id":
			e.WorkspaceID.UUID, err = uuid.Parse(v)
			e.WorkspaceID.Valid = true
		case "payload":
			e.Payload = json.RawMessage(v)
		case "idempotency_key":
			e.IdempotencyKey = v
		case "trace_context":
			e.TraceContext = v
		case "available_at":
			at, err = time.Parse(time.RFC3339Nano, v)
			options = append(options, events.AvailableAt(at))
		case "generation":
			var n int64
			n, err = strconv.ParseInt(v, 10, 64)
			generation = events.Generation(n)
		default:
			return e, nil, 0, false
		}
		if err != nil {
			return e, nil, 0, false
		}
	}
	return e, options, generation, f["event_id"] != uuid.Nil.String()
}

// input is one event and what becomes of it: code is empty for an accepted one.
type input struct {
	set   fields
	code  events.Code
	field string
	// inSQL: Go finds the fault only in the database, which ends the transaction.
	inSQL bool
	// sql and many are the SQLSTATEs of SQL and core.outbox_publish_many: code, or one of Postgres' own, or SP021 for what
	// is not of the field's form.
	sql, many string
}

func nested(depth int) string {
	return strings.Repeat(`{"a":`, depth-1) + "{}" + strings.Repeat("}", depth-1)
}

const day = 24 * time.Hour

func inputs() (list []input) {
	const trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
	in := func(d time.Duration) string { return time.Now().Add(d).UTC().Format(time.RFC3339) }
	// refused and accepted give one field several values. How is empty, "in SQL", or sql and many, divided by a slash.
	refused := func(code events.Code, field, how string, values ...string) {
		for _, v := range values {
			one := input{set: fields{field: v}, code: code, field: field, inSQL: how == "in SQL", sql: string(code)}
			if sql, many, _ := strings.Cut(how, "/"); !one.inSQL {
				one.sql, one.many = cmp.Or(sql, one.sql), many
			}
			one.many = cmp.Or(one.many, one.sql)
			list = append(list, one)
		}
	}
	accepted := func(field string, values ...string) {
		for _, v := range values {
			list = append(list, input{set: fields{field: v}})
		}
	}

	refused("SP001", "event_type", "", "", null, "worlds", "Worlds.card", "worlds.", ".card", "worlds..card",
		"worlds.1card", "worlds.card published", "worlds.cärd", "worlds.card\n", longestType+"a")
	accepted("event_type", longestType)
	refused("SP002", "event_version", "", "0", "-1", "1000001")
	refused("SP002", "event_version", "22003/SP021", "2147483648")
	refused("SP003", "source", "", "", null, "Worlds", "worlds ", "retention", strings.Repeat("x", 5000))
	refused("SP004", "target", "", "", "Worlds", "all", "platform,worlds")
	accepted("target", "platform", "worlds", "core", null)

	// payload: its form
	refused("SP005", "payload", "", "[]", `[{"a":1}]`, `"text"`, "null", "true", "1", null)
	refused("SP005", "payload", "22P02", "", " ", "{", `{"a":1}}`, `{"a":1} {}`, "{'a':1}", `{a:1}`, `{"a":01}`,
		`{"a":1.}`, `{"a":+1}`, `{"a":NaN}`, `{"a":"\x"}`, `{"a":"`+"\n"+`"}`, `{"a":1,}`, "\ufeff{}")
	refused("SP009", "payload", "22021", "{\"a\":\"\xff\"}", "{\"\xc3\":1}", "{\"a\":\"\xed\xa0\x80\"}",
		"{\"a\":\"\xf4\x90\x80\x80\"}", "{\"a\":\"\xc0\x80\"}")
	refused("SP009", "payload", "22P05", `{"a":"\u0000"}`, `{"\u0000":1}`, `{"a":"x\\\u0000"}`)
	refused("SP009", "payload", "22P02", `{"a":"\ud800"}`, `{"a":"\udc00"}`, `{"a":"\ud800\ud800"}`,
		`{"a":"\ud83d\u0041"}`, `{"a":"\ud83d \ude00"}`, `{"\udfff":1}`, `{"a":"\ud83d\\ude00"}`)
	refused("SP005", "payload", "22021", "{\"a\":\"\x00\"}")
	accepted("payload", "{}", ` { "b" : [ ] , "a" : null } `, `{"a":"\\u0000","\\ud800":"\\\\udc00"}`,
		`{"a":"\ud83d\ude00😀\u00e9\"\\\/\b\f\n\r\t\u007f\uffff\ufffe"}`, `{"a":1,"a":2}`, `{"a":"{[[["}`,
		`{"":{"":[[],{},"",0,false]}}`)
	// payload: depth
	accepted("payload", nested(64), strings.Repeat(`{"a":[`, 32)+strings.Repeat("]}", 32),
		`{"a":"`+strings.Repeat("[", 200)+`"}`, `{"a":[`+strings.Repeat("{},", 200)+`{}]}`)
	refused("SP007", "payload", "", nested(65), strings.Repeat(`{"a":[`, 32)+"[]"+strings.Repeat("]}", 32), nested(5000))
	refused("SP007", "payload", "54001", nested(100_000), `{"a":`+strings.Repeat("[", 100_000))
	// payload: numbers
	digits := func(n int) string { return "1" + strings.Repeat("0", n-1) }
	for _, n := range []string{"0", "-0", "1e308", "-1e308", "1.7976931348623157e308", "1.79769313486231575e308",
		digits(309), "1.50", "1E+2", "5e-324", "1e-399", "0." + strings.Repeat("7", 399), "-1." + strings.Repeat("7", 399),
		"0e400", "-0.0", "123456789012345678901234567890", "9007199254740993", "0.1000"} {
		accepted("payload", `{"a":[{"b":`+n+`},"x"]}`)
	}
	for _, n := range []string{"1e309", "-1e309", "1.7976931348623159e308", "1e100000", digits(310), "-" + digits(400),
		digits(5000), "1e-400", "-1e-400", "1.5e-400", "1." + strings.Repeat("7", 400), "0." + strings.Repeat("0", 400)} {
		refused("SP008", "payload", "", `{"a":[{"b":`+n+`},"x"]}`)
	}
	refused("SP008", "payload", "22003", `{"a":1e200000}`, `{"a":1e99999999999999999999}`)
	// payload: size, as jsonb text
	text := func(n int) string { return `{"a":"` + strings.Repeat("x", n-len(`{"a": ""}`)) + `"}` }
	accepted("payload", text(events.MaxPayloadBytes), strings.Repeat(" ", 1000)+text(events.MaxPayloadBytes),
		`{"a":"`+strings.Repeat(`\u0041`, events.MaxPayloadBytes/5)+`"}`, `{"a":"`+digits(500)+`"}`)
	refused("SP006", "payload", "in SQL", text(events.MaxPayloadBytes+1), `{"a":[`+strings.Repeat("1e300,", 4000)+`1]}`)
	refused("SP006", "payload", "", text(events.MaxPayloadBytes+2), text(4*events.MaxPayloadBytes))

	// keys; white space is Unicode's
	refused("SP010", "idempotency_key", "", "", " ", "\t\r\n\v\f ", "\u00a0", "\u2003\u3000", "\u0085",
		"\u2028\u205f\u1680\u202f\u2000\u200a\u2029", strings.Repeat("k", 513), strings.Repeat("é", 257))
	accepted("idempotency_key", "k", " k ", strings.Repeat("k", 512), strings.Repeat("é", 256), "\u200b", "\ufeff",
		"'; drop table core.outbox; --", "a\nb", `\`, `"`, "%s%n", "-", ":", null)
	refused("SP009", "idempotency_key", "22021/22P05", "a\x00b")
	refused("SP009", "idempotency_key", "22021", "a\xff")
	// trace contexts
	accepted("trace_context", trace, "cc-"+trace[3:])
	refused("SP011", "trace_context", "", "", "x", trace+"-00", trace[:54], " "+trace, trace+"\n",
		strings.ToUpper(trace), "ff-"+trace[3:], "00-"+strings.Repeat("0", 32)+trace[35:],
		trace[:36]+strings.Repeat("0", 16)+"-01", strings.ReplaceAll(trace, "-", "_"), strings.Repeat("0", 600))
	// ids
	refused("SP020", "event_id", "", uuid.Nil.String(), uuid.Max.String())
	refused("SP021", "event_id", "", "x", "0190163d8694739baea5966c26f8ad91")
	accepted("event_id", "0190163d-8694-739b-aea5-966c26f8ad91", "0190163D-8694-439B-AEA5-966C26F8AD92")
	refused("SP022", "workspace_id", "", uuid.Nil.String(), uuid.Max.String())
	refused("SP022", "workspace_id", "22P02/SP021", "x")
	list = append(list,
		input{set: fields{"workspace_id": "0190163d-8694-739b-aea5-966c26f8ad91", "idempotency_key": "k"}})
	// class and content class
	refused("SP012", "class", "", "", "Slow", "1slow", "slow-er", "slow ", "slow\n", strings.Repeat("s", 31), "a;b")
	accepted("class", "s", strings.Repeat("s", 30), "slow_2")
	refused("SP013", "content_class", "", "", "Workspace", "secret")
	accepted("content_class", "operational", "workspace")
	// times
	refused("SP014", "available_at", "", in(367*day))
	refused("SP014", "available_at", "/SP021", "infinity", "-infinity", "10000-01-01T00:00:00Z")
	refused("SP015", "occurred_at", "", in(25*time.Hour), "1999-12-31T23:59:59Z", "1970-01-01T00:00:00Z",
		"9999-12-31T23:59:59Z")
	refused("SP021", "occurred_at", "", "infinity", "now", "", "2024-13-01T00:00:00Z", "2024-02-30T00:00:00Z",
		"2023-02-29T00:00:00Z", "2023-04-31T00:00:00Z", "2024-01-01T24:00:00Z", "2024-01-01T00:00:60Z",
		"2024-01-01T00:00:00", "2024-01-01", "2024-01-01T00:00:00+99:00", "2024-01-01T00:00:00+15:99",
		"1900-02-29T00:00:00Z", "0000-01-01T00:00:00Z")
	accepted("available_at", in(365*day), in(-400*day), "2001-01-01T00:00:00Z", in(time.Hour))
	accepted("occurred_at", in(23*time.Hour), "2000-01-01T00:00:00Z", "2024-02-29T12:34:56.123456Z",
		"2024-02-29T12:34:56.1234567+05:30", "2000-02-29T00:00:00-12:00", "2024-06-30T23:59:59Z")
	// what the database knows
	refused("SP016", "event_type", "", "worlds.thing.unknown")
	list = append(list,
		input{set: fields{"event_version": "2"}, code: "SP016", field: "event_type", sql: "SP016", many: "SP016"},
		input{set: fields{"event_type": platformType}, code: "SP018", field: "source", sql: "SP018", many: "SP018"},
		input{set: fields{"event_type": platformType, "source": "platform"}, code: "SP017", field: "source", inSQL: true,
			sql: "SP017", many: "SP017"})
	refused("SP018", "source", "", "platform")
	refused("SP019", "generation", "in SQL", "99", "2", "0", "-1", "999999999999")
	accepted("generation", "1", null)
	return list
}

func TestInputs(t *testing.T) {
	t.Parallel()
	d := setup(t)
	worlds := d.login(t, "spectral_worlds")
	published, provoked := 0, map[events.Code]bool{}
	// answered compares how a publish ended, and counts those that were accepted. It returns the words of a refusal.
	answered := func(t *testing.T, code, field string, err error) (words events.Refusal) {
		t.Helper()
		if refusal, ok := errors.AsType[*events.Refusal](err); ok {
			words = *refusal
		} else if pg, ok := errors.AsType[*pgconn.PgError](err); ok {
			words = events.Refusal{
				Code: events.Code(pg.Code), Field: pg.ColumnName, Hint: pg.Hint,
				Reason:   strings.TrimPrefix(pg.Message, pg.ColumnName+": "),
				Received: strings.TrimPrefix(strings.TrimPrefix(pg.Detail, "event 1 of the call: "), "received "),
			}
		} else if err != nil {
			t.Fatal(err)
		} else {
			published++
		}
		ours := strings.HasPrefix(code, "SP")
		if string(words.Code) != code || ours && words.Field != field {
			t.Fatalf("answer %q on field %q, want %q on %q: %v", words.Code, words.Field, code, field, err)
		}
		if ours && (words.Reason == "" || words.Received == "" || words.Hint == "") {
			t.Errorf("a refusal says what is wanted, what was received and what to do; this one %+v", words)
		}
		words.EventType = ""
		return words
	}
	for _, in := range inputs() {
		event := in.set.complete()
		provoked[in.code] = true
		t.Run(fmt.Sprintf("%s/%.60q", in.code, strings.TrimPrefix(fmt.Sprint(in.set), "map")), func(t *testing.T) {
			var words []events.Refusal // of each way to publish
			if e, options, generation, ok := event.envelope(); ok && in.code != "SP021" {
				e := withOwnID(e)
				err := inTx(t, worlds, func(ctx context.Context, tx pgx.Tx) error {
					err := d.publishing(generation).Publisher(tx, options...).Publish(ctx, e)
					if err == nil || in.inSQL {
						return err
					}
					if _, after := tx.Exec(ctx, "select 1"); after != nil {
						t.Errorf("after the refusal the transaction answers %v", after)
					}
					return errors.Join(err, tx.Commit(ctx)) // committing what a refused publish did must publish nothing
				})
				words = append(words, answered(t, string(in.code), in.field, err))
				if in.code == "" {
					d.wantStored(t, event, e.EventID.String())
				}
				// options, contracts and the database are not Validate's to judge
				switch valid := e.Validate(time.Now()); in.code {
				case "", "SP014", "SP016", "SP017", "SP018", "SP019":
					if valid != nil {
						t.Errorf("Validate: %v", valid)
					}
				default:
					refusal, ok := errors.AsType[*events.Refusal](valid)
					if !in.inSQL && (!ok || refusal.Code != in.code || refusal.Field != in.field) {
						t.Errorf("Validate: %v", valid)
					}
				}
			}
			var id string
			if event["event_id"] == "" && !has(event, "occurred_at") {
				sql, arguments := event.call()
				words = append(words, answered(t, in.sql, in.field, worlds.QueryRow(deadline(t), sql, arguments...).Scan(&id)))
				if in.code == "" {
					d.wantStored(t, event, id)
				}
			}
			words = append(words, answered(t, in.many, in.field,
				worlds.QueryRow(deadline(t), "select (core.outbox_publish_many($1::text::jsonb))[1]",
					"["+event.element()+"]").Scan(&id)))
			for i := range words {
				// jsonb text has another size than what Go was given, and other numbers
				if in.code == "SP006" || in.code == "SP008" {
					words[i].Received = ""
				}
				if words[i].Code == words[0].Code && words[i] != words[0] {
					t.Errorf("two ways to publish refuse in different words:\n%+v\n%+v", words[0], words[i])
				}
			}
			if in.code == "" {
				d.wantStored(t, event, id)
			}
			if n := d.count(t); n != published {
				t.Errorf("%d events in the outbox, want %d", n, published)
				published = n
			}
		})
	}
	for n := 1; n <= 22; n++ {
		if code := events.Code(fmt.Sprintf("SP%03d", n)); !provoked[code] {
			t.Errorf("nothing provokes %s", code)
		}
	}
}

// Postgres takes whatever payload the scanner of package events accepts, and gives back an equal value.
func FuzzPayload(f *testing.F) {
	for _, in := range inputs() {
		if payload := in.set["payload"]; len(payload) < 1000 {
			f.Add([]byte(payload))
		}
	}
	conn := pgtest.Conn(f, pgtest.New(f))
	f.Fuzz(func(t *testing.T, payload []byte) {
		if events.ValidatePayload(payload) != nil {
			t.Skip() // TestInputs has what must be refused
		}
		stored := value[string](t, conn, "select $1::text::jsonb::text", string(payload))
		var have, want any
		must(t, errors.Join(json.Unmarshal([]byte(stored), &have), json.Unmarshal(payload, &want)))
		if !reflect.DeepEqual(have, want) {
			t.Errorf("%q is read back as %q", payload, stored)
		}
	})
}

func has(f fields, name string) bool { _, ok := f[name]; return ok }

// withOwnID lets the event of one input be published from Go beside that from SQL.
func withOwnID(e events.Envelope) events.Envelope {
	if e.EventID != uuid.Max {
		e.EventID = uuid.New()
	}
	return e
}

func (d *database) wantStored(t *testing.T, given fields, id string) {
	t.Helper()
	text := func(name string) any { // null for what is not given
		if v := given[name]; v != null && v != "" {
			return v
		}
		return nil
	}
	have := value[string](t, d.admin, `select concat_ws(' ',
		idempotency_key = coalesce('worlds:' || coalesce($4::text, '-') || ':' || $2::text, $1),
		payload = $3::text::jsonb, workspace_id is not distinct from $4::uuid, target is not distinct from $5::text,
		trace_context is not distinct from $6::text,
		$7::text is null or occurred_at - $7::timestamptz between interval '-1 microsecond' and interval '1 microsecond',
		$8::text is null or available_at = greatest($8::timestamptz, created_at))
		from core.outbox where id = $1::text::uuid`, id, text("idempotency_key"), given["payload"], text("workspace_id"),
		text("target"), text("trace_context"), text("occurred_at"), text("available_at"))
	if have != "t t t t t t t" {
		t.Errorf("key, payload, workspace, target, trace and times are as given: %s", have)
	}
}

// A trigger that discards the row must not let a publish report success.
func TestAnEventThatATriggerDiscardsIsRefused(t *testing.T) {
	t.Parallel()
	d := setup(t)
	exec(t, d.admin, `create function public.discard() returns trigger language plpgsql as 'begin return null; end';
		create trigger discard before insert on core.outbox for each row execute function public.discard()`)
	d.run(t, line{"worlds", publishInto(1), "P0001 ~ a trigger on core.outbox discards events"})
}

// What only a bulk call can get wrong.
func TestMalformedCalls(t *testing.T) {
	t.Parallel()
	d := setup(t)
	conn := d.login(t, "spectral_worlds")
	good := fields{}.complete().element()
	changed := func(part string) string { return strings.TrimSuffix(good, "}") + "," + part + "}" }
	const publish = "select core.outbox_publish_many($1::text::jsonb)"
	const first, second = "event 1 of the call: ", "event 2 of the call: "
	refused := func(argument, field, place string) {
		t.Helper()
		_, err := conn.Exec(deadline(t), publish, argument)
		if pg, ok := errors.AsType[*pgconn.PgError](err); !ok || pg.Code != "SP021" || pg.ColumnName != field ||
			!strings.HasPrefix(pg.Detail, place+"received ") || pg.Hint == "" {
			t.Errorf("%s: %v", argument, err)
		}
	}
	for _, argument := range []string{"null", "{}", `"x"`, "1"} {
		refused(argument, "p_events", "")
	}
	for _, argument := range []string{"[1]", "[null]", "[[]]", "[" + changed(`"workspace":1`) + "]",
		"[" + changed(`"unknown":null`) + "]"} {
		refused(argument, "p_events", first)
	}
	refused("["+good+",[]]", "p_events", second)
	refused("["+good+","+changed(`"Payload":{}`)+"]", "p_events", second)
	for field, values := range map[string][]string{"event_version": {`"1"`, "1.5"}, "event_id": {"7"},
		"generation": {`"1"`, "99999999999999999999"}, "workspace_id": {"{}"}, "source": {"1"}, "target": {"[]"},
		"idempotency_key": {"5"}, "trace_context": {"false"}, "class": {"1"}, "content_class": {"1"},
		"occurred_at": {"1700000000"}, "available_at": {"1"}} {
		for _, value := range values {
			refused("["+changed(`"`+field+`":`+value)+"]", field, first)
		}
	}
	// a whole number, spelled otherwise, is only not registered
	if _, err := conn.Exec(deadline(t), publish, "["+changed(`"event_version":1e3`)+"]"); sqlstate(t, err) != "SP016" {
		t.Errorf("version 1e3: %v", err)
	}
	if _, err := conn.Exec(deadline(t), "select core.outbox_publish_many(null)"); sqlstate(t, err) != "SP021" {
		t.Errorf("SQL null: %v", err)
	}
	if ids := value[[]string](t, conn, "select core.outbox_publish_many('[]')::text[]"); len(ids) != 0 {
		t.Errorf("no event gives ids %v", ids)
	}
	if n := d.count(t); n != 0 {
		t.Errorf("%d events were published", n)
	}
}

// A producer's session decides how its functions' texts are read.
func TestFunctionsDoNotDependOnStandardConformingStrings(t *testing.T) {
	t.Parallel()
	d := setup(t)
	const off = "set standard_conforming_strings = off; set escape_string_warning = on; select core."
	d.run(t,
		line{"", off + `event_field_fault('occurred_at', '"2024-01-01T00:00:00x5Z"')`,
			"must be a time as in RFC 3339, with a zone"},
		line{"", off + `event_field_fault('occurred_at', '"2024-01-01T00:00:00.5Z"')`, "-"},
		line{"", off + `shown(to_jsonb(chr(1) || 'a' || chr(127)))`, `" a "`},
		line{"worlds", off + `outbox_publish_many('[{"event_type": 1}]')`, `SP021 event_type ~ \df core.outbox_publish`})
}
