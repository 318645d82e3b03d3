// SPDX-License-Identifier: Apache-2.0

package edge

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"

	"github.com/rs/zerolog"

	"github.com/edgebus/edgebus/broker"
	"github.com/edgebus/edgebus/broker/alerts"
	"github.com/edgebus/edgebus/broker/calls"
	"github.com/edgebus/edgebus/broker/daemon"
	"github.com/edgebus/edgebus/broker/daemon/datadir"
	"github.com/edgebus/edgebus/broker/daemon/httpserver"
	"github.com/edgebus/edgebus/broker/daemon/metrics"
	"github.com/edgebus/edgebus/broker/daemon/page"
	"github.com/edgebus/edgebus/broker/daemon/tracing"
	"github.com/edgebus/edgebus/broker/mqttserver"
	"github.com/edgebus/edgebus/broker/tree"
	"github.com/edgebus/edgebus/broker/views/runner"
	"github.com/edgebus/edgebus/broker/views/settings"
	"github.com/edgebus/edgebus/configs"
	"github.com/edgebus/edgebus/edge/api"
	"github.com/edgebus/edgebus/edge/blobs"
	"github.com/edgebus/edgebus/edge/push"
	"github.com/edgebus/edgebus/edge/rules"
	"github.com/edgebus/edgebus/edge/store"
	"github.com/edgebus/edgebus/edge/twin"
	"github.com/edgebus/edgebus/topics"
	"github.com/edgebus/edgebus/topics/link"
	"github.com/edgebus/edgebus/topics/resource"
)

// Options are what a core needs.
type Options struct {
	Config  configs.Core
	Version string
	Log     zerolog.Logger
	// Ready is called once all listeners are bound, with their addresses. It may be nil.
	Ready func(daemon.Addresses)
}

