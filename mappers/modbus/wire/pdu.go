// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
)

// The function codes that are spoken here.
const (
	ReadCoils              = 0x01
	ReadDiscreteInputs     = 0x02
	ReadHoldingRegisters   = 0x03
	ReadInputRegisters     = 0x04
	WriteSingleCoil        = 0x05
	WriteSingleRegister    = 0x06
	WriteMultipleCoils     = 0x0F
	WriteMultipleRegisters = 0x10
	Encapsulated           = 0x2B // of which device identification is one kind
)

const identification = 0x0E

// Limits of one request, by the standard.
const (
	MaxReadRegisters  = 125
	MaxReadBits       = 2000
	MaxWriteRegisters = 123
	MaxWriteBits      = 1968
	maxPDU            = 253
)

// Exception is an answer that refuses a request.
type Exception byte

// The exceptions.
const (
	IllegalFunction    Exception = 0x01
	IllegalAddress     Exception = 0x02
	IllegalValue       Exception = 0x03
	DeviceFailure      Exception = 0x04
	Acknowledged       Exception = 0x05 // the device has begun, and isn't done
	DeviceBusy         Exception = 0x06
	MemoryParityError  Exception = 0x08
	GatewayUnavailable Exception = 0x0A // a gateway has no way to the device
	TargetSilent       Exception = 0x0B // a gateway has had no answer of the device
)

var exceptionNames = map[Exception]string{
	IllegalFunction: "illegal function", IllegalAddress: "illegal data address", IllegalValue: "illegal data value", DeviceFailure: "device failure",
	Acknowledged: "acknowledged, not done yet", DeviceBusy: "device busy", MemoryParityError: "memory parity error",
	GatewayUnavailable: "gateway path unavailable", TargetSilent: "gateway target failed to respond",
}

func (e Exception) Error() string {
	if name := exceptionNames[e]; name != "" {
		return fmt.Sprintf("exception %02X (%s)", byte(e), name)
	}
	return fmt.Sprintf("exception %02X", byte(e))
}

// Busy is whether the device asks to be asked again.
func (e Exception) Busy() bool { return e == Acknowledged || e == DeviceBusy }

// OfGateway is whether it is a gateway that answers, and not the device.
func (e Exception) OfGateway() bool { return e == GatewayUnavailable || e == TargetSilent }

// Request is what is asked of a unit.
type Request struct {
	pdu  []byte
	size int // how many bytes of data the answer must have; -1: any number
}

// Same is whether it asks the same as another.
func (q Request) Same(other Request) bool { return bytes.Equal(q.pdu, other.pdu) }

// Function is the request's function code.
func (q Request) Function() byte { return q.pdu[0] }

// IsWrite is whether the request changes something.
func (q Request) IsWrite() bool {
	switch q.Function() {
	case WriteSingleCoil, WriteSingleRegister, WriteMultipleCoils, WriteMultipleRegisters:
		return true
	}
	return false
}

// Read asks for coils, discrete inputs or registers.
func Read(function byte, address, quantity uint16) Request {
	size := 2 * int(quantity)
	if function == ReadCoils || function == ReadDiscreteInputs {
		size = (int(quantity) + 7) / 8
	}
	return Request{twoWords(function, address, quantity), size}
}

// WriteCoil sets a coil.
func WriteCoil(address uint16, on bool) Request {
	value := uint16(0)
	if on {
		value = 0xFF00
	}
	return Request{twoWords(WriteSingleCoil, address, value), 4}
}

// WriteRegister sets a holding register.
func WriteRegister(address, value uint16) Request {
	return Request{twoWords(WriteSingleRegister, address, value), 4}
}

// WriteCoils sets coils in one request.
func WriteCoils(address uint16, bits []bool) Request {
	data := packBits(bits)
	pdu := append(twoWords(WriteMultipleCoils, address, uint16(len(bits))), byte(len(data)))
	return Request{append(pdu, data...), 4}
}

// WriteRegisters sets holding registers in one request.
func WriteRegisters(address uint16, words []uint16) Request {
	pdu := append(twoWords(WriteMultipleRegisters, address, uint16(len(words))), byte(2*len(words)))
	return Request{append(pdu, packWords(words)...), 4}
}

