// SPDX-License-Identifier: Apache-2.0

package clusterhub

import (
	"context"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"

	"github.com/edgebus/edgebus/broker/sealed"
	"github.com/edgebus/edgebus/cloud/blobs"
	"github.com/edgebus/edgebus/cloud/clusterca"
	"github.com/edgebus/edgebus/cloud/peer"
	"github.com/edgebus/edgebus/configs"
	"github.com/edgebus/edgebus/topics/resource"
)

// inProcess has requests answered by another hub in this process.
type inProcess struct{ http.Handler }

func (p inProcess) RoundTrip(r *http.Request) (*http.Response, error) {
	w := httptest.NewRecorder()
	p.ServeHTTP(w, r)
	return w.Result(), nil
}

// startHubBlobs are those of a hub that has contents since two days ago. Blobs are kept for one.
func startHubBlobs(t *testing.T, owner http.Handler, contents ...string) (b *hubBlobs, digests []string) {
	t.Helper()
	b = &hubBlobs{
		peers: &peers{name: "hub"}, client: &http.Client{Transport: inProcess{owner}}, dir: t.TempDir(),
		limits: configs.HubBlobs{Age: 24 * time.Hour}, log: zerolog.Nop(),
	}
	content, err := b.open(blobs.Options{})
	require.NoError(t, err)
	for _, c := range contents {
		digest, _, err := content.Put(t.Context(), strings.NewReader(c), "")
		require.NoError(t, err)
		digests = append(digests, digest)
		hex := strings.TrimPrefix(digest, resource.DigestPrefix)
		before := time.Now().Add(-48 * time.Hour)
		require.NoError(t, os.Chtimes(filepath.Join(b.dir, blobs.DirName, "sha256", hex[:2], hex), before, before))
	}
	content, err = b.open(blobs.Options{})
	require.NoError(t, err)
	b.content.Store(content)
	return b, digests
}

// The owner's file may be damaged, or it may not have copied it yet when it took over: then this hub's copy is what there is.
func TestABlobThatTheOwnerNeedsAndLacksIsKept(t *testing.T) {
	owner, _ := startHubBlobs(t, nil)
	standby, digests := startHubBlobs(t, owner.handler(), "needed", "of no use")
	has := func(digest string) bool {
		_, has := standby.content.Load().Has(digest)
		return has
	}
	require.Error(t, standby.follow(t.Context(), "owner"), "the other one doesn't know what is needed")
	require.True(t, has(digests[0]) && has(digests[1]))

	needs := func(_ context.Context, use func(string)) error { use(digests[0]); return nil }
	owner.needed.Store(&needs)
	standby.asked = time.Time{}
	require.NoError(t, standby.follow(t.Context(), "owner"))
	require.True(t, has(digests[0]), "it is the last one")
	require.False(t, has(digests[1]))
}

// A blob is put before each write of a reference to it, and is kept from then on: at the hub that takes over in between, too.
func TestABlobThatIsPutOnceMoreIsKeptAsLongOnAllHubs(t *testing.T) {
	standby, digests := startHubBlobs(t, nil, "once more")
	w := httptest.NewRecorder()
	standby.handler().ServeHTTP(w, httptest.NewRequest(http.MethodPost, "/"+digests[0], http.NoBody))
	require.Equal(t, http.StatusOK, w.Code, w.Body)
	require.NoError(t, standby.content.Load().Collect(t.Context()))
	_, has := standby.content.Load().Has(digests[0])
	require.True(t, has)
}

func TestABlobThatNoHubHasCostsNoSearchOfAllSpecs(t *testing.T) {
	authority, err := clusterca.New(sealed.NewKey())
	require.NoError(t, err)
	hubs, err := peer.Listen(peer.Options{Listen: "127.0.0.1:0", TLS: authority.Config(), Log: zerolog.Nop()})
	require.NoError(t, err)
	defer hubs.Close()
	owner, digests := startHubBlobs(t, nil, "x")
	owner.peers.Hubs = hubs
	searched := false
	needs := func(context.Context, func(string)) error { searched = true; return nil }
	owner.needed.Store(&needs)
	require.ErrorContains(t, owner.fetchMissing(digests[0]), "no other hub has it")
	require.False(t, searched)
}
