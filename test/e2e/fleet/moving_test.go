// SPDX-License-Identifier: Apache-2.0

package fleet

import (
	"fmt"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
)

// The branch of a git repository and the tag of an image move while a fleet is rolled out, node by node: all nodes that have a version have the
// same commit and digest with it, those that the version names.
func TestReferencesMoveInARollout(t *testing.T) {
	t.Parallel()
	const fleet = "moves"
	r := makeRepository(t, fleet, "etc/motd", "0\n")
	registry := startRegistry(t)
	registry.push(t, "web:latest")
	var nodes []*testNode
	for range 3 {
		n := newOnlineNode(t, "moves=a")
		n.withSystemd(t)
		n.startAgent(t)
		nodes = append(nodes, n)
	}
	unit := fmt.Sprintf(`{"name":"web","appType":"quadlet","files":[{"path":"web.container","content":"[Container]\nImage=%s/web:latest\n"}]}`, registry.address)
	callOK(t, "", "POST", apiPath+"fleets", `{"metadata":{"name":"`+fleet+`"},"spec":{"selector":{"matchLabels":{"moves":"a"}},
		"rolloutPolicy":{"disruptionBudget":{"maxUnavailable":1},"successThreshold":"0%"},
		"template":{"spec":{"config":[`+fromGit(fleet, "main", "/")+`],"applications":[`+unit+`]}}}}`)

	seen := map[string]map[string]bool{} // by version: the commits and digests that nodes have with it
	look := func() {
		for _, n := range nodes {
			is := n.get(t)
			if v := is.text("metadata.annotations.fleet-controller/assignedTemplateVersion"); v != "" {
				if seen[v] == nil {
					seen[v] = map[string]bool{}
				}
				seen[v][is.text("spec.config.0.gitRef.targetRevision")+" "+is.text("spec.applications.0.files.0.content")] = true
			}
		}
	}
	const moves = 4
	for i := 1; i <= moves; i++ {
		version := ""
		waitUntil(t, func() error {
			look()
			version = nodes[0].get(t).text("metadata.annotations.fleet-controller/assignedTemplateVersion")
			if version == "" {
				return fmt.Errorf("%s has no version", nodes[0].name)
			}
			return nil
		})
		var both sync.WaitGroup
		both.Go(func() { r.commit(t, "etc/motd", fmt.Sprintf("%d\n", i)) })
		both.Go(func() { registry.push(t, "web:latest") })
		both.Wait()
		waitUntil(t, func() error {
			look()
			if now := nodes[0].get(t).text("metadata.annotations.fleet-controller/assignedTemplateVersion"); now == version {
				return fmt.Errorf("%s has %s still", nodes[0].name, version)
			}
			return nil
		})
	}
	commit := r.git(t, "rev-parse", "HEAD")
	for _, n := range nodes {
		waitUntil(t, func() error { look(); return wantEqual(commit, n.get(t).text("spec.config.0.gitRef.targetRevision")) })
		n.untilFile(t, "etc/motd", fmt.Sprintf("%d\n", moves))
	}
	require.Greater(t, len(seen), moves)
	for v, had := range seen {
		require.Len(t, had, 1, "%s is one thing: %v", v, had)
		code, stored, _ := callAPI(t, "", "GET", apiPath+"templateversions/"+v, "")
		require.Equal(t, 200, code, v)
		for only := range had {
			for _, ref := range stored.list("spec.references") {
				require.Contains(t, only, ref.text("resolved"), v)
			}
		}
	}
}
