// SPDX-License-Identifier: Apache-2.0

package harness

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/edgebus/edgebus/broker/client"
	"github.com/edgebus/edgebus/configs"
	"github.com/edgebus/edgebus/test/faults"
)

type worldKey struct{}

// usualWait is how long a script waits for what should come soon.
const usualWait = 30 * time.Second

// Scripts runs every script of a directory, each in a world of its own. What a
// script can say is listed in test/e2e/README.md.
func Scripts(t *testing.T, dir string) {
	t.Helper()
	if missing := Missing("mosquitto_pub", "mosquitto_sub", "mosquitto_rr", "/usr/sbin/mosquitto"); len(missing) > 0 {
		if os.Getenv("CI") != "" {
			t.Fatalf("missing: %s; `make needs` installs them", strings.Join(missing, ", "))
		}
		t.Skipf("missing: %s; `make needs` installs them", strings.Join(missing, ", "))
	}
	testscript.Run(t, testscript.Params{
		Dir:   dir,
		Setup: setupScript,
		Condition: func(name string) (bool, error) {
			if name != "all" {
				return false, fmt.Errorf("unknown condition %s", name)
			}
			return os.Getenv("ALL_TESTS") != "", nil
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			"start": startCommand, "run": runCommand, "term": termCommand, "crash": crashCommand, "freeze": freezeCommand, "thaw": thawCommand,
			"node": nodeCommand, "net": networkCommand, "samples": samplesCommand, "apply": applyCommand, "delete": removeCommand,
			"pub": pubCommand, "sub": subCommand, "await": awaitCommand, "httpget": httpGetCommand, "waitfor": waitForCommand,
		},
	})
}

func setupScript(env *testscript.Env) error {
	w, err := NewWorld(env.WorkDir, 1)
	if err != nil {
		return err
	}
	env.Values[worldKey{}] = w
	env.Vars = append(env.Vars, w.Env()...)
	env.Defer(func() {
		died := w.Died()
		w.Close()
		failed := len(died) > 0
		if t, ok := env.T().(interface{ Failed() bool }); ok {
			failed = failed || t.Failed()
		}
		if failed {
			env.T().Log(w.Logs(40))
		}
		if len(died) > 0 {
			env.T().Fatal("ended by themselves: " + strings.Join(died, ", "))
		}
	})
	return nil
}

func scriptWorld(ts *testscript.TestScript) *World { return ts.Value(worldKey{}).(*World) }

// checkVerdict ends a command that may be expected to fail, with "!" before it.
func checkVerdict(ts *testscript.TestScript, neg bool, err error) {
	if err != nil {
		fmt.Fprintln(ts.Stderr(), err)
	}
	if neg == (err == nil) {
		if err == nil {
			ts.Fatalf("should have failed")
		}
		ts.Fatalf("%v", err)
	}
}

func checkUsage(ts *testscript.TestScript, ok bool, usage string) {
	if !ok {
		ts.Fatalf("usage: %s", usage)
	}
}

func startCommand(ts *testscript.TestScript, neg bool, args []string) {
	checkUsage(ts, len(args) > 0, "start NAME [argument…]")
	checkVerdict(ts, neg, scriptWorld(ts).Start(context.Background(), args[0], args[1:]...))
}

func runCommand(ts *testscript.TestScript, neg bool, args []string) {
	checkUsage(ts, len(args) > 1, "run NAME PROGRAM [argument…]")
	checkVerdict(ts, neg, scriptWorld(ts).Run(context.Background(), args[0], args[1:], ""))
}

// forEachProgram makes a command of something that can be done to programs.
func forEachProgram(ts *testscript.TestScript, neg bool, args []string, do func(string) error) {
	checkUsage(ts, len(args) > 0, "NAME…")
	for _, name := range args {
		checkVerdict(ts, neg, do(name))
	}
}

func termCommand(ts *testscript.TestScript, neg bool, args []string) {
	forEachProgram(ts, neg, args, scriptWorld(ts).Term)
}

func crashCommand(ts *testscript.TestScript, neg bool, args []string) {
	forEachProgram(ts, neg, args, scriptWorld(ts).Crash)
}

func freezeCommand(ts *testscript.TestScript, neg bool, args []string) {
	forEachProgram(ts, neg, args, func(name string) error { return scriptWorld(ts).Signal(name, syscall.SIGSTOP) })
}

