package main

import (
	"bufio"
	"encoding/binary"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/edgebus/edgebus/topics/resource"
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
	secret := writeFile(t, t.TempDir(), "password", "s3cret\n")
	runEdgebus(t, 0, "context", "set", "plant", "--server", hub, "--mqtt", broker, "--user", "ann", "--password-file", secret)
	ask := func(code int, from <-chan string, args ...string) string {
		t.Helper()
		runEdgebus(t, code, args...)
		return <-from
	}

	require.Equal(t, "ann:s3cret", ask(refused, atHub, "get", "kinds"))
	require.Equal(t, "ann:s3cret", ask(refused, atHub, "get", "kinds", "--server", hub+"/"), "the same address")
	require.Equal(t, ":", ask(refused, atOther, "get", "kinds", "--server", other))
	require.Equal(t, "bob:s3cret", ask(refused, atOther, "get", "kinds", "--server", other, "--user", "bob", "--password-file", secret))
	require.Equal(t, "ann:s3cret", ask(2, atHub, "doctor"))
	require.Equal(t, ":", ask(2, atOther, "doctor", "--hub", other))
	require.Equal(t, ":", ask(2, atHub, "doctor", "--server", node), "who is asked is not all the context's")
	require.Contains(t, ask(1, atBroker, "tree", "n1", "--once"), "s3cret")
	require.NotContains(t, ask(1, atNode, "tree", "n1", "--once", "--server", node), "ann")
	out, _ := runEdgebus(t, 0, "kubeconfig", "--server", other)
	require.NotContains(t, out, "s3cret")

	t.Setenv("EDGEBUS_SERVER", other)
	require.Equal(t, ":", ask(refused, atOther, "get", "kinds"))
	require.Equal(t, ":", ask(2, atOther, "doctor"))

	runEdgebus(t, 0, "context", "set", "half", "--server", hub, "--user", "ann", "--password-file", secret)
	_, errs := runEdgebus(t, misused, "tree", "n1", "--context", "half")
	require.Contains(t, errs, "no MQTT address", "rather than this machine's hub")
}

func TestNoPasswordCrossesTheNetworkInTheClear(t *testing.T) {
	ann := user{User: "ann", Password: "s3cret"}
	for server, who := range map[string]user{
		"mqtt://192.0.2.1:1883": {}, "mqtts://192.0.2.1:8883": ann, "wss://hub.example.org": ann,
		"mqtt://127.0.0.1:1883": ann, "MQTT://localhost": ann, "ws://[::1]:8083": ann, "unix:///run/edgebus/core.sock": ann,
	} {
		require.NoError(t, (&hubTarget{MQTT: server, user: who}).checkMQTT(), server)
	}
	for server, who := range map[string]user{
		"mqtt://192.0.2.1:1883": ann, "tcp://hub.example.org": ann, "ws://hub.example.org": ann, "mqtt://ann:s3cret@192.0.2.1": {}, "": ann,
	} {
		err := (&hubTarget{MQTT: server, user: who}).checkMQTT()
		require.ErrorIs(t, err, resource.Invalid, server)
		require.NotContains(t, err.Error(), "s3cret")
	}
}

func TestACommandSendsNoPasswordInTheClear(t *testing.T) {
	password := writeFile(t, t.TempDir(), "password", "s3cret\n")
	_, errs := runEdgebus(t, misused, "tree", "n1", "--once", "--server", "mqtt://192.0.2.1", "--user", "ann", "--password-file", password)
	require.Contains(t, errs, "in the clear")
}

func TestDoctorSendsNoPasswordInTheClear(t *testing.T) {
	ann := user{User: "ann", Password: "s3cret"}
	mappers, err := doctorOptions{target: hubTarget{MQTT: "mqtt://192.0.2.1", user: ann}}.mapperStates(t.Context(), "n1")
	require.ErrorContains(t, err, "in the clear")
	require.Empty(t, mappers)
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
		_, said := runEdgebus(t, misused, c.line...)
		require.Contains(t, said, c.says)
	}
}
