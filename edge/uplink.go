package edge

import (
	"context"
	"crypto/tls"
	"sync"
	"time"

	"github.com/rs/zerolog"

	"github.com/edgebus/edgebus/broker/client"
	"github.com/edgebus/edgebus/configs/daemon"
	"github.com/edgebus/edgebus/configs/daemon/metrics"
	"github.com/edgebus/edgebus/edge/twin"
	"github.com/edgebus/edgebus/topics/resource"
)

// contact is what is known of the connection to the hub.
type contact struct {
	up          bool
	since       time.Time // when it came up, or went down; or the core's start
	last        time.Time // when the hub was last heard
	connections int
	failures    int
	lastError   string    // why there is none, or why the last one ended
	ours        time.Time // when our certificate expires
	theirs      time.Time // and the hub's
	told        time.Time // when the hub was last told the time
}

// uplink watches the connection to the hub, for people who ask how it is.
type uplink struct {
	queues client.Counters // of the clients of the link

	mu   sync.Mutex
	line contact
}

func newUplink() *uplink { return &uplink{line: contact{since: time.Now()}} }

func (u *uplink) now() contact {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.line
}

func (u *uplink) note(f func(*contact)) {
	u.mu.Lock()
	defer u.mu.Unlock()
	f(&u.line)
}

// watch puts the watching into the options of the link's client.
func (u *uplink) watch(o client.Options) client.Options {
	connect, disconnect, message := o.OnConnect, o.OnDisconnect, o.OnMessage
	o.OnConnect = func(ctx context.Context, present bool) error {
		u.note(func(l *contact) {
			l.up, l.since, l.last = true, time.Now(), time.Now()
			l.connections++
		})
		return connect(ctx, present)
	}
	o.OnDisconnect = func(err error) {
		u.note(func(l *contact) { l.down(err) })
		disconnect(err)
	}
	o.OnConnectError = func(err error) {
		u.note(func(l *contact) {
			l.failures++
			l.lastError = err.Error()
		})
	}
	o.OnMessage = func(m client.Message) {
		u.note(func(l *contact) { l.last = time.Now() })
		message(m)
	}
	if o.TLS != nil {
		u.line.ours = expiry(o.TLS)
		o.TLS = o.TLS.Clone()
		o.TLS.VerifyConnection = func(s tls.ConnectionState) error {
			u.note(func(l *contact) { l.ours, l.theirs = expiry(o.TLS), s.PeerCertificates[0].NotAfter })
			return nil
		}
	}
	return o
}

// expiry is when the certificate expires that we show, which may have been renewed; zero: none is shown.
func expiry(c *tls.Config) time.Time {
	if leaf := client.Leaf(c); leaf != nil {
		return leaf.NotAfter
	}
	return time.Time{}
}

// beside is a log for a second connection: while there is none at all, the first one says why.
func (u *uplink) beside(log zerolog.Logger) zerolog.Logger {
	return log.Hook(zerolog.HookFunc(func(e *zerolog.Event, _ zerolog.Level, _ string) {
		if !u.now().up {
			e.Discard()
		}
	}))
}

// down notes the end of a connection. One that ended before it was of any use, because
// the hub refused the subscription, was no connection.
func (l *contact) down(err error) {
	if l.up {
		l.since = time.Now()
	}
	l.up = false
	if err != nil {
		l.lastError = err.Error()
	}
}

// clockEvery is how often the hub is told the node's time, so that it can compare.
const clockEvery = time.Minute

// clock is what a message to the hub carries beside it: now and then the time.
func (u *uplink) clock() (beside []client.UserProperty) {
	u.note(func(l *contact) {
		if now := time.Now(); now.Sub(l.told) >= clockEvery || l.told.Before(l.since) {
			l.told = now
			beside = []client.UserProperty{{Key: "ts", Value: resource.Time(now)}}
		}
	})
	return beside
}

// links answers how the link is, when the core is asked.
func links(o Options, h *hubLink, commits *metrics.Commits) func() resource.LinkReport {
	tw, br, up := h.twin, h.broker, h.up
	return func() resource.LinkReport {
		now, s, l := time.Now(), tw.Stats(), up.now()
		link := resource.Link{
			Node: o.Config.Node.Name, State: resource.Offline, Since: resource.Time(l.since), InStep: s.InStep,
			Behind: &resource.Behind{Keys: s.Behind, Seconds: s.Oldest.Seconds()},
			Peer:   o.Config.Link.Server, Version: o.Version, OverQuota: s.Oversize, OtherHub: s.OtherHub.Text(), Connections: l.connections, Failures: l.failures, LastError: l.lastError,
		}
		switch {
		case o.Config.Link.Server == "":
			link.State, link.Behind = resource.Alone, nil // nobody is behind
		case l.up:
			link.State = resource.Online
		}
		if !l.last.IsZero() {
			link.LastSeen = resource.Time(l.last)
		}
		if at := firstExpiry(l.theirs, l.ours); !at.IsZero() {
			link.CertificateExpires = resource.Time(at)
		}
		report := br.Report()
		return resource.LinkReport{
			Program: "edgecore", Version: o.Version, Now: resource.Time(now), Hub: s.Hub.Text(), Gone: commits.Gone(), Short: daemon.DescriptorsShort(), Failing: commits.Failing(), Damaged: commits.Damaged(),
			FullestQueue: report.FullestQueue, FullestOf: report.FullestOf, Missed: report.Missed, Refused: report.Refused, Links: []resource.Link{link}, Streams: h.streams(),
			Owned: &resource.Usage{
				Keys: s.UpKeys, MostKeys: o.Config.Limits.Node.Keys, Bytes: s.UpBytes, MostBytes: int(o.Config.Limits.Node.Bytes),
			},
		}
	}
}

// node is the Node as the core itself knows it.
func node(o Options, tw *twin.Twin, up *uplink) func() resource.Node {
	said := report(o.Version)
	return func() resource.Node {
		l, s := up.now(), tw.Stats()
		n := resource.Node{Metadata: resource.Meta{Name: o.Config.Node.Name}, Status: resource.NodeStatus{
			State: resource.Offline, LastSeen: resource.Time(l.since), Version: o.Version, Devices: s.Devices, SystemInfo: said.SystemInfo,
		}}
		switch {
		case o.Config.Link.Server == "":
			n.Status.Conditions = resource.SetCondition(nil, resource.Condition{
				Type: resource.ConditionReady, Status: "Unknown", Reason: "Alone", Message: "the core works alone: it has no hub to be linked to",
			}, l.since)
			return n
		case l.up:
			n.Status.State = resource.Online
		}
		n.Status.Conditions = resource.ReadyCondition(nil, n.Status.State, l.lastError, l.since)
		return n
	}
}

func (h *hubLink) streams() *resource.StreamReport {
	s := h.broker.OutletStats()
	return &resource.StreamReport{Waiting: s.Messages, Seconds: s.Oldest.Seconds(), Dropped: s.Dropped, RefusedRules: h.bridge.refusals()}
}

func firstExpiry(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}
