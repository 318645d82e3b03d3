package faults

import (
	"bytes"
	"crypto/rand"
	"io"
	"net"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// echo answers with what it gets, and tells of each connection's end.
func echo(t *testing.T) (addr string, ends <-chan error) {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { _ = listener.Close() })
	ended := make(chan error, 100)
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			go func() {
				_, err := io.Copy(conn, conn)
				_ = conn.Close()
				ended <- err
			}()
		}
	}()
	return listener.Addr().String(), ended
}

func start(t *testing.T) (*Proxy, <-chan error) {
	t.Helper()
	target, ends := echo(t)
	p, err := New(Options{Target: target, Seed: 1})
	require.NoError(t, err)
	t.Cleanup(p.Close)
	return p, ends
}

func dial(t *testing.T, p *Proxy) net.Conn {
	t.Helper()
	conn, err := net.Dial("tcp", p.Addr())
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

// talk sends text and wants it back.
func talk(t *testing.T, conn net.Conn, text string) time.Duration {
	t.Helper()
	began := time.Now()
	_, err := conn.Write([]byte(text))
	require.NoError(t, err)
	hear(t, conn, text)
	return time.Since(began)
}

func hear(t *testing.T, conn net.Conn, text string) {
	t.Helper()
	require.NoError(t, conn.SetReadDeadline(time.Now().Add(30*time.Second)))
	got := make([]byte, len(text))
	_, err := io.ReadFull(conn, got)
	require.NoError(t, err)
	require.Equal(t, text, string(got))
}

func silent(t *testing.T, conn net.Conn) {
	t.Helper()
	require.NoError(t, conn.SetReadDeadline(time.Now().Add(50*time.Millisecond)))
	_, err := conn.Read(make([]byte, 1))
	require.ErrorIs(t, err, os.ErrDeadlineExceeded)
}

func broken(t *testing.T, conn net.Conn) {
	t.Helper()
	require.NoError(t, conn.SetReadDeadline(time.Now().Add(30*time.Second)))
	_, err := conn.Read(make([]byte, 1))
	require.Error(t, err)
	require.NotErrorIs(t, err, os.ErrDeadlineExceeded)
}

func TestPassesEverythingUnchanged(t *testing.T) {
	p, _ := start(t)
	p.Set(Conditions{Split: true, Jitter: time.Millisecond})
	conn := dial(t, p)
	sent := make([]byte, 200<<10)
	_, _ = rand.Read(sent)
	go func() {
		_, _ = conn.Write(sent)
		_ = conn.(*net.TCPConn).CloseWrite()
	}()
	got, err := io.ReadAll(conn)
	require.NoError(t, err)
	require.True(t, bytes.Equal(sent, got))
	up, down := p.Passed()
	require.EqualValues(t, len(sent), up)
	require.EqualValues(t, len(sent), down)
}

func TestDelayIsOnTheWayAndNotInTurn(t *testing.T) {
	p, _ := start(t)
	p.Set(Conditions{Delay: 50 * time.Millisecond})
	conn := dial(t, p)
	require.GreaterOrEqual(t, talk(t, conn, "hello"), 100*time.Millisecond)
	var took []time.Duration
	for len(took) == 0 || len(took) < 5 && slices.Min(took) > time.Second { // a busy machine is late, but not each time
		began := time.Now()
		for range 20 { // 20 in flight together, not one after the other
			_, err := conn.Write([]byte("x"))
			require.NoError(t, err)
		}
		hear(t, conn, "xxxxxxxxxxxxxxxxxxxx")
		took = append(took, time.Since(began))
	}
	require.Less(t, slices.Min(took), 20*100*time.Millisecond)
}

func TestBandwidth(t *testing.T) {
	p, _ := start(t)
	p.Set(Conditions{Bandwidth: 100_000})
	conn := dial(t, p)
	talk(t, conn, string(make([]byte, 20_000)))
	// The pause follows its bytes, so it is the second round that feels the first.
	require.GreaterOrEqual(t, talk(t, conn, "x"), 50*time.Millisecond)
}

func TestReset(t *testing.T) {
	p, ends := start(t)
	conn := dial(t, p)
	talk(t, conn, "hello")
	p.Cut(Reset)
	broken(t, conn)
	require.Error(t, <-ends)
	if late, err := net.Dial("tcp", p.Addr()); err == nil {
		broken(t, late)
	}
	p.Heal()
	talk(t, dial(t, p), "again")
}

func TestBlackholeHoldsBackAndGoesOn(t *testing.T) {
	p, _ := start(t)
	conn := dial(t, p)
	talk(t, conn, "hello")
	p.Cut(Blackhole)
	_, err := conn.Write([]byte("lost?"))
	require.NoError(t, err)
	silent(t, conn)
	late := dial(t, p)
	_, err = late.Write([]byte("late"))
	require.NoError(t, err)
	silent(t, late)
	p.Heal()
	hear(t, conn, "lost?")
	hear(t, late, "late")
}

func TestOneWay(t *testing.T) {
	p, _ := start(t)
	conn := dial(t, p)
	talk(t, conn, "hello")
	p.Cut(Down)
	_, err := conn.Write([]byte("there"))
	require.NoError(t, err)
	require.Eventually(t, func() bool { up, _ := p.Passed(); return up == uint64(len("hello"+"there")) }, 30*time.Second, time.Millisecond)
	silent(t, conn)
	p.Cut(Up)
	hear(t, conn, "there")
	_, err = conn.Write([]byte("held"))
	require.NoError(t, err)
	silent(t, conn)
	p.Heal()
	hear(t, conn, "held")
}

func TestHalfOpen(t *testing.T) {
	p, ends := start(t)
	conn := dial(t, p)
	talk(t, conn, "hello")
	p.Cut(HalfOpen)
	require.Error(t, <-ends, "the target sees a reset")
	silent(t, conn)
	_, err := conn.Write([]byte("anybody?"))
	require.NoError(t, err)
	silent(t, conn)
	p.Heal()
	broken(t, conn)
	talk(t, dial(t, p), "again")
}

func TestDropLeavesTheNetworkWhole(t *testing.T) {
	p, _ := start(t)
	conn := dial(t, p)
	talk(t, conn, "hello")
	p.Drop()
	broken(t, conn)
	talk(t, dial(t, p), "again")
	_, ever := p.Connections()
	require.EqualValues(t, 2, ever)
}

func TestCloseLeavesNothing(t *testing.T) {
	for _, cut := range []Cut{None, Blackhole, HalfOpen} {
		target, _ := echo(t)
		p, err := New(Options{Target: target})
		require.NoError(t, err)
		conn := dial(t, p)
		talk(t, conn, "hello")
		p.Cut(cut)
		dial(t, p)
		p.Close() // returns when all goroutines have
		now, _ := p.Connections()
		require.Zero(t, now)
	}
}

func TestParseCut(t *testing.T) {
	c, err := ParseCut("halfopen")
	require.NoError(t, err)
	require.Equal(t, HalfOpen, c)
	_, err = ParseCut("nicely")
	require.ErrorContains(t, err, "nicely")
}
