package broker

import (
	"path"
	"slices"
	"strings"

	"github.com/edgebus/edgebus/topics"
	"github.com/edgebus/edgebus/topics/resource"
)

// acl derives every right of an identity: to topics from the contract's table, to client
// identifiers, and to administer the broker. It holds nothing of a connection.
type acl struct {
	rows    map[topics.Kind]topics.Topic
	node    []string // what a node may subscribe to, below v1/nodes/{node}/
	down    []string // and what outside v1/
	local   string   // the node whose own broker this is; empty on the hub
	mappers map[string]bool
	groups  []string // globs of shared subscriptions' groups that users have in common
	// protocol is the protocol of a device of the node; false: the node has no such device.
	protocol func(device string) (string, bool)
}

func newACL(o Options) *acl {
	a := &acl{
		rows: make(map[topics.Kind]topics.Topic), down: o.Down, local: o.Node, protocol: o.Protocol, groups: o.Auth.SharedGroups,
		mappers: make(map[string]bool),
	}
	for _, u := range o.Auth.Users {
		if u.Role == topics.RoleMapper {
			a.mappers[u.Name] = true
		}
	}
	for _, t := range topics.Table() {
		a.rows[t.Kind] = t
		if slices.Contains(t.Subscribe, topics.RoleNode) {
			a.node = append(a.node, asFilter(t.Pattern))
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
func (a *acl) publish(id Identity, topic string) error {
	if !topics.IsTree(topic) {
		if a.ownTopics(id) {
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
			if outside = a.outside(id, role, addr); outside == "" && a.speaksFor(id, role, addr) {
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

// clientID says why the identity may not connect with a client identifier: those of the links and of
// mappers are reserved, so that nobody else's session can keep their owners out.
func (a *acl) clientID(id Identity) error {
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
func (a *acl) ownsMapper(id Identity, mapper string) bool {
	return id.Has(topics.RoleMapper) && (id.User == mapper || !a.mappers[mapper])
}

// speaksFor says whether what a mapper says of a mapper is said of itself.
func (a *acl) speaksFor(id Identity, role topics.Role, addr topics.Address) bool {
	ofMapper := addr.Kind == topics.KindMapperState || addr.Kind == topics.KindMapperProtocols
	return role != topics.RoleMapper || !ofMapper || a.ownsMapper(id, addr.Device)
}

// groupOwner is whose a shared subscription's group is.
func (a *acl) groupOwner(id Identity, group string) string {
	if matchAny(a.groups, group) {
		return "all"
	}
	return "user " + id.User
}

// administers says whether the identity is an operator of everything here: on the hub of all nodes, on a
// node's broker of that node.
func (a *acl) administers(id Identity) bool {
	if a.local != "" {
		return id.Has(topics.RoleOperator) && id.Given(a.local)
	}
	return id.AllNodes()
}

// ownTopics says whether the identity may publish outside the tree.
func (a *acl) ownTopics(id Identity) bool {
	return id.Has(topics.RoleOperator) || id.Has(topics.RoleMapper)
}

// read says whether the identity may receive what is published to the topic.
func (a *acl) read(id Identity, topic string) bool {
	if id.own() {
		return true
	}
	if strings.HasPrefix(topic, sysPrefix) { // what all nodes' clients do
		return a.administers(id)
	}
	if !topics.IsTree(topic) {
		return id.Has(topics.RoleOperator) || id.Has(topics.RoleMapper) || id.Has(topics.RoleViewer) ||
			id.Has(topics.RoleNode) && a.given(id.Node, topic)
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
func (a *acl) gets(id Identity, filter, topic string) bool {
	if (id.own() || id.Has(topics.RoleNode)) && topics.IsTree(topic) && !topics.IsTree(filter) {
		return false
	}
	return a.read(id, topic)
}

// subscribe says why the identity may not have the filter at all. Most roles may
// have a filter that covers more than they may read: read is asked again for each
// topic. A node may not: what it asks for is fixed, and more is a mistake or worse.
func (a *acl) subscribe(id Identity, filter string) error {
	if id.Has(topics.RoleNode) {
		return a.nodeSubscribe(id, filter)
	}
	if !strings.ContainsAny(filter, "+#") {
		if a.read(id, filter) {
			return nil
		}
		return forbidden(filter, "%s may not subscribe to it", who(id))
	}
	rest, ok := strings.CutPrefix(filter, topics.Prefix)
	if !ok {
		return nil
	}
	node, _, _ := strings.Cut(rest, "/")
	if node == "+" || node == "#" || matchAny(id.Nodes, node) || id.Has(topics.RoleMapper) {
		return nil
	}
	return forbidden(filter, "node %s is not given to %s", node, who(id))
}

func (a *acl) nodeSubscribe(id Identity, filter string) error {
	if own := topics.RefusedPrefix + topicID(id.ClientID); filter == own {
		return nil
	}
	if key, ok := strings.CutPrefix(filter, topics.Prefix+id.Node+"/"); ok {
		for _, allowed := range a.node {
			if !covers(allowed, key) {
				continue
			}
			if !id.IsLink() {
				return forbidden(filter, "%s %s", ofLink, who(id))
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
func (a *acl) given(node, topic string) bool {
	return slices.ContainsFunc(a.down, func(d string) bool { return topics.Match(ofNode(d, node), topic) })
}

func ofNode(filter, node string) string { return strings.ReplaceAll(filter, "{node}", node) }

// Why a role, which the table allows, does not extend to an address. The user's name follows.
const (
	notGiven      = "this node or device is not given to"
	otherProtocol = "the device has a protocol that is not given to"
	ofLink        = "this is for the link alone, whose client identifier is node/ and the node's name, and not for another client of"
)

// outside says why a role, which the table allows, does not extend to the address; empty: it does.
func (a *acl) outside(id Identity, role topics.Role, addr topics.Address) string {
	switch role {
	case topics.RoleNode:
		if addr.Node != id.Node {
			return notGiven
		}
		if linkOnly[addr.Kind] && !id.IsLink() {
			return ofLink
		}
		return ""
	case topics.RoleMapper:
		if !strings.HasPrefix(addr.Key(), "devices/") {
			return ""
		}
		if len(id.Devices) > 0 && !matchAny(id.Devices, addr.Device) {
			return notGiven
		}
		return a.speaks(id, addr.Device)
	}
	if !matchAny(id.Nodes, addr.Node) {
		return notGiven
	}
	return ""
}

// linkOnly are the kinds that belong to the link between a core and its hub.
var linkOnly = map[topics.Kind]bool{
	topics.KindSyncUp: true, topics.KindSyncDown: true, topics.KindClock: true, topics.KindCommand: true, topics.KindAnswer: true,
}

// speaks says why a mapper that was given protocols has nothing to do with a device. What is said of
// one that the node hasn't is that it is gone, and is for all.
func (a *acl) speaks(id Identity, device string) string {
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
