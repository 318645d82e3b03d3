// SPDX-License-Identifier: Apache-2.0

package follow

import (
	"context"
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/rs/zerolog"

	"github.com/edgebus/edgebus/broker/ordered"
	"github.com/edgebus/edgebus/topics/resource"
)

// Path is where a hub serves its log; below BlobPath are blobs by their digests.
const (
	Path     = "/log"
	BlobPath = Path + "/blobs/"
)

const (
	heartbeatInterval = 2 * time.Second
	silenceTimeout    = time.Minute // after which a follower that reads nothing is disconnected: what it needs takes room
	sendSize          = 256 << 10
	maxFollowers      = 8
)

// Source is the log of a hub.
type Source interface {
	ordered.Reader
	// Hold keeps the frames that there are until release is called.
	Hold() (release func())
	// Behind is how many bytes of the log there are after a position.
	Behind(at ordered.Position) int64
}

// ServerOptions are what a Server serves.
type ServerOptions struct {
	Source Source
	Dir    string
	Files  Files
	// Blobs are the digests of all blobs, and Blob opens one.
	Blobs func() []string
	Blob  func(digest string) (io.ReadCloser, error)
	Log   zerolog.Logger
	Now   func() time.Time
}

// Server serves a hub's log to who copies it. Who may is decided before.
type Server struct {
	ServerOptions
	places chan struct{}
	copies copies
}

// NewServer makes a Server.
func NewServer(o ServerOptions) *Server {
	if o.Now == nil {
		o.Now = time.Now
	}
	return &Server{o, make(chan struct{}, maxFollowers), copies{byUser: make(map[string]hubCopy)}}
}

// ServeBlob serves a blob.
func (s *Server) ServeBlob(w http.ResponseWriter, r *http.Request) error {
	content, err := s.Blob(strings.TrimPrefix(r.URL.Path, BlobPath))
	if err != nil {
		return err
	}
	defer content.Close()
	out := patientWriter{w, http.NewResponseController(w)}
	_, _ = io.Copy(out, content) // the client may be gone; it checks the digest
	return nil
}

// patientWriter fails if the client reads nothing for long.
type patientWriter struct {
	w  http.ResponseWriter
	rc *http.ResponseController
}

func (p patientWriter) Write(b []byte) (int, error) {
	_ = p.rc.SetWriteDeadline(time.Now().Add(silenceTimeout)) // where it can't be set, the server's own holds
	return p.w.Write(b)
}

// ServeHTTP serves the log after a position, as a stream that goes on: /log?log=ID&after=POSITION. Without them it begins with the first frame
// that there is.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) error {
	select {
	case s.places <- struct{}{}:
		defer func() { <-s.places }()
	default:
		return resource.Errorf(resource.Unavailable, "", "%d follow the log already", maxFollowers)
	}
	after, whole, release, err := s.begin(r)
	if err != nil {
		return err
	}
	defer release()
	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()
	w.Header().Set("Content-Type", "application/octet-stream")
	st := &stream{
		s: s, out: patientWriter{w, http.NewResponseController(w)}, sent: after, cancel: cancel, blobs: []string{"not sent"},
		buf:   appendMessage(nil, kindLog, whole, strconv.AppendUint(nil, uint64(s.Source.ID()), 16)),
		files: watchedFiles{dir: s.Dir, files: s.Files, seen: make(map[string]fileStamp)},
	}
	s.Log.Info().Uint64("after", uint64(after)).Str("remote", r.RemoteAddr).Msg("the log is followed")
	st.run(ctx, after, whole, release)
	s.Log.Info().Uint64("sent", uint64(st.sent)).Str("remote", r.RemoteAddr).Msg("the log is followed no more")
	return nil
}

