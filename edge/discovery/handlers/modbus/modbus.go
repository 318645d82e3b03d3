// SPDX-License-Identifier: Apache-2.0

// Package modbus is the discovery handler for Modbus TCP: it sends device identification requests (function 0x2B/0x0E) to the units
// of given addresses, and takes any answer for a device. It can ask for their SunSpec models, too (sunspec.go).
//
// It never asks an address that a Configuration doesn't name, never writes, and has one connection to an address at a time.
package modbus

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/rs/zerolog"
	"golang.org/x/sync/errgroup"

	"github.com/edgebus/edgebus/edge/discovery/handler"
	"github.com/edgebus/edgebus/edge/discovery/handlers/network"
	"github.com/edgebus/edgebus/topics/backoff"
)

// Program is the handler.
var Program = handler.Program{
	Name: "modbus", Short: "Finds Modbus TCP devices at given addresses", Shared: true,
	New: func(env handler.Env) handler.Handler { return addressScanner{env.Log} },
}

// details are the discoveryDetails.
type details struct {
	// Addresses are hosts, 10.0.0.5 or plc:1502, ranges, 10.0.0.5-10.0.0.9, and networks, 10.0.0.0/28.
	Addresses []string `yaml:"addresses"`
	// Port is that of addresses without one.
	Port int `yaml:"port"`
	// Units are unit identifiers and ranges of them: 1-10,247.
	Units string `yaml:"units"`
	// Interval is the time from the end of a scan to the next.
	Interval time.Duration `yaml:"interval"`
	// Timeout is for a connection, and for an answer.
	Timeout time.Duration `yaml:"timeout"`
	// Pause is the time between two requests to an address.
	Pause time.Duration `yaml:"pause"`
	// Parallel is how many addresses are asked at once.
	Parallel int `yaml:"parallel"`
	// SunSpec has units asked for their SunSpec models, too.
	SunSpec bool `yaml:"sunspec"`
	// Filter has globs for properties.
	Filter network.Filter `yaml:"filter"`

	hosts []string // host:port
	units []byte
}

// maxRequests bounds the addresses and units of a scan.
const maxRequests = 65536

func parseDetails(text string) (d details, err error) {
	d = details{Port: 502, Units: "1", Interval: 5 * time.Minute, Timeout: time.Second, Pause: 20 * time.Millisecond, Parallel: 4}
	if err := handler.Details(text, &d); err != nil {
		return d, err
	}
	bad := func(format string, args ...any) error {
		return handler.InvalidArgument("discoveryDetails: "+format, args...)
	}
	for _, limit := range []struct {
		field           string
		value, low, top time.Duration
	}{
		{"interval", d.Interval, time.Second, 24 * time.Hour}, {"timeout", d.Timeout, 10 * time.Millisecond, time.Minute}, {"pause", d.Pause, 0, time.Minute},
	} {
		if limit.value < limit.low || limit.value > limit.top {
			return d, bad("%s: %s: must be from %s to %s", limit.field, limit.value, limit.low, limit.top)
		}
	}
	if d.Port < 1 || d.Port > 65535 {
		return d, bad("port: %d: must be from 1 to 65535", d.Port)
	}
	if d.Parallel < 1 || d.Parallel > 64 {
		return d, bad("parallel: %d: must be from 1 to 64", d.Parallel)
	}
	if d.units, err = parseUnits(d.Units); err != nil {
		return d, bad("units: %w", err)
	}
	if len(d.Addresses) == 0 {
		return d, bad("addresses: is required: hosts, ranges such as 10.0.0.5-10.0.0.9, or networks such as 10.0.0.0/28")
	}
	for i, address := range d.Addresses {
		hosts, err := parseAddress(strings.TrimSpace(address), d.Port)
		if err != nil {
			return d, bad("addresses[%d]: %q: %w", i, address, err)
		}
		if d.hosts = append(d.hosts, hosts...); len(d.hosts)*len(d.units) > maxRequests {
			return d, bad("addresses: more than %d units at addresses are to be asked", maxRequests)
		}
	}
	slices.Sort(d.hosts)
	d.hosts = slices.Compact(d.hosts)
	return d, d.Filter.Check()
}

