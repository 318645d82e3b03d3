// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"bytes"
	"context"
	"io"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// echoServer has holding registers that hold their own addresses; after changes what it does.
func echoServer(t *testing.T, s *Server) *Server {
	t.Helper()
	s.Handle = func(c Call) ([]uint16, error) {
		if c.IsWrite() {
			return nil, nil
		}
		out := make([]uint16, c.Quantity)
		for i := range out {
			out[i] = c.Address + uint16(i)
		}
		return out, nil
	}
	require.NoError(t, s.Listen("127.0.0.1:0"))
	t.Cleanup(func() { _ = s.Close() })
	return s
}

func dial(t *testing.T, address string, o Options) *Client {
	t.Helper()
	target, err := ParseTarget(address)
	require.NoError(t, err)
	o.Timeout = 5 * time.Second
	c, err := Dial(t.Context(), target, o)
	require.NoError(t, err)
	t.Cleanup(func() { _ = c.Close() })
	return c
}

const longTimeout = 30 * time.Second

func readAt(t *testing.T, c *Client, address uint16, timeout time.Duration) ([]uint16, error) {
	t.Helper()
	data, err := c.Do(t.Context(), 1, Read(ReadHoldingRegisters, address, 2), timeout)
	return Words(data), err
}

func TestEachFunction(t *testing.T) {
	var calls []Call
	s := &Server{Identification: Identification{0: "ACME", 1: "TH-1", 2: "1.0"}}
	s.Before = func(r *Reply) { calls = append(calls, r.Call) }
	echoServer(t, s)
	c := dial(t, s.Addr(), Options{})
	data, err := c.Do(t.Context(), 7, Read(ReadInputRegisters, 65534, 2), longTimeout)
	require.NoError(t, err)
	require.Equal(t, []uint16{65534, 65535}, Words(data))
	data, err = c.Do(t.Context(), 7, Read(ReadCoils, 0, 10), longTimeout)
	require.NoError(t, err)
	require.Equal(t, []uint16{0, 1, 1, 1, 1, 1, 1, 1, 1, 1}, Bits(data, 10))
	for _, q := range []Request{WriteCoil(1, true), WriteRegister(2, 3), WriteCoils(4, []bool{true, false, true}), WriteRegisters(9, []uint16{1, 2})} {
		_, err = c.Do(t.Context(), 7, q, longTimeout)
		require.NoError(t, err)
		require.True(t, q.IsWrite())
	}
	require.Equal(t, []Call{
		{7, WriteSingleCoil, 1, 1, []uint16{1}},
		{7, WriteSingleRegister, 2, 1, []uint16{3}},
		{7, WriteMultipleCoils, 4, 3, []uint16{1, 0, 1}},
		{7, WriteMultipleRegisters, 9, 2, []uint16{1, 2}},
	}, calls[2:])
	known, err := c.Identify(t.Context(), 7, longTimeout)
	require.NoError(t, err)
	require.Equal(t, s.Identification, known)
	_, err = c.Do(t.Context(), 7, Read(ReadHoldingRegisters, 65535, 2), longTimeout)
	require.ErrorIs(t, err, IllegalValue)
	_, err = c.Do(t.Context(), 7, Request{[]byte{0x63, 0}, 0}, longTimeout)
	require.ErrorIs(t, err, IllegalFunction)
}

func TestALateAnswerIsNeverTakenForTheNextOnes(t *testing.T) {
	late := make(chan struct{})
	s := &Server{After: func(r *Reply) {
		if r.Call.Address == 100 {
			<-late
		}
	}}
	echoServer(t, s)
	c := dial(t, s.Addr(), Options{})
	_, err := readAt(t, c, 1, longTimeout)
	require.NoError(t, err)
	_, err = readAt(t, c, 100, 20*time.Millisecond)
	require.True(t, IsTimeout(err), err)
	require.False(t, c.MixesUp(), "the device's answers say to which request they belong")
	time.AfterFunc(20*time.Millisecond, func() { close(late) })
	words, err := readAt(t, c, 7, longTimeout)
	require.NoError(t, err)
	require.Equal(t, []uint16{7, 8}, words)
}

