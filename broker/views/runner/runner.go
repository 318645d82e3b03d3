// SPDX-License-Identifier: Apache-2.0

package runner

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"maps"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rs/zerolog"

	"github.com/edgebus/edgebus/broker"
	"github.com/edgebus/edgebus/broker/client"
	"github.com/edgebus/edgebus/broker/daemon/metrics"
	"github.com/edgebus/edgebus/broker/views"
	"github.com/edgebus/edgebus/topics"
)

// View is a view that is switched on.
type View struct {
	// Name is the view's, as its user view-{name} has it.
	Name string
	// PerNode: the view has a connection of its own for each node. New gets the node's name then, and an empty one otherwise.
	PerNode bool
	New     func(node string) views.View
	// Selects says which Devices are shown; nil: all.
	Selects func(views.Node, *views.Device) bool
	Peer    Peer
	// Place says where the view publishes: when it changes, what was published at the place before is cleared there.
	Place string
	// Settings are what Options.Restore makes the view of after a restart. They hold no secret.
	Settings json.RawMessage
}

// Peer is the broker that a view speaks at.
type Peer struct {
	Server   string // empty: the tree's own
	User     string
	Secret   func() (string, error) // the password, asked for at each connect; nil: none
	ClientID string                 // empty: edgebus-{node or hub}-{name}
	TLS      *tls.Config
	Roots    func() *x509.CertPool
}

// Options are what views run with.
type Options struct {
	Node string // on which the program is; empty on the hub
	Dir  string // the data directory
	// Dial connects to the tree's own broker as a user.
	Dial func(broker.Identity) net.Conn
	// Retained returns the tree's retained messages by a filter, as broker.Tree does.
	Retained func(filter string) func(max int) []broker.Message
	// Past returns what a Device's properties were since a time; nil: nobody knows.
	Past func(ctx context.Context, node, device string, since time.Time) ([]views.Sample, error)
	// Rejected is told which Device a view can't show, and why; nil: nobody is.
	Rejected func(view string, d *views.Device, reason string)
	// Restore makes a view of View.Settings, to clear what it has published.
	Restore func(name string, settings json.RawMessage) (View, error)
	Log     zerolog.Logger
}

// Views are the views of a hub or node.
type Views struct {
	o       Options
	running []*runningView
	old     []*record // of views that are switched off, or are elsewhere now

	mu        sync.Mutex
	uncleared map[string]unclearedView // by the record's path
}

// runningView is a view that is switched on, at its peers: one, or one for each node.
type runningView struct {
	View
	o        *Options
	log      zerolog.Logger
	record   *record
	tree     *client.Client // of the tree's own broker, for what the view wants of the tree
	counters counters

	mu    sync.Mutex
	ctx   context.Context // nil: it doesn't run yet
	group *sync.WaitGroup
	peers map[string]*peer // by node
}

// counters are of a view at all its peers.
type counters struct {
	published, refused, received, connections, failures atomic.Int64
}

// New makes the views that are switched on. The tree is followed from now on.
func New(o Options, list []View) (*Views, error) {
	v := &Views{o: o, uncleared: make(map[string]unclearedView)}
	paths := make(map[string]bool)
	for _, one := range list {
		r, damage := openRecord(o.Dir, one)
		if damage != nil {
			o.Log.Error().Err(damage).Str("view", one.Name).Msg("the record of a view can't be read: it is begun anew")
		}
		paths[r.path] = true
		log := o.Log.With().Str("view", one.Name).Logger()
		run := &runningView{View: one, o: &v.o, log: log, record: r, peers: make(map[string]*peer)}
		var err error
		if run.tree, err = newTreeClient(o, one.Name, log); err != nil {
			return nil, err
		}
		v.running = append(v.running, run)
	}
	var damaged error
	if v.old, damaged = otherRecords(o.Dir, paths); damaged != nil {
		o.Log.Error().Err(damaged).Msg("the record of a view that was switched off can't be read: what it has published stays at its peer; clear it there, and delete the file")
	}
	return v, nil
}

