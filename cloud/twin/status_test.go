// SPDX-License-Identifier: Apache-2.0

package twin

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/edgebus/edgebus/broker"
	"github.com/edgebus/edgebus/cloud/store"
	"github.com/edgebus/edgebus/topics/resource"
)

// looked waits until all statuses that were to be looked at have been.
func (r *rig) looked() {
	r.t.Helper()
	require.Eventually(r.t, func() bool { return r.twins.Stats().StatusWaiting == 0 }, testTimeout, time.Millisecond)
}

func TestAStatusIsNotWrittenAgainAfterARestart(t *testing.T) {
	r, c := newJoinedRig(t)
	c.report("devices/lamp/state", "online")
	r.condition(resource.ConditionOnline, "Online") // its Node is registered by now, and nothing more happens
	r.looked()
	_, before := r.device("lamp")
	r.awayAfter = time.Hour // that its node is not back is another story
	r.restart()
	r.looked()
	_, after := r.device("lamp")
	require.GreaterOrEqual(t, after.Rev, before.Rev)
	after.Rev = before.Rev
	require.Equal(t, before, after)
}

// What a node reports of a Device is stored once, with its map: the status follows from that, and is derived after a restart, for those
// who read it.
func TestAReportIsStoredOnce(t *testing.T) {
	r, c := newJoinedRig(t)
	c.report("devices/lamp/state", resource.Online)
	r.status(func(s resource.DeviceStatus) bool { return s.State == resource.Online })
	r.inStep()
	r.looked()
	_, before := r.device("lamp")
	for i := range 20 {
		stored, shown := r.commits.Load(), r.twins.Stats().Statuses
		value := fmt.Sprint(i)
		c.report("devices/lamp/reported/temperature", value)
		r.status(func(s resource.DeviceStatus) bool {
			t := s.Twin["temperature"].Reported
			return t != nil && t.Value == value
		})
		r.inStep()
		r.looked()
		require.EqualValues(t, 1, r.commits.Load()-stored, "report %d", i)
		require.EqualValues(t, 1, r.twins.Stats().Statuses-shown)
		_, after := r.device("lamp")
		require.Greater(t, after.Rev, before.Rev, "the revision rises with the report")
		before = after
	}
	r.awayAfter = time.Hour
	r.restart()
	r.looked()
	require.LessOrEqual(t, r.twins.Stats().Statuses, uint64(1), "no Device's is written at the start; its Node is offline now")
	d, after := r.device("lamp")
	require.Equal(t, "19", d.Status.Twin["temperature"].Reported.Value)
	require.Equal(t, string(before.Status), string(after.Status))
	require.Greater(t, after.Rev, before.Rev)
}

// The statuses are the hub's: what anybody else writes there doesn't stay.
func TestAStatusThatSomebodyElseWroteIsPutRight(t *testing.T) {
	r, c := newJoinedRig(t)
	c.report("devices/lamp/state", "online")
	r.status(func(s resource.DeviceStatus) bool { return s.State == "online" })
	_, o := r.device("lamp")
	_, err := r.store.Update(context.Background(), store.Object{Key: o.Key, Status: []byte(`{"state":"nonsense"}`)}, 0)
	require.NoError(t, err)
	r.status(func(s resource.DeviceStatus) bool { return s.State == "online" })
}

func nodeCondition(s resource.DeviceStatus) string {
	return resource.ConditionOf(s.Conditions, resource.ConditionNodeOnline).Status
}

// A Device's status says when its node has been away for a while, through a restart of
// the hub, and until the node is back.
func TestADeviceOfAnAbsentNodeIsNotSaidToBeOnline(t *testing.T) {
	r, c := newJoinedRig(t)
	c.report("devices/lamp/reported/power", "ON")
	c.report("devices/lamp/state", resource.Online)
	r.status(func(s resource.DeviceStatus) bool { return s.State == resource.Online && nodeCondition(s) != "False" })
	seen, _ := r.device("lamp")
	r.awayAfter = time.Millisecond
	r.restart()
	away := func(s resource.DeviceStatus) bool { return s.State == resource.Unknown && nodeCondition(s) == "False" }
	r.status(away)
	r.awayAfter = time.Hour
	r.restart()
	require.Never(t, func() bool { d, _ := r.device("lamp"); return !away(d.Status) }, 100*time.Millisecond, 10*time.Millisecond)
	r.connect(c)
	r.status(func(s resource.DeviceStatus) bool { return s.State == resource.Online && nodeCondition(s) == "True" })
	d, _ := r.device("lamp")
	require.Equal(t, seen.Status.LastSeen, d.Status.LastSeen)
	require.Equal(t, "ON", d.Status.Twin["power"].Reported.Value)
}

