//go:build unix

package mappers

import (
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"

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
	_, port, _ := strings.Cut(n.addr, ":")
	c := exec.Command("sh", "examples/shell/lamp.sh", "n1", "lamp", port)
	c.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	c.Stdout, c.Stderr = os.Stdout, os.Stderr
	require.NoError(t, c.Start())
	kill := func() { _ = syscall.Kill(-c.Process.Pid, syscall.SIGKILL); _ = c.Wait() }
	defer kill()
	n.eventually("mappers/shell-lamp/state", "online")
	n.eventually("devices/lamp/state", "online")
	n.applied("lamp", "power", "ON", n.want("lamp", "power", "ON"))
	n.want("lamp", "level", "")
	n.applied("lamp", "level", "a | b  c", n.want("lamp", "level", "a | b  c"))
	kill()
	n.eventually("mappers/shell-lamp/state", "offline")
}
