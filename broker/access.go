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
	"path"
	"slices"
	"strings"
	"time"

	"github.com/rs/zerolog"

	"github.com/edgebus/edgebus/broker/audit"
	"github.com/edgebus/edgebus/topics"
	"github.com/edgebus/edgebus/topics/acl"
	"github.com/edgebus/edgebus/topics/password"
	"github.com/edgebus/edgebus/topics/resource"
)

// accessControl derives every right of an identity: to topics from the contract's table, to client identifiers, and to administer
// the broker. It holds no state of connections.
type accessControl struct {
	rows       map[topics.Kind]topics.Topic
	nodeTopics []topics.Topic // what a node may subscribe to
	bridgeDown []string       // and what outside v1/
	local      string         // the node whose own broker this is; empty on the hub
	mappers    map[string]bool
	clients    []reservedClients // client identifiers that are reserved for users
	groups     []string          // globs of shared subscriptions' groups that users have in common
	rules      func() *acl.Rules // for users' own topics
	// protocol is the protocol of a device of the node; false: the node has no such device.
	protocol func(device string) (string, bool)
}

func newAccessControl(o Options) *accessControl {
	a := &accessControl{
		rows: make(map[topics.Kind]topics.Topic), bridgeDown: o.Down, local: o.Node, protocol: o.Protocol, groups: o.Auth.SharedGroups,
		mappers: make(map[string]bool), rules: o.Auth.Topics,
	}
	if a.rules == nil {
		a.rules = func() *acl.Rules { return nil }
	}
	for _, u := range o.Auth.Users {
		if u.Role == topics.RoleMapper {
			a.mappers[u.Name] = true
		}
		if len(u.Clients) > 0 {
			a.clients = append(a.clients, reservedClients{u.Name, u.Clients})
		}
	}
	for _, t := range topics.Table() {
		a.rows[t.Kind] = t
		if slices.Contains(t.Subscribe, topics.RoleNode) {
			a.nodeTopics = append(a.nodeTopics, t)
		}
	}
	return a
}

// filterOfPattern turns a pattern of the table into the filter that covers it.
func filterOfPattern(pattern string) string {
	levels := strings.Split(pattern, "/")
	for i, l := range levels {
		if strings.HasPrefix(l, "{") {
			levels[i] = "+"
		}
	}
	return strings.Join(levels, "/")
}

func forbiddenError(topic, format string, args ...any) error {
	return topicError(resource.Forbidden, topic, format, args...)
}

// publish returns an error if the identity may not publish to the topic. CheckTopic has accepted the topic before.
func (a *accessControl) publish(id *Identity, topic string) error {
	if !topics.IsTree(topic) {
		if a.ownTopics(id) {
			if !a.rules().Allowed(aclClient(id), acl.Write, topic) {
				return forbiddenError(topic, "no rule for users' own topics lets %s publish here (auth.topics, auth.users)", roleAndUser(id))
			}
			return nil
		}
		return forbiddenError(topic, "role %s may not publish outside %s", roleNames(id), topics.Prefix)
	}
	addr, err := topics.Parse(topic)
	if err != nil {
		return err
	}
	row := a.rows[addr.Kind]
	outside := ""
	for _, role := range id.Roles {
		if slices.Contains(row.Publish, role) {
			if outside = a.whyOutside(id, role, addr); outside == "" && a.ownsMapperTopic(id, role, addr) {
				return nil
			}
		}
	}
	switch {
	case outside != "":
		return forbiddenError(topic, "%s %s", outside, roleAndUser(id))
	case slices.ContainsFunc(row.Publish, id.Has):
		return forbiddenError(topic, "the mapper %s signs in as the user %s", addr.Device, addr.Device)
	}
	return forbiddenError(topic, "%s may not publish here: owner %s", roleNames(id), row.Owner)
}

// reservedClients are the client identifiers that auth.users reserves for a user, as globs.
type reservedClients struct {
	user  string
	globs []string
}

// programRoles are the client identifiers of a node's own programs. Those that begin with one and a hyphen are reserved as well.
var programRoles = map[string]topics.Role{"edgeagent": topics.RoleAgent, "edgediscovery": topics.RoleDiscoverer}

