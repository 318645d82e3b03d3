// SPDX-License-Identifier: Apache-2.0

package session

import (
	"bytes"
	"strconv"
	"testing"
	"time"

	"github.com/mochi-mqtt/server/v2/packets"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/edgebus/edgebus/topics/link"
)

const partsTopic = "v1/nodes/n1/sync/parts"

// partsClient takes parts, over connections that end at any time.
type partsClient struct {
	t       require.TestingT
	s       *Session
	w       *Writer
	memory  string
	most    uint16 // Receive Maximum; 0: it says none
	message link.IncomingParts
	unacked []packets.Packet // in the order of their arrival
	got     map[string][]string
	bytes   int
}

func newPartsClient(t require.TestingT, s *Session) *partsClient {
	c := &partsClient{t: t, s: s, memory: "m", got: make(map[string][]string)}
	c.connect()
	return c
}

func (c *partsClient) connect() {
	c.unacked = nil
	c.w = attachWriter(c.s, ConnParams{Version: 5, ReceiveMaximum: c.most, Parts: PartsParams{Topic: partsTopic, Memory: c.memory}})
}

// read reads all that the session sends without acknowledgements.
func (c *partsClient) read() {
	b := c.s.drain(c.w, nil, writeBytes)
	c.bytes += len(b)
	for _, p := range decodePackets(c.t, b, 5) {
		if p.FixedHeader.Qos > 0 {
			c.unacked = append(c.unacked, p)
		} else {
			c.takePacket(p)
		}
	}
	if c.most > 0 {
		require.LessOrEqual(c.t, len(c.unacked), int(c.most))
	}
}

// acknowledge acknowledges the oldest packets, and takes them.
func (c *partsClient) acknowledge(n int) {
	for ; n > 0 && len(c.unacked) > 0; n-- {
		p := c.unacked[0]
		c.unacked = c.unacked[1:]
		c.takePacket(p)
		require.True(c.t, c.s.Puback(p.PacketID, nil))
	}
}

func (c *partsClient) takePacket(pk packets.Packet) {
	topic, payload := pk.TopicName, pk.Payload
	if topic == partsTopic {
		p, err := link.DecodeMessagePart(payload)
		require.NoError(c.t, err)
		if p.Offset == 0 && c.message.ID != string(p.ID) {
			c.message = link.NewIncomingParts(&p)
		}
		fresh, err := c.message.NewContent(&p)
		require.NoError(c.t, err)
		c.message.Content = append(c.message.Content, fresh...)
		if !p.Last() || fresh == nil {
			return
		}
		topic, payload, c.message.Whole = p.Topic, c.message.Content, true
	}
	c.got[topic] = append(c.got[topic], string(payload))
}

func (c *partsClient) readAll() {
	for c.read(); len(c.unacked) > 0; c.read() {
		c.acknowledge(1)
	}
}

// A message that is large for the line goes in parts; what is small and of another topic goes between them.
func TestNothingSmallWaitsForAMessageInParts(t *testing.T) {
	s := New(testLimits, time.Now, &Counters{})
	c := newPartsClient(t, s)
	large := bytes.Repeat([]byte("large "), 20_000)
	s.Enqueue(newMessage("large", string(large), 1), DeliveryOptions{QoS: 1})
	s.Enqueue(newMessage("large", "behind", 1), DeliveryOptions{QoS: 1})
	s.Enqueue(newMessage("zero", string(large), 0), DeliveryOptions{QoS: 0})
	c.read()
	require.Less(t, c.bytes, 9<<10, "the line is not known")
	s.Enqueue(newMessage("small", "x", 1), DeliveryOptions{QoS: 1})
	c.acknowledge(1)
	c.read()
	c.acknowledge(100)
	require.Equal(t, []string{"x"}, c.got["small"])
	require.Empty(t, c.got["large"])
	c.readAll()
	require.Equal(t, []string{string(large), "behind"}, c.got["large"])
	require.Equal(t, []string{string(large)}, c.got["zero"], "of QoS 0, too")
	require.Less(t, float64(c.bytes), 2.1*float64(len(large)))
	require.Zero(t, s.Queued())
	require.Zero(t, s.backlog.held())
}

// What waits for its turn was not sent: it takes nothing of what the client allows to be sent, or no part would ever be.
func TestMessagesBehindOneInPartsTakeNothingOfTheReceiveMaximum(t *testing.T) {
	for _, most := range []uint16{1, 2, 5} {
		s := New(testLimits, time.Now, &Counters{})
		c := newPartsClient(t, s)
		c.most = most
		large := string(bytes.Repeat([]byte("large "), 20_000))
		want := []string{large}
		s.Enqueue(newMessage("a", large, 1), DeliveryOptions{QoS: 1})
		for n := range 10 {
			want = append(want, strconv.Itoa(n))
			s.Enqueue(newMessage("a", strconv.Itoa(n), 1), DeliveryOptions{QoS: 1})
		}
		c.connect()
		c.read()
		c.acknowledge(1)
		s.Detach(c.w)
		c.connect()
		c.readAll()
		require.Equal(t, want, c.got["a"])
		require.Zero(t, s.Queued())
		require.Zero(t, s.backlog.held())
	}
}

