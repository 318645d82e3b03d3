// SPDX-License-Identifier: Apache-2.0

package mqtt

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"

	"github.com/edgebus/edgebus/broker"
	"github.com/edgebus/edgebus/broker/client"
	"github.com/edgebus/edgebus/edge/discovery/handler"
	"github.com/edgebus/edgebus/test/handlertest"
	"github.com/edgebus/edgebus/topics"
	"github.com/edgebus/edgebus/topics/sparkplug"
)

// testBroker is a node's broker.
type testBroker struct {
	t       *testing.T
	address string
	stop    func()
	mqtt    *client.Client
}

func newTestBroker(t *testing.T) *testBroker {
	n := &testBroker{t: t, address: "127.0.0.1:0"}
	n.start()
	t.Cleanup(func() { n.stop() })
	c, err := client.New(client.Options{Servers: []string{"mqtt://" + n.address}, ClientID: "device", CleanStart: true, Log: zerolog.Nop(), Backoff: client.Backoff{Min: time.Millisecond, Max: time.Millisecond}})
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = c.Run(ctx)
	}()
	t.Cleanup(func() {
		cancel()
		<-done
	})
	n.mqtt = c
	return n
}

func (n *testBroker) start() {
	b, err := broker.New(broker.Options{
		Node: "n1", Listeners: []broker.Listener{{Address: n.address}}, Auth: broker.Auth{Anonymous: []topics.Role{topics.RoleOperator}}, Log: zerolog.Nop(),
	})
	require.NoError(n.t, err)
	n.address = b.Addrs()[0].String()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = b.Serve(ctx)
	}()
	n.stop = func() {
		cancel()
		closing, cancel := context.WithTimeout(context.Background(), handlertest.Timeout)
		defer cancel()
		_ = b.Close(closing)
		<-done
	}
}

func (n *testBroker) retain(topic, payload string) {
	ctx, cancel := context.WithTimeout(context.Background(), handlertest.Timeout)
	defer cancel()
	m := client.Message{Topic: topic, Payload: []byte(payload), QoS: 1, Retain: true}
	err := n.mqtt.Publish(ctx, m)
	if errors.Is(err, client.ErrConnectionLost) { // the client has not yet noticed that the broker was restarted
		err = n.mqtt.Publish(ctx, m)
	}
	require.NoError(n.t, err)
}

// discover runs the handler; what it finds comes through the channel.
func (n *testBroker) discover(details string) <-chan []handler.Device {
	return handlertest.Discover(n.t, n.listener(), details, nil)
}

func (n *testBroker) listener() announcementListener {
	l := Program.New(handler.Env{Log: zerolog.Nop(), Broker: []string{"mqtt://" + n.address}}).(announcementListener)
	l.settle = 20 * time.Millisecond
	return l
}

// resume runs the handler after devices that it has found before.
func (n *testBroker) resume(details string, known []handler.Device) <-chan []handler.Device {
	return handlertest.Discover(n.t, resumedHandler{n.listener(), known}, details, nil)
}

// resumedHandler is a handler that is told what it has found before.
type resumedHandler struct {
	announcementListener
	known []handler.Device
}

func (a resumedHandler) Discover(ctx context.Context, details string, properties map[string][]byte, found func([]handler.Device)) error {
	return handler.CallResumer(ctx, a.announcementListener, details, properties, a.known, found)
}

const bridgeDevices = `[
 {"ieee_address":"0x00124b0021b7788d","type":"Coordinator","friendly_name":"Coordinator","supported":true,"disabled":false,"definition":null,"interview_completed":true},
 {"ieee_address":"0xf0d1b800001574df","type":"Router","friendly_name":"hall/lamp","power_source":"Mains (single phase)","software_build_id":"1.2","interview_completed":true,"disabled":false,
  "definition":{"model":"LED1545G12","vendor":"IKEA","description":"TRADFRI bulb","exposes":[
   {"type":"light","features":[{"type":"binary","name":"state","property":"state","access":7,"value_on":"ON","value_off":"OFF"},{"type":"numeric","name":"brightness","property":"brightness","access":7}]},
   {"type":"numeric","name":"linkquality","property":"linkquality","access":1}]}},
 {"ieee_address":"0x00158d0001dc126a","type":"EndDevice","friendly_name":"window","power_source":"Battery","interview_completed":true,"definition":{"model":"MCCGQ11LM","vendor":"Aqara","exposes":[{"type":"binary","property":"contact"}]}},
 {"ieee_address":"0x1","type":"EndDevice","friendly_name":"new","interview_completed":false,"definition":null},
 {"ieee_address":"0x2","type":"EndDevice","friendly_name":"unknown","interview_completed":true,"definition":null}]`

