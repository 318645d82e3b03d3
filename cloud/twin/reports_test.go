// SPDX-License-Identifier: Apache-2.0

package twin

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/edgebus/edgebus/cloud/store"
	"github.com/edgebus/edgebus/topics"
	"github.com/edgebus/edgebus/topics/resource"
)

// seen reads a watch until it has every report that is wanted: node and value, or the node alone for one that is gone.
func (r *rig) seen(w *Reports, want ...string) {
	r.t.Helper()
	ctx, stop := context.WithTimeout(r.t.Context(), testTimeout)
	defer stop()
	got := make(map[string]string)
	for {
		list, err := w.Next(ctx)
		require.NoError(r.t, err, "%v", got)
		for _, x := range list {
			require.Equal(r.t, w.kind, x.Kind)
			got[x.Node+"/"+x.Key()] = strings.TrimSpace(x.Node + " " + string(x.Value))
		}
		missing := slices.DeleteFunc(slices.Clone(want), func(s string) bool {
			for _, have := range got {
				if have == s {
					return true
				}
			}
			return false
		})
		if len(missing) == 0 {
			return
		}
	}
}

func TestReportsAreAllThatIsThereAndThenWhatChanges(t *testing.T) {
	r := newRig(t)
	n1, n2 := r.connect(newCore("n1")), r.connect(newCore("n2"))
	early := r.twins.Reports(topics.KindUpgradeStatus)
	defer early.Close()
	n1.report("upgrade/status", "one")
	n2.report("upgrade/status", "two")
	n2.report("status", `{"version":"v1"}`)
	r.seen(early, "n1 one", "n2 two")
	late := r.twins.Reports(topics.KindUpgradeStatus)
	defer late.Close()
	r.seen(late, "n1 one", "n2 two")
	require.Equal(t, "two", string(r.twins.Report(topics.Address{Node: "n2", Kind: topics.KindUpgradeStatus}).Value))

	n1.report("upgrade/status", "three")
	r.seen(early, "n1 three")
	r.seen(late, "n1 three")

	r.restart() // all that is there comes first
	again := r.twins.Reports(topics.KindUpgradeStatus)
	defer again.Close()
	r.seen(again, "n1 three", "n2 two")

	require.Eventually(t, func() bool { there, _ := r.twins.Registered("n2"); return there }, testTimeout, testTimeout/10000)
	_, err := r.store.Delete(t.Context(), store.Key{Kind: resource.KindNode, Name: "n2"}, 0)
	require.NoError(t, err)
	r.seen(again, "n2")
	require.Nil(t, r.twins.Report(topics.Address{Node: "n2", Kind: topics.KindUpgradeStatus}).Value)
}

// A slow reader gets the latest value, and not every one; an ended watch costs nothing.
func TestReportsAreCoalesced(t *testing.T) {
	r := newRig(t)
	c := r.connect(newCore("n1"))
	w := r.twins.Reports(topics.KindInstance)
	for i := range 300 {
		c.report("discovery/usb/instances/usb-"+fmt.Sprint(i%3), fmt.Sprint(i))
	}
	c.report("discovery/usb/instances/last", "end")
	require.Eventually(t, func() bool {
		return r.twins.Report(topics.Address{Node: "n1", Kind: topics.KindInstance, Device: "usb", Name: "last"}).Value != nil
	}, testTimeout, testTimeout/10000)
	list, err := w.Next(t.Context())
	require.NoError(t, err)
	require.Len(t, list, 4)
	for _, x := range list {
		if x.Name == "usb-2" {
			require.Equal(t, "299", string(x.Value))
		}
	}
	w.Close()
	require.Empty(t, *r.twins.reportWatches.of.Load())
	ctx, stop := context.WithCancel(t.Context())
	stop()
	_, err = w.Next(ctx)
	require.ErrorIs(t, err, context.Canceled)
}

func (c *core) remove(key string) {
	c.mu.Lock()
	c.up.Delete(key, time.Now().UnixMilli(), "")
	c.mu.Unlock()
	c.talk()
}

func (r *rig) nodeStatus(name string) (s resource.NodeStatus, o store.Object) {
	o, err := r.store.Get(context.Background(), store.Key{Kind: resource.KindNode, Name: name})
	if err == nil && len(o.Status) > 0 {
		require.NoError(r.t, json.Unmarshal(o.Status, &s))
	}
	return s, o
}

