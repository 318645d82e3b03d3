// SPDX-License-Identifier: Apache-2.0

package dmi

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protowire"
	"sigs.k8s.io/yaml"

	"github.com/edgebus/edgebus/broker/daemon/rawgrpc"
	"github.com/edgebus/edgebus/mappers"
	"github.com/edgebus/edgebus/topics/dialect"
	"github.com/edgebus/edgebus/topics/resource"
)

// bundleOf reads a Device and a model that were written for KubeEdge.
func bundleOf(t *testing.T, version, device, model string) resource.Bundle {
	var b resource.Bundle
	read := func(kind, text string, into any) {
		raw, err := yaml.YAMLToJSON([]byte("apiVersion: devices.kubeedge.io/" + version + "\nkind: " + kind + "\nmetadata: {name: boiler, namespace: plant}\n" + text))
		require.NoError(t, err)
		for _, k := range dialect.AllKinds() {
			if k.Group == "devices.kubeedge.io" && k.Version == version && k.Name == kind {
				canonical, err := k.Read(raw, nil, false)
				require.NoError(t, err)
				require.NoError(t, json.Unmarshal(canonical, into))
				return
			}
		}
		t.Fatal("no such kind")
	}
	read("Device", device, &b.Device)
	read("DeviceModel", model, &b.Model)
	return resource.NewBundle(b.Device, b.Model)
}

// wireField is a field of a message as it is on the wire.
type wireField struct {
	number protowire.Number
	value  uint64
	text   []byte
}

// fieldsAt follows field numbers into a message, to the last field of each number.
func fieldsAt(t *testing.T, message []byte, path ...protowire.Number) (out []wireField) {
	list := func(in []byte) (all []wireField) {
		require.NoError(t, rawgrpc.EachField(in, func(f protowire.Number, n uint64, text []byte) error {
			all = append(all, wireField{f, n, text})
			return nil
		}))
		return all
	}
	for i, number := range path {
		out = nil
		for _, f := range list(message) {
			if f.number == number {
				out = append(out, f)
			}
		}
		require.NotEmpty(t, out, "no field %v", path[:i+1])
		message = out[0].text
	}
	return out
}

const thermostatV1beta1 = `
spec:
  deviceModelRef: {name: boiler}
  nodeName: n1
  protocol: {protocolName: knx, configData: {address: 10.0.0.9, port: 3671, slave: "7", fast: true, factor: 0.5}}
  properties:
    - name: setpoint
      collectCycle: 2000
      reportToCloud: false
      visitors: {protocolName: knx, configData: {group: 4711, part: "1"}}
      pushMethod:
        mqtt: {address: "tcp://127.0.0.1:1883", topic: t}
        dbMethod: {influxdb2: {influxdb2ClientConfig: {url: "http://127.0.0.1:8086", org: o, bucket: b}}}
    - {name: silent, visitors: {protocolName: knx}}
    - {name: wish, desired: {value: "1"}}
`

const thermostatModelV1beta1 = `
spec:
  protocol: knx
  properties:
    - {name: setpoint, type: FLOAT, accessMode: ReadWrite, minimum: "5", maximum: "35", unit: C}
    - {name: wish, type: INT, accessMode: ReadWrite}
    - {name: silent, type: STRING, accessMode: ReadOnly}
`

