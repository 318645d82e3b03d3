// SPDX-License-Identifier: Apache-2.0

package mqtt

import (
	"testing"

	"github.com/edgebus/edgebus/mappers/drivertest"
)

func TestTheTableOfSettingsIsOnItsPage(t *testing.T) {
	drivertest.RunSettingsPage(t, protocolSettings, "../../docs/mqtt-devices.md")
}