func (r *rig) hasEvent(reason, message string) func() bool {
	return func() bool {
		r.mu.Lock()
		defer r.mu.Unlock()
		return slices.ContainsFunc(r.happened, func(h resource.Occurrence) bool { return h.Reason == reason && h.Message == message })
	}
}

// sent has the hub have sent a node versions of its spec up to the given one.
func (r *rig) sent(node, version string) {
	r.t.Helper()
	require.NoError(r.t, store.Put(r.t.Context(), r.store, store.Object{
		Key: store.Key{Kind: resource.KindRenderedSpec, Name: node}, Data: []byte(`{"renderedVersion":"` + version + `"}`),
	}, 0))
}

// The status that says which version of a fleet's template a node has comes in one write with the annotation of it, and without an event of its own.
func TestWhatANodeOfAFleetHasAppliedIsWrittenOnce(t *testing.T) {
	r := newRig(t)
	r.noteVersion = func(o store.Object, s resource.NodeStatus) []byte {
		if s.RenderedVersion != "7" || bytes.Contains(o.Data, []byte("noted")) {
			return nil
		}
		return bytes.Replace(o.Data, []byte(`"owner"`), []byte(`"annotations":{"noted":"7"},"owner"`), 1)
	}
	r.restart()
	_, err := r.store.Create(t.Context(), store.Object{Key: store.Key{Kind: resource.KindNode, Name: "n1"}, Data: []byte(`{"metadata":{"name":"n1","owner":"Fleet/a"},"spec":{}}`)})
	require.NoError(t, err)
	r.sent("n1", "8")
	c := r.connect(newCore("n1"))
	_, o := r.nodeStatus("n1")
	watch, err := r.store.Watch(t.Context(), o.Key, o.Rev)
	require.NoError(t, err)
	defer watch.Close()
	c.report("agent", `{"version":"v2","renderedVersion":"7"}`)
	for applied := false; !applied; {
		events, err := watch.Next(t.Context())
		require.NoError(t, err)
		for _, e := range events {
			applied = bytes.Contains(e.Object.Status, []byte(`"renderedVersion":"7"`))
			require.Equal(t, applied, bytes.Contains(e.Object.Data, []byte(`"noted":"7"`)), "%s %s", e.Object.Data, e.Object.Status)
		}
	}
	c.report("agent", `{"version":"v2","renderedVersion":"7","failed":{"renderedVersion":"8","reason":"HookFailed"}}`)
	require.Eventually(t, r.hasEvent("SpecFailed", "its spec is not applied: version 8: HookFailed"), testTimeout, testTimeout/10000)
	require.False(t, r.hasEvent("SpecApplied", "version 7 of its spec is applied")())
}

