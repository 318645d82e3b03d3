// SPDX-License-Identifier: Apache-2.0

package mqtt

import (
	"bytes"
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/edgebus/edgebus/broker/client"
	"github.com/edgebus/edgebus/mappers"
	"github.com/edgebus/edgebus/topics/sparkplug"
)

// simulatedEdgeNode is an edge node of Sparkplug B with a device, which speaks with aliases after its birth.
type simulatedEdgeNode struct {
	t    *testing.T
	mqtt *client.Client

	mu       sync.Mutex
	seq      int
	session  int
	mute     bool
	aliases  bool
	commands []string
}

func newEdgeNodeSimulator(t *testing.T, server string) *simulatedEdgeNode {
	n := &simulatedEdgeNode{t: t, aliases: true}
	n.mqtt = newClient(t, server, "edge-node", n.message, "spBv1.0/Plant A/NCMD/edge", "spBv1.0/Plant A/DCMD/edge/Tank 1")
	return n
}

func metric(name string, alias uint64, typ sparkplug.DataType, value string) sparkplug.Metric {
	m, _ := sparkplug.Value(typ, value)
	m.Name, m.Alias, m.HasAlias = name, alias, alias > 0
	return m
}

func (n *simulatedEdgeNode) publish(kind, device string, numbered bool, metrics ...sparkplug.Metric) {
	p := sparkplug.Payload{Timestamp: 1, Seq: -1, Metrics: metrics}
	if numbered {
		p.Seq = n.seq
		n.seq = (n.seq + 1) & 0xff
	}
	topic := "spBv1.0/Plant A/" + kind + "/edge"
	if device != "" {
		topic += "/" + device
	}
	n.mqtt.PublishAsync(client.Message{Topic: topic, Payload: p.Append(nil)}, nil)
}

// bear publishes the births. mu is held.
func (n *simulatedEdgeNode) bear() {
	n.seq = 0
	n.publish("NBIRTH", "", true, metric("bdSeq", 0, sparkplug.TypeUInt64, fmt.Sprint(n.session)), metric("Node Control/Rebirth", 0, sparkplug.TypeBoolean, "false"))
	n.publish("DBIRTH", "Tank 1", true, metric("Level", 1, sparkplug.TypeDouble, "4.5"), metric("Pump/On", 2, sparkplug.TypeBoolean, "false"), metric("Total", 3, sparkplug.TypeUInt64, "12345678901"), metric("Limit", 4, sparkplug.TypeInt16, "-7"))
}

func (n *simulatedEdgeNode) do(change func()) {
	n.mu.Lock()
	defer n.mu.Unlock()
	change()
}

// data is a metric by its alias alone.
func data(alias uint64, typ sparkplug.DataType, value string) sparkplug.Metric {
	m := metric("", alias, typ, value)
	m.Type = sparkplug.TypeUnspecified
	return m
}

func (n *simulatedEdgeNode) message(m client.Message) {
	n.mu.Lock()
	defer n.mu.Unlock()
	p, err := sparkplug.Parse(m.Payload)
	if err != nil || len(p.Metrics) != 1 || n.mute {
		return
	}
	one := p.Metrics[0]
	text, _ := one.Text(sparkplug.TypeUnspecified)
	n.commands = append(n.commands, fmt.Sprintf("%s %s#%d=%s", strings.Split(m.Topic, "/")[2], one.Name, one.Alias, text))
	if one.Name == "Node Control/Rebirth" {
		n.bear()
		return
	}
	one.Type = sparkplug.TypeUnspecified
	n.publish("DDATA", "Tank 1", true, one)
}

func (n *simulatedEdgeNode) took() []string {
	n.mu.Lock()
	defer n.mu.Unlock()
	return append([]string(nil), n.commands...)
}

func tankDevice() mappers.Device {
	property := func(name string, typ mappers.Type, metric string) mappers.Property {
		return mappers.Property{Name: name, Type: typ, Writable: metric != "Level", Visited: true, Config: map[string]string{"metric": metric}}
	}
	return mappers.Device{
		Node: "n1", Name: "tank", Config: map[string]string{"sparkplug": "Plant A/edge/Tank 1"},
		Properties: []mappers.Property{
			property("level", mappers.Double, "Level"), property("pump", mappers.Boolean, "Pump/On"), property("total", mappers.Int, "Total"), property("limit", mappers.Int, "Limit"),
		},
	}
}

