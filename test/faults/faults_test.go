// SPDX-License-Identifier: Apache-2.0

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

// startEcho answers with what it gets, and tells of each connection's end.
func startEcho(t *testing.T) (addr string, ends <-chan error) {
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

func startProxy(t *testing.T) (*Proxy, <-chan error) {
	t.Helper()
	target, ends := startEcho(t)
	p, err := New(Options{Target: target, Seed: 1})
	require.NoError(t, err)
	t.Cleanup(p.Close)
	return p, ends
}

func dialProxy(t *testing.T, p *Proxy) net.Conn {
	t.Helper()
	conn, err := net.Dial("tcp", p.Addr())
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

// exchangeText sends text and wants it back.
func exchangeText(t *testing.T, conn net.Conn, text string) time.Duration {
	t.Helper()
	began := time.Now()
	_, err := conn.Write([]byte(text))
	require.NoError(t, err)
	readText(t, conn, text)
	return time.Since(began)
}

func readText(t *testing.T, conn net.Conn, text string) {
	t.Helper()
	require.NoError(t, conn.SetReadDeadline(time.Now().Add(30*time.Second)))
	got := make([]byte, len(text))
	_, err := io.ReadFull(conn, got)
	require.NoError(t, err)
	require.Equal(t, text, string(got))
}

func isSilent(t *testing.T, conn net.Conn) {
	t.Helper()
	require.NoError(t, conn.SetReadDeadline(time.Now().Add(50*time.Millisecond)))
	_, err := conn.Read(make([]byte, 1))
	require.ErrorIs(t, err, os.ErrDeadlineExceeded)
}

func isBroken(t *testing.T, conn net.Conn) {
	t.Helper()
	require.NoError(t, conn.SetReadDeadline(time.Now().Add(30*time.Second)))
	_, err := conn.Read(make([]byte, 1))
	require.Error(t, err)
	require.NotErrorIs(t, err, os.ErrDeadlineExceeded)
}

func TestPassesEverythingUnchanged(t *testing.T) {
	p, _ := startProxy(t)
	p.Set(Conditions{Split: true, Jitter: time.Millisecond})
	conn := dialProxy(t, p)
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
	p, _ := startProxy(t)
	p.Set(Conditions{Delay: 50 * time.Millisecond})
	conn := dialProxy(t, p)
	require.GreaterOrEqual(t, exchangeText(t, conn, "hello"), 100*time.Millisecond)
	var took []time.Duration
	for len(took) == 0 || len(took) < 5 && slices.Min(took) > time.Second { // a busy machine is late, but not each time
		began := time.Now()
		for range 20 { // 20 in flight together, not one after the other
			_, err := conn.Write([]byte("x"))
			require.NoError(t, err)
		}
		readText(t, conn, "xxxxxxxxxxxxxxxxxxxx")
		took = append(took, time.Since(began))
	}
	require.Less(t, slices.Min(took), 20*100*time.Millisecond)
}

func TestBandwidth(t *testing.T) {
	p, _ := startProxy(t)
	p.Set(Conditions{Bandwidth: 100_000})
	conn := dialProxy(t, p)
	exchangeText(t, conn, string(make([]byte, 20_000)))
	// The pause follows its bytes, so it is the second round that feels the first.
	require.GreaterOrEqual(t, exchangeText(t, conn, "x"), 50*time.Millisecond)
}

func TestReset(t *testing.T) {
	p, ends := startProxy(t)
	conn := dialProxy(t, p)
	exchangeText(t, conn, "hello")
	p.Cut(Reset)
	isBroken(t, conn)
	require.Error(t, <-ends)
	if late, err := net.Dial("tcp", p.Addr()); err == nil {
		isBroken(t, late)
	}
	p.Heal()
	exchangeText(t, dialProxy(t, p), "again")
}

func TestBlackholeHoldsBackAndGoesOn(t *testing.T) {
	p, _ := startProxy(t)
	conn := dialProxy(t, p)
	exchangeText(t, conn, "hello")
	p.Cut(Blackhole)
	_, err := conn.Write([]byte("lost?"))
	require.NoError(t, err)
	isSilent(t, conn)
	late := dialProxy(t, p)
	_, err = late.Write([]byte("late"))
	require.NoError(t, err)
	isSilent(t, late)
	p.Heal()
	readText(t, conn, "lost?")
	readText(t, late, "late")
}

func TestOneWay(t *testing.T) {
	p, _ := startProxy(t)
	conn := dialProxy(t, p)
	exchangeText(t, conn, "hello")
	p.Cut(Down)
	_, err := conn.Write([]byte("there"))
	require.NoError(t, err)
	require.Eventually(t, func() bool { up, _ := p.Passed(); return up == uint64(len("hello"+"there")) }, 30*time.Second, time.Millisecond)
	isSilent(t, conn)
	p.Cut(Up)
	readText(t, conn, "there")
	_, err = conn.Write([]byte("held"))
	require.NoError(t, err)
	isSilent(t, conn)
	p.Heal()
	readText(t, conn, "held")
}

func TestHalfOpen(t *testing.T) {
	p, ends := startProxy(t)
	conn := dialProxy(t, p)
	exchangeText(t, conn, "hello")
	p.Cut(HalfOpen)
	require.Error(t, <-ends, "the target sees a reset")
	isSilent(t, conn)
	_, err := conn.Write([]byte("anybody?"))
	require.NoError(t, err)
	isSilent(t, conn)
	p.Heal()
	isBroken(t, conn)
	exchangeText(t, dialProxy(t, p), "again")
}

func TestDropLeavesTheNetworkWhole(t *testing.T) {
	p, _ := startProxy(t)
	conn := dialProxy(t, p)
	exchangeText(t, conn, "hello")
	p.Drop()
	isBroken(t, conn)
	exchangeText(t, dialProxy(t, p), "again")
	_, ever := p.Connections()
	require.EqualValues(t, 2, ever)
}

func TestCloseLeavesNothing(t *testing.T) {
	for _, cut := range []Cut{None, Blackhole, HalfOpen} {
		target, _ := startEcho(t)
		p, err := New(Options{Target: target})
		require.NoError(t, err)
		conn := dialProxy(t, p)
		exchangeText(t, conn, "hello")
		p.Cut(cut)
		dialProxy(t, p)
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
