// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"context"
	"errors"
	"math"
	"net"
	"net/netip"
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestValuesAreReadBackAsTheyWereWritten(t *testing.T) {
	for _, v := range []any{
		nil, true, false, uint64(0), uint64(255), uint64(65536), uint64(math.MaxUint64), int64(-1), int64(127), int64(128), int64(-129), int64(math.MinInt64),
		float32(21.5), 1e300,
		[]byte{},
		[]byte("0123456789"), "", "Küche",
		BitString{},
		BitString{true, false, false, true, true, false, false, false, true},
		Enumerated(0), Enumerated(70000),
		Date{126, 11, 27, 5},
		Time{12, 30, 0, 0},
		NewObjectID(MultiStateValue, MaxInstance), string(make([]byte, 300)),
	} {
		b, err := appendValue(nil, v)
		require.NoError(t, err)
		r := reader{data: b}
		assert.Equal(t, v, r.value(), "% x", b)
		assert.NoError(t, r.err)
		assert.Empty(t, r.data)
	}
}

// The bytes are those of examples in annex F of the standard.
func TestExamplesOfTheStandard(t *testing.T) {
	assert.Equal(t, []byte{0x00, 0x05, 0x01, 0x0C, 0x0C, 0x00, 0x00, 0x00, 0x05, 0x19, 0x55},
		append([]byte{0, 5, 1, 12}, encodeRead(Reference{NewObjectID(AnalogInput, 5), PresentValue, NoIndex})...), "F.3.5")
	w, err := encodeWrite(write{Reference: Reference{NewObjectID(AnalogValue, 1), PresentValue, NoIndex}, value: float32(180)})
	require.NoError(t, err)
	assert.Equal(t, []byte{0x0C, 0x00, 0x80, 0x00, 0x01, 0x19, 0x55, 0x3E, 0x44, 0x43, 0x34, 0x00, 0x00, 0x3F}, w, "F.3.8")
	assert.Equal(t, []byte{0x09, 0x12, 0x1C, 0x00, 0x00, 0x00, 0x0A, 0x29, 0x01, 0x39, 0x00},
		encodeSubscribe(subscription{process: 18, object: NewObjectID(AnalogInput, 10), confirmed: true}), "F.1.9, a lifetime for ever")
	n, err := decodeNotification([]byte{
		0x09, 0x12, 0x1C, 0x02, 0x00, 0x00, 0x04, 0x2C, 0x00, 0x00, 0x00, 0x0A, 0x39, 0x00, 0x4E,
		0x09, 0x55, 0x2E, 0x44, 0x42, 0x82, 0x00, 0x00, 0x2F, 0x09, 0x6F, 0x2E, 0x82, 0x04, 0x00, 0x2F, 0x4F,
	})
	require.NoError(t, err)
	assert.Equal(t, NewObjectID(Device, 4), n.Device)
	require.Len(t, n.Values, 2, "F.1.2")
	assert.Equal(t, []any{float32(65)}, n.Values[0].Values)
	assert.Equal(t, []any{BitString{false, false, false, false}}, n.Values[1].Values)
}

func TestObjectsAndPropertiesAreFoundByTheNamesThatPeopleWrite(t *testing.T) {
	for text, want := range map[string]ObjectID{
		"analogInput:3": NewObjectID(AnalogInput, 3), "analog-input,3": NewObjectID(AnalogInput, 3), "AI3": NewObjectID(AnalogInput, 3),
		"ai:3": NewObjectID(AnalogInput, 3), "0:3": NewObjectID(AnalogInput, 3), " MSV:4194303 ": NewObjectID(MultiStateValue, MaxInstance),
		"130:7": NewObjectID(130, 7),
	} {
		got, err := ParseObject(text)
		require.NoError(t, err, text)
		assert.Equal(t, want, got, text)
	}
	for _, text := range []string{"", "3", ":", "AI", "AI:-1", "AI:4194304", "lamp:1", "1024:1", "AI:1:2"} {
		_, err := ParseObject(text)
		assert.Error(t, err, text)
	}
	for _, text := range []string{"presentValue", "present-value", "PRESENT_VALUE", "85"} {
		p, err := ParseProperty(text)
		require.NoError(t, err, text)
		assert.Equal(t, PresentValue, p)
	}
}

