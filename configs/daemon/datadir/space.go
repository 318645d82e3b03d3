package datadir

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/rs/zerolog"
)

// Space watches how much of a data directory's disk is free.
type Space struct {
	path    string
	log     zerolog.Logger
	changed func(low string)
	free    func(path string) (percent float64, err error)
	low     atomic.Pointer[string]
}

const (
	leastFree  = 5 // percent: below that the disk is nearly full
	enoughFree = 6 // from this on it is no more, so that it does not come and go with each file
	spaceEvery = 5 * time.Second
)

// Space watches the directory's disk from when it runs. changed, which may be nil, is called with what Low returns, each time that it
// changes.
func (d *Dir) Space(log zerolog.Logger, changed func(low string)) *Space {
	return &Space{path: d.Path, log: log, changed: changed, free: freeSpace}
}

// Low says how little of the disk was free when it was looked at last; empty: enough.
func (s *Space) Low() string {
	if p := s.low.Load(); p != nil {
		return *p
	}
	return ""
}

// Run looks every few seconds until ctx ends, and logs when the disk becomes nearly full, and when there is space again.
func (s *Space) Run(ctx context.Context) error {
	tick := time.NewTicker(spaceEvery)
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

func (s *Space) look() {
	percent, err := s.free(s.path)
	if err != nil {
		return // of what a system can't say nothing is said
	}
	was, low := s.Low(), ""
	if percent < leastFree || was != "" && percent < enoughFree {
		low = fmt.Sprintf("%d %% of the disk with %s is free", int(percent), s.path)
	}
	if low == was {
		return
	}
	s.low.Store(&low)
	switch {
	case was == "":
		s.log.Warn().Int("percent", int(percent)).Str("path", s.path).Msg("the disk with the data directory is nearly full")
	case low == "":
		s.log.Info().Int("percent", int(percent)).Str("path", s.path).Msg("the disk with the data directory has space again")
	}
	if s.changed != nil {
		s.changed(low)
	}
}