// Run runs a core until ctx ends, and stops it in order: first the link, HTTP and MQTT clients, then the twin, which
// answers what it was asked, then the store.
func Run(ctx context.Context, o Options) (err error) {
	cfg := o.Config
	log := o.Log.With().Str("node", cfg.Node.Name).Logger()
	dir, err := datadir.Open(cfg.Data.Dir, "edgecore")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(dir.ExplainFull(err), dir.Close()) }()
	registry := metrics.New(o.Version)
	commits := registry.Commits()
	key, err := openSecretsKey(cfg.Data.Dir, log)
	if err != nil {
		return err
	}
	st, err := store.Open(store.Options{
		Dir: cfg.Data.Dir, Node: cfg.Node.Name, Rand: rand.Uint64, Log: log, Secrets: key,
		Committed: commits.ForStore("tree"), Checkpointed: commits.ForStore("checkpoint"),
	})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, st.Close()) }()

	sessions, err := mqttserver.OpenJournal(cfg.Data.Dir, log, commits.ForStore("sessions"))
	if err != nil {
		return err
	}
	commits.Watch("sessions", sessions.Damage)
	defer func() { err = errors.Join(err, sessions.Close()) }()

	var br *broker.Broker
	var watched *alerts.Alerts
	var shown *runner.Views
	var asking *rules.Rules
	past, err := openHistory(cfg, log)
	if err != nil {
		return err
	}
	pusher := push.New(log)
	traces, err := tracing.New(tracing.Options{
		Endpoint: cfg.Tracing.Endpoint, Ratio: cfg.Tracing.Ratio, Service: "edgecore", Version: o.Version, Instance: cfg.Node.Name, Log: log,
	})
	if err != nil {
		return err
	}
	tw, err := twin.New(twin.Options{
		Options: tree.Options{
			Publish: func(m broker.Message) { watched.Follow(m); shown.Follow(m); br.Publish(m); asking.Follow(m.Topic) },
			Pass:    func(m broker.Message, done func(error)) { watched.Follow(m); shown.Follow(m); br.Pass(m, done) }, // also what a durable session gets
			Kept:    func(topic string) bool { return br.HasDurableSubscriber(topic) },
			Wanted:  func(topic string) bool { return watched.Wants(topic) || shown.Wants(topic) || br.HasSubscriber(topic) },
			Quota:   link.Quota{Keys: cfg.Limits.Node.Keys, Bytes: int(cfg.Limits.Node.Bytes)},
			Timeout: cfg.Link.Retry.Timeout, Log: log, Traces: traces,
		},
		Node: cfg.Node.Name, Store: st, Mappers: cfg.Limits.Mappers, History: past.recorder(),
		Report: nodeReport(o.Version), RightsChanged: func() { br.RightsChanged() },
		Push: func(to resource.Push, device, property string, value []byte, ts int64) {
			pusher.Push(to, push.Value{Node: cfg.Node.Name, Device: device, Property: property, Value: string(value), TS: resource.FormatMillis(ts)})
		},
	})
	if err != nil {
		return err
	}
	if watched, err = openAlerts(cfg, registry, tw.Retained, func(m broker.Message) { br.Publish(m) }, log); err != nil {
		return err
	}
	shown, err = settings.Open(runner.Options{
		Node: cfg.Node.Name, Dir: cfg.Data.Dir, Dial: func(id broker.Identity) net.Conn { return br.Dial(id) }, Retained: tw.Retained, Past: runner.PastOf(past.findOn), Log: log,
	}, cfg.Views)
	if err != nil {
		return err
	}
	asking = rules.New(rules.Options{
		Node: cfg.Node.Name, Ports: cfg.Rules.Numbers(), Retained: tw.Retained, Log: log,
		Publish: func(m broker.Message, done func(error)) { br.PublishFromLink(m, done) },
	})
	bo, err := brokerOptions(cfg, log)
	if err != nil {
		return err
	}
	topicRules, err := mqttserver.OpenRules(&bo, cfg.Auth.Topics, log)
	if err != nil {
		return err
	}
	bo.Version = o.Version
	commands := calls.New(calls.Options{
		Role: topics.RoleMapper, Tree: tw, Limits: cfg.Limits.Commands, Log: log,
		Publish:     func(m broker.Message) { br.Publish(m) },
		Subscribers: func(topic string) []broker.Subscriber { return br.Subscribers(topic) },
	})
	hub := newHubLink(cfg, tw, commands, log)
	hub.past, hub.rules = past, asking
	asked := past.follow(tw, commands, func(m broker.Message) { br.Publish(m) }, log)
	hub.blobs, err = blobs.New(blobs.Options{
		Dir: cfg.Data.Dir, Node: cfg.Node.Name, Bytes: int64(cfg.Limits.Blobs.Bytes), Connect: hub.downloader(), Budget: hub.streams.budget,
		Tree: asked, Publish: func(m broker.Message) { br.Publish(m) }, Log: log,
	})
	if err != nil {
		return err
	}
	bo.Tree, bo.Presence, bo.Journal = hub.blobs, commands, sessions
	yes, why := cfg.Anonymous()
	log.Info().Bool("anonymous", yes).Str("why", why).Msg("who comes over loopback without signing in")
	if yes {
		bo.Auth.Anonymous = []topics.Role{topics.RoleOperator, topics.RoleMapper, topics.RoleDiscoverer}
	}
	bo.Auth.Node = func(name string) bool { return name == cfg.Node.Name }
	bo.LinkQueue, bo.Protocol, bo.Metrics = linkQueueOptions(cfg), tw.Protocol, registry
	if br, err = broker.New(bo); err != nil {
		return err
	}
	up := hub.status
	hub.streams.broker, hub.bridge = br, newBridge(cfg.Bridge, br.PublishFromLink, log)
	sessions.Register(registry, "sessions")
	registerStoreMetrics(registry, st)
	commands.Register(registry)
	hub.blobs.Register(registry)
	past.register(registry)
	shown.Register(registry)
	registerCoreMetrics(registry, tw, up)
	registerStreamMetrics(registry, hub)
	guard := dir.Guard(log, st.InPlace, sessions.InPlace)
	commits.Guard(guard.Err)
	ready := func() error {
		if err := guard.Err(); err != nil {
			return err
		}
		if tw.Stats().Storing {
			return nil
		}
		return fmt.Errorf("nothing can be stored: %s", cmp.Or(commits.Failing()["tree"], "see the log"))
	}
	if err := errors.Join(mqttserver.RegisterRules(topicRules, registry), bo.Audit.Register(registry)); err != nil {
		return errors.Join(err, br.Close(ctx))
	}
	watch := func(ctx context.Context) error { return topicRules.Run(ctx, br.RightsChanged) }
	space := dir.Space(log, func(low string) { past.setLowSpace(low); tw.SetLowSpace(low) })
	linkReport := linkReporter(o, hub, commits, topicRules, space, shown)
	site, err := httpserver.Listen(httpserver.Options{Listen: cfg.HTTP.Listen, ListenTLS: cfg.HTTP.TLS.Listen, TLS: cfg.HTTP.TLS.Config, Limits: cfg.Limits.Limits}, log, registry.Count(bo.Audit.Handler(api.New(api.Options{
		Authenticate: authenticateReader(br, cfg.Node.Name), MayRead: readableDevices(br, cfg.Node.Name), Watches: cfg.Limits.Watches, Twins: tw, Models: tw.Models, Node: nodeReporter(o, tw, up, space), Ready: ready, Metrics: registry.Handler(), Alerts: watched, Links: linkReport, Sessions: br.ServeSessions, Browsers: br, Page: page.Handler(),
		OwnOnly: cfg.HTTP.Discovery == "own",
		History: past.find,
	}))))
	if err != nil {
		return errors.Join(err, br.Close(ctx))
	}
	registry.HTTP(site.Connections)

	backups := maintenance().Listen(cfg.Data.Dir, storeSnapshot(st, sessions), nil, log)
	backups.State(func() (any, error) {
		return struct {
			resource.LinkReport
			StoreFormat int `json:"storeFormat"`
		}{linkReport(), store.Format}, ready()
	})
	members := []func(context.Context) error{br.Serve, site.Run, backups.Run, pusher.Run, guard.Run, space.Run, hub.blobs.Run, watch, past.run, watched.Run, shown.Run, traces.Run}
	if cfg.Link.Server != "" {
		if err := br.LinkQueue().Keep(asking.Wanted()); err != nil { // before any client can publish
			return errors.Join(err, br.Close(ctx))
		}
		members = append(members, hub.run, func(ctx context.Context) error { return asking.Run(ctx, br.LinkQueue().Keep) })
	}
	if o.Ready != nil {
		o.Ready(daemon.Addresses{MQTT: br.Addrs(), HTTP: site.Addrs()})
	}
	return daemon.RunGroup(ctx, mqttserver.RunWithAudit(bo.Audit, tw.Run), members...)
}