// condition waits until a condition of the lamp's has that reason.
func (r *rig) condition(kind, reason string) (found resource.Condition) {
	r.t.Helper()
	r.status(func(s resource.DeviceStatus) bool {
		found = resource.ConditionOf(s.Conditions, kind)
		return found.Reason == reason
	})
	return found
}

func TestADevicesStatusSaysWhyItIsNotOnline(t *testing.T) {
	r, c := newJoinedRig(t)
	require.Equal(t, "no mapper is connected to node n1", r.condition("Online", "NoMapper").Message)
	c.report("mappers/virtual/protocols", `["virtual"]`)
	c.report("mappers/virtual/state", "online")
	r.condition("Online", "NotHeard")

	r.edit("lamp", func(d *resource.Device) { d.Spec.Protocol.Type = "opcua" })
	require.Equal(t, `no mapper on n1 speaks "opcua"; connected mappers: virtual (virtual)`, r.condition("Online", "NoMapper").Message)

	r.forgetNotes()
	c.report("devices/lamp/problem", `{"code":"BadConfig","message":"spec.protocol.config.address: is required"}`)
	c.report("devices/lamp/state", "offline")
	require.Equal(t, "spec.protocol.config.address: is required", r.condition("Online", "BadConfig").Message)
	require.Equal(t, "BadConfig: spec.protocol.config.address: is required", r.awaitEvent("Offline").Message)

	c.report("devices/lamp/state", "online")
	require.Equal(t, "True", r.condition("Online", "Online").Status)
}

func TestADevicesStatusSaysWhatIsWrongWhileItIsOnline(t *testing.T) {
	r, c := newJoinedRig(t)
	c.report("mappers/virtual/protocols", `["virtual"]`)
	c.report("mappers/virtual/state", "online")
	c.report("devices/lamp/state", "online")
	r.condition("Online", "Online")
	d, _ := r.device("lamp")
	require.Empty(t, resource.ConditionOf(d.Status.Conditions, resource.ConditionDegraded).Type, "there was nothing yet")
	r.forgetNotes()
	c.report("devices/lamp/problem", `{"code":"CycleNotKept","message":"level is read every 4s, and is to be read every 1s","online":true}`)
	degraded := r.condition(resource.ConditionDegraded, "CycleNotKept")
	require.Equal(t, "True", degraded.Status)
	require.Equal(t, "level is read every 4s, and is to be read every 1s", degraded.Message)
	require.Contains(t, r.awaitEvent(resource.ConditionDegraded).Message, "CycleNotKept: level is read")
	require.Equal(t, "True", r.condition("Online", "Online").Status)
	c.report("devices/lamp/problem", `{"code":"Unreachable","message":"no answer"}`)
	c.report("devices/lamp/state", "offline")
	r.condition("Online", "Unreachable")
	require.Equal(t, "False", r.condition(resource.ConditionDegraded, "AsConfigured").Status)
}

func TestADeviceOfANodeThatNobodyKnows(t *testing.T) {
	r := newRig(t)
	r.create(resource.KindDeviceModel, "lamp", lampModel(false))
	r.create(resource.KindDevice, "lamp", lampOn("n7"))
	c := r.condition(resource.ConditionNodeOnline, "NoSuchNode")
	require.Equal(t, "False", c.Status)
	require.Contains(t, c.Message, "no Node n7 is registered")
	require.Equal(t, c.Message, r.condition("Online", "NoSuchNode").Message)
	r.connect(newCore("n7"))
	require.Equal(t, "True", r.condition(resource.ConditionNodeOnline, "NodeOnline").Status)
	r.condition("Online", "NoMapper")
}

