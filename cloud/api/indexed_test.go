// SPDX-License-Identifier: Apache-2.0

package api

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"

	"github.com/edgebus/edgebus/cloud/api/index"
	"github.com/edgebus/edgebus/cloud/store"
	"github.com/edgebus/edgebus/topics/resource"
)

// newIndexedHub is a hub whose API has an index, and six Devices on three nodes.
func newIndexedHub(t *testing.T, change ...func(*hubOptions)) *hub {
	ctx, end := context.WithCancel(context.Background())
	done := make(chan struct{})
	h := newHub(t, append(change, func(o *hubOptions) {
		o.Index = index.New(index.Options{Reader: o.Reader, Watcher: o.Watcher, Log: zerolog.Nop()})
		go func() {
			defer close(done)
			_ = o.Index.Run(ctx)
		}()
	})...)
	t.Cleanup(func() { end(); <-done })
	return h
}

func (h *hub) setStatus(name, status string) {
	key := store.Key{Kind: resource.KindDevice, Namespace: "default", Name: name}
	_, err := h.store.Update(context.Background(), store.Object{Key: key, Status: []byte(status)}, 0)
	require.NoError(h.t, err)
}

func TestDevicesAreCountedByStateAndLabel(t *testing.T) {
	h := newIndexedHub(t)
	h.devices(6)
	h.setStatus("d01", `{"state":"online","conditions":[{"type":"InSync","status":"False","reason":"Refused"}]}`)
	h.setStatus("d02", `{"conditions":[{"type":"InSync","status":"True"}],"state":"offline"}`)
	sum := h.ok("GET", apiRoot+"/devices?summary=status.state,inSync,label:odd,label:none,spec.nodeName", "")
	require.EqualValues(t, 6, sum.at("summary.total"))
	counts := sum.at("summary.counts").(map[string]any)
	require.Equal(t, map[string]any{
		"status.state": map[string]any{"online": 1.0, "offline": 1.0, "unknown": 4.0}, "inSync": map[string]any{"True": 1.0, "False": 1.0, "Unknown": 4.0},
		"label:odd": map[string]any{"true": 3.0, "false": 3.0}, "label:none": map[string]any{"": 6.0}, "spec.nodeName": map[string]any{"n0": 2.0, "n1": 2.0, "n2": 2.0},
	}, counts)
	require.Equal(t, []any{}, sum.at("items"))
	h.ok("DELETE", namespaceRoot+"/devices/d05", "")
	filtered := h.ok("GET", namespaceRoot+"/devices?summary=status.state&labelSelector=odd=true&fieldSelector=spec.nodeName%3Dn1", "")
	require.EqualValues(t, 1, filtered.at("summary.total"), "what was written just before is counted")
	require.Contains(t, h.refused(422, "Invalid", "GET", apiRoot+"/devices?summary=spec.secret", ""), "label:NAME")
	require.Contains(t, h.refused(400, "BadRequest", "GET", apiRoot+"/fleets?summary=status.state", ""), "devices and nodes are")
}

func TestListsAreSearchedSortedAndPagedByNumber(t *testing.T) {
	h := newIndexedHub(t)
	h.devices(6)
	h.setStatus("d04", `{"state":"online"}`)
	for query, want := range map[string][]string{
		"search=D0&limit=2":                               {"d00", "d01"},
		"search=D0&limit=2&offset=4":                      {"d04", "d05"},
		"search=n1":                                       {"d01", "d04"},
		"search=odd%3Dtrue+n1":                            {"d01"},
		"search=nothing":                                  {},
		"order=-metadata.name&limit=2":                    {"d05", "d04"},
		"order=label:odd":                                 {"d00", "d02", "d04", "d01", "d03", "d05"},
		"order=status.state&limit=1":                      {"d04"},
		"offset=5":                                        {"d05"},
		"offset=50":                                       {},
		"fieldSelector=status.state%3Donline":             {"d04"},
		"fieldSelector=status.state!%3Dunknown":           {"d04"},
		"fieldSelector=status.inSync%3DUnknown&limit=9":   {"d00", "d01", "d02", "d03", "d04", "d05"},
		"fieldSelector=metadata.name~D03":                 {"d03"},
		"fieldSelector=metadata.name~d0,spec.nodeName=n0": {"d00", "d03"},
		"fieldSelector=metadata.name~d0,spec.nodeName=n0&order=-metadata.name": {"d03", "d00"},
		"fieldSelector=spec.deviceModelRef.name=dimmable&offset=4":             {"d04", "d05"},
	} {
		got := h.ok("GET", namespaceRoot+"/devices?"+query, "").names()
		if len(want) == 0 {
			require.Empty(t, got, query)
			continue
		}
		require.Equal(t, want, got, query)
	}
	require.EqualValues(t, 4, h.ok("GET", apiRoot+"/devices?offset=0&limit=2", "").at("metadata.remainingItemCount"))
	require.Equal(t, "Table", h.ok("GET", apiRoot+"/devices?search=d01", "", "Accept", asTable).str("kind"))
	for query, why := range map[string]string{
		"offset=-1": "not a number", "offset=0&limit=100000": "from 1 to", "order=spec.secret": "no field", "search=a&resourceVersion=1&resourceVersionMatch=Exact": "of now",
	} {
		require.Contains(t, string(h.do("GET", apiRoot+"/devices?"+query, "").body), why, query)
	}
}

