// SPDX-License-Identifier: Apache-2.0

package clusterhub

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
	"github.com/rs/zerolog"

	"github.com/edgebus/edgebus/broker"
	"github.com/edgebus/edgebus/broker/daemon"
	"github.com/edgebus/edgebus/broker/daemon/metrics"
	"github.com/edgebus/edgebus/broker/journal"
	"github.com/edgebus/edgebus/broker/ordered"
	"github.com/edgebus/edgebus/broker/sealed"
	"github.com/edgebus/edgebus/cloud/cluster"
	"github.com/edgebus/edgebus/cloud/clusterca"
	"github.com/edgebus/edgebus/cloud/enroll"
	"github.com/edgebus/edgebus/cloud/hubdata"
	"github.com/edgebus/edgebus/cloud/jetstream"
	"github.com/edgebus/edgebus/cloud/mirror"
	"github.com/edgebus/edgebus/cloud/peer"
	"github.com/edgebus/edgebus/cloud/store/disk"
	"github.com/edgebus/edgebus/configs"
)

// SharedLog is the log of several hubs, which this one owns.
type SharedLog struct {
	cfg    configs.HubNATS
	log    zerolog.Logger
	member *cluster.Member
	engine *jetstream.Log
	name   string
	peers  *peers
	teller hubTeller
	// drained is whether this hub lets others serve, and again has it end in order and stand by.
	drained *drainedState
	again   func()

	version  string
	auth     string                 // a digest of who may come in here
	instance uint64                 // of this process
	link     atomic.Pointer[string] // at which address nodes reach this hub
	site     *hubSite
	blobs    *hubBlobs
	keys     *hubKeys

	options  jetstream.Options
	client   *http.Client // of the servers' monitoring addresses
	checking sync.Mutex
	warned   []string // of the last check
	open     []string // which servers let strangers write, as of asked
	asked    time.Time
	clocks   map[string]time.Duration
	expires  time.Time // when the first of the servers' certificates ends; zero: none is known

	standing atomic.Pointer[cluster.Member] // member, for who asks the hub while it begins to stand by
}

// Options are what a hub of a cluster needs. The first of them are those of package cloud.
type Options struct {
	Config  configs.Hub
	Version string
	Log     zerolog.Logger
	Ready   func(daemon.Addresses)
	Through func(ordered.Log) ordered.Log
	Lost    func(error)
	Again   func()

	Metrics   metrics.Registry
	Committed func(took time.Duration, commits int, err error)
	// Listeners are those at which MQTT connections are taken for the hub that serves.
	Listeners func(configs.Hub) ([]broker.Listener, error)
}

// Open opens the log of several hubs. It returns when this one owns it, and stands by until then.
func Open(ctx context.Context, o Options) (*journal.Journal, *SharedLog, error) {
	dir := o.Config.Data.Dir
	key, err := sealed.LoadKey(filepath.Join(dir, hubdata.ClusterKeyFile))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil, fmt.Errorf("%s is of no cluster: `cloudhub cluster init` makes one, or `cloudhub cluster import` with its data, and `cloudhub cluster join` makes this hub one of others", dir)
	}
	if err != nil {
		return nil, nil, err
	}
	s := &SharedLog{cfg: o.Config.Store.NATS, log: o.Log, name: hubName(o.Config.Store.NATS), version: o.Version, instance: rand.Uint64()} //nolint:gosec // G404: it tells processes apart, and keeps nobody out
	s.again, s.auth = o.Again, authDigest(o.Config.Auth, key)
	if s.drained, err = openDrained(dir); err != nil {
		return nil, nil, err
	}
	if s.peers, err = openPeers(o, key, s.name); err != nil {
		return nil, nil, err
	}
	if s.blobs, err = openHubBlobs(o, s.peers); err != nil {
		return nil, nil, errors.Join(err, s.Close())
	}
	go s.blobs.run(ctx)
	s.keys = &hubKeys{peers: s.peers, client: s.peers.Client(purposeKeys), cfg: o.Config, log: o.Log}
	go s.keys.run(ctx)
	go s.peers.serveJoins(ctx, o.Config, o.Log)
	if s.site, err = openSite(ctx, o, s.peers, s.standBy(o.Metrics)); err != nil {
		return nil, nil, errors.Join(err, s.Close())
	}
	if o.Ready != nil {
		o.Ready(daemon.Addresses{HTTP: s.site.Addrs()}) // it is ready to stand by
	}
	records, err := s.own(ctx, o, key)
	if err != nil {
		return nil, nil, errors.Join(err, s.Close())
	}
	context.AfterFunc(ctx, func() { s.member.Abandon(checkTime) })
	return records, s, nil
}

