// SPDX-License-Identifier: Apache-2.0

package bacnet

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/edgebus/edgebus/configs"
	"github.com/edgebus/edgebus/mappers"
	"github.com/edgebus/edgebus/mappers/bacnet/wire"
	"github.com/edgebus/edgebus/mappers/cmd"
)

// Main is the program mapper-bacnet.
func Main(args []string, stdout, stderr io.Writer) int {
	return cmd.Program[configs.BACnet]{
		Name:  "mapper-bacnet",
		Short: "The mapper for BACnet/IP devices",
		Long: `mapper-bacnet connects to a node's broker and drives every Device of that node whose
protocol is "bacnet". The Device says where it is, by its address, by its number, or by both:

  protocol: {type: bacnet, config: {address: "10.0.0.9"}}
  protocol: {type: bacnet, config: {device: "1234"}}        # found by Who-Is
  protocol: {type: bacnet, config: {address: "10.0.0.9", network: "5", mac: "0b"}}   # behind a router

and its model's visitors say which object is which property. A desired value that is cleared
relinquishes what was written with the priority. mapper-bacnet scan finds devices,
browse writes a Device and a DeviceModel of one, simulate is one to try it on.`,
		Example: `  mapper-bacnet                        # the node on this host
  mapper-bacnet scan
  mapper-bacnet browse 1234 --node node1 | edgebus apply -f -
  mapper-bacnet read 10.0.0.9 AI:3`,
		Table: protocolSettings,
		Driver: func(c configs.BACnet, _ *mappers.Options) (mappers.Driver, error) {
			return New(Options{Listen: c.Listen, Broadcast: c.Broadcast, BBMD: c.BBMD, Timeout: c.Timeout}), nil
		},
		Commands: []*cobra.Command{scanCommand(stdout), browseCommand(stdout, stderr), readCommand(stdout), simulateCommand(stdout)},
	}.Main(args, stdout, stderr)
}

// network are the flags of commands that ask devices.
type network struct {
	wire.Options
	wait time.Duration
}

func (n *network) addFlags(c *cobra.Command, wait time.Duration) {
	c.Flags().StringVar(&n.Listen, "listen", "0.0.0.0:0", "UDP address to ask from")
	c.Flags().StringVar(&n.Broadcast, "broadcast", "255.255.255.255:47808", "where Who-Is goes to: a subnet's broadcast address, or one device")
	c.Flags().StringVar(&n.BBMD, "bbmd", "", "host that passes broadcasts on to other subnets")
	c.Flags().DurationVar(&n.Timeout, "timeout", 3*time.Second, "how long a device may take to answer")
	c.Flags().DurationVar(&n.wait, "wait", wait, "how long answers to Who-Is are waited for")
}

// run gives a command a client, and ends it.
func (n *network) run(c *cobra.Command, do func(ctx context.Context, client *wire.Client) error) error {
	ctx := c.Context()
	if ctx == nil {
		ctx = context.Background()
	}
	ctx, stop := signal.NotifyContext(ctx, os.Interrupt, syscall.SIGTERM)
	defer stop()
	n.Hear = wire.BroadcastAddresses()
	client, err := wire.NewClient(n.Options)
	if err != nil {
		return cmd.Failed(err)
	}
	defer func() { _ = client.Close() }()
	return cmd.Failed(do(ctx, client))
}

// target finds the device that an argument names, within the time to wait.
func (n *network) target(ctx context.Context, client *wire.Client, text string) (target, error) {
	ctx, cancel := context.WithTimeout(ctx, n.wait+n.Timeout)
	defer cancel()
	return findTarget(ctx, client, text)
}

func scanCommand(out io.Writer) *cobra.Command {
	var n network
	c := &cobra.Command{
		Use: "scan", Short: "List the devices that answer Who-Is", Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			return n.run(c, func(ctx context.Context, client *wire.Client) error { return scanNetwork(ctx, client, n.wait, out) })
		},
	}
	n.addFlags(c, 3*time.Second)
	return c
}

func browseCommand(out, progress io.Writer) *cobra.Command {
	var n network
	var filter, node string
	c := &cobra.Command{
		Use: "browse ADDRESS|NUMBER", Short: "Write a Device and a DeviceModel of a device's objects", Args: cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			return n.run(c, func(ctx context.Context, client *wire.Client) error {
				t, err := n.target(ctx, client, args[0])
				if err != nil {
					return err
				}
				return browseDevice(ctx, t, filter, node, out, progress)
			})
		},
	}
	n.addFlags(c, 3*time.Second)
	c.Flags().StringVar(&filter, "filter", "", "only objects whose name contains this")
	c.Flags().StringVar(&node, "node", "node1", "the Device's node")
	return c
}

func readCommand(out io.Writer) *cobra.Command {
	var n network
	c := &cobra.Command{
		Use: "read ADDRESS|NUMBER OBJECT [PROPERTY]", Short: "Print an object's property", Args: cobra.RangeArgs(2, 3),
		Example: "  mapper-bacnet read 10.0.0.9 AI:3\n  mapper-bacnet read 1234 analogValue:1 priorityArray",
		RunE: func(c *cobra.Command, args []string) error {
			ref := wire.Reference{Property: wire.PresentValue, Index: wire.NoIndex}
			var err error
			if ref.Object, err = wire.ParseObject(args[1]); err != nil {
				return err
			}
			if len(args) == 3 {
				if ref.Property, err = wire.ParseProperty(args[2]); err != nil {
					return err
				}
			}
			return n.run(c, func(ctx context.Context, client *wire.Client) error {
				t, err := n.target(ctx, client, args[0])
				if err != nil {
					return err
				}
				values, err := client.Read(ctx, t.address, ref)
				if err != nil {
					return fmt.Errorf("%s %s: %w", ref.Object, ref.Property, err)
				}
				f := field{ref: ref, bit: -1}
				var list []string
				for _, v := range values {
					text, err := f.text(v)
					if v == nil {
						text = "null"
					} else if err != nil {
						text = err.Error()
					}
					list = append(list, text)
				}
				_, err = fmt.Fprintln(out, strings.Join(list, " "))
				return err
			})
		},
	}
	n.addFlags(c, 3*time.Second)
	return c
}

func simulateCommand(out io.Writer) *cobra.Command {
	var listen string
	var instance uint32
	c := &cobra.Command{
		Use:   "simulate",
		Short: "Serve a simulated air handling unit",
		Long: `simulate serves an air handling unit over BACnet/IP until it is interrupted:

  analogInput:1  supply temperature    analogValue:1  setpoint, 16 to 28 °C
  analogInput:2  outside air           binaryOutput:1 fan
  binaryInput:1  filter is dirty       multiStateValue:1 mode: off, auto, manual`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			ctx := c.Context()
			if ctx == nil {
				ctx = context.Background()
			}
			ctx, stop := signal.NotifyContext(ctx, os.Interrupt, syscall.SIGTERM)
			defer stop()
			s, err := NewSimulator(listen, instance)
			if err != nil {
				return cmd.Failed(err)
			}
			_, _ = fmt.Fprintln(out, s.Addr())
			simulate(s, ctx.Done())
			return cmd.Failed(s.Close())
		},
	}
	c.Flags().StringVar(&listen, "listen", "127.0.0.1:47808", "UDP address to listen on; port 0 takes a free one")
	c.Flags().Uint32Var(&instance, "device", 1234, "the device's number")
	return c
}
