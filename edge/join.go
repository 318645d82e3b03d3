// SPDX-License-Identifier: Apache-2.0

package edge

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"github.com/rs/zerolog"
	"github.com/spf13/pflag"
	"golang.org/x/term"

	"github.com/edgebus/edgebus/broker/daemon"
	"github.com/edgebus/edgebus/broker/daemon/datadir"
	"github.com/edgebus/edgebus/configs"
	"github.com/edgebus/edgebus/edge/enroll"
	"github.com/edgebus/edgebus/edge/store"
	"github.com/edgebus/edgebus/topics/resource"
)

const joinHelp = `Join a hub: make this node's key, get its certificate, and write both into the settings.

Usage:
  edgecore join HUB[:8883] --token TOKEN
  edgecore join HUB[:8883] [--ca-hash sha256:…]

The first form is what "edgebus invite" prints. Of several hubs it has the addresses, with commas between them: the first that can be reached is asked, and
the node keeps all. Without a token the hub keeps a request, which an operator approves
(edgebus approve) or denies; this command waits for the decision, and resumes when it is started again.
The key is made here and never leaves. Whatever the settings had besides link.server, link.tls and node.name stays.

Flags:
`

// joinCommand is the command line of edgecore join.
type joinCommand struct {
	hubs                              []string // addresses
	token, name, pin, config, dataDir string
	noStart                           bool
	out, err                          io.Writer
}