func TestADeviceReachesAMapperOfV1beta1AsItsManifestHasIt(t *testing.T) {
	b := bundleOf(t, "v1beta1", thermostatV1beta1, thermostatModelV1beta1)
	form, err := formOf(contractV1beta1, b)
	require.NoError(t, err)
	message, err := deviceMessage(contractV1beta1, form, map[string]string{"setpoint": "21.5"})
	require.NoError(t, err)
	require.Equal(t, "boiler", string(fieldsAt(t, message, 1)[0].text))
	require.Equal(t, "plant", string(fieldsAt(t, message, 4)[0].text))
	require.Equal(t, "boiler", string(fieldsAt(t, message, 2, 1)[0].text))
	require.Equal(t, "knx", string(fieldsAt(t, message, 2, 2, 1)[0].text))

	config := map[string]string{}
	for _, entry := range fieldsAt(t, message, 2, 2, 2, 1) {
		config[string(fieldsAt(t, entry.text, 1)[0].text)] = string(fieldsAt(t, entry.text, 2, 1)[0].text)
	}
	require.Equal(t, map[string]string{
		"address": "type.googleapis.com/google.protobuf.StringValue", "port": "type.googleapis.com/google.protobuf.Int64Value",
		"slave": "type.googleapis.com/google.protobuf.StringValue", "fast": "type.googleapis.com/google.protobuf.BoolValue",
		"factor": "type.googleapis.com/google.protobuf.FloatValue",
	}, config)

	properties := fieldsAt(t, message, 2, 3)
	require.Len(t, properties, 2, "one without a visitor is not told")
	setpoint, silent := properties[0].text, properties[1].text
	require.Equal(t, "21.5", string(fieldsAt(t, setpoint, 2, 1)[0].text))
	require.Equal(t, uint64(2000), fieldsAt(t, setpoint, 5)[0].value)
	require.Equal(t, uint64(1), fieldsAt(t, setpoint, 6)[0].value, "the mapper reports to the node, which keeps it there")
	require.Equal(t, "http://127.0.0.1:8086", string(fieldsAt(t, setpoint, 7, 3, 1, 1, 1)[0].text))
	require.NoError(t, rawgrpc.EachField(fieldsAt(t, setpoint, 7)[0].text, func(f protowire.Number, _ uint64, _ []byte) error {
		require.EqualValues(t, 3, f, "the node pushes by MQTT itself")
		return nil
	}))
	fieldsAt(t, silent, 2)    // KubeEdge's mappers end without a desired value
	fieldsAt(t, silent, 3, 2) // or without a visitor's config

	name, model, err := modelMessage(contractV1beta1, form)
	require.NoError(t, err)
	require.Equal(t, "boiler", name)
	require.Len(t, fieldsAt(t, model, 2, 1), 3)
	first := fieldsAt(t, model, 2, 1)[0].text
	require.Equal(t, "FLOAT ReadWrite 5 35", string(fieldsAt(t, first, 3)[0].text)+" "+string(fieldsAt(t, first, 4)[0].text)+" "+string(fieldsAt(t, first, 5)[0].text)+" "+string(fieldsAt(t, first, 6)[0].text))
}

func TestADeviceReachesAMapperOfV1alpha1WithItsTwins(t *testing.T) {
	b := bundleOf(t, "v1alpha2", `
spec:
  deviceModelRef: {name: boiler}
  nodeSelector: {nodeSelectorTerms: [{matchExpressions: [{key: "", operator: In, values: [n1]}]}]}
  protocol: {modbus: {slaveID: 3}, common: {tcp: {ip: 10.0.0.9, port: 502}}}
  propertyVisitors:
    - {propertyName: level, collectCycle: 500000000, modbus: {register: HoldingRegister, offset: 2, limit: 1, scale: 0.5, isSwap: true}}
`, `
spec:
  properties:
    - {name: level, type: {int: {accessMode: ReadWrite, minimum: 0, maximum: 100}}}
`)
	form, err := formOf(contractV1alpha1, b)
	require.NoError(t, err)
	message, err := deviceMessage(contractV1alpha1, form, map[string]string{"level": "7"})
	require.NoError(t, err)
	require.Equal(t, uint64(3), fieldsAt(t, message, 2, 2, 2, 1)[0].value)
	require.Equal(t, "10.0.0.9", string(fieldsAt(t, message, 2, 2, 4, 2, 1)[0].text))
	visitor := fieldsAt(t, message, 2, 3)[0].text
	require.Equal(t, uint64(500_000_000), fieldsAt(t, visitor, 3)[0].value, "nanoseconds")
	require.Equal(t, uint64(2), fieldsAt(t, visitor, 6, 2)[0].value)
	twin := fieldsAt(t, message, 3, 1)[0].text
	require.Equal(t, "7", string(fieldsAt(t, twin, 2, 1)[0].text))
	require.Equal(t, "int", string(fieldsAt(t, twin, 2, 2, 2)[0].text), "mappers of v1alpha1 know the type from there")
	_, model, err := modelMessage(contractV1alpha1, form)
	require.NoError(t, err)
	require.Equal(t, uint64(100), fieldsAt(t, model, 2, 1, 3, 1, 4)[0].value)
}

