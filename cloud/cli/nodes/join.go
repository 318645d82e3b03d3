// SPDX-License-Identifier: Apache-2.0

package nodes

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/edgebus/edgebus/cloud/cli/access"
	"github.com/edgebus/edgebus/cloud/cli/exitcode"
	"github.com/edgebus/edgebus/cloud/cli/printer"
	"github.com/edgebus/edgebus/cloud/cli/terminal"
	"github.com/edgebus/edgebus/cloud/client"
	"github.com/edgebus/edgebus/topics/resource"
)

// Commands are those on nodes.
func Commands() []*cobra.Command {
	return []*cobra.Command{newInvite(), newApprove(), newDeny(), newNode(), newMapper(), newAuthority(), newRollout(), newUpgrade(), newArtifact(), newBlob()}
}

// invitation is one as the hub lists it.
type invitation struct {
	ID      string            `json:"id"`
	Node    string            `json:"node"`
	Labels  map[string]string `json:"labels"`
	Uses    int               `json:"uses"`
	Expires string            `json:"expires"`
	By      string            `json:"by"`
	UsedBy  []struct {
		Node string `json:"node"`
	} `json:"usedBy"`
}

func newInvite() *cobra.Command {
	var o access.Hub
	var labels, nodeLabels []string
	var uses int
	var ttl, revoke, output string
	var list, replace bool
	cmd := &cobra.Command{
		Use:   "invite NODE",
		Short: "Print the line that has a node join the hub",
		Long: `Print the command line that has a node join this hub, with a token in it. Paste it on the node. NODE is the name that
the node gets, or a pattern of names such as 'hall-*': then the node chooses (edgecore join --name), and --uses says
how many nodes may.

The node gets the labels given here. Those of its own settings (node.labels, node.labelFrom) it gets only if
--node-labels or the hub's auth.nodeLabels has their keys, since labels decide which fleet it is in.

The name of a node that has joined already, and was not revoked, takes --replace: whatever joins with another key then
takes its place.

The token is shown this once: the hub keeps its hash. Whoever has it can join in the node's name, until it is used or
expires.

` + exitcode.Help,
		Example: "  edgebus invite n1 --labels site=hall\n  edgebus invite 'hall-*' --uses 20 --ttl 24h\n  edgebus invite --list\n  edgebus invite --revoke 3f2a9c",
		Args:    cobra.MaximumNArgs(1),
	}
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if given := len(args) == 1; given == (list || revoke != "") || list && revoke != "" {
			return exitcode.Errorf(exitcode.Misused, "give a node's name, or --list, or --revoke ID")
		}
		switch {
		case list:
			return listInvitations(cmd, &o, output)
		case revoke != "":
			if err := o.Remove(cmd.Context(), "/enroll/invitations/"+url.PathEscape(revoke)); err != nil {
				return err
			}
			fmt.Fprintf(cmd.OutOrStdout(), "invitation %s revoked\n", terminal.Printable(revoke, printer.WidestCell))
			return nil
		}
		return printInvitation(cmd, &o, labels, client.InvitationRequest{Node: args[0], NodeLabels: nodeLabels, Uses: uses, TTL: ttl, Replace: replace}, output)
	}
	o.Register(cmd)
	cmd.Flags().StringSliceVarP(&labels, "labels", "l", nil, "labels of the node: site=hall,floor=2")
	cmd.Flags().StringSliceVar(&nodeLabels, "node-labels", nil, "`keys` of labels that the node may choose itself, by node.labels and node.labelFrom of its settings: site,arch, or '*'")
	cmd.Flags().IntVar(&uses, "uses", 0, "how many nodes may join with it (default 1)")
	cmd.Flags().StringVar(&ttl, "ttl", "1h", "for how long it is good, such as 1h or 7d; at most 365d")
	cmd.Flags().BoolVar(&replace, "replace", false, "let it take the place of a node that has joined by this name with another key, which is revoked")
	cmd.Flags().BoolVar(&list, "list", false, "list the invitations that there are")
	cmd.Flags().StringVar(&revoke, "revoke", "", "revoke the invitation with this `ID`")
	printer.OutputFlag(cmd, &output, "", "text", "json")
	return cmd
}

