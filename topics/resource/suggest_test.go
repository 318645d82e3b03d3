// SPDX-License-Identifier: Apache-2.0

package resource

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestNearNames(t *testing.T) {
	names := []string{"fan", "lamp", "lamp-12", "thermostat-hall"}
	for written, want := range map[string]string{
		"lmp": "lamp", "lapm": "lamp", "Lamp": "lamp", "lamp": "", "lamp-13": "lamp-12", "themostat-hal": "thermostat-hall", "pump": "", "stat": "thermostat-hall", "hall": "thermostat-hall", "x": "", "": "",
	} {
		require.Equal(t, want, NearestNames(written, names), written)
	}
}
