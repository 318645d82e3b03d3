package main

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
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/coreos/go-oidc/v3/oidc"
	"github.com/spf13/cobra"
	"golang.org/x/oauth2"

	"github.com/edgebus/edgebus/cloud/client"
	"github.com/edgebus/edgebus/topics/resource"
)

// loginExtension is the name of the extension of a user that holds how its token was got, and how to get the next one.
const loginExtension = "edgebus.io/oidc"

// provider is an OpenID Connect provider, and the client that edgebus is there.
type provider struct {
	Issuer           string   `json:"issuer,omitempty"`
	ClientID         string   `json:"clientID,omitempty"`
	ClientSecretFile string   `json:"clientSecretFile,omitempty"`
	Scopes           []string `json:"scopes,omitempty"`
	CA               string   `json:"certificate-authority,omitempty"`
	RefreshToken     string   `json:"refreshToken,omitempty"`
}

const (
	providerTimeout = 10 * time.Second // for each answer of a provider
	renewalMargin   = 30 * time.Second // before a token expires
)

func newLogin() *cobra.Command {
	var name, caHash string
	var given provider
	cmd := &cobra.Command{
		Use:   "login",
		Short: "Sign in at the hub's OpenID Connect provider",
		Long: `Sign in at the hub's OpenID Connect provider, with a browser on any device, and keep the token in the current context: edgebus
and kubectl sign in with it. The hub says which provider that is (auth.oidc), unless flags do.

A token that expires is renewed by the next edgebus command if the provider gives a refresh token, which many do for the scope
offline_access. kubectl uses the renewed one.

` + exitCodes,
		Example: "  edgebus context set plant --server https://hub.example.org:8443 --use\n  edgebus login --ca-hash sha256:1f3c…\n  edgebus login --client-secret-file secret --scopes openid,email,groups,offline_access",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			k, err := readKubeconfig()
			if err != nil {
				return err
			}
			name = cmp.Or(name, os.Getenv("EDGEBUS_CONTEXT"), k.current())
			if name == "" {
				return exitErrorf(misused, "there is no context to keep the token in: edgebus context set NAME --server https://hub.example.org:8443 --use")
			}
			if caHash != "" {
				if err := k.pinAuthority(cmd.Context(), name, caHash); err != nil {
					return err
				}
			}
			return login(cmd, k, name, given)
		},
	}
	f := cmd.Flags()
	f.StringVar(&name, "context", "", "the context to sign in for (default: the current one)")
	_ = cmd.RegisterFlagCompletionFunc("context", completeContexts)
	f.StringVar(&caHash, "ca-hash", "", caHashUsage)
	f.StringVar(&given.Issuer, "issuer", "", "URL of the provider (default: the hub's auth.oidc.issuer)")
	f.StringVar(&given.ClientID, "client-id", "", "the client at the provider (default: the hub's auth.oidc.audience)")
	f.StringVar(&given.ClientSecretFile, "client-secret-file", "", "file that holds the client's secret, if it has one")
	f.StringVar(&given.CA, "issuer-ca", "", "file with the certificates of the authorities that sign the provider's certificate (default: the system's)")
	f.StringSliceVar(&given.Scopes, "scopes", nil, "what to ask the provider for (default openid,email,profile,groups,offline_access, as far as it knows them)")
	return cmd
}

// login gets a token of the provider, tries it at the hub, and keeps it in the context.
func login(cmd *cobra.Command, k *kubeconfig, name string, given provider) error {
	ctx := cmd.Context()
	p, err := k.targetOf(name)
	if err != nil {
		return err
	}
	if p.User != "" {
		return exitErrorf(refused, "the context %s signs in with a password: make another one for the token (edgebus context set NAME --server %s)", name, p.Server)
	}
	p.user.Token, p.user.TokenFile = "", ""
	o, err := p.apiOptions()
	if err != nil {
		return err
	}
	how, err := chooseProvider(ctx, o, p, given)
	if err != nil {
		return err
	}
	text, err := how.signIn(ctx, cmd.ErrOrStderr())
	if err != nil {
		return err
	}
	o.Token = text.id
	who, err := whoAmI(ctx, o)
	if err != nil {
		return err
	}
	how.RefreshToken = text.refresh
	if err := k.storeToken(name, text.id, how); err != nil {
		return err
	}
	fmt.Fprintf(cmd.OutOrStdout(), "signed in for the context %s as %s, until %s\n", name, printableText(who, 300), resource.FormatTime(text.expires))
	if how.RefreshToken == "" {
		fmt.Fprintln(cmd.ErrOrStderr(), "the provider gave no refresh token: run edgebus login again then")
	}
	return nil
}

