// SPDX-License-Identifier: Apache-2.0

package page

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/chromedp/chromedp"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

const apiRoot = "/apis/edgebus.io/v1alpha1/"

// person does a task with the page alone: what is pressed and typed is counted.
type person struct {
	t       *testing.T
	ctx     context.Context
	actions int
}

// press presses what has a text, or that label.
func (p *person) press(name string) {
	p.t.Helper()
	pressButton(p.t, p.ctx, name)
	p.actions++
}

func (p *person) write(label, value string) {
	p.t.Helper()
	typeInto(p.t, p.ctx, label, value)
	p.actions++
}

// pressIn presses what has a text in the row or card that has another one.
func (p *person) pressIn(in, name string) {
	p.t.Helper()
	button := fmt.Sprintf(`[...document.querySelectorAll('section.card, tr, li')].filter(c => c.innerText.includes(%[1]q)).flatMap(c => [...c.querySelectorAll('button, a')]).find(b => !b.disabled && b.textContent.trim() === %[2]q)`, in, name)
	awaitTrue(p.t, p.ctx, button)
	run(p.t, p.ctx, chromedp.Evaluate(button+".click()", nil))
	p.actions++
}

func (p *person) sees(text string) {
	p.t.Helper()
	awaitText(p.t, p.ctx, text)
}

func (p *person) confirm(number int, act string) {
	p.t.Helper()
	if number > 1 {
		run(p.t, p.ctx, chromedp.SendKeys(`dialog input`, fmt.Sprint(number)))
		p.actions++
	}
	button := fmt.Sprintf(`[...document.querySelectorAll('dialog button')].find(b => !b.disabled && b.textContent.trim() === %q)`, act)
	awaitTrue(p.t, p.ctx, button)
	run(p.t, p.ctx, chromedp.Evaluate(button+".click()", nil))
	p.actions++
}

// get reads an object of the hub.
func (p *programs) get(t *testing.T, at string, into any) {
	t.Helper()
	text, ok := getText("http://" + p.hub + apiRoot + at)
	require.True(t, ok, at)
	require.NoError(t, json.Unmarshal([]byte(text), into))
}

// startNode starts a core that is linked to the demo's hub, until stop.
func (p *programs) startNode(t *testing.T, name string) (stop func()) {
	t.Helper()
	cmd := exec.Command(filepath.Join(p.tools, "edgecore"), "--node-name", name, "--data-dir", t.TempDir(), "--mqtt-listen", freeAddress(t), "--http-listen", freeAddress(t), "--link-server", "mqtt://"+p.hubMQTT)
	var out bytes.Buffer
	cmd.Stderr = &out
	require.NoError(t, cmd.Start())
	stopped := false
	stop = func() {
		if !stopped {
			stopped = true
			_ = cmd.Process.Signal(syscall.SIGTERM)
			_ = cmd.Wait()
		}
	}
	t.Cleanup(stop)
	require.Eventually(t, func() bool {
		text, _ := getText("http://" + p.hub + apiRoot + "nodes/" + name)
		return strings.Contains(text, `"state":"online"`)
	}, patience, 50*time.Millisecond, "%s", &out)
	return stop
}

// joinNode has a node ask to join, as on another machine.
func (p *programs) joinNode(t *testing.T, name string) {
	t.Helper()
	out, err := exec.Command(filepath.Join(p.tools, "edgebus"), "authority", "--server", "http://"+p.hub).CombinedOutput()
	require.NoError(t, err, "%s", out)
	hash := regexp.MustCompile(`sha256:[0-9a-f]+`).FindString(string(out))
	dir := t.TempDir()
	cmd := exec.Command(filepath.Join(p.tools, "edgecore"), "join", p.hubTLS, "--name", name, "--ca-hash", hash, "--config", filepath.Join(dir, "core.yaml"), "--data-dir", dir, "--no-start")
	require.NoError(t, cmd.Start())
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	require.Eventually(t, func() bool {
		text, _ := getText("http://" + p.hub + apiRoot + "enrollmentrequests")
		return strings.Contains(text, name)
	}, patience, 50*time.Millisecond)
}

