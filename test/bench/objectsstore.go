// SPDX-License-Identifier: Apache-2.0

//go:build testprogram

package main

import (
	"bytes"
	"context"
	"errors"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime/debug"
	"sync"
	"time"

	"github.com/edgebus/edgebus/cloud/hubdata"
	"github.com/edgebus/edgebus/cloud/store"
	"github.com/edgebus/edgebus/cloud/store/disk"
	"github.com/edgebus/edgebus/topics/resource"
)

// rawFigures are what the store takes by itself.
type rawFigures struct {
	each                   time.Duration // how long each case runs
	open, list, get, watch time.Duration
	memory                 float64 // bytes a Device
	writes                 float64 // a second
}

// rawStore measures a store's own work, on a copy of the file, in this process.
func rawStore(b benchRun, dir string) (f rawFigures, err error) {
	f.each = b.d
	alone := dir + "-alone"
	if err := os.CopyFS(alone, os.DirFS(dir)); err != nil {
		return f, err
	}
	before, err := restingMemory()
	if err != nil {
		return f, err
	}
	begin := time.Now()
	st, err := disk.Open(disk.Options{Path: filepath.Join(alone, hubdata.LogDir)})
	if err != nil {
		return f, err
	}
	defer func() { err = errors.Join(err, st.Close()) }()
	f.open = time.Since(begin)
	after, err := restingMemory()
	if err != nil {
		return f, err
	}
	f.memory = (after - before) * 1e6 / float64(allObjects())
	for _, measure := range []func(*disk.Store) error{f.listAlone, f.getAlone, f.writeAlone, f.watchAlone} {
		if err := measure(st); err != nil {
			return f, err
		}
	}
	return f, nil
}

func rawKey(i int) store.Key {
	return store.Key{Kind: resource.KindDevice, Namespace: resource.DefaultNamespace, Name: objectName(i % allObjects())}
}

// listAlone goes through all objects page by page, and copies their bytes.
func (f *rawFigures) listAlone(st *disk.Store) error {
	var page []byte
	begin := time.Now()
	for opts := (store.ListOptions{Limit: objectPage}); ; {
		list, err := st.List(context.Background(), resource.KindDevice, opts)
		if err != nil {
			return err
		}
		page = page[:0]
		for _, o := range list.Items {
			page = append(append(page, o.Data...), o.Status...)
		}
		if list.More == 0 {
			break
		}
		opts.Rev, opts.After = list.Rev, list.Items[len(list.Items)-1].Key
	}
	f.list = time.Since(begin)
	return nil
}

func (f *rawFigures) getAlone(st *disk.Store) error {
	begin := time.Now()
	for range objectGets {
		if _, err := st.Get(context.Background(), rawKey(rand.IntN(allObjects()))); err != nil {
			return err
		}
	}
	f.get = time.Since(begin) / objectGets
	return nil
}

func rewriteObject(st *disk.Store, i int) error {
	o, err := st.Get(context.Background(), rawKey(i))
	if err == nil {
		o.Data = append(bytes.Clone(o.Data), ' ') // as large, and not the same
		_, err = st.Update(context.Background(), store.Object{Key: o.Key, Data: o.Data}, o.Rev)
	}
	return err
}

func (f *rawFigures) writeAlone(st *disk.Store) (err error) {
	f.writes, _, err = writeFor(f.each, func(i int) error { return rewriteObject(st, i) })
	return err
}

// watchAlone has as many streams of one object each as the hub will have watchers.
func (f *rawFigures) watchAlone(st *disk.Store) error {
	ctx, cancel := context.WithCancel(context.Background())
	var all sync.WaitGroup
	defer all.Wait()
	defer cancel()
	list, err := st.List(ctx, resource.KindDevice, store.ListOptions{Limit: 1})
	if err != nil {
		return err
	}
	w := new(watchDelays)
	for i := range objectWatchers {
		stream, err := st.Watch(ctx, rawKey(i), list.Rev)
		if err != nil {
			return err
		}
		all.Go(func() {
			defer stream.Close()
			for {
				events, err := stream.Next(ctx)
				if err != nil {
					return
				}
				for _, e := range events {
					w.event(i, e.Object.Key == rawKey(i))
				}
			}
		})
	}
	err = w.measure(func(i int) error { return rewriteObject(st, i) })
	f.watch = w.p99()
	return err
}

// restingMemory is this process's anonymous memory, with nothing in it that could go.
func restingMemory() (float64, error) {
	debug.FreeOSMemory()
	return anonymousMemory(os.Getpid())
}
