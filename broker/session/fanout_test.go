// SPDX-License-Identifier: Apache-2.0

package session

import (
	"runtime"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// recordingConn is a connection that takes everything, and keeps what each write brought.
type recordingConn struct {
	mu     sync.Mutex
	writes [][]byte
}

func (c *recordingConn) Write(b []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.writes = append(c.writes, append([]byte(nil), b...))
	return len(b), nil
}
func (c *recordingConn) TryWrite(b []byte) (int, error)   { return c.Write(b) }
func (c *recordingConn) SetWriteDeadline(time.Time) error { return nil }
func (c *recordingConn) Close() error                     { return nil }

// packets is what was written, and with how many writes.
func (c *recordingConn) packets(t require.TestingT) (all []string, writes int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, w := range c.writes {
		all = append(all, payloadsOf(decodePackets(t, w, 5))...)
	}
	return all, len(c.writes)
}

// plainConn is a tape that can't be tried, as TLS can't.
type plainConn struct{ c *recordingConn }

func (c plainConn) Write(b []byte) (int, error)        { return c.c.Write(b) }
func (c plainConn) SetWriteDeadline(t time.Time) error { return nil }
func (c plainConn) Close() error                       { return nil }

type testListener struct {
	*Session
	tape *recordingConn
}

// newListeners makes n of them, of whom each blindth can't be tried.
func newListeners(n, blindth int) (all []testListener) {
	for i := range n {
		l := testListener{New(testLimits, time.Now, &Counters{}), &recordingConn{}}
		var conn Conn = l.tape
		if i%blindth == blindth-1 {
			conn = plainConn{l.tape}
		}
		w := NewWriter(conn, time.Minute)
		l.Attach(w, ConnParams{Version: 5})
		w.mu.Lock()
		w.session = l.Session
		w.mu.Unlock()
		all = append(all, l)
	}
	return all
}

func queueControl(all []testListener, b *WriteBatch, text string) {
	m := newMessage("a", text, 0)
	for _, l := range all {
		l.Enqueue(m, DeliveryOptions{Batch: b})
	}
}

func TestFanoutDeliversEverythingInOrder(t *testing.T) {
	b := WriteBatch{Fanout: NewFanout()}
	all := newListeners(200, 4)
	var want []string
	for i := range 300 {
		want = append(want, strconv.Itoa(i))
		queueControl(all, &b, want[i])
		if i%3 > 0 {
			b.Flush()
		} else {
			b.FlushAsync()
		}
	}
	for _, l := range all {
		require.Eventually(t, func() bool { got, _ := l.tape.packets(t); return len(got) >= len(want) }, time.Minute, time.Millisecond)
		got, _ := l.tape.packets(t)
		require.Equal(t, want, got)
	}
}

// gatedConn is a connection whose writes wait until it is opened.
type gatedConn struct {
	*recordingConn
	entered chan<- struct{}
	open    <-chan struct{}
}

func (g gatedConn) TryWrite(b []byte) (int, error) {
	g.entered <- struct{}{}
	<-g.open
	return g.recordingConn.TryWrite(b)
}

// TestFanoutIsOneQueue: as many workers as there are processors take connections in the order in which
// they came, none rests in between, and what a connection is given while it waits leaves with one write.
func TestFanoutIsOneQueue(t *testing.T) {
	workers := runtime.GOMAXPROCS(0)
	b := WriteBatch{Fanout: NewFanout()}
	entered, open := make(chan struct{}, workers), make(chan struct{})
	var first []testListener
	for range workers { // they keep all workers
		l := testListener{New(testLimits, time.Now, &Counters{}), &recordingConn{}}
		w := NewWriter(gatedConn{l.tape, entered, open}, time.Minute)
		l.Attach(w, ConnParams{Version: 5})
		w.session = l.Session
		first = append(first, l)
	}
	all := newListeners(200, 1000)
	queueControl(append(first, all...), &b, "0")
	b.Flush()
	for range workers {
		<-entered
	}
	require.Equal(t, len(all), b.Fanout.Waiting())
	for i := 1; i < 6; i++ {
		queueControl(all, &b, strconv.Itoa(i))
		b.Flush()
	}
	require.Equal(t, len(all), b.Fanout.Waiting(), "a connection stands in the queue twice")
	go func() {
		for range entered { // what the first ones write from now on
		}
	}()
	close(open)
	b.queued = b.Fanout.queued
	b.Await()
	for _, l := range all {
		got, writes := l.tape.packets(t)
		require.Equal(t, []string{"0", "1", "2", "3", "4", "5"}, got)
		require.Equal(t, 1, writes)
	}
	require.Zero(t, b.Fanout.Waiting())
}

// TestWhoHasNoRoomIsNotWokenInVain: a client whose window is full is left alone until it acknowledges.
func TestWhoHasNoRoomIsNotWokenInVain(t *testing.T) {
	s := New(testLimits, time.Now, &Counters{})
	w := attachWriter(s, ConnParams{Version: 5, ReceiveMaximum: 1})
	var b WriteBatch
	put := func(text string) int {
		require.Equal(t, EnqueueAccepted, s.Enqueue(newMessage("a", text, 1), DeliveryOptions{QoS: 1, Batch: &b}))
		return len(b.writers)
	}
	require.Equal(t, 1, put("a"))
	b = WriteBatch{}
	w.batch.Store(nil)
	sent := decodePackets(t, s.drain(w, nil, writeBytes), 5)
	require.Equal(t, []string{"a"}, payloadsOf(sent))
	require.Equal(t, 1, put("b"), "nothing is known yet of what waits")
	require.Empty(t, s.drain(w, nil, writeBytes))
	b = WriteBatch{}
	w.batch.Store(nil)
	require.Zero(t, put("c"))
	require.True(t, s.Puback(sent[0].PacketID, &b))
	require.Len(t, b.writers, 1)
	require.Equal(t, []string{"b"}, payloadsOf(decodePackets(t, s.drain(w, nil, writeBytes), 5)))
}
