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

	"github.com/edgebus/edgebus/broker/acl"
	"github.com/edgebus/edgebus/broker/audit"
	"github.com/edgebus/edgebus/configs/password"
	"github.com/edgebus/edgebus/topics"
	"github.com/edgebus/edgebus/topics/resource"
)

// acl derives every right of an identity: to topics from the contract's table, to client
// identifiers, and to administer the broker. It has no state of connections.
type accessControl struct {
	rows    map[topics.Kind]topics.Topic
	node    []topics.Topic // what a node may subscribe to
	down    []string       // and what outside v1/
	local   string         // the node whose own broker this is; empty on the hub
	mappers map[string]bool
	groups  []string          // globs of shared subscriptions' groups that users have in common
	rules   func() *acl.Rules // for users' own topics
	// protocol is the protocol of a device of the node; false: the node has no such device.
	protocol func(device string) (string, bool)
}

func newAccessControl(o Options) *accessControl {
	a := &accessControl{
		rows: make(map[topics.Kind]topics.Topic), down: o.Down, local: o.Node, protocol: o.Protocol, groups: o.Auth.SharedGroups,
		mappers: make(map[string]bool), rules: o.Auth.Topics,
	}
	if a.rules == nil {
		a.rules = func() *acl.Rules { return nil }
	}
	for _, u := range o.Auth.Users {
		if u.Role == topics.RoleMapper {
			a.mappers[u.Name] = true
		}
	}
	for _, t := range topics.Table() {
		a.rows[t.Kind] = t
		if slices.Contains(t.Subscribe, topics.RoleNode) {
			a.node = append(a.node, t)
		}
	}
	return a
}

// asFilter turns a pattern of the table into the filter that covers it.
func asFilter(pattern string) string {
	levels := strings.Split(pattern, "/")
	for i, l := range levels {
		if strings.HasPrefix(l, "{") {
			levels[i] = "+"
		}
	}
	return strings.Join(levels, "/")
}

func forbidden(topic, format string, args ...any) error {
	return resource.Errorf(resource.Forbidden, topic, format, args...)
}

// publish says why the identity may not publish to the topic, which CheckTopic
// has seen already.
func (a *accessControl) publish(id Identity, topic string) error {
	if !topics.IsTree(topic) {
		if a.ownTopics(id) {
			if !a.rules().Allowed(ruled(id), acl.Write, topic) {
				return forbidden(topic, "no rule for users' own topics lets %s publish here (auth.topics, auth.users)", who(id))
			}
			return nil
		}
		return forbidden(topic, "role %s may not publish outside %s", roles(id), topics.Prefix)
	}
	addr, err := topics.Parse(topic)
	if err != nil {
		return err
	}
	row := a.rows[addr.Kind]
	outside := ""
	for _, role := range id.Roles {
		if slices.Contains(row.Publish, role) {
			if outside = a.outside(id, role, addr); outside == "" && a.ownsMapperTopic(id, role, addr) {
				return nil
			}
		}
	}
	switch {
	case outside != "":
		return forbidden(topic, "%s %s", outside, who(id))
	case slices.ContainsFunc(row.Publish, id.Has):
		return forbidden(topic, "the mapper %s signs in as the user %s", addr.Device, addr.Device)
	}
	return forbidden(topic, "%s may not publish here: owner %s", roles(id), row.Owner)
}