func hubName(c configs.HubNATS) string {
	host, _ := os.Hostname() // without one hubs have the same name
	return cmp.Or(c.Name, host, "hub")
}

// engineOptions are how the log is opened. A server that asks for a certificate is shown one of the hubs' own authority, unless another is configured.
func engineOptions(c configs.HubNATS, key sealed.Key, log zerolog.Logger) (jetstream.Options, error) {
	o := jetstream.Options{Servers: c.Servers, Stream: c.Stream, Name: hubName(c), Credentials: c.Credentials, Replicas: c.Replicas, NeedTLS: c.TLS != (configs.TLSClient{}), Log: log}
	settings, err := c.TLS.Config()
	if err != nil {
		return o, err
	}
	authority, err := clusterca.New(key)
	if err != nil {
		return o, err
	}
	o.TLS = authority.Client(settings)
	return o, nil
}

// own stands by until this hub owns the log.
func (s *SharedLog) own(ctx context.Context, o Options, key sealed.Key) (*journal.Journal, error) {
	var err error
	if s.options, err = engineOptions(s.cfg, key, s.log); err == nil {
		s.client, s.options.Told = monitorClient(s.options), s.teller.hear
		s.teller.self, s.teller.send = s.self, s.tell
		s.engine, err = jetstream.Open(ctx, s.options)
	}
	if err != nil {
		return nil, err
	}
	if len(s.cfg.Monitor) == 0 {
		s.log.Warn().Msg("nobody can be asked whether the log's servers sync what they acknowledge: set store.nats.monitor, and sync_interval: always on each server")
	}
	if err := s.check(ctx); err != nil {
		return nil, err
	}
	s.member = cluster.New(cluster.Options{Log: s.engine, Key: key, Name: s.name, Address: s.peers.address, Says: s.keys.says, Silence: s.cfg.Silence, Lost: o.Lost, MayTake: s.mayTake, Logger: s.log})
	s.teller.check, s.teller.ask, s.teller.log = s.isAble, s.engine.Status, s.log
	s.standing.Store(s.member)
	s.peers.start(ctx, s.member)
	s.register(o.Metrics)
	jo := hubdata.LogOptions(o.Config.Data.Dir)
	jo.Log, jo.Shared, jo.Through = s.log, s.member.Commit, o.Through
	jo.Committed = func(took time.Duration, commits int, err error) {
		s.member.CheckStored(err)
		o.Committed(took, commits, err)
	}
	records, err := journal.Open(jo)
	if err != nil {
		return nil, fmt.Errorf("%w. If data of this hub is damaged others have it: `cloudhub cluster join --force --from HUB`", err)
	}
	carrier, err := s.newCarrier(o)
	if err != nil {
		return nil, errors.Join(err, records.Close())
	}
	o.Metrics.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "edgebus_cluster_carried_connections", Help: "MQTT connections that this hub, which stands by, carries to the one that serves.",
	}, func() float64 { return float64(carrier.Carried()) }))
	link := o.Config.LinkAddress(carrier.Addrs())
	s.link.Store(&link)
	standing, stop := context.WithCancel(context.WithoutCancel(ctx))
	var work sync.WaitGroup
	work.Go(func() { carrier.Serve(standing) })
	work.Go(func() { s.teller.run(standing) })
	work.Go(func() { _ = s.Socket(o.Config.Data.Dir, hubdata.Snapshot(records, nil), nil, s.log).Run(standing) }) // it is logged
	if err = s.member.Stand(ctx, records); err != nil {
		err = errors.Join(err, s.peers.Close()) // before the carrier ends: it is this hub that is gone, and not its clients
	}
	stop()
	work.Wait()
	s.peers.mirrors.Close()
	if err != nil {
		return nil, errors.Join(err, records.Close())
	}
	s.keys.settle()
	return records, nil
}

