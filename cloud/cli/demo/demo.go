// SPDX-License-Identifier: Apache-2.0

package demo

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/edgebus/edgebus/cloud/cli/access"
	"github.com/edgebus/edgebus/cloud/cli/terminal"
	"github.com/edgebus/edgebus/cloud/cli/tree"
)

// demoNode is the node's name; the samples' devices belong to it.
const demoNode = "demo"

// demo is edgebus demo: its flags and its parts.
type demo struct {
	hubMQTT, hubHTTP   string
	hubTLS             string // for nodes
	coreMQTT, coreHTTP string
	modbus             string
	dataDir            string
	keepData           bool // the directory was given by a flag: it is not removed
	programs           string
	duration           time.Duration

	group *processes
	link  *linkProxy // between node and hub; nil without a terminal
	join  string     // the line that the node joined with; empty: it had joined before

	mu    sync.Mutex
	in    io.Reader
	out   io.Writer
	notes chan tree.Change // takes what say is given, while the screen is drawn
}

// New is edgebus demo.
func New() *cobra.Command {
	d := &demo{}
	cmd := &cobra.Command{
		Use:   "demo",
		Short: "Run a hub, a node, its mappers and two simulated devices",
		Long: `Start cloudhub, edgecore, mapper-virtual and mapper-modbus as the programs they
are, and a simulated Modbus thermostat for the latter; create a lamp and a thermostat
on the node "demo"; and show the values in their brokers until ctrl-C, which stops all.
A program that ends or is killed is started again on the same data.

The node joins the hub as on two machines: "edgebus invite demo" makes a token, "edgecore join" gets a
certificate with it, and the link between the two is MQTT over TLS. People and mappers on this machine need
no password: the demo sets auth.anonymous to loopback.

On a terminal the hub's and the node's values are shown side by side, with keys that switch the lamp,
change values on the node, cut the link and kill the node; q ends it. Elsewhere each change is a line, and
SIGTERM or the time of --for ends it.

Without --data-dir everything is kept in a temporary directory, and removed at the
end unless something failed.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			d.in, d.out = cmd.InOrStdin(), cmd.OutOrStdout()
			if !cmd.Flags().Changed("hub-mqtt-tls") {
				d.hubTLS = freeAddress(d.hubTLS)
			}
			return d.run(cmd.Context())
		},
	}
	f := cmd.Flags()
	f.StringVar(&d.hubMQTT, "hub-mqtt", "127.0.0.1:1883", "the hub's MQTT address")
	f.StringVar(&d.hubTLS, "hub-mqtt-tls", "127.0.0.1:8883", "the hub's address of MQTT over TLS, for the node (default port taken: a free one)")
	f.StringVar(&d.hubHTTP, "hub-http", "127.0.0.1:8080", "the hub's HTTP address")
	f.StringVar(&d.coreMQTT, "core-mqtt", "127.0.0.1:2883", "the node's MQTT address")
	f.StringVar(&d.coreHTTP, "core-http", "127.0.0.1:10550", "the node's HTTP address")
	f.StringVar(&d.modbus, "modbus", "127.0.0.1:1502", "the simulated thermostat's Modbus address")
	f.StringVar(&d.dataDir, "data-dir", "", "directory to keep data and logs in (default: a temporary one, removed at the end unless something failed)")
	f.StringVar(&d.programs, "programs", "", "directory of the programs (default: this program's own, then PATH)")
	f.DurationVar(&d.duration, "for", 0, "stop after this long (default: at ctrl-C)")
	cmd.AddCommand(newCluster())
	return cmd
}

// run starts everything, shows it until ctx ends or something fails, and stops and
// removes everything.
func (d *demo) run(ctx context.Context) error {
	if err := d.checkPorts(); err != nil {
		return err
	}
	if _, ok := terminal.Size(d.out); ok {
		w, err := newProxy(d.hubTLS)
		if err != nil {
			return err
		}
		defer w.listener.Close()
		d.link = w
	}
	plan, err := d.plan()
	if err != nil {
		return err
	}
	if err := d.makeDataDir(); err != nil {
		return err
	}
	return d.withProcesses(ctx, func(ctx context.Context) error {
		if err := d.say("The page: http://" + d.hubHTTP + "/    (the node's own: http://" + d.coreHTTP + "/)"); err != nil {
			return err
		}
		if err := d.start(ctx, plan); err != nil {
			return err
		}
		return d.watch(ctx)
	})
}

// withProcesses calls run, which starts the programs, with a context that ends if one of them ends or the time of --for is over. Then it stops
// them, and removes their files.
func (d *demo) withProcesses(ctx context.Context, run func(context.Context) error) (err error) {
	if d.duration > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, d.duration)
		defer cancel()
	}
	broken := make(chan os.Signal, 1) // otherwise a broken pipe would end this program before it cleans up
	signal.Notify(broken, syscall.SIGPIPE)
	defer signal.Stop(broken)
	d.group = newProcesses(filepath.Join(d.dataDir, "logs"))
	defer func() { err = d.stop(err) }()

	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	d.group.onExit = func(err error) { cancel(err) }
	d.group.say = func(text string) { _ = d.say(text) }
	return exitReason(ctx, run(ctx))
}

// exitReason is the error that the demo ends with: first that of a program that ended, which
// causes others. An interrupt and a closed pipe are no errors.
func exitReason(ctx context.Context, err error) error {
	cause := context.Cause(ctx)
	switch {
	case errors.As(cause, new(*exitError)):
		return cause
	case cause != nil, errors.Is(err, syscall.EPIPE):
		return nil
	}
	return err
}

func (d *demo) makeDataDir() (err error) {
	if d.dataDir == "" {
		d.dataDir, err = os.MkdirTemp("", "edgebus-demo-")
		return err
	}
	d.keepData = true
	if d.dataDir, err = filepath.Abs(d.dataDir); err != nil {
		return err
	}
	return os.MkdirAll(d.dataDir, 0o755) //nolint:gosec // G301: nothing secret is in it, the programs' data has modes of its own
}

// watch shows what the brokers have until ctx ends.
func (d *demo) watch(ctx context.Context) error {
	if size, ok := terminal.Size(d.out); ok {
		notes := make(chan tree.Change, 64)
		d.mu.Lock()
		d.notes = notes
		d.mu.Unlock()
		s := &demoScreen{d: d, out: d.out, size: size, link: d.link, cloud: tree.NewView(demoNode), edge: tree.NewView(demoNode)}
		return s.run(ctx, d.in, notes)
	}
	changes, err := demoTree(d.hubMQTT).Follow(ctx, demoNode)
	if err != nil {
		return err
	}
	if err := d.say(strings.Join(d.hints(), "\n")); err != nil {
		return err
	}
	return tree.EachChange(ctx, changes, func(c tree.Change) error { return d.say(c.String()) })
}

// demoTree follows the node's tree at a broker until the demo ends.
func demoTree(address string) tree.Source {
	return tree.Source{Target: access.Target{MQTT: "mqtt://" + address}, Forever: true}
}

// say prints a line, at the foot of the screen while that is drawn.
func (d *demo) say(text string) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.notes == nil {
		_, err := fmt.Fprintln(d.out, text)
		return err
	}
	select {
	case d.notes <- tree.Change{Note: text}:
	default: // more than can be read
	}
	return nil
}

// stop ends all programs, the last one first, and removes their files, unless
// something failed: then the logs are needed.
func (d *demo) stop(failed error) error {
	err := errors.Join(failed, d.group.stop())
	switch {
	case err != nil:
		return fmt.Errorf("%w\ndata and logs are kept in %s", err, d.dataDir)
	case d.keepData:
		return nil
	default:
		return os.RemoveAll(d.dataDir)
	}
}
