// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package monitor

import (
	"errors"

	"github.com/edgebus/edgebus/topics/resource"
)

// Clock is the condition ClockSynchronized.
func Clock() resource.Condition {
	return resource.Condition{Type: "ClockSynchronized", Status: "Unknown", Reason: "Unknown", Message: errors.ErrUnsupported.Error()}
}

func diskUsed(string) (float64, error) { return 0, errors.ErrUnsupported }
