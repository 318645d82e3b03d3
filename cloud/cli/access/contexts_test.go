// SPDX-License-Identifier: Apache-2.0

package access_test

import (
	"bufio"
	"encoding/binary"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/edgebus/edgebus/cloud/cli/exitcode"
	"github.com/edgebus/edgebus/test/clitest"
)

// startRefusingHub refuses all requests, and remembers the last one's user.
func startRefusingHub(t *testing.T) (server string, asked <-chan string) {
	users := make(chan string, 100)
	hub := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		user, password, _ := r.BasicAuth()
		users <- user + ":" + password
		w.WriteHeader(http.StatusForbidden)
	}))
	t.Cleanup(hub.Close)
	return hub.URL, users
}

// startListeningBroker hangs up on the first client once it has heard its CONNECT.
func startListeningBroker(t *testing.T) (server string, connect <-chan string) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { _ = l.Close() })
	heard := make(chan string, 1)
	go func() {
		defer close(heard)
		c, err := l.Accept()
		if err != nil {
			return
		}
		defer c.Close()
		defer l.Close()
		_ = c.SetDeadline(time.Now().Add(time.Minute))
		in := bufio.NewReader(c)
		if _, err := in.Discard(1); err != nil {
			return
		}
		length, err := binary.ReadUvarint(in)
		if err != nil {
			return
		}
		text := make([]byte, length)
		if _, err := io.ReadFull(in, text); err == nil {
			heard <- string(text)
		}
	}()
	return "mqtt://" + l.Addr().String(), heard
}

func TestAContextsPasswordIsForItsOwnAddresses(t *testing.T) {
	t.Setenv("KUBECONFIG", filepath.Join(t.TempDir(), "config"))
	t.Setenv("EDGEBUS_CONTEXT", "")
	t.Setenv("EDGEBUS_SERVER", "")
	hub, atHub := startRefusingHub(t)
	other, atOther := startRefusingHub(t)
	broker, atBroker := startListeningBroker(t)
	node, atNode := startListeningBroker(t)
	secret := clitest.WriteFile(t, t.TempDir(), "password", "s3cret\n")
	clitest.Run(t, 0, "context", "set", "plant", "--server", hub, "--mqtt", broker, "--user", "ann", "--password-file", secret)
	ask := func(code int, from <-chan string, args ...string) string {
		t.Helper()
		clitest.Run(t, code, args...)
		return <-from
	}

	require.Equal(t, "ann:s3cret", ask(exitcode.Refused, atHub, "get", "kinds"))
	require.Equal(t, "ann:s3cret", ask(exitcode.Refused, atHub, "get", "kinds", "--server", hub+"/"), "the same address")
	require.Equal(t, ":", ask(exitcode.Refused, atOther, "get", "kinds", "--server", other))
	require.Equal(t, "bob:s3cret", ask(exitcode.Refused, atOther, "get", "kinds", "--server", other, "--user", "bob", "--password-file", secret))
	require.Equal(t, "ann:s3cret", ask(2, atHub, "doctor"))
	require.Equal(t, ":", ask(2, atOther, "doctor", "--hub", other))
	require.Equal(t, ":", ask(2, atHub, "doctor", "--server", node), "who is asked is not all the context's")
	require.Contains(t, ask(exitcode.Unreachable, atBroker, "tree", "n1", "--once"), "s3cret")
	require.NotContains(t, ask(exitcode.Unreachable, atNode, "tree", "n1", "--once", "--server", node), "ann")
	out, _ := clitest.Run(t, 0, "kubeconfig", "--server", other)
	require.NotContains(t, out, "s3cret")

	t.Setenv("EDGEBUS_SERVER", other)
	require.Equal(t, ":", ask(exitcode.Refused, atOther, "get", "kinds"))
	require.Equal(t, ":", ask(2, atOther, "doctor"))

	clitest.Run(t, 0, "context", "set", "half", "--server", hub, "--user", "ann", "--password-file", secret)
	_, errs := clitest.Run(t, exitcode.Misused, "tree", "n1", "--context", "half")
	require.Contains(t, errs, "no MQTT address", "rather than this machine's hub")
}

