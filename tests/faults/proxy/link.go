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
	"sync/atomic"
)

// From is the side that sent a message.
type From int

// The sides of a connection.
const (
	Client From = iota
	Server
)

// Message is one message of the protocol.
type Message struct {
	Conn int // the connection's number, from 1
	From From
	// Type is the protocol's: 'Q' Query, 'P' Parse, 'B' Bind, 'E' Execute, 'S' Sync of a client; 'C' CommandComplete,
	// 'Z' ReadyForQuery, 'E' Error of a server. It is 0 for a client's first message.
	Type byte
	Body []byte // without type and length; valid during the call only
}

// Query returns the text of a simple query, which is how the product sends BEGIN, COMMIT and ROLLBACK. It is empty
// for any other message.
func (m Message) Query() string {
	if m.From != Client || m.Type != 'Q' {
		return ""
	}
	return strings.TrimSuffix(string(m.Body), "\x00")
}

// Action is what the proxy does with a message.
type Action int

// The actions.
const (
	Forward Action = iota // sends the message on
	Discard               // drops this message only
	// Reset drops the message and resets the connection.
	Reset
	// ForwardThenReset sends the message on and then resets the connection. A client gets no reply.
	ForwardThenReset
	// DropReplies sends the message on, and drops all that the server sends on this connection from then on.
	DropReplies
	// Freeze holds the message and all that follow it from this side, until the connection is reset.
	Freeze
)

// Filter decides about a message. It is called concurrently, but in order within one direction of a connection.
type Filter func(Message) Action

// Nth returns a filter that applies action to the n-th message (from 1) for which matches returns true, and forwards
// all others. It closes done at that message.
func Nth(n int, action Action, matches func(Message) bool) (f Filter, done <-chan struct{}) {
	var mu sync.Mutex
	hit := make(chan struct{})
	return func(m Message) Action {
		mu.Lock()
		defer mu.Unlock()
		if n == 0 || !matches(m) {
			return Forward
		}
		if n--; n > 0 {
			return Forward
		}
		close(hit)
		return action
	}, hit
}

// Commit reports whether m is a client's COMMIT.
func Commit(m Message) bool { return strings.EqualFold(m.Query(), "commit") }

// CommitOf returns a condition for Nth: m is the COMMIT of a transaction that ran a statement whose text contains
// text. The filter must see the connection from its start, since statements are prepared once.
func CommitOf(text string) func(Message) bool {
	type session struct {
		prepared map[string]bool // by name: the statement contains text
		ran      bool            // this transaction ran one
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

// Statement reports whether m is the last message of a client's statement: a simple query or a Sync.
func Statement(m Message) bool { return m.From == Client && (m.Type == 'Q' || m.Type == 'S') }

const (
	headerBytes  = 5 // type and length
	maxBodyBytes = 1 << 30
)

type link struct {
	proxy  *Proxy
	id     int
	client *net.TCPConn

	mu             sync.Mutex
	server         *net.TCPConn // nil until attached
	closed         bool
	repliesDropped atomic.Bool
	over           chan struct{} // closed with the link
}

// attach sets the server's connection. It returns false if the link was reset before.
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

func (l *link) reset() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return
	}
	l.closed = true
	resetConn(l.client)
	if l.server != nil {
		resetConn(l.server)
	}
	close(l.over)
}

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

// close ends the link after err: in order after an EOF, else by a reset.
func (l *link) close(err error, source, sink *net.TCPConn) {
	if errors.Is(err, io.EOF) && l.admit() {
		_ = sink.CloseWrite()
		_ = source.CloseRead()
		if sink == l.server { // the server closes its side in turn
			return
		}
	}
	l.reset()
}

// send applies the mode and the filter to a message. It returns false if this direction has ended.
func (l *link) send(m Message, head []byte, sink *net.TCPConn) bool {
	p := l.proxy
	p.mu.Lock()
	filter := p.filter
	p.mu.Unlock()
	action := Forward
	if filter != nil {
		action = filter(m)
	}
	if !l.admit() {
		return false
	}
	if m.From == Server && l.repliesDropped.Load() {
		return true
	}
	switch action {
	case Discard:
		return true
	case Reset:
		l.reset()
		return false
	case Freeze:
		<-l.over
		return false
	case DropReplies:
		l.repliesDropped.Store(true)
	case ForwardThenReset:
		if m.From == Client {
			l.repliesDropped.Store(true) // else a quick reply could arrive before the reset
		}
	case Forward:
	}
	if _, err := sink.Write(slices.Concat(head, m.Body)); err != nil {
		l.reset()
		return false
	}
	if action == ForwardThenReset {
		l.resetAfterDelivery(sink)
		return false
	}
	return true
}

// resetAfterDelivery ends the link without losing what was written to sink, as a reset would.
func (l *link) resetAfterDelivery(sink *net.TCPConn) {
	_ = sink.CloseWrite()
	other := l.client
	if sink == l.client {
		other = l.server
	}
	resetConn(other)
	_, _ = io.Copy(io.Discard, sink) // until the other side has read it and closed
	l.reset()
}

// admit waits while the mode is Stall. It returns false if the link or the proxy has ended.
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
		case <-l.over:
			return false
		}
	}
}

// readMessage reads one message. A client's first one has no type.
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
