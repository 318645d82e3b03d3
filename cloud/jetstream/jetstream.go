// SPDX-License-Identifier: Apache-2.0

package jetstream

import (
	"cmp"
	"context"
	"crypto/rand"
	"crypto/tls"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/rs/zerolog"

	"github.com/edgebus/edgebus/broker/ordered"
)

// Options say which stream, and on which servers.
type Options struct {
	Servers     []string
	Stream      string
	Name        string        // of this client, as the servers list it
	Credentials string        // a file as nsc writes it; empty: none
	TLS         *tls.Config   // for servers that ask for TLS; nil: as by default
	NeedTLS     bool          // and for no others
	Replicas    int           // how many servers have the stream; 3
	Timeout     time.Duration // after which nobody knows the outcome of a request; 5 s
	// Back is for how long the log must end before what was read, until that is believed: a leader that is cut off from the other servers goes on
	// telling the end that it knew. 40 s.
	Back time.Duration
	Poll time.Duration // how often who waits for frames asks for them, if nobody tells of them; 250 ms
	Told func([]byte)  // is called with what somebody tells; it must not block. Nil: nobody listens
	Log  zerolog.Logger
}

func (o *Options) setDefaults() {
	if o.Replicas == 0 {
		o.Replicas = 3
	}
	if o.Timeout == 0 {
		o.Timeout = 5 * time.Second
	}
	if o.Back == 0 {
		o.Back = 40 * time.Second
	}
	if o.Poll == 0 {
		o.Poll = 250 * time.Millisecond
	}
}

// Log is an open log.
type Log struct {
	o    Options
	conn *nats.Conn
	id   atomic.Uint64

	mu    sync.Mutex
	told  uint64        // the highest position that an owner told of
	grown chan struct{} // closed when it rises; nil: nobody waits
}

var _ ordered.Log = (*Log)(nil)

func (o *Options) subject() string { return "edgebus.log." + o.Stream }

// hints is the subject on which who has appended says so. A lost one costs a poll.
func (o *Options) hints() string { return "edgebus.end." + o.Stream }

// readers is the subject on which who reads the log tells the others of itself.
func (o *Options) readers() string { return "edgebus.at." + o.Stream }

func (o *Options) connect(ctx context.Context) (*nats.Conn, error) {
	o.setDefaults()
	unasked := o.Log.Sample(&zerolog.BurstSampler{Burst: 5, Period: repeatEvery})
	settings := []nats.Option{
		nats.ErrorHandler(func(_ *nats.Conn, _ *nats.Subscription, err error) {
			unasked.Warn().Err(err).Msg("the log's server says that something is wrong")
		}),
		nats.Name(o.Name), nats.MaxReconnects(-1), nats.ReconnectWait(250 * time.Millisecond), nats.ReconnectJitter(100*time.Millisecond, 250*time.Millisecond),
		nats.ReconnectBufSize(-1),          // what can't be sent now is not sent later, by somebody who may own the log no more
		nats.SyncQueueLen(fetchFrames + 1), // a fetch's frames and the end of them: the default takes half a megabyte for each fetch
		nats.PingInterval(2 * time.Second), nats.MaxPingsOutstanding(2), nats.Timeout(2 * time.Second), nats.CustomInboxPrefix("_INBOX_" + o.Stream),
		nats.DisconnectErrHandler(func(_ *nats.Conn, err error) {
			if err != nil {
				o.Log.Warn().Err(err).Msg("the connection to the log's server is lost; connecting again")
			}
		}),
		nats.ReconnectHandler(func(c *nats.Conn) {
			o.Log.Info().Str("server", c.ConnectedUrlRedacted()).Msg("connected to the log's server")
		}),
	}
	if o.Credentials != "" {
		settings = append(settings, nats.UserCredentials(o.Credentials))
	}
	if o.TLS != nil {
		settings = append(settings, useTLS(o.TLS, o.NeedTLS))
	}
	var said lastWarning
	for {
		c, err := nats.Connect(strings.Join(o.Servers, ","), settings...)
		if errors.Is(err, nats.ErrAuthorization) {
			return nil, fmt.Errorf("none of the log's servers lets this hub in (%w): have their settings made by `cloudhub cluster certificates`, or sign in as one of their users, by store.nats.tls or store.nats.credentials", err)
		}
		if err == nil || ctx.Err() != nil {
			return c, err
		}
		if said.isNew(err) {
			advice := "Do they run, and does store.nats.servers name them?"
			if errors.As(err, new(*tls.CertificateVerificationError)) {
				advice = "Its certificate is of another authority: make it with this cluster.key (`cloudhub cluster certificates`), or name the authority in store.nats.tls.ca; or it has another name than store.nats.servers"
			}
			o.Log.Warn().Err(err).Strs("servers", o.Servers).Msg("no server of the log answers; trying again. " + advice)
		}
		select {
		case <-ctx.Done():
			return nil, fmt.Errorf("no server of the log answers: %w", err)
		case <-time.After(time.Second):
		}
	}
}

