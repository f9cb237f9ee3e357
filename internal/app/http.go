package app

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"go.uber.org/fx"

	"spectral/internal/core/events/infrastructure/postgres/notify"
	"spectral/internal/core/events/infrastructure/postgres/worker"
)

// Where health and metrics are served by default. If another process has the port, the next free one of httpPorts is
// taken: two generations on a host have addresses that are known beforehand.
const (
	defaultHost = "127.0.0.1"
	defaultPort = 8017
	httpPorts   = 10
)

const (
	// loopLimit is how long a loop of the process may take for one round.
	loopLimit = time.Minute
	// stalledAfter is how long due events may wait while none of their type is handled.
	stalledAfter = time.Minute
	// answerWithin is how long a health check waits for the database.
	answerWithin = 2 * time.Second
	// pollWithin is how old the last answered poll may be while the worker polls, which it does every 5 s.
	pollWithin = 20 * time.Second
	httpStop   = time.Second
	httpRead   = 5 * time.Second
	httpWrite  = 30 * time.Second
)

// HTTPServer serves /healthz, /readyz and /metrics, and the console if there is one.
type HTTPServer struct {
	worker  *worker.Worker // set before it starts
	pool    *pgxpool.Pool
	addr    net.Addr
	console bool
}

// ConsoleURL returns where the console is; empty if there is none.
func (h *HTTPServer) ConsoleURL() string {
	if h.addr == nil || !h.console {
		return ""
	}
	return h.URL() + consolePath + "/"
}

// URL returns where the server is; empty if there is none.
func (h *HTTPServer) URL() string {
	if h.addr == nil {
		return ""
	}
	return "http://" + h.addr.String()
}

// newHTTPServer returns the server of a worker process, which takes its address before the worker starts.
func newHTTPServer(lifecycle fx.Lifecycle, s Settings, p *providers, pool *pgxpool.Pool,
	log *slog.Logger) (*HTTPServer, error) {
	h := &HTTPServer{pool: pool}
	if s.HTTPAddr == HTTPOff {
		return h, nil
	}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", answer(h.health))
	mux.HandleFunc("GET /readyz", answer(h.ready))
	mux.Handle("GET /metrics", promhttp.HandlerFor(p.registry, promhttp.HandlerOpts{}))
	if s.Console != nil {
		handler, closePool, err := s.Console.Open(context.Background(), log)
		if err != nil {
			return nil, err
		}
		mux.Handle("/", handler)
		h.console = true
		lifecycle.Append(fx.StopHook(closePool))
	}
	server := newServer(mux, log)
	lifecycle.Append(fx.Hook{
		OnStart: func(ctx context.Context) error {
			listener, err := listenHTTP(ctx, s.HTTPAddr)
			if err != nil {
				return err
			}
			h.addr = listener.Addr()
			if h.console {
				log.InfoContext(ctx, "serving health, metrics and the console", logURL, h.ConsoleURL())
			} else {
				log.InfoContext(ctx, "serving health and metrics; no console: "+EnvConsoleURL+" is not set", logURL, h.URL())
			}
			go func() {
				if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
					log.WarnContext(context.WithoutCancel(ctx), "health and metrics are not served any more", logReason, err.Error())
				}
			}()
			return nil
		},
		OnStop: func(ctx context.Context) error {
			shutdown(ctx, server)
			return nil
		},
	})
	return h, nil
}

// newServer returns a server of a handler.
func newServer(handler http.Handler, log *slog.Logger) *http.Server {
	return &http.Server{
		Handler: handler, ReadTimeout: httpRead, WriteTimeout: httpWrite, IdleTimeout: time.Minute,
		ErrorLog: slog.NewLogLogger(log.Handler(), slog.LevelWarn),
	}
}

// ServeConsole serves the console alone at addr until ctx ends. It calls ready with its URL once it listens.
func ServeConsole(ctx context.Context, c *Console, addr string, log *slog.Logger, ready func(url string)) error {
	handler, closePool, err := c.Open(ctx, log)
	if err != nil {
		return err
	}
	defer closePool()
	var config net.ListenConfig
	listener, err := config.Listen(ctx, "tcp", addr)
	if err != nil {
		return settingsError("--addr: %w: choose another address", err)
	}
	server := newServer(handler, log)
	stop := context.AfterFunc(ctx, func() { shutdown(context.WithoutCancel(ctx), server) })
	defer stop()
	ready("http://" + listener.Addr().String() + consolePath + "/")
	if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serve the console: %w", err)
	}
	return nil
}

// shutdown gives requests httpStop to end.
func shutdown(ctx context.Context, server *http.Server) {
	ctx, cancel := context.WithTimeout(ctx, httpStop)
	defer cancel()
	if server.Shutdown(ctx) != nil {
		_ = server.Close()
	}
}

// listenHTTP listens on addr, a host and port or a host alone. Without a port it takes the first free one of httpPorts,
// and if there is none, any.
func listenHTTP(ctx context.Context, addr string) (listener net.Listener, err error) {
	host, port, notBoth := net.SplitHostPort(addr)
	ports := []string{port}
	if notBoth != nil {
		host, ports = cmp.Or(strings.Trim(addr, "[]"), defaultHost), nil
		for n := range httpPorts {
			ports = append(ports, strconv.Itoa(defaultPort+n))
		}
		ports = append(ports, "0")
	}
	var config net.ListenConfig
	for _, port := range ports {
		listener, err = config.Listen(ctx, "tcp", net.JoinHostPort(host, port))
		if !errors.Is(err, syscall.EADDRINUSE) {
			break
		}
	}
	if err != nil {
		return nil, settingsError("%s: %w: set it to another address, or to %s", EnvHTTPAddr, err, HTTPOff)
	}
	return listener, nil
}

// answer serves a check: 200 and ok, or 503 and what is wrong.
func answer(check func(context.Context) error) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		text := "ok"
		if err := check(r.Context()); err != nil {
			text = err.Error()
			w.WriteHeader(http.StatusServiceUnavailable)
		}
		_, _ = fmt.Fprintln(w, text)
	}
}

// health fails only if a loop of the process is stuck while the database answers.
func (h *HTTPServer) health(ctx context.Context) error {
	return checkLoops(h.worker.Health(), func() bool { return h.reached(ctx) })
}

// ready fails if the worker cannot handle events, or does not.
func (h *HTTPServer) ready(context.Context) error { return checkReady(h.worker.Health()) }

// reached reports whether the database answers.
func (h *HTTPServer) reached(ctx context.Context) bool {
	ctx, cancel := context.WithTimeout(ctx, answerWithin)
	defer cancel()
	return h.pool.Ping(ctx) == nil
}

// checkLoops returns an error if a loop is stuck for loopLimit, though the database can be reached.
func checkLoops(health *notify.Health, reached func() bool) error {
	loops := health.Stuck(loopLimit)
	if len(loops) == 0 || !reached() {
		return nil
	}
	return fmt.Errorf("stuck for %s, though the database answers: %s", loopLimit, strings.Join(loops, ", "))
}

// checkReady returns an error if a worker neither listens nor polls, or makes no progress.
func checkReady(health *notify.Health) error {
	state, reason := health.Now()
	switch {
	case state == notify.Listening:
	case state == notify.Polling && time.Since(health.Answered()) < pollWithin: // events are handled, if a little later
	default:
		return fmt.Errorf("%s: %s", state, cmp.Or(reason, "not listening"))
	}
	if stalled := health.Stalled(stalledAfter); len(stalled) > 0 {
		return fmt.Errorf("no progress for %s with due events of %s", stalledAfter, strings.Join(stalled, ", "))
	}
	return nil
}
