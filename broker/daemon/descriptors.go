// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"errors"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

// File descriptors that listeners leave to the process's own work, such as the link and its files; at most a quarter of
// what the process may have. HTTP leaves fewer than MQTT, so that the process can be asked what is wrong.
const (
	MQTTReserve = 32
	HTTPReserve = 16
)

// ReserveDescriptors makes a listener that accepts no connection which would leave fewer than spare descriptors free.
func ReserveDescriptors(l net.Listener, spare int) net.Listener { return &reservingListener{l, spare} }

type reservingListener struct {
	net.Listener
	spare int
}

// Accept closes a connection for which there is no room, and returns a temporary error.
func (k *reservingListener) Accept() (net.Conn, error) {
	conn, err := k.Listener.Accept()
	if errors.Is(err, syscall.EMFILE) || errors.Is(err, syscall.ENFILE) {
		recordShortage()
	}
	if err != nil {
		return nil, err
	}
	if most := descriptorLimit(); most > 0 && descriptorOf(conn) >= most-min(k.spare, most/4) {
		recordShortage()
		_ = conn.Close()
		return nil, shortageError{}
	}
	return conn, nil
}

// descriptorOf is a connection's descriptor: the system gives the lowest that is free.
func descriptorOf(conn net.Conn) (fd int) {
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

// shortageError is a temporary net.Error: net/http and the broker accept again after a pause.
type shortageError struct{}

func (shortageError) Error() string {
	return "file descriptors are short: the rest are reserved for the process's own work"
}
func (shortageError) Timeout() bool   { return false }
func (shortageError) Temporary() bool { return true }

const shortageMemory = time.Minute

var (
	lastShortage    atomic.Int64 // in nanoseconds
	descriptorLimit = sync.OnceValue(maxDescriptors)
)

func recordShortage() { lastShortage.Store(time.Now().UnixNano()) }

// DescriptorsShort says that connections were refused in the last minute because there were too few descriptors; empty: none was.
func DescriptorsShort() string {
	if time.Since(time.Unix(0, lastShortage.Load())) > shortageMemory {
		return ""
	}
	return fmt.Sprintf("nearly all of the %d file descriptors that it may have are in use", descriptorLimit())
}