// lastWarning keeps what happens each second from being logged as often.
type lastWarning struct {
	text string
	at   time.Time
}

const repeatEvery = time.Minute

// isNew reports whether an error is another than the one before, or was logged a while ago.
func (r *lastWarning) isNew(err error) bool {
	text := err.Error()
	if text == r.text && time.Since(r.at) < repeatEvery {
		return false
	}
	r.text, r.at = text, time.Now()
	return true
}

// connectInTime is connect for a command, which ends.
func (o *Options) connectInTime(ctx context.Context) (*nats.Conn, error) {
	ctx, stop := context.WithTimeout(ctx, createTime)
	defer stop()
	return o.connect(ctx)
}

// Open opens the log, whose stream there must be. It waits for a server until ctx ends.
func Open(ctx context.Context, o Options) (*Log, error) {
	l, err := Listen(ctx, o)
	if err != nil {
		return nil, err
	}
	if err := l.Open(ctx); err != nil {
		l.conn.Close()
		return nil, err
	}
	return l, nil
}

// Listen has who reads the log tell and be told, also if there is no stream. Nothing else of it can be used before Open.
func Listen(ctx context.Context, o Options) (*Log, error) {
	conn, err := o.connect(ctx)
	if err != nil {
		return nil, err
	}
	l := &Log{o: o, conn: conn}
	_, err = conn.Subscribe(o.hints(), l.hint)
	if err == nil && o.Told != nil {
		_, err = conn.Subscribe(o.readers(), func(m *nats.Msg) { o.Told(m.Data) })
	}
	if err != nil {
		conn.Close()
		return nil, err
	}
	return l, nil
}

// Open opens a log that listens.
func (l *Log) Open(ctx context.Context) error {
	err := l.open(ctx)
	if err == nil && l.conn.MaxPayload() < MinPayload {
		err = fmt.Errorf("the log's servers take messages of %d bytes at most: set max_payload to 1MB", l.conn.MaxPayload())
	}
	return err
}

// MinPayload is the least that servers must take as a message.
const MinPayload = 600 << 10

// Tell tells something to all who have this log open and listen, this one included. It may be lost.
func (l *Log) Tell(text []byte) { _ = l.conn.Publish(l.o.readers(), text) }

// Check asks whether the stream is as it must be, and by how much the clock of its leader is ahead of this host's; without a leader that isn't known. That the
// stream doesn't answer is no error.
func (l *Log) Check(ctx context.Context) (leader string, ahead time.Duration, err error) {
	began := time.Now()
	i, err := l.info(ctx)
	if isGone(err) {
		return "", 0, l.gone()
	}
	if err != nil {
		return "", 0, nil //nolint:nilerr // who can't ask can't append either
	}
	if took := time.Since(began); !i.Time.IsZero() && took < time.Second {
		leader, ahead = cmp.Or(i.Cluster.Leader, l.conn.ConnectedServerName()), i.Time.Sub(began.Add(took/2))
	}
	return leader, ahead, l.judge(i)
}

