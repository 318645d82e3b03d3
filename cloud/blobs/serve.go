// SPDX-License-Identifier: Apache-2.0

package blobs

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"hash/maphash"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"
	"golang.org/x/sync/errgroup"

	"github.com/edgebus/edgebus/broker"
	"github.com/edgebus/edgebus/broker/daemon/metrics"
	"github.com/edgebus/edgebus/cloud/store"
	"github.com/edgebus/edgebus/topics"
	"github.com/edgebus/edgebus/topics/resource"
)

const (
	workers         = 8                // each serves the nodes whose names have one hash
	maxQueued       = 512              // requests that wait for a worker
	maxQueuedOfNode = 16               // of one node's
	rightLifetime   = 10 * time.Second // a right that was found is not looked for again
	maxRights       = 10_000           // such rights
)

// ServerOptions are what a Server is made from.
type ServerOptions struct {
	Store *Store
	// Allowed reports whether a node may read a blob.
	Allowed func(ctx context.Context, node, digest string) (bool, error)
	// Fetched reports whether a blob was fetched from a Repository, as nobody may see who isn't signed in; nil: none was.
	Fetched func(ctx context.Context, digest string) (bool, error)
	// Tree gets every publish that is not about blobs.
	Tree broker.Tree
	// Publish publishes on the hub's broker.
	Publish func(broker.Message)
	Log     zerolog.Logger
}

// Server answers requests of nodes' cores for ranges of blobs. It holds one range for each request that it answers, and
// answers those of a node one after the other.
type Server struct {
	o    ServerOptions
	log  zerolog.Logger // sampled: nodes can cause any number of lines
	seed maphash.Seed
	jobs [workers]chan rangeRequest

	mu      sync.Mutex
	waiting map[string]int          // requests of nodes that are not answered
	allowed map[readRight]time.Time // until when a right holds

	answered, refused atomic.Int64
}

type rangeRequest struct {
	node, topic string // of the answer
	correlation []byte
	r           resource.BlobRequest
}

type readRight struct{ node, digest string }

// NewServer makes a server. It answers while Run runs.
func NewServer(o ServerOptions) *Server {
	s := &Server{
		o: o, log: o.Log.Sample(&zerolog.BurstSampler{Burst: 10, Period: 10 * time.Second}), seed: maphash.MakeSeed(),
		waiting: make(map[string]int), allowed: make(map[readRight]time.Time),
	}
	for i := range s.jobs {
		s.jobs[i] = make(chan rangeRequest, maxQueued/workers)
	}
	return s
}

// Run answers requests until ctx ends.
func (s *Server) Run(ctx context.Context) error {
	g, ctx := errgroup.WithContext(ctx)
	for _, jobs := range s.jobs {
		g.Go(func() error {
			for {
				select {
				case j := <-jobs:
					s.serve(ctx, j)
				case <-ctx.Done():
					return nil
				}
			}
		})
	}
	return g.Wait()
}

// Publish takes requests for ranges, and passes everything else on. It does not wait for the disk.
func (s *Server) Publish(m broker.Message, done func(error)) {
	if !strings.HasSuffix(m.Topic, "/blobs/get") {
		s.o.Tree.Publish(m, done)
		return
	}
	at, err := topics.Parse(m.Topic)
	if err != nil || at.Kind != topics.KindBlobGet {
		s.o.Tree.Publish(m, done)
		return
	}
	j, err := newRangeRequest(at, m)
	if err == nil {
		err = s.queue(j)
	}
	done(err)
}

// Retained goes through retained topics; none is about blobs.
func (s *Server) Retained(filter string) func(max int) []broker.Message {
	return s.o.Tree.Retained(filter)
}

