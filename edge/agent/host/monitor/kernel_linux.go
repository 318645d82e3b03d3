// SPDX-License-Identifier: Apache-2.0

package monitor

import (
	"fmt"
	"time"

	"golang.org/x/sys/unix"

	"github.com/edgebus/edgebus/topics/resource"
)

// Clock is the condition ClockSynchronized: whether something keeps the kernel's clock synchronised, and how far it may be off.
func Clock() resource.Condition {
	var t unix.Timex
	state, err := unix.Adjtimex(&t)
	return kernelClockCondition(state, t.Status, time.Duration(t.Maxerror)*time.Microsecond, err)
}

func kernelClockCondition(state int, status int32, most time.Duration, err error) resource.Condition {
	c := resource.Condition{Type: "ClockSynchronized", Status: "True", Reason: "Synchronized"}
	switch {
	case err != nil:
		c.Status, c.Reason, c.Message = "Unknown", "Unknown", fmt.Sprintf("adjtimex: %v", err)
	case state == unix.TIME_ERROR || status&unix.STA_UNSYNC != 0:
		c.Status, c.Reason, c.Message = "False", "NotSynchronized", "no time service keeps the kernel's clock synchronised"
	default:
		// In powers of ten, since the kernel's estimate grows from one synchronisation to the next.
		bound := time.Millisecond
		for bound < most {
			bound *= 10
		}
		c.Message = fmt.Sprintf("the clock is at most %v off, by the kernel's estimate", bound)
	}
	return c
}

// diskUsed is how much of a file system is used, in percent of what users other than root may have, as df says it.
func diskUsed(path string) (float64, error) {
	var s unix.Statfs_t
	if err := unix.Statfs(path, &s); err != nil {
		return 0, fmt.Errorf("%s: %w", path, err)
	}
	used := s.Blocks - s.Bfree
	if used+s.Bavail == 0 {
		return 0, fmt.Errorf("%s: the file system has no size", path)
	}
	return 100 * float64(used) / float64(used+s.Bavail), nil
}
