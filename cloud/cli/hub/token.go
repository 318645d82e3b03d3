// SPDX-License-Identifier: Apache-2.0

package hub

import (
	"context"
	"fmt"
	"net/url"
	"strings"

	"github.com/spf13/cobra"

	"github.com/edgebus/edgebus/cloud/cli/access"
	"github.com/edgebus/edgebus/cloud/cli/exitcode"
	"github.com/edgebus/edgebus/cloud/cli/printer"
	"github.com/edgebus/edgebus/cloud/cli/terminal"
)

// token is a bearer token as the hub lists it.
type token struct {
	ID      string   `json:"id"`
	User    string   `json:"user"`
	Role    string   `json:"role"`
	Nodes   []string `json:"nodes"`
	Created string   `json:"created"`
	Expires string   `json:"expires"`
	By      string   `json:"by"`
}

func newToken() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "token",
		Short: "Make, list and revoke bearer tokens",
		Long: `Make, list and revoke bearer tokens: credentials for programs, which the hub makes. A token signs in over HTTP
(Authorization: Bearer) and over MQTT (as the password), with a role and for nodes of its own, until it expires or is revoked.

This needs an operator of all nodes who has not signed in with such a token.`,
		Example: "  edgebus token create --user ci --role operator --nodes 'hall-*' --ttl 30d\n  edgebus token list\n  edgebus token revoke 3f2a9c",
	}
	cmd.AddCommand(newTokenCreate(), newTokenList(), newTokenRevoke())
	return cmd
}

func newTokenCreate() *cobra.Command {
	var o access.Hub
	var user, role, ttl, output string
	var nodes []string
	cmd := &cobra.Command{
		Use:   "create",
		Short: "Make a bearer token, and print it",
		Long: `Make a bearer token, and print it. The token is shown this once: the hub keeps its hash. How to use it is printed on the
standard error output.

` + exitcode.Help,
		Example: "  edgebus token create --user ci --role operator --nodes 'hall-*' --ttl 30d\n  edgebus token create --user grafana --role viewer --nodes '*' > grafana.token",
		Args:    cobra.NoArgs,
	}
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		var made struct {
			ID      string `json:"id"`
			Token   string `json:"token"`
			Expires string `json:"expires"`
		}
		asked := map[string]any{"user": user, "role": role, "nodes": nodes, "ttl": ttl}
		if err := o.Post(cmd.Context(), "/tokens", asked, &made); err != nil {
			return err
		}
		if output == "json" {
			return printer.JSON(cmd.OutOrStdout(), made)
		}
		fmt.Fprintln(cmd.OutOrStdout(), made.Token)
		tellTokenUse(cmd, &o, user, role, made.ID, made.Expires)
		return nil
	}
	cmd.Flags().StringVar(&user, "user", "", "name of the user who has the token; not one of auth.users, nor of a node")
	cmd.Flags().StringVar(&role, "role", "", "what the user may do: operator, viewer, controller, enroller or follower")
	cmd.Flags().StringSliceVar(&nodes, "nodes", nil, "the user's nodes, as names and patterns: 'hall-*'; '*' for all")
	cmd.Flags().StringVar(&ttl, "ttl", "", "for how long it is good, such as 12h or 30d; at most 1825d. Default: 90d, or until the sign-in that makes it ends")
	for _, name := range []string{"user", "role"} {
		_ = cmd.MarkFlagRequired(name)
	}
	o.Register(cmd)
	printer.OutputFlag(cmd, &output, "", "text", "json")
	return cmd
}

// tellTokenUse says what to do with a new token.
func tellTokenUse(cmd *cobra.Command, o *access.Hub, user, role, id, expires string) {
	out := cmd.ErrOrStderr()
	fmt.Fprintf(out, "The token %s of %s is good until %s. It is shown this once. ", id, terminal.Printable(user, printer.WidestCell), expires)
	if role == "follower" { // who may do nothing else
		fmt.Fprintf(out, "With it in the file %s.token, on the machine that is to have the copy:\n  edgebus follow --server %s --token-file %s.token --data-dir /var/lib/edgebus/hub\n", user, o.Server, user)
		return
	}
	fmt.Fprintln(out, "With it in $TOKEN:")
	if p, err := o.Resolve(); err == nil && p.MQTT != "" {
		if u, err := url.Parse(p.MQTT); err == nil {
			secure := ""
			if u.Scheme != "mqtt" {
				secure = " --cafile ca.pem"
			}
			fmt.Fprintf(out, "  mosquitto_pub -h %s -p %s%s -u %s -P \"$TOKEN\" -t TOPIC -m VALUE\n", u.Hostname(), u.Port(), secure, user)
		}
	}
	fmt.Fprintf(out, "  curl -H \"Authorization: Bearer $TOKEN\" %s/apis/edgebus.io/v1alpha1/devices\n", o.Server)
	fmt.Fprintf(out, "and for edgebus and kubectl, with it in the file %s.token:\n  edgebus context set %s --server %s --token-file %s.token\n", user, user, o.Server, user)
}

func newTokenList() *cobra.Command {
	var o access.Hub
	return o.PrintList(&cobra.Command{
		Use:     "list",
		Short:   "List the bearer tokens that there are",
		Long:    "List bearer tokens: whose they are, what their users may do, and until when. The tokens themselves are not kept.\n\n" + exitcode.Help,
		Example: "  edgebus token list",
	}, func(ctx context.Context) (any, [][]string, error) {
		var list []token
		if err := o.Get(ctx, "/tokens", &list); err != nil {
			return nil, nil, err
		}
		rows := [][]string{{"ID", "USER", "ROLE", "NODES", "EXPIRES", "BY"}}
		for _, t := range list {
			rows = append(rows, []string{
				t.ID, terminal.Printable(t.User, printer.WidestCell), t.Role, terminal.Printable(strings.Join(t.Nodes, ","), printer.WidestCell), t.Expires, terminal.Printable(t.By, printer.WidestCell),
			})
		}
		return list, rows, nil
	})
}

func newTokenRevoke() *cobra.Command {
	var o access.Hub
	return o.PerArgument(&cobra.Command{
		Use:     "revoke ID…",
		Short:   "Revoke bearer tokens, and end their connections",
		Long:    "Revoke tokens by their IDs, or by enough of an ID to tell it from the others (4 digits at least). Their connections end at once.\n\n" + exitcode.Help,
		Example: "  edgebus token revoke 3f2a9c",

		ValidArgsFunction: access.CompleteEach(&o, "/tokens", -1, func(t token) string { return t.ID + "\t" + t.Role + " " + t.User }),
	}, func(ctx context.Context, id string) (string, error) {
		return "token " + terminal.Printable(id, printer.WidestCell) + " revoked", o.Remove(ctx, "/tokens/"+url.PathEscape(id))
	})
}
