// SPDX-License-Identifier: Apache-2.0

package backup

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/rs/zerolog"

	"github.com/edgebus/edgebus/broker/daemon/datadir"
)

// A running program serves backups over a socket in its data directory, to those who may read the directory.
const (
	// SocketName is the socket's name in the data directory.
	SocketName = "backup.sock"

	// StateURL is where a running program tells its state, at the socket.
	StateURL = "http://edgebus/state"

	backupURL      = "http://edgebus/backup"
	rotateURL      = "http://edgebus/rotate-key"
	sizeHeader     = "Edgebus-Size"
	errorHeader    = "Edgebus-Error" // a trailer: why the backup was not finished
	silenceTimeout = time.Minute     // of the other side, after which the connection is closed
)

// running gets a backup, not compressed, from the program that uses the directory.
func (l *commandLine) running(w io.Writer, used *datadir.InUse) error {
	req, err := http.NewRequestWithContext(l.ctx, http.MethodGet, backupURL, nil)
	if err != nil {
		return err
	}
	client := http.Client{Transport: &http.Transport{DisableCompression: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		conn, err := l.dial(ctx, "", "")
		return timeoutConn{conn}, err
	}}}
	res, err := client.Do(req)
	switch {
	case errors.Is(err, os.ErrNotExist), errors.Is(err, syscall.ECONNREFUSED):
		return fmt.Errorf("%s gives no backup (it may be about to start or to end: try again). %w", used.Holder, used)
	case err != nil:
		return fmt.Errorf("%s gives no backup: %w", used.Holder, err)
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusOK {
		text, _ := io.ReadAll(io.LimitReader(res.Body, 4096))
		return fmt.Errorf("%s gives no backup: %s", used.Holder, strings.TrimSpace(string(text)))
	}
	size, _ := strconv.ParseInt(res.Header.Get(sizeHeader), 10, 64) // for the progress only
	_, err = io.Copy(io.MultiWriter(w, newProgress(l.ctx, l.err, "writing", size)), res.Body)
	if why := res.Trailer.Get(errorHeader); err == nil && why != "" {
		err = errors.New(why)
	}
	if err != nil {
		return fmt.Errorf("%s gave no whole backup: %w", used.Holder, err)
	}
	return nil
}

// rotateRunning has the program that uses the directory rotate its key. There is no limit in time: the program goes on in any case.
func (l *commandLine) rotateRunning(used *datadir.InUse) (said string, err error) {
	req, err := http.NewRequestWithContext(l.ctx, http.MethodPost, rotateURL, nil)
	if err != nil {
		return "", err
	}
	res, err := (&http.Client{Transport: &http.Transport{DialContext: l.dial}}).Do(req)
	if err != nil {
		return "", fmt.Errorf("%s doesn't answer (it may be about to start or to end: try again): %w. %w", used.Holder, err, used)
	}
	defer res.Body.Close()
	text, err := io.ReadAll(io.LimitReader(res.Body, 4096))
	if err == nil && res.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %s", used.Holder, strings.TrimSpace(string(text)))
	}
	return string(text), err
}

func (l *commandLine) dial(ctx context.Context, _, _ string) (net.Conn, error) {
	return new(net.Dialer).DialContext(ctx, "unix", filepath.Join(l.dir, SocketName))
}

// timeoutConn is a connection whose reads time out.
type timeoutConn struct{ net.Conn }

func (c timeoutConn) Read(b []byte) (int, error) {
	_ = c.SetReadDeadline(time.Now().Add(silenceTimeout))
	return c.Conn.Read(b)
}

// Snapshot returns a program's stores as they are at one moment: files that don't change until release is called.
type Snapshot func() (stores []Source, release func(), err error)

// Server serves backups of a running program to those who may read its data directory. It never listens on the network (a hub gives one to others of its cluster):
// a backup contains everything, also Secrets and their key.
type Server struct {
	program  Program
	dir      string
	snapshot Snapshot
	rotate   RotateKey
	log      zerolog.Logger
	state    http.Handler // nil: the program does not tell its state here
	also     map[string]http.HandlerFunc
	listener net.Listener // nil: it could not be bound
	busy     sync.Mutex   // held while a backup is made or the key is rotated: a backup has the key of what is in it
}

// RotateKey makes a new key for what a running program encrypts, and says what it did.
type RotateKey func(ctx context.Context) (said string, err error)

// Listen binds the socket in the data directory, which the program has locked. If it can't be bound that is logged, and
// the program works without. rotate is nil if the program has no command rotate-key.
func (p Program) Listen(dir string, snapshot Snapshot, rotate RotateKey, log zerolog.Logger) *Server {
	s := &Server{program: p, dir: filepath.Clean(dir), snapshot: snapshot, rotate: rotate, log: log}
	path := filepath.Join(dir, SocketName)
	err := os.Remove(path) // left by a program that was killed
	if err == nil || errors.Is(err, os.ErrNotExist) {
		private := net.ListenConfig{Control: ownerOnly}
		s.listener, err = private.Listen(context.Background(), "unix", path)
	}
	if err == nil {
		err = os.Chmod(path, 0o600)
	}
	if err != nil {
		log.Warn().Err(err).Msg("backups can be made only while the program is stopped")
	}
	return s
}

