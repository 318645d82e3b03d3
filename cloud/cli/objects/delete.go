// SPDX-License-Identifier: Apache-2.0

package objects

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"github.com/edgebus/edgebus/cloud/cli/access"
	"github.com/edgebus/edgebus/cloud/cli/exitcode"
	"github.com/edgebus/edgebus/cloud/cli/printer"
	"github.com/edgebus/edgebus/cloud/cli/terminal"
	"github.com/edgebus/edgebus/cloud/client"
	"github.com/edgebus/edgebus/topics/resource"
)

// deleteOptions are the flags of edgebus delete.
type deleteOptions struct {
	access.Hub
	files     []string
	recursive bool
	labels    string
	dryRun    bool
	missingOK bool
	force     bool
	wait      bool
	out, errs io.Writer
}

func newDelete() *cobra.Command {
	o := &deleteOptions{}
	cmd := &cobra.Command{
		Use:   "delete KIND NAME… | -f FILE",
		Short: "Delete objects",
		Long: `Delete objects by name, by label, or those that manifests describe. A device's topics are cleared on
its node as well. An object that others need, such as a model that has devices, is deleted with the last of them.

` + exitcode.Help,
		Example: `  edgebus delete device lamp
  edgebus delete devices -l room=hall
  edgebus get devices -A -o name | xargs edgebus delete
  edgebus delete -f plant/ -R --ignore-not-found
  edgebus delete devicemodel dimmable-lamp --wait --timeout 1m`,
		Args:              cobra.ArbitraryArgs,
		ValidArgsFunction: completeObjects(&o.Hub, -1),
		RunE:              func(cmd *cobra.Command, args []string) error { return o.run(cmd, args) },
	}
	o.Register(cmd)
	f := cmd.Flags()
	f.StringArrayVarP(&o.files, "filename", "f", nil, "file or directory with manifests, - for standard input; may be given several times")
	f.BoolVarP(&o.recursive, "recursive", "R", false, "with -f: include subdirectories")
	f.StringVarP(&o.labels, "selector", "l", "", "objects with these labels: room=hall")
	addDryRun(f, &o.dryRun, "print what would be deleted, and change nothing")
	f.BoolVar(&o.missingOK, "ignore-not-found", false, "an object that doesn't exist is not a failure")
	f.BoolVar(&o.force, "force", false, "delete a TemplateVersion that nodes have, or that a rollout is undone with, too")
	f.BoolVar(&o.wait, "wait", false, "wait until they no longer exist")
	f.Lookup("timeout").Usage = access.WaitUsage
	return cmd
}

// deletion is an object that is to be deleted.
type deletion struct {
	kind            client.Kind
	namespace, name string
	where           string // of its manifest, if it has one
}

func (o *deleteOptions) run(cmd *cobra.Command, args []string) error {
	o.out, o.errs = cmd.OutOrStdout(), cmd.ErrOrStderr()
	if _, typed := terminal.Size(cmd.InOrStdin()); len(o.files)+len(args) == 0 && o.labels == "" && !typed {
		fmt.Fprintln(o.errs, "nothing to delete") // as from xargs without names
		return nil
	}
	if (len(o.files) > 0) == (len(args) > 0) {
		return exitcode.Errorf(exitcode.Misused, "nothing says what to delete: KIND NAME…, KIND -l LABELS, or -f FILE")
	}
	ctx := cmd.Context()
	var count exitcode.Failures
	list, err := o.namedObjects(ctx, args)
	if len(o.files) > 0 {
		list, err = o.describedObjects(ctx, cmd.InOrStdin(), &count)
	}
	if err != nil {
		return err
	}
	for i, d := range list {
		if err := o.delete(ctx, d); err != nil {
			if len(list) == 1 && d.where == "" {
				return err
			}
			count.AddFailure(o.errs, d.where, err)
			if exitcode.Interrupted(ctx, o.errs, len(list)-i-1) {
				break
			}
		}
	}
	return count.Err()
}

