// SPDX-License-Identifier: Apache-2.0

package enroll

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"

	"github.com/edgebus/edgebus/broker"
	"github.com/edgebus/edgebus/cloud/store"
	"github.com/edgebus/edgebus/cloud/store/disk"
	"github.com/edgebus/edgebus/topics/resource"
)

// clock is a clock that is set by the test.
type clock struct {
	mu sync.Mutex
	at time.Time
}

func (c *clock) now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.at
}

func (c *clock) pass(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.at = c.at.Add(d)
}

func openTestAuthority(t *testing.T, dir string, c *clock, change ...func(*AuthorityOptions)) *Authority {
	t.Helper()
	o := AuthorityOptions{Dir: dir, Names: []string{"hub.example.org:9999", "192.0.2.1"}, NodeValidity: 90 * 24 * time.Hour, Log: zerolog.Nop(), Now: c.now}
	for _, f := range change {
		f(&o)
	}
	a, err := OpenAuthority(o)
	require.NoError(t, err)
	return a
}

func servedCertificate(t *testing.T, a *Authority) *x509.Certificate {
	t.Helper()
	c, err := a.TLS(nil).GetConfigForClient(&tls.ClientHelloInfo{})
	require.NoError(t, err)
	leaf, err := x509.ParseCertificate(c.Certificates[0].Certificate[0])
	require.NoError(t, err)
	return leaf
}

func signedCertificate(t *testing.T, a *Authority, node string) *x509.Certificate {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	cert, err := a.Sign(node, key.Public(), a.revoked.at(node))
	require.NoError(t, err)
	return cert
}

func TestTheHubsCertificateIsRenewedBeforeItEnds(t *testing.T) {
	c := &clock{at: time.Date(2026, 11, 22, 12, 0, 0, 0, time.UTC)}
	a := openTestAuthority(t, t.TempDir(), c)
	first := servedCertificate(t, a)
	require.Equal(t, []string{"hub.example.org", "localhost"}, first.DNSNames)
	require.NoError(t, first.VerifyHostname("192.0.2.1"))
	require.NoError(t, first.VerifyHostname("127.0.0.1"))
	c.pass(30 * 24 * time.Hour)
	require.True(t, first.Equal(servedCertificate(t, a)), "not before two thirds of its life")
	c.pass(31 * 24 * time.Hour)
	next := servedCertificate(t, a)
	require.False(t, first.Equal(next))
	require.True(t, next.NotAfter.After(first.NotAfter))
}

// A clock that is set while the hub runs counts at once, in both directions.
func TestACertificateIsMadeAnewWhenTheClockIsSet(t *testing.T) {
	c := &clock{at: time.Now()} // with a monotonic reading, as of a running program
	a := openTestAuthority(t, t.TempDir(), c)
	for _, set := range []time.Duration{400 * 24 * time.Hour, -300 * 24 * time.Hour, 0, 100 * 24 * time.Hour} {
		c.pass(set)
		cert, now := servedCertificate(t, a), c.now().Round(0)
		require.True(t, cert.NotBefore.Before(now) && cert.NotAfter.After(now), "after %s it is good from %s to %s", set, cert.NotBefore, cert.NotAfter)
		require.Equal(t, a.server.renew, a.server.renew.Round(0), "a monotonic reading doesn't see that the clock is set")
	}
}

func TestAnAuthorityThatIsNotValidYetIsNamed(t *testing.T) {
	c, dir := &clock{at: time.Now()}, t.TempDir()
	openTestAuthority(t, dir, c)
	c.pass(-48 * time.Hour)
	var log bytes.Buffer
	openTestAuthority(t, dir, c, func(o *AuthorityOptions) { o.Log = zerolog.New(&log) })
	require.Contains(t, log.String(), "the hub's authority is not valid yet")
}

func TestAnAuthorityOutlivesARestart(t *testing.T) {
	c, dir := &clock{at: time.Now()}, t.TempDir()
	pin := openTestAuthority(t, dir, c).Pin()
	require.Equal(t, pin, openTestAuthority(t, dir, c).Pin())
	key := filepath.Join(dir, DirName, "1.key")
	require.NoError(t, os.Chmod(key, 0o644))
	_, err := OpenAuthority(AuthorityOptions{Dir: dir, Log: zerolog.Nop()})
	require.ErrorContains(t, err, "can be read by others")
	require.NoError(t, os.Remove(key))
	_, err = OpenAuthority(AuthorityOptions{Dir: dir, Log: zerolog.Nop()})
	require.ErrorContains(t, err, "authority/1.key can't be used", "another one is not made in its place")
}

