// SPDX-License-Identifier: Apache-2.0

package page

import (
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/page"
	"github.com/chromedp/chromedp"
	"github.com/stretchr/testify/require"
)

// axe-core, the library of accessibility checkers, has no serious finding on any screen, light or dark.
func TestNoScreenHasASeriousFindingOfAccessibility(t *testing.T) {
	axe, err := os.ReadFile("axe/node_modules/axe-core/axe.min.js")
	require.NoError(t, err, "make needs-page comes before")
	p, ctx := startDemo(t), startBrowser(t)
	p.house(t)
	p.joinNode(t, "field")
	p.findDevices(t, "porch", "attic")
	run(t, ctx, page.SetBypassCSP(true)) // the library is a script of nobody's
	check := func() (found string) {
		run(t, ctx, chromedp.Evaluate(string(axe)+";1", nil),
			chromedp.Evaluate(`axe.run().then(r => JSON.stringify(r.violations.filter(v => ['serious', 'critical'].includes(v.impact)).map(v => [v.id, v.help, v.nodes.slice(0, 3).map(n => n.html.slice(0, 200) + ' ' + n.failureSummary)])))`, &found, awaitPromise))
		return found
	}
	for _, s := range append(hubScreens, screen{"approvals", "/ui/approvals", "porch"}, screen{"audit", "/ui/events?of=audit", "Audit log"}, screen{"core", "http://" + p.core + "/ui/", "Certificate"}) {
		if s.shows == "Nothing waits" {
			continue // there is something
		}
		at := s.at
		if strings.HasPrefix(at, "/") {
			at = "http://" + p.hub + at
		}
		if s.shows == "No fleets" {
			s.shows = "farms"
		}
		run(t, ctx, chromedp.Navigate(at))
		awaitText(t, ctx, s.shows)
		for _, scheme := range []string{"light", "dark"} {
			run(t, ctx, emulation.SetEmulatedMedia().WithFeatures([]*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: scheme}}))
			if found := check(); found != "[]" {
				t.Errorf("%s, %s: %s", s.name, scheme, found)
			}
		}
	}
	run(t, ctx, chromedp.Evaluate(`document.querySelector('main').append(document.createElement('input'), new Image())`, nil))
	require.Contains(t, check(), "label", "what is wrong is found")
}

