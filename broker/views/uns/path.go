// SPDX-License-Identifier: Apache-2.0

package uns

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/edgebus/edgebus/topics/resource"
)

// PathLevels are the levels of the namespace.
type PathLevels struct {
	Root   string   // the first level
	Labels []string // the labels that the levels after it have the values of
	Name   string   // the label that names the Device at the last level; a Device without it is there under its own name
}

// DefaultLevels are those of ISA-95.
func DefaultLevels() PathLevels {
	return PathLevels{Root: "uns", Labels: []string{"enterprise", "site", "area", "line", "cell"}, Name: "device"}
}

// Path is where a Device is. A label of the Device goes before that of its node, and a level whose label neither has is left out.
func (l PathLevels) Path(node map[string]string, d *resource.Device) string {
	levels := []string{l.Root}
	for _, label := range l.Labels {
		if value := cmp.Or(d.Metadata.Labels[label], node[label]); value != "" {
			levels = append(levels, levelText(value))
		}
	}
	return strings.Join(append(levels, levelText(cmp.Or(d.Metadata.Labels[l.Name], d.Metadata.Name))), "/")
}

// levelText makes a level of a topic from a label's value.
func levelText(value string) string {
	return strings.Map(func(r rune) rune {
		if r == '/' || r == '+' || r == '#' || r == 0 {
			return '_'
		}
		return r
	}, value)
}

// Finding is what a check says of a Device.
type Finding struct {
	Device  string `json:"device"`
	Path    string `json:"path"`
	Problem string `json:"problem"`
}

// Check says which of the Devices are outside of the levels, because a label is missing, and which have one path. labels are those of a node.
func (l PathLevels) Check(devices []resource.Device, labels func(node string) map[string]string) (list []Finding) {
	slices.SortStableFunc(devices, func(a, b resource.Device) int {
		return cmp.Or(cmp.Compare(createdAt(a), createdAt(b)), strings.Compare(keyOf(a), keyOf(b)))
	})
	shown := map[string]string{}
	for _, d := range devices {
		node := labels(d.Spec.NodeName)
		path, name := l.Path(node, &d), cmp.Or(d.Metadata.Namespace, resource.DefaultNamespace)+"/"+d.Metadata.Name
		var missing []string
		for _, label := range l.Labels {
			if cmp.Or(d.Metadata.Labels[label], node[label]) == "" {
				missing = append(missing, label)
			}
		}
		if len(missing) > 0 {
			list = append(list, Finding{name, path, fmt.Sprintf("neither the Device nor its node has the label %s", strings.Join(missing, ", nor "))})
		}
		if other, there := shown[path]; there {
			list = append(list, Finding{name, path, "the path is that of the Device " + other + ", which was made earlier: this one isn't shown"})
			continue
		}
		shown[path] = name
	}
	return list
}

func createdAt(d resource.Device) int64 {
	if d.Metadata.CreationTimestamp == nil {
		return 0
	}
	return d.Metadata.CreationTimestamp.UnixNano()
}

func keyOf(d resource.Device) string { return d.Spec.NodeName + "/" + d.Metadata.Name }