func newRangeRequest(at topics.Address, m broker.Message) (j rangeRequest, err error) {
	r, err := resource.ParseBlobRequest(m.Payload)
	if err != nil {
		return j, err
	}
	if r.Offset < 0 || r.Length < 1 || r.Length > resource.MaxBlobRange {
		return j, resource.Errorf(resource.Invalid, "length", "a range begins at 0 or later and has 1 to %d bytes", resource.MaxBlobRange)
	}
	to, err := topics.Parse(m.Props.ResponseTopic)
	if err != nil || to.Kind != topics.KindBlobAnswer || to.Node != at.Node {
		return j, resource.Errorf(resource.Invalid, "response topic", "it must be %s{request}", topics.TopicOf(at.Node, "blobs/answers/"))
	}
	return rangeRequest{at.Node, m.Props.ResponseTopic, m.Props.Correlation, r}, nil
}

func (s *Server) queue(j rangeRequest) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.waiting[j.node] >= maxQueuedOfNode {
		return resource.Errorf(resource.Unavailable, "", "%d requests of the node wait for their answers: ask again after one", maxQueuedOfNode)
	}
	select {
	case s.jobs[maphash.String(s.seed, j.node)%workers] <- j:
		s.waiting[j.node]++
		return nil
	default:
		return resource.Errorf(resource.Unavailable, "", "too many nodes read blobs at this moment: ask again later")
	}
}

func (s *Server) serve(ctx context.Context, j rangeRequest) {
	content, err := s.read(ctx, j)
	s.mu.Lock()
	if s.waiting[j.node]--; s.waiting[j.node] == 0 {
		delete(s.waiting, j.node)
	}
	s.mu.Unlock()
	answer := broker.Message{Topic: j.topic, Payload: content, Props: broker.Properties{Correlation: j.correlation}}
	if err != nil {
		s.refused.Add(1)
		s.log.Warn().Err(err).Str("node", j.node).Str("digest", j.r.Digest).Msg("a node was not given a blob")
		kind, text := resource.KindOf(err), err.Error()
		if kind == resource.Internal {
			kind, text = resource.Unavailable, "the hub can't read the blob at this moment: see its log"
		}
		answer.Props.User = []broker.UserProperty{{Key: topics.PropCode, Value: string(kind)}, {Key: topics.PropError, Value: topics.MakeReadable(text)}}
	} else {
		s.answered.Add(1)
	}
	s.o.Publish(answer)
}

func (s *Server) read(ctx context.Context, j rangeRequest) ([]byte, error) {
	if err := s.authorize(ctx, j.node, j.r.Digest); err != nil {
		return nil, err
	}
	if j.r.Damaged {
		s.o.Store.Suspect(j.r.Digest)
	}
	content := make([]byte, j.r.Length)
	n, err := s.o.Store.ReadAt(j.r.Digest, content, j.r.Offset)
	return content[:n], err
}

// authorize fails unless the node may read the blob. What was found is remembered for rightLifetime.
func (s *Server) authorize(ctx context.Context, node, digest string) error {
	now, key := time.Now(), readRight{node, digest}
	s.mu.Lock()
	until := s.allowed[key]
	s.mu.Unlock()
	if now.Before(until) {
		return nil
	}
	ok, err := s.o.Allowed(ctx, node, digest)
	if err != nil {
		return err
	}
	if !ok {
		return resource.Errorf(resource.Forbidden, "", "the spec of node %s does not refer to the blob %s", node, digest)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.allowed) >= maxRights {
		clear(s.allowed)
	}
	s.allowed[key] = now.Add(rightLifetime)
	return nil
}

// ReferenceFinder finds the blobs that objects of the store refer to.
type ReferenceFinder struct{ Reader store.Reader }

// Allowed reports whether the rendered spec of a node refers to a blob, or the upgrade that it is ordered.
func (s ReferenceFinder) Allowed(ctx context.Context, node, digest string) (allowed bool, err error) {
	for _, kind := range []string{resource.KindRenderedSpec, resource.KindUpgradeOrder} {
		o, err := s.Reader.Get(ctx, store.Key{Kind: kind, Name: node})
		switch {
		case errors.Is(err, resource.NotFound):
		case err != nil:
			return false, err
		default:
			err = useDigests(o, func(d string) { allowed = allowed || d == digest })
		}
		if allowed || err != nil && !errors.Is(err, resource.NotFound) {
			return allowed, err
		}
	}
	return false, nil
}

