package broker

import (
	"bytes"
	"encoding/binary"
	"errors"
	"os"
	"runtime"
	"time"

	"github.com/mochi-mqtt/server/v2/packets"
)

var (
	errTold = errors.New("connection closed by the broker") // and the client knows why
	errLeft = errors.New("the client disconnected")
)

// frame is the next packet: its first byte, and what follows its length. The bytes are
// overwritten when the one after it is asked for.
func (c *conn) frame() (first byte, body []byte, err error) {
	for {
		first, body, ok, err := c.in.next()
		switch {
		case c.closing.Load(): // what it sent after that is nobody's
			return 0, nil, errTold
		case ok || err != nil:
			c.heard = true
			return first, body, err
		}
		if err := c.more(); err != nil {
			return 0, nil, err
		}
	}
}

// more waits for what else the client sends. Between two reads is where a client can
// be held up: what it has sent so far was dealt with.
func (c *conn) more() error {
	c.batch.Flush()
	c.recent = nil // which may be outdated by then, and large
	if !c.w.WaitRoom() {
		return errTold
	}
	if c.in.full() { // somebody who sends faster than it is taken doesn't keep the others waiting
		c.batch.Await()
		runtime.Gosched()
	}
	if c.heard { // and what it waited for itself isn't counted against it
		c.heard = false
		c.extend()
	}
	err := c.in.fill()
	for c.mayGoOn(err) {
		err = c.in.fill()
	}
	if c.in.raw != nil { // or what is beneath tells
		now := time.Now()
		c.arrived(now, c.in.waited(now), c.in.filled < smallBuffer)
	}
	return err
}

// extend gives the client one and a half keep-alives from now. They count from the end of
// a packet to the next one: a client can't live on single bytes. The deadline is left where
// it is, and moved when it is reached, so that it needn't be set anew for each packet.
func (c *conn) extend() {
	if c.keepAlive == 0 {
		return
	}
	first := c.last.IsZero()
	if c.last = time.Now(); first {
		c.readUntil(c.due())
	}
}

// due is when the client has said nothing for too long.
func (c *conn) due() time.Time { return c.last.Add(c.keepAlive + c.keepAlive/2) }

// mayGoOn says whether a read that failed is to be tried again, because its deadline was
// that of an earlier packet. What lies between us and the socket must not hear of that.
func (c *conn) mayGoOn(err error) bool {
	if err == nil || c.last.IsZero() || c.closing.Load() || !errors.Is(err, os.ErrDeadlineExceeded) || !time.Now().Before(c.due()) {
		return false
	}
	c.readUntil(c.due())
	return true
}

// read takes the CONNECT and then packets, until the connection ends. What the checks
// let through must not be able to make the decoder panic; should it nevertheless, to
// the sender that is a malformed packet, and to nobody else anything.
func (c *conn) read() (err error) {
	defer func() {
		if p := recover(); p != nil {
			c.b.stats.panics.Add(1)
			c.b.floods.Warn().Interface("panic", p).Str("remote", c.RemoteAddr().String()).Msg("malformed packet")
			err = errMalformed
		}
		c.batch.Flush() // what came before the end
	}()
	if err := c.connect(); err != nil {
		return err
	}
	c.readUntil(time.Time{})
	for {
		first, body, err := c.frame()
		if err == nil && !c.landed(first, body) {
			err = c.serveOne(first, body)
		}
		if err != nil {
			return err
		}
	}
}

func (c *conn) serveOne(first byte, body []byte) (err error) {
	if !c.passOn(first, body) {
		err = c.take(first, body)
	}
	if kind := first >> 4; err == nil && (kind < packets.Puback || kind > packets.Pubcomp) {
		c.spend(len(body))
	}
	return err
}