func TestTheIndexCountsOnlyWhatOneMaySee(t *testing.T) {
	h := newIndexedHub(t, func(o *hubOptions) { o.Authenticate = authenticateByHeader })
	for i := range 6 {
		h.ok("POST", namespaceRoot+"/devices", strings.Replace(lampNamed(fmt.Sprintf("d%02d", i)), "n1", fmt.Sprint("n", i%3), 1), "As", "boss")
	}
	for query, want := range map[string]string{"summary=spec.nodeName": `"total":2,"counts":{"spec.nodeName":{"n1":2}}`, "search=d&limit=1": `"remainingItemCount":1`} {
		got := string(h.ok("GET", apiRoot+"/devices?"+query, "", "As", "vic").body)
		require.Contains(t, got, want)
		require.NotContains(t, got, "d00")
	}
}

func BenchmarkCountsAndSearchOfManyDevices(b *testing.B) {
	const devices = 100_000
	many := make([]store.Object, devices)
	status := benchStatus()
	for i := range many {
		name := fmt.Sprintf("lamp%06d", i)
		many[i] = store.Object{Key: store.Key{Kind: resource.KindDevice, Namespace: "default", Name: name}, Rev: uint64(i + 1), Status: status, Data: []byte(fmt.Sprintf(
			`{"metadata":{"name":%q,"labels":{"site":"s%d","row":"%d"}},"spec":{"nodeName":"n%d","deviceModelRef":{"name":"dimmable"},"protocol":{"type":"modbus"}}}`,
			name, i%100, i%1000, i%2000))}
	}
	ctx, end := context.WithCancel(context.Background())
	defer end()
	x := index.New(index.Options{Reader: fixedStore(many), Watcher: fixedStore(nil), Log: zerolog.Nop()})
	go func() { _ = x.Run(ctx) }()
	for name, ask := range map[string]func() error{
		"counts": func() error {
			_, _, err := x.Count(ctx, resource.KindDevice, index.Query{}, []string{"status.state", "inSync", "label:site"})
			return err
		},
		"search": func() error {
			_, err := x.Find(ctx, resource.KindDevice, index.Query{Search: "lamp09", Limit: 50})
			return err
		},
		"order": func() error {
			_, err := x.Find(ctx, resource.KindDevice, index.Query{Order: "-label:row", Limit: 50})
			return err
		},
	} {
		b.Run(name, func(b *testing.B) {
			require.NoError(b, ask())
			b.ResetTimer()
			for range b.N {
				if err := ask(); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// fixedStore has some objects, of the first one's kind, which never change.
type fixedStore []store.Object

func (f fixedStore) Get(context.Context, store.Key) (store.Object, error) {
	return store.Object{}, resource.Errorf(resource.NotFound, "", "not there")
}

func (f fixedStore) List(_ context.Context, kind string, o store.ListOptions) (store.Page, error) {
	p := store.Page{Rev: uint64(len(f))}
	if len(f) > 0 && f[0].Kind == kind && o.Limit == 0 {
		p.Items = f
	}
	return p, nil
}

func (f fixedStore) Watch(_ context.Context, _ store.Key, from uint64) (store.Stream, error) {
	return quietStream(from), nil
}

// quietStream is a stream without changes.
type quietStream uint64

func (q quietStream) Next(ctx context.Context) ([]store.Event, error) {
	<-ctx.Done()
	return nil, ctx.Err()
}
func (q quietStream) Rev() uint64 { return uint64(q) }
func (q quietStream) Close()      {}
