// SPDX-License-Identifier: Apache-2.0

package objects

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/edgebus/edgebus/cloud/cli/access"
	"github.com/edgebus/edgebus/cloud/cli/exitcode"
	"github.com/edgebus/edgebus/cloud/cli/printer"
	"github.com/edgebus/edgebus/cloud/cli/terminal"
	"github.com/edgebus/edgebus/cloud/client"
	"github.com/edgebus/edgebus/topics/resource"
)

// eventsOptions are the flags of edgebus events, and what is printed.
type eventsOptions struct {
	access.Hub
	about, output string
	types         []string
	all, watch    bool
	out, errs     io.Writer

	which   client.ListOptions
	grid    printer.AlignedRows
	headed  bool
	objects []client.Object // to be printed as json or yaml
}

func newEvents() *cobra.Command {
	o := &eventsOptions{}
	cmd := &cobra.Command{
		Use:   "events",
		Short: "Show what has happened to objects",
		Long: `Show the Events of a namespace, or those about one object, the latest last. The hub keeps an Event for an hour
after it has last happened.

` + exitcode.Help,
		Example: `  edgebus events --for device/lamp
  edgebus events --for node/n1 --watch
  edgebus events -A --types Warning`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return o.run(cmd) },
	}
	o.Register(cmd)
	f := cmd.Flags()
	f.StringVar(&o.about, "for", "", "only those about this object: KIND/NAME")
	f.StringSliceVar(&o.types, "types", nil, "only those of these types: Normal, Warning")
	f.BoolVarP(&o.all, "all-namespaces", "A", false, "of all namespaces")
	f.BoolVarP(&o.watch, "watch", "w", false, "show every Event after that, until ctrl-C")
	printer.OutputFlag(cmd, &o.output, "", "table", "json", "yaml")
	_ = cmd.RegisterFlagCompletionFunc("types", cobra.FixedCompletions([]string{"Normal", "Warning"}, cobra.ShellCompDirectiveNoFileComp))
	_ = cmd.RegisterFlagCompletionFunc("for", func(cmd *cobra.Command, _ []string, toComplete string) ([]string, cobra.ShellCompDirective) {
		names, directive := completeObjects(&o.Hub, 1)(cmd, nil, toComplete)
		if !strings.Contains(toComplete, "/") {
			for i := range names {
				names[i] += "/"
			}
			directive |= cobra.ShellCompDirectiveNoSpace
		}
		return names, directive
	})
	return cmd
}

func (o *eventsOptions) run(cmd *cobra.Command) error {
	o.out, o.errs = cmd.OutOrStdout(), cmd.ErrOrStderr()
	for i, t := range o.types {
		if i := slices.IndexFunc(eventTypes, func(known string) bool { return strings.EqualFold(known, t) }); i < 0 {
			return exitcode.Errorf(exitcode.Misused, "--types: %q is neither Normal nor Warning", t)
		}
		o.types[i] = strings.ToLower(t)
	}
	ctx := cmd.Context()
	k, err := o.KindOf(ctx, resource.TypeMeta{APIVersion: "v1", Kind: "Event"})
	if err != nil {
		return err
	}
	if !o.all {
		o.which.Namespace = o.Namespace
	}
	if err := o.selectObject(ctx); err != nil {
		return err
	}
	for {
		rev, err := o.list(ctx, k)
		if err != nil || !o.watch {
			return err
		}
		err = o.Watch(ctx, k, o.which, rev, func(e client.Event) error {
			if e.Type == "DELETED" {
				return nil
			}
			return o.print([]client.Object{e.Object})
		})
		if !errors.Is(err, resource.Gone) {
			return exitcode.IgnoreEnd(err)
		}
	}
}

var eventTypes = []string{"Normal", "Warning"}

// selectObject selects the Events about one object: of the object itself if it exists, else of one of that kind and name.
func (o *eventsOptions) selectObject(ctx context.Context) error {
	if o.about == "" {
		return nil
	}
	targets, err := parseTargets(ctx, &o.Hub, []string{o.about})
	if err != nil {
		return err
	}
	t := targets[0]
	if t.name == "" {
		return exitcode.Errorf(exitcode.Misused, "--for %q: it is KIND/NAME, such as device/lamp", o.about)
	}
	o.which.Namespace = t.namespace // that of the Events of an object without one is default
	got, err := o.Object(ctx, t.kind, t.namespace, t.name)
	switch {
	case errors.Is(err, resource.NotFound):
		o.which.Fields = "involvedObject.kind=" + t.kind.Name + ",involvedObject.name=" + t.name
	case err != nil:
		return err
	default:
		o.which.Fields = "involvedObject.uid=" + got.Metadata.UID
	}
	return nil
}

// list prints the Events that there are.
func (o *eventsOptions) list(ctx context.Context, k client.Kind) (rev string, err error) {
	var all []client.Object
	rev, err = o.List(ctx, k, o.which, func(page []client.Object) error {
		all = append(all, page...)
		return nil
	})
	if err != nil {
		return "", err
	}
	times := map[string]time.Time{}
	for _, got := range all {
		var e kubernetesEvent
		if err := got.Into(&e); err != nil {
			return "", err
		}
		times[got.Metadata.UID] = e.lastSeen()
	}
	slices.SortStableFunc(all, func(a, b client.Object) int { return times[a.Metadata.UID].Compare(times[b.Metadata.UID]) })
	if err := o.print(all); err != nil {
		return "", err
	}
	switch {
	case !o.watch && o.output != "table":
		return rev, printer.Objects(o.out, o.output, o.objects, false)
	case !o.headed && o.output == "table":
		fmt.Fprintln(o.errs, "no events"+o.whereText())
	}
	return rev, nil
}

func (o *eventsOptions) whereText() string {
	switch {
	case o.about != "":
		return " about " + o.about
	case o.all:
		return ""
	}
	return " in namespace " + o.Namespace
}

// print prints Events of the types that were asked for, or collects them for a document.
func (o *eventsOptions) print(list []client.Object) error {
	now := time.Now()
	var rows [][]string
	for _, got := range list {
		var e kubernetesEvent
		if err := got.Into(&e); err != nil {
			return err
		}
		if len(o.types) > 0 && !slices.Contains(o.types, strings.ToLower(e.Type)) {
			continue
		}
		if o.output != "table" {
			if !o.watch {
				o.objects = append(o.objects, got)
				continue
			}
			if o.output == "yaml" {
				fmt.Fprintln(o.out, "---")
			}
			if err := printer.Objects(o.out, o.output, []client.Object{got}, true); err != nil {
				return err
			}
			continue
		}
		row := []string{formatSince(now, e.lastSeen()), e.Type, e.Reason, strings.ToLower(e.InvolvedObject.Kind) + "/" + e.InvolvedObject.Name, terminal.Printable(e.Message+e.Note, 300)}
		if e.Count > 1 {
			row[4] += fmt.Sprintf(" (%d times)", e.Count)
		}
		if o.all {
			row = append([]string{e.InvolvedObject.Namespace}, row...)
		}
		rows = append(rows, row)
	}
	if len(rows) > 0 && !o.headed {
		heading := []string{"LAST SEEN", "TYPE", "REASON", "OBJECT", "MESSAGE"}
		if o.all {
			heading = append([]string{"NAMESPACE"}, heading...)
		}
		rows, o.headed = append([][]string{heading}, rows...), true
	}
	return o.grid.Write(o.out, rows)
}
