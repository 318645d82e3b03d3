// SPDX-License-Identifier: Apache-2.0

package access

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/edgebus/edgebus/cloud/cli/exitcode"
	"github.com/edgebus/edgebus/cloud/cli/printer"
	"github.com/edgebus/edgebus/cloud/client"
	"github.com/edgebus/edgebus/topics/resource"
)

// ErrStopWatch ends a watch that has seen enough.
var ErrStopWatch = errors.New("seen")

// Hub is a command's access to the hub's API.
type Hub struct {
	Flags
	NamespaceGiven bool // the namespace, by a flag
	Timeout        time.Duration
	*client.Client
}

// Register registers the flags of a command that asks the hub, and has it open the client before it runs. --timeout bounds all of it.
func (h *Hub) Register(cmd *cobra.Command) {
	h.Flags.Register(cmd, "server", "")
	h.RegisterNamespace(cmd)
	cmd.Flags().DurationVar(&h.Timeout, "timeout", 0, "end after this time (default: no limit, but 30s for each answer)")
	run := cmd.RunE
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if h.Timeout < 0 {
			return exitcode.Errorf(exitcode.Misused, "--timeout is %s, and can't be negative", h.Timeout)
		}
		if err := h.open(cmd); err != nil {
			return err
		}
		if h.Timeout == 0 {
			return run(cmd, args)
		}
		ctx, cancel := context.WithTimeout(cmd.Context(), h.Timeout)
		defer cancel()
		cmd.SetContext(ctx)
		err := run(cmd, args)
		return exitcode.OfTimeout(ctx, err)
	}
}

// PerArgument has a command call f for each of its arguments until one fails. f returns the line to print when it has succeeded.
func (h *Hub) PerArgument(cmd *cobra.Command, f func(ctx context.Context, arg string) (done string, err error)) *cobra.Command {
	cmd.Args = cobra.MinimumNArgs(1)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		for _, arg := range args {
			done, err := f(cmd.Context(), arg)
			if err != nil {
				return err
			}
			fmt.Fprintln(cmd.OutOrStdout(), done)
		}
		return nil
	}
	h.Register(cmd)
	return cmd
}

// PrintList has a command print what list returns, as a table of rows, the first of which is its head, or as JSON.
func (h *Hub) PrintList(cmd *cobra.Command, list func(ctx context.Context) (all any, rows [][]string, err error)) *cobra.Command {
	var output string
	cmd.Args = cobra.NoArgs
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		all, rows, err := list(cmd.Context())
		if err != nil {
			return err
		}
		return printer.Rows(cmd.OutOrStdout(), output, all, rows)
	}
	h.Register(cmd)
	printer.OutputFlag(cmd, &output, "", "table", "json")
	return cmd
}

// WaitTime is how long --wait waits for each object without --timeout.
const WaitTime = 30 * time.Second

// WaitUsage is the help of --timeout where there is --wait.
const WaitUsage = "end after this time, with and without --wait (default: 30s for each answer, and with --wait for each object)"

// open makes the client. Nothing is sent yet.
func (h *Hub) open(cmd *cobra.Command) error {
	p, err := h.Resolve()
	if err == nil {
		err = p.Validate()
	}
	if err != nil {
		return err
	}
	h.NamespaceGiven, h.Namespace = h.Namespace != "", p.Namespace
	o, err := p.APIOptions()
	if err != nil {
		return err
	}
	o.Warn = func(text string) { printer.Warn(cmd.ErrOrStderr(), text) }
	if h.Timeout > 0 {
		o.Timeout = math.MaxInt64 // the context ends it
	}
	if h.Client, err = client.New(o); err != nil {
		return exitcode.Errorf(exitcode.Misused, "%w", err)
	}
	return nil
}

// NamespaceOf is the namespace for requests about a kind; empty if the kind has none.
func (h *Hub) NamespaceOf(k client.Kind) string {
	if k.Namespaced {
		return h.Namespace
	}
	return ""
}

// ReadObject reads an object of one of the hub's own kinds.
func (h *Hub) ReadObject(ctx context.Context, kind, name string, into any) (k client.Kind, err error) {
	if k, err = h.kindOfNamed(ctx, kind, name); err != nil {
		return k, err
	}
	got, err := h.Object(ctx, k, h.NamespaceOf(k), name)
	if err == nil {
		err = got.Into(into)
	}
	return k, err
}

