// SPDX-License-Identifier: Apache-2.0

// Package mqttserver is what hub and core do with their broker as processes: the rules for users' own topics, the journal that it keeps its
// sessions in and its part of backups, the audit log beside it, and the report on it.
//
// It never runs the broker, and knows no settings.
package mqttserver

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
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
	"github.com/edgebus/edgebus/topics/acl"
	"github.com/edgebus/edgebus/topics/resource"
)

// OpenRules opens the rules for users' own topics, of the users' lists and a file ("": there is none), and has the broker's options use them.
func OpenRules(o *broker.Options, file string, log zerolog.Logger) (*acl.ActiveRules, error) {
	rules := acl.Options{File: file, Reread: func(err error) {
		if err != nil {
			log.Error().Err(err).Msg("the file of rules for users' own topics is not in force: the rules that were read before stay")
			return
		}
		log.Info().Str("file", file).Msg("the rules for users' own topics have changed")
	}}
	for _, u := range o.Auth.Users {
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
		Program: program, Version: version, Now: resource.FormatTime(time.Now()), MissingData: commits.Gone(), DescriptorShortage: daemon.DescriptorsShort(),
		FailingStores: commits.Failing(), DamagedStores: commits.Damaged(), Refused: r.Refused, FullestQueue: r.FullestQueue, FullestQueueClient: r.FullestOf, Missed: r.Missed,
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
	return DescribeSessions(j)
}

// DescribeSessions reads what a broker keeps as it does when it starts, and says what there is.
func DescribeSessions(j broker.Journal) (has string, err error) {
	b, err := broker.New(broker.Options{Journal: j, Log: zerolog.Nop()})
	if err != nil {
		return "", err
	}
	r := b.Report()
	return fmt.Sprintf("%d sessions with %d subscriptions and %d messages, %d retained messages of users' own topics",
		r.Sessions, r.Subscriptions, r.Queued, r.Retained), b.Close(context.Background())
}
