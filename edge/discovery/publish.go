// SPDX-License-Identifier: Apache-2.0

package discovery

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"golang.org/x/time/rate"

	"github.com/edgebus/edgebus/broker/client"
	"github.com/edgebus/edgebus/topics"
	"github.com/edgebus/edgebus/topics/resource"
)

const (
	// publishBurst instances of a Configuration may be published at once, and publishPerSecond each second, so that a handler whose
	// list changes all the time leaves capacity to others.
	publishBurst     = 12_000
	publishPerSecond = 500
	// publishWindow is how many publishes of a Configuration wait for the core at once.
	publishWindow = 128
	// gatherTime is how long a change waits for others, once one was published.
	gatherTime = 20 * time.Millisecond
	// maxMessage bounds a message of a report, in bytes.
	maxMessage = 1 << 10
)

// brokerState is what the broker has of a Configuration.
type brokerState struct {
	instances map[string]brokerInstance // by name
	report    []byte                    // empty: none
}

// brokerInstance is one on the broker.
type brokerInstance struct {
	sum     [16]byte // of the payload
	ours    bool     // published since this start
	payload []byte   // as an earlier start published it, for handlers that can't find it again; nil: ours
}

func sumOf(payload []byte) [16]byte {
	sum := sha256.Sum256(payload)
	return [16]byte(sum[:16])
}

// configurationView is what is known of a Configuration.
type configurationView struct {
	version string
	answers []handlerAnswer // in the order of their endpoints
	absent  time.Time       // since when there is no handler of the name; zero: there is one
	broker  brokerState
	refused string // why the core refuses what is published
	now     time.Time
	grace   time.Duration
}

// handlerAnswer is what a handler says.
type handlerAnswer struct {
	endpoint       string
	state, message string            // as HandlerEndpoint has them; empty: it was asked, and has not answered yet
	devices        map[string][]byte // payloads by the names of instances
	unsure         time.Time         // since when devices may be out of date; zero: they are what the handler says
}

// publishPlan is what is to be published.
type publishPlan struct {
	put    []instancePut
	remove []string
	report []byte // nil: it is as it is to be; empty: it is removed
	again  time.Time
}

type instancePut struct {
	name    string
	payload []byte
}

// plan compares the handlers' lists with the broker's instances. A device is present while a handler finds it, and for the grace
// period after a handler that found it became unreachable. Instances that this program has not published are removed only when the
// lists of all handlers are known, or when there has been no handler for the grace period and this program's own report says that
// there was one.
func (v configurationView) plan() (p publishPlan) {
	want := map[string][]byte{}
	settled := len(v.answers) > 0
	if _, ours := v.lastReport(); ours && !v.absent.IsZero() && v.unknown() {
		if until := v.absent.Add(v.grace); v.now.Before(until) {
			p.again = until
		} else {
			settled = true
		}
	}
	for _, a := range v.answers {
		if until := a.unsure.Add(v.grace); !a.unsure.IsZero() {
			if !v.now.Before(until) {
				continue
			}
			settled = false
			if p.again.IsZero() || until.Before(p.again) {
				p.again = until
			}
		}
		for name, payload := range a.devices {
			if _, ok := want[name]; !ok {
				want[name] = payload
			}
		}
	}
	for name, payload := range want {
		if i, ok := v.broker.instances[name]; !ok || i.sum != sumOf(payload) {
			p.put = append(p.put, instancePut{name, payload})
		}
	}
	slices.SortFunc(p.put, func(a, b instancePut) int { return cmp.Compare(a.name, b.name) })
	for name, i := range v.broker.instances {
		if _, ok := want[name]; !ok && (i.ours || settled) {
			p.remove = append(p.remove, name)
		}
	}
	slices.Sort(p.remove)
	p.report = v.report(settled || !v.unknown())
	return p
}

// lastReport returns the report that the broker has. ours: this program has published it; only its reports name endpoints.
func (v configurationView) lastReport() (last resource.HandlerReport, ours bool) {
	err := json.Unmarshal(v.broker.report, &last)
	return last, err == nil && len(last.Endpoints) > 0
}

// unknown reports whether the broker has an instance that this program has not published since it was connected.
func (v configurationView) unknown() bool {
	for _, i := range v.broker.instances {
		if !i.ours {
			return true
		}
	}
	return false
}

// report returns the report to publish; nil: none. For a Configuration whose handler never registered here it is nil, since another
// client may publish one. After the last handler has gone, the report is kept until the instances are removed: after a restart it
// is the only sign that this program has published them.
func (v configurationView) report(removed bool) []byte {
	if len(v.answers) == 0 {
		switch last, ours := v.lastReport(); {
		case !ours || v.absent.IsZero():
			return nil
		case removed:
			return []byte{}
		default:
			last.Version, last.State, last.Message = v.version, resource.HandlerMissing, "the handler is not there any more"
			for i := range last.Endpoints {
				last.Endpoints[i].State, last.Endpoints[i].Message = resource.HandlerFailing, last.Message
			}
			return v.changed(last)
		}
	}
	r := resource.HandlerReport{Version: v.version}
	for _, a := range v.answers {
		if a.state == "" {
			continue
		}
		r.Endpoints = append(r.Endpoints, resource.HandlerEndpoint{Endpoint: a.endpoint, State: a.state, Message: truncateMessage(a.message, maxMessage)})
	}
	if len(r.Endpoints) == 0 {
		return nil // no handler has answered yet
	}
	for _, state := range []string{resource.HandlerFailing, resource.HandlerRefused, resource.HandlerAccepted} {
		for _, e := range r.Endpoints {
			if e.State == state {
				r.State, r.Message = state, e.Message
			}
		}
	}
	if v.refused != "" {
		r.State, r.Message = resource.HandlerFailing, truncateMessage("the core refuses instances: "+v.refused, maxMessage)
	}
	return v.changed(r)
}

