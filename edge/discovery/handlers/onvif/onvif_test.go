// SPDX-License-Identifier: Apache-2.0

package onvif

import (
	"context"
	"crypto/sha1"
	"encoding/base64"
	"encoding/xml"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"
	"golang.org/x/net/ipv4"

	"github.com/edgebus/edgebus/edge/discovery/handler"
	"github.com/edgebus/edgebus/edge/discovery/handlers/network"
	"github.com/edgebus/edgebus/test/handlertest"
)

const hallUUID = "10919da4-5566-7788-99aa-0012414fb745"

// answerTemplate is one of a real camera's, shortened.
const answerTemplate = `<?xml version="1.0" encoding="UTF-8"?>
<SOAP-ENV:Envelope xmlns:SOAP-ENV="http://www.w3.org/2003/05/soap-envelope" xmlns:wsa="http://schemas.xmlsoap.org/ws/2004/08/addressing" xmlns:d="http://schemas.xmlsoap.org/ws/2005/04/discovery" xmlns:dn="http://www.onvif.org/ver10/network/wsdl">
<SOAP-ENV:Header><wsa:MessageID>urn:uuid:2bc6f06c</wsa:MessageID><wsa:RelatesTo>%s</wsa:RelatesTo></SOAP-ENV:Header><SOAP-ENV:Body><d:%s>
<wsa:EndpointReference><wsa:Address>urn:uuid:%s</wsa:Address></wsa:EndpointReference><d:Types>dn:NetworkVideoTransmitter</d:Types>
<d:Scopes>onvif://www.onvif.org/type/video_encoder onvif://www.onvif.org/hardware/IPC-1 onvif://www.onvif.org/location/hall onvif://www.onvif.org/name/Hall%%20camera </d:Scopes>
<d:XAddrs>http://192.0.2.7/onvif/device_service %s</d:XAddrs><d:MetadataVersion>10</d:MetadataVersion></d:%s></SOAP-ENV:Body></SOAP-ENV:Envelope>`

func probeMatch(relatesTo, uuid, url string) string {
	text := fmt.Sprintf(answerTemplate, relatesTo, "ProbeMatches><d:ProbeMatch", uuid, url, "ProbeMatch></d:ProbeMatches")
	return text
}

// testNetwork is the loopback interface with cameras on it.
type testNetwork struct {
	t       *testing.T
	address string
	arp     string
	group   *network.Group
	service *httptest.Server

	mu      sync.Mutex
	cameras []string // UUIDs
	probes  int
	asked   []string // user names
}

func newTestNetwork(t *testing.T, cameras ...string) *testNetwork {
	n := &testNetwork{t: t, address: fmt.Sprintf("239.255.255.250:%d", 20000+rand.IntN(10000)), cameras: cameras, arp: filepath.Join(t.TempDir(), "arp")}
	require.NoError(t, os.WriteFile(n.arp, []byte("IP address       HW type     Flags       HW address            Mask     Device\n127.0.0.1        0x1         0x2         00:12:41:4f:b7:45     *        lo\n"), 0o600))
	g, err := network.Join(t.Context(), n.address, "", []string{"lo"}, true)
	require.NoError(t, err)
	require.NoError(t, g.Listen())
	n.group = g
	n.service = httptest.NewServer(http.HandlerFunc(n.serve))
	t.Cleanup(n.service.Close)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			select {
			case <-ctx.Done():
				return
			case p := <-g.Packets:
				n.answer(p)
			}
		}
	}()
	t.Cleanup(func() {
		cancel()
		<-done
		g.Close()
	})
	return n
}

func (n *testNetwork) url() string { return n.service.URL + "/onvif/device_service" }

func (n *testNetwork) answer(p network.Packet) {
	var probe struct {
		ID    string `xml:"Header>MessageID"`
		Types string `xml:"Body>Probe>Types"`
	}
	if xml.Unmarshal(p.Data, &probe) != nil || probe.Types == "" {
		return
	}
	c, err := net.DialUDP("udp4", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)}, p.From)
	require.NoError(n.t, err)
	defer c.Close()
	n.mu.Lock()
	defer n.mu.Unlock()
	n.probes++
	_, _ = c.Write([]byte("<malformed"))
	_, _ = c.Write([]byte(probeMatch("uuid:another", "of-another-probe", n.url())))
	for _, uuid := range n.cameras {
		_, _ = c.Write([]byte(probeMatch(probe.ID, uuid, n.url())))
	}
}

