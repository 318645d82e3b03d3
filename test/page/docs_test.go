// SPDX-License-Identifier: Apache-2.0

package page

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/chromedp"
	"github.com/stretchr/testify/require"
)

// takeDocsPicture makes a picture of docs/page.md, in .out/page/docs, or in docs/page with PICTURES=write.
func takeDocsPicture(t *testing.T, p *programs, ctx context.Context, s screen, suffix string, width, height int64, dark bool) {
	t.Helper()
	scheme := "light"
	if dark {
		scheme = "dark"
	}
	run(t, ctx, emulation.SetEmulatedMedia().WithFeatures([]*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: scheme}}),
		chromedp.EmulateViewport(width, height, chromedp.EmulateScale(0.75)))
	at := s.at
	if strings.HasPrefix(at, "/") {
		at = "http://" + p.hub + at
	}
	run(t, ctx, chromedp.Navigate(at))
	awaitText(t, ctx, s.shows)
	awaitTrue(t, ctx, `!document.body.innerText.includes('Loading')`)
	awaitTrue(t, ctx, `![...document.querySelectorAll('.control input, .control button')].some(c => c.disabled)`)
	awaitTrue(t, ctx, `document.documentElement.scrollWidth <= innerWidth`)
	var png []byte
	run(t, ctx, chromedp.Evaluate(`new Promise((drawn) => requestAnimationFrame(() => requestAnimationFrame(drawn)))`, nil, awaitPromise), chromedp.CaptureScreenshot(&png))
	dir := "../../.out/page/docs"
	if os.Getenv("PICTURES") == "write" {
		dir = "../../docs/page"
	}
	require.NoError(t, os.MkdirAll(dir, 0o755))
	require.NoError(t, os.WriteFile(filepath.Join(dir, s.name+suffix+".png"), png, 0o644))
	require.Less(t, len(png), 100_000, "a picture of the documentation is small")
}

// house gives the demo a house: rooms, nodes that are away, an alarm, a refusal, devices that were found.
func (p *programs) house(t *testing.T) {
	root := "/apis/edgebus.io/v1alpha1/"
	p.send(t, "PATCH", root+"namespaces/default/devices/lamp", `{"metadata":{"labels":{"site":"north"}},"spec":{"title":"Hall light"}}`)
	p.send(t, "PATCH", root+"namespaces/default/devices/thermostat", `{"metadata":{"labels":{"site":"north"}},"spec":{"title":"Hall thermostat","alarms":[{"propertyName":"temperature","name":"warm","above":15,"severity":"high"}]}}`)
	p.send(t, "POST", root+"nodes", `{"apiVersion":"edgebus.io/v1alpha1","kind":"Node","metadata":{"name":"barn","labels":{"site":"south"}}}`)
	for i, title := range []string{"Milk tank", "Barn fan", "Barn door", "Feeder", "Well pump"} {
		p.send(t, "POST", root+"namespaces/default/devices", fmt.Sprintf(`{"apiVersion":"edgebus.io/v1alpha1","kind":"Device","metadata":{"name":"barn-%d","labels":{"site":"south"}},"spec":{"title":%q,"deviceModelRef":{"name":"dimmable-lamp"},"nodeName":"barn","protocol":{"type":"virtual"},"desired":{"power":"ON"}}}`, i, title))
	}
	p.send(t, "POST", root+"fleets", `{"apiVersion":"edgebus.io/v1alpha1","kind":"Fleet","metadata":{"name":"farms"},"spec":{"selector":{"matchLabels":{"site":"south"}},"template":{"spec":{"config":[]}}}}`)
}

func TestPicturesOfTheDocumentationShowAHouse(t *testing.T) {
	p := startDemo(t)
	p.house(t)
	ctx := startBrowser(t)
	p.open(t, ctx, "/ui/devices/default/thermostat")
	typeInto(t, ctx, "Set setpoint", "21.5")
	awaitTrue(t, ctx, rowShows("setpoint", "21.5 °C"))
	p.open(t, ctx, "/ui/")
	awaitText(t, ctx, "high alarm")
	p.joinNode(t, "field")
	p.findDevices(t, "porch", "attic")
	for _, s := range []screen{
		{"overview", "/ui/", "high alarm"}, {"devices", "/ui/devices", "Milk tank"}, {"device", "/ui/devices/default/thermostat", "21.5"}, {"nodes", "/ui/nodes", "barn"}, {"node", "/ui/nodes/demo", "Certificate"},
		{"approvals", "/ui/approvals", "porch"}, {"rollouts", "/ui/rollouts", "farms"}, {"topics", "/ui/topics", "demo"}, {"events", "/ui/events", "demo"}, {"audit", "/ui/events?of=audit", "connect"},
		{"objects", "/ui/objects/devices", "lamp"}, {"yaml", "/ui/objects/devices/default/lamp", "What would change?"}, {"tokens", "/ui/tokens", "Make a token"}, {"core", "http://" + p.core + "/ui/", "Certificate"},
	} {
		takeDocsPicture(t, p, ctx, s, "", 1280, 760, false)
		takeDocsPicture(t, p, ctx, s, "-narrow", 390, 760, true)
	}
	takeDocsPicture(t, p, ctx, screen{"overview", "/ui/", "high alarm"}, "-dark", 1280, 760, true)
	takeDocsPicture(t, p, ctx, screen{"device", "/ui/devices/default/thermostat", "21.5"}, "-dark", 1280, 760, true)
	p.open(t, ctx, "/ui/")
	awaitText(t, ctx, "high alarm")

	// What one has acknowledged needs one no more.
	pressButton(t, ctx, "Acknowledge")
	awaitTrue(t, ctx, `!document.body.innerText.includes('high alarm')`)
	p.open(t, ctx, "/ui/devices/default/thermostat")
	awaitText(t, ctx, "acknowledged")
}