func parseUnits(text string) (units []byte, err error) {
	for part := range strings.SplitSeq(text, ",") {
		from, to, ranged := strings.Cut(strings.TrimSpace(part), "-")
		if !ranged {
			to = from
		}
		low, err1 := strconv.ParseUint(from, 10, 8)
		high, err2 := strconv.ParseUint(to, 10, 8)
		if err1 != nil || err2 != nil || low > high {
			return nil, fmt.Errorf("%q: must be numbers from 0 to 255 and ranges of them, such as 1-10,247", part)
		}
		for u := low; u <= high; u++ {
			units = append(units, byte(u))
		}
	}
	slices.Sort(units)
	return slices.Compact(units), nil
}

// parseAddress returns the addresses, host:port, that a text stands for.
func parseAddress(text string, port int) (hosts []string, err error) {
	at := strconv.Itoa(port)
	if prefix, err := netip.ParsePrefix(text); err == nil {
		return listAddresses(prefix.Masked().Addr(), lastAddress(prefix), prefix.Addr().Is4() && prefix.Bits() < 31, at)
	}
	if from, to, ok := strings.Cut(text, "-"); ok {
		low, err1 := netip.ParseAddr(from)
		high, err2 := netip.ParseAddr(to)
		if err1 == nil && err2 == nil {
			if low.Is4() != high.Is4() || high.Less(low) {
				return nil, errors.New("the range ends before it begins")
			}
			return listAddresses(low, high, false, at)
		}
	}
	host := text
	if h, p, err := net.SplitHostPort(text); err == nil {
		host, at = h, p
		if n, err := strconv.ParseUint(p, 10, 16); err != nil || n == 0 {
			return nil, errors.New("the port must be from 1 to 65535")
		}
	}
	host = strings.Trim(host, "[]")
	if host == "" || strings.ContainsAny(host, "/ ,*") {
		return nil, errors.New("must be a host, a range such as 10.0.0.5-10.0.0.9, or a network such as 10.0.0.0/28")
	}
	return []string{net.JoinHostPort(host, at)}, nil
}

// lastAddress is the last address of a network.
func lastAddress(p netip.Prefix) netip.Addr {
	b := p.Masked().Addr().AsSlice()
	for i := p.Bits(); i < len(b)*8; i++ {
		b[i/8] |= 1 << (7 - i%8)
	}
	last, _ := netip.AddrFromSlice(b)
	return last
}

// listAddresses are the addresses from low to high, less the first and last if these are the network's own and for all of it.
func listAddresses(low, high netip.Addr, own bool, port string) (hosts []string, err error) {
	if own {
		low, high = low.Next(), high.Prev()
	}
	for a := low; a.Compare(high) <= 0; a = a.Next() {
		if len(hosts) == maxRequests {
			return nil, fmt.Errorf("has more than %d addresses", maxRequests)
		}
		hosts = append(hosts, net.JoinHostPort(a.String(), port))
		if !a.Next().IsValid() {
			break
		}
	}
	return hosts, nil
}

// addressScanner is the handler.
type addressScanner struct{ log zerolog.Logger }

// addressScan is one call of Discover.
type addressScan struct {
	details details
	dropped *network.DropCounter

	mu    sync.Mutex
	known map[string]map[string]handler.Device // by address, then by ID
	found func([]handler.Device)
}

// Discover implements handler.Handler. It reports the list after each address.
func (s addressScanner) Discover(ctx context.Context, text string, _ map[string][]byte, found func([]handler.Device)) error {
	d, err := parseDetails(text)
	if err != nil {
		return err
	}
	look := &addressScan{details: d, dropped: network.NewDropCounter(s.log), known: map[string]map[string]handler.Device{}, found: found}
	return handler.RunEvery(ctx, d.Interval, func() error {
		var g errgroup.Group
		g.SetLimit(d.Parallel)
		for _, host := range d.hosts {
			g.Go(func() error {
				look.host(ctx, host)
				return ctx.Err()
			})
		}
		err := g.Wait()
		look.say(ctx)
		return err
	})
}

