// SPDX-License-Identifier: Apache-2.0

package resource

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"encoding/pem"
	"hash/crc32"
	"math/big"
	"strconv"
	"strings"
	"time"
)

// A node joins its hub by publishing a JoinRequest to v1/nodes/{node}/enroll/{request}. It receives the JoinAnswer on
// v1/nodes/{node}/enroll/{request}/answer. The same two messages renew a certificate.

// JoinRequest asks the hub to sign a node's certificate.
type JoinRequest struct {
	// CSR is a PKCS #10 request in PEM. Only its public key is used: the hub decides on everything else.
	CSR string `json:"csr"`
	// Token is the token of an invitation. Without it a person has to approve the request, unless it is a renewal.
	Token string `json:"token,omitempty"`
	// Labels are the labels for the Node from the node's settings.
	Labels map[string]string `json:"labels,omitempty"`
	// LabelFrom are the keys of labels that are derived from the system information, each with the name of the field.
	LabelFrom map[string]string `json:"labelFrom,omitempty"`
	// SystemInfo describes the host.
	SystemInfo *SystemInfo `json:"systemInfo,omitempty"`
}

// MaxJoinRequest is the largest JoinRequest that a hub accepts, in bytes.
const MaxJoinRequest = 16 << 10

// DecodeJoinRequest reads a JoinRequest. Its errors are *Error.
func DecodeJoinRequest(payload []byte) (r JoinRequest, err error) {
	if len(payload) > MaxJoinRequest {
		return r, Errorf(TooLarge, "", "the request has %d bytes; at most %d are taken", len(payload), MaxJoinRequest)
	}
	if err := json.Unmarshal(payload, &r); err != nil {
		return r, Errorf(Invalid, "", "the request is not JSON as it should be: %v", err)
	}
	var p causeList
	checkRequired(&p, "csr", r.CSR)
	checkLabels(&p, "labels", r.Labels)
	for key, field := range r.LabelFrom {
		checkLabel(&p, "labelFrom", key, "")
		if !appName.MatchString(strings.ToLower(field)) {
			p.add("labelFrom["+key+"]", "%s: must be the name of a field of the system information", clipText(field))
		}
	}
	return r, p.err()
}

// The states of a JoinAnswer.
const (
	JoinIssued  = "issued"  // the certificate is in the answer
	JoinWaiting = "waiting" // a person has to approve the request
	JoinDenied  = "denied"  // a person denied it, or the hub can't sign it
)

// JoinAnswer is what the hub answers to a JoinRequest.
type JoinAnswer struct {
	State string `json:"state"`
	// Certificate is the node's certificate in PEM, and Authorities are the certificates of those that sign the hub's: the node
	// trusts them from then on.
	Certificate string `json:"certificate,omitempty"`
	Authorities string `json:"authorities,omitempty"`
	// Request is the name of the EnrollmentRequest that waits.
	Request string `json:"request,omitempty"`
	Reason  string `json:"reason,omitempty"`
}

// JoinedAnnotation of a Node has the time at which it joined and the SHA-256 of the key with which it did, separated by a
// space.
const JoinedAnnotation = Group + "/joined"

// JoinToken is the token of an invitation. It lets a node join, and tells the node how to recognise the hub.
type JoinToken struct {
	// Authority is the SHA-256 of the certificate (DER) of the hub's authority.
	Authority [sha256.Size]byte
	// Secret is random. The hub stores only its hash.
	Secret [16]byte
	// Node is the name of the node; if it is empty, the node chooses a name that the invitation allows.
	Node string
}

const tokenPrefix = "ebj1-" // of version 1

// maxToken is more than the length of any token in bytes: the node's name has at most 253.
const maxToken = 512

// String is the token as people paste it. The last four of its bytes are a checksum, by which a token is recognised that was
// not copied whole.
func (t JoinToken) String() string {
	raw := append(append(t.Authority[:], t.Secret[:]...), t.Node...)
	raw = binary.BigEndian.AppendUint32(raw, crc32.ChecksumIEEE(raw))
	return tokenPrefix + base64.RawURLEncoding.EncodeToString(raw)
}

// ID is the SHA-256 of the secret in hexadecimal, by which the hub identifies the token.
func (t JoinToken) ID() string {
	sum := sha256.Sum256(t.Secret[:])
	return hex.EncodeToString(sum[:])
}

// ParseJoinToken reads a token. Errors don't contain it.
func ParseJoinToken(text string) (t JoinToken, err error) {
	text = strings.TrimSpace(text)
	encoded, ok := strings.CutPrefix(text, tokenPrefix)
	if !ok || len(text) > maxToken {
		return t, Errorf(Invalid, "token", "this is no token: one begins with %s", tokenPrefix)
	}
	raw, err := base64.RawURLEncoding.Strict().DecodeString(encoded)
	least := len(t.Authority) + len(t.Secret)
	if err != nil || len(raw) < least+4 || crc32.ChecksumIEEE(raw[:len(raw)-4]) != binary.BigEndian.Uint32(raw[len(raw)-4:]) {
		return t, Errorf(Invalid, "token", "the token is damaged: copy it again, to its end")
	}
	copy(t.Authority[:], raw)
	copy(t.Secret[:], raw[len(t.Authority):])
	t.Node = string(raw[least : len(raw)-4])
	if t.Node != "" {
		var p causeList
		if checkName(&p, "token", t.Node); p.err() != nil {
			return JoinToken{}, p.err()
		}
	}
	return t, nil
}

