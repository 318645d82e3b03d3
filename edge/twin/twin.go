package twin

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
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
)

// Store keeps the state; see package edge/store.
type Store interface {
	Load() (store.Snapshot, error)
	Commit(store.Batch) error
	Probe() error // nil: a batch like the one that failed last could be committed
}

// Options are what a Twin needs.
type Options struct {
	tree.Options
	Node string
	// Push sends a reported value, once it is stored, to a target of its Device's spec.push. It must not block. Nil: nothing is pushed.
	Push func(to resource.Push, device, property string, value []byte, ts int64)
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

// Twin keeps a node's tree. Its methods may be called from any goroutine.
type Twin struct {
	opts       Options
	sampledLog zerolog.Logger // for log lines that the hub can cause any number of
	host       *tree.Host[*batch]

	up          *upMap
	down        *link.Replica
	effective   map[string]*store.Effective
	floor       uint64 // versions in force of forgotten properties are at or below it; its epoch is the store's
	newFloor    uint64 // of a store that has none
	floorStored bool   // the floor is in the store
	devices     map[string]*device
	anyLocal    bool     // a Device has had values that stay on the node
	protocols   sync.Map // device → protocol, as published to subscribers; read without the lock of the state

	quotaError string // why the hub accepts no reports: the node's map exceeds its quota; empty: it accepts them

	send  func([]byte) // to the hub; nil while there is no link
	ready func()       // called once in a connection, when the hub has caught up; nil: it was called
	nonce uint64       // of this connection

	hub resource.HubID // the hub that has sent HELLO in this connection; 0: none yet

	resend       *time.Timer          // for messages that the hub has not answered
	resendArmed  bool                 // resend runs
	wake         *time.Timer          // for the next override to end
	nextEnd      int64                // when that is; 0: never
	maxSleep     time.Duration        // longest time that wake is set to; clockCheckInterval
	wakeStale    bool                 // next is to be computed again
	overrideEnds map[string]int64     // when overrides end, by key
	mapperUsers  map[string]string    // mappers that have reported since the start, by key, and their users
	programsSeen map[topics.Kind]bool // the states of programs that were published since the start

	outage     tree.StoreOutage // of the store
	ignoresHub bool             // of an outage: the hub causes what can't be stored, and is not heard
	history    deviceHistory
	batch      batch // the step's that is taken
	stats      stats
}

// device is one device of the node.
type device struct {
	bundle  resource.Bundle
	payload []byte // the encoded bundle
	faults  bool   // a refusal or a read problem of a property may be stored, which its next report clears
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
	changed          map[string]bool    // devices that readers see differently now
	touched          map[[2]string]bool // properties whose value in force may have changed: device, property
	changedDocuments map[string]bool    // documents that may have changed, by key

	refused      error                  // why nothing can be stored, known before: steps change nothing that would have to be
	failed       error                  // why the batch was not stored
	stored       *tree.DeliveryOutcomes // of the messages to durable sessions
	messages     []link.Message         // to the hub
	ready        func()                 // called if the hub has caught up with this batch
	wakeWatchers func()                 // wakes those that wait for changed devices

	pushes      []func()             // send values to brokers and endpoints named in spec.push, once they are stored
	from        *broker.Identity     // the publisher of the current message
	members     []tree.PropertyValue // properties of the current message
	entryBuffer []link.Entry         // their entries
}

// begin makes an empty batch. It reuses the memory of the last one if that was small.
func (b *batch) begin(now time.Time) {
	if b.changed == nil || len(b.changed)+len(b.touched)+len(b.changedDocuments)+len(b.effective)+len(b.publishes)+len(b.entryBuffer) > maxReusedEntries {
		*b = batch{
			effective: make(map[string]*store.Effective), changed: make(map[string]bool),
			touched: make(map[[2]string]bool), changedDocuments: make(map[string]bool),
		}
	}
	clear(b.effective)
	clear(b.changed)
	clear(b.touched)
	clear(b.changedDocuments)
	clear(b.publishes)
	clear(b.answers)
	clear(b.members)
	clear(b.entryBuffer)
	*b = batch{
		now: now, effective: b.effective, changed: b.changed, touched: b.touched, changedDocuments: b.changedDocuments,
		publishes: b.publishes[:0], answers: b.answers[:0], stored: new(tree.DeliveryOutcomes), members: b.members[:0], entryBuffer: b.entryBuffer[:0],
	}
}

// deviceChange is a device that joins or leaves the node. Which mappers may read its topics depends on its protocol, so it
// takes effect between two messages: those before index at are for the mapper that had the device, those from at on for the
// mapper that has it.
type deviceChange struct {
	at       int
	device   string
	protocol string
	removed  bool
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
	t := &Twin{sampledLog: o.SampledLog(), overrideEnds: make(map[string]int64), mapperUsers: make(map[string]string), programsSeen: make(map[topics.Kind]bool), maxSleep: clockCheckInterval}
	t.host = tree.NewHost(&o.Options, tree.BatchStages[*batch]{Begin: t.newBatch, Commit: t.commit, Publish: t.publish, Finish: t.finish})
	t.opts = o
	if o.Epoch == nil {
		o.Epoch = newEpoch
	}
	t.newFloor = uint64(o.Epoch()) << 32
	t.resend, t.wake = stoppedTimer(), stoppedTimer()
	if err := t.load(); err != nil {
		return nil, err
	}
	t.history.begin(o.Now(), t.devices)
	t.host.Put(tree.OwnSender, 0, t.repeated(t.firstStep))
	return t, nil
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
	t.up, t.down, t.effective, t.floor = newUpMap(snap.Up, snap.Effective), snap.Down, snap.Effective, snap.Floor
	if t.floorStored = t.floor != 0; !t.floorStored {
		t.floor = t.newFloor
	}
	t.up.isLocal, t.up.store = t.isLocalKey, func(key string, e *store.Effective) { t.batch.effective[key] = e }
	t.devices = make(map[string]*device)
	clear(t.overrideEnds)
	t.wakeStale = true
	for _, key := range t.down.Keys("devices/") {
		if a, err := topics.ParseKey(t.opts.Node, key); err == nil && a.Kind == topics.KindDevice {
			if d, ok := t.joinDevice(a.Device); ok {
				t.devices[a.Device] = d
				t.protocols.Store(a.Device, d.bundle.Device.Spec.Protocol.Type)
			}
		}
	}
	t.protocols.Range(func(name, _ any) bool { // telemetry is passed on meanwhile: what stays is never missing
		if t.devices[name.(string)] == nil {
			t.protocols.Delete(name)
		}
		return true
	})
	t.up.Range("devices/", func(e link.Entry) bool {
		if e.Meta.Until != 0 && strings.Contains(e.Key, "/override/") {
			t.overrideEnds[e.Key] = e.Meta.Until
		}
		return true
	})
	return nil
}

// Run takes steps until ctx ends, then commits what waits and returns. It fails if the state can't be read back after a failed
// commit, since the state in memory may then differ from what is stored.
func (t *Twin) Run(ctx context.Context) error {
	defer t.host.Close()
	grace := time.AfterFunc(mapperGrace, func() { t.host.Put(tree.OwnSender, 0, t.repeated(t.setMissingOffline)) })
	defer grace.Stop()
	defer t.resend.Stop()
	defer t.wake.Stop()
	return t.host.Run(ctx,
		tree.Timer[*batch]{C: t.resend.C, Step: func(*batch) { t.resendArmed = false; t.up.Resend() }},
		tree.Timer[*batch]{C: t.wake.C, Step: func(*batch) { t.wakeStale = true }})
}

func (t *Twin) newBatch() *batch {
	t.batch.begin(t.opts.Now())
	over, refused := t.outage.Probe(t.opts.Store.Probe)
	if over {
		t.ignoresHub = false
		t.opts.Log.Info().Msg("what happens on the node can be stored again")
	}
	t.batch.refused = refused
	t.wakeStale = t.wakeStale || refused != nil || over
	return &t.batch
}

// commit derives what follows from the steps, and stores it.
func (t *Twin) commit(_ context.Context, b *batch) (lost error) {
	if b.refused == nil && t.nextEnd != 0 && t.nextEnd <= b.now.UnixMilli() {
		t.endOverrides(b)
		t.wakeStale = true // the timer has run
	}
	t.derive(b)
	b.failed, lost = t.store(b)
	t.repeat(b)
	b.messages = t.messages(b)
	if lost != nil {
		b.messages = nil
	}
	b.ready = t.caughtUp()
	t.arm(b)
	b.wakeWatchers = func() {}
	if b.failed == nil {
		b.wakeWatchers = t.history.add(b.changed, t.devices)
	}
	return lost
}

// publish delivers what was stored, and applies the batch's device changes at their places between the messages.
func (t *Twin) publish(b *batch) {
	if b.failed != nil {
		return
	}
	for i, m := range b.publishes {
		t.changeDevices(b, i)
		b.stored.Deliver(&t.opts.Options, m)
	}
	t.changeDevices(b, len(b.publishes))
	for _, push := range b.pushes {
		push()
	}
}

// finish answers the senders, sends messages to the hub, and wakes watchers last: there may be many.
func (t *Twin) finish(b *batch) {
	t.answer(b)
	t.sendToHub(b.messages)
	b.ready()
	b.wakeWatchers()
}

// changeDevices applies the device changes that come before the message with index at.
func (t *Twin) changeDevices(b *batch, at int) {
	for len(b.deviceChanges) > 0 && b.deviceChanges[0].at <= at {
		if b.deviceChanges[0].removed {
			t.protocols.Delete(b.deviceChanges[0].device)
		} else {
			t.protocols.Store(b.deviceChanges[0].device, b.deviceChanges[0].protocol)
		}
		b.deviceChanges = b.deviceChanges[1:]
		t.opts.RightsChanged()
	}
}

// Protocol is the protocol of a device of the node; false: there is no such device. It doesn't wait for a commit.
func (t *Twin) Protocol(device string) (string, bool) {
	protocol, ok := t.protocols.Load(device)
	text, _ := protocol.(string)
	return text, ok
}

// store stores the batch. If that fails, the state is read back from the store, so that nothing of the batch has happened, and
// failed is the answer to every sender. lost is the error if the state can't be read back, either.
func (t *Twin) store(b *batch) (failed, lost error) {
	batch := store.Batch{Up: t.up.TakeJournal(), Down: t.down.TakeJournal(), Effective: b.effective, Floor: b.floor}
	if !t.floorStored && (b.refused == nil || !batch.Empty()) { // with the first thing that is stored, so that no version is published that another epoch could give
		batch.Floor = t.floor
	}
	if batch.Empty() {
		return nil, nil
	}
	t.stats.commits.Add(1)
	err := t.opts.Store.Commit(batch)
	if err == nil {
		t.floorStored = true
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
	if t.send != nil { // messages that were sent may not match the stored state: begin the link again
		t.nonce++
		t.up.Connect(t.nonce)
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

// messages are the messages that the link is to send now.
func (t *Twin) messages(b *batch) []link.Message {
	if t.send == nil {
		return nil
	}
	out := append(t.down.Messages(), t.up.Messages()...)
	for _, m := range out {
		b.linkActive = b.linkActive || m.Map == link.Up
	}
	return out
}

// sendToHub sends messages to the hub one by one, so that it handles the first while the next is encoded.
func (t *Twin) sendToHub(msgs []link.Message) {
	for _, m := range msgs {
		text, err := link.Encode(m)
		if err != nil {
			t.opts.Log.Error().Err(err).Msg("a message to the hub can't be encoded")
			continue
		}
		t.send(text)
	}
}

// arm sets the timers for what is unanswered and for the next override to end. A
// timer that runs is left alone: the steps of a busy node must not put it off.
func (t *Twin) arm(b *batch) {
	switch waiting := t.send != nil && t.up.Waiting(); {
	case !waiting:
		t.resend.Stop()
		t.resendArmed = false
	case b.linkActive || !t.resendArmed:
		t.resend.Reset(t.opts.Timeout)
		t.resendArmed = true
	}
	if t.wakeStale {
		t.wakeStale = false
		t.armWake(b.now)
	}
}

// armWake sets the timer for the next override to end.
func (t *Twin) armWake(now time.Time) {
	t.nextEnd = 0
	for _, until := range t.overrideEnds {
		if t.nextEnd == 0 || until < t.nextEnd {
			t.nextEnd = until
		}
	}
	t.wake.Stop()
	if t.outage.Active() { // the store is probed also if nobody wants anything stored
		t.wake.Reset(t.outage.UntilProbe())
		return
	}
	if t.nextEnd != 0 { // the clock may have jumped, either way, when it is time
		t.wake.Reset(min(max(time.UnixMilli(t.nextEnd).Sub(now), 0)+expiryGrain, t.maxSleep))
	}
}

// firstStep is the first step. It stores the node's status, and derives everything from the stored state again, in case the last process
// ended before it had.
func (t *Twin) firstStep(b *batch) {
	t.showReport(b)
	for name, d := range t.devices {
		t.touchDevice(b, name, d)
	}
}

// Stats returns the counts.
func (t *Twin) Stats() Stats {
	t.host.RLock()
	defer t.host.RUnlock()
	s := Stats{
		StepsWaiting: t.host.Len(),
		Commits:      t.stats.commits.Load(), Steps: t.host.Steps(),
		Refused: t.stats.refused.Load(), FailedCommits: t.stats.failed.Load(),
		Devices: len(t.devices), UpKeys: t.up.Len(), DownKeys: t.down.Len(), Behind: t.up.Dirty(),
		Linked: t.send != nil, InStep: t.send != nil && t.up.InStep(), Storing: !t.outage.Active(),
		UpBytes: t.up.Bytes(), Oversize: t.quotaError, Hub: t.hub, OtherHub: t.otherHub(),
	}
	if ts, ok := t.up.Oldest(); ok {
		s.Oldest = max(t.opts.Now().Sub(time.UnixMilli(ts)), 0)
	}
	return s
}

var errStopped = resource.Errorf(resource.Unavailable, "", "the core is stopping: publish again once it is back")
