package console

import (
	"crypto/sha256"
	"encoding/hex"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// file returns the path of a file with this text.
func file(t *testing.T, text string) string {
	t.Helper()
	name := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return name
}

const user, auth = "X-Forwarded-User", "Authorization"

func hashed(token string) string {
	sum := sha256.Sum256([]byte(token))
	return strings.ToUpper(hex.EncodeToString(sum[:]))
}

func TestOnlyTrustedIdentitiesCount(t *testing.T) {
	t.Parallel()
	persons, err := NewIdentities(file(t, "# persons\nann operator\n\n* spectral_viewer\n"),
		file(t, hashed("right")+" robot corrector\n"))
	if err != nil {
		t.Fatal(err)
	}
	persons.Trusted = []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}
	named, err := NewIdentities(file(t, "ann operator"), "")
	if err != nil {
		t.Fatal(err)
	}
	named.Trusted = persons.Trusted
	shown := func(i *Identities) *server { return newTestServer(shows(text("hi")), nil, Identity(i.Person)) }
	all, few, none := shown(persons), shown(named), newTestServer(shows(text("hi")), nil)
	for name, c := range map[string]struct {
		server  *server
		headers []string
		status  int
		part    string
	}{
		"loopback":               {all, []string{"From", "127.0.0.1"}, 200, "loopback "},
		"loopback by IPv6":       {all, []string{"From", "::1"}, 200, "loopback "},
		"loopback, embedded":     {none, []string{"From", "127.0.0.1"}, 200, "loopback "},
		"elsewhere":              {all, []string{"From", "11.0.0.1"}, 401, "sign in"},
		"elsewhere, embedded":    {none, []string{"From", "11.0.0.1"}, 401, "sign in"},
		"forwarded to loopback":  {all, []string{"From", "127.0.0.1", "X-Forwarded-For", "11.0.0.1"}, 401, "sign in"},
		"a proxy, ann":           {all, []string{"From", "10.0.0.1", user, "ann"}, 200, "ann operates"},
		"a proxy by mapped IPv4": {all, []string{"From", "::ffff:10.0.0.1", user, "ann"}, 200, "ann operates"},
		"a proxy, bob":           {all, []string{"From", "10.0.0.1", user, "bob"}, 200, "bob "},
		"a proxy, bob, no *":     {few, []string{"From", "10.0.0.1", user, "bob"}, 403, "SPECTRAL_CONSOLE_ROLES"},
		"a proxy, no name":       {all, []string{"From", "10.0.0.1"}, 401, "no usable name"},
		"a proxy, two names":     {all, []string{"From", "10.0.0.1", user, "ann", user, "b"}, 401, "no usable name"},
		"a proxy, odd name":      {all, []string{"From", "10.0.0.1", user, "ann\u202e"}, 401, "no usable name"},
		"spoofed":                {all, []string{"From", "11.0.0.1", user, "ann"}, 401, "SPECTRAL_CONSOLE_TRUSTED"},
		"spoofed on loopback":    {all, []string{"From", "127.0.0.1", user, "ann"}, 401, "SPECTRAL_CONSOLE_TRUSTED"},
		"a token":                {all, []string{"From", "11.0.0.1", auth, "Bearer right"}, 200, "robot operates"},
		"a token by a proxy":     {all, []string{"From", "10.0.0.1", auth, "Bearer right"}, 200, "robot operates"},
		"a wrong token":          {all, []string{"From", "11.0.0.1", auth, "Bearer wrong"}, 401, "token is not known"},
		"a wrong token, here":    {all, []string{"From", "127.0.0.1", auth, "Bearer wrong"}, 401, "token is not known"},
		"a hash as the token":    {all, []string{"From", "11.0.0.1", auth, "Bearer " + hashed("right")}, 401, "token"},
		"no bearer":              {all, []string{"From", "11.0.0.1", auth, "right"}, 401, "token is not known"},
		"no tokens, embedded":    {none, []string{"From", "11.0.0.1", auth, "Bearer "}, 401, "token is not known"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := ask(c.server, "GET", "/", nil, c.headers...)
			expect(t, w, c.status, c.part)
			if strings.Contains(w.Body.String(), "operates") != strings.Contains(c.part, "operates") {
				t.Errorf("rights of another: %s", w.Body)
			}
			if (c.status == http.StatusUnauthorized) != (w.Header().Get("WWW-Authenticate") != "") {
				t.Errorf("headers %v", w.Header())
			}
		})
	}
}

func TestFilesOfPersonsAreChecked(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"ann":                               "line 1: want <name> <role>",
		"\nann admin":                       `line 2: "admin" is no role: want one of spectral_viewer`,
		"ann viewer\nann operator":          "line 2: the same person",
		hashed("t") + " robot viewer extra": "line 1: want",
	} {
		if _, err := NewIdentities(file(t, text), ""); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("roles %q: %v, want %s", text, err, want)
		}
	}
	for text, want := range map[string]string{
		"secret robot viewer":        "line 1: want <SHA-256 of a token in hex> <name> <role>",
		hashed("t") + " robot admin": "is no role",
		hashed("t") + " a viewer\n" + strings.ToLower(hashed("t")) + " b viewer": "line 2: the same person or token",
	} {
		_, err := NewIdentities("", file(t, text))
		if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "secret") {
			t.Errorf("tokens %q: %v, want %s", text, err, want)
		}
	}
	if _, err := NewIdentities("/none", ""); err == nil {
		t.Error("a file that is missing is no error")
	}
}

func TestFilesOfPersonsAreReadAgain(t *testing.T) {
	t.Parallel()
	name := file(t, "ann operator")
	persons, err := NewIdentities(name, "")
	if err != nil {
		t.Fatal(err)
	}
	persons.Trusted = []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}
	s := newTestServer(shows(text("hi")), nil, Identity(persons.Person))
	if err := os.WriteFile(name, []byte("ann viewer"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, old := range []bool{false, true} {
		if old {
			persons.readAt = time.Now().Add(-2 * rereadAfter)
		}
		w := ask(s, "GET", "/", nil, "From", "10.0.0.1", user, "ann")
		if strings.Contains(w.Body.String(), "operates") == old {
			t.Errorf("read again: %v, %s", old, w.Body)
		}
	}
	if err := os.Remove(name); err != nil {
		t.Fatal(err)
	}
	persons.readAt = time.Time{}
	expect(t, ask(s, "GET", "/", nil), http.StatusServiceUnavailable, "cannot be read")
}