// tell tells the others something, once the log is open: others may ask before.
func (s *SharedLog) tell(text []byte) {
	if s.standing.Load() != nil {
		s.engine.Tell(text)
	}
}

// Serve has other hubs reach this one's broker and objects, and says how far it is, until ctx ends.
func (s *SharedLog) Serve(br *broker.Broker, st *disk.Store) func(context.Context) error {
	return func(ctx context.Context) error {
		if s == nil {
			<-ctx.Done()
			return nil
		}
		s.peers.Handle(carriedMQTT, func(stream peer.Stream) { s.serveCarried(br, stream) })
		defer s.peers.Handle(carriedMQTT, nil)
		feed := mirror.Feed{OwnObjects: st, Owner: s.instance}
		s.peers.Handle(purposeMirror, func(stream peer.Stream) {
			err := feed.Serve(ctx, stream)
			s.log.Debug().Err(err).Str("hub", stream.Hub).Msg("a hub is told of objects no more")
		})
		defer s.peers.Handle(purposeMirror, nil)
		s.run(ctx)
		return nil
	}
}

const (
	trimSlack = 1000 // frames that are kept in any case
)

// run says how far this hub is, and gives up frames that all have, until ctx ends.
func (s *SharedLog) run(ctx context.Context) {
	go s.teller.run(ctx)
	tick := time.NewTicker(time.Minute)
	defer tick.Stop()
	past := pastPositions{keep: s.cfg.Keep}
	for {
		select {
		case <-ctx.Done():
			return
		case now := <-tick.C:
			if before := past.trimmable(now, s.member.At(), s.others(now)); before > 0 {
				if err := s.engine.Trim(before); err != nil {
					s.log.Warn().Err(err).Msg("the log could not be trimmed; trying again in a minute")
				}
			}
		}
	}
}

// others are the other hubs that were heard.
func (s *SharedLog) others(now time.Time) []cluster.HeardHub {
	return slices.DeleteFunc(s.teller.hubs.List(now), func(h cluster.HeardHub) bool { return h.Name == s.name })
}

// LinkAddresses are where nodes reach the hubs: this one first, then each other that is known, with commas between.
func (s *SharedLog) LinkAddresses(own string) string {
	if s == nil || own == "" {
		return own
	}
	all := []string{own}
	for _, h := range s.others(time.Now()) {
		if h.Link != "" && !slices.Contains(all, h.Link) {
			all = append(all, h.Link)
		}
	}
	return strings.Join(all, ",")
}

// pastPositions are where the log ended, a minute each.
type pastPositions struct {
	keep time.Duration
	list []struct {
		when time.Time
		at   ordered.Position
	}
}

// trimmable is the position before which frames are old, and are had by each hub that was heard since; 0: there is none, or no other hub.
func (p *pastPositions) trimmable(now time.Time, at ordered.Position, others []cluster.HeardHub) (before ordered.Position) {
	p.list = append(p.list, struct {
		when time.Time
		at   ordered.Position
	}{now, at})
	old := 0
	for old < len(p.list) && now.Sub(p.list[old].when) >= p.keep {
		before = p.list[old].at
		old++
	}
	p.list = slices.Delete(p.list, 0, max(old-1, 0))
	heard := 0
	for _, r := range others {
		if now.Sub(r.When) < p.keep {
			before, heard = min(before, r.At), heard+1
		}
	}
	if heard == 0 || before <= trimSlack {
		return 0
	}
	return before - trimSlack
}

// Close hands the log over, and ends the connection to it.
func (s *SharedLog) Close() error {
	if s == nil {
		return nil
	}
	if s.peers.mirrors != nil {
		s.peers.mirrors.Close()
	}
	err := errors.Join(s.site.close(), s.peers.Close())
	if s.engine == nil {
		return err
	}
	if s.member != nil {
		ctx, stop := context.WithTimeout(context.Background(), checkTime)
		defer stop()
		s.member.Release(ctx)
		_ = s.member.Close()
	}
	return errors.Join(err, s.engine.Close())
}

