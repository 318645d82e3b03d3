// SPDX-License-Identifier: Apache-2.0

package broker

import (
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// The kernel takes little for a client that does not read, so that a write that has to wait goes on as soon as little has been read:
// a client that reads steadily, however slowly, is not taken for one that reads nothing.
func TestTheKernelTakesLittleForAClientThatDoesNotRead(t *testing.T) {
	b := startBroker(t, nil)
	openClient(t, b, "c")
	sc, ok := underlyingStream(b.clients.connected("c").Conn).(syscall.Conn)
	require.True(t, ok)
	raw, err := sc.SyscallConn()
	require.NoError(t, err)
	unsent, taken := 0, 0
	piece := make([]byte, 16<<10)
	require.Eventually(t, func() bool { // what the client's own buffer takes is sent first
		full := false
		require.NoError(t, raw.Write(func(fd uintptr) bool {
			n, err := syscall.Write(int(fd), piece)
			if full = err == syscall.EAGAIN; !full {
				require.NoError(t, err)
				taken += n
			}
			return true
		}))
		if !full {
			return false
		}
		before := unsent
		require.NoError(t, raw.Control(func(fd uintptr) { unsent, err = unix.IoctlGetInt(int(fd), unix.SIOCOUTQNSD) }))
		require.NoError(t, err)
		return unsent > 0 && unsent == before
	}, testTimeout, time.Microsecond)
	require.Greater(t, taken, maxUnsent)
	require.LessOrEqual(t, unsent, 2*maxUnsent)
}
