package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"github.com/edgebus/edgebus/cloud/client"
	"github.com/edgebus/edgebus/topics/resource"
)

// deleteOptions are the flags of edgebus delete.
type deleteOptions struct {
	hub
	files     []string
	recursive bool
	labels    string
	dryRun    bool
	missingOK bool
	wait      bool
	out, errs io.Writer
}

func newDelete() *cobra.Command {
	o := &deleteOptions{}
	cmd := &cobra.Command{
		Use:   "delete KIND NAME… | -f FILE",
		Short: "Delete objects",
		Long: `Delete objects by name, by label, or those that manifests describe. A device's topics go away on
its node as well. What others still need, such as a model that has devices, goes when they do.

` + exitCodes,
		Example: `  edgebus delete device lamp
  edgebus delete devices -l room=hall
  edgebus get devices -A -o name | xargs edgebus delete
  edgebus delete -f plant/ -R --ignore-not-found
  edgebus delete devicemodel dimmable-lamp --wait --timeout 1m`,
		Args:              cobra.ArbitraryArgs,
		ValidArgsFunction: completeObjects(&o.hub, -1),
		RunE:              func(cmd *cobra.Command, args []string) error { return o.run(cmd, args) },
	}
	o.flags(cmd)
	f := cmd.Flags()
	f.StringArrayVarP(&o.files, "filename", "f", nil, "file or directory with manifests, - for standard input; may be given several times")
	f.BoolVarP(&o.recursive, "recursive", "R", false, "with -f: directories in directories, too")
	f.StringVarP(&o.labels, "selector", "l", "", "objects with these labels: room=hall")
	f.BoolVar(&o.dryRun, "dry-run", false, "say what would be deleted, and change nothing")
	f.BoolVar(&o.missingOK, "ignore-not-found", false, "what isn't there is no failure")
	f.BoolVar(&o.wait, "wait", false, "wait until they are gone")
	f.Lookup("timeout").Usage = waitUsage
	return cmd
}

// doomed is an object to delete.
type doomed struct {
	kind            client.Kind
	namespace, name string
	where           string // it is described, if it is
}

func (o *deleteOptions) run(cmd *cobra.Command, args []string) error {
	o.out, o.errs = cmd.OutOrStdout(), cmd.ErrOrStderr()
	if _, typed := terminal(cmd.InOrStdin()); len(o.files)+len(args) == 0 && o.labels == "" && !typed {
		fmt.Fprintln(o.errs, "nothing to delete") // as xargs says it that was given no names
		return nil
	}
	if (len(o.files) > 0) == (len(args) > 0) {
		return withCode(misused, "say what to delete: KIND NAME…, KIND -l LABELS, or -f FILE")
	}
	if err := o.open(cmd); err != nil {
		return err
	}
	ctx := cmd.Context()
	var count tally
	list, err := o.named(ctx, args)
	if len(o.files) > 0 {
		list, err = o.described(ctx, cmd.InOrStdin(), &count)
	}
	if err != nil {
		return err
	}
	for i, d := range list {
		if err := o.delete(ctx, d); err != nil {
			if len(list) == 1 && d.where == "" {
				return err
			}
			count.fail(err)
			fmt.Fprintf(o.errs, "edgebus: %s%v\n", d.where, err)
			if noUse(ctx, o.errs, len(list)-i-1) {
				break
			}
		}
	}
	return count.err()
}

// named are the objects that the command line names or selects.
func (o *deleteOptions) named(ctx context.Context, args []string) (list []doomed, err error) {
	if len(args) == 0 {
		return nil, nil
	}
	targets, err := o.targets(ctx, args)
	if err != nil {
		return nil, err
	}
	for _, t := range targets {
		switch {
		case (t.name == "") == (o.labels == ""):
			return nil, withCode(misused, "say which %s: by name, or with -l; to delete them all, edgebus get %s -o name | xargs edgebus delete", t.kind.Plural, t.kind.Plural)
		case t.name != "":
			list = append(list, doomed{kind: t.kind, namespace: t.namespace, name: t.name})
		default:
			_, err = o.List(ctx, t.kind, client.ListOptions{Namespace: o.in(t.kind), Labels: o.labels}, func(page []client.Object) error {
				for _, got := range page {
					list = append(list, doomed{kind: t.kind, namespace: got.Metadata.Namespace, name: got.Metadata.Name})
				}
				return nil
			})
			if err == nil && len(list) == 0 {
				fmt.Fprintf(o.errs, "no %s that %s selects\n", t.kind.Plural, o.labels)
			}
		}
	}
	return list, err
}

// described are the objects of manifests, devices before their models.
func (o *deleteOptions) described(ctx context.Context, stdin io.Reader, count *tally) (list []doomed, err error) {
	manifests, err := readManifests(o.files, o.recursive, stdin)
	if err != nil {
		return nil, err
	}
	for _, group := range inOrder(manifests, true) {
		for _, m := range group {
			d := doomed{name: m.object.Metadata.Name, where: m.String() + ": "}
			err := m.err
			if err == nil {
				d.kind, err = o.KindOf(ctx, m.object.TypeMeta)
			}
			if err == nil {
				d.namespace, err = o.home(d.kind, m.object)
			}
			if errors.Is(err, context.Canceled) || codeOf(err) == unreachable {
				return nil, err // once, rather than for each
			}
			if err != nil {
				count.fail(err)
				fmt.Fprintf(o.errs, "edgebus: %s%v\n", d.where, err)
				continue
			}
			list = append(list, d)
		}
	}
	return list, nil
}

func (o *deleteOptions) delete(ctx context.Context, d doomed) error {
	left, err := o.Delete(ctx, d.kind, d.namespace, d.name, client.WriteOptions{DryRun: o.dryRun})
	switch {
	case errors.Is(err, resource.NotFound) && o.missingOK:
		return nil
	case err != nil:
		return err
	case o.dryRun:
		fmt.Fprintf(o.out, "%s deleted (dry run)\n", label(d.kind, d.name))
		return nil
	case left == nil:
		fmt.Fprintf(o.out, "%s deleted\n", label(d.kind, d.name))
		return nil
	}
	fmt.Fprintf(o.out, "%s is being deleted, and waits for %s\n", label(d.kind, d.name), strings.Join(left.Metadata.Finalizers, ", "))
	if !o.wait {
		return nil
	}
	return o.gone(ctx, d, left.Metadata)
}

var errSeen = errors.New("seen")

// gone waits until an object is no longer there.
func (o *deleteOptions) gone(ctx context.Context, d doomed, was resource.Meta) error {
	limit := cmp.Or(o.timeout, waitTime)
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	which := client.ListOptions{Namespace: d.namespace, Fields: "metadata.name=" + d.name}
	defer progress(o.errs, limit, func() string { return label(d.kind, d.name) + " to go" })()
	err := o.Watch(ctx, d.kind, which, was.ResourceVersion, func(e client.Event) error {
		if e.Type == "DELETED" {
			return errSeen
		}
		return nil
	})
	switch {
	case errors.Is(err, errSeen):
		fmt.Fprintf(o.out, "%s deleted\n", label(d.kind, d.name))
		return nil
	case errors.Is(err, context.DeadlineExceeded):
		return withCode(late, "%s is still there after %s", label(d.kind, d.name), limit)
	}
	return inTime(ctx, err)
}
