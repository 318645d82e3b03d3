package devices

import (
	"cmp"
	"context"
	"errors"
	"fmt"
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
