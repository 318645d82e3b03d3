// SPDX-License-Identifier: Apache-2.0

package cloud

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"net/http"
	"slices"

	"github.com/rs/zerolog"

	"github.com/edgebus/edgebus/broker"
	"github.com/edgebus/edgebus/broker/audit"
	"github.com/edgebus/edgebus/cloud/api"
	"github.com/edgebus/edgebus/cloud/discovery"
	"github.com/edgebus/edgebus/cloud/enroll"
	"github.com/edgebus/edgebus/cloud/fleet"
	"github.com/edgebus/edgebus/cloud/hubdata"
	"github.com/edgebus/edgebus/cloud/identity"
	"github.com/edgebus/edgebus/cloud/objects"
	"github.com/edgebus/edgebus/cloud/store"
	"github.com/edgebus/edgebus/cloud/store/disk"
	"github.com/edgebus/edgebus/configs"
	"github.com/edgebus/edgebus/topics"
	"github.com/edgebus/edgebus/topics/resource"
)

// openAuthority opens the hub's authority, and has the listeners use its certificate for which none is configured.
func openAuthority(cfg *configs.Hub, st *disk.Store, announce func() error, log zerolog.Logger) (*enroll.Authority, error) {
	o := hubdata.AuthorityOptions(*cfg, log)
	o.Reader, o.Writer, o.Shared = st, objects.Records(st), cfg.Store.Engine != "files"
	o.Announce = announce
	authority, err := enroll.OpenAuthority(o)
	if err != nil {
		return nil, err
	}
	cfg.MQTT.TLS.Own = func(clientCA []byte) *tls.Config { return authority.TLS(clientCA) }
	cfg.HTTP.TLS.Own = func(clientCA []byte) *tls.Config { return authority.TLS(clientCA, "h2", "http/1.1") }
	return authority, nil
}

// isReservedName says which names are users', and so can't be nodes': those of auth.users and of tokens' holders.
func isReservedName(a configs.HubAuth, holder func(name string) bool) func(name string) bool {
	return func(name string) bool {
		return holder(name) || slices.ContainsFunc(a.Users, func(u configs.User) bool { return u.Name == name && u.Role != "node" })
	}
}

// nodeRegistry knows which Nodes there are.
type nodeRegistry interface {
	Registered(name string) (there, any bool)
}

// openBearer opens the tokens that the hub has made, and prepares to verify those of the provider, if one is configured.
func openBearer(ctx context.Context, a configs.HubAuth, st interface {
	store.Reader
	store.Writer
}, nodes nodeRegistry, log zerolog.Logger,
) (b identity.Bearer, err error) {
	b.IsNode = func(name string) bool {
		there, _ := nodes.Registered(name)
		return there
	}
	b.Tokens, err = identity.NewTokens(ctx, identity.Options{
		Reader: st, Writer: objects.Records(st), Log: log,
		Taken: func(name string) bool {
			return b.IsNode(name) || slices.ContainsFunc(a.Users, func(u configs.User) bool { return u.Name == name })
		},
		Ended: func(by identity.TokenMaker) string { return makerRevokedReason(a, by) },
	})
	if err != nil || a.OIDC.Issuer == "" {
		return b, err
	}
	roots, err := a.OIDC.Roots()
	if err != nil {
		return b, err
	}
	o := identity.OIDCOptions{
		Issuer: a.OIDC.Issuer, Audience: a.OIDC.Audience, UserClaim: a.OIDC.UserClaim, GroupsClaim: a.OIDC.GroupsClaim, Roots: roots, Log: log,
		ClientSecretFile: a.OIDC.ClientSecretFile, RedirectURL: a.OIDC.RedirectURL,
	}
	for _, g := range a.OIDC.Groups {
		o.Grants = append(o.Grants, identity.Grant{Group: g.Group, Role: topics.Role(g.Role), Nodes: g.Nodes})
	}
	b.OIDC = identity.NewOIDC(o)
	return b, nil
}

// makerRevokedReason says why whoever made a token may make none any more, by the settings; empty: it may. Who makes tokens without signing in has no name, and is
// whoever is on the hub's host.
func makerRevokedReason(a configs.HubAuth, by identity.TokenMaker) string {
	for _, d := range a.Deny {
		switch {
		case d.Name != "" && d.Name == by.By:
			return d.Name + " is denied (auth.deny)"
		case d.Serial != "" && configs.NormalizeHex(d.Serial) == by.Serial, d.Fingerprint != "" && configs.NormalizeHex(d.Fingerprint) == by.Fingerprint:
			return "the certificate of " + by.By + " is denied (auth.deny)"
		}
	}
	administers := func(u configs.User) bool {
		return u.Name == by.By && u.Role == topics.RoleOperator && slices.Contains(u.Nodes, "*")
	}
	switch {
	case by.By == "":
		return ""
	case by.Provider && a.OIDC.Issuer == "":
		return "there is no provider any more (auth.oidc)"
	case !by.Provider && !slices.ContainsFunc(a.Users, administers):
		return by.By + " is no operator of all nodes in auth.users any more"
	}
	return ""
}

// nodeReferences are those who decide what a Node gets by its labels.
func nodeReferences(st store.Reader) []func(context.Context, resource.Meta) ([]objects.Reference, error) {
	return []func(context.Context, resource.Meta) ([]objects.Reference, error){fleet.NodeReferences(st), discovery.NodeReferences(st)}
}

// judgeJoining refuses a node that would get Secrets and the like.
func judgeJoining(objs *objects.Registry) func(ctx context.Context, node string, labels map[string]string, labelFrom string) error {
	return func(ctx context.Context, node string, labels map[string]string, labelFrom string) error {
		return objs.Grants.CheckJoining(ctx, node, labels, labelFrom, api.MayReferAnonymously)
	}
}

// auditWrites adds what controllers write to the audit log.
func auditWrites(log *audit.Log) func(controller, action string, key store.Key, err error) {
	return func(controller, action string, key store.Key, err error) {
		e := audit.Entry{User: controller, Roles: string(topics.RoleController), Via: audit.Hub, Action: action, Object: key.String(), Answer: audit.OK}
		if err != nil {
			e.Answer, e.Reason = "failed", err.Error()
		}
		log.Add(e)
	}
}

// loginOptions is what edgebus login has to know.
func loginOptions(o configs.OIDC) *api.LoginProvider {
	if o.Issuer == "" {
		return nil
	}
	return &api.LoginProvider{Issuer: o.Issuer, ClientID: o.Audience}
}

// browserProvider signs browsers in at the provider; nil: there is none.
func browserProvider(v *identity.OIDC, br *broker.Broker) http.Handler {
	if v == nil {
		return nil
	}
	return v.ServeBrowser(br.SignInBrowser)
}

// recentAudit reads the audit log; nil: there is none.
func recentAudit(log *audit.Log) func(most int, words []string) ([]json.RawMessage, error) {
	if log == nil {
		return nil
	}
	return log.Recent
}
