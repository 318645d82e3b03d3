// SPDX-License-Identifier: Apache-2.0

package discovery_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"

	"github.com/edgebus/edgebus/cloud/discovery"
	"github.com/edgebus/edgebus/cloud/objects"
	"github.com/edgebus/edgebus/cloud/store"
	"github.com/edgebus/edgebus/test/controltest"
	"github.com/edgebus/edgebus/topics"
	"github.com/edgebus/edgebus/topics/resource"
)

const (
	waitTimeout  = 30 * time.Second
	pollInterval = 5 * time.Millisecond
)

// testHub is a store with the controllers of discovery, and what nodes report.
type testHub struct {
	*controltest.Hub
	stop func()

	mu       sync.Mutex
	reported map[topics.Address][]byte
	watches  []*fakeReports
	later    time.Duration // the hub's clock is ahead by that much
}

// fakeReports is a Reports of what the test says that nodes report.
type fakeReports struct {
	h       *testHub
	kind    topics.Kind
	changed map[topics.Address]bool
	wake    chan struct{}
}

func (w *fakeReports) Close() {}

func (w *fakeReports) Waiting() int {
	w.h.mu.Lock()
	defer w.h.mu.Unlock()
	return len(w.changed)
}

func (w *fakeReports) Next(ctx context.Context) ([]discovery.Report, error) {
	select {
	case <-w.wake:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	w.h.mu.Lock()
	defer w.h.mu.Unlock()
	var list []discovery.Report
	for a := range w.changed {
		list = append(list, discovery.Report{Address: a, Value: w.h.reported[a]})
	}
	clear(w.changed)
	return list, nil
}

func (w *fakeReports) note(a topics.Address) {
	w.changed[a] = true
	select {
	case w.wake <- struct{}{}:
	default:
	}
}

func (h *testHub) reports(kind topics.Kind) discovery.Reports {
	h.mu.Lock()
	defer h.mu.Unlock()
	w := &fakeReports{h, kind, make(map[topics.Address]bool), make(chan struct{}, 1)}
	for a := range h.reported {
		if a.Kind == kind {
			w.note(a)
		}
	}
	h.watches = append(h.watches, w)
	return w
}

// report is what a node says; "": nothing any more.
func (h *testHub) report(a topics.Address, payload string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if delete(h.reported, a); payload != "" {
		h.reported[a] = []byte(payload)
	}
	for _, w := range h.watches {
		if w.kind == a.Kind {
			w.note(a)
		}
	}
}

func (h *testHub) sees(node, configuration, instance, payload string) {
	h.report(topics.Address{Node: node, Kind: topics.KindInstance, Device: configuration, Name: instance}, payload)
}

func (h *testHub) says(node, configuration, payload string) {
	h.report(topics.Address{Node: node, Kind: topics.KindDiscoveryHandler, Device: configuration}, payload)
}

func newTestHub(t testing.TB) *testHub {
	h := &testHub{Hub: controltest.New(t, nil), reported: make(map[topics.Address][]byte)}
	h.start()
	return h
}

func (h *testHub) now() time.Time {
	h.mu.Lock()
	defer h.mu.Unlock()
	return time.Now().Add(h.later)
}

func (h *testHub) wait(d time.Duration) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.later += d
}

// start runs the controllers, until stop.
func (h *testHub) start() {
	all := discovery.Controllers(discovery.Options{
		Objects: h.Registry, Reader: h.Store, Writer: h.Store, Reports: h.reports, Record: func(resource.Occurrence) {}, Log: zerolog.Nop(),
		Pause: 2 * time.Millisecond, Retry: 20 * time.Millisecond, Now: h.now,
	})
	stop := h.Run(prometheus.NewRegistry(), all...)
	h.stop = func() {
		stop()
		h.mu.Lock()
		h.watches = nil
		h.mu.Unlock()
	}
}

func createObject[T any](h *testHub, text string) {
	h.Helper()
	v := new(T)
	require.NoError(h, json.Unmarshal([]byte(text), v))
	_, err := objects.Create(h.Context(), h.User, v)
	require.NoError(h, err)
}

func updateObject[T any](h *testHub, name string, edit func(*T)) {
	h.Helper()
	err := objects.Update(h.Context(), h.User, store.Key{Namespace: "default", Name: name}, func(v *T) error { edit(v); return nil })
	require.NoError(h, err)
}

func (h *testHub) node(name, labels string) {
	h.Helper()
	v := &resource.Node{Metadata: resource.Meta{Name: name}}
	require.NoError(h, json.Unmarshal([]byte(labels), &v.Metadata.Labels))
	_, err := objects.Create(h.Context(), h.User, v)
	require.NoError(h, err)
}

func (h *testHub) configuration(name, spec string) {
	h.Helper()
	createObject[resource.Configuration](h, `{"metadata":{"name":"`+name+`","namespace":"default"},"spec":`+spec+`}`)
}

// instances are those that there are, by id.
func (h *testHub) instances() map[string]*resource.Instance {
	all := make(map[string]*resource.Instance)
	for i, err := range objects.List[resource.Instance](h.Context(), h.User, "") {
		require.NoError(h, err)
		key := i.Spec.ID
		if !i.Spec.Shared {
			key += "@" + strings.Join(i.Spec.Nodes, ",")
		}
		all[key] = i
	}
	return all
}

func (h *testHub) order(name string) (o discovery.Order) {
	stored, err := h.Reader.Get(h.Context(), store.Key{Kind: discovery.OrderKind, Name: name})
	if err == nil {
		require.NoError(h, json.Unmarshal(stored.Data, &o))
	}
	return o
}

func (h *testHub) eventually(ok func() bool, why string, args ...any) {
	h.Helper()
	require.Eventually(h, ok, waitTimeout, pollInterval, append([]any{why}, args...)...)
}

func getObject[T any](h *testHub, name string) *T {
	v, err := objects.Get[T](h.Context(), h.User, store.Key{Namespace: "default", Name: name})
	if errors.Is(err, resource.NotFound) {
		return nil
	}
	require.NoError(h, err)
	return v
}

func conditionStatus(list []resource.Condition, kind string) string {
	for _, c := range list {
		if c.Type == kind {
			return c.Status + " " + c.Reason + ": " + c.Message
		}
	}
	return ""
}