// clientID returns an error if the identity may not connect with its client identifier. The identifiers of links, of nodes that
// enrol, of mappers and of a node's programs are reserved, and so are those that auth.users lists for a user: a session of
// another user under such an identifier would keep its owner out. What nodes and mappers have an identity for is known, so
// they may use no other identifiers than their own.
func (a *accessControl) clientID(id *Identity) error {
	if strings.HasPrefix(id.ClientID, enrollPrefix) != id.Has(topics.RoleEnrollee) {
		return resource.Errorf(resource.Forbidden, "", "client identifiers that begin with %s belong to nodes that enrol, and these have no other", enrollPrefix)
	}
	if id.Has(topics.RoleEnroller) {
		return resource.Errorf(resource.Forbidden, "", "the role enroller is for the hub's HTTP API, and has nothing to do here")
	}
	if rest, ok := strings.CutPrefix(id.ClientID, nodePrefix); ok {
		node, _, _ := strings.Cut(rest, "/")
		if id.Node != node {
			return resource.Errorf(resource.Forbidden, "", "this client identifier and those below it belong to node %.100s", node)
		}
		return nil
	}
	if err := a.reserved(id); err != nil {
		return err
	}
	switch {
	case strings.HasPrefix(id.ClientID, assignedPrefix):
	case id.Has(topics.RoleNode):
		return resource.Errorf(resource.Forbidden, "", "node %s has the client identifier %s and those below it, and no other", id.Node, nodeUser(id.Node))
	case a.mappers[id.User] && !a.mappersOwn(id):
		return resource.Errorf(resource.Forbidden, "", "the client identifiers of the mapper's user %[1]s are %[1]s, those that begin with %[1]s-, "+
			"%[2]s or %[3]s, and those that auth.users lists (clients)", id.User, mapperPrefix, devicesPrefix)
	}
	return nil
}

// reserved returns an error if the client identifier is reserved for others: for users of auth.users, and on a node for roles.
func (a *accessControl) reserved(id *Identity) error {
	owner := ""
	for _, of := range a.clients {
		if matchAny(of.globs, id.ClientID) {
			if of.user == id.User {
				return nil
			}
			owner = of.user
		}
	}
	if owner != "" {
		return resource.Errorf(resource.Forbidden, "", "the client identifier is reserved for the user %s (auth.users, clients)", owner)
	}
	if a.local == "" { // these programs connect to their node's broker
		return nil
	}
	for _, prefix := range []string{mapperPrefix, devicesPrefix} {
		mapper, ok := strings.CutPrefix(id.ClientID, prefix)
		switch {
		case !ok:
		case !id.Has(topics.RoleMapper):
			return resource.Errorf(resource.Forbidden, "", "client identifiers that begin with %s belong to mappers, and the role is %s", prefix, roleNames(id))
		case !a.ownsMapper(id, mapper):
			return resource.Errorf(resource.Forbidden, "", "the client identifier belongs to the mapper %s, which signs in as the user %s", mapper, mapper)
		}
	}
	for name, role := range programRoles {
		if rest, ok := strings.CutPrefix(id.ClientID, name); ok && (rest == "" || rest[0] == '-') && !id.Has(role) {
			return resource.Errorf(resource.Forbidden, "", "the client identifier %s, and those that begin with %s-, belong to the role %s, and the role is %s", name, name, role, roleNames(id))
		}
	}
	return nil
}

// mappersOwn reports whether a client identifier that is reserved for nobody else is one of a mapper's user.
func (a *accessControl) mappersOwn(id *Identity) bool {
	for _, prefix := range []string{mapperPrefix, devicesPrefix} {
		if a.local != "" && strings.HasPrefix(id.ClientID, prefix) {
			return true
		}
	}
	if rest, ok := strings.CutPrefix(id.ClientID, id.User); ok && (rest == "" || rest[0] == '-') {
		return true
	}
	return slices.ContainsFunc(a.clients, func(of reservedClients) bool { return of.user == id.User && matchAny(of.globs, id.ClientID) })
}

// ownsMapper reports whether a mapper of that name belongs to the identity: to the user of the same name if one has the role
// mapper, and otherwise to each user with that role.
func (a *accessControl) ownsMapper(id *Identity, mapper string) bool {
	return id.Has(topics.RoleMapper) && (id.User == mapper || !a.mappers[mapper])
}

