package pgtx

import (
	"os"
	"strings"
	"testing"
)

// A refusal names the keyword, and quotes nothing of the URL.
func TestURLsAreRefusedByKeyword(t *testing.T) {
	for _, entry := range os.Environ() {
		if name, _, _ := strings.Cut(entry, "="); strings.HasPrefix(name, "PG") {
			t.Setenv(name, "")
		}
	}
	for url, want := range map[string]string{
		"password = canary port=abc":                "port takes a number",
		`password='it\'s canary' port=abc`:          "port takes a number",
		`password=my\ canary port=70000`:            "port takes a number",
		"host=a,b port=1,2,3 password=canary":       "port takes a number",
		"postgres://u:canary:x@h:canary/db":         "port takes a number",
		"password=can ary host=h":                   "it cannot be read",
		"password='canary":                          "it cannot be read",
		"postgres://u@h/app&password=canary":        "dbname takes a name without =",
		"postgres://u@h/app%3Fpassword=canary":      "dbname takes a name without =",
		"dbname=app;password=canary host=h":         "dbname takes a name without =",
		"user=postgres,password=canary host=h":      "user takes a name without =",
		"postgres://ops:Hunter@canary@h/app":        "host takes a name without = and @",
		"postgres://ops:Hun@canary/x@h/app":         "dbname takes a name without = and @",
		"host=h;password=canary user=u":             "host takes a name without =",
		"postgres://u:can%zzary@h/db":               "it cannot be read",
		"postgres://u:can ary@h/db":                 "it cannot be read",
		"host=h connect_timeout=canary":             "connect_timeout takes a whole number of seconds",
		"host=h target_session_attrs=canary":        "target_session_attrs takes any, read-write",
		"host=h sslmode=canary":                     "sslmode takes disable, allow",
		"host=h sslcert=canary":                     "sslcert takes the path of a file in PEM format that can be read, to",
		"host=h sslmode=require sslrootcert=canary": "sslrootcert takes the path of a file",
		"host=h sslcert=canary sslkey=canary":       "sslkey takes the path of a file",
		"host=h sslnegotiation=canary":              "sslnegotiation takes postgres or direct",
		"host=h sslcertmode=canary":                 "sslcertmode takes disable, allow or require",
		"host=h channel_binding=canary":             "channel_binding takes disable, prefer or require",
		"host=h require_auth=canary":                "require_auth takes names",
		"host=h min_protocol_version=canary":        "min_protocol_version takes 3.0",
		"host=h service=canary":                     "service takes the name",
		"host=h statement_cache_capacity=canary":    "statement_cache_capacity takes a whole number from 0",
		"host=h default_query_exec_mode=canary":     "default_query_exec_mode takes cache_statement",
		"host=h default_query_exec_mode=exec":       "default_query_exec_mode takes cache_statement",
		"host=h pool_max_conns=canary":              "pool_max_conns takes a whole number from 1",
		"host=h pool_max_conn=5":                    "pool_max_conn is not supported",
		"host=h pool_max_conns=0":                   "pool_max_conns takes a whole number from 1",
		"host=h pool_max_conn_lifetime=canary":      "pool_max_conn_lifetime takes a time span",
		"host=h pool_max_conn_lifetime_jitter=c":    "pool_max_conn_lifetime_jitter takes a time span",
		"host=h replication=canary":                 "replication is not supported: correct it or leave it out",
		"host=h ssl_min_protocol_version=canary":    "ssl_min_protocol_version is not supported",
		"host=h gssencmode=require":                 "gssencmode is not supported",
		"postgres://u@h/app?sslmod=canary":          "sslmod is not supported",
		"postgres://u@h/app?statement_timeout=1":    "statement_timeout is not supported: correct it or leave it out; a set",
		"host=h password=canary sslmod=canary":      "sslmod is not supported",
		"host=h password=canary search_path=canary": "search_path is not supported",
		"host=h app.tenant=canary SSLMODE=disable":  "SSLMODE is not supported",
		"host=h password=my canary=x":               "a keyword (not repeated here",
		"postgres://u@h/app?password=my&canary=x":   "a keyword (not repeated here",
		"postgres://u@h/app?can%20ary=canary":       "a keyword (not repeated here",
	} {
		_, err := PoolConfig(url, 0, false)
		if err == nil || !strings.HasPrefix(err.Error(), want) || strings.Contains(err.Error(), "canary") {
			t.Errorf("%s\nis refused with %v\nwant %s", url, err, want)
		}
	}
	t.Setenv("PGCHANNELBINDING", "canary")
	if _, err := DirectConfig("host=h"); err == nil || !strings.HasPrefix(err.Error(),
		"channel_binding (or PGCHANNELBINDING) takes") {
		t.Errorf("a wrong variable is refused with %v", err)
	}
	t.Setenv("PGCHANNELBINDING", "")
	config, err := DirectConfig("host=h keepalives=1 keepalives_idle=5 gssencmode=prefer tcp_user_timeout=1 " +
		"fallback_application_name=psql load_balance_hosts=random application_name=mine timezone=UTC options='-c jit=off'")
	if err != nil || len(config.RuntimeParams) != 4 || config.RuntimeParams["application_name"] != "mine" {
		t.Errorf("keywords that are ignored: %v, %v", config, err)
	}
}
