// SPDX-License-Identifier: Apache-2.0

package runner

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"

	"github.com/edgebus/edgebus/broker"
	"github.com/edgebus/edgebus/broker/client"
	"github.com/edgebus/edgebus/broker/views"
	"github.com/edgebus/edgebus/broker/views/homeassistant"
	"github.com/edgebus/edgebus/broker/views/viewtest"
	"github.com/edgebus/edgebus/topics"
)

// fakeTree retains what is published, as an owner of a tree does.
type fakeTree struct {
	mu       sync.Mutex
	retained map[string]broker.Message
	views    *Views
	desired  []string
}

func (f *fakeTree) publish(topic, payload string) {
	m := broker.Message{Topic: topic, Payload: []byte(payload), QoS: 1, Retain: true}
	f.mu.Lock()
	f.retained[topic] = m
	f.mu.Unlock()
	f.views.Follow(m)
}

func (f *fakeTree) Retained(filter string) func(int) []broker.Message {
	f.mu.Lock()
	defer f.mu.Unlock()
	var list []broker.Message
	for topic, m := range f.retained {
		if topics.Match(filter, topic) {
			list = append(list, m)
		}
	}
	return func(max int) (out []broker.Message) {
		out, list = list[:min(max, len(list))], list[min(max, len(list)):]
		return out
	}
}

// Publish takes all that is desired.
func (f *fakeTree) Publish(m broker.Message, done func(error)) {
	f.mu.Lock()
	f.desired = append(f.desired, m.User()+" "+m.Topic+" "+string(m.Payload))
	f.mu.Unlock()
	done(nil)
}

func (f *fakeTree) asked() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return append([]string(nil), f.desired...)
}

// runBroker runs a broker until the test ends, or stop is called.
func runBroker(t *testing.T, address string, tree broker.Tree) (b *broker.Broker, stop func()) {
	t.Helper()
	b, err := broker.New(broker.Options{
		Node: viewtest.Node, Tree: tree, Listeners: []broker.Listener{{Address: address}}, Auth: broker.Auth{Anonymous: []topics.Role{topics.RoleOperator}}, Log: zerolog.Nop(),
	})
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { defer close(done); _ = b.Serve(ctx) }()
	stop = sync.OnceFunc(func() { cancel(); <-done })
	t.Cleanup(stop)
	return b, stop
}

// watcher knows what a broker retains, as its clients see it.
type watcher struct {
	mu   sync.Mutex
	has  map[string]string
	seen int
}

func watchBroker(t *testing.T, b *broker.Broker) *watcher {
	t.Helper()
	w := &watcher{has: make(map[string]string)}
	c, err := client.New(client.Options{
		Servers: []string{"mqtt://" + b.Addrs()[0].String()}, ClientID: "watcher", CleanStart: true, Log: zerolog.Nop(),
		Subscriptions: []client.Subscription{{Filter: "homeassistant/#", QoS: 1}, {Filter: "edgebus/#", QoS: 1}, {Filter: "elsewhere/#", QoS: 1}},
		OnMessage: func(m client.Message) {
			w.mu.Lock()
			defer w.mu.Unlock()
			w.seen++
			if w.has[m.Topic] = string(m.Payload); len(m.Payload) == 0 {
				delete(w.has, m.Topic)
			}
		},
	})
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { defer close(done); _ = c.Run(ctx) }()
	t.Cleanup(func() { cancel(); <-done })
	return w
}

func (w *watcher) all() map[string]string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return maps.Clone(w.has)
}

func (w *watcher) await(t *testing.T, what string, is func(map[string]string) bool) {
	t.Helper()
	require.Eventually(t, func() bool { return is(w.all()) }, 20*time.Second, 5*time.Millisecond, what)
}

// viewStage is a tree at a broker, and views of it at the same or another.
type viewStage struct {
	t    *testing.T
	dir  string
	tree *fakeTree
	own  *broker.Broker
}

func newViewStage(t *testing.T) *viewStage {
	s := &viewStage{t: t, dir: t.TempDir(), tree: &fakeTree{retained: make(map[string]broker.Message), views: &Views{}}}
	s.own, _ = runBroker(t, "127.0.0.1:0", s.tree)
	for _, b := range viewtest.Devices() {
		text, err := json.Marshal(b)
		require.NoError(t, err)
		document, parts := topics.SplitDocument(text)
		require.Empty(t, parts)
		at := topics.Prefix + viewtest.Node + "/devices/" + b.Device.Metadata.Name
		s.tree.publish(at, string(document))
		s.tree.publish(at+"/state", "online")
	}
	return s
}

