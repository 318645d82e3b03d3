// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"crypto"
	"crypto/aes"
	"crypto/cipher"
	"crypto/hmac"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha1" //nolint:gosec // G505: Basic256Sha256 has OAEP with SHA-1, and thumbprints are SHA-1
	"crypto/sha256"
	"errors"
	"fmt"
	"hash"
)

const policyPrefix = "http://opcfoundation.org/UA/SecurityPolicy#"

// Policy is a security policy, by the name after the number sign of its URI.
type Policy string

// The policies that are known, the best last. Older ones are broken.
const (
	PolicyNone                Policy = "None"
	PolicyBasic256Sha256      Policy = "Basic256Sha256"
	PolicyAes128Sha256RsaOaep Policy = "Aes128_Sha256_RsaOaep"
	PolicyAes256Sha256RsaPss  Policy = "Aes256_Sha256_RsaPss"
	uriRSASHA256                     = "http://www.w3.org/2001/04/xmldsig-more#rsa-sha256"
	uriPSSSHA256                     = "http://opcfoundation.org/UA/security/rsa-pss-sha2-256"
	uriOAEP                          = "http://www.w3.org/2001/04/xmlenc#rsa-oaep"
	uriOAEP256                       = "http://opcfoundation.org/UA/security/rsa-oaep-sha2-256"
)

// Policies are the known ones, the best last.
var Policies = []Policy{PolicyNone, PolicyBasic256Sha256, PolicyAes128Sha256RsaOaep, PolicyAes256Sha256RsaPss}

// URI is the policy's name on the wire.
func (p Policy) URI() string { return policyPrefix + string(p) }

// aesKey is the length of the policy's symmetric keys.
func (p Policy) aesKey() int {
	if p == PolicyAes128Sha256RsaOaep {
		return 16
	}
	return 32
}

const (
	nonceLength     = 32
	signatureLength = 32 // of the symmetric signature
	minKeyBits      = 2048
	maxKeyBits      = 4096
)

func (p Policy) oaepHash() hash.Hash {
	if p == PolicyAes256Sha256RsaPss {
		return sha256.New()
	}
	return sha1.New() //nolint:gosec // G401: as the policy has it
}

// checkKey refuses keys that the policies don't allow.
func checkKey(key *rsa.PublicKey) error {
	if bits := key.N.BitLen(); bits < minKeyBits || bits > maxKeyBits {
		return fmt.Errorf("a key of %d bits: the security policies ask for %d to %d", bits, minKeyBits, maxKeyBits)
	}
	return nil
}

func (p Policy) signRSA(key *rsa.PrivateKey, data []byte) ([]byte, error) {
	digest := sha256.Sum256(data)
	if p == PolicyAes256Sha256RsaPss {
		return rsa.SignPSS(rand.Reader, key, crypto.SHA256, digest[:], &rsa.PSSOptions{SaltLength: rsa.PSSSaltLengthEqualsHash})
	}
	return rsa.SignPKCS1v15(nil, key, crypto.SHA256, digest[:])
}

func (p Policy) verifyRSA(key *rsa.PublicKey, data, signature []byte) error {
	digest := sha256.Sum256(data)
	if p == PolicyAes256Sha256RsaPss {
		return rsa.VerifyPSS(key, crypto.SHA256, digest[:], signature, &rsa.PSSOptions{SaltLength: rsa.PSSSaltLengthEqualsHash})
	}
	return rsa.VerifyPKCS1v15(key, crypto.SHA256, digest[:], signature)
}

func (p Policy) signatureURI() string {
	switch p {
	case PolicyNone:
		return ""
	case PolicyAes256Sha256RsaPss:
		return uriPSSSHA256
	}
	return uriRSASHA256
}

// plainBlock is how much of a text fits into one block of RSA.
func (p Policy) plainBlock(key *rsa.PublicKey) int { return key.Size() - 2*p.oaepHash().Size() - 2 }

// encryptRSA encrypts a text of whole blocks, or for a password of any length.
func (p Policy) encryptRSA(key *rsa.PublicKey, text []byte) (out []byte, err error) {
	block := p.plainBlock(key)
	for len(text) > 0 {
		n := min(block, len(text))
		b, err := rsa.EncryptOAEP(p.oaepHash(), rand.Reader, key, text[:n], nil)
		if err != nil {
			return nil, err
		}
		out, text = append(out, b...), text[n:]
	}
	return out, nil
}

func (p Policy) decryptRSA(key *rsa.PrivateKey, data []byte) (out []byte, err error) {
	if len(data)%key.Size() != 0 {
		return nil, errors.New("an encrypted message is not made of whole blocks")
	}
	for len(data) > 0 {
		b, err := rsa.DecryptOAEP(p.oaepHash(), nil, key, data[:key.Size()], nil)
		if err != nil {
			return nil, err
		}
		out, data = append(out, b...), data[key.Size():]
	}
	return out, nil
}

// symmetricKeys are those of one direction.
type symmetricKeys struct{ signing, encryption, vector []byte }

// deriveKeys makes the keys of the side whose nonce is seed (part 6 of the standard, 6.7.5: P_SHA256).
func (p Policy) deriveKeys(secret, seed []byte) symmetricKeys {
	need := signatureLength + p.aesKey() + aes.BlockSize
	sum := func(parts ...[]byte) []byte {
		h := hmac.New(sha256.New, secret)
		for _, b := range parts {
			h.Write(b)
		}
		return h.Sum(nil)
	}
	var out []byte
	for a := sum(seed); len(out) < need; a = sum(a) {
		out = append(out, sum(a, seed)...)
	}
	return symmetricKeys{out[:signatureLength], out[signatureLength : need-aes.BlockSize], out[need-aes.BlockSize : need]}
}

func (k symmetricKeys) sign(data []byte) []byte {
	h := hmac.New(sha256.New, k.signing)
	h.Write(data)
	return h.Sum(nil)
}

func (k symmetricKeys) crypt(data []byte, mode func(cipher.Block, []byte) cipher.BlockMode) error {
	block, err := aes.NewCipher(k.encryption)
	if err != nil {
		return err
	}
	if len(data)%aes.BlockSize != 0 {
		return errors.New("an encrypted message is not made of whole blocks")
	}
	mode(block, k.vector).CryptBlocks(data, data)
	return nil
}

func (k symmetricKeys) encrypt(data []byte) error { return k.crypt(data, cipher.NewCBCEncrypter) }

func (k symmetricKeys) decrypt(data []byte) error { return k.crypt(data, cipher.NewCBCDecrypter) }

func newNonce() []byte {
	b := make([]byte, nonceLength)
	_, _ = rand.Read(b) // never fails
	return b
}

// certificateThumbprint names a certificate.
func certificateThumbprint(der []byte) []byte {
	sum := sha1.Sum(der) //nolint:gosec // G401: as the standard has it
	return sum[:]
}
