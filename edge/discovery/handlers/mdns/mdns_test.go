// SPDX-License-Identifier: Apache-2.0

package mdns

import (
	"context"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"

	"github.com/edgebus/edgebus/edge/discovery/handler"
	"github.com/edgebus/edgebus/edge/discovery/handlers/network"
	"github.com/edgebus/edgebus/test/handlertest"
)

// encodeResponse makes a message of records.
func encodeResponse(records ...resourceRecord) []byte {
	b := make([]byte, 12)
	b[2] = 0x84
	binary.BigEndian.PutUint16(b[6:], uint16(len(records)))
	for _, r := range records {
		b = appendName(b, r.name)
		b = binary.BigEndian.AppendUint16(b, r.kind)
		class := uint16(classIN)
		if r.flush {
			class |= cacheFlush
		}
		b = binary.BigEndian.AppendUint16(b, class)
		b = binary.BigEndian.AppendUint32(b, r.ttl)
		var data []byte
		switch r.kind {
		case typePTR:
			data = appendName(nil, r.target)
		case typeSRV:
			data = appendName(binary.BigEndian.AppendUint16(make([]byte, 4), r.port), r.target)
		case typeTXT:
			for _, text := range r.text {
				data = append(append(data, byte(len(text))), text...)
			}
		case typeA, typeAAAA:
			data = r.address.AsSlice()
		}
		b = binary.BigEndian.AppendUint16(b, uint16(len(data)))
		b = append(b, data...)
	}
	return b
}

var (
	testService  = domainName{"_http", "_tcp", "local"}
	testCamera   = domainName{"Camera v1.2 (hall)", "_http", "_tcp", "local"}
	testHostName = domainName{"camera", "local"}
)

func pointerRecord(ttl uint32) resourceRecord {
	return resourceRecord{name: testService, kind: typePTR, ttl: ttl, target: testCamera}
}

func serviceRecords(text ...string) []resourceRecord {
	return []resourceRecord{
		{name: testCamera, kind: typeSRV, flush: true, ttl: 120, target: testHostName, port: 80},
		{name: testCamera, kind: typeTXT, flush: true, ttl: 4500, text: append([]string{"model=C 1", "path=/a=b", "flag"}, text...)},
	}
}

func addressRecord(text string) resourceRecord {
	a := netip.MustParseAddr(text)
	kind := uint16(typeA)
	if !a.Is4() {
		kind = typeAAAA
	}
	return resourceRecord{name: testHostName, kind: kind, flush: true, ttl: 120, address: a}
}

// announcer answers queries on the loopback interface, one kind of record at a time.
type announcer struct {
	group *network.Group
	mu    sync.Mutex
	gone  bool
}

func newAnnouncer(t *testing.T, address4 string) *announcer {
	g, err := network.Join(t.Context(), address4, "", []string{"lo"}, true)
	require.NoError(t, err)
	a := &announcer{group: g}
	require.NoError(t, g.Send(encodeQuery(nil))) // which joins
	done := make(chan struct{})
	ctx, cancel := context.WithCancel(context.Background())
	go func() {
		defer close(done)
		for {
			select {
			case <-ctx.Done():
				return
			case p := <-g.Packets:
				a.answer(p.Data)
			}
		}
	}()
	t.Cleanup(func() {
		cancel()
		<-done
		g.Close()
	})
	return a
}

func (a *announcer) answer(q []byte) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.gone || q[2]&0x80 != 0 {
		return
	}
	questions := int(binary.BigEndian.Uint16(q[4:]))
	at := 12
	for range questions {
		n, next, err := parseName(q, at)
		if err != nil {
			return
		}
		kind := binary.BigEndian.Uint16(q[next:])
		at = next + 4
		switch {
		case kind == typePTR && n.key() == testService.key():
			_ = a.group.Send(encodeResponse(pointerRecord(4500)))
		case kind == typeSRV && n.key() == testCamera.key():
			_ = a.group.Send(encodeResponse(serviceRecords()...))
		case kind == typeA && n.key() == testHostName.key():
			_ = a.group.Send(encodeResponse(addressRecord("10.0.0.9")))
		}
	}
}

