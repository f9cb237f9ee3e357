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

const (
	// Pass forwards everything.
	Pass Mode = iota
	// Refuse resets each new connection as it comes, and counts it; those that stand stay.
	Refuse
	// Stall keeps connections open, and new ones too, and forwards nothing either way until the mode
	// changes: a network that swallows packets.
	Stall
)

// dialTimeout bounds the connection to the server; localhost answers at once or never.
const dialTimeout = 5 * time.Second

// Proxy forwards connections. Its methods may be called concurrently.
type Proxy struct {
	listener net.Listener
	backend  func() string // host:port of the server, asked for each connection

	mu       sync.Mutex
	mode     Mode
	changed  chan struct{} // closed when the mode changes or the proxy ends
	ended    bool
	filter   Filter
	links    map[*link]bool
	accepted []time.Time
	wait     sync.WaitGroup
}

// New starts a proxy in front of the server at backend(), which is asked for each connection. It
// ends with the test.
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
func InFrontOf(t testing.TB, at string) *Proxy {
	t.Helper()
	u, err := url.Parse(at)
	if err != nil {
		t.Fatal(err)
	}
	return New(t, func() string { return u.Host })
}

// URL is at, led through the proxy.
func (p *Proxy) URL(t testing.TB, at string) string {
	t.Helper()
	u, err := url.Parse(at)
	if err != nil {
		t.Fatal(err)
	}
	u.Host = p.listener.Addr().String()
	return u.String()
}

// Set changes the mode. Connections that stand follow at once.
func (p *Proxy) Set(m Mode) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.mode = m
	close(p.changed)
	p.changed = make(chan struct{})
}

// Filter puts f in the way of every message from now on; nil removes it.
func (p *Proxy) Filter(f Filter) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.filter = f
}

// Cut resets every connection, in both directions, and returns how many there were.
func (p *Proxy) Cut() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	for l := range p.links {
		l.cut()
	}
	return len(p.links)
}

// Standing are the numbers of the connections that stand.
func (p *Proxy) Standing() []int {
	p.mu.Lock()
	defer p.mu.Unlock()
	all := make([]int, 0, len(p.links))
	for l := range p.links {
		all = append(all, l.id)
	}
	return all
}

// Accepted are the times of all connections that clients made, refused ones included.
func (p *Proxy) Accepted() []time.Time {
	p.mu.Lock()
	defer p.mu.Unlock()
	return append([]time.Time(nil), p.accepted...)
}

func (p *Proxy) end() {
	_ = p.listener.Close()
	p.mu.Lock()
	p.ended = true
	for l := range p.links {
		l.cut()
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
		p.accepted = append(p.accepted, time.Now())
		refuse := p.mode == Refuse || p.ended
		p.mu.Unlock()
		if refuse {
			reset(client)
			continue
		}
		p.wait.Go(func() { p.serve(id, client) })
	}
}

// serve forwards one connection until either side ends it.
func (p *Proxy) serve(id int, client *net.TCPConn) {
	l := &link{proxy: p, id: id, client: client}
	p.mu.Lock()
	p.links[l] = true
	ended := p.ended
	p.mu.Unlock()
	defer func() {
		p.mu.Lock()
		delete(p.links, l)
		p.mu.Unlock()
		l.cut()
	}()
	if ended || !p.admit() {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), dialTimeout)
	defer cancel()
	conn, err := new(net.Dialer).DialContext(ctx, "tcp", p.backend())
	if err != nil {
		return // reset, as by a host without a server
	}
	if !l.attach(conn.(*net.TCPConn)) {
		return
	}
	var both sync.WaitGroup
	both.Go(func() { l.pump(Client) })
	both.Go(func() { l.pump(Server) })
	both.Wait()
}

// admit waits while the mode is Stall; false means that the proxy has ended.
func (p *Proxy) admit() bool {
	for {
		p.mu.Lock()
		mode, changed, ended := p.mode, p.changed, p.ended
		p.mu.Unlock()
		if ended || mode != Stall {
			return !ended
		}
		<-changed
	}
}

// reset closes with RST: the other side sees a lost connection, not an end.
func reset(conn *net.TCPConn) {
	_ = conn.SetLinger(0)
	_ = conn.Close()
}
