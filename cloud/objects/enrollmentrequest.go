// SPDX-License-Identifier: Apache-2.0

package objects

import (
	"cmp"
	"context"
	"encoding/json"
	"slices"
	"strings"

	"github.com/edgebus/edgebus/cloud/store"
	"github.com/edgebus/edgebus/topics/resource"
)

// validateEnrollment checks an EnrollmentRequest and, when it is approved, that its node takes no other's place unasked.
func validateEnrollment(ctx context.Context, r store.Reader, old, next any) error {
	er, approved := next.(*resource.EnrollmentRequest), false
	if err := er.Validate(); err != nil {
		return err
	}
	if prev, ok := old.(*resource.EnrollmentRequest); ok {
		if err := er.CheckUpdate(*prev); err != nil {
			return err
		}
		approved = prev.Spec.Approval == resource.Approved
	}
	if er.Spec.SignerName != "" || er.Spec.Approval != resource.Approved || approved || er.Spec.Replace {
		return nil
	}
	node := cmp.Or(er.Spec.NodeName, er.Metadata.Name)
	csr, err := resource.ParseCSR(er.Spec.CSR, node)
	if err != nil {
		return err
	}
	holder, err := ReadJoinedNode(ctx, r, node)
	if err != nil || !holder.Joined() || holder.Key == csr.Key {
		return err
	}
	return resource.Errorf(resource.Invalid, "spec.approval", "a node %s has joined already, at %s, with another key: the sender of this request would replace it. "+
		"The fingerprint of its key is %s; if that is the node's, approve it with spec.replace: true (edgebus approve %s --replace)", node, holder.At, csr.Key, er.Metadata.Name)
}

// JoinedNode is the node that has a name: when it joined, and the fingerprint of its key.
type JoinedNode struct{ At, Key string }

// Joined reports whether there is such a node.
func (h JoinedNode) Joined() bool { return h.Key != "" }

// ReadJoinedNode returns the node that has a name. One whose certificates were revoked has it no more.
func ReadJoinedNode(ctx context.Context, r store.Reader, name string) (h JoinedNode, err error) {
	o, err := r.Get(ctx, store.Key{Kind: resource.KindNode, Name: name})
	if err != nil {
		return h, store.IgnoreNotFound(err)
	}
	var n resource.Node
	if err := json.Unmarshal(o.Data, &n); err != nil {
		return h, err
	}
	if len(o.Status) > 0 {
		if err := json.Unmarshal(o.Status, &n.Status); err != nil {
			return h, err
		}
	}
	revoked := slices.ContainsFunc(n.Status.Conditions, func(c resource.Condition) bool {
		return c.Type == resource.ConditionRevoked && c.Status == "True"
	})
	if !revoked {
		h.At, h.Key, _ = strings.Cut(n.Metadata.Annotations[resource.JoinedAnnotation], " ")
	}
	return h, nil
}
