package broker

import (
	"bytes"
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/mochi-mqtt/server/v2/packets"
	"golang.org/x/time/rate"

	"github.com/edgebus/edgebus/broker/audit"
	"github.com/edgebus/edgebus/broker/daemon"
	"github.com/edgebus/edgebus/topics"
	"github.com/edgebus/edgebus/topics/link"
	"github.com/edgebus/edgebus/topics/resource"
)

// refusedConnect is the refusal of a CONNECT.
type refusedConnect struct {
	code         byte
	reason       string // sent to the client; empty: the text of the code
	metricReason string // the reason in metrics; empty: the text of the code
}

func (r *refusedConnect) Error() string { return r.text() }

func (r *refusedConnect) text() string {
	if r.reason != "" {
		return r.reason
	}
	return connectReasons[r.code]
}

var connectReasons = map[byte]string{
	codeProtocolError: "protocol error", codeBadTopic: "the will's topic is invalid",
	codeBadCredentials: "bad user name or password", codeNotAuthorized: "the client identifier belongs to another user",
	codeBadAuthMethod: "no such authentication method", codeBadClientID: "client identifier not valid",
	codeShuttingDown: "server shutting down", codeUnavailable: "the session can't be stored now",
	codeServerBusy: "too many passwords wait to be checked: try again in a few seconds",
	codeBadVersion: "no such version of MQTT", codeQuota: "too many sessions, or too much in them", codeConnectRate: "too many wrong passwords: try again in a minute",
}

// connect waits for the CONNECT and answers it. After an error nothing but the answer was sent.
func (c *conn) connect() error {
	if err := c.checkProtocol(); err != nil {
		return err
	}
	first, body, err := c.frame()
	if err != nil {
		return c.unread(err)
	}
	c.b.pending.remove(c)
	if first>>4 != packets.Connect {
		return errUnexpectedPacket
	}
	awaitRate(c.listener.connects, c.w.Done(), c.b.metrics.held.Inc)
	body = bytes.Clone(body) // the library's texts are parts of it
	pk := packets.Packet{FixedHeader: packets.FixedHeader{Type: packets.Connect, Remaining: len(body)}}
	err = c.accept(&pk, first, body)
	var refused *refusedConnect
	if errors.As(err, &refused) {
		c.b.dropWill(c.takeWill())
		c.b.rejected(c, &pk, refused)
		c.refuse(refused)
		return errClosed
	}
	if err != nil {
		return err
	}
	return c.sendConnack(&pk)
}

// checkProtocol looks at the first byte that comes, and ends a connection that uses another protocol than MQTT at once:
// what it sends may never be a complete packet.
func (c *conn) checkProtocol() error {
	if err := c.more(); err != nil {
		return err
	}
	switch first := c.in.buf[c.in.taken]; {
	case first == tlsHandshake:
		c.logWrongProtocol("the client speaks TLS, and this listener doesn't: see mqtt.tls.listen, or have the client use mqtt://")
		return errUnexpectedPacket
	case first >= 'A' && first <= 'Z' && !c.listener.WebSocket: // a method of HTTP
		c.logWrongProtocol("the client speaks HTTP or WebSocket, and this listener MQTT: see mqtt.websocket.listen and http.listen")
		c.w.Control([]byte(wrongPortAnswer), nil)
		return errClosed
	}
	return nil
}

const wrongPortText = "This port speaks MQTT, not HTTP. WebSocket has a port of its own (mqtt.websocket.listen), and so has the HTTP API (http.listen).\n"

var wrongPortAnswer = fmt.Sprintf("HTTP/1.1 400 Bad Request\r\nContent-Type: text/plain; charset=utf-8\r\nConnection: close\r\nContent-Length: %d\r\n\r\n%s",
	len(wrongPortText), wrongPortText)

