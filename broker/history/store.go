// SPDX-License-Identifier: Apache-2.0

package history

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/rs/zerolog"

	"github.com/edgebus/edgebus/broker/daemon/datadir"
	"github.com/edgebus/edgebus/broker/history/chunk"
	"github.com/edgebus/edgebus/topics/resource"
)

// DirName is the history's directory in a data directory. It is no part of backups.
const DirName = datadir.HistoryDir

const (
	maxSamples = 1 << 20         // of a series in a file
	thinStep   = 5 * 60 * 1000   // ms
	flushEvery = time.Minute     // what a crash loses at most
	firstFlush = 5 * time.Second // after the start, so that a past that is there can be seen at once, on the hub too
	fileHours  = time.Hour       // what a file has
	maxThinned = 31 * 24 * 3600  // seconds: a longer file, which a wrong clock makes, is not thinned
	maxTexts   = 32 << 20        // bytes of texts that wait to be written
	fullBlock  = 16 << 20        // bytes after which another block begins: a log has none above maxBlock
	logShare   = 8               // the part of the room after which a log becomes a file before its hour is over,
	leastLog   = 1 << 20         // but not below so many bytes

	logSuffix        = ".log"
	fileSuffix       = ".hist"
	damagedSuffix    = ".damaged"
	unfinishedSuffix = ".new"
	blockSize        = 4096 // a file takes whole blocks of the disk
)

// Options are what a Store is made from.
type Options struct {
	// Dir is the directory of its files.
	Dir string
	// Bytes bounds them, on disk.
	Bytes int64
	Log   zerolog.Logger
	Now   func() time.Time // nil: time.Now

	copies bool // nothing is recorded: it is a copy of another store
}

// Store keeps the past of series in files of an hour each.
type Store struct {
	o Options

	mu      sync.Mutex // of what is recorded; locked after files
	series  map[SeriesKey]*recordedSeries
	stats   Stats
	failing string // why nothing can be written; empty: it can
	low     string // why nothing is to be written: how little of the disk is free
	texts   int    // bytes of texts that wait to be written

	reading readTurns // locked before files

	files   sync.Mutex // of the files and the log
	id      string
	closed  []fileInfo // in the order of their numbers
	log     *logWriter
	number  uint64    // of the log
	hour    time.Time // of the log
	written time.Time // when its last block was
	ended   []uint64  // logs that are to become files
	kept    keptLog
	firsts  map[SeriesKey]firstSeen
}

// keptLog is the log of the last file. It stays for who copies it, block by block, until the next one is closed or Copied is called.
type keptLog struct {
	number uint64
	size   int64
}

// fileInfo is a closed file.
type fileInfo struct {
	number   uint64
	size     int64
	from, to int64
	thinned  bool
	digest   string // empty: it was not computed yet
	pruneAt  int64  // when something in it may be too old, in ms since 1970, by the rules as they were; 0: nobody has looked
}

// recorded is a series that is being recorded.
type recordedSeries struct {
	pending encoder
	chunks  []encodedChunk // full ones before pending
	last    sample
	live    bool // last is still so, as far as is known
	samples int  // in the log
}

type encodedChunk struct {
	form  form
	bytes []byte
}

// Stats are figures for metrics.
type Stats struct {
	Series  int
	Files   int
	Bytes   int64
	Limit   int64
	Oldest  time.Time // when what is kept begins; zero: there is nothing
	Samples uint64    // since the start, as the following
	Written uint64    // bytes
	Lost    uint64    // samples that could not be written
	Thinned uint64    // files
	Dropped uint64    // files
	Damaged uint64    // files
	Stopped string    // why nothing is recorded; empty: it is
}

func dirOf(path string) string { return filepath.Dir(path) }

// Open opens the store in a directory, which it makes. What was not written whole when the last process ended is cut off.
func Open(o Options) (*Store, error) {
	if o.Now == nil {
		o.Now = time.Now
	}
	s := &Store{o: o, series: make(map[SeriesKey]*recordedSeries), firsts: make(map[SeriesKey]firstSeen), stats: Stats{Limit: o.Bytes}}
	if err := datadir.MakeDir(o.Dir); err != nil {
		return nil, err
	}
	var err error
	if s.id, err = readID(o.Dir); err != nil {
		return nil, err
	}
	if err := s.openFiles(); err != nil {
		return nil, err
	}
	return s, nil
}

