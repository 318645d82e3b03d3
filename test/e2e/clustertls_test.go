// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"

	"github.com/edgebus/edgebus/broker/sealed"
	"github.com/edgebus/edgebus/cloud/clusterca"
	"github.com/edgebus/edgebus/test/harness"
	"github.com/edgebus/edgebus/test/natsservers"
)

// securedHub is a hub on servers with the settings that it wrote.
type securedHub struct {
	*harness.World
	t                       *testing.T
	config, data, out, http string
	servers                 *natsservers.Servers
}

func newSecuredHub(t *testing.T) *securedHub {
	w, err := harness.NewWorld(t.TempDir(), 1)
	require.NoError(t, err)
	t.Cleanup(func() {
		if t.Failed() {
			t.Log(w.Logs(40))
		}
		w.Close()
	})
	h := &securedHub{World: w, t: t, config: filepath.Join(w.Dir, "secured.yaml"), data: filepath.Join(w.Dir, "secured"), out: filepath.Join(w.Dir, "nats"), http: harness.FreeAddress(t)}
	h.configure("tls://127.0.0.1:1", "https://127.0.0.1:1")
	h.certificates("8760h")
	h.servers = natsservers.StartSecured(t, 3, h.out)
	h.configure(strings.Join(h.servers.URLs(), ","), strings.Join(h.servers.Monitors(), ","))
	return h
}

func (h *securedHub) configure(servers, monitors string) {
	text := fmt.Sprintf("data: {dir: %q}\nmqtt: {listen: %q, websocket: {listen: ''}}\nhttp: {listen: %q}\nstore: {engine: nats, peer: {listen: '127.0.0.1:0'}, nats: {servers: [%s], monitor: [%s], name: hub, silence: %s}}\n",
		h.data, harness.FreeAddress(h.t), h.http, servers, monitors, clusterSilence)
	require.NoError(h.t, os.WriteFile(h.config, []byte(text), 0o600))
}

func (h *securedHub) hub(args ...string) string {
	h.t.Helper()
	out, err := exec.Command(filepath.Join(h.Bin, "cloudhub"), args...).CombinedOutput()
	require.NoError(h.t, err, string(out))
	return string(out)
}

func (h *securedHub) certificates(valid string) {
	h.t.Helper()
	h.hub("cluster", "certificates", "--config", h.config, "--out", h.out, "--valid", valid, "n0", "n1", "n2")
	for i := range 3 { // all servers of the test have the same address
		h.hub("cluster", "certificates", "--config", h.config, "--out", h.out, "--valid", valid, fmt.Sprintf("n%d,127.0.0.1", i))
	}
}

// signedByTheHub is a certificate of the authority that signs a hub's nodes, for a name.
func signedByTheHub(t *testing.T, data, name string) *tls.Certificate {
	t.Helper()
	authority, err := tls.LoadX509KeyPair(filepath.Join(data, "authority", "1.pem"), filepath.Join(data, "authority", "1.key"))
	require.NoError(t, err)
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(7), Subject: pkix.Name{CommonName: name}, DNSNames: []string{name}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, authority.Leaf, key.Public(), authority.PrivateKey)
	require.NoError(t, err)
	return &tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}
}

func (h *securedHub) pair(server string) *tls.Certificate {
	h.t.Helper()
	p, err := tls.LoadX509KeyPair(filepath.Join(h.out, server, "server.crt"), filepath.Join(h.out, server, "server.key"))
	require.NoError(h.t, err)
	return &p
}

func (h *securedHub) roots() *x509.CertPool {
	text, err := os.ReadFile(filepath.Join(h.out, "n0", "ca.crt"))
	require.NoError(h.t, err)
	pool := x509.NewCertPool()
	require.True(h.t, pool.AppendCertsFromPEM(text))
	return pool
}

// connect connects to a server as a client with a certificate; nil: without one.
func (h *securedHub) connect(shown *tls.Certificate) (*nats.Conn, error) {
	settings := &tls.Config{RootCAs: h.roots(), MaxVersion: tls.VersionTLS12} // so the handshake itself is refused
	if shown != nil {
		settings.Certificates = []tls.Certificate{*shown}
	}
	return nats.Connect(h.servers.URLs()[0], nats.Secure(settings), nats.NoReconnect(), nats.IgnoreDiscoveredServers(), nats.CustomInboxPrefix("_INBOX_edgebus"))
}

// joinAsServer opens a connection as another server would, as far as TLS.
func (h *securedHub) joinAsServer(shown *tls.Certificate) error {
	raw, err := net.Dial("tcp", h.servers.Cluster(0))
	require.NoError(h.t, err)
	defer raw.Close()
	require.NoError(h.t, raw.SetDeadline(time.Now().Add(30*time.Second)))
	settings := &tls.Config{RootCAs: h.roots(), ServerName: "n0", MaxVersion: tls.VersionTLS12} // so the handshake itself is refused
	if shown != nil {
		settings.Certificates = []tls.Certificate{*shown}
	}
	return tls.Client(raw, settings).Handshake()
}

