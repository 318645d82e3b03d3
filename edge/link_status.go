// SPDX-License-Identifier: Apache-2.0

package edge

import (
	"cmp"
	"context"
	"crypto/tls"
	"sync"
	"time"

	"github.com/rs/zerolog"

	"github.com/edgebus/edgebus/broker/client"
	"github.com/edgebus/edgebus/broker/daemon/datadir"
	"github.com/edgebus/edgebus/broker/daemon/metrics"
	"github.com/edgebus/edgebus/broker/mqttserver"
	"github.com/edgebus/edgebus/broker/views/runner"
	"github.com/edgebus/edgebus/edge/twin"
	"github.com/edgebus/edgebus/topics/acl"
	"github.com/edgebus/edgebus/topics/resource"
)

// linkState is the state of the connection to the hub.
type linkState struct {
	up                bool
	since             time.Time // when it came up, or went down; or the core's start
	lastPacket        time.Time // when the last packet came from the hub
	server            string    // of the connection that is there, or was last
	connections       int
	failures          int
	lastError         string    // why there is none, or why the last one ended
	renewalError      error     // why the certificate was not renewed; nil: it was, or needn't be
	renewalFailsSince time.Time // since when that fails
	ownExpires        time.Time // when the core's certificate expires
	hubExpires        time.Time // when the hub's certificate expires
}

// linkStatus records the state of the connection to the hub, for /links and metrics.
type linkStatus struct {
	queues client.Counters // of the clients of the link

	mu    sync.Mutex
	state linkState
}

func newLinkStatus() *linkStatus { return &linkStatus{state: linkState{since: time.Now()}} }

func (u *linkStatus) now() linkState {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.state
}

func (u *linkStatus) note(f func(*linkState)) {
	u.mu.Lock()
	defer u.mu.Unlock()
	f(&u.state)
}

// watch adds the recording to the options of the link's client.
func (u *linkStatus) watch(o client.Options, self **client.Client) client.Options {
	connect, disconnect, message, fail := o.OnConnect, o.OnDisconnect, o.OnMessage, o.OnConnectError
	o.OnConnect = func(ctx context.Context, present bool) error {
		u.note(func(l *linkState) {
			l.up, l.since, l.lastPacket, l.server = true, time.Now(), time.Now(), (*self).Server()
			l.connections++
		})
		return connect(ctx, present)
	}
	o.OnDisconnect = func(err error) {
		u.note(func(l *linkState) { l.down(err) })
		disconnect(err)
	}
	o.OnConnectError = func(err error) {
		u.note(func(l *linkState) {
			l.failures++
			l.lastError = err.Error()
		})
		if fail != nil {
			fail(err)
		}
	}
	o.OnMessage = func(m client.Message) {
		u.note(func(l *linkState) { l.lastPacket = time.Now() })
		message(m)
	}
	if o.TLS != nil {
		u.note(func(l *linkState) { l.ownExpires = certificateExpiry(o.TLS) })
		o.TLS = o.TLS.Clone()
		o.TLS.VerifyConnection = func(s tls.ConnectionState) error {
			u.note(func(l *linkState) {
				l.ownExpires, l.hubExpires = certificateExpiry(o.TLS), s.PeerCertificates[0].NotAfter
			})
			return nil
		}
	}
	return o
}

// certificateExpiry is when the core's present certificate expires; zero: it has none.
func certificateExpiry(c *tls.Config) time.Time {
	if leaf := client.Leaf(c); leaf != nil {
		return leaf.NotAfter
	}
	return time.Time{}
}

// logWhileUp is the log of the second connection. It logs nothing while the first one is down, whose log gives the reason.
func (u *linkStatus) logWhileUp(log zerolog.Logger) zerolog.Logger {
	return log.Hook(zerolog.HookFunc(func(e *zerolog.Event, _ zerolog.Level, _ string) {
		if !u.now().up {
			e.Discard()
		}
	}))
}

// down notes the end of a connection. One that ended before the subscription was accepted never counted as up.
func (l *linkState) down(err error) {
	if l.up {
		l.since = time.Now()
	}
	l.up = false
	if err != nil {
		l.lastError = err.Error()
	}
}

// linkReporter makes the link report of the core's local API.
func linkReporter(o Options, h *hubLink, commits *metrics.Commits, rules *acl.ActiveRules, space *datadir.DiskSpace, shown *runner.Views) func() resource.LinkReport {
	tw, br, up := h.twin, h.streams.broker, h.status
	return func() resource.LinkReport {
		s, l := tw.Stats(), up.now()
		link := resource.Link{
			Node: o.Config.Node.Name, State: resource.Offline, Since: resource.FormatTime(l.since), InStep: s.InStep,
			Behind: &resource.LinkLag{Keys: s.Behind, Seconds: s.Oldest.Seconds()},
			Peer:   cmp.Or(l.server, o.Config.Link.Server), Version: o.Version, OverQuota: s.Oversize, OtherHub: s.OtherHub.Text(), Connections: l.connections, Failures: l.failures, LastError: l.lastError,
		}
		switch {
		case o.Config.Link.Server == "":
			link.State, link.Behind = resource.LinkAlone, nil // there is no other side
		case l.up:
			link.State = resource.Online
		}
		if !l.lastPacket.IsZero() {
			link.LastSeen = resource.FormatTime(l.lastPacket)
		}
		if at := firstExpiry(l.hubExpires, l.ownExpires); !at.IsZero() {
			link.CertificateExpires = resource.FormatTime(at)
		}
		if l.renewalError != nil {
			link.RenewalError, link.RenewalFailingSince = l.renewalError.Error(), resource.FormatTime(l.renewalFailsSince)
		}
		r := mqttserver.LinkReport("edgecore", o.Version, br, commits, rules, space)
		r.Hub, r.Links, r.Streams = s.Hub.Text(), []resource.Link{link}, streamReport(h)
		r.FailingViews = shown.Failing()
		r.Owned = &resource.Usage{
			Keys: s.UpKeys, MaxKeys: o.Config.Limits.Node.Keys, Bytes: s.UpBytes, MaxBytes: int(o.Config.Limits.Node.Bytes),
		}
		return r
	}
}

// nodeReporter makes the Node object of the core's local API.
func nodeReporter(o Options, tw *twin.Twin, up *linkStatus, space *datadir.DiskSpace) func() resource.Node {
	own := nodeReport(o.Version)
	return func() resource.Node {
		l, s := up.now(), tw.Stats()
		n := resource.Node{Metadata: resource.Meta{Name: o.Config.Node.Name, Labels: tw.NodeLabels()}, Status: resource.NodeStatus{
			State: resource.Offline, LastSeen: resource.FormatTime(l.since), Version: o.Version, Devices: s.Devices, SystemInfo: own.SystemInfo,
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
		if l.renewalError != nil {
			n.Status.Conditions = resource.SetCondition(n.Status.Conditions, resource.Condition{
				Type: resource.ConditionRenewal, Status: "False", Reason: "Failed", Message: l.renewalError.Error(),
			}, l.renewalFailsSince)
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
	s := h.streams.broker.LinkQueue().Stats()
	s.Dropped["full"] += s.FullBefore
	return &resource.StreamReport{Waiting: s.Messages, Seconds: s.Oldest.Seconds(), Dropped: s.Dropped, RefusedRules: h.bridge.refusals()}
}
