// SPDX-License-Identifier: Apache-2.0

package virtual

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/edgebus/edgebus/mappers/drivertest"
	"github.com/edgebus/edgebus/topics/resource"
)

func TestTheTableOfSettingsIsOnItsPage(t *testing.T) {
	drivertest.RunSettingsPage(t, protocolSettings, "../../docs/models.md")
}

func TestOtherNamesOfSettingsAreInTheTable(t *testing.T) {
	normal, err := normalizeConfig(map[string]string{"initial": "4", "minimum": "1", "maximum": "9"}, "")
	require.NoError(t, err)
	require.Equal(t, map[string]string{"value": "4", "min": "1", "max": "9"}, normal)
	table := protocolSettings
	table.Protocols = []string{"virtual"}
	visitor := resource.Visitor{PropertyName: "p", Config: map[string]resource.Value{"initial": "4", "minimum": "1", "maximum": "9"}}
	require.Empty(t, table.CheckVisitor("at", visitor), "who writes a model is not warned of them")
}
