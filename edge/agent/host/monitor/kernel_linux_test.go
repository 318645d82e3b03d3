// SPDX-License-Identifier: Apache-2.0

package monitor

import (
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestClock(t *testing.T) {
	require.Equal(t, "ClockSynchronized", Clock().Type)
	c := kernelClockCondition(0, 0, 16*time.Millisecond, nil)
	require.Equal(t, "True", c.Status)
	require.Equal(t, "the clock is at most 100ms off, by the kernel's estimate", c.Message)
	require.Equal(t, "False", kernelClockCondition(5, 0x40, 16*time.Second, nil).Status)
	require.Equal(t, "Unknown", kernelClockCondition(0, 0, 0, os.ErrPermission).Status)
}
