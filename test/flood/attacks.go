// SPDX-License-Identifier: Apache-2.0

package flood

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"fmt"
	"io"
	mathrand "math/rand/v2"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/edgebus/edgebus/topics"
	"github.com/edgebus/edgebus/topics/backoff"
	"github.com/edgebus/edgebus/topics/link"
)

// Attacks lists what somebody may do who holds one credential, or none: each of them once harmed all others. They need
// the users of a Target.
func Attacks() []Flood {
	return []Flood{
		{"fulls", "a node: all that it reports, 119,000 keys, again and again, with two values in turn", attackFulls},
		{"names", "nobody: 20 CONNECTs at a time with names and passwords of 64 KiB full of what looks like tokens", attackNames},
		{"unfinished", "nobody: 600 CONNECTs of 1 MiB that are never finished", attackUnfinished},
		{"guesses", "nobody: 200 wrong passwords at once from the pair's own address, for its user and for names that don't exist, then 4 a second", attackGuesses},
		{"agent", "a mapper: 20 CONNECTs at a time as edgeagent, for a day", attackAgentID},
		{"refusals", "a viewer or mapper: what is refused, each on another topic, at QoS 0 at full speed", attackRefusals},
		{"identifiers", "a viewer or mapper: one client identifier after the other, up to 5,000, each for a week", attackIdentifiers},
		{"lists", "a viewer: 4 lists with a selector at a time", attackLists},
		{"openapi", "a node: /openapi/v2, 4 at a time", attackOpenAPI},
		{"pages", "a viewer: 64 lists of limit=1 at a time", attackPages},
	}
}

// attackerAddress is an address of the attacker's own, where it makes a difference to attack from another than the others.
const attackerAddress = "127.0.0.9"

// as is a client that signs in as a user of the target.
func (t Target) as(user string) connectOptions {
	return connectOptions{user: user, password: t.Password, from: attackerAddress}
}

// nodeKeys are those of the FULLs: fewer than the 120,000 that a node may have.
const nodeKeys = 119_000

// fullMessages are two FULLs, one after the other. Making them takes seconds, in which there is no attack yet.
var fullMessages = sync.OnceValue(func() [][]byte { return append(fullOf(nodeKeys, "1"), fullOf(nodeKeys, "2")...) })

// Prepare makes what the flood or attack of that name sends.
func Prepare(name string) {
	if name == "fulls" {
		fullMessages()
	}
}

// attackFulls publishes two FULLs in turn, as a node's link.
func attackFulls(ctx context.Context, t Target) {
	msgs := fullMessages()
	up, down := topics.SyncTopics(t.Node)
	c := t.as("node/" + t.Node)
	c.id = c.user
	p, err := connectPeer(ctx, t.MQTT, c)
	if err != nil {
		return
	}
	defer p.Close()
	if _, err := p.Write(encodeSubscribe(down)); err != nil {
		return
	}
	const window = 64
	acks := make(chan struct{}, window)
	go p.acknowledge(acks)
	for i := 0; ; i++ {
		if i >= window {
			if _, more := <-acks; !more {
				return
			}
		}
		if _, err := p.Write(encodePublish(up, 2, uint16(i%(2*window)+1), msgs[i%len(msgs)])); err != nil {
			return
		}
	}
}

// fullOf are the messages of a FULL, under a lineage that follows any that a node's first connections have.
func fullOf(keys int, value string) (msgs [][]byte) {
	owner, replica := link.NewOwner(link.Up, mathrand.Uint64), link.NewReplica(link.Up)
	for i := range keys {
		_, _, _ = owner.Put(link.Entry{
			Key:   topics.DeviceKey(fmt.Sprintf("press-%05d", i/10), topics.KindReported, fmt.Sprintf("property-%d", i%10)),
			Value: []byte(value), TS: 1, Origin: "mapper",
		})
	}
	owner.Connect(1000)
	for !owner.InStep() {
		for _, m := range owner.Messages() {
			replica.Step(m)
			if m.Type == link.TypeFull {
				m.Lineage = link.Lineage{N: 1000, Nonce: 1000}
				msg, _ := link.Encode(m) // as the machines make them
				msgs = append(msgs, msg)
			}
		}
		for _, m := range replica.Messages() {
			_ = owner.Step(m)
		}
	}
	return msgs
}