// judge says what is wrong with the stream, or with the server that this client is connected to.
func (l *Log) judge(i *streamInfo) error {
	if v := l.conn.ConnectedServerVersion(); isOlder(v, MinVersion) {
		return fmt.Errorf("the server %s is NATS %s: install %s or later", l.conn.ConnectedServerName(), v, MinVersion)
	}
	if wrong := i.Config.wrong(l.o); len(wrong) > 0 {
		return fmt.Errorf("the stream %s can't be the hubs' log: %s", l.o.Stream, strings.Join(wrong, "; "))
	}
	return nil
}

// ErrNoStream is in the chain of the error for a stream that there is not.
var ErrNoStream = errors.New("there is no such stream")

func isGone(err error) bool {
	var refused *apiError
	return errors.As(err, &refused) && refused.ErrCode == codeNoStream
}

func (l *Log) gone() error {
	return fmt.Errorf("the servers %s say that there is no stream %s (%w): `cloudhub cluster init` makes it for hubs that had none. If there was one, it was deleted, or these are other servers: look at store.nats.servers, the account and store.nats.stream",
		strings.Join(l.o.Servers, ", "), l.o.Stream, ErrNoStream)
}

func (l *Log) open(ctx context.Context) error {
	var said lastWarning
	for {
		i, err := l.info(ctx)
		switch {
		case err == nil:
			return l.adopt(i)
		case isGone(err):
			return l.gone()
		case ctx.Err() != nil:
			return err
		}
		advice := "`cloudhub cluster status` on another hub says which of its servers are there"
		if errors.Is(l.conn.LastError(), nats.ErrPermissionViolation) {
			advice = fmt.Sprintf("its servers don't let this hub use the stream %s: have their settings made by `cloudhub cluster certificates` with the same store.nats.stream", l.o.Stream)
		}
		if said.isNew(errors.New(advice)) {
			l.o.Log.Warn().Err(err).Msg("the log doesn't answer; trying again: " + advice)
		}
		select {
		case <-ctx.Done():
			return err
		case <-time.After(time.Second):
		}
	}
}

// adopt checks the stream's settings, and takes its identity.
func (l *Log) adopt(i *streamInfo) error {
	if err := l.judge(i); err != nil {
		return err
	}
	id, err := strconv.ParseUint(i.Config.Metadata[metadataID], 16, 64)
	if err != nil || id == 0 {
		return fmt.Errorf("the stream %s has no identity in its metadata (%s): `cloudhub cluster init` did not make it", l.o.Stream, metadataID)
	}
	l.id.Store(id)
	return nil
}

// Create makes the stream, which there must not be yet.
func Create(ctx context.Context, o Options) (ordered.LogID, error) {
	conn, err := o.connectInTime(ctx)
	if err != nil {
		return 0, err
	}
	defer conn.Close()
	l := &Log{o: o, conn: conn}
	id := newID()
	c := wantedConfig(o)
	c.Metadata = map[string]string{metadataID: strconv.FormatUint(uint64(id), 16)}
	var made streamInfo
	for until := time.Now().Add(createTime); ; { // who asks again for the same stream is told that it is there
		err := l.call(ctx, "STREAM.CREATE."+o.Stream, c, &made)
		if err == nil {
			return id, l.adopt(&made)
		}
		err = fmt.Errorf("the stream %s can't be made: %w", o.Stream, err)
		var refused *apiError
		if errors.As(err, &refused) && refused.ErrCode == codeNameTaken {
			return 0, fmt.Errorf("%w. If it is left from an attempt that failed, and no hub uses it: nats stream rm %s", err, o.Stream)
		}
		if errors.As(err, &refused) && !refused.mayPass() || ctx.Err() != nil || time.Now().After(until) {
			return 0, err
		}
		l.o.Log.Warn().Err(err).Msg("the servers may still be starting; trying again")
		select {
		case <-ctx.Done():
			return 0, err
		case <-time.After(time.Second):
		}
	}
}