// places are where others' texts are shown, each with how the text comes there. Names and label values can't hold a script: the API refuses them.
func TestWhatOthersWriteIsTextInEachPlaceOfEachScreen(t *testing.T) {
	p, ctx := startDemo(t), startBrowser(t)
	p.findDevices(t, "porch")
	quoted := func(s string) string { raw, _ := json.Marshal(s); return string(raw) }
	for i, payload := range payloads {
		q := quoted(payload)
		short := quoted(payload[:min(16, len(payload))])
		name := fmt.Sprint("y", i)
		p.send(t, "POST", apiRoot+"namespaces/default/devicemodels", fmt.Sprintf(`{"apiVersion":"edgebus.io/v1alpha1","kind":"DeviceModel","metadata":{"name":%q},"spec":{"properties":[
			{"name":"text","title":%[2]s,"description":%[2]s,"unit":%[3]s,"type":"string","accessMode":"ReadWrite","alarms":[{"name":"said","title":%[2]s,"equals":%[2]s,"severity":"high"}]}],
			"commands":[{"name":"go","title":%[2]s}]}}`, name, q, short))
		p.send(t, "POST", apiRoot+"namespaces/default/devices", fmt.Sprintf(`{"apiVersion":"edgebus.io/v1alpha1","kind":"Device","metadata":{"name":%q,"annotations":{"note":%[2]s}},
			"spec":{"title":%[2]s,"deviceModelRef":{"name":%[1]q},"nodeName":"demo","protocol":{"type":"none","config":{"address":%[2]s}},"desired":{"text":"other"}}}`, name, q))
		p.send(t, "POST", apiRoot+"fleets", fmt.Sprintf(`{"apiVersion":"edgebus.io/v1alpha1","kind":"Fleet","metadata":{"name":%q,"annotations":{"note":%[2]s}},"spec":{"selector":{"matchLabels":{"none":"x"}},"template":{"spec":{"config":[{"name":"motd","configType":"FileListProviderSpec","files":[{"path":"/etc/motd","content":%[2]s}]}]}}}}`, name, q))
		p.send(t, "POST", "/api/v1/namespaces/default/events", fmt.Sprintf(`{"apiVersion":"v1","kind":"Event","metadata":{"name":"said-%s"},"reason":"Said","type":"Warning","message":%s,"involvedObject":{"kind":"Device","namespace":"default","name":%[1]q}}`, name, q))
		awaitPublish(t, p.coreMQTT, "v1/nodes/demo/devices/"+name+"/reported/text", payload) // raises an alarm, whose message has it
		awaitPublish(t, p.coreMQTT, "v1/nodes/demo/devices/"+name+"/problem", `{"code":"Unreachable","message":`+q+`}`)
		awaitPublish(t, p.coreMQTT, "v1/nodes/demo/devices/"+name+"/refused/text", `{"for":1,"code":"Bad","message":`+q+`}`)
		awaitPublish(t, p.coreMQTT, "v1/nodes/demo/discovery/lamps/instances/found-"+name, `{"properties":{"ADDRESS":`+q+`}}`)
		p.publish(t, p.hubMQTT, "plain/"+strings.NewReplacer("/", "|", "+", "", "#", "").Replace(payload), payload, "-r")
	}
	for i, payload := range payloads {
		device := fmt.Sprintf("/ui/devices/default/y%d", i)
		for place, at := range map[string]string{
			"title, unit, value, alarm, problem, refusal, setting": device, "title in a list, values, reason": "/ui/devices", "alarm on the overview": "/ui/", "event": "/ui/events",
			"property of a found device": "/ui/approvals", "YAML of a device": "/ui/objects/devices/default/y" + fmt.Sprint(i), "YAML of a fleet": fmt.Sprintf("/ui/objects/fleets/_/y%d", i),
		} {
			p.open(t, ctx, at)
			// In YAML a text may be written in quotes of its own: a part of it is without any.
			part := strings.FieldsFunc(payload, func(c rune) bool { return strings.ContainsRune(`'"`, c) })
			awaitTrue(t, ctx, fmt.Sprintf(`(document.body.innerText + [...document.querySelectorAll('textarea, input')].map(e => e.value).join(' ')).includes(%q)`, part[0]))
			awaitTrue(t, ctx, `window.hacked === undefined && !document.querySelector('main img, main script, main svg[onload], main [onmouseover]')`)
			_ = place
		}
	}
	p.open(t, ctx, "/ui/topics")
	awaitTrue(t, ctx, `document.querySelector('.filters select')`)
	run(t, ctx, chromedp.Evaluate(`(s => { s.value = ''; s.dispatchEvent(new Event('change', {bubbles: true})); })(document.querySelector('.filters select'))`, nil))
	awaitText(t, ctx, "plain")
	pressButton(t, ctx, "Open plain")
	awaitText(t, ctx, payloads[2])
	for _, at := range []string{"/ui/devices/default/%3Cimg%20src%3Dx%20onerror%3Dwindow.hacked%3D1%3E", "/ui/nodes/%3Cscript%3Ewindow.hacked%3D1%3C%2Fscript%3E"} {
		p.open(t, ctx, at)
		awaitTrue(t, ctx, `document.querySelector('[role=alert]')`)
	}
	for _, s := range hubScreens { // addresses are others' texts, too
		for _, payload := range payloads[:3] {
			p.open(t, ctx, s.at+"?q="+queryEscape(payload)+"&label="+queryEscape("a="+payload)+"&state="+queryEscape(payload)+"&order="+queryEscape(payload)+"&of="+queryEscape(payload))
			awaitTrue(t, ctx, `document.querySelector('h1, [role=alert]')`)
		}
	}
	awaitTrue(t, ctx, `window.hacked === undefined`)
	run(t, ctx, chromedp.Navigate("http://"+p.core+"/ui/devices/default/y0"))
	awaitText(t, ctx, payloads[0])
	awaitTrue(t, ctx, `window.hacked === undefined`)
}

