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

// sysPrefix stands before the broker's figures, which have mosquitto's names: dashboards know them. Who may
// read them is for acl.read to say. They are no retained messages, but made for whoever subscribes.
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

// sysValues are all figures by topic.
func (b *Broker) sysValues() map[string]string {
	s := b.Stats()
	dropped := int64(0)
	for _, n := range s.Dropped {
		dropped += n
	}
	connected, all := s.Connections, int64(s.Sessions)
	values := map[string]string{
		"version": strings.TrimSpace("Edgebus " + b.opts.Version),
		"uptime":  fmt.Sprintf("%d seconds", int64(b.opts.Now().Sub(b.began).Seconds())),
	}
	for name, n := range map[string]int64{
		"clients/total": all, "clients/connected": connected, "clients/disconnected": max(0, all-connected),
		"clients/active": connected, "clients/inactive": max(0, all-connected), "subscriptions/count": int64(s.Subscriptions),
		"messages/received": s.Received, "messages/sent": s.Sent, "messages/stored": s.Queued, "store/messages/count": s.Queued,
		"publish/messages/received": s.Received, "publish/messages/sent": s.Sent, "publish/messages/dropped": dropped,
		"retained messages/count": int64(s.Retained),
	} {
		values[name] = strconv.FormatInt(n, 10)
	}
	b.loads.mu.Lock()
	defer b.loads.mu.Unlock()
	for name, average := range b.loads.average {
		for i, span := range sysSpans {
			values[fmt.Sprintf("load/%s/%.0fmin", name, span)] = fmt.Sprintf("%.2f", average[i])
		}
	}
	return values
}

// sysMessages are the figures that a filter matches.
func (b *Broker) sysMessages(filter string) (list []*session.Message) {
	for name, value := range b.sysValues() {
		if topic := sysPrefix + name; topics.Match(filter, topic) {
			list = append(list, outgoing(Message{Topic: topic, Payload: []byte(value), Retain: true}, b.opts.Now()))
		}
	}
	slices.SortFunc(list, func(a, b *session.Message) int { return strings.Compare(a.Topic, b.Topic) })
	return list
}

// sysPuller gives a subscriber the figures as of now.
func (b *Broker) sysPuller(filter string) session.Puller {
	var all []*session.Message
	made := false
	return func(most int) []*session.Message {
		if !made {
			all, made = b.sysMessages(filter), true
		}
		n := min(most, len(all))
		chunk := all[:n]
		all = all[n:]
		return chunk
	}
}

// publishSys tells all who subscribed.
func (b *Broker) publishSys() {
	s := b.Stats()
	b.loads.count(b.opts.Now(), map[string]int64{
		"messages/received": s.Received, "messages/sent": s.Sent, "publish/received": s.Received, "publish/sent": s.Sent, "connections": s.Connects,
	})
	for _, m := range b.sysMessages("$SYS/#") {
		if b.Wanted(m.Topic) {
			b.router.deliver(b.router.route(m.Topic), m, nil)
		}
	}
}
