// SPDX-License-Identifier: Apache-2.0

package store

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"iter"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/fxamacker/cbor/v2"
	"go.etcd.io/bbolt"

	"github.com/edgebus/edgebus/broker/daemon/boltfile"
	"github.com/edgebus/edgebus/broker/wal"
	"github.com/edgebus/edgebus/topics/link"
)

const (
	maxCheckpointBytes = 32 << 20  // bytes of changes that a checkpoint holds in memory, but for its last segment
	maxChunk           = 256 << 10 // bytes in one transaction, but for the last record
	idleInterval       = time.Minute
	checkpointRetry    = 10 * time.Second
	closeTimeout       = time.Second // after which the last checkpoint of a store that closes begins no other transaction
	maxNamedKeys       = 10          // keys in a log line
	closeChunkFactor   = 16          // as many times the records and bytes are in one of those
)

// checkpointer moves the contents of the log's closed segments into the database: when the log is longer than the database plus a
// margin, when nothing was committed for a minute, and when the store closes. It may be interrupted anywhere: until its last
// transaction moves the position, a restart applies the same segments again.
//
// Its transactions are small, and it pauses after each for as long as it took, because commits share the disk with it. Commits wait
// for it only if the log grows too long (see hold).
type checkpointer struct {
	s    *Store
	wake chan struct{}
	stop chan struct{}
	done chan struct{} // closed when it has ended
	size atomic.Int64  // of the database

	mu      sync.Mutex
	stepped sync.Cond // a step was made, or none will be
	steps   int       // transactions
	working bool      // a checkpoint runs, or will begin at once
	failing bool
}

var errStopped = errors.New("the store is closing")

func newCheckpointer(s *Store) *checkpointer {
	c := &checkpointer{s: s, wake: make(chan struct{}, 1), stop: make(chan struct{}), done: make(chan struct{})}
	c.stepped.L = &c.mu
	c.measure()
	if s.opts.ReadOnly {
		close(c.done)
		return c
	}
	c.consider()
	go c.run()
	return c
}

func (c *checkpointer) measure() {
	_ = c.s.db.View(func(tx *bbolt.Tx) error { c.size.Store(tx.Size()); return nil })
}

// limit is how long the log may be.
func (c *checkpointer) limit() int64 { return c.size.Load() + c.s.opts.slack }

// consider starts a checkpoint if the log is too long.
func (c *checkpointer) consider() {
	if c.s.log.Size() <= c.limit() {
		return
	}
	c.mu.Lock()
	c.working = true
	c.mu.Unlock()
	select {
	case c.wake <- struct{}{}:
	default:
	}
}

// hold makes a commit wait for one transaction of a checkpoint while the log is twice as long as it should be, so that the log
// doesn't grow without bound. It doesn't wait while checkpoints fail.
func (c *checkpointer) hold() {
	if c.s.log.Size() <= 2*c.limit() {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for steps := c.steps; c.working && !c.failing && steps == c.steps; {
		c.stepped.Wait()
	}
}

// run makes checkpoints until the store closes.
func (c *checkpointer) run() {
	defer close(c.done)
	tick := time.NewTicker(idleInterval)
	defer tick.Stop()
	var commits uint64
	for {
		var err error
		select {
		case <-c.stop:
			return
		case <-c.wake:
			err = c.work(c.shorten)
		case <-tick.C:
			now := c.s.commits.Load()
			if now == commits {
				err = c.work(c.finish)
			}
			commits = now
		}
		if err != nil && !c.rest(checkpointRetry) {
			return
		}
	}
}

// work makes checkpoints, and logs the first failure and the first success after it.
func (c *checkpointer) work(checkpoints func() error) error {
	c.note(true, nil)
	err := checkpoints()
	switch was := c.note(false, err); {
	case errors.Is(err, errStopped):
	case err != nil && !was:
		c.s.opts.Log.Error().Err(err).Str("database", c.s.file().Path).Msg("no checkpoint of the node's tree: its log grows; trying again")
	case err == nil && was:
		c.s.opts.Log.Info().Msg("checkpoints of the node's tree again")
	}
	return err
}

func (c *checkpointer) note(working bool, err error) (failed bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	failed = c.failing
	c.working = working
	if !working && !errors.Is(err, errStopped) {
		c.failing = err != nil
	}
	c.stepped.Broadcast()
	return failed
}

// rest waits, unless the store closes.
func (c *checkpointer) rest(d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-c.stop:
		return false
	case <-timer.C:
		return true
	}
}

