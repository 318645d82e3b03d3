// SPDX-License-Identifier: Apache-2.0

package jetstream_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"

	"github.com/edgebus/edgebus/broker/ordered"
	"github.com/edgebus/edgebus/broker/sealed"
	"github.com/edgebus/edgebus/cloud/clusterca"
	"github.com/edgebus/edgebus/cloud/jetstream"
	"github.com/edgebus/edgebus/test/natsservers"
)

// Each server is set up wrongly in another way, and is named with what to do.
func TestServersThatCannotBeReliedOnAreNamedWithWhatToDo(t *testing.T) {
	servers := natsservers.StartWith(t, 3, func(i int, settings string) string {
		switch i {
		case 0:
			return strings.Replace(settings, "max_file: 4GB", "max_file: 900TB", 1)
		case 1:
			return strings.Replace(settings, "max_payload: 1MB", "max_payload: 64KB", 1)
		}
		return regexp.MustCompile(`jetstream \{.*\}`).ReplaceAllString(settings, "")
	})
	monitors := servers.Monitors()
	old := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { // as an older version and a clock that is wrong would say it
		answer, err := http.Get(monitors[0] + "/varz")
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadGateway)
			return
		}
		defer answer.Body.Close()
		text, _ := io.ReadAll(answer.Body)
		said := regexp.MustCompile(`"version": "[^"]*"`).ReplaceAllString(string(text), `"version": "2.14.7"`)
		said = regexp.MustCompile(`"server_(id|name)": "[^"]*"`).ReplaceAllString(said, `"server_$1": "old"`)
		_, _ = io.WriteString(w, regexp.MustCompile(`"now": "[^"]*"`).ReplaceAllString(said, fmt.Sprintf(`"now": %q`, time.Now().Add(-time.Hour).Format(time.RFC3339Nano))))
	}))
	defer old.Close()
	o := jetstream.Options{Servers: servers.URLs()[:1], Stream: "edgebus", Replicas: 3}
	r := jetstream.InspectServers(t.Context(), o, http.DefaultClient, append(monitors, monitors[1], old.URL))
	wrong := strings.Join(r.Wrong, "\n")
	for _, part := range []string{
		"the server n1 (" + monitors[1] + ") takes messages of 65536 bytes at most: set max_payload: 1MB",
		"the server n2 (" + monitors[2] + ") has no JetStream",
		"store.nats.monitor leads to the server n1 twice",
		"the server old (" + old.URL + ") is NATS 2.14.7: install 2.15 or later",
	} {
		require.Contains(t, wrong, part)
	}
	require.NotContains(t, wrong, "sync_interval: always in its", "they sync")
	weak := strings.Join(r.Weak, "\n")
	require.Contains(t, weak, "are on one machine (127.0.0.1)")
	require.Regexp(t, `the server n0 \(.*\) may store 94[0-9]+ MB, and its disk has room for less: leave max_file_store out`, weak)
	require.InDelta(t, 0, r.Clocks["n0"].Seconds(), 1)
	require.InDelta(t, -3600, r.Clocks["old"].Seconds(), 1)

	r = jetstream.InspectServers(t.Context(), o, http.DefaultClient, []string{"http://127.0.0.1:1", "http://127.0.0.1:2", "http://127.0.0.1:3"})
	require.Empty(t, r.Wrong, "they may all be lost, and come back")
	require.Contains(t, strings.Join(r.Notes, "\n"), "no server answers at http://127.0.0.1:1, http://127.0.0.1:2, http://127.0.0.1:3")
	r = jetstream.InspectServers(t.Context(), o, http.DefaultClient, monitors[:1])
	require.Contains(t, strings.Join(r.Wrong, "\n"), "store.nats.monitor has 1 addresses, and 3 servers have the log")

	ended, end := context.WithCancel(t.Context())
	end()
	require.Empty(t, jetstream.InspectServers(ended, o, http.DefaultClient, monitors).Notes, "the hub ends, whatever they would say")

	secured := httptest.NewTLSServer(http.NotFoundHandler())
	defer secured.Close()
	plain := strings.Replace(secured.URL, "https:", "http:", 1)
	r = jetstream.InspectServers(t.Context(), o, secured.Client(), []string{plain, secured.URL, monitors[0]})
	require.Equal(t, []string{
		"the server at " + plain + " can't be asked how it is: it answers 400 Bad Request: \"Client sent an HTTP request to an HTTPS server.\"",
		"the server at " + secured.URL + " can't be asked how it is: it answers 404 Not Found: \"404 page not found\"",
	}, r.Notes[:2])
}

