package telemetry_test

import (
	"bytes"
	"compress/gzip"
	"context"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	v1 "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	spans "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/protobuf/proto"

	"spectral/internal/app"
	"spectral/internal/app/demo"
	"spectral/tests/pgtest"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

const testTimeout = 2 * time.Minute

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func background(t testing.TB) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), testTimeout)
	t.Cleanup(cancel)
	return ctx
}

// receiver takes in the requests of exporters.
type receiver struct {
	*httptest.Server
	mu     sync.Mutex
	bodies map[string][][]byte // by path
	heads  []http.Header
}

func newReceiver(t *testing.T) *receiver {
	t.Helper()
	r := &receiver{bodies: make(map[string][][]byte)}
	r.Server = httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, request *http.Request) {
		body := io.Reader(request.Body)
		if request.Header.Get("Content-Encoding") == "gzip" {
			unzipped, err := gzip.NewReader(body)
			if err != nil {
				t.Error(err)
				return
			}
			body = unzipped
		}
		text, err := io.ReadAll(body)
		if err != nil {
			t.Error(err)
		}
		r.mu.Lock()
		defer r.mu.Unlock()
		r.bodies[request.URL.Path] = append(r.bodies[request.URL.Path], text)
		r.heads = append(r.heads, request.Header)
	}))
	t.Cleanup(r.Close)
	return r
}

// all returns the bodies of the requests to a path.
func (r *receiver) all(path string) [][]byte {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.bodies[path])
}

// spans returns the spans that were received, in the order in which they began.
func (r *receiver) spans(t *testing.T) (all []*spans.Span) {
	t.Helper()
	for _, body := range r.all("/v1/traces") {
		var request v1.ExportTraceServiceRequest
		must(t, proto.Unmarshal(body, &request))
		for _, resource := range request.GetResourceSpans() {
			for _, scope := range resource.GetScopeSpans() {
				all = append(all, scope.GetSpans()...)
			}
		}
	}
	slices.SortFunc(all, func(a, b *spans.Span) int { return int(a.GetStartTimeUnixNano() - b.GetStartTimeUnixNano()) })
	return all
}

// process is a worker process.
type process struct {
	t        *testing.T
	ctx      context.Context
	url      string // of its database
	http     string
	demo     demo.Demo
	log      *lockedBuffer
	admin    *pgx.Conn
	shutdown func()
}

type lockedBuffer struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.Write(p)
}

func (b *lockedBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.String()
}

// start starts a worker process on a new database. Change may change its settings.
func start(t *testing.T, change func(*app.Settings)) *process {
	t.Helper()
	url := pgtest.New(t)
	settings := app.Settings{
		DatabaseURL: url, PoolURL: url, Generation: pgtest.Generation, BriefingsDir: t.TempDir(), LogShare: 1,
		HTTPAddr: pgtest.FreeAddress(t),
	}
	if change != nil {
		change(&settings)
	}
	p := &process{
		t: t, ctx: background(t), url: url, http: "http://" + settings.HTTPAddr, log: &lockedBuffer{},
		admin: pgtest.Conn(t, url),
	}
	log, flush := app.StartLog(p.log, slog.LevelDebug, settings.Generation)
	p.demo.Out, p.demo.Err = t.Output(), t.Output()
	worker, unit := app.NewWorker(settings, log, &p.demo.Publish, &p.demo.Pool)
	must(t, worker.Start(p.ctx))
	p.demo.UnitOfWork = unit
	p.shutdown = sync.OnceFunc(func() {
		must(t, worker.Stop(context.WithoutCancel(p.ctx)))
		flush()
	})
	t.Cleanup(p.shutdown)
	return p
}

// exec runs SQL as the owner of the database.
func (p *process) exec(sql string, arguments ...any) {
	p.t.Helper()
	_, err := p.admin.Exec(p.ctx, sql, arguments...)
	must(p.t, err)
}

// settled waits until no event is left to be handled.
func (p *process) settled() {
	p.t.Helper()
	if !pgtest.Eventually(testTimeout, func() bool {
		var left int
		must(p.t, p.admin.QueryRow(p.ctx, "select count(*) from core.outbox where status in ('pending', 'in_flight')").
			Scan(&left))
		return left == 0
	}) {
		p.t.Fatal("events are left")
	}
}

// get returns the status and the text of a page.
func (p *process) get(path string) (int, string) {
	p.t.Helper()
	request, err := http.NewRequestWithContext(p.ctx, http.MethodGet, p.http+path, nil)
	must(p.t, err)
	answer, err := http.DefaultClient.Do(request)
	must(p.t, err)
	defer func() { _ = answer.Body.Close() }()
	text, err := io.ReadAll(answer.Body)
	must(p.t, err)
	return answer.StatusCode, string(text)
}

// refuse lets the projection of cards fail whose title begins with refused.
func (p *process) refuse() {
	p.t.Helper()
	p.exec(`create function public.refuse() returns trigger language plpgsql as $$ begin
			raise exception 'a card called %', new.title using errcode = '23514';
		end $$;
		create trigger refuse before insert on platform.system_cards for each row when (starts_with(new.title, 'refused'))
			execute function public.refuse()`)
}
