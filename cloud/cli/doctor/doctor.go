// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"

	"github.com/spf13/cobra"

	"github.com/edgebus/edgebus/cloud/cli/access"
	"github.com/edgebus/edgebus/cloud/cli/diagnosis"
	"github.com/edgebus/edgebus/cloud/cli/exitcode"
	"github.com/edgebus/edgebus/cloud/cli/printer"
	"github.com/edgebus/edgebus/cloud/cli/terminal"
	"github.com/edgebus/edgebus/topics"
	"github.com/edgebus/edgebus/topics/resource"
)

// doctorOptions are the flags of edgebus doctor.
type doctorOptions struct {
	access.Flags
	target    access.Target // the hub, once the flags are resolved
	core      string
	coreGiven bool
	output    string
	limit     int
}

// New is edgebus doctor.
func New() *cobra.Command {
	var o doctorOptions
	cmd := &cobra.Command{
		Use:   "doctor [NODE]",
		Short: "Find out what is wrong with a node, and what to do",
		Long: `Ask the hub, and the node's core if it can be reached from here, about the link between them, and about
mappers and devices. Print what is right (✓), what should be looked at (!), and what is wrong (✗), with advice.
Without a NODE: the worst finding of each node, the worst node first.

The exit code is 0 if nothing is wrong, 1 if something is, and 2 if the hub does not answer, so
that this is not known.`,
		Example: "  edgebus doctor demo\n  edgebus doctor -o json | jq .links",
		Args:    cobra.MaximumNArgs(1),

		ValidArgsFunction: o.CompleteNames("nodes", 1),
		RunE: func(cmd *cobra.Command, args []string) error {
			o.coreGiven = cmd.Flags().Changed("core")
			var err error
			if o.target, err = o.Resolve(); err != nil {
				return err
			}
			if o.limit < 1 {
				return exitcode.Errorf(exitcode.Misused, "--limit is at least 1, not %d", o.limit)
			}
			if len(args) == 0 {
				return o.diagnoseAll(cmd.Context(), cmd.OutOrStdout())
			}
			return o.diagnoseOne(cmd.Context(), args[0], cmd.OutOrStdout())
		},
	}
	o.Register(cmd, "hub", "server")
	f := cmd.Flags()
	f.StringVar(&o.core, "core", "http://127.0.0.1:10550", "the core's HTTP address; not asked if nothing answers there, unless it is given")
	f.IntVar(&o.limit, "limit", 50, "without a NODE: the number of nodes to list")
	printer.OutputFlag(cmd, &o.output, "", "text", "json")
	return cmd
}

// diagnoseOne prints the diagnosis of a node.
func (o doctorOptions) diagnoseOne(ctx context.Context, node string, out io.Writer) error {
	if !topics.ValidName(node) {
		return fmt.Errorf("%q is no node's name", node)
	}
	d := diagnosis.Diagnose(o.collectFacts(ctx, node))
	return errors.Join(o.print(out, d, d.Text), d.ExitError())
}

// diagnoseAll prints one diagnosis.Finding for each node, the worst first.
func (o doctorOptions) diagnoseAll(ctx context.Context, out io.Writer) error {
	var r resource.LinkReport
	if err := o.getFromHub(ctx, fmt.Sprintf("/links?limit=%d", o.limit), &r); err != nil {
		if (diagnosis.Facts{HubErr: err}).HubRefused() {
			fmt.Fprintf(out, "✗ the hub at %s did not let us in: %v\n  → %s\n", o.target.Server, err, diagnosis.SignInAdvice)
		} else {
			fmt.Fprintf(out, "✗ the hub does not answer at %s: %v\n", o.target.Server, err)
		}
		return exitcode.Code(2)
	}
	s := diagnosis.SummariseNodes(r, o.collectAllFacts(ctx, r))
	var cluster diagnosis.ClusterDiagnosis
	if o.getFromHub(ctx, "/cluster", &cluster) == nil { // else there is one hub
		s.Hub = append(s.Hub, cluster.Findings...)
	}
	waiting := o.waitingRequests(ctx)
	for _, node := range slices.Sorted(maps.Keys(waiting)) {
		s.Hub = append(s.Hub, diagnosis.Finding{Mark: diagnosis.MarkLook, Message: printer.WaitingText(node, waiting[node])})
	}
	return errors.Join(o.print(out, s, s.Text), s.ExitError())
}

func (o doctorOptions) print(out io.Writer, v any, text func(terminal.Colours) string) error {
	if o.output == "json" {
		return printer.JSON(out, v)
	}
	_, err := io.WriteString(out, text(terminal.ColoursOf(out)))
	return err
}
