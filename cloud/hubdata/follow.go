// SPDX-License-Identifier: Apache-2.0

package hubdata

import (
	"bytes"
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/rs/zerolog"
	"github.com/spf13/pflag"
	"sigs.k8s.io/yaml"

	"github.com/edgebus/edgebus/broker/daemon"
	"github.com/edgebus/edgebus/broker/daemon/backup"
	"github.com/edgebus/edgebus/broker/daemon/datadir"
	"github.com/edgebus/edgebus/broker/daemon/seal"
	"github.com/edgebus/edgebus/broker/journal"
	"github.com/edgebus/edgebus/cloud/blobs"
	"github.com/edgebus/edgebus/cloud/client"
	"github.com/edgebus/edgebus/cloud/enroll"
	"github.com/edgebus/edgebus/cloud/follow"
	"github.com/edgebus/edgebus/configs"
)

// followedFiles are the files that belong to a hub's log: revocations and certificates go with it, private keys don't.
func followedFiles() follow.Files {
	return follow.Files{
		Sent:     []string{backup.StampFile, replacedFile, enroll.DirName + "/*.json", enroll.DirName + "/*.pem"},
		Compared: []string{seal.FileName, enroll.DirName + "/*.key"},
	}
}

// NewFollowServer serves the log of a running hub to who copies it.
func NewFollowServer(dir string, records *journal.Journal, content *blobs.Store, log zerolog.Logger) *follow.Server {
	return follow.NewServer(follow.ServerOptions{
		Source: journal.SourceOf(records), Dir: dir, Files: followedFiles(), Log: log,
		Blobs: func() (digests []string) {
			for _, b := range content.List() {
				digests = append(digests, b.Digest)
			}
			return digests
		},
		Blob: func(digest string) (io.ReadCloser, error) { return content.Open(digest) },
	})
}

// refuseCopy fails if a log is a copy that nobody has taken over: the hub that it is of may run.
func refuseCopy(records *journal.Journal) error {
	_, is, err := journal.CopyIn(records).Origin()
	if err == nil && is {
		err = fmt.Errorf("%s is a copy of another hub's log, as edgebus follow makes it. To go on with it in that hub's place, make sure that that one is stopped and "+
			"stays so, and run cloudhub takeover --data-dir %s", records.Dir(), filepath.Dir(records.Dir()))
	}
	return err
}

// checkCopy checks that a directory has a copy that can be taken over, and says what it has.
func checkCopy(dir string) (said string, err error) {
	if _, err := os.Stat(filepath.Join(dir, ClusterKeyFile)); err == nil {
		return "", fmt.Errorf("%s is the data of a hub of a cluster: one of those that stand by takes over by itself", dir)
	}
	o := LogOptions(dir)
	if err := follow.EndReplacement(o.Dir); err != nil {
		return "", err
	}
	if _, err := os.Stat(o.Dir); err != nil {
		return "", fmt.Errorf("%s has no copy of a hub that is whole", dir)
	}
	o.ReadOnly = true
	records, err := journal.Open(o)
	if err != nil {
		return "", err
	}
	at, is, err := journal.CopyIn(records).Origin()
	switch err = errors.Join(err, records.Close()); {
	case err != nil:
		return "", err
	case !is:
		return "", fmt.Errorf("%s is the data directory of a hub, and no copy: start it as it is", dir)
	case !at.IsWhole():
		return "", fmt.Errorf("%s has a part of a hub's log: its first copy was not finished", dir)
	}
	state, err := follow.ReadState(dir)
	if err != nil {
		return "When the copy was last whole isn't known.", nil //nolint:nilerr // it is for people only
	}
	return fmt.Sprintf("The copy has all that the hub had at %s. What that acknowledged later, up to its end, is lost but for what nodes and clients send again: "+
		"%d bytes at the last contact, %s.", state.AsOf.UTC().Format(time.RFC3339Nano), state.Behind, state.Contact.UTC().Format(time.RFC3339)), nil
}

// followFlags are the command line of cloudhub follow.
type followFlags struct {
	config, dir, kubeconfig string
	once, anew, status      bool
	within                  time.Duration
}

