// SPDX-License-Identifier: Apache-2.0

package modbus

import (
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"

	"github.com/edgebus/edgebus/edge/discovery/handler"
	"github.com/edgebus/edgebus/mappers/modbus/wire"
	"github.com/edgebus/edgebus/test/handlertest"
)

// testServer answers PDUs over Modbus TCP; nil: it closes the connection; empty: it is silent.
type testServer struct {
	t       *testing.T
	address string
	answer  func(unit byte, pdu []byte) []byte

	mu       sync.Mutex
	listener net.Listener
	open     []net.Conn
	most     int // connections at once
	wg       sync.WaitGroup
}

func serveUnits(t *testing.T, answer func(unit byte, pdu []byte) []byte) *testServer {
	s := &testServer{t: t, address: "127.0.0.1:0", answer: answer}
	s.start()
	t.Cleanup(s.stop)
	return s
}

func (s *testServer) start() {
	l, err := net.Listen("tcp", s.address)
	require.NoError(s.t, err)
	s.mu.Lock()
	s.listener, s.address = l, l.Addr().String()
	s.mu.Unlock()
	s.wg.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			s.mu.Lock()
			s.open = append(s.open, c)
			s.most = max(s.most, len(s.open))
			s.mu.Unlock()
			s.wg.Go(func() { s.serve(c) })
		}
	})
}

func (s *testServer) stop() {
	s.mu.Lock()
	_ = s.listener.Close()
	for _, c := range s.open {
		_ = c.Close()
	}
	s.mu.Unlock()
	s.wg.Wait()
}

func (s *testServer) serve(c net.Conn) {
	defer func() {
		_ = c.Close()
		s.mu.Lock()
		defer s.mu.Unlock()
		for i := range s.open {
			if s.open[i] == c {
				s.open = append(s.open[:i], s.open[i+1:]...)
				break
			}
		}
	}()
	for {
		head := make([]byte, 7)
		if _, err := io.ReadFull(c, head); err != nil {
			return
		}
		pdu := make([]byte, binary.BigEndian.Uint16(head[4:])-1)
		if _, err := io.ReadFull(c, pdu); err != nil {
			return
		}
		answer := s.answer(head[6], pdu)
		if answer == nil {
			return
		}
		if len(answer) > 0 {
			binary.BigEndian.PutUint16(head[4:], uint16(len(answer)+1))
			_, _ = c.Write(append(head, answer...))
		}
	}
}

// identificationAnswer answers in two parts, as a device with long texts does.
func identificationAnswer(unit byte, pdu []byte) []byte {
	object := func(id byte, text string) []byte { return append([]byte{id, byte(len(text))}, text...) }
	switch {
	case unit == 3:
		return []byte{pdu[0] | 0x80, targetFailed}
	case unit == 4:
		return []byte{pdu[0] | 0x80, 1}
	case pdu[0] != 0x2B:
		return []byte{pdu[0] | 0x80, 1}
	case pdu[3] == 0:
		return append([]byte{0x2B, 0x0E, pdu[2], 0x82, 0xFF, 2, 2}, append(object(0, "ACME"), object(1, "TH-1")...)...)
	}
	return append([]byte{0x2B, 0x0E, pdu[2], 0x82, 0, 0, 2}, append(object(2, "1.2\x00"), object(5, "Thermo")...)...)
}

func startDiscover(t *testing.T, details string) <-chan []handler.Device {
	return handlertest.Discover(t, addressScanner{zerolog.Nop()}, details, nil)
}

func TestUnitsSayWhoTheyAre(t *testing.T) {
	s := serveUnits(t, identificationAnswer)
	found := startDiscover(t, fmt.Sprintf("addresses: ['%s']\nunits: 1-2,3,4\ninterval: 1s\npause: 0s", s.address))
	d := handlertest.AwaitIDs(t, found, s.address+"/1", s.address+"/2", s.address+"/4")
	host, port, _ := net.SplitHostPort(s.address)
	require.Equal(t, map[string]string{
		"MODBUS_ADDRESS": "tcp://" + s.address, "MODBUS_HOST": host, "MODBUS_PORT": port, "MODBUS_UNIT": "1",
		"MODBUS_VENDOR": "ACME", "MODBUS_PRODUCT_CODE": "TH-1", "MODBUS_REVISION": "1.2", "MODBUS_MODEL_NAME": "Thermo",
	}, d[0].Properties)
	require.NotContains(t, d[2].Properties, "MODBUS_VENDOR", "it does not know the question")
	require.Equal(t, 1, s.most, "connections at once")
	s.stop()
	handlertest.AwaitIDs(t, found) // unplugged
	s.start()
	handlertest.AwaitIDs(t, found, s.address+"/1", s.address+"/2", s.address+"/4")
}

