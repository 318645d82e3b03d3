// SPDX-License-Identifier: Apache-2.0

// Package flood is what bad clients do to a broker: each flood goes on with all its
// strength until it is stopped. Tests hold the real programs to their bounds under
// them, and the benchmark measures what a well-behaved neighbour notices.
//
// It never checks anything, and is never gentle.
package flood

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/edgebus/edgebus/topics/backoff"
)

// Target is where a flood is let loose. What is empty isn't there.
type Target struct {
	MQTT, WebSocket, HTTP string
	// Tree is a topic of a node's tree that clients may set, with 1 as a value.
	Tree string

	// The users whose credentials the attacks have: User is one that they guess at, Other has few rights, and Node is one of
	// a node. Other and Node have the Password.
	User, Other, Node, Password string
}

// Flood is one kind of bad neighbour.
type Flood struct {
	Name string
	What string // it does, for people
	run  func(ctx context.Context, t Target)
}

// Run goes on until ctx ends.
func (f Flood) Run(ctx context.Context, t Target) {
	for ctx.Err() == nil {
		f.run(ctx, t)
	}
}

// Floods lists the floods.
func Floods() []Flood {
	return []Flood{
		{"qos0", "publishes at QoS 0 at full speed, 256 bytes", floodQoS0},
		{"qos1", "publishes at QoS 1 with 1,000 in flight, 256 bytes", floodQoS1},
		{"topics", "publishes at QoS 0 on one topic of 60 kB after the other", floodLongTopics},
		{"refused", "publishes what is refused, at QoS 0 at full speed", floodRefused},
		{"stalled", "subscribes to # and reads nothing, while it publishes 64 KiB at a time itself", floodStalled},
		{"deaf", "subscribes to # on 200 connections and reads none of them", floodUnread},
		{"served", "subscribes to # and takes all there is, again and again", floodSubscriber},
		{"subscriptions", "subscribes to 10,000 filters and unsubscribes again", floodSubscriptions},
		{"connects", "connects and disconnects", floodConnects},
		{"takeovers", "connects under the same name on 20 connections, to a session that outlives them", floodTakeovers},
		{"halves", "opens 500 connections that say half a CONNECT, or half of what makes a WebSocket", floodHalfConnects},
		{"passwords", "tries passwords", floodPasswords},
		{"retained", "retains 100 KiB on one topic after the other", floodRetained},
		{"offline", "publishes at QoS 1 to a durable session whose client is away", floodOffline},
		{"hoards", "publishes at QoS 1 to 30 durable sessions whose clients are away", floodOfflineQueues},
		{"malformed", "sends malformed packets", floodMalformed},
		{"announced", "announces packets of 1 MiB on 200 connections and sends a part", floodAnnounced},
		{"pings", "sends PINGREQs and reads no answer", floodPings},
		{"fragments", "sends WebSocket frames of no bytes, and pings", floodFragments},
		{"watches", "opens 200 watches and lists, and reads none of them", floodWatches},
		{"sessions", "leaves one session after the other behind, each for an hour", floodSessions}, // they stay
		{"tree", "publishes values into the tree at QoS 0 at full speed", floodValues},             // what the sockets hold lasts for half a minute
	}
}

// Find finds a flood, or an attack.
func Find(name string) (Flood, error) {
	for _, f := range append(Floods(), Attacks()...) {
		if f.Name == name {
			return f, nil
		}
	}
	return Flood{}, fmt.Errorf("no flood is named %q", name)
}

var floodPayload = make([]byte, 256)

// sendRepeatedly writes packets many times over, for as long as they are taken.
func sendRepeatedly(ctx context.Context, t Target, read bool, packets ...[]byte) {
	p, err := connectPeer(ctx, t.MQTT, connectOptions{})
	if err != nil {
		return
	}
	defer p.Close()
	if read {
		go p.ignore()
	}
	var many []byte
	for range 64 {
		for _, packet := range packets {
			many = append(many, packet...)
		}
	}
	for err == nil {
		_, err = p.Write(many)
	}
}

