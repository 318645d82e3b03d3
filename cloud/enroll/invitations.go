// SPDX-License-Identifier: Apache-2.0

package enroll

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/edgebus/edgebus/cloud/store"
	"github.com/edgebus/edgebus/topics"
	"github.com/edgebus/edgebus/topics/resource"
)

// kindInvitation is the name under which the store keeps invitations. The API does not serve them as objects.
const kindInvitation = "Invitation"

const (
	defaultTTL  = time.Hour
	maxTTL      = 365 * 24 * time.Hour
	maxUses     = 10_000
	maxInvites  = 10_000 // that there may be at one time
	shortID     = 12     // of a token's hash, shown to people as the invitation's ID
	maxAttempts = 20     // to count down an invitation that others count down as well
)

// Invitation is what the hub keeps of a token: its hash, never the token.
type Invitation struct {
	// ID is the SHA-256 of the token's secret, hexadecimal.
	ID string `json:"id"`
	// Node is the name that a node may join by, or a pattern of names in which * stands for any text.
	Node   string            `json:"node"`
	Labels map[string]string `json:"labels,omitempty"`
	// NodeLabels are the keys, or globs of them, of labels that the node itself may choose: see Options.NodeLabels.
	NodeLabels []string  `json:"nodeLabels,omitempty"`
	Uses       int       `json:"uses"`
	Expires    time.Time `json:"expires"`
	Created    time.Time `json:"created"`
	By         string    `json:"by,omitempty"`
	// Replace says that the node may take the place of one that has joined by its name with another key.
	Replace bool `json:"replace,omitempty"`
	// Revocation is the node's last one when it was invited, or 0. A node that was revoked later needs a new invitation.
	Revocation int64 `json:"revocation,omitempty"`
	// UsedBy are the nodes that used it, each with the key that it joined with: the same key may ask again, for its
	// answer may have been lost.
	UsedBy []InvitationUse `json:"usedBy,omitempty"`
}

// InvitationUse is one use of an invitation.
type InvitationUse struct {
	Node string `json:"node"`
	Key  string `json:"key"`
}

// pattern reports whether the invitation is for more than one name.
func (i Invitation) pattern() bool { return strings.ContainsAny(i.Node, "*?[") }

// check returns an error if a node may not join with the invitation. A key that has used it may use it again.
func (i Invitation) check(node, key string, now time.Time) error {
	switch ok, _ := path.Match(i.Node, node); {
	case !now.Before(i.Expires):
		return resource.Errorf(resource.Unauthorized, "token", "the token expired at %s: ask for a new invitation", resource.FormatTime(i.Expires))
	case !ok:
		return resource.Errorf(resource.Forbidden, "token", "the token is for the node %s, not for %s", i.Node, node)
	case key != "" && slices.Contains(i.UsedBy, InvitationUse{node, key}):
		return nil
	case len(i.UsedBy) >= i.Uses && key == "":
		return nil // the key is checked later
	case len(i.UsedBy) >= i.Uses:
		return resource.Errorf(resource.Unauthorized, "token", "the token has been used, as often as it may be (%d): ask for a new invitation; if the use is unknown to you, run edgebus node revoke for %s", i.Uses, i.joinedNames())
	}
	return nil
}

func (i Invitation) joinedNames() string {
	var names []string
	for _, j := range i.UsedBy[:min(len(i.UsedBy), 5)] {
		names = append(names, j.Node)
	}
	return strings.Join(names, ", ")
}

// invitations are those that the store has.
type invitations struct {
	o         *Options
	joiner    *joiner
	redeeming sync.Mutex
}

// InviteRequest asks for an invitation.
type InviteRequest struct {
	Node   string            `json:"node"`
	Labels map[string]string `json:"labels,omitempty"`
	// NodeLabels are the keys of labels that the node may choose itself, beside those of auth.nodeLabels.
	NodeLabels []string `json:"nodeLabels,omitempty"`
	Uses       int      `json:"uses,omitempty"` // 0: 1
	TTL        string   `json:"ttl,omitempty"`  // such as 1h; empty: that
	// Replace says that the node may take the place of one that has joined by its name with another key.
	Replace bool `json:"replace,omitempty"`
}

