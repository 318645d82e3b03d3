// SPDX-License-Identifier: Apache-2.0

package clusterhub

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/rs/zerolog"
	"github.com/spf13/pflag"

	"github.com/edgebus/edgebus/broker/daemon/backup"
	"github.com/edgebus/edgebus/broker/daemon/datadir"
	"github.com/edgebus/edgebus/broker/journal"
	"github.com/edgebus/edgebus/broker/sealed"
	"github.com/edgebus/edgebus/cloud/cli/diagnosis"
	"github.com/edgebus/edgebus/cloud/cli/exitcode"
	"github.com/edgebus/edgebus/cloud/cli/printer"
	"github.com/edgebus/edgebus/cloud/cli/terminal"
	"github.com/edgebus/edgebus/cloud/cluster"
	"github.com/edgebus/edgebus/cloud/clusterca"
	"github.com/edgebus/edgebus/cloud/hubdata"
	"github.com/edgebus/edgebus/cloud/jetstream"
	"github.com/edgebus/edgebus/configs"
)

const clusterHelp = `Makes one of several hubs that have a log in common, on NATS servers: one serves, the others stand by.

These commands are run on a hub's machine. Its settings name the servers before: store.engine, store.nats. docs/cluster.md has all of it in order.

Usage:
`

// clusterCommand is one of the commands of cluster.
type clusterCommand struct {
	name, args string
	about      string
	run        func(c *clusterCall) error
}

// clusterCommands are in the order in which they are needed.
func clusterCommands() []clusterCommand {
	return []clusterCommand{
		{"certificates", "NAME...", certificatesAbout, clusterCertificates},
		{"init", "", `Makes the stream that is the log, and cluster.key, which seals it, for a hub that has never run. Start it then, and make a
backup of it (cloudhub cluster backup FILE) as soon as it serves: /readyz is 200.
`, initHub},
		{"import", "", `Makes the log with the data of a hub that ran on files, and is stopped: objects, sessions, retained messages and nodes, which need not join again. Go on then as
after init. --dry-run says what there is.
`, importHub},
		{"join", "BACKUP|--from HUB", joinAbout, joinHub},
		{"status", "", `Prints all hubs that are known, with what they lack, the servers of the log, what is wrong, and what to do. The hub of this machine is asked, and has to run;
it may stand by. edgebus cluster status asks one over the network. The exit code is 0 if nothing is wrong, and 1 if something is.
`, clusterStatus},
		{"drain", "", `Has the hub of this machine stand by, before its machine is stopped or changed. If it serves it ends its connections in order and hands the log over to one
that has all there is; then it says which one serves. It does not take over for the time of --for, an hour, whatever becomes of the others.
It is refused if no other hub could take over. --dry-run says what would be done.
`, drainHub},
		{"undrain", "", `Lets the hub of this machine take over again, before the time of drain is over.
`, undrainHub},
		{"backup", "FILE", `Makes a backup of all there is, at a hub that stands by, which costs the one that serves nothing. It is refused by a hub that is behind, or that serves while
another one stands by. FILE is one as cloudhub backup makes it, with all keys: keep it as safe. --force replaces FILE, and makes the backup at
this hub in any case.
`, backUpHub},
		{"restore", "BACKUP", `Makes the log anew with a backup, in the data directory of this machine. All hubs have to be stopped. What was acknowledged after the backup is
lost, unless nodes and clients send it again; versions and revisions go on above all that were ever given, and who was revoked after the backup stays
so, by the log that is replaced and by what is in the data directory. Start this hub then; the others join again, with a backup of it.
--force moves aside what is in the directory. --unknown-revocations restores although the log that is replaced can't be read, and nobody can say what was
revoked since the backup. --dry-run checks the backup.
`, restoreHub},
		{"export", "", `Makes this hub one on files, with all that the hubs have, which goes on alone: objects, sessions, retained messages and nodes, which need not join again.
All hubs have to be stopped. The others refuse to go on afterwards. --dry-run says what there is.
`, exportHub},
	}
}

