// SPDX-License-Identifier: Apache-2.0

package stand

import (
	"bufio"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"sync"

	"github.com/stretchr/testify/require"

	"github.com/edgebus/edgebus/topics"
	"github.com/edgebus/edgebus/topics/link"
)

// Tap passes the link of n1 on and reads along what its core says.
type Tap struct {
	listener net.Listener
	target   string
	topic    string
	wait     sync.WaitGroup

	mu      sync.Mutex
	conns   map[net.Conn]bool
	entries map[string]int // sent to the hub, by key
	broken  error          // what the tap did not understand
}

// TapLink makes a tap between n1's core and its network. The core must be started
// with --link-server mqtt:// and the tap's address.
func (s *Stand) TapLink() *Tap {
	s.t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(s.t, err)
	up, _ := topics.SyncTopics("n1")
	p := &Tap{
		listener: listener, target: s.Node("n1").Net.Addr(), topic: up,
		conns: map[net.Conn]bool{}, entries: map[string]int{},
	}
	p.wait.Go(p.accept)
	s.t.Cleanup(p.close)
	return p
}

// Addr is where the core connects.
func (p *Tap) Addr() string { return p.listener.Addr().String() }

// Reset forgets what was counted.
func (p *Tap) Reset() {
	p.mu.Lock()
	defer p.mu.Unlock()
	clear(p.entries)
}

// Sent is how many entries of the up map went to the hub since the last Reset, and
// the key that was sent most often.
func (p *Tap) Sent() (entries int, key string, most int, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for k, n := range p.entries {
		entries += n
		if n > most {
			key, most = k, n
		}
	}
	return entries, key, most, p.broken
}

func (p *Tap) accept() {
	for {
		conn, err := p.listener.Accept()
		if err != nil {
			return
		}
		p.wait.Go(func() { p.pass(conn) })
	}
}

func (p *Tap) close() {
	_ = p.listener.Close()
	p.mu.Lock()
	for c := range p.conns {
		_ = c.Close()
	}
	p.mu.Unlock()
	p.wait.Wait()
}

func (p *Tap) hold(c net.Conn) func() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.conns[c] = true
	return func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		delete(p.conns, c)
		_ = c.Close()
	}
}

func (p *Tap) pass(core net.Conn) {
	defer p.hold(core)()
	hub, err := net.Dial("tcp", p.target)
	if err != nil {
		return
	}
	defer p.hold(hub)()
	var down sync.WaitGroup
	down.Go(func() {
		_, _ = io.Copy(core, hub)
		_ = core.Close()
	})
	err = p.listen(bufio.NewReader(io.TeeReader(core, hub)))
	if err != nil && !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) && !errors.Is(err, net.ErrClosed) {
		var network *net.OpError
		if !errors.As(err, &network) {
			p.mu.Lock()
			p.broken = err
			p.mu.Unlock()
		}
	}
	_ = hub.Close()
	down.Wait()
}

// listen reads MQTT packets and counts the entries of those for the link.
func (p *Tap) listen(r *bufio.Reader) error {
	for {
		first, err := r.ReadByte()
		if err != nil {
			return err
		}
		size, err := binary.ReadUvarint(r) // MQTT's variable byte integer is the same
		if err != nil {
			return err
		}
		body := make([]byte, size)
		if _, err := io.ReadFull(r, body); err != nil {
			return err
		}
		if first>>4 == 3 {
			if err := p.publish(first>>1&3, body); err != nil {
				return err
			}
		}
	}
}

var errNoPublish = errors.New("tap: not the PUBLISH of an MQTT 5 client")

func (p *Tap) publish(qos byte, body []byte) error {
	if len(body) < 2 {
		return errNoPublish
	}
	n := int(binary.BigEndian.Uint16(body))
	head := 2 + n
	if qos > 0 {
		head += 2 // the packet identifier
	}
	if len(body) <= head {
		return errNoPublish
	}
	topic, rest := string(body[2:2+n]), body[head:]
	size, width := binary.Uvarint(rest)
	if width <= 0 || len(rest) < width+int(size) {
		return errNoPublish
	}
	if topic != p.topic {
		return nil
	}
	m, err := link.Decode(rest[width+int(size):])
	if err != nil {
		return err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, e := range m.Entries {
		if m.Map == link.Up {
			p.entries[e.Key]++
		}
	}
	return nil
}
