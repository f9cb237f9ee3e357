package events_test

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"math"
	"os"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"spectral/internal/core/events"
)

var update = flag.Bool("update", false, "rewrite the golden files")

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// The envelope is frozen: ten fields, under these names, null where absent.
func TestEnvelopeGolden(t *testing.T) {
	t.Parallel()
	full := events.Envelope{
		EventID: uuid.MustParse("01980000-0000-7000-8000-000000000001"), EventType: "decision.recorded", EventVersion: 2,
		OccurredAt: time.Date(2026, 1, 2, 3, 4, 5, 678000, time.FixedZone("", 3600)), Source: events.Platform,
		Target:      events.Worlds,
		WorkspaceID: uuid.NullUUID{UUID: uuid.MustParse("01980000-0000-7000-8000-000000000002"), Valid: true},
		Payload:     json.RawMessage(`{"a":1}`), IdempotencyKey: "key",
		TraceContext: "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
	}
	bare := events.Envelope{EventID: full.EventID, EventType: "decision.recorded", EventVersion: 1,
		OccurredAt: full.OccurredAt,
		Source:     events.Platform, Payload: json.RawMessage(`{}`), IdempotencyKey: full.EventID.String()}
	got, err := json.MarshalIndent([]events.Envelope{full, bare}, "", "  ")
	must(t, err)
	const golden = "testdata/envelope.json"
	if *update {
		must(t, os.WriteFile(golden, append(got, '\n'), 0o600))
	}
	want, err := os.ReadFile(golden)
	must(t, err)
	if string(got)+"\n" != string(want) {
		t.Errorf("%s differs from what is now (go test -update rewrites it):\n%s", golden, got)
	}
	if n := reflect.TypeFor[events.Envelope]().NumField(); n != 10 {
		t.Fatalf("the envelope has %d fields, ten are frozen", n)
	}
	var back []events.Envelope
	must(t, json.Unmarshal(got, &back))
	again, err := json.MarshalIndent(back, "", "  ")
	must(t, err)
	if string(again) != string(got) {
		t.Errorf("read back as %s", again)
	}
}

func TestRetryDelayStaysWithinBounds(t *testing.T) {
	t.Parallel()
	p := events.DefaultRetryPolicy
	for failures := range 1_000_001 {
		for _, random := range []float64{0, 0.5, math.Nextafter(1, 0)} {
			if d := p.Delay(failures, random); d < 0 || d > 5*time.Minute {
				t.Fatalf("after %d failures: %s", failures, d)
			}
		}
	}
	for failures, want := range map[int]time.Duration{1: time.Second, 2: 2 * time.Second, 5: 16 * time.Second,
		9: 256 * time.Second, 10: 5 * time.Minute, 64: 5 * time.Minute} {
		if d := p.Delay(failures, math.Nextafter(1, 0)).Round(time.Millisecond); d != want {
			t.Errorf("after %d failures the bound is %s, want %s", failures, d, want)
		}
	}
	if p.Exhausted(5) || !p.Exhausted(6) {
		t.Error("want 5 retries after the first attempt")
	}
}

func TestRetryPolicyRefusesNonsense(t *testing.T) {
	t.Parallel()
	good := events.DefaultRetryPolicy
	must(t, good.Validate())
	for name, break_ := range map[string]func(*events.RetryPolicy){
		"negative retries":  func(p *events.RetryPolicy) { p.MaxRetries = -1 },
		"no base":           func(p *events.RetryPolicy) { p.Base = 0 },
		"cap below base":    func(p *events.RetryPolicy) { p.Cap = time.Millisecond },
		"cap over a day":    func(p *events.RetryPolicy) { p.Cap = 25 * time.Hour },
		"shrinking":         func(p *events.RetryPolicy) { p.Multiplier = 0.5 },
		"multiplier is NaN": func(p *events.RetryPolicy) { p.Multiplier = math.NaN() },
		"multiplier is Inf": func(p *events.RetryPolicy) { p.Multiplier = math.Inf(1) },
	} {
		p := good
		break_(&p)
		if p.Validate() == nil {
			t.Errorf("%s: accepted", name)
		}
	}
}

type payload struct{}

func contract() events.Contract {
	return events.Contract{Type: "worlds.a.happened", Version: 1, Source: events.Worlds, Payload: payload{},
		ContentClass: events.Operational}
}

