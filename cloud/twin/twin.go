// SPDX-License-Identifier: Apache-2.0

package twin

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rs/zerolog"

	"github.com/edgebus/edgebus/broker"
	"github.com/edgebus/edgebus/broker/tree"
	"github.com/edgebus/edgebus/cloud/store"
	"github.com/edgebus/edgebus/topics"
	"github.com/edgebus/edgebus/topics/link"
	"github.com/edgebus/edgebus/topics/resource"
)

const (
	maxChanges     = 4096        // changes that nodes made in one transaction, but for the last step's
	resendInterval = time.Second // how often unanswered messages are looked for
)

// Options are what Twins need.
type Options struct {
	tree.Options
	Reader   store.Reader
	Writer   store.Writer
	Watcher  store.Watcher
	Replicas store.Replicas
	Derived  store.DerivedStatuses
	// Projections are the kinds of object, beside Devices and their models, that nodes are given keys of. Project must be
	// called with the key of each object that changes, and of each that there is once after New.
	Projections []Projection
	// ForgetNode is called with the name of a deleted Node, and must clear what else the node has left. It may be nil.
	ForgetNode func(node string)
	// CreateNode makes the Node of a node that was let in and has none.
	CreateNode func(ctx context.Context, name string) error
	// Managed is the data of an object with the fields that have changed since before owned by a manager; nil: it stays as it is.
	Managed func(before store.Object, data []byte, manager string) ([]byte, error)
	// NoteVersion is the data of a Node as it is with a status; nil: it stays as it is, as without this function.
	NoteVersion func(o store.Object, s resource.NodeStatus) []byte
	// Record records an event of a Node or Device. It must not block, and may be nil.
	Record func(resource.Occurrence)
	Rand   func() uint64 // gives nonces
	Hub    Hub
	// StatusEvery is how often at most a Device's status is written.
	StatusEvery time.Duration
	// AwayAfter is how long a node is offline before its devices' statuses say so.
	AwayAfter time.Duration
	// HTTPPresence is for how long a node that speaks HTTP is present after an answer.
	HTTPPresence time.Duration
}

// Twins keep the trees of all nodes. Its methods may be called from any goroutine. What it holds is in parts, each with a file of its
// own; the exported methods of those that are embedded are its own.
type Twins struct {
	opts       Options
	sampledLog zerolog.Logger // for log lines that a node can cause any number of
	host       *tree.Host[*batch]

	*nodes
	*devices
	*documents
	*links
	*httpPresence
	*reportWatches
	desired    *desiredWrites
	deliveries *deliveryWaits
	status     *statusQueue
	statuses   *statusWriter

	loadedRev map[string]uint64 // by kind: the revision that New saw
	stats     stats
	outage    tree.StoreOutage // of the store of what nodes report
	probeNode string           // a node of whom something is stored: the outage is probed with it
}

type stats struct {
	commits, failed, links, takeovers atomic.Uint64
}

// Stats are counts since the start, for metrics.
type Stats struct {
	Commits, Steps, FailedCommits           uint64
	Nodes, Online, InStep, Devices          int
	DownKeys, UpKeys, Behind, DesiredWrites int
	UpBytes, Oversize, OfAnotherHub         int

	Links, Takeovers, Statuses  uint64
	StepsWaiting, StatusWaiting int
	Late                        int           // connected nodes that have lacked something for longer than lateAfter
	Oldest                      time.Duration // the age of the oldest key that a connected node lacks
}

