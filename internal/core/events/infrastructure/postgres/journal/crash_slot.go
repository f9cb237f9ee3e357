package journal

import "sync"

// CrashSlot is held while a row with crashes runs: a process runs one of them at a time, so that a crash is charged
// to that row. Nothing waits for the slot. The zero value is ready.
type CrashSlot struct {
	mu      sync.Mutex
	held    bool
	waiting map[string]func() // by event type
}

// TryTake reports whether the consumer of an event type has the slot now. If not, wake is called once the slot is free.
func (s *CrashSlot) TryTake(eventType string, wake func()) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.held {
		s.held = true
		return true
	}
	if s.waiting == nil {
		s.waiting = make(map[string]func())
	}
	s.waiting[eventType] = wake
	return false
}

// Release frees the slot and wakes the consumers that tried to take it.
func (s *CrashSlot) Release() {
	s.mu.Lock()
	s.held = false
	waiting := s.waiting
	s.waiting = nil
	s.mu.Unlock()
	for _, wake := range waiting {
		wake()
	}
}
