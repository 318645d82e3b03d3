// SPDX-License-Identifier: Apache-2.0

package fleet

import (
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// The Fleet of docs/fleets.md whose application is a mapper: it runs on one node first, then on the others, is restarted with each new image of
// its tag, and stopped when the template has it no more.
func TestMappersAsContainers(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../../../docs/fleets.md")
	require.NoError(t, err)
	var manifest string
	for _, block := range regexp.MustCompile("(?ms)^```yaml\n(.*?)^```$").FindAllSubmatch(page, -1) {
		if strings.Contains(string(block[1]), "mapper-modbus.container") {
			manifest = string(block[1])
		}
	}
	require.NotEmpty(t, manifest)
	registry := startRegistry(t)
	digest := registry.push(t, "mapper-modbus:1")
	manifest = strings.ReplaceAll(manifest, "registry.example", registry.address)
	var nodes []*testNode
	for range 2 {
		n := newOnlineNode(t, "machine=press")
		n.withSystemd(t)
		n.startAgent(t, "--health-timeout", "30s")
		nodes = append(nodes, n)
	}
	applyManifest(t, "%s", manifest)
	const unit = "mapper-modbus.service"
	file := "etc/containers/systemd/mapper-modbus/mapper-modbus.container"
	runs := func(n *testNode, digest string) {
		t.Helper()
		untilIs(t, "nodes/"+n.name, "status.applications.0.status", "Running")
		waitUntil(t, func() error {
			text, err := os.ReadFile(n.root + "/" + file)
			if err == nil && !strings.Contains(string(text), "Image="+registry.address+"/mapper-modbus@"+digest) {
				err = fmt.Errorf("%s has %s", n.name, text)
			}
			return err
		})
		require.Equal(t, "active", n.systemd.Active(unit))
	}
	for _, n := range nodes {
		runs(n, digest)
		text, err := os.ReadFile(n.root + "/" + file)
		require.NoError(t, err)
		require.Contains(t, string(text), "Modbus devices of "+n.name)
		n.systemd.Log()
	}

	moved := registry.push(t, "mapper-modbus:1")
	require.NotEqual(t, digest, moved)
	for _, n := range nodes {
		runs(n, moved)
		waitUntil(t, func() error {
			if log := n.systemd.Log(); !slices.Contains(log, "restart "+unit) {
				return fmt.Errorf("%s: %q", n.name, log)
			}
			return nil
		})
	}
	waitUntil(t, func() error { return wantEqual("2", getObject(t, "fleets/presses").text("status.rollout.updated")) })

	for _, n := range nodes { // the next image doesn't start: it stays on the first node, which goes back
		n.systemd.Fail(unit, true)
	}
	registry.push(t, "mapper-modbus:1")
	untilIs(t, "fleets/presses", "status.rollout.reason", "Halted")
	for _, n := range nodes {
		n.systemd.Fail(unit, false)
		text, err := os.ReadFile(n.root + "/" + file)
		require.NoError(t, err)
		require.Contains(t, string(text), moved, "%s has the image before", n.name)
	}

	setTemplate(t, "presses", `{}`)
	for _, n := range nodes {
		n.untilGone(t, file)
		waitUntil(t, func() error { return wantEqual("", n.systemd.Active(unit)) })
	}
}
