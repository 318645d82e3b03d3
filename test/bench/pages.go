// SPDX-License-Identifier: Apache-2.0

//go:build testprogram

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"path/filepath"
	"regexp"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/rs/zerolog"
	"golang.org/x/sync/errgroup"

	"github.com/edgebus/edgebus/broker/client"
	"github.com/edgebus/edgebus/test/simnodes"
	"github.com/edgebus/edgebus/topics"
	"github.com/edgebus/edgebus/topics/backoff"
	"github.com/edgebus/edgebus/topics/link"
)

const (
	pagesName       = "pages" // as a flood
	openPages       = 20
	pageDevices     = 100 // of the node that they show
	pageProperties  = 10
	pageNode        = "shown"
	pageConnections = 6 // of a browser to one address
	pageTimeout     = 30 * time.Second
	pageAim         = 2.0 // % of a core, while nothing changes
	pageRequests    = `edgebus_http_requests_total{code="200",method="get"}`
)

// measurePages measures what open pages cost a hub, and what well-behaved clients notice of them.
func measurePages(b benchRun) error {
	broker, unpin, err := pinCPU()
	if err != nil {
		return err
	}
	defer unpin()
	n, nodes, err := openShownHub(b, broker)
	if err != nil {
		return err
	}
	defer n.close()
	defer nodes.Stop()
	fmt.Fprintf(b.w, "%d pages of the hub are open, each in a browser of its own: the overview, the list of devices, a device and a node, five of each. They ask what the page\n"+
		"asks, as often, and subscribe to what it does, from a process of their own that draws nothing. The node that they show has %d Devices of %d\n"+
		"properties. Loading the pages is not measured.\n", openPages, pageDevices, pageProperties)
	unleash := func() (func(), error) { return n.unleash(pagesName, n.target.HTTP) }
	if err := n.idlePages(b, unleash); err != nil {
		return err
	}
	if err := n.inhabit("v1/nodes/n1/devices/d0/desired/p"); err != nil {
		return err
	}
	n.header(b, "cloudhub")
	if err := n.bear(b, fmt.Sprintf("has %d pages open, and nothing changes that they show", openPages), unleash); err != nil {
		return err
	}
	defer changeShown(nodes.Nodes[0])()
	return n.bear(b, fmt.Sprintf("has %d pages open, while %d values a second change of the node", openPages, pageDevices*pageProperties), unleash)
}

// idlePages measures what the pages cost while nothing is done.
func (n *neighbourProcess) idlePages(b benchRun, unleash func() (func(), error)) error {
	span := 10 * b.d
	idle := func() (share, requests float64, err error) {
		time.Sleep(pollSettle) // what was loaded, or made, is done with
		before, err := cpuOf(n.pid)
		if err != nil {
			return 0, 0, err
		}
		asked, err := readGauge(n.target.HTTP, pageRequests)
		if err != nil {
			return 0, 0, err
		}
		time.Sleep(span) // what is used meanwhile is measured
		more, err := readGauge(n.target.HTTP, pageRequests)
		if err != nil {
			return 0, 0, err
		}
		after, err := cpuOf(n.pid)
		return 100 * float64(after-before) / float64(span), (more - asked) / span.Seconds(), err
	}
	none, _, err := idle()
	if err != nil {
		return err
	}
	end, err := unleash()
	if err != nil {
		return err
	}
	open, requests, err := idle()
	end()
	if err == nil && requests < openPages/5 {
		err = fmt.Errorf("the pages ask %.1f times a second: they are not open", requests)
	}
	fmt.Fprintf(b.w, "While nothing is done, for %s each, the hub takes %.2f %% of a core without a page, and %.2f %% with them, which ask %.1f times a second.\n"+
		"Aim: less than %.0f %% more: %s.\n\nThe rest is as in Neighbours: runs with and without the pages alternate.\n", span, none, open, requests, pageAim, aimText(open-none < pageAim))
	return err
}

// openShownHub is a hub with a Device for those who are there everywhere, and a node with Devices for the pages.
func openShownHub(b benchRun, cpu string) (n *neighbourProcess, nodes *simnodes.Set, err error) {
	if n, err = openNeighbourhood(filepath.Join(b.bin, "cloudhub"), cpu, nil); err != nil {
		return nil, nil, err
	}
	fill := func() error {
		if err := awaitReady("http://" + n.target.HTTP + "/readyz"); err != nil {
			return err
		}
		if err := postObject(n.target.HTTP, "devicemodels", benchModel(pageProperties)); err != nil {
			return err
		}
		for d := range pageDevices + 1 {
			device := benchDevice(d) // d0 is on n1
			if d > 0 {
				device.Spec.NodeName = pageNode
			}
			if err := postObject(n.target.HTTP, "devices", device); err != nil {
				return err
			}
		}
		nodes, err = simnodes.Start(simnodes.Options{Hub: n.addr, Agent: simnodes.ApplyAtOnce, Keys: func(s *simnodes.Node) {
			for d := range pageDevices {
				s.Put(shownEntries(d+1, 0)...)
			}
		}}, pageNode)
		if err != nil {
			return err
		}
		_, err = awaitInStep(nodes)
		return err
	}
	if err := fill(); err != nil {
		if nodes != nil {
			nodes.Stop()
		}
		n.close()
		return nil, nil, err
	}
	return n, nodes, nil
}