// treeIdentity is the user of a view at the tree's own broker.
func treeIdentity(node, name string) broker.Identity {
	nodes := []string{node}
	if node == "" {
		nodes = []string{"*"}
	}
	return broker.Identity{User: "view-" + name, Roles: []topics.Role{topics.RoleOperator}, Nodes: nodes}
}

func newTreeClient(o Options, name string, log zerolog.Logger) (*client.Client, error) {
	return client.New(client.Options{
		Servers: []string{ownServer}, ClientID: "view-" + name + ".tree", CleanStart: true, Dial: ownDial(o, name), Log: log.Level(zerolog.WarnLevel),
	})
}

// ownServer stands for the tree's own broker, to which ownDial connects.
const ownServer = "mqtt://program"

func ownDial(o Options, name string) func(context.Context, string, string) (net.Conn, error) {
	return func(context.Context, string, string) (net.Conn, error) {
		return o.Dial(treeIdentity(o.Node, name)), nil
	}
}

// Wants reports whether messages of a topic are needed.
func (v *Views) Wants(topic string) bool {
	if len(v.running) == 0 {
		return false
	}
	_, _, wanted := v.kindOf(topic)
	return wanted
}

// kindOf says of which node a topic is, and whether it is of an event.
func (v *Views) kindOf(topic string) (node string, event, wanted bool) {
	a, err := topics.Parse(topic)
	if err != nil {
		return "", false, false
	}
	event = a.Kind == topics.KindEvents
	return a.Node, event, event || views.MadeOf(a.Kind) && (v.o.Node == "" || a.Kind != topics.KindState)
}

// Follow takes the messages that the tree publishes, on their way.
func (v *Views) Follow(m broker.Message) {
	if len(v.running) == 0 {
		return
	}
	node, event, wanted := v.kindOf(m.Topic)
	if !wanted {
		return
	}
	for _, run := range v.running {
		run.peer(node).inbox.put(m, event)
	}
}

