//go:build !linux

package datadir

import "errors"

func freeSpace(string) (percent float64, err error) { return 0, errors.ErrUnsupported }
