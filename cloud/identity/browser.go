// SPDX-License-Identifier: Apache-2.0

package identity

import (
	"context"
	"crypto/rand"
	"crypto/subtle"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"html"
	"net"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/coreos/go-oidc/v3/oidc"
	"golang.org/x/oauth2"

	"github.com/edgebus/edgebus/topics/resource"
)

const (
	// BrowserPath is where a browser goes to sign in at the provider; ?to= is where it is led back to.
	BrowserPath = "/auth/oidc/browser"
	// CallbackPath is where the provider leads the browser back to.
	CallbackPath = "/auth/oidc/callback"
	startPath    = "/ui/"

	stateCookie = "edgebus-oidc-" // the server's port follows: cookies are sent to all ports of a host
	stateTime   = 10 * time.Minute
	maxTarget   = 2048 // bytes of an address of the page
)

// browserState is what the browser keeps while it is at the provider: it is for itself alone, and ends with the callback.
type browserState struct {
	State    string `json:"state"`
	Nonce    string `json:"nonce"`
	Verifier string `json:"verifier"`
	To       string `json:"to"`
}

// ServeBrowser leads a browser to the provider and back (authorization code with PKCE). signIn gives the browser its cookie for a token,
// as for one that a person has typed in.
func (v *OIDC) ServeBrowser(signIn func(w http.ResponseWriter, r *http.Request, token string) error) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Cache-Control", "no-store")
		w.Header().Set("Referrer-Policy", "no-referrer")
		if r.Method != http.MethodGet {
			http.Error(w, "this address is for browsers: GET", http.StatusMethodNotAllowed)
			return
		}
		at, err := "", error(nil)
		if r.URL.Path == CallbackPath {
			at, err = v.finish(w, r, signIn)
		} else {
			at, err = v.begin(w, r)
		}
		if err != nil {
			writeSignInFailure(w, err)
			return
		}
		http.Redirect(w, r, at, http.StatusSeeOther)
	})
}

// writeSignInFailure says why, on a page without anything but text: the provider's words are among them.
func writeSignInFailure(w http.ResponseWriter, err error) {
	w.Header().Set("Content-Security-Policy", "default-src 'none'; frame-ancestors 'none'")
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	switch resource.KindOf(err) {
	case resource.Forbidden:
		w.WriteHeader(http.StatusForbidden)
	case resource.Unavailable:
		w.WriteHeader(http.StatusServiceUnavailable)
	default:
		w.WriteHeader(http.StatusUnauthorized)
	}
	_, _ = fmt.Fprintf(w, "<!doctype html><html lang=en><meta name=viewport content=\"width=device-width\"><title>Not signed in</title><h1>Not signed in</h1><p>%s</p><p><a href=%q>Back to the sign-in</a></p>", html.EscapeString(err.Error()), startPath)
}

// begin is the address of the provider that asks who one is.
func (v *OIDC) begin(w http.ResponseWriter, r *http.Request) (string, error) {
	config, err := v.oauth(r)
	if err != nil {
		return "", err
	}
	s := browserState{State: rand.Text(), Nonce: rand.Text(), Verifier: oauth2.GenerateVerifier(), To: pageTarget(r.URL.Query().Get("to"))}
	text, err := json.Marshal(s)
	if err != nil {
		return "", err
	}
	setStateCookie(w, r, base64.RawURLEncoding.EncodeToString(text), int(stateTime.Seconds()))
	return config.AuthCodeURL(s.State, oauth2.S256ChallengeOption(s.Verifier), oidc.Nonce(s.Nonce)), nil
}