func TestZigbee2MQTT(t *testing.T) {
	n := newTestBroker(t)
	n.retain("zigbee2mqtt/bridge/devices", bridgeDevices)
	found := n.discover("format: zigbee2mqtt")
	devices := handlertest.AwaitIDs(t, found, "0x00158d0001dc126a", "0x2", "0xf0d1b800001574df")
	for name, value := range devices[2].Properties {
		if value == "" {
			delete(devices[2].Properties, name) // common to all formats
		}
	}
	require.Equal(t, map[string]string{
		"MQTT_FORMAT": "zigbee2mqtt", "MQTT_DISCOVERY_TOPIC": "zigbee2mqtt/bridge/devices", "MQTT_ID": "0xf0d1b800001574df", "MQTT_NAME": "hall/lamp", "MQTT_TYPE": "Router", "MQTT_POWER_SOURCE": "Mains (single phase)",
		"MQTT_VERSION": "1.2", "MQTT_MODEL": "LED1545G12", "MQTT_MANUFACTURER": "IKEA", "MQTT_DESCRIPTION": "TRADFRI bulb", "MQTT_EXPOSES": "brightness,light,linkquality,state",
		"MQTT_STATE_TOPIC": "zigbee2mqtt/hall/lamp", "MQTT_COMMAND_TOPIC": "zigbee2mqtt/hall/lamp/set", "MQTT_GET_TOPIC": "zigbee2mqtt/hall/lamp/get",
		"MQTT_AVAILABILITY_TOPIC": "zigbee2mqtt/hall/lamp/availability", "MQTT_AVAILABILITY_PATH": "state", "MQTT_PAYLOAD_AVAILABLE": "online", "MQTT_AVAILABILITY_MODE": "all",
		"MQTT_AVAILABILITY": `[{"topic":"zigbee2mqtt/bridge/state","path":"state","available":"online"},{"topic":"zigbee2mqtt/hall/lamp/availability","path":"state","available":"online"}]`,
	}, devices[2].Properties)

	lights := n.discover("format: zigbee2mqtt\nfilter: {MQTT_EXPOSES: '*light*', MQTT_STATE_TOPIC: '*/lamp'}")
	handlertest.AwaitIDs(t, lights, "0xf0d1b800001574df")
	n.retain("zigbee2mqtt/bridge/devices", `[{"ieee_address":`) // malformed: what was known stays
	n.retain("zigbee2mqtt/bridge/devices", `[]`)
	handlertest.AwaitIDs(t, lights)
	handlertest.AwaitIDs(t, found)
}

func TestHomeAssistant(t *testing.T) {
	n := newTestBroker(t)
	n.retain("homeassistant/switch/plug7/relay/config", `{"~":"plugs/7","name":"Plug","uniq_id":"plug7_relay","stat_t":"~/state","cmd_t":"~/set","pl_on":"on","pl_off":"off",
		"val_tpl":"{{ value_json.relays[0].ison }}","avty":[{"t":"bridge/state"},{"t":"~/lwt","pl_avail":"here","val_tpl":"{{ value_json['state'] }}"}],"avty_mode":"all",
		"dev":{"ids":["plug7"],"name":"Plug 7","mf":"ACME","mdl":"P7","sw":"1.0"},"ret":true,"qos":1}`)
	n.retain("homeassistant/light/lamp/config", `{"name":null,"schema":"json","state_topic":"lamp","command_topic":"lamp/set","availability_topic":"lamp/online"}`)
	n.retain("homeassistant/device/thermo/config", `{"dev":{"ids":"t1","name":"Thermo"},"o":{"name":"x"},"avty_t":"t1/lwt","cmps":{
		"temp":{"p":"sensor","uniq_id":"t1_temp","stat_t":"t1","val_tpl":"{{ value_json.temperature | round(1) }}","unit_of_meas":"°C"},
		"hum":{"p":"sensor","stat_t":"t1","val_tpl":"{{ (value_json.h * 2) }}"},"gone":{"p":"sensor"}}}`)
	n.retain("homeassistant/switch/n1___lamp/power/config", `{"unique_id":"ours","state_topic":"a","command_topic":"b","origin":{"name":"Edgebus n1"}}`) // what views announce
	n.retain("homeassistant/switch/n2___lamp/power/config", `{"uniq_id":"others","stat_t":"a","cmd_t":"b","o":{"name":"Edgebus n2"}}`)
	found := n.discover("{format: homeassistant}")
	devices := handlertest.AwaitIDs(t, found, "light/lamp", "plug7_relay", "t1_temp", "thermo/hum")
	properties := devices[1].Properties
	for name, want := range map[string]string{
		"MQTT_COMPONENT": "switch", "MQTT_NAME": "Plug", "MQTT_UNIQUE_ID": "plug7_relay", "MQTT_STATE_TOPIC": "plugs/7/state", "MQTT_COMMAND_TOPIC": "plugs/7/set",
		"MQTT_PAYLOAD_ON": "on", "MQTT_PAYLOAD_OFF": "off", "MQTT_STATE_PATH": "relays[0].ison", "MQTT_COMMAND_PAYLOAD": "{value}", "MQTT_RETAIN": "true", "MQTT_QOS": "1",
		"MQTT_AVAILABILITY_TOPIC": "plugs/7/lwt", "MQTT_AVAILABILITY_PATH": "['state']", "MQTT_PAYLOAD_AVAILABLE": "here",
		"MQTT_DEVICE_NAME": "Plug 7", "MQTT_DEVICE_MANUFACTURER": "ACME", "MQTT_DEVICE_MODEL": "P7", "MQTT_DEVICE_SW_VERSION": "1.0", "MQTT_DEVICE_IDENTIFIERS": "plug7",
	} {
		require.Equal(t, want, properties[name], name)
	}
	require.Equal(t, "state", devices[0].Properties["MQTT_STATE_PATH"])
	require.Equal(t, `{"state":{json}}`, devices[0].Properties["MQTT_COMMAND_PAYLOAD"])
	require.Equal(t, "online", devices[0].Properties["MQTT_PAYLOAD_AVAILABLE"])
	require.Equal(t, "temperature", devices[2].Properties["MQTT_STATE_PATH"])
	require.Equal(t, "t1/lwt", devices[2].Properties["MQTT_AVAILABILITY_TOPIC"])
	require.Empty(t, devices[3].Properties["MQTT_STATE_TOPIC"]+devices[3].Properties["MQTT_STATE_PATH"])
	require.Equal(t, "value_template: {{ (value_json.h * 2) }}", devices[3].Properties["MQTT_LEFT_OUT"])

	n.retain("homeassistant/switch/plug7/relay/config", "")
	n.retain("homeassistant/light/lamp/config", "[1")
	n.retain("homeassistant/light/lamp2/config", "null")
	handlertest.AwaitIDs(t, found, "light/lamp", "t1_temp", "thermo/hum")
}