func floodQoS0(ctx context.Context, t Target) {
	sendRepeatedly(ctx, t, true, encodePublish("flood/a", 0, 0, floodPayload))
}

func floodLongTopics(ctx context.Context, t Target) {
	p, err := connectPeer(ctx, t.MQTT, connectOptions{})
	if err != nil {
		return
	}
	defer p.Close()
	go p.ignore()
	long := strings.Repeat("x", 60_000)
	for i := 0; err == nil; i++ {
		_, err = p.Write(encodePublish(fmt.Sprintf("flood/%d/%s", i, long), 0, 0, nil))
	}
}

// floodValues changes what it sets every time: the same once more would be nothing to store.
func floodValues(ctx context.Context, t Target) {
	sendRepeatedly(ctx, t, true, encodePublish(t.Tree, 0, 0, []byte("1")), encodePublish(t.Tree, 0, 0, []byte("2")))
}

func floodRefused(ctx context.Context, t Target) {
	sendRepeatedly(ctx, t, true, encodePublish("v1/nodes/n1/sync/up", 0, 0, floodPayload))
}

func floodPings(ctx context.Context, t Target) { sendRepeatedly(ctx, t, false, []byte{0xC0, 0}) }

func floodQoS1(ctx context.Context, t Target) { publishAcknowledged(ctx, t, floodPayload, "flood/b") }

// publishAcknowledged keeps 1,000 publishes in flight.
func publishAcknowledged(ctx context.Context, t Target, payload []byte, topics ...string) {
	p, err := connectPeer(ctx, t.MQTT, connectOptions{})
	if err != nil {
		return
	}
	defer p.Close()
	for id := range uint16(1000) {
		if _, err := p.Write(encodePublish(topics[int(id)%len(topics)], 2, id+1, payload)); err != nil {
			return
		}
	}
	for {
		ack, err := p.answer()
		if err != nil || len(ack) < 3 {
			return
		}
		id := binary.BigEndian.Uint16(ack[1:])
		if _, err := p.Write(encodePublish(topics[int(id)%len(topics)], 2, id, payload)); err != nil {
			return
		}
	}
}

func floodStalled(ctx context.Context, t Target) {
	p, err := connectPeer(ctx, t.MQTT, connectOptions{})
	if err != nil {
		return
	}
	defer p.Close()
	if _, err := p.Write(encodeSubscribe("#")); err != nil {
		return
	}
	sendRepeatedly(ctx, t, true, encodePublish("flood/c", 0, 0, make([]byte, 64<<10)))
}

func floodUnread(ctx context.Context, t Target) {
	holdConnections(ctx, t, 200, func(p *peer) {
		_, err := p.Write(encodeSubscribe("#"))
		for err == nil { // it has to notice its end without reading
			backoff.Sleep(ctx, time.Second)
			_, err = p.Write([]byte{0xC0, 0})
		}
	})
}

// holdConnections keeps so many clients connected: one that the broker is tired of, or did not let in, comes again.
func holdConnections(ctx context.Context, t Target, n int, f func(*peer)) {
	runParallel(n, func(int) {
		for ctx.Err() == nil {
			p, err := connectPeer(ctx, t.MQTT, connectOptions{})
			if err != nil {
				backoff.Sleep(ctx, longPause)
				continue
			}
			f(p)
			_ = p.Close()
		}
	})
}

// floodSubscriber acknowledges nothing, for its subscription is of QoS 0. It begins again when
// what it got last has not gone on for a while.
func floodSubscriber(ctx context.Context, t Target) {
	p, err := connectPeer(ctx, t.MQTT, connectOptions{})
	if err != nil {
		return
	}
	defer p.Close()
	for ctx.Err() == nil {
		if _, err := p.Write(append(encodeUnsubscribe("#"), encodeSubscribeQoS(0, "#")...)); err != nil {
			return
		}
		for more := true; more; {
			_ = p.SetReadDeadline(time.Now().Add(longPause))
			n, err := p.r.Discard(64 << 10)
			if more = n > 0; err != nil && !errors.Is(err, os.ErrDeadlineExceeded) {
				return
			}
		}
	}
}

