// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/edgebus/edgebus/broker/client"
	"github.com/edgebus/edgebus/test/disk"
	"github.com/edgebus/edgebus/test/harness"
	"github.com/edgebus/edgebus/test/stand"
	"github.com/edgebus/edgebus/topics/resource"
)

// smallMachine is a hub and a core, one of which has a disk of its own that fails.
type smallMachine struct {
	*stand.Stand
	t      *testing.T
	name   string // hub or core: whose disk it is
	broker string
	disk   *disk.Disk
	pub    *client.Client
	box    *outbox
	sent   int            // messages that were acknowledged
	values map[int]string // values that were acknowledged, by property
}

// outbox is a durable session that is away while the disk fails.
type outbox struct {
	mu  sync.Mutex
	got map[string]bool
}

func (b *outbox) options(o *client.Options) {
	o.ClientID, o.CleanStart, o.SessionExpiry = "box", false, time.Hour
	o.Subscriptions = []client.Subscription{{Filter: "post", QoS: 1}}
	o.OnMessage = func(m client.Message) {
		number, _, _ := strings.Cut(string(m.Payload), " ")
		b.mu.Lock()
		b.got[number] = true
		b.mu.Unlock()
	}
}

const propertyCount = 24 // properties of the device that fills the disk

func newMachine(t *testing.T, name string) *smallMachine {
	t.Helper()
	d := disk.New(t, 64)
	m := &smallMachine{Stand: stand.New(t, 1), t: t, name: name, disk: d, box: &outbox{got: map[string]bool{}}, values: map[int]string{}}
	m.broker = map[string]string{"hub": m.Hub.MQTT, "core": m.Core()}[name]
	for _, program := range []string{"hub", "core"} {
		args := []string{"--log-level", "info"}
		if program == name {
			args = append(args, "--data-dir", m.data())
		}
		require.NoError(t, m.Start(t.Context(), program, args...))
	}
	properties := []string{"{name: small, accessMode: ReadWrite}"}
	for i := range propertyCount {
		properties = append(properties, fmt.Sprintf("{name: p%d, accessMode: ReadWrite}", i))
	}
	m.Create(stand.ModelManifest("store", properties...) + stand.DeviceManifests("store", "by-hand", "tank"))
	m.Eventually(stand.WaitTimeout, func() error { return wantGauge(m.Stand, m.Node("n1").HTTP, "edgebus_core_devices", 1) })
	m.pub = m.Client(m.broker, nil)
	require.NoError(t, m.fetch(0)) // makes the session
	require.NoError(t, m.message("first"))
	require.NoError(t, m.value(0, "first"))
	return m
}

func (m *smallMachine) data() string { return filepath.Join(m.disk.Dir, "data") }

// message publishes to the durable session that is away.
func (m *smallMachine) message(text string) error {
	err := m.Publish(m.pub, "post", fmt.Sprintf("%d %s", m.sent, text))
	if err == nil {
		m.sent++
	}
	return err
}

// topic is a property's, as the owner of it on this side has it.
func (m *smallMachine) topic(property string) string {
	kind := map[string]string{"hub": "desired", "core": "reported"}[m.name]
	return "v1/nodes/n1/devices/tank/" + kind + "/" + property
}

func (m *smallMachine) value(i int, text string) error {
	err := m.Publish(m.pub, m.topic(fmt.Sprintf("p%d", i)), text)
	if err == nil {
		m.values[i] = text
	}
	return err
}

// fetch connects the durable session until it has as many messages.
func (m *smallMachine) fetch(n int) error {
	o := client.Options{Servers: []string{"mqtt://" + m.broker}, Attempts: 1}
	m.box.options(&o)
	up := make(chan struct{})
	o.OnConnect = func(context.Context, bool) error { close(up); return nil }
	c, err := client.New(o)
	if err != nil {
		return err
	}
	ctx, stop := context.WithCancel(m.t.Context())
	ended := make(chan error, 1)
	go func() { ended <- c.Run(ctx) }()
	defer func() {
		stop()
		<-ended
	}()
	select {
	case <-up:
	case err := <-ended:
		ended <- err
		return err
	}
	return harness.Eventually(ctx, stand.WaitTimeout, func(context.Context) error { return m.box.has(n) })
}

// has is whether so many messages have arrived.
func (b *outbox) has(n int) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.got) < n {
		return fmt.Errorf("%d of %d messages have arrived", len(b.got), n)
	}
	return nil
}