// host asks all units of an address.
func (s *addressScan) host(ctx context.Context, host string) {
	s.mu.Lock()
	before := s.known[host]
	s.mu.Unlock()
	if ctx.Err() != nil {
		return
	}
	now := map[string]handler.Device{}
	c := &unitConn{host: host, timeout: s.details.Timeout, pause: s.details.Pause}
	defer c.close()
	for _, unit := range s.details.units {
		properties, err := c.identify(ctx, unit)
		if err == nil && s.details.SunSpec {
			err = c.sunspec(ctx, unit, properties)
		}
		id := fmt.Sprintf("%s/%d", host, unit)
		known, was := before[id]
		switch {
		case ctx.Err() != nil:
			return
		case errors.Is(err, errMalformed):
			s.dropped.Add(id, err)
		case errors.Is(err, errClosed) && was: // the device serves a mapper, and only one client at a time
			now[id] = known
		case err == nil:
			now[id] = handler.Device{ID: id, Properties: properties}
		}
		if errors.Is(err, errNoHost) {
			break
		}
	}
	s.mu.Lock()
	if len(now) == 0 {
		delete(s.known, host)
	} else {
		s.known[host] = now
	}
	s.mu.Unlock()
	if !maps.EqualFunc(before, now, func(a, b handler.Device) bool { return maps.Equal(a.Properties, b.Properties) }) {
		s.say(ctx)
	}
}

func (s *addressScan) say(ctx context.Context) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var list []handler.Device
	for _, devices := range s.known {
		for _, d := range devices {
			if s.details.Filter.Takes(d.Properties) {
				list = append(list, handler.Device{ID: d.ID, Properties: maps.Clone(d.Properties)})
			}
		}
	}
	if len(list) > network.MaxDevices {
		list = network.SortUnique(list)[:network.MaxDevices]
	}
	if ctx.Err() == nil {
		s.found(network.SortUnique(list))
	}
}

// The objects of device identification.
var objectNames = [...]string{
	"MODBUS_VENDOR", "MODBUS_PRODUCT_CODE", "MODBUS_REVISION", "MODBUS_VENDOR_URL", "MODBUS_PRODUCT_NAME", "MODBUS_MODEL_NAME", "MODBUS_APPLICATION_NAME",
}

var (
	errNoHost    = errors.New("nothing listens there")
	errClosed    = errors.New("the connection was closed without an answer")
	errMalformed = errors.New("the answer is malformed")
	errAbsent    = errors.New("the gateway says that the unit is not there")
)

// exception is an answer that refuses a request.
type exception byte

func (e exception) Error() string { return fmt.Sprintf("exception %d", byte(e)) }

// The exceptions of gateways for units that are not there.
const (
	pathUnavailable = 0x0A
	targetFailed    = 0x0B
)

// unitConn is the connection to an address. It is made again after anything but an answer.
type unitConn struct {
	host           string
	timeout, pause time.Duration
	conn           net.Conn
	transaction    uint16
	asked          bool
}

func (c *unitConn) close() {
	if c.conn != nil {
		_ = c.conn.Close()
		c.conn = nil
	}
}

