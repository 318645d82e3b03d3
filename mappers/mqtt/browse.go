// SPDX-License-Identifier: Apache-2.0

package mqtt

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/spf13/cobra"

	"github.com/edgebus/edgebus/broker/client"
	"github.com/edgebus/edgebus/configs"
	"github.com/edgebus/edgebus/mappers/cmd"
)

// browseCommand prints manifests of what zigbee2mqtt has.
func browseCommand(stdout io.Writer) *cobra.Command {
	topic, node, file, wait := "zigbee2mqtt", "", "", 5*time.Second
	var edgeNode, name string
	c := &cobra.Command{
		Use:   "browse [NAME]...",
		Short: "Print a Device and a DeviceModel for each device of zigbee2mqtt or of a Sparkplug edge node",
		Long: `browse reads the list that zigbee2mqtt retains on the node's broker, and prints a Device for each device in
it, and a DeviceModel for each kind, as edgebus apply takes them: its values are properties, buttons are
events, and what has no value, such as an effect, is a command. With NAMEs only those are printed.

With --sparkplug it asks an edge node of Sparkplug B to be born again, and prints a Device and a DeviceModel
for it and each of its devices, of the births that come within --wait. Births don't say what can be set: for
such a property set accessMode: ReadWrite.`,
		Example: `  mapper-mqtt browse --node house | edgebus apply -f -
  mapper-mqtt browse --sparkplug "Plant A/edge1" --node plant | edgebus apply -f -
  mapper-mqtt browse hall-lamp "Bad/Büro Heizung" >devices.yaml`,
	}
	c.RunE = func(c *cobra.Command, names []string) error {
		settings, done, err := configs.LoadFlags[configs.Mapper[configs.MapperMQTT]]("mapper-mqtt", c.Flags(), stdout)
		if err != nil || done {
			return err
		}
		o := client.Options{Servers: []string{settings.Server}, User: settings.User, Secret: settings.Secret}
		if o.TLS, err = settings.TLS.Config(); err != nil {
			return err
		}
		if edgeNode != "" {
			list, err := browseSparkplug(context.Background(), o, edgeNode, name, node, wait)
			if err != nil {
				return cmd.Failed(err)
			}
			return cmd.Failed(cmd.WriteManifests(stdout, list...))
		}
		payload, err := os.ReadFile(file)
		if file == "" {
			payload, err = readRetained(context.Background(), o, topic+"/bridge/devices", wait)
		}
		if err != nil {
			return cmd.Failed(err)
		}
		list, err := zigbeeModels(topic, payload, node, names...)
		if err != nil {
			return cmd.Failed(err)
		}
		if len(list) == 0 {
			return cmd.Failed(errors.New("zigbee2mqtt has no such device that it knows"))
		}
		return cmd.Failed(cmd.WriteManifests(stdout, list...))
	}
	if err := configs.AddFlags[configs.Mapper[configs.MapperMQTT]]("mapper-mqtt", c.Flags()); err != nil {
		c.RunE = func(*cobra.Command, []string) error { return err }
	}
	c.Flags().StringVar(&topic, "topic", topic, "zigbee2mqtt's base topic")
	c.Flags().StringVar(&node, "node", node, "the node of the Devices (default node1)")
	c.Flags().StringVar(&file, "list", file, "a file that has the list, in place of the broker")
	c.Flags().StringVar(&edgeNode, "sparkplug", "", "an edge node of Sparkplug B, group/edge node, in place of zigbee2mqtt")
	c.Flags().StringVar(&name, "device", "", "with --sparkplug: name of its Device, with which those of its devices begin (default: the edge node's)")
	c.Flags().DurationVar(&wait, "wait", wait, "how long to wait for the list, or for births")
	return c
}

// readRetained reads what a broker retains on a topic.
func readRetained(ctx context.Context, o client.Options, topic string, wait time.Duration) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	messages := make(chan []byte, 1)
	o.ClientID, o.CleanStart, o.Attempts = "browse-mqtt-"+rand.Text()[:8], true, 1
	o.Subscriptions = []client.Subscription{{Filter: topic, QoS: 1}}
	o.OnMessage = func(m client.Message) {
		select {
		case messages <- m.Payload:
		default:
		}
	}
	c, err := client.New(o)
	if err != nil {
		return nil, err
	}
	ended := make(chan error, 1)
	go func() { ended <- c.Run(ctx) }()
	select {
	case payload := <-messages:
		cancel()
		<-ended
		return payload, nil
	case err := <-ended:
		if ctx.Err() == nil {
			return nil, err
		}
	}
	return nil, fmt.Errorf("nothing is retained on %s within %s", topic, wait)
}