// Fingerprint is the form in which an authority's certificate is shown and pinned: sha256: and the SHA-256 of its DER in
// hexadecimal.
func Fingerprint(der []byte) string {
	return DigestOf(der)
}

// ParseFingerprint reads a fingerprint, with or without its prefix, and with or without colons between the digits.
func ParseFingerprint(text string) (sum [sha256.Size]byte, err error) {
	digits := strings.ReplaceAll(strings.TrimPrefix(strings.ToLower(strings.TrimSpace(text)), DigestPrefix), ":", "")
	raw, err := hex.DecodeString(digits)
	if err != nil || len(raw) != len(sum) {
		return sum, Errorf(Invalid, "", "%.100q is no SHA-256 fingerprint: 64 hexadecimal digits", text)
	}
	return [sha256.Size]byte(raw), nil
}

// PinnedAuthority is the authority with a fingerprint among the certificates that a server shows; nil: it isn't there.
func PinnedAuthority(chain []*x509.Certificate, pin []byte) *x509.Certificate {
	for _, c := range chain {
		if sum := sha256.Sum256(c.Raw); c.IsCA && bytes.Equal(sum[:], pin) {
			return c
		}
	}
	return nil
}

// VerifyChain checks a server's certificate, the first that it shows, against an authority.
func VerifyChain(chain []*x509.Certificate, authority *x509.Certificate, host string, now time.Time) error {
	roots, between := x509.NewCertPool(), x509.NewCertPool()
	roots.AddCert(authority)
	for _, c := range chain[1:] {
		between.AddCert(c)
	}
	_, err := chain[0].Verify(x509.VerifyOptions{Roots: roots, Intermediates: between, DNSName: host, CurrentTime: now})
	return err
}

// CSR is a request for a certificate, of which only the key is used.
type CSR struct {
	PublicKey any
	// Key is the SHA-256 of the public key in hexadecimal, which people compare.
	Key string
}

// ParseCSR reads a PKCS #10 request in PEM for a node's certificate. It fails if the request is not signed with its own key,
// if the key is too weak, or if the request states a name other than the node's.
func ParseCSR(text, node string) (c CSR, err error) {
	if len(text) > MaxJoinRequest {
		return c, Errorf(TooLarge, "csr", "%d bytes; at most %d are taken", len(text), MaxJoinRequest)
	}
	block, rest := pem.Decode([]byte(text))
	if block == nil || block.Type != "CERTIFICATE REQUEST" && block.Type != "NEW CERTIFICATE REQUEST" || len(bytes.TrimSpace(rest)) > 0 {
		return c, Errorf(Invalid, "csr", "is not one CERTIFICATE REQUEST in PEM")
	}
	request, err := x509.ParseCertificateRequest(block.Bytes)
	if err != nil {
		return c, Errorf(Invalid, "csr", "is no request for a certificate: %v", err)
	}
	if err := request.CheckSignature(); err != nil {
		return c, Errorf(Invalid, "csr", "is not signed with its own key: %v", err)
	}
	switch key := request.PublicKey.(type) {
	case *ecdsa.PublicKey, ed25519.PublicKey:
	case *rsa.PublicKey:
		if key.N.BitLen() < 2048 || key.N.BitLen() > 8192 {
			return c, Errorf(Invalid, "csr", "an RSA key has 2048 to 8192 bits, this one has %d", key.N.BitLen())
		}
	default:
		return c, Errorf(Invalid, "csr", "its key is neither ECDSA, Ed25519 nor RSA")
	}
	if name := request.Subject.CommonName; name != "" && node != "" && name != node {
		return c, Errorf(Forbidden, "csr", "it asks for a certificate of %s, but the node is %s", clipText(name), node)
	}
	sum := sha256.Sum256(request.RawSubjectPublicKeyInfo)
	return CSR{request.PublicKey, hex.EncodeToString(sum[:])}, nil
}

// CheckLabels returns an error for labels that a Node can't have.
func CheckLabels(field string, labels map[string]string) error {
	var p causeList
	checkLabels(&p, field, labels)
	return p.err()
}

// IssuedAt is the time when a hub signed a certificate. The upper half of the serial number has it in milliseconds since 1970.
// A certificate without it was signed when its validity began.
func IssuedAt(cert *x509.Certificate) time.Time {
	ms := new(big.Int).Rsh(cert.SerialNumber, 64)
	if cert.SerialNumber.Sign() <= 0 || !ms.IsInt64() || ms.Int64() > cert.NotAfter.UnixMilli() || ms.Int64() < cert.NotBefore.UnixMilli() {
		return cert.NotBefore
	}
	return time.UnixMilli(ms.Int64())
}

// ParseTTL reads how long a token is valid: a duration of more than 0 and at most most, such as 12h, or a number of days, such
// as 30d. An empty text is byDefault.
func ParseTTL(text string, byDefault, most time.Duration) (time.Duration, error) {
	if text == "" {
		return byDefault, nil
	}
	const day = 24 * time.Hour
	var ttl time.Duration
	var err error
	if days, ok := strings.CutSuffix(text, "d"); ok {
		var n uint64
		if n, err = strconv.ParseUint(days, 10, 16); err == nil { // more would be beyond any limit
			ttl = time.Duration(n) * day
		}
	} else {
		ttl, err = time.ParseDuration(text)
	}
	if err != nil || ttl <= 0 || ttl > most {
		return 0, Errorf(Invalid, "ttl", "%.40q is not a duration up to %dd, such as 12h or 30d", text, most/day)
	}
	return ttl, nil
}