// refused repeats a write until it is refused for a reason that names the cause.
func (m *smallMachine) refused(cause string, write func(i int) error) {
	m.t.Helper()
	for i := range 2000 {
		err := write(i)
		if err == nil {
			continue
		}
		var refused *client.Refused
		switch {
		case errors.As(err, &refused):
			require.Equal(m.t, byte(0x83), refused.Code, "%v", err)
			require.Contains(m.t, refused.Reason, cause)
		case errors.Is(err, resource.Unavailable):
			require.ErrorContains(m.t, err, cause)
		default:
			require.NoError(m.t, err)
		}
		return
	}
	require.Fail(m.t, "nothing was refused")
}

// writesAreRefused tries everything that is stored.
func (m *smallMachine) writesAreRefused(cause string) {
	m.t.Helper()
	large := strings.Repeat("x", 100<<10)
	m.refused(cause, func(int) error { return m.message(large) })
	m.refused(cause, func(i int) error { return m.value(i%propertyCount, fmt.Sprintf("%d %s", i, large)) })
	if m.name == "core" {
		m.refused(cause, func(int) error { return m.Publish(m.pub, "v1/nodes/n1/devices/tank/telemetry/p0", large) })
	}
	if m.name == "hub" {
		m.refused(cause, func(i int) error {
			return m.Apply(m.t.Context(), []byte(fmt.Sprintf("apiVersion: edgebus.io/v1alpha1\nkind: DeviceModel\n"+
				"metadata: {name: more-%d, annotations: {filler: %s}}\nspec: {properties: [{name: a}]}\n", i, large)))
		})
	}
}

// useUp stores messages until not even one of a byte fits where a large one did not: the program is well as soon as it stores one.
func (m *smallMachine) useUp() {
	for size := 50 << 10; size > 0; size /= 2 {
		for m.message(strings.Repeat("x", size)) == nil {
		}
	}
}

// restGoesOn: reads, subscriptions, messages that nobody stores, and the link.
func (m *smallMachine) restGoesOn() {
	m.t.Helper()
	live := m.Watch(m.broker, "#", nil)
	live.AwaitThat(m.topic("p0"), func(got client.Message) bool { return string(got.Payload) == m.values[0] })
	require.NoError(m.t, m.Publish(m.pub, "nobody/keeps/this", "hello"))
	live.Await("nobody/keeps/this", "hello")
	for _, url := range []string{m.DeviceURL("tank"), "http://" + m.Node("n1").HTTP + "/metrics", "http://" + m.Hub.HTTP + "/metrics"} {
		_, err := harness.Call(m.t.Context(), http.MethodGet, url, nil)
		require.NoError(m.t, err)
	}
	m.Eventually(stand.WaitTimeout, func() error { return wantGauge(m.Stand, m.Node("n1").HTTP, "edgebus_core_link_up", 1) })
}

// ready is whether /readyz has that status, and says where there is no room if it is one of a failure.
func (m *smallMachine) ready(want int) error {
	address := map[string]string{"hub": m.Hub.HTTP, "core": m.Node("n1").HTTP}[m.name]
	_, err := harness.Call(m.t.Context(), http.MethodGet, "http://"+address+"/readyz", nil)
	code := http.StatusOK
	var status *harness.StatusError
	if errors.As(err, &status) {
		code, err = status.Code, nil
	}
	switch {
	case err == nil && code != want:
		err = fmt.Errorf("/readyz says %d, not %d", code, want)
	case err == nil && code != http.StatusOK && !strings.Contains(status.Body, m.data()):
		err = fmt.Errorf("/readyz does not say where there is no room: %s", status.Body)
	}
	return err
}

// low is whether the program says, as edgebus doctor asks it, that its disk is nearly full.
func (m *smallMachine) low(want bool) error {
	address := map[string]string{"hub": m.Hub.HTTP, "core": m.Node("n1").HTTP}[m.name]
	text, err := harness.Call(m.t.Context(), http.MethodGet, "http://"+address+"/links", nil)
	if err == nil && strings.Contains(string(text), " % of the disk with ") != want {
		err = fmt.Errorf("not what it should say of its disk: %s", text)
	}
	return err
}

