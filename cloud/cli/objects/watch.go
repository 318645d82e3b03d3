// SPDX-License-Identifier: Apache-2.0

package objects

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/edgebus/edgebus/cloud/cli/exitcode"
	"github.com/edgebus/edgebus/cloud/cli/terminal"
	"github.com/edgebus/edgebus/cloud/client"
	"github.com/edgebus/edgebus/topics/resource"
)

func newWatch() *cobra.Command {
	o := &getOptions{watch: true}
	cmd := &cobra.Command{
		Use:   "watch KIND [NAME]",
		Short: "Show objects, and every change of them, until ctrl-C",
		Long: `Show objects like edgebus get, and then each again whenever it changes, with the time and the values
that changed. If the hub restarts meanwhile, the watch continues without a gap.`,
		Example:           "  edgebus watch devices\n  edgebus watch device lamp -o json | jq .status.state",
		Args:              cobra.ArbitraryArgs,
		ValidArgsFunction: completeObjects(&o.Hub, 2),
		RunE:              func(cmd *cobra.Command, args []string) error { return o.run(cmd, args) },
	}
	o.register(cmd)
	return cmd
}

// watchObjects shows the objects, and then every change, until it is interrupted.
func (o *getOptions) watchObjects(ctx context.Context, t objectRef) error {
	shown := lastValues{}
	for {
		n := 0
		rev, err := o.Tables(ctx, t.kind, o.options(t), func(page client.Table) error {
			n += len(page.Rows)
			for _, row := range page.Rows {
				shown.changeNote("", row.Object, time.Now())
			}
			return o.showAtOnce(t.kind, page, "")
		})
		if err == nil && n == 0 && t.name != "" { // the answer for one object says which may have been meant
			_, err = o.Object(ctx, t.kind, t.namespace, t.name)
		}
		if err == nil {
			err = o.WatchTables(ctx, t.kind, o.options(t), rev, func(e client.Event) error { return o.printChange(t.kind, e, shown) })
		}
		if !errors.Is(err, resource.Gone) {
			return exitcode.IgnoreEnd(err)
		}
	}
}

// printChange shows a change.
func (o *getOptions) printChange(k client.Kind, e client.Event, shown lastValues) error {
	note := ""
	if o.isTable() && len(e.Table.Rows) == 1 {
		var changed bool
		if note, changed = shown.changeNote(e.Type, e.Table.Rows[0].Object, time.Now()); !changed {
			e.Table.Rows = nil // but its columns count
		}
	}
	if e.Type == "DELETED" && !o.isTable() {
		return nil // the deleted object would look like an existing one
	}
	return o.showAtOnce(k, *e.Table, note)
}

// valuesByPath are an object's values by their paths, without those that change with each other value, such as times and versions.
func valuesByPath(o client.Object) (map[string]string, error) {
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
		tree["data"] = hideSecrets(tree["data"])
	}
	addValues(all, "", tree)
	return all, nil
}

// volatileFields are fields of a status that change when others do.
var volatileFields = []string{
	"ts", "ver", "for", "basedOn", "desiredVer", "origin", "lastTransitionTime", "lastSeen", "observedGeneration", "reason", "message",
}

func addValues(all map[string]string, path string, v any) {
	switch v := v.(type) {
	case map[string]any:
		ours := strings.HasPrefix(path, "status") && path != "status.twin" // elsewhere users choose names
		for field, below := range v {
			if ours && slices.Contains(volatileFields, field) {
				continue
			}
			addValues(all, strings.TrimPrefix(path+"."+field, "."), below)
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
			addValues(all, path+"."+name, below)
		}
	default:
		all[path] = fmt.Sprint(v)
	}
}

const mostChangesPrinted = 4 // of one object that are printed

// describeChanges lists the values that differ.
func describeChanges(before, after map[string]string) string {
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
			return terminal.Printable(value, 40)
		}
		name := strings.TrimSuffix(strings.TrimPrefix(path, "status.twin."), ".value")
		all = append(all, terminal.Printable(name, 80)+": "+show(old, had)+" → "+show(now, has))
	}
	if len(all) > mostChangesPrinted {
		all = append(all[:mostChangesPrinted], fmt.Sprintf("and %d more", len(all)-mostChangesPrinted))
	}
	return strings.Join(all, ", ")
}

// lastValues holds the values of objects as they were printed last.
type lastValues map[string]map[string]string

// changeNote is the last column of a watch: when the object changed, and what. changes is false if nothing did that leaves has.
func (h lastValues) changeNote(kind string, o client.Object, now time.Time) (note string, changes bool) {
	key := o.Metadata.Namespace + "/" + o.Metadata.Name
	at := now.Format(time.TimeOnly)
	if kind == "DELETED" {
		delete(h, key)
		return at + " (deleted)", true
	}
	next, err := valuesByPath(o)
	if err != nil {
		return at, true
	}
	before, known := h[key]
	h[key] = next
	if !known {
		return at + " (new)", true
	}
	what := describeChanges(before, next)
	return strings.TrimSpace(at + " " + what), what != ""
}
