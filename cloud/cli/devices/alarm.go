// SPDX-License-Identifier: Apache-2.0

package devices

import (
	"context"
	"fmt"
	"io"
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

func newAlarm() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "alarm",
		Short: "Show, acknowledge and set alarms of devices",
		Long: `An alarm is raised by a value of a device, and cleared by the value. Acknowledging it says that somebody
knows of it. Alarms are in the DeviceModel; set gives a single device others.`,
		Example: `  edgebus alarm list
  edgebus alarm ack boiler temperature/hot
  edgebus alarm set boiler temperature/hot --above 80 --clear 75 --after 30s --severity high`,
	}
	cmd.AddCommand(newAlarmList(), newAlarmAck(), newAlarmSet())
	return cmd
}

// alarmOptions are the flags of edgebus alarm.
type alarmOptions struct {
	access.Hub
	output, labels string
	out            io.Writer
}

// raisedAlarm is an alarm of a device, as edgebus alarm list -o json prints it.
type raisedAlarm struct {
	Device    string `json:"device"`
	Namespace string `json:"namespace"`
	Node      string `json:"node"`
	resource.AlarmStatus
}

func newAlarmList() *cobra.Command {
	o := &alarmOptions{}
	cmd := &cobra.Command{
		Use:   "list [DEVICE…]",
		Short: "Show the alarms that are raised, the most urgent first",
		Long: `Show the alarms that are raised, of all devices of the namespace or of those that are named: first those
that nobody has acknowledged, and of these the most urgent.

` + exitcode.Help,
		Example:           "  edgebus alarm list\n  edgebus alarm list boiler -o json\n  edgebus alarm list -l site=plant-1",
		ValidArgsFunction: o.CompleteNames("devices", -1),
		RunE: func(cmd *cobra.Command, args []string) error {
			o.out = cmd.OutOrStdout()
			return o.list(cmd.Context(), args)
		},
	}
	o.Register(cmd)
	cmd.Flags().StringVarP(&o.labels, "selector", "l", "", "only devices with these labels, such as site=plant-1")
	printer.OutputFlag(cmd, &o.output, "", "table", "json", "yaml")
	return cmd
}

