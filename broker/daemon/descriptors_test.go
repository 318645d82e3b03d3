// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"net"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestDescriptorsAreKeptForOthers(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer l.Close()
	kept := ReserveDescriptors(l, MQTTReserve)
	dial := func() (net.Conn, error) {
		c, err := net.Dial("tcp", l.Addr().String())
		require.NoError(t, err)
		t.Cleanup(func() { _ = c.Close() })
		return kept.Accept()
	}
	real := descriptorLimit
	t.Cleanup(func() { descriptorLimit = real })
	descriptorLimit = func() int { return 1 << 20 }
	c, err := dial()
	require.NoError(t, err)
	defer c.Close()
	require.Empty(t, DescriptorsShort())
	descriptorLimit = func() int { return 4 }
	_, err = dial()
	temporary, ok := err.(net.Error) //nolint:errorlint // as net/http looks at it
	require.True(t, ok)
	require.True(t, temporary.Temporary()) //nolint:staticcheck // the same
	require.Contains(t, DescriptorsShort(), "nearly all of the 4 file descriptors")
}