// findDevices has a device found that needs somebody's approval.
func (p *programs) findDevices(t *testing.T, names ...string) {
	t.Helper()
	p.send(t, "POST", apiRoot+"namespaces/default/configurations", `{"apiVersion":"edgebus.io/v1alpha1","kind":"Configuration","metadata":{"name":"lamps"},"spec":{"discoveryHandler":{"name":"by-hand"},
		"deviceTemplate":{"approval":"Manual","spec":{"deviceModelRef":{"name":"dimmable-lamp"},"protocol":{"type":"virtual"}}}}}`)
	_, port, _ := strings.Cut(p.coreMQTT, ":")
	require.Eventually(t, func() bool { // what is published before the node knows the configuration is lost
		for _, name := range names {
			_ = exec.Command("mosquitto_pub", "-V", "5", "-q", "1", "-p", port, "-t", "v1/nodes/demo/discovery/lamps/instances/"+name, "-m", `{"properties":{"ADDRESS":"10.0.0.7"}}`).Run()
		}
		text, _ := getText("http://" + p.hub + apiRoot + "namespaces/default/instances")
		return strings.Count(text, `"configurationName":"lamps"`) >= len(names)
	}, patience, 100*time.Millisecond)
}

// rollOutBadly gives a fleet of two nodes a template that one of them can't be given.
func (p *programs) rollOutBadly(t *testing.T) {
	t.Helper()
	for _, node := range []string{"demo", "barn"} {
		p.send(t, "PATCH", apiRoot+"nodes/"+node, `{"metadata":{"labels":{"site":"south","city":"york"}}}`)
	}
	config := func(text string) string {
		return fmt.Sprintf(`{"spec":{"config":[{"name":"motd","configType":"FileListProviderSpec","files":[{"path":"/etc/motd","content":%q}]}]}}`, text)
	}
	p.send(t, "POST", apiRoot+"fleets", `{"apiVersion":"edgebus.io/v1alpha1","kind":"Fleet","metadata":{"name":"farms"},"spec":{"selector":{"matchLabels":{"site":"south"}},"template":`+config("Welcome")+`}}`)
	awaitFleet := func(what string) {
		t.Helper()
		var text atomic.Pointer[string]
		if !assert.Eventually(t, func() bool {
			got, _ := getText("http://" + p.hub + apiRoot + "fleets/farms")
			text.Store(&got)
			return strings.Contains(got, what)
		}, patience, 50*time.Millisecond) {
			require.Fail(t, what, *text.Load())
		}
	}
	awaitFleet(`"templateVersion":"farms-0000001"`)
	p.send(t, "PATCH", apiRoot+"fleets/farms", `{"spec":{"template":`+config("Welcome to {{ .metadata.labels.town }}")+`}}`)
	awaitFleet(`"failedNodes":`)
}

// Somebody who sees the page for the first time does six tasks with it. The table of docs/page.md is made by this test.
func TestSixTasksAreDoneWithThePageAlone(t *testing.T) {
	p := startDemo(t)
	p.send(t, "POST", apiRoot+"nodes", `{"apiVersion":"edgebus.io/v1alpha1","kind":"Node","metadata":{"name":"barn","labels":{"site":"south"}}}`)
	p.startNode(t, "barn")()
	p.joinNode(t, "field")
	p.findDevices(t, "porch")
	p.rollOutBadly(t)
	ctx := startBrowser(t)
	rows := ""
	for _, task := range []struct {
		name string
		do   func(d *person)
	}{
		{"Find the node that is offline, and why", func(d *person) {
			d.sees("node offline")
			d.press("barn")
			d.sees("What edgebus doctor says")
			awaitTrue(t, ctx, `[...document.querySelectorAll('.findings li.wrong, .banner.bad')].some(e => e.innerText.length > 20)`)
		}},
		{"Set a thermostat, see that it is refused, and why", func(d *person) {
			d.press("thermostat")
			d.write("Set setpoint", "99")
			awaitTrue(t, ctx, `document.querySelector('.control .why')?.innerText.includes('99')`)
			awaitTrue(t, ctx, `document.querySelector('.control .why')?.innerText.includes('35')`)
		}},
		{"Approve a node that asks to join", func(d *person) {
			d.press("1 node asks to join, 1 device was found")
			d.pressIn("field", "Approve")
			awaitTrue(t, ctx, `!document.body.innerText.includes('field')`)
			var list struct {
				Items []struct {
					Spec struct{ Approval json.RawMessage }
				}
			}
			p.get(t, "enrollmentrequests", &list)
			require.Contains(t, string(list.Items[0].Spec.Approval), "Approved")
		}},
		{"Approve a device that was found", func(d *person) {
			d.press("1 device was found")
			awaitTrue(t, ctx, `document.querySelector('input[type=checkbox]')`)
			run(t, ctx, chromedp.Click(`input[type=checkbox]`))
			d.actions++
			d.press("Approve 1")
			d.confirm(1, "Approve")
			d.sees("Nothing waits for you")
			text := ""
			for end := time.Now().Add(5 * time.Second); time.Now().Before(end) && !strings.Contains(text, `"kind":"Instance"`); time.Sleep(50 * time.Millisecond) { // the owner of the Device that is made
				text, _ = getText("http://" + p.hub + apiRoot + "devices")
			}
			require.Contains(t, text, `"kind":"Instance"`)
		}},
		{"Stop a bad rollout, and undo it", func(d *person) {
			d.press("farms")
			d.sees("failed")
			d.pressIn("Fleet farms", "Pause")
			d.sees("paused")
			d.pressIn("Fleet farms", "Undo…")
			d.confirm(2, "Undo")
			require.Eventually(t, func() bool {
				text, _ := getText("http://" + p.hub + apiRoot + "fleets/farms")
				return strings.Contains(text, `"paused":true`) && strings.Contains(text, "farms-0000001")
			}, patience, 50*time.Millisecond)
		}},
		{"See what a value was last night", func(d *person) {
			d.press("thermostat")
			d.press("Plot of temperature")
			awaitTrue(t, ctx, `document.querySelector('.plot canvas')?.width > 300`)
			run(t, ctx, chromedp.Evaluate(`(() => { const o = document.querySelector('.plot .u-over'), r = o.getBoundingClientRect();
				for (const type of ['mouseenter', 'mousemove']) o.dispatchEvent(new MouseEvent(type, {bubbles: true, clientX: r.left + r.width * 0.5, clientY: r.top + 40})); })()`, nil))
			d.actions++
			awaitTrue(t, ctx, `/: \d+(\.\d+)? °C/.test(document.querySelector('.readout').textContent)`)
		}},
	} {
		began := time.Now()
		d := &person{t: t, ctx: ctx}
		p.open(t, ctx, "/ui/")
		task.do(d)
		took := time.Since(began)
		require.Less(t, took, 30*time.Second, task.name)
		require.LessOrEqual(t, d.actions, 6, task.name)
		rows += fmt.Sprintf("| %s | %d | %.1f s |\n", task.name, d.actions, took.Seconds())
	}
	t.Log("\n" + rows)
	require.NoError(t, os.MkdirAll("../../.out/page", 0o755))
	require.NoError(t, os.WriteFile("../../.out/page/tasks.md", []byte(rows), 0o644))
}

