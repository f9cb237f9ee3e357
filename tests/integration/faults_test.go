package integration_test

import (
	"bytes"
	"context"
	"errors"
	"net"
	"sync"
	"sync/atomic"
)

// sockets are connections that a test may disturb. The zero value lets everything through.
type sockets struct {
	mu    sync.Mutex
	open  []*socket
	dials int

	statements atomic.Int64 // written, of the simple and the extended protocol
	looks      atomic.Int64 // written as text
	swallowed  atomic.Int64 // writes
	lostReply  atomic.Bool  // the next COMMIT is answered, and the connection gone before it is heard it
	// via dials instead of the network, if set.
	via func(ctx context.Context, network, address string) (net.Conn, error)
}

func (s *sockets) dial(ctx context.Context, network, address string) (net.Conn, error) {
	s.mu.Lock()
	s.dials++
	via := s.via
	s.mu.Unlock()
	if via == nil {
		via = new(net.Dialer).DialContext
	}
	conn, err := via(ctx, network, address)
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	made := &socket{Conn: conn, of: s}
	s.open = append(s.open, made)
	return made, nil
}

// reach sets how connections to come are made; nil is directly.
func (s *sockets) reach(via func(ctx context.Context, network, address string) (net.Conn, error)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.via = via
}

// count is how many connections were attempted.
func (s *sockets) count() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.dials
}

// cut closes the connections that there are.
func (s *sockets) cut() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, conn := range s.open {
		_ = conn.Close()
	}
	s.open = nil
}

// swallow makes the connections that there are half-open ones: they take what is written, deliver
// nothing either way, and stay open.
func (s *sockets) swallow() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, conn := range s.open {
		conn.swallows.Store(true)
	}
}

type socket struct {
	net.Conn
	of       *sockets
	swallows atomic.Bool
}

func (s *socket) Write(p []byte) (int, error) {
	if s.swallows.Load() {
		s.of.swallowed.Add(1)
		return len(p), nil
	}
	if len(p) > 0 && (p[0] == 'Q' || p[0] == 'P' || p[0] == 'B') { // as the driver begins what it writes
		s.of.statements.Add(1)
	}
	if bytes.Contains(p, []byte("commit\x00")) && s.of.lostReply.CompareAndSwap(true, false) {
		if n, err := s.Conn.Write(p); err != nil {
			return n, err
		}
		_, err := s.Conn.Read(make([]byte, 1024))
		return len(p), errors.Join(err, s.Close())
	}
	s.of.looks.Add(int64(bytes.Count(p, []byte("outbox_poll"))))
	return s.Conn.Write(p)
}

func (s *socket) Read(p []byte) (int, error) {
	for {
		n, err := s.Conn.Read(p)
		if err != nil || !s.swallows.Load() {
			return n, err
		}
	}
}

// blackHole takes connections for as long as the caller waits, and refuses none.
func blackHole(ctx context.Context, _, _ string) (net.Conn, error) {
	<-ctx.Done()
	return nil, ctx.Err()
}

// refusing is a dial of a host where no server listens.
func refusing(context.Context, string, string) (net.Conn, error) { return nil, errRefusing }

// leadingTo dials address, whatever is asked for.
func leadingTo(address string) func(context.Context, string, string) (net.Conn, error) {
	return func(ctx context.Context, network, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, network, address)
	}
}
