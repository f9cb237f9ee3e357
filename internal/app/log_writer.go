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
	queue   chan []byte  // nil ends it
	dropped atomic.Int64 // since the log last said so
	total   atomic.Int64 // dropped at all
	torn    bool         // the last entry was written in part
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
		w.drop(1)
	}
	return len(entry), nil
}

func (w *logWriter) drop(entries int64) {
	w.dropped.Add(entries)
	w.total.Add(entries)
}

// maxWrite is how many bytes of waiting entries one write takes, and one entry more.
const maxWrite = 32 << 10

// run writes the entries, those that wait together. Notes writes straight to the writer.
func (w *logWriter) run(notes *slog.Logger) {
	defer close(w.done)
	var text []byte
	for last := false; !last; {
		text = text[:0]
		if w.torn {
			text = append(text, '\n')
		}
		entries := int64(0)
		for entry := <-w.queue; ; entry = <-w.queue {
			if last = entry == nil; last {
				break
			}
			text = append(text, entry...)
			entries++
			if len(text) >= maxWrite || len(w.queue) == 0 {
				break
			}
		}
		if entries == 0 {
			return
		}
		n, err := w.to.Write(text)
		w.torn = err != nil && (w.torn && n == 0 || n > 0 && text[n-1] != '\n')
		if err != nil {
			w.drop(entries - int64(bytes.Count(bytes.TrimPrefix(text[:n], []byte("\n")), []byte("\n"))))
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
