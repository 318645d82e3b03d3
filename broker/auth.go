package broker

import (
	"fmt"
	"strings"

	"github.com/edgebus/edgebus/configs/password"
	"github.com/edgebus/edgebus/topics"
)

// authenticator knows the users. It is read-only once made.
type authenticator struct {
	users map[string]account
	// slowest stands in for the hash of a user that doesn't exist, or has none.
	slowest       password.Hash
	anonymous     []topics.Role
	loopbackNodes bool
	node          string
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
	certName string // common name of a verified client certificate
	loopback bool   // a loopback listener, and a peer on this host
}

// needed takes off what nobody needs: where anybody of this host may come, and no users are listed that
// one could be mistaken for, a name and a password say nothing. Many clients can't do without.
func (a *authenticator) needed(c credentials) credentials {
	if len(a.users) > 0 || len(a.anonymous) == 0 || !c.loopback || c.certName != "" {
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
	if known = known && u.PasswordHash != ""; !known {
		h = a.slowest
	}
	if !h.Matches(c.password) || !known {
		return Identity{}, false
	}
	return a.identity(u), true
}

// identity is who a listed user is.
func (a *authenticator) identity(u account) Identity {
	if u.Role == topics.RoleNode {
		return nodeIdentity(u.Name)
	}
	id := Identity{
		User: u.Name, Roles: []topics.Role{u.Role}, Nodes: u.Nodes, Devices: u.Devices, Protocols: u.Protocols,
	}
	if a.node != "" && len(id.Nodes) == 0 {
		id.Nodes = []string{a.node}
	}
	return id
}

// certificate: the authority that signed it vouches for the name. One that is listed is that
// user; any other is a node's.
func (a *authenticator) certificate(c credentials) (Identity, bool) {
	u, listed := a.users[c.certName]
	switch {
	case a.otherName(c) != "":
		return Identity{}, false
	case listed:
		return a.identity(u), true
	case topics.ValidName(c.certName):
		return nodeIdentity(c.certName), true
	}
	return Identity{}, false
}

// otherName says how the name that somebody gave differs from the one in the certificate; empty:
// not at all, or there is but one of them.
func (a *authenticator) otherName(c credentials) string {
	if c.hasPass || c.certName == "" || c.user == "" {
		return ""
	}
	name, isNode := strings.CutPrefix(c.user, nodePrefix)
	u, listed := a.users[c.certName]
	switch {
	case name != c.certName && isNode:
		return fmt.Sprintf("the certificate is for %s, but this node is %s", validText(c.certName), validText(name))
	case name != c.certName:
		return fmt.Sprintf("the certificate is for %s, but the user name is %s", validText(c.certName), validText(name))
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
	mapperPrefix = "mapper-"
)

func nodeUser(name string) string { return nodePrefix + name }

func nodeIdentity(name string) Identity {
	return Identity{User: nodeUser(name), Roles: []topics.Role{topics.RoleNode}, Node: name}
}