func TestAnAgentsReportIsInItsNodesStatus(t *testing.T) {
	r := newRig(t)
	r.sent("n1", "9")
	c := r.connect(newCore("n1"))
	c.report("status", `{"version":"v1","systemInfo":{"architecture":"amd64","bootID":"b0","cpus":4}}`)
	c.report("agent", `{"version":"v2","renderedVersion":"7","failed":{"renderedVersion":"8","reason":"HookFailed","message":"check: exit status 1"},
		"os":{"image":"quay.io/os:1"},"systemInfo":{"bootID":"b1"},"containers":[{"id":"c1","status":"running"}],"systemdUnits":[{"name":"sshd.service"}],
		"applications":[{"name":"web","status":"Running"}],"resources":{"cpu":"Healthy"},"drifted":["/etc/motd"],
		"conditions":[{"type":"SpecApplied","status":"False","reason":"HookFailed"},{"type":"Drifted","status":"True"}]}`)
	var s resource.NodeStatus
	status := func(ok func() bool) {
		t.Helper()
		require.Eventually(t, func() bool { s, _ = r.nodeStatus("n1"); return ok() }, testTimeout, testTimeout/10000)
	}
	condition := func(kind string) string {
		c := resource.ConditionOf(s.Conditions, kind)
		require.Equal(t, c.Status == "", c.LastTransitionTime.IsZero())
		return c.Status
	}
	status(func() bool { return s.RenderedVersion == "7" })
	require.Equal(t, "v1", s.Version)
	require.Equal(t, "v2", s.AgentVersion)
	require.Equal(t, &resource.SystemInfo{Architecture: "amd64", BootID: "b1", CPUs: 4}, s.SystemInfo)
	require.Equal(t, &resource.FailedVersion{RenderedVersion: "8", Reason: "HookFailed", Message: "check: exit status 1"}, s.Failed)
	require.Equal(t, "quay.io/os:1", s.OS.Image)
	require.Equal(t, "c1", s.Containers[0].ID)
	require.Equal(t, "sshd.service", s.SystemdUnits[0].Name)
	require.Equal(t, "Running", s.Applications[0].Status)
	require.Equal(t, "Healthy", s.Resources.CPU)
	require.Equal(t, []string{"/etc/motd"}, s.Drifted)
	require.NotEmpty(t, s.UpdatedAt)
	require.Equal(t, []string{"SpecApplied", "Drifted"}, s.AgentConditions)
	require.Equal(t, []string{"False", "True", "True"}, []string{condition("SpecApplied"), condition("Drifted"), condition("Ready")})
	require.Eventually(t, r.hasEvent("SpecApplied", "version 7 of its spec is applied"), testTimeout, testTimeout/10000)
	require.Eventually(t, r.hasEvent("SpecFailed", "its spec is not applied: version 8: HookFailed: check: exit status 1"), testTimeout, testTimeout/10000)

	links, _ := r.twins.Links("n1", 1)
	require.Equal(t, "version 8: HookFailed: check: exit status 1", links[0].SpecFailed)

	// What a controller writes stays; what the agent says no more goes.
	s, o := r.nodeStatus("n1")
	s.SpecVersion = "8"
	s.Conditions = append(s.Conditions, resource.Condition{Type: resource.ConditionSpecRendered, Status: "True"}, resource.Condition{Type: "Mine", Status: "True", LastTransitionTime: time.Unix(1_700_000_000, 0)})
	data, err := json.Marshal(s)
	require.NoError(t, err)
	_, err = r.store.Update(t.Context(), store.Object{Key: o.Key, Status: data}, 0)
	require.NoError(t, err)
	c.report("agent", `{"renderedVersion":"9","conditions":[{"type":"SpecApplied","status":"True"}]}`)
	status(func() bool { return s.RenderedVersion == "9" })
	require.Equal(t, []string{"True", "", "True"}, []string{condition("SpecApplied"), condition("Drifted"), condition("Ready")})
	require.True(t, slices.ContainsFunc(s.Conditions, func(x resource.Condition) bool { return x.Type == resource.ConditionSpecRendered }))
	require.True(t, slices.ContainsFunc(s.Conditions, func(x resource.Condition) bool { return x.Type == "Mine" }))
	require.Equal(t, "8", s.SpecVersion)
	require.Nil(t, s.Failed)
	require.Empty(t, s.Containers)
	require.Equal(t, "unknown", s.AgentVersion)
	require.Equal(t, &resource.SystemInfo{Architecture: "amd64", BootID: "b0", CPUs: 4}, s.SystemInfo)

	r.restart()
	r.connect(c)
	c.remove("agent") // the agent is gone for good
	status(func() bool { return s.AgentVersion == "" })
	require.Empty(t, s.RenderedVersion)
	require.Equal(t, "", condition("SpecApplied"))
	require.Equal(t, "True", condition("Mine"))
}

