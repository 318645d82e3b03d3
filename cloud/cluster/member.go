// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rs/zerolog"

	"github.com/edgebus/edgebus/broker/journal"
	"github.com/edgebus/edgebus/broker/ordered"
	"github.com/edgebus/edgebus/broker/sealed"
)

// Options are what a member is made from.
type Options struct {
	Log     ordered.Log // the engine
	Key     sealed.Key
	Name    string // of this hub, as the others show it
	Address string // at which the others reach it
	// Says is what the others are to know of this hub before it appends anything else as the owner; nil: nothing. It has no line break.
	Says    func() string
	Silence time.Duration // after which others take the log
	// Lost is called once, when another one owns the log or this hub can't keep what is in it: nothing may be answered any more, and nothing that
	// waits for a commit is. It must not block.
	Lost func(error)
	// MayTake says why this hub must not own the log as things are; nil: it always may.
	MayTake func(context.Context) error
	Logger  zerolog.Logger
	Clock   func() time.Duration // nil: the host's
	Now     func() time.Time     // the time of day; nil: the host's

	ablation leftOut // in tests
}

// leftOut is what a test leaves out, to show that it would be missed.
type leftOut int

const (
	leftOutNone leftOut = iota
	noBarrier           // after an unknown outcome the frame is appended behind what is there
	takesUnread         // the log is taken at its end, and not at what was read
)

// Errors of a member.
var (
	// ErrLost is the outcome of commits after another hub took the log.
	ErrLost = errors.New("another hub owns the log")
	// ErrNoMember is the error for a journal that is no copy of the log.
	ErrNoMember = errors.New("the data is of no cluster: `cloudhub cluster init`, or `import` if there is any, makes one with it")
)

// state is what a member is.
type state int32

const (
	stateStandby state = iota
	stateOwner
	stateLost
)

// Member is a hub's part in the cluster. Its journal's groups go through Commit.
type Member struct {
	o      Options
	log    *sealed.Log
	writer uint64
	ctx    context.Context //nolint:containedctx // of what is appended: a journal's commit has none
	cancel context.CancelFunc

	state atomic.Int32
	fresh atomic.Int64 // until when, by the clock, nobody else can own the log
	owner atomic.Pointer[logOwner]
	said  atomic.Pointer[string]
	heard atomic.Int64 // when a frame was read or appended last
	epoch atomic.Uint64
	at    atomic.Uint64 // the mark's position, for who doesn't wait for an append

	logTime atomic.Int64 // the latest time in the log
	copy    atomic.Pointer[journal.Journal]

	mu       sync.Mutex  // held while an owner appends, however long that takes
	mark     sealed.Mark // what was read and applied, or appended
	into     journal.LogCopy
	idle     int // frames of an owner since the last group, which say nothing
	number   uint64
	applying journal.Origin
	sent     time.Duration // when the last frame was appended
	told     time.Duration // when the last one was that says who owns the log

	waiting sync.Mutex
	renewed chan struct{} // closed with the next append
}

// New makes a member, which stands by.
func New(o Options) *Member {
	if o.Clock == nil {
		o.Clock = clock
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	m := &Member{o: o, writer: rand.Uint64(), renewed: make(chan struct{})} //nolint:gosec // G404: it tells writers apart, and keeps nobody out
	m.ctx, m.cancel = context.WithCancel(context.Background())
	m.owner.Store(&logOwner{changed: make(chan struct{})})
	m.said.Store(new(string))
	return m
}

// Close ends what waits for the log.
func (m *Member) Close() error {
	m.cancel()
	return nil
}

// Owns reports whether the log is this hub's at this moment: whatever is read now is the last that anybody was told.
func (m *Member) Owns() bool {
	return state(m.state.Load()) == stateOwner && int64(m.o.Clock()) < m.fresh.Load()
}

// AwaitOwned waits until the log is this hub's. It reports false when that is over.
func (m *Member) AwaitOwned() bool {
	for {
		m.waiting.Lock()
		renewed := m.renewed
		m.waiting.Unlock()
		if m.Owns() {
			return true
		}
		if state(m.state.Load()) != stateOwner {
			<-m.ctx.Done() // nobody is told anything by a hub that has lost the log
			return false
		}
		select {
		case <-renewed:
		case <-m.ctx.Done():
			return false
		}
	}
}

// logOwner says who owns the log.
type logOwner struct {
	name, address string
	epoch         uint64
	changed       chan struct{} // closed when it is another's
}

// Owner is the name of who owns the log, as far as this hub has read; empty: nobody has yet.
func (m *Member) Owner() string { return m.owner.Load().name }

// OwnerAddress is who owns the log and where other hubs reach that one. The channel is closed when that changes.
func (m *Member) OwnerAddress() (name, address string, changed <-chan struct{}) {
	o := m.owner.Load()
	return o.name, o.address, o.changed
}

// Said is what the owner says of itself, as far as this hub has read; an owner's is its own.
func (m *Member) Said() string { return *m.said.Load() }

// Say has the log have what an owner says of itself now. It returns when that is sure, or never.
func (m *Member) Say() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if state(m.state.Load()) == stateStandby {
		return ErrLost
	}
	return m.append(m.idleKind(), m.encodeSelf())
}

