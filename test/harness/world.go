// SPDX-License-Identifier: Apache-2.0

package harness

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"sort"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/edgebus/edgebus/test/faults"
	"github.com/edgebus/edgebus/topics/backoff"
)

// World is a hub with nodes around it, each behind a network of its own. Programs
// are named by what they are: hub, core, virtual, modbus, mqtt, simulator; those of other
// nodes than n1 with the node: core@n2.
type World struct {
	Dir string // data of program X in X, logs in logs/X.log
	Bin string
	Hub Addresses
	TLS string // free, for a hub that is to listen there as well
	WS  string
	// User and Password are whom API and SignedIn sign in as; empty: nobody.
	User, Password string
	nodes          map[string]*Node

	mu    sync.Mutex
	procs map[string]*process
	last  map[string][]string // arguments of the last start
	wraps map[string][]string // what stands before a program's command line
}

// Addresses are a broker's and its API's.
type Addresses struct{ MQTT, HTTP string }

// Node is a node's place in the world: its core's addresses, its simulated device,
// and the network between it and the hub.
type Node struct {
	Addresses
	Modbus string
	Net    *faults.Proxy
}

// NewWorld makes a world in an empty directory, with the node n1.
func NewWorld(dir string, seed uint64) (*World, error) {
	bin, err := Programs()
	if err != nil {
		return nil, err
	}
	w := &World{Dir: dir, Bin: bin, nodes: map[string]*Node{}, procs: map[string]*process{}, last: map[string][]string{}, wraps: map[string][]string{}}
	for _, address := range []*string{&w.Hub.MQTT, &w.Hub.HTTP, &w.TLS, &w.WS} {
		if *address, err = FreePort(); err != nil {
			return nil, err
		}
	}
	if err := os.MkdirAll(filepath.Join(dir, "logs"), 0o755); err != nil {
		return nil, err
	}
	_, err = w.AddNode("n1", seed)
	return w, err
}

// AddNode makes a place for one more node.
func (w *World) AddNode(name string, seed uint64) (n *Node, err error) {
	n = &Node{}
	for _, address := range []*string{&n.MQTT, &n.HTTP, &n.Modbus} {
		if *address, err = FreePort(); err != nil {
			return nil, err
		}
	}
	n.Net, err = faults.New(faults.Options{Target: w.Hub.MQTT, Seed: seed})
	w.nodes[name] = n
	return n, err
}

// Node is a node's place; nil if nobody has made it.
func (w *World) Node(name string) *Node { return w.nodes[name] }

// Env names the world's places for scripts. Those of a node n2 begin with N2_, those
// of n1 with CORE_ as well.
func (w *World) Env() []string {
	env := []string{
		"PATH=" + w.Bin + string(os.PathListSeparator) + os.Getenv("PATH"),
		"HUB_MQTT=" + w.Hub.MQTT, "HUB_PORT=" + portOf(w.Hub.MQTT), "HUB_HTTP=" + w.Hub.HTTP,
		"HUB=http://" + w.Hub.HTTP, "HUB_TLS=" + w.TLS, "HUB_TLS_PORT=" + portOf(w.TLS), "HUB_WS=" + w.WS,
		"API=http://" + w.Hub.HTTP + apiBase, "SCRIPTS=" + filepath.Join(filepath.Dir(w.Bin), "scripts"),
		"KUBECTL=" + kubectlPath(filepath.Dir(w.Bin)), "PEERS=" + filepath.Join(filepath.Dir(w.Bin), "test", "interop", "devices"),
	}
	for name, n := range w.nodes {
		prefixes := []string{strings.ToUpper(name) + "_"}
		if name == "n1" {
			prefixes = append(prefixes, "CORE_")
		}
		for _, p := range prefixes {
			env = append(env, p+"MQTT="+n.MQTT, p+"PORT="+portOf(n.MQTT), p+"HTTP="+n.HTTP, p+"MODBUS="+n.Modbus, p+"DEVICE_PORT="+portOf(n.Modbus), p+"PROXY="+n.Net.Addr())
		}
	}
	return env
}

func portOf(address string) string {
	_, port, _ := net.SplitHostPort(address)
	return port
}

// Broker is the MQTT address of hub, core or core@node.
func (w *World) Broker(name string) (string, error) {
	if name == "hub" {
		return w.Hub.MQTT, nil
	}
	role, n, err := w.split(name)
	if err != nil || role != "core" {
		return "", fmt.Errorf("%s is no broker: hub, core or core@NODE", name)
	}
	return n.MQTT, nil
}

