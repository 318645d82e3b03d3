// SPDX-License-Identifier: Apache-2.0

package bacnet

import (
	"bytes"
	"context"
	"net/netip"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/edgebus/edgebus/mappers"
	"github.com/edgebus/edgebus/mappers/bacnet/wire"
	"github.com/edgebus/edgebus/mappers/drivertest"
	"github.com/edgebus/edgebus/mappers/settings"
)

func newUnit(t *testing.T) *wire.Server {
	t.Helper()
	s, err := NewSimulator("127.0.0.1:0", 1234)
	require.NoError(t, err)
	t.Cleanup(func() { _ = s.Close() })
	return s
}

func newDriver(t *testing.T, broadcast netip.AddrPort) *Driver {
	t.Helper()
	d := New(Options{Listen: "127.0.0.1:0", Broadcast: broadcast.String(), Timeout: 300 * time.Millisecond})
	t.Cleanup(func() { _ = d.Close() })
	return d
}

func property(name string, typ mappers.Type, writable bool, config ...string) mappers.Property {
	p := mappers.Property{Name: name, Type: typ, Writable: writable, Visited: true, Config: map[string]string{}}
	for i := 0; i < len(config); i += 2 {
		p.Config[config[i]] = config[i+1]
	}
	return p
}

func unitDevice(config map[string]string) mappers.Device {
	low, high := 16.0, 28.0
	set := property("setpoint", mappers.Float, true, "object", "AV:1")
	set.Minimum, set.Maximum = &low, &high
	one, three := 1.0, 3.0
	mode := property("mode", mappers.Int, true, "object", "MSV:1")
	mode.Minimum, mode.Maximum = &one, &three
	return mappers.Device{Node: "n", Name: "ahu", Config: config, Properties: []mappers.Property{
		property("supply", mappers.Float, false, "object", "analogInput:1"), set, mode,
		property("fan", mappers.Boolean, true, "object", "BO:1"),
		property("filter", mappers.String, false, "object", "BI:1"),
		property("name", mappers.String, false, "object", "device:1234", "property", "objectName"),
	}}
}

func openUnit(t *testing.T, d mappers.Device, s *wire.Server) *session {
	t.Helper()
	opened, err := newDriver(t, s.Addr()).Open(t.Context(), d)
	require.NoError(t, err)
	t.Cleanup(func() { _ = opened.Close() })
	return opened.(*session)
}

func TestDriver(t *testing.T) {
	drivertest.Run(t, func(t *testing.T) drivertest.Rig {
		s := newUnit(t)
		other := newUnit(t)
		nowhere, badMAC, badPriority, noObject := unitDevice(nil), unitDevice(map[string]string{"address": "10.0.0.9", "network": "5", "mac": "xx"}),
			unitDevice(map[string]string{"address": "10.0.0.9", "priority": "17"}), unitDevice(map[string]string{"address": "10.0.0.9"})
		noObject.Properties = []mappers.Property{property("supply", mappers.Float, false, "object", "lamp")}
		another := unitDevice(map[string]string{"address": other.Addr().String()})
		another.Name = "second"
		return drivertest.Rig{
			Driver: newDriver(t, s.Addr()), Device: unitDevice(map[string]string{"device": "1234"}), Another: &another,
			Broken: map[string]mappers.Device{
				settings.DevicePath + "address": nowhere, settings.DevicePath + "mac": badMAC, settings.DevicePath + "priority": badPriority,
				"visitor supply: config.object": noObject,
			},
			Stop:  func() { s.Answer(func(byte) bool { return false }) },
			Start: func() { s.Answer(nil) },
		}
	})
}

func TestValuesHaveThePropertysType(t *testing.T) {
	s := newUnit(t)
	o := openUnit(t, unitDevice(map[string]string{"address": s.Addr().String()}), s)
	got, err := o.ReadBatch(t.Context(), []string{"supply", "setpoint", "mode", "fan", "filter", "name"})
	require.NoError(t, err)
	for name, want := range map[string]string{"supply": "19.5", "setpoint": "21", "mode": "2", "fan": "true", "filter": "inactive", "name": "Air handling unit"} {
		require.NoError(t, got[name].Err, name)
		assert.Equal(t, want, got[name].Value, name)
	}
	near, err := o.Nearest("setpoint", "21.123456789")
	require.NoError(t, err)
	assert.Equal(t, "21.123457", near)
}

func TestAnUnreliableValueIsNone(t *testing.T) {
	s := newUnit(t)
	o := openUnit(t, unitDevice(map[string]string{"address": s.Addr().String()}), s)
	s.SetProperty(unitSupply, wire.StatusFlags, wire.BitString{false, true, false, false})
	got, err := o.ReadBatch(t.Context(), []string{"supply", "setpoint"})
	require.NoError(t, err)
	require.ErrorContains(t, got["supply"].Err, "fault")
	assert.Equal(t, "21", got["setpoint"].Value)
}

