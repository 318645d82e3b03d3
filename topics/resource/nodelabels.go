// SPDX-License-Identifier: Apache-2.0

package resource

import (
	"maps"
	"slices"
	"strconv"
	"strings"
)

// SystemFields are the names of the fields from which a label can be derived: those of SystemInfo, and osImage, which is the
// image of the OSStatus.
var SystemFields = []string{"architecture", "operatingSystem", "kernel", "hostname", "machineID", "bootID", "cpus", osImageField}

const osImageField = "osImage"

// Field returns one of SystemFields as text; empty if it is not known.
func (s SystemInfo) Field(name string) string {
	switch name {
	case "architecture":
		return s.Architecture
	case "operatingSystem":
		return s.OperatingSystem
	case "kernel":
		return s.Kernel
	case "hostname":
		return s.Hostname
	case "machineID":
		return s.MachineID
	case "bootID":
		return s.BootID
	case "cpus":
		if s.CPUs > 0 {
			return strconv.Itoa(s.CPUs)
		}
	}
	return ""
}

// LabelFromAnnotation of a Node has the labels that are derived from the system information, as key=field, separated by commas.
// It is from the node's settings at the time when it joined. LabelsGivenAnnotation has the values last derived, as key=value.
const (
	LabelFromAnnotation   = Group + "/label-from"
	LabelsGivenAnnotation = Group + "/labels-given"
)

// LabelValue converts any text to the value of a label: invalid characters become dashes, and the text is cut at 63 bytes.
func LabelValue(text string) string {
	text = strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || r == '.' || r == '_' {
			return r
		}
		return '-'
	}, text)
	return strings.Trim(text[:min(len(text), 63)], "-._")
}

// FollowSystem sets the labels that are derived from the system information, and records their values. A label that has
// another value since, or was removed, was changed by a person and is left alone. Unknown system information changes nothing.
func (n *Node) FollowSystem() {
	given := ParsePairs(n.Metadata.Annotations[LabelsGivenAnnotation])
	now := make(map[string]string)
	for key, field := range ParsePairs(n.Metadata.Annotations[LabelFromAnnotation]) {
		value := ""
		if info := n.Status.SystemInfo; info != nil {
			value = LabelValue(info.Field(field))
		}
		if n.Status.OS != nil && field == osImageField {
			value = LabelValue(n.Status.OS.Image)
		}
		before, set := given[key]
		has, labelled := n.Metadata.Labels[key]
		if set {
			now[key] = before
		}
		if value == "" || CheckLabels("", map[string]string{key: ""}) != nil || (set != labelled || has != before) && (!labelled || has != value) {
			continue
		}
		if n.Metadata.Labels == nil {
			n.Metadata.Labels = make(map[string]string)
		}
		n.Metadata.Labels[key], now[key] = value, value
	}
	if len(now) > 0 {
		n.Metadata.Annotations[LabelsGivenAnnotation] = FormatPairs(now)
	} else {
		delete(n.Metadata.Annotations, LabelsGivenAnnotation)
	}
}

// ParsePairs reads key=value texts, separated by commas. Anything else in the text is ignored.
func ParsePairs(text string) map[string]string {
	pairs := make(map[string]string)
	for part := range strings.SplitSeq(text, ",") {
		if key, value, ok := strings.Cut(strings.TrimSpace(part), "="); ok {
			pairs[key] = value
		}
	}
	return pairs
}

// FormatPairs returns a text that ParsePairs reads, sorted by key.
func FormatPairs(pairs map[string]string) string {
	var list []string
	for _, key := range slices.Sorted(maps.Keys(pairs)) {
		list = append(list, key+"="+pairs[key])
	}
	return strings.Join(list, ",")
}
