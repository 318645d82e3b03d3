// SPDX-License-Identifier: Apache-2.0

package cloud

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"runtime/debug"
	"slices"
	"sync/atomic"
	"time"

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
	"github.com/edgebus/edgebus/broker/history/requests"
	"github.com/edgebus/edgebus/broker/journal"
	"github.com/edgebus/edgebus/broker/mqttserver"
	"github.com/edgebus/edgebus/broker/ordered"
	"github.com/edgebus/edgebus/broker/tree"
	"github.com/edgebus/edgebus/broker/views/runner"
	"github.com/edgebus/edgebus/cloud/api"
	"github.com/edgebus/edgebus/cloud/api/index"
	"github.com/edgebus/edgebus/cloud/blobs"
	"github.com/edgebus/edgebus/cloud/clusterhub"
	"github.com/edgebus/edgebus/cloud/enroll"
	"github.com/edgebus/edgebus/cloud/events"
	"github.com/edgebus/edgebus/cloud/fleet"
	"github.com/edgebus/edgebus/cloud/hubdata"
	"github.com/edgebus/edgebus/cloud/objects"
	"github.com/edgebus/edgebus/cloud/sources"
	"github.com/edgebus/edgebus/cloud/store/disk"
	"github.com/edgebus/edgebus/cloud/twin"
	"github.com/edgebus/edgebus/configs"
	"github.com/edgebus/edgebus/topics"
	"github.com/edgebus/edgebus/topics/link"
	"github.com/edgebus/edgebus/topics/resource"
)

// Options are what a hub needs.
type Options struct {
	Config  configs.Hub
	Version string
	Log     zerolog.Logger
	// Ready is called once all listeners are bound, with their addresses; of a hub that stands by before, too, with that of its page. It may be nil.
	Ready func(daemon.Addresses)
	// Through has a log in front of the hub's, in tests. It may be nil.
	Through func(ordered.Log) ordered.Log
	// Lost is called when this hub owns the log of several hubs no more: the process must end, or begin anew, at once and without a word to
	// anybody. It is needed with store.engine nats.
	Lost func(error)
	// Again is called when the hub is to end in order, and to be run again. It is needed with store.engine nats.
	Again func()
}