// InviteAnswer has the token, which is never shown again.
type InviteAnswer struct {
	ID      string `json:"id"`
	Token   string `json:"token"`
	Hub     string `json:"hub"` // host:port for edgecore join
	Expires string `json:"expires"`
}

func (r InviteRequest) read(now time.Time) (i Invitation, err error) {
	ttl, err := resource.ParseTTL(r.TTL, defaultTTL, maxTTL)
	if err != nil {
		return i, err
	}
	i = Invitation{Node: r.Node, Labels: r.Labels, NodeLabels: r.NodeLabels, Replace: r.Replace, Uses: max(r.Uses, 1), Created: now.UTC(), Expires: now.Add(ttl).UTC()}
	if r.Uses < 0 || r.Uses > maxUses {
		return i, resource.Errorf(resource.Invalid, "uses", "%d is not from 1 to %d", r.Uses, maxUses)
	}
	if _, err := path.Match(r.Node, ""); err != nil || r.Node == "" || len(r.Node) > 253 || strings.Contains(r.Node, "/") {
		return i, resource.Errorf(resource.Invalid, "node", "%.100q is neither a node's name nor a pattern of names", r.Node)
	}
	if !i.pattern() && !topics.ValidName(r.Node) {
		return i, resource.Errorf(resource.Invalid, "node", "%.100q is no node's name: %s", r.Node, topics.NameRule())
	}
	if i.pattern() && r.Uses == 0 {
		return i, resource.Errorf(resource.Invalid, "uses", "say how many nodes may join as %s: --uses", r.Node)
	}
	if i.pattern() && r.Replace {
		return i, resource.Errorf(resource.Invalid, "replace", "an invitation as %s is for new nodes: invite each that is to be replaced by its name", r.Node)
	}
	for _, pattern := range r.NodeLabels {
		if _, err := path.Match(pattern, ""); err != nil || pattern == "" {
			return i, resource.Errorf(resource.Invalid, "nodeLabels", "%.100q is neither a label's key nor a glob of keys", pattern)
		}
	}
	return i, resource.CheckLabels("labels", r.Labels)
}

// invite makes an invitation.
func (v *invitations) invite(ctx context.Context, r InviteRequest, by string) (a InviteAnswer, err error) {
	i, err := r.read(v.o.Now())
	if err != nil {
		return a, err
	}
	if !i.pattern() && v.o.Reserved(i.Node) {
		return a, resource.Errorf(resource.Conflict, "node", "%s is a user of the hub: a node needs another name", i.Node)
	}
	if !i.pattern() {
		if err := v.checkNameFree(ctx, i, i.Node, ""); err != nil {
			return a, err
		}
	}
	list, err := v.list(ctx)
	if err != nil {
		return a, err
	}
	if len(list) >= maxInvites {
		return a, resource.Errorf(resource.Quota, "", "there are %d invitations already: revoke some (edgebus invite --list)", len(list))
	}
	t := resource.JoinToken{Authority: v.o.Authority.Pin()}
	_, _ = rand.Read(t.Secret[:]) // crypto/rand never fails
	if !i.pattern() {
		t.Node, i.Revocation = i.Node, v.o.Authority.revoked.at(i.Node)
	}
	i.ID, i.By = t.ID(), by
	data, err := json.Marshal(i)
	if err != nil {
		return a, err
	}
	if _, err := v.o.Writer.Create(ctx, store.Object{Key: invitationKey(i.ID), Data: data}); err != nil {
		return a, err
	}
	v.o.Log.Info().Str("node", i.Node).Str("invitation", i.ID[:shortID]).Int("uses", i.Uses).Time("expires", i.Expires).Str("by", by).Msg("a node was invited")
	return InviteAnswer{ID: i.ID[:shortID], Token: t.String(), Hub: v.o.Address(), Expires: resource.FormatTime(i.Expires)}, nil
}

