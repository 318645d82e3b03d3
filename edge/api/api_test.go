// SPDX-License-Identifier: Apache-2.0

package api

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/edgebus/edgebus/broker"
	"github.com/edgebus/edgebus/topics/resource"
)

// fakeTwins stands for the twin: devices that a test changes.
type fakeTwins struct {
	mu      sync.Mutex
	rev     uint64
	floor   uint64
	devices map[string]resource.Bundle
	changed map[string]uint64
	came    map[string]uint64
	gone    []resource.DeviceChange
	wake    chan struct{}
	reads   atomic.Int64      // of single devices
	reading func(name string) // what happens just before such a read; may be nil
}

func newFakeTwins() *fakeTwins {
	return &fakeTwins{
		rev: 100, floor: 100, devices: map[string]resource.Bundle{}, changed: map[string]uint64{}, came: map[string]uint64{}, wake: make(chan struct{}),
	}
}

func (f *fakeTwins) set(name, power string) { f.setIn("default", name, power) }

func (f *fakeTwins) setIn(namespace, name, power string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.rev++
	d := resource.Device{
		TypeMeta: resource.TypeMeta{APIVersion: resource.APIVersion, Kind: resource.KindDevice},
		Metadata: resource.Meta{Name: name, Namespace: namespace, ResourceVersion: strconv.FormatUint(f.rev, 10)},
		Status:   resource.DeviceStatus{Twin: map[string]resource.TwinProperty{"power": {Reported: &resource.TwinValue{Value: power}}}},
	}
	f.devices[name] = resource.Bundle{Device: d, Model: resource.DeviceModel{Metadata: resource.Meta{Name: "lamp", Namespace: "default"}}}
	f.changed[name] = f.rev
	if f.came[name] == 0 {
		f.came[name] = f.rev
	}
	f.tell()
}

// label changes the only label of a device.
func (f *fakeTwins) label(name, room string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.rev++
	b := f.devices[name]
	b.Device.Metadata.Labels = map[string]string{"room": room}
	b.Device.Metadata.ResourceVersion = strconv.FormatUint(f.rev, 10)
	f.devices[name], f.changed[name] = b, f.rev
	f.tell()
}

func (f *fakeTwins) remove(name string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.rev++
	f.gone = append(f.gone, resource.DeviceChange{Name: name, Namespace: f.devices[name].Device.Metadata.Namespace, Rev: f.rev, Removed: true})
	delete(f.devices, name)
	delete(f.changed, name)
	delete(f.came, name)
	f.tell()
}

func (f *fakeTwins) tell() {
	close(f.wake)
	f.wake = make(chan struct{})
}

func (f *fakeTwins) Devices() (list []resource.Device, rev uint64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, b := range f.devices {
		list = append(list, b.Device)
	}
	return list, f.rev
}

