// SPDX-License-Identifier: Apache-2.0

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

// handshake is the part of a connection before its CONNACK: a CONNECT is checked, its client signed in, and given its session.
type handshake struct {
	*conn
	clean              bool
	assignedID         string // the client identifier that the broker assigned; empty: the client brought one
	keepAliveShortened bool   // the keep-alive is not what the client asked for
	resumed            bool
	recordPending      bool // the session's record is not on disk yet
}

// connect waits for the CONNECT and answers it. After an error nothing but the answer was sent.
func (h *handshake) connect() error {
	if err := h.checkProtocol(); err != nil {
		return err
	}
	first, body, err := h.frame()
	if err != nil {
		return h.unread(err)
	}
	h.b.clients.pending.remove(h.conn)
	if first>>4 != packets.Connect {
		return errUnexpectedPacket
	}
	awaitRate(h.listener.connects, h.w.Done(), h.b.metrics.held.Inc)
	if owned := h.b.opts.Owned; owned != nil && !owned() {
		return errStopping
	}
	body = bytes.Clone(body) // the library's texts are parts of it
	pk := packets.Packet{FixedHeader: packets.FixedHeader{Type: packets.Connect, Remaining: len(body)}}
	err = h.accept(&pk, first, body)
	var refused *refusedConnect
	if errors.As(err, &refused) {
		h.b.wills.drop(h.will.take())
		h.rejected(&pk, refused)
		h.refuse(refused)
		return errClosed
	}
	if err != nil {
		return err
	}
	return h.sendConnack(&pk)
}

// checkProtocol looks at the first byte that comes, and ends a connection that uses another protocol than MQTT at once:
// what it sends may never be a complete packet.
func (h *handshake) checkProtocol() error {
	if err := h.more(); err != nil {
		return err
	}
	switch first := h.in.buf[h.in.taken]; {
	case first == tlsHandshake:
		h.logWrongProtocol("the client speaks TLS, and this listener doesn't: see mqtt.tls.listen, or have the client use mqtt://")
		return errUnexpectedPacket
	case first >= 'A' && first <= 'Z' && !h.listener.WebSocket: // a method of HTTP
		h.logWrongProtocol("the client speaks HTTP or WebSocket, and this listener MQTT: see mqtt.websocket.listen and http.listen")
		h.w.Control([]byte(wrongPortAnswer), nil)
		return errClosed
	}
	return nil
}

const wrongPortText = "This port speaks MQTT, not HTTP. WebSocket has a port of its own (mqtt.websocket.listen), and so has the HTTP API (http.listen).\n"

var wrongPortAnswer = fmt.Sprintf("HTTP/1.1 400 Bad Request\r\nContent-Type: text/plain; charset=utf-8\r\nConnection: close\r\nContent-Length: %d\r\n\r\n%s",
	len(wrongPortText), wrongPortText)

// accept checks and decodes a CONNECT, and finds or makes its session.
func (h *handshake) accept(pk *packets.Packet, first byte, body []byte) error {
	version, bridge, err := parseProtocol(body)
	h.version.Store(uint32(version))
	h.bridge = bridge
	if err != nil {
		return err
	}
	if first != packets.Connect<<4 && version != 3 { // where MQTT 3.1 doesn't use these bits
		return errUnexpectedPacket
	}
	if err := connectWellFormed(version, body); err != nil {
		return h.malformed(err)
	}
	if err := pk.ConnectDecode(body); err != nil {
		return h.malformed(errMalformed)
	}
	pk.Connect.ClientIdentifier = strings.Clone(pk.Connect.ClientIdentifier) // or the session would keep the packet
	// mosquitto 2.0 sets no bridge bit with MQTT 5: its will says what it is, unless notifications are switched off.
	h.bridge = h.bridge || pk.Connect.WillFlag && isBridgeNotice(pk.Connect.WillTopic)
	if err := h.identifier(pk); err != nil {
		return err
	}
	if err := h.readWill(pk); err != nil {
		return err
	}
	h.parameters(pk)
	if err := h.authenticate(pk); err != nil {
		return err
	}
	return h.begin()
}

