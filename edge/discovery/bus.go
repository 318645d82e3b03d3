// SPDX-License-Identifier: Apache-2.0

package discovery

import (
	"context"
	"encoding/json"
	"sync"
	"time"

	"github.com/edgebus/edgebus/broker/client"
	"github.com/edgebus/edgebus/broker/client/presence"
	"github.com/edgebus/edgebus/topics"
	"github.com/edgebus/edgebus/topics/resource"
)

// clientID is edgediscovery's at the broker. There is one on a node.
const clientID = "edgediscovery"

// sweepTime is the time after a connect in which a Configuration must be received. Otherwise it was removed while there was no
// connection.
const sweepTime = 10 * time.Second

// busClient is the connection to the node's broker.
type busClient struct {
	d        *discovery
	mqtt     *client.Client
	presence *presence.Presence
	secrets  map[string]*resource.SecretValues // by Configuration; discovery.mu guards them

	mu          sync.Mutex
	node        string    // empty until the broker has said it
	connections int       // how many connections there were
	settled     time.Time // when what the broker has retained is taken to be known
}

func newBus(d *discovery, servers []string) (*busClient, error) {
	b := &busClient{d: d, secrets: map[string]*resource.SecretValues{}}
	var subscriptions []client.Subscription
	for _, key := range []string{"status", "secrets/discovery/+", "discovery/+", "discovery/+/handler", "discovery/+/instances/+"} {
		subscriptions = append(subscriptions, client.Subscription{Filter: topics.TopicOf("+", key), QoS: 1, NoLocal: true})
	}
	var err error
	b.mqtt, err = client.New(client.Options{
		Servers: servers, ClientID: clientID, CleanStart: true, KeepAlive: 30 * time.Second,
		Backoff: client.Backoff{Min: 200 * time.Millisecond, Max: 10 * time.Second}, Log: d.log,
		Subscriptions: subscriptions, OnConnect: b.connected, OnMessage: b.message,
	})
	if err == nil {
		b.presence = presence.New(b.mqtt, topics.KindDiscovererState)
	}
	return b, err
}

// connected clears what is known of the broker's instances, because retained messages follow on the new connection. Configurations
// are kept, unless they don't follow within sweep.
func (b *busClient) connected(ctx context.Context, _ bool) error {
	if err := b.presence.Connected(ctx); err != nil {
		return err
	}
	b.mu.Lock()
	b.connections++
	connection := b.connections
	b.settled = time.Now().Add(b.d.o.Timing.Settle)
	b.mu.Unlock()
	b.d.mu.Lock()
	defer b.d.mu.Unlock()
	clear(b.d.broker)
	for _, c := range b.d.configurations {
		signalChange(c.changed)
	}
	time.AfterFunc(sweepTime, func() {
		if node, now, _ := b.connection(); node == "" || now != connection || b.d.ctx.Err() != nil {
			return // the connection was lost before all retained messages arrived
		}
		b.d.mu.Lock()
		defer b.d.mu.Unlock()
		for _, c := range b.d.configurations {
			if c.seenOn != connection {
				b.d.forget(c)
			}
		}
	})
	return nil
}

// connection is the node's name, empty while there is no connection, the connection's number, and when its retained messages are
// taken to be known.
func (b *busClient) connection() (node string, number int, settled time.Time) {
	up := b.mqtt.Connected()
	b.mu.Lock()
	defer b.mu.Unlock()
	if !up {
		return "", b.connections, b.settled
	}
	return b.node, b.connections, b.settled
}

func (b *busClient) message(m client.Message) {
	a, err := topics.Parse(m.Topic)
	if err != nil {
		return
	}
	b.presence.Named(a.Node)
	b.mu.Lock()
	if b.node == "" {
		b.d.log.Info().Str("node", a.Node).Msg("connected to the node's broker")
	}
	b.node = a.Node
	connection := b.connections
	b.mu.Unlock()
	switch a.Kind {
	case topics.KindDiscovery:
		b.d.request(a.Device, m.Payload, connection)
	case topics.KindDiscoverySecret:
		b.d.secret(a.Device, m.Payload)
	case topics.KindInstance, topics.KindDiscoveryHandler:
		if m.Retained && len(m.Payload) > 0 {
			b.d.retained(a, m.Payload)
		}
	}
}

// retained notes what the broker has of a Configuration.
func (d *discovery) retained(a topics.Address, payload []byte) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if a.Kind == topics.KindDiscoveryHandler {
		d.onBroker(a.Device).report = payload
		return
	}
	var found resource.DiscoveredDevice
	if err := json.Unmarshal(payload, &found); err != nil || resource.DiscoveredName(found.ID) != a.Name {
		return // another client's
	}
	d.onBroker(a.Device).instances[a.Name] = brokerInstance{sum: sumOf(payload), payload: payload}
	if c := d.configurations[a.Device]; c != nil {
		signalChange(c.changed)
	}
}

// onBroker is what the broker has of a Configuration. mu is held.
func (d *discovery) onBroker(configuration string) *brokerState {
	p := d.broker[configuration]
	if p == nil {
		p = &brokerState{instances: map[string]brokerInstance{}}
		d.broker[configuration] = p
	}
	return p
}
