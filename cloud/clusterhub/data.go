// SPDX-License-Identifier: Apache-2.0

package clusterhub

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/rs/zerolog"

	"github.com/edgebus/edgebus/broker/daemon/datadir"
	"github.com/edgebus/edgebus/broker/journal"
	"github.com/edgebus/edgebus/broker/ordered"
	"github.com/edgebus/edgebus/broker/sealed"
	"github.com/edgebus/edgebus/cloud/cluster"
	"github.com/edgebus/edgebus/cloud/enroll"
	"github.com/edgebus/edgebus/cloud/hubdata"
	"github.com/edgebus/edgebus/cloud/jetstream"
	"github.com/edgebus/edgebus/cloud/store/disk"
	"github.com/edgebus/edgebus/configs"
)

// idleCluster is the log of hubs that are all stopped.
type idleCluster struct {
	cfg    configs.Hub
	log    zerolog.Logger
	engine *jetstream.Log
	heard  cluster.Hubs
	key    sealed.Key
}

// openIdle opens the log of hubs that are stopped, by the key in a data directory. It fails if one of them runs.
func openIdle(ctx context.Context, cfg configs.Hub, keyDir string, log zerolog.Logger) (_ *idleCluster, err error) {
	if cfg.Store.Engine != "nats" {
		return nil, errors.New("store.engine is files: set it to nats, with store.nats.servers")
	}
	c := &idleCluster{cfg: cfg, log: log}
	if c.key, err = sealed.LoadKey(filepath.Join(keyDir, hubdata.ClusterKeyFile)); err != nil {
		return nil, err
	}
	o, err := engineOptions(cfg.Store.NATS, c.key, log)
	if err != nil {
		return nil, err
	}
	o.Told = func(text []byte) { c.heard.Hear(text, time.Now()) }
	opening, stop := context.WithTimeout(ctx, openIdleTime)
	defer stop()
	if c.engine, err = jetstream.Listen(opening, o); err != nil {
		return nil, err
	}
	switch err = c.engine.Open(opening); {
	case err == nil:
		err = c.refuseWritten(ctx)
	case errors.Is(err, jetstream.ErrNoStream):
		err = cmp.Or(c.refuseRunning(ctx), err) // they go on for some seconds
	}
	if err != nil {
		return nil, errors.Join(err, c.engine.Close())
	}
	return c, nil
}

const openIdleTime = 15 * time.Second

// runningError is why nothing is done with the log while a hub may use it.
type runningError string

func (e runningError) Error() string { return string(e) }

// refuseWritten fails with a runningError if a hub tells of itself, or writes.
func (c *idleCluster) refuseWritten(ctx context.Context) error {
	_, before, err := c.engine.Bounds(ctx)
	if err == nil {
		err = c.refuseRunning(ctx)
	}
	if err != nil {
		return err
	}
	_, after, err := c.engine.Bounds(ctx)
	if err == nil && after != before {
		err = runningError("somebody writes into the log: stop all hubs first; nothing was changed")
	}
	return err
}

// refuseRunning fails with a runningError if a hub tells of itself. It doesn't need the log.
func (c *idleCluster) refuseRunning(ctx context.Context) error {
	c.engine.Tell([]byte(`{"name":"cloudhub cluster","asks":true}`))
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(max(c.cfg.Store.NATS.Silence, 2*tellEvery)):
	}
	var names []string
	for _, h := range c.heard.List(time.Now()) {
		names = append(names, h.Name)
	}
	if names != nil {
		return runningError(fmt.Sprintf("hubs run: %s. Stop all of them first; nothing was changed", strings.Join(names, ", ")))
	}
	return nil
}

// catchUp brings a copy of the log in a data directory up to the log's end.
func (c *idleCluster) catchUp(ctx context.Context, logDir string) (at ordered.Position, err error) {
	o := hubdata.LogOptions("")
	o.Dir, o.Log = logDir, c.log
	m := cluster.New(cluster.Options{Log: c.engine, Key: c.key, Name: "cloudhub cluster", Silence: c.cfg.Store.NATS.Silence, Logger: zerolog.Nop()})
	defer m.Close()
	o.Shared = m.Commit
	records, err := journal.Open(o)
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, records.Close()) }()
	err = m.CatchUp(ctx, records)
	return m.At(), err
}

