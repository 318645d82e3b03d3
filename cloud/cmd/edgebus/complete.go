package main

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/edgebus/edgebus/cloud/client"
	"github.com/edgebus/edgebus/topics/resource"
)

type completer = func(cmd *cobra.Command, args []string, toComplete string) ([]string, cobra.ShellCompDirective)

// completeTime is how long somebody who presses tab waits for a hub, if --timeout doesn't say.
const completeTime = 2 * time.Second

// mostNames bounds what is offered.
const mostNames = 500

func completeContexts(_ *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
	c, err := readContexts()
	if err != nil || len(args) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	return slices.Sorted(maps.Keys(c.Places)), cobra.ShellCompDirectiveNoFileComp
}

// ask asks the hub for a shell; a hub that doesn't answer offers nothing.
func (h *hub) ask(cmd *cobra.Command, f func(ctx context.Context) []string) ([]string, cobra.ShellCompDirective) {
	ctx, cancel := context.WithTimeout(context.Background(), cmp.Or(h.timeout, completeTime))
	defer cancel()
	if err := h.open(cmd); err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	return f(ctx), cobra.ShellCompDirectiveNoFileComp
}

// completeObjects offers kinds, then names of objects: at most so many arguments, -1 for any number.
func completeObjects(h *hub, most int) completer {
	return func(cmd *cobra.Command, args []string, toComplete string) ([]string, cobra.ShellCompDirective) {
		if most >= 0 && len(args) >= most {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		return h.ask(cmd, func(ctx context.Context) []string {
			if len(args) > 0 && !strings.Contains(args[0], "/") {
				return h.names(ctx, args[0], "")
			}
			if kind, _, named := strings.Cut(toComplete, "/"); named {
				return h.names(ctx, kind, kind+"/")
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
		})
	}
}

// names are the names of a kind's objects.
func (h *hub) names(ctx context.Context, kind, prefix string) (names []string) {
	k, err := h.Kind(ctx, kind)
	if err != nil {
		return nil
	}
	_, _ = h.List(ctx, k, client.ListOptions{Namespace: h.in(k)}, func(page []client.Object) error {
		for _, o := range page {
			names = append(names, prefix+o.Metadata.Name)
		}
		if len(names) >= mostNames {
			return errSeen
		}
		return nil
	})
	return names
}

// completeTwin offers devices, then properties of the one that was named.
func completeTwin(h *hub, suffix string) completer {
	return func(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
		names, directive := h.ask(cmd, func(ctx context.Context) []string {
			if len(args) == 0 {
				return h.names(ctx, "devices", "")
			}
			return h.properties(ctx, args[0], suffix)
		})
		if len(args) > 0 && suffix != "" {
			directive |= cobra.ShellCompDirectiveNoSpace
		}
		return names, directive
	}
}

// properties are those of a device's model; with a suffix only those that can be written.
func (h *hub) properties(ctx context.Context, device, suffix string) (names []string) {
	var d resource.Device
	var m resource.DeviceModel
	for _, step := range []struct {
		kind string
		name func() string
		into any
	}{
		{"devices", func() string { return device }, &d},
		{"devicemodels", func() string { return d.Spec.DeviceModelRef.Name }, &m},
	} {
		k, err := h.Kind(ctx, step.kind)
		if err != nil {
			return nil
		}
		o, err := h.Object(ctx, k, h.in(k), step.name())
		if err != nil || o.Into(step.into) != nil {
			return nil
		}
	}
	for _, p := range m.Spec.Properties {
		if suffix == "" || p.AccessMode == resource.ReadWrite {
			names = append(names, p.Name+suffix)
		}
	}
	return names
}
