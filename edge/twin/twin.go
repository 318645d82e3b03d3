// SPDX-License-Identifier: Apache-2.0

package twin

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"github.com/rs/zerolog"

	"github.com/edgebus/edgebus/broker"
	"github.com/edgebus/edgebus/broker/tree"
	"github.com/edgebus/edgebus/edge/store"
	"github.com/edgebus/edgebus/topics"
	"github.com/edgebus/edgebus/topics/link"
	"github.com/edgebus/edgebus/topics/resource"
)

const (
	maxReusedEntries   = 1024             // entries up to which the memory of a batch is reused
	expiryGrain        = time.Second / 2  // how late an override may end
	clockCheckInterval = 15 * time.Second // how long a jump of the clock may go unnoticed
	mapperGrace        = 15 * time.Second
	retryDelay         = 5 * time.Second // until a step of the core's own is repeated after a failed commit
	// flushInterval is how long a reported value may wait for the disk whose mapper reports it again after a crash.
	flushInterval = time.Minute
)

// Store keeps the state; see package edge/store.
type Store interface {
	Load() (store.Snapshot, error)
	Commit(store.Batch) error
	Probe() error  // nil: a batch like the one that failed last could be committed
	Waiting() bool // a flush is due in flushInterval
	Needs(store.Batch) bool
}

// HistoryRecorder keeps what the properties of the node's Devices were. It must not block.
type HistoryRecorder interface {
	// Record notes that a property has a value, in the time of its report, in ms since 1970. It is called for each report, also when the
	// value is the one before.
	Record(b *resource.Bundle, property, value string, ts int64)
	// End notes that the value of a property, or of all if it is empty, is no longer known.
	End(b *resource.Bundle, property string, ts int64)
}

// Options are what a Twin needs.
type Options struct {
	tree.Options
	Node string
	// Push sends a reported value, once it is stored, to a target of its Device's spec.push. It must not block. Nil: nothing is pushed.
	Push func(to resource.Push, device, property string, value []byte, ts int64)
	// History gets what is reported, once it is stored; nil: nobody does.
	History HistoryRecorder
	// RightsChanged is called after a device has joined, left or changed its protocol. It may be nil.
	RightsChanged func()
	Store         Store
	// Report is published as the node's status when the twin starts.
	Report resource.NodeReport
	// Mappers is how many it knows; 0: any number.
	Mappers int
	// Epoch draws the number that a new store's versions in force begin with; see epochOf. Nil: at random.
	Epoch func() uint32
}

// retained is the message of a document of the node's tree; a nil payload clears the topic.
func (o *Options) retained(key string, payload []byte) broker.Message {
	return tree.DocumentMessage(o.Node, key, payload)
}

// Twin keeps a node's tree. Its methods may be called from any goroutine. What it holds is in parts, each with a file of its own; the
// exported methods of those that are embedded are its own.
type Twin struct {
	opts       Options
	sampledLog zerolog.Logger // for log lines that the hub can cause any number of
	host       *tree.Host[*batch]

	up        upMap
	down      downMap
	ends      overrideEnds
	overrides overrides
	devices
	documents documents
	mappers   mappers
	programs  programs
	writes    localWrites
	alarms    alarmTracker
	link      hubLink
	reader

	flush      *time.Timer // when what waits is stored
	flushArmed bool
	lost       uint64 // of versions that the process before this one may have given without storing them; see store.Snapshot

	outage     tree.StoreOutage // of the store
	ignoresHub bool             // of an outage: the hub causes what can't be stored, and is not heard
	history    deviceHistory
	batch      batch // the step's that is taken
	stats      stats
}

type stats struct {
	commits, refused, failed atomic.Uint64
}

// Stats are counts since the start, for metrics.
type Stats struct {
	Commits, Steps, Refused, FailedCommits uint64
	Devices, UpKeys, DownKeys, Behind      int
	Linked, InStep                         bool
	Storing                                bool // false: nothing can be stored
	UpBytes                                int
	Hub, OtherHub                          resource.HubID // the connected hub, and another one that the node's map down came from
	Oversize                               string         // why the hub accepts no reports of the node; empty: it does
	StepsWaiting                           int
	Oldest                                 time.Duration // the age of the oldest key that the hub has not confirmed
}

