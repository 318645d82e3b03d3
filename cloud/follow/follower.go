// SPDX-License-Identifier: Apache-2.0

package follow

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"strconv"
	"time"

	"github.com/rs/zerolog"

	"github.com/edgebus/edgebus/broker/daemon/datadir"
	"github.com/edgebus/edgebus/broker/journal"
	"github.com/edgebus/edgebus/broker/ordered"
	"github.com/edgebus/edgebus/topics/backoff"
	"github.com/edgebus/edgebus/topics/resource"
)

// Options are what a follower needs.
type Options struct {
	Dir    string // the data directory of the copy, which this process has locked
	LogDir string // the name of the log in it
	Server string // the hub's address, for people
	// Get asks the hub for a path. The error is one of package resource if the hub has refused.
	Get func(ctx context.Context, path string) (content io.ReadCloser, err error)
	// Open opens a journal.
	Open  func(dir string) (*journal.Journal, error)
	Files Files
	Blobs Blobs
	Once  bool // end when the copy has all that the hub had when it was asked
	Anew  bool // begin another copy
	Log   zerolog.Logger
	Now   func() time.Time
	// Retry is the wait between connections. Default: half a second to half a minute.
	Retry backoff.Backoff
}

// Blobs are those of the copy.
type Blobs interface {
	Has(digest string) (size int64, ok bool)
	Put(ctx context.Context, r io.Reader, want string) (digest string, size int64, err error)
}

const (
	timeout    = 8 * heartbeatInterval // without any message, after which it connects again
	applySize  = 1 << 20
	stateEvery = time.Second
	noteEvery  = 5 * time.Second
	tellEvery  = 5 * time.Second
)

// Refused is an error that trying again doesn't mend.
type Refused struct{ Err error }

func (r Refused) Error() string { return r.Err.Error() }

// Unwrap is why.
func (r Refused) Unwrap() error { return r.Err }

// logFollower copies a log.
type logFollower struct {
	Options
	copy    *logCopy
	state   State
	written time.Time // when the state was
	noted   time.Time // when progress was logged
	keys    map[string]string
	wanted  chan []string // digests of the hub's blobs
	applied chan string   // the path that says to the hub what the copy has

	bodies [][]byte // of frames that wait to be applied
	size   int
	to     ordered.Position
	id     ordered.LogID
	whole  ordered.Position
}

var errCaughtUp = errors.New("the copy has all")

// Run follows a hub's log until ctx ends.
func Run(ctx context.Context, o Options) (err error) {
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.Retry == (backoff.Backoff{}) {
		o.Retry = backoff.Backoff{Min: 500 * time.Millisecond, Max: 30 * time.Second}
	}
	f := &logFollower{Options: o, wanted: make(chan []string, 1), applied: make(chan string, 1)}
	if f.copy, err = openCopy(filepath.Join(o.Dir, o.LogDir), o.Open); err != nil {
		return Refused{err}
	}
	defer func() { err = errors.Join(err, f.copy.close()) }()
	if before, err := ReadState(o.Dir); err == nil {
		f.state = before
	}
	f.state.Server = o.Server
	if o.Anew {
		if err := f.copy.begin(); err != nil {
			return err
		}
	}
	ctx, cancel := context.WithCancel(ctx)
	fetched, told := make(chan struct{}), make(chan struct{})
	go func() { defer close(fetched); f.fetchBlobs(ctx) }()
	go func() { defer close(told); f.tell(ctx) }()
	defer func() { cancel(); <-fetched; <-told }()
	if err = f.run(ctx); err == nil && ctx.Err() == nil { // once: also the blobs
		close(f.wanted)
		<-fetched
	}
	return err
}

