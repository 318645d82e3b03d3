// SPDX-License-Identifier: Apache-2.0

package broker

import (
	"cmp"
	"context"
	"crypto/sha256"
	"crypto/x509"
	"encoding/asn1"
	"fmt"
	"math/big"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/rs/zerolog"

	"github.com/edgebus/edgebus/broker/audit"
	"github.com/edgebus/edgebus/topics"
	"github.com/edgebus/edgebus/topics/password"
	"github.com/edgebus/edgebus/topics/resource"
)

// authenticator authenticates users. But for logins it is not changed after newAuthenticator.
type authenticator struct {
	logins *loginThrottle
	log    zerolog.Logger
	users  map[string]authUser
	// slowest is compared with when a user doesn't exist or has no hash, so that the time is the same.
	slowest       password.Hash
	anonymous     []topics.Role
	loopbackNodes bool
	node          string
	isNode        func(name string) bool
	deny          []DeniedIdentity
	bearer        Bearer
	revoked       func(node string, cert *x509.Certificate) string
	enroll        func(node, token string) error
	local         map[string]authUser // by name or number of this host's user
	network       bool                // there are users who sign in by a password or certificate
}

type authUser struct {
	User
	hash password.Hash
}

// newAuthenticator takes options that validate found well.
func newAuthenticator(o Options) (*authenticator, error) {
	a := &authenticator{
		log:       o.Log,
		users:     make(map[string]authUser, len(o.Auth.Users)),
		anonymous: o.Auth.Anonymous, loopbackNodes: o.Auth.LoopbackNodes, node: o.Node,
		isNode: o.Auth.Node, deny: o.Auth.Deny, bearer: o.Auth.Bearer, revoked: o.Auth.Revoked, enroll: o.Auth.Enroll,
		local: make(map[string]authUser),
	}
	var hashes []password.Hash
	for _, u := range o.Auth.Users {
		var h password.Hash
		if u.PasswordHash != "" {
			var err error
			if h, err = password.Parse(u.PasswordHash); err != nil {
				return nil, err
			}
		}
		hashes = append(hashes, h)
		a.network = a.network || u.Local == "" || u.PasswordHash != ""
		if u.Local != "" {
			a.local[u.Local] = authUser{u, h}
		}
		a.users[u.Name] = authUser{u, h}
	}
	a.slowest = password.SlowestHash(hashes)
	a.logins = newLoginThrottle(o.Limits.WrongPasswords, a.slowest.Rounds(), o.Now)
	return a, nil
}

// credentials are what a connection presents to sign in.
type credentials struct {
	user     string
	password []byte
	hasPass  bool
	cert     *x509.Certificate // a verified one; nil: none
	loopback bool              // a loopback listener, and a peer on this host
	secure   bool              // an MQTT listener with TLS
	local    *hostUser         // the peer of a Unix socket; nil: the connection is not over one
}

// withoutUnneeded removes the user name and password where anonymous loopback is open and no users of the network are listed: they identify
// no one there, and many clients always send some. Users of the Unix socket don't count as listed, because they sign in nowhere
// else.
func (a *authenticator) withoutUnneeded(c credentials) credentials {
	if a.network || len(a.anonymous) == 0 || !c.loopback || c.cert != nil && c.cert.Subject.CommonName != "" {
		return c
	}
	if c.password, c.hasPass = nil, false; !strings.HasPrefix(c.user, nodePrefix) {
		c.user = ""
	}
	return c
}

// findUser finds a user. A node's user has the node's name; cores send it as node/{name}.
func (a *authenticator) findUser(user string) (authUser, bool) {
	if u, known := a.users[user]; known {
		return u, true
	}
	name, isNode := strings.CutPrefix(user, nodePrefix)
	u := a.users[name]
	return u, isNode && u.Role == topics.RoleNode
}

// named reports whether the certificate identifies the client. A password takes precedence, so that a person can use a host's
// certificate for the TLS connection only.
func (c credentials) named() bool {
	return !c.hasPass && c.cert != nil && c.cert.Subject.CommonName != ""
}

// identifyWithoutPassword returns the identity of a connection without a password. If ok is false, why is the reason, and may be empty.
func (a *authenticator) identifyWithoutPassword(c credentials) (id Identity, why string, ok bool) {
	switch {
	case c.named():
		id, why = a.certificate(c)
		ok = why == ""
	case c.local != nil:
		id, why = a.localUser(c)
		ok = why == ""
	case c.user != "":
		id, ok = a.loopbackNode(c)
	case c.loopback && len(a.anonymous) > 0:
		id, ok = a.anonymousIdentity(), true
	}
	if ok {
		if why = a.denied(id, c); why != "" {
			return Identity{}, why, false
		}
	}
	return id, why, ok
}