// changed returns the report, or nil if the broker has it already.
func (v configurationView) changed(r resource.HandlerReport) []byte {
	payload, err := json.Marshal(r)
	for err == nil && len(payload) > resource.MaxDiscovered {
		r.Endpoints = r.Endpoints[:len(r.Endpoints)/2]
		payload, err = json.Marshal(r)
	}
	if err != nil || bytes.Equal(payload, v.broker.report) {
		return nil
	}
	return payload
}

func truncateMessage(text string, n int) string {
	if len(text) > n {
		text = text[:n-3] + "…"
	}
	return strings.ToValidUTF8(text, "�")
}

// view is what is known of c now.
func (d *discovery) view(c *configuration) configurationView {
	d.mu.Lock()
	defer d.mu.Unlock()
	on := d.onBroker(c.name)
	v := configurationView{
		version: c.request.Version, absent: c.absent, refused: c.refused, now: time.Now(), grace: d.o.Config.Handlers.Grace,
		broker: brokerState{instances: maps.Clone(on.instances), report: on.report},
	}
	for _, a := range c.calls {
		v.answers = append(v.answers, a.handlerAnswer)
	}
	slices.SortFunc(v.answers, func(a, b handlerAnswer) int { return cmp.Compare(a.endpoint, b.endpoint) })
	return v
}

// publish keeps c's instances and report on the broker up to date until ctx ends.
func (d *discovery) publish(ctx context.Context, c *configuration) {
	pace := rate.NewLimiter(publishPerSecond, publishBurst)
	timer := time.NewTimer(0)
	defer timer.Stop()
	failures := 0
	for {
		select {
		case <-ctx.Done():
			return
		case <-c.changed:
		case <-timer.C:
		}
		node, connection, settled := d.bus.connection()
		if node == "" {
			continue // a new connection wakes this
		}
		if wait := time.Until(settled); wait > 0 {
			timer.Reset(wait)
			continue
		}
		p := d.view(c).plan()
		err := d.apply(ctx, c, p, node, connection, pace)
		switch {
		case ctx.Err() != nil:
			return
		case err != nil:
			timer.Reset(d.o.Timing.Retry.Spread(failures))
			failures++
		default:
			failures = 0
			if !p.again.IsZero() {
				timer.Reset(time.Until(p.again))
			}
		}
		if !sleepUnless(ctx, gatherTime, nil) {
			return
		}
	}
}

// apply publishes a plan, and notes what the core has stored. It returns the first error, and publishes the rest all the same.
func (d *discovery) apply(ctx context.Context, c *configuration, p publishPlan, node string, connection int, pace *rate.Limiter) error {
	window := make(chan struct{}, publishWindow)
	results := make(chan error, len(p.put)+len(p.remove)+1)
	count := 0
	send := func(a topics.Address, payload []byte) bool {
		select {
		case window <- struct{}{}:
		case <-ctx.Done():
			return false
		}
		count++
		d.bus.mqtt.PublishAsync(client.Message{Topic: a.String(), Payload: payload, QoS: 1, Retain: true}, func(err error) {
			if err == nil {
				d.stored(a, payload, connection)
			}
			results <- err
			<-window
		})
		return true
	}
	for _, name := range p.remove {
		if !send(topics.Address{Node: node, Kind: topics.KindInstance, Device: c.name, Name: name}, nil) {
			return ctx.Err()
		}
	}
	for _, i := range p.put {
		if pace.Wait(ctx) != nil || !send(topics.Address{Node: node, Kind: topics.KindInstance, Device: c.name, Name: i.name}, i.payload) {
			return ctx.Err()
		}
	}
	if p.report != nil && !send(topics.Address{Node: node, Kind: topics.KindDiscoveryHandler, Device: c.name}, p.report) {
		return ctx.Err()
	}
	var first error
	for range count {
		select {
		case err := <-results:
			first = cmp.Or(first, err)
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	d.refused(c, first)
	return first
}

// stored notes what the core has stored, unless there was another connection since.
func (d *discovery) stored(a topics.Address, payload []byte, connection int) {
	if _, now, _ := d.bus.connection(); now != connection {
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	on := d.onBroker(a.Device)
	switch {
	case a.Kind == topics.KindDiscoveryHandler:
		on.report = payload
	case len(payload) == 0:
		delete(on.instances, a.Name)
	default:
		on.instances[a.Name] = brokerInstance{sum: sumOf(payload), ours: true}
	}
}

// refused notes whether the core refuses what is published, for the report.
func (d *discovery) refused(c *configuration, err error) {
	why := ""
	var refused *client.Refused
	if errors.As(err, &refused) {
		why = cmp.Or(refused.Reason, fmt.Sprintf("reason code %#x", refused.Code))
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if why != c.refused {
		if why != "" {
			d.log.Warn().Str("configuration", c.name).Msg("the core refuses instances: " + why)
		}
		c.refused = why
		signalChange(c.changed)
	}
}
