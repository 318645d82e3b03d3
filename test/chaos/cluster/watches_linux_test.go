// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/edgebus/edgebus/test/harness"
)

// watches are objects that somebody makes, and others follow as kubectl's informers do.
type watches struct {
	l *load

	mu        sync.Mutex
	made      []string // that were acknowledged, and are there
	followers []*follower
	faults    []string
	count     int
}

// follower follows objects at changing hubs.
type follower struct {
	w       *watches
	hub     func() string
	stay    int            // milliseconds that a watch lasts, at most
	version string         // from which it goes on; empty: it lists
	told    map[string]int // additions of what it was not told to be deleted, by name
	newest  int            // the newest version that it was told
}

const watchPace = 50 * time.Millisecond

// start has one follower be where most clients are, and one at each hub in turn for a while: those that stand by answer of their mirrors.
func (w *watches) start(ctx context.Context, work *sync.WaitGroup) {
	turn := 0
	w.followers = []*follower{{hub: w.l.someHub, stay: 3300}, {stay: 800, hub: func() string {
		turn++
		return w.l.c.each[turn/16%len(w.l.c.each)].http
	}}}
	work.Go(func() { w.make(ctx) })
	for _, f := range w.followers {
		f.w, f.told = w, map[string]int{}
		work.Go(func() { f.run(ctx) })
	}
}

func model(name string) string {
	return fmt.Sprintf(`{"apiVersion":"edgebus.io/v1alpha1","kind":"DeviceModel","metadata":{"name":%q},"spec":{"properties":[{"name":"level","type":"int","accessMode":"ReadWrite"}]}}`, name)
}

func (w *watches) make(ctx context.Context) {
	for n := 1; ctx.Err() == nil; n++ {
		name := fmt.Sprint("model-", n)
		if status, _, err := w.l.call(ctx, 3*time.Second, http.MethodPost, w.l.someHub(), "devicemodels", model(name)); err == nil && status == http.StatusCreated {
			w.mu.Lock()
			w.made = append(w.made, name)
			w.count++
			w.mu.Unlock()
		}
		pauseFor(ctx, watchPace)
	}
}

func (f *follower) run(ctx context.Context) {
	for ctx.Err() == nil {
		if f.version == "" {
			f.version = f.list(ctx)
		}
		if f.version != "" && !f.watch(ctx) {
			f.version = ""
		}
		pauseFor(ctx, watchPace)
	}
}

type object struct {
	Metadata struct{ Name, ResourceVersion string }
	Code     int
}

// reach notes a version that was told. Those of a list and of what is watched after it never fall.
func (f *follower) reach(version, where string) {
	n, err := strconv.Atoi(version)
	if err != nil || n < f.newest {
		f.w.faults = append(f.w.faults, fmt.Sprintf("%s tells version %q after %d", where, version, f.newest))
	}
	f.newest = max(f.newest, n)
}

func (f *follower) list(ctx context.Context) (version string) {
	address := f.hub()
	status, text, err := f.w.l.call(ctx, 10*time.Second, http.MethodGet, address, "devicemodels", "")
	var list struct {
		Metadata struct{ ResourceVersion string }
		Items    []object
	}
	if err != nil || status != http.StatusOK || json.Unmarshal(text, &list) != nil {
		return ""
	}
	f.w.mu.Lock()
	defer f.w.mu.Unlock()
	f.reach(list.Metadata.ResourceVersion, "a list of "+address)
	told := f.told
	f.told = map[string]int{}
	for _, o := range list.Items {
		f.told[o.Metadata.Name] = max(told[o.Metadata.Name], 1)
	}
	return list.Metadata.ResourceVersion
}

// watch reads events for a while. It reports false if the version is too old.
func (f *follower) watch(ctx context.Context) bool {
	ctx, stop := context.WithTimeout(ctx, time.Duration(100+f.w.l.roll(f.stay))*time.Millisecond)
	defer stop()
	address := f.hub()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+address+apiPath+"devicemodels?watch=true&resourceVersion="+f.version, nil)
	if err != nil {
		return true
	}
	response, err := f.w.l.http.Do(request)
	if err != nil {
		return true
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return response.StatusCode != http.StatusGone
	}
	for lines := bufio.NewScanner(response.Body); lines.Scan(); {
		var event struct {
			Type   string
			Object object
		}
		if json.Unmarshal(lines.Bytes(), &event) != nil {
			return true
		}
		if event.Type == "ERROR" {
			return event.Object.Code != http.StatusGone
		}
		name := event.Object.Metadata.Name
		f.version = event.Object.Metadata.ResourceVersion
		f.w.mu.Lock()
		f.reach(f.version, "a watch of "+address)
		switch event.Type {
		case "ADDED":
			f.told[name]++
		case "DELETED":
			delete(f.told, name)
		}
		f.w.mu.Unlock()
	}
	return true
}

// await waits until all followers were told of objects, or of their end.
func (w *watches) await(ctx context.Context, names []string, there bool) error {
	return harness.Eventually(ctx, recovery, func(context.Context) error {
		w.mu.Lock()
		defer w.mu.Unlock()
		for _, name := range names {
			for i, f := range w.followers {
				if f.told[name] > 0 != there {
					return fmt.Errorf("follower %d was not told of %s, which is there: %t", i, name, there)
				}
			}
		}
		return nil
	})
}

// check looks whether all that was made was told to everybody, once, deletes it, and looks whether that is told.
func (w *watches) check(ctx context.Context) error {
	w.mu.Lock()
	made := w.made
	w.made = nil
	w.mu.Unlock()
	err := w.await(ctx, made, true)
	w.mu.Lock()
	for _, name := range made {
		for i, f := range w.followers {
			if n := f.told[name]; n > 1 {
				w.faults = append(w.faults, fmt.Sprintf("follower %d was told %d times that %s was added", i, n, name))
			}
		}
	}
	if err == nil && len(w.faults) > 0 {
		err = fmt.Errorf("%q", w.faults[:min(len(w.faults), 10)])
	}
	w.mu.Unlock()
	if err != nil {
		return err
	}
	var deletes errgroup.Group
	deletes.SetLimit(8)
	for _, name := range made {
		deletes.Go(func() error {
			return harness.Eventually(ctx, recovery, func(ctx context.Context) error {
				status, text, err := w.l.call(ctx, 3*time.Second, http.MethodDelete, w.l.someHub(), "devicemodels/"+name, "")
				if err == nil && status != http.StatusOK && status != http.StatusNotFound {
					err = fmt.Errorf("%d %s", status, text)
				}
				return err
			})
		})
	}
	if err := deletes.Wait(); err != nil {
		return err
	}
	return w.await(ctx, made, false)
}
