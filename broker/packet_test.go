// SPDX-License-Identifier: Apache-2.0

package broker

import (
	"encoding/binary"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/mochi-mqtt/server/v2/packets"
	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"

	"github.com/edgebus/edgebus/topics"
)

// malformedPackets are packets that follow a good CONNECT, and how MQTT 5 has them answered.
// The names give the standard's statement that they break.
var malformedPackets = map[string]struct {
	code byte
	raw  []byte
}{
	"MQTT-1.5.4-1 surrogate in a topic":             {0x81, []byte{0x30, 6, 0, 3, 0xED, 0xA0, 0x80, 0}},
	"MQTT-1.5.4-1 overlong NUL":                     {0x81, []byte{0x30, 5, 0, 2, 0xC0, 0x80, 0}},
	"MQTT-1.5.4-1 in a user property":               {0x81, []byte{0x30, 11, 0, 1, 'a', 7, 0x26, 0, 1, 0xFF, 0, 1, 'v'}},
	"MQTT-1.5.4-2 NUL in a topic":                   {0x81, []byte{0x30, 5, 0, 2, 'a', 0, 0}},
	"MQTT-1.5.5-1 length of five bytes":             {0x81, []byte{0x30, 0xFF, 0xFF, 0xFF, 0xFF, 0x7F}},
	"MQTT-1.5.5-1 property length of five bytes":    {0x81, []byte{0x30, 8, 0, 1, 'a', 0x80, 0x80, 0x80, 0x80, 0}},
	"MQTT-1.5.5-1 property length with a byte more": {0x81, []byte{0x30, 6, 0, 1, 'a', 0x80, 0, 'x'}},
	"MQTT-1.5.5-1 subscription id with a byte more": {0x81, []byte{0x82, 10, 0, 1, 3, 0x0B, 0x81, 0, 0, 1, 'a', 0}},
	"MQTT-2.1.3-1 flags of PUBACK":                  {0x81, []byte{0x41, 2, 0, 1}},
	"MQTT-2.1.3-1 flags of PINGREQ":                 {0x81, []byte{0xC8, 0}},
	"MQTT-2.2.1-3 SUBSCRIBE with id 0":              {0x82, []byte{0x82, 7, 0, 0, 0, 0, 1, 'a', 0}},
	"MQTT-2.2.1-3 UNSUBSCRIBE with id 0":            {0x82, []byte{0xA2, 6, 0, 0, 0, 0, 1, 'a'}},
	"MQTT-2.2.1-3 PUBLISH with id 0":                {0x82, []byte{0x32, 6, 0, 1, 'a', 0, 0, 0}},
	"MQTT-2.2.1-3 PUBACK with id 0":                 {0x82, []byte{0x40, 2, 0, 0}},
	"2.2.2.2 no such property":                      {0x81, []byte{0x30, 6, 0, 1, 'a', 2, 0x7F, 0}},
	"2.2.2.2 property of another packet":            {0x81, []byte{0x30, 7, 0, 1, 'a', 3, 0x21, 0, 1}},
	"2.2.2.2 properties longer than the packet":     {0x81, []byte{0x30, 5, 0, 1, 'a', 9, 1}},
	"2.2.2.2 property beyond the properties":        {0x81, []byte{0x30, 9, 0, 1, 'a', 2, 0x03, 0, 'x', 'y', 'z'}},
	"3.3.2.3 property twice":                        {0x82, []byte{0x30, 8, 0, 1, 'a', 4, 0x01, 0, 0x01, 0}},
	"3.3.2.3.2 payload format 2":                    {0x82, []byte{0x30, 6, 0, 1, 'a', 2, 0x01, 2}},
	"MQTT-3.1.0-2 second CONNECT":                   {0x82, []byte{0x10, 14, 0, 4, 'M', 'Q', 'T', 'T', 5, 2, 0, 0, 0, 0, 1, 'x'}},
	"MQTT-3.3.1-2 DUP at QoS 0":                     {0x81, []byte{0x38, 4, 0, 1, 'a', 0}},
	"MQTT-3.3.1-4 QoS 3":                            {0x81, []byte{0x36, 6, 0, 1, 'a', 0, 1, 0}},
	"MQTT-3.3.2-8 topic alias 0":                    {0x94, []byte{0x30, 7, 0, 1, 'a', 3, 0x23, 0, 0}},
	"MQTT-3.3.2-9 topic alias above the maximum":    {0x94, []byte{0x30, 7, 0, 1, 'a', 3, 0x23, 0, 65}},
	"3.3.2.3.4 no topic, and an alias never set":    {0x82, []byte{0x30, 6, 0, 0, 3, 0x23, 0, 5}},
	"3.3.2.1 neither topic nor alias":               {0x82, []byte{0x30, 3, 0, 0, 0}},
	"MQTT-3.3.2-14 wildcard in a response topic":    {0x82, []byte{0x30, 9, 0, 1, 'a', 4, 0x08, 0, 1, '#', 'x'}},
	"MQTT-3.3.4-6 a client's subscription id":       {0x82, []byte{0x30, 6, 0, 1, 'a', 2, 0x0B, 1}},
	"MQTT-3.8.1-1 flags of SUBSCRIBE":               {0x81, []byte{0x80, 7, 0, 1, 0, 0, 1, 'a', 0}},
	"MQTT-3.8.3-2 SUBSCRIBE without a filter":       {0x82, []byte{0x82, 3, 0, 1, 0}},
	"MQTT-3.8.3-4 no local, shared":                 {0x82, []byte{0x82, 16, 0, 1, 0, 0, 10, '$', 's', 'h', 'a', 'r', 'e', '/', 'g', '/', 'a', 4}},
	"MQTT-3.8.3-5 reserved bits of an option":       {0x81, []byte{0x82, 7, 0, 1, 0, 0, 1, 'a', 0x40}},
	"3.8.3.1 QoS 3 asked for":                       {0x82, []byte{0x82, 7, 0, 1, 0, 0, 1, 'a', 3}},
	"3.8.3.1 retain handling 3":                     {0x82, []byte{0x82, 7, 0, 1, 0, 0, 1, 'a', 0x30}},
	"3.8.2.1.2 subscription id 0":                   {0x82, []byte{0x82, 9, 0, 1, 2, 0x0B, 0, 0, 1, 'a', 0}},
	"3.8.2.1.2 two subscription ids":                {0x82, []byte{0x82, 11, 0, 1, 4, 0x0B, 1, 0x0B, 2, 0, 1, 'a', 0}},
	"SUBSCRIBE without options":                     {0x81, []byte{0x82, 6, 0, 1, 0, 0, 1, 'a'}},
	"SUBSCRIBE cut short":                           {0x81, []byte{0x82, 5, 0, 1, 0, 0, 9}},
	"PUBLISH cut short":                             {0x81, []byte{0x30, 3, 0, 9, 'a'}},
	"PUBACK cut short":                              {0x81, []byte{0x40, 1, 0}},
	"PUBACK with something left over":               {0x81, []byte{0x40, 5, 0, 1, 0, 0, 0}},
	"MQTT-3.10.1-1 flags of UNSUBSCRIBE":            {0x81, []byte{0xA0, 6, 0, 1, 0, 0, 1, 'a'}},
	"MQTT-3.10.3-2 UNSUBSCRIBE without a filter":    {0x82, []byte{0xA2, 3, 0, 1, 0}},
	"MQTT-3.14.1-1 flags of DISCONNECT":             {0x81, []byte{0xE1, 0}},
	"3.14.2.2.2 a session that was to end":          {0x82, []byte{0xE0, 7, 0, 5, 0x11, 0, 0, 0, 9}},
	"4.12 AUTH that nobody asked for":               {0x82, []byte{0xF0, 2, 0x18, 0}},
	"a type that doesn't exist":                     {0x82, []byte{0x00, 0}},
	"CONNACK from a client":                         {0x82, []byte{0x20, 3, 0, 0, 0}},
	"MQTT-3.2.2-15 larger than the broker allows":   {0x95, []byte{0x30, 0xFF, 0xFF, 0xFF, 0x7F}},
}

