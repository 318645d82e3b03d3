// SPDX-License-Identifier: Apache-2.0

package wal

import (
	"encoding/binary"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// A torn frame with a client's text in it, which looks like the heads of ever so many frames, is dropped as quickly as any other:
// for each head alone the end is looked at, and not all that is between.
func TestATornFrameFullOfHeadsOpensQuickly(t *testing.T) {
	const size = 4 << 20
	dir := t.TempDir()
	l, _ := openLog(t, dir, 0)
	appendFrames(t, l, "one")
	at := l.segments.end()
	require.NoError(t, l.Close())
	frame := make([]byte, HeadSize, size)
	for len(frame) < size {
		frame = binary.LittleEndian.AppendUint32(frame, frameMagic)
		frame = binary.LittleEndian.AppendUint32(frame, uint32(max(0, (size-len(frame))*9/10-64)))
	}
	frame = SealFrame(frame, at)
	f, err := os.OpenFile(l.Path(at.Segment), os.O_RDWR, 0)
	require.NoError(t, err)
	_, err = f.WriteAt(frame[:len(frame)-100], at.At)
	require.NoError(t, err)
	require.NoError(t, f.Close())
	began := time.Now()
	_, found := openLog(t, dir, 0)
	require.Less(t, time.Since(began), 10*time.Second, "with a checksum of each it is a minute")
	require.Equal(t, []string{"one"}, found)
}
