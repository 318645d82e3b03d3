package broker

import (
	"bytes"
	"errors"
	"io"
	"time"

	"github.com/mochi-mqtt/server/v2/packets"
)

var (
	errTold = errors.New("connection closed by the broker") // and the client knows why
	errLeft = errors.New("the client disconnected")
)

const (
	readBuffer = 4096
	readStep   = 64 << 10 // a packet that is larger gets its memory as it arrives
)

// network is the socket as the read buffer sees it. The keep-alive counts from the
// end of a packet to the next one, so that a client can't live on single bytes.
type network struct {
	c     *conn
	fresh bool // a packet has ended since the deadline was set
}

func (n *network) Read(p []byte) (int, error) {
	if n.fresh {
		n.fresh = false
		n.c.extend()
	}
	return n.c.Conn.Read(p)
}

// extend gives the client until one and a half keep-alives from now.
func (c *conn) extend() {
	var deadline time.Time
	if c.keepAlive > 0 {
		deadline = time.Now().Add(c.keepAlive + c.keepAlive/2)
	}
	c.readUntil(deadline)
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
	}()
	if err := c.connect(); err != nil {
		return err
	}
	for {
		c.in.fresh = true
		first, body, err := c.frame()
		if err != nil {
			return err
		}
		if !c.w.WaitRoom() {
			return errTold
		}
		pk, err := decode(byte(c.version.Load()), first, body)
		if err != nil {
			return err
		}
		if err := c.handle(&pk); err != nil {
			return err
		}
	}
}

// frame reads one packet: its first byte, and what follows its length. The bytes are
// the caller's, but for an acknowledgement's, which are so until the next call.
func (c *conn) frame() (first byte, body []byte, err error) {
	if first, err = c.r.ReadByte(); err != nil {
		return 0, nil, err
	}
	n, err := c.length()
	if err != nil {
		return 0, nil, err
	}
	switch kind := first >> 4; {
	case kind >= packets.Puback && kind <= packets.Pubcomp && n <= len(c.scratch):
		body = c.scratch[:n]
	case n <= readStep:
		body = make([]byte, n)
	default:
		var large bytes.Buffer
		_, err = io.CopyN(&large, c.r, int64(n))
		return first, large.Bytes(), err
	}
	_, err = io.ReadFull(c.r, body)
	return first, body, err
}

// length reads how long the rest of a packet is.
func (c *conn) length() (n int, err error) {
	for size := 1; size <= 4; size++ {
		b, err := c.r.ReadByte()
		if err != nil {
			return 0, err
		}
		n |= int(b&0x7F) << (7 * (size - 1))
		switch {
		case b >= 0x80:
		case 1+size+n > int(c.b.opts.Limits.MaximumPacket):
			return 0, packets.ErrPacketTooLarge
		default:
			return n, nil
		}
	}
	return 0, errMalformed
}

// decode reads a packet of an established connection.
func decode(version, first byte, body []byte) (pk packets.Packet, err error) {
	if err := wellFormed(version, first, body); err != nil {
		return pk, err
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
		sess.Puback(pk.PacketID)
	case packets.Pubrec:
		if answer, ok := sess.Pubrec(pk.PacketID, pk.ReasonCode); ok {
			c.w.Control(answer.Append(nil, c.ident.Version))
		}
	case packets.Pubrel:
		c.acks.released(pk.PacketID)
		sess.Release(pk.PacketID, c.w)
	case packets.Pubcomp:
		sess.Pubcomp(pk.PacketID)
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
	c.disconnect(code, reason)
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
		c.takeWill()
	}
	return errLeft
}
