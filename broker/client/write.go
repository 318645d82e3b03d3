package client

import (
	"bufio"
	"time"

	"github.com/eclipse/paho.golang/packets"
)

// write is the only goroutine that writes to the connection. It also keeps it alive.
func (l *link) write() {
	w := bufio.NewWriterSize(l.conn, 32<<10)
	tick := time.NewTicker(l.keepAlive / 2)
	defer tick.Stop()
	for {
		batch, written, last := l.next()
		for _, p := range batch {
			if _, err := p.WriteTo(w); err != nil {
				l.fail(err)
				return
			}
		}
		if len(batch) > 0 && !last {
			settle(written)
			continue
		}
		if err := w.Flush(); err != nil {
			l.fail(err)
			return
		}
		settle(written)
		if last {
			l.fail(ErrClosed)
			return
		}
		select {
		case <-l.done:
			return
		case <-l.wake:
		case <-tick.C:
			l.ping()
		}
	}
}

func settle(written []*flight) {
	for _, f := range written {
		f.done(nil)
	}
}

// ping asks for a sign of life when one of the directions was silent since the last tick.
func (l *link) ping() {
	quiet := time.Now().Add(-l.keepAlive / 2).UnixNano()
	if l.conn.lastRead.Load() > quiet && l.conn.lastSent.Load() > quiet {
		return
	}
	l.c.mu.Lock()
	defer l.c.mu.Unlock()
	l.control = append(l.control, packets.NewControlPacket(packets.PINGREQ))
}

// next takes a batch to write: everything of control, then publishes as far as the broker's window goes. written are
// the QoS 0 publishes in it, which have their end with the writing. last says that DISCONNECT is in it.
func (l *link) next() (batch []packet, written []*flight, last bool) {
	c := l.c
	c.mu.Lock()
	defer c.mu.Unlock()
	batch, l.control = l.control, nil
	for len(c.out.queue) > 0 && len(batch) < 256 {
		f := c.out.queue[0]
		if f.m.QoS > 0 && l.quota == 0 {
			break
		}
		if f.m.QoS > 0 && f.id == 0 {
			if f.id = c.out.take(c.idUsed); f.id == 0 {
				break
			}
		}
		c.out.pop()
		batch = append(batch, l.departure(f))
		if f.m.QoS == 0 {
			written = append(written, f)
		}
	}
	if l.leaving && len(batch) == 0 {
		return []packet{&packets.Disconnect{Properties: &packets.Properties{}}}, nil, true
	}
	return batch, written, false
}

func (c *Client) idUsed(id uint16) bool {
	_, used := c.waiting[id]
	return used
}

// departure is the packet with which f goes (on).
func (l *link) departure(f *flight) packet {
	if f.m.QoS > 0 {
		l.quota--
		l.c.out.inflight[f.id] = f
	}
	if f.released {
		return &packets.Pubrel{PacketID: f.id, Properties: &packets.Properties{}}
	}
	return f.m.packet(f.id, f.again)
}
