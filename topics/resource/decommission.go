// SPDX-License-Identifier: Apache-2.0

package resource

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"strings"
)

// DecommissionProperty is the user property of a refusing CONNACK that holds a Decommissioning.
const DecommissionProperty = "decommission"

// decommissionContext begins what is signed: the authority's key signs certificates as well, and neither passes for the other.
const decommissionContext = "edgebus decommissioning 1\n"

// Decommissioning is the hub's notice that a node was decommissioned. The authority signs it: a node believes nobody else, for it gives
// up its keys.
type Decommissioning struct {
	Node string `json:"node"`
	// Certificate is the fingerprint of the certificate that the node presented. A notice of before the node joined again has another one.
	Certificate string `json:"certificate"`
}

// Sign returns the notice as text, signed with an authority's key: base64 of its JSON, a dot, and base64 of the signature.
func (d Decommissioning) Sign(key crypto.Signer) (string, error) {
	text, err := json.Marshal(d)
	if err != nil {
		return "", err
	}
	signed, options := append([]byte(decommissionContext), text...), crypto.SignerOpts(crypto.Hash(0))
	if _, whole := key.Public().(ed25519.PublicKey); !whole {
		sum := sha256.Sum256(signed)
		signed, options = sum[:], crypto.SHA256
	}
	signature, err := key.Sign(rand.Reader, signed, options)
	if err != nil {
		return "", err
	}
	return base64.RawURLEncoding.EncodeToString(text) + "." + base64.RawURLEncoding.EncodeToString(signature), nil
}

// ReadDecommissioning reads a notice that one of the authorities has signed.
func ReadDecommissioning(notice string, authorities []*x509.Certificate) (d Decommissioning, err error) {
	encoded, sig, _ := strings.Cut(notice, ".")
	text, err := base64.RawURLEncoding.DecodeString(encoded)
	if err != nil {
		return d, fmt.Errorf("the notice of decommissioning is malformed: %w", err)
	}
	signature, err := base64.RawURLEncoding.DecodeString(sig)
	if err != nil {
		return d, fmt.Errorf("the signature of the notice of decommissioning is malformed: %w", err)
	}
	signed := append([]byte(decommissionContext), text...)
	for _, a := range authorities {
		if a.IsCA && a.CheckSignature(signatureOf(a.PublicKey), signed, signature) == nil {
			err = json.Unmarshal(text, &d)
			return d, err
		}
	}
	return d, Errorf(Unauthorized, "", "the notice of decommissioning is signed by none of the authorities that this node trusts")
}

func signatureOf(key any) x509.SignatureAlgorithm {
	switch key.(type) {
	case *ecdsa.PublicKey:
		return x509.ECDSAWithSHA256
	case ed25519.PublicKey:
		return x509.PureEd25519
	case *rsa.PublicKey:
		return x509.SHA256WithRSA
	}
	return x509.UnknownSignatureAlgorithm
}
