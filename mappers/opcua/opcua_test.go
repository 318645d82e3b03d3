// SPDX-License-Identifier: Apache-2.0

package opcua

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/gopcua/opcua/id"
	"github.com/gopcua/opcua/server"
	"github.com/gopcua/opcua/server/attrs"
	"github.com/gopcua/opcua/ua"
	"github.com/gopcua/opcua/uasc"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/edgebus/edgebus/mappers"
	"github.com/edgebus/edgebus/mappers/drivertest"
	"github.com/edgebus/edgebus/mappers/opcua/wire"
	"github.com/edgebus/edgebus/mappers/settings"
)

// pressServer is a server of gopcua's behind a listener that can be closed: its own Close races with what it accepts.
type pressServer struct {
	url   string
	proxy *cutProxy
	nodes map[string]*server.Node

	server *server.Server
}

func newPress(t *testing.T) *pressServer {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	port := l.Addr().(*net.TCPAddr).Port
	p := newCutProxy(t, l.Addr().String())
	_, proxyPort, err := net.SplitHostPort(p.addr)
	require.NoError(t, err)
	seen, err := strconv.Atoi(proxyPort)
	require.NoError(t, err)
	s := server.New(server.EndPoint("127.0.0.1", port), server.EndPoint("127.0.0.1", seen), server.EnableSecurity("None", ua.MessageSecurityModeNone), server.EnableAuthMode(ua.UserTokenTypeAnonymous))
	ns := server.NewNodeNameSpace(s, "http://test/press")
	top, err := s.Namespace(0)
	require.NoError(t, err)
	top.Objects().AddRef(ns.Objects(), id.HasComponent, true)
	nodes := map[string]*server.Node{}
	for name, value := range map[string]any{"temperature": 21.5, "setpoint": float32(20), "on": true, "count": int32(7), "serial": "A-17"} {
		n := ns.AddNewVariableStringNode(name, value)
		if name == "temperature" || name == "serial" {
			require.NoError(t, n.SetAttribute(ua.AttributeIDAccessLevel, server.DataValueFromValue(byte(ua.AccessLevelTypeCurrentRead))))
		}
		nodes[name] = n
		n.SetBrowseName(name)
		require.NoError(t, n.SetAttribute(ua.AttributeIDDisplayName, server.DataValueFromValue(attrs.DisplayName(name, "en"))))
		ns.Objects().AddRef(n, id.HasComponent, true)
	}
	require.NoError(t, l.Close()) // it kept the port until the proxy had its own
	require.NoError(t, s.Start(context.Background()))
	return &pressServer{url: "opc.tcp://" + p.addr, proxy: p, nodes: nodes, server: s}
}

// cutProxy passes connections on until it is stopped, and after it was started again.
type cutProxy struct {
	t            *testing.T
	addr, target string
	stop         func()
	muted        func() bool // nothing passes; nil: never
	last         func() bool // the connection ends after what has just passed to the client; nil: never
}

func newCutProxy(t *testing.T, target string) *cutProxy {
	p := &cutProxy{t: t, addr: "127.0.0.1:0", target: target}
	p.Start()
	t.Cleanup(func() { p.stop() })
	return p
}

// pass copies until one of the connections ends.
func (p *cutProxy) pass(to, from net.Conn, answers bool) {
	defer func() { _ = to.Close(); _ = from.Close() }()
	b := make([]byte, 65536)
	for {
		n, err := from.Read(b)
		if err != nil {
			return
		}
		if p.muted != nil && p.muted() {
			continue
		}
		if _, err := to.Write(b[:n]); err != nil || answers && p.last != nil && p.last() {
			return
		}
	}
}

func (p *cutProxy) Start() {
	l, err := net.Listen("tcp", p.addr)
	require.NoError(p.t, err)
	p.addr = l.Addr().String()
	ctx, cancel := context.WithCancel(context.Background())
	p.stop = func() { cancel(); _ = l.Close() }
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			up, err := net.Dial("tcp", p.target)
			if err != nil {
				_ = c.Close()
				continue
			}
			context.AfterFunc(ctx, func() { _ = c.Close(); _ = up.Close() })
			go p.pass(up, c, false)
			go p.pass(c, up, true)
		}
	}()
}

func newProperty(name string, typ mappers.Type, writable bool, node string) mappers.Property {
	return mappers.Property{Name: name, Type: typ, Writable: writable, Visited: true, Collect: time.Second, Config: map[string]string{"node": node}}
}

