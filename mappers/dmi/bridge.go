// SPDX-License-Identifier: Apache-2.0

package dmi

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/rs/zerolog"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/edgebus/edgebus/broker/daemon/datadir"
	"github.com/edgebus/edgebus/mappers"
	"github.com/edgebus/edgebus/topics/resource"
)

// registrationsFile has the registrations of mappers: they register only when they start.
const registrationsFile = "mappers.json"

// bridge knows the mappers that have registered.
type bridge struct {
	dir     string
	options mappers.Options
	log     zerolog.Logger

	mu       sync.Mutex
	reached  time.Time        // when the node's broker was, first
	peers    map[string]*peer // by protocol
	removed  map[string]time.Time
	removing int             // devices
	runCx    context.Context // ends when the bridge does
	work     sync.WaitGroup
}

func newBridge(dir string, o mappers.Options) (*bridge, error) {
	b := &bridge{dir: dir, options: o, log: o.Log, peers: map[string]*peer{}, removed: map[string]time.Time{}}
	raw, err := os.ReadFile(filepath.Join(dir, registrationsFile))
	if errors.Is(err, fs.ErrNotExist) {
		return b, nil
	}
	var list []registration
	if err == nil {
		err = json.Unmarshal(raw, &list)
	}
	for _, r := range list {
		err = errors.Join(err, r.check())
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w; without the file mappers are known again when they are started anew", filepath.Join(dir, registrationsFile), err)
	}
	for _, r := range list {
		b.peers[resource.ProtocolKey(r.Protocol)] = newPeer(r, true)
	}
	return b, nil
}

// run starts a mapper of the SDK for each mapper that has registered, and returns when all have ended.
func (b *bridge) run(ctx context.Context) error {
	b.mu.Lock()
	b.runCx = ctx
	for _, p := range b.peers {
		b.start(p)
	}
	b.mu.Unlock()
	o := b.options
	o.OnConnect = func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		if b.reached.IsZero() {
			b.reached = time.Now()
		}
	}
	err := mappers.Run(ctx, o, noDriver{}) // so that the bridge itself is seen
	b.mu.Lock()
	b.runCx = nil // nothing is started any more
	b.mu.Unlock()
	b.work.Wait()
	return err
}

// start runs the SDK for a peer. mu is held.
func (b *bridge) start(p *peer) {
	if b.runCx == nil {
		return
	}
	ctx, stop := context.WithCancel(b.runCx)
	p.stop = stop
	o := b.options
	o.Name = b.options.Name + "-" + nameOf(p.protocol)
	o.Log = b.log.With().Str("mapper", p.registered().Name).Logger()
	b.work.Go(func() {
		defer p.close()
		for ctx.Err() == nil {
			if err := mappers.Run(ctx, o, driver{p}); err != nil {
				b.log.Error().Err(err).Str("protocol", p.protocol).Msg("the devices of a mapper are not driven; trying again")
			}
			select {
			case <-ctx.Done():
			case <-time.After(5 * time.Second):
			}
		}
	})
}

// nameOf makes a part of a mapper's name of a protocol.
func nameOf(protocol string) string {
	return strings.Trim(strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' || r >= '0' && r <= '9' {
			return r
		}
		return '-'
	}, strings.ToLower(protocol)), "-")
}

