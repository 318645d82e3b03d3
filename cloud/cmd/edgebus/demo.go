package main

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/url"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"
	"unicode/utf8"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/edgebus/edgebus/broker/client"
	hubclient "github.com/edgebus/edgebus/cloud/client"
	"github.com/edgebus/edgebus/configs"
	"github.com/edgebus/edgebus/topics/resource"
)

// demoNode is the node's name; the samples' devices belong to it.
const demoNode = "demo"

// secondNode is the name in the hint of how another node joins.
const secondNode = "n2"

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
	notes chan change // takes what say is given, while the screen is drawn
}

func newDemo() *cobra.Command {
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
	return cmd
}

// run starts everything, shows it until ctx ends or something fails, and stops and
// removes everything.
func (d *demo) run(ctx context.Context) (err error) {
	if d.duration > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, d.duration)
		defer cancel()
	}
	if err := d.checkPorts(); err != nil {
		return err
	}
	if _, ok := terminalSize(d.out); ok {
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
	broken := make(chan os.Signal, 1) // otherwise a broken pipe would end this program before it cleans up
	signal.Notify(broken, syscall.SIGPIPE)
	defer signal.Stop(broken)
	d.group = newProcesses(filepath.Join(d.dataDir, "logs"))
	defer func() { err = d.stop(err) }()

	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	d.group.onExit = func(err error) { cancel(err) }
	d.group.say = func(text string) { _ = d.say(text) }
	if err := d.start(ctx, plan); err != nil {
		return exitReason(ctx, err)
	}
	return exitReason(ctx, d.watch(ctx))
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

// programStep is a program of the demo, and what must answer before the next one starts.
type programStep struct {
	name    string // and its log's
	program string // if it isn't the name
	args    []string
	ready   string // host:port that accepts, or a URL that answers 200
}

// plan lists the programs in the order of their start.
func (d *demo) plan() ([]programStep, error) {
	hubURL, coreURL := "mqtts://"+d.hubTLS, "mqtt://"+d.coreMQTT
	if d.link != nil {
		hubURL = "mqtts://" + d.link.listener.Addr().String()
	}
	// The demo doesn't depend on this host's configuration files and environment.
	plain := []string{"--config", os.DevNull, "--log-format", "json"}
	open := []string{"--auth-anonymous", "loopback"}
	steps := []programStep{
		{name: "cloudhub", args: append([]string{
			"--data-dir", "hub", "--mqtt-listen", d.hubMQTT, "--http-listen", d.hubHTTP, "--mqtt-websocket-listen", "",
			"--mqtt-tls-listen", d.hubTLS,
		}, slices.Concat(plain, open)...), ready: "http://" + d.hubHTTP + "/readyz"},
		{name: "edgecore", args: append([]string{
			"--config", joinedConfig, "--data-dir", "core", "--mqtt-listen", d.coreMQTT, "--http-listen", d.coreHTTP,
			"--link-server", hubURL, "--log-format", "json",
		}, open...), ready: "http://" + d.coreHTTP + "/readyz"},
		{name: "simulator", program: "mapper-modbus", args: []string{"simulate", "--listen", d.modbus}, ready: d.modbus},
		{name: "mapper-virtual", args: append([]string{"--server", coreURL}, plain...)},
		{name: "mapper-modbus", args: append([]string{"--server", coreURL}, plain...)},
	}
	for i := range steps {
		path, err := d.findProgram(cmp.Or(steps[i].program, steps[i].name))
		if err != nil {
			return nil, err
		}
		steps[i].args = append([]string{path}, steps[i].args...)
	}
	return steps, nil
}

// findProgram finds a program of the demo. The demo runs in another directory, so the path is absolute.
func (d *demo) findProgram(name string) (string, error) {
	path, err := findProgram(d.programs, name)
	if err != nil {
		return "", fmt.Errorf("the program %s is neither in %s nor in PATH: build it with `make build`", name, cmp.Or(d.programs, "edgebus' directory"))
	}
	return filepath.Abs(path)
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

// checkPorts returns an error that names the addresses that are taken, and by which process.
func (d *demo) checkPorts() error {
	var wrong []error
	for _, p := range []struct{ flag, address, what string }{
		{"--hub-mqtt", d.hubMQTT, "the hub's MQTT"},
		{"--hub-mqtt-tls", d.hubTLS, "the hub's MQTT over TLS"},
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

func (d *demo) start(ctx context.Context, plan []programStep) error {
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
			if err := errors.Join(d.apply(ctx), d.joinNode(ctx, plan)); err != nil {
				return err
			}
		}
	}
	return nil
}

const readyTimeout = 20 * time.Second

// awaitReady waits until an address accepts connections or a URL says OK.
func awaitReady(ctx context.Context, target string) error {
	if target == "" {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, readyTimeout)
	defer cancel()
	var last error
	for {
		err := probeReady(ctx, target)
		if err == nil {
			return nil
		}
		if last == nil || !errors.Is(err, context.DeadlineExceeded) {
			last = err // rather than that the time is up
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("not ready: %w", last)
		case <-time.After(50 * time.Millisecond):
		}
	}
}

func probeReady(ctx context.Context, target string) error {
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
	c, err := hubclient.New(hubclient.Options{Server: u.Scheme + "://" + u.Host, Timeout: 5 * time.Second})
	if err != nil {
		return err
	}
	defer c.Close()
	return c.Get(ctx, u.Path, nil)
}

// apply creates the sample resources; in a kept directory they may exist.
func (d *demo) apply(ctx context.Context) error {
	samples, err := configs.Samples()
	if err != nil {
		return err
	}
	c, err := hubclient.New(hubclient.Options{Server: "http://" + d.hubHTTP})
	if err != nil {
		return err
	}
	defer c.Close()
	for _, s := range samples {
		k, err := c.Kind(ctx, s.Kind)
		if err == nil {
			text := bytes.ReplaceAll(s.JSON, []byte("127.0.0.1:1502"), []byte(d.modbus))
			_, err = c.Create(ctx, k, resource.DefaultNamespace, text, hubclient.WriteOptions{})
		}
		if err != nil && !errors.Is(err, resource.AlreadyExists) {
			return fmt.Errorf("creating %s %s: %w", s.Kind, s.Name, err)
		}
	}
	return nil
}

// joinedConfig is the node's file of settings in the data directory, which edgecore join writes.
const joinedConfig = "core.yaml"

// freeAddress is the address, or one with a free port on the same host if the address is taken.
func freeAddress(address string) string {
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return address
	}
	for _, a := range []string{address, net.JoinHostPort(host, "0")} {
		if l, err := net.Listen("tcp", a); err == nil {
			address = l.Addr().String()
			_ = l.Close()
			return address
		}
	}
	return address
}

// joinNode invites the node and has it join, as two people on two machines would. In a kept directory it may have joined.
func (d *demo) joinNode(ctx context.Context, plan []programStep) error {
	joined, err := d.hasJoined()
	if err != nil {
		return err
	}
	if joined {
		return d.say("node " + demoNode + " has joined before: its certificate is in " + filepath.Join(d.dataDir, "core"))
	}
	c, err := hubclient.New(hubclient.Options{Server: "http://" + d.hubHTTP})
	if err != nil {
		return err
	}
	defer c.Close()
	request := hubclient.InvitationRequest{Node: demoNode}
	invitation, err := c.Invite(ctx, request)
	if err != nil {
		return fmt.Errorf("inviting the node: %w", err)
	}
	line := request.JoinCommand(invitation)
	if err := d.say("$ edgebus invite " + demoNode + "\n" + line); err != nil {
		return err
	}
	core := slices.IndexFunc(plan, func(s programStep) bool { return s.name == "edgecore" })
	args := append(strings.Fields(line)[1:], "--config", joinedConfig, "--data-dir", "core", "--no-start")
	cmd := exec.CommandContext(ctx, plan[core].args[0], args...) //nolint:gosec // G204: a program of the demo
	cmd.Dir, cmd.Env = d.dataDir, cleanEnvironment()
	out, err := cmd.CombinedOutput()
	text := strings.TrimSpace(string(out))
	if err != nil {
		return fmt.Errorf("%s: %w: %s", line, err, text)
	}
	d.join = line
	text, _, _ = strings.Cut(text, "\n") // the rest says how to start the core
	return d.say("$ " + line + "\n" + text)
}

// hasJoined is whether the settings in the data directory name an identity that is there. They name none if the
// directory was moved, or is of a demo without TLS: then the node joins again.
func (d *demo) hasJoined() (bool, error) {
	text, err := os.ReadFile(filepath.Join(d.dataDir, joinedConfig))
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	pairs, err := filepath.Glob(filepath.Join(d.dataDir, "core", "identity", "*", "node.pem"))
	return slices.ContainsFunc(pairs, func(pair string) bool { return bytes.Contains(text, []byte(pair)) }), err
}

// watch shows what the brokers have until ctx ends.
func (d *demo) watch(ctx context.Context) error {
	if size, ok := terminalSize(d.out); ok {
		notes := make(chan change, 64)
		d.mu.Lock()
		d.notes = notes
		d.mu.Unlock()
		s := &demoScreen{d: d, out: d.out, size: size, link: d.link, cloud: newView(demoNode), edge: newView(demoNode)}
		return s.run(ctx, d.in, notes)
	}
	changes, err := demoTree(d.hubMQTT).follow(ctx, demoNode)
	if err != nil {
		return err
	}
	if err := d.say(strings.Join(d.hints(), "\n")); err != nil {
		return err
	}
	return eachChange(ctx, changes, func(c change) error { return d.say(c.String()) })
}

// demoTree follows the node's tree at a broker until the demo ends.
func demoTree(address string) treeSource {
	return treeSource{target: hubTarget{MQTT: "mqtt://" + address}, forever: true}
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
	case d.notes <- change{note: text}:
	default: // more than can be read
	}
	return nil
}

