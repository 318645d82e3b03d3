// SPDX-License-Identifier: Apache-2.0

package access

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"maps"
	"slices"
	"time"

	"github.com/edgebus/edgebus/cloud/cli/printer"
	"github.com/edgebus/edgebus/cloud/client"
	"github.com/edgebus/edgebus/topics/resource"
)

// RequestsByNode are the names of the EnrollmentRequests without a decision, by node.
func RequestsByNode(list []resource.EnrollmentRequest) map[string][]string {
	waiting := map[string][]string{}
	for _, er := range list {
		if er.Spec.Approval == "" {
			node := cmp.Or(er.Spec.NodeName, er.Metadata.Name)
			waiting[node] = append(waiting[node], er.Metadata.Name)
		}
	}
	return waiting
}

// SimilarNode says which of the hub's nodes may have been meant by a name that none has; it is empty if that can't be found out.
func (p *Target) SimilarNode(ctx context.Context, name string) string {
	o, err := p.APIOptions()
	if err != nil {
		return ""
	}
	o.Timeout = 3 * time.Second
	c, err := client.New(o)
	if err != nil {
		return ""
	}
	defer c.Close()
	var list struct{ Items []resource.Node }
	if err := c.Get(ctx, "/apis/"+resource.APIVersion+"/nodes?limit=500", &list); err != nil {
		return ""
	}
	var names []string
	for _, n := range list.Items {
		names = append(names, n.Metadata.Name)
	}
	return resource.DidYouMean(name, names)
}

// OfflineNodes returns which of the nodes are offline, and since when. The values of their devices on the hub are from that time, until
// it says after a while (30 s) that it is unknown. A node that may not be read is left out.
func (h *Hub) OfflineNodes(ctx context.Context, nodes []string) map[string]time.Time {
	since := map[string]time.Time{}
	for _, name := range nodes {
		var n resource.Node
		if _, err := h.ReadObject(ctx, resource.KindNode, name, &n); err != nil {
			continue
		}
		if c, ok := FindCondition(n.Status.Conditions, resource.ConditionReady); ok && c.Status == "False" {
			since[name] = c.LastTransitionTime
		}
	}
	return since
}

// FindCondition finds the condition of a type.
func FindCondition(list []resource.Condition, kind string) (c resource.Condition, ok bool) {
	i := slices.IndexFunc(list, func(c resource.Condition) bool { return c.Type == kind })
	if i < 0 {
		return c, false
	}
	return list[i], true
}

const mostOffline = 20 // nodes that are asked about

// PrintOffline prints after a table of devices which of their nodes are offline, because the values of those devices may be old.
func (h *Hub) PrintOffline(ctx context.Context, errs io.Writer, nodes []string) {
	nodes = slices.DeleteFunc(slices.Clone(nodes), func(name string) bool { return name == "" || name == "<none>" })
	slices.Sort(nodes)
	nodes = slices.Compact(nodes)
	since := h.OfflineNodes(ctx, nodes[:min(len(nodes), mostOffline)])
	for _, name := range slices.Sorted(maps.Keys(since)) {
		fmt.Fprintf(errs, "! node %s has been offline for %s: what is shown of its devices is as of then\n", name, printer.Age(time.Since(since[name])))
	}
}
