// Package identity knows the users whose identities are not in the configuration: holders of bearer tokens that the hub made,
// and people whom an OpenID Connect provider vouches for.
//
// It never decides what a user may do; it says who somebody is, with which role, for which nodes, and until when. It never
// keeps a token, only its SHA-256.
package identity

import (
	"context"

	"github.com/edgebus/edgebus/broker"
	"github.com/edgebus/edgebus/topics/resource"
)

// Bearer knows the users of both kinds; see broker.Auth.
type Bearer struct {
	Tokens *Tokens
	OIDC   *OIDC // nil: no provider is configured
	// IsNode says whether there is a Node of that name.
	IsNode func(name string) bool
}

// IsToken says whether a password has the form of a token.
func (b Bearer) IsToken(password string) bool {
	return IsToken(password) || b.OIDC != nil && isJWT(password)
}

// Verify says whose token it is. The provider's users have names of their own, too: a person who could choose the name of a
// token's holder or of a node would be taken for it.
func (b Bearer) Verify(ctx context.Context, token string) (broker.BearerUser, error) {
	if IsToken(token) {
		return b.Tokens.Verify(token)
	}
	u, err := b.OIDC.Verify(ctx, token)
	if err == nil && (b.Tokens.HasUser(u.Name) || b.IsNode(u.Name)) {
		return broker.BearerUser{}, resource.Errorf(resource.Forbidden, "token", "%s is the name of a node or of the holder of a hub's token (edgebus token list): the provider's user needs another one (auth.oidc.userClaim)", u.Name)
	}
	return u, err
}
