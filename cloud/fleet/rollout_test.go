// SPDX-License-Identifier: Apache-2.0

package fleet_test

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/edgebus/edgebus/cloud/objects"
	"github.com/edgebus/edgebus/cloud/store"
	"github.com/edgebus/edgebus/topics/resource"
)

func TestARolloutHaltsAndGoesOn(t *testing.T) {
	h := newTestHub(t)
	for i := range 20 {
		h.makeNode(fmt.Sprintf("n%02d", i), "site=a", fmt.Sprintf("line=%d", i%2))
	}
	policy := &resource.RolloutPolicy{
		DeviceSelection: &resource.DeviceSelection{Strategy: "BatchSequence", Sequence: []resource.RolloutBatch{
			{Selector: &resource.LabelSelector{MatchLabels: map[string]string{"line": "1"}}, Limit: "3"}, {Limit: "50%"},
		}},
		SuccessThreshold: "100%", DefaultUpdateTimeout: "1m",
	}
	h.makeFleet("a", "site=a", "one", func(f *resource.Fleet) { f.Spec.RolloutPolicy = policy })
	with := func(text string) (names []string) {
		for i := range 20 {
			n := h.node(fmt.Sprintf("n%02d", i))
			if len(n.Spec.Config) > 0 && n.Spec.Config[0].Files[0].Content == text {
				names = append(names, n.Metadata.Name)
			}
		}
		return names
	}
	h.until("all have it", func() bool { return len(with("one")) == 20 })
	h.until("and say so", func() bool { return h.fleet("a").Status.Rollout.Updated == 20 })

	h.fail.Store("n03", true)
	h.editFleet("a", func(f *resource.Fleet) { f.Spec.Template.Spec = motdSpec("two") })
	h.until("it halts in the first batch", func() bool { r := h.fleet("a").Status.Rollout; return r.Reason == "Halted" && r.FailedNodes == 1 })
	require.Equal(t, []string{"n01", "n03", "n05"}, with("two"))
	require.Regexp(t, "^batch 1 of 3: (1 of 3 failed, and 3 must succeed|2 of 3 succeeded, and 3 are needed)$", h.fleet("a").Status.Rollout.Message)
	h.until("there is an event of it", func() bool { return h.recorded("RolloutHalted") == 1 })

	h.stop() // the hub starts again, and starts nothing twice
	h.start()
	h.fail.Delete("n03")
	h.editFleet("a", func(f *resource.Fleet) { f.Spec.Paused = true; f.Spec.Template.Spec = motdSpec("three") })
	h.until("it is paused", func() bool {
		r := h.fleet("a").Status.Rollout
		return r.Reason == "Paused" && r.TemplateVersion == "a-0000003"
	})
	require.Empty(t, with("three"))
	h.editFleet("a", func(f *resource.Fleet) { f.Spec.Paused = false })
	h.until("all have it", func() bool { return len(with("three")) == 20 })
	h.until("and say so", func() bool {
		r := h.fleet("a").Status.Rollout
		return r.Updated == 20 && r.Reason == "" && r.Batch == 3
	})
	batches := map[string]int{}
	for i := range 20 {
		batches[h.node(fmt.Sprintf("n%02d", i)).Metadata.Annotations["fleet-controller/batch"]]++
	}
	require.Equal(t, 3, batches["a-0000003/1"])
	require.Equal(t, 10, batches["a-0000003/2"])
}

// A node that is given another version has a note of which it had, also if the hub has forgotten that: it isn't stored by itself.
func TestANodeIsNotedToHaveTheVersionBefore(t *testing.T) {
	h := newTestHub(t)
	h.makeNode("n1", "site=a")
	h.makeFleet("a", "site=a", "one")
	annotation := func(key string) string { return h.node("n1").Metadata.Annotations[key] }
	h.until("it has the first", func() bool { return annotation(resource.VersionAnnotation) == "a-0000001" })
	h.stop()
	h.editNode("n1", func(n *resource.Node) { delete(n.Metadata.Annotations, resource.VersionAnnotation) })
	h.editFleet("a", func(f *resource.Fleet) { f.Spec.Template.Spec = motdSpec("two") })
	h.fail.Store("n1", "two")
	h.start()
	h.until("it fails with the second", func() bool { return h.fleet("a").Status.Rollout.FailedNodes == 1 })
	require.Equal(t, "a-0000002", annotation(resource.AssignedVersionAnnotation))
	require.Equal(t, "a-0000001", annotation(resource.VersionAnnotation))
}