// ownsMapperTopic reports whether a topic that describes a mapper (its state, its protocols) describes the identity's own mapper.
// It is true for other roles and other topics.
func (a *accessControl) ownsMapperTopic(id *Identity, role topics.Role, addr topics.Address) bool {
	ofMapper := addr.Kind == topics.KindMapperState || addr.Kind == topics.KindMapperProtocols
	return role != topics.RoleMapper || !ofMapper || a.ownsMapper(id, addr.Device)
}

// groupOwner returns the owner of a shared subscription's group: all users, or the user of the identity.
func (a *accessControl) groupOwner(id *Identity, group string) string {
	if matchAny(a.groups, group) {
		return "all"
	}
	return "user " + id.User
}

// administers reports whether the identity is an operator of everything on this broker: of all nodes on the hub, of the node on a
// node's own broker.
func (a *accessControl) administers(id *Identity) bool {
	if a.local != "" {
		return id.Has(topics.RoleOperator) && id.GivenNode(a.local)
	}
	return id.AllNodes()
}

// ownTopics reports whether the identity may publish outside the tree.
func (a *accessControl) ownTopics(id *Identity) bool {
	return id.Has(topics.RoleOperator) || id.Has(topics.RoleMapper)
}

// aclClient returns the identity as the rules for users' own topics see it.
func aclClient(id *Identity) acl.Client { return acl.Client{User: id.User, ID: id.ClientID} }

// unlimited reports whether the identity may publish to every topic outside the tree, because no rule applies to it.
func (a *accessControl) unlimited(id *Identity) bool {
	return a.ownTopics(id) && !a.rules().Applies(id.User, acl.Write)
}

// answered reports whether the identity may name the response topic in a request. The answer is published there with the sender's
// rights; otherwise a request could publish where the rules for users' own topics forbid it.
func (a *accessControl) answered(id *Identity, reply string) bool {
	return topics.IsTree(reply) || id.Node != "" || ownReply(id, reply) || a.rules().Allowed(aclClient(id), acl.Write, reply)
}

// ownReply reports whether a topic or filter is for answers to this client alone: reply/{client identifier} and below. Every client
// that may send requests may read these, whatever the rules for users' own topics say: mappers and edgebus depend on it.
func ownReply(id *Identity, filter string) bool {
	rest, ok := strings.CutPrefix(filter, "reply/"+id.ClientID)
	return ok && id.ClientID != "" && !strings.ContainsAny(id.ClientID, "+#/") && (rest == "" || rest[0] == '/')
}

// readsOwnTopics reports whether the identity may subscribe outside the tree. A discoverer may, for devices that announce themselves there.
func (a *accessControl) readsOwnTopics(id *Identity) bool {
	return id.Has(topics.RoleOperator) || id.Has(topics.RoleMapper) || id.Has(topics.RoleViewer) || id.Has(topics.RoleDiscoverer)
}

// read reports whether the identity may receive what is published to the topic.
func (a *accessControl) read(id *Identity, topic string) bool {
	if id.isBroker() {
		return true
	}
	if strings.HasPrefix(topic, sysPrefix) { // statistics of the clients of all nodes
		return a.administers(id)
	}
	if !topics.IsTree(topic) {
		if id.Has(topics.RoleNode) {
			return a.bridgedDown(id.Node, topic)
		}
		return a.readsOwnTopics(id) && (a.rules().Allowed(aclClient(id), acl.Read, topic) || ownReply(id, topic))
	}
	if rest, ok := strings.CutPrefix(topic, topics.RefusedPrefix); ok {
		return a.administers(id) || rest == topicID(id.ClientID)
	}
	addr, err := topics.Parse(topic)
	if err != nil {
		return false
	}
	row := a.rows[addr.Kind]
	for _, role := range id.Roles {
		if slices.Contains(row.Subscribe, role) && a.whyOutside(id, role, addr) == "" {
			return true
		}
	}
	return false
}

// delivers reports whether a subscription of the identity delivers the topic. The bus's own programs receive topics of the tree only
// through filters below v1/: a bridge's filter # is for users' own topics.
func (a *accessControl) delivers(id *Identity, filter, topic string) bool {
	if (id.isBroker() || id.Has(topics.RoleNode)) && topics.IsTree(topic) && !topics.IsTree(filter) {
		return false
	}
	if strings.HasPrefix(topic, topics.RefusedPrefix) && !strings.HasPrefix(filter, "v1/") { // who wants everything wants no reports about himself
		return false
	}
	return a.read(id, topic)
}

