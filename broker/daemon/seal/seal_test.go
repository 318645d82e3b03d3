// SPDX-License-Identifier: Apache-2.0

package seal

import (
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestKey(t *testing.T) {
	dir := t.TempDir()
	_, err := Load(dir)
	require.ErrorIs(t, err, fs.ErrNotExist)
	made, err := Create(dir)
	require.NoError(t, err)
	info, err := os.Stat(filepath.Join(dir, FileName))
	require.NoError(t, err)
	require.Equal(t, fs.FileMode(0o600), info.Mode())
	_, err = Create(dir)
	require.ErrorIs(t, err, fs.ErrExist, "a key is never written over")
	again, err := Load(dir)
	require.NoError(t, err)

	sealed, err := made.Seal([]byte("hunter2"), "Secret default/a")
	require.NoError(t, err)
	require.NotContains(t, string(sealed), "hunter2")
	plain, err := again.Open(sealed, "Secret default/a")
	require.NoError(t, err)
	require.Equal(t, "hunter2", string(plain))
	other, err := made.Seal([]byte("hunter2"), "Secret default/a")
	require.NoError(t, err)
	require.NotEqual(t, sealed, other, "equal values don't show as equal")

	_, err = again.Open(sealed, "Secret default/b")
	require.ErrorContains(t, err, "Secret default/b doesn't open", "moved to another object")
	sealed[len(sealed)-1] ^= 1
	_, err = again.Open(sealed, "Secret default/a")
	require.ErrorContains(t, err, "damaged")
	_, err = again.Open(nil, "Secret default/a")
	require.Error(t, err)
}

func TestBadKeyFiles(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, FileName)
	for text, says := range map[string]string{
		"":                     "is not a key",
		keyHeader + "AAAA\n":   "is not a key",
		"something else":       "is not a key",
		keyHeader + "?\n":      "damaged",
		keyHeader[:4] + "AAAA": "backup",
	} {
		require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
		_, err := Load(dir)
		require.ErrorContains(t, err, says, "%q", text)
	}
	require.NoError(t, os.Chmod(path, 0o644))
	_, err := Load(dir)
	require.ErrorContains(t, err, "chmod 600")
}

func TestRotation(t *testing.T) {
	dir := t.TempDir()
	k, err := Create(dir)
	require.NoError(t, err)
	first, err := k.Seal([]byte("x"), "a")
	require.NoError(t, err)
	require.True(t, k.Current(first, "a"))
	require.False(t, k.Rotated())
	require.NoError(t, k.Rotate())
	require.NoError(t, k.Rotate()) // one that was not finished, and another
	require.True(t, k.Rotating())
	require.False(t, k.Current(first, "a"))
	second, err := k.Seal([]byte("y"), "a")
	require.NoError(t, err)
	opens := func(k *Key, want bool) {
		t.Helper()
		plain, err := k.Open(second, "a")
		require.NoError(t, err)
		require.Equal(t, "y", string(plain))
		_, err = k.Open(first, "a")
		require.Equal(t, want, err == nil)
	}
	opens(k, true)
	again, err := Load(dir)
	require.NoError(t, err)
	require.True(t, again.Rotating())
	opens(again, true)

	require.NoError(t, k.Retire())
	require.False(t, k.Rotating())
	require.True(t, k.Rotated())
	opens(k, true)
	again, err = Load(dir)
	require.NoError(t, err)
	require.False(t, again.Rotating())
	opens(again, false)
	require.NoError(t, k.Rotate())
	require.NoError(t, k.Retire())
	again, err = Load(dir)
	require.NoError(t, err)
	_, err = again.Open(second, "a")
	require.Error(t, err)
}
