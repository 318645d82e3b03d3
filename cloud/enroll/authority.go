// SPDX-License-Identifier: Apache-2.0

package enroll

import (
	"bytes"
	"cmp"
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/binary"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"math/big"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/rs/zerolog"

	"github.com/edgebus/edgebus/broker"
	"github.com/edgebus/edgebus/broker/daemon/datadir"
	"github.com/edgebus/edgebus/cloud/store"
	"github.com/edgebus/edgebus/topics/resource"
)

// DirName is the authority's directory in the hub's data directory.
//
// It holds the certificates and keys of the hub's authorities as {number}.pem and {number}.key, authority.json, which
// says until when the older ones are trusted, revoked.json, and issued.json. The store has a record of them.
const DirName = "authority"

// StateName is the file that says until when the older authorities are trusted.
const StateName = "authority.json"

const (
	authorityValidity = 10 * 365 * 24 * time.Hour
	serverValidity    = 90 * 24 * time.Hour
	// clockSkew is how far in the past a certificate begins, so that a clock that is a little slow takes it.
	clockSkew = time.Hour
)

// AuthorityOptions are what an Authority is made from.
type AuthorityOptions struct {
	Dir string // the hub's data directory
	// Cert and Key name files that hold an authority given by configuration. Further certificates in Cert are trusted
	// as well. Empty: the hub makes an authority of its own.
	Cert, Key string
	// Names are those of the hub, for its server certificate: DNS names and IP addresses.
	Names []string
	// NodeValidity is how long a node's certificate is valid.
	NodeValidity time.Duration
	// Reader and Writer are the store that has a record of the authority's files; nil: there is none, and files that are missing are made.
	Reader store.Reader
	Writer store.Writer
	// Shared says that other hubs go on with the store when this one ends, without its files: it keeps each revocation, too.
	Shared bool
	// Announce is called with a new authority's files there, before it is used: other hubs have to have them, too. It may be nil.
	Announce func() error
	Log      zerolog.Logger
	Now      func() time.Time
}

// Authority signs the certificates of nodes and of the hub itself.
type Authority struct {
	o       AuthorityOptions
	revoked *Revocations
	storing sync.Mutex // held while a revocation is stored as a record

	mu           sync.Mutex
	signers      []signer // trusted, the oldest first; the last one signs nodes' certificates
	numbers      []int    // the numbers of all that the hub has made
	trustedUntil map[int]time.Time
	server       *serverPair
	configs      map[string]*tls.Config // made for the server certificate that there is
}

// signer is an authority's certificate and key.
type signer struct {
	number      int
	cert        *x509.Certificate
	key         crypto.Signer
	alsoTrusted []*x509.Certificate // trusted as well
}

type serverPair struct {
	certificate tls.Certificate
	// from and renew are when it is good to be shown. They have no monotonic reading: a clock that is set counts.
	from, renew time.Time
}

// authorityState is what authority.json holds.
type authorityState struct {
	// TrustedUntil says when an authority that was replaced is no longer trusted.
	TrustedUntil map[int]time.Time `json:"trustedUntil,omitempty"`
}