// Owned waits until whatever is acknowledged is also what another hub would say; nil: there is none.
func (s *SharedLog) Owned() func() bool {
	if s == nil {
		return nil
	}
	return s.member.AwaitOwned
}

// UseAuthority has other hubs know this one by the authority that it opened as the owner.
func (s *SharedLog) UseAuthority(a *enroll.Authority) {
	if s != nil {
		s.peers.authority.Store(a)
	}
}

// Announce has the other hubs have a new key; nil: there are none.
func (s *SharedLog) Announce() func() error {
	if s == nil {
		return nil
	}
	return s.keys.announce
}

// Ready is why the hub must not be sent anybody.
func (s *SharedLog) Ready(context.Context) error {
	if s.member.Owns() {
		return nil
	}
	return fmt.Errorf("the log has not answered for %s", s.member.Silent().Round(100*time.Millisecond))
}

// Guard answers requests only while the log is this hub's: another one may have told somebody something newer.
func (s *SharedLog) Guard(h http.Handler) http.Handler {
	if s == nil {
		return h
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if s.member.Owns() || slices.Contains(alwaysServed, r.URL.Path) {
			h.ServeHTTP(w, r)
			return
		}
		refuse(w, "the log of the hubs doesn't answer, and nothing is read or written meanwhile: are two of its NATS servers there?")
	})
}

// alwaysServed are paths that say how a hub is.
var alwaysServed = []string{"/livez", "/readyz", "/healthz", "/metrics", "/version", clusterPath}

const clusterPath = "/cluster"

func refuse(w http.ResponseWriter, why string) {
	w.Header().Set("Retry-After", "1")
	http.Error(w, why, http.StatusServiceUnavailable)
}

// standBy is what is served over HTTP by a hub that stands by: how it is, and all else by the owner, or by itself if that has it do so.
func (s *SharedLog) standBy(m metrics.Registry) http.Handler {
	mux := http.NewServeMux()
	alive := func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "ok\n") }
	mux.HandleFunc("GET /livez", alive)
	mux.HandleFunc("GET /healthz", alive)
	forward := s.peers.Forward()
	s.openMirrors(m, forward)
	mux.Handle("GET /metrics", forward.Local("/metrics", m.Handler()))
	mux.Handle("GET "+clusterPath, forward.Local("/metrics", http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if s.standing.Load() == nil {
			refuse(w, "this hub is about to start")
			return
		}
		s.Status().ServeHTTP(w, r)
	})))
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		m := s.standing.Load()
		switch {
		case r.URL.Path == "/readyz" && r.URL.Query().Has(askOwner) && m != nil:
			refuse(w, "standby of "+cmp.Or(m.Owner(), "nobody yet"))
		case m == nil:
			refuse(w, "this hub has not read the log yet; try again")
		default:
			forward.ServeHTTP(w, r)
		}
	})
	return mux
}

// askOwner is a parameter of /readyz for who looks for the hub that owns the log. Without it all are ready that have requests answered.
const askOwner = "owner"

func (s *SharedLog) register(m metrics.Registry) {
	f := promauto.With(m)
	gauge := func(name, help string, value func() float64) {
		f.NewGaugeFunc(prometheus.GaugeOpts{Namespace: "edgebus", Subsystem: "cluster", Name: name, Help: help}, value)
	}
	gauge("owner", "1 when the log of the hubs is this one's, 0 when it stands by.", func() float64 {
		if s.member.Owns() {
			return 1
		}
		return 0
	})
	gauge("position", "Up to where this hub has what is in the log.", func() float64 { return float64(s.member.At()) })
	gauge("server_certificate_seconds", "For how long the certificates of the log's servers are valid, the first to end; 0 when none is known.", func() float64 { return s.certificateLeft().Seconds() })
	s.registerHubs(gauge)
	gauge("silent_seconds", "For how long nothing was read of the log or appended to it.", func() float64 { return s.member.Silent().Seconds() })
}