// readID reads the identity of a store. One that begins anew has another one, so that who copies it begins anew as well. A program starts on a full disk,
// too: then begin writes it.
func readID(dir string) (string, error) {
	text, err := os.ReadFile(idPath(dir))
	if id := strings.TrimSpace(string(text)); id != "" || err != nil && !errors.Is(err, fs.ErrNotExist) {
		return id, err
	}
	id := resource.NewUID()
	if err := writeID(dir, id); !datadir.IsFull(err) {
		return id, err
	}
	return id, nil
}

func writeID(dir, id string) error { return datadir.WriteFile(idPath(dir), []byte(id+"\n")) }

func idPath(dir string) string { return filepath.Join(dir, "id") }

func (s *Store) path(number uint64, suffix string) string {
	return filepath.Join(s.o.Dir, fmt.Sprintf("%012d%s", number, suffix))
}

func (s *Store) openFiles() error {
	entries, err := os.ReadDir(s.o.Dir)
	if err != nil {
		return err
	}
	var logs []uint64
	for _, e := range entries {
		stem, suffix, _ := strings.Cut(e.Name(), ".")
		number, err := strconv.ParseUint(stem, 10, 64)
		if strings.HasSuffix(e.Name(), unfinishedSuffix) {
			if err := os.Remove(filepath.Join(s.o.Dir, e.Name())); err != nil {
				return err
			}
			continue
		}
		if err != nil {
			continue
		}
		switch "." + suffix {
		case logSuffix:
			logs = append(logs, number)
		case fileSuffix:
			if err := s.addFile(number); err != nil {
				return err
			}
		}
		s.number = max(s.number, number)
	}
	for _, number := range logs {
		if s.o.copies {
			continue // it has what came of it so far
		}
		if s.find(number) == nil {
			if number == s.number {
				return s.continueLog(number)
			}
			s.ended = append(s.ended, number)
			continue
		}
		if err := s.removeKept(); err != nil {
			return err
		}
		info, err := os.Stat(s.path(number, logSuffix))
		if err != nil {
			return err
		}
		s.kept = keptLog{number, info.Size()}
	}
	return nil
}

func (s *Store) removeKept() error {
	if s.kept.number == 0 {
		return nil
	}
	err := os.Remove(s.path(s.kept.number, logSuffix))
	if errors.Is(err, fs.ErrNotExist) {
		err = nil
	}
	s.kept = keptLog{}
	return err
}

func (s *Store) find(number uint64) *fileInfo {
	if i, ok := s.search(number); ok {
		return &s.closed[i]
	}
	return nil
}

func (s *Store) search(number uint64) (at int, ok bool) {
	return slices.BinarySearchFunc(s.closed, number, func(f fileInfo, n uint64) int { return cmp.Compare(f.number, n) })
}

// addFile takes a file that is on disk. One that is damaged is put aside.
func (s *Store) addFile(number uint64) error {
	path := s.path(number, fileSuffix)
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return err
	}
	end, err := readFooter(f, info.Size())
	if errors.Is(err, errDamaged) {
		return s.putAside(number, fileSuffix, err)
	}
	if err != nil {
		return err
	}
	file := fileInfo{number: number, size: info.Size(), from: end.from, to: end.to, thinned: end.thinned}
	if at, ok := s.search(number); ok {
		s.closed[at] = file
	} else {
		s.closed = slices.Insert(s.closed, at, file)
	}
	return nil
}

// putAside renames a file that can't be read for a reason, so that nothing of it is served. The next one takes its place.
func (s *Store) putAside(number uint64, suffix string, why error) error {
	s.o.Log.Error().Err(why).Str("file", s.path(number, suffix)).Msg("a file of the history can't be read and is put aside: what it had is missing from then on")
	s.mu.Lock()
	s.stats.Damaged++
	s.mu.Unlock()
	s.closed = slices.DeleteFunc(s.closed, func(f fileInfo) bool { return f.number == number })
	old, err := filepath.Glob(filepath.Join(s.o.Dir, "*"+damagedSuffix))
	for _, path := range old { // the last one is enough for who looks into it
		err = errors.Join(err, os.Remove(path))
	}
	return errors.Join(err, os.Rename(s.path(number, suffix), s.path(number, suffix+damagedSuffix)))
}