func haView(server string) View {
	o := homeassistant.Options{Instance: viewtest.Node, Prefix: "homeassistant", Base: "edgebus", Own: server == ""}
	settings, _ := json.Marshal(server) // a text
	return View{Name: "ha", Place: server, Settings: settings, Peer: Peer{Server: server}, New: func(string) views.View { return homeassistant.New(o) }}
}

// run runs views until stop is called, which ends them in order.
func (s *viewStage) run(list ...View) (stop func()) {
	v, err := New(Options{
		Node: viewtest.Node, Dir: s.dir, Dial: s.own.Dial, Retained: s.tree.Retained, Log: zerolog.Nop(),
		Restore: func(_ string, settings json.RawMessage) (View, error) {
			var server string
			err := json.Unmarshal(settings, &server)
			return haView(server), err
		},
	}, list)
	require.NoError(s.t, err)
	s.tree.mu.Lock()
	s.tree.views = v
	s.tree.mu.Unlock()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { defer close(done); _ = v.Run(ctx) }()
	stop = sync.OnceFunc(func() { cancel(); <-done })
	s.t.Cleanup(stop)
	return stop
}

const lampPower = "v1/nodes/n1/devices/lamp/reported/power"

func TestASlowPeerGetsTheLastValueAndNothingQueuesForIt(t *testing.T) {
	s := newViewStage(t)
	peer, _ := runBroker(t, "127.0.0.1:0", nil)
	slow := newSlowPipe(t, peer.Addrs()[0].String())
	w := watchBroker(t, peer)
	s.run(haView("mqtt://" + slow.address))
	w.await(t, "all is told", func(has map[string]string) bool { return has["edgebus/n1/state"] == "online" })
	slow.hold()
	for i := range 20_000 {
		s.tree.publish(lampPower, fmt.Sprint(i))
	}
	run := s.tree.views.running[0]
	p := run.list()[0]
	p.inbox.mu.Lock()
	waiting := len(p.inbox.order)
	p.inbox.mu.Unlock()
	require.LessOrEqual(t, waiting, 1, "a property waits once")
	slow.release()
	w.await(t, "the last value", func(has map[string]string) bool { return has["edgebus/n1/devices/lamp/reported/power"] == "19999" })
	w.mu.Lock()
	defer w.mu.Unlock()
	require.Less(t, w.seen, 10_000, "most values were never sent")
}

func TestWhatAPeerWantsIsAskedForByTheViewsUser(t *testing.T) {
	s := newViewStage(t)
	peer, _ := runBroker(t, "127.0.0.1:0", nil)
	w := watchBroker(t, peer)
	s.run(haView("mqtt://" + peer.Addrs()[0].String()))
	w.await(t, "all is told", func(has map[string]string) bool { return has["edgebus/n1/state"] == "online" })
	peer.Publish(broker.Message{Topic: "edgebus/n1/devices/lamp/desired/power", Payload: []byte("ON"), QoS: 1})
	require.Eventually(t, func() bool { return len(s.tree.asked()) > 0 }, 20*time.Second, 5*time.Millisecond)
	require.Equal(t, []string{`view-ha v1/nodes/n1/devices/lamp/desired {"power":"ON"}`}, s.tree.asked())
}

func TestNoMessageOfAPeerMatchesTwoFilters(t *testing.T) {
	require.Equal(t, []string{"edgebus/n1/#", "homeassistant/+/+/+/config", "homeassistant/status"},
		filtersOf(haView("mqtt://ha.example.org").New("n1").Connect(1)))
}

// Whenever views end, in order or not, and whatever they are next, what is shown is what the tree has, and what is switched off has left nothing.
func TestNothingIsLeftOverWhereverAViewEnds(t *testing.T) {
	s := newViewStage(t)
	peer, _ := runBroker(t, "127.0.0.1:0", nil)
	there, here := haView("mqtt://"+peer.Addrs()[0].String()), haView("")
	atPeer, atOwn := watchBroker(t, peer), watchBroker(t, s.own)
	complete := func(has map[string]string) bool {
		return has["edgebus/n1/state"] == "online" && has["homeassistant/light/n1___lamp/power/config"] != ""
	}
	empty := func(has map[string]string) bool { return len(has) == 0 }
	for i, step := range []struct {
		list    []View
		partway int // messages after which it ends; 0: once all is told
	}{{[]View{there}, 3}, {[]View{there}, 40}, {[]View{here}, 0}, {[]View{there}, 11}, {nil, 0}, {[]View{there}, 0}, {nil, 0}} {
		atPeer.mu.Lock()
		begun := atPeer.seen
		atPeer.mu.Unlock()
		stop := s.run(step.list...)
		name := fmt.Sprint("step ", i)
		switch {
		case step.partway > 0:
			require.Eventually(t, func() bool {
				atPeer.mu.Lock()
				defer atPeer.mu.Unlock()
				return atPeer.seen-begun >= step.partway || complete(atPeer.has)
			}, 20*time.Second, time.Millisecond, name)
		case step.list == nil:
			atPeer.await(t, name, empty)
			atOwn.await(t, name, empty)
		case step.list[0].Peer.Server == "":
			atOwn.await(t, name, func(has map[string]string) bool {
				return strings.Contains(has["homeassistant/light/n1___lamp/power/config"], "v1/nodes/n1")
			})
			atPeer.await(t, name, empty)
		default:
			atPeer.await(t, name, complete)
			atOwn.await(t, name, empty)
		}
		stop()
	}
}