// chooseProvider finds the provider: by the flags, or else from the hub. Its other settings from the last login are kept.
func chooseProvider(ctx context.Context, o client.Options, p hubTarget, given provider) (how provider, err error) {
	last := p.loginProvider
	how = given
	if how.Issuer == "" || how.ClientID == "" {
		hub, err := client.New(o)
		if err != nil {
			return how, exitErrorf(misused, "%w", err)
		}
		defer hub.Close()
		var said provider
		err = hub.Get(ctx, "/auth/oidc", &said)
		if errors.Is(err, resource.NotFound) {
			return how, exitErrorf(refused, "%w: give --issuer and --client-id, or a certificate, password or token to the context", err)
		}
		if err != nil {
			return how, err
		}
		how.Issuer, how.ClientID = cmp.Or(how.Issuer, said.Issuer), cmp.Or(how.ClientID, said.ClientID)
	}
	for _, file := range []*string{&how.ClientSecretFile, &how.CA} {
		if *file != "" {
			if *file, err = filepath.Abs(*file); err != nil {
				return how, err
			}
		}
	}
	if last.Issuer == how.Issuer && last.ClientID == how.ClientID {
		how.ClientSecretFile, how.CA = cmp.Or(how.ClientSecretFile, last.ClientSecretFile), cmp.Or(how.CA, last.CA)
		if len(how.Scopes) == 0 {
			how.Scopes = last.Scopes
		}
	}
	return how, nil
}

// idToken is what a login gives.
type idToken struct {
	id, refresh string
	expires     time.Time
}

// connect asks the provider for its configuration. The context is for further requests to it.
func (how provider) connect(ctx context.Context) (context.Context, *oidc.Provider, *oauth2.Config, error) {
	hc := &http.Client{Timeout: providerTimeout}
	if how.CA != "" {
		pem, err := os.ReadFile(how.CA)
		if err != nil {
			return ctx, nil, nil, err
		}
		roots := x509.NewCertPool()
		if !roots.AppendCertsFromPEM(pem) {
			return ctx, nil, nil, fmt.Errorf("%s: there is no certificate in PEM form", how.CA)
		}
		transport := http.DefaultTransport.(*http.Transport).Clone()
		transport.TLSClientConfig = &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12}
		hc.Transport = transport
	}
	secret := ""
	if how.ClientSecretFile != "" {
		text, err := os.ReadFile(how.ClientSecretFile)
		if err != nil {
			return ctx, nil, nil, err
		}
		secret = strings.TrimSpace(string(text))
	}
	ctx = oidc.ClientContext(ctx, hc)
	at, err := oidc.NewProvider(ctx, how.Issuer)
	if err != nil {
		return ctx, nil, nil, exitErrorf(unreachable, "no answer from the OpenID Connect provider %s: %w", how.Issuer, err)
	}
	return ctx, at, &oauth2.Config{ClientID: how.ClientID, ClientSecret: secret, Endpoint: at.Endpoint(), Scopes: how.Scopes}, nil
}

