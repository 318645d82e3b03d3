// SPDX-License-Identifier: Apache-2.0

package nodes

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"aead.dev/minisign"
	"github.com/stretchr/testify/require"

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

// fileWith is a file of this text.
func fileWith(t *testing.T, name, text string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), name)
	require.NoError(t, os.WriteFile(file, []byte(text), 0o600))
	return file
}

// requireSignature checks a signature with the public key of the pair.
func requireSignature(t *testing.T, public, text, signature string) {
	t.Helper()
	var key minisign.PublicKey
	require.NoError(t, key.UnmarshalText([]byte(public)))
	require.Contains(t, signature, "\ntrusted comment: timestamp:1\n")
	require.True(t, minisign.Verify(key, []byte(text), []byte(signature)))
}

func TestArtifactsAreSignedAsMinisignDoes(t *testing.T) {
	t.Parallel()
	key, err := readSigningKey(fileWith(t, "plain.key", plainKey), strings.NewReader(""), nil)
	require.NoError(t, err)
	require.Equal(t, "7B66489826841214", fmt.Sprintf("%016X", key.ID()))
	requireSignature(t, plainPublic, "{}", signArtifact(key, []byte("{}"), "timestamp:1"))

	file := fileWith(t, "encrypted.key", encryptedKey)
	if testing.Short() {
		t.Skip("scrypt takes 1 GiB")
	}
	key, err = readSigningKey(file, strings.NewReader("secret\n"), nil)
	require.NoError(t, err)
	requireSignature(t, encryptedPublic, "{}", signArtifact(key, []byte("{}"), "timestamp:1"))
}

func TestAFileThatIsNoSigningKeyIsRefused(t *testing.T) {
	for _, text := range []string{"", "x", "untrusted comment: x\n" + plainPublic, strings.Replace(plainKey, "RWQAAE", "RWQAAA", 1)[:200]} {
		_, err := readSigningKey(fileWith(t, "k", text), strings.NewReader(""), nil)
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
	_, err = programOf(fileWith(t, "edgecore", "#!/bin/sh\n"))
	require.ErrorContains(t, err, "it is no program for Linux")
}

func TestAKeyIsMadeThatSignsAndIsNeverOverwritten(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "minisign.key")
	makeKey := func() (string, error) {
		var out strings.Builder
		cmd := newArtifactKey()
		cmd.SilenceUsage, cmd.SilenceErrors = true, true
		cmd.SetArgs([]string{file})
		cmd.SetOut(&out)
		err := cmd.Execute()
		return strings.TrimSpace(out.String()), err
	}
	public, err := makeKey()
	require.NoError(t, err)
	key, err := readSigningKey(file, strings.NewReader(""), nil)
	require.NoError(t, err)
	requireSignature(t, public, "text", signArtifact(key, []byte("text"), "timestamp:1"))
	info, err := os.Stat(file)
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o600), info.Mode().Perm())
	text, err := os.ReadFile(filepath.Join(dir, "minisign.pub"))
	require.NoError(t, err)
	require.True(t, strings.HasSuffix(string(text), "\n"+public+"\n"), "the last line is what the nodes list")
	_, err = makeKey()
	require.ErrorContains(t, err, "file exists")
}