// Run runs a hub until ctx ends, and stops it in order: first HTTP and MQTT clients, then the twins, which answer
// what they were asked, then the store.
func Run(ctx context.Context, o Options) (err error) {
	cfg, log := o.Config, o.Log

	// The data: the log, with objects and sessions in it, the key of Secrets, the authority, blobs.
	dir, err := datadir.Open(cfg.Data.Dir, "cloudhub")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(dir.ExplainFull(err), dir.Close()) }()
	metrics := metrics.New(o.Version)
	commits := metrics.Commits()
	records, shared, err := openRecords(ctx, o, metrics, commits.ForStore("sessions"))
	if err != nil {
		return ignoreStop(ctx, err)
	}
	defer func() { err = errors.Join(err, shared.Close()) }()
	defer func() { err = errors.Join(err, records.Close()) }()
	commits.Watch("sessions", records.Damage)
	st, err := disk.Open(disk.Options{Journal: records, Log: log, Committed: commits.ForStore("objects")})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, st.Close()) }()
	former, err := hubdata.ReadReplaced(cfg.Data.Dir)
	if err != nil {
		return err
	}
	identity := hubIdentity(st, slices.Concat(cfg.Replaces, former))
	secrets, err := hubdata.OpenSecretStore(ctx, cfg.Data.Dir, st, log)
	if err != nil {
		return err
	}
	secrets.Announce = shared.Announce()
	authority, err := openAuthority(&cfg, st, shared.Announce(), log)
	if err != nil {
		return err
	}
	shared.UseAuthority(authority)
	references := blobs.ReferenceFinder{Reader: st}
	content, err := shared.OpenBlobs(blobs.Options{
		Dir: cfg.Data.Dir, Bytes: int64(cfg.Limits.Blobs.Bytes), Age: cfg.Limits.Blobs.Age, Log: log, Refs: references.Refs,
	})
	if err != nil {
		return err
	}

	// Who may do what: the broker's options have the users, the rules for topics and the audit log.
	brokerOptions, err := newBrokerOptions(cfg, log)
	if err != nil {
		return err
	}
	topicRules, err := mqttserver.OpenRules(&brokerOptions, cfg.Auth.Topics, log)
	if err != nil {
		return err
	}
	auditLog := brokerOptions.Audit

	// Objects, by the rules for all of them, and what happened to them.
	var treeOfNodes atomic.Pointer[twin.Twins]
	registry := objects.New(objects.Options{
		Reader: st, Writer: secrets, Derived: st, Log: log, Seal: secrets.Key, Managers: api.Managers(), Audit: auditWrites(auditLog),
		NodeReferences: nodeReferences(st), Fetched: sources.IsFetched(st),
		DeviceSettings: func(node string) []resource.ProtocolSettings { return readDeviceSettings(treeOfNodes.Load(), node) },
	})
	recorder := events.New(events.Options{
		Reader: st, Writer: st, Log: log, Keep: cfg.Limits.Events.Age, Most: cfg.Limits.Events.Count,
	})

	// The twins: what nodes are told, and what they report. The broker is made from what is made from them: they publish through it later.
	var br *broker.Broker
	var watched *alerts.Alerts
	var shown *runner.Views
	publish := func(m broker.Message) { br.Publish(m) }
	projections := newProjections(registry.Controller("twins"))
	traces, err := tracing.New(tracing.Options{
		Endpoint: cfg.Tracing.Endpoint, Ratio: cfg.Tracing.Ratio, Service: "cloudhub", Version: o.Version, Instance: identity.ID.String(), Log: log,
	})
	if err != nil {
		return err
	}
	twins, err := twin.New(ctx, twin.Options{
		Options: tree.Options{
			Publish: func(m broker.Message) { watched.Follow(m); shown.Follow(m); publish(m) },
			Pass:    func(m broker.Message, done func(error)) { watched.Follow(m); shown.Follow(m); br.Pass(m, done) },
			Kept:    func(topic string) bool { return br.HasDurableSubscriber(topic) },
			Wanted:  func(topic string) bool { return watched.Wants(topic) || shown.Wants(topic) || br.HasSubscriber(topic) },
			Quota:   link.Quota{Keys: cfg.Limits.Node.Keys, Bytes: int(cfg.Limits.Node.Bytes)}, Log: log, Traces: traces,
		},
		Reader: st, Writer: st, Watcher: st, Replicas: st, Derived: st, Rand: rand.Uint64, Record: recorder.Record, Hub: identity,
		NoteVersion: fleet.NoteVersion, Managed: registry.Managed, CreateNode: createNode(registry.Controller("twins")), Projections: projections,
		ForgetNode: func(node string) { br.ForgetNode(node) },
	})
	if err != nil {
		return err
	}
	treeOfNodes.Store(twins)

	if watched, err = openAlerts(cfg, metrics, twins.Retained, publish, log); err != nil {
		return err
	}

	// What the broker asks about topics of the tree goes through blobs, enrolment and commands to the twins.
	commands := calls.New(calls.Options{
		Role: topics.RoleNode, Tree: twins, Presence: twins, Limits: cfg.Limits.Commands, Log: log, NodeTime: twins.SetTime,
		Publish: publish, Subscribers: func(topic string) []broker.Subscriber { return br.Subscribers(topic) },
	})
	bearer, err := openBearer(ctx, cfg.Auth, st, twins, log)
	if err != nil {
		return err
	}
	carrier := newRules(cfg, registry, st, commands, func() *broker.Broker { return br }, log)
	enrollment := enroll.New(enroll.Options{
		Authority: authority, Reader: st, Writer: objects.Records(st), Watcher: st, Objects: registry.Controller("enroll"), Log: log,
		Tree: carrier, Presence: carrier, Broker: func() enroll.Broker { return br }, Hub: identity.ID.String(), FormerHubs: former,
		Mode: cfg.Auth.Enrollment, NodeLabels: cfg.Auth.NodeLabels, CheckReferences: judgeJoining(registry),
		Reserved: isReservedName(cfg.Auth, bearer.Tokens.HasUser), Address: func() string { return shared.LinkAddresses(cfg.LinkAddress(br.Addrs())) },
	})
	blobServer := blobs.NewServer(blobs.ServerOptions{
		Store: content, Allowed: references.Allowed, Fetched: registry.Fetched, Tree: enrollment, Publish: publish, Log: log,
	})
	copies, asked, err := openHistory(cfg, st, twins.Namespace, blobServer, publish, log)
	if err != nil {
		return err
	}
	shown, err = openViews(cfg, func(id broker.Identity) net.Conn { return br.Dial(id) }, twins.Retained, findHistory(st, copies, twins.Namespace), recorder.Record, log)
	if err != nil {
		return err
	}

	// The broker.
	brokerOptions.Version, brokerOptions.Journal, brokerOptions.Metrics = o.Version, records.Table(hubdata.BrokerTable), metrics
	brokerOptions.Tree, brokerOptions.Presence, brokerOptions.Rejected = asked, enrollment, twins.Rejected
	anonymous, why := cfg.Anonymous()
	log.Info().Bool("anonymous", anonymous).Str("why", why).Msg("who comes over loopback without signing in")
	brokerOptions.LinkQueue = &broker.LinkQueueOptions{Bytes: ruleQueueBytes, Age: cfg.Rules.Age}
	auth := &brokerOptions.Auth
	brokerOptions.Owned, brokerOptions.Failover, brokerOptions.Figures = shared.Owned(), shared != nil, shared.Figures()
	if anonymous {
		auth.Anonymous, auth.LoopbackNodes = []topics.Role{topics.RoleOperator}, true
	}
	auth.Node = func(name string) bool { return acceptsCertificate(cfg.Auth, twins, name) }
	auth.Bearer, auth.Enroll, auth.Revoked, auth.Notice = bearer, enrollment.Admit, enrollment.Revoked, enrollment.Notice
	if br, err = broker.New(brokerOptions); err != nil {
		return err
	}
	if err := carrier.Load(ctx); err != nil { // before any node can connect
		return errors.Join(err, br.Close(ctx))
	}
	records.Register(metrics, "sessions")
	commands.Register(metrics)
	blobServer.Register(metrics)
	copies.Register(metrics)
	shown.Register(metrics)
	registerHubMetrics(metrics, twins, recorder)
	if err := errors.Join(mqttserver.RegisterRules(topicRules, metrics), auditLog.Register(metrics)); err != nil {
		return errors.Join(err, br.Close(ctx))
	}

	// The API.
	counted := index.New(index.Options{Reader: st, Watcher: st, Log: log})
	space := dir.Space(log, copies.SetLowSpace)
	followers := hubdata.NewFollowServer(cfg.Data.Dir, records, content, log)
	followers.Register(metrics)
	links := linkReporter(identity.ID, twins, br, commits, topicRules, space, shown, followers.Late, o.Version)
	handler := api.New(api.Options{
		Objects: registry, Reader: st, Watcher: st, Log: log, Authenticate: br.SignIn, Metrics: metrics.Handler(), Version: o.Version,
		Links: links, Ready: readyChecks(commits, shared),
		Sessions: br.ServeSessions, MaxBody: int64(cfg.Limits.Request), WatchOptions: api.WatchOptions{Watches: cfg.Limits.Watches, Mirrors: shared.MirrorOptions(st)}, Blobs: blobServer.ServeHTTP, Content: content.ReadAt,
		Enrollment: enrollment, Presence: twins, OwnOnly: cfg.HTTP.Discovery == "own",
		Tokens: bearer.Tokens.ServeHTTP, Follow: followers, Index: counted, Page: api.PageOptions{Handler: page.Handler(), Browsers: br, Login: loginOptions(cfg.Auth.OIDC), Provider: browserProvider(bearer.OIDC, br), Alerts: watched, Audit: recentAudit(auditLog), Cluster: shared.Status(), FinishUpgrade: shared.FinishUpgrade(), Diagnose: nodeDoctor(links, st, counted, twins)},
		Devices: api.DeviceServices{Rule: carrier.Request, Traces: traces, Call: commandCaller(br, commands), History: func(node string) requests.Source { return copies.Of(node) }},
	})
	site, serveSite, err := serveHTTP(cfg, log, shared, metrics.Count(auditLog.Handler(shared.Guard(handler))))
	if err != nil {
		return errors.Join(err, br.Close(ctx))
	}
	metrics.HTTP(site.Connections)

	// What acts on objects, and everything else that runs.
	controllers := newControllers(controllerOptions{
		Config: cfg, Registry: registry, Store: st, Blobs: content, Recorder: recorder, Metrics: metrics, Log: log, Twins: twins, Projections: projections, Rules: carrier,
	})
	guard := dir.Guard(log, records.InPlace)
	commits.Guard(guard.Err)
	backups := shared.Socket(cfg.Data.Dir, hubdata.Snapshot(records, content), secrets.Rotate, log)
	if o.Ready != nil {
		o.Ready(daemon.Addresses{MQTT: br.Addrs(), HTTP: site.Addrs()})
	}
	return daemon.RunGroup(ctx, mqttserver.RunWithAudit(auditLog, twins.Run), br.Serve, serveSite, content.Run, blobServer.Run, copies.Run,
		bearer.Tokens.Run, counted.Run, recorder.Run, enrollment.Run, traces.Run, backups.Run, guard.Run, space.Run, watched.Run, shown.Run, shared.Serve(br, st),
		func(ctx context.Context) error { return topicRules.Run(ctx, br.RightsChanged) }, carrier.Run, controllers, followUpgradeReports(twins, st, log))
}

