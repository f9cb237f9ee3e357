package embeddednats

import (
	"crypto/rand"
	"errors"
	"fmt"
	"net/url"
	"os"
	"time"

	"github.com/nats-io/nats-server/v2/server"
)

const (
	user         = "spectral"
	readyTimeout = 20 * time.Second
	// maxStore is more than a disk has: each stream reserves its largest size, and the server would refuse what exceeds it
	maxStore = 1 << 50
)

// Config describes a server. The zero value is a server with its own new folder, port and password.
type Config struct {
	Dir      string // the folder of its data, which stays; empty: a new one, deleted by Stop
	Port     int    // zero: a free one
	Password string // empty: a new one
	// Change changes options of the server before it starts; nil: nothing.
	Change func(*server.Options)
}

// Server is a running NATS server.
type Server struct {
	config  Config
	ownDir  bool
	running *server.Server
}

// Start returns a server that takes connections. Call Stop after use.
func Start(c Config) (s *Server, err error) {
	s = &Server{config: c}
	if c.Dir == "" {
		s.ownDir = true
		if s.config.Dir, err = os.MkdirTemp("", "spectral-nats-"); err != nil {
			return nil, fmt.Errorf("folder of the NATS server: %w", err)
		}
	}
	if s.config.Password == "" {
		s.config.Password = rand.Text()
	}
	options := &server.Options{
		ServerName: "spectral", Host: "127.0.0.1", Port: server.RANDOM_PORT, Username: user, Password: s.config.Password,
		JetStream: true, StoreDir: s.config.Dir, JetStreamMaxStore: maxStore, NoLog: true, NoSigs: true,
		DisableJetStreamBanner: true,
	}
	if c.Port > 0 {
		options.Port = c.Port
	}
	if c.Change != nil {
		c.Change(options)
	}
	if s.running, err = server.NewServer(options); err != nil {
		s.Stop()
		return nil, fmt.Errorf("NATS server: %w", err)
	}
	s.running.Start()
	if !s.running.ReadyForConnections(readyTimeout) {
		s.Stop()
		return nil, errors.New("the NATS server is not ready: is its port free, and its disk not full?")
	}
	return s, nil
}

// URL returns where the server is, with its password.
func (s *Server) URL() string {
	u := url.URL{Scheme: "nats", User: url.UserPassword(user, s.config.Password), Host: s.running.Addr().String()}
	return u.String()
}

// Describe returns one line for people.
func (s *Server) Describe() string {
	return "NATS with JetStream runs in this process, at " + s.URL()
}

// Stop ends the server.
func (s *Server) Stop() {
	if s.running != nil {
		s.running.Shutdown()
		s.running.WaitForShutdown()
	}
	if s.ownDir {
		_ = os.RemoveAll(s.config.Dir)
	}
}
