// SPDX-License-Identifier: Apache-2.0

package snmp

import (
	"bytes"
	"context"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gosnmp/gosnmp"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/edgebus/edgebus/mappers"
	"github.com/edgebus/edgebus/mappers/drivertest"
	"github.com/edgebus/edgebus/mappers/settings"
)

// fakeAgent is an agent of version 2c whose objects are in the test's hand. snmpd is tried in the interoperability tests.
type fakeAgent struct {
	conn *net.UDPConn

	mu      sync.Mutex
	objects map[string]gosnmp.SnmpPDU
	silent  bool
	limit   int            // objects in one request; 0: any
	deafTo  gosnmp.PDUType // requests that are never answered
	play    func(*gosnmp.SnmpPacket) drivertest.PlayedRequest
}

func newFakeAgent(t *testing.T) *fakeAgent {
	t.Helper()
	conn, err := net.ListenUDP("udp", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	require.NoError(t, err)
	a := &fakeAgent{conn: conn, objects: map[string]gosnmp.SnmpPDU{}}
	for oid, v := range map[string]gosnmp.SnmpPDU{
		upTime:       {Type: gosnmp.TimeTicks, Value: uint32(100)},
		".1.3.9.1.0": {Type: gosnmp.Integer, Value: 215}, ".1.3.9.2.0": {Type: gosnmp.Integer, Value: 1}, ".1.3.9.3.0": {Type: gosnmp.OctetString, Value: "rack 4"},
		".1.3.9.4.0": {Type: gosnmp.OctetString, Value: []byte{0, 0x1a, 0x2b}}, ".1.3.9.5.0": {Type: gosnmp.Gauge32, Value: uint32(7)},
		".1.3.9.6.0":   {Type: gosnmp.OctetString, Value: " 21.5 "},
		".1.3.8.1.1.7": {Type: gosnmp.OctetString, Value: "eth0"}, ".1.3.8.1.1.9": {Type: gosnmp.OctetString, Value: "eth1"},
		".1.3.8.1.2.7": {Type: gosnmp.Counter32, Value: uint32(70)}, ".1.3.8.1.2.9": {Type: gosnmp.Counter32, Value: uint32(90)},
	} {
		a.put(oid, v)
	}
	t.Cleanup(func() { _ = conn.Close() })
	go a.serve()
	return a
}

func (a *fakeAgent) put(oid string, v gosnmp.SnmpPDU) {
	a.mu.Lock()
	defer a.mu.Unlock()
	v.Name = oid
	a.objects[oid] = v
}

func (a *fakeAgent) silence(silent bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.silent = silent
}

func (a *fakeAgent) serve() {
	b := make([]byte, 65536)
	for {
		n, from, err := a.conn.ReadFromUDP(b)
		if err != nil {
			return
		}
		decoder := gosnmp.GoSNMP{Version: gosnmp.Version2c}
		packet, err := decoder.SnmpDecodePacket(b[:n])
		if err != nil || packet.Community != "public" {
			continue
		}
		a.mu.Lock()
		play, ignored := a.play, a.silent || packet.PDUType == a.deafTo
		a.mu.Unlock()
		var played drivertest.PlayedRequest
		if play != nil {
			played = play(packet)
		}
		if ignored || played.Ignored {
			continue
		}
		switch {
		case played.Busy:
			a.refuseBusy(packet)
		case played.Late:
			later := *packet
			later.Variables = slices.Clone(packet.Variables)
			time.AfterFunc(drivertest.ReadLater, func() { a.answer(&later) })
			packet.PDUType = gosnmp.GetResponse
		default:
			a.answer(packet)
		}
		time.Sleep(played.Delay) // it is slow
		if out, err := packet.MarshalMsg(); err == nil && !played.Lost {
			_, _ = a.conn.WriteToUDP(out, from)
		}
	}
}

// refuseBusy is what an agent says that can't serve a request at the moment: there is a word for it of what is set only.
func (a *fakeAgent) refuseBusy(p *gosnmp.SnmpPacket) {
	reason := gosnmp.GenErr
	if p.PDUType == gosnmp.SetRequest {
		reason = gosnmp.ResourceUnavailable
	}
	p.PDUType, p.Error, p.ErrorIndex = gosnmp.GetResponse, reason, 1
}

func (a *fakeAgent) answer(p *gosnmp.SnmpPacket) {
	a.mu.Lock()
	defer a.mu.Unlock()
	kind := p.PDUType
	p.PDUType, p.Error, p.ErrorIndex = gosnmp.GetResponse, gosnmp.NoError, 0
	if a.limit > 0 && len(p.Variables) > a.limit {
		p.Error = gosnmp.TooBig
		return
	}
	if kind == gosnmp.GetBulkRequest {
		p.NonRepeaters, p.MaxRepetitions = 0, 0
		names := []string{}
		for name := range a.objects {
			names = append(names, name)
		}
		slices.SortFunc(names, compareOIDs)
		next := gosnmp.SnmpPDU{Name: p.Variables[0].Name, Type: gosnmp.EndOfMibView}
		for _, name := range names {
			if compareOIDs(name, p.Variables[0].Name) > 0 {
				next = a.objects[name]
				break
			}
		}
		p.Variables = []gosnmp.SnmpPDU{next}
		return
	}
	for i, v := range p.Variables {
		have, ok := a.objects[v.Name]
		switch {
		case !ok:
			p.Variables[i] = gosnmp.SnmpPDU{Name: v.Name, Type: gosnmp.NoSuchInstance}
		case kind == gosnmp.SetRequest && have.Type != v.Type:
			p.Error, p.ErrorIndex = gosnmp.WrongType, 1
		case kind == gosnmp.SetRequest && v.Name == ".1.3.9.5.0" && gosnmp.ToBigInt(v.Value).Int64() > 100:
			p.Error, p.ErrorIndex = gosnmp.WrongValue, 1
		case kind == gosnmp.SetRequest:
			a.objects[v.Name] = v
		default:
			p.Variables[i] = have
		}
	}
}

func compareOIDs(a, b string) int {
	return slices.CompareFunc(strings.Split(a, "."), strings.Split(b, "."), func(x, y string) int {
		n, _ := strconv.Atoi(x)
		m, _ := strconv.Atoi(y)
		return n - m
	})
}

func newProperty(name string, typ mappers.Type, writable bool, config ...string) mappers.Property {
	p := mappers.Property{Name: name, Type: typ, Writable: writable, Visited: true, Config: map[string]string{}}
	for i := 0; i < len(config); i += 2 {
		p.Config[config[i]] = config[i+1]
	}
	return p
}

func (a *fakeAgent) device() mappers.Device {
	low, high := 0.0, 100.0
	load := newProperty("load", mappers.Int, true, "oid", "1.3.9.5.0")
	load.Minimum, load.Maximum = &low, &high
	return mappers.Device{Node: "n", Name: "ups", Config: map[string]string{"address": a.conn.LocalAddr().String()}, Properties: []mappers.Property{
		newProperty("temperature", mappers.Float, true, "oid", ".1.3.9.1.0", "scale", "0.1"), newProperty("on", mappers.Boolean, true, "oid", "1.3.9.2.0"),
		newProperty("location", mappers.String, true, "oid", "1.3.9.3.0"), newProperty("mac", mappers.String, false, "oid", "1.3.9.4.0"), load,
		newProperty("text", mappers.Float, false, "oid", "1.3.9.6.0"),
		newProperty("in", mappers.Int, false, "oid", "1.3.8.1.2", "where", "1.3.8.1.1", "is", "eth1"),
	}}
}

func openUPS(t *testing.T, d mappers.Device) *session {
	t.Helper()
	opened, err := New(Options{Traps: "127.0.0.1:0", Timeout: 300 * time.Millisecond}).Open(t.Context(), d)
	require.NoError(t, err)
	t.Cleanup(func() { _ = opened.Close() })
	return opened.(*session)
}

func TestDriver(t *testing.T) {
	drivertest.Run(t, func(t *testing.T) drivertest.Rig {
		a, other := newFakeAgent(t), newFakeAgent(t)
		change := func(key, value string) mappers.Device {
			d := a.device()
			d.Config = map[string]string{"address": a.conn.LocalAddr().String(), key: value}
			return d
		}
		another, noOID := other.device(), a.device()
		another.Name = "second"
		noOID.Properties = []mappers.Property{newProperty("load", mappers.Int, false, "oid", "sysUpTime")}
		return drivertest.Rig{
			Driver: New(Options{Timeout: 300 * time.Millisecond}), Device: a.device(), Another: &another,
			Broken: map[string]mappers.Device{
				settings.DevicePath + "address": change("address", ""), settings.DevicePath + "version": change("version", "1"),
				settings.DevicePath + "credentials": change("version", "3"), settings.DevicePath + "trapSources": change("trapSources", "x"),
				settings.DevicePath + "colour": change("colour", "red"), "visitor load: config.oid": noOID,
			},
			Stop: func() { a.silence(true) }, Start: func() { a.silence(false) },
		}
	})
}

func TestValuesHaveThePropertysType(t *testing.T) {
	a := newFakeAgent(t)
	d := a.device()
	d.Properties = append(d.Properties, newProperty("none", mappers.Int, false, "oid", "1.3.9.99.0"), newProperty("eth9", mappers.Int, false, "oid", "1.3.8.1.2", "where", "1.3.8.1.1", "is", "eth9"))
	s := openUPS(t, d)
	read := func(name string) (string, error) {
		got, err := s.ReadBatch(t.Context(), []string{name})
		require.NoError(t, err)
		return got[name].Value, got[name].Err
	}
	for name, want := range map[string]string{
		"temperature": "21.5", "on": "true", "location": "rack 4", "mac": "00:1a:2b", "load": "7", "text": "21.5", "in": "90",
	} {
		got, err := read(name)
		require.NoError(t, err, name)
		assert.Equal(t, want, got, name)
	}
	_, err := read("none")
	require.ErrorContains(t, err, "no such object")
	_, err = read("eth9")
	require.ErrorContains(t, err, "no row of the table has 1.3.8.1.1 = eth9")
	require.NoError(t, s.Write(t.Context(), "temperature", "22.5"))
	got, err := read("temperature")
	require.NoError(t, err)
	assert.Equal(t, "22.5", got)
	near, err := s.Nearest("temperature", "22.54")
	require.NoError(t, err)
	assert.Equal(t, "22.5", near)
}

// After a restart of a device its interfaces may have other numbers: no value of another row is taken.
func TestARowThatMovesIsFoundAgain(t *testing.T) {
	a := newFakeAgent(t)
	s := openUPS(t, a.device())
	got, err := s.ReadBatch(t.Context(), []string{"in"})
	require.NoError(t, err)
	assert.Equal(t, "90", got["in"].Value)
	a.put(".1.3.8.1.1.7", gosnmp.SnmpPDU{Type: gosnmp.OctetString, Value: "eth1"})
	a.put(".1.3.8.1.1.9", gosnmp.SnmpPDU{Type: gosnmp.OctetString, Value: "eth0"})
	got, err = s.ReadBatch(t.Context(), []string{"in"})
	require.NoError(t, err)
	require.ErrorContains(t, got["in"].Err, "has moved")
	got, err = s.ReadBatch(t.Context(), []string{"in"})
	require.NoError(t, err)
	assert.Equal(t, "70", got["in"].Value)
}

func TestAnAgentThatAnswersFewObjectsAtOnceIsLearnt(t *testing.T) {
	a := newFakeAgent(t)
	a.mu.Lock()
	a.limit = 3
	a.mu.Unlock()
	s := openUPS(t, a.device())
	all := []string{"temperature", "on", "location", "mac", "load", "text"}
	got, err := s.ReadBatch(t.Context(), all)
	require.NoError(t, err)
	assert.Len(t, got, 6)
	assert.Equal(t, 3, len(s.Group(all)[0]))
}

func TestRefusalsSayWhy(t *testing.T) {
	s := openUPS(t, newFakeAgent(t).device())
	for _, c := range []struct{ property, value, code string }{
		{"load", "101", mappers.OutOfRange},
		{"load", "-1", mappers.Invalid},
		{"load", "1.5", mappers.Invalid},
		{"temperature", "warm", mappers.Invalid},
		{"temperature", "1e12", mappers.Invalid},
		{"location", "", ""},
	} {
		err := s.Write(t.Context(), c.property, c.value)
		if c.code == "" {
			require.NoError(t, err)
			continue
		}
		var r *mappers.Refusal
		require.ErrorAs(t, err, &r, "%s = %s", c.property, c.value)
		assert.Equal(t, c.code, r.Code, "%s = %s: %s", c.property, c.value, r.Message)
	}
}

func TestTrapsAreEventsOfTheDeviceThatSentThem(t *testing.T) {
	a := newFakeAgent(t)
	d := a.device()
	d.Events = []mappers.Property{
		newProperty("down", mappers.String, false, "trap", "1.3.6.1.6.3.1.1.5.3", "value", "1.3.6.1.2.1.2.2.1.1"),
		newProperty("battery", mappers.String, false, "trap", "1.3.9.0.3"),
	}
	s := openUPS(t, d)
	told := make(chan string, 10)
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- s.Events(ctx, func(event, value string) { told <- event + "=" + value }) }()
	var at *net.UDPAddr
	require.Eventually(t, func() bool {
		s.driver.traps.mu.Lock()
		defer s.driver.traps.mu.Unlock()
		if s.driver.traps.conn != nil {
			at, _ = s.driver.traps.conn.LocalAddr().(*net.UDPAddr)
		}
		return at != nil
	}, 5*time.Second, time.Millisecond)
	send := func(version gosnmp.SnmpVersion, community string, trap gosnmp.SnmpTrap) {
		t.Helper()
		g := gosnmp.GoSNMP{Target: "127.0.0.1", Port: uint16(at.Port), Version: version, Community: community, Timeout: 2 * time.Second, Retries: 1, MaxOids: 10}
		require.NoError(t, g.Connect())
		defer func() { _ = g.Close() }()
		_, err := g.SendTrap(trap)
		require.NoError(t, err)
	}
	linkDown := gosnmp.SnmpPDU{Name: trapObject, Type: gosnmp.ObjectIdentifier, Value: ".1.3.6.1.6.3.1.1.5.3"}
	index := gosnmp.SnmpPDU{Name: ".1.3.6.1.2.1.2.2.1.1.7", Type: gosnmp.Integer, Value: 7}
	other := linkDown
	other.Value = ".1.3.6.1.6.3.1.1.5.1"
	send(gosnmp.Version2c, "secret", gosnmp.SnmpTrap{Variables: []gosnmp.SnmpPDU{linkDown, index}}) // of another community
	send(gosnmp.Version2c, "public", gosnmp.SnmpTrap{Variables: []gosnmp.SnmpPDU{other}})           // that the model doesn't have
	_, err := net.DialUDP("udp", nil, at)
	require.NoError(t, err)
	send(gosnmp.Version2c, "public", gosnmp.SnmpTrap{Variables: []gosnmp.SnmpPDU{linkDown, index}})
	assert.Equal(t, "down=7", <-told)
	send(gosnmp.Version2c, "public", gosnmp.SnmpTrap{IsInform: true, Variables: []gosnmp.SnmpPDU{linkDown, index}}) // fails without an answer
	assert.Equal(t, "down=7", <-told)
	send(gosnmp.Version1, "public", gosnmp.SnmpTrap{Enterprise: ".1.3.9", AgentAddress: "127.0.0.1", GenericTrap: 6, SpecificTrap: 3, Variables: []gosnmp.SnmpPDU{{Name: ".1.3.9.7.0", Type: gosnmp.Integer, Value: 12}}})
	assert.Equal(t, `battery={"1.3.9.7.0":"12"}`, <-told)
	stop()
	require.NoError(t, <-ended)
	assert.Empty(t, told)
}