// batch gathers the effects of its steps: changes to be stored, and what is published, recorded and sent after that.
type batch struct {
	now            time.Time
	refused        error                    // why nothing that nodes report can be stored, known before
	publishes      []broker.Message         // projections of objects, which are stored already, and presence
	shown          []shownReport            // what nodes reported: messages of it are made once it is stored
	reports        []broker.Message         // what nodes reported: published once it is stored
	reported       []reportedKey            // the same, for those who read it then
	linkMessages   []broker.Message         // of the links, encoded while the state is locked
	changes        int                      // number of changes that nodes made
	stored         []store.NodeChange       // what is to be stored of them
	failed, lost   error                    // why it was not stored, and why it could not be read back after that
	restored       map[*node]*link.Replica  // what was read back
	acknowledge    []func(error)            // acknowledge messages of the links
	loading        bool                     // New is loading: nothing is published or recorded
	devices        map[string]*store.Object // to be projected: as they are now, or nil where only the model changed
	models         map[modelKey]bool        // models that changed
	revisions      map[*device]uint64       // of the Devices that changed, or whose status did
	changedMembers map[*node]bool           // nodes whose membership may have changed
	activeLinks    map[*node]bool           // nodes whose link may have changes to commit, or messages to send
	spans          tree.Spans               // of what nodes reported
	deletedNodes   map[*node]bool           // nodes whose Node was deleted: what they reported is deleted, too
	events         []resource.Occurrence
	reportedEvents []resource.Occurrence // recorded once what nodes reported is stored
}

func (t *Twins) batch() *batch {
	return &batch{
		now: t.opts.Now(), devices: make(map[string]*store.Object), models: make(map[modelKey]bool),
		revisions: make(map[*device]uint64), changedMembers: make(map[*node]bool), activeLinks: make(map[*node]bool), deletedNodes: make(map[*node]bool),
	}
}

// begin makes the batch of the next steps, and finds out before whether it can be stored.
func (t *Twins) begin() *batch {
	b := t.batch()
	var over bool
	if over, b.refused = t.outage.Probe(t.probe); over {
		t.opts.Log.Info().Msg("what nodes report can be stored again")
	}
	return b
}

// probe stores nothing, in a transaction of its own.
func (t *Twins) probe() error {
	if t.probeNode == "" {
		return nil
	}
	return t.opts.Replicas.Commit(context.Background(), []store.NodeChange{{Node: t.probeNode}})
}

// publish queues a message that derives from objects. It is not made while New is loading, when nobody can subscribe.
func (b *batch) publish(m func() broker.Message) {
	if !b.loading {
		b.publishes = append(b.publishes, m())
	}
}

// New loads everything. Run must be called for anything to happen.
func New(ctx context.Context, o Options) (*Twins, error) {
	if o.ForgetNode == nil {
		o.ForgetNode = func(string) {}
	}
	if o.NoteVersion == nil {
		o.NoteVersion = func(store.Object, resource.NodeStatus) []byte { return nil }
	}
	if o.Record == nil {
		o.Record = func(resource.Occurrence) {}
	}
	if o.AwayAfter <= 0 {
		o.AwayAfter = 30 * time.Second
	}
	if o.HTTPPresence <= 0 {
		o.HTTPPresence = defaultHTTPPresence
	}
	if o.StatusEvery <= 0 {
		o.StatusEvery = 100 * time.Millisecond
	}
	t := &Twins{sampledLog: o.SampledLog()}
	t.host = tree.NewHost(&o.Options, tree.BatchStages[*batch]{
		Begin: t.begin, Full: func(b *batch) bool { return b.changes >= maxChanges }, Derive: t.derive, PublishStored: t.publishStored,
		Store: t.store, Settle: t.settle, Publish: t.publish, Finish: t.finish,
	})
	t.opts = o
	t.connectParts()
	if err := t.nodes.load(ctx); err != nil {
		return nil, err
	}
	if err := t.loadObjects(ctx); err != nil {
		return nil, err
	}
	var err, failed error
	t.loadedRev[resource.KindDevice], err = o.Derived.DeriveStatuses(resource.KindDevice, t.statuses.derivedDevice)
	t.loadedRev[resource.KindNode], failed = o.Derived.DeriveStatuses(resource.KindNode, t.statuses.derivedNode)
	return t, errors.Join(err, failed)
}

