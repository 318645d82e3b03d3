// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"bytes"
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"iter"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"

	"github.com/edgebus/edgebus/broker/journal"
	"github.com/edgebus/edgebus/broker/ordered"
	"github.com/edgebus/edgebus/broker/sealed"
	"github.com/edgebus/edgebus/test/orderedtest"
)

const testSilence = 200 * time.Millisecond

// answersFirst is left out by a test's hub itself: commits are answered before they are in the log.
const answersFirst leftOut = 100

// heldReads is a log whose readers get nothing while it is held.
type heldReads struct {
	ordered.Log
	mu   sync.Mutex
	held chan struct{} // nil: it isn't
}

func (l *heldReads) hold() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.held = make(chan struct{})
}

func (l *heldReads) release() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.held != nil {
		close(l.held)
		l.held = nil
	}
}

func (l *heldReads) Read(ctx context.Context, after ordered.Position) iter.Seq2[ordered.Frame, error] {
	return func(yield func(ordered.Frame, error) bool) {
		for f, err := range l.Log.Read(ctx, after) {
			l.mu.Lock()
			held := l.held
			l.mu.Unlock()
			if held != nil {
				select {
				case <-held:
				case <-ctx.Done():
					err = ctx.Err()
				}
			}
			if !yield(f, err) {
				return
			}
		}
	}
}

// testHub is a member with its journal, which is started again when it ends.
type testHub struct {
	t        *testing.T
	dir      string
	name     string
	log      ordered.Log
	key      sealed.Key
	ablation leftOut
	now      func() time.Time
	silence  time.Duration // 0: testSilence

	turning sync.Mutex // held while it is started or killed
	mu      sync.Mutex
	member  *Member
	journal *journal.Journal
	owning  bool
	failed  error
	ended   chan struct{}
}

func newHub(t *testing.T, log ordered.Log, key sealed.Key, name string) *testHub {
	h := &testHub{t: t, dir: t.TempDir(), name: name, log: log, key: key}
	j, err := journal.Open(journal.Options{Dir: h.dir, Log: zerolog.Nop()})
	require.NoError(t, err)
	require.NoError(t, j.Sync([]journal.RecordChange{journal.Origin{Log: log.ID()}.Change()}))
	require.NoError(t, j.Close())
	return h
}

func (h *testHub) start() {
	h.turning.Lock()
	defer h.turning.Unlock()
	h.startLocked()
}

func (h *testHub) startLocked() {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.member != nil {
		return
	}
	var m *Member
	m = New(Options{
		Log: h.log, Key: h.key, Name: h.name, Silence: cmp.Or(h.silence, testSilence), Logger: zerolog.Nop(), ablation: h.ablation, Now: h.now,
		Lost: func(error) { go h.over(m) },
	})
	commit := m.Commit
	if h.ablation == answersFirst {
		commit = func(ctx context.Context, body []byte) (journal.Origin, error) {
			if m.Owns() {
				go func(body []byte) { _, _ = m.Commit(ctx, body) }(slices.Clone(body))
				return originOf(h.log.ID(), m.log.Last()), nil
			}
			return m.Commit(ctx, body)
		}
	}
	j, err := journal.Open(journal.Options{Dir: h.dir, Log: zerolog.Nop(), Shared: commit})
	if err != nil {
		h.t.Error(err)
		return
	}
	ended := make(chan struct{})
	h.member, h.journal, h.owning, h.ended = m, j, false, ended
	go func() {
		defer close(ended)
		if err := m.Stand(context.Background(), j); err != nil {
			h.mu.Lock()
			defer h.mu.Unlock()
			if h.member == m { // it wasn't killed
				h.failed = err
			}
			return
		}
		h.mu.Lock()
		h.owning = h.member == m
		h.mu.Unlock()
		<-m.ctx.Done()
	}()
}

// over is what the program does when the log is lost: it begins anew.
func (h *testHub) over(m *Member) {
	h.turning.Lock()
	defer h.turning.Unlock()
	h.mu.Lock()
	mine := h.member == m
	h.mu.Unlock()
	if mine {
		h.killLocked()
		h.startLocked()
	}
}

