// SPDX-License-Identifier: Apache-2.0

// Package history keeps the hub's copies of what the properties of devices were: one of each node's, which the node sends.
//
// It never changes what a node has, and never shows a Device what another node says of it: of a Device it has what its node sent.
package history

import (
	"context"
	"encoding/json"
	"errors"
	"hash/maphash"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"
	"golang.org/x/sync/errgroup"

	"github.com/edgebus/edgebus/broker"
	"github.com/edgebus/edgebus/broker/daemon/datadir"
	"github.com/edgebus/edgebus/broker/daemon/metrics"
	"github.com/edgebus/edgebus/broker/history"
	"github.com/edgebus/edgebus/cloud/store"
	"github.com/edgebus/edgebus/topics"
	"github.com/edgebus/edgebus/topics/resource"
)

const (
	workers   = 4   // each takes the parts of the nodes whose names have one hash
	maxQueued = 256 // parts that wait for a worker
	maxPart   = 64<<10 + 1<<10
	// rulesInterval is between two looks at what is not to be kept, each of which reads all Devices.
	rulesInterval = 10 * time.Minute
	removedAfter  = 24 * time.Hour // the copy of a node that there is no more: deleting it may have been a mistake
)

// Options are what NodeCopies are made from.
type Options struct {
	// Dir is the hub's data directory. Bytes bound the files of each node; 0: there are no copies.
	Dir    string
	Bytes  int64
	Reader store.Reader
	// Tree gets every publish that is no part of a history, and Publish publishes on the hub's broker.
	Tree    broker.Tree
	Publish func(broker.Message)
	Log     zerolog.Logger
	Now     func() time.Time // nil: time.Now
}

// NodeCopies are what the hub has of the nodes' histories.
type NodeCopies struct {
	broker.Tree
	o    Options
	log  zerolog.Logger // sampled: nodes can cause any number of lines
	seed maphash.Seed
	jobs [workers]chan nodePart

	mu    sync.Mutex
	nodes map[string]*history.StoreCopy
	gone  map[string]time.Time // nodes that there are no more

	received atomic.Uint64 // bytes
	low      atomic.Pointer[string]
	rules    *history.Rules
}

type nodePart struct {
	node, topic string // of the answer
	correlation []byte
	part        history.CopyPart
}

// New opens the copies that there are.
func New(o Options) (*NodeCopies, error) {
	if o.Now == nil {
		o.Now = time.Now
	}
	c := &NodeCopies{
		Tree: o.Tree, o: o, log: o.Log.Sample(&zerolog.BurstSampler{Burst: 10, Period: 10 * time.Second}), seed: maphash.MakeSeed(),
		nodes: make(map[string]*history.StoreCopy), gone: make(map[string]time.Time),
	}
	c.rules = history.NewRules(c.devices, rulesInterval, o.Now)
	for i := range c.jobs {
		c.jobs[i] = make(chan nodePart, maxQueued/workers)
	}
	if err := datadir.MakeDir(c.dir("")); err != nil {
		return nil, err
	}
	entries, err := os.ReadDir(c.dir(""))
	if err != nil {
		return nil, err
	}
	for _, e := range entries {
		if e.IsDir() && topics.ValidName(e.Name()) {
			if _, err := c.open(e.Name()); err != nil {
				return nil, err
			}
		}
	}
	return c, nil
}

func (c *NodeCopies) dir(node string) string { return filepath.Join(c.o.Dir, history.DirName, node) }

// open opens the copy of a node, which it makes.
func (c *NodeCopies) open(node string) (*history.StoreCopy, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if known := c.nodes[node]; known != nil {
		return known, nil
	}
	log := c.o.Log.With().Str("node", node).Logger()
	made, err := history.OpenCopy(history.Options{Dir: c.dir(node), Bytes: c.o.Bytes, Log: log, Now: c.o.Now})
	if err == nil {
		c.nodes[node] = made
	}
	return made, err
}

// SetLowSpace refuses what nodes send while there is little space on the disk. They send it later.
func (c *NodeCopies) SetLowSpace(low string) { c.low.Store(&low) }

