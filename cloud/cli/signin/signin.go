// SPDX-License-Identifier: Apache-2.0

package signin

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/coreos/go-oidc/v3/oidc"
	"golang.org/x/oauth2"

	"github.com/edgebus/edgebus/cloud/cli/exitcode"
	"github.com/edgebus/edgebus/cloud/cli/terminal"
)

// Provider is an OpenID Connect provider, and the client that edgebus is there.
type Provider struct {
	Issuer           string   `json:"issuer,omitempty"`
	ClientID         string   `json:"clientID,omitempty"`
	ClientSecretFile string   `json:"clientSecretFile,omitempty"`
	Scopes           []string `json:"scopes,omitempty"`
	CA               string   `json:"certificate-authority,omitempty"`
	RefreshToken     string   `json:"refreshToken,omitempty"`
}

// How long to wait for each answer of a provider, and how long before it expires a token is renewed.
const (
	Timeout       = 10 * time.Second
	RenewalMargin = 30 * time.Second
)

// Token is what a login gives.
type Token struct {
	ID, Refresh string
	Expires     time.Time
}

// connect asks the provider for its configuration. The context is for further requests to it.
func (p Provider) connect(ctx context.Context) (context.Context, *oidc.Provider, *oauth2.Config, error) {
	hc := &http.Client{Timeout: Timeout}
	if p.CA != "" {
		pem, err := os.ReadFile(p.CA)
		if err != nil {
			return ctx, nil, nil, err
		}
		roots := x509.NewCertPool()
		if !roots.AppendCertsFromPEM(pem) {
			return ctx, nil, nil, fmt.Errorf("%s: there is no certificate in PEM form", p.CA)
		}
		transport := http.DefaultTransport.(*http.Transport).Clone()
		transport.TLSClientConfig = &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12}
		hc.Transport = transport
	}
	secret := ""
	if p.ClientSecretFile != "" {
		text, err := os.ReadFile(p.ClientSecretFile)
		if err != nil {
			return ctx, nil, nil, err
		}
		secret = strings.TrimSpace(string(text))
	}
	ctx = oidc.ClientContext(ctx, hc)
	at, err := oidc.NewProvider(ctx, p.Issuer)
	if err != nil {
		return ctx, nil, nil, exitcode.Errorf(exitcode.Unreachable, "no answer from the OpenID Connect provider %s: %w", p.Issuer, err)
	}
	return ctx, at, &oauth2.Config{ClientID: p.ClientID, ClientSecret: secret, Endpoint: at.Endpoint(), Scopes: p.Scopes}, nil
}

// SignIn has the user approve the login with a browser: OAuth 2.0 Device Authorization Grant, RFC 8628.
func (p *Provider) SignIn(ctx context.Context, prompts io.Writer) (t Token, err error) {
	ctx, at, conf, err := p.connect(ctx)
	if err != nil {
		return t, err
	}
	if len(conf.Scopes) == 0 {
		conf.Scopes = usualScopes(at)
	}
	if conf.Endpoint.DeviceAuthURL == "" {
		return t, exitcode.Errorf(exitcode.Refused, "the provider %s has no device flow (device_authorization_endpoint): get a token in another way, and give it to edgebus context set --token-file", p.Issuer)
	}
	var secret []oauth2.AuthCodeOption
	if conf.ClientSecret != "" {
		secret = append(secret, oauth2.SetAuthURLParam("client_secret", conf.ClientSecret))
	}
	device, err := conf.DeviceAuth(ctx, secret...)
	if err != nil {
		return t, p.explainError(err)
	}
	fmt.Fprintf(prompts, "Open %s in a browser, and enter the code %s\n", terminal.Printable(device.VerificationURI, 500), terminal.Printable(device.UserCode, 100))
	if device.VerificationURIComplete != "" {
		fmt.Fprintf(prompts, "or open %s\n", terminal.Printable(device.VerificationURIComplete, 500))
	}
	got, err := conf.DeviceAccessToken(ctx, device)
	if err != nil {
		return t, p.explainError(err)
	}
	return p.verifyToken(ctx, at, got)
}

