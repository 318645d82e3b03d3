package broker

import (
	"fmt"
	"strings"

	"github.com/edgebus/edgebus/topics"
)

// authenticator knows the users. It is read-only once made.
type authenticator struct {
	users map[string]account
	// slowest stands in for the hash of a user that doesn't exist.
	slowest       hash
	anonymous     []topics.Role
	loopbackNodes bool
	node          string
}

type account struct {
	User
	hash hash
}

// newAuthenticator takes options that validate found well.
func newAuthenticator(o Options) (*authenticator, error) {
	a := &authenticator{
		users:     make(map[string]account, len(o.Auth.Users)),
		anonymous: o.Auth.Anonymous, loopbackNodes: o.Auth.LoopbackNodes, node: o.Node,
	}
	var err error
	if a.slowest, err = parseHash(decoy); err != nil {
		return nil, err
	}
	for _, u := range o.Auth.Users {
		h, err := parseHash(u.PasswordHash)
		if err != nil {
			return nil, err
		}
		a.slowest.iterations = max(a.slowest.iterations, h.iterations)
		a.users[u.Name] = account{u, h}
	}
	return a, nil
}

// credentials are what a connection brought with it.
type credentials struct {
	user     string
	password []byte
	hasPass  bool
	certName string // common name of a verified client certificate
	loopback bool   // a loopback listener, and a peer on this host
}

// otherNode says that a certificate was shown for a node of another name; empty: no.
func (c credentials) otherNode() string {
	name, isNode := strings.CutPrefix(c.user, nodePrefix)
	if c.hasPass || c.certName == "" || !isNode || name == c.certName {
		return ""
	}
	return fmt.Sprintf("the certificate is for %s, but this node is %s", validText(c.certName), validText(name))
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

// identify says who it is, or not ok. A password decides before a certificate,
// so that a person can use a host's certificate for the connection only.
func (a *authenticator) identify(c credentials) (Identity, bool) {
	switch {
	case c.hasPass:
		return a.password(c)
	case c.certName != "":
		return a.certificate(c)
	case c.user != "":
		return a.loopbackNode(c)
	case c.loopback && len(a.anonymous) > 0:
		return Identity{Roles: a.anonymous, Nodes: []string{"*"}, Devices: []string{"*"}}, true
	}
	return Identity{}, false
}

func (a *authenticator) password(c credentials) (Identity, bool) {
	u, known := a.account(c.user)
	h := u.hash
	if !known {
		h = a.slowest
	}
	if !h.matches(c.password) || !known {
		return Identity{}, false
	}
	if u.Role == topics.RoleNode {
		return nodeIdentity(u.Name), true
	}
	id := Identity{
		User: u.Name, Roles: []topics.Role{u.Role}, Nodes: u.Nodes, Devices: u.Devices, Protocols: u.Protocols,
	}
	if a.node != "" && len(id.Nodes) == 0 {
		id.Nodes = []string{a.node}
	}
	return id, true
}

// certificate: the authority that signed it vouches for the name.
func (a *authenticator) certificate(c credentials) (Identity, bool) {
	if !topics.ValidName(c.certName) || c.user != "" && c.user != nodeUser(c.certName) {
		return Identity{}, false
	}
	return nodeIdentity(c.certName), true
}

func (a *authenticator) loopbackNode(c credentials) (Identity, bool) {
	name, isNode := strings.CutPrefix(c.user, nodePrefix)
	if !isNode || !a.loopbackNodes || !c.loopback || !topics.ValidName(name) {
		return Identity{}, false
	}
	return nodeIdentity(name), true
}

const nodePrefix = "node/"

func nodeUser(name string) string { return nodePrefix + name }

func nodeIdentity(name string) Identity {
	return Identity{User: nodeUser(name), Roles: []topics.Role{topics.RoleNode}, Node: name}
}