// A node that is offline through several changes gets only the last.
func TestAnOfflineNodeGetsTheLastVersion(t *testing.T) {
	h := newTestHub(t)
	h.makeNode("n1", "site=a")
	h.makeNode("n2", "site=a")
	h.editNode("n2", func(n *resource.Node) { n.Metadata.Annotations = map[string]string{"offline": "yes"} })
	h.until("n2 is offline", func() bool { return h.node("n2").Status.State == resource.Offline })
	h.makeFleet("a", "site=a", "0")
	for i := range 5 {
		h.editFleet("a", func(f *resource.Fleet) { f.Spec.Template.Spec = motdSpec(fmt.Sprint(i)) })
		h.untilMotd("n1", fmt.Sprint(i))
	}
	require.Empty(t, h.node("n2").Spec.Config)
	h.until("the fleet says why", func() bool { return h.fleet("a").Status.Rollout.Message == "1 is offline" })
	h.editNode("n2", func(n *resource.Node) { delete(n.Metadata.Annotations, "offline") })
	h.untilMotd("n2", "4")
	require.EqualValues(t, 2, h.node("n2").Metadata.Generation)
}

// What the template comes to for a node follows its labels, and somebody who writes the controller's annotations hides nothing.
func TestNodesKeepToTheirVersion(t *testing.T) {
	h := newTestHub(t)
	h.makeNode("n1", "site=a", "room=hall")
	h.makeNode("n2", "site=a", "room=yard")
	h.makeFleet("a", "site=a", "{{ .metadata.labels.room }}")
	h.untilMotd("n1", "hall")
	h.editNode("n1", func(n *resource.Node) { n.Metadata.Labels["room"] = "cellar" })
	h.untilMotd("n1", "cellar")
	inline := func(text string) {
		h.editFleet("a", func(f *resource.Fleet) {
			f.Spec.Template.Spec.Config = append(f.Spec.Template.Spec.Config[:1], resource.ConfigItem{Name: "i", ConfigType: resource.ConfigInline, Inline: json.RawMessage(text)})
		})
	}
	inline(`{"ignition":{"version":"3.4.0"},"storage":{}}`)
	h.until("it has the document", func() bool { return len(h.node("n1").Spec.Config) == 2 })
	inline(`{"storage":{},"ignition":{"version":"3.4.0"}}`) // the same
	const assigned = "fleet-controller/assignedTemplateVersion"
	h.editNode("n1", func(n *resource.Node) { delete(n.Metadata.Annotations, assigned) })
	h.until("it is assigned again", func() bool { return h.node("n1").Metadata.Annotations[assigned] == "a-0000002" })

	h.editFleet("a", func(f *resource.Fleet) {
		f.Spec.Paused = true
		f.Spec.Template.Spec = motdSpec("two")
	})
	h.until("it is paused", func() bool { return h.fleet("a").Status.Rollout.TemplateVersion == "a-0000003" })
	h.editNode("n1", func(n *resource.Node) { n.Metadata.Annotations[assigned] = "a-0000003" })
	h.editFleet("a", func(f *resource.Fleet) { f.Spec.Paused = false })
	h.untilMotd("n1", "two")
	h.untilMotd("n2", "two")
	h.until("all have it", func() bool {
		r := h.fleet("a").Status.Rollout
		return r.TemplateVersion == "a-0000003" && r.FinishedAt != ""
	})
	for i := 3; i < 6; i++ {
		h.makeNode(fmt.Sprintf("n%d", i), "site=a")
		h.until("it has it, too", func() bool { return h.fleet("a").Status.Rollout.Updated == i })
	}
	h.until("the version has an event", func() bool { return h.recorded("RolledOut all 2 nodes have a-0000003") == 1 })
	require.Zero(t, h.recorded("RolledOut all 3 nodes have a-0000003")+h.recorded("RolledOut all 4 nodes have a-0000003")) // nodes that join are none
}