// namedObjects are the objects that the command line names or selects.
func (o *deleteOptions) namedObjects(ctx context.Context, args []string) (list []deletion, err error) {
	if len(args) == 0 {
		return nil, nil
	}
	targets, err := parseTargets(ctx, &o.Hub, args)
	if err != nil {
		return nil, err
	}
	for _, t := range targets {
		switch {
		case (t.name == "") == (o.labels == ""):
			return nil, exitcode.Errorf(exitcode.Misused, "say which %s: by name, or with -l; to delete them all, edgebus get %s -o name | xargs edgebus delete", t.kind.Plural, t.kind.Plural)
		case t.name != "":
			list = append(list, deletion{kind: t.kind, namespace: t.namespace, name: t.name})
		default:
			before := len(list)
			_, err := o.List(ctx, t.kind, client.ListOptions{Namespace: o.NamespaceOf(t.kind), Labels: o.labels}, func(page []client.Object) error {
				for _, got := range page {
					list = append(list, deletion{kind: t.kind, namespace: got.Metadata.Namespace, name: got.Metadata.Name})
				}
				return nil
			})
			if err != nil {
				return nil, err
			}
			if len(list) == before {
				fmt.Fprintf(o.errs, "no %s that %s selects\n", t.kind.Plural, o.labels)
			}
		}
	}
	return list, nil
}

// describedObjects are the objects of manifests, devices before their models.
func (o *deleteOptions) describedObjects(ctx context.Context, stdin io.Reader, count *exitcode.Failures) (list []deletion, err error) {
	manifests, err := readManifests(o.files, o.recursive, stdin)
	if err != nil {
		return nil, err
	}
	for _, group := range groupByRank(manifests, true) {
		for _, m := range group {
			d := deletion{name: m.object.Metadata.Name, where: m.String() + ": "}
			err := m.err
			if err == nil {
				d.kind, err = o.KindOf(ctx, m.object.TypeMeta)
			}
			if err == nil {
				d.namespace, err = manifestNamespace(&o.Hub, d.kind, m.object)
			}
			if errors.Is(err, context.Canceled) || exitcode.Of(err) == exitcode.Unreachable {
				return nil, err // once, rather than for each
			}
			if err != nil {
				count.AddFailure(o.errs, d.where, err)
				continue
			}
			list = append(list, d)
		}
	}
	return list, nil
}

func (o *deleteOptions) delete(ctx context.Context, d deletion) error {
	left, err := o.Delete(ctx, d.kind, d.namespace, d.name, client.WriteOptions{DryRun: o.dryRun, Force: o.force})
	switch {
	case errors.Is(err, resource.NotFound) && o.missingOK:
		return nil
	case err != nil:
		return err
	case o.dryRun:
		fmt.Fprintf(o.out, "%s deleted (dry run)\n", printer.Label(d.kind, d.name))
		return nil
	case left == nil:
		fmt.Fprintf(o.out, "%s deleted\n", printer.Label(d.kind, d.name))
		return nil
	}
	fmt.Fprintf(o.out, "%s is being deleted, and waits for its finalizers: %s\n", printer.Label(d.kind, d.name), strings.Join(left.Metadata.Finalizers, ", "))
	if !o.wait {
		return nil
	}
	return o.awaitDeletion(ctx, d, left.Metadata)
}

// awaitDeletion waits until an object no longer exists.
func (o *deleteOptions) awaitDeletion(ctx context.Context, d deletion, was resource.Meta) error {
	limit := cmp.Or(o.Timeout, access.WaitTime)
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	which := client.ListOptions{Namespace: d.namespace, Fields: "metadata.name=" + d.name}
	defer terminal.ShowProgress(o.errs, limit, func() string { return printer.Label(d.kind, d.name) + " to go" })()
	var err error
	for rev := was.ResourceVersion; err == nil; {
		err = o.Watch(ctx, d.kind, which, rev, func(e client.Event) error {
			if e.Type == "DELETED" {
				return access.ErrStopWatch
			}
			return nil
		})
		if !errors.Is(err, resource.Gone) {
			break
		}
		var now client.Object
		now, err = o.Object(ctx, d.kind, d.namespace, d.name)
		if errors.Is(err, resource.NotFound) || err == nil && now.Metadata.UID != was.UID {
			err = access.ErrStopWatch
		}
		rev = now.Metadata.ResourceVersion
	}
	switch {
	case errors.Is(err, access.ErrStopWatch):
		fmt.Fprintf(o.out, "%s deleted\n", printer.Label(d.kind, d.name))
		return nil
	case errors.Is(err, context.DeadlineExceeded):
		return exitcode.Errorf(exitcode.TimedOut, "%s is still there after %s", printer.Label(d.kind, d.name), limit)
	}
	return exitcode.OfTimeout(ctx, err)
}
