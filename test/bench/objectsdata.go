package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	"github.com/edgebus/edgebus/cloud"
	"github.com/edgebus/edgebus/cloud/store"
	"github.com/edgebus/edgebus/cloud/store/bolt"
	"github.com/edgebus/edgebus/topics"
	"github.com/edgebus/edgebus/topics/link"
	"github.com/edgebus/edgebus/topics/resource"
)

// makeObjects writes Devices and what their nodes reported, as a hub would have stored them.
func makeObjects(dir string) error {
	st, err := bolt.Open(bolt.Options{Path: filepath.Join(dir, cloud.FileName)})
	if err != nil {
		return err
	}
	m := model(objectProperties)
	m.Metadata.Namespace = resource.DefaultNamespace
	if err := create(st, resource.KindDeviceModel, "bench", m); err != nil {
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
	if err := create(st, resource.KindNode, name, resource.Node{Metadata: resource.Meta{Name: name, UID: resource.NewUID(), Generation: 1}}); err != nil {
		return err
	}
	now := time.Now().UTC().Truncate(time.Second)
	state := link.State{Lineage: link.Lineage{N: 1, Nonce: 7}, Applied: 1 << 20}
	meta, err := state.MarshalBinary()
	if err != nil {
		return err
	}
	c := store.NodeChange{Node: name, Meta: meta}
	put := func(key, value string, seq int) {
		e := link.Entry{Key: key, Seq: uint64(1<<19 + seq), Ver: 4711, TS: now.UnixMilli(), Origin: "mapper-modbus", Value: []byte(value)}
		c.Put = append(c.Put, store.Item{Key: e.Key, Value: link.AppendEntry(nil, e)})
	}
	for i := range objectsOfNode {
		d := device(0)
		d.Metadata = resource.Meta{
			Name: objectName(n*objectsOfNode + i), Namespace: resource.DefaultNamespace, UID: resource.NewUID(), Generation: 1,
			CreationTimestamp: &now, Labels: map[string]string{"plant": name},
		}
		d.Spec.NodeName, d.Spec.Desired = name, map[string]resource.Value{"p0": "1", "p1": "2"}
		resource.Stamp(nil, &d, "kubectl", now)
		if err := create(st, resource.KindDevice, d.Metadata.Name, d); err != nil {
			return err
		}
		put(topics.Address{Kind: topics.KindDeviceState, Device: d.Metadata.Name}.Key(), resource.Online, 10*i)
		for p := range objectProperties {
			put(topics.DeviceKey(d.Metadata.Name, topics.KindReported, fmt.Sprintf("p%d", p)), fmt.Sprint(p+1), 10*i+p+1)
		}
	}
	return st.Commit(context.Background(), []store.NodeChange{c})
}

// rawFigures are what the store takes by itself.
type rawFigures struct {
	open, list, get time.Duration
	memory          float64 // bytes a property
	writes          float64 // a second
}

// rawStore measures a store's own work, on a copy of the file, in this process.
func rawStore(b bench, dir string) (f rawFigures, err error) {
	alone := dir + "-alone"
	if err := os.CopyFS(alone, os.DirFS(dir)); err != nil {
		return f, err
	}
	before, err := resting()
	if err != nil {
		return f, err
	}
	begin := time.Now()
	st, err := bolt.Open(bolt.Options{Path: filepath.Join(alone, cloud.FileName)})
	if err != nil {
		return f, err
	}
	defer func() { err = errors.Join(err, st.Close()) }()
	f.open = time.Since(begin)
	after, err := resting()
	if err != nil {
		return f, err
	}
	f.memory = (after - before) * 1e6 / (allObjects * objectProperties)

	ctx := context.Background()
	begin = time.Now()
	for opts := (store.ListOptions{Limit: objectPage}); ; {
		page, err := st.List(ctx, resource.KindDevice, opts)
		if err != nil {
			return f, err
		}
		if page.More == 0 {
			break
		}
		opts.Rev, opts.After = page.Rev, page.Items[len(page.Items)-1].Key
	}
	f.list = time.Since(begin)
	key := store.Key{Kind: resource.KindDevice, Namespace: resource.DefaultNamespace}
	begin = time.Now()
	for range objectGets {
		key.Name = objectName(rand.IntN(allObjects))
		if _, err := st.Get(ctx, key); err != nil {
			return f, err
		}
	}
	f.get = time.Since(begin) / objectGets
	f.writes, err = writeFor(b.d, func(i int) error {
		k := key
		k.Name = objectName(i % allObjects)
		o, err := st.Get(ctx, k)
		if err == nil {
			o.Data = append(bytes.Clone(o.Data), ' ') // as large, and not the same
			_, err = st.Update(ctx, store.Object{Key: k, Data: o.Data}, o.Rev)
		}
		return err
	})
	return f, err
}

// resting is this process's anonymous memory, with nothing in it that could go.
func resting() (float64, error) {
	debug.FreeOSMemory()
	return anonymous(os.Getpid())
}
