package process

import (
	"bufio"
	"encoding/json"
	"io"
	"sync"
	"testing"
	"time"
)

// Entry is one line of a worker's stderr: its JSON fields, or the line as message.
type Entry map[string]any

// Message returns the entry's static text.
func (e Entry) Message() string {
	text, _ := e["message"].(string)
	return text
}

// Log collects the entries of one process. It is safe for concurrent use.
type Log struct {
	mu      sync.Mutex
	entries []Entry
	grown   chan struct{} // closed at the next entry, and when the log ends
	ended   bool
}

func newLog() *Log { return &Log{grown: make(chan struct{})} }

// read collects entries until in ends.
func (l *Log) read(in io.Reader) {
	lines := bufio.NewReader(in)
	for {
		line, err := lines.ReadBytes('\n')
		if len(line) > 0 {
			entry := make(Entry)
			if json.Unmarshal(line, &entry) != nil {
				entry = Entry{"message": string(line)}
			}
			l.add(entry)
		}
		if err != nil {
			l.add(nil)
			return
		}
	}
}

// add appends an entry; nil ends the log.
func (l *Log) add(e Entry) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if e == nil {
		l.ended = true
	} else {
		l.entries = append(l.entries, e)
	}
	close(l.grown)
	l.grown = make(chan struct{})
}

// Entries returns a copy of all entries so far.
func (l *Log) Entries() []Entry {
	l.mu.Lock()
	defer l.mu.Unlock()
	return append([]Entry(nil), l.entries...)
}

// Count returns how many entries have the given message.
func (l *Log) Count(message string) int {
	n := 0
	for _, e := range l.Entries() {
		if e.Message() == message {
			n++
		}
	}
	return n
}

// Await returns the n-th entry (from 1) with the given message, and fails the test if it does not come within the
// given time.
func (l *Log) Await(t testing.TB, message string, n int, within time.Duration) Entry {
	t.Helper()
	deadline := time.NewTimer(within)
	defer deadline.Stop()
	for {
		l.mu.Lock()
		entries, grown, ended := l.entries, l.grown, l.ended
		l.mu.Unlock()
		seen := 0
		for _, e := range entries {
			if e.Message() == message {
				if seen++; seen == n {
					return e
				}
			}
		}
		if ended {
			t.Fatalf("the process ended with %d log entries %q, want %d; its log: %s", seen, message, n, tail(entries))
		}
		select {
		case <-grown:
		case <-deadline.C:
			t.Fatalf("%d log entries %q within %s, want %d; the log: %s", seen, message, within, n, tail(entries))
		}
	}
}

// tail returns the last entries as text.
func tail(entries []Entry) string {
	const most = 20
	text := ""
	for _, e := range entries[max(0, len(entries)-most):] {
		line, _ := json.Marshal(e) // cannot fail: it was decoded from JSON
		text += "\n  " + string(line)
	}
	return text
}
