package app_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"log/slog"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"go.uber.org/fx"

	"spectral/internal/app"
	"spectral/internal/core/events"
	"spectral/internal/core/events/infrastructure/postgres/publish"
	"spectral/internal/worlds/application"
)

func TestSubscriptionsOfClasses(t *testing.T) {
	t.Parallel()
	contracts, err := app.Contracts()
	if err != nil {
		t.Fatal(err)
	}
	builders, deps := app.ConsumerBuilders(), app.Deps{Generation: 7}
	for _, c := range []struct {
		classes []string
		want    int
		agents  bool
	}{
		{nil, len(builders), true}, {[]string{"default"}, len(builders) - 1, false}, {[]string{"agents"}, 1, true},
		{[]string{"agents", " default ", "agents"}, len(builders), true},
	} {
		subscriptions, err := app.Subscriptions(builders, contracts, deps, c.classes)
		isAgents := func(s events.Subscription) bool { return s.EventType == "agent.task.dispatched" }
		if err != nil || len(subscriptions) != c.want || slices.ContainsFunc(subscriptions, isAgents) != c.agents {
			t.Errorf("%v: %d subscriptions, want %d: %v", c.classes, len(subscriptions), c.want, err)
		}
	}
	faulty := func(app.Deps) events.Subscription { return events.Subscription{EventType: "worlds.a.happened"} }
	_, err = app.Subscriptions(append(builders, faulty), contracts, deps, nil)
	if err == nil || !strings.HasPrefix(err.Error(), `subscription to "worlds.a.happened": `) {
		t.Errorf("a faulty subscription: %v", err)
	}
	_, err = app.Subscriptions(builders, contracts, deps, []string{"agents", "Agents", ""})
	want := `no consumer belongs to the processing class "": choose among agents, default
no consumer belongs to the processing class "Agents": choose among agents, default`
	if !errors.As(err, new(*app.SettingsError)) || err.Error() != want {
		t.Errorf("%v, want %s", err, want)
	}
}

// Each task of the catalog has an executor, and each executor a task.
func TestTheTaskCatalogIsWhatTheExecutorsDo(t *testing.T) {
	t.Parallel()
	catalog := slices.Sorted(maps.Keys(app.TaskCatalog()))
	executors := slices.Sorted(maps.Keys(app.TaskExecutors(app.Deps{Generation: 1})))
	if !slices.Equal(catalog, executors) {
		t.Errorf("TaskCatalog has %v, TaskExecutors has %v: add what is missing", catalog, executors)
	}
}

func TestTheBriefingsGoSomewhereByDefault(t *testing.T) {
	for _, home := range []string{t.TempDir(), ""} {
		t.Setenv("HOME", home)
		t.Setenv("XDG_CACHE_HOME", "")
		dir, err := app.ReadBriefingsDir(func(string) string { return "" })
		if err != nil || !filepath.IsAbs(dir) {
			t.Errorf("with home %q: %q, %v", home, dir, err)
		}
	}
	if dir, err := app.ReadBriefingsDir(func(string) string { return "/a/../b/" }); err != nil || dir != "/b" {
		t.Errorf("%q, %v", dir, err)
	}
}

// TestWorkerGraph builds the graph of a worker without running it: nothing is missing that a worker or a command asks
// for.
func TestWorkerGraph(t *testing.T) {
	t.Parallel()
	const url = "postgres://worker@localhost/spectral"
	settings := app.Settings{DatabaseURL: url, PoolURL: url, Generation: 1}
	err := fx.ValidateApp(
		app.Worker(settings, slog.New(slog.DiscardHandler)),
		// What commands take out of the graph: fx looks only at what is asked for.
		fx.Invoke(func(*application.PublishCard, *publish.UnitOfWork) {}),
	)
	if err != nil {
		t.Error(err)
	}
}

// stalledWriter takes no entry before it is released.
type stalledWriter struct {
	released chan struct{}
	written  chan []byte
}

func (w stalledWriter) Write(entry []byte) (int, error) {
	<-w.released
	w.written <- bytes.Clone(entry)
	return len(entry), nil
}

func TestDroppedLogEntriesAreCounted(t *testing.T) {
	t.Parallel()
	const entries = 100_000
	w := stalledWriter{make(chan struct{}), make(chan []byte, entries)}
	log, stop := app.StartLog(w, slog.LevelInfo, 1)
	for range entries {
		log.InfoContext(t.Context(), "an entry")
	}
	close(w.released)
	written, dropped, late := 0, 0, time.After(time.Minute)
	for written+dropped < entries {
		select {
		case text := <-w.written:
			for line := range bytes.Lines(text) {
				var entry struct{ Count int }
				if err := json.Unmarshal(line, &entry); err != nil {
					t.Fatal(err)
				}
				if entry.Count == 0 {
					written++
				}
				dropped += entry.Count
			}
		case <-late:
			t.Fatalf("of %d entries, %d were written and %d counted as dropped", entries, written, dropped)
		}
	}
	if written == 0 || dropped == 0 {
		t.Errorf("of %d entries, %d were written and %d counted as dropped", entries, written, dropped)
	}
	stop()
}