func (h *testHub) says1(name, kind, want string) {
	h.Helper()
	last := ""
	require.Eventually(h, func() bool {
		last = conditionStatus(getObject[resource.Configuration](h, name).Status.Conditions, kind)
		return strings.Contains(last, want)
	}, waitTimeout, pollInterval, "%s of %s", kind, name)
}

// Nodes that the selector chooses are told what to look for; a change of their labels, of a ConfigMap and of a Secret changes that.
func TestSelectedNodesAreToldWhatToLookFor(t *testing.T) {
	h := newTestHub(t)
	h.node("n1", `{"site":"a"}`)
	h.node("n2", `{"site":"b"}`)
	h.configuration("cams", `{"discoveryHandler":{"name":"onvif","discoveryDetails":{"protocolHandler":"x: 1"},"discoveryProperties":[
		{"name":"plain","value":"p"},{"name":"pw","valueFrom":{"secretKeyRef":{"name":"s","key":"k"}}},
		{"name":"group","valueFrom":{"configMapKeyRef":{"name":"m","key":"k","optional":true}}}]},"nodeSelector":{"matchLabels":{"site":"a"}}}`)
	h.says1("cams", resource.ConditionPropertiesResolved, "False Unresolved: nodes keep what they were told before: pw: there is no Secret default/s with the key k")
	require.Empty(t, h.order("cams").Nodes)
	createObject[resource.Secret](h, `{"metadata":{"name":"s","namespace":"default"},"data":{"k":"aHVudGVyMg=="}}`)
	h.eventually(func() bool { return slices.Equal(h.order("cams").Nodes, []string{"n1"}) }, "the order is for n1")
	first := h.order("cams")
	require.Equal(t, map[string]string{"plain": "p"}, first.Request.Properties)
	require.Equal(t, "x: 1", first.Request.Text())
	require.NotEmpty(t, first.Request.Secrets)
	raw, err := h.Reader.Get(t.Context(), store.Key{Kind: discovery.OrderKind, Name: "cams"})
	require.NoError(t, err)
	require.NotContains(t, string(raw.Data), "hunter2")
	values, err := discovery.SecretValues(t.Context(), h.User, first)
	require.NoError(t, err)
	require.JSONEq(t, `{"version":"`+first.Request.Secrets+`","data":{"pw":"aHVudGVyMg=="}}`, string(values))

	updateObject(h, "s", func(s *resource.Secret) { s.Data["k"] = []byte("other") })
	h.eventually(func() bool {
		return h.order("cams").Request.Secrets != first.Request.Secrets && h.order("cams").Request.Version != first.Request.Version
	}, "another value is another version")
	createObject[resource.ConfigMap](h, `{"metadata":{"name":"m","namespace":"default"},"data":{"k":"g"}}`)
	h.eventually(func() bool { return len(h.order("cams").Values) == 2 }, "the optional value is there")
	err = objects.Update(t.Context(), h.User, store.Key{Name: "n2"}, func(n *resource.Node) error { n.Metadata.Labels["site"] = "a"; return nil })
	require.NoError(t, err)
	h.eventually(func() bool { return slices.Equal(h.order("cams").Nodes, []string{"n1", "n2"}) }, "the label chooses n2")
	require.NoError(t, h.User.Delete(t.Context(), store.Key{Kind: resource.KindNode, Name: "n1"}))
	h.eventually(func() bool { return slices.Equal(h.order("cams").Nodes, []string{"n2"}) }, "n1 is gone")
	require.NoError(t, h.User.Delete(t.Context(), store.Key{Kind: resource.KindSecret, Namespace: "default", Name: "s"}))
	h.says1("cams", resource.ConditionPropertiesResolved, "False")
	require.Equal(t, []string{"n2"}, h.order("cams").Nodes, "nodes keep what they have")

	h.says1("cams", resource.ConditionHandlerReady, "False NoHandler: 1 of 1 nodes have no handler onvif: n2")
	h.says1("cams", resource.ConditionDetailsAccepted, "Unknown NoAnswer")
	h.says("n2", "cams", `{"state":"Refused","message":"line 2"}`)
	h.says1("cams", resource.ConditionHandlerReady, "True")
	h.says1("cams", resource.ConditionDetailsAccepted, "False Refused: refused on n2: line 2")
	h.says("n2", "cams", `{"state":"Accepted","version":"`+h.order("cams").Request.Version+`"}`)
	h.says1("cams", resource.ConditionDetailsAccepted, "True")
	h.says("n2", "cams", `{"state":"Failing","message":"floods"}`)
	h.says1("cams", resource.ConditionHandlerReady, "False Failing: the handler onvif fails on n2: floods")
	h.says("n2", "cams", "")
	h.says1("cams", resource.ConditionHandlerReady, "NoHandler")
	h.sees("n2", "cams", "c1", `{"id":"c1"}`) // a discoverer that says nothing of itself
	h.says1("cams", resource.ConditionHandlerReady, "True")
	require.NoError(t, h.User.Delete(t.Context(), store.Key{Kind: resource.KindConfiguration, Namespace: "default", Name: "cams"}))
	h.eventually(func() bool { return getObject[resource.Configuration](h, "cams") == nil }, "the Configuration is gone")
	require.Empty(t, h.instances())
	require.Empty(t, h.order("cams"))
}

