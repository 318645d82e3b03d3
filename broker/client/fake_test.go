// SPDX-License-Identifier: Apache-2.0

package client

import (
	"bufio"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/eclipse/paho.golang/packets"
	"github.com/stretchr/testify/require"
)

const testTimeout = 30 * time.Second // a busy machine must not fail a test

// fakeBroker is a broker that does what the test's script says, packet by packet: the cases that matter here are the
// ones that a good broker never produces.
type fakeBroker struct {
	t     *testing.T
	l     net.Listener
	conns chan *fakeConn
}

func newFakeBroker(t *testing.T) *fakeBroker {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	b := &fakeBroker{t: t, l: l, conns: make(chan *fakeConn, 16)}
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			b.conns <- &fakeConn{t: t, Conn: c, r: bufio.NewReader(c)}
		}
	})
	t.Cleanup(func() {
		_ = l.Close()
		wg.Wait()
		for {
			select {
			case c := <-b.conns:
				_ = c.Close()
			default:
				return
			}
		}
	})
	return b
}

func (b *fakeBroker) url() string { return "mqtt://" + b.l.Addr().String() }

// accept waits for a client and answers its CONNECT.
func (b *fakeBroker) accept(ack packets.Connack) *fakeConn {
	b.t.Helper()
	select {
	case c := <-b.conns:
		b.t.Cleanup(func() { _ = c.Close() })
		c.connect = c.read().Content.(*packets.Connect)
		if ack.Properties == nil {
			ack.Properties = &packets.Properties{}
		}
		c.send(packets.CONNACK, &ack)
		return c
	case <-time.After(testTimeout):
		require.FailNow(b.t, "no client connected")
		return nil
	}
}

type fakeConn struct {
	net.Conn
	t       *testing.T
	r       *bufio.Reader
	connect *packets.Connect
}

// read returns the next packet that is no PINGREQ.
func (c *fakeConn) read() *packets.ControlPacket {
	c.t.Helper()
	for {
		_ = c.SetReadDeadline(time.Now().Add(testTimeout))
		cp, err := readPacket(c.r, 1<<28)
		require.NoError(c.t, err)
		if cp.Type != packets.PINGREQ {
			return cp
		}
		c.send(packets.PINGRESP, &packets.Pingresp{})
	}
}

func (c *fakeConn) readPublish() *packets.Publish {
	c.t.Helper()
	cp := c.read()
	require.Equal(c.t, packets.PUBLISH, cp.Type, cp.String())
	return cp.Content.(*packets.Publish)
}

// silent checks that nothing comes for a moment.
func (c *fakeConn) silent() {
	c.t.Helper()
	_ = c.SetReadDeadline(time.Now().Add(50 * time.Millisecond))
	b, err := c.r.Peek(1)
	require.Error(c.t, err, "got an unexpected packet: %x", b)
}

func (c *fakeConn) send(kind byte, content packets.Packet) {
	c.t.Helper()
	cp := packets.NewControlPacket(kind)
	cp.Content = content
	_, err := cp.WriteTo(c)
	require.NoError(c.t, err)
}

func (c *fakeConn) puback(id uint16, code byte, reason string) {
	c.send(packets.PUBACK, &packets.Puback{PacketID: id, ReasonCode: code, Properties: &packets.Properties{ReasonString: reason}})
}

// grant answers the next SUBSCRIBE with the given codes, or with success.
func (c *fakeConn) grant(codes ...byte) *packets.Subscribe {
	c.t.Helper()
	cp := c.read()
	require.Equal(c.t, packets.SUBSCRIBE, cp.Type, cp.String())
	s := cp.Content.(*packets.Subscribe)
	if codes == nil {
		codes = make([]byte, len(s.Subscriptions))
	}
	c.send(packets.SUBACK, &packets.Suback{PacketID: s.PacketID, Reasons: codes, Properties: &packets.Properties{}})
	return s
}

func (c *fakeConn) publish(topic, payload string, qos byte, id uint16) {
	c.send(packets.PUBLISH, &packets.Publish{Topic: topic, Payload: []byte(payload), QoS: qos, PacketID: id, Properties: &packets.Properties{}})
}