// Identify asks for objects of the device identification, from one on: code 1 is the basic ones, 2 the regular ones.
func Identify(code, from byte) Request {
	return Request{[]byte{Encapsulated, identification, code, from}, -1}
}

func twoWords(function byte, a, b uint16) []byte {
	pdu := binary.BigEndian.AppendUint16([]byte{function}, a)
	return binary.BigEndian.AppendUint16(pdu, b)
}

// MalformedError is an answer that is none to the request.
type MalformedError struct {
	Reason string
	Short  bool // it has another number of registers than was asked for
}

func (e *MalformedError) Error() string { return "the answer is malformed: " + e.Reason }

func malformedError(format string, args ...any) error {
	return &MalformedError{Reason: fmt.Sprintf(format, args...)}
}

// IsShort reports whether err is of an answer that has another number of registers than was asked for.
func IsShort(err error) bool {
	var m *MalformedError
	return errors.As(err, &m) && m.Short
}

// IsMalformed reports whether err is of an answer that is none to its request.
func IsMalformed(err error) bool { return errors.As(err, new(*MalformedError)) }

// data is what an answer holds: of a read the bytes of the registers or bits, otherwise what follows the function code.
func (q Request) data(answer []byte) ([]byte, error) {
	switch {
	case len(answer) < 2:
		return nil, malformedError("it has %d bytes", len(answer))
	case answer[0] == q.Function()|0x80:
		return nil, Exception(answer[1])
	case answer[0] != q.Function():
		return nil, malformedError("it is of function %d, and not of %d", answer[0], q.Function())
	case q.Function() == Encapsulated:
		return answer[1:], nil
	case q.IsWrite():
		single := q.Function() == WriteSingleCoil || q.Function() == WriteSingleRegister // of which some devices say the value that they took
		if len(answer) != 5 || [2]byte(answer[1:]) != [2]byte(q.pdu[1:3]) || !single && [2]byte(answer[3:]) != [2]byte(q.pdu[3:5]) {
			return nil, malformedError("it is of another write")
		}
		return answer[1:], nil
	case len(answer) != 2+int(answer[1]):
		return nil, malformedError("it has %d bytes of data, and says %d", len(answer)-2, answer[1])
	case int(answer[1]) != q.size:
		return nil, &MalformedError{fmt.Sprintf("it has %d bytes of data, and not %d", answer[1], q.size), true}
	}
	return answer[2:], nil
}

// matches is whether an answer may be this request's: an exception of its function, or one with as much data.
func (q Request) matches(answer []byte) bool {
	_, err := q.data(answer)
	return !IsMalformed(err)
}

// Words are the registers in the data of an answer.
func Words(data []byte) []uint16 {
	words := make([]uint16, len(data)/2)
	for i := range words {
		words[i] = binary.BigEndian.Uint16(data[2*i:])
	}
	return words
}

// Bits are the first bits in the data of an answer, as 0 and 1.
func Bits(data []byte, quantity uint16) []uint16 {
	bits := make([]uint16, min(int(quantity), 8*len(data)))
	for i := range bits {
		bits[i] = uint16(data[i/8] >> (i % 8) & 1)
	}
	return bits
}

func packWords(words []uint16) (data []byte) {
	for _, w := range words {
		data = binary.BigEndian.AppendUint16(data, w)
	}
	return data
}

func packBits(bits []bool) []byte {
	data := make([]byte, (len(bits)+7)/8)
	for i, b := range bits {
		if b {
			data[i/8] |= 1 << (i % 8)
		}
	}
	return data
}

// Identification are the objects of a device identification: 0 is the vendor, 1 the product code, 2 the revision, 4 the product's name.
type Identification map[byte]string

// add takes the objects in the data of an answer. next is the object to ask for next; 0: there are no more.
func (o Identification) add(data []byte) (next byte, err error) {
	if len(data) < 6 || data[0] != identification {
		return 0, malformedError("it is no device identification")
	}
	more, rest := data[3] == 0xFF, data[6:]
	for range data[5] {
		if len(rest) < 2 || len(rest) < 2+int(rest[1]) {
			return 0, malformedError("a text of the device identification is cut off")
		}
		o[rest[0]] = string(rest[2 : 2+rest[1]])
		rest = rest[2+int(rest[1]):]
	}
	if more {
		next = data[4]
	}
	return next, nil
}
