// SPDX-License-Identifier: Apache-2.0

package datadir

import (
	"context"
	"fmt"
	"path/filepath"
	"sync/atomic"
	"time"

	"github.com/rs/zerolog"
)

// DiskSpace watches how much of a data directory's disk is free.
type DiskSpace struct {
	path    string
	log     zerolog.Logger
	changed func(low string)
	free    func(path string) (percent float64, bytes uint64, err error)
	state   atomic.Pointer[spaceState]
	told    string // what changed was called with last
}

type spaceState struct {
	low   string
	since time.Time // when low became or ceased to be empty
}

const (
	leastFree     = 5 // percent: below that the disk is nearly full
	enoughFree    = 6 // from this on it is no more, so that it does not come and go with each file
	spaceInterval = 5 * time.Second
	// leastToStore is how many bytes are free at least when the change is told, since telling it stores something. On a disk that is full a
	// program would begin with a write that fails.
	leastToStore = 1 << 20
)

// Space watches the directory's disk from when it runs. changed, which may be nil, is called with what Low returns, each time that it
// changes; while the disk is full, not before there is room again.
func (d *Dir) Space(log zerolog.Logger, changed func(low string)) *DiskSpace {
	path, err := filepath.Abs(d.Path)
	if err != nil {
		path = d.Path
	}
	return &DiskSpace{path: path, log: log, changed: changed, free: freeSpace}
}

// Low says how little of the disk was free when it was looked at last; empty: enough.
func (s *DiskSpace) Low() string {
	low, _ := s.now()
	return low
}

// Since is when the disk became nearly full, or had space again; zero: it was never nearly full.
func (s *DiskSpace) Since() time.Time {
	_, since := s.now()
	return since
}

func (s *DiskSpace) now() (low string, since time.Time) {
	if p := s.state.Load(); p != nil {
		return p.low, p.since
	}
	return "", since
}

// Run looks every few seconds until ctx ends, and logs when the disk becomes nearly full, and when there is space again.
func (s *DiskSpace) Run(ctx context.Context) error {
	tick := time.NewTicker(spaceInterval)
	defer tick.Stop()
	for {
		s.look()
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}

func (s *DiskSpace) look() {
	percent, bytes, err := s.free(s.path)
	if err != nil {
		return // of what a system can't say nothing is said
	}
	was, since := s.now()
	low := ""
	if percent < leastFree || was != "" && percent < enoughFree {
		low = fmt.Sprintf("%d %% of the disk with %s is free", int(percent), s.path)
	}
	if (low == "") != (was == "") {
		since = time.Now()
	}
	if low != was {
		s.state.Store(&spaceState{low, since})
	}
	switch {
	case low == was:
	case was == "":
		s.log.Warn().Int("percent", int(percent)).Str("path", s.path).Msg("the disk with the data directory is nearly full")
	case low == "":
		s.log.Info().Int("percent", int(percent)).Str("path", s.path).Msg("the disk with the data directory has space again")
	}
	if s.changed != nil && low != s.told && (low == "" || bytes >= leastToStore) {
		s.told = low
		s.changed(low)
	}
}
