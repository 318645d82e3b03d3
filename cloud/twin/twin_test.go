package twin

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/edgebus/edgebus/broker"
	"github.com/edgebus/edgebus/cloud/store"
	"github.com/edgebus/edgebus/topics/link"
	"github.com/edgebus/edgebus/topics/resource"
)

func TestDesiredGoesFromThePublishToTheNode(t *testing.T) {
	r, c := newJoinedRig(t)
	require.NoError(t, r.send(lampDesired+"/power", "ON"))
	d, _ := r.device("lamp")
	require.Equal(t, resource.Value("ON"), d.Spec.Desired["power"], "the acknowledged value is in the store")
	require.Equal(t, uint64(1), d.DesiredMeta["power"].Ver)
	require.Equal(t, "ops", d.DesiredMeta["power"].Origin)
	require.Equal(t, uint64(1), c.gets("devices/lamp/desired/power", "ON").Ver)

	require.NoError(t, r.send(lampDesired, `{"power":"OFF","brightness":40}`))
	require.Equal(t, uint64(2), c.gets("devices/lamp/desired/power", "OFF").Ver)
	c.gets("devices/lamp/desired/brightness", "40")
	require.NoError(t, r.send(lampDesired+"/brightness", ""))
	c.gets("devices/lamp/desired/brightness", "")
}

func TestWhatIsRefusedOnTheHub(t *testing.T) {
	r, c := newJoinedRig(t)
	require.NoError(t, r.send(lampDesired+"/power", "ON"))
	_, before := r.device("lamp")
	for _, tt := range []struct {
		topic, payload string
		kind           resource.ErrorKind
		says           string
	}{
		{lampDesired + "/brightness", "101", resource.Invalid, "maximum of 100"},
		{lampDesired + "/temperature", "20", resource.Forbidden, "read-only"},
		{lampDesired + "/colour", "red", resource.NotFound, "it has power, brightness"},
		{lampDesired + "/colour", "", resource.NotFound, "it has power, brightness"},
		{lampDesired, `{"temperature":null}`, resource.Forbidden, "read-only"},
		{lampDesired, `{"power":"OFF","brightness":-1}`, resource.Invalid, "minimum of 0"},
		{lampDesired, `ON`, resource.Invalid, "JSON object"},
		{"v1/nodes/n2/devices/lamp/desired/power", "ON", resource.NotFound, "belongs to node n1"},
		{"v1/nodes/n1/devices/attic/desired/power", "ON", resource.NotFound, "no device attic"},
		{"v1/nodes/n1/devices/lmp/desired/power", "ON", resource.NotFound, "no device lmp: did you mean lamp?"},
		{"v1/nodes/n1/devices/lamp/reported/power", "ON", resource.Forbidden, "edge"},
		{"v1/nodes/n1/devices/lamp", "{}", resource.Forbidden, "cloud"},
		{"v1/nodes/n1/state", "online", resource.Forbidden, "hub"},
		{"v1/nodes/n1/nonsense", "", resource.BadTopic, "no such topic"},
		{lampDesired + "/power", strings.Repeat("x", link.MaxValue+1), resource.TooLarge, "131072"},
	} {
		err := r.send(tt.topic, tt.payload)
		require.Equal(t, tt.kind, resource.KindOf(err), "%s: %v", tt.topic, err)
		require.ErrorContains(t, err, tt.says)
	}
	d, after := r.device("lamp")
	require.Equal(t, before.Data, after.Data)
	require.Equal(t, resource.Value("ON"), d.Spec.Desired["power"])
	c.gets("devices/lamp/desired/power", "ON")
}

func TestAThousandDesiredWritesOfOnePublisherKeepTheirOrder(t *testing.T) {
	r, c := newJoinedRig(t)
	var wg sync.WaitGroup
	for i := range 1000 {
		wg.Add(1)
		r.twins.Publish(broker.Message{Topic: lampDesired + "/brightness", Payload: fmt.Append(nil, i%101)}, func(err error) {
			require.NoError(t, err)
			wg.Done()
		})
	}
	wg.Wait()
	d, _ := r.device("lamp")
	require.Equal(t, resource.Value(fmt.Sprint(999%101)), d.Spec.Desired["brightness"])
	require.Equal(t, uint64(1000), d.DesiredMeta["brightness"].Ver)
	require.Eventually(t, func() bool { // earlier writes had this value, too
		return c.gets("devices/lamp/desired/brightness", fmt.Sprint(999%101)).Ver == 1000
	}, testTimeout, time.Millisecond)
}

func TestUnchangedDesiredValuesAreNotWritten(t *testing.T) {
	r, c := newJoinedRig(t)
	require.NoError(t, r.send(lampDesired+"/power", "ON"))
	c.gets("devices/lamp/desired/power", "ON")
	_, before := r.device("lamp")
	for range 20 {
		require.NoError(t, r.send(lampDesired+"/power", "ON"))
	}
	d, after := r.device("lamp")
	require.Equal(t, before.Data, after.Data)
	require.Equal(t, uint64(1), d.DesiredMeta["power"].Ver)
}