// A shared device is one Instance, whoever sees it; a local one is another on each node. Capacity is given out to nodes.
func TestASharedDeviceIsOneInstance(t *testing.T) {
	h := newTestHub(t)
	for _, n := range []string{"n1", "n2", "n3"} {
		h.node(n, `{}`)
	}
	h.configuration("cams", `{"discoveryHandler":{"name":"onvif"},"capacity":2,"brokerProperties":{"W":"800","A":"0"},"brokerSpec":{"brokerPodSpec":{"containers":[{"name":"b","image":"x"}]}}}`)
	for _, n := range []string{"n1", "n2", "n3"} {
		h.sees(n, "cams", "c1", `{"id":"c1","shared":true,"properties":{"A":"1"},"mounts":[{"containerPath":"/a","hostPath":"/b"}]}`)
		h.sees(n, "cams", "usb", `{"id":"usb"}`)
	}
	h.eventually(func() bool { i := h.instances()["c1"]; return len(h.instances()) == 4 && len(i.Spec.Nodes) == 3 }, "one shared and three local")
	i := h.instances()["c1"]
	require.Equal(t, discovery.InstanceName("cams", "c1", "", true), i.Metadata.Name)
	require.Equal(t, map[string]string{"W": "800", "A": "1"}, i.Spec.BrokerProperties)
	require.Equal(t, []string{"edgebus.io/discovery"}, i.Metadata.Finalizers)
	require.Equal(t, i.Spec.ShortName, i.Metadata.Labels["akri.sh/instance"])
	h.eventually(func() bool {
		return strings.HasPrefix(conditionStatus(h.instances()["c1"].Status.Conditions, "Visible"), "True Seen: seen by n1, n2, n3")
	}, "visible")
	users := func() (list []string) {
		for _, node := range h.instances()["c1"].Spec.DeviceUsage {
			list = append(list, node)
		}
		slices.Sort(list)
		return list
	}
	had := users()
	require.Len(t, had, 2)
	require.NotContains(t, had, "")
	h.sees(had[0], "cams", "c1", "")
	h.eventually(func() bool { return len(h.instances()["c1"].Spec.Nodes) == 2 && !slices.Contains(users(), had[0]) }, "the slot is another node's")
	require.Contains(t, users(), had[1], "and who has one keeps it")
	updateObject(h, "cams", func(c *resource.Configuration) { one := 1; c.Spec.Capacity = &one })
	h.eventually(func() bool { return len(users()) == 1 }, "less capacity")
	h.eventually(func() bool { return getObject[resource.Configuration](h, "cams").Status.Instances == 4 }, "the status counts them")

	// Two topics of a node with one id are one device.
	h.sees("n1", "cams", "again", `{"id":"c1","shared":true}`)
	h.sees("n1", "cams", "c1", "")
	h.sees("n2", "cams", "c1", "")
	h.sees("n3", "cams", "c1", "")
	h.eventually(func() bool { return slices.Equal(h.instances()["c1"].Spec.Nodes, []string{"n1"}) }, "n1 sees it at another topic")
	require.Equal(t, i.Metadata.UID, h.instances()["c1"].Metadata.UID)
	// The finalizer is kept by the hub: an Instance that somebody deletes comes again while it is seen.
	require.NoError(t, h.User.Delete(t.Context(), store.Key{Kind: resource.KindInstance, Namespace: "default", Name: i.Metadata.Name}))
	h.eventually(func() bool { now := h.instances()["c1"]; return now != nil && now.Metadata.UID != i.Metadata.UID }, "it is another Instance")
	// An Instance that somebody else made is left alone.
	createObject[resource.Instance](h, `{"metadata":{"name":"mine","namespace":"default"},"spec":{"configurationName":"cams","id":"mine","shared":true}}`)
	h.stop()
	h.start()
	h.sees("n3", "cams", "late", `{"id":"late","shared":true}`)
	h.eventually(func() bool { return h.instances()["late"] != nil }, "late")
	require.NotNil(t, h.instances()["mine"])
	require.NotNil(t, h.instances()["c1"])
}

// What is not seen any more is not visible at once, and goes after its grace period, over a restart of the hub as well.
func TestAnInstanceGoesAfterItsGracePeriod(t *testing.T) {
	h := newTestHub(t)
	h.node("n1", `{}`)
	h.configuration("cams", `{"discoveryHandler":{"name":"onvif"},"gracePeriod":{"shared":"10m","local":"0s"}}`)
	h.sees("n1", "cams", "c1", `{"id":"c1","shared":true}`)
	h.sees("n1", "cams", "usb", `{"id":"usb"}`)
	h.eventually(func() bool { return len(h.instances()) == 2 }, "both are found")
	h.sees("n1", "cams", "c1", "")
	h.sees("n1", "cams", "usb", "")
	h.eventually(func() bool {
		i := h.instances()["c1"]
		return len(h.instances()) == 1 && i != nil && strings.HasPrefix(conditionStatus(i.Status.Conditions, "Visible"), "False Gone")
	}, "the local one is gone at once")
	gone := h.instances()["c1"]
	require.Empty(t, gone.Spec.Nodes)
	require.NotEmpty(t, gone.Status.LastSeen)
	h.sees("n1", "cams", "c1", `{"id":"c1","shared":true}`)
	h.eventually(func() bool {
		i := h.instances()["c1"]
		return strings.HasPrefix(conditionStatus(i.Status.Conditions, "Visible"), "True") && i.Status.LastSeen == ""
	}, "it is back")
	require.Equal(t, gone.Metadata.UID, h.instances()["c1"].Metadata.UID)
	h.sees("n1", "cams", "c1", "")
	h.eventually(func() bool { return h.instances()["c1"].Status.LastSeen != "" }, "gone again")
	h.stop()
	h.wait(9 * time.Minute)
	h.start()
	h.sees("n1", "cams", "other", `{"id":"other","shared":true}`)
	h.eventually(func() bool { return h.instances()["other"] != nil }, "the hub runs")
	require.NotNil(t, h.instances()["c1"])
	h.stop()
	h.wait(2 * time.Minute)
	h.start()
	h.eventually(func() bool { return h.instances()["c1"] == nil }, "the grace period is over")
	require.NotNil(t, h.instances()["other"])
}

const bulbConfiguration = `{"discoveryHandler":{"name":"mqtt"},"gracePeriod":{"local":"0s"},"deviceTemplate":{"approval":"APPROVAL","whenGone":"GONE",
	"metadata":{"name":"{{ .id | lower }}","labels":{"room":"{{ getOrDefault .properties \"ROOM\" \"none\" }}"}},
	"spec":{"deviceModelRef":{"name":"lamp"},"protocol":{"type":"mqtt","config":{"topic":"{{ index .properties \"TOPIC\" }}"}},"desired":{"power":"ON"}}}}`

func (h *testHub) lamps(approval, gone string) {
	h.node("n1", `{}`)
	createObject[resource.DeviceModel](h, `{"metadata":{"name":"lamp","namespace":"default"},"spec":{"properties":[{"name":"power","accessMode":"ReadWrite"}]}}`)
	h.configuration("bulbs", strings.NewReplacer("APPROVAL", approval, "GONE", gone).Replace(bulbConfiguration))
}

