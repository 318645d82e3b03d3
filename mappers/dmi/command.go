// SPDX-License-Identifier: Apache-2.0

package dmi

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"text/tabwriter"

	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"

	"github.com/edgebus/edgebus/broker/daemon/datadir"
	"github.com/edgebus/edgebus/broker/daemon/rawgrpc"
	"github.com/edgebus/edgebus/configs"
	"github.com/edgebus/edgebus/mappers"
	"github.com/edgebus/edgebus/mappers/cmd"
)

const program = "mapper-dmi"

// Main is the program mapper-dmi.
func Main(args []string, stdout, stderr io.Writer) int {
	return cmd.Program[configs.DMI]{
		Name:  program,
		Short: "Drives devices through mappers that were written for KubeEdge",
		Long: `mapper-dmi connects to a node's broker, and serves the socket on which KubeEdge's mappers
register (DMI contractV1beta1 and contractV1alpha1): they run here unchanged. Each of them gets the Devices of
this node that have its protocol, in KubeEdge's form or in Edgebus':

  protocol: {type: bluetooth, config: {mac: "AC:23:3F:4E:77:01"}}

Which mappers have registered is kept on disk: bridge and mappers start and end in any order.
mapper-dmi list prints them. To forget one, stop mapper-dmi and remove it from mappers.json.

The interface has neither an answer to a write nor a refusal: a desired value counts as applied
once the mapper reports it, and until then it is refused as Unavailable and written again.
A device of which nothing is reported for two of its cycles is offline; for a mapper that reports
changes only, the Device's config says how long it may be silent: offlineAfter: 24h.

A protocol that another mapper of the node drives (mapper-modbus: modbus) must not be registered
here as well: both would drive the same Devices.`,
		Example: `  mapper-dmi                                       # the node on this host
  mapper-dmi --driver-socket /run/edgebus/dmi.sock
  mapper-dmi list`,
		Run:      run,
		Commands: []*cobra.Command{listCommand(stdout)},
	}.Main(args, stdout, stderr)
}

func run(ctx context.Context, c configs.DMI, o mappers.Options) error {
	lock, err := datadir.Lock(c.Dir, program)
	if err != nil {
		return fmt.Errorf("driver.dir: %w", err)
	}
	defer lock.Close()
	o.ConfirmWithin = c.ConfirmWithin
	b, err := newBridge(c.Dir, o)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(c.Socket), 0o755); err != nil { //nolint:gosec // G301: /etc/kubeedge, which mappers of other users enter
		return fmt.Errorf("driver.socket: %w", err)
	}
	l, err := rawgrpc.ListenUnix(c.Socket)
	if err != nil {
		return fmt.Errorf("driver.socket: %w", err)
	}
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return b.serve(ctx, l) })
	g.Go(func() error { return b.run(ctx) })
	return g.Wait()
}

// listCommand makes the command that prints which mappers have registered.
func listCommand(stdout io.Writer) *cobra.Command {
	list := &cobra.Command{
		Use: "list", Short: "Print the mappers that have registered", Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			cfg, done, err := configs.LoadFlags[configs.Mapper[configs.DMI]](program, c.Flags(), stdout)
			if err != nil || done {
				return err
			}
			b, err := newBridge(cfg.Driver.Dir, mappers.Options{})
			if err != nil {
				return cmd.Failed(err)
			}
			if len(b.peers) == 0 {
				_, err := fmt.Fprintf(stdout, "No mapper has registered at %s yet.\n", cfg.Driver.Socket)
				return err
			}
			w := tabwriter.NewWriter(stdout, 0, 0, 3, ' ', 0)
			fmt.Fprintln(w, "NAME\tPROTOCOL\tINTERFACE\tVERSION\tLISTENS\tSOCKET")
			for _, p := range b.sorted() {
				listens := "yes"
				if p.listens() != nil {
					listens = "no"
				}
				fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\n", p.reg.Name, p.reg.Protocol, p.contract, p.reg.Version, listens, p.reg.Address)
			}
			return w.Flush()
		},
	}
	list.Flags().SortFlags = false
	if err := configs.AddFlags[configs.Mapper[configs.DMI]](program, list.Flags()); err != nil {
		list.RunE = func(*cobra.Command, []string) error { return err }
	}
	return list
}
