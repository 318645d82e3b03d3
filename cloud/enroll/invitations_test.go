// SPDX-License-Identifier: Apache-2.0

package enroll

import (
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/edgebus/edgebus/topics/resource"
)

func TestATokenIsForTheNodesAndTheTimeThatItSays(t *testing.T) {
	j := newTestService(t)
	one, err := j.invited(InviteRequest{Node: "n1", TTL: "2h"})
	require.NoError(t, err)
	many, err := j.invited(InviteRequest{Node: "hall-*", Uses: 2, TTL: "2h"})
	require.NoError(t, err)
	require.ErrorIs(t, j.join("n2", one, newCSR(t, "n2")), resource.Forbidden)
	require.ErrorIs(t, j.Admit("n2", one), resource.Forbidden, "before the node has sent anything")
	require.ErrorIs(t, j.join("shop-1", many, newCSR(t, "shop-1")), resource.Forbidden)
	key := newCSR(t, "hall-1")
	require.NoError(t, j.join("hall-1", many, key))
	require.NoError(t, j.join("hall-2", many, newCSR(t, "hall-2")))
	require.ErrorContains(t, j.join("hall-3", many, newCSR(t, "hall-3")), "as often as it may be (2)")
	require.NoError(t, j.join("hall-1", many, key), "the same key may ask again")
	j.pass(2 * time.Hour)
	require.ErrorContains(t, j.join("n1", one, newCSR(t, "n1")), "expired at")
	list, err := j.invitations.list(t.Context())
	require.NoError(t, err)
	require.Empty(t, list, "what has expired is deleted")
	require.ErrorContains(t, j.join("n1", one, newCSR(t, "n1")), "knows no such token")
}

func TestTheLastUseOfATokenIsOneNodes(t *testing.T) {
	j := newTestService(t)
	token, err := j.invited(InviteRequest{Node: "hall-*", Uses: 3})
	require.NoError(t, err)
	var joined atomic.Int32
	var all sync.WaitGroup
	for _, node := range []string{"hall-1", "hall-2", "hall-3", "hall-4", "hall-5", "hall-6", "hall-7", "hall-8"} {
		csr := newCSR(t, node)
		all.Go(func() {
			if j.join(node, token, csr) == nil {
				joined.Add(1)
			}
		})
	}
	all.Wait()
	require.EqualValues(t, 3, joined.Load())
}

func TestAnInvitationThatCantBeMeantIsRefused(t *testing.T) {
	j := newTestService(t)
	for field, r := range map[string]InviteRequest{
		"node":       {Node: "a/b"},
		"uses":       {Node: "hall-*"},
		"ttl":        {Node: "n1", TTL: "soon"},
		"replace":    {Node: "hall-*", Uses: 2, Replace: true},
		"nodeLabels": {Node: "n1", NodeLabels: []string{"["}},
		"labels":     {Node: "n1", Labels: map[string]string{"a b": "c"}},
	} {
		_, err := j.invited(r)
		require.ErrorIs(t, err, resource.Invalid, field)
		require.ErrorContains(t, err, field)
	}
	_, err := j.invited(InviteRequest{Node: "n1", Uses: maxUses + 1})
	require.ErrorContains(t, err, "uses")
}

func TestAnInvitationIsTakenBackByTheBeginningOfItsID(t *testing.T) {
	j := newTestService(t)
	made, err := j.invitations.invite(t.Context(), InviteRequest{Node: "n1"}, "joe")
	require.NoError(t, err)
	require.ErrorIs(t, j.invitations.uninvite(t.Context(), made.ID[:3], "joe"), resource.NotFound, "too short to be meant")
	require.NoError(t, j.invitations.uninvite(t.Context(), made.ID[:8], "joe"))
	require.ErrorIs(t, j.join("n1", made.Token, newCSR(t, "n1")), resource.Unauthorized)
}

func TestANodeChoosesTheLabelsThatItMay(t *testing.T) {
	v := &invitations{o: &Options{NodeLabels: []string{"site"}}}
	own, follow, waiting := v.splitLabels(Invitation{Labels: map[string]string{"fleet": "shops"}, NodeLabels: []string{"rack-*"}}, resource.JoinRequest{
		Labels:    map[string]string{"site": "hall", "rack-a": "1", "role": "admin", "fleet": "mine"},
		LabelFrom: map[string]string{"site": "hostname", "model": "productName"},
	})
	require.Equal(t, map[string]string{"site": "hall", "rack-a": "1"}, own)
	require.Equal(t, map[string]string{"site": "hostname"}, follow)
	require.Equal(t, map[string]string{"role": "admin", "model": "{productName}"}, waiting, "fleet is the invitation's")
}
