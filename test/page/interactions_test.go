// SPDX-License-Identifier: Apache-2.0

package page

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"
	"github.com/stretchr/testify/require"
)

// typeInto types a text into the field of a label, in place of what is there.
func typeInto(t *testing.T, ctx context.Context, label, value string) {
	t.Helper()
	awaitTrue(t, ctx, fmt.Sprintf(`document.querySelector('[aria-label=%q]:not(:disabled)')`, label))
	run(t, ctx, chromedp.Evaluate(fmt.Sprintf(`(e => { e.focus(); e.select(); })(document.querySelector('[aria-label=%q]'))`, label), nil), chromedp.KeyEvent(value+kb.Enter))
}

// pressButton presses the button of a text.
func pressButton(t *testing.T, ctx context.Context, name string) {
	t.Helper()
	button := fmt.Sprintf(`[...document.querySelectorAll('button, a')].find(b => !b.disabled && (b.textContent.trim() === %[1]q || b.getAttribute('aria-label') === %[1]q))`, name)
	awaitTrue(t, ctx, button)
	run(t, ctx, chromedp.Evaluate(button+".click()", nil))
}

func rowShows(property, want string) string {
	return fmt.Sprintf(`[...document.querySelectorAll('.properties tr')].some(r => r.querySelector('th')?.innerText.includes(%q) && r.innerText.includes(%q))`, property, want)
}

func (p *programs) send(t *testing.T, method, at, body string) {
	t.Helper()
	r, err := http.NewRequestWithContext(context.Background(), method, "http://"+p.hub+at, strings.NewReader(body))
	require.NoError(t, err)
	r.Header.Set("Content-Type", "application/json")
	if method == http.MethodPatch {
		r.Header.Set("Content-Type", "application/merge-patch+json")
	}
	res, err := http.DefaultClient.Do(r)
	require.NoError(t, err)
	defer func() { _ = res.Body.Close() }()
	var out bytes.Buffer
	_, _ = out.ReadFrom(res.Body)
	require.Less(t, res.StatusCode, 300, "%s %s: %s", method, at, out.String())
}

func (p *programs) publish(t *testing.T, broker, topic, payload string, more ...string) {
	t.Helper()
	_, port, _ := strings.Cut(broker, ":")
	out, err := exec.Command("mosquitto_pub", append([]string{"-V", "5", "-q", "1", "-p", port, "-t", topic, "-m", payload}, more...)...).CombinedOutput()
	require.NoError(t, err, "%s", out)
}

// kill kills a program of the demo, which starts it again.
func (p *programs) kill(t *testing.T, name string) {
	t.Helper()
	out, err := exec.Command("pgrep", "-x", "-P", strconv.Itoa(p.cmd.Process.Pid), name).Output()
	require.NoError(t, err)
	pid, err := strconv.Atoi(strings.Fields(string(out))[0])
	require.NoError(t, err)
	require.NoError(t, syscall.Kill(pid, syscall.SIGKILL))
}

func TestAValueIsSetWaitsAndIsReportedAndARefusalSaysWhyInItsRow(t *testing.T) {
	p, ctx := startDemo(t), startBrowser(t)
	p.open(t, ctx, "/ui/devices/default/thermostat")
	typeInto(t, ctx, "Set setpoint", "23.5")
	awaitTrue(t, ctx, rowShows("setpoint", "in sync"))
	awaitTrue(t, ctx, rowShows("setpoint", "23.5 °C"))
	typeInto(t, ctx, "Set setpoint", "99")
	awaitTrue(t, ctx, rowShows("setpoint", "35"))
	awaitTrue(t, ctx, `document.querySelector('.control .why')?.innerText.includes('99')`)
	takePicture(t, ctx, "refused", 1280, false)

	// A value that was set elsewhere is there without a reload.
	p.publish(t, p.hubMQTT, "v1/nodes/demo/devices/thermostat/desired/setpoint", "21")
	awaitTrue(t, ctx, rowShows("setpoint", "21 °C"))

	// A device that is away: the switch is hollow, and waits.
	p.open(t, ctx, "/ui/devices/default/lamp")
	pressButton(t, ctx, "Set power")
	awaitTrue(t, ctx, rowShows("power", "ON"))
	awaitTrue(t, ctx, rowShows("power", "in sync"))

	// A command, with its answer.
	run(t, ctx, chromedp.SendKeys(`input[list=commands]`, "beep"))
	run(t, ctx, chromedp.SendKeys(`form.inline label:nth-of-type(2) input`, "twice"))
	pressButton(t, ctx, "Send")
	awaitText(t, ctx, "beep beep")
}

