// SPDX-License-Identifier: Apache-2.0

package enroll

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/edgebus/edgebus/cloud/store/disk"
)

// copyHub copies a data directory, as a backup does.
func copyHub(t *testing.T, from, to string) {
	require.NoError(t, os.CopyFS(to, os.DirFS(from)))
	keys, err := filepath.Glob(filepath.Join(to, DirName, "*.key"))
	require.NoError(t, err)
	for _, key := range keys {
		require.NoError(t, os.Chmod(key, 0o600))
	}
}

// Hubs that have a log in common have no file in common: what one of them revokes the next one refuses, also if its clock is behind, and what the one before
// could not note is noted when it serves again.
func TestWhatOneOfSeveralHubsRevokesTheNextOneRefuses(t *testing.T) {
	st, err := disk.Open(disk.Options{Path: filepath.Join(t.TempDir(), "log")})
	require.NoError(t, err)
	t.Cleanup(func() { _ = st.Close() })
	shared := func(o *AuthorityOptions) { o.Reader, o.Writer, o.Shared = st, st, true }
	first, second, behind := t.TempDir(), t.TempDir(), &clock{at: time.Now()}
	ahead := &clock{at: behind.now().Add(time.Hour)}
	a := openTestAuthority(t, first, ahead, shared)
	copyHub(t, first, second)

	revoked, kept := signedCertificate(t, a, "revoked"), signedCertificate(t, a, "kept")
	require.NoError(t, a.revoked.add("revoked", "boss", true))
	_, err = a.revoked.supersede("joined-again", "a key", 0)
	require.NoError(t, err)
	ahead.pass(2 * issuedAhead)
	late := signedCertificate(t, a, "late")
	b := openTestAuthority(t, second, behind, shared)
	require.Equal(t, a.revoked.nodes, b.revoked.nodes)
	require.NotEmpty(t, b.revoked.Why("revoked", revoked))
	require.Empty(t, b.revoked.Why("kept", kept))
	require.NoError(t, b.revoked.add("late", "boss", false))
	require.NotEmpty(t, b.revoked.Why("late", late))

	b.revoked.onRevoked = nil // as if it were killed before
	require.NoError(t, b.revoked.add("kept", "boss", false))
	openTestAuthority(t, second, behind, shared)
	a = openTestAuthority(t, first, ahead, shared)
	require.Equal(t, b.revoked.nodes, a.revoked.nodes)
	require.NotEmpty(t, a.revoked.Why("kept", kept))
	require.NotEmpty(t, a.revoked.Why("late", late))

	alone := func(o *AuthorityOptions) { o.Reader, o.Writer = st, st }
	fresh := t.TempDir()
	copyHub(t, first, fresh)
	require.NoError(t, writeRevocations(filepath.Join(fresh, DirName, revokedName), nil))
	require.Equal(t, a.revoked.nodes, openTestAuthority(t, fresh, ahead, alone).revoked.nodes, "of a backup of one of them")
}
