package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/edgebus/edgebus/broker/client"
	"github.com/edgebus/edgebus/topics"
)

// treeOptions are the flags of edgebus tree.
type treeOptions struct {
	brokerFlags
	once    bool
	output  string
	settle  time.Duration
	forever bool // never give a lost connection up
}

func newTree() *cobra.Command {
	var o treeOptions
	cmd := &cobra.Command{
		Use:   "tree NODE",
		Short: "Show a node's tree, live",
		Long: `Show every topic of a node's tree with its value, version and age, as it changes.

It asks the hub of the context (edgebus context --help), by default the one of this
machine. The node's own broker has the same topics: --server mqtt://127.0.0.1:2883.`,
		Example: "  edgebus tree demo\n  edgebus tree demo --once -o json | jq .topics",
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := o.resolve(); err != nil {
				return err
			}
			return o.run(cmd.Context(), args[0], cmd.OutOrStdout())
		},
	}
	o.flags(cmd)
	f := cmd.Flags()
	f.BoolVar(&o.once, "once", false, "print the tree as it is, and end")
	f.StringVarP(&o.output, "output", "o", "tree", "tree, or json: the whole tree with --once, else one object for each change")
	f.DurationVar(&o.settle, "settle", 300*time.Millisecond, "with --once: the tree is whole when nothing came for this long")
	return cmd
}

func (o treeOptions) run(ctx context.Context, node string, out io.Writer) error {
	if !topics.ValidName(node) {
		return fmt.Errorf("%q is no node's name", node)
	}
	if o.output != "tree" && o.output != "json" {
		return fmt.Errorf("--output is tree or json, not %q", o.output)
	}
	changes, err := o.follow(ctx, node)
	if err != nil {
		return err
	}
	if o.once {
		return o.printOnce(ctx, node, changes, out)
	}
	changes = o.known(ctx, node, changes)
	if o.output == "json" {
		return eachChange(ctx, changes, func(c change) error {
			if c.Key == "" {
				return nil // a word about the connection is no topic
			}
			return json.NewEncoder(out).Encode(c)
		})
	}
	if size, ok := terminal(out); ok {
		v := newView(node)
		v.down = "connecting to " + o.server
		return watchScreen(ctx, v, changes, out, size, nil)
	}
	return eachChange(ctx, changes, func(c change) error {
		_, err := fmt.Fprintln(out, c)
		return err
	})
}

// How long a script waits: for the answer to CONNECT, and for the first topic, which
// a broker sends at once after the subscription.
const (
	connectTime = 3 * time.Second
	firstTime   = 2 * time.Second
)

func (o treeOptions) unknown(node string) error {
	return withCode(notFound, "nothing is known of a node %s at %s: edgebus get nodes lists those that there are", node, o.server)
}

// known passes changes on, and ends with an error when the broker is connected and has no topic of the node.
func (o treeOptions) known(ctx context.Context, node string, changes <-chan change) <-chan change {
	out := make(chan change)
	go func() {
		defer close(out)
		var nothing <-chan time.Time
		seen := false
		for {
			var c change
			ok := true
			select {
			case c, ok = <-changes:
			case <-nothing:
				c.err = o.unknown(node)
			case <-ctx.Done():
				return
			}
			switch {
			case !ok:
				return
			case c.Key != "":
				seen, nothing = true, nil
			case c.up && !seen:
				nothing = time.After(firstTime)
			case c.down != "":
				nothing = nil
			}
			select {
			case out <- c:
			case <-ctx.Done():
				return
			}
			if c.err != nil {
				return
			}
		}
	}()
	return out
}

func (o treeOptions) printOnce(ctx context.Context, node string, changes <-chan change, out io.Writer) error {
	v := newView(node)
	var settled <-chan time.Time // from the connection on; without one, follow gives up
	for open := true; open; {
		select {
		case c, ok := <-changes:
			if !ok {
				return ctx.Err()
			}
			if c.err != nil {
				return c.err
			}
			v.apply(c)
			switch {
			case c.up:
				settled = time.After(firstTime)
			case c.Key != "":
				settled = time.After(o.settle)
			}
		case <-settled:
			open = false
		}
	}
	if v.down != "" {
		return errors.New(v.down)
	}
	if len(v.values) == 0 {
		return o.unknown(node)
	}
	if o.output == "json" {
		encoder := json.NewEncoder(out)
		encoder.SetIndent("", "  ")
		return encoder.Encode(v.document())
	}
	_, err := io.WriteString(out, v.text(time.Now(), 0))
	return err
}

func eachChange(ctx context.Context, changes <-chan change, f func(change) error) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case c, ok := <-changes:
			if !ok {
				return nil
			}
			if c.err != nil {
				return c.err
			}
			if err := f(c); err != nil {
				return err
			}
		}
	}
}

// follow subscribes to a node's tree. The channel closes when ctx ends. A
// connection that is refused or can't be made at first is an error in the channel;
// one that is lost later is made again.
func (o treeOptions) follow(ctx context.Context, node string) (<-chan change, error) {
	co, err := o.options("tree")
	if err != nil {
		return nil, err
	}
	changes := make(chan change, 64)
	send := func(c change) {
		select {
		case changes <- c:
		case <-ctx.Done():
		}
	}
	down := func(err error) { send(change{down: "not connected to " + o.server + ": " + err.Error()}) }
	co.Attempts, co.ConnectTimeout = o.attempts(), o.connectTime()
	co.Subscriptions = []client.Subscription{{Filter: topics.Prefix + node + "/#", QoS: 1}}
	co.OnConnect = func(context.Context, bool) error {
		send(change{up: true})
		return nil
	}
	co.OnMessage = func(m client.Message) {
		if c, ok := fromMessage(m, time.Now()); ok {
			send(c)
		}
	}
	co.OnDisconnect, co.OnConnectError = down, down
	c, err := client.New(co)
	if err != nil {
		return nil, err
	}
	go func() {
		defer close(changes)
		if err := c.Run(ctx); err != nil && ctx.Err() == nil {
			send(change{err: explain(err, o.server)})
		}
	}()
	return changes, nil
}

func (o treeOptions) connectTime() time.Duration {
	if o.once {
		return connectTime
	}
	return 0 // the client's own
}

// attempts is how often a connection is tried: a person who looks on can wait for
// a broker to come back, a script can't.
func (o treeOptions) attempts() int {
	switch {
	case o.forever:
		return 0
	case o.once:
		return 2
	default:
		return 20
	}
}

func explain(err error, server string) error {
	var refused *client.Refused
	if errors.As(err, &refused) {
		return err
	}
	return fmt.Errorf("no connection to %s: %w", server, err)
}

// terminal is whether out is one, and how to learn its size.
func terminal(out any) (size func() (width, height int), ok bool) {
	file, isFile := out.(*os.File)
	if !isFile || !term.IsTerminal(int(file.Fd())) {
		return nil, false
	}
	return func() (int, int) {
		width, height, err := term.GetSize(int(file.Fd()))
		if err != nil || width < 1 || height < 1 {
			return 80, 24
		}
		return width, height
	}, true
}