// continueLog goes on with the log of the last process. From its last block on nothing is known of any series.
func (s *Store) continueLog(number uint64) error {
	w, last, err := reopenLog(s.path(number, logSuffix), func(name SeriesKey, f form, b []byte) {
		r := s.recorded(name)
		list, err := decodeChunk(nil, f, b)
		if err != nil || len(list) == 0 {
			return
		}
		r.last, r.samples = list[len(list)-1], r.samples+len(list)
		r.live = !r.last.gap
	})
	if errors.Is(err, errDamaged) {
		return s.putAside(number, logSuffix, err)
	}
	if err != nil {
		return err
	}
	s.log, s.number, s.written = w, number, time.UnixMilli(last)
	s.hour = s.written.Truncate(fileHours)
	if last == 0 {
		s.written = s.o.Now()
		s.hour = s.written.Truncate(fileHours)
	}
	for _, r := range s.series {
		r.end(last)
	}
	return nil
}

func (s *Store) recorded(name SeriesKey) *recordedSeries {
	r := s.series[name]
	if r == nil {
		r = new(recordedSeries)
		r.pending.reset()
		s.series[name] = r
	}
	return r
}

// end notes that nothing is known from t on.
func (r *recordedSeries) end(t int64) {
	if r.live {
		r.live = false
		r.last.t = max(t, r.last.t+1)
		r.append(sample{t: r.last.t, form: r.last.form, gap: true})
	}
}

func (r *recordedSeries) append(v sample) {
	if !r.pending.fits(v, chunk.MaxSamples) {
		r.chunks = append(r.chunks, encodedChunk{r.pending.form, slices.Clone(r.pending.bytes())})
		r.pending.reset()
	}
	r.pending.append(v)
	r.samples++
}

// Record notes that a property has a value since t, in ms since 1970. Only changes are kept, and numbers only if they differ by more than
// the deadband from the last that was. It does not block.
func (s *Store) Record(name SeriesKey, p resource.Property, value string, t int64, deadband float64) {
	v := parseSample(p.Type, value, t)
	s.mu.Lock()
	defer s.mu.Unlock()
	r := s.recorded(name)
	switch {
	case r.live && v.t < r.last.t && v.t < s.o.Now().UnixMilli()-int64(time.Hour/time.Millisecond):
		return // it belongs to a file that is closed
	case r.live && v.t < r.last.t:
		if s.accepts(r, v) {
			r.append(v) // late: what was recorded since is the newer one
		}
		return
	case r.live && v.sameValue(r.last):
		return
	case r.live && deadband > 0 && v.form == numberForm && r.last.form == numberForm && math.Abs(v.number-r.last.number) < deadband:
		return
	case r.live && v.t == r.last.t:
		v.t++ // two in one millisecond
	case !r.live && v.t <= r.last.t: // the same report as before the gap
		v.t = max(s.o.Now().UnixMilli(), r.last.t+1)
	}
	r.last, r.live = v, true
	if s.accepts(r, v) {
		r.append(v)
		s.stats.Samples++
	}
}

// accepts is whether a sample of a series can be kept now.
func (s *Store) accepts(r *recordedSeries, v sample) bool {
	if s.failing == "" && s.low == "" && r.samples < maxSamples && s.texts+len(v.text) <= maxTexts {
		s.texts += len(v.text)
		return true
	}
	s.stats.Lost++
	return false
}

// End notes that nothing is known of a property since t; with an empty name, of all properties of the device.
func (s *Store) End(name SeriesKey, t int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if name.Property != "" {
		if r := s.series[name]; r != nil {
			r.end(t)
		}
		return
	}
	for n, r := range s.series {
		if n.Device == name.Device {
			r.end(t)
		}
	}
}

// SetLowSpace stops the history while there is little space on the disk, so that none is taken from the bus; low says how
// little, empty: there is enough.
func (s *Store) SetLowSpace(low string) {
	s.mu.Lock()
	s.low = low
	s.mu.Unlock()
}