func TestAPageWhoseHubIsKilledSaysSinceWhenItIsNotLiveAndComesBackByItself(t *testing.T) {
	p, ctx := startDemo(t), startBrowser(t)
	p.open(t, ctx, "/ui/devices/default/lamp")
	awaitTrue(t, ctx, `document.querySelector('[aria-label="Set power"]:not(:disabled)')`)
	run(t, ctx, chromedp.Evaluate(`window.same = 1`, nil))
	p.kill(t, "cloudhub")
	awaitText(t, ctx, "Not live since")
	awaitTrue(t, ctx, `document.querySelector('[aria-label="Set power"]').disabled && document.querySelector('.card.stale')`)
	awaitTrue(t, ctx, `!document.body.innerText.includes('Not live since') && document.querySelector('[aria-label="Set power"]:not(:disabled)')`)
	require.Eventually(t, func() bool {
		_, ok := getText("http://" + p.hub + "/readyz")
		return ok
	}, patience, 50*time.Millisecond)
	p.publish(t, p.coreMQTT, "v1/nodes/demo/devices/lamp/desired/brightness", "42")
	awaitTrue(t, ctx, rowShows("brightness", "42"))
	awaitTrue(t, ctx, `window.same === 1`)
}

func TestTwentyTabsStayLiveAndAFurtherRequestIsAnswered(t *testing.T) {
	p, ctx := startDemo(t), startBrowser(t)
	tabs := []context.Context{ctx}
	for range 19 {
		tabs = append(tabs, openTab(t, ctx))
	}
	for _, one := range tabs {
		p.open(t, one, "/ui/devices/default/lamp")
	}
	p.publish(t, p.hubMQTT, "v1/nodes/demo/devices/lamp/desired/brightness", "37")
	for _, one := range tabs {
		awaitTrue(t, one, rowShows("brightness", "37"))
	}
	awaitTrue(t, ctx, `fetch('/session').then(r => r.ok)`)
	p.open(t, openTab(t, ctx), "/ui/nodes")
}

func TestAFilterIsInTheAddressBackRestoresItAndASlashSearches(t *testing.T) {
	p, ctx := startDemo(t), startBrowser(t)
	p.open(t, ctx, "/ui/")
	awaitText(t, ctx, "Needs you")
	run(t, ctx, chromedp.Evaluate(`[...document.querySelectorAll('.count')].find(a => a.innerText.includes('online')).click()`, nil))
	awaitTrue(t, ctx, `location.search === '?state=online' && document.body.innerText.includes('thermostat')`)
	run(t, ctx, chromedp.Evaluate(`document.body.dispatchEvent(new KeyboardEvent('keydown', {key: '/', bubbles: true, cancelable: true}))`, nil))
	awaitTrue(t, ctx, `document.activeElement.matches('[data-search]')`)
	run(t, ctx, chromedp.KeyEvent("lam"))
	awaitTrue(t, ctx, `document.body.innerText.includes('1 match') && !document.body.innerText.includes('thermostat')`)
	pressButton(t, ctx, "lamp")
	awaitText(t, ctx, "brightness")
	run(t, ctx, chromedp.NavigateBack())
	awaitTrue(t, ctx, `location.search.includes('q=lam') && document.body.innerText.includes('1 match')`)
}

// payloads are texts that a page which shows them as anything but text would run.
var payloads = []string{
	`<img src=x onerror="window.hacked=1">`, `"><script>window.hacked=1</script>`, `<svg onload=window.hacked=1>`, `javascript:window.hacked=1`, `' onmouseover='window.hacked=1`,
}

func TestNoSiteFramesThePageOrWritesThroughIt(t *testing.T) {
	p, ctx := startDemo(t), startBrowser(t)
	// Another origin of the same host, as a page of another program has it.
	run(t, ctx, chromedp.Navigate("http://"+p.core+"/ui/"))
	awaitText(t, ctx, "Link")
	for name, attempt := range map[string]string{
		"write":     fmt.Sprintf(`fetch('http://%s/apis/edgebus.io/v1alpha1/namespaces/default/devices/lamp', {method: 'DELETE', mode: 'no-cors'}).then(() => 'sent', () => 'refused')`, p.hub),
		"websocket": fmt.Sprintf(`new Promise(d => { const s = new WebSocket('ws://%s/mqtt', 'mqtt'); s.onopen = () => d('open'); s.onerror = () => d('refused'); })`, p.hub),
	} {
		var got string
		_ = chromedp.Run(ctx, chromedp.Evaluate(attempt, &got, awaitPromise))
		require.NotEqual(t, "open", got, name)
	}
	r, err := http.NewRequestWithContext(context.Background(), http.MethodDelete, "http://"+p.hub+"/apis/edgebus.io/v1alpha1/namespaces/default/devices/lamp", nil)
	require.NoError(t, err)
	r.Header.Set("Origin", "http://evil.example")
	r.Header.Set("Sec-Fetch-Site", "cross-site")
	res, err := http.DefaultClient.Do(r)
	require.NoError(t, err)
	_ = res.Body.Close()
	require.Equal(t, http.StatusForbidden, res.StatusCode)
	_, there := getText("http://" + p.hub + "/apis/edgebus.io/v1alpha1/namespaces/default/devices/lamp")
	require.True(t, there)
	// A name that was made to resolve to this host isn't this host.
	r, err = http.NewRequestWithContext(context.Background(), http.MethodGet, "http://"+p.hub+"/session", nil)
	require.NoError(t, err)
	r.Host = "evil.example"
	res, err = http.DefaultClient.Do(r)
	require.NoError(t, err)
	_ = res.Body.Close()
	require.Equal(t, http.StatusUnauthorized, res.StatusCode)
	res, err = http.Get("http://" + p.hub + "/ui/")
	require.NoError(t, err)
	_ = res.Body.Close()
	require.Contains(t, res.Header.Get("Content-Security-Policy"), "frame-ancestors 'none'")
}

