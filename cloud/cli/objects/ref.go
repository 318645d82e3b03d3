// SPDX-License-Identifier: Apache-2.0

package objects

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/edgebus/edgebus/cloud/cli/access"
	"github.com/edgebus/edgebus/cloud/cli/exitcode"
	"github.com/edgebus/edgebus/cloud/cli/printer"
	"github.com/edgebus/edgebus/cloud/client"
	"github.com/edgebus/edgebus/topics"
)

// Commands are those on objects.
func Commands() []*cobra.Command {
	return []*cobra.Command{
		newGet(), newWatch(), newDescribe(), newEvents(), newWait(), newExplain(), newKinds(),
		newApply(), newCreate(), newDiff(), newEdit(), newLabel(), newAnnotate(), newDelete(), newExport(),
	}
}

// objectRef is a kind, or with a name one object of it.
type objectRef struct {
	kind            client.Kind
	namespace, name string
}

const usageTargets = "a kind is needed, and perhaps names: KIND [NAME…], KIND/NAME… or KIND/NAMESPACE/NAME…, such as devices, or device lamp"

// parseTargets reads KIND [NAME…], KIND,KIND… or KIND/NAME….
func parseTargets(ctx context.Context, h *access.Hub, args []string) (all []objectRef, err error) {
	if len(args) == 0 {
		return nil, exitcode.Errorf(exitcode.Misused, "%s", usageTargets)
	}
	add := func(kind, name string) error {
		if strings.Contains(name, "/") || name == "." || name == ".." {
			return exitcode.Errorf(exitcode.Misused, "%q can't be a name: it is %s; an object of another namespace is KIND/NAMESPACE/NAME", name, topics.NameRule())
		}
		k, err := h.Kind(ctx, kind)
		all = append(all, objectRef{k, h.NamespaceOf(k), name})
		return err
	}
	if strings.Contains(args[0], "/") {
		for _, arg := range args {
			parts := strings.Split(arg, "/")
			if len(parts) < 2 || len(parts) > 3 || slices.Contains(parts, "") {
				return nil, exitcode.Errorf(exitcode.Misused, "%q: %s", arg, usageTargets)
			}
			if err := add(parts[0], parts[len(parts)-1]); err != nil {
				return nil, err
			}
			if last := &all[len(all)-1]; len(parts) == 3 && last.kind.Namespaced {
				last.namespace = parts[1]
			}
		}
		return all, nil
	}
	kinds := strings.Split(args[0], ",")
	if args[0] == "all" && len(args) == 1 {
		known, err := h.Kinds(ctx)
		if err != nil {
			return nil, err
		}
		kinds = nil
		for _, k := range known {
			if slices.Contains(k.Categories, "all") {
				kinds = append(kinds, k.Qualified())
			}
		}
	}
	if len(kinds) > 1 && len(args) > 1 {
		return nil, exitcode.Errorf(exitcode.Misused, "names are for one kind: %s", usageTargets)
	}
	names := args[1:]
	if len(names) == 0 {
		names = []string{""} // all of them
	}
	for _, kind := range kinds {
		for _, name := range names {
			if err := add(kind, name); err != nil {
				return nil, err
			}
		}
	}
	return all, nil
}

func newKinds() *cobra.Command {
	var h access.Hub
	cmd := &cobra.Command{
		Use:   "kinds",
		Short: "List the kinds of objects that the hub serves",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			all, err := h.Kinds(cmd.Context())
			if err != nil {
				return err
			}
			rows := [][]string{{"KIND", "NAMES", "APIVERSION", "NAMESPACED"}}
			for _, k := range all {
				names := append([]string{k.Plural, cmp.Or(k.Singular, k.Plural)}, k.Short...)
				rows = append(rows, []string{k.Name, strings.Join(names, ", "), k.APIVersion(), fmt.Sprint(k.Namespaced)})
			}
			return new(printer.AlignedRows).Write(cmd.OutOrStdout(), rows)
		},
	}
	h.Register(cmd)
	return cmd
}

// completeObjects offers kinds, then names of objects: at most so many arguments, -1 for any number.
func completeObjects(h *access.Hub, most int) access.CompletionFunc {
	return func(cmd *cobra.Command, args []string, toComplete string) ([]string, cobra.ShellCompDirective) {
		if len(args) > 0 && !strings.Contains(args[0], "/") {
			return h.CompleteNames(args[0], most)(cmd, args, toComplete)
		}
		return h.CompleteArguments(most, func(ctx context.Context) []string {
			if kind, _, named := strings.Cut(toComplete, "/"); named {
				return h.ObjectNames(ctx, kind, kind+"/")
			}
			all, err := h.Kinds(ctx)
			if err != nil {
				return nil
			}
			var names []string
			for _, k := range client.Canonical(all) {
				names = append(names, k.Plural)
			}
			return names
		})(cmd, args, toComplete)
	}
}