// openRecords opens the hub's log. With a log of several hubs it returns when this one owns it, and stands by until then.
func openRecords(ctx context.Context, o Options, m metrics.Registry, committed func(time.Duration, int, error)) (*journal.Journal, *clusterhub.SharedLog, error) {
	if o.Config.Store.Engine != "nats" {
		records, err := hubdata.OpenFiles(o.Config.Data.Dir, o.Log, committed, o.Through)
		return records, nil, err
	}
	return clusterhub.Open(ctx, clusterhub.Options{
		Config: o.Config, Version: o.Version, Log: o.Log, Ready: o.Ready, Through: o.Through, Lost: o.Lost, Again: o.Again,
		Metrics: m, Committed: committed, Listeners: mqttListeners,
	})
}

// serveHTTP has a hub serve its API, on the site that is there already if it is one of a cluster.
func serveHTTP(cfg configs.Hub, log zerolog.Logger, shared *clusterhub.SharedLog, handler http.Handler) (*httpserver.Server, func(context.Context) error, error) {
	if shared != nil {
		server, run := shared.HTTP(handler)
		return server, run, nil
	}
	server, err := httpserver.Listen(httpserver.Options{
		Listen: cfg.HTTP.Listen, ListenTLS: cfg.HTTP.TLS.Listen, TLS: cfg.HTTP.TLS.Config, Limits: cfg.Limits.Limits,
	}, log, handler)
	if err != nil {
		return nil, nil, err
	}
	return server, server.Run, nil
}