// A found device becomes a Device, follows what is found, and goes with it; one that a person edited is left to them.
func TestAFoundDeviceBecomesADevice(t *testing.T) {
	h := newTestHub(t)
	h.lamps("Automatic", "Delete")
	h.sees("n1", "bulbs", "a", `{"id":"Lamp-A","properties":{"TOPIC":"z/a"}}`)
	h.eventually(func() bool { return getObject[resource.Device](h, "lamp-a") != nil }, "the Device is there")
	d := getObject[resource.Device](h, "lamp-a")
	require.Equal(t, "n1", d.Spec.NodeName)
	require.Equal(t, map[string]resource.Value{"topic": "z/a"}, d.Spec.Protocol.Config)
	require.EqualValues(t, "ON", d.Spec.Desired["power"])
	require.Equal(t, "none", d.Metadata.Labels["room"])
	require.Equal(t, resource.KindInstance, d.Metadata.OwnerReferences[0].Kind)
	updateObject(h, "lamp-a", func(d *resource.Device) { d.Spec.Desired["power"] = "OFF"; d.Metadata.Labels["mine"] = "yes" })
	h.sees("n1", "bulbs", "a", `{"id":"Lamp-A","properties":{"TOPIC":"z/b","ROOM":"hall"}}`)
	h.eventually(func() bool { return getObject[resource.Device](h, "lamp-a").Spec.Protocol.Config["topic"] == "z/b" }, "it follows")
	d = getObject[resource.Device](h, "lamp-a")
	require.EqualValues(t, "OFF", d.Spec.Desired["power"], "a desired value is whoever's wrote it last")
	require.Equal(t, "yes", d.Metadata.Labels["mine"])
	require.Equal(t, "hall", d.Metadata.Labels["room"])
	h.eventually(func() bool { return h.instances()["Lamp-A@n1"].Status.Device == "lamp-a" }, "the Instance names it")
	h.sees("n1", "bulbs", "a", "")
	h.eventually(func() bool { return getObject[resource.Device](h, "lamp-a") == nil && len(h.instances()) == 0 }, "both go")

	h.sees("n1", "bulbs", "b", `{"id":"b","properties":{"TOPIC":"z/b"}}`)
	h.eventually(func() bool { return getObject[resource.Device](h, "b") != nil }, "the Device is there")
	updateObject(h, "b", func(d *resource.Device) { d.Spec.Protocol.Config["topic"] = "mine" })
	h.sees("n1", "bulbs", "b", `{"id":"b","properties":{"TOPIC":"z/c"}}`)
	h.eventually(func() bool {
		return strings.HasPrefix(conditionStatus(h.instances()["b@n1"].Status.Conditions, "Onboarded"), "True Edited")
	}, "it is a person's")
	h.sees("n1", "bulbs", "b", "")
	h.eventually(func() bool { return len(h.instances()) == 0 }, "the Instance goes")
	require.EqualValues(t, "mine", getObject[resource.Device](h, "b").Spec.Protocol.Config["topic"])

	createObject[resource.Device](h, `{"metadata":{"name":"c","namespace":"default"},"spec":{"deviceModelRef":{"name":"lamp"},"protocol":{"type":"mqtt"}}}`)
	h.sees("n1", "bulbs", "c", `{"id":"c","properties":{"TOPIC":"z/c"}}`)
	h.sees("n1", "bulbs", "d", `{"id":"d"}`)
	h.sees("n1", "bulbs", "e", `{"id":"not a name","properties":{"TOPIC":"z/c"}}`)
	for id, why := range map[string]string{"c@n1": "False NameTaken", "d@n1": `False TemplateFailed: spec.deviceTemplate.spec.protocol.config.topic: Instance `, "not a name@n1": "False TemplateFailed: spec.deviceTemplate.metadata.name"} {
		h.eventually(func() bool {
			i := h.instances()[id]
			return i != nil && strings.HasPrefix(conditionStatus(i.Status.Conditions, "Onboarded"), why)
		}, id)
	}
	require.NoError(t, h.User.Delete(t.Context(), store.Key{Kind: resource.KindConfiguration, Namespace: "default", Name: "bulbs"}))
	h.eventually(func() bool { return getObject[resource.Configuration](h, "bulbs") == nil }, "the Configuration goes")
	require.NotNil(t, getObject[resource.Device](h, "c"))
}

func TestADeviceWaitsForItsApproval(t *testing.T) {
	h := newTestHub(t)
	h.lamps("Manual", "Keep")
	h.sees("n1", "bulbs", "a", `{"id":"a","properties":{"TOPIC":"z/a"}}`)
	waits := func() bool {
		i := h.instances()["a@n1"]
		return i != nil && strings.HasPrefix(conditionStatus(i.Status.Conditions, "Onboarded"), "False WaitingForApproval")
	}
	h.eventually(waits, "it waits")
	require.Nil(t, getObject[resource.Device](h, "a"))
	name := h.instances()["a@n1"].Metadata.Name
	updateObject(h, name, func(i *resource.Instance) { i.Spec.Approval = resource.Approved })
	h.eventually(func() bool { return getObject[resource.Device](h, "a") != nil }, "it is approved")
	h.sees("n1", "bulbs", "a", "")
	h.eventually(func() bool { return len(h.instances()) == 0 }, "the Instance goes")
	kept := getObject[resource.Device](h, "a")
	require.NotNil(t, kept, "whenGone: Keep")
	h.sees("n1", "bulbs", "a", `{"id":"a","properties":{"TOPIC":"z/a2"}}`)
	h.eventually(waits, "a new Instance waits again")
	updateObject(h, name, func(i *resource.Instance) { i.Spec.Approval = resource.Approved })
	h.eventually(func() bool { return getObject[resource.Device](h, "a").Spec.Protocol.Config["topic"] == "z/a2" }, "the Device is this Instance's again")
	require.Equal(t, kept.Metadata.UID, getObject[resource.Device](h, "a").Metadata.UID)
	updateObject(h, name, func(i *resource.Instance) { i.Spec.Approval = resource.Denied })
	h.eventually(func() bool { return getObject[resource.Device](h, "a") == nil }, "it is denied")
}

// onboarded waits until the Device of the only Instance has a name, and Onboarded a status, a reason and a beginning of a message.
func (h *testHub) onboarded(device, want string) {
	h.Helper()
	h.eventually(func() bool {
		for _, i := range h.instances() {
			return i.Status.Device == device && strings.HasPrefix(conditionStatus(i.Status.Conditions, resource.ConditionOnboarded), want)
		}
		return false
	}, device+" "+want)
}

