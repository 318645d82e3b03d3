// SPDX-License-Identifier: Apache-2.0

// Package identity authenticates the users who are not in the configuration: holders of bearer tokens that the hub made, and people
// with an account at an OpenID Connect provider.
//
// It never decides what a user may do; it returns the user's name, role and nodes, and when they expire. It never keeps a token,
// only its SHA-256.
//
// # Files, in reading order
//
//   - doc.go: [Bearer], which knows both kinds of users.
//   - tokens.go: the tokens that the hub makes, and who may.
//   - http.go: the API for them.
//   - oidc.go: the ID tokens of a provider.
//   - browser.go: how a browser is led to the provider and back.
//
// # Where to add
//
//   - Another way to sign in is another verifier beside [OIDC], which [Bearer] asks.
package identity

import (
	"context"

	"github.com/edgebus/edgebus/broker"
	"github.com/edgebus/edgebus/topics/resource"
)

// Bearer authenticates users of both kinds; see broker.Auth.
type Bearer struct {
	Tokens *Tokens
	OIDC   *OIDC // nil: no provider is configured
	// IsNode reports whether there is a Node of that name.
	IsNode func(name string) bool
}

// IsToken reports whether a password has the form of a token.
func (b Bearer) IsToken(password string) bool {
	return IsToken(password) || b.OIDC != nil && isJWT(password)
}

// Verify returns the user of a token. A user of the provider must not have the name of a token's holder or of a node, because the
// hub tells users apart by their names.
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

// Revoked returns what is done when the token with that ID is revoked, and is done already if the hub has no such token. A
// provider's tokens have no ID, and end by themselves.
func (b Bearer) Revoked(id string) context.Context {
	if id == "" && b.OIDC != nil {
		return context.Background()
	}
	return b.Tokens.Revoked(id)
}
