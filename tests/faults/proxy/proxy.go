package proxy

import (
	"context"
	"net"
	"net/url"
	"sync"
	"testing"
	"time"
)

// Mode is what the proxy does with every connection.
type Mode int

// The modes.
const (
	Pass Mode = iota // forwards everything
	// Refuse resets new connections. Open connections stay.
	Refuse
	// Stall forwards nothing, on open and new connections, until the mode changes: a network that drops packets.
	Stall
)

const dialTimeout = 5 * time.Second

// Proxy forwards connections. Its methods may be called concurrently.
type Proxy struct {
	listener net.Listener
	backend  func() string // host:port of the server, asked for each connection

	mu      sync.Mutex
	mode    Mode
	changed chan struct{} // closed when the mode changes or the proxy ends
	ended   bool
	filter  Filter
	links   map[*link]bool
	wait    sync.WaitGroup
}

// New starts a proxy that ends with the test. It calls backend for the server's host:port at each connection.
func New(t testing.TB, backend func() string) *Proxy {
	t.Helper()
	listener, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &Proxy{listener: listener, backend: backend, changed: make(chan struct{}), links: make(map[*link]bool)}
	p.wait.Go(p.accept)
	t.Cleanup(p.end)
	return p
}

// InFrontOf starts a proxy in front of the server that a URL names.
func InFrontOf(t testing.TB, databaseURL string) *Proxy {
	t.Helper()
	u, err := url.Parse(databaseURL)
	if err != nil {
		t.Fatal(err)
	}
	return New(t, func() string { return u.Host })
}

// URL returns databaseURL with the proxy's address.
func (p *Proxy) URL(t testing.TB, databaseURL string) string {
	t.Helper()
	u, err := url.Parse(databaseURL)
	if err != nil {
		t.Fatal(err)
	}
	u.Host = p.listener.Addr().String()
	return u.String()
}

// Set changes the mode, also for open connections.
func (p *Proxy) Set(m Mode) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.mode = m
	close(p.changed)
	p.changed = make(chan struct{})
}

// Filter applies f to every message from now on; nil removes the filter.
func (p *Proxy) Filter(f Filter) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.filter = f
}

// ResetAll resets every connection and returns how many there were.
func (p *Proxy) ResetAll() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	for l := range p.links {
		l.reset()
	}
	return len(p.links)
}

// Open returns the numbers of the open connections.
func (p *Proxy) Open() []int {
	p.mu.Lock()
	defer p.mu.Unlock()
	all := make([]int, 0, len(p.links))
	for l := range p.links {
		all = append(all, l.id)
	}
	return all
}

func (p *Proxy) end() {
	_ = p.listener.Close()
	p.mu.Lock()
	p.ended = true
	for l := range p.links {
		l.reset()
	}
	close(p.changed)
	p.changed = make(chan struct{})
	p.mu.Unlock()
	p.wait.Wait()
}

func (p *Proxy) accept() {
	for id := 1; ; id++ {
		conn, err := p.listener.Accept()
		if err != nil {
			return
		}
		client := conn.(*net.TCPConn)
		p.mu.Lock()
		refuse := p.mode == Refuse || p.ended
		p.mu.Unlock()
		if refuse {
			resetConn(client)
			continue
		}
		p.wait.Go(func() { p.serve(id, client) })
	}
}

// serve forwards one connection until either side ends it.
func (p *Proxy) serve(id int, client *net.TCPConn) {
	l := &link{proxy: p, id: id, client: client, over: make(chan struct{})}
	p.mu.Lock()
	p.links[l] = true
	ended := p.ended
	p.mu.Unlock()
	defer func() {
		p.mu.Lock()
		delete(p.links, l)
		p.mu.Unlock()
		l.reset()
	}()
	if ended || !l.admit() {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), dialTimeout)
	defer cancel()
	conn, err := new(net.Dialer).DialContext(ctx, "tcp", p.backend())
	if err != nil {
		return // the client sees a reset
	}
	if !l.attach(conn.(*net.TCPConn)) {
		return
	}
	var both sync.WaitGroup
	both.Go(func() { l.pump(Client) })
	both.Go(func() { l.pump(Server) })
	both.Wait()
}

// resetConn closes with RST: the other side sees a lost connection.
func resetConn(conn *net.TCPConn) {
	_ = conn.SetLinger(0)
	_ = conn.Close()
}
