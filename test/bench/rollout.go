// SPDX-License-Identifier: Apache-2.0

//go:build testprogram

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rs/zerolog"
	"golang.org/x/sync/errgroup"

	"github.com/edgebus/edgebus/broker/client"
	"github.com/edgebus/edgebus/test/simnodes"
	"github.com/edgebus/edgebus/topics/resource"
)

const (
	fewNodes      = 500 // of a hub with few nodes, for what should not depend on their number
	rolledFlips   = 40  // changes of one node's labels
	rolledBytes   = 400 // of the file in the template
	rolledTimeout = 5 * time.Minute
	rolledAtOnce  = 500  // nodes that connect at once
	tidyGOGC      = "10" // GOGC of a hub whose memory is compared
)

// measureRollouts measures how a fleet's template reaches its nodes, and what being in a fleet costs.
func measureRollouts(b benchRun) error {
	if err := simnodes.RaiseFileLimit(uint64(b.nodes) + 1000); err != nil {
		return err
	}
	rolledNodes := b.nodes
	few, err := b.rolled(fewNodes, false, false)
	if err != nil {
		return err
	}
	many, err := b.rolled(rolledNodes, false, false)
	if err != nil {
		return err
	}
	byHand, err := b.rolled(rolledNodes, true, true)
	if err != nil {
		return err
	}
	members, err := b.rolled(rolledNodes, false, true)
	if err != nil {
		return err
	}
	ratio := many.last.Seconds() / many.raw.Seconds()
	fmt.Fprintf(b.w, "%d simulated nodes (the link's machines and an MQTT connection each, in one process beside the hub) are in one fleet without a rollout\n"+
		"policy. Its template, with a file of %d bytes, is changed with a PATCH. *Raw* are as many clients that each subscribe to a topic of their own at\n"+
		"QoS 1 on the same hub, and one client that publishes the same %d bytes to each. Processor time is the hub's, until it knows that all have applied it.\n\n"+
		"| | nodes | p50 | last | processor time a node, µs |\n|---|---|---|---|---|\n"+
		"| raw: published → received | %[1]d | %[4]s | %[5]s | %[14]d |\n| template changed → the node has the spec | %[1]d | %[6]s | %[7]s | %[15]d |\n"+
		"| template changed → the hub knows that all have applied it | %[1]d | – | %[8]s | – |\n| template changed → the node has the spec | %[9]d | %[10]s | %[11]s | %[16]d |\n\n"+
		"Aim: the last within 3 times of raw: %[12]s (%.1[13]f times).\n\n",
		rolledNodes, rolledBytes, many.size, formatDuration(many.rawHalf), formatDuration(many.raw), formatDuration(many.half), formatDuration(many.last), formatDuration(many.known),
		fewNodes, formatDuration(few.half), formatDuration(few.last), aimText(ratio < 3), ratio, many.rawCPU.Microseconds(), many.cpu.Microseconds(), few.cpu.Microseconds())
	fmt.Fprintf(b.w, "Anonymous memory of the hub for each of these nodes (RssAnon, at rest, with GOGC=%s, so that garbage counts little): %.0f bytes connected and without\n"+
		"a spec, %.0f more with the spec written by hand, %.0f more as members of the fleet. Aim: less than 4096 more than by hand: %s.\n\n",
		tidyGOGC, (byHand.bare+members.bare)/2, byHand.more, members.more, aimText(members.more-byHand.more < 4096))
	fmt.Fprintf(b.w, "One node's label is changed, on a hub with few nodes and with many. Aim: no dependence on their number.\n\n"+
		"| p50 of %d | %d nodes | %d nodes |\n|---|---|---|\n| label → owner, a fleet that has only this node | %s | %s |\n| label → spec, the fleet of all nodes | %s | %s |\n",
		rolledFlips, fewNodes, rolledNodes, formatDuration(few.owner), formatDuration(many.owner), formatDuration(few.joined), formatDuration(many.joined))
	return nil
}

// rolledFigures are those of one hub.
type rolledFigures struct {
	bare, more        float64 // bytes of memory a node
	half, last, known time.Duration
	rawHalf, raw      time.Duration
	owner, joined     time.Duration
	cpu, rawCPU       time.Duration // of the hub, for each node and round
	size              int           // of a rendered spec
}