// kill ends the hub, as far as a process of its own can do that.
func (h *testHub) kill() {
	h.turning.Lock()
	defer h.turning.Unlock()
	h.killLocked()
}

func (h *testHub) killLocked() {
	h.mu.Lock()
	m, j, ended := h.member, h.journal, h.ended
	h.member, h.owning = nil, false
	h.mu.Unlock()
	if m == nil {
		return
	}
	_ = m.Close()
	<-ended
	_ = j.Close()
}

func (h *testHub) owner() (m *Member, j *journal.Journal) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.owning {
		return h.member, h.journal
	}
	return nil, nil
}

// values are what the journal has when the hub is stopped.
func (h *testHub) values() map[uint64]string {
	j, err := journal.Open(journal.Options{Dir: h.dir, Log: zerolog.Nop(), ReadOnly: true})
	require.NoError(h.t, err)
	defer j.Close()
	all := make(map[uint64]string)
	require.NoError(h.t, j.Table(0).Load(func(id uint64, value []byte) error {
		all[id] = string(value)
		return nil
	}))
	return all
}

// testCluster is hubs over an engine in memory.
type testCluster struct {
	t      *testing.T
	memory *orderedtest.MemoryLog
	key    sealed.Key
	hubs   []*testHub

	mu    sync.Mutex
	acked map[uint64]string
}

func newCluster(t *testing.T, hubs int, what leftOut) *testCluster {
	c := &testCluster{t: t, memory: orderedtest.NewMemory(), key: sealed.NewKey(), acked: make(map[uint64]string)}
	for i := range hubs {
		h := newHub(t, &heldReads{Log: c.memory}, c.key, fmt.Sprint("hub-", i))
		h.ablation = what
		c.hubs = append(c.hubs, h)
	}
	t.Cleanup(func() {
		for _, h := range c.hubs {
			h.kill()
		}
	})
	return c
}

func (c *testCluster) awaitOwner(among ...*testHub) *testHub {
	var owner *testHub
	require.Eventually(c.t, func() bool {
		for _, h := range among {
			if m, _ := h.owner(); m != nil && m.Owns() {
				owner = h
				return true
			}
		}
		return false
	}, 30*time.Second, 5*time.Millisecond)
	return owner
}

// put commits a record at a hub, and notes it if that was acknowledged.
func (c *testCluster) put(h *testHub, id uint64) error {
	_, j := h.owner()
	if j == nil {
		return ErrLost
	}
	value := fmt.Sprintf("<%d at %s>", id, h.name)
	err := j.Sync([]journal.RecordChange{{ID: id, Value: []byte(value)}})
	if err == nil {
		c.mu.Lock()
		c.acked[id] = value
		c.mu.Unlock()
	}
	return err
}

// findings are what is wrong at the end: hubs are let read all there is, and stopped.
func (c *testCluster) findings() (found []string) {
	c.memory.Inject(nil)
	for _, h := range c.hubs {
		h.start()
	}
	owner := c.awaitOwner(c.hubs...)
	require.Eventually(c.t, func() bool { return c.put(c.awaitOwner(c.hubs...), 1<<30) == nil }, 30*time.Second, time.Millisecond, owner.name)
	_, end, err := c.memory.Bounds(c.t.Context())
	require.NoError(c.t, err)
	for _, h := range c.hubs {
		require.Eventually(c.t, func() bool {
			h.mu.Lock()
			defer h.mu.Unlock()
			return h.failed != nil || h.member != nil && h.member.At() >= end
		}, 30*time.Second, 5*time.Millisecond)
		if h.failed != nil {
			found = append(found, fmt.Sprint(h.name, " stopped: ", h.failed))
		}
	}
	for _, h := range c.hubs {
		h.kill()
	}
	var all []byte
	_, end, err = c.memory.Bounds(c.t.Context())
	require.NoError(c.t, err)
	for f, err := range sealed.New(c.memory, c.key, sealed.Mark{}).Follow(c.t.Context(), sealed.Mark{}) {
		require.NoError(c.t, err)
		all = append(all, f.Body...)
		if f.At == end {
			break
		}
	}
	first := c.hubs[0].values()
	for id, value := range c.acked {
		if n := bytes.Count(all, []byte(value)); n > 1 {
			found = append(found, fmt.Sprint(value, " is stored ", n, " times"))
		}
		for _, h := range c.hubs {
			if got := h.values()[id]; got != value {
				found = append(found, fmt.Sprintf("%s has %q of %q, which was acknowledged", h.name, got, value))
			}
		}
	}
	for _, h := range c.hubs[1:] {
		if values := h.values(); fmt.Sprint(values) != fmt.Sprint(first) {
			found = append(found, h.name+" has other records than "+c.hubs[0].name)
		}
	}
	return found
}

