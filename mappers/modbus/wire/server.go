// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"encoding/binary"
	"errors"
	"io"
	"net"
	"sync"
	"time"
)

// Call is a request as a server sees it. Bits are 0 and 1.
type Call struct {
	Unit     byte
	Function byte
	Address  uint16
	Quantity uint16
	Values   []uint16 // of a write
}

// IsWrite is whether the call changes something.
func (c Call) IsWrite() bool { return c.Values != nil }

// Reply is what a server is about to answer. A habit changes it.
type Reply struct {
	Call        Call
	Connected   time.Time // when the connection was made
	LastAnswer  time.Time // when the server last answered over it
	Transaction uint16
	Unit        byte
	PDU         []byte
	Delay       time.Duration // before it is sent
	Silent      bool          // it is not sent
	Close       bool          // the connection ends, after what is sent
}

// Refuse makes it an exception.
func (r *Reply) Refuse(e Exception) { r.PDU = []byte{r.Call.Function | 0x80, byte(e)} }

// Server answers requests. Its fields are set before Listen or Serve.
type Server struct {
	// Handle answers a call: with the values of a read, and with none of a write. An Exception is answered as one; any other error is that
	// of the device itself.
	Handle func(Call) ([]uint16, error)
	// Identification is what the device says of itself; nil: it doesn't know the function.
	Identification Identification
	// Before sees a call before it is handled, and Reply what would be answered to it. Optional.
	Before func(*Reply)
	After  func(*Reply)
	Idle   time.Duration // after which connections are closed; 0: never
	Most   int           // connections at once; 0: any number

	mu       sync.Mutex
	listener net.Listener
	conns    map[io.Closer]bool
	closed   bool
	wg       sync.WaitGroup
}

// Listen serves Modbus TCP at an address.
func (s *Server) Listen(address string) error {
	l, err := net.Listen("tcp", address)
	if err != nil {
		return err
	}
	s.listener, s.conns = l, map[io.Closer]bool{}
	s.wg.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			if !s.add(c) {
				reset(c)
				continue
			}
			s.wg.Go(func() {
				s.serve(c, mbap{})
				s.remove(c)
			})
		}
	})
	return nil
}

// ServeLine serves Modbus RTU on a connection until that ends.
func (s *Server) ServeLine(c io.ReadWriter) { s.serve(c, rtu{requestSize}) }

// Addr is where it listens, host:port.
func (s *Server) Addr() string { return s.listener.Addr().String() }

// Close ends all connections.
func (s *Server) Close() error {
	err := s.listener.Close()
	s.mu.Lock()
	s.closed = true
	for c := range s.conns {
		_ = c.Close()
	}
	s.mu.Unlock()
	s.wg.Wait()
	return err
}

func (s *Server) add(c net.Conn) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed || s.Most > 0 && len(s.conns) >= s.Most {
		return false
	}
	s.conns[c] = true
	return true
}

func (s *Server) remove(c net.Conn) {
	_ = c.Close()
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.conns, c)
}

// reset closes a connection so that the other side sees it refused.
func reset(c net.Conn) {
	if t, ok := c.(*net.TCPConn); ok {
		_ = t.SetLinger(0)
	}
	_ = c.Close()
}

func (s *Server) serve(c io.ReadWriter, framing framing) {
	connected, answered := time.Now(), time.Time{}
	var buffer []byte
	for {
		if conn, ok := c.(net.Conn); ok && s.Idle > 0 {
			_ = conn.SetReadDeadline(time.Now().Add(s.Idle))
		}
		b := make([]byte, 512)
		n, err := c.Read(b)
		if err != nil {
			return
		}
		buffer = append(buffer, b[:n]...)
		for {
			f, size, ok, err := framing.next(buffer, false)
			if buffer = buffer[size:]; err != nil {
				return
			}
			if !ok {
				break
			}
			r := s.reply(f, connected, answered)
			time.Sleep(r.Delay)
			if !r.Silent {
				if _, err := c.Write(framing.append(nil, frame{r.Transaction, r.Unit, r.PDU})); err != nil {
					return
				}
				answered = time.Now()
			}
			if r.Close {
				return
			}
		}
	}
}