func TestDesiredWritesWhileTheDeviceIsBeingCreated(t *testing.T) {
	r := newRig(t)
	c := r.connect(newCore("n1"))
	stop := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
				_ = r.send(lampDesired+"/power", "ON") // refused, or stored: never anything else
			}
		}
	})
	r.create(resource.KindDevice, "lamp", lampOn("n1"))
	r.create(resource.KindDeviceModel, "lamp", lampModel(false))
	c.gets("devices/lamp/desired/power", "ON")
	close(stop)
	wg.Wait()
}

func TestReportsReachTheStatusAndOutliveTheHub(t *testing.T) {
	r, c := newJoinedRig(t)
	require.NoError(t, r.send(lampDesired+"/power", "ON"))
	c.report("devices/lamp/reported/power", "OFF")
	c.report("devices/lamp/state", "online")
	r.status(func(s resource.DeviceStatus) bool {
		return s.State == "online" && s.Twin["power"].Reported != nil && !s.Twin["power"].InSync
	})
	d, _ := r.device("lamp")
	require.NotEmpty(t, d.Status.LastSeen)
	c.report("devices/lamp/reported/power", "ON")
	r.status(func(s resource.DeviceStatus) bool { return s.Twin["power"].InSync })
	require.Equal(t, []string{"OFF", "ON"}, r.said("v1/nodes/n1/devices/lamp/reported/power"))

	r.restart()
	require.Equal(t, "ON", string(r.retained("#")["v1/nodes/n1/devices/lamp/reported/power"].Payload))
}

func (r *rig) status(ok func(resource.DeviceStatus) bool) {
	r.t.Helper()
	require.Eventually(r.t, func() bool { d, _ := r.device("lamp"); return ok(d.Status) }, testTimeout, 2*time.Millisecond)
}

func (r *rig) retained(filter string) map[string]broker.Message {
	all := make(map[string]broker.Message)
	pull := r.twins.Retained(filter)
	for list := pull(5); len(list) > 0; list = pull(5) {
		for _, m := range list {
			all[m.Topic] = m
		}
	}
	return all
}

func TestAReconnectAfterARestartIsCheap(t *testing.T) {
	r, c := newJoinedRig(t)
	require.NoError(t, r.send(lampDesired+"/power", "ON"))
	c.gets("devices/lamp/desired/power", "ON")
	c.report("devices/lamp/reported/power", "ON")
	r.inStep()
	before := c.down.Digest()
	r.restart()
	require.Equal(t, 1, r.twins.Stats().Devices, "all is known before anybody can connect: else a node would be told that its devices are gone")
	r.connect(c)
	r.inStep()
	require.Equal(t, before, c.down.Digest(), "the projection came out the same, so that nothing had to be sent")
}

