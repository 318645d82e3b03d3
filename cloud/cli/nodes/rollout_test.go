// SPDX-License-Identifier: Apache-2.0

package nodes_test

import (
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/edgebus/edgebus/cloud/api"
	"github.com/edgebus/edgebus/cloud/cli"
	"github.com/edgebus/edgebus/cloud/cli/exitcode"
	"github.com/edgebus/edgebus/cloud/objects"
	"github.com/edgebus/edgebus/cloud/store"
	"github.com/edgebus/edgebus/test/clitest"
	"github.com/edgebus/edgebus/topics/resource"
)

func TestLabelsOfInvitationsAreInOrder(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, `[{"id":"1","node":"n1","labels":{"e":"5","c":"3","a":"1","d":"4","b":"2"},"uses":1}]`)
	}))
	t.Cleanup(server.Close)
	t.Setenv("KUBECONFIG", filepath.Join(t.TempDir(), "config"))
	for range 8 {
		out, _ := clitest.Run(t, 0, "invite", "--list", "--server", server.URL)
		require.Contains(t, out, "a=1,b=2,c=3,d=4,e=5")
	}
}

// fleetHub is a hub on which nothing acts on fleets: the test writes what the controller would.
type fleetHub struct {
	*testing.T
	as *objects.Controller
}

func newFleetHub(t *testing.T) *fleetHub {
	h := &fleetHub{T: t}
	clitest.StartHub(t, func(o *api.Options) {
		h.as = o.Objects.Controller("test")
	})
	clitest.Run(t, 0, "apply", "-f", clitest.WriteFile(t, t.TempDir(), "fleet.yaml", `
apiVersion: edgebus.io/v1alpha1
kind: Fleet
metadata: {name: shops}
spec: {selector: {matchLabels: {site: shop}}, template: {spec: {os: {image: "quay.io/acme/os:1"}}}}
`))
	return h
}

func (h *fleetHub) version(name, image, digest string) {
	v := &resource.TemplateVersion{Metadata: resource.Meta{Name: name, Owner: "Fleet/shops"}}
	v.Spec.Fleet, v.Spec.Template.Spec.OS = "shops", &resource.NodeOS{Image: image}
	v.Spec.References = []resource.Reference{{Type: "image", Source: "quay.io/acme/os", Floating: "1", Resolved: digest}}
	_, err := objects.Create(context.Background(), h.as, v)
	require.NoError(h, err)
}

func (h *fleetHub) status(r resource.RolloutStatus) {
	err := objects.UpdateStatus(context.Background(), h.as, store.Key{Kind: resource.KindFleet, Name: "shops"}, func(f *resource.Fleet) error {
		r.ObservedGeneration = f.Metadata.Generation
		f.Status.Rollout = &r
		return nil
	})
	require.NoError(h, err)
}

func (h *fleetHub) fleet() *resource.Fleet {
	f, err := objects.Get[resource.Fleet](context.Background(), h.as, store.Key{Kind: resource.KindFleet, Name: "shops"})
	require.NoError(h, err)
	return f
}

func TestRolloutStatus(t *testing.T) {
	h := newFleetHub(t)
	_, errs := clitest.Run(t, exitcode.NotFound, "rollout", "status", "nosuch")
	require.Contains(t, errs, "nosuch")
	out, _ := clitest.Run(t, 0, "rollout", "status", "shops", "--now")
	require.Equal(t, "shops: it has not begun\n", out)
	_, errs = clitest.Run(t, exitcode.TimedOut, "rollout", "status", "shops", "--timeout", "2s")
	require.Contains(t, errs, "the rollout of shops is not finished: it has not begun")

	under := resource.RolloutStatus{TemplateVersion: "shops-0000002", Batch: 1, Batches: 2, Nodes: 4, Updated: 1, Updating: 1, Reason: "LaterBatch", Message: "2 wait"}
	h.status(under)
	read, write := io.Pipe()
	done := make(chan int, 1)
	go func() {
		done <- cli.Run([]string{"rollout", "status", "shops"}, write, io.Discard)
		_ = write.Close()
	}()
	first := make([]byte, 200)
	n, err := read.Read(first)
	require.NoError(t, err)
	require.Equal(t, "shops-0000002 [######>>>>>>............] 1/4, batch 1/2, 1 updating, LaterBatch\n", string(first[:n]))
	h.status(resource.RolloutStatus{TemplateVersion: "shops-0000002", Batch: 2, Batches: 2, Nodes: 4, Updated: 4, FinishedAt: "2026-11-22T10:00:00Z"})
	rest, err := io.ReadAll(read)
	require.NoError(t, err)
	require.Equal(t, "shops-0000002 [########################] 4/4, batch 2/2, finished\n", string(rest))
	require.Zero(t, <-done)

	h.status(resource.RolloutStatus{TemplateVersion: "shops-0000003", Batch: 1, Batches: 2, Nodes: 4, FailedNodes: 2, Reason: "Halted", Message: "2 of 4 failed"})
	_, errs = clitest.Run(t, exitcode.Failed, "rollout", "status", "shops")
	require.Contains(t, errs, "the rollout of shops has stopped: Halted: 2 of 4 failed")
	clitest.Run(t, 0, "rollout", "status", "shops", "--now")

	// nothing says how many may fail: the fleet is not Ready then, and neither is its rollout a success
	h.status(resource.RolloutStatus{TemplateVersion: "shops-0000003", Batch: 1, Batches: 1, Nodes: 4, Updated: 3, FailedNodes: 1, FinishedAt: "2026-11-22T10:00:00Z", Message: "node n1: no room"})
	_, errs = clitest.Run(t, exitcode.Failed, "rollout", "status", "shops")
	require.Contains(t, errs, "1 of 4 nodes of shops failed to get shops-0000003: node n1: no room")
}