func TestContractsRefuseWhatDisagrees(t *testing.T) {
	t.Parallel()
	second := contract()
	second.Version = 2
	if _, err := events.NewContracts(contract(), second); err != nil {
		t.Fatal(err)
	}
	deprecated := func(d events.Deprecation) func(*events.Contract) {
		return func(c *events.Contract) { c.Type, c.Deprecation = "worlds.b.happened", &d }
	}
	soon := time.Now().Add(time.Hour)
	for name, c := range map[string]struct {
		break_ func(*events.Contract)
		want   string
	}{
		"no deadline":  {deprecated(events.Deprecation{Successor: "worlds.c"}), "deprecation has no deadline"},
		"no successor": {deprecated(events.Deprecation{Deadline: soon}), `names "" as successor`},
		"its own successor": {deprecated(events.Deprecation{Deadline: soon, Successor: "worlds.b.happened"}),
			"must be another event type"},
		"an unknown successor": {deprecated(events.Deprecation{Deadline: soon, Successor: "worlds.c"}),
			"its successor worlds.c has no contract"},
		"the same twice": {func(*events.Contract) {}, "declared twice"},
		"type":           {func(c *events.Contract) { c.Type = "Nonsense" }, "type must be"},
		"version":        {func(c *events.Contract) { c.Version = 0 }, "version is 0"},
		"source":         {func(c *events.Contract) { c.Source = "unknown" }, "source is"},
		"class":          {func(c *events.Contract) { c.Class = "Slow Ones" }, "class is"},
		"reserved class": {func(c *events.Contract) { c.Class = "default" }, "leave it empty"},
		"content class":  {func(c *events.Contract) { c.ContentClass = "" }, "content class is"},
		"payload":        {func(c *events.Contract) { c.Payload = nil }, "payload must be a struct"},
		"another source": {func(c *events.Contract) { c.Version, c.Source = 2, events.Platform },
			"differ in source, class, target or deprecation"},
		"another channel": {func(c *events.Contract) { c.Version, c.Class = 2, "slow" },
			"differ in source, class, target or deprecation"},
	} {
		other := contract()
		c.break_(&other)
		if _, err := events.NewContracts(contract(), other); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
	}
}

func TestDecodeIgnoresUnknownFieldsAndNamesTheType(t *testing.T) {
	t.Parallel()
	e := events.Envelope{EventType: "worlds.a.happened", Payload: json.RawMessage(`{"known": 1, "unknown": 2}`)}
	v, err := events.Decode[struct {
		Known int `json:"known"`
	}](e)
	if err != nil || v.Known != 1 {
		t.Fatalf("%+v, %v", v, err)
	}
	_, err = events.Decode[struct {
		Known string `json:"known"`
	}](e)
	var fault *events.PayloadError
	if !errors.As(err, &fault) || fault.EventType != e.EventType {
		t.Fatalf("%v", err)
	}
}

func TestChannelsAndGenerations(t *testing.T) {
	t.Parallel()
	longest := events.ChannelName(events.MaxGeneration, strings.Repeat("c", 30))
	if len(longest) > 63 { // what Postgres takes as a channel
		t.Errorf("%s has %d bytes", longest, len(longest))
	}
	if got := events.ChannelName(7, ""); got != "outbox_gen_7" {
		t.Error(got)
	}
	if got := events.ChannelName(7, "slow"); got != "outbox_gen_7_slow" {
		t.Error(got)
	}
	for _, s := range []string{"", "0", "-1", "1.5", "one", "1 ", "1000000000000", "99999999999999999999"} {
		if g, err := events.ParseGeneration(s); err == nil {
			t.Errorf("%q is generation %d", s, g)
		}
	}
	if g, err := events.ParseGeneration("999999999999"); err != nil || g != events.MaxGeneration {
		t.Error(g, err)
	}
}

// noted and keyed are what a handler reads.
type noted struct{ Note string }

type keyed struct {
	CardID string `json:"card_id"`
	Hidden string `json:"-"`
	noted
}

// reading gives a handler an EffectKey, and what it reads.
func reading(key string, reads any) func(*events.Subscription) {
	return func(s *events.Subscription) { s.Primary.EffectKey, s.Primary.Reads = key, reads }
}

