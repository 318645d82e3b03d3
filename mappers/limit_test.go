// SPDX-License-Identifier: Apache-2.0

package mappers

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

func TestWhatADeviceTakesAtOnceIsLearntToldAndDoubted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		told := map[string]string{}
		d := Device{tell: func(code, message string) { told[code] = message }}
		l := NewRequestLimit(d, "MaxThings", 0, 20)
		require.Equal(t, 20, l.Most())
		l.Learn(10, "takes %d: set maxThings")
		l.Learn(5, "takes %d: set maxThings")
		require.Equal(t, 5, l.Most())
		require.Equal(t, "takes 5: set maxThings", told["MaxThings"])
		time.Sleep(doubtAfter - time.Second) // of the test's own clock
		require.Equal(t, 5, l.Most())
		time.Sleep(time.Second) // of the test's own clock
		require.Equal(t, 20, l.Most())
		require.Empty(t, told["MaxThings"], "what was told ends with the doubt")

		configured := NewRequestLimit(d, "MaxThings", 8, 20)
		require.Equal(t, 8, configured.Most())
		configured.Learn(4, "takes %d")
		require.Equal(t, 4, configured.Most(), "the device takes less than it was said to")
	})
}