// What one may not do isn't offered, and is refused by the server whatever is offered.
func TestAViewerIsOfferedNothingThatHeMayNotDo(t *testing.T) {
	bin := findBinaries(t)
	p := startHubWith(t, bin, freeAddress(t), fmt.Sprintf("users: [{name: ann, passwordHash: '%[1]s', role: operator, nodes: ['*']}, {name: vic, passwordHash: '%[1]s', role: viewer, nodes: ['*']}, {name: hal, passwordHash: '%[1]s', role: operator, nodes: ['hall-*']}]", passwordHash(t, bin, "correct horse")))
	for _, o := range []string{"nodes|" + `{"apiVersion":"edgebus.io/v1alpha1","kind":"Node","metadata":{"name":"barn"}}`, "nodes|" + `{"apiVersion":"edgebus.io/v1alpha1","kind":"Node","metadata":{"name":"hall-1"}}`,
		"namespaces/default/devicemodels|" + `{"apiVersion":"edgebus.io/v1alpha1","kind":"DeviceModel","metadata":{"name":"m"},"spec":{"properties":[{"name":"power","type":"boolean","accessMode":"ReadWrite"}]}}`,
		"namespaces/default/devices|" + `{"apiVersion":"edgebus.io/v1alpha1","kind":"Device","metadata":{"name":"lamp"},"spec":{"deviceModelRef":{"name":"m"},"nodeName":"barn","protocol":{"type":"virtual"}}}`,
		"namespaces/default/devices|" + `{"apiVersion":"edgebus.io/v1alpha1","kind":"Device","metadata":{"name":"lamp2"},"spec":{"deviceModelRef":{"name":"m"},"nodeName":"hall-1","protocol":{"type":"virtual"}}}`,
		"fleets|" + `{"apiVersion":"edgebus.io/v1alpha1","kind":"Fleet","metadata":{"name":"farms"},"spec":{"selector":{"matchLabels":{"a":"b"}},"template":{"spec":{"config":[]}}}}`} {
		at, body, _ := strings.Cut(o, "|")
		p.sendAs(t, "ann", "POST", apiRoot+at, body)
	}
	for user, may := range map[string]struct{ all, barn, hall bool }{"vic": {}, "hal": {hall: true}, "ann": {all: true, barn: true, hall: true}} {
		ctx := startBrowser(t)
		p.open(t, ctx, "/ui/devices")
		p.signIn(t, ctx, user)
		offers := func(at, shows, selector string, want bool) {
			t.Helper()
			p.open(t, ctx, at)
			awaitText(t, ctx, shows)
			awaitTrue(t, ctx, fmt.Sprintf(`!!(%s) === %t`, selector, want))
		}
		button := func(name string) string {
			return fmt.Sprintf(`[...document.querySelectorAll('button, a.button')].find(b => !b.disabled && b.textContent.trim().startsWith(%q))`, name)
		}
		link := func(name string) string {
			return fmt.Sprintf(`[...document.querySelectorAll('nav a')].find(a => a.textContent === %q)`, name)
		}
		offers("/ui/devices", "lamp2", button("Add a device"), may.all)
		offers("/ui/devices", "lamp2", link("Tokens"), may.all)
		offers("/ui/devices", "lamp2", link("Approvals"), may.all)
		offers("/ui/events", "Events", button("Audit log"), may.all)
		if user != "hal" { // who sees some nodes sees no fleets
			offers("/ui/rollouts", "farms", button("Pause"), may.all)
		}
		offers("/ui/devices/default/lamp2", "power", `document.querySelector('[aria-label="Set power"]:not(:disabled)')`, may.hall)
		offers("/ui/devices/default/lamp2", "power", button("Send"), false) // there is no command's name yet
		if user != "hal" {
			offers("/ui/devices/default/lamp", "power", `document.querySelector('[aria-label="Set power"]:not(:disabled)')`, may.barn)
		}
		for _, write := range []string{
			`fetch('` + apiRoot + `namespaces/default/devices/lamp', {method: 'PATCH', headers: {'Content-Type': 'application/merge-patch+json'}, body: '{"metadata":{"labels":{"a":"b"}}}'})`,
			`fetch('` + apiRoot + `fleets/farms', {method: 'PATCH', headers: {'Content-Type': 'application/merge-patch+json'}, body: '{"spec":{"paused":true}}'})`,
			`fetch('/tokens', {method: 'POST', body: '{"user":"x","role":"viewer","nodes":["*"]}'})`,
			`fetch('/audit')`,
		} {
			awaitTrue(t, ctx, write+fmt.Sprintf(`.then(r => (r.status < 300) === %t && (r.status < 300 || [403, 404].includes(r.status)))`, may.all))
		}
	}
}
