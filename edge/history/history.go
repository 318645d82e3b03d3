// SPDX-License-Identifier: Apache-2.0

// Package history keeps what the properties of the node's Devices were: it takes what is reported, deletes what is not to be kept, and
// sends the rest to the hub, which has the same then.
//
// It never waits for the disk where values are reported, and never sends what a Device keeps on the node.
//
// # Files, in reading order
//
//	history.go  Recorder: what is recorded and where, what is deleted, metrics
//	send.go     the hub's copy
package history

import (
	"context"
	"errors"
	"path/filepath"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"
	"golang.org/x/sync/errgroup"

	"github.com/edgebus/edgebus/broker/daemon/metrics"
	"github.com/edgebus/edgebus/broker/history"
	"github.com/edgebus/edgebus/broker/history/requests"
	"github.com/edgebus/edgebus/topics/resource"
)

// localShare is the part of the limit that the values have that stay on the node.
const localShare = 4

const rulesInterval = time.Minute // between two looks at what is not to be kept

// Devices are the node's.
type Devices interface {
	Bundle(name string) (resource.Bundle, bool)
	// Bundles are all of them, by their UIDs.
	Bundles() map[string]resource.Bundle
}

// Options are what a Recorder is made from.
type Options struct {
	// Dir is the core's data directory, and Bytes bound the history's files.
	Dir   string
	Bytes int64
	Log   zerolog.Logger
	Now   func() time.Time // nil: time.Now
}

// Recorder has the past of the node's Devices.
type Recorder struct {
	o       Options
	devices Devices
	shared  *history.Store // what the hub has as well
	local   *history.Store // the values of properties that stay on the node
	rules   *history.Rules
}

// Open opens the history in a data directory.
func Open(o Options) (*Recorder, error) {
	if o.Now == nil {
		o.Now = time.Now
	}
	open := func(name string, bytes int64) (*history.Store, error) {
		return history.Open(history.Options{Dir: filepath.Join(o.Dir, history.DirName, name), Bytes: bytes, Log: o.Log, Now: o.Now})
	}
	shared, err := open("shared", o.Bytes)
	if err != nil {
		return nil, err
	}
	local, err := open("local", o.Bytes/localShare)
	if err != nil {
		return nil, err
	}
	return &Recorder{o: o, shared: shared, local: local}, nil
}

// Follow says whose past it is. It is called once, before Run.
func (h *Recorder) Follow(d Devices) {
	h.devices = d
	h.rules = history.NewRules(func(context.Context) (map[string]resource.Bundle, error) { return d.Bundles(), nil }, rulesInterval, h.o.Now)
}

func (h *Recorder) store(b *resource.Bundle, property string) *history.Store {
	if slices.Contains(b.Device.Spec.Local, property) {
		return h.local
	}
	return h.shared
}

// Record notes that a property has a value.
func (h *Recorder) Record(b *resource.Bundle, property, value string, ts int64) {
	rule := b.HistoryRule(property)
	p, known := b.Model.Property(property)
	if rule.Disabled || !known || ts < rule.NotBefore {
		return
	}
	h.store(b, property).Record(history.SeriesKey{Device: b.Device.Metadata.UID, Property: property}, p, value, ts, rule.Deadband)
}

// End notes that the value of a property, or of all of a Device, is no longer known.
func (h *Recorder) End(b *resource.Bundle, property string, ts int64) {
	name := history.SeriesKey{Device: b.Device.Metadata.UID, Property: property}
	h.shared.End(name, ts)
	h.local.End(name, ts)
}

// SetLowSpace stops the history while there is little space on the disk.
func (h *Recorder) SetLowSpace(low string) {
	h.shared.SetLowSpace(low)
	h.local.SetLowSpace(low)
}

// Stopped says why nothing is recorded; empty: it is.
func (h *Recorder) Stopped() string { return h.shared.Stats().Stopped }

// Run writes what is recorded, and deletes what is not to be kept, until ctx ends.
func (h *Recorder) Run(ctx context.Context) error {
	g, ctx := errgroup.WithContext(ctx)
	for _, s := range []*history.Store{h.shared, h.local} {
		g.Go(func() error { return s.Run(ctx) })
	}
	g.Go(func() error {
		return h.rules.Run(ctx, func(ctx context.Context) {
			err := errors.Join(h.rules.Prune(h.shared), h.rules.Prune(h.local))
			if err != nil && ctx.Err() == nil {
				h.o.Log.Error().Err(err).Msg("what is not to be kept of the history can't be deleted: this is tried again")
			}
		})
	})
	return g.Wait()
}

// deviceSource is the past of a Device, wherever its properties are recorded.
type deviceSource struct {
	h *Recorder
	b resource.Bundle
}

func (s deviceSource) Read(ctx context.Context, q history.Query) (resource.HistoryAnswer, error) {
	return s.h.store(&s.b, q.Property).Read(ctx, q)
}

func (s deviceSource) Export(ctx context.Context, q history.Query, yield func(resource.HistoryAnswer) error) error {
	return s.h.store(&s.b, q.Property).Export(ctx, q, yield)
}

// Find returns a Device, and its past.
func (h *Recorder) Find(_ context.Context, _, device string) (b resource.Bundle, source requests.Source, err error) {
	b, ok := h.devices.Bundle(device)
	if !ok {
		return b, nil, resource.Errorf(resource.NotFound, "", "device %q does not belong to this node", device)
	}
	return b, deviceSource{h, b}, nil
}

// Register adds the metrics of the history.
func (h *Recorder) Register(r prometheus.Registerer) { registerStats(r, h.shared.Stats) }

func registerStats(r prometheus.Registerer, stats func() history.Stats) {
	g := metrics.NewGroup("history", stats)
	history.AddMetrics(g)
	r.MustRegister(g)
}
