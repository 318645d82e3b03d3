// SPDX-License-Identifier: Apache-2.0

package objects_test

import (
	"bytes"
	"path/filepath"
	"testing"

	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"

	"github.com/edgebus/edgebus/broker/daemon/seal"
	"github.com/edgebus/edgebus/cloud/objects"
	"github.com/edgebus/edgebus/cloud/store"
	"github.com/edgebus/edgebus/cloud/store/disk"
	"github.com/edgebus/edgebus/topics/resource"
)

// userWrites changes a Node as a user does, who is no controller.
func (r *testRegistry) userWrites(t *testing.T, key store.Key, change func(*resource.Node)) error {
	t.Helper()
	k := r.Kind(resource.KindNode)
	_, err := r.Change(t.Context(), key, &objects.WriteOptions{Manager: "ann"}, func(old *objects.Object) (*objects.Object, error) {
		v, err := k.Typed(old)
		require.NoError(t, err)
		change(v.(*resource.Node))
		return k.Untyped(v)
	})
	return err
}

func TestWhatAControllerOwnsIsNotAUsers(t *testing.T) {
	r := newTestRegistry(t)
	c := r.Controller("fleets")
	key := store.Key{Kind: resource.KindNode, Name: "n1"}
	n := newNode("n1")
	n.Metadata.Owner, n.Metadata.Finalizers = "Fleet/shops", []string{objects.FleetFinalizer}
	n.Metadata.Annotations = map[string]string{resource.JoinedAnnotation: "then key", "mine": "a"}
	_, err := objects.Create(t.Context(), c, n)
	require.NoError(t, err)

	err = r.userWrites(t, key, func(n *resource.Node) { n.Spec.OS = &resource.NodeOS{Image: "os:2"} })
	var owned *objects.OwnedError
	require.ErrorAs(t, err, &owned)
	require.Equal(t, "Fleet/shops", owned.Owner)
	require.ErrorAs(t, r.userWrites(t, key, func(n *resource.Node) { n.Metadata.Owner = "" }), &owned)
	require.NoError(t, r.userWrites(t, key, func(n *resource.Node) {
		n.Metadata.Labels = map[string]string{"site": "hall"}
		n.Metadata.Annotations, n.Metadata.Finalizers = map[string]string{"mine": "b", objects.RemoteAnnotation: "forged"}, nil
	}))
	now, err := objects.Get[resource.Node](t.Context(), c, key)
	require.NoError(t, err)
	require.Equal(t, map[string]string{"site": "hall"}, now.Metadata.Labels)
	require.Equal(t, map[string]string{resource.JoinedAnnotation: "then key", "mine": "b"}, now.Metadata.Annotations, "what controllers have noted is theirs")
	require.Equal(t, []string{objects.FleetFinalizer}, now.Metadata.Finalizers)
	require.EqualValues(t, 1, now.Metadata.Generation, "the spec is as it was")
}

func TestAnObjectWithAFinalizerGoesWhenTheLastIsRemoved(t *testing.T) {
	r := newTestRegistry(t)
	c, key := r.Controller("fleets"), store.Key{Kind: resource.KindNode, Name: "n1"}
	n := newNode("n1")
	n.Metadata.Finalizers = []string{"example.com/a"}
	_, err := objects.Create(t.Context(), c, n)
	require.NoError(t, err)
	require.NoError(t, c.Delete(t.Context(), key))
	now, err := objects.Get[resource.Node](t.Context(), c, key)
	require.NoError(t, err)
	require.NotNil(t, now.Metadata.DeletionTimestamp)
	err = r.userWrites(t, key, func(n *resource.Node) { n.Metadata.Finalizers = append(n.Metadata.Finalizers, "example.com/b") })
	require.ErrorIs(t, err, resource.Invalid, "no new ones once the deletion has begun")
	require.NoError(t, r.userWrites(t, key, func(n *resource.Node) { n.Metadata.Finalizers = nil }))
	_, err = objects.Get[resource.Node](t.Context(), c, key)
	require.ErrorIs(t, err, resource.NotFound)
}