func TestAValueOfAnotherTypeNamesItsField(t *testing.T) {
	b := bundleOf(t, "v1alpha2", `
spec:
  deviceModelRef: {name: boiler}
  protocol: {modbus: {slaveID: seven}}
  propertyVisitors: [{propertyName: level, modbus: {register: HoldingRegister}}]
`, "spec: {properties: [{name: level, type: {int: {accessMode: ReadOnly}}}]}\n")
	form, err := formOf(contractV1alpha1, b)
	require.NoError(t, err)
	_, err = deviceMessage(contractV1alpha1, form, nil)
	require.ErrorContains(t, err, `device.spec.protocol.modbus.slaveID: "seven" is no whole number`)
}

// kubeMapper is a mapper of KubeEdge as the node sees it.
type kubeMapper struct {
	calls  chan string
	path   string
	server *grpc.Server
	knows  map[string]bool
	hangs  atomic.Pointer[string] // the call that it never answers, by method and device
}

func startMapper(t *testing.T, path string, knows ...string) *kubeMapper {
	m := &kubeMapper{calls: make(chan string, 100), path: path, server: rawgrpc.NewServer(), knows: map[string]bool{}}
	for _, name := range knows {
		m.knows[name] = true
	}
	var methods []grpc.MethodDesc
	for _, name := range []string{"CreateDeviceModel", "RegisterDevice", "UpdateDevice", "RemoveDevice"} {
		methods = append(methods, rawgrpc.UnaryMethod(name, func(ctx context.Context, in []byte) ([]byte, error) {
			said := name
			if h := m.hangs.Load(); h != nil && *h == name+" "+calledDevice(t, name, in) {
				m.calls <- said + " hangs"
				<-ctx.Done()
				return nil, ctx.Err()
			}
			if name == "RegisterDevice" && m.knows["all"] {
				m.calls <- said + " refused"
				return nil, status.Error(codes.Unknown, "has existed")
			}
			if name == "UpdateDevice" || name == "RegisterDevice" {
				for _, p := range fieldsAt(t, in, 1, 2, 3) {
					for _, d := range fieldsAt(t, p.text, 2) {
						_ = rawgrpc.EachField(d.text, func(f protowire.Number, _ uint64, text []byte) error {
							if f == 1 && len(text) > 0 {
								said += " " + string(text)
							}
							return nil
						})
					}
				}
			}
			m.calls <- said
			return nil, nil
		}))
	}
	m.server.RegisterService(&grpc.ServiceDesc{ServiceName: "v1beta1.DeviceMapperService", HandlerType: (*any)(nil), Methods: methods}, nil)
	l, err := net.Listen("unix", path)
	require.NoError(t, err)
	go func() { _ = rawgrpc.Serve(m.server, l) }()
	t.Cleanup(m.server.Stop)
	return m
}

// calledDevice is the name of the device that a call is about.
func calledDevice(t *testing.T, method string, in []byte) string {
	path := map[string][]protowire.Number{"RegisterDevice": {1, 1}, "UpdateDevice": {1, 1}, "RemoveDevice": {1}}[method]
	if path == nil {
		return ""
	}
	return string(fieldsAt(t, in, path...)[0].text)
}

func (m *kubeMapper) hang(call string) { m.hangs.Store(&call) }

func (m *kubeMapper) expect(t *testing.T, calls ...string) {
	for _, want := range calls {
		select {
		case got := <-m.calls:
			require.Equal(t, want, got)
		case <-time.After(10 * time.Second):
			t.Fatalf("no call of %s", want)
		}
	}
	select {
	case got := <-m.calls:
		t.Fatalf("called besides: %s", got)
	default:
	}
}

// opened is a device of a mapper at path, and its session.
func opened(t *testing.T, p *peer) mappers.Session {
	form, err := formOf(contractV1beta1, bundleOf(t, "v1beta1", thermostatV1beta1, thermostatModelV1beta1))
	require.NoError(t, err)
	return openedAs(t, p, "boiler", form)
}

func openedAs(t *testing.T, p *peer, name, form string) mappers.Session {
	s, err := driver{p}.Open(t.Context(), mappers.Device{Name: name, Form: form, Properties: []mappers.Property{{Name: "setpoint", Visited: true, Collect: time.Second, Writable: true}}})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	return s
}

