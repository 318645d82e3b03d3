package session

import (
	"runtime"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// tape is a connection that takes everything, and keeps what each write brought.
type tape struct {
	mu     sync.Mutex
	writes [][]byte
}

func (c *tape) Write(b []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.writes = append(c.writes, append([]byte(nil), b...))
	return len(b), nil
}
func (c *tape) TryWrite(b []byte) (int, error)   { return c.Write(b) }
func (c *tape) SetWriteDeadline(time.Time) error { return nil }
func (c *tape) Close() error                     { return nil }

// got is what was written, and with how many writes.
func (c *tape) got(t require.TestingT) (all []string, writes int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, w := range c.writes {
		all = append(all, payloads(decode(t, w, 5))...)
	}
	return all, len(c.writes)
}

// blind is a tape that can't be tried, as TLS can't.
type blind struct{ c *tape }

func (c blind) Write(b []byte) (int, error)        { return c.c.Write(b) }
func (c blind) SetWriteDeadline(t time.Time) error { return nil }
func (c blind) Close() error                       { return nil }

type listener struct {
	*Session
	tape *tape
}

// listeners makes n of them, of whom each blindth can't be tried.
func listeners(n, blindth int) (all []listener) {
	for i := range n {
		l := listener{New(limits, time.Now, &Counters{}), &tape{}}
		var conn Conn = l.tape
		if i%blindth == blindth-1 {
			conn = blind{l.tape}
		}
		w := NewWriter(conn, time.Minute)
		l.Attach(w, Params{Version: 5})
		w.mu.Lock()
		w.session = l.Session
		w.mu.Unlock()
		all = append(all, l)
	}
	return all
}

func give(all []listener, b *Batch, text string) {
	m := message("a", text, 0)
	for _, l := range all {
		l.Enqueue(m, Delivery{Batch: b})
	}
}

func TestCrowdGetsEverythingInOrder(t *testing.T) {
	rested := make(chan struct{}, 1)
	b := Batch{Crowd: NewCrowd(func(time.Duration) time.Duration {
		select {
		case rested <- struct{}{}:
			return time.Millisecond
		default:
			return 0
		}
	})}
	all := listeners(200, 4)
	var want []string
	for i := range 300 {
		want = append(want, strconv.Itoa(i))
		give(all, &b, want[i])
		if i%3 > 0 {
			b.Flush()
		} else {
			b.Wake()
		}
	}
	for _, l := range all {
		require.Eventually(t, func() bool { got, _ := l.tape.got(t); return len(got) >= len(want) }, time.Minute, time.Millisecond)
		got, _ := l.tape.got(t)
		require.Equal(t, want, got)
	}
}

// TestCrowdMakesRoom: who was given nothing lately doesn't wait for hundreds who were, and they
// get with one write what came while they stood in the line.
func TestCrowdMakesRoom(t *testing.T) {
	served, goOn := make(chan struct{}), make(chan struct{})
	b := Batch{Crowd: NewCrowd(func(time.Duration) time.Duration {
		served <- struct{}{}
		<-goOn
		return 0
	})}
	all := listeners(200, 1000)
	give(all, &b, "first")
	b.Flush()
	for range runtime.GOMAXPROCS(0) {
		<-served // and whoever serves the line is held up from now on
	}
	calm := listeners(1, 1000)[0]
	for i := range 5 {
		give(append(all, calm), &b, strconv.Itoa(i))
		b.Flush()
		got, _ := calm.tape.got(t)
		require.Len(t, got, i+1, "it was not written to at once")
	}
	go func() {
		for range served {
		}
	}()
	close(goOn)
	once := 0
	for _, l := range all {
		require.Eventually(t, func() bool { got, _ := l.tape.got(t); return len(got) == 6 }, time.Minute, time.Millisecond)
		if _, writes := l.tape.got(t); writes == 1 {
			once++
		}
	}
	require.Greater(t, once, len(all)/2)
}

// TestWhoHasNoRoomIsNotWokenInVain: a client whose window is full is left alone until it acknowledges.
func TestWhoHasNoRoomIsNotWokenInVain(t *testing.T) {
	s := New(limits, time.Now, &Counters{})
	w := attached(s, Params{Version: 5, ReceiveMaximum: 1})
	var b Batch
	put := func(text string) int {
		require.True(t, s.Enqueue(message("a", text, 1), Delivery{QoS: 1, Batch: &b}))
		return len(b.writers)
	}
	require.Equal(t, 1, put("a"))
	b = Batch{}
	w.batch.Store(nil)
	sent := decode(t, s.drain(w, nil, batchBytes), 5)
	require.Equal(t, []string{"a"}, payloads(sent))
	require.Equal(t, 1, put("b"), "nothing is known yet of what waits")
	require.Empty(t, s.drain(w, nil, batchBytes))
	b = Batch{}
	w.batch.Store(nil)
	require.Zero(t, put("c"))
	require.True(t, s.Puback(sent[0].PacketID, &b))
	require.Len(t, b.writers, 1)
	require.Equal(t, []string{"b"}, payloads(decode(t, s.drain(w, nil, batchBytes), 5)))
}