func floodSubscriptions(ctx context.Context, t Target) {
	p, err := connectPeer(ctx, t.MQTT, connectOptions{})
	if err != nil {
		return
	}
	defer p.Close()
	go p.ignore()
	var all [][]string
	for i := range 100 {
		var some []string
		for j := range 100 {
			some = append(some, fmt.Sprintf("flood/+/%d/%d/#", i, j))
		}
		all = append(all, some)
	}
	for err == nil {
		for _, write := range []func(...string) []byte{encodeSubscribe, encodeUnsubscribe} {
			for _, some := range all {
				_, err = p.Write(write(some...))
			}
		}
	}
}

func floodConnects(ctx context.Context, t Target) {
	runParallel(20, func(int) {
		for ctx.Err() == nil {
			if p, err := connectPeer(ctx, t.MQTT, connectOptions{}); err == nil {
				_ = p.Close()
			}
		}
	})
}

func floodTakeovers(ctx context.Context, t Target) {
	runParallel(20, func(int) {
		for ctx.Err() == nil {
			if p, err := connectPeer(ctx, t.MQTT, connectOptions{id: "flood-same", keep: 3600}); err == nil {
				stop := context.AfterFunc(ctx, func() { _ = p.Close() })
				p.ignore() // until the next one has taken the session over
				stop()
				_ = p.Close()
			}
		}
	})
}

func floodSessions(ctx context.Context, t Target) {
	runParallel(20, func(int) {
		for ctx.Err() == nil {
			if p, err := connectPeer(ctx, t.MQTT, connectOptions{keep: 3600}); err == nil {
				if _, err = p.Write(encodeSubscribe("flood/mine")); err == nil {
					_, _ = p.answer()
				}
				_ = p.Close()
			}
		}
	})
}

func floodPasswords(ctx context.Context, t Target) {
	runParallel(20, func(int) {
		for ctx.Err() == nil {
			if p, err := connectPeer(ctx, t.MQTT, connectOptions{user: "root", password: rand.Text()}); err == nil {
				_ = p.Close()
			}
		}
	})
}

// floodHalfConnects are refilled when the broker closes them.
func floodHalfConnects(ctx context.Context, t Target) {
	runParallel(500, func(i int) {
		addr, half := t.MQTT, connectOptions{}.connect()[:8]
		if i%2 == 0 && t.WebSocket != "" {
			addr, half = t.WebSocket, []byte("GET /mqtt HTTP/1.1\r\nHost:")
		}
		for ctx.Err() == nil {
			p, err := dialPeer(ctx, addr)
			if err != nil {
				continue
			}
			if _, err = p.Write(half); err == nil {
				p.ignore()
			}
			_ = p.Close()
		}
	})
}

func floodAnnounced(ctx context.Context, t Target) {
	head := encodePacket(0x30, make([]byte, 1<<20-100))[:4]
	holdConnections(ctx, t, 200, func(p *peer) {
		go p.ignore()
		_, err := p.Write(append(head[:4:4], make([]byte, 4096)...))
		for err == nil {
			backoff.Sleep(ctx, time.Second)
			_, err = p.Write([]byte{0})
		}
	})
}

func floodRetained(ctx context.Context, t Target) {
	p, err := connectPeer(ctx, t.MQTT, connectOptions{})
	if err != nil {
		return
	}
	defer p.Close()
	large := make([]byte, 100<<10)
	for i := 0; ; i++ {
		if _, err := p.Write(encodePublish(fmt.Sprintf("flood/kept/%d", i%100_000), 3, uint16(i%500+1), large)); err != nil {
			return
		}
		if i >= 400 {
			if _, err := p.answer(); err != nil {
				return
			}
		}
	}
}