func TestALateAnswerIsNotTakenForOneOfTheNextConnection(t *testing.T) {
	var late uint16
	s := &Server{}
	s.After = func(r *Reply) {
		switch r.Call.Address {
		case 100:
			late, r.Silent = r.Transaction, true
		case 7: // a gateway answers what it was asked before
			r.Transaction = late
		case 9:
			r.Transaction = 2
		}
	}
	echoServer(t, s)
	before := dial(t, s.Addr(), Options{})
	_, err := readAt(t, before, 100, 20*time.Millisecond)
	require.True(t, IsTimeout(err), err)
	require.NoError(t, before.Close())

	c := dial(t, s.Addr(), Options{After: before})
	_, err = readAt(t, c, 7, 50*time.Millisecond)
	require.True(t, IsTimeout(err), "%v", err)
	require.NoError(t, c.Close())
	words, err := readAt(t, dial(t, s.Addr(), Options{After: c}), 9, longTimeout)
	require.NoError(t, err, "a device whose answers have transactions of their own is heard")
	require.Equal(t, []uint16{9, 10}, words)
}

func TestAnAnswerWithAnotherTransactionOrUnit(t *testing.T) {
	s := &Server{After: func(r *Reply) { r.Transaction, r.Unit = 2, 0 }}
	echoServer(t, s)
	c := dial(t, s.Addr(), Options{})
	words, err := readAt(t, c, 7, longTimeout)
	require.NoError(t, err, "it answers the only request there is")
	require.Equal(t, []uint16{7, 8}, words)
	strict := dial(t, s.Addr(), Options{Strict: true})
	_, err = readAt(t, strict, 7, 50*time.Millisecond)
	require.True(t, IsTimeout(err), err)
	require.ErrorContains(t, err, "no answer within 50ms, but 13 bytes that are none")

	s.Before = func(r *Reply) { r.Silent = r.Call.Address == 100 }
	_, err = readAt(t, c, 100, 20*time.Millisecond)
	require.True(t, IsTimeout(err))
	require.True(t, c.MixesUp(), "the next answer may be the late one of the request before")
	_, err = readAt(t, c, 7, 50*time.Millisecond)
	require.True(t, IsTimeout(err), "and is not taken for it")
}

func TestAConnectionThatHasEndedShowsBeforeTheNextRequest(t *testing.T) {
	s := echoServer(t, &Server{After: func(r *Reply) { r.Close = true }})
	c := dial(t, s.Addr(), Options{})
	_, err := readAt(t, c, 7, longTimeout)
	require.NoError(t, err)
	require.Eventually(t, func() bool { return len(c.received) > 0 }, longTimeout, time.Millisecond)
	_, err = c.Do(t.Context(), 1, WriteRegister(1, 1), longTimeout)
	var closed *ClosedError
	require.ErrorAs(t, err, &closed)
	require.False(t, closed.Sent, "the write can't have reached the device")
}

func TestShortAndForeignAnswers(t *testing.T) {
	s := echoServer(t, &Server{After: func(r *Reply) {
		switch r.Call.Address {
		case 1:
			r.PDU = []byte{ReadHoldingRegisters, 2, 0, 1}
		case 2:
			r.PDU = []byte{ReadInputRegisters, 4, 0, 0, 0, 1}
		}
	}})
	c := dial(t, s.Addr(), Options{})
	_, err := readAt(t, c, 1, longTimeout)
	require.True(t, IsShort(err), err)
	_, err = readAt(t, c, 2, longTimeout)
	require.True(t, IsMalformed(err) && !IsShort(err), err)
}

// linePipe is a line between a client and a server, with what happens to the bytes on the way to the client.
func linePipe(t *testing.T, s *Server, change func([]byte) []byte) *Client {
	t.Helper()
	near, far := net.Pipe()
	t.Cleanup(func() { _ = near.Close(); _ = far.Close() })
	read, write := io.Pipe()
	go s.ServeLine(struct {
		io.Reader
		io.Writer
	}{far, write})
	go func() {
		b := make([]byte, 512)
		for {
			n, err := read.Read(b)
			if err != nil {
				return
			}
			if _, err := far.Write(change(bytes.Clone(b[:n]))); err != nil {
				return
			}
		}
	}()
	line := Target{schemeRTU, "/dev/null", DefaultLine}
	c := &Client{target: line, conn: near, framing: line.framing(answerSize), received: make(chan receivedBytes, 4), done: make(chan struct{}), lost: map[uint16]bool{}, lateUntil: map[byte]time.Time{}}
	go c.receive()
	t.Cleanup(func() { _ = c.Close(); _ = write.Close() })
	return c
}

func lineServer() *Server {
	return &Server{Handle: func(c Call) ([]uint16, error) {
		return make([]uint16, c.Quantity), nil
	}}
}

