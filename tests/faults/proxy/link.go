package proxy

import (
	"bufio"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"slices"
	"strings"
	"sync"
)

// From is the side that sent a message.
type From int

// The two sides.
const (
	Client From = iota
	Server
)

// Message is one message of the protocol.
type Message struct {
	Conn int  // numbers connections in the order they were accepted, from 1
	From From // who sent it
	// Type is the protocol's: 'Q' Query, 'P' Parse, 'B' Bind, 'E' Execute, 'S' Sync of a client; 'C'
	// CommandComplete, 'Z' ReadyForQuery, 'E' Error of a server. 0 for a client's first message.
	Type byte
	Body []byte // without type and length; not to be kept
}

// Query is the text of a simple query, which is how the product sends BEGIN, COMMIT and ROLLBACK;
// empty for any other message.
func (m Message) Query() string {
	if m.From != Client || m.Type != 'Q' {
		return ""
	}
	return strings.TrimSuffix(string(m.Body), "\x00")
}

// Verdict is what becomes of a message, and of its connection.
type Verdict int

const (
	// Forward sends it on.
	Forward Verdict = iota
	// Discard drops this message alone.
	Discard
	// Cutoff resets the connection in place of the message.
	Cutoff
	// ForwardThenCut sends it on and then resets the connection. A client gets no answer.
	ForwardThenCut
	// Tear sends half of it on, then resets the connection.
	Tear
	// Hush sends it on, and lets nothing of the server's reach this client any more.
	Hush
	// Freeze keeps it back, and with it all that follows from this side, until the connection is reset.
	Freeze
)

// Filter decides about a message. It is called from several goroutines, in order within one
// direction of a connection.
type Filter func(Message) Verdict

// Nth is a filter that gives verdict once, to the n-th message (from 1) that is meant, and passes all
// others. Done is closed when it has.
func Nth(n int, verdict Verdict, meant func(Message) bool) (f Filter, done <-chan struct{}) {
	var mu sync.Mutex
	hit := make(chan struct{})
	return func(m Message) Verdict {
		mu.Lock()
		defer mu.Unlock()
		if n == 0 || !meant(m) {
			return Forward
		}
		if n--; n > 0 {
			return Forward
		}
		close(hit)
		return verdict
	}, hit
}

// Commit reports whether a message is a client's COMMIT.
func Commit(m Message) bool { return strings.EqualFold(m.Query(), "commit") }

// CommitOf makes a filter's condition: a message is the COMMIT of a transaction that has run a statement whose
// text contains text. It has to see a connection from its beginning: statements are prepared once.
func CommitOf(text string) func(Message) bool {
	type session struct {
		prepared map[string]bool // statements that contain it, by name
		ran      bool            // one, in this transaction
	}
	var mu sync.Mutex
	sessions := make(map[int]*session)
	return func(m Message) bool {
		if m.From != Client {
			return false
		}
		mu.Lock()
		defer mu.Unlock()
		s := sessions[m.Conn]
		if s == nil {
			s = &session{prepared: make(map[string]bool)}
			sessions[m.Conn] = s
		}
		switch first, rest, _ := strings.Cut(string(m.Body), "\x00"); m.Type {
		case 'P': // the statement's name and text
			s.prepared[first] = strings.Contains(rest, text)
		case 'B': // the portal's name and the statement's
			name, _, _ := strings.Cut(rest, "\x00")
			s.ran = s.ran || s.prepared[name]
		case 'Q':
			ran := s.ran
			begins := len(first) >= 5 && strings.EqualFold(first[:5], "begin")
			s.ran = (ran && !begins && !Commit(m)) || strings.Contains(first, text)
			return ran && Commit(m)
		}
		return false
	}
}

// Statement reports whether a message is the last that a client sends of a statement: a simple query
// or a Sync.
func Statement(m Message) bool { return m.From == Client && (m.Type == 'Q' || m.Type == 'S') }

const (
	headerBytes  = 5 // a type and a length
	maxBodyBytes = 1 << 30
)

// link is one forwarded connection.
type link struct {
	proxy  *Proxy
	id     int
	client *net.TCPConn

	mu     sync.Mutex
	server *net.TCPConn // nil until attached
	closed bool
	hushed bool
	over   chan struct{} // closed with it; nil until somebody waits for that
}

