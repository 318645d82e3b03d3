// SPDX-License-Identifier: Apache-2.0

//go:build unix

package network

import (
	"context"
	"net"
	"syscall"

	"golang.org/x/sys/unix"
)

// listenShared opens a UDP socket; with share its port may be that of other sockets of the host, which do the same.
func listenShared(ctx context.Context, kind, address string, share bool) (net.PacketConn, error) {
	c := net.ListenConfig{Control: func(_, _ string, raw syscall.RawConn) error {
		if !share {
			return nil
		}
		var failed error
		err := raw.Control(func(fd uintptr) {
			if failed = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_REUSEADDR, 1); failed == nil {
				failed = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_REUSEPORT, 1)
			}
		})
		if err != nil {
			return err
		}
		return failed
	}}
	return c.ListenPacket(ctx, kind, address)
}
