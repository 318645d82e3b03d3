// SPDX-License-Identifier: Apache-2.0

package printer

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/edgebus/edgebus/topics/resource"
)

// TestAPropertyWithoutDesiredValueIsNotInSync: neither a property without a desired value, nor one that can't have any.
func TestAPropertyWithoutDesiredValueIsNotInSync(t *testing.T) {
	value := &resource.TwinValue{Value: "20"}
	rows := TwinRows(map[string]resource.TwinProperty{
		"free": {Reported: value, InSync: true}, "level": {Desired: value, Reported: value, InSync: true},
		"late": {Desired: value}, "local": {Desired: value, Local: true},
	}, nil, time.Now())
	var got []string
	for _, row := range rows[1:] {
		got = append(got, row[0]+" "+row[3])
	}
	require.Equal(t, []string{"free –", "late no", "level yes", "local on node"}, got)
}