// clientID says why the identity may not connect with a client identifier: those of the links, of nodes that enrol and
// of mappers are reserved, so that nobody else's session can keep their owners out.
func (a *accessControl) clientID(id Identity) error {
	if strings.HasPrefix(id.ClientID, enrollPrefix) != id.Has(topics.RoleEnrollee) {
		return resource.Errorf(resource.Forbidden, "", "client identifiers that begin with %s belong to nodes that enrol, and these have no other", enrollPrefix)
	}
	if rest, ok := strings.CutPrefix(id.ClientID, nodePrefix); ok {
		node, _, _ := strings.Cut(rest, "/")
		if id.Node != node {
			return resource.Errorf(resource.Forbidden, "", "the client identifier %s%s, and those below it, belong to node %s", nodePrefix, node, node)
		}
	}
	mapper, ok := strings.CutPrefix(id.ClientID, mapperPrefix)
	switch {
	case !ok || a.local == "": // mappers connect to their node's broker
	case !id.Has(topics.RoleMapper):
		return resource.Errorf(resource.Forbidden, "", "client identifiers that begin with %s belong to mappers, and the role is %s", mapperPrefix, roles(id))
	case !a.ownsMapper(id, mapper):
		return resource.Errorf(resource.Forbidden, "", "the client identifier belongs to the mapper %s, which signs in as the user %s", mapper, mapper)
	}
	return nil
}

// ownsMapper says whether a mapper of that name is the identity's own: the user's who is called so, if
// one with the role is, and else of whoever has the role.
func (a *accessControl) ownsMapper(id Identity, mapper string) bool {
	return id.Has(topics.RoleMapper) && (id.User == mapper || !a.mappers[mapper])
}

// speaksFor says whether what a mapper says of a mapper is said of itself.
func (a *accessControl) ownsMapperTopic(id Identity, role topics.Role, addr topics.Address) bool {
	ofMapper := addr.Kind == topics.KindMapperState || addr.Kind == topics.KindMapperProtocols
	return role != topics.RoleMapper || !ofMapper || a.ownsMapper(id, addr.Device)
}

// groupOwner is whose a shared subscription's group is.
func (a *accessControl) groupOwner(id Identity, group string) string {
	if matchAny(a.groups, group) {
		return "all"
	}
	return "user " + id.User
}

// administers says whether the identity is an operator of everything here: on the hub of all nodes, on a
// node's broker of that node.
func (a *accessControl) administers(id Identity) bool {
	if a.local != "" {
		return id.Has(topics.RoleOperator) && id.Given(a.local)
	}
	return id.AllNodes()
}

// ownTopics says whether the identity may publish outside the tree.
func (a *accessControl) ownTopics(id Identity) bool {
	return id.Has(topics.RoleOperator) || id.Has(topics.RoleMapper)
}

// ruled is whom the rules for users' own topics are about.
func ruled(id Identity) acl.Client { return acl.Client{User: id.User, ID: id.ClientID} }

// unruled says whether the identity may publish on all of the users' own topics.
func (a *accessControl) unruled(id Identity) bool {
	return a.ownTopics(id) && !a.rules().Applies(id.User, acl.Write)
}

// answered says whether an answer may be published on a response topic in the name of who asks for it. Without that a
// request would be a way to publish where the rules for users' own topics don't let its sender.
func (a *accessControl) answered(id Identity, reply string) bool {
	return topics.IsTree(reply) || id.Node != "" || ownReply(id, reply) || a.rules().Allowed(ruled(id), acl.Write, reply)
}

// ownReply says whether a topic or filter is for answers to this client alone: reply/{client identifier} and below. Every
// client that may ask may read these, whatever the rules for users' own topics say, or mappers and edgebus could not ask.
func ownReply(id Identity, filter string) bool {
	rest, ok := strings.CutPrefix(filter, "reply/"+id.ClientID)
	return ok && id.ClientID != "" && !strings.ContainsAny(id.ClientID, "+#/") && (rest == "" || rest[0] == '/')
}

// readsOwnTopics says whether the identity may subscribe outside the tree. A discoverer may, for devices that announce themselves there.
func (a *accessControl) readsOwnTopics(id Identity) bool {
	return id.Has(topics.RoleOperator) || id.Has(topics.RoleMapper) || id.Has(topics.RoleViewer) || id.Has(topics.RoleDiscoverer)
}