// rolledHub is a hub with simulated nodes.
type rolledHub struct {
	*benchProcess
	http  string
	n     int
	nodes *simnodes.Set

	mu       sync.Mutex
	want     string
	got      map[string]time.Time // by node: when it had what is wanted
	size     int
	complete chan struct{}
}

// rolled starts a hub with so many nodes, and measures. byHand: each has its spec from its own user, and there is no fleet. memory: nothing
// else is measured.
func (b benchRun) rolled(n int, byHand, memory bool) (f rolledFigures, err error) {
	if memory {
		if err := os.Setenv("GOGC", tidyGOGC); err != nil {
			return f, err
		}
		defer os.Unsetenv("GOGC")
	}
	dir, err := os.MkdirTemp("", "edgebus-bench-")
	if err != nil {
		return f, err
	}
	defer os.RemoveAll(dir)
	h := &rolledHub{n: n}
	addr, err := freeAddress()
	if err == nil {
		h.http, err = freeAddress()
	}
	if err != nil {
		return f, err
	}
	h.benchProcess, err = startBroker(filepath.Join(dir, "none"), addr, "", filepath.Join(b.bin, "cloudhub"), "--data-dir", dir, "--mqtt-listen", addr,
		"--mqtt-websocket-listen", "", "--http-listen", h.http, "--limits-connections", fmt.Sprint(4*n+1000), "--limits-per-user", fmt.Sprint(4*n+1000),
		"--limits-connect-rate", fmt.Sprint(n+100), "--log-level", "warn")
	if err != nil {
		return f, err
	}
	defer h.stop()
	time.Sleep(settleTime)
	empty, err := anonymousMemory(h.pid)
	if err != nil {
		return f, err
	}
	if err := h.begin(); err != nil {
		return f, err
	}
	defer h.nodes.Stop()
	bare, err := h.memory()
	if err != nil {
		return f, err
	}
	f.bare = (bare - empty) * 1e6 / float64(n)
	if byHand {
		err = h.byHand()
	} else {
		err = h.fleet()
	}
	if err != nil {
		return f, err
	}
	with, err := h.memory()
	f.more = (with - bare) * 1e6 / float64(n)
	if err != nil || memory {
		return f, err
	}
	return f, errors.Join(h.change(b.rounds, &f), h.flip(&f), h.plain(b.rounds, &f))
}

func rolledName(i int) string { return fmt.Sprintf("rolled-%05d", i) }

// begin makes the Nodes, and connects them.
func (h *rolledHub) begin() (err error) {
	var group errgroup.Group
	group.SetLimit(32)
	names := make([]string, h.n)
	for i := range names {
		names[i] = rolledName(i)
		group.Go(func() error {
			return h.ask(http.MethodPost, "nodes", fmt.Sprintf(`{"metadata":{"name":%q,"labels":{"site":"bench"}}}`, names[i]), nil)
		})
	}
	if err := group.Wait(); err != nil {
		return err
	}
	if h.nodes, err = simnodes.Start(simnodes.Options{Hub: h.addr, Agent: h.agent, AtOnce: rolledAtOnce}, names...); err != nil {
		return err
	}
	_, err = awaitInStep(h.nodes)
	return err
}

// agent applies everything, and notes when a node has what is wanted.
func (h *rolledHub) agent(n *simnodes.Node, spec resource.RenderedSpec) (*resource.AgentReport, time.Duration) {
	now := time.Now()
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(spec.Files) == 1 && h.want != "" && strings.HasPrefix(spec.Files[0].Text, h.want) {
		if text, err := json.Marshal(spec); err == nil {
			h.size = len(text)
		}
		h.got[n.Name] = now
		if len(h.got) == cap(h.complete) {
			select {
			case h.complete <- struct{}{}:
			default:
			}
		}
	}
	return simnodes.ApplyAtOnce(n, spec)
}

// expect begins to wait for so many nodes to have a text.
func (h *rolledHub) expect(text string, nodes int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.want, h.got, h.complete = text, make(map[string]time.Time), make(chan struct{}, nodes)
}

