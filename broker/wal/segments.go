// SPDX-License-Identifier: Apache-2.0

package wal

import (
	"os"
	"sync"
	"sync/atomic"
)

// segmentFile is one file.
type segmentFile struct {
	number uint64
	size   int64
	before int64 // where the frames end of the segment before; 0: it is the first
}

// segmentList are the segments that there are.
type segmentList struct {
	mu      sync.Mutex
	list    []segmentFile // oldest first; the last is written to
	base    uint64        // the oldest segment that is needed
	pins    int           // snapshots that are held
	retired []segmentFile // retired segments that a snapshot still needs

	size  atomic.Int64
	count atomic.Int64
}

func (s *segmentList) add(f segmentFile) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.list = append(s.list, f)
	s.count.Add(1)
	s.size.Add(f.size)
}

func (s *segmentList) grow(n int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.list[len(s.list)-1].size += n
	s.size.Add(n)
}

// end is where the next frame goes.
func (s *segmentList) end() Position {
	s.mu.Lock()
	defer s.mu.Unlock()
	f := s.list[len(s.list)-1]
	return Position{f.number, f.size}
}

// retire removes the segments before number, or has unpin remove them.
func (s *segmentList) retire(number uint64, remove func(uint64) error) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.base = max(s.base, number)
	for len(s.list) > 1 && s.list[0].number < s.base {
		f := s.list[0]
		if s.pins > 0 {
			s.retired = append(s.retired, f)
		} else if err := remove(f.number); err != nil && !os.IsNotExist(err) {
			return err
		}
		s.list = s.list[1:]
		s.count.Add(-1)
		s.size.Add(-f.size)
	}
	return nil
}

// pin returns the segments that are needed now. They are not removed before unpin is called.
func (s *segmentList) pin() (needed []segmentFile) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, f := range s.list {
		if f.number >= s.base {
			needed = append(needed, f)
		}
	}
	s.pins++
	return needed
}

// unpin ends what pin began, and removes what was retired meanwhile. One that can't be removed is removed at the next start.
func (s *segmentList) unpin(remove func(uint64) error) (err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.pins--; s.pins > 0 {
		return nil
	}
	for _, f := range s.retired {
		if failed := remove(f.number); failed != nil {
			err = failed
		}
	}
	s.retired = nil
	return err
}

// ends are the numbers of the first and the last segment; 0: there is none.
func (s *segmentList) ends() (oldest, newest uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.list) == 0 {
		return 0, 0
	}
	return s.list[0].number, s.list[len(s.list)-1].number
}

// needed is the oldest segment that is needed. need raises it.
func (s *segmentList) needed() uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.base
}

func (s *segmentList) need(base uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.base = max(s.base, base)
}

// check calls fn for each segment until one fails. None is retired meanwhile.
func (s *segmentList) check(fn func(number uint64) error) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, f := range s.list {
		if err := fn(f.number); err != nil {
			return err
		}
	}
	return nil
}

// find returns a segment, if it is there.
func (s *segmentList) find(number uint64) (f segmentFile, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, list := range [][]segmentFile{s.list, s.retired} {
		for _, f := range list {
			if f.number == number {
				return f, true
			}
		}
	}
	return f, false
}

// first is the oldest segment that can be read.
func (s *segmentList) first() (f segmentFile) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case len(s.retired) > 0:
		return s.retired[0]
	case len(s.list) > 0:
		return s.list[0]
	}
	return f
}

// gap is the first segment that is needed and missing; 0: none is.
func (s *segmentList) gap() (missing uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	first := max(s.base, 1)
	next := first
	for _, f := range s.list {
		if f.number == next {
			next++
		} else if f.number > next {
			return next
		}
	}
	if next == first {
		return first
	}
	return 0
}

// after is how many bytes of frames there are after a place.
func (s *segmentList) after(at Position) (n int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, list := range [][]segmentFile{s.retired, s.list} {
		for _, f := range list {
			switch {
			case f.number > at.Segment:
				n += f.size - HeaderSize
			case f.number == at.Segment:
				n += max(f.size-at.At, 0)
			}
		}
	}
	return n
}

// openSegment is the segment of which a part was read last. It is not opened again for the next part.
type openSegment struct {
	mu     sync.RWMutex // held while it is read, and written to change it
	number uint64
	file   *os.File // nil: none
}

// readAt reads a part of a segment if that is the one that is open.
func (o *openSegment) readAt(b []byte, at Position) (known bool, err error) {
	o.mu.RLock()
	defer o.mu.RUnlock()
	if o.file == nil || o.number != at.Segment {
		return false, nil
	}
	_, err = o.file.ReadAt(b, at.At)
	return true, err
}

// replace puts a segment's file in the place of the one before, which it closes.
func (o *openSegment) replace(number uint64, f *os.File) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.file != nil {
		_ = o.file.Close()
	}
	o.number, o.file = number, f
}

// closeUpTo closes the file if it is that of a segment, or of an older one: an open file takes its room after it was removed.
func (o *openSegment) closeUpTo(number uint64) {
	o.mu.RLock()
	open := o.file != nil && o.number <= number
	o.mu.RUnlock()
	if open {
		o.replace(0, nil)
	}
}
