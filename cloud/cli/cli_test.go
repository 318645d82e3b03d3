// SPDX-License-Identifier: Apache-2.0

package cli_test

import (
	"bytes"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/edgebus/edgebus/cloud/cli"
	"github.com/edgebus/edgebus/cloud/cli/exitcode"
	"github.com/edgebus/edgebus/test/clitest"
)

func TestExitCodes(t *testing.T) {
	clitest.StartHub(t)
	for _, line := range []string{
		"get", "get devices -o xml", "get devices --nope", "gett", "get devices,nodes a", "get device/", "get device a -l b",
		"get devices --server hub", "twin set lamp power", "twin set lamp a=1 a=2", "twin set lamp a/b=1", "twin get lamp -o value",
		"delete devices", "describe device",
	} {
		_, errs := clitest.Run(t, exitcode.Misused, strings.Split(line, " ")...)
		require.True(t, strings.HasPrefix(errs, "edgebus: "), errs)
	}
	clitest.Run(t, exitcode.NotFound, "get", "toasters")
	clitest.Run(t, exitcode.NotFound, "twin", "get", "lamp")
	clitest.Run(t, exitcode.Unreachable, "get", "devices", "--server", "http://127.0.0.1:1")
	clitest.Run(t, 0, "apply", "-f", clitest.WriteFile(t, t.TempDir(), "plant.yaml", clitest.Plant))
	clitest.Run(t, 0, "twin", "set", "lamp", "colorTemp_K=2700")
	clitest.Run(t, exitcode.Refused, "twin", "set", "lamp", "brightness=101")
	clitest.Run(t, exitcode.TimedOut, "twin", "set", "lamp", "brightness=10", "--wait", "--timeout", "2s")
	clitest.Run(t, 0, "kinds")
	require.Equal(t, exitcode.Failed, exitcode.Of(http.ErrHandlerTimeout))
}

// Where a shell completes an argument, the hub is asked which names there are; those that were given are not offered again.
func TestNamesAreCompletedFromTheHub(t *testing.T) {
	server := clitest.StartHub(t)
	clitest.Run(t, 0, "context", "set", "here", "--server", server.URL, "--use") // tree knows the hub by its context
	clitest.Run(t, 0, "apply", "-f", clitest.WriteFile(t, t.TempDir(), "plant.yaml", clitest.Plant+"---\napiVersion: edgebus.io/v1alpha1\nkind: Node\nmetadata: {name: n2}\n"))
	const noFiles = ":4\n" // cobra's directive
	for line, want := range map[string]string{
		"get devices |":             "lamp\n" + noFiles,
		"get device/|":              "device/lamp\n" + noFiles,
		"twin get lamp |":           "brightness\ncolorTemp_K\n" + noFiles,
		"twin set lamp |":           "brightness=\ncolorTemp_K=\n:6\n", // and no space
		"call |":                    "lamp\n" + noFiles,
		"call lamp |":               noFiles, // the mapper knows
		"describe node |":           "n1\nn2\n" + noFiles,
		"delete node n1 |":          "n2\n" + noFiles,
		"tree |":                    "n1\nn2\n" + noFiles,
		"tree n1 |":                 noFiles,
		"doctor |":                  "n1\nn2\n" + noFiles,
		"node revoke n2 |":          "n1\n" + noFiles,
		"node decommission |":       "n1\nn2\n" + noFiles,
		"upgrade history |":         "n1\nn2\n" + noFiles,
		"upgrade start v1 --node |": "n1\nn2\n" + noFiles,
		"upgrade status |":          noFiles,
		"rollout pause |":           noFiles,
		"approve |":                 noFiles,
	} {
		words := append([]string{"__complete"}, strings.Split(strings.TrimSuffix(line, "|"), " ")...)
		require.Eventually(t, func() bool { // a busy machine may not answer in the two seconds that completion waits
			out, _ := clitest.Run(t, 0, words...)
			return out == want
		}, time.Minute, time.Millisecond, line)
	}
	out, _ := clitest.Run(t, 0, "__complete", "get", "")
	require.Contains(t, out, "devicemodels\n")
	for _, shell := range []string{"bash", "zsh", "fish"} {
		out, _ := clitest.Run(t, 0, "completion", shell)
		require.Contains(t, out, "edgebus", shell)
	}
	t.Setenv("EDGEBUS_SERVER", "http://127.0.0.1:1")
	out, _ = clitest.Run(t, 0, "__complete", "get", "devices", "")
	require.Equal(t, noFiles, out, "without a hub nothing is offered")
}

// TestTimeoutBoundsTheWholeCommand: a hub that takes connections and never answers holds nobody up for longer.
func TestTimeoutBoundsTheWholeCommand(t *testing.T) {
	t.Setenv("KUBECONFIG", filepath.Join(t.TempDir(), "config"))
	hung, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer hung.Close()
	manifest := clitest.WriteFile(t, t.TempDir(), "plant.yaml", clitest.Plant)
	commands := []string{
		"get devices", "get devices -w", "watch devices", "kinds", "describe device lamp", "export", "apply -f " + manifest,
		"delete device lamp", "delete device lamp --wait", "twin get lamp", "twin watch lamp", "twin set lamp power=ON", "twin set lamp power=ON --wait",
	}
	codes, errs := make([]int, len(commands)), make([]bytes.Buffer, len(commands))
	began := time.Now()
	var all sync.WaitGroup
	for i, args := range commands {
		all.Go(func() {
			codes[i] = cli.Run(append(strings.Fields(args), "--timeout", "3s", "--server", "http://"+hung.Addr().String()), io.Discard, &errs[i])
		})
	}
	all.Wait()
	require.Less(t, time.Since(began), 20*time.Second, "each answer has 30 s otherwise")
	for i, args := range commands {
		require.Contains(t, errs[i].String(), "no answer from the hub at http://"+hung.Addr().String()+": it takes the connection, and has not answered GET /api", args)
		require.Equal(t, exitcode.TimedOut, codes[i], args)
	}
	clitest.Run(t, exitcode.Misused, "get", "devices", "--timeout", "-1s")
}

