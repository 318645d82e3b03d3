// SPDX-License-Identifier: Apache-2.0

package snmp

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"os/signal"
	"strings"
	"sync"
	"syscall"
	"text/tabwriter"
	"time"

	"github.com/gosnmp/gosnmp"
	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"

	"github.com/edgebus/edgebus/configs"
	"github.com/edgebus/edgebus/mappers"
	"github.com/edgebus/edgebus/mappers/cmd"
	"github.com/edgebus/edgebus/mappers/settings"
)

// Main is the program mapper-snmp.
func Main(args []string, stdout, stderr io.Writer) int {
	return cmd.Program[configs.SNMP]{
		Name:  "mapper-snmp",
		Short: "The mapper for devices with an SNMP agent",
		Long: `mapper-snmp connects to a node's broker and drives every Device of that node whose
protocol is "snmp". The Device says where the agent is:

  protocol: {type: snmp, config: {address: "10.0.0.9", community: public}}
  protocol: {type: snmp, config: {address: "10.0.0.9", version: "3", credentials: ups}}

and its model's visitors say which object is which property, which trap is which event, and what a
command sets: oid 1.3.6.1.2.1.2.2.1.10 where 1.3.6.1.2.1.31.1.1.1.1 is eth0 is a column in the row
of a table where another column is so.

mapper-snmp scan finds agents, read prints an object, browse writes a Device and a DeviceModel.`,
		Example: `  mapper-snmp                                     # the node on this host
  mapper-snmp scan 10.0.0.0/24
  mapper-snmp browse 10.0.0.9 1.3.6.1.2.1.33 --node node1 | edgebus apply -f -
  mapper-snmp read 10.0.0.9 1.3.6.1.2.1.1.5.0`,
		Table: protocolSettings,
		Driver: func(c configs.SNMP, _ *mappers.Options) (mappers.Driver, error) {
			return New(Options{Traps: c.Traps, CredentialsDir: c.CredentialsDir, Timeout: c.Timeout}), nil
		},
		Commands: []*cobra.Command{browseCommand(stdout), readCommand(stdout), scanCommand(stdout)},
	}.Main(args, stdout, stderr)
}

// agentFlags are those of commands that ask agents.
type agentFlags struct {
	community, version, credentials, dir string
	timeout                              time.Duration
}

func (f *agentFlags) add(c *cobra.Command) {
	c.Flags().StringVar(&f.community, "community", "", "community of version 2c (default public)")
	c.Flags().StringVar(&f.version, "version", "2c", "2c or 3")
	c.Flags().StringVar(&f.credentials, "credentials", "", "name of a file with the community, or the user of version 3")
	c.Flags().StringVar(&f.dir, "credentials-dir", "/etc/edgebus/snmp-credentials", "the directory of that file")
	c.Flags().DurationVar(&f.timeout, "timeout", 3*time.Second, "how long an agent may take to answer")
}

// config is a Device's, for an address.
func (f *agentFlags) config(address string) map[string]string {
	config := map[string]string{"address": address}
	for key, value := range map[string]string{"community": f.community, "credentials": f.credentials} {
		if value != "" {
			config[key] = value
		}
	}
	if f.version != "2c" {
		config["version"] = f.version
	}
	return config
}

func (f *agentFlags) agent(address string) (*agent, error) {
	var c agentConfig
	if err := c.parseAgent(settings.OfDevice(protocol, mappers.Device{Config: f.config(address)}), f.timeout); err != nil {
		return nil, err
	}
	return newAgent(c, f.dir)
}

func signalContext(c *cobra.Command) (context.Context, context.CancelFunc) {
	ctx := c.Context()
	if ctx == nil {
		ctx = context.Background()
	}
	return signal.NotifyContext(ctx, os.Interrupt, syscall.SIGTERM)
}

func readCommand(out io.Writer) *cobra.Command {
	var f agentFlags
	c := &cobra.Command{
		Use: "read ADDRESS OID", Short: "Print an object, or all below one", Args: cobra.ExactArgs(2),
		RunE: func(c *cobra.Command, args []string) error {
			oid, ok := parseOID(args[1])
			if !ok {
				return fmt.Errorf("%q is no object such as 1.3.6.1.2.1.1.5.0", args[1])
			}
			a, err := f.agent(args[0])
			if err != nil {
				return err
			}
			ctx, stop := signalContext(c)
			defer stop()
			return cmd.Failed(printObjects(ctx, a, oid, out))
		},
	}
	f.add(c)
	return c
}

func printObjects(ctx context.Context, a *agent, oid string, out io.Writer) error {
	count := 0
	show := func(v gosnmp.SnmpPDU) error {
		text, err := (&field{oid: v.Name, scale: 1}).decode(v)
		if err != nil {
			return err
		}
		count++
		_, err = fmt.Fprintf(out, "%s = %s (%s)\n", v.Name[1:], text, v.Type)
		return err
	}
	packet, err := a.get(ctx, []string{oid})
	if err != nil {
		return err
	}
	if len(packet.Variables) == 1 && packet.Error == gosnmp.NoError && show(packet.Variables[0]) == nil {
		return nil
	}
	if err := a.walk(ctx, oid, show); err != nil {
		return err
	}
	if count == 0 {
		return fmt.Errorf("%s: the agent has no such object, and none below it", oid[1:])
	}
	return nil
}