// all waits until they have, and says when they did, counted from a moment.
func (h *rolledHub) all(from time.Time) (list []time.Duration, err error) {
	select {
	case <-h.complete:
	case <-time.After(rolledTimeout):
		h.mu.Lock()
		defer h.mu.Unlock()
		return nil, fmt.Errorf("%d of %d nodes have %s after %s", len(h.got), cap(h.complete), h.want, rolledTimeout)
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, at := range h.got {
		list = append(list, at.Sub(from))
	}
	return list, nil
}

func (h *rolledHub) memory() (float64, error) {
	time.Sleep(2 * settleTime)
	return anonymousMemory(h.pid)
}

func (h *rolledHub) ask(method, path, body string, into any) error {
	r, err := http.NewRequest(method, "http://"+h.http+"/apis/edgebus.io/v1alpha1/"+path, strings.NewReader(body))
	if err != nil {
		return err
	}
	r.Header.Set("Content-Type", "application/json")
	if method == http.MethodPatch {
		r.Header.Set("Content-Type", "application/merge-patch+json")
	}
	answer, err := http.DefaultClient.Do(r)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	if err == nil && answer.StatusCode/100 != 2 {
		return fmt.Errorf("%s %s: %s", method, path, text)
	}
	if err != nil || into == nil {
		return err
	}
	return json.Unmarshal(text, into)
}

// rolledSpec is a spec with one file that begins with a text.
func rolledSpec(text string) string {
	return `{"config":[{"name":"motd","configType":"FileListProviderSpec","files":[{"path":"/etc/motd","content":"` + text + strings.Repeat("x", rolledBytes-len(text)) + `"}]}]}`
}

func (h *rolledHub) byHand() error {
	h.expect("by hand", h.n)
	var group errgroup.Group
	group.SetLimit(32)
	for i := range h.n {
		group.Go(func() error {
			return h.ask(http.MethodPatch, "nodes/"+rolledName(i), `{"spec":`+rolledSpec("by hand")+`}`, nil)
		})
	}
	if err := group.Wait(); err != nil {
		return err
	}
	_, err := h.all(time.Now())
	return err
}

func (h *rolledHub) fleet() error {
	h.expect("first", h.n)
	if err := h.ask(http.MethodPost, "fleets", `{"metadata":{"name":"all"},"spec":{"selector":{"matchLabels":{"site":"bench"}},"template":{"spec":`+rolledSpec("first")+`}}}`, nil); err != nil {
		return err
	}
	if _, err := h.all(time.Now()); err != nil {
		return err
	}
	_, err := h.updated("first")
	return err
}

// updated waits until the hub knows that all nodes have a version.
func (h *rolledHub) updated(of string) (at time.Time, err error) {
	for end := time.Now().Add(rolledTimeout); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
		var f resource.Fleet
		if err := h.ask(http.MethodGet, "fleets/all", "", &f); err != nil {
			return at, err
		}
		if s := f.Status.Rollout; s != nil && s.Updated >= h.n && s.TemplateVersion == f.Metadata.Annotations["fleet-controller/templateVersion"] {
			return time.Now(), nil
		}
	}
	return at, fmt.Errorf("the hub doesn't know that all nodes have %s after %s", of, rolledTimeout)
}

// change changes the template.
func (h *rolledHub) change(rounds int, f *rolledFigures) error {
	var half, last, known []float64
	before, err := cpuOf(h.pid)
	if err != nil {
		return err
	}
	for i := range rounds {
		text := fmt.Sprintf("round %d ", i)
		h.expect(text, h.n)
		begin := time.Now()
		if err := h.ask(http.MethodPatch, "fleets/all", `{"spec":{"template":{"spec":`+rolledSpec(text)+`}}}`, nil); err != nil {
			return err
		}
		took, err := h.all(begin)
		if err != nil {
			return err
		}
		at, err := h.updated(text)
		if err != nil {
			return err
		}
		half, last, known = append(half, quantile(took, 0.5).Seconds()), append(last, quantile(took, 1).Seconds()), append(known, at.Sub(begin).Seconds())
	}
	after, err := cpuOf(h.pid)
	f.cpu = (after - before) / time.Duration(rounds*h.n)
	f.half, f.last, f.known, f.size = toDuration(median(half)), toDuration(median(last)), toDuration(median(known)), h.size
	return err
}

func toDuration(s float64) time.Duration { return time.Duration(s * float64(time.Second)) }

