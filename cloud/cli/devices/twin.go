// SPDX-License-Identifier: Apache-2.0

package devices

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/spf13/cobra"

	"github.com/edgebus/edgebus/cloud/cli/access"
	"github.com/edgebus/edgebus/cloud/cli/exitcode"
	"github.com/edgebus/edgebus/cloud/cli/printer"
	"github.com/edgebus/edgebus/cloud/cli/terminal"
	"github.com/edgebus/edgebus/cloud/client"
	"github.com/edgebus/edgebus/topics"
	"github.com/edgebus/edgebus/topics/resource"
)

// Commands are those on devices, and for messages.
func Commands() []*cobra.Command {
	return []*cobra.Command{newTwin(), newDevice(), newModels(), newAlarm(), newHistory(), newCall(), newTree(), newPub(), newSub()}
}

func newTwin() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "twin",
		Short: "Show a device's twin, and set desired values",
		Long: `A device's twin has for each property the value that is desired, the value that is reported, and why
the two differ, if they do: the device refused the desired value, or it is overridden on the node.`,
		Example: `  edgebus twin get lamp
  edgebus twin set lamp power=ON brightness=40 --wait
  edgebus twin watch lamp temperature`,
	}
	cmd.AddCommand(newTwinGet(), newTwinSet(), newTwinWatch())
	return cmd
}

// twinOptions are the flags of edgebus twin.
type twinOptions struct {
	access.Hub
	output string
	wait   bool
	out    io.Writer
	errs   io.Writer
	device client.Kind
}

func newTwinGet() *cobra.Command {
	o := &twinOptions{}
	cmd := &cobra.Command{
		Use:   "get DEVICE [PROPERTY…]",
		Short: "Show the twin, or some of its properties",
		Long: `Show the twin of a device, or some of its properties. -o value prints the reported value alone,
a line for each property that is named.

` + exitcode.Help,
		Example:           "  edgebus twin get lamp\n  edgebus twin get lamp temperature -o value",
		Args:              cobra.MinimumNArgs(1),
		ValidArgsFunction: completeTwin(&o.Hub, ""),
		RunE: func(cmd *cobra.Command, args []string) error {
			if o.output == "value" && len(args) < 2 {
				return exitcode.Errorf(exitcode.Misused, "-o value needs the name of a property")
			}
			o.out, o.errs = cmd.OutOrStdout(), cmd.ErrOrStderr()
			return o.get(cmd.Context(), args[0], args[1:])
		},
	}
	o.Register(cmd)
	printer.OutputFlag(cmd, &o.output, "value is the reported value alone", "table", "json", "yaml", "value")
	return cmd
}

// readDevice reads the device, and what the hub calls its kind.
func (o *twinOptions) readDevice(ctx context.Context, name string) (d resource.Device, err error) {
	o.device, err = o.ReadObject(ctx, resource.KindDevice, name, &d)
	return d, err
}

func (o *twinOptions) get(ctx context.Context, name string, properties []string) error {
	d, err := o.readDevice(ctx, name)
	if err != nil {
		return err
	}
	twin := d.Status.Twin
	if len(properties) > 0 {
		twin = map[string]resource.TwinProperty{}
		for _, p := range properties {
			t, ok := d.Status.Twin[p]
			if !ok {
				return exitcode.Errorf(exitcode.NotFound, "nothing is known of property %s of device %s%s", p, name, resource.DidYouMean(p, slices.Sorted(maps.Keys(d.Status.Twin))))
			}
			twin[p] = t
		}
	}
	switch o.output {
	case "json", "yaml":
		return printer.Document(o.out, o.output, twin)
	case "value":
		for _, p := range properties {
			r := twin[p].Reported
			if r == nil {
				return exitcode.Errorf(exitcode.NotFound, "property %s of device %s was not reported yet", p, name)
			}
			if _, err := fmt.Fprintln(o.out, r.Value); err != nil {
				return err
			}
		}
		return nil
	}
	if why := offlineReason(d, time.Now()); why != "" {
		if _, err := fmt.Fprintln(o.out, why); err != nil {
			return err
		}
	}
	err = new(printer.AlignedRows).Write(o.out, printer.TwinRows(twin, properties, time.Now()))
	o.PrintOffline(ctx, o.errs, []string{d.Spec.NodeName})
	return err
}