// subscribe returns an error if the identity may not subscribe to the filter at all. Most roles may subscribe to filters that cover
// more than they may read: each topic is checked again by read. A node may not: its subscriptions are fixed, and any other is an
// error or an attack.
func (a *accessControl) subscribe(id *Identity, filter string) error {
	if id.Has(topics.RoleNode) {
		return a.nodeSubscribe(id, filter)
	}
	if !strings.ContainsAny(filter, "+#") || id.Has(topics.RoleEnrollee) {
		if a.read(id, filter) {
			return nil
		}
		return forbiddenError(filter, "%s may not subscribe to it", roleAndUser(id))
	}
	rest, ok := strings.CutPrefix(filter, topics.Prefix)
	if !ok {
		if !reachesTree(filter) && !ownReply(id, filter) && !a.rules().MaySubscribe(aclClient(id), filter) {
			return forbiddenError(filter, "no rule for users' own topics lets %s read any of it (auth.topics, auth.users)", roleAndUser(id))
		}
		return nil
	}
	node, _, _ := strings.Cut(rest, "/")
	if node == "+" || node == "#" || matchAny(id.Nodes, node) || id.Has(topics.RoleMapper) {
		return nil
	}
	return forbiddenError(filter, "node %s is not given to %s", node, roleAndUser(id))
}

// reachesTree reports whether a filter matches topics of the tree, or other topics of the broker below v1/.
func reachesTree(filter string) bool {
	first, rest, _ := strings.Cut(filter, "/")
	if first != "+" && first != "v1" {
		return first == "#"
	}
	second, _, _ := strings.Cut(rest, "/")
	return second == "+" || second == "#" || topics.IsTree("v1/"+second)
}

func (a *accessControl) nodeSubscribe(id *Identity, filter string) error {
	if own := topics.RefusedPrefix + topicID(id.ClientID); filter == own {
		return nil
	}
	if key, ok := strings.CutPrefix(filter, topics.Prefix+id.Node+"/"); ok {
		for _, allowed := range a.nodeTopics {
			if !filterCovers(filterOfPattern(allowed.Pattern), key) {
				continue
			}
			if linkOnly[allowed.Kind] && !id.IsLink() {
				return forbiddenError(filter, "%s %s", notTheLink, roleAndUser(id))
			}
			return nil
		}
	}
	if topics.IsTree(filter) {
		return forbiddenError(filter, "a node may subscribe to its own link and commands only")
	}
	for _, d := range a.bridgeDown {
		if filterCovers(filterForNode(d, id.Node), filter) {
			return nil
		}
	}
	return forbiddenError(filter, "the hub's bridge.down gives it to no node %s", id.Node)
}

// bridgedDown reports whether the node may receive a topic outside the tree (bridge.down).
func (a *accessControl) bridgedDown(node, topic string) bool {
	return slices.ContainsFunc(a.bridgeDown, func(d string) bool { return topics.Match(filterForNode(d, node), topic) })
}

func filterForNode(filter, node string) string { return strings.ReplaceAll(filter, "{node}", node) }

// Reasons why a role that the table allows does not extend to an address. The user's name follows.
const (
	notGiven      = "this node or device is not given to"
	otherProtocol = "the device has a protocol that is not given to"

	otherConfiguration = "this Configuration is not given to"
	notOverNetworks    = "values of Secrets are sent at the Unix socket (mqtt.socket) only, and this is another connection of"

	notTheLink = "this is for the link alone, whose client identifier is node/ and the node's name, and not for another client of"
	ofEnrollee = "an enrolment request is named after the client identifier, enroll/{request}, and its node after the user name, enroll/{node}; this is not so for"
)

// whyOutside returns the reason why a role that the table allows does not extend to the address; empty: it does.
func (a *accessControl) whyOutside(id *Identity, role topics.Role, addr topics.Address) string {
	switch role {
	case topics.RoleNode:
		if addr.Node != id.Node {
			return notGiven
		}
		if linkOnly[addr.Kind] && !id.IsLink() {
			return notTheLink
		}
		return ""
	case topics.RoleEnrollee:
		if !slices.Contains(id.Nodes, addr.Node) || id.ClientID != enrollPrefix+addr.Device {
			return ofEnrollee
		}
		return ""
	case topics.RoleMapper:
		if !strings.HasPrefix(addr.Key(), "devices/") {
			return ""
		}
		if len(id.Devices) > 0 && !matchAny(id.Devices, addr.Device) {
			return notGiven
		}
		return a.checkProtocol(id, addr.Device)
	case topics.RoleDiscoverer:
		if len(id.Configurations) > 0 && !matchAny(id.Configurations, addr.Device) {
			return otherConfiguration
		}
		if addr.Kind == topics.KindDiscoverySecret && !id.Local {
			return notOverNetworks
		}
	}
	if !matchAny(id.Nodes, addr.Node) {
		return notGiven
	}
	return ""
}