// NATS keeps what it says of its JetStream's settings at /varz from who asked first, also if that was before it had read them. A server that was asked then isn't
// taken for one without JetStream for as long as it runs: no hub could take the log any more.
func TestAServerThatWasAskedAsItStartedHasJetStream(t *testing.T) {
	for name, change := range map[string]func(string) string{
		"it syncs": func(settings string) string { return settings },
		"it doesn't sync": func(settings string) string {
			return strings.Replace(settings, "sync_interval: always", "sync_interval: 2m", 1)
		},
		"it has none": func(settings string) string {
			return regexp.MustCompile(`jetstream \{.*\}`).ReplaceAllString(settings, "")
		},
	} {
		t.Run(name, func(t *testing.T) {
			monitor := natsservers.StartWith(t, 1, func(_ int, settings string) string {
				return change(regexp.MustCompile(`(?m)^cluster .*$`).ReplaceAllString(settings, ""))
			}).Monitors()[0]
			early := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				answer, err := http.Get(monitor + r.URL.Path)
				if err != nil {
					http.Error(w, err.Error(), http.StatusBadGateway)
					return
				}
				defer answer.Body.Close()
				var said map[string]any
				if err := json.NewDecoder(answer.Body).Decode(&said); err != nil {
					http.Error(w, err.Error(), http.StatusBadGateway)
					return
				}
				if js, is := said["jetstream"].(map[string]any); is && r.URL.Path == "/varz" {
					delete(js, "config")
				}
				_ = json.NewEncoder(w).Encode(said)
			}))
			defer early.Close()
			r := jetstream.InspectServers(t.Context(), jetstream.Options{Stream: "edgebus", Replicas: 1}, http.DefaultClient, []string{early.URL})
			wrong := strings.Join(r.Wrong, "\n")
			switch name {
			case "it syncs":
				require.Empty(t, r.Wrong)
			case "it doesn't sync":
				require.Contains(t, wrong, "acknowledges what isn't on its disk")
			default:
				require.Contains(t, wrong, "has no JetStream")
			}
		})
	}
}

const guardedAccounts = `
accounts {
  HUBS { jetstream: enabled, users: [ { user: hub, password: secret } ] }
  GUESTS { jetstream: enabled, users: [ { user: guest, password: guest } ] }
  SYS { users: [ { user: sys, password: secret } ] }
}
system_account: SYS
`

// Who may write the log without being asked for anything is found out without writing it.
func TestALogThatStrangersMayWriteIsFound(t *testing.T) {
	create := func(url string) {
		o := jetstream.Options{Servers: []string{url}, Stream: "edgebus", Replicas: 1}
		_, err := jetstream.Create(t.Context(), o)
		require.NoError(t, err)
	}
	find := func(s *natsservers.Servers) []string {
		o := jetstream.Options{Servers: s.URLs(), Stream: "edgebus", Replicas: 1}
		return jetstream.OpenServers(t.Context(), o)
	}
	with := func(more string) *natsservers.Servers {
		return natsservers.StartWith(t, 1, func(_ int, settings string) string {
			return regexp.MustCompile(`(?m)^cluster .*$`).ReplaceAllString(settings, "") + more
		})
	}
	open := with("")
	require.Empty(t, find(open), "there is no log yet")
	create(open.URLs()[0])
	found := find(open)
	require.Len(t, found, 1)
	require.Regexp(t, "anybody who reaches the server at 127.0.0.1:[0-9]+ may write or delete the log", found[0])
	log, err := jetstream.Open(t.Context(), jetstream.Options{Servers: open.URLs(), Stream: "edgebus", Replicas: 1})
	require.NoError(t, err)
	defer log.Close()
	_, end, err := log.Bounds(t.Context())
	require.NoError(t, err)
	require.Zero(t, end, "nothing was written")

	for name, more := range map[string]string{"an account": guardedAccounts, "and one for guests": guardedAccounts + "no_auth_user: guest\n"} {
		s := with(more)
		create(strings.Replace(s.URLs()[0], "nats://", "nats://hub:secret@", 1))
		require.Empty(t, find(s), name)
	}
	managing := strings.Replace(guardedAccounts, "password: guest", `password: guest, permissions: { publish: { deny: "edgebus.>" } }`, 1)
	managing = strings.Replace(managing, "users: [ { user: hub", "users: [ { user: guest, password: guest, permissions: { publish: { deny: \"edgebus.>\" } } }, { user: hub", 1)
	managing = regexp.MustCompile(`(?m)^  GUESTS.*$`).ReplaceAllString(managing, "") + "no_auth_user: guest\n"
	s := with(managing)
	create(strings.Replace(s.URLs()[0], "nats://", "nats://hub:secret@", 1))
	require.Len(t, find(s), 1, "it may not write the log, but delete it")
}