// accept checks and decodes a CONNECT, and finds or makes its session.
func (c *conn) accept(pk *packets.Packet, first byte, body []byte) error {
	version, bridge, err := parseProtocol(body)
	c.version.Store(uint32(version))
	c.bridge = bridge
	if err != nil {
		return err
	}
	if first != packets.Connect<<4 && version != 3 { // where MQTT 3.1 doesn't use these bits
		return errUnexpectedPacket
	}
	if err := connectWellFormed(version, body); err != nil {
		return c.malformed(err)
	}
	if err := pk.ConnectDecode(body); err != nil {
		return c.malformed(errMalformed)
	}
	pk.Connect.ClientIdentifier = strings.Clone(pk.Connect.ClientIdentifier) // or the session would keep the packet
	// mosquitto 2.0 sets no bridge bit with MQTT 5: its will says what it is, unless notifications are switched off.
	c.bridge = c.bridge || pk.Connect.WillFlag && isBridgeNotice(pk.Connect.WillTopic)
	if err := c.identifier(pk); err != nil {
		return err
	}
	if err := c.readWill(pk); err != nil {
		return err
	}
	c.parameters(pk)
	if err := c.authenticate(pk); err != nil {
		return err
	}
	return c.begin()
}

// unread answers a CONNECT that is not read to its end, since it is too large or there is no room for it.
func (c *conn) unread(err error) error {
	var code packets.Code
	if !errors.As(err, &code) || code.Code != codeTooLarge && code.Code != codeQuota {
		return err
	}
	refused := &refusedConnect{code: code.Code, reason: code.Reason, metricReason: connectUnread}
	if code.Code == codeTooLarge {
		refused.reason = fmt.Sprintf("a CONNECT has %d KiB at most, its will, user name and password included", c.in.maxPacket>>10)
	}
	c.b.metrics.rejected.WithLabelValues(daemon.Label(connectUnread)).Inc()
	remote := c.RemoteAddr().String()
	c.b.opts.Audit.Add(audit.Entry{Remote: remote, Via: audit.MQTT, Action: audit.Connect, Answer: connectUnread, Reason: refused.reason})
	c.b.sampledLog.Info().Str("remote", remote).Str("detail", refused.reason).Msg("connection refused")
	c.version.Store(uint32(c.in.version()))
	if c.version.Load() == 5 {
		c.refuse(refused)
	}
	return errClosed
}

// version is that of the CONNECT of which the first bytes have arrived; 0: they haven't.
func (f *frameReader) version() byte {
	arrived := packetReader{b: bytes.Clone(f.buf[f.taken:f.filled])}
	arrived.uint8()
	arrived.varint()
	version, _, err := parseProtocol(arrived.b)
	if err != nil {
		return 0
	}
	return version
}

// bridgeBit in the protocol level marks a mosquitto bridge. It is not in the standard, but brokers accept it.
const bridgeBit = 0x80

// parseProtocol returns the version that a CONNECT asks for, and whether it is a bridge's; bridgeBit is cleared in body. A
// version that is not supported is an error, which is answered in the nearest version that is.
func parseProtocol(body []byte) (version byte, bridge bool, err error) {
	r := packetReader{b: body}
	name, level := string(r.bytes()), r.uint8()
	if r.err != nil || name != "MQTT" && name != "MQIsdp" {
		return 0, false, errMalformed
	}
	bridge, level = level&bridgeBit != 0, level&^bridgeBit
	body[2+len(name)] = level
	switch {
	case name == "MQTT" && (level == 4 || level == 5) || name == "MQIsdp" && level == 3:
		return level, bridge, nil
	case level > 5:
		return 5, bridge, &refusedConnect{code: codeBadVersion}
	}
	return 4, bridge, &refusedConnect{code: codeBadVersion}
}

// isBridgeNotice reports whether a topic is one on which mosquitto bridges publish whether they are connected, as a
// retained message and as their will. Such messages are acknowledged and dropped: a bridge whose will was refused could
// not connect.
func isBridgeNotice(topic string) bool {
	return strings.HasPrefix(topic, "$SYS/broker/connection/") && topics.CheckTopic(topic[1:]) == nil
}