func (c *testCluster) startAll() *testHub {
	for _, h := range c.hubs {
		h.start()
	}
	return c.awaitOwner(c.hubs...)
}

func (c *testCluster) others(than *testHub) (list []*testHub) {
	for _, h := range c.hubs {
		if h != than {
			list = append(list, h)
		}
	}
	return list
}

func TestAnotherHubTakesTheLogOfASilentOneWithAllThatIsInIt(t *testing.T) {
	c := newCluster(t, 3, leftOutNone)
	owner := c.startAll()
	for id := range uint64(50) {
		require.NoError(t, c.put(owner, id+1))
	}
	owner.kill()
	next := c.awaitOwner(c.others(owner)...)
	require.NoError(t, c.put(next, 51))
	require.Empty(t, c.findings())
}

func TestAHubThatStopsHandsTheLogOverAtOnce(t *testing.T) {
	c := newCluster(t, 2, leftOutNone)
	for _, h := range c.hubs {
		h.start()
	}
	owner := c.awaitOwner(c.hubs...)
	m, _ := owner.owner()
	m.Release(t.Context())
	began := time.Now()
	c.awaitOwner(c.others(owner)...)
	t.Log("taken over after", time.Since(began))
	require.False(t, m.Owns())
}

// What keeps a hub from taking the log may be over in a moment: it isn't another silence until it does.
func TestAHubThatMayNotTakeTheLogAsksAgainSoon(t *testing.T) {
	c := newCluster(t, 2, leftOutNone)
	c.hubs[0].start()
	first := c.awaitOwner(c.hubs[0])
	h, asked := c.hubs[1], make(chan struct{}, 1000)
	m := New(Options{Log: h.log, Key: h.key, Name: h.name, Silence: time.Hour, Logger: zerolog.Nop(), Lost: func(error) {}, MayTake: func(context.Context) error {
		asked <- struct{}{}
		if len(asked) < 3 {
			return errors.New("a server has not answered")
		}
		return nil
	}})
	j, err := journal.Open(journal.Options{Dir: h.dir, Log: zerolog.Nop(), Shared: m.Commit})
	require.NoError(t, err)
	t.Cleanup(func() { _ = m.Close(); _ = j.Close() })
	stood := make(chan error, 1)
	go func() { stood <- m.Stand(t.Context(), j) }()
	owner, _ := first.owner()
	owner.Release(t.Context())
	select {
	case err := <-stood:
		require.NoError(t, err)
		require.Equal(t, h.name, m.Owner())
	case <-time.After(time.Minute):
		t.Fatal("its silence is an hour, but the owner has said that it stops")
	}
}

