package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/edgebus/edgebus/cloud/client"
	"github.com/edgebus/edgebus/topics/resource"
)

// hub is a command's access to the hub's API.
type hub struct {
	access
	namespaceGiven bool // the namespace, by a flag
	timeout        time.Duration
	*client.Client
}

// flags registers the flags of a command that asks the hub, and has it open the client before it runs. --timeout bounds all of it.
func (h *hub) flags(cmd *cobra.Command) {
	h.access.flags(cmd, "server", "")
	h.namespaceFlag(cmd)
	cmd.Flags().DurationVar(&h.timeout, "timeout", 0, "end after this time (default: no limit, but 30s for each answer)")
	run := cmd.RunE
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if h.timeout < 0 {
			return exitErrorf(misused, "--timeout is %s, and can't be negative", h.timeout)
		}
		if err := h.open(cmd); err != nil {
			return err
		}
		if h.timeout == 0 {
			return run(cmd, args)
		}
		ctx, cancel := context.WithTimeout(cmd.Context(), h.timeout)
		defer cancel()
		cmd.SetContext(ctx)
		err := run(cmd, args)
		return exitOfTimeout(ctx, err)
	}
}

// perArgument has a command call f for each of its arguments until one fails. f returns the line to print when it has succeeded.
func (h *hub) perArgument(cmd *cobra.Command, f func(ctx context.Context, arg string) (done string, err error)) *cobra.Command {
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
	h.flags(cmd)
	return cmd
}

// exitOfTimeout returns the error that a command ends with. Its exit code is late if there was no answer because the timeout expired.
func exitOfTimeout(ctx context.Context, err error) error {
	if !errors.Is(ctx.Err(), context.DeadlineExceeded) || exitCodeOf(err) != unreachable {
		return err
	}
	if errors.As(err, new(exitCode)) {
		return exitCode(late) // the reason has been printed
	}
	return exitErrorf(late, "%w", err)
}

// waitTime is how long --wait waits for each object without --timeout.
const waitTime = 30 * time.Second

const waitUsage = "end after this time, with and without --wait (default: 30s for each answer, and with --wait for each object)"

// open makes the client. Nothing is sent yet.
func (h *hub) open(cmd *cobra.Command) error {
	p, err := h.resolve()
	if err == nil {
		err = p.validate()
	}
	if err != nil {
		return err
	}
	h.namespaceGiven, h.namespace = h.namespace != "", p.Namespace
	o, err := p.apiOptions()
	if err != nil {
		return err
	}
	o.Warn = func(text string) { printWarning(cmd.ErrOrStderr(), text) }
	if h.timeout > 0 {
		o.Timeout = math.MaxInt64 // the context ends it
	}
	if h.Client, err = client.New(o); err != nil {
		return exitErrorf(misused, "%w", err)
	}
	return nil
}

// apiOptions are the options of a client of the hub's API.
func (p *hubTarget) apiOptions() (o client.Options, err error) {
	o = client.Options{Server: p.Server, User: p.User}
	if p.Proxy != "" {
		if o.Proxy, err = url.Parse(p.Proxy); err != nil {
			return o, fmt.Errorf("proxy-url: %w", err)
		}
	}
	if o.TLS, err = p.tlsConfig(); err == nil {
		o.Password, err = p.password()
	}
	if err == nil {
		o.Token, err = p.bearerToken()
	}
	return o, err
}

// similarNode says which of the hub's nodes may have been meant by a name that none has; it is empty if that can't be found out.
func (p *hubTarget) similarNode(ctx context.Context, name string) string {
	o, err := p.apiOptions()
	if err != nil {
		return ""
	}
	o.Timeout = 3 * time.Second
	c, err := client.New(o)
	if err != nil {
		return ""
	}
	defer c.Close()
	var list struct{ Items []resource.Node }
	if err := c.Get(ctx, "/apis/"+resource.APIVersion+"/nodes?limit=500", &list); err != nil {
		return ""
	}
	var names []string
	for _, n := range list.Items {
		names = append(names, n.Metadata.Name)
	}
	return resource.DidYouMean(name, names)
}

// ignoreEnd returns the error of a watch; nil if it was interrupted or its timeout expired.
func ignoreEnd(err error) error {
	if errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return nil
	}
	return err
}

// printWarning prints a warning of the hub as kubectl does.
func printWarning(w io.Writer, text string) { fmt.Fprintln(w, "Warning:", printableText(text, 500)) }

// namespaceOf is the namespace for requests about a kind; empty if the kind has none.
func (h *hub) namespaceOf(k client.Kind) string {
	if k.Namespaced {
		return h.namespace
	}
	return ""
}

// readObject reads an object of one of the hub's own kinds.
func (h *hub) readObject(ctx context.Context, kind, name string, into any) (k client.Kind, err error) {
	if k, err = h.KindOf(ctx, resource.TypeMeta{APIVersion: resource.APIVersion, Kind: kind}); err != nil {
		return k, err
	}
	got, err := h.Object(ctx, k, h.namespaceOf(k), name)
	if err == nil {
		err = got.Into(into)
	}
	return k, err
}

