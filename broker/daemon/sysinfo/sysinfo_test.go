// SPDX-License-Identifier: Apache-2.0

package sysinfo

import (
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/require"
)

func writeFile(t *testing.T, root, path, text string) {
	t.Helper()
	path = filepath.Join(root, path)
	require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o700))
	require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
}

func TestAHostIsDescribed(t *testing.T) {
	root := t.TempDir()
	writeFile(t, root, "/usr/lib/os-release", "NAME=Fedora\nPRETTY_NAME=\"Fedora \\\"Edge\\\" 42\"\n")
	writeFile(t, root, "/etc/machine-id", "0123456789abcdef0123456789abcdef\n")
	writeFile(t, root, "/proc/sys/kernel/random/boot_id", "6a1f\n")
	writeFile(t, root, "/proc/sys/kernel/osrelease", "6.12.1\n")
	writeFile(t, root, "/proc/sys/kernel/hostname", "gate\n")
	writeFile(t, root, "/sys/class/tpm/tpm0/pcr-sha256/0", "ABCD\n")
	writeFile(t, root, "/sys/class/tpm/tpm0/pcr-sha256/7", "00EE\n")
	writeFile(t, root, "/sys/class/tpm/tpm0/pcr-sha256/16", "0000\n")
	writeFile(t, root, "/sys/class/tpm/tpm0/pcr-sha256/17", "FFFF\n")
	info := Read(root)
	require.Equal(t, `Fedora "Edge" 42`, info.OperatingSystem)
	require.Equal(t, "0123456789abcdef0123456789abcdef", info.MachineID)
	require.Equal(t, "6a1f", info.BootID)
	require.Equal(t, "6.12.1", info.Kernel)
	require.Equal(t, "gate", info.Hostname)
	require.Equal(t, map[string]string{"pcr00": "abcd", "pcr07": "00ee"}, info.Measurements)
	require.Equal(t, runtime.GOARCH, info.Architecture)
	require.Positive(t, info.CPUs)
}

func TestAHostThatSaysNothing(t *testing.T) {
	info := Read(t.TempDir())
	require.Equal(t, runtime.GOOS, info.OperatingSystem)
	require.Empty(t, info.BootID)
	require.Nil(t, info.Measurements)
}

func FuzzOSRelease(f *testing.F) {
	f.Add("PRETTY_NAME=\"Debian GNU/Linux 12 (bookworm)\"\n")
	f.Add("PRETTY_NAME='x\nPRETTY_NAME=\"")
	f.Add("PRETTY_NAME=\"\xff\"")
	f.Fuzz(func(t *testing.T, text string) {
		got := releaseField(text, "PRETTY_NAME")
		require.True(t, utf8.ValidString(got))
		require.False(t, strings.Contains(got, "\n"), "%q", got)
	})
}
