// SPDX-License-Identifier: Apache-2.0

package history

import (
	"context"
	"errors"
	"io/fs"
	"math"
	"os"
	"runtime"
	"slices"
	"sync"

	"github.com/edgebus/edgebus/topics/resource"
)

// bucket is what a property was in a part of a plot.
type plotBucket struct {
	sum, width float64 // of the known part of it
	low, high  float64
	any        bool
}

func (b *plotBucket) known() bool { return b.any }

// mean is weighted by time: a value counts for as long as it was so. Values near the greatest that there are overflow the sum.
func (b *plotBucket) mean() float64 {
	mean := b.sum / b.width
	if math.IsNaN(mean) {
		return b.low/2 + b.high/2
	}
	return min(max(mean, b.low), b.high)
}

func (b *plotBucket) note(low, high float64) {
	if !b.any {
		b.low, b.high, b.any = low, high, true
		return
	}
	b.low, b.high = min(b.low, low), max(b.high, high)
}

// buckets make a plot of samples that come in order.
type buckets struct {
	from, step int64
	list       []plotBucket
	last       sample
	live       bool
}

func newBuckets(from, step int64, n int) *buckets {
	return &buckets{from: from, step: step, list: make([]plotBucket, n)}
}

func (b *buckets) add(v sample) {
	switch {
	case b.live && v.t < b.last.t:
		return // late, and of a file before
	case b.live:
		b.hold(b.last, v.t)
	}
	b.live = v.form == numberForm && !v.gap
	b.last = v
	if v.form == thinForm {
		b.hold(v, v.t+thinStep)
	} else if i := (v.t - b.from) / b.step; b.live && v.t >= b.from && i < int64(len(b.list)) {
		b.list[i].note(v.number, v.number)
	}
}

// hold counts a value up to a time.
func (b *buckets) hold(v sample, until int64) {
	low, high := v.number, v.number
	if v.form == thinForm {
		low, high = v.low, v.high
	}
	at, until := max(v.t, b.from), min(until, b.from+b.step*int64(len(b.list)))
	for at < until {
		i := (at - b.from) / b.step
		end := min(until, b.from+(i+1)*b.step)
		b.list[i].note(low, high)
		b.list[i].sum += v.number * float64(end-at)
		b.list[i].width += float64(end - at)
		at = end
	}
}

// finish counts the last value up to when it was known to be so.
func (b *buckets) finish(until int64) {
	if b.live {
		b.hold(b.last, until)
	}
}

// firstSeen is where the past of a series begins.
type firstSeen struct {
	number uint64 // of the file
	t      int64
}

// Query is what is asked of a series.
type Query struct {
	SeriesKey
	From, To int64 // ms since 1970; To is not in it
	// Points bounds the points of the answer. 0: every sample as it was recorded, or thinned.
	Points int
	// Floor is a time before which nothing is to be shown.
	Floor int64
}

// Read answers a query. What was written and can't be read is left out, and its file put aside.
func (s *Store) Read(ctx context.Context, q Query) (resource.HistoryAnswer, error) {
	q.From = max(q.From, q.Floor)
	a := resource.HistoryAnswer{From: q.From, To: q.To, Times: []int64{}, Values: []any{}}
	until := min(q.To, s.knownUntil())
	p := newPlot(q, until)
	since, err := s.each(ctx, q, func(list []sample) error {
		for _, v := range list {
			p.add(v)
		}
		return nil
	})
	if since != 0 {
		a.Since = max(since, q.Floor)
	}
	p.answer(&a)
	return a, err
}

// Export calls yield with every sample of a series, file by file.
func (s *Store) Export(ctx context.Context, q Query, yield func(resource.HistoryAnswer) error) error {
	q.From, q.Points = max(q.From, q.Floor), 0
	until := min(q.To, s.knownUntil())
	_, err := s.each(ctx, q, func(list []sample) error {
		p := newPlot(q, until)
		for _, v := range list {
			p.add(v)
		}
		a := resource.HistoryAnswer{}
		p.answer(&a)
		return yield(a)
	})
	return err
}

// knownUntil is up to when the last values are known to be so.
func (s *Store) knownUntil() int64 {
	s.files.Lock()
	defer s.files.Unlock()
	if !s.o.copies {
		return s.o.Now().UnixMilli()
	}
	until := lastBlock(s.path(s.number, logSuffix))
	if n := len(s.closed); n > 0 {
		until = max(until, s.closed[n-1].to)
	}
	return until
}

