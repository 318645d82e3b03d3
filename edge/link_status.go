package edge

import (
	"context"
	"crypto/tls"
	"sync"
	"time"

	"github.com/rs/zerolog"

	"github.com/edgebus/edgebus/broker/acl"
	"github.com/edgebus/edgebus/broker/client"
	"github.com/edgebus/edgebus/configs/daemon/datadir"
	"github.com/edgebus/edgebus/configs/daemon/metrics"
	"github.com/edgebus/edgebus/configs/daemon/mqttserver"
	"github.com/edgebus/edgebus/edge/twin"
	"github.com/edgebus/edgebus/topics/resource"
)

// contact is the state of the connection to the hub.
type contact struct {
	up           bool
	since        time.Time // when it came up, or went down; or the core's start
	last         time.Time // when the last packet came from the hub
	connections  int
	failures     int
	lastError    string    // why there is none, or why the last one ended
	renewal      error     // why the certificate was not renewed; nil: it was, or needn't be
	renewalFails time.Time // since when that fails
	ours         time.Time // when the core's certificate expires
	theirs       time.Time // when the hub's certificate expires
}

// uplink records the state of the connection to the hub, for /links and metrics.
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

// watch adds the recording to the options of the link's client.
func (u *uplink) watch(o client.Options) client.Options {
	connect, disconnect, message, fail := o.OnConnect, o.OnDisconnect, o.OnMessage, o.OnConnectError
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
		if fail != nil {
			fail(err)
		}
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

// expiry is when the core's present certificate expires; zero: it has none.
func expiry(c *tls.Config) time.Time {
	if leaf := client.Leaf(c); leaf != nil {
		return leaf.NotAfter
	}
	return time.Time{}
}

// beside is the log of the second connection. It logs nothing while the first one is down, whose log gives the reason.
func (u *uplink) beside(log zerolog.Logger) zerolog.Logger {
	return log.Hook(zerolog.HookFunc(func(e *zerolog.Event, _ zerolog.Level, _ string) {
		if !u.now().up {
			e.Discard()
		}
	}))
}

// down notes the end of a connection. One that ended before the subscription was accepted never counted as up.
func (l *contact) down(err error) {
	if l.up {
		l.since = time.Now()
	}
	l.up = false
	if err != nil {
		l.lastError = err.Error()
	}
}

// links makes the link report of the core's local API.
func links(o Options, h *hubLink, commits *metrics.Commits, rules *acl.Source, space *datadir.Space) func() resource.LinkReport {
	tw, br, up := h.twin, h.streams.broker, h.up
	return func() resource.LinkReport {
		s, l := tw.Stats(), up.now()
		link := resource.Link{
			Node: o.Config.Node.Name, State: resource.Offline, Since: resource.Time(l.since), InStep: s.InStep,
			Behind: &resource.Behind{Keys: s.Behind, Seconds: s.Oldest.Seconds()},
			Peer:   o.Config.Link.Server, Version: o.Version, OverQuota: s.Oversize, OtherHub: s.OtherHub.Text(), Connections: l.connections, Failures: l.failures, LastError: l.lastError,
		}
		switch {
		case o.Config.Link.Server == "":
			link.State, link.Behind = resource.Alone, nil // there is no other side
		case l.up:
			link.State = resource.Online
		}
		if !l.last.IsZero() {
			link.LastSeen = resource.Time(l.last)
		}
		if at := firstExpiry(l.theirs, l.ours); !at.IsZero() {
			link.CertificateExpires = resource.Time(at)
		}
		if l.renewal != nil {
			link.RenewalError, link.RenewalFails = l.renewal.Error(), resource.Time(l.renewalFails)
		}
		r := mqttserver.Report("edgecore", o.Version, br, commits, rules, space)
		r.Hub, r.Links, r.Streams = s.Hub.Text(), []resource.Link{link}, streamReport(h)
		r.Owned = &resource.Usage{
			Keys: s.UpKeys, MostKeys: o.Config.Limits.Node.Keys, Bytes: s.UpBytes, MostBytes: int(o.Config.Limits.Node.Bytes),
		}
		return r
	}
}

// node makes the Node object of the core's local API.
func node(o Options, tw *twin.Twin, up *uplink, space *datadir.Space) func() resource.Node {
	own := report(o.Version)
	return func() resource.Node {
		l, s := up.now(), tw.Stats()
		n := resource.Node{Metadata: resource.Meta{Name: o.Config.Node.Name}, Status: resource.NodeStatus{
			State: resource.Offline, LastSeen: resource.Time(l.since), Version: o.Version, Devices: s.Devices, SystemInfo: own.SystemInfo,
		}}
		switch {
		case o.Config.Link.Server == "":
			n.Status.Conditions = resource.SetCondition(nil, resource.Condition{
				Type: resource.ConditionReady, Status: "Unknown", Reason: "Alone", Message: "the core works alone: it has no hub to be linked to",
			}, l.since)
			n.Status.Conditions = resource.DiskCondition(n.Status.Conditions, space.Low(), space.Since())
			return n
		case l.up:
			n.Status.State = resource.Online
		}
		n.Status.Conditions = resource.ReadyCondition(nil, n.Status.State, l.lastError, l.since)
		if l.renewal != nil {
			n.Status.Conditions = resource.SetCondition(n.Status.Conditions, resource.Condition{
				Type: resource.ConditionRenewal, Status: "False", Reason: "Failed", Message: l.renewal.Error(),
			}, l.renewalFails)
		}
		n.Status.Conditions = resource.DiskCondition(n.Status.Conditions, space.Low(), space.Since())
		return n
	}
}

func firstExpiry(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}

func streamReport(h *hubLink) *resource.StreamReport {
	s := h.streams.broker.LinkQueueStats()
	s.Dropped["full"] += s.FullBefore
	return &resource.StreamReport{Waiting: s.Messages, Seconds: s.Oldest.Seconds(), Dropped: s.Dropped, RefusedRules: h.bridge.refusals()}
}
