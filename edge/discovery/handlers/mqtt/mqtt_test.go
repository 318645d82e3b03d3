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
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/edgebus/edgebus/broker"
	"github.com/edgebus/edgebus/broker/client"
	"github.com/edgebus/edgebus/edge/discovery/handler"
	"github.com/edgebus/edgebus/test/handlertest"
	"github.com/edgebus/edgebus/topics"
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
	l := Program.New(handler.Env{Log: zerolog.Nop(), Broker: []string{"mqtt://" + n.address}}).(announcementListener)
	l.settle = 20 * time.Millisecond
	return handlertest.Discover(n.t, l, details, nil)
}

// resume runs the handler after devices that it has found before.
func (n *testBroker) resume(details string, known []handler.Device) <-chan []handler.Device {
	l := Program.New(handler.Env{Log: zerolog.Nop(), Broker: []string{"mqtt://" + n.address}}).(announcementListener)
	l.settle = 20 * time.Millisecond
	return handlertest.Discover(n.t, resumedHandler{l, known}, details, nil)
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
	require.Equal(t, map[string]string{
		"MQTT_FORMAT": "zigbee2mqtt", "MQTT_ID": "0xf0d1b800001574df", "MQTT_NAME": "hall/lamp", "MQTT_TYPE": "Router", "MQTT_POWER_SOURCE": "Mains (single phase)",
		"MQTT_VERSION": "1.2", "MQTT_MODEL": "LED1545G12", "MQTT_MANUFACTURER": "IKEA", "MQTT_DESCRIPTION": "TRADFRI bulb", "MQTT_EXPOSES": "brightness,light,linkquality,state",
		"MQTT_STATE_TOPIC": "zigbee2mqtt/hall/lamp", "MQTT_COMMAND_TOPIC": "zigbee2mqtt/hall/lamp/set", "MQTT_GET_TOPIC": "zigbee2mqtt/hall/lamp/get",
		"MQTT_AVAILABILITY_TOPIC": "zigbee2mqtt/hall/lamp/availability",
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
		"val_tpl":"{{ value_json.relays[0].ison }}","avty":[{"t":"bridge/state"},{"t":"~/lwt","pl_avail":"here","val_tpl":"{{ value_json['state'] }}"}],
		"dev":{"ids":["plug7"],"name":"Plug 7","mf":"ACME","mdl":"P7","sw":"1.0"},"ret":true,"qos":1}`)
	n.retain("homeassistant/light/lamp/config", `{"name":null,"schema":"json","state_topic":"lamp","command_topic":"lamp/set","availability_topic":"lamp/online"}`)
	n.retain("homeassistant/device/thermo/config", `{"dev":{"ids":"t1","name":"Thermo"},"o":{"name":"x"},"avty_t":"t1/lwt","cmps":{
		"temp":{"p":"sensor","uniq_id":"t1_temp","stat_t":"t1","val_tpl":"{{ value_json.temperature | round(1) }}","unit_of_meas":"°C"},
		"hum":{"p":"sensor","stat_t":"t1","val_tpl":"{{ (value_json.h * 2) }}"},"gone":{"p":"sensor"}}}`)
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
	require.NotContains(t, devices[3].Properties, "MQTT_STATE_PATH")

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
	require.Equal(t, "shellyplus1 2 shellyplus1-a8032ab/status", devices[1].Properties["MQTT_MODEL"]+" "+devices[1].Properties["MQTT_GENERATION"]+" "+devices[1].Properties["MQTT_STATE_TOPIC"])
	n.retain("shellyplus1-a8032ab/online", "false")
	handlertest.AwaitIDs(t, found, "shelly1-AABBCC")
}

// birthPayload makes one of Sparkplug B.
func birthPayload(metrics ...string) (b []byte) {
	b = protowire.AppendTag(b, 1, protowire.VarintType)
	b = protowire.AppendVarint(b, 1700000000000)
	for _, m := range metrics {
		name, value, _ := strings.Cut(m, "=")
		one := protowire.AppendString(protowire.AppendTag(nil, 1, protowire.BytesType), name)
		one = protowire.AppendVarint(protowire.AppendTag(one, 4, protowire.VarintType), 12)
		one = protowire.AppendString(protowire.AppendTag(one, 15, protowire.BytesType), value)
		b = protowire.AppendBytes(protowire.AppendTag(b, 2, protowire.BytesType), one)
	}
	return b
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
	h := formats["homeassistant"]("")
	for i := range 10000 {
		require.NoError(t, h.message(fmt.Sprintf("homeassistant/switch/s%d/config", i), []byte(`{"name":"`+strings.Repeat("x", 1000)+`"}`)))
	}
	require.ErrorContains(t, h.message("homeassistant/switch/more/config", []byte(`{}`)), "more than 10000 devices")
	require.NoError(t, h.message("homeassistant/switch/s1/config", []byte(`{"name":"`+strings.Repeat("é", 5000)+`"}`)))
	require.NoError(t, h.message("homeassistant/switch/s2/config", nil))
	require.Len(t, h.devices(), 9999)
	var many strings.Builder
	for i := range 90 {
		fmt.Fprintf(&many, `"k%d":"%s",`, i, strings.Repeat("x", 2048))
	}
	require.ErrorContains(t, h.message("homeassistant/switch/more/config", []byte(`{`+many.String()+`"a":1}`)), "bytes")
	require.ErrorContains(t, h.message("homeassistant/switch/more/config", []byte(`{"unique_id":"`+strings.Repeat("x", 2000)+`"}`)), "1 to 1024 bytes")
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
	f.Fuzz(func(t *testing.T, topic string, payload []byte) {
		for name, of := range formats {
			format := of("")
			base, _, _ := strings.Cut(format.filters()[0], "+")
			if err := format.message(base+topic, payload); err != nil && len(format.devices()) > 0 {
				t.Fatalf("%s: %v, but devices were found", name, err)
			}
			for _, d := range format.devices() {
				if d.ID == "" || d.Properties == nil {
					t.Fatalf("%s found %#v", name, d)
				}
			}
		}
	})
}