func floodOffline(ctx context.Context, t Target) {
	p, err := connectPeer(ctx, t.MQTT, connectOptions{id: "flood-away", keep: 3600})
	if err != nil {
		return
	}
	if _, err = p.Write(encodeSubscribe("flood/away")); err == nil {
		_, err = p.answer()
	}
	_ = p.Close()
	if err == nil {
		publishAcknowledged(ctx, t, make([]byte, 4096), "flood/away")
	}
}

// floodOfflineQueues fills the queues of many who are away.
func floodOfflineQueues(ctx context.Context, t Target) {
	var topics []string
	for n := range 30 {
		p, err := connectPeer(ctx, t.MQTT, connectOptions{id: fmt.Sprintf("flood-hoard-%d", n), keep: 3600})
		if err != nil {
			return
		}
		topics = append(topics, fmt.Sprintf("flood/hoard/%d", n))
		if _, err = p.Write(encodeSubscribe(topics[n])); err == nil {
			_, err = p.answer()
		}
		_ = p.Close()
		if err != nil {
			return
		}
	}
	publishAcknowledged(ctx, t, make([]byte, 16<<10), topics...)
}

func floodMalformed(ctx context.Context, t Target) {
	bad := [][]byte{
		{0x10, 0xFF, 0xFF, 0xFF, 0xFF, 0x01},
		{0x00, 0x00},
		{0x30, 0x02, 0xFF, 0xFF},
		{0x10, 0x04, 0, 4, 'M', 'Q'},
		append(connectOptions{}.connect(), 0x36, 0x00), append(connectOptions{}.connect(), 0x82, 0x01, 0x00), append(connectOptions{}.connect(), encodePacket(0x30, appendText(nil, "a/#"))...),
	}
	runParallel(10, func(n int) {
		for i := n; ctx.Err() == nil; i++ {
			if p, err := dialPeer(ctx, t.MQTT); err == nil {
				_, _ = p.Write(bad[i%len(bad)])
				p.ignore()
				_ = p.Close()
			}
		}
	})
}

// floodFragments never ends its message: after its CONNECT come frames without content.
func floodFragments(ctx context.Context, t Target) {
	p, err := dialPeer(ctx, t.WebSocket)
	if err != nil {
		return
	}
	defer p.Close()
	fmt.Fprintf(p, "GET /mqtt HTTP/1.1\r\nHost: %s\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\n"+
		"Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\nSec-WebSocket-Protocol: mqtt\r\n\r\n", t.WebSocket)
	go p.ignore()
	connect := connectOptions{}.connect()
	if _, err = p.Write(webSocketFrame(0x02, connect)); err != nil {
		return
	}
	var many []byte
	for range 64 {
		many = append(append(many, webSocketFrame(0x00, nil)...), webSocketFrame(0x89, floodPayload[:8])...)
	}
	for err == nil {
		_, err = p.Write(many)
	}
}

// webSocketFrame is one of a WebSocket, masked with zeros.
func webSocketFrame(first byte, body []byte) []byte {
	return append([]byte{first, 0x80 | byte(len(body)), 0, 0, 0, 0}, body...)
}

// floodWatches are answered at once and never read.
func floodWatches(ctx context.Context, t Target) {
	runParallel(200, func(i int) {
		query := ""
		if i%2 == 0 {
			query = "?watch=1"
		}
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+t.HTTP+"/apis/edgebus.io/v1alpha1/devices"+query, nil)
		if err != nil {
			return
		}
		transport := &http.Transport{DisableKeepAlives: true, ReadBufferSize: 512}
		resp, err := transport.RoundTrip(req)
		if err != nil {
			backoff.Sleep(ctx, longPause)
			return
		}
		defer resp.Body.Close()
		if i%2 == 0 {
			<-ctx.Done()
		}
		_, _ = io.CopyN(io.Discard, resp.Body, 100)
	})
}

// runParallel runs n at a time.
func runParallel(n int, f func(i int)) {
	var all sync.WaitGroup
	for i := range n {
		all.Go(func() { f(i) })
	}
	all.Wait()
}
