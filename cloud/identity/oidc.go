package identity

import (
	"context"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/coreos/go-oidc/v3/oidc"
	"github.com/rs/zerolog"

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
	Issuer        string // URL
	Audience      string // the client identifier that tokens are made for
	UserClaim     string // whose value is the user's name
	GroupsClaim   string // whose value is a list of groups, or one
	Grants        []Grant
	CA            string // a PEM file that is trusted for the issuer besides the system's; empty: only the system's
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
	failed   error     // why there is no verifier
	tried    time.Time // when the provider was asked last

	mu       sync.Mutex
	verified map[[sha256.Size]byte]User
}

// NewOIDC checks the options. It does not ask the provider.
func NewOIDC(o OIDCOptions) (*OIDC, error) {
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.retryInterval == 0 {
		o.retryInterval = retryProvider
	}
	v := &OIDC{o: o, client: &http.Client{Timeout: providerTimeout}, verified: make(map[[sha256.Size]byte]User)}
	if o.CA == "" {
		return v, nil
	}
	pem, err := os.ReadFile(o.CA)
	if err != nil {
		return nil, fmt.Errorf("auth.oidc.ca: %w", err)
	}
	roots, err := x509.SystemCertPool()
	if err != nil {
		roots = x509.NewCertPool()
	}
	if !roots.AppendCertsFromPEM(pem) {
		return nil, fmt.Errorf("auth.oidc.ca: %s has no certificate", o.CA)
	}
	transport := http.DefaultTransport.(*http.Transport).Clone()
	transport.TLSClientConfig = &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12}
	v.client.Transport = transport
	return v, nil
}

// IsJWT says whether a password has the form of a JSON Web Token: three parts, the first of which is a JSON object.
func IsJWT(password string) bool {
	return strings.HasPrefix(password, "eyJ") && strings.Count(password, ".") == 2 && len(password) <= maxJWT
}

// Verify says who a token's subject is. A token that was verified before is looked up, and not verified again.
func (v *OIDC) Verify(ctx context.Context, token string) (User, error) {
	sum := sha256.Sum256([]byte(token))
	now := v.o.Now()
	v.mu.Lock()
	u, ok := v.verified[sum]
	v.mu.Unlock()
	if ok && now.Before(u.Expires) {
		return u, nil
	}
	ctx, stop := context.WithTimeout(oidc.ClientContext(ctx, v.client), providerTimeout)
	defer stop()
	verifier, err := v.provider(ctx, now)
	if err != nil {
		return User{}, err
	}
	id, err := verifier.Verify(ctx, token)
	if err != nil {
		return User{}, resource.Errorf(resource.Unauthorized, "token", "%v", err)
	}
	if u, err = v.user(id); err != nil {
		return User{}, err
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	if len(v.verified) >= maxCached {
		clear(v.verified)
	}
	v.verified[sum] = u
	return u, nil
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
			v.verifier = p.Verifier(&oidc.Config{ClientID: v.o.Audience, Now: v.o.Now})
			return v.verifier, nil
		}
		v.o.Log.Error().Err(err).Str("issuer", v.o.Issuer).Msg("the OpenID Connect provider can't be asked: nobody signs in with its tokens until it can")
	}
	return nil, resource.Errorf(resource.Unavailable, "auth.oidc.issuer", "the OpenID Connect provider %s can't be asked: %v", v.o.Issuer, v.failed)
}

// user reads the claims that say who somebody is.
func (v *OIDC) user(id *oidc.IDToken) (User, error) {
	var claims map[string]any
	if err := id.Claims(&claims); err != nil {
		return User{}, resource.Errorf(resource.Unauthorized, "token", "%v", err)
	}
	name, _ := claims[v.o.UserClaim].(string)
	if name == "" || len(name) > 253 || strings.ContainsAny(name, "/+#\x00") {
		return User{}, resource.Errorf(resource.Unauthorized, "token", "the claim %q is no name of a user", v.o.UserClaim)
	}
	if verified, ok := claims["email_verified"].(bool); v.o.UserClaim == "email" && ok && !verified {
		return User{}, resource.Errorf(resource.Unauthorized, "token", "the provider has not verified the address %s", name)
	}
	groups := texts(claims[v.o.GroupsClaim])
	u := User{Name: name, Expires: id.Expiry}
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
		return User{}, resource.Errorf(resource.Forbidden, "token", "%s is in no group of auth.oidc.groups (its groups: %.200s)", name, strings.Join(groups, ", "))
	}
	return u, nil
}

// texts are the texts of a claim that is a list or one text.
func texts(claim any) (all []string) {
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

// Check says what is wrong with the options.
func (o OIDCOptions) Check() error {
	var errs []error
	if !strings.HasPrefix(o.Issuer, "https://") && !strings.HasPrefix(o.Issuer, "http://127.0.0.1") && !strings.HasPrefix(o.Issuer, "http://localhost") {
		errs = append(errs, fmt.Errorf("auth.oidc.issuer: %q is not an https URL", o.Issuer))
	}
	if o.Audience == "" {
		errs = append(errs, errors.New("auth.oidc.audience: the client identifier that tokens are made for is missing"))
	}
	return errors.Join(errs...)
}