func (f *fakeTwins) Device(name string) (resource.Bundle, bool) {
	f.reads.Add(1)
	if f.reading != nil {
		f.reading(name)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	b, ok := f.devices[name]
	return b, ok
}

func (f *fakeTwins) Changes(since uint64) (rev uint64, list []resource.DeviceChange, more <-chan struct{}, ok bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for name, at := range f.changed {
		if at > since {
			list = append(list, resource.DeviceChange{Name: name, Namespace: f.devices[name].Device.Metadata.Namespace, Rev: at, Added: f.came[name]})
		}
	}
	for _, c := range f.gone {
		if c.Rev > since {
			list = append(list, c)
		}
	}
	slices.SortFunc(list, func(a, b resource.DeviceChange) int { return cmp.Compare(a.Rev, b.Rev) })
	return f.rev, list, f.wake, since >= f.floor && since <= f.rev
}

// listAnswer is how lists are read.
type listAnswer[T any] struct {
	Kind     string
	Metadata struct{ ResourceVersion string }
	Items    []T
}

func (f *fakeTwins) models() (models []resource.DeviceModel) {
	f.mu.Lock()
	defer f.mu.Unlock()
	seen := map[string]bool{}
	for _, b := range f.devices {
		if !seen[b.Model.Metadata.Name] {
			seen[b.Model.Metadata.Name] = true
			models = append(models, b.Model)
		}
	}
	return models
}

func (f *fakeTwins) node() resource.Node {
	f.mu.Lock()
	defer f.mu.Unlock()
	return resource.Node{Metadata: resource.Meta{Name: "n1"}, Status: resource.NodeStatus{State: resource.Online, Devices: len(f.devices)}}
}

func newTestServer(t *testing.T) (*fakeTwins, string) {
	f := newFakeTwins()
	s := httptest.NewServer(New(Options{Twins: f, Models: f.models, Node: f.node, Ready: func() error { return nil }, Metrics: http.NotFoundHandler()}))
	t.Cleanup(s.Close)
	return f, s.URL
}

func getJSON(t *testing.T, url string, into any) int {
	resp, err := http.Get(url)
	require.NoError(t, err)
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	require.NoError(t, err)
	if into != nil {
		require.NoError(t, json.Unmarshal(text, into), string(text))
	}
	return resp.StatusCode
}

func TestNotFoundNamesANearNameThatTheUserMayRead(t *testing.T) {
	f := newFakeTwins()
	f.set("lamp", "ON")
	f.set("pump", "ON")
	s := httptest.NewServer(New(Options{
		Twins: f, Models: f.models, Node: f.node, Ready: func() error { return nil }, Metrics: http.NotFoundHandler(),
		Authenticate: func(*http.Request) (broker.Identity, error) { return broker.Identity{User: "bob"}, nil },
		MayRead:      func(broker.Identity) func(string) bool { return func(device string) bool { return device == "lamp" } },
	}))
	t.Cleanup(s.Close)
	for path, want := range map[string]string{
		"/namespaces/default/devices/lmp": ": did you mean lamp?", "/namespaces/default/devicemodels/lmp": ": did you mean lamp?", "/nodes/n2": ": did you mean n1?",
		"/namespaces/default/devices/pmp": "this node has none of that name",
	} {
		var said struct{ Message string }
		require.Equal(t, 404, getJSON(t, s.URL+canonicalRoot+path, &said))
		require.True(t, strings.HasSuffix(said.Message, want), said.Message)
	}
}

func TestListAndGet(t *testing.T) {
	f, url := newTestServer(t)
	var l listAnswer[resource.Device]
	require.Equal(t, 200, getJSON(t, url+canonicalRoot+"/devices", &l))
	require.NotNil(t, l.Items)
	require.Empty(t, l.Items)
	f.set("lamp", "ON")
	require.Equal(t, 200, getJSON(t, url+canonicalRoot+"/namespaces/default/devices", &l))
	require.Equal(t, "DeviceList", l.Kind)
	require.Len(t, l.Items, 1)
	f.set("lamp", "OFF")
	f.set("fan", "ON")
	require.Equal(t, 200, getJSON(t, url+canonicalRoot+"/devices", &l))
	devices, rev := f.Devices()
	require.ElementsMatch(t, devices, l.Items)
	require.Equal(t, strconv.FormatUint(rev, 10), l.Metadata.ResourceVersion)
	f.set("lamp", "ON")
	require.Equal(t, 200, getJSON(t, url+canonicalRoot+"/namespaces/other/devices", &l))
	require.Empty(t, l.Items)
	var d resource.Device
	require.Equal(t, 200, getJSON(t, url+canonicalRoot+"/namespaces/default/devices/lamp", &d))
	require.Equal(t, "ON", d.Status.Twin["power"].Reported.Value)
	var m resource.DeviceModel
	require.Equal(t, 200, getJSON(t, url+canonicalRoot+"/namespaces/default/devicemodels/lamp", &m))
	require.Equal(t, "lamp", m.Metadata.Name)
}

func TestErrorsAreStatusObjects(t *testing.T) {
	_, url := newTestServer(t)
	var s struct {
		Kind, Reason, Message string
		Code                  int
	}
	require.Equal(t, 404, getJSON(t, url+canonicalRoot+"/namespaces/default/devices/attic", &s))
	require.Equal(t, "Status", s.Kind)
	require.Contains(t, s.Message, "attic")
	require.Equal(t, 410, getJSON(t, url+canonicalRoot+"/devices?watch=true&resourceVersion=1", &s))
	require.Equal(t, "Expired", s.Reason)
	require.Equal(t, 400, getJSON(t, url+canonicalRoot+"/devices?watch=true&resourceVersion=new", &s))
	resp, err := http.Post(url+canonicalRoot+"/namespaces/default/devices", "application/json", nil)
	require.NoError(t, err)
	defer resp.Body.Close()
	require.Equal(t, 405, resp.StatusCode)
}

// The paths that probes of Kubernetes ask are those of the hub.
func TestProbes(t *testing.T) {
	_, url := newTestServer(t)
	for _, path := range []string{"/healthz", "/livez", "/readyz"} {
		resp, err := http.Get(url + path)
		require.NoError(t, err)
		require.NoError(t, resp.Body.Close())
		require.Equal(t, 200, resp.StatusCode, path)
	}
}

func TestWatchResumesWhereTheListEnded(t *testing.T) {
	f, url := newTestServer(t)
	f.set("lamp", "OFF")
	var l listAnswer[resource.Device]
	getJSON(t, url+canonicalRoot+"/devices", &l)
	f.set("lamp", "ON") // between list and watch
	next := followWatch(t, url+canonicalRoot+"/devices?watch=true&resourceVersion="+l.Metadata.ResourceVersion)
	kind, d := next()
	require.Equal(t, "MODIFIED", kind)
	require.Equal(t, "ON", d.Status.Twin["power"].Reported.Value)
	f.set("fan", "ON")
	kind, d = next()
	require.Equal(t, "ADDED", kind)
	require.Equal(t, "fan", d.Metadata.Name)
	f.remove("lamp")
	kind, d = next()
	require.Equal(t, "DELETED", kind)
	require.Equal(t, resource.Meta{Name: "lamp", Namespace: "default", ResourceVersion: strconv.FormatUint(f.rev, 10)}, d.Metadata,
		"a cache finds it by name and namespace")
}

// A device that left is told of by the namespace that it was in, also to those who never heard of it, and to nobody
// who watches another one. One that is made again elsewhere has left, and is another.
func TestWatchKnowsWhichDeviceLeft(t *testing.T) {
	f, url := newTestServer(t)
	f.set("lamp", "ON")
	f.set("fan", "ON")
	f.setIn("other", "door", "ON")
	var l listAnswer[resource.Device]
	getJSON(t, url+canonicalRoot+"/devices", &l)
	query := "/devices?watch=true&resourceVersion=" + l.Metadata.ResourceVersion
	watch := func(at string) func(want ...string) {
		next := followWatch(t, url+canonicalRoot+at+query)
		return func(want ...string) {
			for _, want := range want {
				kind, d := next()
				require.Equal(t, want, kind+" "+d.Metadata.Namespace+"/"+d.Metadata.Name)
			}
		}
	}
	now := []func(want ...string){watch(""), watch("/namespaces/default"), watch("/namespaces/other")}
	f.remove("fan")
	f.remove("door")
	f.remove("lamp")
	f.setIn("other", "lamp", "OFF")
	f.set("last", "ON")
	f.setIn("other", "end", "ON")
	later := []func(want ...string){watch(""), watch("/namespaces/default"), watch("/namespaces/other")}
	now[0]("DELETED default/fan", "DELETED other/door", "DELETED default/lamp", "ADDED other/lamp", "ADDED default/last", "ADDED other/end")
	now[1]("DELETED default/fan", "DELETED default/lamp", "ADDED default/last")
	now[2]("DELETED other/door", "ADDED other/lamp", "ADDED other/end")
	// Who goes on only now is told the same.
	later[0]("DELETED default/fan", "DELETED other/door", "DELETED default/lamp", "ADDED other/lamp", "ADDED default/last", "ADDED other/end")
	later[1]("DELETED default/fan", "DELETED default/lamp", "ADDED default/last")
	later[2]("DELETED other/door", "ADDED other/lamp", "ADDED other/end")
}

func TestWatchWithoutARevisionBeginsWithWhatIsThere(t *testing.T) {
	f, url := newTestServer(t)
	f.set("lamp", "ON")
	next := followWatch(t, url+canonicalRoot+"/devices?watch=1")
	kind, d := next()
	require.Equal(t, "ADDED", kind)
	require.Equal(t, "lamp", d.Metadata.Name)
}

func TestWatchesLeaveRoom(t *testing.T) {
	f := newFakeTwins()
	srv := httptest.NewServer(New(Options{Twins: f, Ready: func() error { return nil }, Metrics: http.NotFoundHandler(), Watches: 1}))
	t.Cleanup(srv.Close)
	first, err := http.Get(srv.URL + canonicalRoot + "/devices?watch=1")
	require.NoError(t, err)
	t.Cleanup(func() { _ = first.Body.Close() }) // the server waits for it
	require.Equal(t, 429, getJSON(t, srv.URL+canonicalRoot+"/devices?watch=1", nil))
	require.Equal(t, 200, getJSON(t, srv.URL+canonicalRoot+"/devices", nil))
	require.NoError(t, first.Body.Close())
	require.Eventually(t, func() bool {
		again, err := http.Get(srv.URL + canonicalRoot + "/devices?watch=1")
		return err == nil && again.Body.Close() == nil && again.StatusCode == 200
	}, 10*time.Second, time.Millisecond)
}

func TestWhoIsNobodyHoldsNoConnection(t *testing.T) {
	srv := httptest.NewServer(New(Options{
		Twins: newFakeTwins(), Ready: func() error { return nil }, Metrics: http.NotFoundHandler(),
		Authenticate: func(*http.Request) (broker.Identity, error) {
			return broker.Identity{}, resource.Errorf(resource.Unauthorized, "", "not signed in")
		},
	}))
	t.Cleanup(srv.Close)
	resp, err := http.Get(srv.URL + canonicalRoot + "/devices")
	require.NoError(t, err)
	defer resp.Body.Close()
	require.Equal(t, 401, resp.StatusCode)
	require.True(t, resp.Close)
}

// One user leaves others room to watch, and watches for no longer than the certificate is good.
func TestWatchesAreOfSomebody(t *testing.T) {
	srv := httptest.NewServer(New(Options{
		Twins: newFakeTwins(), Ready: func() error { return nil }, Metrics: http.NotFoundHandler(), Watches: 2,
		Authenticate: func(r *http.Request) (id broker.Identity, err error) {
			id.User = r.URL.Query().Get("as")
			if id.User == "brief" {
				id.Expires = time.Now().Add(time.Millisecond)
			}
			return id, nil
		},
	}))
	t.Cleanup(srv.Close)
	path := srv.URL + canonicalRoot + "/devices?watch=1&as="
	first, err := http.Get(path + "ann")
	require.NoError(t, err)
	t.Cleanup(func() { _ = first.Body.Close() }) // the server waits for it
	require.Equal(t, 429, getJSON(t, path+"ann", nil))
	other, err := http.Get(path + "brief")
	require.NoError(t, err)
	require.Equal(t, 200, other.StatusCode)
	_, err = io.Copy(io.Discard, other.Body)
	require.NoError(t, err, "it is over")
	require.NoError(t, other.Body.Close())
}

// A watch ends with the sign-in of its user, such as a browser's.
func TestAWatchEndsWithTheSignIn(t *testing.T) {
	signedIn, signOut := context.WithCancel(t.Context())
	srv := httptest.NewServer(New(Options{
		Twins: newFakeTwins(), Ready: func() error { return nil }, Metrics: http.NotFoundHandler(), Watches: 2,
		Authenticate: func(*http.Request) (broker.Identity, error) {
			return broker.Identity{User: "ann", Revoked: signedIn}, nil
		},
	}))
	t.Cleanup(srv.Close)
	watch, err := http.Get(srv.URL + canonicalRoot + "/devices?watch=1&timeoutSeconds=3600")
	require.NoError(t, err)
	defer watch.Body.Close()
	require.Equal(t, 200, watch.StatusCode)
	signOut()
	_, err = io.Copy(io.Discard, watch.Body)
	require.NoError(t, err, "it is over")
}

// What failed in the core is no lack of rights.
func TestAFailureIsNoRefusal(t *testing.T) {
	f := newFakeTwins()
	f.set("lamp", "ON")
	fail := errors.New("input/output error")
	srv := httptest.NewServer(New(Options{
		Twins: f, Ready: func() error { return nil }, Metrics: http.NotFoundHandler(),
		History: func(http.ResponseWriter, *http.Request, string) error { return fail },
	}))
	t.Cleanup(srv.Close)
	at := srv.URL + canonicalRoot + "/namespaces/default/devices/lamp/history"
	require.Equal(t, 500, getJSON(t, at, nil))
	fail = resource.Errorf(resource.Forbidden, "", "not yours")
	require.Equal(t, 403, getJSON(t, at, nil))
}

// A mapper sees the Devices that it was given, in lists, alone and in watches; operators see all.
func TestAMapperReadsItsOwnDevices(t *testing.T) {
	f := newFakeTwins()
	srv := httptest.NewServer(New(Options{
		Twins: f, Ready: func() error { return nil }, Metrics: http.NotFoundHandler(),
		Authenticate: func(r *http.Request) (broker.Identity, error) {
			return broker.Identity{User: r.URL.Query().Get("as")}, nil
		},
		MayRead: func(id broker.Identity) func(string) bool {
			if id.User == "boss" {
				return nil
			}
			return func(device string) bool { return device == "lamp" }
		},
	}))
	t.Cleanup(srv.Close)
	f.set("lamp", "ON")
	f.set("pump", "ON")
	names := func(as string) (names []string) {
		var l listAnswer[resource.Device]
		require.Equal(t, 200, getJSON(t, srv.URL+canonicalRoot+"/devices?as="+as, &l))
		for _, d := range l.Items {
			names = append(names, d.Metadata.Name)
		}
		return names
	}
	require.ElementsMatch(t, []string{"lamp", "pump"}, names("boss"))
	require.Equal(t, []string{"lamp"}, names("map"))
	one := srv.URL + canonicalRoot + "/namespaces/default/devices/"
	require.Equal(t, 200, getJSON(t, one+"lamp?as=map", nil))
	require.Equal(t, 404, getJSON(t, one+"pump?as=map", nil))
	require.Equal(t, 200, getJSON(t, one+"pump?as=boss", nil))

	next := followWatch(t, srv.URL+canonicalRoot+"/devices?watch=1&as=map")
	_, first := next()
	require.Equal(t, "lamp", first.Metadata.Name)
	f.set("pump", "OFF")
	f.remove("pump")
	f.set("lamp", "OFF")
	kind, second := next()
	require.Equal(t, "MODIFIED lamp", kind+" "+second.Metadata.Name, "it is told nothing of the pump")
	f.remove("lamp")
	kind, third := next()
	require.Equal(t, "DELETED lamp", kind+" "+third.Metadata.Name)
}

// What changes is read and encoded once, however many watch.
func TestWatchersShareWhatTheyAreSent(t *testing.T) {
	f, url := newTestServer(t)
	var watchers []func() (string, resource.Device)
	for range 50 {
		watchers = append(watchers, followWatch(t, url+canonicalRoot+"/devices?watch=1"))
	}
	for i, kind := range []string{"ADDED", "MODIFIED", "MODIFIED"} {
		f.set("lamp", strconv.Itoa(i))
		for _, next := range watchers {
			got, d := next()
			require.Equal(t, kind, got)
			require.Equal(t, strconv.Itoa(i), d.Status.Twin["power"].Reported.Value)
		}
		require.EqualValues(t, i+1, f.reads.Load())
	}
}

// Revisions rise, for a client that is cut off goes on after the last one that it saw: what changes again while the
// changes are told has its place among those that follow.
func TestWatchTellsInTheOrderOfRevisions(t *testing.T) {
	f, url := newTestServer(t)
	var l listAnswer[resource.Device]
	getJSON(t, url+canonicalRoot+"/devices", &l)
	f.set("lamp", "OFF")
	f.set("fan", "ON")
	var again sync.Once
	f.reading = func(name string) {
		if name == "lamp" {
			again.Do(func() { f.set("lamp", "ON") })
		}
	}
	next := followWatch(t, url+canonicalRoot+"/devices?watch=true&resourceVersion="+l.Metadata.ResourceVersion)
	_, first := next()
	require.Equal(t, "fan", first.Metadata.Name)
	_, second := next()
	require.Equal(t, "lamp", second.Metadata.Name)
	require.Equal(t, "ON", second.Status.Twin["power"].Reported.Value)
	require.Greater(t, second.Metadata.ResourceVersion, first.Metadata.ResourceVersion)
}

func followWatch(t *testing.T, url string) func() (string, resource.Device) {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	t.Cleanup(cancel)
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	require.NoError(t, err)
	resp, err := http.DefaultClient.Do(req)
	require.NoError(t, err)
	t.Cleanup(func() { resp.Body.Close() })
	lines := bufio.NewScanner(resp.Body)
	return func() (string, resource.Device) {
		require.True(t, lines.Scan(), "the watch ended: %v", lines.Err())
		var e struct {
			Type   string
			Object resource.Device
		}
		require.NoError(t, json.Unmarshal(lines.Bytes(), &e))
		return e.Type, e.Object
	}
}
