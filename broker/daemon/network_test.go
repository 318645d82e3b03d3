// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestAHostsIPv6AddressesAreOneNetwork(t *testing.T) {
	for remote, network := range map[string]string{
		"192.0.2.1:4711":          "192.0.2.1",
		"192.0.2.1":               "192.0.2.1",
		"[2001:db8::1]:1883":      "2001:db8::/64",
		"[2001:db8::ffff:1]:1883": "2001:db8::/64",
		"[fe80::1%eth0]:1883":     "fe80::/64",
		"[::ffff:192.0.2.1]:1883": "192.0.2.1",
		"user 1000":               "user 1000",
		"":                        "",
	} {
		require.Equal(t, network, Network(remote), remote)
	}
}