func newPair(t *testing.T) (*Client, *Server, Address) {
	t.Helper()
	s, err := NewServer("127.0.0.1:0", 1234, map[ObjectID]*ServerObject{
		NewObjectID(AnalogInput, 1): {Properties: map[PropertyID][]any{PresentValue: {float32(20)}, ObjectName: {"Supply"}, StatusFlags: {BitString{false, false, false, false}}}},
		NewObjectID(AnalogOutput, 1): {
			Commandable: true, Properties: map[PropertyID][]any{PresentValue: {float32(10)}, RelinquishValue: {float32(10)}},
			Check: func(v any) error {
				if v.(float32) > 100 {
					return errors.New("too high")
				}
				return nil
			},
		},
	})
	require.NoError(t, err)
	t.Cleanup(func() { _ = s.Close() })
	c, err := NewClient(Options{Listen: "127.0.0.1:0", Broadcast: s.Addr().String(), Timeout: 2 * time.Second})
	require.NoError(t, err)
	t.Cleanup(func() { _ = c.Close() })
	return c, s, Address{Host: s.Addr()}
}

func TestADeviceIsFoundReadWrittenAndRelinquished(t *testing.T) {
	c, s, to := newPair(t)
	found, err := c.Find(t.Context(), 1234)
	require.NoError(t, err)
	assert.Equal(t, to, found.Address)

	input, output := NewObjectID(AnalogInput, 1), NewObjectID(AnalogOutput, 1)
	results, err := c.ReadMultiple(t.Context(), to, []Reference{
		{input, PresentValue, NoIndex},
		{input, Units, NoIndex},
		{output, PresentValue, NoIndex},
		{NewObjectID(BinaryInput, 9), PresentValue, NoIndex},
		{s.Device, ObjectList, 0},
	})
	require.NoError(t, err)
	require.Len(t, results, 5)
	assert.Equal(t, []any{float32(20)}, results[0].Values)
	assert.Equal(t, Error{classProperty, codeUnknownProperty}, results[1].Err)
	assert.Equal(t, []any{float32(10)}, results[2].Values)
	assert.Equal(t, Error{classObject, codeUnknownObject}, results[3].Err)
	assert.Equal(t, []any{uint64(3)}, results[4].Values)

	ref := Reference{output, PresentValue, NoIndex}
	require.NoError(t, c.Write(t.Context(), to, ref, float32(50), 8))
	require.NoError(t, c.Write(t.Context(), to, ref, float32(60), 16))
	assert.Equal(t, float32(50), s.Value(output), "priority 8 is before 16")
	require.NoError(t, c.Write(t.Context(), to, ref, nil, 8))
	assert.Equal(t, float32(60), s.Value(output))
	require.NoError(t, c.Write(t.Context(), to, ref, nil, 16))
	assert.Equal(t, float32(10), s.Value(output))
	assert.Equal(t, Error{classProperty, codeValueOutOfRange}, c.Write(t.Context(), to, ref, float32(101), 8))
	assert.Equal(t, Error{classProperty, codeInvalidDataType}, c.Write(t.Context(), to, ref, true, 8))
}

func TestChangesAreToldWhileASubscriptionLasts(t *testing.T) {
	c, s, to := newPair(t)
	input := NewObjectID(AnalogInput, 1)
	told := make(chan Notification, 10)
	process, stop := c.Listen(to, func(n Notification) { told <- n })
	require.NoError(t, c.Subscribe(t.Context(), to, process, input, time.Minute))
	assert.Equal(t, []any{float32(20)}, (<-told).Values[0].Values, "the present value comes at once")
	s.Set(input, float32(21))
	assert.Equal(t, []any{float32(21)}, (<-told).Values[0].Values)
	stop()
	s.Set(input, float32(22))
	assert.Empty(t, told)
}

