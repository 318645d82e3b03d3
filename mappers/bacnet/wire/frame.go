// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
)

// Address is where a device is: the host on the IP network and, behind a router, the number of its network and its address there.
type Address struct {
	Host    netip.AddrPort
	Network uint16 // 0: the IP network itself
	MAC     string // bytes
}

// String is host, and network and address where there are some.
func (a Address) String() string {
	if a.Network == 0 {
		return a.Host.String()
	}
	return fmt.Sprintf("%s, network %d, address %x", a.Host, a.Network, a.MAC)
}

// The functions of BACnet/IP (annex J of the standard).
const (
	bvlcResult       = 0x00
	bvlcForwarded    = 0x04
	bvlcRegister     = 0x05
	bvlcDistribute   = 0x09
	bvlcUnicast      = 0x0A
	bvlcBroadcast    = 0x0B
	bvlcType         = 0x81
	globalNetwork    = 0xFFFF
	maxAPDU          = 1476
	maxSegmentsAPDU  = 5 // up to 1,476 bytes, and no segments
	expectsReply     = 4
	hasDestination   = 0x20
	hasSource        = 0x08
	isNetworkMessage = 0x80
)

// packet is a message of BACnet/IP, understood.
type packet struct {
	function byte
	result   uint16         // of bvlcResult
	origin   netip.AddrPort // of bvlcForwarded
	network  uint16         // the sender's, if a router passed it on
	mac      string
	apdu     []byte // empty: a message for routers, or none
}

var errNotBACnet = errors.New("it is no message of BACnet/IP")

func decodePacket(b []byte) (p packet, err error) {
	if len(b) < 4 || b[0] != bvlcType || int(binary.BigEndian.Uint16(b[2:])) != len(b) {
		return p, errNotBACnet
	}
	p.function = b[1]
	r := reader{data: b[4:]}
	switch p.function {
	case bvlcResult:
		if code := r.take(2); code != nil {
			p.result = binary.BigEndian.Uint16(code)
		}
		return p, r.err
	case bvlcForwarded:
		if a := r.take(6); a != nil {
			p.origin = netip.AddrPortFrom(netip.AddrFrom4([4]byte(a)), binary.BigEndian.Uint16(a[4:]))
		}
	case bvlcUnicast, bvlcBroadcast:
	default:
		return p, nil
	}
	return p, p.decodeNetwork(&r)
}

// decodeNetwork reads the header of the network layer (6.2 of the standard).
func (p *packet) decodeNetwork(r *reader) error {
	version, control := r.byte(), r.byte()
	if r.err == nil && version != 1 {
		return fmt.Errorf("version %d of the network layer is not 1", version)
	}
	if control&hasDestination != 0 {
		r.take(2)
		r.take(int(r.byte()))
	}
	if control&hasSource != 0 {
		if n := r.take(2); n != nil {
			p.network = binary.BigEndian.Uint16(n)
		}
		p.mac = string(r.take(int(r.byte())))
	}
	if control&hasDestination != 0 {
		r.byte() // hops left
	}
	if r.err == nil && control&isNetworkMessage == 0 {
		p.apdu = r.data
	}
	return r.err
}

// encodePacket wraps an APDU for a device, or for all devices of all networks.
func encodePacket(function byte, to Address, everybody, reply bool, apdu []byte) []byte {
	b := []byte{bvlcType, function, 0, 0, 1, 0}
	if reply {
		b[5] |= expectsReply
	}
	if everybody || to.Network != 0 {
		b[5] |= hasDestination
		if everybody {
			b = append(b, globalNetwork>>8, globalNetwork&0xFF, 0)
		} else {
			b = append(binary.BigEndian.AppendUint16(b, to.Network), byte(len(to.MAC)))
			b = append(b, to.MAC...)
		}
		b = append(b, 255)
	}
	return setLength(append(b, apdu...))
}

// registration asks a BBMD to pass broadcasts on for so many seconds.
func registration(seconds uint16) []byte {
	return setLength(binary.BigEndian.AppendUint16([]byte{bvlcType, bvlcRegister, 0, 0}, seconds))
}

func setLength(b []byte) []byte {
	binary.BigEndian.PutUint16(b[2:], uint16(len(b)))
	return b
}

// The types of APDUs (20.1 of the standard).
const (
	confirmedRequest = iota
	unconfirmedRequest
	simpleAck
	complexAck
	segmentAck
	errorAnswer
	rejectAnswer
	abortAnswer
)

// apdu is a request or an answer, understood.
type apdu struct {
	kind    byte
	service byte
	invoke  byte
	cut     bool // it is one of several segments
	reason  byte // of reject and abort
	data    []byte
}

func decodeAPDU(b []byte) (a apdu, err error) {
	r := reader{data: b}
	first := r.byte()
	a.kind = first >> 4
	a.cut = first&8 != 0 && (a.kind == confirmedRequest || a.kind == complexAck)
	switch a.kind {
	case confirmedRequest:
		r.byte() // what the sender takes
		a.invoke = r.byte()
		if a.cut {
			r.take(2)
		}
		a.service = r.byte()
	case unconfirmedRequest:
		a.service = r.byte()
	case complexAck:
		a.invoke = r.byte()
		if a.cut {
			r.take(2)
		}
		a.service = r.byte()
	case simpleAck, errorAnswer:
		a.invoke, a.service = r.byte(), r.byte()
	case rejectAnswer, abortAnswer:
		a.invoke, a.reason = r.byte(), r.byte()
	default:
		return a, fmt.Errorf("type %d of a request or answer is not known", a.kind)
	}
	a.data = r.data
	return a, r.err
}

func encodeRequest(invoke, service byte, data []byte) []byte {
	return append([]byte{confirmedRequest << 4, maxSegmentsAPDU, invoke, service}, data...)
}

func encodeUnconfirmed(service byte, data []byte) []byte {
	return append([]byte{unconfirmedRequest << 4, service}, data...)
}

func encodeSimpleAck(invoke, service byte) []byte { return []byte{simpleAck << 4, invoke, service} }

func encodeComplexAck(invoke, service byte, data []byte) []byte {
	return append([]byte{complexAck << 4, invoke, service}, data...)
}

func encodeError(invoke, service byte, e Error) []byte {
	b := []byte{errorAnswer << 4, invoke, service}
	b, _ = appendValue(b, Enumerated(e.Class))
	b, _ = appendValue(b, Enumerated(e.Code))
	return b
}

func encodeAbort(invoke, reason byte) []byte { return []byte{abortAnswer<<4 | 1, invoke, reason} }

func encodeReject(invoke, reason byte) []byte { return []byte{rejectAnswer << 4, invoke, reason} }
