package broker

import (
	"errors"
	"time"

	mqtt "github.com/mochi-mqtt/server/v2"
	"github.com/mochi-mqtt/server/v2/packets"

	"github.com/edgebus/edgebus/topics"
)

// hook is where the protocol library hands over. Of a connection's packets it
// handles CONNECT, PINGREQ and DISCONNECT itself; all others are taken from it in
// OnPacketRead.
type hook struct {
	mqtt.HookBase
	b *Broker
}

func (h *hook) ID() string { return "edgebus" }

func (h *hook) Provides(b byte) bool {
	switch b {
	case mqtt.OnPacketRead, mqtt.OnConnect, mqtt.OnConnectAuthenticate, mqtt.OnSessionEstablish,
		mqtt.OnSessionEstablished, mqtt.OnPacketEncode, mqtt.OnPublish:
		return true
	}
	return false
}

// ignored is what the library gets in place of a packet that was handled: the
// acknowledgement of something that was never sent.
var ignored = packets.Packet{FixedHeader: packets.FixedHeader{Type: packets.Puback}}

func (h *hook) OnPacketRead(cl *mqtt.Client, pk packets.Packet) (packets.Packet, error) {
	c := cl.Net.Conn.(*conn)
	if !c.established.Load() {
		if pk.FixedHeader.Type == packets.Connect {
			c.connecting(&pk)
		}
		return pk, nil
	}
	if !c.w.WaitRoom() {
		return pk, packets.ErrRejectPacket
	}
	return c.handle(pk)
}

// handle deals with a packet of an established connection. An error closes it.
func (c *conn) handle(pk packets.Packet) (packets.Packet, error) {
	sess := c.client.sess
	var err error
	switch pk.FixedHeader.Type {
	case packets.Publish:
		err = c.publish(&pk)
	case packets.Puback:
		sess.Puback(pk.PacketID)
	case packets.Pubrec:
		if answer, ok := sess.Pubrec(pk.PacketID, pk.ReasonCode); ok {
			c.w.Control(answer.Append(nil, c.ident.Version))
		}
	case packets.Pubrel:
		sess.Release(pk.PacketID, c.w)
	case packets.Pubcomp:
		sess.Pubcomp(pk.PacketID)
	case packets.Subscribe:
		err = c.subscribe(&pk)
	case packets.Unsubscribe:
		err = c.unsubscribe(&pk)
	case packets.Disconnect:
		return pk, c.disconnected(&pk)
	case packets.Pingreq:
		return pk, nil
	default: // AUTH, which nobody agreed on, a second CONNECT, or what only a server sends
		err = c.fail(codeProtocolError, "unexpected packet")
	}
	return ignored, err
}

// fail closes the connection for a mistake of the client's.
func (c *conn) fail(code byte, reason string) error {
	c.disconnect(code, reason)
	return packets.ErrRejectPacket
}

// disconnected takes note of a DISCONNECT, which the library then acts on.
func (c *conn) disconnected(pk *packets.Packet) error {
	if pk.Properties.SessionExpiryIntervalFlag {
		seconds := pk.Properties.SessionExpiryInterval
		if seconds > 0 && c.expiry == 0 {
			return c.fail(codeProtocolError, "a session that was to end with the connection can't be kept")
		}
		c.expiry = c.b.sessionExpiry(seconds)
	}
	if pk.ReasonCode != codeWill {
		c.takeWill()
	}
	return nil
}

func (b *Broker) sessionExpiry(seconds uint32) time.Duration {
	return min(time.Duration(seconds)*time.Second, b.opts.Limits.SessionExpiry)
}

// connecting looks at a CONNECT before the library does.
func (c *conn) connecting(pk *packets.Packet) {
	c.version.Store(uint32(pk.ProtocolVersion))
	w := takeOutWill(pk)
	if w == nil {
		return
	}
	c.setWill(w)
	switch {
	case w.message.QoS > 2:
		c.connectRefusal = codeProtocolError
	case topics.CheckTopic(w.message.Topic) != nil || tooDeep(w.message.Topic):
		c.connectRefusal = codeBadTopic
	}
}

// OnConnect authenticates. It does so here rather than where the library asks for
// it, because here the reason for refusing can be told.
func (h *hook) OnConnect(cl *mqtt.Client, pk packets.Packet) error {
	c := cl.Net.Conn.(*conn)
	c.parameters(cl, &pk)
	code := c.connectRefusal
	if code == 0 {
		code = c.authenticate(cl.ID, &pk)
	}
	if code == 0 {
		code = c.begin()
	}
	if code != 0 {
		c.takeWill()
		h.b.stats.connects.add(code)
		h.b.floods.Info().Str("client", cl.ID).Str("user", string(pk.Connect.Username)).Uint8("code", code).
			Str("remote", cl.Net.Remote).Msg("connection refused")
		refusal := packets.Code{Code: code, Reason: connectReasons[code]}
		_ = h.b.server.SendConnack(cl, refusal, false, nil)
		return packets.ErrRejectPacket
	}
	cl.ID = c.libraryID()
	return nil
}

