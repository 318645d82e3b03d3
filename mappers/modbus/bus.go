// SPDX-License-Identifier: Apache-2.0

package modbus

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/edgebus/edgebus/mappers"
	"github.com/edgebus/edgebus/mappers/modbus/wire"
)

// bus is the connection that the units behind one address, or on one serial line, share. It makes one request at a time.
type bus struct {
	key    string
	shares atomic.Int32  // how many sessions use it
	free   chan struct{} // has capacity 1; who takes what is in it may use the rest

	client     *wire.Client
	target     wire.Target  // of the client
	before     *wire.Client // the connection before
	answered   map[uint8]bool
	silent     int // requests in a row to units that have answered over the connection, and didn't
	lastAnswer time.Time
	idle       *time.Timer // closes the connection

	connectedAt time.Time
	downUntil   time.Time // don't connect again before
	downErr     error
	learned     learnedHabits
}

// learnedHabits is what a bus has found out about what is at its address.
type learnedHabits struct {
	since        time.Time
	closings     int // connections in a row that were closed after one answer
	connect      connectMode
	hasty        bool // the last request came soon after an answer, and had none
	lost         wire.Request
	quick        bool // such a request was answered
	hastyLosses  int  // such requests in a row that were answered when they were made again
	pause        time.Duration
	deaf         bool // the first request after connecting had no answer
	deafStarts   int  // such connections in a row over which the second request was answered
	connectDelay time.Duration
}

// doubtAfter is how long what was learned is believed.
const doubtAfter = 24 * time.Hour

func newBus(key string) *bus {
	b := &bus{key: key, free: make(chan struct{}, 1), answered: map[uint8]bool{}}
	b.free <- struct{}{}
	return b
}