// The Device of an Instance is the one that its status names: it follows the template's name, and stays while the template makes none.
func TestADeviceUnderAnotherName(t *testing.T) {
	h := newTestHub(t)
	h.lamps("Automatic", "Keep")
	named := func(name string) {
		h.Helper()
		updateObject(h, "bulbs", func(c *resource.Configuration) { c.Spec.DeviceTemplate.Metadata.Name = name })
	}
	decide := func(approval string) {
		h.Helper()
		updateObject(h, discovery.InstanceName("bulbs", "a", "n1", false), func(i *resource.Instance) { i.Spec.Approval = approval })
	}
	h.sees("n1", "bulbs", "a", `{"id":"a","properties":{"TOPIC":"z/a"}}`)
	h.onboarded("a", "True Created")
	named("x-{{ .id }}")
	h.onboarded("x-a", "True Created")
	require.NotNil(t, getObject[resource.Device](h, "x-a"))
	require.Nil(t, getObject[resource.Device](h, "a"), "the one before is deleted")

	createObject[resource.Device](h, `{"metadata":{"name":"mine","namespace":"default"},"spec":{"deviceModelRef":{"name":"lamp"},"protocol":{"type":"mqtt"}}}`)
	named("mine")
	h.onboarded("x-a", "False NameTaken: the Device mine was not made of this Instance and is left alone; the Device x-a stays as it is")
	named("{{ index .properties \"NONE\" }}")
	h.onboarded("x-a", "False TemplateFailed: spec.deviceTemplate.metadata.name")
	require.EqualValues(t, "z/a", getObject[resource.Device](h, "x-a").Spec.Protocol.Config["topic"])
	h.sees("n1", "bulbs", "a", `{"id":"a","properties":{"TOPIC":"z/a2"}}`)
	updateObject(h, "bulbs", func(c *resource.Configuration) { c.Spec.DeviceTemplate.Approval = resource.ApprovalManual })
	h.onboarded("x-a", "False WaitingForApproval: set spec.approval to Approved or Denied; the Device x-a stays as it is")
	require.EqualValues(t, "z/a", getObject[resource.Device](h, "x-a").Spec.Protocol.Config["topic"])
	decide(resource.Denied)
	h.onboarded("", "False Denied: spec.approval is Denied")
	require.Nil(t, getObject[resource.Device](h, "x-a"), "although the template fails")

	named("y-{{ .id }}")
	decide(resource.Approved)
	h.onboarded("y-a", "True Created")
	require.EqualValues(t, "z/a2", getObject[resource.Device](h, "y-a").Spec.Protocol.Config["topic"])
	updateObject(h, "y-a", func(d *resource.Device) { d.Spec.Protocol.Config["topic"] = "by-hand" })
	named("z-{{ .id }}")
	h.onboarded("y-a", "True Edited")
	require.Nil(t, getObject[resource.Device](h, "z-a"), "a person's Device is not replaced")
	decide(resource.Denied)
	h.onboarded("y-a", "False Denied: spec.approval is Denied; the Device y-a stays as it is")
	updateObject(h, "y-a", func(d *resource.Device) { d.Spec.Protocol.Config["topic"] = "z/a2" })
	h.onboarded("", "False Denied")
	require.Nil(t, getObject[resource.Device](h, "y-a"), "the edit is undone")

	decide(resource.Approved)
	h.onboarded("z-a", "True Created")
	updateObject(h, "bulbs", func(c *resource.Configuration) { c.Spec.DeviceTemplate = nil })
	h.onboarded("z-a", "False NoTemplate: the Configuration has no deviceTemplate; the Device z-a stays as it is")
	h.sees("n1", "bulbs", "a", "")
	h.eventually(func() bool { return len(h.instances()) == 0 }, "the Instance goes")
	require.NotNil(t, getObject[resource.Device](h, "z-a"), "nothing says that it is to go")
	require.NotNil(t, getObject[resource.Device](h, "mine"))
}

// A Device whose name another one has is made once the name is free, without a change of anything else.
func TestADeviceGetsItsNameOnceItIsFree(t *testing.T) {
	h := newTestHub(t)
	h.lamps("Automatic", "Delete")
	createObject[resource.Device](h, `{"metadata":{"name":"a","namespace":"default"},"spec":{"deviceModelRef":{"name":"lamp"},"protocol":{"type":"mqtt"}}}`)
	createObject[resource.Device](h, `{"metadata":{"name":"b","namespace":"other"},"spec":{"deviceModelRef":{"name":"lamp"},"protocol":{"type":"mqtt"}}}`)
	for id, why := range map[string]string{"a": "False NameTaken", "b": "False Refused"} {
		h.sees("n1", "bulbs", id, `{"id":"`+id+`","properties":{"TOPIC":"z/`+id+`"}}`)
		h.eventually(func() bool {
			i := h.instances()[id+"@n1"]
			return i != nil && strings.HasPrefix(conditionStatus(i.Status.Conditions, resource.ConditionOnboarded), why)
		}, id+" "+why)
	}
	for id, namespace := range map[string]string{"a": "default", "b": "other"} {
		require.NoError(t, h.User.Delete(t.Context(), store.Key{Kind: resource.KindDevice, Namespace: namespace, Name: id}))
		h.eventually(func() bool { return h.instances()[id+"@n1"].Status.Device == id }, id+" is made")
	}
}

// An Instance and its Configuration stay until the Device is gone, and whenGone holds when the Configuration is deleted.
func TestInstancesWaitForTheirDevices(t *testing.T) {
	h := newTestHub(t)
	h.lamps("Automatic", "Delete")
	h.sees("n1", "bulbs", "a", `{"id":"a","properties":{"TOPIC":"z/a"}}`)
	h.onboarded("a", "True")
	updateObject(h, "a", func(d *resource.Device) { d.Metadata.Finalizers = append(d.Metadata.Finalizers, "example.com/held") })
	key := store.Key{Kind: resource.KindConfiguration, Namespace: "default", Name: "bulbs"}
	require.NoError(t, h.User.Delete(t.Context(), key))
	h.eventually(func() bool { return getObject[resource.Device](h, "a").Metadata.DeletionTimestamp != nil }, "the Device is being deleted")
	h.stop()
	h.start()
	h.node("n2", `{}`)
	h.configuration("others", `{"discoveryHandler":{"name":"mqtt"}}`)
	h.sees("n2", "others", "b", `{"id":"b"}`)
	h.eventually(func() bool { return h.instances()["b@n2"] != nil }, "the hub has looked at others since")
	require.NotNil(t, h.instances()["a@n1"])
	require.NotNil(t, getObject[resource.Configuration](h, "bulbs"))
	updateObject(h, "a", func(d *resource.Device) { d.Metadata.Finalizers = nil })
	h.eventually(func() bool { return getObject[resource.Configuration](h, "bulbs") == nil }, "all of it goes")
	require.Nil(t, getObject[resource.Device](h, "a"))
	require.Nil(t, h.instances()["a@n1"])

	h.configuration("bulbs", strings.NewReplacer("APPROVAL", "Automatic", "GONE", "Keep").Replace(bulbConfiguration))
	h.eventually(func() bool { return getObject[resource.Device](h, "a") != nil }, "the device is still there")
	require.NoError(t, h.User.Delete(t.Context(), key))
	h.eventually(func() bool { return getObject[resource.Configuration](h, "bulbs") == nil }, "the Configuration goes")
	require.Nil(t, h.instances()["a@n1"])
	require.NotNil(t, getObject[resource.Device](h, "a"), "whenGone: Keep")
}

