// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package datadir

import "errors"

func freeSpace(string) (percent float64, bytes uint64, err error) { return 0, 0, errors.ErrUnsupported }