// offlineReason says that a device is not online, why and since when, above values that may be outdated; empty: it is online.
func offlineReason(d resource.Device, now time.Time) string {
	c, told := access.FindCondition(d.Status.Conditions, resource.ConditionOnline)
	if !told || c.Status == "True" || c.Reason == resource.ReasonLocal {
		return ""
	}
	is := cmp.Or(d.Status.State, resource.Unknown)
	if is == resource.Online { // a status that is being written
		is = "not " + is
	}
	text := d.Metadata.Name + " is " + is
	if !c.LastTransitionTime.IsZero() {
		text += ", since " + printer.Age(now.Sub(c.LastTransitionTime)) + " ago"
	}
	return terminal.Printable(text+": "+strings.TrimSuffix(c.Reason+": "+c.Message, ": "), 300)
}

func newTwinWatch() *cobra.Command {
	o := &twinOptions{}
	cmd := &cobra.Command{
		Use:               "watch DEVICE [PROPERTY…]",
		Short:             "Show the twin, and every change of it, until ctrl-C",
		Example:           "  edgebus twin watch lamp\n  edgebus twin watch lamp temperature -o json",
		Args:              cobra.MinimumNArgs(1),
		ValidArgsFunction: completeTwin(&o.Hub, ""),
		RunE: func(cmd *cobra.Command, args []string) error {
			o.out, o.errs = cmd.OutOrStdout(), cmd.ErrOrStderr()
			return exitcode.IgnoreEnd(o.watch(cmd.Context(), args[0], args[1:]))
		},
	}
	o.Register(cmd)
	printer.OutputFlag(cmd, &o.output, "json is one object a line", "table", "json")
	return cmd
}

// eachDevice calls on with the device as it is, and after each change, until that fails.
func (o *twinOptions) eachDevice(ctx context.Context, name string, on func(resource.Device) error) error {
	return access.EachVersion(ctx, &o.Hub, resource.KindDevice, name, exitcode.Errorf(exitcode.NotFound, "device %s was deleted", name), on)
}

func (o *twinOptions) watch(ctx context.Context, name string, properties []string) error {
	seen := map[string]string{}
	table := &printer.AlignedRows{}
	headed := false
	return o.eachDevice(ctx, name, func(d resource.Device) error {
		var changed []string
		for _, p := range slices.Sorted(maps.Keys(d.Status.Twin)) {
			text, err := json.Marshal(d.Status.Twin[p])
			if err != nil {
				return err
			}
			if len(properties) > 0 && !slices.Contains(properties, p) || seen[p] == string(text) {
				continue
			}
			seen[p] = string(text)
			changed = append(changed, p)
			if o.output == "json" {
				line := map[string]json.RawMessage{p: text}
				if err := json.NewEncoder(o.out).Encode(line); err != nil {
					return err
				}
			}
		}
		if o.output == "json" || len(changed) == 0 {
			return nil
		}
		rows := printer.TwinRows(d.Status.Twin, changed, time.Now())
		if headed {
			rows = rows[1:]
		}
		headed = true
		return table.Write(o.out, rows)
	})
}

func newTwinSet() *cobra.Command {
	o := &twinOptions{}
	cmd := &cobra.Command{
		Use:   "set DEVICE PROPERTY=VALUE…",
		Short: "Set desired values: all of them, or none",
		Long: `Set desired values of a device: all that are given, or none if the hub refuses one. PROPERTY= without
a value clears the desired value.

Without --wait the command is done when the hub has stored the values. With --wait it is done when the
device reports them. It fails when the device refuses one (exit code 4, with the device's reason),
when an override on the node wins (4), or when time is up (6): the desired value stays then. To set a
value that is desired already changes nothing. Where atBoot holds it back, or an override on the
node wins, clear the desired value first, and set it again.

` + exitcode.Help,
		Example:           "  edgebus twin set lamp power=ON brightness=40\n  edgebus twin set lamp power=ON --wait --timeout 10s\n  edgebus twin set lamp brightness=",
		Args:              cobra.MinimumNArgs(2),
		ValidArgsFunction: completeTwin(&o.Hub, "="),
		RunE: func(cmd *cobra.Command, args []string) error {
			values, err := assignments(args[1:])
			if err != nil {
				return err
			}
			o.out, o.errs = cmd.OutOrStdout(), cmd.ErrOrStderr()
			return o.set(cmd.Context(), args[0], values)
		},
	}
	o.Register(cmd)
	cmd.Flags().BoolVar(&o.wait, "wait", false, "wait until the device reports the values")
	cmd.Flags().Lookup("timeout").Usage = access.WaitUsage
	return cmd
}

