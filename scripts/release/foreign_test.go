// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// foreignArches are the architectures that a release has beside this machine's, with the program that runs their programs.
func foreignArches() map[string]string {
	return map[string]string{"arm64": "qemu-aarch64-static", "arm": "qemu-arm-static"}
}

// Programs of other architectures run, and say that they are well: a core and a mapper. EDGEBUS_RELEASE_DIR names the directory that a release
// was made in: then it is all programs of that, and the hub as well.
func TestProgramsOfOtherArchitecturesRun(t *testing.T) {
	requirePrograms(t, "qemu-aarch64-static", "qemu-arm-static")
	for arch, qemu := range foreignArches() {
		t.Run(arch, func(t *testing.T) {
			b := newBuild(t, "v0.9.0")
			programs := []string{"edgecore", "mapper-virtual"}
			if dir := os.Getenv("EDGEBUS_RELEASE_DIR"); dir != "" {
				b.built, programs = filepath.Join(dir, ".work"), b.programs()
			}
			if err := b.compile(arch, programs...); err != nil {
				t.Fatal(err)
			}
			for _, program := range programs {
				out, err := exec.Command(qemu, b.binary(arch, program), "--version").CombinedOutput()
				if err != nil || string(out) != program+" v0.9.0\n" {
					t.Errorf("%s --version: %v: %s", program, err, out)
				}
			}
			mqtt := freeAddress(t)
			core := []string{"edgecore", "--config", os.DevNull, "--data-dir", t.TempDir(), "--node-name", "n1", "--mqtt-listen", mqtt, "--http-listen", freeAddress(t), "--link-server", ""}
			mapper := []string{"mapper-virtual", "--config", os.DevNull, "--server", "mqtt://" + mqtt}
			lines := [][]string{core, mapper}
			if slices.Contains(programs, "cloudhub") {
				lines = append(lines, []string{"cloudhub", "--config", os.DevNull, "--data-dir", t.TempDir(), "--mqtt-listen", freeAddress(t), "--http-listen", freeAddress(t), "--mqtt-websocket-listen", ""})
			}
			for _, line := range lines {
				startForeign(t, qemu, b.binary(arch, line[0]), line[1:])
			}
			for _, line := range lines {
				awaitHealth(t, qemu, b.binary(arch, line[0]), line[1:])
			}
		})
	}
}

func startForeign(t *testing.T, qemu, program string, args []string) {
	t.Helper()
	var said strings.Builder
	cmd := exec.Command(qemu, append([]string{program}, args...)...)
	cmd.Stdout, cmd.Stderr = &said, &said
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		if t.Failed() {
			t.Logf("%s: %s", filepath.Base(program), said.String())
		}
	})
}

func awaitHealth(t *testing.T, qemu, program string, args []string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	for {
		out, err := exec.CommandContext(ctx, qemu, append([]string{program, "health"}, args...)...).CombinedOutput() //nolint:gosec // our own program
		if err == nil {
			return
		}
		if ctx.Err() != nil {
			t.Fatalf("%s health: %v: %s", filepath.Base(program), err, out)
		}
		time.Sleep(50 * time.Millisecond) // a program of its own: there is nothing to be told by
	}
}

// freeAddress is one of the loopback interface that nobody has.
func freeAddress(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return fmt.Sprint(l.Addr())
}
