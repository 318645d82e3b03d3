// SPDX-License-Identifier: Apache-2.0

package session

import (
	"bytes"
	"errors"
	"strconv"
	"testing"
	"time"

	"github.com/mochi-mqtt/server/v2/packets"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/edgebus/edgebus/broker/journal"
)

var testLimits = Limits{Bytes: 1 << 20, Inflight: 100}

func newMessage(topic, payload string, qos byte) *Message {
	return &Message{Topic: topic, Payload: []byte(payload), QoS: qos}
}

// discardConn is a connection that is never written to: tests drain by hand.
type discardConn struct{}

func (discardConn) Write(b []byte) (int, error)      { return len(b), nil }
func (discardConn) SetWriteDeadline(time.Time) error { return nil }
func (discardConn) Close() error                     { return nil }

func attachWriter(s *Session, p ConnParams) *Writer {
	w := NewWriter(discardConn{}, time.Minute)
	s.Attach(w, p)
	return w
}

// decodePackets takes apart what a client would receive.
func decodePackets(t require.TestingT, b []byte, version byte) (out []packets.Packet) {
	for len(b) > 0 {
		pk := packets.Packet{ProtocolVersion: version}
		require.NoError(t, pk.FixedHeader.Decode(b[0]))
		r := bytes.NewReader(b[1:])
		n, used, err := packets.DecodeLength(r)
		require.NoError(t, err)
		pk.FixedHeader.Remaining = n
		body := b[1+used : 1+used+n]
		b = b[1+used+n:]
		if pk.FixedHeader.Type == packets.Publish {
			err = pk.PublishDecode(body)
		} else {
			err = pk.PubackDecode(body)
		}
		require.NoError(t, err)
		out = append(out, pk)
	}
	return out
}

func payloadsOf(pks []packets.Packet) (out []string) {
	for _, pk := range pks {
		out = append(out, string(pk.Payload))
	}
	return out
}

func TestResendsInOrderAndOnlyWhatWasSentIsDup(t *testing.T) {
	var count Counters
	s := New(testLimits, time.Now, &count)
	w := attachWriter(s, ConnParams{Version: 5, ReceiveMaximum: 3})
	for i := range 6 {
		s.Enqueue(newMessage("a", strconv.Itoa(i), 1), DeliveryOptions{QoS: 1})
	}
	first := decodePackets(t, s.drain(w, nil, writeBytes), 5)
	require.Equal(t, []string{"0", "1", "2"}, payloadsOf(first))
	s.Puback(first[1].PacketID, nil)
	require.Equal(t, []string{"3"}, payloadsOf(decodePackets(t, s.drain(w, nil, writeBytes), 5)))

	w2 := attachWriter(s, ConnParams{Version: 5, ReceiveMaximum: 2})
	require.Empty(t, s.drain(w, nil, writeBytes), "the old writer has nothing to say any more")
	again := decodePackets(t, s.drain(w2, nil, writeBytes), 5)
	require.Equal(t, []string{"0", "2"}, payloadsOf(again))
	s.Puback(again[0].PacketID, nil)
	s.Puback(again[1].PacketID, nil)
	rest := decodePackets(t, s.drain(w2, nil, writeBytes), 5)
	require.Equal(t, []string{"3", "4"}, payloadsOf(rest))
	require.True(t, rest[0].FixedHeader.Dup)
	require.False(t, rest[1].FixedHeader.Dup)
}

func TestLateAcknowledgementOfAnEarlierConnection(t *testing.T) {
	var count Counters
	s := New(testLimits, time.Now, &count)
	w := attachWriter(s, ConnParams{Version: 4})
	s.Enqueue(newMessage("a", "x", 2), DeliveryOptions{QoS: 2})
	id := decodePackets(t, s.drain(w, nil, writeBytes), 4)[0].PacketID
	w = attachWriter(s, ConnParams{Version: 4})
	answer, ok := s.Pubrec(id, 0)
	require.True(t, ok)
	require.Equal(t, Ack{Type: 6, ID: id}, answer)
	require.Empty(t, s.drain(w, nil, writeBytes))
	s.Pubcomp(id)
	require.Zero(t, s.Queued())
	require.Zero(t, s.Queued())
}

