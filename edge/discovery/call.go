// SPDX-License-Identifier: Apache-2.0

package discovery

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"hash/maphash"
	"maps"
	"slices"
	"strings"
	"time"

	"golang.org/x/time/rate"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/status"

	"github.com/edgebus/edgebus/edge/discovery/handler"
	"github.com/edgebus/edgebus/edge/discovery/wire"
	"github.com/edgebus/edgebus/topics/resource"
)

// handlerCall is the call of one handler for one version of one Configuration. discovery.mu guards what is below the line.
type handlerCall struct {
	d          *discovery
	c          *configuration
	e          *endpoint
	version    string
	details    map[string]string
	text       string
	properties map[string][]byte
	pace       *rate.Limiter // of what the handler sends
	seed       maphash.Seed

	ctx  context.Context
	stop context.CancelFunc

	handlerAnswer
}

const (
	// A handler may send paceBurst times paceBytes at once, and pacePerSecond times as many each second: a list of paceBytes or less
	// counts as one.
	paceBytes     = 4 << 10
	pacePerSecond = 100
	paceBurst     = wire.MaxResponse/paceBytes + 100
	// floodDelay is how long a handler must have waited for its list to be read to count as one that sends too much.
	floodDelay = 200 * time.Millisecond
	// refusedPause is the pause after a handler has refused the details, unless it registers again.
	refusedPause = 10 * time.Minute
	// wakePause is the shortest pause before a handler is asked again.
	wakePause = 100 * time.Millisecond
)

// newCall starts an ask of e. It replaces before, if that is not nil, whose devices are kept for a while. mu is held.
func (d *discovery) newCall(c *configuration, e *endpoint, before *handlerCall) *handlerCall {
	a := &handlerCall{
		d: d, c: c, e: e, version: c.request.Version, details: c.request.Details, text: c.request.Text(), properties: c.properties(),
		pace: rate.NewLimiter(pacePerSecond, paceBurst), seed: maphash.MakeSeed(), handlerAnswer: handlerAnswer{endpoint: e.key, unsure: time.Now()},
	}
	if before != nil {
		before.stop()
		a.devices = before.devices
	}
	a.ctx, a.stop = context.WithCancel(d.ctx)
	d.g.Go(func() error {
		a.run()
		return nil
	})
	return a
}

// run calls the handler again and again until a is stopped.
func (a *handlerCall) run() {
	failures := 0
	for a.ctx.Err() == nil {
		a.d.mu.Lock()
		woken := a.e.woken
		a.d.mu.Unlock()
		begun := time.Now()
		err := a.callHandler()
		if a.ctx.Err() != nil {
			return
		}
		refused := a.failed(err)
		if time.Since(begun) > a.d.o.Timing.Retry.Max {
			failures = 0
		}
		pause := a.d.o.Timing.Retry.Spread(failures)
		if failures++; refused {
			pause = refusedPause
		}
		if !sleepUnless(a.ctx, wakePause, nil) || !sleepUnless(a.ctx, pause-wakePause, woken) {
			return
		}
		select {
		case <-woken:
			failures = 0 // it has begun anew, and may not be ready yet
			a.awaitConnection()
		default:
		}
	}
}

// awaitConnection gives the connection to a handler that has registered again the time that a new one has: until it is there, calls fail
// with the error of the last attempt.
func (a *handlerCall) awaitConnection() {
	if a.e.conn == nil {
		return
	}
	ctx, cancel := context.WithTimeout(a.ctx, a.d.o.Timing.ProbeTimeout)
	defer cancel()
	_ = awaitReady(ctx, a.e.conn) // the call says what is wrong
}

// sleepUnless waits for a while, or until woken is closed. It returns false when ctx has ended.
func sleepUnless(ctx context.Context, pause time.Duration, woken <-chan struct{}) bool {
	timer := time.NewTimer(pause)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-woken:
	case <-timer.C:
	}
	return true
}

// callHandler calls the handler, and takes its lists until the call ends.
func (a *handlerCall) callHandler() error {
	ctx, cancel := context.WithCancelCause(a.ctx)
	defer cancel(nil)
	silence := time.AfterFunc(a.d.o.Timing.Silence, func() { a.silent(ctx) })
	defer silence.Stop()
	if a.e.program != nil {
		told := ""
		ctx := handler.WithTell(ctx, func(message string) { told = message })
		found := func(devices []handler.Device) {
			l := a.newList()
			l.told = told
			for _, d := range devices {
				l.add(d, nil)
			}
			a.found(ctx, l, false)
		}
		if r, ok := a.e.program.(handler.Resumer); ok {
			return handler.CallResumer(ctx, r, a.text, a.properties, a.known(ctx), found)
		}
		return handler.Call(ctx, a.e.program, a.text, a.properties, found)
	}
	a.d.g.Go(func() error {
		a.probe(ctx, cancel)
		return nil
	})
	var last uint64
	listed := false
	err := wire.Discover(ctx, a.e.conn, a.e.dialled.Contract, wire.Request{Details: a.text, DetailsMap: a.details, Properties: a.properties}, func(b []byte) error {
		flood, err := a.paced(ctx, len(b))
		if err != nil {
			return err
		}
		sum := maphash.Bytes(a.seed, b)
		if listed && sum == last && !flood {
			return nil
		}
		l := a.newList()
		l.told = wire.ToldText(b)
		if err := wire.EachDevice(b, l.add); err != nil {
			return fmt.Errorf("it has sent an invalid list of devices: %w", err)
		}
		listed, last = true, sum
		a.found(ctx, l, flood)
		return nil
	})
	if cause := context.Cause(ctx); cause != nil && a.ctx.Err() == nil {
		return cause
	}
	return err
}