// What one client sends wrong is that client's end, and of no concern to others.
func testMalformedPacketsCloseTheirSenderOnly(t *testing.T, at brokerSetup) {
	b := at.start(t, nil)
	other := openClient(t, b, "other")
	other.sub("b", 1)
	for name, packet := range malformedPackets {
		t.Run(name, func(t *testing.T) {
			c := openClient(t, b, "c")
			c.raw(packet.raw)
			code, n := c.ended()
			require.Equal(t, 1, n, "MQTT-4.13.1-1")
			require.Equal(t, packet.code, code)
			three := openClient(t, b, "three", version311)
			if name[0] == 'M' && packet.raw[0]>>4 != packets.Publish { // the rest is MQTT 5's alone
				three.raw(packet.raw)
				_, n := three.ended()
				require.Zero(t, n)
			}
		})
	}
	other.publish("b", "still here", 1, 1)
	other.nextOf(packets.Puback, func(pk packets.Packet) { require.Equal(t, "still here", string(pk.Payload)) })
	require.Eventually(t, func() bool { return b.Stats().Connections <= 2 }, testTimeout, 1)
	require.Zero(t, b.Stats().Malformed, "the decoder was spared")
}

// connectRaw makes a CONNECT of its parts.
func connectRaw(protocol string, level, flags byte, props []byte, rest ...string) []byte {
	b := append(binary.BigEndian.AppendUint16(nil, uint16(len(protocol))), protocol...)
	b = append(b, level, flags, 0, 60)
	if level >= 5 {
		b = append(append(b, byte(len(props))), props...)
	}
	for _, s := range rest {
		b = append(binary.BigEndian.AppendUint16(b, uint16(len(s))), s...)
	}
	return append([]byte{0x10, byte(len(b))}, b...)
}