// checkStatusVersion says what in a stored Device's status is not about its spec.
func checkStatusVersion(o store.Object) error {
	var d resource.Device
	if err := json.Unmarshal(o.Data, &d); err != nil {
		return err
	}
	if err := json.Unmarshal(o.Status, &d.Status); err != nil {
		return fmt.Errorf("status %q: %w", o.Status, err)
	}
	inSync := resource.ConditionOf(d.Status.Conditions, resource.ConditionInSync)
	for _, c := range d.Status.Conditions {
		if c.ObservedGeneration != d.Metadata.Generation {
			return fmt.Errorf("%s is about generation %d of %d", c.Type, c.ObservedGeneration, d.Metadata.Generation)
		}
	}
	behind := false
	for property, value := range d.Spec.Desired {
		p := d.Status.Twin[property]
		if p.Desired == nil || p.Desired.Value != string(value) || p.Desired.Ver != d.DesiredMeta[property].Ver {
			return fmt.Errorf("%s is %q in the spec (version %d) and %+v in the twin", property, value, d.DesiredMeta[property].Ver, p.Desired)
		}
		behind = behind || p.Reported == nil || p.Reported.Value != string(value)
	}
	if want := map[bool]string{true: "False", false: "True"}[behind]; inSync.Status != want {
		return fmt.Errorf("InSync is %s, not %s: %s", inSync.Status, want, o.Status)
	}
	return nil
}

// Every version of a Device that the store ever has, and so every answer and every event of a watch, has a status
// that is about the spec beside it, whoever writes at the same time.
func TestNoVersionHasAnOlderSpecsStatus(t *testing.T) {
	r, c := newJoinedRig(t)
	c.report("devices/lamp/state", resource.Online)
	require.NoError(t, r.send(lampDesired, `{"power":"OFF","brightness":0}`))
	c.report("devices/lamp/reported/power", "OFF")
	c.report("devices/lamp/reported/brightness", "0")
	require.Eventually(t, func() bool { _, o := r.device("lamp"); return checkStatusVersion(o) == nil && isInSync(o) }, testTimeout, pollInterval)
	_, o := r.device("lamp")

	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	stream, err := r.store.Watch(ctx, o.Key, o.Rev)
	require.NoError(t, err)
	defer stream.Close()
	seen, last := 0, make(chan error, 1)
	go func() {
		for {
			events, err := stream.Next(ctx)
			for _, e := range events {
				seen++
				if wrong := checkStatusVersion(e.Object); wrong != nil {
					last <- wrong
					return
				}
				if d := (resource.Device{}); json.Unmarshal(e.Object.Data, &d) == nil && d.Spec.Desired["power"] == "ON" && d.Spec.Desired["brightness"] == "100" {
					last <- nil
					return
				}
			}
			if err != nil {
				last <- err
				return
			}
		}
	}()
	var writers sync.WaitGroup
	writers.Go(func() {
		for i := range 60 {
			c.report("devices/lamp/reported/brightness", fmt.Sprint(i%100))
			c.report("devices/lamp/reported/temperature", fmt.Sprint(i))
		}
	})
	writers.Go(func() {
		for i := range 60 {
			require.NoError(t, r.send(lampDesired+"/brightness", fmt.Sprint(i%100)))
			_, o := r.device("lamp")
			require.NoError(t, checkStatusVersion(o), "right after the acknowledgement")
		}
	})
	writers.Wait()
	require.NoError(t, r.send(lampDesired, `{"power":"ON","brightness":100}`))
	require.NoError(t, <-last)
	require.Positive(t, seen)

	c.report("devices/lamp/reported/power", "ON")
	c.report("devices/lamp/reported/brightness", "100")
	require.Eventually(t, func() bool { _, o := r.device("lamp"); return checkStatusVersion(o) == nil && isInSync(o) }, testTimeout, pollInterval)
}

func isInSync(o store.Object) bool {
	return resource.ConditionOf(conditionsOf(o.Status), resource.ConditionInSync).Status == "True"
}

// What a refusal answers is a version: it says nothing about a newer one.
func TestARefusalIsOfTheValueThatWasRefused(t *testing.T) {
	r, c := newJoinedRig(t)
	require.NoError(t, r.send(lampDesired+"/power", "ON"))
	c.report("devices/lamp/refused/power", `{"for":1,"ver":1,"code":"Stuck"}`)
	reason := func() string {
		_, o := r.device("lamp")
		return resource.ConditionOf(conditionsOf(o.Status), resource.ConditionInSync).Reason
	}
	require.Eventually(t, func() bool { return reason() == resource.ReasonRefused }, testTimeout, pollInterval)
	require.NoError(t, r.send(lampDesired+"/power", "OFF"))
	require.Equal(t, resource.ReasonWaiting, reason())
	c.gets("devices/lamp/desired/power", "OFF")
	c.report("devices/lamp/refused/power", `{"for":2,"ver":2,"code":"Stuck"}`)
	require.Eventually(t, func() bool { return reason() == resource.ReasonRefused }, testTimeout, pollInterval)
}