// begin is the position after which a request wants the log. For one that begins, whole is where the log ends now, and the frames up to there
// stay until release is called.
func (s *Server) begin(r *http.Request) (after, whole ordered.Position, release func(), err error) {
	q := r.URL.Query()
	if q.Get("log") == "" {
		release = sync.OnceFunc(s.Source.Hold())
		after, whole, err = s.Source.Bounds(r.Context())
		return after, whole, release, err
	}
	id, idErr := strconv.ParseUint(q.Get("log"), 16, 64)
	at, atErr := strconv.ParseUint(q.Get("after"), 10, 64)
	if idErr != nil || atErr != nil {
		return 0, 0, nil, resource.Errorf(resource.Invalid, "", "log and after are the identity of a log and a position in it")
	}
	if now := s.Source.ID(); ordered.LogID(id) != now {
		return 0, 0, nil, resource.Errorf(resource.Conflict, "log", "the hub's log was made anew: it is %x, and not %x", uint64(now), id)
	}
	floor, end, err := s.Source.Bounds(r.Context())
	switch after = ordered.Position(at); {
	case err != nil:
	case after > end:
		err = resource.Errorf(resource.Conflict, "after", "the hub's log ends at %d, before %d: it has lost what the copy has", end, after)
	case after < floor:
		err = resource.Errorf(resource.Gone, "after", "the log begins after %d", floor)
	}
	return after, 0, func() {}, err
}

// stream is one follower.
type stream struct {
	s      *Server
	out    patientWriter
	cancel context.CancelFunc

	mu    sync.Mutex
	sent  ordered.Position
	buf   []byte // of frames
	files watchedFiles
	blobs []string
}

// run sends frames as they come, and now and then how far the hub is, until ctx ends or the follower is gone.
func (st *stream) run(ctx context.Context, after, whole ordered.Position, release func()) {
	var beats sync.WaitGroup
	defer beats.Wait()
	defer st.cancel()
	st.flush(true)
	beats.Go(func() {
		t := time.NewTicker(heartbeatInterval)
		defer t.Stop()
		for {
			select {
			case <-t.C:
				st.flush(true)
			case <-ctx.Done():
				return
			}
		}
	})
	for f, err := range st.s.Source.Read(ctx, after) {
		if err != nil {
			if ctx.Err() == nil {
				st.s.Log.Warn().Err(err).Msg("the log can't be followed: the follower connects again")
			}
			return
		}
		if st.add(ctx, f); f.At >= whole {
			release()
		}
	}
}

// add sends a frame, with those that wait if there is no more or they are many.
func (st *stream) add(ctx context.Context, f ordered.Frame) {
	_, end, err := st.s.Source.Bounds(ctx)
	st.mu.Lock()
	st.buf = appendMessage(st.buf, kindFrame, f.At, f.Body)
	st.sent = f.At
	full := len(st.buf) >= sendSize
	st.mu.Unlock()
	if last := err != nil || f.At >= end; last || full {
		st.flush(last)
	}
}

// flush sends what waits. Files go first: a record that was committed after one was written never comes before it.
func (st *stream) flush(withStatus bool) {
	st.mu.Lock()
	defer st.mu.Unlock()
	var out []byte
	if st.files.keys == nil { // the first message
		st.files.keys, out, st.buf = make(map[string]string), st.buf, nil
	}
	err := st.files.changed(func(name string, content []byte) {
		out = appendMessage(out, kindFile, st.sent, slices.Concat([]byte(name), []byte{0}, content))
	})
	out = append(out, st.buf...)
	st.buf = st.buf[:0]
	if blobs := st.s.Blobs(); withStatus && !slices.Equal(blobs, st.blobs) {
		st.blobs = blobs
		out = appendJSON(out, kindBlobs, st.sent, blobs)
	}
	if withStatus {
		now, behind := st.s.Now(), st.s.Source.Behind(st.sent) // in this order: what is acknowledged later is none of it
		if _, end, err := st.s.Source.Bounds(context.Background()); err == nil && st.sent >= end {
			behind = 0
		}
		out = appendJSON(out, kindStatus, st.sent, status{now.UnixMilli(), behind, maps.Clone(st.files.keys)})
	}
	if err == nil {
		_, err = st.out.Write(out)
	} else {
		err = fmt.Errorf("files beside the log: %w", err)
		st.s.Log.Error().Err(err).Msg("the log can't be followed")
	}
	if err == nil {
		err = st.out.rc.Flush()
	}
	if err != nil {
		st.cancel()
	}
}
