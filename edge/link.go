package edge

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rs/zerolog"

	"github.com/edgebus/edgebus/broker"
	"github.com/edgebus/edgebus/broker/acl"
	"github.com/edgebus/edgebus/broker/calls"
	"github.com/edgebus/edgebus/broker/client"
	"github.com/edgebus/edgebus/configs"
	"github.com/edgebus/edgebus/configs/daemon/datadir"
	"github.com/edgebus/edgebus/configs/daemon/metrics"
	"github.com/edgebus/edgebus/configs/daemon/mqttserver"
	"github.com/edgebus/edgebus/edge/blobs"
	"github.com/edgebus/edgebus/edge/enroll"
	"github.com/edgebus/edgebus/edge/forward"
	"github.com/edgebus/edgebus/edge/twin"
	"github.com/edgebus/edgebus/topics"
	"github.com/edgebus/edgebus/topics/resource"
)

// hubLink is the link between the core and its hub: state first, then commands, streams and the users' own topics.
type hubLink struct {
	cfg      configs.Core
	twin     *twin.Twin
	commands *calls.Calls
	broker   *broker.Broker
	up       *uplink
	budget   *forward.Budget
	bridge   *bridge
	log      zerolog.Logger

	renewer *enroll.Renewer               // of the certificate; nil: the core has none that it got by joining
	second  atomic.Pointer[client.Client] // with the session of bridge.down; nil: there is none
	third   atomic.Pointer[client.Client] // that downloads blobs; nil: there is none at the moment
	blobs   *blobs.Downloads
	upload  forward.Upload // the large message that is on its way
	end     func()         // ends the link

	running sync.WaitGroup // goroutines of the present connection
}

// run keeps the link up until ctx ends. When it gives up (link.retry.attempts) the node goes on alone.
func (h *hubLink) run(ctx context.Context) error {
	h.deleteAside()
	go every(ctx, time.Hour, h.deleteAside)
	if why, err := enroll.Forgotten(h.cfg.Data.Dir); err != nil || why != "" {
		h.log.Error().Err(err).Str("noted", why).Msg("the hub has decommissioned this node: it works alone until it joins again (edgecore join)")
		h.up.note(func(l *contact) { l.lastError = why })
		return err
	}
	ctx, end := context.WithCancel(ctx)
	h.end = end
	defer end()
	main := h.awaitMain(ctx)
	if main == nil {
		return nil
	}
	go every(ctx, clockEvery, func() { publishClock(h.commands, main, h.cfg.Node.Name) })
	go every(ctx, reportEvery, h.reporter())
	var stored sync.WaitGroup
	defer stored.Wait()
	defer h.running.Wait()
	if len(h.bridge.stored) > 0 {
		second, err := h.newStored()
		if err != nil {
			return err
		}
		h.second.Store(second)
		stored.Go(func() { h.keep(ctx, second, "the session of bridge.down") })
	}
	if h.renewer != nil {
		h.running.Go(func() { h.renewer.Run(ctx) })
	}
	h.keep(ctx, main, "the link to the hub")
	return nil
}

const identityAgain = 5 * time.Second // between two looks at files that the link needs

// awaitMain makes the main client as soon as the files that it needs can be read; nil: ctx has ended. What only the link needs must not keep
// the broker, the mappers and the devices from working.
func (h *hubLink) awaitMain(ctx context.Context) *client.Client {
	for told := ""; ; {
		c, err := h.newMain(ctx)
		if err == nil {
			return c
		}
		if why := err.Error(); why != told {
			told = why
			h.log.Error().Err(err).Msg("there is no link to the hub, and the node works alone: mend this file, take it from a backup, " +
				"or have the node join again (edgecore join); the core sees it by itself")
			h.up.note(func(l *contact) { l.lastError = why })
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(identityAgain):
		}
	}
}

// decommissioned moves the node's keys aside when the hub refuses its certificate with the authority's signed notice that the node was
// decommissioned. Nothing else ends an identity: not the text of an error, and nobody on the path.
func (h *hubLink) decommissioned(err error, own *x509.Certificate) {
	refused := client.ConnectRefused(err)
	if refused == nil {
		return
	}
	i := slices.IndexFunc(refused.User, func(p client.UserProperty) bool { return p.Key == resource.DecommissionProperty })
	if i < 0 {
		return
	}
	why, err := enroll.Decommissioned(refused.User[i].Value, h.cfg.Link.TLS.CA, h.cfg.Node.Name, own)
	if err != nil {
		h.log.Error().Err(err).Msg("the server says that this node was decommissioned, but does not prove it: nothing is changed")
		return
	}
	if err := enroll.Forget(h.cfg.Data.Dir, why, time.Now()); err != nil {
		h.log.Error().Err(err).Msg("the hub has decommissioned this node, but its keys can't be moved aside: delete the directory identity in data.dir")
	} else {
		h.log.Warn().Msg("the hub has decommissioned this node: its keys and certificates were moved aside (identity.decommissioned in data.dir) " +
			"and are deleted after a day; it works alone until it joins again (edgecore join)")
	}
	if h.cfg.Link.TLS.Key != "" && h.renewer == nil {
		h.log.Warn().Str("key", h.cfg.Link.TLS.Key).Msg("this key was not made by edgecore join, and is left where it is")
	}
	h.end()
}