func invitationKey(id string) store.Key { return store.Key{Kind: kindInvitation, Name: id} }

// list returns all that have not expired, and deletes the others.
func (v *invitations) list(ctx context.Context) (list []Invitation, err error) {
	page, err := v.o.Reader.List(ctx, kindInvitation, store.ListOptions{})
	if err != nil {
		return nil, err
	}
	list = make([]Invitation, 0, len(page.Items)) // none are an empty list to users, not null
	for _, o := range page.Items {
		var i Invitation
		if err := json.Unmarshal(o.Data, &i); err != nil {
			return nil, fmt.Errorf("%s: %w", o.Key, err)
		}
		if v.o.Now().Before(i.Expires) {
			list = append(list, i)
			continue
		}
		if _, err := v.o.Writer.Delete(ctx, o.Key, o.Rev); err != nil && !errors.Is(err, resource.NotFound) && !errors.Is(err, resource.Conflict) {
			return nil, err
		}
	}
	return list, nil
}

// uninvite revokes the invitation whose ID has that prefix.
func (v *invitations) uninvite(ctx context.Context, id, by string) error {
	list, err := v.list(ctx)
	if err != nil {
		return err
	}
	list = slices.DeleteFunc(list, func(i Invitation) bool { return len(id) < 4 || !strings.HasPrefix(i.ID, id) })
	switch len(list) {
	case 0:
		return resource.Errorf(resource.NotFound, "", "there is no invitation %.64q: see edgebus invite --list", id)
	case 1:
	default:
		return resource.Errorf(resource.Invalid, "", "%d invitations begin with %.64q: give more of its id", len(list), id)
	}
	// At any revision: it ends, however often it was used meanwhile, and no other one ever has its ID.
	if _, err := v.o.Writer.Delete(ctx, invitationKey(list[0].ID), 0); err != nil {
		return err
	}
	v.o.Log.Info().Str("invitation", list[0].ID[:shortID]).Str("node", list[0].Node).Str("by", by).Msg("an invitation was revoked")
	return nil
}

// find reads the invitation of a token.
func (v *invitations) find(ctx context.Context, token string) (i Invitation, rev uint64, err error) {
	t, err := resource.ParseJoinToken(token)
	if err != nil {
		return i, 0, resource.Errorf(resource.Unauthorized, "", "%v", err)
	}
	o, err := v.o.Reader.Get(ctx, invitationKey(t.ID()))
	if errors.Is(err, resource.NotFound) {
		return i, 0, resource.Errorf(resource.Unauthorized, "token", "the hub knows no such token: it expired, was revoked, or is another hub's; ask for a new invitation")
	}
	if err != nil {
		return i, 0, err
	}
	return i, o.Rev, json.Unmarshal(o.Data, &i)
}

// redeem counts one use of an invitation by a node with its key. The Revocation of what it returns is the node's last one. If two race for the last use, the store accepts one write; the
// other is a conflict, and finds the invitation used when it reads it again.
func (v *invitations) redeem(ctx context.Context, r resource.JoinRequest, node, key string) (i Invitation, err error) {
	v.redeeming.Lock() // otherwise a thousand nodes with one token would mostly run into conflicts
	defer v.redeeming.Unlock()
	for range maxAttempts {
		var rev uint64
		if i, rev, err = v.find(ctx, r.Token); err != nil {
			return i, err
		}
		if err := i.check(node, key, v.o.Now()); err != nil {
			return i, err
		}
		known := v.o.Authority.revoked.at(node)
		if known != i.Revocation && v.o.Authority.revoked.supersededBy(node) != key { // otherwise a revoked node would join again with the same key and token
			return i, resource.Errorf(resource.Unauthorized, "token", "node %s was revoked, and the token is older than that, or for many nodes: invite it by its name", node)
		}
		use := InvitationUse{node, key}
		if slices.Contains(i.UsedBy, use) {
			i.Revocation = known
			return i, nil
		}
		if err := errors.Join(v.checkNameFree(ctx, i, node, key), v.checkInviter(ctx, i, node, r)); err != nil {
			return i, err
		}
		i.UsedBy = append(i.UsedBy, use)
		data, err := json.Marshal(i)
		if err != nil {
			return i, err
		}
		i.Revocation = known
		if _, err = v.o.Writer.Update(ctx, store.Object{Key: invitationKey(i.ID), Data: data}, rev); !shouldRetry(err, resource.Conflict) {
			return i, err
		}
	}
	return i, resource.Errorf(resource.Unavailable, "", "too many nodes join with this token at once: try again")
}