// batch gathers the effects of its steps: changes to be stored, and what is published, answered and sent after that.
type batch struct {
	now              time.Time
	publishes        []broker.Message // what is published once it is stored
	deviceChanges    []deviceChange   // devices that join or leave with it, in order
	answers          []publishAnswer
	retries          []func(*batch) // steps to be repeated later if this batch can't be stored
	linkActive       bool           // a message of the map up was sent or received
	effective        map[string]*store.Effective
	floor            uint64
	deferral         deferral
	changed          map[string]bool    // devices that readers see differently now
	touched          map[[2]string]bool // properties whose value in force may have changed: device, property
	changedDocuments map[string]bool    // documents that may have changed, by key

	refused      error                  // why nothing can be stored, known before: steps change nothing that would have to be
	failed, lost error                  // why the batch was not stored, and why the state could not be read back after that
	stored       *tree.DeliveryOutcomes // of the messages to durable sessions
	messages     []link.Message         // to the hub
	spans        tree.Spans             // of values that belong to a trace
	ready        func()                 // called if the hub has caught up with this batch
	wakeWatchers func()                 // wakes those that wait for changed devices

	histories   []historyStep        // what the history is to be told, once it is stored
	pushes      []func()             // send values to brokers and endpoints named in spec.push, once they are stored
	from        *broker.Identity     // the publisher of the current message
	members     []tree.PropertyValue // properties of the current message
	entryBuffer []link.Entry         // their entries
}

// begin makes an empty batch. It reuses the memory of the last one if that was small.
func (b *batch) begin(now time.Time) {
	if b.changed == nil || len(b.changed)+len(b.touched)+len(b.changedDocuments)+len(b.effective)+len(b.publishes)+len(b.entryBuffer) > maxReusedEntries {
		*b = batch{
			effective: make(map[string]*store.Effective), deferral: deferral{mayWait: make(map[string]bool)}, changed: make(map[string]bool),
			touched: make(map[[2]string]bool), changedDocuments: make(map[string]bool),
		}
	}
	clear(b.effective)
	clear(b.deferral.mayWait)
	clear(b.changed)
	clear(b.touched)
	clear(b.changedDocuments)
	clear(b.publishes)
	clear(b.answers)
	clear(b.members)
	clear(b.histories)
	clear(b.entryBuffer)
	*b = batch{
		now: now, effective: b.effective, deferral: deferral{mayWait: b.deferral.mayWait}, changed: b.changed, touched: b.touched, changedDocuments: b.changedDocuments,
		publishes: b.publishes[:0], answers: b.answers[:0], histories: b.histories[:0], stored: new(tree.DeliveryOutcomes), members: b.members[:0], entryBuffer: b.entryBuffer[:0],
	}
}

// touch notes that the value in force of a property may have changed.
func (b *batch) touch(device, property string) { b.touched[[2]string{device, property}] = true }

// deferral is what of a batch may be stored later; see store.Batch.
type deferral struct {
	mayWait map[string]bool
	flush   bool
}

type publishAnswer struct {
	done func(error)
	err  error
}

// New loads the state. Run must be called for anything to happen.
func New(o Options) (*Twin, error) {
	if !topics.ValidName(o.Node) {
		return nil, fmt.Errorf("node.name: %q: must be %s", o.Node, topics.NameRule())
	}
	if o.RightsChanged == nil {
		o.RightsChanged = func() {}
	}
	t := &Twin{sampledLog: o.SampledLog()}
	t.host = tree.NewHost(&o.Options, tree.BatchStages[*batch]{
		Begin: t.newBatch, Derive: t.commit, PublishStored: t.publish, Store: func(context.Context, *batch) {},
		Settle: func(b *batch) error { return b.lost }, Publish: func(*batch) {}, Finish: t.finish,
	})
	if o.Epoch == nil {
		o.Epoch = newEpoch
	}
	t.opts = o
	t.connectParts()
	if err := t.load(); err != nil {
		return nil, err
	}
	t.history.begin(o.Now(), t.devices.byName)
	t.host.Put(tree.OwnSender, 0, t.repeated(t.firstStep))
	return t, nil
}

// connectParts makes the parts, empty.
func (t *Twin) connectParts() {
	opts, up, down := &t.opts, &t.up, &t.down
	t.flush = stoppedTimer()
	t.ends = overrideEnds{opts: opts, outage: &t.outage, byKey: make(map[string]int64), wake: stoppedTimer(), maxSleep: clockCheckInterval}
	t.up = upMap{opts: opts, ends: &t.ends, isLocal: t.devices.isLocal, changed: t.devices.noteHistory, store: func(key string, e *store.Effective) { t.batch.effective[key] = e }}
	t.overrides = overrides{opts: opts, up: up, down: down, newFloor: uint64(opts.Epoch()) << 32}
	t.devices = devices{opts: opts, up: up, down: down, overrides: &t.overrides}
	t.programs = programs{opts: opts, up: up, down: down, seen: make(map[topics.Kind]bool)}
	t.documents = documents{opts: opts, down: down, devices: &t.devices, overrides: &t.overrides, programs: &t.programs}
	t.alarms = alarmTracker{
		opts: opts, up: up, devices: &t.devices, wake: stoppedTimer(), pending: make(map[alarmedProperty]map[string]int64), due: make(map[alarmedProperty]int64),
	}
	t.mappers = mappers{opts: opts, up: up, devices: &t.devices, users: make(map[string]string)}
	t.link = hubLink{traces: make(tree.LinkTraces), opts: opts, up: up, down: down, devices: &t.devices, resend: stoppedTimer()}
	t.reader = reader{opts: opts, host: t.host, up: up, down: down, devices: &t.devices, overrides: &t.overrides, history: &t.history}
	t.writes = localWrites{
		opts: opts, up: up, down: down, devices: &t.devices, overrides: &t.overrides, documents: &t.documents, mappers: &t.mappers, reader: &t.reader, alarms: &t.alarms,
	}
}

