// SPDX-License-Identifier: Apache-2.0

package resource

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestHubID(t *testing.T) {
	for _, id := range []HubID{1, 0x12345678, 0xffffffff} {
		got, err := ParseHubID(id.String())
		require.NoError(t, err)
		require.Equal(t, id, got)
	}
	for _, text := range []string{"", "hub-", "5f3c2a11", "hub-5F3C2A11", "hub-5f3c2a1", "hub-5f3c2a111", "hub-+f3c2a11", "hub-xxxxxxxx"} {
		_, err := ParseHubID(text)
		require.ErrorContains(t, err, "is no hub's identity, such as hub-5f3c2a11", text)
	}
}
