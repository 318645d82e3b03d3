// SPDX-License-Identifier: Apache-2.0

package enroll

import (
	"os"
	"testing"
	"time"

	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"
)

func TestAReplicaShowsACertificateOfTheAuthorityAndMakesNothing(t *testing.T) {
	c := &clock{at: time.Date(2026, 11, 22, 12, 0, 0, 0, time.UTC)}
	dir := t.TempDir()
	o := AuthorityOptions{Dir: dir, Names: []string{"hub.example.org"}, Log: zerolog.Nop(), Now: c.now}
	_, err := OpenReplica(o)
	require.ErrorIs(t, err, os.ErrNotExist)
	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.Empty(t, entries)

	serves := openTestAuthority(t, dir, c)
	require.NoError(t, serves.Rotate(48*time.Hour))
	for _, passed := range []time.Duration{0, 49 * time.Hour} { // with the old authority, and without
		c.pass(passed)
		replica, err := OpenReplica(o)
		require.NoError(t, err)
		require.Equal(t, serves.Pin(), replica.Pin())
		require.Equal(t, serves.Certificates(), replica.Certificates())
		require.NoError(t, servedCertificate(t, replica).CheckSignatureFrom(serves.signers[0].cert))
	}
}
