// SPDX-License-Identifier: Apache-2.0

package objects

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/url"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/edgebus/edgebus/cloud/cli/access"
	"github.com/edgebus/edgebus/cloud/cli/exitcode"
	"github.com/edgebus/edgebus/cloud/cli/printer"
	"github.com/edgebus/edgebus/cloud/client"
	"github.com/edgebus/edgebus/topics/resource"
)

// getOptions are the flags of edgebus get and watch, and what is printed.
type getOptions struct {
	access.Hub
	output, labels, fields, sortBy string
	all, watch, rendered           bool
	withoutHeadings, showLabels    bool
	out, errs                      io.Writer

	mixed   bool                  // there are several kinds: names are printed with theirs
	table   *printer.TablePrinter // of the last kind
	nodes   []string              // of devices that were printed
	objects []client.Object       // to be printed as json or yaml
}

func newGet() *cobra.Command {
	o := &getOptions{}
	cmd := &cobra.Command{
		Use:   "get KIND [NAME…]",
		Short: "Show objects",
		Long: `Show objects of a kind: all of a namespace, those that -l selects, or some by name. Kinds have
long and short names (devices, device, dev), and several may be given, separated by commas. The hub
decides which kinds exist, and what their tables show: edgebus kinds lists them.

` + exitcode.Help,
		Example: `  edgebus get devices
  edgebus get dev lamp -o yaml
  edgebus get devices,devicemodels -A -o wide
  edgebus get all
  edgebus get nodes -l site=hall -w
  edgebus get devices -A --sort-by=.status.lastSeen --no-headers
  edgebus get device lamp -o jsonpath='{.status.twin.power.reported.value}'
  edgebus get device/lamp -o json | jq .status.twin
  edgebus get node/n1 --rendered -o yaml`,
		Args:              cobra.ArbitraryArgs,
		ValidArgsFunction: completeObjects(&o.Hub, -1),
		RunE:              func(cmd *cobra.Command, args []string) error { return o.run(cmd, args) },
	}
	cmd.Flags().BoolVarP(&o.watch, "watch", "w", false, "show every change after that, until ctrl-C")
	cmd.Flags().StringVar(&o.sortBy, "sort-by", "", "sort by a field, such as .status.lastSeen: numbers as such, all else as text, and what lacks it first")
	cmd.Flags().BoolVar(&o.rendered, "rendered", false, "of a node: what it is to apply, as its spec was rendered, as yaml unless -o says json")
	o.register(cmd)
	return cmd
}

func (o *getOptions) register(cmd *cobra.Command) {
	o.Register(cmd)
	f := cmd.Flags()
	printer.OutputFlag(cmd, &o.output, "name prints what other commands take as arguments", "table", "wide", "json", "yaml", "name", jsonPathPrefix+"TEMPLATE")
	f.StringVarP(&o.labels, "selector", "l", "", "only objects with these labels: room=hall,floor!=2")
	f.StringVar(&o.fields, "field-selector", "", "only objects with these fields: spec.nodeName=n1")
	f.BoolVarP(&o.all, "all-namespaces", "A", false, "of all namespaces")
	f.BoolVar(&o.withoutHeadings, "no-headers", false, "a table without its first line")
	f.BoolVar(&o.showLabels, "show-labels", false, "a table with the labels in its last column")
}

func (o *getOptions) run(cmd *cobra.Command, args []string) error {
	o.out, o.errs = cmd.OutOrStdout(), cmd.ErrOrStderr()
	if path, ok := strings.CutPrefix(o.output, jsonPathPrefix); ok {
		if _, err := parsePath(path); err != nil {
			return exitcode.Errorf(exitcode.Misused, "-o %s: it looks like jsonpath='{.items[*].metadata.name}' (%w)", o.output, err)
		}
	}
	targets, err := parseTargets(cmd.Context(), &o.Hub, args)
	if err != nil {
		return err
	}
	o.mixed = slices.ContainsFunc(targets, func(t objectRef) bool { return t.kind.Qualified() != targets[0].kind.Qualified() })
	named := targets[0].name != ""
	switch {
	case o.rendered:
		return o.printRendered(cmd.Context(), targets)
	case named && (o.labels != "" || o.fields != "" || o.all):
		return exitcode.Errorf(exitcode.Misused, "a name can't be combined with -l, --field-selector or -A")
	case o.sortBy != "" && (o.watch || named || o.mixed):
		return exitcode.Errorf(exitcode.Misused, "--sort-by is for all objects of one kind, without -w")
	case o.watch && len(targets) > 1:
		return exitcode.Errorf(exitcode.Misused, "one kind can be watched at a time, or one object")
	case o.watch:
		return o.watchObjects(cmd.Context(), targets[0])
	case named:
		err = o.getNamed(cmd.Context(), targets)
	default:
		err = o.getAll(cmd.Context(), targets)
	}
	if err != nil && len(o.objects) == 0 {
		return err
	}
	o.PrintOffline(cmd.Context(), o.errs, o.nodes)
	if !named && targets[0].kind.Plural == "nodes" {
		o.printWaiting(cmd.Context())
	}
	if !o.isTable() && o.output != "name" {
		err = errors.Join(o.print(o.objects, named && len(targets) == 1), err)
	}
	return err
}

