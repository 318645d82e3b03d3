// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"fmt"
	"os"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// pseudoLine is a terminal that has no device behind it.
func pseudoLine(t *testing.T) string {
	t.Helper()
	far, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	require.NoError(t, err)
	t.Cleanup(func() { _ = far.Close() })
	require.NoError(t, unix.IoctlSetPointerInt(int(far.Fd()), unix.TIOCSPTLCK, 0))
	n, err := unix.IoctlGetInt(int(far.Fd()), unix.TIOCGPTN)
	require.NoError(t, err)
	return fmt.Sprintf("/dev/pts/%d", n)
}

// Who opens a line a second time gets a part of what comes, and the first one the rest. The terminal's own mark stops everybody but root.
func TestALineIsOpenOnceOnly(t *testing.T) {
	path := pseudoLine(t)
	target, err := ParseTarget("rtu://" + path)
	require.NoError(t, err)
	first, err := Dial(t.Context(), target, Options{})
	require.NoError(t, err)
	_, err = Dial(t.Context(), target, Options{})
	require.ErrorContains(t, err, "it is open already")
	require.NoError(t, first.Close())
	again, err := Dial(t.Context(), target, Options{})
	require.NoError(t, err, "closed, it is anybody's")
	require.NoError(t, again.Close())
}
