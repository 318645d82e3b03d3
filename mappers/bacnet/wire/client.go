// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"sync"
	"time"
)

// Options are those of a Client.
type Options struct {
	// Listen is the UDP address that answers and notifications come to. Devices broadcast I-Am to port 47808.
	Listen string
	// Broadcast is where Who-Is goes to: 255.255.255.255:47808, a subnet's broadcast address, or a single device. Empty: only to those that
	// AskWho names.
	Broadcast string
	// Hear are broadcast addresses and ports at which I-Am is heard as well: with port 47808 it is, whoever has that port. What can't be
	// listened to is left out.
	Hear []netip.AddrPort
	// BBMD is the host that passes broadcasts on to other subnets, with which the Client registers as a foreign device. Empty: none.
	BBMD string
	// Timeout is how long a device may take to answer.
	Timeout time.Duration
}

// Client asks devices, and hears their notifications. Its methods may be called at the same time.
type Client struct {
	o         Options
	conn      *net.UDPConn
	hears     []*net.UDPConn
	broadcast netip.AddrPort
	bbmd      netip.AddrPort
	done      chan struct{}

	mu         sync.Mutex
	nextInvoke byte
	nextID     uint32
	waiting    map[exchange]chan apdu
	listeners  map[uint32]func(Notification)
	processes  map[uint32]Address // whose notifications each process takes
	announced  map[uint32]func(IAm)
	registered chan uint16 // capacity 1: the BBMD's answer
}

// exchange is one request to a device that is not answered yet.
type exchange struct {
	to     Address
	invoke byte
}

// DefaultPort is BACnet's.
const DefaultPort = 47808

// registerFor is how long a BBMD keeps a registration, which is renewed at half of it.
const registerFor = 10 * time.Minute

// NewClient opens the socket. With a BBMD it registers there, and again for as long as the Client is open.
func NewClient(o Options) (*Client, error) {
	local, err := net.ResolveUDPAddr("udp4", o.Listen)
	if err != nil {
		return nil, fmt.Errorf("listen on %s: %w", o.Listen, err)
	}
	c := &Client{
		o: o, done: make(chan struct{}), waiting: map[exchange]chan apdu{}, listeners: map[uint32]func(Notification){},
		processes: map[uint32]Address{}, announced: map[uint32]func(IAm){}, registered: make(chan uint16, 1),
	}
	if o.Broadcast != "" {
		if c.broadcast, err = ResolveHost(o.Broadcast); err != nil {
			return nil, err
		}
	}
	if o.BBMD != "" {
		if c.bbmd, err = ResolveHost(o.BBMD); err != nil {
			return nil, err
		}
	}
	if c.conn, err = listenOwn(local); err != nil {
		return nil, fmt.Errorf("listen on %s, where BACnet devices send what they announce (another program of this host may have the port): %w", o.Listen, err)
	}
	go c.receive(c.conn)
	for _, address := range o.Hear {
		if conn, err := listenBroadcast(address.String()); err == nil {
			c.hears = append(c.hears, conn)
			go c.receive(conn)
		}
	}
	if c.bbmd.IsValid() {
		go c.stayRegistered()
	}
	return c, nil
}

// ResolveHost finds the address of a host; without a port it is BACnet's.
func ResolveHost(host string) (netip.AddrPort, error) {
	if _, _, err := net.SplitHostPort(host); err != nil {
		host = net.JoinHostPort(host, fmt.Sprint(DefaultPort))
	}
	a, err := net.ResolveUDPAddr("udp4", host)
	if err != nil {
		return netip.AddrPort{}, fmt.Errorf("%s is no address: %w", host, err)
	}
	p := a.AddrPort()
	return netip.AddrPortFrom(p.Addr().Unmap(), p.Port()), nil
}

// Addr is the address that the Client listens on.
func (c *Client) Addr() netip.AddrPort { return c.conn.LocalAddr().(*net.UDPAddr).AddrPort() }

