// SPDX-License-Identifier: Apache-2.0

package wire

import "encoding/binary"

// frame is a request or an answer on its way: of which transaction, to or from which unit.
type frame struct {
	transaction uint16 // over TCP
	unit        byte
	pdu         []byte
}

// framing is how frames lie in the bytes of a connection.
type framing interface {
	append(to []byte, f frame) []byte
	// next takes the first frame from the bytes that have come. ended is whether nothing has followed them for a while. size is how
	// many bytes are done with, also where they are no frame. After an error the connection can't be used any more.
	next(b []byte, ended bool) (f frame, size int, ok bool, err error)
}

// mbap is the framing over TCP.
type mbap struct{}

const mbapHeader = 7

func (mbap) append(to []byte, f frame) []byte {
	to = binary.BigEndian.AppendUint16(to, f.transaction)
	to = append(to, 0, 0)
	to = binary.BigEndian.AppendUint16(to, uint16(len(f.pdu)+1))
	return append(append(to, f.unit), f.pdu...)
}

func (mbap) next(b []byte, _ bool) (f frame, size int, ok bool, err error) {
	if len(b) < mbapHeader {
		return f, 0, false, nil
	}
	length := int(binary.BigEndian.Uint16(b[4:]))
	if protocol := binary.BigEndian.Uint16(b[2:]); protocol != 0 || length < 2 || length > maxPDU+1 {
		return f, len(b), false, malformedError("its header has protocol %d and length %d", protocol, length)
	}
	if len(b) < 6+length {
		return f, 0, false, nil
	}
	f = frame{transaction: binary.BigEndian.Uint16(b), unit: b[6], pdu: append([]byte(nil), b[mbapHeader:6+length]...)}
	return f, 6 + length, true, nil
}

// rtu is the framing of serial lines. A frame has no length of its own: that follows from its function.
type rtu struct {
	size func(pdu []byte) int // of the PDU that begins with these bytes; 0: more are needed; -1: nobody knows
}

func (rtu) append(to []byte, f frame) []byte {
	at := len(to)
	to = append(append(to, f.unit), f.pdu...)
	return binary.LittleEndian.AppendUint16(to, checksum(to[at:]))
}

// next waits for the rest of a frame whose beginning has come. Where that isn't whole though the line is silent, or is none, bytes are
// skipped until a frame whose checksum is right: noise, or the rest of a frame whose beginning was lost.
func (r rtu) next(b []byte, ended bool) (f frame, size int, ok bool, err error) {
	for at := range b {
		whole, n := r.frameAt(b[at:])
		if n > 0 {
			return frame{unit: b[at], pdu: append([]byte(nil), b[at+1:at+n-2]...)}, at + n, true, nil
		}
		if at == 0 && !whole && !ended {
			return f, 0, false, nil
		}
	}
	if ended {
		return f, len(b), false, nil
	}
	return f, max(0, len(b)-maxPDU-3), false, nil
}

// frameAt is the size of the frame that b begins with; 0: none. whole is whether all of it has come, so that it is none because its
// checksum is wrong.
func (r rtu) frameAt(b []byte) (whole bool, size int) {
	if len(b) < 4 {
		return false, 0
	}
	n := r.size(b[1:])
	if n <= 0 || n > maxPDU {
		return n != 0, 0
	}
	if size = n + 3; len(b) < size {
		return false, 0
	}
	if checksum(b[:size-2]) != binary.LittleEndian.Uint16(b[size-2:]) {
		return true, 0
	}
	return true, size
}

// answerSize is the size of the answer's PDU that begins with these bytes.
func answerSize(pdu []byte) int {
	switch {
	case len(pdu) < 2:
		return 0
	case pdu[0] >= 0x80:
		return 2
	}
	switch pdu[0] {
	case ReadCoils, ReadDiscreteInputs, ReadHoldingRegisters, ReadInputRegisters:
		return 2 + int(pdu[1])
	case WriteSingleCoil, WriteSingleRegister, WriteMultipleCoils, WriteMultipleRegisters:
		return 5
	case Encapsulated:
		return identificationSize(pdu)
	}
	return -1
}

func identificationSize(pdu []byte) int {
	if len(pdu) < 7 {
		return 0
	}
	size := 7
	for range pdu[6] {
		if len(pdu) < size+2 {
			return 0
		}
		size += 2 + int(pdu[size+1])
	}
	return size
}

// requestSize is the size of the request's PDU that begins with these bytes.
func requestSize(pdu []byte) int {
	if len(pdu) < 1 {
		return 0
	}
	switch pdu[0] {
	case ReadCoils, ReadDiscreteInputs, ReadHoldingRegisters, ReadInputRegisters, WriteSingleCoil, WriteSingleRegister:
		return 5
	case WriteMultipleCoils, WriteMultipleRegisters:
		if len(pdu) < 6 {
			return 0
		}
		return 6 + int(pdu[5])
	case Encapsulated:
		return 4
	}
	return -1
}

var checksums = func() (table [256]uint16) {
	for i := range table {
		crc := uint16(i)
		for range 8 {
			if crc&1 == 1 {
				crc = crc>>1 ^ 0xA001
			} else {
				crc >>= 1
			}
		}
		table[i] = crc
	}
	return table
}()

// checksum is the CRC-16 of RTU frames.
func checksum(b []byte) uint16 {
	crc := uint16(0xFFFF)
	for _, x := range b {
		crc = crc>>8 ^ checksums[byte(crc)^x]
	}
	return crc
}
