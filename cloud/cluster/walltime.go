// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
)

// ClockLimit is by how much the clock of a hub that takes the log may differ from those of most others.
const ClockLimit = 2 * time.Second

// CheckClock says why a hub must not take the log by its host's clock. ahead is by how much other clocks are ahead of it, by whose they are. It takes more
// that differ than agree: where two disagree nobody knows who is right, and one of them has to serve.
func CheckClock(ahead map[string]time.Duration) error {
	var differ []string
	agree := 0
	for _, name := range slices.Sorted(maps.Keys(ahead)) {
		by := ahead[name]
		switch {
		case by.Abs() <= ClockLimit:
			agree++
		case by > 0:
			differ = append(differ, fmt.Sprintf("%s is %s ahead", name, by.Round(100*time.Millisecond)))
		default:
			differ = append(differ, fmt.Sprintf("%s is %s behind", name, (-by).Round(100*time.Millisecond)))
		}
	}
	if len(differ) <= agree {
		return nil
	}
	return fmt.Errorf("its host's clock differs by more than %s from those of most others (%s): set it, and have it follow a time server (timedatectl set-ntp true)", ClockLimit, strings.Join(differ, ", "))
}

// LogTime is the latest time that owners have written into the log, as far as it was read here; zero: none.
func (m *Member) LogTime() time.Time {
	if at := m.logTime.Load(); at != 0 {
		return time.UnixMilli(at)
	}
	return time.Time{}
}

// noteTime notes the time of a frame.
func (m *Member) noteTime(at int64) {
	for had := m.logTime.Load(); at > had && !m.logTime.CompareAndSwap(had, at); had = m.logTime.Load() {
	}
}

// frameTime is that of the next frame: the host's, and never before what is in the log.
func (m *Member) frameTime() int64 { return max(m.o.Now().UnixMilli(), m.logTime.Load()) }

// awaitTime waits until the host's clock has passed what is in the log, if that is soon: so time doesn't go back when the log gets another owner.
func (m *Member) awaitTime(ctx context.Context) {
	by := m.LogTime().Sub(m.o.Now())
	if by > ClockLimit {
		m.o.Logger.Warn().Stringer("by", by.Round(time.Millisecond)).Msg("time goes back: the clock of the hub that owned the log was ahead")
	}
	if by <= 0 || by > ClockLimit {
		return
	}
	timer := time.NewTimer(by)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}