// read says whether the identity may receive what is published to the topic.
func (a *accessControl) read(id Identity, topic string) bool {
	if id.own() {
		return true
	}
	if strings.HasPrefix(topic, sysPrefix) { // what all nodes' clients do
		return a.administers(id)
	}
	if !topics.IsTree(topic) {
		if id.Has(topics.RoleNode) {
			return a.given(id.Node, topic)
		}
		return a.readsOwnTopics(id) && (a.rules().Allowed(ruled(id), acl.Read, topic) || ownReply(id, topic))
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
		if slices.Contains(row.Subscribe, role) && a.outside(id, role, addr) == "" {
			return true
		}
	}
	return false
}

// gets says whether a subscription of the identity's brings it the topic. The bus's own
// programs ask for the tree by name: a bridge's rule for # is for users' own topics.
func (a *accessControl) gets(id Identity, filter, topic string) bool {
	if (id.own() || id.Has(topics.RoleNode)) && topics.IsTree(topic) && !topics.IsTree(filter) {
		return false
	}
	return a.read(id, topic)
}

// subscribe says why the identity may not have the filter at all. Most roles may
// have a filter that covers more than they may read: read is asked again for each
// topic. A node may not: what it asks for is fixed, and more is a mistake or worse.
func (a *accessControl) subscribe(id Identity, filter string) error {
	if id.Has(topics.RoleNode) {
		return a.nodeSubscribe(id, filter)
	}
	if !strings.ContainsAny(filter, "+#") || id.Has(topics.RoleEnrollee) {
		if a.read(id, filter) {
			return nil
		}
		return forbidden(filter, "%s may not subscribe to it", who(id))
	}
	rest, ok := strings.CutPrefix(filter, topics.Prefix)
	if !ok {
		if !reachesTree(filter) && !ownReply(id, filter) && !a.rules().MaySubscribe(ruled(id), filter) {
			return forbidden(filter, "no rule for users' own topics lets %s read any of it (auth.topics, auth.users)", who(id))
		}
		return nil
	}
	node, _, _ := strings.Cut(rest, "/")
	if node == "+" || node == "#" || matchAny(id.Nodes, node) || id.Has(topics.RoleMapper) {
		return nil
	}
	return forbidden(filter, "node %s is not given to %s", node, who(id))
}

// reachesTree says whether a filter matches topics of the tree, or of what else the broker has below v1/.
func reachesTree(filter string) bool {
	first, rest, _ := strings.Cut(filter, "/")
	if first != "+" && first != "v1" {
		return first == "#"
	}
	second, _, _ := strings.Cut(rest, "/")
	return second == "+" || second == "#" || topics.IsTree("v1/"+second)
}

func (a *accessControl) nodeSubscribe(id Identity, filter string) error {
	if own := topics.RefusedPrefix + topicID(id.ClientID); filter == own {
		return nil
	}
	if key, ok := strings.CutPrefix(filter, topics.Prefix+id.Node+"/"); ok {
		for _, allowed := range a.node {
			if !covers(asFilter(allowed.Pattern), key) {
				continue
			}
			if linkOnly[allowed.Kind] && !id.IsLink() {
				return forbidden(filter, "%s %s", notTheLink, who(id))
			}
			return nil
		}
	}
	if topics.IsTree(filter) {
		return forbidden(filter, "a node may subscribe to its own link and commands only")
	}
	for _, d := range a.down {
		if covers(ofNode(d, id.Node), filter) {
			return nil
		}
	}
	return forbidden(filter, "the hub's bridge.down gives it to no node %s", id.Node)
}

// given says whether a users' own topic is one that the node may have.
func (a *accessControl) given(node, topic string) bool {
	return slices.ContainsFunc(a.down, func(d string) bool { return topics.Match(ofNode(d, node), topic) })
}

func ofNode(filter, node string) string { return strings.ReplaceAll(filter, "{node}", node) }

// Why a role, which the table allows, does not extend to an address. The user's name follows.
const (
	notGiven      = "this node or device is not given to"
	otherProtocol = "the device has a protocol that is not given to"

	otherConfiguration = "this Configuration is not given to"
	notOverNetworks    = "values of Secrets are sent at the Unix socket (mqtt.socket) only, and this is another connection of"

	notTheLink = "this is for the link alone, whose client identifier is node/ and the node's name, and not for another client of"
	ofEnrollee = "an enrolment request is named after the client identifier, enroll/{request}, and its node after the user name, enroll/{node}; this is not so for"
)