// serve is the device service of all cameras. The password is secret.
func (n *testNetwork) serve(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	var e struct {
		User    string    `xml:"Header>Security>UsernameToken>Username"`
		Digest  string    `xml:"Header>Security>UsernameToken>Password"`
		Nonce   string    `xml:"Header>Security>UsernameToken>Nonce"`
		Created string    `xml:"Header>Security>UsernameToken>Created"`
		Info    *struct{} `xml:"Body>GetDeviceInformation"`
	}
	_ = xml.Unmarshal(body, &e)
	nonce, _ := base64.StdEncoding.DecodeString(e.Nonce)
	digest := sha1.Sum([]byte(string(nonce) + e.Created + "secret"))
	n.mu.Lock()
	n.asked = append(n.asked, e.User)
	n.mu.Unlock()
	if base64.StdEncoding.EncodeToString(digest[:]) != e.Digest || strings.Contains(string(body), "secret") {
		w.WriteHeader(http.StatusUnauthorized)
		return
	}
	text := `<NetworkInterfaces><Info><Name>eth0</Name><HwAddress>A0:B1:C2:D3:E4:F5</HwAddress></Info></NetworkInterfaces>`
	name := "GetNetworkInterfacesResponse"
	if e.Info != nil {
		name, text = "GetDeviceInformationResponse", "<Manufacturer>ACME</Manufacturer><Model>Eye 1</Model><FirmwareVersion>2.0</FirmwareVersion><SerialNumber>7</SerialNumber>"
	}
	fmt.Fprintf(w, `<e:Envelope xmlns:e="http://www.w3.org/2003/05/soap-envelope"><e:Body><%[1]s>%[2]s</%[1]s></e:Body></e:Envelope>`, name, text)
}

func (n *testNetwork) discover(t *testing.T, details string, properties map[string][]byte) <-chan []handler.Device {
	if rest, ok := strings.CutPrefix(details, "onvif:"); ok {
		details = "onvif:\n  interfaces: [lo]" + rest
	} else {
		details += "\ninterfaces: [lo]"
	}
	p := cameraProber{log: zerolog.Nop(), address4: n.address, interval: 50 * time.Millisecond, arp: n.arp, join: network.Join}
	return handlertest.Discover(t, p, details, properties)
}

func TestACameraAnswersOverMulticast(t *testing.T) {
	n := newTestNetwork(t, hallUUID)
	found := n.discover(t, "discoveryTimeoutSeconds: 1", nil)
	require.Equal(t, []handler.Device{{ID: hallUUID, Properties: map[string]string{
		"ONVIF_DEVICE_SERVICE_URL": n.url(), "ONVIF_DEVICE_IP_ADDRESS": "127.0.0.1", "ONVIF_DEVICE_MAC_ADDRESS": "00:12:41:4f:b7:45", "ONVIF_DEVICE_UUID": hallUUID,
		"ONVIF_DEVICE_NAME": "Hall camera", "ONVIF_DEVICE_HARDWARE": "IPC-1", "ONVIF_DEVICE_LOCATION": "hall",
		"ONVIF_DEVICE_SCOPES": "onvif://www.onvif.org/hardware/IPC-1 onvif://www.onvif.org/location/hall onvif://www.onvif.org/name/Hall%20camera onvif://www.onvif.org/type/video_encoder",
	}}}, handlertest.NextDevices(t, found, 1))
	require.Empty(t, n.asked, "without credentials nobody is asked")
	n.mu.Lock()
	n.cameras = nil
	n.mu.Unlock()
	handlertest.NextDevices(t, found, 0)
}

func TestCamerasComeAndGoAtOnce(t *testing.T) {
	n := newTestNetwork(t)
	p := cameraProber{log: zerolog.Nop(), address4: n.address, interval: time.Hour, arp: n.arp, join: network.Join}
	found := handlertest.Discover(t, p, "interfaces: [lo]", nil)
	handlertest.NextDevices(t, found, 0)
	n.mu.Lock()
	n.cameras = []string{hallUUID}
	n.mu.Unlock()
	require.Eventually(t, func() bool { // for a second after a probe they are not heeded
		require.NoError(t, n.group.Send([]byte(fmt.Sprintf(answerTemplate, "", "Hello", hallUUID, n.url(), "Hello"))))
		return len(found) > 0
	}, handlertest.Timeout, 100*time.Millisecond)
	handlertest.NextDevices(t, found, 1)
	bye := []byte(fmt.Sprintf(answerTemplate, "", "Bye", hallUUID, "", "Bye"))
	require.NoError(t, n.group.Send(bye)) // from another address than the camera's: anybody could
	n.sendFrom("127.0.0.1", bye)
	handlertest.NextDevices(t, found, 0)
}