func registrationAt(path string) registration {
	return registration{Name: "knx-mapper", Protocol: "knx", Address: path, Contract: contractV1beta1}
}

func TestAMapperIsToldOnceAndOnlyWhatHasChanged(t *testing.T) {
	path := filepath.Join(t.TempDir(), "knx.sock")
	m := startMapper(t, path)
	p := newPeer(registrationAt(path), false)
	t.Cleanup(p.close)
	s := opened(t, p).(*session)
	require.ErrorContains(t, s.Ping(t.Context()), "reported nothing of it")
	m.expect(t, "CreateDeviceModel", "RegisterDevice")
	s.d.take(report{device: "boiler", values: map[string]string{"setpoint": "20", "other": "1"}}, time.Now())
	got, err := s.ReadBatch(t.Context(), []string{"setpoint"})
	require.NoError(t, err)
	require.Equal(t, "20", got["setpoint"].Value)
	m.expect(t) // a report makes no call
	require.ErrorIs(t, s.Write(t.Context(), "setpoint", "21"), mappers.ErrUnconfirmed)
	m.expect(t, "UpdateDevice 21")
	require.NoError(t, s.Ping(t.Context()))
	m.expect(t)

	p.begin(false) // it has started anew, and may know its devices from a file
	require.NoError(t, s.Ping(t.Context()))
	m.expect(t, "CreateDeviceModel", "RegisterDevice 21", "UpdateDevice 21")
	require.NotEmpty(t, p.begin(true)) // it has started anew, and got them with the answer
	require.NoError(t, s.Ping(t.Context()))
	m.expect(t)
}

func TestAMapperThatKnowsADeviceFromBeforeIsUpdated(t *testing.T) {
	path := filepath.Join(t.TempDir(), "knx.sock")
	m := startMapper(t, path, "all")
	p := newPeer(registrationAt(path), true)
	t.Cleanup(p.close)
	s := opened(t, p).(*session)
	require.Error(t, s.Ping(t.Context()))
	m.expect(t, "CreateDeviceModel", "RegisterDevice refused", "UpdateDevice")
}

// form of a Device that has another name.
func formAs(t *testing.T, name string) string {
	b := bundleOf(t, "v1beta1", thermostatV1beta1, thermostatModelV1beta1)
	b.Device.Metadata.Name = name
	form, err := formOf(contractV1beta1, b)
	require.NoError(t, err)
	return form
}

func TestADeviceAboutWhichTheMapperHangsHoldsUpNoOther(t *testing.T) {
	path := filepath.Join(t.TempDir(), "knx.sock")
	m := startMapper(t, path)
	p := newPeer(registrationAt(path), false)
	t.Cleanup(p.close)
	hanging, other := opened(t, p).(*session), openedAs(t, p, "pump", formAs(t, "pump")).(*session)
	m.hang("RegisterDevice boiler")
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- hanging.Ping(ctx) }()
	m.expect(t, "CreateDeviceModel", "RegisterDevice hangs")
	require.ErrorContains(t, other.Ping(t.Context()), "reported nothing of it")
	m.expect(t, "RegisterDevice")
	cancel()
	require.Error(t, <-ended)

	// Nobody knows whether it has the device, and as which: it is told both ways.
	m.hang("")
	require.ErrorContains(t, hanging.Ping(t.Context()), "reported nothing of it")
	m.expect(t, "RegisterDevice", "UpdateDevice")
}

func TestADeviceThatIsMadeAgainBeforeItsMapperWasToldThatItIsGoneStays(t *testing.T) {
	path := filepath.Join(t.TempDir(), "knx.sock")
	m := startMapper(t, path)
	b := &bridge{peers: map[string]*peer{"knx": newPeer(registrationAt(path), false)}}
	p := b.peers["knx"]
	t.Cleanup(p.close)
	s := opened(t, p).(*session)
	require.Error(t, s.Ping(t.Context()))
	m.expect(t, "CreateDeviceModel", "RegisterDevice")
	redial := func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.hangUp()
	}
	m.server.Stop()
	redial()
	require.NoError(t, s.Close())
	s.d.leave(1) // can't be told
	again := opened(t, p).(*session)
	s.d.leave(1)
	m = startMapper(t, path)
	require.NoError(t, b.take(report{device: "boiler", values: map[string]string{"setpoint": "20"}}))
	require.Eventually(t, func() bool { return again.Ping(t.Context()) == nil }, 10*time.Second, 10*time.Millisecond)
	m.expect(t) // it has the device

	redial()
	require.NoError(t, again.Close())
	again.d.leave(2)
	m.expect(t, "RemoveDevice")
	require.ErrorIs(t, b.take(report{device: "boiler", state: "ok"}), errUnknownDevice)
}