// Publish takes parts of histories, and passes everything else on. It does not wait for the disk.
func (c *NodeCopies) Publish(m broker.Message, done func(error)) {
	if !strings.HasSuffix(m.Topic, "/history/copy") {
		c.Tree.Publish(m, done)
		return
	}
	at, err := topics.Parse(m.Topic)
	if err != nil || at.Kind != topics.KindHistoryCopy {
		c.Tree.Publish(m, done)
		return
	}
	j, err := newNodePart(at, m)
	if err != nil {
		done(err)
		return
	}
	if c.o.Bytes == 0 {
		c.answer(j, history.WantedPart{Off: true})
		done(nil)
		return
	}
	j.part.Bytes = append([]byte(nil), j.part.Bytes...) // the packet's memory is used again
	select {
	case c.jobs[maphash.String(c.seed, at.Node)%workers] <- j:
		done(nil)
	default:
		done(resource.Errorf(resource.Unavailable, "", "too many nodes send their histories at this moment: send it again later"))
	}
}

func newNodePart(at topics.Address, m broker.Message) (j nodePart, err error) {
	if len(m.Payload) > maxPart {
		return j, resource.Errorf(resource.TooLarge, "", "%d bytes; a part of a history has at most %d", len(m.Payload), maxPart)
	}
	to, err := topics.Parse(m.Props.ResponseTopic)
	if err != nil || to.Kind != topics.KindHistoryWanted || to.Node != at.Node {
		return j, resource.Errorf(resource.Invalid, "response topic", "it must be %s{request}", topics.TopicOf(at.Node, "history/answers/"))
	}
	j = nodePart{node: at.Node, topic: m.Props.ResponseTopic, correlation: m.Props.Correlation}
	j.part, err = history.DecodePart(m.Payload)
	return j, err
}

func (c *NodeCopies) answer(j nodePart, w history.WantedPart) {
	payload, _ := json.Marshal(w) // strings and numbers
	c.o.Publish(broker.Message{Topic: j.topic, Payload: payload, Props: broker.Properties{Correlation: j.correlation, ContentType: "application/json"}})
}

// add takes a part. What fails has no answer: the node asks again later.
func (c *NodeCopies) add(j nodePart) {
	if low := c.low.Load(); low != nil && *low != "" {
		return
	}
	to, err := c.open(j.node)
	var w history.WantedPart
	if err == nil {
		w, err = to.Add(j.part)
	}
	if err != nil {
		c.log.Error().Err(err).Str("node", j.node).Msg("a part of a node's history can't be kept: it is requested again")
		return
	}
	c.received.Add(uint64(len(j.part.Bytes)))
	c.answer(j, w)
}

// Run takes what nodes send, and deletes what is not to be kept, until ctx ends.
func (c *NodeCopies) Run(ctx context.Context) error {
	g, ctx := errgroup.WithContext(ctx)
	for _, jobs := range c.jobs {
		g.Go(func() error {
			for {
				select {
				case j := <-jobs:
					c.add(j)
				case <-ctx.Done():
					return nil
				}
			}
		})
	}
	g.Go(func() error {
		return c.rules.Run(ctx, func(ctx context.Context) {
			if err := c.prune(ctx); err != nil && ctx.Err() == nil {
				c.o.Log.Error().Err(err).Msg("what is not to be kept of the nodes' histories can't be deleted: this is tried again")
			}
		})
	})
	return g.Wait()
}

func (c *NodeCopies) list() map[string]*history.StoreCopy {
	c.mu.Lock()
	defer c.mu.Unlock()
	all := make(map[string]*history.StoreCopy, len(c.nodes))
	for node, kept := range c.nodes {
		all[node] = kept
	}
	return all
}

func (c *NodeCopies) prune(ctx context.Context) error {
	for node, kept := range c.list() {
		_, err := c.o.Reader.Get(ctx, store.Key{Kind: resource.KindNode, Name: node})
		switch {
		case errors.Is(err, resource.NotFound):
			if err := c.forget(node); err != nil {
				return err
			}
			continue
		case err != nil:
			return err
		}
		delete(c.gone, node)
		if err := c.rules.Prune(kept.Store); err != nil {
			return err
		}
	}
	return nil
}