func (r *rig) inStep() {
	r.t.Helper()
	require.Eventually(r.t, func() bool {
		for _, c := range r.nodes {
			c.mu.Lock()
			up := c.up.InStep()
			c.mu.Unlock()
			if !up {
				return false
			}
		}
		return r.twins.Stats().InStep == len(r.nodes)
	}, testTimeout, 2*time.Millisecond)
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
	resource.StampDesired(nil, &d, "kubectl", time.Now())
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

func TestPresenceFollowsTheBroker(t *testing.T) {
	r, c := newJoinedRig(t)
	state := func() string { return string(r.retained("v1/nodes/n1/state")["v1/nodes/n1/state"].Payload) }
	require.Eventually(t, func() bool { return state() == "online" }, testTimeout, time.Millisecond)
	require.Eventually(t, func() bool {
		o, err := r.store.Get(context.Background(), store.Key{Kind: resource.KindNode, Name: "n1"})
		return err == nil && strings.Contains(string(o.Status), "online")
	}, testTimeout, 2*time.Millisecond, "a node that was let in has an object, and its status follows")

	other := nodeIdentity("n1") // somebody else with the node's certificate
	other.ClientID = "tool"
	r.twins.Connected(other)
	r.twins.Disconnected(other, nil)
	stranger := nodeIdentity("n7") // whose core never came
	r.twins.Connected(stranger)
	r.twins.Disconnected(stranger, nil)
	require.NoError(t, r.send(lampDesired+"/power", "ON"))
	c.gets("devices/lamp/desired/power", "ON")
	require.Equal(t, "online", state())
	require.Equal(t, []string{"n1"}, r.twins.Nodes())
	r.disconnect(c)
	require.Eventually(t, func() bool { return state() == "offline" }, testTimeout, time.Millisecond)
}

// TestANodeIsReadyWhileItsLinkIsUp, says when that changed, and is not written again by a hub that is restarted.
func TestANodeIsReadyWhileItsLinkIsUp(t *testing.T) {
	r, c := newJoinedRig(t)
	ready := func(status, message string) (got resource.Condition) {
		t.Helper()
		require.Eventually(t, func() bool {
			got = r.nodeCondition(resource.ConditionReady)
			return got.Status == status && strings.Contains(got.Message, message)
		}, testTimeout, pollInterval)
		return got
	}
	require.False(t, ready("True", "is up").LastTransitionTime.IsZero())
	r.disconnect(c)
	left := ready("False", "is down: ")
	require.Equal(t, resource.ReasonAway, left.Reason)
	r.looked()
	before, err := r.store.Get(context.Background(), nodeObjectKey)
	require.NoError(t, err)
	r.restart()
	r.looked()
	after, err := r.store.Get(context.Background(), nodeObjectKey)
	require.NoError(t, err)
	require.Equal(t, before, after, "what is known of it stays, and is not written again")
	r.connect(c)
	ready("True", "is up")
	r.restart()
	ready("False", "has not connected since the hub was started")
}

func TestANodesDevicesAreCounted(t *testing.T) {
	r, _ := newJoinedRig(t)
	counts := func(want int) {
		t.Helper()
		require.Eventually(t, func() bool {
			n, err := r.node()
			return err == nil && n.Status.Devices == want
		}, testTimeout, pollInterval)
	}
	counts(1)
	r.edit("lamp", func(d *resource.Device) { d.Spec.NodeName = "" })
	counts(0)
	r.edit("lamp", func(d *resource.Device) { d.Spec.NodeName = "n1" })
	counts(1)
}

func TestForgedKeysAreNotShown(t *testing.T) {
	r, c := newJoinedRig(t)
	require.NoError(t, r.send(lampDesired+"/power", "ON"))
	c.gets("devices/lamp/desired/power", "ON")
	for _, key := range []string{"devices/lamp/desired/power", "devices/lamp/desired/brightness", "state", "membership", "devices/lamp", "nonsense"} {
		c.report(key, "OFF")
	}
	r.inStep()
	all := r.retained("#")
	require.Equal(t, "ON", string(all[lampDesired+"/power"].Payload))
	require.NotContains(t, all, lampDesired+"/brightness")
	require.Equal(t, "online", string(all["v1/nodes/n1/state"].Payload))
	require.Equal(t, `{"devices":["lamp"]}`, string(all["v1/nodes/n1/membership"].Payload))
	require.NotContains(t, r.said(lampDesired+"/power"), "OFF")
}

func TestAnUncontestedOverrideIsAdopted(t *testing.T) {
	r := newRig(t)
	r.create(resource.KindDeviceModel, "lamp", lampModel(true))
	r.create(resource.KindDevice, "lamp", lampOn("n1"))
	c := r.connect(newCore("n1"))
	c.gets("membership", `{"devices":["lamp"]}`)
	c.mu.Lock()
	_, _, err := c.up.Put(link.Entry{Key: "devices/lamp/override/power", Value: []byte("ON"), TS: 1})
	c.mu.Unlock()
	require.NoError(t, err)
	c.talk()
	require.Equal(t, uint64(1), c.gets("devices/lamp/desired/power", "ON").Ver)
	d, _ := r.device("lamp")
	require.Equal(t, "node/n1", d.DesiredMeta["power"].Origin)

	c.mu.Lock()
	_, _, err = c.up.Put(link.Entry{Key: "devices/lamp/override/power", Value: []byte("OFF"), TS: 2, Meta: link.Meta{BasedOn: 99}})
	c.mu.Unlock()
	require.NoError(t, err)
	c.talk()
	r.inStep()
	require.NoError(t, r.send(lampDesired+"/brightness", "1"))
	c.gets("devices/lamp/desired/brightness", "1")
	c.gets("devices/lamp/desired/power", "ON") // contested: not adopted
}

func TestMalformedLinkMessagesHarmNobody(t *testing.T) {
	r, c := newJoinedRig(t)
	for i := range 300 {
		b := make([]byte, i)
		for j := range b {
			b[j] = byte(rand.IntN(256))
		}
		require.NoError(t, r.send("v1/nodes/n1/sync/up", string(b)))
	}
	c.report("devices/lamp/reported/power", "ON")
	r.status(func(s resource.DeviceStatus) bool { return s.Twin["power"].Reported != nil })
}

// TestDesiredValuesBelongToTheirWriters has values of two writers for a Device whose fields have owners.
func TestDesiredValuesBelongToTheirWriters(t *testing.T) {
	r, _ := newJoinedRig(t)
	r.edit("lamp", func(d *resource.Device) { d.Metadata.ManagedFields = json.RawMessage(`["ann"]`) })
	require.NoError(t, r.send(lampDesired+"/power", "ON"))
	d, _ := r.device("lamp")
	require.JSONEq(t, `["ops"]`, string(d.Metadata.ManagedFields))
	require.Equal(t, resource.Value("ON"), d.Spec.Desired["power"])
	require.NoError(t, r.send(lampDesired, `{"power":"OFF","brightness":40}`))
	d, _ = r.device("lamp")
	require.JSONEq(t, `["ops"]`, string(d.Metadata.ManagedFields))
	require.Equal(t, resource.Value("OFF"), d.Spec.Desired["power"])
	require.Equal(t, resource.Value("40"), d.Spec.Desired["brightness"])
}