func TestWhatIsNoTrapIsNobodys(t *testing.T) {
	s := openUPS(t, newFakeAgent(t).device())
	for _, b := range [][]byte{{}, {0x30}, {0x30, 0x84, 0xFF, 0xFF, 0xFF, 0xFF}, bytes.Repeat([]byte{0x30, 0x80}, 500), []byte("hello")} {
		assert.Nil(t, s.openTrap(b))
	}
}

// The library takes a message of version 3 that names no user and no engine for a search for engines, and doesn't look for its signature.
func TestATrapWithoutTheUsersSignatureIsNobodys(t *testing.T) {
	dir := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(dir, "ups"), []byte("monitor\nSHA\nauthsecret\n"), 0o600))
	a, err := newAgent(agentConfig{host: "127.0.0.1", version: "3", credentials: "ups"}, dir)
	require.NoError(t, err)
	s := &session{agent: a}
	trap := func(user, engine, password string) []byte {
		u := &gosnmp.UsmSecurityParameters{UserName: user, AuthoritativeEngineID: engine}
		p := &gosnmp.SnmpPacket{
			Version: gosnmp.Version3, SecurityModel: gosnmp.UserSecurityModel, SecurityParameters: u, ContextEngineID: engine, MsgID: 1, PDUType: gosnmp.SNMPv2Trap,
			Variables: []gosnmp.SnmpPDU{{Name: trapObject, Type: gosnmp.ObjectIdentifier, Value: ".1.3.6.1.6.3.1.1.5.3"}},
		}
		if password != "" {
			u.AuthenticationProtocol, u.AuthenticationPassphrase, p.MsgFlags = gosnmp.SHA, password, gosnmp.AuthNoPriv
			require.NoError(t, u.InitSecurityKeys())
		}
		b, err := p.MarshalMsg()
		require.NoError(t, err)
		return b
	}
	assert.NotNil(t, s.openTrap(trap("monitor", "engine-of-the-ups", "authsecret")))
	assert.Nil(t, s.openTrap(trap("", "", "")), "neither user nor engine")
	assert.Nil(t, s.openTrap(trap("monitor", "engine-of-the-ups", "")), "not signed")
	assert.Nil(t, s.openTrap(trap("monitor", "engine-of-the-ups", "anothersecret")))
	assert.Nil(t, s.openTrap(trap("root", "engine-of-the-ups", "authsecret")))
	_, err = a.answer(&gosnmp.SnmpPacket{Version: gosnmp.Version3, SecurityParameters: &gosnmp.UsmSecurityParameters{}}, nil)
	require.ErrorContains(t, err, "not signed by the user", "and of an answer")
	_, err = a.answer(&gosnmp.SnmpPacket{Version: gosnmp.Version3, SecurityParameters: &gosnmp.UsmSecurityParameters{UserName: "monitor", AuthoritativeEngineID: "e"}}, nil)
	require.NoError(t, err)
}

