// SPDX-License-Identifier: Apache-2.0

//go:build testprogram

package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

func objectName(i int) string { return fmt.Sprintf("press-%06d", i) }

const (
	objectsPath = "/apis/edgebus.io/v1alpha1/namespaces/default/devices"
	asTable     = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json" // what kubectl get asks for
)

// spent runs f, and says how long it took, and what it cost the hub.
func (h *apiProcess) spent(f func() error) (took, cpu time.Duration, err error) {
	before, err := cpuOf(h.pid)
	if err != nil {
		return 0, 0, err
	}
	begin := time.Now()
	err = f()
	took = time.Since(begin)
	after, cpuErr := cpuOf(h.pid)
	return took, after - before, errors.Join(err, cpuErr)
}

// listObjects reads all objects page by page, as they are and as kubectl shows them, and those of one node.
func listObjects(h *apiProcess, raw rawFigures, put func(objectRow)) error {
	for _, c := range []struct {
		what, aim           string
		most                time.Duration // that the aim allows
		query, accept, item string
		n                   int
		alone               time.Duration
	}{
		{"the first list after the start", "", 0, "", "application/json", `"nodeName":`, allObjects(), raw.list},
		{fmt.Sprintf("list all in pages of %d", objectPage), "below 1 s", time.Second, "", "application/json", `"nodeName":`, allObjects(), raw.list},
		{"the same as Tables, as kubectl get asks", "", 0, "", asTable, `"cells":`, allObjects(), raw.list},
		{fmt.Sprintf("list by label: %d of all", objectsOfNode), "", 0, "&labelSelector=plant%3Dplant-0500", "application/json", `"nodeName":`, objectsOfNode, raw.list},
		{fmt.Sprintf("list by field: %d of all", objectsOfNode), "", 0, "&fieldSelector=spec.nodeName%3Dplant-0500", "application/json", `"nodeName":`, objectsOfNode, raw.list},
	} {
		n := 0
		took, cpu, err := h.spent(func() (err error) {
			n, err = h.count(c.query, c.accept, []byte(c.item))
			return err
		})
		if err == nil && n != c.n {
			err = fmt.Errorf("%s: %d objects, not %d", c.what, n, c.n)
		}
		if err != nil {
			return err
		}
		put(objectRow{c.what, c.aim, took < c.most, formatDuration(took), formatDuration(c.alone), took.Seconds() / c.alone.Seconds(), cpu / time.Duration(allObjects())})
	}
	return nil
}

// count reads a list page by page, and counts what makes an object in it.
func (h *apiProcess) count(query, accept string, item []byte) (n int, err error) {
	for next := ""; ; {
		text, err := h.get(fmt.Sprintf("%s?limit=%d&continue=%s%s", objectsPath, objectPage, next, query), accept)
		if err != nil {
			return n, err
		}
		n += bytes.Count(text, item)
		_, rest, more := bytes.Cut(text[:min(len(text), 400)], []byte(`"continue":"`))
		if !more {
			return n, nil
		}
		token, _, _ := bytes.Cut(rest, []byte(`"`))
		next = string(token)
	}
}

func getObjects(h *apiProcess, raw rawFigures, put func(objectRow)) error {
	var alone, took []time.Duration
	for range objectGets {
		begin := time.Now()
		if _, err := h.get("/livez", ""); err != nil {
			return err
		}
		alone = append(alone, time.Since(begin))
	}
	_, cpu, err := h.spent(func() error {
		for range objectGets {
			begin := time.Now()
			if _, err := h.get(objectsPath+"/"+objectName(rand.IntN(allObjects())), ""); err != nil {
				return err
			}
			took = append(took, time.Since(begin))
		}
		return nil
	})
	if err != nil {
		return err
	}
	a, z := quantile(took, 0.99), quantile(alone, 0.99)
	put(objectRow{"get one, p99 (beside: /livez, which reads nothing)", "below 2 ms", a < 2*time.Millisecond, formatDuration(a), formatDuration(z), a.Seconds() / z.Seconds(), 0})
	a = quantile(took, 0.5)
	put(objectRow{"get one, p50 (beside: the store's Get)", "", false, formatDuration(a), raw.get.String(), a.Seconds() / raw.get.Seconds(), cpu / objectGets})
	return nil
}

// patchObjects has many clients patch what is wanted, each its own Device in turn, as kubectl does: a GET, and a PATCH.
func patchObjects(h *apiProcess, raw rawFigures, put func(objectRow)) error {
	rate, patches := 0.0, int64(0)
	_, cpu, err := h.spent(func() (err error) {
		rate, patches, err = writeFor(raw.each, func(i int) error {
			name := objectName(i % allObjects())
			if _, err := h.get(objectsPath+"/"+name, ""); err != nil {
				return err
			}
			return h.patch(name, i)
		})
		return errors.Join(err, h.settle())
	})
	if err != nil {
		return err
	}
	put(objectRow{
		fmt.Sprintf("kubectl's patches a second (GET and PATCH), durable, %d writers", objectWriters), "above 1000", rate > 1000,
		fmt.Sprintf("%.0f", rate), fmt.Sprintf("%.0f", raw.writes), raw.writes / rate, cpu / time.Duration(patches),
	})
	return nil
}

