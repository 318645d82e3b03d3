// SPDX-License-Identifier: Apache-2.0

package enroll

import (
	"context"
	"maps"
	"path/filepath"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"

	"github.com/edgebus/edgebus/cloud/control"
	"github.com/edgebus/edgebus/cloud/objects"
	"github.com/edgebus/edgebus/cloud/store"
	"github.com/edgebus/edgebus/cloud/store/disk"
	"github.com/edgebus/edgebus/topics/resource"
)

// A node that joins says which labels follow the system information. The hub keeps them as it changes, and leaves others alone.
func TestLabelsOfANodeThatHasJoinedFollowItsSystem(t *testing.T) {
	st, err := disk.Open(disk.Options{Path: filepath.Join(t.TempDir(), "log")})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, st.Close()) })
	objs := objects.New(objects.Options{Reader: st, Writer: st, Log: zerolog.Nop()})
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = control.New(control.Options{Reader: st, Watcher: st, Metrics: prometheus.NewRegistry(), Log: zerolog.Nop()}).Run(ctx, LabelsController(objs.Controller("node-labels")))
	}()
	t.Cleanup(func() { stop(); <-ended })

	s := New(Options{Reader: st, Writer: st, Watcher: st, Objects: objs.Controller("enroll")})
	join := func(follow string) {
		t.Helper()
		require.NoError(t, s.joiner.writeJoinedNode(ctx, "n1", "key", joinLabels{
			given: map[string]string{"site": "hall"}, own: map[string]string{"arch": "amd64", "line": "a"}, follow: resource.ParsePairs(follow),
		}))
	}
	user, key := objs.Controller("user"), store.Key{Kind: resource.KindNode, Name: "n1"}
	system := func(arch, kernel string) {
		t.Helper()
		err := objects.UpdateStatus(ctx, user, key, func(n *resource.Node) error {
			n.Status.SystemInfo = &resource.SystemInfo{Architecture: arch, Kernel: kernel}
			return nil
		})
		require.NoError(t, err)
	}
	var n *resource.Node
	labels := func(want map[string]string) {
		t.Helper()
		require.Eventually(t, func() bool {
			n, err = objects.Get[resource.Node](ctx, user, key)
			require.NoError(t, err)
			return maps.Equal(want, n.Metadata.Labels)
		}, 30*time.Second, time.Millisecond)
	}
	join("arch=architecture,kernel=kernel,made=up")
	system("riscv64", "6.12") // which is another one than the node said when it joined
	labels(map[string]string{"site": "hall", "line": "a", "arch": "riscv64", "kernel": "6.12"})
	generation := n.Metadata.Generation
	system("arm64", "6.13")
	labels(map[string]string{"site": "hall", "line": "a", "arch": "arm64", "kernel": "6.13"})
	err = objects.Update(ctx, user, key, func(n *resource.Node) error {
		n.Metadata.Labels["arch"] = "special"
		return nil
	})
	require.NoError(t, err)
	system("amd64", "6.14")
	labels(map[string]string{"site": "hall", "line": "a", "arch": "special", "kernel": "6.14"})
	require.Equal(t, generation, n.Metadata.Generation, "the spec is the same")

	err = objects.Update(ctx, user, key, func(n *resource.Node) error {
		delete(n.Metadata.Labels, "line")
		return nil
	})
	require.NoError(t, err)
	join("kernel=hostname,os=osImage,line=architecture") // again: what the Node says already stays
	system("mips", "6.15")
	labels(map[string]string{"site": "hall", "line": "mips", "arch": "special", "kernel": "6.15"})
	require.Equal(t, "arch=architecture,kernel=kernel,line=architecture,made=up,os=osImage", n.Metadata.Annotations[resource.LabelFromAnnotation])
}