// clusterCall is a command that was given.
type clusterCall struct {
	cfg                configs.Hub
	stdout, stderr     io.Writer
	flags              *pflag.FlagSet
	output             string
	last               time.Duration
	force, dryRun      bool
	unknownRevocations bool     // are put up with
	from               []string // hubs to join
	key                string   // file of the key to join them by
}

// Main runs the commands of cluster.
func Main(args []string, stdout, stderr io.Writer) int {
	isHelp := func(arg string) bool { return arg == "--help" || arg == "-h" || arg == "help" }
	all := clusterCommands()
	if len(args) > 0 && isHelp(args[0]) {
		fmt.Fprint(stdout, clusterHelp)
		for _, c := range all {
			first, _, _ := strings.Cut(strings.ReplaceAll(c.about, "\n", " "), ". ")
			fmt.Fprintf(stdout, "  %s\n      %s.\n", c.usage(), first)
		}
		return 0
	}
	i := -1
	if len(args) > 0 {
		i = slices.IndexFunc(all, func(c clusterCommand) bool { return c.name == args[0] })
	}
	if i < 0 {
		var names []string
		for _, c := range all {
			names = append(names, c.name)
		}
		fmt.Fprintf(stderr, "cloudhub cluster: say one of %s; see --help\n", strings.Join(names, ", "))
		return 2
	}
	c, args := all[i], args[1:]
	if slices.ContainsFunc(args, isHelp) {
		fmt.Fprintf(stdout, "%s\nUsage:\n  %s\n", c.about, c.usage())
		fmt.Fprintf(stdout, "\nFlags:\n%s  Settings of the hub can be given as flags, too: cloudhub --help.\n", c.newCall(stdout, stderr).flags.FlagUsages())
		return 0
	}
	return c.main(args, stdout, stderr)
}

func (c clusterCommand) usage() string {
	return strings.TrimSpace("cloudhub cluster "+c.name+" "+c.args) + " [--config FILE]"
}

func (c clusterCommand) newCall(stdout, stderr io.Writer) *clusterCall {
	call := &clusterCall{stdout: stdout, stderr: stderr, flags: pflag.NewFlagSet(c.name, pflag.ContinueOnError)}
	call.flags.SetOutput(stderr)
	switch c.name {
	case "status":
		call.flags.StringVarP(&call.output, "output", "o", "text", "text, json or yaml")
	case "drain":
		call.flags.DurationVar(&call.last, "for", drainLast, "for how long it doesn't take over")
		call.flags.BoolVar(&call.dryRun, "dry-run", false, "say what would be done")
	case "import", "export", "restore":
		call.flags.BoolVar(&call.dryRun, "dry-run", false, "say what would be done")
		if c.name == "restore" {
			call.flags.BoolVar(&call.force, "force", false, "move aside what is in the data directory")
			call.flags.BoolVar(&call.unknownRevocations, "unknown-revocations", false, "restore although nobody can say what was revoked after the backup")
		}
	case "join":
		call.flags.StringSliceVar(&call.from, "from", nil, "hubs to join, such as hub-1,hub-2:8447: the backup is taken from one of them, as soon as one gives it")
		call.flags.StringVar(&call.key, "key", "", "with --from: a copy of the hubs' cluster.key. Empty: the one in the data directory")
		call.flags.BoolVar(&call.force, "force", false, "move aside what is in the data directory")
		call.flags.BoolVar(&call.dryRun, "dry-run", false, "check the backup, and say what would be done")
	case "backup":
		call.flags.BoolVar(&call.force, "force", false, "replace FILE, and make the backup at this hub in any case")
	case "certificates":
		call.flags.StringVar(&call.output, "out", "nats", "directory in which the servers' directories are made")
		call.flags.String("at", "/etc/nats", "directory in which a server has its files")
		call.flags.Duration("valid", clusterca.ServerValidity, "how long the certificates are valid")
	}
	return call
}

