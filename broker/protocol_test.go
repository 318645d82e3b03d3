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

// What arrived together with a mistake, and before it, has been taken.
func TestWhatCameBeforeAMistakeIsDelivered(t *testing.T) {
	b := start(t, nil)
	other := open(t, b, "other")
	other.sub("b", 0)
	for name, mistake := range malformed {
		c, packet := open(t, b, "c"), mistake.raw
		for _, payload := range []string{"1", "2"} { // the first on a topic and the next go different ways
			packet = append(encode(t, publishPacket("b", payload, 0, 0), 5), packet...)
		}
		c.raw(packet)
		require.Equal(t, "2", string(other.expect(packets.Publish).Payload), name)
		require.Equal(t, "1", string(other.expect(packets.Publish).Payload), name)
		c.ended()
	}
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
		f.Add(true, packet.raw)
	}
	for _, packet := range badConnects {
		f.Add(false, packet.raw)
	}
	f.Add(false, encode(f, connectPacket("x", persistent, withWill("w", "x", 1)), 5))
	f.Add(false, encode(f, connectPacket("x", v3), 4))
	sub := packets.Packet{
		FixedHeader: packets.FixedHeader{Type: packets.Subscribe}, PacketID: 1,
		Filters: packets.Subscriptions{{Filter: "$share/g/a/#", Qos: 2}, {Filter: "+", Qos: 1}},
	}
	f.Add(true, append(encode(f, sub, 5), encode(f, publishPacket("a", "x", 2, 3, retain), 5)...))
	b, err := New(Options{Log: zerolog.Nop(), Auth: Auth{Anonymous: anybody}, Tree: newFakeTree(), Limits: usual})
	require.NoError(f, err)
	f.Cleanup(func() { _ = b.Close(f.Context()) })
	l := &listener{b: b, loopback: true, Listener: Listener{Name: "pipe"}}
	hello := encode(f, connectPacket("fuzz"), 5)
	f.Fuzz(func(t *testing.T, connected bool, data []byte) {
		ours, theirs := net.Pipe()
		served := make(chan struct{})
		go func() { b.serve(l, pipeConn{theirs}); close(served) }()
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
