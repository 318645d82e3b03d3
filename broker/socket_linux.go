// SPDX-License-Identifier: Apache-2.0

package broker

import (
	"errors"
	"io"
	"net"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/edgebus/edgebus/broker/session"
)

// rawSocket reads and writes the socket of a TCP or Unix connection, which never blocks, without
// telling the scheduler of the calls. Telling it costs a wake-up of the runtime's
// monitor for every packet that comes after a pause: a quarter of a message's CPU time.
// Waiting and deadlines are the network poller's, as always.
type rawSocket struct {
	systemConn
	raw   syscall.RawConn
	again func(fd uintptr) bool // flush
	once  func(fd uintptr) bool // flush, without waiting for what is left

	// The writer's.
	out []byte // still to be written
	err error
}

// rawSocketOf gives a connection that is nothing but a socket the short way to it.
func rawSocketOf(transport net.Conn) net.Conn {
	var s *rawSocket
	switch t := transport.(type) {
	case *net.TCPConn:
		s = &rawSocket{systemConn: t}
	case *localConn:
		s = &rawSocket{systemConn: t}
	default:
		return transport
	}
	raw, err := s.SyscallConn()
	if err != nil {
		return transport
	}
	s.raw = raw
	s.again = s.flush
	s.once = func(fd uintptr) bool { s.flush(fd); return true }
	return s
}

// maxUnsent is how much the kernel keeps for a client that was not sent yet, in bytes. A blocked write goes on when half of it has gone, and
// so within limits.writeTimeout for all that read steadily, however slowly. The kernel's own rule is a third of a buffer of megabytes: a
// client that takes 100 kB/s would be taken for one that reads nothing.
const maxUnsent = 128 << 10

// limitUnsent sets that bound. Where it can't be set, the kernel's rule holds.
func limitUnsent(tcp *net.TCPConn) {
	if raw, err := tcp.SyscallConn(); err == nil {
		_ = raw.Control(func(fd uintptr) { _ = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_NOTSENT_LOWAT, maxUnsent) })
	}
}

// writerConn is what the writer gets of the transport.
func writerConn(transport net.Conn, c *conn) session.Conn {
	if s, ok := transport.(*rawSocket); ok {
		return halfSocket{s, c}
	}
	return halfCloser{transport, c}
}

// halfSocket ends its own direction when it is closed.
type halfSocket struct {
	*rawSocket
	c *conn
}

func (h halfSocket) Close() error { return halfCloser{h.rawSocket, h.c}.Close() }

// rawConnOf is what tries to read from a connection's socket; nil: there is none.
func rawConnOf(conn net.Conn) syscall.RawConn {
	if s, ok := conn.(*rawSocket); ok {
		return s.raw
	}
	return nil
}

// tryRead reads what is there. It says if that is nothing, and io.EOF if that is all.
func tryRead(fd uintptr, p []byte) (n int, nothing bool, err error) {
	n, errno := sysRead(fd, p)
	switch {
	case errno == syscall.EAGAIN:
		return 0, true, nil
	case errno != 0:
		return 0, false, errno
	case n == 0:
		return 0, false, io.EOF
	}
	return n, false, nil
}

// Write writes all of p. It must not be called concurrently.
func (s *rawSocket) Write(p []byte) (int, error) { return s.write(p, s.again) }

// TryWrite writes as much of p as the socket takes now.
func (s *rawSocket) TryWrite(p []byte) (int, error) { return s.write(p, s.once) }

func (s *rawSocket) write(p []byte, how func(uintptr) bool) (int, error) {
	s.out, s.err = p, nil
	err := s.raw.Write(how)
	if err == nil {
		err = s.err
	}
	n := len(p) - len(s.out)
	s.out = nil
	return n, err
}

// flush writes what the socket takes, and says whether there is nothing left to wait for.
func (s *rawSocket) flush(fd uintptr) (done bool) {
	for len(s.out) > 0 {
		n, errno := sysWrite(fd, s.out)
		switch errno {
		case 0:
			s.out = s.out[n:]
		case syscall.EAGAIN:
			return false
		default:
			s.err = errno
			return true
		}
	}
	return true
}

// underlyingStream is the connection below a socket.
func underlyingStream(conn net.Conn) net.Conn {
	if s, ok := conn.(*rawSocket); ok {
		return s.systemConn
	}
	return conn
}

// peerUID is the number of the user who connected to a Unix socket.
func peerUID(conn *net.UnixConn) (uid uint32, err error) {
	raw, err := conn.SyscallConn()
	if err != nil {
		return 0, err
	}
	var cred *syscall.Ucred
	controlled := raw.Control(func(fd uintptr) {
		cred, err = syscall.GetsockoptUcred(int(fd), syscall.SOL_SOCKET, syscall.SO_PEERCRED)
	})
	if err = errors.Join(controlled, err); err != nil {
		return 0, err
	}
	return cred.Uid, nil
}