// The twin that is asked for over MQTT right after a write has it.
func TestTheTwinOnTheBusHasWhatWasAcknowledged(t *testing.T) {
	r, _ := newJoinedRig(t)
	for i := range 20 {
		want := fmt.Sprint(i)
		require.NoError(t, r.send(lampDesired+"/brightness", want))
		require.NoError(t, r.await(r.publishAs(operator, "v1/nodes/n1/devices/lamp/get", "", broker.Properties{ResponseTopic: "answers"})))
		answers := r.said("answers")
		var twin map[string]resource.TwinProperty
		require.NoError(t, json.Unmarshal([]byte(answers[len(answers)-1]), &twin))
		require.Equal(t, want, twin["brightness"].Desired.Value)
		require.False(t, twin["brightness"].InSync)
	}
}

// TestANodeIsReadyWhileItsLinkIsUp, says when that changed, and is not written again by a hub that is restarted.
func TestANodeIsReadyWhileItsLinkIsUp(t *testing.T) {
	r, c := newJoinedRig(t)
	ready := func(status, message string) (got resource.Condition) {
		t.Helper()
		require.Eventually(t, func() bool {
			got = r.nodeCondition(resource.ConditionReady)
			return got.Status == status && strings.Contains(got.Message, message)
		}, testTimeout, pollInterval)
		return got
	}
	require.False(t, ready("True", "is up").LastTransitionTime.IsZero())
	r.disconnect(c)
	left := ready("False", "is down: ")
	require.Equal(t, resource.ReasonAway, left.Reason)
	r.looked()
	before, err := r.store.Get(context.Background(), nodeObjectKey)
	require.NoError(t, err)
	r.restart()
	r.looked()
	after, err := r.store.Get(context.Background(), nodeObjectKey)
	require.NoError(t, err)
	require.Greater(t, after.Rev, before.Rev)
	after.Rev = before.Rev
	require.Equal(t, before, after, "what is known of it stays, and is not written again")
	r.connect(c)
	ready("True", "is up")
	r.restart()
	ready("False", "has not connected since the hub was started")
}

// What a node's agent reports of its spec is stored once, with the node's map; the Node's status follows, also after a restart. What the
// hub has found of a report is stored: a version that was never sent isn't believed because it is sent later.
func TestAnAgentsReportIsStoredOnce(t *testing.T) {
	r, c := newJoinedRig(t)
	_, err := r.store.Create(t.Context(), store.Object{Key: store.Key{Kind: resource.KindRenderedSpec, Name: "n1"}, Data: []byte(`{"renderedVersion":"9"}`)})
	require.NoError(t, err)
	node := func() (s resource.NodeStatus) {
		o, err := r.store.Get(t.Context(), nodeObjectKey)
		if err == nil && len(o.Status) > 0 { // it has been made
			err = json.Unmarshal(o.Status, &s)
		}
		require.NoError(t, store.IgnoreNotFound(err))
		return s
	}
	report := func(version string, taken func(resource.NodeStatus) bool) {
		c.report("agent", `{"version":"1","renderedVersion":"`+version+`"}`)
		require.Eventually(t, func() bool { return taken(node()) }, testTimeout, time.Millisecond)
		r.inStep()
		r.looked()
	}
	for i := range 8 {
		stored, version := r.commits.Load(), fmt.Sprint(i+1)
		report(version, func(s resource.NodeStatus) bool { return s.RenderedVersion == version })
		if i > 0 { // the first makes conditions
			require.EqualValues(t, 1, r.commits.Load()-stored)
		}
	}
	r.restart()
	require.Equal(t, "8", node().RenderedVersion)
	r.connect(c)
	untrue := func(s resource.NodeStatus) bool {
		return s.RenderedVersion == "" && resource.ConditionOf(s.Conditions, resource.ReportUntrue).Status == "True"
	}
	report("12", untrue)
	r.restart()
	_, err = r.store.Update(t.Context(), store.Object{Key: store.Key{Kind: resource.KindRenderedSpec, Name: "n1"}, Data: []byte(`{"renderedVersion":"12"}`)}, 0)
	require.NoError(t, err)
	r.looked()
	require.True(t, untrue(node()), "it said so before it was sent")
}