// peer returns the peer to which a node is shown.
func (r *runningView) peer(node string) *peer {
	if !r.PerNode {
		node = ""
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	p := r.peers[node]
	if p == nil {
		p = newPeer(r, node)
		r.peers[node] = p
		if r.ctx != nil {
			r.start(p)
		}
	}
	return p
}

// start runs a peer. The caller holds the lock.
func (r *runningView) start(p *peer) {
	ctx := r.ctx
	r.group.Go(func() {
		p.run(ctx)
		if ctx.Err() == nil { // its node is gone
			r.mu.Lock()
			defer r.mu.Unlock()
			delete(r.peers, p.node)
		}
	})
}

// run runs a view at its peers.
func (r *runningView) run(ctx context.Context) {
	var group sync.WaitGroup
	serving, stop := context.WithCancel(context.WithoutCancel(ctx)) // what the view wants at its end is done
	group.Go(func() { _ = r.tree.Run(serving) })
	var peers sync.WaitGroup
	r.mu.Lock()
	r.ctx, r.group = ctx, &peers
	for _, p := range r.peers {
		r.start(p)
	}
	r.mu.Unlock()
	if r.PerNode {
		r.findNodes(ctx)
	} else {
		r.peer("")
	}
	<-ctx.Done()
	peers.Wait()
	stop()
	group.Wait()
}

// findNodes has a peer for each node that the tree has Devices of.
func (r *runningView) findNodes(ctx context.Context) {
	read := r.o.Retained(topics.Address{Node: anyNode(r.o.Node), Kind: topics.KindMembership}.String())
	for list := read(snapshotBatch); len(list) > 0 && ctx.Err() == nil; list = read(snapshotBatch) {
		for _, m := range list {
			if a, err := topics.Parse(m.Topic); err == nil {
				r.peer(a.Node)
			}
		}
	}
}

const snapshotBatch = 256

func anyNode(node string) string {
	if node == "" {
		return "+"
	}
	return node
}

// unclearedView says why what a view has published can't be cleared.
type unclearedView struct{ view, problem string }

// Run runs the views until the context ends.
func (v *Views) Run(ctx context.Context) error {
	var group sync.WaitGroup
	before := make(map[string]*sync.WaitGroup) // clearing what a view has published by other settings, once
	for _, run := range v.running {
		before[run.Name] = new(sync.WaitGroup)
	}
	for _, r := range v.old {
		tried := func() {}
		if wait := before[r.View]; wait != nil {
			wait.Add(1)
			tried = sync.OnceFunc(wait.Done)
		}
		group.Go(func() { v.clearLeftovers(ctx, r, tried) })
	}
	for _, run := range v.running {
		group.Go(func() {
			cleared, most := make(chan struct{}), time.NewTimer(clearFirst)
			defer most.Stop()
			go func() { defer close(cleared); before[run.Name].Wait() }()
			select {
			case <-cleared:
			case <-most.C:
			case <-ctx.Done():
			}
			run.run(ctx)
		})
	}
	group.Wait()
	return nil
}

// Failing says of each view that isn't well what is wrong.
func (v *Views) Failing() map[string]string {
	failing := make(map[string]string)
	v.mu.Lock()
	for _, path := range slices.Sorted(maps.Keys(v.uncleared)) {
		u := v.uncleared[path]
		name := u.view + " (switched off)"
		failing[name] = strings.TrimPrefix(failing[name]+"; "+u.problem, "; ")
	}
	v.mu.Unlock()
	for _, run := range v.running {
		var texts []string
		for _, p := range run.list() {
			if why := p.problem(); why != "" {
				texts = append(texts, why)
			}
		}
		if len(texts) > 0 {
			slices.Sort(texts)
			failing[run.Name] = strings.Join(texts[:min(len(texts), 3)], "; ")
		}
	}
	return failing
}

func (r *runningView) list() []*peer {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Collect(maps.Values(r.peers))
}

// viewStats are the figures of all views, by name.
type viewStats struct{ published, refused, received, connections, failures, dropped, connected, devices, retained map[string]int64 }

func (v *Views) stats() viewStats {
	s := viewStats{}
	for _, m := range []*map[string]int64{&s.published, &s.refused, &s.received, &s.connections, &s.failures, &s.dropped, &s.connected, &s.devices, &s.retained} {
		*m = make(map[string]int64)
	}
	for _, run := range v.running {
		c := &run.counters
		s.published[run.Name], s.refused[run.Name], s.received[run.Name] = c.published.Load(), c.refused.Load(), c.received.Load()
		s.connections[run.Name], s.failures[run.Name] = c.connections.Load(), c.failures.Load()
		for _, p := range run.list() {
			p.inbox.mu.Lock()
			s.dropped[run.Name] += p.inbox.dropped
			p.inbox.mu.Unlock()
			if p.state.connected.Load() {
				s.connected[run.Name]++
			}
			s.devices[run.Name] += p.state.devices.Load()
			s.retained[run.Name] += p.state.retained.Load()
		}
	}
	return s
}

// Register registers the metrics of views, if there are any.
func (v *Views) Register(r metrics.Registry) {
	if len(v.running) == 0 {
		return
	}
	g := metrics.NewGroup("views", v.stats)
	g.GaugeBy("view", "connected", "Connections of the view to its peers.", func(s viewStats) map[string]int64 { return s.connected })
	g.GaugeBy("view", "devices", "Devices that the view shows.", func(s viewStats) map[string]int64 { return s.devices })
	g.GaugeBy("view", "retained_messages", "Retained messages that the view has at its peers.", func(s viewStats) map[string]int64 { return s.retained })
	g.CounterBy("view", "published_messages_total", "Messages that the view's peers have taken.", func(s viewStats) map[string]int64 { return s.published })
	g.CounterBy("view", "refused_messages_total", "Messages that they refused.", func(s viewStats) map[string]int64 { return s.refused })
	g.CounterBy("view", "received_messages_total", "Messages of its peers that the view listens to.", func(s viewStats) map[string]int64 { return s.received })
	g.CounterBy("view", "connections_total", "Connections to its peers that were made.", func(s viewStats) map[string]int64 { return s.connections })
	g.CounterBy("view", "failures_total", "Attempts to connect to its peers that came to nothing.", func(s viewStats) map[string]int64 { return s.failures })
	g.CounterBy("view", "dropped_events_total", "Events of devices that were dropped: more came than the peers took.", func(s viewStats) map[string]int64 { return s.dropped })
	r.MustRegister(g)
}
