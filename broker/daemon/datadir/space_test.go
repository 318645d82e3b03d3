// SPDX-License-Identifier: Apache-2.0

package datadir

import (
	"errors"
	"testing"

	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"
)

func TestADiskThatIsNearlyFullIsToldUntilThereIsSpaceAgain(t *testing.T) {
	var told []string
	s := (&Dir{Path: "/data"}).Space(zerolog.Nop(), func(low string) { told = append(told, low) })
	var free float64
	bytes := uint64(1 << 30)
	var failed error
	s.free = func(path string) (float64, uint64, error) {
		require.Equal(t, "/data", path)
		return free, bytes, failed
	}
	for _, x := range []struct {
		free float64
		err  error
		low  string
	}{
		{40, nil, ""},
		{5, nil, ""},
		{4.9, nil, "4 % of the disk with /data is free"},
		{4.1, nil, "4 % of the disk with /data is free"},
		{0, errors.New("not now"), "4 % of the disk with /data is free"},
		{0, nil, "0 % of the disk with /data is free"},
		{5.5, nil, "5 % of the disk with /data is free"}, // it may be below 5 % again in a moment
		{6, nil, ""},
		{5.5, nil, ""},
	} {
		free, failed = x.free, x.err
		was, since := s.Low(), s.Since()
		s.look()
		require.Equal(t, x.low, s.Low(), "%v", x)
		require.Equal(t, (was == "") == (x.low == ""), since.Equal(s.Since()), "the time is that of the beginning: %v", x)
	}
	free, failed, bytes = 1, nil, 1000
	s.look()
	require.Equal(t, "1 % of the disk with /data is free", s.Low(), "a full disk is not told, since that stores something")
	require.Equal(t, []string{"4 % of the disk with /data is free", "0 % of the disk with /data is free", "5 % of the disk with /data is free", ""}, told)
	bytes = leastToStore
	s.look()
	s.look()
	require.Equal(t, []string{"1 % of the disk with /data is free"}, told[4:], "once there is room to store it")
}

func TestTheFreeSpaceIsThatOfTheDirectorysDisk(t *testing.T) {
	percent, bytes, err := freeSpace(t.TempDir())
	if errors.Is(err, errors.ErrUnsupported) {
		t.Skip("this system doesn't say how much of a disk is free")
	}
	require.NoError(t, err)
	require.Positive(t, percent)
	require.LessOrEqual(t, percent, 100.0)
	require.Positive(t, bytes)
}
