// SPDX-License-Identifier: Apache-2.0

package opcua

import (
	"context"
	"fmt"
	"net"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/gopcua/opcua/server"
	"github.com/gopcua/opcua/ua"
	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"

	"github.com/edgebus/edgebus/edge/discovery/handler"
	"github.com/edgebus/edgebus/mappers/opcua/wire"
	"github.com/edgebus/edgebus/test/faults"
	"github.com/edgebus/edgebus/test/handlertest"
)

// startServer starts a server of gopcua's on loopback, which is there until the test binary ends: its Close races with connections that it accepts.
func startServer(t *testing.T, name string) (address string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	port := l.Addr().(*net.TCPAddr).Port
	require.NoError(t, l.Close())
	s := server.New(
		server.EnableSecurity("None", ua.MessageSecurityModeNone), server.EnableAuthMode(ua.UserTokenTypeAnonymous),
		server.EndPoint("127.0.0.1", port), server.ServerName(name), server.ManufacturerName("ACME"), server.ProductName("Press"),
	)
	require.NoError(t, s.Start(context.Background()))
	return fmt.Sprintf("127.0.0.1:%d", port)
}

func startDiscover(t *testing.T, details string) <-chan []handler.Device {
	return handlertest.Discover(t, serverFinder{zerolog.Nop(), 50 * time.Millisecond, handlertest.Timeout}, details, nil)
}

func TestServersAreFound(t *testing.T) {
	a, err := faults.New(faults.Options{Target: startServer(t, "press one")})
	require.NoError(t, err)
	t.Cleanup(a.Close)
	b := startServer(t, "press two")
	list := fmt.Sprintf("[opc.tcp://%s/, opc.tcp://127.0.0.1:1/, opc.tcp://%s]", a.Addr(), b) // nothing listens at the second
	found := startDiscover(t, "opcuaDiscoveryMethod: {standard: {discoveryUrls: "+list+"}}")
	devices := handlertest.NextDevices(t, found, 2)
	for i, d := range devices {
		require.Equal(t, d.ID, d.Properties["OPCUA_DISCOVERY_URL"])
		require.Contains(t, []string{"press one", "press two"}, d.Properties["OPCUA_APPLICATION_NAME"], i)
		require.NotContains(t, d.Properties, "OPCUA_APPLICATION_URI", "gopcua's server has none")
	}
	one := handlertest.NextDevices(t, startDiscover(t, "opcua:\n  opcuaDiscoveryMethod: {standard: {discoveryUrls: "+list+"}}\n  applicationNames: {action: Include, items: [press two]}"), 1)
	require.Contains(t, one[0].ID, b)
	handlertest.NextDevices(t, startDiscover(t, "opcuaDiscoveryMethod: {standard: {discoveryUrls: "+list+"}}\napplicationNames: {action: Exclude, items: [press two, press one]}"), 0)
	a.Close()
	handlertest.NextDevices(t, found, 1)
}

func TestWhatIsNoServer(t *testing.T) {
	asked, err := url.Parse("opc.tcp://10.0.0.5:4840/")
	require.NoError(t, err)
	known := hostCache{"press.plant": true, "nowhere": false}
	address := func(a wire.Application) string {
		list := foundServers(t.Context(), a, asked, true, known)
		if len(list) == 0 {
			return ""
		}
		return list[0].ID
	}
	require.Equal(t, "opc.tcp://press.plant:1/a", address(wire.Application{URLs: []string{"https://press.plant/", "opc.tcp://press.plant:1/a"}}))
	require.Equal(t, "opc.tcp://10.0.0.5:1/a", address(wire.Application{URLs: []string{"opc.tcp://nowhere:1/a"}}))
	require.Equal(t, "https://press.plant/", address(wire.Application{Kind: wire.KindClientAndServer, URLs: []string{"https://press.plant/"}}))
	require.Empty(t, address(wire.Application{Kind: 1, URLs: []string{"opc.tcp://press.plant"}}), "a client")
	require.Empty(t, address(wire.Application{Kind: 3, URLs: []string{"opc.tcp://press.plant"}}), "a discovery server")
	require.Empty(t, address(wire.Application{}))
	require.Empty(t, address(wire.Application{URLs: []string{"opc.tcp://press.plant/" + strings.Repeat("x", 1024)}}))
}

