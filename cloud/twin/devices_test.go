// SPDX-License-Identifier: Apache-2.0

package twin

import (
	"context"
	"encoding/json"
	"fmt"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/edgebus/edgebus/broker"
	"github.com/edgebus/edgebus/cloud/store"
	"github.com/edgebus/edgebus/topics"
	"github.com/edgebus/edgebus/topics/resource"
)

func TestPrepareInOrderKeepsTheOrder(t *testing.T) {
	for _, n := range []int{0, 1, chunkSize, chunkSize + 1, 10*chunkSize + 7} {
		items := make([]int, n)
		for i := range items {
			items[i] = i
		}
		used := 0
		prepareInOrder(items, strconv.Itoa, func(item int, text string) {
			require.Equal(t, used, item)
			require.Equal(t, strconv.Itoa(item), text)
			used++
		})
		require.Equal(t, n, used)
	}
}

// TestADeviceMadeAnewWhileItsNodeIsAwayHasNothingOfTheFormerOne: until the node reports of it. One that only left for a while keeps what
// was reported.
func TestADeviceMadeAnewWhileItsNodeIsAwayHasNothingOfTheFormerOne(t *testing.T) {
	for _, uid := range []string{"u1", "u2"} {
		r, c := newJoinedRig(t)
		c.report("devices/lamp/reported/power", "ON")
		c.report("devices/lamp/state", resource.Online)
		r.status(func(s resource.DeviceStatus) bool {
			return s.Twin["power"].Reported != nil && s.State == resource.Online
		})
		r.disconnect(c)
		_, err := r.store.Delete(t.Context(), store.Key{Kind: resource.KindDevice, Namespace: "default", Name: "lamp"}, 0)
		require.NoError(t, err)
		lamp := lampOn("n1")
		lamp.Metadata.UID = uid
		r.create(resource.KindDevice, "lamp", lamp)
		if uid == "u1" {
			r.status(func(s resource.DeviceStatus) bool { return s.Twin["power"].Reported != nil })
			continue
		}
		r.status(func(s resource.DeviceStatus) bool {
			return len(s.Conditions) > 0 && s.Twin["power"].Reported == nil && s.State == resource.Unknown
		})
		require.NotContains(t, r.retained("v1/nodes/n1/#"), "v1/nodes/n1/devices/lamp/reported/power")

		c.mu.Lock()
		c.up.Delete("devices/lamp/reported/power", time.Now().UnixMilli(), "") // as a core does that learns of the other Device
		c.mu.Unlock()
		r.connect(c)
		c.report("devices/lamp/reported/power", "ON")
		r.status(func(s resource.DeviceStatus) bool { return s.Twin["power"].Reported != nil })
		require.Contains(t, r.retained("v1/nodes/n1/#"), "v1/nodes/n1/devices/lamp/reported/power")
	}
}

// shown is what a subscriber to everything finds retained of a topic; empty: nothing.
func (r *rig) shown(topic string) string {
	next := r.twins.Retained(topic)
	for list := next(10); len(list) > 0; list = next(10) {
		for _, m := range list {
			return string(m.Payload)
		}
	}
	return ""
}