// An owner whose process was paused has lost the log when it goes on: it answers nobody.
func TestAPausedOwnerAcknowledgesNothingAfterOthersTookTheLog(t *testing.T) {
	log, key := orderedtest.NewMemory(), sealed.NewKey()
	h, other := newHub(t, log, key, "paused"), newHub(t, log, key, "other")
	h.start()
	t.Cleanup(h.kill)
	c := &testCluster{t: t, acked: make(map[uint64]string)}
	c.awaitOwner(h)
	m, j := h.owner()
	m.mu.Lock() // as if it were paused: it appends nothing
	other.start()
	t.Cleanup(other.kill)
	require.Eventually(t, func() bool { o, _ := other.owner(); return o != nil }, 30*time.Second, time.Millisecond)
	require.False(t, m.Owns(), "by the clock")
	h.mu.Lock()
	h.member = nil // it isn't started again
	h.mu.Unlock()
	answered := make(chan error, 1)
	go func() { answered <- j.Sync([]journal.RecordChange{{ID: 1, Value: []byte("late")}}) }()
	m.mu.Unlock()
	require.Eventually(t, func() bool { return state(m.state.Load()) == stateLost }, 30*time.Second, time.Millisecond)
	require.Empty(t, answered, "neither yes nor no")
	require.NoError(t, m.Close())
	require.ErrorIs(t, <-answered, ErrLost)
	require.NoError(t, j.Close())
}

// What became of an append isn't known: its answer was lost, it comes late, or never.
func TestAnUnknownOutcomeIsFoundOut(t *testing.T) {
	for name, fault := range map[string]orderedtest.AppendFault{"lost answer": orderedtest.LostAnswer, "late": orderedtest.LateRequest, "lost": orderedtest.LostRequest} {
		t.Run(name, func(t *testing.T) { require.Empty(t, unknownOutcomes(t, fault, leftOutNone)) })
	}
	require.Contains(t, fmt.Sprint(unknownOutcomes(t, orderedtest.LostAnswer, noBarrier)), "times", "without the barrier something is stored twice")
}

func unknownOutcomes(t *testing.T, fault orderedtest.AppendFault, what leftOut) []string {
	c := newCluster(t, 2, what)
	owner := c.startAll()
	for id := range uint64(5) {
		var once sync.Once
		c.memory.Inject(func([][]byte) (f orderedtest.AppendFault) {
			once.Do(func() { f = fault })
			return f
		})
		late := time.AfterFunc(20*time.Millisecond, c.memory.Deliver)
		_ = c.put(owner, id+1)
		late.Stop()
		c.memory.Deliver()
		owner = c.awaitOwner(c.hubs...)
	}
	return c.findings()
}

// A standby that hasn't read all of the log can't take it before it has.
func TestWhoTakesTheLogHasReadIt(t *testing.T) {
	require.Empty(t, takenUnread(t, leftOutNone))
	require.Contains(t, fmt.Sprint(takenUnread(t, takesUnread)), "was acknowledged", "taken at its end the log's records are missing")
}

func takenUnread(t *testing.T, what leftOut) []string {
	c := newCluster(t, 2, what)
	c.hubs[0].start()
	owner := c.awaitOwner(c.hubs[0])
	c.hubs[1].start()
	require.NoError(t, c.put(owner, 1))
	standby := c.others(owner)[0]
	reads := standby.log.(*heldReads)
	reads.hold()
	if c.put(owner, 2) != nil { // the machine is so busy that the standby took the log before
		reads.release()
		return takenUnread(t, what)
	}
	owner.kill()
	time.AfterFunc(3*testSilence, reads.release)
	c.awaitOwner(standby)
	return c.findings()
}

// What is acknowledged is in the log before.
func TestWhatIsAcknowledgedIsInTheLog(t *testing.T) {
	require.Empty(t, killedBeforeItIsStored(t, leftOutNone))
	require.Contains(t, fmt.Sprint(killedBeforeItIsStored(t, answersFirst)), "was acknowledged")
}

// killedBeforeItIsStored has a hub write something while nothing reaches the log, and be killed.
func killedBeforeItIsStored(t *testing.T, what leftOut) []string {
	c := newCluster(t, 2, what)
	owner := c.startAll()
	tried := make(chan struct{}, 1000)
	c.memory.Inject(func([][]byte) orderedtest.AppendFault {
		select {
		case tried <- struct{}{}:
		default:
		}
		return orderedtest.LostRequest
	})
	answered := make(chan struct{})
	go func() {
		defer close(answered)
		_ = c.put(owner, 1)
	}()
	<-tried
	if what == answersFirst {
		<-answered
	}
	owner.kill()
	<-answered
	return c.findings()
}

