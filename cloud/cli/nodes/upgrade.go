// SPDX-License-Identifier: Apache-2.0

package nodes

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/edgebus/edgebus/cloud/cli/access"
	"github.com/edgebus/edgebus/cloud/cli/exitcode"
	"github.com/edgebus/edgebus/cloud/cli/printer"
	"github.com/edgebus/edgebus/cloud/cli/terminal"
	"github.com/edgebus/edgebus/cloud/client"
	"github.com/edgebus/edgebus/topics/backoff"
	"github.com/edgebus/edgebus/topics/resource"
)

var upgrades = client.Kind{Group: resource.Group, Version: resource.Version, Name: resource.KindUpgrade, Plural: "upgrades"}

const upgradesPath = "/apis/" + resource.APIVersion + "/upgrades"

func newUpgrade() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "upgrade",
		Short: "Upgrade the edge cores of nodes, and show how far that is",
		Long: `Upgrade the edge cores of nodes. The hub orders a version of them, some at a time; on each node the agent replaces the core, and returns
to the version before if the new one does not work. docs/upgrades.md says more.`,
		Example: "  edgebus upgrade start v1.2.0 -l site=hall --concurrency 5 --wait\n  edgebus upgrade status",
	}
	cmd.AddCommand(newUpgradeStart(), newUpgradeStatus(), newUpgradeConfirm(), newUpgradeAbort(), newUpgradeHistory())
	return cmd
}

func newUpgradeStart() *cobra.Command {
	var o access.Hub
	var u resource.Upgrade
	var labels string
	var settings []string
	var wait bool
	cmd := &cobra.Command{
		Use:   "start (VERSION | --set NAME=VALUE... | --image IMAGE...) (--node NAME... | -l LABELS)",
		Short: "Order a version, settings or images of nodes",
		Long: `Order a version of nodes: make an Upgrade, whose name is the version if none is given. Its Artifact must be there, or nothing begins
until it is: edgebus artifact push. With --set the nodes' cores get other settings instead, if the nodes allow it; with --image the nodes
pull container images. Both need --name.

` + exitcode.Help,
		Example: "  edgebus upgrade start v1.2.0 --node n1 --wait\n  edgebus upgrade start v1.2.0 -l site=hall --concurrency 5 --failure-budget 5%\n" +
			"  edgebus upgrade start --name slower -l site=hall --set link.rate=1MB --wait",
		Args: cobra.MaximumNArgs(1),
	}
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		u.TypeMeta = resource.TypeMeta{APIVersion: resource.APIVersion, Kind: resource.KindUpgrade}
		if len(args) > 0 {
			u.Spec.Version = args[0]
		}
		if u.Metadata.Name = cmp.Or(u.Metadata.Name, u.Spec.Version); u.Metadata.Name == "" {
			return exitcode.Errorf(exitcode.Misused, "give a VERSION, or --name with --set or --image")
		}
		var err error
		if u.Spec.Settings, err = parsePairs(settings, "--set", "a setting of edgecore with its value, such as link.rate=1MB"); err != nil {
			return err
		}
		if labels != "" {
			set, err := parsePairs(strings.Split(labels, ","), "-l", "labels with their values, such as site=hall,stage=test")
			if err != nil {
				return err
			}
			u.Spec.LabelSelector = &resource.LabelSelector{MatchLabels: set}
		}
		if err := u.Validate(); err != nil {
			return err
		}
		body, err := json.Marshal(u)
		if err != nil {
			return err
		}
		if _, err := o.Create(cmd.Context(), upgrades, "", body, client.WriteOptions{Strict: true}); err != nil {
			return err
		}
		fmt.Fprintf(cmd.OutOrStdout(), "upgrade/%s created\n", u.Metadata.Name)
		if !wait {
			return nil
		}
		return followUpgrade(cmd.Context(), o.Client, u.Metadata.Name, cmd.OutOrStdout())
	}
	cmd.ValidArgsFunction = o.CompleteNames("artifacts", 1)
	f, s := cmd.Flags(), &u.Spec
	f.StringVar(&u.Metadata.Name, "name", "", "name of the Upgrade; default: the version")
	f.StringArrayVar(&settings, "set", nil, "a setting of edgecore with its value, such as link.rate=1MB; may be given several times")
	f.StringArrayVar(&s.Images, "image", nil, "a container image to pull; may be given several times")
	f.StringSliceVar(&s.NodeNames, "node", nil, "name of a node; may be given several times")
	f.StringVarP(&labels, "selector", "l", "", "nodes with these labels: site=hall,stage=test")
	f.StringVar(&s.Artifact, "artifact", "", "name of the Artifact; default: the version")
	f.IntVar(&s.Concurrency, "concurrency", 1, "how many nodes at a time")
	f.StringVar(&s.FailureBudget, "failure-budget", "", "how many nodes may fail before no more begin: a number or a percentage; default: 10%")
	f.StringVar(&s.Timeout, "node-timeout", "", "how long a node may take; default: 10m")
	f.BoolVar(&s.RequireConfirmation, "require-confirmation", false, "wait for edgebus upgrade confirm")
	f.BoolVar(&s.RequireNodeConfirmation, "require-node-confirmation", false, "wait, on each node, for its owner")
	f.BoolVar(&s.AllowDowngrade, "allow-downgrade", false, "also where the node has a newer version")
	_ = cmd.RegisterFlagCompletionFunc("node", o.CompleteNames("nodes", -1))
	_ = cmd.RegisterFlagCompletionFunc("artifact", o.CompleteNames("artifacts", -1))
	f.BoolVarP(&wait, "wait", "w", false, "show the progress until all nodes have answered; exit code 1 if one has failed")
	o.Register(cmd)
	return cmd
}

