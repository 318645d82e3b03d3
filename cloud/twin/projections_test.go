// SPDX-License-Identifier: Apache-2.0

package twin

import (
	"bytes"
	"context"
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/edgebus/edgebus/broker"
	"github.com/edgebus/edgebus/cloud/store"
	"github.com/edgebus/edgebus/topics"
	"github.com/edgebus/edgebus/topics/resource"
)

// lineDocuments is a projection of objects of lines "node key value".
func lineDocuments(_ context.Context, o store.Object) (list []Document, err error) {
	for line := range strings.Lines(string(o.Data)) {
		at := strings.Fields(line)
		if at[0] == "fail" {
			err = errors.New("no such Secret")
			continue
		}
		list = append(list, Document{Node: at[0], Key: at[1], Value: []byte(at[2])})
	}
	return list, err
}

func newProjectionRig(t *testing.T) *rig {
	r := newRig(t)
	r.projections = []Projection{{Kind: "Lines", Documents: lineDocuments}}
	r.restart()
	return r
}

// put writes an object of lines, or deletes it, and has it projected.
func (r *rig) put(name, text string) error {
	key := store.Key{Kind: "Lines", Name: name}
	_, err := r.store.Delete(r.t.Context(), key, 0)
	if !errors.Is(err, resource.NotFound) {
		require.NoError(r.t, err)
	}
	if text != "" {
		_, err = r.store.Create(r.t.Context(), store.Object{Key: key, Data: []byte(text)})
		require.NoError(r.t, err)
	}
	_, err = r.twins.Project(r.t.Context(), key)
	return err
}

func (c *core) lacks(key string) {
	c.rig.t.Helper()
	require.Eventually(c.rig.t, func() bool { _, e := c.has(key); return e.Key == "" }, testTimeout, testTimeout/10000, key)
}

func TestProjectedDocumentsFollowTheirObject(t *testing.T) {
	r := newProjectionRig(t)
	c := r.connect(newCore("n1"))
	require.NoError(t, r.put("a", "n1 secrets/default.wifi psk1\nn1 spec s1\nn2 upgrade u1"))
	c.gets("spec", "s1")
	c.gets("secrets/default.wifi", "psk1") // before the spec: it is in the map when that is
	require.NoError(t, r.put("a", "n1 secrets/default.wifi psk2\nn1 spec s2"))
	c.gets("spec", "s2")
	c.gets("secrets/default.wifi", "psk2")
	require.NoError(t, r.put("a", "n1 spec s3"))
	c.lacks("secrets/default.wifi")
	c.gets("spec", "s3")
	require.NoError(t, r.put("a", ""))
	c.lacks("spec")
	require.Equal(t, []string{"n1"}, r.twins.Nodes(), "a node that no object is for and that has never connected is forgotten")
}

// A document that can't be made keeps what the node had, and holds up no other one.
func TestAFailedProjectionDeletesNothing(t *testing.T) {
	r := newProjectionRig(t)
	c := r.connect(newCore("n1"))
	require.NoError(t, r.put("a", "n1 secrets/default.wifi psk\nn1 spec s1"))
	c.gets("spec", "s1")
	require.EqualError(t, r.put("a", "fail\nn1 spec s2"), "no such Secret")
	c.gets("spec", "s2")
	c.gets("secrets/default.wifi", "psk")
	require.NoError(t, r.put("a", "n1 spec s2"))
	c.lacks("secrets/default.wifi")
}

func TestProjectionsAreLoadedBeforeAnyNodeConnects(t *testing.T) {
	r := newProjectionRig(t)
	c := r.connect(newCore("n1"))
	large := strings.Repeat("x", 3*topics.PartSize)
	require.NoError(t, r.put("a", "n1 spec "+large+"\nn2 spec s"))
	c.gets(topics.PartKey("spec", 2), large[:topics.PartSize])
	before, _ := c.has("spec")
	r.restart()
	require.Equal(t, []string{"n1", "n2"}, r.twins.Nodes())
	r.mu.Lock()
	r.out = nil
	r.mu.Unlock()
	r.connect(c)
	c.gets("spec", before)
	all := r.retained("v1/nodes/n1/spec/#")
	require.Len(t, all, 1, "the parts are not shown")
	require.Equal(t, large, string(all["v1/nodes/n1/spec"].Payload))
	require.NoError(t, r.put("a", "n1 spec small"))
	c.gets("spec", "small")
	c.lacks(topics.PartKey("spec", 0))
	c.lacks(topics.PartKey("spec", 2))
}