// connectParts makes the parts, empty.
func (t *Twins) connectParts() {
	opts, host := &t.opts, t.host
	t.status, t.deliveries = newStatusQueue(), newDeliveryWaits()
	t.reportWatches = &reportWatches{host: host}
	t.nodes = &nodes{
		opts: opts, host: host, status: t.status, reports: t.reportWatches, started: opts.Now(),
		byName: make(map[string]*node), registered: make(map[string]bool), labels: make(map[string]map[string]string),
	}
	t.reportWatches.nodes = t.nodes
	t.devices = &devices{
		opts: opts, nodes: t.nodes, status: t.status, deliveries: t.deliveries,
		byName: make(map[string]*device), models: make(map[modelKey]*model), unlisted: make(map[*node]bool),
	}
	t.documents = &documents{opts: opts, host: host, nodes: t.nodes, keys: make(map[store.Key]map[treeKey]bool)}
	t.httpPresence = &httpPresence{opts: opts, status: t.status, nodes: make(map[string]*httpNode)}
	t.desired = newDesiredWrites(opts, t.devices, t.deliveries)
	t.statuses = &statusWriter{
		opts: opts, host: host, nodes: t.nodes, devices: t.devices, httpPresence: t.httpPresence, desired: t.desired, queue: t.status,
	}
	t.links = &links{opts: opts, host: host, nodes: t.nodes, httpPresence: t.httpPresence, statuses: t.statuses}
}

// Run follows the store and takes steps until ctx ends. It fails when the store
// can't be read back after a failed commit: nobody knows then what is stored.
func (t *Twins) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	var wg sync.WaitGroup
	defer wg.Wait()
	defer t.desired.close() // waits for the writes that have begun: each sender gets an answer
	defer t.deliveries.close()
	defer t.host.Close()
	defer t.httpPresence.stop()
	defer cancel()
	for _, kind := range watchedKinds {
		wg.Go(func() { t.watch(ctx, kind) })
	}
	wg.Go(func() { t.statuses.run(ctx) })
	tick := time.NewTicker(resendInterval)
	defer tick.Stop()
	return t.host.Run(ctx, tree.Timer[*batch]{C: tick.C, Step: t.resend})
}

// derive derives what follows from the steps, and takes what is to be stored of the nodes' reports.
func (t *Twins) derive(b *batch) {
	t.devices.derive(b)
	if b.refused != nil {
		b.failed = b.refused
		return
	}
	b.stored = b.deletions()
	for n := range b.activeLinks {
		if j := n.up.TakeChanges(); j.Dirty {
			c, err := nodeChange(n.name, j)
			if err != nil {
				b.lost = err
				return
			}
			b.stored = append(b.stored, c)
		}
	}
}

// publishStored publishes what derives from objects, and that nodes come and go.
func (t *Twins) publishStored(b *batch) {
	outcomes := t.deliver(b.publishes)
	if len(b.revisions) > 0 {
		outcomes.Then(func(err error) { t.deliveries.note(b.revisions, err) })
	}
	b.publishes = nil
}

func (t *Twins) deliver(messages []broker.Message) *tree.DeliveryOutcomes {
	outcomes := new(tree.DeliveryOutcomes)
	for _, m := range messages {
		outcomes.Deliver(&t.opts.Options, m)
	}
	return outcomes
}

// settle makes the nodes' maps what is stored.
func (t *Twins) settle(b *batch) error {
	if b.lost != nil {
		return b.lost
	}
	for n := range b.activeLinks {
		n.up.ChangesStored()
	}
	for n, up := range b.restored {
		n.up = up
	}
	if b.failed == nil {
		b.events = append(b.events, b.reportedEvents...)
		for _, r := range b.reported {
			t.noteReported(r)
		}
		for _, r := range b.shown {
			if t.opts.Wanted(topics.TopicOf(r.node, r.entry.Key)) {
				b.reports = append(b.reports, b.spans.Mark(tree.EntryMessage(r.node, r.entry)))
			}
		}
		t.nodes.removeDeleted(b)
	} else {
		b.reports = nil
		t.retryForget(b)
	}
	b.linkMessages = t.messages(b)
	return nil
}

// publish publishes what nodes reported, and which of them are gone.
func (t *Twins) publish(b *batch) { t.deliver(append(b.publishes, b.reports...)) }

