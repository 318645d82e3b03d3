// SPDX-License-Identifier: Apache-2.0

package cloud_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"

	"github.com/edgebus/edgebus/broker/client"
	"github.com/edgebus/edgebus/broker/daemon"
	"github.com/edgebus/edgebus/broker/ordered"
	"github.com/edgebus/edgebus/cloud"
	"github.com/edgebus/edgebus/configs"
	"github.com/edgebus/edgebus/test/harness"
)

// heldLog is a log whose appends wait while it is held: before they are in the log, or after, as when the answer is late.
type heldLog struct {
	ordered.Log
	mu      sync.Mutex
	held    chan struct{} // nil: it is not held
	stored  bool          // appends wait after they are in the log
	waiting bool          // an append waits
}

func (l *heldLog) hold(stored bool) (release func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	held := make(chan struct{})
	l.held, l.stored = held, stored
	return sync.OnceFunc(func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.held, l.waiting = nil, false
		close(held)
	})
}

// wait has an append wait for the release.
func (l *heldLog) wait(held chan struct{}) {
	l.mu.Lock()
	l.waiting = l.held == held
	l.mu.Unlock()
	<-held
}

func (l *heldLog) hasWaiting() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.waiting
}

func (l *heldLog) Append(ctx context.Context, after ordered.Position, frames ...[]byte) (ordered.Position, error) {
	l.mu.Lock()
	held, stored := l.held, l.stored
	l.mu.Unlock()
	if held != nil && !stored {
		l.wait(held)
	}
	at, err := l.Log.Append(ctx, after, frames...)
	if held != nil && stored {
		l.wait(held)
	}
	return at, err
}

// readLimit is how long what only reads may take, whatever the log does.
const readLimit = 100 * time.Millisecond

// A log that doesn't answer an append, for 20 seconds or for as long as anybody looks, under the whole hub: all that reads is answered, what was
// stored is delivered, QoS 0 goes on, and nothing is acknowledged. When the log answers, all is.
func TestNobodyWhoReadsWaitsForALogThatDoesNotAnswer(t *testing.T) {
	h := startSlowHub(t)
	hold := time.Second // of which no reader knows whether it is 20
	if os.Getenv("ALL_TESTS") != "" {
		hold = 20 * time.Second
	}
	for i, stored := range []bool{false, true} {
		h.release = h.log.hold(stored)
		t.Cleanup(h.release)
		answered, writes := h.write(i)
		require.Eventually(t, h.log.hasWaiting, 10*time.Second, time.Millisecond, "a write is to wait before anybody reads")
		require.NoError(t, h.readFor(hold, i == 0))
		require.Empty(t, answered, "nothing is acknowledged")
		h.release()
		for range writes {
			require.Contains(t, <-answered, ": <nil>")
		}
	}
}

// A hub that answers before the log has, and one whose readers wait for an append, fail the test above. They are built from the sources as they are, with the
// place changed where a message is stored.
func TestAHubThatAnswersFirstOrLetsReadersWaitIsFound(t *testing.T) {
	if testing.Short() {
		t.Skip("it compiles the hub anew; make race has it")
	}
	const place = "\td.store.Commit(p.changes, func(err error) { done(p.committed(err)) })\n\treturn true, nil\n"
	source, err := filepath.Abs("../broker/dispatcher.go")
	require.NoError(t, err)
	text, err := os.ReadFile(source)
	require.NoError(t, err)
	require.Equal(t, 1, strings.Count(string(text), place), "the test is to be changed with the code")
	dir := t.TempDir()
	changed, overlay, program := filepath.Join(dir, "dispatcher.go"), filepath.Join(dir, "overlay.json"), filepath.Join(dir, "cloud.test")
	faulty := strings.Replace(strings.Replace(string(text), place, `
	switch os.Getenv("EDGEBUS_TEST_FAULT") {
	case "answers first":
		d.store.Commit(p.changes, func(err error) { _ = p.committed(err) })
		return false, nil
	case "readers wait":
		d.retained.mu.Lock()
		d.store.Commit(p.changes, func(err error) {
			d.retained.mu.Unlock()
			done(p.committed(err))
		})
		return true, nil
	default:
		panic("no fault")
	}
`, 1), "import (\n", "import (\n\t\"os\"\n", 1)
	require.NoError(t, os.WriteFile(changed, []byte(faulty), 0o600))
	replaced, err := json.Marshal(map[string]any{"Replace": map[string]string{source: changed}})
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(overlay, replaced, 0o600))
	build := exec.CommandContext(t.Context(), "go", "test", "-c", "-vet=off", "-ldflags=-s -w", "-overlay", overlay, "-o", program, ".")
	build.Env = append(os.Environ(), "CGO_ENABLED=0") // as all but the race detector's programs, which are compiled already
	said, err := build.CombinedOutput()
	require.NoError(t, err, "%s", said)
	for fault, found := range map[string]string{"answers first": "nothing is acknowledged", "readers wait": "takes longer than|a client can't connect"} {
		run := exec.CommandContext(t.Context(), program, "-test.run=^TestNobodyWhoReadsWaitsForALogThatDoesNotAnswer$", "-test.timeout=2m")
		run.Env = append(os.Environ(), "EDGEBUS_TEST_FAULT="+fault)
		said, err := run.CombinedOutput()
		require.Error(t, err, "%s: %s", fault, said)
		require.Regexp(t, found, string(said), fault)
	}
}

