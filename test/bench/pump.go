// SPDX-License-Identifier: Apache-2.0

//go:build testprogram

package main

import (
	"bufio"
	"encoding/binary"
	"fmt"
	"net"
	"time"
)

// pump is a publisher that costs next to nothing: one connection, one goroutine,
// packets made in place. It keeps a number of QoS 1 publishes in flight, and
// publishes as many more as were acknowledged with one write.
type pump struct {
	conn net.Conn
	in   *bufio.Reader
	out  []byte
	next uint16 // packet id

	retain bool // what is published
}

const pumpTimeout = 30 * time.Second // for any answer

// newPump connects with MQTT 5, whose acknowledgements say whether a publish was taken.
func newPump(addr string) (*pump, error) { return newPumpAs(addr, "") }

// newPumpAs is newPump with a user's name.
func newPumpAs(addr, user string) (*pump, error) {
	id := "pump"
	if user != "" {
		id = user + "/pump" // a node's clients are named after it
	}
	conn, err := dialAs(addr, id, user)
	if err != nil {
		return nil, err
	}
	return &pump{conn: conn, in: bufio.NewReaderSize(conn, 64<<10)}, nil
}

func (p *pump) close() { _ = p.conn.Close() }

func (p *pump) publish(topic string, payload []byte) {
	p.next++
	if p.next == 0 {
		p.next = 1
	}
	first := byte(0x32)
	if p.retain {
		first = 0x33
	}
	p.out = append(p.out, first)
	p.out = binary.AppendUvarint(p.out, uint64(2+len(topic)+2+1+len(payload)))
	p.out = binary.BigEndian.AppendUint16(p.out, uint16(len(topic)))
	p.out = append(p.out, topic...)
	p.out = binary.BigEndian.AppendUint16(p.out, p.next)
	p.out = append(append(p.out, 0), payload...) // no properties
}

func (p *pump) flush() error {
	_, err := p.conn.Write(p.out)
	p.out = p.out[:0]
	return err
}

// acknowledged waits for an acknowledgement, and counts all that came with it.
func (p *pump) acknowledged() (n int, err error) { return p.acknowledgedWithin(pumpTimeout) }

func (p *pump) acknowledgedWithin(most time.Duration) (n int, err error) {
	if err := p.conn.SetReadDeadline(time.Now().Add(most)); err != nil {
		return 0, err
	}
	for n == 0 || p.in.Buffered() > 0 {
		head, err := p.in.Peek(2)
		if err != nil {
			return n, err
		}
		whole, err := p.in.Peek(2 + int(head[1]))
		if err != nil {
			return n, err
		}
		if head[0] != 0x40 || len(whole) > 4 && whole[4] >= 0x80 {
			return n, fmt.Errorf("a publish was answered with %x", whole)
		}
		_, _ = p.in.Discard(len(whole))
		n++
	}
	return n, nil
}

// run publishes for a while, with so many in flight, and returns how many were acknowledged.
func (p *pump) run(d time.Duration, inflight int, message func(i int) (topic string, payload []byte)) (sent int, err error) {
	begin, room, waiting := time.Now(), inflight, 0
	for {
		for ; room > 0 && time.Since(begin) < d; room-- {
			p.publish(message(sent))
			sent++
			waiting++
		}
		if waiting == 0 {
			return sent, nil
		}
		if err := p.flush(); err != nil {
			return sent, err
		}
		n, err := p.acknowledged()
		if err != nil {
			return sent, err
		}
		room += n
		waiting -= n
	}
}