// malformed refuses a malformed CONNECT. MQTT 3.1.1 has no return code for that.
func (c *conn) malformed(err error) error {
	var code packets.Code
	if c.version.Load() < 5 || !errors.As(err, &code) {
		return errMalformed
	}
	return &refusedConnect{code: code.Code, reason: code.Reason}
}

// identifier checks the client identifier, and assigns one if there is none. Those that begin with $ are the broker's own.
func (c *conn) identifier(pk *packets.Packet) error {
	if strings.HasPrefix(pk.Connect.ClientIdentifier, "$") {
		return &refusedConnect{code: codeBadClientID, reason: "client identifiers that begin with $ are the broker's own"}
	}
	if !topics.IsReadable(pk.Connect.ClientIdentifier) {
		return &refusedConnect{code: codeBadClientID, reason: "the client identifier contains control characters or non-characters of Unicode"}
	}
	if pk.Connect.ClientIdentifier != "" {
		return nil
	}
	if pk.ProtocolVersion < 5 && (!pk.Connect.Clean || pk.ProtocolVersion == 3) {
		return &refusedConnect{code: codeBadClientID}
	}
	c.assignedID = assignedPrefix + rand.Text()
	pk.Connect.ClientIdentifier = c.assignedID
	return nil
}

// readWill checks the will in a CONNECT.
func (c *conn) readWill(pk *packets.Packet) error {
	w := willOf(pk)
	if w == nil || isBridgeNotice(w.message.Topic) {
		return nil
	}
	if topics.CheckTopic(w.message.Topic) != nil || tooDeep(w.message.Topic) {
		return &refusedConnect{code: codeBadTopic}
	}
	if reason := propertyError(&pk.Connect.WillProperties); reason != "" {
		return &refusedConnect{code: codeProtocolError, reason: "will: " + reason}
	}
	c.setWill(w)
	return nil
}

// parameters takes the session expiry, limits and keep-alive from the CONNECT, as far as the broker's limits allow.
func (c *conn) parameters(pk *packets.Packet) {
	p := &pk.Properties
	c.clean = pk.Connect.Clean
	c.receiveMaximum, c.maximumPacket = p.ReceiveMaximum, p.MaximumPacketSize
	for _, u := range p.User {
		if u.Key == link.PropParts {
			c.partsMemory = u.Val
		}
	}
	c.noProblemInfo = p.RequestProblemInfoFlag && p.RequestProblemInfo == 0
	switch {
	case pk.ProtocolVersion == 5 && !(c.bridge && !c.clean && !p.SessionExpiryIntervalFlag): // mosquitto's bridges say none
		c.expiry = c.b.sessionExpiry(p.SessionExpiryInterval)
	case !c.clean:
		c.expiry = c.b.opts.Limits.Session.Expiry
	}
	c.keepAlive = time.Duration(pk.Connect.Keepalive) * time.Second
	longest := c.b.opts.Limits.KeepAlive
	if longest > 0 && pk.ProtocolVersion == 5 && (c.keepAlive == 0 || c.keepAlive > longest) {
		c.keepAlive = max(longest.Truncate(time.Second), time.Second)
		c.keepAliveShortened = true
	}
}

func (b *Broker) sessionExpiry(seconds uint32) time.Duration {
	return min(time.Duration(seconds)*time.Second, b.opts.Limits.Session.Expiry)
}

