// SPDX-License-Identifier: Apache-2.0

package objects_test

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"

	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"

	"github.com/edgebus/edgebus/cloud/objects"
	"github.com/edgebus/edgebus/cloud/store"
	"github.com/edgebus/edgebus/topics/resource"
)

// countingReader counts what is read of a store.
type countingReader struct {
	store.Reader
	lists, gets atomic.Int64
}

func (c *countingReader) List(ctx context.Context, kind string, opts store.ListOptions) (store.Page, error) {
	c.lists.Add(1)
	return c.Reader.List(ctx, kind, opts)
}

func (c *countingReader) Get(ctx context.Context, key store.Key) (store.Object, error) {
	c.gets.Add(1)
	return c.Reader.Get(ctx, key)
}

// A model that is deleted before its Devices goes with the last of them, and none of their deletions reads all the others or writes the model.
func TestAModelInUseCostsTheDeletionsOfItsDevicesLittle(t *testing.T) {
	const devices = 60
	r, ctx := newTestRegistry(t), t.Context()
	setup := r.Controller("setup")
	model := new(resource.DeviceModel)
	model.Metadata.Name, model.Metadata.Namespace, model.Spec.Properties = "m", resource.DefaultNamespace, []resource.Property{{Name: "power", Type: resource.TypeString}}
	_, err := objects.Create(ctx, setup, model)
	require.NoError(t, err)
	device := func(c *objects.Controller, i int) store.Key {
		d := new(resource.Device)
		d.Metadata.Name, d.Metadata.Namespace = fmt.Sprintf("d%03d", i), resource.DefaultNamespace
		d.Spec.DeviceModelRef.Name, d.Spec.Protocol.Type = "m", "p"
		_, err := objects.Create(ctx, c, d)
		require.NoError(t, err)
		return store.Key{Kind: resource.KindDevice, Namespace: resource.DefaultNamespace, Name: d.Metadata.Name}
	}
	var keys []store.Key
	for i := range devices / 2 { // made before the index is there
		keys = append(keys, device(setup, i))
	}
	reads := &countingReader{Reader: r.Store}
	c := objects.New(objects.Options{Reader: reads, Writer: r.Store, Log: zerolog.Nop()}).Controller("c")
	for i := devices / 2; i < devices; i++ {
		keys = append(keys, device(c, i))
	}
	at := store.Key{Kind: resource.KindDeviceModel, Namespace: resource.DefaultNamespace, Name: "m"}
	state := func() (rev uint64, message string) {
		stored, err := r.Store.Get(ctx, at)
		require.NoError(t, err)
		m, err := objects.DecodeTyped[resource.DeviceModel](c, stored)
		require.NoError(t, err)
		require.Len(t, m.Status.Conditions, 1)
		return stored.Rev, m.Status.Conditions[0].Message
	}
	require.NoError(t, c.Delete(ctx, at))
	begun, message := state()
	require.Equal(t, "deletion waits for more than 10 Devices", message)

	lists := reads.lists.Load()
	for i, key := range keys[:devices-10] {
		before := reads.gets.Load()
		require.NoError(t, c.Delete(ctx, key))
		require.LessOrEqual(t, reads.gets.Load()-before, int64(20), "of deletion %d", i)
	}
	require.Equal(t, lists, reads.lists.Load(), "nothing is listed")
	rev, message := state()
	require.Greater(t, rev, begun)
	require.Equal(t, "deletion waits for d050, d051, d052, d053, d054, d055, d056, d057, d058, d059", message)

	// A Device that has another model now holds it no more.
	require.NoError(t, objects.Update(ctx, c, keys[devices-1], func(d *resource.Device) error {
		d.Spec.DeviceModelRef.Name = "other"
		return nil
	}))
	for _, key := range keys[devices-10 : devices-1] {
		_, message := state()
		require.Contains(t, message, key.Name)
		require.NotContains(t, message, keys[devices-1].Name)
		require.NoError(t, c.Delete(ctx, key))
	}
	_, err = r.Store.Get(ctx, at)
	require.ErrorIs(t, err, resource.NotFound)
}