func TestPubrecOfNothing(t *testing.T) {
	s := New(testLimits, time.Now, &Counters{})
	answer, ok := s.Pubrec(5, 0)
	require.True(t, ok)
	require.Equal(t, byte(0x92), answer.Code)
	_, ok = s.Pubrec(5, 0x80)
	require.False(t, ok)
	s.Puback(5, nil)
	s.Pubcomp(5)
}

func TestPacketIDsAreNeverReusedWhileOpen(t *testing.T) {
	f := newInflight(nil)
	f.window = 100_000
	for range 65535 {
		f.add(newDelivery(&Message{}, DeliveryOptions{QoS: 1}))
	}
	require.Len(t, f.byID, 65535)
	require.True(t, f.full())
	f.remove(f.byID[77])
	require.Equal(t, uint16(77), f.add(newDelivery(&Message{}, DeliveryOptions{QoS: 1})).id)
	require.NotContains(t, f.byID, uint16(0))
}

func TestEndedSessionOwesNothing(t *testing.T) {
	var count Counters
	s := New(testLimits, time.Now, &count)
	s.Enqueue(newMessage("a", "x", 1), DeliveryOptions{QoS: 1})
	s.End()
	s.End()
	s.Enqueue(newMessage("a", "x", 1), DeliveryOptions{QoS: 1})
	require.Zero(t, s.Queued())
	require.Equal(t, int64(1), count.Dropped()["session_ended"])
}

// emptyLog is a log that nothing is read from.
type emptyLog struct{ last uint64 }

func (f *emptyLog) ID() uint64                                 { f.last++; return f.last }
func (f *emptyLog) Commit([]journal.RecordChange, func(error)) {}
func (f *emptyLog) Forget(...uint64)                           {}
func (f *emptyLog) Read([]uint64, func(int, []byte) error) error {
	return nil
}

// A client that acknowledges nothing and comes again and again makes no queue grow
// beyond what is in it, and a message that can't be stored is still found.
func TestConnectionsLeaveNoGapsInAQueue(t *testing.T) {
	l := testLimits
	l.Inflight = 1
	s := New(l, time.Now, &Counters{})
	s.MakeDurable(1, &emptyLog{})
	var last UncommittedDelivery
	for range 50 {
		w := attachWriter(s, ConnParams{Version: 5})
		for range 500 {
			s.Enqueue(newMessage("zero", "x", 0), DeliveryOptions{})
		}
		last, _ = s.EnqueueDurable(newMessage("one", "x", 1), DeliveryOptions{QoS: 1})
		s.drain(w, nil, writeBytes)
		s.Detach(w)
	}
	require.Equal(t, 50, s.Queued())
	require.Equal(t, s.backlog.queue.live, s.backlog.queue.length)
	last.Committed(errors.New("no space left on device"))
	require.Equal(t, 49, s.Queued())
}

// While the disk is full every publish is taken back, also out of the queue of a session
// to which nobody comes for days.
func TestWhatIsTakenBackLeavesNoGaps(t *testing.T) {
	for _, atOnce := range []int{1, 500} {
		s := New(testLimits, time.Now, &Counters{})
		s.MakeDurable(1, &emptyLog{})
		first, _ := s.EnqueueDurable(newMessage("a", "kept", 1), DeliveryOptions{QoS: 1})
		first.Committed(nil)
		offers := make([]UncommittedDelivery, atOnce)
		for range 100_000 / atOnce {
			for i := range offers {
				offers[i], _ = s.EnqueueDurable(newMessage("a", "x", 1), DeliveryOptions{QoS: 1})
			}
			for _, o := range offers {
				o.Committed(errors.New("no space left on device"))
			}
		}
		require.Equal(t, 1, s.Queued())
		require.Equal(t, 1, s.backlog.queue.length)
		require.LessOrEqual(t, len(s.backlog.queue.blocks), 2048/queueBlockLen)
		require.Equal(t, []string{"kept"}, payloadsOf(decodePackets(t, s.drain(attachWriter(s, ConnParams{Version: 5}), nil, writeBytes), 5)))
	}
}