// OpenAuthority reads the authority of a data directory, or makes it for a hub that has none. One that is lost, whole or in part, is an
// error.
func OpenAuthority(o AuthorityOptions) (*Authority, error) {
	if o.Now == nil {
		o.Now = time.Now
	}
	a := &Authority{o: o, trustedUntil: map[int]time.Time{}, configs: map[string]*tls.Config{}}
	if err := os.MkdirAll(a.dir(), 0o700); err != nil {
		return nil, err
	}
	ctx := context.Background()
	rec, _, err := readRecord(ctx, o.Reader)
	if err == nil {
		err = rec.check(a.dir(), o.Cert != "")
	}
	if err != nil {
		return nil, err
	}
	if a.revoked, err = openRevocations(a.dir(), o.Now); err == nil {
		err = a.mergeStored(ctx, rec)
	}
	if err == nil {
		err = rec.checkRevoked(a.revoked.newest())
	}
	if err != nil {
		return nil, err
	}
	a.revoked.onRevoked = a.recordRevocation
	if o.Shared {
		a.revoked.onIssued = a.recordIssued
	}
	if o.Cert != "" {
		err = a.readGiven()
	} else {
		err = a.readOwn()
	}
	if err == nil {
		if err = a.writeRecord(ctx); rec != nil && datadir.IsFull(err) { // as when the list of revocations changed: the next start tries again
			a.warnUnrecorded(err)
			err = nil
		}
	}
	if err != nil {
		return nil, err
	}
	newest := a.signers[len(a.signers)-1].cert
	if now := a.wallClock(); now.Before(newest.NotBefore) || now.Before(a.signers[0].cert.NotBefore) {
		o.Log.Error().Time("begins", newest.NotBefore).Time("now", now).Msg("the hub's authority is not valid yet, so no node can connect: set this host's clock")
	}
	if left := newest.NotAfter.Sub(o.Now()); left < 180*24*time.Hour {
		o.Log.Warn().Time("expires", newest.NotAfter).Msg("the authority that signs nodes' certificates expires soon: run edgebus authority rotate, or replace the configured one")
	}
	return a, nil
}

// wallClock is the time as the host's clock shows it, without the monotonic reading by which a clock that was set would go unnoticed.
func (a *Authority) wallClock() time.Time { return a.o.Now().Round(0) }

func (a *Authority) dir() string { return filepath.Join(a.o.Dir, DirName) }

// readGiven reads the authority that the configuration names.
func (a *Authority) readGiven() error {
	certs, err := readCertificates(a.o.Cert)
	if err != nil {
		return fmt.Errorf("auth.authority.cert: %w", err)
	}
	s := signer{number: 1, cert: certs[0], alsoTrusted: certs[1:]}
	if s.key, err = readKey(a.o.Key); err != nil {
		return fmt.Errorf("auth.authority.key: %w", err)
	}
	if err := s.check(); err != nil {
		return fmt.Errorf("auth.authority: %w", err)
	}
	a.signers = []signer{s}
	return nil
}

// readOwn reads the authorities that the hub made, or makes the first.
func (a *Authority) readOwn() error {
	text, err := os.ReadFile(filepath.Join(a.dir(), StateName))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	var st authorityState
	switch {
	case err != nil:
		err = datadir.WriteFile(filepath.Join(a.dir(), StateName), []byte("{}\n"))
	default:
		if err = json.Unmarshal(text, &st); err != nil {
			err = fmt.Errorf("%s/%s is damaged: take it from a backup (%w)", DirName, StateName, err)
		}
	}
	if err != nil {
		return err
	}
	if a.signers, err = readSigners(a.dir()); err != nil {
		return err
	}
	for _, s := range a.signers {
		a.numbers = append(a.numbers, s.number)
		if until, ends := st.TrustedUntil[s.number]; ends {
			a.trustedUntil[s.number] = until
		}
	}
	if len(a.signers) == 0 {
		s, err := a.makeSigner(1)
		if err != nil {
			return err
		}
		a.signers, a.numbers = []signer{s}, []int{s.number}
		a.o.Log.Info().Str("fingerprint", resource.Fingerprint(s.cert.Raw)).Msg("the hub's authority was made")
	}
	for _, s := range a.signers[:len(a.signers)-1] {
		if _, ends := a.trustedUntil[s.number]; !ends { // it was written before the one that followed was made
			return fmt.Errorf("%s/%s is an older copy: it doesn't say until when authority %d is trusted, which was replaced; take it from a backup, or restore the whole backup", DirName, StateName, s.number)
		}
	}
	a.dropExpired()
	return nil
}