// known are the devices that were found for the Configuration before, by this process or, as the broker has them, by an earlier one.
func (a *handlerCall) known(ctx context.Context) (list []handler.Device) {
	for { // what is retained arrives after the request, on the connection that has a will
		_, connection, settled := a.d.bus.connection()
		if !sleepUnless(ctx, max(time.Until(settled), gatherTime), nil) {
			return nil
		}
		if node, now, _ := a.d.bus.connection(); node != "" && now == connection {
			break
		}
	}
	a.d.mu.Lock()
	defer a.d.mu.Unlock()
	payloads := map[string][]byte{}
	for name, i := range a.d.onBroker(a.c.name).instances {
		payloads[name] = i.payload
	}
	maps.Copy(payloads, a.devices)
	for _, payload := range payloads {
		var d resource.DiscoveredDevice
		if len(payload) > 0 && json.Unmarshal(payload, &d) == nil {
			list = append(list, handler.Device{ID: d.ID, Properties: d.Properties})
		}
	}
	return list
}

// paced waits until a list of so many bytes may be taken. flood: the handler sends more than that, and waits itself meanwhile.
func (a *handlerCall) paced(ctx context.Context, size int) (flood bool, err error) {
	r := a.pace.ReserveN(time.Now(), max(1, size/paceBytes))
	delay := r.Delay()
	if delay <= 0 {
		return false, nil
	}
	timer := time.NewTimer(delay)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return true, ctx.Err()
	case <-timer.C:
		return delay > floodDelay || a.pace.Tokens() < 1, nil
	}
}

var errStalled = errors.New("it does not accept connections: it has stalled, or its host is away")

// probe ends the call when the handler no longer accepts a connection. A handler that has stopped, or whose host is gone, is as
// silent as one without news, and gRPC servers close connections that ping too often.
func (a *handlerCall) probe(ctx context.Context, cancel context.CancelCauseFunc) {
	t := time.NewTicker(a.d.o.Timing.Probe)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-t.C:
		}
		if err := a.connect(ctx); err != nil && ctx.Err() == nil {
			cancel(err)
			return
		}
	}
}

func (a *handlerCall) connect(ctx context.Context) error {
	conn, err := a.e.probe()
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	ctx, cancel := context.WithTimeout(ctx, a.d.o.Timing.ProbeTimeout)
	defer cancel()
	return awaitReady(ctx, conn)
}

func awaitReady(ctx context.Context, conn *grpc.ClientConn) error {
	for {
		conn.Connect()
		state := conn.GetState()
		if state == connectivity.Ready {
			return nil
		}
		if !conn.WaitForStateChange(ctx, state) {
			return errStalled
		}
	}
}

// silent treats a handler that sends nothing for a while as one that finds nothing.
func (a *handlerCall) silent(ctx context.Context) {
	a.d.mu.Lock()
	defer a.d.mu.Unlock()
	connected := a.e.conn == nil || a.e.conn.GetState() == connectivity.Ready
	if ctx.Err() == nil && connected && !a.unsure.IsZero() {
		a.report(resource.HandlerAccepted, "it was asked, and has found nothing yet")
	}
}

// deviceList is one that a handler has sent. A device that breaks a rule is left out and named in a problem; the others are there.
type deviceList struct {
	limit    int
	shared   bool
	devices  map[string][]byte            // payloads by the names of instances
	said     map[string]map[string]string // the properties of the devices, by the same names
	beyond   int                          // devices after the first limit
	problems int
	first    []error // of the problems
	told     string  // what else the handler says, which is no problem of its
}

func (a *handlerCall) newList() *deviceList {
	return &deviceList{limit: a.d.o.Config.Limits.Devices, shared: a.e.shared, devices: map[string][]byte{}, said: map[string]map[string]string{}}
}