// shorten makes checkpoints until the log is short enough.
func (c *checkpointer) shorten() error {
	for c.s.log.Size() > c.limit() {
		if more, err := c.pass(1, c.pause); err != nil || !more {
			return err
		}
	}
	return nil
}

// pause leaves the disk to commits for a while, unless the log is already too long.
func (c *checkpointer) pause(took time.Duration) error {
	if c.s.log.Size() > 2*c.limit() {
		took = 0
	}
	if !c.rest(took) {
		return errStopped
	}
	return nil
}

// finish moves all that is in the log.
func (c *checkpointer) finish() error { return c.empty(1, c.pause) }

func (c *checkpointer) empty(chunk int, pause func(time.Duration) error) error {
	if err := c.s.log.Cut(); err != nil {
		return err
	}
	for {
		if more, err := c.pass(chunk, pause); err != nil || !more {
			return err
		}
	}
}

// close ends the checkpoint that is under way, and makes a last one.
func (c *checkpointer) close() {
	if c.s.opts.ReadOnly {
		return
	}
	close(c.stop)
	<-c.done
	if c.failing {
		return
	}
	end := time.Now().Add(closeTimeout)
	_ = c.empty(closeChunkFactor, func(time.Duration) error { // after an error the next start goes on from the log
		if time.Now().After(end) {
			return errStopped
		}
		return nil
	})
}

// pass moves closed segments, as many as fit in memory, and reports whether there were any.
// Its transactions are chunk times the usual size, with a pause between them.
// A segment that can't be removed is in the database all the same.
func (c *checkpointer) pass(chunk int, pause func(time.Duration) error) (more bool, err error) {
	oldest, newest := c.s.log.Segments()
	if oldest == newest {
		return false, nil
	}
	if err := c.s.heldFile.CheckInPlace(); err != nil {
		return false, err
	}
	var all changes
	end, err := c.s.gather(&all, oldest, newest-1, maxCheckpointBytes)
	if err != nil {
		c.s.opts.Checkpointed(0, 0, err)
		return false, err
	}
	defer c.measure()
	chunks := all.chunks(chunk*c.s.opts.chunk, chunk*maxChunk)
	last := len(chunks) - 1
	for i, chunk := range chunks[:last] {
		took, err := c.write(checkpointTx{changes: &all, items: chunk, first: i == 0})
		if err == nil {
			err = pause(took)
		}
		if err != nil {
			return false, err
		}
	}
	if _, err := c.write(checkpointTx{changes: &all, items: chunks[last], first: last == 0, position: end - 1}); err != nil {
		return false, err
	}
	c.s.trim.Lock()
	defer c.s.trim.Unlock()
	return true, c.s.log.Retire(end)
}

// keyChange is a key that changed.
type keyChange struct {
	kind byte
	key  string
	body []byte // nil: deleted
}

// chunks sorts the changes in the database's order, and divides them into transactions.
func (c *changes) chunks(records, most int) (list [][]keyChange) {
	var items []keyChange
	for kind, keys := range c.keys {
		for key, body := range keys {
			items = append(items, keyChange{byte(kind), key, body})
		}
	}
	slices.SortFunc(items, func(a, b keyChange) int {
		if a.kind != b.kind {
			return int(a.kind) - int(b.kind)
		}
		return strings.Compare(a.key, b.key)
	})
	from, bytes := 0, 0
	for i, it := range items {
		if i-from == records || bytes > most {
			list = append(list, items[from:i])
			from, bytes = i, 0
		}
		bytes += len(it.key) + len(it.body)
	}
	return append(list, items[from:])
}