func TestRolloutPausesAndIsUndone(t *testing.T) {
	h := newFleetHub(t)
	out, _ := clitest.Run(t, 0, "rollout", "pause", "shops")
	require.Equal(t, "fleet/shops paused\n", out)
	require.True(t, h.fleet().Spec.Paused)
	out, _ = clitest.Run(t, 0, "rollout", "pause", "shops")
	require.Equal(t, "fleet/shops unchanged\n", out)
	out, _ = clitest.Run(t, 0, "rollout", "resume", "shops")
	require.Equal(t, "fleet/shops resumed\n", out)
	require.False(t, h.fleet().Spec.Paused)

	_, errs := clitest.Run(t, exitcode.Refused, "rollout", "undo", "shops")
	require.Contains(t, errs, "fleet shops has no version yet")
	h.version("shops-0000001", "quay.io/acme/os:1", "sha256:a")
	h.version("shops-0000002", "quay.io/acme/os:1", "sha256:b")
	h.version("shops-0000003", "quay.io/acme/os:2", "sha256:b")
	h.status(resource.RolloutStatus{TemplateVersion: "shops-0000003"})
	to := func() string { return h.fleet().Metadata.Annotations[resource.RollBackAnnotation] }
	out, _ = clitest.Run(t, 0, "rollout", "undo", "shops")
	require.Equal(t, "fleet/shops is rolled back to shops-0000002\n", out)
	require.Equal(t, "shops-0000002", to())
	clitest.Run(t, 0, "rollout", "undo", "shops", "--to", "1")
	require.Equal(t, "shops-0000001", to())
	h.status(resource.RolloutStatus{TemplateVersion: "shops-0000001", RolledBackFrom: "shops-0000003"})
	_, errs = clitest.Run(t, exitcode.NotFound, "rollout", "undo", "shops")
	require.Contains(t, errs, "fleet shops has none before shops-0000001; it has shops-0000001, shops-0000002, shops-0000003")
	_, errs = clitest.Run(t, exitcode.NotFound, "rollout", "undo", "shops", "--to", "9")
	require.Contains(t, errs, "fleet shops has no version 9")
	clitest.Run(t, 0, "rollout", "undo", "shops", "--to", "shops-0000003")
	require.Empty(t, to())
	h.status(resource.RolloutStatus{TemplateVersion: "shops-0000004"}) // which is gone
	clitest.Run(t, 0, "rollout", "undo", "shops")
	require.Empty(t, to(), "it is the newest that there is")
	h.status(resource.RolloutStatus{TemplateVersion: "shops-0000003"})
	_, errs = clitest.Run(t, exitcode.Refused, "delete", "templateversion", "shops-0000002")
	require.Contains(t, errs, "is undone with")
	clitest.Run(t, 0, "delete", "templateversion", "shops-0000002", "--force", "--dry-run")
	h.status(resource.RolloutStatus{TemplateVersion: "shops-0000001", RolledBackFrom: "shops-0000003"})

	err := objects.UpdateStatus(t.Context(), h.as, store.Key{Kind: resource.KindTemplateVersion, Name: "shops-0000001"}, func(v *resource.TemplateVersion) error {
		v.Status.RolledOutAt = time.Now().Add(-time.Hour).UTC().Format(time.RFC3339)
		return nil
	})
	require.NoError(t, err)
	out, _ = clitest.Run(t, 0, "rollout", "history", "shops")
	require.Regexp(t, `^VERSION +AGE +ROLLED-OUT +CHANGED
shops-0000001 +\S+ +1h ago, now +–
shops-0000002 +\S+ +no +image quay.io/acme/os:1
shops-0000003 +\S+ +no +the template
$`, out)
	out, _ = clitest.Run(t, 0, "rollout", "history", "shops", "-o", "json")
	require.Contains(t, out, `"shops-0000003"`)
}