func TestASocketThatCanNotBeReadEndsTheLook(t *testing.T) {
	n := newTestNetwork(t)
	var asking *network.Group
	p := cameraProber{log: zerolog.Nop(), address4: n.address, interval: time.Hour, arp: n.arp}
	p.join = func(ctx context.Context, address4, address6 string, names []string, listen bool) (*network.Group, error) {
		g, err := network.Join(ctx, address4, address6, names, listen)
		if !listen {
			asking = g
		}
		return g, err
	}
	err := p.Discover(t.Context(), "interfaces: [lo]", nil, func([]handler.Device) { asking.Close() })
	require.ErrorIs(t, err, net.ErrClosed, "edgediscovery asks again, with back-off")
}

func TestAnnouncementsAreHeardAgain(t *testing.T) {
	n := newTestNetwork(t)
	var listening []*network.Group
	p := cameraProber{log: zerolog.Nop(), address4: n.address, interval: 50 * time.Millisecond, arp: n.arp}
	p.join = func(ctx context.Context, address4, address6 string, names []string, listen bool) (*network.Group, error) {
		g, err := network.Join(ctx, address4, address6, names, listen)
		if listen {
			listening = append(listening, g)
		}
		return g, err
	}
	ctx, cancel := context.WithCancel(t.Context())
	require.NoError(t, p.Discover(ctx, "interfaces: [lo]", nil, func([]handler.Device) {
		if len(listening) > 1 {
			cancel()
		}
		listening[0].Close()
	}))
}

// sendFrom sends a datagram to the group from an address of the loopback interface.
func (n *testNetwork) sendFrom(address string, data []byte) {
	c, err := net.ListenPacket("udp4", address+":0")
	require.NoError(n.t, err)
	defer c.Close()
	lo, err := net.InterfaceByName("lo")
	require.NoError(n.t, err)
	p := ipv4.NewPacketConn(c)
	require.NoError(n.t, p.SetMulticastInterface(lo))
	to, err := net.ResolveUDPAddr("udp4", n.address)
	require.NoError(n.t, err)
	_, err = p.WriteTo(data, nil, to)
	require.NoError(n.t, err)
}

func TestFilters(t *testing.T) {
	n := newTestNetwork(t, hallUUID)
	for details, want := range map[string]int{
		"ipAddresses: {action: Include, items: [127.0.0.1]}":                                        1,
		"ipAddresses: {action: Exclude, items: [127.0.0.1]}":                                        0,
		"ipAddresses: {action: Include, items: [127.0.0.10]}":                                       0,
		"macAddresses: {action: Include, items: ['00-12-41-4F-B7-45']}":                             1,
		"macAddresses: {action: Exclude, items: ['00:12:41:4f:b7:45']}":                             0,
		"scopes: {action: Include, items: ['onvif://www.onvif.org/name/Hall']}":                     1,
		"scopes: {action: Include, items: ['onvif://www.onvif.org/name/Kitchen']}":                  0,
		"uuids: {action: Exclude, items: [10919da4]}":                                               0,
		"onvif:\n  ipAddresses: {action: Exclude, items: [10.0.0.1]}\n  discoveryTimeoutSeconds: 1": 1,
	} {
		t.Run(details, func(t *testing.T) {
			t.Parallel()
			handlertest.NextDevices(t, n.discover(t, details, nil), want)
		})
	}
}

