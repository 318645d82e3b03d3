// SPDX-License-Identifier: Apache-2.0

package page

import (
	"bytes"
	"fmt"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/chromedp/chromedp"
	"github.com/stretchr/testify/require"
)

// startProgram starts a program of a directory with flags.
func startProgram(t *testing.T, bin, name string, flags ...string) *exec.Cmd {
	t.Helper()
	cmd := exec.Command(filepath.Join(bin, name), flags...)
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	require.NoError(t, cmd.Start(), "make build comes before")
	t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		_ = cmd.Wait()
		if t.Failed() {
			t.Log(out.String())
		}
	})
	return cmd
}

func TestTheNodesOwnPageWorksWhileTheHubIsAway(t *testing.T) {
	bin, err := filepath.Abs("../../bin")
	require.NoError(t, err)
	p := &programs{t: t, hub: freeAddress(t), hubMQTT: freeAddress(t), core: freeAddress(t), coreMQTT: freeAddress(t)}
	dir := t.TempDir()
	startHub := func() *exec.Cmd {
		return startProgram(t, bin, "cloudhub", "--http-listen", p.hub, "--mqtt-listen", p.hubMQTT, "--mqtt-websocket-listen", freeAddress(t), "--data-dir", filepath.Join(dir, "hub"))
	}
	hub := startHub()
	startProgram(t, bin, "edgecore", "--node-name", "demo", "--http-listen", p.core, "--mqtt-listen", p.coreMQTT, "--link-server", "mqtt://"+p.hubMQTT, "--data-dir", filepath.Join(dir, "core"))
	startProgram(t, bin, "mapper-virtual", "--server", "mqtt://"+p.coreMQTT)
	require.Eventually(t, func() bool { _, ok := getText("http://" + p.hub + "/readyz"); return ok }, patience, 20*time.Millisecond)
	samples := "../../configs/samples/"
	out, err := exec.Command(filepath.Join(bin, "edgebus"), "apply", "--server", "http://"+p.hub, "-f", samples+"1-dimmable-lamp.yaml", "-f", samples+"2-lamp.yaml").CombinedOutput()
	require.NoError(t, err, "%s", out)

	ctx := startBrowser(t)
	openNode := func(at string) {
		t.Helper()
		run(t, ctx, chromedp.Navigate(fmt.Sprintf("http://%s/ui/%s", p.core, at)))
	}
	openNode("devices/default/lamp")
	awaitTrue(t, ctx, rowShows("power", "OFF"))
	require.NoError(t, hub.Process.Kill())
	_ = hub.Wait()

	pressButton(t, ctx, "Set power")
	awaitTrue(t, ctx, rowShows("power", "ON"))
	awaitTrue(t, ctx, rowShows("power", "in sync"))
	openNode("nodes/demo")
	awaitText(t, ctx, "The hub is away")
	awaitText(t, ctx, "changes wait for it")

	startHub()
	awaitTrue(t, ctx, `!document.body.innerText.includes('The hub is away')`)
}