// write has all kinds of writes be made.
func (h *slowHub) write(i int) (answered <-chan string, writes int) {
	said := make(chan string, 10)
	ctx := h.t.Context()
	all := map[string]func() error{
		"a retained message": func() error {
			return h.pub.Publish(ctx, client.Message{Topic: "own/new", Payload: fmt.Append(nil, i), QoS: 1, Retain: true})
		},
		"a message to a session": func() error {
			return h.pub.Publish(ctx, client.Message{Topic: "post", Payload: fmt.Append(nil, i), QoS: 1})
		},
		"QoS 2": func() error {
			return h.pub.Publish(ctx, client.Message{Topic: "post", Payload: fmt.Append(nil, i), QoS: 2})
		},
		"an object": func() error { return h.create(fmt.Sprint("new-", i)) },
	}
	for what, write := range all {
		go func() { said <- fmt.Sprint(what, ": ", write()) }()
	}
	return said, len(all)
}

// readFor reads in all ways for a time, and fails if one takes too long.
func (h *slowHub) readFor(d time.Duration, mail bool) error {
	for end := time.Now().Add(d); time.Now().Before(end); {
		for _, filter := range []string{"own/kept", "own/+"} { // of which the other one matches a message that is not stored, too
			if err := inTime("a subscription to "+filter, func(ctx context.Context) error { return h.subscribed(ctx, filter, "stored") }); err != nil {
				return err
			}
		}
		for _, path := range []string{"/readyz", "/links", "/apis/edgebus.io/v1alpha1/namespaces/default/devicemodels/noted", "/apis/edgebus.io/v1alpha1/devicemodels"} {
			if err := inTime(path, func(ctx context.Context) error {
				_, err := harness.Call(ctx, http.MethodGet, h.api+path, nil)
				return err
			}); err != nil {
				return err
			}
		}
		if err := inTime("QoS 0", h.echo); err != nil {
			return err
		}
	}
	if !mail {
		return nil
	}
	got := make(chan string, 100)
	_, stop := h.connect(client.Options{ClientID: "mail", SessionExpiry: time.Hour, OnMessage: func(m client.Message) { got <- string(m.Payload) }})
	defer stop()
	select {
	case text := <-got:
		if text != "queued" {
			return fmt.Errorf("the session got %q, and %q was stored", text, "queued")
		}
		return nil
	case <-time.After(10 * time.Second):
		return errors.New("what was stored is not delivered")
	}
}

type slowHub struct {
	t         *testing.T
	release   func() // of the log, while it is held
	log       *heldLog
	api, mqtt string
	pub       *client.Client
	heard     chan struct{}
}