// Whatever the log answers and whoever is killed, what was acknowledged is in each hub, once.
func TestHubsAreKilledWhileTheLogAnswersAsItLikes(t *testing.T) {
	seeds, took := 4, 2*time.Second
	if n, err := strconv.Atoi(os.Getenv("ROUNDS")); err == nil && os.Getenv("ALL_TESTS") != "" {
		seeds = n
	}
	first := uint64(time.Now().UnixNano())
	if n, err := strconv.ParseUint(os.Getenv("SEED"), 10, 64); err == nil {
		first, seeds = n, 1
	}
	for i := range uint64(seeds) {
		t.Run(strconv.FormatUint(first+i, 10), func(t *testing.T) {
			t.Parallel()
			require.Empty(t, faultyRun(t, first+i, took))
		})
	}
}

func faultyRun(t *testing.T, seed uint64, took time.Duration) []string {
	c := newCluster(t, 3, leftOutNone)
	c.startAll()
	dice := rand.New(rand.NewPCG(seed, 1))
	var rolling sync.Mutex
	appendFaults, kills := 0, 0
	c.memory.Inject(func([][]byte) (f orderedtest.AppendFault) {
		rolling.Lock()
		defer rolling.Unlock()
		switch dice.IntN(20) {
		case 0:
			f = orderedtest.LostAnswer
		case 1:
			f = orderedtest.LostRequest
		case 2:
			f = orderedtest.LateRequest
		default:
			return orderedtest.None
		}
		appendFaults++
		return f
	})
	ctx, stop := context.WithTimeout(t.Context(), took)
	defer stop()
	var work sync.WaitGroup
	for client := range uint64(4) {
		work.Go(func() {
			for n := uint64(1); ctx.Err() == nil; n++ {
				for i, h := range c.hubs {
					if m, _ := h.owner(); m != nil {
						_ = c.put(h, client<<32|n<<2|uint64(i)) // each once: a later one may be there, and have had no answer
					}
				}
				time.Sleep(time.Millisecond) // a client's own pace
			}
		})
	}
	faults := rand.New(rand.NewPCG(seed, 2))
	for ctx.Err() == nil {
		time.Sleep(time.Duration(faults.IntN(200)) * time.Millisecond) // what is tried is any moment
		c.memory.Deliver()
		if h := c.hubs[faults.IntN(3)]; faults.IntN(4) == 0 {
			h.kill()
			h.start()
			kills++
		}
	}
	for _, h := range c.hubs { // also what waits for an answer
		h.kill()
	}
	work.Wait()
	c.memory.Deliver()
	t.Log(len(c.acked), "acknowledged,", appendFaults, "appends without a true answer,", kills, "hubs killed")
	require.NotEmpty(t, c.acked)
	return c.findings()
}

// A log that was cut back, made anew or changed is refused.
func TestALogThatIsNotTheOneThatWasReadIsRefused(t *testing.T) {
	for name, spoil := range map[string]func(*orderedtest.MemoryLog){
		"cut back": func(m *orderedtest.MemoryLog) {
			m.Change(func(f [][]byte) [][]byte { return f[:len(f)-2] })
		},
		"made anew": func(m *orderedtest.MemoryLog) { _ = m.Renew() },
		"cut back, and with other frames": func(m *orderedtest.MemoryLog) {
			m.Change(func(f [][]byte) [][]byte { return append(f[:len(f)-1:len(f)-1], f[0], f[1]) })
		},
	} {
		t.Run(name, func(t *testing.T) {
			c := newCluster(t, 1, leftOutNone)
			h := c.startAll()
			for id := range uint64(3) {
				require.NoError(t, c.put(h, id+1))
			}
			h.kill()
			spoil(c.memory)
			h.start()
			require.Eventually(t, func() bool { h.mu.Lock(); defer h.mu.Unlock(); return h.failed != nil }, 30*time.Second, time.Millisecond)
			t.Log(h.failed)
			m, _ := h.owner()
			require.Nil(t, m)
		})
	}
}

