// SPDX-License-Identifier: Apache-2.0

//go:build unix

package mappers

import (
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestShellMapper: the example is a mapper like any other.
func TestShellMapper(t *testing.T) {
	for _, program := range []string{"sh", "mosquitto_sub", "mosquitto_pub"} {
		if _, err := exec.LookPath(program); err != nil {
			require.Empty(t, os.Getenv("CI"), "in CI nothing is left out: %v", err)
			t.Skip(err)
		}
	}
	n := newNode(t)
	n.attach("lamp", "shell", nil, toyModel(nil))
	stop := n.shell(syscall.SIGKILL)
	n.eventually("mappers/shell-lamp/state", "online")
	n.eventually("devices/lamp/state", "online")
	n.applied("lamp", "power", "ON", n.want("lamp", "power", "ON"))
	n.want("lamp", "level", "")
	n.applied("lamp", "level", "a | b  c", n.want("lamp", "level", "a | b  c"))
	stop()
	n.eventually("mappers/shell-lamp/state", "offline")

	stop = n.shell(syscall.SIGTERM) // to itself only, as a service manager may
	n.eventually("mappers/shell-lamp/state", "online")
	n.applied("lamp", "power", "OFF", n.want("lamp", "power", "OFF"))
	n.stop()
	n.start()
	n.applied("lamp", "power", "ON", n.want("lamp", "power", "ON")) // mosquitto_sub has ended with the broker
	stop()
	n.eventually("mappers/shell-lamp/state", "offline")
	n.eventually("devices/lamp/state", "offline")
	require.Equal(t, []string{"a | b  c"}, n.published("devices/lamp/reported/level"), "applied once, however often it is told")
}

// shell starts the example and returns what ends it: SIGKILL goes to its children as well.
func (n *fakeNode) shell(how syscall.Signal) (stop func()) {
	_, port, _ := strings.Cut(n.addr, ":")
	c := exec.Command("sh", "examples/shell/lamp.sh", "n1", "lamp", port)
	c.Env = append(os.Environ(), "TMPDIR="+n.t.TempDir()) // what is killed leaves its pipe
	c.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	c.Stdout, c.Stderr = os.Stdout, os.Stderr
	require.NoError(n.t, c.Start())
	n.t.Cleanup(func() { _ = syscall.Kill(-c.Process.Pid, syscall.SIGKILL) })
	return func() {
		to := c.Process.Pid
		if how == syscall.SIGKILL {
			to = -to
		}
		require.NoError(n.t, syscall.Kill(to, how))
		ended := make(chan error, 1)
		go func() { ended <- c.Wait() }()
		select {
		case <-ended:
		case <-time.After(testTimeout):
			require.Fail(n.t, "the mapper does not end", "%v", how)
		}
	}
}