// What a node reports of a device that isn't bound to it is shown to nobody, live or retained, until it is.
func TestANodeReportsItsOwnDevicesOnly(t *testing.T) {
	r, _ := newJoinedRig(t)
	passed := 0
	r.twins.opts.Pass = func(_ broker.Message, done func(error)) { passed++; done(nil) }
	rogue := r.connect(newCore("n2"))
	const topic = "v1/nodes/n2/devices/lamp/reported/power"
	rogue.report("devices/lamp/reported/power", "OFF")
	rogue.report("mappers/m/state", "online")
	require.Eventually(t, func() bool { return r.shown("v1/nodes/n2/mappers/m/state") == "online" }, testTimeout, 1e6, "what was said before is known")
	require.Empty(t, r.said(topic))
	require.Empty(t, r.shown(topic))

	for _, kind := range []string{"telemetry/power", "events/fell"} {
		publish := func(node string) error {
			return r.await(r.publishAs(nodeIdentity(node), topics.Prefix+node+"/devices/lamp/"+kind, "", broker.Properties{}))
		}
		require.Equal(t, resource.NotFound, resource.KindOf(publish("n2")))
		require.NoError(t, publish("n1"))
	}
	require.Equal(t, 2, passed)

	r.edit("lamp", func(d *resource.Device) { d.Spec.NodeName = "n2" })
	require.Eventually(t, func() bool { return len(r.said(topic)) == 1 }, testTimeout, 1e6, "with the device comes what was said of it")
	require.Equal(t, "OFF", r.shown(topic))
	require.Error(t, r.twins.Has("n1", "lamp"))
	require.NoError(t, r.twins.Has("n2", "lamp"))
}

// A bundle is what it always was, with the text of its model held once for all of them.
func TestBundlesShareTheTextOfTheirModel(t *testing.T) {
	r, c := newJoinedRig(t)
	own := lampOn("n1")
	own.Metadata.Name, own.Metadata.UID = "own", "u2"
	own.Spec.PropertyVisitors = []resource.Visitor{{PropertyName: "power", Config: map[string]resource.Value{"register": "1"}}}
	r.create(resource.KindDevice, "own", own)
	for _, d := range []resource.Device{lampOn("n1"), own} {
		want, err := json.Marshal(resource.NewBundle(d, lampModel(false)))
		require.NoError(t, err)
		c.gets("devices/"+d.Metadata.Name, string(want))
	}
	tail, err := bundleTail(lampModel(false))
	require.NoError(t, err)
	doc, err := json.Marshal(resource.NewBundle(lampOn("n1"), lampModel(false)))
	require.NoError(t, err)
	require.Contains(t, string(doc), `"device":`)
	require.Equal(t, tail, string(doc[len(doc)-len(tail):]))
}

// A Device that can't be read stays what it was until it can.
func TestADeviceThatCantBeReadStaysWhatItWas(t *testing.T) {
	r, c := newJoinedRig(t)
	_, o := r.device("lamp")
	_, err := r.store.Update(context.Background(), store.Object{Key: o.Key, Data: []byte(`{"spec":[]}`)}, 0)
	require.NoError(t, err)
	other := lampOn("n1")
	other.Metadata.Name, other.Metadata.UID = "other", "u2"
	r.create(resource.KindDevice, "other", other)
	c.gets("membership", `{"devices":["lamp","other"]}`)
	require.NoError(t, r.twins.Has("n1", "lamp"))
}

// While the hub could not follow the store, a Device may have gone and another have taken its name.
func TestADeviceOfTheSameNameInAnotherNamespaceTakesItsPlace(t *testing.T) {
	r, _ := newJoinedRig(t)
	model, err := json.Marshal(lampModel(false))
	require.NoError(t, err)
	other := lampOn("n1")
	other.Metadata.Namespace, other.Metadata.UID = "other", "u2"
	data, err := json.Marshal(other)
	require.NoError(t, err)
	got := make(chan string, 1)
	r.twins.host.Put("", 0, func(b *batch) { // all in one step: the store itself still has the first one
		r.twins.changedModel(b, store.Object{Key: store.Key{Namespace: "other", Name: "lamp"}, Data: model}, false)
		r.twins.replaceAll(b, resource.KindDevice, []store.Object{{Key: store.Key{Namespace: "other", Name: "lamp"}, Data: data}})
		r.twins.derive(b)
		e, _ := r.twins.nodes.byName["n1"].down.Get("devices/lamp")
		got <- string(e.Value)
	})
	want, err := json.Marshal(resource.NewBundle(other, lampModel(false)))
	require.NoError(t, err)
	require.Equal(t, string(want), <-got)
}

