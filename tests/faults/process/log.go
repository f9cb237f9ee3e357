package process

import (
	"bufio"
	"encoding/json"
	"io"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

// Log collects what one process writes to stderr. It is safe for concurrent use.
type Log struct {
	mu    sync.Mutex
	lines []string
	seen  map[string]int // by message, which is a line that is not JSON as a whole
	grown chan struct{}  // closed at the next line, and when the log ends
	ended bool
}

func newLog() *Log { return &Log{seen: make(map[string]int), grown: make(chan struct{})} }

func (l *Log) read(in io.Reader) {
	for lines := bufio.NewReader(in); !l.ended; {
		line, err := lines.ReadString('\n')
		entry := struct{ Message string }{line}
		_ = json.Unmarshal([]byte(line), &entry)
		l.mu.Lock()
		l.lines, l.ended = append(l.lines, line), err != nil
		l.seen[entry.Message]++
		close(l.grown)
		l.grown = make(chan struct{})
		l.mu.Unlock()
	}
}

// Count returns how many entries have the given message.
func (l *Log) Count(message string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.seen[message]
}

// Says waits for the end of the process's log, and reports whether an entry has the given text.
func (l *Log) Says(text string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	for !l.ended {
		grown := l.grown
		l.mu.Unlock()
		<-grown
		l.mu.Lock()
	}
	return slices.ContainsFunc(l.lines, func(line string) bool { return strings.Contains(line, text) })
}

// Await waits for the n-th entry (from 1) with the given message, and fails the test if it does not come within the
// given time.
func (l *Log) Await(t testing.TB, message string, n int, within time.Duration) {
	t.Helper()
	deadline := time.NewTimer(within)
	defer deadline.Stop()
	for {
		l.mu.Lock()
		seen, grown, ended := l.seen[message], l.grown, l.ended
		l.mu.Unlock()
		if seen >= n {
			return
		}
		if ended {
			t.Fatalf("the process ended with %d log entries %q, want %d; its log: %s", seen, message, n, l.tail())
		}
		select {
		case <-grown:
		case <-deadline.C:
			t.Fatalf("%d log entries %q within %s, want %d; the log: %s", seen, message, within, n, l.tail())
		}
	}
}

func (l *Log) tail() string {
	const most = 20
	l.mu.Lock()
	defer l.mu.Unlock()
	return "\n  " + strings.Join(l.lines[max(0, len(l.lines)-most):], "  ")
}
