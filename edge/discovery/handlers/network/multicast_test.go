package network

import (
	"errors"
	"net"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
)

var errFailed = errors.New("the network is down")

// failing is a socket that can't be read after a datagram.
type failing struct {
	*net.UDPConn
	reads  int
	closed atomic.Bool
}

func (f *failing) ReadFrom(b []byte) (int, net.Addr, error) {
	if f.reads++; f.reads > 1 {
		return 0, nil, errFailed
	}
	return copy(b, "hello"), f.LocalAddr(), nil
}

func (f *failing) Close() error {
	f.closed.Store(true)
	return f.UDPConn.Close()
}

func TestAGroupEndsWithASocket(t *testing.T) {
	var sockets []socket
	for range 2 {
		c, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
		require.NoError(t, err)
		sockets = append(sockets, socket{PacketConn: c})
	}
	broken := &failing{UDPConn: sockets[1].PacketConn.(*net.UDPConn)}
	sockets[1].PacketConn = broken
	g := newGroup(sockets)
	require.Equal(t, "hello", string((<-g.Packets).Data))
	_, open := <-g.Packets
	require.False(t, open)
	require.ErrorIs(t, g.Err(), errFailed)
	require.ErrorContains(t, g.Err(), broken.LocalAddr().String())
	require.True(t, broken.closed.Load())
	g.Close()
}
