// SPDX-License-Identifier: Apache-2.0

package cloud

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"time"

	"github.com/edgebus/edgebus/cloud/api/index"
	"github.com/edgebus/edgebus/cloud/cli/diagnosis"
	"github.com/edgebus/edgebus/cloud/store"
	"github.com/edgebus/edgebus/cloud/twin"
	"github.com/edgebus/edgebus/topics"
	"github.com/edgebus/edgebus/topics/resource"
)

// nodeDoctor says what edgebus doctor says of a node, by what the hub knows: it doesn't ask the node's core, which may not be reached from here.
func nodeDoctor(links func(node string, most int) resource.LinkReport, st store.Reader, idx *index.Index, twins *twin.Twins) func(context.Context, string) (any, error) {
	return func(ctx context.Context, node string) (any, error) {
		if !topics.ValidName(node) {
			return nil, resource.Errorf(resource.Invalid, "node", "%.100q is no node's name: %s", node, topics.NameRule())
		}
		report := links(node, 1)
		f := diagnosis.Facts{
			Node: node, HubAt: "this hub", Hub: &report, HubTime: time.Now(), CoreErr: errors.New("the hub doesn't ask the node's core: edgebus doctor on the node does"),
			Mappers: twins.Mappers(node),
		}
		found, err := idx.Find(ctx, resource.KindDevice, index.Query{Fields: []index.FieldTest{{Field: "spec.nodeName", Test: func(v string) bool { return v == node }}}})
		if err != nil {
			return nil, err
		}
		for _, key := range found.Keys {
			if d, err := storedObject[resource.Device](ctx, st, key, func(d *resource.Device) any { return &d.Status }); err == nil { // else it was deleted since
				f.Devices = append(f.Devices, d)
			}
		}
		if n, err := storedObject[resource.Node](ctx, st, store.Key{Kind: resource.KindNode, Name: node}, func(n *resource.Node) any { return &n.Status }); err == nil {
			f.Joined, _, _ = strings.Cut(n.Metadata.Annotations[resource.Group+"/joined"], " ")
			f.Conditions = n.Status.Conditions
		}
		for o, err := range store.All(ctx, st, resource.KindEnrollmentRequest, store.ListOptions{}) {
			var request resource.EnrollmentRequest
			if err != nil || json.Unmarshal(o.Data, &request) != nil {
				break
			}
			if request.Spec.Approval == "" && (request.Spec.NodeName == node || request.Spec.NodeName == "" && o.Name == node) {
				f.Waiting = append(f.Waiting, o.Name)
			}
		}
		return diagnosis.Diagnose(f), nil
	}
}

// storedObject reads an object with its status.
func storedObject[T any](ctx context.Context, st store.Reader, key store.Key, status func(*T) any) (typed T, err error) {
	o, err := st.Get(ctx, key)
	if err == nil {
		err = json.Unmarshal(o.Data, &typed)
	}
	if err == nil && len(o.Status) > 0 {
		err = json.Unmarshal(o.Status, status(&typed))
	}
	return typed, err
}