func TestUnsubscribingStopsAPull(t *testing.T) {
	s := New(testLimits, time.Now, &Counters{})
	w := attachWriter(s, ConnParams{Version: 5})
	s.OweRetained("a/#", 0, DeliveryOptions{})
	s.StartReplay("a/#", func(int) []*Message { s.CancelReplay("a/#"); return []*Message{newMessage("a", "x", 0)} })
	require.True(t, s.fetchRetained(w))
	require.Empty(t, s.drain(w, nil, writeBytes))
	require.False(t, s.fetchRetained(w))
}

// The encoder says what the protocol library's decoder reads, and its sizes are exact.
func TestEncodingIsReadBack(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		version := rapid.SampledFrom([]byte{4, 5}).Draw(rt, "version")
		text := rapid.StringMatching(`[a-z/é]{0,200}`)
		now := time.Now()
		m := &Message{Topic: "t" + text.Draw(rt, "topic"), Payload: rapid.SliceOfN(rapid.Byte(), 0, 300).Draw(rt, "payload")}
		m.Props = Properties{
			ContentType: text.Draw(rt, "type"), ResponseTopic: text.Draw(rt, "response"),
			Correlation: rapid.SliceOfN(rapid.Byte(), 0, 20).Draw(rt, "correlation"),
			Expiry:      rapid.Uint32().Draw(rt, "expiry"),
		}
		if rapid.Bool().Draw(rt, "format") {
			m.Props.PayloadFormat = new(byte)
		}
		for range rapid.IntRange(0, 3).Draw(rt, "user") {
			m.Props.User = append(m.Props.User, UserProperty{text.Draw(rt, "key"), text.Draw(rt, "value")})
		}
		m.Stamp(now)
		p := outboundPacket{id: 3, dup: rapid.Bool().Draw(rt, "dup"), delivery: delivery{
			msg: m, qos: 1, retain: rapid.Bool().Draw(rt, "retain"),
			ids: rapid.SliceOfN(rapid.Uint32Range(1, 268435455), 0, 3).Draw(rt, "ids"),
		}}
		b := p.append(nil, version, now)
		_, _, size := p.sizes(version)
		require.Len(rt, b, size)
		got := decodePackets(rt, b, version)[0]
		require.Equal(rt, m.Topic, got.TopicName)
		require.Equal(rt, string(m.Payload), string(got.Payload))
		require.Equal(rt, p.dup, got.FixedHeader.Dup)
		require.Equal(rt, p.retain, got.FixedHeader.Retain)
		if version < 5 {
			return
		}
		require.Equal(rt, m.Props.Expiry, got.Properties.MessageExpiryInterval)
		require.Equal(rt, m.Props.ContentType, got.Properties.ContentType)
		require.Equal(rt, m.Props.ResponseTopic, got.Properties.ResponseTopic)
		require.Equal(rt, string(m.Props.Correlation), string(got.Properties.CorrelationData))
		require.Len(rt, got.Properties.User, len(m.Props.User))
		require.Len(rt, got.Properties.SubscriptionIdentifier, len(p.ids))
	})
}