// DeleteStream deletes the stream, if there is one.
func DeleteStream(ctx context.Context, o Options) error {
	conn, err := o.connectInTime(ctx)
	if err != nil {
		return err
	}
	defer conn.Close()
	if err = (&Log{o: o, conn: conn}).call(ctx, "STREAM.DELETE."+o.Stream, nil, nil); isGone(err) {
		return nil
	}
	return err
}

// createTime is how long servers that were started a moment ago may take until they make a stream.
const createTime = time.Minute

func newID() (id ordered.LogID) {
	for id == 0 {
		var b [8]byte
		_, _ = rand.Read(b[:]) // crypto/rand never fails
		id = ordered.LogID(binary.LittleEndian.Uint64(b[:]))
	}
	return id
}

// Close ends the connection.
func (l *Log) Close() error {
	l.conn.Close()
	return nil
}

// ID is the identity that the stream's metadata have.
func (l *Log) ID() ordered.LogID { return ordered.LogID(l.id.Load()) }

// Renew makes the log another one that goes on where this one ends.
func (l *Log) Renew(ctx context.Context) error {
	i, err := l.info(ctx)
	if err != nil {
		return err
	}
	id := newID()
	i.Config.Metadata[metadataID] = strconv.FormatUint(uint64(id), 16)
	if err := l.call(ctx, "STREAM.UPDATE."+l.o.Stream, i.Config, i); err != nil {
		return err
	}
	l.id.Store(uint64(id))
	return nil
}

// Append appends frames: one as a message, several as an atomic batch.
func (l *Log) Append(ctx context.Context, after ordered.Position, frames ...[]byte) (ordered.Position, error) {
	if err := ctx.Err(); err != nil {
		return 0, err
	}
	if len(frames) == 0 {
		_, end, err := l.Bounds(ctx)
		if err == nil && end != after {
			err = &ordered.MovedError{Last: end}
		}
		return after, err
	}
	ctx, cancel := context.WithTimeout(ctx, l.o.Timeout)
	defer cancel()
	batch := ""
	if len(frames) > 1 {
		batch = hex.EncodeToString(binary.LittleEndian.AppendUint64(nil, uint64(newID())))
	}
	var answer *nats.Msg
	for i, body := range frames {
		m := nats.NewMsg(l.o.subject())
		m.Data = body
		if i == 0 {
			m.Header.Set("Nats-Expected-Last-Sequence", strconv.FormatUint(uint64(after), 10))
		}
		if batch != "" {
			m.Header.Set("Nats-Batch-Id", batch)
			m.Header.Set("Nats-Batch-Sequence", strconv.Itoa(i+1))
		}
		if i < len(frames)-1 {
			if err := l.conn.PublishMsg(m); err != nil { // without the last one nothing of a batch is stored
				return 0, err
			}
			continue
		}
		if batch != "" {
			m.Header.Set("Nats-Batch-Commit", "1")
		}
		var err error
		if answer, err = l.conn.RequestMsgWithContext(ctx, m); err != nil {
			return 0, sendError(err)
		}
	}
	at, err := decodeAck(answer.Data)
	if err != nil {
		return 0, err
	}
	_ = l.conn.Publish(l.o.hints(), strconv.AppendUint(nil, uint64(at), 10))
	return at, nil
}

// sendError is the error for a request that has no answer. Nobody knows what became of it, unless it was never sent.
func sendError(err error) error {
	if errors.Is(err, nats.ErrReconnectBufExceeded) || errors.Is(err, nats.ErrMaxPayload) || errors.Is(err, nats.ErrConnectionClosed) {
		return err
	}
	return fmt.Errorf("%w: %w", ordered.ErrUnknown, err)
}

