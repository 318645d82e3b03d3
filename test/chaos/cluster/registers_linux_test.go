// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/edgebus/edgebus/broker/client"
)

// operation is a read or a write of a register, as test/tools/porcupine reads it.
type operation struct {
	Key    string `json:"key"`
	Client int    `json:"client"`
	Write  bool   `json:"write"`
	Value  string `json:"value"`
	Call   int64  `json:"call"`
	Return int64  `json:"return"` // 0: nobody knows whether it was done
	By     string `json:"by"`
}

// registers are read and written over different hubs, two of them in each round: the message that is retained on a topic, and the desired value of a device, which
// the API and MQTT write and the API reads: its topic shows what the API shows some milliseconds later.
type registers struct {
	l       *load
	began   time.Time
	values  atomic.Int64
	clients atomic.Int64

	mu  sync.Mutex
	now *roundHistory
}

// roundHistory is what was done in a round.
type roundHistory struct {
	round int
	ctx   context.Context //nolint:containedctx // of the round's operations
	stop  func()
	work  sync.WaitGroup

	mu   sync.Mutex
	list []operation
}

const registerPace = 30 * time.Millisecond

func (r *registers) next(round int) {
	h := &roundHistory{round: round}
	h.ctx, h.stop = context.WithCancel(r.l.ctx)
	r.mu.Lock()
	r.now = h
	r.mu.Unlock()
	r.l.create("devices", fmt.Sprintf(`{"apiVersion":"edgebus.io/v1alpha1","kind":"Device","metadata":{"name":"d-%d"},"spec":{"nodeName":"n1","deviceModelRef":{"name":"dial"},"protocol":{"type":"virtual"}}}`, round))
	h.work.Go(func() { r.repeat(h, func(op *operation) { r.publish(h, op, h.deviceKey(), h.desired()) }) })
	for i := range 2 {
		patience := []time.Duration{2 * time.Second, 20 * time.Second}[i]
		h.work.Go(func() { r.repeat(h, func(op *operation) { r.publish(h, op, h.topic(), h.topic()) }) })
		h.work.Go(func() { r.repeat(h, func(op *operation) { r.subscribe(h, op, patience) }) })
		h.work.Go(func() { r.repeat(h, func(op *operation) { r.patch(h, op) }) })
		h.work.Go(func() { r.repeat(h, func(op *operation) { r.get(h, op, patience) }) })
	}
}

// repeat makes operations until the round ends. One without a call is none.
func (r *registers) repeat(h *roundHistory, do func(*operation)) {
	who := int(r.clients.Add(1))
	for h.ctx.Err() == nil {
		op := operation{Client: who}
		if do(&op); op.Call != 0 {
			h.mu.Lock()
			h.list = append(h.list, op)
			h.mu.Unlock()
			if op.Write && op.Return == 0 { // as porcupine has it, who doesn't know is somebody else then
				who = int(r.clients.Add(1))
			}
		}
		pauseFor(h.ctx, registerPace)
	}
}

func (r *registers) time() int64 { return time.Since(r.began).Nanoseconds() + 1 }

func (r *registers) value() string { return strconv.FormatInt(r.values.Add(1), 10) }

func (h *roundHistory) topic() string { return fmt.Sprint("registers/", h.round) }

// publish writes a retained message over a connection of its own, once.
func (r *registers) publish(h *roundHistory, op *operation, key, topic string) {
	ctx, stop := context.WithTimeout(h.ctx, 3*time.Second)
	defer stop()
	up := make(chan context.Context, 1)
	c, ended := r.l.connect(ctx, client.Options{ClientID: fmt.Sprint("writer-", op.Client), CleanStart: true, OnConnect: firstUp(up)})
	defer func() { stop(); <-ended }()
	select {
	case over := <-up:
		for range 5 {
			if over.Err() != nil {
				return
			}
			*op = operation{Key: key, Client: op.Client, Write: true, Value: r.value(), By: "mqtt", Call: r.time()}
			answer := make(chan error, 1)
			c.PublishOver(over, client.Message{Topic: topic, Payload: []byte(op.Value), QoS: 1, Retain: true}, func(err error) { answer <- err })
			select {
			case err := <-answer:
				if err != nil {
					return
				}
				op.Return = r.time()
			case <-ctx.Done():
				return
			}
			h.mu.Lock()
			h.list = append(h.list, *op)
			h.mu.Unlock()
			*op = operation{Client: op.Client}
			pauseFor(ctx, registerPace)
		}
	case <-ctx.Done():
	}
}

// subscribe reads what is retained over a new connection.
func (r *registers) subscribe(h *roundHistory, op *operation, patience time.Duration) {
	ctx, stop := context.WithTimeout(h.ctx, patience)
	defer stop()
	var called atomic.Int64
	got := make(chan string, 1)
	_, ended := r.l.connect(ctx, client.Options{
		ClientID: fmt.Sprint("reader-", op.Client), CleanStart: true, ConnectTimeout: patience, KeepAlive: 20 * time.Second, Subscriptions: []client.Subscription{{Filter: h.topic(), QoS: 1}},
		OnMessage: func(m client.Message) {
			if m.Retained {
				select {
				case got <- string(m.Payload):
				default:
				}
			}
		},
		Dial: func(ctx context.Context, network, address string) (net.Conn, error) {
			conn, err := clientDialer.DialContext(ctx, network, address)
			called.Store(r.time())
			return conn, err
		},
	})
	defer func() { stop(); <-ended }()
	select {
	case value := <-got:
		*op = operation{Key: h.topic(), Client: op.Client, Value: value, Call: called.Load(), Return: r.time(), By: "mqtt"}
	case <-ctx.Done():
	}
}