// checkpointTx is one transaction of a checkpoint.
type checkpointTx struct {
	*changes
	items    []keyChange
	first    bool   // the first transaction, which deletes the keys of cleared kinds
	position uint64 // of the database from then on; 0: unchanged
}

func (c *checkpointer) write(w checkpointTx) (took time.Duration, err error) {
	began := time.Now()
	err = c.s.file().CatchPanics(func() error { return c.s.db.Update(w.in) })
	took = time.Since(began)
	c.s.opts.Checkpointed(took, len(w.items), err)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.steps++
	c.stepped.Broadcast()
	return took, err
}

func (w checkpointTx) in(tx *bbolt.Tx) error {
	now, err := readState(tx)
	if err != nil {
		return err
	}
	for kind, cleared := range w.cleared {
		if !cleared || !w.first {
			continue
		}
		if err := now.records.Empty(tx, buckets[kind]); err != nil {
			return err
		}
	}
	for _, it := range w.items {
		b := tx.Bucket(buckets[it.kind])
		b.FillPercent = fillPercent
		if err := it.in(b, &now.records); err != nil {
			return err
		}
	}
	if w.position != 0 {
		now.segment = w.position
	}
	return now.put(tx)
}

func (it keyChange) in(b *bbolt.Bucket, tally *boltfile.Tally) error {
	key := []byte(it.key)
	if it.body == nil {
		return tally.Delete(b, key)
	}
	return tally.Put(b, key, location(it.kind).Record(key, it.body)) // bbolt uses both slices until the transaction ends
}

// storedView is all that is stored: the database, and the changes of the log since.
type storedView struct {
	tx    *bbolt.Tx
	over  changes
	ahead uint64 // the note of numbers that may have been given; see heldChanges
}

// view calls read with what is stored, which is only valid during the call.
func (s *Store) view(read func(*storedView) error) error {
	s.trim.Lock()
	defer s.trim.Unlock()
	position, err := s.position() // a checkpoint may move it meanwhile, which changes nothing: the log has the same values
	if err != nil {
		return err
	}
	v := &storedView{}
	_, newest := s.log.Segments()
	if _, err := s.gather(&v.over, position+1, newest, 0); err != nil {
		return err
	}
	s.held.over(&v.over)
	return s.inDB(func(tx *bbolt.Tx) error {
		v.tx = tx
		return read(v)
	})
}

// gather adds the changes of the segments from first to last. If most isn't 0, it stops after the segment with which the changes have
// more than that many bytes.
func (s *Store) gather(into *changes, first, last uint64, most int) (end uint64, err error) {
	var r *wal.Reader
	defer func() { r.Close() }()
	for end = first; end <= last; end++ {
		if r, err = s.log.Read(end, r); err != nil {
			return end, err
		}
		for {
			body, at, err := r.Next()
			if errors.Is(err, io.EOF) {
				break
			}
			if err != nil {
				return end, err
			}
			if err := into.take(body); err != nil {
				return end, s.log.Damaged(at, err)
			}
		}
		if most != 0 && into.bytes > most {
			return end + 1, nil
		}
	}
	return end, nil
}

// each goes through a kind's keys.
func (v *storedView) each(kind byte, do func(key string, body []byte) error) error {
	named := func(key []byte, body []byte, err error) error {
		if err == nil {
			err = do(string(key), body)
		}
		if err != nil {
			return fmt.Errorf("%s: key %q: %w", buckets[kind], key, err)
		}
		return nil
	}
	over := v.over.keys[kind]
	if !v.over.cleared[kind] {
		err := v.tx.Bucket(buckets[kind]).ForEach(func(key, value []byte) error {
			if _, newer := over[string(key)]; newer {
				return nil
			}
			body, err := location(kind).Open(key, value)
			return named(key, body, err)
		})
		if err != nil {
			return err
		}
	}
	for key, body := range over {
		if body == nil {
			continue
		}
		if err := named([]byte(key), body, nil); err != nil {
			return err
		}
	}
	return nil
}