func TestALateAnswerIsNobodys(t *testing.T) {
	c, s, to := newPair(t)
	s.Answer(func(byte) bool { return false })
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	_, err := c.Read(ctx, to, Reference{NewObjectID(AnalogInput, 1), PresentValue, NoIndex})
	require.ErrorIs(t, err, context.DeadlineExceeded)
	late, err := encodeResult(Result{Reference: Reference{NewObjectID(AnalogInput, 1), PresentValue, NoIndex}, Values: []any{float32(99)}})
	require.NoError(t, err)
	c.dispatch(to, apdu{kind: complexAck, invoke: c.nextInvoke, service: serviceRead, data: late})
	s.Answer(nil)
	got, err := c.Read(t.Context(), to, Reference{NewObjectID(AnalogInput, 1), PresentValue, NoIndex})
	require.NoError(t, err)
	assert.Equal(t, []any{float32(20)}, got)
}

func TestAForeignDeviceRegistersAndHearsOfOtherSubnets(t *testing.T) {
	bbmd, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	require.NoError(t, err)
	defer func() { _ = bbmd.Close() }()
	c, err := NewClient(Options{Listen: "127.0.0.1:0", Broadcast: "127.0.0.1:9", BBMD: bbmd.LocalAddr().String(), Timeout: time.Second})
	require.NoError(t, err)
	defer func() { _ = c.Close() }()
	b := make([]byte, 100)
	n, from, err := bbmd.ReadFromUDPAddrPort(b)
	require.NoError(t, err)
	assert.Equal(t, []byte{0x81, 0x05, 0x00, 0x06, 0x02, 0x58}, b[:n], "J.2.6: 600 seconds")
	_, err = bbmd.WriteToUDPAddrPort([]byte{0x81, 0, 0, 6, 0, 0}, from)
	require.NoError(t, err)
	found := make(chan IAm, 1)
	go func() {
		if i, err := c.Find(t.Context(), 7); err == nil {
			found <- i
		}
	}()
	n, from, err = bbmd.ReadFromUDPAddrPort(b)
	require.NoError(t, err)
	assert.EqualValues(t, bvlcDistribute, b[1], "% x", b[:n])
	answer := append([]byte{0x81, bvlcForwarded, 0, 0, 10, 1, 2, 3, 0xBA, 0xC0, 1, 0x08, 0, 5, 1, 0x0B, unconfirmedRequest << 4, unconfirmedIAm},
		encodeIAm(IAm{Device: NewObjectID(Device, 7), MaxAPDU: 480, Vendor: 1})...)
	_, err = bbmd.WriteToUDPAddrPort(setLength(answer), from)
	require.NoError(t, err)
	assert.Equal(t, IAm{Address: Address{netip.MustParseAddrPort("10.1.2.3:47808"), 5, "\x0b"}, Device: NewObjectID(Device, 7), MaxAPDU: 480, Vendor: 1}, <-found)
}

