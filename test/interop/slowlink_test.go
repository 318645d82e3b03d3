// SPDX-License-Identifier: Apache-2.0

package interop

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	mqtt "github.com/edgebus/edgebus/broker/client"
	"github.com/edgebus/edgebus/test/faults"
	"github.com/edgebus/edgebus/test/harness"
	"github.com/edgebus/edgebus/test/stand"
)

// slowCase is what goes over a slow line, both ways at once.
type slowCase struct {
	rate  int // bytes a second, each way
	large int // bytes of each of the large messages, one each way
	cut   bool
}

// slowCases are short ones; EDGEBUS_SLOW_LINK=all has the sizes of limits.packet, and takes half an hour.
func slowCases() []slowCase {
	if os.Getenv("EDGEBUS_SLOW_LINK") != "all" {
		return []slowCase{{15_000, 200_000, true}}
	}
	return []slowCase{{15_000, 1_000_000, false}, {15_000, 1_000_000, true}, {5_000, 1_000_000, true}, {2_000, 1_000_000, true}}
}

// messageArrivals are the messages of one direction: when each was published, and when it came.
type messageArrivals struct {
	mu        sync.Mutex
	published map[string]time.Time
	late      map[string]time.Duration
	large     []byte // that is due
	whole     time.Duration
	times     int // that the large one came
}

func newMessageArrivals(large []byte) *messageArrivals {
	return &messageArrivals{published: make(map[string]time.Time), late: make(map[string]time.Duration), large: large}
}

func (a *messageArrivals) publish(name string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.published[name] = time.Now()
}

func (a *messageArrivals) take(m mqtt.Message) {
	a.mu.Lock()
	defer a.mu.Unlock()
	switch name := m.Topic[strings.LastIndex(m.Topic, "/")+1:]; {
	case name == "large" && bytes.Equal(m.Payload, a.large):
		a.times++
		a.whole = time.Since(a.published[name])
	case !a.published[name].IsZero() && a.late[name] == 0:
		a.late[name] = time.Since(a.published[name])
	}
}

// due says what has not come.
func (a *messageArrivals) due() error {
	a.mu.Lock()
	defer a.mu.Unlock()
	for name := range a.published {
		if a.late[name] == 0 && (name != "large" || a.times == 0) {
			return fmt.Errorf("%s has not come", name)
		}
	}
	return nil
}

func (a *messageArrivals) latest() (latest time.Duration) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, late := range a.late {
		latest = max(latest, late)
	}
	return latest
}

// slowBridge is two brokers with a slow line between them, which carries down/# from far to near and up/# from near to far.
type slowBridge struct {
	far, near string // addresses
	farName   string // of up/ at the far broker
	line      *faults.Proxy
}

// exchange sends a large message each way, and small ones beside, and returns when all have come, with the bytes that passed.
func (b slowBridge) exchange(t *testing.T, s *stand.Stand, c slowCase) (down, up *messageArrivals, passedUp, passedDown uint64) {
	large := func(seed byte) []byte {
		l := make([]byte, c.large)
		for i := range l {
			l[i] = byte(i*i>>3) ^ byte(i>>10) ^ seed
		}
		return l
	}
	down, up = newMessageArrivals(large(1)), newMessageArrivals(large(2))
	subscribe := func(a *messageArrivals, filter string) func(*mqtt.Options) {
		return func(o *mqtt.Options) {
			o.Subscriptions, o.OnMessage = []mqtt.Subscription{{Filter: filter, QoS: 1}}, a.take
		}
	}
	far := s.Client(b.far, subscribe(up, b.farName+"#"))
	near := s.Client(b.near, subscribe(down, "down/#"))
	send := func(name string) {
		down.publish(name)
		require.NoError(t, s.Publish(far, "down/"+name, "small"))
		up.publish(name)
		require.NoError(t, s.Publish(near, "up/"+name, "small"))
	}
	s.Eventually(2*time.Minute, func() error { // the bridge's subscriptions are there
		send("first")
		return errorsOf(down.due(), up.due())
	})
	b.line.Set(faults.Conditions{Shared: c.rate, Delay: 50 * time.Millisecond})
	beforeUp, beforeDown := b.line.Passed()
	down.publish("large")
	require.NoError(t, far.Publish(t.Context(), mqtt.Message{Topic: "down/large", Payload: down.large, QoS: 1}))
	up.publish("large")
	require.NoError(t, near.Publish(t.Context(), mqtt.Message{Topic: "up/large", Payload: up.large, QoS: 1}))
	took := time.Duration(c.large/c.rate) * time.Second
	began, cut := time.Now(), false
	for i := 0; time.Since(began) < took*3/4; i++ {
		send("small" + strconv.Itoa(i))
		time.Sleep(took / 16) // the spacing of what is sent, not a wait
		if _, passed := b.line.Passed(); c.cut && !cut && passed-beforeDown > uint64(c.large/2) {
			b.line.Drop()
			cut = true
		}
	}
	s.Eventually(took+2*time.Minute, func() error { return errorsOf(down.due(), up.due()) })
	afterUp, afterDown := b.line.Passed()
	return down, up, afterUp - beforeUp, afterDown - beforeDown
}

