// SPDX-License-Identifier: Apache-2.0

package twin

import (
	"bytes"
	"context"
	"encoding/json"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/edgebus/edgebus/cloud/store"
	"github.com/edgebus/edgebus/cloud/store/disk"
	"github.com/edgebus/edgebus/topics/link"
	"github.com/edgebus/edgebus/topics/resource"
)

const pollInterval = 2 * time.Millisecond

var nodeObjectKey = store.Key{Kind: resource.KindNode, Name: "n1"}

func (r *rig) node() (n resource.Node, err error) {
	o, err := r.store.Get(context.Background(), nodeObjectKey)
	if err == nil && len(o.Status) > 0 {
		err = json.Unmarshal(o.Status, &n.Status)
	}
	return n, err
}

// nodeCondition is what the status says of the node; the zero value: nothing.
func (r *rig) nodeCondition(kind string) resource.Condition {
	n, _ := r.node()
	return resource.ConditionOf(n.Status.Conditions, kind)
}

// step has f called as a step, and waits until it is done.
func (r *rig) step(f func()) {
	done := make(chan struct{})
	r.twins.host.Put("", 0, func(*batch) { f(); close(done) })
	<-done
}

func TestANodeThatOwnsTooMuchIsShownAndRecovers(t *testing.T) {
	r, c := newJoinedRig(t)
	r.inStep()
	r.step(func() { r.twins.nodes.byName["n1"].up.SetQuota(link.Quota{Keys: 2}) })
	c.report("devices/lamp/reported/power", "ON")
	c.report("devices/lamp/reported/temperature", "4")
	c.report("devices/lamp/reported/brightness", "40")
	exceeded := func(status string) func() bool {
		return func() bool {
			return r.nodeCondition(resource.QuotaExceeded).Status == status
		}
	}
	require.Eventually(t, exceeded("True"), testTimeout, pollInterval)
	require.Contains(t, r.nodeCondition(resource.QuotaExceeded).Message, "3 keys, at most 2 are taken")
	require.Equal(t, 1, r.twins.Stats().Oversize)

	other := r.connect(newCore("n2"))
	other.report("status", `{"version":"1"}`)
	require.Eventually(t, func() bool { return len(r.retained("v1/nodes/n2/status")) == 1 }, testTimeout, pollInterval, "others are not concerned")
	require.NoError(t, r.send(lampDesired+"/power", "ON"))
	c.gets("devices/lamp/desired/power", "ON") // nor is what the cloud wants

	c.mu.Lock()
	c.up.Delete("devices/lamp/reported/brightness", 0, "")
	c.up.Resend() // as a core's timer does
	c.mu.Unlock()
	c.talk()
	require.Eventually(t, exceeded("False"), testTimeout, pollInterval)
	require.Len(t, r.retained("v1/nodes/n1/devices/lamp/reported/+"), 2)
	require.Zero(t, r.twins.Stats().Oversize)
}

func TestADeletedNodesReportsGoWithIt(t *testing.T) {
	r, c := newJoinedRig(t)
	c.report("devices/lamp/reported/power", "ON")
	r.inStep()
	require.Eventually(t, func() bool { _, err := r.node(); return err == nil }, testTimeout, pollInterval)
	remove := func() {
		_, err := r.store.Delete(context.Background(), nodeObjectKey, 0)
		require.NoError(t, err)
	}
	remove()
	require.Eventually(t, func() bool { _, err := r.node(); return err == nil }, testTimeout, pollInterval, "a connected node is registered again")
	require.Len(t, r.retained("v1/nodes/n1/devices/lamp/reported/+"), 1)

	r.disconnect(c)
	require.Eventually(t, func() bool { n, err := r.node(); return err == nil && n.Status.State == resource.Offline }, testTimeout, pollInterval)
	r.fault.reports.Store(true)
	remove()
	require.Eventually(t, func() bool { return r.twins.Stats().FailedCommits > 0 }, testTimeout, pollInterval)
	require.Len(t, r.retained("v1/nodes/n1/devices/lamp/reported/+"), 1)
	r.storesAgain()
	require.Eventually(t, func() bool { return len(r.retained("v1/nodes/n1/devices/lamp/reported/+")) == 0 }, testTimeout, pollInterval)
	require.Contains(t, r.said("v1/nodes/n1/devices/lamp/reported/power"), "")
	stored, err := r.store.Load(context.Background(), "n1")
	require.NoError(t, err)
	require.Empty(t, stored.Items)
	require.Contains(t, r.twins.Nodes(), "n1", "a device is bound to it")

	r.connect(c) // it comes back, and says all again
	r.inStep()
	require.Len(t, r.retained("v1/nodes/n1/devices/lamp/reported/+"), 1)
}

