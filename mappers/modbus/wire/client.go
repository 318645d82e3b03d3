// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"net"
	"os"
	"time"
)

// Options are how a client treats its connection.
type Options struct {
	Timeout      time.Duration // of connecting
	ConnectDelay time.Duration // from connecting to the first request
	// Strict has answers with another transaction or unit than the request's taken for nothing. Otherwise they are the answer to the only
	// request there is, unless an earlier one has been given up.
	Strict bool
	// After is the connection before, if there was one: a gateway may send over this one what it was asked over that one.
	After *Client
}

// Client is a connection. It is used by one goroutine at a time.
type Client struct {
	target   Target
	o        Options
	conn     io.ReadWriteCloser
	framing  framing
	received chan receivedBytes
	done     chan struct{}

	buffer      []byte
	err         error // the connection has ended
	transaction uint16
	readyAt     time.Time // nothing is sent before
	answers     int       // since it was made

	lost      map[uint16]bool    // transactions that were given up
	before    map[uint16]bool    // those of the connections before
	lateUntil map[byte]time.Time // until when a unit's answer to a request that was given up may come: without transactions
	echoes    bool               // answers have their requests' transactions
	foreign   bool               // they have others
	repeats   bool               // the line sends back what it is sent
}

type receivedBytes struct {
	data []byte
	err  error
}

// TimeoutError is that there was no answer.
type TimeoutError struct {
	After time.Duration
	Noise int // bytes that came, and are no answer
}

func (e *TimeoutError) Error() string {
	after := e.After.Round(time.Millisecond) // the rest of a deadline has another end each time
	if e.Noise > 0 {
		return fmt.Sprintf("no answer within %s, but %d bytes that are none", after, e.Noise)
	}
	return fmt.Sprintf("no answer within %s", after)
}

// Timeout is for net.Error's readers.
func (e *TimeoutError) Timeout() bool { return true }

// ClosedError is that the connection has ended. Sent is whether the request may have reached the device.
type ClosedError struct {
	Sent bool
	Err  error
}

func (e *ClosedError) Error() string {
	if errors.Is(e.Err, io.EOF) {
		return "the device closed the connection"
	}
	return "the connection ended: " + e.Err.Error()
}

func (e *ClosedError) Unwrap() error { return e.Err }

// ErrLate is of a unit that is not asked again yet, because it may still answer a request that was given up, and its answers don't say to
// which request they belong.
var ErrLate = errors.New("it has not answered the request before, and may still do so")

// Dial connects.
func Dial(ctx context.Context, t Target, o Options) (*Client, error) {
	conn, err := t.open(ctx, o.Timeout)
	if err != nil {
		return nil, fmt.Errorf("connect to %s: %w", t, err)
	}
	c := &Client{
		target: t, o: o, conn: conn, framing: t.framing(answerSize), received: make(chan receivedBytes, 4), done: make(chan struct{}),
		transaction: uint16(rand.Uint32()), lost: map[uint16]bool{}, lateUntil: map[byte]time.Time{}, //nolint:gosec // G404: no secret
	}
	if b := o.After; b != nil && b.target == t && !b.foreign {
		c.transaction, c.before = b.transaction, b.lost
		if len(b.before) < 64 { // else most never come
			maps.Copy(c.before, b.before)
		}
	}
	c.o.After = nil
	c.readyAt = time.Now().Add(o.ConnectDelay)
	go c.receive()
	return c, nil
}

// Close ends the connection.
func (c *Client) Close() error {
	select {
	case <-c.done:
		return nil
	default:
		close(c.done)
	}
	return c.conn.Close()
}

// Answers is how many requests were answered since it was made.
func (c *Client) Answers() int { return c.answers }

// MixesUp is whether a late answer could not be told from that to the next request, so that another connection is needed after a request
// that was given up.
func (c *Client) MixesUp() bool { return c.foreign && len(c.lost) > 0 }

// WaitLate waits until a unit can be asked again after ErrLate.
func (c *Client) WaitLate(ctx context.Context, unit byte) error {
	return c.wait(ctx, c.lateUntil[unit])
}

// receive has all that comes received, so that the end of an idle connection shows before the next request.
func (c *Client) receive() {
	for {
		b := make([]byte, 512)
		n, err := c.conn.Read(b)
		if n == 0 && err == nil {
			continue
		}
		select {
		case c.received <- receivedBytes{b[:n], err}:
		case <-c.done:
			return
		}
		if err != nil {
			return
		}
	}
}

// Do sends a request and returns the data of its answer. An Exception is an answer, too. After a *ClosedError, and after a
// malformed answer, the client is of no use any more.
func (c *Client) Do(ctx context.Context, unit byte, q Request, timeout time.Duration) ([]byte, error) {
	if err := c.wait(ctx, c.readyAt); err != nil {
		return nil, err
	}
	if err := c.drain(ctx, timeout); err != nil {
		return nil, err
	}
	if until, late := c.lateUntil[unit]; late {
		if time.Now().Before(until) {
			return nil, ErrLate
		}
		delete(c.lateUntil, unit)
	}
	c.transaction++
	sent := c.framing.append(nil, frame{c.transaction, unit, q.pdu})
	if conn, ok := c.conn.(net.Conn); ok {
		_ = conn.SetWriteDeadline(time.Now().Add(timeout))
	}
	if _, err := c.conn.Write(sent); err != nil {
		c.err = &ClosedError{Sent: !errors.Is(err, net.ErrClosed), Err: err}
		return nil, c.err
	}
	defer func() { c.readyAt = time.Now().Add(c.target.silence()) }()
	return c.await(ctx, unit, q, sent, timeout)
}

// Pause has the next request wait at least so long.
func (c *Client) Pause(d time.Duration) {
	if at := time.Now().Add(d); at.After(c.readyAt) {
		c.readyAt = at
	}
}