// hubIdentity is this hub's identity, which the data has, and those of the hubs that it replaces.
func hubIdentity(st *disk.Store, replaces []string) (h twin.Hub) {
	h.ID = resource.HubID(st.Identity())
	for _, text := range replaces {
		if other, err := resource.ParseHubID(text); err == nil { // it was checked before
			h.Replaces = append(h.Replaces, other)
		}
	}
	return h
}

// ignoreStop is no error if ctx has ended, as a hub's that stood by until then.
func ignoreStop(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return nil
	}
	return err
}

// acceptsCertificate says whether a certificate is accepted as a node's, if its name is no user's.
func acceptsCertificate(a configs.HubAuth, nodes nodeRegistry, name string) bool {
	registered, any := nodes.Registered(name)
	switch a.Nodes {
	case "any":
		return true
	case "registered":
		return registered
	}
	return registered || !any && len(a.Users) == 0 && a.OIDC.Issuer == ""
}

// gcPercent is GOGC once the hub has started, if it is not set. With the default of 100 a hub with a hundred thousand Devices needs half as much
// memory again (docs/adr/0021). A start has the default, which costs it a third less of the collector.
const gcPercent = 50

// tidyMemory sets GOGC for a hub that has started, and gives back what the start has left, which is as much as what lives. One that stands by, which
// has no clients, has its start still to come.
func tidyMemory(at daemon.Addresses) {
	if len(at.MQTT) == 0 {
		return
	}
	if os.Getenv("GOGC") == "" {
		if started := debug.SetGCPercent(gcPercent); started < gcPercent { // for there is little memory
			debug.SetGCPercent(started)
		}
	}
	go debug.FreeOSMemory()
}

// Main is the program cloudhub: it runs a hub as configured until it is told to stop, or one of the commands check,
// backup, restore, takeover, rotate-key, take-authority, follow and cluster, and returns the exit code.
func Main(args []string, stdout, stderr io.Writer) int {
	if code, mine := hubdata.Program().Main(args, stdout, stderr); mine {
		return code
	}
	if len(args) > 0 && args[0] == "follow" {
		return hubdata.FollowMain(args[1:], stdout, stderr)
	}
	if len(args) > 0 && args[0] == "cluster" {
		return clusterhub.Main(args[1:], stdout, stderr)
	}
	health := len(args) > 0 && args[0] == "health"
	if health {
		args = args[1:]
	}
	cfg, done, err := configs.Parse[configs.Hub]("cloudhub", daemon.Version(), args, stdout)
	if err != nil {
		fmt.Fprintln(stderr, "cloudhub:", err)
		return 2
	}
	if done {
		return 0
	}
	if health {
		address, secure := cfg.HTTP.Health()
		if err := httpserver.CheckHealth(context.Background(), address, secure); err != nil {
			fmt.Fprintln(stderr, "cloudhub health:", err)
			return 1
		}
		return 0
	}
	return daemon.Run("cloudhub", configs.Logger(stderr, cfg.Log), func(ctx context.Context, p daemon.Program) error {
		running, again := context.WithCancel(ctx)
		defer again()
		err := Run(running, Options{Config: cfg, Version: p.Version, Log: p.Log, Ready: func(at daemon.Addresses) {
			p.Ready()
			tidyMemory(at)
		}, Lost: func(why error) {
			if ctx.Err() != nil { // it is to stop
				p.Log.Warn().Err(why).Msg("the hub stops without its log: what it had not acknowledged may be missing there")
				os.Exit(0)
			}
			p.Log.Error().Err(why).Msg("this hub owns the log no more: all its connections end, and it begins anew, to stand by")
			beginAnew()
		}, Again: again})
		if running.Err() != nil && ctx.Err() == nil {
			if err != nil {
				p.Log.Error().Err(err).Msg("the hub did not end in order; it begins anew")
			}
			beginAnew()
		}
		return err
	})
}