func TestTasmota(t *testing.T) {
	n := newTestBroker(t)
	n.retain("tasmota/discovery/A4CF12345678/config", `{"ip":"10.0.0.9","dn":"Plug","fn":["Plug"],"hn":"plug-1","mac":"A4CF12345678","md":"Gosund","ofln":"Offline","onln":"Online",
		"state":["OFF","ON","TOGGLE","HOLD"],"sw":"12.1","t":"plug","ft":"%prefix%/%topic%/","tp":["cmnd","stat","tele"],"rl":[1,2,0,0]}`)
	n.retain("tasmota/discovery/bad/config", `{"mac":"x"}`)
	found := n.discover("format: tasmota")
	p := handlertest.AwaitIDs(t, found, "A4CF12345678")[0].Properties
	require.Equal(t, "cmnd/plug stat/plug tele/plug/LWT Online 2 ON", strings.Join([]string{p["MQTT_COMMAND_TOPIC"], p["MQTT_STATE_TOPIC"], p["MQTT_AVAILABILITY_TOPIC"], p["MQTT_PAYLOAD_AVAILABLE"], p["MQTT_RELAYS"], p["MQTT_PAYLOAD_ON"]}, " "))
	n.retain("tasmota/discovery/A4CF12345678/config", "")
	handlertest.AwaitIDs(t, found)
}

func TestShelly(t *testing.T) {
	n := newTestBroker(t)
	n.retain("shellies/shelly1-AABBCC/online", "true")
	n.retain("shellyplus1-a8032ab/online", "true")
	n.retain("printer/online", "true")
	n.retain("shellies/announce", `{"id":"shelly1-AABBCC","model":"SHSW-1","mac":"AABBCC","ip":"10.0.0.7","fw_ver":"1.9"}`)
	found := n.discover("format: shelly")
	devices := handlertest.AwaitIDs(t, found, "shelly1-AABBCC", "shellyplus1-a8032ab")
	require.Equal(t, "SHSW-1 1 10.0.0.7", devices[0].Properties["MQTT_MODEL"]+" "+devices[0].Properties["MQTT_GENERATION"]+" "+devices[0].Properties["MQTT_IP"])
	require.Equal(t, "shellies/shelly1-AABBCC/online true", devices[0].Properties["MQTT_AVAILABILITY_TOPIC"]+" "+devices[0].Properties["MQTT_PAYLOAD_AVAILABLE"])
	require.Equal(t, "shellyplus1 2 shellyplus1-a8032ab/status", devices[1].Properties["MQTT_MODEL"]+" "+devices[1].Properties["MQTT_GENERATION"]+" "+devices[1].Properties["MQTT_STATE_TOPIC"])
	n.retain("shellyplus1-a8032ab/online", "false")
	handlertest.AwaitIDs(t, found, "shelly1-AABBCC")
}

// birthPayload makes one of Sparkplug B, of metrics with texts and, of names that begin with bdSeq, numbers.
func birthPayload(metrics ...string) []byte {
	p := sparkplug.Payload{Timestamp: 1700000000000, Seq: 0}
	for _, m := range metrics {
		name, value, _ := strings.Cut(m, "=")
		kind := sparkplug.TypeString
		if name == "bdSeq" {
			kind = sparkplug.TypeUInt64
		}
		one, _ := sparkplug.Value(kind, value)
		one.Name = name
		p.Metrics = append(p.Metrics, one)
	}
	return p.Append(nil)
}

func TestSparkplug(t *testing.T) {
	n := newTestBroker(t)
	found := n.discover("format: sparkplug")
	handlertest.AwaitIDs(t, found) // it listens
	n.retain("spBv1.0/plant/NBIRTH/press", string(birthPayload("bdSeq=1")))
	n.retain("spBv1.0/plant/DBIRTH/press/motor", string(birthPayload("speed=7", "Properties/Hardware Make=ACME")))
	n.retain("spBv1.0/plant/DBIRTH/press/torn", string(birthPayload("speed=7"))[:12])
	p := handlertest.AwaitIDs(t, found, "plant/press", "plant/press/motor")[1].Properties
	require.Equal(t, "Properties/Hardware Make,speed", p["MQTT_METRICS"])
	require.Equal(t, "ACME", p["MQTT_HARDWARE_MAKE"])
	require.Equal(t, "spBv1.0/plant/DCMD/press/motor", p["MQTT_COMMAND_TOPIC"])
	n.retain("spBv1.0/plant/DDEATH/press/motor", "")
	handlertest.AwaitIDs(t, found, "plant/press")
	n.retain("spBv1.0/plant/DBIRTH/press/motor", string(birthPayload("speed=8")))
	handlertest.AwaitIDs(t, found, "plant/press", "plant/press/motor")
	n.retain("spBv1.0/plant/NDEATH/press", "")
	handlertest.AwaitIDs(t, found)
}