const followHelp = `Copies the log of a hub to this machine while it is written, with revocations, certificates and blobs: edgebus follow
runs it. --kubeconfig names a file that edgebus kubeconfig --embed prints, for a user with the role follower; - is standard input.

Private keys aren't sent: secrets.key, and the keys in the directory authority, are copied by hand once and after each rotation; which
are missing is logged, and said by --status. The files follow.json and follow.prom say how old the copy is.

To go on with the copy in the place of a hub that is lost: cloudhub takeover.
The exit code is 3 if trying again is of no use.

Usage:
  cloudhub follow --data-dir DIRECTORY --kubeconfig FILE

Flags:
`

// FollowMain is the command follow.
func FollowMain(args []string, stdout, stderr io.Writer) int {
	var f followFlags
	flags := pflag.NewFlagSet("follow", pflag.ContinueOnError)
	flags.SetOutput(stdout)
	flags.Usage = func() { fmt.Fprint(stdout, followHelp, flags.FlagUsages()) }
	flags.StringVar(&f.config, "config", "", "file of settings, which says where the data is")
	flags.StringVar(&f.dir, "data-dir", "", "the directory of the copy (default: where the settings say)")
	flags.StringVar(&f.kubeconfig, "kubeconfig", "", "the hub, and who to sign in as; -: standard input")
	flags.BoolVar(&f.once, "once", false, "end when the copy has all that the hub has")
	flags.BoolVar(&f.anew, "anew", false, "begin another copy; the one that there is stays until that is whole")
	flags.BoolVar(&f.status, "status", false, "print how old the copy is, and end with 1 if it can't be taken over or is older than --within")
	flags.DurationVar(&f.within, "within", time.Minute, "of --status: how old the copy may be")
	err := flags.Parse(args)
	if errors.Is(err, pflag.ErrHelp) {
		return 0
	}
	cfg, loadErr := configs.Load[configs.Hub]("cloudhub", f.config, nil)
	if err == nil {
		err = loadErr
	}
	if err == nil && flags.NArg() > 0 {
		err = errors.New("it takes no name; see --help")
	}
	if err == nil && f.kubeconfig == "" && !f.status {
		err = errors.New("--kubeconfig is needed; see --help")
	}
	if err != nil {
		fmt.Fprintln(stderr, "cloudhub follow:", err)
		return 2
	}
	if f.dir = cmp.Or(f.dir, cfg.Data.Dir); f.status {
		return f.printStatus(stdout, stderr)
	}
	refused := false
	code := daemon.Run("cloudhub follow", configs.Logger(stderr, cfg.Log), func(ctx context.Context, p daemon.Program) error {
		err := f.run(ctx, p.Log)
		refused = errors.As(err, new(follow.Refused))
		return err
	})
	if refused {
		return 3
	}
	return code
}

func (f followFlags) printStatus(stdout, stderr io.Writer) int {
	s, err := follow.ReadState(f.dir)
	if err != nil {
		fmt.Fprintln(stderr, "cloudhub follow:", err)
		return 1
	}
	lag := s.Lag(time.Now())
	fmt.Fprint(stdout, s)
	var not []string
	if !s.Whole {
		not = append(not, "the first copy isn't finished")
	}
	if len(s.Lacking) > 0 {
		not = append(not, "keys are lacking")
	}
	if s.Whole && lag > f.within {
		not = append(not, fmt.Sprintf("it is %s old, and may be %s (--within)", lag.Round(time.Millisecond), f.within))
	}
	if len(not) > 0 {
		fmt.Fprintln(stdout, "NOT WELL:   "+strings.Join(not, "; "))
		return 1
	}
	fmt.Fprintf(stdout, "well        it is %s old, and can be taken over\n", lag.Round(time.Millisecond))
	return 0
}

func (f followFlags) run(ctx context.Context, log zerolog.Logger) (err error) {
	dir, err := datadir.Open(f.dir, "cloudhub")
	if err != nil {
		return follow.Refused{Err: err}
	}
	defer func() { err = errors.Join(err, dir.Close()) }()
	hub := hubConnection{file: f.kubeconfig}
	if err := hub.connect(); err != nil {
		return follow.Refused{Err: err}
	}
	content, err := blobs.Open(blobs.Options{Dir: f.dir, Bytes: 1 << 50, Age: 1 << 62, Log: log})
	if err != nil {
		return err
	}
	open := func(path string) (*journal.Journal, error) {
		o := LogOptions(f.dir)
		o.Dir, o.Name, o.Log = path, "the copy of the hub's log", log
		return journal.Open(o)
	}
	return follow.Run(ctx, follow.Options{
		Dir: f.dir, LogDir: LogDir, Server: hub.client.Server, Get: hub.get, Open: open, Files: followedFiles(), Blobs: content,
		Once: f.once, Anew: f.anew, Log: log,
	})
}