// split takes core@n2 apart.
func (w *World) split(name string) (role string, n *Node, err error) {
	role, node, ok := strings.Cut(name, "@")
	if !ok {
		node = "n1"
	}
	if n = w.nodes[node]; n == nil {
		return "", nil, fmt.Errorf("there is no node %s in this world", node)
	}
	return role, n, nil
}

// command is the line that starts a program, and what answers when it is ready.
func (w *World) command(name string) (line []string, ready string, err error) {
	role, n, err := w.split(name)
	if err != nil {
		return nil, "", err
	}
	_, node, _ := strings.Cut(name+"@n1", "@")
	node, _, _ = strings.Cut(node, "@")
	common := []string{"--config", w.config(name), "--log-level", "debug", "--log-format", "json"}
	data := filepath.Join(w.Dir, name)
	switch role {
	case "hub":
		return append([]string{
			"cloudhub", "--data-dir", data, "--mqtt-listen", w.Hub.MQTT, "--http-listen", w.Hub.HTTP,
			"--mqtt-websocket-listen", "",
		}, common...), "http://" + w.Hub.HTTP + "/readyz", nil
	case "core":
		return append([]string{
			"edgecore", "--data-dir", data, "--node-name", node, "--mqtt-listen", n.MQTT, "--http-listen", n.HTTP,
			"--link-server", "mqtt://" + n.Net.Addr(), "--link-retry-backoff-min", "50ms", "--link-retry-backoff-max", "500ms",
			"--link-retry-timeout", "1s", "--link-keepalive", "2s",
		}, common...), "http://" + n.HTTP + "/readyz", nil
	case "virtual", "modbus", "mqtt", "bacnet", "opcua", "snmp", "http", "dmi":
		return append([]string{"mapper-" + role, "--server", "mqtt://" + n.MQTT}, common...), "", nil
	case "simulator":
		return []string{"mapper-modbus", "simulate", "--listen", n.Modbus}, n.Modbus, nil
	}
	return nil, "", fmt.Errorf("%s is none of hub, core, simulator and the mappers; give its command line", name)
}

// config is the program's file if the test brought one: hub.yaml, core.yaml, …
func (w *World) config(name string) string {
	file := filepath.Join(w.Dir, name+".yaml")
	if _, err := os.Stat(file); err == nil {
		return file
	}
	return os.DevNull
}

// Start runs a program and waits until it is ready. Arguments are added to its own,
// and kept for the next Start without any.
func (w *World) Start(ctx context.Context, name string, args ...string) error {
	line, ready, err := w.line(name, args)
	if err != nil {
		return err
	}
	return w.launch(ctx, name, line, ready)
}

// StartUnready is Start of a program that is up when its broker accepts: on a full disk none is ready.
func (w *World) StartUnready(ctx context.Context, name string) error {
	line, _, err := w.line(name, nil)
	if err != nil {
		return err
	}
	broker, err := w.Broker(name)
	if err != nil {
		return err
	}
	return w.launch(ctx, name, line, broker)
}

func (w *World) line(name string, args []string) (line []string, ready string, err error) {
	w.mu.Lock()
	if p := w.procs[name]; p != nil && p.running() {
		w.mu.Unlock()
		return nil, "", fmt.Errorf("%s runs already", name)
	}
	if len(args) > 0 {
		w.last[name] = args
	}
	args = w.last[name]
	wrap := w.wraps[name]
	w.mu.Unlock()
	line, ready, err = w.command(name)
	if err != nil {
		return nil, "", err
	}
	if len(wrap) > 0 {
		line[0] = filepath.Join(w.Bin, line[0])
		line = slices.Concat(wrap, line)
	}
	return append(line, args...), ready, nil
}

// Wrap has another program start this one from now on: one that changes the limits
// or the system calls that it runs under, and then becomes it. Nothing: none.
func (w *World) Wrap(name string, line ...string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.wraps[name] = line
}

// Run runs any program under a name. It is ready when that address accepts, or that
// URL answers; at once if there is none.
func (w *World) Run(ctx context.Context, name string, line []string, ready string) error {
	return w.launch(ctx, name, line, ready)
}

func (w *World) launch(ctx context.Context, name string, line []string, ready string) error {
	p, err := startProcess(name, line, w.Dir, w.Bin, w.LogFile(name))
	if err != nil {
		return err
	}
	w.mu.Lock()
	w.procs[name] = p
	w.mu.Unlock()
	return p.awaitReady(ctx, ready)
}

