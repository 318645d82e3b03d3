package broker

import (
	"net"
	"strings"
	"testing"
	"time"

	"github.com/mochi-mqtt/server/v2/packets"
	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"

	"github.com/edgebus/edgebus/topics"
)

// malformed are packets that follow a good CONNECT.
var malformed = map[string][]byte{
	"subscribe without options":  {0x82, 6, 0, 1, 0, 0, 1, 'a'},
	"subscribe without a filter": {0x82, 3, 0, 1, 0},
	"subscribe cut short":        {0x82, 5, 0, 1, 0, 0, 9},
	"publish cut short":          {0x30, 3, 0, 9, 'a'},
	"publish with QoS 3":         {0x36, 5, 0, 1, 'a', 0, 1},
	"publish without an id":      {0x32, 6, 0, 1, 'a', 0, 0, 0},
	"publish without a topic":    {0x30, 3, 0, 0, 0},
	"bad property":               {0x30, 6, 0, 1, 'a', 2, 0x7F, 0},
	"property length too large":  {0x30, 5, 0, 1, 'a', 9, 1},
	"response topic wildcard":    {0x30, 10, 0, 1, 'a', 4, 0x08, 0, 1, '#', 'x', 'x'},
	"length of five bytes":       {0x30, 0xFF, 0xFF, 0xFF, 0xFF, 0x7F},
	"reserved type":              {0x00, 0},
	"bad flags":                  {0x81, 2, 0, 1},
	"connack from a client":      {0x20, 3, 0, 0, 0},
	"auth":                       {0xF0, 2, 0x18, 0},
	"oversize":                   {0x30, 0xFF, 0xFF, 0xFF, 0x7F},
	"publish with NUL in topic":  {0x30, 5, 0, 2, 'a', 0, 0},
	"invalid UTF-8":              {0x30, 5, 0, 2, 0xC0, 0x80, 0},
	"puback cut short":           {0x40, 1, 0},
}

// What one client sends wrong is that client's end, and of no concern to others.
func TestMalformedPacketsCloseTheirSenderOnly(t *testing.T) {
	b := start(t, nil)
	other := open(t, b, "other")
	other.sub("b", 1)
	for name, packet := range malformed {
		t.Run(name, func(t *testing.T) {
			c := open(t, b, "c")
			c.raw(packet)
			code, n := c.ended()
			require.Equal(t, 1, n)
			require.Contains(t, []byte{0x81, 0x82, 0x95}, code)
		})
	}
	other.publish("b", "still here", 1, 1)
	other.nextOf(packets.Puback, func(pk packets.Packet) { require.Equal(t, "still here", string(pk.Payload)) })
	require.Eventually(t, func() bool { return b.Stats().Connections == 1 }, patience, time.Millisecond)
	require.Zero(t, b.Stats().Malformed, "the decoder was spared")
}

// The reason reaches a client that is still sending what is refused.
func TestReasonReachesABusySender(t *testing.T) {
	b := start(t, nil)
	for range 20 {
		c := open(t, b, "c")
		_, _ = c.conn.Write(encode(t, publishPacket("a", strings.Repeat("x", 2<<20), 0, 0), 5))
		code, n := c.ended()
		require.Equal(t, byte(0x95), code)
		require.Equal(t, 1, n)
	}
}

// FuzzPacket feeds a connection whatever may come after, or instead of, a CONNECT.
func FuzzPacket(f *testing.F) {
	for _, packet := range malformed {
		f.Add(true, packet)
	}
	f.Add(false, encode(f, connectPacket("x", persistent, withWill("w", "x", 1)), 5))
	f.Add(false, encode(f, connectPacket("x", v3), 4))
	sub := packets.Packet{
		FixedHeader: packets.FixedHeader{Type: packets.Subscribe}, PacketID: 1,
		Filters: packets.Subscriptions{{Filter: "$share/g/a/#", Qos: 2}, {Filter: "+", Qos: 1}},
	}
	f.Add(true, append(encode(f, sub, 5), encode(f, publishPacket("a", "x", 2, 3, retain), 5)...))
	b, err := New(Options{Log: zerolog.Nop(), Auth: Auth{Anonymous: anybody}, Tree: newFakeTree()})
	require.NoError(f, err)
	f.Cleanup(func() { _ = b.Close(f.Context()) })
	l := &listener{b: b, loopback: true, Listener: Listener{Name: "pipe"}}
	hello := encode(f, connectPacket("fuzz"), 5)
	f.Fuzz(func(t *testing.T, connected bool, data []byte) {
		ours, theirs := net.Pipe()
		served := make(chan struct{})
		go func() { b.serve(l, pipeConn{theirs}, nil); close(served) }()
		go func() {
			buf := make([]byte, 4096)
			for {
				if _, err := ours.Read(buf); err != nil {
					return
				}
			}
		}()
		_ = ours.SetWriteDeadline(time.Now().Add(time.Second))
		if connected {
			_, _ = ours.Write(hello)
		}
		_, _ = ours.Write(data)
		_ = ours.Close()
		select {
		case <-served:
		case <-time.After(patience):
			t.Fatal("the connection did not end")
		}
	})
}

// pipeConn is a pipe that looks like a connection from this host.
type pipeConn struct{ net.Conn }

func (pipeConn) RemoteAddr() net.Addr { return &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 1} }

var anybody = []topics.Role{topics.RoleOperator}