// openTank opens the device and pushes what it says into the channel.
func openTank(t *testing.T, driver *Driver) (s *mappers.Opened, values chan string, ended chan error) {
	s = openDevice(t, pingingDriver{driver}, tankDevice())
	values, ended = make(chan string, 1000), make(chan error, 1)
	ctx, cancel := context.WithCancel(t.Context())
	t.Cleanup(cancel)
	go func() { ended <- s.Session.(mappers.Pusher).Push(ctx, func(p, v string) { values <- p + " " + v }) }()
	return s, values, ended
}

func awaitText(t *testing.T, texts <-chan string, want string) {
	t.Helper()
	for timeout := time.After(waitTime); ; {
		select {
		case got := <-texts:
			if got == want {
				return
			}
		case <-timeout:
			require.FailNow(t, "not seen in time", want)
		}
	}
}

func TestASparkplugDeviceIsReadAndSet(t *testing.T) {
	server := newBroker(t)
	n := newEdgeNodeSimulator(t, server) // its births were before the mapper came
	s, values, _ := openTank(t, newDriver(server, waitTime))
	require.Equal(t, []string{"NCMD Node Control/Rebirth#0=true"}, n.took())
	for _, want := range []string{"level 4.5", "pump false", "total 12345678901", "limit -7"} {
		awaitText(t, values, want)
	}
	n.do(func() { n.publish("DDATA", "Tank 1", true, data(1, sparkplug.TypeDouble, "4.6")) })
	awaitText(t, values, "level 4.6")

	require.NoError(t, s.Write(t.Context(), "pump", "true"))
	require.NoError(t, s.Write(t.Context(), "limit", "-300"))
	require.Equal(t, []string{"DCMD #2=true", "DCMD #4=-300"}, n.took()[1:], "by their aliases")
	awaitText(t, values, "limit -300")
	require.ErrorContains(t, s.Write(t.Context(), "limit", "40000"), "no integer of 16 bits")

	old := data(1, sparkplug.TypeDouble, "1")
	old.Historical = true
	none := sparkplug.Metric{Alias: 3, HasAlias: true, Null: true}
	n.do(func() { n.publish("DDATA", "Tank 1", true, old, none, data(1, sparkplug.TypeDouble, "5")) })
	awaitText(t, values, "level 5")
	got, err := s.Read(t.Context(), []string{"level", "total"})
	require.NoError(t, err)
	require.Equal(t, "5", got["level"].Value)
	require.EqualError(t, got["total"].Err, "Unknown: the metric Total of spBv1.0/Plant A/DDATA/edge/Tank 1 has no value")
}

func TestASparkplugDeviceIsOfflineWithItsEdgeNode(t *testing.T) {
	server := newBroker(t)
	n := newEdgeNodeSimulator(t, server)
	driver := newDriver(server, waitTime)
	s, _, ended := openTank(t, driver)
	n.do(func() {
		n.session = 2
		n.bear()
		n.publish("NDEATH", "", false, metric("bdSeq", 0, sparkplug.TypeUInt64, "1"))
	})
	require.NoError(t, s.Write(t.Context(), "pump", "true"), "the will of an earlier session says nothing")
	n.do(func() { n.publish("DDEATH", "Tank 1", true) })
	require.EqualError(t, <-ended, "mqtt: the device is offline: the last message was spBv1.0/Plant A/DDEATH/edge/Tank 1")
	n.do(n.bear)
	require.Eventually(t, func() bool { return s.Session.(mappers.Pinger).Ping(t.Context()) == nil }, waitTime, time.Millisecond)
	n.do(func() { n.publish("NDEATH", "", false, metric("bdSeq", 0, sparkplug.TypeUInt64, "2")) })
	require.Eventually(t, func() bool {
		err := s.Session.(mappers.Pinger).Ping(t.Context())
		return err != nil && strings.Contains(err.Error(), "the last message was spBv1.0/Plant A/NDEATH/edge")
	}, waitTime, time.Millisecond)
}

