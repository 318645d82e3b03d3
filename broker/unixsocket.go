// SPDX-License-Identifier: Apache-2.0

package broker

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"os/user"
	"strconv"
	"syscall"
	"time"
)

// unixScheme begins the addresses of Unix sockets.
const unixScheme = "unix:"

// maxSocketPath is how long the path of a Unix socket may be; the kernel has no room for more.
const maxSocketPath = 107

// systemConn is a connection of the system's: TCP's or a Unix socket's.
type systemConn interface {
	net.Conn
	syscall.Conn
	CloseWrite() error
}

// localConn is a connection over a Unix socket. The kernel says which user of this host connected.
type localConn struct {
	*net.UnixConn
	peer hostUser
}

// hostUser is a user of this host: its number, and its name if it has one.
type hostUser struct{ uid, name string }

// Network and String make it an address, for logs.
func (hostUser) Network() string  { return "unix" }
func (u hostUser) String() string { return unixScheme + u.label() }

func (u hostUser) label() string {
	if u.name == "" {
		return u.uid
	}
	return u.name
}

// RemoteAddr is the user who connected: a Unix socket's client has no address.
func (c *localConn) RemoteAddr() net.Addr { return c.peer }

// withPeer asks the kernel who connected.
func withPeer(conn *net.UnixConn) (net.Conn, error) {
	uid, err := peerUID(conn)
	if err != nil {
		_ = conn.Close()
		return nil, fmt.Errorf("the peer of the Unix socket is unknown: %w", err)
	}
	peer := hostUser{uid: strconv.FormatUint(uint64(uid), 10)}
	if u, err := user.LookupId(peer.uid); err == nil {
		peer.name = u.Username
	}
	return &localConn{conn, peer}, nil
}

// listenUnix listens on a socket that every user of the host may connect to: which of them may sign in is decided by user. A socket
// that a program left behind is replaced. A socket with a listener, and any other file, is not.
func listenUnix(path string) (net.Listener, error) {
	if len(path) > maxSocketPath {
		return nil, fmt.Errorf("the path of a Unix socket has %d bytes at most, and %s has %d", maxSocketPath, path, len(path))
	}
	info, err := os.Lstat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
	case err != nil:
		return nil, err
	case info.Mode().Type() != fs.ModeSocket:
		return nil, fmt.Errorf("%s is there and is no socket", path)
	default:
		if conn, err := net.DialTimeout("unix", path, time.Second); err == nil {
			_ = conn.Close()
			return nil, fmt.Errorf("%s: another program listens there", path)
		}
		if err := os.Remove(path); err != nil {
			return nil, err
		}
	}
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		return nil, err
	}
	if err := os.Chmod(path, 0o666); err != nil { //nolint:gosec // see above
		return nil, errors.Join(err, l.Close())
	}
	return l, nil
}

// hostUserOf is the user of this host behind a connection, if it came over a Unix socket.
func hostUserOf(conn net.Conn) *hostUser {
	if l, ok := underlyingStream(conn).(*localConn); ok {
		return &l.peer
	}
	return nil
}
