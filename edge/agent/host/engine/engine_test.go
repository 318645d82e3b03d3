// SPDX-License-Identifier: Apache-2.0

package engine_test

import (
	"archive/tar"
	"bytes"
	"context"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/edgebus/edgebus/edge/agent/host/engine"
	"github.com/edgebus/edgebus/test/hosttest"
)

const composeLabel = "com.docker.compose.project"

func TestContainers(t *testing.T) {
	standIn := hosttest.StartEngine(t)
	e := engine.New("podman", standIn.Socket)
	require.NoError(t, e.Ping(t.Context()))
	standIn.Run(hosttest.Container{Name: "web", Image: "nginx:1", State: "running", Status: "Up 3 hours", Labels: map[string]string{composeLabel: "shop"}, Restarts: 2})
	standIn.Run(hosttest.Container{Name: "job", Image: "busybox:1", State: "exited", ExitCode: 3})
	list, err := e.List(t.Context(), "")
	require.NoError(t, err)
	require.Len(t, list, 2)
	require.Equal(t, []string{"job", "web"}, []string{list[0].Name(), list[1].Name()})
	require.Equal(t, "exited", list[0].State)
	job, err := e.Inspect(t.Context(), list[0])
	require.NoError(t, err)
	require.Equal(t, 3, job.ExitCode)
	web, err := e.Inspect(t.Context(), list[1])
	require.NoError(t, err)
	require.Equal(t, 2, web.Restarts)
	_, err = e.Inspect(t.Context(), engine.Container{ID: "none"})
	require.EqualError(t, err, "podman: no such container: none (HTTP 404)")
}

func TestAProjectGoesDownWithoutItsFile(t *testing.T) {
	standIn := hosttest.StartEngine(t)
	e := engine.New("docker", standIn.Socket)
	for _, name := range []string{"shop-web-1", "shop-db-1"} {
		standIn.Run(hosttest.Container{Name: name, State: "running", Labels: map[string]string{composeLabel: "shop"}})
	}
	standIn.Run(hosttest.Container{Name: "other", State: "running", Labels: map[string]string{composeLabel: "other"}})
	standIn.Network("shop_default", "shop")
	standIn.Network("other_default", "other")
	list, err := e.Project(t.Context(), "shop")
	require.NoError(t, err)
	require.Len(t, list, 2)
	for range 2 { // the second time there is nothing
		require.NoError(t, e.Down(t.Context(), "shop"))
		require.Equal(t, []string{"other", "other_default"}, standIn.Left())
	}
}

func TestPull(t *testing.T) {
	standIn := hosttest.StartEngine(t)
	e := engine.New("podman", standIn.Socket)
	require.NoError(t, e.Pull(t.Context(), "quay.io/acme/web:1"))
	require.Equal(t, []string{"quay.io/acme/web:1"}, standIn.Images())
	require.EqualError(t, e.Pull(t.Context(), "none.example/web:1"), "podman: pull none.example/web:1: no such host")
}

func TestEvents(t *testing.T) {
	standIn := hosttest.StartEngine(t)
	e := engine.New("podman", standIn.Socket)
	ctx, cancel := context.WithCancel(t.Context())
	changed, ended := make(chan struct{}, 100), make(chan error, 1)
	go func() { ended <- e.Events(ctx, func() { changed <- struct{}{} }) }()
	require.Eventually(t, func() bool {
		standIn.Run(hosttest.Container{Name: "web", State: "running"})
		return len(changed) > 0
	}, 30*time.Second, 10*time.Millisecond)
	cancel()
	require.ErrorIs(t, <-ended, context.Canceled)
}

func TestWhereThereIsNoEngine(t *testing.T) {
	e := engine.New("podman", filepath.Join(t.TempDir(), "none.sock"))
	require.ErrorContains(t, e.Ping(t.Context()), "no such file or directory")
	require.Error(t, e.Events(t.Context(), func() {}))
	_, err := e.List(t.Context(), "")
	require.ErrorContains(t, err, "podman at ")
}

// The podman of this machine, if it has one, with storage and containers of its own.
func TestRealPodman(t *testing.T) {
	if _, err := exec.LookPath("podman"); err != nil || os.Geteuid() != 0 {
		t.Skip("there is no podman, or no right to use it")
	}
	dir, err := os.MkdirTemp("", "pod") //nolint:usetesting // a socket's path is short
	require.NoError(t, err)
	socket := filepath.Join(dir, "podman.sock")
	podman := func(args ...string) *exec.Cmd {
		own := []string{"--root", dir + "/root", "--runroot", dir + "/run", "--storage-driver", "vfs", "--cgroup-manager", "cgroupfs", "--events-backend", "file", "--tmpdir", dir + "/tmp"}
		return exec.Command("podman", append(own, args...)...)
	}
	service := podman("system", "service", "--time=0", "unix://"+socket)
	var log bytes.Buffer
	service.Stderr = &log
	require.NoError(t, service.Start())
	t.Cleanup(func() {
		_ = service.Process.Kill()
		_ = service.Wait()
		_ = os.RemoveAll(dir)
	})
	e := engine.New("podman", socket)
	require.Eventually(t, func() bool {
		c, err := net.Dial("unix", socket)
		if err == nil {
			_ = c.Close()
		}
		return err == nil && e.Ping(t.Context()) == nil
	}, time.Minute, 50*time.Millisecond)

	image := podman("import", "-", "localhost/empty:1")
	var archive bytes.Buffer
	require.NoError(t, tar.NewWriter(&archive).Close())
	image.Stdin = &archive
	out, err := image.CombinedOutput()
	require.NoError(t, err, "%s", out)
	out, err = podman("create", "--name", "shop_web_1", "--network", "none", "--label", composeLabel+"=shop", "localhost/empty:1", "/none").CombinedOutput()
	require.NoError(t, err, "%s", out)

	list, err := e.Project(t.Context(), "shop")
	require.NoError(t, err, "%s", &log)
	require.Len(t, list, 1)
	require.Equal(t, "shop_web_1", list[0].Name())
	require.Equal(t, "localhost/empty:1", list[0].Image)
	require.Equal(t, "created", list[0].State)
	_, err = e.Inspect(t.Context(), list[0])
	require.NoError(t, err)
	none, err := e.Project(t.Context(), "other")
	require.NoError(t, err)
	require.Empty(t, none)
	for range 2 {
		require.NoError(t, e.Down(t.Context(), "shop"))
	}
	list, err = e.List(t.Context(), "")
	require.NoError(t, err)
	require.Empty(t, list)
}