func TestSubscriptionsOfEachMode(t *testing.T) {
	t.Parallel()
	executor := events.ExecutorFunc(func(context.Context, events.Envelope) (events.Completion, error) { return nil, nil })
	leased := events.Subscription{
		Channel: "outbox_gen_1", EventType: "worlds.a.happened", Mode: events.Leased,
		Primary: events.Registration{Name: "platform.worker", Executor: executor},
	}
	locked := leased
	locked.Mode = events.RowLocked
	locked.Primary = events.Registration{Name: "platform.handler",
		Handler: func(events.Tx) events.EventHandler { return nil }}
	for name, c := range map[string]struct {
		s    events.Subscription
		edit func(*events.Subscription)
		want string // of the error; empty: none
	}{
		"leased":                {leased, func(*events.Subscription) {}, ""},
		"row-locked":            {locked, func(*events.Subscription) {}, ""},
		"many at once":          {leased, func(s *events.Subscription) { s.Concurrency = 1000 }, ""},
		"too many at once":      {leased, func(s *events.Subscription) { s.Concurrency = 1001 }, "from 1 to 1000"},
		"too many transactions": {locked, func(s *events.Subscription) { s.Concurrency = 65 }, "from 1 to 64"},
		"a short lease":         {leased, func(s *events.Subscription) { s.Lease = 100 * time.Millisecond }, ""},
		"too short a lease":     {leased, func(s *events.Subscription) { s.Lease = 99 * time.Millisecond }, "lease is 99ms"},
		"no lease":              {leased, func(s *events.Subscription) { s.Lease = -1 }, "lease is -1ns"},
		"too long a lease":      {leased, func(s *events.Subscription) { s.Lease = 25 * time.Hour }, "lease is 25h0m0s"},
		"a lease for nothing":   {locked, func(s *events.Subscription) { s.Lease = time.Minute }, "has none"},
		"a handler, leased":     {leased, func(s *events.Subscription) { s.Primary = locked.Primary }, "takes an Executor"},
		"an executor, not": {locked, func(s *events.Subscription) { s.Primary = leased.Primary },
			"needs a leased consumer"},
		"a key that is read":          {locked, reading("card_id", keyed{}), ""},
		"a key that is embedded":      {locked, reading("Note", keyed{}), ""},
		"a key, and no struct":        {locked, reading("card_id", nil), ""},
		"a key that is not read":      {locked, reading("CardID", keyed{}), "field of Reads: card_id, Note"},
		"a key that is never decoded": {locked, reading("-", keyed{}), `EffectKey is "-"`},
		"effects outside without a policy": {locked, func(s *events.Subscription) { s.Primary.ActsOutside = "sends mail" },
			`ActsOutside is "sends mail", so OnReplay must say`},
		"an unknown policy": {locked, func(s *events.Subscription) { s.Primary.OnReplay = "maybe" },
			`OnReplay is "maybe", must be allow, skip or ask`},
		"a long effect": {locked, func(s *events.Subscription) {
			s.Primary.ActsOutside, s.Primary.OnReplay = strings.Repeat("x", 81), events.ReplayAllow
		}, "ActsOutside has 81 bytes, at most 80"},
	} {
		c.edit(&c.s)
		err := c.s.WithDefaults().Validate()
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if s := leased.WithDefaults(); s.Lease != 5*time.Minute || s.Primary.CallTimeout() != 15*time.Minute {
		t.Errorf("the defaults are a lease of %s and a timeout of %s", s.Lease, s.Primary.CallTimeout())
	}
}

func TestPayloadsAreEncodedAndDecodedExactly(t *testing.T) {
	t.Parallel()
	type harbour struct {
		Title   string `json:"title"`
		Version int    `json:"version"`
		Berths  []struct {
			Kind string `json:"kind"`
		} `json:"berths"`
	}
	for name, bad := range map[string]any{
		"a text":        harbour{Title: "a\xff"},
		"a text inside": map[string]any{"berths": []map[string]string{{"kind": "\xc0"}}},
		"a name":        map[string]any{"ti\xfftle": "a"},
		"raw":           json.RawMessage("{\"a\": \"\xff\"}"),
	} {
		_, err := events.NewEnvelope(contract(), bad)
		if refusal, ok := errors.AsType[*events.Refusal](err); !ok || refusal.Code != events.CodeText {
			t.Errorf("%s that is not UTF-8: %v", name, err)
		}
	}
	got, err := events.Decode[harbour](events.Envelope{Payload: json.RawMessage(
		`{"Title": 42, "title": "Veyra", "ver\u017fion": 99, "version": 3, "VERSION": "",
			"berths": [{"kind": "quay", "\u212aind": 1}]}`)})
	if err != nil || got.Title != "Veyra" || got.Version != 3 || len(got.Berths) != 1 || got.Berths[0].Kind != "quay" {
		t.Errorf("decoded as %+v, %v", got, err)
	}
}