// outside says why a role, which the table allows, does not extend to the address; empty: it does.
func (a *accessControl) outside(id Identity, role topics.Role, addr topics.Address) string {
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
	topics.KindSyncUp: true, topics.KindSyncDown: true, topics.KindClock: true, topics.KindCommand: true, topics.KindAnswer: true,
	topics.KindEnroll: true, topics.KindEnrolled: true,
}

// speaks says why a mapper that was given protocols has nothing to do with a device. What is said of
// one that the node hasn't is that it is gone, and is for all.
func (a *accessControl) checkProtocol(id Identity, device string) string {
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

// covers says whether every topic that filter matches is matched by wide, too.
func covers(wide, filter string) bool {
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

func roles(id Identity) string {
	names := make([]string, len(id.Roles))
	for i, r := range id.Roles {
		names[i] = string(r)
	}
	return strings.Join(names, "+")
}

// who names the user behind the roles.
func who(id Identity) string { return strings.TrimSuffix(roles(id)+" "+id.User, " ") }

// topicID is a client id as one can stand in a topic.
func topicID(clientID string) string {
	if !strings.ContainsAny(clientID, "%+#") {
		return clientID
	}
	return strings.NewReplacer("%", "%25", "+", "%2B", "#", "%23").Replace(clientID)
}

// validText makes a text fit for an MQTT string.
func validText(s string) string {
	return strings.ReplaceAll(strings.ToValidUTF8(s, "�"), "\x00", "�")
}

// authenticator knows the users. It is read-only once made.
type authenticator struct {
	users map[string]account
	// slowest stands in for the hash of a user that doesn't exist, or has none.
	slowest       password.Hash
	anonymous     []topics.Role
	loopbackNodes bool
	node          string
	isNode        func(name string) bool
	deny          []Denied
	bearer        Bearer
	revoked       func(node string, cert *x509.Certificate) string
	enroll        func(node, token string) error
	local         map[string]account // by the names or numbers of this host's users
	network       bool               // there are users who sign in by a password or certificate
}

type account struct {
	User
	hash password.Hash
}

// newAuthenticator takes options that validate found well.
func newAuthenticator(o Options) (*authenticator, error) {
	a := &authenticator{
		users:     make(map[string]account, len(o.Auth.Users)),
		anonymous: o.Auth.Anonymous, loopbackNodes: o.Auth.LoopbackNodes, node: o.Node,
		isNode: o.Auth.Node, deny: o.Auth.Deny, bearer: o.Auth.Bearer, revoked: o.Auth.Revoked, enroll: o.Auth.Enroll,
		local: make(map[string]account),
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
			a.local[u.Local] = account{u, h}
		}
		a.users[u.Name] = account{u, h}
	}
	a.slowest = password.Slowest(hashes)
	return a, nil
}

// credentials are what a connection brought with it.
type credentials struct {
	user     string
	password []byte
	hasPass  bool
	cert     *x509.Certificate // a verified one; nil: none
	loopback bool              // a loopback listener, and a peer on this host
	secure   bool              // an MQTT listener with TLS
	local    *localUser        // who connected over a Unix socket; nil: it is another connection
}

// needed takes off what nobody needs: where anybody of this host may come, and no users are listed that
// one could be mistaken for (those of the Unix socket sign in nowhere else), a name and a password say nothing. Many clients can't do without.
func (a *authenticator) needed(c credentials) credentials {
	if a.network || len(a.anonymous) == 0 || !c.loopback || c.cert != nil && c.cert.Subject.CommonName != "" {
		return c
	}
	if c.password, c.hasPass = nil, false; !strings.HasPrefix(c.user, nodePrefix) {
		c.user = ""
	}
	return c
}

// account finds a user. A node's is named after it, and cores call it node/{name}.
func (a *authenticator) account(user string) (account, bool) {
	if u, known := a.users[user]; known {
		return u, true
	}
	name, isNode := strings.CutPrefix(user, nodePrefix)
	u := a.users[name]
	return u, isNode && u.Role == topics.RoleNode
}

// named says whether a certificate says who it is. A password decides before it, so that a person can use
// a host's certificate for the connection only.
func (c credentials) named() bool {
	return !c.hasPass && c.cert != nil && c.cert.Subject.CommonName != ""
}

// identify says who it is that brought no password, or not ok, and then why if there is more to say than that.
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
		id, ok = Identity{Roles: a.anonymous, Nodes: []string{"*"}, Devices: []string{"*"}}, true
	}
	if ok {
		if why = a.denied(id, c); why != "" {
			return Identity{}, why, false
		}
	}
	return id, why, ok
}

