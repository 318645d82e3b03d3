// SPDX-License-Identifier: Apache-2.0

package api

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"

	"github.com/edgebus/edgebus/cloud/store"
	"github.com/edgebus/edgebus/cloud/store/disk"
	"github.com/edgebus/edgebus/topics/resource"
)

const benchDevices = 1000

// benchHub is the API over a store of Devices with their statuses, without network.
func benchHub(b *testing.B) (http.Handler, *disk.Store) {
	st, err := disk.Open(disk.Options{Path: filepath.Join(b.TempDir(), "log")})
	require.NoError(b, err)
	b.Cleanup(func() { require.NoError(b, st.Close()) })
	h := newAPI(hubOptions{Writer: st, Options: Options{Reader: st, Watcher: st, Log: zerolog.Nop()}})
	require.Equal(b, http.StatusCreated, serveRequest(h, http.MethodPost, namespaceRoot+"/devicemodels", benchModel()).Code)
	var all sync.WaitGroup
	var next atomic.Int64
	for range 64 {
		all.Go(func() {
			for i := next.Add(1); i <= benchDevices; i = next.Add(1) {
				body := fmt.Sprintf(lampFormat, fmt.Sprintf(`,"labels":{"row":"%d"}`, i/100), `,"desired":{"power":"ON","brightness":"40"}`)
				body = strings.Replace(body, "lamp", fmt.Sprint("lamp", i), 1)
				if code := serveRequest(h, http.MethodPost, namespaceRoot+"/devices", body).Code; code != http.StatusCreated {
					b.Errorf("create: %d", code)
				}
				key := store.Key{Kind: resource.KindDevice, Namespace: "default", Name: fmt.Sprint("lamp", i)}
				if _, err := st.Update(context.Background(), store.Object{Key: key, Status: benchStatus()}, 0); err != nil {
					b.Error(err)
				}
			}
		})
	}
	all.Wait()
	return h, st
}

// benchModel has some tens of properties, as those of machines have.
func benchModel() string {
	var more strings.Builder
	for i := range 40 {
		fmt.Fprintf(&more, `{"name":"p%d","type":"float","accessMode":"ReadWrite","minimum":-50,"maximum":150,"unit":"C","description":"One of many."},`, i)
	}
	return strings.Replace(modelJSON, `{"name":"power"`, more.String()+`{"name":"power"`, 1)
}

// benchStatus is about as large as that of a Device with five properties.
func benchStatus() []byte {
	s := resource.DeviceStatus{State: resource.Online, LastSeen: resource.FormatMillis(1_790_000_000_000), Twin: make(map[string]resource.TwinProperty)}
	for i := range 5 {
		v := &resource.TwinValue{Value: "ON", Ver: 4711, TS: s.LastSeen, Origin: "mapper-modbus"}
		s.Twin[fmt.Sprint("p", i)] = resource.TwinProperty{Reported: v, Desired: v, InSync: true}
	}
	s.Conditions = resource.SetCondition(nil, resource.Condition{Type: "InSync", Status: "True", Reason: "AsWanted"}, time.Unix(1_790_000_000, 0))
	raw, _ := json.Marshal(s) // plain structs
	return raw
}

// reportCPU reports the processor's time an operation, which says more than the clock on a machine that does other things too.
func reportCPU(b *testing.B) {
	b.ReportAllocs()
	begin := usedCPU()
	b.Cleanup(func() { b.ReportMetric(float64(usedCPU()-begin)/float64(b.N), "cpu-ns/op") })
}

func usedCPU() int64 {
	var u syscall.Rusage
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &u) // can't fail with these arguments
	return u.Utime.Nano() + u.Stime.Nano()
}

