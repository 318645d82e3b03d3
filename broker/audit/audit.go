// SPDX-License-Identifier: Apache-2.0

// Package audit writes the audit log: one JSON line for each sign-in, each write and each refusal, with who asked for it,
// from where, and what the answer was.
//
// It never delays the one whose action is logged: entries wait in a bounded queue for the goroutine that writes them. It
// never contains a value, a payload or a password. No source, which is a user or the address of who hasn't signed in, pushes
// the others' entries out: what one has too much of is summed, and a line a minute says how much it was (source.go).
package audit

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"
	"gopkg.in/natefinch/lumberjack.v2"
)

// Protocols by which an action was asked for.
const (
	MQTT = "mqtt"
	HTTP = "http"
	Hub  = "hub" // a controller, which is a part of the hub
)

// Actions that are not an HTTP verb of the Kubernetes API (get, list, create, update, patch, delete, …).
const (
	Connect    = "connect"    // an MQTT sign-in
	Disconnect = "disconnect" // the end of a connection
	Publish    = "publish"
	Subscribe  = "subscribe"
	SignIn     = "signin" // an HTTP request that was refused before its verb was looked at
)

// OK is the answer to an action that was done; anything else is the reason code's or the status' name.
const OK = "ok"

// Entry is one line of the log.
type Entry struct {
	Time   time.Time `json:"time"`
	User   string    `json:"user,omitempty"` // empty: anonymous
	Roles  string    `json:"roles,omitempty"`
	Client string    `json:"client,omitempty"` // MQTT client identifier, or the HTTP user agent
	Remote string    `json:"remote,omitempty"` // address and port
	Via    string    `json:"via"`
	Action string    `json:"action"`
	Object string    `json:"object,omitempty"` // topic, filter, or path of the HTTP request
	Answer string    `json:"answer"`
	Reason string    `json:"reason,omitempty"` // of a refusal
	// Count is how many entries a summary stands for, and Since is when the first of them was. It shows the last one.
	Count int64     `json:"count,omitempty"`
	Since time.Time `json:"since,omitzero"`
}

// Options say where the log is and how much of it is kept.
type Options struct {
	File  string // empty: there is no audit log, and New returns nil
	Size  int    // of a file, in MiB, before the next one begins
	Files int    // that are kept besides the current one
	Queue int    // bytes of entries that may wait; 0: 4 MiB
	Log   zerolog.Logger
	Now   func() time.Time // nil: time.Now
}

const (
	defaultQueue = 4 << 20
	maxText      = 1024 // bytes of each text of an entry, since clients choose them
	maxSummary   = 128  // the same of a summary's
	flushBytes   = 64 << 10
	failureEvery = time.Minute
	summaryEvery = time.Minute
)

// Log is an audit log. A nil Log takes entries and writes none, so callers need not ask whether there is one.
type Log struct {
	opts    Options
	ready   chan struct{} // something waits
	out     io.WriteCloser
	written atomic.Int64
	summed  atomic.Int64
	lost    atomic.Int64

	mu      sync.Mutex
	waiting []waitingEntry
	bytes   int64 // of what waits
	sources entrySources
}

// waitingEntry is an entry that waits to be written.
type waitingEntry struct {
	Entry
	from *entrySource
	cost int64
}

