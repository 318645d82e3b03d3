// SPDX-License-Identifier: Apache-2.0

// Package presence has a program of a node say on the node's broker that it runs, so that its end is noticed at once: the broker publishes its
// will. A program that takes the node's name from the broker can have a will from its second connection on only, which it makes at once.
//
// It never decides what an absent program means: that is the hub's.
package presence

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/edgebus/edgebus/broker/client"
	"github.com/edgebus/edgebus/topics"
	"github.com/edgebus/edgebus/topics/resource"
)

// Presence is that of one program.
type Presence struct {
	mqtt *client.Client
	kind topics.Kind

	mu   sync.Mutex
	node string // empty until the broker has said it
}

// New makes the Presence of the client's program, which has the topic of a kind.
func New(mqtt *client.Client, kind topics.Kind) *Presence { return &Presence{mqtt: mqtt, kind: kind} }

var errNamed = errors.New("the node's name is known: the next connection has a will")

// Named is told the node's name with each message. With another name than before the client connects again, with a will.
func (p *Presence) Named(node string) {
	p.mu.Lock()
	same := p.node == node
	p.node = node
	p.mu.Unlock()
	if same {
		return
	}
	if err := p.mqtt.SetWill(p.message(node, resource.Offline)); err == nil {
		p.mqtt.Reconnect(errNamed)
	}
}

func (p *Presence) message(node, state string) client.Message {
	return client.Message{Topic: topics.Address{Node: node, Kind: p.kind}.String(), Payload: []byte(state), QoS: 1, Retain: true}
}

// Connected publishes that the program runs, at the beginning of a connection. A broker that refuses it is served all the same.
func (p *Presence) Connected(ctx context.Context) error {
	err := p.publish(ctx, resource.Online)
	if errors.As(err, new(*client.Refused)) {
		return nil
	}
	return err
}

func (p *Presence) publish(ctx context.Context, state string) error {
	p.mu.Lock()
	node := p.node
	p.mu.Unlock()
	if node == "" {
		return nil
	}
	return p.mqtt.Publish(ctx, p.message(node, state))
}

// Run keeps the client connected until ctx ends, and then says that the program ends.
func (p *Presence) Run(ctx context.Context) error {
	connected, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	end := make(chan error, 1)
	go func() { end <- p.mqtt.Run(connected) }()
	select {
	case err := <-end:
		return err
	case <-ctx.Done():
	}
	if p.mqtt.Connected() {
		goodbye, cancel := context.WithTimeout(connected, time.Second)
		_ = p.publish(goodbye, resource.Offline) // else the broker finds out by itself
		cancel()
	}
	stop()
	return <-end
}
