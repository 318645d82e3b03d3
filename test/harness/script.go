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

// usual is how long a script waits for what should come soon.
const usual = 30 * time.Second

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
		Setup: setup,
		Condition: func(name string) (bool, error) {
			if name != "all" {
				return false, fmt.Errorf("unknown condition %s", name)
			}
			return os.Getenv("ALL_TESTS") != "", nil
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			"start": start, "run": run, "term": term, "crash": crash, "freeze": freeze, "thaw": thaw,
			"node": node, "net": network, "samples": samples, "apply": apply, "delete": remove,
			"pub": pub, "sub": sub, "await": await, "httpget": httpGet, "waitfor": waitFor,
		},
	})
}

func setup(env *testscript.Env) error {
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

func world(ts *testscript.TestScript) *World { return ts.Value(worldKey{}).(*World) }

// verdict ends a command that may be expected to fail, with "!" before it.
func verdict(ts *testscript.TestScript, neg bool, err error) {
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

func want(ts *testscript.TestScript, ok bool, usage string) {
	if !ok {
		ts.Fatalf("usage: %s", usage)
	}
}

func start(ts *testscript.TestScript, neg bool, args []string) {
	want(ts, len(args) > 0, "start NAME [argument…]")
	verdict(ts, neg, world(ts).Start(context.Background(), args[0], args[1:]...))
}

func run(ts *testscript.TestScript, neg bool, args []string) {
	want(ts, len(args) > 1, "run NAME PROGRAM [argument…]")
	verdict(ts, neg, world(ts).Run(context.Background(), args[0], args[1:], ""))
}

// each makes a command of something that can be done to programs.
func each(ts *testscript.TestScript, neg bool, args []string, do func(string) error) {
	want(ts, len(args) > 0, "NAME…")
	for _, name := range args {
		verdict(ts, neg, do(name))
	}
}

func term(ts *testscript.TestScript, neg bool, args []string) {
	each(ts, neg, args, world(ts).Term)
}

func crash(ts *testscript.TestScript, neg bool, args []string) {
	each(ts, neg, args, world(ts).Crash)
}

func freeze(ts *testscript.TestScript, neg bool, args []string) {
	each(ts, neg, args, func(name string) error { return world(ts).Signal(name, syscall.SIGSTOP) })
}

func thaw(ts *testscript.TestScript, neg bool, args []string) {
	each(ts, neg, args, func(name string) error { return world(ts).Signal(name, syscall.SIGCONT) })
}

func node(ts *testscript.TestScript, neg bool, args []string) {
	want(ts, len(args) == 1, "node NAME")
	_, err := world(ts).AddNode(args[0], 1)
	verdict(ts, neg, err)
	for _, pair := range world(ts).Env() {
		if name, value, _ := strings.Cut(pair, "="); name != "PATH" {
			ts.Setenv(name, value)
		}
	}
}

func network(ts *testscript.TestScript, neg bool, args []string) {
	const usage = "net [NODE] cut reset|blackhole|up|down|halfopen, heal, drop, delay TIME [JITTER], bandwidth BYTES or split"
	want(ts, len(args) > 0, usage)
	n := world(ts).Node("n1")
	if other := world(ts).Node(args[0]); other != nil {
		n, args = other, args[1:]
	}
	want(ts, len(args) > 0, usage)
	verdict(ts, neg, change(n.Net, args[0], append(args[1:], "", "")))
}

// change does to a network what a script says.
func change(p *faults.Proxy, what string, args []string) (err error) {
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

// samples applies the sample resources, bound to a node and its simulated device.
func samples(ts *testscript.TestScript, neg bool, args []string) {
	name := strings.Join(append(args, "n1")[:1], "")
	n := world(ts).Node(name)
	want(ts, n != nil && len(args) < 2, "samples [NODE]")
	all, err := configs.Samples()
	for _, s := range all {
		if err != nil {
			break
		}
		text := strings.ReplaceAll(string(s.YAML), "127.0.0.1:1502", n.Modbus)
		text = strings.ReplaceAll(text, "nodeName: demo", "nodeName: "+name)
		err = world(ts).Apply(context.Background(), []byte(text))
	}
	verdict(ts, neg, err)
}

func apply(ts *testscript.TestScript, neg bool, args []string) {
	want(ts, len(args) > 0, "apply FILE…")
	for _, file := range args {
		text := os.Expand(ts.ReadFile(file), ts.Getenv)
		verdict(ts, neg, world(ts).Apply(context.Background(), []byte(text)))
	}
}

func remove(ts *testscript.TestScript, neg bool, args []string) {
	want(ts, len(args) == 2, "delete KIND NAME")
	verdict(ts, neg, world(ts).Delete(context.Background(), args[0], args[1]))
}

// options takes "-name value" pairs off the front of args.
func options(ts *testscript.TestScript, args []string, known ...string) (map[string]string, []string) {
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

// broker is the address of the broker that -at names; the hub's by default.
func broker(ts *testscript.TestScript, got map[string]string) string {
	name := got["at"]
	if name == "" {
		name = "hub"
	}
	address, err := world(ts).Broker(name)
	ts.Check(err)
	return address
}

func within(ts *testscript.TestScript, got map[string]string) time.Duration {
	if got["within"] == "" {
		return usual
	}
	d, err := time.ParseDuration(got["within"])
	ts.Check(err)
	return d
}

func pub(ts *testscript.TestScript, neg bool, args []string) {
	got, args := options(ts, args, "at", "q", "user", "password", "expiry")
	want(ts, len(args) == 2, "pub [-at core] [-q QOS] [-user NAME -password WORD] [-expiry TIME] TOPIC VALUE")
	m := client.Message{Topic: args[0], Payload: []byte(args[1]), QoS: 1}
	if got["q"] != "" {
		m.QoS = got["q"][0] - '0'
	}
	if got["expiry"] != "" {
		var err error
		m.Expiry, err = time.ParseDuration(got["expiry"])
		ts.Check(err)
	}
	verdict(ts, neg, Publish(context.Background(), broker(ts, got), m, func(o *client.Options) {
		o.User, o.Password = got["user"], got["password"]
	}))
}

// sub records what a filter gets in a file, for as long as the script runs.
func sub(ts *testscript.TestScript, neg bool, args []string) {
	got, args := options(ts, args, "at")
	want(ts, len(args) == 2, "sub [-at core] FILE FILTER")
	w := world(ts)
	host, port, _ := strings.Cut(broker(ts, got), ":")
	line := fmt.Sprintf("exec mosquitto_sub -h %s -p %s -V 5 -q 1 -v -t '%s' >'%s'", host, port, args[1], ts.MkAbs(args[0]))
	verdict(ts, neg, w.Run(context.Background(), "sub-"+filepath.Base(args[0]), []string{"sh", "-c", line}, ""))
}

func await(ts *testscript.TestScript, neg bool, args []string) {
	got, args := options(ts, args, "at", "within")
	want(ts, len(args) == 2, "await [-at core] [-within TIME] TOPIC VALUE|/PATTERN/|''")
	verdict(ts, neg, Await(context.Background(), broker(ts, got), args[0], args[1], within(ts, got)))
}

// httpGet prints what a URL answers, once it matches.
func httpGet(ts *testscript.TestScript, neg bool, args []string) {
	got, args := options(ts, args, "within", "until")
	want(ts, len(args) == 1, "httpget [-within TIME] [-until PATTERN] URL")
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
		err = Eventually(context.Background(), within(ts, got), get)
	}
	fmt.Fprintf(ts.Stdout(), "%s\n", text)
	verdict(ts, neg, err)
}

// waitFor runs a program again and again until it succeeds.
func waitFor(ts *testscript.TestScript, neg bool, args []string) {
	got, args := options(ts, args, "within")
	want(ts, len(args) > 0, "waitfor [-within TIME] PROGRAM [argument…]")
	var out []byte
	err := Eventually(context.Background(), within(ts, got), func(ctx context.Context) (err error) {
		program := args[0]
		if own := filepath.Join(world(ts).Bin, program); exists(own) {
			program = own
		}
		cmd := exec.CommandContext(ctx, program, args[1:]...)
		cmd.Dir = ts.MkAbs(".")
		cmd.Env = append(append(os.Environ(), world(ts).Env()...), "KUBECONFIG="+ts.Getenv("KUBECONFIG"))
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
	verdict(ts, neg, err)
}
