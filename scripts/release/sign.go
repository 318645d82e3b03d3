// SPDX-License-Identifier: Apache-2.0

package main

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/pem"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"aead.dev/minisign"
	"github.com/secure-systems-lab/go-securesystemslib/encrypted"
)

// signMinisign signs with the key of minisign in the file of EDGEBUS_RELEASE_KEY, if there is one.
func (b *releaseBuild) signMinisign(text []byte) error {
	file := os.Getenv("EDGEBUS_RELEASE_KEY")
	if file == "" {
		return nil
	}
	secret, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	var key minisign.PrivateKey
	if minisign.IsEncrypted(secret) {
		key, err = minisign.DecryptKey(os.Getenv("EDGEBUS_RELEASE_PASSWORD"), secret)
	} else {
		err = key.UnmarshalText(secret)
	}
	if err != nil {
		return fmt.Errorf("EDGEBUS_RELEASE_KEY: %w", err)
	}
	signature := minisign.SignWithComments(key, text, "file:SHA256SUMS\tversion:"+b.version, "signature of Edgebus "+b.version)
	return os.WriteFile(filepath.Join(b.out, "SHA256SUMS.minisig"), signature, 0o644)
}

// signCosign signs with the key of cosign in the file of EDGEBUS_COSIGN_KEY, if there is one: what cosign sign-blob writes with that key.
func (b *releaseBuild) signCosign(text []byte) error {
	file := os.Getenv("EDGEBUS_COSIGN_KEY")
	if file == "" {
		return nil
	}
	secret, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	key, err := readCosignKey(secret, []byte(os.Getenv("COSIGN_PASSWORD")))
	if err != nil {
		return fmt.Errorf("EDGEBUS_COSIGN_KEY: %w", err)
	}
	sum := sha256.Sum256(text)
	signature, err := key.Sign(nil, sum[:], crypto.SHA256) // without a source of randomness the signature follows from key and text (RFC 6979)
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(b.out, "SHA256SUMS.sig"), []byte(base64.StdEncoding.EncodeToString(signature)), 0o644)
}

// readCosignKey reads a key as cosign generate-key-pair makes it.
func readCosignKey(text, password []byte) (*ecdsa.PrivateKey, error) {
	block, _ := pem.Decode(text)
	if block == nil || block.Type != "ENCRYPTED SIGSTORE PRIVATE KEY" && block.Type != "ENCRYPTED COSIGN PRIVATE KEY" {
		return nil, errors.New("it is no key of cosign: cosign generate-key-pair makes one")
	}
	der, err := encrypted.Decrypt(block.Bytes, password)
	if err != nil {
		return nil, fmt.Errorf("it can't be decrypted with COSIGN_PASSWORD: %w", err)
	}
	key, err := x509.ParsePKCS8PrivateKey(der)
	if err != nil {
		return nil, err
	}
	signer, ok := key.(*ecdsa.PrivateKey)
	if !ok {
		return nil, fmt.Errorf("it is a %T: an ECDSA key is needed", key)
	}
	return signer, nil
}