func (o *alarmOptions) list(ctx context.Context, names []string) error {
	kind, err := o.KindOf(ctx, resource.TypeMeta{APIVersion: resource.APIVersion, Kind: resource.KindDevice})
	if err != nil {
		return err
	}
	list := []raisedAlarm{}
	_, err = o.List(ctx, kind, client.ListOptions{Namespace: o.Namespace, Labels: o.labels, Fields: "status.alarm=True", Order: "metadata.name"}, func(page []client.Object) error {
		for _, got := range page {
			var d resource.Device
			if err := got.Into(&d); err != nil {
				return err
			}
			if len(names) > 0 && !slices.Contains(names, d.Metadata.Name) {
				continue
			}
			for _, a := range d.Status.Alarms {
				list = append(list, raisedAlarm{d.Metadata.Name, d.Metadata.Namespace, d.Spec.NodeName, a})
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	slices.SortStableFunc(list, func(a, b raisedAlarm) int { return a.Compare(b.AlarmStatus) })
	if o.output == "json" || o.output == "yaml" {
		return printer.Document(o.out, o.output, list)
	}
	if len(list) == 0 {
		_, err := fmt.Fprintln(o.out, "no alarm is raised")
		return err
	}
	rows := [][]string{{"DEVICE", "ALARM", "SEVERITY", "SINCE", "ACKNOWLEDGED", "MESSAGE"}}
	for _, a := range list {
		since := a.Since
		if at, err := resource.ParseTime(a.Since); err == nil {
			since = printer.Age(time.Since(at)) + " ago"
		}
		rows = append(rows, []string{a.Device, a.Key(), a.Severity, since, map[bool]string{true: "yes", false: "no"}[a.Acknowledged], terminal.Printable(a.Message, 200)})
	}
	return new(printer.AlignedRows).Write(o.out, rows)
}

func newAlarmAck() *cobra.Command {
	o := &alarmOptions{}
	cmd := &cobra.Command{
		Use:   "ack DEVICE [PROPERTY/ALARM…]",
		Short: "Say that you know of alarms that are raised",
		Long: `Acknowledge alarms of a device that are raised: all, or those that are named. They stay until the value
clears them; one that is raised later has to be acknowledged again.

` + exitcode.Help,
		Example:           "  edgebus alarm ack boiler\n  edgebus alarm ack boiler temperature/hot",
		Args:              cobra.MinimumNArgs(1),
		ValidArgsFunction: o.CompleteNames("devices", 1),
		RunE: func(cmd *cobra.Command, args []string) error {
			o.out = cmd.OutOrStdout()
			return o.acknowledge(cmd.Context(), args[0], args[1:])
		},
	}
	o.Register(cmd)
	return cmd
}

func (o *alarmOptions) acknowledge(ctx context.Context, device string, keys []string) error {
	var d resource.Device
	kind, err := o.ReadObject(ctx, resource.KindDevice, device, &d)
	if err != nil {
		return err
	}
	known := map[string]string{}
	var raised []string
	for _, a := range d.Status.Alarms {
		raised = append(raised, a.Key())
		if len(keys) == 0 || slices.Contains(keys, a.Key()) {
			known[a.Key()] = a.Since // by the node's clock: exactly what is raised now
		}
	}
	for _, key := range keys {
		if known[key] == "" {
			return exitcode.Errorf(exitcode.NotFound, "no alarm %s of device %s is raised%s", key, device, resource.DidYouMean(key, raised))
		}
	}
	if len(known) == 0 {
		_, err := fmt.Fprintf(o.out, "no alarm of device/%s is raised\n", device)
		return err
	}
	if _, err := o.Patch(ctx, kind, o.Namespace, device, map[string]any{"spec": map[string]any{"acknowledgedAlarms": known}}, client.WriteOptions{}); err != nil {
		return err
	}
	for _, key := range raised {
		if known[key] != "" {
			if _, err := fmt.Fprintf(o.out, "%s of device/%s acknowledged\n", key, device); err != nil {
				return err
			}
		}
	}
	return nil
}

func newAlarmSet() *cobra.Command {
	o := &alarmOptions{}
	var above, below, clearAt float64
	var equals, severity, title string
	var after time.Duration
	var remove bool
	cmd := &cobra.Command{
		Use:   "set DEVICE PROPERTY/ALARM {--above N | --below N | --equals VALUE | --remove}",
		Short: "Give a device an alarm, in place of its model's of that name",
		Long: `Give a single device an alarm (spec.alarms). It replaces the one of the same name that the DeviceModel has;
--remove takes it away, and the model's counts again.

` + exitcode.Help,
		Example: `  edgebus alarm set boiler temperature/hot --above 80 --clear 75 --after 30s --severity high
  edgebus alarm set door state/open --equals open --after 5m
  edgebus alarm set boiler temperature/hot --remove`,
		Args:              cobra.ExactArgs(2),
		ValidArgsFunction: o.CompleteNames("devices", 1),
	}
	f := cmd.Flags()
	f.Float64Var(&above, "above", 0, "raised by a value above it")
	f.Float64Var(&below, "below", 0, "raised by a value below it")
	f.StringVar(&equals, "equals", "", "raised by this value")
	f.Float64Var(&clearAt, "clear", 0, "cleared at this value (default: that which raises it)")
	f.DurationVar(&after, "after", 0, "raised if the value is there for so long")
	f.StringVar(&severity, "severity", "", "low, medium, high or critical (default: medium)")
	f.StringVar(&title, "title", "", "the alarm's name for people")
	f.BoolVar(&remove, "remove", false, "take the device's own alarm away")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		o.out = cmd.OutOrStdout()
		property, name, ok := strings.Cut(args[1], "/")
		if !ok {
			return exitcode.Errorf(exitcode.Misused, "%q: must be a property and the name of the alarm, such as temperature/hot", args[1])
		}
		a := resource.DeviceAlarm{PropertyName: property, PropertyAlarm: resource.PropertyAlarm{
			Name: name, Title: title, Equals: resource.Value(equals), After: after.Milliseconds(), Severity: severity,
		}}
		for flag, to := range map[string]struct {
			value *float64
			field **float64
		}{"above": {&above, &a.Above}, "below": {&below, &a.Below}, "clear": {&clearAt, &a.Clear}} {
			if f.Changed(flag) {
				*to.field = to.value
			}
		}
		return o.set(cmd.Context(), args[0], a, remove)
	}
	o.Register(cmd)
	return cmd
}

func (o *alarmOptions) set(ctx context.Context, device string, a resource.DeviceAlarm, remove bool) error {
	var d resource.Device
	kind, err := o.ReadObject(ctx, resource.KindDevice, device, &d)
	if err != nil {
		return err
	}
	same := func(b resource.DeviceAlarm) bool { return b.PropertyName == a.PropertyName && b.Name == a.Name }
	had := slices.ContainsFunc(d.Spec.Alarms, same)
	alarms := slices.DeleteFunc(d.Spec.Alarms, same)
	did := "set"
	switch {
	case remove && !had:
		return exitcode.Errorf(exitcode.NotFound, "device %s has no alarm %s/%s of its own", device, a.PropertyName, a.Name)
	case remove:
		did = "removed"
	default:
		alarms = append(alarms, a)
	}
	patch := map[string]any{"metadata": map[string]any{"resourceVersion": d.Metadata.ResourceVersion}, "spec": map[string]any{"alarms": alarms}} // a list is replaced as a whole
	if _, err := o.Patch(ctx, kind, o.Namespace, device, patch, client.WriteOptions{}); err != nil {
		return err
	}
	_, err = fmt.Fprintf(o.out, "%s/%s of device/%s %s\n", a.PropertyName, a.Name, device, did)
	return err
}