// A lost message, and an alias of which nobody knows the name, are reasons to ask for the births again.
func TestALostMessageOfAnEdgeNodeIsMadeUpFor(t *testing.T) {
	server := newBroker(t)
	n := newEdgeNodeSimulator(t, server)
	_, values, _ := openTank(t, newDriver(server, waitTime))
	awaitText(t, values, "level 4.5")
	rebirths := func() (count int) {
		for _, c := range n.took() {
			if strings.HasPrefix(c, "NCMD") {
				count++
			}
		}
		return count
	}
	require.Equal(t, 1, rebirths())
	n.do(func() { n.seq++; n.publish("DDATA", "Tank 1", true, data(1, sparkplug.TypeDouble, "6")) })
	awaitText(t, values, "level 6")
	require.Eventually(t, func() bool { // what is owed is asked for with the next message, once the pause is over
		n.do(func() { n.publish("DDATA", "Tank 1", true, data(1, sparkplug.TypeDouble, "6")) })
		return rebirths() == 2
	}, waitTime, 10*time.Millisecond)
	awaitText(t, values, "level 4.5")
	n.do(func() { n.publish("DDATA", "Tank 1", true, data(99, sparkplug.TypeDouble, "6")) })
	require.Eventually(t, func() bool {
		n.do(func() { n.publish("DDATA", "Tank 1", true) })
		return rebirths() == 3
	}, waitTime, 10*time.Millisecond)
}

func TestAnEdgeNodeWithoutABirthIsNotOnline(t *testing.T) {
	server := newBroker(t)
	n := newEdgeNodeSimulator(t, server)
	n.do(func() { n.mute = true })
	driver := newDriver(server, 50*time.Millisecond)
	_, err := pingingDriver{driver}.Open(t.Context(), tankDevice())
	require.EqualError(t, err, "mqtt: no spBv1.0/Plant A/DBIRTH/edge/Tank 1 within 50ms after a request to be born again")
	// What a broker has kept of it is no sign of life.
	require.NoError(t, n.mqtt.Publish(t.Context(), client.Message{Topic: "spBv1.0/Plant A/DBIRTH/edge/Tank 1", Payload: sparkplug.Payload{Seq: 1}.Append(nil), QoS: 1, Retain: true}))
	_, err = pingingDriver{driver}.Open(t.Context(), tankDevice())
	require.ErrorContains(t, err, "within 50ms")
	// An edge node that was born without the device doesn't have it.
	opened := make(chan error, 1)
	go func() {
		_, err := pingingDriver{newDriver(server, waitTime)}.Open(t.Context(), tankDevice())
		opened <- err
	}()
	require.Eventually(t, func() bool {
		n.do(func() { n.seq = 0; n.publish("NBIRTH", "", true); n.publish("DDEATH", "Tank 1", true) })
		select {
		case err = <-opened:
			return true
		default:
			return false
		}
	}, waitTime, 10*time.Millisecond)
	require.ErrorContains(t, err, "the last message was spBv1.0/Plant A/DDEATH/edge/Tank 1")
}

// A dead edge node is forgotten with the last session of its devices. Nothing that is read of the next one says that they are there.
func TestASparkplugDeviceIsNotReadWithoutABirth(t *testing.T) {
	server := newBroker(t)
	n := newEdgeNodeSimulator(t, server)
	n.do(func() { n.mute = true })
	driver := newDriver(server, 50*time.Millisecond)
	s := openDevice(t, driver, tankDevice())
	_, err := s.Read(t.Context(), []string{"level"})
	require.EqualError(t, err, "mqtt: no spBv1.0/Plant A/DBIRTH/edge/Tank 1 within 50ms after a request to be born again")
	n.do(func() { n.mute = false; n.bear() })
	require.Eventually(t, func() bool {
		got, err := s.Read(t.Context(), []string{"level"})
		return err == nil && got["level"].Value == "4.5"
	}, waitTime, time.Millisecond)
}

// Births of devices that nobody has a session for take no memory, however many there are, and are no reason to ask for others.
func TestBirthsOfOtherDevicesAreNotKept(t *testing.T) {
	n := newEdgeNode(sparkplugSource{group: "g", node: "n"})
	p := sparkplug.Payload{Seq: 0, Metrics: []sparkplug.Metric{metric("x", 1, sparkplug.TypeDouble, "1")}}
	require.Empty(t, n.take(sparkplugMessage{kind: "NBIRTH", payload: p}, true))
	for i := range 1000 {
		p.Seq = (i + 1) & 0xff
		require.Empty(t, n.take(sparkplugMessage{kind: []string{"DBIRTH", "DDATA", "DDEATH"}[i%3], device: fmt.Sprint(i), payload: p}, false))
	}
	require.Len(t, n.births, 1)
	require.Empty(t, n.deaths)
}

