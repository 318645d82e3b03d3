// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"time"

	"golang.org/x/sys/unix"
)

// clock goes on while the host sleeps, and is never set.
func clock() time.Duration {
	var t unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_BOOTTIME, &t) // it is there since Linux 2.6.39
	return time.Duration(t.Nano())
}