// What a node runs for Instances is a record, which goes with the last of them.
func TestBrokersOfANodeAreARecord(t *testing.T) {
	h := newTestHub(t)
	h.node("n1", `{}`)
	h.configuration("akri-udev", `{"discoveryHandler":{"name":"udev"},"gracePeriod":{"local":"0s"},"brokerSpec":{"brokerPodSpec":{"containers":[{"name":"b","image":"nginx:stable","resources":{"limits":{"{{PLACEHOLDER}}":"1"}},"livenessProbe":{}}]}}}`)
	h.says1("akri-udev", resource.ConditionBrokerAccepted, "True Partly: nodes don't do: brokerPodSpec.containers[].livenessProbe")
	h.sees("n1", "akri-udev", "v", `{"id":"video0","properties":{"UDEV_DEVNODE":"/dev/video0"},"deviceSpecs":[{"containerPath":"/dev/video0","hostPath":"/dev/video0","permissions":"rwm"}]}`)
	apps := func() []resource.Application { return h.apps("n1") }
	h.eventually(func() bool { return len(apps()) == 1 }, "the broker")
	app := apps()[0]
	suffix := strings.ToUpper(strings.TrimPrefix(discovery.InstanceShortName("akri-udev", "video0", "n1", false), "akri-udev-"))
	require.Equal(t, map[string]string{"AGENT_NODE_NAME": "n1", "UDEV_DEVNODE": "/dev/video0", "UDEV_DEVNODE_" + suffix: "/dev/video0"}, app.EnvVars)
	require.Contains(t, app.Files[0].Content, "Image=nginx:stable\nAddDevice=/dev/video0:/dev/video0:rwm\n")
	require.NoError(t, resource.Node{Metadata: resource.Meta{Name: "n1"}, Spec: resource.NodeSpec{Applications: apps()}}.Validate())
	h.stop()
	h.start()
	h.sees("n1", "akri-udev", "v", "")
	h.eventually(func() bool { return len(apps()) == 0 }, "it goes with the device")
}

func (h *testHub) apps(node string) (list []resource.Application) {
	o, err := h.Reader.Get(h.Context(), store.Key{Kind: discovery.ApplicationsKind, Name: node})
	if err == nil {
		require.NoError(h, json.Unmarshal(o.Data, &list))
	}
	return list
}

// What a node's container gets of the host, and its variables, are those that this node reports of a device, whichever node has the first slot.
func TestBrokersOfSharedDevices(t *testing.T) {
	h := newTestHub(t)
	h.node("n1", `{}`)
	h.node("n2", `{}`)
	h.configuration("cams", `{"discoveryHandler":{"name":"onvif"},"capacity":2,"gracePeriod":{"shared":"1h"},"brokerSpec":{"brokerPodSpec":{"containers":[{"name":"b","image":"x"}]}}}`)
	says := func(file string) string {
		return `{"id":"c1","shared":true,"properties":{"FILE":"` + file + `"},"deviceSpecs":[{"containerPath":"/dev/c","hostPath":"/dev/` + file + `"}]}`
	}
	has := func(node, file string) func() bool {
		return func() bool {
			apps := h.apps(node)
			return len(apps) > 0 && apps[0].EnvVars["FILE"] == file && strings.Contains(apps[0].Files[0].Content, "AddDevice=/dev/"+file+":/dev/c\n")
		}
	}
	h.sees("n1", "cams", "c1", says("video1"))
	h.eventually(has("n1", "video1"), "n1 has its own")
	h.sees("n2", "cams", "c1", says("video2"))
	h.eventually(has("n2", "video2"), "n2 has its own")
	for _, node := range []string{"n1", "n2"} { // one of them has the first slot, whose report is in the Instance
		other := map[string]string{"n1": "n2", "n2": "n1"}[node]
		had := h.apps(other)
		h.sees(node, "cams", "c1", says(node+"-later"))
		h.eventually(has(node, node+"-later"), "a change of "+node+" alone")
		require.Equal(t, had, h.apps(other))
	}

	// While nobody sees the device, the brokers stay as they are until its Instance goes, over a restart of the hub as well.
	had := h.apps("n2")
	h.sees("n1", "cams", "c1", "")
	h.eventually(func() bool { return len(h.apps("n1")) == 0 }, "n1 loses its slot, for n2 sees the device still")
	h.sees("n2", "cams", "c1", "") // after that: of two reports that wait together either may be looked at first
	h.eventually(func() bool { return h.instances()["c1"].Status.LastSeen != "" }, "nobody sees it")
	h.stop()
	h.start()
	h.sees("n2", "cams", "c2", `{"id":"c2","shared":true}`)
	h.eventually(func() bool { return len(h.apps("n2")) == 2 }, "another one")
	require.Contains(t, h.apps("n2"), had[0])
	updateObject(h, "cams", func(c *resource.Configuration) { c.Spec.BrokerSpec = nil })
	h.eventually(func() bool { return len(h.apps("n1"))+len(h.apps("n2")) == 0 }, "without a brokerSpec there are none")
}