// anonymousIdentity is who has not signed in, on loopback. Without roles nobody may.
func (a *authenticator) anonymousIdentity() Identity {
	return Identity{Roles: a.anonymous, Nodes: []string{"*"}, Devices: []string{"*"}}
}

// localUser returns the identity of a user of this host who is connected over a Unix socket, or why there is none.
func (a *authenticator) localUser(c credentials) (id Identity, why string) {
	u, known := a.local[c.local.name]
	if !known || c.local.name == "" {
		u, known = a.local[c.local.uid]
	}
	switch {
	case !known:
		return id, fmt.Sprintf("the user %s of this host is none of auth.users (local)", c.local.label())
	case c.user != "" && c.user != u.Name:
		return id, fmt.Sprintf("the user %s of this host is %s here, and the user name is %s: give that or none", c.local.label(), u.Name, validText(c.user))
	}
	id = a.identity(u)
	id.Local = true
	return id, ""
}

// denied returns the reason why an authenticated identity is refused; empty: it is not.
func (a *authenticator) denied(id Identity, c credentials) string {
	name, cert := strings.TrimPrefix(id.User, nodePrefix), c.cert
	if id.Has(topics.RoleAgent) && c.local == nil { // it receives Secrets, which must not travel over a network
		return fmt.Sprintf("%s has the role agent, which only programs of this host have, at the Unix socket (mqtt.socket)", validText(name))
	}
	for _, d := range a.deny {
		switch {
		case d.Name != "" && d.Name == name:
			return fmt.Sprintf("%s is denied (auth.deny)", validText(name))
		case cert == nil:
		case d.Serial != "" && d.Serial == cert.SerialNumber.Text(16), d.Fingerprint != "" && d.Fingerprint == Fingerprint(cert):
			return "this certificate is denied (auth.deny)"
		}
	}
	if a.revoked != nil && id.Node != "" {
		return a.revoked(id.Node, cert)
	}
	return ""
}

// enrollee returns the name of a node that asks for its first certificate, which its user name says. It is refused over a
// connection without TLS, where its token could be read.
func (a *authenticator) enrollee(c credentials) (node string, ok bool) {
	node, ok = strings.CutPrefix(c.user, enrollPrefix)
	return node, ok && a.enroll != nil && c.secure && topics.ValidName(node)
}

// NodeUnit is the organizational unit in the certificates that a hub makes for its nodes. Such a certificate is never a
// user's, whatever users have the node's name.
const NodeUnit = "edgebus node"

// IsNodeCertificate reports whether a hub has made the certificate for a node.
func IsNodeCertificate(cert *x509.Certificate) bool {
	return slices.Contains(cert.Subject.OrganizationalUnit, NodeUnit)
}

// EnrollerUnit is the organizational unit in the certificates that a hub makes for enrollers: hosts that may ask to become nodes. Such a
// certificate is never a user's or a node's.
const EnrollerUnit = "edgebus enroller"

// IsEnrollerCertificate reports whether a hub has made the certificate for an enroller.
func IsEnrollerCertificate(cert *x509.Certificate) bool {
	return slices.Contains(cert.Subject.OrganizationalUnit, EnrollerUnit)
}

func enrolleeIdentity(node string) Identity {
	return Identity{User: enrollPrefix + node, Roles: []topics.Role{topics.RoleEnrollee}, Nodes: []string{node}}
}

// Fingerprint is a certificate's SHA-256 as Denied has it.
func Fingerprint(cert *x509.Certificate) string {
	sum := sha256.Sum256(cert.Raw)
	return new(big.Int).SetBytes(sum[:]).Text(16)
}

// matches reports whether the password is the user's. A mismatch takes as long as the slowest hash for every name, so that the time
// doesn't reveal which users exist.
func (a *authenticator) matches(c credentials) bool {
	u, known := a.findUser(c.user)
	if known && u.PasswordHash != "" {
		if u.hash.Matches(c.password) {
			return true
		}
		a.slowest.Remainder(u.hash).Matches(c.password)
		return false
	}
	a.slowest.Matches(c.password)
	return false
}