func TestAnAuthorityOfTheConfiguration(t *testing.T) {
	c, dir := &clock{at: time.Now()}, t.TempDir()
	pin := openTestAuthority(t, dir, c).Pin()
	file := filepath.Join(dir, DirName, "1")
	given := openTestAuthority(t, t.TempDir(), c, func(o *AuthorityOptions) { o.Cert, o.Key = file+".pem", file+".key" })
	require.Equal(t, pin, given.Pin())
	require.ErrorIs(t, given.Rotate(time.Hour), resource.Conflict)
	other := t.TempDir()
	openTestAuthority(t, other, c)
	_, err := OpenAuthority(AuthorityOptions{Dir: t.TempDir(), Cert: file + ".pem", Key: filepath.Join(other, DirName, "1.key"), Log: zerolog.Nop()})
	require.ErrorContains(t, err, "don't belong together")
}

func TestARotationOverlaps(t *testing.T) {
	c, dir := &clock{at: time.Now()}, t.TempDir()
	a := openTestAuthority(t, dir, c)
	pin := a.Pin()
	require.NoError(t, a.Rotate(time.Hour))
	require.Equal(t, pin, a.Pin(), "the old one signs for the hub")
	require.Contains(t, signedCertificate(t, a, "n1").Issuer.CommonName, "authority 2")
	require.ErrorIs(t, a.Rotate(time.Hour), resource.Conflict)
	a = openTestAuthority(t, dir, c)
	require.Len(t, a.Status(), 2)
	c.pass(time.Hour)
	require.Len(t, a.Status(), 1)
	require.NotEqual(t, pin, a.Pin())
	require.Contains(t, servedCertificate(t, a).Issuer.CommonName, "authority 2")
}

func TestRevocationIsByTheTimeOfMaking(t *testing.T) {
	c, dir := &clock{at: time.Now()}, t.TempDir()
	a := openTestAuthority(t, dir, c)
	before, other := signedCertificate(t, a, "n1"), signedCertificate(t, a, "n2")
	require.NoError(t, a.revoked.add("n1", "boss", false))
	c.pass(-time.Hour) // the hub's clock is set back: what is signed now is later all the same
	after := signedCertificate(t, a, "n1")
	for _, r := range []*Revocations{a.revoked, openTestAuthority(t, dir, c).revoked} {
		require.Contains(t, r.Why("n1", before), "were revoked at")
		require.NotEmpty(t, r.Why("n1", nil))
		require.Empty(t, r.Why("n1", after))
		require.Empty(t, r.Why("n2", other))
	}
	require.NoError(t, a.revoked.add("n1", "boss", true))
	require.Contains(t, a.revoked.Why("n1", after), "this node was decommissioned")
}

func TestTheNoticeOfDecommissioningIsForTheCertificatesBeforeIt(t *testing.T) {
	c, dir := &clock{at: time.Now()}, t.TempDir()
	a := openTestAuthority(t, dir, c)
	s := New(Options{Authority: a})
	cert := signedCertificate(t, a, "n1")
	require.Empty(t, s.Notice(cert).Key)
	require.NoError(t, a.revoked.add("n1", "boss", false))
	require.Empty(t, s.Notice(cert).Key, "who was revoked may have been robbed, and keeps what it has")
	require.NoError(t, a.revoked.add("n1", "boss", true))
	require.NoError(t, a.Rotate(time.Hour)) // the node knows the old authority alone
	n := s.Notice(cert)
	require.Equal(t, resource.DecommissionProperty, n.Key)
	d, err := resource.ReadDecommissioning(n.Value, []*x509.Certificate{a.signers[0].cert})
	require.NoError(t, err)
	require.Equal(t, resource.Decommissioning{Node: "n1", Certificate: resource.Fingerprint(cert.Raw)}, d)
	_, err = resource.ReadDecommissioning(n.Value, []*x509.Certificate{a.signers[1].cert})
	require.ErrorIs(t, err, resource.Unauthorized)
	require.Empty(t, s.Notice(signedCertificate(t, a, "n1")).Key, "it has joined again")
	require.Empty(t, s.Notice(signedCertificate(t, a, "n2")).Key)
}

