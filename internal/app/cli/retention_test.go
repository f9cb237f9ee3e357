package cli

import (
	"bytes"
	"context"
	"errors"
	"io"
	"strings"
	"testing"
	"time"

	"spectral/internal/core/retention"
)

// Something is due also where counting was cut short before it came to anything.
func TestWhatIsDue(t *testing.T) {
	t.Parallel()
	counts := []retention.Count{{Subject: retention.OutboxRow, Step: retention.Deleted}, {Subject: retention.OutboxRow, Step: retention.Tombstoned}}
	if have := dueLines(counts); have != "" {
		t.Errorf("nothing is due, and it says %q", have)
	}
	counts[1].More = true
	if have, want := dueLines(counts), "  outbox_row tombstoned: 0+\n"; have != want {
		t.Errorf("%q, want %q", have, want)
	}
	counts[0].Rows = 3
	if have, want := dueLines(counts), "  outbox_row deleted: 3\n  outbox_row tombstoned: 0+\n"; have != want {
		t.Errorf("%q, want %q", have, want)
	}
}

// others sweep, and never end.
type others struct{}

func (others) Sweep(context.Context, retention.Batch) ([]retention.Count, error) {
	return nil, retention.ErrNotLeading
}

// Who cannot sweep because somebody else does is told what to do; who is interrupted while waiting for that, so.
func TestSweepingBesideOthers(t *testing.T) {
	t.Parallel()
	var said bytes.Buffer
	p := Process{Stdout: io.Discard, Stderr: &said}
	_, err := sweepBatches(t.Context(), p, others{}, sweepOptions{maxRows: 1, maxTime: time.Hour})
	if !errors.Is(err, retention.ErrNotLeading) || !strings.Contains(err.Error(), "`workers retention status` tells, and repeat the command") {
		t.Errorf("it says %v", err)
	}
	if said.Len() > 0 {
		t.Errorf("it did not wait, and says %s", said.String())
	}
	ctx, cancel := context.WithTimeout(t.Context(), 3*leadPause)
	defer cancel()
	if _, err := sweepBatches(ctx, p, others{}, sweepOptions{maxRows: 1, maxTime: time.Hour, leadWithin: time.Hour}); !errors.Is(err, errInterrupted) {
		t.Errorf("it ended with %v", err)
	}
	if said.String() != "somebody else is sweeping: waiting up to 1h0m0s\n" { // once
		t.Errorf("it says %q", said.String())
	}
}
