// SPDX-License-Identifier: Apache-2.0

package twin

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/edgebus/edgebus/cloud/store"
	"github.com/edgebus/edgebus/cloud/store/disk"
	"github.com/edgebus/edgebus/topics/resource"
)

// lose takes the hub's data away, and starts it on none.
func (r *rig) lose() (lost resource.HubID) {
	r.stop()
	require.NoError(r.t, os.RemoveAll(r.path)) // as somebody does who begins anew
	lost = r.hub.ID
	r.mu.Lock()
	r.nodes = make(map[string]*core)
	r.mu.Unlock()
	r.start()
	require.NotEqual(r.t, lost, r.hub.ID)
	return lost
}

// ofAnotherHub waits until that Node's condition has a status; without one it is as if False.
func (r *rig) ofAnotherHub(status string) (message string) {
	r.t.Helper()
	require.Eventually(r.t, func() bool {
		n, err := r.node()
		c := resource.ConditionOf(n.Status.Conditions, resource.OfAnotherHub)
		message = c.Message
		return err == nil && (c.Status == status || c.Status == "" && status == "False" && r.twins.met("n1"))
	}, testTimeout, pollInterval)
	return message
}

func (t *Twins) met(node string) bool {
	t.host.RLock()
	defer t.host.RUnlock()
	n := t.nodes.byName[node]
	return n != nil && n.mapHubKnown
}

func (r *rig) eventsOf(reason string) (messages []string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, h := range r.happened {
		if h.Reason == reason {
			messages = append(messages, h.Message)
		}
	}
	return messages
}

func TestAHubThatLostItsDataLeavesItsNodesAlone(t *testing.T) {
	r, c := newJoinedRig(t)
	require.NoError(t, r.send(lampDesired+"/power", "ON"))
	c.gets("devices/lamp/desired/power", "ON")
	r.inStep()

	lost := r.lose()
	r.connect(c)
	require.Contains(t, r.ofAnotherHub("True"), "set replaces: ["+lost.String()+"]")
	require.Equal(t, 1, r.twins.Stats().OfAnotherHub)
	links, _ := r.twins.Links("n1", 1)
	require.Equal(t, lost.String(), links[0].OtherHub)
	require.False(t, links[0].InStep)
	c.report("devices/lamp/reported/power", "ON") // goes up as ever, and is shown once the device is this hub's, too
	c.report("mappers/m/state", "online")
	require.Eventually(t, func() bool { return len(r.retained("v1/nodes/n1/mappers/+/state")) == 1 }, testTimeout, pollInterval)

	// What the hub has for the node stays here, on new connections, too.
	r.create(resource.KindDeviceModel, "lamp", lampModel(false))
	other := lampOn("n1")
	other.Metadata.Name = "other"
	r.create(resource.KindDevice, "other", other)
	r.disconnect(c)
	r.connect(c)
	fresh := lampOn("n2")
	fresh.Metadata.Name = "fresh"
	r.create(resource.KindDevice, "fresh", fresh)
	r.connect(newCore("n2")).gets("membership", `{"devices":["fresh"]}`)
	c.gets("membership", `{"devices":["lamp"]}`)
	c.gets("devices/lamp/desired/power", "ON")
	require.Equal(t, lost.String(), func() string { links, _ := r.twins.Links("n1", 1); return links[0].OtherHub }())
	require.Len(t, r.eventsOf(resource.OfAnotherHub), 1, "it is said once")

	// Until somebody says that this hub is in the other's place.
	r.hub.Replaces = []resource.HubID{lost}
	r.restart()
	r.connect(c)
	c.gets("membership", `{"devices":["other"]}`)
	c.gets("devices/lamp/desired/power", "")
	r.inStep()
	r.ofAnotherHub("False")
	require.Len(t, r.eventsOf("Replaced"), 1)
	require.Zero(t, r.twins.Stats().OfAnotherHub)

	// That is needed once.
	r.hub.Replaces = nil
	r.restart()
	r.connect(c)
	r.inStep()
	r.ofAnotherHub("False")
}

func TestEmptyMapsOfAnotherHubAreReplaced(t *testing.T) {
	r, c := newJoinedRig(t)
	r.inStep()
	_, err := r.store.Delete(t.Context(), store.Key{Kind: resource.KindDevice, Namespace: "default", Name: "lamp"}, 0)
	require.NoError(t, err)
	c.gets("membership", `{"devices":[]}`)
	r.inStep()
	r.lose()
	r.create(resource.KindDeviceModel, "lamp", lampModel(false))
	r.create(resource.KindDevice, "lamp", lampOn("n1"))
	r.connect(c)
	c.gets("membership", `{"devices":["lamp"]}`)
	r.ofAnotherHub("False")
	require.Empty(t, r.eventsOf(resource.OfAnotherHub))
	require.Empty(t, r.eventsOf("Replaced"))
}

func TestARestoredHubIsTheSame(t *testing.T) {
	r, c := newJoinedRig(t)
	r.inStep()
	r.stop()
	backup := filepath.Join(t.TempDir(), "backup")
	require.NoError(t, os.CopyFS(backup, os.DirFS(r.path)))
	r.start()
	r.connect(c)
	r.edit("lamp", func(d *resource.Device) { d.Metadata.Labels = map[string]string{"new": "yes"} })
	changed := func() bool { bundle, _ := c.has("devices/lamp"); return strings.Contains(bundle, `"new":"yes"`) }
	require.Eventually(t, changed, testTimeout, pollInterval)

	lost := r.lose()
	r.stop()
	require.NoError(t, os.RemoveAll(r.path))
	require.NoError(t, os.Rename(backup, r.path))
	s, err := disk.Open(disk.Options{Path: r.path})
	require.NoError(t, err)
	require.NoError(t, s.Fork(func(rev uint64) uint64 { return rev + 1<<32 }))
	require.NoError(t, s.Close())
	r.start()
	require.Equal(t, lost, r.hub.ID)
	r.connect(c)
	r.inStep()
	require.Empty(t, r.eventsOf(resource.OfAnotherHub))
	require.False(t, changed())
}