// State has the program's state served at /state, for programs of the host that watch over it. It is called before Run.
func (s *Server) State(state func() (report any, ready error)) {
	s.state = http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		report, err := state()
		if err != nil {
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(report) // the client may have gone
	})
}

// Handle has something else served at the socket: pattern is one of http.ServeMux. It is called before Run.
func (s *Server) Handle(pattern string, h http.HandlerFunc) {
	if s.also == nil {
		s.also = make(map[string]http.HandlerFunc)
	}
	s.also[pattern] = h
}

// AskRunning asks the program that uses a directory, at its socket.
func AskRunning(ctx context.Context, dir, method, path string) (*http.Response, error) {
	r, err := http.NewRequestWithContext(ctx, method, "http://edgebus"+path, nil)
	if err != nil {
		return nil, err
	}
	dial := func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", filepath.Join(dir, SocketName))
	}
	return (&http.Client{Transport: &http.Transport{DialContext: dial, DisableKeepAlives: true}}).Do(r)
}

// Run serves until ctx ends, which interrupts a backup in progress.
func (s *Server) Run(ctx context.Context) error {
	if s.listener == nil {
		<-ctx.Done()
		return nil
	}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /backup", s.serve)
	if s.state != nil {
		mux.Handle("GET /state", s.state)
	}
	for pattern, h := range s.also {
		mux.HandleFunc(pattern, h)
	}
	if s.rotate != nil {
		mux.HandleFunc("POST /rotate-key", func(w http.ResponseWriter, _ *http.Request) { s.serveRotation(ctx, w) })
	}
	srv := &http.Server{
		Handler: mux, ReadHeaderTimeout: silenceTimeout, BaseContext: func(net.Listener) context.Context { return ctx },
	}
	stop := context.AfterFunc(ctx, func() { _ = srv.Close() })
	defer stop()
	err := srv.Serve(s.listener)
	s.busy.Lock() // wait until the stores are no longer read
	defer s.busy.Unlock()
	if errors.Is(err, http.ErrServerClosed) {
		return nil
	}
	return err
}

// serveRotation rotates the key. It goes on when the client has gone: half of it is of no use.
func (s *Server) serveRotation(ctx context.Context, w http.ResponseWriter) {
	if !s.busy.TryLock() {
		http.Error(w, "a backup or another rotation is being made: try again when it is done", http.StatusServiceUnavailable)
		return
	}
	defer s.busy.Unlock()
	said, err := s.rotate(ctx)
	if err != nil {
		s.log.Error().Err(err).Msg("the key was not rotated")
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	_, _ = io.WriteString(w, said) // the client may have gone
}

// serve makes a backup. There is one at a time, because stores keep old data while one is made.
func (s *Server) serve(w http.ResponseWriter, r *http.Request) {
	if !s.busy.TryLock() {
		http.Error(w, "another backup is being made, or the key is rotated", http.StatusServiceUnavailable)
		return
	}
	defer s.busy.Unlock()
	if r.Context().Err() != nil {
		return
	}
	began := time.Now()
	stores, release, err := s.snapshot()
	if err != nil {
		s.log.Error().Err(err).Msg("no backup can be made")
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	defer release()
	m, err := s.send(w, r, stores)
	if err != nil {
		s.log.Error().Err(err).Msg("a backup was not finished")
		w.Header().Set(errorHeader, err.Error())
		return
	}
	s.log.Info().Int64("bytes", m.size()).Stringer("took", time.Since(began).Round(time.Millisecond)).Msg("a backup was made")
}

func (s *Server) send(w http.ResponseWriter, r *http.Request, stores []Source) (m Manifest, err error) {
	theirs := make(map[string]bool) // files that the snapshot has
	for _, f := range stores {
		theirs[f.Path()] = true
		if dir := filepath.Dir(f.Path()); dir != s.dir {
			theirs[dir] = true
		}
	}
	others, err := listFiles(s.dir, theirs)
	if err != nil {
		return m, err
	}
	all := append(stores, others...)
	if m, err = s.program.manifest(s.dir, all); err != nil {
		return m, err
	}
	w.Header().Set("Trailer", errorHeader)
	w.Header().Set("Content-Type", "application/x-tar")
	w.Header().Set(sizeHeader, strconv.FormatInt(m.size(), 10))
	return m, writeTar(timeoutWriter{w, http.NewResponseController(w)}, m, all, newProgress(r.Context(), nil, "", 0))
}

// timeoutWriter fails if the client reads nothing for a minute: a backup in progress costs disk space.
type timeoutWriter struct {
	w  http.ResponseWriter
	rc *http.ResponseController
}

func (p timeoutWriter) Write(b []byte) (int, error) {
	_ = p.rc.SetWriteDeadline(time.Now().Add(silenceTimeout))
	return p.w.Write(b)
}
