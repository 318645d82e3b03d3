// SPDX-License-Identifier: Apache-2.0

package devices

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestAnAddressIsTheSettingThatTheProtocolHasForIt(t *testing.T) {
	for _, c := range []struct{ protocol, address, setting string }{
		{"modbus", "tcp://10.0.0.5", "address"},
		{"snmp", "10.0.0.9", "address"},
		{"bacnet", "10.0.0.9", "address"},
		{"bacnet", "1234", "device"},
		{"opcua", "opc.tcp://10.0.0.5:4840", "endpoint"},
		{"http", "http://10.0.0.9", "url"},
		{"mqtt", "zigbee2mqtt/lamp", "topic"},
	} {
		require.Equal(t, c.setting, addressSetting(c.protocol, c.address), c)
	}
}