// Nodes get a version in their windows only, each in its own time zone.
func TestNodesWaitForTheirWindows(t *testing.T) {
	h := newTestHub(t)
	h.ahead.Store(int64(time.Until(time.Date(2030, 5, 1, 0, 30, 0, 0, time.UTC))))
	zone := func(name, zone string) {
		h.editNode(name, func(n *resource.Node) {
			n.Metadata.Annotations = map[string]string{resource.TimeZoneAnnotation: zone}
		})
	}
	for _, name := range []string{"tokyo", "utc", "wrong"} {
		h.makeNode(name, "site=no")
	}
	zone("tokyo", "Asia/Tokyo")
	zone("wrong", "Mars/Olympus")
	h.makeFleet("a", "site=a", "one", func(f *resource.Fleet) {
		f.Spec.RolloutPolicy = &resource.RolloutPolicy{SuccessThreshold: "0%", UpdateSchedule: &resource.UpdateSchedule{At: "0 9 * * *", StartGraceDuration: "2h"}}
	})
	for _, name := range []string{"tokyo", "utc", "wrong"} {
		h.editNode(name, func(n *resource.Node) { n.Metadata.Labels["site"] = "a" })
	}
	h.untilMotd("tokyo", "one") // it is half past nine there
	h.until("the others wait", func() bool {
		r := h.fleet("a").Status.Rollout
		return r.Nodes == 3 && r.Updated == 1 && r.FailedNodes == 1 && r.Reason == "OutsideTargetsWindow" &&
			strings.Contains(r.Message, `node wrong: spec.rolloutPolicy.updateSchedule: "Mars/Olympus" is no time zone`)
	})
	require.Empty(t, h.node("utc").Spec.Config)
	h.ahead.Add(int64(9 * time.Hour))
	h.untilMotd("utc", "one")
	h.editFleet("a", func(f *resource.Fleet) {
		f.Spec.RolloutPolicy.DownloadSchedule = &resource.UpdateSchedule{At: "0 20 * * *"}
		f.Spec.Template.Spec = motdSpec("two")
	})
	h.until("there is no time", func() bool {
		return strings.Contains(h.fleet("a").Status.Rollout.Message, "updateSchedule and downloadSchedule are never open together")
	})
}

// A fleet counts its nodes by how they are, as they change, come and go.
func TestAFleetCountsItsNodes(t *testing.T) {
	h := newTestHub(t)
	h.fail.Store("c", true)
	for _, name := range []string{"a", "b", "c"} {
		h.makeNode(name, "site=hall")
	}
	h.makeFleet("f", "site=hall", "one")
	counts := func(want string) {
		t.Helper()
		require.Eventually(t, func() bool {
			text, err := json.Marshal(h.fleet("f").Status.Summary)
			require.NoError(t, err)
			return string(text) == want
		}, waitTimeout, time.Millisecond, want)
	}
	counts(`{"nodes":3,"summaryStatus":{"Online":3},"updateStatus":{"Unknown":1,"UpToDate":2},"applicationStatus":{"NoApplications":3}}`)
	status := func(edit func(s *resource.NodeStatus)) {
		err := objects.UpdateStatus(h.Context(), h.User, store.Key{Kind: resource.KindNode, Name: "a"}, func(n *resource.Node) error { edit(&n.Status); return nil })
		require.NoError(t, err)
	}
	status(func(s *resource.NodeStatus) {
		s.Resources = &resource.ResourceStatus{Disk: resource.SeverityWarning}
		s.Applications = []resource.ApplicationStatus{{Name: "shop", Status: "Running"}}
		s.Conditions = resource.SetCondition(s.Conditions, resource.Condition{Type: resource.ConditionUpdating, Status: "True", Reason: "Staging"}, time.Now())
	})
	counts(`{"nodes":3,"summaryStatus":{"Degraded":1,"Online":2},"updateStatus":{"Unknown":1,"UpToDate":1,"Updating":1},"applicationStatus":{"Healthy":1,"NoApplications":2}}`)
	status(func(s *resource.NodeStatus) {
		s.Resources, s.Applications = nil, nil
		s.Conditions = resource.SetCondition(s.Conditions, resource.Condition{Type: resource.ConditionUpdating, Status: "False", Reason: "Idle"}, time.Now())
	})
	counts(`{"nodes":3,"summaryStatus":{"Online":3},"updateStatus":{"Unknown":1,"UpToDate":2},"applicationStatus":{"NoApplications":3}}`)
	h.editNode("a", func(n *resource.Node) { n.Metadata.Annotations["offline"] = "yes" })
	counts(`{"nodes":3,"summaryStatus":{"Online":2,"Unknown":1},"updateStatus":{"Unknown":1,"UpToDate":2},"applicationStatus":{"NoApplications":3}}`)
	h.editNode("b", func(n *resource.Node) { n.Metadata.Labels["site"] = "yard" })
	counts(`{"nodes":2,"summaryStatus":{"Online":1,"Unknown":1},"updateStatus":{"Unknown":1,"UpToDate":1},"applicationStatus":{"NoApplications":2}}`)
	for _, name := range []string{"a", "c"} {
		require.NoError(t, h.User.Delete(h.Context(), store.Key{Kind: resource.KindNode, Name: name}))
	}
	counts(`{}`)
}

