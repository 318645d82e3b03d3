package main

import (
	"encoding/json"
	"fmt"
	"strconv"

	"github.com/spf13/cobra"
)

func newSession() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "session",
		Short: "List and end the sessions of MQTT clients",
		Long: `List and end the sessions of MQTT clients, of the hub's broker or, with --server, of a node's own
(http://127.0.0.1:10550 on the node). A session belongs to the user who made it: as long as it lasts nobody
else can connect with its client identifier.

It is for operators of all nodes; on a node's own broker for those of the node.`,
		Example: "  edgebus session list\n  edgebus session end reader-7\n  edgebus session list --server http://127.0.0.1:10550",
	}
	cmd.AddCommand(newSessionList(), newSessionEnd())
	return cmd
}

func newSessionList() *cobra.Command {
	var o hub
	var output string
	cmd := &cobra.Command{
		Use:     "list",
		Short:   "List sessions, of clients that are connected or away",
		Long:    "List sessions: whose each is, whether its client is connected, and what waits for it.\n\n" + exitCodes,
		Example: "  edgebus session list\n  edgebus session list -o json | jq '.sessions[] | select(.connected | not)'",
		Args:    cobra.NoArgs,
	}
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if err := checkOutput(output, "table", "json"); err != nil {
			return err
		}
		if err := o.open(cmd); err != nil {
			return err
		}
		list, err := o.Sessions(cmd.Context())
		if err != nil {
			return err
		}
		if output == "json" {
			out := json.NewEncoder(cmd.OutOrStdout())
			out.SetIndent("", "  ")
			return out.Encode(list)
		}
		rows := [][]string{{"CLIENT", "USER", "CONNECTED", "REMOTE", "AWAY SINCE", "EXPIRES", "SUBSCRIPTIONS", "MESSAGES", "BYTES"}}
		for _, s := range list.Sessions {
			rows = append(rows, []string{
				printable(s.Client, widest), printable(s.User, widest), strconv.FormatBool(s.Connected), s.Remote, s.Since, s.Expires,
				strconv.Itoa(s.Subscriptions), strconv.Itoa(s.Messages), strconv.Itoa(s.Bytes),
			})
		}
		return new(grid).write(cmd.OutOrStdout(), rows)
	}
	o.flags(cmd)
	cmd.Flags().StringVarP(&output, "output", "o", "table", "table or json")
	return cmd
}

func newSessionEnd() *cobra.Command {
	var o hub
	cmd := &cobra.Command{
		Use:   "end CLIENT…",
		Short: "End sessions, with their connections and what waits for them",
		Long: `End the sessions of clients, by their identifiers. A client that is connected is disconnected (0x98), its will is
published, and messages that wait for it are dropped. The client identifier is free then.

` + exitCodes,
		Example: "  edgebus session end reader-7",
		Args:    cobra.MinimumNArgs(1),
	}
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if err := o.open(cmd); err != nil {
			return err
		}
		for _, id := range args {
			if err := o.EndSession(cmd.Context(), id); err != nil {
				return err
			}
			fmt.Fprintf(cmd.OutOrStdout(), "session of %s ended\n", printable(id, widest))
		}
		return nil
	}
	o.flags(cmd)
	return cmd
}
