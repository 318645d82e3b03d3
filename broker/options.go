// SPDX-License-Identifier: Apache-2.0

package broker

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"

	"github.com/edgebus/edgebus/broker/audit"
	"github.com/edgebus/edgebus/broker/session"
	"github.com/edgebus/edgebus/topics"
	"github.com/edgebus/edgebus/topics/acl"
	"github.com/edgebus/edgebus/topics/limits"
	"github.com/edgebus/edgebus/topics/password"
)

// Options are what a broker is made from. The zero value of every field but
// Listeners has a meaning.
type Options struct {
	Listeners []Listener
	// InsecureListen allows listeners without TLS on addresses that other hosts reach.
	InsecureListen bool
	Auth           Auth
	// Node is the node's name on a node's own broker, and empty on the hub.
	Node     string
	Tree     Tree     // nil: nothing below v1/ may be published, and nothing is retained there
	Presence Presence // nil: connections are not reported
	// Rejected is called for each refused CONNECT, and must not block. It may be nil.
	Rejected func(RejectedConnect)
	// Journal keeps sessions and retained messages. The code that opened it closes it, after the broker. nil: they end with the
	// process.
	Journal Journal
	Limits  Limits
	// Owned waits until this broker's journal is known to have no other writer, before something is acknowledged that isn't stored in it. It
	// reports false when that can't be any more. nil: nobody else writes to it.
	Owned func() bool
	// Failover says that another broker goes on with this one's journal when it ends: clients come back there, and their wills wait for that.
	Failover bool
	// Protocol is the protocol of a device, on a node's own broker; false: the node has no such device.
	// RightsChanged must be called when that changes. nil: mappers are not restricted to their protocols.
	Protocol func(device string) (string, bool)
	// Down are filters outside v1/ that nodes may subscribe to; {node} stands for a node's name.
	Down []string
	// LinkQueue takes messages for the link. nil: there is none.
	LinkQueue *LinkQueueOptions
	Version   string // of the program, for $SYS/broker/version
	// Figures are others below $SYS, by what follows that in their topics. They must come at once. nil: there are none.
	Figures func() map[string]string
	Metrics prometheus.Registerer // nil: they are not registered
	// Audit records sign-ins, writes and refusals. nil: none are recorded.
	Audit *audit.Log
	Log   zerolog.Logger
	Now   func() time.Time // nil: time.Now

	startedAt time.Time
}

// RejectedConnect is a refused CONNECT. Client identifier and user are those that the client gave.
type RejectedConnect struct{ ClientID, User, Remote, Reason string }

// Listener is one address to listen on.
type Listener struct {
	Name      string // in identities, logs and metrics; empty: the address
	Setting   string // where the address was set, for the error when it can't be had
	Address   string // host:port; port 0 takes a free one; or unix: and the path of a Unix socket
	TLS       *tls.Config
	WebSocket bool
	// Origins are the web origins whose pages may connect to a WebSocket listener, besides
	// those of the same host at this listener's port or one of Pages.
	Origins, Pages []string
}

// User is a configured user.
type User struct {
	Name         string
	PasswordHash string // as mosquitto_passwd writes it: $7$ or $6$; empty: signs in by certificate only
	Role         topics.Role
	Nodes        []string // globs, for operators and viewers; empty: on a node's own broker that node, on the hub none
	Devices      []string // globs, for mappers; empty: all
	Protocols    []string // for mappers; empty: all
	// Configurations are globs, for discoverers; empty: all.
	Configurations []string
	Clients        []string // globs of client identifiers that are reserved for the user
	Local          string   // the user of this host, by name or number, who is this user over a Unix socket
	// Publish and Subscribe are lists of filters that Auth.Topics is made of, by acl.Open.
	Publish, Subscribe acl.Filters
}

// Auth says who may connect.
type Auth struct {
	Users []User
	// Anonymous are the roles of who connects over a loopback listener without a
	// user name. None: nobody may.
	Anonymous []topics.Role
	// LoopbackNodes lets a core on this host connect as node/{name} without a
	// password, over a loopback listener.
	LoopbackNodes bool
	// Node reports whether a certificate of a name that no user has, and a node can have, is that node's. nil: any is.
	Node func(name string) bool
	// Deny are those who are not let in, whatever they show.
	Deny []DeniedIdentity
	// Bearer knows the users who sign in with a token instead of a password. nil: nobody does.
	Bearer Bearer
	// Topics are rules for users' own topics; nil: roles decide alone. RightsChanged must be called when
	// there are others.
	Topics func() *acl.Rules
	// Revoked says why a node is not let in that was revoked; cert is what it shows, or nil. An empty text lets it in.
	Revoked func(node string, cert *x509.Certificate) string
	// Notice returns a user property for the CONNACK that refuses the holder of a certificate; without a key there is none.
	Notice func(cert *x509.Certificate) UserProperty
	// Enroll says why a node may not ask for its first certificate in that name, with that token or with none (""). A
	// *resource.Error of the kind Unauthorized says that the token is wrong. nil: nobody may ask.
	Enroll func(node, token string) error
	// SharedGroups are globs of the groups of shared subscriptions that users have in common; any
	// other group is its members' user's, and one of the same name of another user is another group.
	SharedGroups []string
}