// Records is the version of what is written into the log, as far as this hub has read; 0: it has not begun to.
func (m *Member) Records() uint32 {
	if j := m.copy.Load(); j != nil {
		return journal.VersionOf(j)
	}
	return 0
}

// SetRecords has the log be of another version from here on: hubs whose programs don't know it stop.
func (m *Member) SetRecords(version uint32) error {
	j := m.copy.Load()
	if j == nil || state(m.state.Load()) != stateOwner {
		return ErrLost
	}
	return journal.SetVersion(j, version)
}

// idleKind is the kind of frames with which an owner is heard.
func (m *Member) idleKind() byte {
	if nextRecords > 0 && m.Records() >= RecordsVersion {
		return kindNext
	}
	return kindIdle
}

// encodeSelf is what an owner says of itself. The caller holds mu.
func (m *Member) encodeSelf() []byte {
	says := ""
	if m.o.Says != nil {
		says = m.o.Says()
	}
	m.said.Store(&says)
	m.told = m.o.Clock()
	return encodeWriter(m.o.Name, m.o.Address, says)
}

// noteOwner notes who owns the log, and reports whether that is new.
func (m *Member) noteOwner(name, address string, epoch uint64) bool {
	had := m.owner.Load()
	if had.name == name && had.address == address && had.epoch == epoch {
		return false
	}
	m.owner.Store(&logOwner{name, address, epoch, make(chan struct{})})
	close(had.changed)
	return true
}

// MayTake says why this hub may not own the log as things are.
func (m *Member) MayTake(ctx context.Context) error {
	if m.o.MayTake == nil {
		return nil
	}
	return m.o.MayTake(ctx)
}

// Silent is for how long nothing was read or appended.
func (m *Member) Silent() time.Duration { return m.o.Clock() - time.Duration(m.heard.Load()) }

// At is the position up to which this hub has what is in the log.
func (m *Member) At() ordered.Position { return ordered.Position(m.at.Load()) }

// Epoch is how often a hub has taken the log.
func (m *Member) Epoch() uint64 { return m.epoch.Load() }

// reach notes up to where this hub has what is in the log. The caller holds mu.
func (m *Member) reach(mark sealed.Mark) {
	m.mark = mark
	m.at.Store(uint64(mark.At))
	m.epoch.Store(mark.Epoch)
}