func TestALineWithNoise(t *testing.T) {
	for name, change := range map[string]func([]byte) []byte{
		"none":          func(b []byte) []byte { return b },
		"a byte before": func(b []byte) []byte { return append([]byte{0}, b...) },
		"a byte after":  func(b []byte) []byte { return append(b, 0xff) },
		"half a frame":  func(b []byte) []byte { return append(append([]byte{1, 3, 250}, 7, 7, 7), b...) },
		"of another unit's": func(b []byte) []byte {
			return append(rtu{}.append(nil, frame{unit: 9, pdu: []byte{3, 4, 1, 2, 3, 4}}), b...)
		},
	} {
		c := linePipe(t, lineServer(), change)
		for range 3 {
			words, err := readAt(t, c, 1, longTimeout)
			require.NoError(t, err, name)
			require.Equal(t, []uint16{0, 0}, words, name)
		}
	}
	c := linePipe(t, lineServer(), func(b []byte) []byte { b[3] ^= 1; return b })
	_, err := readAt(t, c, 1, 100*time.Millisecond)
	require.ErrorContains(t, err, "no answer within 100ms, but 9 bytes that are none")
}

func TestALineThatSendsBackWhatItIsSent(t *testing.T) {
	var mu sync.Mutex
	var sent []byte
	s := lineServer()
	s.Before = func(r *Reply) {
		mu.Lock()
		defer mu.Unlock()
		switch {
		case !r.Call.IsWrite():
			sent = rtu{}.append(nil, frame{unit: 1, pdu: Read(r.Call.Function, r.Call.Address, r.Call.Quantity).pdu})
		default:
			sent = rtu{}.append(nil, frame{unit: 1, pdu: WriteRegister(r.Call.Address, r.Call.Values[0]).pdu})
			r.Refuse(IllegalAddress)
		}
	}
	c := linePipe(t, s, func(b []byte) []byte {
		mu.Lock()
		defer mu.Unlock()
		return append(bytes.Clone(sent), b...)
	})
	words, err := readAt(t, c, 1, longTimeout)
	require.NoError(t, err)
	require.Equal(t, []uint16{0, 0}, words)
	_, err = c.Do(t.Context(), 1, WriteRegister(5, 5), longTimeout)
	require.ErrorIs(t, err, IllegalAddress, "the echo of a write looks as its answer does")
}

func TestAUnitOnALineIsNotAskedWhileALateAnswerMayCome(t *testing.T) {
	s := lineServer()
	silent := true
	s.Before = func(r *Reply) { r.Silent = silent && r.Unit == 1 }
	c := linePipe(t, s, func(b []byte) []byte { return b })
	_, err := readAt(t, c, 1, 50*time.Millisecond)
	require.True(t, IsTimeout(err))
	_, err = readAt(t, c, 1, 50*time.Millisecond)
	require.ErrorIs(t, err, ErrLate)
	_, err = c.Do(t.Context(), 2, Read(ReadHoldingRegisters, 0, 1), longTimeout)
	require.NoError(t, err, "other units are")
	silent = false
	require.NoError(t, c.WaitLate(t.Context(), 1))
	_, err = readAt(t, c, 1, longTimeout)
	require.NoError(t, err)
}

func TestATimeOutIsSaidWithoutItsNanoseconds(t *testing.T) {
	require.EqualError(t, &TimeoutError{After: 249992589}, "no answer within 250ms")
}

// Another program may talk on the line behind a gateway.
func TestALineThatIsNeverSilentEndsARequest(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer func() { _ = l.Close() }()
	go func() {
		conn, err := l.Accept()
		for err == nil {
			_, err = conn.Write(make([]byte, 4096))
		}
	}()
	c := dial(t, "rtuovertcp://"+l.Addr().String(), Options{})
	require.Eventually(t, func() bool { return len(c.received) == cap(c.received) }, 5*time.Second, time.Millisecond)
	ended := make(chan error, 1)
	go func() {
		_, err := c.Do(t.Context(), 1, Read(ReadHoldingRegisters, 0, 1), 50*time.Millisecond)
		ended <- err
	}()
	select {
	case err := <-ended:
		require.True(t, IsTimeout(err), "%v", err)
	case <-time.After(10 * time.Second):
		require.Fail(t, "the request never ended")
	}
}

