// SPDX-License-Identifier: Apache-2.0

package wal_test

import (
	"path/filepath"
	"testing"

	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"

	"github.com/edgebus/edgebus/broker/wal"
	"github.com/edgebus/edgebus/test/orderedtest"
)

// The log in files keeps the contract, with segments of any length.
func TestTheLogInFilesIsOrdered(t *testing.T) {
	t.Run("a frame or two", func(t *testing.T) { orderedtest.Run(t, openOrdered(100)) })
	t.Run("all", func(t *testing.T) {
		orderedtest.Run(t, orderedtest.WithCrashes(openOrdered(1<<20), func(dir string) string { return filepath.Join(dir, "000000000001.log") }))
	})
}

func openOrdered(segment int) orderedtest.Open {
	return func(t *testing.T, dir string) orderedtest.Engine {
		l, err := wal.Open(wal.Options{Dir: dir, Name: "the log", Keeps: "the frames", Segment: segment, Log: zerolog.Nop()})
		require.NoError(t, err)
		require.NoError(t, l.Scan(0, func(wal.Position, []byte) error { return nil }))
		require.NoError(t, l.Begin(0))
		o := wal.NewOrdered(l)
		return orderedtest.Engine{Log: o, Close: l.Close, Cut: l.Cut, Renew: o.Renew, Size: l.Size}
	}
}