// An agent that is waited for, and names that nobody knows, don't keep traps waiting: they are heard by one goroutine.
func TestTrapsDoNotWaitForAnAgentsAnswer(t *testing.T) {
	s := openUPS(t, newFakeAgent(t).device())
	s.agent.mu.Lock() // a request is on its way
	defer s.agent.mu.Unlock()
	g := gosnmp.GoSNMP{Version: gosnmp.Version2c, Community: "public"}
	b, err := g.SnmpEncodePacket(gosnmp.SNMPv2Trap, []gosnmp.SnmpPDU{{Name: trapObject, Type: gosnmp.ObjectIdentifier, Value: ".1.3.6.1.6.3.1.1.5.3"}}, 0, 0)
	require.NoError(t, err)
	assert.NotNil(t, s.openTrap(b))
	s.sources.resolve(t.Context(), []string{"10.0.0.9", "::ffff:10.0.0.10"})
	s.sources.resolve(t.Context(), []string{"name.invalid"})
	assert.True(t, s.sources.has(netip.MustParseAddr("10.0.0.9")), "the name is not known at the moment")
	assert.True(t, s.sources.has(netip.MustParseAddr("10.0.0.10")))
	s.sources.resolve(t.Context(), []string{"10.0.0.11"})
	assert.False(t, s.sources.has(netip.MustParseAddr("10.0.0.9")))
}

