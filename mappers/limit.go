// SPDX-License-Identifier: Apache-2.0

package mappers

import (
	"cmp"
	"fmt"
	"sync"
	"time"
)

// RequestLimit is how much a device takes in one request, such as properties. Where its Device doesn't say that, it is learnt by halving, told with
// the setting that makes it last, and doubted after a day: the device may have a new firmware. Its methods may be called at the same time.
type RequestLimit struct {
	device     Device
	code       string // of what is told
	configured int    // 0: it isn't
	usual      int    // what is tried where nothing is configured

	mu     sync.Mutex
	learnt int
	since  time.Time
}

// doubtAfter is how long what was learnt is believed.
const doubtAfter = 24 * time.Hour

// NewRequestLimit makes the limit of a device that was opened: what is configured, or if that is 0 usual, until the device shows that it takes
// less. That is told with the code: see Device.Tell.
func NewRequestLimit(d Device, code string, configured, usual int) *RequestLimit {
	return &RequestLimit{device: d, code: code, configured: configured, usual: usual}
}

// Most is the limit. When what was learnt is doubted, what was told of it ends.
func (l *RequestLimit) Most() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.learnt > 0 && time.Since(l.since) >= doubtAfter {
		l.learnt = 0
		l.device.Tell(l.code, "")
	}
	if l.learnt > 0 {
		return l.learnt
	}
	return cmp.Or(l.configured, l.usual)
}

// Learn takes note that the device takes no more than most, and tells it: %d of the format is most.
func (l *RequestLimit) Learn(most int, format string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.learnt, l.since = most, time.Now()
	l.device.Tell(l.code, fmt.Sprintf(format, most))
}
