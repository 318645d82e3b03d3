// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package cluster

import "time"

var processStart = time.Now()

func clock() time.Duration { return time.Since(processStart) }