// checkInviter returns an error if a node would get something that whoever invited it may not see.
func (v *invitations) checkInviter(ctx context.Context, i Invitation, node string, r resource.JoinRequest) error {
	if i.By != "" || v.o.CheckReferences == nil {
		return nil
	}
	own, follow, _ := v.splitLabels(i, r)
	if err := v.o.CheckReferences(ctx, node, withLabels(nil, i.Labels, own), resource.FormatPairs(follow)); err != nil {
		return resource.Errorf(resource.Forbidden, "token", "the invitation was made by somebody who was not signed in: %v", err)
	}
	return nil
}

// checkNameFree returns an error if an invitation does not cover a name, because a node with another key has joined under it.
func (v *invitations) checkNameFree(ctx context.Context, i Invitation, node, key string) error {
	if i.Replace {
		return nil
	}
	holder, err := v.joiner.joinedNode(ctx, node)
	switch taken := slices.ContainsFunc(i.UsedBy, func(j InvitationUse) bool { return j.Node == node }); {
	case err != nil:
		return err
	case i.pattern() && (taken || holder.Joined()):
		return resource.Errorf(resource.Conflict, "token", "a node %s has joined already, and the token is for new nodes (%s): invite it by its name", node, i.Node)
	case !holder.Joined() || holder.Key == key:
		return nil
	}
	return resource.Errorf(resource.Conflict, "replace", "a node %s has joined already, at %s, and would be replaced: if that is what you want, invite it with replace: true "+
		"(edgebus invite %s --replace); what was issued for it is revoked when the other one joins", node, holder.At, node)
}

// ForgetInvitations deletes all invitations of restored data: one that has been used since the backup was made would count as
// unused.
func ForgetInvitations(ctx context.Context, st interface {
	store.Reader
	store.Writer
},
) error {
	page, err := st.List(ctx, kindInvitation, store.ListOptions{})
	if err != nil {
		return err
	}
	for _, o := range page.Items {
		if _, err := st.Delete(ctx, o.Key, o.Rev); err != nil && !errors.Is(err, resource.NotFound) {
			return err
		}
	}
	return nil
}

// splitLabels are the labels that a node may choose itself, and those that follow what it reports; waiting are the others, with {field} for a value
// that would follow.
func (v *invitations) splitLabels(i Invitation, r resource.JoinRequest) (own, follow, waiting map[string]string) {
	may := func(key string) bool {
		return slices.ContainsFunc(slices.Concat(v.o.NodeLabels, i.NodeLabels), func(pattern string) bool {
			ok, _ := path.Match(pattern, key)
			return ok || pattern == "*"
		})
	}
	own, follow, waiting = map[string]string{}, map[string]string{}, map[string]string{}
	for key, field := range r.LabelFrom {
		if may(key) {
			follow[key] = field
		} else {
			waiting[key] = "{" + field + "}"
		}
	}
	for key, value := range r.Labels {
		_, set := i.Labels[key]
		switch {
		case may(key):
			own[key] = value
		case !set && r.LabelFrom[key] == "":
			waiting[key] = value
		}
	}
	return own, follow, waiting
}