func TestSparkplugSettingsThatCanNotBe(t *testing.T) {
	for _, tt := range []struct {
		change func(mappers.Device) mappers.Device
		want   string
	}{
		{func(d mappers.Device) mappers.Device { return withConfig(d, "", "sparkplug", "Plant A") }, `spec.protocol.config.sparkplug: "Plant A" is neither group/edge node nor`},
		{func(d mappers.Device) mappers.Device { return withConfig(d, "", "sparkplug", "Plant A/+/x") }, "spec.protocol.config.sparkplug: "},
		{func(d mappers.Device) mappers.Device { return withConfig(d, "", "sparkplug", "") }, "spec.protocol.config.sparkplug: is required, for level is a metric"},
		{func(d mappers.Device) mappers.Device { return withConfig(d, "level", "state", "x") }, "visitors[level].config.metric: can't be together with state"},
		{func(d mappers.Device) mappers.Device { return withConfig(d, "", "getEvery", "1m") }, "spec.protocol.config.get: is required with getEvery"},
		{func(d mappers.Device) mappers.Device {
			return withConfig(withConfig(d, "", "get", "x"), "", "getEvery", "5")
		}, `spec.protocol.config.getEvery: "5" is no duration of a second or more`},
	} {
		_, err := parseDevice(tt.change(tankDevice()))
		require.ErrorContains(t, err, tt.want)
	}
}

// Victron's gateway falls silent unless it is asked every minute.
func TestADeviceIsAskedAgainAndAgain(t *testing.T) {
	server := newBroker(t)
	l := newLamp(t, server, "lamp")
	s := openDevice(t, newDriver(server, waitTime), withConfig(lampDevice("lamp"), "", "getEvery", "1s"))
	go func() { _ = s.Session.(mappers.Pusher).Push(t.Context(), func(string, string) {}) }()
	asked := 0
	require.Eventually(t, func() bool { asked += len(l.commands()); return asked >= 2 }, waitTime, 10*time.Millisecond)
}

// Who answers in minutes is not waited for: the SDK reads until confirmWithin has passed.
func TestNobodyWaitsForADeviceThatAnswersInMinutes(t *testing.T) {
	server := newBroker(t)
	l := newLamp(t, server, "lamp")
	d := lampDevice("lamp")
	for i := range d.Properties {
		d.Properties[i].ConfirmWithin = 15 * time.Minute
	}
	s := openDevice(t, pingingDriver{newDriver(server, waitTime)}, d)
	l.silence(true)
	require.ErrorIs(t, s.Write(t.Context(), "brightness", "40"), mappers.ErrUnconfirmed)
	require.Eventually(t, func() bool { return strings.Contains(strings.Join(l.commands(), " "), `set {"brightness":40}`) }, waitTime, time.Millisecond)
}

// What browse writes are devices that can be applied: of the edge node what its birth has besides Sparkplug's own, and of its tank.
func TestBrowseMakesDevicesOfBirths(t *testing.T) {
	server := newBroker(t)
	newEdgeNodeSimulator(t, server)
	var out, failed bytes.Buffer
	require.Zero(t, Main([]string{"browse", "--server", server, "--sparkplug", "Plant A/edge", "--node", "plant", "--wait", "20s"}, &out, &failed), failed.String())
	for _, want := range []string{"name: edge-tank-1\n", "nodeName: plant", "sparkplug: Plant A/edge/Tank 1", "metric: Pump/On", "type: boolean", "type: double", "type: int"} {
		require.Contains(t, out.String(), want)
	}
	require.NotContains(t, out.String(), "bdSeq")
	require.NotContains(t, out.String(), "Node Control")
	require.Equal(t, 1, Main([]string{"browse", "--server", server, "--sparkplug", "Plant A/other", "--wait", "50ms"}, &out, &failed))
	require.Contains(t, failed.String(), "no birth of Plant A/other within 50ms")
	require.Equal(t, 1, Main([]string{"browse", "--server", server, "--sparkplug", "edge"}, &out, &failed))
	require.Contains(t, failed.String(), "must be group/edge node")
}
