// SPDX-License-Identifier: Apache-2.0

package devices

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/edgebus/edgebus/topics/resource"
)

func TestACurveHasItsRangeAGapAndSinceWhenThereIsData(t *testing.T) {
	from := time.Date(2026, 11, 27, 12, 0, 0, 0, time.UTC).UnixMilli()
	minute := int64(60_000)
	a := resource.HistoryAnswer{
		Device: "boiler", Property: "temperature", From: from, To: from + plotWidth*minute, Since: from,
		Times: []int64{from, from + 24*minute, from + 48*minute, from + 71*minute}, Values: []any{10., nil, 22., 22.},
	}
	var b strings.Builder
	require.NoError(t, drawHistory(&b, a))
	lines := strings.Split(b.String(), "\n")
	require.Len(t, lines, plotHeight+4)
	require.Equal(t, "        22 │"+strings.Repeat(" ", 48)+strings.Repeat("█", 24), lines[0])
	require.Equal(t, "        10 │"+strings.Repeat("█", 25), lines[plotHeight-1])
	require.Contains(t, lines[plotHeight+2], "temperature of boiler; data since "+formatPlotTime(from))
}

func TestPointsWithARangeAreDrawnAsTheRange(t *testing.T) {
	low, high := 0., 12.
	columns := plotColumns(resource.HistoryAnswer{From: 0, To: plotWidth * 1000, Step: 1000, Times: []int64{5000}, Values: []any{6.}, Min: []*float64{&low}, Max: []*float64{&high}})
	for i, c := range columns {
		require.Equal(t, i == 5, c.any, i)
	}
	require.Equal(t, plotColumn{0, 12, true}, columns[5])
}
