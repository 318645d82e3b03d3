// SPDX-License-Identifier: Apache-2.0

package password

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// Hashes of "secret", made with other implementations of the forms.
const (
	hashArgon = "$argon2id$v=19$m=4096,t=3,p=2$MDEyMzQ1Njc4OWFiY2RlZg$8xZBAjs5BhUhxHy4N4TlCNrvIKP3ibOJL+9/J/zsHwY"
	hash7     = "$7$101$MDEyMzQ1Njc4OWFi$EO/lLlkeUgIiBaS8G8UK0ZMP1u508TA7Tl+AdJ1cEsmlbGyEPAERErpfq84j1kepISs0UzmcdL4ucgZ2uodxfQ=="
	hash6     = "$6$MDEyMzQ1Njc4OWFi$qEXipeLbgxRlwd06QHfY5WITkUZg0jLg9SZbXzq3ifXjfj+v3GbJGrSfC5PAg3UNCS+UFfbhUIZX4bmIAs330w=="
)

func TestPasswordHashes(t *testing.T) {
	for _, s := range []string{hashArgon, hash7, hash6} {
		h, err := Parse(s)
		require.NoError(t, err)
		require.True(t, h.Matches([]byte("secret")))
		require.False(t, h.Matches([]byte("Secret")))
		require.False(t, h.Matches(nil))
	}
	for _, s := range []string{
		"", "secret", "$7$", "$7$0$YQ==$YQ==", "$7$x$YQ==$YQ==", "$6$YQ==$YQ==", "$1$YQ==$YQ==", hash7 + "$", hash7[:40],
		hashArgon[:60], strings.Replace(hashArgon, "v=19", "v=16", 1), strings.Replace(hashArgon, "m=4096", "m=4294967295", 1),
		strings.Replace(hashArgon, "m=4096", "m=+4096", 1), strings.Replace(hashArgon, "t=3", "t=0", 1), strings.Replace(hashArgon, "p=2", "p=0", 1),
		strings.Replace(hashArgon, "argon2id", "argon2i", 1), "$argon2id$v=19$m=4096,t=3,p=2$$",
	} {
		_, err := Parse(s)
		require.Error(t, err, s)
	}
}

func TestNobodysHash(t *testing.T) {
	slow, err := Parse("$7$5000" + hash7[len("$7$101"):])
	require.NoError(t, err)
	nobody := SlowestHash([]Hash{{}, slow})
	require.Equal(t, slow.iterations, nobody.iterations)
	slower, err := Parse(NewHash([]byte("secret")))
	require.NoError(t, err)
	require.Equal(t, slower.argon, SlowestHash([]Hash{slow, slower}).argon)
	require.Equal(t, slower.Rounds(), slow.Rounds()+slower.Remainder(slow).Rounds(), "who has a faster hash waits for the rest")
	for _, text := range []string{"", "secret"} {
		require.False(t, nobody.Matches([]byte(text)))
		require.False(t, Hash{}.Matches([]byte(text)))
	}
}

func TestAHashIsMadeOfAPassword(t *testing.T) {
	a, b := NewHash([]byte("one two")), NewHash([]byte("one two"))
	require.NotEqual(t, a, b, "each has salt of its own")
	for _, text := range []string{a, b} {
		h, err := Parse(text)
		require.NoError(t, err)
		require.True(t, h.Matches([]byte("one two")))
		require.False(t, h.Matches([]byte("one too")))
	}
}

// BenchmarkCost shows how an iteration of PBKDF2 compares with what Rounds takes for one of argon2id.
func BenchmarkCost(b *testing.B) {
	for name, text := range map[string]string{"argon2id": NewHash([]byte("secret")), "pbkdf2": "$7$20000" + hash7[len("$7$101"):]} {
		h, err := Parse(text)
		require.NoError(b, err)
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				h.Matches([]byte("secret"))
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/float64(h.Rounds()), "ns/round")
		})
	}
}

func FuzzParse(f *testing.F) {
	for _, s := range []string{hashArgon, hash7, hash6, "$argon2id$v=19$m=8,t=1,p=1$"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		h, err := Parse(s)
		require.Equal(t, err != nil, h.sum == nil)
	})
}