// deleteAside deletes the keys of an identity that was given up, when their day is over.
func (h *hubLink) deleteAside() {
	if err := enroll.DeleteAside(h.cfg.Data.Dir, time.Now()); err != nil {
		h.log.Error().Err(err).Msg("keys that were moved aside can't be deleted: delete the directory identity.decommissioned in data.dir")
	}
}

func (h *hubLink) keep(ctx context.Context, c *client.Client, what string) {
	if err := c.Run(ctx); err != nil && ctx.Err() == nil {
		h.log.Error().Err(err).Msg(what + " was given up: the node works alone until the core is restarted")
		<-ctx.Done()
	}
}

// newMain makes the client that connects the twin with the hub. It starts with a clean session: the link protocol repeats
// what was missed, not the broker.
func (h *hubLink) newMain(ctx context.Context) (*client.Client, error) {
	node := h.cfg.Node.Name
	upwards, downwards := topics.Sync(node)
	o, err := h.options()
	if err != nil {
		return nil, err
	}
	var c *client.Client
	send := func(payload []byte) {
		m := client.Message{Topic: upwards, Payload: payload, QoS: 1}
		h.budget.State(forward.Size(m))
		c.PublishAsync(m, func(err error) {
			if err != nil {
				h.log.Debug().Err(err).Msg("a message to the hub was not delivered: the link protocol sends it again")
			}
		})
	}
	if other := otherNode(o, node); other != "" {
		h.log.Error().Str("certificate", h.cfg.Link.TLS.Cert).
			Msgf("the certificate is for %s, but this node is %s: the hub will refuse it; see link.tls.cert and node.name", other, node)
	}
	o.ClientID, o.CleanStart = "node/"+node, true
	o.Subscriptions = []client.Subscription{{Filter: downwards, QoS: 1}, {Filter: commandsOf(node)}}
	if enroll.Owned(h.cfg.Data.Dir, h.cfg.Link.TLS.Cert) {
		h.renewer = enroll.NewRenewer(enroll.RenewOptions{
			Noted: func(err error, since time.Time) {
				h.up.note(func(l *contact) { l.renewal, l.renewalFails = err, since })
				why := ""
				if err != nil {
					why = err.Error()
				}
				h.twin.SetRenewalError(why)
			},
			Renewed: func(ctx context.Context) {
				h.awaitQuiet(ctx)
				h.log.Info().Msg("the link connects anew, with the renewed certificate")
				c.Reconnect(errRenewed)
				for _, beside := range []*client.Client{h.second.Load(), h.third.Load()} {
					if beside != nil {
						beside.Reconnect(errRenewed)
					}
				}
			},
			Identity: enroll.Identity{Dir: filepath.Dir(h.cfg.Link.TLS.Cert)}, Node: node, Log: h.log,
			Publish: func(topic string, payload []byte, done func(error)) {
				c.PublishAsync(client.Message{Topic: topic, Payload: payload, QoS: 1}, done)
			},
		})
		o.Subscriptions = append(o.Subscriptions, client.Subscription{Filter: h.renewer.Filter(), QoS: 1})
	}
	o.OnConnect = func(ctx context.Context, _ bool) error {
		publishClock(h.commands, c, node)
		caughtUp := make(chan struct{})
		h.twin.Connected(rand.Uint64(), send, func() { close(caughtUp) }) //nolint:gosec // G404: tells connections apart, keeps no secret
		h.running.Go(func() { h.bridge.subscribe(ctx, c, h.bridge.live) })
		h.running.Go(func() { h.forward(ctx, c, caughtUp) })
		if h.renewer != nil {
			h.renewer.Connected()
		}
		return nil
	}
	o.OnDisconnect = func(error) { h.twin.Disconnected() }
	o.OnConnectError = func(err error) { h.decommissioned(err, client.Leaf(o.TLS)) }
	take := func(m client.Message) (taken bool) {
		switch {
		case m.Topic == downwards:
			h.twin.Receive(m.Payload)
		case topics.IsTree(m.Topic):
			if a, err := topics.Parse(m.Topic); err == nil && a.Kind == topics.KindEnrolled && h.renewer != nil {
				h.renewer.Take(a, m.Payload)
				return true
			}
			ask(h.commands, c, m)
		default:
			return h.bridge.take(ctx, m)
		}
		return true
	}
	o = assemble(o, node, take, func(err error) { c.Reconnect(err) })
	if c, err = client.New(h.up.watch(o)); err != nil {
		return nil, fmt.Errorf("link: %w", err)
	}
	return c, nil
}