func (a *announcer) leave() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.gone = true
	_ = a.group.Send(encodeResponse(pointerRecord(0)))
}

func startDiscover(t *testing.T, address4, details string) <-chan []handler.Device {
	return handlertest.Discover(t, serviceBrowser{zerolog.Nop(), address4, "", network.Join}, details, nil)
}

// TestAServiceOnTheNetwork has an announcer that says no more than it is asked for, on the loopback interface.
func TestAServiceOnTheNetwork(t *testing.T) {
	group := fmt.Sprintf("224.0.0.251:%d", 20000+rand.IntN(10000))
	a := newAnnouncer(t, group)
	found := startDiscover(t, group, "services: [_http._tcp, _ipp._tcp.local.]\ninterfaces: [lo]\ninterval: 1s\n")
	d := handlertest.NextDevices(t, found, 1)[0]
	require.Equal(t, `Camera v1\.2 (hall)._http._tcp.local`, d.ID)
	require.Equal(t, map[string]string{
		"MDNS_SERVICE": "_http._tcp", "MDNS_NAME": "Camera v1.2 (hall)", "MDNS_HOST": "camera.local", "MDNS_PORT": "80",
		"MDNS_ADDRESS": "10.0.0.9", "MDNS_ADDRESSES": "10.0.0.9", "MDNS_TXT_MODEL": "C 1", "MDNS_TXT_PATH": "/a=b",
		"MDNS_TXT_FLAG": "",
	}, d.Properties)
	require.NoError(t, a.group.Send([]byte("malformed: this is no message")))
	require.NoError(t, a.group.Send(encodeResponse(addressRecord("10.0.0.10")))) // it has another address now
	for d.Properties["MDNS_ADDRESS"] != "10.0.0.10" {
		d = handlertest.NextDevices(t, found, 1)[0]
	}
	a.leave()
	handlertest.NextDevices(t, found, 0)
}

func TestASocketThatCanNotBeReadEndsTheLook(t *testing.T) {
	var group *network.Group
	b := serviceBrowser{zerolog.Nop(), fmt.Sprintf("224.0.0.251:%d", 20000+rand.IntN(10000)), "", func(ctx context.Context, address4, address6 string, names []string, listen bool) (_ *network.Group, err error) {
		group, err = network.Join(ctx, address4, address6, names, listen)
		return group, err
	}}
	err := b.Discover(t.Context(), "{services: [_a._tcp], interfaces: [lo], interval: 1h}", nil, func([]handler.Device) { group.Close() })
	require.ErrorIs(t, err, net.ErrClosed, "edgediscovery asks again, with back-off")
}

func TestServicesExpire(t *testing.T) {
	c, now := newCache([]string{"_http._tcp"}), time.Unix(1e9, 0)
	changed, err := c.take(encodeResponse(append(append([]resourceRecord{addressRecord("fe80::1"), addressRecord("10.0.0.9")}, pointerRecord(4500)), serviceRecords()...)...), now)
	require.NoError(t, err)
	require.True(t, changed)
	require.Equal(t, "10.0.0.9,fe80::1", c.devices(now)[0].Properties["MDNS_ADDRESSES"])
	require.Empty(t, c.missing(now))
	changed, err = c.take(encodeResponse(pointerRecord(4500)), now.Add(time.Minute))
	require.NoError(t, err)
	require.False(t, changed, "the same again")
	require.Empty(t, c.devices(now.Add(3*time.Minute)), "where it is has expired")
	require.Len(t, c.missing(now.Add(3*time.Minute)), 2)
	require.Empty(t, c.devices(now.Add(2*time.Hour)))
	require.Empty(t, c.instances)
	require.Empty(t, c.hosts)

	_, err = c.take(encodeResponse(resourceRecord{name: domainName{"_ssh", "_tcp", "local"}, kind: typePTR, ttl: 9, target: testCamera}, resourceRecord{name: testCamera, kind: typeTXT, text: []string{"a=b"}}), now)
	require.NoError(t, err)
	require.Empty(t, c.instances, "nobody asked for that service")
}

