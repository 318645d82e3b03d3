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

// All lists the floods.
func All() []Flood {
	return []Flood{
		{"qos0", "publishes at QoS 0 at full speed, 256 bytes", qos0},
		{"qos1", "publishes at QoS 1 with 1,000 in flight, 256 bytes", qos1},
		{"topics", "publishes at QoS 0 on one topic of 60 kB after the other", longTopics},
		{"refused", "publishes what is refused, at QoS 0 at full speed", refused},
		{"stalled", "subscribes to # and reads nothing, while it publishes 64 KiB at a time itself", stalled},
		{"deaf", "subscribes to # on 200 connections and reads none of them", deaf},
		{"served", "subscribes to # and takes all there is, again and again", served},
		{"subscriptions", "subscribes to 10,000 filters and unsubscribes again", subscriptions},
		{"connects", "connects and disconnects", connects},
		{"takeovers", "connects under the same name on 20 connections, to a session that outlives them", takeovers},
		{"halves", "opens 500 connections that say half a CONNECT, or half of what makes a WebSocket", halves},
		{"passwords", "tries passwords", passwords},
		{"retained", "retains 100 KiB on one topic after the other", retained},
		{"offline", "publishes at QoS 1 to a durable session whose client is away", offline},
		{"hoards", "publishes at QoS 1 to 30 durable sessions whose clients are away", hoards},
		{"malformed", "sends malformed packets", malformed},
		{"announced", "announces packets of 1 MiB on 200 connections and sends a part", announced},
		{"pings", "sends PINGREQs and reads no answer", pings},
		{"fragments", "sends WebSocket frames of no bytes, and pings", fragments},
		{"watches", "opens 200 watches and lists, and reads none of them", watches},
		{"sessions", "leaves one session after the other behind, each for an hour", sessions}, // they stay
		{"tree", "publishes values into the tree at QoS 0 at full speed", values},             // what the sockets hold lasts for half a minute
	}
}

// Named finds a flood, or an attack.
func Named(name string) (Flood, error) {
	for _, f := range append(All(), Attacks()...) {
		if f.Name == name {
			return f, nil
		}
	}
	return Flood{}, fmt.Errorf("no flood is named %q", name)
}

var payload = make([]byte, 256)

