// SPDX-License-Identifier: Apache-2.0

package opcua

import (
	"testing"

	"github.com/edgebus/edgebus/mappers/drivertest"
)

func TestTheTableOfSettingsIsWhatIsChecked(t *testing.T) {
	drivertest.RunSettings(t, &Driver{}, map[string]string{"endpoint": "opc.tcp://10.0.0.5"}, map[string]string{"node": "i=1", "object": "i=1", "method": "i=1"})
	drivertest.RunSettingsPage(t, protocolSettings, "../../docs/opcua.md")
}