// assignments reads PROPERTY=VALUE…; nothing after the = is nil, which clears the desired value.
func assignments(args []string) (map[string]*string, error) {
	values := map[string]*string{}
	for _, arg := range args {
		name, value, ok := strings.Cut(arg, "=")
		_, twice := values[name]
		switch {
		case !ok:
			return nil, exitcode.Errorf(exitcode.Misused, "%q is not PROPERTY=VALUE", arg)
		case !topics.ValidProperty(name):
			return nil, exitcode.Errorf(exitcode.Misused, "%q: the name of a property is %s", name, topics.PropertyRule())
		case twice:
			return nil, exitcode.Errorf(exitcode.Misused, "property %s is given twice", name)
		}
		values[name] = nil
		if value != "" {
			values[name] = &value
		}
	}
	return values, nil
}

func (o *twinOptions) set(ctx context.Context, name string, values map[string]*string) error {
	before, err := o.readDevice(ctx, name)
	if err != nil {
		return err
	}
	patch := map[string]any{"spec": map[string]any{"desired": values}}
	got, err := o.Patch(ctx, o.device, o.Namespace, name, patch, client.WriteOptions{})
	if err != nil {
		return err
	}
	var after resource.Device
	if err := got.Into(&after); err != nil {
		return err
	}
	if !o.wait {
		_, err := fmt.Fprintf(o.out, "%s desired\n", printer.Label(o.device, name))
		return err
	}
	return o.await(ctx, name, writesOf(values, before, after))
}

// desiredWrite is a desired value that was written, or cleared.
type desiredWrite struct {
	device       string
	property     string
	value        resource.Value // as the hub has it; empty: it was cleared
	afterVersion uint64         // the twin has it once the version is higher
}

func writesOf(values map[string]*string, before, after resource.Device) (all []desiredWrite) {
	for _, p := range slices.Sorted(maps.Keys(values)) {
		w := desiredWrite{device: after.Metadata.Name, property: p, value: after.Spec.Desired[p]}
		if d := before.Status.Twin[p].Desired; d != nil && before.Spec.Desired[p] != w.value {
			w.afterVersion = d.Ver
		}
		all = append(all, w)
	}
	return all
}

// outcome is whether the device reports the value, or an error that says why it won't.
func (w desiredWrite) outcome(t resource.TwinProperty) (done bool, err error) {
	d := t.Desired
	if w.value == "" {
		return d == nil, nil
	}
	if d == nil || d.Value != string(w.value) || d.Ver <= w.afterVersion {
		return false, nil // the twin doesn't show it yet
	}
	it := w.property + "=" + terminal.Printable(d.Value, 80)
	switch r, c, o := t.Refused, t.Conflict, t.Override; {
	case r != nil && r.Ver == d.Ver && r.Code != resource.RefusedForNow:
		why := terminal.Printable(strings.TrimSuffix(r.Code+": "+r.Message, ": "), 300)
		if heldBack(r) {
			return false, exitcode.Errorf(exitcode.Refused, "%s is held back: %s. %s", it, why, w.retryHint())
		}
		return false, exitcode.Errorf(exitcode.Refused, "%s was refused by the device: %s", it, why)
	case t.Local && t.Reported == nil:
		return false, exitcode.Errorf(exitcode.Refused, "%s is desired; only the node knows whether it is applied, because the reported value stays there (spec.local)", it)
	case c != nil && c.DesiredVer == d.Ver && c.Winner == "override":
		return false, exitcode.Errorf(exitcode.Refused, "%s is not applied: on the node it is overridden with %s, and the property's policy is %s",
			it, terminal.Printable(c.Override, 80), c.Policy)
	case o != nil && o.BasedOn == d.Ver && !t.InSync && o.Value != d.Value: // no conflict: it was set knowing this value
		return false, exitcode.Errorf(exitcode.Refused, "%s is not applied: it was desired already, and on the node it is overridden with %s, by %s. %s",
			it, terminal.Printable(o.Value, 80), terminal.Printable(o.Origin, 80), w.retryHint())
	}
	return t.InSync, nil
}