// A thousand devices at once, and one by one among them.
func BenchmarkInstances(b *testing.B) {
	b.Run("1000", func(b *testing.B) {
		for b.Loop() {
			h := newTestHub(b)
			h.node("n1", `{}`)
			h.configuration("cams", `{"discoveryHandler":{"name":"onvif"}}`)
			h.eventually(func() bool { return len(h.order("cams").Nodes) == 1 }, "order")
			stream, err := h.Store.Watch(b.Context(), store.Key{Kind: resource.KindInstance}, 0)
			require.NoError(b, err)
			names := make(map[string]bool)
			await := func(n int) {
				for len(names) < n {
					events, err := stream.Next(b.Context())
					require.NoError(b, err)
					for _, e := range events {
						names[e.Object.Name] = true
					}
				}
			}
			began := time.Now()
			for i := range 1000 {
				h.sees("n1", "cams", fmt.Sprint("c", i), fmt.Sprintf(`{"id":"c%d","shared":true,"properties":{"ADDRESS":"10.0.0.%d"}}`, i, i))
			}
			await(1000)
			b.ReportMetric(time.Since(began).Seconds(), "s/1000")
			var took []time.Duration
			for i := range 200 {
				id := fmt.Sprint("x", i)
				began := time.Now()
				h.sees("n1", "cams", id, `{"id":"`+id+`","shared":true}`)
				await(1001 + i)
				took = append(took, time.Since(began))
			}
			stream.Close()
			slices.Sort(took)
			b.ReportMetric(float64(took[100].Microseconds())/1000, "ms-p50/one")
			b.ReportMetric(float64(took[197].Microseconds())/1000, "ms-p99/one")
		}
	})
}

// What a node reports for a Configuration that doesn't choose it counts for nothing; once it is chosen it does.
func TestReportsOfNodesThatAreNotChosen(t *testing.T) {
	h := newTestHub(t)
	h.node("n1", `{}`)
	h.node("n2", `{"site":"hall"}`)
	h.sees("n1", "cams", "c1", `{"id":"c1","shared":true}`)
	h.says("n1", "cams", `{"state":"Refused","message":"no"}`)
	h.configuration("cams", `{"discoveryHandler":{"name":"onvif"},"nodeSelector":{"matchLabels":{"site":"hall"}},"brokerSpec":{"brokerPodSpec":{"containers":[{"image":"x"}]}}}`)
	h.says1("cams", resource.ConditionHandlerReady, "False NoHandler: 1 of 1 nodes have no handler onvif: n2")
	h.says1("cams", resource.ConditionDetailsAccepted, "Unknown NoAnswer")
	h.sees("n2", "cams", "c2", `{"id":"c2","shared":true}`)
	h.eventually(func() bool { return h.instances()["c2"] != nil }, "n2 is chosen")
	require.Len(t, h.instances(), 1)
	updateObject(h, "cams", func(c *resource.Configuration) { c.Spec.NodeSelector = nil })
	h.eventually(func() bool { return h.instances()["c1"] != nil }, "n1 is chosen now")
	h.says1("cams", resource.ConditionDetailsAccepted, "False Refused: refused on n1: no")
	h.eventually(func() bool { return len(h.apps("n1")) == 1 }, "its broker")
	had := h.apps("n1")[0]
	updateObject(h, "cams", func(c *resource.Configuration) {
		c.Spec.NodeSelector = &resource.LabelSelector{MatchLabels: map[string]string{"site": "hall"}}
	})
	h.eventually(func() bool { return h.instances()["c1"].Status.LastSeen != "" }, "n1 is chosen no more")
	h.sees("n1", "cams", "c1", `{"id":"c1","shared":true,"properties":{"A":"1"}}`)
	h.configuration("usb", `{"discoveryHandler":{"name":"udev"},"brokerSpec":{"brokerPodSpec":{"containers":[{"image":"x"}]}}}`)
	h.sees("n1", "usb", "u1", `{"id":"u1"}`)
	h.eventually(func() bool { return len(h.apps("n1")) == 2 }, "the broker of another one")
	require.Contains(t, h.apps("n1"), had, "as it was")
}

// status is what the hub has of a node.
func (h *testHub) status(node string, edit func(*resource.NodeStatus)) {
	h.Helper()
	err := objects.UpdateStatus(h.Context(), h.User, store.Key{Name: node}, func(n *resource.Node) error { edit(&n.Status); return nil })
	require.NoError(h, err)
}

// An Instance says how its broker is on the nodes that use it, and its Configuration how those of all Instances are.
func TestInstancesSayHowTheirBrokersAre(t *testing.T) {
	h := newTestHub(t)
	for _, node := range []string{"n1", "n2"} {
		h.node(node, `{}`)
		h.status(node, func(s *resource.NodeStatus) { s.State = resource.Online })
	}
	h.configuration("cams", `{"discoveryHandler":{"name":"onvif"},"capacity":2,"brokerSpec":{"brokerPodSpec":{"containers":[{"image":"x"}]}}}`)
	says := func(want string) {
		t.Helper()
		last := ""
		require.Eventually(t, func() bool {
			if i := h.instances()["c1"]; i != nil {
				last = conditionStatus(i.Status.Conditions, resource.ConditionBrokerReady)
			}
			return last == want
		}, waitTimeout, pollInterval, "it should be %s", want)
	}
	h.says1("cams", resource.ConditionBrokerReady, "True NoInstances: no device is found")
	h.sees("n1", "cams", "c1", `{"id":"c1","shared":true}`)
	says("False NotStarted: n1: no agent has reported from the node")
	h.sees("n2", "cams", "c1", `{"id":"c1","shared":true}`)
	says("False NotStarted: n1: no agent has reported from the node; n2: no agent has reported from the node")
	h.says1("cams", resource.ConditionBrokerReady, "False NotStarted: the brokers of 1 of 1 Instances have not started: cams-")
	h.eventually(func() bool { return len(h.apps("n1")) == 1 }, "the broker of n1")
	name := h.apps("n1")[0].Name
	reports := func(node, status, message string) {
		t.Helper()
		h.status(node, func(s *resource.NodeStatus) {
			s.AgentVersion = "1"
			s.Applications = []resource.ApplicationStatus{{Name: "another", Status: "Error", Message: "no"}, {Name: name, Status: status, Message: message}}
		})
	}
	reports("n1", "Starting", "")
	says("False NotStarted: n1: Starting; n2: no agent has reported from the node")
	reports("n1", "Completed", "")
	says("False NotStarted: n2: no agent has reported from the node")
	reports("n2", "Error", "it exited with 1")
	says("False Failing: n2: it exited with 1")
	h.says1("cams", resource.ConditionBrokerReady, "False Failing: the brokers of 1 of 1 Instances fail: cams-")
	h.stop()
	h.start()
	h.says1("cams", resource.ConditionBrokerReady, ": n2: it exited with 1")
	reports("n2", "Running", "")
	says("True Running: it runs, or has completed, on n1, n2")
	h.says1("cams", resource.ConditionBrokerReady, "True Running: the brokers of all 1 Instances run, or have completed")
	h.status("n1", func(s *resource.NodeStatus) { s.State, s.LastSeen = resource.Offline, "2026-01-02T03:04:05.000Z" })
	says("Unknown NodeOffline: n1: the node is offline since 2026-01-02T03:04:05.000Z")
	h.says1("cams", resource.ConditionBrokerReady, "Unknown NodeOffline: the brokers of 1 of 1 Instances are on nodes that are offline: cams-")

	// The node could not apply its spec, so that there is no such application.
	h.status("n1", func(s *resource.NodeStatus) {
		s.State, s.Applications = resource.Online, nil
		s.Failed = &resource.FailedVersion{RenderedVersion: "7", Reason: "HookFailed", Message: "exit status 1"}
	})
	says("False Failing: n1: the node could not apply its spec: version 7: HookFailed: exit status 1")
	_, err := h.Store.Create(t.Context(), store.Object{Key: store.Key{Kind: discovery.ProblemsKind, Name: "n2"}, Data: []byte(`{"` + name + `":"it is too large"}`)})
	require.NoError(t, err)
	says("False Failing: n1: the node could not apply its spec: version 7: HookFailed: exit status 1; n2: it is left out of the node's spec: it is too large")
	updateObject(h, "cams", func(c *resource.Configuration) {
		c.Spec.BrokerSpec = json.RawMessage(`{"brokerPodSpec":{"containers":[]}}`)
	})
	says("False Invalid: spec.brokerSpec: has no containers")
	updateObject(h, "cams", func(c *resource.Configuration) { c.Spec.BrokerSpec = nil })
	says("")
	h.eventually(func() bool {
		return conditionStatus(getObject[resource.Configuration](h, "cams").Status.Conditions, resource.ConditionBrokerReady) == ""
	}, "without a brokerSpec there is none")
}

