// SPDX-License-Identifier: Apache-2.0

package newmapper

import (
	"go/format"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestAWrittenMapperBuildsAndPassesTheSuite: what edgebus new-mapper writes builds, passes the suite of drivers, and is a
// program with configuration, TLS and --check-config.
func TestAWrittenMapperBuildsAndPassesTheSuite(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "mapper-knx")
	source, err := filepath.Abs("../../..")
	require.NoError(t, err)
	run := func(line ...string) (string, error) {
		c := exec.Command(line[0], line[1:]...)
		c.Dir = dir
		// The module is a new one: what it needs beyond this repository's go.sum comes from the proxy, as it does for a user.
		c.Env = append(os.Environ(), "GOSUMDB=off", "GOFLAGS=-mod=mod -trimpath -tags=grpcnotrace", "GOWORK=off", "CGO_ENABLED=0") // as the programs, so that what they share is compiled already
		out, err := c.CombinedOutput()
		return string(out), err
	}
	ok := func(line ...string) string {
		t.Helper()
		out, err := run(line...)
		require.NoError(t, err, "%q: %s", line, out)
		return out
	}
	write := func(args ...string) error {
		cmd := New()
		cmd.SilenceUsage, cmd.SilenceErrors = true, true
		cmd.SetArgs(args)
		var out strings.Builder
		cmd.SetOut(&out)
		return cmd.Execute()
	}
	require.ErrorContains(t, write("K_NX"), "no name of a mapper")
	require.NoError(t, write("knx", "--dir", dir, "--edgebus", source))
	require.ErrorContains(t, write("knx", "--dir", dir), "exists: choose another directory with --dir")
	files, err := filepath.Glob(filepath.Join(dir, "*.go"))
	require.NoError(t, err)
	require.Len(t, files, 3)
	for _, file := range files {
		text, err := os.ReadFile(file)
		require.NoError(t, err)
		formatted, err := format.Source(text)
		require.NoError(t, err)
		require.Equal(t, string(formatted), string(text), file)
	}
	ok("go", "vet", "./...")
	require.Contains(t, ok("go", "test", "-count=1", "-v", "./..."), "--- PASS: TestDriver/device_comes_back")
	ok("go", "build", "-o", "mapper-knx", ".")

	help := ok("./mapper-knx", "--help")
	for _, flag := range []string{"--server", "--tls-ca", "--password-file", "--check-config", "--driver-timeout", "/etc/edgebus/mapper-knx.yaml", "How long a device may take to answer."} {
		require.Contains(t, help, flag)
	}
	printed := ok("./mapper-knx", "--print-config", "--driver-timeout", "7s", "--tls-ca", "")
	require.Contains(t, printed, "name: knx\n")
	require.Contains(t, printed, "driver:\n  # How long a device may take to answer.\n  timeout: 7s\n")
	require.NotContains(t, printed, "virtual")
	require.Contains(t, ok("./mapper-knx", "--check-config"), "nothing is wrong")
	for wrong, want := range map[string]string{
		"driver:\n  timeout: 0s\n":          "k.yaml:2: driver.timeout: must be more than 0",
		"driver:\n  timeot: 1s\n":           "did you mean driver.timeout?",
		"tls:\n  ca: gone.pem\n":            "gone.pem",
		"server: http://127.0.0.1:2883\n":   "server",
		"driver:\n  timeout: some time\n\n": "driver.timeout",
	} {
		require.NoError(t, os.WriteFile(filepath.Join(dir, "k.yaml"), []byte(wrong), 0o644))
		out, err := run("./mapper-knx", "--config", "k.yaml", "--check-config")
		require.Error(t, err, wrong)
		require.Contains(t, out, want)
	}
}
