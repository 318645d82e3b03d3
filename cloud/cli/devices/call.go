// SPDX-License-Identifier: Apache-2.0

package devices

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/edgebus/edgebus/broker/client"
	"github.com/edgebus/edgebus/cloud/cli/access"
	"github.com/edgebus/edgebus/cloud/cli/exitcode"
	"github.com/edgebus/edgebus/cloud/cli/terminal"
	"github.com/edgebus/edgebus/topics"
	"github.com/edgebus/edgebus/topics/resource"
)

func newCall() *cobra.Command {
	var h access.Hub
	var mqtt string
	cmd := &cobra.Command{
		Use:   "call DEVICE COMMAND [PAYLOAD]",
		Short: "Send a device a command, and print its answer",
		Long: `Send a device a command, such as beep, and print its answer. A command is executed once at most,
now or not at all, and is never stored. The device's mapper decides which commands there are.

` + exitcode.Help,
		Example:           "  edgebus call lamp beep\n  edgebus call lamp beep twice --timeout 5s",
		Args:              cobra.RangeArgs(2, 3),
		ValidArgsFunction: h.CompleteNames("devices", 1),
		RunE: func(cmd *cobra.Command, args []string) error {
			broker := h.Flags
			broker.MQTTFlag, broker.MQTT = "mqtt", mqtt
			answer, err := callDevice(cmd.Context(), &h, broker, args[0], args[1], strings.Join(args[2:], ""))
			if err != nil {
				return err
			}
			if answer != "" {
				_, err = fmt.Fprintln(cmd.OutOrStdout(), strings.TrimSuffix(answer, "\n"))
			}
			return err
		},
	}
	h.Register(cmd)
	cmd.Flags().StringVar(&mqtt, "mqtt", "", "the hub's MQTT address (default: the context's, or "+access.DefaultMQTT+")")
	return cmd
}

// callDevice asks the hub for the device's node, and sends the command by MQTT.
func callDevice(ctx context.Context, h *access.Hub, broker access.Flags, device, command, payload string) (string, error) {
	var d resource.Device
	if _, err := h.ReadObject(ctx, resource.KindDevice, device, &d); err != nil {
		return "", err
	}
	if d.Spec.NodeName == "" {
		return "", exitcode.Errorf(exitcode.Refused, "device %s is bound to no node (spec.nodeName): it can't be sent a command", device)
	}
	address := topics.Address{Node: d.Spec.NodeName, Kind: topics.KindCommand, Device: device, Name: command}
	if _, err := topics.Parse(address.String()); err != nil {
		return "", exitcode.Errorf(exitcode.Misused, "%q is no name of a command: %w", command, err)
	}
	p, err := broker.Resolve()
	if err != nil {
		return "", err
	}
	o, err := p.MQTTOptions("call")
	if err != nil {
		return "", err
	}
	limit := cmp.Or(h.Timeout, access.WaitTime)
	ctx, cancel := context.WithTimeout(ctx, limit+time.Second) // the broker answers at the limit
	defer cancel()
	var answer client.Message
	err = p.WithBroker(ctx, o, func(ctx context.Context, c *client.Client) (err error) {
		answer, err = c.Request(ctx, client.Message{Topic: address.String(), Payload: []byte(payload), QoS: 1, Expiry: limit})
		return err
	})
	if errors.Is(err, context.DeadlineExceeded) {
		return "", exitcode.Errorf(exitcode.TimedOut, "no answer after %s", limit)
	}
	if err != nil {
		return "", err
	}
	switch code, text := answer.Property(topics.PropCode), answer.Property(topics.PropError); topics.AnswerCode(code) {
	case "", topics.CodeOK:
		return string(answer.Payload), nil
	case topics.CodeRefused:
		return "", exitcode.Errorf(exitcode.Refused, "%s", terminal.Printable(text, 500))
	case topics.CodeExpired:
		return "", exitcode.Errorf(exitcode.TimedOut, "%s: %s", code, terminal.Printable(text, 500))
	default:
		return "", exitcode.Errorf(exitcode.Failed, "%s: %s", terminal.Printable(code, 40), terminal.Printable(text, 500))
	}
}