// Close ends all that runs.
func (c *Client) Close() error {
	select {
	case <-c.done:
		return nil
	default:
		close(c.done)
		for _, conn := range c.hears {
			_ = conn.Close()
		}
		return c.conn.Close()
	}
}

func (c *Client) receive(conn *net.UDPConn) {
	buffer := make([]byte, 2048)
	for {
		n, from, err := conn.ReadFromUDPAddrPort(buffer)
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			continue // what ICMP says of an earlier message
		}
		from = netip.AddrPortFrom(from.Addr().Unmap(), from.Port())
		c.handle(from, buffer[:n])
	}
}

// handle takes one message. What can't be understood is nobody's answer, and is dropped.
func (c *Client) handle(from netip.AddrPort, b []byte) {
	p, err := decodePacket(b)
	if err != nil {
		return
	}
	if p.function == bvlcResult {
		if from == c.bbmd {
			select {
			case c.registered <- p.result:
			default:
			}
		}
		return
	}
	if p.function == bvlcForwarded {
		from = p.origin
	}
	a, err := decodeAPDU(p.apdu)
	if err != nil {
		return
	}
	c.dispatch(Address{Host: from, Network: p.network, MAC: p.mac}, a)
}

func (c *Client) dispatch(from Address, a apdu) {
	switch {
	case a.kind == unconfirmedRequest && a.service == unconfirmedIAm:
		if i, err := decodeIAm(a.data); err == nil {
			i.Address = from
			c.mu.Lock()
			list := make([]func(IAm), 0, len(c.announced))
			for _, f := range c.announced {
				list = append(list, f)
			}
			c.mu.Unlock()
			for _, f := range list {
				f(i)
			}
		}
	case a.kind == unconfirmedRequest && a.service == unconfirmedCOV:
		c.notify(from, a)
	case a.kind == confirmedRequest && a.service == serviceConfirmedCOV && !a.cut:
		answer := encodeSimpleAck(a.invoke, a.service)
		if !c.notify(from, a) {
			answer = encodeError(a.invoke, a.service, Error{Class: 5, Code: codeOther}) // so that the device forgets the subscription
		}
		_, _ = c.conn.WriteToUDPAddrPort(encodePacket(bvlcUnicast, from, false, false, answer), from.Host)
	case a.kind == confirmedRequest || a.kind == unconfirmedRequest:
	default:
		c.mu.Lock()
		wait := c.waiting[exchange{from, a.invoke}]
		c.mu.Unlock()
		if wait != nil {
			a.data = append([]byte{}, a.data...)
			select {
			case wait <- a:
			default:
			}
		}
	}
}

// notify passes a notification on to who subscribed. It is false when nobody did, at that device.
func (c *Client) notify(from Address, a apdu) bool {
	n, err := decodeNotification(a.data)
	if err != nil {
		return false
	}
	c.mu.Lock()
	f, ok := c.listeners[n.Process]
	ok = ok && c.processes[n.Process] == from
	c.mu.Unlock()
	if ok {
		f(n)
	}
	return ok
}

// ErrNoAnswer is the error of a request that a device didn't answer in time.
var ErrNoAnswer = errors.New("no answer")

// request sends a confirmed request, and waits for its answer. tries is how often it is sent; a write only once.
func (c *Client) request(ctx context.Context, to Address, service byte, data []byte, tries int) (apdu, error) {
	key, wait := c.begin(to)
	defer c.end(key)
	message := encodePacket(bvlcUnicast, to, false, true, encodeRequest(key.invoke, service, data))
	timer := time.NewTimer(0)
	defer timer.Stop()
	for sent := 0; ; {
		select {
		case <-ctx.Done():
			return apdu{}, fmt.Errorf("%s: %w", to, ctx.Err())
		case <-c.done:
			return apdu{}, net.ErrClosed
		case a := <-wait:
			return answerError(a, service)
		case <-timer.C:
			if sent == tries {
				return apdu{}, fmt.Errorf("%s: %w within %s", to, ErrNoAnswer, c.o.Timeout)
			}
			if _, err := c.conn.WriteToUDPAddrPort(message, to.Host); err != nil {
				return apdu{}, fmt.Errorf("send to %s: %w", to, err)
			}
			sent++
			timer.Reset(c.o.Timeout / time.Duration(tries))
		}
	}
}

