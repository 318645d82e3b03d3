// SPDX-License-Identifier: Apache-2.0

package broker

import (
	"path"
	"slices"
	"strings"

	"github.com/edgebus/edgebus/topics"
	"github.com/edgebus/edgebus/topics/acl"
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
	if reservedForProgram(id) {
		return resource.Errorf(resource.Forbidden, "", "client identifiers that begin with %s belong to the views of this program", programPrefix)
	}
	for _, role := range []topics.Role{topics.RoleEnroller, topics.RoleFollower} {
		if id.Has(role) {
			return resource.Errorf(resource.Forbidden, "", "the role %s is for the hub's HTTP API, and has nothing to do here", role)
		}
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

// ownsMapperTopic reports whether a topic that describes a mapper (its state, its protocols, its settings) describes the identity's own mapper.
// It is true for other roles and other topics.
func (a *accessControl) ownsMapperTopic(id *Identity, role topics.Role, addr topics.Address) bool {
	ofMapper := addr.Kind == topics.KindMapperState || addr.Kind == topics.KindMapperProtocols || addr.Kind == topics.KindMapperSettings
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
			if !topics.CoversFilter(filterOfPattern(allowed.Pattern), key) {
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
		if topics.CoversFilter(filterForNode(d, id.Node), filter) {
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
