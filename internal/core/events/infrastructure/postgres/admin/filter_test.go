package admin_test

import (
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"spectral/internal/core/events"
	"spectral/internal/core/events/infrastructure/postgres/admin"
)

func TestFilterIsRefused(t *testing.T) {
	t.Parallel()
	for want, filter := range map[string]admin.Filter{
		`status "lost": must be one of due, scheduled, in_flight, delivered, failed, discarded`: {Statuses: []admin.Status{"lost"}},
		`status "expired"`: {Statuses: []admin.Status{admin.Expired}},
		`event type "Card": must be lower-case words joined by dots`:          {EventTypes: []string{"Card"}},
		`event type "": must be`:                                              {EventTypes: []string{""}},
		`source "": must be core, platform or worlds`:                         {Sources: []events.Scope{""}},
		`target "moon": must be core, platform, worlds, or none`:              {Targets: []events.Scope{"moon"}},
		`generation 0: must be from 1 to 999999999999`:                        {Generations: []events.Generation{0}},
		`channel "X\x1b[1m": must be a lower-case identifier`:                 {Channels: []string{"X\x1b[1m"}},
		`older than -1s: an age is not negative`:                              {OlderThan: -time.Second},
		`older than 2h0m0s and newer than 1h0m0s: no event is both`:           {OlderThan: 2 * time.Hour, NewerThan: time.Hour},
		`error class "A:b": must be the text before the first colon`:          {ErrorClasses: []string{"A:b"}},
		`error class "": must be the text before the first colon`:             {ErrorClasses: []string{""}},
		`"\x00": must be at most 8192 bytes of UTF-8 without NUL`:             {ErrorContains: "\x00"},
		`"\xff": must be at most 8192 bytes of UTF-8 without NUL`:             {Handlers: []string{"\xff"}},
		`1001 workspaces: at most 1000`:                                       {Workspaces: make([]uuid.NullUUID, 1001)},
		`"aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa": must be at most 8192 by`: {ErrorContains: strings.Repeat("a", 8193)},
	} {
		if err := filter.Validate(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%+.200v: %v, want %s", filter, err, want)
		}
	}
}

func TestFilterIsTaken(t *testing.T) {
	t.Parallel()
	for _, filter := range []admin.Filter{
		{},
		{Statuses: admin.Statuses()},
		{EventTypes: []string{"worlds.world_model_card.published"}, Sources: []events.Scope{events.Worlds}, Targets: []events.Scope{"", events.Core}},
		{OlderThan: time.Hour, NewerThan: 2 * time.Hour},
		{Handlers: []string{"worlds.a", "outbox"}, ErrorClasses: []string{"IntegrityError"}, ErrorContains: "a: b\x1b"},
	} {
		if err := filter.Validate(); err != nil {
			t.Errorf("%+v: %v", filter, err)
		}
	}
}

// Placeholders are numbered from where the caller's own end, and there is an argument for each.
func TestFilterArguments(t *testing.T) {
	t.Parallel()
	workspace := uuid.NullUUID{UUID: uuid.New(), Valid: true}
	condition, arguments := admin.Filter{
		Statuses: []admin.Status{admin.Failed}, EventTypes: []string{"a.b"}, Sources: []events.Scope{"core"}, Targets: []events.Scope{""},
		Handlers: []string{"a.b"}, Workspaces: []uuid.NullUUID{{}, workspace}, Generations: []events.Generation{1}, Channels: []string{"c"},
		OlderThan: time.Hour, NewerThan: 2 * time.Hour, ErrorClasses: []string{"E"}, ErrorContains: "e",
	}.Where(4)
	for i := range 11 {
		if placeholder := "$" + []string{"4", "5", "6", "7", "8", "9", "10", "11", "12", "13", "14"}[i]; !strings.Contains(condition, placeholder) {
			t.Errorf("%s has no %s", condition, placeholder)
		}
	}
	if len(arguments) != 11 || strings.Contains(condition, "?") || strings.Contains(condition, "$15") {
		t.Errorf("%s with %d arguments", condition, len(arguments))
	}
}
