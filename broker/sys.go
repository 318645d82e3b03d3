// SPDX-License-Identifier: Apache-2.0

package broker

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/edgebus/edgebus/broker/session"
	"github.com/edgebus/edgebus/topics"
)

// sysTopics are the broker's figures below $SYS.
type sysTopics struct {
	b     *Broker
	loads sysLoads
}

// sysPrefix stands before the broker's figures, which have mosquitto's names: dashboards know them. Who may read them is for
// acl.read to say. They are not retained messages, but made for each subscription.
const (
	sysPrefix = "$SYS/broker/"
	sysEvery  = 10 * time.Second
)

// sysLoads are how many of something there were in a minute, averaged over 1, 5 and 15.
type sysLoads struct {
	mu      sync.Mutex
	last    map[string]int64 // counters
	average map[string][3]float64
	at      time.Time
}

var sysSpans = [3]float64{1, 5, 15} // minutes

// count brings the averages up to date.
func (l *sysLoads) count(now time.Time, counters map[string]int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.average == nil {
		l.average = make(map[string][3]float64)
	}
	if minutes := now.Sub(l.at).Minutes(); l.last != nil && minutes > 0 {
		for name, n := range counters {
			average := l.average[name]
			for i, span := range sysSpans {
				average[i] += (float64(n-l.last[name])/minutes - average[i]) * (1 - math.Exp(-minutes/span))
			}
			l.average[name] = average
		}
	}
	l.last, l.at = counters, now
}

// values are all figures by topic.
func (s *sysTopics) values() map[string]string {
	b := s.b
	dropped := int64(0)
	for _, n := range b.dispatcher.counters.Dropped() {
		dropped += n
	}
	connected, all := b.metrics.connected.Load(), int64(b.clients.count())
	received, sent, queued := b.metrics.received.Load(), b.dispatcher.counters.Sent.Load(), b.Report().Queued
	values := map[string]string{
		"version": strings.TrimSpace("Edgebus " + b.opts.Version),
		"uptime":  fmt.Sprintf("%d seconds", int64(b.opts.Now().Sub(b.opts.startedAt).Seconds())),
	}
	for name, n := range map[string]int64{
		"clients/total": all, "clients/connected": connected, "clients/disconnected": max(0, all-connected),
		"clients/active": connected, "clients/inactive": max(0, all-connected), "subscriptions/count": int64(b.router.index.len()),
		"messages/received": received, "messages/sent": sent, "messages/stored": queued, "store/messages/count": queued,
		"publish/messages/received": received, "publish/messages/sent": sent, "publish/messages/dropped": dropped,
		"retained messages/count": int64(b.retained.len()),
	} {
		values[name] = strconv.FormatInt(n, 10)
	}
	s.loads.mu.Lock()
	defer s.loads.mu.Unlock()
	for name, average := range s.loads.average {
		for i, span := range sysSpans {
			values[fmt.Sprintf("load/%s/%.0fmin", name, span)] = fmt.Sprintf("%.2f", average[i])
		}
	}
	return values
}

// messages are the figures that a filter matches.
func (s *sysTopics) messages(filter string) (list []*session.Message) {
	b := s.b
	values := make(map[string]string)
	for name, value := range s.values() {
		values[sysPrefix+name] = value
	}
	if b.opts.Figures != nil {
		for name, value := range b.opts.Figures() {
			values["$SYS/"+name] = value
		}
	}
	for topic, value := range values {
		if topics.Match(filter, topic) {
			list = append(list, sessionMessage(Message{Topic: topic, Payload: []byte(value), Retain: true}, b.opts.Now()))
		}
	}
	slices.SortFunc(list, func(a, b *session.Message) int { return strings.Compare(a.Topic, b.Topic) })
	return list
}

// reader gives a subscriber the figures as of now.
func (s *sysTopics) reader(filter string) session.RetainedReader {
	var all []*session.Message
	made := false
	return func(most int) []*session.Message {
		if !made {
			all, made = s.messages(filter), true
		}
		n := min(most, len(all))
		chunk := all[:n]
		all = all[n:]
		return chunk
	}
}

// publish tells all who subscribed.
func (s *sysTopics) publish() {
	b := s.b
	received, sent := b.metrics.received.Load(), b.dispatcher.counters.Sent.Load()
	s.loads.count(b.opts.Now(), map[string]int64{
		"messages/received": received, "messages/sent": sent, "publish/received": received, "publish/sent": sent, "connections": b.metrics.connects.Load(),
	})
	for _, m := range s.messages("$SYS/#") {
		if b.HasSubscriber(m.Topic) {
			b.router.deliver(b.router.route(m.Topic), m, nil)
		}
	}
}
