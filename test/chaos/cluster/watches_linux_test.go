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

// watches are objects that somebody makes, and somebody else follows as kubectl's informers do, at changing hubs.
type watches struct {
	l *load

	mu      sync.Mutex
	made    []string       // that were acknowledged, and are there
	seen    map[string]int // additions that were told, by name
	version int            // the last one that was told
	faults  []string
	count   int
}

const watchPace = 50 * time.Millisecond

func (w *watches) start(ctx context.Context, work *sync.WaitGroup) {
	w.seen = map[string]int{}
	work.Go(func() { w.make(ctx) })
	work.Go(func() { w.follow(ctx) })
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

func (w *watches) follow(ctx context.Context) {
	version := ""
	for ctx.Err() == nil {
		if version == "" {
			version = w.list(ctx)
		}
		if version != "" && !w.from(ctx, &version) {
			version = ""
		}
		pauseFor(ctx, watchPace)
	}
}

type object struct {
	Metadata struct{ Name, ResourceVersion string }
	Code     int
}

// reach notes a version that was told. Those of a list and of what is watched after it never fall.
func (w *watches) reach(version, where string) {
	n, err := strconv.Atoi(version)
	if err != nil || n < w.version {
		w.faults = append(w.faults, fmt.Sprintf("%s tells version %q after %d", where, version, w.version))
	}
	w.version = max(w.version, n)
}

func (w *watches) list(ctx context.Context) (version string) {
	address := w.l.someHub()
	status, text, err := w.l.call(ctx, 10*time.Second, http.MethodGet, address, "devicemodels", "")
	var list struct {
		Metadata struct{ ResourceVersion string }
		Items    []object
	}
	if err != nil || status != http.StatusOK || json.Unmarshal(text, &list) != nil {
		return ""
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.reach(list.Metadata.ResourceVersion, "a list of "+address)
	for _, o := range list.Items {
		w.seen[o.Metadata.Name] = max(w.seen[o.Metadata.Name], 1)
	}
	return list.Metadata.ResourceVersion
}

// from reads events for a while. It reports false if the version is too old.
func (w *watches) from(ctx context.Context, version *string) bool {
	ctx, stop := context.WithTimeout(ctx, time.Duration(300+w.l.roll(3000))*time.Millisecond)
	defer stop()
	address := w.l.someHub()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+address+apiPath+"devicemodels?watch=true&resourceVersion="+*version, nil)
	if err != nil {
		return true
	}
	response, err := w.l.http.Do(request)
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
		*version = event.Object.Metadata.ResourceVersion
		w.mu.Lock()
		w.reach(*version, "a watch of "+address)
		if event.Type == "ADDED" {
			w.seen[event.Object.Metadata.Name]++
		}
		w.mu.Unlock()
	}
	return true
}

// check looks whether all that was made was told, once, and deletes it.
func (w *watches) check(ctx context.Context) error {
	w.mu.Lock()
	made := w.made
	w.made = nil
	w.mu.Unlock()
	err := harness.Eventually(ctx, recovery, func(context.Context) error {
		w.mu.Lock()
		defer w.mu.Unlock()
		for _, name := range made {
			if w.seen[name] == 0 {
				return fmt.Errorf("nobody has told of %s, which was made", name)
			}
		}
		return nil
	})
	w.mu.Lock()
	for _, name := range made {
		if n := w.seen[name]; n > 1 {
			w.faults = append(w.faults, fmt.Sprintf("%s was told to be added %d times", name, n))
		}
		delete(w.seen, name)
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
	return deletes.Wait()
}
