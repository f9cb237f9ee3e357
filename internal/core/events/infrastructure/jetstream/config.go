package jetstream

import (
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"os"
	"regexp"
	"slices"
	"strings"

	"github.com/nats-io/nats.go"

	"spectral/internal/core/events"
)

// DefaultStream is the name of the stream, and the first word of its subjects.
const DefaultStream = "spectral"

// Config says where the broker is. Files are paths; those that are empty are not used.
type Config struct {
	URL         string // nats:// or tls://, several joined by commas; may have a user and password
	Stream      string // empty: DefaultStream
	Credentials string // file with a user's JWT and seed
	CA          string // file with the certificates that the broker's is checked by
	Cert, Key   string // files of the client's certificate

	Generation events.Generation
	Name       string // of this client, for people
	Log        *slog.Logger
}

var streamForm = regexp.MustCompile(`^[A-Za-z0-9_-]{1,64}$`)

// Keys of log entries.
const (
	logError   = "error"
	logStream  = "stream"
	logURL     = "url"
	logEvents  = "events"
	logSubject = "subject"
)

// Validate reports what is wrong with the configuration, by the environment variables that it comes from.
func (c Config) Validate() error {
	var errs []error
	if !streamForm.MatchString(c.Stream) {
		errs = append(errs, fmt.Errorf("SPECTRAL_NATS_STREAM: %.80q must have 1 to 64 letters, digits, _ and -", c.Stream))
	}
	for address := range strings.SplitSeq(c.URL, ",") {
		u, err := url.Parse(strings.TrimSpace(address))
		if address != "" && (err != nil || !slices.Contains(schemes, u.Scheme) || u.Host == "") {
			errs = append(errs, errors.New("SPECTRAL_NATS_URL: must be nats://host:4222 or tls://host:4222, or several of them "+
				"joined by commas"))
		}
	}
	for name, file := range map[string]string{
		"CREDS": c.Credentials, "CA": c.CA, "CERT": c.Cert, "KEY": c.Key,
	} {
		if file == "" {
			continue
		}
		if _, err := os.ReadFile(file); err != nil { //nolint:gosec // the operator's own
			errs = append(errs, fmt.Errorf("SPECTRAL_NATS_%s: %w", name, err))
		}
	}
	return errors.Join(errs...)
}

var schemes = []string{"nats", "tls", "ws", "wss"}

// connect returns a connection, which is made in the background and made again when it is lost. It fails if the
// configuration cannot be used.
func (c Config) connect(options ...nats.Option) (*nats.Conn, error) {
	if err := c.Validate(); err != nil {
		return nil, err
	}
	options = append([]nats.Option{
		nats.Name(c.Name), nats.RetryOnFailedConnect(true), nats.MaxReconnects(-1), nats.IgnoreAuthErrorAbort(),
		nats.ReconnectWait(retryPause), nats.Timeout(apiTimeout), nats.FlusherTimeout(writeTimeout),
		nats.PingInterval(pingInterval), nats.ReconnectBufSize(-1), // what cannot be sent at once is an error
	}, options...)
	if c.Credentials != "" {
		options = append(options, nats.UserCredentials(c.Credentials))
	}
	if c.CA != "" {
		options = append(options, nats.RootCAs(c.CA))
	}
	if c.Cert != "" || c.Key != "" {
		options = append(options, nats.ClientCert(c.Cert, c.Key))
	}
	return nats.Connect(c.URL, options...)
}
