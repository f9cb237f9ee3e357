package integration_test

import (
	"context"
	"io"
	"net"
	"sync"
	"sync/atomic"
)

// sockets are connections that a test may close, block or redirect. The zero value does none of that.
type sockets struct {
	mu    sync.Mutex
	open  []*socket
	dials int

	onWrite func([]byte) // called with each write, if set
	dropped atomic.Int64 // writes that were dropped
	// via dials instead of net.Dialer, if set.
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

// dialWith sets how new connections are made; nil means by net.Dialer.
func (s *sockets) dialWith(via func(ctx context.Context, network, address string) (net.Conn, error)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.via = via
}

func (s *sockets) count() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.dials
}

func (s *sockets) closeAll() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, conn := range s.open {
		_ = conn.Close()
	}
	s.open = nil
}

// dropTraffic makes all open connections half-open: they accept writes, deliver nothing in either direction and stay
// open.
func (s *sockets) dropTraffic() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, conn := range s.open {
		conn.drops.Store(true)
	}
}

type socket struct {
	net.Conn
	of    *sockets
	drops atomic.Bool
}

func (s *socket) Write(p []byte) (int, error) {
	if s.drops.Load() {
		s.of.dropped.Add(1)
		return len(p), nil
	}
	if s.of.onWrite != nil {
		s.of.onWrite(p)
	}
	return s.Conn.Write(p)
}

func (s *socket) Read(p []byte) (int, error) {
	for {
		n, err := s.Conn.Read(p)
		if err != nil || !s.drops.Load() {
			return n, err
		}
	}
}

// answerLost closes its connection at an answer that arrives while lost is set.
type answerLost struct {
	net.Conn
	lost *atomic.Bool
}

func (c *answerLost) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	if c.lost.Load() {
		_ = c.Close()
		return 0, io.EOF
	}
	return n, err
}

func dialForever(ctx context.Context, _, _ string) (net.Conn, error) {
	<-ctx.Done()
	return nil, ctx.Err()
}

func refuseDial(context.Context, string, string) (net.Conn, error) { return nil, errOnPurpose }

func dialAddress(address string) func(context.Context, string, string) (net.Conn, error) {
	return func(ctx context.Context, network, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, network, address)
	}
}