// Bearer knows users by tokens.
type Bearer interface {
	// IsToken reports whether a password has the form of a token, and is none of a user's.
	IsToken(password string) bool
	// Verify says who shows a token. An error of the kind Unauthorized counts as a wrong password; any other says why nobody
	// can tell now, or why the user may not come in.
	Verify(ctx context.Context, token string) (BearerUser, error)
	// Revoked returns what is done when the token with that ID is revoked, and is done already if there is no such token. Without
	// an ID it is a provider's, which can't be revoked here, if there is a provider.
	Revoked(id string) context.Context
}

// BearerUser is a user who showed a token.
type BearerUser struct {
	User
	Expires time.Time
	ID      string          // of a token that can be revoked; empty: it can't
	Revoked context.Context // is done when it is; nil: it can't be
}

// DeniedIdentity is an identity that is refused: by the name of a user or node, or by a certificate's serial number or SHA-256 fingerprint,
// hexadecimal in lower case and without leading zeros.
type DeniedIdentity struct{ Name, Serial, Fingerprint string }

// Limits bound what clients can make the broker hold. One that is 0 bounds nothing.
type Limits = limits.Limits

func (o *Options) validate() error {
	if o.Now == nil {
		o.Now = time.Now
	}
	o.startedAt = o.Now()
	o.Limits = o.Limits.Complete()
	if o.Node != "" && !topics.ValidName(o.Node) {
		return fmt.Errorf("node name %q: %s", o.Node, topics.NameRule())
	}
	errs := []error{o.LinkQueue.validate()}
	for i := range o.Listeners {
		o.Listeners[i].Name = cmp.Or(o.Listeners[i].Name, o.Listeners[i].Address)
		errs = append(errs, o.Listeners[i].validate(o.InsecureListen))
	}
	for i := range o.Auth.Users {
		errs = append(errs, o.Auth.Users[i].validate())
	}
	return errors.Join(errs...)
}

func (l *Listener) validate(insecure bool) error {
	if strings.HasPrefix(l.Address, unixScheme) {
		if l.TLS != nil || l.WebSocket {
			return fmt.Errorf("listener %s: a Unix socket has neither TLS nor WebSocket", l.Name)
		}
		return nil
	}
	host, _, err := net.SplitHostPort(l.Address)
	if err != nil {
		return fmt.Errorf("listener %s: %w", l.Name, err)
	}
	if l.TLS == nil && !insecure && !loopbackHost(host) {
		return fmt.Errorf("listener %s: %s can be reached from other hosts and would carry passwords in the clear: "+
			"configure TLS for it, listen on 127.0.0.1, or allow it with InsecureListen", l.Name, l.Address)
	}
	return nil
}

func loopbackHost(host string) bool {
	if host == "localhost" {
		return true
	}
	ip := net.ParseIP(host)
	return ip != nil && ip.IsLoopback()
}

func (u *User) validate() error {
	if strings.HasPrefix(u.Name, nodePrefix) {
		return fmt.Errorf("user %q: what begins with %s is how cores sign in: a node's user has the node's name alone", u.Name, nodePrefix)
	}
	switch u.Role {
	case topics.RoleMapper, topics.RoleOperator, topics.RoleViewer, topics.RoleController, topics.RoleEnroller, topics.RoleFollower, topics.RoleAgent, topics.RoleDiscoverer:
	case topics.RoleNode:
		if !topics.ValidName(u.Name) {
			return fmt.Errorf("user %q: a user with the role node is named after the node: %s", u.Name, topics.NameRule())
		}
	default:
		return fmt.Errorf("user %q: no role %q: node, mapper, operator, viewer, controller, enroller, follower, agent or discoverer", u.Name, u.Role)
	}
	if u.PasswordHash != "" {
		if _, err := password.Parse(u.PasswordHash); err != nil {
			return fmt.Errorf("user %q: %w", u.Name, err)
		}
	}
	for _, glob := range slices.Concat(u.Nodes, u.Devices, u.Configurations, u.Clients) {
		if _, err := path.Match(glob, ""); err != nil {
			return fmt.Errorf("user %q: pattern %q: %w", u.Name, glob, err)
		}
	}
	return nil
}

// storedTime is the time of what is stored now: see session.SteadyTime.
func (o *Options) storedTime() time.Time { return session.SteadyTime(o.startedAt, o.Now()) }
