// SPDX-License-Identifier: Apache-2.0

package access

import (
	"testing"

	"github.com/stretchr/testify/require"
	"k8s.io/client-go/tools/clientcmd/api"

	"github.com/edgebus/edgebus/topics/resource"
)

func TestNoPasswordCrossesTheNetworkInTheClear(t *testing.T) {
	ann := api.AuthInfo{Username: "ann", Password: "s3cret"}
	for server, who := range map[string]api.AuthInfo{
		"mqtt://192.0.2.1:1883": {}, "mqtts://192.0.2.1:8883": ann, "wss://hub.example.org": ann,
		"mqtt://127.0.0.1:1883": ann, "MQTT://localhost": ann, "ws://[::1]:8083": ann, "unix:///run/edgebus/core.sock": ann,
	} {
		require.NoError(t, (&Target{MQTT: server, AuthInfo: who}).checkMQTT(), server)
	}
	for server, who := range map[string]api.AuthInfo{
		"mqtt://192.0.2.1:1883": ann, "tcp://hub.example.org": ann, "ws://hub.example.org": ann, "mqtt://ann:s3cret@192.0.2.1": {}, "": ann,
	} {
		err := (&Target{MQTT: server, AuthInfo: who}).checkMQTT()
		require.ErrorIs(t, err, resource.Invalid, server)
		require.NotContains(t, err.Error(), "s3cret")
	}
}