// exportHub is the command export: a cluster becomes a hub on files, with the data directory of this one.
func exportHub(c *clusterCall) (err error) {
	ctx := context.Background()
	dir, err := datadir.Open(c.cfg.Data.Dir, "cloudhub")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, datadir.CopyOwner(c.cfg.Data.Dir, c.cfg.Data.Dir), dir.Close()) }()
	log := configs.Logger(c.stderr, c.cfg.Log)
	idle, err := openIdle(ctx, c.cfg, c.cfg.Data.Dir, log)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, idle.engine.Close()) }()
	logDir := filepath.Join(c.cfg.Data.Dir, hubdata.LogDir)
	at := ordered.Position(0)
	detached, err := isDetached(logDir)
	if err == nil && !detached { // an attempt before was not interrupted
		at, err = idle.catchUp(ctx, logDir)
	}
	if err == nil {
		err = c.describeData()
	}
	if err != nil {
		return err
	}
	fmt.Fprintf(c.stdout, "This directory has all that the hubs have, up to position %d. With it this hub goes on alone, on files; the other hubs refuse to go on, and nothing is written into the stream %s any more.\n", at, c.cfg.Store.NATS.Stream)
	if c.dryRun {
		fmt.Fprintln(c.stdout, "Nothing was changed.")
		return nil
	}
	if err := detachCopy(logDir, log); err != nil {
		return err
	}
	if err := idle.engine.Renew(ctx); err != nil { // others are to find another log than theirs
		return fmt.Errorf("%w. The other hubs could still go on: do it again before any hub is started", err)
	}
	for _, name := range []string{hubdata.ClusterKeyFile, drainedFile} {
		if err := os.Remove(filepath.Join(c.cfg.Data.Dir, name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	fmt.Fprintf(c.stdout, "Set store.engine: files, and start this hub. The stream is of no use any more: nats stream rm %s\n", c.cfg.Store.NATS.Stream)
	return nil
}

func isDetached(logDir string) (is bool, err error) {
	o := hubdata.LogOptions("")
	o.Dir, o.ReadOnly = logDir, true
	records, err := journal.Open(o)
	if err != nil {
		return false, err
	}
	_, member, err := journal.CopyIn(records).Origin()
	return !member, errors.Join(err, records.Close())
}

func detachCopy(logDir string, log zerolog.Logger) error {
	o := hubdata.LogOptions("")
	o.Dir, o.Log = logDir, log
	records, err := journal.Open(o)
	if err != nil {
		return err
	}
	return errors.Join(journal.CopyIn(records).Detach(), records.Close())
}

// describeData prints what the data directory has, and fails if a part is damaged.
func (c *clusterCall) describeData() error {
	fmt.Fprintln(c.stdout, c.cfg.Data.Dir)
	var damage error
	for _, part := range hubdata.Program().Survey(c.cfg.Data.Dir) {
		if part.Err != nil {
			damage = errors.Join(damage, fmt.Errorf("%s: %w", part.Name, part.Err))
			continue
		}
		fmt.Fprintf(c.stdout, "  %-11s %s\n", part.Name, part.Contents)
	}
	if damage != nil {
		return fmt.Errorf("the data is damaged: %w", damage)
	}
	return nil
}

// restoreHub is the command restore: the log is made anew with a backup.
func restoreHub(c *clusterCall) error {
	ctx := context.Background()
	log := configs.Logger(c.stderr, c.cfg.Log)
	if c.cfg.Store.Engine != "nats" {
		return errors.New("store.engine is files: set it to nats, with store.nats.servers; cloudhub restore restores a hub on files")
	}
	p := hubdata.Program()
	p.Command, p.AfterRestore = "cloudhub cluster restore", "The log is made anew with it now."
	p.NewLineages = func(dir string, stamp uint32) error { return c.restoreData(ctx, dir, stamp, log) }
	args := []string{"restore", "--data-dir", c.cfg.Data.Dir, c.flags.Arg(0)}
	for flag, is := range map[string]bool{"--force": c.force, "--dry-run": c.dryRun} {
		if is {
			args = append(args, flag)
		}
	}
	if code, _ := p.Main(args, c.stdout, c.stderr); code != 0 || c.dryRun {
		if code == 0 {
			fmt.Fprintf(c.stdout, "The stream %s would be made anew, and the other hubs would have to join again.\n", c.cfg.Store.NATS.Stream)
		}
		return exitCode(code)
	}
	if err := os.Remove(filepath.Join(c.cfg.Data.Dir, drainedFile)); err != nil && !errors.Is(err, fs.ErrNotExist) { // it is the one that serves
		return err
	}
	return c.makeLog(ctx, log, true)
}

// restoreData makes restored data, in dir, begin a log. What was revoked after the backup stays revoked: it is in the log that is replaced, or in the data
// directory that is.
func (c *clusterCall) restoreData(ctx context.Context, dir string, stamp uint32, log zerolog.Logger) error {
	if err := checkJoining(dir); err != nil {
		return err
	}
	if err := c.inspect(ctx, dir, log); err != nil { // while the data is what it was
		return err
	}
	latest, err := c.latestLog(ctx, dir, log)
	if latest != "" {
		defer os.RemoveAll(latest)
	}
	if errors.As(err, new(runningError)) { // they would go on with the former log
		return err
	}
	if err != nil && !c.unknownRevocations {
		return fmt.Errorf("what was revoked after the backup isn't known: %w. With --unknown-revocations it is restored all the same, with what this data directory has; revoke again, then, what was revoked since", err)
	}
	if err != nil {
		log.Warn().Err(err).Msg("what was revoked after the backup, and is not in this data directory, is not known: revoke it again")
	}
	if err := hubdata.Fork(dir, stamp, nil); err != nil {
		return err
	}
	if latest == "" {
		return nil
	}
	carryErr := carryRevocations(ctx, latest, dir)
	if carryErr != nil && c.unknownRevocations {
		log.Warn().Err(carryErr).Msg("what this hub had of the log can't be read either")
		return nil
	}
	return carryErr
}

// inspect fails if the log can't be made on the servers as they are, by the key in a data directory.
func (c *clusterCall) inspect(ctx context.Context, keyDir string, log zerolog.Logger) error {
	key, err := sealed.LoadKey(filepath.Join(keyDir, hubdata.ClusterKeyFile))
	if err != nil {
		return err
	}
	o, err := engineOptions(c.cfg.Store.NATS, key, log)
	if err != nil {
		return err
	}
	return inspectServers(ctx, c.cfg.Store.NATS, o, log)
}

// carryRevocations has restored data, in dir, know what was revoked by a later copy of its log.
func carryRevocations(ctx context.Context, latest, dir string) error {
	o := hubdata.LogOptions("")
	o.Dir, o.ReadOnly = latest, true
	records, err := journal.Open(o)
	if err != nil {
		return err
	}
	st, err := disk.Open(disk.Options{Journal: records, ReadOnly: true})
	if err != nil {
		return errors.Join(err, records.Close())
	}
	same := false
	err = hubdata.WithStore(dir, func(own *disk.Store, _ *journal.Journal) error {
		same = own.Identity() == st.Identity()
		return nil
	})
	if err == nil && same { // else the directory was another hub's
		err = enroll.CarryRevocations(ctx, st, dir)
	}
	return errors.Join(err, st.Close(), records.Close())
}

// latestLog is a copy of the log that is replaced, with all that is in it: of this hub's data before, or else of the backup. If the log can't be read, or is gone, it
// is what this hub had of it; it is empty if there is neither.
func (c *clusterCall) latestLog(ctx context.Context, dir string, log zerolog.Logger) (latest string, err error) {
	before := filepath.Dir(dir)
	idle, err := openIdle(ctx, c.cfg, dir, log)
	if err == nil {
		defer idle.engine.Close()
		for _, from := range []string{before, dir} {
			if latest, err = copyLog(from, dir); err == nil {
				_, err = idle.catchUp(ctx, latest)
			}
			if err == nil {
				return latest, nil
			}
			_ = os.RemoveAll(latest)
		}
	}
	if errors.Is(err, jetstream.ErrNoStream) {
		err = nil
	}
	latest, copyErr := copyLog(before, dir)
	if errors.Is(copyErr, fs.ErrNotExist) {
		return "", err
	}
	return latest, errors.Join(err, copyErr)
}

// copyLog copies the log of a data directory into another directory.
func copyLog(from, into string) (copied string, err error) {
	if copied, err = os.MkdirTemp(into, "log-*.new"); err != nil {
		return "", err
	}
	if err = os.CopyFS(copied, os.DirFS(filepath.Join(from, hubdata.LogDir))); err != nil {
		return "", errors.Join(err, os.RemoveAll(copied))
	}
	return copied, nil
}
