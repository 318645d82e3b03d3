// SPDX-License-Identifier: Apache-2.0

package snmp

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
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
			if !one.sources.has(from.Addr().Unmap()) {
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

// trapSources are the addresses that a device's traps come from: its own, and those of the setting.
type trapSources struct {
	mu   sync.Mutex
	list []netip.Addr
}

func (t *trapSources) has(from netip.Addr) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return slices.Contains(t.list, from)
}

// resolve finds the addresses of hosts. One whose name isn't known at the moment keeps those that all had: traps are heard of then, too.
func (t *trapSources) resolve(ctx context.Context, hosts []string) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	var list []netip.Addr
	known := true
	for _, host := range hosts {
		ips, err := net.DefaultResolver.LookupNetIP(ctx, "ip", host)
		known = known && err == nil
		for _, ip := range ips {
			list = append(list, ip.Unmap())
		}
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if !known {
		list = append(list, t.list...)
	}
	slices.SortFunc(list, netip.Addr.Compare)
	t.list = slices.Compact(list)
}

// openTrap reads a trap with the device's community or user; nil: it is not one of the device's.
func (s *session) openTrap(b []byte) (packet *gosnmp.SnmpPacket) {
	defer func() {
		if recover() != nil { // the library's; a message can't end the program
			packet = nil
		}
	}()
	params := s.agent.trapParams() // the agent may be waiting for an answer: the traps of others don't
	packet, err := params.UnmarshalTrap(b, false)
	switch {
	case err != nil, packet == nil:
		return nil
	case packet.PDUType != gosnmp.Trap && packet.PDUType != gosnmp.SNMPv2Trap && packet.PDUType != gosnmp.InformRequest:
		return nil
	case params.Version == gosnmp.Version3 && !isOfUser(packet, s.agent.user), params.Version != gosnmp.Version3 && packet.Community != params.Community:
		return nil
	}
	return packet
}

// isOfUser reports whether a message of version 3 is of the user whose key it was checked with. The library takes one that names neither a user
// nor an engine for the search for an engine, which has no signature.
func isOfUser(packet *gosnmp.SnmpPacket, user gosnmp.SnmpV3SecurityParameters) bool {
	sent, ok := packet.SecurityParameters.(*gosnmp.UsmSecurityParameters)
	own, known := user.(*gosnmp.UsmSecurityParameters)
	return ok && known && packet.Version == gosnmp.Version3 && sent.UserName == own.UserName && sent.AuthoritativeEngineID != ""
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
	hosts := append([]string{s.config.host}, s.config.sources...)
	defer s.driver.traps.remove(s)
	for listening := false; ; {
		s.sources.resolve(ctx, hosts)
		if !listening {
			err := s.driver.traps.add(s, emit)
			if listening = err == nil; listening {
				s.device.Tell("Traps", "")
			} else {
				s.device.Tell("Traps", err.Error())
			}
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(lookAgainEvery):
		}
	}
}

// lookAgainEvery is how often the addresses of names are looked up, and a port that another program had is tried.
const lookAgainEvery = 30 * time.Second