// With failover AfterGrace the Device of a shared device, and its broker, move from a node that is offline for longer than the grace period, and stay
// where they are when it is back. A hub that was restarted gives nodes the whole period to come back.
func TestADeviceMovesFromANodeThatIsOffline(t *testing.T) {
	h := newTestHub(t)
	createObject[resource.DeviceModel](h, `{"metadata":{"name":"meter","namespace":"default"},"spec":{"properties":[{"name":"v","type":"int","accessMode":"ReadWrite"}]}}`)
	state := func(node, state string) {
		h.status(node, func(s *resource.NodeStatus) { s.State, s.LastSeen = state, resource.FormatTime(h.now()) })
	}
	for _, node := range []string{"n1", "n2"} {
		h.node(node, `{}`)
		state(node, resource.Online)
	}
	h.configuration("meters", `{"discoveryHandler":{"name":"modbus"},"gracePeriod":{"offline":"1h"},"failover":"AfterGrace","brokerSpec":{"brokerPodSpec":{"containers":[{"image":"x"}]}},
		"deviceTemplate":{"metadata":{"name":"m"},"spec":{"deviceModelRef":{"name":"meter"},"protocol":{"type":"modbus","config":{"from":"{{ .node }}"}}}}}`)
	on := func(node string) func() bool {
		return func() bool {
			d, other := getObject[resource.Device](h, "m"), map[string]string{"n1": "n2", "n2": "n1"}[node]
			return d != nil && d.Spec.NodeName == node && d.Spec.Protocol.Config["from"] == resource.Value(node) && len(h.apps(node)) == 1 && len(h.apps(other)) == 0
		}
	}
	h.sees("n1", "meters", "1", `{"id":"1","shared":true}`)
	h.eventually(on("n1"), "n1 has it")
	h.sees("n2", "meters", "1", `{"id":"1","shared":true}`)
	h.eventually(func() bool { return len(h.instances()["1"].Spec.Nodes) == 2 }, "n2 sees it as well")
	h.stop()
	state("n1", resource.Offline)
	h.wait(2 * time.Hour)
	h.start() // only from now on it is known that n1 doesn't come back
	h.sees("n2", "meters", "1", `{"id":"1","shared":true,"properties":{"SEEN":"1"}}`)
	h.sees("n1", "meters", "1", `{"id":"1","shared":true,"properties":{"SEEN":"1"}}`)
	h.eventually(func() bool { return h.instances()["1"].Spec.BrokerProperties["SEEN"] == "1" }, "it was looked at")
	require.True(t, on("n1")())
	h.wait(2 * time.Hour)
	h.sees("n2", "meters", "1", `{"id":"1","shared":true,"properties":{"SEEN":"2"}}`)
	h.eventually(on("n2"), "it moves")
	state("n1", resource.Online)
	h.sees("n1", "meters", "1", `{"id":"1","shared":true,"properties":{"SEEN":"3"}}`)
	h.sees("n2", "meters", "1", `{"id":"1","shared":true,"properties":{"SEEN":"3"}}`)
	h.eventually(func() bool { return h.instances()["1"].Spec.BrokerProperties["SEEN"] == "3" }, "it was looked at")
	require.True(t, on("n2")(), "it stays")

	// What a person has edited doesn't move, though the slot does.
	updateObject(h, "m", func(d *resource.Device) { d.Spec.Protocol.Config["from"] = "me" })
	state("n2", resource.Offline)
	h.wait(2 * time.Hour)
	h.sees("n1", "meters", "1", `{"id":"1","shared":true,"properties":{"SEEN":"4"}}`)
	h.eventually(func() bool { return discovery.DeviceNode(h.instances()["1"]) == "n1" }, "the slot moves")
	h.eventually(func() bool {
		return strings.Contains(conditionStatus(h.instances()["1"].Status.Conditions, resource.ConditionOnboarded), "Edited")
	}, "the Device is a person's")
	require.Equal(t, "n2", getObject[resource.Device](h, "m").Spec.NodeName)
}

// Devices say what they are in their own words; the Device's label has what a label may have of them.
func TestALabelOfADeviceHasWhatALabelMayHave(t *testing.T) {
	h := newTestHub(t)
	h.lamps("Automatic", "Delete")
	h.sees("n1", "bulbs", "a", `{"id":"a","properties":{"TOPIC":"z/a","ROOM":"E1603/E1702 (TRÅDFRI)"}}`)
	h.eventually(func() bool { return getObject[resource.Device](h, "a") != nil }, "the Device is there")
	require.Equal(t, "E1603-E1702--TR-DFRI", getObject[resource.Device](h, "a").Metadata.Labels["room"])
}
