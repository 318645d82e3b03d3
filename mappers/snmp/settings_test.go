// SPDX-License-Identifier: Apache-2.0

package snmp

import (
	"testing"

	"github.com/edgebus/edgebus/mappers/drivertest"
)

func TestTheTableOfSettingsIsWhatIsChecked(t *testing.T) {
	drivertest.RunSettings(t, &Driver{}, map[string]string{"address": "10.0.0.9"}, map[string]string{"oid": "1.3.6", "trap": "1.3.6"})
	drivertest.RunSettingsPage(t, protocolSettings, "../../docs/snmp.md")
}