// recordRevocation writes into the record that there was another revocation. If it can't, an older copy of the list would not be noticed. With other hubs
// that is for them to know first.
func (a *Authority) recordRevocation(node string) error {
	if a.o.Shared {
		if err := a.storeRevocation(context.Background(), node); err != nil {
			return err
		}
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if err := a.writeRecord(context.Background()); err != nil {
		a.warnUnrecorded(err)
	}
	return nil
}

func (a *Authority) warnUnrecorded(err error) {
	a.o.Log.Warn().Err(err).Msg("the record of the authority's files could not be written: an older copy of " + revokedName + " would not be noticed")
}

// recordIssued has other hubs know up to when certificates were made, by this one's clock.
func (a *Authority) recordIssued() error {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.writeRecord(context.Background())
}

// readSigners reads the authorities that a hub has made, the oldest first.
func readSigners(dir string) (signers []signer, err error) {
	names, err := filepath.Glob(filepath.Join(dir, "*.pem"))
	if err != nil {
		return nil, err
	}
	for _, name := range names {
		number, err := strconv.Atoi(strings.TrimSuffix(filepath.Base(name), ".pem"))
		if err != nil {
			continue
		}
		s, err := readSigner(name, number)
		if err != nil {
			return nil, err
		}
		signers = append(signers, s)
	}
	slices.SortFunc(signers, func(x, y signer) int { return x.number - y.number })
	return signers, nil
}

func readSigner(name string, number int) (s signer, err error) {
	base := filepath.Join(DirName, filepath.Base(name))
	const advice = "take it from a backup, or restore the whole backup"
	certs, err := readCertificates(name)
	if err != nil {
		return s, fmt.Errorf("%s is damaged: %w; %s", base, err, advice)
	}
	file := strings.TrimSuffix(name, ".pem") + ".key"
	key, err := readKey(file)
	if err != nil {
		return s, fmt.Errorf("%s/%s can't be used: %w; %s", DirName, filepath.Base(file), err, advice)
	}
	s = signer{number: number, cert: certs[0], key: key}
	err = s.check()
	if err == nil {
		err = s.cert.CheckSignature(s.cert.SignatureAlgorithm, s.cert.RawTBSCertificate, s.cert.Signature)
	}
	if err != nil {
		return s, fmt.Errorf("%s, or its key %s/%s: %w; take both from a backup, or restore the whole backup", base, DirName, filepath.Base(file), err)
	}
	return s, nil
}

func (s signer) check() error {
	public, ok := s.cert.PublicKey.(interface{ Equal(crypto.PublicKey) bool })
	switch {
	case !ok || !public.Equal(s.key.Public()):
		return errors.New("the certificate and the key don't belong together")
	case !s.cert.IsCA:
		return errors.New("the certificate is not one of an authority (CA:TRUE)")
	case s.cert.KeyUsage != 0 && s.cert.KeyUsage&x509.KeyUsageCertSign == 0:
		return errors.New("the certificate may not sign others (keyCertSign)")
	}
	return nil
}

func readCertificates(name string) (certs []*x509.Certificate, err error) {
	text, err := os.ReadFile(name)
	if err != nil {
		return nil, err
	}
	for block, rest := pem.Decode(text); block != nil; block, rest = pem.Decode(rest) {
		if block.Type != "CERTIFICATE" {
			continue
		}
		cert, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			return nil, err
		}
		certs = append(certs, cert)
	}
	if len(certs) == 0 {
		return nil, fmt.Errorf("%s holds no certificate in PEM", filepath.Base(name))
	}
	return certs, nil
}

