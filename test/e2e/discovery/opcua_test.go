// SPDX-License-Identifier: Apache-2.0

package discovery

import (
	"bytes"
	"fmt"
	"net"
	"os"
	"os/user"
	"path/filepath"
	"testing"

	"github.com/gopcua/opcua/server"
	"github.com/gopcua/opcua/ua"
	"github.com/stretchr/testify/require"

	"github.com/edgebus/edgebus/test/harness"
	"github.com/edgebus/edgebus/test/stand"
)

// monitoringConfiguration is a Configuration in the shape that Akri publishes for OPC UA.
const monitoringConfiguration = `apiVersion: akri.sh/v0
kind: Configuration
metadata: {name: akri-opcua-monitoring}
spec:
  discoveryHandler:
    name: opcua
    discoveryDetails: |+
      opcuaDiscoveryMethod:
        standard:
          discoveryUrls:
          - opc.tcp://%s/
          - opc.tcp://127.0.0.1:1/
      applicationNames:
        action: Exclude
        items: ["Some application name"]
  brokerProperties:
    IDENTIFIER: "Thermometer_Temperature"
    NAMESPACE_INDEX: "2"
  capacity: 5
`

// A server of OPC UA becomes an Instance with its address, by Akri's manifest and edgediscovery's own handler.
func TestAkrisManifestForOPCUA(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	address := l.Addr().(*net.TCPAddr)
	require.NoError(t, l.Close())
	plc := server.New(
		server.EnableSecurity("None", ua.MessageSecurityModeNone), server.EnableAuthMode(ua.UserTokenTypeAnonymous),
		server.EndPoint("127.0.0.1", address.Port), server.ServerName("press"), server.ManufacturerName("ACME"), server.ProductName("Press"),
	)
	require.NoError(t, plc.Start(t.Context()))
	t.Cleanup(func() { _ = plc.Close() })

	s := stand.New(t, 1)
	me, err := user.Current()
	require.NoError(t, err)
	users := fmt.Sprintf("auth: {users: [{name: finder, role: discoverer, local: %q}]}\n", me.Username)
	require.NoError(t, os.WriteFile(filepath.Join(s.Dir, "core.yaml"), []byte(users), 0o600))
	socket := filepath.Join(s.Dir, "mqtt.sock")
	s.Up("hub")
	require.NoError(t, s.Start(t.Context(), "core", "--mqtt-socket", socket))
	require.NoError(t, s.Run(t.Context(), "discovery", []string{
		"edgediscovery", "--mqtt-socket", socket, "--data-dir", filepath.Join(s.Dir, "data"), "--handlers-dir", filepath.Join(s.Dir, "h"),
	}, ""))
	s.Create(fmt.Sprintf(monitoringConfiguration, address))
	s.Eventually(stand.WaitTimeout, func() error {
		text, err := harness.Call(t.Context(), "GET", "http://"+s.Hub.HTTP+"/apis/akri.sh/v0/instances", nil)
		if err != nil {
			return err
		}
		for _, want := range []string{`"OPCUA_DISCOVERY_URL":"opc.tcp://` + address.String(), `"IDENTIFIER":"Thermometer_Temperature"`, `"nodes":["n1"]`} {
			if !bytes.Contains(text, []byte(want)) {
				return fmt.Errorf("the Instances are %s, without %s", text, want)
			}
		}
		return nil
	})
}