func (f *logFollower) run(ctx context.Context) error {
	var retry backoff.Retry
	for {
		connected, err := f.follow(ctx)
		switch {
		case errors.Is(err, errCaughtUp):
			return f.writeState("")
		case ctx.Err() != nil:
			return f.writeState("it was stopped")
		case errors.Is(err, resource.Gone):
			f.Log.Warn().Err(err).Msg("the hub's log has given up what follows the copy: another copy is begun, and this one stays until that is whole")
			err = f.copy.begin()
		case errors.Is(err, resource.Conflict):
			err = Refused{fmt.Errorf("%w. The copy in %s stays as it is. If that hub is the one to follow from now on, begin another copy with --anew", err, f.Dir)}
		}
		if refused := new(Refused); errors.As(err, refused) || err != nil && f.Once {
			return errors.Join(err, f.writeState(err.Error()))
		}
		if err == nil {
			continue
		}
		if connected {
			retry.Succeeded()
		}
		wait := retry.Failed(f.Retry, f.Now())
		f.Log.Warn().Err(err).Stringer("wait", wait).Msg("the hub's log can't be followed; trying again")
		if err := f.writeState(err.Error()); err != nil {
			f.Log.Warn().Err(err).Msg("how the copy is can't be written")
		}
		select {
		case <-time.After(wait):
		case <-ctx.Done():
		}
	}
}

// follow follows one connection. connected says that something came.
func (f *logFollower) follow(given context.Context) (connected bool, err error) {
	ctx, cancel := context.WithCancelCause(given)
	defer cancel(nil)
	path := Path
	if f.copy.begun {
		path += fmt.Sprintf("?log=%x&after=%d", uint64(f.copy.at.Log), uint64(f.copy.at.At))
	}
	silent := time.AfterFunc(timeout, func() { cancel(fmt.Errorf("the hub sent nothing for %s", timeout)) })
	defer silent.Stop()
	content, err := f.Get(ctx, path)
	if err != nil {
		if cause := context.Cause(ctx); cause != nil {
			err = cause
		}
		return false, err
	}
	defer content.Close()
	in := newMessageReader(content)
	if m, err := in.next(); err != nil {
		return false, err
	} else if err := f.begin(m); err != nil {
		return false, err
	}
	f.Log.Info().Str("server", f.Server).Uint64("after", uint64(f.to)).Msg("the hub's log is followed")
	for {
		m, err := in.next()
		if err == nil {
			silent.Reset(timeout)
			err = f.take(m)
		}
		if err == nil && (f.size >= applySize || in.waits()) {
			err = f.apply()
		}
		if err != nil {
			if cause := context.Cause(ctx); cause != nil && !errors.Is(err, errCaughtUp) {
				err = cause
			}
			return true, errors.Join(err, f.applyBefore(err))
		}
	}
}

// applyBefore applies what came before a connection ended.
func (f *logFollower) applyBefore(ended error) error {
	if errors.As(ended, new(Refused)) {
		return nil
	}
	return f.apply()
}

// begin notes which log it is.
func (f *logFollower) begin(m message) error {
	id, err := strconv.ParseUint(string(m.body), 16, 64)
	if err != nil || m.kind != kindLog {
		return Refused{fmt.Errorf("%s is no hub whose log can be followed: its version is another one", f.Server)}
	}
	f.bodies, f.size = nil, 0
	f.id, f.whole, f.to = ordered.LogID(id), m.at, 0
	if f.copy.begun {
		f.whole, f.to = f.copy.at.Whole, f.copy.at.At
	}
	return nil
}

// take takes a message.
func (f *logFollower) take(m message) error {
	switch m.kind {
	case kindFrame:
		f.bodies, f.to = append(f.bodies, bytes.Clone(m.body)), m.at
		f.size += len(m.body)
	case kindFile:
		name, content, ok := bytes.Cut(m.body, []byte{0})
		if !ok || !f.Files.isSent(string(name)) {
			return Refused{fmt.Errorf("the hub sent a file %q, which is no part of a copy", name)}
		}
		path := filepath.Join(f.Dir, string(name))
		if err := errors.Join(datadir.MakeDir(filepath.Dir(path)), datadir.WriteFile(path, content)); err != nil {
			return err
		}
	case kindBlobs:
		var digests []string
		if err := json.Unmarshal(m.body, &digests); err != nil {
			return err
		}
		putLatest(f.wanted, digests)
	case kindStatus:
		var s status
		if err := json.Unmarshal(m.body, &s); err != nil {
			return err
		}
		if err := f.apply(); err != nil {
			return err
		}
		return f.heard(s, m.at)
	}
	return nil
}

