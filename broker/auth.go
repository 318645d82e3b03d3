package broker

import (
	"crypto/sha256"
	"crypto/x509"
	"encoding/asn1"
	"fmt"
	"math/big"
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
	isNode        func(name string) bool
	deny          []Denied
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
		isNode: o.Auth.Node, deny: o.Auth.Deny,
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
	cert     *x509.Certificate // a verified one; nil: none
	loopback bool              // a loopback listener, and a peer on this host
}

// needed takes off what nobody needs: where anybody of this host may come, and no users are listed that
// one could be mistaken for, a name and a password say nothing. Many clients can't do without.
func (a *authenticator) needed(c credentials) credentials {
	if len(a.users) > 0 || len(a.anonymous) == 0 || !c.loopback || c.cert != nil && c.cert.Subject.CommonName != "" {
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
	case c.user != "":
		id, ok = a.loopbackNode(c)
	case c.loopback && len(a.anonymous) > 0:
		id, ok = Identity{Roles: a.anonymous, Nodes: []string{"*"}, Devices: []string{"*"}}, true
	}
	if ok {
		if why = a.denied(id, c.cert); why != "" {
			return Identity{}, why, false
		}
	}
	return id, why, ok
}

// denied says why somebody is not let in who would be.
func (a *authenticator) denied(id Identity, cert *x509.Certificate) string {
	name := strings.TrimPrefix(id.User, nodePrefix)
	for _, d := range a.deny {
		switch {
		case d.Name != "" && d.Name == name:
			return fmt.Sprintf("%s is denied (auth.deny)", validText(name))
		case cert == nil:
		case d.Serial != "" && d.Serial == cert.SerialNumber.Text(16), d.Fingerprint != "" && d.Fingerprint == fingerprint(cert):
			return "this certificate is denied (auth.deny)"
		}
	}
	return ""
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
		User: u.Name, Roles: []topics.Role{u.Role}, Nodes: u.Nodes, Devices: u.Devices, Protocols: u.Protocols,
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
	switch {
	case commonNames(c.cert) > 1:
		why = "the certificate has several common names: it must be issued with one"
	case why != "":
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
	mapperPrefix = "mapper-"
)

func nodeUser(name string) string { return nodePrefix + name }

func nodeIdentity(name string) Identity {
	return Identity{User: nodeUser(name), Roles: []topics.Role{topics.RoleNode}, Node: name}
}