// authenticate finds the client's identity, and checks what depends on it: client identifier, quota and will.
func (c *conn) authenticate(pk *packets.Packet) error {
	if pk.Properties.AuthenticationMethod != "" {
		return &refusedConnect{code: codeBadAuthMethod}
	}
	if len(pk.Properties.AuthenticationData) > 0 {
		return c.malformed(packets.Code{Code: codeProtocolError, Reason: "authentication data without a method"})
	}
	shown := credentials{
		user: string(pk.Connect.Username), password: pk.Connect.Password, hasPass: pk.Connect.PasswordFlag,
		cert: c.peerCertificate(), loopback: c.listener.loopback && loopbackAddr(c.RemoteAddr()),
		secure: c.listener.TLS != nil,
		local:  hostUserOf(c.Conn),
	}
	ident, code, why := c.b.identify(c.RemoteAddr(), shown)
	if code != codeSuccess {
		refused := &refusedConnect{code: code, reason: why}
		if why != "" && (code == codeNotAuthorized || code == codeServerBusy) { // other refusals with these codes have other reasons
			refused.metricReason = tokenNotTaken
		}
		return refused
	}
	ident.ClientID, ident.Version = pk.Connect.ClientIdentifier, pk.ProtocolVersion
	if shown.cert != nil {
		ident.CertExpires = shown.cert.NotAfter
	}
	if shown.named() {
		ident.Expires, ident.Certificate = shown.cert.NotAfter, shown.cert
	}
	ident.Listener, ident.Remote = c.listener.Name, c.RemoteAddr().String()
	if n := c.b.opts.Limits.PacketRate; n > 0 && !ident.Has(topics.RoleNode) {
		c.rate = rate.NewLimiter(rate.Limit(n), n)
	}
	if err := c.b.acl.clientID(&ident); err != nil {
		return &refusedConnect{code: codeBadClientID, reason: reasonOf(err)}
	}
	c.ident = &ident
	c.signedInLimits()
	if ident.Has(topics.RoleEnrollee) { // nothing of it is kept
		c.clean, c.expiry = true, 0
	}
	if w := c.takeWill(); w != nil {
		w.message.Publisher = &ident
		if err := c.b.check(w.message); err != nil {
			return &refusedConnect{code: codeOf(err), reason: "will: " + reasonOf(err), metricReason: willRefused}
		}
		c.setWill(w)
	}
	return nil
}

// countConnection counts the connection for its user and its host, or refuses it. The caller has the client's turn.
func (c *conn) countConnection() error {
	at, over := quotaHolderOf(c.ident, c.RemoteAddr()), quotaHolder{}
	if old := c.b.clients.connected(c.ident.ClientID); old != nil && old.owner != nil && old.owner.user == at.user {
		over = *old.owner
	}
	if err := c.b.quotas.takeConnection(at, over); err != nil {
		return &tooManyConnectionsOf{err}
	}
	c.owner = &at
	return nil
}

// tooManyConnectionsOf is the error for a connection that is one too many of its user's or host's.
type tooManyConnectionsOf struct{ error }

func (e *tooManyConnectionsOf) Unwrap() error { return e.error }

// begin finds or makes the session. Whoever is refused for a quota may have closed a connection whose end was not read yet:
// then what the user's connections have sent is handled first.
func (c *conn) begin() error {
	resumed, err := c.attach()
	if errors.Is(err, resource.Quota) {
		c.b.settleUser(c)
		resumed, err = c.attach()
	}
	switch {
	case err == nil:
		if c.ident.Node != "" { // it may have been revoked since it was looked at, when this connection was not known yet
			if why := c.b.auth.denied(*c.ident, credentials{cert: c.peerCertificate(), local: hostUserOf(c.Conn)}); why != "" {
				return &refusedConnect{code: codeBadCredentials, reason: why}
			}
		}
		c.resumed = resumed
		return c.remember()
	case errors.Is(err, errIdentifierInUse):
		return &refusedConnect{code: codeNotAuthorized, reason: connectReasons[codeNotAuthorized] +
			", who has a session under it: use another one, or have an operator end that session (edgebus session end)"}
	case errors.As(err, new(*tooManyConnectionsOf)):
		return &refusedConnect{code: codeQuota, reason: reasonOf(err), metricReason: tooManyOfOne}
	case errors.Is(err, resource.Quota):
		return &refusedConnect{code: codeQuota, reason: reasonOf(err)}
	}
	return &refusedConnect{code: codeShuttingDown}
}

// attach counts the connection and gives it its session, in the client's turn. The earlier connection's packets are handled
// before: it may have left.
func (c *conn) attach() (resumed bool, err error) {
	defer c.b.clients.locks.lock(c.ident.ClientID)()
	c.b.settleBefore(c)
	if c.owner == nil {
		if err := c.countConnection(); err != nil {
			return false, err
		}
	}
	if resumed, err = c.b.attach(c); err != nil {
		c.releaseOwner()
	}
	return resumed, err
}

