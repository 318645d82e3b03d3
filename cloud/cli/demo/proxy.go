// SPDX-License-Identifier: Apache-2.0

package demo

import (
	"io"
	"net"
	"sync"
	"time"
)

// linkProxy is the network between node and hub, which can be cut.
type linkProxy struct {
	target   string
	listener net.Listener

	mu    sync.Mutex
	isCut bool
	conns map[net.Conn]bool
}

func newProxy(to string) (*linkProxy, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	w := &linkProxy{target: to, listener: l, conns: map[net.Conn]bool{}}
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			go w.forward(conn)
		}
	}()
	return w, nil
}

func (w *linkProxy) forward(a net.Conn) {
	defer a.Close()
	b, err := net.DialTimeout("tcp", w.target, time.Second)
	if err != nil {
		return
	}
	defer b.Close()
	w.mu.Lock()
	broken := w.isCut
	if !broken {
		w.conns[a], w.conns[b] = true, true
	}
	w.mu.Unlock()
	if broken {
		return
	}
	go func() {
		_, _ = io.Copy(a, b)
		_ = a.Close()
	}()
	_, _ = io.Copy(b, a)
	w.mu.Lock()
	delete(w.conns, a)
	delete(w.conns, b)
	w.mu.Unlock()
}

// setCut closes all connections and lets no new ones through, until it is called with false.
func (w *linkProxy) setCut(yes bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.isCut = yes
	for conn := range w.conns {
		_ = conn.Close()
	}
}