// TestANodeWhoseAgentEndedSaysSo: in its conditions, in what a fleet counts, and to doctor.
func TestANodeWhoseAgentEndedSaysSo(t *testing.T) {
	r := newRig(t)
	r.sent("n1", "7")
	c := r.connect(newCore("n1"))
	condition := func(kind, want string) {
		t.Helper()
		require.Eventually(t, func() bool {
			s, _ := r.nodeStatus("n1")
			i := slices.IndexFunc(s.Conditions, func(x resource.Condition) bool { return x.Type == kind })
			return i >= 0 && s.Conditions[i].Status+" "+s.Conditions[i].Reason == want
		}, testTimeout, testTimeout/10000, "%s must be %s", kind, want)
	}
	c.report("agent/state", "online")
	c.report("agent", `{"version":"v2","renderedVersion":"6","conditions":[{"type":"Updating","status":"True","reason":"Staging"}]}`)
	condition(resource.ConditionAgentOnline, "True Running")
	condition(resource.ConditionUpdating, "True Staging")
	links, _ := r.twins.Links("n1", 1)
	require.Empty(t, links[0].StoppedPrograms)

	c.report("agent/state", "offline") // its will
	condition(resource.ConditionAgentOnline, "False Stopped")
	condition(resource.ConditionUpdating, "Unknown Stopped")
	s, _ := r.nodeStatus("n1")
	require.True(t, s.AgentStopped())
	require.Equal(t, resource.SummaryUnknown, s.Updated().Status)
	links, _ = r.twins.Links("n1", 1)
	require.Equal(t, []string{"edgeagent"}, links[0].StoppedPrograms)

	c.report("agent/state", "online")
	condition(resource.ConditionAgentOnline, "True Running")
	condition(resource.ConditionUpdating, "True Staging")
}

// Alerts on a host's resources and failures of applications are events when they begin and when they end, and not with each report.
func TestAlertsAndFailuresAreEvents(t *testing.T) {
	r := newRig(t)
	r.sent("n1", "99")
	c := r.connect(newCore("n1"))
	report := func(version, condition, application string) []resource.Occurrence {
		t.Helper()
		r.forgetNotes()
		c.report("agent", `{"version":"v2","renderedVersion":"`+version+`","conditions":[`+condition+`],"applications":[`+application+`]}`)
		r.awaitEvent("SpecApplied") // which is recorded last
		return slices.DeleteFunc(r.notes(), func(o resource.Occurrence) bool {
			return !strings.HasPrefix(o.Reason, "Disk") && !strings.HasPrefix(o.Reason, "Application")
		})
	}
	disk := func(status, reason, message string) string {
		return `{"type":"DiskHealthy","status":"` + status + `","reason":"` + reason + `","message":"` + message + `"}`
	}
	event := func(kind, reason, about, message string) resource.Occurrence {
		return resource.Occurrence{Kind: resource.KindNode, Name: "n1", Type: kind, Reason: reason, About: about, Message: message}
	}
	for i, step := range []struct {
		disk, app string
		want      []resource.Occurrence
	}{
		{disk("Unknown", "Measuring", ""), `{"name":"web","status":"Running"},{"name":"db","status":"Starting"}`, nil},
		{
			disk("True", "Healthy", ""), `{"name":"web","status":"Running"},{"name":"db","status":"Running"}`,
			[]resource.Occurrence{event("Normal", "ApplicationHealthy", "db", "db: Running, it was Starting")},
		},
		{disk("False", "Warning", "/var: the mean over 1m is above 80 %"), `{"name":"web","status":"Error","message":"exit status 1"},{"name":"db","status":"Running"}`, []resource.Occurrence{
			event("Warning", "DiskWarning", "", "/var: the mean over 1m is above 80 %"), event("Warning", "ApplicationError", "web", "web: exit status 1"),
		}},
		{disk("False", "Warning", "/srv: another"), `{"name":"web","status":"Error","message":"exit status 2"}`, nil},
		{
			disk("False", "Critical", "/var: the mean over 1m is above 95 %"), `{"name":"web","status":"Starting"}`,
			[]resource.Occurrence{event("Warning", "DiskCritical", "", "/var: the mean over 1m is above 95 %")},
		},
		{disk("True", "Healthy", "/var: the last alert ended"), `{"name":"web","status":"Completed"}`, []resource.Occurrence{
			event("Normal", "DiskNormal", "", "/var: the last alert ended"), event("Normal", "ApplicationHealthy", "web", "web: Completed, it was Starting"),
		}},
		{disk("True", "Info", "it is nearly full"), "", nil},
		{disk("False", "Warning", "full"), "", []resource.Occurrence{event("Warning", "DiskWarning", "", "full")}},
		{"", "", []resource.Occurrence{event("Normal", "DiskUnknown", "", "it is not watched any more")}},
	} {
		got := report(fmt.Sprint(i+1), step.disk, step.app)
		if len(step.want) == 0 {
			require.Empty(t, got, "step %d", i)
		} else {
			require.Equal(t, step.want, got, "step %d", i)
		}
	}
}
