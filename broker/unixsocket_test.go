// SPDX-License-Identifier: Apache-2.0

package broker

import (
	"net"
	"os"
	"os/user"
	"path/filepath"
	"strings"
	"testing"

	"github.com/mochi-mqtt/server/v2/packets"
	"github.com/stretchr/testify/require"

	"github.com/edgebus/edgebus/topics"
)

// socketPath is where a test may have a Unix socket: their paths are short.
func socketPath(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "eb")
	require.NoError(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return filepath.Join(dir, "mqtt.sock")
}

func dialUnix(t *testing.T, path string) *testClient {
	t.Helper()
	conn, err := net.Dial("unix", path)
	require.NoError(t, err)
	return wrapConn(t, conn)
}

// TestTheKernelSaysWhoIsAtAUnixSocket signs in as the user who runs the test, without a password.
func TestTheKernelSaysWhoIsAtAUnixSocket(t *testing.T) {
	path := socketPath(t)
	me, err := user.Current()
	require.NoError(t, err)
	b := startBroker(t, func(o *Options) {
		o.Node = "n1"
		o.Tree = newFakeTree()
		o.Listeners = append(o.Listeners, Listener{Name: "unix", Address: "unix:" + path})
		o.Auth.Anonymous = nil
		o.Auth.Users = []User{
			{Name: "modbus", Role: topics.RoleMapper, Local: me.Uid, Devices: []string{"d"}},
			{Name: "agent", Role: topics.RoleAgent, Local: "somebody-else"},
			testUsers()[0],
		}
	})
	mapper := dialUnix(t, path)
	require.Zero(t, mapper.connect("mapper-modbus"))
	require.Zero(t, mapper.publish1("v1/nodes/n1/devices/d/reported/p", "1").ReasonCode&0x80)
	require.Equal(t, byte(0x87), mapper.publish1("v1/nodes/n1/devices/other/reported/p", "1").ReasonCode)
	other := dialUnix(t, path)
	require.Equal(t, byte(0x86), other.connect("x", credentialsOf("agent", "")))
	named := dialUnix(t, path)
	require.Equal(t, byte(0), named.connect("modbus-y", func(pk *packets.Packet) { pk.Connect.Username, pk.Connect.UsernameFlag = []byte("modbus"), true }))
	require.Equal(t, byte(0x86), dialBroker(t, b).connect("z"), "over TCP nobody is known")

	info, err := os.Stat(path)
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o666), info.Mode().Perm())
	_, err = New(Options{Listeners: []Listener{{Address: "unix:" + path}}})
	require.ErrorContains(t, err, "another program listens there")
}

// TestADiscovererReadsWhatDevicesAnnounce on users' own topics, and publishes nothing there.
func TestADiscovererReadsWhatDevicesAnnounce(t *testing.T) {
	path := socketPath(t)
	me, err := user.Current()
	require.NoError(t, err)
	b := startBroker(t, func(o *Options) {
		o.Node = "n1"
		o.Tree = newFakeTree()
		o.Listeners = append(o.Listeners, Listener{Name: "unix", Address: "unix:" + path})
		o.Auth.Anonymous = []topics.Role{topics.RoleOperator}
		o.Auth.Users = []User{{Name: "discovery", Role: topics.RoleDiscoverer, Local: me.Uid}}
	})
	device, discovery := dialBroker(t, b), dialUnix(t, path)
	require.Zero(t, device.connect("device"))
	require.Zero(t, discovery.connect("discovery"))
	discovery.sub("homeassistant/+/+/config", 1)
	require.Zero(t, device.publish1("homeassistant/switch/plug/config", "{}").ReasonCode&0x80)
	require.Equal(t, "homeassistant/switch/plug/config", discovery.expect(packets.Publish).TopicName)
	require.Equal(t, byte(0x87), discovery.publish1("zigbee2mqtt/lamp/set", "{}").ReasonCode)
}

func TestAStrangerAtAUnixSocket(t *testing.T) {
	path := socketPath(t)
	startBroker(t, func(o *Options) {
		o.Listeners = append(o.Listeners, Listener{Name: "unix", Address: "unix:" + path})
		o.Auth.Users = []User{{Name: "agent", Role: topics.RoleAgent, Nodes: []string{"*"}, Local: "4294967294"}}
	})
	c := dialUnix(t, path)
	require.Equal(t, byte(0x86), c.connect("x"))
	require.Contains(t, c.connack.Properties.ReasonString, "none of auth.users (local)")
}

func TestWhatIsInTheWayOfAUnixSocket(t *testing.T) {
	path := socketPath(t)
	left, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	require.NoError(t, err)
	left.SetUnlinkOnClose(false)
	require.NoError(t, left.Close())
	l, err := listenUnix(path) // one that a killed program left behind is replaced
	require.NoError(t, err)
	require.NoError(t, l.Close())
	require.NoFileExists(t, path)
	require.NoError(t, os.WriteFile(path, nil, 0o600))
	_, err = listenUnix(path)
	require.ErrorContains(t, err, "is no socket")
	_, err = listenUnix("/" + strings.Repeat("x", maxSocketPath))
	require.ErrorContains(t, err, "107 bytes at most")
}

// TestDeliveryOverAUnixSocket runs QoS 2 with large payloads through one.
func TestDeliveryOverAUnixSocket(t *testing.T) {
	path := socketPath(t)
	me, err := user.Current()
	require.NoError(t, err)
	startBroker(t, func(o *Options) {
		o.Listeners = append(o.Listeners, Listener{Name: "unix", Address: "unix:" + path})
		o.Auth.Users = []User{{Name: "op", Role: topics.RoleOperator, Nodes: []string{"*"}, Local: me.Username}}
	})
	sub, pub := dialUnix(t, path), dialUnix(t, path)
	require.Zero(t, sub.connect("sub"))
	require.Zero(t, pub.connect("pub"))
	sub.sub("a", 1)
	large := strings.Repeat("x", 300_000)
	for range 20 {
		pub.publish1("a", large)
	}
	for _, got := range sub.collect(20) {
		require.Len(t, got, len(large))
	}
}
