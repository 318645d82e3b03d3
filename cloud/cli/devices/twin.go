package devices

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
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

// Commands are those on devices, and for messages.
func Commands() []*cobra.Command {
	return []*cobra.Command{newTwin(), newCall(), newTree(), newPub(), newSub()}
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