var errRenewed = errors.New("the certificate was renewed")

const (
	quietAfter = 50 * time.Millisecond // the time between two looks at the link
	quietMost  = time.Minute           // that a quiet moment is waited for
)

// awaitQuiet returns when the hub has confirmed all that the node had to report, no stream waits and no command is under
// way; at the latest after quietMost, because nothing is lost in a busy moment either.
func (h *hubLink) awaitQuiet(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, quietMost)
	defer cancel()
	for {
		if s := h.twin.Stats(); s.InStep && s.Behind == 0 && h.broker.LinkQueueStats().Messages == 0 && h.commands.Stats().UnderWay == 0 {
			return
		}
		select {
		case <-time.After(quietAfter):
		case <-ctx.Done():
			return
		}
	}
}

// newStored makes a second client, whose session outlives its connections: the hub keeps the messages of bridge rules with
// store: true in it.
func (h *hubLink) newStored() (*client.Client, error) {
	o, err := h.options()
	if err != nil {
		return nil, err
	}
	var c *client.Client
	o.ClientID, o.SessionExpiry = "node/"+h.cfg.Node.Name+"/bridge", storedFor
	o.Log = h.up.beside(h.log).With().Str("connection", "bridge").Logger()
	// A message that can't be stored is tried again as long as the connection lasts; then the hub sends it again.
	var connection context.Context
	o.OnConnect = func(ctx context.Context, _ bool) error {
		connection = ctx
		h.running.Go(func() { h.bridge.subscribe(ctx, c, h.bridge.stored) })
		return nil
	}
	take := func(m client.Message) bool { return h.bridge.take(connection, m) }
	o = assemble(o, h.cfg.Node.Name, take, func(err error) { c.Reconnect(err) })
	if c, err = client.New(o); err != nil {
		return nil, fmt.Errorf("link: %w", err)
	}
	return c, nil
}

// downloader makes the function that keeps a connection for blobs; nil: there is no hub.
func (h *hubLink) downloader() func(context.Context) error {
	if h.cfg.Link.Server == "" {
		return nil
	}
	return h.download
}

// download keeps a third client connected until ctx ends. It has no session: what was requested and did not come is requested again.
func (h *hubLink) download(ctx context.Context) error {
	o, err := h.options()
	if err != nil {
		return err
	}
	var c *client.Client
	o.ClientID, o.CleanStart = "node/"+h.cfg.Node.Name+"/blobs", true
	o.Subscriptions = []client.Subscription{{Filter: h.blobs.Filter()}}
	o.Log = h.up.beside(h.log).With().Str("connection", "blobs").Logger()
	o.OnConnect = func(context.Context, bool) error {
		h.blobs.Connected(c)
		return nil
	}
	o.OnMessage = h.blobs.Received
	o.OnDisconnect = func(error) { h.blobs.Disconnected() }
	if c, err = client.New(o); err != nil {
		return fmt.Errorf("link: %w", err)
	}
	h.third.Store(c)
	defer h.third.Store(nil)
	return c.Run(ctx)
}

// options are what all clients have in common.
func (h *hubLink) options() (client.Options, error) {
	cfg := h.cfg.Link
	secret, err := cfg.Secret()
	if err != nil {
		return client.Options{}, err
	}
	secure, err := cfg.TLS.Config()
	if err != nil {
		return client.Options{}, err
	}
	var roots func() *x509.CertPool
	if cfg.TLS.CA != "" {
		roots = cfg.TLS.Roots()
	}
	return client.Options{
		Servers: []string{cfg.Server}, User: cmp.Or(cfg.User, "node/"+h.cfg.Node.Name), Password: secret, TLS: secure, Roots: roots, KeepAlive: cfg.Keepalive,
		Backoff:  client.Backoff{Min: cfg.Retry.Backoff.Min, Max: cfg.Retry.Backoff.Max},
		Attempts: cfg.Retry.Attempts, Log: h.log, Counters: &h.up.queues,
	}, nil
}

