package notify

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
)

// Await sees a state however short it was.
func TestAwaitMissesNoState(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		h := NewHealth()
		changed := h.Changed()
		result := make(chan error, 1)
		go func() { result <- h.Await(t.Context(), Polling) }()
		synctest.Wait()
		h.Set(Polling, "for a moment")
		h.Set(Listening, "")
		synctest.Wait()
		select {
		case err := <-result:
			if err != nil {
				t.Fatal(err)
			}
		default:
			t.Fatal("a state was missed")
		}
		<-changed
		changed = h.Changed()
		h.Set(Listening, "")
		select {
		case <-changed:
			t.Fatal("no change was announced")
		default:
		}
		h.Set(Listening, "another reason")
		<-changed
		// what was before the call does not count
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if err := h.Await(ctx, Polling); !errors.Is(err, context.Canceled) {
			t.Fatalf("Await says %v", err)
		}
	})
}