// Only who was sent the notice has been told: a client of HTTPS that is refused has not.
func TestARefusedRequestDoesNotTellANodeThatItWasDecommissioned(t *testing.T) {
	c := new(clock)
	a := openTestAuthority(t, t.TempDir(), c)
	s := New(Options{Authority: a, Log: zerolog.Nop()})
	cert := signedCertificate(t, a, "n1")
	require.NoError(t, a.revoked.add("n1", "boss", true))
	require.NotEmpty(t, s.Revoked("n1", cert))
	require.Equal(t, refusedNode{"n1", false}, <-s.refused)
	require.NotEmpty(t, s.Notice(cert).Key)
	require.Equal(t, refusedNode{"n1", true}, <-s.refused)
}

func TestAnAuthorityThatWasReplacedIsNotTrustedAgainAfterTheNextRotationAndARestart(t *testing.T) {
	c, dir := &clock{at: time.Now()}, t.TempDir()
	a := openTestAuthority(t, dir, c)
	for range 2 {
		require.NoError(t, a.Rotate(time.Hour))
		c.pass(time.Hour)
		require.Len(t, a.Status(), 1)
	}
	a = openTestAuthority(t, dir, c)
	require.Len(t, a.Status(), 1)
	require.Contains(t, servedCertificate(t, a).Issuer.CommonName, "authority 3")
}

func TestARevocationTakesCertificatesThatWereMadeWhileTheClockWasAhead(t *testing.T) {
	for name, restart := range map[string]bool{"running": false, "restarted": true} {
		t.Run(name, func(t *testing.T) {
			c, dir := &clock{at: time.Now().Add(30 * time.Minute)}, t.TempDir()
			a := openTestAuthority(t, dir, c)
			ahead := signedCertificate(t, a, "n1")
			c.pass(-30 * time.Minute) // the certificate is valid: it begins an hour before it was made
			if restart {
				a = openTestAuthority(t, dir, c)
			}
			require.NoError(t, a.revoked.add("n1", "", false))
			require.NotEmpty(t, a.revoked.Why("n1", ahead))
			require.Empty(t, a.revoked.Why("n1", signedCertificate(t, a, "n1")), "what is made after it is taken")
		})
	}
}

func TestANodeThatIsRevokedWhileItsRequestIsHandledGetsNoCertificate(t *testing.T) {
	a := openTestAuthority(t, t.TempDir(), &clock{at: time.Now()})
	known := a.revoked.at("n1")
	require.NoError(t, a.revoked.add("n1", "", false))
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	_, err = a.Sign("n1", key.Public(), known)
	require.ErrorIs(t, err, resource.Unauthorized)
}

func TestOnlyTheCertificateOfTheSignInIsRenewed(t *testing.T) {
	a := openTestAuthority(t, t.TempDir(), &clock{at: time.Now()})
	j := &joiner{o: &Options{Authority: a, Log: zerolog.Nop()}}
	cert := signedCertificate(t, a, "n1")
	csr := resource.CSR{PublicKey: cert.PublicKey}
	_, err := j.renew("n1", broker.Identity{CertExpires: cert.NotAfter}, csr)
	require.ErrorIs(t, err, resource.Forbidden, "it signed in with a password, and showed some certificate besides")
	_, err = j.renew("n1", broker.Identity{Certificate: cert}, csr)
	require.NoError(t, err)
	require.NoError(t, a.revoked.add("n1", "", false))
	_, err = j.renew("n1", broker.Identity{Certificate: cert}, csr)
	require.ErrorIs(t, err, resource.Unauthorized, "its connection has not ended yet, and the request was sent before")
}