func readKey(name string) (crypto.Signer, error) {
	info, err := os.Stat(name)
	if err != nil {
		return nil, err
	}
	if info.Mode().Perm()&0o077 != 0 {
		return nil, fmt.Errorf("%s can be read by others, with the mode %04o: chmod 600 it", filepath.Base(name), info.Mode().Perm())
	}
	text, err := os.ReadFile(name)
	if err != nil {
		return nil, err
	}
	for block, rest := pem.Decode(text); block != nil; block, rest = pem.Decode(rest) {
		if key, err := x509.ParsePKCS8PrivateKey(block.Bytes); err == nil {
			if s, ok := key.(crypto.Signer); ok {
				return s, nil
			}
		}
		if key, err := x509.ParseECPrivateKey(block.Bytes); err == nil {
			return key, nil
		}
		if key, err := x509.ParsePKCS1PrivateKey(block.Bytes); err == nil {
			return key, nil
		}
	}
	return nil, fmt.Errorf("%s holds no private key in PEM", filepath.Base(name))
}

// makeSigner makes an authority and its files, the key first, because a certificate without its key is useless. A key that is there already
// stays, and gets the certificate: it is of an authority that was not made to the end.
func (a *Authority) makeSigner(number int) (s signer, err error) {
	base := filepath.Join(a.dir(), strconv.Itoa(number))
	key, err := readKey(base + ".key")
	if errors.Is(err, fs.ErrNotExist) {
		key, err = makeKey(base + ".key")
	}
	if err != nil {
		return s, fmt.Errorf("%s/%d.key: %w", DirName, number, err)
	}
	now := a.o.Now()
	template := &x509.Certificate{
		SerialNumber: serialAt(now.UnixMilli()), NotBefore: now.Add(-clockSkew).UTC(), NotAfter: now.Add(authorityValidity).UTC(),
		Subject: pkix.Name{CommonName: fmt.Sprintf("Edgebus authority %d of %s", number, hostName())},
		IsCA:    true, BasicConstraintsValid: true, MaxPathLenZero: true, KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageCRLSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return s, err
	}
	if err := datadir.WriteFile(base+".pem", encodeCertificates(der)); err != nil {
		return s, err
	}
	cert, err := x509.ParseCertificate(der)
	return signer{number: number, cert: cert, key: key}, err
}

// makeKey makes a key and its file.
func makeKey(file string) (crypto.Signer, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	encoded, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, err
	}
	return key, datadir.WriteFile(file, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: encoded}))
}

func encodeCertificates(ders ...[]byte) []byte {
	var b bytes.Buffer
	for _, der := range ders {
		b.Write(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}))
	}
	return b.Bytes()
}

// serialAt returns a serial number with the time at which the certificate was made, which revocation compares: 64 bits of
// milliseconds since 1970, and 64 random bits.
func serialAt(ms int64) *big.Int {
	var raw [16]byte
	binary.BigEndian.PutUint64(raw[:8], uint64(ms))
	_, _ = rand.Read(raw[8:]) // crypto/rand never fails
	return new(big.Int).SetBytes(raw[:])
}

// issuedAt is when a node's certificate was made, in ms; ok is false for one that no hub has made.
func issuedAt(cert *x509.Certificate) (ms int64, ok bool) {
	if !broker.IsNodeCertificate(cert) || cert.SerialNumber.BitLen() > 127 {
		return 0, false
	}
	return new(big.Int).Rsh(cert.SerialNumber, 64).Int64(), true
}

// Sign makes a node's certificate for a public key. revoked is the node's revocation (Revocations.at) that was known when
// it was decided that the node gets one: if it was revoked since then, it gets none. of says which Node it is for: see nodeURI.
func (a *Authority) Sign(node string, public crypto.PublicKey, revoked int64, of ...*url.URL) (*x509.Certificate, error) {
	ms, err := a.revoked.issue(node, revoked)
	if err != nil {
		return nil, err
	}
	return a.sign(ms, pkix.Name{CommonName: node, OrganizationalUnit: []string{broker.NodeUnit}}, public, a.o.NodeValidity, of...)
}

// SignEnroller makes the certificate of an enroller for a public key.
func (a *Authority) SignEnroller(name string, public crypto.PublicKey, validity time.Duration) (*x509.Certificate, error) {
	return a.sign(a.o.Now().UnixMilli(), pkix.Name{CommonName: name, OrganizationalUnit: []string{broker.EnrollerUnit}}, public, validity)
}