func TestASecretIsNotReadableInTheStore(t *testing.T) {
	r := newTestRegistry(t)
	c := r.Controller("test")
	s := &resource.Secret{Metadata: resource.Meta{Name: "s", Namespace: resource.DefaultNamespace, Annotations: map[string]string{"copy": "hunter2"}}, Data: map[string][]byte{"password": []byte("hunter2")}}
	made, err := objects.Create(t.Context(), c, s)
	require.NoError(t, err)
	key := store.Key{Kind: resource.KindSecret, Namespace: resource.DefaultNamespace, Name: "s"}
	stored, err := r.Store.Get(t.Context(), key)
	require.NoError(t, err)
	for _, text := range []string{"hunter2", "aHVudGVyMg", "password"} {
		require.False(t, bytes.Contains(stored.Data, []byte(text)), text)
	}
	require.NoError(t, objects.Update(t.Context(), c, key, func(s *resource.Secret) error { s.Metadata.Labels = map[string]string{"a": "b"}; return nil }))
	now, err := objects.Get[resource.Secret](t.Context(), c, key)
	require.NoError(t, err)
	require.Equal(t, made.Data, now.Data)
	require.EqualValues(t, 1, now.Metadata.Generation)

	other := stored
	other.Key.Name = "t"
	other.Data = bytes.Replace(other.Data, []byte(`"name":"s"`), []byte(`"name":"t"`), 1)
	_, err = r.Store.Create(t.Context(), other)
	require.NoError(t, err)
	_, err = objects.Get[resource.Secret](t.Context(), c, other.Key)
	require.Error(t, err, "what is encrypted for one object opens as no other")
}

func TestAReferenceIsAskedAboutOnce(t *testing.T) {
	r := newTestRegistry(t)
	k, key := r.Kind(resource.KindNode), store.Key{Kind: resource.KindNode, Name: "n1"}
	var asked []string
	w := func(may bool) *objects.WriteOptions {
		return &objects.WriteOptions{Manager: "ann", MayRefer: func(ref objects.Reference) error {
			asked = append(asked, ref.String())
			if !may {
				return resource.Errorf(resource.Forbidden, ref.Field, "not for ann")
			}
			return nil
		}}
	}
	n := newNode("n1")
	n.Spec.Config = []resource.ConfigItem{{Name: "vpn", ConfigType: resource.ConfigSecret, SecretRef: &resource.SecretMount{Name: "vpn", MountPath: "/etc/vpn"}}}
	create := func(may bool) error {
		o, err := k.Untyped(n)
		require.NoError(t, err)
		_, err = r.Registry.Create(t.Context(), key, o, w(may))
		return err
	}
	require.ErrorIs(t, create(false), resource.Forbidden)
	require.NoError(t, create(true))
	require.Len(t, asked, 2)
	_, err := r.Change(t.Context(), key, w(false), func(old *objects.Object) (*objects.Object, error) {
		next := *old
		next.Metadata.Labels = map[string]string{"a": "b"}
		return &next, nil
	})
	require.NoError(t, err, "the object had the reference before")
	require.Len(t, asked, 2)
}

// A controller deletes what it has decided to delete: not what somebody has changed since, nor another object of that name.
func TestAControllerDeletesOnlyWhatItMeans(t *testing.T) {
	r := newTestRegistry(t)
	c, key := r.Controller("fleets"), store.Key{Kind: resource.KindNode, Name: "n1"}
	seen, err := objects.Create(t.Context(), c, newNode("n1"))
	require.NoError(t, err)
	isSeen := func(now *resource.Node) bool {
		return now.Metadata.UID == seen.Metadata.UID && now.Metadata.Labels["keep"] == ""
	}
	mark := func(n *resource.Node) error { n.Metadata.Labels = map[string]string{"keep": "yes"}; return nil }
	require.NoError(t, objects.Update(t.Context(), c, key, mark))
	require.NoError(t, objects.DeleteIf(t.Context(), c, key, isSeen))
	_, err = objects.Get[resource.Node](t.Context(), c, key)
	require.NoError(t, err, "it was changed")

	require.NoError(t, c.Delete(t.Context(), key))
	_, err = objects.Create(t.Context(), c, newNode("n1"))
	require.NoError(t, err)
	require.NoError(t, objects.DeleteIf(t.Context(), c, key, isSeen))
	another, err := objects.Get[resource.Node](t.Context(), c, key)
	require.NoError(t, err, "it is another one")

	// Somebody changes it between the look at it and the deletion.
	looks := 0
	require.NoError(t, objects.DeleteIf(t.Context(), c, key, func(now *resource.Node) bool {
		if looks++; looks == 1 {
			require.NoError(t, objects.Update(t.Context(), c, key, mark))
		}
		return now.Metadata.UID == another.Metadata.UID && now.Metadata.Labels["keep"] == ""
	}))
	require.Equal(t, 2, looks)
	_, err = objects.Get[resource.Node](t.Context(), c, key)
	require.NoError(t, err, "it was changed meanwhile")
	require.NoError(t, objects.DeleteIf(t.Context(), c, key, func(*resource.Node) bool { return true }))
	require.ErrorIs(t, objects.DeleteIf(t.Context(), c, key, isSeen), resource.NotFound)
}

