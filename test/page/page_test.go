// SPDX-License-Identifier: Apache-2.0

// Package page tries the web page in Debian's Chromium, against the programs themselves: hub, core and mappers of the demo.
package page

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"
	"github.com/stretchr/testify/require"
)

const patience = 30 * time.Second

// programs are a demo that runs, with its addresses.
type programs struct {
	t                                           *testing.T
	hub, core, hubMQTT, coreMQTT, hubTLS, tools string
	cmd                                         *exec.Cmd
}

func freeAddress(t *testing.T) string {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer func() { _ = l.Close() }()
	return l.Addr().String()
}

// startDemo starts the demo: a hub, a node, a lamp and a Modbus thermostat.
func startDemo(t *testing.T) *programs {
	bin, err := filepath.Abs("../../bin")
	require.NoError(t, err)
	p := &programs{t: t, hub: freeAddress(t), core: freeAddress(t), hubMQTT: freeAddress(t), coreMQTT: freeAddress(t), hubTLS: freeAddress(t), tools: bin}
	p.cmd = exec.Command(filepath.Join(bin, "edgebus"), "demo", "--hub-http", p.hub, "--core-http", p.core, "--hub-mqtt", p.hubMQTT, "--core-mqtt", p.coreMQTT,
		"--modbus", freeAddress(t), "--hub-mqtt-tls", p.hubTLS, "--programs", bin)
	var out bytes.Buffer
	p.cmd.Stdout, p.cmd.Stderr = &out, &out
	require.NoError(t, p.cmd.Start(), "make build comes before")
	t.Cleanup(func() {
		_ = p.cmd.Process.Signal(syscall.SIGTERM)
		_ = p.cmd.Wait()
		if t.Failed() {
			t.Log(out.String())
		}
	})
	require.Eventually(t, func() bool {
		text, ok := getText("http://" + p.hub + "/apis/edgebus.io/v1alpha1/devices?fieldSelector=status.state%3Donline&limit=9")
		return ok && strings.Count(text, `"kind":"Device"`)+strings.Count(text, `"nodeName":"demo"`) >= 2
	}, patience, 50*time.Millisecond)
	return p
}

// startHub starts a hub that has the user ann, and lets nobody else in.
func startHub(t *testing.T, bin, hash string) *programs {
	return startHubWith(t, bin, freeAddress(t), fmt.Sprintf("users: [{name: ann, passwordHash: '%s', role: operator, nodes: ['*']}]", hash))
}

// startHubWith starts a hub with settings of auth.
func startHubWith(t *testing.T, bin, address, auth string) *programs {
	p := &programs{t: t, hub: address}
	dir := t.TempDir()
	config := filepath.Join(dir, "hub.yaml")
	require.NoError(t, os.WriteFile(config, []byte(fmt.Sprintf("mqtt: {listen: %s, websocket: {listen: %s}}\nhttp: {listen: %s}\ndata: {dir: %s}\nauth: {%s}\n",
		freeAddress(t), freeAddress(t), p.hub, filepath.Join(dir, "data"), auth)), 0o600))
	p.cmd = exec.Command(filepath.Join(bin, "cloudhub"), "--config", config)
	var out bytes.Buffer
	p.cmd.Stderr = &out
	require.NoError(t, p.cmd.Start())
	t.Cleanup(func() {
		_ = p.cmd.Process.Signal(syscall.SIGTERM)
		_ = p.cmd.Wait()
		if t.Failed() {
			t.Log(out.String())
		}
	})
	require.Eventually(t, func() bool { _, ok := getText("http://" + p.hub + "/readyz"); return ok }, patience, 20*time.Millisecond)
	return p
}

func getText(url string) (string, bool) {
	res, err := http.Get(url)
	if err != nil {
		return "", false
	}
	defer func() { _ = res.Body.Close() }()
	raw, err := io.ReadAll(res.Body)
	return string(raw), err == nil && res.StatusCode == http.StatusOK
}

// startBrowser starts a Chromium that is empty. Errors of scripts fail the test.
func startBrowser(t *testing.T) context.Context {
	path, err := exec.LookPath("chromium")
	require.NoError(t, err, "install Debian's chromium (make page does)")
	alloc, end := chromedp.NewExecAllocator(context.Background(), append(chromedp.DefaultExecAllocatorOptions[:], chromedp.ExecPath(path), chromedp.NoSandbox, chromedp.DisableGPU, chromedp.Flag("force-prefers-reduced-motion", true))...)
	t.Cleanup(end)
	ctx, end := chromedp.NewContext(alloc)
	t.Cleanup(end)
	return openTab(t, ctx)
}

