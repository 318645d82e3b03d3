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
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

const (
	objectNodes, objectsOfNode, objectProperties = 1000, 100, 5
	allObjects                                   = objectNodes * objectsOfNode
	objectPage, objectGets                       = 500, 5000
	objectWatchers, objectWriters                = 5000, 64
)

// objects measures a hub's API with a hundred thousand Devices, each figure beside what the store alone takes.
func objects(b bench) error {
	dir, err := os.MkdirTemp("", "edgebus-bench-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	empty, err := apiHub(b, filepath.Join(dir, "empty"))
	if err != nil {
		return fmt.Errorf("%w: run make build first", err)
	}
	empty.stop()
	full := filepath.Join(dir, "full")
	if err := makeObjects(full); err != nil {
		return err
	}
	raw, err := rawStore(b, full)
	if err != nil {
		return err
	}
	// The first hub writes what it makes of what the nodes reported; the second one is measured.
	hub, err := apiHub(b, full)
	if err != nil {
		return err
	}
	if err := hub.settle(); err != nil {
		return err
	}
	hub.halt()
	if hub, err = apiHub(b, full); err != nil {
		return err
	}
	defer hub.stop()
	if err := hub.settle(); err != nil {
		return err
	}
	rest, err := anonymous(hub.pid)
	if err != nil {
		return err
	}
	fmt.Fprintf(b.w, "%d Devices of %d properties on %d nodes, two values of each wanted and all of them reported, one DeviceModel.\n"+
		"The store alone is the same file, opened by the benchmark itself, without API and twins.\n\n"+
		"| | hub | the store alone | |\n|---|---|---|---|\n", allObjects, objectProperties, objectNodes)
	row := func(what, figure, alone string, ratio float64) {
		fmt.Fprintf(b.w, "| %s | %s | %s | × %.1f |\n", what, figure, alone, ratio)
	}
	perProperty := (rest - empty.rest) * 1e6 / (allObjects * objectProperties)
	row("memory (RssAnon, less an empty hub's), bytes a property", fmt.Sprintf("%.0f", perProperty), fmt.Sprintf("%.0f", raw.memory), perProperty/raw.memory)
	row("start until it answers", round(hub.start), round(raw.open), hub.start.Seconds()/raw.open.Seconds())
	for _, measure := range []func(*apiProcess, rawFigures, func(string, string, string, float64)) error{listObjects, getObjects, patchObjects, watchObjects} {
		if err := measure(hub, raw, row); err != nil {
			return err
		}
	}
	return nil
}

// apiProcess is a hub and its API.
type apiProcess struct {
	*process
	base   string
	client *http.Client
	start  time.Duration
	rest   float64 // MB of anonymous memory
}

func apiHub(b bench, dir string) (*apiProcess, error) {
	addr, err := freeAddress()
	if err != nil {
		return nil, err
	}
	web, err := freeAddress()
	if err != nil {
		return nil, err
	}
	h := &apiProcess{base: "http://" + web, client: &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: objectWriters}}}
	begin := time.Now()
	h.process, err = start(dir, addr, "", filepath.Join(b.bin, "cloudhub"), "--data-dir", dir, "--mqtt-listen", addr,
		"--mqtt-websocket-listen", "", "--http-listen", web, "--limits-requests", fmt.Sprint(objectWatchers+1000))
	if err != nil {
		return nil, err
	}
	for ; ; time.Sleep(5 * time.Millisecond) {
		if resp, err := h.client.Get(h.base + "/readyz"); err == nil {
			_ = resp.Body.Close()
			break
		}
		if time.Since(begin) > time.Minute {
			return nil, errors.New("the hub's API doesn't answer")
		}
	}
	h.start = time.Since(begin)
	time.Sleep(settled) // what it rests at is what is asked
	h.rest, err = anonymous(h.pid)
	return h, err
}

// halt stops the hub and leaves its files.
func (h *apiProcess) halt() {
	p, _ := os.FindProcess(h.pid)
	_ = p.Signal(os.Interrupt)
	for ; alive(h.pid); time.Sleep(20 * time.Millisecond) {
	}
}

func alive(pid int) bool {
	_, err := os.Stat(fmt.Sprintf("/proc/%d/exe", pid))
	return err == nil
}

// settle waits until the hub has no status to write.
func (h *apiProcess) settle() error {
	for begin := time.Now(); time.Since(begin) < 3*time.Minute; time.Sleep(200 * time.Millisecond) {
		text, err := h.get("/metrics")
		if err != nil {
			return err
		}
		if bytes.Contains(text, []byte("\nedgebus_hub_status_waiting 0\n")) {
			time.Sleep(settled)
			return nil
		}
	}
	return errors.New("the hub's statuses are not written")
}

func (h *apiProcess) get(path string) ([]byte, error) {
	resp, err := h.client.Get(h.base + path)
	if err != nil {
		return nil, err
	}
	defer func() { _ = resp.Body.Close() }()
	text, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %s: %.200s", path, resp.Status, text)
	}
	return text, err
}

func objectName(i int) string { return fmt.Sprintf("press-%06d", i) }

const objectsPath = "/apis/edgebus.io/v1alpha1/namespaces/default/devices"