// New opens an audit log. Run writes it.
func New(o Options) (*Log, error) {
	if o.File == "" {
		return nil, nil
	}
	if o.Queue == 0 {
		o.Queue = defaultQueue
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	// lumberjack creates files with mode 0600 and keeps the mode of an existing one. Opening the file here makes a wrong
	// path an error of the start and not of the first entry.
	f, err := os.OpenFile(o.File, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return nil, fmt.Errorf("audit.file: %w", err)
	}
	if err := f.Close(); err != nil {
		return nil, fmt.Errorf("audit.file: %w", err)
	}
	return &Log{
		opts: o, ready: make(chan struct{}, 1), sources: newEntrySources(int64(o.Size) << 20 * int64(o.Files+1)),
		out: &lumberjack.Logger{Filename: o.File, MaxSize: o.Size, MaxBackups: o.Files},
	}, nil
}

// Add queues an entry, or sums it with others of its source, and never waits. It sets the time.
func (l *Log) Add(e Entry) {
	if l == nil {
		return
	}
	now := l.opts.Now()
	e.Time = now.UTC()
	for _, text := range e.texts() {
		*text = cutText(*text, maxText)
	}
	cost := e.cost()
	l.mu.Lock()
	defer l.mu.Unlock()
	from := l.sources.of(&e, now)
	// A source has no more of the queue than is left for all others.
	if from.waiting+cost > int64(l.opts.Queue)-l.bytes || !l.sources.allow(from, &e, cost, now) {
		l.sources.sum(from, e)
		l.summed.Add(1)
		return
	}
	l.waiting = append(l.waiting, waitingEntry{Entry: e, from: from, cost: cost})
	l.bytes += cost
	from.waiting += cost
	select {
	case l.ready <- struct{}{}:
	default:
	}
}

// take returns the entries that wait, and the summaries that are due at that time: now and then, and at the end.
func (l *Log) take(when writeMoment) (entries []waitingEntry, summaries []Entry) {
	l.mu.Lock()
	defer l.mu.Unlock()
	entries, l.waiting, l.bytes = l.waiting, nil, 0
	for _, w := range entries {
		w.from.waiting = 0
	}
	if when != atAnyTime {
		summaries = l.sources.due(l.opts.Now(), when == atEnd)
	}
	return entries, summaries
}

// writeMoment is when entries are written.
type writeMoment int

const (
	atAnyTime   writeMoment = iota
	everyMinute             // summaries are looked at
	atEnd                   // all are written
)

// Run writes entries until its context ends, and then those that still wait.
func (l *Log) Run(ctx context.Context) error {
	if l == nil {
		<-ctx.Done()
		return nil
	}
	w := writer{log: l}
	summary := time.NewTicker(summaryEvery)
	defer summary.Stop()
	for {
		select {
		case <-l.ready:
			w.drain(atAnyTime)
		case <-summary.C:
			w.drain(everyMinute)
		case <-ctx.Done():
			w.drain(atEnd)
			return l.out.Close()
		}
	}
}

// texts are those that clients choose.
func (e *Entry) texts() []*string { return []*string{&e.User, &e.Client, &e.Object, &e.Reason} }

// cost is about what the entry takes in the log, and at least what it takes in memory.
func (e *Entry) cost() int64 {
	n := 300
	for _, text := range e.texts() {
		n += len(*text)
		for i := range len(*text) {
			if c := (*text)[i]; c < ' ' || c == '"' || c == '\\' || c >= 0x7F {
				n += 5 // as JSON escapes it
			}
		}
	}
	return int64(n)
}

// cutText returns the first bytes of a text, in memory of their own: the text may be a part of a packet.
func cutText(text string, most int) string {
	if len(text) > most {
		return text[:most] + "…"
	}
	return strings.Clone(text)
}

// writer is the state of Run.
type writer struct {
	log     *Log
	buf     bytes.Buffer
	entries int64
	failed  time.Time // when a failure was logged last
}

// drain writes all that waits, many lines with one call, and the summaries that are due.
func (w *writer) drain(when writeMoment) {
	entries, sums := w.log.take(when)
	for _, e := range entries {
		w.add(e.Entry)
	}
	for _, e := range sums {
		w.add(e)
	}
	w.flush()
}

func (w *writer) add(e Entry) {
	for _, text := range e.texts() {
		*text = withoutTokens(*text)
	}
	line, err := json.Marshal(e)
	if err != nil {
		w.fail(1, err)
		return
	}
	w.buf.Write(line)
	w.buf.WriteByte('\n')
	w.entries++
	if w.buf.Len() >= flushBytes {
		w.flush()
	}
}

// tokenPrefixes are what the tokens of a hub, for people and for nodes that join, and those of OpenID Connect begin with.
var tokenPrefixes = []string{"ebt_", "ebj1-", "eyJ"}

// shownOfToken is how much of a token may be shown: it tells one from another.
const shownOfToken = 12

// withoutTokens shortens what looks like a token. People give one as a name or in a path by mistake.
func withoutTokens(text string) string {
	var out strings.Builder
	done := 0 // how much of the text is in out, or left out
	for i := 0; i < len(text); i++ {
		if !beginsToken(text[i:]) {
			continue
		}
		end := len(text)
		if n := strings.IndexAny(text[i:], "/ \""); n >= 0 {
			end = i + n
		}
		if end-i > shownOfToken+4 {
			out.WriteString(text[done : i+shownOfToken])
			out.WriteString("…")
			done = end
		}
		i = end - 1
	}
	if done == 0 {
		return text
	}
	return out.String() + text[done:]
}

func beginsToken(text string) bool {
	return slices.ContainsFunc(tokenPrefixes, func(prefix string) bool { return strings.HasPrefix(text, prefix) })
}

func (w *writer) flush() {
	if w.entries == 0 {
		return
	}
	_, err := w.log.out.Write(w.buf.Bytes())
	if err != nil {
		w.fail(w.entries, err)
	} else {
		w.log.written.Add(w.entries)
	}
	w.buf.Reset()
	w.entries = 0
}

// fail counts entries that could not be written, and logs why once a minute.
func (w *writer) fail(entries int64, err error) {
	w.log.lost.Add(entries)
	if now := w.log.opts.Now(); now.Sub(w.failed) >= failureEvery {
		w.failed = now
		w.log.opts.Log.Error().Err(err).Str("file", w.log.opts.File).Int64("lost", w.log.lost.Load()).
			Msg("the audit log can't be written: entries are lost until it can")
	}
}

// Register registers the log's metrics.
func (l *Log) Register(r prometheus.Registerer) error {
	if l == nil {
		return nil
	}
	counter := func(name, help string, n *atomic.Int64) error {
		return r.Register(prometheus.NewCounterFunc(prometheus.CounterOpts{Name: name, Help: help}, func() float64 { return float64(n.Load()) }))
	}
	return errors.Join(
		counter("edgebus_audit_entries_total", "Entries written to the audit log.", &l.written),
		counter("edgebus_audit_summed_entries_total", "Entries that were summed into one line a minute, because their user or address had too many.", &l.summed),
		counter("edgebus_audit_lost_entries_total", "Entries that were not written, because the file could not be written.", &l.lost))
}