// LogFile is where a program's output goes.
func (w *World) LogFile(name string) string { return filepath.Join(w.Dir, "logs", name+".log") }

func (w *World) process(name string) (*process, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if p := w.procs[name]; p != nil {
		return p, nil
	}
	return nil, fmt.Errorf("%s was never started", name)
}

// Term asks a program to stop, which it must do well within its time, with exit code 0.
func (w *World) Term(name string) error {
	p, err := w.process(name)
	if err != nil {
		return err
	}
	return p.term()
}

// Crash kills a program and its children with no warning.
func (w *World) Crash(name string) error {
	p, err := w.process(name)
	if err != nil {
		return err
	}
	p.kill()
	return nil
}

// Doom says that a program may end by itself: something is taken away from it.
func (w *World) Doom(name string) error {
	p, err := w.process(name)
	if err != nil {
		return err
	}
	p.expected.Store(true)
	return nil
}

// Freeze stops a program where it is, and returns when none of its threads runs any
// more: nothing leaves it from then on. What the kernel does for it goes on.
func (w *World) Freeze(ctx context.Context, name string) error { return w.freeze(ctx, name, "TD") }

// FreezeOutside is Freeze, and waits until the kernel does nothing for it, such as syncing a file.
func (w *World) FreezeOutside(ctx context.Context, name string) error {
	return w.freeze(ctx, name, "T")
}

// freeze stops a program, and waits until all of its threads are in one of these states of proc(5).
func (w *World) freeze(ctx context.Context, name, states string) error {
	p, err := w.process(name)
	if err != nil {
		return err
	}
	if err := p.cmd.Process.Signal(syscall.SIGSTOP); err != nil {
		return err
	}
	return Eventually(ctx, stopTime, func(context.Context) error { return p.frozen(states) })
}

// Signal sends a signal, such as SIGSTOP, to a program.
func (w *World) Signal(name string, s syscall.Signal) error {
	p, err := w.process(name)
	if err != nil {
		return err
	}
	return p.cmd.Process.Signal(s)
}

// Running is whether a program runs.
func (w *World) Running(name string) bool {
	p, err := w.process(name)
	return err == nil && p.running()
}

// Pid is a program's process id.
func (w *World) Pid(name string) int {
	if p, err := w.process(name); err == nil {
		return p.cmd.Process.Pid
	}
	return 0
}

// Died names the programs that have ended by themselves.
func (w *World) Died() (died []string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for name, p := range w.procs {
		if !p.running() && !p.expected.Load() {
			died = append(died, name+" ("+p.cmd.ProcessState.String()+")")
		}
	}
	sort.Strings(died)
	return died
}

// Close kills everything that runs, and takes the networks down.
func (w *World) Close() {
	w.mu.Lock()
	procs := w.procs
	w.mu.Unlock()
	for _, p := range procs {
		p.kill()
	}
	for _, n := range w.nodes {
		if n.Net != nil {
			n.Net.Close()
		}
	}
}

// Logs is the end of every program's log.
func (w *World) Logs(lines int) string {
	files, _ := filepath.Glob(filepath.Join(w.Dir, "logs", "*.log"))
	var out strings.Builder
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			continue
		}
		all := strings.Split(strings.TrimRight(string(text), "\n"), "\n")
		fmt.Fprintf(&out, "── the end of %s\n%s\n", filepath.Base(file), strings.Join(all[max(0, len(all)-lines):], "\n"))
	}
	return out.String()
}

// Eventually runs check until it has no error, or the time is up.
func Eventually(ctx context.Context, within time.Duration, check func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	var last error
	for {
		err := check(ctx)
		if err == nil {
			return nil
		}
		if last == nil || !errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil {
			last = err // not the one that is our own time being up
		}
		if !backoff.Sleep(ctx, 20*time.Millisecond) {
			return fmt.Errorf("not within %s: %w", within, last)
		}
	}
}

func probeTarget(ctx context.Context, target string) error {
	if !strings.Contains(target, "://") {
		conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", target)
		if err == nil {
			_ = conn.Close()
		}
		return err
	}
	_, err := Call(ctx, http.MethodGet, target, nil)
	return err
}

// kubectlPath is the one that make builds. Without it a script that needs it fails: the system's own is another.
func kubectlPath(root string) string { return filepath.Join(root, ".tools", "kubectl") }