// pour writes packets many times over, for as long as they are taken.
func pour(ctx context.Context, t Target, read bool, packets ...[]byte) {
	p, err := join(ctx, t.MQTT, client{})
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

func qos0(ctx context.Context, t Target) { pour(ctx, t, true, publish("flood/a", 0, 0, payload)) }

func longTopics(ctx context.Context, t Target) {
	p, err := join(ctx, t.MQTT, client{})
	if err != nil {
		return
	}
	defer p.Close()
	go p.ignore()
	long := strings.Repeat("x", 60_000)
	for i := 0; err == nil; i++ {
		_, err = p.Write(publish(fmt.Sprintf("flood/%d/%s", i, long), 0, 0, nil))
	}
}

// values changes what it sets every time: the same once more would be nothing to store.
func values(ctx context.Context, t Target) {
	pour(ctx, t, true, publish(t.Tree, 0, 0, []byte("1")), publish(t.Tree, 0, 0, []byte("2")))
}

func refused(ctx context.Context, t Target) {
	pour(ctx, t, true, publish("v1/nodes/n1/sync/up", 0, 0, payload))
}

func pings(ctx context.Context, t Target) { pour(ctx, t, false, []byte{0xC0, 0}) }

func qos1(ctx context.Context, t Target) { acknowledged(ctx, t, payload, "flood/b") }

// acknowledged keeps 1,000 publishes in flight.
func acknowledged(ctx context.Context, t Target, payload []byte, topics ...string) {
	p, err := join(ctx, t.MQTT, client{})
	if err != nil {
		return
	}
	defer p.Close()
	for id := range uint16(1000) {
		if _, err := p.Write(publish(topics[int(id)%len(topics)], 2, id+1, payload)); err != nil {
			return
		}
	}
	for {
		ack, err := p.answer()
		if err != nil || len(ack) < 3 {
			return
		}
		id := binary.BigEndian.Uint16(ack[1:])
		if _, err := p.Write(publish(topics[int(id)%len(topics)], 2, id, payload)); err != nil {
			return
		}
	}
}

func stalled(ctx context.Context, t Target) {
	p, err := join(ctx, t.MQTT, client{})
	if err != nil {
		return
	}
	defer p.Close()
	if _, err := p.Write(subscribe("#")); err != nil {
		return
	}
	pour(ctx, t, true, publish("flood/c", 0, 0, make([]byte, 64<<10)))
}

func deaf(ctx context.Context, t Target) {
	hold(ctx, t, 200, func(p *peer) {
		_, err := p.Write(subscribe("#"))
		for err == nil { // it has to notice its end without reading
			pause(ctx, time.Second)
			_, err = p.Write([]byte{0xC0, 0})
		}
	})
}

// hold keeps so many clients connected: one that the broker is tired of, or did not let in, comes again.
func hold(ctx context.Context, t Target, n int, f func(*peer)) {
	each(n, func(int) {
		for ctx.Err() == nil {
			p, err := join(ctx, t.MQTT, client{})
			if err != nil {
				pause(ctx, longPause)
				continue
			}
			f(p)
			_ = p.Close()
		}
	})
}

// served acknowledges nothing, for its subscription is of QoS 0. It begins again when
// what it got last has not gone on for a while.
func served(ctx context.Context, t Target) {
	p, err := join(ctx, t.MQTT, client{})
	if err != nil {
		return
	}
	defer p.Close()
	for ctx.Err() == nil {
		if _, err := p.Write(append(unsubscribe("#"), subscribeAt(0, "#")...)); err != nil {
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

func subscriptions(ctx context.Context, t Target) {
	p, err := join(ctx, t.MQTT, client{})
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
		for _, write := range []func(...string) []byte{subscribe, unsubscribe} {
			for _, some := range all {
				_, err = p.Write(write(some...))
			}
		}
	}
}

func connects(ctx context.Context, t Target) {
	each(20, func(int) {
		for ctx.Err() == nil {
			if p, err := join(ctx, t.MQTT, client{}); err == nil {
				_ = p.Close()
			}
		}
	})
}

func takeovers(ctx context.Context, t Target) {
	each(20, func(int) {
		for ctx.Err() == nil {
			if p, err := join(ctx, t.MQTT, client{id: "flood-same", keep: 3600}); err == nil {
				stop := context.AfterFunc(ctx, func() { _ = p.Close() })
				p.ignore() // until the next one has taken the session over
				stop()
				_ = p.Close()
			}
		}
	})
}

func sessions(ctx context.Context, t Target) {
	each(20, func(int) {
		for ctx.Err() == nil {
			if p, err := join(ctx, t.MQTT, client{keep: 3600}); err == nil {
				if _, err = p.Write(subscribe("flood/mine")); err == nil {
					_, _ = p.answer()
				}
				_ = p.Close()
			}
		}
	})
}

func passwords(ctx context.Context, t Target) {
	each(20, func(int) {
		for ctx.Err() == nil {
			if p, err := join(ctx, t.MQTT, client{user: "root", password: rand.Text()}); err == nil {
				_ = p.Close()
			}
		}
	})
}

// halves are refilled when the broker closes them.
func halves(ctx context.Context, t Target) {
	each(500, func(i int) {
		addr, half := t.MQTT, client{}.connect()[:8]
		if i%2 == 0 && t.WebSocket != "" {
			addr, half = t.WebSocket, []byte("GET /mqtt HTTP/1.1\r\nHost:")
		}
		for ctx.Err() == nil {
			p, err := dial(ctx, addr)
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

func announced(ctx context.Context, t Target) {
	head := packet(0x30, make([]byte, 1<<20-100))[:4]
	hold(ctx, t, 200, func(p *peer) {
		go p.ignore()
		_, err := p.Write(append(head[:4:4], make([]byte, 4096)...))
		for err == nil {
			pause(ctx, time.Second)
			_, err = p.Write([]byte{0})
		}
	})
}

func retained(ctx context.Context, t Target) {
	p, err := join(ctx, t.MQTT, client{})
	if err != nil {
		return
	}
	defer p.Close()
	large := make([]byte, 100<<10)
	for i := 0; ; i++ {
		if _, err := p.Write(publish(fmt.Sprintf("flood/kept/%d", i%100_000), 3, uint16(i%500+1), large)); err != nil {
			return
		}
		if i >= 400 {
			if _, err := p.answer(); err != nil {
				return
			}
		}
	}
}

func offline(ctx context.Context, t Target) {
	p, err := join(ctx, t.MQTT, client{id: "flood-away", keep: 3600})
	if err != nil {
		return
	}
	if _, err = p.Write(subscribe("flood/away")); err == nil {
		_, err = p.answer()
	}
	_ = p.Close()
	if err == nil {
		acknowledged(ctx, t, make([]byte, 4096), "flood/away")
	}
}

// hoards fills the queues of many who are away.
func hoards(ctx context.Context, t Target) {
	var topics []string
	for n := range 30 {
		p, err := join(ctx, t.MQTT, client{id: fmt.Sprintf("flood-hoard-%d", n), keep: 3600})
		if err != nil {
			return
		}
		topics = append(topics, fmt.Sprintf("flood/hoard/%d", n))
		if _, err = p.Write(subscribe(topics[n])); err == nil {
			_, err = p.answer()
		}
		_ = p.Close()
		if err != nil {
			return
		}
	}
	acknowledged(ctx, t, make([]byte, 16<<10), topics...)
}

func malformed(ctx context.Context, t Target) {
	bad := [][]byte{
		{0x10, 0xFF, 0xFF, 0xFF, 0xFF, 0x01},
		{0x00, 0x00},
		{0x30, 0x02, 0xFF, 0xFF},
		{0x10, 0x04, 0, 4, 'M', 'Q'},
		append(client{}.connect(), 0x36, 0x00), append(client{}.connect(), 0x82, 0x01, 0x00), append(client{}.connect(), packet(0x30, text(nil, "a/#"))...),
	}
	each(10, func(n int) {
		for i := n; ctx.Err() == nil; i++ {
			if p, err := dial(ctx, t.MQTT); err == nil {
				_, _ = p.Write(bad[i%len(bad)])
				p.ignore()
				_ = p.Close()
			}
		}
	})
}

// fragments never ends its message: after its CONNECT come frames without content.
func fragments(ctx context.Context, t Target) {
	p, err := dial(ctx, t.WebSocket)
	if err != nil {
		return
	}
	defer p.Close()
	fmt.Fprintf(p, "GET /mqtt HTTP/1.1\r\nHost: %s\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\n"+
		"Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\nSec-WebSocket-Protocol: mqtt\r\n\r\n", t.WebSocket)
	go p.ignore()
	connect := client{}.connect()
	if _, err = p.Write(frame(0x02, connect)); err != nil {
		return
	}
	var many []byte
	for range 64 {
		many = append(append(many, frame(0x00, nil)...), frame(0x89, payload[:8])...)
	}
	for err == nil {
		_, err = p.Write(many)
	}
}

// frame is one of a WebSocket, masked with zeros.
func frame(first byte, body []byte) []byte {
	return append([]byte{first, 0x80 | byte(len(body)), 0, 0, 0, 0}, body...)
}

// watches are answered at once and never read.
func watches(ctx context.Context, t Target) {
	each(200, func(i int) {
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
			pause(ctx, longPause)
			return
		}
		defer resp.Body.Close()
		if i%2 == 0 {
			<-ctx.Done()
		}
		_, _ = io.CopyN(io.Discard, resp.Body, 100)
	})
}

// each runs n at a time.
func each(n int, f func(i int)) {
	var all sync.WaitGroup
	for i := range n {
		all.Go(func() { f(i) })
	}
	all.Wait()
}
