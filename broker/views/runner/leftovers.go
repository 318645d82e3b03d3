// SPDX-License-Identifier: Apache-2.0

package runner

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/edgebus/edgebus/broker/client"
	"github.com/edgebus/edgebus/broker/views"
	"github.com/edgebus/edgebus/topics"
	"github.com/edgebus/edgebus/topics/backoff"
)

// quietTime is how long nothing retained must have come before a broker has sent all that it has: MQTT doesn't say when that is.
const quietTime = 2 * time.Second

// clearFirst is how long a view waits for what is cleared of it by its settings before: the same broker may have another address now.
const clearFirst = 10 * time.Second

// clearLeftovers clears what a view has published that is switched off, or elsewhere, until it is done or ctx ends. tried is called after the first attempt.
func (v *Views) clearLeftovers(ctx context.Context, r *record, tried func()) {
	defer tried()
	log := v.o.Log.With().Str("view", r.View).Str("file", r.path).Logger()
	view, err := v.o.Restore(r.View, r.Settings)
	if err != nil {
		log.Error().Err(err).Msg("what a view has published can't be cleared: clear it at its peer, and delete the file")
		v.noteUncleared(r, err)
		return
	}
	log = log.With().Str("at", cmp.Or(view.Peer.Server, "the program's own broker")).Logger()
	for failures := 0; ; failures++ {
		cleared, err := v.clearAll(ctx, view, r)
		if err == nil {
			err = r.remove()
		}
		if ctx.Err() != nil {
			return
		}
		tried()
		v.noteUncleared(r, err)
		if err == nil {
			log.Info().Int("messages", cleared).Msg("the view was switched off or changed: what it had published is cleared")
			return
		}
		log.Warn().Err(err).Msg("what a view has published can't be cleared yet: trying again. If that broker is gone for good, delete the file, and start the program again")
		if !backoff.Sleep(ctx, retryClearing.Spread(failures)) {
			return
		}
	}
}

var retryClearing = backoff.Backoff{Min: 500 * time.Millisecond, Max: 30 * time.Second}

func (v *Views) noteUncleared(r *record, err error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if delete(v.uncleared, r.path); err != nil {
		v.uncleared[r.path] = unclearedView{r.View, fmt.Sprintf("what it has published can't be cleared: %v; if that broker is gone for good, delete %s, and start the program again", err, r.path)}
	}
}

// clearAll clears what a view has published, for each node that it had a connection of.
func (v *Views) clearAll(ctx context.Context, view View, r *record) (cleared int, err error) {
	nodes := slices.Sorted(maps.Keys(r.Connections))
	if !view.PerNode {
		nodes = []string{""}
	}
	for _, node := range nodes {
		n, err := v.clearOne(ctx, view, node, r.Connections[node])
		if cleared += n; err != nil {
			return cleared, err
		}
	}
	return cleared, nil
}

func (v *Views) clearOne(ctx context.Context, view View, node string, n uint64) (cleared int, err error) {
	c := view.New(node).Connect(n)
	if len(c.Retained) == 0 || c.Owns == nil {
		return 0, nil
	}
	shown := v.showsAt(view.Peer.Server)
	found := make(chan views.Message)
	failed := make(chan error, 1)
	up := make(chan struct{}, 1)
	fail := func(err error) {
		select {
		case failed <- err:
		default:
		}
	}
	running, stop := context.WithCancel(ctx)
	o := view.clientOptions(v.o, node, "-clear")
	for _, f := range c.Retained {
		o.Subscriptions = append(o.Subscriptions, client.Subscription{Filter: f, QoS: 1, NoLocal: true, RetainAsPublished: true})
	}
	o.OnConnect = func(context.Context, bool) error { up <- struct{}{}; return nil }
	o.OnConnectError = fail
	o.OnDisconnect = func(err error) { fail(errors.Join(errEnded, err)) }
	o.OnMessage = func(m client.Message) {
		select {
		case found <- fromClient(m):
		case <-running.Done():
		}
	}
	to, err := client.New(o)
	if err != nil {
		stop()
		return 0, err
	}
	ended := make(chan struct{})
	go func() { defer close(ended); _ = to.Run(running) }()
	defer func() { stop(); <-ended }()
	quiet := time.NewTimer(time.Hour)
	for {
		select {
		case <-up:
			quiet.Reset(quietTime)
		case m := <-found:
			quiet.Reset(quietTime)
			if !m.Retain || len(m.Payload) == 0 || !c.Owns(m) || shown(m) {
				continue
			}
			if err := to.Publish(running, client.Message{Topic: m.Topic, QoS: 1, Retain: true}); err != nil {
				return cleared, err
			}
			cleared++
		case <-quiet.C:
			return cleared, nil
		case err := <-failed:
			return cleared, err
		case <-ctx.Done():
			return cleared, ctx.Err()
		}
	}
}

// showsAt reports whether a view that is switched on owns a message at a server: it clears that by itself if it doesn't publish it.
func (v *Views) showsAt(server string) func(views.Message) bool {
	var list []views.Connection
	for _, run := range v.running {
		if c := run.New("").Connect(1); run.Peer.Server == server && c.Owns != nil {
			list = append(list, c)
		}
	}
	return func(m views.Message) bool {
		return slices.ContainsFunc(list, func(c views.Connection) bool {
			return c.Owns(m) && slices.ContainsFunc(c.Retained, func(f string) bool { return topics.Match(f, m.Topic) })
		})
	}
}