// identity returns the identity of a user of auth.users.
func (a *authenticator) identity(u authUser) Identity {
	if u.Role == topics.RoleNode {
		return nodeIdentity(u.Name)
	}
	id := Identity{
		User: u.Name, Roles: []topics.Role{u.Role}, Nodes: u.Nodes, Devices: u.Devices, Protocols: u.Protocols, Configurations: u.Configurations,
	}
	if a.node != "" && len(id.Nodes) == 0 {
		id.Nodes = []string{a.node}
	}
	return id
}

// certificate returns the identity that a client certificate proves, or why there is none. A name of auth.users is that user; every
// other name is a node's, if the node is known.
func (a *authenticator) certificate(c credentials) (id Identity, why string) {
	name := c.cert.Subject.CommonName
	u, listed := a.users[name]
	why = a.otherName(c)
	ofNode := IsNodeCertificate(c.cert)
	if IsEnrollerCertificate(c.cert) {
		return a.enroller(c, why)
	}
	if why == "" && a.revoked != nil && (ofNode || !listed) {
		why = a.revoked(name, c.cert)
	}
	switch {
	case commonNames(c.cert) > 1:
		why = "the certificate has several common names: it must be issued with one"
	case why != "":
	case ofNode && listed && u.Role != topics.RoleNode:
		why = fmt.Sprintf("the certificate is the node %s's, and %s is a user with the role %s (auth.users): one of them needs another name", name, name, u.Role)
	case listed:
		return a.identity(u), ""
	case !topics.ValidName(name):
		why = fmt.Sprintf("the certificate is for %.100q, which is neither a user of auth.users nor a node's name", name)
	case a.isNode != nil && !a.isNode(name):
		why = fmt.Sprintf("the certificate is for %s, which is neither a user of auth.users nor a Node that there is: "+
			"list the user, or apply a Node of that name (auth.nodes)", name)
	default:
		return nodeIdentity(name), ""
	}
	return Identity{}, why
}

// enroller is the identity of who shows a certificate that a hub has made for an enroller.
func (a *authenticator) enroller(c credentials, why string) (Identity, string) {
	name := c.cert.Subject.CommonName
	switch {
	case why != "":
	case a.revoked == nil:
		why = "the certificate is an enroller's, which is for the hub's HTTP API"
	default:
		why = a.revoked(name, c.cert)
	}
	if why != "" {
		return Identity{}, why
	}
	return Identity{User: enrollerPrefix + name, Roles: []topics.Role{topics.RoleEnroller}}, ""
}

// commonNames counts the common names of a certificate's subject.
func commonNames(cert *x509.Certificate) (n int) {
	for _, part := range cert.Subject.Names {
		if part.Type.Equal(asn1.ObjectIdentifier{2, 5, 4, 3}) {
			n++
		}
	}
	return n
}

// otherName returns how the user name differs from the name in the certificate; empty: they agree, or no user name was given.
func (a *authenticator) otherName(c credentials) string {
	if c.user == "" {
		return ""
	}
	certName := c.cert.Subject.CommonName
	name, isNode := strings.CutPrefix(c.user, nodePrefix)
	u, listed := a.users[certName]
	switch {
	case name != certName && isNode:
		return fmt.Sprintf("the certificate is for %s, but this node is %s", validText(certName), validText(name))
	case name != certName:
		return fmt.Sprintf("the certificate is for %s, but the user name is %s", validText(certName), validText(name))
	case isNode && listed && u.Role != topics.RoleNode:
		return fmt.Sprintf("%s is a user with the role %s (auth.users), and so can't be a node", validText(name), u.Role)
	}
	return ""
}

func (a *authenticator) loopbackNode(c credentials) (Identity, bool) {
	name, isNode := strings.CutPrefix(c.user, nodePrefix)
	if !isNode || !a.loopbackNodes || !c.loopback || !topics.ValidName(name) {
		return Identity{}, false
	}
	return nodeIdentity(name), true
}

// Prefixes of reserved client identifiers; those of nodes are prefixes of their user names as well.
const (
	nodePrefix   = "node/"
	enrollPrefix = "enroll/"
	mapperPrefix = "mapper-"

	enrollerPrefix = "enroller/" // of the users that enrollers' certificates name
	devicesPrefix  = "devices-"  // a mapper's second connection, to its devices' topics
	assignedPrefix = "auto-"     // identifiers that the broker assigns
)

func nodeUser(name string) string { return nodePrefix + name }

func nodeIdentity(name string) Identity {
	return Identity{User: nodeUser(name), Roles: []topics.Role{topics.RoleNode}, Node: name}
}

