// SPDX-License-Identifier: Apache-2.0

package network

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"
	"sync"

	"golang.org/x/net/ipv4"
	"golang.org/x/net/ipv6"
)

// Packet is a datagram that came.
type Packet struct {
	From *net.UDPAddr
	Data []byte
}

// maxDatagram bounds what is read of one.
const maxDatagram = 16 << 10

// Group asks by multicast on the interfaces of a host, over IPv4 and, where there is an address for it, IPv6.
type Group struct {
	// Packets are the datagrams that come. Those for which there is no room are lost, as datagrams are. It is closed when a socket can no
	// longer be read: Err says why, and the Group is of no more use.
	Packets <-chan Packet

	names   []string
	listen  bool
	sockets []socket
	wg      sync.WaitGroup
	ended   sync.Once
	err     error // set before Packets is closed
}

// socket is that of a Group for IPv4 or IPv6.
type socket struct {
	net.PacketConn
	join func(net.Interface) error
	send func(net.Interface, []byte) error
}

// JoinFunc is what Join is.
type JoinFunc func(ctx context.Context, address4, address6 string, names []string, listen bool) (*Group, error)

// Join opens the sockets. With listen they are members of the groups, at their port, beside other programs of the host; without, they
// have ports of their own and get the answers that are sent to them. address6 may be empty. names are globs of interfaces; none: all.
func Join(ctx context.Context, address4, address6 string, names []string, listen bool) (*Group, error) {
	var sockets []socket
	s, err := openIPv4(ctx, address4, listen)
	if err == nil {
		sockets = append(sockets, s)
	}
	if address6 != "" {
		if s, err := openIPv6(ctx, address6, listen); err == nil {
			sockets = append(sockets, s)
		}
	}
	if len(sockets) == 0 {
		return nil, fmt.Errorf("no socket for %s: %w", address4, err)
	}
	g := newGroup(sockets)
	g.names, g.listen = names, listen
	return g, nil
}

// newGroup makes a Group that reads from sockets.
func newGroup(sockets []socket) *Group {
	packets := make(chan Packet, 256)
	g := &Group{Packets: packets, sockets: sockets}
	for _, s := range g.sockets {
		g.wg.Go(func() { g.end(fmt.Errorf("the socket %s can't be read: %w", s.LocalAddr(), readPackets(packets, s))) })
	}
	go func() {
		g.wg.Wait()
		close(packets)
	}()
	return g
}

// end closes the sockets, for the reason err.
func (g *Group) end(err error) {
	g.ended.Do(func() {
		g.err = err
		for _, s := range g.sockets {
			_ = s.Close()
		}
	})
}

// Err returns why Packets is closed.
func (g *Group) Err() error { return g.err }

// readPackets hands over what comes until the socket can no longer be read, and returns why.
func readPackets(to chan<- Packet, from net.PacketConn) error {
	b := make([]byte, maxDatagram)
	for {
		n, addr, err := from.ReadFrom(b)
		if err != nil {
			var failed net.Error
			if errors.As(err, &failed) && failed.Timeout() || !errors.Is(err, net.ErrClosed) && n == 0 && addr != nil {
				continue
			}
			return err
		}
		udp, ok := addr.(*net.UDPAddr)
		if !ok {
			continue
		}
		select {
		case to <- Packet{udp, append([]byte(nil), b[:n]...)}:
		default:
		}
	}
}

func openIPv4(ctx context.Context, address string, listen bool) (s socket, err error) {
	group, err := s.open(ctx, "udp4", address, "0.0.0.0", listen)
	if err != nil {
		return s, err
	}
	c := ipv4.NewPacketConn(s.PacketConn)
	_ = c.SetMulticastLoopback(true) // programs of this host are asked as well
	s.join = func(i net.Interface) error { return c.JoinGroup(&i, group) }
	s.send = func(i net.Interface, data []byte) error {
		_, err := c.WriteTo(data, &ipv4.ControlMessage{IfIndex: i.Index}, group)
		return err
	}
	return s, nil
}

func openIPv6(ctx context.Context, address string, listen bool) (s socket, err error) {
	group, err := s.open(ctx, "udp6", address, "::", listen)
	if err != nil {
		return s, err
	}
	c := ipv6.NewPacketConn(s.PacketConn)
	_ = c.SetMulticastLoopback(true)
	s.join = func(i net.Interface) error { return c.JoinGroup(&i, group) }
	s.send = func(i net.Interface, data []byte) error {
		to := *group
		to.Zone = i.Name
		_, err := c.WriteTo(data, &ipv6.ControlMessage{IfIndex: i.Index}, &to)
		return err
	}
	return s, nil
}

// open opens the socket for a group, at its port or one of its own.
func (s *socket) open(ctx context.Context, kind, address, host string, listen bool) (group *net.UDPAddr, err error) {
	if group, err = net.ResolveUDPAddr(kind, address); err != nil {
		return nil, err
	}
	port := 0
	if listen {
		port = group.Port
	}
	s.PacketConn, err = listenShared(ctx, kind, net.JoinHostPort(host, strconv.Itoa(port)), listen)
	return group, err
}

// Send sends a datagram to the groups on every interface that there is now. It fails if it could be sent on none.
func (g *Group) Send(data []byte) error {
	interfaces, err := Interfaces(g.names)
	if err != nil {
		return err
	}
	sent := false
	err = errors.New("no interface has an address")
	if len(g.names) > 0 {
		err = fmt.Errorf("no interface of %q has an address", g.names)
	}
	for _, i := range interfaces {
		for _, s := range g.sockets {
			if g.listen {
				_ = s.join(i) // fails if it is a member already
			}
			if failed := s.send(i, data); failed == nil {
				sent = true
			} else {
				err = fmt.Errorf("interface %s: %w", i.Name, failed)
			}
		}
	}
	if sent {
		return nil
	}
	return err
}

// Listen makes a Group a member of the groups on every interface that there is now, which needs Join's listen. It may be called again.
func (g *Group) Listen() error {
	interfaces, err := Interfaces(g.names)
	for _, i := range interfaces {
		for _, s := range g.sockets {
			_ = s.join(i)
		}
	}
	return err
}

// Close ends the Group.
func (g *Group) Close() {
	g.end(net.ErrClosed)
	g.wg.Wait()
}
