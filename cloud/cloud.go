package cloud

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime/debug"

	"github.com/rs/zerolog"

	"github.com/edgebus/edgebus/broker"
	"github.com/edgebus/edgebus/broker/calls"
	"github.com/edgebus/edgebus/broker/daemon"
	"github.com/edgebus/edgebus/broker/daemon/datadir"
	"github.com/edgebus/edgebus/broker/daemon/httpserver"
	"github.com/edgebus/edgebus/broker/daemon/metrics"
	"github.com/edgebus/edgebus/broker/mqttserver"
	"github.com/edgebus/edgebus/broker/tree"
	"github.com/edgebus/edgebus/cloud/api"
	"github.com/edgebus/edgebus/cloud/blobs"
	"github.com/edgebus/edgebus/cloud/enroll"
	"github.com/edgebus/edgebus/cloud/events"
	"github.com/edgebus/edgebus/cloud/fleet"
	"github.com/edgebus/edgebus/cloud/objects"
	"github.com/edgebus/edgebus/cloud/sources"
	"github.com/edgebus/edgebus/cloud/store/bolt"
	"github.com/edgebus/edgebus/cloud/twin"
	"github.com/edgebus/edgebus/configs"
	"github.com/edgebus/edgebus/topics"
	"github.com/edgebus/edgebus/topics/link"
)

// FileName is the store's name in the hub's data directory.
const FileName = "hub.db"

// Options are what a hub needs.
type Options struct {
	Config  configs.Hub
	Version string
	Log     zerolog.Logger
	// Ready is called once all listeners are bound, with their addresses. It may be nil.
	Ready func(daemon.Addresses)
}

