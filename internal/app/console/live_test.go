package console

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"spectral/internal/core/events/infrastructure/postgres/operator"
)

// watcher is a client of a stream.
type watcher struct {
	*httptest.ResponseRecorder
	mu       sync.Mutex
	deadline time.Time
	slow     atomic.Bool // takes nothing any more
	ended    chan struct{}
	leave    context.CancelFunc
}

func (w *watcher) SetWriteDeadline(at time.Time) error {
	w.deadline = at
	return nil
}

func (w *watcher) Write(text []byte) (int, error) {
	if w.slow.Load() {
		<-time.After(time.Until(w.deadline))
		return 0, os.ErrDeadlineExceeded
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.Body.Write(text)
}

// received returns what arrived since it was last called, once all is still.
func (w *watcher) received() string {
	synctest.Wait()
	w.mu.Lock()
	defer w.mu.Unlock()
	defer w.Body.Reset()
	return w.Body.String()
}

// hasEnded reports whether the stream is over, once all is still.
func (w *watcher) hasEnded() bool {
	synctest.Wait()
	select {
	case <-w.ended:
		return true
	default:
		return false
	}
}

// watch opens a stream of a page.
func watch(t *testing.T, s *server, of string) *watcher {
	t.Helper()
	ctx, leave := context.WithCancel(t.Context())
	t.Cleanup(leave)
	w := &watcher{ResponseRecorder: httptest.NewRecorder(), ended: make(chan struct{}), leave: leave}
	r := httptest.NewRequest(http.MethodGet, "/live?of="+of, nil).WithContext(ctx)
	r.Host, r.RemoteAddr = "localhost", "127.0.0.1:5000"
	go func() {
		defer close(w.ended)
		s.ServeHTTP(w, r)
	}()
	return w
}

// figures are what a broadcaster reads.
type figures struct {
	failed, reads, drawn atomic.Int64
	gone                 atomic.Bool
}

func (f *figures) read(context.Context) (operator.Live, error) {
	f.reads.Add(1)
	if f.gone.Load() {
		return operator.Live{}, errors.New("gone")
	}
	return operator.Live{At: time.Now(), Failed: int(f.failed.Load())}, nil
}

// page shows them.
func (f *figures) page(_ context.Context, v *visit) (any, error) {
	f.drawn.Add(1)
	if f.gone.Load() {
		return nil, os.ErrDeadlineExceeded
	}
	return []string{v.Query.Get("q"), time.Duration(f.failed.Load()).String()}, nil
}

func pass(d time.Duration) { <-time.After(d) }

func TestWatchedPagesAreSentWhenTheyChange(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var f figures
		s := newTestServer(shows(f.page), nil, always(operator.Viewer))
		s.live.read = f.read
		w := watch(t, s, "/%3Fq=a")
		if first := w.received(); first != "event: version\ndata: v1\n\ndata: <p>[a 0s]</p>\n\n" {
			t.Errorf("at first %q", first)
		}
		h := w.Header()
		if h.Get("Content-Type") != "text/event-stream" || h.Get("X-Accel-Buffering") != "no" {
			t.Errorf("headers %v", h)
		}
		pass(14 * time.Second)
		if same, drawn := w.received(), f.drawn.Load(); same != "" || drawn != 3 {
			t.Errorf("without a change %q, drawn %d times", same, drawn)
		}
		pass(2 * time.Second)
		if comment := w.received(); comment != ":\n\n" {
			t.Errorf("after 16 s without a change %q", comment)
		}
		f.failed.Add(1)
		pass(readEvery)
		if changed := w.received(); changed != "data: <p>[a 1ns]</p>\n\n" {
			t.Errorf("after a change %q", changed)
		}
		f.gone.Store(true)
		pass(readEvery)
		lost := w.received()
		if !strings.HasPrefix(lost, `event: lost`) || !strings.Contains(lost, `"since":"2000-01-01T00:00:17Z"`) {
			t.Errorf("without the database %q", lost)
		}
		f.gone.Store(false)
		pass(readEvery)
		if again := w.received(); again != "data: <p>[a 1ns]</p>\n\n" {
			t.Errorf("with the database again %q", again)
		}
	})
}

func TestFiguresAreReadOnceForAllAndNotForNone(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var f figures
		s := newTestServer(shows(func(ctx context.Context, v *visit) (any, error) {
			l, err := v.Live(ctx)
			return []string{l.At.String()}, err
		}), nil, always(operator.Viewer))
		s.live.read = f.read
		pass(time.Minute)
		if n := f.reads.Load(); n != 0 {
			t.Errorf("%d reads before any page was watched", n)
		}
		for range 2 { // opened, left, and opened again
			f.reads.Store(0)
			one, other := watch(t, s, "/"), watch(t, s, "/")
			synctest.Wait()
			pass(9*readEvery + readEvery/2)
			synctest.Wait()
			one.leave()
			if n := f.reads.Load(); n != 10 || !one.hasEnded() || other.hasEnded() {
				t.Errorf("%d reads for two pages in 10 s", n)
			}
			other.leave()
			synctest.Wait()
			f.reads.Store(0)
			pass(time.Minute)
			if n := f.reads.Load(); n != 0 || !other.hasEnded() {
				t.Errorf("%d reads after the last page was left", n)
			}
		}
	})
}

func TestStreamsEndWhenTheyMust(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var f figures
		var role atomic.Value
		role.Store(operator.Role)
		s := newTestServer(shows(f.page), nil, Identity(func(*http.Request) (Person, error) {
			return Person{"ann", role.Load().(string)}, nil
		}))
		s.live.read = f.read
		slow, quick := watch(t, s, "/"), watch(t, s, "/")
		synctest.Wait()
		slow.slow.Store(true)
		f.failed.Add(1)
		pass(readEvery + writeTimeout)
		if !slow.hasEnded() || quick.hasEnded() || !strings.Contains(quick.received(), "1ns") {
			t.Error("a slow client is not dropped, or stops another")
		}
		role.Store(operator.Viewer)
		pass(rightsEvery)
		if !quick.hasEnded() {
			t.Error("rights are not asked for again")
		}
	})
}

func TestStreamsAreBounded(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var f figures
		hidden := page{Path: "/still", Template: "home", Load: f.page}
		s := newTestServer(append(shows(f.page), hidden), nil, always(operator.Viewer))
		s.live.read = f.read
		for _, of := range []string{"", "/none", "/still", "//evil.example/", "%25zz", "/%3Fa=%2500"} {
			if w := watch(t, s, of); !w.hasEnded() || w.Code != http.StatusNotFound {
				t.Errorf("of %q: %d %s", of, w.Code, w.Body)
			}
		}
		var last *watcher
		for range maxStreams {
			last = watch(t, s, "/")
		}
		synctest.Wait()
		if more := watch(t, s, "/"); !more.hasEnded() || more.Code != http.StatusServiceUnavailable {
			t.Errorf("one more: %d", more.Code)
		}
		last.leave()
		if !last.hasEnded() || watch(t, s, "/").hasEnded() {
			t.Error("a place that is free is not given to another")
		}
	})
}