func (a *Authority) sign(ms int64, subject pkix.Name, public crypto.PublicKey, validity time.Duration, of ...*url.URL) (*x509.Certificate, error) {
	a.mu.Lock()
	s := a.signers[len(a.signers)-1]
	a.mu.Unlock()
	now := a.o.Now()
	template := &x509.Certificate{
		SerialNumber: serialAt(ms), NotBefore: now.Add(-clockSkew).UTC(), NotAfter: earlierTime(now.Add(validity), s.cert.NotAfter).UTC(),
		Subject:  subject,
		URIs:     of,
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}, BasicConstraintsValid: true,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, s.cert, public, s.key)
	if err != nil {
		return nil, err
	}
	return x509.ParseCertificate(der)
}

func earlierTime(a, b time.Time) time.Time {
	if b.Before(a) {
		return b
	}
	return a
}

// Certificates are those of all trusted authorities, in PEM, the one that signs the hub's own certificate first.
func (a *Authority) Certificates() []byte {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.dropExpired()
	return encodeCertificates(a.trusted()...)
}

// Pin is the SHA-256 of the authority that signs the hub's own certificate: what a token tells a node.
func (a *Authority) Pin() [sha256.Size]byte {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.dropExpired()
	return sha256.Sum256(a.signers[0].cert.Raw)
}

func (a *Authority) trusted() (ders [][]byte) {
	for _, s := range a.signers {
		ders = append(ders, s.cert.Raw)
		for _, c := range s.alsoTrusted {
			ders = append(ders, c.Raw)
		}
	}
	return ders
}

// dropExpired removes authorities that are no longer trusted. The caller holds the lock, or has not shared the Authority yet.
func (a *Authority) dropExpired() {
	now := a.wallClock()
	for len(a.signers) > 1 {
		until, ends := a.trustedUntil[a.signers[0].number]
		if !ends || now.Before(until) {
			return
		}
		a.o.Log.Info().Str("fingerprint", resource.Fingerprint(a.signers[0].cert.Raw)).Msg("an authority that was replaced is no longer trusted")
		a.signers = a.signers[1:]
		a.server = nil
		clear(a.configs)
	}
}

// Rotate makes a new authority, which signs nodes' certificates from now on. The old ones are trusted for as long as overlap says,
// and the hub's own certificate is signed by the oldest: a node that renews its certificate in the meantime learns the new
// authority before it needs it.
func (a *Authority) Rotate(overlap time.Duration) error {
	if a.o.Cert != "" {
		return resource.Errorf(resource.Conflict, "", "the authority is the one of the configuration (auth.authority.cert): put the new certificate before the old one in that file, replace the key, and restart the hub")
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.dropExpired()
	if len(a.signers) > 1 {
		return resource.Errorf(resource.Conflict, "", "the last rotation is not over: the authority that it replaced is trusted until %s", resource.FormatTime(a.trustedUntil[a.signers[0].number]))
	}
	old := a.signers[0].number
	until := a.wallClock().Add(overlap).UTC()
	// Authorities that were replaced before stay in it: their files still exist, and would be trusted again after a restart.
	ends := maps.Clone(a.trustedUntil)
	ends[old] = until
	text, err := json.MarshalIndent(authorityState{TrustedUntil: ends}, "", "  ")
	if err != nil {
		return err
	}
	// The state is written first: without a newer authority it has no effect.
	if err := datadir.WriteFile(filepath.Join(a.dir(), StateName), text); err != nil {
		return err
	}
	s, err := a.makeSigner(old + 1)
	if err == nil && a.o.Announce != nil {
		err = a.o.Announce()
	}
	if err != nil {
		return err
	}
	a.signers, a.numbers, a.trustedUntil = append(a.signers, s), append(a.numbers, s.number), ends
	clear(a.configs)
	a.o.Log.Info().Str("fingerprint", resource.Fingerprint(s.cert.Raw)).Time("overlap_until", until).Msg("the authority was rotated")
	return a.writeRecord(context.Background())
}

// AuthorityStatus is one authority as it is shown.
type AuthorityStatus struct {
	Fingerprint string `json:"fingerprint"`
	Expires     string `json:"expires"`
	// Until is when an authority that was replaced is no longer trusted.
	Until string `json:"until,omitempty"`
	// SignsNodes and SignsHub say what it signs now.
	SignsNodes  bool   `json:"signsNodes"`
	SignsHub    bool   `json:"signsHub"`
	Certificate string `json:"certificate"`
}

// Status lists the trusted authorities, the oldest first.
func (a *Authority) Status() (list []AuthorityStatus) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.dropExpired()
	for i, s := range a.signers {
		st := AuthorityStatus{
			Fingerprint: resource.Fingerprint(s.cert.Raw), Expires: resource.FormatTime(s.cert.NotAfter),
			SignsNodes: i == len(a.signers)-1, SignsHub: i == 0, Certificate: string(encodeCertificates(s.cert.Raw)),
		}
		if until, ends := a.trustedUntil[s.number]; ends {
			st.Until = resource.FormatTime(until)
		}
		list = append(list, st)
	}
	return list
}

