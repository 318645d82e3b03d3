// SPDX-License-Identifier: Apache-2.0

//go:build testprogram

package main

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"github.com/edgebus/edgebus/cloud/hubdata"
	"github.com/edgebus/edgebus/cloud/store"
	"github.com/edgebus/edgebus/cloud/store/disk"
	"github.com/edgebus/edgebus/topics"
	"github.com/edgebus/edgebus/topics/link"
	"github.com/edgebus/edgebus/topics/resource"
)

// makeObjects writes Devices and what their nodes reported, as a hub would have stored them.
func makeObjects(dir string) error {
	st, err := disk.Open(disk.Options{Path: filepath.Join(dir, hubdata.LogDir)})
	if err != nil {
		return err
	}
	m := benchModel(objectProperties)
	m.Metadata.Namespace = resource.DefaultNamespace
	if err := createObject(st, resource.KindDeviceModel, "bench", m); err != nil {
		return errors.Join(err, st.Close())
	}
	var next atomic.Int64
	var failed atomic.Pointer[error]
	var all sync.WaitGroup
	for range 256 { // that share commits
		all.Go(func() {
			for n := int(next.Add(1)) - 1; n < objectNodes && failed.Load() == nil; n = int(next.Add(1)) - 1 {
				if err := makeNodeObjects(st, n); err != nil {
					failed.Store(&err)
				}
			}
		})
	}
	all.Wait()
	if err := failed.Load(); err != nil {
		return errors.Join(*err, st.Close())
	}
	return st.Close()
}

func makeNodeObjects(st store.Store, n int) error {
	name := fmt.Sprintf("plant-%04d", n)
	if err := createObject(st, resource.KindNode, name, resource.Node{Metadata: resource.Meta{Name: name, UID: resource.NewUID(), Generation: 1}}); err != nil {
		return err
	}
	now := time.Now().UTC().Truncate(time.Second)
	state := link.MapState{Lineage: link.Lineage{N: 1, Nonce: 7}, Applied: 1 << 20}
	meta, err := state.MarshalBinary()
	if err != nil {
		return err
	}
	c := store.NodeChange{Node: name, Meta: meta}
	put := func(key, value string, seq int) {
		e := link.Entry{Key: key, Seq: uint64(1<<19 + seq), Ver: 4711, TS: now.UnixMilli(), Origin: "mapper-modbus", Value: []byte(value)}
		c.Put = append(c.Put, store.ReplicaItem{Key: e.Key, Value: link.AppendEntry(nil, e)})
	}
	for i := range objectsOfNode {
		d := benchDevice(0)
		d.Metadata = resource.Meta{
			Name: objectName(n*objectsOfNode + i), Namespace: resource.DefaultNamespace, UID: resource.NewUID(), Generation: 1,
			CreationTimestamp: &now, Labels: map[string]string{"plant": name},
		}
		d.Spec.NodeName, d.Spec.Desired = name, map[string]resource.Value{"p0": "1", "p1": "2"}
		resource.StampDesired(nil, &d, "kubectl", "", now)
		if err := createObject(st, resource.KindDevice, d.Metadata.Name, d); err != nil {
			return err
		}
		put(topics.Address{Kind: topics.KindDeviceState, Device: d.Metadata.Name}.Key(), resource.Online, 10*i)
		for p := range objectProperties {
			put(topics.DeviceKey(d.Metadata.Name, topics.KindReported, fmt.Sprintf("p%d", p)), fmt.Sprint(p+1), 10*i+p+1)
		}
	}
	return st.Commit(context.Background(), []store.NodeChange{c})
}