func TestAServerWithoutIdentification(t *testing.T) {
	for name, habit := range map[string]func(*wire.Reply){
		"refuses the question":             nil,
		"closes the connection at it":      func(r *wire.Reply) { r.Close = r.Call.Function == wire.Encapsulated },
		"closes after each answer":         func(r *wire.Reply) { r.Close = r.PDU != nil },
		"answers with another transaction": func(r *wire.Reply) { r.Transaction = 2 },
	} {
		t.Run(name, func(t *testing.T) {
			s := wire.Server{Before: habit, After: habit, Handle: func(c wire.Call) ([]uint16, error) {
				if c.IsWrite() {
					panic("written")
				}
				return make([]uint16, c.Quantity), nil
			}}
			require.NoError(t, s.Listen("127.0.0.1:0"))
			t.Cleanup(func() { _ = s.Close() })
			_, port, _ := net.SplitHostPort(s.Addr())
			handlertest.AwaitIDs(t, startDiscover(t, "addresses: [127.0.0.1-127.0.0.1]\nport: "+port), s.Addr()+"/1")
		})
	}
}

func TestADeviceThatLeavesTheQuestionUnanswered(t *testing.T) {
	s := serveUnits(t, func(_ byte, pdu []byte) []byte {
		if pdu[0] == 3 {
			return []byte{3, 2, 0, 7}
		}
		return []byte{}
	})
	handlertest.AwaitIDs(t, startDiscover(t, "{addresses: ['"+s.address+"'], timeout: 100ms}"), s.address+"/1")
}

// TestADeviceInUse takes one client at a time, as many do: while it talks to a mapper it closes other connections.
func TestADeviceInUse(t *testing.T) {
	var mu sync.Mutex
	busy, closed := false, 0
	s := serveUnits(t, func(unit byte, pdu []byte) []byte {
		mu.Lock()
		defer mu.Unlock()
		if busy {
			closed++
			return nil
		}
		return identificationAnswer(unit, pdu)
	})
	found := startDiscover(t, "{addresses: ['"+s.address+"'], interval: 1s}")
	handlertest.AwaitIDs(t, found, s.address+"/1")
	mu.Lock()
	busy = true
	mu.Unlock()
	require.Eventually(t, func() bool { mu.Lock(); defer mu.Unlock(); return closed > 1 }, handlertest.Timeout, time.Millisecond)
	for len(found) > 0 {
		require.Len(t, <-found, 1, "it is there")
	}
	handlertest.AwaitIDs(t, startDiscover(t, "{addresses: ['"+s.address+"']}")) // nobody has seen it before: it may be anything
}

func TestAnswersThatAreMalformed(t *testing.T) {
	for _, answer := range []string{
		"\x2b", "\x2b\x0e", "\x2b\x0d\x02\x82\x00\x00\x00", "\x2b\x0e\x02\x82\x00\x00\x01", "\x2b\x0e\x02\x82\x00\x00\x01\x00\x09abc", "\x03\x00",
	} {
		s := serveUnits(t, func(byte, []byte) []byte { return []byte(answer) })
		handlertest.AwaitIDs(t, startDiscover(t, "{addresses: ['"+s.address+"'], timeout: 2s}"))
	}
	endless := serveUnits(t, func(_ byte, pdu []byte) []byte { return []byte{0x2B, 0x0E, pdu[2], 0x82, 0xFF, pdu[3] + 1, 0} })
	handlertest.AwaitIDs(t, startDiscover(t, "{addresses: ['"+endless.address+"'], pause: 0s}"), endless.address+"/1")
}