// begin finds an invoke identifier that no request to the device has now. They go round, so that a late answer finds nobody.
func (c *Client) begin(to Address) (exchange, chan apdu) {
	c.mu.Lock()
	defer c.mu.Unlock()
	key := exchange{to: to}
	for range 256 {
		c.nextInvoke++
		key.invoke = c.nextInvoke
		if c.waiting[key] == nil {
			break
		}
	}
	wait := make(chan apdu, 1)
	c.waiting[key] = wait
	return key, wait
}

func (c *Client) end(key exchange) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.waiting, key)
}

// answerError turns what a device answered into an error where it is one.
func answerError(a apdu, service byte) (apdu, error) {
	switch a.kind {
	case errorAnswer:
		r := reader{data: a.data}
		if r.isOpen(0) { // some services' errors have more than class and code
			r.open(0)
		}
		e := r.errorOf()
		if r.err != nil {
			return a, fmt.Errorf("an error that can't be read: %w", r.err)
		}
		return a, e
	case rejectAnswer:
		return a, Reject(a.reason)
	case abortAnswer:
		return a, Abort(a.reason)
	}
	switch {
	case a.cut:
		return a, Abort(abortTooLong)
	case a.service != service:
		return a, fmt.Errorf("the answer is of service %d, not %d", a.service, service)
	}
	return a, nil
}

// readTries is how often a read is sent within the time-out: UDP loses messages.
const readTries = 3

// ReadMultiple reads several properties in one request. A property that can't be read has its Err. References of the same object
// should follow each other.
func (c *Client) ReadMultiple(ctx context.Context, to Address, refs []Reference) ([]Result, error) {
	a, err := c.request(ctx, to, serviceReadMultiple, encodeReadMultiple(refs), readTries)
	if err != nil {
		return nil, err
	}
	return decodeResults(a.data)
}

// Read reads one property.
func (c *Client) Read(ctx context.Context, to Address, ref Reference) ([]any, error) {
	a, err := c.request(ctx, to, serviceRead, encodeRead(ref), readTries)
	if err != nil {
		return nil, err
	}
	result, err := decodeResult(a.data)
	if ref.Object == NewObjectID(Device, MaxInstance) && result.Object.Type() == Device {
		ref.Object = result.Object // it stood for whichever the device has
	}
	if err == nil && result.Reference != ref {
		err = fmt.Errorf("the answer is of %s %s, not of %s %s", result.Object, result.Property, ref.Object, ref.Property)
	}
	return result.Values, err
}

// Write sets a property once. A nil value relinquishes what was written with the priority before; priority 0 is none.
func (c *Client) Write(ctx context.Context, to Address, ref Reference, value any, priority byte) error {
	data, err := encodeWrite(write{Reference: ref, value: value, priority: priority})
	if err != nil {
		return err
	}
	_, err = c.request(ctx, to, serviceWrite, data, 1)
	return err
}

// Listen takes the notifications that a device sends to the process identifier that it returns, until stop is called.
func (c *Client) Listen(from Address, f func(Notification)) (process uint32, stop func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.nextID++
	id := c.nextID
	c.listeners[id], c.processes[id] = f, from
	return id, func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		delete(c.listeners, id)
		delete(c.processes, id)
	}
}