func TestWithCredentialsACameraSaysWhoItIs(t *testing.T) {
	n := newTestNetwork(t, hallUUID)
	for name, properties := range map[string]map[string][]byte{
		"default": {"username_default": []byte("root"), "password_default": []byte("secret")},
		"own":     {"username_default": []byte("x"), "username_" + strings.ReplaceAll(hallUUID, "-", "_"): []byte("root"), "password_" + strings.ReplaceAll(hallUUID, "-", "_"): []byte("secret")},
		"list":    {"device_credential_list": []byte(`["a"]`), "a": []byte(`{"` + hallUUID + `":{"username":"root","password":"c2VjcmV0","base64encoded":true}}`)},
		"ref list": {
			"device_credential_ref_list": []byte(`["a"]`), "a": []byte(`{"` + hallUUID + `":{"username_ref":"u","password_ref":"p"}}`),
			"u": []byte("root"), "p": []byte("secret"),
		},
	} {
		t.Run(name, func(t *testing.T) {
			found := n.discover(t, "macAddresses: {action: Include, items: ['a0:b1:c2:d3:e4:f5']}", properties)
			p := handlertest.NextDevices(t, found, 1)[0].Properties
			require.Equal(t, "ACME Eye 1 2.0 7 A0:B1:C2:D3:E4:F5", strings.Join([]string{p["ONVIF_DEVICE_MANUFACTURER"], p["ONVIF_DEVICE_MODEL"], p["ONVIF_DEVICE_FIRMWARE"], p["ONVIF_DEVICE_SERIAL_NUMBER"], p["ONVIF_DEVICE_MAC_ADDRESS"]}, " "))
			for _, value := range p {
				require.NotContains(t, value, "secret")
			}
		})
	}
	require.NotContains(t, n.asked, "x")
	found := n.discover(t, "", map[string][]byte{"username_default": []byte("root"), "password_default": []byte("wrong")})
	require.NotContains(t, handlertest.NextDevices(t, found, 1)[0].Properties, "ONVIF_DEVICE_MODEL", "it is found without")
}

func TestDetailsThatCanNotBe(t *testing.T) {
	for text, want := range map[string]string{
		"ipAddress: {}":                       "there is no field ipAddress: it is one of ",
		"ipAddresses: {action: Allow}":        `ipAddresses.action: "Allow" is neither Include nor Exclude`,
		"discoveryTimeoutSeconds: 100":        "discoveryTimeoutSeconds: 100: must be from 1 to 60",
		"onvif: {scopes: {action: x}}":        "scopes.action",
		"ipAddresses: [10.0.0.1]":             "line 1: a list can't stand here",
		"discoveryTimeoutSeconds: as long as": "`as long as` is no int",
	} {
		err := Program.New(handler.Env{}).Discover(t.Context(), text, nil, nil)
		require.ErrorContains(t, err, want)
		require.True(t, handler.IsInvalidArgument(err), text)
	}
	for property, value := range map[string]string{"device_credential_list": "x", "device_credential_ref_list": `["missing"]`} {
		err := Program.New(handler.Env{}).Discover(t.Context(), "", map[string][]byte{property: []byte(value)}, nil)
		require.True(t, handler.IsInvalidArgument(err), property)
		require.NotContains(t, err.Error(), value+"x")
	}
}

func TestAServiceElsewhereIsNotAsked(t *testing.T) {
	require.Equal(t, "http://192.0.2.7/x", cameraMatch{addresses: []string{"http://192.0.2.7/x"}}.service(urlHost("http://127.0.0.1")))
	require.NotEqual(t, urlHost("http://192.0.2.7/x"), urlHost("http://127.0.0.1"))
	require.False(t, urlHost("ftp://127.0.0.1").IsValid())
	require.False(t, urlHost("http://camera.local/").IsValid())
	_, err := parseMessage([]byte(probeMatch("x", hallUUID, "file:///etc/passwd")))
	require.NoError(t, err)
}

// FuzzMessage has datagrams of any kind.
func FuzzMessage(f *testing.F) {
	f.Add([]byte(probeMatch("uuid:1", hallUUID, "http://127.0.0.1/")))
	f.Add([]byte(fmt.Sprintf(answerTemplate, "", "Hello", hallUUID, "", "Hello")))
	f.Add([]byte(`<Envelope><Body><Bye/></Body></Envelope>`))
	f.Add([]byte(`<Envelope><Body><ProbeMatches/></Body></Envelope>`))
	f.Fuzz(func(t *testing.T, data []byte) {
		l := discoverCall{cameras: map[string]*camera{}}
		from := &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)}
		m, err := parseMessage(data)
		if err != nil {
			return
		}
		if (m.hello || m.bye) && len(m.matches) != 1 {
			t.Fatal("no camera has come or gone")
		}
		_ = l.take(network.Packet{From: from, Data: data}, m.relatesTo)
		for _, d := range l.devices() {
			if d.ID == "" || d.Properties["ONVIF_DEVICE_SERVICE_URL"] == "" {
				t.Fatalf("%#v", d)
			}
		}
	})
}