// Nothing of a Secret is published on the hub's broker, however a subscriber asks.
func TestSecretsAreNotShownOnTheHub(t *testing.T) {
	r := newProjectionRig(t)
	c := r.connect(newCore("n1"))
	secret := "n1 secrets/default.wifi Hunter2" + strings.Repeat("x", topics.PartSize)
	require.NoError(t, r.put("a", secret+"\nn1 spec s1"))
	c.gets("spec", "s1")
	for _, filter := range []string{"#", "v1/#", "v1/nodes/n1/#", "v1/nodes/+/secrets/#", "v1/nodes/n1/secrets/default.wifi", "v1/nodes/n1/+/+", "v1/nodes/n1/secrets/default.wifi/parts/0"} {
		for topic, m := range r.retained(filter) {
			require.NotContains(t, topic, "secrets/", filter)
			require.NotContains(t, string(m.Payload), "Hunter2", filter)
		}
	}
	require.NoError(t, r.put("a", "n1 spec s2"))
	c.gets("spec", "s2")
	c.lacks("secrets/default.wifi")
	_, down := topics.SyncTopics("n1")
	r.mu.Lock()
	defer r.mu.Unlock()
	seen := false
	for _, m := range r.out {
		if m.Topic == down {
			seen = seen || bytes.Contains(m.Payload, []byte("Hunter2"))
			continue
		}
		require.NotContains(t, m.Topic, "secrets/")
		require.NotContains(t, string(m.Payload), "Hunter2")
	}
	require.True(t, seen, "the node itself gets it")
}

func TestAProjectionWritesOnlyDocuments(t *testing.T) {
	r := newProjectionRig(t)
	for _, key := range []string{"membership", "devices/lamp", "devices/lamp/desired/power", "agent", "state", "spec/parts/0", "secrets/a.b/parts/0", "sync/down", "nothing"} {
		require.Error(t, r.put("a", "n1 "+key+" x"), key)
	}
	require.Error(t, r.put("a", "N1 spec x"))
	_, err := r.twins.Project(t.Context(), store.Key{Kind: resource.KindDevice, Name: "lamp"})
	require.ErrorContains(t, err, "Device")
	require.Empty(t, r.twins.Nodes())
}

// A node whose Node is deleted stays while a document is for it, as it does while a Device is.
func TestADeletedNodeWithDocuments(t *testing.T) {
	r := newProjectionRig(t)
	key := store.Key{Kind: resource.KindNode, Name: "n1"}
	c := r.connect(newCore("n1"))
	require.NoError(t, r.put("a", "n1 spec s1"))
	c.gets("spec", "s1")
	require.Eventually(t, func() bool { there, _ := r.twins.Registered("n1"); return there }, testTimeout, testTimeout/10000)
	r.disconnect(c)
	require.Eventually(t, func() bool {
		return string(r.retained("v1/nodes/n1/state")["v1/nodes/n1/state"].Payload) == resource.Offline
	}, testTimeout, testTimeout/10000)
	_, err := r.store.Delete(t.Context(), key, 0)
	require.NoError(t, err)
	require.Eventually(t, func() bool { there, _ := r.twins.Registered("n1"); return !there }, testTimeout, testTimeout/10000)
	require.NoError(t, r.put("a", ""))
	require.Eventually(t, func() bool { return len(r.twins.Nodes()) == 0 }, testTimeout, testTimeout/10000)
	require.Eventually(t, func() bool {
		r.mu.Lock()
		defer r.mu.Unlock()
		return slices.ContainsFunc(r.out, func(m broker.Message) bool { return m.Topic == "v1/nodes/n1/spec" && len(m.Payload) == 0 })
	}, testTimeout, testTimeout/10000, "the retained spec is cleared")
}
