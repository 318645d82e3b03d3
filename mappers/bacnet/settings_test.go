// SPDX-License-Identifier: Apache-2.0

package bacnet

import (
	"testing"

	"github.com/edgebus/edgebus/mappers/drivertest"
)

func TestTheTableOfSettingsIsWhatIsChecked(t *testing.T) {
	drivertest.RunSettings(t, &Driver{}, map[string]string{"address": "10.0.0.9"}, map[string]string{"object": "AI:1"})
	drivertest.RunSettingsPage(t, protocolSettings, "../../docs/bacnet.md")
}