func thawCommand(ts *testscript.TestScript, neg bool, args []string) {
	forEachProgram(ts, neg, args, func(name string) error { return scriptWorld(ts).Signal(name, syscall.SIGCONT) })
}

func nodeCommand(ts *testscript.TestScript, neg bool, args []string) {
	checkUsage(ts, len(args) == 1, "node NAME")
	_, err := scriptWorld(ts).AddNode(args[0], 1)
	checkVerdict(ts, neg, err)
	for _, pair := range scriptWorld(ts).Env() {
		if name, value, _ := strings.Cut(pair, "="); name != "PATH" {
			ts.Setenv(name, value)
		}
	}
}

func networkCommand(ts *testscript.TestScript, neg bool, args []string) {
	const usage = "net [NODE] cut reset|blackhole|up|down|halfopen, heal, drop, delay TIME [JITTER], bandwidth BYTES or split"
	checkUsage(ts, len(args) > 0, usage)
	n := scriptWorld(ts).Node("n1")
	if other := scriptWorld(ts).Node(args[0]); other != nil {
		n, args = other, args[1:]
	}
	checkUsage(ts, len(args) > 0, usage)
	checkVerdict(ts, neg, changeNetwork(n.Net, args[0], append(args[1:], "", "")))
}

// changeNetwork does to a network what a script says.
func changeNetwork(p *faults.Proxy, what string, args []string) (err error) {
	var c faults.Conditions
	switch what {
	case "cut":
		how, err := faults.ParseCut(args[0])
		if err == nil {
			p.Cut(how)
		}
		return err
	case "heal":
		p.Heal()
	case "drop":
		p.Drop()
		return nil
	case "delay":
		if c.Delay, err = time.ParseDuration(args[0]); err == nil && args[1] != "" {
			c.Jitter, err = time.ParseDuration(args[1])
		}
	case "bandwidth":
		c.Bandwidth, err = strconv.Atoi(args[0])
	case "split":
		c.Split = true
	default:
		return fmt.Errorf("a network can't be told to %q", what)
	}
	p.Set(c)
	return err
}

// samplesCommand applies the sample resources, bound to a node and its simulated device.
func samplesCommand(ts *testscript.TestScript, neg bool, args []string) {
	name := strings.Join(append(args, "n1")[:1], "")
	n := scriptWorld(ts).Node(name)
	checkUsage(ts, n != nil && len(args) < 2, "samples [NODE]")
	all, err := configs.Samples()
	for _, s := range all {
		if err != nil {
			break
		}
		text := strings.ReplaceAll(string(s.YAML), "127.0.0.1:1502", n.Modbus)
		text = strings.ReplaceAll(text, "nodeName: demo", "nodeName: "+name)
		err = scriptWorld(ts).Apply(context.Background(), []byte(text))
	}
	checkVerdict(ts, neg, err)
}

func applyCommand(ts *testscript.TestScript, neg bool, args []string) {
	checkUsage(ts, len(args) > 0, "apply FILE…")
	for _, file := range args {
		text := os.Expand(ts.ReadFile(file), ts.Getenv)
		checkVerdict(ts, neg, scriptWorld(ts).Apply(context.Background(), []byte(text)))
	}
}

func removeCommand(ts *testscript.TestScript, neg bool, args []string) {
	checkUsage(ts, len(args) == 2, "delete KIND NAME")
	checkVerdict(ts, neg, scriptWorld(ts).Delete(context.Background(), args[0], args[1]))
}

// parseOptions takes "-name value" pairs off the front of args.
func parseOptions(ts *testscript.TestScript, args []string, known ...string) (map[string]string, []string) {
	got := map[string]string{}
	for len(args) > 1 && strings.HasPrefix(args[0], "-") {
		name := args[0][1:]
		if !strings.Contains(" "+strings.Join(known, " ")+" ", " "+name+" ") {
			ts.Fatalf("unknown option -%s", name)
		}
		got[name], args = args[1], args[2:]
	}
	return got, args
}

// brokerOption is the address of the broker that -at names; the hub's by default.
func brokerOption(ts *testscript.TestScript, got map[string]string) string {
	name := got["at"]
	if name == "" {
		name = "hub"
	}
	address, err := scriptWorld(ts).Broker(name)
	ts.Check(err)
	return address
}

