package api

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/edgebus/edgebus/broker"
	"github.com/edgebus/edgebus/topics"
)

// Whoever comes without a name may do all that an operator of all nodes may, but for Secrets and the like.
func TestNobodyWithoutANameIsGivenSecrets(t *testing.T) {
	all := broker.Identity{Roles: []topics.Role{topics.RoleOperator}, Nodes: []string{"*"}}
	anonymous := accessOf(all)
	all.User = "boss"
	boss := accessOf(all)
	kinds, secret := Kinds(), 0
	for i := range kinds {
		k := &kinds[i]
		for _, verb := range verbs {
			if k.WrittenBy != "" {
				continue
			}
			require.True(t, boss.may(verb, k), "%s %s", verb, k.Plural)
			require.Equal(t, !k.Sealed && !k.HasCredentials, anonymous.may(verb, k), "%s %s", verb, k.Plural)
		}
		if k.Sealed || k.HasCredentials {
			secret++
		}
	}
	require.Positive(t, secret)
	require.Contains(t, anonymous.rule, "signed in")
}
