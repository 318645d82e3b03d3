// SPDX-License-Identifier: Apache-2.0

// Package requests answers who asks what a property was: over HTTP, and on the topic devices/{device}/history of hub and node alike.
//
// It never decides who may read a Device: its users do.
package requests

import (
	"bufio"
	"cmp"
	"context"
	"encoding/csv"
	"encoding/json"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/rs/zerolog"

	"github.com/edgebus/edgebus/broker"
	"github.com/edgebus/edgebus/broker/daemon/httpserver"
	"github.com/edgebus/edgebus/broker/history"
	"github.com/edgebus/edgebus/broker/tree"
	"github.com/edgebus/edgebus/topics"
	"github.com/edgebus/edgebus/topics/resource"
)

const (
	defaultPoints = 500
	defaultTime   = 24 * time.Hour
	maxRequests   = 32 // that are answered at one time,
	maxOfUser     = 8  // and of one user: the others' get their turn
	answerTimeout = 30 * time.Second
	writeTimeout  = time.Minute         // for each piece of an export
	lastMilli     = 253_402_300_799_999 // that RFC 3339 can say: beyond, differences of times overflow
)

// Source has the past of a device.
type Source interface {
	// Read answers a query.
	Read(ctx context.Context, q history.Query) (resource.HistoryAnswer, error)
	// Export calls yield with each part of what a property was, in order.
	Export(ctx context.Context, q history.Query, yield func(resource.HistoryAnswer) error) error
}

// Options are what Requests are made from.
type Options struct {
	// Find returns a Device of a node with its model, and where its past is.
	Find func(ctx context.Context, node, device string) (resource.Bundle, Source, error)
	// Tree gets every publish that is no such request, and Publish publishes the answers.
	Tree    broker.Tree
	Publish func(broker.Message)
	Log     zerolog.Logger
	Now     func() time.Time // nil: time.Now
}

// Requests stand between a broker and its tree.
type Requests struct {
	broker.Tree
	o Options

	mu      sync.Mutex
	running int
	of      map[string]int // those of each user who has any; of a client without a user its client identifier
}

// New makes Requests.
func New(o Options) *Requests {
	if o.Now == nil {
		o.Now = time.Now
	}
	return &Requests{Tree: o.Tree, o: o, of: make(map[string]int)}
}

// begin counts a request, unless there are too many.
func (r *Requests) begin(user string) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case r.of[user] >= maxOfUser:
		return resource.Errorf(resource.Unavailable, "", "%d requests of yours for history are being answered, as many as one user's may be: ask again later", maxOfUser)
	case r.running >= maxRequests:
		return resource.Errorf(resource.Unavailable, "", "%d requests for history are being answered: ask again later", maxRequests)
	}
	r.running++
	r.of[user]++
	return nil
}

func (r *Requests) end(user string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.running--
	if r.of[user]--; r.of[user] == 0 {
		delete(r.of, user)
	}
}

// Publish takes requests, which are answered meanwhile, and passes everything else on.
func (r *Requests) Publish(m broker.Message, done func(error)) {
	if !strings.HasSuffix(m.Topic, "/history") {
		r.Tree.Publish(m, done)
		return
	}
	at, err := topics.Parse(m.Topic)
	if err != nil || at.Kind != topics.KindHistory {
		r.Tree.Publish(m, done)
		return
	}
	reply, err := tree.ResponseTopic(m)
	if err != nil {
		done(err)
		return
	}
	user := cmp.Or(m.User(), m.ClientID())
	if err := r.begin(user); err != nil {
		done(err)
		return
	}
	go func() {
		defer r.end(user)
		ctx, cancel := context.WithTimeout(context.Background(), answerTimeout)
		defer cancel()
		payload, err := r.answer(ctx, at, m.Payload)
		done(err)
		if err == nil {
			r.o.Publish(tree.ResponseMessage(m, reply, payload))
		}
	}()
}

func (r *Requests) answer(ctx context.Context, at topics.Address, payload []byte) ([]byte, error) {
	var ask resource.HistoryRequest
	if err := json.Unmarshal(payload, &ask); err != nil {
		return nil, resource.Errorf(resource.Invalid, "", `the request must be JSON such as {"property":"temperature","points":100}`)
	}
	b, source, err := r.o.Find(ctx, at.Node, at.Device)
	if err != nil {
		return nil, err
	}
	q, err := query(b, ask, r.o.Now())
	if err != nil {
		return nil, err
	}
	a, err := read(ctx, b, source, q)
	if err != nil {
		return nil, err
	}
	return json.Marshal(a)
}

func read(ctx context.Context, b resource.Bundle, source Source, q history.Query) (resource.HistoryAnswer, error) {
	a, err := source.Read(ctx, q)
	a.Device, a.Property = b.Device.Metadata.Name, q.Property
	return a, err
}

// query is what a request asks for, by its rules.
func query(b resource.Bundle, ask resource.HistoryRequest, now time.Time) (q history.Query, err error) {
	if ask.Property == "" {
		return q, resource.Errorf(resource.Invalid, "property", "is required: the property of the device, one of its model's")
	}
	if err := b.Model.CheckKnown(ask.Property); err != nil {
		return q, err
	}
	q.SeriesKey = history.SeriesKey{Device: b.Device.Metadata.UID, Property: ask.Property}
	to, err := parseTime("to", ask.To, now, now)
	if err != nil {
		return q, err
	}
	from, err := parseTime("from", ask.From, to.Add(-defaultTime), now)
	if err != nil {
		return q, err
	}
	if !from.Before(to) {
		return q, resource.Errorf(resource.Invalid, "from", "%s is not before to, %s", resource.FormatTime(from), resource.FormatTime(to))
	}
	q.From, q.To, q.Points = from.UnixMilli(), to.UnixMilli(), cmp.Or(ask.Points, defaultPoints)
	if q.Points < 1 || q.Points > resource.MaxHistoryPoints {
		return q, resource.Errorf(resource.Invalid, "points", "%d: must be 1 to %d", ask.Points, resource.MaxHistoryPoints)
	}
	q.Floor = b.HistoryRule(ask.Property).Floor(now)
	return q, nil
}

