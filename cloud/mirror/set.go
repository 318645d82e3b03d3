// SPDX-License-Identifier: Apache-2.0

package mirror

import (
	"context"
	"encoding/gob"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"

	"github.com/rs/zerolog"

	"github.com/edgebus/edgebus/cloud/store"
	"github.com/edgebus/edgebus/topics/backoff"
	"github.com/edgebus/edgebus/topics/resource"
)

// Copy is a kind's objects at this hub, with the owner's revisions.
type Copy interface {
	Objects
	// Extent is from which revision on there are watches, and up to which there is everything.
	Extent() (since, rev uint64)
	Counts() (objects, watches int)
	// Reset replaces everything by a list, and Apply does what a watch returned. Both say up to which revision there is everything then.
	Reset(objects []store.Object, rev uint64) error
	Apply(events []store.Event, rev uint64)
	Close()
}

// Options are what a Set is made from.
type Options struct {
	// Dial opens a stream to the owner, which its Feed serves.
	Dial func(context.Context) (net.Conn, error)
	// Copy makes a copy without objects.
	Copy   func(kind string) Copy
	Unread time.Duration // after which a mirror that nobody reads is given up. Default: 10 minutes
	Log    zerolog.Logger
}

const (
	retryTime  = 250 * time.Millisecond
	changeTime = 15 * time.Second // that another hub may take to serve: nothing is logged of it
)

// Set is a hub's mirrors, a kind each. It is a store.Reader and a store.Watcher of what is mirrored.
type Set struct {
	o    Options
	ctx  context.Context //nolint:containedctx // of what follows the owner, until Close
	stop context.CancelFunc
	work sync.WaitGroup

	mu    sync.Mutex
	kinds map[string]*kindMirror
}

// kindMirror is that of a kind.
type kindMirror struct {
	Copy
	mu    sync.Mutex
	owner uint64        // who was heard last; 0: the list has not come, or nothing in time
	more  bool          // is to come before there is all that the owner had at one revision
	risen chan struct{} // is closed when there is more
	read  time.Time
}

// New makes a Set without mirrors.
func New(o Options) *Set {
	if o.Unread == 0 {
		o.Unread = 10 * time.Minute
	}
	s := &Set{o: o, kinds: map[string]*kindMirror{}}
	s.ctx, s.stop = context.WithCancel(context.Background())
	return s
}

// Context ends with Close.
func (s *Set) Context() context.Context { return s.ctx }

// Close ends all mirrors, and their watches.
func (s *Set) Close() {
	s.mu.Lock()
	s.stop()
	s.mu.Unlock()
	s.work.Wait()
}

// Begin has a kind mirrored from now on, if it isn't.
func (s *Set) Begin(kind string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.kinds[kind] != nil || s.ctx.Err() != nil {
		return
	}
	k := &kindMirror{Copy: s.o.Copy(kind), risen: make(chan struct{}), read: time.Now()}
	s.kinds[kind] = k
	s.work.Go(func() { s.follow(kind, k) })
}