// heldBack reports whether atBoot holds the value back; the next value is not held back.
func heldBack(r *resource.Refusal) bool { return r.Code == "Held" || r.Code == "SafeValue" }

// retryHint returns the hint how to set the same value again, since writing an equal value has no effect.
func (w desiredWrite) retryHint() string {
	return fmt.Sprintf("To set it again, clear the desired value first: edgebus twin set %s %s=", w.device, w.property)
}

// await waits until the device reports all values, or one is known not to be applied.
func (o *twinOptions) await(ctx context.Context, name string, writes []desiredWrite) error {
	limit := cmp.Or(o.Timeout, access.WaitTime)
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	var last resource.Device
	var waiting []string
	var shown atomic.Value
	shown.Store(printer.Label(o.device, name))
	stop := terminal.ShowProgress(o.errs, limit, func() string { return shown.Load().(string) })
	err := o.eachDevice(ctx, name, func(d resource.Device) error {
		last, waiting = d, nil
		for _, w := range writes {
			done, err := w.outcome(d.Status.Twin[w.property])
			if err != nil {
				return err
			}
			if !done {
				waiting = append(waiting, w.property)
			}
		}
		if len(waiting) == 0 {
			return access.ErrStopWatch
		}
		shown.Store(fmt.Sprintf("%s of %s, which is %s", strings.Join(waiting, ", "), printer.Label(o.device, name), cmp.Or(d.Status.State, resource.Unknown)))
		return nil
	})
	stop()
	switch {
	case errors.Is(err, access.ErrStopWatch):
		_, err = fmt.Fprintf(o.out, "%s applied\n", printer.Label(o.device, name))
		return err
	case errors.Is(err, context.DeadlineExceeded):
		return exitcode.Errorf(exitcode.TimedOut, "after %s device %s has not reported %s: %s. The desired value stays, and is applied when it can be",
			limit, name, strings.Join(waiting, ", "), o.unansweredReason(last))
	}
	return exitcode.OfTimeout(ctx, err)
}

// unansweredReason returns what is known of a device that doesn't answer. It takes a second at most, because the timeout has expired.
func (o *twinOptions) unansweredReason(d resource.Device) string {
	if d.Spec.NodeName == "" {
		return "it is bound to no node (spec.nodeName)"
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	state := cmp.Or(d.Status.State, resource.Unknown)
	if left, ok := o.OfflineNodes(ctx, []string{d.Spec.NodeName})[d.Spec.NodeName]; ok {
		return fmt.Sprintf("its node %s has been offline for %s, and until then it was %s; edgebus doctor %s says more",
			d.Spec.NodeName, printer.Age(time.Since(left)), state, d.Spec.NodeName)
	}
	if state == resource.Online {
		return "it is online"
	}
	return fmt.Sprintf("it is %s; edgebus doctor %s says how its node is", state, d.Spec.NodeName)
}

// completeTwin offers devices, then properties of the one that was named.
func completeTwin(h *access.Hub, suffix string) access.CompletionFunc {
	return func(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
		names, directive := h.CompleteFromHub(cmd, func(ctx context.Context) []string {
			if len(args) == 0 {
				return h.ObjectNames(ctx, "devices", "")
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
func propertyNames(ctx context.Context, h *access.Hub, device, suffix string) (names []string) {
	var d resource.Device
	var m resource.DeviceModel
	if _, err := h.ReadObject(ctx, resource.KindDevice, device, &d); err != nil {
		return nil
	}
	if _, err := h.ReadObject(ctx, resource.KindDeviceModel, d.Spec.DeviceModelRef.Name, &m); err != nil {
		return nil
	}
	for _, p := range m.Spec.Properties {
		if suffix == "" || p.AccessMode == resource.ReadWrite {
			names = append(names, p.Name+suffix)
		}
	}
	return names
}
