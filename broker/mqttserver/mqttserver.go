// Package mqttserver makes the MQTT broker of hub and core out of their settings, with the journal that it keeps its
// sessions in.
//
// It never runs the broker, and decides nothing that the settings don't say.
package mqttserver

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"
	"golang.org/x/sync/errgroup"

	"github.com/edgebus/edgebus/broker"
	"github.com/edgebus/edgebus/broker/audit"
	"github.com/edgebus/edgebus/broker/daemon"
	"github.com/edgebus/edgebus/broker/daemon/backup"
	"github.com/edgebus/edgebus/broker/daemon/datadir"
	"github.com/edgebus/edgebus/broker/daemon/metrics"
	"github.com/edgebus/edgebus/broker/journal"
	"github.com/edgebus/edgebus/broker/wal"
	"github.com/edgebus/edgebus/configs"
	"github.com/edgebus/edgebus/topics"
	"github.com/edgebus/edgebus/topics/acl"
	"github.com/edgebus/edgebus/topics/resource"
)

// BrokerOptions makes a broker's options of the parts of a configuration that are about it.
func BrokerOptions(m configs.MQTT, a configs.Auth, l configs.Limits, insecure bool) (broker.Options, error) {
	o := broker.Options{InsecureListen: insecure, Limits: l}
	for _, d := range a.Deny {
		o.Auth.Deny = append(o.Auth.Deny, broker.DeniedIdentity{Name: d.Name, Serial: configs.NormalizeHex(d.Serial), Fingerprint: configs.NormalizeHex(d.Fingerprint)})
	}
	o.Auth.SharedGroups = a.SharedGroups
	for _, u := range a.Users {
		o.Auth.Users = append(o.Auth.Users, broker.User{
			Name: u.Name, PasswordHash: u.PasswordHash, Role: topics.Role(u.Role),
			Nodes: u.Nodes, Devices: u.Devices, Protocols: u.Protocols, Configurations: u.Configurations, Clients: u.Clients, Local: u.Local,
		})
	}
	var err error
	o.Listeners, err = mqttListeners(m)
	return o, err
}

// OpenRules opens the rules for users' own topics, and has the broker's options use them.
func OpenRules(o *broker.Options, a configs.Auth, log zerolog.Logger) (*acl.ActiveRules, error) {
	rules := acl.Options{File: a.Topics, Reread: func(err error) {
		if err != nil {
			log.Error().Err(err).Msg("the file of rules for users' own topics is not in force: the rules that were read before stay")
			return
		}
		log.Info().Str("file", a.Topics).Msg("the rules for users' own topics have changed")
	}}
	for _, u := range a.Users {
		rules.Users = append(rules.Users, acl.User{Name: u.Name, Publish: u.Publish, Subscribe: u.Subscribe})
	}
	source, err := acl.Open(rules)
	if err != nil {
		return nil, err
	}
	o.Auth.Topics = source.Rules
	return source, nil
}

// RegisterRules registers the metric that says whether the rules of a file are in force.
func RegisterRules(rules *acl.ActiveRules, r prometheus.Registerer) error {
	if !rules.HasFile() {
		return nil
	}
	return r.Register(prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "edgebus_topic_rules_current",
		Help: "1: the rules in force are those of the file auth.topics; 0: it can't be read or is wrong, and the rules before it stay.",
	}, func() float64 {
		if rules.Failing() != "" {
			return 0
		}
		return 1
	}))
}

// OpenAudit opens the audit log, and has the broker's options use it.
func OpenAudit(o *broker.Options, a configs.Audit, dataDir string, log zerolog.Logger) (err error) {
	o.Audit, err = audit.New(audit.Options{File: a.Path(dataDir), Size: int(a.Size >> 20), Files: a.Files, Log: log})
	return err
}

// RunWithAudit runs what belongs to a broker while run does, which may outlive the broker's clients: the audit log, so that
// what they did last is in it.
func RunWithAudit(log *audit.Log, run func(context.Context) error) func(context.Context) error {
	return func(ctx context.Context) error {
		g, ctx := errgroup.WithContext(ctx)
		g.Go(func() error { return run(ctx) })
		g.Go(func() error { return log.Run(ctx) })
		return g.Wait()
	}
}