// SignIn authenticates an HTTP request by the rules of MQTT connections: by user name and password, else by the connection's
// certificate, else as anonymous over a plain loopback connection. Wrong passwords of both protocols count together, and so do open
// connections and running requests. Refused requests are logged, at a limited rate.
func (b *Broker) SignIn(r *http.Request) (Identity, error) {
	id, err := b.signIn(r)
	if err == nil {
		audit.NoteUser(r, id.User, roleNames(&id))
		return id, nil
	}
	b.noteRefusal(r, err)
	return id, err
}

// noteRefusal logs a request that is refused because its sender has not signed in.
func (b *Broker) noteRefusal(r *http.Request, err error) {
	user, _, named := r.BasicAuth()
	level := zerolog.WarnLevel
	defer func() { audit.NoteRefusal(r, clipText(user), err.Error()) }()
	if cert := verifiedCertificate(r.TLS); !named && cert != nil {
		user = cert.Subject.CommonName
	} else if !named {
		level = zerolog.InfoLevel // such as a browser's first request
	}
	b.requests.log.WithLevel(level).Err(err).Str("user", clipText(user)).Str("remote", r.RemoteAddr).
		Str("method", r.Method).Str("path", clipText(r.URL.Path)).Msg("HTTP request refused: not signed in")
}

// clipText bounds text from unauthenticated clients for the log.
func clipText(text string) string {
	const most = 128
	if len(text) > most {
		text = text[:most] + "…"
	}
	return validText(text)
}

func (b *Broker) signIn(r *http.Request) (Identity, error) {
	id, err := b.identify(r)
	if err != nil {
		return id, err
	}
	at := quotaHolderOf(&id, remoteAddr(r))
	if err := b.quotas.requests.Take(id.User, 1); err != nil {
		return Identity{}, err
	}
	if err := b.quotas.takeConnection(at, quotaHolder{}); err != nil {
		b.quotas.requests.Add(id.User, -1)
		return Identity{}, err
	}
	context.AfterFunc(r.Context(), func() { // r's context ends with the answer
		b.quotas.releaseConnection(at)
		b.quotas.requests.Add(id.User, -1)
	})
	b.requests.track(r.Context(), &id)
	return id, nil
}

// identify says who sends a request: by a browser's cookie, or by what the request shows itself.
func (b *Broker) identify(r *http.Request) (Identity, error) {
	id, browser, err := b.browserIdentity(r)
	if browser || err != nil {
		id.Listener, id.Remote = "http", remoteAddr(r).String()
		return id, err
	}
	remote := remoteAddr(r)
	here := r.TLS == nil && loopbackAddr(remote) && loopbackAddr(localAddr(r))
	shown := credentials{loopback: here && namesLoopback(r.Host)}
	if user, password, ok := r.BasicAuth(); ok {
		shown.user, shown.password, shown.hasPass = user, []byte(password), true
	}
	if token, ok := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer "); ok {
		if shown.password, shown.hasPass = []byte(token), true; b.auth.bearer == nil || !b.auth.bearer.IsToken(token) {
			return Identity{}, resource.Errorf(resource.Unauthorized, "", "the bearer token is none that this program knows: edgebus token create makes one, auth.oidc names a provider")
		}
	}
	shown.cert = verifiedCertificate(r.TLS)
	expires := time.Time{} // of the certificate, if it is what identifies the client
	if shown.named() {
		if expires = shown.cert.NotAfter; b.opts.Now().After(expires) { // since the connection was made
			return Identity{}, resource.Errorf(resource.Unauthorized, "", "the certificate of %s has expired", validText(shown.cert.Subject.CommonName))
		}
	}
	id, code, why := b.auth.signIn(remote, shown)
	switch {
	case code == codeServerBusy:
		return Identity{}, resource.Errorf(resource.Unavailable, "", "%s", cmp.Or(why, connectReasons[code]))
	case code == codeNotAuthorized:
		return Identity{}, resource.Errorf(resource.Forbidden, "", "%s", why)
	case why != "":
		return Identity{}, resource.Errorf(resource.Unauthorized, "", "%s", why)
	case code == codeConnectRate:
		return Identity{}, resource.Errorf(resource.Quota, "", "%s (limits.wrongPasswords)", connectReasons[code])
	case code != codeSuccess && shown.hasPass:
		return Identity{}, resource.Errorf(resource.Unauthorized, "", "%s: users are listed in auth.users", connectReasons[code])
	case code != codeSuccess && here && len(b.auth.anonymous) > 0:
		return Identity{}, resource.Errorf(resource.Unauthorized, "", "not signed in, and %.100q is no name of the loopback interface "+
			"(a web page of that name could be asking): use 127.0.0.1 or localhost, or sign in as one of auth.users", r.Host)
	case code != codeSuccess:
		return Identity{}, resource.Errorf(resource.Unauthorized, "", "not signed in: "+
			"show a certificate that http.tls.clientCA has signed, or the name and password of one of auth.users")
	}
	if !expires.IsZero() {
		id.CertExpires, id.Expires, id.Certificate = expires, expires, shown.cert
	}
	id.Listener, id.Remote = "http", remote.String()
	return id, nil
}