func TestATableThatIsNotAnsweredTakesNothingWithIt(t *testing.T) {
	a := newFakeAgent(t)
	a.mu.Lock()
	a.deafTo = gosnmp.GetBulkRequest
	a.mu.Unlock()
	got, err := openUPS(t, a.device()).ReadBatch(t.Context(), []string{"in", "location"})
	require.NoError(t, err)
	require.Error(t, got["in"].Err)
	assert.Equal(t, "rack 4", got["location"].Value)
}

func FuzzTrap(f *testing.F) {
	g := gosnmp.GoSNMP{Version: gosnmp.Version2c, Community: "public"}
	b, _ := g.SnmpEncodePacket(gosnmp.SNMPv2Trap, []gosnmp.SnmpPDU{{Name: trapObject, Type: gosnmp.ObjectIdentifier, Value: ".1.3.6.1.6.3.1.1.5.3"}}, 0, 0)
	f.Add(b)
	s := &session{agent: &agent{params: &g, heard: trapSecurity{g.Version, g.Community, 0}}, config: deviceConfig{events: []*trapEvent{{name: "x", trap: ".1.3.6.1.6.3.1.1.5.3"}}}}
	f.Fuzz(func(_ *testing.T, b []byte) {
		if p := s.openTrap(b); p != nil {
			s.tell(p, func(string, string) {})
		}
	})
}

