// SPDX-License-Identifier: Apache-2.0

package hub

import (
	"io"

	"github.com/spf13/cobra"

	"github.com/edgebus/edgebus/cloud/cli/access"
	"github.com/edgebus/edgebus/cloud/cli/diagnosis"
	"github.com/edgebus/edgebus/cloud/cli/printer"
	"github.com/edgebus/edgebus/cloud/cli/terminal"
)

func newCluster() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "cluster",
		Short: "Show how several hubs are that have a log in common",
		Long: `Several hubs that have a log in common are one: one of them serves, the others stand by (docs/cluster.md).

What is done on a hub's machine, with its data, cloudhub does there: cloudhub cluster --help lists it.`,
		Example: "  edgebus cluster status\n  cloudhub cluster --help",
	}
	cmd.AddCommand(newClusterStatus())
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