// finish acknowledges the links' messages, records the events and sends what the links have to say. A message whose changes could
// not be stored is acknowledged as well: the link protocol sends them again.
func (t *Twins) finish(b *batch) {
	for _, done := range b.acknowledge {
		done(nil)
	}
	b.spans.End(b.failed)
	for _, h := range b.events {
		t.opts.Record(h)
	}
	for _, m := range b.linkMessages {
		t.opts.Publish(m)
	}
}

// store stores what the nodes reported. If that fails, their maps are read back. The batch is lost if they can't be, either.
func (t *Twins) store(ctx context.Context, b *batch) {
	if b.failed != nil || b.lost != nil || len(b.stored) == 0 {
		return
	}
	for _, r := range b.reported {
		if r.kind == topics.KindAlarms {
			t.statuses.deriveFirst(ctx, r.device)
		}
	}
	t.stats.commits.Add(1)
	err := t.opts.Replicas.Commit(ctx, b.stored)
	if err == nil {
		t.outage.Stored()
		return
	}
	b.failed = err
	t.stats.failed.Add(1)
	t.opts.Log.Error().Err(err).Msg("what nodes report can't be stored: it is requested from them again until the store can be written")
	t.outage.Begin(err)
	t.probeNode = ""
	b.restored = make(map[*node]*link.Replica)
	for _, c := range b.stored {
		n := t.nodes.byName[c.Node]
		up, err := t.nodes.reload(ctx, n.name)
		if err != nil {
			b.lost = fmt.Errorf("what node %s reported can't be read back after a failed commit: %w", c.Node, err)
			return
		}
		b.restored[n] = up
		if reported(up) {
			t.probeNode = n.name
		}
	}
}

// messages are what the links have to say now; they are encoded while the state is locked.
func (t *Twins) messages(b *batch) []broker.Message {
	var out []broker.Message
	for n := range b.activeLinks {
		if n.linkClient == "" {
			n.up.Messages()
			continue
		}
		for _, m := range append(n.up.Messages(), n.down.Messages()...) {
			if m.Map == link.Down {
				n.sentAt = b.now
			}
			payload, err := link.Encode(m)
			if err != nil {
				t.opts.Log.Error().Err(err).Str("node", n.name).Msg("a message to the node can't be encoded")
				continue
			}
			var traces []string
			if m.Map == link.Down {
				traces = n.traces.Take(m.Entries)
			}
			out = append(out, n.sync(payload, traces))
		}
	}
	return out
}

func (t *Twins) resend(b *batch) {
	for _, n := range t.nodes.byName {
		n.recordAway(b)
		if n.linkClient != "" && n.down.Waiting() && b.now.Sub(n.sentAt) >= t.opts.Timeout {
			n.down.Resend()
			b.activeLinks[n] = true
		}
	}
}

// Stats returns the counts.
func (t *Twins) Stats() Stats {
	t.host.RLock()
	defer t.host.RUnlock()
	s := Stats{
		Commits: t.stats.commits.Load(), Steps: t.host.Steps(), FailedCommits: t.stats.failed.Load(),
		Nodes: len(t.nodes.byName), Devices: len(t.devices.byName), DesiredWrites: t.desired.waiting(),
		Links: t.stats.links.Load(), Takeovers: t.stats.takeovers.Load(), Statuses: t.statuses.written.Load(),
		StepsWaiting: t.host.Len(), StatusWaiting: t.status.waiting(),
	}
	now := t.opts.Now()
	for _, n := range t.nodes.byName {
		s.DownKeys += n.down.Len()
		s.UpKeys += n.up.Stored().Len()
		s.UpBytes += n.up.Stored().Bytes()
		if n.quotaError != "" {
			s.Oversize++
		}
		if n.leavesAlone() {
			s.OfAnotherHub++
		}
		if n.linkClient != "" {
			s.Online++
			s.Behind += n.down.Dirty()
			age := n.behindFor(now)
			s.Oldest = max(s.Oldest, age)
			if age > lateAfter {
				s.Late++
			}
			if n.down.InStep() {
				s.InStep++
			}
		}
	}
	return s
}
