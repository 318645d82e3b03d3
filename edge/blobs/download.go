// SPDX-License-Identifier: Apache-2.0

package blobs

import (
	"context"
	"encoding/json"
	"errors"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"syscall"
	"time"

	"github.com/rs/zerolog"

	"github.com/edgebus/edgebus/broker"
	"github.com/edgebus/edgebus/broker/client"
	"github.com/edgebus/edgebus/broker/daemon/datadir"
	"github.com/edgebus/edgebus/topics"
	"github.com/edgebus/edgebus/topics/resource"
)

const (
	syncEvery     = 1 << 20          // bytes that are lost at most in a power cut
	rangeOverhead = 400              // bytes on the link besides a range: its request, and the headers of both
	maxDownloads  = 1000             // at a time
	maxWaiters    = 32               // of one download
	maxAttempts   = 3                // of a content that has another digest each time
	idleTime      = 30 * time.Second // after which the connection is closed
	progressEvery = time.Second
	answerTimeout = 10 * time.Second
	retryPause    = time.Second
	answerName    = "core" // in the response topic blobs/answers/core
)

// Budget is the part of the link's rate that is left to downloads.
type Budget interface {
	// Wait is how long nothing may be requested.
	Wait() time.Duration
	// Download counts bytes.
	Download(n int)
}

// Hub is a connection to the hub.
type Hub interface {
	PublishAsync(m client.Message, done func(error))
	Reconnect(why error)
}

// Options are what Downloads are made from.
type Options struct {
	// Dir is the core's data directory.
	Dir string
	// Node is the name of this node.
	Node string
	// Bytes bounds what is on disk.
	Bytes int64
	// Connect keeps a connection to the hub until ctx ends, subscribed to Filter, and calls Connected, Received and
	// Disconnected. If it returns before, it was given up. Nil: the node works alone.
	Connect func(ctx context.Context) error
	Budget  Budget
	// Tree gets every publish on the node's broker that is not about blobs, and Publish publishes there.
	Tree    broker.Tree
	Publish func(broker.Message)
	Log     zerolog.Logger
	Now     func() time.Time // nil: time.Now
}

// Downloads are the blobs that the node has, and those that it is downloading.
type Downloads struct {
	o     Options
	topic string // to which requests go
	reply string // to which answers come

	mu       sync.Mutex
	queue    []func() // that Run is to call
	snapshot Stats    // as of the last time that Run has done what was due
	wake     chan struct{}
	ended    chan struct{} // closed when Run returns

	// What follows belongs to the goroutine of Run.
	stats      Stats
	files      *blobFiles
	active     map[string]*download
	verifying  map[string][]blobRequest // requests that wait until the digest of a complete blob was compared
	requests   map[uint64]*rangeRequest
	number     uint64
	flow       flowControl
	hub        Hub  // nil: not connected
	silent     bool // the last request was not answered in time
	pausedTo   time.Time
	idleSince  time.Time
	disconnect context.CancelFunc // nil: nobody connects
	running    sync.WaitGroup
}

// Stats are figures for metrics.
type Stats struct {
	Stored      int   // complete blobs
	Bytes       int64 // on disk, and what is missing of downloads
	Active      int
	Missing     int64 // bytes of these
	Received    int64 // bytes, since the start
	Repeated    int64 // of them, those that came again or were thrown away
	Finished    int64 // downloads
	Failed      int64
	Removed     int64 // files
	Mismatches  int64 // downloads that had another digest
	WindowBytes int
}

// download is a blob of which something is missing.
type download struct {
	digest   string
	size     int64
	part     *os.File
	written  int64 // bytes in part
	synced   int64 // of them, those that outlive a power cut
	next     int64 // where the next range begins
	checking bool  // it is whole, and its digest is being compared
	attempts int   // that had another digest
	waiters  []blobWaiter
	reported time.Time
}

// blobWaiter is called with the progress of a download and at last with its outcome.
type blobWaiter struct {
	key  string // equal for the repetition of a request
	tell func(resource.BlobAnswer)
}

// blobRequest is a request for a blob.
type blobRequest struct {
	resource.BlobRequest
	blobWaiter
}

// rangeRequest is a range that was requested and has not come.
type rangeRequest struct {
	of     *download
	offset int64
	length int
	sent   time.Time
}

