// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"slices"
	"sort"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/edgebus/edgebus/broker/client"
	"github.com/edgebus/edgebus/test/faults"
	"github.com/edgebus/edgebus/test/stand"
)

func watchedPayload(w *stand.Watcher, key string) string {
	m, _ := w.Get(deviceTree + key)
	return string(m.Payload)
}

// watchedTopics is all that a watcher sees, as one text.
func watchedTopics(w *stand.Watcher) string {
	var lines []string
	for topic, m := range w.Tree() {
		lines = append(lines, topic+"="+string(m.Payload)+" "+m.Property("ver"))
	}
	sort.Strings(lines)
	return strings.Join(lines, "\n")
}

func requireParts(text string, all ...string) error {
	for _, part := range all {
		if !strings.Contains(text, part) {
			return fmt.Errorf("no %q in %s", part, text)
		}
	}
	return nil
}

// cutLink makes the network silent.
func cutLink(t *testing.T, s *stand.Stand) {
	t.Helper()
	s.Node("n1").Net.Cut(faults.Blackhole)
}

// What one client does wrong is its own affair: others' publishes on the same
// brokers, for the same device, go on being stored, delivered and replicated.
func TestHostileClientsHarmNobody(t *testing.T) {
	s := newHallStand(t)
	var local, cloud receivedValues
	s.Watch(s.Core(), deviceTree+"hall/reported/count", local.take)
	s.Watch(s.Hub.MQTT, deviceTree+"hall/reported/count", cloud.take)
	wishes := s.Watch(s.Core(), deviceTree+"hall/desired/setpoint", nil)
	hub, core := s.Client(s.Hub.MQTT, nil), s.Client(s.Core(), nil)

	count := 0
	for _, attack := range packetAttacks() {
		t.Run(attack.name, func(t *testing.T) {
			stop := make(chan struct{})
			var runs atomic.Int64
			ended := make(chan struct{})
			go func() {
				defer close(ended)
				for {
					select {
					case <-stop:
						return
					default:
						for _, broker := range []string{s.Hub.MQTT, s.Core()} {
							attack.run(broker)
						}
						runs.Add(1)
					}
				}
			}()
			s.Eventually(stand.WaitTimeout, func() error { // going on, not over
				if runs.Load() < 3 {
					return errors.New("the attack has hardly begun")
				}
				return nil
			})
			for range 20 {
				count++
				require.NoError(t, s.Publish(core, deviceTree+"hall/reported/count", strconv.Itoa(count)))
				require.NoError(t, s.Publish(hub, deviceTree+"hall/desired/setpoint", strconv.Itoa(5+count%30)))
			}
			wishes.Await(deviceTree+"hall/desired/setpoint", strconv.Itoa(5+count%30))
			s.Eventually(stand.WaitTimeout, func() error { return wantEqual(strconv.Itoa(count), cloud.last()) })
			close(stop)
			<-ended
		})
	}
	s.Eventually(stand.WaitTimeout, func() error { return wantEqual(count, len(local.values())) })
	require.Equal(t, numberTexts(count + 1)[1:], local.values())
	requireRising(t, cloud.values())
	s.InStep()
	require.Empty(t, s.Died())
}

type packetAttack struct {
	name string
	run  func(broker string)
}