// portFlags are the flags that mosquitto's clients need for the hub and for the core.
func (d *demo) portFlags() (hub, core string) {
	at := func(address string) string {
		if _, port, _ := net.SplitHostPort(address); port != "1883" {
			return " -p " + port
		}
		return ""
	}
	return at(d.hubMQTT), at(d.coreMQTT)
}

// serverFlag is the flag with which edgebus finds this hub; empty: it finds it by default.
func (d *demo) serverFlag() string {
	if at, err := (&access{httpFlag: "server"}).resolve(); err == nil && at.Server == "http://"+d.hubHTTP {
		return ""
	}
	return "EDGEBUS_SERVER=http://" + d.hubHTTP
}

// programPath is this program as somebody in this directory can call it.
func programPath() string {
	if path, err := exec.LookPath("edgebus"); err == nil {
		if mine, err := os.Executable(); err == nil && isSameFile(path, mine) {
			return "edgebus"
		}
	}
	return os.Args[0]
}

// isSameFile is whether two paths are of one file.
func isSameFile(a, b string) bool {
	x, err := os.Stat(a)
	y, err2 := os.Stat(b)
	return err == nil && err2 == nil && os.SameFile(x, y)
}

// clearOverrideCommand is the command that ends the override of the lamp's brightness.
func (d *demo) clearOverrideCommand() string {
	_, core := d.portFlags()
	return "mosquitto_pub" + core + " -V 5 -q 1 -t v1/nodes/demo/devices/lamp/desired/brightness -n"
}