const noAnswer = 0xFF // closed without an answer

var badConnects = map[string]struct {
	code byte
	raw  []byte
}{
	"MQTT-3.1.0-1 PINGREQ first":                     {noAnswer, []byte{0xC0, 0}},
	"MQTT-3.1.2-1 another protocol":                  {noAnswer, connectRaw("HTTP", 5, 2, nil, "x")},
	"MQTT-3.1.2-2 version 6":                         {0x84, connectRaw("MQTT", 6, 2, nil, "x")},
	"MQTT-3.1.2-3 reserved flag":                     {0x81, connectRaw("MQTT", 5, 3, nil, "x")},
	"MQTT-3.1.2-11 will QoS without a will":          {0x81, connectRaw("MQTT", 5, 0x0A, nil, "x")},
	"MQTT-3.1.2-12 will QoS 3":                       {0x81, connectRaw("MQTT", 5, 0x1E, nil, "x")},
	"MQTT-3.1.2-13 will retain without a will":       {0x81, connectRaw("MQTT", 5, 0x22, nil, "x")},
	"MQTT-3.1.2-17 no user name where one is said":   {0x81, connectRaw("MQTT", 5, 0x82, nil, "x")},
	"MQTT-3.1.2-16 a user name where none is said":   {0x81, connectRaw("MQTT", 5, 0x02, nil, "x", "user")},
	"MQTT-3.1.2-19 no password where one is said":    {0x81, connectRaw("MQTT", 5, 0xC2, nil, "x", "user")},
	"MQTT-3.1.3-4 NUL in the client id":              {0x81, connectRaw("MQTT", 5, 2, nil, "a\x00")},
	"MQTT-3.1.3-12 user name that isn't UTF-8":       {0x81, connectRaw("MQTT", 5, 0x82, nil, "x", "\xff")},
	"3.1.2.11.3 receive maximum 0":                   {0x82, connectRaw("MQTT", 5, 2, []byte{0x21, 0, 0}, "x")},
	"3.1.2.11.4 maximum packet size 0":               {0x82, connectRaw("MQTT", 5, 2, []byte{0x27, 0, 0, 0, 0}, "x")},
	"3.1.2.11.7 request problem information 2":       {0x82, connectRaw("MQTT", 5, 2, []byte{0x17, 2}, "x")},
	"3.1.2.11.2 session expiry twice":                {0x82, connectRaw("MQTT", 5, 2, []byte{0x11, 0, 0, 0, 1, 0x11, 0, 0, 0, 1}, "x")},
	"3.1.2.11.9 a method that the broker hasn't":     {0x8C, connectRaw("MQTT", 5, 2, []byte{0x15, 0, 1, 'm'}, "x")},
	"3.1.2.11.10 authentication data, but no method": {0x82, connectRaw("MQTT", 5, 2, []byte{0x16, 0, 1, 'd'}, "x")},
	"a node's name that none can have":               {0x86, connectRaw("MQTT", 5, 0xC2, nil, "x", "node/+", "")},
	"MQTT 3.1.1, level 2: MQTT-3.1.2-2":              {0x01, connectRaw("MQTT", 2, 2, nil, "x")},
	"MQTT 3.1.1, no id to keep: MQTT-3.1.3-8":        {0x02, connectRaw("MQTT", 4, 0, nil, "")},
	"MQTT 3.1.1, reserved flag: MQTT-3.1.2-3":        {noAnswer, connectRaw("MQTT", 4, 3, nil, "x")},
	"MQTT 3.1.1, password without user name":         {noAnswer, connectRaw("MQTT", 4, 0x42, nil, "x", "password")},
}

