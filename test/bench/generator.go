// SPDX-License-Identifier: Apache-2.0

//go:build testprogram

package main

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"time"
)

const (
	payloadSize    = 256
	messageTimeout = 3 * time.Second // for the next message, on a busy machine
)

// traffic is one way of using a broker.
type traffic struct {
	name        string
	publishers  int
	subscribers int // of each publisher's topic
	oneTopic    bool
	idle        int
	qos         byte
	window      int           // QoS 1: publishes of one client that are unacknowledged; QoS 0: at once
	every       time.Duration // between two publishes; 0: as fast as they are acknowledged, or taken
	aim         float64       // how many times mosquitto's figure
}

// generator puts a broker under one kind of traffic and counts what comes out. It writes batches of encoded packets,
// and all its work is done by one core.
type generator struct {
	traffic
	began    time.Time
	stopping atomic.Bool
	sent     atomic.Int64
	acked    atomic.Int64
	received atomic.Int64
	conns    []net.Conn

	mu    sync.Mutex
	waits []time.Duration // from publish to arrival, while sampling
	fault error

	sampling atomic.Bool
	pumps    sync.WaitGroup
	readers  sync.WaitGroup
}

// startGenerator connects all clients and begins to publish.
func startGenerator(addr string, t traffic) (*generator, error) {
	g := &generator{traffic: t, began: time.Now()}
	var err error
	if g.conns, err = connectIdle(addr, t.idle); err != nil {
		return g, err
	}
	topics := t.publishers
	if t.oneTopic {
		topics = 1
	}
	for i := range topics {
		for j := range t.subscribers {
			if err := g.subscriber(addr, fmt.Sprintf("sub-%d-%d", i, j), publisherTopic(i)); err != nil {
				return g, err
			}
		}
	}
	for i := range t.publishers {
		if err := g.publisher(addr, uint32(i), publisherTopic(i%topics)); err != nil {
			return g, err
		}
	}
	return g, nil
}

func publisherTopic(i int) string { return fmt.Sprintf("plant/hall/%d/temperature", i) }

// stop ends publishing, waits until what was sent has arrived or nothing more comes, and closes.
func (g *generator) stop() {
	g.stopping.Store(true)
	g.pumps.Wait()
	last, since := g.progress(), time.Now()
	for g.progress() < g.due() && time.Since(since) < messageTimeout {
		time.Sleep(10 * time.Millisecond)
		if now := g.progress(); now != last {
			last, since = now, time.Now()
		}
	}
	closeAll(g.conns)
	g.readers.Wait()
	if g.qos > 0 && g.progress() < g.due() {
		g.fail(fmt.Errorf("of %d messages %d were acknowledged and %d arrived", g.sent.Load(), g.acked.Load(), g.received.Load()))
	}
}

func (g *generator) progress() int64 { return g.received.Load() + g.acked.Load() }

// due is how many messages, and acknowledgements, all that was sent makes.
func (g *generator) due() int64 { return g.sent.Load() * int64(g.subscribers+int(g.qos)) }