func TestManyDevicesAreListedTogether(t *testing.T) {
	r, c := newJoinedRig(t)
	const many = 3 * smallMembership
	for i := range many {
		d := lampOn("n1")
		d.Metadata.Name = fmt.Sprintf("lamp-%d", i)
		r.create(resource.KindDevice, d.Metadata.Name, d)
	}
	listed := func() int {
		var m resource.Membership
		text, _ := c.has("membership")
		require.NoError(t, json.Unmarshal([]byte(text), &m))
		return len(m.Devices)
	}
	require.Eventually(t, func() bool { return listed() == many+1 }, testTimeout, pollInterval)
	require.Less(t, len(r.said("v1/nodes/n1/membership")), 2*smallMembership, "the longer ones are few")
}

func TestADeviceThatMovesLeavesNoKeys(t *testing.T) {
	r, one := newJoinedRig(t)
	two := r.connect(newCore("n2"))
	require.NoError(t, r.send(lampDesired+"/power", "ON"))
	one.gets("devices/lamp/desired/power", "ON")
	r.edit("lamp", func(d *resource.Device) { d.Spec.NodeName = "n2" })
	two.gets("devices/lamp/desired/power", "ON")
	two.gets("membership", `{"devices":["lamp"]}`)
	one.gets("membership", `{"devices":[]}`)
	one.gets("devices/lamp/desired/power", "")
	one.gets("devices/lamp", "")

	_, err := r.store.Delete(context.Background(), store.Key{Kind: resource.KindDevice, Namespace: "default", Name: "lamp"}, 0)
	require.NoError(t, err)
	two.gets("devices/lamp", "")
	two.gets("devices/lamp/desired/power", "")
	for topic := range r.retained("v1/nodes/+/devices/#") {
		t.Errorf("%s is left", topic)
	}
}

func TestAModelThatComesLaterOrChanges(t *testing.T) {
	r := newRig(t)
	c := r.connect(newCore("n1"))
	d := lampOn("n1")
	d.Spec.Desired = map[string]resource.Value{"power": "ON", "brightness": "40"}
	resource.StampDesired(nil, &d, "kubectl", "", time.Now())
	r.create(resource.KindDevice, "lamp", d)
	r.status(func(s resource.DeviceStatus) bool {
		return len(s.Conditions) > 0 && s.Conditions[0].Reason == "ModelMissing"
	})
	r.create(resource.KindDeviceModel, "lamp", lampModel(false))
	r.status(func(s resource.DeviceStatus) bool { return s.Conditions[0].Reason == "Waiting" })
	c.gets("devices/lamp/desired/brightness", "40")

	m := lampModel(false)
	m.Spec.Properties = m.Spec.Properties[:1]
	data, err := json.Marshal(m)
	require.NoError(t, err)
	_, err = r.store.Update(context.Background(), store.Object{Key: store.Key{Kind: resource.KindDeviceModel, Namespace: "default", Name: "lamp"}, Data: data}, 0)
	require.NoError(t, err)
	c.gets("devices/lamp/desired/brightness", "") // no longer a property
	c.gets("devices/lamp/desired/power", "ON")

	// What is still wanted of it is in the twin, as what it is: nothing that could yet happen.
	c.report("devices/lamp/reported/power", "ON")
	require.Equal(t, "brightness", r.condition("InSync", "Refused").Message)
	require.Contains(t, r.condition("Refused", "Refused").Message, "brightness: NotAllowed: the model lamp has no such property; it has power")
	lamp, _ := r.device("lamp")
	require.Equal(t, "40", lamp.Status.Twin["brightness"].Desired.Value)
	r.edit("lamp", func(d *resource.Device) { delete(d.Spec.Desired, "brightness") })
	r.condition("InSync", "AsDesired")
	lamp, _ = r.device("lamp")
	require.NotContains(t, lamp.Status.Twin, "brightness")
}
