// SPDX-License-Identifier: Apache-2.0

package resource

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// Ready is True only if what the present spec asks for is done, and Stalled is there only while it can't be without help.
func TestReadyIsOfThePresentSpec(t *testing.T) {
	now := time.Unix(1_700_000_000, 0)
	state := func(list []Condition) string {
		ready := findCondition(list, ConditionReady)
		text := ready.Status + " " + ready.Reason
		if stalled := findCondition(list, ConditionStalled); stalled != nil {
			require.Equal(t, "True", stalled.Status)
			text += " stalled"
		}
		return text
	}

	f := &Fleet{Metadata: Meta{Generation: 2}}
	fleet := func(s RolloutStatus, conditions ...Condition) string {
		f.Status.Rollout, f.Status.Conditions = &s, append(f.Status.Conditions, conditions...)
		f.SetReady(now)
		require.Equal(t, int64(2), findCondition(f.Status.Conditions, ConditionReady).ObservedGeneration)
		return state(f.Status.Conditions)
	}
	f.SetReady(now)
	require.Equal(t, "Unknown Pending", state(f.Status.Conditions))
	require.Equal(t, "Unknown Pending", fleet(RolloutStatus{ObservedGeneration: 1, Nodes: 1, FinishedAt: "then"}), "that was another spec")
	require.Equal(t, "False Progressing", fleet(RolloutStatus{ObservedGeneration: 2, Nodes: 2, Updated: 1}))
	require.Equal(t, "False Offline", fleet(RolloutStatus{ObservedGeneration: 2, Nodes: 2, Updated: 1, Reason: "Offline"}))
	require.Equal(t, "False Halted stalled", fleet(RolloutStatus{ObservedGeneration: 2, Nodes: 2, Reason: "Halted"}))
	require.Equal(t, "False RolledBack stalled", fleet(RolloutStatus{ObservedGeneration: 2, Nodes: 2, FinishedAt: "then", RolledBackFrom: "f-2"}))
	require.Equal(t, "True RolledOut", fleet(RolloutStatus{ObservedGeneration: 2, Nodes: 2, Updated: 2, FinishedAt: "then"}))
	require.Equal(t, "True RolledOut", fleet(RolloutStatus{ObservedGeneration: 2, Nodes: 3, Updated: 2, FinishedAt: "then"}), "a node has joined since")
	failures := RolloutStatus{ObservedGeneration: 2, Nodes: 10, Updated: 9, FailedNodes: 1, FinishedAt: "then"}
	require.Equal(t, "False Failed stalled", fleet(failures), "nothing says that a node may fail")
	f.Spec.RolloutPolicy = &RolloutPolicy{SuccessThreshold: "90%"}
	require.Equal(t, "True RolledOut", fleet(failures), "the policy lets so many fail")
	require.Contains(t, findCondition(f.Status.Conditions, ConditionReady).Message, "; 1 failed")
	failures.FailedNodes, failures.Updated, failures.Reason = 2, 8, "Halted"
	require.Equal(t, "False Halted stalled", fleet(failures), "and not so many")
	f.Spec.RolloutPolicy = nil
	require.Equal(t, "False Progressing", fleet(RolloutStatus{ObservedGeneration: 2, Nodes: 2, FailedNodes: 1}))
	require.Equal(t, "True NoNodes", fleet(RolloutStatus{ObservedGeneration: 2}))
	require.Equal(t, "False NotFound", fleet(RolloutStatus{ObservedGeneration: 2}, Condition{Type: TemplateResolved, Status: "False", Reason: "NotFound", ObservedGeneration: 2}))

	u := &Upgrade{Spec: UpgradeSpec{Version: "v2.0.0", NodeNames: []string{"a", "b"}}}
	upgrade := func(s UpgradeRollout) string {
		if s.Spec == "" {
			s.Spec = u.Spec.RunOf()
		}
		u.Status.Rollout = &s
		u.SetReady(now)
		return state(u.Status.Conditions)
	}
	u.SetReady(now)
	require.Equal(t, "Unknown Pending", state(u.Status.Conditions))
	require.Equal(t, "Unknown Pending", upgrade(UpgradeRollout{Spec: "of another version", Nodes: 2, Succeeded: 2}))
	require.Equal(t, "False Progressing", upgrade(UpgradeRollout{Nodes: 2, Succeeded: 1, Upgrading: 1}))
	require.Equal(t, "False Halted stalled", upgrade(UpgradeRollout{Nodes: 2, Failed: 1, Pending: 1, Reason: "Halted"}))
	require.Equal(t, "False Failed stalled", upgrade(UpgradeRollout{Nodes: 2, Failed: 1, Succeeded: 1}))
	require.Equal(t, "True Upgraded", upgrade(UpgradeRollout{Nodes: 2, Succeeded: 2}))
	u.Spec.Aborted = true
	require.Equal(t, "False Aborted stalled", upgrade(UpgradeRollout{Nodes: 2, Succeeded: 1, Pending: 1}))

	r := &ResourceSync{Metadata: Meta{Generation: 3}}
	sync := func(generation int64, conditions ...Condition) string {
		r.Status = ResourceSyncStatus{ObservedGeneration: generation, Conditions: conditions}
		r.SetReady(now)
		return state(r.Status.Conditions)
	}
	is := func(kind, status string) Condition {
		return Condition{Type: kind, Status: status, Reason: kind + "Is" + status}
	}
	require.Equal(t, "Unknown Pending", sync(2, is("Accessible", "True"), is("ResourceParsed", "True"), is("Synced", "True")))
	require.Equal(t, "Unknown Pending", sync(3, is("Accessible", "True")))
	require.Equal(t, "False AccessibleIsFalse", sync(3, is("Accessible", "False"), is("ResourceParsed", "True"), is("Synced", "True")))
	require.Equal(t, "False SyncedIsFalse", sync(3, is("Accessible", "True"), is("ResourceParsed", "True"), is("Synced", "False")))
	require.Equal(t, "True SyncedIsTrue", sync(3, is("Accessible", "True"), is("ResourceParsed", "True"), is("Synced", "True")))
}