func (h *roundHistory) device() string { return fmt.Sprint("d-", h.round) }

func (h *roundHistory) deviceKey() string { return "devices/" + h.device() }

// desired is the topic of the value that the API writes.
func (h *roundHistory) desired() string {
	return "v1/nodes/n1/devices/" + h.device() + "/desired/level"
}

// patch writes a desired value, at some hub.
func (r *registers) patch(h *roundHistory, op *operation) {
	value := r.value()
	address := r.l.someHub()
	begin := operation{Key: h.deviceKey(), Client: op.Client, Write: true, Value: value, Call: r.time(), By: address}
	status, _, err := r.l.call(h.ctx, 3*time.Second, http.MethodPatch, address, "devices/"+h.device(), fmt.Sprintf(`{"spec":{"desired":{"level":%q}}}`, value))
	switch {
	case err == nil && status == http.StatusOK:
		begin.Return = r.time()
	case err == nil && status < 500, errors.Is(err, errNotDone):
		return // it was refused
	}
	*op = begin
}

// get reads the desired value, at some hub.
func (r *registers) get(h *roundHistory, op *operation, patience time.Duration) {
	address := r.l.someHub()
	begin := operation{Key: h.deviceKey(), Client: op.Client, Call: r.time(), By: address}
	status, text, err := r.l.call(h.ctx, patience, http.MethodGet, address, "devices/"+h.device(), "")
	var device struct {
		Spec struct{ Desired map[string]any }
	}
	if err != nil || status != http.StatusOK || json.Unmarshal(text, &device) != nil {
		return
	}
	if level, is := device.Spec.Desired["level"]; is {
		begin.Value = fmt.Sprint(level)
	}
	begin.Return = r.time()
	*op = begin
}

// check ends a round, and has its history checked.
func (r *registers) check() (operations int, err error) {
	h := r.now
	h.stop()
	h.work.Wait()
	var text bytes.Buffer
	for _, op := range h.list {
		line, _ := json.Marshal(op)
		text.Write(append(line, '\n'))
	}
	file := filepath.Join(r.l.c.Dir, fmt.Sprintf("history-%d.jsonl", h.round))
	if err := os.WriteFile(file, text.Bytes(), 0o600); err != nil {
		return 0, err
	}
	out, err := exec.Command(filepath.Join(filepath.Dir(r.l.c.Bin), ".tools", "linearizable"), file).CombinedOutput()
	if err != nil {
		return len(h.list), fmt.Errorf("%w: %s", err, out)
	}
	return len(h.list), os.Remove(file)
}

// firstUp has a client tell of its first connection.
func firstUp(up chan<- context.Context) func(context.Context, bool) error {
	return func(ctx context.Context, _ bool) error {
		select {
		case up <- ctx:
		default:
		}
		return nil
	}
}

// errNotDone is the error of a call that reached no hub that serves.
var errNotDone = errors.New("it was not done")

var clientDialer = &net.Dialer{LocalAddr: tcpAddress(clientAddress)}

const apiPath = "/apis/edgebus.io/v1alpha1/namespaces/default/"

// call asks a hub's API.
func (l *load) call(ctx context.Context, patience time.Duration, method, address, path, body string) (status int, text []byte, err error) {
	ctx, stop := context.WithTimeout(ctx, patience)
	defer stop()
	request, err := http.NewRequestWithContext(ctx, method, "http://"+address+apiPath+path, strings.NewReader(body))
	if err != nil {
		return 0, nil, err
	}
	request.Header.Set("Content-Type", "application/merge-patch+json")
	if method == http.MethodPost {
		request.Header.Set("Content-Type", "application/json")
	}
	response, err := l.http.Do(request)
	var dial *net.OpError
	if errors.As(err, &dial) && dial.Op == "dial" || errors.Is(err, syscall.ECONNREFUSED) {
		return 0, nil, fmt.Errorf("%w: %w", errNotDone, err)
	}
	if err != nil {
		return 0, nil, err
	}
	defer response.Body.Close()
	text, err = io.ReadAll(response.Body)
	if response.StatusCode == http.StatusServiceUnavailable && bytes.HasPrefix(text, []byte("standby of")) {
		err = errNotDone
	}
	return response.StatusCode, text, err
}

// someHub is the HTTP address of the hub that served last, or else of any.
func (l *load) someHub() string {
	i := int(l.c.owner.Load())
	if l.roll(4) == 0 {
		i = l.roll(len(l.c.each))
	}
	return l.c.each[i].http
}

// create makes an object, however long that takes.
func (l *load) create(kind, body string) {
	for l.ctx.Err() == nil {
		status, _, err := l.call(l.ctx, 3*time.Second, http.MethodPost, l.someHub(), kind, body)
		if err == nil && (status == http.StatusCreated || status == http.StatusConflict) {
			return
		}
		pauseFor(l.ctx, 50*time.Millisecond)
	}
}

func pauseFor(ctx context.Context, d time.Duration) {
	select {
	case <-time.After(d):
	case <-ctx.Done():
	}
}