func TestANodeDeletedJustBeforeTheHubDiedIsShownAgain(t *testing.T) {
	r := newRig(t)
	c := r.connect(newCore("n1"))
	c.report("status", `{"version":"1"}`)
	require.Eventually(t, func() bool { _, err := r.node(); return err == nil && r.twins.Stats().UpKeys == 1 }, testTimeout, pollInterval)
	r.disconnect(c)
	require.Eventually(t, func() bool { n, err := r.node(); return err == nil && n.Status.State == resource.Offline }, testTimeout, pollInterval)
	r.stop()
	s, err := disk.Open(disk.Options{Path: r.path})
	require.NoError(t, err)
	_, err = s.Delete(context.Background(), nodeObjectKey, 0)
	require.NoError(t, err)
	require.NoError(t, s.Close())
	r.start()
	require.Eventually(t, func() bool { n, err := r.node(); return err == nil && n.Status.State == resource.Offline }, testTimeout, pollInterval,
		"its reports are there, and were acknowledged")
	_, err = r.store.Delete(context.Background(), nodeObjectKey, 0)
	require.NoError(t, err)
	require.Eventually(t, func() bool { return len(r.twins.Nodes()) == 0 }, testTimeout, pollInterval)
	require.Empty(t, r.retained("#"))
	stored, err := r.store.Load(context.Background(), "n1")
	require.NoError(t, err)
	require.Empty(t, stored.Items)
}

func TestANodeIsToldItsLabelsWithItsDevices(t *testing.T) {
	r, c := newJoinedRig(t)
	label := func(labels map[string]string) {
		t.Helper()
		require.Eventually(t, func() bool { // its status may be written meanwhile
			o, err := r.store.Get(context.Background(), nodeObjectKey)
			if err != nil {
				return false
			}
			var n resource.Node
			require.NoError(t, json.Unmarshal(o.Data, &n))
			n.Metadata.Labels = labels
			data, err := json.Marshal(n)
			require.NoError(t, err)
			_, err = r.store.Update(context.Background(), store.Object{Key: o.Key, Data: data}, o.Rev)
			return err == nil
		}, testTimeout, pollInterval)
	}
	label(map[string]string{"site": "hall", "area": "a"})
	c.gets("membership", `{"devices":["lamp"],"labels":{"area":"a","site":"hall"}}`)
	r.restart()
	r.connect(c)
	c.gets("membership", `{"devices":["lamp"],"labels":{"area":"a","site":"hall"}}`)
	label(map[string]string{"site": "yard"})
	c.gets("membership", `{"devices":["lamp"],"labels":{"site":"yard"}}`)
	label(nil)
	c.gets("membership", `{"devices":["lamp"]}`)
}

// What the hub says of a node beside its rendering is about another generation when that spec is rendered, not once before and once then.
func TestWhileASpecIsRenderedTheNodesStatusStaysAsItIs(t *testing.T) {
	r := newRig(t)
	data := func(generation string) []byte {
		return []byte(`{"metadata":{"name":"n1","generation":` + generation + `},"spec":{"os":{"image":"` + generation + `"}}}`)
	}
	node, err := r.store.Create(t.Context(), store.Object{
		Key: nodeObjectKey, Data: data("1"), Status: []byte(`{"conditions":[{"type":"SpecRendered","status":"True","reason":"Rendered","observedGeneration":1}]}`),
	})
	require.NoError(t, err)
	ready := func(generation int64) func() bool {
		return func() bool {
			return r.nodeCondition(resource.ConditionReady).ObservedGeneration == generation && r.twins.status.waiting() == 0
		}
	}
	require.Eventually(t, ready(1), testTimeout, pollInterval)
	_, err = r.store.Update(t.Context(), store.Object{Key: nodeObjectKey, Data: data("2")}, 0)
	require.NoError(t, err)
	_, err = r.store.Create(t.Context(), store.Object{Key: store.Key{Kind: node.Kind, Name: "n2"}, Data: []byte(`{"metadata":{"name":"n2"}}`)})
	require.NoError(t, err)
	require.Eventually(t, func() bool { s, _ := r.nodeStatus("n2"); return len(s.Conditions) > 0 && ready(1)() }, testTimeout, pollInterval)
	require.EqualValues(t, 2, r.twins.Stats().Statuses, "one of each node")

	node, err = r.store.Get(t.Context(), nodeObjectKey)
	require.NoError(t, err)
	status := bytes.Replace(node.Status, []byte(`"reason":"Rendered","observedGeneration":1`), []byte(`"reason":"Rendered","observedGeneration":2`), 1)
	_, err = r.store.Update(t.Context(), store.Object{Key: nodeObjectKey, Status: status}, 0)
	require.NoError(t, err)
	require.Eventually(t, ready(2), testTimeout, pollInterval)
}