// localUser is the identity of a user of this host, who connected over a Unix socket.
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

// denied says why somebody is not let in who would be.
func (a *authenticator) denied(id Identity, c credentials) string {
	name, cert := strings.TrimPrefix(id.User, nodePrefix), c.cert
	if id.Has(topics.RoleAgent) && c.local == nil { // it receives Secrets, which no network has to carry
		return fmt.Sprintf("%s has the role agent, which only programs of this host have, at the Unix socket (mqtt.socket)", validText(name))
	}
	for _, d := range a.deny {
		switch {
		case d.Name != "" && d.Name == name:
			return fmt.Sprintf("%s is denied (auth.deny)", validText(name))
		case cert == nil:
		case d.Serial != "" && d.Serial == cert.SerialNumber.Text(16), d.Fingerprint != "" && d.Fingerprint == fingerprint(cert):
			return "this certificate is denied (auth.deny)"
		}
	}
	if a.revoked != nil && id.Node != "" {
		return a.revoked(id.Node, cert)
	}
	return ""
}

// enrollee is a node that asks for its first certificate, if that is what the user name says. Over a connection
// without TLS its token could be read, so there it is nobody.
func (a *authenticator) enrollee(c credentials) (node string, ok bool) {
	node, ok = strings.CutPrefix(c.user, enrollPrefix)
	return node, ok && a.enroll != nil && c.secure && topics.ValidName(node)
}

// NodeUnit is the organizational unit in the certificates that a hub makes for its nodes. Such a certificate is never a
// user's, whatever users have the node's name.
const NodeUnit = "edgebus node"

// IsNodeCertificate says whether a certificate is one that a hub has made for a node.
func IsNodeCertificate(cert *x509.Certificate) bool {
	return slices.Contains(cert.Subject.OrganizationalUnit, NodeUnit)
}

func enrolleeIdentity(node string) Identity {
	return Identity{User: enrollPrefix + node, Roles: []topics.Role{topics.RoleEnrollee}, Nodes: []string{node}}
}

func fingerprint(cert *x509.Certificate) string {
	sum := sha256.Sum256(cert.Raw)
	return new(big.Int).SetBytes(sum[:]).Text(16)
}

// matches says whether the password is the user's. That it isn't takes as long as the slowest hash for whatever
// name: the time doesn't tell which users there are.
func (a *authenticator) matches(c credentials) bool {
	u, known := a.account(c.user)
	if known && u.PasswordHash != "" {
		if u.hash.Matches(c.password) {
			return true
		}
		a.slowest.Less(u.hash).Matches(c.password)
		return false
	}
	a.slowest.Matches(c.password)
	return false
}

