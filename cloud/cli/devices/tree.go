// SPDX-License-Identifier: Apache-2.0

package devices

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"github.com/edgebus/edgebus/cloud/cli/access"
	"github.com/edgebus/edgebus/cloud/cli/printer"
	"github.com/edgebus/edgebus/cloud/cli/terminal"
	"github.com/edgebus/edgebus/cloud/cli/tree"
	"github.com/edgebus/edgebus/topics"
)

// treeOptions are the flags of edgebus tree.
type treeOptions struct {
	access.Broker
	once   bool
	output string
	settle time.Duration
}

func newTree() *cobra.Command {
	var o treeOptions
	cmd := &cobra.Command{
		Use:   "tree NODE",
		Short: "Show a node's topics, live",
		Long: `Show every topic of a node's tree with its value, version and age, and every change.

The topics are read from the hub's broker. The node's own broker has the same:
--server mqtt://127.0.0.1:2883 on the node.`,
		Example: "  edgebus tree demo\n  edgebus tree demo --once -o json | jq .topics",
		Args:    cobra.ExactArgs(1),

		ValidArgsFunction: o.CompleteNames("nodes", 1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := o.Open(); err != nil {
				return err
			}
			return o.run(cmd.Context(), args[0], cmd.OutOrStdout())
		},
	}
	o.Register(cmd)
	f := cmd.Flags()
	f.BoolVar(&o.once, "once", false, "print the tree once, and end")
	printer.OutputFlag(cmd, &o.output, "json is the whole tree with --once, else one object for each change", "tree", "json")
	f.DurationVar(&o.settle, "settle", 300*time.Millisecond, "with --once: the tree is complete when no topic has come for this long")
	return cmd
}

func (o treeOptions) run(ctx context.Context, node string, out io.Writer) error {
	if !topics.ValidName(node) {
		return fmt.Errorf("%q is no node's name", node)
	}
	changes, err := tree.Source{Target: o.Target, OfHub: o.MQTT == "", Once: o.once}.Follow(ctx, node)
	if err != nil {
		return err
	}
	if o.once {
		return o.printOnce(ctx, node, changes, out)
	}
	if o.output == "json" {
		return tree.EachChange(ctx, changes, func(c tree.Change) error {
			if c.Key == "" {
				return nil // it is about the connection
			}
			return json.NewEncoder(out).Encode(c)
		})
	}
	if size, ok := terminal.Size(out); ok {
		v := tree.NewView(node)
		v.Down = "connecting to " + o.Target.MQTT
		return tree.Watch(ctx, v, changes, out, size)
	}
	return tree.EachChange(ctx, changes, func(c tree.Change) error {
		_, err := fmt.Fprintln(out, c)
		return err
	})
}

// printOnce prints the tree after its retained topics have arrived.
func (o treeOptions) printOnce(ctx context.Context, node string, changes <-chan tree.Change, out io.Writer) error {
	v := tree.NewView(node)
	var settled <-chan time.Time // from the first topic on
	for open := true; open; {
		select {
		case c, ok := <-changes:
			if !ok {
				return ctx.Err()
			}
			if c.Err != nil {
				return c.Err
			}
			v.Apply(c)
			if c.Key != "" {
				settled = time.After(o.settle)
			}
		case <-settled:
			open = false
		}
	}
	if v.Down != "" {
		return errors.New(v.Down)
	}
	if o.output == "json" {
		return printer.JSON(out, v.Document())
	}
	_, err := io.WriteString(out, v.Text(time.Now(), 0))
	return err
}