func TestGivingUpEndsARequest(t *testing.T) {
	c := linePipe(t, &Server{Handle: lineServer().Handle, Before: func(r *Reply) { r.Silent = true }}, func(b []byte) []byte { return b })
	ctx, cancel := context.WithCancel(t.Context())
	time.AfterFunc(10*time.Millisecond, cancel)
	_, err := c.Do(ctx, 1, Read(ReadHoldingRegisters, 0, 1), longTimeout)
	require.ErrorIs(t, err, context.Canceled)
}

func TestChecksum(t *testing.T) {
	require.Equal(t, []byte{0x01, 0x03, 0x00, 0x00, 0x00, 0x0A, 0xC5, 0xCD}, rtu{}.append(nil, frame{unit: 1, pdu: Read(3, 0, 10).pdu}))
}

func TestTargets(t *testing.T) {
	for text, want := range map[string]string{
		"10.0.0.5": "tcp://10.0.0.5:502", "plc:1502": "tcp://plc:1502", "TCP://[::1]": "tcp://[::1]:502", "rtuovertcp://gw:4001": "rtuovertcp://gw:4001",
		"rtu:///dev/ttyUSB0": "rtu:///dev/ttyUSB0", "/dev/ttyS1": "rtu:///dev/ttyS1",
	} {
		got, err := ParseTarget(text)
		require.NoError(t, err)
		require.Equal(t, want, got.String())
	}
	for _, text := range []string{"", "udp://x", "h:99999", "h/x", "rtu://", "rtu:///dev/x?baud=1"} {
		_, err := ParseTarget(text)
		require.Error(t, err, text)
	}
	line := Line{Baud: 9600, Parity: 'E', StopBits: 1}
	require.Equal(t, "9600 baud 8E1", line.String())
	require.Greater(t, Target{schemeRTU, "/dev/x", line}.silence(), 4*time.Millisecond)
	require.Equal(t, 1750*time.Microsecond, Target{schemeRTU, "/dev/x", Line{Baud: 115200}}.silence())
}

// FuzzAnswer: whatever a device sends, no answer is made of bytes that are none, and nothing panics.
func FuzzAnswer(f *testing.F) {
	f.Add(true, []byte{0, 1, 0, 0, 0, 7, 1, 3, 4, 0, 1, 0, 2})
	f.Add(false, rtu{}.append(nil, frame{unit: 1, pdu: []byte{3, 4, 0, 1, 0, 2}}))
	f.Add(false, []byte{1, 0x2B, 0x0E, 1, 1, 0, 0, 1, 0, 200})
	f.Fuzz(func(t *testing.T, tcp bool, b []byte) {
		target := Target{scheme: schemeRTU, Line: DefaultLine}
		if tcp {
			target.scheme = schemeTCP
		}
		fuzzFraming(t, target.framing(answerSize), b)
		q := Read(ReadHoldingRegisters, 0, 2)
		if data, err := q.data(b); err == nil {
			require.Len(t, data, 4)
		}
		_, _ = WriteRegister(1, 2).data(b)
		_, _ = Identification{}.add(b)
	})
}

// FuzzRequest: the same of a server.
func FuzzRequest(f *testing.F) {
	f.Add(true, []byte{0, 1, 0, 0, 0, 6, 1, 3, 0, 0, 0, 2})
	f.Add(false, rtu{}.append(nil, frame{unit: 1, pdu: WriteRegisters(1, []uint16{1, 2}).pdu}))
	f.Fuzz(func(t *testing.T, tcp bool, b []byte) {
		s := lineServer()
		s.Identification = Identification{0: "x"}
		target := Target{scheme: schemeRTU, Line: DefaultLine}
		if tcp {
			target.scheme = schemeTCP
		}
		for _, x := range fuzzFraming(t, target.framing(requestSize), b) {
			r := s.reply(x, time.Time{}, time.Time{})
			require.GreaterOrEqual(t, len(r.PDU), 2)
			require.LessOrEqual(t, len(r.PDU), maxPDU)
		}
	})
}

func fuzzFraming(t *testing.T, framing framing, b []byte) (all []frame) {
	for len(b) > 0 {
		f, size, ok, err := framing.next(b, false)
		require.LessOrEqual(t, size, len(b))
		if !ok || err != nil {
			_, size, _, _ = framing.next(b, true)
			require.LessOrEqual(t, size, len(b))
			return all
		}
		require.Positive(t, size)
		require.NotEmpty(t, f.pdu)
		require.LessOrEqual(t, len(f.pdu), maxPDU)
		all = append(all, f)
		b = b[size:]
	}
	return all
}