func packetAttacks() []packetAttack {
	random := rand.New(rand.NewPCG(1, 1))
	noise := func(n int) []byte {
		b := make([]byte, n)
		for i := range b {
			b[i] = byte(random.Uint32())
		}
		return b
	}
	// as sends packets behind a CONNECT, and waits until the broker ends it or has answered.
	as := func(user string, packets ...[]byte) func(string) {
		return func(broker string) { sendPackets(broker, append([][]byte{connectPacket("rude", user)}, packets...)...) }
	}
	return []packetAttack{
		{"noise", func(broker string) { sendPackets(broker, noise(1+random.IntN(300))) }},
		{"noise behind a CONNECT", func(broker string) { as("", noise(1+random.IntN(300)))(broker) }},
		{"half a packet", func(broker string) {
			p := publishPacket(deviceTree+"hall/reported/count", []byte("-1"))
			as("", p[:1+random.IntN(len(p)-1)])(broker)
		}},
		{"a length without end", as("", []byte{0x32, 0xff, 0xff, 0xff, 0xff, 0xff})},
		{"wildcards in a topic", as("", publishPacket(deviceTree+"+/reported/count", []byte("-1")), publishPacket("v1/#", []byte("-1")))},
		{"a topic that is no UTF-8", as("", publishPacket(deviceTree+"hall/reported/c\xff\xfe", []byte("-1")))},
		{"a topic with NUL", as("", publishPacket(deviceTree+"hall/reported/co\x00unt", []byte("-1")))},
		{"a payload that is no UTF-8", as("", publishPacket(deviceTree+"hall/reported/count", []byte("\xff\xfe")), publishPacket(deviceTree+"hall/desired/plan", []byte("\xff")))},
		{"wrong types", as("", publishPacket(deviceTree+"hall/reported/count", []byte("many")), publishPacket(deviceTree+"hall/desired/setpoint", []byte("[]")),
			publishPacket(deviceTree+"hall/reported", []byte(`{"count":{"a":1}}`)), publishPacket(deviceTree+"hall/desired", []byte(`{"setpoint":`)))},
		{"deep JSON", as("", publishPacket(deviceTree+"hall/desired/plan", []byte(strings.Repeat(`{"a":`, 20_000)+"1"+strings.Repeat("}", 20_000))),
			publishPacket(deviceTree+"hall/reported", []byte(strings.Repeat("[", 60_000))))},
		{"oversize", as("", publishPacket(deviceTree+"hall/reported/plan", make([]byte, 2<<20)))},
		{"a forged link message", func(broker string) {
			as("", publishPacket("v1/nodes/n1/sync/up", noise(100)), publishPacket("v1/nodes/n1/sync/down", noise(100)))(broker)
		}},
		{"another node's bad CBOR", func(broker string) {
			as("node/n2", publishPacket("v1/nodes/n2/sync/up", noise(1+random.IntN(200))), publishPacket("v1/nodes/n2/sync/up", []byte{0xa1, 0x00}),
				publishPacket("v1/nodes/n1/sync/up", noise(50)))(broker)
		}},
		{"bad user properties", as("", publishPacketWithProperties(deviceTree+"hall/reported/plan", "{}", "ver", "no", "for", "-1", "until", "never", "ts", "∞"))},
		{"subscriptions to everything", as("", subscribePacket("#", "v1/#", "v1/nodes/+/sync/#", "$SYS/#", "a/#/b", "\xff"))},
	}
}

// sendPackets sends bytes to a broker, and reads what it says until it has been silent
// for a moment or hangs up.
func sendPackets(broker string, packets ...[]byte) {
	conn, err := net.Dial("tcp", broker)
	if err != nil {
		return
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(50 * time.Millisecond))
	if _, err := conn.Write(slices.Concat(packets...)); err != nil {
		return
	}
	buffer := make([]byte, 4096)
	for {
		if _, err := conn.Read(buffer); err != nil {
			return
		}
	}
}

func encodeText(s string) []byte {
	return append(binary.BigEndian.AppendUint16(nil, uint16(len(s))), s...)
}

func encodePacket(first byte, body []byte) []byte {
	return append(binary.AppendUvarint([]byte{first}, uint64(len(body))), body...)
}

// connectPacket is a CONNECT of MQTT 5 with a clean start.
func connectPacket(id, user string) []byte {
	flags := byte(0x02)
	end := encodeText(id)
	if user != "" {
		flags |= 0x80
		end = append(end, encodeText(user)...)
	}
	return encodePacket(0x10, slices.Concat(encodeText("MQTT"), []byte{5, flags, 0, 30, 0}, end))
}

// publishPacket is a PUBLISH at QoS 1.
func publishPacket(topic string, payload []byte) []byte {
	return encodePacket(0x32, slices.Concat(encodeText(topic), []byte{0, 7, 0}, payload))
}

func publishPacketWithProperties(topic, payload string, pairs ...string) []byte {
	var list []byte
	for i := 0; i < len(pairs); i += 2 {
		list = slices.Concat(list, []byte{0x26}, encodeText(pairs[i]), encodeText(pairs[i+1]))
	}
	return encodePacket(0x32, slices.Concat(encodeText(topic), []byte{0, 9}, binary.AppendUvarint(nil, uint64(len(list))), list, []byte(payload)))
}

func subscribePacket(filters ...string) []byte {
	body := []byte{0, 8, 0}
	for _, f := range filters {
		body = append(append(body, encodeText(f)...), 1)
	}
	return encodePacket(0x82, body)
}