// Births are not retained: what was born is known after an edit of the Configuration, a restart, and a connection that was lost.
func TestBirthsAreKnownAfterwards(t *testing.T) {
	n := newTestBroker(t)
	publish := func(topic, payload string) {
		ctx, cancel := context.WithTimeout(context.Background(), handlertest.Timeout)
		defer cancel()
		for n.mqtt.Publish(ctx, client.Message{Topic: topic, Payload: []byte(payload), QoS: 1}) != nil {
			require.NoError(t, ctx.Err())
		}
	}
	found := n.discover("format: sparkplug")
	handlertest.AwaitIDs(t, found)
	publish("spBv1.0/plant/NBIRTH/press", string(birthPayload("bdSeq=1")))
	publish("spBv1.0/plant/DBIRTH/press/motor", string(birthPayload("speed=7")))
	handlertest.AwaitIDs(t, found, "plant/press", "plant/press/motor")
	n.stop()
	n.start()
	handlertest.AwaitIDs(t, found, "plant/press", "plant/press/motor") // it is connected again
	publish("spBv1.0/plant/NBIRTH/oven", string(birthPayload("bdSeq=1")))
	known := handlertest.AwaitIDs(t, found, "plant/oven", "plant/press", "plant/press/motor")

	again := n.resume("format: sparkplug\nfilter: {MQTT_EDGE_NODE: press}", known)
	handlertest.AwaitIDs(t, again, "plant/press", "plant/press/motor")
	publish("spBv1.0/plant/NDEATH/press", "")
	handlertest.AwaitIDs(t, again)
	other := n.resume("format: sparkplug\ntopic: other", known)
	handlertest.AwaitIDs(t, other) // what was found elsewhere is none of its
}

func TestAShellyIsKnownAfterwards(t *testing.T) {
	n := newTestBroker(t)
	n.retain("shellyplus1-a8032ab12345/online", "true")
	n.retain("shellies/shelly1-ABC/online", "true")
	known := handlertest.AwaitIDs(t, n.discover("format: shelly"), "shelly1-ABC", "shellyplus1-a8032ab12345")
	n.retain("shellyplus1-a8032ab12345/online", "")
	n.retain("shellies/shelly1-ABC/online", "")
	again := n.resume("format: shelly", known)
	handlertest.AwaitIDs(t, again, "shelly1-ABC", "shellyplus1-a8032ab12345")
	n.retain("shellyplus1-a8032ab12345/online", "false")
	handlertest.AwaitIDs(t, again, "shelly1-ABC")
}

// Of two announcements of one ID it is always the same one that comes first, whichever was last; edgediscovery names them.
func TestTwoAnnouncementsOfOneID(t *testing.T) {
	n := newTestBroker(t)
	n.retain("homeassistant/switch/p1/config", `{"name":"Relay","unique_id":"plug1","state_topic":"plug1/relay","command_topic":"plug1/set"}`)
	n.retain("homeassistant/sensor/p1/config", `{"name":"Power","unique_id":"plug1","state_topic":"plug1/power"}`)
	found := n.discover("format: homeassistant")
	both := handlertest.AwaitIDs(t, found, "plug1", "plug1")
	require.Equal(t, []string{"plug1/power", "plug1/relay"}, []string{both[0].Properties["MQTT_STATE_TOPIC"], both[1].Properties["MQTT_STATE_TOPIC"]})
	n.retain("homeassistant/sensor/p1/config", "")
	require.Equal(t, "plug1/relay", handlertest.AwaitIDs(t, found, "plug1")[0].Properties["MQTT_STATE_TOPIC"])

	n.retain("homeassistant/switch/p1/config", "")
	handlertest.AwaitIDs(t, found)
	for i := range 12 {
		n.retain("homeassistant/device/dd/config", fmt.Sprintf(`{"dev":{"ids":["dd"],"name":"E%d"},"cmps":{"relay":{"p":"switch","uniq_id":"same1","stat_t":"dd/relay"},"power":{"p":"sensor","uniq_id":"same1","stat_t":"dd/power"}}}`, i))
		both := handlertest.AwaitIDs(t, found, "same1", "same1")
		require.Equal(t, "dd/power", both[0].Properties["MQTT_STATE_TOPIC"])
	}
}

func TestARestartedBrokerIsAskedAgain(t *testing.T) {
	n := newTestBroker(t)
	n.retain("zigbee2mqtt/bridge/devices", bridgeDevices)
	found := n.discover("format: zigbee2mqtt")
	handlertest.AwaitIDs(t, found, "0x00158d0001dc126a", "0x2", "0xf0d1b800001574df")
	n.stop()
	n.start()
	n.retain("zigbee2mqtt/bridge/devices", `[{"ieee_address":"0x7","type":"Router","friendly_name":"other"}]`)
	handlertest.AwaitIDs(t, found, "0x7")
}