func (p *pressServer) device() mappers.Device {
	low, high := 10.0, 90.0
	set := newProperty("setpoint", mappers.Float, true, "nsu=http://test/press;s=setpoint")
	set.Minimum, set.Maximum = &low, &high
	return mappers.Device{Node: "n", Name: "press", Config: map[string]string{"endpoint": p.url}, Properties: []mappers.Property{
		newProperty("temperature", mappers.Double, false, "ns=1;s=temperature"), set,
		newProperty("on", mappers.Boolean, true, "nsu=http://test/press;s=on"), newProperty("count", mappers.Int, true, "ns=1;s=count"),
		newProperty("serial", mappers.String, false, "ns=1;s=serial"),
	}}
}

func newDriver(t *testing.T) *Driver {
	return New(Options{DataDir: filepath.Join(t.TempDir(), "data"), CredentialsDir: t.TempDir(), Timeout: 2 * time.Second})
}

func openPress(t *testing.T, d mappers.Device) *session {
	t.Helper()
	opened, err := newDriver(t).Open(t.Context(), d)
	require.NoError(t, err)
	t.Cleanup(func() { _ = opened.Close() })
	return opened.(*session)
}

func TestDriver(t *testing.T) {
	p := newPress(t) // one for all: gopcua's can't be ended
	drivertest.Run(t, func(t *testing.T) drivertest.Rig {
		change := func(key, value string) mappers.Device {
			d := p.device()
			d.Config = map[string]string{"endpoint": p.url, key: value}
			return d
		}
		noNode := p.device()
		noNode.Properties = []mappers.Property{newProperty("temperature", mappers.Double, false, "temperature")}
		another := p.device()
		another.Name = "second"
		return drivertest.Rig{
			Driver: newDriver(t), Device: p.device(), Another: &another,
			Broken: map[string]mappers.Device{
				settings.DevicePath + "endpoint": change("endpoint", "http://x"), settings.DevicePath + "securityPolicy": change("securityPolicy", "Basic128Rsa15"),
				settings.DevicePath + "securityMode": change("securityMode", "maybe"), settings.DevicePath + "credentials": change("credentials", "../passwd"),
				settings.DevicePath + "fingerprint": change("fingerprint", "12"), settings.DevicePath + "colour": change("colour", "red"),
				"visitor temperature: config.node": noNode,
			},
			Stop: p.proxy.stop, Start: p.proxy.Start,
		}
	})
}

func TestValuesHaveThePropertysType(t *testing.T) {
	p := newPress(t)
	d := p.device()
	d.Properties = append(d.Properties, newProperty("none", mappers.Double, false, "ns=1;s=none"), newProperty("nowhere", mappers.Double, false, "nsu=http://elsewhere;s=x"))
	s := openPress(t, d)
	got, err := s.ReadBatch(t.Context(), []string{"temperature", "setpoint", "on", "count", "serial", "none", "nowhere"})
	require.NoError(t, err)
	for name, want := range map[string]string{"temperature": "21.5", "setpoint": "20", "on": "true", "count": "7", "serial": "A-17"} {
		require.NoError(t, got[name].Err, name)
		assert.Equal(t, want, got[name].Value, name)
	}
	require.ErrorContains(t, got["none"].Err, "BadNodeIdUnknown")
	require.ErrorContains(t, got["nowhere"].Err, "no namespace http://elsewhere")
	near, err := s.Nearest("setpoint", "20.123456789")
	require.NoError(t, err)
	assert.Equal(t, "20.123457", near)
}

func TestChangesAreToldBySubscription(t *testing.T) {
	s := openPress(t, newPress(t).device())
	told := make(chan string, 100)
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- s.Push(ctx, func(name, value string) { told <- name + "=" + value }) }()
	await := func(want string) {
		t.Helper()
		require.Eventually(t, func() bool {
			select {
			case got := <-told:
				return got == want
			default:
				return false
			}
		}, 10*time.Second, 2*time.Millisecond, want)
	}
	await("count=7")
	require.NoError(t, s.Write(t.Context(), "count", "8"))
	await("count=8")
	stop()
	require.NoError(t, <-ended)
}

func TestAServerThatDoesNotReachItsDeviceIsNoSignOfLife(t *testing.T) {
	p := newPress(t)
	s := openPress(t, p.device())
	require.NoError(t, s.Ping(t.Context()))
	for name, n := range p.nodes {
		require.NoError(t, n.SetAttribute(ua.AttributeIDValue, &ua.DataValue{EncodingMask: ua.DataValueStatusCode, Status: ua.StatusBadNoCommunication}), name)
	}
	require.ErrorContains(t, s.Ping(t.Context()), "doesn't reach its device")
	d := p.device()
	d.Properties = nil
	require.NoError(t, openPress(t, d).Ping(t.Context()), "there is only the server to ask")
}