// dataKeptText says what becomes of the directory.
func (d *demo) dataKeptText() string {
	if d.keepData {
		return d.dataDir + ", and stay there"
	}
	return d.dataDir + ", which is removed at the end unless something failed"
}

// hints are commands to try next.
func (d *demo) hints() []string {
	hub, core := d.portFlags()
	asks := ""
	if server := d.serverFlag(); server != "" {
		asks = "  export " + server + "    # so that edgebus asks this hub\n"
	}
	end := "Stop with ctrl-C."
	if d.duration > 0 {
		end = fmt.Sprintf("It ends after %s, at ctrl-C, or with kill %d.", d.duration, os.Getpid())
	} else if _, ok := terminalSize(d.in); !ok {
		end = fmt.Sprintf("It ends at ctrl-C, with kill %d, or after the time of --for.", os.Getpid())
	}
	return []string{
		"",
		"In another terminal:",
		asks + "  " + programPath() + " get devices",
		"  mosquitto_sub" + hub + " -v -t 'v1/nodes/demo/devices/+/reported/#'    # the values; with 'v1/nodes/demo/#' everything",
		"  mosquitto_pub" + hub + " -V 5 -q 1 -t v1/nodes/demo/devices/lamp/desired/power -m ON",
		"  mosquitto_pub" + hub + " -V 5 -q 1 -t v1/nodes/demo/devices/thermostat/desired/setpoint -m 23.5",
		"  mosquitto_rr" + hub + " -V 5 -t v1/nodes/demo/devices/lamp/commands/beep -e reply/me -m twice",
		"  mosquitto_pub" + core + " -V 5 -q 1 -t v1/nodes/demo/devices/lamp/desired/brightness -m 75    # on the node, with or without the cloud: this overrides the hub's value",
		"  " + d.clearOverrideCommand() + "          # … until it is cleared with an empty message",
		"  " + programPath() + " invite " + secondNode + "    # prints the line that has another node join this hub",
		"What is refused says why with -V 5 -q 1. At -q 0, and with MQTT 3.1.1, the reason is on the topic v1/refused/{client id}.",
		"Data and logs are in " + d.dataKeptText() + ".",
		end,
	}
}

