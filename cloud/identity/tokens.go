// SPDX-License-Identifier: Apache-2.0

package identity

import (
	"cmp"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/rs/zerolog"

	"github.com/edgebus/edgebus/broker"
	"github.com/edgebus/edgebus/cloud/store"
	"github.com/edgebus/edgebus/topics"
	"github.com/edgebus/edgebus/topics/resource"
)

// tokenPrefix is what the tokens that the hub makes begin with, so that people and secret scanners recognise one.
const tokenPrefix = "ebt_"

const (
	kindToken   = "AccessToken" // under which the store keeps tokens; the API does not serve them as objects
	secretSize  = 20            // random bytes of a token
	shownID     = 12            // characters of its ID by which people name a token
	maxTokens   = 10_000
	maxTTL      = 5 * 365 * 24 * time.Hour
	defaultTTL  = 90 * 24 * time.Hour
	forgetAfter = 24 * time.Hour // expired tokens are listed for so long
)

// Token is what the hub keeps of a token.
type Token struct {
	ID      string      `json:"id"` // SHA-256 of the token, hexadecimal
	User    string      `json:"user"`
	Role    topics.Role `json:"role"`
	Nodes   []string    `json:"nodes"`
	Created time.Time   `json:"created"`
	Expires time.Time   `json:"expires"`
	TokenMaker
}

// TokenMaker is who made a token, and how that user had signed in.
type TokenMaker struct {
	By          string `json:"by,omitempty"`          // the user; empty: who had not signed in
	Provider    bool   `json:"provider,omitempty"`    // a provider's user
	Serial      string `json:"serial,omitempty"`      // of the user's certificate, hexadecimal
	Fingerprint string `json:"fingerprint,omitempty"` // of that certificate, SHA-256, hexadecimal without leading zeros
}

func makerOf(id broker.Identity) TokenMaker {
	m := TokenMaker{By: id.User, Provider: id.Bearer}
	if id.Certificate != nil {
		m.Serial, m.Fingerprint = id.Certificate.SerialNumber.Text(16), broker.Fingerprint(id.Certificate)
	}
	return m
}

// TokenRequest asks for a token.
type TokenRequest struct {
	User  string      `json:"user"`
	Role  topics.Role `json:"role"`
	Nodes []string    `json:"nodes"`
	TTL   string      `json:"ttl,omitempty"` // such as 30d or 12h; empty: 90 days
}

// NewToken is a token that was made. Token is shown this once.
type NewToken struct {
	ID      string `json:"id"`
	Token   string `json:"token"`
	Expires string `json:"expires"`
}

// Options are what Tokens are made from.
type Options struct {
	Reader store.Reader
	Writer store.Writer
	// Taken reports whether the name is one of auth.users or a node's: the holder of a token is a user of another name.
	Taken func(name string) bool
	// Ended says why whoever made a token may make none any more: the token ends with that. An empty text: it may. nil: all may.
	Ended func(TokenMaker) string
	Log   zerolog.Logger
	Now   func() time.Time
}

// Tokens are the bearer tokens that the hub has made. All of them are in memory, by their hash.
type Tokens struct {
	o     Options
	mu    sync.RWMutex
	by    map[[sha256.Size]byte]heldToken
	users map[string]int // how many tokens each holder has
}

// heldToken is a token, and what ends when it is revoked.
type heldToken struct {
	Token
	revoked context.Context
	revoke  context.CancelFunc
}

// NewTokens reads the tokens that there are, and revokes those whose makers have lost their rights.
func NewTokens(ctx context.Context, o Options) (*Tokens, error) {
	if o.Now == nil {
		o.Now = time.Now
	}
	page, err := o.Reader.List(ctx, kindToken, store.ListOptions{})
	if err != nil {
		return nil, err
	}
	t := &Tokens{o: o, by: make(map[[sha256.Size]byte]heldToken, len(page.Items)), users: make(map[string]int)}
	for _, item := range page.Items {
		var one Token
		if err := json.Unmarshal(item.Data, &one); err != nil {
			return nil, fmt.Errorf("%s: %w", item.Key, err)
		}
		var sum [sha256.Size]byte
		if n, err := hex.Decode(sum[:], []byte(one.ID)); err != nil || n != len(sum) {
			return nil, fmt.Errorf("%s: %q is no token's ID", item.Key, one.ID)
		}
		t.add(sum, one)
	}
	return t, t.revokeEnded(ctx)
}