// linkOnly are the kinds that belong to the link between a core and its hub.
var linkOnly = map[topics.Kind]bool{
	topics.KindSyncUp: true, topics.KindSyncDown: true, topics.KindParts: true, topics.KindClock: true, topics.KindCommand: true, topics.KindAnswer: true,
	topics.KindEnroll: true, topics.KindEnrolled: true,
}

// checkProtocol returns the reason why a mapper that is limited to some protocols has no right to a device's topics; empty: it has.
// Topics of a device that the node doesn't have say that the device is gone, and every mapper may read them.
func (a *accessControl) checkProtocol(id *Identity, device string) string {
	if len(id.Protocols) == 0 || a.protocol == nil {
		return ""
	}
	is, known := a.protocol(device)
	if known && !slices.ContainsFunc(id.Protocols, func(p string) bool { return resource.SameProtocol(p, is) }) {
		return otherProtocol
	}
	return ""
}

func matchAny(globs []string, name string) bool {
	return slices.ContainsFunc(globs, func(glob string) bool {
		ok, _ := path.Match(glob, name)
		return ok
	})
}

// filterCovers reports whether every topic that filter matches is matched by wide, too.
func filterCovers(wide, filter string) bool {
	for {
		wl, wrest, wmore := strings.Cut(wide, "/")
		if wl == "#" {
			return true
		}
		fl, frest, fmore := strings.Cut(filter, "/")
		if fl == "#" || wl != "+" && wl != fl {
			return false
		}
		if !wmore || !fmore {
			return wmore == fmore || wrest == "#"
		}
		wide, filter = wrest, frest
	}
}

func roleNames(id *Identity) string {
	names := make([]string, len(id.Roles))
	for i, r := range id.Roles {
		names[i] = string(r)
	}
	return strings.Join(names, "+")
}

// roleAndUser returns the roles and the user's name, for messages.
func roleAndUser(id *Identity) string { return strings.TrimSuffix(roleNames(id)+" "+id.User, " ") }

// topicID escapes a client identifier for use as a topic level.
func topicID(clientID string) string {
	if !strings.ContainsAny(clientID, "%+#") {
		return clientID
	}
	return strings.NewReplacer("%", "%25", "+", "%2B", "#", "%23").Replace(clientID)
}

// validText replaces what an MQTT string must not contain, and what clients refuse in one.
func validText(s string) string { return topics.MakeReadable(s) }

// authenticator authenticates users. It is not changed after newAuthenticator.
type authenticator struct {
	users map[string]authUser
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

// identify returns the identity of a connection without a password. If ok is false, why is the reason, and may be empty.
func (a *authenticator) identify(c credentials) (id Identity, why string, ok bool) {
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

// hostUser returns the identity of a user of this host who is connected over a Unix socket, or why there is none.
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
	user, _, named := r.BasicAuth()
	level := zerolog.WarnLevel
	defer func() { audit.NoteRefusal(r, clipText(user), err.Error()) }()
	if cert := verifiedCertificate(r.TLS); !named && cert != nil {
		user = cert.Subject.CommonName
	} else if !named {
		level = zerolog.InfoLevel // such as a browser's first request
	}
	b.signInLog.WithLevel(level).Err(err).Str("user", clipText(user)).Str("remote", r.RemoteAddr).
		Str("method", r.Method).Str("path", clipText(r.URL.Path)).Msg("HTTP request refused: not signed in")
	return id, err
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
	id, code, why := b.identify(remote, shown)
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
	at := quotaHolderOf(&id, remote)
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
	if !expires.IsZero() {
		id.CertExpires, id.Expires, id.Certificate = expires, expires, shown.cert
	}
	id.Listener, id.Remote = "http", remote.String()
	b.track(r.Context(), &id)
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