// shownEntries are what a node says of a Device.
func shownEntries(d, round int) []link.Entry {
	now, name := time.Now().UnixMilli(), "d"+strconv.Itoa(d)
	list := []link.Entry{{Key: topics.DeviceKey(name, topics.KindDeviceState, ""), TS: now, Origin: "mapper-bench", Value: []byte("online")}}
	for p := range pageProperties {
		list = append(list, link.Entry{Key: topics.DeviceKey(name, topics.KindReported, "p"+strconv.Itoa(p)), TS: now, Origin: "mapper-bench", Value: strconv.AppendInt(nil, int64(round+p), 10)})
	}
	return list
}

// changeShown changes each value of each Device each second, one Device after the other.
func changeShown(n *simnodes.Node) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		tick := time.NewTicker(time.Second / pageDevices)
		defer tick.Stop()
		for i := 0; ; i++ {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
			}
			n.Put(shownEntries(1+i%pageDevices, 1+i/pageDevices)[1:]...)
		}
	}()
	return func() { cancel(); <-ended }
}

// runPages opens pages of a hub and keeps them open; at is the address of its HTTP API, as JSON. It says when all are loaded.
func runPages(at string) error {
	var web string
	if err := json.Unmarshal([]byte(at), &web); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Minute) // should nobody end it
	defer cancel()
	g, ctx := errgroup.WithContext(ctx)
	var loading errgroup.Group
	for i := range openPages {
		p := newPage(ctx, web)
		screen := []func(int) error{p.overview, p.devices, p.device, p.node}[i%4]
		loading.Go(func() error {
			if err := p.load(); err != nil {
				return err
			}
			return screen(i)
		})
		g.Go(func() error {
			if err := loading.Wait(); err != nil {
				return err
			}
			return p.live(i)
		})
	}
	if err := loading.Wait(); err != nil {
		return err
	}
	fmt.Println("begins")
	return g.Wait()
}

// page is one of the hub's page in a browser of its own. What it asks for is as in broker/daemon/page/web/src.
type page struct {
	ctx   context.Context
	web   string
	http  *http.Client
	polls []pagePoll
}

// pagePoll is what is loaded at intervals.
type pagePoll struct {
	every time.Duration
	load  func() error
}

func newPage(ctx context.Context, web string) *page {
	t := &http.Transport{MaxConnsPerHost: pageConnections, MaxIdleConnsPerHost: pageConnections}
	return &page{ctx: ctx, web: web, http: &http.Client{Transport: t, Timeout: pageTimeout}}
}

var pageAsset = regexp.MustCompile(`/ui/assets/[^"]+`)

// load loads the document, its files, and who one is.
func (p *page) load() error {
	text, err := p.get("/ui/")
	if err != nil {
		return err
	}
	for _, file := range pageAsset.FindAllString(string(text), -1) {
		if _, err := p.get(file); err != nil {
			return err
		}
	}
	_, err = p.get("/session")
	return err
}

func (p *page) get(path string) ([]byte, error) {
	req, err := http.NewRequestWithContext(p.ctx, http.MethodGet, "http://"+p.web+path, nil)
	if err != nil {
		return nil, err
	}
	req.Header.Set("Accept", "application/json")
	req.Header.Set("X-Requested-With", "edgebus")
	resp, err := p.http.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %s: %.200s", path, resp.Status, text)
	}
	return text, err
}

// getAll asks for several at once.
func (p *page) getAll(paths ...string) error {
	var g errgroup.Group
	for _, path := range paths {
		g.Go(func() error { _, err := p.get(path); return err })
	}
	return g.Wait()
}

// poll loads something, and again at intervals once the page is live.
func (p *page) poll(every time.Duration, load func() error) error {
	p.polls = append(p.polls, pagePoll{every, load})
	return load()
}

// live polls until the page is closed. Pages don't do that at the same moment.
func (p *page) live(i int) error {
	g, ctx := errgroup.WithContext(p.ctx)
	for _, q := range p.polls {
		g.Go(func() error {
			backoff.Sleep(ctx, q.every*time.Duration(i+1)/openPages)
			tick := time.NewTicker(q.every)
			defer tick.Stop()
			for ctx.Err() == nil {
				if err := q.load(); err != nil {
					return err
				}
				select {
				case <-ctx.Done():
				case <-tick.C:
				}
			}
			return nil
		})
	}
	return g.Wait()
}