// commands are the hints for which a screen has room.
func (d *demo) commands() []string {
	hub, core := d.portFlags()
	removed := ""
	if !d.keepData {
		removed = ", removed by q"
	}
	return []string{
		"mosquitto_sub" + hub + " -v -t 'v1/nodes/demo/devices/+/reported/#'",
		"mosquitto_pub" + hub + " -V 5 -q 1 -t v1/nodes/demo/devices/lamp/desired/power -m ON",
		"mosquitto_pub" + core + " -V 5 -q 1 -t v1/nodes/demo/devices/lamp/desired/brightness -m 75",
		strings.TrimSpace(d.serverFlag() + " " + programPath() + " invite " + secondNode),
		"# data and logs: " + d.dataDir + removed,
	}
}

// joinedText says how the node has joined the hub.
func (d *demo) joinedText() string {
	if d.join == "" {
		return "joined before; the link is MQTT over TLS, with the node's certificate"
	}
	line, _, _ := strings.Cut(d.join, " --token ") // the token has been used
	return "joined over TLS: edgebus invite " + demoNode + ", " + line + " --token …"
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

// demoScreen is the demo on a terminal: the values in the hub's broker beside those in the node's, and keys that change
// values, cut the link and kill the node.
type demoScreen struct {
	d         *demo
	out       io.Writer
	size      func() (width, height int)
	link      *linkProxy
	cloud     *treeView
	edge      *treeView
	lastFrame string // the last frame

	linkCut                 bool
	changedCount, sentCount int // of topics that the edge owns: on the node while the link was cut, and at the hub since it is back
	linkBack                bool
	brightness              int

	killedAt        time.Time // when k was pressed, until the node is back
	brokerWasAway   bool      // since then its broker was seen to be away
	keyOutcome      string    // what the last key has led to; it is shown for keyOutcomeTime
	keyOutcomeUntil time.Time
}

// keyOutcomeTime is how long the outcome of a key stays on the screen.
const keyOutcomeTime = 20 * time.Second

// showOutcome shows the outcome of a key for a time.
func (s *demoScreen) showOutcome(format string, args ...any) {
	s.keyOutcome, s.keyOutcomeUntil = fmt.Sprintf(format, args...), time.Now().Add(keyOutcomeTime)
}

// screenEvent is a change at one of the two brokers, a key that was pressed, or a note.
type screenEvent struct {
	change
	side int
	key  byte
}

const (
	fromCloud = iota
	fromEdge
	fromKeyboard
)

// watchKeys reads keys from a terminal until it is closed. Until restore is called the terminal is in raw mode.
func watchKeys(ctx context.Context, in any, keys chan<- screenEvent) (restore func()) {
	file, ok := in.(*os.File)
	if !ok || !term.IsTerminal(int(file.Fd())) {
		return func() {}
	}
	before, err := term.MakeRaw(int(file.Fd()))
	if err != nil {
		return func() {}
	}
	go func() {
		for buf := make([]byte, 16); ; {
			n, err := file.Read(buf)
			for _, key := range buf[:n] {
				select {
				case keys <- screenEvent{side: fromKeyboard, key: key}:
				case <-ctx.Done():
					return
				}
			}
			if err != nil {
				return
			}
		}
	}()
	return func() { _ = term.Restore(int(file.Fd()), before) }
}

// run draws until ctx ends, q is pressed, or a broker refuses the connection.
func (s *demoScreen) run(ctx context.Context, in any, notes <-chan change) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	all := make(chan screenEvent)
	for side, at := range []string{s.d.hubMQTT, s.d.coreMQTT} {
		changes, err := demoTree(at).follow(ctx, demoNode)
		if err != nil {
			return err
		}
		go forwardChanges(ctx, changes, side, all)
	}
	go forwardChanges(ctx, notes, fromKeyboard, all)
	hands := map[string]*client.Client{}
	for name, at := range map[string]string{"cloud": s.d.hubMQTT, "edge": s.d.coreMQTT} {
		p := hubTarget{MQTT: "mqtt://" + at}
		o, err := p.mqttOptions("demo-" + name)
		if err != nil {
			return err
		}
		c, err := client.New(o)
		if err != nil {
			return err
		}
		go func() { _ = c.Run(ctx) }()
		hands[name] = c
	}
	defer watchKeys(ctx, in, all)()
	fmt.Fprint(s.out, "\x1b[?25l\x1b[2J")
	defer fmt.Fprint(s.out, "\x1b[?25h\r\n")
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case c := <-all:
			if c.err != nil {
				return c.err
			}
			if c.key == 'q' || c.key == 3 { // ctrl-C is no signal in raw mode
				return nil
			}
			s.handle(c, hands)
			timer.Reset(redrawInterval / 2)
		case <-timer.C:
			s.draw()
			timer.Reset(idleRedrawInterval) // the size may have changed
		}
	}
}

