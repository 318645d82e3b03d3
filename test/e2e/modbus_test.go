// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/edgebus/edgebus/broker/client"
	"github.com/edgebus/edgebus/test/harness"
	"github.com/edgebus/edgebus/test/stand"
	"github.com/edgebus/edgebus/topics/resource"
)

// modbusGateway is a Modbus server on a socket with units behind it, all in the test's hand. Only holding registers that
// were set exist. A unit that is dead never answers, and a request to it keeps no other waiting.
type modbusGateway struct {
	addr string

	mu    sync.Mutex
	units map[byte]map[uint16]uint16
	dead  map[byte]bool
	fault map[byte]byte // the exception that a unit answers each write with
	asked []byte        // units, in the order of the requests
	wrote []string
	conns map[net.Conn]bool
}

func newModbusGateway(t *testing.T) *modbusGateway {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	g := &modbusGateway{
		addr: l.Addr().String(), units: map[byte]map[uint16]uint16{}, dead: map[byte]bool{}, fault: map[byte]byte{}, conns: map[net.Conn]bool{},
	}
	var serving sync.WaitGroup
	serving.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			g.mu.Lock()
			g.conns[c] = true
			g.mu.Unlock()
			serving.Go(func() { g.serve(c) })
		}
	})
	t.Cleanup(func() {
		_ = l.Close()
		g.mu.Lock()
		for c := range g.conns {
			_ = c.Close()
		}
		g.mu.Unlock()
		serving.Wait()
	})
	return g
}

func (g *modbusGateway) serve(c net.Conn) {
	defer func() {
		g.mu.Lock()
		delete(g.conns, c)
		g.mu.Unlock()
		_ = c.Close()
	}()
	for {
		head := make([]byte, 7)
		if _, err := io.ReadFull(c, head); err != nil {
			return
		}
		body := make([]byte, binary.BigEndian.Uint16(head[4:])-1)
		if _, err := io.ReadFull(c, body); err != nil {
			return
		}
		answer := g.answer(head[6], body)
		if answer == nil {
			continue
		}
		binary.BigEndian.PutUint16(head[4:], uint16(len(answer)+1))
		if _, err := c.Write(append(head, answer...)); err != nil {
			return
		}
	}
}

// answer is what a unit says to a request: nothing if it is dead.
func (g *modbusGateway) answer(unit byte, body []byte) []byte {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.asked = append(g.asked, unit)
	registers, there := g.units[unit]
	if g.dead[unit] || !there {
		return nil
	}
	exception := func(code byte) []byte { return []byte{body[0] | 0x80, code} }
	at, n := binary.BigEndian.Uint16(body[1:]), binary.BigEndian.Uint16(body[3:])
	switch body[0] {
	case 3:
		out := []byte{3, byte(2 * n)}
		for i := range n {
			v, ok := registers[at+i]
			if !ok {
				return exception(2)
			}
			out = binary.BigEndian.AppendUint16(out, v)
		}
		return out
	case 6:
		g.wrote = append(g.wrote, fmt.Sprintf("%d: %d=%d", unit, at, n))
		if code := g.fault[unit]; code != 0 {
			return exception(code)
		}
		if _, ok := registers[at]; !ok {
			return exception(2)
		}
		registers[at] = n
		return body
	}
	return exception(1)
}

func (g *modbusGateway) do(f func()) {
	g.mu.Lock()
	defer g.mu.Unlock()
	f()
}

// since are the units that were asked since then.
func (g *modbusGateway) since(n int) []byte {
	g.mu.Lock()
	defer g.mu.Unlock()
	return append([]byte(nil), g.asked[n:]...)
}

func (g *modbusGateway) requests() int { return len(g.since(0)) }

// unit makes the device u{unit} of the model at a gateway, as a YAML document.
func (g *modbusGateway) unit(model string, unit int) string {
	return fmt.Sprintf("apiVersion: edgebus.io/v1alpha1\nkind: Device\nmetadata: {name: u%d}\n"+
		"spec: {deviceModelRef: {name: %s}, nodeName: n1, protocol: {type: modbus, config: {address: 'tcp://%s', unit: '%d'}}}\n---\n",
		unit, model, g.addr, unit)
}

// registerProperties is a model with a holding register of tenths for each name, from address 0 on.
func registerProperties(model string, cycle int, names ...string) string {
	properties, visitors := []string{}, []string{}
	for i, name := range names {
		properties = append(properties, fmt.Sprintf("{name: %s, type: float, accessMode: ReadWrite}", name))
		visitors = append(visitors, fmt.Sprintf("{propertyName: %s, collectCycle: %d, config: {register: holding, address: '%d', scale: '0.1'}}", name, cycle, i))
	}
	text, _ := strings.CutSuffix(stand.ModelManifest(model, properties...), "---\n")
	return text + "  propertyVisitors:\n  - {protocol: modbus, visitors: [" + strings.Join(visitors, ", ") + "]}\n---\n"
}