// TestTheIDIsTheSameWithoutDNS has each server seen with DNS and without.
func TestTheIDIsTheSameWithoutDNS(t *testing.T) {
	for _, c := range []struct {
		says, asked string
		itself      bool
		id          string
		resolved    string // OPCUA_DISCOVERY_URL with DNS; without it is asked's host
	}{
		{"opc.tcp://press.plant:1/a", "opc.tcp://10.0.0.5:4840/", true, "opc.tcp://press.plant:1/a", "opc.tcp://press.plant:1/a"},
		{"opc.tcp://press.plant:1/a", "opc.tcp://10.0.0.5:4840/", false, "opc.tcp://press.plant:1/a", "opc.tcp://press.plant:1/a"},
		{"opc.tcp://plc:1/a", "opc.tcp://10.0.0.5:4840/", true, "opc.tcp://10.0.0.5:1/a", "opc.tcp://10.0.0.5:1/a"},
		{"opc.tcp://plc:1/a", "opc.tcp://10.0.0.5:4840/", false, "opc.tcp://plc:1/a", "opc.tcp://plc:1/a"},
		{"opc.tcp://localhost:1/a", "opc.tcp://10.0.0.5:4840/", false, "opc.tcp://10.0.0.5:1/a", "opc.tcp://10.0.0.5:1/a"},
		{"opc.tcp://0.0.0.0:1", "opc.tcp://[fd00::5]", true, "opc.tcp://[fd00::5]:1", "opc.tcp://[fd00::5]:1"},
		{"opc.tcp://plc:1/a", "opc.tcp://localhost:4840/", true, "opc.tcp://plc:1/a", "opc.tcp://plc:1/a"},
		{"opc.tcp://10.0.0.9:1/a", "opc.tcp://10.0.0.5:4840/", true, "opc.tcp://10.0.0.9:1/a", "opc.tcp://10.0.0.9:1/a"},
		{"opc.tcp://[fd00::9]:1/a", "opc.tcp://10.0.0.5:4840/", true, "opc.tcp://[fd00::9]:1/a", "opc.tcp://[fd00::9]:1/a"},
	} {
		asked, err := url.Parse(c.asked)
		require.NoError(t, err)
		for _, answers := range []bool{true, false} {
			known := hostCache{"10.0.0.5": true, "10.0.0.9": true, "fd00::5": true, "fd00::9": true, "press.plant": answers, "plc": answers, "localhost": true}
			d := foundServers(t.Context(), wire.Application{URLs: []string{c.says}}, asked, c.itself, known)[0]
			require.Equal(t, c.id, d.ID, "%+v", c)
			if answers {
				require.Equal(t, c.resolved, d.Properties["OPCUA_DISCOVERY_URL"], "%+v", c)
			} else if host := d.Properties["OPCUA_DISCOVERY_URL"]; !strings.Contains(host, "10.0.0.9") && !strings.Contains(host, "fd00::9") {
				require.Contains(t, host, asked.Hostname(), "%+v", c)
			}
		}
	}
}

func TestDetailsThatCanNotBe(t *testing.T) {
	for text, want := range map[string]string{
		"":                                 "opcuaDiscoveryMethod.standard: is required",
		"opcuaDiscoveryMethod: {scan: {}}": "there is no field scan: it is one of ",
		"opcuaDiscoveryMethod: {standard: {discoveryUrls: ['http://x']}}":        `discoveryUrls[0]: "http://x" is no URL such as`,
		"opcuaDiscoveryMethod: {standard: {}}\napplicationNames: {action: No}":   `applicationNames.action: "No"`,
		"opcuaDiscoveryMethod: {standard: {}}\nfilter: {A: b}":                   `filter: takes identify: true`,
		"opcuaDiscoveryMethod: {standard: {}}\nidentify: true\nfilter: {A: '['}": `filter.A: "[" is no glob`,
	} {
		err := Program.New(handler.Env{}).Discover(t.Context(), text, nil, nil)
		require.ErrorContains(t, err, want)
		require.True(t, handler.IsInvalidArgument(err), text)
	}
	d, err := parseDetails("opcuaDiscoveryMethod:\n  standard: {}")
	require.NoError(t, err)
	require.Equal(t, defaultURL, d.urls[0].String())
	d, err = parseDetails(`{opcuaDiscoveryMethod: '{"standard":{"discoveryUrls":["opc.tcp://10.0.0.5"]}}', identify: "true", filter: '{A: b}'}`)
	require.NoError(t, err, "as a Configuration's fields are passed on")
	require.Equal(t, "opc.tcp://10.0.0.5", d.urls[0].String())
	require.True(t, d.Identify)
}

func TestAServerThatIsSilentOrTalksNonsenseEndsNothing(t *testing.T) {
	silent, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer silent.Close()
	nonsense, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer nonsense.Close()
	go func() {
		for {
			c, err := nonsense.Accept()
			if err != nil {
				return
			}
			_, _ = c.Write([]byte("ACKF\xff\xff\xff\x7f"))
			_ = c.Close()
		}
	}()
	found := handlertest.Discover(t, serverFinder{zerolog.Nop(), 50 * time.Millisecond, time.Second},
		fmt.Sprintf("opcuaDiscoveryMethod: {standard: {discoveryUrls: [opc.tcp://%s, opc.tcp://%s, opc.tcp://%s]}}", silent.Addr(), nonsense.Addr(), startServer(t, "press")), nil)
	handlertest.NextDevices(t, found, 1)
}

func TestServersAreAskedWhatTheyAre(t *testing.T) {
	details := "opcuaDiscoveryMethod: {standard: {discoveryUrls: [opc.tcp://" + startServer(t, "press") + "]}}\nidentify: true\n"
	p := handlertest.NextDevices(t, startDiscover(t, details+"filter: {OPCUA_PRODUCT: Pre*}"), 1)[0].Properties
	require.Equal(t, "ACME", p["OPCUA_MANUFACTURER"])
	require.Equal(t, "None None", p["OPCUA_SECURITY"])
	require.Contains(t, p, "OPCUA_BUILD", "each has all")
	handlertest.NextDevices(t, startDiscover(t, details+"filter: {OPCUA_PRODUCT: Mill*}"), 0)
}