func TestADeviceThatTakesFewPropertiesAtOnceIsLearnt(t *testing.T) {
	s := newUnit(t)
	o := openUnit(t, unitDevice(map[string]string{"address": s.Addr().String()}), s)
	s.Limit(4) // references, of which a present value has two
	all := []string{"supply", "setpoint", "mode", "fan", "filter", "name"}
	assert.Len(t, o.Group(all), 1)
	got, err := o.ReadBatch(t.Context(), all)
	require.NoError(t, err)
	assert.Len(t, got, 6)
	assert.LessOrEqual(t, len(o.Group(all)[0]), 2)
}

func TestADeviceWithoutReadPropertyMultipleIsReadOneByOne(t *testing.T) {
	s := newUnit(t)
	s.Unknown(14)
	o := openUnit(t, unitDevice(map[string]string{"address": s.Addr().String()}), s)
	got, err := o.ReadBatch(t.Context(), []string{"supply", "fan"})
	require.NoError(t, err)
	assert.Equal(t, "19.5", got["supply"].Value)
	assert.Equal(t, "true", got["fan"].Value)
	assert.Len(t, o.Group([]string{"supply", "fan"}), 2)
}

// Only the reason "unrecognized service" says that. For another one the object that the device doesn't understand is left out.
func TestARejectForAnotherReasonIsOfOnePropertyOnly(t *testing.T) {
	s := newUnit(t)
	s.RejectObject(unitFan)
	o := openUnit(t, unitDevice(map[string]string{"address": s.Addr().String()}), s)
	names := []string{"supply", "setpoint", "mode", "fan", "filter"}
	got, err := o.ReadBatch(t.Context(), names)
	require.NoError(t, err)
	require.ErrorContains(t, got["fan"].Err, "rejected the request (reason 8)")
	delete(got, "fan")
	require.Len(t, got, 4)
	for name, r := range got {
		require.NoError(t, r.Err, name)
	}
	assert.Len(t, o.Group(names), 1, "nothing was learnt of it")
}

func TestAValueReadByItselfIsNoneIfTheDeviceSaysThatItIsUnreliable(t *testing.T) {
	s := newUnit(t)
	s.SetProperty(unitSupply, wire.StatusFlags, wire.BitString{false, true, false, false})
	s.Unknown(14)
	o := openUnit(t, unitDevice(map[string]string{"address": s.Addr().String()}), s)
	got, err := o.ReadBatch(t.Context(), []string{"supply"})
	require.NoError(t, err)
	require.ErrorContains(t, got["supply"].Err, "fault")
}

func TestACommandWritesOnce(t *testing.T) {
	s := newUnit(t)
	d := unitDevice(map[string]string{"address": s.Addr().String()})
	d.Commands = []mappers.Property{
		property("stop", "", false, "object", "BO:1", "value", "inactive"), property("set", mappers.Float, false, "object", "AV:1"),
		property("release", "", false, "object", "AV:1", "value", "null"),
	}
	o := openUnit(t, d, s)
	command := func(name, payload string) {
		t.Helper()
		_, err := o.Command(t.Context(), name, []byte(payload))
		require.NoError(t, err)
	}
	command("stop", "")
	assert.Equal(t, wire.Enumerated(0), s.Value(unitFan))
	command("set", "25")
	assert.Equal(t, float32(25), s.Value(unitSetpoint))
	command("release", "")
	assert.Equal(t, float32(21), s.Value(unitSetpoint))
	_, err := o.Command(t.Context(), "other", nil)
	require.ErrorContains(t, err, "no bacnet visitor")
}

func TestNullRelinquishesAndRefusalsSayWhy(t *testing.T) {
	s := newUnit(t)
	o := openUnit(t, unitDevice(map[string]string{"address": s.Addr().String(), "priority": "8"}), s)
	require.NoError(t, o.Write(t.Context(), "setpoint", "25"))
	assert.Equal(t, float32(25), s.Value(unitSetpoint))
	require.NoError(t, o.Write(t.Context(), "setpoint", "null"))
	assert.Equal(t, float32(21), s.Value(unitSetpoint))
	refusal := func(property, value, code string) {
		t.Helper()
		var r *mappers.Refusal
		require.ErrorAs(t, o.Write(t.Context(), property, value), &r)
		assert.Equal(t, code, r.Code, r.Message)
	}
	refusal("setpoint", "99", mappers.OutOfRange)
	refusal("setpoint", "warm", mappers.Invalid)
	refusal("fan", "maybe", mappers.Invalid)
	refusal("filter", "active", mappers.ReadOnly)
}