// Run writes what was recorded, each minute, until ctx ends.
func (s *Store) Run(ctx context.Context) error {
	tick := time.NewTimer(firstFlush)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			s.Flush()
			tick.Reset(flushEvery)
		case <-ctx.Done():
			s.Flush()
			s.files.Lock()
			defer s.files.Unlock()
			if s.log == nil {
				return nil
			}
			return s.log.f.Close()
		}
	}
}

// Flush writes what was recorded since the last time. After a full hour it makes the log a file, and a new log. A failure is shown in
// Stats, and costs what was recorded meanwhile.
func (s *Store) Flush() {
	now := s.o.Now()
	err := s.flushLog(now)
	err = errors.Join(err, s.closeEnded())
	s.files.Lock()
	err = errors.Join(err, s.fit())
	s.files.Unlock()
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case err != nil && s.failing == "":
		s.failing = err.Error()
		s.o.Log.Error().Err(err).Msg("the history can't be written: what devices report meanwhile is missing in it")
	case err == nil && s.failing != "":
		s.failing = ""
		s.o.Log.Info().Msg("the history is written again")
	}
}

func (s *Store) flushLog(now time.Time) error {
	s.files.Lock()
	defer s.files.Unlock()
	err := s.flush(now)
	if err == nil && (!now.Truncate(fileHours).Equal(s.hour) || s.o.Bytes > 0 && s.log.size > max(s.o.Bytes/logShare, leastLog)) {
		old := s.log
		s.ended = append(s.ended, s.number)
		s.log = nil
		err = old.f.Close()
		if err == nil {
			err = s.begin(now)
		}
		if err == nil {
			err = s.flush(now)
		}
	}
	return err
}

// flush writes a block, also when it has no sample: then it says that the values of before are still so.
func (s *Store) flush(now time.Time) error {
	if s.log == nil {
		if err := s.begin(now); err != nil {
			s.drop()
			return err
		}
	}
	blocks := []*logBlock{{}}
	add := func(name SeriesKey, f form, bytes []byte) {
		last := blocks[len(blocks)-1]
		if len(last.entries) > fullBlock {
			last = new(logBlock)
			blocks = append(blocks, last)
		}
		s.log.add(last, name, f, bytes)
	}
	s.mu.Lock()
	stopped := s.failing != "" || s.low != ""
	if stopped && s.low != "" {
		s.mu.Unlock()
		s.drop()
		return errors.New(s.low)
	}
	if stopped {
		s.restate(s.written, now)
	}
	for name, r := range s.series {
		for _, c := range r.chunks {
			add(name, c.form, c.bytes)
		}
		r.chunks = nil
		if r.pending.count > 0 {
			add(name, r.pending.form, r.pending.bytes())
			r.pending.reset()
		}
	}
	s.texts = 0
	s.mu.Unlock()
	size := s.log.size
	for i, b := range blocks {
		if err := s.log.write(b, now.UnixMilli()); err != nil {
			s.log.forget(blocks[i+1:])
			s.drop()
			return err
		}
	}
	s.written = now
	s.mu.Lock()
	s.stats.Written += uint64(s.log.size - size)
	s.mu.Unlock()
	return nil
}

// drop forgets what was not written.
func (s *Store) drop() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.texts = 0
	for _, r := range s.series {
		s.stats.Lost += uint64(r.pending.count)
		r.chunks = nil
		r.pending.reset()
	}
}

// restate begins the series anew: what was not written is a gap since from, and what is known is said again.
func (s *Store) restate(from, now time.Time) {
	for _, r := range s.series {
		r.chunks = nil
		r.pending.reset()
		r.append(sample{t: from.UnixMilli(), form: r.last.form, gap: true})
		if r.live {
			r.last.t = now.UnixMilli()
			r.append(r.last)
		}
	}
}