// A session against the simplest thing that could be right: whatever the client
// acknowledges and however often it comes back, every QoS 1 message arrives, for
// the first time in order, and no more are open than the client allows.
func TestEverythingArrives(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		var count Counters
		s := New(testLimits, time.Now, &count)
		window := uint16(rapid.IntRange(1, 8).Draw(rt, "window"))
		w := attachWriter(s, ConnParams{Version: 5, ReceiveMaximum: window})
		var open []uint16
		seen, sent := make(map[string]bool), make(map[string]bool)
		next, expected := 0, 0
		drain := func() {
			for _, pk := range decodePackets(rt, s.drain(w, nil, rapid.IntRange(1, 400).Draw(rt, "batch")), 5) {
				require.Equal(rt, sent[string(pk.Payload)], pk.FixedHeader.Dup)
				if sent[string(pk.Payload)] = true; !seen[string(pk.Payload)] {
					require.Equal(rt, strconv.Itoa(expected), string(pk.Payload))
					seen[string(pk.Payload)] = true
					expected++
				}
				open = append(open, pk.PacketID)
			}
			require.LessOrEqual(rt, len(open), int(window))
		}
		rt.Repeat(map[string]func(*rapid.T){
			"enqueue": func(rt *rapid.T) {
				for range rapid.IntRange(1, 10).Draw(rt, "n") {
					if s.Queued() < 1000 {
						s.Enqueue(newMessage("a", strconv.Itoa(next), 1), DeliveryOptions{QoS: 1})
						next++
					}
				}
			},
			"drain": func(*rapid.T) { drain() },
			"ack": func(rt *rapid.T) {
				if len(open) > 0 {
					i := rapid.IntRange(0, len(open)-1).Draw(rt, "which")
					s.Puback(open[i], nil)
					open = append(open[:i], open[i+1:]...)
				}
			},
			"reconnect": func(rt *rapid.T) {
				s.Detach(w)
				window = uint16(rapid.IntRange(1, 8).Draw(rt, "window"))
				w, open = attachWriter(s, ConnParams{Version: 5, ReceiveMaximum: window}), nil
			},
		})
		for s.Queued() > 0 {
			drain()
			for _, id := range open {
				s.Puback(id, nil)
			}
			open = nil
		}
		require.Equal(rt, next, expected)
	})
}

func TestQueueAgainstASlice(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		q := queue{}
		var model []string
		zero, records := make(map[string]bool), make(map[string]*deliveryRecord)
		n := 0
		rt.Repeat(map[string]func(*rapid.T){
			"push": func(rt *rapid.T) {
				qos := byte(rapid.IntRange(0, 1).Draw(rt, "qos"))
				for range rapid.IntRange(1, 2*queueBlockLen).Draw(rt, "number") {
					name := strconv.Itoa(n)
					n++
					zero[name] = qos == 0
					it := delivery{msg: newMessage("a", name, qos), qos: qos, weight: 1}
					if qos > 0 {
						it.record = &deliveryRecord{position: q.end()}
						records[name] = it.record
					}
					q.push(it)
					model = append(model, name)
				}
			},
			"pop": func(rt *rapid.T) {
				for range rapid.IntRange(1, 2*queueBlockLen).Draw(rt, "number") {
					it, ok := q.front()
					require.Equal(rt, len(model) > 0, ok)
					if !ok {
						return
					}
					require.Equal(rt, model[0], string(it.msg.Payload))
					q.pop()
					model = model[1:]
				}
			},
			"evict": func(rt *rapid.T) {
				for i, name := range model {
					if zero[name] {
						require.NotNil(rt, q.evictQoS0())
						model = append(model[:i:i], model[i+1:]...)
						return
					}
				}
				require.Nil(rt, q.evictQoS0())
			},
			"take back": func(rt *rapid.T) {
				if len(model) == 0 {
					return
				}
				i := rapid.IntRange(0, len(model)-1).Draw(rt, "which")
				if x := records[model[i]]; x != nil {
					q.evict(x.position)
					model = append(model[:i:i], model[i+1:]...)
					require.LessOrEqual(rt, q.length, 2*q.live+maxGaps)
				}
			},
			"": func(rt *rapid.T) {
				require.Equal(rt, len(model), q.live)
				if q.live == 0 {
					require.Zero(rt, q.bytes)
				}
			},
		})
	})
}

func TestAckEncoding(t *testing.T) {
	for _, a := range []Ack{{4, 7, 0, ""}, {5, 7, 0x10, ""}, {6, 7, 0x92, ""}, {7, 7, 0, ""}, {4, 7, 0x87, "no"}, {5, 300, 0x99, string(bytes.Repeat([]byte("x"), 200))}} {
		got := decodePackets(t, a.Append(nil, 5), 5)[0]
		require.Equal(t, a, Ack{got.FixedHeader.Type, got.PacketID, got.ReasonCode, got.Properties.ReasonString})
		require.Len(t, a.Append(nil, 4), 4)
	}
}

