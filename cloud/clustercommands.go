// SPDX-License-Identifier: Apache-2.0

package cloud

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"path/filepath"
	"slices"

	"github.com/rs/zerolog"

	"github.com/edgebus/edgebus/broker/daemon"
	"github.com/edgebus/edgebus/broker/daemon/datadir"
	"github.com/edgebus/edgebus/broker/journal"
	"github.com/edgebus/edgebus/broker/sealed"
	"github.com/edgebus/edgebus/cloud/jetstream"
	"github.com/edgebus/edgebus/configs"
)

const clusterHelp = `Makes one of several hubs that have a log in common, on NATS servers: one serves, the others stand by.

init makes the stream that is the log, and cluster.key, which seals it. This hub has to be stopped, and keeps its data. Start it then, and make a
backup of it (cloudhub backup FILE) as soon as it serves: /readyz is 200.
join puts such a backup into an empty data directory, as restore does. Start the hub then, and delete the backup, which has all keys.

The settings of each hub name the servers before: store.engine, store.nats.

Usage:
  cloudhub cluster init [--config FILE]
  cloudhub cluster join BACKUP [--config FILE] [--data-dir DIRECTORY] [--force] [--dry-run]
`

// clusterMain runs `cloudhub cluster init` and `cloudhub cluster join`.
func clusterMain(args []string, stdout, stderr io.Writer) int {
	isHelp := func(arg string) bool { return arg == "--help" || arg == "-h" || arg == "help" }
	if slices.ContainsFunc(args, isHelp) {
		fmt.Fprint(stdout, clusterHelp)
		return 0
	}
	command := ""
	if len(args) > 0 {
		command, args = args[0], args[1:]
	}
	switch command {
	case "init":
		cfg, done, err := configs.Parse[configs.Hub]("cloudhub", daemon.Version(), args, stdout)
		if err == nil && !done {
			err = initCluster(context.Background(), cfg, configs.Logger(stderr, cfg.Log), stdout)
		}
		if err != nil {
			fmt.Fprintln(stderr, "cloudhub cluster init:", err)
			return 1
		}
		return 0
	case "join":
		p := dataProgram()
		p.NewLineages = func(dir string, _ uint32) error { return checkJoining(dir) }
		code, _ := p.Main(append([]string{"restore"}, args...), stdout, stderr)
		return code
	}
	fmt.Fprintln(stderr, "cloudhub cluster: say init, which makes the log of several hubs with this one's data, or join BACKUP, with a backup of one of them; see --help")
	return 2
}

// initCluster makes the log of several hubs. It begins with what this hub has, which the others join with.
func initCluster(ctx context.Context, cfg configs.Hub, log zerolog.Logger, out io.Writer) (err error) {
	if cfg.Store.Engine != "nats" {
		return errors.New("store.engine is files: set it to nats, with store.nats.servers")
	}
	dir, err := datadir.Open(cfg.Data.Dir, "cloudhub")
	if err != nil {
		return err
	}
	// The service is no root, who may be asked for this.
	defer func() { err = errors.Join(err, datadir.CopyOwner(cfg.Data.Dir, cfg.Data.Dir), dir.Close()) }()
	records, err := openLog(cfg.Data.Dir, log, nil, nil)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, records.Close()) }()
	if _, is, err := journal.CopyIn(records).Origin(); is || err != nil {
		return errors.Join(err, fmt.Errorf("%s is of a cluster already", cfg.Data.Dir))
	}
	file := filepath.Join(cfg.Data.Dir, ClusterKeyFile)
	if err := sealed.NewKey().Write(file); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	eo, err := engineOptions(cfg.Store.NATS, log)
	if err != nil {
		return err
	}
	if err := jetstream.CheckServers(ctx, http.DefaultClient, cfg.Store.NATS.Monitor); err != nil {
		return err
	}
	id, err := jetstream.Create(ctx, eo)
	if err != nil {
		return fmt.Errorf("%w. If it is left from an attempt that failed, and no hub uses it: nats stream rm %s", err, eo.Stream)
	}
	if err := records.Sync([]journal.RecordChange{journal.Origin{Log: id}.Change()}); err != nil {
		return err
	}
	fmt.Fprintf(out, "The stream %s is the log of the hubs, sealed with %s. Start this hub; make a backup of it as soon as it serves (cloudhub backup FILE), and on each other host: cloudhub cluster join FILE\n", eo.Stream, file)
	return nil
}

// checkJoining refuses a backup of a hub that is in no cluster: two hubs would go on with it.
func checkJoining(dir string) (err error) {
	if _, err := sealed.LoadKey(filepath.Join(dir, ClusterKeyFile)); err != nil {
		return fmt.Errorf("the backup is of no hub of a cluster (%w): make one of a hub after `cloudhub cluster init`", err)
	}
	o := logOptions(dir)
	o.ReadOnly = true
	records, err := journal.Open(o)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, records.Close()) }()
	if _, is, err := journal.CopyIn(records).Origin(); !is || err != nil {
		return errors.Join(err, errors.New("the backup is of no hub of a cluster: make one of a hub after `cloudhub cluster init`"))
	}
	return nil
}
