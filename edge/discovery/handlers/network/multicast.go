package network

import (
	"context"
	"errors"
	"fmt"
	"net"
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
	// Packets are the datagrams that come. Those for which there is no room are lost, as datagrams are.
	Packets <-chan Packet

	names  []string
	listen bool
	v4     *ipv4.PacketConn
	v6     *ipv6.PacketConn
	to4    *net.UDPAddr
	to6    *net.UDPAddr
	wg     sync.WaitGroup
}

// Join opens the sockets. With listen they are members of the groups, at their port, beside other programs of the host; without, they
// have ports of their own and get the answers that are sent to them. address6 may be empty. names are globs of interfaces; none: all.
func Join(ctx context.Context, address4, address6 string, names []string, listen bool) (*Group, error) {
	packets := make(chan Packet, 256)
	g := &Group{Packets: packets, names: names, listen: listen}
	err4 := g.open4(ctx, address4)
	err6 := errors.New("no address")
	if address6 != "" {
		err6 = g.open6(ctx, address6)
	}
	if err4 != nil && err6 != nil {
		return nil, fmt.Errorf("no socket for %s: %w", address4, err4)
	}
	if g.v4 != nil {
		g.wg.Go(func() {
			read(packets, func(b []byte) (int, net.Addr, error) { n, _, from, err := g.v4.ReadFrom(b); return n, from, err })
		})
	}
	if g.v6 != nil {
		g.wg.Go(func() {
			read(packets, func(b []byte) (int, net.Addr, error) { n, _, from, err := g.v6.ReadFrom(b); return n, from, err })
		})
	}
	return g, nil
}

func read(to chan<- Packet, from func([]byte) (int, net.Addr, error)) {
	b := make([]byte, maxDatagram)
	for {
		n, addr, err := from(b)
		if err != nil {
			var failed net.Error
			if errors.As(err, &failed) && failed.Timeout() || !errors.Is(err, net.ErrClosed) && n == 0 && addr != nil {
				continue
			}
			return
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

func (g *Group) open4(ctx context.Context, address string) (err error) {
	if g.to4, err = net.ResolveUDPAddr("udp4", address); err != nil {
		return err
	}
	port := 0
	if g.listen {
		port = g.to4.Port
	}
	c, err := listenShared(ctx, "udp4", fmt.Sprintf("0.0.0.0:%d", port), g.listen)
	if err != nil {
		return err
	}
	g.v4 = ipv4.NewPacketConn(c)
	_ = g.v4.SetMulticastLoopback(true) // programs of this host are asked as well
	return nil
}

func (g *Group) open6(ctx context.Context, address string) (err error) {
	if g.to6, err = net.ResolveUDPAddr("udp6", address); err != nil {
		return err
	}
	port := 0
	if g.listen {
		port = g.to6.Port
	}
	c, err := listenShared(ctx, "udp6", fmt.Sprintf("[::]:%d", port), g.listen)
	if err != nil {
		return err
	}
	g.v6 = ipv6.NewPacketConn(c)
	_ = g.v6.SetMulticastLoopback(true)
	return nil
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
		for _, failed := range g.sendOn(i, data) {
			if failed == nil {
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

func (g *Group) sendOn(i net.Interface, data []byte) (results []error) {
	if g.v4 != nil {
		if g.listen {
			_ = g.v4.JoinGroup(&i, g.to4) // fails if it is a member already
		}
		_, err := g.v4.WriteTo(data, &ipv4.ControlMessage{IfIndex: i.Index}, g.to4)
		results = append(results, err)
	}
	if g.v6 != nil {
		if g.listen {
			_ = g.v6.JoinGroup(&i, g.to6)
		}
		to := *g.to6
		to.Zone = i.Name
		_, err := g.v6.WriteTo(data, &ipv6.ControlMessage{IfIndex: i.Index}, &to)
		results = append(results, err)
	}
	return results
}

// Listen makes a Group with listen a member of the groups on every interface that there is now, without sending anything.
func (g *Group) Listen() error {
	interfaces, err := Interfaces(g.names)
	if err != nil {
		return err
	}
	for _, i := range interfaces {
		if g.v4 != nil {
			_ = g.v4.JoinGroup(&i, g.to4)
		}
		if g.v6 != nil {
			_ = g.v6.JoinGroup(&i, g.to6)
		}
	}
	return nil
}

// Close ends the Group.
func (g *Group) Close() {
	if g.v4 != nil {
		_ = g.v4.Close()
	}
	if g.v6 != nil {
		_ = g.v6.Close()
	}
	g.wg.Wait()
}