// After a restart a status is derived for who reads it. To write it as it was read changes nothing, whichever way it is written.
func TestAStatusThatWasDerivedIsWrittenWhenItChanges(t *testing.T) {
	dir := t.TempDir()
	key, err := seal.Create(dir)
	require.NoError(t, err)
	open := func() (*disk.Store, *objects.Controller) {
		s, err := disk.Open(disk.Options{Path: filepath.Join(dir, "log")})
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, s.Close()) })
		return s, objects.New(objects.Options{Reader: s, Writer: s, Derived: s, Log: zerolog.Nop(), Seal: key}).Controller("fleets")
	}
	s, c := open()
	_, err = objects.Create(t.Context(), c, newNode("n1"))
	require.NoError(t, err)
	require.NoError(t, s.Close())
	s, c = open()
	_, err = s.DeriveStatuses(resource.KindNode, func(store.Object) []byte { return []byte(`{"state":"online"}`) })
	require.NoError(t, err)
	n1 := store.Key{Kind: resource.KindNode, Name: "n1"}
	seen, err := s.Get(t.Context(), n1)
	require.NoError(t, err)
	is := func(state string) func(*resource.Node) error {
		return func(n *resource.Node) error { n.Status.State = state; return nil }
	}
	require.NoError(t, objects.UpdateStatus(t.Context(), c, n1, is("online")))
	require.NoError(t, objects.UpdateDerived(t.Context(), c, n1, func(*resource.Node) (bool, error) { return true, nil }))
	require.NoError(t, objects.Update(t.Context(), c, n1, is("online")))
	now, err := s.Get(t.Context(), n1)
	require.NoError(t, err)
	require.Equal(t, seen, now)
	require.NoError(t, objects.UpdateStatus(t.Context(), c, n1, is("offline")))
	now, err = s.Get(t.Context(), n1)
	require.NoError(t, err)
	require.Contains(t, string(now.Status), `"state":"offline"`)
}

func TestWhatMappersDoNotTakeOfAModelIsSaidToWhoWritesIt(t *testing.T) {
	r := newTestRegistry(t)
	var asked []string
	tables := []resource.ProtocolSettings{
		{Protocols: []string{"mqtt"}, Property: []resource.ProtocolSetting{{Name: "state", Type: "string"}}},
		{Protocols: []string{"MQTT"}, Property: []resource.ProtocolSetting{{Name: "state", Type: "string"}, {Name: "path", Type: "string"}}},
	}
	r.DeviceSettings = func(node string) []resource.ProtocolSettings {
		asked = append(asked, node)
		return tables
	}
	config := map[string]resource.Value{"state": "{topic}", "path": "on", "off": "OFF"}
	visitors := []resource.Visitor{{PropertyName: "on", Config: config}}
	write := func(kind, name string, obj any) []string {
		t.Helper()
		k, w := r.Kind(kind), &objects.WriteOptions{Manager: "ann"}
		next, err := k.Untyped(obj)
		require.NoError(t, err)
		next.Metadata.Name, next.Metadata.Namespace = name, "default"
		_, err = r.Registry.Create(t.Context(), store.Key{Kind: kind, Namespace: "default", Name: name}, next, w)
		require.NoError(t, err)
		return w.Warnings
	}
	model := new(resource.DeviceModel)
	model.Spec.Properties = []resource.Property{{Name: "on"}}
	model.Spec.PropertyVisitors = []resource.ProtocolVisitors{{Protocol: "mqtt", Visitors: visitors}, {Protocol: "knx", Visitors: visitors}}
	require.Equal(t, []string{"spec.propertyVisitors[0].visitors[0].config.off: is no setting of MQTT; its settings are state, path"},
		write(resource.KindDeviceModel, "plug", model), "the mapper that takes the most counts, and of knx none is known")
	device := new(resource.Device)
	device.Spec.DeviceModelRef.Name, device.Spec.NodeName, device.Spec.Protocol.Type = "plug", "n1", "mqtt"
	device.Spec.PropertyVisitors = visitors
	require.Contains(t, write(resource.KindDevice, "lamp", device), "spec.propertyVisitors[0].config.off: is no setting of MQTT; its settings are state, path")
	require.Equal(t, []string{"+", "n1"}, asked, "a model's devices may be on any node")
}
