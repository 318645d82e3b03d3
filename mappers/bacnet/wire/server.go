// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"sync"
	"time"
)

// Server is a device on UDP: objects with properties that are read, written with priorities, and subscribed to. Simulators and
// tests are made of it.
type Server struct {
	Device ObjectID
	Vendor int

	conn   *net.UDPConn
	closed chan struct{}

	mu          sync.Mutex
	order       []ObjectID
	objects     map[ObjectID]*ServerObject
	subscribers []subscriber
	invoke      byte
	limit       int                     // most properties in one request; more: Abort
	answers     func(service byte) bool // see Answer
	play        func(ServerRequest) ServerAnswer
	unknown     byte      // a service that it doesn't know
	rejects     *ObjectID // an object that it doesn't understand
	announces   netip.AddrPort
}

// ServerObject is an object of a Server.
type ServerObject struct {
	Properties map[PropertyID][]any
	// Commandable objects keep what was written with each priority, and fall back to relinquishDefault.
	Commandable bool
	// Check refuses values; nil: none.
	Check      func(value any) error
	priorities [16]any
}

type subscriber struct {
	subscription
	to  Address
	end time.Time
}

// NewServer opens a device that listens on a UDP address.
func NewServer(listen string, instance uint32, objects map[ObjectID]*ServerObject) (*Server, error) {
	local, err := net.ResolveUDPAddr("udp4", listen)
	if err != nil {
		return nil, fmt.Errorf("listen on %s: %w", listen, err)
	}
	s := &Server{Device: NewObjectID(Device, instance), Vendor: 0xFFFF, closed: make(chan struct{}), objects: objects}
	for id := range objects {
		s.order = append(s.order, id)
	}
	slices.Sort(s.order)
	if s.conn, err = net.ListenUDP("udp4", local); err != nil {
		return nil, err
	}
	go s.serve()
	return s, nil
}

// Addr is where the device is.
func (s *Server) Addr() netip.AddrPort { return s.conn.LocalAddr().(*net.UDPAddr).AddrPort() }

// Close ends it.
func (s *Server) Close() error {
	select {
	case <-s.closed:
		return nil
	default:
		close(s.closed)
		return s.conn.Close()
	}
}

// Limit is the most properties that one request may ask for; 0: any.
func (s *Server) Limit(properties int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.limit = properties
}

// Answer decides which requests get an answer, by the number of their service; nil: all.
func (s *Server) Answer(answers func(service byte) bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.answers = answers
}

// ServerRequest is a request that needs an answer.
type ServerRequest struct {
	Service byte
	Object  ObjectID // the first that it reads or writes
	Write   bool
}

// ServerAnswer is how a request is treated: not at all, with the answer that the device is busy, or as any other, after a while and
// without an answer. What is written Later has no effect before that.
type ServerAnswer struct {
	Ignored, Busy, Lost bool
	Delay, Later        time.Duration
}

// Play decides how each request is treated.
func (s *Server) Play(play func(ServerRequest) ServerAnswer) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.play = play
}

// describe says what a request is about.
func (a apdu) describe() ServerRequest {
	r := ServerRequest{Service: a.service, Write: a.service == serviceWrite}
	switch a.service {
	case serviceReadMultiple:
		if refs, err := decodeReadMultiple(a.data); err == nil && len(refs) > 0 {
			r.Object = refs[0].Object
		}
	case serviceRead:
		if ref, err := decodeRead(a.data); err == nil {
			r.Object = ref.Object
		}
	case serviceWrite:
		if w, err := decodeWrite(a.data); err == nil {
			r.Object = w.Object
		}
	}
	return r
}

// Restart forgets all subscriptions, as a device does that starts again, and says I-Am to who subscribed if announce is true.
func (s *Server) Restart(announce bool) {
	s.mu.Lock()
	list := s.subscribers
	s.subscribers = nil
	s.mu.Unlock()
	for _, sub := range list {
		if announce {
			s.send(sub.to, encodeUnconfirmed(unconfirmedIAm, s.iAm()))
		}
	}
}

// Set changes a present value, and tells who subscribed.
func (s *Server) Set(id ObjectID, value any) {
	s.mu.Lock()
	if o := s.objects[id]; o != nil {
		if o.Commandable {
			o.Properties[RelinquishValue] = []any{value}
		}
		o.Properties[PresentValue] = []any{value}
		o.settle()
	}
	s.mu.Unlock()
	s.tell(id)
}

// SetProperty changes a property and tells nobody.
func (s *Server) SetProperty(id ObjectID, p PropertyID, values ...any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.objects[id].Properties[p] = values
}

// Unknown makes the device reject a service.
func (s *Server) Unknown(service byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.unknown = service
}

// RejectObject makes the device reject, for another reason than that it doesn't know the service, what it is asked together with an object.
func (s *Server) RejectObject(id ObjectID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.rejects = &id
}