// revokeEnded revokes the tokens whose makers may make none any more: else a token would be what remains of a user who was removed.
func (t *Tokens) revokeEnded(ctx context.Context) error {
	if t.o.Ended == nil {
		return nil
	}
	for _, one := range t.List() {
		why := t.o.Ended(one.TokenMaker)
		if why == "" {
			continue
		}
		if err := t.remove(ctx, one); err != nil {
			return err
		}
		t.o.Log.Warn().Str("token", one.ID[:shownID]).Str("user", one.User).Str("by", one.By).Str("reason", why).
			Msg("a bearer token was revoked, as who made it may make none any more")
	}
	return nil
}

// Run forgets the tokens that have expired, and with each the sessions of its user's clients, until ctx is done.
func (t *Tokens) Run(ctx context.Context) error {
	hourly := time.NewTicker(time.Hour)
	defer hourly.Stop()
	for {
		if err := t.forgetExpired(ctx); err != nil && ctx.Err() == nil {
			t.o.Log.Warn().Err(err).Msg("tokens that have expired could not be forgotten; it is tried again in an hour")
		}
		select {
		case <-hourly.C:
		case <-ctx.Done():
			return nil
		}
	}
}

func (t *Tokens) add(sum [sha256.Size]byte, one Token) {
	h := heldToken{Token: one}
	h.revoked, h.revoke = context.WithCancel(context.Background())
	t.mu.Lock()
	defer t.mu.Unlock()
	t.by[sum] = h
	t.users[one.User]++
}

// HasUser reports whether a user of that name holds a token.
func (t *Tokens) HasUser(name string) bool {
	t.mu.RLock()
	defer t.mu.RUnlock()
	return t.users[name] > 0
}

// IsToken reports whether a password has the form of a token that the hub makes.
func IsToken(password string) bool { return strings.HasPrefix(password, tokenPrefix) }

// Verify says whose token it is.
func (t *Tokens) Verify(token string) (u broker.BearerUser, err error) {
	sum := sha256.Sum256([]byte(token))
	t.mu.RLock()
	one, ok := t.by[sum]
	t.mu.RUnlock()
	switch {
	case !ok:
		return u, resource.Errorf(resource.Unauthorized, "token", "the hub knows no such token: it was revoked, or is another hub's")
	case !t.o.Now().Before(one.Expires):
		return u, resource.Errorf(resource.Unauthorized, "token", "the token expired at %s", resource.FormatTime(one.Expires))
	}
	u.User = broker.User{Name: one.User, Role: one.Role, Nodes: one.Nodes}
	u.Expires, u.ID, u.Revoked = one.Expires, one.ID, one.revoked
	return u, nil
}

// Revoked returns what is done when the token with that ID is revoked, and is done already if there is no such token.
func (t *Tokens) Revoked(id string) context.Context {
	var sum [sha256.Size]byte
	_, err := hex.Decode(sum[:], []byte(id))
	t.mu.RLock()
	defer t.mu.RUnlock()
	if one, ok := t.by[sum]; ok && err == nil {
		return one.revoked
	}
	done, end := context.WithCancel(context.Background())
	end()
	return done
}

// Create makes a token. by is who asked for it.
func (t *Tokens) Create(ctx context.Context, r TokenRequest, by TokenMaker) (NewToken, error) {
	now := t.o.Now().UTC()
	ttl, err := resource.ParseTTL(r.TTL, defaultTTL, maxTTL)
	if err != nil {
		return NewToken{}, err
	}
	if err := t.check(r); err != nil {
		return NewToken{}, err
	}
	if err := t.forgetExpired(ctx); err != nil {
		return NewToken{}, err
	}
	if n := t.count(); n >= maxTokens {
		return NewToken{}, resource.Errorf(resource.Quota, "", "there are %d tokens already: revoke some (edgebus token list)", n)
	}
	var secret [secretSize]byte
	_, _ = rand.Read(secret[:]) // it never fails
	token := tokenPrefix + hex.EncodeToString(secret[:])
	sum := sha256.Sum256([]byte(token))
	one := Token{ID: hex.EncodeToString(sum[:]), User: r.User, Role: r.Role, Nodes: r.Nodes, Created: now, Expires: now.Add(ttl), TokenMaker: by}
	data, err := json.Marshal(one)
	if err != nil {
		return NewToken{}, err
	}
	if _, err := t.o.Writer.Create(ctx, store.Object{Key: tokenKey(one.ID), Data: data}); err != nil {
		return NewToken{}, err
	}
	t.add(sum, one)
	t.o.Log.Info().Str("token", one.ID[:shownID]).Str("user", one.User).Str("role", string(one.Role)).Strs("nodes", one.Nodes).
		Time("expires", one.Expires).Str("by", by.By).Msg("a bearer token was made")
	return NewToken{ID: one.ID[:shownID], Token: token, Expires: resource.FormatTime(one.Expires)}, nil
}