func TestARestoreTakesOverWhatCameAfterTheBackup(t *testing.T) {
	c, dir := &clock{at: time.Now()}, t.TempDir()
	a := openTestAuthority(t, dir, c)
	cert := signedCertificate(t, a, "n1")
	backup := t.TempDir()
	require.NoError(t, os.CopyFS(filepath.Join(backup, DirName), os.DirFS(filepath.Join(dir, DirName))))
	require.NoError(t, a.revoked.add("n1", "", false))
	require.NoError(t, a.Rotate(time.Hour))
	require.NoError(t, MergeRestored(dir, backup))
	restored := openTestAuthority(t, backup, c)
	require.NotEmpty(t, restored.revoked.Why("n1", cert))
	require.Len(t, restored.Status(), 2)

	foreign := t.TempDir()
	require.NoError(t, openTestAuthority(t, foreign, c).revoked.add("n2", "", false))
	require.NoError(t, MergeRestored(foreign, backup))
	require.Empty(t, openTestAuthority(t, backup, c).revoked.Why("n2", nil), "another hub's data says nothing here")

	require.NoError(t, os.WriteFile(filepath.Join(backup, DirName, revokedName), []byte("{"), 0o600))
	_, err := OpenAuthority(AuthorityOptions{Dir: backup, Log: zerolog.Nop()})
	require.ErrorContains(t, err, "revoked.json can't be read", "it would let revoked nodes in")
}

// Whoever loses a part of the authority is told which, by the hub and by check, and nothing is made in its place. With the file back all
// is as before.
func TestAnAuthorityThatIsLostIsNotMadeAgain(t *testing.T) {
	c := &clock{at: time.Now()}
	for name, files := range map[string][]string{
		"before a rotation":     {"1.pem", "1.key", StateName, revokedName, issuedName, ""},
		"with a revocation":     {revokedName},
		"during a rotation":     {"1.pem", "1.key", "2.pem", "2.key", StateName, ""},
		"given by the settings": {revokedName, issuedName, ""},
	} {
		for _, file := range files {
			t.Run(name+" "+file, func(t *testing.T) {
				dir := t.TempDir()
				st, err := disk.Open(disk.Options{Path: filepath.Join(dir, "log")})
				require.NoError(t, err)
				defer func() { require.NoError(t, st.Close()) }()
				with := func(o *AuthorityOptions) {
					o.Reader, o.Writer = st, st
					if name == "given by the settings" {
						o.Cert, o.Key = filepath.Join(dir, "other", DirName, "1.pem"), filepath.Join(dir, "other", DirName, "1.key")
					}
				}
				openTestAuthority(t, filepath.Join(dir, "other"), c)
				a := openTestAuthority(t, dir, c, with)
				cert := signedCertificate(t, a, "n1")
				switch name {
				case "during a rotation":
					require.NoError(t, a.Rotate(time.Hour))
				case "with a revocation":
					require.NoError(t, a.revoked.add("n1", "", false))
				}
				has, err := CheckAuthority(dir, st)
				require.NoError(t, err)
				require.Contains(t, has, "revoked nodes")

				lost, aside := filepath.Join(dir, DirName, file), filepath.Join(dir, "aside")
				require.NoError(t, os.Rename(lost, aside))
				named := DirName + "/" + file
				o := AuthorityOptions{Dir: dir, Log: zerolog.Nop()}
				with(&o)
				for range 2 {
					_, err = OpenAuthority(o)
					require.ErrorContains(t, err, named)
					_, err = CheckAuthority(dir, st)
					require.ErrorContains(t, err, named)
				}
				if file == "" {
					require.NoError(t, os.Remove(lost)) // the hub has made the directory, and nothing in it
				}
				require.NoError(t, os.Rename(aside, lost))
				again := openTestAuthority(t, dir, c, with)
				require.Equal(t, a.Status(), again.Status())
				require.Equal(t, a.revoked.Why("n1", cert), again.revoked.Why("n1", cert))
			})
		}
	}
}

func TestAKeyIsNeverWrittenOver(t *testing.T) {
	c, dir := &clock{at: time.Now()}, t.TempDir()
	openTestAuthority(t, dir, c)
	key := filepath.Join(dir, DirName, "1.key")
	before, err := os.ReadFile(key)
	require.NoError(t, err)
	require.NoError(t, os.Remove(filepath.Join(dir, DirName, "1.pem"))) // as after a kill between the two, at the first start
	openTestAuthority(t, dir, c)
	after, err := os.ReadFile(key)
	require.NoError(t, err)
	require.Equal(t, before, after)
	require.NoError(t, os.Remove(filepath.Join(dir, DirName, "1.pem")))
	require.NoError(t, os.WriteFile(key, []byte("half"), 0o600))
	_, err = OpenAuthority(AuthorityOptions{Dir: dir, Log: zerolog.Nop()})
	require.ErrorContains(t, err, "authority/1.key")
}