func (s *Server) reply(f frame, connected, answered time.Time) *Reply {
	r := &Reply{Connected: connected, LastAnswer: answered, Transaction: f.transaction, Unit: f.unit}
	call, ok := parseCall(f)
	r.Call = call
	if !ok {
		r.Call.Function = f.pdu[0]
		r.Refuse(IllegalFunction)
		if known := f.pdu[0] <= ReadInputRegisters || requestSize(f.pdu) > 0; known && f.pdu[0] != Encapsulated {
			r.Refuse(IllegalValue)
		}
	}
	if s.Before != nil {
		s.Before(r)
	}
	switch {
	case r.PDU != nil || r.Silent || r.Close && r.PDU == nil: // a habit has seen to it, or there is nothing to ask
		r.Silent = r.Silent || r.PDU == nil
	case call.Function == Encapsulated:
		r.PDU = s.identify(f.pdu)
	default:
		r.PDU = s.answer(call)
	}
	if s.After != nil {
		s.After(r)
	}
	return r
}

// parseCall reads a request. ok is false of what the standard doesn't allow.
func parseCall(f frame) (c Call, ok bool) {
	c = Call{Unit: f.unit}
	if len(f.pdu) == 0 {
		return c, false
	}
	c.Function = f.pdu[0]
	if c.Function == Encapsulated {
		return c, len(f.pdu) == 4 && f.pdu[1] == identification
	}
	if size := requestSize(f.pdu); size <= 0 || size != len(f.pdu) {
		return c, false
	}
	c.Address, c.Quantity = binary.BigEndian.Uint16(f.pdu[1:]), binary.BigEndian.Uint16(f.pdu[3:])
	switch c.Function {
	case ReadCoils, ReadDiscreteInputs:
		return c, c.fits(MaxReadBits)
	case ReadHoldingRegisters, ReadInputRegisters:
		return c, c.fits(MaxReadRegisters)
	case WriteSingleCoil:
		value := c.Quantity
		c.Quantity, c.Values = 1, []uint16{value >> 15}
		return c, value == 0 || value == 0xFF00
	case WriteSingleRegister:
		c.Quantity, c.Values = 1, []uint16{c.Quantity}
		return c, true
	case WriteMultipleCoils:
		c.Values = Bits(f.pdu[6:], c.Quantity)
		return c, c.fits(MaxWriteBits) && int(f.pdu[5]) == (int(c.Quantity)+7)/8
	}
	c.Values = Words(f.pdu[6:])
	return c, c.fits(MaxWriteRegisters) && int(f.pdu[5]) == 2*int(c.Quantity)
}

func (c Call) fits(most uint16) bool {
	return c.Quantity >= 1 && c.Quantity <= most && int(c.Address)+int(c.Quantity) <= 65536
}

func (s *Server) answer(c Call) []byte {
	values, err := s.Handle(c)
	var refused Exception
	switch {
	case errors.As(err, &refused):
		return []byte{c.Function | 0x80, byte(refused)}
	case err != nil || !c.IsWrite() && len(values) != int(c.Quantity):
		return []byte{c.Function | 0x80, byte(DeviceFailure)}
	}
	switch c.Function {
	case ReadCoils, ReadDiscreteInputs:
		bits := make([]bool, len(values))
		for i, v := range values {
			bits[i] = v != 0
		}
		data := packBits(bits)
		return append([]byte{c.Function, byte(len(data))}, data...)
	case ReadHoldingRegisters, ReadInputRegisters:
		return append([]byte{c.Function, byte(2 * len(values))}, packWords(values)...)
	case WriteSingleCoil:
		return WriteCoil(c.Address, c.Values[0] != 0).pdu
	case WriteSingleRegister:
		return WriteRegister(c.Address, c.Values[0]).pdu
	}
	return twoWords(c.Function, c.Address, c.Quantity)
}

// identify answers a request for the device identification, whose objects fit one answer.
func (s *Server) identify(pdu []byte) []byte {
	if s.Identification == nil {
		return []byte{Encapsulated | 0x80, byte(IllegalFunction)}
	}
	answer := []byte{Encapsulated, identification, pdu[2], 0x82, 0, 0, 0}
	for id := pdu[3]; id < 0x80; id++ {
		if text := s.Identification[id]; text != "" && len(answer)+2+len(text) <= maxPDU {
			answer = append(append(answer, id, byte(len(text))), text...)
			answer[6]++
		}
	}
	return answer
}