// A removal that was not answered may have been made: a device of the name is told anew.
func TestADeviceThatItsMapperMayHaveRemovedIsToldAnew(t *testing.T) {
	path := filepath.Join(t.TempDir(), "knx.sock")
	m := startMapper(t, path)
	p := newPeer(registrationAt(path), false)
	t.Cleanup(p.close)
	s := opened(t, p).(*session)
	require.Error(t, s.Ping(t.Context()))
	m.expect(t, "CreateDeviceModel", "RegisterDevice")
	require.NoError(t, s.Close())
	m.hang("RemoveDevice boiler")
	left := make(chan struct{})
	go func() { s.d.leave(1); close(left) }()
	m.expect(t, "RemoveDevice hangs")
	again := opened(t, p).(*session)
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	require.ErrorIs(t, again.Ping(ctx), context.DeadlineExceeded, "what it is told waits for the removal, and its caller doesn't")
	m.server.Stop()
	<-left
	m = startMapper(t, path)
	require.Eventually(t, func() bool {
		_ = again.Ping(t.Context())
		again.d.mu.Lock()
		defer again.d.mu.Unlock()
		return again.d.life == 1
	}, 10*time.Second, 10*time.Millisecond)
	m.expect(t, "RegisterDevice", "UpdateDevice")
}

func TestAThousandDevicesOfAModelAreToldAtOnce(t *testing.T) {
	path := filepath.Join(t.TempDir(), "knx.sock")
	m := startMapper(t, path)
	p := newPeer(registrationAt(path), false)
	t.Cleanup(p.close)
	form := formAs(t, "boiler")
	var told sync.WaitGroup
	for n := range 1000 {
		s := openedAs(t, p, fmt.Sprintf("boiler-%03d", n), form).(*session)
		told.Go(func() { _ = s.Ping(t.Context()) })
	}
	calls := map[string]int{}
	for range 1001 {
		select {
		case call := <-m.calls:
			calls[call]++
		case <-time.After(30 * time.Second):
			t.Fatalf("only %v", calls)
		}
	}
	told.Wait()
	require.Equal(t, map[string]int{"CreateDeviceModel": 1, "RegisterDevice": 1000}, calls)
	m.expect(t)
}

func TestAReportIsOfTheDeviceThatIsOpen(t *testing.T) {
	b := &bridge{peers: map[string]*peer{}}
	var sessions []*session
	for _, protocol := range []string{"knx", "bluetooth"} {
		b.peers[protocol] = newPeer(registration{Name: protocol, Protocol: protocol, Address: "/no/socket", Contract: contractV1beta1}, false)
		sessions = append(sessions, opened(t, b.peers[protocol]).(*session))
	}
	require.NoError(t, sessions[0].Close()) // the Device's protocol has changed
	for range 20 {
		require.NoError(t, b.take(report{device: "boiler", values: map[string]string{"setpoint": "20"}}))
	}
	require.Empty(t, sessions[0].d.values)
	require.Equal(t, "20", sessions[1].d.values["setpoint"].text)
}

func TestAnAnswerToARegistrationHasALimit(t *testing.T) {
	path := filepath.Join(t.TempDir(), "knx.sock")
	m := startMapper(t, path)
	p := newPeer(registrationAt(path), false)
	t.Cleanup(p.close)
	form := strings.ReplaceAll(formAs(t, "boiler"), "10.0.0.9", strings.Repeat("9", 64<<10))
	var sessions []*session
	for n := range 60 {
		sessions = append(sessions, openedAs(t, p, fmt.Sprintf("boiler-%02d", n), form).(*session))
	}
	answer := p.begin(true)
	require.Less(t, len(answer), 4<<20)
	require.Greater(t, len(answer), 2<<20)
	require.ErrorContains(t, sessions[0].Ping(t.Context()), "reported nothing of it")
	m.expect(t) // it was in the answer
	require.ErrorContains(t, sessions[59].Ping(t.Context()), "reported nothing of it")
	m.expect(t, "CreateDeviceModel", "RegisterDevice")
}

