package jetstream

import (
	"encoding/json"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/nats-io/nats.go"

	"spectral/internal/core/events"
	"spectral/internal/core/events/infrastructure/postgres/dispatch"
)

func full() dispatch.Row {
	return dispatch.Row{ContentClass: "workspace", Relayed: true, Envelope: events.Envelope{
		EventID: uuid.New(), EventType: "worlds.card.published", EventVersion: 12,
		OccurredAt: time.Date(2026, 11, 30, 1, 2, 3, 456789000, time.UTC), Source: events.Worlds, Target: events.Platform,
		WorkspaceID:    uuid.NullUUID{UUID: uuid.New(), Valid: true},
		Payload:        json.RawMessage(`{"n": 9007199254740993, "d": 0.10000000000000000001}`),
		IdempotencyKey: "worlds/100 % \"größe\"\n\x7f+%41",
		TraceContext:   "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
	}}
}

func TestAnEventComesBackAsItWas(t *testing.T) {
	t.Parallel()
	least := full()
	least.Envelope.Target, least.Envelope.WorkspaceID, least.Envelope.TraceContext = "", uuid.NullUUID{}, ""
	for _, want := range []dispatch.Row{full(), least} {
		m := toMessage("s.g1.default.worlds.card.published", &want)
		for name, values := range m.Header {
			if len(values) != 1 || strings.ContainsFunc(values[0], func(r rune) bool { return r < ' ' || r > '~' }) {
				t.Errorf("header %s is %q", name, values)
			}
		}
		have, err := fromMessage(m.Header, m.Data)
		if err != nil || have.ContentClass != want.ContentClass || !reflect.DeepEqual(have.Envelope, want.Envelope) {
			t.Errorf("%+v, %v; want %+v", have, err, want)
		}
	}
}

// The names and values are those of docs/scale.md, on which other programs rely.
func TestAMessageIsACloudEvent(t *testing.T) {
	t.Parallel()
	row := full()
	id, workspace := row.Envelope.EventID.String(), row.Envelope.WorkspaceID.UUID.String()
	want := nats.Header{
		"Nats-Msg-Id": {id}, "ce-specversion": {"1.0"}, "ce-id": {id}, "ce-type": {"worlds.card.published"},
		"ce-source": {"/worlds"}, "ce-time": {"2026-11-30T01:02:03.456789Z"}, "ce-datacontenttype": {"application/json"},
		"ce-traceparent":  {"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"},
		"ce-eventversion": {"12"}, "ce-target": {"platform"}, "ce-workspaceid": {workspace},
		"ce-idempotencykey": {"worlds/100%20%25%20%22gr%C3%B6%C3%9Fe%22%0A%7F+%2541"}, "ce-contentclass": {"workspace"},
	}
	have := toMessage("s", &row)
	if !reflect.DeepEqual(have.Header, want) || string(have.Data) != string(row.Envelope.Payload) {
		t.Errorf("%v\nwant %v", have.Header, want)
	}
}

func TestWhatIsNoEventIsRefused(t *testing.T) {
	t.Parallel()
	for name, value := range map[string]string{
		headerID: "1", headerVersion: "one", headerTime: "yesterday", headerWorkspace: "mine", headerIdempotencyKey: "",
		headerType: "%zz",
	} {
		row := full()
		m := toMessage("s", &row)
		m.Header.Set(name, value)
		if _, err := fromMessage(m.Header, m.Data); err == nil {
			t.Errorf("%s %q is accepted", name, value)
		}
	}
}

func TestConfigurationsThatCannotWorkAreRefused(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		config Config
		want   string
	}{
		{Config{Stream: "a.b"}, "SPECTRAL_NATS_STREAM"}, {Config{Stream: "s", URL: "http://host"}, "SPECTRAL_NATS_URL"},
		{Config{Stream: "s", URL: "nats://a:4222,host"}, "SPECTRAL_NATS_URL"},
		{Config{Stream: "s", Credentials: "/nowhere"}, "SPECTRAL_NATS_CREDS"},
		{Config{Stream: "s", URL: "tls://a:4222, nats://user:pw@b"}, ""},
	} {
		err := c.config.Validate()
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%+v: %v, want %q", c.config, err, c.want)
		}
	}
}
