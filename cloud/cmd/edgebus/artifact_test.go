package main

import (
	"crypto/ed25519"
	"encoding/base64"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/crypto/blake2b"

	"github.com/edgebus/edgebus/topics/resource"
)

// Two key pairs that minisign 0.11 has made: with -W, and with the password "secret".
const (
	plainKey = "untrusted comment: minisign encrypted secret key\n" +
		"RWQAAEIyAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAFBKEJphIZnvbHt59EN0y9CR9JczYqWv0pRI9PlkHr6gT0kUeXvBSsY6vecKG1CKC9NN4Dpz45V+zHDslfQO85cfPN5IrDDeiAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=\n"
	plainPublic  = "RWQUEoQmmEhme46vecKG1CKC9NN4Dpz45V+zHDslfQO85cfPN5IrDDei"
	encryptedKey = "untrusted comment: minisign encrypted secret key\n" +
		"RWRTY0IytMxXHnj+EfHAtiJN/gIF4NzQffcYAJgOHm0vGbDalcEAAAACAAAAAAAAAEAAAAAAU2/54wOw5ePmOllygEoxLBhoWZx0cPN55XfVhIfQPj/IdYT6f3njtz5XoRgsS5omE4PvN80Iqz2AeFegHUWnWcInVIGKsy1Hl1JZAr3949TFqupJ/94FWj/MLUKEaeag9lrSovzaMw0=\n"
	encryptedPublic = "RWTn8rP2IIXLDfjhADx+e+OfjNxSlhw/KtwrVlgSufY+1+WHQ2bY5XzX"
)

// verify checks a signature as minisign -V does.
func verify(t *testing.T, public, text, signature string) {
	t.Helper()
	key, err := base64.StdEncoding.DecodeString(public)
	require.NoError(t, err)
	lines := strings.Split(signature, "\n")
	require.Len(t, lines, 5)
	raw, err := base64.StdEncoding.DecodeString(lines[1])
	require.NoError(t, err)
	require.Equal(t, "ED", string(raw[:2]))
	require.Equal(t, key[2:10], raw[2:10], "the key's id")
	hash := blake2b.Sum512([]byte(text))
	require.True(t, ed25519.Verify(key[10:], hash[:], raw[10:]))
	global, err := base64.StdEncoding.DecodeString(lines[3])
	require.NoError(t, err)
	require.True(t, ed25519.Verify(key[10:], append(raw[10:], strings.TrimPrefix(lines[2], "trusted comment: ")...), global))
}

func TestArtifactsAreSignedAsMinisignDoes(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	key, err := readSigningKey(write(t, dir, "plain.key", plainKey), strings.NewReader(""), nil)
	require.NoError(t, err)
	require.Equal(t, "7B66489826841214", key.name())
	verify(t, plainPublic, "{}", key.sign([]byte("{}"), "timestamp:1"))

	file := write(t, dir, "encrypted.key", encryptedKey)
	if testing.Short() {
		t.Skip("scrypt takes 1 GiB")
	}
	key, err = readSigningKey(file, strings.NewReader("secret\n"), nil)
	require.NoError(t, err)
	verify(t, encryptedPublic, "{}", key.sign([]byte("{}"), "timestamp:1"))
}

// The parameters are those that libsodium derives from minisign's limits.
func TestScryptParameters(t *testing.T) {
	for _, c := range []struct {
		ops, memory uint64
		n, r, p     int
	}{
		{33554432, 1073741824, 1 << 20, 8, 1}, {524288, 16777216, 1 << 14, 8, 1}, {33554432, 16777216, 1 << 14, 8, 64}, {32768, 1 << 30, 1 << 10, 8, 1},
	} {
		n, r, p := scryptParameters(c.ops, c.memory)
		require.Equal(t, []int{c.n, c.r, c.p}, []int{n, r, p}, "%+v", c)
	}
}

func TestKeysThatAreNone(t *testing.T) {
	for _, text := range []string{"", "x", "untrusted comment: x\n" + plainPublic, strings.Replace(plainKey, "RWQAAE", "RWQAAA", 1)[:200]} {
		_, err := readSigningKey(write(t, t.TempDir(), "k", text), strings.NewReader(""), nil)
		require.ErrorContains(t, err, "it is no secret key of minisign", "%q", text)
	}
}

func TestProgramsOfAnArtifact(t *testing.T) {
	self, err := os.Executable()
	require.NoError(t, err)
	file := filepath.Join(t.TempDir(), "edgecore-linux-any")
	require.NoError(t, os.Symlink(self, file))
	p, err := programOf(file)
	require.NoError(t, err)
	require.Equal(t, "edgecore", p.Name)
	require.NotEmpty(t, p.Architecture)
	require.Positive(t, p.Size)
	_, err = resource.ParseDigest(p.Digest)
	require.NoError(t, err)
	_, err = programOf(write(t, t.TempDir(), "edgecore", "#!/bin/sh\n"))
	require.ErrorContains(t, err, "it is no program for Linux")
}