const pageRoot = "/apis/edgebus.io/v1alpha1"

// pageQuery is the query of a list, as the page encodes it.
func pageQuery(path string, pairs ...string) string {
	q := url.Values{}
	for i := 0; i < len(pairs); i += 2 {
		q.Set(pairs[i], pairs[i+1])
	}
	return path + "?" + q.Encode()
}

func (p *page) overview(int) error {
	nodes, devices := pageRoot+"/nodes", pageRoot+"/devices"
	return p.poll(5*time.Second, func() error {
		var off []byte
		var g errgroup.Group
		g.Go(func() (err error) {
			off, err = p.get(pageQuery(nodes, "fieldSelector", "status.state!=online", "order", "metadata.name", "limit", "5"))
			return err
		})
		g.Go(func() error {
			return p.getAll(devices+"?summary=status.state,inSync,status.alarm,label:site", nodes+"?summary=status.state,status.version",
				pageQuery(devices, "fieldSelector", "status.inSync=False", "order", "metadata.name", "limit", "50"),
				pageQuery(devices, "fieldSelector", "status.alarm=True", "order", "metadata.name", "limit", "10"),
				pageRoot+"/fleets", pageRoot+"/upgrades", pageRoot+"/enrollmentrequests", pageRoot+"/instances", pageRoot+"/configurations",
				"/links?limit=1", "/alerts", pageQuery(devices, "fieldSelector", "status.state=online", "order", "metadata.name", "limit", "6"))
		})
		if err := g.Wait(); err != nil {
			return err
		}
		var list struct {
			Items []struct{ Metadata struct{ Name string } }
		}
		if err := json.Unmarshal(off, &list); err != nil {
			return err
		}
		var doctors []string
		for _, n := range list.Items {
			doctors = append(doctors, "/doctor/"+n.Metadata.Name)
		}
		return p.getAll(doctors...)
	})
}

func (p *page) devices(int) error {
	return p.poll(10*time.Second, func() error {
		return p.getAll(pageQuery(pageRoot+"/devices", "offset", "0", "limit", "50"), pageQuery(pageRoot+"/devices", "summary", "status.state,inSync"))
	})
}

func (p *page) events(kind, name string) error {
	return p.poll(15*time.Second, func() error {
		return p.getAll(pageQuery("/api/v1/events", "fieldSelector", "involvedObject.kind="+kind+",involvedObject.name="+name, "limit", "200"))
	})
}

func (p *page) node(int) error {
	err := p.poll(5*time.Second, func() error {
		return p.getAll(pageRoot+"/nodes/"+pageNode, "/links/"+pageNode, "/doctor/"+pageNode, pageRoot+"/upgrades")
	})
	return errors.Join(err, p.events("Node", pageNode))
}

func (p *page) device(i int) error {
	name := "d" + strconv.Itoa(i+1)
	at := pageRoot + "/namespaces/default/devices/" + name
	err := p.poll(30*time.Second, func() error {
		if _, err := p.get(at); err != nil {
			return err
		}
		_, err := p.get(pageRoot + "/namespaces/default/devicemodels/bench")
		return err
	})
	if err = errors.Join(err, p.events("Device", name)); err != nil {
		return err
	}
	now := time.Now().UTC()
	var plots []string
	for property := range pageProperties {
		plots = append(plots, pageQuery(at+"/history", "property", "p"+strconv.Itoa(property), "from", now.AddDate(0, 0, -1).Format(time.RFC3339Nano), "to", now.Format(time.RFC3339Nano), "points", "60"))
	}
	if err := p.getAll(plots...); err != nil {
		return err
	}
	return p.subscribe("v1/nodes/"+pageNode+"/devices/"+name+"/", name)
}

// subscribe gets a Device's messages by WebSocket, and returns once there is what the broker had retained: a state, and each property.
func (p *page) subscribe(base, name string) error {
	filters := []client.Subscription{{Filter: base + "state"}}
	for _, branch := range []string{"desired", "reported", "override", "refused", "conflict", "problem"} {
		filters = append(filters, client.Subscription{Filter: base + branch + "/+"})
	}
	came, whole := atomic.Int64{}, make(chan struct{})
	c, err := client.New(client.Options{
		Servers: []string{"ws://" + p.web + "/mqtt"}, ClientID: "page-" + name, CleanStart: true, KeepAlive: 20 * time.Second, ReceiveMaximum: 200,
		Subscriptions: filters, Log: zerolog.Nop(),
		OnMessage: func(client.Message) {
			if came.Add(1) == pageProperties+1 {
				close(whole)
			}
		},
	})
	if err != nil {
		return err
	}
	go func() { _ = c.Run(p.ctx) }()
	select {
	case <-whole:
		return nil
	case <-time.After(pageTimeout):
		return fmt.Errorf("%d messages came of %s, and not %d", came.Load(), base, pageProperties+1)
	}
}