// A device that starts again has forgotten its subscribers: it is subscribed to again when it says so, and otherwise at half of the life.
func TestSubscriptionsAreMadeAgainWhenTheDeviceHasStarted(t *testing.T) {
	s := newUnit(t)
	o := openUnit(t, unitDevice(map[string]string{"address": s.Addr().String()}), s)
	var mu sync.Mutex
	told := map[string]string{}
	said := func(name string) string {
		mu.Lock()
		defer mu.Unlock()
		return told[name]
	}
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		ended <- o.Push(ctx, func(name, value string) {
			mu.Lock()
			defer mu.Unlock()
			told[name] = value
		})
	}()
	require.Eventually(t, func() bool {
		return said("supply") == "19.5" && said("filter") == "inactive" && said("fan") == "true" && said("mode") == "2"
	}, 5*time.Second, 5*time.Millisecond)
	s.Set(unitSupply, float32(22.5))
	require.Eventually(t, func() bool { return said("supply") == "22.5" }, 5*time.Second, 5*time.Millisecond)
	s.Restart(true)
	s.Set(unitSupply, float32(23.5)) // it may come before the subscription, which then brings the value
	require.Eventually(t, func() bool { return said("supply") == "23.5" }, 5*time.Second, 5*time.Millisecond)
	stop()
	require.NoError(t, <-ended)
}

func TestADeviceThatDoesNotAnswerSubscriptionsIsReadOn(t *testing.T) {
	s := newUnit(t)
	const subscribe = 5
	var asked atomic.Int32
	s.Answer(func(service byte) bool {
		if service == subscribe {
			asked.Add(1)
		}
		return service != subscribe
	})
	o := openUnit(t, unitDevice(map[string]string{"address": s.Addr().String()}), s)
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- o.Push(ctx, func(string, string) {}) }()
	require.Eventually(t, func() bool { return asked.Load() == 3 }, 5*time.Second, time.Millisecond, "one is tried three times")
	select {
	case err := <-ended:
		require.Fail(t, "the session would be opened anew", "%v", err)
	case <-time.After(3 * 300 * time.Millisecond): // which the others would take
	}
	require.EqualValues(t, 3, asked.Load())
	stop()
	require.NoError(t, <-ended)
	s.Answer(func(byte) bool { return false })
	require.ErrorIs(t, o.Push(t.Context(), func(string, string) {}), wire.ErrNoAnswer, "it is gone")
}

func TestAnUnsoundNotificationIsNotTaken(t *testing.T) {
	s := newUnit(t)
	o := openUnit(t, unitDevice(map[string]string{"address": s.Addr().String()}), s)
	f := o.config.fields["supply"]
	r := f.reading([]wire.Result{
		{Reference: f.ref, Values: []any{float32(1)}},
		{Reference: wire.Reference{Object: f.ref.Object, Property: wire.StatusFlags, Index: wire.NoIndex}, Values: []any{wire.BitString{false, true, false, false}}},
	})
	require.Error(t, r.Err)
}

func TestADeviceIsFoundAndWrittenDown(t *testing.T) {
	s := newUnit(t)
	var out, progress bytes.Buffer
	flags := []string{"--listen", "127.0.0.1:0", "--broadcast", s.Addr().String(), "--wait", "300ms"}
	require.Zero(t, Main(append([]string{"scan"}, flags...), &out, &progress), progress.String())
	assert.Contains(t, out.String(), "1234    "+s.Addr().String()+"  Air handling unit  Edgebus  Simulator")
	out.Reset()
	require.Zero(t, Main(append([]string{"read", s.Addr().String(), "AV:1"}, flags...), &out, &progress), progress.String())
	assert.Equal(t, "21\n", out.String())
	out.Reset()
	require.Zero(t, Main(append([]string{"browse", "1234", "--node", "hall"}, flags...), &out, &progress), progress.String())
	for _, line := range []string{
		"name: air-handling-unit", "nodeName: hall", `{device: "1234"}`, "- name: setpoint", "minimum: 16", "{object: 'analogValue:1'}",
		`enum: ["off", auto, manual]`, "- name: filter-dirty",
	} {
		assert.Contains(t, out.String(), line)
	}
	require.Equal(t, 1, Main(append([]string{"browse", "77"}, flags...), &out, &progress))
	assert.Contains(t, progress.String(), "device 77: no answer to Who-Is")
}

func TestWhatIsNoLongerDesiredIsRelinquished(t *testing.T) {
	s := newUnit(t)
	o := openUnit(t, unitDevice(map[string]string{"address": s.Addr().String(), "priority": "8"}), s)
	require.NoError(t, o.Write(t.Context(), "setpoint", "25"))
	require.NoError(t, o.Relinquish(t.Context(), "setpoint"))
	assert.Equal(t, float32(21), s.Value(unitSetpoint))
}