func TestAWriteToASessionThatTheServerHasForgottenIsNotRefused(t *testing.T) {
	f := &field{name: "count"}
	for _, status := range []wire.Status{wire.BadSessionIDInvalid, wire.BadSessionClosed, wire.BadServerHalted} {
		assert.True(t, mappers.IsNotSent(f.writeError("8", fmt.Errorf("write: %w", status))), status)
	}
	var refusal *mappers.Refusal
	require.ErrorAs(t, f.writeError("8", wire.BadNotWritable), &refusal)
	assert.Equal(t, mappers.ReadOnly, refusal.Code)
	assert.Equal(t, io.EOF, f.writeError("8", io.EOF), "nobody knows")
	assert.NoError(t, f.writeError("8", nil))
}

func TestANodeThatHasGotAnotherTypeIsWrittenWithIt(t *testing.T) {
	p := newPress(t)
	p.server.RegisterHandler(id.WriteRequest_Encoding_DefaultBinary, func(_ *uasc.SecureChannel, r ua.Request, _ uint32) (ua.Response, error) {
		q := r.(*ua.WriteRequest)
		now := p.nodes["count"].Value()
		a := &ua.WriteResponse{ResponseHeader: answerHeader(q.RequestHeader.RequestHandle), Results: []ua.StatusCode{ua.StatusBadTypeMismatch}, DiagnosticInfos: []*ua.DiagnosticInfo{}}
		if v := q.NodesToWrite[0].Value; v.Value.Type() == now.Value.Type() {
			a.Results[0] = ua.StatusOK
			return a, p.nodes["count"].SetAttribute(ua.AttributeIDValue, v)
		}
		return a, nil
	})
	s := openPress(t, p.device())
	require.NoError(t, s.Write(t.Context(), "count", "8"))
	require.NoError(t, p.nodes["count"].SetAttribute(ua.AttributeIDValue, server.DataValueFromValue(float64(8))))
	require.NoError(t, s.Write(t.Context(), "count", "9"))
	assert.InDelta(t, 9.0, p.nodes["count"].Value().Value.Value(), 0)
}

func TestAValueThatIsNotOfTheNodesTypeIsRefused(t *testing.T) {
	for _, c := range []struct {
		text string
		kind wire.Kind
		want any
	}{
		{"21.0", wire.KindInt16, int64(21)},
		{"21.5", wire.KindInt16, nil},
		{"40000", wire.KindInt16, nil},
		{"-1", wire.KindByte, nil},
		{"255", wire.KindByte, uint64(255)},
		{"true", wire.KindBoolean, true},
		{"maybe", wire.KindBoolean, nil},
		{"NaN", wire.KindDouble, nil},
		{"1e39", wire.KindFloat, nil},
		{"x", wire.KindString, "x"},
		{"AQI=", wire.KindByteString, []byte{1, 2}},
		{"2026-11-27T12:00:00Z", wire.KindDateTime, time.Date(2026, 11, 27, 12, 0, 0, 0, time.UTC)},
		{"x", wire.KindStructure, nil},
	} {
		v, err := encode(c.text, c.kind, false)
		if c.want == nil {
			assert.Error(t, err, "%s as %s", c.text, c.kind)
			continue
		}
		require.NoError(t, err)
		assert.Equal(t, []any{c.want}, v.Values, "%s as %s", c.text, c.kind)
	}
	v, err := encode(`[1,"2"]`, wire.KindInt32, true)
	require.NoError(t, err)
	assert.Equal(t, []any{int64(1), int64(2)}, v.Values)
}

func TestDevicesThatAreOpenedAtTheSameTimeHaveOneCertificate(t *testing.T) {
	d := newDriver(t)
	certs := make(chan []byte, 4)
	for range cap(certs) {
		go func() {
			s, err := d.Open(t.Context(), mappers.Device{Name: "press", Config: map[string]string{"endpoint": "opc.tcp://127.0.0.1:1"}})
			if assert.NoError(t, err) {
				certs <- s.(*session).config.options.Identity.Cert
				return
			}
			certs <- nil
		}()
	}
	first := <-certs
	require.NotEmpty(t, first)
	for range cap(certs) - 1 {
		assert.Equal(t, first, <-certs)
	}
}

func TestTheMappersCertificateStays(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "new")
	first, err := loadIdentity(dir)
	require.NoError(t, err)
	second, err := loadIdentity(dir)
	require.NoError(t, err)
	assert.Equal(t, first.Cert, second.Cert)
	info, err := os.Stat(filepath.Join(dir, keyFile))
	require.NoError(t, err)
	assert.Equal(t, os.FileMode(0o600), info.Mode().Perm())
	var out, problems bytes.Buffer
	require.Zero(t, Main([]string{"certificate", "--data-dir", dir}, &out, &problems), problems.String())
	assert.Contains(t, out.String(), wire.Fingerprint(first.Cert))
}
