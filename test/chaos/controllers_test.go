// SPDX-License-Identifier: Apache-2.0

package chaos

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"path/filepath"
	"regexp"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/edgebus/edgebus/cloud/store"
	"github.com/edgebus/edgebus/cloud/store/disk"
	"github.com/edgebus/edgebus/test/harness"
	"github.com/edgebus/edgebus/topics/backoff"
	"github.com/edgebus/edgebus/topics/resource"
)

const (
	ruledNodes   = 1000 // whose specs change
	ruledWriters = 16
	ruledKills   = 6
)

// trackedNode is what is known of one Node's spec.
type trackedNode struct {
	wanted  int // the number in the image that was acknowledged last: images are numbered from 1
	created bool
}

// TestControllersForgetNothing kills the hub at random while the specs of 1,000 Nodes change. At rest every spec is rendered to its
// last version, none was rendered more often than it was written, and a hub that starts again writes nothing.
func TestControllersForgetNothing(t *testing.T) {
	seed := *seedFlag
	if seed == 0 {
		seed = uint64(time.Now().UnixNano())
	}
	t.Logf("seed %d", seed)
	w, err := harness.NewWorld(t.TempDir(), seed)
	require.NoError(t, err)
	t.Cleanup(w.Close)
	ctx := t.Context()
	require.NoError(t, w.Start(ctx, "hub"))

	nodes := make([]trackedNode, ruledNodes)
	stop, stopped := context.WithCancel(ctx)
	var writers sync.WaitGroup
	for n := range ruledWriters {
		chance := rand.New(rand.NewPCG(seed, uint64(n+1)))
		writers.Go(func() {
			for round := 1; stop.Err() == nil || round <= 2; round++ { // each Node is written at least twice
				for i := n; i < ruledNodes && (stop.Err() == nil || round <= 2); i += ruledWriters {
					if round > 2 && chance.IntN(3) > 0 {
						continue
					}
					nodes[i].write(ctx, w, i, round)
				}
			}
		})
	}
	chance := rand.New(rand.NewPCG(seed, 0))
	for range ruledKills {
		backoff.Sleep(ctx, time.Duration(200+chance.IntN(1500))*time.Millisecond)
		require.NoError(t, w.Crash("hub"))
		require.NoError(t, w.Start(ctx, "hub"))
	}
	stopped()
	writers.Wait()
	awaitControllers(ctx, t, w)
	for n := range ruledWriters { // while nothing is listed again
		writers.Go(func() {
			for i := n; i < ruledNodes; i += ruledWriters {
				nodes[i].write(ctx, w, i, nodes[i].wanted+1)
			}
		})
	}
	writers.Wait()
	awaitControllers(ctx, t, w)
	first := checkRendered(t, w, nodes)
	require.NoError(t, w.Start(ctx, "hub"))
	awaitControllers(ctx, t, w)
	require.Equal(t, first, checkRendered(t, w, nodes), "a start writes nothing that is rendered already")
}

// write makes the Node, or changes its spec, and notes what is known then. A write that was refused because the hub is away is sent
// again; one that may have happened is sent again.
func (r *trackedNode) write(ctx context.Context, w *harness.World, i, number int) {
	url := "http://" + w.Hub.HTTP + "/apis/edgebus.io/v1alpha1/nodes"
	spec := fmt.Sprintf(`"spec":{"os":{"image":%q}}`, trackedImage(number))
	for ctx.Err() == nil {
		method, at, body := http.MethodPatch, url+"/"+trackedName(i), `{`+spec+`}`
		if !r.created {
			method, at, body = http.MethodPost, url, fmt.Sprintf(`{"metadata":{"name":%q},%s}`, trackedName(i), spec)
		}
		_, err := harness.Call(ctx, method, at, []byte(body))
		var refused *harness.StatusError
		switch {
		case err == nil:
			r.created, r.wanted = true, number
			return
		case errors.As(err, &refused) && refused.Code == http.StatusConflict: // the hub was killed after it was made
			r.created = true
		default:
			backoff.Sleep(ctx, 20*time.Millisecond)
		}
	}
}

// trackedImage is an image with a digest, which no registry is asked for.
func trackedImage(number int) string { return fmt.Sprintf("registry.invalid/os@sha256:%064x", number) }

func trackedName(i int) string { return "ruled-" + strconv.Itoa(10_000+i) }

var (
	waitingKeys = regexp.MustCompile(`edgebus_reconciles_waiting\{controller="render"\} (\S+)`)
	doneKeys    = regexp.MustCompile(`edgebus_reconciles_total\{controller="render",result="done"\} (\S+)`)
)

// awaitControllers waits until the controller has looked at every Node since the hub started, and has nothing left to do.
func awaitControllers(ctx context.Context, t *testing.T, w *harness.World) {
	t.Helper()
	last := ""
	quiet := 0
	require.Eventually(t, func() bool {
		page, err := harness.Call(ctx, http.MethodGet, "http://"+w.Hub.HTTP+"/metrics", nil)
		if err != nil {
			return false
		}
		waiting, done := waitingKeys.FindSubmatch(page), doneKeys.FindSubmatch(page)
		if waiting == nil || done == nil || string(waiting[1]) != "0" {
			return false
		}
		n, _ := strconv.ParseFloat(string(done[1]), 64)
		if string(done[1]) != last {
			last, quiet = string(done[1]), 0
			return false
		}
		quiet++
		return n >= ruledNodes && quiet > 5
	}, 2*time.Minute, 100*time.Millisecond, "the controller comes to rest")
}

// checkRendered stops the hub, compares what it has rendered with what was written, and returns the revisions of the records.
func checkRendered(t *testing.T, w *harness.World, nodes []trackedNode) map[string]uint64 {
	t.Helper()
	require.NoError(t, w.Term("hub"))
	st, err := disk.Open(disk.Options{Path: filepath.Join(w.Dir, "hub", "log")})
	require.NoError(t, err)
	defer func() { require.NoError(t, st.Close()) }()
	require.NoError(t, st.Check())
	page, err := st.List(t.Context(), resource.KindRenderedSpec, store.ListOptions{})
	require.NoError(t, err)
	require.Len(t, page.Items, ruledNodes, "one for each Node")
	revs := make(map[string]uint64)
	for i, o := range page.Items {
		require.Equal(t, trackedName(i), o.Name)
		var spec resource.RenderedSpec
		require.NoError(t, json.Unmarshal(o.Data, &spec))
		require.NotNil(t, spec.OS, o.Name)
		require.Equal(t, trackedImage(nodes[i].wanted), spec.OS.Image, "%s: the last that was acknowledged", o.Name)
		version, err := strconv.Atoi(spec.RenderedVersion)
		require.NoError(t, err)
		require.LessOrEqual(t, version, nodes[i].wanted, "%s: a version for each image that was wanted, and no more", o.Name)
		revs[o.Name] = o.Rev
	}
	return revs
}