// otherNode is the common name of the certificate, if it isn't this node's name; with a password the certificate does not
// matter. The node then works alone, as with a wrong password.
func otherNode(o client.Options, node string) string {
	leaf := client.Leaf(o.TLS)
	if o.Password != "" || leaf == nil || leaf.Subject.CommonName == node {
		return ""
	}
	return leaf.Subject.CommonName
}

// forward sends streams over a connection, after the hub has received all state in it.
func (h *hubLink) forward(ctx context.Context, c *client.Client, caughtUp <-chan struct{}) {
	select {
	case <-caughtUp:
	case <-ctx.Done():
		return
	}
	forward.New(forward.Options{
		// What was taken from the queue for this connection would overtake, on the next one, what is sent again there.
		Publish: func(m client.Message, done func(error)) { c.PublishOver(ctx, m, done) },
		Open:    h.broker.OpenLinkQueue, Reconnect: c.Reconnect, Topic: cloudName(h.cfg.Node.Name),
		Parts: topics.Address{Node: h.cfg.Node.Name, Kind: topics.KindParts}.String(), Upload: &h.upload,
		Budget: h.budget, Log: h.log,
	}).Run(ctx)
}

const reportEvery = 10 * time.Second

// reporter logs how many messages of streams were dropped since it was last called.
func (h *hubLink) reporter() func() {
	last := h.broker.LinkQueueStats().Dropped
	return func() {
		now := h.broker.LinkQueueStats().Dropped
		line := h.log.Warn()
		lost := int64(0)
		for reason, n := range now {
			if n -= last[reason]; n > 0 {
				line = line.Int64(reason, n)
				lost += n
			}
		}
		if last = now; lost > 0 {
			line.Int64("messages", lost).Msg("telemetry, events or bridged messages were dropped before the hub had them")
		}
	}
}

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

// clockEvery is how often the node's clocks are sent to the hub, which compares the system's with its own.
const clockEvery = time.Minute

// links makes the link report of the core's local API.
func links(o Options, h *hubLink, commits *metrics.Commits, rules *acl.Source, space *datadir.Space) func() resource.LinkReport {
	tw, br, up := h.twin, h.broker, h.up
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
		r.Hub, r.Links, r.Streams = s.Hub.Text(), []resource.Link{link}, h.streams()
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

func (h *hubLink) streams() *resource.StreamReport {
	s := h.broker.LinkQueueStats()
	return &resource.StreamReport{Waiting: s.Messages, Seconds: s.Oldest.Seconds(), Dropped: s.Dropped, RefusedRules: h.bridge.refusals()}
}

func firstExpiry(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}

// commandsOf covers the commands for a node's devices.
func commandsOf(node string) string { return topics.Prefix + node + "/devices/+/commands/+" }

// ask executes a command of the hub, and sends the answer back. If the link is lost meanwhile, the hub has answered the command
// itself.
func ask(commands *calls.Calls, hub *client.Client, m client.Message) {
	commands.Ask(asked(m), func(r broker.Message) { hub.PublishAsync(answer(r), nil) })
}

// publishClock sends the core's clock to the hub, if it is connected, and what the system's clock shows now.
func publishClock(commands *calls.Calls, hub *client.Client, node string) {
	a := topics.Address{Node: node, Kind: topics.KindClock}
	hub.PublishAsync(client.Message{
		Topic: a.String(), Payload: commands.Clock(), User: []client.UserProperty{{Key: calls.PropTime, Value: resource.Time(time.Now())}},
	}, nil)
}

// every calls f periodically until ctx ends.
func every(ctx context.Context, d time.Duration, f func()) {
	tick := time.NewTicker(d)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			f()
		case <-ctx.Done():
			return
		}
	}
}

func asked(m client.Message) broker.Message {
	out := broker.Message{Topic: m.Topic, Payload: m.Payload, QoS: m.QoS, Props: broker.Properties{
		ContentType: m.ContentType, ResponseTopic: m.ResponseTopic, Correlation: m.Correlation,
		Expiry: uint32(m.Expiry / time.Second),
	}}
	if m.Text {
		format := byte(1)
		out.Props.PayloadFormat = &format
	}
	for _, p := range m.User {
		out.Props.User = append(out.Props.User, broker.UserProperty(p))
	}
	return out
}

func answer(m broker.Message) client.Message {
	out := client.Message{
		Topic: m.Topic, Payload: m.Payload, QoS: m.QoS, Correlation: m.Props.Correlation, ContentType: m.Props.ContentType,
		Text: m.Props.PayloadFormat != nil && *m.Props.PayloadFormat == 1,
	}
	for _, p := range m.Props.User {
		out.User = append(out.User, client.UserProperty(p))
	}
	return out
}
