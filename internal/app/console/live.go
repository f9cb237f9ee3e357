package console

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"sync"
	"time"

	"spectral/internal/core/events/infrastructure/postgres/operator"
)

const (
	maxStreams = 200 // of a process
	// readEvery is how often the live figures are read while a page is watched.
	readEvery = time.Second
	// drawAfter is when a fragment is drawn again although the figures are the same: not all that pages show is in them.
	drawAfter = 5 * time.Second
	// commentAfter is how long a stream is silent at most, so that proxies do not close it.
	commentAfter = 15 * time.Second
	// writeTimeout is how long a client may take for one event until its stream ends.
	writeTimeout = 5 * time.Second
	// rightsEvery is how often who watches is asked for again.
	rightsEvery = time.Minute
)

// broadcaster reads the live figures while streams are open, and tells them when the figures have changed.
type broadcaster struct {
	read    func(context.Context) (operator.Live, error)
	mu      sync.Mutex
	streams map[chan struct{}]bool
	stop    context.CancelFunc
	last    operator.Live // what was read last, for streams
	lastErr error
	readAt  time.Time
}

// figures returns the live figures: while a page is watched those that were read last, so that one statement a second
// serves all pages.
func (b *broadcaster) figures(ctx context.Context) (operator.Live, error) {
	b.mu.Lock()
	last, err, fresh := b.last, b.lastErr, len(b.streams) > 0 && time.Since(b.readAt) < 2*readEvery
	b.mu.Unlock()
	if fresh {
		return last, err
	}
	return b.read(ctx)
}

func newBroadcaster(read func(context.Context) (operator.Live, error)) *broadcaster {
	return &broadcaster{read: read, streams: make(map[chan struct{}]bool)}
}

// open returns a channel that receives when the figures have changed, or cannot be read. It returns nil if there are
// maxStreams. The caller closes the stream.
func (b *broadcaster) open() (changed chan struct{}) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.streams) == maxStreams {
		return nil
	}
	changed = make(chan struct{}, 1) // a stream that is still busy needs no second signal
	if len(b.streams) == 0 {
		var ctx context.Context
		ctx, b.stop = context.WithCancel(context.Background())
		go b.run(ctx)
	}
	b.streams[changed] = true
	return changed
}

// close ends a stream. With the last one the reading ends.
func (b *broadcaster) close(changed chan struct{}) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if delete(b.streams, changed); len(b.streams) == 0 {
		b.stop()
	}
}

// run reads until ctx ends.
func (b *broadcaster) run(ctx context.Context) {
	tick := time.NewTicker(readEvery)
	defer tick.Stop()
	var last []byte
	for {
		reading, cancel := context.WithTimeout(ctx, pageTimeout)
		live, err := b.read(reading)
		cancel()
		b.mu.Lock()
		b.last, b.lastErr, b.readAt = live, err, time.Now()
		b.mu.Unlock()
		live.At = time.Time{}
		now, _ := json.Marshal(live) // of plain values
		if err != nil || !bytes.Equal(now, last) {
			b.signal()
		}
		last = now
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}

func (b *broadcaster) signal() {
	b.mu.Lock()
	defer b.mu.Unlock()
	for changed := range b.streams {
		select {
		case changed <- struct{}{}:
		default:
		}
	}
}

// stream is one open page.
type stream struct {
	*server
	w       http.ResponseWriter
	match   *match
	visit   *visit
	of      *url.URL
	last    [sha256.Size]byte // of the fragment that was sent last
	drawnAt time.Time
	sentAt  time.Time
	goodAt  time.Time // of the last fragment
}

// serveLive sends the fragment of a page, again each time that it has changed, until the client leaves or is too slow,
// or the person's rights change.
func (s *server) serveLive(w http.ResponseWriter, r *http.Request) {
	of, err := url.Parse(r.URL.Query().Get("of"))
	if err == nil {
		err = checkValues(of)
	}
	var m *match
	if err == nil && of.Host == "" {
		m = s.find(of)
	}
	if m == nil || !m.page.Live {
		s.plain(w, r, http.StatusNotFound, "no live page is at that path")
		return
	}
	changed := s.live.open()
	if changed == nil {
		w.Header().Set("Retry-After", "30")
		s.plain(w, r, http.StatusServiceUnavailable, "too many pages are being watched")
		return
	}
	defer s.live.close(changed)
	w.Header().Set("Content-Type", "text/event-stream")
	w.Header().Set("X-Accel-Buffering", "no")
	v := s.visit(r, m.values)
	v.Query = of.Query()
	watched := &stream{server: s, w: w, match: m, visit: v, of: of}
	if err := watched.send("version", s.Version); err != nil {
		return
	}
	tick, rights := time.NewTicker(readEvery), time.NewTicker(rightsEvery)
	defer tick.Stop()
	defer rights.Stop()
	for err == nil {
		select {
		case <-r.Context().Done():
			return
		case <-changed:
			err = watched.draw(r.Context())
		case <-tick.C:
			if time.Since(watched.drawnAt) > drawAfter {
				err = watched.draw(r.Context())
			}
		case <-rights.C:
			if person, denied := s.identity(r); denied != nil || person != v.Person {
				return // the page asks again, and is told why
			}
		}
		if err == nil && time.Since(watched.sentAt) > commentAfter {
			err = watched.write(":\n\n")
		}
	}
}

// draw sends the page's fragment if it has changed, or that it is lost since when. After that it sends the next one in
// any case.
func (t *stream) draw(ctx context.Context) error {
	t.drawnAt = time.Now()
	data, err := t.load(ctx, t.match.page, t.visit, t.of)
	var text []byte
	if err == nil {
		text, err = t.execute("content", *t.match.page, t.visit, data)
	}
	if err != nil {
		shown := explain(err, t.visit.Person)
		t.last = [sha256.Size]byte{}
		lost, _ := json.Marshal(map[string]any{"message": shown.Message, "since": t.goodAt}) // of plain values
		return t.send("lost", string(lost))
	}
	t.goodAt = time.Now().UTC()
	if sum := sha256.Sum256(text); sum != t.last {
		t.last = sum
		return t.send("", string(text))
	}
	return nil
}

// send sends an event; without a name it is a fragment.
func (t *stream) send(event, data string) error {
	var text bytes.Buffer
	if event != "" {
		fmt.Fprintf(&text, "event: %s\n", event)
	}
	for line := range bytes.Lines([]byte(data)) {
		fmt.Fprintf(&text, "data: %s\n", bytes.TrimRight(line, "\r\n"))
	}
	text.WriteByte('\n')
	return t.write(text.String())
}

// write writes and flushes within writeTimeout. A client that is slower loses its stream.
func (t *stream) write(text string) error {
	t.sentAt = time.Now()
	control := http.NewResponseController(t.w)
	err := control.SetWriteDeadline(time.Now().Add(writeTimeout))
	if err == nil {
		_, err = t.w.Write([]byte(text))
	}
	if err == nil {
		err = control.Flush()
	}
	return err
}