func FuzzPacket(f *testing.F) {
	f.Add(encodePacket(bvlcUnicast, Address{}, false, true, encodeRequest(1, serviceRead, encodeRead(Reference{NewObjectID(AnalogInput, 5), PresentValue, NoIndex}))))
	f.Add(encodePacket(bvlcBroadcast, Address{Network: 5, MAC: "\x01"}, false, true, encodeUnconfirmed(unconfirmedIAm, encodeIAm(IAm{Device: NewObjectID(Device, 7)}))))
	results, _ := encodeResults([]Result{{Reference: Reference{1, PresentValue, 3}, Values: []any{"x", true, nil}}, {Reference: Reference{1, Units, NoIndex}, Err: Error{1, 2}}})
	f.Add(encodePacket(bvlcUnicast, Address{}, false, false, encodeComplexAck(1, serviceReadMultiple, results)))
	f.Add([]byte{0x81, 4, 0, 12, 1, 2, 3, 4, 5, 6, 1, 0x28})
	f.Fuzz(func(t *testing.T, b []byte) {
		p, err := decodePacket(b)
		if err != nil {
			return
		}
		a, err := decodeAPDU(p.apdu)
		if err != nil {
			return
		}
		_, _ = decodeNotification(a.data)
		_, _ = decodeIAm(a.data)
		_, _, _ = decodeWhoIs(a.data)
		_, _, _ = decodeSubscribe(a.data)
		_, _ = decodeReadMultiple(a.data)
		_, _ = decodeWrite(a.data)
		_, _ = answerError(a, a.service)
		if r, err := decodeResult(a.data); err == nil {
			checkReencoded(t, []Result{r})
		}
		if list, err := decodeResults(a.data); err == nil {
			checkReencoded(t, list)
		}
	})
}

// checkReencoded checks that what was read is read again after it was written, apart from what this package doesn't read.
func checkReencoded(t *testing.T, list []Result) {
	t.Helper()
	b, err := encodeResults(list)
	if err != nil {
		return // a value with an inner structure
	}
	again, err := decodeResults(b)
	if err != nil {
		t.Fatalf("% x: %v", b, err)
	}
	second, err := encodeResults(again)
	if err != nil || string(second) != string(b) {
		t.Fatalf("% x became % x: %v", b, second, err)
	}
}

// A device that broadcasts I-Am is heard by a program that doesn't have the port, and answers to the one that has it go to no other.
func TestWhatIsBroadcastIsHeardBesideTheProgramThatHasThePort(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("sockets that hear broadcasts only, and loopback's broadcast address, are those of Linux")
	}
	owner, err := NewClient(Options{Listen: "0.0.0.0:0", Timeout: time.Second})
	require.NoError(t, err)
	t.Cleanup(func() { _ = owner.Close() })
	everybody := netip.AddrPortFrom(netip.MustParseAddr("127.255.255.255"), owner.Addr().Port())
	var heard [2]atomic.Int32
	t.Cleanup(owner.Announcements(func(IAm) { heard[0].Add(1) }))
	ear, err := NewClient(Options{Listen: "127.0.0.1:0", Hear: []netip.AddrPort{everybody}, Timeout: time.Second})
	require.NoError(t, err)
	t.Cleanup(func() { _ = ear.Close() })
	t.Cleanup(ear.Announcements(func(IAm) { heard[1].Add(1) }))
	s, err := NewServer("127.0.0.1:0", 5, map[ObjectID]*ServerObject{})
	require.NoError(t, err)
	t.Cleanup(func() { _ = s.Close() })
	s.AnswerWhoIsAt(everybody)
	require.NoError(t, ear.AskWho(s.Addr(), 0, MaxInstance))
	require.Eventually(t, func() bool { return heard[0].Load() == 1 && heard[1].Load() == 1 }, 10*time.Second, time.Millisecond)
	s.AnswerWhoIsAt(netip.AddrPortFrom(netip.MustParseAddr("127.0.0.1"), owner.Addr().Port()))
	require.NoError(t, ear.AskWho(s.Addr(), 0, MaxInstance))
	require.Eventually(t, func() bool { return heard[0].Load() == 2 }, 10*time.Second, time.Millisecond)
	require.EqualValues(t, 1, heard[1].Load())

	_, err = NewClient(Options{Listen: owner.Addr().String(), Timeout: time.Second})
	require.ErrorContains(t, err, "another program of this host may have the port")
	require.NoError(t, owner.Close())
	again, err := NewClient(Options{Listen: owner.Addr().String(), Timeout: time.Second})
	require.NoError(t, err, "who hears broadcasts is not in the way")
	require.NoError(t, again.Close())
}