// unread answers a CONNECT that is not read to its end, since it is too large or there is no room for it.
func (h *handshake) unread(err error) error {
	var code packets.Code
	if !errors.As(err, &code) || code.Code != codeTooLarge && code.Code != codeQuota {
		return err
	}
	refused := &refusedConnect{code: code.Code, reason: code.Reason, metricReason: connectUnread}
	if code.Code == codeTooLarge {
		refused.reason = fmt.Sprintf("a CONNECT has %d KiB at most, its will, user name and password included", h.in.maxPacket>>10)
	}
	h.b.metrics.rejected.WithLabelValues(daemon.Label(connectUnread)).Inc()
	remote := h.RemoteAddr().String()
	h.b.opts.Audit.Add(audit.Entry{Remote: remote, Via: audit.MQTT, Action: audit.Connect, Answer: connectUnread, Reason: refused.reason})
	h.b.sampledLog.Info().Str("remote", remote).Str("detail", refused.reason).Msg("connection refused")
	h.version.Store(uint32(h.in.version()))
	if h.version.Load() == 5 {
		h.refuse(refused)
	}
	return errClosed
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
func (h *handshake) malformed(err error) error {
	var code packets.Code
	if h.version.Load() < 5 || !errors.As(err, &code) {
		return errMalformed
	}
	return &refusedConnect{code: code.Code, reason: code.Reason}
}

// identifier checks the client identifier, and assigns one if there is none. Those that begin with $ are the broker's own.
func (h *handshake) identifier(pk *packets.Packet) error {
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
	h.assignedID = assignedPrefix + rand.Text()
	pk.Connect.ClientIdentifier = h.assignedID
	return nil
}

// readWill checks the will in a CONNECT.
func (h *handshake) readWill(pk *packets.Packet) error {
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
	h.will.set(w)
	return nil
}

// parameters takes the session expiry, limits and keep-alive from the CONNECT, as far as the broker's limits allow.
func (h *handshake) parameters(pk *packets.Packet) {
	p := &pk.Properties
	h.clean = pk.Connect.Clean
	h.receiveMaximum, h.maximumPacket = p.ReceiveMaximum, p.MaximumPacketSize
	for _, u := range p.User {
		if u.Key == link.PropParts {
			h.partsMemory = u.Val
		}
	}
	h.noProblemInfo = p.RequestProblemInfoFlag && p.RequestProblemInfo == 0
	switch {
	case pk.ProtocolVersion == 5 && !(h.bridge && !h.clean && !p.SessionExpiryIntervalFlag): // mosquitto's bridges say none
		h.expiry = h.b.sessionExpiry(p.SessionExpiryInterval)
	case !h.clean:
		h.expiry = h.b.opts.Limits.Session.Expiry
	}
	h.keepAlive.interval = time.Duration(pk.Connect.Keepalive) * time.Second
	longest := h.b.opts.Limits.KeepAlive
	if longest > 0 && pk.ProtocolVersion == 5 && (h.keepAlive.interval == 0 || h.keepAlive.interval > longest) {
		h.keepAlive.interval = max(longest.Truncate(time.Second), time.Second)
		h.keepAliveShortened = true
	}
}

func (b *Broker) sessionExpiry(seconds uint32) time.Duration {
	return min(time.Duration(seconds)*time.Second, b.opts.Limits.Session.Expiry)
}

// authenticate finds the client's identity, and checks what depends on it: client identifier, quota and will.
func (h *handshake) authenticate(pk *packets.Packet) error {
	if pk.Properties.AuthenticationMethod != "" {
		return &refusedConnect{code: codeBadAuthMethod}
	}
	if len(pk.Properties.AuthenticationData) > 0 {
		return h.malformed(packets.Code{Code: codeProtocolError, Reason: "authentication data without a method"})
	}
	shown := credentials{
		user: string(pk.Connect.Username), password: pk.Connect.Password, hasPass: pk.Connect.PasswordFlag,
		cert: h.peerCertificate(), loopback: h.listener.loopback && loopbackAddr(h.RemoteAddr()),
		secure: h.listener.TLS != nil,
		local:  hostUserOf(h.Conn),
	}
	ident, err := h.identify(shown)
	if err != nil {
		return err
	}
	ident.ClientID, ident.Version = pk.Connect.ClientIdentifier, pk.ProtocolVersion
	if shown.cert != nil {
		ident.CertExpires = shown.cert.NotAfter
	}
	if shown.named() {
		ident.Expires, ident.Certificate = shown.cert.NotAfter, shown.cert
	}
	ident.Listener, ident.Remote = h.listener.Name, h.RemoteAddr().String()
	if n := h.b.opts.Limits.PacketRate; n > 0 && !ident.Has(topics.RoleNode) {
		h.throttle.rate = rate.NewLimiter(rate.Limit(n), n)
	}
	if err := h.b.acl.clientID(&ident); err != nil {
		return &refusedConnect{code: codeBadClientID, reason: reasonOf(err)}
	}
	h.ident = &ident
	h.signedInLimits()
	if ident.Has(topics.RoleEnrollee) { // nothing of it is kept
		h.clean, h.expiry = true, 0
	}
	if w := h.will.take(); w != nil {
		w.message.Publisher = &ident
		if err := h.b.admission.check(w.message); err != nil {
			return &refusedConnect{code: codeOf(err), reason: "will: " + reasonOf(err), metricReason: willRefused}
		}
		h.will.set(w)
	}
	return nil
}

// identify says who the client is: by what it shows, or whoever had signed in before the connection was upgraded, or the program itself.
func (h *handshake) identify(shown credentials) (Identity, error) {
	if ws, ok := h.Conn.(*wsConn); ok && ws.identity != nil {
		return *ws.identity, nil
	}
	if p, ok := h.Conn.(*programConn); ok {
		return p.identity, nil
	}
	ident, code, why := h.b.auth.signIn(h.RemoteAddr(), shown)
	if code == codeSuccess {
		return ident, nil
	}
	refused := &refusedConnect{code: code, reason: why}
	if why != "" && (code == codeNotAuthorized || code == codeServerBusy) { // other refusals with these codes have other reasons
		refused.metricReason = tokenNotTaken
	}
	return ident, refused
}

// begin finds or makes the session. Whoever is refused for a quota may have closed a connection whose end was not read yet:
// then what the user's connections have sent is handled first.
func (h *handshake) begin() error {
	resumed, err := h.attach()
	if errors.Is(err, resource.Quota) {
		h.b.clients.settleUser(h.conn)
		resumed, err = h.attach()
	}
	switch {
	case err == nil:
		if h.ident.Node != "" { // it may have been revoked since it was looked at, when this connection was not known yet
			if why := h.b.auth.denied(*h.ident, credentials{cert: h.peerCertificate(), local: hostUserOf(h.Conn)}); why != "" {
				return &refusedConnect{code: codeBadCredentials, reason: why}
			}
		}
		h.resumed = resumed
		return h.remember()
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

// attach counts the connection and gives it its session, with the identifier's lock. The earlier connection's packets are handled
// before: it may have left.
func (h *handshake) attach() (resumed bool, err error) {
	defer h.b.clients.locks.lock(h.ident.ClientID)()
	h.b.clients.settleBefore(h.conn)
	if h.quotas.holder == nil {
		if err := h.quotas.takeConnection(); err != nil {
			return false, err
		}
	}
	if resumed, err = h.b.clients.attach(h); err != nil {
		h.quotas.releaseConnection()
	}
	return resumed, err
}

// remember waits until a new session is on disk, and the one that it replaces is deleted there: what CONNACK says of
// the session must hold after a crash.
func (h *handshake) remember() error {
	if h.resumed || !h.recordPending {
		return nil
	}
	err := h.b.store.commitNow(nil)
	if err == nil {
		return nil
	}
	h.expiry = 0
	h.b.sampledLog.Warn().Err(err).Str("client", h.ident.ClientID).Msg("session not stored")
	return &refusedConnect{code: codeUnavailable}
}

// sendConnack sends the CONNACK, and begins to send what waits in the session.
func (h *handshake) sendConnack(pk *packets.Packet) error {
	l := h.b.opts.Limits
	answer := packets.Packet{FixedHeader: packets.FixedHeader{Type: packets.Connack}, SessionPresent: h.resumed && pk.ProtocolVersion > 3}
	answer.Properties = packets.Properties{
		ReceiveMaximum: uint16(l.ReceiveMaximum), MaximumPacketSize: uint32(l.Packet), TopicAliasMaximum: uint16(l.TopicAliases),
		AssignedClientID: h.assignedID,
	}
	if h.keepAliveShortened {
		answer.Properties.ServerKeepAlive, answer.Properties.ServerKeepAliveFlag = uint16(h.keepAlive.interval/time.Second), true
	}
	if granted := uint32(h.expiry / time.Second); granted != pk.Properties.SessionExpiryInterval {
		answer.Properties.SessionExpiryInterval, answer.Properties.SessionExpiryIntervalFlag = granted, true
	}
	h.end.mu.Lock()
	sent := h.send(answer, nil)
	h.established.Store(sent)
	h.end.mu.Unlock()
	if !sent {
		return errClosed
	}
	h.b.presence.connected(h.conn, h.resumed)
	h.b.opts.Audit.Add(h.auditEntry(audit.Connect, "", nil))
	if !h.ident.Expires.IsZero() {
		h.checkExpiry()
	}
	if h.ident.Revoked != nil {
		h.stopWatchingToken = context.AfterFunc(h.ident.Revoked, func() {
			h.revoke(codeNotAuthorized, errors.New(revokedToken(h.ident.User)))
		})
	}
	h.w.Start(h.client.sess)
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
	case <-c.end.stopped:
	default:
		time.AfterFunc(min(left, expiryCheckEvery), c.checkExpiry)
	}
}

const expiryCheckEvery = time.Minute // at least

// refuse sends a CONNACK with the reason.
func (h *handshake) refuse(r *refusedConnect) {
	answer := packets.Packet{FixedHeader: packets.FixedHeader{Type: packets.Connack}, ReasonCode: r.code}
	answer.Properties.ReasonString = shortReason(r.text())
	if h.version.Load() < 5 {
		answer.ReasonCode = connackV3(r.code)
	}
	if cert := h.peerCertificate(); cert != nil && h.version.Load() >= 5 && h.b.opts.Auth.Notice != nil {
		if n := h.b.opts.Auth.Notice(cert); n.Key != "" {
			answer.Properties.User = []packets.UserProperty{{Key: n.Key, Val: n.Value}}
		}
	}
	h.send(answer, nil)
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
func (h *handshake) rejected(pk *packets.Packet, refused *refusedConnect) {
	r := RejectedConnect{
		ClientID: pk.Connect.ClientIdentifier, User: validText(string(pk.Connect.Username)),
		Remote: h.RemoteAddr().String(), Reason: cmp.Or(refused.metricReason, connectReasons[refused.code], "malformed packet"),
	}
	h.b.metrics.rejected.WithLabelValues(daemon.Label(r.Reason)).Inc()
	h.b.opts.Audit.Add(audit.Entry{
		User: r.User, Client: validText(r.ClientID), Remote: r.Remote, Via: audit.MQTT, Action: audit.Connect,
		Answer: r.Reason, Reason: refused.reason,
	})
	line := h.b.sampledLog.Info().Str("client", r.ClientID).Str("user", r.User).Str("reason", r.Reason).Str("remote", r.Remote)
	if refused.reason != "" {
		line = line.Str("detail", refused.reason)
	}
	line.Msg("connection refused")
	if h.b.opts.Rejected != nil {
		r.Reason = cmp.Or(refused.reason, r.Reason) // with the details, which metrics don't have
		h.b.opts.Rejected(r)
	}
}
