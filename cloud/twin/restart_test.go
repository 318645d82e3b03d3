package twin

import (
	"context"
	"encoding/json"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/edgebus/edgebus/cloud/store"
	"github.com/edgebus/edgebus/topics/resource"
)

// looked waits until all statuses that were to be looked at have been.
func (r *rig) looked() {
	r.t.Helper()
	require.Eventually(r.t, func() bool { return r.twins.Stats().StatusWaiting == 0 }, testTimeout, time.Millisecond)
}

func TestAStatusIsNotWrittenAgainAfterARestart(t *testing.T) {
	r, c := newJoinedRig(t)
	c.report("devices/lamp/state", "online")
	r.condition(resource.ConditionOnline, "Online") // its Node is registered by now, and nothing more happens
	r.looked()
	_, before := r.device("lamp")
	r.awayAfter = time.Hour // that its node is not back is another story
	r.restart()
	r.looked()
	_, after := r.device("lamp")
	require.Equal(t, before, after)
}

// The statuses are the hub's: what anybody else writes there doesn't stay.
func TestAStatusThatSomebodyElseWroteIsPutRight(t *testing.T) {
	r, c := newJoinedRig(t)
	c.report("devices/lamp/state", "online")
	r.status(func(s resource.DeviceStatus) bool { return s.State == "online" })
	_, o := r.device("lamp")
	_, err := r.store.Update(context.Background(), store.Object{Key: o.Key, Status: []byte(`{"state":"nonsense"}`)}, 0)
	require.NoError(t, err)
	r.status(func(s resource.DeviceStatus) bool { return s.State == "online" })
}

// A bundle is what it always was, with the text of its model held once for all of them.
func TestBundlesShareTheTextOfTheirModel(t *testing.T) {
	r, c := newJoinedRig(t)
	own := lampOn("n1")
	own.Metadata.Name, own.Metadata.UID = "own", "u2"
	own.Spec.PropertyVisitors = []resource.Visitor{{PropertyName: "power", Config: map[string]string{"register": "1"}}}
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