func forwardChanges(ctx context.Context, from <-chan change, side int, to chan<- screenEvent) {
	for {
		select {
		case c, ok := <-from:
			if !ok {
				return
			}
			select {
			case to <- screenEvent{change: c, side: side}:
			case <-ctx.Done():
				return
			}
		case <-ctx.Done():
			return
		}
	}
}

// edgeOwned is whether the edge owns a topic.
func edgeOwned(key string) bool {
	return strings.HasPrefix(key, "devices/") && (strings.Contains(key, "/reported/") || strings.Contains(key, "/override/"))
}

func (s *demoScreen) handle(c screenEvent, hands map[string]*client.Client) {
	counts := c.Key != "" && edgeOwned(c.Key)
	switch c.side {
	case fromCloud:
		if counts && s.linkBack && s.cloud.values[c.Key].Value != c.Value {
			s.sentCount++
		}
		s.cloud.apply(c.change)
		if s.linkBack && s.isInStep() { // later changes don't count
			s.linkBack = false
			if s.changedCount > 0 {
				s.showOutcome("the link was cut: %d changes on the node, %d sent when it was back", s.changedCount, s.sentCount)
				s.changedCount = 0
			}
		}
	case fromEdge:
		if counts && s.linkCut && s.edge.values[c.Key].Value != c.Value {
			s.changedCount++
		}
		s.edge.apply(c.change)
	default:
		if c.note != "" {
			s.cloud.apply(c.change)
		}
	}
	s.brokerWasAway = s.brokerWasAway || !s.killedAt.IsZero() && s.edge.down != ""
	if s.brokerWasAway && s.edge.down == "" {
		s.showOutcome("the node was killed: its broker was away for %s, and has all its values", time.Since(s.killedAt).Round(100*time.Millisecond))
		s.killedAt, s.brokerWasAway = time.Time{}, false
	}
	switch c.key {
	case 'l':
		on := "ON"
		if s.cloud.values["devices/lamp/desired/power"].Value == "ON" {
			on = "OFF"
		}
		s.setDesired(hands["cloud"], "power", on)
	case 'd':
		has := s.cloud.values["devices/lamp/reported/brightness"].Value
		for range 40 {
			s.brightness = nextBrightness(s.brightness, has)
			s.setDesired(hands["edge"], "brightness", fmt.Sprint(s.brightness))
		}
	case 'c':
		if s.linkCut = !s.linkCut; s.linkCut {
			s.changedCount, s.sentCount, s.linkBack = 0, 0, false
		} else {
			s.linkBack = true
		}
		s.link.setCut(s.linkCut)
	case 'k':
		s.d.group.kill("edgecore")
		s.killedAt = time.Now()
	}
}

// nextBrightness is the next brightness, of 1 to 100, that differs from the hub's, so that each change, also the last one,
// is one to be sent.
func nextBrightness(level int, has string) int {
	if level = level%100 + 1; fmt.Sprint(level) == has {
		level = level%100 + 1
	}
	return level
}

func (s *demoScreen) setDesired(by *client.Client, property, value string) {
	by.PublishAsync(client.Message{Topic: "v1/nodes/" + demoNode + "/devices/lamp/desired/" + property, Payload: []byte(value), QoS: 1}, func(err error) {
		if err != nil {
			_ = s.d.say(err.Error())
		}
	})
}