// New opens what the node has. Run has to be called for anything to be downloaded.
func New(o Options) (*Downloads, error) {
	if o.Now == nil {
		o.Now = time.Now
	}
	stored, err := openBlobFiles(filepath.Join(o.Dir, datadir.DownloadsDir), o.Bytes, o.Now)
	if err != nil {
		return nil, err
	}
	d := &Downloads{
		o: o, topic: topics.Address{Node: o.Node, Kind: topics.KindBlobGet}.String(), wake: make(chan struct{}, 1), ended: make(chan struct{}),
		reply: topics.Address{Node: o.Node, Kind: topics.KindBlobAnswer, Device: answerName}.String(),
		files: stored, active: make(map[string]*download), verifying: make(map[string][]blobRequest), requests: make(map[uint64]*rangeRequest),
	}
	d.flow.reset()
	d.takeSnapshot()
	return d, nil
}

// Filter is what the connection to the hub has to be subscribed to.
func (d *Downloads) Filter() string { return d.reply }

// Connected says that there is a connection to the hub; it, Received and Disconnected say what happens to the connection to the hub. They don't block.
func (d *Downloads) Connected(hub Hub) {
	d.post(func() {
		d.dropAllRequests()
		d.hub, d.silent = hub, false
		d.flow.reset()
	})
}

// Disconnected is called when the connection has ended.
func (d *Downloads) Disconnected() {
	d.post(func() {
		d.hub = nil
		d.dropAllRequests()
	})
}

// Received is called with each message.
func (d *Downloads) Received(m client.Message) { d.post(func() { d.receive(m) }) }

// Want downloads a blob, unless it is there, and returns its path. The file may be removed ten minutes later.
func (d *Downloads) Want(ctx context.Context, digest string, size int64) (path string, err error) {
	last := make(chan resource.BlobAnswer, 1)
	d.want(resource.BlobRequest{Digest: digest, Size: size}, blobWaiter{tell: func(a resource.BlobAnswer) {
		if a.Done() {
			last <- a
		}
	}})
	select {
	case a := <-last:
		if a.Error != "" {
			return "", resource.Errorf(resource.ErrorKind(a.Reason), "", "%s", a.Error)
		}
		return a.Path, nil
	case <-d.ended:
		return "", resource.Errorf(resource.Unavailable, "", "the core stops")
	case <-ctx.Done():
		return "", ctx.Err()
	}
}

func (d *Downloads) want(r resource.BlobRequest, w blobWaiter) {
	d.post(func() {
		if err := d.take(r, w); err != nil {
			w.tell(failureAnswer(r, err))
		}
	})
}

func failureAnswer(r resource.BlobRequest, err error) resource.BlobAnswer {
	return resource.BlobAnswer{Digest: r.Digest, Size: r.Size, Error: err.Error(), Reason: string(resource.KindOf(err))}
}

// post has Run call f.
func (d *Downloads) post(f func()) {
	d.mu.Lock()
	d.queue = append(d.queue, f)
	d.mu.Unlock()
	select {
	case d.wake <- struct{}{}:
	default:
	}
}

// Run downloads until ctx ends. Incomplete downloads then stay on disk.
func (d *Downloads) Run(ctx context.Context) error {
	defer close(d.ended)
	defer d.running.Wait()
	defer d.stop()
	for ctx.Err() == nil {
		d.mu.Lock()
		queue := d.queue
		d.queue = nil
		d.mu.Unlock()
		for _, f := range queue {
			f()
		}
		timer := time.NewTimer(d.requestDue(ctx))
		d.takeSnapshot()
		select {
		case <-d.wake:
		case <-timer.C:
		case <-ctx.Done():
		}
		timer.Stop()
	}
	return nil
}

func (d *Downloads) stop() {
	for _, l := range d.active {
		_ = errors.Join(l.part.Sync(), l.part.Close()) // what did not get to disk is downloaded again
	}
	if d.disconnect != nil {
		d.disconnect()
	}
}

