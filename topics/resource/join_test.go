// SPDX-License-Identifier: Apache-2.0

package resource

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func csrText(t testing.TB, key any, name string) string {
	der, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{Subject: pkix.Name{CommonName: name}}, key)
	require.NoError(t, err)
	return string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der}))
}

func TestTokensAreReadBack(t *testing.T) {
	token := JoinToken{Authority: [32]byte{1, 2, 3}, Secret: [16]byte{4, 5}, Node: "n1.hall"}
	text := token.String()
	got, err := ParseJoinToken(" " + text + "\n")
	require.NoError(t, err)
	require.Equal(t, token, got)
	for i := range text { // whatever letter is missing or another one
		_, err := ParseJoinToken(text[:i] + text[i+1:])
		require.ErrorIs(t, err, Invalid)
		require.NotContains(t, err.Error(), text[5:20])
	}
	_, err = ParseJoinToken("ebj1-" + strings.Repeat("A", 1<<20))
	require.ErrorIs(t, err, Invalid)
}

func TestACSRIsChecked(t *testing.T) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	good := csrText(t, key, "n1")
	for _, node := range []string{"n1", ""} {
		_, err = ParseCSR(good, node)
		require.NoError(t, err)
	}
	_, err = ParseCSR(csrText(t, key, ""), "n1")
	require.NoError(t, err, "the hub gives the name")
	_, err = ParseCSR(good, "n2")
	require.ErrorIs(t, err, Forbidden)
	_, err = ParseCSR(good+good, "n1")
	require.ErrorIs(t, err, Invalid)
	weak, err := rsa.GenerateKey(rand.Reader, 1024)
	if err == nil {
		_, err = ParseCSR(csrText(t, weak, "n1"), "n1")
		require.ErrorContains(t, err, "an RSA key has 2048 to 8192 bits")
	}
	block, _ := pem.Decode([]byte(good))
	block.Bytes[len(block.Bytes)-1] ^= 1
	_, err = ParseCSR(string(pem.EncodeToMemory(block)), "n1")
	require.ErrorIs(t, err, Invalid, "not signed with its key")
}

func FuzzJoinToken(f *testing.F) {
	f.Add(JoinToken{Node: "n1"}.String())
	f.Add("ebj1-")
	f.Fuzz(func(t *testing.T, text string) {
		token, err := ParseJoinToken(text)
		if err != nil {
			require.ErrorIs(t, err, Invalid)
			return
		}
		again, err := ParseJoinToken(token.String())
		require.NoError(t, err)
		require.Equal(t, token, again)
	})
}

func FuzzJoinRequest(f *testing.F) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(f, err)
	f.Add([]byte(`{"csr":"x","labels":{"a":"b"}}`), csrText(f, key, "n1"))
	f.Fuzz(func(t *testing.T, payload []byte, csr string) {
		_, _ = DecodeJoinRequest(payload)
		if c, err := ParseCSR(csr, "n1"); err == nil {
			require.Len(t, c.Key, 64)
			require.NotNil(t, c.PublicKey)
		}
	})
}

func TestForHowLongATokenIsGood(t *testing.T) {
	const day = 24 * time.Hour
	for text, want := range map[string]time.Duration{"": time.Hour, "90m": 90 * time.Minute, "30d": 30 * day, "365d": 365 * day} {
		got, err := ParseTTL(text, time.Hour, 365*day)
		require.NoError(t, err)
		require.Equal(t, want, got)
	}
	for _, text := range []string{"0d", "-1d", "366d", "-1h", "1", "d", "1w", "106751991167301d", "9999999999999999999999d"} {
		_, err := ParseTTL(text, time.Hour, 365*day)
		require.ErrorContains(t, err, "up to 365d", text)
	}
}