func printInvitation(cmd *cobra.Command, o *access.Hub, labels []string, r client.InvitationRequest, output string) (err error) {
	if r.Labels, err = parsePairs(labels, "--labels", "labels with their values, such as site=hall,floor=2"); err != nil {
		return err
	}
	a, err := o.Invite(cmd.Context(), r)
	if err != nil {
		return err
	}
	if output == "json" {
		return printer.JSON(cmd.OutOrStdout(), a)
	}
	if a.Hub == "" {
		fmt.Fprintln(cmd.ErrOrStderr(), "the hub listens nowhere with TLS, so no node can join: set listen: public in its hub.yaml")
	}
	fmt.Fprintln(cmd.OutOrStdout(), r.JoinCommand(a))
	return nil
}

func listInvitations(cmd *cobra.Command, o *access.Hub, output string) error {
	var list []invitation
	if err := o.Get(cmd.Context(), "/enroll/invitations", &list); err != nil {
		return err
	}
	rows := [][]string{{"ID", "NODE", "LABELS", "USED", "EXPIRES", "BY", "JOINED"}}
	for _, i := range list {
		var labels, joined []string
		for _, key := range slices.Sorted(maps.Keys(i.Labels)) {
			labels = append(labels, key+"="+i.Labels[key])
		}
		for _, j := range i.UsedBy {
			joined = append(joined, j.Node)
		}
		rows = append(rows, []string{
			i.ID, i.Node, terminal.Printable(strings.Join(labels, ","), printer.WidestCell), strconv.Itoa(len(i.UsedBy)) + "/" + strconv.Itoa(i.Uses),
			i.Expires, terminal.Printable(i.By, printer.WidestCell), terminal.Printable(strings.Join(joined, ","), printer.WidestCell),
		})
	}
	return printer.Rows(cmd.OutOrStdout(), output, list, rows)
}

// parsePairs reads the NAME=VALUE that a flag was given; nil: none.
func parsePairs(pairs []string, flag, what string) (set map[string]string, err error) {
	for _, pair := range pairs {
		name, value, ok := strings.Cut(pair, "=")
		if !ok {
			return nil, exitcode.Errorf(exitcode.Misused, "%s %s: must be %s", flag, terminal.Printable(pair, 100), what)
		}
		if set == nil {
			set = map[string]string{}
		}
		set[name] = value
	}
	return set, nil
}

func newApprove() *cobra.Command { return newDecision("approve", resource.Approved, "approved") }

func newDeny() *cobra.Command { return newDecision("deny", resource.Denied, "denied") }

// newDecision makes the command that decides about an EnrollmentRequest.
func newDecision(verb, decision, done string) *cobra.Command {
	var o access.Hub
	var labels []string
	var replace bool
	cmd := &cobra.Command{
		Use:   verb + " NODE|REQUEST",
		Short: map[string]string{resource.Approved: "Let a node join that asks to", resource.Denied: "Refuse a node that asks to join"}[decision],
		Long: `Decide about the EnrollmentRequest of a node that ran edgecore join without a token. "edgebus get enrollmentrequests" lists
them. Compare the fingerprint of the key with the one that the node shows. A decision is not taken back.

` + exitcode.Help,
		Example: "  edgebus get enrollmentrequests\n  edgebus " + verb + " n1",
		Args:    cobra.ExactArgs(1),

		ValidArgsFunction: completeRequests(&o),
	}
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		set, err := parsePairs(labels, "--labels", "labels with their values, such as site=hall,floor=2")
		if err != nil {
			return err
		}
		kind, err := o.Kind(cmd.Context(), "enrollmentrequests")
		if err != nil {
			return err
		}
		er, err := findRequest(cmd, &o, kind, args[0])
		if err != nil {
			return err
		}
		spec := map[string]any{"approval": decision}
		if replace {
			spec["replace"] = true
		}
		if len(set) > 0 {
			spec["labels"] = set
		}
		if _, err := o.Patch(cmd.Context(), kind, "", er.Metadata.Name, map[string]any{"spec": spec}, client.WriteOptions{}); err != nil {
			return err
		}
		fmt.Fprintf(cmd.OutOrStdout(), "node %s %s (request %s)\n", er.Spec.NodeName, done, er.Metadata.Name)
		if er.Spec.SystemInfo != nil {
			fmt.Fprintf(cmd.OutOrStdout(), "it is a host with %s on %s\n", terminal.Printable(er.Spec.SystemInfo.OperatingSystem, 100), terminal.Printable(er.Spec.SystemInfo.Architecture, 100))
		}
		if csr, err := resource.ParseCSR(er.Spec.CSR, ""); err == nil {
			fmt.Fprintf(cmd.OutOrStdout(), "the fingerprint of its key is %s\n", csr.Key)
		}
		return nil
	}
	o.Register(cmd)
	if decision == resource.Approved {
		cmd.Flags().StringSliceVarP(&labels, "labels", "l", nil, "labels of the node, beside those that it asks for: site=hall,floor=2")
		cmd.Flags().BoolVar(&replace, "replace", false, "let it take the place of a node that has joined by its name with another key, which is revoked")
	}
	return cmd
}