func (c clusterCommand) main(args []string, stdout, stderr io.Writer) int {
	call := c.newCall(stdout, stderr)
	err := configs.AddFlags[configs.Hub]("cloudhub", call.flags)
	if err == nil {
		err = call.flags.Parse(args)
	}
	named, _, _ := strings.Cut(c.args, "|")
	given, want := call.flags.NArg(), len(strings.Fields(named))
	switch {
	case err != nil:
	case call.flags.Changed("from"):
		if given > 0 {
			err = errors.New("with --from the backup is taken from a hub, and no file is named")
		}
	case given != want && (given == 0 || !strings.HasSuffix(c.args, "...")):
		err = fmt.Errorf("it takes %s besides flags; see --help", cmp.Or(strings.Replace(c.args, "|", " or ", 1), "nothing"))
	}
	if err == nil {
		file, _ := call.flags.GetString("config")
		call.cfg, err = configs.Load[configs.Hub]("cloudhub", file, call.flags)
	}
	if err != nil {
		fmt.Fprintf(stderr, "cloudhub cluster %s: %v\n", c.name, err)
		return 2
	}
	err = c.run(call)
	var code exitcode.Code
	switch {
	case errors.As(err, &code):
		return int(code) // it has been said why
	case err != nil:
		fmt.Fprintf(stderr, "cloudhub cluster %s: %v\n", c.name, err)
		return 1
	}
	return 0
}

// exitCode is how a command ended that has said why.
func exitCode(code int) error {
	if code == 0 {
		return nil
	}
	return exitcode.Code(code)
}

// clusterStatus prints how the cluster is.
func clusterStatus(c *clusterCall) error {
	d, err := c.ask(context.Background())
	if err != nil {
		return err
	}
	switch c.output {
	case "json", "yaml":
		err = printer.Document(c.stdout, c.output, d)
	case "text":
		_, err = io.WriteString(c.stdout, d.Text(terminal.ColoursOf(c.stdout)))
	default:
		err = fmt.Errorf("--output %.20q is none of text, json, yaml", c.output)
	}
	return errors.Join(err, d.ExitError())
}

// ask asks the hub of this machine how the cluster is.
func (c *clusterCall) ask(ctx context.Context) (d diagnosis.ClusterDiagnosis, err error) {
	ctx, stop := context.WithTimeout(ctx, askTime)
	defer stop()
	err = c.call(ctx, http.MethodGet, clusterPath, &d)
	return d, err
}

const askTime = 10 * time.Second

// call asks the hub of this machine for something.
func (c *clusterCall) call(ctx context.Context, method, path string, into any) error {
	response, err := backup.AskRunning(ctx, c.cfg.Data.Dir, method, path)
	if err != nil {
		return fmt.Errorf("the hub of this machine doesn't answer: is it running, and its data in %s? (%w)", c.cfg.Data.Dir, err)
	}
	defer response.Body.Close()
	text, err := io.ReadAll(io.LimitReader(response.Body, 4<<20))
	switch {
	case err != nil:
		return err
	case response.StatusCode == http.StatusNotFound:
		return errors.New("the hub of this machine is of no cluster: store.engine is files")
	case response.StatusCode != http.StatusOK:
		return errors.New(strings.TrimSpace(string(text)))
	}
	return json.Unmarshal(text, into)
}

// initHub is the command init.
func initHub(c *clusterCall) error {
	has, err := c.hasData()
	if err == nil && has {
		err = fmt.Errorf("%s has data: `cloudhub cluster import` makes the log with it", c.cfg.Data.Dir)
	}
	if err != nil {
		return err
	}
	return c.makeLog(context.Background(), configs.Logger(c.stderr, c.cfg.Log), false)
}