// signIn has the user approve the login with a browser: OAuth 2.0 Device Authorization Grant, RFC 8628.
func (how *provider) signIn(ctx context.Context, prompts io.Writer) (t idToken, err error) {
	ctx, at, conf, err := how.connect(ctx)
	if err != nil {
		return t, err
	}
	if len(conf.Scopes) == 0 {
		conf.Scopes = usualScopes(at)
	}
	if conf.Endpoint.DeviceAuthURL == "" {
		return t, exitErrorf(refused, "the provider %s has no device flow (device_authorization_endpoint): get a token in another way, and give it to edgebus context set --token-file", how.Issuer)
	}
	var secret []oauth2.AuthCodeOption
	if conf.ClientSecret != "" {
		secret = append(secret, oauth2.SetAuthURLParam("client_secret", conf.ClientSecret))
	}
	device, err := conf.DeviceAuth(ctx, secret...)
	if err != nil {
		return t, how.explainError(err)
	}
	fmt.Fprintf(prompts, "Open %s in a browser, and enter the code %s\n", printableText(device.VerificationURI, 500), printableText(device.UserCode, 100))
	if device.VerificationURIComplete != "" {
		fmt.Fprintf(prompts, "or open %s\n", printableText(device.VerificationURIComplete, 500))
	}
	got, err := conf.DeviceAccessToken(ctx, device)
	if err != nil {
		return t, how.explainError(err)
	}
	return how.verifyToken(ctx, at, got)
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
func (how provider) verifyToken(ctx context.Context, at *oidc.Provider, got *oauth2.Token) (t idToken, err error) {
	t.id, _ = got.Extra("id_token").(string)
	if t.id == "" {
		return t, exitErrorf(refused, "the provider %s gave no ID token: ask for the scope openid (--scopes)", how.Issuer)
	}
	id, err := at.VerifierContext(ctx, &oidc.Config{ClientID: how.ClientID}).Verify(ctx, t.id)
	if err != nil {
		return t, exitErrorf(refused, "the ID token of the provider %s is not good: %w", how.Issuer, err)
	}
	t.expires, t.refresh = id.Expiry, got.RefreshToken
	return t, nil
}

// explainError turns a provider's error into a message for the user.
func (how provider) explainError(err error) error {
	var answer *oauth2.RetrieveError
	switch {
	case errors.Is(err, context.Canceled):
		return err
	case errors.Is(err, context.DeadlineExceeded):
		return exitErrorf(late, "the login was not approved in time: run edgebus login again")
	case !errors.As(err, &answer):
		return exitErrorf(unreachable, "no answer from the OpenID Connect provider %s: %w", how.Issuer, err)
	}
	switch answer.ErrorCode {
	case "access_denied":
		return exitErrorf(refused, "the login was denied")
	case "expired_token":
		return exitErrorf(late, "the login was not approved in time: run edgebus login again")
	case "invalid_client", "unauthorized_client":
		return exitErrorf(refused, "the provider %s does not accept the client %s (%s): give --client-id, and --client-secret-file if it has a secret",
			how.Issuer, printableText(how.ClientID, 100), printableText(cmp.Or(answer.ErrorDescription, answer.ErrorCode), 300))
	}
	return exitErrorf(refused, "the provider %s refused: %s", how.Issuer, printableText(cmp.Or(answer.ErrorDescription, answer.ErrorCode, string(answer.Body)), 300))
}

// whoAmI asks the hub for the user of the credentials, and for the user's roles.
func whoAmI(ctx context.Context, o client.Options) (string, error) {
	hub, err := client.New(o)
	if err != nil {
		return "", exitErrorf(misused, "%w", err)
	}
	defer hub.Close()
	var review struct {
		Status struct {
			UserInfo struct {
				Username string
				Groups   []string
				Extra    struct{ Nodes []string }
			}
		}
	}
	if err := hub.Post(ctx, "/apis/authentication.k8s.io/v1/selfsubjectreviews", struct{}{}, &review); err != nil {
		return "", fmt.Errorf("the provider accepted the login, and the hub did not: %w", err)
	}
	who := review.Status.UserInfo
	text := who.Username + " (" + strings.Join(who.Groups, ", ")
	if len(who.Extra.Nodes) > 0 {
		text += " of the nodes " + strings.Join(who.Extra.Nodes, ", ")
	}
	return text + ")", nil
}

// storeToken writes the token into the user of a context.
func (k *kubeconfig) storeToken(context, token string, how provider) error {
	names, err := k.entryNames(context)
	if err != nil {
		return err
	}
	c, err := k.change(kindContext, context)
	if err != nil {
		return err
	}
	u, err := k.change(kindUser, names[kindUser])
	if err != nil {
		return err
	}
	c[kindUser], u["token"] = names[kindUser], token
	delete(u, "tokenFile")
	setExtension(u, loginExtension, how, true)
	return k.write()
}

// renewToken gets the next token of a context that has signed in with edgebus login, if the present one expires soon.
func (p *hubTarget) renewToken(k *kubeconfig, name string) error {
	how := p.loginProvider
	if p.User != "" || p.Token == "" || p.TokenFile != "" || how.Issuer == "" {
		return nil
	}
	expires := tokenExpiry(p.Token)
	if expires.IsZero() || time.Until(expires) > renewalMargin {
		return nil
	}
	if how.RefreshToken == "" {
		if time.Until(expires) > 0 {
			return nil
		}
		return exitErrorf(refused, "the token of the context %s expired at %s: run edgebus login", name, resource.FormatTime(expires))
	}
	ctx, cancel := context.WithTimeout(context.Background(), 2*providerTimeout)
	defer cancel()
	t, err := how.refresh(ctx)
	if err != nil {
		if time.Until(expires) > 0 {
			return nil
		}
		return exitErrorf(exitCodeOf(err), "the token of the context %s expired at %s, and is not renewed; run edgebus login: %w", name, resource.FormatTime(expires), err)
	}
	p.Token, how.RefreshToken = t.id, cmp.Or(t.refresh, how.RefreshToken)
	err = k.storeToken(name, t.id, how)
	if err == nil {
		return nil
	}
	// Another command may have renewed it at the same time. Its token, and its refresh token, are as good.
	if now, again := readKubeconfig(); again == nil {
		if other, again := now.targetOf(name); again == nil && time.Until(tokenExpiry(other.Token)) > renewalMargin {
			p.Token = other.Token
			return nil
		}
	}
	return err
}

func (how provider) refresh(ctx context.Context) (t idToken, err error) {
	ctx, at, conf, err := how.connect(ctx)
	if err != nil {
		return t, err
	}
	got, err := conf.TokenSource(ctx, &oauth2.Token{RefreshToken: how.RefreshToken}).Token()
	if err != nil {
		return t, how.explainError(err)
	}
	return how.verifyToken(ctx, at, got)
}

// tokenExpiry is when an ID token expires, as it says itself; zero: it doesn't. The hub verifies it.
func tokenExpiry(token string) time.Time {
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