// The objects that say what a device is.
const (
	systemDescription = ".1.3.6.1.2.1.1.1.0"
	systemName        = ".1.3.6.1.2.1.1.5.0"
)

const maxScanned = 4096

func scanCommand(out io.Writer) *cobra.Command {
	var f agentFlags
	c := &cobra.Command{
		Use: "scan NETWORK|ADDRESS…", Short: "List the agents that answer at some addresses", Args: cobra.MinimumNArgs(1),
		Example: "  mapper-snmp scan 10.0.0.0/24 10.0.1.9 --community monitor",
		RunE: func(c *cobra.Command, args []string) error {
			addresses, err := expandAddresses(args)
			if err != nil {
				return err
			}
			ctx, stop := signalContext(c)
			defer stop()
			return cmd.Failed(f.scan(ctx, addresses, out))
		},
	}
	f.add(c)
	return c
}

func expandAddresses(args []string) (list []string, err error) {
	for _, arg := range args {
		prefix, err := netip.ParsePrefix(arg)
		if err != nil {
			list = append(list, arg)
			continue
		}
		for a := prefix.Masked().Addr(); prefix.Contains(a) && len(list) <= maxScanned; a = a.Next() {
			list = append(list, a.String())
		}
	}
	if len(list) > maxScanned {
		return nil, fmt.Errorf("more than %d addresses are to be asked", maxScanned)
	}
	return list, nil
}

func (f *agentFlags) scan(ctx context.Context, addresses []string, out io.Writer) error {
	const atATime = 64
	var mu sync.Mutex
	rows := map[string]string{}
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(atATime)
	for _, address := range addresses {
		group.Go(func() error {
			a, err := f.agent(address)
			if err != nil {
				return err
			}
			defer a.close()
			packet, err := a.get(ctx, []string{systemName, systemDescription})
			if err != nil {
				return ctx.Err() // nobody is there
			}
			row := address
			for _, v := range packet.Variables {
				text, _ := (&field{oid: v.Name, scale: 1}).decode(v)
				row += "\t" + strings.Join(strings.Fields(text), " ")
			}
			mu.Lock()
			defer mu.Unlock()
			rows[address] = row
			return nil
		})
	}
	if err := group.Wait(); err != nil {
		return err
	}
	if len(rows) == 0 {
		return errors.New("no agent answered: they are silent to a wrong community or user")
	}
	w := tabwriter.NewWriter(out, 0, 8, 2, ' ', 0)
	_, _ = fmt.Fprintln(w, "ADDRESS\tNAME\tDESCRIPTION")
	for _, address := range addresses {
		if row, ok := rows[address]; ok {
			_, _ = fmt.Fprintln(w, row)
		}
	}
	return w.Flush()
}

func browseCommand(out io.Writer) *cobra.Command {
	var f agentFlags
	var node, name string
	c := &cobra.Command{
		Use: "browse ADDRESS OID", Short: "Write a Device and a DeviceModel of the objects below one", Args: cobra.ExactArgs(2),
		Long: `browse writes a property for each object below OID. Agents don't tell names: properties are called
by the end of their object's number, to be changed by hand.`,
		RunE: func(c *cobra.Command, args []string) error {
			oid, ok := parseOID(args[1])
			if !ok {
				return fmt.Errorf("%q is no object such as 1.3.6.1.2.1.33", args[1])
			}
			a, err := f.agent(args[0])
			if err != nil {
				return err
			}
			ctx, stop := signalContext(c)
			defer stop()
			found := cmd.FoundDevice{Name: name, Node: node, Protocol: protocol, Config: f.config(args[0])}
			err = a.walk(ctx, oid, func(v gosnmp.SnmpPDU) error {
				found.Properties = append(found.Properties, foundProperty(oid, v))
				return nil
			})
			if err == nil && len(found.Properties) == 0 {
				err = fmt.Errorf("%s has no objects below %s", args[0], args[1])
			}
			if err != nil {
				return cmd.Failed(err)
			}
			return cmd.Failed(cmd.WriteManifests(out, found))
		},
	}
	f.add(c)
	c.Flags().StringVar(&node, "node", "node1", "the Device's node")
	c.Flags().StringVar(&name, "name", "snmp", "the Device's name, and the model's")
	return c
}

func foundProperty(root string, v gosnmp.SnmpPDU) cmd.FoundProperty {
	p := cmd.FoundProperty{Name: "o" + strings.ReplaceAll(strings.TrimPrefix(v.Name, root), ".", "-"), Type: "int", Config: map[string]string{"oid": v.Name[1:]}}
	switch v.Type {
	case gosnmp.OctetString, gosnmp.ObjectIdentifier, gosnmp.IPAddress:
		p.Type = "string"
	case gosnmp.OpaqueFloat:
		p.Type = "float"
	case gosnmp.OpaqueDouble:
		p.Type = "double"
	}
	return p
}
