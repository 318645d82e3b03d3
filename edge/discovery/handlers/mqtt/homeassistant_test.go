// SPDX-License-Identifier: Apache-2.0

package mqtt

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
)

// A message of 100 kB must not cost what a hundred million members do.
func TestComponentsTimesCommonMembersAreBounded(t *testing.T) {
	payload := func(components, members int) configFields {
		parts, f := map[string]any{}, configFields{}
		for i := range components {
			parts[fmt.Sprint("c", i)] = map[string]any{"platform": "sensor", "unique_id": fmt.Sprint("u", i)}
		}
		for i := range members {
			f[fmt.Sprint("m", i)] = "x"
		}
		f["components"] = parts
		return f
	}
	list, err := payload(200, 50).entities("device", "hall")
	require.NoError(t, err)
	require.Len(t, list, 200)
	_, err = payload(2000, 2000).entities("device", "hall")
	require.ErrorContains(t, err, "2000 components with 2001 members in common are more than are read")
	f := payload(2000, 1)
	f["availability"] = make([]any, 2000)
	_, err = f.entities("device", "hall")
	require.ErrorContains(t, err, "more than are read")
}