func TestOneSignsInWithAFormThatLeadsBackAndSignsOut(t *testing.T) {
	bin, err := filepath.Abs("../../bin")
	require.NoError(t, err)
	p := startHub(t, bin, passwordHash(t, bin, "correct horse"))
	ctx := startBrowser(t)
	p.open(t, ctx, "/ui/nodes?state=offline")
	awaitText(t, ctx, "Sign in")
	run(t, ctx, chromedp.SendKeys(`input[autocomplete=username]`, "ann"), chromedp.SendKeys(`input[type=password]`, "wrong"+kb.Enter))
	awaitTrue(t, ctx, `document.querySelector('[role=alert]')`)
	run(t, ctx, chromedp.Evaluate(`document.querySelector('input[type=password]').select()`, nil), chromedp.SendKeys(`input[type=password]`, "correct horse"+kb.Enter))
	awaitTrue(t, ctx, `location.pathname + location.search === '/ui/nodes?state=offline' && document.body.innerText.includes('ann · operator')`)
	awaitTrue(t, ctx, `document.cookie === ''`)
	takePicture(t, ctx, "signed-in", 1280, false)
	pressButton(t, ctx, "Sign out")
	awaitText(t, ctx, "Password")
	takePicture(t, ctx, "sign-in", 390, true)
	awaitTrue(t, ctx, `fetch('/apis/edgebus.io/v1alpha1/nodes').then(r => r.status === 401)`)
}

func TestTheLastDayOfAValueIsInItsRowAndATapPlotsIt(t *testing.T) {
	p, ctx := startDemo(t), startBrowser(t)
	run(t, ctx, chromedp.Navigate("http://"+p.core+"/ui/devices/default/thermostat"))
	awaitTrue(t, ctx, `document.querySelector('.spark svg path')`)
	pressButton(t, ctx, "Plot of temperature")
	awaitTrue(t, ctx, `document.querySelector('.plot canvas')?.width > 300`)
	awaitText(t, ctx, "data since")
	takePicture(t, ctx, "plot", 1280, false)
	takePicture(t, ctx, "plot", 1280, true)
	pressButton(t, ctx, "1 h")
	awaitTrue(t, ctx, `[...document.querySelectorAll('.plot .chip')].find(c => c.textContent === '1 h').ariaPressed === 'true'`)
	// The hub has a node's past when an hour of it is closed; until then the page shows what it has seen itself.
	p.open(t, ctx, "/ui/devices/default/thermostat")
	awaitTrue(t, ctx, `document.querySelector('.spark svg path')`)
}

// The browser's clock may be another than the node's: with an earlier time nobody would know of the alarm, with a later one also of the next.
func TestAnAlarmIsAcknowledgedUpToWhenItWasRaised(t *testing.T) {
	p, ctx := startDemo(t), startBrowser(t)
	p.house(t)
	p.open(t, ctx, "/ui/devices/default/thermostat")
	pressButton(t, ctx, "Acknowledge")
	awaitText(t, ctx, "acknowledged")
	text, ok := getText("http://" + p.hub + "/apis/edgebus.io/v1alpha1/namespaces/default/devices/thermostat")
	require.True(t, ok)
	var d struct {
		Spec   struct{ AcknowledgedAlarms map[string]string }
		Status struct{ Alarms []struct{ Since string } }
	}
	require.NoError(t, json.Unmarshal([]byte(text), &d))
	require.Len(t, d.Status.Alarms, 1)
	require.Equal(t, map[string]string{"temperature/warm": d.Status.Alarms[0].Since}, d.Spec.AcknowledgedAlarms)
}
