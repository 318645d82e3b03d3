// SPDX-License-Identifier: Apache-2.0

package webhook

import (
	"crypto/sha256"
	"io"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestABodyWithoutALengthIsReadAsFarAsTheLimit(t *testing.T) {
	large := strings.Repeat("x", maxBody+1)
	chunked := httptest.NewRequest("POST", "/", struct{ io.Reader }{strings.NewReader(large)})
	chunked.Header.Set("X-Gitea-Signature", strings.Repeat("0", 64))
	ok, _, err := verifyProof(httptest.NewRecorder(), chunked, []byte("hunter2"))
	require.NoError(t, err)
	require.False(t, ok, "a body without a length is read as far as that")
}

func TestLimitsThatAreNotUsedUpAreNotKept(t *testing.T) {
	var l rateLimits
	now := time.Now()
	for i := range 1000 {
		require.True(t, l.allow(strconv.Itoa(i), now.Add(time.Duration(i)*minInterval)))
	}
	require.LessOrEqual(t, len(l.of), 2)
	for range maxBurst {
		require.True(t, l.allow("busy", now))
	}
	require.True(t, l.allow("another", now))
	require.False(t, l.allow("busy", now), "what is used up is kept")
}

// As many signatures are remembered as come in two hours, and a webhook that was refused may be sent again.
func TestSignaturesOfWebhooksAreBounded(t *testing.T) {
	var s acceptedSignatures
	signature := func(i int) []byte { sum := sha256.Sum256([]byte(strconv.Itoa(i))); return sum[:] }
	for i := range maxSigned + 1 {
		require.False(t, s.has("r", signature(i)))
		s.add("r", signature(i))
		s.add("r", signature(i))
	}
	require.False(t, s.has("r", signature(0)))
	require.True(t, s.has("r", signature(1)))
	require.True(t, s.has("r", signature(maxSigned)))
	require.False(t, s.has("other", signature(1)))
	require.Len(t, s.of["r"].known, maxSigned)
	s.add("r", nil)
	require.False(t, s.has("r", nil))
}