func TestAValueThatIsNotDesiredAnyMoreIsNotToldAgain(t *testing.T) {
	path := filepath.Join(t.TempDir(), "knx.sock")
	m := startMapper(t, path)
	p := newPeer(registrationAt(path), false)
	t.Cleanup(p.close)
	s := opened(t, p).(*session)
	require.ErrorIs(t, s.Write(t.Context(), "setpoint", "21"), mappers.ErrUnconfirmed)
	m.expect(t, "CreateDeviceModel", "RegisterDevice 21")
	require.NoError(t, s.Relinquish(t.Context(), "setpoint"))
	m.expect(t)
	p.begin(false)
	require.Error(t, s.Ping(t.Context()))
	m.expect(t, "CreateDeviceModel", "RegisterDevice", "UpdateDevice")
}

func TestADeviceOfAMapperThatIsGoneIsNotWritten(t *testing.T) {
	path := filepath.Join(t.TempDir(), "knx.sock")
	p := newPeer(registrationAt(path), false)
	t.Cleanup(p.close)
	s := opened(t, p).(*session)
	err := s.Write(t.Context(), "setpoint", "21")
	require.True(t, mappers.IsNotSent(err), "%v", err)
	require.ErrorContains(t, err, "is it running?")
}

func TestSilenceAndStatesOfADevice(t *testing.T) {
	p := newPeer(registrationAt("/no/socket"), false)
	d := opened(t, p).(*session).d
	now := time.Now()
	require.ErrorContains(t, d.answers(now.Add(time.Minute)), "reported nothing of it")
	d.take(report{state: "ok"}, now)
	require.NoError(t, d.answers(now.Add(2*time.Second)))
	require.ErrorContains(t, d.answers(now.Add(10*time.Second)), "for 10s")
	d.take(report{state: "Disconnected"}, now)
	require.ErrorContains(t, d.answers(now), "says that it is disconnected")
	d.take(report{state: "unhealthy"}, now)
	require.NoError(t, d.answers(now))
	d.info.OfflineAfter = time.Hour
	require.NoError(t, d.answers(now.Add(time.Minute)))
}

func TestRegistrationsAreOnDiskAndChecked(t *testing.T) {
	dir := t.TempDir()
	b, err := newBridge(dir, mappers.Options{Name: "dmi", Log: zerolog.Nop()})
	require.NoError(t, err)
	_, err = b.register(registrationAt("/run/knx.sock"), true)
	require.NoError(t, err)
	again, err := newBridge(dir, mappers.Options{})
	require.NoError(t, err)
	require.Equal(t, registrationAt("/run/knx.sock"), again.peers["knx"].registered())
	_, doubtful := again.peers["knx"].lifeNow()
	require.True(t, doubtful, "it may know devices from before")

	require.NoError(t, os.WriteFile(filepath.Join(dir, registrationsFile), []byte("[{"), 0o600))
	_, err = newBridge(dir, mappers.Options{})
	require.ErrorContains(t, err, "mappers.json")
}

func TestWhatMappersSendIsChecked(t *testing.T) {
	text := func(f protowire.Number, s string) []byte { return appendBytes(nil, f, []byte(s)) }
	_, _, err := parseRegistration(contractV1beta1, appendBytes(nil, 2, text(1, "m")))
	require.ErrorContains(t, err, "mapper.protocol: must be set")
	_, _, err = parseRegistration(contractV1beta1, appendBytes(nil, 2, append(append(text(1, "m"), text(4, "p")...), text(5, "relative")...)))
	require.ErrorContains(t, err, "must be the absolute path")
	_, err = parseStatus(contractV1beta1, text(2, ""))
	require.ErrorContains(t, err, "deviceName: must be set")
	_, err = parseStatus(contractV1beta1, text(1, "d"))
	require.ErrorContains(t, err, "has no reported value")
	_, err = parseStates(text(1, "d"))
	require.ErrorContains(t, err, "state: must be set")
	r, err := parseStatus(contractV1alpha1, append(text(1, "d"), appendBytes(nil, 2, text(2, "OK"))...))
	require.NoError(t, err)
	require.Equal(t, "OK", r.state)
	_, err = parseStatus(contractV1alpha1, append(text(1, "d"), appendBytes(nil, 2, text(2, strings.Repeat("x", maxName+1)))...))
	require.ErrorContains(t, err, "state: must be at most 253 bytes")
	_, err = parseStates(append(text(1, strings.Repeat("d", maxName+1)), text(3, "ok")...))
	require.ErrorContains(t, err, "deviceName: must be at most 253 bytes")
}

