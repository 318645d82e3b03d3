package password

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// Hashes of "secret", made with another implementation of both forms.
const (
	hash7 = "$7$101$MDEyMzQ1Njc4OWFi$EO/lLlkeUgIiBaS8G8UK0ZMP1u508TA7Tl+AdJ1cEsmlbGyEPAERErpfq84j1kepISs0UzmcdL4ucgZ2uodxfQ=="
	hash6 = "$6$MDEyMzQ1Njc4OWFi$qEXipeLbgxRlwd06QHfY5WITkUZg0jLg9SZbXzq3ifXjfj+v3GbJGrSfC5PAg3UNCS+UFfbhUIZX4bmIAs330w=="
)

func TestPasswordHashes(t *testing.T) {
	for _, s := range []string{hash7, hash6} {
		h, err := Parse(s)
		require.NoError(t, err)
		require.True(t, h.Matches([]byte("secret")))
		require.False(t, h.Matches([]byte("Secret")))
		require.False(t, h.Matches(nil))
	}
	for _, s := range []string{"", "secret", "$7$", "$7$0$YQ==$YQ==", "$7$x$YQ==$YQ==", "$6$YQ==$YQ==", "$1$YQ==$YQ==", hash7 + "$", hash7[:40]} {
		_, err := Parse(s)
		require.Error(t, err, s)
	}
}

func TestNobodysHash(t *testing.T) {
	slow, err := Parse("$7$5000" + hash7[len("$7$101"):])
	require.NoError(t, err)
	nobody := Slowest([]Hash{{}, slow})
	require.Equal(t, slow.iterations, nobody.iterations)
	for _, text := range []string{"", "secret"} {
		require.False(t, nobody.Matches([]byte(text)))
		require.False(t, Hash{}.Matches([]byte(text)))
	}
}

func TestTrial21Make(t *testing.T) {
	a, b := Make([]byte("one two")), Make([]byte("one two"))
	require.NotEqual(t, a, b, "each has salt of its own")
	for _, text := range []string{a, b} {
		h, err := Parse(text)
		require.NoError(t, err)
		require.True(t, h.Matches([]byte("one two")))
		require.False(t, h.Matches([]byte("one too")))
	}
}