func (g *generator) fail(err error) {
	if err == nil || errors.Is(err, net.ErrClosed) {
		return
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.fault == nil {
		g.fault = err
	}
}

// subscriber reads, checks the order, and acknowledges what arrived together in one write.
func (g *generator) subscriber(addr, id, filter string) error {
	c, err := dialClient(addr, id)
	if err != nil {
		return err
	}
	g.conns = append(g.conns, c)
	if err := subscribeClient(c, filter, g.qos); err != nil {
		return err
	}
	g.readers.Go(func() {
		next := make([]uint32, g.publishers)
		var acks []byte
		g.fail(readPackets(c, func(first byte, body []byte) error {
			if first>>4 != 3 {
				return fmt.Errorf("a packet of type %d", first>>4)
			}
			if g.qos == 1 {
				at := 2 + int(binary.BigEndian.Uint16(body))
				acks = append(acks, 0x40, 2, body[at], body[at+1])
			}
			return g.arrived(body[len(body)-payloadSize:], next)
		}, func(n int) error {
			g.received.Add(int64(n))
			if len(acks) == 0 {
				return nil
			}
			_, err := c.Write(acks)
			acks = acks[:0]
			return err
		}))
	})
	return nil
}

// arrived checks a message's place in its publisher's order: at QoS 1 none is missing.
func (g *generator) arrived(payload []byte, next []uint32) error {
	from, seq := binary.LittleEndian.Uint32(payload), binary.LittleEndian.Uint32(payload[4:])
	switch {
	case seq < next[from], seq > next[from] && g.qos > 0:
		return fmt.Errorf("message %d of publisher %d arrived where %d was due", seq, from, next[from])
	case g.sampling.Load():
		wait := time.Since(g.began) - time.Duration(binary.LittleEndian.Uint64(payload[8:]))
		g.mu.Lock()
		g.waits = append(g.waits, wait)
		g.mu.Unlock()
	}
	next[from] = seq + 1
	return nil
}

// publisher sends a window of messages, and then one for each that is acknowledged; or, at QoS 0 or with a pace,
// whatever is acknowledged.
func (g *generator) publisher(addr string, number uint32, topic string) error {
	c, err := dialClient(addr, fmt.Sprintf("pub-%d", number))
	if err != nil {
		return err
	}
	g.conns = append(g.conns, c)
	b := newPacketRing(topic, number, g.qos, g.window)
	windowed := g.qos == 1 && g.every == 0
	if g.qos == 1 {
		g.readers.Go(func() { g.fail(g.acknowledged(c, b, windowed)) })
	}
	if windowed {
		return g.publish(c, b, g.window)
	}
	g.pumps.Go(func() { g.fail(g.pump(c, b)) })
	return nil
}

func (g *generator) publish(c net.Conn, b *packetRing, n int) error {
	g.sent.Add(int64(n))
	return b.write(c, n, uint64(time.Since(g.began)))
}

// pump publishes until the generator stops.
func (g *generator) pump(c net.Conn, b *packetRing) error {
	for due := time.Now(); !g.stopping.Load(); {
		n := g.window
		if g.every > 0 {
			time.Sleep(time.Until(due))
			n, due = 1, due.Add(g.every)
		}
		if err := g.publish(c, b, n); err != nil {
			return err
		}
	}
	return nil
}

// acknowledged sees that acknowledgements come in order, and publishes in the places that they leave.
func (g *generator) acknowledged(c net.Conn, b *packetRing, publish bool) error {
	next := uint16(1)
	return readPackets(c, func(first byte, body []byte) error {
		if id := binary.BigEndian.Uint16(body); first != 0x40 || id != next || len(body) > 2 && body[2] >= 0x80 {
			return fmt.Errorf("packet %x % x where the PUBACK of %d was due", first, body, next)
		}
		if next++; int(next) > g.window {
			next = 1
		}
		return nil
	}, func(n int) error {
		g.acked.Add(int64(n))
		if !publish || g.stopping.Load() {
			return nil
		}
		return g.publish(c, b, n)
	})
}

// packetRing is a ring of encoded PUBLISH packets whose numbers are filled in as they are sent.
type packetRing struct {
	packets []byte
	size    int // of one packet
	payload int // in it
	next    int // the one to be sent next
	seq     uint32
}

func newPacketRing(topic string, number uint32, qos byte, window int) *packetRing {
	b := &packetRing{}
	for i := range window {
		body := appendText(nil, topic)
		if qos > 0 {
			body = binary.BigEndian.AppendUint16(body, uint16(i+1))
		}
		body = append(body, 0) // no properties
		body = append(body, make([]byte, payloadSize)...)
		p := encodePacket(0x30|qos<<1, body)
		b.size, b.payload = len(p), len(p)-payloadSize
		binary.LittleEndian.PutUint32(p[b.payload:], number)
		b.packets = append(b.packets, p...)
	}
	return b
}

// write sends the next n packets, with as few calls as the ring allows.
func (b *packetRing) write(c net.Conn, n int, now uint64) error {
	for n > 0 {
		from, k := b.next*b.size, min(n, len(b.packets)/b.size-b.next)
		part := b.packets[from : from+k*b.size]
		for at := b.payload; at < len(part); at += b.size {
			binary.LittleEndian.PutUint32(part[at+4:], b.seq)
			binary.LittleEndian.PutUint64(part[at+8:], now)
			b.seq++
		}
		if _, err := c.Write(part); err != nil {
			return err
		}
		n -= k
		if b.next += k; b.next*b.size == len(b.packets) {
			b.next = 0
		}
	}
	return nil
}

// readPackets calls each with every packet that arrives: its first byte, and what follows the length; and flush with
// their number once all that was there is read. It returns nil when the connection was closed from this side.
func readPackets(c net.Conn, each func(first byte, body []byte) error, flush func(n int) error) error {
	buf, filled := make([]byte, 256<<10), 0
	for {
		n, err := c.Read(buf[filled:])
		if err != nil {
			if errors.Is(err, net.ErrClosed) || errors.Is(err, os.ErrDeadlineExceeded) {
				return nil
			}
			return err
		}
		filled += n
		at, count := 0, 0
		for {
			length, used := binary.Uvarint(buf[at+min(1, filled-at) : filled])
			end := at + 1 + used + int(length)
			if used <= 0 || end > filled {
				break
			}
			if err := each(buf[at], buf[at+1+used:end]); err != nil {
				return err
			}
			at, count = end, count+1
		}
		filled = copy(buf, buf[at:filled])
		if err := flush(count); err != nil {
			return err
		}
	}
}
