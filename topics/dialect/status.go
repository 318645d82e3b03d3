// SPDX-License-Identifier: Apache-2.0

package dialect

import (
	"encoding/json"
	"errors"

	"github.com/edgebus/edgebus/topics/resource"
)

// withStatus returns the stored object in this form with the status of another: a write of a status changes nothing else.
func (k Kind) withStatus(sent jsonObject, old []byte) (jsonObject, error) {
	raw, err := k.Show(old)
	if err != nil {
		return nil, err
	}
	form, err := parseObject(raw)
	if err != nil {
		return nil, err
	}
	setField(form, "status", sent["status"])
	from, err := readMetadata(sent)
	if err != nil {
		return nil, err
	}
	for _, name := range []string{"name", "namespace", "uid", "resourceVersion"} {
		to, _ := form["metadata"].(jsonObject)
		setField(to, name, from.fields[name])
	}
	return form, nil
}

// keepStatus restores the parts of a status that the form can't express.
func (k Kind) keepStatus(c, prev jsonObject) error {
	form, err := convertObject(k.fromCanonical, prev)
	if err != nil {
		return err
	}
	back, err := convertObject(k.toCanonical, form)
	if err != nil {
		return err
	}
	setField(c, "status", applyDifferences("/status", c["status"], findDifferences("/status", back["status"], prev["status"])))
	if k.mergesConditions {
		return mergeConditions(c, prev)
	}
	return nil
}

// mergeConditions merges the conditions that an agent reports with those that others wrote (see resource.MergeAgentConditions).
func mergeConditions(c, prev jsonObject) error {
	type conditions struct {
		Conditions      []resource.Condition `json:"conditions,omitempty"`
		AgentConditions []string             `json:"agentConditions,omitempty"`
	}
	var said, was conditions
	if err := errors.Join(recodeJSON(c["status"], &said), recodeJSON(prev["status"], &was)); err != nil {
		return resource.Errorf(resource.Invalid, "status.conditions", "%v", err)
	}
	var merged conditions
	merged.Conditions, merged.AgentConditions = resource.MergeAgentConditions(was.Conditions, was.AgentConditions, said.Conditions)
	var fields jsonObject
	if err := recodeJSON(merged, &fields); err != nil {
		return err
	}
	status, _ := c["status"].(jsonObject)
	if status == nil {
		status = jsonObject{}
	}
	setField(status, "conditions", fields["conditions"])
	setField(status, "agentConditions", fields["agentConditions"])
	if len(status) > 0 {
		c["status"] = status
	}
	return nil
}

// recodeJSON is a value in another Go type, by its JSON.
func recodeJSON(from, to any) error {
	raw, err := json.Marshal(from)
	if err != nil {
		return err
	}
	return unmarshalNumbers(raw, to)
}