// Run runs a hub until ctx ends, and stops it in order: first HTTP and MQTT clients, then the twins, which answer
// what they were asked, then the store.
func Run(ctx context.Context, o Options) (err error) {
	cfg, log := o.Config, o.Log
	dir, err := datadir.Open(cfg.Data.Dir, "cloudhub")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, dir.Close()) }()
	figures := metrics.New(o.Version)
	commits := figures.Commits()
	st, err := bolt.Open(bolt.Options{
		Path: filepath.Join(cfg.Data.Dir, FileName), Log: log, Committed: commits.ForStore("objects"),
	})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, st.Close()) }()

	hub := hubIdentity(st, cfg.Replaces)
	sealed, err := openSecretStore(ctx, cfg.Data.Dir, st, log)
	if err != nil {
		return err
	}
	authority, err := openAuthority(&cfg, st, log)
	if err != nil {
		return err
	}
	kept, err := mqttserver.OpenJournal(cfg.Data.Dir, log, commits.ForStore("sessions"))
	if err != nil {
		return err
	}
	commits.Watch("sessions", kept.Damage)
	defer func() { err = errors.Join(err, kept.Close()) }()

	specs := blobs.ReferenceFinder{Reader: st}
	content, err := blobs.Open(blobs.Options{
		Dir: cfg.Data.Dir, Bytes: int64(cfg.Limits.Blobs.Bytes), Age: cfg.Limits.Blobs.Age, Refs: []blobs.References{specs.Refs, fleet.BlobReferences(st), sources.BlobReferences(st)}, Log: log,
	})
	if err != nil {
		return err
	}
	recorder := events.New(events.Options{
		Reader: st, Writer: st, Log: log, Keep: cfg.Limits.Events.Age, Most: cfg.Limits.Events.Count,
	})
	bo, err := brokerOptions(cfg, log)
	if err != nil {
		return err
	}
	rules, err := mqttserver.OpenRules(&bo, cfg.Auth.Topics, log)
	if err != nil {
		return err
	}
	objs := objects.New(objects.Options{
		Reader: st, Writer: sealed, Log: log, Seal: sealed.key, Managers: api.Managers(), Audit: auditWrites(bo.Audit),
		NodeReferences: nodeReferences(st), Fetched: sources.IsFetched(st),
	})
	rows := projections(objs.Controller("twins"))
	var br *broker.Broker
	tw, err := twin.New(ctx, twin.Options{
		Options: tree.Options{
			Publish: func(m broker.Message) { br.Publish(m) },
			Pass:    func(m broker.Message, done func(error)) { br.Pass(m, done) },
			Kept:    func(topic string) bool { return br.HasDurableSubscriber(topic) },
			Wanted:  func(topic string) bool { return br.HasSubscriber(topic) },
			Quota:   link.Quota{Keys: cfg.Limits.Node.Keys, Bytes: int(cfg.Limits.Node.Bytes)}, Log: log,
		},
		Reader: st, Writer: st, Watcher: st, Replicas: st, Rand: rand.Uint64, Record: recorder.Record, Managed: objs.Managed, CreateNode: createNode(objs.Controller("twins")), Hub: hub,
		ForgetNode: func(node string) { br.ForgetNode(node) }, Projections: rows,
	})
	if err != nil {
		return err
	}
	bo.Version = o.Version
	commands := calls.New(calls.Options{
		Role: topics.RoleNode, Tree: tw, Presence: tw, Limits: cfg.Limits.Commands, Log: log, NodeTime: tw.SetTime,
		Publish:     func(m broker.Message) { br.Publish(m) },
		Subscribers: func(topic string) []broker.Subscriber { return br.Subscribers(topic) },
	})
	bearer, err := openBearer(ctx, cfg.Auth, st, tw, log)
	if err != nil {
		return err
	}
	nodes := enroll.New(enroll.Options{
		Authority: authority, Reader: st, Writer: st, Watcher: st, Objects: objs.Controller("enroll"), Broker: func() enroll.Broker { return br }, Tree: commands, Presence: commands,
		Mode: cfg.Auth.Enrollment, Reserved: isReservedName(cfg.Auth, bearer.Tokens.HasUser), Address: func() string { return hubAddress(cfg, br.Addrs()) }, Log: log,
		CheckReferences: judgeJoining(objs), NodeLabels: cfg.Auth.NodeLabels, Hub: hub.ID.String(),
	})
	serving := blobs.NewServer(blobs.ServerOptions{
		Store: content, Allowed: specs.Allowed, Fetched: objs.Fetched, Tree: nodes, Publish: func(m broker.Message) { br.Publish(m) }, Log: log,
	})
	bo.Tree, bo.Presence, bo.Rejected, bo.Journal, bo.Metrics = serving, nodes, tw.Rejected, kept, figures
	yes, why := cfg.Anonymous()
	log.Info().Bool("anonymous", yes).Str("why", why).Msg("who comes over loopback without signing in")
	if yes {
		bo.Auth.Anonymous, bo.Auth.LoopbackNodes = []topics.Role{topics.RoleOperator}, true
	}
	bo.Auth.Node = func(name string) bool { return acceptsCertificate(cfg.Auth, tw, name) }
	bo.Auth.Bearer = bearer
	bo.Auth.Enroll, bo.Auth.Revoked, bo.Auth.Notice = nodes.Admit, nodes.Revoked, nodes.Notice
	if br, err = broker.New(bo); err != nil {
		return err
	}
	kept.Register(figures, "sessions")
	commands.Register(figures)
	serving.Register(figures)
	registerHubMetrics(figures, tw, recorder)
	if err := errors.Join(mqttserver.RegisterRules(rules, figures), bo.Audit.Register(figures)); err != nil {
		return errors.Join(err, br.Close(ctx))
	}
	space := dir.Space(log, nil)
	act := newControllers(cfg.Data.Dir, cfg.Sources, objs, st, content, recorder, figures, log, tw, newProjectionControllers(tw, rows))
	watch := func(ctx context.Context) error { return rules.Run(ctx, br.RightsChanged) }
	site, err := httpserver.Listen(httpserver.Options{Listen: cfg.HTTP.Listen, ListenTLS: cfg.HTTP.TLS.Listen, TLS: cfg.HTTP.TLS.Config, Limits: cfg.Limits.Limits}, log, figures.Count(bo.Audit.Handler(api.New(api.Options{
		Objects: objs, Reader: st, Writer: st, Watcher: st, Log: log, Authenticate: br.SignIn, Metrics: figures.Handler(), Version: o.Version,
		Links: linkReporter(hub.ID, tw, br, commits, rules, space, o.Version), Ready: map[string]func(context.Context) error{"store": storesReady(commits)},
		Sessions: br.ServeSessions, MaxBody: int64(cfg.Limits.Request), Watches: cfg.Limits.Watches, Blobs: serving.ServeHTTP, Content: content.ReadAt,
		Enrollment: nodes, Presence: tw, OwnOnly: cfg.HTTP.Discovery == "own",
		Tokens: bearer.Tokens.ServeHTTP, Login: loginOptions(cfg.Auth.OIDC),
	}))))
	if err != nil {
		return errors.Join(err, br.Close(ctx))
	}
	figures.HTTP(site.Connections)

	guard := dir.Guard(log, st.InPlace, kept.InPlace)
	commits.Guard(guard.Err)
	backups := dataProgram().Listen(cfg.Data.Dir, snapshotData(st, kept, content), sealed.rotate, log)
	if o.Ready != nil {
		o.Ready(daemon.Addresses{MQTT: br.Addrs(), HTTP: site.Addrs()})
	}
	return daemon.RunGroup(ctx, mqttserver.RunWithAudit(bo.Audit, tw.Run), br.Serve, site.Run, content.Run, serving.Run, bearer.Tokens.Run, recorder.Run, nodes.Run, backups.Run, guard.Run, space.Run, watch, act, followUpgradeReports(tw, st, log))
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

// gcPercent is GOGC if it is not set. With the default of 100 a hub with a hundred thousand Devices needs half as much
// memory again (docs/adr/0021).
const gcPercent = 50

// Main is the program cloudhub: it runs a hub as configured until it is told to stop, or one of the commands check,
// backup, restore and rotate-key, and returns the exit code.
func Main(args []string, stdout, stderr io.Writer) int {
	if code, mine := dataProgram().Main(args, stdout, stderr); mine {
		return code
	}
	cfg, done, err := configs.Parse[configs.Hub]("cloudhub", daemon.Version(), args, stdout)
	if err != nil {
		fmt.Fprintln(stderr, "cloudhub:", err)
		return 2
	}
	if done {
		return 0
	}
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(gcPercent)
	}
	return daemon.Run("cloudhub", configs.Logger(stderr, cfg.Log), func(ctx context.Context, p daemon.Program) error {
		return Run(ctx, Options{Config: cfg, Version: p.Version, Log: p.Log, Ready: func(daemon.Addresses) { p.Ready() }})
	})
}