func stoppedTimer() *time.Timer {
	timer := time.NewTimer(time.Hour)
	timer.Stop()
	return timer
}

// load reads the state from the store: at the start, and after a failed commit.
func (t *Twin) load() error {
	snap, err := t.opts.Store.Load()
	if err != nil {
		return err
	}
	t.up.load(snap.Up, snap.Effective)
	if t.lost = snap.Lost; t.lost > 0 {
		if err := t.up.passLost(t.lost); err != nil {
			return err
		}
	}
	t.down.Replica = snap.Down
	t.overrides.load(snap.Effective, snap.Floor)
	t.devices.load()
	t.ends.load(&t.up)
	return nil
}

// Run takes steps until ctx ends, then commits what waits and returns. It fails if the state can't be read back after a failed
// commit, since the state in memory may then differ from what is stored.
func (t *Twin) Run(ctx context.Context) error {
	defer t.host.Close()
	grace := time.AfterFunc(mapperGrace, func() { t.host.Put(tree.OwnSender, 0, t.repeated(t.setMissingOffline)) })
	defer grace.Stop()
	defer t.link.resend.Stop()
	defer t.ends.wake.Stop()
	defer t.alarms.wake.Stop()
	defer t.flush.Stop()
	return t.host.Run(ctx,
		tree.Timer[*batch]{C: t.link.resend.C, Step: func(*batch) { t.link.resendArmed = false; t.up.Resend() }},
		tree.Timer[*batch]{C: t.ends.wake.C, Step: func(*batch) { t.ends.stale = true }},
		tree.Timer[*batch]{C: t.alarms.wake.C, Step: func(*batch) { t.alarms.stale = true }},
		tree.Timer[*batch]{C: t.flush.C, Step: func(b *batch) { t.flushArmed, b.deferral.flush = false, true }})
}

func (t *Twin) newBatch() *batch {
	t.batch.begin(t.opts.Now())
	over, refused := t.outage.Probe(t.opts.Store.Probe)
	if over {
		t.ignoresHub = false
		t.opts.Log.Info().Msg("what happens on the node can be stored again")
	}
	t.batch.refused = refused
	t.ends.stale = t.ends.stale || refused != nil || over
	return &t.batch
}

// commit derives what follows from the steps, and stores it. Readers wait for that: they see the same maps as the steps.
func (t *Twin) commit(b *batch) {
	if b.refused == nil {
		t.ends.touchDue(b)
	}
	t.documents.derive(b)
	if b.refused == nil {
		t.alarms.derive(b)
	}
	b.failed, b.lost = t.store(b)
	t.repeat(b)
	b.messages = t.link.messages(b)
	if b.lost != nil {
		b.messages = nil
	}
	b.ready = t.link.caughtUp()
	t.link.arm(b)
	t.ends.arm(b.now)
	t.alarms.arm(b)
	b.wakeWatchers = func() {}
	if b.failed == nil {
		b.wakeWatchers = t.history.add(b.changed, t.devices.byName)
	}
}

// publish delivers what was stored, and applies the batch's device changes at their places between the messages.
func (t *Twin) publish(b *batch) {
	defer t.endSpans(b)
	if b.failed != nil {
		return
	}
	for i, m := range b.publishes {
		t.devices.applyChanges(b, i)
		b.stored.Deliver(&t.opts.Options, b.spans.Mark(m))
	}
	t.devices.applyChanges(b, len(b.publishes))
	for _, push := range b.pushes {
		push()
	}
	for _, h := range b.histories {
		h.tell(t.opts.History)
	}
}

// finish answers the senders, sends messages to the hub, and wakes watchers last: there may be many.
func (t *Twin) finish(b *batch) {
	t.answer(b)
	t.link.sendToHub(b.messages)
	b.ready()
	b.wakeWatchers()
}