// importHub is the command import: a hub on files becomes the first of several.
func importHub(c *clusterCall) error {
	has, err := c.hasData()
	if err == nil && !has {
		err = fmt.Errorf("%s has no data: `cloudhub cluster init` makes the log without", c.cfg.Data.Dir)
	}
	if err == nil {
		err = c.describeData()
	}
	if err != nil {
		return err
	}
	if c.dryRun {
		fmt.Fprintf(c.stdout, "The stream %s would be made, and the log begin with this data. Nothing was changed.\n", c.cfg.Store.NATS.Stream)
		return nil
	}
	return c.makeLog(context.Background(), configs.Logger(c.stderr, c.cfg.Log), false)
}

// hasData reports whether a hub has run on the data directory.
func (c *clusterCall) hasData() (bool, error) {
	if c.cfg.Store.Engine != "nats" {
		return false, errors.New("store.engine is files: set it to nats, with store.nats.servers")
	}
	is, has, err := hubdata.ReadOrigin(c.cfg.Data.Dir)
	if is && err == nil {
		err = fmt.Errorf("%s is of a cluster already: start the hub; `cloudhub cluster restore` makes the log anew with a backup", c.cfg.Data.Dir)
	}
	return has, err
}

// makeLog makes the log of several hubs. It begins with what this hub has, which the others join with. anew has it take the place of one that there is.
func (c *clusterCall) makeLog(ctx context.Context, log zerolog.Logger, anew bool) (err error) {
	cfg := c.cfg
	dir, err := datadir.Open(cfg.Data.Dir, "cloudhub")
	if err != nil {
		return err
	}
	// The service is no root, who may be asked for this.
	defer func() { err = errors.Join(err, datadir.CopyOwner(cfg.Data.Dir, cfg.Data.Dir), dir.Close()) }()
	records, err := hubdata.OpenLog(cfg.Data.Dir, log, nil, nil)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, records.Close()) }()
	if _, is, err := journal.CopyIn(records).Origin(); is || err != nil {
		return errors.Join(err, fmt.Errorf("%s is of a cluster already", cfg.Data.Dir))
	}
	if records.Stats().Records == 0 { // else it stays of the version that it is of
		if err := cluster.RaiseRecords(records); err != nil {
			return err
		}
	}
	key, err := clusterKey(cfg.Data.Dir)
	if err != nil {
		return err
	}
	eo, err := engineOptions(cfg.Store.NATS, key, log)
	if err != nil {
		return err
	}
	if err := inspectServers(ctx, cfg.Store.NATS, eo, log); err != nil {
		return err
	}
	if anew {
		if err := jetstream.DeleteStream(ctx, eo); err != nil {
			return fmt.Errorf("the stream %[2]s can't be deleted (%[1]w): do the servers answer, and let the hubs' user publish to $JS.API.STREAM.DELETE.%[2]s? "+
				"Then do it again with --force", err, eo.Stream)
		}
	}
	id, err := jetstream.Create(ctx, eo)
	if err != nil {
		return err
	}
	if err := records.Sync([]journal.RecordChange{journal.Origin{Log: id}.Change()}); err != nil {
		return err
	}
	fmt.Fprintf(c.stdout, "The stream %s is the log of the hubs, sealed with %s. Start this hub; make a backup of it as soon as it serves (cloudhub backup FILE), and on each other host: cloudhub cluster join FILE\n", eo.Stream, filepath.Join(cfg.Data.Dir, hubdata.ClusterKeyFile))
	return nil
}

// checkJoining refuses a backup of a hub that is in no cluster: two hubs would go on with it.
func checkJoining(dir string) error {
	if _, err := sealed.LoadKey(filepath.Join(dir, hubdata.ClusterKeyFile)); err != nil {
		return fmt.Errorf("the backup is of no hub of a cluster (%w): make one of a hub after `cloudhub cluster init`", err)
	}
	is, _, err := hubdata.ReadOrigin(dir)
	if err == nil && !is {
		err = errors.New("the backup is of no hub of a cluster: make one of a hub after `cloudhub cluster init`")
	}
	return err
}