// While no user of the settings is one of the host's, root is AgentUser at a core's Unix socket, and the host's user of
// edgediscovery's unit is DiscovererUser.
const (
	AgentUser      = "agent"
	DiscovererUser = "edgediscovery"
)

// AddUnixSocket adds a core's Unix socket to the options of its broker.
func AddUnixSocket(o *broker.Options, cfg configs.Core, log zerolog.Logger) {
	path, why := cfg.SocketPath()
	if inData := filepath.Join(cfg.Data.Dir, configs.SocketName); cfg.MQTT.Socket == configs.Auto && path != inData && isListening(path) {
		log.Warn().Str("socket", path).Str("instead", inData).Msg("another program listens at the Unix socket: mqtt.socket is in the data directory instead")
		path = inData
	}
	if path == "" {
		if why != "" {
			log.Info().Str("reason", why).Msg("there is no Unix socket for the programs of this host (mqtt.socket)")
		}
		return
	}
	o.Listeners = append(o.Listeners, broker.Listener{Name: "unix", Setting: "mqtt.socket", Address: "unix:" + path})
	if slices.ContainsFunc(cfg.Auth.Users, func(u configs.User) bool { return u.Local != "" }) {
		return
	}
	for _, u := range []broker.User{{Name: AgentUser, Role: topics.RoleAgent, Local: "0"}, {Name: DiscovererUser, Role: topics.RoleDiscoverer, Local: DiscovererUser}} {
		if !slices.ContainsFunc(cfg.Auth.Users, func(listed configs.User) bool { return listed.Name == u.Name }) {
			o.Auth.Users = append(o.Auth.Users, u)
		}
	}
}

// isListening reports whether a program listens at a Unix socket.
func isListening(path string) bool {
	conn, err := net.DialTimeout("unix", path, time.Second)
	if err == nil {
		_ = conn.Close()
	}
	return err == nil
}

// journalDir is where a broker keeps its sessions, in a program's data directory.
const journalDir = "broker"

// OpenJournal opens what keeps a broker's sessions and retained messages. It is closed
// after the broker, and tells committed of each of its commits.
func OpenJournal(dataDir string, log zerolog.Logger, committed func(time.Duration, int, error)) (*journal.Journal, error) {
	o := journalOptions(dataDir)
	o.Log, o.Committed = log, committed
	return journal.Open(o)
}

func journalOptions(dataDir string) journal.Options {
	return journal.Options{Dir: filepath.Join(dataDir, journalDir), Name: "the broker's journal", Keeps: "the sessions and retained messages"}
}

// SurveyJournal surveys what a broker keeps in a data directory that no program uses. It reads
// it as the broker does when it starts, and changes nothing.
func SurveyJournal(dataDir string) backup.DataPart {
	part := backup.DataPart{Name: journalDir}
	part.Contents, part.Err = describeJournal(dataDir)
	return part
}

// SnapshotStores takes a broker's journal and a program's other stores at one moment: nothing is written to the journal
// while others takes the stores. What others returns as its second value releases them.
func SnapshotStores(j *journal.Journal, others func() ([]backup.Source, func(), error)) backup.Snapshot {
	return func() (sources []backup.Source, release func(), err error) {
		if err := j.Damage(); err != nil {
			return nil, nil, err
		}
		pieces, unpin, err := j.Snapshot(func() (err error) {
			sources, release, err = others()
			return err
		})
		if err != nil {
			return nil, nil, err
		}
		releaseOthers := release
		return append(BackupSources(pieces), sources...), func() { unpin(); releaseOthers() }, nil
	}
}