// take deals with a packet of any kind. Decoded packets are large: a reader that waits
// has none on its stack.
func (c *conn) take(first byte, body []byte) error {
	if first>>4 != packets.Publish {
		c.batch.Flush() // what comes now may wait for the disk
	}
	pk, err := decode(byte(c.version.Load()), first, body)
	if first>>4 == packets.Publish && errors.Is(err, errUserProperties) {
		return c.refuseUnread(first, body)
	}
	if err != nil {
		return err
	}
	return c.handle(&pk)
}

// landed takes the plain PUBACK, which is half of all packets of a busy subscriber. Any
// other is for decode and handle.
func (c *conn) landed(first byte, body []byte) bool {
	if first != packets.Puback<<4 || len(body) != 2 {
		return false
	}
	id := binary.BigEndian.Uint16(body)
	if id > 0 {
		c.acknowledged(c.client.sess.Puback(id, &c.batch))
	}
	return id > 0
}

// decode reads a packet of an established connection. The packet keeps nothing of the
// body, unless it is an acknowledgement.
func decode(version, first byte, body []byte) (pk packets.Packet, err error) {
	if err := wellFormed(version, first, body); err != nil {
		return pk, err
	}
	if kind := first >> 4; kind < packets.Puback || kind > packets.Pubcomp {
		body = bytes.Clone(body) // the library's texts are parts of it
	}
	pk.ProtocolVersion = version
	if err := pk.FixedHeader.Decode(first); err != nil {
		return pk, err
	}
	pk.FixedHeader.Remaining = len(body)
	switch pk.FixedHeader.Type {
	case packets.Publish:
		err = pk.PublishDecode(body)
	case packets.Puback, packets.Pubrec, packets.Pubrel, packets.Pubcomp:
		err = pk.PubackDecode(body)
	case packets.Subscribe:
		err = pk.SubscribeDecode(body)
	case packets.Unsubscribe:
		err = pk.UnsubscribeDecode(body)
	case packets.Disconnect:
		if len(body) == 1 { // the library overlooks a reason code without properties
			body = append(body, 0)
			pk.FixedHeader.Remaining = 2
		}
		err = pk.DisconnectDecode(body)
	}
	return pk, err
}

// handle deals with a packet of an established connection. An error closes it.
func (c *conn) handle(pk *packets.Packet) error {
	sess := c.client.sess
	switch pk.FixedHeader.Type {
	case packets.Publish:
		return c.publish(pk)
	case packets.Puback:
		c.acknowledged(sess.Puback(pk.PacketID, nil))
	case packets.Pubrec:
		answer, ok := sess.Pubrec(pk.PacketID, pk.ReasonCode)
		c.acknowledged(answer.Code == codeSuccess)
		if ok {
			c.w.Control(answer.Append(nil, c.ident.Version))
		}
	case packets.Pubrel:
		c.acks.released(pk.PacketID)
		sess.Release(pk.PacketID, c.w)
		c.spend(0)
	case packets.Pubcomp:
		c.acknowledged(sess.Pubcomp(pk.PacketID))
	case packets.Subscribe:
		return c.subscribe(pk)
	case packets.Unsubscribe:
		return c.unsubscribe(pk)
	case packets.Pingreq:
		c.w.Control(pingresp)
	case packets.Disconnect:
		return c.disconnected(pk)
	}
	return nil
}

var pingresp = []byte{packets.Pingresp << 4, 0}

// fail closes the connection for a mistake of the client's.
func (c *conn) fail(code byte, reason string) error {
	c.disconnect(code, errors.New(reason))
	return errTold
}

// disconnected takes note of a DISCONNECT.
func (c *conn) disconnected(pk *packets.Packet) error {
	if pk.Properties.SessionExpiryIntervalFlag {
		seconds := pk.Properties.SessionExpiryInterval
		if seconds > 0 && c.expiry == 0 {
			return c.fail(codeProtocolError, "a session that was to end with the connection can't be kept")
		}
		c.expiry = c.b.sessionExpiry(seconds)
	}
	if pk.ReasonCode == codeSuccess { // any other is no normal end
		c.b.dropWill(c.takeWill())
	}
	return errLeft
}