// each calls yield with the samples of a series from each file that may have some of the time asked for, in the order of the files, and
// at last with those that are not written yet. since is when its past begins.
func (s *Store) each(ctx context.Context, q Query, yield func([]sample) error) (since int64, err error) {
	s.files.Lock()
	var pending []sample
	s.mu.Lock()
	if r := s.series[q.SeriesKey]; r != nil {
		for _, c := range r.chunks {
			pending, _ = decodeChunk(pending, c.form, c.bytes) // as it was encoded here
		}
		if r.pending.count > 0 {
			pending, _ = decodeChunk(pending, r.pending.form, r.pending.bytes())
		}
	}
	s.mu.Unlock()
	var numbers []uint64
	for _, f := range s.closed {
		if f.from < q.To && f.to >= q.From {
			numbers = append(numbers, f.number)
		}
	}
	numbers = append(numbers, s.ended...)
	if s.log != nil || s.o.copies && s.find(s.number) == nil {
		numbers = append(numbers, s.number)
	}
	first, known := s.firsts[q.SeriesKey]
	known = known && s.find(first.number) != nil
	s.files.Unlock()
	since = first.t
	if !known {
		if since, err = s.first(ctx, q.SeriesKey); err != nil {
			return 0, err
		}
	}
	for _, number := range numbers {
		end, err := s.reading.turn(ctx)
		if err != nil {
			return since, err
		}
		list, err := s.readNumber(number, q)
		if end(); err != nil {
			return since, err
		}
		list = cut(list, q.Floor)
		if len(list) > 0 {
			if since == 0 {
				since = list[0].t
			}
			if err := yield(list); err != nil {
				return since, err
			}
		}
	}
	if pending = cut(sortSamples(pending), q.Floor); len(pending) > 0 {
		if since == 0 {
			since = pending[0].t
		}
		return since, yield(pending)
	}
	return since, nil
}

// readTurns is held while a file is read for a request.
type readTurns struct{ sync.Mutex }

// turn waits until no other request reads a file, and until all others had the processor (docs/adr/0153): so whoever else has something to do
// waits for one file, however many requests there are. The file is read when end is called.
func (r *readTurns) turn(ctx context.Context) (end func(), err error) {
	r.Lock()
	runtime.Gosched()
	if err := ctx.Err(); err != nil {
		r.Unlock()
		return nil, err
	}
	return r.Unlock, nil
}

// first finds when the past of a series begins.
func (s *Store) first(ctx context.Context, name SeriesKey) (t int64, err error) {
	s.files.Lock()
	list := slices.Clone(s.closed)
	s.files.Unlock()
	for _, f := range list {
		end, err := s.reading.turn(ctx)
		if err != nil {
			return 0, err
		}
		found, err := s.readDirectory(f.number, name)
		if end(); err != nil {
			return 0, err
		}
		if found != 0 {
			s.files.Lock()
			if len(s.firsts) > 100_000 {
				clear(s.firsts)
			}
			s.firsts[name] = firstSeen{f.number, found}
			s.files.Unlock()
			return found, nil
		}
	}
	return 0, nil
}

func (s *Store) readDirectory(number uint64, name SeriesKey) (t int64, err error) {
	r, err := s.open(number)
	if r == nil {
		return 0, err
	}
	defer r.Close()
	if e := r.find(name); e != nil {
		return e.chunks[0].from, nil
	}
	return 0, nil
}

// open opens a file; nil: it is gone, or was damaged and is put aside.
func (s *Store) open(number uint64) (*fileReader, error) {
	r, err := openFile(s.path(number, fileSuffix))
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, nil
	case errors.Is(err, errDamaged):
		s.files.Lock()
		defer s.files.Unlock()
		return nil, s.putAside(number, fileSuffix, err)
	}
	return r, err
}

// readNumber reads the samples of a series from a file, or from the log that is to become one.
func (s *Store) readNumber(number uint64, q Query) ([]sample, error) {
	r, err := s.open(number)
	if err != nil {
		return nil, err
	}
	if r == nil {
		return readLog(s.path(number, logSuffix), q.SeriesKey)
	}
	defer r.Close()
	e := r.find(q.SeriesKey)
	if e == nil {
		return nil, nil
	}
	some := seriesEntry{SeriesKey: e.SeriesKey}
	for i, c := range e.chunks { // the chunk before the time asked for says what the value was when it began
		if c.from < q.To && (c.to >= q.From || i+1 < len(e.chunks) && e.chunks[i+1].from > q.From || i+1 == len(e.chunks)) {
			some.chunks = append(some.chunks, c)
		}
	}
	list, err := r.samples(&some)
	if errors.Is(err, errDamaged) {
		s.files.Lock()
		defer s.files.Unlock()
		return nil, s.putAside(number, fileSuffix, err)
	}
	return list, err
}