// stuckConn is a connection whose peer doesn't read.
type stuckConn struct {
	deadline chan time.Time
	closed   chan struct{}
}

func (s stuckConn) Write([]byte) (int, error) {
	for d := range s.deadline {
		if time.Until(d) < closeGrace+time.Second {
			return 0, bytes.ErrTooLarge
		}
	}
	return 0, nil
}
func (s stuckConn) SetWriteDeadline(t time.Time) error { s.deadline <- t; return nil }
func (s stuckConn) Close() error                       { close(s.closed); return nil }

func TestClosingAStuckWriterIsBounded(t *testing.T) {
	conn := stuckConn{make(chan time.Time, 8), make(chan struct{})}
	w := NewWriter(conn, time.Hour)
	w.Control([]byte("x"), nil)
	full := make(chan bool)
	w.Control(make([]byte, maxUnwrittenControl+1), nil)
	w.Control(make([]byte, maxUnwrittenControl+1), nil)
	go func() { full <- w.WaitForRoom() }()
	w.Close()
	require.False(t, <-full)
	<-w.Done()
	<-conn.closed
}

// What a message costs between the router and the buffer for the socket, and back with its acknowledgement.
func BenchmarkSession(b *testing.B) {
	const messages = 50
	for qos := range byte(2) {
		b.Run("qos"+strconv.Itoa(int(qos)), func(b *testing.B) {
			s := New(testLimits, time.Now, &Counters{})
			w := attachWriter(s, ConnParams{Version: 5})
			m := newMessage("v1/nodes/n/devices/d/reported/p", "0123456789012345678901234567890123456789", qos)
			var packets []byte
			id := uint16(0)
			b.ReportAllocs()
			for b.Loop() {
				for range messages {
					s.Enqueue(m, DeliveryOptions{QoS: qos})
				}
				packets = s.drain(w, packets[:0], 1<<20)
				for range messages * int(qos) {
					if id++; id == 0 {
						id++
					}
					s.Puback(id, nil)
				}
			}
		})
	}
}

// How many messages may be sent before they are on disk is bounded, and after a restart one has to be there first: of the others a
// crash leaves nothing that would say which packet ids they had.
func TestFewMessagesAreSentBeforeTheyAreOnDisk(t *testing.T) {
	l := testLimits
	l.Inflight, l.Bytes = 5000, 1<<24
	sent := func(s *Session, w *Writer) (n int) {
		for packets := decodePackets(t, s.drain(w, nil, writeBytes), 5); len(packets) > 0; packets = decodePackets(t, s.drain(w, nil, writeBytes), 5) {
			n += len(packets)
		}
		return n
	}
	s := New(l, time.Now, &Counters{})
	s.MakeDurable(1, &emptyLog{})
	w := attachWriter(s, ConnParams{Version: 5, ReceiveMaximum: 5000})
	var waiting []UncommittedDelivery
	for range 3000 {
		p, _ := s.EnqueueDurable(newMessage("a", "x", 1), DeliveryOptions{QoS: 1})
		waiting = append(waiting, p)
	}
	require.Equal(t, maxUnstored, sent(s, w))
	waiting[0].Committed(nil)
	require.Equal(t, 1, sent(s, w))
	waiting[900].Committed(nil)
	require.Equal(t, 900, sent(s, w))

	again := New(l, time.Now, &Counters{})
	again.MakeDurable(1, &emptyLog{})
	_, err := NewRecordLoader(time.Now()).Restore(again)
	require.NoError(t, err)
	w = attachWriter(again, ConnParams{Version: 5, ReceiveMaximum: 5000})
	first, _ := again.EnqueueDurable(newMessage("a", "x", 1), DeliveryOptions{QoS: 1})
	again.EnqueueDurable(newMessage("a", "x", 1), DeliveryOptions{QoS: 1})
	require.Zero(t, sent(again, w))
	first.Committed(nil)
	require.Equal(t, 2, sent(again, w))
}
