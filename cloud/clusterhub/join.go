// SPDX-License-Identifier: Apache-2.0

package clusterhub

import (
	"bytes"
	"cmp"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/rs/zerolog"

	"github.com/edgebus/edgebus/broker/daemon/backup"
	"github.com/edgebus/edgebus/broker/daemon/datadir"
	"github.com/edgebus/edgebus/broker/sealed"
	"github.com/edgebus/edgebus/cloud/clusterca"
	"github.com/edgebus/edgebus/cloud/hubdata"
	"github.com/edgebus/edgebus/cloud/peer"
	"github.com/edgebus/edgebus/configs"
)

const joinAbout = `Puts a backup of one of the hubs into an empty data directory, as restore does. Start the hub then, and delete the backup, which has all keys.

With --from no file is needed: cluster.key is, and the backup is taken from a hub that runs, at its store.peer.listen, by TLS of both ends. It waits until one
gives it, and says why none does. It ends at once if the directory is of a cluster already, so it can stand before each start of a hub; and it ends when
` + "`cloudhub cluster init`, or `import`, has made the directory one, which begins the log with it." + `
`

// joinHub is the command join.
func joinHub(c *clusterCall) error {
	if len(c.from) > 0 {
		ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
		defer stop()
		return c.joinFrom(ctx)
	}
	if c.key != "" {
		return errors.New("--key is for --from: a backup has the key")
	}
	return c.joinWith(c.flags.Arg(0), c.force)
}

// joinWith joins with a backup.
func (c *clusterCall) joinWith(file string, force bool) error {
	p := hubdata.Program()
	p.Command, p.AfterRestore = "cloudhub cluster join", "Start cloudhub: it stands by, with what came after in the log."
	p.NewLineages = func(dir string, _ uint32) error { return checkJoining(dir) }
	args := []string{"restore", "--data-dir", c.cfg.Data.Dir, file}
	for flag, is := range map[string]bool{"--force": force, "--dry-run": c.dryRun} {
		if is {
			args = append(args, flag)
		}
	}
	code, _ := p.Main(args, c.stdout, c.stderr)
	return exitCode(code)
}

const (
	purposeJoin = "join"
	joinEvery   = time.Second
	joinTime    = 10 * time.Second // for a hub to begin its answer
	backupPath  = "/backup"        // at the socket of a hub
	takenFile   = "join-*.part"    // which is no data of the directory
)

// joinFrom joins hubs that run, as soon as one of them gives a backup.
func (c *clusterCall) joinFrom(ctx context.Context) error {
	if c.dryRun {
		return errors.New("--dry-run is for a backup: leave --from out")
	}
	dir, said := c.cfg.Data.Dir, ""
	key, err := c.joinKey()
	if err != nil {
		return err
	}
	left, err := filepath.Glob(filepath.Join(dir, takenFile)) // by one that was killed: it has all keys
	for _, file := range left {
		err = errors.Join(err, os.Remove(file))
	}
	if err != nil {
		return err
	}
	authority, err := clusterca.New(key)
	if err != nil {
		return err
	}
	o := peer.Options{Name: hubName(c.cfg.Store.NATS) + " (joins)", TLS: authority.Config(), Log: zerolog.Nop()}
	for {
		joined, err := isJoined(dir)
		if joined && !c.force {
			fmt.Fprintf(c.stdout, "%s is of a cluster.\n", dir)
			return nil
		}
		if err == nil || c.force {
			var file string
			if file, err = c.takeBackup(ctx, o); err == nil {
				defer os.Remove(file)
				return c.joinWithTaken(file, key)
			}
		}
		if ctx.Err() != nil {
			return errors.New("it was interrupted; nothing was changed")
		}
		if text := err.Error(); text != said {
			said = text
			fmt.Fprintf(c.stderr, "cloudhub cluster join: waiting: %s\n", text)
		}
		select {
		case <-ctx.Done():
		case <-time.After(joinEvery):
		}
	}
}

// joinKey is the hubs' key, which is in the data directory from then on: init and import take it there.
func (c *clusterCall) joinKey() (key sealed.Key, err error) {
	own := filepath.Join(c.cfg.Data.Dir, hubdata.ClusterKeyFile)
	if c.key == "" {
		if key, err = sealed.LoadKey(own); errors.Is(err, fs.ErrNotExist) {
			err = fmt.Errorf("%w: copy it from another hub, as safely as it is kept there, or say with --key where it is", err)
		}
		return key, err
	}
	if key, err = sealed.LoadKey(c.key); err != nil {
		return key, err
	}
	had, err := sealed.LoadKey(own)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		err = errors.Join(datadir.MakeDir(c.cfg.Data.Dir), key.Write(own), datadir.CopyOwner(c.cfg.Data.Dir, c.cfg.Data.Dir))
	case err == nil && had != key:
		err = fmt.Errorf("%s is another key than %s: is it of another cluster?", own, c.key)
	}
	return key, err
}