// TLS returns a listener's configuration with the hub's certificate, which is renewed automatically. Clients may present a
// certificate signed by one of the hub's authorities, or by one in clientCA (PEM, or nil).
func (a *Authority) TLS(clientCA []byte, protocols ...string) *tls.Config {
	at := strings.Join(protocols, ",")
	return &tls.Config{MinVersion: tls.VersionTLS12, GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) {
		return a.config(at, clientCA, protocols)
	}}
}

// config returns the configuration for new handshakes. It is the same object until a certificate changes, so that clients can
// resume their TLS sessions.
func (a *Authority) config(at string, clientCA []byte, protocols []string) (*tls.Config, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.dropExpired()
	if now := a.wallClock(); a.server == nil || now.Before(a.server.from) || !now.Before(a.server.renew) {
		if err := a.signServer(); err != nil {
			return nil, err
		}
		clear(a.configs)
	}
	if c := a.configs[at]; c != nil {
		return c, nil
	}
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(encodeCertificates(a.trusted()...))
	pool.AppendCertsFromPEM(clientCA)
	c := &tls.Config{
		MinVersion: tls.VersionTLS12, Certificates: []tls.Certificate{a.server.certificate}, NextProtos: protocols,
		ClientAuth: tls.VerifyClientCertIfGiven, ClientCAs: pool, Time: a.o.Now,
	}
	a.configs[at] = c
	return c, nil
}

// signServer makes the hub's own certificate. It is kept in memory only: clients trust the authority, so a new one at each start
// has no effect on them.
func (a *Authority) signServer() error {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	s, now := a.signers[0], a.wallClock()
	template := &x509.Certificate{
		SerialNumber: serialAt(now.UnixMilli()), NotBefore: now.Add(-clockSkew).UTC(), NotAfter: earlierTime(now.Add(serverValidity), s.cert.NotAfter).UTC(),
		Subject:  pkix.Name{CommonName: "Edgebus hub"},
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}, BasicConstraintsValid: true,
	}
	template.DNSNames, template.IPAddresses = serverNames(a.o.Names)
	der, err := x509.CreateCertificate(rand.Reader, template, s.cert, key.Public(), s.key)
	if err != nil {
		return err
	}
	chain := [][]byte{der, s.cert.Raw}
	for _, c := range s.alsoTrusted {
		chain = append(chain, c.Raw)
	}
	a.server = &serverPair{certificate: tls.Certificate{Certificate: chain, PrivateKey: key}, from: template.NotBefore, renew: now.Add(template.NotAfter.Sub(now) * 2 / 3)}
	return nil
}