// LinkReport is what a broker and a program's stores contribute to the report on its links.
func LinkReport(program, version string, br *broker.Broker, commits *metrics.Commits, rules *acl.ActiveRules, space *datadir.DiskSpace) resource.LinkReport {
	r := br.Report()
	var foreign *resource.ForeignOrigin
	if f := r.RefusedOrigin; f != nil {
		foreign = &resource.ForeignOrigin{Origin: f.Origin, Listener: f.Listener, Time: resource.FormatTime(f.At)}
	}
	return resource.LinkReport{
		Program: program, Version: version, Now: resource.FormatTime(time.Now()), Gone: commits.Gone(), Short: daemon.DescriptorsShort(),
		Failing: commits.Failing(), Damaged: commits.Damaged(), Refused: r.Refused, FullestQueue: r.FullestQueue, FullestOf: r.FullestOf, Missed: r.Missed,
		Rules: rules.Failing(), LowSpace: space.Low(), ForeignOrigin: foreign,
	}
}

// BackupSources are the files of a log's snapshot, for a backup.
func BackupSources(pieces []wal.SegmentSnapshot) (sources []backup.Source) {
	for _, p := range pieces {
		sources = append(sources, p)
	}
	return sources
}

func describeJournal(dataDir string) (has string, err error) {
	o := journalOptions(dataDir)
	o.ReadOnly = true
	if _, err := os.Stat(o.Dir); errors.Is(err, os.ErrNotExist) {
		return "nothing is kept", nil
	}
	j, err := journal.Open(o)
	if err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, j.Close()) }()
	b, err := broker.New(broker.Options{Journal: j, Log: zerolog.Nop()})
	if err != nil {
		return "", err
	}
	r := b.Report()
	return fmt.Sprintf("%d sessions with %d subscriptions and %d messages, %d retained messages of users' own topics",
		r.Sessions, r.Subscriptions, r.Queued, r.Retained), b.Close(context.Background())
}

// SetPagePorts lets the web pages in that a program itself serves over HTTP.
func SetPagePorts(list []broker.Listener, h configs.HTTP) {
	var ports []string
	for _, address := range []string{h.Listen, h.TLS.Listen} {
		if _, port, err := net.SplitHostPort(address); err == nil {
			ports = append(ports, port)
		}
	}
	for i := range list {
		list[i].Pages = ports
	}
}

func mqttListeners(m configs.MQTT) (list []broker.Listener, err error) {
	var secure *tls.Config
	if m.TLS.Cert != "" || m.TLS.Own != nil {
		if secure, err = m.TLS.Config(); err != nil {
			return nil, err
		}
	}
	if m.Listen != "" {
		list = append(list, broker.Listener{Name: "mqtt", Setting: "mqtt.listen", Address: m.Listen})
	}
	if m.TLS.Listen != "" {
		list = append(list, broker.Listener{Name: "mqtts", Setting: "mqtt.tls.listen", Address: m.TLS.Listen, TLS: secure})
	}
	if m.WebSocket.Listen != "" {
		ws := broker.Listener{Name: "websocket", Setting: "mqtt.websocket.listen", Address: m.WebSocket.Listen, WebSocket: true, Origins: m.WebSocket.Origins}
		if m.WebSocket.TLS {
			ws.TLS = secure
			if !m.WebSocket.ClientCertificates {
				ws.TLS = withoutClientCertificates(secure)
			}
		}
		list = append(list, ws)
	}
	return list, nil
}

// withoutClientCertificates is the same for clients that can't be asked for a certificate.
func withoutClientCertificates(c *tls.Config) *tls.Config {
	unasked := c.Clone()
	unasked.ClientAuth, unasked.ClientCAs = tls.NoClientCert, nil
	find := c.GetConfigForClient
	if find == nil {
		return unasked
	}
	var mu sync.Mutex
	var found, made *tls.Config // made is kept as long as found is, so that clients can resume their TLS sessions
	unasked.GetConfigForClient = func(hello *tls.ClientHelloInfo) (*tls.Config, error) {
		c, err := find(hello)
		if c == nil || err != nil {
			return c, err
		}
		mu.Lock()
		defer mu.Unlock()
		if c != found {
			found, made = c, withoutClientCertificates(c)
		}
		return made, nil
	}
	return unasked
}