// decodeAck decodes the answer to an append.
func decodeAck(data []byte) (ordered.Position, error) {
	var ack struct {
		Error *apiError `json:"error"`
		Seq   uint64    `json:"seq"`
	}
	if err := json.Unmarshal(data, &ack); err != nil {
		return 0, fmt.Errorf("%w: %w", ordered.ErrUnknown, err)
	}
	e := ack.Error
	switch {
	case e == nil && ack.Seq > 0:
		return ordered.Position(ack.Seq), nil
	case e == nil:
		return 0, fmt.Errorf("%w: the answer has no sequence", ordered.ErrUnknown)
	case e.ErrCode == codeWrongLast:
		last, err := strconv.ParseUint(e.Description[strings.LastIndexByte(e.Description, ' ')+1:], 10, 64)
		if err == nil {
			return 0, &ordered.MovedError{Last: ordered.Position(last)}
		}
	case slices.Contains(refusals, e.ErrCode):
		return 0, e
	}
	return 0, fmt.Errorf("%w: %w", ordered.ErrUnknown, e)
}

// Bounds asks the stream's leader, or who takes itself for it.
func (l *Log) Bounds(ctx context.Context) (floor, end ordered.Position, err error) {
	i, err := l.info(ctx)
	if err != nil {
		return 0, 0, err
	}
	return i.floor(), ordered.Position(i.State.Last), nil
}

// Trim purges what is before a position.
func (l *Log) Trim(before ordered.Position) error {
	ctx, cancel := context.WithTimeout(context.Background(), l.o.Timeout)
	defer cancel()
	_, end, err := l.Bounds(ctx)
	if err != nil {
		return err
	}
	return l.call(ctx, "STREAM.PURGE."+l.o.Stream, map[string]uint64{"seq": uint64(min(before, end))}, nil)
}

func (l *Log) hint(m *nats.Msg) {
	at, _ := strconv.ParseUint(string(m.Data), 10, 64)
	l.mu.Lock()
	defer l.mu.Unlock()
	if at > l.told {
		l.told = at
		if l.grown != nil {
			close(l.grown)
			l.grown = nil
		}
	}
}

// forget forgets that somebody told of more than up to a position.
func (l *Log) forget(after ordered.Position) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.told = min(l.told, uint64(after))
}

// wait waits until somebody tells of more than up to a position, or for as long as a poll takes.
func (l *Log) wait(ctx context.Context, after ordered.Position) error {
	l.mu.Lock()
	more := l.told > uint64(after)
	if !more && l.grown == nil {
		l.grown = make(chan struct{})
	}
	grown := l.grown
	l.mu.Unlock()
	pause := l.o.Poll
	if more { // it is told before each server has it
		pause, grown = min(pause, 2*time.Millisecond), nil
	}
	timer := time.NewTimer(pause)
	defer timer.Stop()
	select {
	case <-grown:
	case <-timer.C:
	case <-ctx.Done():
		return ctx.Err()
	}
	return nil
}

// Read reads in batches, from whichever server answers, and waits for more.
func (l *Log) Read(ctx context.Context, after ordered.Position) iter.Seq2[ordered.Frame, error] {
	return func(yield func(ordered.Frame, error) bool) {
		r := reading{log: l, after: after, id: l.ID()}
		for {
			frames, err := r.next(ctx)
			if err != nil {
				yield(ordered.Frame{}, err)
				return
			}
			for _, f := range frames {
				if !yield(f, nil) {
					return
				}
				r.after = f.At
			}
		}
	}
}

// reading is what Read knows.
type reading struct {
	log     *Log
	id      ordered.LogID
	after   ordered.Position
	checked time.Time // when the leader was asked last, for who is there and has nothing to read
	back    time.Time // since when the log ends before after; zero: it doesn't
	gone    time.Time // since when the servers say that there is no stream
	hole    int       // how often the next frame was missing in an answer
	empty   int       // how many answers had none since the last frame
}

const (
	checkEvery = 2 * time.Second
	holeTries  = 20
	emptyTries = 500 // after which nobody is believed who told of more
)

// next are the frames after r.after. There may be none yet.
func (r *reading) next(ctx context.Context) ([]ordered.Frame, error) {
	frames, err := r.log.fetch(ctx, r.after)
	if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	missing := len(frames) > 0 && frames[0].At != r.after+1
	if !missing && len(frames) > 0 {
		r.hole, r.empty, r.back = 0, 0, time.Time{}
		return frames, nil
	}
	if err != nil || missing || time.Since(r.checked) >= min(checkEvery, r.log.o.Back) {
		if gone := r.check(ctx, missing); gone != nil {
			return nil, gone
		}
	}
	return nil, r.wait(ctx)
}