// A node whose agent waits for a window of its own policy is waited for. Its time counts from when it begins.
func TestAgentsThatWaitForTheirWindowsDoNotTimeOut(t *testing.T) {
	h := newTestHub(t)
	h.makeNode("fast", "site=a")
	h.makeNode("slow", "site=a")
	says := func(status, reason string) {
		h.agents.Store("slow", resource.Condition{Type: resource.ConditionUpdating, Status: status, Reason: reason})
		h.editNode("slow", func(n *resource.Node) { n.Metadata.Annotations["says"] = reason })
	}
	h.editNode("slow", func(n *resource.Node) { n.Metadata.Annotations = map[string]string{"a": "b"} })
	says("False", resource.WaitingForWindow)
	h.makeFleet("a", "site=a", "one", func(f *resource.Fleet) {
		f.Spec.RolloutPolicy = &resource.RolloutPolicy{SuccessThreshold: "50%", DefaultUpdateTimeout: "10m"}
		f.Spec.Template.Spec.UpdatePolicy = &resource.UpdatePolicy{UpdateSchedule: &resource.UpdateSchedule{At: "0 2 * * *"}}
	})
	rollout := func(updated, failed int) func() bool {
		return func() bool {
			r := h.fleet("a").Status.Rollout
			return r != nil && r.Nodes == 2 && r.Updated == updated && r.FailedNodes == failed
		}
	}
	h.until("one has it, and the other one waits", rollout(1, 0))
	looked := func(text string) { // the fleet has been looked at since
		h.editFleet("a", func(f *resource.Fleet) { f.Spec.RolloutPolicy.SuccessThreshold = text })
		h.until("it has been looked at", func() bool {
			f := h.fleet("a")
			return f.Status.Rollout.ObservedGeneration == f.Metadata.Generation
		})
	}
	h.ahead.Add(int64(5 * time.Hour))
	looked("51%")
	require.True(t, rollout(1, 0)(), "%+v", h.fleet("a").Status.Rollout)
	says("True", "Staging")
	h.until("it has begun", func() bool {
		return slices.ContainsFunc(h.node("slow").Status.Conditions, func(c resource.Condition) bool { return c.Reason == "Staging" })
	})
	looked("52%")
	require.True(t, rollout(1, 0)(), "%+v", h.fleet("a").Status.Rollout)
	h.ahead.Add(int64(11 * time.Minute))
	looked("53%")
	h.until("it has not answered in time", rollout(1, 1))
	h.agents.Delete("slow")
	h.editNode("slow", func(n *resource.Node) { n.Metadata.Annotations["says"] = "done" })
	h.until("it has it after all", rollout(2, 0))
}