// Load reads everything.
func (s *Store) Load() (snap Snapshot, err error) {
	err = s.view(func(v *storedView) error {
		snap, err = s.load(v)
		return err
	})
	return snap, err
}

func (s *Store) load(v *storedView) (snap Snapshot, err error) {
	states, floor, err := v.states()
	if err != nil {
		return snap, err
	}
	if up := states[stateUp]; up != nil {
		if ahead := s.held.lost(v.ahead, up); ahead != 0 {
			up.Seq, snap.Lost = ahead, lostVersions
		}
		s.held.seq, s.held.lineage = up.Seq, up.Lineage
	}
	snap.Floor, snap.Effective = floor, make(map[string]*Effective)
	err = v.each(kindEffective, func(key string, body []byte) error {
		e := new(Effective)
		snap.Effective[key] = e
		return cbor.Unmarshal(body, e)
	})
	if err != nil {
		return snap, err
	}
	if snap.Up, err = s.loadUp(v, states[stateUp]); err != nil {
		return snap, fmt.Errorf("the map of edge-owned keys: %w", err)
	}
	if err = s.loadDown(v, states[stateDown], &snap); err != nil {
		return snap, fmt.Errorf("the map of cloud-owned keys: %w", err)
	}
	return snap, nil
}

func (v *storedView) states() (states map[string]*link.MapState, floor uint64, err error) {
	states = make(map[string]*link.MapState)
	err = v.each(kindState, func(key string, body []byte) error {
		switch key {
		case stateFloor:
			return cbor.Unmarshal(body, &floor)
		case stateAhead:
			n, used := binary.Uvarint(body)
			if v.ahead = n; used <= 0 {
				return errRecord
			}
			return nil
		}
		states[key] = new(link.MapState)
		return states[key].UnmarshalBinary(body)
	})
	return states, floor, err
}

func (s *Store) loadUp(v *storedView, state *link.MapState) (*link.Owner, error) {
	if state == nil {
		return link.NewOwner(link.Up, s.opts.Rand), nil
	}
	var damaged error
	o, err := link.RestoreOwner(link.Up, *state, v.entries(kindUp, &damaged), s.opts.Rand)
	return o, errors.Join(damaged, err)
}

// loadDown restores the map of cloud-owned keys, without the Secrets that can't be decrypted.
func (s *Store) loadDown(v *storedView, state *link.MapState, snap *Snapshot) (err error) {
	s.unreadable = nil
	if state == nil {
		snap.Down = link.NewReplica(link.Down)
		return nil
	}
	var damaged error
	readable := func(yield func(link.Entry) bool) {
		for e := range v.entries(kindDown, &damaged) {
			if isSecret(e.Key) {
				if snap.Secrets++; !s.unseal(&e) {
					s.unreadable = append(s.unreadable, e.Key)
					continue
				}
			}
			if !yield(e) {
				return
			}
		}
	}
	snap.Down, err = link.RestoreReplica(link.Down, *state, readable)
	if snap.Unreadable = len(s.unreadable); snap.Unreadable > 0 && !s.opts.ReadOnly {
		s.opts.Log.Warn().Strs("keys", s.unreadable[:min(snap.Unreadable, maxNamedKeys)]).Int("count", snap.Unreadable).
			Msg("stored Secrets can't be decrypted with the key in the data directory, and are forgotten: the hub sends them again")
	}
	return errors.Join(damaged, err)
}

var errStopIteration = errors.New("enough")

// entries walks a map's entries; the first damaged one ends it and is reported in bad.
func (v *storedView) entries(of byte, bad *error) iter.Seq[link.Entry] {
	return func(yield func(link.Entry) bool) {
		err := v.each(of, func(key string, body []byte) error {
			e, err := link.ParseEntry(key, body)
			if err == nil && !yield(e) {
				err = errStopIteration
			}
			return err
		})
		if !errors.Is(err, errStopIteration) {
			*bad = err
		}
	}
}