// whole is what must hold when the disk is well again.
func (m *smallMachine) whole() {
	m.t.Helper()
	m.InStep()
	cloud, local := m.Watch(m.Hub.MQTT, "v1/nodes/n1/#", nil), m.Watch(m.Core(), "v1/nodes/n1/#", nil)
	for i, value := range m.values {
		cloud.Await(m.topic(fmt.Sprintf("p%d", i)), value)
		local.Await(m.topic(fmt.Sprintf("p%d", i)), value)
	}
	require.NoError(m.t, m.fetch(m.sent))
}

// A full disk refuses writes, with a reason; everything else goes on. With room it
// is well again by itself, and nothing that was acknowledged is missing.
func TestFullDisk(t *testing.T) {
	for _, name := range []string{"hub", "core"} {
		t.Run(name, func(t *testing.T) {
			m := newMachine(t, name)
			require.NoError(t, m.disk.Fill())
			m.writesAreRefused("no space left on device")
			m.restGoesOn()
			m.Eventually(stand.WaitTimeout, func() error {
				m.useUp()
				return m.ready(http.StatusServiceUnavailable)
			})
			m.Eventually(stand.WaitTimeout, func() error { return m.low(true) })
			for _, end := range []func(string) error{m.Term, m.Crash} { // it stops in order, and starts, on a full disk, too
				require.NoError(t, end(name))
				require.NoError(t, m.disk.Fill()) // and so with what it gave up
				require.NoError(t, m.StartUnready(t.Context(), name))
				m.writesAreRefused("no space left on device")
				m.restGoesOn()
				m.Eventually(stand.WaitTimeout, func() error {
					m.useUp()
					return m.ready(http.StatusServiceUnavailable)
				})
			}
			other := map[string]string{"hub": m.Core(), "core": m.Hub.MQTT}[name] // the other side's writes wait for room
			topic := "v1/nodes/n1/devices/tank/" + map[string]string{"hub": "reported", "core": "desired"}[name] + "/small"
			require.NoError(t, m.Publish(m.Client(other, nil), topic, "meanwhile"))

			require.NoError(t, m.disk.Free())
			m.Eventually(stand.WaitTimeout, func() error { return m.message("again") })
			m.Eventually(stand.WaitTimeout, func() error { return m.value(1, "again") })
			m.whole()
			m.Eventually(stand.WaitTimeout, func() error { return m.ready(http.StatusOK) })
			m.Eventually(stand.WaitTimeout, func() error { return m.low(false) })
			m.Watch(m.broker, topic, nil).Await(topic, "meanwhile")
			require.NoError(t, m.Term(name))
			m.Up(name)
			m.whole()
		})
	}
}

// A program that has no data yet doesn't start on a full disk. It says which directory needs room, and starts when there is some.
func TestFirstStartOnAFullDisk(t *testing.T) {
	for _, name := range []string{"hub", "core"} {
		t.Run(name, func(t *testing.T) {
			d := disk.New(t, 64)
			s := stand.New(t, 1)
			data := filepath.Join(d.Dir, "data")
			require.NoError(t, os.Mkdir(data, 0o700))
			require.NoError(t, d.Fill())
			require.Error(t, s.Start(t.Context(), name, "--data-dir", data))
			says := failsToStart(t, s, name)
			require.Contains(t, says, "the data directory "+data+" can't be used")
			require.Contains(t, says, "no space left on device: make room on that disk")
			require.NoError(t, d.Free())
			s.Up(name)
		})
	}
}

// A disk that can only be read any more, as the kernel leaves it after an error of the
// disk: writes are refused, the rest goes on. A program doesn't start on it, and says why.
func TestReadOnlyDisk(t *testing.T) {
	for _, name := range []string{"hub", "core"} {
		t.Run(name, func(t *testing.T) {
			m := newMachine(t, name)
			// What the program waits for the disk with at that very moment is answered with an error of the
			// disk (EIO), not with what holds from then on. So it is in no such call.
			require.NoError(t, m.FreezeOutside(t.Context(), name))
			require.NoError(t, m.disk.ReadOnly(true))
			require.NoError(t, m.Signal(name, syscall.SIGCONT))
			m.writesAreRefused("read-only file system")
			m.restGoesOn()
			require.NoError(t, m.Doom(name)) // it may not be able to say goodbye to its files
			require.NoError(t, m.Crash(name))
			says := failsToStart(t, m.Stand, name)
			require.Contains(t, says, m.data())
			require.Contains(t, says, "read-only file system")

			require.NoError(t, m.disk.ReadOnly(false))
			m.Up(name)
			m.whole()
		})
	}
}
