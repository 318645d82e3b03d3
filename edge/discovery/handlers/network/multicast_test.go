// SPDX-License-Identifier: Apache-2.0

package network

import (
	"errors"
	"net"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
)

var errNetworkDown = errors.New("the network is down")

// failingConn is a socket that can't be read after a datagram.
type failingConn struct {
	*net.UDPConn
	reads  int
	closed atomic.Bool
}

func (f *failingConn) ReadFrom(b []byte) (int, net.Addr, error) {
	if f.reads++; f.reads > 1 {
		return 0, nil, errNetworkDown
	}
	return copy(b, "hello"), f.LocalAddr(), nil
}

func (f *failingConn) Close() error {
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
	broken := &failingConn{UDPConn: sockets[1].PacketConn.(*net.UDPConn)}
	sockets[1].PacketConn = broken
	g := newGroup(sockets)
	require.Equal(t, "hello", string((<-g.Packets).Data))
	_, open := <-g.Packets
	require.False(t, open)
	require.ErrorIs(t, g.Err(), errNetworkDown)
	require.ErrorContains(t, g.Err(), broken.LocalAddr().String())
	require.True(t, broken.closed.Load())
	g.Close()
}