// getDevice is a Device as the hub's API gives it.
func getDevice(s *stand.Stand, name string) (d resource.Device, err error) {
	text, err := harness.Call(context.Background(), http.MethodGet, s.DeviceURL(name), nil)
	if err != nil {
		return d, err
	}
	return d, json.Unmarshal(text, &d)
}

// wantCondition is an error unless a device has a condition of the status.
func wantCondition(s *stand.Stand, name, kind, status string) error {
	d, err := getDevice(s, name)
	if err != nil {
		return err
	}
	for _, c := range d.Status.Conditions {
		if c.Type == kind && c.Status == status {
			return nil
		}
	}
	return fmt.Errorf("%s: no %s=%s in %v", name, kind, status, d.Status.Conditions)
}

// TestDeadUnitsDoNotStarveLivingOnes: whatever nine dead units at its address do, a living unit is asked after
// each question to one of them; and one that answers again comes back.
func TestDeadUnitsDoNotStarveLivingOnes(t *testing.T) {
	t.Parallel()
	const living, units = 10, 10 // the living one is the last: its turn comes after all others
	s := stand.New(t, 1)
	g := newModbusGateway(t)
	text := registerProperties("meter", 50, "value")
	for u := 1; u <= units; u++ {
		g.units[byte(u)] = map[uint16]uint16{0: 215}
		g.dead[byte(u)] = u != living
		text += g.unit("meter", u)
	}
	s.Up("hub", "core")
	// A living unit that isn't answered in time is taken for a dead one: a busy machine gets more of it.
	require.NoError(t, s.Start(t.Context(), "modbus", "--driver-probe-timeout", "1s"))
	s.Create(text)
	s.Eventually(stand.WaitTimeout, func() error { return wantCondition(s, "u10", resource.ConditionOnline, "True") })
	s.Eventually(stand.WaitTimeout, func() error { return wantCondition(s, "u1", resource.ConditionOnline, "False") })

	start := g.requests()
	s.Eventually(2*stand.WaitTimeout, func() error { return askedTwice(g.since(start), units) })
	require.LessOrEqual(t, longestWait(slices.Compact(g.since(start)), living), 1, "dead units asked between two questions to the living one")

	g.do(func() { g.dead[3] = false })
	s.Eventually(stand.WaitTimeout, func() error { return wantCondition(s, "u3", resource.ConditionOnline, "True") })

	// All of those that live die at once, but the last: one after the other they are found dead, and it has its turn
	// in between.
	g.do(func() { clear(g.dead) })
	for u := 1; u <= units; u++ {
		s.Eventually(stand.WaitTimeout, func() error { return wantCondition(s, fmt.Sprintf("u%d", u), resource.ConditionOnline, "True") })
	}
	g.do(func() {
		for u := 1; u < living; u++ {
			g.dead[byte(u)] = true
		}
	})
	start = g.requests()
	s.Eventually(2*stand.WaitTimeout, func() error { return askedTwice(g.since(start), units) })
	turns := slices.Compact(g.since(start)) // in one turn a unit is asked again over a fresh connection
	before := turns[:bytes.IndexByte(turns, living)]
	slices.Sort(before)
	require.Equal(t, before, slices.Compact(slices.Clone(before)), "each has one turn at most before the living one has its own")
	require.LessOrEqual(t, longestWait(turns, living), 1, "dead units asked between two questions to the living one, from then on")
}

// askedTwice is an error until each unit was asked twice.
func askedTwice(asked []byte, units int) error {
	count := map[byte]int{}
	for _, u := range asked {
		count[u]++
	}
	for u := 1; u <= units; u++ {
		if count[byte(u)] < 2 {
			return fmt.Errorf("unit %d was asked %d times", u, count[byte(u)])
		}
	}
	return nil
}

// longestWait is how many questions to others there were between two to a unit, at most.
func longestWait(asked []byte, unit byte) (most int) {
	first := bytes.IndexByte(asked, unit)
	last := bytes.LastIndexByte(asked, unit)
	run := 0
	for _, u := range asked[max(first, 0) : last+1] {
		if u == unit {
			run = 0
			continue
		}
		run++
		most = max(most, run)
	}
	return most
}

// runEdgebus runs edgebus against the stand's hub and core.
func runEdgebus(s *stand.Stand, args ...string) string {
	c := exec.Command(filepath.Join(s.Bin, "edgebus"), args...)
	c.Env = append(os.Environ(), "EDGEBUS_SERVER=http://"+s.Hub.HTTP, "KUBECONFIG="+filepath.Join(s.Dir, "kubeconfig"))
	out, err := c.CombinedOutput()
	if err != nil {
		return string(out) + err.Error()
	}
	return string(out)
}

