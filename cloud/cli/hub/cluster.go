// SPDX-License-Identifier: Apache-2.0

package hub

import (
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"github.com/edgebus/edgebus/cloud/cli/access"
	"github.com/edgebus/edgebus/cloud/cli/diagnosis"
	"github.com/edgebus/edgebus/cloud/cli/printer"
	"github.com/edgebus/edgebus/cloud/cli/terminal"
	"github.com/edgebus/edgebus/topics/resource"
)

func newCluster() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "cluster",
		Short: "Show how several hubs are that have a log in common, and finish their upgrade",
		Long: `Several hubs that have a log in common are one: one of them serves, the others stand by (docs/cluster.md).

What is done on a hub's machine, with its data, cloudhub does there: cloudhub cluster --help lists it.`,
		Example: "  edgebus cluster status\n  cloudhub cluster --help",
	}
	cmd.AddCommand(newClusterStatus(), newFinishUpgrade())
	return cmd
}

func newClusterStatus() *cobra.Command {
	var o access.Hub
	var output string
	cmd := &cobra.Command{
		Use:   "status",
		Short: "Print the hubs, what they lack, and what is wrong",
		Long: `Ask a hub, which may stand by, for all hubs that it knows: who serves, how far each is behind, how its clock differs, when it was heard; for
the servers of the log; and for what is wrong, with advice.

The exit code is 0 if nothing is wrong, and 1 if something is. It needs a user who may read all nodes.`,
		Example: "  edgebus cluster status\n  edgebus cluster status --server http://hub-2:8080 -o json | jq .owner",
		Args:    cobra.NoArgs,
	}
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		var d diagnosis.ClusterDiagnosis
		if err := o.Get(cmd.Context(), "/cluster", &d); err != nil {
			return err
		}
		var err error
		if output == "text" {
			_, err = io.WriteString(cmd.OutOrStdout(), d.Text(terminal.ColoursOf(cmd.OutOrStdout())))
		} else {
			err = printer.Document(cmd.OutOrStdout(), output, d)
		}
		if err != nil {
			return err
		}
		return d.ExitError()
	}
	o.Register(cmd)
	printer.OutputFlag(cmd, &output, "", "text", "json", "yaml")
	return cmd
}

func newFinishUpgrade() *cobra.Command {
	var o access.Hub
	var dryRun, force bool
	cmd := &cobra.Command{
		Use:   "finish-upgrade",
		Short: "Have the hubs write what all of them know since they were upgraded",
		Long: `Hubs whose programs were upgraded one after the other go on writing what those before can read, so that each can go back. When all are upgraded this
ends that: the log's records are of the version that all hubs know, and a program that doesn't know it refuses to start as one of the hubs.

It is refused while a hub that was heard within a day knows an older version only; --force goes on without those that are away. It needs an operator of all nodes.`,
		Example: "  edgebus cluster finish-upgrade --dry-run\n  edgebus cluster finish-upgrade",
		Args:    cobra.NoArgs,
	}
	cmd.Flags().BoolVar(&dryRun, "dry-run", false, "say what would be done")
	cmd.Flags().BoolVar(&force, "force", false, "go on without hubs that are away and know an older version only")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		path := "/cluster/finish-upgrade?"
		if dryRun {
			path += "dryRun&"
		}
		if force {
			path += "force"
		}
		var p resource.ClusterUpgrade
		if err := o.Post(cmd.Context(), path, struct{}{}, &p); err != nil {
			return err
		}
		out := cmd.OutOrStdout()
		if p.Without != nil {
			fmt.Fprintf(out, "Hubs that are away and can't go on before they are upgraded: %s.\n", terminal.Printable(strings.Join(p.Without, ", "), 1000))
		}
		switch {
		case p.From == p.To:
			fmt.Fprintf(out, "The log has records of version %d already. Nothing was changed.\n", p.To)
		case !p.Done:
			fmt.Fprintf(out, "All hubs know records of version %d, and the log has those of version %d. Nothing was changed.\n", p.To, p.From)
		default:
			fmt.Fprintf(out, "The log has records of version %d from now on, and had those of version %d.\n", p.To, p.From)
		}
		return nil
	}
	o.Register(cmd)
	return cmd
}