// shownKeys are the topics of the devices that one of the two has.
func (s *demoScreen) shownKeys() (keys []string) {
	for _, v := range []*treeView{s.cloud, s.edge} {
		for key := range v.values {
			if parts := strings.Split(key, "/"); parts[0] == "devices" && (len(parts) == 4 || len(parts) == 3 && parts[2] == "state") {
				keys = append(keys, key)
			}
		}
	}
	slices.Sort(keys)
	return slices.Compact(keys)
}

func (s *demoScreen) isInStep() bool {
	return s.edge.down == "" && s.cloud.down == "" && s.cloud.values["state"].Value == "online" && !slices.ContainsFunc(s.shownKeys(), s.differs)
}

// differs is whether the two have different values that will become equal; those of an overridden property may stay different.
func (s *demoScreen) differs(key string) bool {
	return s.cloud.values[key].Value != s.edge.values[key].Value && !s.overridden(key)
}

func (s *demoScreen) overridden(key string) bool {
	_, there := s.edge.values[strings.Replace(key, "/desired/", "/override/", 1)]
	return there && strings.Contains(key, "/desired/")
}

func (s *demoScreen) draw() {
	width, height := s.size()
	frame := s.frame(width, height)
	if frame != s.lastFrame { // drawing clears the terminal's selection
		fmt.Fprint(s.out, frame)
		s.lastFrame = frame
	}
}

func (s *demoScreen) frame(width, height int) string {
	on := coloursOn(s.out)
	how, code := "cloud and edge are in step", colourGreen
	switch {
	case s.linkCut:
		how, code = "the link is cut", colourRed
	case s.edge.down != "", !s.killedAt.IsZero():
		how, code = "the node is down", colourRed
	case s.cloud.down != "":
		how, code = "the hub is down", colourRed
	case !s.isInStep():
		how, code = "catching up", colourYellow
	}
	column := min(20, max(8, (width-26)/2))
	topic := min(36, max(12, width-2*column-1))
	line := func(a, b, c, mark string) string {
		return shorten(padRight(shorten(a, topic-1), topic)+padRight(shorten(b, column-1), column)+padRight(shorten(c, column-1), column)+mark, width)
	}
	value := func(v *treeView, key string) string {
		if text, ok := v.values[key]; ok {
			return printableText(text.Value, column-1)
		}
		return "–"
	}
	lines := []string{
		on.paint(styleBold, shorten("Edgebus: node "+demoNode+" – ", width)) + on.paint(code, how),
		on.paint(styleFaint, shorten(firstFitting(width, s.d.joinedText(), "joined over TLS: edgebus invite, edgecore join"), width)),
		on.paint(styleFaint, line(firstFitting(topic-1, "= same  ≠ not yet  ↑ overridden", "= same ≠ not yet ↑ own"), "CLOUD", "EDGE", "")),
	}
	keys := s.shownKeys()
	foot := s.foot(width, height-len(lines)-1-min(len(keys), max(4, height/2-2)))
	room := max(1, height-len(lines)-len(foot)-1)
	for i, key := range keys {
		if i == room-1 && len(keys) > room {
			lines = append(lines, shorten(fmt.Sprintf("… %d more", len(keys)-i), width))
			break
		}
		mark, paint := "=", ""
		switch {
		case s.overridden(key):
			mark = "↑"
		case s.differs(key):
			mark, paint = "≠", colourYellow
		}
		text := line(strings.TrimPrefix(key, "devices/"), value(s.cloud, key), value(s.edge, key), mark)
		if paint != "" {
			text = on.paint(paint, text)
		}
		lines = append(lines, text)
	}
	for len(lines) < height-len(foot)-1 {
		lines = append(lines, "")
	}
	lines = lines[:min(len(lines), max(1, height-len(foot)-1))]
	return "\x1b[H" + strings.Join(append(lines, foot...), "\x1b[K\r\n") + "\x1b[K\x1b[J"
}

// firstFitting is the first text that is not wider than the width, or else the last.
func firstFitting(width int, texts ...string) string {
	for _, text := range texts {
		if utf8.RuneCountInString(text) <= width {
			return text
		}
	}
	return texts[len(texts)-1]
}