// printRendered prints what nodes are to apply.
func (o *getOptions) printRendered(ctx context.Context, targets []objectRef) error {
	format := o.output
	if format == "table" {
		format = "yaml"
	}
	for _, t := range targets {
		host := t.kind.Plural == "nodes" || t.kind.Group == "flightctl.io" && t.kind.Plural == "devices"
		if t.name == "" || !host || o.watch || format != "yaml" && format != "json" {
			return exitcode.Errorf(exitcode.Misused, "--rendered is for nodes by name, without -w, with -o yaml or json: edgebus get node/n1 --rendered")
		}
	}
	for _, t := range targets {
		var spec client.Object
		if err := o.Get(ctx, "/apis/"+resource.APIVersion+"/nodes/"+url.PathEscape(t.name)+"/rendered", &spec); err != nil {
			return err
		}
		var pending struct{ Kind, Message string }
		if err := spec.Into(&pending); err == nil && pending.Kind == "Status" { // 202
			return resource.Errorf(resource.Unavailable, "", "node %s: %s", t.name, pending.Message)
		}
		o.objects = append(o.objects, spec)
	}
	return printer.Objects(o.out, format, o.objects, len(targets) == 1)
}

// printWaiting prints which nodes wait for approval. If that can't be found out, it prints nothing.
func (o *getOptions) printWaiting(ctx context.Context) {
	if !o.isTable() {
		return
	}
	var list struct{ Items []resource.EnrollmentRequest }
	_ = o.Get(ctx, "/apis/"+resource.APIVersion+"/enrollmentrequests", &list)
	waiting := access.RequestsByNode(list.Items)
	for _, node := range slices.Sorted(maps.Keys(waiting)) {
		fmt.Fprintln(o.errs, printer.WaitingText(node, waiting[node]))
	}
}

// show prints objects of a kind: rows of a table, or their names. Those for json and yaml are collected.
func (o *getOptions) show(k client.Kind, t client.Table, note string) error {
	switch {
	case o.isTable():
		if o.table == nil || o.table.Kind.Qualified() != k.Qualified() {
			if o.table != nil && o.table.Headed && len(t.Rows) > 0 && !o.withoutHeadings {
				fmt.Fprintln(o.out)
			}
			o.table = &printer.TablePrinter{Out: o.out, Wide: o.output == "wide", Namespaces: o.all && k.Namespaced, Kind: k, Named: o.mixed, Labels: o.showLabels, WithoutHeading: o.withoutHeadings}
		}
		err := o.table.Print(t, note)
		o.nodes, o.table.Nodes = append(o.nodes, o.table.Nodes...), nil
		return err
	case o.output == "name":
		for _, r := range t.Rows {
			name := r.Object.Metadata.Name
			if o.all && k.Namespaced {
				name = r.Object.Metadata.Namespace + "/" + name
			}
			if _, err := fmt.Fprintln(o.out, printer.Label(k, name)); err != nil {
				return err
			}
		}
	default:
		for _, r := range t.Rows {
			o.objects = append(o.objects, r.Object)
		}
	}
	return nil
}

// showAtOnce is like show, but prints each object at once, as a document of its own.
func (o *getOptions) showAtOnce(k client.Kind, t client.Table, note string) error {
	err := o.show(k, t, note)
	for _, got := range o.objects {
		if o.output == "yaml" {
			fmt.Fprintln(o.out, "---")
		}
		err = errors.Join(err, o.print([]client.Object{got}, true))
	}
	o.objects = nil
	return err
}

func (o *getOptions) isTable() bool { return o.output == "table" || o.output == "wide" }

// getNamed shows objects by name. An error is printed for each that can't be read.
func (o *getOptions) getNamed(ctx context.Context, targets []objectRef) error {
	var count exitcode.Failures
	for i, t := range targets {
		row, err := o.Row(ctx, t.kind, t.namespace, t.name, !o.isTable())
		if err == nil {
			err = o.show(t.kind, row, "")
		}
		if len(targets) == 1 && err != nil {
			return err
		}
		if err != nil {
			count.AddFailure(o.errs, "", err)
			if exitcode.Interrupted(ctx, o.errs, len(targets)-i-1) {
				break
			}
		}
	}
	return count.Err()
}

// getAll shows all objects of each kind.
func (o *getOptions) getAll(ctx context.Context, targets []objectRef) error {
	for _, t := range targets {
		n := 0
		var sorted client.Table
		_, err := o.Tables(ctx, t.kind, o.options(t), func(page client.Table) error {
			n += len(page.Rows)
			if o.sortBy == "" {
				return o.show(t.kind, page, "")
			}
			if len(page.Columns) > 0 {
				sorted.Columns = page.Columns
			}
			sorted.Rows = append(sorted.Rows, page.Rows...)
			return nil
		})
		if err == nil && o.sortBy != "" {
			if err = sortRows(sorted.Rows, o.sortBy); err == nil {
				err = o.show(t.kind, sorted, "")
			}
		}
		if err != nil {
			return err
		}
		if n == 0 && o.isTable() && len(targets) < mostEmptyKinds {
			o.printNone(t.kind)
		}
	}
	return nil
}

// mostEmptyKinds is the number of kinds from which on kinds without objects are not listed one by one.
const mostEmptyKinds = 5

// printNone prints that there are no objects, on standard error, because programs read standard output.
func (o *getOptions) printNone(k client.Kind) {
	where := ""
	if k.Namespaced && !o.all {
		where = " in namespace " + o.Namespace
	}
	if o.labels != "" || o.fields != "" {
		where += " that " + strings.Trim(o.labels+" "+o.fields, " ") + " selects"
	}
	fmt.Fprintf(o.errs, "no %s%s\n", k.Plural, where)
}

func (o *getOptions) options(t objectRef) client.ListOptions {
	lo := client.ListOptions{Labels: o.labels, Fields: o.fields, Whole: o.watch || o.sortBy != "" || !o.isTable() && o.output != "name"}
	if !o.all {
		lo.Namespace = t.namespace
	}
	if t.name != "" {
		lo.Fields = "metadata.name=" + t.name
	}
	return lo
}