func TestUsersOfVersion3AreAFileOfTheMappersHost(t *testing.T) {
	dir := t.TempDir()
	write := func(text string) {
		require.NoError(t, os.WriteFile(filepath.Join(dir, "ups"), []byte(text), 0o600))
	}
	g := &gosnmp.GoSNMP{}
	write("monitor\nSHA-256\nauthsecret\nAES\nprivsecret\n")
	require.NoError(t, signIn(g, dir, "ups"))
	u := g.SecurityParameters.(*gosnmp.UsmSecurityParameters)
	assert.Equal(t, gosnmp.AuthPriv, g.MsgFlags)
	assert.Equal(t, []any{"monitor", gosnmp.SHA256, "authsecret", gosnmp.AES, "privsecret"}, []any{u.UserName, u.AuthenticationProtocol, u.AuthenticationPassphrase, u.PrivacyProtocol, u.PrivacyPassphrase})
	for _, text := range []string{"monitor\nSHA\n", "monitor\nSHA3\nx\n", "monitor\nSHA\nx\nROT13\ny\n"} {
		write(text)
		require.Error(t, signIn(g, dir, "ups"), text)
	}
}

func TestAgentsAreFoundAndWrittenDown(t *testing.T) {
	a := newFakeAgent(t)
	a.put(systemName, gosnmp.SnmpPDU{Type: gosnmp.OctetString, Value: "ups-1"})
	a.put(systemDescription, gosnmp.SnmpPDU{Type: gosnmp.OctetString, Value: "An UPS"})
	address := a.conn.LocalAddr().String()
	run := func(args ...string) string {
		t.Helper()
		var out, problems bytes.Buffer
		require.Zero(t, Main(args, &out, &problems), problems.String())
		return out.String()
	}
	assert.Contains(t, run("scan", address), address+"  ups-1  An UPS")
	assert.Equal(t, "1.3.9.5.0 = 7 (Gauge32)\n", run("read", address, "1.3.9.5.0"))
	assert.Contains(t, run("read", address, "1.3.8"), "1.3.8.1.1.9 = eth1 (OctetString)\n")
	browsed := run("browse", address, "1.3.9", "--node", "hall")
	assert.Contains(t, browsed, "nodeName: hall")
	assert.Contains(t, browsed, "oid: 1.3.9.6.0")
}
