// SPDX-License-Identifier: Apache-2.0

package identity

import (
	"context"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"errors"
	"maps"
	"net/http"
	"path"
	"slices"
	"strings"
	"sync"
	"time"
	"unicode"

	"github.com/coreos/go-oidc/v3/oidc"
	"github.com/rs/zerolog"
	"golang.org/x/oauth2"

	"github.com/edgebus/edgebus/broker"
	"github.com/edgebus/edgebus/topics"
	"github.com/edgebus/edgebus/topics/resource"
)

// Grant gives the members of a group a role.
type Grant struct {
	Group string // a glob
	Role  topics.Role
	Nodes []string // globs
}

// OIDCOptions are what an OIDC verifier is made from.
type OIDCOptions struct {
	Issuer      string // URL
	Audience    string // the client identifier that tokens are made for
	UserClaim   string // whose value is the user's name
	GroupsClaim string // whose value is a list of groups, or one
	Grants      []Grant
	Roots       *x509.CertPool // authorities that are trusted for the issuer; nil: the system's
	// ClientSecretFile holds the client's secret, for browsers' sign-ins; empty: it has none.
	ClientSecretFile string
	// RedirectURL is where the provider leads browsers back to; empty: CallbackPath of the address that the browser has come to.
	RedirectURL   string
	Log           zerolog.Logger
	Now           func() time.Time
	retryInterval time.Duration
}

const (
	providerTimeout = 10 * time.Second
	retryProvider   = 10 * time.Second // after the issuer could not be reached
	maxCached       = 4096             // tokens whose signature has been verified
	maxJWT          = 16 << 10         // bytes
)

// OIDC verifies the ID tokens of an OpenID Connect provider. The provider's keys are fetched when the first token comes and
// when a token has a key that is not known, so a hub starts without its provider.
type OIDC struct {
	o      OIDCOptions
	client *http.Client

	asking   sync.Mutex // is held while the provider is asked for its configuration
	verifier *oidc.IDTokenVerifier
	endpoint oauth2.Endpoint
	scopes   []string  // that the provider says it has
	failed   error     // why there is no verifier
	tried    time.Time // when the provider was asked last

	mu       sync.Mutex
	verified map[[sha256.Size]byte]broker.BearerUser
}

// NewOIDC makes a verifier. It sends nothing to the provider.
func NewOIDC(o OIDCOptions) *OIDC {
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.retryInterval == 0 {
		o.retryInterval = retryProvider
	}
	v := &OIDC{o: o, client: &http.Client{Timeout: providerTimeout}, verified: make(map[[sha256.Size]byte]broker.BearerUser)}
	if o.Roots != nil {
		transport := http.DefaultTransport.(*http.Transport).Clone()
		transport.TLSClientConfig = &tls.Config{RootCAs: o.Roots, MinVersion: tls.VersionTLS12}
		v.client.Transport = transport
	}
	return v
}

// isJWT reports whether a password has the form of a JSON Web Token: three parts, the first of which is a JSON object.
func isJWT(password string) bool {
	return strings.HasPrefix(password, "eyJ") && strings.Count(password, ".") == 2 && len(password) <= maxJWT
}