// errFiles is why a hub on files joins nobody.
var errFiles = errors.New("the data directory is of a hub on files: `cloudhub cluster import` makes the log of several with it; to join others with none of it, move it away")

// isJoined reports whether a data directory is of a cluster. The error is why it can't join one.
func isJoined(dir string) (is bool, err error) {
	if _, err := os.Stat(filepath.Join(dir, datadir.RestoreDir)); err == nil {
		return false, nil // an attempt was interrupted
	}
	is, has, err := hubdata.ReadOrigin(dir)
	if err == nil && has && !is {
		err = errFiles
	}
	return is, err
}

// takeBackup has one of the hubs give a backup, which is in a file then.
func (c *clusterCall) takeBackup(ctx context.Context, o peer.Options) (file string, err error) {
	_, port, _ := net.SplitHostPort(c.cfg.Store.Peer.Listen) // it was checked
	var not error
	for _, hub := range c.from {
		host, own, err := net.SplitHostPort(hub)
		if err != nil {
			host, own = strings.Trim(hub, "[]"), ""
		}
		addresses, err := net.DefaultResolver.LookupHost(ctx, host)
		not = errors.Join(not, err)
		for _, a := range addresses { // of a name that all hubs have
			file, err := takeBackupAt(ctx, c.cfg.Data.Dir, o, net.JoinHostPort(a, cmp.Or(own, port)))
			if err == nil {
				return file, nil
			}
			not = errors.Join(not, err)
		}
	}
	return "", fmt.Errorf("no hub gives a backup; if there is none yet, run `cloudhub cluster init` here, once: %w", not)
}

func takeBackupAt(ctx context.Context, dir string, o peer.Options, address string) (file string, err error) {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://hub/", http.NoBody)
	if err != nil {
		return "", err
	}
	answer, err := (&http.Transport{DisableKeepAlives: true, ResponseHeaderTimeout: joinTime, DialContext: func(context.Context, string, string) (net.Conn, error) {
		return peer.DialAddress(ctx, o, address, purposeJoin) // until all is read
	}}).RoundTrip(r)
	if err != nil {
		return "", fmt.Errorf("%s: %w", address, err)
	}
	defer answer.Body.Close()
	if answer.StatusCode != http.StatusOK {
		text, _ := io.ReadAll(io.LimitReader(answer.Body, 4096))
		return "", fmt.Errorf("%s: %s", address, bytes.TrimSpace(text))
	}
	out, err := os.CreateTemp(dir, takenFile)
	if err != nil {
		return "", err
	}
	z, _ := gzip.NewWriterLevel(out, gzip.BestSpeed) // a valid level
	_, err = io.Copy(z, answer.Body)
	if err = errors.Join(err, z.Close(), out.Close()); err != nil {
		return "", errors.Join(fmt.Errorf("%s: %w", address, err), os.Remove(out.Name()))
	}
	return out.Name(), nil
}

// joinWithTaken joins with a backup that a hub gave. It has the key, too.
func (c *clusterCall) joinWithTaken(file string, key sealed.Key) error {
	dir, force := c.cfg.Data.Dir, c.force
	for _, name := range []string{datadir.RestoreDir, hubdata.LogDir} {
		if _, err := os.Stat(filepath.Join(dir, name)); err == nil {
			force = true // what an attempt that was interrupted has left, or an init that failed: it has no record
		}
	}
	own := filepath.Join(dir, hubdata.ClusterKeyFile)
	if err := os.Remove(own); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	err := c.joinWith(file, force)
	if err != nil { // for the next attempt
		if _, missing := os.Stat(own); missing != nil {
			err = errors.Join(err, key.Write(own))
		}
	}
	return err
}

// serveJoins gives backups to hubs that join, until ctx ends. Who joins has shown that it has cluster.key, by which it could have all that is in one.
func (p *peers) serveJoins(ctx context.Context, cfg configs.Hub, log zerolog.Logger) {
	err := p.Serve(ctx, purposeJoin, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if p.authority.Load() == nil {
			http.Error(w, "this hub has not served yet", http.StatusServiceUnavailable)
			return
		}
		answer, err := backup.AskRunning(r.Context(), cfg.Data.Dir, http.MethodGet, backupPath)
		if err != nil {
			http.Error(w, "this hub gives no backup yet: "+err.Error(), http.StatusServiceUnavailable)
			return
		}
		defer answer.Body.Close()
		w.WriteHeader(answer.StatusCode)
		if _, err := io.Copy(w, answer.Body); err != nil {
			panic(http.ErrAbortHandler) // it is not whole
		}
		log.Info().Str("remote", r.RemoteAddr).Int("status", answer.StatusCode).Msg("a hub that joins asked for a backup")
	}))
	if err != nil {
		log.Error().Err(err).Msg("other hubs can't join by this one")
	}
}
