// SPDX-License-Identifier: Apache-2.0

package rules

import (
	"cmp"
	"context"
	"maps"
	"net"
	"net/http"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/rs/zerolog"

	"github.com/edgebus/edgebus/broker"
	"github.com/edgebus/edgebus/cloud/objects"
	"github.com/edgebus/edgebus/cloud/store"
	"github.com/edgebus/edgebus/topics/backoff"
	"github.com/edgebus/edgebus/topics/resource"
)

// Options are what the Engine needs.
type Options struct {
	Objects *objects.Controller
	Reader  store.Reader
	Writer  store.Writer // of records: what nodes are told, and messages that wait for them

	// Tree and Presence get what is not about Rules; Presence may be nil.
	Tree     broker.Tree
	Presence broker.Presence
	// Publish, Subscribers, Keep and Take are the broker's.
	Publish     func(broker.Message)
	Subscribers func(topic string) []broker.Subscriber
	Keep        func(filters []string) error
	Take        func(window int) *broker.LinkConsumer

	// Dial judges each address before a connection to it is made; nil: any is good.
	Dial func(network, address string, c syscall.RawConn) error
	// Bytes bounds what is taken of messages that wait for servers, among all Rules.
	Bytes int
	// Age is how long a message waits for a node or a server.
	Age time.Duration
	// Timeout is how long a service of a node may take for its answer.
	Timeout time.Duration
	Log     zerolog.Logger
	Now     func() time.Time // nil: time.Now
}

// Engine carries out Rules. It is a broker.Tree and a broker.Presence, which stand before those of the options.
type Engine struct {
	broker.Tree
	broker.Presence
	o        Options
	log      zerolog.Logger // for what a client can cause any number of
	client   *http.Client
	retry    backoff.Backoff // of a server that doesn't take a message, and of a node that can't store one
	window   int             // of messages that wait for servers
	asked    pendingAnswers
	messages waitingMessages

	mu     sync.Mutex
	active map[store.Key]*activeRule
	counts map[store.Key]*ruleCount // what is not in a Rule's status yet
	dirty  chan struct{}            // has a value when there are counts
	routed chan struct{}            // has a value when the active Rules have changed
}

// New makes the Engine.
func New(o Options) *Engine {
	if o.Presence == nil {
		o.Presence = noPresence{}
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	o.Bytes = cmp.Or(o.Bytes, 64<<20)
	o.Age, o.Timeout = cmp.Or(o.Age, 24*time.Hour), cmp.Or(o.Timeout, 30*time.Second)
	dialer := &net.Dialer{Timeout: postTimeout, Control: o.Dial}
	return &Engine{
		Tree: o.Tree, Presence: o.Presence, o: o, log: o.Log.Sample(&zerolog.BurstSampler{Burst: 20, Period: 10 * time.Second}),
		client: &http.Client{
			Timeout:       postTimeout,
			Transport:     &http.Transport{DialContext: dialer.DialContext, MaxIdleConnsPerHost: 4, IdleConnTimeout: time.Minute, TLSHandshakeTimeout: postTimeout},
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		},
		retry: backoff.Backoff{Min: time.Second, Max: time.Minute}, window: forwardWindow,
		asked: pendingAnswers{byID: make(map[string]*pendingAnswer)}, messages: waitingMessages{nodes: make(map[string]*nodeQueue)},
		active: make(map[store.Key]*activeRule), counts: make(map[store.Key]*ruleCount), dirty: make(chan struct{}, 1), routed: make(chan struct{}, 1),
	}
}

type noPresence struct{}

func (noPresence) Connected(*broker.Identity)           {}
func (noPresence) Subscribed(*broker.Identity, string)  {}
func (noPresence) Disconnected(*broker.Identity, error) {}

// Load makes the Rules act that there are, and finds the messages that wait. It comes before any client can connect: the broker must miss none of their
// messages.
func (e *Engine) Load(ctx context.Context) error {
	for rule, err := range objects.List[resource.Rule](ctx, e.o.Objects, "") {
		if err != nil {
			return err
		}
		if _, _, err := e.judge(ctx, rule); err != nil {
			return err
		}
	}
	if err := e.keep(); err != nil {
		return err
	}
	return e.messages.load(ctx, e.o.Reader)
}

// Run sends messages to nodes and servers until ctx ends.
func (e *Engine) Run(ctx context.Context) error {
	var running sync.WaitGroup
	running.Go(func() { e.forward(ctx) })
	e.runMessages(ctx, &running)
	running.Wait()
	return nil
}

// keep has the broker keep what active Rules want of nodes.
func (e *Engine) keep() error {
	e.mu.Lock()
	filters := make(map[string]bool)
	for _, r := range e.active {
		for _, f := range r.filters {
			filters[f] = true
		}
	}
	e.mu.Unlock()
	wakeUp(e.routed)
	return e.o.Keep(slices.Sorted(maps.Keys(filters)))
}

// ruleCount is what a Rule has done since its status was written.
type ruleCount struct {
	succeeded, failed int64
	why               []string
}

const mostReasons = 10

// count notes how a message of a Rule went. A reason without an outcome is of a message that is tried again.
func (e *Engine) count(rule store.Key, succeeded, failed int64, why error) {
	e.mu.Lock()
	c := e.counts[rule]
	if c == nil {
		c = &ruleCount{}
		e.counts[rule] = c
	}
	c.succeeded += succeeded
	c.failed += failed
	if why != nil {
		text := why.Error()
		c.why = append(slices.DeleteFunc(c.why, func(old string) bool { return old == text }), text)
		c.why = c.why[max(0, len(c.why)-mostReasons):]
	}
	e.mu.Unlock()
	wakeUp(e.dirty)
}

func wakeUp(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}
