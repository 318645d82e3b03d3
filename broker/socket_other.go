// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package broker

import (
	"errors"
	"net"
	"syscall"

	"github.com/edgebus/edgebus/broker/session"
)

// Elsewhere connections are what the standard library makes of them.

func rawSocketOf(transport net.Conn) net.Conn { return transport }

func writerConn(transport net.Conn, c *conn) session.Conn { return halfCloser{transport, c} }

func rawConnOf(net.Conn) syscall.RawConn { return nil }

func tryRead(uintptr, []byte) (n int, nothing bool, err error) { return 0, true, nil }

func underlyingStream(conn net.Conn) net.Conn { return conn }

func peerUID(*net.UnixConn) (uint32, error) {
	return 0, errors.New("this system does not identify the peer of a Unix socket")
}

// limitUnsent is for Linux.
func limitUnsent(*net.TCPConn) {}