// kindOfNamed is one of the hub's own kinds, for an object of that kind that a command line names alone, without it.
func (h *Hub) kindOfNamed(ctx context.Context, kind, name string) (client.Kind, error) {
	if i := strings.LastIndex(name, "/"); i >= 0 {
		return client.Kind{}, exitcode.Errorf(exitcode.Misused, "%q is no name of a %s: its name alone is wanted, such as %s", name, kind, cmp.Or(name[i+1:], name[:i]))
	}
	return h.KindOf(ctx, resource.TypeMeta{APIVersion: resource.APIVersion, Kind: kind})
}

// EachVersion calls on with an object of one of the hub's own kinds, and again after each change of it, until on fails. It returns deleted
// when the object is deleted.
func EachVersion[T any](ctx context.Context, h *Hub, kind, name string, deleted error, on func(T) error) error {
	see := func(got client.Object) error {
		var v T
		if err := got.Into(&v); err != nil {
			return err
		}
		return on(v)
	}
	k, err := h.kindOfNamed(ctx, kind, name)
	if err != nil {
		return err
	}
	for {
		got, err := h.Object(ctx, k, h.NamespaceOf(k), name)
		if err == nil {
			err = see(got)
		}
		if err != nil {
			return err
		}
		which := client.ListOptions{Namespace: h.NamespaceOf(k), Fields: "metadata.name=" + name}
		err = h.Watch(ctx, k, which, got.Metadata.ResourceVersion, func(e client.Event) error {
			if e.Type == "DELETED" {
				return deleted
			}
			return see(e.Object)
		})
		if !errors.Is(err, resource.Gone) {
			return err
		}
	}
}

// CompletionFunc offers completions of an argument.
type CompletionFunc = func(cmd *cobra.Command, args []string, toComplete string) ([]string, cobra.ShellCompDirective)

// completeTime is how long completion waits for the hub without --timeout.
const completeTime = 2 * time.Second

// mostNames bounds the names that completion offers.
const mostNames = 500

// CompleteContexts offers the names of contexts.
func CompleteContexts(_ *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
	k, err := ReadKubeconfig()
	if err != nil || len(args) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	return k.ContextNames(), cobra.ShellCompDirectiveNoFileComp
}

// CompleteFromHub asks the hub for completions. There are none if it doesn't answer.
func (h *Hub) CompleteFromHub(cmd *cobra.Command, f func(ctx context.Context) []string) ([]string, cobra.ShellCompDirective) {
	ctx, cancel := context.WithTimeout(context.Background(), cmp.Or(h.Timeout, completeTime))
	defer cancel()
	if err := h.open(cmd); err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	return f(ctx), cobra.ShellCompDirectiveNoFileComp
}

// CompleteNames offers the names of a kind's objects that are no arguments yet, as CompleteArguments does.
func (h *Hub) CompleteNames(kind string, most int) CompletionFunc {
	return h.CompleteArguments(most, func(ctx context.Context) []string { return h.ObjectNames(ctx, kind, "") })
}

// CompleteNames is the same for a command that has only the flags.
func (a *Flags) CompleteNames(kind string, most int) CompletionFunc {
	return func(cmd *cobra.Command, args []string, toComplete string) ([]string, cobra.ShellCompDirective) {
		return (&Hub{Flags: *a}).CompleteNames(kind, most)(cmd, args, toComplete)
	}
}

// CompleteEach offers what a list of the hub's has, a name for each entry, as CompleteNames does. What comes after a tab describes the name.
func CompleteEach[T any](h *Hub, path string, most int, name func(T) string) CompletionFunc {
	return h.CompleteArguments(most, func(ctx context.Context) (names []string) {
		var list []T
		if err := h.Get(ctx, path, &list); err != nil {
			return nil
		}
		for _, entry := range list {
			names = append(names, name(entry))
		}
		return names
	})
}

// CompleteArguments offers names that are no arguments yet: for at most so many arguments, -1 for any number.
func (h *Hub) CompleteArguments(most int, names func(context.Context) []string) CompletionFunc {
	return func(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
		if most >= 0 && len(args) >= most {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		return h.CompleteFromHub(cmd, func(ctx context.Context) []string {
			return slices.DeleteFunc(names(ctx), func(s string) bool {
				name, _, _ := strings.Cut(s, "\t")
				return slices.Contains(args, name)
			})
		})
	}
}

// ObjectNames are the names of a kind's objects.
func (h *Hub) ObjectNames(ctx context.Context, kind, prefix string) (names []string) {
	k, err := h.Kind(ctx, kind)
	if err != nil {
		return nil
	}
	_, _ = h.List(ctx, k, client.ListOptions{Namespace: h.NamespaceOf(k)}, func(page []client.Object) error {
		for _, o := range page {
			names = append(names, prefix+o.Metadata.Name)
		}
		if len(names) >= mostNames {
			return ErrStopWatch
		}
		return nil
	})
	return names
}
