// SPDX-License-Identifier: Apache-2.0

package disk

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/edgebus/edgebus/test/root"
)

// A disk comes back after a power cut though another process, in a namespace that `ip netns exec` made, has its mount as well.
func TestADiskThatIsMountedInAnotherNamespaceComesBack(t *testing.T) {
	root.Require(t)
	d := New(t, 8)
	other := exec.Command("unshare", "--mount", "--propagation", "slave", "cat")
	in, err := other.StdinPipe()
	require.NoError(t, err)
	out, err := other.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, other.Start())
	t.Cleanup(func() { in.Close(); _ = other.Wait() })
	_, err = in.Write([]byte{'\n'})
	require.NoError(t, err)
	_, err = out.Read(make([]byte, 1)) // it is there
	require.NoError(t, err)

	require.NoError(t, d.Cut())
	require.NoError(t, d.Restore())
	require.NoError(t, os.WriteFile(filepath.Join(d.Dir, "file"), nil, 0o600))
}

// A mount that another process keeps for a while, in a namespace that no end of a mount reaches, is waited for.
func TestADiskThatAnotherNamespaceKeepsIsWaitedFor(t *testing.T) {
	root.Require(t)
	d := New(t, 8)
	other := exec.Command("unshare", "--mount", "--propagation", "private", "sh", "-c", "echo; sleep 1")
	out, err := other.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, other.Start())
	t.Cleanup(func() { _ = other.Wait() })
	_, err = out.Read(make([]byte, 1)) // it is there
	require.NoError(t, err)

	require.NoError(t, d.Cut())
	require.NoError(t, d.Restore())
	require.NoError(t, os.WriteFile(filepath.Join(d.Dir, "file"), nil, 0o600))
}