func serveRequest(h http.Handler, method, path, body string, headers ...string) *httptest.ResponseRecorder {
	r := httptest.NewRequest(method, path, strings.NewReader(body))
	for i := 0; i < len(headers); i += 2 {
		r.Header.Set(headers[i], headers[i+1])
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w
}

// BenchmarkReads are what one object costs in a list, in the forms in which it is asked for.
func BenchmarkReads(b *testing.B) {
	h, _ := benchHub(b)
	for _, c := range []struct{ name, query, accept string }{
		{"list", "?limit=500", "application/json"},
		{"table", "?limit=500", "application/json;as=Table;v=v1;g=meta.k8s.io"},
		{"label", "?labelSelector=row%3D7", "application/json"},
		{"field", "?fieldSelector=spec.nodeName%3Dn7", "application/json"},
	} {
		n := 500
		if c.name != "list" && c.name != "table" {
			n = benchDevices
		}
		b.Run(c.name, func(b *testing.B) {
			reportCPU(b)
			for i := 0; i < b.N; i += n {
				w := serveRequest(h, http.MethodGet, namespaceRoot+"/devices"+c.query, "", "Accept", c.accept)
				if w.Code != http.StatusOK {
					b.Fatal(w.Body)
				}
			}
		})
	}
	b.Run("get", func(b *testing.B) {
		reportCPU(b)
		for i := range b.N {
			if w := serveRequest(h, http.MethodGet, fmt.Sprint(namespaceRoot, "/devices/lamp", 1+i%benchDevices), ""); w.Code != http.StatusOK {
				b.Fatal(w.Body)
			}
		}
	})
}

// BenchmarkPatch is a merge patch among those of 64 writers, made durable.
func BenchmarkPatch(b *testing.B) {
	h, _ := benchHub(b)
	b.ResetTimer()
	reportCPU(b)
	var all sync.WaitGroup
	var next atomic.Int64
	for range 64 {
		all.Go(func() {
			for i := next.Add(1); i <= int64(b.N); i = next.Add(1) {
				path := fmt.Sprint(namespaceRoot, "/devices/lamp", 1+i*37%benchDevices, "?fieldManager=kubectl-patch")
				w := serveRequest(h, http.MethodPatch, path, fmt.Sprintf(`{"spec":{"desired":{"brightness":"%d"}}}`, i%100), "Content-Type", mergePatch)
				if w.Code != http.StatusOK {
					b.Error(w.Code, w.Body)
				}
			}
		})
	}
	all.Wait()
}

// BenchmarkDuplicateFields looks for duplicate fields in a manifest as large as most.
func BenchmarkDuplicateFields(b *testing.B) {
	raw := fmt.Appendf(nil, lampFormat, "", `,"desired":{"power":"ON","brightness":"40","temperature":"21.5"}`)
	b.SetBytes(int64(len(raw)))
	reportCPU(b)
	for b.Loop() {
		if again := duplicateFields(raw); again != nil {
			b.Fatal(again)
		}
	}
}

// BenchmarkWatchersOfOthers compares, in one run, what a write of a ConfigMap costs while 100 clients watch 10,000 Nodes with what
// it costs while nobody does: ratio 1 is nothing. A write of one of the Nodes is there for comparison.
func BenchmarkWatchersOfOthers(b *testing.B) {
	const nodes, watchers, batch = 10_000, 100, 200
	var quiet, watched http.Handler
	for _, h := range []*http.Handler{&quiet, &watched} {
		st, err := disk.Open(disk.Options{Path: filepath.Join(b.TempDir(), "log")})
		require.NoError(b, err)
		b.Cleanup(func() { require.NoError(b, st.Close()) })
		*h = newAPI(hubOptions{Writer: st, Options: Options{Reader: st, Watcher: st, Log: zerolog.Nop()}})
		runParallel(nodes, 256, func(i int) {
			o := store.Object{Key: store.Key{Kind: resource.KindNode, Name: fmt.Sprint("n", i)}, Data: fmt.Appendf(nil, `{"metadata":{"name":"n%d"}}`, i)}
			if _, err := st.Create(context.Background(), o); err != nil {
				b.Error(err)
			}
		})
		require.Equal(b, http.StatusCreated, serveRequest(*h, http.MethodPost, "/api/v1/namespaces/default/configmaps", `{"metadata":{"name":"m"}}`).Code)
	}
	server := httptest.NewServer(watched)
	b.Cleanup(server.Close)
	var listed sync.WaitGroup
	for range watchers {
		resp, err := http.Get(server.URL + apiRoot + "/nodes?watch=true&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true")
		require.NoError(b, err)
		b.Cleanup(func() { _ = resp.Body.Close() })
		listed.Add(1)
		go func() {
			lines := bufio.NewScanner(resp.Body)
			for begun := false; lines.Scan(); {
				if !begun && strings.Contains(lines.Text(), "initial-events-end") {
					begun = true
					listed.Done()
				}
			}
		}()
	}
	listed.Wait()
	for _, c := range []struct{ name, path string }{{"of another kind", "/api/v1/namespaces/default/configmaps/m"}, {"of what is watched", apiRoot + "/nodes/n7"}} {
		b.Run(c.name, func(b *testing.B) {
			spent, n := map[bool]int64{}, 0
			var label atomic.Int64
			for i := 0; i < b.N; i += batch {
				for _, with := range []bool{false, true} {
					h := map[bool]http.Handler{false: quiet, true: watched}[with]
					began := usedCPU()
					runParallel(batch, 16, func(int) {
						w := serveRequest(h, http.MethodPatch, c.path, fmt.Sprintf(`{"metadata":{"labels":{"n":"%d"}}}`, label.Add(1)), "Content-Type", mergePatch)
						if w.Code != http.StatusOK {
							b.Error(w.Code, w.Body)
						}
					})
					spent[with] += usedCPU() - began
				}
				n += batch
			}
			b.ReportMetric(float64(spent[false])/float64(n), "cpu-ns/write")
			b.ReportMetric(float64(spent[true])/float64(spent[false]), "ratio")
		})
	}
}

// runParallel calls f for 0 to n-1, so many at a time.
func runParallel(n, together int, f func(i int)) {
	var all sync.WaitGroup
	var next atomic.Int64
	for range together {
		all.Go(func() {
			for i := int(next.Add(1)) - 1; i < n; i = int(next.Add(1)) - 1 {
				f(i)
			}
		})
	}
	all.Wait()
}

// BenchmarkSelect lists by a label that few Devices have, as somebody may do all the time.
func BenchmarkSelect(b *testing.B) {
	h, _ := benchHub(b)
	for b.Loop() {
		if w := serveRequest(h, http.MethodGet, apiRoot+"/devices?labelSelector=row%3D3,absent%3Dx", ""); w.Code != http.StatusOK {
			b.Fatal(w.Code)
		}
	}
}
