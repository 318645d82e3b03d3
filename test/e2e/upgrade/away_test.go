// SPDX-License-Identifier: Apache-2.0

package upgrade

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/edgebus/edgebus/broker/client"
	"github.com/edgebus/edgebus/test/stand"
	"github.com/edgebus/edgebus/topics/resource"
)

// nodePair is a client with a session that publishes numbers at the node's broker, and another one that subscribes to them. Both connect again
// whenever they lose the connection.
type nodePair struct {
	n       *testNode
	mu      sync.Mutex
	acked   []string             // numbers that the broker has acknowledged
	got     map[string]bool      // numbers that the subscriber has
	lost    map[string]time.Time // since when a client has no connection
	away    []time.Duration      // for how long clients had none
	resumed map[string]int       // how often a client has found its session again
	fresh   int                  // how often one has not
}

const numbersTopic = "plant/numbers"

// exchange starts a pair. stop ends the publisher, and waits until it has.
func (n *testNode) exchange() (p *nodePair, stop func()) {
	n.t.Helper()
	p = &nodePair{n: n, got: map[string]bool{}, lost: map[string]time.Time{}, resumed: map[string]int{}}
	p.client("subscriber", client.Subscription{Filter: numbersTopic, QoS: 1})
	c := p.client("publisher")
	ctx, cancel := context.WithCancel(n.t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for i := 0; ctx.Err() == nil; i++ {
			if n.Publish(c, numbersTopic, strconv.Itoa(i)) == nil {
				p.mu.Lock()
				p.acked = append(p.acked, strconv.Itoa(i))
				p.mu.Unlock()
			}
			time.Sleep(time.Millisecond) // a pace, so that the queue of an absent subscriber stays within its limit
		}
	}()
	stop = func() { cancel(); <-ended }
	n.t.Cleanup(stop)
	return p, stop
}

func (p *nodePair) client(name string, filters ...client.Subscription) *client.Client {
	return p.n.Client(p.n.Core(), func(o *client.Options) {
		o.ClientID, o.CleanStart, o.SessionExpiry, o.Subscriptions = name, false, time.Hour, filters
		o.OnConnect = func(_ context.Context, present bool) error {
			p.mu.Lock()
			defer p.mu.Unlock()
			since, again := p.lost[name]
			switch {
			case !again: // the first time
			case present:
				p.resumed[name]++
			default:
				p.fresh++
			}
			if again {
				p.away = append(p.away, time.Since(since))
			}
			return nil
		}
		o.OnDisconnect = func(error) {
			p.mu.Lock()
			p.lost[name] = time.Now()
			p.mu.Unlock()
		}
		o.OnMessage = func(m client.Message) {
			p.mu.Lock()
			p.got[string(m.Payload)] = true
			p.mu.Unlock()
		}
	})
}

// complete waits until the subscriber has each number that was acknowledged.
func (p *nodePair) complete() {
	p.n.t.Helper()
	p.n.Eventually(2*stand.WaitTimeout, func() error {
		p.mu.Lock()
		defer p.mu.Unlock()
		if i := slices.IndexFunc(p.acked, func(number string) bool { return !p.got[number] }); i >= 0 {
			return fmt.Errorf("of %d numbers that were acknowledged the subscriber lacks %s", len(p.acked), p.acked[i])
		}
		return nil
	})
}

// Clients of the node's broker lose the connection while it is upgraded, and then find their sessions: no message that was acknowledged is lost.
func TestClientsKeepTheirSessions(t *testing.T) {
	t.Parallel()
	n := newTestNode(t, time.Minute)
	p, stop := n.exchange()
	r := n.order(n.bundle("v1.1.0", map[string][]byte{"edgecore": workingCore(t, "v1.1.0")}))
	require.Equal(t, resource.UpgradeSuccess, r.Result, "%+v", r)
	n.Eventually(stand.WaitTimeout, func() error {
		p.mu.Lock()
		defer p.mu.Unlock()
		if p.resumed["publisher"] == 0 || p.resumed["subscriber"] == 0 {
			return fmt.Errorf("sessions were resumed %v times", p.resumed)
		}
		return nil
	})
	stop()
	p.complete()
	p.mu.Lock()
	defer p.mu.Unlock()
	require.Zero(t, p.fresh, "a session was lost")
	t.Logf("clients were away for %s, %d messages were acknowledged", p.away, len(p.acked))
	n.whole("v1.1.0")
}

// BenchmarkClientsAway is for how long a client of the node's broker has no connection while that is upgraded. Docs say that it is under 2 s.
func BenchmarkClientsAway(b *testing.B) {
	n := newTestNode(b, time.Minute)
	p, stop := n.exchange()
	version := "v1.0.0"
	for b.Loop() {
		version = map[string]string{"v1.0.0": "v1.1.0", "v1.1.0": "v1.0.0"}[version]
		o := n.bundle(version, map[string][]byte{"edgecore": workingCore(b, version)})
		o.AllowDowngrade = true
		r := n.order(o)
		require.Equal(b, resource.UpgradeSuccess, r.Result, "%+v", r)
	}
	stop()
	p.complete()
	p.mu.Lock()
	defer p.mu.Unlock()
	require.NotEmpty(b, p.away)
	slices.Sort(p.away)
	b.ReportMetric(float64(p.away[len(p.away)/2].Milliseconds()), "ms-away-p50")
	b.ReportMetric(float64(p.away[len(p.away)-1].Milliseconds()), "ms-away-max")
	b.ReportMetric(0, "ns/op")
}