// A broker that is gone for good, or never was, has an end: whoever is told that what was published there can't be cleared is told of the file by which that is known.
func TestEachBrokerThatCantBeClearedIsNamedWithItsFile(t *testing.T) {
	s := newViewStage(t)
	for _, server := range []string{"mqtt://127.0.0.1:1", "mqtt://127.0.0.1:2"} { // nothing listens there
		v := haView(server)
		r, err := openRecord(s.dir, v)
		require.NoError(t, err)
		_, err = r.next("")
		require.NoError(t, err)
	}
	s.run()
	files, err := filepath.Glob(filepath.Join(s.dir, Dir, "*.json"))
	require.NoError(t, err)
	require.Len(t, files, 2)
	require.Eventually(t, func() bool {
		said := s.tree.views.Failing()["ha (switched off)"]
		return strings.Contains(said, files[0]) && strings.Contains(said, files[1]) && strings.Contains(said, "127.0.0.1:1") && strings.Contains(said, "127.0.0.1:2")
	}, 20*time.Second, 5*time.Millisecond)
}

// What is cleared of a view is what it alone has published: its messages have the same topics or the same mark as those of the view by its next settings.
func TestAViewWhoseSettingsChangeKeepsWhatItShowsNow(t *testing.T) {
	for _, host := range []string{"127.0.0.1", "localhost"} { // the same broker
		t.Run(host, func(t *testing.T) {
			s := newViewStage(t)
			peer, _ := runBroker(t, "127.0.0.1:0", nil)
			w := watchBroker(t, peer)
			server := "mqtt://" + peer.Addrs()[0].String()
			stop := s.run(haView(server))
			w.await(t, "all is told", func(has map[string]string) bool { return has["edgebus/n1/state"] == "online" })
			stop()
			before := w.all()
			moved := haView(strings.Replace(server, "127.0.0.1", host, 1))
			moved.Place = "moved"
			moved.New = func(string) views.View {
				return homeassistant.New(homeassistant.Options{Instance: viewtest.Node, Prefix: "homeassistant", Base: "elsewhere"})
			}
			s.run(moved)
			w.await(t, "all is told", func(has map[string]string) bool { return has["elsewhere/n1/state"] == "online" })
			require.Eventually(t, func() bool {
				records, err := os.ReadDir(filepath.Join(s.dir, Dir))
				return err == nil && len(records) == 1
			}, 20*time.Second, time.Millisecond, "what it has published before is cleared")
			w.await(t, "all is there", func(has map[string]string) bool {
				for topic := range has {
					if strings.HasPrefix(topic, "edgebus/") {
						return false
					}
				}
				return len(has) == len(before)
			})
		})
	}
}

// slowPipe stands before a broker, and passes nothing on while it is held.
type slowPipe struct {
	address string
	mu      sync.Mutex
	open    *sync.Cond
	held    bool
}

func newSlowPipe(t *testing.T, to string) *slowPipe {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	s := &slowPipe{address: l.Addr().String()}
	s.open = sync.NewCond(&s.mu)
	t.Cleanup(func() { _ = l.Close(); s.release() })
	go func() {
		for {
			in, err := l.Accept()
			if err != nil {
				return
			}
			out, err := net.Dial("tcp", to)
			if err != nil {
				_ = in.Close()
				continue
			}
			go s.copy(out, in)
			go s.copy(in, out)
		}
	}()
	return s
}

func (s *slowPipe) copy(to, from net.Conn) {
	defer func() { _ = to.Close(); _ = from.Close() }()
	buffer := make([]byte, 4<<10)
	for {
		n, err := from.Read(buffer)
		s.mu.Lock()
		for s.held {
			s.open.Wait()
		}
		s.mu.Unlock()
		if err != nil {
			return
		}
		if _, err := to.Write(buffer[:n]); err != nil {
			return
		}
	}
}

func (s *slowPipe) hold() {
	s.mu.Lock()
	s.held = true
	s.mu.Unlock()
}

func (s *slowPipe) release() {
	s.mu.Lock()
	s.held = false
	s.mu.Unlock()
	s.open.Broadcast()
}