func (c *Client) wait(ctx context.Context, until time.Time) error {
	left := time.Until(until)
	if left <= 0 {
		return ctx.Err()
	}
	timer := time.NewTimer(left)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// drain throws away what has come unasked: late answers, and noise. On a line without transactions it waits until the line is silent, for
// as long as an answer may take: somebody else may be talking there all the time.
func (c *Client) drain(ctx context.Context, timeout time.Duration) error {
	c.buffer = c.buffer[:0]
	end, noise := time.Now().Add(timeout), 0
	for c.err == nil {
		select {
		case r := <-c.received:
			if noise += len(r.data); r.err != nil {
				c.err = &ClosedError{Err: r.err}
			} else if time.Now().After(end) {
				return &TimeoutError{timeout, noise}
			} else if silence := c.target.silence(); silence > 0 {
				if err := c.wait(ctx, time.Now().Add(silence)); err != nil {
					return err
				}
			}
		default:
			return ctx.Err()
		}
	}
	return c.err
}

// await returns the data of the answer to q.
func (c *Client) await(ctx context.Context, unit byte, q Request, sent []byte, timeout time.Duration) ([]byte, error) {
	limit := time.NewTimer(timeout + c.target.sending(len(sent)+q.size))
	defer limit.Stop()
	pause := time.NewTimer(time.Hour)
	defer pause.Stop()
	noise, echo := 0, c.target.scheme != schemeTCP
	for {
		ended := false
		select {
		case r := <-c.received:
			if r.err != nil {
				c.giveUp(unit, timeout)
				c.err = &ClosedError{Sent: true, Err: r.err}
				return nil, c.err
			}
			c.buffer = append(c.buffer, r.data...)
			pause.Reset(c.target.silence() + 30*time.Millisecond) // adapters on USB deliver in pieces
		case <-pause.C:
			ended = true
		case <-limit.C:
			c.giveUp(unit, timeout)
			return nil, &TimeoutError{timeout, noise + len(c.buffer)}
		case <-ctx.Done():
			c.giveUp(unit, timeout)
			return nil, ctx.Err()
		}
		if echo && len(c.buffer) >= len(sent) {
			echo = false
			c.skipEcho(q, sent)
		}
		data, answered, skipped, err := c.take(unit, q, ended)
		noise += skipped
		if answered || err != nil {
			return data, err
		}
	}
}

// skipEcho takes away what the line has sent back. A write's echo looks as its answer does: it is one only on a line whose other requests
// have come back.
func (c *Client) skipEcho(q Request, sent []byte) {
	if !bytes.HasPrefix(c.buffer, sent) || !c.repeats && q.IsWrite() {
		return
	}
	c.repeats = true
	c.buffer = c.buffer[len(sent):]
}

// take looks for the answer in what has come.
func (c *Client) take(unit byte, q Request, ended bool) (data []byte, answered bool, skipped int, err error) {
	for len(c.buffer) > 0 {
		f, size, ok, err := c.framing.next(c.buffer, ended)
		c.buffer = c.buffer[size:]
		switch {
		case err != nil:
			c.err = err
			return nil, false, skipped, err
		case !ok:
			return nil, false, skipped + size, nil
		case !c.belongs(f, unit, q):
			skipped += size
			continue
		}
		data, err = q.data(f.pdu)
		if !IsMalformed(err) {
			c.answers++
		}
		return data, true, skipped, err
	}
	return nil, false, skipped, nil
}

// belongs is whether a frame is the answer to the request that is out.
func (c *Client) belongs(f frame, unit byte, q Request) bool {
	if c.target.scheme != schemeTCP {
		return f.unit == unit || !c.o.Strict && f.unit == 0 && q.matches(f.pdu)
	}
	if f.transaction == c.transaction {
		if f.unit != unit && (c.o.Strict || !q.matches(f.pdu)) {
			return false
		}
		c.echoes = true
		return true
	}
	if c.lost[f.transaction] || c.before[f.transaction] {
		delete(c.lost, f.transaction)
		delete(c.before, f.transaction)
		return false
	}
	if c.o.Strict || c.echoes || len(c.lost) > 0 || !q.matches(f.pdu) {
		return false
	}
	c.foreign = true
	return true
}

// giveUp remembers that an answer may still come.
func (c *Client) giveUp(unit byte, timeout time.Duration) {
	if c.target.scheme != schemeTCP {
		c.lateUntil[unit] = time.Now().Add(timeout)
		return
	}
	if len(c.lost) > 1024 { // which never came
		clear(c.lost)
	}
	c.lost[c.transaction] = true
}

// Identify reads the device identification of a unit.
func (c *Client) Identify(ctx context.Context, unit byte, timeout time.Duration) (Identification, error) {
	var refused error
	for _, code := range []byte{2, 1} { // regular, or else basic
		got := Identification{}
		for next, tries := byte(0), 0; tries < 16; tries++ {
			data, err := c.Do(ctx, unit, Identify(code, next), timeout)
			if err == nil {
				var more byte
				if more, err = got.add(data); err == nil && more <= next {
					return got, nil
				}
				next = more
			}
			if refused = err; err != nil {
				break
			}
		}
		if refused == nil {
			return got, nil
		}
		if !errors.As(refused, new(Exception)) {
			break
		}
	}
	return nil, refused
}

// IsTimeout reports whether err is that nothing was answered in time.
func IsTimeout(err error) bool {
	return errors.As(err, new(*TimeoutError)) || errors.Is(err, ErrLate) || errors.Is(err, os.ErrDeadlineExceeded)
}

// IsClosed reports whether err is that the connection has ended.
func IsClosed(err error) bool { return errors.As(err, new(*ClosedError)) }