// forget deletes the copy of a node that there has not been for a day.
func (c *NodeCopies) forget(node string) error {
	now := c.o.Now()
	since, known := c.gone[node]
	if !known {
		c.gone[node] = now
	}
	if !known || now.Sub(since) < removedAfter {
		return nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.gone, node)
	delete(c.nodes, node)
	if err := os.RemoveAll(c.dir(node)); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// devices are all Devices that have a node, with their models.
func (c *NodeCopies) devices(ctx context.Context) (map[string]resource.Bundle, error) {
	models := make(map[[2]string]resource.DeviceModel)
	for o, err := range store.All(ctx, c.o.Reader, resource.KindDeviceModel, store.ListOptions{}) {
		var m resource.DeviceModel
		if err == nil {
			err = json.Unmarshal(o.Data, &m)
		}
		if err != nil {
			return nil, err
		}
		models[[2]string{o.Namespace, o.Name}] = m
	}
	all := make(map[string]resource.Bundle)
	for o, err := range store.All(ctx, c.o.Reader, resource.KindDevice, store.ListOptions{DataOnly: true}) {
		var d resource.Device
		if err == nil {
			err = json.Unmarshal(o.Data, &d)
		}
		if err != nil {
			return nil, err
		}
		kept := resource.Device{Metadata: resource.Meta{Name: d.Metadata.Name, UID: d.Metadata.UID}, Spec: resource.DeviceSpec{History: d.Spec.History, Local: d.Spec.Local}}
		all[d.Metadata.UID] = resource.Bundle{Device: kept, Model: models[[2]string{o.Namespace, d.Spec.DeviceModelRef.Name}]}
	}
	return all, nil
}

// Of is the copy of a node's history. A node that has sent nothing has an empty one.
func (c *NodeCopies) Of(node string) *NodeCopy { return &NodeCopy{c, node} }

// NodeCopy is what the hub has of a node.
type NodeCopy struct {
	copies *NodeCopies
	node   string
}

func (n *NodeCopy) copy() *history.StoreCopy {
	n.copies.mu.Lock()
	defer n.copies.mu.Unlock()
	return n.copies.nodes[n.node]
}

// Read answers a query.
func (n *NodeCopy) Read(ctx context.Context, q history.Query) (resource.HistoryAnswer, error) {
	if kept := n.copy(); kept != nil {
		return kept.Read(ctx, q)
	}
	return resource.HistoryAnswer{From: q.From, To: q.To, Times: []int64{}, Values: []any{}}, nil
}

// Export calls yield with each part of what a property was, in order.
func (n *NodeCopy) Export(ctx context.Context, q history.Query, yield func(resource.HistoryAnswer) error) error {
	if kept := n.copy(); kept != nil {
		return kept.Export(ctx, q, yield)
	}
	return nil
}

// Register adds the metrics of the copies, all together.
func (c *NodeCopies) Register(r prometheus.Registerer) {
	type s = history.Stats
	g := metrics.NewGroup("history", c.stats)
	g.Gauge("bytes", "Bytes on disk of the copies of the nodes' histories.", func(s s) float64 { return float64(s.Bytes) })
	g.Gauge("limit_bytes", "limits.history.bytes, of each node.", func(s) float64 { return float64(c.o.Bytes) })
	g.Gauge("files", "Files with an hour each.", func(s s) float64 { return float64(s.Files) })
	g.Gauge("nodes", "Nodes of which there is a copy.", func(s s) float64 { return float64(s.Series) })
	g.Counter("received_bytes_total", "Bytes that nodes have sent.", func(s) float64 { return float64(c.received.Load()) })
	g.Counter("thinned_files_total", "Files that were thinned to make room.", func(s s) float64 { return float64(s.Thinned) })
	g.Counter("dropped_files_total", "Files that were dropped to make room.", func(s s) float64 { return float64(s.Dropped) })
	g.Counter("damaged_files_total", "Files that were found damaged, and are not served.", func(s s) float64 { return float64(s.Damaged) })
	r.MustRegister(g)
}

func (c *NodeCopies) stats() (all history.Stats) {
	for _, kept := range c.list() {
		s := kept.Stats()
		all.Series++
		all.Bytes += s.Bytes
		all.Files += s.Files
		all.Thinned += s.Thinned
		all.Dropped += s.Dropped
		all.Damaged += s.Damaged
	}
	return all
}
