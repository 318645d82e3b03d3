// SPDX-License-Identifier: Apache-2.0

package runner

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/rs/zerolog"

	"github.com/edgebus/edgebus/broker"
	"github.com/edgebus/edgebus/broker/client"
	"github.com/edgebus/edgebus/broker/views"
	"github.com/edgebus/edgebus/topics"
	"github.com/edgebus/edgebus/topics/backoff"
	"github.com/edgebus/edgebus/topics/resource"
)

// peer is a view at one peer.
type peer struct {
	of    *runningView
	node  string // the only one that is shown; empty: all
	view  views.View
	tree  *views.Tree
	inbox treeInbox
	log   zerolog.Logger
	few   zerolog.Logger // of what the peer can cause any number of
	gone  bool           // the node is: the peer ends
	state peerState
}

// peerState is what is told of a peer.
type peerState struct {
	connected         atomic.Bool
	devices, retained atomic.Int64
	why               atomic.Pointer[string] // there is no connection, or the last message was refused; nil: all is well
	rejected          atomic.Int64
}

func newPeer(of *runningView, node string) *peer {
	p := &peer{of: of, node: node, view: of.New(node), tree: views.NewTree(of.o.Node, of.Selects), inbox: newInbox(), log: of.log}
	if node != "" {
		p.log = of.log.With().Str("shows", node).Logger()
	}
	p.few = p.log.Sample(&zerolog.BurstSampler{Burst: 20, Period: 10 * time.Second})
	return p
}

func (p *peer) problem() string {
	if why := p.state.why.Load(); why != nil {
		return *why
	}
	if n := p.state.rejected.Load(); n > 0 {
		return fmt.Sprintf("%d Devices can't be shown: see the log", n)
	}
	return ""
}

// reconnect is the wait between attempts to connect: what a view shows equals the tree seconds after its broker is back, however long that was
// away. A hub that has a connection for each node waits longer, since a broker that returns must take them all.
func (o *Options) reconnect(node string) backoff.Backoff {
	b := backoff.Backoff{Min: 500 * time.Millisecond, Max: 4 * time.Second}
	if node != "" && o.Node == "" {
		b.Max = 30 * time.Second
	}
	return b
}

const steadyTime = 10 * time.Second // a connection that has lasted so long was well

// run keeps the view connected until ctx ends, or the node is gone.
func (p *peer) run(ctx context.Context) {
	p.load(ctx)
	for failures := 0; ctx.Err() == nil && !p.gone; failures++ {
		began := time.Now()
		err := p.connect(ctx)
		p.state.connected.Store(false)
		if ctx.Err() != nil || p.gone {
			return
		}
		if time.Since(began) > steadyTime {
			failures = 0
		}
		if err != nil {
			p.note(err)
			p.log.Warn().Err(err).Msg("the view's connection to its peer has ended: trying again")
		}
		if !backoff.Sleep(ctx, p.of.o.reconnect(p.node).Spread(failures)) {
			return
		}
	}
}

// note keeps why the view isn't well, and says whether that is news; nil: it is well.
func (p *peer) note(err error) (news bool) {
	if err == nil {
		return p.state.why.Swap(nil) != nil
	}
	why := err.Error()
	before := p.state.why.Swap(&why)
	return before == nil || *before != why
}

// load reads what the tree has. What it publishes meanwhile is in the inbox, and is taken after it.
func (p *peer) load(ctx context.Context) {
	node := cmp.Or(p.node, anyNode(p.of.o.Node))
	for _, keys := range []string{"state", "membership/#", "devices/#"} {
		read := p.of.o.Retained(topics.Prefix + node + "/" + keys)
		for list := read(snapshotBatch); len(list) > 0 && ctx.Err() == nil; list = read(snapshotBatch) {
			for _, m := range list {
				p.tree.Apply(m.Topic, m.Payload, timeOf(m))
			}
		}
	}
}

// timeOf is when a value was so.
func timeOf(m broker.Message) time.Time {
	for _, u := range m.Props.User {
		if u.Key == "ts" {
			if at, err := resource.ParseTime(u.Value); err == nil {
				return at
			}
		}
	}
	return time.Time{}
}

// clientOptions are those of a connection to the peer.
func (v *View) clientOptions(o Options, node, purpose string) client.Options {
	c := client.Options{
		Servers: []string{cmp.Or(v.Peer.Server, ownServer)}, ClientID: v.Peer.ClientID, User: v.Peer.User, Secret: v.Peer.Secret, TLS: v.Peer.TLS,
		Roots: v.Peer.Roots, CleanStart: true, ReceiveMaximum: maxReceived, Backoff: o.reconnect(node),
	}
	switch {
	case v.Peer.Server == "":
		c.ClientID, c.Dial = "view-"+v.Name, ownDial(o, v.Name)
	case c.ClientID == "": // other nodes may be there as well
		c.ClientID = "edgebus-" + cmp.Or(o.Node, "hub") + "-" + v.Name
	}
	if node != "" {
		c.ClientID += "-" + node
	}
	c.ClientID += purpose
	return c
}

var errEnded = errors.New("the connection of a view ended")

// connect makes a connection, and serves it to its end.
func (p *peer) connect(ctx context.Context) error {
	n, err := p.of.record.next(p.node)
	if err != nil {
		return fmt.Errorf("the number of the connection can't be stored: %w", err)
	}
	s := newSession(p, n)
	o := p.of.clientOptions(*p.of.o, p.node, "")
	if w := s.exchange.Connection.Will; w != nil {
		will := toClient(*w)
		o.Will = &will
	}
	o.OnConnect, o.OnMessage = s.begin, s.receive
	o.OnDisconnect = func(err error) { s.lose(cmp.Or(err, errEnded)) }
	o.OnConnectError = func(err error) {
		p.of.counters.failures.Add(1)
		if p.note(err) {
			p.log.Warn().Err(err).Msg("no connection to the view's peer: trying again")
		}
	}
	if s.client, err = client.New(o); err != nil {
		return err
	}
	if s.exchange.Connection.Will != nil {
		s.client.PublishWillAtEnd()
	}
	running, stop := context.WithCancel(context.WithoutCancel(ctx))
	s.stopped = running.Done()
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = s.client.Run(running) // it ends with the context
	}()
	defer func() { stop(); <-ended }()
	return s.serve(ctx)
}