func TestAFrameOfAnotherVersionStopsAHub(t *testing.T) {
	_, err := decodeFrame(frame{kind: 9, body: []byte("x")}.encode())
	require.ErrorContains(t, err, "upgrade this hub")
	_, err = decodeFrame(binary.LittleEndian.AppendUint64(nil, 1))
	require.Error(t, err)
}

// A hub that has taken the log may need longer than the silence until it serves.
func TestWhoHasTakenTheLogIsHeardBeforeItServes(t *testing.T) {
	c := newCluster(t, 2, leftOutNone)
	h := c.hubs[0]
	m := New(Options{Log: h.log, Key: h.key, Name: h.name, Silence: testSilence, Logger: zerolog.Nop(), Lost: func(error) {}})
	j, err := journal.Open(journal.Options{Dir: h.dir, Log: zerolog.Nop(), Shared: m.Commit})
	require.NoError(t, err)
	t.Cleanup(func() { _ = m.Close(); _ = j.Close() })
	require.NoError(t, m.Stand(t.Context(), j))
	c.hubs[1].start()
	_, end, err := c.memory.Bounds(t.Context())
	require.NoError(t, err)
	require.Eventually(t, func() bool {
		_, now, err := c.memory.Bounds(t.Context())
		return err == nil && now >= end+16
	}, 30*time.Second, time.Millisecond)
	require.True(t, m.Owns())
}

// A hub that starts learns who serves also while the log has nothing but writes: it is not ready before.
func TestAHubThatStartsLearnsTheOwnerWhileThatWrites(t *testing.T) {
	c := newCluster(t, 2, leftOutNone)
	for _, h := range c.hubs {
		h.silence = 2 * time.Second // an owner that is idle for a quarter of it is heard
	}
	owner := c.startAll()
	late := c.others(owner)[0]
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		for id := uint64(1); ; id++ {
			select {
			case <-stop:
				return
			default:
				_ = c.put(owner, id)
			}
		}
	}()
	defer func() { close(stop); <-stopped }()
	for _, what := range []func(*Member) bool{
		func(m *Member) bool { return m.At() > 100 }, // it has more than what began with the owner
		func(m *Member) bool { return m.Owner() == owner.name },
	} {
		late.kill()
		late.start()
		require.Eventually(t, func() bool {
			late.mu.Lock()
			defer late.mu.Unlock()
			return what(late.member)
		}, 30*time.Second, time.Millisecond)
	}
}

// What shows how far a hub is never waits for an append.
func TestHowFarAHubIsIsSaidWhileTheLogDoesNotAnswer(t *testing.T) {
	c := newCluster(t, 1, leftOutNone)
	h := c.startAll()
	require.NoError(t, c.put(h, 1))
	m, _ := h.owner()
	c.memory.Inject(func([][]byte) orderedtest.AppendFault { return orderedtest.LostRequest })
	require.Eventually(t, func() bool { return !m.Owns() }, 30*time.Second, time.Millisecond)
	said := make(chan ordered.Position, 1)
	go func() { said <- m.At() }()
	select {
	case at := <-said:
		require.NotZero(t, at)
	case <-time.After(10 * time.Second):
		t.Fatal("it waits for the append")
	}
}

// doubtfulLog is a log that was cut back, and whose engine believes that only after a while.
type doubtfulLog struct {
	ordered.Log
	doubts time.Duration
}

func (l *doubtfulLog) Read(ctx context.Context, after ordered.Position) iter.Seq2[ordered.Frame, error] {
	return func(yield func(ordered.Frame, error) bool) {
		if _, end, err := l.Bounds(ctx); err == nil && after > end {
			select {
			case <-time.After(l.doubts):
			case <-ctx.Done():
				yield(ordered.Frame{}, ctx.Err())
				return
			}
		}
		l.Log.Read(ctx, after)(yield)
	}
}