func TestMissingIsAskedAFewTimes(t *testing.T) {
	c, now := newCache([]string{"_http._tcp"}), time.Unix(1e9, 0)
	_, err := c.take(encodeResponse(pointerRecord(4500)), now)
	require.NoError(t, err)
	for range 3 {
		require.Equal(t, []question{{testCamera, typeSRV}, {testCamera, typeTXT}}, c.missing(now))
	}
	require.Empty(t, c.missing(now))
	_, err = c.take(encodeResponse(serviceRecords()...), now)
	require.NoError(t, err)
	require.Equal(t, []question{{testHostName, typeA}, {testHostName, typeAAAA}}, c.missing(now))
}

func TestServicesAreBounded(t *testing.T) {
	c, now := newCache([]string{"_http._tcp"}), time.Unix(1e9, 0)
	for i := range maxInstances {
		p := pointerRecord(4500)
		p.target = append(domainName{fmt.Sprint(i)}, testService...)
		_, err := c.take(encodeResponse(p), now)
		require.NoError(t, err)
	}
	_, err := c.take(encodeResponse(pointerRecord(4500)), now)
	require.ErrorContains(t, err, "more than 10000 services")
	require.Len(t, c.missing(now), 50)
}

func TestDetailsThatCanNotBe(t *testing.T) {
	for text, want := range map[string]string{
		"":                                       "services: has 0 entries",
		"services: [http]":                       `services[0]: "http" is no type of services`,
		"services: [_a._tcp]\nport: 1":           "there is no field port: it is one of ",
		"services: [_a._tcp]\ninterval: 1ms":     "interval: 1ms is shorter than 1s",
		"services: [_a._tcp]\ninterfaces: ['[']": "interfaces[0]",
		"services: [_a._tcp]\nfilter: {A: '['}":  "filter.A",
	} {
		err := Program.New(handler.Env{}).Discover(t.Context(), text, nil, nil)
		require.ErrorContains(t, err, want)
		require.True(t, handler.IsInvalidArgument(err), text)
	}
	err := serviceBrowser{zerolog.Nop(), "224.0.0.251:20000", "", network.Join}.Discover(t.Context(), "{services: [_a._tcp], interfaces: [none*]}", nil, nil)
	require.ErrorContains(t, err, `no interface of ["none*"]`)
	require.False(t, handler.IsInvalidArgument(err))
}

func TestNamesThatAreMalformed(t *testing.T) {
	head := append(make([]byte, 12), 0) // a root
	for text, b := range map[string][]byte{
		"to itself":   append(head, 192, 13),
		"forwards":    append(head, 192, 20),
		"cut off":     append(head, 5, 'a'),
		"reserved":    append(head, 64),
		"a long one":  append(head, []byte(strings.Repeat("\x3f"+strings.Repeat("x", 63), 5)+"\x00")...),
		"no end":      append(head, 1, 'a'),
		"no pointer":  append(head, 192),
		"a past end":  head[:12],
		"in a circle": append(head, 1, 'a', 192, 13),
	} {
		_, _, err := parseName(b, min(13, len(b)))
		require.Error(t, err, text)
	}
}

// FuzzResponse has datagrams of any kind.
func FuzzResponse(f *testing.F) {
	f.Add(encodeResponse(append(append([]resourceRecord{addressRecord("fe80::1")}, pointerRecord(4500)), serviceRecords()...)...))
	f.Add(encodeQuery([]question{{testService, typePTR}}))
	f.Add([]byte{0, 0, 0x84, 0, 0, 0, 0, 1, 0, 0, 0, 0, 192, 12, 0, 12, 0, 1, 0, 0, 0, 1, 0, 2, 192, 12})
	f.Fuzz(func(t *testing.T, data []byte) {
		c, now := newCache([]string{"_http._tcp"}), time.Unix(1e9, 0)
		_, _ = c.take(data, now)
		_, _ = c.take(encodeResponse(append([]resourceRecord{pointerRecord(9)}, serviceRecords()...)...), now)
		_, _ = c.take(data, now)
		for _, d := range c.devices(now) {
			if d.ID == "" || len(d.ID) > 1024 {
				t.Fatalf("%q", d.ID)
			}
		}
		for _, q := range c.missing(now) {
			if records, err := parseResponse(encodeQuery([]question{q})); err != nil || records != nil {
				t.Fatal(records, err)
			}
		}
	})
}