func newUpgradeStatus() *cobra.Command {
	var o access.Hub
	var watch bool
	cmd := &cobra.Command{
		Use:   "status [NAME]",
		Short: "Show how far upgrades are, or the nodes of one",
		Long: `Show how far all upgrades are, or how far each node of one is. With --watch the progress of one is shown until all of its nodes have
answered; the exit code is 1 if one has failed, or if the upgrade was stopped.

` + exitcode.Help,
		Example: "  edgebus upgrade status\n  edgebus upgrade status v1.2.0 --watch",
		Args:    cobra.MaximumNArgs(1),
	}
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		switch {
		case len(args) == 0 && watch:
			return exitcode.Errorf(exitcode.Misused, "--watch needs the name of an upgrade")
		case len(args) == 0:
			return listUpgrades(cmd.Context(), o.Client, cmd.OutOrStdout())
		case watch:
			return followUpgrade(cmd.Context(), o.Client, args[0], cmd.OutOrStdout())
		}
		u, err := readUpgrade(cmd.Context(), o.Client, args[0])
		if err != nil {
			return err
		}
		rows := [][]string{{"NODE", "FROM", "TO", "STATUS", "STEP", "REASON"}}
		for _, n := range u.Status.Nodes {
			a := n.Last()
			rows = append(rows, []string{n.NodeName, a.FromVersion, cmp.Or(a.ToVersion, u.Spec.Goal()), a.OperationStatus, a.Step, terminal.Printable(reasonOf(a), printer.WidestCell)})
		}
		fmt.Fprintln(cmd.OutOrStdout(), summaryOf(u))
		return new(printer.AlignedRows).Write(cmd.OutOrStdout(), rows)
	}
	cmd.Flags().BoolVarP(&watch, "watch", "w", false, "show the progress until it is over")
	cmd.ValidArgsFunction = o.CompleteNames("upgrades", 1)
	o.Register(cmd)
	return cmd
}