// A stream that was deleted is not one that doesn't answer: who reads it and who checks it hear that at once, with what to do.
func TestADeletedStreamIsSaidToBeGone(t *testing.T) {
	servers := natsservers.Start(t, 3)
	said := &strings.Builder{}
	o := jetstream.Options{Servers: servers.URLs(), Stream: "edgebus", Back: 200 * time.Millisecond, Log: zerolog.New(zerolog.SyncWriter(said))}
	_, err := jetstream.Create(t.Context(), o)
	require.NoError(t, err)
	log, err := jetstream.Open(t.Context(), o)
	require.NoError(t, err)
	defer log.Close()
	at, err := log.Append(t.Context(), 0, []byte("frame"))
	require.NoError(t, err)
	leader, ahead, err := log.Check(t.Context())
	require.NoError(t, err)
	require.Regexp(t, "^n[0-2]$", leader, "as it calls itself at its monitoring address")
	require.InDelta(t, 0, ahead.Seconds(), 1)

	nc, err := nats.Connect(servers.URLs()[0])
	require.NoError(t, err)
	defer nc.Close()
	_, err = nc.Request("$JS.API.STREAM.DELETE.edgebus", nil, 10*time.Second)
	require.NoError(t, err)
	for _, err = range log.Read(t.Context(), at) {
		require.Error(t, err)
		break
	}
	require.ErrorIs(t, err, ordered.ErrBack)
	require.ErrorIs(t, err, jetstream.ErrNoStream)
	require.ErrorContains(t, err, "it was deleted, or these are other servers")
	require.Contains(t, said.String(), "the log is gone; nothing is acknowledged")
	_, _, err = log.Check(t.Context())
	require.ErrorIs(t, err, jetstream.ErrNoStream)
	late, stop := context.WithTimeout(t.Context(), 0)
	defer stop()
	require.Equal(t, "nothing came for 0.0 s", log.Status(late).Error)
}

// What keeps a hub from the servers is said once, with what to do.
func TestWhatKeepsAHubFromTheServersIsSaidOnceWithWhatToDo(t *testing.T) {
	for name, c := range map[string]struct {
		accounts string
		secured  bool
		said     string
		fails    bool
	}{
		"none is there":             {said: "no server of the log answers; trying again. Do they run, and does store.nats.servers name them?"},
		"a certificate of others":   {secured: true, said: "Its certificate is of another authority: make it with this cluster.key (`cloudhub cluster certificates`), or name the authority in store.nats.tls.ca"},
		"nobody is let in":          {accounts: guardedAccounts, said: "none of the log's servers lets this hub in", fails: true},
		"it may not use the stream": {accounts: strings.Replace(guardedAccounts, "password: secret }", `password: secret, permissions: { publish: "edgebus.log.another" } }`, 1) + "no_auth_user: hub\n", said: "its servers don't let this hub use the stream edgebus: have their settings made by `cloudhub cluster certificates` with the same store.nats.stream"},
	} {
		t.Run(name, func(t *testing.T) {
			said := &logBuffer{}
			o := jetstream.Options{Servers: []string{"nats://127.0.0.1:1"}, Stream: "edgebus", Timeout: 200 * time.Millisecond, Log: zerolog.New(said)}
			if c.secured || c.accounts != "" {
				o.Servers = natsservers.StartWith(t, 1, func(_ int, settings string) string {
					settings = regexp.MustCompile(`(?m)^cluster .*$`).ReplaceAllString(settings, "") + c.accounts
					if c.secured {
						settings += serverTLS(t)
					}
					return settings
				}).URLs()
			}
			if c.secured {
				o.TLS, o.NeedTLS = &tls.Config{RootCAs: x509.NewCertPool(), MinVersion: tls.VersionTLS13}, true
			}
			ctx, stop := context.WithCancel(t.Context())
			defer stop()
			failed := make(chan error, 1)
			go func() {
				_, err := jetstream.Open(ctx, o)
				failed <- err
			}()
			if c.fails {
				require.ErrorContains(t, <-failed, c.said)
				return
			}
			require.Eventually(t, func() bool { return said.count(c.said) > 0 }, 30*time.Second, time.Millisecond, "%v", said)
			require.Never(t, func() bool { return said.count(c.said) > 1 }, 2500*time.Millisecond, 10*time.Millisecond, "%v", said)
			stop()
			require.Error(t, <-failed)
		})
	}
}

// serverTLS are settings of a server that has a certificate of its own authority.
func serverTLS(t *testing.T) string {
	t.Helper()
	authority, err := clusterca.New(sealed.NewKey())
	require.NoError(t, err)
	cert, key, err := authority.Server([]string{"127.0.0.1"}, time.Hour)
	require.NoError(t, err)
	certFile, keyFile := filepath.Join(t.TempDir(), "server.crt"), filepath.Join(t.TempDir(), "server.key")
	require.NoError(t, os.WriteFile(certFile, cert, 0o600))
	require.NoError(t, os.WriteFile(keyFile, key, 0o600))
	return fmt.Sprintf("tls { cert_file: %q, key_file: %q }\n", certFile, keyFile)
}

// logBuffer keeps what is logged.
type logBuffer struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (l *logBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func (l *logBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

func (l *logBuffer) count(part string) int { return strings.Count(l.String(), part) }
