// SPDX-License-Identifier: Apache-2.0

package enroll

import (
	"context"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"math/big"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"
)

func certificateTemplate(from time.Time, life time.Duration) *x509.Certificate {
	return &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "n1"}, NotBefore: from, NotAfter: from.Add(life)}
}

// newTestIdentity makes an identity with a certificate that is valid from now on.
func newTestIdentity(t *testing.T, now time.Time, life time.Duration) Identity {
	t.Helper()
	key, text, err := newKey()
	require.NoError(t, err)
	template := certificateTemplate(now, life)
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	require.NoError(t, err)
	cert, err := x509.ParseCertificate(der)
	require.NoError(t, err)
	i := Identity{Dir: t.TempDir()}
	require.NoError(t, os.WriteFile(i.Pair(), append(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: cert.Raw}), text...), 0o600))
	return i
}

// A clock that is set, as that of a host which had none when it started, counts within a minute.
func TestARenewalThatIsDueByTheClockDoesNotWaitForATimer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var set atomic.Int64
		now := func() time.Time { return time.Now().Add(time.Duration(set.Load())).Round(0) }
		asked := make(chan struct{}, 100)
		r := NewRenewer(RenewOptions{
			Identity: newTestIdentity(t, now(), 90*24*time.Hour), Node: "n1", Log: zerolog.Nop(), Now: now,
			Publish: func(_ string, _ []byte, done func(error)) { asked <- struct{}{}; done(errors.New("no hub")) },
		})
		ctx, stop := context.WithCancel(t.Context())
		defer stop()
		go r.Run(ctx)
		time.Sleep(7 * time.Minute) // of a clock that does not make anybody wait
		require.Empty(t, asked)
		set.Store(int64(80 * 24 * time.Hour))
		time.Sleep(time.Minute) // as above
		synctest.Wait()
		require.NotEmpty(t, asked)
	})
}

// What was done by mistake can be undone for a day, and no longer.
func TestKeysThatWereMovedAsideAreDeletedAfterADay(t *testing.T) {
	dir, now := t.TempDir(), time.Now()
	require.NoError(t, DeleteDecommissioned(dir, now), "there are none")
	require.NoError(t, os.MkdirAll(filepath.Join(dir, DirName, "abc"), 0o700))
	require.NoError(t, os.WriteFile(filepath.Join(dir, DirName, "abc", pairName), []byte("a key"), 0o600))
	require.NoError(t, Decommission(dir, "it was decommissioned", now))
	require.NoDirExists(t, filepath.Join(dir, DirName))
	aside := filepath.Join(dir, decommissionedDirName)
	require.NoError(t, DeleteDecommissioned(dir, now.Add(24*time.Hour-time.Minute)))
	require.FileExists(t, filepath.Join(aside, "abc", pairName))
	require.NoError(t, DeleteDecommissioned(dir, now.Add(24*time.Hour)))
	require.NoDirExists(t, aside)
	why, err := DecommissionNote(dir)
	require.NoError(t, err)
	require.Contains(t, why, "it was decommissioned", "that stays until it joins again")
}
