// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package udev

import (
	"context"
	"errors"
)

func uevents(context.Context) (<-chan struct{}, error) {
	return nil, errors.New("this system has no sysfs")
}
