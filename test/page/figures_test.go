// SPDX-License-Identifier: Apache-2.0

package page

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/cdproto/page"
	"github.com/chromedp/chromedp"
	"github.com/stretchr/testify/require"
)

// needFigures is whether the figures of docs/page.md are measured: FIGURES=1 go test -v -run Figures . They need a quiet machine.
func needFigures(t *testing.T) {
	t.Helper()
	if os.Getenv("FIGURES") == "" {
		t.Skip("by hand: FIGURES=1")
	}
}

func shareOf(list []float64, of float64) float64 {
	slices.Sort(list)
	return list[min(len(list)-1, int(of*float64(len(list))))]
}

// evaluateScript is what an expression of the page is.
func evaluateScript[T any](t *testing.T, ctx context.Context, js string) (v T) {
	t.Helper()
	run(t, ctx, chromedp.Evaluate(js, &v, awaitPromise))
	return v
}

func TestFiguresOfTheFirstPaint(t *testing.T) {
	needFigures(t)
	p, ctx := startDemo(t), startBrowser(t)
	run(t, ctx, network.SetCacheDisabled(true))
	var paint, whole []float64
	for range 20 {
		p.open(t, ctx, "/ui/")
		began := time.Now()
		awaitText(t, ctx, "Needs you")
		whole = append(whole, float64(time.Since(began).Milliseconds()))
		paint = append(paint, evaluateScript[float64](t, ctx, `performance.getEntriesByName('first-contentful-paint')[0].startTime`))
	}
	t.Logf("first paint, without a cache: p50 %.0f ms, worst %.0f ms; the overview is there %.0f ms (p50) after the page has loaded", shareOf(paint, 0.5), shareOf(paint, 1), shareOf(whole, 0.5))
}

// watchScreen notes when the message with a new brightness came, and when that had been drawn.
const watchScreen = `(() => {
	window.delays = [];
	let came, last;
	const W = window.WebSocket;
	window.WebSocket = class extends W { constructor(...a) { super(...a); this.addEventListener('message', (e) => {
		if (new TextDecoder('latin1').decode(e.data).includes('/reported/brightness')) came ??= performance.now(); }); } };
	const look = () => {
		const row = [...document.querySelectorAll('.properties tr')].find(r => r.querySelector('th')?.innerText.includes('brightness')), text = row?.querySelector('.value')?.innerText;
		if (text === undefined || text === last) return;
		if (last !== undefined && came !== undefined) requestAnimationFrame(((c) => () => window.delays.push(performance.now() - c))(came));
		last = text; came = undefined;
	};
	addEventListener('DOMContentLoaded', () => new MutationObserver(look).observe(document.body, {subtree: true, childList: true, characterData: true}));
})()`

func TestFiguresOfAChangeOnTheScreen(t *testing.T) {
	needFigures(t)
	p, ctx := startDemo(t), startBrowser(t)
	run(t, ctx, chromedp.ActionFunc(func(ctx context.Context) error {
		_, err := page.AddScriptToEvaluateOnNewDocument(watchScreen).Do(ctx)
		return err
	}))
	p.open(t, ctx, "/ui/devices/default/lamp")
	awaitTrue(t, ctx, rowShows("brightness", "100"))
	for i := range 200 {
		p.publish(t, p.coreMQTT, "v1/nodes/demo/devices/lamp/desired/brightness", strconv.Itoa(1+i%99))
		awaitTrue(t, ctx, rowShows("brightness", strconv.Itoa(1+i%99)))
	}
	delays := evaluateScript[[]float64](t, ctx, `window.delays`)
	require.Greater(t, len(delays), 100)
	t.Logf("%d changes: drawn after the message with it came, p50 %.0f ms, p99 %.0f ms", len(delays), shareOf(delays, 0.5), shareOf(delays, 0.99))
}