func TestANodesDevicesAreCounted(t *testing.T) {
	r, _ := newJoinedRig(t)
	counts := func(want int) {
		t.Helper()
		require.Eventually(t, func() bool {
			n, err := r.node()
			return err == nil && n.Status.Devices == want
		}, testTimeout, pollInterval)
	}
	counts(1)
	r.edit("lamp", func(d *resource.Device) { d.Spec.NodeName = "" })
	counts(0)
	r.edit("lamp", func(d *resource.Device) { d.Spec.NodeName = "n1" })
	counts(1)
}

// unread is the lamp as the store has it. Nobody reads its status, which is derived for whoever does.
func (r *rig) unread() store.Object {
	r.t.Helper()
	page, err := r.store.List(context.Background(), resource.KindDevice, store.ListOptions{Namespace: resource.DefaultNamespace, Name: "lamp", DataOnly: true})
	require.NoError(r.t, err)
	require.Len(r.t, page.Items, 1)
	require.Nil(r.t, page.Items[0].Status)
	return page.Items[0]
}

// restartUnread restarts the hub after the lamp was reported to be online, with its node connected again.
func restartUnread(t *testing.T) (*rig, *core) {
	r, c := newJoinedRig(t)
	c.report("devices/lamp/reported/power", "ON")
	c.report("devices/lamp/state", resource.Online)
	r.status(func(s resource.DeviceStatus) bool { return s.State == resource.Online })
	r.looked()
	r.awayAfter = time.Hour
	r.restart()
	r.connect(c)
	r.inStep()
	r.looked()
	return r, c
}

// The first report after a restart is an event also for those who watch without having read the status, which is derived when it is read.
func TestTheFirstReportAfterARestartIsToldToThoseWhoNeverReadTheStatus(t *testing.T) {
	r, c := restartUnread(t)
	lamp := r.unread()
	stream, err := r.store.Watch(t.Context(), store.Key{Kind: resource.KindDevice}, lamp.Rev)
	require.NoError(t, err)
	defer stream.Close()
	c.report("devices/lamp/reported/power", "OFF")
	ctx, cancel := context.WithTimeout(t.Context(), testTimeout)
	defer cancel()
	events, err := stream.Next(ctx)
	require.NoError(t, err)
	require.Greater(t, events[0].Object.Rev, lamp.Rev)
	require.Contains(t, string(events[0].Object.Status), `"OFF"`)
}

func TestTheFirstAlarmAfterARestartIsAnEvent(t *testing.T) {
	r, c := restartUnread(t)
	r.forgetNotes()
	c.report("devices/lamp/alarms/power", `[{"name":"on","severity":"High","since":"2026-11-21T10:00:00Z","message":"power is ON"}]`)
	r.awaitEvent("AlarmRaised")
}

// The spec changes after the alarm was stored and before the status is written: what the status was before the alarm is still known.
func TestTheFirstAlarmAfterARestartIsAnEventIfTheSpecChangesBeforeItIsWritten(t *testing.T) {
	r, c := newJoinedRig(t)
	r.awayAfter, r.statusEvery = time.Hour, time.Hour
	r.restart()
	r.connect(c)
	r.inStep()
	r.forgetNotes()
	c.report("devices/lamp/alarms/power", `[{"name":"on","severity":"High","since":"2026-11-21T10:00:00Z","message":"power is ON"}]`)
	require.Eventually(t, func() bool {
		r.twins.host.RLock()
		defer r.twins.host.RUnlock()
		d := r.twins.devices.byName["lamp"]
		return d.first.Load() != nil && len(r.twins.devices.reportedBy(d)["alarms/power"].Value) > 0
	}, testTimeout, time.Millisecond)
	r.edit("lamp", func(d *resource.Device) { d.Metadata.Labels = map[string]string{"room": "hall"} })
	r.twins.statuses.writeStatuses(t.Context())
	r.awaitEvent("AlarmRaised")
}

// That a node was away when the hub stopped is known after its restart, also if nobody read the statuses that say so.
func TestThatANodeIsAwayIsStoredWhetherOrNotAnybodyReadsIt(t *testing.T) {
	r, _ := restartUnread(t)
	r.awayAfter = time.Millisecond
	r.restart()
	before := r.unread().Rev
	require.Eventually(t, func() bool { return r.unread().Rev > before }, testTimeout, time.Millisecond)
	r.looked()
	r.awayAfter = time.Hour
	r.restart()
	d, _ := r.device("lamp")
	require.Equal(t, "False", nodeCondition(d.Status))
}