// Subscribe asks for confirmed notifications of an object for a time, at the beginning at once. It renews one that is there.
func (c *Client) Subscribe(ctx context.Context, to Address, process uint32, object ObjectID, lifetime time.Duration) error {
	s := subscription{process: process, object: object, confirmed: true, lifetime: uint32(lifetime / time.Second)}
	_, err := c.request(ctx, to, serviceSubscribeCOV, encodeSubscribe(s), readTries)
	return err
}

// Announcements passes on each I-Am that comes, until stop is called.
func (c *Client) Announcements(f func(IAm)) (stop func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.nextID++
	id := c.nextID
	c.announced[id] = f
	return func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		delete(c.announced, id)
	}
}

// WhoIs asks which devices with numbers from low to high there are. Answers come to Announcements.
func (c *Client) WhoIs(low, high uint32) (err error) {
	if c.broadcast.IsValid() {
		err = c.AskWho(c.broadcast, low, high)
	}
	if c.bbmd.IsValid() {
		err = c.sendWhoIs(bvlcDistribute, c.bbmd, low, high)
	}
	return err
}

// AskWho is WhoIs to one address, of a device or of all in a subnet.
func (c *Client) AskWho(to netip.AddrPort, low, high uint32) error {
	return c.sendWhoIs(bvlcBroadcast, to, low, high)
}

func (c *Client) sendWhoIs(function byte, to netip.AddrPort, low, high uint32) error {
	message := encodeUnconfirmed(unconfirmedWhoIs, encodeWhoIs(low, high))
	if _, err := c.conn.WriteToUDPAddrPort(encodePacket(function, Address{}, true, false, message), to); err != nil {
		return fmt.Errorf("send Who-Is to %s: %w", to, err)
	}
	return nil
}

// BroadcastAddresses are the addresses at which this host's interfaces hear everybody, with BACnet's port.
func BroadcastAddresses() (list []netip.AddrPort) {
	list = append(list, netip.AddrPortFrom(netip.AddrFrom4([4]byte{255, 255, 255, 255}), DefaultPort))
	addresses, _ := net.InterfaceAddrs()
	for _, a := range addresses {
		prefix, err := netip.ParsePrefix(a.String())
		if err != nil || !prefix.Addr().Is4() || prefix.Bits() > 30 {
			continue
		}
		last := prefix.Masked().Addr().As4()
		for i := prefix.Bits(); i < 32; i++ {
			last[i/8] |= 1 << (7 - i%8)
		}
		if at := netip.AddrPortFrom(netip.AddrFrom4(last), DefaultPort); !slices.Contains(list, at) {
			list = append(list, at)
		}
	}
	return list
}

// Find asks for the device of a number until it answers or ctx ends.
func (c *Client) Find(ctx context.Context, instance uint32) (IAm, error) {
	found := make(chan IAm, 1)
	defer c.Announcements(func(i IAm) {
		if i.Device.Instance() == instance {
			select {
			case found <- i:
			default:
			}
		}
	})()
	again := time.NewTicker(time.Second)
	defer again.Stop()
	for {
		if err := c.WhoIs(instance, instance); err != nil {
			return IAm{}, err
		}
		select {
		case i := <-found:
			return i, nil
		case <-again.C:
		case <-c.done:
			return IAm{}, net.ErrClosed
		case <-ctx.Done():
			return IAm{}, fmt.Errorf("device %d: %w to Who-Is", instance, ErrNoAnswer)
		}
	}
}

// stayRegistered registers with the BBMD, again at half of the time, and each five seconds while it doesn't answer.
func (c *Client) stayRegistered() {
	for {
		_, _ = c.conn.WriteToUDPAddrPort(registration(uint16(registerFor/time.Second)), c.bbmd)
		next := 5 * time.Second
		select {
		case result := <-c.registered:
			if result == 0 {
				next = registerFor / 2
			}
		case <-time.After(c.o.Timeout):
		case <-c.done:
			return
		}
		select {
		case <-time.After(next):
		case <-c.done:
			return
		}
	}
}
