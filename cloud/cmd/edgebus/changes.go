package main

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/edgebus/edgebus/cloud/client"
)

// leaves are an object's values by their paths, but for those that say when and in which version the others changed.
func leaves(o client.Object) (map[string]string, error) {
	tree, err := o.Tree()
	if err != nil {
		return nil, err
	}
	all := map[string]string{}
	if meta, ok := tree["metadata"].(map[string]any); ok {
		kept := map[string]any{}
		for _, field := range []string{"labels", "annotations", "deletionTimestamp"} {
			if v, ok := meta[field]; ok {
				kept[field] = v
			}
		}
		if notes, ok := kept["annotations"].(map[string]any); ok {
			delete(notes, client.LastApplied)
		}
		tree["metadata"] = kept
	}
	if tree["kind"] == "Secret" {
		tree["data"] = hidden(tree["data"])
	}
	addLeaves(all, "", tree)
	return all, nil
}

func addLeaves(all map[string]string, path string, v any) {
	switch v := v.(type) {
	case map[string]any:
		for field, below := range v {
			switch field {
			case "ts", "ver", "for", "basedOn", "desiredVer", "origin", "lastTransitionTime", "lastSeen", "observedGeneration", "reason", "message":
				if path != "" {
					continue
				}
			}
			addLeaves(all, strings.TrimPrefix(path+"."+field, "."), below)
		}
	case []any:
		for i, below := range v {
			name := fmt.Sprint(i)
			if m, ok := below.(map[string]any); ok {
				for _, key := range []string{"name", "type"} {
					if text, ok := m[key].(string); ok {
						name = text
					}
				}
			}
			addLeaves(all, path+"."+name, below)
		}
	default:
		all[path] = fmt.Sprint(v)
	}
}

const mostChanges = 4 // of one object that are named

// changed says which values differ, and how.
func changed(before, after map[string]string) string {
	var all []string
	paths := maps.Clone(before)
	maps.Copy(paths, after)
	for _, path := range slices.Sorted(maps.Keys(paths)) {
		old, had := before[path]
		now, has := after[path]
		if old == now && had == has {
			continue
		}
		show := func(value string, there bool) string {
			if !there {
				return "–"
			}
			return printable(value, 40)
		}
		name := strings.TrimSuffix(strings.TrimPrefix(path, "status.twin."), ".value")
		all = append(all, printable(name, 80)+": "+show(old, had)+" → "+show(now, has))
	}
	if len(all) > mostChanges {
		all = append(all[:mostChanges], fmt.Sprintf("and %d more", len(all)-mostChanges))
	}
	return strings.Join(all, ", ")
}

// history remembers objects as they were shown last.
type history map[string]map[string]string

// note is what stands behind a row of a watch: when it changed, and what. told is false for a change of nothing that is told.
func (h history) note(kind string, o client.Object, now time.Time) (note string, told bool) {
	key := o.Metadata.Namespace + "/" + o.Metadata.Name
	at := now.Format(time.TimeOnly)
	if kind == "DELETED" {
		delete(h, key)
		return at + " (deleted)", true
	}
	next, err := leaves(o)
	if err != nil {
		return at, true
	}
	before, known := h[key]
	h[key] = next
	if !known {
		return at + " (new)", true
	}
	what := changed(before, next)
	return strings.TrimSpace(at + " " + what), what != ""
}