// take begins a download, or joins the one that there is.
func (d *Downloads) take(r resource.BlobRequest, w blobWaiter) error {
	if _, err := resource.ParseDigest(r.Digest); err != nil {
		return err
	}
	if empty := resource.DigestOf(nil); r.Size < 0 || (r.Size == 0) != (r.Digest == empty) {
		return resource.Errorf(resource.Invalid, "size", "%d is not the size of the blob %s", r.Size, r.Digest)
	}
	l := d.active[r.Digest]
	switch {
	case l != nil && l.size != r.Size:
		return resource.Errorf(resource.Invalid, "size", "the blob is being downloaded with the size %d, and not %d", l.size, r.Size)
	case l != nil && slices.ContainsFunc(l.waiters, func(o blobWaiter) bool { return o.key != "" && o.key == w.key }):
		return nil
	case l != nil && len(l.waiters) >= maxWaiters:
		return resource.Errorf(resource.Quota, "", "%d requests wait for the blob", maxWaiters)
	case l != nil:
		l.waiters = append(l.waiters, w)
		return nil
	case d.files.unverified(r.Digest):
		return d.verify(r, w)
	}
	path, err := d.files.use(r.Digest, r.Size)
	if err != nil {
		return err
	}
	if path != "" {
		w.tell(resource.BlobAnswer{Digest: r.Digest, Path: path, Received: r.Size, Size: r.Size})
		return nil
	}
	switch {
	case d.o.Connect == nil:
		return resource.Errorf(resource.Unavailable, "", "the node works alone: there is no hub to download from")
	case len(d.active) >= maxDownloads:
		return resource.Errorf(resource.Quota, "", "%d blobs are being downloaded: ask again later", maxDownloads)
	}
	part, written, err := d.files.begin(r.Digest, r.Size)
	if err != nil {
		return toUnavailable(err)
	}
	l = &download{digest: r.Digest, size: r.Size, part: part, written: written, synced: written, next: written, waiters: []blobWaiter{w}}
	d.active[l.digest] = l
	if l.written == l.size {
		d.check(l)
	}
	return nil
}

// verify compares the digest of a complete blob, the first time that it is wanted since the start. It is read beside the loop, which
// goes on meanwhile.
func (d *Downloads) verify(r resource.BlobRequest, w blobWaiter) error {
	list, begun := d.verifying[r.Digest]
	switch {
	case slices.ContainsFunc(list, func(o blobRequest) bool { return o.key != "" && o.key == w.key }):
		return nil
	case len(list) >= maxWaiters:
		return resource.Errorf(resource.Quota, "", "%d requests wait for the blob", maxWaiters)
	}
	d.verifying[r.Digest] = append(list, blobRequest{r, w})
	if begun {
		return nil
	}
	path := d.files.path(r.Digest)
	d.running.Go(func() {
		found, err := digestFile(path)
		d.post(func() { d.verified(r.Digest, err == nil && found == r.Digest) })
	})
	return nil
}

func (d *Downloads) verified(digest string, matches bool) {
	d.files.verified(digest, matches)
	list := d.verifying[digest]
	delete(d.verifying, digest)
	for _, r := range list {
		if err := d.take(r.BlobRequest, r.blobWaiter); err != nil {
			r.tell(failureAnswer(r.BlobRequest, err))
		}
	}
}

// toUnavailable gives errors of the system a kind.
func toUnavailable(err error) error {
	if resource.KindOf(err) == resource.Internal {
		return resource.Errorf(resource.Unavailable, "", "the blob can't be stored: %v", err)
	}
	return err
}

// requestDue does what is due, and returns after which time it has to be called again.
func (d *Downloads) requestDue(ctx context.Context) (again time.Duration) {
	now := d.o.Now()
	again = time.Minute
	d.connect(ctx, now, &again)
	if d.hub == nil {
		return again
	}
	if oldest := d.oldest(); !oldest.IsZero() {
		left := oldest.Add(answerTimeout).Sub(now)
		if left <= 0 {
			d.requestAgain()
		} else {
			again = min(again, left)
		}
	}
	if left := d.pausedTo.Sub(now); left > 0 {
		return min(again, left)
	}
	for d.hub != nil {
		l, n := d.choose()
		if l == nil || !d.flow.room(n) {
			return again
		}
		if wait := d.o.Budget.Wait(); wait > 0 {
			return min(again, wait)
		}
		d.ask(l, n, now)
	}
	return again
}

// connect makes a connection while there is something to download, and ends it when there was nothing for idleTime.
func (d *Downloads) connect(ctx context.Context, now time.Time, again *time.Duration) {
	switch {
	case len(d.active) > 0 && d.disconnect == nil:
		ctx, stop := context.WithCancel(ctx)
		d.disconnect = stop
		d.running.Go(func() {
			err := d.o.Connect(ctx)
			gone := ctx.Err() != nil
			stop()
			d.post(func() { d.connectionLost(gone, err) })
		})
		d.idleSince = now
	case len(d.active) > 0:
		d.idleSince = now
	case d.disconnect != nil:
		left := idleTime - now.Sub(d.idleSince)
		if left <= 0 {
			d.disconnect()
			left = idleTime
		}
		*again = min(*again, left)
	}
}