// add adds a device, or notes what is wrong with it.
func (l *deviceList) add(d wire.Device, wrong error) {
	if len(l.devices) >= l.limit {
		l.beyond++
		return
	}
	name, payload := resource.DiscoveredName(d.ID), []byte(nil)
	if wrong == nil {
		payload, wrong = devicePayload(d, l.shared)
	}
	if first, twice := l.devices[name]; twice && wrong == nil {
		if bytes.Equal(first, payload) {
			return // it is one device, which was announced twice
		}
		wrong = fmt.Errorf("two devices have the id %.80q%s: the first one counts", d.ID, describeDifference(l.said[name], d.Properties))
	}
	if wrong == nil {
		l.devices[name], l.said[name] = payload, d.Properties
		return
	}
	if l.problems++; len(l.first) < 3 {
		l.first = append(l.first, wrong)
	}
}

// describeDifference names a property in which two devices differ, for people who look for them: their topics or addresses, if they have some.
func describeDifference(a, b map[string]string) string {
	var names []string
	for name := range a {
		names = append(names, name)
	}
	for name := range b {
		names = append(names, name)
	}
	slices.Sort(names)
	names = slices.DeleteFunc(names, func(name string) bool { return a[name] == b[name] })
	where := slices.IndexFunc(names, func(name string) bool { return strings.HasSuffix(name, "TOPIC") || strings.HasSuffix(name, "ADDRESS") })
	if len(names) == 0 {
		return ""
	}
	name := names[max(where, 0)]
	return fmt.Sprintf(" (%s is %.80q and %.80q)", name, a[name], b[name])
}

// message says what is wrong with the list; empty: nothing.
func (l *deviceList) message() string {
	var texts []string
	if l.beyond > 0 {
		texts = append(texts, fmt.Sprintf("it finds more than %d devices (limits.devices): the first ones count, and %d are left out", l.limit, l.beyond))
	}
	for _, err := range l.first {
		texts = append(texts, err.Error())
	}
	if more := l.problems - len(l.first); more > 0 {
		texts = append(texts, fmt.Sprintf("and %d more devices are left out", more))
	}
	return strings.Join(texts, "; ")
}

// found takes a list of devices.
func (a *handlerCall) found(ctx context.Context, l *deviceList, flood bool) {
	message := l.message()
	if flood {
		message = strings.TrimPrefix(message+"; it sends lists faster than they are read", "; ")
	}
	a.d.mu.Lock()
	defer a.d.mu.Unlock()
	if ctx.Err() != nil {
		return
	}
	if !a.unsure.IsZero() {
		on := a.d.onBroker(a.c.name).instances
		for name, i := range on { // what an earlier process published is not needed any more
			i.payload = nil
			on[name] = i
		}
	}
	a.devices, a.unsure, a.e.seen = l.devices, time.Time{}, time.Now()
	if message == "" {
		a.report(resource.HandlerAccepted, l.told)
	} else {
		a.report(resource.HandlerFailing, message)
	}
}

// report notes how the handler is. discovery.mu is held.
func (a *handlerCall) report(state, message string) {
	if state != resource.HandlerAccepted && (state != a.state || message != a.message) {
		a.d.log.Warn().Str("configuration", a.c.name).Str("handler", a.e.name).Str("endpoint", a.e.key).Str("state", state).Msg(message)
	}
	a.state, a.message = state, message
	signalChange(a.c.changed)
}

// devicePayload is a device as it is published, in the form that the core stores.
func devicePayload(d wire.Device, shared bool) ([]byte, error) {
	found := resource.DiscoveredDevice{ID: d.ID, Shared: shared, Properties: d.Properties}
	for _, m := range d.Mounts {
		found.Mounts = append(found.Mounts, resource.InstanceMount(m))
	}
	for _, s := range d.DeviceSpecs {
		found.DeviceSpecs = append(found.DeviceSpecs, resource.InstanceDevice(s))
	}
	if err := found.Validate(); err != nil {
		return nil, fmt.Errorf("the device %.80q: %w", d.ID, err)
	}
	payload, err := json.Marshal(found)
	if err == nil && len(payload) > resource.MaxDiscovered {
		err = fmt.Errorf("the device %.80q has %d bytes; at most %d are taken", d.ID, len(payload), resource.MaxDiscovered)
	}
	return payload, err
}

// failed notes why the call has ended, and reports whether the handler has refused the details.
func (a *handlerCall) failed(err error) (refused bool) {
	state, message := resource.HandlerFailing, ""
	switch s := status.Convert(err); {
	case err == nil:
		message = "it has ended the answer"
	case handler.IsInvalidArgument(err):
		state, message = resource.HandlerRefused, err.Error()
	case s.Code() == codes.InvalidArgument:
		state, message = resource.HandlerRefused, s.Message()
	case s.Code() == codes.Unknown && a.e.program != nil:
		message = err.Error()
	default:
		message = s.Message()
	}
	a.d.mu.Lock()
	defer a.d.mu.Unlock()
	if a.unsure.IsZero() {
		a.unsure = time.Now()
	}
	a.report(state, message)
	return state == resource.HandlerRefused
}