func withinOption(ts *testscript.TestScript, got map[string]string) time.Duration {
	if got["within"] == "" {
		return usualWait
	}
	d, err := time.ParseDuration(got["within"])
	ts.Check(err)
	return d
}

func pubCommand(ts *testscript.TestScript, neg bool, args []string) {
	got, args := parseOptions(ts, args, "at", "q", "user", "password", "expiry")
	checkUsage(ts, len(args) == 2, "pub [-at core] [-q QOS] [-user NAME -password WORD] [-expiry TIME] TOPIC VALUE")
	m := client.Message{Topic: args[0], Payload: []byte(args[1]), QoS: 1}
	if got["q"] != "" {
		m.QoS = got["q"][0] - '0'
	}
	if got["expiry"] != "" {
		var err error
		m.Expiry, err = time.ParseDuration(got["expiry"])
		ts.Check(err)
	}
	checkVerdict(ts, neg, Publish(context.Background(), brokerOption(ts, got), m, func(o *client.Options) {
		o.User, o.Password = got["user"], got["password"]
	}))
}

// subCommand records what a filter gets in a file, for as long as the script runs.
func subCommand(ts *testscript.TestScript, neg bool, args []string) {
	got, args := parseOptions(ts, args, "at")
	checkUsage(ts, len(args) == 2, "sub [-at core] FILE FILTER")
	w := scriptWorld(ts)
	host, port, _ := strings.Cut(brokerOption(ts, got), ":")
	line := fmt.Sprintf("exec mosquitto_sub -h %s -p %s -V 5 -q 1 -v -t '%s' >'%s'", host, port, args[1], ts.MkAbs(args[0]))
	checkVerdict(ts, neg, w.Run(context.Background(), "sub-"+filepath.Base(args[0]), []string{"sh", "-c", line}, ""))
}

func awaitCommand(ts *testscript.TestScript, neg bool, args []string) {
	got, args := parseOptions(ts, args, "at", "within")
	checkUsage(ts, len(args) == 2, "await [-at core] [-within TIME] TOPIC VALUE|/PATTERN/|''")
	checkVerdict(ts, neg, Await(context.Background(), brokerOption(ts, got), args[0], args[1], withinOption(ts, got)))
}

// httpGetCommand prints what a URL answers, once it matches.
func httpGetCommand(ts *testscript.TestScript, neg bool, args []string) {
	got, args := parseOptions(ts, args, "within", "until")
	checkUsage(ts, len(args) == 1, "httpget [-within TIME] [-until PATTERN] URL")
	pattern, err := regexp.Compile(got["until"])
	ts.Check(err)
	var text []byte
	get := func(ctx context.Context) (err error) {
		if text, err = Call(ctx, http.MethodGet, args[0], nil); err != nil || pattern.Match(text) {
			return err
		}
		return fmt.Errorf("%s answers %s, which doesn't match %s", args[0], text, pattern)
	}
	if got["until"] == "" {
		err = get(context.Background())
	} else {
		err = Eventually(context.Background(), withinOption(ts, got), get)
	}
	fmt.Fprintf(ts.Stdout(), "%s\n", text)
	checkVerdict(ts, neg, err)
}

// waitForCommand runs a program again and again until it succeeds.
func waitForCommand(ts *testscript.TestScript, neg bool, args []string) {
	got, args := parseOptions(ts, args, "within")
	checkUsage(ts, len(args) > 0, "waitfor [-within TIME] PROGRAM [argument…]")
	var out []byte
	err := Eventually(context.Background(), withinOption(ts, got), func(ctx context.Context) (err error) {
		program := args[0]
		if own := filepath.Join(scriptWorld(ts).Bin, program); fileExists(own) {
			program = own
		}
		cmd := exec.CommandContext(ctx, program, args[1:]...)
		cmd.Dir = ts.MkAbs(".")
		cmd.Env = append(append(os.Environ(), scriptWorld(ts).Env()...), "KUBECONFIG="+ts.Getenv("KUBECONFIG"))
		printed, err := cmd.CombinedOutput()
		if ctx.Err() == nil { // else it was killed before it had said all
			out = printed
		}
		return err
	})
	_, _ = ts.Stdout().Write(out)
	if err != nil {
		err = fmt.Errorf("%w; the last time it printed:\n%s", err, out)
	}
	checkVerdict(ts, neg, err)
}