// foot is what stands below the values: the outcome of the last key, the keys and, as far as room goes, commands to try.
func (s *demoScreen) foot(width, room int) (foot []string) {
	told := ""
	switch {
	case !s.killedAt.IsZero():
		told = "the node was killed: its values are those that it had"
	case s.linkCut, s.changedCount > 0:
		told = fmt.Sprintf("the link is cut: %d changes on the node, none sent yet", s.changedCount)
		if s.linkBack {
			told = fmt.Sprintf("the link is back: %d changes on the node, %d sent", s.changedCount, s.sentCount)
		}
	case time.Now().Before(s.keyOutcomeUntil):
		told = s.keyOutcome
	}
	foot = append(foot, wrapText(width, told)...)
	if n := len(s.cloud.notes); n > 0 {
		foot = append(foot, wrapText(width, printableText(s.cloud.notes[n-1], 200))...)
	}
	link := "cut the link"
	if s.linkCut {
		link = "restore the link"
	}
	foot = append(foot, wrapWords(width, "l lamp", "d 40 changes on the node", "c "+link, "k kill the node", "q quit")...)
	commands := s.d.commands()
	if s.overridden("devices/lamp/desired/brightness") {
		commands = append([]string{"# ↑ the node's own value is in force until it is cleared:", s.d.clearOverrideCommand()}, commands...)
	}
	for _, command := range commands {
		lines := wrapCommand(command, width)
		if len(foot)+len(lines) > room {
			break
		}
		foot = append(foot, lines...)
	}
	return foot
}

// wrapText is a text in as many lines of a width as it takes; one, empty, if there is none.
func wrapText(width int, text string) (lines []string) {
	line := ""
	for word := range strings.FieldsSeq(text) {
		if line != "" && utf8.RuneCountInString(line)+1+utf8.RuneCountInString(word) > width {
			lines, line = append(lines, line), ""
		}
		line = strings.TrimPrefix(line+" "+word, " ")
	}
	return append(lines, shorten(line, width))
}

// wrapWords puts words side by side, into as many lines of a width as it takes.
func wrapWords(width int, words ...string) (lines []string) {
	line := ""
	for _, word := range words {
		if line != "" && utf8.RuneCountInString(line)+2+utf8.RuneCountInString(word) > width {
			lines, line = append(lines, line), ""
		}
		if line != "" {
			line += "  "
		}
		line += word
	}
	return append(lines, shorten(line, width))
}

// wrapCommand breaks a command line into lines of at most width, which can be copied together.
func wrapCommand(command string, width int) (lines []string) {
	line := ""
	for i, word := range strings.Split(command, " ") {
		switch {
		case i == 0:
			line = word
		case len(line)+1+len(word)+len(" \\") > width:
			lines, line = append(lines, line+" \\"), "    "+word
		default:
			line += " " + word
		}
	}
	return append(lines, line)
}

// linkProxy is the network between node and hub, which can be cut.
type linkProxy struct {
	target   string
	listener net.Listener

	mu    sync.Mutex
	isCut bool
	conns map[net.Conn]bool
}

func newProxy(to string) (*linkProxy, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	w := &linkProxy{target: to, listener: l, conns: map[net.Conn]bool{}}
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			go w.forward(conn)
		}
	}()
	return w, nil
}

func (w *linkProxy) forward(a net.Conn) {
	defer a.Close()
	b, err := net.DialTimeout("tcp", w.target, time.Second)
	if err != nil {
		return
	}
	defer b.Close()
	w.mu.Lock()
	broken := w.isCut
	if !broken {
		w.conns[a], w.conns[b] = true, true
	}
	w.mu.Unlock()
	if broken {
		return
	}
	go func() {
		_, _ = io.Copy(a, b)
		_ = a.Close()
	}()
	_, _ = io.Copy(b, a)
	w.mu.Lock()
	delete(w.conns, a)
	delete(w.conns, b)
	w.mu.Unlock()
}

// setCut closes all connections and lets no new ones through, until it is called with false.
func (w *linkProxy) setCut(yes bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.isCut = yes
	for conn := range w.conns {
		_ = conn.Close()
	}
}

// kill kills a program, which is started again.
func (g *processes) kill(name string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, p := range g.all {
		if p.name == name {
			_ = syscall.Kill(-p.cmd.Process.Pid, syscall.SIGKILL)
		}
	}
}
