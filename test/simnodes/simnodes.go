// SPDX-License-Identifier: Apache-2.0

// Package simnodes simulates nodes in one process: each has the link's real machines and an MQTT connection to a hub of its own, and an
// agent that answers what the hub sends. It never links the hub, and keeps nothing on disk: a node that stops is gone.
package simnodes

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/rs/zerolog"

	"github.com/edgebus/edgebus/broker/client"
	"github.com/edgebus/edgebus/topics"
	"github.com/edgebus/edgebus/topics/link"
	"github.com/edgebus/edgebus/topics/resource"
)

// resendInterval is after how long without an answer a node repeats itself.
const resendInterval = 5 * time.Second

// Agent is called with each spec that a node is sent, in their order. It returns what the node reports after a time; nil: nothing.
type Agent func(n *Node, spec resource.RenderedSpec) (report *resource.AgentReport, after time.Duration)

// ApplyAtOnce is an Agent that applies everything at once.
func ApplyAtOnce(_ *Node, spec resource.RenderedSpec) (*resource.AgentReport, time.Duration) {
	return &resource.AgentReport{Version: "simulated", RenderedVersion: spec.RenderedVersion}, 0
}

// Options are those of all nodes of a Set.
type Options struct {
	Hub   string   // host:port
	More  []string // other addresses of the same hub, or of hubs that are one
	Agent Agent    // nil: the nodes report nothing
	// Keys are put into a node's map before it connects; nil: none.
	Keys func(n *Node)
	// Filter is what a node subscribes to besides its link, and Hear gets what comes of it; nil: nothing.
	Filter func(n *Node) string
	Hear   func(n *Node, m client.Message)
	// AtOnce is how many nodes that are not in step yet connect at once when the set starts; 0: all. A busy machine has the connections of ten
	// thousand time out before they are through, again and again.
	AtOnce int
}

// Set is a number of nodes.
type Set struct {
	Options
	Nodes []*Node

	// Faults counts what must not happen: messages that are malformed, refused or repeated, and, while Steady is set, connections
	// that are refused or lost.
	Faults atomic.Int64
	Steady atomic.Bool

	stop    context.CancelFunc
	running sync.WaitGroup
}

// Start makes nodes with these names and connects them. Stop ends them.
func Start(o Options, names ...string) (*Set, error) {
	s := &Set{Options: o}
	if err := RaiseFileLimit(uint64(len(names)) + 1000); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(context.Background())
	s.stop = cancel
	for _, name := range names {
		n := &Node{Name: name, set: s, up: link.NewOwner(link.Up, rand.Uint64), down: link.NewReplica(link.Down)}
		if o.Keys != nil {
			o.Keys(n)
		}
		s.Nodes = append(s.Nodes, n)
	}
	s.running.Go(func() { s.repeat(ctx) })
	for i, n := range s.Nodes {
		for begin := time.Now(); o.AtOnce > 0 && i%o.AtOnce == 0 && countLeft(s.Nodes[:i]) > 0 && time.Since(begin) < time.Minute; {
			time.Sleep(5 * time.Millisecond)
		}
		if err := n.Connect(); err != nil {
			s.Stop()
			return nil, err
		}
	}
	return s, nil
}

func (s *Set) servers() (all []string) {
	for _, address := range append([]string{s.Hub}, s.More...) {
		all = append(all, "mqtt://"+address)
	}
	return all
}

// RaiseFileLimit lets the process have so many files open.
func RaiseFileLimit(need uint64) error {
	var l syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &l); err != nil {
		return err
	}
	l.Cur, l.Max = max(l.Cur, need), max(l.Max, need)
	if err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &l); err != nil {
		return fmt.Errorf("%d open files are needed: %w", need, err)
	}
	return nil
}

// Stop disconnects all nodes.
func (s *Set) Stop() {
	s.stop()
	s.running.Wait()
	for _, n := range s.Nodes {
		n.begin().cancel()
	}
	for _, n := range s.Nodes {
		n.Disconnect()
	}
}

// repeat is the resend timer of all nodes.
func (s *Set) repeat(ctx context.Context) {
	tick := time.NewTicker(resendInterval / 10)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		for _, n := range s.Nodes {
			n.repeat()
		}
	}
}

// Left counts the nodes that don't know yet that the hub has all of theirs, and they all of the hub's.
func (s *Set) Left() int { return countLeft(s.Nodes) }

func countLeft(nodes []*Node) (left int) {
	for _, n := range nodes {
		if !n.InStep() {
			left++
		}
	}
	return left
}

// Node is a simulated node.
type Node struct {
	Name string
	set  *Set

	mu      sync.Mutex
	c       *client.Client // nil: it is not to be connected
	session session
	up      *link.Owner
	down    *link.Replica
	last    time.Time // it said or heard something
	heard   bool      // anything of the cloud's map in this connection
	asked   []byte    // the last spec
}

// session is one call of Run.
type session struct {
	cancel context.CancelFunc
	ended  chan struct{}
}