// namesLoopback reports whether the request's Host names the loopback interface. It prevents DNS rebinding: a web page whose own
// name resolves to 127.0.0.1 sends that name, and its browser would let it read the answer. Every browser sends a Host.
func namesLoopback(host string) bool {
	if name, _, err := net.SplitHostPort(host); err == nil {
		host = name
	}
	if host == "" {
		return true
	}
	ip, err := netip.ParseAddr(strings.Trim(host, "[]"))
	return err == nil && ip.Unmap().IsLoopback() || strings.EqualFold(strings.TrimSuffix(host, "."), "localhost")
}

func remoteAddr(r *http.Request) net.Addr {
	at, _ := netip.ParseAddrPort(r.RemoteAddr) // set by net/http, always valid
	return net.TCPAddrFromAddrPort(at)
}

// localAddr is where the connection of a request arrived.
func localAddr(r *http.Request) net.Addr {
	at, _ := r.Context().Value(http.LocalAddrContextKey).(net.Addr)
	return at
}

// httpRequests are the HTTP requests under way, and who has signed in for more than one.
type httpRequests struct {
	running  sync.Map       // *httpRequest
	log      zerolog.Logger // for those that are refused, sampled apart
	browsers browserSignIns
	upgraded *listener // of connections that have begun as an HTTP request
	program  *listener // of connections of the program itself
}

// httpRequest is an HTTP request under way.
type httpRequest struct {
	id     *Identity
	cancel context.CancelFunc
}

// track has an HTTP request end with its identity: id.Revoked is done then, too.
func (rs *httpRequests) track(r context.Context, id *Identity) {
	parent := id.Revoked
	if parent == nil {
		parent = context.Background()
	}
	one := &httpRequest{id: id}
	id.Revoked, one.cancel = context.WithCancel(parent)
	rs.running.Store(one, nil)
	context.AfterFunc(r, func() {
		rs.running.Delete(one)
		one.cancel()
	})
}

// end ends the requests of identities that have lost their rights.
func (rs *httpRequests) end(ended func(*Identity) bool) {
	rs.running.Range(func(key, _ any) bool {
		if one := key.(*httpRequest); ended(one.id) {
			one.cancel()
		}
		return true
	})
}

// current is the identity of a stored session or will, with the rights that it has by the settings of now; nil: it has ended while the broker did not
// run, as nobody is let in as that user any more with the same token or certificate, or with a password. Another password is the same user's. Users of
// a provider are known to that alone.
func (a *authenticator) current(id *Identity) *Identity {
	var of Identity
	switch {
	case id.isBroker(), id.Has(topics.RoleEnrollee):
		return id
	case id.Bearer:
		if a.bearer == nil || a.bearer.Revoked(id.Token).Err() != nil {
			return nil
		}
		of = *id
	case id.Certificate != nil:
		why := ""
		if of, why = a.certificate(credentials{cert: id.Certificate}); why != "" {
			return nil
		}
	case id.User == "":
		if of = a.anonymousIdentity(); len(of.Roles) == 0 {
			return nil
		}
	default:
		u, listed := a.findUser(id.User)
		switch {
		case listed:
			of = a.identity(u)
		case id.Node != "" && a.loopbackNodes:
			of = nodeIdentity(id.Node)
		}
	}
	if !of.sameUser(id) || a.denied(Identity{User: id.User, Node: id.Node}, credentials{cert: id.Certificate}) != "" {
		return nil
	}
	if of.sameRights(id) {
		return id
	}
	now := *id
	now.Roles, now.Nodes, now.Devices, now.Protocols, now.Configurations = of.Roles, of.Nodes, of.Devices, of.Protocols, of.Configurations
	return &now
}