// finish takes the code with which the provider has sent the browser back, and signs the browser in.
func (v *OIDC) finish(w http.ResponseWriter, r *http.Request, signIn func(http.ResponseWriter, *http.Request, string) error) (string, error) {
	var s browserState
	if cookie, err := r.Cookie(stateCookie + portOf(r)); err == nil {
		if text, err := base64.RawURLEncoding.DecodeString(cookie.Value); err == nil {
			_ = json.Unmarshal(text, &s) // without a state it is refused below
		}
	}
	setStateCookie(w, r, "", -1)
	q := r.URL.Query()
	if s.State == "" || subtle.ConstantTimeCompare([]byte(s.State), []byte(q.Get("state"))) != 1 {
		return "", resource.Errorf(resource.Unauthorized, "", "this browser did not begin this sign-in, or more than 10 minutes ago: begin again")
	}
	if refused := q.Get("error"); refused != "" {
		return "", resource.Errorf(resource.Unauthorized, "", "the provider refused: %.100s: %.300s", refused, q.Get("error_description"))
	}
	config, err := v.oauth(r)
	if err != nil {
		return "", err
	}
	ctx, stop := context.WithTimeout(oidc.ClientContext(r.Context(), v.client), providerTimeout)
	defer stop()
	answer, err := config.Exchange(ctx, q.Get("code"), oauth2.VerifierOption(s.Verifier))
	if err != nil {
		return "", resource.Errorf(resource.Unauthorized, "", "the provider does not take the code that it gave: %.300v (auth.oidc.audience, auth.oidc.clientSecretFile)", err)
	}
	token, _ := answer.Extra("id_token").(string)
	if !isJWT(token) {
		return "", resource.Errorf(resource.Unauthorized, "", "the provider has given no ID token: its client %s needs the scope openid", v.o.Audience)
	}
	if _, err := v.Verify(ctx, token); err != nil {
		return "", err
	}
	if subtle.ConstantTimeCompare([]byte(nonceOf(token)), []byte(s.Nonce)) != 1 {
		return "", resource.Errorf(resource.Unauthorized, "", "the provider's token is of another sign-in: begin again")
	}
	if err := signIn(w, r, token); err != nil {
		return "", err
	}
	return pageTarget(s.To), nil
}

// oauth is the client at the provider.
func (v *OIDC) oauth(r *http.Request) (*oauth2.Config, error) {
	if _, err := v.provider(r.Context(), v.o.Now()); err != nil {
		return nil, err
	}
	secret := ""
	if v.o.ClientSecretFile != "" {
		text, err := os.ReadFile(v.o.ClientSecretFile)
		if err != nil {
			return nil, resource.Errorf(resource.Unavailable, "auth.oidc.clientSecretFile", "%v", err)
		}
		secret = strings.TrimSpace(string(text))
	}
	back := v.o.RedirectURL
	if back == "" {
		scheme := "http"
		if r.TLS != nil {
			scheme = "https"
		}
		back = (&url.URL{Scheme: scheme, Host: r.Host, Path: CallbackPath}).String()
	}
	scopes := slices.DeleteFunc([]string{oidc.ScopeOpenID, "email", "profile", "groups"}, func(s string) bool {
		return s != oidc.ScopeOpenID && !slices.Contains(v.scopes, s)
	})
	return &oauth2.Config{ClientID: v.o.Audience, ClientSecret: secret, Endpoint: v.endpoint, RedirectURL: back, Scopes: scopes}, nil
}

// nonceOf returns the nonce in a token that has been verified.
func nonceOf(token string) string {
	var claims struct{ Nonce string }
	if text, err := base64.RawURLEncoding.DecodeString(strings.Split(token, ".")[1]); err == nil {
		_ = json.Unmarshal(text, &claims) // without claims there is no nonce
	}
	return claims.Nonce
}

// pageTarget is an address of the page, whatever was asked for: nobody is led to another site.
func pageTarget(to string) string {
	u, err := url.Parse(to)
	if err != nil || len(to) > maxTarget || u.Scheme != "" || u.Host != "" || u.User != nil || !strings.HasPrefix(u.Path, startPath) || strings.Contains(u.Path, "..") || strings.ContainsAny(to, "\\\r\n") {
		return startPath
	}
	return u.RequestURI()
}

func setStateCookie(w http.ResponseWriter, r *http.Request, value string, seconds int) {
	http.SetCookie(w, &http.Cookie{Name: stateCookie + portOf(r), Value: value, Path: "/auth/oidc/", MaxAge: seconds, HttpOnly: true, SameSite: http.SameSiteLaxMode, Secure: r.TLS != nil})
}

// portOf is the port that a request came to.
func portOf(r *http.Request) string {
	a, ok := r.Context().Value(http.LocalAddrContextKey).(net.Addr)
	if !ok {
		return ""
	}
	_, port, _ := net.SplitHostPort(a.String())
	return port
}
