// SPDX-License-Identifier: Apache-2.0

package http

import (
	"testing"

	"github.com/edgebus/edgebus/mappers/drivertest"
)

func TestTheTableOfSettingsIsWhatIsChecked(t *testing.T) {
	drivertest.RunSettings(t, &Driver{}, map[string]string{"url": "http://10.0.0.9"}, map[string]string{"write": "POST /x"})
	drivertest.RunSettingsPage(t, protocolSettings, "../../docs/http.md")
}
