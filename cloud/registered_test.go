// SPDX-License-Identifier: Apache-2.0

package cloud

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/edgebus/edgebus/configs"
)

type registeredNodes []string

func (n registeredNodes) Registered(name string) (there, any bool) {
	for _, is := range n {
		there = there || is == name
	}
	return there, len(n) > 0
}

// With the first Node or user a certificate of another name is nobody's.
func TestNodesAreRegistered(t *testing.T) {
	of := func(setting string, users ...string) (a configs.HubAuth) {
		for _, u := range users {
			a.Users = append(a.Users, configs.User{Name: u})
		}
		a.Nodes = setting
		return a
	}
	for _, c := range []struct {
		auth  configs.HubAuth
		there registeredNodes
		name  string
		in    bool
	}{
		{of("auto"), nil, "n1", true},
		{of("auto"), registeredNodes{"n1"}, "n1", true},
		{of("auto"), registeredNodes{"n1"}, "ann", false},
		{of("auto", "boss"), nil, "ann", false},
		{of("auto", "boss"), registeredNodes{"n1"}, "n1", true},
		{of("registered"), nil, "n1", false},
		{of("registered"), registeredNodes{"n1"}, "n1", true},
		{of("any", "boss"), registeredNodes{"n1"}, "n2", true},
	} {
		require.Equal(t, c.in, acceptsCertificate(c.auth, c.there, c.name), "%s of %v with %v", c.name, c.there, c.auth)
	}
}
