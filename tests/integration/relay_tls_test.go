package integration_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/nats-io/jwt/v2"
	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nkeys"

	"spectral/internal/app"
	"spectral/internal/app/embeddednats"
	"spectral/internal/core/events/infrastructure/jetstream"
)

// certificates are files of an authority, and of a certificate that it has signed for 127.0.0.1, with its key.
func certificates(t *testing.T) (ca, cert, key string) {
	t.Helper()
	template := func(authority bool) *x509.Certificate {
		return &x509.Certificate{
			SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "test"}, NotAfter: time.Now().Add(time.Hour),
			IsCA: authority, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature,
			IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
			ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
		}
	}
	write := func(name, kind string, der []byte) string {
		file := filepath.Join(t.TempDir(), name)
		must(t, os.WriteFile(file, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600))
		return file
	}
	newKey := func() *ecdsa.PrivateKey {
		k, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
		must(t, err)
		return k
	}
	authority, own := newKey(), newKey()
	root, err := x509.CreateCertificate(rand.Reader, template(true), template(true), &authority.PublicKey, authority)
	must(t, err)
	parent, err := x509.ParseCertificate(root)
	must(t, err)
	leaf, err := x509.CreateCertificate(rand.Reader, template(false), parent, &own.PublicKey, authority)
	must(t, err)
	secret, err := x509.MarshalECPrivateKey(own)
	must(t, err)
	return write("ca.pem", "CERTIFICATE", root), write("cert.pem", "CERTIFICATE", leaf),
		write("key.pem", "EC PRIVATE KEY", secret)
}

// credentials makes an operator, an account with JetStream and a user of it, and returns options of their server and
// the user's file.
func credentials(t *testing.T) (change func(*server.Options), file string) {
	t.Helper()
	newKeys := func(create func() (nkeys.KeyPair, error)) (keys nkeys.KeyPair, public string) {
		keys, err := create()
		must(t, err)
		public, err = keys.PublicKey()
		must(t, err)
		return keys, public
	}
	operator, operatorID := newKeys(nkeys.CreateOperator)
	account, accountID := newKeys(nkeys.CreateAccount)
	system, systemID := newKeys(nkeys.CreateAccount)
	user, userID := newKeys(nkeys.CreateUser)
	_ = system
	operatorClaims := jwt.NewOperatorClaims(operatorID)
	operatorClaims.SystemAccount = systemID
	operatorJWT, err := operatorClaims.Encode(operator)
	must(t, err)
	trusted, err := jwt.DecodeOperatorClaims(operatorJWT)
	must(t, err)
	accountClaims := jwt.NewAccountClaims(accountID)
	accountClaims.Limits.JetStreamLimits = jwt.JetStreamLimits{
		MemoryStorage: -1, DiskStorage: -1, Streams: -1, Consumer: -1,
	}
	accountJWT, err := accountClaims.Encode(operator)
	must(t, err)
	systemJWT, err := jwt.NewAccountClaims(systemID).Encode(operator)
	must(t, err)
	userJWT, err := jwt.NewUserClaims(userID).Encode(account)
	must(t, err)
	seed, err := user.Seed()
	must(t, err)
	text, err := jwt.FormatUserConfig(userJWT, seed)
	must(t, err)
	file = filepath.Join(t.TempDir(), "user.creds")
	must(t, os.WriteFile(file, text, 0o600))
	return func(o *server.Options) {
		o.Username, o.Password = "", ""
		resolver := &server.MemAccResolver{}
		must(t, resolver.Store(accountID, accountJWT))
		must(t, resolver.Store(systemID, systemJWT))
		o.AccountResolver, o.TrustedOperators, o.SystemAccount = resolver, []*jwt.OperatorClaims{trusted}, systemID
	}, file
}

// A cluster is reached by TLS, with a client's certificate and with credentials; without them it is not.
func TestRelayConnectsByTLSAndCredentials(t *testing.T) {
	t.Parallel()
	ca, cert, key := certificates(t)
	change, creds := credentials(t)
	broker, err := embeddednats.Start(embeddednats.Config{Change: func(o *server.Options) {
		change(o)
		config, err := server.GenTLSConfig(&server.TLSConfigOpts{CertFile: cert, KeyFile: key, CaFile: ca, Verify: true})
		must(t, err)
		config.MinVersion = tls.VersionTLS13
		o.TLSConfig = config
	}})
	must(t, err)
	t.Cleanup(broker.Stop)
	address := "tls://" + broker.URL()[strings.LastIndex(broker.URL(), "@")+1:]
	env := map[string]string{
		app.EnvNatsURL: address, app.EnvNatsCA: ca, app.EnvNatsCert: cert, app.EnvNatsKey: key, app.EnvNatsCreds: creds,
	}
	for _, missing := range []string{app.EnvNatsCA, app.EnvNatsCert, app.EnvNatsCreds, ""} {
		config, err := app.ReadRelay(func(name string) string {
			if name == missing || missing == app.EnvNatsCert && name == app.EnvNatsKey {
				return ""
			}
			return env[name]
		})
		must(t, err)
		copied, err := jetstream.OpenCopy(t.Context(), *config, uuid.New())
		if err == nil {
			copied.Close()
		}
		// it gets as far as to ask for the stream
		if reached := err != nil && strings.Contains(err.Error(), "run workers with --relay"); reached != (missing == "") {
			t.Errorf("without %q: %v", missing, err)
		}
	}
}