// AnswerWhoIsAt makes the device send I-Am to an address, such as that of everybody, and not to who asked.
func (s *Server) AnswerWhoIsAt(to netip.AddrPort) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.announces = to
}

// Value is an object's present value.
func (s *Server) Value(id ObjectID) any {
	s.mu.Lock()
	defer s.mu.Unlock()
	if o := s.objects[id]; o != nil && len(o.Properties[PresentValue]) == 1 {
		return o.Properties[PresentValue][0]
	}
	return nil
}

// settle makes the present value that of the highest priority.
func (o *ServerObject) settle() {
	if !o.Commandable {
		return
	}
	for _, v := range o.priorities {
		if v != nil {
			o.Properties[PresentValue] = []any{v}
			return
		}
	}
	if v := o.Properties[RelinquishValue]; len(v) == 1 {
		o.Properties[PresentValue] = v
	}
}

func (s *Server) serve() {
	buffer := make([]byte, 2048)
	for {
		n, from, err := s.conn.ReadFromUDPAddrPort(buffer)
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			continue
		}
		p, err := decodePacket(buffer[:n])
		if err != nil {
			continue
		}
		if p.function == bvlcForwarded {
			from = p.origin
		}
		if a, err := decodeAPDU(p.apdu); err == nil {
			s.handle(Address{Host: netip.AddrPortFrom(from.Addr().Unmap(), from.Port()), Network: p.network, MAC: p.mac}, a)
		}
	}
}

func (s *Server) send(to Address, apdu []byte) {
	_, _ = s.conn.WriteToUDPAddrPort(encodePacket(bvlcUnicast, to, false, false, apdu), to.Host)
}

func (s *Server) iAm() []byte {
	return encodeIAm(IAm{Device: s.Device, MaxAPDU: maxAPDU, Vendor: s.Vendor})
}

func (s *Server) handle(from Address, a apdu) {
	s.mu.Lock()
	answers, play, announces := s.answers, s.play, s.announces
	s.mu.Unlock()
	var played ServerAnswer
	if a.kind == confirmedRequest && play != nil {
		played = play(a.describe())
	}
	if played.Ignored || a.kind == confirmedRequest && answers != nil && !answers(a.service) {
		return
	}
	switch {
	case a.kind == unconfirmedRequest && a.service == unconfirmedWhoIs:
		low, high, err := decodeWhoIs(a.data)
		if n := s.Device.Instance(); err == nil && n >= low && n <= high {
			if announces.IsValid() {
				from = Address{Host: announces}
			}
			s.send(from, encodeUnconfirmed(unconfirmedIAm, s.iAm()))
		}
	case played.Busy:
		s.send(from, encodeError(a.invoke, a.service, Error{classDevice, codeDeviceBusy}))
	case played.Later > 0:
		a.data = slices.Clone(a.data)
		time.AfterFunc(played.Later, func() {
			if _, changed := s.confirmed(from, a); changed != s.Device {
				s.tell(changed)
			}
		})
		s.send(from, encodeSimpleAck(a.invoke, a.service))
	case a.kind == confirmedRequest:
		answer, changed := s.confirmed(from, a)
		time.Sleep(played.Delay)
		if !played.Lost {
			s.send(from, answer)
		}
		if changed != s.Device {
			s.tell(changed)
		}
	}
}

// confirmed answers a request. The object is one that has changed; the device itself: none has.
func (s *Server) confirmed(from Address, a apdu) (answer []byte, changed ObjectID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if a.service == s.unknown {
		return encodeReject(a.invoke, rejectUnrecognized), s.Device
	}
	switch a.service {
	case serviceReadMultiple:
		return s.readMultiple(a), s.Device
	case serviceRead:
		ref, err := decodeRead(a.data)
		if err != nil {
			break
		}
		result := s.read(ref)
		if result.Err != nil {
			return encodeAnyError(a, result.Err), s.Device
		}
		data, err := encodeResult(result)
		if err != nil {
			break
		}
		return encodeComplexAck(a.invoke, a.service, data), s.Device
	case serviceWrite:
		w, err := decodeWrite(a.data)
		if err != nil {
			break
		}
		if err := s.write(w); err != nil {
			return encodeAnyError(a, err), s.Device
		}
		return encodeSimpleAck(a.invoke, a.service), w.Object
	case serviceSubscribeCOV:
		sub, cancel, err := decodeSubscribe(a.data)
		if err != nil {
			break
		}
		if s.objects[sub.object] == nil {
			return encodeError(a.invoke, a.service, Error{classObject, codeUnknownObject}), s.Device
		}
		s.subscribers = slices.DeleteFunc(s.subscribers, func(x subscriber) bool {
			return x.to == from && x.process == sub.process && x.object == sub.object
		})
		if !cancel {
			s.subscribers = append(s.subscribers, subscriber{sub, from, time.Now().Add(time.Duration(sub.lifetime) * time.Second)})
		}
		return encodeSimpleAck(a.invoke, a.service), sub.object
	}
	return encodeReject(a.invoke, rejectUnrecognized), s.Device
}

