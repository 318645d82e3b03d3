// SPDX-License-Identifier: Apache-2.0

package history

import (
	"errors"
	"math"
	"slices"
)

// thin replaces a file by one with the mean, least and greatest number of each thinStep, and the last text in each.
func (s *Store) thin(i int) error {
	f := s.closed[i]
	if f.to < f.from || uint64(f.to)-uint64(f.from) > maxThinned*1000 { // the difference may be more than an int64
		return errors.New("its samples are of more than a month: the clock was wrong")
	}
	err := s.rewrite(i, true, func(_ SeriesKey, list []sample) []sample { return thinSamples(list, f.to) })
	if err != nil {
		return err
	}
	s.mu.Lock()
	s.stats.Thinned++
	s.mu.Unlock()
	return nil
}

// thinSamples thins samples in order. until is when the last of them ceases to be known.
func thinSamples(list []sample, until int64) (out []sample) {
	if len(list) == 0 {
		return nil
	}
	from := list[0].t - remainderOf(list[0].t, thinStep)
	n := int((max(until, list[len(list)-1].t)-from)/thinStep) + 1
	numbers := newBuckets(from, thinStep, n)
	lastTexts := make(map[int64]sample)
	for _, v := range list {
		numbers.add(v)
		if v.form == textForm {
			lastTexts[v.t-remainderOf(v.t, thinStep)] = v
		}
	}
	numbers.finish(until)
	for i := range numbers.list {
		if b := &numbers.list[i]; b.known() {
			out = append(out, sample{t: from + int64(i)*thinStep, form: thinForm, number: b.mean(), low: b.low, high: b.high})
		}
	}
	for _, v := range lastTexts {
		out = append(out, v)
	}
	slices.SortStableFunc(out, func(a, b sample) int {
		if a.form != b.form {
			return int(a.form) - int(b.form)
		}
		return int(min(max(a.t-b.t, math.MinInt32), math.MaxInt32))
	})
	return out
}

func remainderOf(t, step int64) int64 { return ((t % step) + step) % step }

// rewrite replaces a file by one with what change makes of the samples of each series. Without any the file is removed.
func (s *Store) rewrite(i int, thinned bool, change func(SeriesKey, []sample) []sample) error {
	f := s.closed[i]
	path := s.path(f.number, fileSuffix)
	r, err := openFile(path)
	if err == nil {
		defer r.Close()
		kept := 0
		err = writeFile(path, thinned, f.from, f.to, func(w *fileWriter) error {
			for j := range r.entries {
				list, err := r.samples(&r.entries[j])
				if err != nil {
					return err
				}
				list = change(r.entries[j].SeriesKey, list)
				if len(list) > 0 {
					kept++
				}
				if err := w.add(r.entries[j].SeriesKey, list); err != nil {
					return err
				}
			}
			return nil
		})
		if err == nil && kept == 0 {
			return s.removeFile(i)
		}
	}
	if errors.Is(err, errDamaged) {
		return errors.Join(s.putAside(f.number, fileSuffix, err), errDamaged)
	}
	if err != nil {
		return err
	}
	return s.addFile(f.number)
}

// Prune deletes what is not to be kept: of each series what floor says, a time in ms since 1970 before which nothing is kept. What is in the log is deleted with the rest once it is a file, but not served
// before. Between two calls floors rise as the time does, unless changed says that they are others: so a file is read when something in it may have
// become too old.
func (s *Store) Prune(floor func(SeriesKey) int64, changed bool) error {
	now := s.o.Now().UnixMilli()
	s.mu.Lock()
	for name, r := range s.series {
		if floor(name) == math.MaxInt64 {
			r.live = false
			r.chunks = nil
			r.pending.reset()
		}
	}
	s.mu.Unlock()
	s.files.Lock()
	numbers := make([]uint64, 0, len(s.closed))
	for _, f := range s.closed {
		if changed || f.pruneAt <= now {
			numbers = append(numbers, f.number)
		}
	}
	s.files.Unlock()
	for _, number := range numbers { // the lock is free between two files
		if err := s.pruneFile(number, floor, now); err != nil && !errors.Is(err, errDamaged) {
			return err
		}
	}
	return nil
}

func (s *Store) pruneFile(number uint64, floor func(SeriesKey) int64, now int64) error {
	s.files.Lock()
	defer s.files.Unlock()
	i := slices.IndexFunc(s.closed, func(f fileInfo) bool { return f.number == number })
	if i < 0 {
		return nil
	}
	r, err := openFile(s.path(number, fileSuffix))
	if errors.Is(err, errDamaged) {
		return errors.Join(s.putAside(number, fileSuffix, err), err)
	}
	if err != nil {
		return err
	}
	concerned, next := false, int64(math.MaxInt64)
	for _, e := range r.entries {
		from, least := e.chunks[0].from, floor(e.SeriesKey)
		if concerned = concerned || from < least; least != math.MinInt64 && from >= least {
			next = min(next, now+from-least+1)
		}
	}
	s.closed[i].pruneAt = next
	if err := r.Close(); err != nil || !concerned {
		return err
	}
	return s.rewrite(i, s.closed[i].thinned, func(name SeriesKey, list []sample) []sample { return cut(list, floor(name)) })
}

// cut drops what was before a time.
func cut(list []sample, floor int64) []sample {
	i := slices.IndexFunc(list, func(v sample) bool { return v.t >= floor })
	if i < 0 {
		return nil
	}
	return list[i:]
}
