package console

import (
	"bufio"
	"cmp"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/http"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync"
	"time"
	"unicode"
	"unicode/utf8"

	"spectral/internal/core/events/infrastructure/postgres/operator"
)

const (
	rolePrefix = "spectral_"
	// maxName is the length of the longest name of a person.
	maxName = 200
	// rereadAfter is how old what was read of a file of persons may be.
	rereadAfter = time.Minute
)

// denied is a refusal because of who asks.
type denied struct {
	status int
	text   string
}

func (d denied) Error() string { return d.text }

// Identities says who makes a request: by the token of a script, by the header of a proxy that signs persons in, or,
// for a visitor on the same host, by that alone.
type Identities struct {
	// Header has the name of the person whom a proxy signed in.
	Header string
	// Trusted are the addresses of such proxies.
	Trusted []netip.Prefix
	// Loopback is the role of visitors on the same host without an identity.
	Loopback string

	roles, tokens   string // files; may be empty
	mu              sync.Mutex
	readAt          time.Time
	byName, byToken map[string]Person
}

// NewIdentities returns Identities that read persons from two files, whose names may be empty. Roles has lines
// "<name> <role>", with * for all other names. Tokens has lines "<SHA-256 of the token in hex> <name> <role>". The
// files are read again each minute. An error says what is wrong in which line.
func NewIdentities(roles, tokens string) (*Identities, error) {
	i := &Identities{Header: "X-Forwarded-User", Loopback: operator.Viewer, roles: roles, tokens: tokens}
	return i, i.read()
}

// read reads both files.
func (i *Identities) read() error {
	byName, noRoles := readPersons(i.roles, 2)
	byToken, noTokens := readPersons(i.tokens, 3)
	if err := errors.Join(noRoles, noTokens); err != nil {
		return err
	}
	i.byName, i.byToken, i.readAt = byName, byToken, time.Now()
	return nil
}

// readPersons returns the persons of a file by the first word of their lines.
func readPersons(file string, words int) (map[string]Person, error) {
	persons := make(map[string]Person)
	if file == "" {
		return persons, nil
	}
	f, err := os.Open(file)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	lines := bufio.NewScanner(f)
	for n := 1; lines.Scan(); n++ {
		fields := strings.Fields(lines.Text())
		if len(fields) == 0 || strings.HasPrefix(fields[0], "#") {
			continue
		}
		form := map[int]string{2: "<name> <role>", 3: "<SHA-256 of a token in hex> <name> <role>"}[words]
		role := rolePrefix + strings.TrimPrefix(fields[len(fields)-1], rolePrefix)
		sum, notHex := hex.DecodeString(fields[0])
		key := fields[0]
		if words == 3 {
			key = hex.EncodeToString(sum)
		}
		switch _, twice := persons[key]; {
		case len(fields) != words, words == 3 && (notHex != nil || len(sum) != sha256.Size):
			err = fmt.Errorf("want %s", form) // the line may hold a token
		case !slices.Contains(Roles(), role):
			err = fmt.Errorf("%.60q is no role: want one of %s", fields[len(fields)-1], strings.Join(Roles(), ", "))
		case twice:
			err = errors.New("the same person or token as in an earlier line")
		}
		if err != nil {
			return nil, fmt.Errorf("%s, line %d: %w", file, n, err)
		}
		persons[key] = Person{fields[words-2], role}
	}
	return persons, lines.Err()
}

// persons returns what the files said at most rereadAfter ago.
func (i *Identities) persons() (byName, byToken map[string]Person, err error) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if time.Since(i.readAt) > rereadAfter {
		err = i.read()
	}
	return i.byName, i.byToken, err
}

// Roles returns the roles that persons have by what the files say, and by being on the same host.
func (i *Identities) Roles() []string {
	i.mu.Lock()
	defer i.mu.Unlock()
	used := []string{i.Loopback}
	for _, persons := range []map[string]Person{i.byName, i.byToken} {
		for _, person := range persons {
			used = append(used, person.Role)
		}
	}
	slices.Sort(used)
	return slices.Compact(used)
}