// hubConnection is a client of the hub that a kubeconfig says. The file is read again when it has changed.
type hubConnection struct {
	file string

	mu     sync.Mutex
	text   []byte
	client *client.Client
}

func (h *hubConnection) get(ctx context.Context, path string) (io.ReadCloser, error) {
	if err := h.connect(); err != nil {
		return nil, err
	}
	h.mu.Lock()
	c := h.client
	h.mu.Unlock()
	content, _, err := c.Download(ctx, path)
	return content, err
}

func (h *hubConnection) connect() (err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	text := h.text
	switch {
	case h.file != "-":
		text, err = os.ReadFile(h.file)
	case h.client == nil:
		text, err = io.ReadAll(os.Stdin)
	}
	if err != nil || h.client != nil && bytes.Equal(text, h.text) {
		return err
	}
	o, err := parseKubeconfig(text)
	if err == nil {
		h.client, err = client.New(o)
	}
	if err != nil {
		return fmt.Errorf("the kubeconfig: %w", err)
	}
	h.text = text
	return nil
}

// kubeconfig is what of one with a single context is needed: edgebus kubeconfig --embed prints it.
type kubeconfig struct {
	Clusters []struct {
		Cluster struct {
			Server     string `json:"server"`
			CA         []byte `json:"certificate-authority-data"`
			ServerName string `json:"tls-server-name"`
			Insecure   bool   `json:"insecure-skip-tls-verify"`
			Proxy      string `json:"proxy-url"`
		} `json:"cluster"`
	} `json:"clusters"`
	Users []struct {
		User struct {
			Cert      []byte `json:"client-certificate-data"`
			Key       []byte `json:"client-key-data"`
			Token     string `json:"token"`
			TokenFile string `json:"tokenFile"`
			Username  string `json:"username"`
			Password  string `json:"password"`
		} `json:"user"`
	} `json:"users"`
}

func parseKubeconfig(text []byte) (o client.Options, err error) {
	var k kubeconfig
	if err := yaml.Unmarshal(text, &k); err != nil {
		return o, err
	}
	if len(k.Clusters) != 1 || len(k.Users) > 1 {
		return o, fmt.Errorf("it has %d clusters and %d users, and is to have one of each: edgebus kubeconfig --embed prints one of a context", len(k.Clusters), len(k.Users))
	}
	hub := k.Clusters[0].Cluster
	o.Server, o.Manager = hub.Server, "edgebus-follow"
	o.TLS = &tls.Config{MinVersion: tls.VersionTLS12, ServerName: hub.ServerName, InsecureSkipVerify: hub.Insecure} //nolint:gosec // G402: only if the user has said so
	if len(hub.CA) > 0 {
		o.TLS.RootCAs = x509.NewCertPool()
		if !o.TLS.RootCAs.AppendCertsFromPEM(hub.CA) {
			return o, errors.New("certificate-authority-data has no certificate in PEM form")
		}
	}
	if hub.Proxy != "" {
		if o.Proxy, err = url.Parse(hub.Proxy); err != nil {
			return o, fmt.Errorf("proxy-url: %w", err)
		}
	}
	if len(k.Users) == 0 {
		return o, nil
	}
	who := k.Users[0].User
	o.User, o.Password, o.Token = who.Username, who.Password, who.Token
	if who.TokenFile != "" {
		token, err := os.ReadFile(who.TokenFile)
		if err != nil {
			return o, err
		}
		o.Token = strings.TrimSpace(string(token))
	}
	if len(who.Cert) > 0 {
		pair, err := tls.X509KeyPair(who.Cert, who.Key)
		if err != nil {
			return o, fmt.Errorf("client-certificate-data: %w", err)
		}
		o.TLS.Certificates = []tls.Certificate{pair}
	}
	return o, nil
}
