// SPDX-License-Identifier: Apache-2.0

package flood

import (
	"bufio"
	"context"
	"crypto/rand"
	"encoding/binary"
	"io"
	"net"
	"time"

	"github.com/edgebus/edgebus/topics/backoff"
)

// A flood speaks MQTT by itself: a client library has manners.

const longPause = 10 * time.Millisecond // before another connection, when one could not be made

// peer is a connection that may break any rule.
type peer struct {
	net.Conn
	r *bufio.Reader
}

// dialPeer connects, and ends the connection with ctx.
func dialPeer(ctx context.Context, addr string) (*peer, error) { return dialFrom(ctx, "", addr) }

// dialFrom is dial from an address of this host; empty: any.
func dialFrom(ctx context.Context, from, addr string) (*peer, error) {
	var d net.Dialer
	if from != "" {
		d.LocalAddr = &net.TCPAddr{IP: net.ParseIP(from)}
	}
	conn, err := d.DialContext(ctx, "tcp", addr)
	if err != nil {
		backoff.Sleep(ctx, longPause)
		return nil, err
	}
	context.AfterFunc(ctx, func() { _ = conn.Close() })
	return &peer{conn, bufio.NewReader(conn)}, nil
}

// connectPeer connects a client and waits for its CONNACK.
func connectPeer(ctx context.Context, addr string, c connectOptions) (*peer, error) {
	p, err := dialFrom(ctx, c.from, addr)
	if err != nil {
		return nil, err
	}
	_, err = p.Write(c.connect())
	if err == nil {
		_, err = p.answer()
	}
	if err != nil {
		_ = p.Close()
		return nil, err
	}
	return p, nil
}

// answer reads a packet.
func (p *peer) answer() ([]byte, error) {
	first, err := p.r.ReadByte()
	if err != nil {
		return nil, err
	}
	n, err := binary.ReadUvarint(p.r)
	if err != nil {
		return nil, err
	}
	body := make([]byte, n)
	_, err = io.ReadFull(p.r, body)
	return append([]byte{first}, body...), err
}

// ignore reads whatever comes and forgets it.
func (p *peer) ignore() { _, _ = io.Copy(io.Discard, p.r) }

// connectOptions is what a CONNECT says.
type connectOptions struct {
	id, user, password string
	keep               uint32 // seconds that the session outlives the connection
	from               string // the address that it connects from; empty: any
}

func (c connectOptions) connect() []byte {
	flags := byte(2) // clean start
	if c.user != "" {
		flags |= 0xC0
	}
	if c.id == "" {
		c.id = "flood-" + rand.Text()[:10]
	}
	body := append(appendText(nil, "MQTT"), 5, flags, 0, 0) // no keep-alive
	body = append(body, 5, 17)
	body = binary.BigEndian.AppendUint32(body, c.keep)
	body = appendText(body, c.id)
	if c.user != "" {
		body = appendText(appendText(body, c.user), c.password)
	}
	return encodePacket(0x10, body)
}

func encodePublish(topic string, first byte, id uint16, payload []byte) []byte {
	body := appendText(nil, topic)
	if first&6 != 0 {
		body = binary.BigEndian.AppendUint16(body, id)
	}
	return encodePacket(0x30|first, append(append(body, 0), payload...))
}

func encodeSubscribe(filters ...string) []byte { return encodeSubscribeQoS(1, filters...) }

func encodeSubscribeQoS(qos byte, filters ...string) []byte {
	body := []byte{0, 1, 0}
	for _, f := range filters {
		body = append(appendText(body, f), qos)
	}
	return encodePacket(0x82, body)
}

func encodeUnsubscribe(filters ...string) []byte {
	body := []byte{0, 1, 0}
	for _, f := range filters {
		body = appendText(body, f)
	}
	return encodePacket(0xA2, body)
}

func encodePacket(first byte, body []byte) []byte {
	return append(binary.AppendUvarint([]byte{first}, uint64(len(body))), body...)
}

func appendText(b []byte, s string) []byte {
	return append(binary.BigEndian.AppendUint16(b, uint16(len(s))), s...)
}
