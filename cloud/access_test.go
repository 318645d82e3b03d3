// SPDX-License-Identifier: Apache-2.0

package cloud

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/edgebus/edgebus/cloud/identity"
	"github.com/edgebus/edgebus/configs"
)

// A token is good for as long as its maker could make it: the table of makers and settings.
func TestWhoseTokensEnd(t *testing.T) {
	settings := configs.HubAuth{}
	settings.Users = []configs.User{
		{Name: "boss", Role: "operator", Nodes: []string{"*"}},
		{Name: "some", Role: "operator", Nodes: []string{"a*"}},
		{Name: "vic", Role: "viewer", Nodes: []string{"*"}},
		{Name: "out", Role: "operator", Nodes: []string{"*"}},
	}
	settings.Deny = []configs.Denied{{Name: "out"}, {Name: "pia"}, {Serial: "00:4A:1F"}, {Fingerprint: "0A:BC"}}
	provider := settings
	provider.OIDC.Issuer = "https://id.example.org"
	for _, c := range []struct {
		by                   identity.TokenMaker
		without, andProvider string
	}{
		{identity.TokenMaker{By: "boss"}, "", ""},
		{identity.TokenMaker{By: "boss", Serial: "1", Fingerprint: "2"}, "", ""},
		{identity.TokenMaker{By: "boss", Serial: "4a1f"}, "certificate of boss is denied", "certificate of boss is denied"},
		{identity.TokenMaker{By: "boss", Fingerprint: "abc"}, "certificate of boss is denied", "certificate of boss is denied"},
		{identity.TokenMaker{By: "gone"}, "no operator of all nodes", "no operator of all nodes"},
		{identity.TokenMaker{By: "some"}, "no operator of all nodes", "no operator of all nodes"},
		{identity.TokenMaker{By: "vic"}, "no operator of all nodes", "no operator of all nodes"},
		{identity.TokenMaker{By: "out"}, "out is denied", "out is denied"},
		{identity.TokenMaker{By: "ann", Provider: true}, "no provider any more", ""},
		{identity.TokenMaker{By: "pia", Provider: true}, "pia is denied", "pia is denied"},
		{identity.TokenMaker{}, "", ""},
	} {
		for auth, want := range map[*configs.HubAuth]string{&settings: c.without, &provider: c.andProvider} {
			got := makerRevokedReason(*auth, c.by)
			require.Equal(t, want == "", got == "", "%+v: %s", c.by, got)
			require.Contains(t, got, want)
		}
	}
}
