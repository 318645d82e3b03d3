// SPDX-License-Identifier: Apache-2.0

package dmi

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"net"
	"slices"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/edgebus/edgebus/broker/daemon/rawgrpc"
	"github.com/edgebus/edgebus/mappers"
)

// maxAnswer are the bytes of the answer to a registration: gRPC's clients take 4 MiB where they don't say otherwise.
const maxAnswer = 3 << 20

// callTime is how long a mapper may take for an answer.
const callTime = 10 * time.Second

// peer is a mapper of KubeEdge that has registered.
type peer struct {
	protocol string
	contract contract
	stop     context.CancelFunc // ends the mapper of the SDK

	mu       sync.Mutex
	reg      registration
	conn     *grpc.ClientConn
	life     int                      // counts the registrations: what was told before one is forgotten
	doubtful bool                     // in this life it may know devices already
	models   map[string]string        // that it was told in this life, by name
	turns    map[string]chan struct{} // by model: has something in it while the mapper is told the model
	devices  map[string]*device
	tried    time.Time // when it was last looked whether it listens
	wrong    error     // what was found
	stopped  bool      // the bridge has ended, or another peer has taken over: devices stay with the mapper
}

// newPeer makes a peer. One that is doubtful may know devices that it was not told in this life.
func newPeer(r registration, doubtful bool) *peer {
	return &peer{
		protocol: r.Protocol, contract: r.Contract, reg: r, life: 1, doubtful: doubtful, models: map[string]string{}, turns: map[string]chan struct{}{},
		devices: map[string]*device{},
		stop:    func() {},
	}
}

func (p *peer) registered() registration {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.reg
}

func (p *peer) setRegistration(r registration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.reg.Address != r.Address {
		p.hangUp()
	}
	p.reg = r
}

// hangUp closes the connection. mu is held.
func (p *peer) hangUp() {
	if p.conn != nil {
		_ = p.conn.Close() // whoever calls over it is told
		p.conn = nil
	}
}

func (p *peer) close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.stopped = true
	p.hangUp()
}

func (p *peer) device(name string) *device {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.devices[name]
}

// begin begins a life of the mapper: it knows only the devices that are returned. Of v1alpha1 these are none: KubeEdge's mappers of that version serve their
// socket, on which they are told of changes, only when they have got none here.
func (p *peer) begin(withData bool) []byte {
	p.mu.Lock()
	p.life++
	p.doubtful = !withData
	p.models = map[string]string{}
	p.hangUp()
	p.tried = time.Time{}
	life, list := p.life, slices.Collect(maps.Values(p.devices))
	p.mu.Unlock()
	if !withData || p.contract == contractV1alpha1 {
		return nil
	}
	slices.SortFunc(list, func(a, b *device) int { return cmp.Compare(a.name, b.name) })
	listed := map[string]bool{}
	var out []byte
	for _, d := range list {
		message, form, err := d.message(nil)
		name, model, wrong := modelMessage(p.contract, form)
		if err != nil || wrong != nil || !d.isOpen() {
			continue
		}
		if len(out)+len(model)+len(message) > maxAnswer {
			break // the others are registered one by one
		}
		if !listed[name] {
			listed[name] = true
			out = appendBytes(out, 1, model)
		}
		out = appendBytes(out, 2, message)
		d.knownSince(life, form)
	}
	// Models stay to be told: KubeEdge's framework doesn't find those of this answer when a device is updated.
	return out
}

// listens reports why the mapper can't be reached; it looks once a second.
func (p *peer) listens() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := time.Now()
	if now.Sub(p.tried) < time.Second {
		return p.wrong
	}
	p.tried = now
	conn, err := net.DialTimeout("unix", p.reg.Address, time.Second)
	if err == nil {
		err = conn.Close()
	}
	if err != nil {
		err = mappers.NotSent(fmt.Errorf("the mapper %s does not listen at %s: is it running?", p.reg.Name, p.reg.Address))
	} else if p.wrong != nil && p.conn != nil {
		p.conn.ResetConnectBackoff()
	}
	p.wrong = err
	return err
}

// call calls a method of the mapper.
func (p *peer) call(ctx context.Context, method string, in []byte) error {
	p.mu.Lock()
	var err error
	if p.conn == nil {
		p.conn, err = rawgrpc.Dial("unix://"+p.reg.Address, nil, 1<<20)
	}
	conn, name := p.conn, p.reg.Name
	p.mu.Unlock()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, callTime)
	defer cancel()
	_, err = rawgrpc.Call(ctx, conn, "/"+string(p.contract)+".DeviceMapperService/"+method, in)
	switch s, _ := status.FromError(err); {
	case err == nil:
		return nil
	case s.Code() == codes.Unavailable && strings.Contains(s.Message(), "while dialing"):
		return mappers.NotSent(fmt.Errorf("the mapper %s can't be reached: %s", name, s.Message()))
	case s.Code() == codes.Unavailable: // it may have ended after it was called
		return fmt.Errorf("the mapper %s has not answered %s: %s", name, method, s.Message())
	case s.Code() == codes.DeadlineExceeded, s.Code() == codes.Canceled:
		return fmt.Errorf("the mapper %s did not answer %s within %s", name, method, callTime)
	default:
		return mappers.Refuse(mappers.Unavailable, "the mapper %s answered %s with: %s", name, method, s.Message())
	}
}

// remove tells the mapper that it doesn't have a device any more.
func (p *peer) remove(ctx context.Context, name, namespace string) error {
	in := appendBytes(nil, 1, []byte(name))
	if p.contract == contractV1beta1 {
		in = appendBytes(in, 2, []byte(namespace))
	}
	return p.call(ctx, "RemoveDevice", in)
}

// tellModel tells the mapper a model that it doesn't know.
func (p *peer) tellModel(ctx context.Context, form string) error {
	name, model, err := modelMessage(p.contract, form)
	if err != nil {
		return err
	}
	p.mu.Lock()
	if p.turns[name] == nil {
		p.turns[name] = make(chan struct{}, 1)
	}
	turn := p.turns[name]
	p.mu.Unlock()
	select { // a thousand devices of a model tell it once
	case turn <- struct{}{}:
		defer func() { <-turn }()
	case <-ctx.Done():
		return ctx.Err()
	}
	p.mu.Lock()
	life, known := p.life, p.models[name]
	p.mu.Unlock()
	if known == string(model) {
		return nil
	}
	request := appendBytes(nil, 1, model)
	err = p.call(ctx, "CreateDeviceModel", request)
	if isRefusal(err) && p.call(ctx, "UpdateDeviceModel", request) == nil {
		err = nil // it had a model of this name
	}
	if err != nil {
		return err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.life == life {
		p.models[name] = string(model)
	}
	return nil
}

// lifeAndEnd is the life of the mapper, and whether its devices stay with it from now on.
func (p *peer) lifeAndEnd() (life int, stopped bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.life, p.stopped
}

// lifeNow is the life of the mapper, and whether it may know devices that it was not told in it.
func (p *peer) lifeNow() (life int, doubtful bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.life, p.doubtful
}