// Properties can't be cut: a message that has no payload goes whole, however large it is.
func TestAMessageIsCutByItsPayload(t *testing.T) {
	s := New(testLimits, time.Now, &Counters{})
	c := newPartsClient(t, s)
	m := newMessage("empty", "", 1)
	m.Props.User = []UserProperty{{Key: "k", Value: string(bytes.Repeat([]byte("v"), 20_000))}}
	s.Enqueue(m, DeliveryOptions{QoS: 1})
	c.readAll()
	require.Equal(t, []string{""}, c.got["empty"])
	require.Zero(t, s.Queued())
}

// A client that acknowledges what waits for its turn ends no other message, and stops nothing.
func TestWhatIsAcknowledgedBeforeItWasSentIsNotSent(t *testing.T) {
	s := New(testLimits, time.Now, &Counters{})
	c := newPartsClient(t, s)
	large := string(bytes.Repeat([]byte("large "), 20_000))
	s.Enqueue(newMessage("a", large, 1), DeliveryOptions{QoS: 1})
	s.Enqueue(newMessage("a", "never sent", 1), DeliveryOptions{QoS: 1})
	s.Enqueue(newMessage("a", "last", 1), DeliveryOptions{QoS: 1})
	c.read()
	for _, x := range s.inflight.inOrder() {
		if string(x.msg.Payload) == "never sent" {
			require.True(t, s.Puback(x.id, nil))
		}
	}
	c.readAll()
	require.Equal(t, []string{large, "last"}, c.got["a"])
	require.Zero(t, s.Queued())
	require.Zero(t, s.backlog.held())
}

// After a cut a message goes on where the client has it, unless the client has forgotten.
func TestAMessageInPartsGoesOnWhereTheClientHasIt(t *testing.T) {
	for _, forgets := range []bool{false, true} {
		s := New(testLimits, time.Now, &Counters{})
		c := newPartsClient(t, s)
		large := bytes.Repeat([]byte("large "), 30_000)
		s.Enqueue(newMessage("large", string(large), 1), DeliveryOptions{QoS: 1})
		for c.bytes < len(large)/2 {
			c.read()
			c.acknowledge(1)
		}
		s.Detach(c.w)
		if forgets {
			c.memory, c.message = "another", link.IncomingParts{}
		}
		before := c.bytes
		c.connect()
		c.readAll()
		require.Equal(t, []string{string(large)}, c.got["large"])
		require.Equal(t, forgets, c.bytes-before > len(large))
		require.Zero(t, s.Queued())
	}
}

// A client that takes none gets messages whole, also after it has taken some.
func TestPartsEndWithTheConnectionThatTookThem(t *testing.T) {
	s := New(testLimits, time.Now, &Counters{})
	c := newPartsClient(t, s)
	large := string(bytes.Repeat([]byte("large "), 20_000))
	s.Enqueue(newMessage("large", large, 1), DeliveryOptions{QoS: 1})
	c.read()
	c.acknowledge(1)
	w := attachWriter(s, ConnParams{Version: 5})
	whole := decodePackets(t, s.drain(w, nil, writeBytes), 5)
	require.Len(t, whole, 1)
	require.Equal(t, large, string(whole[0].Payload))
	s.Puback(whole[0].PacketID, nil)
	require.Zero(t, s.Queued())
	require.Zero(t, s.backlog.held())
}

// Whatever the sizes, and wherever connections end: all of QoS 1 arrives, in the order of its topic, and little comes twice.
func TestPartsArriveOverConnectionsThatEndAnywhere(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := New(Limits{Bytes: 32 << 20, Inflight: 100}, time.Now, &Counters{})
		c := newPartsClient(t, s)
		c.most = rapid.SampledFrom([]uint16{0, 1, 3, 20}).Draw(t, "receive maximum")
		c.connect()
		want := make(map[string][]string)
		number := 0
		t.Repeat(map[string]func(*rapid.T){
			"publish": func(t *rapid.T) {
				topic := rapid.SampledFrom([]string{"a", "b", "c"}).Draw(t, "topic")
				size := rapid.SampledFrom([]int{10, 5000, 9000, 50_000, 200_000}).Draw(t, "size")
				number++
				payload := strconv.Itoa(number) + string(bytes.Repeat([]byte("x"), size))
				want[topic] = append(want[topic], payload)
				s.Enqueue(newMessage(topic, payload, 1), DeliveryOptions{QoS: 1})
			},
			"read":        func(*rapid.T) { c.read() },
			"acknowledge": func(t *rapid.T) { c.acknowledge(rapid.IntRange(1, 5).Draw(t, "n")) },
			"cut": func(t *rapid.T) {
				s.Detach(c.w)
				if rapid.IntRange(0, 3).Draw(t, "forgets") == 0 {
					c.memory, c.message = c.memory+"x", link.IncomingParts{}
				}
				c.connect()
			},
		})
		c.readAll()
		for topic := range want {
			require.Equal(t, want[topic], distinctPayloads(c.got[topic]))
		}
		require.Zero(t, s.Queued())
		require.Zero(t, s.backlog.held())
	})
}

// distinctPayloads leaves out what came again.
func distinctPayloads(all []string) (out []string) {
	seen := make(map[string]bool)
	for _, one := range all {
		if !seen[one] {
			out = append(out, one)
		}
		seen[one] = true
	}
	return out
}