// parseTime reads a time: RFC 3339, milliseconds since 1970, or how long ago, such as 24h.
func parseTime(field, text string, missing, now time.Time) (time.Time, error) {
	if text == "" {
		return missing, nil
	}
	if ms, err := strconv.ParseInt(text, 10, 64); err == nil {
		if ms < 0 || ms > lastMilli {
			return now, resource.Errorf(resource.Invalid, field, "%d: milliseconds since 1970 are 0 to %d, the end of the year 9999", ms, int64(lastMilli))
		}
		return time.UnixMilli(ms), nil
	}
	if d, err := time.ParseDuration(text); err == nil && d > 0 {
		return now.Add(-d), nil
	}
	t, err := resource.ParseTime(text)
	if err != nil {
		return t, resource.Errorf(resource.Invalid, field, "%.40q must be a time, such as 2026-11-21T10:00:00Z, or how long ago, such as 24h", text)
	}
	return t, nil
}

// ServeHTTP answers GET …/devices/{device}/history for a Device that the client may read.
//
//	property  the property; without it, all of the model's, as CSV
//	from, to  the time: RFC 3339, milliseconds since 1970, or how long ago, such as 24h; without them the last day
//	points    how many points at most; without it 500, or as CSV every change
//	format    csv, as the header Accept: text/csv
func ServeHTTP(w http.ResponseWriter, r *http.Request, b resource.Bundle, source Source) error {
	now, v := time.Now(), r.URL.Query()
	ask, err := requestOf(v)
	if err != nil {
		return err
	}
	if v.Get("format") != "csv" && !strings.Contains(r.Header.Get("Accept"), "text/csv") {
		if v.Has("format") && v.Get("format") != "json" {
			return resource.Errorf(resource.Invalid, "format", "%.20q: must be json or csv", v.Get("format"))
		}
		q, err := query(b, ask, now)
		if err != nil {
			return err
		}
		a, err := read(r.Context(), b, source, q)
		return httpserver.SendJSONOr(w, a, err)
	}
	properties := []string{ask.Property}
	if ask.Property == "" {
		properties = nil
		for _, p := range b.Model.Spec.Properties {
			properties = append(properties, p.Name)
		}
	}
	queries := make([]history.Query, 0, len(properties))
	for _, p := range properties {
		ask.Property = p
		q, err := query(b, ask, now)
		if err != nil {
			return err
		}
		queries = append(queries, q)
	}
	return sendCSV(w, r, b.Device.Metadata.Name, queries, v.Has("points"), source)
}

func requestOf(v url.Values) (ask resource.HistoryRequest, err error) {
	ask = resource.HistoryRequest{Property: v.Get("property"), From: v.Get("from"), To: v.Get("to")}
	if text := v.Get("points"); text != "" {
		if ask.Points, err = strconv.Atoi(text); err != nil || ask.Points < 1 {
			return ask, resource.Errorf(resource.Invalid, "points", "%.20q: must be a number, 1 to %d", text, resource.MaxHistoryPoints)
		}
	}
	return ask, nil
}

// sendCSV writes what properties were, file by file, so that no memory grows with it.
func sendCSV(w http.ResponseWriter, r *http.Request, device string, queries []history.Query, points bool, source Source) error {
	w.Header().Set("Content-Type", "text/csv; charset=utf-8")
	w.Header().Set("Content-Disposition", `attachment; filename="`+device+`.csv"`)
	rc, out := http.NewResponseController(w), bufio.NewWriterSize(w, 64<<10)
	lines := csv.NewWriter(out)
	_ = lines.Write([]string{"time", "property", "value", "min", "max"}) // Error says whether it was written, as after the other lines
	for _, q := range queries {
		yield := func(a resource.HistoryAnswer) error {
			_ = rc.SetWriteDeadline(time.Now().Add(writeTimeout)) // without deadlines there is no connection to hold
			for i := range a.Times {
				_ = lines.Write([]string{resource.FormatMillis(a.Times[i]), q.Property, formatValue(a.Values[i]), formatNumber(a.Min, i), formatNumber(a.Max, i)})
			}
			lines.Flush()
			return lines.Error()
		}
		var err error
		if points {
			var a resource.HistoryAnswer
			if a, err = source.Read(r.Context(), q); err == nil {
				err = yield(a)
			}
		} else {
			q.Points = 0
			err = source.Export(r.Context(), q, yield)
		}
		if err != nil {
			if lines.Error() != nil || r.Context().Err() != nil {
				return nil // the client is gone
			}
			panic(http.ErrAbortHandler) // what was sent is not whole, and must not look so
		}
	}
	lines.Flush()
	_ = out.Flush() // or the client is gone
	return nil
}

func formatValue(v any) string {
	switch v := v.(type) {
	case float64:
		return strconv.FormatFloat(v, 'g', -1, 64)
	case string:
		return v
	}
	return ""
}

func formatNumber(list []*float64, i int) string {
	if i >= len(list) || list[i] == nil {
		return ""
	}
	return formatValue(*list[i])
}
