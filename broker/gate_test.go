package broker

import (
	"net"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

func TestLobbySendsAwayWhoIsThereLongest(t *testing.T) {
	l := lobby{size: 2}
	a, b, c, d, e := &conn{host: "a"}, &conn{host: "b"}, &conn{host: "c"}, &conn{host: "d"}, &conn{host: "e"}
	require.Nil(t, l.enter(a))
	require.Nil(t, l.enter(b))
	l.leave(a)
	l.leave(a)
	require.Nil(t, l.enter(c))
	require.Same(t, b, l.enter(d))
	l.leave(b) // who was sent away leaves, too
	require.Same(t, c, l.enter(e))
	l.leave(e)
	l.leave(d)
	require.Empty(t, l.queue)
	require.Zero(t, l.in)
}

// crowd is a listener that always has somebody waiting.
type crowd struct{ net.Listener }

func (crowd) Accept() (net.Conn, error) {
	conn, _ := net.Pipe()
	return conn, nil
}

func TestGateHoldsMoreThanItsRate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		held := 0
		g := &gate{Listener: crowd{}, rate: &throttle{every: fullBucket / 50}, held: func() { held++ }}
		began := time.Now()
		for range 60 {
			_, err := g.Accept()
			require.NoError(t, err)
		}
		require.Equal(t, 10, held, "fifty come in at once")
		require.Equal(t, 10*g.rate.every, time.Since(began))
	})
}

func TestNeighbourIsAnotherClient(t *testing.T) {
	var n neighbour
	now := time.Now()
	n.note("one", &quantum{began: now})
	require.False(t, n.beside("one", now))
	require.True(t, n.beside("two", now))
	n.note("two", &quantum{began: now})
	require.True(t, n.beside("two", now), "one is still there")
	n.forget("one")
	require.False(t, n.beside("two", now))
	n.note("two", &quantum{began: now})
	require.True(t, n.beside("one", now))
	require.False(t, n.beside("three", now.Add(2*neighbours)), "long ago")
	n.note("three", &quantum{began: now.Add(neighbours)})
	require.True(t, n.beside("two", now.Add(neighbours)), "who fell silent makes room")
	var f neighbour
	f.note("one", &quantum{began: now, flood: true})
	require.False(t, f.beside("two", now), "a flood is nobody to wait for")
}

// Connections that send no CONNECT keep nobody else waiting: more are let in than may connect, and those of one
// address make room for one another.
func TestTrial12AFloodWithoutCONNECT(t *testing.T) {
	l := lobby{size: 40}
	other := &conn{host: "192.0.2.2"}
	require.Nil(t, l.enter(other))
	flood := make([]*conn, 30)
	for i := range flood {
		flood[i] = &conn{host: "192.0.2.1"}
		out := l.enter(flood[i])
		if i < 10 {
			require.Nil(t, out)
		} else {
			require.Same(t, flood[i-10], out, "its own oldest goes")
		}
	}
	l.leave(other)
	require.Equal(t, map[string]int{"192.0.2.1": 10}, l.of)

	b := start(t, func(o *Options) { o.Limits.ConnectRate, o.Limits.ConnectTimeout = 100, time.Hour })
	for range 3 * 2 * 100 { // three times what a full bucket lets connect
		dial(t, b)
	}
	open(t, b, "c")
	require.Zero(t, b.Stats().Held, "nobody had to wait")
}