func TestACommandSendsNoPasswordInTheClear(t *testing.T) {
	password := clitest.WriteFile(t, t.TempDir(), "password", "s3cret\n")
	_, errs := clitest.Run(t, exitcode.Misused, "tree", "n1", "--once", "--server", "mqtt://192.0.2.1", "--user", "ann", "--password-file", password)
	require.Contains(t, errs, "in the clear")
}

// What --server means depends on the command: the other protocol's address is refused, and nobody else is asked instead.
func TestAnAddressOfTheOtherProtocolIsRefused(t *testing.T) {
	t.Setenv("KUBECONFIG", filepath.Join(t.TempDir(), "config"))
	t.Setenv("EDGEBUS_SERVER", "")
	for _, c := range []struct {
		line []string
		says string
	}{
		{[]string{"doctor", "--server", "https://h:8443"}, `--server: "https://h:8443" is an HTTP address; --hub takes that`},
		{[]string{"doctor", "n1", "--hub", "mqtt://h:1883"}, `--hub: "mqtt://h:1883" is an MQTT address; --server takes that`},
		{[]string{"tree", "n1", "--server", "HTTP://h:8080"}, `--server: "HTTP://h:8080" is an HTTP address. An MQTT one looks like mqtt://127.0.0.1:1883`},
		{[]string{"get", "nodes", "--server", "mqtts://h:8883"}, `--server: "mqtts://h:8883" is an MQTT address`},
		{[]string{"context", "set", "x", "--server", "mqtt://h:1883"}, `--server: "mqtt://h:1883" is an MQTT address; --mqtt takes that. An HTTP one looks like http://127.0.0.1:8080`},
		{[]string{"context", "set", "x", "--mqtt", "http://h:8080"}, `--mqtt: "http://h:8080" is an HTTP address`},
	} {
		_, said := clitest.Run(t, exitcode.Misused, c.line...)
		require.Contains(t, said, c.says)
	}
}

func TestContextsAreChosenByFlagEnvironmentAndFile(t *testing.T) {
	hub := clitest.StartHub(t)
	t.Setenv("EDGEBUS_SERVER", "")
	clitest.Run(t, 0, "apply", "--server", hub.URL, "-n", "hall", "-f", clitest.WriteFile(t, t.TempDir(), "plant.yaml", clitest.Plant))
	clitest.Run(t, 0, "context", "set", "here", "--server", hub.URL, "-n", "hall")
	clitest.Run(t, 0, "context", "set", "nowhere", "--server", "http://127.0.0.1:1")
	out, _ := clitest.Run(t, 0, "get", "devices", "-o", "name")
	require.Equal(t, "device/lamp\n", out, "the first one is used")
	clitest.Run(t, 0, "context", "use", "nowhere")
	clitest.Run(t, exitcode.Unreachable, "get", "devices")
	out, _ = clitest.Run(t, 0, "get", "devices", "--context", "here", "-o", "name")
	require.Equal(t, "device/lamp\n", out)
	t.Setenv("EDGEBUS_CONTEXT", "here")
	clitest.Run(t, 0, "get", "device", "lamp")
	t.Setenv("EDGEBUS_SERVER", "http://127.0.0.1:1")
	clitest.Run(t, exitcode.Unreachable, "get", "device", "lamp")
	clitest.Run(t, 0, "get", "device", "lamp", "--server", hub.URL)
	out, _ = clitest.Run(t, 0, "context", "list")
	require.Regexp(t, `(?m)^\* +nowhere +http://127.0.0.1:1$`, out)
	info, err := os.Stat(os.Getenv("KUBECONFIG"))
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o600), info.Mode().Perm())
	out, _ = clitest.Run(t, 0, "kubeconfig", "--server", hub.URL)
	require.Contains(t, out, "server: "+hub.URL)
	require.Contains(t, out, "namespace: hall")
	_, errs := clitest.Run(t, exitcode.NotFound, "context", "use", "other")
	require.Contains(t, errs, "edgebus context set other")
	clitest.Run(t, exitcode.Misused, "context", "set", "bad", "--server", "hub")
	clitest.Run(t, 0, "context", "delete", "nowhere")
	out, _ = clitest.Run(t, 0, "__complete", "context", "use", "")
	require.Contains(t, out, "here\n:4")
}