// Commit appends a group of the journal, and says where it is. It returns when that is sure, or never.
func (m *Member) Commit(_ context.Context, body []byte) (journal.Origin, error) {
	if state(m.state.Load()) == stateStandby { // what is applied is in the log
		return m.applying, nil
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := m.append(kindCommit, body); err != nil {
		return journal.Origin{}, err
	}
	m.idle = 0
	return originOf(m.o.Log.ID(), m.mark), nil
}

// CheckStored is told what became of each group here. One that is in the log, and not here, is neither acknowledged nor refused: then the log is lost, and this
// doesn't return before Close. While this hub stands by nobody waits, and Stand ends with the error.
func (m *Member) CheckStored(err error) {
	if errors.Is(err, ordered.ErrUnknown) && state(m.state.Load()) != stateStandby {
		m.Lose(err)
		<-m.ctx.Done()
	}
}

// append is put of an owner. When that is over it doesn't return before Close: who waits for it must not be told no, for it may be in the log.
func (m *Member) append(kind byte, body []byte) error {
	err := m.ctx.Err()
	if state(m.state.Load()) == stateOwner {
		err = m.put(kind, body)
	}
	if err != nil && m.ctx.Err() == nil {
		m.Lose(err)
	}
	if state(m.state.Load()) == stateLost {
		<-m.ctx.Done()
		return ErrLost
	}
	return err
}

// Lose has this hub own the log no more.
func (m *Member) Lose(why error) {
	if m.state.CompareAndSwap(int32(stateOwner), int32(stateLost)) {
		m.o.Lost(why)
	}
}

// takenError is why a member can't append: somebody else's frame is where it would have been.
type takenError struct{ by frame }

func (e *takenError) Error() string {
	if e.by.kind == kindTake {
		name, _, _ := decodeWriter(e.by.body)
		return name + " has taken the log"
	}
	return "another hub has appended to the log"
}

const (
	retryPause = 50 * time.Millisecond
	retryMost  = time.Second
	lookTime   = time.Second // for a frame that must be there to be read, before the next attempt
)

// put appends a frame at the mark, whatever it takes: it is made again until it is known to be there, or another one is. The caller holds mu.
func (m *Member) put(kind byte, body []byte) error {
	m.number++
	f := frame{kind, m.writer, m.number, m.frameTime(), body}
	m.noteTime(f.time)
	text := f.encode()
	began := m.o.Clock()
	looking, stop := context.WithCancel(m.ctx)
	defer stop()
	silent := m.o.Logger.Sample(&zerolog.BurstSampler{Burst: 1, Period: time.Minute})
	var seen chan nextFrame // of who looks: an engine may need longer than lookTime to believe that the log ends before the mark
	for pause := retryPause; ; pause = min(2*pause, retryMost) {
		at, err := m.log.Append(m.ctx, m.mark.At, text)
		if last := m.log.Last(); err == nil && last.At == at { // else others have appended since
			m.stored(last, began)
			return nil
		}
		if m.ctx.Err() != nil {
			return m.ctx.Err()
		}
		// Somebody's frame may be there. That none is to be seen says nothing: then it is appended again.
		if seen == nil {
			seen = make(chan nextFrame, 1)
			go func(from sealed.Mark, seen chan<- nextFrame) { seen <- m.next(looking, from) }(m.mark, seen)
		}
		var next nextFrame
		select {
		case next = <-seen:
			seen = nil
		case <-time.After(lookTime):
		case <-m.ctx.Done():
			return m.ctx.Err()
		}
		switch {
		case next.broken != nil:
			return next.broken
		case next.is && next.writer == f.writer && m.o.ablation == noBarrier:
			m.reach(next.mark)
			continue
		case next.is && next.writer == f.writer && next.number == f.number:
			m.stored(next.mark, began)
			return nil
		case next.is:
			return &takenError{next.frame}
		}
		if pause == retryMost {
			silent.Warn().Err(err).Msg("the log doesn't answer; nothing is acknowledged meanwhile: `cloudhub cluster status` says which of its servers are there")
		}
		select {
		case <-time.After(pause):
		case <-m.ctx.Done():
			return m.ctx.Err()
		}
	}
}

// stored notes that a frame is in the log. Others count their silence from when they read it, which is after the append began.
func (m *Member) stored(mark sealed.Mark, began time.Duration) {
	m.reach(mark)
	m.sent = m.o.Clock()
	m.heard.Store(int64(m.sent))
	m.fresh.Store(int64(began + m.o.Silence/5*4)) // clocks may run differently
	m.waiting.Lock()
	close(m.renewed)
	m.renewed = make(chan struct{})
	m.waiting.Unlock()
}

// nextFrame is what is to be seen behind a mark.
type nextFrame struct {
	frame
	is     bool // there is a frame
	mark   sealed.Mark
	broken error // why there is none to be waited for
}

// next waits for the frame after a mark, until ctx ends.
func (m *Member) next(ctx context.Context, from sealed.Mark) (next nextFrame) {
	for f, err := range m.log.Follow(ctx, from) {
		var broken *sealed.BrokenError
		if errors.As(err, &broken) || errors.Is(err, ordered.ErrGone) || errors.Is(err, ordered.ErrBack) {
			next.broken = err
		}
		if err != nil {
			return next
		}
		next.mark = f.Mark
		next.frame, next.broken = decodeFrame(f.Body)
		next.body = append([]byte(nil), next.body...)
		next.is = next.broken == nil
		return next
	}
	return next
}

// keepHeard has an owner be heard, until Close. Whoever begins to read amid groups has to be told of it as well.
func (m *Member) keepHeard() {
	every := m.o.Silence / 4
	tick := time.NewTicker(every / 2)
	defer tick.Stop()
	for {
		select {
		case <-m.ctx.Done():
			return
		case <-tick.C:
		}
		if m.beHeard(every) != nil {
			return
		}
	}
}

func (m *Member) beHeard(every time.Duration) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if now := m.o.Clock(); now-m.sent < every && now-m.told < m.o.Silence {
		return nil
	}
	err := m.append(m.idleKind(), m.encodeSelf())
	if m.idle++; err == nil && m.idle >= idleFrames { // the journal must not be behind what is trimmed
		m.idle = 0
		m.into.Note(originOf(m.o.Log.ID(), m.mark))
	}
	return err
}

// Abandon is for an owner that stops. Once it has had the time after, it loses the log as soon as that hasn't answered for as long, so that the stop doesn't wait
// for it: what waits was acknowledged to nobody.
func (m *Member) Abandon(after time.Duration) {
	for wait := after; ; wait = retryPause {
		select {
		case <-m.ctx.Done():
			return
		case <-time.After(wait):
		}
		if !m.Owns() && m.Silent() >= after {
			m.Lose(errors.New("the log doesn't answer"))
			return
		}
	}
}

// Release tells the others that this hub stops, for as long as ctx.
func (m *Member) Release(ctx context.Context) {
	stop := context.AfterFunc(ctx, m.cancel)
	defer stop()
	m.mu.Lock()
	defer m.mu.Unlock()
	if state(m.state.Load()) == stateOwner && m.put(kindRelease, nil) == nil {
		m.state.Store(int32(stateLost))
	}
}