// completeRequests offers the nodes that wait for a decision.
func completeRequests(o *access.Hub) access.CompletionFunc {
	return o.CompleteArguments(1, func(ctx context.Context) []string {
		var list struct{ Items []resource.EnrollmentRequest }
		if err := o.Get(ctx, "/apis/"+resource.APIVersion+"/enrollmentrequests", &list); err != nil {
			return nil
		}
		return slices.Sorted(maps.Keys(access.RequestsByNode(list.Items)))
	})
}

// findRequest finds a request by its own name, or the only one that waits in a node's name.
func findRequest(cmd *cobra.Command, o *access.Hub, kind client.Kind, name string) (found resource.EnrollmentRequest, err error) {
	var waiting []resource.EnrollmentRequest
	var names []string
	exact := false
	_, err = o.List(cmd.Context(), kind, client.ListOptions{}, func(page []client.Object) error {
		for _, obj := range page {
			var er resource.EnrollmentRequest
			if err := json.Unmarshal(obj.JSON, &er); err != nil {
				return err
			}
			if er.Spec.Approval == "" {
				names = append(names, er.Spec.NodeName, er.Metadata.Name)
			}
			switch {
			case er.Metadata.Name == name:
				found, exact = er, true
			case er.Spec.NodeName == name && er.Spec.Approval == "":
				waiting = append(waiting, er)
			}
		}
		return nil
	})
	switch {
	case err != nil || exact:
		return found, err
	case len(waiting) == 0:
		return found, exitcode.Errorf(exitcode.NotFound, "no EnrollmentRequest of %s waits for a decision%s", terminal.Printable(name, 100), resource.DidYouMean(name, names))
	case len(waiting) == 1:
		return waiting[0], nil
	}
	names = nil
	for _, er := range waiting {
		names = append(names, er.Metadata.Name)
	}
	return found, exitcode.Errorf(exitcode.Refused, "several nodes ask to be %s; name one of the requests: %s", terminal.Printable(name, 100), strings.Join(names, ", "))
}

func newNode() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "node",
		Short: "Revoke a node's certificates, or decommission it",
	}
	cmd.AddCommand(newRevoke(false), newRevoke(true))
	return cmd
}

func newRevoke(decommission bool) *cobra.Command {
	var o access.Hub
	cmd := &cobra.Command{
		Use:   "revoke NODE…",
		Short: "End a node's connection, and take its certificates no more",
		Long: `Take no certificate any more that the node has now, and end its connections. This holds for good, also over restarts
of the hub and when a backup is restored over the data that knows of it. The node can join again with a new
invitation; its Node and its devices stay.

` + exitcode.Help,
		Example: "  edgebus node revoke n1",

		ValidArgsFunction: o.CompleteNames("nodes", -1),
	}
	verb, done := "/revoke", "revoked"
	if decommission {
		verb, done = "/decommission", "decommissioned"
		cmd.Use, cmd.Short = "decommission NODE…", "End a node's part in the bus: it forgets its keys, and its Node is deleted"
		cmd.Long = `Take no certificate any more that the node has now, end its connections, and delete its Node. When the node connects the next time, it gets a
notice that the authority has signed, and moves its keys and certificates aside; it deletes them after a day. Its devices stay, and wait for a node.

` + exitcode.Help
		cmd.Example = "  edgebus node decommission n1"
	}
	return o.PerArgument(cmd, func(ctx context.Context, node string) (string, error) {
		return "node " + node + " " + done, o.Post(ctx, "/enroll/nodes/"+url.PathEscape(node)+verb, struct{}{}, nil)
	})
}