func newUpgradeConfirm() *cobra.Command {
	return upgradeChange("confirm", "Let an upgrade begin that waits for a confirmation",
		"Let an upgrade begin that waits for a confirmation (requireConfirmation): what it wants now is confirmed.", "confirmed",
		func(u resource.Upgrade) map[string]any { return map[string]any{"confirmed": u.Spec.Confirmation()} })
}

func newUpgradeAbort() *cobra.Command {
	return upgradeChange("abort", "Stop an upgrade: no more nodes begin",
		`Stop an upgrade: no more nodes begin, and those that have changed nothing yet stop, too. Nodes that have changed something finish it, or
roll back. Nodes that have the version keep it.`, "aborted",
		func(resource.Upgrade) map[string]any { return map[string]any{"aborted": true} })
}

// upgradeChange is a command that changes the spec of an Upgrade.
func upgradeChange(name, short, long, did string, change func(resource.Upgrade) map[string]any) *cobra.Command {
	var o access.Hub
	cmd := &cobra.Command{
		Use: name + " NAME", Short: short, Long: long + "\n\n" + exitcode.Help, Example: "  edgebus upgrade " + name + " v1.2.0", Args: cobra.ExactArgs(1),
		ValidArgsFunction: o.CompleteNames("upgrades", 1),
	}
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		u, err := readUpgrade(cmd.Context(), o.Client, args[0])
		if err != nil {
			return err
		}
		if _, err := o.Patch(cmd.Context(), upgrades, "", args[0], map[string]any{"spec": change(u)}, client.WriteOptions{}); err != nil {
			return err
		}
		fmt.Fprintf(cmd.OutOrStdout(), "upgrade/%s %s\n", args[0], did)
		return nil
	}
	o.Register(cmd)
	return cmd
}

func newUpgradeHistory() *cobra.Command {
	var o access.Hub
	cmd := &cobra.Command{
		Use:     "history NODE",
		Short:   "Show what was tried to upgrade a node",
		Long:    "Show what each Upgrade that there is has tried on a node, the newest last.\n\n" + exitcode.Help,
		Example: "  edgebus upgrade history n1",
		Args:    cobra.ExactArgs(1),

		ValidArgsFunction: o.CompleteNames("nodes", 1),
	}
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		list, err := readUpgrades(cmd.Context(), o.Client)
		if err != nil {
			return err
		}
		type entry struct {
			resource.UpgradeAttempt
			of, goal string
		}
		var all []entry
		var nodes []string
		for _, u := range list {
			for _, n := range u.Status.Nodes {
				nodes = append(nodes, n.NodeName)
				for _, a := range n.History {
					if n.NodeName == args[0] {
						all = append(all, entry{a, u.Metadata.Name, u.Spec.Goal()})
					}
				}
			}
		}
		slices.SortStableFunc(all, func(a, b entry) int {
			return cmp.Compare(cmp.Or(a.StartedAt, a.EndedAt, "~"), cmp.Or(b.StartedAt, b.EndedAt, "~"))
		})
		if len(all) == 0 {
			return exitcode.Errorf(exitcode.NotFound, "no Upgrade has been for a node %s%s", terminal.Printable(args[0], 100), resource.DidYouMean(args[0], nodes))
		}
		rows := [][]string{{"STARTED", "ENDED", "UPGRADE", "FROM", "TO", "STATUS", "REASON"}}
		for _, a := range all {
			rows = append(rows, []string{cmp.Or(a.StartedAt, "-"), cmp.Or(a.EndedAt, "-"), a.of, cmp.Or(a.FromVersion, "-"), cmp.Or(a.ToVersion, a.goal), a.OperationStatus, terminal.Printable(a.Reason, printer.WidestCell)})
		}
		return new(printer.AlignedRows).Write(cmd.OutOrStdout(), rows)
	}
	o.Register(cmd)
	return cmd
}