func TestADeviceIsAddedWithTheFormAndANodeIsDenied(t *testing.T) {
	p := startDemo(t)
	p.joinNode(t, "stranger")
	ctx := startBrowser(t)
	d := &person{t: t, ctx: ctx}
	p.open(t, ctx, "/ui/devices")
	d.press("Add a device")
	awaitTrue(t, ctx, `document.querySelectorAll('form select')[0]?.options.length > 2 && document.querySelectorAll('form select')[1]?.options.length > 1`)
	choose := func(n int, value string) {
		run(t, ctx, chromedp.Evaluate(fmt.Sprintf(`(s => { s.value = %q; s.dispatchEvent(new Event('change', {bubbles: true})); s.dispatchEvent(new Event('input', {bubbles: true})); })(document.querySelectorAll('form select')[%d])`, value, n), nil))
	}
	run(t, ctx, chromedp.SendKeys(`form input[pattern]`, "porch"), chromedp.SendKeys(`form input[maxlength]`, "Porch light"))
	choose(0, "dimmable-lamp")
	choose(1, "demo")
	run(t, ctx, chromedp.SendKeys(`form input[list=protocols]`, "virtual"))
	d.press("Add")
	d.sees("Porch light")
	d.press("Porch light")
	d.sees("brightness")
	d.press("Set power")
	awaitTrue(t, ctx, rowShows("power", "in sync"))

	// A name that is there already is an error that says so, and what was typed stays.
	p.open(t, ctx, "/ui/devices")
	d.press("Add a device")
	awaitTrue(t, ctx, `document.querySelectorAll('form select')[0]?.options.length > 2`)
	run(t, ctx, chromedp.SendKeys(`form input[pattern]`, "porch"))
	choose(0, "dimmable-lamp")
	d.press("Add")
	awaitTrue(t, ctx, `document.querySelector('form [role=alert]')?.innerText.includes('porch') && document.querySelector('form input[pattern]').value === 'porch'`)

	p.open(t, ctx, "/ui/approvals")
	d.pressIn("stranger", "Deny")
	d.sees("Nothing waits for you")
	text, ok := getText("http://" + p.hub + apiRoot + "enrollmentrequests")
	require.True(t, ok)
	require.Contains(t, text, "Denied")
	text, ok = getText("http://" + p.hub + apiRoot + "nodes")
	require.True(t, ok)
	require.NotContains(t, text, "stranger-")
}
