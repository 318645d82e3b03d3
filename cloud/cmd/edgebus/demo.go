package main

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/edgebus/edgebus/cloud/client"
	"github.com/edgebus/edgebus/configs"
	"github.com/edgebus/edgebus/topics/resource"
)

// demoNode is the node's name; the samples' devices belong to it.
const demoNode = "demo"

// demo is edgebus demo: its flags and its parts.
type demo struct {
	hubMQTT, hubHTTP   string
	coreMQTT, coreHTTP string
	modbus             string
	dataDir            string
	keep               bool // the directory was there, or was asked for
	programs           string
	during             time.Duration

	group *processes
	wire  *wire // the link's, if there is a terminal to cut it from

	mu    sync.Mutex
	in    io.Reader
	out   io.Writer
	notes chan change // what is said, once the screen belongs to the view
}

func newDemo() *cobra.Command {
	d := &demo{}
	cmd := &cobra.Command{
		Use:   "demo",
		Short: "Run a hub, a node, its mappers and two simulated devices",
		Long: `Start cloudhub, edgecore, mapper-virtual and mapper-modbus as the programs they
are, and a simulated Modbus thermostat for the latter; create a lamp and a thermostat
on the node "demo"; and show until ctrl-C, which stops them all, what their brokers have.
A program that ends or is killed meanwhile is started again on the same data.

On a terminal that is the hub's and the node's values side by side, in step or not, with keys that
switch the lamp, change values on the node, cut the link and kill the node. Elsewhere it is a line
for each change.

Without --data-dir everything is kept in a temporary directory, and removed at the
end unless something failed.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			d.in, d.out = cmd.InOrStdin(), cmd.OutOrStdout()
			return d.run(cmd.Context())
		},
	}
	f := cmd.Flags()
	f.StringVar(&d.hubMQTT, "hub-mqtt", "127.0.0.1:1883", "the hub's MQTT address")
	f.StringVar(&d.hubHTTP, "hub-http", "127.0.0.1:8080", "the hub's HTTP address")
	f.StringVar(&d.coreMQTT, "core-mqtt", "127.0.0.1:2883", "the node's MQTT address")
	f.StringVar(&d.coreHTTP, "core-http", "127.0.0.1:10550", "the node's HTTP address")
	f.StringVar(&d.modbus, "modbus", "127.0.0.1:1502", "the simulated thermostat's Modbus address")
	f.StringVar(&d.dataDir, "data-dir", "", "directory to keep data and logs in (default: a temporary one, removed at the end unless something failed)")
	f.StringVar(&d.programs, "programs", "", "directory of the programs (default: this program's own, then PATH)")
	f.DurationVar(&d.during, "for", 0, "stop after this long (default: at ctrl-C)")
	return cmd
}

// run starts everything, shows it until ctx ends or something fails, and leaves
// nothing behind.
func (d *demo) run(ctx context.Context) (err error) {
	if d.during > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, d.during)
		defer cancel()
	}
	if err := d.checkPorts(); err != nil {
		return err
	}
	if _, ok := terminal(d.out); ok {
		w, err := newWire(d.hubMQTT)
		if err != nil {
			return err
		}
		defer w.l.Close()
		d.wire = w
	}
	plan, err := d.plan()
	if err != nil {
		return err
	}
	if err := d.makeDataDir(); err != nil {
		return err
	}
	broken := make(chan os.Signal, 1) // or a broken pipe would end this program, and leave the directory
	signal.Notify(broken, syscall.SIGPIPE)
	defer signal.Stop(broken)
	d.group = newProcesses(filepath.Join(d.dataDir, "logs"))
	defer func() { err = d.stop(err) }()

	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	d.group.onExit = func(err error) { cancel(err) }
	d.group.say = func(text string) { _ = d.say(text) }
	if err := d.start(ctx, plan); err != nil {
		return failure(ctx, err)
	}
	return failure(ctx, d.watch(ctx))
}

// failure is why the demo ends: a program that ended comes before what followed
// from it. Being asked to stop is none, nor is that nobody reads any more.
func failure(ctx context.Context, err error) error {
	cause := context.Cause(ctx)
	switch {
	case errors.As(cause, new(*exitError)):
		return cause
	case cause != nil, errors.Is(err, syscall.EPIPE):
		return nil
	}
	return err
}

// step is a program of the demo, and what must answer before the next one starts.
type step struct {
	name    string // and its log's
	program string // if it isn't the name
	args    []string
	ready   string // host:port that accepts, or a URL that answers 200
}

// plan lists the programs in the order of their start.
func (d *demo) plan() ([]step, error) {
	hubURL, coreURL := "mqtt://"+d.hubMQTT, "mqtt://"+d.coreMQTT
	if d.wire != nil {
		hubURL = "mqtt://" + d.wire.l.Addr().String()
	}
	// No file and no variable of this host may make the demo something else.
	plain := []string{"--config", os.DevNull, "--log-format", "json"}
	steps := []step{
		{name: "cloudhub", args: append([]string{
			"--data-dir", "hub", "--mqtt-listen", d.hubMQTT, "--http-listen", d.hubHTTP, "--mqtt-websocket-listen", "",
		}, plain...), ready: "http://" + d.hubHTTP + "/readyz"},
		{name: "edgecore", args: append([]string{
			"--data-dir", "core", "--node-name", demoNode, "--mqtt-listen", d.coreMQTT, "--http-listen", d.coreHTTP, "--link-server", hubURL,
		}, plain...), ready: "http://" + d.coreHTTP + "/readyz"},
		{name: "simulator", program: "mapper-modbus", args: []string{"simulate", "--listen", d.modbus}, ready: d.modbus},
		{name: "mapper-virtual", args: append([]string{"--server", coreURL}, plain...)},
		{name: "mapper-modbus", args: append([]string{"--server", coreURL}, plain...)},
	}
	for i := range steps {
		path, err := d.find(cmp.Or(steps[i].program, steps[i].name))
		if err != nil {
			return nil, err
		}
		steps[i].args = append([]string{path}, steps[i].args...)
	}
	return steps, nil
}

// find looks for a program beside this one, then in PATH.
func (d *demo) find(name string) (string, error) {
	dirs := []string{d.programs}
	if d.programs == "" {
		self, err := os.Executable()
		if err != nil {
			return "", err
		}
		if target, err := filepath.EvalSymlinks(self); err == nil {
			self = target
		}
		dirs = append([]string{filepath.Dir(self)}, filepath.SplitList(os.Getenv("PATH"))...)
	}
	for _, dir := range dirs {
		path, err := filepath.Abs(filepath.Join(dir, name))
		if err != nil {
			continue
		}
		if info, err := os.Stat(path); err == nil && info.Mode().IsRegular() && info.Mode()&0o111 != 0 {
			return path, nil
		}
	}
	return "", fmt.Errorf("the program %s is neither in %s nor in PATH: build it with `make build`", name, dirs[0])
}

func (d *demo) makeDataDir() (err error) {
	if d.dataDir == "" {
		d.dataDir, err = os.MkdirTemp("", "edgebus-demo-")
		return err
	}
	d.keep = true
	if d.dataDir, err = filepath.Abs(d.dataDir); err != nil {
		return err
	}
	return os.MkdirAll(d.dataDir, 0o755)
}

// checkPorts says whose address is taken, and by whom, before anything starts.
func (d *demo) checkPorts() error {
	var wrong []error
	for _, p := range []struct{ flag, address, what string }{
		{"--hub-mqtt", d.hubMQTT, "the hub's MQTT"},
		{"--hub-http", d.hubHTTP, "the hub's HTTP"},
		{"--core-mqtt", d.coreMQTT, "the node's MQTT"},
		{"--core-http", d.coreHTTP, "the node's HTTP"},
		{"--modbus", d.modbus, "the thermostat's Modbus"},
	} {
		listener, err := net.Listen("tcp", p.address)
		if err == nil {
			_ = listener.Close()
			continue
		}
		by := ""
		if owner := whoListens(p.address); owner != "" {
			by = " by " + owner
		}
		wrong = append(wrong, fmt.Errorf("%s can't listen on %s (%w%s): stop what is there, or choose another address with %s", p.what, p.address, err, by, p.flag))
	}
	return errors.Join(wrong...)
}

func (d *demo) start(ctx context.Context, plan []step) error {
	for i, s := range plan {
		if err := d.group.start(s.name, s.args, d.dataDir); err != nil {
			return err
		}
		if err := awaitReady(ctx, s.ready); err != nil {
			return fmt.Errorf("%s: %w", s.name, err)
		}
		if err := d.say(s.name + " runs"); err != nil {
			return err
		}
		if i == 0 {
			if err := d.apply(ctx); err != nil {
				return err
			}
		}
	}
	return nil
}

const startTime = 20 * time.Second

// awaitReady waits until an address accepts connections or a URL says OK.
func awaitReady(ctx context.Context, target string) error {
	if target == "" {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, startTime)
	defer cancel()
	var last error
	for {
		err := probe(ctx, target)
		if err == nil {
			return nil
		}
		if last == nil || !errors.Is(err, context.DeadlineExceeded) {
			last = err // not the one that is our own time being up
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("not ready: %w", last)
		case <-time.After(50 * time.Millisecond):
		}
	}
}

func probe(ctx context.Context, target string) error {
	if !strings.Contains(target, "://") {
		conn, err := (&net.Dialer{Timeout: time.Second}).DialContext(ctx, "tcp", target)
		if err == nil {
			_ = conn.Close()
		}
		return err
	}
	u, err := url.Parse(target)
	if err != nil {
		return err
	}
	c, err := client.New(client.Options{Server: u.Scheme + "://" + u.Host, Timeout: 5 * time.Second})
	if err != nil {
		return err
	}
	defer c.Close()
	return c.Get(ctx, u.Path, nil)
}

// apply creates the sample resources; in a kept directory they may be there.
func (d *demo) apply(ctx context.Context) error {
	samples, err := configs.Samples()
	if err != nil {
		return err
	}
	c, err := client.New(client.Options{Server: "http://" + d.hubHTTP})
	if err != nil {
		return err
	}
	defer c.Close()
	for _, s := range samples {
		k, err := c.Kind(ctx, s.Kind)
		if err == nil {
			text := bytes.ReplaceAll(s.JSON, []byte("127.0.0.1:1502"), []byte(d.modbus))
			_, err = c.Create(ctx, k, resource.DefaultNamespace, text, client.WriteOptions{})
		}
		if err != nil && !errors.Is(err, resource.AlreadyExists) {
			return fmt.Errorf("creating %s %s: %w", s.Kind, s.Name, err)
		}
	}
	return nil
}

// watch shows what the brokers have until ctx ends.
func (d *demo) watch(ctx context.Context) error {
	if size, ok := terminal(d.out); ok {
		notes := make(chan change, 64)
		d.mu.Lock()
		d.notes = notes
		d.mu.Unlock()
		s := &screen{d: d, out: d.out, size: size, wire: d.wire, cloud: newView(demoNode), edge: newView(demoNode)}
		return s.run(ctx, d.in, notes)
	}
	changes, err := treeOptions{brokerFlags: brokerFlags{server: "mqtt://" + d.hubMQTT}, forever: true}.follow(ctx, demoNode)
	if err != nil {
		return err
	}
	if err := d.say(strings.Join(d.hints(), "\n")); err != nil {
		return err
	}
	return eachChange(ctx, changes, func(c change) error { return d.say(c.String()) })
}

// say tells a line: on the screen's foot while there is one.
func (d *demo) say(text string) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.notes == nil {
		_, err := fmt.Fprintln(d.out, text)
		return err
	}
	select {
	case d.notes <- change{note: text}:
	default: // nobody can read that fast
	}
	return nil
}

// ports are the flags that mosquitto's clients need for the hub and for the core.
func (d *demo) ports() (hub, core string) {
	at := func(address string) string {
		if _, port, _ := net.SplitHostPort(address); port != "1883" {
			return " -p " + port
		}
		return ""
	}
	return at(d.hubMQTT), at(d.coreMQTT)
}

// hints is what to type next.
func (d *demo) hints() []string {
	hub, core := d.ports()
	return []string{
		"",
		"In another terminal:",
		"  mosquitto_sub" + hub + " -v -t 'v1/nodes/demo/#'",
		"  mosquitto_pub" + hub + " -V 5 -q 1 -t v1/nodes/demo/devices/lamp/desired/power -m ON",
		"  mosquitto_pub" + hub + " -V 5 -q 1 -t v1/nodes/demo/devices/thermostat/desired/setpoint -m 23.5",
		"  mosquitto_rr" + hub + " -V 5 -t v1/nodes/demo/devices/lamp/commands/beep -e reply/me -m twice",
		"  mosquitto_pub" + core + " -V 5 -q 1 -t v1/nodes/demo/devices/lamp/desired/brightness -m 40    # on the node, with or without the cloud",
		"Data and logs are in " + d.dataDir + ". Stop with ctrl-C.",
	}
}

// commands are the hints that a screen has room for, to be copied.
func (d *demo) commands() []string {
	hub, core := d.ports()
	return []string{
		"mosquitto_sub" + hub + " -v -t 'v1/nodes/demo/#'",
		"mosquitto_pub" + hub + " -V 5 -q 1 -t v1/nodes/demo/devices/lamp/desired/power -m ON",
		"mosquitto_pub" + core + " -V 5 -q 1 -t v1/nodes/demo/devices/lamp/desired/brightness -m 40",
		"# data and logs: " + d.dataDir,
	}
}

// stop ends all programs, the last one first, and removes what they left, unless
// something failed: then it is where to look for why.
func (d *demo) stop(failed error) error {
	err := errors.Join(failed, d.group.stop())
	switch {
	case err != nil:
		return fmt.Errorf("%w\ndata and logs are kept in %s", err, d.dataDir)
	case d.keep:
		return nil
	default:
		return os.RemoveAll(d.dataDir)
	}
}