// identity is who a listed user is.
func (a *authenticator) identity(u account) Identity {
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

// certificate: the authority that signed it vouches for the name. One that is listed is that
// user; any other is a node's, if that is known.
func (a *authenticator) certificate(c credentials) (id Identity, why string) {
	name := c.cert.Subject.CommonName
	u, listed := a.users[name]
	why = a.otherName(c)
	ofNode := IsNodeCertificate(c.cert)
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

// commonNames counts them.
func commonNames(cert *x509.Certificate) (n int) {
	for _, part := range cert.Subject.Names {
		if part.Type.Equal(asn1.ObjectIdentifier{2, 5, 4, 3}) {
			n++
		}
	}
	return n
}

// otherName says how the name that somebody gave differs from the one in the certificate; empty:
// not at all, or there is but one of them.
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

// Client identifiers, and of nodes also user names, begin so.
const (
	nodePrefix   = "node/"
	enrollPrefix = "enroll/"
	mapperPrefix = "mapper-"
)

func nodeUser(name string) string { return nodePrefix + name }

func nodeIdentity(name string) Identity {
	return Identity{User: nodeUser(name), Roles: []topics.Role{topics.RoleNode}, Node: name}
}

// SignIn says who sends an HTTP request, by the rules for who connects over MQTT: a user's name and
// password, else the certificate of the connection, else anybody of this host over a plain
// connection of the loopback interface. Wrong passwords of both count together,
// and so do connections and requests that are under way.
// A request that is not let in is logged, of a flood not each.
func (b *Broker) SignIn(r *http.Request) (Identity, error) {
	id, err := b.signIn(r)
	if err == nil {
		audit.Identify(r, id.User, roles(id))
		return id, nil
	}
	user, _, named := r.BasicAuth()
	level := zerolog.WarnLevel
	defer func() { audit.Refuse(r, clipped(user), err.Error()) }()
	if cert := verified(r.TLS); !named && cert != nil {
		user = cert.Subject.CommonName
	} else if !named {
		level = zerolog.InfoLevel // such as a browser's first request
	}
	b.signInLog.WithLevel(level).Err(err).Str("user", clipped(user)).Str("remote", r.RemoteAddr).
		Str("method", r.Method).Str("path", clipped(r.URL.Path)).Msg("HTTP request refused: not signed in")
	return id, err
}

// clipped keeps what a stranger sends from filling the log.
func clipped(text string) string {
	const most = 128
	if len(text) > most {
		text = text[:most] + "…"
	}
	return validText(text)
}

func (b *Broker) signIn(r *http.Request) (Identity, error) {
	remote := addrOf(r)
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
	shown.cert = verified(r.TLS)
	expires := time.Time{} // of the certificate, if that is what counts
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
		return Identity{}, resource.Errorf(resource.Unauthorized, "", "nobody is signed in, and %.100q is no name of the loopback interface "+
			"(a web page of that name could be asking): use 127.0.0.1 or localhost, or sign in as one of auth.users", r.Host)
	case code != codeSuccess:
		return Identity{}, resource.Errorf(resource.Unauthorized, "", "nobody is signed in: "+
			"show a certificate that http.tls.clientCA has signed, or the name and password of one of auth.users")
	}
	at := ownerOf(id, remote)
	if err := b.quotas.requests.Take(id.User, 1); err != nil {
		return Identity{}, err
	}
	if err := b.quotas.takeConnection(at, connectionOwner{}); err != nil {
		b.quotas.requests.Add(id.User, -1)
		return Identity{}, err
	}
	context.AfterFunc(r.Context(), func() { // which ends with the answer
		b.quotas.releaseConnection(at)
		b.quotas.requests.Add(id.User, -1)
	})
	if !expires.IsZero() {
		id.CertExpires, id.Expires = expires, expires
	}
	id.Listener, id.Remote = "http", remote.String()
	return id, nil
}

// namesLoopback says whether a request was meant for the loopback interface. A page of a site whose name was made to point
// there means that site, and the browser takes the answer for the site's own. No browser leaves the name out.
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

func addrOf(r *http.Request) net.Addr {
	at, _ := netip.ParseAddrPort(r.RemoteAddr) // the server's own word
	return net.TCPAddrFromAddrPort(at)
}

// localAddr is where the connection of a request arrived.
func localAddr(r *http.Request) net.Addr {
	at, _ := r.Context().Value(http.LocalAddrContextKey).(net.Addr)
	return at
}