// cpu is the processor time of a program of the demo, in seconds.
func (p *programs) cpu(t *testing.T, name string) float64 {
	t.Helper()
	out, err := exec.Command("pgrep", "-x", "-P", strconv.Itoa(p.cmd.Process.Pid), name).Output()
	require.NoError(t, err)
	text, err := os.ReadFile("/proc/" + strings.Fields(string(out))[0] + "/stat")
	require.NoError(t, err)
	fields := strings.Fields(string(text[strings.LastIndexByte(string(text), ')')+2:]))
	user, _ := strconv.ParseFloat(fields[11], 64)
	system, _ := strconv.ParseFloat(fields[12], 64)
	return (user + system) / 100
}

func TestFiguresOfTwentyOpenPages(t *testing.T) {
	needFigures(t)
	p, ctx := startDemo(t), startBrowser(t)
	measure := func() float64 {
		const span = 30 * time.Second
		before := p.cpu(t, "cloudhub")
		time.Sleep(span) // what is measured is what is used meanwhile
		return (p.cpu(t, "cloudhub") - before) / span.Seconds() * 100
	}
	none := measure()
	for i := range 20 {
		at := []string{"/ui/", "/ui/devices", "/ui/devices/default/lamp", "/ui/nodes/demo"}[i%4]
		p.open(t, openTab(t, ctx), at)
	}
	time.Sleep(3 * time.Second) // they have loaded
	twenty := measure()
	t.Logf("the hub: %.2f %% of a core without a page, %.2f %% with twenty", none, twenty)
}

func TestFiguresOfAHundredThousandDevices(t *testing.T) {
	needFigures(t)
	bin := findBinaries(t)
	p := startHubWith(t, bin, freeAddress(t), "anonymous: loopback")
	p.send(t, "POST", apiRoot+"namespaces/default/devicemodels", `{"apiVersion":"edgebus.io/v1alpha1","kind":"DeviceModel","metadata":{"name":"m"},"spec":{"properties":[{"name":"power","type":"boolean","accessMode":"ReadWrite"}]}}`)
	const many = 100_000
	var next atomic.Int64
	var done sync.WaitGroup
	client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 64}}
	began := time.Now()
	for range 64 {
		done.Go(func() {
			for i := next.Add(1); i <= many && !t.Failed(); i = next.Add(1) {
				body, _ := json.Marshal(map[string]any{"apiVersion": "edgebus.io/v1alpha1", "kind": "Device", "metadata": map[string]any{"name": fmt.Sprintf("d%06d", i), "labels": map[string]string{"site": fmt.Sprint("s", i%20)}},
					"spec": map[string]any{"title": fmt.Sprint("Pump ", i), "deviceModelRef": map[string]string{"name": "m"}, "nodeName": fmt.Sprint("n", i%1000), "protocol": map[string]string{"type": "virtual"}}})
				res, err := client.Post("http://"+p.hub+apiRoot+"namespaces/default/devices", "application/json", strings.NewReader(string(body)))
				if err != nil || res.StatusCode != http.StatusCreated {
					t.Errorf("%v %v", res, err)
					return
				}
				_ = res.Body.Close()
			}
		})
	}
	done.Wait()
	t.Logf("%d Devices made in %s", many, time.Since(began).Round(time.Second))
	ctx := startBrowser(t)
	p.open(t, ctx, "/ui/devices")
	awaitText(t, ctx, "100,000 in all")
	for name, at := range map[string]string{
		"counts": "?summary=status.state,inSync,status.alarm,label:site", "search": "?search=pump+77&limit=50&order=metadata.name", "page 1,000": "?offset=50000&limit=50&order=spec.nodeName",
	} {
		var list []float64
		for range 20 {
			list = append(list, evaluateScript[float64](t, ctx, fmt.Sprintf(`(async () => { const t = performance.now(); await (await fetch('%sdevices%s')).json(); return performance.now() - t; })()`, apiRoot, at)))
		}
		t.Logf("%s: p50 %.0f ms, worst %.0f ms", name, shareOf(list, 0.5), shareOf(list, 1))
	}
	run(t, ctx, chromedp.Focus(`[data-search]`))
	start := time.Now()
	run(t, ctx, chromedp.KeyEvent("77777"))
	awaitText(t, ctx, "Pump 77777")
	awaitTrue(t, ctx, `document.body.innerText.includes('1 match')`)
	t.Logf("typed, found and shown in %s", time.Since(start).Round(time.Millisecond))
}
