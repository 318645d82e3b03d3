// SPDX-License-Identifier: Apache-2.0

package hub

import (
	"context"
	"strconv"

	"github.com/spf13/cobra"

	"github.com/edgebus/edgebus/cloud/cli/access"
	"github.com/edgebus/edgebus/cloud/cli/exitcode"
	"github.com/edgebus/edgebus/cloud/cli/printer"
	"github.com/edgebus/edgebus/cloud/cli/terminal"
)

func newSession() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "session",
		Short: "List and end the sessions of MQTT clients",
		Long: `List and end the sessions of MQTT clients, of the hub's broker or, with --server, of a node's own
(http://127.0.0.1:10550 on the node). A session belongs to the user who made it: as long as it lasts, no other
user can connect with its client identifier.

This needs an operator of all nodes; on a node's own broker an operator of the node.`,
		Example: "  edgebus session list\n  edgebus session end reader-7\n  edgebus session list --server http://127.0.0.1:10550",
	}
	cmd.AddCommand(newSessionList(), newSessionEnd())
	return cmd
}

func newSessionList() *cobra.Command {
	var o access.Hub
	return o.PrintList(&cobra.Command{
		Use:     "list",
		Short:   "List the sessions of connected and disconnected clients",
		Long:    "List sessions: the user, whether the client is connected, how much is queued for it, and how many messages\nits queue had no room for (missed), which counts over restarts.\n\n" + exitcode.Help,
		Example: "  edgebus session list\n  edgebus session list -o json | jq '.sessions[] | select(.connected | not)'",
	}, func(ctx context.Context) (any, [][]string, error) {
		list, err := o.Sessions(ctx)
		if err != nil {
			return nil, nil, err
		}
		rows := [][]string{{"CLIENT", "USER", "CONNECTED", "REMOTE", "AWAY SINCE", "EXPIRES", "SUBSCRIPTIONS", "MESSAGES", "BYTES", "MISSED"}}
		for _, s := range list.Sessions {
			rows = append(rows, []string{
				terminal.Printable(s.Client, printer.WidestCell), terminal.Printable(s.User, printer.WidestCell), strconv.FormatBool(s.Connected), s.Remote, s.Since, s.Expires,
				strconv.Itoa(s.Subscriptions), strconv.Itoa(s.Messages), strconv.Itoa(s.Bytes), strconv.FormatInt(s.Missed, 10),
			})
		}
		return list, rows, nil
	})
}

func newSessionEnd() *cobra.Command {
	var o access.Hub
	return o.PerArgument(&cobra.Command{
		Use:   "end CLIENT…",
		Short: "End sessions, their connections and their queues",
		Long: `End the sessions of clients, by their identifiers. A client that is connected is disconnected (0x98), its will is
published, and messages that are queued for it are dropped. The client identifier is free after that.

` + exitcode.Help,
		Example: "  edgebus session end reader-7",

		ValidArgsFunction: o.CompleteArguments(-1, func(ctx context.Context) (names []string) {
			list, err := o.Sessions(ctx)
			if err != nil {
				return nil
			}
			for _, s := range list.Sessions {
				names = append(names, s.Client)
			}
			return names
		}),
	}, func(ctx context.Context, id string) (string, error) {
		return "session of " + terminal.Printable(id, printer.WidestCell) + " ended", o.EndSession(ctx, id)
	})
}