func encodeAnyError(a apdu, err error) []byte {
	e := Error{Class: classProperty, Code: codeOther}
	errors.As(err, &e)
	return encodeError(a.invoke, a.service, e)
}

func (s *Server) readMultiple(a apdu) []byte {
	refs, err := decodeReadMultiple(a.data)
	if err != nil {
		return encodeReject(a.invoke, rejectUnrecognized)
	}
	if s.limit > 0 && len(refs) > s.limit {
		return encodeAbort(a.invoke, abortTooLong)
	}
	if s.rejects != nil && slices.ContainsFunc(refs, func(r Reference) bool { return r.Object == *s.rejects }) {
		return encodeReject(a.invoke, rejectUndefinedEnumeration)
	}
	results := make([]Result, len(refs))
	for i, ref := range refs {
		results[i] = s.read(ref)
	}
	data, err := encodeResults(results)
	if err != nil || len(data) > maxAPDU-3 {
		return encodeAbort(a.invoke, abortTooLong)
	}
	return encodeComplexAck(a.invoke, a.service, data)
}

func (s *Server) read(ref Reference) Result {
	if ref.Object == NewObjectID(Device, MaxInstance) { // stands for whichever it is
		ref.Object = s.Device
	}
	result := Result{Reference: ref}
	values, ok := s.property(ref)
	switch {
	case !ok && s.objects[ref.Object] == nil && ref.Object != s.Device:
		result.Err = Error{classObject, codeUnknownObject}
	case !ok:
		result.Err = Error{classProperty, codeUnknownProperty}
	case ref.Index == 0:
		result.Values = []any{uint64(len(values))}
	case ref.Index > len(values):
		result.Err = Error{classProperty, 42}
	case ref.Index > 0:
		result.Values = values[ref.Index-1 : ref.Index]
	default:
		result.Values = values
	}
	return result
}

func (s *Server) property(ref Reference) ([]any, bool) {
	if ref.Property == ObjectIdentifier {
		return []any{ref.Object}, ref.Object == s.Device || s.objects[ref.Object] != nil
	}
	if ref.Object == s.Device && ref.Property == ObjectList {
		list := []any{s.Device}
		for _, id := range s.order {
			if id != s.Device {
				list = append(list, id)
			}
		}
		return list, true
	}
	o := s.objects[ref.Object]
	if o == nil {
		return nil, false
	}
	values, ok := o.Properties[ref.Property]
	return values, ok
}

func (s *Server) write(w write) error {
	o := s.objects[w.Object]
	switch {
	case o == nil:
		return Error{classObject, codeUnknownObject}
	case w.Property != PresentValue && o.Properties[w.Property] == nil:
		return Error{classProperty, codeUnknownProperty}
	case w.Property != PresentValue || w.Object.Type() == AnalogInput || w.Object.Type() == BinaryInput || w.Object.Type() == MultiStateInput:
		return Error{classProperty, codeWriteDenied}
	case w.value == nil && !o.Commandable:
		return Error{classProperty, codeInvalidDataType}
	case w.value != nil && fmt.Sprintf("%T", w.value) != fmt.Sprintf("%T", o.Properties[PresentValue][0]):
		return Error{classProperty, codeInvalidDataType}
	case w.value != nil && o.Check != nil && o.Check(w.value) != nil:
		return Error{classProperty, codeValueOutOfRange}
	}
	if !o.Commandable {
		o.Properties[PresentValue] = []any{w.value}
		return nil
	}
	priority := w.priority
	if priority == 0 || priority > 16 {
		priority = 16
	}
	o.priorities[priority-1] = w.value
	o.settle()
	return nil
}

// tell sends an object's present value and status to who subscribed to it.
func (s *Server) tell(id ObjectID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	s.subscribers = slices.DeleteFunc(s.subscribers, func(x subscriber) bool { return x.lifetime > 0 && x.end.Before(now) })
	for _, sub := range s.subscribers {
		if sub.object != id {
			continue
		}
		n := Notification{Process: sub.process, Device: s.Device, Object: id, TimeLeft: uint32(max(0, sub.end.Sub(now)) / time.Second)}
		for _, p := range []PropertyID{PresentValue, StatusFlags} {
			if values := s.objects[id].Properties[p]; values != nil {
				n.Values = append(n.Values, Result{Reference: Reference{id, p, NoIndex}, Values: values})
			}
		}
		data, err := encodeNotification(n)
		if err != nil {
			continue
		}
		s.invoke++
		message := encodeRequest(s.invoke, serviceConfirmedCOV, data)
		if !sub.confirmed {
			message = encodeUnconfirmed(unconfirmedCOV, data)
		}
		s.send(sub.to, message)
	}
}