// store stores the batch. If that fails, the state is read back from the store, so that nothing of the batch has happened, and
// failed is the answer to every sender. lost is the error if the state can't be read back, either.
func (t *Twin) store(b *batch) (failed, lost error) {
	batch := store.Batch{Up: t.up.TakeChanges(), Down: t.down.TakeChanges(), Effective: b.effective, Floor: b.floor, MayWait: b.deferral.mayWait, Flush: b.deferral.flush}
	if !t.overrides.floorStored && (b.refused == nil || !batch.Empty()) { // with the first thing that is stored, so that no version is published that another epoch could give
		batch.Floor = t.overrides.floor
	}
	if !t.opts.Store.Needs(batch) {
		return nil, nil
	}
	t.stats.commits.Add(1)
	err := t.opts.Store.Commit(batch)
	if t.opts.Store.Waiting() && !t.flushArmed {
		t.flush.Reset(flushInterval)
		t.flushArmed = true
	}
	if err == nil {
		t.down.ChangesStored()
		t.overrides.floorStored = true
		t.outage.Stored()
		return nil, nil
	}
	t.stats.failed.Add(1)
	t.ignoresHub = b.refused != nil
	failed = resource.Errorf(resource.Unavailable, "", "the node can't store anything now: %v", err)
	if !t.outage.Active() { // logged once: each refused sender gets the reason
		t.opts.Log.Error().Err(err).Msg("nothing can be stored: writes are refused until this is mended")
	}
	t.outage.Begin(failed)
	if err := t.load(); err != nil {
		return failed, fmt.Errorf("the state can't be read back after a failed commit: %w", err)
	}
	if t.link.send != nil { // messages that were sent may not match the stored state: begin the link again
		t.link.nonce++
		t.up.Connect(t.link.nonce)
	}
	return failed, nil
}

// repeat repeats the core's own steps of a batch that could not be stored.
func (t *Twin) repeat(b *batch) {
	if b.refused == nil && b.failed == nil {
		return
	}
	for _, f := range b.retries {
		time.AfterFunc(retryDelay, func() { t.host.Put(tree.OwnSender, 0, f) })
	}
}

// repeated makes a step of the core's own, which is repeated if what it changes can't be stored.
func (t *Twin) repeated(change func(*batch)) func(*batch) {
	var step func(*batch)
	step = func(b *batch) {
		b.retries = append(b.retries, step)
		if b.refused == nil {
			change(b)
		}
	}
	return step
}

// answer answers the senders, once durable sessions have on disk what follows from the batch.
func (t *Twin) answer(b *batch) {
	if len(b.answers) == 0 {
		return
	}
	answers, failed := slices.Clone(b.answers), b.failed // the batch's memory is used again
	b.stored.Then(func(err error) { t.answerAll(answers, cmp.Or(failed, err)) })
}

func (t *Twin) answerAll(answers []publishAnswer, failed error) {
	for _, a := range answers {
		if a.err == nil {
			a.err = failed
		}
		if a.err != nil {
			t.stats.refused.Add(1)
		}
		a.done(a.err)
	}
}

// firstStep is the first step. It stores the node's status, and derives everything from the stored state again, in case the last process
// ended before it had.
func (t *Twin) firstStep(b *batch) {
	if t.lost > 0 {
		t.up.storeLocal()
	}
	t.programs.showStatus(b)
	for name, d := range t.devices.byName {
		t.devices.touchAll(b, name, d)
		for _, p := range t.alarms.alarmed(name, d) { // values that are there for some time already
			t.alarms.follow(b, name, d, p)
		}
	}
	t.alarms.started = true
}

// setMissingOffline runs once, mapperGrace after the start. It sets mappers, the agent and edgediscovery offline that were online before
// the restart and have not reported since: if they ended together with the core, no will was published for them.
func (t *Twin) setMissingOffline(b *batch) {
	t.programs.setMissingOffline(b)
	t.mappers.setMissingOffline(b)
}

// Stats returns the counts.
func (t *Twin) Stats() Stats {
	t.host.RLock()
	defer t.host.RUnlock()
	s := Stats{
		StepsWaiting: t.host.Len(),
		Commits:      t.stats.commits.Load(), Steps: t.host.Steps(),
		Refused: t.stats.refused.Load(), FailedCommits: t.stats.failed.Load(),
		Devices: len(t.devices.byName), UpKeys: t.up.Len(), DownKeys: t.down.Len(), Behind: t.up.Dirty(),
		Linked: t.link.send != nil, InStep: t.link.send != nil && t.up.InStep(), Storing: !t.outage.Active(),
		UpBytes: t.up.Bytes(), Oversize: t.link.quotaError, Hub: t.link.hub, OtherHub: t.link.otherHub(),
	}
	if ts, ok := t.up.Oldest(); ok {
		s.Oldest = max(t.opts.Now().Sub(time.UnixMilli(ts)), 0)
	}
	return s
}

var errStopped = resource.Errorf(resource.Unavailable, "", "the core is stopping: publish again once it is back")
