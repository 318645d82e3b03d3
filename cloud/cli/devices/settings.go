// SPDX-License-Identifier: Apache-2.0

package devices

import (
	"context"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/edgebus/edgebus/broker/client"
	"github.com/edgebus/edgebus/cloud/cli/access"
	"github.com/edgebus/edgebus/cloud/cli/exitcode"
	"github.com/edgebus/edgebus/cloud/cli/printer"
	"github.com/edgebus/edgebus/cloud/cli/terminal"
	"github.com/edgebus/edgebus/topics/resource"
)

// settingsFilter has what all mappers say of their settings.
const settingsFilter = "v1/nodes/+/mappers/+/settings"

func newDeviceSettings() *cobra.Command {
	var b access.Broker
	var output string
	var settle time.Duration
	cmd := &cobra.Command{
		Use:   "settings [PROTOCOL]",
		Short: "Show which settings a protocol has, as its mappers say",
		Long: `Show the settings of a protocol: those of spec.protocol.config of a Device, and of the config of visitors of
properties, events and commands. Mappers publish them on ` + settingsFilter + `; without PROTOCOL
the protocols are listed of which there are some.

` + exitcode.Help,
		Example:           "  edgebus device settings\n  edgebus device settings mqtt -o json",
		Args:              cobra.MaximumNArgs(1),
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := b.Open(); err != nil {
				return err
			}
			list, err := readSettings(cmd.Context(), &b.Target, settle)
			if err != nil {
				return err
			}
			return printSettings(cmd.OutOrStdout(), list, strings.Join(args, ""), output)
		},
	}
	b.Register(cmd)
	printer.OutputFlag(cmd, &output, "", "table", "json", "yaml")
	cmd.Flags().DurationVar(&settle, "settle", 300*time.Millisecond, "all mappers have said it when none has for this long")
	return cmd
}

// readSettings reads what mappers say of their settings, one for each protocol.
func readSettings(ctx context.Context, p *access.Target, settle time.Duration) (list []resource.ProtocolSettings, err error) {
	o, err := p.MQTTOptions("settings")
	if err != nil {
		return nil, err
	}
	got := make(chan resource.ProtocolSettings, 1000)
	o.Subscriptions = []client.Subscription{{Filter: settingsFilter, QoS: 1}}
	o.OnMessage = func(m client.Message) {
		if s, err := resource.ParseProtocolSettings(m.Payload); err == nil && m.Retained {
			select {
			case got <- s:
			default:
			}
		}
	}
	seen := map[string]bool{}
	err = p.WithBroker(ctx, o, func(ctx context.Context, _ *client.Client) error {
		for {
			select {
			case s := <-got:
				if !seen[s.Protocols[0]] {
					list = append(list, s)
				}
				seen[s.Protocols[0]] = true
			case <-time.After(settle):
				return nil
			case <-ctx.Done():
				return context.Cause(ctx)
			}
		}
	})
	return list, err
}

func printSettings(out io.Writer, list []resource.ProtocolSettings, protocol, output string) error {
	var known []string
	for _, s := range list {
		known = append(known, s.Protocols...)
	}
	if protocol == "" {
		rows := [][]string{{"PROTOCOL", "ALSO", "SETTINGS"}}
		for _, s := range list {
			rows = append(rows, []string{s.Protocols[0], strings.Join(s.Protocols[1:], ", "), strconv.Itoa(len(s.Device) + len(s.Property) + len(s.Event) + len(s.Command))})
		}
		if output != "table" {
			return printer.Document(out, output, list)
		}
		return new(printer.AlignedRows).Write(out, rows)
	}
	for _, s := range list {
		for _, name := range s.Protocols {
			if !resource.SameProtocol(name, protocol) {
				continue
			}
			if output != "table" {
				return printer.Document(out, output, s)
			}
			return new(printer.AlignedRows).Write(out, settingRows(s))
		}
	}
	return exitcode.Errorf(exitcode.NotFound, "no mapper has said which settings %s has%s", protocol, resource.DidYouMean(protocol, known))
}

func settingRows(s resource.ProtocolSettings) [][]string {
	rows := [][]string{{"FOR", "SETTING", "TYPE", "DEFAULT", "RANGE", "MEANING"}}
	for _, place := range resource.SettingPlaces {
		for _, setting := range s.SettingsFor(place) {
			limits := strings.Join(setting.Enum, ", ")
			if setting.Minimum != nil && setting.Maximum != nil {
				limits = fmt.Sprintf("%g to %g", *setting.Minimum, *setting.Maximum)
			}
			def := setting.Default
			if setting.Required {
				def = "(required)"
			}
			rows = append(rows, []string{
				place, terminal.Printable(setting.Name, 60), terminal.Printable(setting.Type, 20), terminal.Printable(def, 40),
				terminal.Printable(limits, 100), terminal.Printable(setting.Help, 300),
			})
		}
	}
	return rows
}