func (h *apiProcess) patch(name string, value int) error {
	body := fmt.Sprintf(`{"spec":{"desired":{"p0":"%d"}}}`, value)
	r, err := http.NewRequest(http.MethodPatch, h.base+objectsPath+"/"+name+"?fieldManager=kubectl-patch", strings.NewReader(body))
	if err != nil {
		return err
	}
	r.Header.Set("Content-Type", "application/merge-patch+json")
	resp, err := h.client.Do(r)
	if err != nil {
		return err
	}
	defer func() { _ = resp.Body.Close() }()
	if _, err := io.Copy(io.Discard, resp.Body); err != nil || resp.StatusCode != http.StatusOK {
		return errors.Join(err, fmt.Errorf("patch %s: %s", name, resp.Status))
	}
	return nil
}

// writeFor has many writers write for a while.
func writeFor(d time.Duration, write func(i int) error) (perSecond float64, n int64, err error) {
	var next, done atomic.Int64
	var failed atomic.Pointer[error]
	var all sync.WaitGroup
	begin := time.Now()
	for range objectWriters {
		all.Go(func() {
			for time.Since(begin) < d && failed.Load() == nil {
				if err := write(int(next.Add(1)) * 37); err != nil {
					failed.Store(&err)
					return
				}
				done.Add(1)
			}
		})
	}
	all.Wait()
	if err := failed.Load(); err != nil {
		return 0, 0, *err
	}
	return float64(done.Load()) / time.Since(begin).Seconds(), done.Load(), nil
}

const watchesWritten = 500

// watchDelays is what watchers of one object each hear.
type watchDelays struct {
	right, wrong atomic.Int64
	arrived      [objectWatchers]atomic.Int64
	sent         [watchesWritten]time.Time
}

func (w *watchDelays) event(i int, own bool) {
	if !own {
		w.wrong.Add(1)
	} else if w.arrived[i].CompareAndSwap(0, time.Now().UnixNano()) {
		w.right.Add(1)
	}
}

// measure writes some of the objects and waits for their watchers.
func (w *watchDelays) measure(write func(i int) error) error {
	for i := range watchesWritten {
		w.sent[i] = time.Now()
		if err := write(i); err != nil {
			return err
		}
	}
	for deadline := time.Now().Add(10 * time.Second); w.right.Load() < watchesWritten && time.Now().Before(deadline); {
		time.Sleep(time.Millisecond)
	}
	if w.right.Load() != watchesWritten || w.wrong.Load() != 0 {
		return fmt.Errorf("%d of %d watchers heard of their object, and %d of another", w.right.Load(), watchesWritten, w.wrong.Load())
	}
	return nil
}

func (w *watchDelays) p99() time.Duration {
	var delays []time.Duration
	for i := range watchesWritten {
		delays = append(delays, time.Unix(0, w.arrived[i].Load()).Sub(w.sent[i]))
	}
	return quantile(delays, 0.99)
}

// watchObjects has many clients watch one Device each, and writes some of those.
func watchObjects(h *apiProcess, raw rawFigures, put func(objectRow)) error {
	var w watchDelays
	var conns []net.Conn
	defer func() {
		for _, c := range conns {
			_ = c.Close()
		}
	}()
	for i := range objectWatchers {
		own := []byte(`"name":"` + objectName(i) + `"`)
		c, err := h.watch(objectName(i), func(line []byte) { w.event(i, bytes.Contains(line, own)) })
		if err != nil {
			return err
		}
		conns = append(conns, c)
	}
	_, cpu, err := h.spent(func() error {
		err := w.measure(func(i int) error { return h.patch(objectName(i), -1-i) })
		return errors.Join(err, h.settle())
	})
	if err != nil {
		return err
	}
	put(objectRow{
		fmt.Sprintf("%d watchers of one object each: from a patch to its watcher, p99", objectWatchers),
		"none hears of another", w.wrong.Load() == 0,
		formatDuration(w.p99()), formatDuration(raw.watch), w.p99().Seconds() / raw.watch.Seconds(), cpu / watchesWritten,
	})
	return nil
}

// watch follows one object over a connection of its own, without a client's weight.
func (h *apiProcess) watch(name string, line func([]byte)) (net.Conn, error) {
	c, err := net.Dial("tcp", strings.TrimPrefix(h.base, "http://"))
	if err != nil {
		return nil, err
	}
	text, err := h.get(objectsPath+"?fieldSelector=metadata.name="+name, "")
	if err != nil {
		return nil, errors.Join(err, c.Close())
	}
	var list struct {
		Metadata struct {
			ResourceVersion string `json:"resourceVersion"`
		} `json:"metadata"`
	}
	if err := json.Unmarshal(text, &list); err != nil {
		return nil, errors.Join(err, c.Close())
	}
	fmt.Fprintf(c, "GET %s?watch=true&resourceVersion=%s&fieldSelector=metadata.name=%s HTTP/1.1\r\nHost: localhost\r\n\r\n",
		objectsPath, list.Metadata.ResourceVersion, name)
	in := bufio.NewReaderSize(c, 512)
	if status, err := in.ReadString('\n'); err != nil || !strings.Contains(status, "200") {
		return nil, errors.Join(err, fmt.Errorf("watch: %s", status), c.Close())
	}
	go readEvents(in, line)
	return c, nil
}

// readEvents reads a watch's lines until its connection ends.
func readEvents(in *bufio.Reader, line func([]byte)) {
	var long []byte
	for {
		part, err := in.ReadSlice('\n')
		long = append(long, part...)
		if errors.Is(err, bufio.ErrBufferFull) {
			continue
		}
		if err != nil {
			return
		}
		if bytes.HasPrefix(long, []byte(`{"type"`)) {
			line(long)
		}
		long = nil
	}
}
