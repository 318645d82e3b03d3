package backup

import (
	"context"
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

	"github.com/edgebus/edgebus/configs/daemon/datadir"
)

// What runs gives its data over a socket in its data directory: who may read the data may ask for it.
const (
	// SocketName is the socket's name in the data directory.
	SocketName = "backup.sock"

	backupURL   = "http://edgebus/backup"
	sizeHeader  = "Edgebus-Size"
	errorHeader = "Edgebus-Error" // a trailer: what went wrong midway
	silence     = time.Minute     // of the other side, after which it is given up
)

// running has the program that uses the directory write a backup, not compressed.
func (l *line) running(w io.Writer, used *datadir.InUse) error {
	req, err := http.NewRequestWithContext(l.ctx, http.MethodGet, backupURL, nil)
	if err != nil {
		return err
	}
	client := http.Client{Transport: &http.Transport{DisableCompression: true, DialContext: l.dial}}
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
	size, _ := strconv.ParseInt(res.Header.Get(sizeHeader), 10, 64) // for show
	_, err = io.Copy(io.MultiWriter(w, newProgress(l.ctx, l.err, "writing", size)), res.Body)
	if why := res.Trailer.Get(errorHeader); err == nil && why != "" {
		err = errors.New(why)
	}
	if err != nil {
		return fmt.Errorf("%s gave no whole backup: %w", used.Holder, err)
	}
	return nil
}

func (l *line) dial(ctx context.Context, _, _ string) (net.Conn, error) {
	var d net.Dialer
	conn, err := d.DialContext(ctx, "unix", filepath.Join(l.dir, SocketName))
	if err != nil {
		return nil, err
	}
	return lively{conn}, nil
}

// lively is a connection to somebody who must not fall silent.
type lively struct{ net.Conn }

func (c lively) Read(b []byte) (int, error) {
	_ = c.SetReadDeadline(time.Now().Add(silence))
	return c.Conn.Read(b)
}

// Snapshot is a program's stores at one moment: their files, which stay as they are until release.
type Snapshot func() (stores []Source, release func(), err error)

// Server gives backups of a running program to those who may read its data directory. A
// backup has everything in it, Secrets and their key, too: it goes to nobody over the network.
type Server struct {
	program  Program
	dir      string
	snapshot Snapshot
	log      zerolog.Logger
	listener net.Listener // nil: backups take a stop
	busy     sync.Mutex   // held while a backup is made
}

// Listen binds the socket in the data directory, which the program has for itself. A program that
// can't be asked for backups works all the same.
func (p Program) Listen(dir string, snapshot Snapshot, log zerolog.Logger) *Server {
	s := &Server{program: p, dir: filepath.Clean(dir), snapshot: snapshot, log: log}
	path := filepath.Join(dir, SocketName)
	err := os.Remove(path) // of one that was killed
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

// Run serves until ctx ends. Then a backup that is being made is cut off.
func (s *Server) Run(ctx context.Context) error {
	if s.listener == nil {
		<-ctx.Done()
		return nil
	}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /backup", s.give)
	srv := &http.Server{
		Handler: mux, ReadHeaderTimeout: silence, BaseContext: func(net.Listener) context.Context { return ctx },
	}
	stop := context.AfterFunc(ctx, func() { _ = srv.Close() })
	defer stop()
	err := srv.Serve(s.listener)
	s.busy.Lock() // nobody reads the stores any more
	defer s.busy.Unlock()
	if errors.Is(err, http.ErrServerClosed) {
		return nil
	}
	return err
}

// give makes a backup: one at a time, for each holds back what the stores would let go of.
func (s *Server) give(w http.ResponseWriter, r *http.Request) {
	if !s.busy.TryLock() {
		http.Error(w, "another one is being made", http.StatusServiceUnavailable)
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
	theirs := make(map[string]bool) // what stores keep, they speak for
	for _, f := range stores {
		theirs[f.Path()] = true
		if dir := filepath.Dir(f.Path()); dir != s.dir {
			theirs[dir] = true
		}
	}
	others, err := list(s.dir, theirs)
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
	return m, stream(patient{w, http.NewResponseController(w)}, m, all, newProgress(r.Context(), nil, "", 0))
}

// patient gives up on who takes nothing for a while: a backup that is being made costs disk space.
type patient struct {
	w  http.ResponseWriter
	rc *http.ResponseController
}

func (p patient) Write(b []byte) (int, error) {
	_ = p.rc.SetWriteDeadline(time.Now().Add(silence))
	return p.w.Write(b)
}