// authenticateReader authenticates a request to the local API: it accepts users who may read the node's tree, and the node itself.
func authenticateReader(br *broker.Broker, node string) func(*http.Request) (broker.Identity, error) {
	return func(r *http.Request) (broker.Identity, error) {
		id, err := br.SignIn(r)
		if err != nil || id.Node == node || id.Has(topics.RoleMapper) {
			return id, err
		}
		if (id.Has(topics.RoleOperator) || id.Has(topics.RoleViewer)) && id.GivenNode(node) {
			return id, nil
		}
		return id, resource.Errorf(resource.Forbidden, "", "node %s is not given to %s: see auth.users", node, id.User)
	}
}

// readableDevices limits a mapper to the Devices that its broker lets it read; people and the node itself read all of them.
func readableDevices(br *broker.Broker, node string) func(broker.Identity) func(device string) bool {
	return func(id broker.Identity) func(device string) bool {
		if id.Node == node || id.Has(topics.RoleOperator) || id.Has(topics.RoleViewer) {
			return nil
		}
		return func(device string) bool {
			return br.MayRead(id, topics.Address{Node: node, Kind: topics.KindDevice, Device: device}.String())
		}
	}
}

// Main is the program edgecore: it runs a core as configured until it is told to stop, or one of the commands check,
// backup and restore, and returns the exit code.
func Main(args []string, stdout, stderr io.Writer) int {
	if code, mine := maintenance().Main(args, stdout, stderr); mine {
		return code
	}
	if len(args) > 0 && args[0] == "join" {
		return joinMain(args[1:], stdout, stderr)
	}
	health := len(args) > 0 && args[0] == "health"
	if health {
		args = args[1:]
	}
	cfg, done, err := configs.Parse[configs.Core]("edgecore", daemon.Version(), args, stdout)
	if err != nil {
		fmt.Fprintln(stderr, "edgecore:", err)
		return 2
	}
	if done {
		return 0
	}
	if health {
		address, secure := cfg.HTTP.Health()
		if err := httpserver.CheckHealth(context.Background(), address, secure); err != nil {
			fmt.Fprintln(stderr, "edgecore health:", err)
			return 1
		}
		return 0
	}
	return daemon.Run("edgecore", configs.Logger(stderr, cfg.Log), func(ctx context.Context, p daemon.Program) error {
		return Run(ctx, Options{Config: cfg, Version: p.Version, Log: p.Log, Ready: func(daemon.Addresses) { p.Ready() }})
	})
}
