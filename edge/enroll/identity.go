// SPDX-License-Identifier: Apache-2.0

// Package enroll is a node's side of joining a hub: it makes the node's key, gets its certificate, renews it before it
// ends, and forgets both when the hub has decommissioned the node.
//
// The private key never leaves the node, and never is in a message or a log. Nothing of a hub is trusted before its
// authority was compared with what the token or the person said.
package enroll

import (
	"bytes"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/hex"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/edgebus/edgebus/broker/daemon/datadir"
	"github.com/edgebus/edgebus/topics/resource"
)

// DirName is the directory of a node's identities in the core's data directory. Each hub has a directory of its own in
// it, named after its authority: so joining another hub leaves what there is as it is until the settings name the new one.
const DirName = "identity"

// The files of an identity. Certificate and key are one file, so that a renewal replaces both at once.
const (
	pairName      = "node.pem"
	rootsName     = "ca.pem"
	pendingName   = "pending.key" // the key of a request that has no answer yet
	usedTokenName = "token.sha256"
)

// decommissionedName is the file in the data directory that says that the hub has decommissioned the node.
const decommissionedName = "decommissioned"

// Identity is where a node's certificate and key are, and what they belong to.
type Identity struct {
	Dir string // below DirName
}

// Pair is the file of the certificate and the key.
func (i Identity) Pair() string { return filepath.Join(i.Dir, pairName) }

// Roots is the file of the certificates of the hub's authorities.
func (i Identity) Roots() string { return filepath.Join(i.Dir, rootsName) }

func identityOf(dataDir string, pin [sha256.Size]byte) Identity {
	return Identity{filepath.Join(dataDir, DirName, hex.EncodeToString(pin[:8]))}
}

// OwnsCertificate reports whether a certificate's file is an identity that the node got by joining, and so renews.
func OwnsCertificate(dataDir, file string) bool {
	rel, err := filepath.Rel(filepath.Join(dataDir, DirName), file)
	return file != "" && err == nil && filepath.IsLocal(rel)
}

// newKey is a private key with its PEM.
func newKey() (key *ecdsa.PrivateKey, text []byte, err error) {
	if key, err = ecdsa.GenerateKey(elliptic.P256(), rand.Reader); err != nil {
		return nil, nil, err
	}
	der, err := x509.MarshalPKCS8PrivateKey(key)
	return key, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}), err
}

func parseKey(text []byte) (*ecdsa.PrivateKey, error) {
	block, _ := pem.Decode(text)
	if block == nil {
		return nil, errors.New("holds no key in PEM")
	}
	key, err := x509.ParsePKCS8PrivateKey(block.Bytes)
	if err != nil {
		return nil, err
	}
	ec, ok := key.(*ecdsa.PrivateKey)
	if !ok {
		return nil, fmt.Errorf("holds a %T", key)
	}
	return ec, nil
}

// certificateRequest is the node's request for a certificate, in PEM.
func certificateRequest(node string, key crypto.Signer) (string, error) {
	der, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{Subject: pkix.Name{CommonName: node}}, key)
	return string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der})), err
}

// keyFingerprint is the SHA-256 of a public key: what people compare before they approve a request.
func keyFingerprint(key crypto.Signer) (string, error) {
	der, err := x509.MarshalPKIXPublicKey(key.Public())
	sum := sha256.Sum256(der)
	return hex.EncodeToString(sum[:]), err
}

// issuedIdentity is what a hub's answer holds, once it was checked: the pair for a file, and the authorities.
type issuedIdentity struct {
	pair, roots []byte
	cert        *x509.Certificate
}

// checkAnswer takes a hub's answer apart. The hub is trusted by now, but its answer may be damaged, or be for another node.
func checkAnswer(a resource.JoinAnswer, node string, key *ecdsa.PrivateKey, keyText []byte) (i issuedIdentity, err error) {
	block, _ := pem.Decode([]byte(a.Certificate))
	if block == nil {
		return i, errors.New("the hub's answer holds no certificate")
	}
	if i.cert, err = x509.ParseCertificate(block.Bytes); err != nil {
		return i, fmt.Errorf("the certificate in the hub's answer: %w", err)
	}
	roots := x509.NewCertPool()
	switch {
	case !roots.AppendCertsFromPEM([]byte(a.Authorities)):
		return i, errors.New("the hub's answer holds no authority")
	case !key.PublicKey.Equal(i.cert.PublicKey):
		return i, errors.New("the certificate in the hub's answer is for another key")
	case i.cert.Subject.CommonName != node:
		return i, fmt.Errorf("the certificate in the hub's answer is for %.100q, and this node is %s", i.cert.Subject.CommonName, node)
	}
	// As of when the hub made it: whether the clock here is right is for the connection to say.
	_, err = i.cert.Verify(x509.VerifyOptions{Roots: roots, CurrentTime: resource.IssuedAt(i.cert), KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}})
	if err != nil {
		return i, fmt.Errorf("the certificate in the hub's answer is not signed by the authority in it: %w", err)
	}
	i.pair = append(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: i.cert.Raw}), keyText...)
	i.roots = []byte(a.Authorities)
	return i, nil
}