// referringKinds are the kinds whose objects refer to blobs.
var referringKinds = []string{
	resource.KindNode, resource.KindFleet, resource.KindTemplateVersion, resource.KindRenderedSpec,
	resource.KindArtifact, resource.KindUpgradeOrder, resource.KindSource,
}

var digestPattern = regexp.MustCompile(resource.DigestPrefix + `[0-9a-f]{64}`)

// Refs calls use with each digest in the specs of the kinds that refer to blobs, wherever it stands: what looks like one
// and is none keeps nothing.
func (s ReferenceFinder) Refs(ctx context.Context, use func(digest string)) error {
	for _, kind := range referringKinds {
		for o, err := range store.All(ctx, s.Reader, kind, store.ListOptions{}) {
			if err != nil {
				return err
			}
			for _, digest := range digestPattern.FindAll(o.Data, -1) {
				use(string(digest))
			}
		}
	}
	return nil
}

func useDigests(o store.Object, use func(digest string)) error {
	if o.Kind == resource.KindUpgradeOrder {
		var order resource.UpgradeOrder
		if err := json.Unmarshal(o.Data, &order); err != nil {
			return fmt.Errorf("%s: %w", o.Key, err)
		}
		m, _ := resource.ParseManifest([]byte(order.Manifest)) // none: there is only a command
		for _, p := range m.Programs {
			use(p.Digest)
		}
		return nil
	}
	var spec resource.RenderedSpec
	if err := json.Unmarshal(o.Data, &spec); err != nil {
		return fmt.Errorf("%s: %w", o.Key, err)
	}
	files := func(list []resource.RenderedFile) {
		for _, f := range list {
			if f.Digest != "" {
				use(f.Digest)
			}
		}
	}
	files(spec.Files)
	for _, a := range spec.Applications {
		files(a.Files)
	}
	return nil
}

// Stats are figures for metrics.
type serverStats struct {
	blobs                                                  int
	bytes, limit                                           int64
	damaged, collected, served, answered, refused, waiting int64
}

// Register adds the metrics of blobs.
func (s *Server) Register(r prometheus.Registerer) {
	g := metrics.NewGroup("blobs", s.stats)
	g.Gauge("stored", "Blobs that the hub has.", func(s serverStats) float64 { return float64(s.blobs) })
	g.Gauge("stored_bytes", "Bytes of their contents, and of those that are being written.", func(s serverStats) float64 { return float64(s.bytes) })
	g.Gauge("limit_bytes", "limits.blobs.bytes; 0: no limit.", func(s serverStats) float64 { return float64(s.limit) })
	g.Counter("removed_total", "Blobs that were removed.", func(s serverStats) float64 { return float64(s.collected) })
	g.Counter("damaged_total", "Blobs whose files were found damaged or missing.", func(s serverStats) float64 { return float64(s.damaged) })
	g.Gauge("requests_waiting", "Requests of nodes for ranges that wait for their answers.", func(s serverStats) float64 { return float64(s.waiting) })
	g.Counter("requests_total", "Ranges that nodes got.", func(s serverStats) float64 { return float64(s.answered) })
	g.Counter("refused_total", "Requests of nodes for ranges that were refused.", func(s serverStats) float64 { return float64(s.refused) })
	g.Counter("sent_bytes_total", "Bytes of blobs that nodes got.", func(s serverStats) float64 { return float64(s.served) })
	r.MustRegister(g)
}

func (s *Server) stats() serverStats {
	st := s.o.Store
	st.mu.Lock()
	n := serverStats{blobs: len(st.blobs), bytes: st.bytes, limit: st.o.Bytes}
	st.mu.Unlock()
	n.damaged, n.collected, n.served = st.damaged.Load(), st.collected.Load(), st.served.Load()
	n.answered, n.refused = s.answered.Load(), s.refused.Load()
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, of := range s.waiting {
		n.waiting += int64(of)
	}
	return n
}