func TestAProtocolMakesANameOfItsOwn(t *testing.T) {
	b, err := newBridge(t.TempDir(), mappers.Options{Name: "dmi", Log: zerolog.Nop()})
	require.NoError(t, err)
	for protocol, wrong := range map[string]string{"knx.ip": "", "KNX.IP": "", "knx+ip": "too like", "::": "letter or digit", strings.Repeat("k", maxName): "mapper name"} {
		r := registrationAt("/run/knx.sock")
		r.Protocol = protocol
		b.peers = map[string]*peer{"knx.ip": newPeer(registration{Name: "m", Protocol: "knx.ip", Address: "/run/knx.sock", Contract: contractV1beta1}, false)}
		_, err := b.register(r, true)
		if wrong == "" {
			require.NoError(t, err, protocol)
		} else {
			require.ErrorContains(t, err, wrong)
		}
	}
}

// A mapper that reports devices that nobody knows, each under another name, gets errors, and makes no more calls than a few at a time.
func TestReportsOfUnknownDevicesAreBounded(t *testing.T) {
	b, err := newBridge(t.TempDir(), mappers.Options{Name: "dmi", Log: zerolog.Nop()})
	require.NoError(t, err)
	l, err := net.Listen("unix", filepath.Join(t.TempDir(), "deaf.sock")) // accepts, and answers nothing
	require.NoError(t, err)
	defer l.Close()
	ctx, stop := context.WithCancel(t.Context())
	p := newPeer(registrationAt(l.Addr().String()), false)
	b.peers["knx"], b.runCx, b.reached = p, ctx, time.Now().Add(-2*settleTime)
	for i := range 1000 {
		require.ErrorIs(t, b.take(report{device: fmt.Sprint("d", i), values: map[string]string{"v": "1"}}), errUnknownDevice)
	}
	b.mu.Lock()
	require.Equal(t, mostRemovals, b.removing)
	require.Len(t, b.removed, mostRemovals)
	b.mu.Unlock()
	stop()
	b.work.Wait()
	p.close()
}

// While the node's broker is not reached, and for a moment after that, the bridge doesn't know the Devices: it removes none.
func TestNothingIsRemovedFromAMapperWhoseDevicesAreNotKnownYet(t *testing.T) {
	path := filepath.Join(t.TempDir(), "knx.sock")
	m := startMapper(t, path)
	p := newPeer(registrationAt(path), false)
	t.Cleanup(p.close)
	b := &bridge{peers: map[string]*peer{"knx": p}, removed: map[string]time.Time{}, runCx: t.Context()}
	r := report{device: "boiler", values: map[string]string{"setpoint": "20"}}
	for _, reached := range []time.Time{{}, time.Now()} {
		b.reached = reached
		require.ErrorIs(t, b.take(r), errUnknownDevice)
		b.work.Wait()
		m.expect(t)
	}
	b.reached = time.Now().Add(-2 * settleTime)
	require.ErrorIs(t, b.take(r), errUnknownDevice)
	b.work.Wait()
	m.expect(t, "RemoveDevice")
}

func FuzzReports(f *testing.F) {
	f.Add([]byte{0x0a, 1, 'd', 0x12, 0})
	f.Fuzz(func(_ *testing.T, in []byte) {
		for _, c := range []contract{contractV1beta1, contractV1alpha1} {
			_, _, _ = parseRegistration(c, in)
			_, _ = parseStatus(c, in)
		}
		_, _ = parseStates(in)
	})
}