func TestAddresses(t *testing.T) {
	for text, want := range map[string]string{
		"10.0.0.5": "10.0.0.5:502", "10.0.0.5:1502": "10.0.0.5:1502", "plc": "plc:502", "plc-1:7": "plc-1:7", "[fe80::1]:502": "[fe80::1]:502", "fe80::1": "[fe80::1]:502",
		"10.0.0.5-10.0.0.7": "10.0.0.5:502 10.0.0.6:502 10.0.0.7:502", "10.0.0.4/30": "10.0.0.5:502 10.0.0.6:502", "10.0.0.4/31": "10.0.0.4:502 10.0.0.5:502",
		"255.255.255.255-255.255.255.255": "255.255.255.255:502",
	} {
		got, err := parseAddress(text, 502)
		require.NoError(t, err, text)
		require.Equal(t, want, strings.Join(got, " "), text)
	}
	for text, want := range map[string]string{
		"":                                     "addresses: is required",
		"addresses: [10.0.0.0/8]":              `addresses[0]: "10.0.0.0/8": has more than 65536 addresses`,
		"addresses: [10.0.0.5-10.0.0.1]":       "the range ends before it begins",
		"addresses: ['10.0.0.5:0']":            "the port must be",
		"addresses: ['a b']":                   "must be a host",
		"addresses: [10.0.0.0/16]\nunits: 1,2": "more than 65536 units",
		"addresses: [a]\nunits: 5-1":           `units: "5-1"`,
		"addresses: [a]\nunits: 256":           `units: "256"`,
		"addresses: [a]\ninterval: 1ms":        "interval: 1ms: must be from 1s",
		"addresses: [a]\ntimeout: 0s":          "timeout",
		"addresses: [a]\nparallel: 0":          "parallel: 0",
		"addresses: [a]\nport: 70000":          "port: 70000",
		"addresses: [a]\nslave: 1":             "there is no field slave: it is one of ",
		"addresses: [a]\nfilter: {A: '['}":     "filter.A",
	} {
		err := Program.New(handler.Env{}).Discover(t.Context(), text, nil, nil)
		require.ErrorContains(t, err, want)
		require.True(t, handler.IsInvalidArgument(err), text)
	}
}

// FuzzAnswer has answers of any kind to the identification.
func FuzzAnswer(f *testing.F) {
	f.Add(identificationAnswer(1, []byte{0x2B, 0x0E, 2, 0}))
	f.Add([]byte{0xAB, 1})
	f.Add([]byte{0x2B, 0x0E, 2, 0x82, 0xFF, 1, 1, 0, 200})
	f.Fuzz(func(t *testing.T, pdu []byte) {
		near, far := net.Pipe()
		done := make(chan struct{})
		go func() {
			defer close(done)
			for b := make([]byte, 300); ; {
				n, err := far.Read(b)
				if err != nil {
					return
				}
				if n < 7 {
					continue
				}
				head := append([]byte(nil), b[:7]...)
				binary.BigEndian.PutUint16(head[4:], uint16(len(pdu)+1))
				if _, err := far.Write(append(head, pdu...)); err != nil {
					return
				}
			}
		}()
		c := &unitConn{host: "h:1", timeout: handlertest.Timeout, conn: near}
		p := map[string]string{}
		_ = c.objects(t.Context(), 1, 2, p)
		for name, value := range p {
			if len(value) > 255 {
				t.Fatal(name, value)
			}
		}
		_, _ = near.Close(), far.Close()
		<-done
	})
}

// TestAnInverterIsKnownByItsSunSpecModels, wherever they begin; another device is found as well.
func TestAnInverterIsKnownByItsSunSpecModels(t *testing.T) {
	for _, base := range []int{40000, 50000, 0} {
		common := make([]uint16, 66)
		for i, text := range map[int]string{0: "ACME", 16: "PV 5000", 48: "0815"} {
			for j := range text {
				common[i+j/2] |= uint16(text[j]) << (8 * (1 - j%2))
			}
		}
		image := append([]uint16{0x5375, 0x6e53, 1, 66}, common...)
		image = append(append(append(image, 103, 50), make([]uint16, 50)...), 0xFFFF, 0)
		s := wire.Server{Handle: func(c wire.Call) ([]uint16, error) {
			from := int(c.Address) - base
			if c.Unit != 1 || from < 0 || from+int(c.Quantity) > len(image) {
				return nil, wire.IllegalAddress
			}
			return image[from : from+int(c.Quantity)], nil
		}}
		require.NoError(t, s.Listen("127.0.0.1:0"))
		t.Cleanup(func() { _ = s.Close() })
		host, port, _ := net.SplitHostPort(s.Addr())
		found := startDiscover(t, "addresses: ["+host+"]\nport: "+port+"\nunits: 1-2\nsunspec: true\npause: 0s")
		devices := handlertest.AwaitIDs(t, found, s.Addr()+"/1", s.Addr()+"/2")
		got := map[string]map[string]string{}
		for _, d := range devices {
			got[d.ID] = d.Properties
		}
		inverter := got[s.Addr()+"/1"]
		require.Equal(t, "1,103", inverter["SUNSPEC_MODELS"])
		require.Equal(t, "inverter", inverter["SUNSPEC_KIND"])
		require.Equal(t, []string{"ACME", "PV 5000", "0815"}, []string{inverter["SUNSPEC_MANUFACTURER"], inverter["SUNSPEC_MODEL"], inverter["SUNSPEC_SERIAL_NUMBER"]})
		require.Empty(t, got[s.Addr()+"/2"]["SUNSPEC_KIND"])
	}
}