// What is amid one version is not available for the next one either, whether that is newer, an undo, or another fleet's.
func TestTheBudgetCountsNodesThatAreAmidAnotherVersion(t *testing.T) {
	h := newTestHub(t)
	names := []string{"a", "b", "c", "d", "e"}
	policy := func(f *resource.Fleet) {
		two := 2
		f.Spec.RolloutPolicy = &resource.RolloutPolicy{DisruptionBudget: &resource.DisruptionBudget{MaxUnavailable: &two}, DefaultUpdateTimeout: "10m"}
	}
	for _, n := range names {
		h.makeNode(n, "site=x")
	}
	h.makeNode("z", "site=y")
	h.makeFleet("f", "site=x", "one", policy)
	h.makeFleet("g", "site=y", "one", policy)
	for _, n := range append(names, "z") {
		h.untilMotd(n, "one")
	}
	h.until("both are rolled out", func() bool {
		return h.fleet("f").Status.Rollout.FinishedAt != "" && h.fleet("g").Status.Rollout.FinishedAt != ""
	})
	slow := resource.Condition{Type: resource.ConditionUpdating, Status: "True", Reason: "Applying"}
	busy := func() (n int) {
		for _, name := range append(names, "z") {
			if s := h.node(name).Status; s.RenderedVersion != s.SpecVersion {
				n++
			}
		}
		return n
	}
	waits := func(fleet string) {
		h.until(fleet+" waits for its budget", func() bool {
			f := h.fleet(fleet)
			return f.Status.Rollout.ObservedGeneration == f.Metadata.Generation && f.Status.Rollout.Reason == "DisruptionBudgetReached" && busy() == 2
		})
	}
	for _, n := range []string{"d", "z"} {
		h.agents.Store(n, slow)
	}
	h.editFleet("f", func(f *resource.Fleet) { f.Spec.Template.Spec = motdSpec("two") })
	h.editFleet("g", func(f *resource.Fleet) { f.Spec.Template.Spec = motdSpec("two") })
	h.until("d and z are amid it, and the others have it", func() bool {
		return busy() == 2 && h.fleet("f").Status.Rollout.Updated == 4 && h.fleet("g").Status.Rollout.Updating == 1
	})
	for _, n := range []string{"a", "b", "c", "e"} {
		h.agents.Store(n, slow)
	}
	h.editNode("z", func(n *resource.Node) { n.Metadata.Labels["site"] = "x" })
	h.untilOwner("z", "Fleet/f")
	h.editFleet("f", func(f *resource.Fleet) { f.Spec.Template.Spec = motdSpec("three") })
	waits("f")
	h.editFleet("f", func(f *resource.Fleet) {
		f.Spec.RolloutPolicy.DefaultUpdateTimeout = "11m"
		f.Metadata.Annotations[resource.RollBackAnnotation] = "f-0000001"
	})
	waits("f")
	h.until("those that are amid another get it", func() bool {
		return h.node("d").Spec.Config[0].Files[0].Content == "one" && h.node("z").Spec.Config[0].Files[0].Content == "one"
	})
	for _, n := range append(names, "z") {
		h.agents.Delete(n)
		h.editNode(n, func(o *resource.Node) { o.Metadata.Annotations["says"] = "done" })
	}
	for _, n := range append(names, "z") {
		h.untilMotd(n, "one")
	}
}

func TestAHaltedRolloutNamesNodesThatCameBackFromAPause(t *testing.T) {
	h := newTestHub(t)
	for _, n := range []string{"n1", "n2", "n3"} {
		h.makeNode(n, "site=a")
	}
	h.makeFleet("a", "site=a", "one", func(f *resource.Fleet) {
		f.Spec.RolloutPolicy = &resource.RolloutPolicy{
			SuccessThreshold: "100%", DeviceSelection: &resource.DeviceSelection{Strategy: "BatchSequence", Sequence: []resource.RolloutBatch{{Limit: "1"}}},
		}
	})
	for _, n := range []string{"n1", "n2", "n3"} {
		h.untilMotd(n, "one")
	}
	h.editNode("n3", func(n *resource.Node) { n.Metadata.Labels["fleet-controller"] = "paused" })
	h.untilOwner("n3", "")
	h.editNode("n3", func(n *resource.Node) { n.Spec = motdSpec("by hand") })
	h.fail.Store("n1", "two")
	h.editFleet("a", func(f *resource.Fleet) { f.Spec.Template.Spec = motdSpec("two") })
	message := func() string {
		r := h.fleet("a").Status.Rollout
		if r == nil || r.Reason != "Halted" {
			return ""
		}
		return r.Message
	}
	h.until("it has halted", func() bool { return message() != "" })
	require.NotContains(t, message(), "no version of the fleet")
	h.editNode("n3", func(n *resource.Node) { delete(n.Metadata.Labels, "fleet-controller") })
	h.until("the fleet names it", func() bool {
		return strings.Contains(message(), "1 with a spec that is of no version of the fleet, until a-0000002 is given: n3")
	})
	h.fail.Delete("n1")
	h.editNode("n1", func(n *resource.Node) { n.Metadata.Labels["again"] = "1" })
	h.untilMotd("n3", "two")
	h.until("it says no more of it", func() bool { return !strings.Contains(h.fleet("a").Status.Rollout.Message, "n3") })
}