func testBadConnects(t *testing.T, at brokerSetup) {
	b := at.start(t, nil)
	for name, packet := range badConnects {
		t.Run(name, func(t *testing.T) {
			c := dialBroker(t, b)
			if name[:5] == "MQTT " {
				c.version = 4
			}
			c.raw(packet.raw)
			if packet.code != noAnswer {
				ack := c.expect(packets.Connack)
				require.Equal(t, packet.code, ack.ReasonCode)
				require.False(t, ack.SessionPresent, "MQTT-3.2.2-6")
			}
			_, n := c.ended()
			require.Zero(t, n, "MQTT-3.2.2-7: nothing but a CONNACK")
		})
	}
	require.Zero(t, b.Stats().Malformed)
}

// FuzzForm: what passes for well-formed the decoder can read, and nothing else reaches it.
func FuzzForm(f *testing.F) {
	for _, packet := range malformedPackets {
		f.Add(byte(5), packet.raw[0], packet.raw[1:])
	}
	for _, packet := range badConnects {
		f.Add(byte(4), packet.raw[0], packet.raw[2:])
	}
	f.Add(byte(5), byte(0x10), encodePacket(f, connectPacket("x", persistentSession, withWill("w", "x", 1)), 5)[2:])
	f.Add(byte(5), byte(0x34), encodePacket(f, publishPacket("a", "x", 2, 3, withProperties(packets.Properties{ContentType: "t"})), 5)[2:])
	f.Add(byte(5), byte(0xE0), []byte{4})
	f.Fuzz(func(t *testing.T, version, first byte, body []byte) {
		if version < 3 || version > 5 {
			return
		}
		if first == packets.Connect<<4 {
			pk := packets.Packet{FixedHeader: packets.FixedHeader{Type: packets.Connect, Remaining: len(body)}}
			if v, _, err := parseProtocol(body); err == nil && connectWellFormed(v, body) == nil {
				require.NoError(t, pk.ConnectDecode(body))
				require.Equal(t, v, pk.ProtocolVersion)
			}
			return
		}
		if wellFormed(version, first, body) != nil {
			return
		}
		pk, err := decodePacket(version, first, body)
		require.NoError(t, err)
		require.Equal(t, first>>4, pk.FixedHeader.Type)
	})
}

// What arrived together with a mistake, and before it, has been taken.
func TestWhatCameBeforeAMistakeIsDelivered(t *testing.T) {
	b := startBroker(t, nil)
	other := openClient(t, b, "other")
	other.sub("b", 0)
	for name, mistake := range malformedPackets {
		c, packet := openClient(t, b, "c"), mistake.raw
		for _, payload := range []string{"1", "2"} { // the first on a topic and the next go different ways
			packet = append(encodePacket(t, publishPacket("b", payload, 0, 0), 5), packet...)
		}
		c.raw(packet)
		require.Equal(t, "2", string(other.expect(packets.Publish).Payload), name)
		require.Equal(t, "1", string(other.expect(packets.Publish).Payload), name)
		c.ended()
	}
}