// joinMain is edgecore join, and its exit code.
func joinMain(args []string, stdout, stderr io.Writer) int {
	l := joinCommand{out: stdout, err: stderr}
	flags := pflag.NewFlagSet("join", pflag.ContinueOnError)
	flags.SetOutput(stdout)
	flags.Usage = func() { fmt.Fprint(stdout, joinHelp, flags.FlagUsages()) }
	flags.StringVar(&l.token, "token", "", "the token of an invitation; - reads it from standard input")
	flags.StringVar(&l.name, "name", "", "the node's name (default: the token's, or else node.name, or else the host's name)")
	flags.StringVar(&l.pin, "ca-hash", "", "the fingerprint of the hub's authority (edgebus authority), for a node without a token")
	flags.StringVar(&l.config, "config", "", "file of settings to read and write (default "+configs.File("edgecore", "")+")")
	flags.StringVar(&l.dataDir, "data-dir", "", "the data directory (default: where the settings say)")
	flags.BoolVar(&l.noStart, "no-start", false, "don't start the service")
	switch err := flags.Parse(args); {
	case errors.Is(err, pflag.ErrHelp):
		return 0
	case err == nil && flags.NArg() != 1:
		err = errors.New("it takes the hub's address: edgecore join HUB[:8883] --token TOKEN; see --help")
		fallthrough
	case err != nil:
		fmt.Fprintln(stderr, "edgecore join:", err)
		return 2
	}
	if l.hubs = strings.Split(flags.Arg(0), ","); slices.Contains(l.hubs, "") {
		fmt.Fprintf(stderr, "edgecore join: %q has an empty address: it takes HUB[:8883], or several with commas between them\n", flags.Arg(0))
		return 2
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := l.run(ctx); err != nil {
		if errors.Is(err, context.Canceled) {
			err = errors.New("interrupted: run the same command again to go on")
		}
		fmt.Fprintln(stderr, "edgecore join:", err)
		return 1
	}
	return 0
}

func (l *joinCommand) run(ctx context.Context) error {
	file := configs.File("edgecore", l.config)
	given := ""
	if _, err := os.Stat(file); err == nil {
		given = file
	} else if !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	flags := pflag.NewFlagSet("edgecore", pflag.ContinueOnError)
	if err := configs.AddFlags[configs.Core]("edgecore", flags); err != nil {
		return err
	}
	if l.dataDir != "" {
		if err := flags.Set("data-dir", l.dataDir); err != nil {
			return err
		}
	}
	cfg, err := configs.Load[configs.Core]("edgecore", given, flags)
	if err != nil {
		return err
	}
	dir, err := filepath.Abs(cfg.Data.Dir)
	if err != nil {
		return err
	}
	if err := l.readToken(); err != nil {
		return err
	}
	if err := checkWritable(file); err != nil {
		return err
	}
	o := enroll.JoinOptions{
		Hub: l.hubs[0], DataDir: dir, Node: l.name, Default: cfg.Node.Name, Token: l.token, Pin: l.pin, Confirm: l.confirm,
		SystemInfo: nodeReport(daemon.Version()).SystemInfo, Log: zerolog.Nop(),
		Say: func(format string, args ...any) { fmt.Fprintf(l.out, format+"\n", args...) },
	}
	o.Labels = enroll.Labels(cfg.Node.Labels, cfg.Node.LabelFrom, o.SystemInfo)
	o.LabelFrom = enroll.FollowedLabels(cfg.Node.Labels, cfg.Node.LabelFrom)
	if err := checkNodeName(dir, o); err != nil {
		return err
	}
	j, err := enroll.Join(ctx, o)
	for _, o.Hub = range l.hubs[1:] {
		if op := (&net.OpError{}); !errors.As(err, &op) || op.Op != "dial" {
			break
		}
		j, err = enroll.Join(ctx, o)
	}
	if err != nil {
		return err
	}
	return errors.Join(l.settle(file, dir, cfg.Link, j), j.Close())
}

func (l *joinCommand) readToken() error {
	if l.token != "-" {
		return nil
	}
	text, err := bufio.NewReader(os.Stdin).ReadString('\n')
	if err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	l.token = strings.TrimSpace(text)
	return nil
}

// checkWritable says early what would only be found when the token is used.
func checkWritable(file string) error {
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil { //nolint:gosec // G301: a directory of settings is readable by the services; the files in it are not
		return notWritableError(err)
	}
	f, err := os.CreateTemp(filepath.Dir(file), ".join-*.new")
	if err != nil {
		return notWritableError(err)
	}
	return errors.Join(f.Close(), os.Remove(f.Name()))
}

func notWritableError(err error) error {
	return fmt.Errorf("the settings can't be written: %w. Run it as root, or keep settings and data elsewhere: --config core.yaml --data-dir core", err)
}

// checkNodeName says whether what is in the data directory may be the node's of that name: a core that has had a hub keeps its
// name.
func checkNodeName(dir string, o enroll.JoinOptions) error {
	name, err := o.Name()
	if err != nil {
		return err
	}
	if _, err := os.Stat(filepath.Join(dir, store.DirName)); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	lock, err := datadir.Lock(dir, "edgecore join")
	if err != nil { // a core that runs
		if name == o.Default {
			return nil
		}
		return fmt.Errorf("node.name is %s, and is to be %s: stop edgecore first (%w)", o.Default, name, err)
	}
	st, err := store.Open(store.Options{Dir: dir, Node: name, Rand: rand.Uint64, ReadOnly: true})
	if err == nil {
		err = st.Close()
	}
	return errors.Join(err, lock.Close())
}

// confirm asks a person whether the fingerprint is the right one.
func (l *joinCommand) confirm(fingerprint string) error {
	if !term.IsTerminal(int(os.Stdin.Fd())) {
		return fmt.Errorf("the hub's authority is %s: compare it with what edgebus authority says, and give it with --ca-hash, or use a token", fingerprint)
	}
	fmt.Fprintf(l.out, "the hub's authority is %s\nIs that what edgebus authority says on the hub? [yes/no] ", fingerprint)
	answer, err := bufio.NewReader(os.Stdin).ReadString('\n')
	if err != nil {
		return err
	}
	if strings.TrimSpace(strings.ToLower(answer)) != "yes" {
		return errors.New("not confirmed: nothing was sent to the hub")
	}
	return nil
}

// settle makes the identity the one that the settings name, and starts the service.
func (l *joinCommand) settle(file, dir string, was configs.Link, j enroll.JoinResult) error {
	if err := chownForService(file, dir); err != nil {
		return err
	}
	var servers []string
	for _, hub := range l.hubs {
		servers = append(servers, "mqtts://"+enroll.HubAddress(hub))
	}
	settings := []configs.Setting{
		{Key: "node.name", Value: j.Node},
		{Key: "link.server", Value: strings.Join(servers, ",")},
		{Key: "link.tls.ca", Value: j.Roots()},
		{Key: "link.tls.cert", Value: j.Pair()},
		{Key: "link.tls.key", Value: j.Pair()},
	}
	for key, value := range map[string]string{"link.user": strings.TrimPrefix(was.User, "node/"), "link.password": was.Password, "link.passwordFile": was.PasswordFile} {
		if value != "" && value != j.Node { // the certificate is who the node is from now on
			settings = append(settings, configs.Setting{Key: key})
		}
	}
	if l.dataDir != "" {
		settings = append(settings, configs.Setting{Key: "data.dir", Value: dir})
	}
	if err := configs.EditFile(file, settings...); err != nil {
		return err
	}
	if err := chownForService(file, dir); err != nil {
		return err
	}
	if err := enroll.ClearDecommission(dir); err != nil {
		return err
	}
	what := "has joined"
	if j.Already {
		what = "had joined already; the settings are as they should be:"
	}
	fmt.Fprintf(l.out, "node %s %s %s (certificate until %s; it is renewed by itself)\nsettings: %s\n", j.Node, what, strings.Join(l.hubs, ", "), resource.FormatTime(j.Expires), file)
	return l.start(file)
}

// start starts the service where systemd has one, or says how to start the core.
func (l *joinCommand) start(file string) error {
	const unit = "edgecore.service"
	system := configs.SystemFile("edgecore")
	_, err := os.Stat("/run/systemd/system")
	installed := err == nil && exec.Command("systemctl", "cat", unit).Run() == nil
	if l.noStart || !installed || file != system || os.Geteuid() != 0 {
		command := "edgecore"
		if file != system {
			command += " --config " + file
		}
		if installed && file == system {
			command = "systemctl enable --now edgecore; systemctl restart edgecore"
		}
		fmt.Fprintf(l.out, "start it: %s\n", command)
		return nil
	}
	for _, args := range [][]string{{"enable", unit}, {"restart", unit}} {
		if text, err := exec.Command("systemctl", args...).CombinedOutput(); err != nil { //nolint:gosec // G204: the arguments are constants of this file
			return fmt.Errorf("the node has joined, but systemctl %s failed: %w: %s (why is in journalctl -u edgecore; edgecore --check-config tries the settings)", strings.Join(args, " "), err, strings.TrimSpace(string(text)))
		}
	}
	fmt.Fprintln(l.out, "started: systemctl status edgecore")
	return nil
}
