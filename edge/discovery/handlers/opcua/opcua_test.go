package opcua

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"io"
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
	testMalformed(t, recordAnswers(t, b))
	a.Close()
	handlertest.NextDevices(t, found, 1)
}

func TestWhatIsNoServer(t *testing.T) {
	asked, err := url.Parse("opc.tcp://10.0.0.5:4840/")
	require.NoError(t, err)
	known := hostCache{"press.plant": true, "nowhere": false}
	address := func(a application) string {
		list := a.device(t.Context(), asked, true, known)
		if len(list) == 0 {
			return ""
		}
		return list[0].ID
	}
	require.Equal(t, "opc.tcp://press.plant:1/a", address(application{urls: []string{"https://press.plant/", "opc.tcp://press.plant:1/a"}}))
	require.Equal(t, "opc.tcp://10.0.0.5:1/a", address(application{urls: []string{"opc.tcp://nowhere:1/a"}}))
	require.Equal(t, "https://press.plant/", address(application{kind: kindClientAndServer, urls: []string{"https://press.plant/"}}))
	require.Empty(t, address(application{kind: 1, urls: []string{"opc.tcp://press.plant"}}), "a client")
	require.Empty(t, address(application{kind: 3, urls: []string{"opc.tcp://press.plant"}}), "a discovery server")
	require.Empty(t, address(application{}))
	require.Empty(t, address(application{urls: []string{"opc.tcp://press.plant/" + strings.Repeat("x", 1024)}}))
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
			d := application{urls: []string{c.says}}.device(t.Context(), asked, c.itself, known)[0]
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
		"opcuaDiscoveryMethod: {standard: {discoveryUrls: ['http://x']}}":      `discoveryUrls[0]: "http://x" is no URL such as`,
		"opcuaDiscoveryMethod: {standard: {}}\napplicationNames: {action: No}": `applicationNames.action: "No"`,
	} {
		err := Program.New(handler.Env{}).Discover(t.Context(), text, nil, nil)
		require.ErrorContains(t, err, want)
		require.True(t, handler.IsInvalidArgument(err), text)
	}
	urls, _, err := parseDetails("opcuaDiscoveryMethod:\n  standard: {}")
	require.NoError(t, err)
	require.Equal(t, "localhost:4840", urlAddress(urls[0]))
}

// answeringConn plays what a server answers, whatever it is asked.
type answeringConn struct{ io.Reader }

func (answeringConn) Write(b []byte) (int, error) { return len(b), nil }

func encodeChunk(kind string, body ...byte) []byte {
	return append(binary.LittleEndian.AppendUint32([]byte(kind), uint32(len(body)+8)), body...)
}

// recordAnswers is what gopcua's server answers.
func recordAnswers(t testing.TB, address string) []byte {
	c, err := net.Dial("tcp", address)
	require.NoError(t, err)
	defer c.Close()
	var all bytes.Buffer
	_, err = askServers(struct {
		io.Reader
		io.Writer
	}{io.TeeReader(c, &all), c}, "opc.tcp://"+address)
	require.NoError(t, err)
	return all.Bytes()
}

// testMalformed has what a server answers cut off, and other answers in its place.
func testMalformed(t *testing.T, good []byte) {
	list, err := askServers(answeringConn{bytes.NewReader(good)}, "opc.tcp://x")
	require.NoError(t, err)
	require.Equal(t, "press two", list[0].name)
	for i := range good {
		_, err := askServers(answeringConn{bytes.NewReader(good[:i])}, "")
		require.Error(t, err, "cut off after %d bytes", i)
	}
	ack := encodeChunk("ACKF", make([]byte, 20)...)
	for name, b := range map[string][]byte{
		"an error":           encodeChunk("ERRF", 1, 2, 3, 0x80, 2, 0, 0, 0, 'n', 'o'),
		"a huge chunk":       append([]byte("ACKF"), 0xff, 0xff, 0xff, 0xff),
		"a chunk of nothing": append([]byte("ACKF"), 7, 0, 0, 0),
		"something else":     encodeChunk("HELF"),
		"given up":           append(ack, encodeChunk("OPNA", make([]byte, 30)...)...),
		"endless":            append(ack, bytes.Repeat(encodeChunk("OPNC", make([]byte, 60000)...), 20)...),
	} {
		_, err := askServers(answeringConn{bytes.NewReader(b)}, "")
		require.Error(t, err, name)
		require.NotErrorIs(t, err, io.EOF, name)
	}
	r := &messageReader{b: []byte{0xff, 0xff, 0xff, 0x7f}}
	require.Zero(t, r.list(maxServers))
	require.ErrorContains(t, r.err, "a list of 2147483647 entries")
}

func TestAServerThatIsSilent(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer l.Close()
	_, err = findServers(t.Context(), l.Addr().String(), "opc.tcp://x", 50*time.Millisecond)
	require.EqualError(t, err, "no answer within 50ms")
}

// FuzzAnswer has answers of any kind.
func FuzzAnswer(f *testing.F) {
	f.Add(append(encodeChunk("ACKF", make([]byte, 20)...), encodeChunk("OPNF", make([]byte, 80)...)...))
	f.Add([]byte("\x01\x00\xa9\x01" + strings.Repeat("\x00", 30)))
	f.Fuzz(func(t *testing.T, data []byte) {
		if servers, err := askServers(answeringConn{bytes.NewReader(data)}, "opc.tcp://x"); err != nil && servers != nil {
			t.Fatal(servers, err)
		}
		r := &messageReader{b: data}
		if list := r.servers(); r.err != nil && list != nil {
			t.Fatal(list, r.err)
		}
	})
}