// apply applies the frames that wait.
func (f *logFollower) apply() error {
	if len(f.bodies) == 0 {
		return nil
	}
	err := f.copy.apply(journal.Origin{Log: f.id, At: f.to, Whole: f.whole}, f.bodies)
	f.bodies, f.size = nil, 0
	return err
}

// heard notes how far the hub is. All that it had sent before is applied.
func (f *logFollower) heard(s status, at ordered.Position) error {
	now := f.Now()
	if !f.copy.begun && s.Behind == 0 { // a log without any frame
		if err := f.copy.apply(journal.Origin{Log: f.id, At: at, Whole: f.whole}, nil); err != nil {
			return err
		}
	}
	f.keys = s.Keys
	f.state.Contact, f.state.Behind = now, s.Behind
	if s.Behind == 0 && !f.copy.anew {
		f.state.AsOf = time.UnixMilli(s.Time)
	}
	if f.copy.anew && now.Sub(f.noted) >= noteEvery {
		f.noted = now
		f.Log.Info().Int64("bytesToGo", s.Behind).Uint64("position", uint64(f.to)).Msg("the log is being copied")
	}
	if !f.Once { // of one that comes now and then the hub isn't to say that it is gone
		putLatest(f.applied, fmt.Sprintf("%s?log=%x&at=%d&asOf=%d", AppliedPath, uint64(f.id), uint64(f.copy.at.At), max(f.state.AsOf.UnixMilli(), 0)))
	}
	caughtUp := f.Once && s.Behind == 0 && !f.copy.anew
	if now.Sub(f.written) >= stateEvery || caughtUp {
		if err := f.writeState(""); err != nil {
			return err
		}
	}
	if caughtUp {
		return errCaughtUp
	}
	return nil
}

func (f *logFollower) writeState(why string) error {
	s := &f.state
	if f.keys != nil {
		now := lackingKeys(f.Dir, f.keys)
		if len(now) > 0 && len(s.Lacking) != len(now) {
			f.Log.Warn().Strs("files", now).Msg("keys of the hub are missing here, or are others: copy them by hand, or the copy can't be taken over")
		}
		s.Lacking = now
	}
	s.Log, s.Position, s.Whole, s.Error = fmt.Sprintf("%x", uint64(f.copy.at.Log)), uint64(f.copy.at.At), !f.copy.anew, why
	f.written = f.Now()
	return s.write(f.Dir, f.written)
}

// fetchBlobs gets the blobs that the copy lacks. What fails is tried again with the next list.
func (f *logFollower) fetchBlobs(ctx context.Context) {
	for digests := range orDone(ctx, f.wanted) {
		for _, digest := range digests {
			if _, has := f.Blobs.Has(digest); has || ctx.Err() != nil {
				continue
			}
			content, err := f.Get(ctx, BlobPath+digest)
			if err == nil {
				_, _, err = f.Blobs.Put(ctx, content, digest)
				err = errors.Join(err, content.Close())
			}
			if err != nil && ctx.Err() == nil {
				f.Log.Warn().Err(err).Str("blob", digest).Msg("a blob was not copied; it is tried again when the hub has others, or at the next connection")
			}
		}
	}
}

// tell says to the hub what the copy has.
func (f *logFollower) tell(ctx context.Context) {
	for path := range orDone(ctx, f.applied) {
		content, err := f.Get(ctx, path)
		if err == nil {
			err = content.Close()
		}
		if err != nil && ctx.Err() == nil {
			f.Log.Debug().Err(err).Msg("the hub wasn't told what the copy has")
		}
		select {
		case <-time.After(tellEvery):
		case <-ctx.Done():
		}
	}
}

// putLatest puts a value in place of an older one. Nobody else puts any.
func putLatest[V any](into chan V, v V) {
	select {
	case <-into:
	default:
	}
	into <- v
}

// orDone are the values of a channel until ctx ends.
func orDone[V any](ctx context.Context, in <-chan V) func(yield func(V) bool) {
	return func(yield func(V) bool) {
		for {
			select {
			case v, ok := <-in:
				if !ok || !yield(v) {
					return
				}
			case <-ctx.Done():
				return
			}
		}
	}
}
