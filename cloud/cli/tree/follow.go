// SPDX-License-Identifier: Apache-2.0

package tree

import (
	"context"
	"math"
	"time"

	"github.com/edgebus/edgebus/broker/client"
	"github.com/edgebus/edgebus/cloud/cli/access"
	"github.com/edgebus/edgebus/cloud/cli/exitcode"
	"github.com/edgebus/edgebus/topics"
)

// firstTopicTime is how long to wait for the first topic, which a broker sends at once after the subscription.
const firstTopicTime = 2 * time.Second

// Source is the broker that a node's tree is read from.
type Source struct {
	Target  access.Target
	OfHub   bool // the broker is the hub's, whose API knows what other nodes there are
	Once    bool // what is there now is enough
	Forever bool // a lost connection is never given up
}

// Follow subscribes to a node's tree. The channel closes when ctx ends. A
// connection that is refused or can't be made at first is an error in the channel, and so is
// that the broker has no topic of the node; a connection that is lost later is made again.
func (s Source) Follow(ctx context.Context, node string) (<-chan Change, error) {
	co, err := s.Target.MQTTOptions("tree")
	if err != nil {
		return nil, err
	}
	changes := make(chan Change, 64)
	send := func(c Change) {
		select {
		case changes <- c:
		case <-ctx.Done():
		}
	}
	seen := s.Forever // by the client's goroutine
	run, end := context.WithCancelCause(ctx)
	nothing := time.AfterFunc(math.MaxInt64, func() {
		near := ""
		if s.OfHub { // otherwise it may be the broker of a node
			near = s.Target.SimilarNode(run, node)
		}
		end(exitcode.Errorf(exitcode.NotFound, "nothing is known of a node %s at %s%s (edgebus get nodes lists the nodes)", node, s.Target.MQTT, near))
	})
	co.Attempts, co.ConnectTimeout = s.attempts(), s.connectTime()
	co.Subscriptions = []client.Subscription{{Filter: topics.Prefix + node + "/#", QoS: 1}}
	co.OnConnect = func(context.Context, bool) error {
		if !seen {
			nothing.Reset(firstTopicTime)
		}
		send(Change{Up: true})
		return nil
	}
	co.OnMessage = func(m client.Message) {
		if c, ok := changeOfMessage(m, time.Now()); ok {
			seen = true
			nothing.Stop()
			send(c)
		}
	}
	co.OnDisconnect = func(err error) {
		nothing.Stop()
		send(Change{down: "not connected to " + s.Target.MQTT + ": " + err.Error()})
	}
	co.OnConnectError = co.OnDisconnect
	c, err := client.New(co)
	if err != nil {
		end(nil)
		return nil, err
	}
	go func() {
		defer close(changes)
		defer end(nil)
		err := c.Run(run)
		switch cause := context.Cause(run); {
		case cause != nil:
			err = cause
		case err != nil:
			err = access.ConnectionError(err, s.Target.MQTT)
		}
		if err != nil && ctx.Err() == nil {
			send(Change{Err: err})
		}
	}()
	return changes, nil
}

func (s Source) connectTime() time.Duration {
	if s.Once {
		return access.ConnectTimeout
	}
	return 0 // the client's default
}

// attempts is how often a connection is tried: fewer times with --once, which is for scripts.
func (s Source) attempts() int {
	switch {
	case s.Forever:
		return 0
	case s.Once:
		return 2
	default:
		return 20
	}
}
