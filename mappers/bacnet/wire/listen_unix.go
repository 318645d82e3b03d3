// SPDX-License-Identifier: Apache-2.0

//go:build unix

package wire

import (
	"context"
	"errors"
	"net"
	"syscall"
)

// shareSocket lets other sockets, which do the same, have the socket's port as well.
func shareSocket(raw syscall.RawConn) error {
	var failed error
	err := raw.Control(func(fd uintptr) { failed = syscall.SetsockoptInt(int(fd), syscall.SOL_SOCKET, syscall.SO_REUSEADDR, 1) })
	return errors.Join(err, failed)
}

func listenShared(address string) (*net.UDPConn, error) {
	config := net.ListenConfig{Control: func(_, _ string, raw syscall.RawConn) error { return shareSocket(raw) }}
	conn, err := config.ListenPacket(context.Background(), "udp4", address)
	if err != nil {
		return nil, err
	}
	return conn.(*net.UDPConn), nil
}

// probeAddress is an address of this host that nobody binds a socket to: only one for all addresses is in the way there.
var probeAddress = net.IPv4(127, 255, 255, 254)

// listenOwn opens a socket whose port other sockets may only have for broadcasts (see listenBroadcast): of two with the same port each would get
// some of the answers to the other.
func listenOwn(local *net.UDPAddr) (*net.UDPConn, error) {
	conn, err := net.ListenUDP("udp4", local)
	if errors.Is(err, syscall.EADDRINUSE) && local.Port != 0 && (local.IP == nil || local.IP.IsUnspecified()) {
		if probe, probed := net.ListenUDP("udp4", &net.UDPAddr{IP: probeAddress, Port: local.Port}); probed == nil {
			_ = probe.Close()
			return listenShared(local.String())
		}
	}
	if err != nil {
		return nil, err
	}
	if raw, err := conn.SyscallConn(); err == nil {
		_ = shareSocket(raw) // from now on
	}
	return conn, nil
}

// listenBroadcast opens a socket that gets what is broadcast to an address, and nothing else, also if another program has the port.
func listenBroadcast(address string) (*net.UDPConn, error) { return listenShared(address) }
