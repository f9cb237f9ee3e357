package dispatch

import (
	"testing"

	"github.com/google/uuid"

	"spectral/internal/core/events"
)

// A batch of many workspaces takes no more room than one of a single workspace.
func TestGroupsTakeNoMoreRoomThanTheirEvents(t *testing.T) {
	t.Parallel()
	rows := make([]Row, 1000)
	for i := range rows {
		rows[i].Envelope.WorkspaceID = uuid.NullUUID{UUID: uuid.New(), Valid: true}
	}
	room := 0
	for _, group := range byWorkspace(events.Registration{}, rows, func(int) bool { return true }) {
		room += cap(group)
	}
	if room > 2*len(rows) {
		t.Errorf("room for %d events", room)
	}
}

func TestPayloadField(t *testing.T) {
	t.Parallel()
	for document, want := range map[string]string{
		`{"n": 1, "key": 5}`: "5", `{"key": {"a": [1]}, "n": 1}`: `{"a": [1]}`, `{"n": {"key": 1}, "key": "x"}`: `"x"`,
		`{"k\u0065y": 7}`: "7", `{"n": 1}`: "", `{}`: "", `{"key": `: "", `[1]`: "", `["key", 1]`: "", `x`: "", ``: "",
	} {
		if got := string(payloadField([]byte(document), "key")); got != want {
			t.Errorf("%s: %s", document, got)
		}
	}
}