func errorsOf(all ...error) error {
	for _, err := range all {
		if err != nil {
			return err
		}
	}
	return nil
}

// Over a slow line all arrives, whatever its size: what is small within seconds, and each byte about once.
func TestASlowLinkCarriesLargeMessagesAndNothingSmallWaitsForThem(t *testing.T) {
	for _, c := range slowCases() {
		t.Run(fmt.Sprintf("%d-%v", c.rate, c.cut), func(t *testing.T) {
			s := stand.New(t, 1)
			write := func(name, text string) {
				require.NoError(t, os.WriteFile(filepath.Join(s.Dir, name), []byte(text), 0o600))
			}
			write("hub.yaml", "bridge: {down: ['down/#']}\n")
			write("core.yaml", "bridge: [{direction: down, filter: 'down/#', store: true}, {direction: up, filter: 'up/#', store: true}]\n")
			require.NoError(t, s.Start(t.Context(), "hub"))
			require.NoError(t, s.Start(t.Context(), "core", "--link-keepalive", "15s", "--link-retry-timeout", "30s"))
			b := slowBridge{far: s.Hub.MQTT, near: s.Core(), farName: "v1/nodes/n1/bridge/up/", line: s.Node("n1").Net}
			down, up, passedUp, passedDown := b.exchange(t, s, c)
			t.Logf("%d bytes/s, a message of %d bytes each way: small ones after at most %.1f s down and %.1f s up, the large ones after %.0f s and %.0f s, bytes on the line %.2f and %.2f times those of the messages",
				c.rate, c.large, down.latest().Seconds(), up.latest().Seconds(), down.whole.Seconds(), up.whole.Seconds(), float64(passedDown)/float64(c.large), float64(passedUp)/float64(c.large))
			require.Equal(t, []int{1, 1}, []int{down.times, up.times})
			small := uint64(len(down.published)) * 400 // with topics, properties and acknowledgements
			require.Less(t, float64(passedDown-small), 1.1*float64(c.large))
			require.Less(t, float64(passedUp-small), 1.1*float64(c.large))
			most := 10*time.Second + 30_000*time.Second/time.Duration(c.rate) // after a cut the handshakes wait for what was under way
			require.Less(t, down.latest(), most)
			require.Less(t, up.latest(), most)
		})
	}
}

// What mosquitto's bridge does over the same line, for the comparison in docs/running.md. It has no aim.
func TestMosquittosBridgeOverASlowLink(t *testing.T) {
	if os.Getenv("EDGEBUS_SLOW_LINK") == "" {
		t.Skip("EDGEBUS_SLOW_LINK=short or all runs it: it only measures another program")
	}
	stand.RequirePrograms(t, "/usr/sbin/mosquitto")
	for _, c := range slowCases() {
		t.Run(fmt.Sprintf("%d-%v", c.rate, c.cut), func(t *testing.T) {
			s := stand.New(t, 1)
			b := slowBridge{farName: "up/"}
			for _, address := range []*string{&b.far, &b.near} {
				*address = harness.FreeAddress(t)
			}
			var err error
			b.line, err = faults.New(faults.Options{Target: b.far})
			require.NoError(t, err)
			t.Cleanup(b.line.Close)
			start := func(name, address, more string) {
				conf := filepath.Join(s.Dir, name+".conf")
				_, port, _ := strings.Cut(address, ":")
				require.NoError(t, os.WriteFile(conf, []byte("listener "+port+" 127.0.0.1\nallow_anonymous true\n"+more), 0o600))
				require.NoError(t, s.Run(t.Context(), name, []string{"/usr/sbin/mosquitto", "-c", conf}, address))
			}
			start("far", b.far, "")
			start("near", b.near, "connection slow\naddress "+b.line.Addr()+"\nbridge_protocol_version mqttv311\ncleansession false\nkeepalive_interval 15\nrestart_timeout 1\ntopic down/# in 1\ntopic up/# out 1\n")
			down, up, passedUp, passedDown := b.exchange(t, s, c)
			t.Logf("mosquitto: %d bytes/s, a message of %d bytes each way: small ones after at most %.1f s down and %.1f s up, the large ones after %.0f s and %.0f s, bytes on the line %.2f and %.2f times those of the messages",
				c.rate, c.large, down.latest().Seconds(), up.latest().Seconds(), down.whole.Seconds(), up.whole.Seconds(), float64(passedDown)/float64(c.large), float64(passedUp)/float64(c.large))
		})
	}
}