func TestDetailsThatCanNotBe(t *testing.T) {
	h := Program.New(handler.Env{Broker: []string{"mqtt://127.0.0.1:1"}, Log: zerolog.Nop()})
	for text, want := range map[string]string{
		"":                                  `format: "" is none of homeassistant, shelly, sparkplug, tasmota, zigbee2mqtt`,
		"format: zwave":                     `format: "zwave" is none of`,
		"format: shelly\nbase: x":           "there is no field base: it is one of ",
		"format: shelly\ntopic: a/+":        `topic: "a/+": must be without wildcards`,
		"format: shelly\ntopic: v1/nodes/x": "not below $ and v1/nodes",
		"format: shelly\nfilter: {A: '[x'}": `filter.A: "[x" is no glob`,
	} {
		err := h.Discover(t.Context(), text, nil, nil)
		require.ErrorContains(t, err, want)
		require.True(t, handler.IsInvalidArgument(err), text)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	require.NoError(t, l.Close())
	h = Program.New(handler.Env{Broker: []string{"mqtt://" + l.Addr().String()}, Log: zerolog.Nop()})
	err = h.Discover(t.Context(), "format: shelly", nil, nil)
	require.ErrorContains(t, err, "gave up after 5 attempts")
	require.False(t, handler.IsInvalidArgument(err))
	require.ErrorContains(t, announcementListener{}.Discover(t.Context(), "format: shelly", nil, nil), "no address")
}

func TestAnnouncementsAreBounded(t *testing.T) {
	f := formats["homeassistant"]("")
	message := func(topic string, payload []byte) error {
		_, err := f.message(topic, payload)
		return err
	}
	for i := range 10000 {
		require.NoError(t, message(fmt.Sprintf("homeassistant/switch/s%d/config", i), []byte(`{"name":"`+strings.Repeat("x", 1000)+`"}`)))
	}
	require.ErrorContains(t, message("homeassistant/switch/more/config", []byte(`{}`)), "more than 10000 devices")
	require.NoError(t, message("homeassistant/switch/s1/config", []byte(`{"name":"`+strings.Repeat("é", 5000)+`"}`)))
	require.NoError(t, message("homeassistant/switch/s2/config", nil))
	require.Len(t, f.devices(), 9999)
	var many strings.Builder
	for i := range 90 {
		fmt.Fprintf(&many, `"k%d":"%s",`, i, strings.Repeat("x", 2048))
	}
	require.ErrorContains(t, message("homeassistant/switch/more/config", []byte(`{`+many.String()+`"a":1}`)), "bytes")
	const topics = 5000
	base, fields := strings.Repeat("x", 50_000), configFields{}
	for i := range topics {
		fields[fmt.Sprintf("k%d_topic", i)] = "~/a"
	}
	fields["~"] = base
	size := 0
	for _, value := range fields.full(abbreviations) {
		size += len(value.(string))
	}
	require.LessOrEqual(t, size, len(base)+topics*maxText, "a message of 100 kB makes none of 250 MB")
	require.ErrorContains(t, message("homeassistant/switch/more/config", []byte(`{"unique_id":"`+strings.Repeat("x", 2000)+`"}`)), "1 to 1024 bytes")
}

// FuzzAnnouncement has payloads of any kind for every format.
func FuzzAnnouncement(f *testing.F) {
	f.Add("switch/a", []byte(`{"~":"x","avty":[{"t":"~/a"}],"dev":{"ids":["a"]}}`))
	f.Add("device/a", []byte(`{"~":"x","cmps":{"a":{"p":"sensor","stat_t":"~"}},"dev":null}`))
	f.Add("a/announce", []byte(`{"id":"a"}`))
	f.Add("a/online", []byte(`true`))
	f.Add("a", []byte(bridgeDevices))
	f.Add("g/NBIRTH/e", birthPayload("a=b", "Properties/x=y"))
	f.Add("g/NDEATH/e", []byte{})
	f.Add("a/events/rpc", []byte(`{"src":"shelly1-a","method":"NotifyStatus","params":{"switch:0":{}}}`))
	f.Add("switch/b", []byte(`{"avty":{"t":"x","val_tpl":"{{ 'a' if value_json.b == 1 else 'c' }}"},"cmd_tpl":"{{ value | tojson }}","foo_t":1}`))
	f.Fuzz(func(t *testing.T, topic string, payload []byte) {
		for name, of := range formats {
			format := of("")
			base, _, _ := strings.Cut(format.filters()[0], "+")
			if _, err := format.message(base+topic, payload); err != nil && len(format.devices()) > 0 {
				t.Fatalf("%s: %v, but devices were found", name, err)
			}
			for _, d := range format.devices() {
				if d.id == "" || d.properties == nil {
					t.Fatalf("%s found %#v", name, d)
				}
			}
		}
	})
}

// What a house of Home Assistant's publishes, in each form that its documentation has, and what a mapper is told.
func TestHomeAssistantsForms(t *testing.T) {
	for _, tt := range []struct {
		name, component, payload string
		want                     map[string]string
	}{
		{"an availability as object", "sensor", `{"stat_t":"s","avty":{"t":"a","pl_avail":"yes"}}`, map[string]string{
			"AVAILABILITY_TOPIC": "a", "PAYLOAD_AVAILABLE": "yes", "AVAILABILITY": `[{"topic":"a","available":"yes"}]`, "LEFT_OUT": "",
		}},
		{"any of two", "sensor", `{"~":"x","stat_t":"s","avty":[{"t":"~/a"},{"t":"b","val_tpl":"{{ value_json.state }}"}],"avty_mode":"any"}`, map[string]string{
			"AVAILABILITY_TOPIC": "", "AVAILABILITY_MODE": "any", "AVAILABILITY": `[{"topic":"x/a","available":"online"},{"topic":"b","path":"state","available":"online"}]`,
		}},
		{"all of two, of which one isn't understood", "sensor", `{"stat_t":"s","avty":[{"t":"a"},{"t":"b","val_tpl":"{{ value|length }}"}],"avty_mode":"all"}`, map[string]string{
			"AVAILABILITY_TOPIC": "a", "LEFT_OUT": "the availability on b: {{ value|length }}",
		}},
		{"the latest of two, of which one isn't understood", "sensor", `{"stat_t":"s","avty":[{"t":"a"},{"t":"b","val_tpl":"{{ value|length }}"}]}`, map[string]string{
			"AVAILABILITY_TOPIC": "", "AVAILABILITY": "", "LEFT_OUT": "the availability on b: {{ value|length }}",
		}},
		{"a template with words", "sensor", `{"stat_t":"s","avty_t":"a","avty_tpl":"{{ 'online' if value_json.link == 'up' else 'offline' }}"}`, map[string]string{
			"AVAILABILITY_TOPIC": "a", "AVAILABILITY_PATH": "link", "PAYLOAD_AVAILABLE": "up", "LEFT_OUT": "",
		}},
		{"a template that isn't understood", "sensor", `{"stat_t":"s","avty_t":"a","avty_tpl":"{{ states('x') }}"}`, map[string]string{
			"STATE_TOPIC": "s", "AVAILABILITY_TOPIC": "", "AVAILABILITY": "", "LEFT_OUT": "the availability on a: {{ states('x') }}",
		}},
		{"JSON booleans", "binary_sensor", `{"stat_t":"s","val_tpl":"{{ value_json.occupancy }}","pl_on":true,"pl_off":false}`, map[string]string{
			"STATE_PATH": "occupancy", "STATE_ON": "true", "STATE_OFF": "false", "PAYLOAD_ON": "true",
		}},
		{"booleans as Python writes them", "binary_sensor", `{"stat_t":"s","val_tpl":"{{ value_json.get('open') }}","pl_on":"True","pl_off":"False"}`, map[string]string{
			"STATE_PATH": "['open']", "STATE_ON": "true", "STATE_OFF": "false", "PAYLOAD_ON": "true",
		}},
		{"words by a condition", "switch", `{"stat_t":"s","cmd_t":"c","val_tpl":"{% if value_json.relay == 1 %}ON{% else %}OFF{% endif %}"}`, map[string]string{
			"STATE_TOPIC": "s", "STATE_PATH": "relay", "STATE_ON": "1", "STATE_OFF": "0", "PAYLOAD_ON": "ON", "COMMAND_TOPIC": "c", "LEFT_OUT": "",
		}},
		{"words by a condition that is turned around", "switch", `{"stat_t":"s","cmd_t":"c","val_tpl":"{{ 'OFF' if not value_json.on else 'ON' }}"}`, map[string]string{
			"STATE_PATH": "on", "STATE_ON": "true", "STATE_OFF": "false",
		}},
		{"a word that stands for all others", "switch", `{"stat_t":"s","cmd_t":"c","val_tpl":"{{ 'ON' if value_json.mode == 'heat' else 'OFF' }}"}`, map[string]string{
			"STATE_TOPIC": "", "COMMAND_TOPIC": "c", "LEFT_OUT": "value_template: {{ 'ON' if value_json.mode == 'heat' else 'OFF' }}",
		}},
		{"states with other words than commands", "switch", `{"stat_t":"s","cmd_t":"c","pl_on":"1","pl_off":"0","stat_on":"running","stat_off":"stopped"}`, map[string]string{
			"STATE_ON": "running", "STATE_OFF": "stopped", "PAYLOAD_ON": "1",
		}},
		{"words of a sensor", "sensor", `{"stat_t":"s","val_tpl":"{{ 'wet' if value_json.leak else 'dry' }}"}`, map[string]string{
			"STATE_TOPIC": "", "LEFT_OUT": "value_template: {{ 'wet' if value_json.leak else 'dry' }}",
		}},
		{"a command inside an object", "number", `{"stat_t":"s","cmd_t":"c","cmd_tpl":"{\"calibration\": {{ value | float }} }"}`, map[string]string{
			"COMMAND_TOPIC": "c", "COMMAND_PAYLOAD": `{"calibration": {value} }`,
		}},
		{"a command as JSON", "select", `{"stat_t":"s","cmd_t":"c","cmd_tpl":"{\"mode\":{{ value | tojson }}}"}`, map[string]string{"COMMAND_PAYLOAD": `{"mode":{json}}`}},
		{"a command that isn't understood", "number", `{"stat_t":"s","cmd_t":"c","cmd_tpl":"{{ value * 10 }}"}`, map[string]string{
			"STATE_TOPIC": "s", "COMMAND_TOPIC": "", "COMMAND_PAYLOAD": "", "LEFT_OUT": "command_template: {{ value * 10 }}",
		}},
		{"a command without the value", "switch", `{"cmd_t":"c","cmd_tpl":"toggle"}`, map[string]string{"COMMAND_TOPIC": "", "LEFT_OUT": "command_template: toggle"}},
		{"a button", "button", `{"cmd_t":"c","cmd_tpl":"{\"do\":\"identify\"}"}`, map[string]string{"COMMAND_TOPIC": "c", "COMMAND_PAYLOAD": `{"do":"identify"}`, "PAYLOAD_PRESS": "PRESS"}},
		{"a lock", "lock", `{"stat_t":"s","cmd_t":"c"}`, map[string]string{"PAYLOAD_LOCK": "LOCK", "STATE_LOCKED": "LOCKED", "STATE_UNLOCKED": "UNLOCKED"}},
		{"a cover", "cover", `{"stat_t":"s","cmd_t":"c","stat_clsd":"zu"}`, map[string]string{"PAYLOAD_OPEN": "OPEN", "STATE_CLOSED": "zu", "STATE_OPENING": "opening"}},
		{"a light by templates", "light", `{"schema":"template","cmd_t":"c","cmd_on_tpl":"on","cmd_off_tpl":"off","stat_t":"s","stat_tpl":"{{ value_json.state }}"}`, map[string]string{
			"COMMAND_TOPIC": "", "STATE_PATH": "state", "LEFT_OUT": "command_on_template: on",
		}},
		{"a trigger", "device_automation", `{"atype":"trigger","t":"remote/action","pl":"single","type":"action","stype":"single"}`, map[string]string{
			"STATE_TOPIC": "remote/action", "PAYLOAD": "single", "SUBTYPE": "single",
		}},
		{"an abbreviation that isn't in the list", "sensor", `{"stat_t":"s","foo_cmd_t":"x"}`, map[string]string{"FOO_CMD_T": "", "LEFT_OUT": "foo_cmd_t: an unknown abbreviation"}},
		{"abbreviations of a device and an origin", "sensor", `{"stat_t":"s","dev":{"ids":["a","b"],"mf":"ACME","mdl":"P7","mdl_id":"7","sa":"Hall","sn":"1","hw":"2"},"o":{"name":"x","sw":"1"},"hum_cmd_t":"h","curr_temp_tpl":"{{ value }}","swing_h_mode_stat_t":"w"}`, map[string]string{
			"DEVICE_IDENTIFIERS": "a,b", "MANUFACTURER": "ACME", "MODEL": "P7", "DEVICE_SUGGESTED_AREA": "Hall", "DEVICE_SERIAL_NUMBER": "1",
			"TARGET_HUMIDITY_COMMAND_TOPIC": "h", "CURRENT_TEMPERATURE_TEMPLATE": "{{ value }}", "SWING_HORIZONTAL_MODE_STATE_TOPIC": "w",
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			f := formats["homeassistant"]("")
			_, err := f.message("homeassistant/"+tt.component+"/x/config", []byte(tt.payload))
			require.NoError(t, err)
			list := f.devices()
			require.Len(t, list, 1)
			for name, want := range tt.want {
				require.Equal(t, want, list[0].properties["MQTT_"+name], name)
			}
		})
	}
}

func TestTemplatesThatArePaths(t *testing.T) {
	for text, want := range map[string]string{
		"{{ value }}": "", "{{value|float}}": "", "{{ value_json.a.b }}": "a.b", "{{ value_json['a b'][0].c | int(0) | round(1) }}": "['a b'][0].c",
		`{{ value_json["x"] | default('') }}`: `["x"]`, "{{- value_json.x | is_defined -}}": "x", "{{ value_json.get('x', None) }}": "['x']",
	} {
		template, ok := parseTemplate(text)
		require.True(t, ok, text)
		require.Equal(t, want, template.path, text)
	}
	for _, text := range []string{
		"{{ value_json.x + 1 }}", "{{ value_json.x }} %", "{{ value_json.x | upper }}", "{{ value_json }}", "{% set x = 1 %}{{ x }}",
		"{{ 'a' if value_json.x > 3 else 'b' }}", "{{ value_json.x if value_json.x is defined else 0 }}", "{{ 'a' if value_json.x else 'a' }}", "{{",
	} {
		template, ok := parseTemplate(text)
		require.False(t, ok, "%s: %#v", text, template)
	}
}

// Removed components are those that have their platform only, also where the topics have a base.
func TestARemovedComponentIsGone(t *testing.T) {
	f := formats["homeassistant"]("")
	payload := `{"~":"plug","dev":{"ids":"p"},"avty_t":"~/lwt","cmps":{"relay":{"p":"switch","uniq_id":"r","stat_t":"~/relay","avty":{"t":"~/own"}},"power":%s}}`
	for _, tt := range []struct {
		power string
		ids   int
	}{{`{"p":"sensor","uniq_id":"w","stat_t":"~/power"}`, 2}, {`{"p":"sensor"}`, 1}, {`{}`, 1}} {
		_, err := f.message("homeassistant/device/plug/config", fmt.Appendf(nil, payload, tt.power))
		require.NoError(t, err)
		require.Len(t, f.devices(), tt.ids, tt.power)
	}
	require.Equal(t, "plug/own", f.devices()[0].properties["MQTT_AVAILABILITY_TOPIC"], "its own goes before what is common")
}

// What isn't understood is told for all devices that the filter is about, also for those that it doesn't take for that.
func TestWhatIsLeftOutIsTold(t *testing.T) {
	n := newTestBroker(t)
	n.retain("homeassistant/sensor/a/config", `{"uniq_id":"a","stat_t":"a"}`)
	n.retain("homeassistant/sensor/b/config", `{"uniq_id":"b","stat_t":"b","val_tpl":"{{ value | hex }}"}`)
	n.retain("homeassistant/switch/c/config", `{"uniq_id":"c","stat_t":"c","val_tpl":"{{ value | hex }}"}`)
	told := make(chan string, 100)
	handlertest.AwaitIDs(t, handlertest.Discover(t, tellingHandler{n.listener(), told}, `filter: {MQTT_COMPONENT: sensor, MQTT_STATE_TOPIC: "?*"}
format: homeassistant`, nil), "a")
	const want = "of 1 devices not everything is understood, and that is left out: b (value_template: {{ value | hex }})"
	for said := ""; said != want; {
		select {
		case said = <-told:
		case <-time.After(handlertest.Timeout):
			require.Equal(t, want, said)
		}
	}
}

// tellingHandler passes on what the handler tells.
type tellingHandler struct {
	announcementListener
	told chan string
}

func (h tellingHandler) Discover(ctx context.Context, details string, properties map[string][]byte, found func([]handler.Device)) error {
	return h.announcementListener.Discover(handler.WithTell(ctx, func(message string) { h.told <- message }), details, properties, found)
}

func TestInterviewsOfZigbee2MQTT2(t *testing.T) {
	f := formats["zigbee2mqtt"]("")
	_, err := f.message("zigbee2mqtt/bridge/devices", []byte(`[
		{"ieee_address":"0x1","type":"Router","friendly_name":"a","interview_state":"SUCCESSFUL","interview_completed":false},
		{"ieee_address":"0x2","type":"Router","friendly_name":"b","interview_state":"IN_PROGRESS"},
		{"ieee_address":"0x3","type":"Router","friendly_name":"c","interview_state":"FAILED","interview_completed":true},
		{"ieee_address":"0x4","type":"Router","friendly_name":"d","interview_completed":true}]`))
	require.NoError(t, err)
	var ids []string
	for _, d := range f.devices() {
		ids = append(ids, d.id)
	}
	require.Equal(t, []string{"0x1", "0x4"}, ids)
}

// A handler that is asked anew, or whose broker was restarted, doesn't say that a device is gone of which it has not heard yet.
func TestWhatWasFoundEarlierIsWaitedFor(t *testing.T) {
	n := newTestBroker(t)
	n.retain("homeassistant/sensor/a/config", `{"uniq_id":"a","stat_t":"a"}`)
	n.retain("homeassistant/sensor/b/config", `{"uniq_id":"b","stat_t":"b"}`)
	known := handlertest.AwaitIDs(t, n.discover("format: homeassistant"), "a", "b")
	n.stop()
	n.start() // a broker that keeps nothing

	again := n.resume("format: homeassistant", known)
	handlertest.AwaitIDs(t, again, "a", "b")
	n.retain("homeassistant/sensor/b/config", `{"uniq_id":"b","stat_t":"b2"}`)
	for devices := handlertest.AwaitIDs(t, again, "a", "b"); devices[1].Properties["MQTT_STATE_TOPIC"] != "b2"; {
		devices = handlertest.AwaitIDs(t, again, "a", "b")
	}
	n.retain("homeassistant/sensor/a/config", "")
	handlertest.AwaitIDs(t, again, "b")

	short := n.listener()
	short.hold = 100 * time.Millisecond
	handlertest.AwaitIDs(t, handlertest.Discover(t, resumedHandler{short, known}, "format: homeassistant", nil), "b") // a was not announced in that time
	other := n.resume("format: homeassistant\ntopic: elsewhere", known)
	handlertest.AwaitIDs(t, other)
}

func TestShelliesOfEachGeneration(t *testing.T) {
	f := formats["shelly"]("")
	say := func(topic, payload string) map[string]map[string]string {
		_, err := f.message(topic, []byte(payload))
		require.NoError(t, err)
		out := map[string]map[string]string{}
		for _, d := range f.devices() {
			out[d.id] = d.properties
		}
		return out
	}
	found := say("shellies/announce", `{"id":"shellyswitch25-AA","model":"SHSW-25","mac":"AA","ip":"10.0.0.7","new_fw":false,"fw_ver":"1.14"}`)
	require.Equal(t, "SHSW-25 1 shellies/shellyswitch25-AA", found["shellyswitch25-AA"]["MQTT_MODEL"]+" "+found["shellyswitch25-AA"]["MQTT_GENERATION"]+" "+found["shellyswitch25-AA"]["MQTT_TOPIC"])
	found = say("shelly1pmminig3-aabbcc/online", "true")
	require.Equal(t, "3 shelly1pmminig3-aabbcc/rpc", found["shelly1pmminig3-aabbcc"]["MQTT_GENERATION"]+" "+found["shelly1pmminig3-aabbcc"]["MQTT_RPC_TOPIC"])
	require.NotContains(t, say("kitchen/plug/online", "true"), "kitchen/plug", "it may be anybody's")
	found = say("kitchen/plug/events/rpc", `{"src":"shellyplugsg3-001122","dst":"kitchen/plug/events","method":"NotifyStatus","params":{"ts":1,"switch:0":{"id":0,"output":true}}}`)
	require.Equal(t, "kitchen/plug/status kitchen/plug/online switch:0", found["shellyplugsg3-001122"]["MQTT_STATE_TOPIC"]+" "+found["shellyplugsg3-001122"]["MQTT_AVAILABILITY_TOPIC"]+" "+found["shellyplugsg3-001122"]["MQTT_COMPONENTS"])
	say("other/events/rpc", `{"src":"camera","method":"NotifyStatus","params":{}}`)
	say("other/events/rpc", `not JSON`)
	changed, err := f.message("kitchen/plug/events/rpc", []byte(`{"src":"shellyplugsg3-001122","method":"NotifyStatus","params":{"switch:0":{"apower":3}}}`))
	require.NoError(t, err)
	require.False(t, changed, "nothing new")
	require.Len(t, say("kitchen/plug/online", "false"), 2)
	require.Contains(t, say("kitchen/plug/events/rpc", `{"src":"shellyplugsg3-001122","method":"NotifyFullStatus","params":{}}`), "shellyplugsg3-001122", "its data goes on")
	require.Len(t, say("shellies/shellyswitch25-AA/online", "false"), 2)
}

// Births are not retained: a device is known by its data where nobody has heard its birth, and a death of an earlier session ends nothing.
func TestSparkplugDevicesStayWhileTheirDataGoesOn(t *testing.T) {
	f := formats["sparkplug"]("")
	say := func(topic string, payload []byte) (ids []string) {
		_, err := f.message("spBv1.0/"+topic, payload)
		require.NoError(t, err)
		for _, d := range f.devices() {
			ids = append(ids, d.id)
		}
		return ids
	}
	require.Equal(t, []string{"p/press/motor"}, say("p/DDATA/press/motor", birthPayload("speed=7")))
	require.Equal(t, "motor", f.devices()[0].properties["MQTT_DEVICE"])
	say("p/NBIRTH/press", birthPayload("bdSeq=2"))
	say("p/DBIRTH/press/motor", birthPayload("speed=7", "Properties/Hardware Make=ACME"))
	require.Len(t, say("p/NDEATH/press", birthPayload("bdSeq=1")), 2, "the will of an earlier session")
	require.Empty(t, say("p/NDEATH/press", birthPayload("bdSeq=2")))
	require.Equal(t, []string{"p/press/motor"}, say("p/DDATA/press/motor", birthPayload("speed=8")))
	require.Equal(t, "ACME", f.devices()[0].properties["MQTT_HARDWARE_MAKE"], "as its birth says")
	changed, err := f.message("spBv1.0/p/DDATA/press/motor", birthPayload("speed=9"))
	require.NoError(t, err)
	require.False(t, changed)
	_, err = f.message("spBv1.0/p/DDATA/press/other", []byte{0x12})
	require.Error(t, err)
}