func runDoctor(s *stand.Stand) string {
	return runEdgebus(s, "doctor", "n1", "--hub", "http://"+s.Hub.HTTP, "--server", "mqtt://"+s.Hub.MQTT, "--core", "http://"+s.Node("n1").HTTP)
}

// TestFailedReadsAreSeen: a register that doesn't exist is said on a topic, in the API and by the doctor, with the
// time of the last reading; its neighbours are read; and it ends when the register can be read.
func TestFailedReadsAreSeen(t *testing.T) {
	t.Parallel()
	s := stand.New(t, 1)
	g := newModbusGateway(t)
	g.units[1] = map[uint16]uint16{0: 1, 2: 3}
	s.Up("hub", "core", "modbus")
	said := s.Watch(s.Core(), "v1/nodes/n1/devices/u1/problem/+", nil)
	s.Create(registerProperties("meter", 50, "a", "b", "c") + g.unit("meter", 1))
	s.Eventually(stand.WaitTimeout, func() error { return wantCondition(s, "u1", "Readable", "False") })
	s.Eventually(stand.WaitTimeout, func() error { return wantReported(s, map[string]string{"a": "0.1", "c": "0.3"}) })
	d, err := getDevice(s, "u1")
	require.NoError(t, err)
	require.Equal(t, resource.Online, d.Status.State)
	require.Nil(t, d.Status.Twin["b"].Reported)
	require.Equal(t, resource.ValueUnread, d.Status.Twin["b"].Problem.Code)
	require.Contains(t, d.Status.Twin["b"].Problem.Message, "illegal data address")
	require.Empty(t, d.Status.Twin["b"].Problem.Since, "it was never read")
	said.AwaitThat("v1/nodes/n1/devices/u1/problem/b", func(m client.Message) bool { return strings.Contains(string(m.Payload), "illegal data address") })
	_, ok := said.Get("v1/nodes/n1/devices/u1/problem/a")
	require.False(t, ok, "its neighbours can be read")
	require.Contains(t, runDoctor(s), "u1 (b: Unread: Rejected: holding 1: unit 1 answered: exception 02 (illegal data address)")
	require.NotContains(t, runDoctor(s), "as they should be")

	// Only the one that fails costs a request of its own.
	n := g.requests()
	s.Eventually(stand.WaitTimeout, func() error { return requireAtLeast(g.requests(), n+10) })
	g.do(func() { g.units[1][0], g.units[1][2] = 4, 5 })
	s.Eventually(stand.WaitTimeout, func() error { return wantReported(s, map[string]string{"a": "0.4", "c": "0.5"}) })

	g.do(func() { g.units[1][1] = 2 })
	s.Eventually(stand.WaitTimeout, func() error { return wantCondition(s, "u1", "Readable", "True") })
	s.Eventually(stand.WaitTimeout, func() error { return wantReported(s, map[string]string{"b": "0.2"}) })

	// A unit that answers each read with exception 02, and one that did so before its mapper was started anew.
	require.NoError(t, s.Publish(s.Client(s.Hub.MQTT, nil), "v1/nodes/n1/devices/u1/desired/a", "0.4"))
	s.Eventually(stand.WaitTimeout, func() error { return wantCondition(s, "u1", "InSync", "True") })
	g.do(func() { g.units[1] = map[uint16]uint16{} })
	s.Eventually(stand.WaitTimeout, func() error { return wantCondition(s, "u1", "InSync", "Unknown") })
	d, err = getDevice(s, "u1")
	require.NoError(t, err)
	require.NotEmpty(t, d.Status.Twin["a"].Problem.Since)
	require.Contains(t, runEdgebus(s, "twin", "get", "u1"), "can't be read since")
	since := d.Status.Twin["a"].Problem.Since
	require.NoError(t, s.Term("modbus"))
	s.Up("modbus")
	s.Eventually(stand.WaitTimeout, func() error { return wantCondition(s, "u1", resource.ConditionOnline, "True") })
	n = g.requests()
	s.Eventually(stand.WaitTimeout, func() error { return requireAtLeast(g.requests(), n+20) })
	d, err = getDevice(s, "u1")
	require.NoError(t, err)
	require.Equal(t, since, d.Status.Twin["a"].Problem.Since, "the age of a value outlives its mapper")
	g.do(func() { g.units[1] = map[uint16]uint16{0: 4, 1: 2, 2: 5} }) // as they were reported before
	s.Eventually(stand.WaitTimeout, func() error { return wantCondition(s, "u1", "Readable", "True") })
	s.Eventually(stand.WaitTimeout, func() error { return wantCondition(s, "u1", "InSync", "True") })
}