// Person returns who makes a request.
func (i *Identities) Person(r *http.Request) (Person, error) {
	byName, byToken, err := i.persons()
	if err != nil {
		return Person{}, denied{http.StatusServiceUnavailable, "the files that say who may do what cannot be read: " +
			"see the console's log"}
	}
	peer, trusted := peerOf(r), isTrusted(r, i.Trusted)
	names := r.Header.Values(i.Header)
	switch {
	case trusted && len(names) == 1 && isName(names[0]):
		if person, ok := byName[names[0]]; ok {
			return person, nil
		}
		if rest, ok := byName["*"]; ok {
			return Person{names[0], rest.Role}, nil
		}
		return Person{}, denied{http.StatusForbidden, fmt.Sprintf("%s has no role here: add a line to the file of roles "+
			"(SPECTRAL_CONSOLE_ROLES)", names[0])}
	case r.Header.Get("Authorization") != "":
		return personOfToken(r.Header.Get("Authorization"), byToken)
	case trusted:
		return Person{}, denied{http.StatusUnauthorized, fmt.Sprintf("the proxy at %s sent no usable name: it has to set "+
			"%s to one", peer, i.Header)}
	case len(names) > 0:
		return Person{}, denied{http.StatusUnauthorized, fmt.Sprintf("%s was set by %s, which is not a proxy that the "+
			"console trusts: add it to SPECTRAL_CONSOLE_TRUSTED", i.Header, peer)}
	case peer.IsLoopback() && isLoopbackName(hostOf(r)) && !isForwarded(r):
		return Person{"loopback", i.Loopback}, nil
	default:
		return Person{}, denied{http.StatusUnauthorized, "sign in: come through the proxy that signs persons in, send a " +
			"token (Authorization: Bearer ...), or come from the same host"}
	}
}

// personOfToken compares in a time that does not depend on the token.
func personOfToken(authorization string, byToken map[string]Person) (found Person, err error) {
	token, isBearer := strings.CutPrefix(authorization, "Bearer ")
	sum := sha256.Sum256([]byte(token))
	have, ok := []byte(hex.EncodeToString(sum[:])), 0
	for _, known := range slices.Sorted(maps.Keys(byToken)) {
		if subtle.ConstantTimeCompare(have, []byte(known)) == 1 {
			found, ok = byToken[known], 1
		}
	}
	if ok == 0 || !isBearer {
		return Person{}, denied{http.StatusUnauthorized, "the token is not known: add its SHA-256 to the file of tokens " +
			"(SPECTRAL_CONSOLE_TOKENS)"}
	}
	return found, nil
}

// isName reports whether a proxy's header has a name that can be shown and stored.
func isName(name string) bool {
	return name != "" && len(name) <= maxName && utf8.ValidString(name) && name == strings.TrimSpace(name) &&
		!strings.ContainsFunc(name, func(r rune) bool { return !unicode.IsPrint(r) })
}

// isForwarded reports whether a proxy says that it has forwarded a request: the visitor is not on this host then.
func isForwarded(r *http.Request) bool {
	return cmp.Or(r.Header.Get("Forwarded"), r.Header.Get("X-Forwarded-For"), r.Header.Get("X-Real-Ip"),
		r.Header.Get("X-Forwarded-Host"), r.Header.Get("Via")) != ""
}

// peerOf returns the address that a request comes from; the zero Addr for none.
func peerOf(r *http.Request) netip.Addr {
	at, _ := netip.ParseAddrPort(r.RemoteAddr)
	return at.Addr().Unmap().WithZone("")
}

// isTrusted reports whether a request comes from one of the addresses.
func isTrusted(r *http.Request, addresses []netip.Prefix) bool {
	peer := peerOf(r)
	return slices.ContainsFunc(addresses, func(p netip.Prefix) bool { return p.Contains(peer) })
}

// hostOf returns the host that a request is for, without the port.
func hostOf(r *http.Request) string {
	host, _, err := net.SplitHostPort(r.Host)
	if err != nil {
		host = r.Host
	}
	return strings.ToLower(strings.TrimSuffix(strings.Trim(host, "[]"), "."))
}

func isLoopbackName(host string) bool {
	address, err := netip.ParseAddr(host)
	return host == "localhost" || err == nil && address.IsLoopback()
}