// acknowledge reads what comes until the connection ends. It tells of each PUBACK, and answers each PUBLISH of QoS 1.
func (p *peer) acknowledge(acks chan<- struct{}) {
	defer close(acks)
	for {
		got, err := p.answer()
		if err != nil {
			return
		}
		switch got[0] >> 4 {
		case 4:
			acks <- struct{}{}
		case 3:
			if at := 3 + int(binary.BigEndian.Uint16(got[1:])); got[0]&6 != 0 {
				_, _ = p.Write([]byte{0x40, 2, got[at], got[at+1]})
			}
		}
	}
}

func attackNames(ctx context.Context, t Target) {
	token := strings.Repeat("ebt_aaaaaaaaaaaaa ", 4000)[:1000]
	many := strings.Repeat(token, 20)
	runParallel(20, func(int) {
		for ctx.Err() == nil {
			c := connectOptions{id: rand.Text()[:8] + many, user: many, password: many, from: attackerAddress}
			if p, err := connectPeer(ctx, t.MQTT, c); err == nil {
				_ = p.Close()
			}
		}
	})
}

func attackUnfinished(ctx context.Context, t Target) {
	const size = 1<<20 - 64
	head := binary.AppendUvarint([]byte{0x10}, size)
	begun := append(append(appendText(head, "MQTT"), 5, 0), make([]byte, size-200)...)
	runParallel(600, func(int) {
		for ctx.Err() == nil {
			p, err := dialFrom(ctx, attackerAddress, t.MQTT)
			if err != nil {
				continue
			}
			if _, err := p.Write(begun); err == nil {
				p.ignore()
			}
			_ = p.Close()
			backoff.Sleep(ctx, longPause)
		}
	})
}

func attackGuesses(ctx context.Context, t Target) {
	var tried atomic.Int64
	runParallel(20, func(i int) {
		for ctx.Err() == nil {
			user := t.User
			if i%2 == 0 {
				user = rand.Text()
			}
			if p, err := connectPeer(ctx, t.MQTT, connectOptions{user: user, password: rand.Text()}); err == nil {
				_ = p.Close()
			}
			if tried.Add(1) > 200 {
				backoff.Sleep(ctx, 5*time.Second)
			}
		}
	})
}

func attackAgentID(ctx context.Context, t Target) {
	runParallel(20, func(int) {
		for ctx.Err() == nil {
			c := t.as(t.Other)
			c.id, c.keep = "edgeagent", 24*3600
			if p, err := connectPeer(ctx, t.MQTT, c); err == nil {
				_ = p.Close()
			}
		}
	})
}

func attackRefusals(ctx context.Context, t Target) {
	p, err := connectPeer(ctx, t.MQTT, t.as(t.Other))
	if err != nil {
		return
	}
	defer p.Close()
	go p.ignore()
	long := strings.Repeat("x", 300)
	for i := 0; err == nil; i++ {
		_, err = p.Write(encodePublish(fmt.Sprintf("v1/nodes/%d/devices/%s/desired/x", i, long), 0, 0, floodPayload))
	}
}

func attackIdentifiers(ctx context.Context, t Target) {
	var n atomic.Int64
	runParallel(20, func(int) {
		for ctx.Err() == nil {
			c := t.as(t.Other)
			c.id, c.keep = fmt.Sprintf("%s-%d", t.Other, n.Add(1)%5000), 7*24*3600
			if p, err := connectPeer(ctx, t.MQTT, c); err == nil {
				_ = p.Close()
			}
		}
	})
}

func attackLists(ctx context.Context, t Target) {
	requestRepeatedly(ctx, t, 4, t.Other, "/apis/edgebus.io/v1alpha1/devices?labelSelector=a%3Db")
}

func attackOpenAPI(ctx context.Context, t Target) {
	requestRepeatedly(ctx, t, 4, t.Node, "/openapi/v2")
}

func attackPages(ctx context.Context, t Target) {
	requestRepeatedly(ctx, t, 64, t.Other, "/apis/edgebus.io/v1alpha1/devices?limit=1")
}

// requestRepeatedly has n requests of a user's under way.
func requestRepeatedly(ctx context.Context, t Target, n int, user, path string) {
	own := &net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(attackerAddress)}}
	transport := &http.Transport{DialContext: own.DialContext, MaxIdleConnsPerHost: n}
	defer transport.CloseIdleConnections()
	runParallel(n, func(int) {
		for ctx.Err() == nil {
			req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+t.HTTP+path, nil)
			if err != nil {
				return
			}
			req.SetBasicAuth(user, t.Password)
			resp, err := transport.RoundTrip(req)
			if err != nil {
				backoff.Sleep(ctx, longPause)
				continue
			}
			_, _ = io.Copy(io.Discard, resp.Body)
			_ = resp.Body.Close()
		}
	})
}