// identify reads a unit's device identification. A unit that answers with an exception is a device as well, with fewer properties.
func (c *unitConn) identify(ctx context.Context, unit byte) (map[string]string, error) {
	host, port, err := net.SplitHostPort(c.host)
	if err != nil {
		return nil, err
	}
	p := map[string]string{"MODBUS_ADDRESS": "tcp://" + c.host, "MODBUS_HOST": host, "MODBUS_PORT": port, "MODBUS_UNIT": strconv.Itoa(int(unit))}
	for _, code := range []byte{2, 1} { // regular, or else basic
		err = c.objects(ctx, unit, code, p)
		if err == nil {
			return p, nil
		}
		if !errors.As(err, new(exception)) {
			break
		}
	}
	var timeout net.Error
	if !errors.Is(err, errNoHost) && (errors.As(err, &timeout) && timeout.Timeout() || errors.Is(err, errClosed)) {
		_, err = c.request(ctx, unit, []byte{3, 0, 0, 0, 1}) // some devices don't answer unknown functions, and some close the connection
	}
	var refused exception
	switch {
	case err == nil:
		return p, nil
	case !errors.As(err, &refused):
		return nil, err
	case refused == pathUnavailable || refused == targetFailed:
		return nil, errAbsent
	}
	return p, nil
}

// objects reads the identification into p.
func (c *unitConn) objects(ctx context.Context, unit, code byte, p map[string]string) error {
	for next, tries := byte(0), 0; tries < 16; tries++ {
		answer, err := c.request(ctx, unit, []byte{0x2B, 0x0E, code, next})
		if err != nil {
			return err
		}
		if len(answer) < 7 || answer[1] != 0x0E {
			return errMalformed
		}
		more, rest := answer[4] == 0xFF, answer[7:]
		for range answer[6] {
			if len(rest) < 2 || len(rest) < 2+int(rest[1]) {
				return errMalformed
			}
			if id, value := int(rest[0]), rest[2:2+rest[1]]; id < len(objectNames) && len(value) > 0 {
				p[objectNames[id]] = network.CleanText(strings.TrimRight(string(value), "\x00 "), 255)
			}
			rest = rest[2+rest[1]:]
		}
		if !more || answer[5] <= next {
			return nil
		}
		next = answer[5]
	}
	return nil
}

// request sends a request and returns the answer's function and data.
func (c *unitConn) request(ctx context.Context, unit byte, pdu []byte) (answer []byte, err error) {
	if c.asked && c.pause > 0 {
		if !backoff.Sleep(ctx, c.pause) {
			return nil, ctx.Err()
		}
	}
	c.asked = true
	if c.conn == nil {
		d := net.Dialer{Timeout: c.timeout}
		if c.conn, err = d.DialContext(ctx, "tcp", c.host); err != nil {
			c.conn = nil
			return nil, fmt.Errorf("%w: %w", errNoHost, err)
		}
	}
	conn := c.conn // which c.close takes away while ctx may end
	if err := conn.SetDeadline(time.Now().Add(c.timeout)); err != nil {
		c.close()
		return nil, err
	}
	stop := context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	if answer, err = c.exchange(unit, pdu); err != nil && !errors.As(err, new(exception)) {
		c.close()
	}
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE) {
		err = fmt.Errorf("%w: %w", errClosed, err)
	}
	return answer, err
}

func (c *unitConn) exchange(unit byte, pdu []byte) ([]byte, error) {
	c.transaction++
	frame := binary.BigEndian.AppendUint16(nil, c.transaction)
	frame = append(frame, 0, 0, 0, byte(len(pdu)+1), unit)
	if _, err := c.conn.Write(append(frame, pdu...)); err != nil {
		return nil, err
	}
	var head [7]byte
	if _, err := io.ReadFull(c.conn, head[:]); err != nil {
		return nil, err
	}
	size := int(binary.BigEndian.Uint16(head[4:])) - 1
	// The connection has one request at a time, and ends after one without an answer: an answer with another transaction or as unit 0, as some
	// devices send it, can be to no other.
	if head[2] != 0 || head[3] != 0 || size < 2 || size > 253 || head[6] != unit && head[6] != 0 {
		return nil, errMalformed
	}
	answer := make([]byte, size)
	if _, err := io.ReadFull(c.conn, answer); err != nil {
		return nil, err
	}
	switch answer[0] {
	case pdu[0]:
		return answer, nil
	case pdu[0] | 0x80:
		return nil, exception(answer[1])
	}
	return nil, errMalformed
}
