// Package descriptors keeps some of a process's file descriptors for its own work, such as the link and
// its files: connections that others make take none of them.
package descriptors

import (
	"errors"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

// How many descriptors listeners leave free, where the process may have four times as many. Who asks over HTTP how the
// process is gets some that clients of MQTT don't.
const (
	MQTT = 32
	HTTP = 16
)

// Keep makes a listener that takes no connection which would leave less than spare descriptors free.
func Keep(l net.Listener, spare int) net.Listener { return &keeper{l, spare} }

type keeper struct {
	net.Listener
	spare int
}

// Accept closes a connection for which there is no room, and returns a temporary error.
func (k *keeper) Accept() (net.Conn, error) {
	conn, err := k.Listener.Accept()
	if errors.Is(err, syscall.EMFILE) || errors.Is(err, syscall.ENFILE) {
		note()
	}
	if err != nil {
		return nil, err
	}
	if most := limit(); most > 0 && number(conn) >= most-min(k.spare, most/4) {
		note()
		_ = conn.Close()
		return nil, shortage{}
	}
	return conn, nil
}

// number is a connection's descriptor: the system gives the lowest that is free.
func number(conn net.Conn) (fd int) {
	c, ok := conn.(syscall.Conn)
	if !ok {
		return 0
	}
	raw, err := c.SyscallConn()
	if err == nil {
		_ = raw.Control(func(n uintptr) { fd = int(n) })
	}
	return fd
}

// shortage is a net.Error that goes away.
type shortage struct{}

func (shortage) Error() string {
	return "file descriptors are short: the rest are kept for the process's own work"
}
func (shortage) Timeout() bool   { return false }
func (shortage) Temporary() bool { return true }

const recently = time.Minute

var (
	last  atomic.Int64 // when there were too few, in nanoseconds
	limit = sync.OnceValue(most)
)

func note() { last.Store(time.Now().UnixNano()) }

// Short says that connections were refused lately because there were too few descriptors; empty: none was.
func Short() string {
	if time.Since(time.Unix(0, last.Load())) > recently {
		return ""
	}
	return fmt.Sprintf("nearly all of the %d file descriptors that it may have are in use", limit())
}