// startSlowHub starts a hub with a retained message, an object, and a session for which a message is queued.
func startSlowHub(t *testing.T) *slowHub {
	t.Helper()
	cfg, _, err := configs.Parse[configs.Hub]("cloudhub", "dev", []string{
		"--data-dir", t.TempDir(), "--mqtt-listen", "127.0.0.1:0", "--mqtt-websocket-listen", "", "--http-listen", "127.0.0.1:0",
	}, io.Discard)
	require.NoError(t, err)
	h := &slowHub{t: t, release: func() {}, heard: make(chan struct{}, 1000)}
	at, _ := startHub(t, cfg, func(l ordered.Log) ordered.Log {
		h.log = &heldLog{Log: l}
		return h.log
	})
	h.api, h.mqtt = "http://"+at.HTTP[0].String(), at.MQTT[0].String()
	h.pub, _ = h.connect(client.Options{})
	h.connect(client.Options{Subscriptions: []client.Subscription{{Filter: "echo"}}, OnMessage: func(client.Message) { h.heard <- struct{}{} }})
	post := client.Subscription{Filter: "post", QoS: 2}
	_, stop := h.connect(client.Options{ClientID: "mail", SessionExpiry: time.Hour, Subscriptions: []client.Subscription{post}})
	stop() // the session stays
	h.publish(client.Message{Topic: "own/kept", Payload: []byte("stored"), QoS: 1, Retain: true})
	h.publish(client.Message{Topic: "post", Payload: []byte("queued"), QoS: 1})
	require.NoError(t, h.create("noted"))
	return h
}

// startHub runs a hub with a log in front of its own, until the test ends or stop is called.
func startHub(t *testing.T, cfg configs.Hub, through func(ordered.Log) ordered.Log) (at daemon.Addresses, stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	bound, ended := make(chan daemon.Addresses, 1), make(chan error, 1)
	go func() {
		ended <- cloud.Run(ctx, cloud.Options{Config: cfg, Log: zerolog.Nop(), Ready: func(at daemon.Addresses) { bound <- at }, Through: through})
	}()
	stop = sync.OnceFunc(func() {
		cancel()
		require.NoError(t, <-ended)
	})
	t.Cleanup(stop)
	return <-bound, stop
}

// connect connects a client, which has its subscriptions then.
func (h *slowHub) connect(o client.Options) (c *client.Client, stop func()) {
	h.t.Helper()
	o.Servers, o.Log, o.CleanStart = []string{"mqtt://" + h.mqtt}, zerolog.Nop(), o.SessionExpiry == 0
	up := make(chan struct{}, 1)
	o.OnConnect = func(context.Context, bool) error {
		up <- struct{}{}
		return nil
	}
	c, err := client.New(o)
	require.NoError(h.t, err)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- c.Run(ctx) }()
	stop = sync.OnceFunc(func() {
		cancel()
		<-ended
	})
	h.t.Cleanup(stop)
	select {
	case <-up:
	case <-time.After(10 * time.Second):
		h.release()
		require.Fail(h.t, "a client can't connect")
	}
	return c, stop
}

func (h *slowHub) publish(m client.Message) {
	h.t.Helper()
	require.NoError(h.t, h.pub.Publish(h.t.Context(), m))
}

// create makes a DeviceModel.
func (h *slowHub) create(name string) error {
	_, err := harness.Call(h.t.Context(), http.MethodPost, h.api+"/apis/edgebus.io/v1alpha1/namespaces/default/devicemodels",
		fmt.Appendf(nil, `{"apiVersion":"edgebus.io/v1alpha1","kind":"DeviceModel","metadata":{"name":%q},"spec":{"properties":[{"name":"a"}]}}`, name))
	return err
}

// inTime reads at most ten times, until it takes no longer than readLimit: a busy machine makes one slow, a reader that waits makes all so.
func inTime(what string, read func(context.Context) error) (err error) {
	for range 10 {
		ctx, cancel := context.WithTimeout(context.Background(), readLimit)
		err = read(ctx)
		cancel()
		if err == nil {
			return nil
		}
	}
	return fmt.Errorf("%s takes longer than %v: %w", what, readLimit, err)
}

// subscribed waits for the first retained message as a new client gets it.
func (h *slowHub) subscribed(ctx context.Context, filter, want string) error {
	got := make(chan string, 1)
	_, stop := h.connect(client.Options{Subscriptions: []client.Subscription{{Filter: filter, QoS: 1}}, OnMessage: func(m client.Message) { got <- string(m.Payload) }})
	defer stop()
	select {
	case text := <-got:
		if text != want {
			return errors.New("got " + text)
		}
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// echo publishes at QoS 0 and waits for what a subscriber hears.
func (h *slowHub) echo(ctx context.Context) error {
	if err := h.pub.Publish(ctx, client.Message{Topic: "echo"}); err != nil {
		return err
	}
	select {
	case <-h.heard:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