// The reason reaches a client that is still sending what is refused.
func TestReasonReachesABusySender(t *testing.T) {
	b := startBroker(t, nil)
	for range 20 {
		c := openClient(t, b, "c")
		_, _ = c.conn.Write(encodePacket(t, publishPacket("a", strings.Repeat("x", 2<<20), 0, 0), 5))
		code, n := c.ended()
		require.Equal(t, byte(0x95), code)
		require.Equal(t, 1, n)
	}
}

// FuzzPacket feeds a connection whatever may come after, or instead of, a CONNECT.
func FuzzPacket(f *testing.F) {
	for _, packet := range malformedPackets {
		f.Add(true, packet.raw)
	}
	for _, packet := range badConnects {
		f.Add(false, packet.raw)
	}
	f.Add(false, encodePacket(f, connectPacket("x", persistentSession, withWill("w", "x", 1)), 5))
	f.Add(false, encodePacket(f, connectPacket("x", version311), 4))
	sub := packets.Packet{
		FixedHeader: packets.FixedHeader{Type: packets.Subscribe}, PacketID: 1,
		Filters: packets.Subscriptions{{Filter: "$share/g/a/#", Qos: 2}, {Filter: "+", Qos: 1}},
	}
	f.Add(true, append(encodePacket(f, sub, 5), encodePacket(f, publishPacket("a", "x", 2, 3, markRetain), 5)...))
	b, err := New(Options{Log: zerolog.Nop(), Auth: Auth{Anonymous: anonymousOperator}, Tree: newFakeTree(), Limits: usualLimits})
	require.NoError(f, err)
	f.Cleanup(func() { _ = b.Close(f.Context()) })
	l := &listener{connects: newRateLimiter(1000), b: b, loopback: true, Listener: Listener{Name: "pipe"}}
	hello := encodePacket(f, connectPacket("fuzz"), 5)
	f.Fuzz(func(t *testing.T, connected bool, data []byte) {
		ours, theirs := net.Pipe()
		served := make(chan struct{})
		go func() { l.serveConn(pipeConn{theirs}); close(served) }()
		go func() {
			buf := make([]byte, 4096)
			for {
				if _, err := ours.Read(buf); err != nil {
					return
				}
			}
		}()
		_ = ours.SetWriteDeadline(time.Now().Add(time.Second))
		if connected {
			_, _ = ours.Write(hello)
		}
		_, _ = ours.Write(data)
		_ = ours.Close()
		select {
		case <-served:
		case <-time.After(testTimeout):
			t.Fatal("the connection did not end")
		}
	})
}

// pipeConn is a pipe that looks like a connection from this host.
type pipeConn struct{ net.Conn }

func (pipeConn) RemoteAddr() net.Addr { return &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 1} }

var anonymousOperator = []topics.Role{topics.RoleOperator}

// MQTT 3.1 has its own rules for the bits of a packet's first byte and for CONNACK.
func TestMQTT31HasItsOwnRules(t *testing.T) {
	b := startBroker(t, nil)
	connect := func(change func(raw []byte)) *testClient {
		c := dialBroker(t, b)
		c.version = 3
		pk := connectPacket("old", version31)
		pk.Connect.Clean = false
		raw := encodePacket(t, pk, 3)
		change(raw)
		c.raw(raw)
		require.Equal(t, []byte{packets.Connack << 4, 2, 0, 0}, c.bytes(4), "the byte before the return code is reserved: it never says that there is a session")
		return c
	}
	connect(func([]byte) {}).disconnect()
	connect(func(raw []byte) { raw[0] |= 0x04 }).disconnect()  // of the first byte
	connect(func(raw []byte) { raw[11] |= 0x01 }).disconnect() // of the connect flags

	c := connect(func([]byte) {})
	c.raw([]byte{packets.Subscribe<<4 | 0x0A, 6, 0, 1, 0, 1, 't', 0xFD}) // DUP, and bits that are not used
	require.Equal(t, []byte{1}, c.expect(packets.Suback).ReasonCodes)
	c.raw([]byte{packets.Publish<<4 | 0x08, 4, 0, 1, 't', 'x'}) // DUP at QoS 0
	require.Equal(t, "x", string(c.expect(packets.Publish).Payload))
	c.publish("u", "x", 2, 9)
	c.expect(packets.Pubrec)
	c.raw([]byte{packets.Pubrel<<4 | 0x0A, 2, 0, 9})
	c.expect(packets.Pubcomp)
	c.raw([]byte{packets.Pingreq<<4 | 0x08, 0})
	c.expect(packets.Pingresp)
	c.raw([]byte{packets.Unsubscribe<<4 | 0x0A, 5, 0, 2, 0, 1, 't'})
	c.expect(packets.Unsuback)
}