// eachVersion calls on with an object of one of the hub's own kinds, and again after each change of it, until on fails. It returns deleted
// when the object is deleted.
func eachVersion[T any](ctx context.Context, h *hub, kind, name string, deleted error, on func(T) error) error {
	see := func(got client.Object) error {
		var v T
		if err := got.Into(&v); err != nil {
			return err
		}
		return on(v)
	}
	k, err := h.KindOf(ctx, resource.TypeMeta{APIVersion: resource.APIVersion, Kind: kind})
	if err != nil {
		return err
	}
	for {
		got, err := h.Object(ctx, k, h.namespaceOf(k), name)
		if err == nil {
			err = see(got)
		}
		if err != nil {
			return err
		}
		which := client.ListOptions{Namespace: h.namespaceOf(k), Fields: "metadata.name=" + name}
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

// objectLabel is an object's name in output: device/lamp.
func objectLabel(k client.Kind, name string) string { return cmp.Or(k.Singular, k.Plural) + "/" + name }

// offlineNodes returns which of the nodes are offline, and since when. The values of their devices on the hub are from that time, until
// it says after a while (30 s) that it is unknown. A node that may not be read is left out.
func (h *hub) offlineNodes(ctx context.Context, nodes []string) map[string]time.Time {
	since := map[string]time.Time{}
	for _, name := range nodes {
		var n resource.Node
		if _, err := h.readObject(ctx, resource.KindNode, name, &n); err != nil {
			continue
		}
		if c, ok := condition(n.Status.Conditions, resource.ConditionReady); ok && c.Status == "False" {
			since[name] = c.LastTransitionTime
		}
	}
	return since
}

func condition(list []resource.Condition, kind string) (c resource.Condition, ok bool) {
	i := slices.IndexFunc(list, func(c resource.Condition) bool { return c.Type == kind })
	if i < 0 {
		return c, false
	}
	return list[i], true
}

const mostOffline = 20 // nodes that are asked about

// printOffline prints after a table of devices which of their nodes are offline, because the values of those devices may be old.
func (h *hub) printOffline(ctx context.Context, errs io.Writer, nodes []string) {
	nodes = slices.DeleteFunc(slices.Clone(nodes), func(name string) bool { return name == "" || name == "<none>" })
	slices.Sort(nodes)
	nodes = slices.Compact(nodes)
	since := h.offlineNodes(ctx, nodes[:min(len(nodes), mostOffline)])
	for _, name := range slices.Sorted(maps.Keys(since)) {
		fmt.Fprintf(errs, "! node %s has been offline for %s: what is shown of its devices is as of then\n", name, formatAge(time.Since(since[name])))
	}
}

type completionFunc = func(cmd *cobra.Command, args []string, toComplete string) ([]string, cobra.ShellCompDirective)

// completeTime is how long completion waits for the hub without --timeout.
const completeTime = 2 * time.Second

// mostNames bounds the names that completion offers.
const mostNames = 500

func completeContexts(_ *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
	k, err := readKubeconfig()
	if err != nil || len(args) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	return k.contexts(), cobra.ShellCompDirectiveNoFileComp
}

// completeFromHub asks the hub for completions. There are none if it doesn't answer.
func (h *hub) completeFromHub(cmd *cobra.Command, f func(ctx context.Context) []string) ([]string, cobra.ShellCompDirective) {
	ctx, cancel := context.WithTimeout(context.Background(), cmp.Or(h.timeout, completeTime))
	defer cancel()
	if err := h.open(cmd); err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	return f(ctx), cobra.ShellCompDirectiveNoFileComp
}

// completeObjects offers kinds, then names of objects: at most so many arguments, -1 for any number.
func completeObjects(h *hub, most int) completionFunc {
	return func(cmd *cobra.Command, args []string, toComplete string) ([]string, cobra.ShellCompDirective) {
		if most >= 0 && len(args) >= most {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		return h.completeFromHub(cmd, func(ctx context.Context) []string {
			if len(args) > 0 && !strings.Contains(args[0], "/") {
				return h.objectNames(ctx, args[0], "")
			}
			if kind, _, named := strings.Cut(toComplete, "/"); named {
				return h.objectNames(ctx, kind, kind+"/")
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

// objectNames are the names of a kind's objects.
func (h *hub) objectNames(ctx context.Context, kind, prefix string) (names []string) {
	k, err := h.Kind(ctx, kind)
	if err != nil {
		return nil
	}
	_, _ = h.List(ctx, k, client.ListOptions{Namespace: h.namespaceOf(k)}, func(page []client.Object) error {
		for _, o := range page {
			names = append(names, prefix+o.Metadata.Name)
		}
		if len(names) >= mostNames {
			return errStopWatch
		}
		return nil
	})
	return names
}

// completeTwin offers devices, then properties of the one that was named.
func completeTwin(h *hub, suffix string) completionFunc {
	return func(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
		names, directive := h.completeFromHub(cmd, func(ctx context.Context) []string {
			if len(args) == 0 {
				return h.objectNames(ctx, "devices", "")
			}
			return propertyNames(ctx, h, args[0], suffix)
		})
		if len(args) > 0 && suffix != "" {
			directive |= cobra.ShellCompDirectiveNoSpace
		}
		return names, directive
	}
}

// propertyNames are those of a device's model; with a suffix only those that can be written.
func propertyNames(ctx context.Context, h *hub, device, suffix string) (names []string) {
	var d resource.Device
	var m resource.DeviceModel
	if _, err := h.readObject(ctx, resource.KindDevice, device, &d); err != nil {
		return nil
	}
	if _, err := h.readObject(ctx, resource.KindDeviceModel, d.Spec.DeviceModelRef.Name, &m); err != nil {
		return nil
	}
	for _, p := range m.Spec.Properties {
		if suffix == "" || p.AccessMode == resource.ReadWrite {
			names = append(names, p.Name+suffix)
		}
	}
	return names
}
