package snmp

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"sync"
	"time"

	"github.com/gosnmp/gosnmp"
)

// trapListener hears the traps of all devices. It runs while a session wants them.
type trapListener struct {
	address string

	mu       sync.Mutex
	conn     *net.UDPConn
	sessions map[*session]func(event, value string)
}

func newTrapListener(address string) *trapListener {
	return &trapListener{address: address, sessions: map[*session]func(event, value string){}}
}

// add has a session's traps told to emit, until remove.
func (l *trapListener) add(s *session, emit func(event, value string)) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.address == "" {
		return errors.New("this mapper hears no traps: set driver.traps")
	}
	if l.conn == nil {
		at, err := net.ResolveUDPAddr("udp", l.address)
		if err != nil {
			return fmt.Errorf("traps at %s: %w", l.address, err)
		}
		if l.conn, err = net.ListenUDP("udp", at); err != nil {
			l.conn = nil
			return fmt.Errorf("traps at %s (ports below 1024 need CAP_NET_BIND_SERVICE, and another program may have it): %w", l.address, err)
		}
		go l.receive(l.conn)
	}
	l.sessions[s] = emit
	return nil
}

func (l *trapListener) remove(s *session) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.sessions, s)
	if len(l.sessions) == 0 && l.conn != nil {
		_ = l.conn.Close()
		l.conn = nil
	}
}

func (l *trapListener) receive(conn *net.UDPConn) {
	buffer := make([]byte, 65536)
	for {
		n, from, err := conn.ReadFromUDPAddrPort(buffer)
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			continue
		}
		l.mu.Lock()
		type listener struct {
			*session
			emit func(event, value string)
		}
		var all []listener
		for s, emit := range l.sessions {
			all = append(all, listener{s, emit})
		}
		l.mu.Unlock()
		for _, one := range all {
			if !one.isSource(from.Addr().Unmap()) {
				continue
			}
			if packet := one.openTrap(append([]byte{}, buffer[:n]...)); packet != nil {
				one.tell(packet, one.emit)
				acknowledgeInform(conn, from, packet)
			}
		}
	}
}

// acknowledgeInform answers an inform, which is sent again otherwise.
func acknowledgeInform(conn *net.UDPConn, to netip.AddrPort, packet *gosnmp.SnmpPacket) {
	if packet.PDUType != gosnmp.InformRequest {
		return
	}
	defer func() { _ = recover() }() // of the library
	packet.PDUType, packet.Error, packet.ErrorIndex = gosnmp.GetResponse, gosnmp.NoError, 0
	if b, err := packet.MarshalMsg(); err == nil {
		_, _ = conn.WriteToUDPAddrPort(b, to)
	}
}

// isSource reports whether traps of an address are the device's: its own, or one of trapSources.
func (s *session) isSource(from netip.Addr) bool {
	for _, text := range append([]string{s.config.host}, s.config.sources...) {
		if ip, err := netip.ParseAddr(text); err == nil {
			if ip.Unmap() == from {
				return true
			}
			continue
		}
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		ips, err := net.DefaultResolver.LookupNetIP(ctx, "ip", text)
		cancel()
		for _, ip := range ips {
			if err == nil && ip.Unmap() == from {
				return true
			}
		}
	}
	return false
}

// openTrap reads a trap with the device's community or user; nil: it is not one of the device's.
func (s *session) openTrap(b []byte) (packet *gosnmp.SnmpPacket) {
	defer func() {
		if recover() != nil { // the library's; a message can't end the program
			packet = nil
		}
	}()
	s.agent.mu.Lock()
	params := gosnmp.GoSNMP{
		Version: s.agent.params.Version, Community: s.agent.params.Community, MsgFlags: s.agent.params.MsgFlags, SecurityModel: s.agent.params.SecurityModel,
	}
	if p := s.agent.params.SecurityParameters; p != nil {
		params.SecurityParameters = p.Copy()
	}
	s.agent.mu.Unlock()
	packet, err := params.UnmarshalTrap(b, false)
	switch {
	case err != nil, packet == nil:
		return nil
	case packet.PDUType != gosnmp.Trap && packet.PDUType != gosnmp.SNMPv2Trap && packet.PDUType != gosnmp.InformRequest:
		return nil
	case params.Version == gosnmp.Version3 && packet.Version != gosnmp.Version3, params.Version != gosnmp.Version3 && packet.Community != params.Community:
		return nil
	}
	return packet
}

// The objects of a trap that say which it is.
const (
	trapObject   = ".1.3.6.1.6.3.1.1.4.1.0"
	genericTraps = ".1.3.6.1.6.3.1.1.5."
)

// trapName is which trap it is, of version 1 too (RFC 3584, 3.1).
func trapName(p *gosnmp.SnmpPacket) string {
	if p.PDUType == gosnmp.Trap {
		if p.GenericTrap < 6 {
			return fmt.Sprintf("%s%d", genericTraps, p.GenericTrap+1)
		}
		return fmt.Sprintf(".%s.0.%d", strings.TrimPrefix(p.Enterprise, "."), p.SpecificTrap)
	}
	for _, v := range p.Variables {
		if v.Name == trapObject {
			name, _ := v.Value.(string)
			return "." + strings.TrimPrefix(name, ".")
		}
	}
	return ""
}

// tell emits the events that a trap is.
func (s *session) tell(p *gosnmp.SnmpPacket, emit func(event, value string)) {
	name := trapName(p)
	for _, e := range s.config.events {
		if e.trap != name {
			continue
		}
		all := map[string]string{}
		for _, v := range p.Variables {
			one := field{oid: v.Name, scale: 1}
			text, err := one.decode(v)
			if err != nil {
				continue
			}
			if e.value != "" && (v.Name == e.value || strings.HasPrefix(v.Name, e.value+".")) {
				emit(e.name, text)
				break
			}
			all[strings.TrimPrefix(v.Name, ".")] = text
		}
		if e.value == "" {
			if b, err := json.Marshal(all); err == nil {
				emit(e.name, string(b))
			}
		}
	}
}

// Events implements mappers.EventSource.
func (s *session) Events(ctx context.Context, emit func(event, value string)) error {
	if len(s.config.events) == 0 {
		<-ctx.Done()
		return nil
	}
	if err := s.driver.traps.add(s, emit); err != nil {
		s.device.Tell("Traps", err.Error())
		<-ctx.Done()
		return nil
	}
	defer s.driver.traps.remove(s)
	<-ctx.Done()
	return nil
}