// take waits until nobody else uses the connection.
func (b *bus) take(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	select {
	case <-b.free:
		if b.idle != nil {
			b.idle.Stop()
		}
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// give lets others use the connection, which stays open or not.
func (b *bus) give(mode connectMode) {
	switch {
	case b.client == nil:
	case mode == connectRequest:
		b.disconnect()
	case mode == connectCycle:
		b.idle = time.AfterFunc(cycleIdle, func() {
			select {
			case <-b.free:
				b.disconnect()
				b.free <- struct{}{}
			default: // it is in use
			}
		})
	}
	b.free <- struct{}{}
}

// cycleIdle is how long nothing has been asked when a cycle is over.
const cycleIdle = 50 * time.Millisecond

// close ends the connection when whoever uses it is done.
func (b *bus) close() {
	<-b.free
	if b.idle != nil {
		b.idle.Stop()
	}
	b.disconnect()
	b.free <- struct{}{}
}

func (b *bus) disconnect() {
	if b.client != nil {
		_ = b.client.Close()
		b.client, b.before = nil, b.client
	}
	clear(b.answered)
	b.silent = 0
}

// call makes one request of a session's unit.
func (b *bus) call(ctx context.Context, s *session, q wire.Request, timeout time.Duration) ([]byte, error) {
	if err := b.take(ctx); err != nil {
		return nil, err
	}
	defer func() { b.give(b.mode(s)) }()
	return b.request(ctx, s, q, timeout)
}

func (b *bus) mode(s *session) connectMode {
	if s.config.connect == connectKeep && b.learned.connect != "" {
		return b.learned.connect
	}
	return s.config.connect
}

// retries are the pauses before connecting again, after a connection that ended before an answer: some devices take the next
// connection only after a while.
var retries = []time.Duration{0, 300 * time.Millisecond, 700 * time.Millisecond}

// request makes a request, over a fresh connection if the one there is has ended. A write that may have reached the device is not repeated.
// The caller has taken the bus.
func (b *bus) request(ctx context.Context, s *session, q wire.Request, timeout time.Duration) (data []byte, err error) {
	for _, pause := range append([]time.Duration{0}, retries...) {
		if !sleep(ctx, pause) {
			return nil, ctx.Err()
		}
		if err := b.connect(ctx, s); err != nil {
			return nil, err
		}
		data, err = b.do(ctx, s, q, timeout)
		for first := b.silent == 0; wire.IsTimeout(err) && !errors.Is(err, wire.ErrLate) && b.mayBeDeaf(first && !s.driver.patient) && !q.IsWrite(); first = false {
			noted := b.note(s, q, err)
			if b.client == nil { // it was given up
				return nil, noted
			}
			if data, err = b.do(ctx, s, q, timeout); errors.Is(err, wire.ErrLate) {
				return nil, noted
			}
		}
		if errors.Is(err, wire.ErrLate) {
			return nil, mappers.NotSent(err)
		}
		var closed *wire.ClosedError
		if !errors.As(err, &closed) {
			return data, b.note(s, q, err)
		}
		b.noteClosed(s)
		if closed.Sent && q.IsWrite() {
			return nil, err
		}
		if !closed.Sent {
			err = mappers.NotSent(err)
		}
	}
	return nil, err
}

// do makes a request over the connection that there is. A unit that may still answer an earlier one is waited for if that keeps nobody else
// waiting.
func (b *bus) do(ctx context.Context, s *session, q wire.Request, timeout time.Duration) ([]byte, error) {
	data, err := b.client.Do(ctx, s.config.unit, q, timeout)
	if errors.Is(err, wire.ErrLate) && (b.shares.Load() == 1 || s.driver.patient) && b.client.WaitLate(ctx, s.config.unit) == nil {
		data, err = b.client.Do(ctx, s.config.unit, q, timeout)
	}
	return data, err
}

// connect makes a connection if there is none. When that has just failed it fails again at once: ten units behind a dead gateway wait for
// one attempt, not for ten.
func (b *bus) connect(ctx context.Context, s *session) error {
	if b.client != nil && b.target == s.config.target {
		return nil
	}
	b.disconnect()
	if time.Now().Before(b.downUntil) {
		return b.downErr
	}
	c, err := wire.Dial(ctx, s.config.target, wire.Options{
		Timeout: s.config.timeout, ConnectDelay: max(s.config.connectDelay, b.learned.connectDelay), Strict: s.config.strict,
		After: b.before,
	})
	if err != nil {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		b.downErr, b.downUntil = mappers.NotSent(err), time.Now().Add(time.Second)
		return b.downErr
	}
	b.client, b.target, b.downUntil, b.connectedAt = c, s.config.target, time.Time{}, time.Now()
	return nil
}

// mostSilent is how many requests in a row without an answer end the connection: two to units that have answered over it. One over which none has answered
// yet stays for the turns of some more, which may be dead: a fresh one costs the first of them a second request.
func (b *bus) mostSilent() int {
	if len(b.answered) > 0 {
		return 2
	}
	return min(int(b.shares.Load())+1, 6)
}

// note keeps or ends the connection after a request, and learns of it. One time-out says nothing about the connection: a unit may be
// dead, or a register. Several in a row do.
func (b *bus) note(s *session, q wire.Request, err error) error {
	unit, now := s.config.unit, time.Now()
	var refused wire.Exception
	switch {
	case err == nil, errors.As(err, &refused), wire.IsShort(err):
		b.learn(s, q, now)
		if !refused.OfGateway() {
			b.answered[unit] = true
		}
		b.silent, b.lastAnswer = 0, now
		b.client.Pause(max(s.config.pause, b.learned.pause))
		return err
	case wire.IsMalformed(err):
		b.disconnect()
		return err
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
	default:
		b.learned.deaf = b.client.Answers() == 0
		b.learned.lost = q
		if b.learned.hasty = b.answered[unit] && now.Sub(b.lastAnswer) < s.config.timeout+hastyAfter; b.learned.hasty && !b.learned.quick {
			err = &hastyError{err}
		}
		if b.answered[unit] || len(b.answered) == 0 {
			b.silent++
		}
	}
	if b.silent >= b.mostSilent() && !b.mayBeDeaf(false) && !s.driver.patient || b.client.MixesUp() {
		b.disconnect()
	}
	return err
}

// hastyError is of a request that came soon after an answer, to a device of which it isn't known whether it answers such requests.
type hastyError struct{ error }

func (e *hastyError) Unwrap() error { return e.error }

// mayBeDeaf is whether the device has not answered anything over the connection because that is new. It is given the time of a first request
// at least.
func (b *bus) mayBeDeaf(first bool) bool {
	return b.client.Answers() == 0 && (first || time.Since(b.connectedAt) < deafTime)
}

const deafTime = 1200 * time.Millisecond

// hastyAfter is how soon after an answer a request comes too soon for some devices.
const hastyAfter = 20 * time.Millisecond

// learn draws conclusions from an answer, of which a device's that is only sometimes silent are none: it takes the same twice in a row.
func (b *bus) learn(s *session, q wire.Request, now time.Time) {
	l := &b.learned
	if !l.since.IsZero() && now.Sub(l.since) > doubtAfter {
		*l = learnedHabits{}
		for _, code := range []string{toldConnect, toldPause, toldConnectDelay} {
			s.device.Tell(code, "")
		}
	}
	switch {
	case l.hasty && l.lost.Same(q):
		if l.hastyLosses++; l.hastyLosses >= 2 && l.pause < time.Second {
			l.pause, l.since, l.hastyLosses = max(50*time.Millisecond, 2*l.pause), now, 0
			s.device.Tell(toldPause, fmt.Sprintf("does not answer a request that comes too soon after an answer: set pause: %s, or what its manual says", l.pause))
		}
	case now.Sub(b.lastAnswer) < hastyAfter && s.config.pause < hastyAfter:
		l.hastyLosses, l.quick = 0, true
	}
	if b.client.Answers() == 1 {
		switch {
		case !l.deaf:
			l.deafStarts = 0
		case l.lost.Same(q): // another one may never be answered
			if l.deafStarts++; l.deafStarts >= 2 && l.connectDelay == 0 {
				l.connectDelay, l.since = time.Second, now
				s.device.Tell(toldConnectDelay, "does not answer just after connecting: set connectDelay: 1s, or what its manual says")
			}
		}
	}
	l.hasty, l.deaf = false, false
}

// noteClosed learns from a connection that the other side has closed.
func (b *bus) noteClosed(s *session) {
	l := &b.learned
	switch b.client.Answers() {
	case 0:
	case 1:
		if l.closings++; l.closings >= 3 && l.connect == "" && s.config.connect != connectRequest {
			l.connect, l.since = connectRequest, time.Now()
			s.device.Tell(toldConnect, "closes the connection after each answer: set connect: request")
		}
	default:
		l.closings = 0
	}
	b.disconnect()
}

// What is told of a device, by code.
const (
	toldConnect      = "Connect"
	toldPause        = "Pause"
	toldConnectDelay = "ConnectDelay"
	toldLimit        = "MaxRegisters"
	toldWrite        = "Write"
)

// reconnect ends a connection over which nobody else has answered than the unit that has failed. One over which nothing was answered yet
// stays: the device may need time after it was made.
func (b *bus) reconnect(s *session) {
	if b.take(context.Background()) != nil {
		return
	}
	defer b.give(connectKeep)
	if len(b.answered) == 1 && b.answered[s.config.unit] {
		b.disconnect()
	}
}

func sleep(ctx context.Context, d time.Duration) bool {
	if d <= 0 {
		return ctx.Err() == nil
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}
