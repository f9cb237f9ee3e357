package eventstest

import (
	"context"
	"testing"
	"time"
)

// startStopTimeout bounds a start and a stop.
const startStopTimeout = time.Minute

// Service is what Start runs: a listener, or a whole worker process. It may be stopped twice.
type Service interface {
	Start(ctx context.Context) error
	Stop(ctx context.Context) error
}

// Start starts s and stops it with the test.
func Start(t testing.TB, s Service) {
	t.Helper()
	starting, cancel := context.WithTimeout(t.Context(), startStopTimeout)
	defer cancel()
	if err := s.Start(starting); err != nil {
		t.Fatalf("start: %v", err)
	}
	t.Cleanup(func() {
		stopping, cancel := context.WithTimeout(context.Background(), startStopTimeout)
		defer cancel()
		if err := s.Stop(stopping); err != nil {
			t.Errorf("stop: %v", err)
		}
	})
}
