// SPDX-License-Identifier: Apache-2.0

package devices

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/edgebus/edgebus/broker/client"
	"github.com/edgebus/edgebus/cloud/cli/access"
	"github.com/edgebus/edgebus/cloud/cli/exitcode"
	"github.com/edgebus/edgebus/cloud/cli/printer"
	"github.com/edgebus/edgebus/cloud/cli/terminal"
	"github.com/edgebus/edgebus/topics"
)

func newPub() *cobra.Command {
	var b access.Broker
	m := client.Message{}
	cmd := &cobra.Command{
		Use:   "pub TOPIC VALUE|-",
		Short: "Publish a message, as the context's user",
		Long: `Publish a message by MQTT, with the context's user, and print the reason if it is refused.
A VALUE of - is read from standard input; an empty one clears a retained topic.

` + exitcode.Help,
		Example: `  edgebus pub v1/nodes/demo/devices/lamp/desired/power ON
  edgebus pub site/notice "closed today" --retain
  edgebus pub v1/nodes/demo/devices/lamp/desired/brightness 40 --server mqtt://127.0.0.1:2883`,
		Args: cobra.ExactArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			m.Topic, m.Payload = args[0], []byte(args[1])
			if args[1] == "-" {
				var err error
				if m.Payload, err = io.ReadAll(cmd.InOrStdin()); err != nil {
					return err
				}
			}
			if m.QoS > 2 {
				return exitcode.Errorf(exitcode.Misused, "--qos is 0, 1 or 2")
			}
			if err := b.Open(); err != nil {
				return err
			}
			o, err := b.Target.MQTTOptions("pub")
			if err != nil {
				return err
			}
			return b.Target.WithBroker(cmd.Context(), o, func(ctx context.Context, c *client.Client) error { return c.Publish(ctx, m) })
		},
	}
	b.Register(cmd)
	cmd.Flags().Uint8VarP(&m.QoS, "qos", "q", 1, "quality of service: 0, 1 or 2; with 0 a refusal is not reported")
	cmd.Flags().BoolVarP(&m.Retain, "retain", "r", false, "retain the message")
	return cmd
}

func newSub() *cobra.Command {
	var b access.Broker
	var output string
	var count int
	cmd := &cobra.Command{
		Use:   "sub FILTER…",
		Short: "Show messages, as the context's user, until ctrl-C",
		Long: `Subscribe by MQTT, with the context's user, and print each message: its topic and its
value, or with -o json an object a line. + stands for one level of a topic, # for all that follow.

` + exitcode.Help,
		Example: `  edgebus sub 'v1/nodes/demo/#'
  edgebus sub 'v1/nodes/+/state' -o json
  edgebus sub v1/nodes/demo/devices/lamp/reported/power --count 1`,
		Args: cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := b.Open(); err != nil {
				return err
			}
			o, err := b.Target.MQTTOptions("sub")
			if err != nil {
				return err
			}
			for _, filter := range args {
				if err := topics.CheckFilter(filter); err != nil {
					return exitcode.Errorf(exitcode.Misused, "%w", err)
				}
				o.Subscriptions = append(o.Subscriptions, client.Subscription{Filter: filter, QoS: 1})
			}
			return subscribe(cmd, &b.Target, o, output, count)
		},
	}
	b.Register(cmd)
	printer.OutputFlag(cmd, &output, "", "text", "json")
	cmd.Flags().IntVar(&count, "count", 0, "end after this many messages (default: at ctrl-C)")
	return cmd
}

func subscribe(cmd *cobra.Command, p *access.Target, o client.Options, output string, count int) error {
	_, screen := terminal.Size(cmd.OutOrStdout())
	enough := make(chan error, 1)
	seen := 0
	end := func(err error) {
		select {
		case enough <- err:
		default:
		}
	}
	o.OnMessage = func(m client.Message) {
		if count > 0 && seen == count {
			return
		}
		if err := printMessage(cmd.OutOrStdout(), m, output, screen); err != nil {
			end(err)
		}
		if seen++; seen == count {
			end(nil)
		}
	}
	o.OnDisconnect = func(err error) {
		if cmd.Context().Err() == nil && !errors.Is(err, client.ErrClosed) && !errors.As(err, new(*client.Refused)) {
			printer.Warn(cmd.ErrOrStderr(), "the connection was lost, and is being restored: "+err.Error())
		}
	}
	return exitcode.IgnoreEnd(p.WithBroker(cmd.Context(), o, func(ctx context.Context, _ *client.Client) error {
		select {
		case err := <-enough:
			return err
		case <-ctx.Done():
			return ctx.Err()
		}
	}))
}

// printMessage prints a message on a line, without control characters on a terminal.
func printMessage(out io.Writer, m client.Message, output string, screen bool) error {
	if output == "json" {
		user := map[string]string{}
		for _, p := range m.User {
			user[p.Key] = p.Value
		}
		encoder := json.NewEncoder(out)
		encoder.SetEscapeHTML(false)
		return encoder.Encode(struct {
			Topic    string            `json:"topic"`
			Value    string            `json:"value"`
			Retained bool              `json:"retained,omitempty"`
			User     map[string]string `json:"userProperties,omitempty"`
		}{m.Topic, string(m.Payload), m.Retained, user})
	}
	topic, value := m.Topic, string(m.Payload)
	if screen {
		topic, value = terminal.Printable(topic, 300), terminal.Printable(value, 2000)
	}
	_, err := fmt.Fprintf(out, "%s %s\n", topic, value)
	return err
}
