package pgtx

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
)

// parsed is what the driver parses a URL into.
type parsed interface {
	*pgx.ConnConfig | *pgxpool.Config
}

// parse parses a URL. Its error names the keyword at fault and what it takes. It quotes nothing of the URL, which may
// hold a password wherever a mistake has put it.
func parse[C parsed](url string, by func(string) (C, error)) (config C, err error) {
	if config, err = by(url); err == nil {
		return config, nil
	}
	var fault *pgconn.ParseConfigError
	if !errors.As(err, &fault) {
		return nil, errUnreadable
	}
	fault.ConnString = "" // what is left begins with the driver's own words
	says := strings.TrimPrefix(fault.Error(), "cannot parse ``: ")
	for _, f := range urlFaults {
		if strings.HasPrefix(says, f.says) {
			return nil, refuseKeyword(f.keyword, f.takes)
		}
	}
	return nil, errUnreadable
}

var errUnreadable = errors.New("it cannot be read: want postgres://user:password@host:5432/database, with %XX for " +
	"special characters, or keyword=value pairs, with quotes around a value that has blanks")

// refuseKeyword returns the error for a wrong value. The driver may have it from the environment.
func refuseKeyword(keyword, takes string) error {
	plain := func(name string) string { return strings.ReplaceAll(name, "_", "") }
	for _, entry := range os.Environ() {
		variable, value, _ := strings.Cut(entry, "=")
		if value != "" && plain(variable) == "PG"+plain(strings.ToUpper(keyword)) {
			keyword += " (or " + variable + ")"
		}
	}
	return fmt.Errorf("%s takes %s", keyword, takes)
}

const (
	takesFile     = "the path of a file in PEM format that can be read"
	takesSpan     = "a time span, such as 30s"
	takesCount    = "a whole number from 0"
	takesProtocol = "3.0, 3.2 or latest, the least no newer than the greatest"
	tlsFault      = "failed to configure TLS ("
)

// urlFaults has what the driver says of a wrong value, by its first words.
var urlFaults = []struct{ says, keyword, takes string }{
	{"invalid port", "port", "a number from 1 to 65535, or as many as there are hosts"},
	{"could not match", "port", "a number from 1 to 65535, or as many as there are hosts"},
	{"invalid connect_timeout", "connect_timeout", "a whole number of seconds"},
	{"unknown target_session_attrs", "target_session_attrs", "any, read-write, read-only, primary, standby or " +
		"prefer-standby"},
	{"unknown channel_binding", "channel_binding", "disable, prefer or require"},
	{"invalid require_auth", "require_auth", "names of authentication methods, such as scram-sha-256"},
	{"invalid sslcertmode", "sslcertmode", "disable, allow or require"},
	{"invalid min_protocol_version", "min_protocol_version", takesProtocol},
	{"invalid max_protocol_version", "max_protocol_version", takesProtocol},
	{"min_protocol_version", "min_protocol_version", takesProtocol},
	{"failed to read service", "service", "the name of a service in the file that PGSERVICEFILE names"},
	{tlsFault + "sslmode", "sslmode", "disable, allow, prefer, require, verify-ca or verify-full"},
	{tlsFault + "both", "sslcert", takesFile + ", together with sslkey"},
	{tlsFault + "unable to resolve sslcert", "sslcert", takesFile},
	{tlsFault + "unable to read cert", "sslcert", takesFile},
	{tlsFault + "unable to load cert", "sslcert", takesFile},
	{tlsFault + "unable to find sslpassword", "sslpassword", "the password of sslkey"},
	{tlsFault + "unable to decrypt key", "sslpassword", "the password of sslkey"},
	{tlsFault + "unable to resolve sslkey", "sslkey", takesFile},
	{tlsFault + "unable to read sslkey", "sslkey", takesFile},
	{tlsFault + "failed to decode sslkey", "sslkey", takesFile},
	{tlsFault, "sslrootcert", takesFile + ", or system"},
	{"cannot parse statement_cache_capacity", "statement_cache_capacity", takesCount},
	{"cannot parse description_cache_capacity", "description_cache_capacity", takesCount},
	{"invalid default_query_exec_mode", "default_query_exec_mode", takesExecMode},
	{"cannot parse pool_max_conns", "pool_max_conns", "a whole number from 1"},
	{"pool_max_conns too small", "pool_max_conns", "a whole number from 1"},
	{"cannot parse pool_min_conns", "pool_min_conns", takesCount},
	{"cannot parse pool_min_idle_conns", "pool_min_idle_conns", takesCount},
	{"cannot parse pool_max_conn_lifetime_jitter", "pool_max_conn_lifetime_jitter", takesSpan},
	{"cannot parse pool_max_conn_lifetime", "pool_max_conn_lifetime", takesSpan},
	{"cannot parse pool_max_conn_idle_time", "pool_max_conn_idle_time", takesSpan},
	{"cannot parse pool_health_check_period", "pool_health_check_period", takesSpan},
	{"cannot parse pool_ping_timeout", "pool_ping_timeout", takesSpan},
}

const takesExecMode = "cache_statement, cache_describe or describe_exec"

// Keywords that the driver does not know, and would send to the server as settings.
var (
	ignoredKeywords = []string{
		"authtype", "fallback_application_name", "gssdelegation", "gssencmode", "gsslib", "keepalives", "keepalives_count",
		"keepalives_idle", "keepalives_interval", "load_balance_hosts", "sslcompression", "tcp_user_timeout", "tty",
	}
	// settings that libpq has keywords for too; timezone may be from PGTZ
	serverKeywords = []string{"application_name", "client_encoding", "options", "timezone"}
)

// checkKeywords removes the keywords that are ignored, and refuses all others that have no effect here.
func checkKeywords(config *pgx.ConnConfig) error {
	for _, name := range slices.Sorted(maps.Keys(config.RuntimeParams)) {
		switch required := name == "gssencmode" && config.RuntimeParams[name] == "require"; {
		case slices.Contains(ignoredKeywords, name) && !required:
			delete(config.RuntimeParams, name)
		case !slices.Contains(serverKeywords, name):
			if maybeSecret(config.ConnString(), name) {
				name = "a keyword (not repeated here: it may be a part of a password, where blanks and & need %XX or quotes)"
			}
			return fmt.Errorf("%s is not supported: correct it or leave it out; a setting of the server is written "+
				"options=-c name=value (in a URL options=-c%%20name%%3Dvalue)", name)
		}
	}
	if !slices.Contains([]string{"", "postgres", "direct"}, config.SSLNegotiation) {
		return refuseKeyword("sslnegotiation", "postgres or direct")
	}
	return nil
}

var (
	likeKeyword    = regexp.MustCompile(`^[A-Za-z]\w*(\.\w+)?$`)
	unlikePassword = regexp.MustCompile(`^(ssl|[a-z]+_)[a-z_]+$`)
)

// maybeSecret reports whether what looks like the name of a keyword may be a part of a password.
func maybeSecret(url, name string) bool {
	behind := regexp.MustCompile(`password\s*=\s*[^\s&]*[\s&]+` + regexp.QuoteMeta(name) + `\s*=`)
	return !likeKeyword.MatchString(name) || behind.MatchString(url) && !unlikePassword.MatchString(name)
}
