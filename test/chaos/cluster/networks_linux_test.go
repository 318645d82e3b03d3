// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/edgebus/edgebus/test/root"
)

// insideEnv says that the test's process has a network and mounts of its own already.
const insideEnv = "TEST_IN_OWN_NETWORK"

func TestMain(m *testing.M) {
	if os.Geteuid() != 0 || os.Getenv(root.Env) == "" || os.Getenv(insideEnv) != "" {
		os.Exit(m.Run())
	}
	cmd := exec.Command(os.Args[0], os.Args[1:]...)
	cmd.Env = append(os.Environ(), insideEnv+"=yes")
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	// Its mounts are nobody else's: a program that copied them all into a namespace of its own would keep a disk that is cut as it is.
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET, Unshareflags: syscall.CLONE_NEWNS}
	signal.Notify(make(chan os.Signal, 1), os.Interrupt) // the other process ends its round, and sums up
	err := cmd.Run()
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		os.Exit(max(exit.ExitCode(), 1))
	}
	if err != nil { // no namespace: the tests say so
		os.Exit(m.Run())
	}
}

// Addresses of the bridge, where the test is: it controls the programs from one, and their clients have the other. All are loopback addresses, at which
// hubs listen without TLS and let anybody in.
const (
	controlAddress = "127.99.0.1"
	clientAddress  = "127.99.0.2"
)

// routeLoopback leaves a namespace's loopback interface 127.0.0.1 alone: the other loopback addresses are other hosts'.
const routeLoopback = "echo 1 >/proc/sys/net/ipv4/conf/all/route_localnet; ip link set lo up; if ip addr del 127.0.0.1/8 dev lo 2>/dev/null; then ip addr add 127.0.0.1/32 dev lo; fi"

// host is a network namespace that a cable joins to the bridge.
type host struct {
	name, address string
	space         *os.File // the namespace, for as long as it is open
	cable         string   // the end at the bridge
}

// newNetwork makes the bridge, and as many hosts.
func newNetwork(t *testing.T, names ...string) []*host {
	t.Helper()
	root.Require(t)
	for _, program := range []string{"ip", "nsenter", "iptables"} {
		if _, err := exec.LookPath(program); err != nil {
			missing(t, program+" is missing: `make needs` installs it")
		}
	}
	if os.Getenv(insideEnv) == "" {
		missing(t, "no network namespace can be made here")
	}
	_ = run("ip", "link", "del", "br0") // another test's
	require.NoError(t, run("sh", "-c", routeLoopback))
	for _, line := range []string{
		"link add br0 type bridge", "link set br0 up", "addr add " + controlAddress + "/24 dev br0", "addr add " + clientAddress + "/24 dev br0",
	} {
		if err := run(append([]string{"ip"}, strings.Fields(line)...)...); err != nil {
			missing(t, "the kernel has no bridge: "+err.Error())
		}
	}
	var all []*host
	for i, name := range names {
		h := &host{name: name, address: fmt.Sprint("127.99.0.", 11+i), cable: fmt.Sprint("cable", i)}
		h.space = newSpace(t)
		_ = run("ip", "link", "del", h.cable)
		require.NoError(t, run("ip", "link", "add", h.cable, "type", "veth", "peer", "name", "eth0", "netns", h.path()))
		require.NoError(t, run("ip", "link", "set", h.cable, "master", "br0", "up"))
		require.NoError(t, run(append(h.prefix(), "sh", "-c", routeLoopback)...))
		for _, line := range []string{"addr add " + h.address + "/24 dev eth0", "link set eth0 up"} {
			require.NoError(t, run(append(append(h.prefix(), "ip"), strings.Fields(line)...)...))
		}
		all = append(all, h)
	}
	if err := all[0].filter("-L"); err != nil {
		missing(t, "the kernel has no iptables: "+err.Error())
	}
	return all
}

// missing ends a test where it can't run: in CI with a failure.
func missing(t *testing.T, why string) {
	t.Helper()
	if os.Getenv("CI") != "" {
		t.Fatal(why)
	}
	t.Skip(why)
}

// newSpace makes a network namespace that has no name, and is gone when the test is.
func newSpace(t *testing.T) *os.File {
	t.Helper()
	type made struct {
		f   *os.File
		err error
	}
	done := make(chan made)
	go func() {
		runtime.LockOSThread() // the thread ends with the goroutine
		err := unix.Unshare(unix.CLONE_NEWNET)
		var f *os.File
		if err == nil {
			f, err = os.Open("/proc/thread-self/ns/net")
		}
		done <- made{f, err}
	}()
	m := <-done
	require.NoError(t, m.err)
	t.Cleanup(func() { _ = m.f.Close() })
	return m.f
}

func (h *host) path() string { return fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), h.space.Fd()) }

// prefix stands before the line of a program that is to run there.
func (h *host) prefix() []string { return []string{"nsenter", "--net=" + h.path(), "--"} }

// run runs a command to its end.
func run(line ...string) error {
	out, err := exec.Command(line[0], line[1:]...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("%s: %w: %s", strings.Join(line, " "), err, strings.TrimSpace(string(out)))
	}
	return nil
}

func (h *host) filter(args ...string) error {
	return run(slices.Concat(h.prefix(), []string{"iptables", "-w"}, args)...)
}

// drop loses packets in one direction (INPUT, OUTPUT), with what else tells which.
func (h *host) drop(direction string, which ...string) error {
	return h.filter(slices.Concat([]string{"-A", direction}, which, []string{"-j", "DROP"})...)
}

// cutFrom loses all packets between this host and an address.
func (h *host) cutFrom(address string) error {
	return errors.Join(h.drop("INPUT", "-s", address), h.drop("OUTPUT", "-d", address))
}

// unplug pulls the cable.
func (h *host) unplug() error { return run("ip", "link", "set", h.cable, "down") }

// mend plugs the cable in, and loses no packets any more.
func (h *host) mend() error {
	return errors.Join(run("ip", "link", "set", h.cable, "up"), h.filter("-F"))
}
