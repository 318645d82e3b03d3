// SPDX-License-Identifier: Apache-2.0

package objects

import (
	"context"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/edgebus/edgebus/cloud/cli/access"
	"github.com/edgebus/edgebus/cloud/cli/exitcode"
	"github.com/edgebus/edgebus/cloud/cli/printer"
	"github.com/edgebus/edgebus/cloud/client"
	"github.com/edgebus/edgebus/topics/resource"
)

// labelOptions are the flags of edgebus label and annotate, and which of the two it is.
type labelOptions struct {
	access.Hub
	objectSelection
	field     string // of the metadata
	one, done string // what is set, and that it was
	overwrite bool
	list      bool
	dryRun    bool
	version   string
	out, errs io.Writer
}

func newLabel() *cobra.Command {
	return (&labelOptions{field: "labels", one: "label", done: "labeled"}).command("Set and remove labels of objects", "room=hall", "room-")
}

func newAnnotate() *cobra.Command {
	return (&labelOptions{field: "annotations", one: "annotation", done: "annotated"}).command("Set and remove annotations of objects", "owner=ann@example.org", "owner-")
}

func (o *labelOptions) command(short, sets, removes string) *cobra.Command {
	name := strings.TrimSuffix(o.field, "s")
	if o.field == "annotations" {
		name = "annotate"
	}
	cmd := &cobra.Command{
		Use:   name + " KIND NAME… KEY=VALUE… KEY-…",
		Short: short,
		Long: fmt.Sprintf(`Set %s of objects, as KEY=VALUE, and remove them, as KEY-. One that has another value already is only
changed with --overwrite. With --list they are printed afterwards, or without being changed.

%s`, o.field, exitcode.Help),
		Example: fmt.Sprintf(`  edgebus %[1]s device lamp %[2]s
  edgebus %[1]s devices -l room=cellar %[2]s --overwrite
  edgebus %[1]s node/n1 node/n2 %[3]s
  edgebus %[1]s device lamp --list`, name, sets, removes),
		Args:              cobra.ArbitraryArgs,
		ValidArgsFunction: completeObjects(&o.Hub, -1),
		RunE:              func(cmd *cobra.Command, args []string) error { return o.run(cmd, args) },
	}
	o.Hub.Register(cmd)
	o.register(cmd)
	f := cmd.Flags()
	f.BoolVar(&o.overwrite, "overwrite", false, "change one that has another value")
	f.BoolVar(&o.list, "list", false, "print the "+o.field)
	addDryRun(f, &o.dryRun, "have the hub check the change, and change nothing")
	f.StringVar(&o.version, "resource-version", "", "change the object only if this is its resourceVersion")
	return cmd
}

// parsePairs divides arguments into those that name objects, and what is to be set (nil: removed).
func (o *labelOptions) parsePairs(args []string) (objects []string, changes map[string]any, err error) {
	changes = map[string]any{}
	for _, arg := range args {
		key, value, sets := strings.Cut(arg, "=")
		removed, removes := strings.CutSuffix(arg, "-")
		switch {
		case !sets && !removes && len(changes) > 0:
			return nil, nil, exitcode.Errorf(exitcode.Misused, "%q comes after a %s, and is neither KEY=VALUE nor KEY-", arg, o.one)
		case !sets && !removes:
			objects = append(objects, arg)
			continue
		case !sets:
			key = removed
		}
		if _, twice := changes[key]; twice || key == "" {
			return nil, nil, exitcode.Errorf(exitcode.Misused, "%q: a key is given once, as KEY=VALUE or as KEY-", arg)
		}
		changes[key] = value
		if !sets {
			changes[key] = nil
		}
	}
	if len(changes) == 0 && !o.list {
		return nil, nil, exitcode.Errorf(exitcode.Misused, "nothing says which %s: KEY=VALUE sets one, KEY- removes one, --list prints them", o.field)
	}
	return objects, changes, nil
}

func (o *labelOptions) run(cmd *cobra.Command, args []string) error {
	o.out, o.errs = cmd.OutOrStdout(), cmd.ErrOrStderr()
	objects, changes, err := o.parsePairs(args)
	if err != nil {
		return err
	}
	all, err := o.refs(cmd.Context(), &o.Hub, objects, cmd.InOrStdin())
	if err != nil {
		return err
	}
	if o.version != "" && len(all) > 1 {
		return exitcode.Errorf(exitcode.Misused, "--resource-version is for one object")
	}
	if len(all) == 0 {
		fmt.Fprintln(o.errs, "no object is selected")
	}
	var count exitcode.Failures
	for i, ref := range all {
		if err := o.change(cmd.Context(), ref, changes); err != nil {
			if len(all) == 1 {
				return err
			}
			count.AddFailure(o.errs, printer.Label(ref.kind, ref.name)+": ", err)
			if exitcode.Interrupted(cmd.Context(), o.errs, len(all)-i-1) {
				break
			}
		}
	}
	return count.Err()
}

// values are the labels, or the annotations, of an object.
func (o *labelOptions) values(m resource.Meta) map[string]string {
	if o.field == "labels" {
		return m.Labels
	}
	return m.Annotations
}

func (o *labelOptions) change(ctx context.Context, ref objectRef, changes map[string]any) error {
	label := printer.Label(ref.kind, ref.name)
	var missing []string
	got, err := o.PatchIf(ctx, ref.kind, ref.namespace, ref.name, client.WriteOptions{DryRun: o.dryRun}, func(now client.Object) (map[string]any, error) {
		if o.version != "" && now.Metadata.ResourceVersion != o.version {
			return nil, resource.Errorf(resource.Conflict, "metadata.resourceVersion", "it is %s by now, not %s", now.Metadata.ResourceVersion, o.version)
		}
		have, set := o.values(now.Metadata), map[string]any{}
		missing = nil
		for _, key := range slices.Sorted(maps.Keys(changes)) {
			want := changes[key]
			old, there := have[key]
			switch {
			case want == nil && !there:
				missing = append(missing, key)
			case want == nil, !there:
				set[key] = want
			case old != want && !o.overwrite:
				return nil, exitcode.Errorf(exitcode.Refused, "%s: %q already has the value %q: --overwrite changes it", label, key, old)
			case old != want:
				set[key] = want
			}
		}
		if len(set) == 0 {
			return nil, nil
		}
		return map[string]any{"metadata": map[string]any{o.field: set}}, nil
	})
	if err != nil {
		return err
	}
	for _, key := range missing {
		fmt.Fprintf(o.errs, "%s %q not found.\n", o.one, key)
	}
	if len(changes) > 0 {
		fmt.Fprintf(o.out, "%s %s\n", label, o.outcome(got, changes))
	}
	if o.list {
		for _, line := range listLabels(o.values(got.After.Metadata)) {
			fmt.Fprintln(o.out, line)
		}
	}
	return nil
}

func (o *labelOptions) outcome(got client.Change, changes map[string]any) string {
	removesAll := !slices.ContainsFunc(slices.Collect(maps.Values(changes)), func(v any) bool { return v != nil })
	text := o.done
	switch {
	case got.Outcome == client.Unchanged:
		text = "not " + text
	case removesAll:
		text = "un" + text
	}
	if o.dryRun {
		text += " (dry run)"
	}
	return text
}

func listLabels(of map[string]string) (lines []string) {
	for _, key := range slices.Sorted(maps.Keys(of)) {
		if key != client.LastApplied {
			lines = append(lines, key+"="+of[key])
		}
	}
	return lines
}