var connectReasons = map[byte]string{
	codeProtocolError: "protocol error", codeBadTopic: "the will's topic is invalid",
	codeBadCredentials: "bad user name or password", codeNotAuthorized: "the client identifier belongs to another user",
	codeBadAuthMethod: "no such authentication method", codeBadClientID: "client identifier not valid",
	codeShuttingDown: "server shutting down", codeUnavailable: "the session can't be stored now",
}

// parameters takes what the client says of the connection.
func (c *conn) parameters(cl *mqtt.Client, pk *packets.Packet) {
	p := &pk.Properties
	c.clean = pk.Connect.Clean
	c.receiveMaximum, c.maximumPacket = p.ReceiveMaximum, p.MaximumPacketSize
	c.noProblems = p.RequestProblemInfoFlag && p.RequestProblemInfo == 0
	switch {
	case pk.ProtocolVersion == 5:
		c.expiry = c.b.sessionExpiry(p.SessionExpiryInterval)
	case !c.clean:
		c.expiry = c.b.opts.Limits.SessionExpiry
	}
	c.keepAlive = time.Duration(pk.Connect.Keepalive) * time.Second
	longest := c.b.opts.Limits.KeepAlive
	if longest > 0 && pk.ProtocolVersion == 5 && (c.keepAlive == 0 || c.keepAlive > longest) {
		c.keepAlive = max(longest.Truncate(time.Second), time.Second)
		cl.State.Keepalive, cl.State.ServerKeepalive = uint16(c.keepAlive/time.Second), true
	}
}

// authenticate finds out who it is, or gives the reason code for refusing.
func (c *conn) authenticate(clientID string, pk *packets.Packet) byte {
	if pk.Properties.AuthenticationMethod != "" {
		return codeBadAuthMethod
	}
	ident, ok := c.b.auth.identify(credentials{
		user: string(pk.Connect.Username), password: pk.Connect.Password, hasPass: pk.Connect.PasswordFlag,
		certName: c.peerCertificate(), loopback: c.listener.loopback && loopbackAddr(c.RemoteAddr()),
	})
	if !ok {
		return codeBadCredentials
	}
	ident.ClientID, ident.Version = clientID, pk.ProtocolVersion
	ident.Listener, ident.Remote = c.listener.Name, c.RemoteAddr().String()
	c.ident = ident
	if w := c.takeWill(); w != nil {
		w.message.Publisher = ident
		c.setWill(w)
	}
	return 0
}

// begin finds the session.
func (c *conn) begin() byte {
	resumed, err := c.b.attach(c)
	switch {
	case err == nil:
		c.resumed = resumed
		return c.remember()
	case errors.Is(err, errInUse):
		return codeNotAuthorized
	}
	return codeShuttingDown
}

// remember waits until a session that is new is on disk, or the one in whose place it
// is has left it: a client that was told of it must never find it otherwise.
func (c *conn) remember() byte {
	if c.resumed || !c.unstored {
		return 0
	}
	err := c.b.store.now(nil)
	if err == nil {
		return 0
	}
	c.expiry = 0
	c.b.floods.Warn().Err(err).Str("client", c.ident.ClientID).Msg("session not stored")
	return codeUnavailable
}

func (h *hook) OnConnectAuthenticate(*mqtt.Client, packets.Packet) bool { return true } // OnConnect has seen to it

func (h *hook) OnSessionEstablish(*mqtt.Client, packets.Packet) {}

// OnSessionEstablished comes after the CONNACK: the session may be drained now.
func (h *hook) OnSessionEstablished(cl *mqtt.Client, _ packets.Packet) {
	c := cl.Net.Conn.(*conn)
	h.b.tellConnected(c)
	c.w.Serve(c.client.sess)
}

// OnPacketEncode completes the CONNACK.
func (h *hook) OnPacketEncode(cl *mqtt.Client, pk packets.Packet) packets.Packet {
	if pk.FixedHeader.Type != packets.Connack {
		return pk
	}
	c := cl.Net.Conn.(*conn)
	if c.version.Load() < 5 {
		pk.ReasonCode = connackV3(pk.ReasonCode)
	} else if pk.ReasonCode == codeSuccess {
		pk.Properties.TopicAliasMaximum = h.b.opts.Limits.TopicAliases
		pk.Properties.MaximumPacketSize = h.b.opts.Limits.MaximumPacket
	}
	c.accepted = pk.ReasonCode == codeSuccess
	pk.SessionPresent = c.accepted && c.resumed
	return pk
}

// connackV3 is the return code of MQTT 3.1.1 for a reason code.
func connackV3(code byte) byte {
	switch code {
	case 0, connackBadVersion, connackBadIdentifier, connackUnavailable, connackBadCredentials, connackNotAuthorized:
		return code
	case codeUnspecified, codeBadClientID: // the library's word for no id with a session to keep
		return connackBadIdentifier
	case codeServerBusy, codeShuttingDown, codeUnavailable:
		return connackUnavailable
	case packets.ErrUnsupportedProtocolVersion.Code:
		return connackBadVersion
	}
	return connackNotAuthorized
}

// OnPublish is never reached, for OnPacketRead has every publish. Should that ever
// change, the library still must not deliver one.
func (h *hook) OnPublish(_ *mqtt.Client, pk packets.Packet) (packets.Packet, error) {
	return pk, packets.ErrRejectPacket
}