// openTab opens a tab of a browser.
func openTab(t *testing.T, in context.Context) context.Context {
	ctx, end := chromedp.NewContext(in)
	t.Cleanup(end)
	ctx, stop := context.WithTimeout(ctx, 3*time.Minute)
	t.Cleanup(stop)
	chromedp.ListenTarget(ctx, func(e any) {
		switch e := e.(type) {
		case *runtime.EventExceptionThrown:
			t.Errorf("a script failed: %v", e.ExceptionDetails)
		case *runtime.EventConsoleAPICalled:
			if e.Type == runtime.APITypeError {
				t.Errorf("the console has an error: %s", e.Args[0].Value)
			}
		}
	})
	require.NoError(t, chromedp.Run(ctx))
	return ctx
}

// run runs actions.
func run(t *testing.T, ctx context.Context, actions ...chromedp.Action) {
	t.Helper()
	ctx, end := context.WithTimeout(ctx, patience)
	defer end()
	if err := chromedp.Run(ctx, actions...); err != nil {
		var text string
		_ = chromedp.Run(ctx, chromedp.Evaluate(`document.body.innerText`, &text))
		require.NoError(t, err, text)
	}
}

// awaitText waits until the page shows a text.
func awaitText(t *testing.T, ctx context.Context, want string) {
	t.Helper()
	awaitTrue(t, ctx, fmt.Sprintf(`document.body.innerText.includes(%q)`, want))
}

// awaitTrue waits until an expression is true in the page.
func awaitTrue(t *testing.T, ctx context.Context, js string) {
	t.Helper()
	last := ""
	for end := time.Now().Add(patience); time.Now().Before(end); time.Sleep(20 * time.Millisecond) { // between two looks at the condition
		var ok bool
		if err := chromedp.Run(ctx, chromedp.Evaluate(`!!(`+js+`)`, &ok)); err != nil {
			last = err.Error()
		} else if ok {
			return
		}
	}
	_ = chromedp.Run(ctx, chromedp.Evaluate(`document.body.innerText`, &last))
	require.Fail(t, "it never came", "%s\n%s", js, last)
}

// takePicture keeps a picture in .out/page.
func takePicture(t *testing.T, ctx context.Context, name string, width int64, dark bool) {
	t.Helper()
	scheme := "light"
	if dark {
		scheme = "dark"
	}
	var png []byte
	run(t, ctx, emulation.SetEmulatedMedia().WithFeatures([]*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: scheme}}),
		chromedp.EmulateViewport(width, 860), chromedp.Evaluate(`new Promise((drawn) => requestAnimationFrame(() => requestAnimationFrame(drawn)))`, nil, awaitPromise), chromedp.CaptureScreenshot(&png))
	dir := "../../.out/page"
	require.NoError(t, os.MkdirAll(dir, 0o755))
	require.NoError(t, os.WriteFile(filepath.Join(dir, fmt.Sprintf("%s-%s-%d.png", name, scheme, width)), png, 0o644))
}

func awaitPromise(p *runtime.EvaluateParams) *runtime.EvaluateParams { return p.WithAwaitPromise(true) }

func (p *programs) open(t *testing.T, ctx context.Context, at string) {
	t.Helper()
	run(t, ctx, chromedp.Navigate("http://"+p.hub+at))
}

// screen is a screen of the page: its name, its address, and a text that is on it.
type screen struct{ name, at, shows string }

var hubScreens = []screen{
	{"overview", "/ui/", "Needs you"}, {"devices", "/ui/devices", "thermostat"}, {"device", "/ui/devices/default/thermostat", "setpoint"}, {"nodes", "/ui/nodes", "demo"},
	{"node", "/ui/nodes/demo", "Certificate"}, {"approvals", "/ui/approvals", "Nothing waits"}, {"rollouts", "/ui/rollouts", "No fleets"}, {"topics", "/ui/topics", "demo"},
	{"events", "/ui/events", "demo"}, {"objects", "/ui/objects/devicemodels", "Namespace"}, {"yaml", "/ui/objects/devices/default/lamp", "lamp"}, {"tokens", "/ui/tokens", "Make a token"},
}

func TestEachScreenOfTheHubAndTheNodeIsThereLightAndDarkWideAndNarrow(t *testing.T) {
	p := startDemo(t)
	ctx := startBrowser(t)
	for _, s := range hubScreens {
		p.open(t, ctx, s.at)
		awaitText(t, ctx, s.shows)
		for _, width := range []int64{1280, 390} {
			for _, dark := range []bool{false, true} {
				takePicture(t, ctx, s.name, width, dark)
			}
			awaitTrue(t, ctx, `document.documentElement.scrollWidth <= innerWidth`)
		}
	}
	for _, s := range []screen{{"core", "/ui/", "Certificate"}, {"core-devices", "/ui/devices", "lamp"}, {"core-device", "/ui/devices/default/lamp", "brightness"}} {
		run(t, ctx, chromedp.Navigate("http://"+p.core+s.at))
		awaitText(t, ctx, s.shows)
		takePicture(t, ctx, s.name, 1280, false)
	}
}