// wait waits after an answer without the next frame. What a frame that never comes was told of is forgotten: then it is asked for as if nobody had told.
func (r *reading) wait(ctx context.Context) error {
	if r.empty++; r.empty%emptyTries == 0 {
		r.log.forget(r.after)
	}
	return r.log.wait(ctx, r.after)
}

// check asks the leader why nothing can be read. An error of asking is none of reading: the log doesn't answer, and may again.
func (r *reading) check(ctx context.Context, missing bool) error {
	i, err := r.log.info(ctx)
	if isGone(err) {
		return r.noStream()
	}
	r.gone = time.Time{}
	if err != nil {
		return ctx.Err()
	}
	r.checked = time.Now()
	if id, err := strconv.ParseUint(i.Config.Metadata[metadataID], 16, 64); err == nil && ordered.LogID(id) != r.id {
		r.log.id.Store(id)
		return fmt.Errorf("%w: it was made anew", ordered.ErrBack)
	}
	if floor := i.floor(); r.after < floor {
		return fmt.Errorf("%w: it begins after %d", ordered.ErrGone, floor)
	}
	if missing {
		if r.hole++; r.hole > holeTries {
			return fmt.Errorf("the frame at %d is missing in the stream %s, which has others behind it", r.after+1, r.log.o.Stream)
		}
	}
	if last := ordered.Position(i.State.Last); r.after > last {
		if r.back.IsZero() {
			r.back = time.Now()
		}
		if time.Since(r.back) >= r.log.o.Back {
			return fmt.Errorf("%w: its last frame is at %d", ordered.ErrBack, last)
		}
		return nil
	}
	r.back = time.Time{}
	return nil
}

// noStream says at once that there is no stream, and believes it when that is said for a while: a server that has just started may know of none yet.
func (r *reading) noStream() error {
	if r.gone.IsZero() {
		r.gone = time.Now()
		r.log.o.Log.Error().Err(r.log.gone()).Msg("the log is gone; nothing is acknowledged")
	}
	if time.Since(r.gone) < min(goneTime, r.log.o.Back) {
		return nil
	}
	return fmt.Errorf("%w: %w", ordered.ErrBack, r.log.gone())
}

// goneTime is for how long servers must say that there is no stream, until that is believed.
const goneTime = 5 * time.Second

const (
	fetchFrames = 256
	fetchBytes  = 4 << 20
)

// fetch reads the next frames that some server has.
func (l *Log) fetch(ctx context.Context, after ordered.Position) (frames []ordered.Frame, err error) {
	sub, err := l.conn.SubscribeSync(l.conn.NewInbox())
	if err != nil {
		return nil, err
	}
	defer sub.Unsubscribe() //nolint:errcheck // the connection is closed then
	_ = sub.SetPendingLimits(-1, -1)
	ask, _ := json.Marshal(map[string]uint64{"seq": uint64(after) + 1, "batch": fetchFrames, "max_bytes": fetchBytes})
	if err := l.conn.PublishRequest("$JS.API.DIRECT.GET."+l.o.Stream, sub.Subject, ask); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, l.o.Timeout)
	defer cancel()
	for {
		m, err := sub.NextMsgWithContext(ctx)
		if err != nil {
			return frames, err
		}
		seq := m.Header.Get("Nats-Sequence")
		if status := m.Header.Get("Status"); status != "" || seq == "" {
			if status == "204" || status == "404" {
				return frames, nil
			}
			return frames, fmt.Errorf("the log's server answers %s %s", status, m.Header.Get("Description"))
		}
		at, err := strconv.ParseUint(seq, 10, 64)
		if err != nil {
			return frames, err
		}
		if n := len(frames); n > 0 && frames[n-1].At+1 != ordered.Position(at) { // the next fetch finds out why
			return frames, nil
		}
		frames = append(frames, ordered.Frame{At: ordered.Position(at), Body: m.Data})
	}
}