// listObjects reads all objects page by page.
func listObjects(h *apiProcess, raw rawFigures, row func(string, string, string, float64)) error {
	begin, n, next := time.Now(), 0, ""
	for {
		text, err := h.get(fmt.Sprintf("%s?limit=%d&continue=%s", objectsPath, objectPage, next))
		if err != nil {
			return err
		}
		n += bytes.Count(text, []byte(`"nodeName":`))
		head := text[:min(len(text), 400)]
		_, rest, more := bytes.Cut(head, []byte(`"continue":"`))
		if !more {
			break
		}
		token, _, _ := bytes.Cut(rest, []byte(`"`))
		next = string(token)
	}
	if n != allObjects {
		return fmt.Errorf("%d of %d objects were listed", n, allObjects)
	}
	took := time.Since(begin)
	row(fmt.Sprintf("list all in pages of %d", objectPage), round(took), round(raw.list), took.Seconds()/raw.list.Seconds())
	return nil
}

func getObjects(h *apiProcess, raw rawFigures, row func(string, string, string, float64)) error {
	var took, alone []time.Duration
	for range objectGets {
		begin := time.Now()
		if _, err := h.get(objectsPath + "/" + objectName(rand.IntN(allObjects))); err != nil {
			return err
		}
		took = append(took, time.Since(begin))
		begin = time.Now()
		if _, err := h.get("/livez"); err != nil {
			return err
		}
		alone = append(alone, time.Since(begin))
	}
	a, z := quantile(took, 0.99), quantile(alone, 0.99)
	row("get one, p99 (beside: /livez, which reads nothing)", round(a), round(z), a.Seconds()/z.Seconds())
	a = quantile(took, 0.5)
	row("get one, p50 (beside: the store's Get)", round(a), raw.get.String(), a.Seconds()/raw.get.Seconds())
	return nil
}

// patchObjects has many clients patch what is wanted, each its own Device in turn.
func patchObjects(h *apiProcess, raw rawFigures, row func(string, string, string, float64)) error {
	rate, err := writeFor(3*time.Second, func(i int) error {
		return h.patch(objectName(i%allObjects), i)
	})
	if err != nil {
		return err
	}
	row(fmt.Sprintf("patches a second, durable, %d writers", objectWriters), fmt.Sprintf("%.0f", rate), fmt.Sprintf("%.0f", raw.writes), raw.writes/rate)
	return nil
}

func (h *apiProcess) patch(name string, value int) error {
	body := fmt.Sprintf(`{"spec":{"desired":{"p0":"%d"}}}`, value)
	r, err := http.NewRequest(http.MethodPatch, h.base+objectsPath+"/"+name, strings.NewReader(body))
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
func writeFor(d time.Duration, write func(i int) error) (perSecond float64, err error) {
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
		return 0, *err
	}
	return float64(done.Load()) / time.Since(begin).Seconds(), nil
}

// watchObjects has many clients watch one Device each, and writes some of those.
func watchObjects(h *apiProcess, _ rawFigures, row func(string, string, string, float64)) error {
	const written = 500
	var right, wrong atomic.Int64
	arrived := make([]atomic.Int64, objectWatchers)
	var conns []net.Conn
	defer func() {
		for _, c := range conns {
			_ = c.Close()
		}
	}()
	for i := range objectWatchers {
		c, err := h.watch(objectName(i), func(line []byte) {
			if !bytes.Contains(line, []byte(`"name":"`+objectName(i)+`"`)) {
				wrong.Add(1)
			} else if arrived[i].CompareAndSwap(0, time.Now().UnixNano()) {
				right.Add(1)
			}
		})
		if err != nil {
			return err
		}
		conns = append(conns, c)
	}
	sent := make([]time.Time, written)
	for i := range written {
		sent[i] = time.Now()
		if err := h.patch(objectName(i), -1-i); err != nil {
			return err
		}
	}
	for deadline := time.Now().Add(10 * time.Second); right.Load() < written && time.Now().Before(deadline); {
		time.Sleep(time.Millisecond)
	}
	if right.Load() != written || wrong.Load() != 0 {
		return fmt.Errorf("%d of %d watchers heard of their object, and %d of another", right.Load(), written, wrong.Load())
	}
	var delays []time.Duration
	for i := range written {
		delays = append(delays, time.Unix(0, arrived[i].Load()).Sub(sent[i]))
	}
	a, z := quantile(delays, 0.99), quantile(delays, 0.5)
	row(fmt.Sprintf("%d watchers of one object each: from a patch to its watcher, p99 (beside: p50); none hears of another", objectWatchers),
		round(a), round(z), a.Seconds()/z.Seconds())
	return nil
}

// watch follows one object over a connection of its own, without a client's weight.
func (h *apiProcess) watch(name string, line func([]byte)) (net.Conn, error) {
	c, err := net.Dial("tcp", strings.TrimPrefix(h.base, "http://"))
	if err != nil {
		return nil, err
	}
	text, err := h.get(objectsPath + "?fieldSelector=metadata.name=" + name)
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
	fmt.Fprintf(c, "GET %s?watch=true&resourceVersion=%s&fieldSelector=metadata.name=%s HTTP/1.1\r\nHost: bench\r\n\r\n",
		objectsPath, list.Metadata.ResourceVersion, name)
	in := bufio.NewReaderSize(c, 512)
	if status, err := in.ReadString('\n'); err != nil || !strings.Contains(status, "200") {
		return nil, errors.Join(err, fmt.Errorf("watch: %s", status), c.Close())
	}
	go func() {
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
	}()
	return c, nil
}