// connectionLost is called when the connection to the hub is lost and is not made again.
func (d *Downloads) connectionLost(wanted bool, err error) {
	d.disconnect, d.hub = nil, nil
	d.dropAllRequests()
	if wanted {
		return
	}
	for _, l := range slices.Collect(maps.Values(d.active)) {
		if l.checking {
			continue
		}
		d.fail(l, resource.Errorf(resource.Unavailable, "", "there is no connection to the hub: %v", err))
	}
}

func (d *Downloads) oldest() (at time.Time) {
	for _, r := range d.requests {
		if at.IsZero() || r.sent.Before(at) {
			at = r.sent
		}
	}
	return at
}

// requestAgain asks again for what did not come in time. If that happens twice the connection is of no use.
func (d *Downloads) requestAgain() {
	d.dropAllRequests()
	d.flow.slow()
	if d.silent {
		d.hub.Reconnect(errors.New("the hub does not answer requests for blobs"))
	}
	d.silent = !d.silent
}

// choose finds the download of which the least is missing, so that a large one does not hold up a small one, and how much
// to request of it.
func (d *Downloads) choose() (l *download, n int) {
	for _, c := range d.active {
		if c.next < c.size && (l == nil || c.size-c.written < l.size-l.written) {
			l = c
		}
	}
	if l == nil {
		return nil, 0
	}
	return l, int(min(int64(d.flow.length()), l.size-l.next))
}

// ask requests the next range of a download.
func (d *Downloads) ask(l *download, n int, now time.Time) {
	payload, err := json.Marshal(resource.BlobRequest{
		Digest: l.digest, Offset: l.next, Length: n, Damaged: l.attempts > 0 && l.next == 0,
	})
	if err != nil {
		d.fail(l, err)
		return
	}
	d.number++
	id := d.number
	d.requests[id] = &rangeRequest{l, l.next, n, now}
	l.next += int64(n)
	d.flow.sent(n)
	d.o.Budget.Download(n + rangeOverhead)
	m := client.Message{Topic: d.topic, Payload: payload, QoS: 1, ResponseTopic: d.reply, Correlation: strconv.AppendUint(nil, id, 36)}
	d.hub.PublishAsync(m, func(err error) {
		if err != nil {
			d.post(func() { d.requestFailed(id, err) })
		}
	})
}

// requestFailed handles a request that the hub did not take.
func (d *Downloads) requestFailed(id uint64, err error) {
	r := d.requests[id]
	if r == nil {
		return
	}
	refused := (*client.Refused)(nil)
	if errors.As(err, &refused) && (refused.Code == codeForbidden || refused.Code == codeBadTopic || refused.Code == codeInvalid) {
		d.fail(r.of, resource.Errorf(resource.Forbidden, "", "the hub takes no requests for blobs from this node: %v", err))
		return
	}
	d.dropRequests(r.of)
	d.pausedTo = d.o.Now().Add(retryPause)
}

// Reason codes of refusals that don't go away by themselves.
const (
	codeForbidden = 0x87
	codeBadTopic  = 0x90
	codeInvalid   = 0x99
)

// receive handles a range. Those of a download come in the order of their requests; if one is missing, it and those after it are
// requested again.
func (d *Downloads) receive(m client.Message) {
	id, err := strconv.ParseUint(string(m.Correlation), 36, 64)
	r := d.requests[id]
	if err != nil || r == nil {
		d.stats.Received += int64(len(m.Payload))
		d.stats.Repeated += int64(len(m.Payload))
		return
	}
	now := d.o.Now()
	delete(d.requests, id)
	d.silent = false
	d.flow.received(r.length, now.Sub(r.sent), now)
	d.stats.Received += int64(len(m.Payload))
	l := r.of
	if code := m.Property(topics.PropCode); code != "" {
		d.refused(l, resource.ErrorKind(code), m.Property(topics.PropError))
		return
	}
	switch n := len(m.Payload); {
	case r.offset != l.written:
		d.stats.Repeated += int64(n)
		d.dropRequests(l)
	case n > r.length:
		d.fail(l, resource.Errorf(resource.Internal, "", "the hub sent %d bytes instead of %d", n, r.length))
	case n < r.length:
		err := resource.Errorf(resource.Invalid, "size", "the blob has %d bytes at the hub, and not %d", l.written+int64(n), l.size)
		d.discard(l)
		d.fail(l, err)
	default:
		d.write(l, m.Payload, now)
	}
}

func (d *Downloads) refused(l *download, kind resource.ErrorKind, text string) {
	if kind == resource.Unavailable {
		d.dropRequests(l)
		d.pausedTo = d.o.Now().Add(retryPause)
		return
	}
	d.fail(l, resource.Errorf(kind, "", "%s", text))
}