func requireAtLeast(n, least int) error {
	if n < least {
		return fmt.Errorf("%d of %d", n, least)
	}
	return nil
}

// wantReported is an error unless the properties of u1 were reported so.
func wantReported(s *stand.Stand, values map[string]string) error {
	d, err := getDevice(s, "u1")
	if err != nil {
		return err
	}
	for name, value := range values {
		if r := d.Status.Twin[name].Reported; r == nil || r.Value != value {
			return fmt.Errorf("%s is not %s in %+v", name, value, d.Status.Twin[name])
		}
	}
	return nil
}

// setA sets what is wanted of u1's property a.
func setA(t *testing.T, s *stand.Stand, value string) {
	t.Helper()
	require.NoError(t, s.Publish(s.Client(s.Hub.MQTT, nil), "v1/nodes/n1/devices/u1/desired/a", value))
}

// TestRefusalsEndWithTheirCause: what the unit refused and has all the same is not refused: by somebody else's hand, also while the
// mapper was away, or because the unit could only not take it for the moment.
func TestRefusalsEndWithTheirCause(t *testing.T) {
	t.Parallel()
	s := stand.New(t, 1)
	g := newModbusGateway(t)
	g.units[1] = map[uint16]uint16{0: 100}
	s.Up("hub", "core", "modbus")
	s.Create(registerProperties("meter", 50, "a") + g.unit("meter", 1))
	settled := func() {
		t.Helper()
		s.Eventually(stand.WaitTimeout, func() error { return wantCondition(s, "u1", "Refused", "False") })
		s.Eventually(stand.WaitTimeout, func() error { return wantCondition(s, "u1", "InSync", "True") })
	}
	refused := func(value string, exception byte) {
		t.Helper()
		g.do(func() { g.fault[1] = exception })
		setA(t, s, value)
		s.Eventually(stand.WaitTimeout, func() error { return wantCondition(s, "u1", "Refused", "True") })
	}
	settled()

	refused("20", 3)
	g.do(func() { g.units[1][0] = 200 })
	settled()

	refused("21", 3)
	require.NoError(t, s.Term("modbus"))
	g.do(func() { g.units[1][0] = 210 })
	s.Up("modbus")
	settled()

	refused("22", 6)
	g.do(func() { g.fault[1] = 0 })
	settled()
	d, err := getDevice(s, "u1")
	require.NoError(t, err)
	require.Equal(t, "22", d.Status.Twin["a"].Reported.Value)
	require.NoError(t, s.Term("core"))
	s.Up("core") // and the mapper says again what it has to say
	n := g.requests()
	s.Eventually(stand.WaitTimeout, func() error { return requireAtLeast(g.requests(), n+20) })
	setA(t, s, "23")
	s.Eventually(stand.WaitTimeout, func() error { return wantReported(s, map[string]string{"a": "23"}) })
	settled()
}

// TestValueFinerThanItsScale: the device has what is as near to the wanted value as it can have, and that is in sync.
func TestValueFinerThanItsScale(t *testing.T) {
	t.Parallel()
	s := stand.New(t, 1)
	g := newModbusGateway(t)
	g.units[1] = map[uint16]uint16{0: 100}
	s.Up("hub", "core", "modbus")
	s.Create(registerProperties("meter", 50, "a") + g.unit("meter", 1))
	s.Eventually(stand.WaitTimeout, func() error { return wantCondition(s, "u1", resource.ConditionOnline, "True") })
	require.Contains(t, runEdgebus(s, "twin", "set", "u1", "a=21.57", "--wait"), "applied")
	require.NoError(t, wantReported(s, map[string]string{"a": "21.6"}))
	require.NoError(t, wantCondition(s, "u1", "InSync", "True"))
	require.NoError(t, s.Term("modbus"))
	s.Up("modbus")
	n := g.requests()
	s.Eventually(stand.WaitTimeout, func() error { return requireAtLeast(g.requests(), n+10) })
	require.NoError(t, wantCondition(s, "u1", "InSync", "True"))
	g.do(func() { require.Equal(t, []string{"1: 0=216"}, g.wrote, "it is not written again") })

	g.do(func() { g.units[1][0] = 217 }) // somebody at the device
	s.Eventually(stand.WaitTimeout, func() error { return wantCondition(s, "u1", "InSync", "False") })
	require.Contains(t, runEdgebus(s, "twin", "set", "u1", "a=21.72", "--wait"), "applied")
	s.Eventually(stand.WaitTimeout, func() error { return wantCondition(s, "u1", "InSync", "True") })
	g.do(func() { require.Len(t, g.wrote, 1, "it has the nearest value already") })
}