func (t *Tokens) check(r TokenRequest) error {
	switch r.Role {
	case topics.RoleOperator, topics.RoleViewer, topics.RoleController, topics.RoleEnroller, topics.RoleFollower:
	default:
		return resource.Errorf(resource.Invalid, "role", "%.40q is none of operator, viewer, controller, enroller and follower", r.Role)
	}
	if !topics.ValidName(r.User) {
		return resource.Errorf(resource.Invalid, "user", "%.100q is no name of a user: %s", r.User, topics.NameRule())
	}
	if t.o.Taken(r.User) {
		return resource.Errorf(resource.Conflict, "user", "%s is a user of auth.users or a node: the holder of a token needs a name of its own", r.User)
	}
	if len(r.Nodes) == 0 && !slices.Contains([]topics.Role{topics.RoleController, topics.RoleEnroller, topics.RoleFollower}, r.Role) {
		return resource.Errorf(resource.Invalid, "nodes", `say for which nodes: a list of names and patterns, "*" for all`)
	}
	for _, glob := range r.Nodes {
		if _, err := path.Match(glob, ""); err != nil || glob == "" || len(glob) > 253 {
			return resource.Errorf(resource.Invalid, "nodes", "%.100q is neither a node's name nor a pattern of names", glob)
		}
	}
	if len(r.Nodes) > 100 {
		return resource.Errorf(resource.Invalid, "nodes", "%d patterns are more than 100", len(r.Nodes))
	}
	return nil
}

func tokenKey(id string) store.Key { return store.Key{Kind: kindToken, Name: id} }

func (t *Tokens) count() int {
	t.mu.RLock()
	defer t.mu.RUnlock()
	return len(t.by)
}

// List returns the tokens, the next to expire first.
func (t *Tokens) List() []Token {
	t.mu.RLock()
	defer t.mu.RUnlock()
	all := make([]Token, 0, len(t.by))
	for _, one := range t.by {
		all = append(all, one.Token)
	}
	slices.SortFunc(all, func(a, b Token) int { return cmp.Or(a.Expires.Compare(b.Expires), strings.Compare(a.ID, b.ID)) })
	return all
}

// Revoke ends the token whose ID begins so, and the connections that it opened.
func (t *Tokens) Revoke(ctx context.Context, id, by string) error {
	var found []Token
	for _, one := range t.List() {
		if len(id) >= 4 && strings.HasPrefix(one.ID, id) {
			found = append(found, one)
		}
	}
	switch len(found) {
	case 0:
		return resource.Errorf(resource.NotFound, "", "there is no token %.64q: see edgebus token list", id)
	case 1:
	default:
		return resource.Errorf(resource.Invalid, "", "%d tokens begin with %.64q: give more of its ID", len(found), id)
	}
	if err := t.remove(ctx, found[0]); err != nil {
		return err
	}
	t.o.Log.Info().Str("token", found[0].ID[:shownID]).Str("user", found[0].User).Str("by", by).Msg("a bearer token was revoked")
	return nil
}

func (t *Tokens) remove(ctx context.Context, one Token) error {
	// At any revision: it ends, whatever was noted of it meanwhile, and no other one ever has its ID.
	if _, err := t.o.Writer.Delete(ctx, tokenKey(one.ID), 0); err != nil && !errors.Is(err, resource.NotFound) {
		return err
	}
	var sum [sha256.Size]byte
	_, _ = hex.Decode(sum[:], []byte(one.ID)) // it was checked when it was read
	t.mu.Lock()
	defer t.mu.Unlock()
	h, ok := t.by[sum]
	if !ok { // another request has revoked it already
		return nil
	}
	delete(t.by, sum)
	if t.users[one.User]--; t.users[one.User] == 0 {
		delete(t.users, one.User)
	}
	h.revoke() // connections that it opened end
	return nil
}

func (t *Tokens) forgetExpired(ctx context.Context) error {
	limit := t.o.Now().Add(-forgetAfter)
	for _, one := range t.List() {
		if one.Expires.After(limit) {
			break
		}
		if err := t.remove(ctx, one); err != nil {
			return err
		}
	}
	return nil
}