// write puts an identity into its files, the authorities first: with the old certificate they are as good.
func (i issuedIdentity) write(into Identity) error {
	return errors.Join(datadir.WriteFile(into.Roots(), i.roots), datadir.WriteFile(into.Pair(), i.pair))
}

// read is the certificate of an identity that there is.
func (i Identity) read() (*x509.Certificate, error) {
	pair, err := tls.LoadX509KeyPair(i.Pair(), i.Pair())
	if err != nil {
		return nil, err
	}
	return x509.ParseCertificate(pair.Certificate[0])
}

// decommissionedDirName is where the identities of a node that was decommissioned are moved, for decommissionedFor: what was done by mistake can be undone.
const (
	decommissionedDirName = DirName + ".decommissioned"
	decommissionedFor     = 24 * time.Hour
)

// VerifyDecommission returns why a hub's notice says that this node was decommissioned. The notice must be signed by an authority in the file
// roots, and be for this node and the certificate that it presented.
func VerifyDecommission(notice, roots, node string, cert *x509.Certificate) (why string, err error) {
	text, err := os.ReadFile(roots)
	if err != nil {
		return "", err
	}
	var authorities []*x509.Certificate
	for block, rest := pem.Decode(text); block != nil; block, rest = pem.Decode(rest) {
		if a, err := x509.ParseCertificate(block.Bytes); err == nil {
			authorities = append(authorities, a)
		}
	}
	d, err := resource.ReadDecommissioning(notice, authorities)
	switch {
	case err != nil:
		return "", err
	case d.Node != node:
		return "", fmt.Errorf("the notice of decommissioning is for %.100q, and this node is %s", d.Node, node)
	case cert == nil || d.Certificate != resource.Fingerprint(cert.Raw):
		return "", errors.New("the notice of decommissioning is for another certificate than this node has now")
	}
	return fmt.Sprintf("the hub's authority says that %s was decommissioned", node), nil
}

// Decommission notes that a node was decommissioned, and why, and moves all its identities aside.
func Decommission(dataDir, why string, now time.Time) error {
	text := fmt.Sprintf("%s %s\n", resource.FormatTime(now), why)
	if err := datadir.WriteFile(filepath.Join(dataDir, decommissionedName), []byte(text)); err != nil {
		return err
	}
	aside := filepath.Join(dataDir, decommissionedDirName)
	if err := os.RemoveAll(aside); err != nil {
		return err
	}
	err := os.Rename(filepath.Join(dataDir, DirName), aside)
	if errors.Is(err, fs.ErrNotExist) {
		return nil // its keys were not made by joining
	}
	return errors.Join(err, os.Chtimes(aside, now, now))
}

// DeleteDecommissioned deletes identities that were moved aside long enough ago.
func DeleteDecommissioned(dataDir string, now time.Time) error {
	aside := filepath.Join(dataDir, decommissionedDirName)
	info, err := os.Stat(aside)
	if errors.Is(err, fs.ErrNotExist) || err == nil && now.Sub(info.ModTime()) < decommissionedFor {
		return nil
	}
	return errors.Join(err, os.RemoveAll(aside))
}

// DecommissionNote says when and why the node was decommissioned; empty: it was not, or has joined again.
func DecommissionNote(dataDir string) (string, error) {
	text, err := os.ReadFile(filepath.Join(dataDir, decommissionedName))
	if errors.Is(err, fs.ErrNotExist) {
		return "", nil
	}
	return string(bytes.TrimSpace(text)), err
}

// ClearDecommission says that a node that was decommissioned has joined again.
func ClearDecommission(dataDir string) error {
	err := os.Remove(filepath.Join(dataDir, decommissionedName))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// Labels reads key=value texts, and those that take a value from the system information.
func Labels(given, from []string, info *resource.SystemInfo) map[string]string {
	labels := map[string]string{}
	for _, text := range from {
		if key, field, ok := strings.Cut(text, "="); ok && info != nil && info.Field(field) != "" {
			labels[key] = resource.LabelValue(info.Field(field))
		}
	}
	for _, text := range given {
		if key, value, ok := strings.Cut(text, "="); ok {
			labels[key] = value
		}
	}
	if len(labels) == 0 {
		return nil
	}
	return labels
}

// FollowedLabels are those labels of the system information, with its fields, that no other label replaces.
func FollowedLabels(given, from []string) map[string]string {
	follow := resource.ParsePairs(strings.Join(from, ","))
	maps.DeleteFunc(follow, func(key, _ string) bool {
		return slices.ContainsFunc(given, func(label string) bool { return strings.HasPrefix(label, key+"=") })
	})
	return follow
}
