// SPDX-License-Identifier: Apache-2.0

package modbus

import (
	"testing"

	"github.com/edgebus/edgebus/mappers/drivertest"
)

func TestTheTableOfSettingsIsWhatIsChecked(t *testing.T) {
	drivertest.RunSettings(t, New(Options{Timeout: 1}), map[string]string{"address": "tcp://10.0.0.9"}, map[string]string{"register": "holding", "address": "3", "value": "1"})
	drivertest.RunSettingsPage(t, protocolSettings, "../../docs/models.md")
}