// Whatever bit of a list of revocations is flipped, it is refused, and so is an older copy: either would let revoked nodes in. An older copy of
// authority.json would have an authority that was replaced trusted for ever.
func TestDamagedAndOlderFilesOfTheAuthorityAreRefused(t *testing.T) {
	st, err := disk.Open(disk.Options{Path: filepath.Join(t.TempDir(), "log")})
	require.NoError(t, err)
	t.Cleanup(func() { _ = st.Close() })
	dir, c := t.TempDir(), &clock{at: time.Now()}
	again := func() (*Authority, error) {
		return OpenAuthority(AuthorityOptions{Dir: dir, NodeValidity: time.Hour, Log: zerolog.Nop(), Now: c.now, Reader: st, Writer: st})
	}
	a, err := again()
	require.NoError(t, err)
	file := func(name string) string { return filepath.Join(dir, DirName, name) }
	read := func(name string) []byte {
		text, err := os.ReadFile(file(name))
		require.NoError(t, err)
		return text
	}
	require.NoError(t, a.revoked.add("n1", "", false))
	older := map[string][]byte{revokedName: read(revokedName), StateName: read(StateName)}
	require.NoError(t, a.revoked.add("n2", "", false))
	require.NoError(t, a.Rotate(time.Hour))

	for name, text := range older {
		now := read(name)
		require.NoError(t, os.WriteFile(file(name), text, 0o600))
		_, err := again()
		require.ErrorContains(t, err, DirName+"/"+name+" is an older copy")
		require.NoError(t, os.WriteFile(file(name), now, 0o600))
	}
	for _, name := range []string{revokedName, issuedName} {
		now := read(name)
		for i := range now {
			for _, bit := range []byte{1, 4, 64} {
				bad := bytes.Clone(now)
				bad[i] ^= bit
				require.NoError(t, os.WriteFile(file(name), bad, 0o600))
				b, err := again()
				if err != nil { // or the bit is one of white space
					require.ErrorContains(t, err, DirName+"/"+name+" can't be read: take it from a backup")
					continue
				}
				require.NotZero(t, b.revoked.at("n1"))
				require.NotZero(t, b.revoked.at("n2"))
				require.Equal(t, a.revoked.bound, b.revoked.bound)
			}
		}
		require.NoError(t, os.WriteFile(file(name), now, 0o600))
	}
	_, err = again()
	require.NoError(t, err)
}

// fullDisk is a store's writer whose disk has no room.
type fullDisk struct {
	store.Writer
	full bool
}

func (f *fullDisk) Update(ctx context.Context, o store.Object, expect uint64) (store.Object, error) {
	if f.full {
		return o, store.UnknownOutcome(syscall.ENOSPC)
	}
	return f.Writer.Update(ctx, o, expect)
}

// A hub whose record of the authority's files could not be written when a node was revoked starts on the disk that is still full, and what was
// revoked stays so. The next start with room writes the record.
func TestAHubStartsWithoutRoomForTheRecordOfItsAuthority(t *testing.T) {
	st, err := disk.Open(disk.Options{Path: filepath.Join(t.TempDir(), "log")})
	require.NoError(t, err)
	t.Cleanup(func() { _ = st.Close() })
	dir, c, w := t.TempDir(), &clock{at: time.Now()}, &fullDisk{Writer: st}
	again := func() *Authority {
		a, err := OpenAuthority(AuthorityOptions{Dir: dir, NodeValidity: time.Hour, Log: zerolog.Nop(), Now: c.now, Reader: st, Writer: w})
		require.NoError(t, err)
		return a
	}
	a := again()
	w.full = true
	require.NoError(t, a.revoked.add("n1", "", false))
	a = again()
	require.NotZero(t, a.revoked.at("n1"))
	w.full = false
	a = again()
	rec, _, err := readRecord(t.Context(), st)
	require.NoError(t, err)
	require.Equal(t, a.revoked.newest(), rec.LastRevocation)
}
