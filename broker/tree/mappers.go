// SPDX-License-Identifier: Apache-2.0

package tree

import (
	"github.com/edgebus/edgebus/topics"
	"github.com/edgebus/edgebus/topics/link"
	"github.com/edgebus/edgebus/topics/resource"
)

// Mappers are those that a node's edge-owned map knows of, in order of name. read is the map's Range.
func Mappers(node string, read func(prefix string, fn func(link.Entry) bool)) (list []resource.Mapper) {
	read("mappers/", func(e link.Entry) bool {
		a, err := topics.ParseKey(node, e.Key)
		if err != nil {
			return true // of a newer core
		}
		if n := len(list); n == 0 || list[n-1].Name != a.Device {
			list = append(list, resource.Mapper{Name: a.Device})
		}
		m := &list[len(list)-1]
		switch a.Kind {
		case topics.KindMapperState:
			m.Online = string(e.Value) == resource.Online
		case topics.KindMapperProtocols:
			m.Protocols, _ = resource.ParseProtocols(e.Value) // was checked when it was written
		}
		return true
	})
	return list
}

// ProblemOf is what a mapper said is wrong with a device; nil: nothing.
func ProblemOf(device string, get func(key string) (link.Entry, bool)) *resource.Problem {
	e, ok := get(topics.Address{Kind: topics.KindProblem, Device: device}.Key())
	if !ok {
		return nil
	}
	p, err := resource.ParseProblem(e.Value)
	if err != nil {
		return nil // of a node that doesn't keep to the rules
	}
	return &p
}