// usualScopes returns the scopes for the user's identity and a refresh token. Only those that the provider lists are requested,
// because some providers refuse others; if it lists none, the two that all providers support.
func usualScopes(at *oidc.Provider) []string {
	var known struct {
		Scopes []string `json:"scopes_supported"`
	}
	if at.Claims(&known) != nil || len(known.Scopes) == 0 {
		return []string{oidc.ScopeOpenID, "email"}
	}
	return slices.DeleteFunc([]string{oidc.ScopeOpenID, "email", "profile", "groups", oidc.ScopeOfflineAccess}, func(scope string) bool {
		return scope != oidc.ScopeOpenID && !slices.Contains(known.Scopes, scope)
	})
}

// verifyToken takes the ID token out of a provider's answer, and verifies it.
func (p Provider) verifyToken(ctx context.Context, at *oidc.Provider, got *oauth2.Token) (t Token, err error) {
	t.ID, _ = got.Extra("id_token").(string)
	if t.ID == "" {
		return t, exitcode.Errorf(exitcode.Refused, "the provider %s gave no ID token: ask for the scope openid (--scopes)", p.Issuer)
	}
	id, err := at.VerifierContext(ctx, &oidc.Config{ClientID: p.ClientID}).Verify(ctx, t.ID)
	if err != nil {
		return t, exitcode.Errorf(exitcode.Refused, "the ID token of the provider %s is not good: %w", p.Issuer, err)
	}
	t.Expires, t.Refresh = id.Expiry, got.RefreshToken
	return t, nil
}

// explainError turns a provider's error into a message for the user.
func (p Provider) explainError(err error) error {
	var answer *oauth2.RetrieveError
	switch {
	case errors.Is(err, context.Canceled):
		return err
	case errors.Is(err, context.DeadlineExceeded):
		return exitcode.Errorf(exitcode.TimedOut, "the login was not approved in time: run edgebus login again")
	case !errors.As(err, &answer):
		return exitcode.Errorf(exitcode.Unreachable, "no answer from the OpenID Connect provider %s: %w", p.Issuer, err)
	}
	switch answer.ErrorCode {
	case "access_denied":
		return exitcode.Errorf(exitcode.Refused, "the login was denied")
	case "expired_token":
		return exitcode.Errorf(exitcode.TimedOut, "the login was not approved in time: run edgebus login again")
	case "invalid_client", "unauthorized_client":
		return exitcode.Errorf(exitcode.Refused, "the provider %s does not accept the client %s (%s): give --client-id, and --client-secret-file if it has a secret",
			p.Issuer, terminal.Printable(p.ClientID, 100), terminal.Printable(cmp.Or(answer.ErrorDescription, answer.ErrorCode), 300))
	}
	return exitcode.Errorf(exitcode.Refused, "the provider %s refused: %s", p.Issuer, terminal.Printable(cmp.Or(answer.ErrorDescription, answer.ErrorCode, string(answer.Body)), 300))
}

// Refresh gets the next token without the user.
func (p Provider) Refresh(ctx context.Context) (t Token, err error) {
	ctx, at, conf, err := p.connect(ctx)
	if err != nil {
		return t, err
	}
	got, err := conf.TokenSource(ctx, &oauth2.Token{RefreshToken: p.RefreshToken}).Token()
	if err != nil {
		return t, p.explainError(err)
	}
	return p.verifyToken(ctx, at, got)
}

// Expiry is when an ID token expires, as it says itself; zero: it doesn't. The hub verifies it.
func Expiry(token string) time.Time {
	parts := strings.Split(token, ".")
	if len(parts) != 3 {
		return time.Time{}
	}
	text, err := base64.RawURLEncoding.DecodeString(parts[1])
	var claims struct {
		Exp float64 `json:"exp"`
	}
	if err != nil || json.Unmarshal(text, &claims) != nil || claims.Exp <= 0 {
		return time.Time{}
	}
	return time.Unix(int64(claims.Exp), 0)
}
