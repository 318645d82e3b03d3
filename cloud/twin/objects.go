// SPDX-License-Identifier: Apache-2.0

package twin

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"time"

	"github.com/edgebus/edgebus/broker/tree"
	"github.com/edgebus/edgebus/cloud/objects/rawjson"
	"github.com/edgebus/edgebus/cloud/store"
	"github.com/edgebus/edgebus/topics/backoff"
	"github.com/edgebus/edgebus/topics/resource"
)

// watchedKinds are the kinds that the nodes' maps derive from; a kind that others refer to comes before them.
var watchedKinds = [...]string{resource.KindDeviceModel, resource.KindDevice, resource.KindNode}

// loadObjects reads all objects before any node can connect. A node that connected earlier would get a part of its map as the
// whole map, and delete all other devices with their state.
func (t *Twins) loadObjects(ctx context.Context) error {
	b := t.batch()
	b.loading = true
	t.loadedRev = make(map[string]uint64)
	var devices []store.Object
	for _, kind := range watchedKinds {
		page, err := t.opts.Reader.List(ctx, kind, store.ListOptions{})
		if err != nil {
			return err
		}
		t.replaceAll(b, kind, page.Items)
		t.loadedRev[kind] = page.Rev
		switch kind {
		case resource.KindDevice:
			devices = page.Items
		case resource.KindNode:
			for _, o := range page.Items {
				t.httpPresence.recall(o)
			}
		}
	}
	t.devices.derive(b)
	for _, o := range devices {
		t.devices.recallAway(o)
	}
	return t.documents.loadProjections(ctx, b)
}

// watch follows one kind in the store: every change since New. If the store no longer knows that revision, it lists all objects and
// goes on from there.
func (t *Twins) watch(ctx context.Context, kind string) {
	for from := t.loadedRev[kind]; ctx.Err() == nil; from = 0 {
		err := t.follow(ctx, kind, from)
		if ctx.Err() == nil && !errors.Is(err, resource.Gone) {
			t.opts.Log.Error().Err(err).Str("kind", kind).Msg("the store can't be watched: trying again")
			backoff.Sleep(ctx, time.Second)
		}
	}
}

// follow applies the changes after a revision until the watch ends. With revision 0 it lists first.
func (t *Twins) follow(ctx context.Context, kind string, from uint64) error {
	if from == 0 {
		page, err := t.opts.Reader.List(ctx, kind, store.ListOptions{DataOnly: true})
		if err != nil {
			return err
		}
		t.host.Put(tree.OwnSender, 0, func(b *batch) { t.replaceAll(b, kind, page.Items) })
		from = page.Rev
	}
	stream, err := t.opts.Watcher.Watch(ctx, store.Key{Kind: kind}, from)
	if err != nil {
		return err
	}
	defer stream.Close()
	for {
		events, err := stream.Next(ctx)
		if err != nil {
			return err
		}
		t.host.Put(tree.OwnSender, eventBytes(events), func(b *batch) {
			for _, e := range events {
				t.changed(b, kind, e.Old, e.Object, e.Type == store.Deleted)
			}
		})
	}
}

func eventBytes(events []store.Event) (n int) {
	for _, e := range events {
		n += len(e.Object.Data)
	}
	return n
}

// replaceAll applies a complete list of a kind: objects that are not in it were deleted.
func (t *Twins) replaceAll(b *batch, kind string, objs []store.Object) {
	have := make(map[string]bool, len(objs))
	for _, o := range objs {
		have[o.Namespace+"/"+o.Name] = true
		t.changed(b, kind, nil, o, false)
	}
	switch kind {
	case resource.KindDevice:
		for name, d := range t.devices.byName {
			if !have[d.model.namespace+"/"+name] {
				t.devices.remove(b, name)
			}
		}
	case resource.KindNode:
		for name := range t.nodes.registered {
			if !have["/"+name] {
				t.nodes.setRegistered(name, false)
				t.nodes.setLabels(b, name, nil)
			}
		}
		t.nodes.showMissing(func(name string) bool { return have["/"+name] })
	case resource.KindDeviceModel:
		for key := range t.devices.models {
			if !have[key.namespace+"/"+key.name] {
				t.devices.changedModel(b, store.Object{Key: store.Key{Namespace: key.namespace, Name: key.name}}, true)
			}
		}
	}
}

// changed applies a change; before is nil if that isn't known.
func (t *Twins) changed(b *batch, kind string, before *store.Object, o store.Object, deleted bool) {
	switch kind {
	case resource.KindDevice:
		if deleted {
			t.devices.remove(b, o.Name)
			return
		}
		t.devices.changed(b, o)
	case resource.KindDeviceModel:
		t.devices.changedModel(b, o, deleted)
	case resource.KindNode:
		t.nodes.setRegistered(o.Name, !deleted)
		if deleted {
			t.nodes.setLabels(b, o.Name, nil)
			t.httpPresence.forget(o.Name)
			t.nodes.forget(b, o.Name)
			return
		}
		if n := t.nodes.byName[o.Name]; n != nil {
			n.lacksNode = false
		}
		text := rawjson.Field(rawjson.Field(o.Data, "metadata"), "labels")
		if before == nil || !bytes.Equal(text, rawjson.Field(rawjson.Field(before.Data, "metadata"), "labels")) {
			var labels map[string]string
			_ = json.Unmarshal(text, &labels) // most have none
			t.nodes.setLabels(b, o.Name, labels)
		}
		if before != nil && generationOf(before.Data) != generationOf(o.Data) && bytes.Contains(before.Status, []byte(resource.ConditionSpecRendered)) {
			return // the status follows when the spec is rendered
		}
		if n := t.nodes.byName[o.Name]; n == nil || n.writtenRev.Load() != o.Rev { // otherwise it is the status that this process wrote
			t.status.node(o.Name)
		}
	}
}
