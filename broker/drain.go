// SPDX-License-Identifier: Apache-2.0

package broker

import (
	"errors"
	"os"
	"sync"
	"time"
)

// What a client sent before it closed its connection counts, although the broker has not read it yet when the client is
// back on another connection, or when the broker itself ends the connection: it may be the DISCONNECT that says that there
// is no will to publish. So a connection is drained before it ends: what has arrived is handled, and the client's own end
// if that is among it.

const (
	drainTime         = time.Second            // at most, for a client that doesn't stop sending
	partialPacketTime = 100 * time.Millisecond // for the rest of a packet that has arrived in part
)

// errDrained ends the reading of a connection that the broker ends, once all that had arrived has been handled.
var errDrained = errors.New("everything that the client sent has been handled")

// drainState is the state of draining a connection.
type drainState struct {
	mu      sync.Mutex
	code    byte            // for the client
	why     error           // nil: the connection failed, and the client can't be told
	ends    bool            // the connection ends once everything has been handled
	waiting []chan struct{} // closed at the same moment
	part    int             // the reader's: how much of a packet there was when it last waited for the rest
}

// asked reports whether somebody waits for what has arrived to be handled.
func (d *drainState) asked() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.ends || len(d.waiting) > 0
}

// answer tells who waits, and reports whether the connection ends now.
func (d *drainState) answer() (ends bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, done := range d.waiting {
		close(done)
	}
	d.waiting = nil
	return d.ends
}

func (d *drainState) reason() (code byte, why error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.code, d.why
}

// expel ends the connection once what has arrived has been handled, for a reason that an MQTT 5 client gets in a
// DISCONNECT. Without a reason it is one that has failed. A client that doesn't stop sending is cut off. disconnect is for
// clients whose packets must not be handled any more.
func (c *conn) expel(code byte, why error) {
	d := &c.drain
	d.mu.Lock()
	first := !d.ends
	d.ends = true
	if d.why == nil {
		d.code, d.why = code, why
	}
	d.mu.Unlock()
	if !first || c.closing.Load() {
		c.wakeReader()
		return
	}
	time.AfterFunc(drainTime, func() {
		select {
		case <-c.end.stopped:
		default:
			c.endDrained()
		}
	})
	c.wakeReader()
}

// endDrained closes a connection that was expelled.
func (c *conn) endDrained() {
	if code, why := c.drain.reason(); why != nil {
		c.disconnect(code, why)
	} else {
		c.shut()
	}
}

// settled returns a channel that is closed when what has arrived so far has been handled, unless that ends the connection.
func (c *conn) settled() <-chan struct{} {
	done := make(chan struct{})
	d := &c.drain
	d.mu.Lock()
	d.waiting = append(d.waiting, done)
	d.mu.Unlock()
	c.wakeReader()
	return done
}

// settleConns waits until what has arrived on the connections has been handled or they have ended, but no longer than drainTime.
func settleConns(conns []*conn, ended func(*conn) <-chan struct{}) {
	handled := make([]<-chan struct{}, len(conns))
	for i, c := range conns {
		handled[i] = c.settled()
	}
	most := time.NewTimer(drainTime)
	defer most.Stop()
	for i, c := range conns {
		select {
		case <-handled[i]:
		case <-ended(c):
		case <-most.C:
			return
		}
	}
}

func (c *conn) hasStopped() <-chan struct{}  { return c.end.stopped }
func (c *conn) hasDetached() <-chan struct{} { return c.end.detached }

// interrupted decides what follows a read that failed. A deadline may have been that of an earlier packet, or set to wake the
// reader: then read is what has arrived without waiting, and it goes on with that, or waits again. TLS and WebSocket must
// not see such an error, since they keep it.
func (c *conn) interrupted(err error, part int, poll func() (got bool, err error)) (again bool, now error) {
	if err == nil || !errors.Is(err, os.ErrDeadlineExceeded) || c.closing.Load() {
		return false, err
	}
	if !c.drain.asked() {
		return c.extendDeadline(err), err
	}
	if got, err := poll(); got || err != nil {
		return false, err
	}
	if part > 0 && part != c.drain.part { // the rest may be on its way
		c.drain.part = part
		_ = c.SetReadDeadline(time.Now().Add(partialPacketTime))
		if !c.closing.Load() {
			return true, nil
		}
	}
	if c.drain.answer() {
		return false, errDrained
	}
	deadline := time.Time{}
	if !c.keepAlive.lastHandled.IsZero() {
		deadline = c.keepAlive.due()
	}
	c.readUntil(deadline)
	return true, nil
}

// settleUser handles what has arrived on the connections that count against the quotas of a connection's user: those of the
// user, and those from its address. One goroutine does that at a time, and for all that wait meanwhile.
func (cs *clients) settleUser(c *conn) {
	at := quotaHolderOf(c.ident, c.RemoteAddr())
	came := time.Now()
	cs.settled.mu.Lock()
	defer cs.settled.mu.Unlock()
	if cs.settled.who == at && cs.settled.began.After(came) {
		return
	}
	cs.settled.who, cs.settled.began = at, time.Now()
	conns := cs.chosenConns(func(id *Identity) bool { return id.User == c.ident.User })
	if at.host != "" {
		for _, one := range cs.chosenConns(func(id *Identity) bool { return id.User != c.ident.User }) {
			if one.quotas.host == c.quotas.host {
				conns = append(conns, one)
			}
		}
	}
	settleConns(conns, (*conn).hasDetached)
}