// readLog reads the samples of a series from a log. It is appended to meanwhile: what isn't whole is not there yet.
func readLog(path string, name SeriesKey) (list []sample, err error) {
	f, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	r, err := newLogReader(f, info.Size())
	if err != nil {
		return nil, nil // it has no block yet
	}
	for err == nil && r.next(func(e logEntry) {
		if err == nil && r.series[e.id] == name && len(list) < maxSamples {
			list, err = decodeChunk(list, e.form, e.bytes)
		}
	}) {
	}
	return sortSamples(list), nil
}

// plot makes an answer from samples: all of them while they are few enough, and buckets otherwise.
type plotBuilder struct {
	q       Query
	until   int64
	raw     []sample // those in the range, and the last before it
	numbers *buckets
	texts   map[int64]sample // the last one in each step
	step    int64
}

func newPlot(q Query, until int64) *plotBuilder {
	p := &plotBuilder{q: q, until: until}
	if q.Points > 0 {
		p.step = max((q.To-q.From+int64(q.Points)-1)/int64(q.Points), 1)
	}
	return p
}

func (p *plotBuilder) add(v sample) {
	if v.t >= p.q.To {
		return
	}
	if p.numbers != nil {
		p.addThin(v)
		return
	}
	if v.t < p.q.From && len(p.raw) == 1 && p.raw[0].t < p.q.From && v.t >= p.raw[0].t {
		p.raw[0] = v // what it was when the range began
		return
	}
	p.raw = append(p.raw, v)
	if p.q.Points == 0 || len(p.raw) <= p.q.Points {
		return
	}
	p.numbers = newBuckets(p.q.From, p.step, int((p.q.To-p.q.From+p.step-1)/p.step))
	p.texts = make(map[int64]sample)
	for _, v := range p.raw {
		p.addThin(v)
	}
	p.raw = nil
}

func (p *plotBuilder) addThin(v sample) {
	p.numbers.add(v)
	switch {
	case v.form != textForm:
	case v.t < p.q.From:
		p.texts[-1] = v // what it was when the range began
	default:
		p.texts[(v.t-p.q.From)/p.step] = v
	}
}

func (p *plotBuilder) answer(a *resource.HistoryAnswer) {
	if p.numbers == nil {
		p.answerRaw(a)
		return
	}
	a.Step = p.step
	p.numbers.finish(p.until)
	type point struct {
		t         int64
		v         any
		low, high *float64
	}
	var points []point
	any := false
	if text, ok := p.texts[-1]; ok && !text.gap {
		points = append(points, point{t: p.q.From, v: text.text})
	}
	for i := range p.numbers.list {
		b, at := &p.numbers.list[i], p.q.From+int64(i)*p.step
		text, isText := p.texts[int64(i)]
		switch {
		case isText && !text.gap:
			points = append(points, point{t: max(text.t, p.q.From), v: text.text})
		case b.known():
			any = true
			points = append(points, point{at, b.mean(), &b.low, &b.high})
		case isText || len(points) > 0 && points[len(points)-1].v != nil && at < p.until && len(p.texts) == 0:
			points = append(points, point{t: at}) // a gap begins
		}
	}
	for _, n := range points {
		a.Times, a.Values = append(a.Times, n.t), append(a.Values, n.v)
		if any {
			a.Min, a.Max = append(a.Min, n.low), append(a.Max, n.high)
		}
	}
}

func (p *plotBuilder) answerRaw(a *resource.HistoryAnswer) {
	thinned := slices.ContainsFunc(p.raw, func(v sample) bool { return v.form == thinForm })
	for i, v := range p.raw {
		if v.form == thinForm && v.t+thinStep <= p.q.From {
			continue
		}
		add := func(t int64, value any, low, high *float64) {
			a.Times, a.Values = append(a.Times, max(t, p.q.From)), append(a.Values, value)
			if thinned {
				a.Min, a.Max = append(a.Min, low), append(a.Max, high)
			}
		}
		switch {
		case v.gap:
			add(v.t, nil, nil, nil)
		case v.form == textForm:
			add(v.t, v.text, nil, nil)
		case v.form == thinForm:
			add(v.t, v.number, &v.low, &v.high)
			if end := v.t + thinStep; i+1 == len(p.raw) && end < p.until || i+1 < len(p.raw) && p.raw[i+1].t > end {
				add(end, nil, nil, nil)
			}
		default:
			add(v.t, v.number, &v.number, &v.number)
		}
	}
	last := len(p.raw) - 1
	if last >= 0 && p.q.Points > 0 && !p.raw[last].gap && p.raw[last].form != thinForm { // it is so up to the end of what is known
		if end := p.until; end > max(p.raw[last].t, p.q.From) {
			a.Times, a.Values = append(a.Times, end), append(a.Values, a.Values[len(a.Values)-1])
			if thinned {
				a.Min, a.Max = append(a.Min, a.Min[len(a.Min)-1]), append(a.Max, a.Max[len(a.Max)-1])
			}
		}
	}
}
