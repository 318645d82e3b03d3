// SPDX-License-Identifier: Apache-2.0

package devices

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/edgebus/edgebus/cloud/cli/access"
	"github.com/edgebus/edgebus/cloud/cli/exitcode"
	"github.com/edgebus/edgebus/cloud/cli/printer"
	"github.com/edgebus/edgebus/cloud/client"
	"github.com/edgebus/edgebus/topics/resource"
)

func newDevice() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "device",
		Short: "Add a device without a manifest, and show what protocols need",
		Example: `  edgebus device add hall --model room-thermostat --node demo tcp://10.0.0.7:502 --set unit=3
  edgebus device add lamp --model zigbee2mqtt-light --node demo zigbee2mqtt/lamp --dry-run`,
	}
	cmd.AddCommand(newDeviceAdd(), newDeviceSettings())
	return cmd
}

// addOptions are the flags of edgebus device add.
type addOptions struct {
	access.Hub
	model, node, protocol, title string
	settings                     []string
	dryRun                       bool
	out                          io.Writer
}

func newDeviceAdd() *cobra.Command {
	o := &addOptions{}
	cmd := &cobra.Command{
		Use:   "add NAME --model MODEL --node NODE [ADDRESS]",
		Short: "Make a Device of a model, on a node",
		Long: `Make a Device of a DeviceModel, on a node, and print it. ADDRESS is where the device is: the setting
address of its protocol, endpoint for opcua, url for http, device for a BACnet device's number, or for mqtt the
parameter topic. The protocol is that of the model's visitors; if
these are of several protocols, --protocol says which. A model that the hub doesn't have is made, too, if it
is one of those that "edgebus models" lists.

` + exitcode.Help,
		Example: `  edgebus device add hall --model room-thermostat --node demo tcp://10.0.0.7:502 --set unit=3
  edgebus device add lamp --model zigbee2mqtt-light --node demo zigbee2mqtt/lamp --dry-run`,
		Args:              cobra.RangeArgs(1, 2),
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, args []string) error {
			o.out = cmd.OutOrStdout()
			return o.add(cmd.Context(), args[0], strings.Join(args[1:], ""))
		},
	}
	f := cmd.Flags()
	f.StringVar(&o.model, "model", "", "the DeviceModel, of the hub or of edgebus models; needed")
	f.StringVar(&o.node, "node", "", "the node to which the device is attached; needed")
	f.StringVar(&o.protocol, "protocol", "", "the protocol (default: that of the model's visitors)")
	f.StringVar(&o.title, "title", "", "the device's name for people")
	f.StringArrayVar(&o.settings, "set", nil, "a setting of the protocol: unit=3; may be given several times")
	f.BoolVar(&o.dryRun, "dry-run", false, "have the hub check everything, print the Device, and make nothing")
	o.Register(cmd)
	for flag, kind := range map[string]string{"model": "devicemodels", "node": "nodes"} {
		_ = cmd.MarkFlagRequired(flag)
		_ = cmd.RegisterFlagCompletionFunc(flag, o.CompleteNames(kind, -1))
	}
	return cmd
}

func (o *addOptions) add(ctx context.Context, name, address string) error {
	m, err := o.readModel(ctx)
	if err != nil {
		return err
	}
	d, err := o.newDevice(m, name, address)
	if err != nil {
		return err
	}
	kind, err := o.KindOf(ctx, d.TypeMeta)
	if err != nil {
		return err
	}
	body, err := json.Marshal(d)
	if err != nil {
		return err
	}
	made, err := o.Create(ctx, kind, o.Namespace, body, client.WriteOptions{DryRun: o.dryRun, Strict: true})
	if err != nil {
		return err
	}
	if o.dryRun {
		return printer.Document(o.out, "yaml", map[string]any{
			"apiVersion": d.APIVersion, "kind": d.Kind, "metadata": map[string]any{"name": name, "namespace": made.Metadata.Namespace}, "spec": d.Spec,
		})
	}
	line := fmt.Sprintf("device/%s made: a %s on node %s, by %s", name, o.model, o.node, d.Spec.Protocol.Type)
	for _, key := range slices.Sorted(maps.Keys(d.Spec.Protocol.Config)) {
		line += fmt.Sprintf(" %s=%s", key, d.Spec.Protocol.Config[key])
	}
	_, err = fmt.Fprintln(o.out, line)
	return err
}

// newDevice is the Device that the command line describes.
func (o *addOptions) newDevice(m resource.DeviceModel, name, address string) (d resource.Device, err error) {
	d.TypeMeta = resource.TypeMeta{APIVersion: resource.APIVersion, Kind: resource.KindDevice}
	d.Metadata.Name = name
	d.Spec.Title, d.Spec.NodeName, d.Spec.DeviceModelRef.Name = o.title, o.node, o.model
	d.Spec.Protocol.Type = o.protocol
	if o.protocol == "" {
		var known []string
		for _, v := range m.Spec.PropertyVisitors {
			known = append(known, v.Protocol)
		}
		switch len(known) {
		case 0:
			return d, exitcode.Errorf(exitcode.Misused, "the model %s has visitors of no protocol: say --protocol", o.model)
		case 1:
			d.Spec.Protocol.Type = known[0]
		default:
			return d, exitcode.Errorf(exitcode.Misused, "the model %s has visitors of %s: say which with --protocol", o.model, strings.Join(known, ", "))
		}
	}
	config := map[string]resource.Value{}
	for _, text := range o.settings {
		key, value, ok := strings.Cut(text, "=")
		if !ok || key == "" {
			return d, exitcode.Errorf(exitcode.Misused, "--set %q: must be a setting and its value, such as unit=3", text)
		}
		config[key] = resource.Value(value)
	}
	if address != "" {
		key := addressSetting(d.Spec.Protocol.Type, address)
		if _, twice := config[key]; twice {
			return d, exitcode.Errorf(exitcode.Misused, "%s is given twice: as ADDRESS and with --set", key)
		}
		config[key] = resource.Value(address)
	}
	if len(config) > 0 {
		d.Spec.Protocol.Config = config
	}
	return d, nil
}

// addressSetting is the setting of a protocol that says where a device is. A device of BACnet is found by its number, too.
func addressSetting(protocol, address string) string {
	if _, err := strconv.ParseUint(address, 10, 22); err == nil && resource.SameProtocol(protocol, "bacnet") {
		return "device"
	}
	for known, setting := range map[string]string{"mqtt": "topic", "opcua": "endpoint", "http": "url"} {
		if resource.SameProtocol(protocol, known) {
			return setting
		}
	}
	return "address"
}