// Verify returns the user that an ID token is for. A token that was verified before is found in a cache, and not verified again.
func (v *OIDC) Verify(ctx context.Context, token string) (broker.BearerUser, error) {
	sum := sha256.Sum256([]byte(token))
	now := v.o.Now()
	v.mu.Lock()
	u, ok := v.verified[sum]
	v.mu.Unlock()
	if ok && now.Before(u.Expires) {
		return u, nil
	}
	// The signature is verified below. A token of another provider must not cause a request to this one.
	if issuer := issuerOf(token); issuer != v.o.Issuer {
		return broker.BearerUser{}, resource.Errorf(resource.Unauthorized, "token", "it is of the issuer %.200q, and auth.oidc.issuer is %s", issuer, v.o.Issuer)
	}
	ctx, stop := context.WithTimeout(oidc.ClientContext(ctx, v.client), providerTimeout)
	defer stop()
	verifier, err := v.provider(ctx, now)
	if err != nil {
		return broker.BearerUser{}, err
	}
	var noKeys error
	id, err := verifier.Verify(context.WithValue(ctx, noKeysKey{}, &noKeys), token)
	switch {
	case noKeys != nil:
		return broker.BearerUser{}, resource.Errorf(resource.Unavailable, "auth.oidc.issuer", "the OpenID Connect provider %s can't be asked for its keys: %v", v.o.Issuer, err)
	case err != nil:
		return broker.BearerUser{}, resource.Errorf(resource.Unauthorized, "token", "%s", strings.TrimPrefix(err.Error(), "oidc: "))
	}
	if u, err = v.user(id); err != nil {
		return broker.BearerUser{}, err
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	if len(v.verified) >= maxCached {
		clear(v.verified)
	}
	v.verified[sum] = u
	return u, nil
}

// verifierOf makes the verifier of a provider's tokens, with the algorithms that it says it signs with.
func (v *OIDC) verifierOf(ctx context.Context, p *oidc.Provider) (*oidc.IDTokenVerifier, error) {
	var found struct {
		Keys       string   `json:"jwks_uri"`
		Algorithms []string `json:"id_token_signing_alg_values_supported"`
		Scopes     []string `json:"scopes_supported"`
	}
	if err := p.Claims(&found); err != nil {
		return nil, err
	}
	v.endpoint, v.scopes = p.Endpoint(), found.Scopes
	algorithms := slices.DeleteFunc(found.Algorithms, func(a string) bool { return !slices.Contains(signingAlgorithms, a) })
	keys := keySet{oidc.NewRemoteKeySet(oidc.ClientContext(context.WithoutCancel(ctx), v.client), found.Keys)}
	return oidc.NewVerifier(v.o.Issuer, keys, &oidc.Config{ClientID: v.o.Audience, Now: v.o.Now, SupportedSigningAlgs: algorithms}), nil
}

// signingAlgorithms are the algorithms with which tokens may be signed: those of public keys.
var signingAlgorithms = []string{
	oidc.RS256, oidc.RS384, oidc.RS512, oidc.ES256, oidc.ES384, oidc.ES512, oidc.PS256, oidc.PS384, oidc.PS512, oidc.EdDSA,
}

// keySet tells that the provider can't be asked for its keys apart from a wrong signature. The verifier drops the error's type, so it
// is passed on in the context.
type keySet struct{ *oidc.RemoteKeySet }

type noKeysKey struct{}

// VerifySignature verifies a token's signature. Only an error of the request for keys has another error in it.
func (k keySet) VerifySignature(ctx context.Context, token string) ([]byte, error) {
	payload, err := k.RemoteKeySet.VerifySignature(ctx, token)
	if why, ok := ctx.Value(noKeysKey{}).(*error); ok && errors.Unwrap(err) != nil {
		*why = err
	}
	return payload, err
}

// issuerOf returns the issuer that a token names; empty: it can't be decoded.
func issuerOf(token string) string {
	var claims struct {
		Issuer string `json:"iss"`
	}
	if parts := strings.Split(token, "."); len(parts) == 3 {
		if text, err := base64.RawURLEncoding.DecodeString(parts[1]); err == nil {
			_ = json.Unmarshal(text, &claims) // without claims there is no issuer
		}
	}
	return claims.Issuer
}

// provider asks the issuer for its configuration, once, and again some time after that failed.
func (v *OIDC) provider(ctx context.Context, now time.Time) (*oidc.IDTokenVerifier, error) {
	v.asking.Lock()
	defer v.asking.Unlock()
	if v.verifier != nil {
		return v.verifier, nil
	}
	if v.failed == nil || now.Sub(v.tried) >= v.o.retryInterval {
		v.tried = now
		// The provider outlives the request: it fetches keys with this client whenever it needs them.
		p, err := oidc.NewProvider(oidc.ClientContext(context.WithoutCancel(ctx), v.client), v.o.Issuer)
		if v.failed = err; err == nil {
			v.verifier, v.failed = v.verifierOf(ctx, p)
		}
		if v.failed == nil {
			return v.verifier, nil
		}
		v.o.Log.Error().Err(err).Str("issuer", v.o.Issuer).Msg("the OpenID Connect provider can't be reached: new tokens of it are refused until it can")
	}
	return nil, resource.Errorf(resource.Unavailable, "auth.oidc.issuer", "the OpenID Connect provider %s can't be asked: %v", v.o.Issuer, v.failed)
}

// user makes the user from a token's claims.
func (v *OIDC) user(id *oidc.IDToken) (broker.BearerUser, error) {
	var claims map[string]any
	if err := id.Claims(&claims); err != nil {
		return broker.BearerUser{}, resource.Errorf(resource.Unauthorized, "token", "%v", err)
	}
	name, _ := claims[v.o.UserClaim].(string)
	if name == "" {
		return broker.BearerUser{}, resource.Errorf(resource.Forbidden, "token", "it has no claim %q (auth.oidc.userClaim), but %.300s", v.o.UserClaim,
			strings.Join(slices.Sorted(maps.Keys(claims)), ", "))
	}
	if len(name) > 253 || strings.ContainsAny(name, "/+#") || strings.ContainsFunc(name, unicode.IsControl) {
		return broker.BearerUser{}, resource.Errorf(resource.Forbidden, "token", "the claim %q (auth.oidc.userClaim) is no name of a user: %.100q", v.o.UserClaim, name)
	}
	verified := claims["email_verified"] == true || claims["email_verified"] == "true" // some providers write it as a text
	if v.o.UserClaim == "email" && !verified {
		return broker.BearerUser{}, resource.Errorf(resource.Forbidden, "token", "the provider has not verified the address %s, as the claim email_verified: true would say: "+
			"without that claim another one has to name users, such as sub (auth.oidc.userClaim)", name)
	}
	groups := claimTexts(claims[v.o.GroupsClaim])
	u := broker.BearerUser{User: broker.User{Name: name}, Expires: id.Expiry}
	for _, g := range v.o.Grants {
		if !slices.ContainsFunc(groups, func(group string) bool { ok, _ := path.Match(g.Group, group); return ok }) {
			continue
		}
		if u.Role == "" {
			u.Role = g.Role
		}
		if u.Role == g.Role { // the first grant that fits decides the role; further ones add nodes
			u.Nodes = append(u.Nodes, g.Nodes...)
		}
	}
	if u.Role == "" {
		return broker.BearerUser{}, resource.Errorf(resource.Forbidden, "token", "%s is in no group of auth.oidc.groups (its groups: %.200s)", name, strings.Join(groups, ", "))
	}
	return u, nil
}

// claimTexts returns the strings of a claim that is a list or a single string.
func claimTexts(claim any) (all []string) {
	switch c := claim.(type) {
	case string:
		return []string{c}
	case []any:
		for _, one := range c {
			if s, ok := one.(string); ok {
				all = append(all, s)
			}
		}
	}
	return all
}
