// SPDX-License-Identifier: Apache-2.0

//go:build !unix

package network

import (
	"context"
	"net"
)

// listenShared opens a UDP socket of its own: this system has no option that lets several programs have one port.
func listenShared(ctx context.Context, kind, address string, _ bool) (net.PacketConn, error) {
	return new(net.ListenConfig).ListenPacket(ctx, kind, address)
}
