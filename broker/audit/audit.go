// Package audit writes the audit log: one JSON line for each sign-in, each write and each refusal, with who asked for it,
// from where, and what the answer was.
//
// It never delays the one whose action is logged: entries wait in a bounded queue for the goroutine that writes them, and
// an entry that finds the queue full is counted as lost. It never contains a value, a payload or a password.
package audit

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
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
}

// Options say where the log is and how much of it is kept.
type Options struct {
	File  string // empty: there is no audit log, and New returns nil
	Size  int    // of a file, in MiB, before the next one begins
	Files int    // that are kept besides the current one
	Queue int    // entries that may wait; 0: 4,096
	Log   zerolog.Logger
	Now   func() time.Time // nil: time.Now
}

const (
	defaultQueue = 4096
	maxText      = 1024 // bytes of each text of an entry, since clients choose them
	flushBytes   = 64 << 10
	failureEvery = time.Minute
)

// Log is an audit log. A nil Log takes entries and writes none, so callers need not ask whether there is one.
type Log struct {
	opts    Options
	queue   chan Entry
	out     io.WriteCloser
	written atomic.Int64
	lost    atomic.Int64
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
	return &Log{opts: o, queue: make(chan Entry, o.Queue), out: &lumberjack.Logger{Filename: o.File, MaxSize: o.Size, MaxBackups: o.Files}}, nil
}

// Add queues an entry, and never waits. It sets the time.
func (l *Log) Add(e Entry) {
	if l == nil {
		return
	}
	e.Time = l.opts.Now().UTC()
	select {
	case l.queue <- e:
	default:
		l.lost.Add(1)
	}
}

// Run writes entries until its context ends, and then those that still wait.
func (l *Log) Run(ctx context.Context) error {
	if l == nil {
		<-ctx.Done()
		return nil
	}
	w := writer{log: l}
	for {
		select {
		case e := <-l.queue:
			w.add(e)
			w.drain()
		case <-ctx.Done():
			w.drain()
			return l.out.Close()
		}
	}
}

// writer is the state of Run.
type writer struct {
	log     *Log
	buf     bytes.Buffer
	entries int64
	failed  time.Time // when a failure was logged last
}

// drain writes all that waits, many lines with one call.
func (w *writer) drain() {
	for {
		select {
		case e := <-w.log.queue:
			w.add(e)
			if w.buf.Len() >= flushBytes {
				w.flush()
			}
		default:
			w.flush()
			return
		}
	}
}

func (w *writer) add(e Entry) {
	for _, text := range []*string{&e.User, &e.Client, &e.Object, &e.Reason} {
		*text = withoutTokens(*text)
		if len(*text) > maxText {
			*text = (*text)[:maxText] + "…"
		}
	}
	line, err := json.Marshal(e)
	if err != nil {
		w.fail(1, err)
		return
	}
	w.buf.Write(line)
	w.buf.WriteByte('\n')
	w.entries++
}

// tokens are what the tokens of a hub, for people and for nodes that join, and those of OpenID Connect begin with.
var tokens = []string{"ebt_", "ebj1-", "eyJ"}

// shownOfToken is how much of a token may be shown: it tells one from another.
const shownOfToken = 12

// withoutTokens shortens what looks like a token. People give one as a name or in a path by mistake.
func withoutTokens(text string) string {
	for _, prefix := range tokens {
		for i := strings.Index(text, prefix); i >= 0; {
			end := i + len(prefix)
			for end < len(text) && !strings.ContainsRune("/ \"", rune(text[end])) {
				end++
			}
			next := end
			if end-i > shownOfToken+4 {
				text = text[:i+shownOfToken] + "…" + text[end:]
				next = i + shownOfToken
			}
			more := strings.Index(text[next:], prefix)
			if i = next + more; more < 0 {
				break
			}
		}
	}
	return text
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
		counter("edgebus_audit_lost_entries_total", "Entries that were not written, because the queue was full or the file could not be written.", &l.lost))
}