func (d *Downloads) write(l *download, content []byte, now time.Time) {
	n, err := l.part.Write(content)
	for errors.Is(err, syscall.ENOSPC) && d.files.evict() {
		var more int
		more, err = l.part.Write(content[n:])
		n += more
	}
	l.written += int64(n)
	if err == nil && l.written-l.synced >= syncEvery {
		err = l.part.Sync()
		l.synced = l.written
	}
	switch {
	case err != nil:
		d.fail(l, toUnavailable(err))
	case l.written == l.size:
		d.check(l)
	case now.Sub(l.reported) >= progressEvery:
		l.reported = now
		l.tell(resource.BlobAnswer{Digest: l.digest, Received: l.written, Size: l.size})
	}
}

// check compares the digest of a download that is whole.
func (d *Downloads) check(l *download) {
	l.checking = true
	path := d.files.path(l.digest) + partSuffix
	d.running.Go(func() {
		err := l.part.Sync()
		found := ""
		if err == nil {
			found, err = digestFile(path)
		}
		d.post(func() { d.checked(l, found, err) })
	})
}

func (d *Downloads) checked(l *download, found string, err error) {
	l.checking = false
	switch {
	case d.active[l.digest] != l: // it has failed meanwhile
	case err != nil:
		d.fail(l, toUnavailable(err))
	case found != l.digest:
		d.mismatch(l, found)
	default:
		if err := l.part.Close(); err != nil {
			d.fail(l, toUnavailable(err))
			return
		}
		path, err := d.files.finish(l.digest, l.size)
		if err != nil {
			d.fail(l, toUnavailable(err))
			return
		}
		d.stats.Finished++
		delete(d.active, l.digest)
		l.tell(resource.BlobAnswer{Digest: l.digest, Path: path, Received: l.size, Size: l.size})
	}
}

// mismatch begins again with a content that had another digest.
func (d *Downloads) mismatch(l *download, found string) {
	l.attempts++
	d.stats.Mismatches++
	d.stats.Repeated += l.written
	d.o.Log.Error().Str("digest", l.digest).Str("found", found).Int("attempt", l.attempts).Msg("a downloaded blob has another digest: it is thrown away")
	if err := l.part.Truncate(0); err != nil {
		d.fail(l, toUnavailable(err))
		return
	}
	l.written, l.synced, l.next = 0, 0, 0
	if l.attempts >= maxAttempts {
		d.fail(l, resource.Errorf(resource.Internal, "", "the content had another digest %d times: %s", l.attempts, found))
	}
}

// discard empties the part of a download that is of no use.
func (d *Downloads) discard(l *download) {
	if err := l.part.Truncate(0); err == nil {
		l.written, l.synced, l.next = 0, 0, 0
	}
}

// fail ends a download. Its incomplete content is kept until the space is needed.
func (d *Downloads) fail(l *download, err error) {
	d.dropRequests(l)
	delete(d.active, l.digest)
	closing := l.part.Close()
	if l.written == 0 {
		closing = errors.Join(closing, d.files.drop(l.digest, l.size))
	} else {
		d.files.pause(l.digest, l.written, l.size)
	}
	d.stats.Failed++
	d.o.Log.Warn().Err(errors.Join(err, closing)).Str("digest", l.digest).Int64("received", l.written).Int64("size", l.size).Msg("a blob was not downloaded")
	l.tell(failureAnswer(resource.BlobRequest{Digest: l.digest, Size: l.size}, err))
}

func (l *download) tell(a resource.BlobAnswer) {
	for _, w := range l.waiters {
		w.tell(a)
	}
}

// dropRequests forgets the requests of a download: what they would bring is requested again.
func (d *Downloads) dropRequests(l *download) {
	for id, r := range d.requests {
		if r.of == l {
			d.flow.lost(r.length)
			delete(d.requests, id)
		}
	}
	l.next = l.written
}

func (d *Downloads) dropAllRequests() {
	for _, l := range d.active {
		d.dropRequests(l)
	}
}

// takeSnapshot takes the figures that Stats gives.
func (d *Downloads) takeSnapshot() {
	s := d.stats
	s.Stored, s.Bytes, s.Removed, s.Active, s.Missing, s.WindowBytes = len(d.files.complete), d.files.bytes, d.files.removed, len(d.active), 0, d.flow.window
	for _, l := range d.active {
		s.Missing += l.size - l.written
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.snapshot = s
}

// Stats takes a snapshot of the figures.
func (d *Downloads) Stats() Stats {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.snapshot
}