// TestATimeoutAmongManyObjectsIsReportedOnce: the code is the same for many objects as for one, and what is left is said once.
func TestATimeoutAmongManyObjectsIsReportedOnce(t *testing.T) {
	hub := clitest.StartHub(t)
	hangs := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodGet {
			hub.Config.Handler.ServeHTTP(w, r)
			return
		}
		_, _ = io.Copy(io.Discard, r.Body) // else nobody notices that the client has gone
		<-r.Context().Done()
	}))
	defer hangs.Close()
	defer hangs.CloseClientConnections()
	manifest := clitest.WriteFile(t, t.TempDir(), "plant.yaml", clitest.Plant)
	for args, left := range map[string]string{
		"apply -f " + manifest:    "3 objects: 1 failed, 2 without an answer\n",
		"delete -f " + manifest:   "edgebus: not tried: 2 more\n",
		"delete node n1 n2 n3 n4": "edgebus: not tried: 3 more\n",
		"delete node n1":          "time was up (--timeout)\n",
		"apply -q -f " + manifest: "3 objects: 1 failed, 2 without an answer\n",
	} {
		errs := clitest.RunWithMoreTime(t, exitcode.TimedOut, left, append(strings.Fields(args), "--server", hangs.URL)...)
		require.Equal(t, 1, strings.Count(errs, ": time was up (--timeout)\n"), errs)
		require.NotContains(t, errs, "firewall")
	}
	clitest.Run(t, 0, "get", "nodes", "--timeout", "2000000h")
}

func TestVersionAndUsage(t *testing.T) {
	var out, errs bytes.Buffer
	require.Zero(t, cli.Run([]string{"version"}, &out, &errs))
	require.Contains(t, out.String(), "edgebus ")
	require.Equal(t, exitcode.Misused, cli.Run([]string{"tree"}, &out, &errs))
	require.Contains(t, errs.String(), "edgebus: ")
	require.Equal(t, 1, cli.Run([]string{"tree", "a/b"}, &out, &errs))
	require.Contains(t, errs.String(), `"a/b" is no node's name`)
	require.Equal(t, exitcode.Misused, cli.Run([]string{"tree", "n1", "-o", "xml"}, &out, &errs))
	require.Contains(t, errs.String(), "xml")
}

// A command line that can't be understood is answered with what the command takes.
func TestWrongArgumentsAreExplained(t *testing.T) {
	for line, want := range map[string]string{
		"tree":          "takes: edgebus tree NODE",
		"call lamp":     "takes: edgebus call DEVICE COMMAND",
		"pub a":         "takes: edgebus pub TOPIC",
		"sub":           "takes: edgebus sub FILTER…",
		"new-mapper":    "takes: edgebus new-mapper NAME",
		"passwd ann":    "takes: edgebus passwd",
		"twin lamp":     `edgebus twin has no command "lamp"; it has get, set, watch`,
		"session close": `edgebus session has no command "close"; it has end, list`,
		"gett devices":  `unknown command "gett"`,
		"tree --onze":   "edgebus tree --help says more",
		"sub #x":        "a wildcard stands alone",
	} {
		var out, errs bytes.Buffer
		require.Equal(t, exitcode.Misused, cli.Run(strings.Fields(line), &out, &errs), line)
		require.Contains(t, errs.String(), want, line)
		require.NotContains(t, errs.String(), "arg(s)", line)
		require.Empty(t, out.String(), line)
	}
	for _, line := range []string{"twin", "session --help", "context set --help", "help twin"} {
		var out, errs bytes.Buffer
		require.Zero(t, cli.Run(strings.Fields(line), &out, &errs), line)
		require.Contains(t, out.String(), "Usage:", line)
	}
}

func TestANameThatIsNotFoundComesWithASimilarOne(t *testing.T) {
	clitest.StartHub(t)
	clitest.Run(t, 0, "apply", "-f", clitest.WriteFile(t, t.TempDir(), "plant.yaml", clitest.Plant))
	clitest.Run(t, 0, "context", "set", "plant", "--server", "http://127.0.0.1:1", "--use")
	for _, x := range []struct{ line, near string }{
		{"get device lmp", "lamp"},
		{"get devcies", "devices"},
		{"get device/lmp -o json", "lamp"},
		{"describe node n2", "n1"},
		{"watch device lmp", "lamp"},
		{"delete device lmp", "lamp"},
		{"twin get lmp", "lamp"},
		{"twin get lamp brightnes", "brightness"},
		{"twin set lamp brightnes=3", "brightness"},
		{"get devices --context plnt", "plant"},
		{"context use plnt", "plant"},
	} {
		var out, errs bytes.Buffer
		code := cli.Run(strings.Fields(x.line), &out, &errs)
		require.Contains(t, errs.String(), "did you mean "+x.near+"?", x.line)
		require.Contains(t, []int{exitcode.NotFound, exitcode.Refused}, code, x.line)
	}
	var errs bytes.Buffer
	cli.Run([]string{"get", "device", "pump"}, &bytes.Buffer{}, &errs)
	require.NotContains(t, errs.String(), "did you mean")
}
