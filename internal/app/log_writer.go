package app

import (
	"bytes"
	"context"
	"io"
	"log/slog"
	"sync/atomic"
	"time"

	"spectral/internal/core/events"
)

const (
	// logQueue is how many log entries wait for a writer that is slower than the worker.
	logQueue = 4096
	// logCloseTimeout is how long the end of a process waits for them to be written.
	logCloseTimeout = time.Second
)

// logWriter passes log entries on to a writer that may block or fail. Nothing that logs waits for it: entries that do
// not fit into its queue, or that the writer refuses, are dropped and counted.
type logWriter struct {
	to      io.Writer
	queue   chan []byte // nil ends it
	dropped atomic.Int64
	torn    bool // the last entry was written in part
	done    chan struct{}
}

// StartLog returns a logger as [NewLogger] does, whose entries never wait for w. The log says how many entries were
// dropped, once w takes entries again. Call stop at the end of the process; later entries are lost.
func StartLog(w io.Writer, level slog.Leveler, g events.Generation) (log *slog.Logger, stop func()) {
	writer := &logWriter{to: w, queue: make(chan []byte, logQueue), done: make(chan struct{})}
	go writer.run(NewLogger(w, level, g))
	return NewLogger(writer, level, g), writer.close
}

// Write takes one log entry. It never fails.
func (w *logWriter) Write(entry []byte) (int, error) {
	select {
	case w.queue <- bytes.Clone(entry):
	default:
		w.dropped.Add(1)
	}
	return len(entry), nil
}

// run writes the entries. Notes writes straight to the writer.
func (w *logWriter) run(notes *slog.Logger) {
	defer close(w.done)
	for entry := range w.queue {
		if entry == nil {
			return
		}
		if w.torn {
			entry = append([]byte("\n"), entry...)
		}
		n, err := w.to.Write(entry)
		w.torn = err != nil && (n > 0 || w.torn)
		if err != nil {
			w.dropped.Add(1)
		} else if dropped := w.dropped.Swap(0); dropped > 0 {
			notes.WarnContext(context.Background(), "log entries were dropped: what reads the log stood still or refused them",
				logCount, dropped)
		}
	}
}

// close waits for the queue to be written, for logCloseTimeout at most.
func (w *logWriter) close() {
	late := time.After(logCloseTimeout)
	select {
	case w.queue <- nil:
	case <-late:
		return
	}
	select {
	case <-w.done:
	case <-late:
	}
}