// A subscriber that never reads costs the others nothing but its bounded queue.
func TestASubscriberThatNeverReads(t *testing.T) {
	t.Parallel()
	s := newHallStand(t)
	for _, broker := range []string{s.Hub.MQTT, s.Core()} {
		conn, err := net.Dial("tcp", broker)
		require.NoError(t, err)
		defer conn.Close()
		require.NoError(t, conn.(*net.TCPConn).SetReadBuffer(4096))
		_, err = conn.Write(append(connectPacket("deaf", ""), subscribePacket("v1/nodes/n1/#")...))
		require.NoError(t, err)
	}
	core := s.Client(s.Core(), nil)
	var local receivedValues
	s.Watch(s.Core(), deviceTree+"hall/reported/count", local.take)
	cloud := s.Watch(s.Hub.MQTT, deviceTree+"hall/reported/count", nil)
	plan := strings.Repeat("x", 20_000)
	for i := range 100 {
		require.Empty(t, publishAll(core, deviceTree+"hall/reported/plan", 30, func(n int) string { return fmt.Sprintf(`{"%d.%d":"%s"}`, i, n, plan) }))
		require.NoError(t, s.Publish(core, deviceTree+"hall/reported/count", strconv.Itoa(i)))
	}
	s.Eventually(stand.WaitTimeout, func() error { return wantEqual(100, len(local.values())) })
	require.Equal(t, numberTexts(100), local.values())
	cloud.Await(deviceTree+"hall/reported/count", "99")
	s.InStep()
}

// A node that talks nonsense as itself loses nothing but that message.
func TestOwnLinkSurvivesNonsense(t *testing.T) {
	t.Parallel()
	s := newHallStand(t)
	forger := s.Client(s.Hub.MQTT, func(o *client.Options) { o.User, o.ClientID = "node/n1", "node/n1/forger" })
	core := s.Client(s.Core(), nil)
	cloud := s.Watch(s.Hub.MQTT, deviceTree+"hall/reported/count", nil)
	random := rand.New(rand.NewPCG(2, 2))
	for i := range 200 {
		b := make([]byte, random.IntN(300))
		for j := range b {
			b[j] = byte(random.Uint32())
		}
		_ = s.Publish(forger, "v1/nodes/n1/sync/up", string(b)) // acknowledged or not: it is nobody's concern
		require.NoError(t, s.Publish(core, deviceTree+"hall/reported/count", strconv.Itoa(i)))
	}
	cloud.Await(deviceTree+"hall/reported/count", "199")
	s.InStep()
}

// The cloud hangs, or the network does: on the node nobody notices. Medians of
// alternating runs are compared as a ratio, for the machine's own speed varies, and the
// least of the ratios counts, for what else the machine does holds up some of them.
func TestLocalLatencyWhileTheCloudHangs(t *testing.T) {
	s := newHallStand(t)
	core := s.Client(s.Core(), nil)
	arrived := make(chan string, 1)
	s.Watch(s.Core(), deviceTree+"hall/reported/count", func(m client.Message) {
		if !m.Retained {
			arrived <- string(m.Payload)
		}
	})
	count := 0
	median := func() time.Duration {
		var took []time.Duration
		for range 100 {
			count++
			value := strconv.Itoa(count)
			start := time.Now()
			require.NoError(t, s.Publish(core, deviceTree+"hall/reported/count", value))
			require.Equal(t, value, <-arrived)
			took = append(took, time.Since(start))
		}
		slices.Sort(took)
		return took[len(took)/2]
	}
	ways := map[string]struct{ begin, end func() }{
		"frozen hub": {
			func() { require.NoError(t, s.Signal("hub", syscall.SIGSTOP)) },
			func() { require.NoError(t, s.Signal("hub", syscall.SIGCONT)) },
		},
		"silent network": {
			func() { s.Node("n1").Net.Cut(faults.Blackhole) },
			func() { s.Node("n1").Net.Heal() },
		},
	}
	median() // warm
	for name, way := range ways {
		t.Run(name, func(t *testing.T) {
			var ratios []float64
			for range 5 {
				healthy := median()
				way.begin()
				hanging := median()
				way.end()
				s.InStep()
				ratios = append(ratios, float64(hanging)/float64(healthy))
			}
			t.Logf("hanging to healthy: %.2f", ratios)
			require.Less(t, slices.Min(ratios), 3.0, "who is held up is so each time")
		})
	}
}