func TestALogThatWasCutBackIsRefusedWheneverTheEngineBelievesIt(t *testing.T) {
	memory, key := orderedtest.NewMemory(), sealed.NewKey()
	h := newHub(t, &doubtfulLog{memory, lookTime + 200*time.Millisecond}, key, "hub")
	c := &testCluster{t: t, acked: make(map[uint64]string)}
	h.start()
	t.Cleanup(h.kill)
	c.awaitOwner(h)
	require.NoError(t, c.put(h, 1))
	memory.Change(func(f [][]byte) [][]byte { return f[:1] })
	require.Eventually(t, func() bool { h.mu.Lock(); defer h.mu.Unlock(); return h.failed != nil }, 30*time.Second, time.Millisecond)
	require.ErrorIs(t, h.failed, ordered.ErrBack)
}

// The frames of an owner that nobody sends anything may be trimmed up to where it says that it is: after a kill it goes on behind them.
func TestAnIdleOwnersJournalIsNotFarBehind(t *testing.T) {
	c := newCluster(t, 1, leftOutNone)
	h := c.startAll()
	m, j := h.owner()
	at := func() ordered.Position {
		o, is, err := journal.CopyIn(j).Origin()
		require.NoError(t, err)
		require.True(t, is)
		return o.At
	}
	before := at()
	m.mu.Lock()
	m.idle = idleFrames - 3
	m.mu.Unlock()
	require.Eventually(t, func() bool { return at() > before }, 30*time.Second, time.Millisecond)
	require.Empty(t, c.findings())
}

// fullLog is a journal's log on a disk that gets full.
type fullLog struct {
	ordered.Log
	full atomic.Bool
}

func (l *fullLog) Append(ctx context.Context, after ordered.Position, frames ...[]byte) (ordered.Position, error) {
	if l.full.Load() {
		return 0, syscall.ENOSPC
	}
	return l.Log.Append(ctx, after, frames...)
}

// What is in the log and can't be stored here is answered by nobody who owns the log; who stands by says so, and ends.
func TestAHubThatCannotStoreWhatIsInTheLogIsNoMember(t *testing.T) {
	memory, key := orderedtest.NewMemory(), sealed.NewKey()
	open := func(h *testHub) (*Member, *journal.Journal, *fullLog, chan error) {
		lost, disk := make(chan error, 1), &fullLog{}
		m := New(Options{Log: memory, Key: key, Name: h.name, Silence: testSilence, Logger: zerolog.Nop(), Lost: func(err error) { lost <- err }})
		j, err := journal.Open(journal.Options{
			Dir: h.dir, Log: zerolog.Nop(), Shared: m.Commit, Committed: func(_ time.Duration, _ int, err error) { m.CheckStored(err) },
			Through: func(l ordered.Log) ordered.Log { disk.Log = l; return disk },
		})
		require.NoError(t, err)
		t.Cleanup(func() { _ = m.Close(); _ = j.Close() })
		return m, j, disk, lost
	}
	owner, ownersJournal, ownersDisk, lost := open(newHub(t, memory, key, "owner"))
	require.NoError(t, owner.Stand(t.Context(), ownersJournal))
	standby, standbysJournal, standbysDisk, _ := open(newHub(t, memory, key, "standby"))
	standbysDisk.full.Store(true)
	stood := make(chan error, 1)
	go func() { stood <- standby.Stand(t.Context(), standbysJournal) }()
	require.NoError(t, ownersJournal.Sync([]journal.RecordChange{{ID: 1, Value: []byte("x")}}))
	select {
	case err := <-stood:
		require.ErrorIs(t, err, syscall.ENOSPC)
	case <-time.After(10 * time.Second):
		t.Fatal("it stands by, and stores nothing")
	}

	ownersDisk.full.Store(true)
	answered := make(chan error, 1)
	go func() { answered <- ownersJournal.Sync([]journal.RecordChange{{ID: 2, Value: []byte("y")}}) }()
	require.ErrorIs(t, <-lost, syscall.ENOSPC)
	require.Empty(t, answered)
}