// flip moves one node between fleets by its labels.
func (h *rolledHub) flip(f *rolledFigures) error {
	if err := h.ask(http.MethodPost, "fleets", `{"metadata":{"name":"one"},"spec":{"selector":{"matchLabels":{"site":"one"}},"template":{"spec":`+rolledSpec("alone")+`}}}`, nil); err != nil {
		return err
	}
	label := func(site string) error {
		return h.ask(http.MethodPatch, "nodes/"+rolledName(0), fmt.Sprintf(`{"metadata":{"labels":{"site":%q}}}`, site), nil)
	}
	owned := func(owner string) error {
		for end := time.Now().Add(rolledTimeout); time.Now().Before(end); {
			var n resource.Node
			if err := h.ask(http.MethodGet, "nodes/"+rolledName(0), "", &n); err != nil {
				return err
			}
			if n.Metadata.Owner == owner {
				return nil
			}
		}
		return fmt.Errorf("%s is not owned by %q", rolledName(0), owner)
	}
	var owner, joined []time.Duration
	for range rolledFlips {
		h.expect("alone", 1)
		begin := time.Now()
		if err := errors.Join(label("one"), owned("Fleet/one")); err != nil {
			return err
		}
		owner = append(owner, time.Since(begin))
		if _, err := h.all(begin); err != nil {
			return err
		}
		h.expect("round", 1)
		begin = time.Now()
		if err := label("bench"); err != nil {
			return err
		}
		took, err := h.all(begin)
		if err != nil {
			return err
		}
		joined = append(joined, took...)
	}
	f.owner, f.joined = quantile(owner, 0.5), quantile(joined, 0.5)
	return nil
}

// plain publishes as many bytes to as many clients, over the hub's broker alone.
func (h *rolledHub) plain(rounds int, f *rolledFigures) error {
	h.nodes.Stop()
	ctx, stop := context.WithCancel(context.Background())
	var running sync.WaitGroup
	defer func() { stop(); running.Wait() }()
	var up, left atomic.Int64
	var mu sync.Mutex
	var took []time.Duration
	var begin time.Time
	done := make(chan struct{}, 1)
	for i := range h.n {
		c, err := client.New(client.Options{
			Servers: []string{"mqtt://" + h.addr}, ClientID: fmt.Sprintf("plain-%d", i), CleanStart: true, Log: zerolog.Nop(),
			Subscriptions: []client.Subscription{{Filter: fmt.Sprintf("bench/plain/%d", i), QoS: 1}},
			OnConnect:     func(context.Context, bool) error { up.Add(1); return nil },
			OnMessage: func(client.Message) {
				mu.Lock()
				took = append(took, time.Since(begin))
				mu.Unlock()
				if left.Add(-1) == 0 {
					done <- struct{}{}
				}
			},
		})
		if err != nil {
			return err
		}
		running.Go(func() { _ = c.Run(ctx) })
		if begun := i + 1; begun%rolledAtOnce == 0 || begun == h.n {
			for end := time.Now().Add(rolledTimeout); up.Load() < int64(begun); time.Sleep(10 * time.Millisecond) {
				if time.Now().After(end) {
					return fmt.Errorf("%d of %d clients are connected after %s", up.Load(), begun, rolledTimeout)
				}
			}
		}
	}
	from, err := connectClient(h.addr, "publisher")
	if err != nil {
		return err
	}
	defer from.stop()
	payload := bytes.Repeat([]byte("x"), h.size)
	var half, last []float64
	before, err := cpuOf(h.pid)
	if err != nil {
		return err
	}
	for range rounds {
		left.Store(int64(h.n))
		mu.Lock()
		took, begin = nil, time.Now()
		mu.Unlock()
		for i := range h.n {
			m := client.Message{Topic: fmt.Sprintf("bench/plain/%d", i), Payload: payload, QoS: 1}
			sent := make(chan error, 1)
			for {
				from.PublishAsync(m, func(err error) { sent <- err })
				select {
				case err := <-sent:
					if errors.Is(err, client.ErrBusy) {
						time.Sleep(100 * time.Microsecond)
						continue
					}
					if err != nil {
						return err
					}
				default:
				}
				break
			}
		}
		select {
		case <-done:
		case <-time.After(rolledTimeout):
			return fmt.Errorf("%d messages have not come after %s", left.Load(), rolledTimeout)
		}
		mu.Lock()
		half, last = append(half, quantile(took, 0.5).Seconds()), append(last, quantile(took, 1).Seconds())
		mu.Unlock()
	}
	after, err := cpuOf(h.pid)
	f.rawCPU = (after - before) / time.Duration(rounds*h.n)
	f.rawHalf, f.raw = toDuration(median(half)), toDuration(median(last))
	return err
}