// remember waits until a new session is on disk, and the one that it replaces is deleted there: what CONNACK says of
// the session must hold after a crash.
func (c *conn) remember() error {
	if c.resumed || !c.recordPending {
		return nil
	}
	err := c.b.store.commitNow(nil)
	if err == nil {
		return nil
	}
	c.expiry = 0
	c.b.sampledLog.Warn().Err(err).Str("client", c.ident.ClientID).Msg("session not stored")
	return &refusedConnect{code: codeUnavailable}
}

// sendConnack sends the CONNACK, and begins to send what waits in the session.
func (c *conn) sendConnack(pk *packets.Packet) error {
	l := c.b.opts.Limits
	answer := packets.Packet{FixedHeader: packets.FixedHeader{Type: packets.Connack}, SessionPresent: c.resumed && pk.ProtocolVersion > 3}
	answer.Properties = packets.Properties{
		ReceiveMaximum: uint16(l.ReceiveMaximum), MaximumPacketSize: uint32(l.Packet), TopicAliasMaximum: uint16(l.TopicAliases),
		AssignedClientID: c.assignedID,
	}
	if c.keepAliveShortened {
		answer.Properties.ServerKeepAlive, answer.Properties.ServerKeepAliveFlag = uint16(c.keepAlive/time.Second), true
	}
	if granted := uint32(c.expiry / time.Second); granted != pk.Properties.SessionExpiryInterval {
		answer.Properties.SessionExpiryInterval, answer.Properties.SessionExpiryIntervalFlag = granted, true
	}
	c.mu.Lock()
	sent := c.send(answer, nil)
	c.established.Store(sent)
	c.mu.Unlock()
	if !sent {
		return errClosed
	}
	c.b.reportConnected(c)
	c.b.opts.Audit.Add(c.auditEntry(audit.Connect, "", nil))
	if !c.ident.Expires.IsZero() {
		c.checkExpiry()
	}
	if c.ident.Revoked != nil {
		c.stopWatchingToken = context.AfterFunc(c.ident.Revoked, func() {
			c.revoke(codeNotAuthorized, errors.New(revokedToken(c.ident.User)))
		})
	}
	c.w.Start(c.client.sess)
	return nil
}

// auditEntry is an entry of the audit log about this connection's client.
func (c *conn) auditEntry(action, object string, err error) audit.Entry {
	e := audit.Entry{
		User: c.ident.User, Roles: roleNames(c.ident), Client: c.ident.ClientID, Remote: c.RemoteAddr().String(), Via: audit.MQTT,
		Action: action, Object: object, Answer: audit.OK,
	}
	if err != nil {
		e.Answer, e.Reason = string(kindOf(err)), reasonOf(err)
	}
	return e
}

// auditPublish logs a publish that was refused, and one that writes: retained messages, commands, and values that somebody
// wants. What devices report and nodes send is no write of a user's, and too much for a log.
func (c *conn) auditPublish(m Message, err error) {
	if c.b.opts.Audit == nil || err == nil && !c.writes(m) {
		return
	}
	e := c.auditEntry(audit.Publish, m.Topic, err)
	if kind := kindOf(err); err != nil && kind != resource.Forbidden && kind != resource.Quota && kind != resource.BadTopic {
		e.Reason = "" // it may quote the value
	}
	c.b.opts.Audit.Add(e)
}

func (c *conn) writes(m Message) bool {
	switch {
	case c.ident.Has(topics.RoleNode):
		return false
	case !topics.IsTree(m.Topic):
		return m.Retain
	}
	a, err := topics.Parse(m.Topic)
	if err != nil {
		return false
	}
	switch a.Kind {
	case topics.KindDesired, topics.KindDesiredAll, topics.KindCommand, topics.KindEnroll:
		return true
	}
	return len(m.Payload) == 0 && !c.ident.Has(topics.RoleMapper) // a user clears a reported value
}