// register takes a mapper, and answers with its devices.
func (b *bridge) register(r registration, withData bool) ([]byte, error) {
	name := nameOf(r.Protocol)
	if name == "" {
		return nil, status.Errorf(codes.InvalidArgument, "mapper.protocol: %q must have a letter or digit", r.Protocol)
	}
	if err := mappers.CheckName(b.options.Name + "-" + name); err != nil {
		return nil, status.Errorf(codes.InvalidArgument, "mapper.protocol: %v", err)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	key := resource.ProtocolKey(r.Protocol)
	for other, p := range b.peers {
		if other != key && nameOf(p.protocol) == name {
			return nil, status.Errorf(codes.AlreadyExists, "mapper.protocol: %q is too like %q, which has registered", r.Protocol, p.protocol)
		}
	}
	p := b.peers[key]
	switch {
	case p == nil && len(b.peers) >= maxMappers:
		return nil, status.Errorf(codes.ResourceExhausted, "%d mappers have registered, and no more can: remove old ones from %s", maxMappers, filepath.Join(b.dir, registrationsFile))
	case p == nil || p.contract != r.Contract:
		before := p
		p = newPeer(r, !withData)
		b.peers[key] = p
		if err := b.save(); err != nil {
			if delete(b.peers, key); before != nil {
				b.peers[key] = before
			}
			return nil, status.Errorf(codes.Internal, "the registration can't be stored: %v", err)
		}
		if before != nil {
			before.stop()
		}
		b.log.Info().Str("mapper", r.Name).Str("version", r.Version).Str("protocol", r.Protocol).Str("interface", string(r.Contract)).Msg("a mapper has registered")
		b.start(p)
		return nil, nil // its devices are registered with it one by one
	}
	if was := p.registered(); was != r {
		p.setRegistration(r)
		if err := b.save(); err != nil {
			p.setRegistration(was)
			return nil, status.Errorf(codes.Internal, "the registration can't be stored: %v", err)
		}
		if was.Name != r.Name {
			b.log.Warn().Str("mapper", r.Name).Str("before", was.Name).Str("protocol", r.Protocol).Msg("another mapper has registered for a protocol: it drives the devices from now on")
		}
	}
	b.log.Info().Str("mapper", r.Name).Str("protocol", r.Protocol).Msg("a mapper has registered again")
	return p.begin(withData), nil
}

// sorted are the peers, by protocol. mu is held.
func (b *bridge) sorted() []*peer {
	list := make([]*peer, 0, len(b.peers))
	for _, key := range slices.Sorted(maps.Keys(b.peers)) {
		list = append(list, b.peers[key])
	}
	return list
}

// save writes the registrations. mu is held.
func (b *bridge) save() error {
	list := []registration{}
	for _, p := range b.sorted() {
		list = append(list, p.registered())
	}
	raw, err := json.MarshalIndent(list, "", "  ")
	if err != nil {
		return err
	}
	return datadir.WriteFile(filepath.Join(b.dir, registrationsFile), append(raw, '\n'))
}

// take gives a report to the device that it is about. A device that this node doesn't have any more is removed from the mappers: it was deleted while the
// bridge was down.
func (b *bridge) take(r report) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	var found *device
	for _, p := range b.peers { // a Device whose protocol has changed is with the mapper before for a moment, closed
		if d := p.device(r.device); d != nil && (found == nil || d.isOpen()) {
			found = d
		}
	}
	if found != nil {
		found.take(r, time.Now())
		return nil
	}
	now := time.Now()
	if b.reached.IsZero() || now.Sub(b.reached) <= settleTime || now.Sub(b.removed[r.device]) <= settleTime || b.runCx == nil || b.removing >= mostRemovals {
		return errUnknownDevice
	}
	if len(b.removed) > 10_000 {
		clear(b.removed)
	}
	b.removed[r.device] = now
	b.removing++
	ctx, peers := b.runCx, b.sorted()
	b.work.Go(func() {
		for _, p := range peers {
			if err := p.remove(ctx, r.device, r.namespace); err != nil {
				b.log.Debug().Err(err).Str("device", r.device).Msg("a device that is no more is not removed from its mapper yet")
			}
		}
		b.mu.Lock()
		defer b.mu.Unlock()
		b.removing--
	})
	return errUnknownDevice
}

// mostRemovals is how many devices are being removed from mappers at a time; what is reported of others is refused until then, and removed later.
const mostRemovals = 16

// settleTime is how long after it has reached the node's broker the bridge may not know all devices yet.
const settleTime = 10 * time.Second

// noDriver drives nothing.
type noDriver struct{}

func (noDriver) Protocols() []string { return []string{} }

func (noDriver) Open(context.Context, mappers.Device) (mappers.Session, error) {
	return nil, errors.New("it has no devices")
}

var _ mappers.DeviceFormer = driver{}

// Form implements mappers.DeviceFormer.
func (d driver) Form(b resource.Bundle) string {
	text, err := formOf(d.p.contract, b)
	if err != nil {
		return ""
	}
	return text
}