// bytes reads as many bytes.
func (c *testClient) bytes(n int) []byte {
	c.t.Helper()
	b := make([]byte, n)
	require.NoError(c.t, c.conn.SetReadDeadline(time.Now().Add(testTimeout)))
	_, err := io.ReadFull(c.r, b)
	require.NoError(c.t, err)
	return b
}

// An acknowledgement of another kind than the message waits for ends the connection.
func TestWrongAcknowledgementsEndTheConnection(t *testing.T) {
	b := startBroker(t, nil)
	from := openClient(t, b, "from")
	for _, version := range []connectOption{version311, func(*packets.Packet) {}} {
		for _, wrong := range []struct{ qos, ack byte }{
			{1, packets.Pubrec}, {1, packets.Pubcomp}, {2, packets.Puback}, {2, packets.Pubcomp},
		} {
			c := openClient(t, b, "c", version)
			c.ack(packets.Puback, 99) // of no message: it may have ended
			c.sub("t", wrong.qos)
			from.publish("t", "x", wrong.qos, 1)
			if wrong.qos == 2 {
				from.expect(packets.Pubrec)
				from.ack(packets.Pubrel, 1)
				from.expect(packets.Pubcomp)
			} else {
				from.expect(packets.Puback)
			}
			c.ack(wrong.ack, c.expect(packets.Publish).PacketID)
			code, disconnects := c.ended()
			if c.version == 5 {
				require.Equal(t, byte(codeProtocolError), code, "%+v", wrong)
			} else {
				require.Zero(t, disconnects)
			}
		}
	}
}

func TestTopicAliases(t *testing.T) {
	b := startBroker(t, nil)
	alias := func(n uint16, more ...packets.UserProperty) pubOption {
		return withProperties(packets.Properties{TopicAlias: n, TopicAliasFlag: true, User: more})
	}
	reader := openClient(t, b, "reader")
	reader.sub("#", 0)
	for n, code := range map[uint16]byte{1: codeProtocolError, 65: codeBadAlias} {
		c := openClient(t, b, "c")
		c.publish("", "x", 1, 1, alias(n))
		got, _ := c.ended()
		require.Equal(t, code, got, "alias %d, which was not set", n)
	}
	c := openClient(t, b, "c")
	require.Equal(t, byte(codeQuota), c.publish1("t", "x", alias(1, userProperties(maxUserProperties+linkProperties+1).User...)).ReasonCode)
	require.Equal(t, byte(0), c.publish1("", "x", alias(1)).ReasonCode, "an alias that came with a refused publish is good")
	require.Equal(t, "t", reader.expect(packets.Publish).TopicName)
}

// A reason string has the rule first, and then what breaks it, cut: a client shows the beginning.
func TestReasonStringsHaveTheRuleFirst(t *testing.T) {
	b := startBroker(t, withUsers)
	op := openClient(t, b, "op", credentialsOf("op", "secret"))
	long := strings.Repeat("x", 60_000)
	for topic, rule := range map[string]string{
		"v1/nodes/zz/" + long: "", "$" + long: "topics that begin with $", "a/\x01" + long: "contains", strings.Repeat("a/", 300): "more than 200 levels",
	} {
		reason := op.publish1(topic, "x").Properties.ReasonString
		require.Contains(t, reason, rule)
		require.NotContains(t, strings.SplitN(reason, ": topic", 2)[0], "xxx")
		require.Less(t, len(reason), 700)
	}
	c := dialBroker(t, b)
	require.Equal(t, byte(codeBadClientID), c.connect("node/"+long, credentialsOf("op", "secret")))
	require.Less(t, len(c.connack.Properties.ReasonString), 300)
}