// checkExpiry ends the connection when the certificate or token ends that the client signed in with. It looks again every
// minute at least, since the clock may be set meanwhile.
func (c *conn) checkExpiry() {
	left := c.ident.Expires.Sub(c.b.opts.Now())
	if left <= 0 {
		what := "certificate"
		if c.ident.CertExpires != c.ident.Expires {
			what = "token"
		}
		c.disconnect(codeNotAuthorized, fmt.Errorf("the %s of %s has expired", what, validText(c.ident.User)))
		return
	}
	select {
	case <-c.stopped:
	default:
		time.AfterFunc(min(left, expiryCheckEvery), c.checkExpiry)
	}
}

const expiryCheckEvery = time.Minute // at least

// refuse sends a CONNACK with the reason.
func (c *conn) refuse(r *refusedConnect) {
	answer := packets.Packet{FixedHeader: packets.FixedHeader{Type: packets.Connack}, ReasonCode: r.code}
	answer.Properties.ReasonString = shortReason(r.text())
	if c.version.Load() < 5 {
		answer.ReasonCode = connackV3(r.code)
	}
	if cert := c.peerCertificate(); cert != nil && c.version.Load() >= 5 && c.b.opts.Auth.Notice != nil {
		if n := c.b.opts.Auth.Notice(cert); n.Key != "" {
			answer.Properties.User = []packets.UserProperty{{Key: n.Key, Val: n.Value}}
		}
	}
	c.send(answer, nil)
}

// connackV3 is the return code of MQTT 3.1.1 for a reason code.
func connackV3(code byte) byte {
	switch code {
	case codeBadClientID:
		return connackBadIdentifier
	case codeShuttingDown, codeUnavailable, codeServerBusy, codeConnectRate, codeQuota:
		return connackUnavailable
	case codeBadVersion:
		return connackBadVersion
	}
	return connackNotAuthorized
}

// Reasons for ending connections that have not sent a CONNECT, in metrics.
const (
	tooManyConnections = "too many connections"
	evictedPending     = "no CONNECT while others waited"
	noConnect          = "no CONNECT in time"
)

// tokenNotTaken is the reason, in metrics, for refusing a token whose user has no role, or that can't be verified now.
const tokenNotTaken = "a token can't be verified now, or gives no role"

// willRefused is the reason, in metrics, for refusing a client that may not publish its will.
const willRefused = "the will can't be published"

// connectUnread is the reason, in metrics, for refusing a CONNECT before it has arrived whole.
const connectUnread = "the CONNECT is larger than there is room for"

// originRefused is why a web page is refused.
const originRefused = "a web page's origin"

// tooManyOfOne is why a connection is refused that is one too many of its user's or address's.
const tooManyOfOne = "too many connections of one user or address"

// rejected counts and logs a refused CONNECT. The reason in metrics is one of a fixed set; the log has the details.
func (b *Broker) rejected(c *conn, pk *packets.Packet, refused *refusedConnect) {
	r := RejectedConnect{
		ClientID: pk.Connect.ClientIdentifier, User: validText(string(pk.Connect.Username)),
		Remote: c.RemoteAddr().String(), Reason: cmp.Or(refused.metricReason, connectReasons[refused.code], "malformed packet"),
	}
	b.metrics.rejected.WithLabelValues(daemon.Label(r.Reason)).Inc()
	b.opts.Audit.Add(audit.Entry{
		User: r.User, Client: validText(r.ClientID), Remote: r.Remote, Via: audit.MQTT, Action: audit.Connect,
		Answer: r.Reason, Reason: refused.reason,
	})
	line := b.sampledLog.Info().Str("client", r.ClientID).Str("user", r.User).Str("reason", r.Reason).Str("remote", r.Remote)
	if refused.reason != "" {
		line = line.Str("detail", refused.reason)
	}
	line.Msg("connection refused")
	if b.opts.Rejected != nil {
		r.Reason = cmp.Or(refused.reason, r.Reason) // with the details, which metrics don't have
		b.opts.Rejected(r)
	}
}