// A log on servers with the settings that the hub wrote is for hubs alone: without a certificate, with a node's or with a server's nobody reads or writes it.
func TestTheLogIsForHubsAloneOnServersWithTheSettingsThatTheHubWrote(t *testing.T) {
	h := newSecuredHub(t)
	h.hub("cluster", "init", "--config", h.config)
	require.NoError(t, h.Run(t.Context(), "secured", []string{"cloudhub", "--config", h.config}, "http://"+h.http+"/readyz"))
	said, err := os.ReadFile(h.LogFile("secured"))
	require.NoError(t, err)
	require.NotContains(t, string(said), "anybody who reaches")

	for who, shown := range map[string]*tls.Certificate{"nobody": nil, "a node": signedByTheHub(t, h.data, "n1"), "a node with the name of hubs": signedByTheHub(t, h.data, clusterca.HubName)} {
		_, err := h.connect(shown)
		require.ErrorContains(t, err, "tls: ", who)
	}
	require.NoError(t, h.joinAsServer(h.pair("n1")))
	require.Error(t, h.joinAsServer(signedByTheHub(t, h.data, "n1")), "a node is no server")
	require.Error(t, h.joinAsServer(nil))
	_, err = h.connect(h.pair("n1"))
	require.Error(t, err, "a server is no user")

	key, err := sealed.LoadKey(filepath.Join(h.data, "cluster.key"))
	require.NoError(t, err)
	authority, err := clusterca.New(key)
	require.NoError(t, err)
	own, err := authority.Own()
	require.NoError(t, err)
	conn, err := h.connect(own)
	require.NoError(t, err)
	defer conn.Close()
	answer, err := conn.Request("$JS.API.STREAM.INFO.edgebus", nil, 10*time.Second)
	require.NoError(t, err)
	require.Contains(t, string(answer.Data), `"edgebus.log.edgebus"`)
	for _, subject := range []string{"$JS.API.STREAM.MSG.DELETE.edgebus", "$JS.API.STREAM.DELETE.other", "$JS.API.STREAM.CREATE.other", "other"} {
		_, err := conn.Request(subject, nil, 300*time.Millisecond)
		require.Error(t, err, "a hub has no rights but those that it needs: %s", subject)
		require.ErrorIs(t, conn.LastError(), nats.ErrPermissionViolation, subject)
	}

	// Certificates are renewed while all runs.
	h.certificates("480h")
	for i := range 3 {
		h.servers.Reload(i)
	}
	require.NoError(t, harness.Eventually(t.Context(), 30*time.Second, func(context.Context) error {
		c, err := h.connect(own)
		if err != nil {
			return err
		}
		defer c.Close()
		s, err := c.TLSConnectionState()
		if err == nil && time.Until(s.PeerCertificates[0].NotAfter) > 481*time.Hour {
			err = errors.New("it shows the former certificate")
		}
		return err
	}))
	file := filepath.Join(h.Dir, "secured.backup")
	h.hub("cluster", "backup", "--config", h.config, file)
	require.NoError(t, h.Crash("secured"))
	require.NoError(t, os.WriteFile(filepath.Join(h.data, "drained"), []byte(time.Now().Add(time.Hour).UTC().Format(time.RFC3339)+"\n"), 0o600))
	h.hub("cluster", "restore", "--force", "--config", h.config, file) // with a hub's rights; it serves then, whatever it was
	require.NoError(t, h.Run(t.Context(), "secured", []string{"cloudhub", "--config", h.config}, "http://"+h.http+"/readyz"))
	said, err = os.ReadFile(h.LogFile("secured"))
	require.NoError(t, err)
	require.Contains(t, string(said), "a certificate of the log's servers ends at")
}

// admits reports whether a hub takes a connection with a certificate.
func (h clusterHub) admits(t *testing.T, shown *tls.Certificate) bool {
	t.Helper()
	settings := &tls.Config{InsecureSkipVerify: true, Certificates: []tls.Certificate{*shown}} // it is the client that is looked at
	conn, err := tls.DialWithDialer(&net.Dialer{Timeout: 10 * time.Second}, "tcp", h.mqtts, settings)
	if err != nil {
		return false
	}
	defer conn.Close()
	require.NoError(t, conn.SetDeadline(time.Now().Add(30*time.Second)))
	_, _ = conn.Write([]byte("\x10\x0c\x00\x04MQTT\x04\x02\x00\x00\x00\x00"))
	answer := make([]byte, 4)
	_, err = io.ReadFull(conn, answer)
	return err == nil && string(answer) == "\x20\x02\x00\x00"
}

// A node that was revoked at the hub that served is revoked at the one that goes on, and at the first when it serves again; others are not.
func TestANodeThatWasRevokedStaysOutAfterAFailover(t *testing.T) {
	c := newHubCluster(t)
	h := c.awaitServing()
	robbed, other := signedByTheHub(t, filepath.Join(c.Dir, h.name), "robbed"), signedByTheHub(t, filepath.Join(c.Dir, h.name), "other")
	require.True(t, h.admits(t, robbed))
	_, err := harness.Call(t.Context(), http.MethodPost, "http://"+c.Hub.HTTP+"/enroll/nodes/robbed/revoke", nil)
	require.NoError(t, err)
	require.False(t, h.admits(t, robbed))
	for range 2 {
		c.kill()
		next := c.awaitServing()
		require.True(t, next.admits(t, other), next.name)
		require.False(t, next.admits(t, robbed), next.name)
	}
}