// serverNames returns the names for the hub's certificate: the configured ones, or else those of the host, and those of the loopback
// interface.
func serverNames(given []string) (names []string, ips []net.IP) {
	if len(given) == 0 {
		given = append(given, hostName())
		addrs, _ := net.InterfaceAddrs() // without them there are the names
		for _, addr := range addrs {
			if ip, ok := addr.(*net.IPNet); ok && !ip.IP.IsLinkLocalUnicast() {
				given = append(given, ip.IP.String())
			}
		}
	}
	for _, name := range append(slices.Clone(given), "localhost", "127.0.0.1", "::1") {
		if host, _, err := net.SplitHostPort(name); err == nil {
			name = host
		}
		if ip := net.ParseIP(name); ip != nil {
			ips = append(ips, ip)
		} else {
			names = append(names, name)
		}
	}
	return names, ips
}

func hostName() string {
	name, _ := os.Hostname() // without one the address of this host is as good
	return strings.ToLower(cmp.Or(name, "localhost"))
}

// CheckAuthority reads the authority in a data directory that no program uses, and changes nothing. r is the store in that directory; there is no
// authority if has is empty.
func CheckAuthority(dataDir string, r store.Reader) (has string, err error) {
	dir := filepath.Join(dataDir, DirName)
	rec, _, err := readRecord(context.Background(), r)
	_, gone := os.Stat(dir)
	if err != nil || rec == nil && gone != nil {
		return "", err
	}
	// One of the configuration, which isn't known here, takes the place of the hub's own: then that need not be there.
	signers, err := readSigners(dir)
	if err == nil {
		err = rec.check(dir, false)
	}
	if err != nil {
		return "", err
	}
	for _, s := range signers {
		has += resource.Fingerprint(s.cert.Raw) + ", "
	}
	list, err := readRevocations(filepath.Join(dir, revokedName))
	return fmt.Sprintf("%s%d revoked nodes", has, len(list)), err
}

// TakeAuthority copies the authority of a data directory that no program uses into another, which has none, and says what it copied. The
// files are those of any version so far.
func TakeAuthority(from, to string) (said string, err error) {
	source, target := filepath.Join(from, DirName), filepath.Join(to, DirName)
	if _, err := os.Stat(target); err == nil {
		return "", fmt.Errorf("%s is there already: nodes may know the hub by it; name a directory without one", target)
	}
	for _, name := range []string{revokedName, issuedName} { // every hub has them, also one whose authority is in its settings
		if err := checkFile(source, name, "it belongs to the authority"); err != nil {
			return "", fmt.Errorf("%s: %w", from, err)
		}
	}
	signers, err := readSigners(source)
	if err != nil {
		return "", fmt.Errorf("%s: %w", from, err)
	}
	revoked, err := readRevocations(filepath.Join(source, revokedName))
	if err != nil {
		return "", fmt.Errorf("%s: %w", from, err)
	}
	files, err := os.ReadDir(source)
	if err != nil {
		return "", err
	}
	part := target + ".part" // a copy that was interrupted is no authority
	if err := errors.Join(os.RemoveAll(part), os.MkdirAll(part, 0o700)); err != nil {
		return "", err
	}
	for _, f := range files {
		if !f.Type().IsRegular() {
			continue
		}
		text, err := os.ReadFile(filepath.Join(source, f.Name()))
		if err == nil {
			err = datadir.WriteFile(filepath.Join(part, f.Name()), text)
		}
		if err != nil {
			return "", err
		}
	}
	if err := errors.Join(os.Rename(part, target), datadir.SyncDir(to)); err != nil {
		return "", err
	}
	for _, s := range signers {
		said += resource.Fingerprint(s.cert.Raw) + ", "
	}
	return fmt.Sprintf("%s has the authority of %s: %s%d revoked nodes", to, from, said, len(revoked)), nil
}