// Connect has a node be connected, as often as it takes.
func (n *Node) Connect() error {
	_, down := topics.SyncTopics(n.Name)
	filters := []client.Subscription{{Filter: down, QoS: 1}}
	if n.set.Filter != nil {
		filters = append(filters, client.Subscription{Filter: n.set.Filter(n)})
	}
	c, err := client.New(client.Options{
		Servers: n.set.servers(), ClientID: "node/" + n.Name, User: "node/" + n.Name, CleanStart: true, Log: zerolog.Nop(),
		Subscriptions: filters,
		OnConnect: func(context.Context, bool) error {
			n.step(func() { n.heard = false; n.up.Connect(rand.Uint64()) })
			return nil
		},
		OnDisconnect: func(error) { n.lost(); n.step(n.up.Disconnect) },
		OnConnectError: func(err error) {
			if refused := (*client.Refused)(nil); errors.As(err, &refused) {
				n.lost()
			}
		},
		OnMessage: func(got client.Message) {
			if n.set.Hear != nil && got.Topic != down {
				n.set.Hear(n, got)
				return
			}
			n.hear(got.Payload)
		},
		Backoff: client.Backoff{Min: 100 * time.Millisecond, Max: time.Second},
	})
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(context.Background())
	s := session{cancel, make(chan struct{})}
	n.mu.Lock()
	n.c, n.session = c, s
	n.mu.Unlock()
	go func() {
		defer close(s.ended)
		_ = c.Run(ctx)
	}()
	return nil
}

func (n *Node) begin() session {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.session.cancel == nil {
		return session{func() {}, nil}
	}
	return n.session
}

// Disconnect ends a node's connection until Connect, and returns when it has ended. What the node has stays.
func (n *Node) Disconnect() {
	s := n.begin()
	s.cancel()
	if s.ended != nil {
		<-s.ended
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.c, n.session = nil, session{}
}

func (n *Node) lost() {
	if n.set.Steady.Load() {
		n.set.Faults.Add(1)
	}
}

// Put writes keys of the node's own map.
func (n *Node) Put(entries ...link.Entry) {
	n.step(func() {
		for _, e := range entries {
			if _, _, err := n.up.Put(e); err != nil {
				n.set.Faults.Add(1)
			}
		}
	})
}

// Publish sends a message that is no part of the link. While the node is not connected, it is lost.
func (n *Node) Publish(m client.Message) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.c == nil {
		return
	}
	n.c.PublishAsync(m, func(err error) {
		if refused := (*client.Refused)(nil); errors.As(err, &refused) {
			n.set.Faults.Add(1)
		}
	})
}

// Report puts what the node's agent says.
func (n *Node) Report(r resource.AgentReport) {
	text, err := json.Marshal(r)
	if err != nil {
		n.set.Faults.Add(1)
		return
	}
	n.Put(link.Entry{Key: topics.Address{Kind: topics.KindAgent}.Key(), TS: time.Now().UnixMilli(), Origin: "agent", Value: text})
}

// InStep says whether both maps are known to be the same on both sides.
func (n *Node) InStep() bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.heard && n.up.InStep()
}

// step changes the machines and sends what follows.
func (n *Node) step(f func()) {
	n.mu.Lock()
	defer n.mu.Unlock()
	f()
	n.up.TakeChanges()
	n.down.TakeChanges()
	n.last = time.Now()
	if n.c == nil {
		return
	}
	up, _ := topics.SyncTopics(n.Name)
	for _, msg := range append(n.down.Messages(), n.up.Messages()...) {
		text, err := link.Encode(msg)
		if err != nil {
			n.set.Faults.Add(1)
			continue
		}
		n.c.PublishAsync(client.Message{Topic: up, Payload: text, QoS: 1}, func(err error) {
			if refused := (*client.Refused)(nil); errors.As(err, &refused) {
				n.set.Faults.Add(1)
			}
		})
	}
}

func (n *Node) hear(payload []byte) {
	msg, err := link.Decode(payload)
	if err != nil {
		n.set.Faults.Add(1)
		return
	}
	var spec []byte
	n.step(func() {
		if msg.Map == link.Up {
			if err := n.up.Step(msg); err != nil {
				n.set.Faults.Add(1)
			}
			return
		}
		n.heard = true
		n.down.Step(msg)
		if e, ok := n.down.Get(topics.Address{Kind: topics.KindSpec}.Key()); ok && string(e.Value) != string(n.asked) {
			n.asked, spec = e.Value, e.Value
		}
	})
	if spec != nil && n.set.Agent != nil {
		n.apply(spec)
	}
}

func (n *Node) apply(text []byte) {
	var spec resource.RenderedSpec
	if err := json.Unmarshal(text, &spec); err != nil {
		n.set.Faults.Add(1)
		return
	}
	report, after := n.set.Agent(n, spec)
	switch {
	case report == nil:
	case after == 0:
		n.Report(*report)
	default:
		time.AfterFunc(after, func() { n.Report(*report) })
	}
}

// repeat asks again if an answer is overdue.
func (n *Node) repeat() {
	n.mu.Lock()
	late := n.up.Waiting() && time.Since(n.last) > resendInterval
	n.mu.Unlock()
	if late {
		n.set.Faults.Add(1)
		n.step(n.up.Resend)
	}
}