func readUpgrade(ctx context.Context, c *client.Client, name string) (u resource.Upgrade, err error) {
	err = c.Get(ctx, upgradesPath+"/"+url.PathEscape(name), &u)
	return u, err
}

func readUpgrades(ctx context.Context, c *client.Client) ([]resource.Upgrade, error) {
	var list struct{ Items []resource.Upgrade }
	err := c.Get(ctx, upgradesPath, &list)
	return list.Items, err
}

func listUpgrades(ctx context.Context, c *client.Client, out io.Writer) error {
	list, err := readUpgrades(ctx, c)
	if err != nil {
		return err
	}
	rows := [][]string{{"NAME", "VERSION", "NODES", "DONE", "UPGRADING", "FAILED", "AWAY", "REASON"}}
	for _, u := range list {
		r := rolloutOf(u)
		rows = append(rows, []string{
			u.Metadata.Name, u.Spec.Goal(), strconv.Itoa(r.Nodes), strconv.Itoa(r.Succeeded), strconv.Itoa(r.Upgrading), strconv.Itoa(r.Failed), strconv.Itoa(r.Away), r.Reason,
		})
	}
	return new(printer.AlignedRows).Write(out, rows)
}

func rolloutOf(u resource.Upgrade) (r resource.UpgradeRollout) {
	if u.Status.Rollout != nil {
		r = *u.Status.Rollout
	}
	return r
}

// reasonOf is why an attempt has failed, or waits, or since when its node is away.
func reasonOf(a resource.UpgradeAttempt) string {
	if a.AwaySince == "" {
		return a.Reason
	}
	return strings.TrimPrefix(a.Reason+"; the node is away since "+a.AwaySince, "; ")
}

// summaryOf says in a line how far an upgrade is.
func summaryOf(u resource.Upgrade) string {
	r := rolloutOf(u)
	text := fmt.Sprintf("%s: %d of %d nodes have %s, %d are being upgraded, %d wait, %d failed", u.Metadata.Name, r.Succeeded, r.Nodes, u.Spec.Goal(), r.Upgrading, r.Pending, r.Failed)
	if r.Away > 0 {
		text += fmt.Sprintf(", %d away since soon after the upgrade", r.Away)
	}
	if r.Message != "" {
		text += ": " + r.Message
	}
	return terminal.Printable(text, 400)
}

// pollUpgrade is how often the progress of an upgrade is asked for.
const pollUpgrade = time.Second

// followUpgrade shows what happens to the nodes of an upgrade, until all have answered or none will begin any more.
func followUpgrade(ctx context.Context, c *client.Client, name string, out io.Writer) error {
	seen, line := make(map[string]string), ""
	for {
		u, err := readUpgrade(ctx, c, name)
		if err != nil {
			return err
		}
		for _, n := range u.Status.Nodes {
			a := n.Last()
			now := a.OperationStatus
			if a.Step != "" {
				now += " " + a.Step
			}
			if a.Reason != "" {
				now += " (" + a.Reason + ")"
			}
			if before := seen[n.NodeName]; before != now && (before != "" || a.OperationStatus != resource.UpgradePending) {
				fmt.Fprintf(out, "%s: %s\n", n.NodeName, terminal.Printable(now, 400))
			}
			seen[n.NodeName] = now
		}
		r := rolloutOf(u)
		if now := summaryOf(u); now != line {
			fmt.Fprintln(out, now)
			line = now
		}
		switch over := r.Run > 0 && r.Spec == u.Spec.RunOf() && r.Upgrading == 0; {
		case over && r.Succeeded == r.Nodes:
			return nil
		case over && r.Pending == 0, over && (r.Reason == "Halted" || u.Spec.Aborted):
			return exitcode.Errorf(exitcode.Failed, "%d of %d nodes have not been upgraded", r.Nodes-r.Succeeded, r.Nodes)
		}
		if !backoff.Sleep(ctx, pollUpgrade) {
			return ctx.Err()
		}
	}
}