// attach notes the server's side, unless the link was cut meanwhile.
func (l *link) attach(server *net.TCPConn) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		_ = server.Close()
		return false
	}
	l.server = server
	return true
}

// cut resets both sides.
func (l *link) cut() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return
	}
	l.closed = true
	reset(l.client)
	if l.server != nil {
		reset(l.server)
	}
	if l.over != nil {
		close(l.over)
	}
}

// end is closed when the link is cut.
func (l *link) end() <-chan struct{} {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.over == nil {
		l.over = make(chan struct{})
		if l.closed {
			close(l.over)
		}
	}
	return l.over
}

func (l *link) hush() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.hushed = true
}

func (l *link) isHushed() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.hushed
}

// pump forwards one direction until it ends, and then ends the other.
func (l *link) pump(from From) {
	source, sink := l.client, l.server
	if from == Server {
		source, sink = l.server, l.client
	}
	in := bufio.NewReader(source)
	for first := from == Client; ; {
		head, body, err := readMessage(in, first)
		if err != nil {
			l.close(err, source, sink)
			return
		}
		m := Message{Conn: l.id, From: from, Body: body}
		if !first {
			m.Type = head[0]
		}
		first = false
		if !l.send(m, head, sink) {
			return
		}
	}
}

// close passes on how a side ended: in order, or not.
func (l *link) close(err error, source, sink *net.TCPConn) {
	if errors.Is(err, io.EOF) && l.proxy.admit() {
		_ = sink.CloseWrite()
		_ = source.CloseRead()
		if sink == l.server { // the server answers a client's end with its own
			return
		}
	}
	l.cut()
}

// send does with a message what mode and filter say; false means that this direction is over.
func (l *link) send(m Message, head []byte, sink *net.TCPConn) bool {
	p := l.proxy
	p.mu.Lock()
	filter := p.filter
	p.mu.Unlock()
	verdict := Forward
	if filter != nil {
		verdict = filter(m)
	}
	if !l.admit() {
		return false
	}
	if m.From == Server && l.isHushed() {
		return true
	}
	whole := slices.Concat(head, m.Body)
	switch verdict {
	case Discard:
		return true
	case Cutoff:
		l.cut()
		return false
	case Tear:
		_, _ = sink.Write(whole[:len(whole)/2])
		l.cutAfterDelivery(sink)
		return false
	case Freeze:
		<-l.end()
		return false
	case Hush:
		l.hush()
	case ForwardThenCut:
		if m.From == Client {
			l.hush() // a quick answer would be there before the reset
		}
	case Forward:
	}
	if _, err := sink.Write(whole); err != nil {
		l.cut()
		return false
	}
	if verdict == ForwardThenCut {
		l.cutAfterDelivery(sink)
		return false
	}
	return true
}

// cutAfterDelivery ends the link so that what was written to sink is not lost with it, as a reset
// would.
func (l *link) cutAfterDelivery(sink *net.TCPConn) {
	_ = sink.CloseWrite()
	other := l.client
	if sink == l.client {
		other = l.server
	}
	reset(other)
	_, _ = io.Copy(io.Discard, sink) // until the far side has read it and closed
	l.cut()
}

// admit is the proxy's for an open link: it waits while the mode is Stall.
func (l *link) admit() bool {
	for {
		p := l.proxy
		p.mu.Lock()
		mode, changed, ended := p.mode, p.changed, p.ended
		p.mu.Unlock()
		if ended {
			return false
		}
		if mode != Stall {
			return true
		}
		select {
		case <-changed:
		case <-l.end():
			return false
		}
	}
}

// readMessage reads one message: its type, unless it is a client's first, and length, then its body.
func readMessage(in *bufio.Reader, first bool) (head, body []byte, err error) {
	head = make([]byte, headerBytes)
	if first {
		head = head[:headerBytes-1]
	}
	if _, err := io.ReadFull(in, head); err != nil {
		return nil, nil, err
	}
	length := int(binary.BigEndian.Uint32(head[len(head)-4:])) - 4
	if length < 0 || length > maxBodyBytes {
		return nil, nil, errors.New("not a message of the protocol")
	}
	body = make([]byte, length)
	if _, err := io.ReadFull(in, body); err != nil {
		return nil, nil, err
	}
	return head, body, nil
}