// begin makes a new log, which says of each series what is known of it: so each file can be read without those before.
func (s *Store) begin(now time.Time) error {
	if info, err := os.Stat(idPath(s.o.Dir)); err != nil || info.Size() == 0 {
		if err := writeID(s.o.Dir, s.id); err != nil {
			return err
		}
	}
	s.number++
	w, err := createLog(s.path(s.number, logSuffix))
	if err != nil {
		s.number--
		return err
	}
	s.log, s.hour, s.written = w, now.Truncate(fileHours), now
	s.mu.Lock()
	defer s.mu.Unlock()
	for name, r := range s.series {
		r.samples = 0
		switch {
		case r.pending.count > 0 || len(r.chunks) > 0:
		case !r.live:
			delete(s.series, name)
		default:
			first := r.last
			first.t = max(first.t, now.UnixMilli())
			r.append(first)
		}
	}
	return nil
}

// closeEnded makes files of the logs whose hour is over.
func (s *Store) closeEnded() (err error) {
	s.files.Lock()
	ended := slices.Clone(s.ended)
	s.files.Unlock()
	for _, number := range ended {
		kept, failed := closeLog(s.path(number, logSuffix), s.path(number, fileSuffix)) // nothing writes to the log any more: without the lock
		s.files.Lock()
		err = errors.Join(err, s.noteClosed(number, kept, failed))
		s.files.Unlock()
	}
	return err
}

// noteClosed takes the file of a log, or why there is none.
func (s *Store) noteClosed(number uint64, kept int, failed error) error {
	switch {
	case errors.Is(failed, errDamaged):
		failed = s.putAside(number, logSuffix, failed)
	case failed == nil && kept == 0:
		failed = os.Remove(s.path(number, logSuffix))
	case failed == nil:
		info, err := os.Stat(s.path(number, logSuffix))
		if err = errors.Join(err, s.removeKept(), s.addFile(number)); err != nil {
			return err
		}
		s.kept = keptLog{number, info.Size()}
		s.mu.Lock()
		if f := s.find(number); f != nil {
			s.stats.Written += uint64(f.size)
		}
		s.mu.Unlock()
	}
	if failed == nil {
		s.ended = slices.DeleteFunc(s.ended, func(n uint64) bool { return n == number })
	}
	return failed
}

// bytes is what the files take on disk.
func (s *Store) bytes() (all, thinned int64) {
	for _, f := range s.closed {
		n := onDisk(f.size)
		all += n
		if f.thinned {
			thinned += n
		}
	}
	if s.log != nil {
		all += onDisk(s.log.size)
	}
	return all + onDisk(s.kept.size), thinned
}

func onDisk(size int64) int64 { return (size + blockSize - 1) / blockSize * blockSize }

// thinnedShare is the part of the room that thinned files may take before they are dropped.
const thinnedShare = 4

// fit makes room: the oldest file is thinned, and the oldest thinned one dropped.
func (s *Store) fit() error {
	for {
		all, thinned := s.bytes()
		if s.o.Bytes == 0 || all <= s.o.Bytes || len(s.closed) == 0 {
			return nil
		}
		i := slices.IndexFunc(s.closed, func(f fileInfo) bool { return !f.thinned })
		if i >= 0 && thinned < s.o.Bytes/thinnedShare {
			if err := s.thin(i); err == nil {
				continue
			} else if !errors.Is(err, errDamaged) {
				s.o.Log.Warn().Err(err).Msg("a file of the history can't be thinned, and is dropped")
			} else {
				continue
			}
		} else {
			i = 0
		}
		if err := s.removeFile(i); err != nil {
			return err
		}
		s.mu.Lock()
		s.stats.Dropped++
		s.mu.Unlock()
	}
}

func (s *Store) removeFile(i int) error {
	number := s.closed[i].number
	if number == s.kept.number {
		if err := s.removeKept(); err != nil {
			return err
		}
	}
	if err := os.Remove(s.path(number, fileSuffix)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	s.closed = slices.Delete(s.closed, i, i+1)
	return nil
}

// Stats takes the figures.
func (s *Store) Stats() Stats {
	s.files.Lock()
	bytes, _ := s.bytes()
	files, oldest := len(s.closed), time.Time{}
	if files > 0 {
		oldest = time.UnixMilli(s.closed[0].from)
	}
	s.files.Unlock()
	s.mu.Lock()
	defer s.mu.Unlock()
	st := s.stats
	st.Series, st.Bytes, st.Files, st.Oldest, st.Stopped = len(s.series), bytes, files, oldest, s.failing
	return st
}
