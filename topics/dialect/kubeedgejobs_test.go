// SPDX-License-Identifier: Apache-2.0

package dialect

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// A job says how far its nodes are, in the words of its version: v1alpha2 has phases, v1alpha1 states.
func TestJobsSayHowFarTheirNodesAre(t *testing.T) {
	const rollout = `"rollout":{"run":1,"nodes":3,"pending":1,"upgrading":1,"succeeded":1}`
	nodes := `"nodes":[
		{"nodeName":"n1","history":[{"fromVersion":"v1","toVersion":"v2","operationStatus":"upgrade_success","endedAt":"2026-11-01T10:00:00Z"}]},
		{"nodeName":"n2","history":[{"fromVersion":"v1","toVersion":"v2","operationStatus":"upgrading","step":"Held","reason":"Held: waits"}]},
		{"nodeName":"n3","history":[{"operationStatus":"pending"}]}]`
	form := func(version, kind, spec, status string) jsonObject {
		k := kindOf(t, jsonObject{"apiVersion": "operations.kubeedge.io/" + version, "kind": kind})
		canonical, err := parseObject([]byte(`{"apiVersion":"edgebus.io/v1alpha1","kind":"Upgrade","metadata":{"name":"x"},"spec":` + spec + `,"status":{` + status + `}}`))
		require.NoError(t, err)
		return showForm(t, k, canonical)["status"].(jsonObject)
	}
	const version = `{"version":"v2","nodeNames":["n1","n2","n3"]}`

	s := form("v1alpha2", "NodeUpgradeJob", version, rollout+","+nodes)
	require.Equal(t, "InProgress", s["phase"])
	require.Equal(t, []any{
		jsonObject{
			"nodeName": "n1", "phase": "Successful", "time": "2026-11-01T10:00:00Z", "currentVersion": "v2", "historicVersion": "v1",
			"actionFlow": []any{jsonObject{"action": "Upgrade", "status": "True", "time": "2026-11-01T10:00:00Z"}},
		},
		jsonObject{
			"nodeName": "n2", "phase": "InProgress", "reason": "Held: waits", "currentVersion": "v1", "historicVersion": "v1",
			"actionFlow": []any{jsonObject{"action": "WaitingConfirmation", "status": "Unknown", "reason": "Held: waits"}},
		},
		jsonObject{"nodeName": "n3", "phase": "Pending"},
	}, s["nodeStatus"])

	s = form("v1alpha1", "NodeUpgradeJob", version, rollout+","+nodes)
	require.Equal(t, "Upgrading", s["state"])
	require.NotContains(t, s, "phase")
	require.Equal(t, jsonObject{"nodeName": "n1", "state": "Successful", "time": "2026-11-01T10:00:00Z"}, s["nodeStatus"].([]any)[0])

	failed := `"rollout":{"run":1,"nodes":2,"failed":1,"reason":"Halted","message":"too many"},
		"nodes":[{"nodeName":"n1","history":[{"operationStatus":"upgrade_failed_rollback_success","reason":"BadSettings: no"}]},
		{"nodeName":"n2","history":[{"operationStatus":"upgrading","endedAt":"2026-11-01T10:00:00Z"}]}]`
	s = form("v1alpha2", "ConfigUpdateJob", `{"settings":{"log.level":"x"},"nodeNames":["n1","n2"]}`, failed)
	require.Equal(t, "Failure", s["phase"])
	require.Equal(t, "too many", s["reason"])
	require.Equal(t, []any{
		jsonObject{"nodeName": "n1", "phase": "Failure", "reason": "BadSettings: no", "actionFlow": []any{
			jsonObject{"action": "Update", "status": "False", "reason": "BadSettings: no"}, jsonObject{"action": "RollBack", "status": "True"},
		}},
		jsonObject{"nodeName": "n2", "phase": "Unknown", "time": "2026-11-01T10:00:00Z"},
	}, s["nodeStatus"])

	s = form("v1alpha1", "ImagePrePullJob", `{"images":["a:1"],"nodeNames":["n1"]}`, `"rollout":{"run":1,"nodes":1,"succeeded":1},
		"nodes":[{"nodeName":"n1","history":[{"operationStatus":"upgrade_success"}]}]`)
	require.Equal(t, jsonObject{"state": "Successful", "status": []any{jsonObject{"nodeStatus": jsonObject{"nodeName": "n1", "state": "Successful"}}}}, s)

	require.Nil(t, func() any {
		k := kindOf(t, jsonObject{"apiVersion": "operations.kubeedge.io/v1alpha2", "kind": "NodeUpgradeJob"})
		return showForm(t, k, jsonObject{"apiVersion": "edgebus.io/v1alpha1", "kind": "Upgrade", "metadata": jsonObject{"name": "x"}, "spec": jsonObject{"version": "v2"}})["status"]
	}(), "nothing is known yet")
}