// Of is which owner a kind is mirrored of, and from which revision on there are watches; 0: of none, yet. Who asks is about to read it.
func (s *Set) Of(kind string) (owner, since uint64) {
	k, err := s.of(kind)
	if err != nil {
		return 0, 0
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.read = time.Now()
	since, _ = k.Extent()
	return k.owner, since
}

func (s *Set) of(kind string) (*kindMirror, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if k := s.kinds[kind]; k != nil {
		return k, nil
	}
	return nil, resource.Errorf(resource.Unavailable, "", "%s is not mirrored here", kind)
}

// Await waits until a mirror has all that its owner had at a revision, since which no object of the kind had changed up to rev. A mirror that isn't there in time is
// none until its owner is heard again: who asks next doesn't wait.
func (s *Set) Await(ctx context.Context, kind string, owner, changed, rev uint64) error {
	k, err := s.of(kind)
	for err == nil {
		k.mu.Lock()
		_, has := k.Extent()
		is, risen := k.owner == owner && !k.more && has >= changed, k.risen
		k.mu.Unlock()
		if is {
			k.Apply(nil, rev)
			return nil
		}
		select {
		case <-risen:
		case <-ctx.Done():
			err = ctx.Err()
		}
	}
	if k != nil && errors.Is(err, context.DeadlineExceeded) {
		k.mu.Lock()
		k.owner = 0
		k.mu.Unlock()
	}
	return err
}

// Get is of store.Reader.
func (s *Set) Get(ctx context.Context, key store.Key) (store.Object, error) {
	k, err := s.of(key.Kind)
	if err != nil {
		return store.Object{}, err
	}
	return k.Get(ctx, key)
}

// List is of store.Reader.
func (s *Set) List(ctx context.Context, kind string, opts store.ListOptions) (store.Page, error) {
	k, err := s.of(kind)
	if err != nil {
		return store.Page{}, err
	}
	return k.List(ctx, kind, opts)
}

// Watch is of store.Watcher.
func (s *Set) Watch(ctx context.Context, of store.Key, from uint64) (store.Stream, error) {
	k, err := s.of(of.Kind)
	if err != nil {
		return nil, err
	}
	return k.Watch(ctx, of, from)
}

// Objects is how many objects the mirrors have.
func (s *Set) Objects() (sum int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, k := range s.kinds {
		n, _ := k.Counts()
		sum += n
	}
	return sum
}

// follow has a mirror hear whoever is the owner, until nobody reads it.
func (s *Set) follow(kind string, k *kindMirror) {
	defer k.Close()
	said, heard := "", time.Now()
	for s.isRead(kind, k) {
		ctx, stop := context.WithTimeout(s.ctx, s.o.Unread) // and then it goes on
		began := time.Now()
		err := s.hear(ctx, kind, k)
		if ctx.Err() == nil {
			if time.Since(began) > changeTime {
				heard = time.Now()
			}
			if err.Error() != said && time.Since(heard) > changeTime {
				said = err.Error()
				s.o.Log.Info().Err(err).Str("kind", kind).Msg("the hub that serves tells nothing of its objects; trying again")
			}
			backoff.Sleep(ctx, retryTime)
		}
		stop()
	}
}

// isRead reports whether anybody reads a mirror. If not it is none any more.
func (s *Set) isRead(kind string, k *kindMirror) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	k.mu.Lock()
	defer k.mu.Unlock()
	if _, watches := k.Counts(); s.ctx.Err() == nil && (watches > 0 || time.Since(k.read) < s.o.Unread) {
		return true
	}
	delete(s.kinds, kind)
	return false
}

// hear takes what the owner tells, until it ends.
func (s *Set) hear(ctx context.Context, kind string, k *kindMirror) error {
	conn, err := s.o.Dial(ctx)
	if err != nil {
		return err
	}
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { _ = conn.Close() })()
	_, rev := k.Extent()
	if err := gob.NewEncoder(conn).Encode(question{kind, rev}); err != nil {
		return err
	}
	var listed []store.Object
	for in := gob.NewDecoder(conn); ; {
		var f frame
		if err := in.Decode(&f); err != nil {
			return err
		}
		if f.Listed {
			for _, e := range f.Events {
				listed = append(listed, e.Object)
			}
			if !f.Whole {
				continue
			}
			if err := k.Reset(listed, f.Rev); err != nil {
				return fmt.Errorf("what the hub that serves lists: %w", err)
			}
			listed = nil
		} else {
			k.mu.Lock()
			k.more = k.more || f.More // before anybody reads them
			k.mu.Unlock()
			k.Apply(f.Events, f.Rev)
		}
		k.mu.Lock()
		k.owner, k.more = f.Owner, f.More
		close(k.risen)
		k.risen = make(chan struct{})
		k.mu.Unlock()
	}
}
